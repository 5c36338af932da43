#!/usr/bin/env python3
"""Train the learned steps of the fusion "motion" with several seeds, and a plain control beside.

    python lab/motion_seeds.py --videos VIDEOS [--updates 800] [--seeds 0 1 2]
    python lab/motion_seeds.py --videos VIDEOS --parts few --clips report_rig report_dim

The learned steps improve the frame of the operator (weights/operator.pth, a network). They work
with equations along the motion, and with the proposal, a frame that solves these equations. There
are two parts: "good" for good light, and "few" for few spikes. The control is the same conv net,
which sees neither the motion nor its equations. lab/train_motion.py explains all of them.

This program answers two questions. How much do the gains over the operator depend on the seed? How
much is left without the motion and its equations?

The program works in this order:

    train_all    for each run and each part: new steps -> <out>/steps/<run>_<part>.pt
    scores_of    all runs restore the same clips of lab/joint_gain.py -> <out>/seeds_<...>.json
    table_of     the gains over the operator, a row for each set of clips

A run is a kind of steps ("equations" or "plain"), a seed, and a number of updates. One more plain
run has twice as many updates. So it has more CPU time than a run with the equations.

The clips are restored by the class that main_test_vrt.py uses
(data.motion.restorer.MotionRestorer), so its rules for dark frames and still pixels hold. But all
runs restore a frame together: its first estimate, its motion and its proposal are computed once.
The shipped weights are restored beside the runs. Their scores must equal the scores of
lab/joint_gain.py, which shows that both programs restore alike.

Steps and scores that are there are not made again. Delete <out>/samples and <out>/steps after a
change of the training.

What must stay: a frame is restored as main_test_vrt.py restores it
(test_a_method_scores_as_the_test_program_with_its_weights), and the control does not see the motion
(test_the_control_does_not_see_the_motion). Free to change: the runs, the clips and the table.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.clips.readers import DatasetClip
from data.motion.finder import Finder, finder_of
from data.motion.joint.equations import Solver
from data.motion.learned_method import FEW_SPIKES, LEAST_AREA
from data.motion.restorer import AreaInputs, MotionRestorer
from lab.joint_gain import linked_sources, made_clips
from lab.quality import Spread, table_cell
from lab.tools import ROOT, environment
from lab.train_motion import (
    CPU,
    OPERATOR_WEIGHTS,
    SOLVER,
    HiddenEquations,
    Sample,
    motion_network,
    readers_of_set,
    samples_of_part,
    steps_of,
    train,
    training_samples,
)
from models.fusion.fusion_motion import MotionFusion, MotionSteps
from models.fusion.fusion_motion import motion_of as motion_fusion_of
from models.metrics import psnr
from models.portable import read_saved
from models.saved_network import SavedNetwork
from utils.contract import Tick
from utils.image import tensor_to_uint8
from utils.results import markdown_table, read_json

SHIPPED_WEIGHTS = ROOT / "weights/motion.pth"  # with the shipped learned steps
# Part of the steps -> the sets of lab/train_motion.py with most of its samples. They have the order
# of SETS there. The others are left out, because making them takes longer than a training here.
# E.g. seven_rig and photos_rig have 15 samples of good light, and the sets of "good" have 359.
SETS_OF_PART = {
    "good": (
        "seven_ideal",
        "seven_means",
        "usual_other",
        "stills_ideal",
        "stills_other",
        "stills_random",
        "photos_ideal",
    ),
    "few": (
        "seven_rig",
        "seven_dim",
        "seven_random",
        "stills_dim",
        "stills_random",
        "photos_rig",
        "photos_dim",
    ),
}
# The kinds of steps. The words are in the names of files and in the columns of the table.
EQUATIONS = "equations"  # the steps see the motion and its equations
PLAIN = "plain"  # the control
# Name of a set of clips -> what it shows, and its condition. What it shows is a part of
# lab/joint_gain.py, and no part of the steps. Under the conditions "rig" and "dim" all frames have
# few spikes. Under "ideal" and "other" nearly all frames have many.
CLIPS = {
    "report_ideal": ("report", "ideal"),
    "report_other": ("report", "other"),
    "choose_ideal": ("choose", "ideal"),
    "photos_ideal": ("photos", "ideal"),
    "report_rig": ("report", "rig"),
    "report_dim": ("report", "dim"),
}
OF_GOOD_LIGHT = ["report_ideal", "report_other", "choose_ideal", "photos_ideal"]


@dataclass(frozen=True)
class Run:
    """A training of the steps."""

    kind: str  # EQUATIONS or PLAIN
    seed: int
    updates: int  # number of updates of each part

    @property
    def name(self) -> str:
        """The name in files, e.g. "plain_seed0_800"."""
        return f"{self.kind}_seed{self.seed}_{self.updates}"


@dataclass
class TrainedRun:
    """The learned steps of a run, with the process time of their training.

    `train_all` adds the steps of one part after the other.
    """

    run: Run
    steps: dict[str, MotionSteps]  # part -> its steps
    cpu_s: dict[str, float]  # part -> CPU seconds of the updates, without making the samples


# Name of a method -> clip -> PSNR in dB. A method is the operator (OPERATOR_METHOD), the shipped
# weights (SHIPPED_METHOD), or the steps of a run, by the name of the run. E.g.
# {"operator": {"park_00": 23.0}, "plain_seed0_800": {"park_00": 23.3}}.
Scores = dict[str, dict[str, float]]
#
# The names of the two methods that are no run:
OPERATOR_METHOD = "operator"
SHIPPED_METHOD = "shipped"


# ---- The program -------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Train all runs, restore the clips with them, write the scores, and print the table.

    Returns the exit code 0. If a program that makes clips fails, this program ends, too.
    """
    args = read_arguments(argv)
    out = (args.out or ROOT / "experiments/motion_seeds").resolve()
    # One thread, as in lab/train_motion.py: the sums then have one order.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)

    runs = runs_of(args.seeds, args.updates)
    trained_runs = [TrainedRun(run, steps={}, cpu_s={}) for run in runs]
    motion_net_file = write_motion_net(out)
    for part in args.parts:
        train_all(out, args.videos, motion_net_file, part, trained_runs)

    scores_of_sets: dict[str, Scores] = {}
    for name in args.clips:
        file = out / f"seeds_{name}.json"
        if not file.exists():
            # The test clips are below test/, because sets of the training have the same names.
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
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default 0 1 2")
    help_of_parts = (
        "which steps are trained; clips with frames that need the other part are left out; "
        "default good"
    )
    add("--parts", nargs="+", choices=SETS_OF_PART, default=["good"], help=help_of_parts)
    help_of_clips = "sets of clips for the comparison; default: the sets in good light"
    add("--clips", nargs="+", choices=CLIPS, default=OF_GOOD_LIGHT, help=help_of_clips)
    add("--out", type=Path, help="results folder (default experiments/motion_seeds)")
    return parser.parse_args(argv)


def runs_of(seeds: Sequence[int], updates: int) -> list[Run]:
    """Return all runs: both kinds with each seed, and a plain one with twice as many updates."""
    runs = [Run(EQUATIONS, seed, updates) for seed in seeds]
    runs += [Run(PLAIN, seed, updates) for seed in seeds]
    return [*runs, Run(PLAIN, seeds[0], 2 * updates)]


def clips_of(out: Path, videos: Path, name: str) -> Path:
    """Make the clips of a set as lab/joint_gain.py makes them. Returns their folder.

    name: a key of CLIPS. videos: folder of the videos.
    """
    shown, condition = CLIPS[name]
    sources = linked_sources(videos, out / "sources" / shown, shown)
    return made_clips(out, shown, condition, sources)


def write_motion_net(out: Path) -> Path:
    """Write the network that finds the motion, from the shipped weights. Returns its file.

    The file has the form in which lab/train_motion_net.py writes it.
    """
    file = out / "network.pt"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        motion_net = network_of(SHIPPED_WEIGHTS).motion_net
        assert motion_net is not None, f"{SHIPPED_WEIGHTS} finds the motion by DIS alone"
        torch.save(motion_net.state_dict(), file)
    return file


def network_of(weights: Path) -> MotionFusion:
    """Return the fusion "motion" of a weights file. The file must have this fusion."""
    fusion = motion_fusion_of(read_saved(weights).build())
    assert fusion is not None, f"{weights} has another fusion than motion"
    return fusion.eval()


# ---- Training ----------------------------------------------------------------------------------
#
# No test trains here. tests/parts/house/test_train_motion.py tests `train`.


def train_all(
    out: Path, videos: Path, motion_net_file: Path, part: str, trained_runs: Sequence[TrainedRun]
) -> None:
    """Add the learned steps of a part to each run. Steps whose files are there are read from them.

    videos: folder of the videos.
    motion_net_file: weights of the network that finds the motion.
    part: "good" or "few", a key of SETS_OF_PART.
    """
    operator = read_saved(OPERATOR_WEIGHTS)
    # Kind -> name of a set -> its samples. They are made only if a training needs them.
    samples: dict[str, dict[str, list[Sample]]] = {}
    for trained_run in trained_runs:
        run = trained_run.run
        # The seed of the initial weights, as in lab/train_motion.py.
        torch.manual_seed(run.seed)
        _, fusion = motion_network(operator, motion_net_file)
        learned_steps = steps_of(fusion, part)
        trained_run.steps[part] = learned_steps.eval()

        file = out / "steps" / f"{run.name}_{part}.pt"
        if not file.exists():
            if not samples:
                samples = samples_of_kinds(out, videos, motion_net_file, part)
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save(train_run(run, learned_steps, samples[run.kind]), file)
        saved = torch.load(file)
        learned_steps.load_state_dict(saved["weights"])
        trained_run.cpu_s[part] = saved["cpu_s"]
        print(f"{run.name}, {part}: {saved['cpu_s']:.0f} CPU seconds", flush=True)


def train_run(
    run: Run, learned_steps: MotionSteps, samples: Mapping[str, list[Sample]]
) -> dict[str, Any]:
    """Train new learned steps. Returns their averaged weights, and the CPU time of the updates.

    The result has the keys "weights" and "cpu_s", as in the files of <out>/steps.
    """
    last_weights: dict[str, Tensor] = {}

    def keep(weights: Mapping[str, Tensor], updates: int) -> None:
        """Keep a copy of the weights. `train` calls it at the end, and now and then before."""
        last_weights.update({name: value.clone() for name, value in weights.items()})

    # The process time and not the time of day, because other programs may use the machine as well.
    begin = time.process_time()
    train(learned_steps, samples, solver=SOLVER, updates=run.updates, seed=run.seed, save=keep)
    return {"weights": last_weights, "cpu_s": time.process_time() - begin}


def samples_of_kinds(
    out: Path, videos: Path, motion_net_file: Path, part: str
) -> dict[str, dict[str, list[Sample]]]:
    """Return the samples of a part for both kinds of steps: kind -> name of a set -> samples.

    Each sample has its equations already. Otherwise the first training would make the equations,
    and its CPU time would be longer than the time of the next trainings.
    """
    operator = read_saved(OPERATOR_WEIGHTS)
    _, fusion = motion_network(operator, motion_net_file)
    all_samples = training_samples(out, videos, operator, fusion, SETS_OF_PART[part])
    with_equations = samples_of_part(all_samples, part)
    of_control = {}
    for name, samples_of_set in with_equations.items():
        of_control[name] = [hidden_sample(sample) for sample in samples_of_set]
    return {EQUATIONS: with_equations, PLAIN: of_control}


def hidden_sample(sample: Sample) -> Sample:
    """Return a sample for the control: without the motion, its equations and their proposal."""
    # The equations are computed once, for both samples. `HiddenEquations` passes on only what the
    # control may see. Equations without motion propose the frame of the operator, which is z_0.
    equations = sample.measured_equations(SOLVER)
    return replace(sample, equations=HiddenEquations(equations), is_plain=True, proposal=sample.z_0)


# ---- Restoring -----------------------------------------------------------------------------------


class FirstEstimates:
    """Restores the frames of a clip with the operator, for `MotionRestorer`."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def frames(self, reader: DatasetClip, wanted: range, tick: Tick) -> Iterator[Tensor]:
        """Yield the frames (3, H, W). `MotionRestorer.frames` explains the arguments."""
        for index in wanted:
            frame = reader.frame(index)
            # A batch of one clip of one frame: (C, H, W) -> (1, 1, C, H, W), and back.
            yield self.net(frame["lq"][None, None], frame["spike"][None, None])[0, 0]
            tick(1.0)


class AllMethods:
    """Restores a frame by all methods at once, as function `improve` of `MotionRestorer`.

    A method is the operator, the shipped weights, or the steps of a run. `names` has their order.
    """

    def __init__(self, shipped: MotionFusion, trained_runs: Sequence[TrainedRun]) -> None:
        # Part -> the shipped steps of this part. Weights without steps for few spikes use the same
        # steps in all light.
        self.shipped = {"good": shipped.steps, "few": shipped.few_steps or shipped.steps}
        self.trained_runs = trained_runs
        self.names = [
            OPERATOR_METHOD,
            SHIPPED_METHOD,
            *(trained_run.run.name for trained_run in trained_runs),
        ]
        # Number of frames so far whose light needs a part that was not trained. E.g. a dark frame
        # needs "few", and --parts is "good". `scores_of` leaves out the clip of such a frame.
        self.frames_without_steps = 0

    def __call__(self, z_0: Tensor, inputs: AreaInputs) -> Tensor:
        """Return the frame as each method restores it, (methods, 3, H, W).

        `MotionRestorer` keeps the pixels of z_0 that stand still in each of them.

        z_0: the frame of the operator, (3, H, W). inputs: its spikes and its equations.
        """
        # The light of the frame decides which part of the steps restores it.
        part = "few" if inputs.median_spikes < FEW_SPIKES else "good"
        equations = inputs.equations
        proposal = equations.proposal(z_0)
        # What the steps of the control get instead. Its equations have no motion, so their proposal
        # is z_0.
        hidden = HiddenEquations(equations)
        hidden_proposal = hidden.proposal(z_0)

        # `all_steps` returns the frame after each learned step. The last one is the restored frame.
        frames_of_shipped = self.shipped[part].all_steps(z_0, proposal, equations)
        frames = [z_0, frames_of_shipped[-1]]
        if any(part not in trained_run.steps for trained_run in self.trained_runs):
            self.frames_without_steps += 1
        for trained_run in self.trained_runs:
            steps = trained_run.steps.get(part)
            if steps is None:
                # z_0 only fills the place of this run in the result: `scores_of` leaves the clip
                # out.
                frames.append(z_0)
                continue
            if trained_run.run.kind == PLAIN:
                frames_of_run = steps.all_steps(z_0, hidden_proposal, hidden)
            else:
                frames_of_run = steps.all_steps(z_0, proposal, equations)
            frames.append(frames_of_run[-1])
        return torch.stack(frames).clamp(0, 1)


def scores_of(folder: Path, trained_runs: Sequence[TrainedRun]) -> Scores:
    """Restore the clips of a folder by all methods. Returns method -> clip -> PSNR in dB.

    A clip is left out if it has a frame for which a run has no trained steps, e.g. a frame with few
    spikes if only the part "good" was trained.
    """
    operator = read_saved(OPERATOR_WEIGHTS)
    shipped = network_of(SHIPPED_WEIGHTS)
    # The solver and the finder of the motion are those of the shipped weights, for all runs.
    solver = Solver(
        groups=shipped.groups,
        linearisations=shipped.linearisations,
        steps=shipped.proposal_steps,
    )
    find_motion = finder_of(shipped.motion_by, shipped.motion_net, CPU)
    methods = AllMethods(shipped, trained_runs)
    scores: Scores = {name: {} for name in methods.names}
    for reader in readers_of_set(folder, "auto", operator):
        methods.frames_without_steps = 0
        scores_of_clip = clip_scores(reader, operator, methods, find_motion, solver)
        if methods.frames_without_steps:
            print(f"{reader.name} is left out: other steps serve for its light", flush=True)
            continue
        for name, psnr_of_clip in scores_of_clip.items():
            scores[name][reader.name] = psnr_of_clip
    return scores


def clip_scores(
    reader: DatasetClip,
    operator: SavedNetwork,
    methods: AllMethods,
    find_motion: Finder,
    solver: Solver,
) -> dict[str, float]:
    """Restore a clip by all methods. Returns method -> PSNR in dB, the mean over the frames.

    The frames are compared as main_test_vrt.py writes them, with values of 8 bits.

    find_motion: finds the motion within an exposure. solver: settings of the equations.
    """
    restorer = MotionRestorer(
        FirstEstimates(operator.build().eval()),
        find=find_motion,
        solver=solver,
        improve=methods,
        context=None,  # planes before and after an exposure: half as many as it has
        device=CPU,
        least_area=LEAST_AREA,
    )
    frame_count = len(reader.stems)
    psnr_of_frames: dict[str, list[float]] = {name: [] for name in methods.names}
    # The restorer reports its progress to the last argument. Nobody reads it here.
    restored = restorer.frames(reader, range(frame_count), lambda done: None)
    for index, frames in enumerate(restored):
        # `frames` is (methods, 3, H, W). But a frame that keeps its first estimate comes alone,
        # (3, H, W), because it is the same by all methods.
        all_frames = frames.expand(len(methods.names), *frames.shape[-3:])
        sharp = tensor_to_uint8(reader.frame(index)["gt"])
        for name, frame in zip(methods.names, all_frames, strict=True):
            psnr_of_frames[name].append(psnr(tensor_to_uint8(frame), sharp))
    return {name: float(np.mean(values)) for name, values in psnr_of_frames.items()}


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


# ---- The table ---------------------------------------------------------------------------------
#
# Test: test_the_table_has_the_spread_over_the_seeds_and_the_worst_clip_of_any_seed


def table_of(scores_of_sets: Mapping[str, Scores], runs: Sequence[Run]) -> str:
    """Return the table in Markdown: a row for each set of clips, with gains over the operator.

    scores_of_sets: name of a set -> its scores.
    """
    rows = [row_of(set_name, scores, runs) for set_name, scores in scores_of_sets.items()]
    columns = list(rows[0])  # all rows have the same
    return markdown_table([list(row.values()) for row in rows], columns)


def row_of(set_name: str, scores: Scores, runs: Sequence[Run]) -> dict[str, str]:
    """Return the row of a set of clips: name of a column -> cell. E.g. for two seeds:

    ""                         report_ideal       name of the set
    "operator"                 24.00              mean PSNR in dB
    "shipped"                  +3.50              mean gain over the operator in dB
    "equations"                +2.50 ± 0.71       see `cells_of_kind`
    "equations, worst clip"    +1.00 (park_00)
    "plain"                    +0.30 ± 0.14
    "plain, worst clip"        -0.10 (park_00)
    "plain_seed0_1600"         +0.50              the control with twice as many updates
    """
    psnr_of_operator = statistics.fmean(scores[OPERATOR_METHOD].values())
    row = {
        "": set_name,
        OPERATOR_METHOD: f"{psnr_of_operator:.2f}",
        SHIPPED_METHOD: f"{mean_gain(scores, SHIPPED_METHOD):+.2f}",
    }
    usual_updates = min(run.updates for run in runs)
    for kind in (EQUATIONS, PLAIN):
        names = []  # of the runs of this kind, one for each seed
        for run in runs:
            if run.kind == kind and run.updates == usual_updates:
                names.append(run.name)
        row[kind], row[f"{kind}, worst clip"] = cells_of_kind(scores, names)
    for run in runs:
        if run.updates > usual_updates:
            row[run.name] = f"{mean_gain(scores, run.name):+.2f}"
    return row


def cells_of_kind(scores: Scores, names: Sequence[str]) -> tuple[str, str]:
    """Return two cells of the runs of a kind, e.g. "+2.50 ± 0.71" and "+1.00 (park_00)".

    The first cell is the mean gain over the seeds, and its standard deviation. The second cell is
    the smallest gain of any clip with any seed.

    names: names of the runs, one for each seed.
    """
    gains_of_seeds = []  # mean gain of each run, over the clips
    gains_of_clips = []  # (gain, clip) of each clip with each seed
    for name in names:
        gains_of_seeds.append(mean_gain(scores, name))
        for clip, gain in gains_of(scores, name).items():
            gains_of_clips.append((gain, clip))
    # One seed has no deviation.
    deviation = statistics.stdev(gains_of_seeds) if len(gains_of_seeds) > 1 else None
    least_gain, worst_clip = min(gains_of_clips)
    spread = Spread(statistics.fmean(gains_of_seeds), deviation)
    return table_cell(spread, sign="+"), f"{least_gain:+.2f} ({worst_clip})"


def mean_gain(scores: Scores, name: str) -> float:
    """Return the mean gain of a method over the operator in dB, over the clips."""
    return statistics.fmean(gains_of(scores, name).values())


def gains_of(scores: Scores, name: str) -> dict[str, float]:
    """Return the gains of a method over the operator in dB: clip -> gain."""
    operator = scores[OPERATOR_METHOD]
    return {clip: value - operator[clip] for clip, value in scores[name].items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
