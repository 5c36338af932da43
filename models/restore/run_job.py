"""Restore and score the clips of a `Job` on all ranks.

main_test_vrt.py passes a `Job` (job.py). `restore_clips` writes the frames, scores and videos of
all clips into the output folder, and report.py reads the scores there. If the folder has some
frames or finished clips already, they are not computed again. So an interrupted test continues
where it stopped.

    restore_clips
      claim_folder_of   takes the output folder (output_folder.py)
      shared_plan       says which rank restores which frames (work_plan.py)
      restore_share     restores the frames of this rank, and writes each frame (outputs.py)
      finish            scores a clip whose frames are all restored (finished_clip.py)

A rank is one process of main_test_vrt.py. "Collective" in a docstring means that the ranks wait for
each other in this function, so every rank must call it at the same point of the program. A block
`all_ranks_or_none` is collective, too: an error on one rank within the block ends all ranks.
`watchdog.phase` names what the process does now, for the report if it hangs.

What must stay: a second run computes no finished frame again
(test_a_second_run_writes_no_finished_file_again). The keys of `_settings_of` must stay, too,
because a test is continued only if its settings are equal
(test_results_of_other_settings_are_not_taken_over). Free to change: which rank takes which piece.

Tests: tests/stories/test_main_test.py, tests/parts/utils/test_output_folder.py
"""

import json
import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from models.restore.clip_scores import MoreScores
from models.restore.finished_clip import example_of, finish_clip
from models.restore.job import Job
from models.restore.lpips import Lpips
from models.restore.output_folder import claim_folder
from models.restore.work_plan import Work, shared_plan
from utils import device as devices
from utils import utils_dist
from utils.contract import ClipReader, FrameRestorer, ShowsPictures
from utils.dist import watchdog
from utils.errors import OptionError
from utils.run.progress import open_progress
from utils.words import counted

logger = logging.getLogger(__name__)


def restore_clips(job: Job) -> None:
    """Restore the missing frames, score each clip and write its videos.

    Collective: every rank must call this, because the ranks wait for each other in it.

    Raises OptionError or DataError if the output folder holds other files or results. Raises
    OptionError if --save slowmotion is asked for, but the method restores only one instant of each
    exposure.
    """
    device = utils_dist.get_device()
    with utils_dist.all_ranks_or_none():
        _refuse_slowmotion_of_one_instant(job)
        # `restorer` is the object that restores frames. Two examples:
        #
        #     NetworkMethod    builds the network with its weights, and returns a `Restorer`
        #                      (tiles/restorer.py) with the network, the tiles and the dtype
        #     LearnedMotion    the method of weights/motion.pth (data/motion/learned_method.py),
        #                      returns a `MotionRestorer`, which improves the frames of a `Restorer`
        restorer = job.method.restorer(device)
        # A function (restored frame, sharp frame) -> {"lpips": 0.12}, or None without --lpips.
        more_scores: MoreScores | None = None
        if job.lpips:
            more_scores = Lpips(job.lpips).to(device).score
        if utils_dist.is_main_process():
            claim_folder_of(job)

    # The pieces of clips whose frames are missing, the longest piece first.
    plan = shared_plan(job)
    # Of n ranks, each takes every n-th item of a list. E.g. rank 1 of 4 takes the items 1, 5, 9,
    # ...
    of_this_rank = slice(utils_dist.get_rank(), None, utils_dist.get_world_size())
    with utils_dist.all_ranks_or_none():
        restore_share(job, restorer, plan[of_this_rank], more_scores)
    # All ranks have restored their pieces, so the clips that were cut between ranks are complete.
    cut_clips = sorted({work.clip_index for work in plan if not work.is_whole})
    with utils_dist.all_ranks_or_none():
        for clip_index in cut_clips[of_this_rank]:
            # A cut clip has no pace (seconds per frame), because no rank has restored all its
            # frames.
            finish(job, restorer, job.clips[clip_index], more_scores, mean_pace=None)


def _refuse_slowmotion_of_one_instant(job: Job) -> None:
    """Raise OptionError if --save slowmotion is given, but each exposure has only one instant."""
    if "slowmotion" in job.outputs.save and job.method.instants == 1:
        raise OptionError(
            what="--save slowmotion needs several sharp frames of each blurry frame, but this "
            "method restores one",
            where="--save slowmotion",
            expected="a network with several instants of each exposure (netG.out_instants)",
            do="leave out slowmotion",
        )


def claim_folder_of(job: Job) -> None:
    """Take the output folder for this test. Only rank 0 calls this.

    Raises OptionError or DataError if the folder holds other files or results.
    """
    watchdog.phase("check results")
    inputs = {}  # name of a clip -> digest of its files
    for clip in job.clips:
        inputs[clip.name] = clip.digest()
        watchdog.go_on()  # the digests of all clips may take minutes
    # Name of a clip -> the names of its frames without endings, e.g. {"street": ["000000", ...]}.
    stems = {clip.name: job.stems_of(clip) for clip in job.clips}
    # The settings are compared with the run.json of an earlier test. JSON has no tuples, so tuples
    # have become lists in run.json. To get the same lists, write these settings as JSON, and read
    # them back.
    as_read_back = json.loads(json.dumps(_settings_of(job)))
    claim_folder(
        job.outputs, settings=as_read_back, inputs=inputs, stems=stems, overwrite=job.overwrite
    )
    watchdog.phase("start")


def _settings_of(job: Job) -> dict[str, Any]:
    """Return everything that the results depend on, except the clips themselves.

    run.json has these keys. If you add a key, tell `refuse_another_test` (earlier_results.py) the
    value that older versions used, because their run.json lacks the key.
    """
    # The LPIPS weights are recorded by name, size and time of change, because a digest of 240 MB of
    # weights in each test would take too long. The files exist: `restore_clips` has read them.
    lpips_files = []
    for name in job.lpips:
        stat = os.stat(name)
        lpips_files.append([name, stat.st_size, stat.st_mtime_ns])
    outputs = job.outputs
    return {
        **job.method.settings(),
        "lpips": lpips_files,
        "save": outputs.save,  # e.g. ("frames", "comparison")
        "fps": outputs.fps,
        **job.reading_options,
        "metric.values": outputs.metric.values,
        "metric.more": outputs.metric.more,
    }


def restore_share(
    job: Job, restorer: FrameRestorer, share: Sequence[Work], more_scores: MoreScores | None
) -> None:
    """Restore the pieces of clips (ranges of their frames) that this rank has.

    Each frame is written as soon as it is restored, so an interrupted test loses at most one frame.
    A clip that was not cut between ranks is scored as soon as its frames are restored.

    share: the pieces of this rank.
    more_scores: function (restored frame, sharp frame) -> additional scores, e.g. {"lpips": 0.12},
        or None.
    """
    total = sum(len(work.frames) for work in share)
    # The time that this rank has taken so far, and the number of frames that it has restored.
    seconds = 0.0
    restored_count = 0
    frames = counted(total, "frame")
    clips = counted(len(share), "clip")
    logger.info("restoring %s of %s (%s)", frames, clips, restorer.describe())
    with open_progress("bar", total, "restoring", "frames") as bar:
        for work in share:
            clip = job.clips[work.clip_index]
            if not work.frames:  # no frame is missing, only the scores of the clip are
                finish(job, restorer, clip, more_scores, mean_pace=None)
                logger.info("%s: scored; its frames were restored before", clip.name)
                continue
            begin = time.perf_counter()
            restored_count = _restore_piece(job, restorer, work, bar, restored_count)
            seconds += time.perf_counter() - begin
            mean_pace = seconds / restored_count  # seconds per frame
            if work.is_whole:  # a clip that was cut is finished later, in `restore_clips`
                finish(job, restorer, clip, more_scores, mean_pace)
            # The log counts frames from 1: range(0, 12) is "frames 1 to 12".
            logger.info(
                "%s: frames %d to %d restored; %.3f s/frame on %s, %.0f s left",
                clip.name,
                work.frames.start + 1,
                work.frames.stop,
                mean_pace,
                devices.name(utils_dist.get_device()),
                mean_pace * (total - restored_count),
            )


def _restore_piece(
    job: Job, restorer: FrameRestorer, work: Work, bar: Any, restored_before: int
) -> int:
    """Restore the frames of one piece, and write each frame as soon as it is restored.

    bar: the progress bar. The restorer calls `bar.update`.
    restored_before: number of frames that this rank has restored before this piece.

    Returns the number of frames that this rank has restored after this piece.
    """
    clip = job.clips[work.clip_index]
    restored_count = restored_before
    watchdog.phase(f"restore: {clip.name}", restored_count)
    # A generator: each round of the loop below restores one more frame (C, H, W).
    restored_frames = restorer.frames(clip, work.frames, bar.update)
    # The frame of the clip that the report shows. Some methods (`ShowsPictures`) also make pictures
    # that show how this frame was restored, e.g. the motion that the method found.
    index_in_report = example_of(job.frames_of(clip))
    for index, frame in zip(work.frames, restored_frames, strict=True):
        # Write the pictures before the frame. If the frame were written first, and the test ended
        # before the pictures were written, a continued test would find the frame finished, and
        # never write the pictures.
        if index == index_in_report and isinstance(restorer, ShowsPictures):
            job.outputs.write_pictures(clip.name, restorer.pictures())
        job.outputs.write_frame(clip.name, clip.stems[index], frame)
        restored_count += 1
        watchdog.phase(f"restore: {clip.name}", restored_count)
    return restored_count


def finish(
    job: Job,
    restorer: FrameRestorer,
    clip: ClipReader,
    more_scores: MoreScores | None,
    mean_pace: float | None,
) -> None:
    """Score a clip whose frames are all restored, and write its videos and strips.

    A strip is a picture that shows a restored frame beside its input.

    more_scores: function that computes additional scores, e.g. LPIPS, or None.
    mean_pace: seconds per frame, the mean over all frames that this rank has restored so far. None
        if this rank has not restored the clip, or not all of it.
    """
    watchdog.phase(f"score: {clip.name}")
    # `describe` returns the tiles in words, e.g. "tiles of 12 frames x 256 px, ...".
    notes = {"s_per_frame": mean_pace, "tile": restorer.describe()}
    indices = job.frames_of(clip)
    finish_clip(clip, indices, job.outputs, more_scores, notes, job.method.is_grey)
