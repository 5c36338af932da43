"""Clips with gaps, for networks that interpolate: such a network makes a new frame in each gap.

A network that interpolates (VRT with pa_frames 0) takes the frames around a gap. There are two
kinds of clips with gaps:

    InterpolatedClip   a user's clip: new frames come between its frames
    LeftOutFrames      a clip to score on: every second frame is left out, and the network makes it

In both kinds the given frames are numbered 0, 1, 2, ... Gap g lies after the given frame g.
`given_frames` has the index of each given frame in the clip.

Both classes wrap a clip that a data set or data/clips/clip_reader.py has opened, in
main_test_vrt.py or main_train_vrt.py. restorer.py restores both kinds, from the frames that
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
from utils.words import counted


def scored_clips(clips: Sequence[ClipReader], spec: InputSpec) -> Sequence[ClipReader]:
    """Return the clips on which a network with `spec` is scored.

    A network that interpolates gets each clip as `LeftOutFrames`. Any other network gets the clips
    as they are.

    clips: clips with sharp frames. spec: what the network takes.
    """
    if not spec.interpolates:
        return clips
    return [LeftOutFrames(clip, spec.least_frames) for clip in clips]


class InterpolatedClip:
    """A user's clip with a new frame between each two of its frames. It has no sharp frames.

    A clip of n frames becomes a clip of 2 n - 1 frames. E.g. n = 2:

        index   0          1            2
        stems   "000000"   "000000_5"   "000001"
        gaps    None       0            None

    clip: the user's clip.
    stems: names of the frames. The new frame after "000000" is "000000_5".
    gaps: for each frame, the index of the gap in which it lies. None for a given frame.
    given_frames: indices of the given frames in `clip`, 0 ... n - 1.
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
            self.gaps += [None, frame_index]  # gap g lies after the given frame g
        # Remove the new frame after the last frame, where there is no gap.
        del self.stems[-1]
        del self.gaps[-1]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Any]:
        """Return what pictures and videos show beside the restored frame `index`.

        Frame i of the user's clip has the index 2 i here. Beside a new frame, the given frame
        before it is shown. E.g. the index 4 (a given frame) and the index 5 (the new frame after
        it) both give frame 2 of the user's clip.

        reverse: has no effect, because only spikes depend on the direction of time.
        """
        return {"lq": self.clip.frame(index // 2)["lq"]}

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        """Return the picture of the spikes beside frame `index`, from the same frame as `frame`."""
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
    """A clip to score an interpolation. Every second frame is left out, and the others are given.

    The network makes a new frame in each gap, and the new frame is compared with the left-out
    frame. The network takes `length` given frames for a gap, half of them before the gap. So only
    the gaps with enough given frames on both sides are scored.

    E.g. a clip of Vimeo-90K, im1 ... im7, and length 4, as published:

        frame   im1     im2     im3     im4     im5     im6     im7
        index   0       1       2       3       4       5       6
                given   gap 0   given   gap 1   given   gap 2   given

    Gap 1 has two given frames before it and two after it, so only im4 is scored.

    clip: the whole clip.
    stems: names of the frames that are scored, e.g. ["im4"]. This clip has only these frames.
    gaps: for each of these frames, the index of its gap, e.g. [1].
    given_frames: indices of the given frames in `clip`, e.g. 0, 2, 4, 6.
    """

    # The results are only the left-out frames that are scored, so the frame rate and the times of
    # the whole clip do not fit the results. A video of the results has the frame rate of --fps.
    fps = None
    times = None

    def __init__(self, clip: ClipReader, length: int) -> None:
        """Leave out every second frame. Raises DataError if the clip is too short to be scored.

        clip: the whole clip. length: number of given frames that the network takes for a gap.
        """
        self.clip = clip
        self.name = clip.name
        self.origin = clip.origin
        self.pixel_aspect = clip.pixel_aspect
        self.given_frames = range(0, len(clip.stems), 2)
        # A scored gap lies in the middle of `length` successive given frames. E.g. the given frames
        # 0 ... 4 and length 4: there are 5 - 4 + 1 = 2 such groups,
        #
        #     0 1 | 2 3    around gap 1, because 1 is the given frame before the gap
        #     1 2 | 3 4    around gap 2
        #
        # The given frames 0 and 1 lie before the gap of the first group: gap 4 // 2 - 1 = 1.
        first_gap = length // 2 - 1
        gap_count = len(self.given_frames) - length + 1
        self.gaps = range(first_gap, first_gap + gap_count)
        if not self.gaps:
            # One frame is left out between two given frames: 4 given frames have 3 between them.
            left_out_between = length - 1
            raise DataError(
                what=f"clip {clip.name} has {counted(len(clip.stems), 'frame')}",
                where=clip.name,
                expected=f"at least {length + left_out_between}: {length} given frames and the "
                "frames between them",
                do="leave the clip out",
            )
        # For each gap, the index of its left-out frame in the clip: one more than the index of the
        # given frame before the gap. E.g. before gap 1 lies the given frame 1, which is frame 2 of
        # the clip, so the left-out frame is frame 3.
        self._left_out = [self.given_frames[gap] + 1 for gap in self.gaps]
        self.stems = [clip.stems[left_out] for left_out in self._left_out]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Any]:
        """Return "gt", the left-out frame, and "lq", the mean of the two given frames around it.

        The mean is the simplest interpolation. The table of scores shows the score of the mean as
        the score of the input.

        reverse: has no effect, because only spikes depend on the direction of time.
        """
        middle = self._left_out[index]
        before = self.clip.frame(middle - 1)
        left_out = self.clip.frame(middle)
        after = self.clip.frame(middle + 1)
        mean = (before["lq"] + after["lq"]) / 2
        return {"lq": mean, "gt": left_out["gt"]}

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        """Return the picture of the spikes of a left-out frame."""
        return self.clip.spike_light(self._left_out[index], spike)

    def digest(self) -> str:
        return self.clip.digest()


ClipWithGaps = InterpolatedClip | LeftOutFrames


def frames_around_gaps(reader: ClipWithGaps, wanted: range, length: int) -> list[int]:
    """Return the frames from which the network makes the new frames, `length` for each gap.

    Half of the frames lie before the gap. E.g. the given frames for length 4:

        gap 1    0, 1 | 2, 3
        gap 0    0, 0 | 1, 2    there is no frame before frame 0, so frame 0 is repeated

    Test: test_a_frame_between_two_is_made_of_its_four_neighbours

    reader: the clip with gaps.
    wanted: indices of frames of `reader`.

    Returns indices of frames of `reader.clip`.
    """
    last_given_frame = len(reader.given_frames) - 1
    selection = []
    for index in wanted:
        gap = reader.gaps[index]
        if gap is None:  # a given frame, which the network does not make
            continue
        # The gap lies between the given frames `gap` and `gap + 1`, so the first half of the frames
        # ends at `gap`. E.g. length 4: for gap 1 the frames begin at 1 + 1 - 2 = 0, and for gap 0
        # at -1, which becomes 0 below.
        first = gap + 1 - length // 2
        for number in range(first, first + length):
            # Repeat the first or the last given frame beyond the ends of the clip.
            number_inside = min(max(number, 0), last_given_frame)
            selection.append(reader.given_frames[number_inside])
    return selection
