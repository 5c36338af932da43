"""Validation during training, on all ranks: restores the clips of the test split and scores them.

A rank is one process of the training. "Collective" in a docstring: every rank must call this at the
same point of the program, because the ranks wait for each other.

Each clip is scored by one rank, so no number depends on how many ranks there are. Rank r takes the
clips r, r + world size, ... The ranks go through their clips in rounds. Between two rounds they
agree whether a signal ends the validation. So every rank must take part in every round, also a rank
without a clip in the last round.

What must stay: the keys of `Validation.scalars`, because users' logs and the choice of the best
checkpoint use them. All ranks take part in all rounds, so that none waits for ever
(test_one_rank_and_two_ranks_give_the_same_scores).
Free to change: which clips are shown, and the log line.

Tests: tests/dist/test_validate.py, tests/stories/test_main_train.py,
tests/parts/utils/test_results.py
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from models.ddp import unwrap_ddp
from models.metrics import METRICS_OF_VALIDATIONS, Scores, add_scores, choose_metrics
from models.model_vrt import ModelVRT
from models.restore.outputs import evenly_spaced
from models.restore.scores import collect, score_text
from models.restore.tiles.gaps import scored_clips
from models.restore.tiles.plan import Tiling
from models.restore.tiles.restorer import Restorer
from utils import utils_dist
from utils.contract import ClipReader, Tick, input_spec, middle_instant, wanted_frames
from utils.dist import watchdog
from utils.image import comparison, imwrite_rgb, scored_values, tensor_to_uint8
from utils.logger import best_effort
from utils.run.progress import open_progress

# A validation shows panels of at most this many clips. Panels are sent to rank 0, so with a larger
# number each validation takes longer.
MAX_SHOWN_CLIPS = 12

logger = logging.getLogger(__name__)


class Validation(NamedTuple):
    """The scores of all clips, on every rank, and panels of some clips, on rank 0.

    scalars: name -> average. "val/psnr", "val/ssim" and each metric of `metric.more` for the
    restored frames; "val/psnr_input" and so on for the blurry input. On rank 0 also
    "clips/psnr/<clip>" and so on for each clip in `panels`.
    table: the scores as text: a row for each clip, and the means.
    panels: name of a clip -> its panels, for at most MAX_SHOWN_CLIPS clips. The panels of a clip
    show its middle frame: title -> (H, W, 3) uint8, e.g. {"blurry": ..., "restored": ...,
    "sharp": ...}, as `utils.image.comparison` makes them.
    """

    scalars: dict[str, float]
    table: str
    panels: dict[str, dict[str, np.ndarray]]


def validate(model: ModelVRT, clips: Sequence[ClipReader]) -> Validation | None:
    """Restore and score every clip, one frame at a time. Collective.

    clips: the clips of the test split, with sharp frames.

    Returns None if a signal ends the validation between two clips. Memory holds
    val.num_frame_testing frames of a clip, or all its frames if this option is 0.
    """
    rank = utils_dist.get_rank()
    world = utils_dist.get_world_size()  # number of ranks
    val = model.opt.val
    # netG is the network that is trained. netE has the moving average of its weights, or is None.
    # The averaged weights are validated if there are any. The names and this choice are the same as
    # in KAIR, the code base whose option files this program reads.
    net = model.netE if model.netE is not None else unwrap_ddp(model.netG)
    was_training = net.training
    restorer = _restorer(model, net)
    # A network that interpolates makes the frames between its input frames. Then these frames are
    # taken out of the input of each clip. The number and the order of the clips stay.
    clips = scored_clips(clips, restorer.tiling.spec)
    scorer = _Scorer(model, restorer)
    # Indices of the clips that are shown with panels. They are the same in every validation, so
    # that the panels of different steps can be compared.
    shown_indices = evenly_spaced(len(clips), MAX_SHOWN_CLIPS)

    scores_of_rank = []  # one entry for each clip of this rank, see `_Scorer.score_clip`
    panels_of_rank = {}  # index of a clip -> its panels
    with ExitStack() as stack:
        # The restorer has set the network to eval mode. At the end, set its former mode.
        stack.callback(net.train, was_training)
        frame_count = 0  # frames of this rank, for the progress bar
        for clip in clips[rank::world]:  # the clips of this rank: rank, rank + world, ...
            frame_count += len(wanted_frames(len(clip.stems), val.center_frame_only))
        logger.info("validating %d clips, %s", len(clips), restorer.describe())
        progress = open_progress(model.opt.logging.progress, frame_count, "validation", "frames")
        bar = stack.enter_context(progress)
        # In a round each rank scores one clip. E.g. 5 clips on 2 ranks:
        #
        #     round    first   rank 0   rank 1
        #     1        0       clip 0   clip 1
        #     2        2       clip 2   clip 3
        #     3        4       clip 4   no clip, but rank 1 votes, because rank 0 waits for its vote
        for first in range(0, len(clips), world):
            # The ranks vote between two rounds, so a signal ends the validation after one round at
            # the latest. There is no vote before the first round: the validation has just begun, so
            # a signal that came before waits for one round, like any other.
            if first > 0 and _any_rank_stops():
                return None
            index = first + rank
            if index < len(clips):
                watchdog.phase(f"validate: clip {index}")
                is_shown = index in shown_indices
                scores, panels = scorer.score_clip(clips[index], is_shown, bar.update)
                scores_of_rank.append(scores)
                if panels:
                    panels_of_rank[index] = panels

    # Every rank gets the scores of all ranks: the list of rank 0, then the list of rank 1, ...
    all_scores = []
    for scores_of_one_rank in utils_dist.gather_objects(scores_of_rank):
        all_scores += scores_of_one_rank
    # `collect` sorts the clips, and returns {"clips": name -> scores, "averages": means}. It notes
    # if there are fewer scores than clips. metric.mean says over what the averages are: "clips" or
    # "frames".
    results = collect(all_scores, expected=len(clips), mean=model.opt.metric.mean)
    shown_panels = _gather_panels(clips, shown_indices, panels_of_rank)
    metrics = [metric.name for metric in scorer.metrics]
    scalars = _scalars(results, metrics, list(shown_panels))
    return Validation(scalars, score_text(results), shown_panels)


def _gather_panels(
    clips: Sequence[ClipReader],
    shown_indices: Sequence[int],
    panels_of_rank: dict[int, dict[str, np.ndarray]],
) -> dict[str, dict[str, np.ndarray]]:
    """Return the panels of all shown clips on rank 0, and {} on the other ranks. Collective.

    shown_indices: indices of the clips that are shown, the same on every rank.
    panels_of_rank: index of a clip -> its panels, for the clips that this rank has scored.
    """
    world = utils_dist.get_world_size()
    shown_panels = {}
    # Panels are sent one clip after the other, and only rank 0 keeps them. `from_rank` is
    # collective, so every rank calls it for each clip. A rank that has not scored the clip gives
    # None, which is not sent.
    for index in shown_indices:
        rank_of_clip = index % world
        panels = utils_dist.from_rank(rank_of_clip, panels_of_rank.get(index))
        if utils_dist.is_main_process():
            shown_panels[clips[index].name] = panels
    return shown_panels


def _restorer(model: ModelVRT, net: nn.Module) -> Restorer:
    """Return a Restorer of the network `net` with the tiles of the section `val`."""
    val = model.opt.val
    test = model.opt.datasets.test
    spec = input_spec(net)
    # The last frame is repeated if the section `val` or the section `datasets.test` asks for it.
    # `pad_sequence` is KAIR's name of `pad_seq`. getattr with a default, because each kind of
    # dataset has its own options: some have no key `pad_sequence`, and some have no key `sigma`.
    pad_seq = val.pad_seq or getattr(test, "pad_sequence", False)
    # The noise level of the test clips, for a denoiser that gets a map of the noise as input. Other
    # networks get None.
    noise_sigma = getattr(test, "sigma", None) if spec.noise_map else None
    return Restorer(
        net,
        # The tiles into which a clip is cut, by the options `val` and by the sizes that the network
        # takes.
        Tiling.of(val, spec, pad_seq=pad_seq),
        model.device,
        dtype=model.amp_dtype,
        # A frame with NaN must not end the training. Its score is NaN, and NaN is never the best.
        finite_only=False,
        noise_sigma=noise_sigma,
        # The advice of the error if the memory of the GPU runs out.
        do="lower val.size_patch_testing, val.num_frame_testing or val.batch_tiles (0: the whole "
        "clip at once)",
    )


def _any_rank_stops() -> bool:
    """Return on all ranks whether any rank has received a signal to stop. Collective."""
    # Tell the watchdog that this rank waits for other ranks. Otherwise it would report this rank as
    # stuck while a slower rank still works.
    with watchdog.collective("stop vote"):
        # `stop_vote` starts the vote, and returns a function that waits for the votes of all ranks.
        wait_for_result = utils_dist.stop_vote()
        return wait_for_result()


def _scalars(
    results: dict[str, Any], metrics: Sequence[str], shown_clips: Sequence[str]
) -> dict[str, float]:
    """Return the values for the writers: the field `scalars` of `Validation`."""
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
        # The number format in which frames are scored, the option metric.values. E.g. "uint8":
        # they are rounded to 8 bits.
        self.number_format = model.opt.metric.values
        # psnr and ssim, and the metrics that the user adds.
        self.metrics = choose_metrics(METRICS_OF_VALIDATIONS, model.opt.metric.more)
        # Only rank 0 writes into the folder of a run, and only frames of its own clips.
        is_writing = model.opt.val.save_img and utils_dist.is_main_process()
        self.out = model.opt.folder / "images" if is_writing else None

    def score_clip(
        self, clip: ClipReader, is_shown: bool, tick: Tick
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the scores of a clip, as `collect` takes them, and the panels of its middle frame.

        The scores are {"name": name of the clip, "frames": number of frames, "per_frame": Scores}.

        is_shown: whether panels are made. If not, the panels are {}.
        tick: function that is called after each piece of work, to show progress.
        """
        restorer = self.restorer
        # Both `restorer.frames` and this method need the input frames. The cache is a reader of the
        # clip that keeps the frames of the last tile, so that each frame is read once.
        cache = restorer.with_cache(clip)
        indices = wanted_frames(len(clip.stems), restorer.tiling.center_frame_only)
        nonfinite_count = 0
        scores: Scores = {}
        panels = {}
        restored_frames = restorer.frames(cache, indices, tick)  # one at a time
        for index, frame in zip(indices, restored_frames, strict=True):
            watchdog.go_on()  # tells the watchdog that this rank still works
            item = cache.frame(index)  # {"lq": ..., "gt": ...}, and "spike" if the clip has spikes
            lq = item["lq"]  # the blurry frame, (3, H, W), or (4, H, W) with a noise map
            gt = item["gt"]  # the sharp frame
            size = gt.shape[-2:]  # height and width
            if lq.shape[-2:] != size:
                # Super-resolution: the input is scored at the size of the sharp frame.
                lq = torch.nn.functional.interpolate(lq[None], size, mode="bicubic")[0]
            is_finite = bool(frame.isfinite().all())
            if not is_finite:
                nonfinite_count += 1
            # A network with several instants returns a sharp frame for each instant of the
            # exposure. The middle one is compared with gt.
            frame = middle_instant(frame, restorer.tiling.spec.out_instants)
            # For None in place of a frame, all scores are NaN.
            scored_frame = frame if is_finite else None
            self._add_scores(scores, scored_frame, lq, gt)
            is_middle = index == len(clip.stems) // 2
            if is_shown and is_middle:
                # The light that the spikes show, as a picture. lq[:3] is lq without the noise map.
                spikes = clip.spike_light(index, item["spike"]) if "spike" in item else None
                panels = comparison(
                    tensor_to_uint8(lq[:3]), spikes, tensor_to_uint8(frame), tensor_to_uint8(gt)
                )
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
        # A full disk must not end the training. Then the frame is not written.
        with best_effort("restored frames"):
            path = self.out / clip.name / f"{clip.stems[index]}.png"
            imwrite_rgb(path, tensor_to_uint8(frame))

    def _add_scores(
        self, scores: Scores, frame: torch.Tensor | None, lq: torch.Tensor, gt: torch.Tensor
    ) -> None:
        """Append the scores of a restored frame and of its input to `scores`.

        frame: the restored frame, or None if it has NaN or Inf. Then its scores are NaN.
        """
        sharp = scored_values(gt, self.number_format)
        restored = None if frame is None else scored_values(frame, self.number_format)
        blurry = scored_values(lq[:3], self.number_format)  # without a noise map
        add_scores(scores, "restored", restored, sharp, self.metrics)
        add_scores(scores, "input", blurry, sharp, self.metrics)
