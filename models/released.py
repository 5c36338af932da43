"""The nine published VRT networks; a weights file without options is identified by the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Size, Tensor

from models.select_network import NETWORKS

_BIG: dict[str, Any] = {
    "upscale": 4,
    "depths": [8] * 7 + [4] * 6,
    "indep_reconsts": [11, 12],
    "embed_dims": [120] * 7 + [180] * 6,
    "num_heads": [6] * 13,
}
_SMALL: dict[str, Any] = {
    "upscale": 1,
    "img_size": [6, 192, 192],
    "window_size": [6, 8, 8],
    "depths": [8] * 7 + [4] * 4,
    "indep_reconsts": [9, 10],
    "embed_dims": [96] * 7 + [120] * 4,
    "num_heads": [6] * 11,
}
_DEBLUR: dict[str, Any] = {**_SMALL, "pa_frames": 2, "deformable_groups": 16}
_VIMEO: dict[str, Any] = {
    **_BIG,
    "img_size": [8, 64, 64],
    "window_size": [8, 8, 8],
    "pa_frames": 4,
    "deformable_groups": 16,
}

# File stem -> arguments of the network. 002 follows its released file; KAIR's option file differs.
RELEASED: dict[str, dict[str, Any]] = {
    "001_VRT_videosr_bi_REDS_6frames": {
        **_BIG, "img_size": [6, 64, 64], "window_size": [6, 8, 8], "pa_frames": 2, "deformable_groups": 12,
    },
    "002_VRT_videosr_bi_REDS_16frames": {
        **_BIG, "img_size": [16, 64, 64], "window_size": [8, 8, 8], "pa_frames": 6, "deformable_groups": 24,
    },
    "003_VRT_videosr_bi_Vimeo_7frames": _VIMEO,
    "004_VRT_videosr_bd_Vimeo_7frames": _VIMEO,
    "005_VRT_videodeblurring_DVD": _DEBLUR,
    "006_VRT_videodeblurring_GoPro": _DEBLUR,
    "007_VRT_videodeblurring_REDS": _DEBLUR,
    "008_VRT_videodenoising_DAVIS": {**_DEBLUR, "nonblind_denoising": True},
    "009_VRT_videofi_Vimeo_4frames": {
        **_SMALL, "img_size": [4, 192, 192], "window_size": [4, 8, 8], "indep_reconsts": [], "pa_frames": 0,
    },
}  # fmt: skip

# The authors' tiles (frames, side); they overlap by 2 frames and 20 pixels.
RELEASED_TILES = {
    "001": (40, 128), "002": (40, 128), "003": (32, 128), "004": (32, 128), "005": (12, 256), "006": (18, 192),
    "007": (12, 256), "008": (12, 256), "009": (0, 0),
}  # fmt: skip


def identify(weights: Mapping[str, Tensor]) -> str | None:
    """The published network whose tensors have exactly these names and shapes, or None.

    Several networks differ only in their training data; the first of them is returned.
    """
    shapes = {key: value.shape for key, value in weights.items()}
    return next((name for name in RELEASED if _shapes_of(name) == shapes), None)


@cache
def _shapes_of(name: str) -> dict[str, Size]:
    with torch.device("meta"):
        net = NETWORKS.build({"net_type": "vrt", **RELEASED[name]}, "netG", spike_channels=0)
    return {key: value.shape for key, value in net.state_dict().items()}
