"""Averages of the scores of a test, the table of scores, and the protocol in words.

A test restores clips with main_test_vrt.py, and scores them. `collect` turns the scores of each
frame into the scores and averages of metrics.json. `score_table` and `score_text` show them. A
"kind" is what was scored: "restored", "input" (the blurry frame, to compare with), "instant 0",
"instant 1", ...

What must stay: the keys and the order of metrics.json, because users' scripts read them
(test_the_averages_are_over_clips_and_over_frames_and_the_table_shows_both). Free to change: how the
table looks. A new key may be added.

Tests: tests/parts/utils/test_results.py, tests/stories/test_main_test.py
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.metrics import COLUMNS, format_score
from utils.name_order import natural_key
from utils.results import plain_table

# Value of the option metric.values -> what it means, in words for the report. The texts here and in
# MEANS are part of the protocol of a test, so they must stay. If an option gets a new value
# (`MetricOptions` in utils/options/val_options.py), add the text of the value here. A new value of
# metric.mean also needs a line in OTHER_MEANS.
NUMBER_FORMATS = {
    "uint8": "clamp 0..1, x255, round to uint8",
    "clamped": "clamp 0..1, x255, not rounded",
    "float": "x255, neither clamped nor rounded",
}
# Value of the option metric.mean -> what it means, in words.
MEANS = {"clips": "frame -> clip mean -> mean over clips", "frames": "mean over all frames"}


class OtherMean(NamedTuple):
    """The second mean of a metric.

    metrics.json has two means of each metric, over clips and over frames. The option metric.mean
    chooses the mean whose key is the name of the metric, e.g. "psnr". The second mean has a longer
    key, e.g. "psnr_frame_mean".
    """

    over: str  # "clips" or "frames": what is averaged
    key: str  # its key in metrics.json, in which {metric} stands for the name of the metric


# Value of metric.mean -> the second mean.
OTHER_MEANS = {
    "clips": OtherMean(over="frames", key="{metric}_frame_mean"),
    "frames": OtherMean(over="clips", key="{metric}_clip_mean"),
}


def protocol_text(number_format: str, mean: str) -> str:
    """Return how frames are scored and averaged, in words.

    number_format: value of the option metric.values, a key of NUMBER_FORMATS.
    mean: value of the option metric.mean, a key of MEANS.
    """
    return (
        f"{NUMBER_FORMATS[number_format]}; MSE over RGB in float64; "
        "SSIM with an 11x11 Gaussian (sigma 1.5), valid region, mean over channels; "
        f"Y: BT.601 luma 16..235, not rounded; no border crop; {MEANS[mean]}"
    )


# With --lpips, report.py appends LPIPS_NOTE to `protocol_text`. scripts/compare_runs.py cuts the
# note off before it compares two protocols. compare_runs.py finds the note by its start. The start
# must stay, because the files of finished tests have it.
START_OF_LPIPS_NOTE = "; LPIPS"
LPIPS_NOTE = f"{START_OF_LPIPS_NOTE}: AlexNet, version 0.1"


def collect(
    clips: Sequence[Mapping[str, Any]], expected: int, mean: str = "clips"
) -> dict[str, Any]:
    """Return the scores and averages of metrics.json. report.py adds the key "protocol".

    E.g. for one clip of 10 frames, with mean "clips":

        {"clips": {"street": {"frames": 10, "per_frame": {...}, "restored": {"psnr": 30.1}, ...}},
         "averages": {"restored": {"psnr": 30.1,             mean over clips
                                   "psnr_frame_mean": 30.1,  mean over frames
                                   "mean": "clips", "frames": 10, "clips_found": 1,
                                   "clips_expected": 1, "complete": true}, ...}}

    clips: an entry for each clip, the content of its clips/<name>.json: {"name", "frames",
        "per_frame": Scores, ...}. A clip without sharp frames has no scores, and does not count for
        the averages.
    expected: number of clips that there should be. With fewer clips, "complete" is false.
    mean: "clips" or "frames", the mean whose key is the name of the metric.
    """

    def name_for_sorting(clip: Mapping[str, Any]) -> Any:
        return natural_key(clip["name"])  # "clip2" before "clip10"

    # The value of "clips": name of a clip -> its row, i.e. its entry without the name, and with the
    # mean of each metric.
    table: dict[str, dict[str, Any]] = {}
    for clip in sorted(clips, key=name_for_sorting):
        row = {key: value for key, value in clip.items() if key != "name"}
        for kind, scores in clip["per_frame"].items():
            means = {}
            for metric, values in scores.items():  # e.g. "psnr", [30.2, 30.0]
                means[metric] = float(np.mean(values))
            row[kind] = means  # e.g. row["restored"] = {"psnr": 30.1}
        table[clip["name"]] = row

    # The kinds, each once, in the order in which they appear.
    kinds: list[str] = []
    for row in table.values():
        kinds += [kind for kind in row["per_frame"] if kind not in kinds]
    averages = {}
    for kind in kinds:
        rows_of_kind = [row for row in table.values() if kind in row["per_frame"]]
        averages[kind] = _averages(rows_of_kind, kind, expected, mean)
    return {"clips": table, "averages": averages}


def _averages(rows: list[dict[str, Any]], kind: str, expected: int, mean: str) -> dict[str, Any]:
    """Return the averages of one kind. `collect` puts them into "averages", e.g. as "restored".

    The keys must stay, because users' scripts read them in metrics.json.

    rows: the clips that have this kind. E.g. for "restored", each row is

            {"restored": {"psnr": 30.1},                            mean of the clip
             "per_frame": {"restored": {"psnr": [30.2, 30.0]}},     value of each frame
             ...}

    expected: number of clips that there should be.
    mean: "clips" or "frames", the mean whose key is the name of the metric.
    """
    averages: dict[str, Any] = {}
    frame_count = 0
    # All rows have the same metrics, because a folder with scores of other metrics is refused
    # (`refuse_another_test` in earlier_results.py).
    for metric in rows[0][kind]:
        values_of_frames: list[float] = []  # values of this metric, of all frames of all clips
        for row in rows:
            values_of_frames += row["per_frame"][kind][metric]
        frame_count = len(values_of_frames)  # the same for each metric: one value per frame
        mean_over = {
            "clips": sum(row[kind][metric] for row in rows) / len(rows),
            "frames": sum(values_of_frames) / frame_count,
        }
        # OTHER_MEANS has the key of the second mean:
        #
        #     mean        averages["psnr"]    second mean
        #     "clips"     over clips          averages["psnr_frame_mean"], over frames
        #     "frames"    over frames         averages["psnr_clip_mean"], over clips
        other = OTHER_MEANS[mean]
        averages[metric] = mean_over[mean]
        averages[other.key.format(metric=metric)] = mean_over[other.over]
    averages |= {
        "mean": mean,
        "frames": frame_count,
        "clips_found": len(rows),
        "clips_expected": expected,
        "complete": len(rows) == expected,
    }
    return averages


def score_table(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table of a test.

    There is a row for each clip. If there are sharp frames, two rows follow: the mean over clips
    and the mean over frames. To the right of each score is the score of the blurry input. The last
    column is the gain of the restored frame over the input, in the first metric: PSNR, or PSNR-Y
    for grey frames. E.g.

        clip             frames  PSNR dB  input  ...  gain dB
        street               10    30.10  28.85           +1.25
        mean over clips      10    30.10  28.85           +1.25

    results: the result of `collect`.
    """
    restored_means = results["averages"].get("restored", {})
    input_means = results["averages"].get("input", {})
    metrics = [metric for metric in COLUMNS if metric in restored_means]
    rows = []
    for name, clip in results["clips"].items():
        restored = clip.get("restored", {})
        blurry = clip.get("input", {})
        rows.append(_row(name, clip["frames"], restored, blurry, metrics))
    if metrics:
        rows += _rows_of_means(restored_means, input_means, metrics)

    # The columns must be in the order of the cells of `_row`.
    header = ["clip", "frames"]
    for metric in metrics:
        header += [COLUMNS[metric].title, "input"]
    if metrics:
        header.append("gain dB")
    return header, rows


def _rows_of_means(
    restored_means: Mapping[str, Any], input_means: Mapping[str, Any], metrics: Sequence[str]
) -> list[list[str]]:
    """Return two rows of `score_table`: the mean that metric.mean chooses, and the second mean.

    E.g. with metric.mean "clips", the second mean is the mean over all frames.

    restored_means, input_means: entries of "averages" (`collect`). input_means may be {}.
    """
    mean = restored_means["mean"]  # "clips" or "frames"
    frames = restored_means["frames"]
    other = OTHER_MEANS[mean]
    other_restored = {}
    other_blurry = {}
    for metric in metrics:
        key = other.key.format(metric=metric)  # e.g. "psnr_frame_mean"
        other_restored[metric] = restored_means.get(key)
        other_blurry[metric] = input_means.get(key)
    return [
        _row(f"mean over {mean}", frames, restored_means, input_means, metrics),
        _row(f"mean over {other.over}", frames, other_restored, other_blurry, metrics),
    ]


def _row(
    name: str,
    frames: int,
    restored: Mapping[str, Any],
    blurry: Mapping[str, Any],
    metrics: Sequence[str],
) -> list[str]:
    """Return one row of `score_table`.

    name: the first cell, a clip or a mean. frames: number of frames.
    restored, blurry: metric -> score. {} if there are no scores.
    """
    cells = [name, str(frames)]
    for metric in metrics:
        cells.append(format_score(metric, restored.get(metric)))
        cells.append(format_score(metric, blurry.get(metric)))
    if metrics:
        cells.append(_gain(restored.get(metrics[0]), blurry.get(metrics[0])))
    return cells


def _gain(restored: float | str | None, blurry: float | str | None) -> str:
    """Return the gain in decibels for a table, e.g. "+1.25", or "-" if a score is missing."""
    if restored is None or blurry is None:
        return "-"
    # Both may be infinite, and inf - inf is NaN
    # (test_the_gain_of_frames_without_error_is_a_number).
    if float(restored) == float(blurry):
        return "+0.00"
    return f"{float(restored) - float(blurry):+.2f}"


def score_text(results: Mapping[str, Any]) -> str:
    """Return `score_table` as text, with the scores of the instants.

    If clips are missing, the first line says so.
    """
    header, rows = score_table(results)
    lines = [plain_table(rows, header)]
    averages = results["averages"].get("restored")
    instants = instants_psnr(results)
    if instants:
        psnrs = ", ".join(instants)
        lines.append(f"PSNR dB of the instants, mean over {averages['mean']}: {psnrs}")
    if averages:
        found_count = averages["clips_found"]
        lines.append(f"clips found {found_count}, expected {averages['clips_expected']}")
        if not averages["complete"]:
            lines.insert(0, "INCOMPLETE: the averages below do not cover the whole set")
    return "\n".join(lines)


def instants_psnr(results: Mapping[str, Any]) -> list[str]:
    """Return the mean PSNR of each instant of an exposure, as text, e.g. ["30.12", "30.50"].

    Returns [] if no instants were scored.
    """
    averages = results["averages"]
    kinds = [kind for kind in averages if kind.startswith("instant ")]
    kinds.sort(key=natural_key)  # "instant 2" before "instant 10"
    return [format_score("psnr", averages[kind]["psnr"]) for kind in kinds]
