"""Make the tables of training runs: their scores, and the options that differ.

Throughout this file, `runs` is the name of each run in the output -> its path.

Free to change: all of it, because people read the tables.
test_training_runs_give_a_table_of_scores_speed_size_and_the_options_that_differ reads them.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.parts.compare_runs.table import Table
from utils.options.section import flatten_options
from utils.results import read_json
from utils.run import history, report

RESTORED_PSNR = "val/psnr"  # name of the scalar with the PSNR of the restored frames
ALWAYS_DIFFERENT = (".task", ".path.root")  # options that are not compared, because all runs differ


def runs_tables(runs: Mapping[str, Path]) -> list[Table]:
    """Return a table of the scores of training runs.

    If options of the runs differ, a second table has a row for each of these options.
    """
    rows = []
    options_of_runs = []
    for name, run in runs.items():
        rows.append([name, *run_cells(run)])
        options_of_runs.append(options_of_run(run))
    tables = [Table(rows, ["run", "best PSNR dB", "at iter", "loss", "it/s", "parameters"])]

    rows_of_options = different_options(options_of_runs)
    if rows_of_options:
        tables.append(Table(rows_of_options, ["option", *runs]))
    return tables


def options_of_run(run: Path) -> dict[str, Any]:
    """Return the options of the newest start of a run: dotted key -> value.

    Each key begins with a dot, and a list is its JSON text, e.g. ".netG.depths" -> "[8, 8]". The
    result is empty for a run of which only the history file is left.
    """
    file = report.newest_options(history.folder_of(run) / "options")
    if not file:
        return {}
    return dict(flatten_options(read_json(file), name=""))


def different_options(options_of_runs: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each option that differs: its key, and its value in each run.

    The value is "-" if a run does not have the option. E.g. ["train.epochs", "3", "-"].

    options_of_runs: for each run, dotted key -> value. Each key begins with a dot.
    """
    # All keys of any run, each once, in the order in which they appear first.
    keys: list[str] = []
    for options in options_of_runs:
        for key in options:
            if key not in keys:
                keys.append(key)
    rows = []
    for key in keys:
        values = [str(options.get(key, "-")) for options in options_of_runs]
        is_equal = len(set(values)) == 1
        if not is_equal and key not in ALWAYS_DIFFERENT:
            rows.append([key.removeprefix("."), *values])
    return rows


def run_cells(run: Path) -> list[Any]:
    """Return the cells of a run: best PSNR, its step, last loss, last speed, parameters.

    A cell without a value is "-".
    """
    scalars = history.read_history(run)
    best, best_step = _best_validation(scalars.get(RESTORED_PSNR, []))

    loss = _last_value(scalars.get("train/loss", []))
    speed = _last_value(scalars.get("train/it_per_s", []))

    # The file about the machine and the network, which older runs do not have.
    environment = history.folder_of(run) / report.ENVIRONMENT_NAME
    about = read_json(environment) if environment.is_file() else {}
    return [best, best_step, loss, speed, about.get("parameters", "-")]


def _last_value(entries: Sequence[Sequence[float]]) -> str:
    """Return the cell of the last value of a scalar, e.g. "0.01234", or "-" without any value.

    entries: [step, value] of each log line, in the order of the run.
    """
    if not entries:
        return "-"
    _, value = entries[-1]
    return f"{value:.4g}"


def _best_validation(entries: Sequence[Sequence[float]]) -> tuple[str, str]:
    """Return the cells of the best validation: its PSNR and its step, e.g. "30.25" and "5000".

    A validation with NaN or an infinite PSNR does not count. If no validation is left, both cells
    are "-".

    entries: [step, PSNR] of each validation.
    """
    validations = [(psnr, step) for step, psnr in entries if math.isfinite(psnr)]
    if not validations:
        return "-", "-"
    # E.g. (30.25, 4000), (30.25, 5000), (29.9, 6000) -> (30.25, 5000). If several validations have
    # the same PSNR, `max` compares their steps, and takes the last validation.
    psnr, step = max(validations)
    return f"{psnr:.2f}", str(step)
