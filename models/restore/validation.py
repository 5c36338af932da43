"""Validation during training, on all ranks: restores the clips of the test split and scores them.

In: the model of a training, and the clips of the test split, from main_train_vrt.py. Out: a
`Validation`, for the log and for the choice of the best checkpoint. validated_clip.py restores and
scores a single clip.

A rank is one process of the training. "Collective" in a docstring: each rank waits for all other
ranks. So every rank must call the function, at the same point of the program.

Each clip is scored by one rank, so no score depends on the number of ranks. With n ranks, rank r
takes the clips r, r + n, r + 2 n, ... In a round each rank scores one clip. Between two rounds the
ranks vote whether a signal ends the validation. So every rank must take part in every round, also a
rank without a clip in the last round.

What must stay: the keys of `Validation.scalars`, because users' logs and the choice of the best
checkpoint use them. All ranks take part in all rounds, so that no rank waits forever
(test_one_rank_and_two_ranks_give_the_same_scores).
Free to change: which clips are shown, and the log line.

Tests: tests/dist/test_validate.py, tests/stories/test_main_train.py,
tests/parts/utils/test_results.py
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from models.ddp import unwrap_ddp
from models.model_vrt import ModelVRT
from models.restore.outputs import evenly_spaced
from models.restore.scores import collect, score_text
from models.restore.tiles.gaps import scored_clips
from models.restore.tiles.plan import Tiling
from models.restore.tiles.restorer import Restorer
from models.restore.validated_clip import ClipValidator
from utils import utils_dist
from utils.contract import ClipReader, input_spec, wanted_frames
from utils.dist import watchdog
from utils.run.progress import open_progress

logger = logging.getLogger(__name__)

# A validation shows panels of at most this many clips. Panels are sent to rank 0, so with a larger
# number each validation takes longer.
MAX_SHOWN_CLIPS = 12


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

    Memory holds val.num_frame_testing frames of a clip at a time, or the whole clip if this option
    is 0.

    Returns None if a signal ends the validation between two clips.
    """
    # netG is the network that is trained. netE has the moving average of the weights of netG, or is
    # None. Validate netE if there is one. The names and this choice are as in KAIR, the code base
    # whose option files this program reads.
    net = model.netE if model.netE is not None else unwrap_ddp(model.netG)
    was_training = net.training
    restorer = _restorer(model, net)  # sets the network to eval mode
    # A network that interpolates makes the frames between its input frames. So every second frame
    # is taken out of the input of each clip. The number and the order of the clips stay.
    clips = scored_clips(clips, restorer.tiling.spec)
    validator = ClipValidator(model, restorer)
    # Indices of the clips that are shown with panels. They are the same in every validation, so
    # that the panels of different steps can be compared.
    shown_indices = evenly_spaced(len(clips), MAX_SHOWN_CLIPS)
    try:
        own_results = _validate_clips_of_rank(model, validator, clips, shown_indices)
    finally:
        net.train(was_training)
    if own_results is None:
        return None

    # Every rank gets the scores of all ranks: the list of rank 0, then the list of rank 1, ...
    all_scores = []
    for scores_of_one_rank in utils_dist.gather_objects(own_results.scores):
        all_scores += scores_of_one_rank
    # `collect` sorts the clips, and returns {"clips": name -> scores, "averages": means}. If there
    # are fewer scores than clips, it marks the averages as incomplete. metric.mean, "clips" or
    # "frames", says whether the averages are means over clips or over frames.
    results = collect(all_scores, expected=len(clips), mean=model.opt.metric.mean)
    shown_panels = _gather_panels(clips, shown_indices, own_results.panels)
    metrics = [metric.name for metric in validator.metrics]
    scalars = _scalars(results, metrics, list(shown_panels))
    return Validation(scalars, score_text(results), shown_panels)


class _RankResults(NamedTuple):
    """What one rank has found."""

    scores: list[dict[str, Any]]  # one entry for each of its clips, see `ClipValidator.validate`
    panels: dict[int, dict[str, np.ndarray]]  # index of a clip -> its panels


def _validate_clips_of_rank(
    model: ModelVRT,
    validator: ClipValidator,
    clips: Sequence[ClipReader],
    shown_indices: Sequence[int],
) -> _RankResults | None:
    """Restore and score the clips of this rank. Collective.

    shown_indices: indices of the clips that are shown with panels.

    Returns None if a signal ends the validation.
    """
    rank = utils_dist.get_rank()
    world = utils_dist.get_world_size()  # number of ranks
    own_results = _RankResults(scores=[], panels={})
    frame_count = 0  # frames of this rank, for the progress bar
    for clip in clips[rank::world]:  # the clips of this rank: rank, rank + world, ...
        frame_count += len(wanted_frames(len(clip.stems), model.opt.val.center_frame_only))
    logger.info("validating %d clips, %s", len(clips), validator.restorer.describe())
    with open_progress(model.opt.logging.progress, frame_count, "validation", "frames") as bar:
        # In a round each rank scores one clip. E.g. 5 clips on 2 ranks:
        #
        #     round    first   rank 0   rank 1
        #     1        0       clip 0   clip 1
        #     2        2       clip 2   clip 3
        #     3        4       clip 4   no clip, but rank 1 votes, because rank 0 waits for its vote
        for first in range(0, len(clips), world):
            # The ranks vote between two rounds. There is no vote before the first round, so the
            # first round is computed even if a signal came before the validation.
            if first > 0 and _any_rank_stops():
                return None
            index = first + rank
            if index < len(clips):
                watchdog.phase(f"validate: clip {index}")
                is_shown = index in shown_indices
                scores, panels = validator.validate(clips[index], is_shown, bar.update)
                own_results.scores.append(scores)
                if panels:
                    own_results.panels[index] = panels
    return own_results


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
    # Repeat the last frame if val.pad_seq or datasets.test.pad_sequence is true. Some kinds of
    # datasets have no key `pad_sequence` or `sigma`, so `getattr` gets a default.
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
