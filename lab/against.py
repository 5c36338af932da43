"""This checkout against another one, in turn: a block, network 006 and its peak memory, samples, start of training.

    python lab/against.py OTHER_CHECKOUT [--dtype bfloat16] [--rounds 4] [--crop 64] [--only block|network|data|start]

Prints the least process times of one thread over all rounds, and the ratio of this checkout to the other one (with
--dtype bfloat16: to this one in float32). data and start need trainsets/sample (scripts/make_sample_data.py).
"""

import argparse
import contextlib
import importlib
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

DIMS = {"depths": [8] * 7 + [4] * 4, "embed_dims": [96] * 7 + [120] * 4, "num_heads": [6] * 11}
NET = {**DIMS, "upscale": 1, "window_size": [6, 8, 8], "indep_reconsts": [9, 10], "pa_frames": 2}
BLOCKS = [
    ("mutual", (96, 6, (2, 8, 8), (0, 0, 0), True)),
    ("self, shifted", (96, 6, (6, 8, 8), (3, 4, 4), False)),
    ("self", (120, 6, (6, 8, 8), (0, 0, 0), False)),
]


def load(root: Path) -> tuple[type, type]:
    """VRT and Block of a checkout."""
    for name in [n for n in sys.modules if n.split(".")[0] in ("models", "utils", "data")]:
        del sys.modules[name]
    sys.path.insert(0, str(root))
    vrt = importlib.import_module("models.network_vrt")
    sys.path.pop(0)
    assert Path(vrt.__file__).is_relative_to(root), vrt.__file__
    return vrt.VRT, vrt.Block


def peak(run: Callable[[], Any]) -> int:
    """The most that torch holds at once during `run`, beyond what it held before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    return int(torch.tensor([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]).cumsum(0).max())


def compare(title: str, nets: dict[str, torch.nn.Module], x: torch.Tensor, amp: str, rounds: int, memory: bool) -> None:
    """nets: the one to divide by first. amp: the name of that which runs in bfloat16, or ""."""
    results = {}

    def autocast(name: str) -> Any:
        return torch.autocast("cpu", torch.bfloat16) if name == amp else contextlib.nullcontext()

    def step(name: str) -> None:
        for p in nets[name].parameters():
            p.grad = None
        with autocast(name):
            y = nets[name](x)
        y.float().square().mean().backward()
        results[name] = [y.detach().float(), *(p.grad for p in nets[name].parameters() if p.grad is not None)]

    def restore(name: str) -> None:
        with torch.no_grad(), autocast(name):
            nets[name](x)

    names = list(nets)
    for part, run in (("step", step), ("inference", restore)):
        found = dict.fromkeys(names, float("inf"))
        for name in names * rounds:
            start = time.process_time()
            run(name)
            found[name] = min(found[name], time.process_time() - start)
        times = ", ".join(f"{n} {s:.3f} s" for n, s in found.items())
        print(f"{title}, {part}: {times}, ratio {found[names[1]] / found[names[0]]:.3f}", flush=True)
    error = max(float((a - b).abs().max() / (b.abs().max() + 1e-12)) for a, b in zip(*results.values(), strict=True))
    print(f"{title}, largest difference over the largest value: {error:.1e}", flush=True)
    if memory:
        sizes = [peak(lambda n=n: step(n)) for n in names]
        print(f"{title}, peak of a step: {sizes[0] / 1e9:.3f}, {sizes[1] / 1e9:.3f} GB, {sizes[1] / sizes[0]:.3f}")


SAMPLES = """
import sys, time
sys.path.insert(0, "")
import torch, main_train_vrt
from data.select_dataset import build_dataset
torch.set_num_threads(1)
dataset = build_dataset(main_train_vrt.read_options(["--opt", *sys.argv[1:]]).datasets.train, "train", 0)
best = float("inf")
for _ in range(5):
    start = time.process_time()
    for index in range(8):
        dataset[(0, index % len(dataset))]
    best = min(best, (time.process_time() - start) / 8)
print(best)
"""


def compare_programs(roots: dict[str, Path], rounds: int, part: str) -> None:
    """Processor seconds. part: "data", a sample of 000 and of 006 (crop 96), or "start", a training of one step."""
    data, options = Path("trainsets/sample").resolve(), "options/vrt/000_train_vrt_sample_rgbspike.json"
    kinds = {"gt": "GOPRO_Large", "lq": "GOPRO_Large", "spike": "GOPRO_Large_spike_seq"}
    places = [f"datasets.train.dataroot_{kind}={data}/{folder}/train" for kind, folder in kinds.items()]
    gopro = "options/vrt/006_train_vrt_videodeblurring_gopro_rgbspike.json"
    size = [f"datasets.train.{key}" for key in ("gt_size=96", "spike.h=null", "spike.w=null")]
    cases = {"sample of 000": [options, *places], "sample of 006": [gopro, *places, *size, "datasets.test=null"]}
    if part == "start":
        cases = {"start of training": [options, *places, "datasets.test=null", "train.total_iter=1"]}
    program = ["-c", SAMPLES] if part == "data" else ["main_train_vrt.py", "--opt"]
    for title, arguments in cases.items():
        found = dict.fromkeys(roots, float("inf"))
        for name, root in list(roots.items()) * rounds:
            with tempfile.TemporaryDirectory() as folder:
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                done = subprocess.run(
                    [sys.executable, *program, *arguments, f"path.root={folder}"], cwd=root, text=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=False,
                )  # fmt: skip
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
            used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            used = float(re.findall(r"[\d.e-]+", done.stdout)[-1]) if part == "data" else used
            found[name] = min(found[name], used)
        times = ", ".join(f"{name} {s:.3f} s" for name, s in found.items())
        print(f"{title}: {times}, ratio {found['this'] / found['other']:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--crop", type=int, default=64)
    parser.add_argument("--only", choices=("block", "network", "data", "start"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for part in ("data", "start") if args.dtype == "float32" else ():
        if args.only in (None, part):
            roots = {"other": args.other.resolve(), "this": Path(__file__).resolve().parents[1]}
            compare_programs(roots, args.rounds, part)
    half, root = args.dtype == "bfloat16", Path(__file__).resolve().parents[1]
    made = {"float32": load(root), "bfloat16": load(root)} if half else {"other": load(args.other), "this": load(root)}
    amp = "bfloat16" if half else ""
    for title, arguments in BLOCKS if args.only in (None, "block") else []:
        torch.manual_seed(0)
        nets = {name: block(*arguments) for name, (_, block) in made.items()}
        first, second = nets.values()
        second.load_state_dict(first.state_dict())
        x = torch.randn(1, 6, args.crop, args.crop, arguments[0], requires_grad=True)
        compare(f"block {title}", nets, x, amp, args.rounds, memory=False)
    if args.only in (None, "network"):
        nets = {name: vrt(**NET, drop_path_rate=0.0) for name, (vrt, _) in made.items()}
        first, second = nets.values()
        torch.nn.init.normal_(first.conv_last.weight, std=0.1)
        second.load_state_dict(first.state_dict())
        compare("network 006", nets, torch.rand(1, 6, 3, args.crop, args.crop), amp, args.rounds, memory=not half)


if __name__ == "__main__":
    main()
