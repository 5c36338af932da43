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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

# Python finds the packages of the repository, e.g. `utils`, by this path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.clips.threads import map_in_threads, usable_cores
from data.spike import simulate
from data.spike.formats import write_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.pictures import bin_pixels, to_display, to_grey, to_uint8
from scripts.parts.exit_codes import with_exit_code, with_progress
from scripts.parts.make_sample_data.sample_layers import PLANES, SIZE, make_layers, render
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
# The scene is in scripts/parts/make_sample_data/sample_layers.py.
#
# What must stay: the same seed gives the same files bit for bit, because tests and published
# results use the files. So every constant of the scene must stay, and so must the order in which
# random numbers are drawn. test_the_same_seed_gives_the_same_bytes_and_another_seed_others makes a
# set twice, so it does not notice a changed constant. A set that somebody has changed is never
# replaced (test_a_changed_set_is_refused).
# Free to change: printed texts. If the files must change, add 1 to `SetPlan.version`: then
# `make_sample` replaces the older sets.

# ---- Folders and sensor -----------------------------------------------------------------------

GT_PLANE = PLANES // 2  # the plane of the sharp frame
RGB = "GOPRO_Large"  # folder of the frames
SPIKES = "GOPRO_Large_spike_seq"  # folder of the spikes
INFO = f"{SPIKES}/dataset.json"  # says how to read the spikes, and how the set was made
MADE_BY = "scripts/make_sample_data.py"  # in dataset.json: which program made the set
# The simulated sensor, as arguments of IntegrateAndFire:
#   rate                spikes per plane at full light
#   shot_noise          noise of the charge that a plane adds at full light: its standard deviation,
#                       as a fraction of the threshold
#   dark_rate           spikes per plane without light
#   threshold_mismatch  standard deviation of the pixels' thresholds, relative to the threshold
SENSOR = {"rate": 0.9, "shot_noise": 0.03, "dark_rate": 0.001, "threshold_mismatch": 0.01}

# A scene: number of a plane -> its linear light (side, side, 3) float32. Values above 1 are
# saturated.
Scene = Callable[[int], np.ndarray]


# ---- The data set -----------------------------------------------------------------------------
#
# What must stay: a set is written whole or not at all, and a user's files are never removed
# (test_a_changed_set_is_refused).


@dataclass(frozen=True)
class SetPlan:
    """Says which data set is made: the number and length of its clips, and their scenes.

    SAMPLE below is the sample set. scripts/demo.py has a `SetPlan` of its own.
    """

    name: str  # e.g. "demo": the names of the clips begin with it, in capitals
    clips: Mapping[str, int]  # split -> number of clips
    frames: int  # number of frames of a clip
    # (generator, number of planes, number of the clip in its split) -> scene. Only the scenes of
    # scripts/demo.py depend on the number of the clip.
    scene: Callable[[np.random.Generator, int, int], Scene]
    version: int  # add 1 when the same seed gives other files than before
    side: int = SIZE  # side of a frame, in pixels


def _sample_scene(rng: np.random.Generator, planes: int, _index: int) -> Scene:
    """Return the scene of a clip of the sample set: random layers in front of one another."""
    layers = make_layers(rng, planes)
    return partial(render, layers)  # the function plane -> render(layers, plane)


SAMPLE = SetPlan(
    name="sample",
    clips={"train": 8, "test": 2},
    frames=12,
    scene=_sample_scene,
    version=2,
)


def make_sample(root: Path, plan: SetPlan = SAMPLE, seed: int = 0, instants: int = 0) -> bool:
    """Write the data set to `root`, complete or not at all.

    What happens depends on what `root` holds:

        nothing                                             the set is made, returns True
        the set                                             nothing, returns False
        a set as this program wrote it (no file changed),
        but of another version or with other instants       it is replaced, returns True
        a set with changed files, or anything else          DataError

    seed: start of all random numbers. The same seed gives the same files.
    instants: number of sharp pictures NNNNNN_K.png of each exposure. It is 0 or odd, because the
    middle picture is the sharp frame.
    """
    root = root.resolve()  # if root is a link to another disk, the link stays
    if root.is_file() or _has_content(root):
        # Raise DataError if the folder may not be replaced, because it holds changed files, or no
        # set of this program.
        info = info_of_unchanged_set(root, plan, seed)
        # A set with the wanted version and instants need not be replaced.
        if is_up_to_date(info, plan, instants):
            return False
        print(
            f"{root} was made by another version of this script, or without these instants: "
            "making it again"
        )
    root.parent.mkdir(parents=True, exist_ok=True)
    # The new set is made in a temporary folder, and moved to `root` when it is complete. An older
    # set is moved into the temporary folder, which is removed at the end.
    with tempfile.TemporaryDirectory(
        prefix=f".{root.name}.", dir=root.parent, ignore_cleanup_errors=True
    ) as temporary:
        new_set = Path(temporary, "new")
        write_clips(new_set, plan, seed, instants)
        write_info(new_set, plan, seed, instants)

        if _has_content(root):
            # Check the older set once more, because somebody may have changed it meanwhile.
            info_of_unchanged_set(root, plan, seed)
            root.rename(Path(temporary, "old"))
        new_set.rename(root)
    return True


def write_clips(root: Path, plan: SetPlan, seed: int, instants: int) -> None:
    """Write all clips of the set, with a progress line.

    seed, instants: as in `make_sample`.
    """
    clips = []  # (number of the split, name of the split, number of the clip in the split)
    for split_number, (split, count) in enumerate(plan.clips.items()):
        for index in range(count):
            clips.append((split_number, split, index))

    def make(clip: tuple[int, str, int]) -> None:
        """Write one clip. Runs in a thread."""
        split_number, split, index = clip
        # Each clip has a generator of its own, because threads make the clips in any order. Another
        # generator would change the files.
        rng = published_stream(seed, split_number, index)
        write_clip(root, plan, split=split, index=index, rng=rng, instants=instants)

    # `map_in_threads` returns an iterator: the clips are made while the loop takes its items. Each
    # thread takes one clip at a time (at_once). `make` returns nothing, so the loop has no work.
    made = map_in_threads(make, clips, at_once=1, threads=usable_cores())
    for _ in with_progress(made, len(clips), "making", "clips"):
        pass


def _has_content(folder: Path) -> bool:
    """Return whether `folder` is a folder that is not empty."""
    return folder.is_dir() and any(folder.iterdir())


def write_clip(
    root: Path, plan: SetPlan, split: str, index: int, rng: np.random.Generator, instants: int
) -> None:
    """Write the frames and the spikes of one clip.

    The scene draws from `rng` first, then the sensor. Another order would change the files.

    split: "train" or "test".
    index: number of the clip in its split.
    instants: number of sharp pictures of an exposure.
    """
    clip = f"{split}/{plan.name.upper()}{index:02d}_{split}"  # e.g. test/SAMPLE00_test
    spikes = root / SPIKES / clip / "spike"
    spikes.mkdir(parents=True)
    number_of_planes = plan.frames * PLANES
    scene = plan.scene(rng, number_of_planes, index)
    # The sensor sees the grey scene at half resolution. All frames of the clip use this one sensor,
    # because a pixel keeps its charge from the last plane of a frame to the next frame.
    half = plan.side // 2
    sensor = simulate.IntegrateAndFire(half, half, rng=rng, **SENSOR)

    for frame in range(plan.frames):
        stem = f"{frame:06d}"
        first_plane = frame * PLANES
        # The linear light (side, side, 3) of each plane of the exposure.
        lights = [scene(first_plane + plane) for plane in range(PLANES)]

        # Path below the folder of the clip, without suffix -> linear light. Planes are counted from
        # the start of the exposure: GT_PLANE is its middle plane.
        images = {}
        for k, plane in enumerate(instant_planes(instants)):
            images[f"instants/{stem}_{k}"] = lights[plane]
        images[f"sharp/{stem}"] = lights[GT_PLANE]
        images[f"blur/{stem}"] = np.mean(lights, axis=0)
        for name, light in images.items():
            picture = to_uint8(to_display(light))
            imwrite_rgb(root / RGB / clip / f"{name}.png", picture)

        # The sensor sees means over 2 x 2 pixels. The means are made one plane at a time.
        grey = (bin_pixels(to_grey(light), factor=2) for light in lights)
        geometry = SpikeGeometry(half, half)
        write_spikes(spikes / f"{stem}.dat", sensor.run(grey), geometry)


def instant_planes(count: int) -> list[int]:
    """Return the planes of `count` sharp instants, evenly spread over the exposure.

    E.g. 5 instants -> planes 9, 26, 44, 62, 79.

    count: an odd number, or 0. The middle instant is the plane of the sharp frame.
    """
    planes = []
    for k in range(count):
        from_middle = k - count // 2  # e.g. of 5 instants: -2, -1, 0, 1, 2
        distance = PLANES / count  # planes between two instants, e.g. 88 / 5 = 17.6
        # E.g. the first of 5 instants: 44 - 2 * 17.6 = 8.8, rounded to 9.
        planes.append(round(GT_PLANE + from_middle * distance))
    return planes


def write_info(root: Path, plan: SetPlan, seed: int, instants: int) -> None:
    """Write dataset.json: how to read the spikes, and how the set was made.

    Write the clips before this file, because the file holds their digest. docs/data_reference.md
    describes the keys of the first half.

    seed, instants: as in `make_sample`.

    Test: test_the_set_describes_its_spikes
    """
    half = plan.side // 2
    info = {
        # How to read the spikes.
        "format": 1,
        "h": half,
        "w": half,
        "flip": True,  # the rows of a plane are stored from bottom to top
        "planes": PLANES,
        "rate": SENSOR["rate"],
        "light": "linear",
        "gt_plane": GT_PLANE,
        "gamma": 2.2,  # the gamma of the pictures
        # How the set was made, for `info_of_unchanged_set` and `is_up_to_date`.
        "seed": seed,
        "version": plan.version,
        "files": digest_of(root),
        "made_by": MADE_BY,
    }
    if instants:
        info["instants"] = instant_planes(instants)
    # The key "size" has the name of the plan. Old sets of the plan "sample" have no such key. So
    # new sets of this plan have none either, and the same seed gives the same file as before.
    if plan.name != "sample":
        info["size"] = plan.name
    (root / INFO).write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")


def digest_of(root: Path) -> str:
    """Return the SHA-256 of the names and contents of all files below `root`.

    The digest changes if any file is changed, removed or added. Of links and empty folders, only
    the names count. dataset.json is left out, because it holds this digest.

    What must stay: how the digest is computed. `info_of_unchanged_set` compares the digest with the
    digest in the dataset.json of an earlier set.
    """
    # A line for each file and its SHA-256, e.g. "GOPRO_Large/train/.../000000.png 5f0a...", and a
    # line for each link or empty folder, e.g. "empty/".
    table = ""
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        is_empty_folder = path.is_dir() and not any(path.iterdir())
        if path.is_symlink() or is_empty_folder:
            table += f"{name}/\n"
        elif not path.is_dir() and path != root / INFO:
            table += f"{name} {sha256_of(path)}\n"
    return hashlib.sha256(table.encode()).hexdigest()


def info_of_unchanged_set(root: Path, plan: SetPlan, seed: int) -> dict[str, Any]:
    """Check that the set in `root` may be replaced. Returns its dataset.json.

    Raises DataError in these cases, in which the folder must not be replaced:

        it holds something other than a set
        files of the set are changed, missing or new
        the set was made with another seed or plan

    This check protects a user's files, so it must come before anything is removed.

    Tests: test_a_changed_set_is_refused, test_a_set_of_another_seed_is_refused
    """
    info = _info_of_made_set(root)
    if info is None:
        what = "the folder holds something other than the sample set"
        raise _not_to_be_replaced(root, what, expected="no such folder")
    if digest_of(root) != info["files"]:
        what = "the sample set is not as it was made: files are changed, missing or new"
        raise _not_to_be_replaced(root, what, expected="the files that were made")
    made_seed = info["seed"]
    made_size = info.get("size", "sample")
    if made_seed != seed or made_size != plan.name:
        what = f"the sample set was made with seed {made_seed} and size {made_size}"
        raise _not_to_be_replaced(root, what, expected=f"seed {seed} and size {plan.name}")
    return info


def is_up_to_date(info: dict[str, Any], plan: SetPlan, instants: int) -> bool:
    """Return whether a set is of this version, and has the wanted instants.

    If not, the set is made again.

    info: the dataset.json of an unchanged set of this plan and seed.
    instants: number of sharp pictures of each exposure that are wanted, 0 or odd.

    Test: test_existing_instants_are_not_made_again
    """
    is_of_version = info["version"] == plan.version
    # If no instants are wanted (0), every set has enough, with or without instants.
    has_instants = not instants or info.get("instants") == instant_planes(instants)
    return is_of_version and has_instants


def _info_of_made_set(root: Path) -> dict[str, Any] | None:
    """Return the dataset.json of a set that this program has made, or None for another folder."""
    try:
        info = json.loads((root / INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no dataset.json, or a damaged file
        return None
    if not isinstance(info, dict) or info.get("made_by") != MADE_BY:
        return None
    has_keys = all(key in info for key in ("seed", "version", "files"))
    return info if has_keys else None


def _not_to_be_replaced(root: Path, what: str, expected: str) -> DataError:
    """Return the error for a folder that must not be replaced. what: what the folder holds."""
    return DataError(
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
        train, test = SAMPLE.clips.values()  # numbers of clips, in the order of the dict
        print(f"made {root}: {train} training and {test} test clips of {SAMPLE.frames} frames")
    else:
        print(f"{root} is complete: nothing to do")
    return 0


if __name__ == "__main__":
    cv2.setNumThreads(1)  # the images are too small for several threads to be faster
    sys.exit(main())
