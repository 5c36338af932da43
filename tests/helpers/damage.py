"""Damaged files for Hypothesis: what a bad disk, a broken copy or an attacker makes of a file.

`make test` tries the number of damaged files that each test names. `make faults` tries 3 or 30
times as many. It chooses one of the profiles below:

    pytest -p tests.helpers.damage --hypothesis-profile=30-times
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.helpers.checked import not_none

# Number of examples of a test in Hypothesis' default profile. An example is one damaged file.
USUAL = 100

for factor in (3, 30):
    settings.register_profile(f"{factor}-times", max_examples=factor * USUAL, database=None)


def examples(count: int) -> settings:
    """Return settings that try `count` examples, or a multiple of them with another profile.

    An example has no limit of time (deadline), because its time depends on how busy the machine is.
    """
    factor = not_none(settings.default).max_examples // USUAL
    return settings(
        max_examples=count * factor,
        deadline=None,
        # Hypothesis warns if all examples share a folder of pytest (tmp_path). Our examples may
        # share a folder, because each example writes its file anew.
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


# The characters of texts: all characters except the halves of surrogate pairs ("Cs"), which have no
# form in UTF-8. st.text has the same characters by default. But to find them, it encodes a million
# characters, which takes a second of a core in each worker of pytest. So name them here.
CHARACTERS = st.characters(exclude_categories=["Cs"])
# Values of a damaged byte. The limits of signed and unsigned bytes come more often than other
# values, because programs make most mistakes at limits.
VALUES = st.one_of(st.sampled_from([0, 1, 127, 128, 255]), st.integers(0, 255))


@st.composite
def damaged_copies(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw a damaged copy of a file: 1 to 12 bytes have other values. One copy in ten is cut short.

    Most changed bytes are near the ends, because file formats have their headers and tables there.
    The numbers were chosen by hand.
    """
    last = len(content) - 1

    def from_end(distance: int) -> int:
        return last - distance

    near_begin = st.integers(0, min(last, 300))
    near_end = near_begin.map(from_end)
    anywhere = st.integers(0, last)
    places = st.one_of(near_begin, near_end, anywhere)
    changes = st.lists(st.tuples(places, VALUES), min_size=1, max_size=12)

    changed = bytearray(content)
    for place, value in draw(changes):
        changed[place] = value
    is_cut_short = draw(st.integers(0, 9)) == 0
    if is_cut_short:
        length = draw(st.integers(0, last))
        return bytes(changed[:length])
    return bytes(changed)
