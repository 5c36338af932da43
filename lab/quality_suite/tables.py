"""Make the tables of the report, as Markdown.

Free to change: all of it. tests/parts/house/test_lab.py compares tables of numbers that are small
enough to check by hand. docs/benchmarks has copies of printed tables. No test compares these
copies.
"""

import statistics
from collections.abc import Sequence

from lab.quality_suite.outcomes import Outcome, Spread, difference
from utils.results import markdown_table as table

# Two networks have the same size if the numbers of their parameters differ by at most this share.
# If the size of a network differs from the size of the base, the table marks the network. A larger
# network may restore better just because it is larger.
MOST_SIZE_DIFFERENCE = 0.05


def tables(outcomes: Sequence[Outcome], conditions: Sequence[str]) -> str:
    """Return the tables as Markdown: one row for each method, one column for each condition.

    outcomes: methods (option files or formulas) with their results, at least one.
    conditions: pairs of simulated cameras of the test clips, e.g. "dim".
    """
    base = _base_of(outcomes)
    sections = [_table_of_methods(outcomes, base)]
    titles = {"psnr": "PSNR", "moving": "PSNR of moving pixels", "psnr_y": "PSNR-Y"}
    for metric, title in titles.items():
        # The methods that have the metric. E.g. a method that restores grey frames has no "psnr".
        with_metric = []
        for outcome in outcomes:
            if outcome.scores_of_clips(conditions[0], metric):
                with_metric.append(outcome)
        if not with_metric:
            continue
        sections.append(f"{title} in dB, ± over seeds")
        sections.append(_table_of_scores(with_metric, conditions, metric))
        sections.append(f"{title} minus that of the input, ± 95 % over clips")
        sections.append(_table_of_gains(with_metric, conditions, metric))
    if base:
        sections.append(f"PSNR minus that of {base.name}, ± 95 % over clips")
        sections.append(_table_against(base, outcomes, conditions))
    return "\n\n".join(sections) + "\n"


def _base_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the method with which all others are compared, or None if it was not tested.

    The base is the plainest fusion, options/benchmark/concat.json: it puts the channels of the
    spikes beside the channels of the frame. Its name begins with "concat". If it was trained with
    several numbers of steps, the base is the last of them, because `--steps` usually has the
    largest number last.
    """
    base = None
    for outcome in outcomes:
        if outcome.name.startswith("concat"):
            base = outcome
    return base


def _table_of_methods(outcomes: Sequence[Outcome], base: Outcome | None) -> str:
    """Return the first table: size, time, seeds, and clips that are worse than the blurry input."""
    rows = []
    for outcome in outcomes:
        size = "-"  # a formula has no parameters
        if outcome.parameters:
            size = f"{outcome.parameters:,}"
            if base and not _have_same_size(outcome, base):
                size += ", OTHER SIZE"
        seconds = outcome.seconds()
        time = f"{seconds:.2f}" if seconds else "-"
        gains = _gains_of_all_runs(outcome)
        losses = [gain for gain in gains if gain < 0]
        below = f"{len(losses)} of {len(gains)}"
        rows.append([outcome.name, size, time, len(outcome.runs), below])
    return table(rows, ["method, steps", "parameters", "s/step", "seeds", "clips below input"])


def _have_same_size(outcome: Outcome, base: Outcome) -> bool:
    """Return whether two networks have nearly the same number of parameters."""
    ratio = outcome.parameters / base.parameters
    return abs(ratio - 1) <= MOST_SIZE_DIFFERENCE


def _gains_of_all_runs(outcome: Outcome) -> list[float]:
    """Return the gain in PSNR over the blurry input, of each clip with each seed."""
    gains = []
    for run in outcome.runs.values():
        for clip in run["clips"].values():
            if "psnr" in clip["restored"]:  # grey frames have no PSNR of colours
                gains.append(clip["restored"]["psnr"] - clip["input"]["psnr"])
    return gains


def _table_of_scores(outcomes: Sequence[Outcome], conditions: Sequence[str], metric: str) -> str:
    """Return the table of a metric: the blurry input, then each method.

    The margin of a cell (the number after ±) is the standard deviation over seeds.

    outcomes: methods with the metric, at least one.
    """
    # Each method has the scores of the blurry input. Take any method, because all methods were
    # tested on the same clips.
    any_outcome = outcomes[-1]
    blurry = []
    for condition in conditions:
        scores = any_outcome.scores_of_clips(condition, metric, "input")
        blurry.append(f"{statistics.fmean(scores.values()):.2f}")
    rows = [["blurry input", *blurry]]
    for outcome in outcomes:
        cells = []
        for condition in conditions:
            scores_of_seeds = outcome.scores_of_seeds(condition, metric)
            cells.append(table_cell(_mean_and_deviation(scores_of_seeds)))
        rows.append([outcome.name, *cells])
    return table(rows, ["", *conditions])


def _table_of_gains(outcomes: Sequence[Outcome], conditions: Sequence[str], metric: str) -> str:
    """Return the table of the gains over the blurry input, e.g. the row "gated 500 | +1.23 ± 0.10".

    The margin of a cell (the number after ±) is half the 95 % confidence interval over clips.
    """
    rows = []
    for outcome in outcomes:
        cells = []
        for condition in conditions:
            cells.append(table_cell(outcome.gain(condition, metric), sign="+"))
        rows.append([outcome.name, *cells])
    return table(rows, ["", *conditions])


def _table_against(base: Outcome, outcomes: Sequence[Outcome], conditions: Sequence[str]) -> str:
    """Return the last table: the PSNR of networks minus the PSNR of the base, over common seeds.

    The margin of a cell (the number after ±) is half the 95 % confidence interval over clips.
    """
    rows = []
    for outcome in outcomes:
        common_seeds = sorted(outcome.runs.keys() & base.runs.keys())
        is_network = outcome.parameters > 0
        if outcome is base or not is_network or not common_seeds:
            continue
        cells = []
        for condition in conditions:
            of_method = outcome.scores_of_clips(condition, "psnr", seeds=common_seeds)
            of_base = base.scores_of_clips(condition, "psnr", seeds=common_seeds)
            cells.append(table_cell(difference(of_method, of_base), sign="+"))
        rows.append([outcome.name, *cells])
    return table(rows, ["", *conditions])


def _mean_and_deviation(values: Sequence[float]) -> Spread | None:
    """Return the mean of scores of seeds, with their standard deviation as the margin.

    One value has no deviation, so the margin is None. Without any value, the result is None.
    """
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation)


def table_cell(spread: Spread | None, sign: str = "") -> str:
    """Return a cell of a table, e.g. Spread(1.234, 0.1), "+" -> "+1.23 ± 0.10". "-" for None.

    spread: `Spread` says what its margin is.
    sign: "+" writes a plus before a positive mean.
    """
    if spread is None:
        return "-"
    text = f"{spread.mean:{sign}.2f}"
    if spread.margin is not None:
        text += f" ± {spread.margin:.2f}"
    return text
