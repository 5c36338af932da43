"""Every form of the network computes right numbers on a GPU, in every precision.

`pytest -m cuda` runs these tests. There are two references. One is a step in float64, and its
results are stored (tests/helpers/exact_step.py). The other is a step in float32 on the same GPU.
"""

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
# A network with the channels, the heads and the windows of network 006. The heads have 16 or 20
# channels. To save time, it has fewer blocks: two in each of the stages 1 to 7, and one in each of
# the four groups of the last stage.
REAL = {**NAMED["006"], "depths": [2] * 7 + [1] * 4}
# Height and width in pixels of the clip for the network REAL. The clip of the small network has 64.
SIDE_FOR_REAL = 192
# The largest accepted difference of a tensor, relative to its largest value.
LIMITS_OF_OUTPUT = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
LIMITS_OF_GRADIENTS = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.05}
DTYPES = list(LIMITS_OF_OUTPUT)
# Larger limits for the gradients of some parameters. The key is a precision, and a part of the name
# of the parameters. Two differences were measured on an H200 (2026-11-27), with our kernels and
# without them:
#
#     1.1e-3    a weight of SpyNet. Its gradient is a sum over all pixels of all pairs of frames
#     5.7e-2    a table of relative positions. Its gradient is a sum over all windows
#
# Each term is rounded, and the terms nearly cancel. So the rounding errors of the terms are large
# beside the sum.
OWN_LIMITS = {
    (torch.float32, "spynet."): 3e-3,
    (torch.float16, "relative_position_bias_table"): 0.1,
}


def poison() -> None:
    """Fill memory with NaN, and give it back to torch.

    A kernel gets this memory for its output. If it leaves a part of the output unwritten, the test
    finds NaN.
    """
    # torch keeps large and small blocks of memory apart, so fill both kinds: pieces of 256 MB, and
    # pieces of 512 KB.
    pieces = [torch.full((2**26,), float("nan"), device="cuda") for _ in range(8)]
    pieces += [torch.full((2**17,), float("nan"), device="cuda") for _ in range(64)]
    del pieces


def limit_of(name: str, dtype: torch.dtype) -> float:
    """Return the largest difference that is accepted for an output or a gradient."""
    if name == "output":
        return LIMITS_OF_OUTPUT[dtype]
    for (dtype_of_limit, part_of_name), limit in OWN_LIMITS.items():
        if dtype is dtype_of_limit and part_of_name in name:
            return limit
    return LIMITS_OF_GRADIENTS[dtype]


def autocast_dtype(dtype: torch.dtype) -> torch.dtype | None:
    """Return the precision of autocast. float32 needs no autocast: None."""
    return None if dtype is torch.float32 else dtype


@pytest.fixture(scope="module")
def float32_step() -> dict[str, Tensor]:
    """Give the results of a step of the network REAL in float32 on this GPU."""
    return results_of_step(make_network(REAL).cuda(), make_clip(SIDE_FOR_REAL).cuda())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_step_of_a_small_network_follows_the_published_equations_in_float64(form, dtype):
    # All forms of the network draw the same parameters, so one stored step serves for all forms.
    net = make_network(OPTIONS, **FORMS[form]).cuda()
    poison()

    found = results_of_step(net, make_clip().cuda(), autocast_dtype(dtype))

    for name, error in relative_errors(found, stored_step()).items():
        assert error < limit_of(name, dtype), f"{name}: {error:.1e}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_step_of_the_real_network_is_near_float32(float32_step, form, dtype):
    net = make_network(REAL, **FORMS[form]).cuda()
    poison()

    found = results_of_step(net, make_clip(SIDE_FOR_REAL).cuda(), autocast_dtype(dtype))

    # `relative_errors` cannot be used here, because it compares with stored samples of a tensor.
    # `float32_step` has whole tensors.
    assert found.keys() == float32_step.keys()
    for name, value in float32_step.items():
        assert torch.isfinite(found[name]).all(), name
        error = (found[name] - value).abs().max() / value.abs().max().clamp(min=1e-12)
        assert error < limit_of(name, dtype), f"{name}: {float(error):.1e}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.no_grad()
def test_a_frame_of_1280_x_720_is_finite(dtype):
    net = make_network(REAL).cuda().eval()
    clip = torch.rand(1, 2, 3, 720, 1280, generator=torch.Generator().manual_seed(5)).cuda()
    with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
        restored = net(clip)

    assert restored.shape == clip.shape
    assert torch.isfinite(restored).all()


def test_a_deformable_convolution_with_wide_offsets_is_near_float64():
    # The offsets reach up to 40 px, and are odd multiples of 1/128 px. So no sampled position lies
    # on the centre of a pixel, where the derivative jumps.
    generator = torch.Generator().manual_seed(2)
    side = 96
    groups = 16
    width = 96
    steps = torch.randint(
        -64 * 40, 64 * 40, (2, 2 * TAPS * groups, side, side), generator=generator
    )
    shapes = {
        "x": (2, width, side, side),
        "mask": (2, TAPS * groups, side, side),
        "weight": (width, width, 3, 3),
        "bias": (width,),
    }
    # The numbers are uniform in [-0.5, 0.5).
    drawn = {name: torch.rand(shape, generator=generator) - 0.5 for name, shape in shapes.items()}
    # The arguments of `deform_conv`, in order. The mask is in [0, 1), the weights in [-1/16, 1/16).
    arguments = {
        "x": drawn["x"],
        "offset": (steps + 0.5) / 64,
        "mask": drawn["mask"] + 0.5,
        "weight": drawn["weight"] / 8,
        "bias": drawn["bias"],
    }
    inputs = list(arguments.values())

    def results(tensors: list[Tensor]) -> list[Tensor]:
        tensors = [t.detach().requires_grad_() for t in tensors]
        out = deform_conv(*tensors)
        return [out, *torch.autograd.grad(out.square().sum(), tensors)]

    expected = results([t.double() for t in inputs])
    with tf32(False):
        found = results([t.cuda() for t in inputs])
    for on_gpu, exact in zip(found, expected, strict=True):
        assert (on_gpu.double().cpu() - exact).abs().max() < 1e-4 * exact.abs().max()


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
    # torch also warns that the debug mode is set. This warning comes from a file in torch/cuda/,
    # and does not mean that anything waits.
    waits = [w for w in caught if "synchron" in str(w.message) and "torch/cuda/" not in w.filename]
    assert [f"{w.filename}:{w.lineno}" for w in waits] == []
