"""A run: a training of the learned steps with a seed, with or without the motion.

What must stay: the names of the runs, because the files in docs/benchmarks/quality have them. Free
to change: which runs there are (`runs_of`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from models.fusion.fusion_motion import MotionSteps

# The kinds of runs. The words are in the names of files and in the columns of the table.
EQUATIONS = "equations"  # the steps see the motion and its equations
PLAIN = "plain"  # the control: the steps see neither the motion nor its equations


@dataclass(frozen=True)
class Run:
    """A training of the steps."""

    kind: str  # EQUATIONS or PLAIN
    seed: int
    updates: int  # number of updates of each part ("good" light, "few" spikes)

    @property
    def name(self) -> str:
        """Return the name of the run in files, e.g. "plain_seed0_800"."""
        return f"{self.kind}_seed{self.seed}_{self.updates}"


@dataclass
class TrainedRun:
    """The learned steps of a run, with the process time of their training.

    `train_all` adds the steps of one part after the other.
    """

    run: Run
    steps: dict[str, MotionSteps]  # part -> its steps
    cpu_s: dict[str, float]  # part -> CPU seconds of the updates, without making the samples


def runs_of(seeds: Sequence[int], updates: int) -> list[Run]:
    """Return all runs: both kinds with each seed, and one more PLAIN run.

    The additional run has the first seed and twice as many updates. So its training takes more CPU
    time than a training with the equations (lab/motion_seeds.py).
    """
    runs = [Run(EQUATIONS, seed, updates) for seed in seeds]
    runs += [Run(PLAIN, seed, updates) for seed in seeds]
    return [*runs, Run(PLAIN, seeds[0], 2 * updates)]
