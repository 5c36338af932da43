"""The row-wise parts of a block on a GPU: layer norms, residual sums and the order of windows.

By single operations of torch, or, with triton, by the kernels of triton_rows.py. Without autograd.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from models.vrt.windows import WindowPlan

# Mean and reciprocal standard deviation of each token; None where kernels compute them anew.
Statistics = tuple[Tensor, Tensor] | None


class Norm(NamedTuple):
    """A layer norm over the last axis; weight and bias have the dtype of its input."""

    weight: Tensor
    bias: Tensor
    eps: float


def norm(x: Tensor, n: Norm) -> tuple[Tensor, Statistics]:
    u, *found = torch.native_layer_norm(x, x.shape[-1:], n.weight, n.bias, n.eps)
    return u, tuple(found)


def norm_windows(x: Tensor, n: Norm, plan: WindowPlan, triton: bool) -> tuple[Tensor, Statistics]:
    """Layer norm of x (B, D * H * W, C) in window order, zero at padding, (windows * T, C)."""
    if triton:
        from models.vrt.triton_rows import triton_norm_rows  # Triton is optional

        return triton_norm_rows(x.contiguous(), n.weight, n.bias, plan.tokens_in_windows, n.eps), None
    u, statistics = norm(x, n)
    return plan.gather(u.view(1, -1, u.shape[-1]))[0], statistics


def norm_windows_backward(
    grad_u: Tensor, x: Tensor, statistics: Statistics, grad: Tensor, n: Norm, plan: WindowPlan, triton: bool
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of x, weight and bias; grad: what x has besides."""
    if triton:
        from models.vrt.triton_rows import triton_norm_rows_backward

        rows = plan.tokens_in_windows
        grad_x, sums = triton_norm_rows_backward(grad_u, x.contiguous(), grad, n.weight, rows, n.eps)
        return grad_x, list(sums.sum(0))
    grad_u = grad_u.index_select(0, plan.places).view_as(x)
    grad_x, *weights = _norm_backward(grad_u, x, statistics, n)
    return grad_x.add_(grad), weights


def add_norm(
    x: Tensor, branch: Tensor, factors: Tensor | None, n: Norm, plan: WindowPlan, triton: bool
) -> tuple[Tensor, Tensor, Statistics]:
    """y = x + factors[0] * branch, branch (windows * T, C) in window order; the layer norm of y."""
    if triton:
        from models.vrt.triton_rows import triton_add_norm

        y, u = triton_add_norm(x.contiguous(), branch, factors, n.weight, n.bias, plan.tokens_in_windows, n.eps)
        return y, u, None
    y = add_scaled(x, branch.index_select(0, plan.places).view_as(x), factors, 0)
    return y, *norm(y, n)


def add_norm_backward(
    grad_u: Tensor, y: Tensor, statistics: Statistics, grad: Tensor,
    factors: Tensor | None, n: Norm, plan: WindowPlan, triton: bool,
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    """Gradients of y, of branch, and of weight, bias and a bias of branch; grad: what y has besides."""
    if triton:
        from models.vrt.triton_rows import triton_add_norm_backward

        grad_y, grad_branch, sums = triton_add_norm_backward(
            grad_u, y, grad.contiguous(), factors, n.weight, plan.tokens_in_windows, n.eps
        )
        return grad_y, grad_branch, list(sums.sum(0))
    grad_y, *weights = _norm_backward(grad_u.view_as(y), y, statistics, n)
    grad_y.add_(grad)
    grad_branch = plan.gather(scaled(grad_y, factors, 0).view(1, -1, y.shape[-1]))[0]
    return grad_y, grad_branch, [*weights, grad_branch.sum(0)]


def scaled(x: Tensor, factors: Tensor | None, number: int) -> Tensor:
    return x if factors is None else torch.mul(x, factors[number], out=torch.empty_like(x))


def add_scaled(x: Tensor, branch: Tensor, factors: Tensor | None, number: int) -> Tensor:
    """x + factor * branch; overwrites branch."""
    if factors is None:
        return branch.add_(x)
    return torch.addcmul(x, branch, factors[number], out=branch)


def _norm_backward(grad_u: Tensor, x: Tensor, statistics: Statistics, n: Norm) -> tuple[Tensor, Tensor, Tensor]:
    arguments = (grad_u, x, x.shape[-1:], *statistics, n.weight, n.bias, [True, True, True])
    return torch.ops.aten.native_layer_norm_backward(*arguments)
