"""Tiny clips on disk in which frames, sharp frames and spikes can be compared pixel by pixel.

Each spike pixel of a frame has a random level from 1 to 12 (`levels`). All files of a frame show
the same levels:

    blurry frame (lq)   red is 20 x level on 2 x 2 pixels, green is the number of the frame
    sharp frame (gt)    red is 10 x level on 2 x 2 pixels (4 x 4 if it is twice as large)
    spikes              a pixel fires in the first `level` of 24 planes, so in reversed time it
                        fires in the last planes

So a test can check whether a crop shows the same place in the frame, the sharp frame and the
spikes. As in the GoPro data set, the clips are in two folders: GOPRO_Large has the frames, and
GOPRO_Large_spike_seq has the spikes.

What must stay: the values in the files, because many tests compute expected values from the levels.
Free to add: an argument whose default changes no file.
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
from data.clips.cache_builder import build_cache
from data.clips.manifest import Source
from data.clips.root_check import Report
from data.select_dataset import DATASETS, build_dataset
from data.spike.formats import write_spikes
from data.spike.geometry import SpikeGeometry
from scripts import doctor
from utils.options.loader_options import LoaderOptions
from utils.video.writer import VideoWriter

# Number of spike planes of a frame.
PLANES = 24
# Red value of a blurry frame and of a sharp frame, for each step of the level. Levels go up to 12,
# so red goes up to 240 and 120.
LQ_RED_OF_LEVEL = 20
GT_RED_OF_LEVEL = 10
# Options of a training set of `data_section`: number of frames of a sample, and the side of its
# crop in pixels of the sharp frame.
SAMPLE_FRAMES = 3
CROP = 8
# A representation that counts the spikes of each half of the planes. All spikes lie in the first
# half, because a pixel fires in at most the first 12 of 24 planes.
BINS = {"type": "voxel", "num_bins": 2}

# ---- Single files ----


def picture(height: int = 48, width: int = 64, seed: int = 0) -> np.ndarray:
    """Return a picture (height, width, 3) uint8 of ramps. Each seed gives another picture."""
    rows, columns = np.mgrid[:height, :width]
    red = rows * 4 % 256
    green = columns * 3 % 256
    blue = (rows + columns + 40 * seed) % 256
    return np.stack((red, green, blue), axis=2).astype(np.uint8)


def write_video(path: Path, count: int = 6, fps: float = 12.5, **size: int) -> None:
    """Write a video of `count` pictures.

    size: height and width of the pictures, as `picture` takes them.
    """
    with VideoWriter(path, fps) as video:
        for seed in range(count):
            video.write(picture(seed=seed, **size))


def write_png(path: Path, red: np.ndarray, green: int = 0) -> None:
    """Write a picture with these red values (H, W) and one green value. Blue is 0."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bgr = np.zeros((*red.shape, 3), np.uint8)
    bgr[..., 2] = red
    bgr[..., 1] = green
    assert cv2.imwrite(str(path), bgr)


def write_dat(path: Path, spikes: np.ndarray) -> None:
    """Write spikes (T, h, w) as a `.dat` file. Its folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_spikes(path, spikes, SpikeGeometry(*spikes.shape[1:]))


@contextmanager
def small_files(limit: int) -> Generator[None]:
    """Let no file of this process grow beyond `limit` bytes, as on a full disk."""
    # If a file grows beyond its limit, Linux sends the signal SIGXFSZ, which would end the process.
    # If the process ignores this signal, the write raises an OSError, as on a full disk.
    former_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    former_limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    _, hard_limit = former_limits
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard_limit))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former_limits)
        signal.signal(signal.SIGXFSZ, former_handler)


# ---- Clips ----


def levels(seed: int, frame: int, h: int, w: int) -> np.ndarray:
    """Return the level (h, w) of each spike pixel of a frame: 1 to 12.

    The same arguments always give the same levels. So a test can call this function to compute the
    values that it expects.
    """
    return np.random.default_rng([seed, frame]).integers(1, 13, (h, w))


def write_clip(
    root: Path,
    name: str,
    *,
    split: str = "train",
    frames: int = 6,
    h: int = 8,
    w: int = 12,
    scale: int = 1,
    first: int = 0,
    planes: int = PLANES,
    regrouped: bool = False,
    seed: int = 0,
    instants: int = 0,
) -> None:
    """Write a clip below root/GOPRO_Large and root/GOPRO_Large_spike_seq.

    frames: number of frames.
    h, w: size of the spike planes; frames are twice as large.
    scale: number by which sharp frames are larger than blurry frames, along each axis.
    first: number of the first frame, in names of files and in green values.
    regrouped: whether blurry and sharp frames are in separate folders:

        False    GOPRO_Large/train/<name>/blur and GOPRO_Large/train/<name>/sharp
        True     GOPRO_Large/train_GT_blurred/<name> and GOPRO_Large/train_GT/<name>

    planes: number of spike planes of a frame.
    seed: chooses the levels, see `levels`. Clips with the same seed have the same levels.
    instants: number of sharp instants of each frame. Their green values are 1, 2, 3, ...
    """
    rgb = root / "GOPRO_Large"
    if regrouped:
        lq_folder = rgb / f"{split}_GT_blurred" / name
        gt_folder = rgb / f"{split}_GT" / name
    else:
        lq_folder = rgb / split / name / "blur"
        gt_folder = rgb / split / name / "sharp"
    instants_folder = rgb / split / name / "instants"
    spike_folder = root / "GOPRO_Large_spike_seq" / split / name / "spike"

    for frame in range(frames):
        level = levels(seed, frame, h, w)
        number = first + frame
        stem = f"{number:06d}"
        # np.kron makes a block of equal pixels of each spike pixel: (h, w) -> (2 h, 2 w).
        blurry = np.kron(LQ_RED_OF_LEVEL * level, np.ones((2, 2)))
        sharp = np.kron(GT_RED_OF_LEVEL * level, np.ones((2 * scale, 2 * scale)))
        write_png(lq_folder / f"{stem}.png", blurry, green=number)
        write_png(gt_folder / f"{stem}.png", sharp)
        for k in range(instants):
            write_png(instants_folder / f"{stem}_{k}.png", sharp, green=k + 1)
        # (planes, h, w): e.g. a pixel of level 3 fires in planes 0, 1 and 2.
        spikes = np.arange(planes)[:, None, None] < level
        write_dat(spike_folder / f"{stem}.dat", spikes.astype(np.uint8))


def write_info(root: Path, **values: Any) -> None:
    """Write dataset.json of the spikes.

    values: keys to change. With the value None, a key is left out.
    """
    about: dict[str, Any] = {
        "format": 1,
        "h": 8,
        "w": 12,
        "flip": True,  # `write_dat` writes the rows of a plane bottom up
        "planes": PLANES,
        "rate": 1.0,
        "light": "linear",
        "gt_plane": 12,  # the middle of 24 planes
    }
    about |= values
    given = {key: value for key, value in about.items() if value is not None}
    path = root / "GOPRO_Large_spike_seq" / "dataset.json"
    path.write_text(json.dumps(given), encoding="utf-8")


def write_clips(root: Path, *names: str, **changes: Any) -> Path:
    """Write clips that differ, with their dataset.json. Returns `root`.

    changes: arguments of `write_clip`. If a `seed` is given, all clips are equal.
    """
    for seed, name in enumerate(names):
        arguments: dict[str, Any] = {"seed": seed}
        arguments |= changes
        write_clip(root, name, **arguments)
    write_info(root)
    return root


# ---- Sections of an option file, and data sets ----


def data_section(
    root: Path, split: str = "train", regrouped: bool = False, **changes: Any
) -> dict[str, Any]:
    """Return a section `datasets.<split>` for the clips of `write_clip`, with spikes.

    regrouped: as in `write_clip`.
    changes: keys to change. With the value None, a key is left out.
    """
    rgb = root / "GOPRO_Large"
    if regrouped:
        gt = rgb / f"{split}_GT"
        lq = rgb / f"{split}_GT_blurred"
    else:
        gt = rgb / split
        lq = rgb / split
    kind = "Train" if split == "train" else "Test"
    values: dict[str, Any] = {
        "dataset_type": f"{kind}DatasetRGBSpike",
        "dataroot_gt": str(gt),
        "dataroot_lq": str(lq),
        "dataroot_spike": str(root / "GOPRO_Large_spike_seq" / split),
        "spike": {"type": "dat", "resize": "nearest", "center": "file", "representation": BINS},
    }
    if split == "train":
        values |= {"num_frame": SAMPLE_FRAMES, "gt_size": CROP}
    values |= changes
    return {key: value for key, value in values.items() if value is not None}


def resolve_section(values: dict[str, Any]) -> Any:
    """Check a section, and return it with all its defaults.

    Errors name the section datasets.train, even if it is the section of a test split.
    """
    return DATASETS.resolve(values, "datasets.train")


def build_clips(root: Path, split: str = "train", seed: int = 0, **changes: Any) -> Any:
    """Return the data set of `data_section`."""
    return build_dataset(data_section(root, split, **changes), split, seed)


def set_for_training(values: LoaderOptions | dict[str, Any], seed: int = 0) -> TrainClips:
    """Return the data set of a section `datasets.train`."""
    dataset = build_dataset(values, "train", seed)
    assert isinstance(dataset, TrainClips)
    return dataset


def set_for_testing(values: LoaderOptions | dict[str, Any]) -> TestClips:
    """Return the data set of a section `datasets.test`."""
    dataset = build_dataset(values, "test", seed=0)
    assert isinstance(dataset, TestClips)
    return dataset


def sources_of(values: dict[str, Any]) -> list[Source]:
    """Return the sources of a section. A source has the folders of the clips below one root."""
    options = resolve_section(values)
    dataset_class = options.constructor  # the class of the data set, e.g. TrainClips
    return dataset_class.sources_of(options)


def source_of(values: dict[str, Any]) -> Source:
    """Return the first source of a section."""
    return sources_of(values)[0]


def add_cache(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """Make a cache of the clips of a section at `path`. Return a section that reads the cache."""
    for source in sources_of(values):
        build_cache(source, str(path / source.name_prefix))
    return values | {"io_backend": {"type": "cache", "path": str(path)}}


def equal_samples(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Return whether two samples are bitwise equal."""
    if a.keys() != b.keys():
        return False
    for key, value in a.items():
        if isinstance(value, torch.Tensor):
            is_equal = torch.equal(value, b[key])
        else:
            is_equal = value == b[key]
        if not is_equal:
            return False
    return True


# ---- Checks of data ----


def doctor_of_data(root: Path, *flags: str, **datasets: Any) -> int:
    """Run `scripts/doctor.py --data` for these sections of `datasets`. Returns its exit code."""
    options = {
        "task": "x",
        "datasets": datasets,
        "netG": {"net_type": "vrt", "upscale": 1},
        "train": {"G_lossfn_type": "charbonnier"},
    }
    path = root / "opt.json"
    path.write_text(json.dumps(options))
    return doctor.main(["--data", "--opt", str(path), *flags])


def check_clips(values: dict[str, Any], **arguments: Any) -> Report:
    """Return the report on the clips of a section `datasets.train`, which has one source.

    arguments: additional arguments of the check.
    """
    options = resolve_section(values)
    (report,) = options.constructor.check(options, "train", **arguments)
    return report
