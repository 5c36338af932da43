import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data.augment import Augment
from data.spike.represent import represent
from data.spike.stream import Crop, SpikeGeometry, read_dat, write_dat

quick = settings(max_examples=60, deadline=None, database=None)


@st.composite
def representations(draw):
    """(name, options) of any registered representation, for files of 30 planes around plane 15."""
    name = draw(st.sampled_from(["tfp", "voxel", "tfi", "raw", "encoding25"]))
    offsets = draw(st.lists(st.integers(-5, 5), min_size=1, max_size=3))
    options = {
        "tfp": {"half_window": draw(st.integers(0, 20)), "offsets": offsets},
        "voxel": {"num_bins": draw(st.integers(1, 30))},
        "tfi": {"half_window": draw(st.integers(1, 20)), "offsets": offsets},
        "raw": {"window": 2 * draw(st.integers(0, 7)) + 1},
        "encoding25": {
            "num_windows": draw(st.integers(1, 3)),
            "spacing": draw(st.sampled_from([None, 1, 2, 4])),
            "pad": draw(st.sampled_from(["edge", "zero"])),
        },
    }
    return name, options[name]


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
    write_dat(path, stream, geometry)
    first = data.draw(st.integers(0, planes - 1))
    count = data.draw(st.integers(1, planes - first))
    c = data.draw(rectangles(geometry.height, geometry.width))

    part = read_dat(path, geometry, first, count, c)
    assert path.stat().st_size == planes * geometry.plane_bytes
    assert np.array_equal(part, stream[first : first + count, c.top : c.top + c.height, c.left : c.left + c.width])


@quick
@given(data=st.data(), chosen=representations(), seed=st.integers(0, 2**32 - 1), density=st.floats(0.0, 1.0))
def test_cutting_and_turning_before_representing_equals_doing_it_after(data, chosen, seed, density):
    name, options = chosen
    stream = random_stream(seed, 30, 7, 9, density)
    c = data.draw(rectangles(7, 9))
    turns = [data.draw(st.booleans()) for _ in range(3)]
    aug = Augment(c.top, c.left, c.height, c.width, *turns)

    def change(planes):
        return aug.turn(planes[:, c.top : c.top + c.height, c.left : c.left + c.width])

    before = represent(name, change(stream), 15, rate=0.6, gamma=2.2, **options)
    after = change(represent(name, stream, 15, rate=0.6, gamma=2.2, **options))
    assert before.dtype == np.float32 and np.array_equal(before, after)


@quick
@given(chosen=representations(), seed=st.integers(0, 2**32 - 1), density=st.floats(0.0, 1.0))
def test_representing_a_reversed_stream_equals_reversing_the_channels(chosen, seed, density):
    name, options = chosen
    if name == "voxel" and 30 % options["num_bins"]:
        return  # bins of unequal length lie elsewhere in the reversed stream, as they must
    if name == "encoding25":
        if options["spacing"] is None and options["num_windows"] == 3:
            return  # the middle of 30 planes lies between two of them: both directions round to the same one
        options = {**options, "spacing": options["spacing"] and 2 * options["spacing"]}
    if "offsets" in options:
        options = {**options, "offsets": sorted({*options["offsets"], *(-o for o in options["offsets"])})}
    stream = random_stream(seed, 30, 4, 5, density)
    # The instant of TFI lies between its centre plane and the next.
    center = 30 - 1 - 15 - (name == "tfi")

    assert np.array_equal(
        represent(name, stream[::-1], center, **options), represent(name, stream, 15, **options)[::-1]
    )
