#!/usr/bin/env python3
"""Measure weights/motion.pth where things stand still or hardly move, in good and in dim light.

    python lab/still_clips.py [--out FOLDER]

The learned steps of motion.pth move light along the motion that the spikes show. If nothing moves,
noise may look like a motion, and the steps would only do harm (data/motion/stillness.py). So this
program makes clips of three photographs, in three lights, with four kinds of motion. It restores
them with motion.pth and with operator.pth, the network whose frames the steps improve, and prints
the gain of motion.pth:

    photographs   of the package scikit-image, crops of 160 x 128 pixels (width x height)
    cameras       an ideal RGB camera. A spike pixel covers 2 x 2 RGB pixels, an exposure 60 planes
    noise         of the spike camera: each pixel begins with a random charge

Clips and results in <out> are used again: delete <out> to measure again. The scores of each clip
are in <out>/still_clips.json.

tests/stories/test_motion_weights.py has made scenes for the same states.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.spike.formats import SpikeGeometry, write_spikes
from data.spike.simulate import (
    IntegrateAndFire,
    bin_pixels,
    to_display,
    to_grey,
    to_linear,
    to_uint8,
)
from lab.quality import call, package_file
from lab.tools import ROOT, environment
from utils.image import imread_rgb, imwrite_rgb
from utils.results import markdown_table, read_json

HEIGHT = 128  # of a frame, in pixels
WIDTH = 160
CORNER = (100, 100)  # place of the frame in the photograph at time 0, x and y
PLANES = 60  # in an exposure
SHARP_PLANE = 30  # the sharp frame is the middle plane of an exposure
FRAMES = 2  # of a clip
BINS = 2  # a spike pixel covers BINS x BINS RGB pixels
# Each clip has its own random charges, but a clip has the same ones in each measurement.
SEED = 3

PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png")
# Name -> spikes per plane at full light. A pixel of median light has 5 to 14 spikes in an exposure
# in the first light, and about one in the last.
LIGHTS = {"good": 0.6, "a third": 0.2, "a twelfth": 0.05}
# Radius in pixels of the disc that moves before a still background.
DISC_RADIUS = 24
# Motion -> RGB pixels in an exposure, to the left. It goes half as far upwards.
MOTIONS = {"still": 0.0, "2 pixels": 1.8, "4 pixels": 3.6}
DISC = "a disc moves by 12 pixels"

WEIGHTS = {"operator": ROOT / "weights/operator.pth", "motion": ROOT / "weights/motion.pth"}

# Light of the scene at a time in planes: (HEIGHT, WIDTH, 3) float32, linear, R, G, B.
Scene = Callable[[float], np.ndarray]


def main(argv: Sequence[str]) -> int:
    """Make the clips, restore them with both weights, write the scores, and print the table.

    Returns the exit code, which is 0. An error ends the program before.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="results folder (default experiments/still_clips)")
    args = parser.parse_args(argv)
    out = (args.out or ROOT / "experiments/still_clips").resolve()

    # light -> clip -> gain in dB
    gains: dict[str, dict[str, float]] = {}
    for light, rate in LIGHTS.items():
        folder = out / light.replace(" ", "_")
        if not folder.exists():
            make_clips(folder, rate)
        by_weights = {name: psnr_of(folder, name) for name in WEIGHTS}
        gains[light] = {
            clip: psnr - by_weights["operator"][clip] for clip, psnr in by_weights["motion"].items()
        }
    file = out / "still_clips.json"
    file.write_text(json.dumps({"measured": environment(), "gains": gains}, indent=1) + "\n")
    print(table_of(gains))
    return 0


# ---- The clips ---------------------------------------------------------------------------------


def make_clips(folder: Path, rate: float) -> None:
    """Make the clips of a light. rate: spikes per plane at full light.

    <folder>/rgb/<clip>/blur and sharp get the frames, <folder>/spike/<clip> the spikes.
    """
    pictures = {}
    for name in PHOTOGRAPHS:
        path = package_file("skimage", name)
        pictures[path.stem] = to_linear(imread_rgb(path).astype(np.float32) / 255)
    names = list(pictures)
    for index, (photo, picture) in enumerate(pictures.items()):
        for motion, pixels in MOTIONS.items():
            write_clip(folder, f"{photo}, {motion}", in_motion(picture, pixels), rate)
        # The disc shows the next photograph, so that it differs from the background.
        other = pictures[names[(index + 1) % len(names)]]
        write_clip(folder, f"{photo}, {DISC}", with_disc(picture, other), rate)
    about = {
        "format": 1,
        "h": HEIGHT // BINS,
        "w": WIDTH // BINS,
        "flip": True,  # as `write_spikes` writes the rows
        "planes": PLANES,
        "gt_plane": SHARP_PLANE,
        "rate": rate,
        "light": "linear",
    }
    (folder / "spike/dataset.json").write_text(json.dumps(about))


def in_motion(picture: np.ndarray, pixels: float) -> Scene:
    """Return a view of a picture (H, W, 3) from which it moves by some pixels in an exposure."""

    def view(time: float) -> np.ndarray:
        way = pixels * time / PLANES
        to_frame = np.array([[1, 0, -CORNER[0] - way], [0, 1, -CORNER[1] - way / 2]], np.float32)
        return cv2.warpAffine(picture, to_frame, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REFLECT)

    return view


def with_disc(picture: np.ndarray, other: np.ndarray) -> Scene:
    """Return a still view of a picture, before which a disc moves. other: what the disc shows."""
    background = in_motion(picture, 0)(0)
    texture = in_motion(other, 0)(0)
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]

    def view(time: float) -> np.ndarray:
        # The disc is in the middle of the frame in the middle of the clip.
        way = 12 * (time - FRAMES * PLANES / 2) / PLANES
        distance = np.hypot(rows - HEIGHT / 2, columns - WIDTH / 2 - way)
        # The share of the disc in each pixel: 1 within it, 0 outside, and between on its edge.
        share = np.clip(DISC_RADIUS - distance + 0.5, 0, 1)[..., None].astype(np.float32)
        shifted = np.roll(texture, round(way), axis=1)
        return background * (1 - share) + shifted * share

    return view


def write_clip(folder: Path, clip: str, scene: Scene, rate: float) -> None:
    """Write the blurry and the sharp frames of a clip, and its spikes."""
    height = HEIGHT // BINS  # of a spike plane
    width = WIDTH // BINS
    camera = IntegrateAndFire(height, width, rate=rate, rng=np.random.default_rng(SEED))
    for frame in range(FRAMES):
        # A plane shows the light in its middle.
        lights = [scene(frame * PLANES + plane + 0.5) for plane in range(PLANES)]
        blurry = np.mean(lights, axis=0)
        for kind, light in (("blur", blurry), ("sharp", lights[SHARP_PLANE])):
            path = folder / "rgb" / clip / kind / f"{frame:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            imwrite_rgb(path, to_uint8(to_display(light)))
        stream = camera.run(bin_pixels(to_grey(light), BINS) for light in lights)
        path = folder / "spike" / clip / f"{frame:03d}.dat"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_spikes(path, stream, SpikeGeometry(height, width))


# ---- The scores --------------------------------------------------------------------------------


def psnr_of(folder: Path, name: str) -> dict[str, float]:
    """Restore the clips of a light. Return clip -> PSNR in dB. name: of the weights."""
    results = folder / name
    if not (results / "metrics.json").exists():
        frames = str(folder / "rgb")
        call(
            "main_test_vrt.py",
            folder,
            name,
            "--weights",
            str(WEIGHTS[name]),
            "--input",
            frames,
            "--spike",
            str(folder / "spike"),
            "--gt",
            frames,
            "--output",
            str(results),
        )
    clips = read_json(results / "metrics.json")["clips"]
    return {clip: about["restored"]["psnr"] for clip, about in clips.items()}


def table_of(gains: dict[str, dict[str, float]]) -> str:
    """Return the table in Markdown: a row for each motion, the gains of the photographs in a cell.

    gains: light -> clip -> gain in dB.
    """
    rows = []
    for motion in (*MOTIONS, DISC):
        row = [motion]
        for of_clip in gains.values():
            of_photos = [of_clip[f"{Path(photo).stem}, {motion}"] for photo in PHOTOGRAPHS]
            cells = ", ".join(f"{gain:+.2f}" for gain in of_photos)
            row.append(f"{cells} (mean {statistics.fmean(of_photos):+.2f})")
        rows.append(row)
    return markdown_table(rows, ["", *gains])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
