"""data/motion/gain.py: the spikes per plane of each spike pixel at full light.

The clips are rendered scenes (tests/helpers/moving_scene.py). A spike pixel covers 2 x 2 RGB
pixels. A clip has three exposures of 60 planes, which follow one another.
"""

import numpy as np
import pytest

from data.motion.gain import ExposureLight, gain_in_exposure, gain_over_exposures
from data.motion.recording import RecordedClip
from tests.helpers.moving_scene import Scene, change_spikes, reader_of, with_clipped_sky

# The tests use the middle one of the three frames, because planes before and after it were
# recorded, too.
FRAME = 1


def test_the_gain_is_the_rate_of_the_camera(tmp_path):
    scene = Scene(velocity=(6.0, 0.0))
    reader = reader_of(scene.write(tmp_path / "clip"))

    gain, _ = RecordedClip(reader, context=None).gain()

    # The rate is 0.6, and the gain was measured as 0.5997. The tolerance was chosen by hand.
    assert np.median(gain) == pytest.approx(scene.rate, rel=0.02)


def test_dead_and_hot_pixels_are_not_trusted(tmp_path):
    folder = Scene(velocity=(6.0, 0.0)).write(tmp_path / "clip")

    def with_odd_pixels(spikes: np.ndarray) -> np.ndarray:
        spikes[:, 20, 30] = 0  # dead: never fires
        spikes[:, 5, 7] = 1  # hot: fires in each plane
        return spikes

    change_spikes(folder, with_odd_pixels)

    _, is_good = RecordedClip(reader_of(folder), context=None).gain()

    assert not is_good[20, 30]
    assert not is_good[5, 7]
    assert is_good.mean() > 0.99  # of the other pixels, a few are not trusted, by chance


def test_a_sky_that_the_rgb_camera_clips_is_not_taken_for_hot_pixels(tmp_path):
    scene = Scene(velocity=(6.0, 0.0), rate=0.2)
    folder = scene.write(tmp_path / "clip")
    # Change the clip: give it a sky that is four times as bright as the RGB camera can show.
    with_clipped_sky(folder, rate=scene.rate)

    gain, is_good = RecordedClip(reader_of(folder), context=None).gain()

    # The sky has most of the light, but its gain is not the usual gain. So look only at the ground.
    ground = gain[24:]  # the lower half of the 48 rows
    assert np.median(ground) == pytest.approx(scene.rate, rel=0.05)
    assert is_good.mean() > 0.99


def test_hot_pixels_do_not_look_like_another_exposure(tmp_path):
    folder = Scene(velocity=(6.0, 0.0)).write(tmp_path / "clip")

    def with_hot_rows(spikes: np.ndarray) -> np.ndarray:
        spikes[:, :5] = 1  # 5 of 48 rows fire in each plane
        return spikes

    change_spikes(folder, with_hot_rows)
    clip = RecordedClip(reader_of(folder), context=None)
    gain, is_good = clip.gain()

    # The gain of one frame is the gain of the clip, because all frames have the same exposure.
    assert np.array_equal(clip.gain_in(clip.read(FRAME), gain, is_good), gain)


def test_pixels_are_trusted_although_most_of_them_have_no_spike(tmp_path):
    # At full light a pixel has 0.005 x 180 = 0.9 spikes in the three exposures.
    scene = Scene(velocity=(6.0, 0.0), rate=0.005)
    reader = reader_of(scene.write(tmp_path / "clip"))

    gain, is_good = RecordedClip(reader, context=None).gain()

    assert is_good.mean() > 0.99  # a few are not trusted, by chance
    # With so few spikes the gain is within 30 % of the rate. With many spikes it is within 2 %
    # (test_the_gain_is_the_rate_of_the_camera).
    assert np.median(gain) == pytest.approx(scene.rate, rel=0.3)


def test_pixels_at_full_light_do_not_change_the_level_of_a_frame():
    # Two rows of pixels see a lamp of the light 3. The RGB camera clips this light at 1, but the
    # spike camera does not.
    without = np.full((8, 8), 0.5)
    with_rows_of_lamp = without.copy()
    with_rows_of_lamp[:2] = 3.0
    clipped = np.minimum(with_rows_of_lamp, 1.0)
    rate = 0.2  # spikes per plane at full light

    without_lamp = ExposureLight(rate * without, frame_light=without, planes=60)
    with_lamp = ExposureLight(rate * with_rows_of_lamp, frame_light=clipped, planes=60)

    assert with_lamp.level() == pytest.approx(without_lamp.level())


def test_a_frame_of_half_the_light_for_the_same_spikes_has_twice_the_gain():
    light = np.full((8, 8), 0.5)
    gain = np.full((8, 8), 0.2, np.float32)
    is_good = np.ones((8, 8), bool)
    usual = ExposureLight(0.2 * light, frame_light=light, planes=60)
    half = ExposureLight(0.2 * light, frame_light=light / 2, planes=60)

    # The gain is the spikes per plane, divided by the light of the frame: 0.2 x 0.5 / 0.5 = 0.2,
    # and 0.2 x 0.5 / 0.25 = 0.4.
    assert gain_in_exposure(usual, gain, is_good) == pytest.approx(gain)
    assert gain_in_exposure(half, gain, is_good) == pytest.approx(2 * gain)


def test_exposures_of_other_levels_give_the_gain_at_the_median_level():
    light = np.full((8, 8), 0.4)
    rates = 0.2 * light
    # The RGB camera shows the same light with the factors 1, 0.5 and 2. E.g. 0.2 x 0.4 spikes per
    # plane at the light 0.4 x 0.5 is a gain of 0.4 in the second frame.
    exposures = [ExposureLight(rates, light * factor, planes=60) for factor in (1, 0.5, 2)]

    gain, is_good = gain_over_exposures(exposures)

    # The gains of the three frames are 0.2, 0.4 and 0.1, whose median is 0.2.
    assert gain == pytest.approx(0.2, rel=1e-3)
    assert is_good.all()
