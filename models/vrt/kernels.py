"""Which implementation of attention, MLP and deformable convolution runs: plain, cache-blocked (CPU) or Triton."""

from __future__ import annotations

import os
from typing import Literal

import torch
from torch import Tensor

Kernels = Literal["auto", "plain", "triton"]


def use_triton(kernels: str, x: Tensor) -> bool:
    """Whether the Triton kernels run for x: on a GPU, with kernels "triton".

    "auto" does not select them: they are tested in Triton's interpreter (TRITON_INTERPRET=1, on a CPU) and compiled
    for GPUs, but were never run or timed on one. torch.compile traces the plain implementation.
    """
    if kernels != "triton" or torch.compiler.is_compiling():
        return False
    return x.device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"


def use_cache_blocks(kernels: str, x: Tensor) -> bool:
    """Whether cpu_block.py runs for x: on a CPU, without autocast, not traced by torch.compile."""
    return (
        kernels == "auto"
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )
