"""data/motion/joint.py: the sharp frame that fits the RGB frame and the spikes along a motion.

The data are simulated scenes whose motion is known (tests/helpers/moving_scene.py). The equations
say what both cameras see of a sharp frame that moves along the motion:

    RGB equations      its mean over the exposure is the blurry frame
    spike equations    its light between two neighbouring spikes of a pixel is one threshold

A frame has H x W RGB pixels, a plane (one binary picture of the spike camera) h x w spike pixels.
The planes of an exposure are divided into G groups, and a spike pixel has M intervals between
spikes. x is the light of the sharp frame, and l is what the spike camera integrates of it.

A comment "measured" beside a limit is the value when the test was written. The claim of the test
still holds at the limit, and the distance between both leaves room for other versions of torch.
"""

import copy
import itertools
import json
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from data.motion import joint
from data.motion.exposure import Recording
from data.motion.flow import motion_of
from data.motion.joint import (
    Cameras,
    Equations,
    Solver,
    SpikePixels,
    blur,
    conjugate_gradients,
    exposure_shares,
    gaussian_kernel,
    group_count,
    guard_solution,
    luma,
    noise_of,
    spike_equations,
    spike_intervals,
)
from data.motion.recording import RecordedClip
from data.motion.shifts import Motion
from data.motion.view import View
from tests.helpers.moving_scene import Scene, reader_of

CPU = torch.device("cpu")
# The frame of the clip that is solved: the middle one of three.
FRAME = 1
# Pixels at each side that are not compared, because the scene moves in and out of view there.
EDGE = 12
MOVING = Scene(velocity=(12.0, -4.0))

# A frame (C, H, W) without its edges, and spike planes (M, h, w) without their edges. Spike planes
# have half as many rows and columns.
INSIDE = (slice(None), slice(EDGE, -EDGE), slice(EDGE, -EDGE))
INSIDE_SPIKES = (slice(None), slice(EDGE // 2, -EDGE // 2), slice(EDGE // 2, -EDGE // 2))


def true_motion(scene: Scene, factor: float = 1.0) -> Motion:
    """Return the true motion of the middle frame at nine times of the exposure.

    factor: scales the motion. 0 says that nothing moves.
    """
    # Planes after the sharp frame, which is the middle of plane 30 of 60. A motion must have the
    # time 0, so the nearest time is moved there.
    times = np.linspace(-30.5, 29.5, 9)
    times[np.abs(times).argmin()] = 0.0
    shifts = np.stack([scene.shifts(FRAME, time) for time in times]).astype(np.float32)
    expected_error = np.full(shifts.shape[:3], 0.1, np.float32)  # pixels
    return Motion(times, factor * shifts, expected_error)


class Case:
    """The middle frame of a clip, with its equations along one motion.

    folder: a folder of `Scene.write`.
    motion: the motion of the equations. None: it is measured from the spikes.
    spike: keys of the section `spike` in place of the usual keys.
    """

    def __init__(self, folder, motion=None, device=CPU, **spike) -> None:
        reader = reader_of(folder, **spike)
        item = reader.frame(FRAME)
        self.blurry = item["lq"]  # (3, H, W)
        self.sharp = item["gt"]  # (3, H, W)

        clip = RecordedClip(reader, context=None)
        self.recording = clip.read(FRAME)
        self.pixels = SpikePixels(clip.view, device)
        self.gain, is_good = clip.gain()
        if motion is None:
            motion = motion_of(self.recording, clip.view, self.gain)
        self.equations = Equations(
            self.recording, self.pixels, motion, self.gain, is_good, Solver(), device
        )

    def psnr(self, frame: torch.Tensor) -> float:
        """Return the PSNR of a frame in dB, without its edges."""
        error = (frame - self.sharp)[INSIDE]
        return float(-10 * (error**2).mean().log10())

    def guarded(
        self, z: torch.Tensor, start: torch.Tensor, guard: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the frame between a solution z and its start z_0, and the weights of z (H, W)."""
        return guard_solution(z, start, self.recording, self.pixels, self.gain, guard=guard)


@pytest.fixture(scope="module")
def moving_clip(tmp_path_factory):
    """Give the folder of a clip that moves."""
    return MOVING.write(tmp_path_factory.mktemp("moving") / "clip")


@pytest.fixture(scope="module", params=["linear", "display"])
def true_case(request, tmp_path_factory):
    """Give a clip along its true motion, for each light that the spike camera may integrate."""
    scene = replace(MOVING, light=request.param)
    folder = scene.write(tmp_path_factory.mktemp("light") / "clip")
    return Case(folder, true_motion(scene))


# ---- The equations ----


class Misfit(NamedTuple):
    """Root mean squares of residuals, in multiples of the expected error."""

    rgb: float
    spikes: float


def root_mean_square(values: torch.Tensor) -> float:
    """Return the root of the mean square of a tensor."""
    return float(values.square().mean().sqrt())


def misfit(equations: Equations, frame: torch.Tensor) -> Misfit:
    """Return how badly a frame fits the equations. 1 is as good as noise allows."""
    r_b, r_s = equations.residuals(frame)
    # A weight is 1 / (expected error), so weight times residual is a residual in multiples of its
    # expected error. Spike intervals that do not count have weight 0.
    of_rgb = (equations.w_b * r_b)[INSIDE]
    counts = equations.w_s[INSIDE_SPIKES] > 0
    of_spikes = (equations.w_s * r_s)[INSIDE_SPIKES][counts]
    return Misfit(root_mean_square(of_rgb), root_mean_square(of_spikes))


def test_the_sharp_frame_along_the_true_motion_fits_all_equations(true_case):
    of_sharp = misfit(true_case.equations, true_case.sharp)

    # 1 is the expected error, and 1.5 leaves room for chance. Measured: 0.2 for RGB, 0.6 (light)
    # and 0.8 (display values) for spikes.
    assert of_sharp.rgb < 1.5
    assert of_sharp.spikes < 1.5


def test_the_blurry_frame_fits_the_equations_worse_than_the_sharp_frame(true_case):
    of_sharp = misfit(true_case.equations, true_case.sharp)
    of_blurry = misfit(true_case.equations, true_case.blurry)

    # Measured: RGB 9 times, spikes 2.0 (light) and 1.5 (display values) times. The limit for spikes
    # is lower, because a single interval of spikes is noisy and tells less.
    assert of_blurry.rgb > 3 * of_sharp.rgb
    assert of_blurry.spikes > 1.3 * of_sharp.spikes


# ---- The map of the cameras ----


class MadeCameras(NamedTuple):
    """The cameras of a random case, and all that they are made of."""

    cameras: Cameras
    view: View
    shifts: torch.Tensor  # u, (G, H, W, 2)
    shares: torch.Tensor  # s, (G, H): share of each group in the exposure of each row
    coverage: torch.Tensor  # c, (M, G, h, w): share of each group in each interval


# M: number of intervals of each spike pixel in the cameras that are made here.
INTERVALS = 2
# Both cameras are aligned, and a spike pixel covers 2 x 2 RGB pixels. The matrix maps a spike pixel
# (x, y, 1) to an RGB pixel: spike pixel 0 covers the RGB pixels 0 and 1, so its middle lies at 0.5.
ALIGNED = np.array([[2, 0, 0.5], [0, 2, 0.5], [0, 0, 1.0]])
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
    longest: float = 5.0  # longest shift in x and y, in pixels


# Each rig has one property that `Rig()` has not.
RIGS = {
    "aligned": Rig(),
    "odd size, turned": Rig(size=(33, 47), plane=(11, 22), to_rgb=TURNED),
    "leaves the frame": Rig(longest=60.0),
    "one group": Rig(groups=1),
    "rolling shutter": Rig(rolling=0.5),
    "lens": Rig(lens_blur=0.6),
    "one row": Rig(size=(1, 24), plane=(1, 12)),
    "one column": Rig(size=(24, 1), plane=(12, 1)),
}


# Planes of the exposures that are made here.
PLANES = 40


def dark_exposure(size: tuple[int, int], plane: tuple[int, int]) -> Recording:
    """Return an exposure of 40 planes without light. size: (H, W). plane: (h, w)."""
    return Recording(
        blurry=np.zeros((*size, 3), np.float32),
        stream=np.zeros((PLANES, *plane), np.uint8),
        begin=0,
        end=PLANES,
        sharp=20.5,  # the middle of plane 20
    )


@pytest.fixture(params=list(RIGS))
def shifted_cameras(request) -> MadeCameras:
    """Give cameras along a random motion. Each pixel of each group has a shift of its own."""
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
    # The first row is exposed earlier by half of the rolling, and the last row later.
    beyond = PLANES / 2 * rig.rolling  # planes
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
    """Return B x (3, H, W) and S l (M, h, w), written down as the equations say.

        B x = sum over groups g of s_g x(p + u_g(p))
        S l = sum over groups g of c_g D L l(p + u_g(p))

    It is slow and simple, and autograd can go through it.
    x: (3, H, W), light. l: (1, H, W), what the spike camera integrates.
    """
    height, width = made.view.size
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    p = torch.stack((columns, rows), dim=-1)  # (H, W, 2): x and y of each pixel
    blurry = torch.zeros_like(x)
    spikes = torch.zeros(INTERVALS, *made.view.plane)
    for g in range(len(made.shifts)):
        positions = p + made.shifts[g]
        s_g = made.shares[g][:, None]  # (H, 1)
        blurry += s_g * sample_picture(x, positions)
        c_g = made.coverage[:, g]  # (M, h, w)
        spikes += c_g * seen_by_spike_pixels(sample_picture(l, positions), made.view)
    return blurry, spikes


def seen_by_spike_pixels(grey: torch.Tensor, view: View) -> torch.Tensor:
    """Return D L of a picture (1, H, W): blur it by the lens, and take means. Returns (1, h, w)."""
    if view.lens_blur:
        sigma = view.lens_blur * max(view.points_in_pixel)  # RGB pixels
        grey = blur(grey[None], gaussian_kernel(sigma))[0]
    points = sample_picture(grey, torch.from_numpy(view.points_on_frame()))  # (1, h m, w n)
    return torch.nn.functional.avg_pool2d(points, view.points_in_pixel)


def sample_picture(picture: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return a picture (C, H, W) at positions (h, w, 2), x and y in pixels."""
    height, width = picture.shape[1:]
    # grid_sample counts from -1 (first pixel) to 1 (last pixel). At least 1: a picture of one row
    # would divide by 0.
    last_pixel = torch.tensor([max(width - 1, 1), max(height - 1, 1)])
    grid = 2 * positions / last_pixel - 1
    [samples] = torch.nn.functional.grid_sample(
        picture[None], grid[None], padding_mode="border", align_corners=True
    )
    return samples


def test_the_cameras_see_what_their_equations_say(shifted_cameras):
    x = torch.rand(3, *shifted_cameras.view.size)
    grey = torch.rand(1, *shifted_cameras.view.size)

    blurry, spikes = shifted_cameras.cameras(x, grey)

    plain_blurry, plain_spikes = plainly_seen(shifted_cameras, x, grey)
    # Only the rounding of float32 differs, in sums of up to a hundred values of at most 1.
    assert torch.allclose(blurry, plain_blurry, atol=2e-5)
    assert torch.allclose(spikes, plain_spikes, atol=2e-5)


def test_without_a_grey_picture_the_spike_camera_sees_the_luma_of_the_colours(shifted_cameras):
    x = torch.rand(3, *shifted_cameras.view.size)

    blurry, spikes = shifted_cameras.cameras(x)

    blurry_of_both, spikes_of_luma = shifted_cameras.cameras(x, luma(x))
    assert torch.allclose(blurry, blurry_of_both, atol=2e-5)
    assert torch.allclose(spikes, spikes_of_luma, atol=2e-5)


def test_cameras_are_the_same_if_their_groups_are_computed_one_after_the_other(
    shifted_cameras, monkeypatch
):
    monkeypatch.setattr(joint, "SAMPLES_AT_A_TIME", 1)  # one group at a time
    pixels = SpikePixels(shifted_cameras.view, CPU)
    in_parts = Cameras(
        pixels, shifted_cameras.shifts, shifted_cameras.shares, shifted_cameras.coverage
    )
    x = torch.rand(3, *shifted_cameras.view.size)
    grey = torch.rand(1, *shifted_cameras.view.size)

    of_parts = in_parts(x, grey)
    of_all = shifted_cameras.cameras(x, grey)
    for in_part, at_once in zip(of_parts, of_all, strict=True):
        assert torch.allclose(in_part, at_once, atol=2e-5)
    for in_part, at_once in zip(
        in_parts.adjoint(*of_all), shifted_cameras.cameras.adjoint(*of_all), strict=True
    ):
        assert torch.allclose(in_part, at_once, rtol=1e-4, atol=1e-4)


def test_the_adjoint_of_the_cameras_is_the_gradient_of_their_equations(shifted_cameras):
    x = torch.zeros(3, *shifted_cameras.view.size, requires_grad=True)
    grey = torch.zeros(1, *shifted_cameras.view.size, requires_grad=True)
    blurry, spikes = plainly_seen(shifted_cameras, x, grey)
    of_blurry = torch.rand_like(blurry)
    of_spikes = torch.rand_like(spikes)

    by_x, by_grey = shifted_cameras.cameras.adjoint(of_blurry, of_spikes)

    plain_x, plain_grey = torch.autograd.grad((blurry, spikes), (x, grey), (of_blurry, of_spikes))
    assert torch.allclose(by_x, plain_x, rtol=1e-4, atol=1e-4)
    assert torch.allclose(by_grey, plain_grey, rtol=1e-4, atol=1e-4)


def test_the_adjoint_of_the_cameras_is_exact(moving_clip):
    case = Case(moving_clip)
    torch.manual_seed(0)
    x = torch.rand_like(case.sharp)
    grey = torch.rand_like(case.sharp[:1])
    blurry, spikes = case.equations.cameras(x, grey)
    of_blurry = torch.rand_like(blurry)
    of_spikes = torch.rand_like(spikes)

    by_x, by_grey = case.equations.cameras.adjoint(of_blurry, of_spikes)

    # A' is the adjoint of A if (A x) . y = x . (A' y) for all x and y. Here x is (x, grey), and y
    # is (of_blurry, of_spikes). The sums are taken in float64, so that they do not add errors.
    forward = (blurry * of_blurry).double().sum() + (spikes * of_spikes).double().sum()
    backward = (x * by_x).double().sum() + (grey * by_grey).double().sum()
    assert float(forward) == pytest.approx(float(backward), rel=1e-5)


# ---- The solver and its settings ----


def test_conjugate_gradients_solve_the_normal_equations():
    # A random matrix takes the place of both cameras. The unknown d is a picture of 3 x 4 pixels
    # with one colour, so it has 12 values. The cameras record 40 values: 30 the first, 10 the
    # second.
    torch.manual_seed(0)
    a = torch.rand(40, 12)
    prior = 0.1 + torch.rand(3, 4)
    right = torch.rand(1, 3, 4)

    def linear(d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = a @ d.flatten()
        return values[:30], values[30:]

    def adjoint(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return (a.T @ torch.cat((first, second))).view(1, 3, 4)

    # As many steps as unknowns reach the solution, whatever the divisor is.
    divisor = 0.5 + torch.rand_like(right)
    d = conjugate_gradients(linear, adjoint, prior, right, divisor, steps=12)

    # The normal equations: (A' A + prior) d = right.
    normal = a.T @ a + torch.diag(prior.flatten())
    expected = torch.linalg.solve(normal, right.flatten())
    assert torch.allclose(d.flatten(), expected, atol=1e-3)


def motion_over(way: float) -> Motion:
    """Return a motion by `way` pixels to the right within an exposure of 40 planes."""
    times = np.array([-20.0, 0.0, 20.0])  # planes after the sharp instant
    shifts = np.zeros((3, 16, 16, 2), np.float32)
    shifts[0, ..., 0] = -way / 2  # x, at the begin of the exposure
    shifts[2, ..., 0] = way / 2  # x, at its end
    no_errors = np.zeros((3, 16, 16), np.float32)
    return Motion(times, shifts, no_errors)


def exposure_with(spikes: int) -> Recording:
    """Return an exposure of 40 planes in which each pixel has this number of spikes."""
    recording = dark_exposure(size=(16, 16), plane=(8, 8))
    recording.stream[:spikes] = 1
    return recording


# way: of each pixel in the exposure, in pixels. spikes: of each pixel in the exposure; 30 are good
# light, 3 are dim. In good light a pixel may move by 1.25 pixels from one group to the next, in dim
# light by 2.5 pixels. At least 6 groups are made, and at most 20 are allowed here.
@pytest.mark.parametrize(
    ("way", "spikes", "groups"),
    [
        pytest.param(0, 30, 6, id="still: the least number"),
        pytest.param(10, 30, 8, id="slow: 10 / 1.25"),
        pytest.param(20, 30, 16, id="faster: 20 / 1.25"),
        pytest.param(60, 30, 20, id="fastest: 60 / 1.25 = 48, but 20 are allowed"),
        pytest.param(20, 3, 8, id="dim: 20 / 2.5"),
    ],
)
def test_a_faster_motion_gets_more_groups(way, spikes, groups):
    assert group_count(exposure_with(spikes), motion_over(way), most_groups=20) == groups


def test_the_solver_limits_the_groups_of_a_still_scene_too():
    assert group_count(exposure_with(30), motion_over(0), most_groups=2) == 2


# ---- Which spike pixels have equations ----


def columns_with_equations(to_rgb: np.ndarray, is_good: np.ndarray) -> list[bool]:
    """Return for each of 8 columns of spike pixels whether all of its pixels have equations.

    Each pixel has 30 spikes. A frame has 16 x 16 pixels. is_good: (8, 8).
    """
    recording = exposure_with(30)
    pixels = SpikePixels(View((16, 16), (8, 8), to_rgb, is_display=False), CPU)
    gain = np.ones((8, 8), np.float32)
    edges = np.linspace(0, PLANES, 7)
    made_of_spikes = spike_equations(recording, pixels, edges, gain, is_good, CPU)
    return (made_of_spikes.weights > 0).any(0).all(0).tolist()


def test_a_spike_pixel_that_cannot_be_trusted_has_no_equation():
    is_good = np.ones((8, 8), bool)
    is_good[:, 2] = False

    assert columns_with_equations(ALIGNED, is_good) == is_good[0].tolist()


def test_a_spike_pixel_beside_the_frame_has_no_equation():
    # The spike camera looks three spike pixels further to the right.
    to_the_right = ALIGNED + np.array([[0, 0, 6.0], [0, 0, 0], [0, 0, 0]])

    found = columns_with_equations(to_the_right, is_good=np.ones((8, 8), bool))

    assert found == 5 * [True] + 3 * [False]


# ---- Intervals between spikes ----

# Times between which light is counted, in planes: five edges, so four intervals of a pixel at most.
EDGES = np.array([8, 14, 20, 26, 32])


class Interval(NamedTuple):
    """An interval between two spikes of a pixel."""

    begin: float  # time of the first spike
    end: float  # time of the last spike
    count: float  # number of spikes after `begin` and up to `end`


@pytest.fixture
def random_stream():
    """Give 40 planes of 5 x 6 pixels, which have different rates of 0 to 0.5 spikes per plane."""
    rng = np.random.default_rng(1)
    numbers = rng.random((PLANES, 5, 6))
    rates = 0.5 * rng.random((5, 6))
    return (numbers < rates).astype(np.uint8)


def spike_times(stream: np.ndarray, y: int, x: int) -> np.ndarray:
    """Return the times of the spikes of a pixel. A spike in plane p has the time p + 1."""
    return np.flatnonzero(stream[:, y, x]) + 1


def used_intervals(stream: np.ndarray, edges: np.ndarray, y: int, x: int) -> list[Interval]:
    """Return the intervals of a pixel that have a threshold, in the order of time."""
    begins, ends, counts = spike_intervals(stream, edges)
    intervals = []
    for begin, end, count in zip(begins[:, y, x], ends[:, y, x], counts[:, y, x], strict=True):
        if count > 0:
            intervals.append(Interval(begin, end, count))
    return intervals


def test_spike_intervals_have_one_value_for_each_pair_of_edges(random_stream):
    begins, ends, counts = spike_intervals(random_stream, EDGES)

    # Four pairs of edges, and planes of 5 x 6 pixels.
    assert begins.shape == ends.shape == counts.shape == (4, 5, 6)


def test_an_interval_goes_from_one_spike_to_a_later_one(random_stream):
    checked = 0
    for y, x in np.ndindex(5, 6):
        times = spike_times(random_stream, y, x)
        for interval in used_intervals(random_stream, EDGES, y, x):
            assert interval.begin in times
            assert interval.end in times
            assert EDGES[0] <= interval.begin < interval.end <= EDGES[-1]
            checked += 1
    # Of 4 x 30 possible intervals, 80 exist. Without any, the loop would have checked nothing.
    assert checked > 60


def test_an_interval_counts_the_spikes_that_lie_between(random_stream):
    for y, x in np.ndindex(5, 6):
        times = spike_times(random_stream, y, x)
        for interval in used_intervals(random_stream, EDGES, y, x):
            lies_between = (times > interval.begin) & (times <= interval.end)
            assert interval.count == lies_between.sum()


def test_an_interval_goes_from_the_spike_nearest_to_one_edge_to_that_nearest_to_a_later_edge():
    stream = np.zeros((20, 1, 1), np.uint8)
    for time in (3, 9, 16):
        stream[time - 1] = 1  # a spike ends its plane

    found = used_intervals(stream, np.array([2, 8, 14, 17]), y=0, x=0)

    # Nearest to the edges 2, 8, 14 and 17 are the spikes at 3, 9, 16 and 16.
    assert found == [Interval(begin=3, end=9, count=1), Interval(begin=9, end=16, count=1)]


def test_no_light_is_counted_twice(random_stream):
    for y, x in np.ndindex(5, 6):
        intervals = used_intervals(random_stream, EDGES, y, x)
        for former, following in itertools.pairwise(intervals):
            assert following.begin >= former.end


def test_nearly_each_pixel_that_fires_twice_within_the_edges_has_an_interval(random_stream):
    _, _, counts = spike_intervals(random_stream, EDGES)

    has_interval = counts.sum(0) > 0
    fires_twice = random_stream[7:32].sum(0) > 1  # the spikes of these planes have times 8 to 32
    # Two spikes may be nearest to the same edge, so a few pixels may have no edge. Measured: 1.0.
    assert (has_interval == fires_twice).mean() > 0.9


# ---- A rolling shutter ----

# Times between 14 groups of 4 planes. The first row is exposed from 12, the last row until 68.
EDGES_OF_GROUPS = np.linspace(12, 68, 15)


@pytest.fixture
def rolling_shares():
    """Give the share (14, 9) of each of 14 groups in the exposure of each of 9 rows.

    The middle row is exposed in the planes 20 to 59 of 80 planes. The shutter rolls by 0.4 of the
    exposure, so the first row is exposed 8 planes earlier, and the last row 8 planes later.
    """
    recording = Recording(
        blurry=np.zeros((9, 4, 3), np.float32),
        stream=np.zeros((80, 2, 2), np.uint8),
        begin=20,
        end=60,
        sharp=40,
    )
    view = View(size=(9, 4), plane=(2, 2), to_rgb=ALIGNED, is_display=False, rolling=0.4)
    return exposure_shares(recording, EDGES_OF_GROUPS, view.delays())


def test_a_rolling_shutter_exposes_all_rows_for_the_same_time(rolling_shares):
    of_rows = rolling_shares.sum(0)  # (9,)
    assert np.allclose(of_rows, 1)


def test_a_rolling_shutter_exposes_each_row_later(rolling_shares):
    middles = (EDGES_OF_GROUPS[:-1] + EDGES_OF_GROUPS[1:]) / 2

    mean_times = middles @ rolling_shares  # (9,), of each row

    # The exposure of the middle row has its middle at time 40, and takes 40 planes. The shutter
    # rolls by 0.4 of it, 16 planes: the first row is 8 planes earlier, the last row 8 later.
    expected = 40 + np.linspace(-8, 8, 9)
    assert np.allclose(mean_times, expected, atol=0.1)


# ---- The solution ----


def test_the_frame_is_far_sharper_than_its_start(moving_clip):
    case = Case(moving_clip)

    frame = case.equations.solve(case.blurry)

    gain = case.psnr(frame) - case.psnr(case.blurry)
    assert gain > 5  # dB; measured: 6.3


def test_the_first_step_changes_the_frame_as_the_equations_pull_it(true_case, monkeypatch):
    # Residuals are divided by M = lambda + M_0 + M_1 R. Here M is nearly the same everywhere, so
    # the first step is proportional to the pull A^T W r.
    monkeypatch.setattr(joint, "M_0", 1e6)
    monkeypatch.setattr(joint, "M_1", 0.0)
    equations = copy.copy(true_case.equations)
    equations.solver = Solver(linearisations=1, steps=1)
    z_0 = true_case.blurry

    z = equations.solve(z_0)

    r_b, r_s = equations.residuals(z_0)
    w_b, w_s = equations.robust_weights(r_b, r_s)
    by_x, by_l = equations.cameras.adjoint(w_b**2 * r_b, w_s**2 * r_s)
    luma_weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    slope = 2.2 * z_0.clamp(min=joint.DARK) ** 1.2  # dx / dz of x = z^2.2
    if equations.is_display:
        pull = slope * by_x + luma_weights * by_l
    else:
        pull = slope * (by_x + luma_weights * by_l)
    inside = (z > 0) & (z < 1)  # the solution is limited to these values
    change = (z - z_0)[inside]
    cosine = (change * pull[inside]).sum() / (change.norm() * pull[inside].norm())
    assert float(cosine) > 0.9999


# ---- What a network sees of the equations ----

# A frame may not solve the equations yet. The pull is the change of the frame that the equations
# want. `true_case` is a frame with its equations along the true motion.
#
# Channels of `Equations.pulls`:
#
#     0 to 2    the change of each colour that the RGB equations want
#     3         the change of the grey value that the spike equations want
#     4, 5      sizes of the residuals of the RGB equations, and of the spike equations
#     6         by how much the spikes of the sharp instant are brighter than the frame
CHANGES = slice(0, 4)
GREY = slice(3, 4)
OTHERS = slice(4, 7)
BRIGHTER = slice(6, 7)


@pytest.mark.parametrize(
    "channel",
    [pytest.param(GREY, id="spike equations"), pytest.param(BRIGHTER, id="sharp instant")],
)
def test_the_equations_pull_a_frame_towards_the_sharp_one(true_case, channel):
    case = true_case

    pulls = case.equations.pulls(case.blurry)[INSIDE]  # (7, rows, columns)
    pull = pulls[channel]  # (1, rows, columns)

    # The cosine of the angle between the pull and the change that leads to the sharp frame: 1 if
    # they are proportional, 0 if they are unrelated.
    wanted = (case.sharp - case.blurry)[INSIDE].mean(0, keepdim=True)  # (1, rows, columns)
    cosine = (pull * wanted).sum() / (pull.norm() * wanted.norm())
    assert float(cosine) > 0.5  # measured: 0.75 to 0.82


def test_the_equations_hardly_pull_the_sharp_frame(true_case):
    case = true_case

    of_blurry = case.equations.pulls(case.blurry)[INSIDE].abs()
    of_sharp = case.equations.pulls(case.sharp)[INSIDE].abs()

    # Measured: 0.12 with spikes of light, 0.17 with spikes of display values.
    changes = of_sharp[CHANGES].mean() / of_blurry[CHANGES].mean()
    assert changes < 0.5
    # Measured: 0.66 and 0.79, in the same order. The residuals do not vanish, because they contain
    # the noise of the spikes.
    others = of_sharp[OTHERS].mean() / of_blurry[OTHERS].mean()
    assert others < 0.8


# A picture that becomes brighter from left to right.
RAMP = torch.linspace(0.2, 0.8, 64).expand(64, 64)


def test_a_ramp_has_no_noise():
    assert noise_of(RAMP) < 1e-6


def test_the_noise_on_a_ramp_is_measured():
    torch.manual_seed(0)
    noise = 0.02 * torch.randn(64, 64)

    assert noise_of(RAMP + noise) == pytest.approx(0.02, rel=0.1)


# ---- What a calibration tells of the shutter ----

# A spike pixel covers 2 x 2 RGB pixels.
CAMERAS = {
    "format": 1,
    "matrix": [[2, 0, 0.5], [0, 2, 0.5]],
    "spike_size": [48, 48],
    "rgb_size": [96, 96],
}


def write_calibration(path, **shutter: float) -> str:
    """Write a calibration with these keys of the shutter. Returns its path as a text."""
    path.write_text(json.dumps({**CAMERAS, **shutter}))
    return str(path)


# -0.4: a shutter that begins at the last row.
@pytest.mark.parametrize("rolling", [0.4, -0.4])
def test_what_the_calibration_tells_of_the_shutter_helps(rolling, tmp_path):
    scene = Scene(velocity=(14.0, 0.0), exposure=0.7, rolling=rolling)
    folder = scene.write(tmp_path / "clip")

    def psnr_if_told(**shutter: float) -> float:
        """Return the PSNR that is reached if the calibration has these keys of the shutter."""
        calibration = write_calibration(tmp_path / "cameras.json", **shutter)
        case = Case(folder, true_motion(scene), calibration=calibration)
        return case.psnr(case.equations.solve(case.blurry))

    without = psnr_if_told()
    with_exposure = psnr_if_told(exposure_share=0.7)
    with_both = psnr_if_told(exposure_share=0.7, rolling=rolling)

    # Measured: 25.1, 31.1 and 34.4 dB.
    assert without + 0.5 < with_exposure
    assert with_exposure + 0.5 < with_both


def test_the_motion_takes_the_planes_that_were_exposed_and_no_others(tmp_path):
    folder = Scene(exposure=0.7).write(tmp_path / "clip")
    calibration = write_calibration(tmp_path / "cameras.json", exposure_share=0.7)
    reader = reader_of(folder, calibration=calibration)

    recording = RecordedClip(reader, context=None).read(FRAME)

    # The middle 0.7 of 60 planes were exposed: 42 planes. Half as many are read on each side.
    assert recording.length == 42
    assert recording.begin == 21
    assert len(recording.stream) == 21 + 42 + 21
    # The channels of a network are made of 1.12 times as many planes: 47.
    assert reader.clip.exposures[FRAME].own.count == 47


# ---- The guard, which falls back to the start where the solution does not fit ----


@pytest.fixture(scope="module")
def wrong_solution(moving_clip):
    """Give (case, start, z): a case along a wrong motion, a good start, and the bad solution z.

    The scene moves, but the motion says that nothing moves (factor 0). The start is the sharp frame
    with a little noise.
    """
    case = Case(moving_clip, true_motion(MOVING, factor=0.0))
    torch.manual_seed(0)
    noise = 0.03 * torch.randn_like(case.sharp)
    start = (case.sharp + noise).clamp(0, 1)
    return case, start, case.equations.solve(start)


def test_the_guard_saves_a_good_start_from_a_wrong_motion(wrong_solution):
    case, start, z = wrong_solution

    frame, _ = case.guarded(z, start, guard=3.0)

    loss_of_solution = case.psnr(start) - case.psnr(z)
    loss_of_guarded = case.psnr(start) - case.psnr(frame)
    assert loss_of_solution > 1  # dB; measured: 4.4. The solution must be bad, or nothing is shown.
    assert loss_of_guarded < loss_of_solution / 2  # measured: 0.3 dB


def test_the_guard_weighs_each_pixel_between_start_and_solution(wrong_solution):
    case, start, z = wrong_solution

    _, weight = case.guarded(z, start, guard=3.0)

    assert float(weight.min()) >= 0
    assert float(weight.max()) <= 1


def test_a_guard_of_0_gives_the_solution_as_it_is(wrong_solution):
    case, start, z = wrong_solution

    frame, _ = case.guarded(z, start, guard=0.0)

    assert torch.equal(frame, z)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_gives_the_frame_that_the_cpu_gives(moving_clip):
    frames = []
    for device in (CPU, torch.device("cuda")):
        case = Case(moving_clip, device=device)
        start = case.blurry.to(device)
        frame, _ = case.guarded(case.equations.solve(start), start, guard=3.0)
        frames.append(frame.cpu())

    on_cpu, on_gpu = frames
    # Sums are taken in another order, and the steps of the solver enlarge the difference. A frame
    # is saved in steps of 1/255 = 4e-3.
    assert (on_cpu - on_gpu).abs().max() < 1e-3
