"""gpu_check.py check: the device's ceilings, SDPA's choices, and whether what a GPU computes is right."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import grad
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import TorchDispatchMode

from models.vrt.deform_conv import TAPS, deform_conv
from models.vrt.precision import tf32
from models.vrt.window_attention import Block
from scripts.benchmark_net import NAMED
from scripts.benchmark_tools import matmul_rate
from scripts.gpu_check_tools import Measurement, Setting, milliseconds, network, poison, relative, step_loss

# The blocks of network 006: name -> (width, window, mutual). They have 6 heads of 16 or 20 channels.
SHAPES = {
    "self, hd 16, T 384": (96, (6, 8, 8), False),
    "mutual, hd 16, T 64 and 128": (96, (2, 8, 8), True),
    "self, hd 20, T 384": (120, (6, 8, 8), False),
    "frames, hd 20, T 64": (120, (1, 8, 8), False),
}
BIASES = ("no bias", "bias", "bias with gradient")
REPEATS = 3
# Of one deformable convolution: the offsets of the widest motion that is common in GoPro, in pixels.
OFFSET_PX = 40


def ceilings(setting: Setting) -> dict[str, Any]:
    """What no kernel can exceed: GB/s of a copy, TFLOP/s of a square matrix product."""
    source = torch.empty(2**20 if setting.is_small else 2**30, device=setting.device)
    target = torch.empty_like(source)
    copy_ms = milliseconds(setting, lambda: target.copy_(source))
    found = {"copy GB/s": 2 * source.nbytes / copy_ms / 1e6}
    dtypes = (torch.float32,) if setting.is_small else (torch.float32, torch.bfloat16, torch.float16)
    for dtype in dtypes:
        found[f"matmul {dtype} TFLOP/s".replace("torch.", "")] = matmul_rate(setting.device, dtype) / 1e12
    if not setting.is_small:
        with tf32(True):
            found["matmul TF32 TFLOP/s"] = matmul_rate(setting.device, torch.float32) / 1e12
    return found


def sdpa_choices(setting: Setting) -> dict[str, Any]:
    """The back end that torch would choose for tensors that nobody padded, for T = 64, 128 and 384."""
    found = {}
    kinds = itertools.product((torch.bfloat16, torch.float16, torch.float32), (16, 20, 24), BIASES)
    for dtype, hd, kind in kinds:
        chosen = []
        for tokens in (64, 128, 384):
            q = torch.zeros(2, 6, tokens, hd, dtype=dtype, device=setting.device, requires_grad=True)
            chosen.append(_choice(q, kind))
        name = f"{dtype}, hd {hd}, {kind}".replace("torch.", "")
        found[name] = chosen[0] if len(set(chosen)) == 1 else chosen
    return {"for T 64, 128, 384": found}


def _choice(q: Tensor, kind: str) -> str:
    bias = None
    if kind != "no bias":
        bias = torch.zeros(1, 6, q.shape[2], q.shape[2], dtype=q.dtype, device=q.device)
        bias.requires_grad_(kind == "bias with gradient")
    try:
        number = torch._fused_sdp_choice(q, q, q, attn_mask=bias)
        return SDPBackend(number).name.lower()
    except Exception as e:
        return f"{type(e).__name__}: {str(e).splitlines()[0]}"


class Called(TorchDispatchMode):
    """The attention operators of torch that are called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if "attention" in name or name == "aten::_softmax":
            self.names.append(name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def block_of(setting: Setting, name: str, kernels: str, shifted: bool) -> Block:
    """One of SHAPES with fixed weights."""
    width, window, mutual = SHAPES[name]
    torch.manual_seed(0)
    shift = tuple(w // 2 for w in window) if shifted else (0, 0, 0)
    return Block(width, 6, window, shift, mutual, kernels=kernels).to(setting.device)


def tokens_of(setting: Setting, name: str, side: int) -> Tensor:
    """Input of the block: a clip of 6 frames of side x side, (1, 6, side, side, C).

    Small, so that the output is mainly what the block adds: the input would hide errors, or add its own rounding.
    """
    generator = torch.Generator().manual_seed(1)
    return 0.1 * torch.randn(1, 6, side, side, SHAPES[name][0], generator=generator).to(setting.device)


def our_choices(setting: Setting) -> dict[str, Any]:
    """What the attention of network 006 really calls, with gradients; "softmax" is one over T x T in memory."""
    setting.need_gpu("a CPU has other back ends")
    found = {}
    for dtype in (torch.bfloat16, torch.float32):
        for name in SHAPES:
            for shifted in (False, True):
                block = block_of(setting, name, "auto", shifted)
                x = tokens_of(setting, name, 16).requires_grad_()
                with Called() as called, torch.autocast("cuda", torch.bfloat16, enabled=dtype is torch.bfloat16):
                    block(x)
                key = f"{dtype}, {name}{', shifted' if shifted else ''}".replace("torch.", "")
                found[key] = ", ".join(sorted(set(called.names))) or "none"
    return {"operators": found}


def block_errors(setting: Setting, name: str) -> dict[str, Any]:
    """A block against its plain form in float64: output and gradients, three times, in poisoned memory."""
    found: dict[str, float] = {}
    x = tokens_of(setting, name, 8 if setting.is_small else 32)
    for shifted in (False, True):
        expected = _block_results(block_of(setting, name, "plain", shifted).double(), x.double(), None)
        for kernels in setting.forms:
            for dtype in (torch.bfloat16, torch.float32):
                block = block_of(setting, name, kernels, shifted)
                error = largest_error(setting, functools.partial(_block_results, block, x, dtype), expected)
                key = f"{kernels}, {dtype}".replace("torch.", "")
                found[key] = max(found.get(key, 0.0), error)
    return {"largest relative difference": found}


def largest_error(setting: Setting, results: Callable[[], list[Tensor]], expected: list[Tensor]) -> float:
    """Largest relative difference of the results from the expected ones, each time in poisoned memory."""
    most = 0.0
    for _ in range(1 if setting.is_small else REPEATS):  # a CPU has no poisoned memory
        poison(setting)
        most = max(most, *(relative(a, b) for a, b in zip(results(), expected, strict=True)))
    return most


def _block_results(block: Block, x: Tensor, amp: torch.dtype | None) -> list[Tensor]:
    """Output, and the gradients of the input and of the parameters.

    Without those of the layer norms: torch sums them in bfloat16 on a CPU, 40 % off, and no kernel of ours does.
    """
    x = x.detach().requires_grad_()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=amp is torch.bfloat16):
        out = block(x)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(4)).bfloat16().to(out.device)
    parameters = [p for name, p in block.named_parameters() if not name.startswith("norm")]
    return [out, *grad((out.double() * direction).sum(), [x, *parameters])]


def deform_inputs(setting: Setting, side: int, n: int, width: int = 96, groups: int = 16) -> list[Tensor]:
    """x, offset, mask, weight, bias of a deformable convolution, float32; all but the offsets are exact in bfloat16.

    Offsets up to OFFSET_PX px in steps of 1/64, half a step away from the pixels: there the derivative jumps.
    """
    generator = torch.Generator().manual_seed(2)

    def uniform(*size: int) -> Tensor:
        return torch.rand(size, generator=generator).bfloat16().float() - 0.5

    steps = torch.randint(-64 * OFFSET_PX, 64 * OFFSET_PX, (n, 2 * TAPS * groups, side, side), generator=generator)
    tensors = [
        uniform(n, width, side, side), (steps + 0.5) / 64, uniform(n, TAPS * groups, side, side) + 0.5,
        uniform(width, width, 3, 3) / 8, uniform(width),
    ]  # fmt: skip
    return [t.to(setting.device) for t in tensors]


def deform_errors(setting: Setting) -> dict[str, Any]:
    """Deformable convolution with offsets of +-40 px against float64 on the CPU: output and gradients."""
    inputs = deform_inputs(setting, *((12, 1, 8, 2) if setting.is_small else (96, 2)))
    expected = _deform_results([t.double().cpu() for t in inputs], "plain", None)
    found: dict[str, float] = {}
    for kernels in setting.forms:
        for dtype in (torch.bfloat16, torch.float32):
            key = f"{kernels}, {dtype}".replace("torch.", "")
            found[key] = largest_error(setting, functools.partial(_deform_results, inputs, kernels, dtype), expected)
    return {"largest relative difference": found}


def _deform_results(inputs: list[Tensor], kernels: str, amp: torch.dtype | None) -> list[Tensor]:
    inputs = [t.detach().requires_grad_() for t in inputs]
    with torch.autocast(inputs[0].device.type, torch.bfloat16, enabled=amp is torch.bfloat16):
        out = deform_conv(*inputs, kernels=kernels)
    return [out, *grad(out.double().square().sum(), inputs)]


def gpu_against_cpu(setting: Setting) -> dict[str, Any]:
    """A small network in float32, with and without TF32, against itself in float64 on the CPU: per parameter."""
    options = setting.options if setting.is_small else NAMED["small"]
    reference = Setting(torch.device("cpu"))
    size = (1, 2, 3, 32, 32) if setting.is_small else (1, 6, 3, 64, 64)
    clip = torch.rand(size, generator=torch.Generator().manual_seed(3))
    expected = _network_results(network(reference, options, kernels="plain").double(), clip.double())
    found: dict[str, Any] = {}
    for is_on in (False,) if setting.is_small else (False, True):
        with tf32(is_on):
            for kernels in setting.forms:
                results = _network_results(network(setting, options, kernels=kernels), clip.to(setting.device))
                errors = {name: relative(results[name], expected[name]) for name in expected}
                worst = max(errors, key=errors.__getitem__)
                found[f"{kernels}, TF32 {'on' if is_on else 'off'}"] = {
                    "output": errors["output"], "worst gradient": errors[worst], "of": worst,
                }  # fmt: skip
    return found


def _network_results(net: torch.nn.Module, clip: Tensor) -> dict[str, Tensor]:
    """Output, and the gradient of every parameter."""
    restored = net(clip)
    step_loss(restored).backward()
    return {"output": restored} | {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


def synchronisations(setting: Setting) -> dict[str, Any]:
    """Places where the host waits for the GPU in one step of network and optimiser."""
    setting.need_gpu("a CPU has no host to wait")
    clip = torch.rand(1, 6, 3, 64, 64, device=setting.device)
    found = {}
    for kernels in setting.forms:
        net = network(setting, kernels=kernels)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)

        def step(net=net, optimizer=optimizer) -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                restored = net(clip)
            step_loss(restored).backward()
            optimizer.step()

        step()  # caches of positions and plans are made in the first step
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        waits = [w for w in caught if "synchron" in str(w.message)]
        found[kernels] = {"waits": len(waits), "at": sorted({f"{w.filename}:{w.lineno}" for w in waits})}
    return found


def measurements(setting: Setting) -> dict[str, Measurement]:
    return {
        "ceilings": ceilings,
        "back ends of SDPA": sdpa_choices,
        "what our attention calls": our_choices,
        **{f"block, {name}": functools.partial(block_errors, name=name) for name in SHAPES},
        "deformable convolution": deform_errors,
        "small network against float64": gpu_against_cpu,
        "waits of a step": synchronisations,
    }
