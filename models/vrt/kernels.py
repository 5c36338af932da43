"""Which implementation of attention, MLP and deformable convolution runs: plain, cache-blocked (CPU) or Triton."""

from __future__ import annotations

import os
from typing import Literal

import torch
from torch import Tensor

from models.vrt.kernel_choice import Kernel, read_choice

Kernels = Literal["auto", "plain", "triton"]

# Devices on which a block computes all its windows at once.
AT_ONCE = ("cuda",)


def use_triton(kernel: Kernel, kernels: str, x: Tensor) -> bool:
    """Whether a Triton kernel runs for x: with kernels "triton", or with "auto" if it was measured to be the best.

    On a GPU, or in Triton's interpreter (TRITON_INTERPRET=1, on a CPU).
    """
    if x.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    return kernels == "triton" or (kernels == "auto" and read_choice(kernel, x.device) == "triton")


def use_gpu_blocks(kernels: str, x: Tensor) -> bool:
    """Whether gpu_block.py runs for x: on a GPU, not traced by torch.compile."""
    return kernels != "plain" and x.device.type in AT_ONCE and not torch.compiler.is_compiling()


def use_cache_blocks(kernels: str, x: Tensor) -> bool:
    """Whether cpu_block.py runs for x: on a CPU, without autocast, not traced by torch.compile."""
    return (
        kernels == "auto"
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )
