"""Make the table of the gains over the operator, with a row for each set of clips.

The operator (weights/operator.pth) is a network that makes a sharp frame from a blurry frame and
its spikes. The learned steps improve this frame. A gain is the PSNR of the improved frame minus the
PSNR of the operator's frame, in dB.

There are two kinds of runs. In an EQUATIONS run the steps see the motion and its equations. A PLAIN
run is the control: its steps see neither the motion nor its equations.

Free to change: all of it.
test_the_table_has_the_spread_over_the_seeds_and_the_worst_clip_of_any_seed reads a table.
"""

import statistics
from collections.abc import Mapping, Sequence

from lab.motion_runs.restoring import OPERATOR_METHOD, SHIPPED_METHOD, Scores
from lab.motion_runs.runs import EQUATIONS, PLAIN, Run
from lab.quality_suite.outcomes import Spread
from lab.quality_suite.tables import table_cell
from utils.results import markdown_table


def table_of(scores_of_sets: Mapping[str, Scores], runs: Sequence[Run]) -> str:
    """Return the table in Markdown: a row for each set of clips, with gains over the operator.

    scores_of_sets: name of a set -> its scores.
    """
    rows = [row_of(set_name, scores, runs) for set_name, scores in scores_of_sets.items()]
    columns = list(rows[0])  # the same in all rows
    return markdown_table([list(row.values()) for row in rows], columns)


def row_of(set_name: str, scores: Scores, runs: Sequence[Run]) -> dict[str, str]:
    """Return the row of a set of clips: name of a column -> cell. E.g. for two seeds:

    ""                         report_ideal       name of the set
    "operator"                 24.00              mean PSNR in dB
    "shipped"                  +3.50              mean gain over the operator in dB
    "equations"                +2.50 ± 0.71       see `cells_of_kind`
    "equations, worst clip"    +1.00 (park_00)
    "plain"                    +0.30 ± 0.14
    "plain, worst clip"        -0.10 (park_00)
    "plain_seed0_1600"         +0.50              the control with twice as many updates
    """
    psnr_of_operator = statistics.fmean(scores[OPERATOR_METHOD].values())
    row = {
        "": set_name,
        OPERATOR_METHOD: f"{psnr_of_operator:.2f}",
        SHIPPED_METHOD: f"{mean_gain(scores, SHIPPED_METHOD):+.2f}",
    }
    # One plain run has twice as many updates as the others. All other runs have the same number. So
    # the smallest number is the usual one.
    usual_updates = min(run.updates for run in runs)
    for kind in (EQUATIONS, PLAIN):
        names = []  # the names of the runs of this kind, one run for each seed
        for run in runs:
            if run.kind == kind and run.updates == usual_updates:
                names.append(run.name)
        row[kind], row[f"{kind}, worst clip"] = cells_of_kind(scores, names)
    for run in runs:
        if run.updates > usual_updates:
            row[run.name] = f"{mean_gain(scores, run.name):+.2f}"
    return row


def cells_of_kind(scores: Scores, names: Sequence[str]) -> tuple[str, str]:
    """Return two cells of the runs of a kind, e.g. "+2.50 ± 0.71" and "+1.00 (park_00)".

    The first cell is the mean gain over the seeds, and its standard deviation. The second cell is
    the smallest gain of any clip with any seed.

    names: names of the runs, one for each seed.
    """
    gains_of_seeds = []  # mean gain of each run, over the clips
    gains_of_clips = []  # (gain, clip) of each clip with each seed
    for name in names:
        gains_of_seeds.append(mean_gain(scores, name))
        for clip, gain in gains_of(scores, name).items():
            gains_of_clips.append((gain, clip))
    # One seed has no deviation.
    deviation = statistics.stdev(gains_of_seeds) if len(gains_of_seeds) > 1 else None
    least_gain, worst_clip = min(gains_of_clips)
    spread = Spread(statistics.fmean(gains_of_seeds), deviation)
    return table_cell(spread, sign="+"), f"{least_gain:+.2f} ({worst_clip})"


def mean_gain(scores: Scores, name: str) -> float:
    """Return the mean gain of a method over the operator in dB, over the clips."""
    return statistics.fmean(gains_of(scores, name).values())


def gains_of(scores: Scores, name: str) -> dict[str, float]:
    """Return the gains of a method over the operator in dB: clip -> gain."""
    operator = scores[OPERATOR_METHOD]
    return {clip: value - operator[clip] for clip, value in scores[name].items()}
