"""Is every form of the network right on a GPU in every precision, against float64? -m cuda"""

import warnings

import pytest
import torch
from torch import Tensor

from lab.tools import CHECKPOINTED, NAMED
from models.vrt.deform_conv import TAPS, deform_conv
from models.vrt.layers import tf32
from tests.helpers.exact_step import (
    OPTIONS,
    make_clip,
    make_network,
    relative_errors,
    results_of_step,
    stored_step,
)

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
FORMS = {"default": {}, "plain": {"kernels": "plain"}, "checkpointed": CHECKPOINTED}
# Widths, heads and windows as in network 006, with heads of 16 and of 20 channels; two blocks of
# each kind.
REAL = {**NAMED["006"], "depths": [2] * 7 + [1] * 4}
# Largest difference of the output, and of the gradient of a parameter, relative to the largest
# value.
LIMITS = {torch.float32: (1e-5, 1e-3), torch.bfloat16: (2e-2, 0.2), torch.float16: (5e-3, 0.05)}
# Limits of the parameters whose names hold a text. On an H200 (2026-11-27) they came to 1.1e-3, of
# a weight of SpyNet, which sums over all pixels of all pairs of frames; and to 5.7e-2, of a table
# of relative positions, with our kernels and without: it sums over all windows what 16 bits have
# rounded, and much of that cancels.
OWN_LIMITS = {
    (torch.float32, "spynet."): 3e-3,
    (torch.float16, "relative_position_bias_table"): 0.1,
}


def poison() -> None:
    """Fill memory with NaN and give it back, so that a kernel that leaves a part of its output
    unwritten is found.
    """
    pieces = [torch.full((2**26,), float("nan"), device="cuda") for _ in range(8)]
    # Of torch's small tensors
    pieces += [torch.full((2**17,), float("nan"), device="cuda") for _ in range(64)]
    del pieces


def limit_of(name: str, dtype: torch.dtype) -> float:
    """Return the largest difference that is accepted for an output or a gradient."""
    for (of_dtype, part), limit in OWN_LIMITS.items():
        if dtype is of_dtype and part in name:
            return limit
    return LIMITS[dtype][name != "output"]


def autocast_dtype(dtype: torch.dtype) -> torch.dtype | None:
    """Return the precision of autocast; None for float32, which needs no autocast."""
    return None if dtype is torch.float32 else dtype


@pytest.fixture(scope="module")
def float32_step() -> dict[str, Tensor]:
    """Return a step of the real network in float32 on this GPU."""
    return results_of_step(make_network(REAL).cuda(), make_clip(192).cuda())


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_step_of_a_small_network_follows_the_published_equations_in_float64(form, dtype):
    # All forms of the network draw the same parameters.
    net = make_network(OPTIONS, **FORMS[form]).cuda()
    poison()

    found = results_of_step(net, make_clip().cuda(), autocast_dtype(dtype))

    for name, error in relative_errors(found, stored_step()).items():
        assert error < limit_of(name, dtype), f"{name}: {error:.1e}"


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_step_of_the_real_network_is_near_float32(float32_step, form, dtype):
    net = make_network(REAL, **FORMS[form]).cuda()
    poison()

    found = results_of_step(net, make_clip(192).cuda(), autocast_dtype(dtype))

    assert found.keys() == float32_step.keys()
    for name, value in float32_step.items():
        assert torch.isfinite(found[name]).all(), name
        error = (found[name] - value).abs().max() / value.abs().max().clamp(min=1e-12)
        assert error < limit_of(name, dtype), f"{name}: {float(error):.1e}"


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@torch.no_grad()
def test_a_frame_of_1280_x_720_is_finite(dtype):
    net = make_network(REAL).cuda().eval()
    clip = torch.rand(1, 2, 3, 720, 1280, generator=torch.Generator().manual_seed(5)).cuda()
    with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
        whole = net(clip)

    assert whole.shape == clip.shape
    assert torch.isfinite(whole).all()


def test_a_deformable_convolution_with_wide_offsets_is_near_float64():
    # Offsets of up to 40 px in steps of 1/64, half a step away from the pixels: there the
    # derivative jumps.
    generator = torch.Generator().manual_seed(2)
    side = 96
    groups = 16
    width = 96
    steps = torch.randint(
        -64 * 40, 64 * 40, (2, 2 * TAPS * groups, side, side), generator=generator
    )
    shapes = (
        (2, width, side, side),
        (2, TAPS * groups, side, side),
        (width, width, 3, 3),
        (width,),
    )
    x, mask, weight, bias = (torch.rand(shape, generator=generator) - 0.5 for shape in shapes)
    inputs = [x, (steps + 0.5) / 64, mask + 0.5, weight / 8, bias]

    def results(tensors: list[Tensor]) -> list[Tensor]:
        tensors = [t.detach().requires_grad_() for t in tensors]
        out = deform_conv(*tensors)
        return [out, *torch.autograd.grad(out.square().sum(), tensors)]

    expected = results([t.double() for t in inputs])
    with tf32(False):
        found = results([t.cuda() for t in inputs])
    for a, b in zip(found, expected, strict=True):
        assert (a.double().cpu() - b).abs().max() < 1e-4 * b.abs().max()


def test_a_step_of_network_and_optimizer_does_not_wait_for_the_gpu():
    net = make_network(REAL).cuda()
    clip = torch.rand(1, 6, 3, 64, 64).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)

    def once() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            restored = net(clip)
        restored.float().square().mean().backward()
        optimizer.step()

    once()  # makes the constant tensors
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            once()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    # torch warns of itself as the mode is set: that is no wait.
    waits = [w for w in caught if "synchron" in str(w.message) and "torch/cuda/" not in w.filename]
    assert [f"{w.filename}:{w.lineno}" for w in waits] == []
