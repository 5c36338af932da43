"""Mixed precision (AMP): choose the dtype from the devices of all ranks."""

from __future__ import annotations

import logging

import torch

from utils import utils_dist
from utils.options.models import AmpOptions

logger = logging.getLogger(__name__)

AMP_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_dtype(wanted: str, has_bfloat16: list[bool]) -> str:
    """`wanted`, or for "auto" bfloat16 if every rank's device supports it natively, else float16.

    All ranks use one dtype: gradients are scaled in float16 only, and the reduction must not mix them.
    """
    if wanted != "auto":
        return wanted
    return "bfloat16" if all(has_bfloat16) else "float16"


def has_native_bfloat16(device: torch.device) -> bool:
    """False on GPUs before Ampere (V100, T4, MX450): they emulate bfloat16, several times slower than float16."""
    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)


def amp_dtype(amp: AmpOptions, device: torch.device) -> torch.dtype | None:
    """The autocast dtype for `train.amp`, written to the log; None without mixed precision. Collective."""
    if not amp.enable:
        return None
    native = utils_dist.gather_objects(has_native_bfloat16(device))
    name = choose_dtype(amp.dtype, native)
    logger.info("mixed precision in %s%s", name, ", with gradient scaling" if name == "float16" else "")
    if name == "bfloat16" and not all(native) and utils_dist.is_main_process():
        ranks = ", ".join(str(rank) for rank, found in enumerate(native) if not found)
        logger.warning('the GPU of rank %s emulates bfloat16, which is slow; set train.amp.dtype to "auto"', ranks)
    return AMP_DTYPES[name]
