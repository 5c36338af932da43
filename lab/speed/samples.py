"""The command `data` measures how long a training sample takes, for each way to read it:

    OpenCV decodes the PNGs    only decodes the PNG files of a sample. This is most of the work
    png                        a sample from PNG files
    png + .dat                 from PNG files and spike files
    cache, RGB                 from the clip cache, without spikes
    cache, RGB + spikes        from the clip cache, with spikes

The clips are made for this measurement, in the size of GoPro.

What must stay: the names of the ways, because they are keys of the numbers in docs/benchmarks. No
test runs this command: try it after a change. Free to change: the form of the table.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from data.clip_dataset import TrainClips
from data.clips.cache_builder import build_cache
from data.select_dataset import DATASETS, build_dataset
from data.spike.formats import write_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.pictures import to_grey, to_linear
from data.spike.simulate import IntegrateAndFire
from lab.tools import measure_in_turn
from scripts.parts.make_sample_data.sample_layers import texture
from utils.results import markdown_table as table

# The sizes of the GoPro clips with spikes.
HEIGHT = 720
WIDTH = 1280
RATIO = 2  # RGB pixels along a side of a spike pixel
PLANES = 88  # spike planes of a frame
# The first way only decodes the files of a sample. The other ways are compared with this way.
DECODING = "OpenCV decodes the PNGs"


def run_data(args: argparse.Namespace) -> dict[str, Any]:
    """Measure how long a training sample takes, for each way to read it. Prints a table.

    args: the command line of lab/benchmark.py. Four of its values are used here:

            clips           number of clips
            frames, crop    size of a sample
            repeats         number of measured calls of each way

    Returns {"samples": way -> milliseconds of a sample}.
    """
    # Use one thread, as a worker process of the loader does. 0 means that OpenCV starts no threads.
    cv2.setNumThreads(0)
    torch.set_num_threads(1)

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for clip_index in range(args.clips):
            # Twice the frames of a sample, so that a sample may begin at different frames. The name
            # has the form of a GoPro name: "_11_" says that 11 raw frames are averaged.
            name = f"GOPR{clip_index:04d}_11_00"
            make_clip(root, name, frames=2 * args.frames, seed=clip_index)
        datasets = make_datasets(root, args)

        # All ways read files from the page cache, because the files have just been written.
        runs = _functions_to_time(datasets, args.frames)
        # For each way `measure_in_turn` returns e.g. the median time in seconds, median_s. The
        # first two calls of each way (warmup) are not measured.
        figures_of_ways = measure_in_turn(runs, torch.device("cpu"), args.repeats, warmup=2)

    ms = {name: 1e3 * figures["median_s"] for name, figures in figures_of_ways.items()}
    _print_ways(args, ms)
    return {"samples": ms}


def _functions_to_time(
    datasets: dict[str, TrainClips], frames: int
) -> dict[str, Callable[[], Any]]:
    """Return the functions that are timed: way -> function. frames: frames of a sample."""
    clip = datasets["png"].clips[0]
    pngs = [*clip.lq[:frames], *clip.gt[:frames]]
    functions: dict[str, Callable[[], Any]] = {DECODING: partial(_decode, pngs)}
    # All ways take the number of their next sample from one counter, so that no way reads the
    # sample that another way has just read.
    counter = count()
    for name, dataset in datasets.items():
        functions[name] = partial(_read_next_sample, dataset, counter)
    return functions


def _print_ways(args: argparse.Namespace, ms: dict[str, float]) -> None:
    """Print a table with a row for each way. ms: way -> milliseconds of a sample."""
    decoding_ms = ms[DECODING]
    print(
        f"\n{args.frames} frames of {WIDTH} x {HEIGHT}, crop {args.crop}, "
        f"{PLANES} planes of {WIDTH // RATIO} x {HEIGHT // RATIO} each"
    )
    rows = []
    for name, way_ms in ms.items():
        samples_per_s = 1e3 / way_ms
        of_decoding = way_ms / decoding_ms
        rows.append([name, f"{way_ms:.1f}", f"{samples_per_s:.1f}", f"{of_decoding:.3f}"])
    print(table(rows, ["", "ms", "samples/s", "of decoding"]))
    added_share = ms["png + .dat"] / ms["png"] - 1
    print(f"spikes add {100 * added_share:.1f} % to the PNG path")


def _decode(pngs: list[str]) -> list[Any]:
    """Return the pictures of PNG files."""
    return [cv2.imread(path) for path in pngs]


def _read_next_sample(dataset: TrainClips, counter: Iterator[int]) -> Any:
    """Read a sample of a data set. counter: counts the samples that have been read."""
    index = next(counter) % len(dataset)
    return dataset[(0, index)]  # (epoch, index)


def make_datasets(root: Path, args: argparse.Namespace) -> dict[str, TrainClips]:
    """Return a training set for each way to read the clips in `root`. Writes the clip cache.

    E.g. "png" -> the set that reads PNGs without spikes.

    args: its `frames` and `crop` are the size of a sample.
    """
    # Keys of an option file's section datasets.train.
    of_all: dict[str, Any] = {
        "dataroot_gt": str(root / "GOPRO_Large/train"),
        "dataroot_lq": str(root / "GOPRO_Large/train"),
        "num_frame": args.frames,
        "gt_size": args.crop,
        "use_hflip": True,
        "use_rot": True,
        "random_reverse": True,
    }
    rgb = {"dataset_type": "VideoRecurrentTrainDataset"}
    spikes = {
        "dataset_type": "TrainDatasetRGBSpike",
        "dataroot_spike": str(root / "GOPRO_Large_spike_seq/train"),
        "spike": {
            "type": "dat",
            "h": HEIGHT // RATIO,
            "w": WIDTH // RATIO,
            "representation": "voxel",
        },
    }
    cached = {"io_backend": {"type": "cache", "path": str(root / "cache")}}

    # The data sets "cache, ..." open the clip cache, so write it first.
    _write_cache(of_all | spikes, root / "cache")

    # Way -> the keys that differ between the ways. The names "png" and "png + .dat" are also used
    # in `_functions_to_time` and `_print_ways`.
    ways = {
        "png": rgb,
        "png + .dat": spikes,
        "cache, RGB": rgb | cached,
        "cache, RGB + spikes": spikes | cached,
    }
    datasets = {}
    for name, keys_of_way in ways.items():
        dataset = build_dataset(of_all | keys_of_way, "train", 0)
        assert isinstance(dataset, TrainClips)
        datasets[name] = dataset
    return datasets


def _write_cache(options: dict[str, Any], folder: Path) -> None:
    """Write the clip cache of a data set into `folder`. options: the keys of datasets.train."""
    section = DATASETS.resolve(options, "datasets.train")
    # `build_cache` needs a source: the folders of the clips, and how their spikes are read. The
    # class of the data set (`constructor`) finds the sources of a section. Here it finds one,
    # because the clips are in one root.
    [source] = section.constructor.sources_of(section)
    build_cache(source, str(folder))


def make_clip(root: Path, name: str, frames: int, seed: int) -> None:
    """Write a clip of GoPro size: blurry and sharp PNGs and spike files.

    The scene is a texture that moves to the right, by 4 pixels a frame. Noise is added, so that the
    PNGs are about as large as the PNGs of GoPro: the time of decoding depends on the size of a
    file.

    frames: number of frames of the clip.
    seed: seed of the texture and of the noise.
    """
    rng = np.random.default_rng(seed)
    picture = (255 * texture(rng, WIDTH)[:HEIGHT]).astype(np.uint8)  # (HEIGHT, WIDTH, 3)

    # The spike camera sees the texture in grey, at half the resolution.
    grey = to_grey(to_linear(picture / np.float32(255)))
    light = cv2.resize(grey, (WIDTH // RATIO, HEIGHT // RATIO))
    # With the rate 0.5, a white pixel fires in every second plane.
    sensor = IntegrateAndFire(*light.shape, rate=0.5, rng=rng)

    rgb = root / "GOPRO_Large/train" / name
    spikes = root / "GOPRO_Large_spike_seq/train" / name / "spike"
    for folder in (rgb / "blur", rgb / "sharp", spikes):
        folder.mkdir(parents=True)

    for frame in range(frames):
        noise = rng.normal(0, 2.0, picture.shape).astype(np.float32)
        moved = np.roll(picture, 4 * frame, axis=1)
        noisy = np.clip(moved + noise, 0, 255).astype(np.uint8)
        # Both files get the same picture, because blur does not change the time of reading.
        for kind in ("blur", "sharp"):
            cv2.imwrite(str(rgb / kind / f"{frame:06d}.png"), noisy)
        planes = sensor.run([light] * PLANES)  # the spikes of each plane
        write_spikes(spikes / f"{frame:06d}.dat", planes, SpikeGeometry(*light.shape))
