"""Compares the Triton kernels with their references and prints the differences as JSON; run by the tests.

On a GPU the kernels are compiled; with TRITON_INTERPRET=1 they are interpreted on the CPU, slowly. Exit code 77 and a
reason where the interpreter itself does not work, as those of Triton 3.4 to 3.6 with NumPy 2.4.
"""

from __future__ import annotations

import json
import sys

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.vrt import triton_attention
from models.vrt.deform_conv import deform_conv, sampled_conv
from models.vrt.window_attention import BlockGroup
from tests import golden

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def deformable(groups: int, kernels: int) -> float:
    """Largest relative difference of output and gradients from the plain form in float64."""
    torch.manual_seed(0)
    shapes = [(1, 6, 5, 6), (1, 18 * groups, 5, 6), (1, 9 * groups, 5, 6), (6, 6 // kernels, 3, 3), (6,)]
    tensors = [torch.randn(s) for s in shapes]
    tensors[1] *= 4
    ours = [t.to(DEVICE).requires_grad_() for t in tensors]
    exact = [t.double().requires_grad_() for t in tensors]
    return compare(deform_conv(*ours, kernels="triton"), ours, sampled_conv(*exact), exact)


def attention(window: tuple[int, int, int], size: tuple[int, int, int], mutual: bool) -> float:
    """The same for a shifted, padded and masked group of attention blocks."""
    torch.manual_seed(0)
    plain = BlockGroup(8, 2, 1, window, mutual, [0.0] * 2, kernels="plain").double()
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    group = BlockGroup(8, 2, 1, window, mutual, [0.0] * 2, kernels="triton")
    group.load_state_dict(plain.state_dict())
    group.to(DEVICE)
    x = torch.randn(1, *size, 8)
    ours = [x.to(DEVICE).requires_grad_(), *group.parameters()]
    exact = [x.double().requires_grad_(), *plain.parameters()]
    return compare(group(ours[0]), ours, plain(exact[0]), exact)


def compare(y: Tensor, ours: list[Tensor], z: Tensor, exact: list[Tensor]) -> float:
    weight = golden.cotangent(z)
    grads = torch.autograd.grad(y, ours, weight.to(y)), torch.autograd.grad(z, exact, weight)
    pairs = zip((y, *grads[0]), (z, *grads[1]), strict=True)
    return max(golden.difference(a.detach().cpu().double(), b.detach()) for a, b in pairs)


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
    # Small blocks, so that every loop over blocks turns more than once.
    triton_attention.BLOCK, triton_attention.CHUNK = {4: 16}, 5
    found = {f"deformable groups {g}, kernels {k}": deformable(g, k) for g, k in ((2, 1), (3, 3))}
    found["attention, self"] = attention((2, 3, 3), (3, 4, 3), mutual=False)
    found["attention, mutual"] = attention((2, 2, 2), (3, 4, 3), mutual=True)
    print(json.dumps(found))
