"""Make a data set of many clips that needs little disk space, and measure how a training starts.

A training starts more slowly on a set of more files. `lab/benchmark.py start` calls `costs`.
`costs` makes a set with `make_set`, starts a training on the set twice, and removes the set.
docs/benchmarks/data.md has the results.

All clips are hard links of one clip of 8 frames. For each frame there are a blurry picture, a sharp
picture and a spike file:

    original/blur/000000.png                                     the only copy of the data
    GOPRO_Large/train/clip00000/blur/000000.png                  a second name of the file above
    GOPRO_Large_spike_seq/train/clip00000/spike/000000.dat
    GOPRO_Large_spike_seq/dataset.json                           what the spike files contain
    options.json                                                 the option file of the training
    experiments/                                                 what the training writes

test_lab.py tests only the pictures: run `lab/benchmark.py start --clips 100` after a change. Free
to change: all of it. But figures of two versions can only be compared if the sets and the
measurements are the same.
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

from data.spike.formats import write_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.pictures import to_grey, to_linear
from data.spike.simulate import IntegrateAndFire
from lab.tools import ROOT
from scripts.parts.make_sample_data.sample_layers import texture
from tests.helpers.train_files import network_section
from utils.image import imwrite_rgb

FRAMES = 8  # number of frames of a clip
FILES_OF_CLIP = 3 * FRAMES  # for each frame a blurry picture, a sharp picture and a spike file
# The sizes are small, because a start reads no frames: its time depends on the number of files.
SIDE = 128  # side of a frame, in pixels
SPIKE_SIDE = 64  # side of a spike plane, in spike pixels
PLANES = 24  # spike planes of a frame
RATE = 0.5  # spikes per plane and pixel at full light
MOST_CLIPS = 60_000  # because ext4 allows 65,000 names of one file

# Folders of a set.
ORIGINAL = "original"
RGB = "GOPRO_Large"
SPIKES = "GOPRO_Large_spike_seq"

# ---- The set ---------------------------------------------------------------------------------


def make_set(folder: Path, clips: int) -> Path:
    """Make a set of `clips` clips in a folder. Returns the option file of a training on it."""
    assert 2 <= clips <= MOST_CLIPS, f"2 to {MOST_CLIPS} clips"
    _write_clip(folder / ORIGINAL)
    for number in range(clips):
        _link_clip(folder, f"clip{number:05d}")

    spike_info = {
        "format": 1,
        "h": SPIKE_SIDE,
        "w": SPIKE_SIDE,
        "flip": True,  # `write_spikes` writes the last row first
        "planes": PLANES,
        "rate": RATE,
        "light": "linear",
        "gt_plane": PLANES // 2,  # the sharp frame shows the middle of the exposure
    }
    (folder / SPIKES / "dataset.json").write_text(json.dumps(spike_info))

    option_file = folder / "options.json"
    option_file.write_text(json.dumps(_options(folder)))
    return option_file


def _write_clip(folder: Path) -> None:
    """Write the original clip. The files of all other clips are links to its files.

    The clip shows a texture that moves to the right by 2 pixels from frame to frame.
    """
    rng = np.random.default_rng(0)
    picture = (255 * texture(rng, SIDE)).astype(np.uint8)  # (SIDE, SIDE, 3)
    for kind in ("blur", "sharp", "spike"):
        (folder / kind).mkdir(parents=True)
    for frame in range(FRAMES):
        moved = np.roll(picture, 2 * frame, axis=1)
        imwrite_rgb(folder / f"sharp/{frame:06d}.png", moved)
        imwrite_rgb(folder / f"blur/{frame:06d}.png", cv2.blur(moved, (5, 1)))

        # The spike camera sees the frame in grey. Each plane gets the same light, because nothing
        # moves within the exposure.
        grey = to_grey(to_linear(moved / np.float32(255)))
        light = cv2.resize(grey, (SPIKE_SIDE, SPIKE_SIDE))
        sensor = IntegrateAndFire(*light.shape, rate=RATE, rng=rng)
        planes = sensor.run([light] * PLANES)  # the spikes of each plane
        write_spikes(folder / f"spike/{frame:06d}.dat", planes, SpikeGeometry(*light.shape))


def _link_clip(folder: Path, name: str) -> None:
    """Make the folders of a clip, and give each file of the original clip a name in them."""
    root_of_kind = {"blur": RGB, "sharp": RGB, "spike": SPIKES}
    for kind, root in root_of_kind.items():
        clip_folder = folder / root / "train" / name / kind
        clip_folder.mkdir(parents=True)
        for file in os.scandir(folder / ORIGINAL / kind):
            os.link(file.path, clip_folder / file.name)


def _options(folder: Path) -> dict[str, Any]:
    """Return the options of a training of a tiny network on the set in a folder."""
    training_set = {
        "dataset_type": "TrainDatasetRGBSpike",
        "num_frame": 2,
        "gt_size": 32,
        "dataroot_gt": str(folder / RGB / "train"),
        "dataroot_lq": str(folder / RGB / "train"),
        "dataroot_spike": str(folder / SPIKES / "train"),
        "spike": {"type": "dat", "representation": {"type": "voxel", "num_bins": 2}},
        "dataloader_num_workers": 1,
        "dataloader_batch_size": 1,
    }
    train = {
        "total_iter": 4,
        "G_lossfn_type": "charbonnier",
        "G_optimizer_lr": 1e-3,  # any rate serves, because the weights are not used
        "G_scheduler_periods": 100,  # longer than the run
        "checkpoint_print": 1,
        "checkpoint_test": 1000,  # no validation, because there is no test set
        "checkpoint_save": 2,  # a checkpoint every 2 steps, so there is one after step 4
    }
    return {
        "task": "run",
        "path": {"root": str(folder / "experiments")},
        "datasets": {"train": training_set},
        "netG": network_section(),
        "train": train,
        "logging": {"use_tensorboard": False, "progress": "line"},
    }


# ---- Starts ----------------------------------------------------------------------------------

# Kind -> its system calls. They ask for the state of a file, open a file, or list a folder. The C
# library decides which call of a kind it uses.
CALLS = {
    "states": {"stat", "lstat", "fstat", "newfstatat", "statx"},
    "opens": {"open", "openat"},
    "lists": {"getdents64"},
}
# Microseconds by which a call is slowed, as on a network file system. Chosen by hand.
LATENCY_US = 500

# A training on the set is measured twice. The first training ends after step 4, and writes a
# checkpoint. The second training has total_iter=6, so it resumes after step 4. `_command` passes
# total_iter. This value replaces the total_iter of `_options`.
STEPS_OF_START = {"first": 4, "again": 6}


def costs(clips: int, folder: Path | None = None) -> dict[str, dict[str, float]]:
    """Make a set of `clips` clips, measure two starts on it, and remove the set.

    folder: where the set is made. None: the folder of temporary files.

    Returns {"first": costs of the first start, "again": costs of the second}. The costs are the
    results of three functions:

        measure_start         seconds, cpu_seconds, gb
        count_calls           states, opens, lists    only if strace is installed
        measure_slow_start    slow_seconds            only if strace is installed
    """
    costs_of_starts: dict[str, dict[str, float]] = {"first": {}, "again": {}}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        options = make_set(Path(temporary), clips)
        # Each function makes its own two starts, because strace would make a measured start slower.
        for measure in (measure_start, count_calls, measure_slow_start):
            # Remove the run that the previous function has made. If the run stayed, the first start
            # would resume it.
            shutil.rmtree(Path(temporary, "experiments"), ignore_errors=True)
            for name, steps in STEPS_OF_START.items():
                costs_of_starts[name].update(measure(options, steps))
    return costs_of_starts


def measure_start(options: Path, steps: int, repository: Path = ROOT) -> dict[str, float]:
    """Train until step `steps`, and measure the process.

    options: the option file.
    repository: folder of the main_train_vrt.py that runs.

    Returns seconds (wall time), cpu_seconds (of all threads), and gb (peak memory).
    """
    began = time.perf_counter()
    process = subprocess.Popen(_command(options, steps), cwd=repository, env=_environment())
    # Popen.wait does not return the memory and the CPU seconds of the process, but wait4 does.
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    assert status == 0, f"the training ended with status {status}"
    peak_bytes = usage.ru_maxrss * 1024  # Linux counts ru_maxrss in KiB
    return {
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "gb": peak_bytes / 1e9,
    }


def count_calls(options: Path, steps: int, repository: Path = ROOT) -> dict[str, float]:
    """Train until step `steps`, and count the system calls.

    Returns the number of calls of each kind in CALLS. Returns {} if strace is not installed.

    options: the option file.
    repository: folder of the main_train_vrt.py that runs.
    """
    if not shutil.which("strace"):
        return {}
    table = options.parent / "calls.txt"
    # -f counts the calls of all threads and child processes, too. -c writes a table of counts
    # instead of a line for each call. -U sets its columns: the name of a call, and its count.
    strace = ["strace", "-f", "-c", "-U", "name,calls", "-o", str(table)]
    strace += ["-e", f"trace={_names_of_calls()}"]
    command = strace + _command(options, steps)
    subprocess.run(command, cwd=repository, env=_environment(), check=True)

    # A line of the table is e.g. "openat 1234". Headings and lines of hyphens have no number.
    count_of_call = {}
    for line in table.read_text().splitlines():
        name, _, count = line.strip().partition(" ")
        if count.strip().isdecimal():
            count_of_call[name] = int(count)
    counts = {}
    for kind, names in CALLS.items():
        counts[kind] = sum(count_of_call.get(name, 0) for name in names)
    return counts


def measure_slow_start(options: Path, steps: int, repository: Path = ROOT) -> dict[str, float]:
    """Train until step `steps` while each call in CALLS takes LATENCY_US longer.

    The calls with which Python imports modules are slowed, too.

    Returns slow_seconds (wall time). Returns {} if strace is not installed.

    options: the option file.
    repository: folder of the main_train_vrt.py that runs.
    """
    if not shutil.which("strace"):
        return {}
    names = _names_of_calls()
    # -f slows the calls of all threads and child processes, too. inject adds the delay at the
    # beginning of each call, in microseconds.
    strace = ["strace", "-f", "-o", os.devnull, "-e", f"trace={names}"]
    strace += ["-e", f"inject={names}:delay_enter={LATENCY_US}"]
    command = strace + _command(options, steps)
    began = time.perf_counter()
    subprocess.run(command, cwd=repository, env=_environment(), check=True)
    return {"slow_seconds": time.perf_counter() - began}


def _names_of_calls() -> str:
    """Return the names of all calls in CALLS as strace takes them: "?stat,?lstat,...".

    Some processors lack some of the calls. With the question mark, strace ignores a call that the
    processor lacks.
    """
    names = []
    for names_of_kind in CALLS.values():
        names += sorted(names_of_kind)
    return ",".join(f"?{name}" for name in names)


def _command(options: Path, steps: int) -> list[str]:
    """Return the command of a training until step `steps`."""
    python = sys.executable
    return [python, "main_train_vrt.py", "--opt", str(options), f"train.total_iter={steps}"]


def _environment() -> Mapping[str, str]:
    """Return the environment variables of a training.

    The training has one thread, so that figures of machines with different numbers of cores can be
    compared.
    """
    return {**os.environ, "OMP_NUM_THREADS": "1"}
