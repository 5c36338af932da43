"""Damaged files: what a bad disk, a broken copy or a stranger makes of a good one."""

from hypothesis import settings
from hypothesis import strategies as st

# The time of an example depends on what else the machine does.
BOUNDED = settings(max_examples=150, deadline=None)
VALUES = st.one_of(st.sampled_from([0, 1, 127, 128, 255]), st.integers(0, 255))


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The bytes of a file, some of them changed, most of these near its ends; or cut short."""
    changed = bytearray(content)
    last = len(content) - 1
    near = st.integers(0, min(last, 300))
    places = st.one_of(near, near.map(lambda place: last - place), st.integers(0, last))
    for place, value in draw(st.lists(st.tuples(places, VALUES), min_size=1, max_size=12)):
        changed[place] = value
    if draw(st.integers(0, 9)) == 0:
        return bytes(changed[: draw(st.integers(0, last))])
    return bytes(changed)
