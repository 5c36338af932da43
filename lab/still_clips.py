#!/usr/bin/env python3
"""Measure weights/motion.pth where things stand still or hardly move, in good and in dim light.

    python lab/still_clips.py [--out FOLDER]

motion.pth has the network of operator.pth, and learned steps after it. The steps move light along
the motion that the spikes show. If nothing moves, noise may look like a motion, and the steps would
make the frame worse. data/motion/stillness/ should prevent this. This program measures how well it
does. The program makes clips of three photographs, in three lights, with four kinds of motion. It
restores each clip with motion.pth and with operator.pth, and prints the gain of motion.pth over
operator.pth in dB.

    photographs   crops of 160 x 128 pixels (width x height) of pictures in scikit-image
    cameras       have no flaws. A spike pixel covers 2 x 2 RGB pixels. The spike camera is read 60
                  times in an exposure. Each reading gives a plane of spikes
    noise         comes only from the spike pixels. Each of them begins with a random charge

Clips and results that exist in <out> are not made again. To measure again, delete <out>. The gain
of each clip is in <out>/still_clips.json.

What must stay: how a clip is made of a photograph, a light and a motion, because figures of two
versions are compared. Free to add: photographs, lights and motions.

Tests: tests/parts/house/test_still_clips.py notices if a still clip is blurry, a moving clip is
sharp, the disc stands still, or the background behind the disc moves. It does not notice another
length of a motion or another SHARP_PLANE. No test calls the whole program.
tests/stories/test_motion_weights.py restores similar scenes: they stand still or move a little, in
good and in dim light.
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

from data.spike.formats import write_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.pictures import bin_pixels, to_display, to_grey, to_linear, to_uint8
from data.spike.simulate import IntegrateAndFire
from lab.quality_suite.programs import call
from lab.quality_suite.sources import package_file
from lab.tools import ROOT, environment
from utils.image import imread_rgb, imwrite_rgb
from utils.results import markdown_table, read_json

# The sizes below are chosen by hand. With other sizes, clips and figures differ.
HEIGHT = 128  # height of a frame, in pixels
WIDTH = 160  # width of a frame, in pixels
CORNER = (100, 100)  # x and y in the photograph, at time 0, of the upper left pixel of the frame
PLANES = 60  # number of planes in an exposure
SHARP_PLANE = 30  # the sharp frame is the middle plane of an exposure
FRAMES = 2  # number of frames of a clip
BINS = 2  # a spike pixel covers BINS x BINS RGB pixels
# Seed of the random charges with which the spike pixels begin. All clips use this seed, so all
# clips begin with the same charges. With another seed, spikes and figures differ.
SEED = 3

PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png")
# Name of a light -> spikes per plane of a white pixel. E.g. in the light "good", a white pixel has
# 60 x 0.6 = 36 spikes in an exposure. Photographs are darker: a pixel of median light has 5 to 14
# spikes in the light "good", and about one spike in the light "a twelfth".
LIGHTS = {"good": 0.6, "a third": 0.2, "a twelfth": 0.05}
# Radius in pixels of the disc that moves in front of a still background.
DISC_RADIUS = 24
# Name of a motion -> RGB pixels by which the picture moves to the left in an exposure. The picture
# also moves half as far upwards. The name has the length of the whole motion: 1.8 pixels to the
# left and 0.9 pixels upwards are sqrt(1.8^2 + 0.9^2) = 2.0 pixels.
MOTIONS = {"still": 0.0, "2 pixels": 1.8, "4 pixels": 3.6}
DISC = "a disc moves by 12 pixels"
DISC_SHIFT = 12  # RGB pixels by which the disc moves to the right in an exposure

WEIGHTS = {"operator": ROOT / "weights/operator.pth", "motion": ROOT / "weights/motion.pth"}

# A function of a time in planes. It returns the light of the scene at this time:
# (HEIGHT, WIDTH, 3) float32, linear, R, G, B.
Scene = Callable[[float], np.ndarray]


def main(argv: Sequence[str]) -> int:
    """Make the clips, restore them with both weights, write the scores, and print the table.

    Returns the exit code 0. An error ends the program earlier.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="results folder (default experiments/still_clips)")
    args = parser.parse_args(argv)
    out = (args.out or ROOT / "experiments/still_clips").resolve()

    gains: dict[str, dict[str, float]] = {}  # light -> clip -> gain in dB
    for light, rate in LIGHTS.items():
        folder = out / light.replace(" ", "_")
        # A folder that exists is not completed. If the program was stopped while it made the clips,
        # delete the folder.
        if not folder.exists():
            make_clips(folder, rate)
        by_operator = psnr_of(folder, "operator")  # clip -> dB
        by_motion = psnr_of(folder, "motion")
        gains[light] = {clip: by_motion[clip] - by_operator[clip] for clip in by_motion}
    file = out / "still_clips.json"
    file.write_text(json.dumps({"measured": environment(), "gains": gains}, indent=1) + "\n")
    print(table_of(gains))
    return 0


# ---- The clips ---------------------------------------------------------------------------------


def make_clips(folder: Path, rate: float) -> None:
    """Make all clips in one light.

    The frames go to <folder>/rgb/<clip>/blur and <folder>/rgb/<clip>/sharp, the spikes to
    <folder>/spike/<clip>. The name of a clip is e.g. "astronaut, 2 pixels".

    rate: spikes per plane of a white pixel, a value of LIGHTS.
    """
    pictures = {}  # name of a photograph -> its linear light (H, W, 3)
    for name in PHOTOGRAPHS:
        path = package_file("skimage", name)
        pictures[path.stem] = to_linear(imread_rgb(path).astype(np.float32) / 255)
    names = list(pictures)
    for index, (photo, picture) in enumerate(pictures.items()):
        for motion, pixels in MOTIONS.items():
            write_clip(folder, f"{photo}, {motion}", in_motion(picture, pixels), rate)
        # The disc shows the next photograph, so that it differs from the background. After the last
        # photograph comes the first photograph.
        next_name = names[(index + 1) % len(names)]
        other = pictures[next_name]
        write_clip(folder, f"{photo}, {DISC}", with_disc(picture, other), rate)
    about = {
        "format": 1,
        "h": HEIGHT // BINS,
        "w": WIDTH // BINS,
        "flip": True,  # `write_spikes` writes the last row first
        "planes": PLANES,
        "gt_plane": SHARP_PLANE,
        "rate": rate,
        "light": "linear",
    }
    (folder / "spike/dataset.json").write_text(json.dumps(about))


def in_motion(picture: np.ndarray, pixels: float) -> Scene:
    """Return a scene (time -> light) in which a picture (H, W, 3) moves to the left and upwards.

    pixels: how far the picture moves to the left in an exposure, in RGB pixels. It moves half as
        far upwards.
    """

    def light_at(time: float) -> np.ndarray:
        """Return the picture as the frame shows it at a time in planes, (HEIGHT, WIDTH, 3)."""
        to_left = pixels * time / PLANES
        upwards = to_left / 2
        # This matrix maps a pixel (x, y, 1) of the picture to its pixel of the frame:
        #
        #     x of the frame = x - left - to_left
        #     y of the frame = y - top - upwards
        #
        # So at time 0, the pixel (left, top) of the picture is the pixel (0, 0) of the frame.
        left, top = CORNER
        to_frame = np.array([[1, 0, -left - to_left], [0, 1, -top - upwards]], np.float32)
        return cv2.warpAffine(picture, to_frame, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REFLECT)

    return light_at


def with_disc(picture: np.ndarray, other: np.ndarray) -> Scene:
    """Return a scene in which a picture stands still, and a disc moves in front of it.

    The disc moves to the right by DISC_SHIFT pixels in an exposure.

    other: the picture that the disc shows.
    """
    # Without motion, a scene shows the same part of its picture at any time. Take time 0.
    still_picture = in_motion(picture, pixels=0)
    still_other = in_motion(other, pixels=0)
    background = still_picture(0)  # (HEIGHT, WIDTH, 3)
    texture = still_other(0)  # (HEIGHT, WIDTH, 3)
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]

    def light_at(time: float) -> np.ndarray:
        """Return the background and the disc at a time in planes, (HEIGHT, WIDTH, 3)."""
        # In the middle of the clip the disc is in the middle of the frame. So in the first half of
        # the clip its shift is negative.
        middle = FRAMES * PLANES / 2
        shift = DISC_SHIFT * (time - middle) / PLANES
        # The distance of each pixel from the middle of the disc, (HEIGHT, WIDTH).
        distance = np.hypot(rows - HEIGHT / 2, columns - WIDTH / 2 - shift)
        # How much of each pixel the disc covers: 1 within the disc, 0 outside, and 0.5 if the edge
        # goes through the middle of the pixel.
        depth_in_disc = DISC_RADIUS - distance  # 0 on the edge
        share = np.clip(depth_in_disc + 0.5, 0, 1)[..., None].astype(np.float32)
        # The texture moves with the disc, but by whole pixels, because a fraction would need
        # interpolation.
        shifted = np.roll(texture, round(shift), axis=1)
        return background * (1 - share) + shifted * share

    return light_at


def write_clip(folder: Path, clip: str, scene: Scene, rate: float) -> None:
    """Write the blurry and the sharp frames of a clip, and its spikes.

    The exposures follow one another without a gap: frame 0 has the planes 0 ... 59, frame 1 the
    planes 60 ... 119.

    rate: spikes per plane of a white pixel.
    """
    height = HEIGHT // BINS  # height of a spike plane, in spike pixels
    width = WIDTH // BINS
    camera = IntegrateAndFire(height, width, rate=rate, rng=np.random.default_rng(SEED))
    for frame in range(FRAMES):
        # The light of each plane, (HEIGHT, WIDTH, 3). Plane n lasts from time n to n + 1, so its
        # light is taken in the middle, at n + 0.5.
        lights = [scene(frame * PLANES + plane + 0.5) for plane in range(PLANES)]
        # The blurry frame is the mean light of the exposure. The sharp frame is the light of one
        # plane.
        light_of_kind = {"blur": np.mean(lights, axis=0), "sharp": lights[SHARP_PLANE]}
        for kind, light in light_of_kind.items():
            path = folder / "rgb" / clip / kind / f"{frame:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            imwrite_rgb(path, to_uint8(to_display(light)))
        # The spike camera sees grey light. A spike pixel sees the mean of BINS x BINS RGB pixels.
        grey_lights = (bin_pixels(to_grey(light), BINS) for light in lights)
        stream = camera.run(grey_lights)
        path = folder / "spike" / clip / f"{frame:03d}.dat"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_spikes(path, stream, SpikeGeometry(height, width))


# ---- The scores --------------------------------------------------------------------------------


def psnr_of(folder: Path, name: str) -> dict[str, float]:
    """Restore all clips in one light. Return {clip: PSNR in dB}.

    The results go to <folder>/<name>. Results that exist are used again.

    folder: the folder in which `make_clips` has made the clips.
    name: a key of WEIGHTS.
    """
    results = folder / name
    if not (results / "metrics.json").exists():
        # The folders blur and sharp of a clip lie beside each other, so --input and --gt are equal.
        frames = str(folder / "rgb")
        # `folder` and `name` say where the log goes: <folder>/logs/<name>.txt.
        call(
            "main_test_vrt.py",
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
            out=folder,
            name=name,
        )
    clips = read_json(results / "metrics.json")["clips"]
    return {clip: about["restored"]["psnr"] for clip, about in clips.items()}


def table_of(gains: dict[str, dict[str, float]]) -> str:
    """Return the table in Markdown: a row for each motion, and a column for each light.

    A cell has the gains of the three photographs, e.g. "+0.10, -0.02, +0.31 (mean +0.13)".

    gains: light -> clip -> gain in dB.
    """
    rows = []
    for motion in (*MOTIONS, DISC):
        row = [motion]
        for gain_of_clip in gains.values():
            # The name of a clip is e.g. "astronaut, 2 pixels".
            names = [f"{Path(photo).stem}, {motion}" for photo in PHOTOGRAPHS]
            gains_of_photos = [gain_of_clip[name] for name in names]
            cells = ", ".join(f"{gain:+.2f}" for gain in gains_of_photos)
            row.append(f"{cells} (mean {statistics.fmean(gains_of_photos):+.2f})")
        rows.append(row)
    return markdown_table(rows, ["", *gains])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
