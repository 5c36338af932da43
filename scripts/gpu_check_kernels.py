"""gpu_check.py kernels: the kernels of a block alone, at the recipe's sizes; notes the choice that "auto" reads."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import grad

from models.vrt.block_rows import Norm, add_norm, add_norm_backward, norm_windows, norm_windows_backward
from models.vrt.deform_conv import deform_conv
from models.vrt.kernel_choice import write_choice
from models.vrt.windows import WindowPlan, window_plan
from scripts.gpu_check_right import (
    SHAPES,
    block_errors,
    block_of,
    deform_errors,
    deform_inputs,
    largest_error,
    tokens_of,
)
from scripts.gpu_check_tools import USER_CACHE, Measurement, Setting, cache_folder, milliseconds

# Tiles (rows of logits), warps and stages of the Triton attention: what its constants could be.
LAUNCHES = list(itertools.product((64, 32, 128), (4, 8), (2, 1, 3)))
# Largest difference in bfloat16 over the largest value; that of torch's own kernels is up to 1.3e-2 for a block.
RIGHT = 2e-2


def block(setting: Setting, name: str) -> dict[str, Any]:
    """Errors, and ms of one block on a clip in bfloat16: forward without gradients, and forward and backward."""
    x = tokens_of(setting, name, 8 if setting.is_small else 192).bfloat16().requires_grad_()
    times: dict[str, float] = {}
    for shifted in (False, True):
        for kernels in setting.forms:
            key = f"{kernels}{', shifted' if shifted else ''}"
            times[f"{key}, forward"], times[f"{key}, both"] = _times(
                setting, block_of(setting, name, kernels, shifted), x
            )
    return {**block_errors(setting, name), "ms": times}


def _times(setting: Setting, module: torch.nn.Module, x: Tensor) -> tuple[float, float]:
    def forward() -> Tensor:
        with torch.autocast(setting.device.type, torch.bfloat16):
            return module(x)

    inputs, direction = [x, *module.parameters()], torch.ones_like(forward())
    with torch.no_grad():
        alone = milliseconds(setting, forward)
    return alone, milliseconds(setting, lambda: grad(forward(), inputs, direction))


def launched(setting: Setting, tile: int, warps: int, stages: int) -> dict[str, Any]:
    """ms of a block with the Triton attention, hd 20 and T 384, with this tile and number of warps and stages."""
    setting.need_gpu("the interpreter's times say nothing")
    from models.vrt import triton_attention

    name = "self, hd 20, T 384"
    with _launch(triton_attention, tile, warps, stages):
        x = tokens_of(setting, name, 96).bfloat16().requires_grad_()
        forward, both = _times(setting, block_of(setting, name, "triton", True), x)
    return {"forward ms": forward, "both ms": both}


@contextmanager
def _launch(module: Any, tile: int, warps: int, stages: int) -> Iterator[None]:
    before = module.BLOCK, module.LAUNCH
    module.BLOCK, module.LAUNCH = {**before[0], 2: tile}, {"num_warps": warps, "num_stages": stages}
    try:
        yield
    finally:
        module.BLOCK, module.LAUNCH = before


def layer_norm(setting: Setting) -> dict[str, Any]:
    """ms of a LayerNorm over the tokens of a batch of 8, forward and backward, by dtype in and out."""
    tokens = 4096 if setting.is_small else 8 * 6 * 192 * 192
    found = {}
    for channels in (96, 120):
        weight, bias = (torch.ones(channels, device=setting.device, requires_grad=True) for _ in range(2))
        for kind, inside in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
            x = torch.randn(tokens, channels, device=setting.device, dtype=inside, requires_grad=True)
            w, b = weight.to(inside), bias.to(inside)
            direction = torch.ones_like(x)
            found[f"{channels} channels, {kind}"] = milliseconds(
                setting, lambda x=x, w=w, b=b, d=direction: grad(F.layer_norm(x, x.shape[-1:], w, b), (x, w, b), d)
            )
    return {"ms": found}


def index_select(setting: Setting) -> dict[str, Any]:
    """ms and GB/s of the gather of tokens into shifted windows, bfloat16, batch of 8."""
    side, batch = (16, 1) if setting.is_small else (192, 8)
    rows = window_plan((6, side, side), (6, 8, 8), (3, 4, 4), setting.device).rows
    x = torch.randn(batch, len(rows), 96, device=setting.device, dtype=torch.bfloat16)
    ms = milliseconds(setting, lambda: x.index_select(1, rows))
    return {"ms": ms, "GB/s": 2 * x.nbytes / ms / 1e6}


def row_parts(setting: Setting, channels: int) -> dict[str, Any]:
    """Errors, and ms in bfloat16, of the row-wise parts of a block: layer norms, residual sums, order of windows."""
    inputs, plan = _row_inputs(setting, channels, 7 if setting.is_small else 30)  # padded
    exact = _row_results([t.double() for t in inputs], plan, False)
    errors: dict[str, float] = {}
    for kernels, dtype in itertools.product(setting.forms, (torch.bfloat16, torch.float32)):
        is_triton, some = kernels == "triton", [*(t.to(dtype) for t in inputs[:-1]), inputs[-1]]
        # torch sums the gradients of a layer norm in bfloat16 on a CPU, 40 % off; the kernels do not.
        count = len(exact) if is_triton else 5
        results = functools.partial(lambda s, t, n: _row_results(s, plan, t)[:n], some, is_triton, count)
        errors[f"{kernels}, {dtype}".replace("torch.", "")] = largest_error(setting, results, exact[:count])
    inputs, plan = _row_inputs(setting, channels, 8 if setting.is_small else 192)
    some = [*(t.bfloat16() for t in inputs[:-1]), inputs[-1]]
    times = {
        f"{kernels}, both": milliseconds(setting, functools.partial(_row_results, some, plan, kernels == "triton"))
        for kernels in setting.forms
    }
    return {"largest relative difference": errors, "ms": times}


def _row_inputs(setting: Setting, channels: int, side: int) -> tuple[list[Tensor], WindowPlan]:
    """Of 6 frames in shifted windows: x, branch, a gradient, weight and bias of a norm, factors; the plan."""
    plan = window_plan((6, side, side), (6, 8, 8), (3, 4, 4), setting.device)
    generator = torch.Generator().manual_seed(5)
    shapes = (1, 6 * side * side, channels), (len(plan.rows), channels), (1, 6 * side * side, channels)
    tensors = [torch.randn(s, generator=generator).bfloat16().float() for s in (*shapes, (channels,), (channels,))]
    return [t.to(setting.device) for t in (*tensors, torch.full((2, 1, 1, 1), 1.25))], plan


def _row_results(inputs: list[Tensor], plan: WindowPlan, is_triton: bool) -> list[Tensor]:
    """Both layer norms and the sum before the second; gradients of x and branch, and of the norms."""
    x, branch, grad_out, weight, bias, factors = inputs
    norm = Norm(weight, bias, 1e-5)
    u, first = norm_windows(x, norm, plan, is_triton)
    y, v, second = add_norm(x, branch, factors, norm, plan, is_triton)
    grad_y, grad_branch, sums = add_norm_backward(grad_out, y, second, grad_out, factors, norm, plan, is_triton)
    grad_x, of_norm = norm_windows_backward(grad_branch, x, first, grad_y, norm, plan, is_triton)
    return [u, y, v, grad_branch, grad_x, *sums, *of_norm]


def deformable(setting: Setting) -> dict[str, Any]:
    """Errors, and ms in bfloat16 of the convolution of one direction of a clip: forward, and forward and backward."""
    inputs = deform_inputs(setting, *((12, 1, 8, 2) if setting.is_small else (192, 5)))
    inputs = [t.requires_grad_() for t in inputs]
    times = {}
    for kernels in setting.forms:

        def forward(kernels: str = kernels) -> Tensor:
            with torch.autocast(setting.device.type, torch.bfloat16):
                return deform_conv(*inputs, kernels=kernels)

        with torch.no_grad():
            times[f"{kernels}, forward"] = milliseconds(setting, forward)
        direction = torch.ones_like(forward())
        times[f"{kernels}, both"] = milliseconds(setting, lambda f=forward, d=direction: grad(f(), inputs, d))
    return {**deform_errors(setting), "ms": times}


ROWS = {
    f"row-wise parts, {channels} channels": functools.partial(row_parts, channels=channels) for channels in (96, 120)
}
BLOCKS = {f"block, {name}": functools.partial(block, name=name) for name in SHAPES}
DEFORMABLE = "deformable convolution"


def choice(setting: Setting) -> dict[str, Any]:
    """Which form "auto" takes on this machine from now on: Triton where it is right and ahead at every shape."""
    setting.need_gpu('"auto" takes no Triton kernel on a CPU')
    against = {
        kernel: {name: reason for name in names if (reason := against_triton(setting.found.get(name, {})))}
        for kernel, names in (
            ("attention", BLOCKS),
            ("mlp", BLOCKS),
            ("rows", [*BLOCKS, *ROWS]),
            ("deform_conv", [DEFORMABLE]),
        )
    }
    chosen = {kernel: "plain" if reasons else "triton" for kernel, reasons in against.items()}
    with cache_folder(USER_CACHE):
        path = write_choice(chosen, setting.device)
    return {"choice": chosen, "against Triton": against, "written to": str(path)}


def against_triton(found: dict[str, Any]) -> str:
    """Why Triton is not to be taken, by the figures of one measurement; "" if it is."""
    if "ms" not in found:
        return found.get("error") or found.get("skipped") or "not measured"
    error, times = found["largest relative difference"]["triton, bfloat16"], found["ms"]
    if not error <= RIGHT:
        return f"off by {error:.1e} in bfloat16"
    slower = [key for key in times if key.startswith("triton") and times[key] > times[key.replace("triton", "auto")]]
    return f"slower: {'; '.join(slower)}" if slower else ""


def measurements(setting: Setting) -> dict[str, Measurement]:
    return {
        **BLOCKS,
        **ROWS,
        DEFORMABLE: deformable,
        "choice": choice,
        "LayerNorm": layer_norm,
        "gather of tokens": index_select,
        **{
            f"tile {tile}, {warps} warps, {stages} stages": functools.partial(
                launched, tile=tile, warps=warps, stages=stages
            )
            for tile, warps, stages in LAUNCHES[: 1 if setting.is_small else None]
        },
    }
