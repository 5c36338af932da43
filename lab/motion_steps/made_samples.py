"""Make the clips of a set, and a sample of each of their frames.

A sample has a frame, its spikes, its motion, and a proposal: a frame that solves the equations
along this motion. The learned steps of weights/motion.pth are trained on the samples.

What must stay: clips and samples that are already in <out> are used as they are. So delete
<out>/samples after a change of SOLVER, because the samples hold the proposals that SOLVER made.
Free to change, for the next training: the values below.

No test makes the clips of SETS or their samples, because they need the videos.
test_each_part_is_trained_on_the_light_in_which_it_is_used tests `samples_of_part`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from data.clips.clip_reader import user_clips
from data.clips.readers import DatasetClip
from data.motion.finder import Finder, finder_of
from data.motion.joint.equations import Equations, Solver
from data.motion.joint.spike_pixels import SpikePixels
from data.motion.light import median_spikes
from data.motion.recording import RecordedClip
from lab.motion_steps.sample import CPU, Sample
from lab.motion_steps.sets import SETS, ClipSet, make_sources
from lab.quality_suite.sets import make_clips
from models.fusion.fusion_motion import MotionFusion
from models.saved_network import SavedNetwork
from scripts.make_sample_data import RGB, SPIKES

# The solver that makes the proposals in training:
#
#     groups          groups of planes of an exposure
#     linearisations  rounds. Each round sets up the equations again
#     steps           steps of the conjugate gradients in each round
#
# This solver takes less time than the solver of a test, and its proposals are less exact. The
# learned steps work with the better proposals of a test as well. Training with better proposals was
# tried twice, from the shipped weights: it lost 0.1 to 0.25 dB on the clips coffee and walker.
SOLVER = Solver(groups=12, linearisations=2, steps=8)
# The learned steps have two parts. The part "few" restores exposures with few spikes, and the part
# "good" restores all others. SPIKES_OF_PART says on which samples a part is trained: value of
# --part -> (from, below). A sample belongs to the part if from <= spikes < below. The number of
# spikes is `median_spikes`: the spikes of a pixel of median light during the exposure. A
# restoration uses the part "few" below 10 spikes (`data.motion.learned_method.FEW_SPIKES`). The
# ranges overlap, so that both parts are trained on samples with about 10 spikes.
SPIKES_OF_PART = {"few": (0.0, 12.0), "good": (8.0, float("inf"))}
# Least number of samples of a set in the range of the part. A set with fewer samples is left out.
# Sets are drawn by their weights, so each of its few samples would be drawn often.
LEAST_SAMPLES = 6
# The operator is the network of weights/operator.pth. It makes the first estimate of a frame. The
# keys below are keys of its section `spike`. The keys describe the data of the operator's training,
# e.g. "rate" is the spikes per plane. `readers_of_set` removes the keys, because each set of clips
# has its own values in its dataset.json.
KEYS_OF_OPERATOR_DATA = ("rate", "light", "exposure", "first", "count", "calibration")


def training_samples(
    out: Path,
    videos: Path,
    operator: SavedNetwork,
    net: MotionFusion,
    names: Sequence[str] = tuple(SETS),
) -> dict[str, list[Sample]]:
    """Make the clips of sets, and a sample of each frame. Returns name of a set -> its samples.

    Clips and samples that are already in `out` are used as they are.

    videos: folder of the videos.
    operator: the network that makes the first estimate of each frame.
    net: the fusion "motion", the module whose learned steps are trained on the samples. The fusion
        says how the motion of the samples is found: by an optical flow, by its own small network
        `net.motion_net`, or by both (data/motion/finder.py).
    names: the sets, in the order of SETS.
    """
    sources = make_sources(out, videos)
    # A function that finds the motion within an exposure. It runs on the CPU, as the whole training
    # does (lab/train_motion.py).
    find_motion = finder_of(net.motion_by, net.motion_net, CPU)
    samples = {}
    for name in names:
        clip_set = SETS[name]
        source = sources[clip_set.source]
        samples[name] = samples_of(
            out,
            name=name,
            clip_set=clip_set,
            source=source,
            operator=operator,
            find_motion=find_motion,
        )
    return samples


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

    The clips are written to <out>/data, and the samples to <out>/samples. If the file of the
    samples exists, the samples are read from this file. If a change of the program gives other
    first estimates, motions or proposals, delete the file, because it holds the old samples. A
    proposal is a frame that solves the equations along the motion. lab/vrt_curve.py calls this
    function as well.

    name: the name of the set, e.g. "seven_dim", a key of SETS.
    clip_set: how the clips are made.
    source: folder of the videos or photographs.
    operator: the network that makes the first estimates.
    find_motion: finds the motion within an exposure (data/motion/finder.py).
    """
    file = out / "samples" / f"{name}.pt"
    if file.exists():
        # weights_only=False, because a sample holds objects of our own classes, e.g. a Recording.
        # The file is safe to read, because this function wrote it.
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
    net = operator.build()  # the module of the operator
    for reader in readers_of_set(folder, clip_set.calibration, operator):
        samples += samples_of_clip(reader, net, find_motion)

    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save([vars(sample) for sample in samples], file)
    print(f"{name}: {len(samples)} samples", flush=True)
    return samples


def samples_of_clip(reader: DatasetClip, net: nn.Module, find_motion: Finder) -> list[Sample]:
    """Return a sample of each frame of a clip.

    net: the operator. It makes the first estimates.
    find_motion: finds the motion within an exposure (data/motion/finder.py).
    """
    # The context is the planes that are read before and after an exposure. None stands for the
    # usual number: half an exposure before it, and half an exposure after it.
    clip = RecordedClip(reader, context=None)
    # For each spike pixel, (h, w): its spikes per plane at full light, and whether it is trusted.
    gain, is_good = clip.gain()
    samples = []
    for frame_index in range(clip.frames):
        frame = reader.frame(frame_index)
        recording = clip.read(frame_index)
        with torch.no_grad():
            # A batch of one clip of one frame: (C, H, W) -> (1, 1, C, H, W), and back.
            estimate = net(frame["lq"][None, None], frame["spike"][None, None])[0, 0]
        z_0 = estimate.clamp(0, 1)  # the first estimate of the sharp frame
        motion = find_motion(recording, clip.view, gain)
        # `SpikePixels` maps a frame to the spike pixels. `Equations` says what both cameras must
        # have recorded of the sharp frame, along the motion.
        pixels = SpikePixels(clip.view, CPU)
        equations = Equations(
            recording,
            pixels,
            motion,
            gain=gain,
            is_good=is_good,
            solver=SOLVER,
            device=CPU,
        )
        sample = Sample(
            recording=recording,
            view=clip.view,
            motion=motion,
            gain=gain,
            is_good=is_good,
            z_0=z_0,
            proposal=equations.proposal(z_0),  # the solution of the equations, begun at z_0
            sharp=frame["gt"].clone(),
        )
        samples.append(sample)
    return samples


def readers_of_set(
    folder: Path, calibration: str | None, operator: SavedNetwork
) -> list[DatasetClip]:
    """Open the clips of a set. Spikes get the representation on which the operator was trained.

    calibration: value of the option spike.calibration.
    """
    assert operator.spike is not None  # the operator takes spikes
    spike = dict(operator.spike)
    # The dataset.json of the set says these values, e.g. the rate and the planes of an exposure.
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
    least, too_many = SPIKES_OF_PART[part]  # least <= spikes < too_many
    samples_in_range = {}
    for name, samples_of_set in samples.items():
        in_range = []
        for sample in samples_of_set:
            spikes = median_spikes(sample.recording)
            if spikes >= least and spikes < too_many:
                in_range.append(sample)
        if len(in_range) >= LEAST_SAMPLES:
            samples_in_range[name] = in_range
    return samples_in_range
