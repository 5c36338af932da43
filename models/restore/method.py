"""A network with its weights and tiles as the method of a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from models.portable import SavedNetwork
from models.restore.interpolate import restorer_of
from models.restore.restorer import Restorer
from models.restore.tiling import Tiling


@dataclass(frozen=True)
class NetworkMethod:
    """Restores frames with a network; see utils.contract.Method.

    dtype: see Restorer. sigma: the noise level that a non-blind denoiser is told.
    """

    saved: SavedNetwork
    tiling: Tiling
    dtype: str
    sigma: float | None
    is_grey: ClassVar[bool] = False

    @property
    def can_cut(self) -> bool:
        return bool(self.tiling.num_frame_testing) and not self.tiling.flip_seq and not self.tiling.center_frame_only

    @property
    def instants(self) -> int:
        return self.saved.spec.out_instants

    def frames_of(self, count: int) -> range:
        return self.tiling.frames_of(count)

    def settings(self) -> dict[str, Any]:
        return {
            "weights": self.saved.sha256(), "network": self.saved.options_digest(),
            "tile": self.tiling.describe() + (", halved where memory is short" if self.tiling.is_halved else ""),
            "dtype": self.dtype, "sigma": self.sigma,
        }  # fmt: skip

    def protocol(self) -> dict[str, str]:
        weights = f"{self.saved.path} (sha256 {self.saved.sha256()[:12]}), network from {self.saved.known_from}"
        frames = {"frames": "the middle one"} if self.tiling.center_frame_only else {}
        noise = {"noise level": f"{self.sigma:g} of 255"} if self.sigma is not None else {}
        return {"weights": weights, "dtype": self.dtype, **noise, **frames}

    def restorer(self, device: torch.device) -> Restorer:
        options = {"dtype": self.dtype, "noise_sigma": self.sigma}
        return restorer_of(self.saved.build(), self.saved.spec, self.tiling, device, **options)
