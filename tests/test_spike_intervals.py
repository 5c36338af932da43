from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data.spike.intervals import plane_light, window_light


def light_by_definition(spikes: list[int]) -> list[Fraction]:
    """The light of each plane of one pixel, exactly."""
    planes, fired = len(spikes), [plane for plane, spike in enumerate(spikes) if spike]
    if len(fired) < 2:
        return [Fraction(len(fired), planes)] * planes
    light = []
    for plane in range(planes):
        before, after = [p for p in fired if p < plane], [p for p in fired if p >= plane]
        if not before:
            light.append(min(Fraction(1, fired[1] - fired[0]), Fraction(1, fired[0] + 1)))
        elif not after:
            light.append(min(Fraction(1, fired[-1] - fired[-2]), Fraction(1, planes - fired[-1])))
        else:
            light.append(Fraction(1, after[0] - before[-1]))
    return light


@settings(max_examples=150, deadline=None, database=None)
@given(data=st.data(), planes=st.one_of(st.integers(1, 40), st.sampled_from([254, 255, 256, 300])))
def test_light_is_one_threshold_per_interval_in_planes_and_in_windows(data, planes):
    seed, density = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.sampled_from([0.01, 0.1, 0.3, 0.9]))
    stream = (np.random.default_rng(seed).random((planes, 2, 3)) < density).astype(np.uint8)
    time = st.integers(0, planes)
    windows = [tuple(sorted((data.draw(time), data.draw(time)))) for _ in range(3)]

    single, sums = plane_light(stream), window_light(stream, windows)
    assert single.dtype == np.float32 and single.shape == stream.shape
    for y, x in np.ndindex(2, 3):
        expected = light_by_definition(stream[:, y, x].tolist())
        assert single[:, y, x].tolist() == [np.float32(float(value)) for value in expected]
        for (a, b), found in zip(windows, sums, strict=True):
            assert abs(found[y, x] - float(sum(expected[a:b]))) < 1e-9 * planes
