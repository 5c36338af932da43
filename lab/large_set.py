"""A data set of many clips for little room on the disk, and what a start of a training on it costs.

All clips are hard links of one clip of 8 frames: for each frame a blurry picture, a sharp one and a
spike file.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from data.spike.formats import SpikeGeometry, write_spikes
from data.spike.simulate import IntegrateAndFire, to_grey, to_linear
from lab.tools import ROOT
from scripts.make_sample_data import texture
from tests.helpers.train_files import network

FRAMES = 8
SIDE, SPIKE_SIDE, PLANES = 128, 64, 24
FILES = 3 * FRAMES  # of a clip
# A file may have 65,000 names on ext4.
MOST_CLIPS = 60_000
RGB, SPIKES = "GOPRO_Large", "GOPRO_Large_spike_seq"
ORIGINAL = "original"
# Calls that ask for the state of a file, that open one, and that list a folder.
CALLS = {
    "states": {"stat", "lstat", "fstat", "newfstatat", "statx"},
    "opens": {"open", "openat"},
    "lists": {"getdents64"},
}
LATENCY_US = 500  # of a call on a network file system


def make_set(folder: Path, clips: int) -> Path:
    """Make the set of `clips` clips. Returns the option file of a training on it."""
    assert 2 <= clips <= MOST_CLIPS, f"2 to {MOST_CLIPS} clips"
    _write_clip(folder / ORIGINAL)
    for number in range(clips):
        _link_clip(folder, f"clip{number:05d}")
    about = {
        "format": 1, "h": SPIKE_SIDE, "w": SPIKE_SIDE, "flip": True, "planes": PLANES, "rate": 0.5,
        "light": "linear", "gt_plane": PLANES // 2,
    }  # fmt: skip
    (folder / SPIKES / "dataset.json").write_text(json.dumps(about))
    path = folder / "options.json"
    path.write_text(json.dumps(_options(folder)))
    return path


def _write_clip(folder: Path) -> None:
    rng = np.random.default_rng(0)
    picture = (255 * texture(rng, SIDE)).astype(np.uint8)
    for kind in ("blur", "sharp", "spike"):
        (folder / kind).mkdir(parents=True)
    for frame in range(FRAMES):
        moved = np.roll(picture, 2 * frame, axis=1)
        cv2.imwrite(str(folder / f"sharp/{frame:06d}.png"), moved)
        cv2.imwrite(str(folder / f"blur/{frame:06d}.png"), cv2.blur(moved, (5, 1)))
        light = cv2.resize(to_grey(to_linear(moved / np.float32(255))), (SPIKE_SIDE, SPIKE_SIDE))
        sensor = IntegrateAndFire(*light.shape, rate=0.5, rng=rng)
        spikes = sensor.run([light] * PLANES)
        write_spikes(folder / f"spike/{frame:06d}.dat", spikes, SpikeGeometry(*light.shape))


def _link_clip(folder: Path, name: str) -> None:
    for kind, root in (("blur", RGB), ("sharp", RGB), ("spike", SPIKES)):
        place = folder / root / "train" / name / kind
        place.mkdir(parents=True)
        for file in os.scandir(folder / ORIGINAL / kind):
            os.link(file.path, place / file.name)


def _options(folder: Path) -> dict[str, Any]:
    section = {
        "dataset_type": "TrainDatasetRGBSpike",
        "num_frame": 2,
        "gt_size": 32,
        "dataroot_gt": str(folder / RGB / "train"),
        "dataroot_lq": str(folder / RGB / "train"),
        "dataroot_spike": str(folder / SPIKES / "train"),
        "spike": {"type": "dat", "representation": {"type": "voxel", "num_bins": 2}},
    }
    loader = {"dataloader_num_workers": 1, "dataloader_batch_size": 1}
    return {
        "task": "run",
        "path": {"root": str(folder / "experiments")},
        "datasets": {
            "train": section | loader,
        },
        "netG": network(),
        "train": {
            "total_iter": 4, "G_lossfn_type": "charbonnier", "G_optimizer_lr": 1e-3,
            "G_scheduler_periods": 100, "checkpoint_print": 1, "checkpoint_test": 1000,
            "checkpoint_save": 2,
        },
        "logging": {"use_tensorboard": False, "progress": "line"},
    }  # fmt: skip


# ---- Starts ----------------------------------------------------------------------------------


def costs(clips: int, folder: Path | None = None) -> dict[str, dict[str, float]]:
    """Make a set of `clips` clips, start on it twice, and remove it.

    Returns {"first", "again": seconds, seconds of the processor, peak memory, calls by kind,
    seconds on a slow file system}.
    """
    found: dict[str, dict[str, float]] = {}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        options = make_set(Path(temporary), clips)
        for measure in (start, counted, slowed):
            shutil.rmtree(Path(temporary, "experiments"), ignore_errors=True)
            for name, steps in (("first", 4), ("again", 6)):
                found.setdefault(name, {}).update(measure(options, steps))
    return found


def start(options: Path, steps: int, program: Path = ROOT) -> dict[str, float]:
    """Train up to `steps`. Returns seconds, seconds of the processor and peak memory.

    program: the repository whose main_train_vrt.py runs.
    """
    began = time.perf_counter()
    process = subprocess.Popen(_command(options, steps), cwd=program, env=_environment())
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    assert status == 0, f"the training ended with status {status}"
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "gb": usage.ru_maxrss * 1024 / 1e9}


def counted(options: Path, steps: int, program: Path = ROOT) -> dict[str, float]:
    """As `start`, under strace. Returns the number of calls of each kind; {} without strace."""
    if not shutil.which("strace"):
        return {}
    summary = options.parent / "calls.txt"
    traced = ["strace", "-f", "-c", "-U", "name,calls", "-o", str(summary), "-e", f"trace={_all()}"]
    command = [*traced, *_command(options, steps)]
    subprocess.run(command, cwd=program, env=_environment(), check=True)
    calls = {}
    for line in summary.read_text().splitlines():
        name, _, count = line.strip().partition(" ")
        if count.strip().isdecimal():
            calls[name] = int(count)
    return {kind: sum(calls.get(n, 0) for n in names) for kind, names in CALLS.items()}


def slowed(options: Path, steps: int, program: Path = ROOT) -> dict[str, float]:
    """As `start`, and each call takes LATENCY_US more, those of the imports too.

    Returns the seconds; {} without strace.
    """
    if not shutil.which("strace"):
        return {}
    delay = f"inject={_all()}:delay_enter={LATENCY_US}"
    traced = ["strace", "-f", "-o", os.devnull, "-e", f"trace={_all()}", "-e", delay]
    began = time.perf_counter()
    command = [*traced, *_command(options, steps)]
    subprocess.run(command, cwd=program, env=_environment(), check=True)
    return {"slow_seconds": time.perf_counter() - began}


def _all() -> str:
    """Return the names of all calls that are counted, as strace takes them."""
    return ",".join(f"?{name}" for kind in CALLS.values() for name in sorted(kind))


def _command(options: Path, steps: int) -> list[str]:
    return [
        sys.executable, "main_train_vrt.py", "--opt", str(options), f"train.total_iter={steps}",
    ]  # fmt: skip


def _environment() -> Mapping[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}
