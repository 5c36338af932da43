"""Token-wise parts of a block: the gated MLP and stochastic depth."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint


class _GatedOutput(torch.autograd.Function):
    """fc2(gelu(a) * b), keeping a and b alone: autograd would keep gelu(a) and the product beside them.

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
        # Under autocast the weight is float32, the rest is not.
        grad_product = grad @ weight.to(grad.dtype)
        grad_a = torch.ops.aten.gelu_backward(grad_product * b, a)
        return grad_a, grad_product * gelu, grad_weight.to(weight.dtype), flat.sum(0).to(weight.dtype)


class GatedMlp(nn.Module):
    """fc2(gelu(fc11(x)) * fc12(x)) over the last axis (GEGLU, Shazeer 2020), with the exact erf GELU.

    checkpoint: keep the input alone for the backward pass, and compute the rest anew there.
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
            return checkpoint(self._forward, x, use_reentrant=False)
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        return _GatedOutput.apply(self.fc11(x), self.fc12(x), self.fc2.weight, self.fc2.bias)

    def weights(self) -> list[Tensor]:
        """Weight and bias of fc11, fc12 and fc2."""
        return [t for layer in (self.fc11, self.fc12, self.fc2) for t in (layer.weight, layer.bias)]


class DropPath(nn.Module):
    """Drops a residual branch for whole samples (first axis) with probability `drop_prob` while training."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def factors(self, x: Tensor) -> Tensor:
        """What each sample's branch is multiplied by: (B, 1, ..), 0 or 1 / (1 - drop_prob); 1 in evaluation."""
        keep = 1.0 - self.drop_prob
        factors = x.new_ones((len(x),) + (1,) * (x.dim() - 1))
        return factors.bernoulli_(keep) / keep if self.training and self.drop_prob > 0.0 else factors

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factors(x) if self.training and self.drop_prob > 0.0 else x
