#!/usr/bin/env python3
"""Restore two short clips, then train a small network for 45 s. A page shows the results.

    python scripts/demo.py
    python scripts/demo.py --data /tmp/clips --output /tmp/demo

In the first part, the shipped weights restore two clips: a made scene, and a photograph under a
moving camera (NASA's portrait of Eileen Collins, in the public domain). The blur and the spikes of
both clips are simulated. The results are experiments/demo/report.html and a video of each clip
beside it.

In the second part, main_train_vrt.py begins the sample run. After 45 seconds of training the demo
stops the run with the signal that a scheduler would send. The run saves a checkpoint and ends. Then
its curves are added to the page. `make sample` continues the run to its end.
"""

# Users of this file: app.py takes the demo clip from here, and tests/stories/test_main_test.py runs
# `main` and `train`.
# What must stay: the order in which `scene` draws its random numbers, because these numbers decide
# the clips. If you change the clips, add 1 to `version` of DEMO.
# Free to change: texts, and TRAIN_S
# (test_the_whole_demo_shows_the_clips_then_the_curves_of_a_training_that_a_signal_stopped).

import argparse
import base64
import os
import signal
import subprocess
import sys
import time
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np

# Python finds the packages of the repository, e.g. `utils`, by this path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


from data.spike.pictures import to_linear
from scripts.make_sample_data import RGB, SAMPLE, SPIKES, SetPlan, make_sample
from scripts.parts.exit_codes import with_exit_code
from scripts.parts.make_sample_data.sample_layers import make_layers, render
from utils.files import write_whole
from utils.image import imread_rgb
from utils.run.history import LINES_NAME

ROOT = Path(__file__).resolve().parent.parent
PHOTO = ROOT / "docs/images/collins.jpg"
RESTORATION_OPTIONS = ROOT / "options/operators/motion_alone.json"  # option file of the first part
SAMPLE_OPTIONS = ROOT / "options/vrt/000_train_vrt_sample_rgbspike.json"  # of the second part
# The exit code of a run that was stopped by a signal. The same command resumes this run. The number
# is a copy of utils_dist.PREEMPTED, because utils_dist imports torch, and the import takes seconds.
# With another number, the demo would end with 75 in place of 0, and the test of the whole demo
# would fail.
STOPPED = 75
# Seconds of training. 45 seconds are enough to see the loss fall, and far too few for good frames.
# With 60 seconds the demo would take more than a minute and a half on two cores.
TRAIN_S = 45.0


# ---- The clips -------------------------------------------------------------------------------

SIDE = 256  # of a frame, in pixels


def scene(rng: np.random.Generator, planes: int, clip: int) -> Callable[[int], np.ndarray]:
    """Return the scene of a clip: a function from the number of a spike plane to its light.

    `make_sample` calls this function for each clip of `DEMO`. A spike plane is one binary picture
    of the spike camera.

    rng: random generator of the clip. planes: number of spike planes of the clip.
    clip: number of the clip. Clip 0 is a made scene, and clip 1 is the photograph.
    """
    # A layer is a textured sheet in front of the camera, with its motion. The first layer is the
    # background.
    layers = make_layers(rng, planes, SIDE)
    if clip == 1:
        # The photograph becomes the sheet of the background, and the other layers are left out. The
        # background keeps its motion, which looks like the shake of a camera.
        display = imread_rgb(PHOTO).astype(np.float32) / 255
        light = to_linear(display)  # (H, W, 3)
        opacity = np.ones_like(light[..., :1])
        sheet = np.concatenate((light, opacity), axis=2)  # (H, W, 4)
        background = replace(layers[0], sheet=sheet)  # a copy, with another sheet
        layers = [background]
    return partial(render, layers)  # the function plane -> render(layers, plane)


# The data set of both clips. A `SetPlan` of scripts/make_sample_data.py says which set to make: its
# name, the number and length of its clips, and their scenes. If the clips change, add 1 to
# `version`, so that `make_sample` makes the clips again.
DEMO = SetPlan(
    name="demo",
    clips={"test": 2},  # split -> number of clips
    frames=8,
    scene=scene,
    version=1,
    side=SIDE,
)


# ---- The command -----------------------------------------------------------------------------


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    """Restore, then train. Returns 0, or the exit code of the first part that fails.

    arguments: the command line without the name of the program, or None for sys.argv.
    """
    command = parse(arguments)
    make_sample(command.data, DEMO)  # does nothing if the clips are there already
    code = restore(command.data, command.output)
    if code != 0:
        return code

    page = (command.output / "report.html").resolve()
    print(f"\nopen {page}")
    # On Linux without a display, open no browser, because a text browser might start and take the
    # terminal. macOS has a display without this variable.
    if os.environ.get("DISPLAY") or sys.platform == "darwin":
        webbrowser.open(page.as_uri())

    if command.train_s <= 0:
        return 0
    return train(command.sample, command.root, command.train_s, page)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line as data, output, sample, train_s and root."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # --data and --output belong to the first part (restore). --sample, --train_s and --root belong
    # to the second part (train).
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("trainsets/demo"),
        help="folder of the made clips (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("experiments/demo"),
        help="folder of the results (default: %(default)s)",
    )
    parser.add_argument(
        "--sample",
        type=Path,
        default=Path("trainsets/sample"),
        help="data of the training (default: %(default)s)",
    )
    parser.add_argument(
        "--train_s",
        type=float,
        default=TRAIN_S,
        help="seconds of training; 0: no training (%(default)s)",
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("experiments"),
        help="folder of the training run (default: %(default)s)",
    )
    return parser.parse_args(arguments)


# ---- First part: restore ---------------------------------------------------------------------
#
# Tests: test_the_demo_restores_both_clips, test_the_page_of_the_demo_shows_both_clips


def restore(data: Path, output: Path) -> int:
    """Restore the clips of the demo with the shipped weights. Returns the exit code."""
    # Imported here, because both modules import torch. The import takes seconds, and --help should
    # not wait.
    import main_test_vrt
    from models.restore.request import SHIPPED_WEIGHTS

    arguments = [
        "--opt",
        str(RESTORATION_OPTIONS),
        "--weights",
        str(SHIPPED_WEIGHTS),
        "--output",
        str(output),
    ]
    # A video of 8 frames at 5 frames per second takes 1.6 s, long enough to compare. A second demo
    # replaces the results of the first.
    arguments += ["--save", "comparison", "--fps", "5", "--overwrite"]
    # The next arguments change the option file. The task is the title of the report.
    arguments.append("task=demo")
    arguments += data_roots("test", data)
    return main_test_vrt.main(arguments)


def data_roots(split: str, data: Path) -> list[str]:
    """Return the command-line options that name the folders of a made data set.

    E.g. "datasets.test.dataroot_gt=trainsets/demo/GOPRO_Large/test" is the first of three options.

    split: "train" or "test". data: folder of the set.
    """
    options = []
    # Sharp frames (gt) and blurry frames (lq) lie in one folder, in subfolders of each clip.
    for kind, folder in (("gt", RGB), ("lq", RGB), ("spike", SPIKES)):
        options.append(f"datasets.{split}.dataroot_{kind}={data / folder / split}")
    return options


# ---- Second part: train ----------------------------------------------------------------------


def train(sample: Path, root: Path, seconds: float, page: Path) -> int:
    """Train the sample run for a while, and add its curves to the page. Returns the exit code.

    sample: folder of the training data. If it is missing, the data are made.
    root: folder of runs.
    seconds: time of training, see `train_for`.
    page: the report of the restored clips.
    """
    make_sample(sample, SAMPLE)
    print(f"\nnow training a small network on made clips, for {seconds:.0f} s:\n", flush=True)
    code = train_for(seconds, sample, root)
    if code not in (0, STOPPED):
        return code

    # The folder of a run has the name of its option file.
    curves = root / SAMPLE_OPTIONS.stem / "curves.png"
    # A run without a line of losses has no curves.
    if curves.is_file():
        add_curves(page, curves)
    if code == STOPPED:
        print(f"\nopen {page}: it has the curves now; the training goes on with\n\n    make sample")
    else:
        print(f"\nthe sample run is finished: {root / SAMPLE_OPTIONS.stem / 'report.html'}")
    return 0


def train_for(seconds: float, sample: Path, root: Path) -> int:
    """Start the sample run, or resume it, and stop it as a scheduler would. Returns its exit code.

    The exit code is STOPPED if the signal stopped the run, and 0 if the run was finished before.

    seconds: time from the first line of losses to the signal. E.g. for 45 seconds:

        0 s     the run starts
        20 s    the first line of losses. From here on, the 45 seconds count
        65 s    the signal

    A slow machine needs longer for the first line. Its run still has a loss to draw.
    """
    # The run adds a line to this file of losses at each log step. An earlier demo may have begun
    # the run, so wait until the file grows, not until it exists.
    history = root / SAMPLE_OPTIONS.stem / LINES_NAME
    bytes_before = _size(history)
    folders = data_roots("train", sample) + data_roots("test", sample)
    one_process = "1"
    launcher = [
        ROOT / "launch_train.sh",
        one_process,
        SAMPLE_OPTIONS,
        f"path.root={root}",
        *folders,
    ]
    with subprocess.Popen(launcher) as run:
        # Wait for the first line of losses, or for the end of the run.
        while run.poll() is None and _size(history) <= bytes_before:
            time.sleep(0.1)
        try:
            return run.wait(seconds)  # a run that has few steps left ends within this time
        except subprocess.TimeoutExpired:
            # The run saves a checkpoint after this signal, so wait for its end.
            run.send_signal(signal.SIGTERM)
            return run.wait()


def _size(file: Path) -> int:
    """Return the number of bytes of a file, or 0 if it does not exist."""
    return file.stat().st_size if file.is_file() else 0


def add_curves(page: Path, curves: Path) -> None:
    """Add a picture of curves at the end of a page.

    The page holds the picture itself, as text in base64, so that the page can be sent as one file.
    """
    text = page.read_text(encoding="utf-8")
    picture = base64.b64encode(curves.read_bytes()).decode("ascii")
    section = (
        "<h2>The beginning of a training</h2>\n<p>This demo has begun the sample run; "
        "<code>make sample</code> goes on with it.</p>\n"
        f'<p><img id="training" alt="curves of the training" style="max-width: 100%" '
        f'src="data:image/png;base64,{picture}"></p>\n'
    )
    write_whole(page, text.replace("</body>", f"{section}</body>").encode())


if __name__ == "__main__":
    # The pictures are too small for several threads to be faster.
    cv2.setNumThreads(1)
    sys.exit(main())
