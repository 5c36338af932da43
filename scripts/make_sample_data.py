#!/usr/bin/env python3
"""Make a small RGB + spike data set in the GoPro layout, for trying the project without a download.

    python scripts/make_sample_data.py
    python scripts/make_sample_data.py --root trainsets/other --seed 1

Each clip shows moving textured layers with occlusion under a shaking camera. The scene is rendered once per spike
plane, in linear light: the mean over an exposure is the blurry frame, its middle plane the sharp one, and the grey
image at half resolution is the input of an integrate-and-fire sensor. The result depends on the seed only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.spike import simulate
from data.spike.formats import write_spikes
from data.spike.stream import SpikeGeometry
from scripts.exit_codes import with_exit_code
from scripts.shown import tracked
from utils.errors import DataError
from utils.image import imwrite_rgb

SIZE = 128  # RGB pixels; spikes have half as many per side
PLANES = 88  # spike planes in one exposure, as in GoPro clips of 11 frames
GT_PLANE = PLANES // 2  # the plane of the sharp frame
FRAMES = 12
CLIPS = {"train": 8, "test": 2}
RATE = 0.9
VERSION = 2  # to be raised when the same seed gives other files than before (2: the sensor's modulo reset)
INFO = "GOPRO_Large_spike_seq/dataset.json"
MARGIN = 96  # pixels of texture around the frame, for the motion of the camera


@dataclass(frozen=True)
class Layer:
    """A textured sheet, (N, N, 4): linear colour times opacity, and opacity; and its path over the planes."""

    sheet: np.ndarray
    path: np.ndarray  # (planes, 3): shift x, shift y in pixels, angle in radians

    def at(self, plane: int) -> np.ndarray:
        """Colour times opacity, and opacity, in the camera frame at `plane`: (SIZE, SIZE, 4) float32."""
        x, y, angle = self.path[plane]
        n, c = self.sheet.shape[0], SIZE / 2
        cos, sin = np.cos(angle), np.sin(angle)
        # Camera pixel -> sheet pixel: rotate about the centre, then shift.
        inverse = np.array(
            [[cos, -sin, n / 2 + x - c * cos + c * sin], [sin, cos, n / 2 + y - c * sin - c * cos]], np.float64
        )
        return cv2.warpAffine(
            self.sheet,
            inverse,
            (SIZE, SIZE),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REFLECT,
        )


def smooth_walk(rng: np.random.Generator, planes: int, amplitude: float, periods: tuple[float, float]) -> np.ndarray:
    """(planes,) sum of four sines with random periods in the range `periods` (in planes); peak near `amplitude`."""
    t = np.arange(planes)
    walk = np.zeros(planes)
    for weight in (0.4, 0.3, 0.2, 0.1):
        period = np.exp(rng.uniform(*np.log(periods)))
        walk += weight * np.sin(2 * np.pi * (t / period + rng.uniform()))
    return amplitude * walk


def texture(rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, n, 3) display values: coloured 1/f noise with painted edges, smooth at the scale of one spike pixel."""
    frequency = np.hypot(np.fft.fftfreq(n)[:, None], np.fft.rfftfreq(n)[None])
    frequency[0, 0] = 1.0
    spectrum = frequency ** -rng.uniform(1.2, 1.6)
    spectrum[0, 0] = 0.0
    clouds = np.stack([np.fft.irfft2(spectrum * np.fft.rfft2(rng.standard_normal((n, n))), (n, n)) for _ in range(3)])
    clouds /= clouds.std(axis=(1, 2), keepdims=True)
    grey, *tint = clouds
    base = rng.uniform(0.35, 0.65, 3)
    picture = base + 0.13 * grey[..., None] + 0.04 * np.stack((tint[0], tint[1], -tint[0]), axis=2)
    picture = simulate.to_uint8(picture)
    paint(rng, picture)
    return np.clip(cv2.GaussianBlur(picture.astype(np.float32) / 255, (0, 0), 0.9), 0.04, 0.98)


def paint(rng: np.random.Generator, picture: np.ndarray) -> None:
    """Draw bars, discs, polygons and letters on the uint8 display picture (n, n, 3), in place."""
    n = picture.shape[0]
    for _ in range(int(n * n / 900)):
        colour = tuple(float(v) for v in 255 * np.clip(rng.uniform(0.05, 0.95) + 0.2 * rng.uniform(-1, 1, 3), 0, 1))
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
            cv2.putText(picture, letter, (x, y), cv2.FONT_HERSHEY_SIMPLEX, size / 14, colour, 2, cv2.LINE_AA)


def blob(rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, n, 1) opacity of one rounded object near the middle of the sheet."""
    angles = np.sort(rng.uniform(0, 2 * np.pi, 9))
    radii = rng.uniform(14, 34, 9)
    centre = n / 2 + rng.uniform(-36, 36, 2)
    corners = centre + np.stack((radii * np.cos(angles), radii * np.sin(angles)), axis=1)
    opacity = np.zeros((n, n), np.float32)
    cv2.fillPoly(opacity, [corners.astype(np.int32)], 1.0, cv2.LINE_AA)
    return cv2.GaussianBlur(opacity, (0, 0), 0.9)[..., None]


def make_layers(rng: np.random.Generator, planes: int) -> list[Layer]:
    """A background and three objects; nearer layers shift more with the camera, and objects also move by themselves."""
    n = SIZE + 2 * MARGIN
    periods = (3.0 * PLANES, 9.0 * PLANES)
    shake = np.stack([smooth_walk(rng, planes, 22.0, periods), smooth_walk(rng, planes, 16.0, periods)], axis=1)
    turn = smooth_walk(rng, planes, 0.05, periods)
    layers = []
    for depth in range(4):
        own = rng.uniform(-1, 1, 2) * (0.0 if depth == 0 else 3.5 / PLANES) * (np.arange(planes) - planes / 2)[:, None]
        shift = shake * (1.0 + 0.35 * depth) + own
        opacity = np.ones((n, n, 1), np.float32) if depth == 0 else blob(rng, n)
        colour = simulate.to_linear(texture(rng, n))
        sheet = np.concatenate((colour * opacity, opacity), axis=2)
        layers.append(Layer(sheet, np.column_stack((shift, turn))))
    return layers


def render(layers: list[Layer], plane: int) -> np.ndarray:
    """Linear light (SIZE, SIZE, 3) float32 at `plane`."""
    picture = np.zeros((SIZE, SIZE, 3), np.float32)
    for layer in layers:
        seen = layer.at(plane)
        picture = picture * (1.0 - seen[..., 3:]) + seen[..., :3]
    return np.clip(picture, 0.0, 1.0)


def make_clip(root: Path, split: str, name: str, rng: np.random.Generator, frames: int) -> None:
    """Write one clip: {blur,sharp}/NNNNNN.png and spike/NNNNNN.dat, one of each per frame."""
    half = SIZE // 2
    layers = make_layers(rng, frames * PLANES)
    sensor = simulate.IntegrateAndFire(
        half, half, rate=RATE, rng=rng, shot_noise=0.03, dark_rate=0.001, threshold_mismatch=0.01
    )
    geometry = SpikeGeometry(half, half)
    clip = root / "GOPRO_Large" / split / name
    spikes = root / "GOPRO_Large_spike_seq" / split / name / "spike"
    spikes.mkdir(parents=True)
    for frame in range(frames):
        planes = [render(layers, frame * PLANES + plane) for plane in range(PLANES)]
        for kind, light in (("sharp", planes[GT_PLANE]), ("blur", np.mean(planes, axis=0))):
            imwrite_rgb(clip / kind / f"{frame:06d}.png", simulate.to_uint8(simulate.to_display(light)))
        grey = (simulate.bin_pixels(simulate.to_grey(plane), 2) for plane in planes)
        write_spikes(spikes / f"{frame:06d}.dat", sensor.run(grey), geometry)


def make_sample(root: Path, seed: int = 0, clips: dict[str, int] | None = None, frames: int | None = None) -> None:
    """Write the data set to `root`, complete or not at all. An older, unchanged one there is replaced."""
    clips, frames = clips or CLIPS, frames or FRAMES
    root.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent))
    try:
        jobs = [(number, split, index) for number, (split, count) in enumerate(clips.items()) for index in range(count)]
        for number, split, index in tracked(jobs, len(jobs), "making", "clips"):
            rng = np.random.default_rng([seed, number, index])
            make_clip(temporary, split, f"SAMPLE{index:02d}_{split}", rng, frames)
        about = {
            "format": 1, "h": SIZE // 2, "w": SIZE // 2, "flip": True, "planes": PLANES, "rate": RATE,
            "light": "linear", "gt_plane": GT_PLANE, "gamma": 2.2, "seed": seed, "version": VERSION,
            "files": sha256_of(temporary), "made_by": "scripts/make_sample_data.py",
        }  # fmt: skip
        (temporary / INFO).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        temporary.chmod(0o755)
        if root.exists() and list(root.iterdir()):
            check_made(root, seed)
            shutil.rmtree(root)  # of an older version, and unchanged since
        temporary.rename(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def sha256_of(root: Path) -> str:
    """Digest of the names and contents of all files below `root` but dataset.json."""
    table = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if not p.is_dir() and p != root / INFO):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        table.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return table.hexdigest()


def check_made(root: Path, seed: int) -> bool:
    """Whether `root` is the data set of `seed`; False if another version of this script made it.

    Raises DataError for anything else: other data, or a sample set with changed, missing or added files.
    """
    do = f"move {root} away and start again, or choose another folder with --root (and change the dataroots)"
    try:
        about = json.loads((root / INFO).read_text(encoding="utf-8"))
        is_sample = about["made_by"] == "scripts/make_sample_data.py"
        made_seed, version, files = about["seed"], about["version"], about["files"]
    except (OSError, ValueError, KeyError, TypeError):
        is_sample = False
    if not is_sample:
        raise DataError("the folder holds something other than the sample set", str(root), "no such folder", do)
    if sha256_of(root) != files:
        raise DataError(
            "the sample set is not as it was made: files are changed, missing or new",
            str(root),
            "the files that were made",
            do,
        )
    if made_seed != seed:
        raise DataError(f"the sample set was made with seed {made_seed}", str(root), f"seed {seed}", do)
    return version == VERSION


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("trainsets/sample"), help="folder to make")
    parser.add_argument("--seed", type=int, default=0)
    command = parser.parse_args(arguments)
    if command.root.is_file() or (command.root.is_dir() and list(command.root.iterdir())):
        if check_made(command.root, command.seed):
            print(f"{command.root} is complete: nothing to do")
            return 0
        print(f"{command.root} was made by another version of this script: making it again")
    make_sample(command.root, command.seed)
    print(f"made {command.root}: {CLIPS['train']} training and {CLIPS['test']} test clips of {FRAMES} frames")
    return 0


if __name__ == "__main__":
    cv2.setNumThreads(1)
    sys.exit(main())
