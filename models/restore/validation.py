"""Validation during training, on all ranks: restores the clips of the test split and scores them.

Each clip is scored by one rank, so no number depends on how many ranks there are. Rank r takes the
clips r, r + world size, ... The ranks go through their clips in rounds. Between two rounds they
agree whether a signal ends the validation. So every rank must take part in every round, also a rank
without a clip in the last round.

Tests: tests/stories/test_main_train.py, tests/parts/utils/test_results.py
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from models.metrics import OF_VALIDATIONS, Scores, add_scores, chosen_metrics
from models.model_vrt import ModelVRT, unwrap_ddp
from models.restore.outputs import evenly_spaced
from models.restore.scores import collect, score_text
from models.restore.tiling import Restorer, Tiling, scored_clips
from utils import utils_dist
from utils.contract import ClipReader, Tick, input_spec, middle_instant, wanted_frames
from utils.dist import watchdog
from utils.image import comparison, imwrite_rgb, scored_values, tensor_to_uint8
from utils.logger import best_effort
from utils.run.progress import open_progress

# Number of clips whose pictures a validation shows. They are sent to rank 0, which takes time.
MAX_STRIPS = 12

logger = logging.getLogger(__name__)


class Validation(NamedTuple):
    """The scores of all clips, on every rank, and images of some clips, on rank 0.

    scalars: val/psnr, val/ssim and the metrics of `metric.more`, as averages of the restored
    frames, and val/psnr_input etc. of the blurry input. On rank 0 also clips/psnr/<clip> etc. of
    the clips in `panels`.
    table: see `score_text`.
    panels: clip -> `utils.image.comparison` of its middle frame, for at most MAX_STRIPS clips.
    """

    scalars: dict[str, float]
    table: str
    panels: dict[str, dict[str, np.ndarray]]


def validate(model: ModelVRT, clips: Sequence[ClipReader]) -> Validation | None:
    """Restore and score every clip, one frame at a time. Collective.

    clips: the clips of the test split, with sharp frames.

    Returns None if a signal ends the validation between two clips. Memory holds one tile in time,
    or with val.num_frame_testing 0 the whole clip.
    """
    rank = utils_dist.get_rank()
    world = utils_dist.get_world_size()
    val = model.opt.val
    # Validate the averaged weights if there are any, as in KAIR.
    net = model.netE if model.netE is not None else unwrap_ddp(model.netG)
    was_training = net.training
    restorer = _restorer(model, net)
    clips = scored_clips(clips, restorer.tiling.spec)
    scorer = _Scorer(model, restorer)
    # Indices of the clips whose pictures are shown: evenly evenly_spaced, always the same.
    strips = evenly_spaced(len(clips), MAX_STRIPS)

    mine = []  # the scores of the clips of this rank
    panels = {}  # index of a clip -> its images
    with ExitStack() as stack:
        stack.callback(net.train, was_training)  # the restorer has set it to eval mode
        total = 0  # frames of this rank, for the progress bar
        for clip in clips[rank::world]:
            total += len(wanted_frames(len(clip.stems), val.center_frame_only))
        logger.info("validating %d clips, %s", len(clips), restorer.describe())
        bar = open_progress(model.opt.logging.progress, total, "validation", "frames")
        shown = stack.enter_context(bar)
        # In a round each rank scores one clip. In the last round some ranks may have no clip, but
        # they must vote before it like the others, or the others would wait for them.
        for first in range(0, len(clips), world):
            if first > 0 and _any_rank_stops():
                return None
            index = first + rank
            if index < len(clips):
                watchdog.phase(f"validate: clip {index}")
                with_strip = index in strips
                scores, images = scorer.score_clip(clips[index], with_strip, shown.update)
                mine.append(scores)
                if images:
                    panels[index] = images

    scored = []
    for scores_of_rank in utils_dist.gather_objects(mine):
        scored += scores_of_rank
    results = collect(scored, len(clips), model.opt.metric.mean)
    # The pictures are sent one clip after the other, and only rank 0 keeps them. Every rank must
    # take part in each sending.
    shown_panels = {}
    for index in strips:
        images = utils_dist.from_rank(index % world, panels.get(index))
        if utils_dist.is_main_process():
            shown_panels[clips[index].name] = images
    scalars = _scalars(results, [metric.name for metric in scorer.metrics], list(shown_panels))
    return Validation(scalars, score_text(results), shown_panels)


def _restorer(model: ModelVRT, net: nn.Module) -> Restorer:
    """Return a Restorer of the network `net` with the tiles of the section `val`."""
    val = model.opt.val
    test = model.opt.datasets.test
    spec = input_spec(net)
    pad_seq = val.pad_seq or getattr(test, "pad_sequence", False)
    return Restorer(
        net,
        Tiling.of(val, spec, pad_seq=pad_seq),
        model.device,
        dtype=model.amp_dtype,
        # A frame with NaN must not end the training: its score is NaN, and never the best.
        finite_only=False,
        noise_sigma=getattr(test, "sigma", None) if spec.noise_map else None,
        do="lower val.size_patch_testing, val.num_frame_testing or val.batch_tiles (0: the whole "
        "clip at once)",
    )


def _any_rank_stops() -> bool:
    """Return True on all ranks if one of them has received a signal to stop. Collective."""
    # The watchdog is told that this rank waits for other ranks. So a rank that waits for a slower
    # rank is not reported as stuck.
    with watchdog.collective("stop vote"):
        is_stop = utils_dist.stop_vote()
        return is_stop()


def _scalars(
    results: dict[str, Any], metrics: Sequence[str], shown_clips: Sequence[str]
) -> dict[str, float]:
    """Return the values for the writers, see `Validation`."""
    means = results["averages"]
    scalars: dict[str, float] = {}
    for metric in metrics:
        scalars[f"val/{metric}"] = means["restored"][metric]
    for metric in metrics:
        scalars[f"val/{metric}_input"] = means["input"][metric]
    for metric in metrics:
        for clip in shown_clips:
            scalars[f"clips/{metric}/{clip}"] = results["clips"][clip]["restored"][metric]
    return scalars


class _Scorer:
    """Restores a clip, scores its frames, and writes them if `val.save_img` asks for it."""

    def __init__(self, model: ModelVRT, restorer: Restorer) -> None:
        self.restorer = restorer
        self.values = model.opt.metric.values
        self.metrics = chosen_metrics(OF_VALIDATIONS, model.opt.metric.more)
        # Only rank 0 writes into the folder of a run, and only frames of its own clips.
        is_writing = model.opt.val.save_img and utils_dist.is_main_process()
        self.out = model.opt.folder / "images" if is_writing else None

    def score_clip(
        self, clip: ClipReader, with_strip: bool, tick: Tick
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the scores of all frames, for `collect`, and panels.

        The panels show the middle frame. They are empty without `with_strip`.
        """
        restorer = self.restorer
        cache = restorer.cached(clip)
        wanted = wanted_frames(len(clip.stems), restorer.tiling.center_frame_only)
        nonfinite = 0
        scores: Scores = {}
        panels = {}
        for index, frame in zip(wanted, restorer.frames(cache, wanted, tick), strict=True):
            watchdog.go_on()
            item = cache.frame(index)
            lq = item["lq"]
            gt = item["gt"]
            if lq.shape != gt.shape:
                # Super-resolution: the input is scored at the size of the sharp frame.
                lq = torch.nn.functional.interpolate(lq[None], gt.shape[-2:], mode="bicubic")[0]
            is_finite = bool(frame.isfinite().all())
            if not is_finite:
                nonfinite += 1
            frame = middle_instant(frame, restorer.tiling.spec.out_instants)
            self._add_scores(scores, frame if is_finite else None, lq, gt)
            if with_strip and index == len(clip.stems) // 2:
                spikes = clip.spike_light(index, item["spike"]) if "spike" in item else None
                panels = comparison(
                    tensor_to_uint8(lq[:3]), spikes, tensor_to_uint8(frame), tensor_to_uint8(gt)
                )
            if self.out is not None:
                with best_effort("restored frames"):
                    path = self.out / clip.name / f"{clip.stems[index]}.png"
                    imwrite_rgb(path, tensor_to_uint8(frame))
        if nonfinite:
            logger.warning(
                "validation: NaN or Inf in %d restored frames of clip %s", nonfinite, clip.name
            )
        return {"name": clip.name, "frames": len(wanted), "per_frame": scores}, panels

    def _add_scores(
        self, scores: Scores, frame: torch.Tensor | None, lq: torch.Tensor, gt: torch.Tensor
    ) -> None:
        """Append the scores of a restored frame and of its input to `scores`.

        frame: None if it has NaN or Inf. Its scores are then NaN.
        """
        truth = scored_values(gt, self.values)
        restored = None if frame is None else scored_values(frame, self.values)
        add_scores(scores, "restored", restored, truth, self.metrics)
        add_scores(scores, "input", scored_values(lq[:3], self.values), truth, self.metrics)
