"""A VRT whose training step takes a fraction of a second on one core.

Many tests of models use it. A larger network makes all of them slower.
"""

from typing import Any

from models.network_vrt import VRT

# Arguments of VRT that are smaller than usual. The network has nine stages: seven of the U-shape,
# and two that refine the result.
SMALL: dict[str, Any] = {
    "upscale": 1,
    "window_size": [6, 4, 4],
    "depths": [2] * 7 + [1, 1],
    "indep_reconsts": [8],
    "embed_dims": [16] * 9,
    "num_heads": [2] * 9,
    "deformable_groups": 4,
}


def small_vrt(**changes: Any) -> VRT:
    """Return a small network.

    changes: arguments of VRT in place of the arguments in SMALL.
    """
    return VRT(**(SMALL | changes))
