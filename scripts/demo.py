#!/usr/bin/env python3
"""Restore two short clips with the shipped weights, train a small network for a minute, show both
on a page.

    python scripts/demo.py
    python scripts/demo.py --data /tmp/clips --output /tmp/demo

A made scene, and a photograph under a moving camera (NASA's portrait of Eileen Collins, in the
public domain); their blur and their spikes are simulated. Results: experiments/demo/report.html,
and a video of each clip beside it.

Then the real trainer begins the sample run. After a minute it gets the signal of a scheduler, saves
and ends; the page gets its curves. `make sample` goes on from there to the end.
"""

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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.spike import simulate
from scripts.make_sample_data import RGB, SAMPLE, SPIKES, Size, make_layers, make_sample, render
from scripts.parts.exit_codes import with_exit_code
from utils.files import write_whole
from utils.image import imread_rgb
from utils.run.history import LINES_NAME

ROOT = Path(__file__).resolve().parent.parent
PHOTO = ROOT / "docs/images/collins.jpg"
SAMPLE_RUN = ROOT / "options/vrt/000_train_vrt_sample_rgbspike.json"
STOPPED = 75  # the exit code of a run that a signal stopped: the same command resumes it
TRAIN_S = 60.0


def scene(rng: np.random.Generator, planes: int, clip: int) -> Callable[[int], np.ndarray]:
    """See `Size`: clip 0 is a made scene, clip 1 the photograph."""
    layers = make_layers(rng, planes, DEMO.side)
    if clip == 1:
        photo = simulate.to_linear(imread_rgb(PHOTO).astype(np.float32) / 255)
        layers = [
            replace(layers[0], sheet=np.concatenate((photo, np.ones_like(photo[..., :1])), axis=2))
        ]
    return partial(render, layers)


DEMO = Size("demo", {"test": 2}, 8, scene, version=1, side=256)


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path("trainsets/demo"), help="made clips (%(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("experiments/demo"), help="results (%(default)s)"
    )
    parser.add_argument(
        "--sample", type=Path, default=Path("trainsets/sample"), help="its data (%(default)s)"
    )
    parser.add_argument(
        "--train_s", type=float, default=TRAIN_S, help="seconds of training; 0: none (%(default)s)"
    )
    parser.add_argument(
        "--root", type=Path, default=Path("experiments"), help="folder of runs (%(default)s)"
    )
    command = parser.parse_args(arguments)
    import main_test_vrt  # not before --help: it brings torch
    from models.restore.request import SHIPPED

    make_sample(command.data, DEMO)
    roots = {"gt": RGB, "lq": RGB, "spike": SPIKES}
    overrides = ["task=demo"]
    for key, name in roots.items():
        overrides.append(f"datasets.test.dataroot_{key}={command.data / name / 'test'}")
    code = main_test_vrt.main([
        "--opt", str(ROOT / "options/operators/exposure_alone.json"), "--weights", str(SHIPPED),
        "--output", str(command.output), "--save", "comparison", "--fps", "5", "--overwrite",
        *overrides,
    ])  # fmt: skip
    if code:
        return code
    page = (command.output / "report.html").resolve()
    print(f"\nopen {page}")
    # Elsewhere a browser might take the terminal
    if os.environ.get("DISPLAY") or sys.platform == "darwin":
        webbrowser.open(page.as_uri())
    if command.train_s <= 0:
        return 0
    return train(command.sample, command.root, command.train_s, page)


def train(sample: Path, root: Path, seconds: float, page: Path) -> int:
    """Train the sample run for a while, and add its curves to the page. Returns the exit code."""
    make_sample(sample, SAMPLE)
    print(f"\nnow training a small network on made clips, for {seconds:.0f} s:\n", flush=True)
    code = train_for(seconds, sample, root)
    if code not in (0, STOPPED):
        return code

    curves = root / SAMPLE_RUN.stem / "curves.png"
    if curves.is_file():
        add_curves(page, curves)
    if code == STOPPED:
        print(f"\nopen {page}: it has the curves now; the training goes on with\n\n    make sample")
    else:
        print(f"\nthe sample run is finished: {root / SAMPLE_RUN.stem / 'report.html'}")
    return 0


def train_for(seconds: float, sample: Path, root: Path) -> int:
    """Start the sample run, or resume it, and stop it as a scheduler would.

    seconds: counted from the first line of losses, so that there are curves on a slow machine too.
    """
    history = root / SAMPLE_RUN.stem / LINES_NAME
    before = history.stat().st_size if history.is_file() else 0
    folders = []
    for split in ("train", "test"):
        for key, name in (("gt", RGB), ("lq", RGB), ("spike", SPIKES)):
            folders.append(f"datasets.{split}.dataroot_{key}={sample / name / split}")
    launcher = [ROOT / "launch_train.sh", "1", SAMPLE_RUN, f"path.root={root}", *folders]
    with subprocess.Popen(launcher) as run:
        while run.poll() is None and not (history.is_file() and history.stat().st_size > before):
            time.sleep(0.1)
        try:
            return run.wait(seconds)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGTERM)
            return run.wait()


def add_curves(page: Path, curves: Path) -> None:
    """Show a picture of curves at the end of a page."""
    text = page.read_text(encoding="utf-8")
    picture = base64.b64encode(curves.read_bytes()).decode("ascii")
    section = (
        "<h2>A minute of training</h2>\n<p>The sample run, begun by this demo; "
        "<code>make sample</code> goes on with it.</p>\n"
        f'<p><img id="training" alt="curves of the training" style="max-width: 100%" '
        f'src="data:image/png;base64,{picture}"></p>\n'
    )
    write_whole(page, text.replace("</body>", f"{section}</body>").encode())


if __name__ == "__main__":
    cv2.setNumThreads(1)
    sys.exit(main())
