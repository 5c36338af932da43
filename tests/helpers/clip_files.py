"""Tiny clips on disk, for tests, in which lq, gt and spikes can be told apart and compared pixel by
pixel.

Frame f of a clip holds a level 1 ... 12 for each spike pixel. The level times 20 is the red value
of lq, times 10 of gt, on the 2 x 2 (4 x 4) block above that pixel; green of lq counts the frames.
Its spikes: as many ones as the level in the first half of the file, none in the second, so that the
direction of time shows.
"""

import json
import resource
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from data.clip_dataset import TestClips, TrainClips
from data.clips.io_backend import build_cache
from data.clips.manifest import Source
from data.clips.preflight import Report
from data.select_dataset import DATASETS, build_dataset
from data.spike.formats import SpikeGeometry, write_spikes
from scripts import doctor
from utils.options.models import LoaderOptions
from utils.video import VideoWriter

PLANES = 24
BINS = {"type": "voxel", "num_bins": 2}  # the halves of the file: all ones lie in the first of them


def picture(height: int = 48, width: int = 64, seed: int = 0) -> np.ndarray:
    """(height, width, 3) uint8: ramps of which no two pictures are the same."""
    rows, cols = np.mgrid[:height, :width]
    return np.stack(
        (rows * 4 % 256, cols * 3 % 256, (rows + cols + 40 * seed) % 256), axis=2
    ).astype(np.uint8)


def write_video(path: Path, count: int = 6, fps: float = 12.5, **size: int) -> None:
    with VideoWriter(path, fps) as video:
        for seed in range(count):
            video.write(picture(seed=seed, **size))


def levels(seed: int, frame: int, h: int, w: int) -> np.ndarray:
    """(h, w) the level of each spike pixel."""
    return np.random.default_rng([seed, frame]).integers(1, 13, (h, w))


def write_png(path: Path, red: np.ndarray, green: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = np.zeros((*red.shape, 3), np.uint8)
    picture[..., 2], picture[..., 1] = red, green
    assert cv2.imwrite(str(path), picture)


def write_clip(
    root: Path, name: str, *, split: str = "train", frames: int = 6, h: int = 8, w: int = 12,
    scale: int = 1, first: int = 0, planes: int = PLANES, regrouped: bool = False, seed: int = 0,
    instants: int = 0,
) -> None:  # fmt: skip
    """One clip below root/GOPRO_Large and root/GOPRO_Large_spike_seq; green of its instants counts
    them from 1.
    """
    rgb, spikes = root / "GOPRO_Large", root / "GOPRO_Large_spike_seq"
    for frame in range(frames):
        level = levels(seed, frame, h, w)
        stem = f"{first + frame:06d}"
        if regrouped:
            lq, gt = rgb / f"{split}_GT_blurred" / name, rgb / f"{split}_GT" / name
        else:
            lq, gt = rgb / split / name / "blur", rgb / split / name / "sharp"
        write_png(lq / f"{stem}.png", np.kron(20 * level, np.ones((2, 2))), green=first + frame)
        red = np.kron(10 * level, np.ones((2 * scale, 2 * scale)))
        write_png(gt / f"{stem}.png", red)
        for k in range(instants):
            write_png(rgb / split / name / "instants" / f"{stem}_{k}.png", red, green=k + 1)
        stream = np.arange(planes)[:, None, None] < level
        write_dat(spikes / split / name / "spike" / f"{stem}.dat", stream.astype(np.uint8))


def write_dat(path: Path, spikes: np.ndarray) -> None:
    """(T, h, w) spikes as a file, in a folder that need not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_spikes(path, spikes, SpikeGeometry(*spikes.shape[1:]))


@contextmanager
def small_files(limit: int) -> Generator[None]:
    """Inside, no file takes more than so many bytes, as on a full disk."""
    former, limits = (
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
        resource.getrlimit(resource.RLIMIT_FSIZE),
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, former)


def write_info(root: Path, **values: Any) -> None:
    about: dict[str, Any] = {
        "format": 1,
        "h": 8,
        "w": 12,
        "flip": True,
        "planes": PLANES,
        "rate": 1.0,
        "light": "linear",
        "gt_plane": 12,
    }
    about |= values
    path = root / "GOPRO_Large_spike_seq" / "dataset.json"
    path.write_text(json.dumps({k: v for k, v in about.items() if v is not None}), encoding="utf-8")


def write_clips(root: Path, *names: str, **how: Any) -> Path:
    """Clips that differ, and their dataset.json; their root. how: arguments of `write_clip`."""
    for seed, name in enumerate(names):
        own_seed: dict[str, Any] = {"seed": seed}
        write_clip(root, name, **(own_seed | how))
    write_info(root)
    return root


def section(
    root: Path, split: str = "train", regrouped: bool = False, **changes: Any
) -> dict[str, Any]:
    """A datasets.<split> section for these clips, with spikes; keys given as None are left out."""
    rgb = root / "GOPRO_Large"
    values: dict[str, Any] = {
        "dataset_type": "TrainDatasetRGBSpike" if split == "train" else "TestDatasetRGBSpike",
        "dataroot_gt": str(rgb / (f"{split}_GT" if regrouped else split)),
        "dataroot_lq": str(rgb / (f"{split}_GT_blurred" if regrouped else split)),
        "dataroot_spike": str(root / "GOPRO_Large_spike_seq" / split),
        "spike": {"type": "dat", "resize": "nearest", "center": "file", "representation": BINS},
    }
    if split == "train":
        values |= {"num_frame": 3, "gt_size": 8}
    return {key: value for key, value in (values | changes).items() if value is not None}


def resolved(values: dict[str, Any]) -> Any:
    return DATASETS.resolve(values, "datasets.train")


def build(root: Path, split: str = "train", seed: int = 0, **changes: Any) -> Any:
    return build_dataset(section(root, split, **changes), split, seed)


def set_for_training(values: LoaderOptions | dict[str, Any], seed: int = 0) -> TrainClips:
    """Return the dataset of a section datasets.train."""
    dataset = build_dataset(values, "train", seed)
    assert isinstance(dataset, TrainClips)
    return dataset


def set_for_testing(values: LoaderOptions | dict[str, Any]) -> TestClips:
    """Return the dataset of a section datasets.test."""
    dataset = build_dataset(values, "test", 0)
    assert isinstance(dataset, TestClips)
    return dataset


def source_of(values: dict[str, Any]) -> Source:
    return resolved(values).constructor.sources_of(resolved(values))[0]


def cached(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """The section, read from a cache of its clips, which is made at `path`."""
    for source in resolved(values).constructor.sources_of(resolved(values)):
        build_cache(source, str(path / source.part))
    return values | {"io_backend": {"type": "cache", "path": str(path)}}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two samples are equal in every bit."""
    equal = lambda x, y: torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y  # noqa: E731
    return a.keys() == b.keys() and all(equal(value, b[key]) for key, value in a.items())


def doctor_of_data(root: Path, *flags: str, **datasets: Any) -> int:
    """The exit code of `scripts/doctor.py --data` for these sections of datasets."""
    options = {"task": "x", "datasets": datasets, "netG": {"net_type": "vrt", "upscale": 1}}
    (root / "opt.json").write_text(
        json.dumps(options | {"train": {"G_lossfn_type": "charbonnier"}})
    )
    return doctor.main(["--data", "--opt", str(root / "opt.json"), *flags])


def check(values: dict[str, Any], **how: Any) -> Report:
    (report,) = resolved(values).constructor.check(resolved(values), "train", **how)
    return report
