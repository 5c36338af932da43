"""Give the names of tiles/ where version 0.9.0 had them, until the version after the next one."""

import warnings

from models.restore.tiles.plan import Tiling
from models.restore.tiles.space import restore_space

__all__ = ["Tiling", "restore_space"]

# FutureWarning, because Python shows it to everybody. Level 2 is the line that imports this module.
warnings.warn(
    "models.restore.tiling was divided: Tiling is in models.restore.tiles.plan, and restore_space "
    "in models.restore.tiles.space; the old place goes with the version after the next one",
    FutureWarning,
    stacklevel=2,
)
