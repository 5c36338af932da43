"""PSNR and SSIM as the field reports them, their averages over clips or frames, and tables.

What the metrics see (VALUES) and how they are averaged (MEANS) are options; per frame, in float64,
no border crop.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from utils.errors import DataError
from utils.files import natural_key

METRICS = ("psnr", "ssim", "psnr_y", "ssim_y")
LUMA_METRICS = ("psnr_y", "ssim_y")
LEAST_WIDTH = 8  # of a column of a table that is cut
COLUMNS = {
    "psnr": "PSNR dB",
    "ssim": "SSIM",
    "psnr_y": "PSNR-Y dB",
    "ssim_y": "SSIM-Y",
    "lpips": "LPIPS",
}
# metric.values and metric.mean -> in words, for the report.
VALUES = {
    "uint8": "clamp 0..1, x255, round to uint8",
    "clamped": "clamp 0..1, x255, not rounded",
    "float": "x255, neither clamped nor rounded",
}
MEANS = {"clips": "frame -> clip mean -> mean over clips", "frames": "mean over all frames"}
# Of one clip: "restored", "input", "instant 0", ... -> metric -> value of each frame.
Scores = dict[str, dict[str, list[float]]]

_INFINITE = re.compile(
    r'(?<!\\)"(-?)inf"(?!\s*:)'
)  # a whole value of `json_bytes`, no key and no part of a text
_SSIM_KERNEL = cv2.getGaussianKernel(11, 1.5)


def rgb_to_y(image: np.ndarray) -> np.ndarray:
    """(H, W, 3) RGB in 0..255 -> (H, W) float64 luma in 16..235, not rounded (ITU-R BT.601,
    MATLAB's rgb2ycbcr).
    """
    return image.astype(np.float64) @ (np.array([65.481, 128.553, 24.966]) / 255.0) + 16.0


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """20 log10(255 / sqrt(MSE)) in dB over all values of two images in 0..255; inf where they are
    equal.
    """
    _check_shapes(a, b)
    mse = float(np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2))
    return float("inf") if mse == 0 else 20 * float(np.log10(255.0 / np.sqrt(mse)))


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Structural similarity of two images (H, W) or (H, W, C) in 0..255, mean over channels; at
    most 1.

    Source: Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment: from error visibility to
    structural similarity", IEEE TIP 13(4), 2004, eq. 13 with the authors' constants and window: K1
    0.01, K2 0.03, L 255, Gaussian 11x11 of sigma 1.5, population (not sample) covariance, mean over
    the pixels whose window lies inside the image.
    """
    _check_shapes(a, b)
    if min(a.shape[:2]) < len(_SSIM_KERNEL):
        what = f"SSIM of an image of {a.shape[1]}x{a.shape[0]}"
        raise DataError(what, "", "at least 11x11 pixels", "use larger frames")
    x, y = a.astype(np.float64), b.astype(np.float64)
    mean_x, mean_y = _ssim_window(x), _ssim_window(y)
    var_x = _ssim_window(x * x) - mean_x**2
    var_y = _ssim_window(y * y) - mean_y**2
    cov = _ssim_window(x * y) - mean_x * mean_y
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    similarity = (
        (2 * mean_x * mean_y + c1)
        * (2 * cov + c2)
        / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))
    )
    return float(similarity.mean())


def add_scores(
    scores: Scores, kind: str, image: np.ndarray | None, sharp: np.ndarray, metrics: Sequence[str] = METRICS,
    more: Callable[[np.ndarray, np.ndarray], dict[str, float]] | None = None,
) -> None:  # fmt: skip
    """Score one frame of a clip and append its values to `scores`: the one function of validation
    and testing.

    image, sharp: (H, W, 3) RGB in 0..255, see `utils.image.scored_values`; image None, where the
    network gave NaN or Inf, scores NaN. more: further metrics of (image, sharp).
    """
    values = dict.fromkeys(metrics, math.nan)
    if image is not None:
        pairs, functions = {"": (image, sharp)}, {"psnr": psnr, "ssim": ssim}
        if not set(metrics).isdisjoint(LUMA_METRICS):
            pairs["_y"] = (rgb_to_y(image), rgb_to_y(sharp))
        for metric in metrics:
            name, of_luma, _ = metric.partition("_y")
            values[metric] = functions[name](*pairs[of_luma])
    for metric, value in (values | (more(image, sharp) if more else {})).items():
        scores.setdefault(kind, {}).setdefault(metric, []).append(value)


def protocol_text(values: str, mean: str) -> str:
    """How frames are scored and averaged, in words. values: of VALUES; mean: of MEANS."""
    return (
        f"{VALUES[values]}; MSE over RGB in float64; SSIM with an 11x11 Gaussian (sigma 1.5), valid region, "
        f"mean over channels; Y: BT.601 luma 16..235, not rounded; no border crop; {MEANS[mean]}"
    )


def collect(
    clips: Sequence[Mapping[str, Any]], expected: int, mean: str = "clips"
) -> dict[str, Any]:
    """The content of metrics.json. clips: of each {"name", "frames", "per_frame": Scores, ...};
    expected: how many.

    {"clips": {name: the entry, and the mean of each kind}, "averages": {kind: {metric: its `mean`,
    metric_frame_mean or, where that is `mean`, metric_clip_mean, mean, frames, clips_found,
    clips_expected, complete}}}; only clips with sharp frames have averages. mean: of MEANS.
    """
    table, averages, other = {}, {}, "frame" if mean == "clips" else "clip"
    for clip in sorted(clips, key=lambda c: natural_key(c["name"])):
        row = {key: value for key, value in clip.items() if key != "name"}
        for kind, values in clip["per_frame"].items():
            row[kind] = {metric: float(np.mean(column)) for metric, column in values.items()}
        table[clip["name"]] = row
    for kind in dict.fromkeys(kind for row in table.values() for kind in row["per_frame"]):
        rows, means = [row for row in table.values() if kind in row], {}
        for metric in rows[0][kind]:
            frames = [value for row in rows for value in row["per_frame"][kind][metric]]
            both = {
                "clips": sum(row[kind][metric] for row in rows) / len(rows),
                "frames": sum(frames) / len(frames),
            }
            means |= {metric: both[mean], f"{metric}_{other}_mean": both[f"{other}s"]}
        about = {
            "mean": mean,
            "frames": len(frames),
            "clips_found": len(rows),
            "clips_expected": expected,
        }
        averages[kind] = means | about | {"complete": len(rows) == expected}
    return {"clips": table, "averages": averages}


def format_score(metric: str, value: float | str | None) -> str:
    """A metric for a table: decibels with two decimals, the others with four; a dash where there is
    none.
    """
    return (
        "-"
        if value is None
        else f"{float(value):.2f}"
        if metric.startswith("psnr")
        else f"{float(value):.4f}"
    )


def score_table(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: every clip, then the means where there are sharp frames; each score beside
    the input's.

    results: see `collect`. The gain is that of the first metric, which is PSNR, or PSNR-Y of grey
    frames.
    """
    total, given = (results["averages"].get(kind, {}) for kind in ("restored", "input"))
    metrics = [metric for metric in COLUMNS if metric in total]
    lines = [
        (name, c["frames"], c.get("restored", {}), c.get("input", {}))
        for name, c in results["clips"].items()
    ]
    if metrics:
        other = "frame" if total["mean"] == "clips" else "clip"
        of_other = [
            {metric: mean.get(f"{metric}_{other}_mean") for metric in metrics}
            for mean in (total, given)
        ]
        lines.append((f"mean over {total['mean']}", total["frames"], total, given))
        lines.append((f"mean over {other}s", total["frames"], *of_other))
    rows = []
    for name, frames, *both in lines:
        cells = [format_score(metric, values.get(metric)) for metric in metrics for values in both]
        if metrics:
            restored, blurry = (values.get(metrics[0]) for values in both)
            cells.append(_gain(restored, blurry))
        rows.append([name, str(frames), *cells])
    columns = [name for metric in metrics for name in (COLUMNS[metric], "input")]
    return ["clip", "frames", *columns, *["gain dB"] * bool(metrics)], rows


def _gain(restored: float | str | None, blurry: float | str | None) -> str:
    """Return the gain in decibels for a table: 0 where both are as good, also without any error."""
    if restored is None or blurry is None:
        return "-"
    if float(restored) == float(blurry):
        return "+0.00"
    return f"{float(restored) - float(blurry):+.2f}"


def score_text(results: Mapping[str, Any]) -> str:
    """`score_table` as text, with the scores of the instants.

    Its first line says where clips are missing.
    """
    header, rows = score_table(results)
    lines = [plain_table(rows, header)]
    total = results["averages"].get("restored")
    if instants := instants_psnr(results):
        lines.append(f"PSNR dB of the instants, mean over {total['mean']}: " + ", ".join(instants))
    if total:
        lines.append(f"clips found {total['clips_found']}, expected {total['clips_expected']}")
        if not total["complete"]:
            lines.insert(0, "INCOMPLETE: the averages below do not cover the whole set")
    return "\n".join(lines)


def instants_psnr(results: Mapping[str, Any]) -> list[str]:
    """Mean PSNR of each restored instant of an exposure; [] where they were not scored."""
    found = {
        kind: mean for kind, mean in results["averages"].items() if kind.startswith("instant ")
    }
    return [format_score("psnr", found[kind]["psnr"]) for kind in sorted(found, key=natural_key)]


def json_bytes(value: Any) -> bytes:
    """Valid JSON: infinite numbers become "inf", NaN becomes null."""
    valid = {"Infinity": "inf", "-Infinity": "-inf", "NaN": None}
    plain = json.loads(json.dumps(value), parse_constant=valid.get)
    return (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """Reads a file written from `json_bytes`. Raises DataError for a damaged file."""
    try:
        return json.loads(_INFINITE.sub(r"\1Infinity", path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as e:
        raise DataError(
            f"cannot read results: {e}", str(path), "JSON", "remove the file, then start again"
        ) from e


def _ssim_window(image: np.ndarray) -> np.ndarray:
    return cv2.sepFilter2D(image, cv2.CV_64F, _SSIM_KERNEL, _SSIM_KERNEL)[
        5:-5, 5:-5
    ]  # windows inside the image


def _check_shapes(a: np.ndarray, b: np.ndarray) -> None:
    if a.shape != b.shape:
        raise DataError(
            f"two images of different sizes: {a.shape} and {b.shape}",
            "",
            "the same size",
            "check --gt",
        )


def plain_table(
    rows: Sequence[Sequence[str]], header: Sequence[str], most: int | None = None
) -> str:
    """A table of aligned columns, the first one to the left.

    most: characters in a line; the middle of long cells is left out, in the widest columns first.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    while most and sum(widths) + 2 * (len(widths) - 1) > most and max(widths) > LEAST_WIDTH:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in (header, *rows):
        cells: list[str] = []
        for cell, width in zip(row, widths, strict=True):
            if len(cell) > width:
                tail = (width - 2) // 2
                cell = f"{cell[: width - 2 - tail]}..{cell[-tail:]}"
            cells.append(cell.rjust(width) if cells else cell.ljust(width))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown_table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Rows as a Markdown table; a float with three digits."""
    cells = [
        [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [header, ["-" * width for width in widths], *cells]
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
