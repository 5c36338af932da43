"""The network's forward pass on a GPU that is not there: torch's fake tensors know device, dtype and shape alone.

    python -m tests.fake_gpu [CASE ...]

CASE: a name in CASES (default: all).

Fails where a tensor of the wrong device or dtype meets another. Prints, as JSON, the GB that autograd keeps for the
backward pass of one clip of 6 x 192 x 192 through the network of the GoPro recipe, weights left out. Kernels of Triton
are not launched; the memory-efficient attention of torch, which a GPU would choose for a bias with a gradient, is
called by name.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from models.network_vrt import VRT
from models.vrt import attention_core, triton_attention, triton_deform, window_attention, windows
from scripts.benchmark_net import NAMED
from tests.naive_vrt import NaiveVRT

CHECKPOINTED = {"use_checkpoint_attn": True, "use_checkpoint_ffn": True}
CASES = {
    "naive, float32": (NaiveVRT, False, {}),
    "plain, float32": (VRT, False, {}),
    "plain, bfloat16": (VRT, True, {}),
    "plain, bfloat16, checkpointed": (VRT, True, CHECKPOINTED),
    "triton, bfloat16": (VRT, True, {"kernels": "triton"}),
    "triton, bfloat16, checkpointed": (VRT, True, {"kernels": "triton", **CHECKPOINTED}),
}
FAKE = FakeTensorMode()


class Unlaunched:
    """In place of a Triton kernel."""

    def __getitem__(self, grid: tuple[int, ...]):
        return lambda *args, **kwargs: None


def efficient_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, mask: Tensor | None):
    added = attention_core.logit_offset(bias, mask, q.dtype)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    added = None if added is None else added.expand(*q.shape[:2], -1, -1)
    attention = torch.ops.aten._scaled_dot_product_efficient_attention
    return attention(q, k, v, added, True, 0.0, False, scale=scale)[0].transpose(1, 2)


def on_gpu(t: Tensor | None) -> Tensor | None:
    return None if t is None else torch.empty(t.shape, dtype=t.dtype, device="cuda")


@functools.cache
def fake_plan(size, window, shift, device) -> windows.WindowPlan:
    """window_plan depends on numbers, so it is made for the CPU."""
    with unset_fake_temporarily():
        plan = windows.window_plan(size, window, shift, torch.device("cpu"))
        patterns = plan.patterns
    spans = tuple(windows.Span(s.start, s.stop, on_gpu(s.mask)) for s in plan.spans)
    moved = dataclasses.replace(
        plan, rows=on_gpu(plan.rows), real=on_gpu(plan.real), places=on_gpu(plan.places), spans=spans
    )
    vars(moved)["patterns"] = tuple(map(on_gpu, patterns))
    return moved


def to_gpu(net: nn.Module) -> None:
    for module in net.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(on_gpu(parameter)))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, on_gpu(buffer))


def kept_gb(make: type[nn.Module], amp: bool, options: dict) -> float:
    net = make(**NAMED["006"], **options)
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []  # an address counts once only while its tensor lives

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes.setdefault(storage._cdata, storage.nbytes())
        alive.append(tensor)
        return tensor

    with FAKE:
        to_gpu(net)
        clip = torch.rand(1, 6, 3, 192, 192, device="cuda")
        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
            torch.autocast("cuda", torch.bfloat16, enabled=amp),
        ):
            restored = net(clip)
        assert restored.device.type == "cuda" and restored.shape == clip.shape
    own = {t.untyped_storage()._cdata for t in (*net.parameters(), *net.buffers())}
    return sum(size for address, size in sizes.items() if address not in own) / 1e9


def needs_a_real_gpu() -> str:
    """Why this torch has no fake tensors on a GPU that is not there, or "" (torch 2.8: indexing starts CUDA)."""
    try:
        with FAKE:
            torch.empty(2, 2, device="cuda")[:, :1]
    except RuntimeError as e:
        return f"torch {torch.__version__}: {str(e).splitlines()[0]}"
    return ""


if __name__ == "__main__":
    if reason := needs_a_real_gpu():
        print(reason, file=sys.stderr)
        sys.exit(77)
    # What torch asks of a GPU that is there.
    torch.backends.cudnn.enabled = False
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda *_: True
    window_attention.window_plan, attention_core.attend = fake_plan, efficient_attention
    for name in ("_forward", "_backward_queries", "_backward_keys", "_bias_backward"):
        setattr(triton_attention, name, Unlaunched())
    triton_deform._sample = triton_deform._sample_backward = Unlaunched()
    print(json.dumps({name: round(kept_gb(*CASES[name]), 2) for name in sys.argv[1:] or CASES}, indent=1))
