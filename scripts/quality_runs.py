"""The runs of benchmark.py quality: each option file trained with each seed and tested, by the two main programs."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from main_train_vrt import read_options
from models.optim import fixed_keys, is_fix_key
from models.restore.results import read_json
from models.select_network import define_G
from scripts.quality_data import locked, roots
from utils.dist.process import die_with_parent
from utils.errors import DataError, OptionError
from utils.files import write_whole
from utils.options.file import Sources, read_with_base
from utils.run.history import read_history

ROOT = Path(__file__).resolve().parent.parent
LOG_LINES = 15  # of a failed program that are shown


@dataclass(frozen=True)
class Method:
    """An option file of the benchmark, as it is trained here.

    parameters: those that are trained. work: samples x frames x pixels of an optimizer step. digest: changes with the
    options, the number of steps and the scenes and cameras of the data, but not with the defaults of keys that the file
    does not give, nor from one machine to another.
    """

    name: str
    file: Path
    overrides: tuple[str, ...]
    parameters: int
    work: int
    digest: str

    def run_name(self, seed: int) -> str:
        return f"{self.name}_seed{seed}_{self.digest}"


def read_method(file: Path, data: Path, data_digest: str, steps: int) -> Method:
    """Raises OptionError for a wrong file, and for one without spikes."""
    raw = read_with_base(file, Sources(str(file)))
    section = (raw.get("datasets") or {}).get("train") or {}
    train = raw.get("train") or {}
    # Without sharp frames (dataroot_gt null) a method learns from its input alone.
    places = {k: v for k, v in roots(data, "train").items() if not (k in section and section[k] is None)}
    changes = {
        **{f"datasets.train.{key}": value for key, value in places.items()},
        "datasets.test": None, "train.total_iter": steps, "train.epochs": None, "train.G_scheduler_periods": steps,
        "train.checkpoint_print": max(1, min(10, steps // 2)), "logging.use_tensorboard": False,
        "logging.use_wandb": False,
    }  # fmt: skip
    if (train.get("fix_iter") or 0) > (train.get("total_iter") or 0):  # frozen in the whole run
        changes["train.fix_iter"] = steps + 1
    overrides = tuple(f"{key}={json.dumps(value)}" for key, value in changes.items())
    opt = read_options(["--opt", str(file), *overrides])
    loader = opt.datasets.train
    frozen = fixed_keys(opt.train.fix_iter, opt.train.fix_keys) if (opt.train.fix_iter or 0) > steps else ()
    parameters = sum(p.numel() for key, p in define_G(opt).named_parameters() if not is_fix_key(key, frozen))
    work = loader.dataloader_batch_size * opt.train.accumulation_steps * loader.num_frame * loader.gt_size**2
    about = {k: v for k, v in raw.items() if k not in ("task", "path", "logging", "$schema")}
    digest = hashlib.sha256(json.dumps([about, steps, data_digest], sort_keys=True).encode()).hexdigest()[:8]
    return Method(file.stem, file.resolve(), overrides, parameters, work, digest)


def check_alike(methods: Sequence[Method]) -> None:
    """Raises OptionError for two files of one name, and for files whose steps see different amounts of data."""
    first = methods[0]
    for method in methods[1:]:
        if method.work != first.work:
            raise OptionError(
                f"a step of {method.name} sees {method.work} pixels, one of {first.name} {first.work}",
                str(method.file), "the same batch size, frames and crop in all files", "correct the file",
            )  # fmt: skip
    names = [method.name for method in methods]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise OptionError(f"two option files have the name {twice[0]}", "--opt", "one name each", "rename one")


def result_file(out: Path, method: Method, seed: int) -> Path:
    return out / "results" / f"{method.run_name(seed)}.json"


def run_one(out: Path, data: Path, method: Method, seed: int) -> None:
    """Train and test, or go on where an earlier call stopped; nothing where the result is there.

    A run that another command is at is left to it.
    """
    name, target = method.run_name(seed), result_file(out, method, seed)
    with locked(out / "runs" / f".{name}.lock", wait=False) as is_free:
        if not is_free:
            print(f"{name}: another command is at it", flush=True)
        if target.exists() or not is_free:
            return
        began = time.perf_counter()
        task = [f"task={name}", f"path.root={out / 'runs'}", f"train.manual_seed={seed}"]
        run = out / "runs" / name
        call("main_train_vrt.py", out, name, "--opt", str(method.file), *method.overrides, *task)
        # The averaged weights, where the file asks for them.
        scores = test(out, data, name, method.file, "--weights", str(run / "checkpoints/checkpoint_latest.pth"))
        speeds = [value for _, value in read_history(run).get("train/it_per_s", [])]
        about = {
            "method": method.name, "seed": seed,
            "s_per_step": statistics.median(1 / speed for speed in speeds) if speeds else None, "clips": scores,
        }  # fmt: skip
        write_whole(target, (json.dumps(about, indent=1) + "\n").encode())
        print(f"{name}: trained and tested in {time.perf_counter() - began:.0f} s", flush=True)


def estimate_name(data_digest: str) -> str:
    return f"estimate_{data_digest}"


def run_estimate(out: Path, data: Path, method: Method, data_digest: str) -> dict[str, Any]:
    """The scores of the exposure estimate. method: whose option file says how the data are read."""
    name = estimate_name(data_digest)
    target = out / "results" / f"{name}.json"
    with locked(out / "runs" / f".{name}.lock"):
        if not target.exists():
            scores = test(out, data, name, method.file, "--method", "exposure")
            write_whole(target, (json.dumps({"clips": scores}, indent=1) + "\n").encode())
    return read_json(target)


def test(out: Path, data: Path, name: str, file: Path, *how: str) -> dict[str, Any]:
    """Clip -> its metrics "restored" and "input", with main_test_vrt.py."""
    folder = out / "tests" / name
    places = [f"datasets.test.{key}={value}" for key, value in roots(data, "test").items()]
    call("main_test_vrt.py", out, name, "--opt", str(file), *how, "--output", str(folder), *places)
    clips = read_json(folder / "metrics.json")["clips"]
    return {clip: {kind: about[kind] for kind in ("restored", "input")} for clip, about in clips.items()}


def call(program: str, out: Path, name: str, *arguments: str) -> None:
    """Run a main program; what it prints goes to logs/<name>.txt. It ends with this process.

    Raises DataError with its last lines where it fails.
    """
    log = out / "logs" / f"{name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        done = subprocess.run(
            [sys.executable, str(ROOT / program), *arguments], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"}, preexec_fn=die_with_parent,
        )  # fmt: skip
    if done.returncode:
        last = "\n    ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:])
        raise DataError(
            f"{program} of {name} ended with exit code {done.returncode}:\n    {last}", str(log), "exit code 0",
            "correct what it says; the same command then goes on where it stopped",
        )  # fmt: skip
