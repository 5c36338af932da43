"""The job of main_test_vrt.py: clips to restore, the share of each rank, and the report.

`restore_clips` restores and scores the clips of a `Job` on all ranks; `write_report` then writes
the results of all clips. Frames and finished clips that are in the output folder already are not
computed again, so an interrupted test goes on where it stopped.

    restore_clips -> claim_folder -> plan_work -> restore_share -> finish (each clip)
    write_report  -> metrics.json, table.txt, report.html
"""

import json
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.metrics import COLUMNS, metrics_in_words
from models.restore.lpips import Lpips
from models.restore.outputs import MoreScores, Outputs, claim_folder, comparison_of, finish_clip
from models.restore.scores import (
    collect,
    instants_psnr,
    protocol_text,
    score_table,
    score_text,
)
from utils import VERSION, utils_dist
from utils import device as devices
from utils.contract import ClipReader, FrameRestorer, Method, wanted_frames
from utils.dist import watchdog
from utils.errors import OptionError
from utils.files import write_whole
from utils.image import ERROR, data_uri, imread_rgb, render
from utils.results import json_bytes
from utils.run.progress import open_progress

# The report shows pictures of so many clips, and their videos up to this size in bytes. A page of
# more than some tens of megabytes opens slowly.
MAX_CLIPS = 24
MAX_VIDEO = 2**20
LPIPS = "; LPIPS: AlexNet, version 0.1"
# Lines of the protocol that the log shows. A method has weights or a name, not both. table.txt and
# metrics.json have the whole protocol.
SHOWN = ("weights", "method", "tile", "speed")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """What is restored, how, and where the results go.

    clips: in the order of their names.
    lpips: files of weights, empty without LPIPS.
    overwrite: see `claim_folder`.
    expected: number of clips that there should be. Averages over fewer clips are marked.
    section: the resolved options that say what is read of the files and how.
    frames_note: which frames of a clip are restored, for the protocol.
    """

    method: Method
    clips: Sequence[ClipReader]
    outputs: Outputs
    lpips: Sequence[str]
    overwrite: bool
    title: str
    expected: int
    section: dict[str, Any]
    frames_note: str

    def frames_of(self, clip: ClipReader) -> range:
        """Return the indices of the frames to restore."""
        return wanted_frames(len(clip.stems), self.method.center_frame_only)

    def stems_of(self, clip: ClipReader) -> list[str]:
        """Return the names of the frames to restore."""
        return [clip.stems[index] for index in self.frames_of(clip)]


@dataclass(frozen=True)
class Work:
    """Consecutive frames of one clip, for one rank.

    clip: index in Job.clips.
    is_whole: whether no other rank has a part of the clip.
    """

    clip: int
    frames: range
    is_whole: bool


# ---- Restoration -----------------------------------------------------------------------------


def restore_clips(job: Job) -> None:
    """Restore the missing frames, score each clip and write its videos. Collective.

    Raises OptionError or DataError if the output folder holds other files or results, see
    `claim_folder`, and OptionError for a slow motion of a single instant.
    """
    device = utils_dist.get_device()
    with utils_dist.all_ranks_or_none():
        if "slowmotion" in job.outputs.save and job.method.instants == 1:
            raise OptionError(
                what="--save slowmotion, and one sharp frame is restored for each blurry one",
                where="--save slowmotion",
                expected="a network with several instants of each exposure (netG.out_instants)",
                do="leave out slowmotion",
            )
        restorer = job.method.restorer(device)
        more_scores = Lpips(job.lpips).to(device).score if job.lpips else None
        if utils_dist.is_main_process():
            claim_folder_of(job)

    plan = shared_plan(job)
    share = slice(utils_dist.get_rank(), None, utils_dist.get_world_size())  # every n-th item
    with utils_dist.all_ranks_or_none():
        restore_share(job, restorer, plan[share], more_scores)
    # Several ranks have restored parts of the remaining clips. Only now are all parts there.
    cut_clips = sorted({work.clip for work in plan if not work.is_whole})
    with utils_dist.all_ranks_or_none():
        for index in cut_clips[share]:
            finish(job, restorer, job.clips[index], more_scores, None)


def claim_folder_of(job: Job) -> None:
    """Take the output folder, see `claim_folder`. Rank 0 only."""
    # Reads every result of an earlier run; each file counts as progress.
    watchdog.phase("check results")
    inputs = {}
    for clip in job.clips:
        inputs[clip.name] = clip.digest()
        watchdog.go_on()
    stems = {clip.name: job.stems_of(clip) for clip in job.clips}
    # Size and time stand for the content of the LPIPS weights.
    lpips = []
    for name in job.lpips:
        if os.path.exists(name):
            stat = os.stat(name)
            lpips.append([name, stat.st_size, stat.st_mtime_ns])
    outputs = job.outputs
    settings = {
        **job.method.settings(),
        "lpips": lpips,
        "save": outputs.save,
        "fps": outputs.fps,
        **job.section,
        "metric.values": outputs.metric.values,
        "metric.more": outputs.metric.more,
    }
    # They are compared with the settings in the file of an earlier run, where tuples are lists.
    as_read_back = json.loads(json.dumps(settings))
    claim_folder(outputs, as_read_back, inputs, stems, job.overwrite)
    watchdog.phase("start")


def shared_plan(job: Job) -> list[Work]:
    """Return the plan of rank 0 on every rank. Collective."""
    own_plan = plan_work(job) if utils_dist.is_main_process() else []
    # Plain numbers, because objects of our own classes are not sent between ranks.
    rows = [(work.clip, work.frames.start, work.frames.stop, work.is_whole) for work in own_plan]
    plan = []
    for clip, start, stop, is_whole in utils_dist.from_rank(0, rows):
        plan.append(Work(clip, range(start, stop), is_whole))
    return plan


def plan_work(job: Job) -> list[Work]:
    """Return the frames still to be restored, the longest part first.

    Rank r takes the parts r, r + world size, ... of the plan. If there are fewer clips than ranks,
    clips are cut in time. The restored frames do not depend on the cuts, bit for bit.
    """
    outputs = job.outputs

    # Clips of which a result is missing.
    unfinished = []
    for index, clip in enumerate(job.clips):
        files = [outputs.file("clip", clip.name), *outputs.results(clip.name, job.stems_of(clip))]
        if not all(path.exists() for path in files):
            unfinished.append(index)
    done = len(job.clips) - len(unfinished)
    if done:
        logger.info("%d of %d clips are finished already", done, len(job.clips))

    # Cut each clip into as many pieces as give each rank at least one.
    pieces = 1
    if unfinished and job.method.can_cut:
        pieces = math.ceil(utils_dist.get_world_size() / len(unfinished))
    plan = []
    for index in unfinished:
        clip = job.clips[index]
        missing = []
        for number in job.frames_of(clip):
            stem = clip.stems[number]
            files = [outputs.file("frame", clip.name, stem)]
            files += outputs.exact_files(clip.name, [stem])
            if not all(path.exists() for path in files):
                missing.append(number)
        # From the first to the last missing frame, because a part is one range.
        left = range(missing[0], missing[-1] + 1) if missing else range(0)
        size = max(1, math.ceil(len(left) / pieces))
        cuts = [left[first : first + size] for first in range(0, len(left), size)]
        if not cuts:  # all frames are there, and the clip only has to be scored
            cuts = [left]
        is_whole = len(cuts) == 1
        plan += [Work(index, cut, is_whole) for cut in cuts]
    return sorted(plan, key=lambda work: (-len(work.frames), work.clip, work.frames.start))


def restore_share(
    job: Job, restorer: FrameRestorer, mine: Sequence[Work], more_scores: MoreScores | None
) -> None:
    """Restore the parts of this rank.

    Each frame is written as soon as it is restored. A clip that no other rank has a part of is
    scored at once.

    mine: the parts. more_scores: see `metrics.add_scores`.
    """
    total = sum(len(work.frames) for work in mine)
    seconds = 0.0
    count = 0
    logger.info("restoring %d frames of %d clips (%s)", total, len(mine), restorer.describe())
    with open_progress("bar", total, "restoring", "frames") as bar:
        for work in mine:
            clip = job.clips[work.clip]
            begin = time.perf_counter()
            watchdog.phase(f"restore: {clip.name}", count)
            restored = restorer.frames(clip, work.frames, bar.update)
            for index, frame in zip(work.frames, restored, strict=True):
                job.outputs.write_frame(clip.name, clip.stems[index], frame)
                count += 1
                watchdog.phase(f"restore: {clip.name}", count)
            seconds += time.perf_counter() - begin
            pace = seconds / max(count, 1)  # seconds per frame
            if work.is_whole:
                finish(job, restorer, clip, more_scores, pace if work.frames else None)
            logger.info(
                "%s: frames %d to %d restored; %.3f s/frame on %s, %.0f s left",
                clip.name,
                work.frames.start + 1,
                work.frames.stop,
                pace,
                devices.name(utils_dist.get_device()),
                pace * (total - count),
            )


def finish(
    job: Job,
    restorer: FrameRestorer,
    clip: ClipReader,
    more: MoreScores | None,
    pace_s: float | None,
) -> None:
    """Finish a clip, see `finish_clip`.

    pace_s: seconds per frame, or None if this rank has not restored the whole clip.
    """
    watchdog.phase(f"score: {clip.name}")
    notes = {"s_per_frame": pace_s, "tile": restorer.describe()}
    finish_clip(clip, job.frames_of(clip), job.outputs, more, notes, job.method.is_grey)


# ---- Report ----------------------------------------------------------------------------------


def write_report(job: Job) -> None:
    """Write metrics.json, table.txt and report.html about the finished clips of the job.

    The log shows the table too.
    """
    watchdog.phase("report")
    folder = job.outputs.folder
    clips = {clip.name: clip for clip in job.clips}
    loaded = [job.outputs.load_clip(name) for name in clips]
    entries = [entry for entry in loaded if entry is not None]

    about = protocol_of(job, entries)
    results = {"protocol": about, **collect(entries, job.expected, job.outputs.metric.mean)}
    write_whole(folder / "metrics.json", json_bytes(results))
    table = score_text(results)
    lines = "\n".join(f"{key}: {value}" for key, value in about.items())
    write_whole(folder / "table.txt", f"{table}\n\n{lines}\n".encode())

    examples = {}
    videos = {}
    for entry in entries[:MAX_CLIPS]:
        name = entry["name"]
        examples[name] = example_panels(job, clips[name], entry)
        video = job.outputs.file("comparison", name)
        if video.exists() and video.stat().st_size < MAX_VIDEO:
            videos[name] = data_uri("video/mp4", video.read_bytes())
    page = build_report(job.title, results, examples, videos)
    write_whole(folder / "report.html", page.encode())

    shown = [f"{key}: {about[key]}" for key in SHOWN if key in about]
    logger.info("%s\n%s\n%s", job.title, table, "\n".join(shown))
    logger.info("results are in %s (open report.html)", folder)


def protocol_of(job: Job, entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return how the clips were restored and scored, in words. entries: the finished clips."""
    about = job.method.protocol()
    for kind in ("input", "gt", "spike"):
        paths = [clip.origin[kind] for clip in job.clips if kind in clip.origin]
        if len(paths) > 1:
            about[kind] = f"{paths[0]} and {len(paths) - 1} more"
        elif paths:
            about[kind] = paths[0]
    about.setdefault("frames", job.frames_note)
    about["crop"] = "none"
    about["border"] = "nothing excluded"
    about["tile"] = ", or ".join(sorted({entry["tile"] for entry in entries}))
    about["SpikeVRT"] = VERSION
    metric = job.outputs.metric
    about["metrics"] = protocol_text(metric.values, metric.mean)
    if job.lpips:
        about["metrics"] += LPIPS
    if metric.more:
        about["further metrics"] = metrics_in_words(metric.more)
    about["device"] = devices.name(utils_dist.get_device())
    paces = [entry["s_per_frame"] for entry in entries if entry.get("s_per_frame")]
    if paces:
        about["speed"] = f"{np.mean(paces):.3f} s/frame per process"
    return about


def example_panels(job: Job, clip: ClipReader, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the example frame of a finished clip beside its input, spikes and sharp frame."""
    index = list(clip.stems).index(entry["example"])
    restored = imread_rgb(job.outputs.file("example", clip.name))
    panels = comparison_of(clip, index, clip.frame(index), restored)
    panels.pop(ERROR, None)
    return panels


def build_report(
    title: str,
    results: Mapping[str, Any],
    clips: Mapping[str, Mapping[str, np.ndarray]],
    videos: Mapping[str, str] = {},
) -> str:
    """Return the HTML page of a test.

    It has tables, the PSNR of each frame, a slider between the blurry and the restored frame, and
    videos that play beside it.

    results: the content of metrics.json, see `collect`.
    clips: name -> pictures of the example frame, (H, W, 3) uint8: "blurry" and "restored", and
    "spikes" and "sharp" if there are any.
    videos: name -> data URI of the comparison.
    """
    head, rows = score_table(results)
    # The plots show PSNR, of grey frames PSNR-Y, and "" without sharp frames.
    metric = ""
    for name in ("psnr", "psnr_y"):
        if not metric and COLUMNS[name].title in head:
            metric = name
    plots = {}
    for name, clip in results["clips"].items():
        per_frame = clip.get("per_frame")
        if per_frame:
            values = {}
            for kind, scores in per_frame.items():
                values[kind] = [float(score) for score in scores[metric]]
            plots[name] = psnr_plot(values)
    return render(
        "test",
        title=title,
        total=results["averages"].get("restored"),
        head=head,
        rows=rows,
        instants=instants_psnr(results),
        clips=clips,
        videos=videos,
        metric=COLUMNS[metric].title.removesuffix(" dB") if metric else "",
        plots=plots,
        protocol=results["protocol"],
    )


def psnr_plot(lines: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the numbers of an SVG of PSNR over the frame number, as the template draws it.

    Infinite values (equal images) are drawn at the upper end.

    lines: "restored" and "input" -> dB of each frame.
    """
    # The vertical axis, in whole dB, at least 1 dB high. Without a finite value it is 0 to 1.
    finite = []
    for values in lines.values():
        finite += [value for value in values if np.isfinite(value)]
    if not finite:
        finite = [0.0]
    low = int(np.floor(min(finite)))
    high = int(np.ceil(max(finite))) or 1
    high = max(high, low + 1)

    # Pixels of the picture. The axes leave room for their numbers: 44 on the left and 10 on the
    # right, 10 above and 24 below.
    width = 760
    height = 150
    count = max(len(values) for values in lines.values())
    points = {}
    for kind, values in lines.items():
        above = (np.minimum(values, high) - low) / (high - low)  # 0 to 1
        x = 44 + (width - 54) * np.arange(len(values)) / max(count - 1, 1)  # count - 1 steps
        y = 10 + (height - 34) * (1 - above)
        points[kind] = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return {
        "width": width,
        "height": height,
        "low": low,
        "high": high,
        "count": count,
        "lines": points,
    }
