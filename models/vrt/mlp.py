"""Token-wise parts of a block: the gated MLP and stochastic depth."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class GatedMlp(nn.Module):
    """fc2(gelu(fc11(x)) * fc12(x)) over the last axis (GEGLU, Shazeer 2020), with the exact erf GELU."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.fc11 = nn.Linear(inputs, hidden)
        self.fc12 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc11(x)) * self.fc12(x))

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
