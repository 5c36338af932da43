"""Validation on all ranks: clips are shared out without padding, so no number depends on how many ranks there are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from models.model_vrt import ModelVRT
from utils import utils_dist, utils_watchdog
from utils.utils_image import comparison_strip, imwrite_rgb
from utils.utils_metrics import ClipScores, averages, psnr, ssim, tensor_to_uint8

METRICS = ("psnr", "ssim")


@dataclass
class Validation:
    """Scores of the blurry input and of the restored clips, the same on every rank.

    pictures: clip -> (H, W, 3) uint8, blur | spike | restored | sharp | error of its middle frame; on rank 0 only.
    """

    blurry: ClipScores = field(default_factory=ClipScores)
    restored: ClipScores = field(default_factory=ClipScores)
    pictures: dict[str, np.ndarray] = field(default_factory=dict)

    def scalars(self) -> dict[str, float]:
        """Means over clips: val/psnr, val/ssim, and val/psnr_input, val/ssim_input of the blurry input."""
        clips = len(self.restored.frames)
        out, into = (averages(scores.sums(METRICS), clips) for scores in (self.restored, self.blurry))
        return {f"val/{m}": out[m] for m in METRICS} | {f"val/{m}_input": into[m] for m in METRICS}

    def table(self) -> str:
        """The clips and their mean as an aligned text table."""
        blurry, restored, means = self.blurry.clip_means(), self.restored.clip_means(), self.scalars()
        rows = [(clip, *(blurry[clip][m] for m in METRICS), *(restored[clip][m] for m in METRICS)) for clip in restored]
        rows.append(("mean", *(means[f"val/{m}_input"] for m in METRICS), *(means[f"val/{m}"] for m in METRICS)))
        width = max(len(row[0]) for row in rows)
        lines = [
            f"{'':{width}} |       blurry input |           restored |   gain",
            f"{'clip':{width}} |   PSNR dB     SSIM |   PSNR dB     SSIM |     dB",
        ]
        for name, psnr_in, ssim_in, psnr_out, ssim_out in rows:
            numbers = f"{psnr_in:9.2f} {ssim_in:8.4f} | {psnr_out:9.2f} {ssim_out:8.4f} | {psnr_out - psnr_in:+6.2f}"
            lines.append(f"{name:{width}} | {numbers}")
        return "\n".join(lines)


def validate(model: ModelVRT, dataset: Any) -> Validation:
    """Restore and score every clip of the test dataset. Collective."""
    rank, world = utils_dist.get_rank(), utils_dist.get_world_size()
    mine = Validation()
    for index in range(rank, len(dataset), world):
        utils_watchdog.phase(f"validate: clip {index}")
        clip = dataset[index]
        spike = clip["spike"][None] if "spike" in clip else None
        restored = model.test(clip["lq"][None], spike)[0]
        if model.opt["val"]["center_frame_only"]:
            middle = len(clip["lq"]) // 2
            clip = {key: value[middle : middle + 1] if key != "key" else value for key, value in clip.items()}
        _score(mine, clip, restored)
        if model.opt["val"]["save_img"]:
            _write_frames(model, clip, restored)
    whole = Validation()
    for part in utils_dist.gather_objects(mine):
        whole.blurry.update(part.blurry.frames)
        whole.restored.update(part.restored.frames)
        whole.pictures |= part.pictures if rank == 0 else {}
    return whole


def _score(validation: Validation, clip: dict[str, Any], restored: Tensor) -> None:
    gt, name = clip["gt"], clip["key"]
    # In super-resolution the input is scored at the size of the truth.
    lq = clip["lq"] if clip["lq"].shape == gt.shape else F.interpolate(clip["lq"], gt.shape[-2:], mode="bicubic")
    for scores, frames in ((validation.blurry, lq), (validation.restored, restored)):
        for frame, sharp in zip(tensor_to_uint8(frames), tensor_to_uint8(gt), strict=True):
            scores.add(name, {"psnr": psnr(frame, sharp), "ssim": ssim(frame, sharp)})
    middle = len(lq) // 2
    spike = clip["spike"][middle] if "spike" in clip else None
    validation.pictures[name] = comparison_strip(lq[middle], spike, restored[middle], gt[middle])


def _write_frames(model: ModelVRT, clip: dict[str, Any], restored: Tensor) -> None:
    """images/<clip>/<frame>.png. Each rank writes its own clips: to gather them would stop all ranks for long."""
    folder = Path(model.opt["path"]["task"]) / "images" / clip["key"]
    for stem, frame in zip(clip["frames"], tensor_to_uint8(restored), strict=True):
        imwrite_rgb(folder / f"{stem}.png", frame)
