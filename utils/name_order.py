"""Sort the names of files: "2" before "10", and seconds such as 432.1 and 432.033333 by value.

What must stay: the order, because it decides which frames of a clip are neighbours
(test_frames_are_in_the_order_of_their_numbers for `natural_key`,
test_images_are_sorted_by_the_numbers_in_their_names for `are_values`).

Tests: tests/parts/data/test_manifest.py, tests/parts/data/test_frame_times.py.
"""

import re
from collections.abc import Callable, Collection, Iterable
from fractions import Fraction
from pathlib import PurePath
from typing import Any, NamedTuple

_DIGITS = re.compile(r"(\d+)")


def natural_key(path: str | PurePath) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key under which "2" comes before "10".

    Digits in a row are compared as a number, and other text is compared letter by letter. If two
    numbers are equal, e.g. "1" and "01", the shorter text comes first.

    The key has a triple for each part of the name. E.g. the key of "a12" is ((1, 0, "a"),
    (0, 12, "0002"), (1, 0, "")), in which "0002" says that 12 has two digits.
    """
    key = []
    # With a group in the pattern, split returns text and digits in turn, beginning with text: "a12"
    # becomes "a", "12", "". So the parts 1, 3, 5, ... are digits. Python compares tuples item by
    # item, so 0 (digits) comes before 1 (text).
    for index, part in enumerate(_DIGITS.split(str(path))):
        is_digits = index % 2 == 1
        if is_digits:
            # The number of digits is a text, because the third item of each triple is a text. With
            # zeros in front, these texts have the order of their numbers.
            digit_count = f"{len(part):04d}"  # "0001" for "1", "0002" for "01"
            key.append((0, int(part), digit_count))
        else:
            key.append((1, 0, part))  # 0 stands in the place of the number
    return tuple(key)


class _Value(NamedTuple):
    """The parts of a number in a name, as text. "-1.50e+3" has "-", "1", "50" and "e+3"."""

    sign: str
    whole: str
    fraction: str
    exponent: str


# A number as Python and C print it, e.g. "-1.50e+3". The four groups are the fields of `_Value`, in
# their order. Each length has a limit, so that a long name takes little time.
_VALUE = re.compile(
    r"([+-]?)"  # sign
    r"(\d{1,100})"  # digits before the point
    r"(?:\.(\d{0,200}))?"  # the point, and the digits after it
    r"([eE][+-]\d{1,3})?",  # exponent. It must have a sign, because "2e5" may also be a checksum
    re.ASCII,
)


def are_values(names: Collection[str]) -> bool:
    """Return whether all names are numbers that must be compared by value.

    True if the digits alone do not tell the order:

        432.1, 432.033333     seconds of different lengths
        1e-3, 2e-4            numbers with exponents
        -1, 0, 1              numbers with and without a minus

    False otherwise, e.g.

        1.9, 1.10, 1.11       a counter after a point
        -1, -2, -3            a "-" before each name, which may be a hyphen
    """
    values = []
    for name in names:
        match = _VALUE.fullmatch(name)
        if match is None:
            return False
        values.append(_Value(*match.groups(default="")))
    signs = {value.sign for value in values}
    if "" not in signs:
        return False  # a sign stands before each name, and may be a hyphen
    have_several_signs = len(signs) > 1
    have_exponents = any(value.exponent for value in values)
    if have_several_signs or have_exponents:
        return True
    # If all fractions have one length, e.g. 1.10 and 1.25, `natural_key` gives the right order.
    fraction_lengths = {len(value.fraction) for value in values}
    return len(fraction_lengths) > 1 and not _is_counter(values)


def _is_counter(values: list[_Value]) -> bool:
    """Return whether numbers count up after the point without a gap, such as 1.9, 1.10, 1.11."""
    wholes = {value.whole for value in values}
    if len(wholes) > 1:
        return False
    counts = []
    for value in values:
        count = int(value.fraction or "0")
        # A counter has a number after the point, without leading zeros. So names such as "1." and
        # "1.01" are no counter.
        if value.fraction != str(count):
            return False
        counts.append(count)
    counts.sort()
    first = counts[0]
    without_gap = list(range(first, first + len(counts)))  # e.g. 9, 10, 11
    return counts == without_gap


def order_of(names: Iterable[str]) -> Callable[[str], Any]:
    """Return the sort key for the names of the frames of a clip, without their suffixes.

    Numbers for which `are_values` holds are ordered by value, other names by `natural_key`.
    """
    return _value_key if are_values(list(names)) else natural_key


def _value_key(name: str) -> tuple[Any, ...]:
    """Return a sort key under which names are ordered by value, e.g. "1e-3" before "0.2".

    The second item decides if two names have the same value, e.g. "1.5" and "1.50".
    """
    return Fraction(name), natural_key(name)
