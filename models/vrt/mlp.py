"""Token-wise parts of a block: the gated MLP and stochastic depth (DropPath)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from models.vrt.recompute import recomputed


class _GatedOutput(torch.autograd.Function):
    """fc2(gelu(a) * b), saving only a and b for backward; autograd would also save gelu(a) and the product.

    a, b: (.., hidden); weight: (outputs, hidden); bias: (outputs,).
    """

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(a, b, weight)
        return F.linear(F.gelu(a) * b, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        a, b, weight = ctx.saved_tensors
        gelu, flat = F.gelu(a), grad.flatten(0, -2)
        grad_weight = flat.t() @ (gelu * b).flatten(0, -2)
        # Under autocast only the weight is float32.
        grad_product = grad @ weight.to(grad.dtype)
        grad_a = torch.ops.aten.gelu_backward(grad_product * b, a)
        return grad_a, grad_product * gelu, grad_weight.to(weight.dtype), flat.sum(0).to(weight.dtype)


class GatedMlp(nn.Module):
    """fc2(gelu(fc11(x)) * fc12(x)) over the last axis (GEGLU, Shazeer 2020), with the exact erf GELU.

    checkpoint: save only the input for backward, and recompute the rest there.
    """

    FLAGS = ("checkpoint",)

    def __init__(self, inputs: int, hidden: int, outputs: int, checkpoint: bool = False) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.fc11 = nn.Linear(inputs, hidden)
        self.fc12 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpoint and torch.is_grad_enabled():
            return recomputed(self._forward, x)
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        return _GatedOutput.apply(self.fc11(x), self.fc12(x), self.fc2.weight, self.fc2.bias)

    def weights(self) -> list[Tensor]:
        """Weight and bias of fc11, fc12 and fc2."""
        return [t for layer in (self.fc11, self.fc12, self.fc2) for t in (layer.weight, layer.bias)]


class DropPath(nn.Module):
    """Stochastic depth: in training, drops a residual branch per sample (first axis) with probability `drop_prob`.

    The draws come from torch's default generator, not from an explicit one: torch.utils.checkpoint restores only the
    default generator before it recomputes a branch, and torch's own layers, such as nn.Dropout in an added network,
    take no other. ModelVRT seeds it from (manual_seed, step, rank) before each step, so that runs are reproducible.
    """

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def factors(self, x: Tensor) -> Tensor:
        """The factor of each sample's branch, (B, 1, ..): 0 or 1 / (1 - drop_prob) in training, else 1."""
        keep = 1.0 - self.drop_prob
        factors = x.new_ones((len(x),) + (1,) * (x.dim() - 1))
        return factors.bernoulli_(keep) / keep if self.training else factors

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factors(x) if self.training else x
