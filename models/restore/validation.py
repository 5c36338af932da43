"""Validation on all ranks.

Each clip is scored by one rank, so no number depends on how many ranks there are.
"""

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from models.model_vrt import ModelVRT, unwrap_ddp
from models.restore.outputs import spaced
from models.restore.tiling import Restorer, Tiling, scored_clips
from utils import utils_dist
from utils.contract import FrameReader, Tick, input_spec, middle_instant, wanted_frames
from utils.dist import watchdog
from utils.image import comparison, imwrite_rgb, scored_values, tensor_to_uint8
from utils.logger import best_effort
from utils.metrics import Scores, add_scores, collect, score_text
from utils.run.progress import open_progress

METRICS = ("psnr", "ssim")
MAX_STRIPS = 12  # per validation: they are sent to rank 0

logger = logging.getLogger(__name__)


class Validation(NamedTuple):
    """The scores of all clips, on every rank, and images of some, on rank 0.

    scalars: means over what metric.mean says, val/psnr, val/ssim, and val/psnr_input,
    val/ssim_input of the blurry input; on rank 0 also clips/psnr/<clip> and clips/ssim/<clip> of
    the clips in `panels`. table: see `score_text`.
    panels: clip -> `utils.image.comparison` of its middle frame; of at most MAX_STRIPS clips.
    """

    scalars: dict[str, float]
    table: str
    panels: dict[str, dict[str, np.ndarray]]


def validate(model: ModelVRT, clips: list[FrameReader]) -> Validation | None:
    """Restore and score every clip, one frame at a time; None where a signal ends it between two
    clips. Collective.

    Memory holds one tile in time: the whole clip where val.num_frame_testing is 0.
    clips: of the test split, with sharp frames.
    """
    rank, world = utils_dist.get_rank(), utils_dist.get_world_size()
    val, test = model.opt.val, model.opt.datasets.test
    net = model.netE if model.netE is not None else unwrap_ddp(model.netG)  # as in KAIR
    training, spec = net.training, input_spec(net)
    clips = scored_clips(clips, spec)
    # The clips whose strips rank 0 writes: evenly spaced, always the same.
    strips = spaced(len(clips), MAX_STRIPS)
    mine, panels = [], {}
    # Only rank 0 writes into the folder of a run, and only frames of its own clips.
    out = model.opt.folder / "images" if val.save_img and rank == 0 else None
    # A frame with NaN must not end the training: its score is NaN, and never the best.
    restorer = Restorer(
        net, Tiling.of(val, spec, pad_seq=val.pad_seq or getattr(test, "pad_sequence", False)), model.device,
        dtype=model.amp_dtype, finite_only=False,
        noise_sigma=getattr(test, "sigma", None) if spec.noise_map else None,
        do="lower val.size_patch_testing, val.num_frame_testing or val.batch_tiles (0: the whole clip at once)",
    )  # fmt: skip
    with ExitStack() as stack:
        stack.callback(net.train, training)
        total = sum(
            len(wanted_frames(len(clip.stems), val.center_frame_only))
            for clip in clips[rank::world]
        )
        logger.info("validating %d clips, %s", len(clips), restorer.describe())
        shown = stack.enter_context(
            open_progress(model.opt.logging.progress, total, "validation", "frames")
        )
        for first in range(0, len(clips), world):
            if first:
                # A collective to the watchdog: a rank that waits here for a slower one is not
                # reported as stuck.
                with watchdog.collective("stop vote"):
                    is_stop = utils_dist.stop_vote()
                    if is_stop():
                        return None
            if (index := first + rank) < len(clips):
                watchdog.phase(f"validate: clip {index}")
                scores, images = _validate_clip(
                    restorer,
                    clips[index],
                    index in strips,
                    out,
                    shown.update,
                    model.opt.metric.values,
                )
                mine.append(scores)
                panels |= {index: images} if images else {}
    scored = [scores for of_rank in utils_dist.gather_objects(mine) for scores in of_rank]
    results = collect(scored, len(clips), model.opt.metric.mean)
    shown_panels = {}
    for index in strips:  # sent one after the other, and kept on rank 0 alone
        images = utils_dist.from_rank(index % world, panels.get(index))
        if utils_dist.is_main_process():
            shown_panels[clips[index].name] = images
    means, table = results["averages"], results["clips"]
    scalars = {f"val/{m}": means["restored"][m] for m in METRICS} | {
        f"val/{m}_input": means["input"][m] for m in METRICS
    }
    scalars |= {
        f"clips/{m}/{clip}": table[clip]["restored"][m] for m in METRICS for clip in shown_panels
    }
    return Validation(scalars, score_text(results), shown_panels)


def _validate_clip(
    restorer: Restorer,
    clip: FrameReader,
    with_strip: bool,
    out: Path | None,
    tick: Tick,
    values: str,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The scores of all frames, for `collect`, and the panels of the middle one with `with_strip`,
    else {}.

    out: the restored frames go to out/<clip>/<stem>.png. values: see `scored_values`.
    """
    cache, nonfinite = restorer.cached(clip), 0
    wanted = wanted_frames(len(clip.stems), restorer.tiling.center_frame_only)
    scores: Scores = {}
    panels = {}
    for index, frame in zip(wanted, restorer.frames(cache, wanted, tick), strict=True):
        watchdog.go_on()
        item = cache.frame(index)
        lq, gt = item["lq"], item["gt"]
        if (
            lq.shape != gt.shape
        ):  # super-resolution: the input is scored at the size of the sharp frame
            lq = torch.nn.functional.interpolate(lq[None], gt.shape[-2:], mode="bicubic")[0]
        is_finite = bool(frame.isfinite().all())
        nonfinite += not is_finite
        frame = middle_instant(frame, restorer.tiling.spec.out_instants)
        truth = scored_values(gt, values)
        add_scores(
            scores, "restored", scored_values(frame, values) if is_finite else None, truth, METRICS
        )
        add_scores(scores, "input", scored_values(lq[:3], values), truth, METRICS)
        if with_strip and index == len(clip.stems) // 2:
            spikes = clip.spike_light(index, item["spike"]) if "spike" in item else None
            panels = comparison(
                tensor_to_uint8(lq[:3]), spikes, tensor_to_uint8(frame), tensor_to_uint8(gt)
            )
        if out is not None:
            with best_effort("restored frames"):
                imwrite_rgb(out / clip.name / f"{clip.stems[index]}.png", tensor_to_uint8(frame))
    if nonfinite:
        logger.warning(
            "validation: NaN or Inf in %d restored frames of clip %s", nonfinite, clip.name
        )
    return {"name": clip.name, "frames": len(wanted), "per_frame": scores}, panels
