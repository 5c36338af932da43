"""Divide the frames that are still to be restored among the ranks.

A rank is one process of main_test_vrt.py. run_job.py has taken the output folder of a `Job`, and
calls `shared_plan`. Rank 0 looks at the folder, makes the plan, and sends it to the other ranks.
The plan is a list of `Work`. A `Work`, also called a piece, is a range of frames of one clip. With
n ranks, rank r takes the items r, r + n, ... of the list.

What must stay: the restored frames do not depend on the number of ranks, bit for bit
(test_two_ranks_share_the_frames_of_a_clip_and_give_the_same_bits). Each missing frame is in exactly
one piece, and a clip without a missing frame has one empty piece.
Free to change: the division itself.

Tests: tests/stories/test_main_test.py compares one rank with two
"""

import logging
import math
from dataclasses import dataclass

from models.restore.job import Job
from utils import utils_dist
from utils.contract import ClipReader
from utils.words import are, counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """Consecutive frames of one clip, for one rank."""

    # Index in Job.clips.
    clip_index: int
    # Indices of the frames to restore. Finished frames between missing frames are among them, and
    # are restored again. The range is empty if only the scores of the clip are missing.
    frames: range
    # Whether `frames` has all frames of the clip that are still to be restored. If not, the clip
    # was cut, and its other frames are in another `Work`, perhaps of another rank.
    is_whole: bool


def shared_plan(job: Job) -> list[Work]:
    """Return the plan of rank 0 on every rank.

    Every rank must call this function, because it waits until rank 0 has sent the plan.
    """
    # Only rank 0 looks at the files, because another rank might see the folder in another state.
    # `from_rank` sends only plain values, so the plan is sent as rows of numbers.
    rows = []
    if utils_dist.is_main_process():
        for work in plan_work(job):
            frames = work.frames
            rows.append((work.clip_index, frames.start, frames.stop, work.is_whole))
    rows = utils_dist.from_rank(0, rows)
    plan = []
    for clip_index, start, stop, is_whole in rows:
        plan.append(Work(clip_index, range(start, stop), is_whole))
    return plan


def plan_work(job: Job) -> list[Work]:
    """Return the frames still to be restored, as pieces of clips.

    The longest pieces come first, so that all ranks end at nearly the same time. If there are fewer
    clips than ranks, clips are cut in time. E.g. 1 clip of 100 frames on 4 ranks -> 4 pieces of 25.
    """
    unfinished = _unfinished_clips(job)
    finished_count = len(job.clips) - len(unfinished)
    if finished_count:
        clips = counted(len(job.clips), "clip")
        verb = are(finished_count)
        logger.info("%d of %s %s finished already", finished_count, clips, verb)

    # A clip is cut into at most `most_pieces` pieces, so that each rank has work. E.g. 2 unfinished
    # clips on 8 ranks: 4 pieces each. If the method cannot cut a clip, the number is 1.
    most_pieces = 1
    if unfinished and job.method.can_cut:
        most_pieces = math.ceil(utils_dist.get_world_size() / len(unfinished))
    plan = []
    for clip_index in unfinished:
        to_restore = _frames_to_restore(job, job.clips[clip_index])
        pieces = _pieces(to_restore, most_pieces)
        is_whole = len(pieces) == 1
        plan += [Work(clip_index, piece, is_whole) for piece in pieces]

    def longest_first(work: Work) -> tuple[int, int, int]:
        # Pieces of the same length are in the order of clips and frames, so the plan is the same in
        # every run.
        return (-len(work.frames), work.clip_index, work.frames.start)

    return sorted(plan, key=longest_first)


def _unfinished_clips(job: Job) -> list[int]:
    """Return the indices of the clips that lack a result.

    Results are the scores, e.g. clips/street.json, and what the user asked for by --save, e.g.
    street/000001.png and street.mp4.
    """
    unfinished = []
    for clip_index, clip in enumerate(job.clips):
        scores = job.outputs.file("clip", clip.name)
        files = [scores, *job.outputs.results(clip.name, job.stems_of(clip))]
        if not all(path.exists() for path in files):
            unfinished.append(clip_index)
    return unfinished


def _frames_to_restore(job: Job, clip: ClipReader) -> range:
    """Return the frames of a clip from the first missing frame to the last missing frame.

    Existing frames between missing frames are computed again, with the same values. The range is
    empty if no frame is missing and the clip must only be scored.
    """
    missing = _missing_frames(job, clip)
    if not missing:
        return range(0)
    first = missing[0]
    last = missing[-1]
    return range(first, last + 1)


def _pieces(frames: range, most: int) -> list[range]:
    """Cut frames into at most `most` pieces of one length. The last piece may be shorter.

    E.g. frames 10 to 19, most 3 -> 10 to 13, 14 to 17, 18 to 19. There may be fewer pieces: 9
    frames, most 4 -> 3 pieces of 3 frames. Without frames there is one empty piece, because the
    clip must still be scored.
    """
    if not frames:
        return [frames]
    length = math.ceil(len(frames) / most)
    pieces = []
    for position in range(0, len(frames), length):
        pieces.append(frames[position : position + length])  # a slice of a range is a range
    return pieces


def _missing_frames(job: Job, clip: ClipReader) -> list[int]:
    """Return the indices of the frames of a clip that lack a file.

    The files of a frame are its picture, e.g. street/000001.png, and its exact values, e.g.
    .work/street/000001.npy, if scores are computed from values that are not rounded.
    """
    missing = []
    for index in job.frames_of(clip):
        stem = clip.stems[index]
        files = [job.outputs.file("frame", clip.name, stem)]
        files += job.outputs.exact_files(clip.name, [stem])
        if not all(path.exists() for path in files):
            missing.append(index)
    return missing
