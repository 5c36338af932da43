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


class DropPath(nn.Module):
    """Drops a residual branch for whole samples (first axis) with probability `drop_prob` while training."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.drop_prob == 0.0:
            return x
        keep = 1.0 - self.drop_prob
        kept = x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(keep)
        return x * (kept / keep)
