"""A VRT whose training step takes a fraction of a second on one core."""

from typing import Any

from models.network_vrt import VRT

SMALL: dict[str, Any] = {
    "upscale": 1, "window_size": [6, 4, 4], "depths": [2] * 7 + [1, 1], "indep_reconsts": [8],
    "embed_dims": [16] * 9, "num_heads": [2] * 9, "deformable_groups": 4,
}  # fmt: skip


def small_vrt(**changes: Any) -> VRT:
    """Return the network with some of its options changed."""
    return VRT(**(SMALL | changes))
