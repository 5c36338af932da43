"""data/motion/bands.py: a large frame is solved in bands of rows, which are joined.

The frames of most tests have 560 x 48 pixels. `bands_of` is told to divide frames of more than
20,000 pixels, so it divides these frames into an upper and a lower band. OVERLAP rows belong to
both bands. If a test does not say otherwise, a spike pixel covers 2 x 2 RGB pixels.
"""

import itertools

import numpy as np
import pytest
import torch

from data.motion.bands import MOST_PIXELS, OVERLAP, bands_of, join_pictures
from data.motion.flow import motion_of
from data.motion.joint.equations import Equations, Solver
from data.motion.joint.spike_pixels import SpikePixels
from data.motion.recording import RecordedClip
from data.motion.view import View
from tests.helpers.moving_scene import Scene, reader_of

CPU = torch.device("cpu")
SIZE = (560, 48)  # rows and columns of the frames: 26,880 pixels
FEW_PIXELS = 20_000  # a frame of more pixels is divided: two bands of 344 rows, 128 of them common
ALIGNED = np.array([[2, 0, 0.5], [0, 2, 0.5], [0, 0, 1.0]])  # 2 x 2 RGB pixels in a spike pixel


def aligned_view(height: int, width: int, **about) -> View:
    """Return the view of two aligned cameras on frames of this size.

    about: additional fields of the view, e.g. rolling=0.4.
    """
    return View((height, width), (height // 2, width // 2), ALIGNED, is_display=False, **about)


# ---- Which rows a band has ----


@pytest.mark.parametrize("size", [(720, 1280), (1000, 1000), (96, 96)], ids=str)
def test_a_frame_of_usual_size_stays_whole(size):
    # A frame is divided if it has more than MOST_PIXELS = 2^20 = 1,048,576 pixels. These frames
    # have at most 1,000,000.
    view = aligned_view(*size)

    [band] = bands_of(view)

    assert band.rows == slice(0, size[0])
    assert band.view is view


# The last frame is so wide that the common rows of two bands alone have more than MOST_PIXELS
# pixels.
@pytest.mark.parametrize(
    "size",
    [
        (1080, 1920),
        pytest.param((2160, 3840), marks=pytest.mark.slow),
        (3000, 600),
        (100, 12000),
    ],
    ids=str,
)
def test_the_bands_of_a_large_frame_cover_all_rows(size):
    bands = bands_of(aligned_view(*size))

    assert bands[0].rows.start == 0
    assert bands[-1].rows.stop == size[0]
    for upper, lower in itertools.pairwise(bands):
        assert upper.rows.stop - lower.rows.start == OVERLAP


def test_a_band_of_a_film_frame_has_at_most_the_pixels_that_fit_into_memory():
    for band in bands_of(aligned_view(height=1080, width=1920)):
        rows, columns = band.view.size
        assert rows * columns <= MOST_PIXELS


def test_a_band_has_the_spike_pixels_that_see_its_rows():
    _, lower = bands_of(aligned_view(*SIZE), FEW_PIXELS)

    rows, columns = lower.plane_window
    # A spike pixel in row r of the plane sees the rows 2 r and 2 r + 1 of the frame.
    assert rows == slice(lower.rows.start // 2, SIZE[0] // 2)
    assert columns == slice(0, SIZE[1] // 2)


def test_a_spike_pixel_of_a_band_lies_where_it_lies_on_the_frame():
    # The spike camera is turned. So a row of its pixels lies slanted on the frame, over several
    # rows of the frame.
    turned = np.array([[2.1, -0.1, 0.8], [0.05, 2.0, 1.4], [0, 0, 1.0]])
    view = View(SIZE, (270, 22), turned, is_display=False)
    # A spike pixel has 2 x 2 points. The axes of `on_frame` are row of the plane, point down,
    # column of the plane, point across, and (x, y) on the frame.
    on_frame = view.points_on_frame().reshape(270, 2, 22, 2, 2)

    for band in bands_of(view, FEW_PIXELS):
        found = band.view.points_on_frame()
        rows, columns = band.plane_window
        expected = on_frame[rows, :, columns].reshape(found.shape)
        # A band counts rows from its own first row. So x stays the same, and y becomes less.
        expected = expected - np.array([0, band.rows.start])
        assert np.allclose(found, expected, atol=1e-3)  # pixels


def test_a_band_that_no_spike_pixel_sees_has_no_spikes():
    # 100 rows of spike pixels see the upper 200 of 560 rows. The lower band begins below these
    # rows.
    view = View(SIZE, (100, 24), ALIGNED, is_display=False)

    upper, lower = bands_of(view, FEW_PIXELS)

    assert upper.has_spikes
    assert not lower.has_spikes


def test_a_row_of_a_band_is_exposed_when_it_is_in_the_frame():
    view = aligned_view(*SIZE, rolling=0.4)

    for band in bands_of(view, FEW_PIXELS):
        assert np.allclose(band.view.delays(), view.delays()[band.rows])


# ---- How bands are joined ----


def test_joined_bands_of_a_picture_are_the_picture():
    torch.manual_seed(0)
    picture = torch.rand(3, *SIZE)
    bands = bands_of(aligned_view(*SIZE), FEW_PIXELS)

    pieces = [band.of_frame(picture) for band in bands]

    assert torch.allclose(join_pictures(pieces, bands), picture, atol=1e-6)


def test_rows_beside_the_border_of_a_band_are_not_used():
    bands = bands_of(aligned_view(*SIZE), FEW_PIXELS)
    upper = torch.zeros(1, *bands[0].view.size)
    lower = torch.zeros(1, *bands[1].view.size)
    # Write ones into the rows near the border: the last 32 rows of the upper band, and the first 32
    # rows of the lower band. Of the 128 common rows, the 64 in the middle are used from both bands.
    unused = OVERLAP // 4
    upper[:, -unused:] = 1
    lower[:, :unused] = 1

    assert join_pictures([upper, lower], bands).max() == 0


def test_solving_in_bands_gives_the_solution_of_the_whole_frame(tmp_path):
    # The scene moves by 9 rows in an exposure. So the motion crosses the borders of the bands.
    scene = Scene(velocity=(6.0, -9.0), size=SIZE, frames=1)
    reader = reader_of(scene.write(tmp_path / "clip"))
    z_0 = reader.frame(0)["lq"]  # the blurry frame, from which the solution begins
    clip = RecordedClip(reader, context=None)
    recording = clip.read(0)
    gain, is_good = clip.gain()
    motion = motion_of(recording, clip.view, gain)

    def solved(band):
        """Return the sharp frame of a band, (3, rows, W), which solves the joint equations."""
        equations = Equations(
            recording=band.of_recording(recording),
            pixels=SpikePixels(band.view, CPU),
            motion=band.of_motion(motion),
            gain=band.of_plane(gain),
            is_good=band.of_plane(is_good),
            solver=Solver(),
            device=CPU,
        )
        return equations.solve(band.of_frame(z_0))

    [whole] = bands_of(clip.view)  # one band: the frame has fewer than MOST_PIXELS pixels
    bands = bands_of(clip.view, FEW_PIXELS)
    assert len(bands) == 2
    in_bands = join_pictures([solved(band) for band in bands], bands)

    difference = (in_bands - solved(whole)).abs()
    # The length of a step of the solver follows from sums over all pixels, and a band has other
    # pixels than the whole frame. So the two solutions are not equal. A frame is saved in steps of
    # 1/255 = 0.004. The mean difference is below half a step, and the largest difference is some
    # steps.
    assert difference.mean() < 0.002
    assert difference.max() < 0.03
