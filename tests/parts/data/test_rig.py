"""data/cameras/rig.py: two simulated cameras, an RGB camera and a spike camera.

rgb_camera.py, spike_view.py and rig_values.py, beside rig.py, have the parts of a rig.

A `Rig` describes how the two cameras are mounted, and their flaws. The scene is one random picture.
The RGB camera has 64 x 80 pixels, and the spike camera has 32 x 40 pixels.

`Rig.of_flag` makes the rig of the flag --rig, e.g. of a name of NAMED. The rig "ideal" has two
cameras in one place and little noise. "rig" has the flaws of a common pair of cameras. "dim" has
these flaws in less light.
"""

import json
from dataclasses import asdict

import cv2
import numpy as np
import pytest

from data.augment import Augment
from data.cameras.calibrated_grid import CalibratedGrid
from data.cameras.exposures import Exposures
from data.cameras.rig import Rig
from data.cameras.rig_values import NAMED, RANGES
from data.cameras.scaled_grid import ScaledGrid
from data.cameras.timing import Timing
from data.spike import simulate
from data.spike.geometry import SpikeGeometry
from data.spike.pictures import bin_pixels, to_display, to_grey, to_linear, to_uint8
from tests.helpers.two_cameras import texture
from utils.random_streams import random_stream

# Height and width of the RGB frames and of the spike planes.
RGB = (64, 80)
SPIKE = (32, 40)
# Spike planes of a frame.
PLANES = 16
# Spikes per plane at full light, unless a rig has another value.
RATE = 0.9


def moving_light(planes=3 * PLANES, step=0.0, seed=0):
    """Return light (planes, H, W, 3) that moves by `step` pixels per plane to the left."""
    height, width = RGB
    rng = np.random.default_rng(seed)
    # The shapes of a texture have radii from 4 pixels to a twelfth of its height. This texture has
    # 256 rows, and so radii up to 21 pixels. So a spike camera with half the resolution shows the
    # shapes, too. Only a part of the texture is used: as many rows as the frame has, and 60 more
    # columns, because the scene moves.
    large = texture(rng, (4 * height, 4 * width))
    picture = large[:height, : width + 60]
    light = to_linear(picture)

    views = []
    for plane in range(planes):
        left = round(step * plane)
        views.append(light[:, left : left + width])
    # Each colour has another brightness, so that a test notices if two colours are exchanged.
    colour = np.array([0.9, 1.0, 0.8], np.float32)
    return np.stack(views)[..., None] * colour


def record(rig, lights, planes=PLANES):
    """Record the lights (T, H, W, 3) with a rig.

    Return the blurry frames (n, H, W, 3) uint8, and the spikes (n * planes, h, w) uint8.
    """
    frames = []
    streams = []
    for blurry, _, spikes in rig.record(iter(lights), planes, SPIKE):
        frames.append(blurry)
        streams.append(spikes)
    return np.stack(frames), np.concatenate(streams)


def firing_rates(rig, lights):
    """Return the spikes per plane of each pixel (h, w)."""
    _, spikes = record(rig, lights)
    return spikes.mean(axis=0)


# ---- A rig without flaws ----


def test_a_perfect_spike_camera_integrates_the_light_of_each_pixel():
    lights = moving_light(step=0.5)

    _, spikes = record(Rig(), lights)

    # Simulate the sensor of the rig again, with the same seed, 0, and the same rate.
    rng = random_stream("sensor of a rig", 0)
    sensor = simulate.IntegrateAndFire(*SPIKE, rate=RATE, rng=rng)
    expected = sensor.run(bin_pixels(to_grey(light), 2) for light in lights)
    assert np.array_equal(spikes, expected)


def test_the_rgb_camera_of_a_perfect_pair_records_the_mean_light():
    lights = moving_light(step=0.5)

    blurry, _ = record(Rig(), lights)

    mean_of_second = lights[PLANES : 2 * PLANES].mean(axis=0)
    expected = to_uint8(to_display(mean_of_second))
    assert blurry.shape == (3, *RGB, 3)
    # The test and the camera round to whole values, but add in different orders. So the two results
    # may differ by 1.
    assert np.abs(blurry[1].astype(int) - expected).max() <= 1


# ---- Where the spike camera looks ----


def test_with_the_true_calibration_spikes_and_frame_show_the_same_place():
    mix = (0.3, 0.5, 0.2)  # how strongly the spike camera sees red, green and blue
    rig = Rig(shift_x=3.0, shift_y=-2.0, rotation_deg=1.5, scale=0.97, mix=mix)
    lights = moving_light(30 * PLANES)  # with many planes, the rates have little noise
    rates = firing_rates(rig, lights).astype(np.float32)  # (h, w)
    geometry = SpikeGeometry(*SPIKE)
    calibrated = CalibratedGrid(rig.calibration(SPIKE, RGB), geometry, path="no file")
    uncalibrated = ScaledGrid(geometry, RGB, interpolation=cv2.INTER_LINEAR)

    grey = lights[0] @ np.array(mix, np.float32)  # (H, W)
    true_rates = RATE * grey
    inside = (slice(8, -8), slice(8, -8))  # the spike camera does not see the edges

    def mean_error(grid):
        """Return the mean error of the rates that the grid puts on the frame, without edges."""
        whole_frame = Augment.whole(RGB)  # no crop, no flips
        window = grid.window(whole_frame)
        (rates_on_frame,) = window.to_rgb(rates[None])  # one channel: (1, h, w) -> (1, H, W)
        return np.abs(rates_on_frame - true_rates)[inside].mean()

    # The two errors were measured as 0.003 and 0.025.
    assert mean_error(calibrated) < 0.5 * mean_error(uncalibrated)


def test_the_calibration_records_its_rig():
    calibration = Rig(shift_x=3.0).calibration(SPIKE, RGB)

    assert calibration.made["rig"]["shift_x"] == 3.0


# The RGB camera of a rig is exposed for 0.8 of the time between two frames. Only the rig "ideal" is
# exposed for the whole time.
@pytest.mark.parametrize(("name", "share"), [("ideal", 1.0), ("rig", 0.8), ("dim", 0.8)])
def test_the_calibration_says_how_long_a_frame_is_exposed(name, share):
    rig = Rig.of_flag(name, np.random.default_rng(0))

    assert rig.calibration(SPIKE, RGB).exposure_share == share


def test_the_calibration_says_the_rolling_shutter_and_the_blur_of_the_lens():
    rig = Rig.of_flag("rig", np.random.default_rng(0))

    calibration = rig.calibration(SPIKE, RGB)

    assert calibration.rolling == rig.rolling
    assert calibration.lens_blur == rig.lens_blur
    # The rig "rig" has both flaws. Two zeros would show nothing.
    assert calibration.rolling > 0
    assert calibration.lens_blur > 0


def middle_of(size):
    """Return the middle (x, y) of an image of size (H, W), in pixels."""
    height, width = size
    return (width - 1) / 2, (height - 1) / 2


def test_the_calibration_moves_the_middle_of_a_plane_by_the_shift():
    # The rotation turns about the middle, and the scale enlarges from the middle. So only the shift
    # moves the middle.
    rig = Rig(shift_x=3.0, shift_y=-2.0, rotation_deg=1.5, scale=0.97)
    x, y = middle_of(SPIKE)

    rgb_pixel = rig.calibration(SPIKE, RGB).to_rgb() @ [x, y, 1]

    frame_x, frame_y = middle_of(RGB)
    assert rgb_pixel[:2] == pytest.approx([frame_x + 3, frame_y - 2])


def test_parallax_changes_what_the_spike_camera_sees():
    lights = moving_light(8 * PLANES)

    change = firing_rates(Rig(parallax=6.0), lights) - firing_rates(Rig(), lights)

    # The mean change is 0.013 spikes per plane, a little above the limit.
    assert np.abs(change).mean() > 0.01


# ---- Clocks ----


@pytest.mark.parametrize(
    ("offset", "rate_in_first_lit_plane"),
    [
        pytest.param(5.0, 1.0, id="5 planes early"),
        pytest.param(-3.0, 1.0, id="3 planes late"),
        # The light begins in the middle of a plane.
        pytest.param(0.5, 0.5, id="half a plane early"),
    ],
)
def test_a_light_is_in_the_planes_that_the_time_offset_says(offset, rate_in_first_lit_plane):
    lights = np.zeros((2 * PLANES, *RGB, 3), np.float32)
    lights[PLANES:] = 1.0  # from the second exposure on
    exposures = Exposures(length=PLANES, period=PLANES)
    # With the offset 0.5 the light begins in the middle of plane 16 = floor(16.5). So plane 16 is
    # the first lit plane.
    timing = Timing(exposures={"": exposures}, offset=np.floor(offset))
    # `span` refuses an exposure that ends after the stream. With the offset 5 the second exposure
    # ends at plane 37, and this stream has 32 planes. The test only needs the first plane of the
    # exposure, so it gives a larger number of planes.
    second_exposure = timing.span("clip", frame=1, planes=3 * PLANES)

    _, spikes = record(Rig(time_offset=offset, rate=1.0), lights)

    assert len(spikes) == 2 * PLANES
    rates = spikes.mean(axis=(1, 2))  # of each plane
    assert rates[: second_exposure.first].max() == 0
    first_lit = rates[second_exposure.first]
    # The pixels begin with random charges, so about this share of the 1280 pixels fires in the
    # plane. Its standard deviation is at most sqrt(0.5 x 0.5 / 1280) = 0.014.
    assert first_lit == pytest.approx(rate_in_first_lit_plane, abs=0.1)


@pytest.mark.parametrize("offset", [5.0, -3.0, 0.5])
def test_the_calibration_says_the_time_offset(offset):
    calibration = Rig(time_offset=offset).calibration(SPIKE, RGB)

    assert calibration.time_offset_planes == offset


def test_the_exposure_rolls_down_the_rows():
    lights = np.zeros((PLANES, *RGB, 3), np.float32)
    lights[PLANES // 2 :] = 0.5  # the light goes on in the middle of the frame
    # The time offset moves only the spikes. It must not change the blurry frame.
    rig = Rig(exposure=0.5, rolling=0.5, time_offset=2.0)

    blurry, _ = record(rig, lights)

    column = blurry[0, :, 0, 0].astype(float)
    light = (column / 255) ** 2.2
    top = light[0]
    middle = light[RGB[0] // 2]
    bottom = light[-1]
    # A row is exposed for 8 of the 16 planes. A light of 0.5 is on from plane 8 on. The last row
    # begins 4 planes after the first row:
    #     top      planes 2 ... 9,    2 of 8 with light: 2/8 * 0.5 = 0.125
    #     middle   planes 4 ... 11,   4 of 8 with light: 4/8 * 0.5 = 0.25
    #     bottom   planes 6 ... 13,   6 of 8 with light: 6/8 * 0.5 = 0.375
    assert [top, middle, bottom] == pytest.approx([0.125, 0.25, 0.375], abs=0.01)


def test_an_exposure_that_rolls_beyond_its_frame_is_refused():
    with pytest.raises(ValueError, match="does not fit"):
        Rig(exposure=0.9, rolling=0.2)


# ---- Flaws of the cameras ----


def test_the_blur_of_a_lens_weakens_edges():
    lights = moving_light(8 * PLANES)

    sharp = firing_rates(Rig(), lights)
    soft = firing_rates(Rig(lens_blur=1.5), lights)

    # The differences between neighbours in a row are the edges. The factor 0.8 is chosen by hand.
    assert np.abs(np.diff(soft)).mean() < 0.8 * np.abs(np.diff(sharp)).mean()


@pytest.mark.parametrize(
    ("rate_of_pixel", "share"),
    [
        pytest.param(0, 0.1, id="dead pixels never fire"),
        pytest.param(1, 0.05, id="hot pixels fire in each plane"),
    ],
)
def test_stuck_pixels_are_as_many_as_asked(rate_of_pixel, share):
    rig = Rig(dead=0.1, hot=0.05, light="display", dark_rate=0.02, dark_spread=0.5)

    rates = firing_rates(rig, moving_light(8 * PLANES))

    # Each of the 32 x 40 = 1280 pixels is dead with the probability 0.1. So the share has the
    # standard deviation sqrt(0.1 x 0.9 / 1280) = 0.0084. The tolerance 0.03 is 3.6 times as large.
    assert (rates == rate_of_pixel).mean() == pytest.approx(share, abs=0.03)


def record_half_lit_frame(sum_gamma):
    """Return the frame and the spikes of 8 planes: 4 are dark, then 4 are bright.

    sum_gamma: the frame is the mean of light ** (1 / sum_gamma). So 1 averages light, and 2.2
        averages display values.
    """
    dark = np.zeros((16, 16, 3), np.float32)
    bright = np.ones((16, 16, 3), np.float32)
    lights = [dark] * 4 + [bright] * 4
    rig = Rig.of_flag(f"ideal,sum_gamma={sum_gamma}", random_stream("a", 0))
    # 8 planes make one frame, and a spike plane has 8 x 8 pixels.
    [(blurry, _, spikes)] = rig.record(iter(lights), 8, (8, 8))
    return blurry, spikes


def mean_of_half_lit_frame(sum_gamma):
    """Return the mean display value in [0, 1] of the frame of `record_half_lit_frame`."""
    blurry, _ = record_half_lit_frame(sum_gamma)
    return float(blurry.mean()) / 255


def test_an_exposure_may_be_a_mean_of_display_values_instead_of_light():
    of_light = mean_of_half_lit_frame(sum_gamma=1.0)
    of_display_values = mean_of_half_lit_frame(sum_gamma=2.2)

    # Half of the planes are black and half are white. The mean light is 0.5, which has the display
    # value 0.73. The mean of the display values 0 and 1 is 0.5.
    assert of_light == pytest.approx(0.5 ** (1 / 2.2), abs=0.01)
    assert of_display_values == pytest.approx(0.5, abs=0.01)


def test_the_spike_camera_sees_light_whatever_the_exposure_is_a_mean_of():
    _, spikes_of_light = record_half_lit_frame(sum_gamma=1.0)
    _, spikes_of_display_values = record_half_lit_frame(sum_gamma=2.2)

    assert np.array_equal(spikes_of_light, spikes_of_display_values)


# ---- Rigs by name, random rigs, and rigs from a record ----


@pytest.mark.parametrize("name", [*NAMED, "rig,parallax=0,jpeg=90"])
def test_a_named_rig_is_made_again_from_its_record(name):
    rig = Rig.of_flag(name, np.random.default_rng(3))

    record_in_json = json.dumps(asdict(rig))

    assert Rig(**json.loads(record_in_json)) == rig


def test_a_random_rig_is_made_again_from_its_record():
    for seed in range(30):
        rig = Rig.random(np.random.default_rng(seed))

        record_in_json = json.dumps(asdict(rig))

        assert Rig(**json.loads(record_in_json)) == rig


def test_a_random_rig_is_within_its_ranges():
    for seed in range(200):
        fields = asdict(Rig.random(np.random.default_rng(seed)))

        for name, (low, high) in RANGES.items():
            value = np.array(fields[name])
            # Values are rounded when they are drawn, so a value may lie 1e-4 outside of its range.
            assert np.all(value >= np.array(low) - 1e-4)
            assert np.all(value <= np.array(high) + 1e-4)


@pytest.mark.parametrize("name", NAMED)
def test_a_named_rig_records_a_frame_with_spikes(name):
    rig = Rig.of_flag(name, np.random.default_rng(0))

    blurry, spikes = record(rig, moving_light(PLANES))

    assert blurry.shape == (1, *RGB, 3)
    # Here the named rigs have 0.02 to 0.3 spikes per plane and pixel.
    assert 0 < spikes.mean() < 0.9
