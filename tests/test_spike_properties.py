import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import data.spike_source  # noqa: F401 (registers the representations of data/spike/represent_*.py)
from data.augment import Augment
from data.spike.formats import read_spikes, write_spikes
from data.spike.represent import represent
from data.spike.stream import Crop, SpikeGeometry

quick = settings(max_examples=60, deadline=None, database=None)


@st.composite
def representations(draw):
    """(name, options) of any registered representation, for files of 30 planes around plane 15."""
    names = ["tfp", "tfp spread", "voxel", "tfi", "raw", "encoding25", "tfstp", "exposure", "relative"]
    name = draw(st.sampled_from(names))
    offsets = draw(st.lists(st.integers(-5, 5), min_size=1, max_size=3))
    options = {
        "tfp": {"half_window": draw(st.integers(0, 20)), "offsets": offsets},
        "tfp spread": {"half_window": draw(st.integers(0, 15)), "num_bins": draw(st.integers(1, 9))},
        "voxel": {"num_bins": draw(st.integers(1, 30))},
        "tfi": {"half_window": draw(st.integers(1, 20)), "offsets": offsets},
        "raw": {"window": 2 * draw(st.integers(0, 7)) + 1},
        "encoding25": {
            "num_windows": draw(st.integers(1, 3)),
            "spacing": draw(st.sampled_from([None, 1, 2, 4])),
            "pad": draw(st.sampled_from(["edge", "zero"])),
        },
        "tfstp": {"tau_d": draw(st.floats(0.5, 50)), "tau_f": draw(st.floats(0.5, 50)), "offsets": offsets},
        "exposure": {"half_window": draw(st.integers(0, 5)), "half_exposure": draw(st.integers(6, 40))},
        "relative": {
            "half_windows": draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)),
            "num_bins": draw(st.integers(0, 9)),
        },
    }
    return name.partition(" ")[0], options[name]


@st.composite
def geometries(draw):
    height, width, head = draw(st.integers(1, 12)), draw(st.integers(1, 20)), draw(st.sampled_from([0, 0, 4, 16]))
    while height * (width + head) % 8:
        height += 1
    return SpikeGeometry(height, width, draw(st.booleans()), head)


@st.composite
def rectangles(draw, height, width):
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return Crop(top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left)))


def random_stream(seed, planes, height, width, density):
    return (np.random.default_rng(seed).random((planes, height, width)) < density).astype(np.uint8)


@quick
@given(data=st.data(), geometry=geometries(), planes=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_what_is_written_is_read_back_in_any_part(tmp_path_factory, data, geometry, planes, seed):
    path = tmp_path_factory.mktemp("dat") / "a.dat"
    stream = random_stream(seed, planes, geometry.height, geometry.width, 0.5)
    write_spikes(path, stream, geometry)
    first = data.draw(st.integers(0, planes - 1))
    count = data.draw(st.integers(1, planes - first))
    c = data.draw(rectangles(geometry.height, geometry.width))

    part = read_spikes(path, geometry, first, count, c)
    assert path.stat().st_size == planes * geometry.plane_bytes
    assert np.array_equal(part, stream[first : first + count, c.top : c.top + c.height, c.left : c.left + c.width])


@quick
@given(data=st.data(), chosen=representations(), seed=st.integers(0, 2**32 - 1), density=st.floats(0.0, 1.0))
def test_cutting_and_turning_before_representing_equals_doing_it_after(data, chosen, seed, density):
    name, options = chosen
    stream = random_stream(seed, 31, 7, 9, density)  # 15 planes on each side of plane 15
    c = data.draw(rectangles(7, 9))
    turns = [data.draw(st.booleans()) for _ in range(3)]
    aug = Augment(c.top, c.left, c.height, c.width, *turns)

    def change(planes):
        return aug.flip(planes[:, c.top : c.top + c.height, c.left : c.left + c.width])

    before = represent(name, change(stream), 15, rate=0.6, gamma=2.2, **options)
    after = change(represent(name, stream, 15, rate=0.6, gamma=2.2, **options))
    assert before.dtype == np.float32 and np.array_equal(before, after)


@settings(quick, max_examples=200)
@given(
    chosen=representations(),
    planes=st.integers(12, 60),
    place=st.floats(0.0, 1.0),
    halves=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    density=st.floats(0.0, 1.0),
)
def test_reversed_time_shows_the_same_instants_in_reverse_exactly(chosen, planes, place, halves, seed, density):
    name, options = chosen
    stream = random_stream(seed, planes, 4, 5, density)
    center = round(place * (planes - 1) * (1 + halves)) / (1 + halves)

    def channels(stream, center, **changed):
        try:
            return represent(name, stream, center, rate=0.6, gamma=2.2, **{**options, **changed})
        except ValueError:
            return None  # too few planes around this centre, in both directions

    reverse = channels(stream, center, reverse=True)
    if name == "tfstp":  # it knows the past only, in reversed time the future: see the last comparison
        forward = reverse
    elif name == "relative" and reverse is not None:  # windows around one instant, parts of the exposure, confidence
        forward, first = channels(stream, center), len(options["half_windows"])
        forward = np.concatenate((forward[:first], forward[first:-1][::-1], forward[-1:]))
    elif name in ("exposure", "relative"):  # windows around one instant
        forward = channels(stream, center)
    elif "offsets" in options:  # an offset of o planes in reversed time is one of -o planes
        forward = channels(stream, center, offsets=[-o for o in options["offsets"]])
    else:
        forward = channels(stream, center)
        forward = forward if forward is None else forward[::-1]
    assert np.array_equal(reverse, forward) if reverse is not None else forward is None
    is_symmetric = name in ("voxel", "raw") or "offsets" in options
    if is_symmetric and name != "tfi" and (name == "voxel" or center == int(center)):
        mirrored = channels(stream[::-1], planes - 1 - center)
        assert np.array_equal(reverse, mirrored) if reverse is not None else mirrored is None


@quick
@given(planes=st.integers(1, 120), place=st.floats(0.0, 1.0), bins=st.integers(1, 12))
def test_the_sharp_instant_lies_at_the_same_bin_in_both_directions(planes, place, bins):
    center = round(place * (planes - 1))
    if 2 * min(center, planes - 1 - center) + 1 < bins:
        return
    # Light that is symmetric about the centre gives symmetric bins.
    lamp = (abs(np.arange(planes) - center) <= 2).astype(np.uint8)[:, None, None]
    for reverse in (False, True):
        light = represent("voxel", lamp, center, num_bins=bins, reverse=reverse)
        assert np.array_equal(light, light[::-1])
