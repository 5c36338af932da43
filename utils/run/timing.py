"""Measure the time of a run: of a call, of the steps, and of blocks of work on the device.

    seconds_of    the median seconds of a call
    StepTimer     wall-clock time of the steps since the last log line, of the epoch, of pauses
    DeviceClock   time that the device spends on a block, e.g. on the forward passes

What must stay: no function that runs in a step waits for the device, because the host prepares the
next work while the device computes. Only `seconds_of` waits, and no training step calls it. The
names that callers give to `StepTimer.part` must stay, too, because they are part of the tags of a
run's history. E.g. "data" has the tag "train/data_share".

Tests: tests/parts/utils/test_progress.py, and for the clock of the device
tests/parts/utils/test_health.py (test_the_event_files_hold_the_times_of_each_rank).
"""

import math
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from utils import device as devices
from utils import system, utils_dist


def seconds_of(
    run: Callable[[], Any], device: torch.device, repeats: int = 3, warmup: int = 0
) -> float:
    """Return the median seconds of a call of `run`, until its work on the device is done.

    device: the device on which `run` computes.
    repeats: number of calls whose seconds are used.
    warmup: number of calls before these calls. Their seconds are not used.
    """
    seconds = []
    for _ in range(warmup + repeats):
        begin = time.perf_counter()
        run()
        # Wait for the device, because a GPU is still computing when the call returns.
        devices.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    seconds_that_count = seconds[warmup:]  # e.g. calls 1, 2, 3 of 0, 1, 2, 3 with warmup 1
    return statistics.median(seconds_that_count)


# Kinds of work between two steps. Their time does not count as time of the steps. `Run` (run.py)
# uses these names in two places: as the argument of `StepTimer.part`, and as the keys of the
# argument `every` of `RunProgress` (run_progress.py).
PAUSES = ("validation", "save")


class Span:
    """The steps of a part of a run, e.g. of an epoch, and the seconds of each kind of work.

    The kinds of work are the names given to `StepTimer.part`, e.g. "data" (wait for a batch) and
    "compute". The time of PAUSES is counted separately.
    """

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.paused_s = 0.0  # seconds of PAUSES
        self.steps = 0
        self.seconds_of_work: dict[str, float] = defaultdict(float)  # kind of work -> seconds

    @property
    def seconds(self) -> float:
        """The seconds since the span began, without the pauses."""
        return time.perf_counter() - self.begin - self.paused_s

    def speed_and_shares(self) -> dict[str, float]:
        """Return iterations per second, and the share of each kind of work in the time (0..1).

        E.g. {"it_per_s": 2.1, "data_share": 0.03, "compute_share": 0.95}. Returns {} if there was
        no step.
        """
        if not self.steps:
            return {}
        seconds = self.seconds
        values = {"it_per_s": self.steps / seconds}
        for name, work_seconds in self.seconds_of_work.items():
            values[f"{name}_share"] = work_seconds / seconds
        return values


# In this number of seconds, the weight of an old speed in the predicted speed falls from 1 to 0.37
# (1 / e). With a shorter time, each slow step would change the predicted end of the run. With a
# longer time, the prediction would follow a lasting change of the speed too late. Chosen by hand.
FADE_S = 300.0


class _FadedSums(NamedTuple):
    """Steps and their seconds since the run began, in which old steps and seconds count less."""

    steps: float
    seconds: float


class StepTimer:
    """Measures wall-clock time: of the steps since the last log line, of the epoch, and of pauses.

    The first step of a process does not count, because the process also starts its loader
    processes, builds DDP, and compiles and tunes kernels in this step. The clock is the clock of
    the host. The timer does not wait until a GPU has finished a part, because such a wait would
    slow down every step.

        with timer.part("data"): ...       # in each step: wait for a batch
        with timer.part("compute"): ...    # forward, backward, optimizer
        timer.step_done()
        timer.read()                       # at a log line: {"it_per_s": 2.1, "data_share": 0.03,
                                           # "compute_share": 0.95, "memory_gb": 11.2}

    Tests in test_progress.py: test_the_first_step_of_a_process_does_not_count,
    test_validations_do_not_count_in_the_pace, test_the_remaining_time_follows_a_change_of_speed.
    """

    def __init__(self) -> None:
        self.line = Span()  # since the last log line
        self.epoch = Span()  # since the epoch began, without the first step of the process
        # When the epoch began. The log shows the length of the whole epoch, with the first step of
        # the process. `self.epoch` is without this step, because it is used for the speed.
        self.epoch_begin = time.perf_counter()
        self.pauses: dict[str, list[float]] = defaultdict(list)  # "save" -> seconds of each save
        self._is_warm = False  # whether the first step is done
        # The sums up to the last log line, for the predicted speed.
        self._sums_at_line = _FadedSums(steps=0.0, seconds=0.0)

    @contextmanager
    def part(self, name: str) -> Generator[None]:
        """Measure the block.

        A block may be within another block, e.g. "epoch_start" within "data". The seconds of the
        inner block are then added to both kinds of work.

        name: the kind of work, e.g. "data" or "compute", or one of PAUSES.
        """
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            if name in PAUSES:
                self.line.paused_s += seconds
                self.epoch.paused_s += seconds
                self.pauses[name].append(seconds)
            else:
                self.line.seconds_of_work[name] += seconds
                self.epoch.seconds_of_work[name] += seconds

    def step_done(self) -> None:
        """Count a step. After the first step of the process, begin to measure."""
        if self._is_warm:
            self.line.steps += 1
            self.epoch.steps += 1
        else:
            self._is_warm = True
            self.line = Span()
            self.epoch = Span()

    def read(self) -> dict[str, float]:
        """Return speed and shares since the last call (`Span.speed_and_shares`), and "memory_gb".

        "memory_gb" is the largest memory so far. On a GPU this is the memory of torch's tensors. On
        the CPU it is the memory of the process.
        """
        values = self.line.speed_and_shares()
        # `_faded_sums` reads the current line, so call it before a new line begins.
        self._sums_at_line = self._faded_sums()
        self.line = Span()
        device_peak_gb = devices.peak_gb(utils_dist.get_device())  # None on the CPU
        if device_peak_gb is None:
            values["memory_gb"] = system.peak_process_gb()
        else:
            values["memory_gb"] = device_peak_gb
        return values

    def begin_epoch(self) -> None:
        """Begin to measure a new epoch."""
        self.epoch = Span()
        self.epoch_begin = time.perf_counter()

    def pace(self) -> float | None:
        """Return the mean seconds of a step in the last minutes, or None until step 2 is done."""
        sums = self._faded_sums()
        return sums.seconds / sums.steps if sums.steps else None

    def _faded_sums(self) -> _FadedSums:
        """Return steps and seconds up to now, in which older steps and seconds count less.

        So seconds / steps follows a change of speed within minutes, but hardly changes after a
        single slow step. Here t is the time since the last log line without the pauses, in seconds.
        FADE_S is five minutes:

            fade          = exp(-t / FADE_S)                      e.g. 0.37 if t is five minutes
            faded steps   = fade * faded steps at the last line   + steps since then
            faded seconds = fade * faded seconds at the last line + t
        """
        # Without a new step there is no new speed, so the speed of the last log line stays.
        if not self.line.steps:
            return self._sums_at_line
        at_line = self._sums_at_line
        seconds = self.line.seconds
        fade = math.exp(-seconds / FADE_S)
        return _FadedSums(
            steps=at_line.steps * fade + self.line.steps,
            seconds=at_line.seconds * fade + seconds,
        )


class _BlockEvents(NamedTuple):
    """The events before and after a block of `DeviceClock.measure`."""

    begin: torch.Event
    end: torch.Event


class DeviceClock:
    """Sums the seconds that the device spends on blocks of `with clock.measure():`.

    On the CPU these are wall-clock seconds. On a GPU the clock puts an event before and after each
    block into the queue of the GPU. When the GPU comes to an event in its queue, it writes the time
    into the event. `read` takes only events that have their time, so the host never waits for the
    device. This must stay, because a wait would slow down every step.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = 0.0  # seconds of finished blocks since the last `read`
        self.events: deque[_BlockEvents] = deque()  # of blocks that are not read yet, oldest first

    @contextmanager
    def measure(self) -> Generator[None]:
        """Measure the block."""
        if self.device.type == "cpu":
            begin = time.perf_counter()
            yield
            self.seconds += time.perf_counter() - begin
            return
        block = _BlockEvents(
            begin=torch.Event(self.device, enable_timing=True),
            end=torch.Event(self.device, enable_timing=True),
        )
        block.begin.record()
        yield
        block.end.record()
        self.events.append(block)

    def read(self) -> float:
        """Return the seconds since the last call, of the blocks that the device has finished."""
        while self.events:
            oldest = self.events[0]
            if not oldest.end.query():  # the device has not finished this block yet
                break
            self.events.popleft()
            self.seconds += oldest.begin.elapsed_time(oldest.end) / 1000  # elapsed_time is in ms
        seconds = self.seconds
        self.seconds = 0.0
        return seconds
