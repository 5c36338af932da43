"""The clips of the forms "prior" and "behind", and the score of a clip.

A form is one place where attention over frames may be added (lab/vrt_curve.py). The forms "prior"
and "behind" see clips of three or four frames. A frame is a sample of lab/train_motion.py. The
operator is the network of weights/operator.pth. The sample has z_0, the frame of the operator, and
the equations along the motion.

What must stay: the order of the sets, because `draw_clip` draws a set by its index. No test clip
may come from a training video. No test makes these clips, because they need the videos.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from data.motion.finder import finder_of
from lab.motion_steps.made_samples import samples_of
from lab.motion_steps.network import OPERATOR_WEIGHTS, SHIPPED_WEIGHTS, network_of
from lab.motion_steps.sample import CPU, Sample
from lab.motion_steps.sets import SETS, ClipSet, make_sources
from lab.quality_suite.sources import VIDEOS, link_files, video_files
from lab.vrt_forms.form import LIGHTS
from models.portable import read_saved


def _training_sets() -> dict[str, ClipSet]:
    """Return the sets of training clips: videos and photographs in each light.

    E.g. "one_seven_dim" is the set "seven_dim" of SETS, with one clip of each video instead of two.
    One clip is enough for minutes of training, and the equations of all clips are kept in memory.
    The order of the sets is part of the training, because `draw_clip` draws a set by its index.
    """
    sets = {}
    for kind in ("seven", "photos"):
        for light in LIGHTS:
            name = f"{kind}_{light}"
            sets[f"one_{name}"] = replace(SETS[name], clips=1)
    return sets


TRAINING_SETS = _training_sets()
# Light -> the set of test clips: the clips "choose" of lab/quality.py. The field `weight` is not
# used here, because all test clips are restored.
TEST_SETS = {
    light: ClipSet("choose", light, clips=2, frames=8, weight=1, crop=192) for light in LIGHTS
}
# The frames of a test clip that are restored together: the middle four of eight. A training clip
# has three or four frames.
TEST_FRAMES = slice(2, 6)
# Side in pixels of the square in the middle of a frame that is scored. Attention and convs see less
# at the border of a frame, so the border is not scored. VRT restores only this square, because the
# rest of the frame would take most of the time.
SCORED_SIDE = 128
Clip = list[Sample]  # successive frames


class Pictures(NamedTuple):
    """The frames of a clip, without its spikes."""

    z_0: Tensor  # (N, 3, H, W) the frames as the operator, weights/operator.pth, restores them
    sharp: Tensor  # (N, 3, H, W) the true frames


def pictures_of(clip: Clip) -> Pictures:
    """Return the frames of the operator and the true frames of a clip."""
    return Pictures(
        z_0=torch.stack([sample.z_0 for sample in clip]),
        sharp=torch.stack([sample.sharp for sample in clip]),
    )


def training_clips(videos: Path, out: Path) -> list[list[Clip]]:
    """Return the clips of each of TRAINING_SETS. Clips that are not in `out` are made.

    videos: folder of the videos of lab/quality.py.
    """
    sources = make_sources(out, videos)
    clips = []
    for name, clip_set in TRAINING_SETS.items():
        clips.append(clips_of(out, name, clip_set, sources[clip_set.source]))
    return clips


def test_clips(videos: Path, out: Path) -> dict[str, dict[str, Clip]]:
    """Return light -> name of a clip -> its TEST_FRAMES. Clips that are missing are made."""
    source = out / "sources" / "choose"
    link_files(video_files(videos, VIDEOS["choose"]), source)
    clips: dict[str, dict[str, Clip]] = {}
    for light, clip_set in TEST_SETS.items():
        # The clips are in the order of the videos, e.g. coffee_00, coffee_01, walker_00.
        names = []
        for video in VIDEOS["choose"]:
            names += [f"{video}_{index:02d}" for index in range(clip_set.clips)]
        whole_clips = clips_of(out, f"choose_{light}", clip_set, source)
        clips[light] = {}
        for name, clip in zip(names, whole_clips, strict=True):
            clips[light][name] = clip[TEST_FRAMES]
    return clips


def clips_of(out: Path, name: str, clip_set: ClipSet, source: Path) -> list[Clip]:
    """Return the clips of a set. The network of weights/motion.pth finds the motion."""
    operator = read_saved(OPERATOR_WEIGHTS)
    shipped = network_of(SHIPPED_WEIGHTS)
    # `find_motion` is a function that finds the motion within an exposure.
    find_motion = finder_of(shipped.motion_by, shipped.motion_net, CPU)
    samples = samples_of(
        out, name=name, clip_set=clip_set, source=source, operator=operator, find_motion=find_motion
    )
    # The samples are in the order of the frames, clip after clip.
    starts = range(0, len(samples), clip_set.frames)
    return [samples[start : start + clip_set.frames] for start in starts]


def draw_clip(clips: Sequence[Sequence[Any]], rng: np.random.Generator) -> Any:
    """Draw a set, and a clip of this set. All sets are equally likely."""
    clips_of_set = clips[int(rng.integers(len(clips)))]
    return clips_of_set[int(rng.integers(len(clips_of_set)))]


def gain_db(restored: Tensor, z_0: Tensor, sharp: Tensor) -> float:
    """Return the mean gain of the frames of a clip over the frames z_0, in dB.

        gain of a frame = 10 log10(mean squared error of z_0 / mean squared error of `restored`)

    Only the middle of a frame is scored.

    restored: (N, 3, H, W), the frames after the network.
    z_0: (N, 3, H, W), the frames before the network. weights/operator.pth has restored them.
    sharp: (N, 3, H, W), the true frames.
    """
    # z_0 needs no clamp, because it lies in [0, 1] already.
    restored = middle_square(restored).clamp(0, 1)
    z_0 = middle_square(z_0)
    sharp = middle_square(sharp)
    errors = (restored - sharp).square().mean((1, 2, 3))  # (N,)
    errors_0 = (z_0 - sharp).square().mean((1, 2, 3))  # (N,)
    return float(-10 * (errors / errors_0).log10().mean())


def middle_square(frames: Tensor) -> Tensor:
    """Return the middle SCORED_SIDE x SCORED_SIDE pixels of frames (..., H, W).

    A frame that is smaller is returned as a whole.
    """
    # For a smaller frame the difference is negative. A negative index would count from the end.
    top = max(0, (frames.shape[-2] - SCORED_SIDE) // 2)
    left = max(0, (frames.shape[-1] - SCORED_SIDE) // 2)
    return frames[..., top : top + SCORED_SIDE, left : left + SCORED_SIDE]
