"""The numbers of a test: one JSON per finished clip, and the metrics and the table of all clips."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from utils.errors import DataError
from utils.files import natural_key
from utils.metrics import ClipScores, averages

COLUMNS = {"psnr": "PSNR dB", "ssim": "SSIM", "psnr_y": "PSNR-Y dB", "ssim_y": "SSIM-Y", "lpips": "LPIPS"}
# Name, number of frames, metrics of the restored frames and of the input.
Row = tuple[str, int, Mapping[str, Any], Mapping[str, Any]]


def load_clip(folder: Path, name: str) -> dict[str, Any] | None:
    """<folder>/clips/<name>.json ("name", "frames", "stems", "per_frame", ...); None where the clip is not finished."""
    path = clip_file(folder, name)
    return read_json(path) if path.exists() else None


def clip_file(folder: Path, name: str) -> Path:
    return folder / "clips" / f"{name}.json"


def collect(clips: Sequence[Mapping[str, Any]], expected: int) -> dict[str, Any]:
    """{"clips": {name: frames, means, values per frame}, "averages": {"restored": ..., "input": ..., ...}}.

    Averages as `utils.metrics.averages` gives them, over the clips with sharp frames; {} where there are none.
    """
    scores: dict[str, ClipScores] = {}
    table: dict[str, dict[str, Any]] = {}
    for clip in sorted(clips, key=lambda c: natural_key(c["name"])):
        row = {key: value for key, value in clip.items() if key != "name"}
        for kind, values in clip["per_frame"].items():
            frames = [dict(zip(values, column, strict=True)) for column in zip(*values.values(), strict=True)]
            scores.setdefault(kind, ClipScores()).update({clip["name"]: frames})
            row[kind] = {metric: float(np.mean(column)) for metric, column in values.items()}
        table[clip["name"]] = row
    metrics = {kind: next(iter(s.frames.values()))[0] for kind, s in scores.items()}
    found = {kind: averages(s.sums(metrics[kind]), expected) for kind, s in scores.items()}
    return {"clips": table, "averages": found}


def table_rows(results: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """The metrics, and the rows of a table: every clip, then, where there are metrics, two means."""
    rows = [(name, c["frames"], c.get("restored", {}), c.get("input", {})) for name, c in results["clips"].items()]
    total, given = (results["averages"].get(kind, {}) for kind in ("restored", "input"))
    metrics = [m for m in COLUMNS if m in total]
    if metrics:
        by_frame = [{m: mean.get(f"{m}_frame_mean") for m in metrics} for mean in (total, given)]
        rows.append(("mean over clips", total["frames"], total, given))
        rows.append(("mean over frames", total["frames"], *by_frame))
    return metrics, rows


def compare(tests: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of several tests on the same frames: the input, then one row for each.

    tests: name -> the content of its metrics.json. A metric that a test does not have, such as RGB PSNR of grey frames,
    is a dash. Raises DataError for tests without scores and for tests of different frames.
    """
    (first, reference), *_ = tests.items()
    for name, test in tests.items():
        if not test["averages"].get("restored"):
            raise DataError("a test without scores", name, "a test with sharp frames", "leave it out")
        odd = [c for c in {**reference["clips"], **test["clips"]} if _scored(reference, c) != _scored(test, c)]
        if odd:
            raise DataError(
                f"{first} and {name} were not scored on the same frames and input: {', '.join(odd[:5])}", name,
                "tests of the same clips, frames and input", "repeat one of the tests",
            )  # fmt: skip
    rows = {"input": ("", reference["averages"].get("input", {}))}
    for name, test in tests.items():
        about = test["protocol"]
        rows[name] = (about.get("method") or f"network, {about.get('weights', '')}", test["averages"]["restored"])
    metrics = [m for m in COLUMNS if any(m in found for _, found in rows.values())]
    cells = [
        [name, method, *(format_value(m, found.get(m)) for m in metrics)] for name, (method, found) in rows.items()
    ]
    return ["test", "method", *(COLUMNS[m] for m in metrics)], cells


def _scored(results: Mapping[str, Any], clip: str) -> tuple[Any, ...]:
    """The frames of a clip and the scores of its input, to tell two test sets apart."""
    about = results["clips"].get(clip, {})
    given = {metric: round(value, 6) for metric, value in about.get("input", {}).items() if metric != "lpips"}
    return about.get("stems"), given


def format_value(metric: str, value: float | str | None) -> str:
    """A metric for a table: decibels with two decimals, the others with four; a dash where there is none."""
    if value is None:
        return "-"
    number = float(value)
    return f"{number:.2f}" if metric.startswith("psnr") else f"{number:.4f}"


def instants_psnr(results: Mapping[str, Any]) -> list[str]:
    """PSNR of each restored instant of an exposure, mean over clips; [] where they were not scored."""
    found = {kind: mean for kind, mean in results["averages"].items() if kind.startswith("instant ")}
    return [format_value("psnr", found[kind]["psnr"]) for kind in sorted(found, key=natural_key)]


def text_table(results: Mapping[str, Any]) -> str:
    """The clips and their means as an aligned text table. Its first line says where clips are missing."""
    metrics, rows = table_rows(results)
    if not metrics:
        return "\n".join(f"{name}: {frames} frames" for name, frames, _, _ in rows)
    width = max(len(row[0]) for row in rows)
    lines = [f"{'':{width}} | " + " | ".join(f"{COLUMNS[m]:>9} {'input':>8}" for m in metrics)]
    for name, _, restored, given in rows:
        cells = (f"{format_value(m, restored.get(m)):>9} {format_value(m, given.get(m)):>8}" for m in metrics)
        lines.append(f"{name:{width}} | " + " | ".join(cells))
    total, instants = results["averages"]["restored"], instants_psnr(results)
    if instants:
        lines.append("PSNR dB of the instants, mean over clips: " + ", ".join(instants))
    lines.append(f"clips found {total['clips_found']}, expected {total['clips_expected']}; {total['frames']} frames")
    if not total["complete"]:
        lines.insert(0, "INCOMPLETE: the averages below do not cover the whole set")
    return "\n".join(lines)


def json_bytes(value: Any) -> bytes:
    """Valid JSON: infinite numbers become "inf", NaN becomes null."""
    return (json.dumps(_to_json(value), indent=1, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """Reads a file written from `json_bytes`. Raises DataError for a damaged file."""
    try:
        return _from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as e:
        raise DataError(f"cannot read results: {e}", str(path), "JSON", "remove the file, then start again") from e


def _to_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _from_json(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_from_json(v) for v in value]
    return float(value) if value in ("inf", "-inf") else value
