"""The data of benchmark.py quality: a training set, and test clips of which each is recorded under every condition."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.make_sample_data import CAMERAS, SIZES, check_made, make_sample
from scripts.sample_recording import RGB, SPIKES, Cameras

RECORDED = "recorded"  # the condition of the training clips
INSTANTS = 5


def conditions(cameras: Cameras) -> dict[str, Cameras]:
    """Name -> cameras of the test. All record the same scenes; each differs from `cameras` in one thing.

    x0.5, x2, x4: factor of the threshold; charge and its noise stay, so that in thresholds all of them are divided.
    dark: a quarter of the light, for both cameras, with the same exposure. noise: of both sensors.
    """

    def with_threshold(factor: float) -> Cameras:
        keys = ("rate", "shot_noise", "dark_rate")
        return dataclasses.replace(cameras, **{key: getattr(cameras, key) / factor for key in keys})

    return {
        RECORDED: cameras,
        **{f"x{factor:g}": with_threshold(factor) for factor in (0.5, 2, 4)},
        "dark": dataclasses.replace(cameras, light=0.25),
        "noise": dataclasses.replace(
            cameras, shot_noise=0.1, dark_rate=0.005, threshold_mismatch=0.05, rgb_shot=0.03, rgb_read=0.005
        ),
    }


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of the file `path` in the block, which the kernel releases when the process ends.

    Gives whether it is held: False where another process holds it, if not wait.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            is_held = True
        except BlockingIOError:
            is_held = False
        yield is_held


def make_data(out: Path, size: str, clips: dict[str, int] | None, frames: int | None) -> tuple[Path, str]:
    """Make the data in a folder of `out`, unless they are there; the folder, and the digest of what is asked for.

    The digest is not that of the files, which differ between machines in the last digit of a few pixels. dataset.json
    has the rate of the training clips: the user does not know of another threshold. size, clips, frames: see
    make_sample. Raises DataError for other or changed data in this place.
    """
    clips, frames = clips or dict(SIZES[size].clips), frames or SIZES[size].frames
    cameras = {name: dataclasses.asdict(each) for name, each in conditions(CAMERAS).items()}
    asked = json.dumps([size, SIZES[size].version, clips, frames, INSTANTS, cameras], sort_keys=True)
    digest = hashlib.sha256(asked.encode()).hexdigest()[:8]
    folder = out / f"data_{digest}"
    with locked(folder.with_name(f".{folder.name}.lock")):  # another command may make them at this moment
        if not folder.exists() or not check_made(folder, 0, INSTANTS, size):
            make_sample(folder, 0, clips, frames, INSTANTS, conditions(CAMERAS), size)
    return folder, digest


def roots(data: Path, split: str) -> dict[str, str]:
    """The dataroots of a split, as option keys."""
    frames = str(data / RGB / split)
    return {"dataroot_lq": frames, "dataroot_gt": frames, "dataroot_spike": str(data / SPIKES / split)}
