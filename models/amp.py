"""Mixed precision: which type a run computes in, on the devices that it has."""

from __future__ import annotations

import logging

import torch

from utils import utils_dist
from utils.options.models import AmpOptions

logger = logging.getLogger(__name__)

AMP_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_dtype(wanted: str, has_bfloat16: list[bool]) -> str:
    """ "auto": bfloat16 where every rank's device computes in it, else float16; another name: itself.

    Gradients are scaled for float16 only, so ranks of different types would add up scaled and unscaled gradients.
    """
    if wanted != "auto":
        return wanted
    return "bfloat16" if all(has_bfloat16) else "float16"


def has_native_bfloat16(device: torch.device) -> bool:
    """GPUs before Ampere (V100, T4, MX450) only emulate bfloat16, several times slower than float16."""
    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)


def amp_dtype(amp: AmpOptions, device: torch.device) -> torch.dtype | None:
    """The autocast type that `train.amp` asks for, None without mixed precision; the log says which. Collective."""
    if not amp.enable:
        return None
    native = utils_dist.gather_objects(has_native_bfloat16(device))
    name = choose_dtype(amp.dtype, native)
    logger.info("mixed precision in %s%s", name, ", with gradient scaling" if name == "float16" else "")
    if name == "bfloat16" and not all(native):
        ranks = ", ".join(str(rank) for rank, found in enumerate(native) if not found)
        logger.warning('the GPU of rank %s only emulates bfloat16, slowly; set train.amp.dtype to "auto"', ranks)
    return AMP_DTYPES[name]
