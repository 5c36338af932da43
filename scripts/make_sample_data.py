#!/usr/bin/env python3
"""Make a small RGB + spike data set in the GoPro layout, for trying the project without a download.

    python scripts/make_sample_data.py
    python scripts/make_sample_data.py --root trainsets/other --seed 1 --instants 5

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.parts.exit_codes import tracked, with_exit_code
from scripts.parts.sample_scenes import (
    GT_PLANE,
    PLANES,
    SIZE,
    SPIKES,
    Cameras,
    Recording,
    instant_planes,
    make_layers,
    render,
)
from utils.errors import DataError, OptionError
from utils.random_streams import published_stream

CAMERAS = Cameras()
INFO = f"{SPIKES}/dataset.json"

Scene = Callable[[int], np.ndarray]  # plane -> light (SIZE, SIZE, 3) float32


@dataclass(frozen=True)
class Size:
    """How much is made, of which scenes. name: of the set, for its clips and its dataset.json.

    scene: (generator, planes, number of the clip in its split) -> Scene. version: to be raised when the same seed gives
    other files than before.
    """

    name: str
    clips: Mapping[str, int]
    frames: int
    scene: Callable[[np.random.Generator, int, int], Scene]
    version: int


def sample_scene(rng: np.random.Generator, planes: int, _: int) -> Scene:
    return partial(render, make_layers(rng, planes))


SAMPLE = Size("sample", {"train": 8, "test": 2}, 12, sample_scene, 2)  # 2: the sensor's modulo reset


def make_sample(
    root: Path,
    seed: int = 0,
    clips: dict[str, int] | None = None,
    frames: int | None = None,
    instants: int = 0,
    conditions: dict[str, Cameras] | None = None,
    size: Size = SAMPLE,
) -> None:
    """Write the data set to `root`, complete or not at all. An older, unchanged one there is replaced.

    clips, frames: other numbers than those of the size. instants: see `Recording`; 0 or odd.
    conditions: name -> cameras that record each test clip as <name>/<clip>, the same scene each time; None: it is
    recorded once, as the training clips are.
    """
    clips, frames = clips or size.clips, frames or size.frames
    root.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent))
    new = temporary / "new"
    try:
        jobs = [(number, split, index) for number, (split, count) in enumerate(clips.items()) for index in range(count)]
        for number, split, index in tracked(jobs, len(jobs), "making", "clips"):
            rng, name = published_stream(seed, number, index), f"{size.name.upper()}{index:02d}_{split}"
            scene = size.scene(rng, frames * PLANES, index)
            seen = {f"{condition}/{name}": cameras for condition, cameras in (conditions or {}).items()}
            seen = seen if conditions and split == "test" else {name: CAMERAS}
            recordings = [Recording(new, split, clip, cameras, rng, instants) for clip, cameras in seen.items()]
            for frame in range(frames):
                planes = [scene(frame * PLANES + plane) for plane in range(PLANES)]
                for recording in recordings:
                    recording.add(frame, planes)
        about = {
            "format": 1, "h": SIZE // 2, "w": SIZE // 2, "flip": True, "planes": PLANES, "rate": CAMERAS.rate,
            "light": "linear", "gt_plane": GT_PLANE, "gamma": 2.2, "seed": seed,
            "version": size.version,
            "files": sha256_of(new), "made_by": "scripts/make_sample_data.py",
            **({"instants": instant_planes(instants)} if instants else {}),
            **({"size": size.name} if size.name != "sample" else {}),
        }  # fmt: skip
        (new / INFO).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        if root.exists() and list(root.iterdir()):
            check_made(root, seed, size=size)
            root.rename(temporary / "old")  # of an older version, or without the instants, and unchanged since
        new.rename(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sha256_of(root: Path) -> str:
    """Digest of the names and contents of all files below `root` but dataset.json."""
    table = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if not p.is_dir() and p != root / INFO):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        table.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return table.hexdigest()


def check_made(root: Path, seed: int, instants: int = 0, size: Size = SAMPLE) -> bool:
    """Whether `root` is the data set of `seed` and `size`; False if made by another version, or without instants.

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
        what = "the sample set is not as it was made: files are changed, missing or new"
        raise DataError(what, str(root), "the files that were made", do)
    made_size = about.get("size", "sample")
    if (made_seed, made_size) != (seed, size.name):
        what = f"the sample set was made with seed {made_seed} and size {made_size}"
        raise DataError(what, str(root), f"seed {seed} and size {size.name}", do)
    return version == size.version and (not instants or about.get("instants") == instant_planes(instants))


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("trainsets/sample"), help="folder to make (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--instants", type=int, default=0, metavar="K", help="also write K sharp instants of each exposure (K odd)"
    )
    command = parser.parse_args(arguments)
    root, seed, instants = command.root, command.seed, command.instants
    if instants and not (0 < instants <= PLANES and instants % 2):
        raise OptionError(
            f"--instants is {instants}", "--instants",
            f"0, or an odd number up to {PLANES}: the middle one is the sharp frame", "choose an odd number",
        )  # fmt: skip
    if root.is_file() or (root.is_dir() and list(root.iterdir())):
        if check_made(root, seed, instants, SAMPLE):
            print(f"{root} is complete: nothing to do")
            return 0
        print(f"{root} was made by another version of this script, or without these instants: making it again")
    make_sample(root, seed, instants=instants, size=SAMPLE)
    clips = SAMPLE.clips
    print(f"made {root}: {clips['train']} training and {clips['test']} test clips of {SAMPLE.frames} frames")
    return 0


if __name__ == "__main__":
    cv2.setNumThreads(1)
    sys.exit(main())
