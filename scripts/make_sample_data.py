#!/usr/bin/env python3
"""Make a small RGB + spike data set in the GoPro layout, for trying the project without a download.

    python scripts/make_sample_data.py
    python scripts/make_sample_data.py --root trainsets/other --seed 1 --instants 5

Each clip shows textured layers that move in front of one another, under a shaking camera. The scene
is rendered once for each spike plane, in linear light:

    mean of the 88 planes of an exposure       -> blurry frame
    middle plane                               -> sharp frame
    each plane in grey, at half the resolution -> integrate-and-fire sensor -> spikes

The result depends on the seed only.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.clips.threads import map_in_threads, usable_cores
from data.making.smooth_walk import smooth_walk
from data.spike import simulate
from data.spike.formats import write_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.pictures import bin_pixels, to_display, to_grey, to_linear, to_uint8
from scripts.parts.exit_codes import tracked, with_exit_code
from utils.arguments import seed
from utils.errors import DataError, OptionError
from utils.files import sha256_of
from utils.image import imwrite_rgb
from utils.random_streams import published_stream

# The files of a clip below the root, with a file for each frame 000000, 000001, ...:
#
#     GOPRO_Large/train/SAMPLE00_train/blur/000000.png
#     GOPRO_Large/train/SAMPLE00_train/sharp/000000.png
#     GOPRO_Large/train/SAMPLE00_train/instants/000000_0.png   (with --instants)
#     GOPRO_Large_spike_seq/train/SAMPLE00_train/spike/000000.dat
#     GOPRO_Large_spike_seq/dataset.json
#
# A plane is one readout of the spike camera: a bit for each spike pixel. In this program the number
# of a plane also says the instant of this readout.
#
# What must stay: the same seed gives the same files bit for bit, because tests and the published
# figures use them (test_the_same_seed_gives_the_same_bytes_and_another_seed_others). So the order
# in which numbers are drawn from a generator stays, and every constant of the scene. A set that
# somebody has changed is never replaced (test_what_is_no_unchanged_set_is_refused).
# Free to change: printed texts. If the files must change, raise `Size.version`: then `make_sample`
# replaces the older sets.

# ---- Sizes ------------------------------------------------------------------------------------

SIZE = 128  # side of an RGB frame, in pixels
PLANES = 88  # spike planes in one exposure, as in GoPro clips of 11 frames
# Pixels of texture around the frame, because the camera moves. Where it moves farther, the texture
# goes on mirrored.
MARGIN = 96
GT_PLANE = PLANES // 2  # the plane of the sharp frame
RGB = "GOPRO_Large"  # folder of the frames
SPIKES = "GOPRO_Large_spike_seq"  # folder of the spikes
INFO = f"{SPIKES}/dataset.json"  # says how to read the spikes, and how the set was made
ME = "scripts/make_sample_data.py"  # the mark in dataset.json that this program made the set
# The simulated sensor, as arguments of IntegrateAndFire:
#   rate                spikes per plane at full light
#   shot_noise          standard deviation of the charge of a plane at full light, in thresholds
#   dark_rate           spikes per plane without light
#   threshold_mismatch  standard deviation of the pixels' thresholds, relative to the threshold
SENSOR = {"rate": 0.9, "shot_noise": 0.03, "dark_rate": 0.001, "threshold_mismatch": 0.01}

# A scene gives for a plane its linear light (side, side, 3) float32. Above 1 it is saturated.
Scene = Callable[[int], np.ndarray]


# ---- The scene: layers that move --------------------------------------------------------------
#
# Every constant, every range and the order of the random numbers below decide the files. Whoever
# changes one raises `Size.version`, so that old files are made anew.

# What is painted as a letter.
LETTERS = "ABCDEFGHKLMNPRSTVXYZ2345689"


@dataclass(frozen=True)
class Layer:
    """A textured sheet in front of the camera, and its motion.

    The scene is the camera's view of a background layer and of objects in front of it.
    """

    # (n, n, 4), with n = side + 2 MARGIN. Channels 0 to 2: linear colour times opacity. Channel 3:
    # opacity.
    sheet: np.ndarray
    path: np.ndarray  # (planes, 3): shift x and shift y in pixels, angle in radians
    side: int = SIZE  # of the frame, in pixels


def texture(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return a random texture: (n, n, 3) display values in [0.04, 0.98].

    It is coloured 1/f noise with painted shapes. Its edges are as wide as one spike pixel.
    lab/benchmark.py uses it, too.
    """
    picture = to_uint8(_clouds(rng, n))
    # One shape for each 30 x 30 pixels, so that each part of a frame has edges.
    number_of_shapes = int(n * n / 900)
    for _ in range(number_of_shapes):
        _paint_shape(rng, picture)  # in place
    # A blur of 0.9 pixels makes an edge about two RGB pixels wide, which are one spike pixel.
    smooth = cv2.GaussianBlur(picture.astype(np.float32) / 255, (0, 0), 0.9)
    # So no pixel is quite black or quite white.
    return np.clip(smooth, 0.04, 0.98)


def _clouds(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return coloured noise (n, n, 3) with the spectrum 1 / f**a, as natural images have it."""
    # The spectrum: f = sqrt(frequency_y^2 + frequency_x^2).
    frequency_y = np.fft.fftfreq(n)[:, None]  # (n, 1)
    frequency_x = np.fft.rfftfreq(n)[None]  # (1, n / 2 + 1)
    frequency = np.hypot(frequency_y, frequency_x)
    frequency[0, 0] = 1.0  # instead of 0, because 0 ** -a is infinite
    a = rng.uniform(1.2, 1.6)
    spectrum = frequency**-a
    spectrum[0, 0] = 0.0  # the mean is 0

    # Three channels of white noise, times the spectrum.
    channels = []
    for _ in range(3):
        white_noise = np.fft.rfft2(rng.standard_normal((n, n)))
        channels.append(np.fft.irfft2(spectrum * white_noise, (n, n)))
    clouds = np.stack(channels)  # (3, n, n)
    clouds /= clouds.std(axis=(1, 2), keepdims=True)  # each channel has the standard deviation 1

    # The first channel is brightness. The second moves the colour between red and blue, and the
    # third between green and purple. Tints are weak, as in natural images.
    brightness, warmth, greenness = clouds
    red = warmth
    green = greenness  # below 0, red and blue are left: purple
    blue = -warmth
    tints = np.stack((red, green, blue), axis=2)  # (n, n, 3)
    mean_colour = rng.uniform(0.35, 0.65, 3)
    brightness_of_colours = brightness[..., None]  # (n, n, 1), the same for the three colours
    # With 0.13, brightness reaches from 0.11 to 0.89 around a mean of 0.5 (three standard
    # deviations). A larger number would cut off more bright and dark places.
    return mean_colour + 0.13 * brightness_of_colours + 0.04 * tints


def _paint_shape(rng: np.random.Generator, picture: np.ndarray) -> None:
    """Paint a random disc, bar, polygon or letter into a picture (n, n, 3) uint8, in place."""
    n = len(picture)
    brightness = rng.uniform(0.05, 0.95)
    tint = 0.2 * rng.uniform(-1, 1, 3)
    colour = tuple(float(value) for value in 255 * np.clip(brightness + tint, 0, 1))
    x, y = (int(value) for value in rng.integers(0, n, 2))
    size = int(rng.integers(4, 16))  # pixels
    kind = int(rng.integers(4))

    if kind == 0:
        radius = size // 2 + 2
        cv2.circle(picture, (x, y), radius, colour, cv2.FILLED, cv2.LINE_AA)
    elif kind == 1:
        angle = rng.uniform(0, np.pi)
        length = 3 * size
        end_x = int(x + length * np.cos(angle))
        end_y = int(y + length * np.sin(angle))
        width = int(rng.integers(2, 6))
        cv2.line(picture, (x, y), (end_x, end_y), colour, width, cv2.LINE_AA)
    elif kind == 2:
        count = int(rng.integers(3, 6))
        corners = np.array([x, y]) + rng.uniform(-size, size, (count, 2))
        cv2.fillPoly(picture, [corners.astype(np.int32)], colour, cv2.LINE_AA)
    else:
        letter = LETTERS[int(rng.integers(len(LETTERS)))]
        font = cv2.FONT_HERSHEY_SIMPLEX
        font_scale = size / 14  # OpenCV's letters are about 21 pixels high at a scale of 1
        thickness = 2
        cv2.putText(picture, letter, (x, y), font, font_scale, colour, thickness, cv2.LINE_AA)


def make_layers(rng: np.random.Generator, planes: int, side: int = SIZE) -> list[Layer]:
    """Return a background and three objects, from the farthest to the nearest.

    A nearer layer shifts more when the camera shakes. Objects also move by themselves.

    planes: number of planes of the clip.
    side: side of the frame, in pixels.
    """
    n = side + 2 * MARGIN
    # The shake of the camera: up to 22 and 16 pixels, and 0.05 radians (3 degrees). It is a sum of
    # waves; the period of each wave is 3 to 9 exposures. So the picture moves by some pixels within
    # an exposure, as in GoPro. Larger amplitudes would blur the frames more.
    walk = partial(smooth_walk, rng, planes, periods=(3.0 * PLANES, 9.0 * PLANES))
    shake_x = walk(amplitude=22.0)
    shake_y = walk(amplitude=16.0)
    turn = walk(amplitude=0.05)  # (planes,)
    shake = np.stack([shake_x, shake_y], axis=1)  # (planes, 2)

    layers = []
    for depth in range(4):
        is_background = depth == 0
        # Each object moves along a line, in x and in y by at most 3.5 pixels in an exposure, so
        # that not all motion is the camera's. In the middle of the clip, the object is where it
        # would be without this motion.
        speed = 0.0 if is_background else 3.5 / PLANES  # pixels per plane
        direction = rng.uniform(-1, 1, 2)
        times = np.arange(planes) - planes / 2  # in planes, 0 in the middle of the clip
        motion = direction * speed * times[:, None]  # (planes, 2)

        opacity = np.ones((n, n, 1), np.float32)  # the background covers everything
        if not is_background:
            opacity = _outline(rng, n)
        colour = to_linear(texture(rng, n))
        # Colour times opacity, as blending needs it: the colours of the sheet are added to
        # (1 - opacity) times what is behind.
        sheet = np.concatenate((colour * opacity, opacity), axis=2)  # (n, n, 4)
        # Parallax: a nearer layer shifts more. The background shifts as far as the camera shakes,
        # and the objects 1.35, 1.7 and 2.05 times as far.
        parallax = 1.0 + 0.35 * depth
        shifts = shake * parallax + motion  # (planes, 2): x, y
        path = np.column_stack((shifts, turn))  # (planes, 3): x, y, turn
        layers.append(Layer(sheet, path, side))
    return layers


def _outline(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return the opacity (n, n, 1) of one rounded object near the middle of the sheet."""
    # A polygon of nine corners around a centre, in pixels.
    angles = np.sort(rng.uniform(0, 2 * np.pi, 9))
    radii = rng.uniform(14, 34, 9)
    centre = n / 2 + rng.uniform(-36, 36, 2)
    from_centre = np.stack((radii * np.cos(angles), radii * np.sin(angles)), axis=1)  # (9, 2)
    corners = centre + from_centre
    filled = cv2.fillPoly(
        np.zeros((n, n, 1), np.float32), [corners.astype(np.int32)], 1.0, cv2.LINE_AA
    )
    blurred = cv2.GaussianBlur(filled, ksize=(0, 0), sigmaX=0.9)  # ksize follows from sigmaX
    return blurred[..., None]  # OpenCV has dropped the last axis, because its length is 1


def render(layers: list[Layer], plane: int) -> np.ndarray:
    """Return what the camera sees at `plane`: linear light (side, side, 3) float32."""
    side = layers[0].side
    centre = side / 2
    picture = np.zeros((side, side, 3), np.float32)
    for layer in layers:
        shift_x, shift_y, angle = layer.path[plane]
        cos = np.cos(angle)
        sin = np.sin(angle)
        middle = layer.sheet.shape[0] / 2
        # The pixel p of the camera shows the pixel q of the sheet. R is the rotation by the angle:
        #     q = R (p - centre) + middle + shift
        #       = R p + (middle + shift - R centre)
        # The first two columns of the matrix are R, and its last column is the term in brackets. x
        # and y of the centre are the same number, so
        #     R centre = (cos centre - sin centre, sin centre + cos centre).
        to_sheet = np.array([
            [cos, -sin, middle + shift_x - centre * cos + centre * sin],
            [sin, cos, middle + shift_y - centre * sin - centre * cos],
        ])  # fmt: skip
        # WARP_INVERSE_MAP: the matrix leads from the result to the source, as here.
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        seen = cv2.warpAffine(
            layer.sheet, to_sheet, (side, side), flags=flags, borderMode=cv2.BORDER_REFLECT
        )
        # The layer covers the layers behind it. Its colour is already multiplied by its opacity.
        colour = seen[..., :3]
        opacity = seen[..., 3:]
        picture = picture * (1.0 - opacity) + colour
    return np.clip(picture, 0.0, 1.0)


def instant_planes(count: int) -> list[int]:
    """Return the planes of `count` sharp instants, evenly spread over the exposure.

    E.g. 5 instants -> planes 9, 26, 44, 62, 79.

    count: an odd number, or 0. The middle instant is the plane of the sharp frame.
    """
    planes = []
    for k in range(count):
        from_middle = k - count // 2  # e.g. of 5 instants: -2, -1, 0, 1, 2
        distance = PLANES / count  # planes between two instants, e.g. 88 / 5 = 17.6
        planes.append(round(GT_PLANE + from_middle * distance))
    return planes


# ---- The data set -----------------------------------------------------------------------------
#
# What must stay: a set is written whole or not at all, and a user's files are never removed
# (test_what_is_no_unchanged_set_is_refused).


@dataclass(frozen=True)
class Size:
    """How much is made, and of which scenes. scripts/demo.py has another `Size` than SAMPLE."""

    name: str  # name of the set, for its clips and its dataset.json
    clips: Mapping[str, int]  # split -> number of clips
    frames: int  # number of frames of a clip
    # (generator, number of planes, number of the clip in its split) -> scene
    scene: Callable[[np.random.Generator, int, int], Scene]
    version: int  # raise it when the same seed gives other files than before
    side: int = SIZE  # side of a frame, in pixels


def _sample_scene(rng: np.random.Generator, planes: int, _index: int) -> Scene:
    """Return the scene of a clip of the sample set: layers that are drawn at random.

    The scene is a function of the plane: `render` with these layers.
    """
    return partial(render, make_layers(rng, planes))


SAMPLE = Size(
    name="sample",
    clips={"train": 8, "test": 2},
    frames=12,
    scene=_sample_scene,
    version=2,
)


def make_sample(root: Path, size: Size = SAMPLE, seed: int = 0, instants: int = 0) -> bool:
    """Write the data set to `root`, complete or not at all.

    Returns False if the set is there already. An unchanged set of an older version is replaced.
    Raises DataError if `root` holds something else, or a set with changed files.

    instants: number of sharp pictures NNNNNN_K.png of each exposure, 0 or odd.
    """
    root = root.resolve()  # if root is a link to another disk, the link stays
    if root.is_file() or _has_content(root):
        if check_made(root, size, seed, instants):
            return False
        print(
            f"{root} was made by another version of this script, or without these instants: "
            "making it again"
        )
    root.parent.mkdir(parents=True, exist_ok=True)
    # The set is made in a temporary folder and renamed when it is complete. At the end the
    # temporary folder holds the older set that was replaced, or what an error left.
    with tempfile.TemporaryDirectory(
        prefix=f".{root.name}.", dir=root.parent, ignore_cleanup_errors=True
    ) as temporary:
        new = Path(temporary, "new")
        write_clips(new, size, seed, instants)
        write_info(new, size, seed, instants)

        if _has_content(root):
            # Check the older set once more, because somebody may have changed it meanwhile.
            check_made(root, size, seed)
            root.rename(Path(temporary, "old"))
        new.rename(root)
    return True


def write_clips(root: Path, size: Size, seed: int, instants: int) -> None:
    """Write all clips of the set, with a progress line."""
    clips = []  # (number of the split, name of the split, number of the clip in the split)
    for split_number, (split, count) in enumerate(size.clips.items()):
        for index in range(count):
            clips.append((split_number, split, index))

    def make(clip: tuple[int, str, int]) -> None:
        split_number, split, index = clip
        # A generator for each clip, so that a clip does not depend on the other clips, nor on which
        # clip is made first. Another generator would change the files, and so their digest.
        rng = published_stream(seed, split_number, index)
        write_clip(root, size, split, index, rng, instants)

    # Each thread takes one clip at a time (at_once).
    made = map_in_threads(make, clips, at_once=1, threads=usable_cores())
    for _ in tracked(made, len(clips), "making", "clips"):
        pass  # `tracked` shows the progress


def _has_content(folder: Path) -> bool:
    """Return whether there is a folder of this name that is not empty."""
    return folder.is_dir() and any(folder.iterdir())


def write_clip(
    root: Path, size: Size, split: str, index: int, rng: np.random.Generator, instants: int
) -> None:
    """Write the frames and the spikes of one clip.

    The scene draws from `rng` first, then the sensor. Another order would change the files.

    split: "train" or "test".
    index: number of the clip in its split.
    instants: number of sharp pictures of an exposure.
    """
    clip = f"{split}/{size.name.upper()}{index:02d}_{split}"
    spikes = root / SPIKES / clip / "spike"
    spikes.mkdir(parents=True)
    # scene(plane) -> linear light (side, side, 3). The scenes of scripts/demo.py depend on the
    # number of the clip.
    number_of_planes = size.frames * PLANES
    scene = size.scene(rng, number_of_planes, index)
    # The sensor sees the grey scene at half resolution. It keeps its charge from frame to frame.
    half = size.side // 2
    sensor = simulate.IntegrateAndFire(half, half, rng=rng, **SENSOR)

    for frame in range(size.frames):
        stem = f"{frame:06d}"
        first_plane = frame * PLANES
        planes = [scene(first_plane + plane) for plane in range(PLANES)]

        images = {}  # path below the clip, without suffix -> linear light
        for k, plane in enumerate(instant_planes(instants)):
            images[f"instants/{stem}_{k}"] = planes[plane]
        images[f"sharp/{stem}"] = planes[GT_PLANE]
        images[f"blur/{stem}"] = np.mean(planes, axis=0)
        for name, light in images.items():
            picture = to_uint8(to_display(light))
            imwrite_rgb(root / RGB / clip / f"{name}.png", picture)

        # What the sensor sees: means over 2 x 2 pixels, made one plane at a time.
        grey = (bin_pixels(to_grey(plane), factor=2) for plane in planes)
        geometry = SpikeGeometry(half, half)
        write_spikes(spikes / f"{stem}.dat", sensor.run(grey), geometry)


def write_info(root: Path, size: Size, seed: int, instants: int) -> None:
    """Write dataset.json: how to read the spikes, and how the set was made.

    The clips must be written before, because the file holds their digest. docs/data_format.md
    describes the keys of the first half.
    """
    half = size.side // 2
    about = {
        # How to read the spikes.
        "format": 1,
        "h": half,
        "w": half,
        "flip": True,  # the rows of a plane are stored from bottom to top
        "planes": PLANES,
        "rate": SENSOR["rate"],
        "light": "linear",
        "gt_plane": GT_PLANE,
        "gamma": 2.2,  # of the pictures
        # How the set was made, for `check_made`.
        "seed": seed,
        "version": size.version,
        "files": digest_of(root),
        "made_by": ME,
    }
    if instants:
        about["instants"] = instant_planes(instants)
    # Sets of the sample are older than this key. Without it, they stay as they are.
    if size.name != "sample":
        about["size"] = size.name
    (root / INFO).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def digest_of(root: Path) -> str:
    """Return the SHA-256 of the names and contents of all files below `root`.

    dataset.json is left out, because it holds this digest. Links and empty folders count by their
    names. So the digest changes if any file is changed, removed or added. Its form must stay,
    because it is compared with the digest in the dataset.json of earlier sets.
    """
    table = ""
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        is_empty_folder = path.is_dir() and not any(path.iterdir())
        if path.is_symlink() or is_empty_folder:
            table += f"{name}/\n"
        elif not path.is_dir() and path != root / INFO:
            table += f"{name} {sha256_of(path)}\n"
    return hashlib.sha256(table.encode()).hexdigest()


def check_made(root: Path, size: Size, seed: int, instants: int = 0) -> bool:
    """Return whether `root` is the data set of `seed` and `size`, with the instants.

    Returns False if an unchanged set may be replaced: another version made it, or it has other
    instants. Raises DataError if it must not be replaced: the folder holds other data, or a set of
    which files are changed, missing or new. This check keeps a user's files, so it must come before
    anything is removed.
    """
    about = {}
    # Without a dataset.json, or with a damaged file, the folder is not our set.
    with suppress(OSError, ValueError):
        about = json.loads((root / INFO).read_text(encoding="utf-8"))
    is_ours = False
    if isinstance(about, dict):
        has_keys = all(key in about for key in ("seed", "version", "files"))
        is_ours = about.get("made_by") == ME and has_keys
    if not is_ours:
        what = "the folder holds something other than the sample set"
        expected = "no such folder"
    elif digest_of(root) != about["files"]:
        what = "the sample set is not as it was made: files are changed, missing or new"
        expected = "the files that were made"
    elif about["seed"] != seed or about.get("size", "sample") != size.name:
        what = (
            f"the sample set was made with seed {about['seed']} and size "
            f"{about.get('size', 'sample')}"
        )
        expected = f"seed {seed} and size {size.name}"
    else:
        is_of_version = about["version"] == size.version
        has_instants = not instants or about.get("instants") == instant_planes(instants)
        return is_of_version and has_instants
    raise DataError(
        what=what,
        where=str(root),
        expected=expected,
        do=f"move {root} away and start again, or choose another folder with --root (and "
        "change the dataroots)",
    )


# ---- The command ------------------------------------------------------------------------------


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    """Make the sample set. Returns the exit code 0. `with_exit_code` handles errors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("trainsets/sample"),
        help="folder of the set (default: %(default)s)",
    )
    parser.add_argument("--seed", type=seed, default=0)
    parser.add_argument(
        "--instants",
        type=int,
        default=0,
        metavar="K",
        help="also write K sharp pictures of each exposure; K is odd",
    )
    command = parser.parse_args(arguments)
    root = command.root
    instants = command.instants
    is_odd = instants % 2 == 1
    if instants != 0 and not (0 < instants <= PLANES and is_odd):
        raise OptionError(
            what=f"--instants is {instants}",
            where="--instants",
            expected=f"0, or an odd number up to {PLANES}: the middle one is the sharp frame",
            do="choose another number",
        )
    if make_sample(root, SAMPLE, command.seed, instants):
        train, test = SAMPLE.clips.values()
        print(f"made {root}: {train} training and {test} test clips of {SAMPLE.frames} frames")
    else:
        print(f"{root} is complete: nothing to do")
    return 0


if __name__ == "__main__":
    cv2.setNumThreads(1)  # the images are too small for several threads to be faster
    sys.exit(main())
