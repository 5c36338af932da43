"""Judge the speed of a run: does a rank wait for data, or is it slower than the others?

In each step all ranks wait for the slowest rank, in the backward pass. A step therefore takes
equally long on all ranks, and its time does not show the slow rank. While a rank waits for data,
and in its forward pass, it does not wait for other ranks. So `SpeedJudge` compares these two times
of the ranks, in seconds per step.

A single log line may look bad by chance, because another program may have run at the same time. So
several log lines form a window of at least WINDOW_STEPS steps, and a warning needs
BAD_WINDOWS_IN_A_ROW bad windows in a row.

Free to change: each threshold, if it warns of healthy runs. tests/parts/utils/test_health.py then
shows which warnings change. Its part "Slow ranks, and the wait for data" has tests just below and
just above each threshold. Documents quote the texts of the warnings, so change them everywhere at
once.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from utils.options.loader_options import DatasetsOptions
from utils.run.measured import Measured

# Largest share of the time for which a rank may wait for data without a warning. Two equal runs
# differ in time by about this share, so a smaller wait is not noticeable.
MOST_DATA_SHARE = 0.10
# A rank is slow if it takes more than SLOW_FACTOR times the median of the other ranks, and if the
# difference is more than LEAST_DELAY_SHARE of a step. A smaller delay is not noticeable. Both
# numbers, and the two numbers below, are chosen by hand.
SLOW_FACTOR = 1.2
LEAST_DELAY_SHARE = 0.05
# The speed is judged over a window of at least this many steps. With long steps, several log lines
# make a window.
WINDOW_STEPS = 10
# A warning of the speed needs this many bad windows in a row, because another program may slow down
# a single window.
BAD_WINDOWS_IN_A_ROW = 3


# The measurements of a log line: one `Measured` of each rank, in the order of the ranks.
LogLine = list[Measured]


class _StepTimes(NamedTuple):
    """The times of a step on one rank: means over the steps of a window, in seconds."""

    step_s: float  # the whole step
    wait_s: float  # waiting for data, a part of step_s
    forward_s: float  # the forward pass, a part of step_s

    @property
    def own_s(self) -> float:
        """The seconds in which the rank waits for no other rank."""
        return self.wait_s + self.forward_s


class SpeedJudge:
    """Judges the log lines of a run on rank 0. `Health` (health.py) gives it the lines."""

    def __init__(self, datasets: DatasetsOptions, warn: Callable[..., None]) -> None:
        """Begin with an empty window.

        datasets: the section `datasets` of the options, for the advice.
        warn: called with name, format and values of a warning.
        """
        self.datasets = datasets
        self.warn = warn
        self.window: list[LogLine] = []  # the log lines of the present window, the oldest first
        # Whether the present window is the first one. The first window is not judged, because the
        # run also starts loader processes, builds DDP and compiles in it.
        self.is_first_window = True
        # For each name of a warning, the number of windows in a row that were bad until now.
        self.in_a_row: Counter[str] = Counter()

    def judge(self, line: LogLine) -> None:
        """Add a log line to the window. If the window has enough steps, judge it.

        line: the measurements of each rank since the log line before.
        """
        self.window.append(line)
        if _steps_of(self.window) < WINDOW_STEPS:
            return
        lines = self.window
        self.window = []
        if not self.is_first_window:
            self._check_speed(lines)
        self.is_first_window = False

    def _check_speed(self, lines: list[LogLine]) -> None:
        """Warn if a rank waits for data, or is slower than the others.

        lines: the log lines of a window.
        """
        times = _times_of_ranks(lines)
        newest = lines[-1]
        self._check_waits(newest, times)
        self._check_slow_ranks(newest, times)

    def _check_waits(self, newest: LogLine, times: list[_StepTimes]) -> None:
        """Warn if a rank waits for data for a large share of the time.

        newest: the newest log line of the window. It tells hosts and cores.
        times: the mean times of a step in the window, for each rank.
        """
        shares = [time.wait_s / time.step_s for time in times]
        worst_share = max(shares)
        worst_rank = shares.index(worst_share)
        cores = _cores_of_one_rank(newest, worst_rank)
        self._warn_if_again(
            "data",
            worst_share > MOST_DATA_SHARE,
            "rank %d on %s waits for data %.0f %% of the time, and all others with it: %s",
            worst_rank,
            newest[worst_rank].host,
            100 * worst_share,
            loader_advice(self.datasets.train, worst_share, cores),
        )

    def _check_slow_ranks(self, newest: LogLine, times: list[_StepTimes]) -> None:
        """Warn if a rank takes longer than the others.

        Ranks are compared by their own time (`_StepTimes.own_s`), and not by the time of a whole
        step, which is equal on all ranks. Tests:
        test_a_slow_rank_is_named_after_three_windows_in_a_row,
        test_small_differences_between_ranks_are_healthy,
        test_a_delay_of_less_than_a_twentieth_of_a_step_is_healthy.

        newest: the newest log line of the window. It tells the hosts.
        times: the mean times of a step in the window, for each rank.
        """
        if len(times) == 1:
            return  # there is no other rank
        for rank, time in enumerate(times):
            own_s_of_others = [other.own_s for other in times]
            del own_s_of_others[rank]
            usual_s = statistics.median(own_s_of_others)
            # A rank that takes 1 ms is much slower than ranks that take 0.5 ms. But the others
            # hardly wait for it, so its delay must also be a noticeable share of a whole step.
            is_much_slower = time.own_s > SLOW_FACTOR * usual_s
            is_noticed = time.own_s - usual_s > LEAST_DELAY_SHARE * time.step_s
            is_slow = is_much_slower and is_noticed
            self._warn_if_again(
                f"slow rank {rank}",
                is_slow,
                "rank %d on %s is slower than the others, which wait for it at every step: data "
                "%.3f s + forward %.3f s a step, the others %.3f s in all. On %s look for other "
                "programs on its GPU, cores and disk and for heat (nvidia-smi -q -d PERFORMANCE), "
                "or leave that host out",
                rank,
                newest[rank].host,
                time.wait_s,
                time.forward_s,
                usual_s,
                newest[rank].host,
            )

    def _warn_if_again(self, name: str, is_bad: bool, text: str, *values: Any) -> None:
        """Warn if BAD_WINDOWS_IN_A_ROW windows in a row are bad. Call this once for each window.

        name: name of the warning.
        is_bad: whether the present window is bad.
        text: the format of the warning, e.g. "rank %d waits".
        values: the values that the format needs.
        """
        if is_bad:
            self.in_a_row[name] += 1
        else:
            self.in_a_row[name] = 0
        if self.in_a_row[name] >= BAD_WINDOWS_IN_A_ROW:
            self.warn(name, text, *values)


def _cores_of_one_rank(line: LogLine, number: int) -> int:
    """Return how many cores a rank has for itself, at least 1.

    Ranks of a host may share their cores, or SLURM may have given each rank its own cores. Ranks
    that share their cores report the same host and the same cores. E.g.

        4 ranks share the cores 0 to 15         4 cores for each rank
        a rank has the cores 4 to 7 for itself  4 cores for this rank

    line: the measurements of each rank.
    number: number of the rank.
    """
    of_rank = line[number]
    sharing_count = 0  # number of ranks that use these cores, this rank included
    for other in line:
        if other.host == of_rank.host and other.cores == of_rank.cores:
            sharing_count += 1
    return max(1, len(of_rank.cores) // sharing_count)


def _steps_of(lines: list[LogLine]) -> int:
    """Return the number of steps of some log lines."""
    steps = 0
    for line in lines:
        steps += line[0].steps  # of rank 0, because all ranks make the same number of steps
    return steps


def _times_of_ranks(lines: list[LogLine]) -> list[_StepTimes]:
    """Return the mean times of a step, for each rank.

    lines: the log lines of a window.
    """
    steps = _steps_of(lines)
    world_size = len(lines[0])
    times = []
    for rank in range(world_size):
        of_rank = [line[rank] for line in lines]  # the measurements of this rank, line by line
        times.append(
            _StepTimes(
                step_s=sum(measured.seconds for measured in of_rank) / steps,
                wait_s=sum(measured.data_s for measured in of_rank) / steps,
                forward_s=sum(measured.forward_s for measured in of_rank) / steps,
            )
        )
    return times


def loader_advice(section: Any, share: float, cores: int) -> str:
    """Return what to set if training waits for data.

    Test: test_the_advice_is_the_number_of_workers_that_ends_the_wait.

    section: the options datasets.train.
    share: share of the time in which training waits for data, 0 to 1.
    cores: number of cores of a rank.
    """
    workers = section.dataloader_num_workers
    # The formula is: wanted workers = workers / (1 - share). At present, the workers need the time
    # of a whole step, with the wait, to make a batch. Without the wait, a step takes only
    # (1 - share) times as long, so more workers must share the work. E.g. with 6 workers and a wait
    # of 25 %, 6 / 0.75 = 8 workers are needed.
    #
    # With 0 workers the training process itself reads the data, and the formula would give 0. Then
    # advise the default, 2.
    wanted_workers = math.ceil(workers / (1 - share)) if workers else 2
    advice = []
    if wanted_workers <= cores:
        advice.append(f"set datasets.train.dataloader_num_workers={wanted_workers} (now {workers})")
    # If the dataset does not read from a clip cache yet, advise one. A dataset that a user has
    # written may have no `io_backend`, so ask with a default.
    backend = getattr(section, "io_backend", None)
    if getattr(backend, "type", "") != "cache":
        advice.append("build a clip cache with scripts/build_clip_cache.py")
    advice.append(f"copy the data to a faster disk (a rank has {cores} CPU cores)")
    return ", or ".join(advice)
