"""Loss curves of layer norm in float32, which is torch's rule for CUDA, and in bfloat16, as in models/vrt/precision.py.

    OMP_NUM_THREADS=1 nice -n 5 python -m tests.amp_curves --out docs/benchmarks/layer_norm [--steps 500]

Trains a small VRT with spikes on the sample data, with two seeds each, on the CPU in bfloat16 under the autocast rules
of CUDA (tests/cuda_autocast.py), in the plain form. Each training is main_train_vrt.py with its validation at the end.
Writes OUT.json and OUT.png, and prints a table: the difference beside that of another seed. Exit code 1 where it
is larger.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from torch import nn

import main_train_vrt
from models.vrt.precision import LayerNorm
from scripts.benchmark_tools import table
from scripts.compare_runs import aligned, compare, draw
from scripts.make_sample_data import check_made, make_sample
from scripts.quality_data import roots
from tests.cuda_autocast import CudaAutocast, TensorCores
from utils.files import refuse_existing, write_whole
from utils.run.history import read_history

ROOT = Path(__file__).resolve().parent.parent
NORMS, SEEDS = ("float32", "bfloat16"), (0, 1)
EVERY = 5  # steps of a log entry
SMOOTHED = 5  # log entries
LAYERS = 8
OPTIONS = {
    "datasets.train.num_frame": 4, "datasets.train.gt_size": 24,
    "netG.depths": [2] + [1] * (LAYERS - 1), "netG.embed_dims": [16] * LAYERS, "netG.num_heads": [2] * LAYERS,
    "netG.fusion.features": 16, "netG.fusion.layers": 2, "train.amp.enable": True, "train.amp.dtype": "bfloat16",
    "train.checkpoint_print": EVERY, "logging.use_tensorboard": False,
}  # fmt: skip


def run_name(norm: str, seed: int) -> str:
    return f"norm_{norm}_seed{seed}"


def options(folder: Path, norm: str, seed: int, steps: int) -> list[str]:
    """The command line of a training, without its program."""
    values = {
        **OPTIONS, "task": run_name(norm, seed), "path.root": str(folder), "train.manual_seed": seed,
        "train.total_iter": steps, "train.G_scheduler_periods": steps, "train.fix_iter": steps + 1,
        "train.checkpoint_test": steps, "train.checkpoint_save": steps,
        **{f"datasets.{s}.{k}": v for s in ("train", "test") for k, v in roots(folder / "data", s).items()},
    }  # fmt: skip
    file = ROOT / "options/benchmark/gated.json"
    return ["--opt", str(file), *(f"{key}={json.dumps(value)}" for key, value in values.items())]


def train(norm: str, arguments: list[str]) -> int:
    """One training in this process, which is then of no other use."""
    if norm == "float32":
        LayerNorm.forward = nn.LayerNorm.forward
    with TensorCores(), CudaAutocast("cpu"):
        return main_train_vrt.main(arguments)


def result(folder: Path, steps: int) -> dict[str, Any]:
    """Curves and PSNR of the finished runs; differences between the norms and between the seeds, relative to float32.

    difference: of bfloat16 with the same seed, the larger of the two; noise: of float32 with the other seed.
    """
    runs = {run_name(norm, seed): folder / run_name(norm, seed) for norm in NORMS for seed in SEEDS}
    histories = {name: read_history(run) for name, run in runs.items()}
    found = []
    for seed, other in (SEEDS, SEEDS[::-1]):
        names = [run_name("float32", seed), run_name("bfloat16", seed), run_name("float32", other)]
        found.append(compare(aligned([runs[name] for name in names], "train/loss", SMOOTHED)[1]))
    return {
        "steps": steps, "smoothed_steps": SMOOTHED * EVERY, "options": OPTIONS,
        **{kind: {key: max(f[kind][key] for f in found) for key in found[0][kind]} for kind in ("difference", "noise")},
        "is_within_noise": all(f["is_within_noise"] for f in found),
        "psnr": {name: history["val/psnr"][-1][1] for name, history in histories.items()},
        "loss": {name: history["train/loss"] for name, history in histories.items()},
    }  # fmt: skip


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="path without suffix")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument(
        "--work", type=Path, default=ROOT / "experiments/layer_norm", help="data and runs, which resume"
    )
    args = parser.parse_args(argv)
    for suffix in (".json", ".png"):
        refuse_existing(args.out.with_suffix(suffix), "--out")
    folder = args.work.resolve()
    if not (folder / "data").exists() or not check_made(folder / "data", 0, 0, "sample"):
        make_sample(folder / "data")
    for norm in NORMS:
        for seed in SEEDS:
            command = [sys.executable, "-m", "tests.amp_curves", norm, *options(folder, norm, seed, args.steps)]
            subprocess.run(command, cwd=ROOT, check=True)
    found, names = result(folder, args.steps), [run_name("float32", 0), run_name("bfloat16", 0), run_name("float32", 1)]
    steps, curves = aligned([folder / name for name in names], "train/loss", SMOOTHED)
    draw(steps, curves, names[:2], "train/loss", args.out.with_suffix(".png"))
    write_whole(args.out.with_suffix(".json"), (json.dumps(found, indent=1) + "\n").encode())
    keys = ("rms", "largest", "last")
    kinds = {"bfloat16 - float32": "difference", "another seed": "noise"}
    rows = [[what, *(found[kind][key] for key in keys)] for what, kind in kinds.items()]
    print(table(rows, ["smoothed loss, relative", *keys]))
    print(table([[name, psnr] for name, psnr in found["psnr"].items()], ["", "PSNR, dB"]))
    return int(not found["is_within_noise"])


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(train(arguments[0], arguments[1:]) if arguments[:1] and arguments[0] in NORMS else main(arguments))
