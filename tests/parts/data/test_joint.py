"""data/motion/joint.py: the sharp frame that fits the RGB frame and the spikes along a motion.

The data are simulated scenes whose motion is known (tests/helpers/moving_scene.py). The equations
say: the sharp frame, moved along the motion and averaged, is the blurry frame (RGB equations); its
light between two spikes of a pixel is one threshold (spike equations).
"""

import json
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from data.motion.flow import Motion, motion_of
from data.motion.joint import (
    Cameras,
    Equations,
    Solver,
    SpikePixels,
    blurred,
    conjugate_gradients,
    exposure_shares,
    gaussian,
    group_count,
    guarded,
    noise_of,
    spike_intervals,
)
from data.motion.recording import RecordedClip, Recording, View
from tests.helpers.moving_scene import Scene, reader_of

CPU = torch.device("cpu")
# The frame of the clip that is solved: the middle one of three.
FRAME = 1
# Pixels at each side that are not compared, because the scene moves in and out of view there.
EDGE = 12
MOVING = Scene(velocity=(12.0, -4.0))

# A frame (C, H, W) without its edges; spike planes have half as many pixels.
INSIDE = (slice(None), slice(EDGE, -EDGE), slice(EDGE, -EDGE))
INSIDE_SPIKES = (slice(None), slice(EDGE // 2, -EDGE // 2), slice(EDGE // 2, -EDGE // 2))


def true_motion(scene: Scene, factor: float = 1.0) -> Motion:
    """Return the true motion of the middle frame at nine times of the exposure.

    factor: scales the motion. 0 says that nothing moves.
    """
    times = np.linspace(-30.5, 29.5, 9)  # planes after the sharp frame
    times[np.abs(times).argmin()] = 0.0
    shifts = np.stack([scene.shifts(FRAME, time) for time in times]).astype(np.float32)
    expected_error = np.full(shifts.shape[:3], 0.1, np.float32)  # pixels
    return Motion(times, factor * shifts, expected_error)


class Case:
    """The middle frame of a clip, with its equations along one motion.

    folder: a folder of `Scene.write`. motion: None measures it from the spikes.
    spike: keys of the section `spike`.
    """

    def __init__(self, folder, motion=None, device=CPU, **spike) -> None:
        reader = reader_of(folder, **spike)
        item = reader.frame(FRAME)
        self.blurry = item["lq"]
        self.sharp = item["gt"]

        clip = RecordedClip(reader, None)
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

    def guarded(self, z: torch.Tensor, start: torch.Tensor, guard: float):
        """Return the frame between a solution z and its start, and its weights."""
        return guarded(z, start, self.recording, self.pixels, self.gain, guard=guard)


@pytest.fixture(scope="module")
def moving(tmp_path_factory):
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
    # Weights w are one over the expected error. Spike intervals that do not count have weight 0.
    of_rgb = (equations.w_b * r_b)[INSIDE]
    counts = equations.w_s[INSIDE_SPIKES] > 0
    of_spikes = (equations.w_s * r_s)[INSIDE_SPIKES][counts]
    return Misfit(root_mean_square(of_rgb), root_mean_square(of_spikes))


def test_the_sharp_frame_along_the_true_motion_fits_all_equations(true_case):
    of_sharp = misfit(true_case.equations, true_case.sharp)

    assert of_sharp.rgb < 1.5
    assert of_sharp.spikes < 1.5


def test_the_blurry_frame_fits_the_equations_worse_than_the_sharp_frame(true_case):
    of_sharp = misfit(true_case.equations, true_case.sharp)
    of_blurry = misfit(true_case.equations, true_case.blurry)

    assert of_blurry.rgb > 3 * of_sharp.rgb
    assert of_blurry.spikes > 1.3 * of_sharp.spikes


class MadeCameras(NamedTuple):
    """The cameras of a random case, and all that they are made of."""

    cameras: Cameras
    view: View
    shifts: torch.Tensor  # (G, H, W, 2)
    shares: torch.Tensor  # (G, H)
    coverage: torch.Tensor  # (M, G, h, w)


# Two intervals of each spike pixel.
INTERVALS = 2
# Both cameras are aligned, and a spike pixel covers 2 x 2 RGB pixels.
ALIGNED = np.array([[2, 0, 0.5], [0, 2, 0.5], [0, 0, 1.0]])
# Turned, moved, and with 3 x 2 RGB pixels in a spike pixel.
TURNED = np.array([[2.1, -0.1, 0.8], [0.05, 2.9, 1.4], [0, 0, 1.0]])


class Rig(NamedTuple):
    """Two cameras, and a random motion."""

    size: tuple[int, int] = (32, 40)  # (H, W)
    plane: tuple[int, int] = (16, 20)  # (h, w)
    to_rgb: np.ndarray = ALIGNED
    lens_blur: float = 0.0
    groups: int = 4
    rolling: float = 0.0
    longest: float = 5.0  # longest shift in x and y, in pixels


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


@pytest.fixture(params=list(RIGS))
def made(request) -> MadeCameras:
    """Give cameras along a random motion. Each pixel of each group has a shift of its own."""
    rig = RIGS[request.param]
    height, width = rig.size
    torch.manual_seed(0)
    view = View(rig.size, rig.plane, rig.to_rgb, False, rig.lens_blur, rig.rolling)
    shifts = rig.longest * (2 * torch.rand(rig.groups, height, width, 2) - 1)
    frame = np.zeros((height, width, 3), np.float32)
    recording = Recording(frame, np.zeros((40, *view.plane), np.uint8), 0, 40, 20.5)
    before_and_after = 20 * rig.rolling  # planes beyond the exposure that some row sees
    edges = np.linspace(-before_and_after, 40 + before_and_after, rig.groups + 1)
    shares = torch.from_numpy(exposure_shares(recording, edges, view.delays()))
    coverage = torch.rand(INTERVALS, rig.groups, *view.plane)
    cameras = Cameras(SpikePixels(view, CPU), shifts, shares, coverage)
    return MadeCameras(cameras, view, shifts, shares, coverage)


def plainly_seen(made: MadeCameras, x: torch.Tensor, l: torch.Tensor):  # noqa: E741
    """Return B x and S l by the letter of their equations, one group after the other."""
    blurry = torch.zeros_like(x)
    spikes = torch.zeros(INTERVALS, *made.view.plane)
    places = torch.from_numpy(made.view.places())
    height, width = made.view.size
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    p = torch.stack((columns, rows), dim=-1)
    for u, s, c in zip(made.shifts, made.shares, made.coverage.transpose(0, 1), strict=True):
        moved = sampled(torch.cat((x, l)), p + u)
        blurry += s[:, None] * moved[:3]
        grey = moved[3:]
        if made.view.lens_blur:
            sigma = made.view.lens_blur * max(made.view.fine)
            grey = blurred(grey[None], gaussian(sigma))[0]
        points = sampled(grey, places)
        spikes += c * torch.nn.functional.avg_pool2d(points, made.view.fine)
    return blurry, spikes


def sampled(picture: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return a picture (C, H, W) at positions (h, w, 2), x and y in pixels."""
    height, width = picture.shape[1:]
    last = torch.tensor([max(width - 1, 1), max(height - 1, 1)])
    grid = 2 * positions / last - 1
    return torch.nn.functional.grid_sample(
        picture[None], grid[None], padding_mode="border", align_corners=True
    )[0]


def test_the_cameras_see_what_their_equations_say(made):
    x = torch.rand(3, *made.view.size)
    grey = torch.rand(1, *made.view.size)

    blurry, spikes = made.cameras(x, grey)

    plain_blurry, plain_spikes = plainly_seen(made, x, grey)
    assert torch.allclose(blurry, plain_blurry, atol=2e-5)
    assert torch.allclose(spikes, plain_spikes, atol=2e-5)


def test_the_adjoint_of_the_cameras_is_the_gradient_of_their_equations(made):
    x = torch.zeros(3, *made.view.size, requires_grad=True)
    grey = torch.zeros(1, *made.view.size, requires_grad=True)
    blurry, spikes = plainly_seen(made, x, grey)
    of_blurry = torch.rand_like(blurry)
    of_spikes = torch.rand_like(spikes)

    by_x, by_grey = made.cameras.adjoint(of_blurry, of_spikes)

    plain_x, plain_grey = torch.autograd.grad((blurry, spikes), (x, grey), (of_blurry, of_spikes))
    assert torch.allclose(by_x, plain_x, rtol=1e-4, atol=1e-4)
    assert torch.allclose(by_grey, plain_grey, rtol=1e-4, atol=1e-4)


def test_the_adjoint_of_the_cameras_is_exact(moving):
    case = Case(moving)
    torch.manual_seed(0)
    x = torch.rand_like(case.sharp)
    grey = torch.rand_like(case.sharp[:1])
    blurry, spikes = case.equations.cameras(x, grey)
    of_blurry = torch.rand_like(blurry)
    of_spikes = torch.rand_like(spikes)

    by_x, by_grey = case.equations.cameras.adjoint(of_blurry, of_spikes)

    # A' is the adjoint of A if (A x) . y = x . (A' y) for all x and y.
    forward = (blurry * of_blurry).double().sum() + (spikes * of_spikes).double().sum()
    backward = (x * by_x).double().sum() + (grey * by_grey).double().sum()
    assert float(forward) == pytest.approx(float(backward), rel=1e-5)


def test_conjugate_gradients_solve_the_normal_equations():
    torch.manual_seed(0)
    a = torch.rand(40, 12)
    prior = 0.1 + torch.rand(3, 4)
    right = torch.rand(1, 3, 4)

    def linear(d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = a @ d.flatten()
        return values[:30], values[30:]

    def adjoint(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return (a.T @ torch.cat((first, second))).view(1, 3, 4)

    # As many steps as unknowns are enough, whatever the divisor.
    divisor = 0.5 + torch.rand_like(right)
    d = conjugate_gradients(linear, adjoint, prior, right, divisor, steps=12)

    normal = a.T @ a + torch.diag(prior.flatten())
    assert torch.allclose(d.flatten(), torch.linalg.solve(normal, right.flatten()), atol=1e-3)


def motion_over(way: float) -> Motion:
    """Return a motion by `way` pixels to the right within an exposure of 40 planes."""
    times = np.array([-20.0, 0.0, 20.0])
    shifts = np.zeros((3, 16, 16, 2), np.float32)
    shifts[0, ..., 0] = -way / 2
    shifts[2, ..., 0] = way / 2
    return Motion(times, shifts, np.zeros((3, 16, 16), np.float32))


def exposure_with(spikes: int) -> Recording:
    """Return an exposure of 40 planes in which each pixel has this number of spikes."""
    stream = np.zeros((40, 8, 8), np.uint8)
    stream[:spikes] = 1
    return Recording(np.zeros((16, 16, 3), np.float32), stream, 0, 40, 20.5)


# (way in pixels, spikes in the exposure, groups). In good light 1.25 pixels lie between two groups,
# and 2.5 in dim light. At least 6 and at most 20 groups are used.
@pytest.mark.parametrize(
    ("way", "spikes", "groups"),
    [(0, 30, 6), (10, 30, 8), (20, 30, 16), (60, 30, 20), (20, 3, 8)],
    ids=["still", "slow", "faster", "fastest", "dim"],
)
def test_a_faster_motion_gets_more_groups(way, spikes, groups):
    assert group_count(exposure_with(spikes), motion_over(way), most=20) == groups


def test_the_solver_limits_the_groups_of_a_still_scene_too():
    assert group_count(exposure_with(30), motion_over(0), most=2) == 2


# Times between which light is counted, in planes.
EDGES = np.array([8, 14, 20, 26, 32])


@pytest.fixture
def random_stream():
    """Give 40 planes of 5 x 6 pixels that fire at different rates."""
    rng = np.random.default_rng(1)
    density = rng.random((40, 5, 6))
    return (density < rng.random((5, 6)) * 0.5).astype(np.uint8)


def test_spike_intervals_have_one_value_for_each_pair_of_edges(random_stream):
    begins, ends, counts = spike_intervals(random_stream, EDGES)

    assert begins.shape == ends.shape == counts.shape == (4, 5, 6)


def test_an_interval_goes_from_one_spike_to_a_later_one(random_stream):
    begins, ends, counts = spike_intervals(random_stream, EDGES)

    checked = 0
    for m, y, x in np.argwhere(counts > 0):
        begin = begins[m, y, x]
        end = ends[m, y, x]
        spike_times = np.flatnonzero(random_stream[:, y, x]) + 1  # a spike ends its plane
        assert begin in spike_times
        assert end in spike_times
        assert EDGES[0] <= begin < end <= EDGES[-1]
        checked += 1
    assert checked > 60


def test_an_interval_counts_the_spikes_that_lie_between(random_stream):
    begins, ends, counts = spike_intervals(random_stream, EDGES)

    for m, y, x in np.argwhere(counts > 0):
        spike_times = np.flatnonzero(random_stream[:, y, x]) + 1
        lies_between = (spike_times > begins[m, y, x]) & (spike_times <= ends[m, y, x])
        assert counts[m, y, x] == lies_between.sum()


def test_an_interval_goes_from_the_spike_nearest_to_one_edge_to_that_nearest_to_a_later_edge():
    stream = np.zeros((20, 1, 1), np.uint8)
    for time in (3, 9, 16):
        stream[time - 1] = 1  # a spike ends its plane

    begins, ends, counts = spike_intervals(stream, np.array([2, 8, 14, 17]))

    is_used = counts[:, 0, 0] > 0
    assert begins[is_used, 0, 0].tolist() == [3, 9]
    assert ends[is_used, 0, 0].tolist() == [9, 16]
    assert counts[is_used, 0, 0].tolist() == [1, 1]


def test_no_light_is_counted_twice(random_stream):
    begins, ends, counts = spike_intervals(random_stream, EDGES)

    for y, x in np.ndindex(5, 6):
        is_used = counts[:, y, x] > 0
        next_begins = begins[is_used, y, x][1:]
        former_ends = ends[is_used, y, x][:-1]
        assert (next_begins >= former_ends).all()


def test_nearly_each_pixel_that_fires_twice_within_the_edges_has_an_interval(random_stream):
    _, _, counts = spike_intervals(random_stream, EDGES)

    has_interval = counts.sum(0) > 0
    fires_twice = (random_stream[7:32] > 0).sum(0) > 1  # planes that end at times 8 to 32
    assert (has_interval == fires_twice).mean() > 0.9


@pytest.fixture
def rolling_shares():
    """Give the share (14, 9) of each of 14 times in the exposure of each of 9 rows.

    The exposure is planes 20 to 60 of 80 planes. It rolls by 0.4 of its length, 16 planes.
    """
    frame = np.zeros((9, 4, 3), np.float32)
    spikes = np.zeros((80, 2, 2), np.uint8)
    recording = Recording(frame, spikes, 20, 60, 40)
    view = View(size=(9, 4), plane=(2, 2), to_rgb=ALIGNED, is_display=False, rolling=0.4)
    return exposure_shares(recording, np.linspace(12, 68, 15), view.delays())


def test_a_rolling_shutter_exposes_each_row_for_as_long(rolling_shares):
    assert np.allclose(rolling_shares.sum(0), 1)


def test_a_rolling_shutter_exposes_each_row_later(rolling_shares):
    edges = np.linspace(12, 68, 15)
    middles = (edges[:-1] + edges[1:]) / 2

    mean_times = middles @ rolling_shares

    # From 8 planes before the middle of the exposure (plane 40) to 8 planes after it.
    assert np.allclose(mean_times, 40 + np.linspace(-8, 8, 9), atol=0.1)


# ---- The solution ----


def test_the_frame_is_far_sharper_than_its_start(moving):
    case = Case(moving)

    frame = case.equations.solve(case.blurry)

    assert case.psnr(frame) > case.psnr(case.blurry) + 5  # dB


# Channels of `Equations.pulls`: 0 to 2 are the change of each colour that the RGB equations want,
# 3 is the change of the grey value that the spike equations want, 4 and 5 are how far both are off,
# and 6 is by how much the spikes of the sharp instant are brighter than the frame.
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

    pull = case.equations.pulls(case.blurry)[INSIDE][channel]

    wanted = (case.sharp - case.blurry)[INSIDE].mean(0, keepdim=True)
    cosine = (pull * wanted).sum() / (pull.norm() * wanted.norm())
    assert float(cosine) > 0.5


def test_the_equations_hardly_pull_the_sharp_frame(true_case):
    case = true_case

    of_blurry = case.equations.pulls(case.blurry)[INSIDE].abs()
    of_sharp = case.equations.pulls(case.sharp)[INSIDE].abs()

    assert of_sharp[CHANGES].mean() < 0.5 * of_blurry[CHANGES].mean()
    assert of_sharp[OTHERS].mean() < 0.8 * of_blurry[OTHERS].mean()


FLAT = torch.linspace(0.2, 0.8, 64).expand(64, 64)


def test_a_ramp_has_no_noise():
    assert noise_of(FLAT) < 1e-6


def test_the_noise_of_a_frame_is_measured_where_it_is_flat():
    torch.manual_seed(0)

    assert noise_of(FLAT + 0.02 * torch.randn(64, 64)) == pytest.approx(0.02, rel=0.1)


# -0.4: a shutter that begins at the last row.
@pytest.mark.parametrize("rolling", [0.4, -0.4])
def test_what_the_calibration_tells_of_the_shutter_helps(rolling, tmp_path):
    scene = Scene(velocity=(14.0, 0.0), exposure=0.7, rolling=rolling)
    folder = scene.write(tmp_path / "clip")
    # A spike pixel covers 2 x 2 RGB pixels.
    view = {"matrix": [[2, 0, 0.5], [0, 2, 0.5]], "spike_size": [48, 48], "rgb_size": [96, 96]}

    def psnr_if_told(**shutter: float) -> float:
        """Return the PSNR that is reached if the calibration has these keys of the shutter."""
        path = tmp_path / "cameras.json"
        path.write_text(json.dumps({"format": 1, **view, **shutter}))
        case = Case(folder, true_motion(scene), calibration=str(path))
        return case.psnr(case.equations.solve(case.blurry))

    without = psnr_if_told()
    with_exposure = psnr_if_told(exposure_share=0.7)
    with_both = psnr_if_told(exposure_share=0.7, rolling=rolling)

    assert without + 0.5 < with_exposure
    assert with_exposure + 0.5 < with_both


def test_the_motion_takes_the_planes_that_were_exposed_and_no_others(tmp_path):
    folder = Scene(exposure=0.7).write(tmp_path / "clip")
    path = tmp_path / "cameras.json"
    view = {"matrix": [[2, 0, 0.5], [0, 2, 0.5]], "spike_size": [48, 48], "rgb_size": [96, 96]}
    path.write_text(json.dumps({"format": 1, **view, "exposure_share": 0.7}))
    reader = reader_of(folder, calibration=str(path))

    recording = RecordedClip(reader, context=None).read(FRAME)

    # Of 60 planes, 42 were exposed. Channels are made of 1.12 times as many.
    assert recording.length == 42
    assert reader.clip.exposures[FRAME].own.count == 47
    # The planes lie in the middle, and half as many are read on each side.
    assert recording.begin == 21
    assert len(recording.stream) == 42 + 2 * 21


# ---- The guard, which falls back to the start where the solution does not fit ----


@pytest.fixture(scope="module")
def wrong_solution(moving):
    """Give a case with a wrong motion (nothing moves), a good start, and the bad solution."""
    case = Case(moving, true_motion(MOVING, factor=0.0))
    torch.manual_seed(0)
    start = (case.sharp + 0.03 * torch.randn_like(case.sharp)).clamp(0, 1)
    return case, start, case.equations.solve(start)


def test_the_guard_saves_a_good_start_from_a_wrong_motion(wrong_solution):
    case, start, z = wrong_solution

    frame, _ = case.guarded(z, start, guard=3.0)

    loss_of_solution = case.psnr(start) - case.psnr(z)
    loss_of_guarded = case.psnr(start) - case.psnr(frame)
    assert loss_of_solution > 1  # dB
    assert loss_of_guarded < loss_of_solution / 2


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
def test_a_gpu_gives_the_frame_that_the_cpu_gives(moving):
    frames = []
    for device in (CPU, torch.device("cuda")):
        case = Case(moving, device=device)
        start = case.blurry.to(device)
        frame, _ = case.guarded(case.equations.solve(start), start, guard=3.0)
        frames.append(frame.cpu())

    on_cpu, on_gpu = frames
    assert (on_cpu - on_gpu).abs().max() < 1e-3
