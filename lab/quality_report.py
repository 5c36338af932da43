"""The tables of quality.py, from the results of its runs."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from utils.metrics import markdown_table as table

RECORDED = "recorded"  # the condition of the training clips
ESTIMATE = "exposure estimate"  # main_test_vrt.py --method exposure: no network, no training
ALIKE = 0.05  # largest difference in parameters of methods that are compared
# 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom; the last one serves for more, which is too wide.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)

Clips = Mapping[
    str, Mapping[str, Mapping[str, float]]
]  # "<condition>/<clip>" -> "restored", "input" -> metric -> value


@dataclass(frozen=True)
class Outcome:
    """What is known of a method. parameters: 0 without a network. runs: seed -> result, see `run_one`."""

    name: str
    parameters: int
    runs: Mapping[int, Mapping[str, Any]]

    def scores(self, condition: str, metric: str, kind: str = "restored") -> dict[int, float]:
        """Seed -> mean over the clips of a condition."""
        return {seed: mean_over_clips(run["clips"], condition, metric, kind) for seed, run in self.runs.items()}

    def clips(self, condition: str, seeds: Collection[int]) -> dict[str, float]:
        """Clip -> its mean PSNR over the seeds."""
        runs = [self.runs[seed]["clips"] for seed in seeds]
        names = [name for name in runs[0] if name.startswith(f"{condition}/")] if runs else []
        return {name: statistics.fmean(clips[name]["restored"]["psnr"] for clips in runs) for name in names}

    def speed(self) -> float | None:
        found = [run["s_per_step"] for run in self.runs.values() if run.get("s_per_step")]
        return statistics.median(found) if found else None

    def below_input(self) -> tuple[int, int]:
        """How many of the restored clips, over all conditions and seeds, have a lower PSNR than their input."""
        gains = [
            c["restored"]["psnr"] - c["input"]["psnr"] for run in self.runs.values() for c in run["clips"].values()
        ]
        return sum(gain < 0 for gain in gains), len(gains)


def mean_over_clips(clips: Clips, condition: str, metric: str, kind: str) -> float:
    return statistics.fmean(about[kind][metric] for name, about in clips.items() if name.startswith(f"{condition}/"))


def spread(values: Mapping[int, float]) -> tuple[float, float | None]:
    """(mean, sample standard deviation) over the seeds; of one seed None."""
    several = list(values.values())
    return statistics.fmean(several), statistics.stdev(several) if len(several) > 1 else None


def difference(mine: Mapping[Any, float], reference: Mapping[Any, float]) -> tuple[float, float | None] | None:
    """(mean difference over the seeds or clips that both have, half of its 95 % confidence interval); None without any.

    Paired: both networks of a seed saw the same samples. The interval is Student's; of one seed or clip None.
    """
    pairs = [mine[key] - reference[key] for key in sorted(mine.keys() & reference.keys())]
    if not pairs:
        return None
    if len(pairs) == 1:
        return pairs[0], None
    quantile = T_QUANTILES[min(len(pairs) - 1, len(T_QUANTILES)) - 1]
    return statistics.fmean(pairs), quantile * statistics.stdev(pairs) / len(pairs) ** 0.5


def report(outcomes: Sequence[Outcome], reference: str, conditions: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """(the tables as Markdown, the numbers). outcomes: methods with results. reference: name of the one compared to."""
    clips = next(iter(outcomes[0].runs.values()))["clips"]
    base = next((outcome for outcome in outcomes if outcome.name == reference), None)
    summary = [_summary(outcome, base) for outcome in outcomes]
    header = ["method", "parameters", f"to {reference}", "s/step", "seeds", "PSNR dB", "SSIM", "to input dB",
              f"to {reference} dB", "clips below input"]  # fmt: skip
    sections = ["Recorded camera", table(summary, header)]
    blurry = [f"{mean_over_clips(clips, c, 'psnr', 'input'):.2f}" for c in conditions]
    rows = [[o.name, *(_cell(spread(o.scores(c, "psnr"))) for c in conditions)] for o in outcomes]
    sections += ["PSNR in dB", table([["blurry input", *blurry], *rows], ["method", *conditions])]
    if base:
        rows = [[o.name, *(_against(o, base, c) for c in conditions)] for o in outcomes if o is not base]
        sections += [f"PSNR minus that of {reference}, in dB, ± over seeds", table(rows, ["method", *conditions])]
        rows = [
            [o.name, *(_cell(_over_clips(o, base, c), sign="+") for c in conditions)] for o in outcomes if o is not base
        ]
        sections += ["The same, ± over test clips", table(rows, ["method", *conditions])]
    changed = [c for c in conditions if c.startswith("x")]
    recorded = [o.scores(RECORDED, "psnr") for o in outcomes]
    rows = [
        [o.name, *(f"{difference(o.scores(c, 'psnr'), as_recorded)[0]:+.2f}" for c in changed)]
        for o, as_recorded in zip(outcomes, recorded, strict=True)
    ]
    sections += ["PSNR minus that at the recorded threshold, in dB", table(rows, ["method", *changed])]
    numbers = {o.name: _numbers(o, base, conditions) for o in outcomes}
    return "\n\n".join(sections) + "\n", {"reference": reference, "conditions": list(conditions), "methods": numbers}


def _summary(outcome: Outcome, base: Outcome | None) -> list[Any]:
    psnr, blurry = outcome.scores(RECORDED, "psnr"), outcome.scores(RECORDED, "psnr", "input")
    speed, ssim = outcome.speed(), spread(outcome.scores(RECORDED, "ssim"))
    more = outcome.parameters / base.parameters - 1 if base and outcome.parameters else None
    share = "-" if more is None else f"{more:+.1%}" + ", NOT ALIKE" * (abs(more) > ALIKE)
    below, clips = outcome.below_input()
    return [
        outcome.name, f"{outcome.parameters:,}" if outcome.parameters else "-", share,
        "-" if speed is None else f"{speed:.2f}", len(outcome.runs), _cell(spread(psnr)), _cell(ssim, 4),
        f"{difference(psnr, blurry)[0]:+.2f}", _against(outcome, base, RECORDED), f"{below} of {clips}",
    ]  # fmt: skip


def _cell(value: tuple[float, float | None] | None, digits: int = 2, sign: str = "") -> str:
    if value is None:
        return "-"
    mean, around = value
    return f"{mean:{sign}.{digits}f}" + ("" if around is None else f" ± {around:.{digits}f}")


def _against(outcome: Outcome, base: Outcome | None, condition: str) -> str:
    if base is None or outcome is base:
        return "-"
    return _cell(difference(outcome.scores(condition, "psnr"), base.scores(condition, "psnr")), sign="+")


def _over_clips(outcome: Outcome, base: Outcome, condition: str) -> tuple[float, float | None] | None:
    seeds = outcome.runs.keys() & base.runs.keys()
    return difference(outcome.clips(condition, seeds), base.clips(condition, seeds))


def _numbers(outcome: Outcome, base: Outcome | None, conditions: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"parameters": outcome.parameters, "s_per_step": outcome.speed(), "runs": outcome.runs}
    for condition in conditions:
        psnr = outcome.scores(condition, "psnr")
        found[condition] = {
            "psnr": spread(psnr), "ssim": spread(outcome.scores(condition, "ssim")),
            "psnr_input": spread(outcome.scores(condition, "psnr", "input")),
            "to_reference": difference(psnr, base.scores(condition, "psnr")) if base else None,
            "to_reference_over_clips": _over_clips(outcome, base, condition) if base else None,
        }  # fmt: skip
    return found
