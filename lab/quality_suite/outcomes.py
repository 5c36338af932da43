"""The results of a method with all its seeds: means of scores, and errors of these means.

What must stay: differences are paired, clip by clip or seed by seed, because clips differ from each
other far more than methods do. tests/parts/house/test_lab.py tests `difference` on numbers that are
small enough to check by hand.
"""

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

# 97.5 % quantiles of Student's t with 1, 2, ..., 10 degrees of freedom. For more than 10 degrees,
# `t_quantile` computes the quantile.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Spread(NamedTuple):
    """A mean and its margin of error. A cell of a table shows both as "30.12 ± 0.05"."""

    mean: float
    # For a mean over clips: half the width of its confidence interval, from `difference`. For a
    # mean over seeds: the standard deviation, from `_mean_and_deviation` in tables.py. None if
    # there is a single value.
    margin: float | None


@dataclass(frozen=True)
class Outcome:
    """The results of a method with all seeds."""

    name: str  # e.g. "gated 500" (a network trained for 500 steps), or the name of a formula
    parameters: int  # number of parameters, or 0 without a network
    # Seed -> result of the run with this seed. A result is the content of a file in results/, e.g.
    # {"s_per_step": 0.8,
    #  "clips": {"rig/street": {"restored": {"psnr": 30.1}, "input": {"psnr": 28.8}}}}
    # The name of a clip is "<condition>/<clip>".
    runs: Mapping[int, Mapping[str, Any]]

    def scores_of_clips(
        self, condition: str, metric: str, kind: str = "restored", seeds: Collection[int] = ()
    ) -> dict[str, float]:
        """Return the mean of a metric over the seeds, for each clip: e.g. {"rig/street": 30.1}.

        A clip without the metric is left out. E.g. grey frames have no "psnr", because "psnr"
        compares colours. So for a method that restores grey frames the result is {}.

        condition: e.g. "rig".
        metric: e.g. "psnr".
        kind: "restored", or "input" for the blurry frames.
        seeds: the seeds that count, () for all.
        """
        chosen_seeds = seeds if seeds else list(self.runs)
        # One entry for each run: name of a clip -> its scores.
        runs = self._clips_of_runs(condition, chosen_seeds)
        if not runs:
            return {}
        # All runs have the same clips, because a run is tested on all clips of a condition.
        names = runs[0].keys()
        means = {}
        for name in names:
            values = [clips[name][kind].get(metric) for clips in runs]  # None without the metric
            if None not in values:
                means[name] = statistics.fmean(values)
        return means

    def _clips_of_runs(self, condition: str, seeds: Collection[int]) -> list[Mapping[str, Any]]:
        """Return the clips of a condition for each run: [{"rig/street": {"restored": ...}}].

        A run that was not tested under the condition is left out.
        """
        runs = []
        for seed in seeds:
            clips = {}
            for name, scores in self.runs[seed]["clips"].items():
                if name.startswith(f"{condition}/"):
                    clips[name] = scores
            if clips:
                runs.append(clips)
        return runs

    def scores_of_seeds(self, condition: str, metric: str) -> list[float]:
        """Return the mean score of the clips, for each seed that was tested under the condition."""
        means = []
        for seed in self.runs:
            scores = self.scores_of_clips(condition, metric, seeds=[seed])
            if scores:
                means.append(statistics.fmean(scores.values()))
        return means

    def gain(self, condition: str, metric: str) -> Spread | None:
        """Return the mean gain over the blurry frames, with its confidence interval over clips."""
        restored = self.scores_of_clips(condition, metric)
        blurry = self.scores_of_clips(condition, metric, "input")
        return difference(restored, blurry)

    def seconds(self) -> float | None:
        """Return the median time of a training step in seconds. Returns None if it is unknown."""
        times = []
        for run in self.runs.values():
            # Runs of formulas, and very short runs, have no time of a step.
            if run.get("s_per_step"):
                times.append(run["s_per_step"])
        return statistics.median(times) if times else None


def difference(scores: Mapping[Any, float], reference: Mapping[Any, float]) -> Spread | None:
    """Return the mean of scores - reference, and half the width of its 95 % confidence interval.

    The mean is over the keys that `scores` and `reference` have in common. The interval comes from
    Student's t for paired differences:

        half width = t(n - 1) * standard deviation of the n differences / sqrt(n)

    E.g. the differences 1 and 2 have the mean 1.5 and the half width 12.7 * 0.71 / 1.41 = 6.4.

    With a single common key there is no interval, and the half width is None. With no common key,
    the result is None.

    scores, reference: clip or seed -> score.
    """
    common = sorted(scores.keys() & reference.keys())  # as a list, because a set has no order
    differences = [scores[key] - reference[key] for key in common]
    n = len(differences)
    if n == 0:
        return None
    if n == 1:
        return Spread(differences[0], margin=None)
    half_width = t_quantile(n - 1) * statistics.stdev(differences) / n**0.5
    return Spread(statistics.fmean(differences), half_width)


def t_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t with this number of degrees of freedom.

    Above 10 degrees, the result is the expansion of Cornish and Fisher, with an error below 2e-4. v
    is the number of degrees, and z is the quantile of the normal distribution:

        t = z + (z^3 + z) / (4 v) + (5 z^5 + 16 z^3 + 3 z) / (96 v^2)
              + (3 z^7 + 19 z^5 + 17 z^3 - 15 z) / (384 v^3)
    """
    if degrees <= len(T_QUANTILES):
        return T_QUANTILES[degrees - 1]
    v = degrees
    z = statistics.NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / (4 * v)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    return z + first + second + third
