#!/usr/bin/env python3
"""Train the learned steps of the fusion "motion" with several seeds, and a control without motion.

    python lab/motion_seeds.py --videos VIDEOS [--updates 800] [--seeds 0 1 2]
    python lab/motion_seeds.py --videos VIDEOS --parts few --clips report_rig report_dim

How much do the gains over the operator depend on the seed? How much is left without the motion and
its equations? The head of lab/train_motion.py explains these words:

    operator         the network of weights/operator.pth, which restores a first estimate
    learned steps    improve the first estimate. They have two parts, "good" and "few"
    control          learned steps that see neither the motion nor its equations

The program calls the functions of lab/motion_runs/ in this order:

    train_all    for each run and each part: new steps -> <out>/steps/<run>_<part>.pt
    scores_of    all runs restore the same clips of lab/joint_gain.py -> <out>/seeds_<...>.json
    table_of     the gains over the operator, a row for each set of clips

A run is a kind of steps ("equations" or "plain"), a seed, and a number of updates. One more plain
run has twice as many updates, so that it takes more CPU time than a run with the equations. The
shipped weights restore the same clips. Their scores must equal the scores of lab/joint_gain.py.

Steps and scores that are already in <out> are not made again. Delete <out>/samples and <out>/steps
after a change of the training.

What must stay: a frame is restored as main_test_vrt.py restores it
(test_a_method_scores_as_the_test_program_with_its_weights), and the control does not see the motion
(test_the_control_does_not_see_the_motion). Free to change: the runs, the clips and the table.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.joint_gain import link_sources_of_part, make_clips_of_condition
from lab.motion_runs.restoring import Scores, scores_of
from lab.motion_runs.runs import TrainedRun, runs_of
from lab.motion_runs.table import table_of
from lab.motion_runs.training import SETS_OF_PART, train_all, write_motion_net
from lab.tools import ROOT, environment
from utils.results import read_json

# Name of a set of clips -> (sources, condition). The sources are a value of the flag --part of
# lab/joint_gain.py: two groups of videos, or the photographs. The condition is the pair of
# simulated cameras. Under the conditions "rig" and "dim" all frames have few spikes. Under "ideal"
# and "other" nearly all frames have many spikes.
CLIPS = {
    "report_ideal": ("report", "ideal"),
    "report_other": ("report", "other"),
    "choose_ideal": ("choose", "ideal"),
    "photos_ideal": ("photos", "ideal"),
    "report_rig": ("report", "rig"),
    "report_dim": ("report", "dim"),
}
OF_GOOD_LIGHT = ["report_ideal", "report_other", "choose_ideal", "photos_ideal"]


def main(argv: Sequence[str]) -> int:
    """Train all runs, restore the clips with them, write the scores, and print the table.

    Returns the exit code 0. If a program that makes clips fails, this program ends, too.
    """
    args = read_arguments(argv)
    out = (args.out or ROOT / "experiments/motion_seeds").resolve()
    # One thread, as in lab/train_motion.py, so that sums are always added in the same order.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)

    runs = runs_of(args.seeds, args.updates)
    # `train_all` below fills both dicts: part -> learned steps, and part -> CPU seconds.
    trained_runs = [TrainedRun(run, steps={}, cpu_s={}) for run in runs]
    motion_net_file = write_motion_net(out)
    for part in args.parts:
        train_all(
            out, args.videos, motion_net_file=motion_net_file, part=part, trained_runs=trained_runs
        )

    scores_of_sets: dict[str, Scores] = {}
    for name in args.clips:
        file = out / f"seeds_{name}.json"
        if not file.exists():
            # The test clips are in <out>/test, because sets of training clips have the same names.
            folder = clips_of(out / "test", args.videos, name)
            write_scores(file, name, trained_runs, scores_of(folder, trained_runs))
        scores_of_sets[name] = read_json(file)["psnr"]
        print(f"{name} is measured", flush=True)
    print(table_of(scores_of_sets, runs))
    return 0


def read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read the flags of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--videos", type=Path, required=True, help="folder of the videos of lab/quality.py")
    add("--updates", type=int, default=800, help="updates of each part, default %(default)s")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds, default 0 1 2")
    help_of_parts = (
        "which parts of the steps are trained. A clip is left out if a frame needs a part that is "
        "not trained. Default good"
    )
    add("--parts", nargs="+", choices=SETS_OF_PART, default=["good"], help=help_of_parts)
    help_of_clips = "sets of clips for the comparison; default: the sets in good light"
    add("--clips", nargs="+", choices=CLIPS, default=OF_GOOD_LIGHT, help=help_of_clips)
    add("--out", type=Path, help="results folder (default experiments/motion_seeds)")
    return parser.parse_args(argv)


def clips_of(out: Path, videos: Path, name: str) -> Path:
    """Make the clips of a set as lab/joint_gain.py makes them. Returns their folder.

    name: a key of CLIPS. videos: folder of the videos.
    """
    shown, condition = CLIPS[name]
    sources = link_sources_of_part(videos, out / "sources" / shown, shown)
    return make_clips_of_condition(out, shown, condition, sources)


def write_scores(file: Path, name: str, trained_runs: Sequence[TrainedRun], scores: Scores) -> None:
    """Write the scores of a set of clips as JSON, with the CPU time of each training.

    Such files are in docs/benchmarks/quality, so the keys must stay.

    name: name of the set, e.g. "report_ideal".
    """
    about = {
        "measured": environment(),
        "clips": name,
        "cpu_s": {trained_run.run.name: trained_run.cpu_s for trained_run in trained_runs},
        "psnr": scores,
    }
    file.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
