"""When the frames of a clip were taken, as far as the frames themselves say it.

A film has a time for each frame. The names of a folder of frames have numbers. With one spike file
for the clip, these times decide which planes belong to which frame (`FrameTimes.shares`).
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

# The number in a frame's name: the last group of digits, or the whole name ("432.133333").
_DECIMAL = re.compile(r"\d+\.\d+", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.ASCII | re.DOTALL)
# A number with a point behind a text, such as "t_432.133333".
_BEHIND_TEXT = re.compile(r"(.*?\D)(\d+\.\d+)(\D*)", re.ASCII | re.DOTALL)
# A distance between two numbers from which on they count microseconds or nanoseconds, not frames.
# A camera of 1000 frames a second has 1000 microseconds between two frames.
LEAST_STAMP = 1000
# A gap of this many usual distances holds a missing frame. Clocks of cameras are off by less.
LONG = Fraction(3, 2)


@dataclass(frozen=True)
class Missing:
    """Frames in a row that should be there.

    number: of the first one, counted from 0 or as in the names; None: it is not known.
    count: how many. seconds: the time of the first one in its film; None: it is not known.
    """

    number: int | None = None
    count: int = 1
    seconds: Fraction | None = None

    def __str__(self) -> str:
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

    starts, ends: of each frame, in one unit for all frames: seconds of a film, else the unit of the
    names. A frame ends where the next one begins, unless frames are missing between them.
    begin, end: of the whole clip, missing frames included.
    step: the usual distance of two frames.
    is_film: whether the unit is seconds and the times are the film's own.
    missing: the frames that should be there, in the order of time.
    doubt: why the times are not sure, as a clause; "" if they are.
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
        # Containers round each time to a tick of their clock, so times may be off by a tick.
        tick = Fraction(1, math.lcm(*(start.denominator for start in self.starts)))
        period = (self.starts[-1] - self.starts[0]) / (len(self) - 1)
        steps = [after - before for before, after in itertools.pairwise(self.starts)]
        # If all times are whole frames, such a tick is a frame, which is no rounding.
        if max(steps) - min(steps) > min(tick, period / 2):
            return False
        # Small steps in one direction add up.
        even = [self.starts[0] + number * period for number in range(len(self))]
        return all(abs(a - b) <= tick for a, b in zip(self.starts, even, strict=True))

    def shares(self, first: int, count: int) -> list[tuple[int, int]]:
        """Return (first plane, plane after the last) of each frame.

        first, count: the planes that were recorded from `begin` to `end`.
        """
        if self.is_even:
            edges = [first + number * count // len(self) for number in range(len(self) + 1)]
            return list(itertools.pairwise(edges))
        rate = Fraction(count) / (self.end - self.begin)  # planes per unit of time
        found = []
        for start, end in zip(self.starts, self.ends, strict=True):
            lo = first + math.floor((start - self.begin) * rate)
            hi = first + math.floor((end - self.begin) * rate)
            found.append((lo, hi))
        return found

    def places(self) -> list[int]:
        """Return the place of each frame, counted from 0, if all frames were there."""
        return [round((start - self.begin) / self.step) for start in self.starts]

    def until(self, end: Fraction) -> "FrameTimes":
        """Return the same times of a clip that ends at `end`, as another clock says.

        The last frame then lasts until `end`, but not longer than the longest other frame. The
        clocks contradict each other if `end` is off by more than a frame: the result has a doubt.
        """
        last = self.starts[-1]
        longest = max(b - a for a, b in zip(self.starts, self.ends, strict=True))
        if last < end <= last + 2 * longest:
            last_end = min(end, last + longest)
            return replace(self, end=end, ends=(*self.ends[:-1], last_end))
        seconds = float(self.end - self.begin)
        others = float(end - self.begin)
        clocks = f"the film lasts {seconds:.3f} s, its planes {others:.3f} s"
        return replace(self, doubt=f"{clocks} by the calibration's tick_hz")

    def described(self) -> str:
        """Return what is missing and what is in doubt, in words; "" for nothing."""
        parts = []
        if self.missing:
            lost = sum(gap.count for gap in self.missing)
            verb = "is" if lost == 1 else "are"
            some = ", ".join(map(str, self.missing[:5]))
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
    """Return the times that the numbers in the names of frames say, in the order of `stems`."""
    numbers = _numbers(stems)
    if len(stems) < 2:
        return even_times(len(stems))
    if _have_doubtful_order(stems):
        doubt = "the numbers in the names of the frames have another order by value"
        return even_times(len(stems), doubt)
    if numbers is None:
        doubt = "the names of the frames have no numbers that tell their times"
        return even_times(len(stems), doubt)
    steps = [after - before for before, after in itertools.pairwise(numbers)]
    if min(steps) <= 0:
        return even_times(len(stems), "the numbers in the names of the frames do not rise")

    step = _usual(steps)
    are_stamps = step >= LEAST_STAMP or any(number.denominator > 1 for number in numbers)
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
    spans = []  # of the missing frames
    for gap in missing:
        if gap.seconds is not None:
            spans.append((gap.seconds, gap.seconds + gap.count * step))
    if len(spans) < len(missing):
        doubt = "the times of the missing frames are not known"

    gaps = sorted(first for first, _ in spans)
    ends = []
    for start, following in itertools.pairwise(starts):
        # A frame before missing ones lasts until the first of these.
        number = bisect.bisect_right(gaps, start)
        is_gap = number < len(gaps) and gaps[number] < following
        ends.append(gaps[number] if is_gap else following)
    # The film does not say how long the last frame lasts: most encoders write an arbitrary number.
    # So it is taken to last as long as the frame before it.
    ends.append(starts[-1] + ends[-1] - starts[-2])
    begin = min([starts[0], *(first for first, _ in spans)])
    end = max([ends[-1], *(after for _, after in spans)])
    return FrameTimes(
        starts, tuple(ends), begin, end, step, is_film=True, missing=tuple(missing), doubt=doubt
    )


def _numbers(stems: Sequence[str]) -> tuple[Fraction, ...] | None:
    """Return the numbers in names that are equal but for them; None for other names."""
    if are_values(stems) or all(_DECIMAL.fullmatch(stem) or stem.isdecimal() for stem in stems):
        return tuple(Fraction(stem) for stem in stems)
    found = [_NUMBERED.fullmatch(stem) for stem in stems]
    texts = {(match[1], match[3]) if match else None for match in found}
    if len(texts) != 1 or None in texts:
        return None
    return tuple(Fraction(match[2]) for match in found if match)


def _have_doubtful_order(stems: Sequence[str]) -> bool:
    """Whether names hold numbers behind one text, t_432.1 and t_432.03, out of order by value."""
    found = [_BEHIND_TEXT.fullmatch(stem) for stem in stems]
    parts = [match.groups() for match in found if match]
    if len(parts) < len(found) or len({(before, after) for before, _, after in parts}) > 1:
        return False
    numbers = [number for _, number, _ in parts]
    values = [Fraction(number) for number in numbers]
    return are_values(numbers) and values != sorted(values)


def usual_step(starts: Sequence[Fraction]) -> Fraction:
    """Return the distance that most frames have to the next one. starts: of two frames or more."""
    return _usual([after - before for before, after in itertools.pairwise(starts)])


def _usual(steps: Sequence[Fraction]) -> Fraction:
    """Return the distance that most frames have to the next one; of several, the smallest."""
    counts = Counter(steps)
    most = max(counts.values())
    if most > 1:
        return min(step for step, count in counts.items() if count == most)
    return sorted(steps)[(len(steps) - 1) // 2]  # each differs: the median


def _ends(
    starts: Sequence[Fraction], steps: Sequence[Fraction], step: Fraction
) -> tuple[Fraction, ...]:
    """Return the ends of frames. A frame before a gap lasts one step, as does the last one."""
    ends = []
    for start, distance in zip(starts, (*steps, step), strict=True):
        is_gap = distance > LONG * step
        ends.append(start + (step if is_gap else distance))
    return tuple(ends)


def _gaps(
    starts: Sequence[Fraction], steps: Sequence[Fraction], step: Fraction
) -> tuple[Missing, ...]:
    """Return the frames that are missing between others. step: the distance of two frames."""
    is_counted = step == 1
    missing = []
    place = 0  # of the frame before the gap, if all frames were there
    for start, distance in zip(starts, steps, strict=False):
        lost = round(distance / step) - 1 if distance > LONG * step else 0
        if lost:
            before = int(start) if is_counted else place
            missing.append(Missing(before + 1, lost))
        place += lost + 1
    return tuple(missing)
