#!/usr/bin/env python3
"""Train the small network of weights/motion.pth, which improves the frames of weights/operator.pth.

    python lab/train_motion_net.py --videos VIDEOS --out FILE
    python lab/train_motion.py --videos VIDEOS --network FILE [--steps 2000] [--begin WEIGHTS]

The network is the fusion "motion" (models/fusion/fusion_motion.py). It restores a frame in this
order:

    the operator (weights/operator.pth) makes a first estimate of the sharp frame, z_0
    the motion within the exposure gives equations, and a frame that solves them: the proposal
    learned steps (three small passes, MotionSteps) mix z_0, the proposal and the equations

This program trains only the learned steps. A step of the optimizer is called an update on this
page, and --steps is the number of updates. The program uses one thread of a CPU.

Samples. A sample is one frame of a clip, with everything that its equations need. Clips are made
from three sources:

    "videos"   training videos of lab/quality.py, with seven real frames in an exposure
    "stills"   single frames of these videos
    "photos"   photographs

The motion of "stills" and "photos" is exact, because `PhotoScene` moves layers that cover each
other and uses no optical flow. The samples show bright and dim light, and mistakes that a user may
make: other cameras, a spike camera that is not calibrated, blurry frames that are means of display
values, and wrong motion. No sample comes from the validation videos ("choose" in lab/quality.py),
the test videos ("report"), or the photographs on which lab/joint_gain.py tests. Clips and samples
that are already in <out> are used again.

Few or many spikes. The fusion has two parts: learned steps for frames with few spikes, and learned
steps for good light. --part says which part is trained. The other part stays as in --begin.

A control. --plain trains the same network on the same samples, but hides the motion and its
equations. The difference of the two gains is what the motion and its equations are worth.

The program writes <out>/motion.pth every 500 updates and at the end. Every 100 updates it prints by
how many dB the learned steps improve on the operator.

What must stay: the order of the random draws, because with another order a seed gives other
weights, and the keys of the written weights, which models/fusion/fusion_motion.py reads. Free to
change: the values under "Choices of the training".

Tests: tests/parts/house/test_train_motion.py trains for 12 updates on one sample.
test_a_training_is_repeated_by_its_seed notices a number that does not come from the seed, but not
another order of the draws. No test makes the clips and samples.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.clips.clip_reader import user_clips
from data.clips.readers import DatasetClip
from data.clips.user_frames import FrameSource
from data.motion.exposure import Recording
from data.motion.finder import Finder, finder_of
from data.motion.joint.equations import Equations, Solver
from data.motion.joint.spike_pixels import SpikePixels
from data.motion.light import median_spikes
from data.motion.recording import RecordedClip
from data.motion.shifts import Motion
from data.motion.view import View
from lab.quality import VIDEOS, link_files, make_clips, video_files
from lab.tools import ROOT
from lab.train_motion_net import photo_files
from models.fusion.fusion_motion import MotionFusion, MotionSteps, Turn
from models.fusion.fusion_motion import motion_of as motion_fusion_of
from models.portable import read_saved
from models.saved_network import SavedNetwork
from models.select_network import NETWORKS
from scripts.make_sample_data import RGB, SPIKES
from utils.contract import JointEquations
from utils.image import imwrite_rgb

# The network whose frames the learned steps improve.
OPERATOR_WEIGHTS = ROOT / "weights/operator.pth"
CPU = torch.device("cpu")

# ---- Choices of the training -------------------------------------------------------------------
#
# The shipped weights/motion.pth was trained with these values. You may change them: they count for
# the next training only, and lab/joint_gain.py measures what a change gains, because no test does.
# Delete <out>/samples after a change of SOLVER, because the samples hold its proposals.

# Four frames of each video become stills. The numbers are their places: 1/2 is half of the length.
STILL_PLACES = (1 / 6, 1 / 3, 1 / 2, 5 / 6)
# Photographs of the package scikit-image, by name. lab/train_motion_net.py uses them, too. Its
# other photographs are too small for a clip.
PHOTOS = ("brick", "camera", "cell", "coins", "grass", "ihc", "moon", "motorcycle_left")
# The solver that makes the proposals in training:
#
#     groups          groups of planes of an exposure
#     linearisations  rounds that set up the equations anew
#     steps           rounds of the conjugate gradients in each of them
#
# It is cheaper than the solver of a test, so its proposals are less exact. The learned steps work
# with the better proposals of a test as well. Training with better proposals was tried twice, from
# the shipped weights: it lost 0.1 to 0.25 dB on the clips coffee and walker.
SOLVER = Solver(groups=12, linearisations=2, steps=8)
# A wrong motion replaces the measured one in this share of the updates, so that the steps learn
# when not to trust the motion.
SHARE_OF_WRONG_MOTION = 0.2

# Number of learned steps. A third step gains 0.1 to 0.3 dB, and takes about 0.05 s a frame.
STEP_COUNT = 3
# Weight in the loss (`loss_of`) of the frame after each learned step. Only the final frame is used,
# so it counts most.
STEP_WEIGHTS = (0.15, 0.35, 1.0)
# Value of --part -> the samples on which this part is trained: from the first limit to below the
# second one, in spikes of the median pixel in an exposure. The part "few" is used below 10 spikes
# (`data.motion.learned_method.FEW_SPIKES`). The ranges overlap, so that both parts know the light
# around 10 spikes.
SPIKES_OF_PART = {"few": (0.0, 12.0), "good": (8.0, float("inf"))}
# A set of SETS (below) is left out if fewer of its samples are in the range of --part. Sets are
# drawn by their weights, not by their sizes, so each of these few samples would be drawn often.
LEAST_SAMPLES = 6
# Side in pixels of the squares in which the frame is compared with the first estimate. In smaller
# squares noise decides which frame is worse. Larger squares hide a small fault.
SQUARE_SIDE = 12
# Weight of squares that became worse than in the first estimate, default of --worse-weight. A
# larger weight makes the network careful: it changes the frame less. In dim light a weight of 2
# lost less on smooth photographs, and gained as much elsewhere.
WORSE_WEIGHT = 0.5
# Added to mean squared errors in the loss, so that the logarithm of a perfect frame is finite. The
# value is about one grey level of 8 bits, squared: (1 / 255)^2 = 1.5e-5. So the loss does not
# reward errors that no picture of 8 bits shows.
LOSS_FLOOR = 2e-5
# Added to mean squared errors in the printed gain. The value is far below each real error, so the
# gain in dB is practically exact.
GAIN_FLOOR = 1e-7

# The optimizer.
RATE = 2e-3  # largest learning rate, default of --rate
LAST_RATE_SHARE = 0.02  # the learning rate falls to this share of RATE
BETAS = (0.9, 0.99)  # of Adam
LARGEST_GRADIENT = 1.0  # larger gradients are scaled down to this norm
WARM_UP = 50  # updates in which the learning rate rises from 0 to RATE
# The saved weights are a moving average: old average + 0.01 (newest weights - old average). So they
# average over about the last 100 updates.
NEWEST_SHARE = 0.01
PRINT_EVERY = 100  # updates
SAVE_EVERY = 500  # updates


@dataclass(frozen=True)
class ClipSet:
    """A set of clips of one source, made with one pair of cameras, and how often it is drawn.

    The fields rig, clips, frames, average and crop are flags of scripts/prepare_gopro_spike.py.
    """

    source: str  # what the clips are made from: "videos", "stills" or "photos"
    rig: str  # the two cameras, e.g. "dim"; data/cameras/rig_values.py has the names
    clips: int  # number of clips of each video, still or photograph
    frames: int  # number of frames of a clip
    weight: int  # a set of weight 4 is drawn twice as often as a set of weight 2
    average: int | None = None  # real frames in an exposure; None: as the program chooses
    crop: int = 144  # side of the frames in pixels
    # Value of spike.calibration when the spikes are read. None: the program assumes that the spike
    # camera is not shifted, which is wrong for the random rig. stills_random has None, so that the
    # steps see what a user gets without a calibration. seven_random shows the same rig with one.
    calibration: str | None = "auto"


# Name -> set. A name is a folder below --out. "seven": seven real frames in an exposure. "usual":
# as many as the program chooses. "means", with sum_gamma: blurry frames that are means of display
# values, which no camera makes.
# `train` draws from the sets in this order. With another order, a new set or a new weight, the same
# seed draws other samples.
SETS = {
    "seven_ideal": ClipSet("videos", "ideal", clips=2, frames=4, weight=3, average=7, crop=192),
    "seven_rig": ClipSet("videos", "rig", clips=2, frames=4, weight=3, average=7, crop=192),
    "seven_dim": ClipSet("videos", "dim", clips=2, frames=4, weight=4, average=7, crop=192),
    "seven_random": ClipSet("videos", "random", clips=1, frames=3, weight=2, average=7),
    "seven_means": ClipSet("videos", "ideal,sum_gamma=2.2", clips=1, frames=2, weight=2, average=7),
    "usual_other": ClipSet("videos", "other", clips=1, frames=3, weight=2),
    "stills_ideal": ClipSet("stills", "ideal", clips=1, frames=3, weight=2),
    "stills_other": ClipSet("stills", "other", clips=1, frames=3, weight=2),
    "stills_dim": ClipSet("stills", "dim", clips=1, frames=3, weight=3),
    "stills_random": ClipSet("stills", "random", clips=1, frames=3, weight=2, calibration=None),
    "photos_ideal": ClipSet("photos", "ideal", clips=4, frames=3, weight=2),
    "photos_rig": ClipSet("photos", "rig", clips=4, frames=3, weight=2),
    "photos_dim": ClipSet("photos", "dim", clips=4, frames=3, weight=3),
}


@dataclass
class Sample:
    """One frame with everything that its equations are made of.

    The names of the fields are keys of the files in <out>/samples. Old files cannot be read after a
    field is renamed or removed. A new field needs a default.
    """

    recording: Recording  # the blurry frame and its spikes
    view: View  # where the spike pixels lie on the frame
    motion: Motion  # the measured motion
    gain: np.ndarray  # (h, w) spikes per plane of each spike pixel at full light
    is_good: np.ndarray  # (h, w) whether the gain can be trusted
    z_0: Tensor  # (3, H, W) in [0, 1], the frame of the operator
    proposal: Tensor  # (3, H, W), the solution of the equations
    sharp: Tensor  # (3, H, W) in [0, 1], the true frame
    equations: JointEquations | None = None  # along `motion`; None until they are first needed
    is_plain: bool = False  # whether the motion and its equations are hidden, by --plain

    def equations_along(self, motion: Motion, solver: Solver) -> JointEquations:
        """Return the equations of the exposure along any motion, measured or wrong."""
        pixels = SpikePixels(self.view, CPU)
        equations = Equations(
            self.recording,
            pixels,
            motion,
            gain=self.gain,
            is_good=self.is_good,
            solver=solver,
            device=CPU,
        )
        return HiddenEquations(equations) if self.is_plain else equations

    def measured_equations(self, solver: Solver) -> JointEquations:
        """Return the equations along the measured motion.

        They are made at the first call and kept, because making them takes time.
        """
        if self.equations is None:
            self.equations = self.equations_along(self.motion, solver)
        return self.equations


# ---- The control: the motion is hidden ---------------------------------------------------------
#
# The conv net of a learned step reads two results of `Equations`
# (data/motion/joint/network_channels.py):
#
#     evidence    what is known at a pixel before any step, e.g. how far the motion may be wrong
#     pulls       how the equations would change the present frame
#
# A mask has an entry for each channel. The entry is True if --plain must hide the channel. If
# `Equations` gets a new channel, its mask needs a new entry.
# `test_the_control_sees_neither_the_motion_nor_its_equations` in
# tests/parts/house/test_train_motion.py notices a channel that shows the motion.

HIDDEN_EVIDENCE = torch.tensor(
    [
        True,  # 0: precision of the grey value by the spikes, along the motion
        True,  # 1: length of the motion
        True,  # 2: expected error of the motion
        False,  # 3: spikes per plane, which show how bright it is
        False,  # 4: noise of the blurry frame
        True,  # 5: share of the pixels that move
    ]
)
HIDDEN_PULLS = torch.tensor(
    [
        True,  # 0 to 2: change of red, green and blue by the equations of the blurry frame
        True,
        True,
        True,  # 3: change of the grey value by the equations of the spikes
        True,  # 4: how far the equations of the blurry frame are off
        True,  # 5: how far the equations of the spikes are off
        False,  # 6: how much brighter the spikes of the sharp instant are, which needs no motion
    ]
)


class HiddenEquations:
    """Equations without the motion, for the control --plain.

    The conv net still sees the blurry frame, its noise, the light, and the spikes of the sharp
    instant. The proposal is the first estimate, and all hidden channels are 0.

    `Equations` is the class with the motion. The protocol `utils.contract.JointEquations` lists the
    members that the learned steps use. Both classes have them, so the steps take either class.
    """

    def __init__(self, equations: JointEquations) -> None:
        self.equations = equations  # with the motion
        self.blurry = equations.blurry

    def proposal(self, z_0: Tensor) -> Tensor:
        """Return the first estimate itself, (3, H, W)."""
        return z_0

    def evidence(self) -> Tensor:
        """Return `Equations.evidence` (6, H, W) with 0 in the channels of HIDDEN_EVIDENCE."""
        return self.equations.evidence().masked_fill(HIDDEN_EVIDENCE[:, None, None], 0)

    def pulls(self, z: Tensor) -> Tensor:
        """Return `Equations.pulls` (7, H, W) with 0 in the channels of HIDDEN_PULLS."""
        return self.equations.pulls(z).masked_fill(HIDDEN_PULLS[:, None, None], 0)


def hide_motion(samples: Mapping[str, list[Sample]]) -> None:
    """Hide the motion and the equations of all samples. Changes the samples.

    `train` uses two things of a sample:

        equations   `train` makes them later by `Sample.equations_along`. If `is_plain` is set, this
                    method returns `HiddenEquations`.
        proposal    It was computed before, so the first estimate replaces it here.
    """
    for samples_of_set in samples.values():
        for sample in samples_of_set:
            sample.is_plain = True
            sample.proposal = sample.z_0


# ---- The program -------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Make the samples, train the learned steps, and write their weights.

    Returns the exit code 0. scripts/prepare_gopro_spike.py makes the clips. If it fails, this
    program ends, too.
    """
    args = read_arguments(argv)
    out = (args.out or ROOT / "experiments/train_motion").resolve()
    # With one thread the sums have one order, so a seed gives the same weights on each run.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    torch.manual_seed(args.seed)  # of the initial weights of the steps

    # The network: the operator with the fusion "motion". --begin gives its steps other weights.
    operator = read_saved(OPERATOR_WEIGHTS)
    description, net = motion_network(operator, args.network)
    if args.begin:
        begin_at(net, args.begin)
    trained = steps_of(net, args.part)

    samples = training_samples(out, args.videos, operator, net)
    samples = samples_of_part(samples, args.part)
    if args.plain:
        hide_motion(samples)
    sample_count = sum(len(samples_of_set) for samples_of_set in samples.values())
    parameter_count = sum(parameter.numel() for parameter in trained.parameters())
    print(f"{sample_count} samples, {parameter_count:,} parameters", flush=True)

    # The file gets the average of the weights over many updates. The training goes on with the
    # newest weights, so they must stay in `net`. A second network is filled for the file.
    _, net_of_file = motion_network(operator, args.network)

    def save(averaged: Mapping[str, Tensor], updates: int) -> None:
        """Write motion.pth with the averaged weights of the trained steps.

        updates: number of updates so far.
        """
        net_of_file.load_state_dict(net.state_dict())  # everything that is not trained
        steps_of(net_of_file, args.part).load_state_dict(averaged)
        write_weights(out / "motion.pth", description, net_of_file, updates)

    train(
        trained,
        samples,
        solver=SOLVER,  # of the equations along the wrong motions that `train` draws
        updates=args.steps,
        seed=args.seed,
        save=save,
        rate=args.rate,
        worse_weight=args.worse_weight,
    )
    return 0


def read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read the flags of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--videos", type=Path, required=True, help="folder of the videos of lab/quality.py")
    add("--steps", type=int, default=2000, help="number of optimizer steps, default %(default)s")
    add("--seed", type=int, default=0, help="seed of all random numbers, default %(default)s")
    add("--network", type=Path, required=True, help="weights file of lab/train_motion_net.py")
    help_of_part = (
        'which learned steps are trained: the steps for exposures with "few" spikes, or the steps '
        'for "good" light; default %(default)s'
    )
    add("--part", choices=("few", "good"), default="few", help=help_of_part)
    help_of_begin = (
        'weights file with the fusion "motion"; the training begins with its learned steps '
        "(default: new steps, which change nothing)"
    )
    add("--begin", type=Path, help=help_of_begin)
    add("--rate", type=float, default=RATE, help="largest learning rate, default %(default)s")
    help_of_worse_weight = (
        f"weight in the loss of the squares of {SQUARE_SIDE} x {SQUARE_SIDE} pixels in which the "
        "frame became worse, default %(default)s"
    )
    add("--worse-weight", type=float, default=WORSE_WEIGHT, help=help_of_worse_weight)
    add("--plain", action="store_true", help="hide the motion and its equations, as a control")
    add("--out", type=Path, help="results folder (default experiments/train_motion)")
    return parser.parse_args(argv)


def motion_network(
    operator: SavedNetwork, network: Path | None = None
) -> tuple[SavedNetwork, MotionFusion]:
    """Build the fusion "motion" with the weights of the operator.

    Returns the description of the network, as a weights file has it, and the fusion. At first the
    fusion returns the operator's frame, because the initial weights of the steps change nothing.
    lab/motion_seeds.py builds its networks here as well.

    network: weights file of the network that finds the motion. None: DIS (an optical flow of
    OpenCV) finds it.
    """
    # The options of the operator's network, with another fusion.
    fusion = {
        **operator.netG["fusion"],
        "type": "motion",
        "step_count": STEP_COUNT,
    }
    if network:
        fusion["motion_by"] = "both"  # the network and DIS
    # `resolve` checks the options and adds the defaults of missing options. `plain` makes a dict.
    netG = NETWORKS.resolve({**operator.netG, "fusion": fusion}, "netG").plain()
    saved = replace(operator, netG=netG)
    net = NETWORKS.build(netG, "netG", spike_channels=saved.spike_channels)

    # strict=False, because the operator has no weights of the steps. They keep their initial
    # values.
    net.load_state_dict(operator.weights, strict=False)
    if network:
        net.fusion.motion_net.load_state_dict(torch.load(network))
    return saved, net.fusion.eval()


def steps_of(net: MotionFusion, part: str) -> MotionSteps:
    """Return the learned steps for "few" spikes or for "good" light.

    A network without `motion_by: both` has no steps for few spikes. This program always builds it
    with them, because --network is required.
    """
    if part == "good":
        return net.steps
    assert net.few_steps is not None
    return net.few_steps


def begin_at(net: MotionFusion, weights: Path) -> None:
    """Copy the learned steps of a weights file with the fusion "motion" into `net`.

    If the file has no steps for few spikes, its only steps are copied to both places
    (test_both_parts_begin_at_the_steps_of_weights_with_a_single_part).
    """
    fusion_of_file = motion_fusion_of(read_saved(weights).build())
    assert fusion_of_file is not None, f"{weights} has another fusion than motion"
    net.steps.load_state_dict(fusion_of_file.steps.state_dict())
    if net.few_steps is None:
        return
    few_steps = fusion_of_file.few_steps
    if few_steps is None:
        few_steps = fusion_of_file.steps
    net.few_steps.load_state_dict(few_steps.state_dict())


def write_weights(file: Path, saved: SavedNetwork, net: MotionFusion, updates: int) -> None:
    """Write a weights file in the form in which main_train_vrt.py writes the weights of a run.

    `read_saved` (models/portable.py) reads the keys, so they must stay
    (test_the_written_weights_keep_all_of_the_operator_but_its_fusion).

    updates: number of updates, key "iter" of the file.
    """
    options = {
        "scale": saved.scale,
        "netG": saved.netG,
        "spike_channels": saved.spike_channels,
        "spike": saved.spike,
        "spike_data": saved.spike_data,
    }
    # The fusion is the part "fusion" of the whole network.
    params = {f"fusion.{name}": value for name, value in net.state_dict().items()}
    torch.save({"params": params, "options": options, "iter": updates}, file)


# ---- Data ------------------------------------------------------------------------------------
#
# No test makes the clips of SETS or their samples, because they need the videos.


def training_samples(
    out: Path,
    videos: Path,
    operator: SavedNetwork,
    net: MotionFusion,
    names: Sequence[str] = tuple(SETS),
) -> dict[str, list[Sample]]:
    """Make the clips of sets, and a sample of each frame. Returns name of a set -> its samples.

    Clips and samples that are already in `out` are used as they are.

    videos: folder of the videos. operator: makes the first estimates. net: its network finds the
    motion. names: the sets, in the order of SETS.
    """
    sources = made_sources(out, videos)
    find_motion = finder_of(net.motion_by, net.motion_net, CPU)
    samples = {}
    for name in names:
        clip_set = SETS[name]
        source = sources[clip_set.source]
        samples[name] = samples_of(out, name, clip_set, source, operator, find_motion)
    return samples


def made_sources(out: Path, videos: Path) -> dict[str, Path]:
    """Collect what the clips are made from. Returns kind of source -> its folder.

    "videos" has links to the videos, "stills" has frames of them as files, and "photos" has links
    to photographs of scikit-image. E.g. with STILL_PLACES, a video of 90 frames gives the stills of
    its frames 15, 30, 45 and 75.
    """
    folders = {kind: out / "sources" / kind for kind in ("videos", "stills", "photos")}
    video_paths = video_files(videos, VIDEOS["train"])
    link_files(video_paths, folders["videos"])
    link_files(photo_files(f"{name}.png" for name in PHOTOS), folders["photos"])

    folders["stills"].mkdir(parents=True, exist_ok=True)
    for video in video_paths:
        frames = FrameSource(video)
        for still_index, place in enumerate(STILL_PLACES):
            still = folders["stills"] / f"{video.stem}_{still_index}.png"
            if not still.exists():
                imwrite_rgb(still, frames.read(int(place * len(frames))))
    return folders


# Keys of the operator's section `spike` that describe the data of its training: spikes per plane,
# planes of an exposure, and the like. `readers_of_set` removes them, because each clip of this
# program has values of its own in its dataset.json.
KEYS_OF_OPERATOR_DATA = ("rate", "light", "exposure", "first", "count", "calibration")


def samples_of(
    out: Path,
    name: str,
    clip_set: ClipSet,
    source: Path,
    operator: SavedNetwork,
    find_motion: Finder,
) -> list[Sample]:
    """Make the clips of a set, and return a sample of each frame, clip after clip.

    E.g. "seven_dim" has 2 clips of 4 frames from each of the 7 training videos, so 56 samples.

    The clips are written to <out>/data, and the samples to <out>/samples. If the file of samples is
    there, the samples are read from it. Delete the file after a change of what a sample is made of:
    its first estimate, its motion or its proposal. lab/vrt_curve.py calls this function as well.

    name: the name of the set, e.g. "seven_dim", a key of SETS.
    clip_set: how the clips are made.
    source: folder of the videos or photographs.
    operator: the network that makes the first estimates.
    find_motion: finds the motion within an exposure. It takes the recording of the exposure, its
    view, and the gain of the spike pixels.
    """
    file = out / "samples" / f"{name}.pt"
    if file.exists():
        # weights_only=False, because a sample holds objects of our own classes, e.g. a Recording.
        # The file is safe to read, because this program wrote it.
        saved = torch.load(file, weights_only=False)
        return [Sample(**fields) for fields in saved]

    folder = make_clips(
        out,
        name,
        source=source,
        rig=clip_set.rig,
        clips=clip_set.clips,
        frames=clip_set.frames,
        average=clip_set.average,
        crop=clip_set.crop,
    )
    samples = []
    net = operator.build()
    for reader in readers_of_set(folder, clip_set.calibration, operator):
        samples += samples_of_clip(reader, net, find_motion)

    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save([vars(sample) for sample in samples], file)
    print(f"{name}: {len(samples)} samples", flush=True)
    return samples


def samples_of_clip(reader: DatasetClip, net: nn.Module, find_motion: Finder) -> list[Sample]:
    """Return a sample of each frame of a clip.

    net: the operator, which makes the first estimates. find_motion: as in `samples_of`.
    """
    # None: the planes of half an exposure are read before it, and as many after it.
    clip = RecordedClip(reader, context=None)
    gain, is_good = clip.gain()  # of each spike pixel, (h, w) both
    samples = []
    for frame_index in range(clip.frames):
        frame = reader.frame(frame_index)
        recording = clip.read(frame_index)
        with torch.no_grad():
            # A batch of one clip of one frame: (C, H, W) -> (1, 1, C, H, W), and back.
            estimate = net(frame["lq"][None, None], frame["spike"][None, None])[0, 0]
        z_0 = estimate.clamp(0, 1)
        motion = find_motion(recording, clip.view, gain)
        pixels = SpikePixels(clip.view, CPU)
        equations = Equations(recording, pixels, motion, gain, is_good, SOLVER, CPU)
        sample = Sample(
            recording=recording,
            view=clip.view,
            motion=motion,
            gain=gain,
            is_good=is_good,
            z_0=z_0,
            proposal=equations.proposal(z_0),  # their solution, beginning with z_0
            sharp=frame["gt"].clone(),
        )
        samples.append(sample)
    return samples


def readers_of_set(
    folder: Path, calibration: str | None, operator: SavedNetwork
) -> list[DatasetClip]:
    """Open the clips of a set. Their spikes are read in the form on which the operator was trained.

    calibration: value of the option spike.calibration.
    """
    assert operator.spike is not None  # the operator takes spikes
    spike = dict(operator.spike)
    # Rate, planes of an exposure, and the like: the dataset.json of the set says them.
    for key in KEYS_OF_OPERATOR_DATA:
        spike.pop(key, None)
    spike["calibration"] = calibration
    # Input and true frames lie below one folder: <frames>/<clip>/blur and <frames>/<clip>/sharp.
    frames = str(folder / RGB / "train")
    return user_clips(
        path=frames,
        spike=str(folder / SPIKES / "train"),
        gt=frames,
        spike_options=spike,
        scale=1,
        trained=operator.spike_data,
    )


def samples_of_part(samples: Mapping[str, list[Sample]], part: str) -> dict[str, list[Sample]]:
    """Return the samples on which a part of the steps is trained: name of a set -> its samples.

    SPIKES_OF_PART says how many spikes a sample of the part has. A set is left out if fewer than
    LEAST_SAMPLES of its samples are in this range
    (test_each_part_is_trained_on_the_light_in_which_it_is_used).

    part: "few" or "good".
    """
    least, below = SPIKES_OF_PART[part]
    samples_in_range = {}
    for name, samples_of_set in samples.items():
        in_range = []
        for sample in samples_of_set:
            spikes = median_spikes(sample.recording)
            if spikes >= least and spikes < below:
                in_range.append(sample)
        if len(in_range) >= LEAST_SAMPLES:
            samples_in_range[name] = in_range
    return samples_in_range


# ---- Wrong motion ----------------------------------------------------------------------------
#
# The ranges below are a choice, and no other ranges were measured. The usual error of `finder_of`
# is 0.65 pixels in bright light and up to 2.5 pixels in dim light
# (docs/benchmarks/quality_details.md). The ranges go from small errors to several times this error.
# Much smaller errors would hardly change the equations, so the steps could not learn to see them.

# Factor of the whole motion: 0 is no motion, and 1.8 is 80 % too much.
MOTION_FACTORS = (0, 1.8)
# Smooth errors grow with the distance from the sharp instant, in both directions of time.
SMOOTH_ERROR_PX = (0.5, 8)  # their standard deviation at the begin and end of the exposure
SMOOTH_SIGMA_PX = (6, 24)  # sigma of the Gaussian that smooths them
# A region that moves differently.
REGION_SIGMA_PX = 16  # sigma of the Gaussian that smooths the noise of which the region is made
SHARE_OUTSIDE_REGION = (0.3, 0.9)  # share of the frame outside of the region
REGION_EDGE_PX = 2  # sigma of the soft edge of the region
REGION_SHIFT_PX = (-10, 10)  # x or y of its added shift at the end of the exposure, in pixels


def wrong_motion(motion: Motion, other: Motion, rng: np.random.Generator) -> Motion:
    """Return a motion that is wrong in one of five ways, drawn at random.

        0    all shifts times a factor: too slow or too fast
        1    the motion of another frame. If its frame has another size, as in 2
        2    a smooth error is added
        3    a region stands still
        4    a region has another motion in addition

    The expected error of each shift (`Motion.errors`) stays as in `motion`
    (test_a_wrong_motion_keeps_its_expected_error). So the learned steps cannot see from it that the
    motion is wrong. They must see it from the spikes of the sharp instant.

    The order of the draws is part of the training: if it changes, the same seed gives other
    weights. No test notices.

    motion: the measured motion. other: the motion of another frame.
    """
    shifts = motion.shifts  # (K, H, W, 2)
    kind = int(rng.integers(5))  # as in the list above
    if kind == 1 and other.shifts.shape != shifts.shape:
        kind = 2  # the other frame has another size, so its shifts do not fit
    if kind == 0:
        wrong = shifts * np.float32(rng.uniform(*MOTION_FACTORS))
    elif kind == 1:
        wrong = other.shifts
    elif kind == 2:
        wrong = with_smooth_error(motion, rng)
    elif kind == 3:
        wrong = with_another_region_motion(motion, rng, stands_still=True)
    else:
        wrong = with_another_region_motion(motion, rng, stands_still=False)
    return replace(motion, shifts=np.ascontiguousarray(wrong, np.float32))


def with_smooth_error(motion: Motion, rng: np.random.Generator) -> np.ndarray:
    """Return the shifts (K, H, W, 2) plus a smooth random error that grows with the time."""
    size = motion.shifts.shape[1:3]
    # The logarithm is drawn, so that small errors are as frequent as large ones.
    lowest, highest = np.log(SMOOTH_ERROR_PX)
    error_px = np.exp(rng.uniform(lowest, highest))
    error_x = clouds(size, rng.uniform(*SMOOTH_SIGMA_PX), rng)
    error_y = clouds(size, rng.uniform(*SMOOTH_SIGMA_PX), rng)
    error = np.stack([error_x, error_y], axis=-1)  # (H, W, 2)
    error = (error_px * error).astype(np.float32)
    return motion.shifts + time_from_minus_1_to_1(motion) * error


def with_another_region_motion(
    motion: Motion, rng: np.random.Generator, *, stands_still: bool
) -> np.ndarray:
    """Return the shifts (K, H, W, 2), in which one region of the frame has another motion.

    stands_still: True: the region does not move. False: a random motion is added to its motion.
    """
    # The region is where a smooth noise is above one of its quantiles. E.g. above the quantile 0.7
    # lie 30 % of the pixels.
    noise = clouds(motion.shifts.shape[1:3], REGION_SIGMA_PX, rng)
    limit = np.quantile(noise, rng.uniform(*SHARE_OUTSIDE_REGION))
    region = (noise > limit).astype(np.float32)
    region = cv2.GaussianBlur(region, (0, 0), REGION_EDGE_PX)  # (H, W), 1 inside and 0 outside
    region = region[None, :, :, None]  # (1, H, W, 1)

    # The shift is drawn even if it is not used, because all later draws depend on this draw.
    added_shift = rng.uniform(*REGION_SHIFT_PX, size=2).astype(np.float32)  # x and y
    if stands_still:
        return motion.shifts * (1 - region)
    return motion.shifts + region * time_from_minus_1_to_1(motion) * added_shift


def time_from_minus_1_to_1(motion: Motion) -> np.ndarray:
    """Return the times of a motion in [-1, 1], as (K, 1, 1, 1). The sharp instant is 0.

    So a shift times these numbers is a motion with constant speed.
    """
    farthest = np.abs(motion.times).max()
    times = (motion.times / farthest).astype(np.float32)
    return times[:, None, None, None]


def clouds(size: tuple[int, int], sigma: float, rng: np.random.Generator) -> np.ndarray:
    """Return smooth noise (H, W) of mean 0 and standard deviation 1.

    size: (H, W). sigma: of the Gaussian that smooths the noise, in pixels.
    """
    height, width = size
    # The noise is drawn and smoothed at a quarter of the size and then enlarged, which is faster. A
    # sigma of 6 pixels or more loses nothing by this.
    noise = rng.standard_normal((height // 4, width // 4)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), sigma / 4)
    smooth = cv2.resize(smooth, (width, height))
    return (smooth - smooth.mean()) / smooth.std()


# ---- Training --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """What one update is trained on."""

    name: str  # the set and the kind of the motion, e.g. "seven_dim wrong", for the printed gains
    sample: Sample
    equations: JointEquations  # along the measured motion or a wrong one
    proposal: Tensor  # (3, H, W), their solution
    turn: Turn  # how the conv net sees the pictures


def train(
    net: MotionSteps,
    samples: Mapping[str, list[Sample]],
    solver: Solver,
    updates: int,
    seed: int,
    save: Callable[[Mapping[str, Tensor], int], None],
    rate: float = RATE,
    worse_weight: float = WORSE_WEIGHT,
) -> None:
    """Train the learned steps. Each update uses one frame.

    net: the learned steps. Their weights are changed in place.
    samples: name of a set -> its samples.
    solver: settings of the equations.
    updates: number of updates.
    seed: seed of all draws.
    save: function that is called with the averaged weights and the number of updates so far, every
        SAVE_EVERY updates and at the end.
    rate: largest learning rate.
    worse_weight: weight of squares that became worse, see `loss_of`.
    """
    # Two generators: one chooses samples and how they are turned, the other makes wrong motions.
    sampler = random.Random(seed)
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.Adam(net.parameters(), rate, betas=BETAS)
    averaged = {name: value.clone() for name, value in net.state_dict().items()}
    gains_db: dict[str, list[float]] = {}  # since the last printed line, by the name of the draw
    begin = time.time()
    for update in range(updates):
        drawn = draw(samples, solver, sampler, rng)
        optimizer.param_groups[0]["lr"] = rate * share_of_rate(update, updates)
        gain_db = update_weights(net, optimizer, drawn, worse_weight)
        done = update + 1

        # In the first 100 updates the average is the plain mean of all weights so far, because
        # otherwise the initial weights would count in it for long. No test looks at its values.
        newest_share = max(NEWEST_SHARE, 1 / done)
        for key, newest in net.state_dict().items():
            averaged[key].lerp_(newest, newest_share)

        gains_db.setdefault(drawn.name, []).append(gain_db)
        if done % PRINT_EVERY == 0:
            means = [f"{name} {np.mean(each):+.2f}" for name, each in sorted(gains_db.items())]
            elapsed = time.time() - begin
            print(f"{done} of {updates}, {elapsed:.0f} s: {', '.join(means)}", flush=True)
            gains_db = {}
        if done % SAVE_EVERY == 0 or done == updates:
            save(averaged, done)


def update_weights(
    net: MotionSteps, optimizer: torch.optim.Optimizer, drawn: Draw, worse_weight: float
) -> float:
    """Change the weights once. Returns by how many dB the steps improve on the first estimate.

    drawn: what the update is trained on. worse_weight: see `loss_of`.
    """
    sample = drawn.sample
    frames = net.all_steps(sample.z_0, drawn.proposal, drawn.equations, drawn.turn)
    loss, gain_db = loss_of(frames, sample.z_0, sample.sharp, worse_weight)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), LARGEST_GRADIENT)
    optimizer.step()
    return gain_db


def draw(
    samples: Mapping[str, list[Sample]],
    solver: Solver,
    sampler: random.Random,
    rng: np.random.Generator,
) -> Draw:
    """Draw a sample, its motion, and how its pictures are turned for the conv net.

    The order of the draws must stay: with another order the same seed gives other weights. No test
    notices another order.

    samples: name of a set -> its samples. solver: settings of the equations.
    sampler: generator that chooses samples and how they are turned.
    rng: generator of the wrong motion.
    """
    # A set by its weight, and a sample of the set, all samples alike.
    set_weights = [SETS[name].weight for name in samples]
    [set_name] = sampler.choices(list(samples), set_weights)
    sample = sampler.choice(samples[set_name])

    # Equations along a wrong motion are made anew, because each wrong motion is used once.
    if sampler.random() < SHARE_OF_WRONG_MOTION:
        name = f"{set_name} wrong"
        other = sampler.choice(samples[set_name])
        motion = wrong_motion(sample.motion, other.motion, rng)
        equations = sample.equations_along(motion, solver)
        proposal = equations.proposal(sample.z_0)
    else:
        name = set_name
        equations = sample.measured_equations(solver)
        proposal = sample.proposal

    turn = Turn(
        mirrored=sampler.random() < 0.5,
        upside_down=sampler.random() < 0.5,
        transposed=sampler.random() < 0.5,
    )
    return Draw(name=name, sample=sample, equations=equations, proposal=proposal, turn=turn)


def share_of_rate(update: int, updates: int) -> float:
    """Return the learning rate over the largest rate: a linear warm-up times a cosine.

    The cosine falls from 1 to 0, but counts at least LAST_RATE_SHARE.

    update: number of the update, from 0. updates: number of all updates.
    """
    warm_up = min(1, (update + 1) / WARM_UP)
    cosine = 0.5 * (1 + np.cos(np.pi * update / updates))
    return warm_up * max(LAST_RATE_SHARE, cosine)


def loss_of(
    frames: Sequence[Tensor], z_0: Tensor, sharp: Tensor, worse_weight: float = WORSE_WEIGHT
) -> tuple[Tensor, float]:
    """Return the loss, and the gain of the last frame over the first estimate in dB.

    The gain is the PSNR of the last frame minus the PSNR of the first estimate. With e_0 the
    squared errors of the first estimate z_0, and e_k the squared errors of the frame
    after learned step k,

        loss = sum over k of STEP_WEIGHTS[k] (relative_k + worse_weight worse_k)
        relative_k = log(mean(e_k) / mean(e_0))
        worse_k    = mean over squares of max(0, e_k - e_0) / mean(e_0)

    The logarithm makes bright and dim samples count alike. `worse_k` punishes a square of the frame
    that became worse, even if the frame became better in the mean
    (test_a_loss_counts_a_square_that_became_worse_more_than_one_that_became_better). LOSS_FLOOR is
    added to the means.

    frames: the frame (3, H, W) after each learned step. z_0, sharp: first estimate and true frame,
    (3, H, W).
    """
    e_0 = (z_0 - sharp) ** 2
    mean_0 = e_0.mean() + LOSS_FLOOR
    loss = torch.zeros(())
    for weight, frame in zip(STEP_WEIGHTS, frames, strict=True):
        e_k = (frame - sharp) ** 2
        mean_k = e_k.mean() + LOSS_FLOOR
        relative = (mean_k / mean_0).log()
        worse = F.relu(means_of_squares(e_k) - means_of_squares(e_0)).mean() / mean_0
        loss = loss + weight * (relative + worse_weight * worse)

    # After the loop, e_k are the errors of the last frame.
    ratio = (e_k.detach().mean() + GAIN_FLOOR) / (e_0.mean() + GAIN_FLOOR)
    gain_db = float(-10 * ratio.log10())
    return loss, gain_db


def means_of_squares(errors: Tensor) -> Tensor:
    """Return the mean of errors (3, H, W) over the colours and over each square of the frame.

    The result is (1, 1, H / 12, W / 12): a square has SQUARE_SIDE pixels on each side.
    """
    grey = errors.mean(0)[None, None]  # (1, 1, H, W)
    return F.avg_pool2d(grey, SQUARE_SIDE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
