"""Validation on all ranks: clips are shared out without padding, so the numbers do not depend on how many ranks there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.model_vrt import ModelVRT
from utils import utils_dist
from utils.utils_image import comparison_strip
from utils.utils_metrics import psnr, ssim, tensor_to_uint8


@dataclass(frozen=True)
class ClipResult:
    """Scores of one clip: means over its frames, for the blurry input and for the restored clip."""

    name: str
    frames: int
    psnr_input: float
    ssim_input: float
    psnr: float
    ssim: float


@dataclass(frozen=True)
class Validation:
    """All clips of the test split, the same on every rank; pictures (H, W, 3) uint8 by clip name on rank 0 only."""

    clips: list[ClipResult]
    pictures: dict[str, np.ndarray]

    def mean(self, field: str) -> float:
        """Mean over clips of a ClipResult field (the field's protocol: per frame -> per clip -> over clips)."""
        return float(np.mean([getattr(clip, field) for clip in self.clips]))

    def scalars(self) -> dict[str, float]:
        return {f"val/{field}": self.mean(field) for field in ("psnr", "ssim", "psnr_input", "ssim_input")}

    def table(self) -> str:
        """The clips and their mean as an aligned text table."""
        width = max(len("mean"), *(len(clip.name) for clip in self.clips))
        lines = [
            f"{'':{width}} |       blurry input |           restored |   gain",
            f"{'clip':{width}} |   PSNR dB     SSIM |   PSNR dB     SSIM |     dB",
        ]
        rows = [(c.name, c.psnr_input, c.ssim_input, c.psnr, c.ssim) for c in self.clips]
        rows.append(("mean", *(self.mean(f) for f in ("psnr_input", "ssim_input", "psnr", "ssim"))))
        for name, psnr_in, ssim_in, psnr_out, ssim_out in rows:
            numbers = f"{psnr_in:9.2f} {ssim_in:8.4f} | {psnr_out:9.2f} {ssim_out:8.4f} | {psnr_out - psnr_in:+6.2f}"
            lines.append(f"{name:{width}} | {numbers}")
        return "\n".join(lines)


def validate(model: ModelVRT, dataset: Any) -> Validation:
    """Restore and score every clip of the test dataset. Collective."""
    rank, world = utils_dist.get_rank(), utils_dist.get_world_size()
    mine = [_restore_and_score(model, dataset[index]) for index in range(rank, len(dataset), world)]
    found = [pair for ranks in utils_dist.gather_objects(mine) for pair in ranks]
    found.sort(key=lambda pair: pair[0].name)
    pictures = {clip.name: picture for clip, picture in found} if rank == 0 else {}
    return Validation([clip for clip, _ in found], pictures)


def _restore_and_score(model: ModelVRT, clip: dict[str, Any]) -> tuple[ClipResult, np.ndarray]:
    lq, gt, spike = clip["lq"], clip["gt"], clip.get("spike")
    restored = model.test(lq[None], None if spike is None else spike[None])[0]
    blurry, output, sharp = (tensor_to_uint8(frames) for frames in (lq, restored, gt))
    scores = {
        "psnr_input": np.mean([psnr(a, b) for a, b in zip(blurry, sharp, strict=True)]),
        "ssim_input": np.mean([ssim(a, b) for a, b in zip(blurry, sharp, strict=True)]),
        "psnr": np.mean([psnr(a, b) for a, b in zip(output, sharp, strict=True)]),
        "ssim": np.mean([ssim(a, b) for a, b in zip(output, sharp, strict=True)]),
    }
    middle = len(lq) // 2
    strip = comparison_strip(lq[middle], None if spike is None else spike[middle], restored[middle], gt[middle])
    return ClipResult(clip["key"], len(lq), **{key: float(value) for key, value in scores.items()}), strip
