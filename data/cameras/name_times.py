"""Read the times of frames from the numbers in their file names.

    0001.png, 0002.png, 0004.png       numbers of frames: frame 3 is missing
    432.133333.png, 432.166667.png     time stamps
    left.png, right.png                no numbers, so the times are not known

`times_of_names` returns the times. If the numbers tell no times, the result has equal distances
between the frames, and a `doubt`: the reason in words. data/cameras/timing.py refuses a clip with a
doubt, and asks the user for the exposures.

What must stay: the times of names that are accepted today, because they decide which spikes a frame
gets. Free to add: a new form of names, if names of this form have a doubt today.

Tests: tests/parts/data/test_frame_times.py
"""

import re
from collections.abc import Sequence
from fractions import Fraction

from data.cameras.frame_times import FrameTimes, Gap, even_times, steps_between, usual_of
from utils.name_order import are_values

# If neighbouring numbers usually differ by at least this number, they are times in microseconds or
# nanoseconds, not numbers of frames. E.g. at 1000 frames per second, two frames are 1000
# microseconds apart. (`usual_of` gives the most frequent difference.) With a different number,
# test_numbers_a_thousand_apart_count_microseconds or
# test_numbers_less_than_a_thousand_apart_count_frames fails.
LEAST_STAMP = 1000


def times_of_names(stems: Sequence[str]) -> FrameTimes:
    """Return the times of frames by the numbers in their names.

    stems: names of the frames without suffix, in the order of the clip. If the numbers tell no
    times, the result has equal distances and a doubt.
    """
    if len(stems) < 2:
        return even_times(len(stems))
    if _have_doubtful_order(stems):
        doubt = "the numbers in the names of the frames have another order by value"
        return even_times(len(stems), doubt)
    numbers = _numbers(stems)  # e.g. the fractions 1, 2, 4
    if numbers is None:
        doubt = "the names of the frames have no numbers that tell their times"
        return even_times(len(stems), doubt)
    steps = steps_between(numbers)
    if min(steps) <= 0:
        return even_times(len(stems), "the numbers in the names of the frames do not rise")

    # The numbers are times (e.g. 432.1, or the microseconds 1000000 and 1033333), or they count
    # frames (1, 2, 3). The usual distance of frames is 1 if they count frames.
    step = usual_of(steps)
    have_fractions = any(number.denominator > 1 for number in numbers)
    are_times = step >= LEAST_STAMP or have_fractions
    if not are_times and step > 1:
        # E.g. the names 0, 2, 4 show that the frames 1 and 3 are missing. So the usual distance is
        # 1, although the names differ by 2.
        step = Fraction(1)
    gaps = _gaps(numbers, steps, step)
    ends = _ends(numbers, steps, step)
    return FrameTimes(
        starts=numbers, ends=ends, begin=numbers[0], end=ends[-1], step=step, gaps=gaps
    )


# ---- Numbers in names ---------------------------------------------------------------------------

# Three forms of the names of frames, without suffix.
# A number with a point: "432.133333".
_DECIMAL = re.compile(r"\d+\.\d+", re.ASCII)
# A text, a number, and a text without digits: "frame_0012_left". So the last number counts.
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.ASCII | re.DOTALL)
# A text, a number with a point, and a text without digits: "t_432.133333".
_DECIMAL_BEHIND_TEXT = re.compile(r"(.*?\D)(\d+\.\d+)(\D*)", re.ASCII | re.DOTALL)


def _numbers(stems: Sequence[str]) -> tuple[Fraction, ...] | None:
    """Return the numbers in the names of frames, or None if the names do not tell times.

    The names are numbers ("12" or "432.1"), or texts with a number, in which only the number
    differs ("a_12", "a_13").
    """
    # `are_values` is true if names are numbers whose digits alone do not tell the order: numbers
    # with and without a minus (-1, 0, 1), with exponents (1e-3, 2e-4), or with decimals of
    # different lengths (432.1, 432.033333). Files with such names are sorted by value.
    are_numbers = all(_DECIMAL.fullmatch(stem) or stem.isdecimal() for stem in stems)
    if are_values(stems) or are_numbers:
        return tuple(Fraction(stem) for stem in stems)
    texts = set()  # (text before the number, text after it)
    numbers = []
    for stem in stems:
        match = _NUMBERED.fullmatch(stem)
        if match is None:
            return None
        before, number, behind = match.groups()
        texts.add((before, behind))
        numbers.append(Fraction(number))
    # If the texts differ, e.g. "left_1" and "right_2", the numbers do not count the same frames.
    if len(texts) != 1:
        return None
    return tuple(numbers)


def _have_doubtful_order(stems: Sequence[str]) -> bool:
    """Return whether names with a text and a number have two orders: by digits, and by value.

    For example, t_432.1 comes before t_432.03 if the digits after the point count as a whole number
    (1 < 3). By value, 432.03 comes first. The names do not tell which of the two orders is the
    order of time.
    """
    texts = set()
    numbers = []
    for stem in stems:
        match = _DECIMAL_BEHIND_TEXT.fullmatch(stem)
        if match is None:
            return False
        before, number, behind = match.groups()
        texts.add((before, behind))
        numbers.append(number)
    if len(texts) > 1:
        return False
    values = [Fraction(number) for number in numbers]
    # If `are_values` is true, the digits alone do not tell the order (see `_numbers`). Then the
    # order of `stems` is doubtful if the values do not rise in this order.
    return are_values(numbers) and values != sorted(values)


# ---- Ends and gaps ------------------------------------------------------------------------------
#
# E.g. the names 1, 2, 4 have the distances 1 and 2, and the usual distance is 1. So the frames end
# at 2, 3 and 5, and frame 3 is missing.

# If two neighbours are more than this many usual distances apart, frames are missing between them.
# The limit is 1.5, because the time stamps of a camera may be off by almost half a distance.
MOST_DISTANCES_WITHOUT_GAP = Fraction(3, 2)


def _ends(
    starts: Sequence[Fraction], steps: Sequence[Fraction], step: Fraction
) -> tuple[Fraction, ...]:
    """Return when frames end.

    A frame lasts until the next frame begins. But a frame before a gap, and the last frame of the
    clip, last for one usual distance.

    starts: n times. steps: their n - 1 distances. step: the usual distance.

    If a frame lasts until the end of a gap,
    test_frames_whose_times_are_unknown_are_refused_with_exposures_to_correct fails.
    """
    ends = []
    distances = (*steps, step)  # the last frame lasts for one usual distance
    for start, distance in zip(starts, distances, strict=True):
        has_gap = distance > MOST_DISTANCES_WITHOUT_GAP * step
        length = step if has_gap else distance
        ends.append(start + length)
    return tuple(ends)


def _gaps(starts: Sequence[Fraction], steps: Sequence[Fraction], step: Fraction) -> tuple[Gap, ...]:
    """Return the frames that are missing between other frames.

    If the times are numbers of frames (step 1), a missing frame has the number that its name would
    have. If the times are time stamps, frames are counted from 0.

    starts: n times. steps: their n - 1 distances. step: the usual distance.
    """
    # `times_of_names` has set the step to 1 if the numbers count frames.
    are_numbers_of_frames = step == 1
    gaps = []
    number_in_whole_clip = 0  # number of the frame, from 0. Missing frames are counted, too.
    for start, distance in zip(starts[:-1], steps, strict=True):
        missing_frames = 0
        if distance > MOST_DISTANCES_WITHOUT_GAP * step:
            # E.g. between two frames at three times the usual distance, two frames are missing.
            missing_frames = round(distance / step) - 1
        if missing_frames:
            number_before_gap = int(start) if are_numbers_of_frames else number_in_whole_clip
            gaps.append(Gap(number_before_gap + 1, missing_frames))
        number_in_whole_clip += missing_frames + 1
    return tuple(gaps)
