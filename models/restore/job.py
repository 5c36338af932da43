"""The job of main_test_vrt.py: clips to restore, the share of each rank, and the report.

`restore_clips` restores and scores the clips of a `Job` on all ranks. Then `write_report` writes
the results of all clips. Frames and finished clips that are in the output folder already are not
computed again, so a test that was interrupted continues where it stopped.

    restore_clips -> claim_folder -> plan_work -> restore_share -> finish (each clip)
    write_report  -> metrics.json, table.txt, report.html

A rank is one process of the test. "Collective" in a docstring: every rank must call this at the
same point of the program, because the ranks wait for each other. An error on one rank within a
block `all_ranks_or_none` ends all ranks. At the end of the block the ranks wait for each other.
`watchdog.phase` names what the process does now, for the report if it hangs.

What must stay: the results do not depend on the number of ranks, bit for bit, although a clip may
be cut between several ranks (test_two_ranks_share_the_frames_of_a_clip_and_give_the_same_bits). A
second run computes no finished frame again (test_a_second_run_writes_no_finished_file_again).
Free to change: how clips are divided (`plan_work`), and what the report shows.

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
from models.restore.outputs import (
    MoreScores,
    Outputs,
    claim_folder,
    comparison_of,
    example_of,
    finish_clip,
)
from models.restore.scores import (
    collect,
    instants_psnr,
    protocol_text,
    score_table,
    score_text,
)
from utils import VERSION, utils_dist
from utils import device as devices
from utils.contract import ClipReader, FrameRestorer, Method, ShowsPictures, wanted_frames
from utils.dist import watchdog
from utils.errors import OptionError
from utils.files import write_whole
from utils.image import ERROR, data_uri, imread_rgb, render
from utils.results import json_bytes
from utils.run.progress import open_progress

# Limits of the report. A page of more than some tens of megabytes opens slowly. So the report shows
# the pictures of at most this many clips, and only videos of less than this many bytes (1 MiB).
# Together the videos then have at most 24 MiB.
MOST_CLIPS_IN_REPORT = 24
MOST_BYTES_OF_VIDEO = 2**20
# Added to the metrics in the protocol if LPIPS is computed: network and version of LPIPS.
LPIPS_NOTE = "; LPIPS: AlexNet, version 0.1"
# Lines of the protocol that the log shows, if the method has them. A network has the line
# "weights", a formula the line "method". table.txt and metrics.json have the whole protocol.
LINES_OF_LOG = ("weights", "method", "tile", "speed")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """What is restored, how, and where the results go.

    method: what restores a frame: a network, or a classical reconstruction from spikes.
    clips: the clips to restore, in the order of their names.
    outputs: the output folder, and what is saved there.
    lpips: files of the weights of LPIPS, or empty to leave LPIPS out.
    overwrite: whether the results of an earlier test in the folder are removed first.
    title: the heading of the report, and the first line of the results in the log.
    expected: number of clips that there should be. Averages over fewer clips are marked.
    reading_options: the resolved options that say what is read of the files and how. They are
        stored in run.json. If they differ in a later test, its results are not mixed with these.
    frames_note: which frames of a clip are restored, in words, for the protocol.
    """

    method: Method
    clips: Sequence[ClipReader]
    outputs: Outputs
    lpips: Sequence[str]
    overwrite: bool
    title: str
    expected: int
    reading_options: dict[str, Any]
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

    clip_index: index in Job.clips.
    frames: indices of the frames to restore. Empty if all frames are there, and only the scores of
    the clip are missing.
    is_whole: whether these frames are all that is left of the clip. If not, other `Work` has the
    rest, which may belong to other ranks.
    """

    clip_index: int
    frames: range
    is_whole: bool


# ---- Restoration -----------------------------------------------------------------------------


def restore_clips(job: Job) -> None:
    """Restore the missing frames, score each clip and write its videos. Collective.

    Raises OptionError or DataError if the output folder holds other files or results. Raises
    OptionError for a slow motion of a single instant.
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
        # A function (restored frame, sharp frame) -> {"lpips": 0.12}, or None without --lpips.
        more_scores = Lpips(job.lpips).to(device).score if job.lpips else None
        if utils_dist.is_main_process():
            claim_folder_of(job)

    plan = shared_plan(job)
    # Each rank takes every n-th item of a list, if there are n ranks. E.g. of 4 ranks, rank 1 takes
    # the items 1, 5, 9, ... The plan begins with the longest pieces, so each rank gets a long piece
    # first.
    of_this_rank = slice(utils_dist.get_rank(), None, utils_dist.get_world_size())
    with utils_dist.all_ranks_or_none():
        restore_share(job, restorer, plan[of_this_rank], more_scores)
    # Now all ranks have restored their pieces, so the clips that were cut between ranks are
    # complete and can be scored.
    cut_clips = sorted({work.clip_index for work in plan if not work.is_whole})
    with utils_dist.all_ranks_or_none():
        for clip_index in cut_clips[of_this_rank]:
            finish(job, restorer, job.clips[clip_index], more_scores, mean_pace=None)


def claim_folder_of(job: Job) -> None:
    """Take the output folder for this test. Rank 0 only.

    Raises OptionError or DataError if the folder holds other files or results.
    """
    watchdog.phase("check results")
    inputs = {}
    for clip in job.clips:
        inputs[clip.name] = clip.digest()
        watchdog.go_on()  # the digests of all clips may take minutes
    stems = {clip.name: job.stems_of(clip) for clip in job.clips}
    # The LPIPS weights are recorded by name, size and time of change, because to read 240 MB of
    # weights in each test would take too long.
    lpips_files = []
    for name in job.lpips:
        if os.path.exists(name):
            stat = os.stat(name)
            lpips_files.append([name, stat.st_size, stat.st_mtime_ns])
    outputs = job.outputs
    # Everything that the results depend on. The keys are part of run.json. If you add a key, the
    # run.json of an older version lacks it: tell `outputs._refuse_another_test` which value older
    # versions used.
    settings = {
        **job.method.settings(),
        "lpips": lpips_files,
        "save": outputs.save,
        "fps": outputs.fps,
        **job.reading_options,
        "metric.values": outputs.metric.values,
        "metric.more": outputs.metric.more,
    }
    # The settings are compared with the run.json of an earlier test. JSON has lists and no tuples,
    # so write the settings as JSON and read them back: tuples become lists.
    as_read_back = json.loads(json.dumps(settings))
    claim_folder(outputs, as_read_back, inputs, stems, job.overwrite)
    watchdog.phase("start")


def shared_plan(job: Job) -> list[Work]:
    """Return the plan of rank 0 on every rank. Collective."""
    # Only rank 0 looks at the files, because another rank might see the folder in another state.
    # `from_rank` sends plain values only, so the plan is sent as rows of numbers.
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
    """Return the frames still to be restored, as pieces of clips, the longest piece first.

    The longest pieces come first, so that all ranks end at nearly the same time. If there are fewer
    clips than ranks, clips are cut in time. E.g. 1 clip of 100 frames on 4 ranks -> 4 pieces of 25.

    Free to change: any division gives the same frames, bit for bit. What must stay: each missing
    frame is in exactly one piece, and a clip without a missing frame has one empty piece.
    test_main_test.py compares one rank with two.
    """
    outputs = job.outputs

    # Clips of which a result is missing: the scores (e.g. clips/street.json), or a file that the
    # user asked for by --save (e.g. street/000001.png, street.mp4).
    unfinished = []
    for clip_index, clip in enumerate(job.clips):
        files = [outputs.file("clip", clip.name), *outputs.results(clip.name, job.stems_of(clip))]
        if not all(path.exists() for path in files):
            unfinished.append(clip_index)
    finished_count = len(job.clips) - len(unfinished)
    if finished_count:
        logger.info("%d of %d clips are finished already", finished_count, len(job.clips))

    # The largest number of pieces of a clip, so that each rank has work. E.g. 2 unfinished clips on
    # 8 ranks: 4 pieces of each clip.
    pieces_of_clip = 1
    if unfinished and job.method.can_cut:
        pieces_of_clip = math.ceil(utils_dist.get_world_size() / len(unfinished))
    plan = []
    for clip_index in unfinished:
        missing = _missing_frames(job, job.clips[clip_index])
        # All frames from the first to the last missing one, because a piece is one range. Existing
        # frames in this range are computed again, to the same values.
        if missing:
            to_restore = range(missing[0], missing[-1] + 1)
        else:
            # No frame is missing. The clip stays in the plan to be scored.
            to_restore = range(0)
        pieces = _pieces(to_restore, pieces_of_clip)
        is_whole = len(pieces) == 1  # so the rank that restores the piece can score the clip
        plan += [Work(clip_index, piece, is_whole) for piece in pieces]
    # Pieces of the same length are in the order of clips and frames, which is the same in every
    # run.
    return sorted(plan, key=lambda work: (-len(work.frames), work.clip_index, work.frames.start))


def _pieces(frames: range, most: int) -> list[range]:
    """Cut frames into at most `most` pieces. All have the same length, but the last may be shorter.

    E.g. frames 10 to 19 in 3 pieces: 10 to 13, 14 to 17, 18 to 19. There may be fewer pieces than
    `most`: 9 frames in 4 pieces need pieces of 3 frames, and then three pieces are enough. Without
    frames there is one empty piece, because the clip still has to be scored.
    """
    if not frames:
        return [frames]
    length = math.ceil(len(frames) / most)
    return [frames[first : first + length] for first in range(0, len(frames), length)]


def _missing_frames(job: Job, clip: ClipReader) -> list[int]:
    """Return the indices of the frames of a clip of which a file is missing.

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


def restore_share(
    job: Job, restorer: FrameRestorer, share: Sequence[Work], more_scores: MoreScores | None
) -> None:
    """Restore the pieces of clips that this rank has.

    Each frame is written as soon as it is restored, so that an interrupted test loses one frame. If
    the restorer has pictures of how it restores, they are written for the example frame, too. A
    clip that was not cut between ranks is scored at once.

    share: the pieces of this rank.
    more_scores: a function (restored frame, sharp frame) -> scores, e.g. {"lpips": 0.12}. None:
    only the metrics of models/metrics.py are computed.
    """
    total = sum(len(work.frames) for work in share)
    # Time and number of the frames restored so far, over all pieces of this rank.
    seconds = 0.0
    restored_count = 0
    logger.info("restoring %d frames of %d clips (%s)", total, len(share), restorer.describe())
    with open_progress("bar", total, "restoring", "frames") as bar:
        for work in share:
            clip = job.clips[work.clip_index]
            if not work.frames:  # no frame of the clip is missing, only its scores are
                finish(job, restorer, clip, more_scores, mean_pace=None)
                logger.info("%s: scored; its frames were restored before", clip.name)
                continue
            begin = time.perf_counter()
            restored_count = _restore_piece(job, restorer, work, bar, restored_count)
            seconds += time.perf_counter() - begin
            mean_pace = seconds / restored_count  # seconds per frame
            if work.is_whole:
                finish(job, restorer, clip, more_scores, mean_pace)
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
    """Restore the frames of one piece, and write each frame at once.

    bar: shows the progress. The restorer calls `bar.update`.
    restored_before: number of frames that this rank has restored before this piece.

    Returns the number of frames that this rank has restored after this piece.
    """
    clip = job.clips[work.clip_index]
    restored_count = restored_before
    watchdog.phase(f"restore: {clip.name}", restored_count)
    restored_frames = restorer.frames(clip, work.frames, bar.update)
    # The report shows one frame of each clip. Some methods (`ShowsPictures`) have more pictures of
    # a frame, e.g. the motion that was found. The report shows them for the same frame.
    index_in_report = example_of(job.frames_of(clip))
    for index, frame in zip(work.frames, restored_frames, strict=True):
        # Write the pictures first. The file of the frame means that the frame is finished, so a
        # continued test would not write the pictures any more.
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
    """Score a clip of which all frames are restored, and write its videos and strips.

    more_scores: function that computes further scores, e.g. LPIPS. None: only the metrics of the
        options are computed.
    mean_pace: seconds per frame. This rank does not know the time of each clip, so it takes the
        mean over all frames that it has restored so far. None if the clip was cut between ranks,
        because then no rank has restored all of it, or if no frame of the clip was missing.
    """
    watchdog.phase(f"score: {clip.name}")
    # `describe` returns the tiles in words, e.g. "tiles of 12 frames x 256 px, ...".
    notes = {"s_per_frame": mean_pace, "tile": restorer.describe()}
    indices = job.frames_of(clip)
    finish_clip(clip, indices, job.outputs, more_scores, notes, job.method.is_grey)


# ---- Report ----------------------------------------------------------------------------------


def write_report(job: Job) -> None:
    """Write metrics.json, table.txt and report.html about the finished clips of the job.

    The log shows the table too.
    """
    watchdog.phase("report")
    folder = job.outputs.folder
    clips = {clip.name: clip for clip in job.clips}
    # The content of clips/<name>.json of each finished clip.
    loaded = [job.outputs.load_clip(name) for name in clips]
    entries = [entry for entry in loaded if entry is not None]

    # metrics.json and table.txt: the scores, and how they came about. `collect` returns
    # {"clips": ..., "averages": ...}, and marks averages over fewer clips than job.expected.
    protocol = protocol_of(job, entries)
    scores = collect(entries, expected=job.expected, mean=job.outputs.metric.mean)
    results = {"protocol": protocol, **scores}
    write_whole(folder / "metrics.json", json_bytes(results))
    table = score_text(results)
    lines = "\n".join(f"{key}: {value}" for key, value in protocol.items())
    write_whole(folder / "table.txt", f"{table}\n\n{lines}\n".encode())

    # report.html: the same with pictures and videos.
    examples = {}  # name of a clip -> name of a picture -> the picture
    captions = {}  # name of a clip -> name of a picture -> what it shows
    videos = {}  # name of a clip -> its comparison video, as text within the page
    for entry in entries[:MOST_CLIPS_IN_REPORT]:
        name = entry["name"]
        examples[name] = example_panels(job, clips[name], entry)
        captions[name] = {}
        # Pictures of how the method worked, e.g. the motion that it estimated.
        for picture in job.outputs.load_pictures(name):
            examples[name][picture.name] = picture.image
            captions[name][picture.name] = picture.caption
        video = job.outputs.file("comparison", name)
        if video.exists() and video.stat().st_size < MOST_BYTES_OF_VIDEO:
            videos[name] = data_uri("video/mp4", video.read_bytes())
    page = build_report(job.title, results, examples, videos, captions)
    write_whole(folder / "report.html", page.encode())

    log_lines = [f"{key}: {protocol[key]}" for key in LINES_OF_LOG if key in protocol]
    logger.info("%s\n%s\n%s", job.title, table, "\n".join(log_lines))
    logger.info("results are in %s (open report.html)", folder)


def protocol_of(job: Job, entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return how the clips were restored and scored, in words: the protocol of the test.

    entries: the contents of the JSON files of the finished clips.
    """
    protocol = job.method.protocol()
    for kind in ("input", "gt", "spike"):
        paths = [clip.origin[kind] for clip in job.clips if kind in clip.origin]
        if len(paths) > 1:
            protocol[kind] = f"{paths[0]} and {len(paths) - 1} more"
        elif paths:
            protocol[kind] = paths[0]
    protocol.setdefault("frames", job.frames_note)  # a method may have said more about its frames
    # Papers differ in which pixels they exclude from the scores. So say that none are excluded.
    protocol["crop"] = "none"
    protocol["border"] = "nothing excluded"
    # After an out-of-memory error, the tiles of later clips are smaller.
    different_tiles = {entry["tile"] for entry in entries}
    protocol["tile"] = ", or ".join(sorted(different_tiles))
    protocol["SpikeVRT"] = VERSION
    metric = job.outputs.metric
    protocol["metrics"] = protocol_text(metric.values, metric.mean)
    if job.lpips:
        protocol["metrics"] += LPIPS_NOTE
    if metric.more:
        protocol["further metrics"] = metrics_in_words(metric.more)
    protocol["device"] = devices.name(utils_dist.get_device())
    # A clip that was cut between ranks has no pace. Its entry is None.
    paces = [entry["s_per_frame"] for entry in entries if entry.get("s_per_frame")]
    if paces:
        protocol["speed"] = f"{np.mean(paces):.3f} s/frame per process"
    return protocol


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
    captions: Mapping[str, Mapping[str, str]] = {},
) -> str:
    """Return the HTML page of a test.

    The page has tables, the PSNR of each frame, a slider between the blurry and the restored frame,
    and videos that play beside the slider.

    results: the content of metrics.json, the result of `collect`.
    clips: name of a clip -> pictures of the example frame, (H, W, 3) uint8: "blurry" and
    "restored", "spikes" and "sharp" if there are any, and the pictures of the method (captions).
    videos: name of a clip -> data URI of the video that compares input and result.
    captions: name of a clip -> name of a picture of the method -> what the picture shows.
    """
    head, rows = score_table(results)
    # The metric of the plots: the first of PSNR and PSNR-Y (for grey frames) that the table has.
    # Without sharp frames the table has neither.
    metric = ""
    for name in ("psnr", "psnr_y"):
        if COLUMNS[name].title in head:
            metric = name
            break
    title_of_metric = COLUMNS[metric].title.removesuffix(" dB") if metric else ""
    plots = {}  # name of a clip -> its plot
    for name, clip in results["clips"].items():
        per_frame = clip.get("per_frame")
        if per_frame:
            decibels = {}  # "restored" and "input" -> PSNR of each frame
            for kind, scores in per_frame.items():
                decibels[kind] = [float(score) for score in scores[metric]]
            plots[name] = psnr_plot(decibels)
    return render(
        "test",
        title=title,
        total=results["averages"].get("restored"),
        head=head,
        rows=rows,
        instants=instants_psnr(results),
        clips=clips,
        videos=videos,
        captions=captions,
        metric=title_of_metric,
        plots=plots,
        protocol=results["protocol"],
    )


def psnr_plot(lines: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the numbers of an SVG of PSNR over the frame number, for the template of the report.

    Infinite values (equal images) are drawn at the upper end.

    lines: "restored" and "input" -> dB of each frame.
    """
    low, high = _range_of_psnr(lines)

    # Size of the picture in pixels, and the margins, in which the template draws the numbers of the
    # axes. utils/templates/test.html repeats the margins, so change them in both files.
    width = 760
    height = 150
    left = 44
    right = 10
    above = 10
    below = 24
    plot_width = width - left - right
    plot_height = height - above - below
    frame_count = max(len(values) for values in lines.values())
    steps = max(frame_count - 1, 1)  # between the first and the last frame; not 0, a divisor
    polylines = {}
    for kind, values in lines.items():
        level = (np.minimum(values, high) - low) / (high - low)  # 0 (low) to 1 (high)
        x = left + plot_width * np.arange(len(values)) / steps
        y = above + plot_height * (1 - level)  # pixels are counted from the top
        # The form of an SVG polyline: "44.0,75.2 58.6,70.1 ..."
        points = [f"{px:.1f},{py:.1f}" for px, py in zip(x, y, strict=True)]
        polylines[kind] = " ".join(points)
    # The keys are names in the template of the report.
    return {
        "width": width,
        "height": height,
        "low": low,
        "high": high,
        "count": frame_count,
        "lines": polylines,
    }


def _range_of_psnr(lines: Mapping[str, Sequence[float]]) -> tuple[int, int]:
    """Return the ends (low, high) of the vertical axis of `psnr_plot`, in whole dB.

    E.g. values from 28.3 to 31.2 dB -> (28, 32). The range has at least 1 dB. Without a finite
    value it is (0, 1).
    """
    finite_values = []
    for values in lines.values():
        finite_values += [value for value in values if np.isfinite(value)]
    if not finite_values:
        finite_values = [0.0]
    low = int(np.floor(min(finite_values)))
    high = int(np.ceil(max(finite_values)))
    if high == 0:  # e.g. no finite value: the axis goes from 0 to 1 dB
        high = 1
    # If all values are the same whole number, low and high are equal so far.
    return low, max(high, low + 1)
