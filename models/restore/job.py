"""The job of main_test_vrt.py: which clips to restore and how, and the share of each rank."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.restore.lpips import Lpips
from models.restore.outputs import Outputs, claim_folder, finish_clip
from models.restore.results import clip_file
from models.restore.test_args import TestArgs
from utils import utils_dist
from utils.contract import ClipReader, FrameRestorer, Method
from utils.dist import watchdog
from utils.dist.gpu import device_name
from utils.run.progress import open_progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """What is restored, how, and where the results go.

    clips: in the order of their names. expected: number of clips that there should be; averages over fewer are marked.
    section: resolved options that say what is read of the files and how.
    frames_note: which frames of a clip are restored, for the protocol.
    """

    method: Method
    clips: Sequence[ClipReader]
    outputs: Outputs
    args: TestArgs
    title: str
    expected: int
    section: dict[str, Any]
    frames_note: str = "all"

    def frames_of(self, clip: ClipReader) -> range:
        return self.method.frames_of(len(clip.stems))

    def stems_of(self, clip: ClipReader) -> list[str]:
        return [clip.stems[k] for k in self.frames_of(clip)]

    def is_finished(self, clip: ClipReader) -> bool:
        files = [clip_file(self.outputs.folder, clip.name), *self.outputs.results(clip.name, self.stems_of(clip))]
        return all(path.exists() for path in files)

    def settings(self) -> dict[str, Any]:
        """Everything that the results depend on except the input files, as plain JSON."""
        args = self.args
        lpips = [(name, os.stat(name)) for name in args.lpips if os.path.exists(name)]
        settings = {
            **self.method.settings(),
            "lpips": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in lpips],
            "save": self.outputs.save, "fps": args.fps, **self.section,
        }  # fmt: skip
        return json.loads(json.dumps(settings))


@dataclass(frozen=True)
class Work:
    """Consecutive frames of one clip, for one rank. clip: index in Job.clips. is_whole: no other rank has a part."""

    clip: int
    frames: range
    is_whole: bool


def restore_clips(job: Job) -> None:
    """Restore the missing frames, score each clip and write its videos. Collective."""
    with utils_dist.all_ranks_or_none():
        if utils_dist.is_main_process():
            prepare_folder(job)
        restorer = job.method.restorer(utils_dist.get_device())
        lpips = Lpips.load(job.args.lpips).to(utils_dist.get_device()) if job.args.lpips else None
    plan = utils_dist.from_rank(0, plan_work(job) if utils_dist.is_main_process() else None)
    share = slice(utils_dist.get_rank(), None, utils_dist.get_world_size())
    with utils_dist.all_ranks_or_none():
        restore_share(job, restorer, plan[share], lpips)
    # Only now are all parts of the clips that several ranks have restored complete.
    with utils_dist.all_ranks_or_none():
        for index in sorted({work.clip for work in plan if not work.is_whole})[share]:
            finish(job, restorer, index, lpips)


def prepare_folder(job: Job) -> None:
    """Take the output folder for this job; raises where it contains other files or results, see `claim_folder`."""
    watchdog.phase("check results")  # reads every result of an earlier run; each file counts as progress
    stems = {clip.name: job.stems_of(clip) for clip in job.clips}
    inputs = {}
    for clip in job.clips:
        inputs[clip.name] = clip.digest()
        watchdog.go_on()
    claim_folder(job.outputs, job.settings(), inputs, stems, job.args.overwrite)
    watchdog.phase("start")


def plan_work(job: Job) -> list[Work]:
    """The frames still to be restored, longest part first; rank r takes parts r, r + world size, ...

    With fewer clips than ranks, clips are cut in time. The restored frames do not depend on the cuts, bit for bit.
    """
    todo = [i for i, clip in enumerate(job.clips) if not job.is_finished(clip)]
    done = len(job.clips) - len(todo)
    if done:
        logger.info("%d of %d clips are finished already", done, len(job.clips))
    pieces = -(-utils_dist.get_world_size() // len(todo)) if todo and job.method.can_cut else 1
    plan = []
    for index in todo:
        clip = job.clips[index]
        missing = [k for k in job.frames_of(clip) if not job.outputs.frame_file(clip.name, clip.stems[k]).exists()]
        left = range(missing[0], missing[-1] + 1) if missing else range(0)
        size = -(-len(left) // pieces) or 1
        cuts = [left[i : i + size] for i in range(0, len(left), size)] or [left]
        plan += [Work(index, cut, len(cuts) == 1) for cut in cuts]
    return sorted(plan, key=lambda work: (-len(work.frames), work.clip, work.frames.start))


def restore_share(job: Job, restorer: FrameRestorer, mine: Sequence[Work], lpips: Lpips | None) -> None:
    """Restore this rank's parts. Each frame is written as soon as it is restored; whole clips are finished."""
    total = sum(len(work.frames) for work in mine)
    seconds, count = 0.0, 0
    logger.info("restoring %d frames of %d clips (%s)", total, len(mine), restorer.describe())
    with open_progress("bar", total, "restoring", "frames") as bar:
        for work in mine:
            clip, begin = job.clips[work.clip], time.perf_counter()
            watchdog.phase(f"restore: {clip.name}", count)
            for index, frame in zip(work.frames, restorer.frames(clip, work.frames, bar.update), strict=True):
                job.outputs.write_frame(clip.name, clip.stems[index], frame)
                count += 1
                watchdog.phase(f"restore: {clip.name}", count)
            seconds += time.perf_counter() - begin
            pace = seconds / max(count, 1)
            if work.is_whole:
                finish(job, restorer, work.clip, lpips, pace if work.frames else None)
            logger.info(
                "%s: frames %d to %d restored; %.3f s/frame on %s, %.0f s left", clip.name, work.frames.start + 1,
                work.frames.stop, pace, device_name(utils_dist.get_device()), pace * (total - count),
            )  # fmt: skip


def finish(job: Job, restorer: FrameRestorer, index: int, lpips: Lpips | None, pace_s: float | None = None) -> None:
    """See `finish_clip`. pace_s: seconds per frame; None where this rank has not restored the whole clip."""
    clip = job.clips[index]
    watchdog.phase(f"score: {clip.name}")
    more_scores = lpips.score if lpips else None
    notes = {"s_per_frame": pace_s, "tile": restorer.describe()}
    finish_clip(clip, job.frames_of(clip), job.outputs, more_scores, notes, job.method.is_grey)
