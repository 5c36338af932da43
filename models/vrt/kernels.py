"""Which form of the costly operations runs: the plain one, the one for caches, or the Triton kernels."""

from __future__ import annotations

import os
from typing import Literal

import torch
from torch import Tensor

Kernels = Literal["auto", "plain", "triton"]


def use_triton(kernels: str, x: Tensor) -> bool:
    """Whether Triton kernels run for x: on a GPU, where they are asked for.

    "auto" does not choose them: they are checked in Triton's interpreter (TRITON_INTERPRET=1, on a CPU), compiled for
    GPUs, and were never run or timed on one. torch.compile traces the plain form.
    """
    if kernels != "triton" or torch.compiler.is_compiling():
        return False
    return x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


def use_cache_blocks(kernels: str, x: Tensor) -> bool:
    """Whether the forms of cpu_block.py run for x: a CPU, full precision, no tracing."""
    return (
        kernels == "auto"
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )
