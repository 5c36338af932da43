"""Hold the times of the frames of a clip, and distribute spike planes among the frames.

If one spike file holds the planes (read-outs) of a whole clip, the times of the frames decide which
planes belong to which frame (`FrameTimes.plane_ranges`). One of three functions returns the times:

    times_of_film    from the time stamps of a video, in seconds
    times_of_names   from the numbers in the file names of frames (data/cameras/name_times.py)
    even_times       if nothing is known: equal distances between the frames are assumed

Times are exact fractions, because sums of floating-point numbers are rounded. With rounded times, a
frame could get a plane of its neighbour. If the times are not sure, the result has a `doubt`: the
reason in words, such as "the numbers in the names of the frames do not rise".
data/cameras/timing.py then refuses the clip and asks the user for the exposures.

What must stay: the planes of each frame, for clips that are accepted today, because these planes
decide the samples of a run. The words of a `doubt` may change, because no program reads them, but
tests quote some.

Tests: tests/parts/data/test_frame_times.py
"""

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from utils.words import are, counted


@dataclass(frozen=True)
class Gap:
    """A gap: missing frames that follow one another."""

    # Number of the first missing frame, counted from 0 or as in the names. None: not known.
    number: int | None = None
    count: int = 1  # number of missing frames
    # Time of the first missing frame in the film. None: not known, or there is no film.
    seconds: Fraction | None = None

    def __str__(self) -> str:
        """Return the missing frames in words, such as "frames 3 to 5 at 0.125 s"."""
        if self.number is None:
            text = counted(self.count, "frame")
        elif self.count == 1:
            text = f"frame {self.number}"
        else:
            text = f"frames {self.number} to {self.number + self.count - 1}"
        if self.seconds is None:
            return text
        return f"{text} at {float(self.seconds):.3f} s"


class PlaneRange(NamedTuple):
    """Planes of a file that belong to one frame: first ... end - 1."""

    first: int
    end: int


@dataclass(frozen=True)
class FrameTimes:
    """The times of the frames of a clip: in seconds for a film, else in the unit of the names.

    E.g. the frames with the names 1, 2 and 4. Frame 3 is missing:

        starts   1  2  4        begin   1
        ends     2  3  5        end     5        step   1
    """

    starts: tuple[Fraction, ...]  # when each frame begins
    # When each frame ends. If no frame is missing after it, its end is the start of the next frame.
    ends: tuple[Fraction, ...]
    begin: Fraction  # when the whole clip begins, missing frames included
    end: Fraction  # when the whole clip ends
    step: Fraction  # the usual distance of two neighbouring frames
    is_film: bool = False  # whether the times are the time stamps of a film, in seconds
    gaps: tuple[Gap, ...] = ()  # the missing frames, in the order of time
    # Why the times are not sure, in words for an error; "" if they are sure. timing.py refuses a
    # clip with a doubt.
    doubt: str = ""

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def is_even(self) -> bool:
        """Return whether the frames are at equal distances in time, without a missing frame."""
        return not self.gaps and _are_even(self.starts)

    def plane_ranges(self, first: int, count: int) -> list[PlaneRange]:
        """Distribute planes among the frames.

        first, count: the planes first ... first + count - 1 were recorded from `begin` to `end`.

        Returns the range of each frame. Frames at equal distances get equal numbers of planes, up
        to rounding: 10 planes for 3 frames are (0, 3), (3, 6), (6, 10). If the frames are not at
        equal distances, each frame gets the planes from its start to its end. The time t is the
        plane

            first + (t - begin) count / (end - begin),  rounded down

        E.g. the frames 1, 2 and 4 last from 1 to 5, and frame 3 is missing. With 40 planes, each
        unit of time has 10 planes, and the frames get (0, 10), (10, 20) and (30, 40).
        """
        if self.is_even:
            frames = len(self)
            # The planes at which the frames begin, and at which the last frame ends: 0, 3, 6, 10 in
            # the example. pairwise gives (0, 3), (3, 6), (6, 10).
            edges = [first + frame * count // frames for frame in range(frames + 1)]
            return [PlaneRange(begin, end) for begin, end in itertools.pairwise(edges)]
        planes_per_unit = Fraction(count) / (self.end - self.begin)  # 40 / (5 - 1) = 10
        ranges = []
        for start, end in zip(self.starts, self.ends, strict=True):
            first_plane = first + math.floor((start - self.begin) * planes_per_unit)
            end_plane = first + math.floor((end - self.begin) * planes_per_unit)
            ranges.append(PlaneRange(first_plane, end_plane))
        return ranges

    def numbers_in_whole_clip(self) -> list[int]:
        """Return the number of each frame, from 0. Missing frames have numbers, too.

        For example, if the third of four frames is missing, the result is [0, 1, 3].
        """
        return [round((start - self.begin) / self.step) for start in self.starts]

    def until(self, end: Fraction) -> "FrameTimes":
        """Return the times of the same clip, with the end by the clock of the spike camera.

        A film does not say how long its last frame lasts, but the number of planes does. E.g. the
        frames begin at 0, 1 and 2 seconds, so the longest frame lasts 1 second:

            end    last frame of the result
            2      doubt, because the last frame begins at 2
            2.7    2 to 2.7
            3.5    2 to 3, because it lasts at most as long as the longest frame
            4.5    doubt, because 4.5 is above 2 + 2 * 1, two lengths of the longest frame

        A doubt means that the two clocks contradict each other.

        end: the end of the clip by the number of its planes, in the unit of `starts`.
        """
        last_start = self.starts[-1]
        lengths = [stop - start for start, stop in zip(self.starts, self.ends, strict=True)]
        longest = max(lengths)
        # The first length is for the last frame itself, and the second length for errors of the
        # clocks (test_clocks_may_not_differ_by_more_than_a_frame).
        latest_end = last_start + 2 * longest
        if last_start < end <= latest_end:
            end_of_last_frame = min(end, last_start + longest)
            other_ends = self.ends[:-1]
            return replace(self, end=end, ends=(*other_ends, end_of_last_frame))
        seconds = float(self.end - self.begin)
        seconds_of_planes = float(end - self.begin)
        clocks = f"the film lasts {seconds:.3f} s, its planes {seconds_of_planes:.3f} s"
        return replace(self, doubt=f"{clocks} by the calibration's tick_hz")

    def in_words(self) -> str:
        """Return what is missing and what is in doubt, in words; "" for nothing.

        For example "2 of 6 frames are missing: frames 3 to 4".
        """
        parts = []
        if self.gaps:
            missing_frames = sum(gap.count for gap in self.gaps)
            all_frames = len(self) + missing_frames
            verb = are(missing_frames)
            # Five gaps are enough to find the cause, and fit into a line.
            list_of_gaps = ", ".join(str(gap) for gap in self.gaps[:5])
            if len(self.gaps) > 5:
                list_of_gaps += ", ..."
            parts.append(
                f"{missing_frames} of {counted(all_frames, 'frame')} {verb} missing: {list_of_gaps}"
            )
        if self.doubt:
            parts.append(self.doubt)
        return "; ".join(parts)


def _are_even(starts: Sequence[Fraction]) -> bool:
    """Return whether times have equal distances, up to the rounding of a clock."""
    if len(starts) < 2:
        return True
    # A film file rounds each time to a tick of its clock, e.g. to 1/1000 s. So two distances may
    # differ by one tick, e.g. 0.033 s and 0.034 s at 30 frames per second.
    tick = _tick(starts)
    period = (starts[-1] - starts[0]) / (len(starts) - 1)
    steps = steps_between(starts)
    # But if the times are numbers of frames, a difference of a tick is a missing frame. E.g. the
    # numbers 0, 1 and 3 have the tick 1, the period 3 / 2 = 1.5, and the distances 1 and 2. So at
    # most half a period is allowed, here 0.75. The difference 2 - 1 = 1 is larger
    # (test_only_rounding_to_a_tick_counts_as_one_distance).
    allowed_difference = min(tick, period / 2)
    if max(steps) - min(steps) > allowed_difference:
        return False
    # Small differences in one direction add up. So the time of each frame must also be near the
    # time that it would have at equal distances.
    for frame, start in enumerate(starts):
        time_at_equal_distances = starts[0] + frame * period
        if abs(start - time_at_equal_distances) > tick:
            return False
    return True


def _tick(starts: Sequence[Fraction]) -> Fraction:
    """Return the tick of a clock: the largest 1 / n such that every time is a multiple of 1 / n.

    E.g. 1/24 s and 1/36 s are multiples of 1/72 s: 3/72 and 2/72.
    """
    denominators = [start.denominator for start in starts]
    least_common_multiple = math.lcm(*denominators)
    return Fraction(1, least_common_multiple)


def even_times(count: int, doubt: str = "") -> FrameTimes:
    """Return the times of `count` frames at distance 1.

    doubt: reason why the times are not sure, or "".
    """
    starts = tuple(Fraction(frame) for frame in range(count))
    ends = tuple(Fraction(frame + 1) for frame in range(count))
    return FrameTimes(
        starts, ends, begin=Fraction(0), end=Fraction(count), step=Fraction(1), doubt=doubt
    )


# ---- Films --------------------------------------------------------------------------------------


def times_of_film(
    times: Sequence[Fraction], gaps: Sequence[Gap] = (), doubt: str = ""
) -> FrameTimes:
    """Return the times of a film's frames.

    times: seconds of each decoded frame.
    gaps: frames of the film that cannot be decoded, in the order of time.
    doubt: reason why the times are not sure; "" if they are sure.
    """
    starts = tuple(Fraction(time) for time in times)
    if doubt or len(starts) < 2:
        return even_times(len(starts), doubt)
    step = usual_step(starts)
    gap_starts = []  # when missing frames begin
    gap_ends = []  # when missing frames end
    doubt_by_gaps = ""
    for gap in gaps:
        if gap.seconds is None:
            doubt_by_gaps = "the times of the missing frames are not known"
        else:
            gap_starts.append(gap.seconds)
            gap_ends.append(gap.seconds + gap.count * step)

    gap_starts.sort()
    ends = _ends_in_film(starts, gap_starts)
    # The clip may begin or end with missing frames. If it began with its first frame that exists,
    # test_the_lost_beginning_of_a_film_takes_its_planes_with_it would fail.
    begin = min([starts[0], *gap_starts])
    end = max([ends[-1], *gap_ends])
    return FrameTimes(
        starts,
        ends,
        begin=begin,
        end=end,
        step=step,
        is_film=True,
        gaps=tuple(gaps),
        doubt=doubt_by_gaps,
    )


def _ends_in_film(
    starts: Sequence[Fraction], gap_starts: Sequence[Fraction]
) -> tuple[Fraction, ...]:
    """Return when the frames of a film end, in seconds.

    A frame lasts until the next frame begins, or until the next missing frame begins. E.g. frames
    begin at 0, 1 and 3, and a frame is missing at 2. The three frames end at 1, 2 and 4.

    starts: when frames begin, at least two. gap_starts: when missing frames begin, sorted.

    If a frame lasts until the next frame that exists,
    test_the_other_frames_of_a_film_that_lacks_some_keep_their_planes fails.
    """
    ends = []
    for start, next_start in itertools.pairwise(starts):
        end = next_start
        # The index of the first gap after `start`. E.g. the gaps 2 and 5, start 3 -> index 1.
        gap_index = bisect.bisect_right(gap_starts, start)
        if gap_index < len(gap_starts):
            end = min(gap_starts[gap_index], next_start)
        ends.append(end)
    # Most encoders write an arbitrary length of the last frame. So assume that the last frame lasts
    # as long as the frame before it.
    length_before = ends[-1] - starts[-2]
    ends.append(starts[-1] + length_before)
    return tuple(ends)


# ---- Distances between frames -------------------------------------------------------------------


def usual_step(starts: Sequence[Fraction]) -> Fraction:
    """Return the distance that most frames have to the next frame.

    starts: times of two frames or more.
    """
    return usual_of(steps_between(starts))


def usual_of(steps: Sequence[Fraction]) -> Fraction:
    """Return the most frequent distance. If several distances are equally frequent, the smallest.

    If no distance comes twice, the median is returned. E.g. 1, 2, 2, 1, 3 -> 1, and 1, 4, 2 -> 2.
    """
    counts = Counter(steps)  # distance -> how often it occurs
    highest_count = max(counts.values())
    if highest_count == 1:
        # Take the median. If there are two middle distances, take the smaller one.
        middle = (len(steps) - 1) // 2
        return sorted(steps)[middle]
    return min(step for step in counts if counts[step] == highest_count)


def steps_between(starts: Sequence[Fraction]) -> list[Fraction]:
    """Return the distance of each frame to the next one."""
    return [after - before for before, after in itertools.pairwise(starts)]
