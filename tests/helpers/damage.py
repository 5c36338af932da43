"""Damaged files: what a bad disk, a broken copy or a stranger makes of a good one."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.helpers.checked import present


def examples(count: int) -> settings:
    """Try so many examples in `make test`, and a multiple of them in tests.faults.trials.

    Examples have no limit of time, because it depends on what else the machine does. They may share
    a folder of pytest's.
    """
    times = present(settings.default).max_examples // USUAL
    return settings(
        max_examples=count * times,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


USUAL = 100  # examples of hypothesis' default profile
# Profiles: pytest -p tests.helpers.damage --hypothesis-profile=30-times
for times in (3, 30):
    settings.register_profile(f"{times}-times", max_examples=times * USUAL, database=None)

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
