#!/usr/bin/env python3
"""Make a small RGB + spike data set in the GoPro layout, for trying the project without a download.

    python scripts/make_sample_data.py
    python scripts/make_sample_data.py --root trainsets/other --seed 1 --instants 5

Each clip shows moving textured layers with occlusion under a shaking camera. The scene is rendered
once per spike plane, in linear light: the mean over an exposure is the blurry frame, its middle
plane the sharp one, and the grey image at half resolution is the input of an integrate-and-fire
sensor. The result depends on the seed only.
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

from data.making.light_in_motion import smooth_walk
from data.spike import simulate
from data.spike.formats import SpikeGeometry, write_spikes
from scripts.parts.exit_codes import tracked, with_exit_code
from utils.arguments import seed
from utils.errors import DataError, OptionError
from utils.files import sha256_of
from utils.image import imwrite_rgb
from utils.random_streams import published_stream

SIZE = 128  # RGB pixels
PLANES = 88  # spike planes in one exposure, as in GoPro clips of 11 frames
MARGIN = 96  # pixels of texture around the frame, for the motion of the camera
GT_PLANE = PLANES // 2  # the plane of the sharp frame
RGB, SPIKES = "GOPRO_Large", "GOPRO_Large_spike_seq"
INFO = f"{SPIKES}/dataset.json"
ME = "scripts/make_sample_data.py"
# See IntegrateAndFire; rate: spikes per plane at full light.
SENSOR = {"rate": 0.9, "shot_noise": 0.03, "dark_rate": 0.001, "threshold_mismatch": 0.01}

# Plane -> linear light (side, side, 3) float32; above 1 is saturated
Scene = Callable[[int], np.ndarray]


@dataclass(frozen=True)
class Layer:
    """A textured sheet, (N, N, 4): linear colour times opacity, and opacity; and its path over the
    planes.
    """

    sheet: np.ndarray
    path: np.ndarray  # (planes, 3): shift x, shift y in pixels, angle in radians
    side: int = SIZE  # of the frame, in pixels


def texture(rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, n, 3) display values: coloured 1/f noise with painted edges, smooth at the scale of one
    spike pixel.
    """
    frequency = np.hypot(np.fft.fftfreq(n)[:, None], np.fft.rfftfreq(n)[None])
    frequency[0, 0] = 1.0
    spectrum = frequency ** -rng.uniform(1.2, 1.6)
    spectrum[0, 0] = 0.0
    clouds = np.stack(
        [
            np.fft.irfft2(spectrum * np.fft.rfft2(rng.standard_normal((n, n))), (n, n))
            for _ in range(3)
        ]
    )
    clouds /= clouds.std(axis=(1, 2), keepdims=True)
    grey, *tint = clouds
    tints = np.stack((tint[0], tint[1], -tint[0]), axis=2)
    picture = simulate.to_uint8(rng.uniform(0.35, 0.65, 3) + 0.13 * grey[..., None] + 0.04 * tints)
    for _ in range(int(n * n / 900)):  # discs, bars, polygons and letters
        colour = tuple(
            float(v)
            for v in 255 * np.clip(rng.uniform(0.05, 0.95) + 0.2 * rng.uniform(-1, 1, 3), 0, 1)
        )
        x, y = (int(v) for v in rng.integers(0, n, 2))
        size, kind = int(rng.integers(4, 16)), int(rng.integers(4))
        if kind == 0:
            cv2.circle(picture, (x, y), size // 2 + 2, colour, -1, cv2.LINE_AA)
        elif kind == 1:
            angle = rng.uniform(0, np.pi)
            end = (int(x + 3 * size * np.cos(angle)), int(y + 3 * size * np.sin(angle)))
            cv2.line(picture, (x, y), end, colour, int(rng.integers(2, 6)), cv2.LINE_AA)
        elif kind == 2:
            corners = np.array([x, y]) + rng.uniform(-size, size, (int(rng.integers(3, 6)), 2))
            cv2.fillPoly(picture, [corners.astype(np.int32)], colour, cv2.LINE_AA)
        else:
            letter = "ABCDEFGHKLMNPRSTVXYZ2345689"[int(rng.integers(27))]
            cv2.putText(
                picture, letter, (x, y), cv2.FONT_HERSHEY_SIMPLEX, size / 14, colour, 2, cv2.LINE_AA
            )
    return np.clip(cv2.GaussianBlur(picture.astype(np.float32) / 255, (0, 0), 0.9), 0.04, 0.98)


def make_layers(rng: np.random.Generator, planes: int, side: int = SIZE) -> list[Layer]:
    """A background and three objects; nearer layers shift more with the camera, and objects also
    move by themselves.
    """
    n, walk = (
        side + 2 * MARGIN,
        partial(smooth_walk, rng, planes, periods=(3.0 * PLANES, 9.0 * PLANES)),
    )
    shake, turn = np.stack([walk(22.0), walk(16.0)], axis=1), walk(0.05)
    layers = []
    for depth in range(4):
        own = (
            rng.uniform(-1, 1, 2)
            * (0.0 if depth == 0 else 3.5 / PLANES)
            * (np.arange(planes) - planes / 2)[:, None]
        )
        opacity = np.ones((n, n, 1), np.float32)
        if depth > 0:  # one rounded object near the middle of the sheet
            angles, radii = np.sort(rng.uniform(0, 2 * np.pi, 9)), rng.uniform(14, 34, 9)
            centre = n / 2 + rng.uniform(-36, 36, 2)
            corners = (
                centre + np.stack((radii * np.cos(angles), radii * np.sin(angles)), axis=1)
            ).astype(np.int32)
            opacity = cv2.GaussianBlur(
                cv2.fillPoly(0 * opacity, [corners], 1.0, cv2.LINE_AA), (0, 0), 0.9
            )[..., None]
        sheet = np.concatenate((simulate.to_linear(texture(rng, n)) * opacity, opacity), axis=2)
        layers.append(
            Layer(sheet, np.column_stack((shake * (1.0 + 0.35 * depth) + own, turn)), side)
        )
    return layers


def render(layers: list[Layer], plane: int) -> np.ndarray:
    """Linear light (side, side, 3) float32 at `plane`."""
    side = layers[0].side
    picture, centre = np.zeros((side, side, 3), np.float32), side / 2
    for layer in layers:
        x, y, angle = layer.path[plane]
        cos, sin, middle = np.cos(angle), np.sin(angle), layer.sheet.shape[0] / 2
        # Camera pixel -> sheet pixel: rotate about the centre, then shift.
        inverse = np.array([
            [cos, -sin, middle + x - centre * cos + centre * sin],
            [sin, cos, middle + y - centre * sin - centre * cos],
        ])  # fmt: skip
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        seen = cv2.warpAffine(
            layer.sheet, inverse, (side, side), flags=flags, borderMode=cv2.BORDER_REFLECT
        )
        picture = picture * (1.0 - seen[..., 3:]) + seen[..., :3]
    return np.clip(picture, 0.0, 1.0)


def instant_planes(count: int) -> list[int]:
    """Planes of `count` sharp instants, evenly spread over the exposure; that of the sharp frame is
    the middle one.
    """
    return [round(GT_PLANE + (k - count // 2) * PLANES / count) for k in range(count)]


@dataclass(frozen=True)
class Size:
    """How much is made, of which scenes. name: of the set, for its clips and its dataset.json.

    clips: number in each split. scene: (generator, planes, number of the clip in its split) ->
    Scene. version: to be raised when the same seed gives other files than before. side: of a frame.
    """

    name: str
    clips: Mapping[str, int]
    frames: int
    scene: Callable[[np.random.Generator, int, int], Scene]
    version: int
    side: int = SIZE


SAMPLE = Size(
    "sample",
    {"train": 8, "test": 2},
    12,
    lambda rng, planes, _: partial(render, make_layers(rng, planes)),
    version=2,
)


def make_sample(root: Path, size: Size = SAMPLE, seed: int = 0, instants: int = 0) -> bool:
    """Write the data set to `root`, complete or not at all; False if it is there.

    An older, unchanged one is replaced.

    instants: of each exposure, written as sharp pictures NNNNNN_K.png; 0 or odd. Raises DataError
    where `root` holds something else, see `check_made`.
    """
    root = root.resolve()  # a link to another disk stays
    if root.is_file() or (root.is_dir() and any(root.iterdir())):
        if check_made(root, size, seed, instants):
            return False
        print(
            f"{root} was made by another version of this script, or without these instants: "
            "making it again"
        )
    half, sharp = size.side // 2, instant_planes(instants)
    root.parent.mkdir(parents=True, exist_ok=True)
    # Afterwards it holds an older set that was replaced, or a half one.
    with tempfile.TemporaryDirectory(
        prefix=f".{root.name}.", dir=root.parent, ignore_cleanup_errors=True
    ) as temporary:
        new, splits = Path(temporary, "new"), enumerate(size.clips.items())
        jobs = [
            (number, split, index) for number, (split, count) in splits for index in range(count)
        ]
        for number, split, index in tracked(jobs, len(jobs), "making", "clips"):
            rng, clip = (
                published_stream(seed, number, index),
                f"{split}/{size.name.upper()}{index:02d}_{split}",
            )
            scene, spikes = (
                size.scene(rng, size.frames * PLANES, index),
                new / SPIKES / clip / "spike",
            )
            sensor = simulate.IntegrateAndFire(half, half, rng=rng, **SENSOR)
            spikes.mkdir(parents=True)
            for frame in range(size.frames):
                stem, planes = (
                    f"{frame:06d}",
                    [scene(frame * PLANES + plane) for plane in range(PLANES)],
                )
                images = {f"instants/{stem}_{k}": planes[plane] for k, plane in enumerate(sharp)}
                images |= {
                    f"sharp/{stem}": planes[GT_PLANE],
                    f"blur/{stem}": np.mean(planes, axis=0),
                }
                for file, image in images.items():
                    imwrite_rgb(
                        new / RGB / clip / f"{file}.png",
                        simulate.to_uint8(simulate.to_display(image)),
                    )
                grey = (simulate.bin_pixels(simulate.to_grey(plane), 2) for plane in planes)
                write_spikes(spikes / f"{stem}.dat", sensor.run(grey), SpikeGeometry(half, half))
        about = {
            "format": 1, "h": half, "w": half, "flip": True, "planes": PLANES,
            "rate": SENSOR["rate"], "light": "linear", "gt_plane": GT_PLANE, "gamma": 2.2,
            "seed": seed,
            "version": size.version, "files": digest_of(new), "made_by": ME,
            **({"instants": sharp} if instants else {}),
            **({"size": size.name} if size.name != "sample" else {}),
        }  # fmt: skip
        (new / INFO).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        if root.exists() and any(root.iterdir()):
            check_made(root, size, seed)
            # Of an older version, or without the instants, and unchanged since
            root.rename(Path(temporary, "old"))
        new.rename(root)
    return True


def digest_of(root: Path) -> str:
    """SHA-256 of the names and contents of all files below `root` but dataset.json, and of links
    and empty folders.
    """
    table = ""
    for path in sorted(root.rglob("*")):
        if path.is_symlink() or (path.is_dir() and not any(path.iterdir())):
            table += f"{path.relative_to(root).as_posix()}/\n"
        elif not path.is_dir() and path != root / INFO:
            table += f"{path.relative_to(root).as_posix()} {sha256_of(path)}\n"
    return hashlib.sha256(table.encode()).hexdigest()


def check_made(root: Path, size: Size, seed: int, instants: int = 0) -> bool:
    """Whether `root` is the data set of `seed` and `size`; False if made by another version, or
    without instants.

    Raises DataError for anything else: other data, or a sample set with changed, missing or added
    files.
    """
    about = {}
    with suppress(OSError, ValueError):
        about = json.loads((root / INFO).read_text(encoding="utf-8"))
    what, expected = "", ""
    if (
        not isinstance(about, dict)
        or about.get("made_by") != ME
        or not {"seed", "version", "files"} <= about.keys()
    ):
        what, expected = "the folder holds something other than the sample set", "no such folder"
    elif digest_of(root) != about["files"]:
        what = "the sample set is not as it was made: files are changed, missing or new"
        expected = "the files that were made"
    elif (about["seed"], about.get("size", "sample")) != (seed, size.name):
        what = (
            f"the sample set was made with seed {about['seed']} and size "
            f"{about.get('size', 'sample')}"
        )
        expected = f"seed {seed} and size {size.name}"
    if what:
        do = (
            f"move {root} away and start again, or choose another folder with --root (and "
            "change the dataroots)"
        )
        raise DataError(what, str(root), expected, do)
    return about["version"] == size.version and (
        not instants or about.get("instants") == instant_planes(instants)
    )


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", type=Path, default=Path("trainsets/sample"), help="folder to make (%(default)s)"
    )
    parser.add_argument("--seed", type=seed, default=0)
    parser.add_argument(
        "--instants",
        type=int,
        default=0,
        metavar="K",
        help="also K instants of each exposure, K odd",
    )
    command = parser.parse_args(arguments)
    root, instants = command.root, command.instants
    if instants and not (0 < instants <= PLANES and instants % 2):
        expected = f"0, or an odd number up to {PLANES}: the middle one is the sharp frame"
        raise OptionError(
            f"--instants is {instants}", "--instants", expected, "choose another number"
        )
    if make_sample(root, SAMPLE, command.seed, instants):
        train, test = SAMPLE.clips.values()
        print(f"made {root}: {train} training and {test} test clips of {SAMPLE.frames} frames")
    else:
        print(f"{root} is complete: nothing to do")
    return 0


if __name__ == "__main__":
    cv2.setNumThreads(1)
    sys.exit(main())
