"""The nine published VRT networks: the arguments of each, and the tiles of its authors.

models/network_vrt.py explains the arguments, in the docstring of VRT. recognise.py builds the
networks from them, to recognise a published file by the names and shapes of its tensors.
network_method.py restores a user's clips with the tiles.

The lists have an entry for each of the stages 1 to 7, and then an entry for each layer of stage 8.
E.g. depths [8] * 7 + [4] * 6: the seven stages have 8 blocks each, and stage 8 has six layers of 4
blocks each.

What must stay: the arguments, because they decide the names and shapes of the tensors
(tests/parts/models/test_released.py). The tiles must stay, too, because the published scores were
made with them.

Tests: tests/parts/models/test_released.py, test_weights.py
"""

from typing import Any

# Super-resolution: four times the height and width.
_SUPER_RESOLUTION: dict[str, Any] = {
    "upscale": 4,
    "depths": [8] * 7 + [4] * 6,
    "indep_reconsts": [11, 12],
    "embed_dims": [120] * 7 + [180] * 6,
    "num_heads": [6] * 13,
}
# The output has the size of the input. Stage 8 has four layers.
_SAME_SIZE: dict[str, Any] = {
    "upscale": 1,
    "img_size": [6, 192, 192],
    "window_size": [6, 8, 8],
    "depths": [8] * 7 + [4] * 4,
    "indep_reconsts": [9, 10],
    "embed_dims": [96] * 7 + [120] * 4,
    "num_heads": [6] * 11,
}
_DEBLUR: dict[str, Any] = {**_SAME_SIZE, "pa_frames": 2, "deformable_groups": 16}
_VIMEO: dict[str, Any] = {
    **_SUPER_RESOLUTION,
    "img_size": [8, 64, 64],
    "window_size": [8, 8, 8],
    "pa_frames": 4,
    "deformable_groups": 16,
}
# Name of a published file, without .pth -> arguments of its network. For 002, the option file of
# KAIR, the project in which VRT was published, has other values. The values below are right,
# because the tensors of the released file fit them.
RELEASED: dict[str, dict[str, Any]] = {
    "001_VRT_videosr_bi_REDS_6frames": {
        **_SUPER_RESOLUTION,
        "img_size": [6, 64, 64],
        "window_size": [6, 8, 8],
        "pa_frames": 2,
        "deformable_groups": 12,
    },
    "002_VRT_videosr_bi_REDS_16frames": {
        **_SUPER_RESOLUTION,
        "img_size": [16, 64, 64],
        "window_size": [8, 8, 8],
        "pa_frames": 6,
        "deformable_groups": 24,
    },
    "003_VRT_videosr_bi_Vimeo_7frames": _VIMEO,
    "004_VRT_videosr_bd_Vimeo_7frames": _VIMEO,
    "005_VRT_videodeblurring_DVD": _DEBLUR,
    "006_VRT_videodeblurring_GoPro": _DEBLUR,
    "007_VRT_videodeblurring_REDS": _DEBLUR,
    "008_VRT_videodenoising_DAVIS": {**_DEBLUR, "nonblind_denoising": True},
    "009_VRT_videofi_Vimeo_4frames": {
        **_SAME_SIZE,
        "img_size": [4, 192, 192],
        "window_size": [4, 8, 8],
        "indep_reconsts": [],
        "pa_frames": 0,
    },
}
# Number of a published file -> the tiles (frames, side in pixels) with which its authors tested it.
# 0 frames means the whole clip, 0 pixels the whole frame. The tiles of the authors overlap by 2
# frames and 20 pixels, which are the defaults of `ValOptions` (utils/options/val_options.py). Each
# file of RELEASED needs an entry (test_a_released_network_is_known_by_its_tensors).
RELEASED_TILES = {
    "001": (40, 128),
    "002": (40, 128),
    "003": (32, 128),
    "004": (32, 128),
    "005": (12, 256),
    "006": (18, 192),
    "007": (12, 256),
    "008": (12, 256),
    "009": (0, 0),
}
