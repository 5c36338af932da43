"""utils/words.py: a count with its noun, and its verb, as messages have them."""

import pytest

from utils.words import are, counted


@pytest.mark.parametrize(
    ("count", "form", "text"),
    [
        (0, "", "0 clips"),
        (1, "", "1 clip"),
        (2, "", "2 clips"),
        (1, ",", "1 clip"),
        (12_000, ",", "12,000 clips"),
    ],
)
def test_a_count_of_one_has_its_noun_in_the_singular(count, form, text):
    assert counted(count, "clip", form) == text


def test_one_thing_is_and_several_things_are():
    assert [are(count) for count in range(3)] == ["are", "is", "are"]
