"""The curves of runs: read from training_history.json, drawn as one panel per scalar."""

from __future__ import annotations

import io
import json
from pathlib import Path

from utils.errors import DataError, OptionError
from utils.files import write_whole

HISTORY_NAME = "training_history.json"
History = dict[str, list[list[float]]]  # {"train/loss": [[step, value], ...], ...}


def read_history(run: Path) -> History:
    """The history of a run, given as its folder or as the file itself. Raises DataError where there is none."""
    path = run if run.suffix == ".json" else run / HISTORY_NAME
    expected = f"the folder of a run, or its {HISTORY_NAME}"
    if not path.is_file():
        raise DataError(f"no {path}", "the command line", expected, "correct the path")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise DataError(f"no JSON: {e}", str(path), expected, "give another run, or a copy of the file") from e


def run_name(run: Path) -> str:
    """What a figure calls a run: the name of its folder."""
    return run.resolve().parent.name if run.suffix == ".json" else run.resolve().name


def draw_curves(histories: dict[str, History], path: Path) -> None:
    """One panel per scalar over the step, one line per run {name: history}, as a PNG or what the suffix says."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    tags = sorted({tag for history in histories.values() for tag in history})
    columns = min(3, len(tags))
    rows = -(-len(tags) // columns)
    figure = Figure(figsize=(4.5 * columns, 3 * rows))
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(tags) :]:
        axis.set_visible(False)
    for axis, tag in zip(axes.flat, tags, strict=False):
        for name, history in histories.items():
            if entries := history.get(tag):
                axis.plot([e[0] for e in entries], [e[1] for e in entries], label=name)
        axis.set(title=tag, xlabel="iteration")
        axis.grid(alpha=0.3)
        if len(histories) > 1:
            axis.legend(fontsize="small")
    figure.tight_layout()
    picture = io.BytesIO()
    kinds = figure.canvas.get_supported_filetypes()
    if path.suffix[1:] not in kinds:
        raise OptionError(
            f"no picture format {path.suffix!r}", str(path), ", ".join(sorted(kinds)), "use another suffix"
        )
    figure.savefig(picture, dpi=100, format=path.suffix[1:])
    write_whole(path, picture.getvalue())
