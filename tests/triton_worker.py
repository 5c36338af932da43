"""Compares the Triton kernels with their references and prints the differences as JSON; run by the tests.

On a GPU the kernels are compiled; with TRITON_INTERPRET=1 they are interpreted on the CPU, slowly. Exit code 77 and a
reason where the interpreter itself does not work, as those of Triton 3.4 to 3.6 with NumPy 2.4.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.vrt import block_rows, triton_attention, triton_deform, triton_mlp, triton_rows
from models.vrt.deform_conv import deform_conv, sampled_conv
from models.vrt.gpu_block import BlockConfig, BlockWeights, GpuBlock
from models.vrt.window_attention import BlockGroup
from models.vrt.windows import window_plan
from tests import golden

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Tokens of a window, channels of a head, dtype, mutual: those of the network of the GoPro recipe, and odd ones.
CASES = (
    (384, 20, torch.bfloat16, False),
    (128, 16, torch.float16, False),
    (63, 20, torch.float16, False),
    (64, 16, torch.bfloat16, True),
    (63, 20, torch.bfloat16, True),
)
# Dtype and channels of the row-wise parts: those of the networks, and a width that is no multiple of 16.
ROWS = ((torch.bfloat16, 120, True), (torch.float16, 180, False), (torch.float32, 12, True))


def deformable(groups: int, weight_groups: int) -> float:
    """Largest relative difference of output and gradients from the plain form in float64."""
    torch.manual_seed(0)
    shapes = [(1, 6, 5, 6), (1, 18 * groups, 5, 6), (1, 9 * groups, 5, 6), (6, 6 // weight_groups, 3, 3), (6,)]
    tensors = [torch.randn(s) for s in shapes]
    tensors[1] *= 4
    ours = [t.to(DEVICE).requires_grad_() for t in tensors]
    exact = [t.double().requires_grad_() for t in tensors]
    return compare(deform_conv(*ours, kernels="triton"), ours, sampled_conv(*exact), exact)


def group(window: tuple[int, int, int], size: tuple[int, int, int], mutual: bool) -> float:
    """The same for a shifted, padded and masked group of attention blocks, float32."""
    torch.manual_seed(0)
    plain = BlockGroup(8, 2, 1, window, mutual, [0.0] * 2, kernels="plain").double()
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    ours = BlockGroup(8, 2, 1, window, mutual, [0.0] * 2, kernels="triton")
    ours.load_state_dict(plain.state_dict())
    ours.to(DEVICE)
    x = torch.randn(1, *size, 8)
    mine = [x.to(DEVICE).requires_grad_(), *ours.parameters()]
    exact = [x.double().requires_grad_(), *plain.parameters()]
    return compare(ours(mine[0]), mine, plain(exact[0]), exact)


def inputs(tokens: int, head: int, dtype: torch.dtype, mutual: bool, number: int) -> list[Tensor]:
    """qkv of samples with two windows each, the bias, masks, and the mask of each window.

    number: of samples, and of heads.
    """
    per = 2 if mutual else 1
    qkv = torch.randn(2 * number * per, tokens, 3, number, head).to(dtype)
    bias = None if mutual else torch.randn(number, tokens, tokens)
    region = (torch.arange(tokens * per) % 5 < 2).float()
    masks = torch.stack(
        (torch.zeros(tokens * per, tokens * per), -100.0 * (region[:, None] != region[None, :]).float())
    )
    return [t if t is None else t.to(DEVICE) for t in (qkv, bias, masks, torch.arange(2, dtype=torch.int32))]


def attention(tokens: int, head: int, dtype: torch.dtype, mutual: bool) -> float:
    """Largest relative difference of output and gradients from the same formula in float64."""
    torch.manual_seed(0)
    # One of the larger windows, which take the interpreter seconds.
    qkv, bias, masks, pattern = inputs(tokens, head, dtype, mutual, 1 if tokens > 64 else 2)
    ours = [t.requires_grad_() for t in (qkv, bias) if t is not None]
    exact = [t.detach().cpu().double().requires_grad_() for t in ours]
    y = triton_attention.triton_attention(qkv, bias, masks, pattern, 0.3, mutual)[0]
    return compare(y, ours, formula(exact, masks.cpu().double(), mutual), exact)


def formula(tensors: list[Tensor], masks: Tensor, mutual: bool) -> Tensor:
    q, k, v = tensors[0].unbind(2)
    tokens = q.shape[1]
    if mutual:
        q = q.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)
    logits = 0.3 * torch.einsum("nthd,nshd->nhts", q, k)
    if not mutual:
        logits = logits + tensors[1]
    per_window = masks[:, None, :tokens, :tokens].repeat_interleave(2 if mutual else 1, dim=0)
    weights = (logits + per_window.repeat(len(q) // len(per_window), 1, 1, 1)).softmax(-1)
    return torch.einsum("nhts,nshd->nthd", weights, v)


def gate(dtype: torch.dtype) -> float:
    """Largest relative difference of the gate of the MLP and its gradient from float64."""
    torch.manual_seed(0)
    ab, grad = torch.randn(70, 48).to(dtype).to(DEVICE), torch.randn(70, 24).to(dtype).to(DEVICE)
    exact = ab.cpu().double().requires_grad_()
    a, b = exact.chunk(2, dim=1)
    h = torch.nn.functional.gelu(a) * b
    (expected,) = torch.autograd.grad(h, exact, grad.cpu().double())
    grad_ab, again = triton_mlp.triton_gate_backward(ab, grad)
    return worst((triton_mlp.triton_gate(ab), again, grad_ab), (h, h, expected))


def rows(dtype: torch.dtype, channels: int, dropped: bool) -> float:
    """Largest relative difference of the row-wise parts of a block from their form without Triton in float64.

    Two shifted and padded clips; dropped: stochastic depth leaves out a branch of each.
    """
    torch.manual_seed(0)
    size, factors = (3, 4, 3), torch.tensor([[1.25, 0.0], [0.0, 1.25]]).view(2, 2, 1, 1) if dropped else None
    plans = [window_plan(size, (2, 3, 3), (1, 1, 1), torch.device(kind), 2) for kind in (DEVICE, "cpu")]
    tokens, positions = (2, math.prod(size), channels), (len(plans[0].rows), channels)
    ours = [torch.randn(s).to(dtype).to(DEVICE) for s in (tokens, positions, tokens, (channels,), (channels,))]
    exact = [t.double().cpu() for t in ours]
    found, expected = (
        row_parts(*tensors, None if factors is None else factors.to(tensors[0].device), plan, is_triton)
        for tensors, plan, is_triton in ((ours, plans[0], True), (exact, plans[1], False))
    )
    return worst(found, expected)


def row_parts(x, in_windows, grad, weight, bias, factors, plan, is_triton) -> list[Tensor]:
    """Results of every function of block_rows.py on tensors that are not related."""
    norm, last = block_rows.Norm(weight, bias, 1e-5), (plan, is_triton)
    u, statistics = block_rows.norm_windows(x, norm, *last)
    grad_x, of_norm1 = block_rows.norm_windows_backward(in_windows, x, statistics, grad, norm, *last)
    y, u2, statistics = block_rows.add_norm(x, in_windows, factors, norm, *last)
    grad_u = torch.linspace(-1, 1, x.numel()).view(x.shape).to(x.device, torch.bfloat16).to(x.dtype)
    grad_y, grad_branch, sums = block_rows.add_norm_backward(grad_u, y, statistics, grad, factors, norm, *last)
    return [u, grad_x, *of_norm1, y, u2, grad_y, grad_branch, *sums]


def block(mutual: bool) -> float:
    """The same for a block with every kernel and its gradients, float32: two clips, windows with masks."""
    torch.manual_seed(0)
    c, size, window = 12, (3, 4, 3), (2, 3, 3)
    plans = [window_plan(size, window, (1, 1, 1), torch.device(kind), 2) for kind in (DEVICE, "cpu")]
    t, linear = math.prod(window), ((3 * c, c), (3 * c,))
    shapes = BlockWeights(
        (c,), (c,), (1, t, t), *linear, (c, 2 * c if mutual else c), (c,), *(linear if mutual else (None, None)),
        (1, t // 2, c) if mutual else None, (c,), (c,), (2 * c, c), (2 * c,), (2 * c, c), (2 * c,), (c, 2 * c), (c,),
    )  # fmt: skip
    values = [torch.randn(2, math.prod(size), c), *(None if s is None else 0.5 * torch.randn(s) for s in shapes)]
    factors = torch.tensor([[1.25, 1.25], [1.25, 0.0]]).view(2, 2, 1, 1)
    found = []
    for plan, dtype, is_triton in zip(plans, (torch.float32, torch.float64), (True, False), strict=True):
        x, *weights = (None if v is None else v.to(plan.rows.device, dtype).requires_grad_() for v in values)
        config = BlockConfig(1, 0.4, mutual, 1e-5, True, not mutual, is_triton, is_triton, is_triton)
        y = GpuBlock.apply(x, factors.to(x.device), plan, config, *weights)
        leaves = BlockWeights(*weights)._replace(positions=None)  # a constant
        found += [y, [x, *(w for w in leaves if w is not None)]]
    return compare(*found)


def compare(y: Tensor, ours: list[Tensor], z: Tensor, exact: list[Tensor]) -> float:
    weight = golden.cotangent(z)
    grads = torch.autograd.grad(y, ours, weight.to(y)), torch.autograd.grad(z, exact, weight)
    return worst((y, *grads[0]), (z, *grads[1]))


def worst(ours: Iterable[Tensor], exact: Iterable[Tensor]) -> float:
    """Largest relative difference; infinite for NaN, of an output not written, which max() may lose."""
    found = [golden.difference(a.detach().cpu().double(), b.detach()) for a, b in zip(ours, exact, strict=True)]
    return math.inf if any(map(math.isnan, found)) else max(found)


def registered() -> float:
    """0.0 if torch finds the operators as declared: schema, fake tensors, autograd, and traced for torch.compile."""
    torch.manual_seed(0)
    qkv, bias, masks, pattern = inputs(8, 16, torch.float32, False, 1)
    qkv, bias = qkv.requires_grad_(), bias.requires_grad_()
    torch.library.opcheck(triton_attention.triton_attention, (qkv, bias, masks, pattern, 0.3, False))
    torch.library.opcheck(triton_attention.triton_attention, (qkv, None, None, None, 0.3, True))
    x, offset, mask = (torch.randn(1, c, 2, 2, device=DEVICE, requires_grad=True) for c in (2, 18, 9))
    torch.library.opcheck(triton_deform.deform_samples, (x, offset, mask))
    torch.library.opcheck(triton_mlp.triton_gate, (torch.randn(5, 8, device=DEVICE),))
    y, in_windows, weight = (torch.randn(s, device=DEVICE) for s in ((1, 5, 8), (6, 8), (8,)))
    places, factors = torch.tensor([3, 1, -1, 0, 2, 4], dtype=torch.int32, device=DEVICE), torch.ones(1, device=DEVICE)
    torch.library.opcheck(triton_rows.triton_norm_rows, (y, weight, weight, places, 1e-5))
    torch.library.opcheck(triton_rows.triton_norm_rows_backward, (in_windows, y, y, weight, places, 1e-5))
    torch.library.opcheck(triton_rows.triton_add_norm, (y, in_windows, factors, weight, weight, places, 1e-5))
    torch.library.opcheck(triton_rows.triton_add_norm_backward, (y, y, y, None, weight, places, 1e-5))
    return 0.0


@triton.jit
def count(out, n):
    for i in range(n):
        tl.store(out + i, i)


if __name__ == "__main__":
    try:
        count[(1,)](torch.zeros(2, dtype=torch.int32, device=DEVICE), 2)
    except Exception as e:
        print(f"Triton {triton.__version__} cannot run a loop here: {e}", file=sys.stderr)
        sys.exit(77)
    # Memory that is not written yet is NaN.
    torch.use_deterministic_algorithms(True, warn_only=True)
    found = {
        f"half: {t} tokens, head {d}, {str(dtype)[6:]}, {'mutual' if mutual else 'self'}": attention(
            t, d, dtype, mutual
        )
        for t, d, dtype, mutual in CASES
    }
    found["gate, bfloat16"], found["gate, float32"] = gate(torch.bfloat16), gate(torch.float32)
    # Small blocks, so that every loop over blocks turns more than once.
    triton_attention.BLOCK, triton_attention.CHUNK = {4: 16}, 5
    found |= {f"deformable groups {g}, weight groups {k}": deformable(g, k) for g, k in ((2, 1), (3, 3))}
    found["attention, self"] = group((2, 3, 3), (3, 4, 3), mutual=False)
    found["attention, mutual"] = group((2, 2, 2), (3, 4, 3), mutual=True)
    triton_rows.TILE, triton_rows.SPAN, triton_rows.PROGRAMS = 4096, 16, 3
    found |= {f"rows: {str(d)[6:]} {c} channels": rows(d, c, f) for d, c, f in ROWS}
    found |= {f"block, {'mutual' if mutual else 'self'}": block(mutual) for mutual in (False, True)}
    found["registered"] = registered()
    print(json.dumps(found))
