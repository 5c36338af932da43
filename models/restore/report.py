"""Write the results of all clips of a test: metrics.json, table.txt and report.html.

A test restores clips with main_test_vrt.py, which calls `write_report` on rank 0, after run_job.py
has restored all clips of a `Job`. For each clip, `write_report` reads clips/<name>.json, which
finished_clip.py wrote: {"name", "frames", "stems", "example", "per_frame": scores, "s_per_frame",
"tile"}. scores.py makes averages and a table of the scores. The table is also shown in the log.

What must stay: the keys of metrics.json, and the lines of the protocol, because users' scripts and
the protocols of published numbers read them. Free to change: what report.html shows, and in which
order.

Tests: tests/parts/utils/test_results.py, tests/stories/test_main_test.py
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from models.metrics import COLUMNS, metrics_in_words
from models.restore.finished_clip import comparison_of
from models.restore.job import Job
from models.restore.psnr_plot import psnr_plot
from models.restore.scores import (
    LPIPS_NOTE,
    collect,
    instants_psnr,
    protocol_text,
    score_table,
    score_text,
)
from utils import VERSION, utils_dist
from utils import device as devices
from utils.contract import ClipReader
from utils.dist import watchdog
from utils.files import write_whole
from utils.image import ERROR, data_uri, imread_rgb, render
from utils.results import json_bytes
from utils.secrets import redact

logger = logging.getLogger(__name__)

# Two limits of report.html, chosen by hand. A browser opens a small page quickly. The videos of the
# page have at most 24 x 1 MiB together.
MOST_CLIPS_IN_REPORT = 24  # number of clips whose pictures and videos are shown
MOST_BYTES_OF_VIDEO = 2**20  # 1 MiB. Only smaller videos are shown
# Lines of the protocol that the log shows, if the method has them. A network has the line
# "weights", a formula the line "method". table.txt and metrics.json have the whole protocol.
LINES_OF_LOG = ("weights", "method", "tile", "speed")


def write_report(job: Job) -> None:
    """Write metrics.json, table.txt and report.html about the finished clips of the job.

    The log shows the table, too.
    """
    watchdog.phase("report")
    folder = job.outputs.folder
    names = dict.fromkeys(clip.name for clip in job.clips)  # each name once, in order
    # The content of clips/<name>.json of each clip, or None if the clip is not finished.
    loaded = [job.outputs.load_clip(name) for name in names]
    entries = [entry for entry in loaded if entry is not None]

    # metrics.json and table.txt: the scores, and how they came about.
    protocol = protocol_of(job, entries)
    scores = collect(entries, expected=job.expected, mean=job.outputs.metric.mean)
    results = {"protocol": protocol, **scores}  # keys: "protocol", "clips", "averages"
    write_whole(folder / "metrics.json", json_bytes(results))
    table = score_text(results)
    lines = "\n".join(f"{key}: {value}" for key, value in protocol.items())
    write_whole(folder / "table.txt", f"{table}\n\n{lines}\n".encode())

    # report.html: the same results, with pictures and videos.
    page = _page_of(job, entries, results)
    write_whole(folder / "report.html", page.encode())

    log_lines = [f"{key}: {protocol[key]}" for key in LINES_OF_LOG if key in protocol]
    logger.info("%s\n%s\n%s", job.title, table, "\n".join(log_lines))
    logger.info("results are in %s (open report.html)", folder)


def _page_of(job: Job, entries: Sequence[Mapping[str, Any]], results: Mapping[str, Any]) -> str:
    """Return the HTML page of a test, with pictures and videos of the first clips.

    entries: the contents of the JSON files of the finished clips.
    results: the content of metrics.json.
    """
    clips = {clip.name: clip for clip in job.clips}
    # The arguments of `build_report`: name of a clip -> its pictures, captions or video.
    examples = {}
    captions = {}
    videos = {}
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
    return build_report(job.title, results, examples, videos, captions)


def protocol_of(job: Job, entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return how the clips were restored and scored, in words: the protocol of the test.

    entries: the contents of the JSON files of the finished clips.
    """
    protocol = job.method.protocol()
    for kind in ("input", "gt", "spike"):
        # Say where the files of the clips come from. Not every clip has files of each kind.
        paths = [clip.origin[kind] for clip in job.clips if kind in clip.origin]
        if len(paths) > 1:
            protocol[kind] = f"{paths[0]} and {len(paths) - 1} more"
        elif paths:
            protocol[kind] = paths[0]
    protocol.setdefault("frames", job.frames_note)  # a method may have said more about its frames
    # Papers differ in the pixels that they exclude from the scores. Some papers score only a crop
    # of each frame ("crop"), and some leave out a few pixels along its edges ("border"). A test of
    # this program scores every pixel.
    protocol["crop"] = "none"
    protocol["border"] = "nothing excluded"
    # Usually all clips have the same tiles. After an out-of-memory error, later clips have smaller
    # tiles.
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
    # Seconds per frame of each clip. A clip that was cut between ranks has None (`finish` in
    # run_job.py).
    paces = [entry["s_per_frame"] for entry in entries if entry.get("s_per_frame")]
    if paces:
        protocol["speed"] = f"{np.mean(paces):.3f} s/frame per process"
    return redact(protocol)  # a path may hold a secret


def example_panels(job: Job, clip: ClipReader, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return panels of the example frame of a finished clip: restored, input, spikes and sharp.

    The example frame is the middle restored frame. A panel is a picture with a title.

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
    examples: Mapping[str, Mapping[str, np.ndarray]],
    videos: Mapping[str, str] = {},
    captions: Mapping[str, Mapping[str, str]] = {},
) -> str:
    """Return the HTML page of a test.

    The page has tables, the PSNR of each frame, a slider between the blurry and the restored frame,
    and videos that play beside the slider.

    title: the heading of the page.
    results: the content of metrics.json: the result of `collect`, and the key "protocol".
    examples: name of a clip -> pictures (H, W, 3) uint8 of its example frame: "blurry" and
        "restored", "spikes" and "sharp" if there are any, and pictures of how the method worked.
    videos: name of a clip -> data URI of the video that compares input and result.
    captions: name of a clip -> name of a picture of the method -> what the picture shows.
    """
    head, rows = score_table(results)
    plotted_metric = _metric_of_plots(head)
    plots = {}
    title_of_metric = ""
    if plotted_metric is not None:
        plots = _plots(results, plotted_metric)
        title_of_metric = COLUMNS[plotted_metric].title.removesuffix(" dB")
    # The names of the arguments are names in the template, utils/templates/test.html.
    return render(
        "test",
        title=title,
        total=results["averages"].get("restored"),
        head=head,
        rows=rows,
        instants=instants_psnr(results),
        clips=examples,
        videos=videos,
        captions=captions,
        metric=title_of_metric,
        plots=plots,
        protocol=results["protocol"],
    )


def _metric_of_plots(head: Sequence[str]) -> str | None:
    """Return the metric that is plotted: PSNR, or PSNR-Y for grey frames.

    Without sharp frames, the table of scores has no column of either metric, and None is returned.

    head: titles of the columns of the score table.
    """
    for metric in ("psnr", "psnr_y"):
        if COLUMNS[metric].title in head:
            return metric
    return None


def _plots(results: Mapping[str, Any], metric: str) -> dict[str, dict[str, Any]]:
    """Return the plot of each clip that has scores: name of the clip -> result of `psnr_plot`.

    results: the result of `collect`. metric: key of the scores to plot.
    """
    plots = {}
    for name, clip in results["clips"].items():
        per_frame = clip.get("per_frame")
        if per_frame:
            decibels = {}  # "restored" and "input" -> PSNR of each frame
            for kind, scores in per_frame.items():
                decibels[kind] = [float(score) for score in scores[metric]]
            plots[name] = psnr_plot(decibels)
    return plots
