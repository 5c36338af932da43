"""Find when the frames of a clip were taken, as far as the frames themselves tell it.

If one spike file holds the planes (read-outs) of a whole clip, the times of the frames decide which
planes belong to which frame, see `FrameTimes.shares`. The times come from one of

    times_of_film    the time stamps of a video, in seconds
    times_of_names   the numbers in the names of a folder of frames: 0001.png, 0002.png, 0004.png
                     (frame 3 is missing), or time stamps such as 432.133333.png
    even_times       nothing: the frames are taken to follow one another at one distance

Times are exact fractions, because sums of floating-point numbers would shift planes. What cannot be
known becomes a `doubt`, a clause such as "the numbers in the names of the frames do not rise".
data/cameras/spike_info.py then refuses the clip and asks the user.
"""

import bisect
import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from utils.files import are_values

# Names of frames, without suffix. A name that is a number with a point: "432.133333".
_DECIMAL = re.compile(r"\d+\.\d+", re.ASCII)
# A text, a number, a text without digits: "frame_0012_left". So the number is the last one.
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.ASCII | re.DOTALL)
# The same with a point in the number: "t_432.133333".
_BEHIND_TEXT = re.compile(r"(.*?\D)(\d+\.\d+)(\D*)", re.ASCII | re.DOTALL)
# If two neighbours differ by at least this number, the numbers are times in microseconds or
# nanoseconds and do not count frames. At 1000 frames a second, 1000 microseconds lie between two
# frames.
LEAST_STAMP = 1000
# A gap of this many usual distances holds a missing frame. Clocks of cameras are off by less.
LONG = Fraction(3, 2)


@dataclass(frozen=True)
class Missing:
    """Frames in a row that are missing.

    number: number of the first one, counted from 0 or as in the names. None: it is not known.
    count: how many frames.
    seconds: the time of the first one in its film. None: it is not known, or there is no film.
    """

    number: int | None = None
    count: int = 1
    seconds: Fraction | None = None

    def __str__(self) -> str:
        """Return it in words, such as "frames 3 to 5 at 0.125 s"."""
        if self.number is None:
            text = "1 frame" if self.count == 1 else f"{self.count} frames"
        elif self.count == 1:
            text = f"frame {self.number}"
        else:
            text = f"frames {self.number} to {self.number + self.count - 1}"
        if self.seconds is None:
            return text
        return f"{text} at {float(self.seconds):.3f} s"


@dataclass(frozen=True)
class FrameTimes:
    """The times of the frames of a clip.

    starts, ends: when each frame begins and ends. The unit is a second for a film, else the unit of
    the names. A frame ends where the next one begins, unless frames are missing between them.
    begin, end: of the whole clip, missing frames included.
    step: the usual distance of two frames.
    is_film: whether the times are the time stamps of a film, in seconds.
    missing: the missing frames, in the order of time.
    doubt: why the times are not sure, as a clause; "" if they are sure.

    Example, names 1, 2, 4: starts 1, 2, 4; ends 2, 3, 5; begin 1; end 5; step 1; missing: frame 3.
    """

    starts: tuple[Fraction, ...]
    ends: tuple[Fraction, ...]
    begin: Fraction
    end: Fraction
    step: Fraction
    is_film: bool = False
    missing: tuple[Missing, ...] = ()
    doubt: str = ""

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def is_even(self) -> bool:
        """Whether the frames follow one another at one distance and none is missing."""
        if self.missing:
            return False
        if len(self) < 2:
            return True
        # Containers round each time to a tick of their clock, so times may be off by a tick. The
        # tick is taken from the fractions: times in 1/24 s and 1/36 s have ticks of 1/72 s.
        denominators = [start.denominator for start in self.starts]
        tick = Fraction(1, math.lcm(*denominators))
        period = (self.starts[-1] - self.starts[0]) / (len(self) - 1)
        steps = _steps_between(self.starts)
        # If all times are whole frames, such a tick is a frame, which is no rounding. So at most
        # half a period is allowed.
        if max(steps) - min(steps) > min(tick, period / 2):
            return False
        # Small steps in one direction add up: compare each time with its place in an even row.
        for number, start in enumerate(self.starts):
            even = self.starts[0] + number * period
            if abs(start - even) > tick:
                return False
        return True

    def shares(self, first: int, count: int) -> list[tuple[int, int]]:
        """Distribute planes among the frames. Returns (first plane, plane after the last) of each.

        first, count: the planes first ... first + count - 1, which were recorded from `begin` to
        `end`. Frames at one distance get equal numbers of planes, but for rounding: 10 planes for 3
        frames are (0, 3), (3, 6), (6, 10).
        """
        if self.is_even:
            frames = len(self)
            edges = [first + number * count // frames for number in range(frames + 1)]
            return list(itertools.pairwise(edges))
        rate = Fraction(count) / (self.end - self.begin)  # planes per unit of time
        found = []
        for start, end in zip(self.starts, self.ends, strict=True):
            lo = first + math.floor((start - self.begin) * rate)
            hi = first + math.floor((end - self.begin) * rate)
            found.append((lo, hi))
        return found

    def places(self) -> list[int]:
        """Return the number that each frame would have if none were missing, counted from 0.

        For example, 0, 1, 3 if the third frame is missing.
        """
        return [round((start - self.begin) / self.step) for start in self.starts]

    def until(self, end: Fraction) -> "FrameTimes":
        """Return the times of a clip that ends at `end`, as another clock says.

        The last frame then lasts until `end`, but not longer than the longest frame. If `end` is
        off by more than a frame, the clocks contradict each other, and the result has a doubt.
        """
        last = self.starts[-1]
        longest = max(b - a for a, b in zip(self.starts, self.ends, strict=True))
        is_plausible = last < end <= last + 2 * longest
        if is_plausible:
            last_end = min(end, last + longest)
            return replace(self, end=end, ends=(*self.ends[:-1], last_end))
        seconds = float(self.end - self.begin)
        others = float(end - self.begin)
        clocks = f"the film lasts {seconds:.3f} s, its planes {others:.3f} s"
        return replace(self, doubt=f"{clocks} by the calibration's tick_hz")

    def described(self) -> str:
        """Return what is missing and what is in doubt, in words; "" for nothing.

        For example "2 of 6 frames are missing: frames 3 to 4".
        """
        parts = []
        if self.missing:
            lost = sum(gap.count for gap in self.missing)
            verb = "is" if lost == 1 else "are"
            some = ", ".join(str(gap) for gap in self.missing[:5])
            if len(self.missing) > 5:
                some += ", ..."
            parts.append(f"{lost} of {len(self) + lost} frames {verb} missing: {some}")
        if self.doubt:
            parts.append(self.doubt)
        return "; ".join(parts)


def even_times(count: int, doubt: str = "") -> FrameTimes:
    """Return the times of `count` frames at one distance. doubt: see `FrameTimes`."""
    starts = tuple(Fraction(number) for number in range(count))
    ends = tuple(Fraction(number + 1) for number in range(count))
    return FrameTimes(starts, ends, Fraction(0), Fraction(count), Fraction(1), doubt=doubt)


def times_of_names(stems: Sequence[str]) -> FrameTimes:
    """Return the times that the numbers in the names of frames tell, in the order of `stems`.

    stems: names without suffix. The result has a doubt if the numbers tell no times.
    """
    numbers = _numbers(stems)
    if len(stems) < 2:
        return even_times(len(stems))
    if _have_doubtful_order(stems):
        doubt = "the numbers in the names of the frames have another order by value"
        return even_times(len(stems), doubt)
    if numbers is None:
        doubt = "the names of the frames have no numbers that tell their times"
        return even_times(len(stems), doubt)
    steps = _steps_between(numbers)
    if min(steps) <= 0:
        return even_times(len(stems), "the numbers in the names of the frames do not rise")

    # The numbers are times (432.1, or 1000000 and 1033333) or count frames (1, 2, 3).
    step = _usual(steps)
    have_fractions = any(number.denominator > 1 for number in numbers)
    are_stamps = step >= LEAST_STAMP or have_fractions
    if not are_stamps and step > 1:
        # 0, 2, 4: every second frame, so the frames between them are missing.
        step = Fraction(1)
    missing = _gaps(numbers, steps, step)
    ends = _ends(numbers, steps, step)
    return FrameTimes(numbers, ends, numbers[0], ends[-1], step, missing=missing)


def times_of_film(
    times: Sequence[Fraction], missing: Sequence[Missing] = (), doubt: str = ""
) -> FrameTimes:
    """Return the times of a film's frames.

    times: seconds of each decoded frame. missing: frames that the film has but that cannot be
    decoded, in the order of time. doubt: see `FrameTimes`.
    """
    starts = tuple(Fraction(time) for time in times)
    if doubt or len(starts) < 2:
        return even_times(len(starts), doubt)
    step = usual_step(starts)
    # When the missing frames begin and end.
    gap_starts = []
    gap_ends = []
    for gap in missing:
        if gap.seconds is None:
            doubt = "the times of the missing frames are not known"
        else:
            gap_starts.append(gap.seconds)
            gap_ends.append(gap.seconds + gap.count * step)

    # A frame lasts until the next one begins, or the first missing frame between them.
    gap_starts.sort()
    ends = []
    for start, following in itertools.pairwise(starts):
        end = following
        next_gap = bisect.bisect_right(gap_starts, start)  # index of the first gap after `start`
        if next_gap < len(gap_starts):
            end = min(gap_starts[next_gap], following)
        ends.append(end)
    # The film does not say how long the last frame lasts: most encoders write an arbitrary number.
    # So it is taken to last as long as the frame before it.
    length_before = ends[-1] - starts[-2]
    ends.append(starts[-1] + length_before)
    return FrameTimes(
        starts,
        tuple(ends),
        begin=min([starts[0], *gap_starts]),
        end=max([ends[-1], *gap_ends]),
        step=step,
        is_film=True,
        missing=tuple(missing),
        doubt=doubt,
    )


# ---- Numbers and distances ---------------------------------------------------------------------


def _numbers(stems: Sequence[str]) -> tuple[Fraction, ...] | None:
    """Return the numbers in the names of frames.

    The names are numbers ("12" or "432.1"), or have one text before and one text behind the number
    ("a_12", "a_13"). Returns None for other names.
    """
    are_numbers = all(_DECIMAL.fullmatch(stem) or stem.isdecimal() for stem in stems)
    if are_values(stems) or are_numbers:
        return tuple(Fraction(stem) for stem in stems)
    texts = set()
    numbers = []
    for stem in stems:
        match = _NUMBERED.fullmatch(stem)
        if match is None:
            return None
        before, number, behind = match.groups()
        texts.add((before, behind))
        numbers.append(Fraction(number))
    if len(texts) != 1:
        return None
    return tuple(numbers)


def _have_doubtful_order(stems: Sequence[str]) -> bool:
    """Return whether names have numbers behind one text that are out of order by value.

    For example t_432.1, t_432.03: this is their order by name, because 1 < 3. By value, 432.03 is
    the smaller one.
    """
    texts = set()
    numbers = []
    for stem in stems:
        match = _BEHIND_TEXT.fullmatch(stem)
        if match is None:
            return False
        before, number, behind = match.groups()
        texts.add((before, behind))
        numbers.append(number)
    if len(texts) > 1:
        return False
    values = [Fraction(number) for number in numbers]
    return are_values(numbers) and values != sorted(values)


def _steps_between(starts: Sequence[Fraction]) -> list[Fraction]:
    """Return the distance of each frame to the next one."""
    return [after - before for before, after in itertools.pairwise(starts)]


def usual_step(starts: Sequence[Fraction]) -> Fraction:
    """Return the distance that most frames have to the next one. starts: of two frames or more."""
    return _usual(_steps_between(starts))


def _usual(steps: Sequence[Fraction]) -> Fraction:
    """Return the most frequent distance; of several, the smallest. If all differ, the median."""
    counts = Counter(steps)
    most = max(counts.values())
    if most == 1:
        return sorted(steps)[(len(steps) - 1) // 2]
    return min(step for step, count in counts.items() if count == most)


def _ends(
    starts: Sequence[Fraction], steps: Sequence[Fraction], step: Fraction
) -> tuple[Fraction, ...]:
    """Return when frames end. A frame before a gap lasts one usual step, as does the last frame.

    starts: n times. steps: their n - 1 distances. step: the usual distance.
    """
    ends = []
    for start, distance in zip(starts, (*steps, step), strict=True):
        is_gap = distance > LONG * step
        length = step if is_gap else distance
        ends.append(start + length)
    return tuple(ends)


def _gaps(
    starts: Sequence[Fraction], steps: Sequence[Fraction], step: Fraction
) -> tuple[Missing, ...]:
    """Return the frames that are missing between others.

    starts: n times. steps: their n - 1 distances. step: the usual distance.
    If the times count frames (step 1), a missing frame has the number of the names, else its number
    counted from 0.
    """
    is_counted = step == 1
    missing = []
    place = 0  # number of the frame, counted from 0, if none were missing
    for start, distance in zip(starts[:-1], steps, strict=True):
        lost = 0
        if distance > LONG * step:
            lost = round(distance / step) - 1
        if lost:
            before = int(start) if is_counted else place
            missing.append(Missing(before + 1, lost))
        place += lost + 1
    return tuple(missing)
