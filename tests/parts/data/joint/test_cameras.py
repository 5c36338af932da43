"""data/motion/joint/cameras.py and area_means.py: what both cameras see, and the adjoint.

`Cameras` is a linear map from a sharp frame to what both cameras record. Its adjoint maps
recordings back to a frame. `Cameras` computes with sparse matrices. The tests compare it with
`plainly_seen`, which computes the same sums group by group.

Letters of this file:

    H, W    height and width of a frame, in RGB pixels
    h, w    height and width of a plane (a binary picture of the spike camera), in spike pixels
    G       number of groups into which the planes of an exposure are divided
    M       number of intervals between spikes of a spike pixel
    x       light of the sharp frame, (3, H, W)
    l       the part of this light that the spike camera integrates, (1, H, W)
    B x     what the RGB camera records of x, (3, H, W)
    S l     what the spike camera records of l: a mean for each interval, (M, h, w)
    u_g     motion of group g: what it sees at pixel p is at p + u_g(p) in the sharp frame
    s_g     share of group g in the exposure of a row
    c_g     share of group g in an interval of a spike pixel
    L, D    blur by the lens of the spike camera, and means over the areas of spike pixels

The recordings come from tests/helpers/made_exposures.py (ALIGNED, PLANES, dark_exposure). The clip
of the last test has its equations from tests/helpers/joint_case.py (Case).
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from data.motion.joint import cameras as cameras_module
from data.motion.joint.cameras import Cameras
from data.motion.joint.groups import exposure_shares
from data.motion.joint.lens import blur, gaussian_kernel
from data.motion.joint.spike_pixels import SpikePixels
from data.motion.view import View
from tests.helpers.joint_case import CPU, Case
from tests.helpers.made_exposures import ALIGNED, PLANES, dark_exposure


class MadeCameras(NamedTuple):
    """The cameras of a random case, and the values from which the cameras are made."""

    cameras: Cameras
    view: View
    shifts: torch.Tensor  # u, (G, H, W, 2)
    shares: torch.Tensor  # s, (G, H): share of each group in the exposure of each row
    coverage: torch.Tensor  # c, (M, G, h, w): share of each group in each interval


# M, the number of intervals of each spike pixel, in the cameras that are made here.
INTERVALS = 2
# The spike camera is turned and shifted, and a spike pixel covers 3 x 2 RGB pixels (down x across).
TURNED = np.array([[2.1, -0.1, 0.8], [0.05, 2.9, 1.4], [0, 0, 1.0]])


class Rig(NamedTuple):
    """Two cameras, and a random motion."""

    size: tuple[int, int] = (32, 40)  # (H, W)
    plane: tuple[int, int] = (16, 20)  # (h, w)
    to_rgb: np.ndarray = ALIGNED
    lens_blur: float = 0.0  # sigma in spike pixels
    groups: int = 4  # G
    rolling: float = 0.0  # how much later the last row is exposed, as a share of the exposure
    longest: float = 5.0  # longest shift in x and in y, in RGB pixels


# The first rig is `Rig()`. Each other rig differs from `Rig()` in the property that its name says.
RIGS = {
    "aligned": Rig(),
    "odd size, turned": Rig(size=(33, 47), plane=(11, 22), to_rgb=TURNED),
    "leaves the frame": Rig(longest=60.0),  # more than the width of the frame, 40
    "one group": Rig(groups=1),
    "rolling shutter": Rig(rolling=0.5),
    "lens": Rig(lens_blur=0.6),
    "one row": Rig(size=(1, 24), plane=(1, 12)),
    "one column": Rig(size=(24, 1), plane=(12, 1)),
}


@pytest.fixture(params=list(RIGS))
def shifted_cameras(request) -> MadeCameras:
    """Give cameras with a random motion, once for each of RIGS.

    Each pixel of each group has another shift.
    """
    rig = RIGS[request.param]
    height, width = rig.size
    torch.manual_seed(0)
    view = View(
        rig.size,
        rig.plane,
        rig.to_rgb,
        is_display=False,
        lens_blur=rig.lens_blur,
        rolling=rig.rolling,
    )
    shifts = rig.longest * (2 * torch.rand(rig.groups, height, width, 2) - 1)
    recording = dark_exposure(size=rig.size, plane=rig.plane)
    # With a rolling shutter, the first row is exposed earlier than the middle row, by half of
    # `rolling`. The last row is exposed later, by half of `rolling`. The groups cover the exposures
    # of all rows.
    beyond = PLANES / 2 * rig.rolling  # planes before the exposure of the middle row, and after it
    edges = np.linspace(-beyond, PLANES + beyond, rig.groups + 1)
    shares = torch.from_numpy(exposure_shares(recording, edges, view.delays()))
    coverage = torch.rand(INTERVALS, rig.groups, *view.plane)
    cameras = Cameras(SpikePixels(view, CPU), shifts, shares, coverage)
    return MadeCameras(cameras, view, shifts, shares, coverage)


def plainly_seen(
    made: MadeCameras,
    x: torch.Tensor,
    l: torch.Tensor,  # noqa: E741
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return B x (3, H, W) and S l (M, h, w), computed literally by the equations:

        B x = sum over groups g of s_g x(p + u_g(p))        p: an RGB pixel
        S l = sum over groups g of c_g m(v + u_g(v))        v: a spike pixel, m: the means of l

    The function is slow and simple, and autograd can compute its gradient. x: (3, H, W). l: (1, H,
    W).
    """
    p = pixels_of(made.view.size)
    blurry = torch.zeros_like(x)
    spikes = torch.zeros(INTERVALS, *made.view.plane)
    for g in range(len(made.shifts)):
        s_g = made.shares[g][:, None]  # (H, 1)
        blurry += s_g * sample_picture(x, p + made.shifts[g])
        c_g = made.coverage[:, g]  # (M, h, w)
        spikes += c_g * seen_of_moved_means(l, made.shifts[g], made.view)
    return blurry, spikes


def pixels_of(size: tuple[int, int]) -> torch.Tensor:
    """Return x and y of each pixel of a picture, (H, W, 2)."""
    rows, columns = torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), indexing="ij")
    return torch.stack((columns, rows), dim=-1)


def seen_of_moved_means(grey: torch.Tensor, shifts: torch.Tensor, view: View) -> torch.Tensor:
    """Return m(v + u(v)) for the middle v of each spike pixel, (1, h, w).

    m is the picture of the means over the area of a spike pixel. m is known on a grid of places.
    The distance between two places is one RGB pixel, and the middle of the middle spike pixel is
    one of the places. u(v) is the mean of the shifts over the spike pixel v.

    grey: (1, H, W). shifts: (H, W, 2).
    """
    plane_height, plane_width = view.plane
    down, across = view.points_in_pixel
    points = torch.from_numpy(view.points_on_frame())
    points = points.reshape(plane_height, down, plane_width, across, 2)
    middles = points.mean(dim=(1, 3))  # (h, w, 2)
    # Row and column of the middle spike pixel.
    row = plane_height // 2
    column = plane_width // 2
    # How far the middle of this spike pixel is from the RGB pixel above and left of it, x and y in
    # [0, 1). E.g. the middle (10.5, 8.5) gives (0.5, 0.5).
    beside_pixel = middles[row, column] % 1

    # Compute m at the places of the grid. The grid begins between row -1 and row 0 of the frame,
    # and between column -1 and column 0. So the grid has one row and one column more than the
    # frame.
    places = pixels_of((view.size[0] + 1, view.size[1] + 1)) - 1 + beside_pixel
    blurred = blurred_by_lens(grey, view)
    at_points = []
    for y in range(down):
        for x in range(across):
            from_middle = points[row, y, column, x] - middles[row, column]
            at_points.append(sample_picture(blurred, places + from_middle))
    means = torch.stack(at_points).mean(0)

    mean_shifts = seen_by_spike_pixels(shifts.permute(2, 0, 1), view, has_lens=False)
    # Place (0, 0) of the grid lies at -1 + beside_pixel on the frame. So a position on the frame,
    # minus (-1 + beside_pixel), is a position on the grid.
    return sample_picture(means, middles + mean_shifts.permute(1, 2, 0) + 1 - beside_pixel)


def seen_by_spike_pixels(pictures: torch.Tensor, view: View, has_lens: bool = True) -> torch.Tensor:
    """Return D L of pictures (N, H, W), in the shape (N, h, w).

    L blurs by the lens. D takes the mean over the area of each spike pixel.

    has_lens: whether the lens blurs the pictures. False gives D alone, e.g. for shifts.
    """
    if has_lens:
        pictures = blurred_by_lens(pictures, view)
    # Each spike pixel has `down` x `across` points, so the points are (N, h down, w across).
    points = sample_picture(pictures, torch.from_numpy(view.points_on_frame()))
    return torch.nn.functional.avg_pool2d(points, view.points_in_pixel)


def blurred_by_lens(pictures: torch.Tensor, view: View) -> torch.Tensor:
    """Return L of pictures (N, H, W), in the same shape."""
    if not view.lens_blur:
        return pictures
    sigma = view.lens_blur * max(view.points_in_pixel)  # RGB pixels
    return blur(pictures[:, None], gaussian_kernel(sigma))[:, 0]


def sample_picture(picture: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return a picture (C, H, W) at positions (h, w, 2), x and y in pixels. Result: (C, h, w).

    Between pixels, interpolate linearly. Positions outside of the picture get the value of the
    nearest pixel of the edge.
    """
    height, width = picture.shape[1:]
    # grid_sample counts from -1 (first pixel) to 1 (last pixel). In a picture of one row or column,
    # the number of the last pixel is 0. Use 1 then, because the next line divides by this number.
    last_pixel = torch.tensor([max(width - 1, 1), max(height - 1, 1)])
    grid = 2 * positions / last_pixel - 1
    [samples] = torch.nn.functional.grid_sample(
        picture[None], grid[None], padding_mode="border", align_corners=True
    )
    return samples


# `shifted_cameras` gives the cameras of each of RIGS, with a random motion.
def test_the_cameras_see_what_their_equations_say(shifted_cameras):
    x = torch.rand(3, *shifted_cameras.view.size)
    grey = torch.rand(1, *shifted_cameras.view.size)

    blurry, spikes = shifted_cameras.cameras(x, grey)

    plain_blurry, plain_spikes = plainly_seen(shifted_cameras, x, grey)
    # The results may differ only by the rounding of float32. Each result is a sum of up to a
    # hundred values. The sum is at most 4, because there are at most 4 groups. An addition rounds
    # such a sum by at most 2^-23 = 1.2e-7, so a hundred additions round it by about 1e-5.
    assert torch.allclose(blurry, plain_blurry, atol=2e-5)
    assert torch.allclose(spikes, plain_spikes, atol=2e-5)


@pytest.mark.parametrize("to_rgb", [ALIGNED, TURNED], ids=["aligned", "turned"])
def test_if_all_pixels_move_alike_the_spike_camera_sees_the_moved_picture(to_rgb):
    view = View((48, 60), (16, 20), to_rgb, is_display=False, lens_blur=0.3)
    shifts = torch.tensor([2.3, -1.6]).expand(1, *view.size, 2)
    # The picture is smooth, because the cameras interpolate the means of spike pixels on a grid.
    # Most spike pixels of TURNED lie between the places of the grid.
    rows = torch.linspace(0, 3, 48)[:, None]
    columns = torch.linspace(0, 4, 60)
    grey = (torch.sin(rows) * torch.cos(columns))[None]
    one = torch.ones(1, 1, *view.plane)
    cameras = Cameras(SpikePixels(view, CPU), shifts, torch.ones(1, 48), one)

    _, seen = cameras(torch.zeros(3, *view.size), grey)

    moved = sample_picture(grey, pixels_of(view.size) + shifts[0])
    in_truth = seen_by_spike_pixels(moved, view)
    # Compare without 4 spike pixels at each edge, which see pixels from outside of the frame.
    inside = (..., slice(4, -4), slice(4, -4))
    # Both sides interpolate linearly between pixels, at different places. A linear interpolation
    # with steps of length d is off by at most d^2 / 8 times the second derivative. For a sine, this
    # derivative is at most 1. The steps are 3/48 down and 4/60 across, so the error is at most
    #
    #     (3/48)^2 / 8 + (4/60)^2 / 8 = 1e-3
    #
    # Each side of the comparison interpolates twice, so it is off by 2e-3 at most. The errors of
    # both sides are towards 0, so the sides differ by 2e-3 at most.
    assert torch.allclose(seen[inside], in_truth[inside], atol=2e-3)
    # The motion changes the seen picture by more than 0.05, which is 25 times the limit above. So a
    # camera that ignores the motion does not pass.
    unmoved = seen_by_spike_pixels(grey, view)
    assert (unmoved - in_truth)[inside].abs().max() > 0.05


def test_cameras_are_the_same_if_their_groups_are_computed_one_after_the_other(
    shifted_cameras, monkeypatch
):
    monkeypatch.setattr(cameras_module, "SAMPLES_AT_A_TIME", 1)  # one group at a time
    pixels = SpikePixels(shifted_cameras.view, CPU)
    in_parts = Cameras(
        pixels, shifted_cameras.shifts, shifted_cameras.shares, shifted_cameras.coverage
    )
    x = torch.rand(3, *shifted_cameras.view.size)
    grey = torch.rand(1, *shifted_cameras.view.size)

    blurry, spikes = shifted_cameras.cameras(x, grey)
    blurry_in_parts, spikes_in_parts = in_parts(x, grey)
    by_x, by_grey = shifted_cameras.cameras.adjoint(blurry, spikes)
    by_x_in_parts, by_grey_in_parts = in_parts.adjoint(blurry, spikes)

    # The groups are added in another order, so only rounding may differ. The limits are the same as
    # in test_the_cameras_see_what_their_equations_say.
    assert torch.allclose(blurry_in_parts, blurry, atol=2e-5)
    assert torch.allclose(spikes_in_parts, spikes, atol=2e-5)
    assert torch.allclose(by_x_in_parts, by_x, rtol=1e-4, atol=1e-4)
    assert torch.allclose(by_grey_in_parts, by_grey, rtol=1e-4, atol=1e-4)


def test_the_adjoint_of_the_cameras_is_the_gradient_of_their_equations(shifted_cameras):
    # The equations are linear. The gradient of <B x, a> + <S l, b> is then the adjoint of (a, b),
    # and does not depend on x and l. So x and l may be 0.
    x = torch.zeros(3, *shifted_cameras.view.size, requires_grad=True)
    grey = torch.zeros(1, *shifted_cameras.view.size, requires_grad=True)
    blurry, spikes = plainly_seen(shifted_cameras, x, grey)
    of_blurry = torch.rand_like(blurry)
    of_spikes = torch.rand_like(spikes)

    by_x, by_grey = shifted_cameras.cameras.adjoint(of_blurry, of_spikes)

    plain_x, plain_grey = torch.autograd.grad((blurry, spikes), (x, grey), (of_blurry, of_spikes))
    # Only rounding may differ. A value of the adjoint can be a sum of many samples and far above 1.
    # So the limit is relative, and larger than the limit for B x and S l.
    assert torch.allclose(by_x, plain_x, rtol=1e-4, atol=1e-4)
    assert torch.allclose(by_grey, plain_grey, rtol=1e-4, atol=1e-4)


def test_the_adjoint_of_the_cameras_is_exact(moving_clip):
    case = Case(moving_clip)
    torch.manual_seed(0)
    x = torch.rand_like(case.sharp)
    grey = torch.rand_like(case.sharp[:1])
    blurry, spikes = case.equations.system.cameras(x, grey)
    of_blurry = torch.rand_like(blurry)
    of_spikes = torch.rand_like(spikes)

    by_x, by_grey = case.equations.system.cameras.adjoint(of_blurry, of_spikes)

    # A' is the adjoint of A if (A a) . b = a . (A' b) for all a and b. Here a is (x, grey), and b
    # is (of_blurry, of_spikes). The sums are computed in float64, because float32 would add
    # rounding errors.
    forward = (blurry * of_blurry).double().sum() + (spikes * of_spikes).double().sum()
    backward = (x * by_x).double().sum() + (grey * by_grey).double().sum()
    # `cameras` and `adjoint` themselves compute in float32, so a limit of 1e-5 is left.
    assert float(forward) == pytest.approx(float(backward), rel=1e-5)
