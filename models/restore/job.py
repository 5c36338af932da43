"""The job of main_test_vrt.py: which clips to restore and how, the share of each rank, and the
report.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.metrics import COLUMNS, metrics_in_words
from models.restore.lpips import Lpips
from models.restore.outputs import Outputs, claim_folder, finish_clip
from models.restore.scores import (
    collect,
    instants_psnr,
    protocol_text,
    score_table,
    score_text,
)
from utils import VERSION, utils_dist
from utils import device as devices
from utils.contract import ClipReader, Method, wanted_frames
from utils.dist import watchdog
from utils.errors import OptionError
from utils.files import write_whole
from utils.image import ERROR, comparison, data_uri, imread_rgb, render, tensor_to_uint8
from utils.results import json_bytes
from utils.run.progress import open_progress

# Pages of more than some tens of megabytes open slowly.
MAX_CLIPS, MAX_VIDEO = 24, 2**20  # bytes
LPIPS = "; LPIPS: AlexNet, version 0.1"
# Of the protocol in the log, which never has both of the first; table.txt and metrics.json have all
# of it.
SHOWN = ("weights", "method", "tile", "speed")

MoreScores = Callable[
    [np.ndarray, np.ndarray], dict[str, float]
]  # of (restored, sharp), see `add_scores`

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """What is restored, how, and where the results go.

    clips: in the order of their names. lpips: files of its weights, or none. overwrite: see
    `claim_folder`.
    expected: number of clips that there should be; averages over fewer are marked.
    section: resolved options that say what is read of the files and how.
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
        return wanted_frames(len(clip.stems), self.method.center_frame_only)


@dataclass(frozen=True)
class Work:
    """Consecutive frames of one clip, for one rank. clip: index in Job.clips. is_whole: no other
    rank has a part.
    """

    clip: int
    frames: range
    is_whole: bool


def restore_clips(job: Job) -> None:
    """Restore the missing frames, score each clip and write its videos. Collective.

    Raises where the output folder contains other files or results, see `claim_folder`, and for a
    slow motion where there is a single instant.
    """
    device = utils_dist.get_device()
    with utils_dist.all_ranks_or_none():
        if "slowmotion" in job.outputs.save and job.method.instants == 1:
            what = "--save slowmotion, and one sharp frame is restored for each blurry one"
            expected = "a network with several instants of each exposure (netG.out_instants)"
            raise OptionError(what, "--save slowmotion", expected, "leave out slowmotion")
        restorer = job.method.restorer(device)
        more_scores = Lpips(job.lpips).to(device).score if job.lpips else None
        if utils_dist.is_main_process():
            watchdog.phase(
                "check results"
            )  # reads every result of an earlier run; each file counts as progress
            inputs = {}
            for clip in job.clips:
                inputs[clip.name] = clip.digest()
                watchdog.go_on()
            stems = {clip.name: [clip.stems[k] for k in job.frames_of(clip)] for clip in job.clips}
            lpips = [(name, os.stat(name)) for name in job.lpips if os.path.exists(name)]
            settings = {
                **job.method.settings(),
                "lpips": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in lpips],
                "save": job.outputs.save, "fps": job.outputs.fps, **job.section,
                "metric.values": job.outputs.metric.values, "metric.more": job.outputs.metric.more,
            }  # fmt: skip
            claim_folder(
                job.outputs, json.loads(json.dumps(settings)), inputs, stems, job.overwrite
            )
            watchdog.phase("start")
    own_plan = plan_work(job) if utils_dist.is_main_process() else []
    rows = [(work.clip, work.frames.start, work.frames.stop, work.is_whole) for work in own_plan]
    plan = [
        Work(clip, range(start, stop), is_whole)
        for clip, start, stop, is_whole in utils_dist.from_rank(0, rows)
    ]
    share = slice(utils_dist.get_rank(), None, utils_dist.get_world_size())
    with utils_dist.all_ranks_or_none():
        restore_share(job, restorer, plan[share], more_scores)
    # Only now are all parts of the clips that several ranks have restored complete.
    with utils_dist.all_ranks_or_none():
        for index in sorted({work.clip for work in plan if not work.is_whole})[share]:
            finish(job, restorer, job.clips[index], more_scores, None)


def plan_work(job: Job) -> list[Work]:
    """The frames still to be restored, longest part first; rank r takes parts r, r + world size,
    ...

    With fewer clips than ranks, clips are cut in time. The restored frames do not depend on the
    cuts, bit for bit.
    """
    outputs, todo, plan = job.outputs, [], []
    for index, clip in enumerate(job.clips):
        stems = [clip.stems[k] for k in job.frames_of(clip)]
        files = [outputs.file("clip", clip.name), *outputs.results(clip.name, stems)]
        todo += [] if all(path.exists() for path in files) else [index]
    if done := len(job.clips) - len(todo):
        logger.info("%d of %d clips are finished already", done, len(job.clips))
    pieces = -(-utils_dist.get_world_size() // len(todo)) if todo and job.method.can_cut else 1
    for index in todo:
        clip, missing = job.clips[index], []
        for k in job.frames_of(clip):
            files = [
                outputs.file("frame", clip.name, clip.stems[k]),
                *outputs.exact_files(clip.name, [clip.stems[k]]),
            ]
            missing += [] if all(path.exists() for path in files) else [k]
        left = range(missing[0], missing[-1] + 1) if missing else range(0)
        size = -(-len(left) // pieces) or 1
        cuts = [left[i : i + size] for i in range(0, len(left), size)] or [left]
        plan += [Work(index, cut, len(cuts) == 1) for cut in cuts]
    return sorted(plan, key=lambda work: (-len(work.frames), work.clip, work.frames.start))


def restore_share(
    job: Job, restorer: Any, mine: Sequence[Work], more_scores: MoreScores | None
) -> None:
    """Restore this rank's parts.

    Each frame is written as soon as it is restored; whole clips are finished.

    restorer: see utils.contract.Method.
    """
    total = sum(len(work.frames) for work in mine)
    seconds, count = 0.0, 0
    logger.info("restoring %d frames of %d clips (%s)", total, len(mine), restorer.describe())
    with open_progress("bar", total, "restoring", "frames") as bar:
        for work in mine:
            clip, begin = job.clips[work.clip], time.perf_counter()
            watchdog.phase(f"restore: {clip.name}", count)
            for index, frame in zip(
                work.frames, restorer.frames(clip, work.frames, bar.update), strict=True
            ):
                job.outputs.write_frame(clip.name, clip.stems[index], frame)
                count += 1
                watchdog.phase(f"restore: {clip.name}", count)
            seconds += time.perf_counter() - begin
            pace = seconds / max(count, 1)
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
    job: Job, restorer: Any, clip: ClipReader, more: MoreScores | None, pace_s: float | None
) -> None:
    """See `finish_clip`. pace_s: seconds per frame; None where this rank has not restored the whole
    clip.
    """
    watchdog.phase(f"score: {clip.name}")
    notes = {"s_per_frame": pace_s, "tile": restorer.describe()}
    finish_clip(clip, job.frames_of(clip), job.outputs, more, notes, job.method.is_grey)


def write_report(job: Job) -> None:
    """metrics.json, table.txt and report.html over the clips of the job; the table goes to the log
    too.
    """
    watchdog.phase("report")
    folder, clips = job.outputs.folder, {clip.name: clip for clip in job.clips}
    entries = [entry for name in clips if (entry := job.outputs.load_clip(name)) is not None]
    paces = [entry["s_per_frame"] for entry in entries if entry.get("s_per_frame")]
    about, metric = job.method.protocol(), job.outputs.metric
    for kind in ("input", "gt", "spike"):
        if paths := [clip.origin[kind] for clip in job.clips if kind in clip.origin]:
            about[kind] = f"{paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else paths[0]
    about = {
        **about,
        "frames": about.get("frames", job.frames_note),
        "crop": "none", "border": "nothing excluded",
        "tile": ", or ".join(sorted({entry["tile"] for entry in entries})),
        "SpikeVRT": VERSION,
        "metrics": protocol_text(metric.values, metric.mean) + LPIPS * bool(job.lpips),
        **({"further metrics": metrics_in_words(metric.more)} if metric.more else {}),
        "device": devices.name(utils_dist.get_device()),
        **({"speed": f"{np.mean(paces):.3f} s/frame per process"} if paces else {}),
    }  # fmt: skip
    results = {"protocol": about, **collect(entries, job.expected, metric.mean)}
    write_whole(folder / "metrics.json", json_bytes(results))
    table = score_text(results)
    lines = "\n".join(f"{key}: {value}" for key, value in about.items())
    write_whole(folder / "table.txt", f"{table}\n\n{lines}\n".encode())
    examples, videos = {}, {}
    for entry in entries[:MAX_CLIPS]:
        name, clip = entry["name"], clips[entry["name"]]
        index = list(clip.stems).index(entry["example"])
        item, restored = clip.frame(index), imread_rgb(job.outputs.file("example", name))
        spikes = clip.spike_light(index, item["spike"]) if "spike" in item else None
        sharp = tensor_to_uint8(item["gt"]) if "gt" in item else None
        panels = comparison(tensor_to_uint8(item["lq"][:3]), spikes, restored, sharp)
        examples[name] = {key: panel for key, panel in panels.items() if key != ERROR}
        video = job.outputs.file("comparison", name)
        if video.exists() and video.stat().st_size < MAX_VIDEO:
            videos[name] = data_uri("video/mp4", video.read_bytes())
    write_whole(folder / "report.html", build_report(job.title, results, examples, videos).encode())
    shown = [f"{key}: {about[key]}" for key in SHOWN if key in about]
    logger.info("%s\n%s\n%s", job.title, table, "\n".join(shown))
    logger.info("results are in %s (open report.html)", folder)


def build_report(
    title: str,
    results: Mapping[str, Any],
    clips: Mapping[str, Mapping[str, np.ndarray]],
    videos: Mapping[str, str] = {},
) -> str:
    """The page: tables, PSNR of each frame, a slider between blurry and restored, and videos that
    play beside it.

    results: the content of metrics.json, see `collect`. clips: name -> {"blurry", "restored",
    "spikes" and "sharp" if there are any: (H, W, 3) uint8} of the example frame. videos: name ->
    data URI of the comparison.
    """
    head, rows = score_table(results)
    scores = {
        name: clip["per_frame"] for name, clip in results["clips"].items() if clip.get("per_frame")
    }
    # Grey frames have PSNR-Y only.
    metric = next((m for m in ("psnr", "psnr_y") if COLUMNS[m].title in head), "")
    lines = {
        name: {kind: [*map(float, v[metric])] for kind, v in kinds.items()}
        for name, kinds in scores.items()
    }
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
        plots={name: psnr_plot(values) for name, values in lines.items()},
        protocol=results["protocol"],
    )


def psnr_plot(lines: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """An SVG of PSNR over the frame number, as the template draws it; infinite values are cut.

    lines: "restored" and "input" -> dB per frame.
    """
    width, height = 760, 150
    finite = [v for values in lines.values() for v in values if np.isfinite(v)] or [0.0]
    low, high = int(np.floor(min(finite))), int(np.ceil(max(finite))) or 1
    high = high if high > low else low + 1
    count = max(len(values) for values in lines.values())
    points = {}
    for kind, values in lines.items():
        x = 44 + (width - 54) * np.arange(len(values)) / max(count - 1, 1)
        y = 10 + (height - 34) * (1 - (np.minimum(values, high) - low) / (high - low))
        points[kind] = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return {
        "width": width,
        "height": height,
        "low": low,
        "high": high,
        "count": count,
        "lines": points,
    }
