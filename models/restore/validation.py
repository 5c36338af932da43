"""Validation on all ranks. Each clip is scored by one rank, so no number depends on how many ranks there are."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from models.model_vrt import ModelVRT
from models.restore.interpolate import restorer_of, scored_clips
from models.restore.restorer import Restorer
from models.restore.tiling import Tiling
from utils import utils_dist
from utils.contract import FrameReader, Tick, input_spec, middle_instant
from utils.dist import watchdog
from utils.image import comparison, imwrite_rgb
from utils.metrics import ClipScores, averages, psnr, ssim, tensor_to_uint8
from utils.run.logger import best_effort
from utils.run.progress import open_progress

METRICS = ("psnr", "ssim")
MAX_STRIPS = 12  # per validation: they are sent to rank 0

logger = logging.getLogger(__name__)


@dataclass
class Validation:
    """Scores of the blurry input and of the restored clips, the same on every rank.

    panels: clip -> `utils.image.comparison` of its middle frame; of at most MAX_STRIPS clips, on rank 0 only.
    """

    blurry: ClipScores = field(default_factory=ClipScores)
    restored: ClipScores = field(default_factory=ClipScores)
    panels: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def scalars(self) -> dict[str, float]:
        """Means over clips: val/psnr, val/ssim, and val/psnr_input, val/ssim_input of the blurry input."""
        clips = len(self.restored.frames)
        out, into = (averages(scores.sums(METRICS), clips) for scores in (self.restored, self.blurry))
        return {f"val/{m}": out[m] for m in METRICS} | {f"val/{m}_input": into[m] for m in METRICS}

    def clip_scalars(self) -> dict[str, float]:
        """clips/psnr/<clip> and clips/ssim/<clip> of the clips that have a picture; on rank 0 only."""
        means = self.restored.clip_means()
        return {f"clips/{metric}/{clip}": means[clip][metric] for metric in METRICS for clip in self.panels}

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


def validate(
    model: ModelVRT, clips: Sequence[FrameReader], should_stop: Callable[[], bool] = lambda: False
) -> Validation | None:
    """Restore and score every clip, one frame at a time. Collective.

    Memory holds one tile in time: the whole clip where val.num_frame_testing is 0.
    clips: of the test split, with sharp frames.
    should_stop: called by all ranks after each round of one clip per rank, except the last; must return the same on
    all ranks. True ends the validation without a result (None).
    """
    rank, world = utils_dist.get_rank(), utils_dist.get_world_size()
    clips = scored_clips(clips, input_spec(model.net_for_test))
    strips = clips_with_strips(len(clips))
    mine = Validation()
    # Only rank 0 writes into the folder of a run, and only frames of its own clips.
    out = model.opt.folder / "images" if model.opt.val.save_img and rank == 0 else None
    kind = model.opt.logging.progress
    with ExitStack() as stack, evaluated(model) as restorer:
        own = [clips[index] for index in range(rank, len(clips), world)]
        total = sum(len(restorer.tiling.frames_of(len(clip.stems))) for clip in own)
        logger.info("validating %d clips, %s", len(clips), restorer.describe())
        shown = stack.enter_context(open_progress(kind, total, "validation", "frames"))
        for first in range(0, len(clips), world):
            if first:
                # A collective to the watchdog: a rank that waits here for a slower one is not reported as stuck.
                with watchdog.collective("stop vote"):
                    if should_stop():
                        return None
            if first + rank < len(clips):
                index = first + rank
                watchdog.phase(f"validate: clip {index}")
                _validate_clip(mine, restorer, clips[index], index in strips, out, shown.update)
    return _bring_together(mine, clips, strips)


@contextmanager
def evaluated(model: ModelVRT) -> Iterator[Restorer]:
    """netE (or netG) with the tiles of `val`; the network is in eval mode inside the block."""
    net = model.net_for_test
    training, spec, test = net.training, input_spec(net), model.opt.datasets.test
    pad_seq = model.opt.val.pad_seq or getattr(test, "pad_sequence", False)
    tiling = Tiling.of(model.opt.val, spec, pad_seq=pad_seq)
    sigma = getattr(test, "sigma", None) if spec.noise_map else None
    dtype = str(model.amp_dtype or torch.float32).removeprefix("torch.")
    do = "lower val.size_patch_testing, val.num_frame_testing or val.batch_tiles (0: the whole clip at once)"
    try:
        # A frame with NaN must not end the training: its score is NaN, and never the best.
        yield restorer_of(
            net, spec, tiling, model.device, dtype=dtype, noise_sigma=sigma, finite_only=False, do=do
        )  # fmt: skip
    finally:
        net.train(training)


def clips_with_strips(count: int) -> list[int]:
    """Indices of the clips whose strips rank 0 writes: at most MAX_STRIPS, evenly spaced, always the same."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(MAX_STRIPS, count))})


def _validate_clip(
    validation: Validation, restorer: Restorer, clip: FrameReader, with_strip: bool, out: Path | None, tick: Tick
) -> None:  # fmt: skip
    """Scores of all frames, the strip of the middle one; restored frames to out/<clip>/<stem>.png."""
    cache, middle, nonfinite = restorer.cached(clip), len(clip.stems) // 2, 0
    wanted = restorer.tiling.frames_of(len(clip.stems))
    for index, frame in zip(wanted, restorer.frames(cache, wanted, tick), strict=True):
        watchdog.go_on()
        item = cache.frame(index)
        lq, gt = item["lq"], item["gt"]
        if lq.shape != gt.shape:  # super-resolution: the input is scored at the size of the sharp frame
            lq = F.interpolate(lq[None], gt.shape[-2:], mode="bicubic")[0]
        is_finite = bool(frame.isfinite().all())
        nonfinite += not is_finite
        frame = middle_instant(frame, restorer.tiling.out_instants)
        restored = tensor_to_uint8(frame)
        sharp, blurry = tensor_to_uint8(gt), tensor_to_uint8(lq)
        validation.blurry.add(clip.name, _scores(blurry, sharp))
        validation.restored.add(clip.name, _scores(restored, sharp) if is_finite else dict.fromkeys(METRICS, math.nan))
        if with_strip and index == middle:
            spikes = clip.spike_light(index, item["spike"]) if "spike" in item else None
            validation.panels[clip.name] = comparison(lq, spikes, frame, gt)
        if out is not None:
            with best_effort("restored frames"):
                imwrite_rgb(out / clip.name / f"{clip.stems[index]}.png", restored)
    if nonfinite:
        logger.warning("validation: NaN or Inf in %d restored frames of clip %s", nonfinite, clip.name)


def _scores(image: np.ndarray, sharp: np.ndarray) -> dict[str, float]:
    return {"psnr": psnr(image, sharp), "ssim": ssim(image, sharp)}


def _bring_together(mine: Validation, clips: Sequence[FrameReader], strips: list[int]) -> Validation:
    """The scores of all ranks, on every rank; the strips, sent one after the other, on rank 0. Collective."""
    world, whole = utils_dist.get_world_size(), Validation()
    for blurry, restored in utils_dist.gather_objects((mine.blurry.frames, mine.restored.frames)):
        whole.blurry.update(blurry)
        whole.restored.update(restored)
    for index in strips:
        name = clips[index].name
        panels = utils_dist.from_rank(index % world, mine.panels.get(name))
        if utils_dist.is_main_process():
            whole.panels[name] = panels
    return whole
