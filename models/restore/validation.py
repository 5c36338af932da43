"""Validate during a training: restore the clips of the test split on all ranks, and score them.

`validate` takes the model of a training and the clips of the test split, from main_train_vrt.py. It
returns a `Validation`, for the log and for the choice of the best checkpoint. validated_clip.py
restores and scores a single clip.

A rank is one process of the training. "Collective" in a docstring means that the ranks wait for
each other in this function, so every rank must call it at the same point of the program.

The ranks share the clips: of n ranks, rank r scores the clips r, r + n, r + 2 n, ... The ranks work
in rounds, and each rank scores one clip in a round. E.g. with 2 ranks, rank 1 scores the clips 1,
3, 5, ... Between two rounds the ranks vote whether to stop, because a signal may have asked one of
them to end the run.

What must stay: the keys of `Validation.scalars`, because users' logs and the choice of the best
checkpoint use them. A clip is scored as a whole by one rank, so its scores do not depend on the
number of ranks (test_one_rank_and_two_ranks_give_the_same_scores). All ranks take part in every
vote, also a rank without a clip in the last round. The other ranks would wait for a rank that does
not vote. Free to change: which clips are shown, and the log line.

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
from utils.words import counted

logger = logging.getLogger(__name__)

# A validation shows panels of at most MAX_SHOWN_CLIPS clips. Panels are sent to rank 0, so with a
# larger number each validation takes longer. 12 was chosen by hand.
MAX_SHOWN_CLIPS = 12


class Validation(NamedTuple):
    """The scores of all clips, on every rank, and panels of some clips, on rank 0.

    scalars: name -> average, for each metric, e.g. psnr:

            val/psnr             the restored frames
            val/psnr_input       the blurry input
            clips/psnr/<clip>    the restored frames of one clip, for each clip in `panels` (rank 0)

    table: the scores as text: a row for each clip, and the means.
    panels: name of a clip -> its panels, for at most MAX_SHOWN_CLIPS clips. The panels of a clip
        show its middle frame: title -> (H, W, 3) uint8, e.g. {"blurry": ..., "restored": ...,
        "sharp": ...}, as `utils.image.comparison` makes them.
    """

    scalars: dict[str, float]
    table: str
    panels: dict[str, dict[str, np.ndarray]]


def validate(model: ModelVRT, clips: Sequence[ClipReader]) -> Validation | None:
    """Restore and score every clip of the test split.

    Collective: every rank must call this, because the ranks wait for each other in it.

    Memory holds one tile of a clip at a time: val.num_frame_testing frames, or the whole clip if
    this option is 0.

    clips: the clips of the test split, with sharp frames.

    Returns None if a signal ends the validation between two clips.
    """
    # netG is the trained network. If the option train.E_decay asks for it, netE has the moving
    # average of the weights of netG. If there is a netE, it is validated.
    net = model.netE if model.netE is not None else unwrap_ddp(model.netG)
    was_training = net.training
    restorer = _restorer(model, net)  # sets the network to eval mode
    # For a network that interpolates, each clip becomes a clip without every second frame. The
    # network makes the missing frames, and is scored on them.
    clips = scored_clips(clips, restorer.tiling.spec)
    # The same clips are shown in every validation, so that their panels can be compared.
    shown_indices = evenly_spaced(len(clips), MAX_SHOWN_CLIPS)
    validator = ClipValidator(model, restorer)
    try:
        own_results = _validate_clips_of_rank(model, validator, clips, shown_indices)
    finally:
        # Without `net.train`, test_after_a_validation_the_network_is_in_training_again fails.
        net.train(was_training)
    if own_results is None:
        return None

    all_scores = []
    for scores_of_rank in utils_dist.gather_objects(own_results.scores):  # one list per rank
        all_scores += scores_of_rank
    # `results` is {"clips": name -> scores, "averages": means}.
    results = collect(all_scores, expected=len(clips), mean=model.opt.metric.mean)
    shown_panels = _gather_panels(clips, shown_indices, own_results.panels)
    metrics = [metric.name for metric in validator.metrics]
    scalars = _scalars(results, metrics, list(shown_panels))
    return Validation(scalars, score_text(results), shown_panels)


class _RankResults(NamedTuple):
    """Scores and panels of the clips that one rank has restored."""

    scores: list[dict[str, Any]]  # one entry for each of its clips, see `ClipValidator.validate`
    panels: dict[int, dict[str, np.ndarray]]  # index of a clip -> its panels


def _validate_clips_of_rank(
    model: ModelVRT,
    validator: ClipValidator,
    clips: Sequence[ClipReader],
    shown_indices: Sequence[int],
) -> _RankResults | None:
    """Restore and score the clips of this rank. Every rank must call this, because all ranks vote.

    The rounds of 5 clips on 2 ranks:

        round    first_of_round    rank 0    rank 1
        1        0                 clip 0    clip 1
        2        2                 clip 2    clip 3
        3        4                 clip 4    no clip

    Before each round but the first, all ranks vote whether to stop, also a rank without a clip.
    Without its vote the other ranks would wait.

    shown_indices: indices of the clips that are shown with panels.

    Returns None if a signal ends the validation.
    """
    rank = utils_dist.get_rank()
    rank_count = utils_dist.get_world_size()
    own_results = _RankResults(scores=[], panels={})
    own_clips = clips[rank::rank_count]  # e.g. for rank 1 of 2: the clips 1, 3, 5, ...
    own_frame_count = _count_frames(own_clips, model.opt.val.center_frame_only)
    logger.info("validating %s, %s", counted(len(clips), "clip"), validator.restorer.describe())
    with open_progress(model.opt.logging.progress, own_frame_count, "validation", "frames") as bar:
        for first_of_round in range(0, len(clips), rank_count):
            # The ranks do not vote before the first round, so even after a signal, one clip per
            # rank is scored.
            if first_of_round > 0 and _any_rank_stops():
                return None
            index = first_of_round + rank
            if index >= len(clips):  # no clip is left for this rank
                continue
            watchdog.phase(f"validate: clip {index}")
            is_shown = index in shown_indices
            scores, panels = validator.validate(clips[index], is_shown, bar.update)
            own_results.scores.append(scores)
            if panels:
                own_results.panels[index] = panels
    return own_results


def _count_frames(clips: Sequence[ClipReader], center_frame_only: bool) -> int:
    """Return the number of frames that are restored of these clips."""
    count = 0
    for clip in clips:
        count += len(wanted_frames(len(clip.stems), center_frame_only))
    return count


def _gather_panels(
    clips: Sequence[ClipReader],
    shown_indices: Sequence[int],
    panels_of_rank: dict[int, dict[str, np.ndarray]],
) -> dict[str, dict[str, np.ndarray]]:
    """Return the panels of all shown clips on rank 0, and {} on the other ranks.

    The panels of a clip are pictures to compare, e.g. its blurry and its restored middle frame.
    Every rank must call this, because each sends its panels.

    shown_indices: indices of the clips that are shown, the same on every rank.
    panels_of_rank: index of a clip -> its panels, for the clips that this rank has scored.
    """
    rank_count = utils_dist.get_world_size()
    shown_panels = {}
    # `from_rank` sends the panels of a clip from the rank that has scored it to all others. Every
    # rank must call it, and only rank 0 keeps the result. The panels are sent clip by clip, so
    # that a rank receives the panels of only one clip at a time.
    for index in shown_indices:
        # E.g. of 2 ranks, rank 1 has scored clip 3: `_validate_clips_of_rank` divides the clips in
        # this way. Any other rank would send None in place of the panels.
        rank_of_clip = index % rank_count
        panels = utils_dist.from_rank(rank_of_clip, panels_of_rank.get(index))
        if utils_dist.is_main_process():
            shown_panels[clips[index].name] = panels
    return shown_panels


def _restorer(model: ModelVRT, net: nn.Module) -> Restorer:
    """Return a `Restorer` of the network `net` with the tiles of the section `val`.

    The `Restorer` sets the network to eval mode.
    """
    val = model.opt.val
    test = model.opt.datasets.test
    spec = input_spec(net)
    # Only some kinds of datasets have the keys `pad_sequence` and `sigma`. `pad_sequence` means the
    # same as val.pad_seq: repeat the last frame.
    pad_seq = val.pad_seq or getattr(test, "pad_sequence", False)
    # The noise level of the test clips, for a denoiser that gets a map of the noise as input.
    noise_sigma = getattr(test, "sigma", None) if spec.noise_map else None
    return Restorer(
        net,
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
    """Return on all ranks whether any rank has received a signal to stop.

    Every rank must call this, because each waits for the votes of all ranks.
    """
    # The watchdog reports ranks that hang. `collective` tells it that this rank may have to wait
    # here for slower ranks.
    with watchdog.collective("stop vote"):
        wait_for_result = utils_dist.stop_vote()  # gives the vote of this rank
        return wait_for_result()


def _scalars(
    results: dict[str, Any], metrics: Sequence[str], shown_clips: Sequence[str]
) -> dict[str, float]:
    """Return the field `scalars` of a `Validation`.

    results: the result of `collect`.
    metrics: names of the metrics.
    shown_clips: names of the clips whose own scores are wanted.
    """
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
