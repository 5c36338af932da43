"""Clips with gaps, for networks that interpolate: such a network makes a new frame in each gap.

A network that interpolates (VRT with pa_frames 0) takes the frames around a gap. There are two
kinds of clips with gaps:

    InterpolatedClip   a user's clip: new frames come between its frames
    LeftOutFrames      a clip to score on: every second frame is left out, and the network makes it

In both kinds the given frames are numbered 0, 1, 2, ..., and gap g lies between the given frames g
and g + 1. `given_frames` has the index of each given frame in the clip.

In: a clip that a data set or data/clips/clip_reader.py has opened, from main_test_vrt.py or
main_train_vrt.py. Out: a clip with gaps. restorer.py restores both kinds, from the frames that
`frames_around_gaps` selects.

What must stay: which frames are left out and scored, because published scores of Vimeo-90K belong
to them (tests/stories/test_kair_files.py).

Tests: tests/stories/test_main_test.py, test_kair_files.py
"""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from torch import Tensor

from utils.contract import ClipReader, InputSpec
from utils.errors import DataError


def scored_clips(clips: Sequence[ClipReader], spec: InputSpec) -> Sequence[ClipReader]:
    """Return clips with sharp frames, in the form in which a network with `spec` is scored on them.

    A network that interpolates is scored on frames that were left out, see `LeftOutFrames`.
    """
    if not spec.interpolates:
        return clips
    return [LeftOutFrames(clip, spec.least_frames) for clip in clips]


class InterpolatedClip:
    """A clip of n frames as a clip of 2 n - 1 frames, without gt.

    The new frame between "000003" and "000004" is "000003_5". E.g. for a clip of 2 frames:

        stems   "000000"   "000000_5"   "000001"
        gaps    None       0            None

    given_frames: indices of the frames of `clip` between which new frames are made.
    gaps: for each frame the number of the gap in which it lies, from 0. None for a given frame.
    """

    def __init__(self, clip: ClipReader) -> None:
        self.clip = clip
        self.name = clip.name
        self.origin = {"input": clip.origin["input"]}
        self.pixel_aspect = clip.pixel_aspect
        self.fps = None if clip.fps is None else 2 * clip.fps
        self.times = None if clip.times is None else _insert_middles(clip.times)
        self.given_frames = range(len(clip.stems))
        self.stems: list[str] = []
        self.gaps: list[int | None] = []
        for frame_index, stem in enumerate(clip.stems):
            self.stems += [stem, f"{stem}_5"]
            self.gaps += [None, frame_index]  # each frame is given, so gap g lies after frame g
        # There is no gap after the last frame.
        del self.stems[-1]
        del self.gaps[-1]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Any]:
        """Return the given frame at or before the time of frame `index`, to compare with.

        E.g. for the frames 4 and 5 of this clip, frame 2 of the given clip. `reverse` has no
        effect, because only spikes depend on the direction of time.
        """
        return {"lq": self.clip.frame(index // 2)["lq"]}

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        return self.clip.spike_light(index // 2, spike)

    def digest(self) -> str:
        return self.clip.digest()


def _insert_middles(times: Sequence[Fraction]) -> list[Fraction]:
    """Insert the middle between neighbouring times, e.g. 0, 2, 6 -> 0, 1, 2, 4, 6."""
    all_times = [times[0]]
    for before, after in itertools.pairwise(times):
        all_times += [(before + after) / 2, after]
    return all_times


class LeftOutFrames:
    """A clip whose every second frame is given, to score an interpolation.

    The network makes new frames between the given frames. The new frames are compared with the
    frames that were left out. Only gaps with `length` / 2 given frames on either side count.

    E.g. Vimeo-90K has clips im1 ... im7. For length 4, the frames im1, im3, im5 and im7 are given
    (indices 0, 2, 4, 6), and im4 (gap 1) is scored, as published.

    given_frames, gaps: see InterpolatedClip. Each frame of this clip lies in a gap.
    """

    # Videos of the results need the frame rate and the times of a clip. The left-out frames are
    # only scored, and no video is made of them, so both are None.
    fps = None
    times = None

    def __init__(self, clip: ClipReader, length: int) -> None:
        """length: number of frames that the network takes. Raises DataError for a short clip."""
        self.clip = clip
        self.name = clip.name
        self.origin = clip.origin
        self.pixel_aspect = clip.pixel_aspect
        self.given_frames = range(0, len(clip.stems), 2)
        # The network takes `length` successive given frames, with the gap in their middle. E.g.
        # with length 4, gap 1 is the first gap with two given frames before it. m given frames have
        # m - 3 runs of 4 successive frames, so m - 3 gaps count.
        first_gap = length // 2 - 1
        gap_count = len(self.given_frames) - length + 1
        self.gaps = range(first_gap, first_gap + gap_count)
        if not self.gaps:
            left_out_between = length - 1  # one frame is left out between two given frames
            raise DataError(
                what=f"clip {clip.name} has {len(clip.stems)} frames",
                where=clip.name,
                expected=f"at least {length + left_out_between}: {length} given frames and those "
                "between",
                do="leave the clip out",
            )
        # For each gap, the index of its left-out frame in the clip. E.g. gap 1 lies after the given
        # frame 1, which is frame 2 of the clip. So frame 3 is left out.
        self._left_out = [self.given_frames[gap] + 1 for gap in self.gaps]
        self.stems = [clip.stems[left_out] for left_out in self._left_out]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Any]:
        """Return the left-out frame as gt, and as lq the mean of the given frames before and after.

        The mean is the simplest interpolation, to compare with. `reverse` has no effect, because
        only spikes depend on the direction of time.
        """
        middle = self._left_out[index]
        before = self.clip.frame(middle - 1)
        left_out = self.clip.frame(middle)
        after = self.clip.frame(middle + 1)
        mean = (before["lq"] + after["lq"]) / 2
        return {"lq": mean, "gt": left_out["gt"]}

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        return self.clip.spike_light(self._left_out[index], spike)

    def digest(self) -> str:
        return self.clip.digest()


ClipWithGaps = InterpolatedClip | LeftOutFrames


def frames_around_gaps(reader: ClipWithGaps, wanted: range, length: int) -> list[int]:
    """Return the frames from which the network makes the new frames, `length` for each gap.

    Half of the frames lie before the gap. E.g. length 4: for gap 1 the given frames 0, 1 | 2, 3.
    For gap 0 they are 0, 0 | 1, 2, because there is no frame before frame 0.

    wanted: indices of frames of `reader`.

    The result has indices of frames of `reader.clip`.
    """
    last_given_frame = len(reader.given_frames) - 1
    selection = []
    for index in wanted:
        gap = reader.gaps[index]
        if gap is None:  # a given frame, which the network does not make
            continue
        # The last given frame before the gap is `gap`, and the first one after it is `gap + 1`.
        half = length // 2
        for position in range(gap + 1 - half, gap + 1 - half + length):
            # Beyond the ends of the clip, the first or the last given frame is repeated.
            inside = min(max(position, 0), last_given_frame)
            selection.append(reader.given_frames[inside])
    return selection
