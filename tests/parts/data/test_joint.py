"""The equations of the joint solution, and its solution, on scenes whose motion is known."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from data.motion.flow import Motion, motion_of
from data.motion.joint import (
    Equations,
    Solver,
    SpikePixels,
    adjoint_of,
    exposure_shares,
    guarded,
    noise_of,
    spike_intervals,
)
from data.motion.recording import RecordedClip, Recording
from tests.helpers.moving_scene import Scene, reader_of

CPU = torch.device("cpu")
FRAME = 1
EDGE = 12
MOVING = Scene(velocity=(12.0, -4.0))


def true_motion(scene: Scene, factor: float = 1.0) -> Motion:
    times = np.linspace(-30.5, 29.5, 9)
    times[np.abs(times).argmin()] = 0.0
    shifts = np.stack([scene.shifts(FRAME, time) for time in times]).astype(np.float32)
    return Motion(times, factor * shifts, np.full(shifts.shape[:3], 0.1, np.float32))


class Case:
    """The middle frame of a clip, solved with one motion. folder: of `Scene.write`."""

    def __init__(self, folder, motion=None, device=CPU, **spike) -> None:
        reader = reader_of(folder, **spike)
        item = reader.frame(FRAME)
        clip = RecordedClip(reader, None)
        self.recording = clip.read(FRAME)
        self.pixels = SpikePixels(clip.view, device)
        self.gain, is_good = clip.gain()
        motion = motion or motion_of(self.recording, clip.view, self.gain)
        self.blurry, self.sharp = item["lq"], item["gt"]
        self.equations = Equations(
            self.recording, self.pixels, motion, self.gain, is_good, Solver(), device
        )

    def psnr(self, frame: torch.Tensor) -> float:
        difference = (frame - self.sharp)[:, EDGE:-EDGE, EDGE:-EDGE]
        return float(-10 * (difference**2).mean().log10())


@pytest.fixture(scope="module")
def moving(tmp_path_factory):
    return MOVING.write(tmp_path_factory.mktemp("moving") / "clip")


@pytest.mark.parametrize("light", ["linear", "display"])
def test_the_sharp_frame_along_the_true_motion_fits_all_equations(tmp_path, light):
    scene = replace(MOVING, light=light)
    case = Case(scene.write(tmp_path / "clip"), true_motion(scene))
    equations = case.equations
    inside = (slice(None), slice(EDGE, -EDGE), slice(EDGE, -EDGE))
    half = (slice(None), slice(EDGE // 2, -EDGE // 2), slice(EDGE // 2, -EDGE // 2))

    def misfits(frame: torch.Tensor) -> tuple[float, float]:
        """Root mean squares over the expected errors, of the RGB and of the spike equations."""
        r_b, r_s = equations.residuals(frame)
        of_rgb = (equations.w_b * r_b)[inside]
        of_spikes = (equations.w_s * r_s)[half][equations.w_s[half] > 0]
        return float(of_rgb.square().mean().sqrt()), float(of_spikes.square().mean().sqrt())

    rgb, spikes = misfits(case.sharp)
    rgb_of_blurry, spikes_of_blurry = misfits(case.blurry)
    assert rgb < 1.5 and spikes < 1.5
    assert rgb_of_blurry > 3 * rgb and spikes_of_blurry > 1.3 * spikes


def test_the_adjoint_of_the_cameras_is_exact(moving):
    case = Case(moving)
    torch.manual_seed(0)

    def linear(d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return case.equations.cameras(d, d[:1])

    d = torch.rand_like(case.sharp)
    seen = linear(d)
    values = torch.rand_like(seen[0]), torch.rand_like(seen[1])
    there = sum(float((a * b).double().sum()) for a, b in zip(seen, values, strict=True))
    back = float((d * adjoint_of(linear, d)(values)).double().sum())
    assert there == pytest.approx(back, rel=1e-5)


def test_an_interval_goes_from_one_spike_to_a_later_one_and_counts_what_lies_between():
    rng = np.random.default_rng(1)
    stream = (rng.random((40, 5, 6)) < rng.random((5, 6)) * 0.5).astype(np.uint8)
    edges = np.array([8, 14, 20, 26, 32])
    f, e, n = spike_intervals(stream, edges)
    assert f.shape == e.shape == n.shape == (4, 5, 6)
    found = 0
    for m, y, x in np.argwhere(n > 0):
        times = np.flatnonzero(stream[:, y, x]) + 1
        begin, end = f[m, y, x], e[m, y, x]
        assert begin in times and end in times and 8 <= begin < end <= 32
        assert n[m, y, x] == ((times > begin) & (times <= end)).sum()
        found += 1
    assert found > 60
    # No light is counted twice.
    for y, x in np.ndindex(5, 6):
        used = n[:, y, x] > 0
        assert (f[used, y, x][1:] >= e[used, y, x][:-1]).all()
    # A pixel that fires at all within the edges, twice or more, has an interval.
    within = (stream[7:32] > 0).sum(0)
    assert ((n.sum(0) > 0) == (within > 1)).mean() > 0.9


def test_a_rolling_shutter_exposes_each_row_for_as_long_but_later():
    recording = Recording(
        np.zeros((9, 4, 3), np.float32), np.zeros((80, 2, 2), np.uint8), 20, 60, 40
    )
    edges = np.linspace(12, 68, 15)
    shares = exposure_shares(recording, edges, rows=9, rolling=0.4)
    middles = (edges[:-1] + edges[1:]) / 2
    assert np.allclose(shares.sum(0), 1)
    assert np.allclose(middles @ shares, 40 + np.linspace(-8, 8, 9), atol=0.1)


def test_the_frame_is_far_sharper_than_its_start(moving):
    case = Case(moving)
    assert case.psnr(case.equations.solve(case.blurry)) > case.psnr(case.blurry) + 5


@pytest.mark.parametrize("light", ["linear", "display"])
def test_the_equations_pull_a_frame_towards_the_sharp_one_and_hardly_the_sharp_one(tmp_path, light):
    scene = replace(MOVING, light=light)
    case = Case(scene.write(tmp_path / "clip"), true_motion(scene))
    inside = (slice(None), slice(EDGE, -EDGE), slice(EDGE, -EDGE))
    of_blurry = case.equations.pulls(case.blurry)[inside]
    of_sharp = case.equations.pulls(case.sharp)[inside]
    wanted = (case.sharp - case.blurry)[inside]
    grey = wanted.mean(0, keepdim=True)
    for pull, way in ((of_blurry[3:4], grey), (of_blurry[6:7], grey)):
        assert float((pull * way).sum() / (pull.norm() * way.norm())) > 0.5
    assert of_sharp[:4].abs().mean() < 0.5 * of_blurry[:4].abs().mean()
    assert of_sharp[4:].abs().mean() < 0.8 * of_blurry[4:].abs().mean()


def test_the_noise_of_a_frame_is_measured_where_it_is_flat():
    torch.manual_seed(0)
    flat = torch.linspace(0.2, 0.8, 64).expand(64, 64)
    assert noise_of(flat) < 1e-6
    assert noise_of(flat + 0.02 * torch.randn(64, 64)) == pytest.approx(0.02, rel=0.1)


def test_what_the_calibration_tells_of_the_shutter_helps(tmp_path):
    scene = Scene(velocity=(14.0, 0.0), exposure=0.7, rolling=0.4)
    folder = scene.write(tmp_path / "clip")
    view = {"matrix": [[2, 0, 0.5], [0, 2, 0.5]], "spike_size": [48, 48], "rgb_size": [96, 96]}
    reached = []
    for told in ({}, {"exposure_share": 0.7}, {"exposure_share": 0.7, "rolling": 0.4}):
        path = tmp_path / "cameras.json"
        path.write_text(json.dumps({"format": 1, **view, **told}))
        case = Case(folder, true_motion(scene), calibration=str(path))
        reached.append(case.psnr(case.equations.solve(case.blurry)))
    assert reached[0] + 0.5 < reached[1] < reached[2] - 0.5


def test_the_guard_saves_a_good_start_from_a_wrong_motion(moving):
    case = Case(moving, true_motion(MOVING, factor=0.0))  # all is said to stand still
    torch.manual_seed(0)
    start = (case.sharp + 0.03 * torch.randn_like(case.sharp)).clamp(0, 1)
    z = case.equations.solve(start)
    frame, weight = guarded(z, start, case.recording, case.pixels, case.gain, guard=3.0)
    lost, kept = case.psnr(start) - case.psnr(z), case.psnr(start) - case.psnr(frame)
    assert lost > 1 and kept < lost / 2
    assert float(weight.min()) >= 0 and float(weight.max()) <= 1
    free, _ = guarded(z, start, case.recording, case.pixels, case.gain, guard=0.0)
    assert torch.equal(free, z)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_gives_the_frame_that_the_cpu_gives(moving):
    frames = []
    for device in (CPU, torch.device("cuda")):
        case = Case(moving, device=device)
        z_0 = case.blurry.to(device)
        z = case.equations.solve(z_0)
        frame, _ = guarded(z, z_0, case.recording, case.pixels, case.gain, guard=3.0)
        frames.append(frame.cpu())
    assert (frames[0] - frames[1]).abs().max() < 1e-3
