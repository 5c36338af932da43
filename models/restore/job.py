"""The job of main_test_vrt.py: clips to restore, the share of each rank, and the report.

`restore_clips` restores and scores the clips of a `Job` on all ranks. Then `write_report` writes
the results of all clips. Frames and finished clips that are in the output folder already are not
computed again, so a test that was interrupted continues where it stopped.

    restore_clips -> claim_folder -> plan_work -> restore_share -> finish (each clip)
    write_report  -> metrics.json, table.txt, report.html

A clip may be cut between several ranks. The results must not depend on the number of ranks, bit for
bit.

Tests: tests/stories/test_main_test.py, tests/parts/utils/test_results.py, test_output_folder.py
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

# Limits of the report: the number of clips whose pictures it shows, and the bytes of a video in it.
# A page of more than some tens of megabytes opens slowly.
MAX_CLIPS = 24
MAX_VIDEO = 2**20
# Put behind the metrics in the protocol if LPIPS is computed: network and version of LPIPS.
LPIPS_NOTE = "; LPIPS: AlexNet, version 0.1"
# Lines of the protocol that the log shows: a network has the line "weights", a formula the line
# "method". table.txt and metrics.json have the whole protocol.
SHOWN = ("weights", "method", "tile", "speed")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """What is restored, how, and where the results go.

    method: what restores a frame: a network, or a classical reconstruction from spikes.
    clips: the clips to restore, in the order of their names.
    outputs: the output folder, and what is saved there.
    lpips: files of the weights of LPIPS, or empty to leave LPIPS out.
    overwrite: whether existing results are removed, see `claim_folder`.
    title: the heading of the report, and the first line of the results in the log.
    expected: number of clips that there should be. Averages over fewer clips are marked.
    section: the resolved options that say what is read of the files and how.
    frames_note: which frames of a clip are restored, in words, for the protocol.
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
    frames: indices of the frames to restore. Empty: all frames are there, and only the scores of
    the clip are missing.
    is_whole: whether this is all that is left of the clip. If not, other ranks have the other
    parts.
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
    # Of n ranks, rank r takes the items r, r + n, r + 2 n, ...
    share = slice(utils_dist.get_rank(), None, utils_dist.get_world_size())
    with utils_dist.all_ranks_or_none():
        restore_share(job, restorer, plan[share], more_scores)
    # The clips that were cut are scored now, because all ranks have finished their parts: the
    # context above waits for them.
    cut_clips = sorted({work.clip for work in plan if not work.is_whole})
    with utils_dist.all_ranks_or_none():
        for index in cut_clips[share]:
            finish(job, restorer, job.clips[index], more_scores, None)


def claim_folder_of(job: Job) -> None:
    """Take the output folder, see `claim_folder`. Rank 0 only."""
    # Reading all input files may take minutes, so the watchdog is told of each clip.
    watchdog.phase("check results")
    inputs = {}
    for clip in job.clips:
        inputs[clip.name] = clip.digest()
        watchdog.go_on()
    stems = {clip.name: job.stems_of(clip) for clip in job.clips}
    # The LPIPS weights are recorded by name, size and time of change, not by their content.
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
    # The settings are compared with the run.json of an earlier test, and JSON has no tuples: they
    # became lists there.
    as_read_back = json.loads(json.dumps(settings))
    claim_folder(outputs, as_read_back, inputs, stems, job.overwrite)
    watchdog.phase("start")


def shared_plan(job: Job) -> list[Work]:
    """Return the plan of rank 0 on every rank. Collective."""
    # Only rank 0 looks at the files, because another rank might see the folder in another state.
    plan_of_this_rank = plan_work(job) if utils_dist.is_main_process() else []
    # Plain numbers, because objects of our own classes are not sent between ranks.
    rows = []
    for work in plan_of_this_rank:
        rows.append((work.clip, work.frames.start, work.frames.stop, work.is_whole))
    plan = []
    for clip, start, stop, is_whole in utils_dist.from_rank(0, rows):
        plan.append(Work(clip, range(start, stop), is_whole))
    return plan


def plan_work(job: Job) -> list[Work]:
    """Return the frames still to be restored, the longest part first.

    The longest parts come first, so that all ranks end at nearly the same time. If there are fewer
    clips than ranks, clips are cut in time. E.g. 1 clip of 100 frames on 4 ranks -> 4 parts of 25.
    The restored frames do not depend on the cuts, bit for bit.
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

    # The number of pieces per clip, so that each rank has at least one piece.
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
        # All frames from the first to the last missing one, because a part is one range. Frames
        # between them that are there already are computed again, to the same values.
        if missing:
            to_restore = range(missing[0], missing[-1] + 1)
        else:
            to_restore = range(0)
        size = max(1, math.ceil(len(to_restore) / pieces))
        cuts = []
        for first in range(0, len(to_restore), size):
            cuts.append(to_restore[first : first + size])
        if not cuts:  # all frames are there, and the clip only has to be scored
            cuts = [to_restore]
        is_whole = len(cuts) == 1
        plan += [Work(index, cut, is_whole) for cut in cuts]
    # The further keys make the order the same in every run.
    return sorted(plan, key=lambda work: (-len(work.frames), work.clip, work.frames.start))


def restore_share(
    job: Job, restorer: FrameRestorer, mine: Sequence[Work], more_scores: MoreScores | None
) -> None:
    """Restore the parts of this rank.

    Each frame is written as soon as it is restored, so that an interrupted test loses one frame. A
    clip that was not cut between ranks is scored at once.

    mine: the parts. more_scores: see `metrics.add_scores`.
    """
    total = sum(len(work.frames) for work in mine)
    # Time and number of the frames restored so far, over all parts of this rank.
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
            mean_pace = seconds / max(count, 1)  # seconds per frame; no frame may be restored yet
            if work.is_whole:
                was_restored = len(work.frames) > 0
                finish(job, restorer, clip, more_scores, mean_pace if was_restored else None)
            logger.info(
                "%s: frames %d to %d restored; %.3f s/frame on %s, %.0f s left",
                clip.name,
                work.frames.start + 1,
                work.frames.stop,
                mean_pace,
                devices.name(utils_dist.get_device()),
                mean_pace * (total - count),
            )


def finish(
    job: Job,
    restorer: FrameRestorer,
    clip: ClipReader,
    more: MoreScores | None,
    mean_pace: float | None,
) -> None:
    """Score a clip whose frames are all there, and write its strips and videos: `finish_clip`.

    mean_pace: seconds per frame, the mean over the frames that this rank has restored so far. None
    if the clip was cut between ranks, or if no frame of the clip was missing.
    """
    watchdog.phase(f"score: {clip.name}")
    notes = {"s_per_frame": mean_pace, "tile": restorer.describe()}
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
    about.setdefault("frames", job.frames_note)  # a method may have said more about its frames
    about["crop"] = "none"
    about["border"] = "nothing excluded"
    about["tile"] = ", or ".join(sorted({entry["tile"] for entry in entries}))
    about["SpikeVRT"] = VERSION
    metric = job.outputs.metric
    about["metrics"] = protocol_text(metric.values, metric.mean)
    if job.lpips:
        about["metrics"] += LPIPS_NOTE
    if metric.more:
        about["further metrics"] = metrics_in_words(metric.more)
    about["device"] = devices.name(utils_dist.get_device())
    paces = [entry["s_per_frame"] for entry in entries if entry.get("s_per_frame")]
    if paces:
        about["speed"] = f"{np.mean(paces):.3f} s/frame per process"
    return about


def example_panels(job: Job, clip: ClipReader, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the example frame of a finished clip beside its input, spikes and sharp frame.

    entry: the content of the clip's JSON.
    """
    index = list(clip.stems).index(entry["example"])
    restored = imread_rgb(job.outputs.file("example", clip.name))
    panels = comparison_of(clip, index, clip.frame(index), restored)
    panels.pop(ERROR, None)  # the report compares with a slider, without a picture of the error
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
    # The metric of the plots: PSNR, or PSNR-Y for grey frames. Without sharp frames there is none.
    metric = ""
    for name in ("psnr", "psnr_y"):
        if not metric and COLUMNS[name].title in head:
            metric = name
    plots = {}  # name of a clip -> its plot
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
    high = int(np.ceil(max(finite)))
    if high == 0:
        high = 1
    high = max(high, low + 1)

    # Size of the picture in pixels. The template of the report draws the axes in the margins.
    width = 760
    height = 150
    # The margins leave room for the numbers of the axes: 44 pixels on the left and 10 on the right
    # (54 in total), 10 above and 24 below (34 in total).
    count = max(len(values) for values in lines.values())
    points = {}
    for kind, values in lines.items():
        above = (np.minimum(values, high) - low) / (high - low)  # 0 to 1
        x = 44 + (width - 54) * np.arange(len(values)) / max(count - 1, 1)  # count - 1 steps
        y = 10 + (height - 34) * (1 - above)
        # The form of an SVG polyline: "44.0,75.2 58.6,70.1 ..."
        points[kind] = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return {
        "width": width,
        "height": height,
        "low": low,
        "high": high,
        "count": count,
        "lines": points,
    }
