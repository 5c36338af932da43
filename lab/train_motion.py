#!/usr/bin/env python3
"""Train the steps of the fusion "motion" behind the shipped operator: weights/motion.pth.

    python lab/train_motion_net.py --videos VIDEOS --out FILE
    python lab/train_motion.py --videos VIDEOS --network FILE [--steps 2000] [--begin WEIGHTS]

One thread of a CPU. The steps are trained on the training videos of lab/quality.py with seven real
frames in an exposure, and on stills under exact motion: frames of these videos and photographs
(`photo_scene`: layers that cover each other, no optical flow). The samples show all lights, and
what a user may get wrong: other cameras, a spike camera that is not calibrated, blurry frames that
are means of display values, and wrong motion. Nothing of the videos to choose by and to report, and
of the photographs of lab/joint_gain.py, is seen. Sets and samples that are there are not made
again.

The fusion has two sets of steps. --part says which one is trained: that for few spikes, or that for
good light. The other one stays as --begin has it.

--plain trains the same conv net on the same samples, but hides the motion and its equations. It
shows what they are worth.

Writes <out>/motion.pth, every 500 steps and at the end, and prints how much the steps gain over the
operator.
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
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.clips.clip_reader import user_clips
from data.clips.files import FrameSource
from data.motion.flow import Motion
from data.motion.joint import Equations, Solver, SpikePixels
from data.motion.learned import Finder, finder_of
from data.motion.recording import RecordedClip, Recording, View
from lab.quality import VIDEOS, call
from lab.tools import ROOT
from lab.train_motion_net import photo_files
from models.fusion.fusion_motion import MotionFusion, MotionSteps, Turn
from models.fusion.fusion_motion import motion_of as motion_fusion_of
from models.portable import SavedNetwork, read_saved
from models.select_network import NETWORKS
from scripts.make_sample_data import RGB, SPIKES
from utils.contract import JointEquations
from utils.image import imwrite_rgb

OPERATOR = ROOT / "weights/operator.pth"  # the network whose frames the steps improve
CPU = torch.device("cpu")

# ---- Choices of the training -------------------------------------------------------------------

SEVEN = 7  # real frames in an exposure
# Of each video two frames become stills, at these shares of its length.
STILLS = (1 / 6, 1 / 2)
# Photographs of lab/train_motion_net.py that are large enough. The names are files of scikit-image.
PHOTOS = ("brick", "camera", "cell", "coins", "grass", "ihc", "moon", "motorcycle_left")
# Proposals of the training. Those of the test are twice as good in twice the time, and the steps
# trust them as well (docs/benchmarks/quality.md).
SOLVER = Solver(groups=12, linearisations=2, steps=8)
# Share of the samples in which a wrong motion replaces the measured one, so that the steps learn
# when not to trust it.
WRONG = 0.2
# Weights of the frames in the loss: after the first step, and after the second.
OF_STEPS = (0.25, 1.0)
# Side in pixels of the squares that are compared with the first estimate, and the weight in the
# loss of squares that became worse.
SQUARE, OF_WORSE = 12, 0.5
# Added to mean squared errors, so that the logarithm of a perfect frame is finite. It is about the
# error of 8 bits.
FLOOR = 2e-5
# The optimizer: learning rate, Adam's betas, largest gradient norm, steps of the warm-up.
RATE, BETAS, LARGEST_GRADIENT, WARM_UP = 2e-3, (0.9, 0.99), 1.0, 50
LAST_RATE = 0.02  # learning rate at the end over RATE
AVERAGED = 0.01  # share of the newest weights in the averaged ones
SAVED_EACH = 500  # steps


@dataclass(frozen=True)
class Set:
    """A set of clips, and its share of the samples.

    The fields rig, clips, frames, average and crop are flags of scripts/prepare_gopro_spike.py.
    """

    source: str  # "videos", "stills" or "photos": what the clips are made from
    rig: str  # the two cameras, e.g. "dim"; data/cameras/rig.py has the names
    clips: int  # number of clips per video, still or photograph
    frames: int  # frames of a clip
    share: int  # weight of the set when a sample is drawn
    average: int | None = None  # real frames in an exposure; None: as the program chooses
    crop: int = 144  # side of the frames in pixels
    # spike.calibration when the spikes are read. None: the spike camera counts as not shifted,
    # which is wrong here, so that the steps see what a user gets without a calibration.
    calibration: str | None = "auto"


# Name -> set. The names are folders below --out. The draws of `train` go through this order, so a
# new set changes all samples after it.
SETS = {
    "seven_ideal": Set("videos", "ideal", 2, 4, 3, SEVEN, 192),
    "seven_rig": Set("videos", "rig", 2, 4, 3, SEVEN, 192),
    "seven_dim": Set("videos", "dim", 2, 4, 4, SEVEN, 192),
    "seven_random": Set("videos", "random", 1, 3, 2, SEVEN),
    "seven_means": Set("videos", "ideal,sum_gamma=2.2", 1, 2, 2, SEVEN),
    "usual_other": Set("videos", "other", 1, 3, 2),
    "stills_ideal": Set("stills", "ideal", 1, 3, 2),
    "stills_other": Set("stills", "other", 1, 3, 2),
    "stills_dim": Set("stills", "dim", 1, 3, 3),
    "stills_random": Set("stills", "random", 1, 3, 2, calibration=None),
    "photos_ideal": Set("photos", "ideal", 1, 3, 2),
    "photos_rig": Set("photos", "rig", 1, 3, 2),
    "photos_dim": Set("photos", "dim", 1, 3, 3),
}


@dataclass
class Sample:
    """A frame with all that its equations are made of.

    The names of the fields are keys of the files in <out>/samples: another name makes old files
    unreadable.
    """

    recording: Recording  # the blurry frame and its spikes
    view: View  # where the spike pixels lie on the frame
    motion: Motion  # as it was measured
    gain: np.ndarray  # (h, w) spikes per plane of each spike pixel at full light
    is_good: np.ndarray  # (h, w) whether the gain can be trusted
    z_0: Tensor  # (3, H, W) in [0, 1], the frame of the operator
    proposal: Tensor  # (3, H, W), the solution of the equations
    sharp: Tensor  # (3, H, W) in [0, 1], the true frame
    equations: JointEquations | None = None  # along `motion`; kept after the first use
    is_plain: bool = False  # whether the motion and its equations are hidden

    def equations_along(self, motion: Motion, solver: Solver) -> JointEquations:
        """Return the equations of the exposure along any motion, measured or wrong."""
        pixels = SpikePixels(self.view, CPU)
        known = Equations(self.recording, pixels, motion, self.gain, self.is_good, solver, CPU)
        return HiddenEquations(known) if self.is_plain else known


class HiddenEquations:
    """What is left of the equations if the motion is hidden: the control --plain.

    The blurry frame, the noise and the light stay, and so do the spikes of the sharp instant. The
    proposal is the first estimate, and the equations pull nowhere.
    """

    def __init__(self, known: Equations) -> None:
        self.known = known
        self.blurry = known.blurry

    def proposal(self, z_0: Tensor) -> Tensor:
        """Return the first estimate itself, (3, H, W)."""
        return z_0

    def evidence(self) -> Tensor:
        """Return (6, H, W) with 0 in the channels that tell something of the motion."""
        of_motion = torch.tensor([1, 1, 1, 0, 0, 1], dtype=torch.bool)  # see Equations.evidence
        return self.known.evidence().masked_fill(of_motion[:, None, None], 0)

    def pulls(self, z: Tensor) -> Tensor:
        """Return (7, H, W) with 0 in all channels but the last, the spikes of the sharp instant."""
        of_equations = torch.tensor([1, 1, 1, 1, 1, 1, 0], dtype=torch.bool)  # see Equations.pulls
        return self.known.pulls(z).masked_fill(of_equations[:, None, None], 0)


def hide_motion(samples: Mapping[str, list[Sample]]) -> None:
    """Hide the motion and the equations of all samples. Changes the samples."""
    for each in samples.values():
        for sample in each:
            sample.is_plain = True
            sample.proposal = sample.z_0


def main(argv: Sequence[str]) -> int:
    """Make the samples, train the steps, and write the weights. Returns the exit code 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--videos", type=Path, required=True, help="folder of the videos of lab/quality.py")
    add("--steps", type=int, default=2000, help="optimizer steps, default %(default)s")
    add("--seed", type=int, default=0)
    add("--network", type=Path, required=True, help="weights by lab/train_motion_net.py")
    add("--part", choices=("few", "good"), default="few", help="default %(default)s")
    add("--begin", type=Path, help="weights with the fusion motion whose steps are trained on")
    add("--plain", action="store_true", help="hide the motion and its equations")
    add("--out", type=Path, help="results folder (default experiments/train_motion)")
    args = parser.parse_args(argv)
    out = (args.out or ROOT / "experiments/train_motion").resolve()
    # One thread, and the seed of the initial weights.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    torch.manual_seed(args.seed)

    # The network: the operator with the fusion "motion", whose steps may begin at other weights.
    operator = read_saved(OPERATOR)
    saved, net = motion_network(operator, args.network)
    if args.begin:
        begin_at(net, args.begin)
    trained = steps_of(net, args.part)
    # The samples: clips, then all that the equations need.
    folders = made_sets(out, args.videos)
    find = finder_of(net.motion_by, net.motion_net, CPU)
    samples = {name: samples_of(out, name, folders[name], operator, find) for name in SETS}
    if args.plain:
        hide_motion(samples)
    parameters = sum(p.numel() for p in trained.parameters())
    print(f"{sum(map(len, samples.values()))} samples, {parameters:,} parameters", flush=True)

    # A second network of the same form takes the averaged weights, so that `net` trains on.
    _, averaged = motion_network(operator, args.network)

    def save(weights: Mapping[str, Tensor], step: int) -> None:
        """Write motion.pth with these weights of the steps."""
        averaged.load_state_dict(net.state_dict())
        steps_of(averaged, args.part).load_state_dict(weights)
        write_weights(out / "motion.pth", saved, averaged, step)

    train(trained, samples, SOLVER, args.steps, args.seed, save)
    return 0


def motion_network(
    operator: SavedNetwork, network: Path | None = None
) -> tuple[SavedNetwork, MotionFusion]:
    """Build the fusion "motion" that begins as the operator.

    Returns the description of the network, as a weights file has it, and the fusion.

    network: weights of the network that finds the motion. None: DIS (optical flow) finds it.
    """
    fusion = {**operator.netG["fusion"], "type": "motion"}
    if network:
        fusion["motion_by"] = "both"
    netG = NETWORKS.resolve({**operator.netG, "fusion": fusion}, "netG").plain()
    saved = replace(operator, netG=netG)
    net = NETWORKS.build(netG, "netG", spike_channels=saved.spike_channels)
    # Not strict: the operator has no weights of the steps. They keep their initial values.
    net.load_state_dict(operator.weights, strict=False)
    if network:
        net.fusion.motion_net.load_state_dict(torch.load(network))
    return saved, net.fusion.eval()


def steps_of(net: MotionFusion, part: str) -> MotionSteps:
    """Return the steps for "few" spikes or for "good" light."""
    if part == "good":
        return net.steps
    assert net.few_steps is not None
    return net.few_steps


def begin_at(net: MotionFusion, weights: Path) -> None:
    """Take over the steps of other weights with this fusion. Changes `net`.

    If the other weights have no steps for few spikes, their only steps serve for both.
    """
    begun = motion_fusion_of(read_saved(weights).build())
    assert begun is not None
    net.steps.load_state_dict(begun.steps.state_dict())
    if net.few_steps is not None:
        net.few_steps.load_state_dict((begun.few_steps or begun.steps).state_dict())


def write_weights(file: Path, saved: SavedNetwork, net: MotionFusion, steps: int) -> None:
    """Write a weights file in the form in which main_train_vrt.py writes the weights of a run.

    steps: number of optimizer steps, key "iter" of the file.
    """
    about = {key: getattr(saved, key) for key in ("scale", "netG", "spike_channels", "spike")}
    options = {**about, "spike_data": saved.spike_data}
    params = {f"fusion.{name}": value for name, value in net.state_dict().items()}
    torch.save({"params": params, "options": options, "iter": steps}, file)


# ---- Data ------------------------------------------------------------------------------------


def made_sets(out: Path, videos: Path) -> dict[str, Path]:
    """Make the clips of all sets. Returns name of a set -> its folder.

    Sources, stills and clips that are there are kept. videos: folder of the videos.
    """
    # Folders of what the clips are made from: links to the videos, stills, links to photographs.
    sources = {name: out / "sources" / name for name in ("videos", "stills", "photos")}
    for folder in sources.values():
        folder.mkdir(parents=True, exist_ok=True)
    for name in VIDEOS["train"]:
        # Exactly one file has the name, with any ending.
        [video] = sorted(videos.glob(f"{name}.*"))
        link = sources["videos"] / video.name
        link.exists() or link.symlink_to(video.resolve())
        frames = FrameSource(video)
        for number, share in enumerate(STILLS):
            still = sources["stills"] / f"{name}_{number}.png"
            still.exists() or imwrite_rgb(still, frames.read(int(share * len(frames))))
    for file in photo_files(f"{name}.png" for name in PHOTOS):
        link = sources["photos"] / file.name
        link.exists() or link.symlink_to(file)
    # The clips, by scripts/prepare_gopro_spike.py.
    folders = {}
    for name, each in SETS.items():
        folders[name] = out / "data" / name
        how = {"source": sources[each.source], "out": folders[name], "average": each.average}
        how |= {key: getattr(each, key) for key in ("rig", "clips", "frames", "crop")}
        # {"clips": 2} -> ["--clips", "2"]. None stands for the default of the program.
        given = {key: value for key, value in how.items() if value is not None}
        words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
        fixed = ["--test-share", "0", "--workers", "1"]
        call("scripts/prepare_gopro_spike.py", out, name, *words, *fixed)
    return folders


def samples_of(
    out: Path, name: str, folder: Path, operator: SavedNetwork, find: Finder
) -> list[Sample]:
    """Return a sample of each frame of a set, and write them to <out>/samples.

    If the file is there, the samples are read from it. Delete the file after a change of what a
    sample is made of: its first estimate, its motion or its proposal.

    folder: the clips. operator: makes the first estimates. find: finds the motion.
    """
    file = out / "samples" / f"{name}.pt"
    if file.exists():
        return [Sample(**values) for values in torch.load(file, weights_only=False)]
    # Read the spikes as the operator was trained, without what is true of its training data alone.
    assert operator.spike is not None
    frames, spikes = str(folder / RGB / "train"), str(folder / SPIKES / "train")
    spike = {key: value for key, value in operator.spike.items() if key not in OF_OTHER_DATA}
    spike["calibration"] = SETS[name].calibration
    net = operator.build()
    # Each frame of each clip: first estimate, motion, and the proposal along the motion.
    found = []
    for reader in user_clips(frames, spikes, frames, spike, 1, operator.spike_data):
        clip = RecordedClip(reader, None)
        gain, is_good = clip.gain()
        for number in range(clip.frames):
            frame = reader.frame(number)
            with torch.no_grad():
                # One clip of one frame: (1, 1, C, H, W) -> (C, H, W).
                estimate = net(frame["lq"][None, None], frame["spike"][None, None])[0, 0]
            recording = clip.read(number)
            motion = find(recording, clip.view, gain)
            z_0 = estimate.clamp(0, 1)
            # The proposal is made by the sample itself, so z_0 stands in for it at first.
            sample = Sample(
                recording, clip.view, motion, gain, is_good, z_0, z_0, frame["gt"].clone()
            )
            sample.proposal = sample.equations_along(motion, SOLVER).proposal(z_0)
            found.append(sample)
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save([vars(sample) for sample in found], file)
    print(f"{name}: {len(found)} samples", flush=True)
    return found


# Keys of the spike options that say something about the training data of the operator. The clips
# here have their own values, in dataset.json.
OF_OTHER_DATA = ("rate", "light", "exposure", "first", "count", "calibration")


# ---- Wrong motion ----------------------------------------------------------------------------


def wrong_motion(motion: Motion, other: Motion, rng: np.random.Generator) -> Motion:
    """Return a motion that is wrong in one of five ways. Its expected error stays as it was.

    So the steps cannot see from the expected error that the motion is wrong. They must see it from
    the spikes of the sharp instant.

    motion: the measured one. other: the motion of another frame.
    """
    # time: (K, 1, 1, 1), from -1 to 1 over the exposure. A wrong shift grows with it.
    shifts, size = motion.shifts, motion.shifts.shape[1:3]
    time = (motion.times / np.abs(motion.times).max()).astype(np.float32)[:, None, None, None]
    kind = int(rng.integers(5))
    if kind == 0:  # too short, too long, or none
        wrong = shifts * np.float32(rng.uniform(0, 1.8))
    elif kind == 1 and other.shifts.shape == shifts.shape:
        wrong = other.shifts
    elif kind <= 2:  # off by a smooth field; also if the other frame has another size
        size_px = np.exp(rng.uniform(np.log(0.5), np.log(8)))
        field = np.stack([clouds(size, rng.uniform(6, 24), rng) for _ in range(2)], axis=-1)
        wrong = shifts + time * (size_px * field).astype(np.float32)
    else:  # a part of the frame stands still (3), or moves by itself (4)
        cloud = clouds(size, 16, rng)
        part = (cloud > np.quantile(cloud, rng.uniform(0.3, 0.9))).astype(np.float32)
        part = cv2.GaussianBlur(part, (0, 0), 2)[None, ..., None]
        speed = rng.uniform(-10, 10, 2).astype(np.float32)
        wrong = shifts * (1 - part) if kind == 3 else shifts + part * time * speed
    return replace(motion, shifts=np.ascontiguousarray(wrong, np.float32))


def clouds(size: tuple[int, int], sigma: float, rng: np.random.Generator) -> np.ndarray:
    """Return smooth noise (H, W) of mean 0 and standard deviation 1.

    sigma: size of its structures in pixels.
    """
    # Smooth it at a quarter of the size, then enlarge it.
    small = rng.standard_normal((size[0] // 4, size[1] // 4)).astype(np.float32)
    field = cv2.resize(cv2.GaussianBlur(small, (0, 0), sigma / 4), size[::-1])
    return (field - field.mean()) / field.std()


# ---- Training --------------------------------------------------------------------------------


def train(
    net: MotionSteps,
    samples: Mapping[str, list[Sample]],
    solver: Solver,
    steps: int,
    seed: int,
    save: Callable[[Mapping[str, Tensor], int], None],
) -> None:
    """Train the steps of the fusion, on one frame in each optimizer step.

    The order of the draws is part of the training: with another order the same seed gives other
    weights.

    net: the steps, changed in place. samples: name of a set -> its samples. steps: number of
    optimizer steps. save: takes the averaged weights and the number of steps so far.
    """
    rng = np.random.default_rng(seed)
    order = random.Random(seed)
    names, shares = list(SETS), [each.share for each in SETS.values()]
    optimizer = torch.optim.Adam(net.parameters(), RATE, betas=BETAS)
    averaged = {name: value.clone() for name, value in net.state_dict().items()}
    # Name of a set -> gains in dB since the last line that was printed.
    gains: dict[str, list[float]] = {}
    begin = time.time()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate_of(step, steps)
        # Draw a set by its share, and a sample of the set.
        [name] = order.choices(names, shares)
        sample = order.choice(samples[name])
        is_wrong = order.random() < WRONG
        # Equations along a wrong motion are made anew. Those along the measured motion are kept.
        if is_wrong:
            motion = wrong_motion(sample.motion, order.choice(samples[name]).motion, rng)
            equations = sample.equations_along(motion, solver)
            proposal = equations.proposal(sample.z_0)
        else:
            sample.equations = sample.equations or sample.equations_along(sample.motion, solver)
            equations, proposal = sample.equations, sample.proposal
        # Mirror and transpose what the conv net sees, at random.
        turn = Turn(*(order.random() < 0.5 for _ in Turn._fields))
        frames = net.all_steps(sample.z_0, proposal, equations, turn)
        loss, gain = loss_of(frames, sample.z_0, sample.sharp)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), LARGEST_GRADIENT)
        optimizer.step()
        # At first the average is the plain mean of all weights so far.
        for key, value in net.state_dict().items():
            averaged[key].lerp_(value, max(AVERAGED, 1 / (step + 1)))
        gains.setdefault(f"{name}{' wrong' if is_wrong else ''}", []).append(gain)
        if (step + 1) % 100 == 0:
            means = ", ".join(f"{key} {np.mean(each):+.2f}" for key, each in sorted(gains.items()))
            print(f"{step + 1} of {steps}, {time.time() - begin:.0f} s: {means}", flush=True)
            gains = {}
        if (step + 1) % SAVED_EACH == 0 or step + 1 == steps:
            save(averaged, step + 1)


def rate_of(step: int, steps: int) -> float:
    """Return the learning rate of a step: a linear warm-up, then a cosine down to LAST_RATE.

    step: from 0. steps: number of steps in all.
    """
    cosine = 0.5 * (1 + np.cos(np.pi * step / steps))
    return RATE * min(1, (step + 1) / WARM_UP) * max(LAST_RATE, cosine)


def loss_of(frames: Sequence[Tensor], z_0: Tensor, sharp: Tensor) -> tuple[Tensor, float]:
    """Return the loss of the frames (3, H, W) after each step, and the gain of the last in dB.

    The loss has two terms, each relative to the error of the first estimate z_0 (3, H, W):

        log(mean squared error / that of z_0)    so bright and dim samples count alike
        mean excess error of squares of pixels   so a loss anywhere costs more than a gain elsewhere

    sharp: the true frame (3, H, W).
    """
    before = (z_0 - sharp) ** 2
    mean_before = before.mean() + FLOOR
    total = torch.zeros(())
    for weight, frame in zip(OF_STEPS, frames, strict=True):
        after = (frame - sharp) ** 2
        worse = F.relu(squares(after) - squares(before)).mean() / mean_before
        total = total + weight * (((after.mean() + FLOOR) / mean_before).log() + OF_WORSE * worse)
    # 1e-7 keeps the gain of a perfect frame finite.
    ratio = (after.detach().mean() + 1e-7) / (before.mean() + 1e-7)
    return total, float(-10 * ratio.log10())


def squares(errors: Tensor) -> Tensor:
    """Return the means of errors (3, H, W) over colours and squares, (1, 1, H / 12, W / 12)."""
    return F.avg_pool2d(errors.mean(0)[None, None], SQUARE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
