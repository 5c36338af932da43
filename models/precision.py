"""Choose the precision of a training: float32, or mixed precision by the option train.amp.

model_vrt.py computes its forward passes in the dtype that `amp_dtype` returns. Losses, gradients
and weights stay in float32.

What must stay: all ranks use one dtype, and only gradients in float16 are scaled. Free to change:
the texts.

Tests: tests/parts/models/test_autocast.py
"""

import logging

import torch

from utils import device as devices
from utils import utils_dist
from utils.options.train_options import AmpOptions

logger = logging.getLogger(__name__)

# Values of the option train.amp.dtype -> dtypes. `ModelVRT.restore` converts results of these
# dtypes to float32.
AMP_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def amp_dtype(amp: AmpOptions, device: torch.device) -> torch.dtype | None:
    """Choose the autocast dtype and log it. Returns None if `train.amp` is off.

    "auto" is bfloat16 if the device of every rank computes in bfloat16 natively, else float16.

    All ranks use one dtype. With two dtypes, a sum over the ranks would add scaled gradients
    (float16) and gradients that are not scaled (bfloat16). So every rank must call `amp_dtype`. In
    `amp_dtype` the ranks wait for each other.
    """
    if not amp.enable:
        return None
    # has_native[r]: whether the device of rank r computes in bfloat16 natively.
    has_native = utils_dist.gather_objects(devices.has_native_bfloat16(device))
    if amp.dtype != "auto":
        name = amp.dtype
    elif all(has_native):
        name = "bfloat16"
    else:
        name = "float16"

    scaling = ", with gradient scaling" if name == "float16" else ""
    logger.info("mixed precision in %s%s", name, scaling)
    slow_ranks = [str(rank) for rank, is_native in enumerate(has_native) if not is_native]
    if name == "bfloat16" and slow_ranks and utils_dist.is_main_process():
        logger.warning(
            'the GPU of rank %s emulates bfloat16, which is slow; set train.amp.dtype to "auto"',
            ", ".join(slow_ranks),
        )
    return AMP_DTYPES[name]
