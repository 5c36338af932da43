"""Which form of a computation runs on a GPU: our Triton kernels, or torch's operators.

The one rule: kernels run in bfloat16 and float16, on an NVIDIA GPU of Ampere or newer (RTX 30,
A100) with a Triton that compiles there, outside of torch.compile. Windows whose size the kernels do
not know use torch's attention. The log says once which form runs, and why if it is torch's.
"""

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

DEVICES = ("cuda",)
HALF = (torch.bfloat16, torch.float16)
OLDEST = (8, 0)  # compute capability of Ampere


def has_kernels(x: Tensor) -> bool:
    """Whether our kernels compute with tensors like x."""
    if x.device.type not in DEVICES or x.dtype not in HALF or torch.compiler.is_compiling():
        return False
    return _kernels_run_on(x.device)


def attention_has_kernel(x: Tensor, tokens: int, channels: int) -> bool:
    """Whether our kernel computes the attention of windows.

    x: a tensor of the device and type. tokens: T of a window. channels: channels of a head.
    """
    if not has_kernels(x):
        return False
    from models.vrt import triton_attention

    return triton_attention.knows(tokens, channels)


@cache
def _kernels_run_on(device: torch.device) -> bool:
    reason = _reason_against(device)
    if reason:
        logger.info("attention on %s by torch's operators, because %s", device, reason)
    else:
        logger.info("attention on %s by Triton kernels", device)
    return not reason


def _reason_against(device: torch.device) -> str:
    """Return why the kernels do not run on the device, or ""."""
    if torch.version.hip:
        return "the kernels were not tried with ROCm"
    if device.type == "cuda" and not torch.cuda.is_available():
        return "torch sees no GPU"  # tensors without content, by which memory is counted
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < OLDEST:
        return "the GPU is older than Ampere"
    try:
        from models.vrt import triton_rows
    except ImportError as e:
        return f"Triton is missing ({e})"
    ones: Any = torch.ones(1, 16, device=device)
    try:
        triton_rows.layer_norm(ones.half(), ones[0], ones[0], 1e-5)
    except Exception as e:  # a missing C compiler, a driver that is too old, ...
        text = str(e).strip().splitlines()
        return f"Triton does not compile here ({text[-1] if text else type(e).__name__})"
    return ""
