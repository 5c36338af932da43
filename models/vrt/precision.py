"""One dtype for each tensor on purpose: float32 without TF32, layer norm in the dtype of autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype of autocast on the device of x, else that of x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer norm over the last axis in the dtype of x; mean and variance are float32 or float64 either way."""
    if x.device.type != "cpu":  # a CPU sums the gradients of weight and bias in their dtype: bfloat16 is 40 % off
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


class LayerNorm(nn.LayerNorm):
    """Layer norm over the last axis whose result has the dtype of autocast, as that of a linear layer.

    torch's own returns float32 on a GPU, so the sum of the residual branches would be float32 in the first stage and
    cast before each linear layer.
    """

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(compute_dtype(x))
        with torch.autocast(x.device.type, enabled=False):
            return layer_norm(x, self.weight, self.bias, self.eps)


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Convolutions and matrix products inside are computed in the dtype of their tensors; the settings come back.

    By default torch computes float32 convolutions of cuDNN in TF32. A backward pass outside uses the settings outside.
    """
    with torch.autocast(device.type, enabled=False), tf32(False):
        yield


def uses_tf32() -> bool:
    """Whether matrix products of float32 use TF32 on a GPU."""
    matmul = torch.backends.cuda.matmul
    # Later versions refuse to read allow_tf32 after fp32_precision was set.
    return matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32


@contextmanager
def tf32(is_on: bool) -> Iterator[None]:
    """Convolutions and matrix products of float32 inside use TF32, or do not; the settings come back."""
    if hasattr(torch.backends.cudnn, "conv"):
        key, value = "fp32_precision", "tf32" if is_on else "ieee"
        parts = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)
    else:  # torch 2.8; in later versions this form warns, and the two forms may not be mixed
        key, value = "allow_tf32", is_on
        parts = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [getattr(part, key) for part in parts]
    try:
        for part in parts:
            setattr(part, key, value)
        yield
    finally:
        for part, setting in zip(parts, before, strict=True):
            setattr(part, key, setting)
