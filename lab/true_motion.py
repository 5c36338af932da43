#!/usr/bin/env python3
"""Measure how much more weights/motion.pth would gain if the motion were known exactly.

    python lab/true_motion.py [--conditions ideal dim] [--out FOLDER]

The clips are the part "photos" of lab/joint_gain.py: photographs that move as layers in front of
one another. Their motion is drawn from a seed. So the scene of a clip can be painted again, and the
scene knows the true motion of each pixel (`data.making.photo_scene.PhotoScene.shifts`). No optical
flow is used. The program restores each frame three times:

    operator    by weights/operator.pth, without any motion
    found       by weights/motion.pth, which begins at the frame of "operator" and improves it in
                learned steps, along the motion that it finds
    true        by weights/motion.pth, too, but along the true motion

The difference between "true" and "found" estimates what a better motion could gain with these
weights. It is no exact limit, for two reasons:

    The weights were trained on motions with errors. Weights that are trained on true motions might
    gain more.

    The true motion does not explain each pixel. A thing that is visible at the sharp instant may be
    covered by another thing at another time. Then the true motion of the first thing leads to a
    pixel of the second thing.

The program writes <out>/true_motion.json and prints a table. Clips that already exist are used
again.

What must stay: `scene_of` must paint the same scene as data/making/prepare.py did when the clip was
made. test_a_seed_gives_its_scene notices if data/making/photo_scene.py gives another scene for the
same seed. Free to change: the motions that are compared, and the table.

Tests: tests/parts/house/test_true_motion.py tests the choice of the frame and the table, and
tests/parts/scripts/test_prepare_gopro_spike.py the true motion of a scene. No test runs `main`.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.clips.readers import DatasetClip
from data.clips.user_frames import FrameSource
from data.making.photo_scene import PhotoScene
from data.motion.exposure import Recording
from data.motion.finder import Finder, finder_of
from data.motion.flow import ERROR_BY_LENGTH, LEAST_ERROR
from data.motion.joint.equations import Solver
from data.motion.shifts import Motion, motion_times
from data.motion.view import View
from lab.joint_gain import PARTS, link_sources_of_part, make_clips_of_condition
from lab.motion_runs.restoring import OPERATOR_METHOD, SHIPPED_METHOD, AllMethods, clip_scores
from lab.motion_runs.table import gains_of, mean_gain
from lab.motion_steps.made_samples import readers_of_set
from lab.motion_steps.network import OPERATOR_WEIGHTS, SHIPPED_WEIGHTS, network_of
from lab.motion_steps.sample import CPU
from lab.quality_suite.sources import photographs
from lab.tools import ROOT, environment
from models.portable import read_saved
from models.saved_network import SavedNetwork
from scripts.make_sample_data import RGB
from utils.random_streams import random_stream
from utils.results import markdown_table, read_json

CONDITIONS = ("ideal", "dim")
# The two motions along which weights/motion.pth restores the frames. The written file has three
# keys: these two, and OPERATOR_METHOD for the frames of weights/operator.pth.
FOUND_MOTION = "found"
TRUE_MOTION = "true"

# OPERATOR_METHOD, FOUND_MOTION or TRUE_MOTION -> clip -> PSNR in dB. E.g.
# {"operator": {"coffee_00": 27.1}, "found": {"coffee_00": 30.2}, "true": {"coffee_00": 30.9}}.
Scores = dict[str, dict[str, float]]


def main(argv: Sequence[str]) -> int:
    """Make the clips, restore them along both motions, write the scores, and print the table.

    Returns the exit code 0. scripts/prepare_gopro_spike.py makes the clips, in its own process. If
    it fails, this program ends, too.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--conditions", nargs="+", choices=CONDITIONS, default=CONDITIONS, help="default both")
    add("--out", type=Path, help="results folder (default experiments/true_motion)")
    args = parser.parse_args(argv)
    out = (args.out or ROOT / "experiments/true_motion").resolve()
    # Use one thread, so that numbers are always added in the same order. Another order rounds
    # differently.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)

    # Make a folder with links to the photographs, from which the clips are made. The photographs
    # are files of installed Python packages. The first argument would be the folder of videos. The
    # part "photos" reads no videos, so `out` stands in for this folder.
    sources = link_sources_of_part(out, out / "sources", "photos")
    scores_of_conditions: dict[str, Scores] = {}
    for condition in args.conditions:
        folder = make_clips_of_condition(out, "photos", condition, sources)
        scores_of_conditions[condition] = scores_of(folder)
        print(f"{condition} is measured", flush=True)
    about = {"measured": environment(), "psnr": scores_of_conditions}
    (out / "true_motion.json").write_text(json.dumps(about, indent=1) + "\n")
    print(table_of(scores_of_conditions))
    return 0


# ---- The true motion ---------------------------------------------------------------------------


class TrueMotion:
    """Gives the true motion of the frames of a clip. It is a `Finder` (data/motion/finder.py).

    scene: the scene of the clip. It knows the shift of each pixel.
    planes: number of planes in a frame interval.
    blurry: the blurry frames of the clip, (H, W, 3) display values in [0, 1], R, G, B.
    """

    def __init__(self, scene: PhotoScene, planes: int, blurry: Sequence[np.ndarray]) -> None:
        self.scene = scene
        self.planes = planes
        self.blurry = blurry

    def __call__(self, recording: Recording, view: View, gain: np.ndarray) -> Motion:
        """Return the true motion within the exposure of a frame.

        `view` and `gain` are not used here, but each finder gets them.
        """
        # The sharp frame is the light of the middle plane of its interval. E.g. with 88 planes, the
        # sharp planes of the frames 0, 1, 2 are 44, 132, 220. `frame_of` gives the number of the
        # frame, and `shifts_at` its true shifts (H, W, 2) at a time.
        sharp_plane = self.frame_of(recording) * self.planes + self.planes // 2
        # Times in planes after the sharp instant, in rising order. A `Motion` must also have the
        # sharp instant itself, time 0.
        instants = {0.0, *motion_times(recording)}  # the times at which a finder gives shifts
        times = np.array(sorted(instants))
        shifts = np.stack([self.shifts_at(sharp_plane, time) for time in times.tolist()])
        # A finder also gives the expected error of each shift. The true shifts have no error, but
        # the weights were not trained on errors of 0. So give each shift the least error that
        # `data.motion.flow.expected_error` can give.
        lengths = np.linalg.norm(shifts, axis=-1)
        errors = LEAST_ERROR + ERROR_BY_LENGTH * lengths
        return Motion(times, shifts, errors.astype(np.float32))

    def frame_of(self, recording: Recording) -> int:
        """Return the number of the frame of a recording.

        `MotionRestorer` does not tell a finder the number of the frame, and does not restore each
        frame of a clip. So the frame is found by its picture: it is the blurry frame with the least
        difference.
        """
        differences = [float(np.abs(recording.blurry - frame).mean()) for frame in self.blurry]
        return int(np.argmin(differences))

    def shifts_at(self, sharp_plane: int, time: float) -> np.ndarray:
        """Return the true shifts (H, W, 2) from the sharp plane to a time.

        The scene has shifts between planes only, so shifts to other times are interpolated. E.g.
        the shifts to the time 2.25 are 3/4 of the shifts to the second plane after the sharp plane,
        plus 1/4 of the shifts to the third plane. No test notices other weights than 3/4 and 1/4.

        time: in planes after the sharp plane.
        """
        # The planes before and after the time. If the time is before the first or after the last
        # plane of the clip, take the two planes at this end. Then `share_of_after` is below 0 or
        # above 1, so the motion continues at the same speed.
        last_plane = self.scene.number_of_planes - 1
        plane_of_time = sharp_plane + time
        before = int(np.clip(np.floor(plane_of_time), 0, last_plane - 1))
        after = before + 1
        share_of_after = np.float32(plane_of_time - before)
        shifts_before = self.scene.shifts(sharp_plane, before)
        shifts_after = self.scene.shifts(sharp_plane, after)
        return (1 - share_of_after) * shifts_before + share_of_after * shifts_after


def scene_of(clip: Path) -> PhotoScene:
    """Return the scene of a clip, painted again from the seed in made.json.

    The arguments of `PhotoScene` and the name of the random stream must be the same as in
    `data.making.prepare.make_clip`, because `make_clip` made the clip. With other arguments, the
    result is a different scene.

    clip: folder of the clip, e.g. .../coffee_01.
    """
    recipe = read_json(clip / "made.json")["recipe"]
    photo_name, _, _ = clip.name.rpartition("_")  # e.g. "coffee_01" is a clip of coffee.png
    # Exactly one photograph has this name.
    [photo] = [file for file in photographs() if file.stem == photo_name]
    return PhotoScene(
        FrameSource(photo).read(0),
        side=recipe["side"],
        intervals=recipe["frames"],
        planes=recipe["planes"],
        crop=recipe["crop"],
        rng=random_stream(f"scene of clip {clip.name}", recipe["seed"]),
    )


# ---- Restoring ---------------------------------------------------------------------------------


def scores_of(folder: Path) -> Scores:
    """Restore the clips of a folder along both motions. Returns the PSNR of each clip."""
    operator = read_saved(OPERATOR_WEIGHTS)
    scores: Scores = {OPERATOR_METHOD: {}, FOUND_MOTION: {}, TRUE_MOTION: {}}
    shipped = network_of(SHIPPED_WEIGHTS)
    # A finder is a function that finds the motion within an exposure (`Finder`).
    find_motion = finder_of(shipped.motion_by, shipped.motion_net, CPU)
    # With the calibration "auto", the calibration of each clip is found from its frames and spikes.
    for reader in readers_of_set(folder, "auto", operator):
        along_found = restore_along(find_motion, reader, operator)
        true_motion = true_motion_of(reader, clip=folder / RGB / "train" / reader.name)
        along_true = restore_along(true_motion, reader, operator)
        # Both calls of `restore_along` also restore the clip by the operator. Their results are
        # equal, so take the first.
        scores[OPERATOR_METHOD][reader.name] = along_found[OPERATOR_METHOD]
        scores[FOUND_MOTION][reader.name] = along_found[SHIPPED_METHOD]
        scores[TRUE_MOTION][reader.name] = along_true[SHIPPED_METHOD]
    return scores


def true_motion_of(reader: DatasetClip, clip: Path) -> TrueMotion:
    """Return the finder that gives the true motion of a clip. clip: folder of the clip."""
    planes = read_json(clip / "made.json")["recipe"]["planes"]
    blurry = []
    for index in range(PARTS["photos"].frames):
        lq = reader.frame(index)["lq"]  # the blurry frame, (3, H, W)
        blurry.append(lq.permute(1, 2, 0).numpy())
    return TrueMotion(scene_of(clip), planes, blurry)


def restore_along(
    find_motion: Finder, reader: DatasetClip, operator: SavedNetwork
) -> dict[str, float]:
    """Restore a clip along the motions of a finder.

    Returns method -> PSNR in dB: OPERATOR_METHOD for weights/operator.pth, and SHIPPED_METHOD for
    weights/motion.pth.
    """
    shipped = network_of(SHIPPED_WEIGHTS)
    solver = Solver(
        groups=shipped.groups,
        linearisations=shipped.linearisations,
        steps=shipped.proposal_steps,
    )
    methods = AllMethods(shipped, trained_runs=[])
    return clip_scores(
        reader, operator=operator, methods=methods, find_motion=find_motion, solver=solver
    )


# ---- The table ---------------------------------------------------------------------------------


def table_of(scores_of_conditions: Mapping[str, Scores]) -> str:
    """Return the table in Markdown: a row for each clip, and a row of means for each condition.

    The cells are gains over the operator in dB. A row is e.g. ideal, coffee_00, +3.10, +3.80.

    scores_of_conditions: condition, e.g. "ideal" -> its scores.
    """
    rows = []
    for condition, scores in scores_of_conditions.items():
        gains_of_found = gains_of(scores, FOUND_MOTION)  # clip -> gain
        gains_of_true = gains_of(scores, TRUE_MOTION)
        for clip, gain in gains_of_found.items():
            rows.append([condition, clip, f"{gain:+.2f}", f"{gains_of_true[clip]:+.2f}"])
        mean_of_found = mean_gain(scores, FOUND_MOTION)
        mean_of_true = mean_gain(scores, TRUE_MOTION)
        rows.append([condition, "mean", f"{mean_of_found:+.2f}", f"{mean_of_true:+.2f}"])
    return markdown_table(rows, ["cameras", "clip", "motion found", "true motion"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
