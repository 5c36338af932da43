"""Restore one clip in a validation, score its frames, and show its middle frame.

validation.py passes a `Restorer` with the network of a training, and a clip with sharp frames.
validation.py gets back the scores of each frame, and panels (pictures side by side) of the middle
frame. With the option val.save_img, the frames are written.

What must stay: a frame with NaN must not end the training. Its score is NaN, and NaN is never the
best. Free to change: what the panels show.

Tests: tests/dist/test_validate.py, tests/stories/test_main_train.py
"""

import logging
from typing import Any

import numpy as np
import torch

from models.metrics import METRICS_OF_VALIDATIONS, Scores, add_scores, choose_metrics
from models.model_vrt import ModelVRT
from models.restore.tiles.restorer import Restorer
from utils import utils_dist
from utils.contract import ClipReader, Tick, middle_instant, wanted_frames
from utils.dist import watchdog
from utils.image import comparison, imwrite_rgb, scored_values, tensor_to_uint8
from utils.logger import best_effort

logger = logging.getLogger(__name__)


class ClipValidator:
    """Restores a clip, scores its frames, and writes them if `val.save_img` is true."""

    def __init__(self, model: ModelVRT, restorer: Restorer) -> None:
        self.restorer = restorer
        # How values are clamped and rounded before they are scored: the option metric.values.
        self.number_format = model.opt.metric.values
        # psnr and ssim, and the metrics that the user adds.
        self.metrics = choose_metrics(METRICS_OF_VALIDATIONS, model.opt.metric.more)
        # Only rank 0 writes into the folder of a run, and only frames of its own clips.
        is_writing = model.opt.val.save_img and utils_dist.is_main_process()
        self.out = model.opt.folder / "images" if is_writing else None

    def validate(
        self, clip: ClipReader, is_shown: bool, tick: Tick
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the scores of a clip, as `collect` takes them, and the panels of its middle frame.

        The scores are {"name": name of the clip, "frames": number of frames, "per_frame": Scores}.
        A panel is a picture, e.g. of the blurry frame. The panels of a frame stand side by side.

        is_shown: whether panels are made. If not, the panels are {}.
        tick: function that gets the number of frames that were restored since its last call.
        """
        restorer = self.restorer
        # `restorer.frames` and the loop below both need the input frames. The cache keeps the
        # frames of the last tile, so that each frame is read once.
        cache = restorer.with_cache(clip)
        indices = wanted_frames(len(clip.stems), restorer.tiling.center_frame_only)
        nonfinite_count = 0
        scores: Scores = {}
        panels = {}
        # A generator: each round of the loop gets one frame, (3 K, H, W), with the colours of all
        # its K instants.
        restored_frames = restorer.frames(cache, indices, tick)
        for index, instants in zip(indices, restored_frames, strict=True):
            watchdog.go_on()  # tells the watchdog that this rank still works
            item = cache.frame(index)  # {"lq": ..., "gt": ...}, and "spike" if the clip has spikes
            gt = item["gt"]  # the sharp frame, (3, H, W)
            lq = _in_size_of(item["lq"], gt)  # the blurry frame, perhaps with a noise map
            # The network restores K instants of the exposure, usually 1. The middle instant is the
            # instant of gt.
            frame = middle_instant(instants, restorer.tiling.spec.out_instants)  # (3, H, W)
            if instants.isfinite().all():
                self._add_scores(scores, frame, lq, gt)
            else:
                nonfinite_count += 1
                self._add_scores(scores, None, lq, gt)  # the scores of the frame are NaN
            # `wanted_frames` takes the same middle for center_frame_only. With another middle, the
            # only restored frame would not be shown.
            is_middle_of_clip = index == len(clip.stems) // 2
            if is_shown and is_middle_of_clip:
                panels = _panels_of(clip, index, item, lq, frame)
            self._write_frame(clip, index, frame)
        if nonfinite_count:
            logger.warning(
                "validation: NaN or Inf in %d restored frames of clip %s",
                nonfinite_count,
                clip.name,
            )
        return {"name": clip.name, "frames": len(indices), "per_frame": scores}, panels

    def _write_frame(self, clip: ClipReader, index: int, frame: torch.Tensor) -> None:
        """Write a restored frame (3, H, W) to images/<clip>/<stem>.png, if this rank writes."""
        if self.out is None:
            return
        # If the disk is full, `best_effort` warns, and the training goes on without this frame.
        with best_effort("restored frames"):
            path = self.out / clip.name / f"{clip.stems[index]}.png"
            imwrite_rgb(path, tensor_to_uint8(frame))

    def _add_scores(
        self, scores: Scores, frame: torch.Tensor | None, lq: torch.Tensor, gt: torch.Tensor
    ) -> None:
        """Append the scores of a restored frame and of its input to `scores`.

        frame: the restored frame, or None if it has NaN or Inf, so that its scores are NaN.
        lq: the blurry frame. gt: the sharp frame. All three have the same height and width.
        """
        sharp = scored_values(gt, self.number_format)
        restored = None if frame is None else scored_values(frame, self.number_format)
        blurry = scored_values(lq[:3], self.number_format)  # without a noise map
        add_scores(scores, "restored", restored, sharp, self.metrics)
        add_scores(scores, "input", blurry, sharp, self.metrics)


def _in_size_of(lq: torch.Tensor, gt: torch.Tensor) -> torch.Tensor:
    """Return a blurry frame (C, h, w) in the height and width of the sharp frame (3, H, W).

    Only in super-resolution, the blurry frame is smaller. In this case it is enlarged, so that it
    can be scored, too.
    """
    size = gt.shape[-2:]
    if lq.shape[-2:] == size:
        return lq
    return torch.nn.functional.interpolate(lq[None], size, mode="bicubic")[0]


def _panels_of(
    clip: ClipReader, index: int, item: dict[str, Any], lq: torch.Tensor, frame: torch.Tensor
) -> dict[str, np.ndarray]:
    """Return the panels of a frame: title -> (H, W, 3) uint8, e.g. "blurry", "restored", "sharp".

    index: index of the frame in the clip.
    item: the tensors of the frame: "lq", "gt", and "spike" if there are spikes.
    lq: the blurry frame, in the size of the sharp frame.
    frame: the restored frame.
    """
    # The brightness that the spikes show, as a picture. lq[:3] is lq without the noise map.
    spikes = clip.spike_light(index, item["spike"]) if "spike" in item else None
    return comparison(
        tensor_to_uint8(lq[:3]), spikes, tensor_to_uint8(frame), tensor_to_uint8(item["gt"])
    )
