#!/usr/bin/env python3
"""Restore two short clips with the shipped weights, in less than a minute, and make a page that shows them.

    python scripts/demo.py
    python scripts/demo.py --data /tmp/clips --output /tmp/demo

A made scene, and a photograph under a moving camera (NASA's portrait of Eileen Collins, in the public domain); their
blur and their spikes are simulated. Results: experiments/demo/report.html, and a video of each clip beside it.
"""

import argparse
import os
import sys
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.spike import simulate
from scripts.make_sample_data import RGB, SPIKES, Size, make_layers, make_sample, render
from scripts.parts.exit_codes import with_exit_code
from utils.image import imread_rgb

ROOT = Path(__file__).resolve().parent.parent
PHOTO = ROOT / "docs/images/collins.jpg"


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
    command = parser.parse_args(arguments)
    import main_test_vrt  # not before --help: it brings torch
    from models.restore.setup import SHIPPED

    make_sample(command.data, DEMO)
    roots = {"gt": RGB, "lq": RGB, "spike": SPIKES}
    code = main_test_vrt.main([
        "--opt", str(ROOT / "options/operators/exposure_alone.json"), "--weights", str(SHIPPED),
        "--output", str(command.output), "--save", "comparison", "--fps", "5", "--overwrite",
        "task=demo", *(f"datasets.test.dataroot_{key}={command.data / name / 'test'}" for key, name in roots.items()),
    ])  # fmt: skip
    page = (command.output / "report.html").resolve()
    print(f"\nopen {page}")
    if (
        os.environ.get("DISPLAY") or sys.platform == "darwin"
    ):  # elsewhere a browser might take the terminal
        webbrowser.open(page.as_uri())
    return code


if __name__ == "__main__":
    cv2.setNumThreads(1)
    sys.exit(main())
