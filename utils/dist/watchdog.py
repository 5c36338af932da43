"""Note the phase of this rank's main thread, for the watchdog, which ends a run that hangs.

A run of several ranks hangs if one rank stops, because the others wait for it in a collective. So
each rank has:

* The main thread, which trains. Before each part of its work it notes the name of the part, the
  *phase*, in `RUN.place`, e.g. "forward" at step 120. To do so, it calls the functions of this
  module.
* The watchdog thread (watchdog_thread.py). Every half second it writes the phase into the key-value
  store of the run (this record is a *beat*), and reads the beats of a few other ranks (beats.py).
* A second thread, which ends the process if the watchdog thread hangs in a request to the store.
* The guard (guard.py), another process. It ends the rank if C code holds Python's lock (the GIL),
  because then none of the three threads can run.

The watchdogs end all ranks within seconds if a rank is

    SILENT   the rank writes no beat
    STUCK    its main thread is too long in one phase; the options `watchdog` have the limits
    DEAD     its process is gone
    failed   the rank raised an error, which utils/dist/failure.py reports

A main thread that waits for a paused terminal (Ctrl-S, a selection, `less`) is not STUCK, because
the run goes on as soon as the terminal takes output again.

What must stay: `phase` is cheap and takes no lock, because every step calls it several times.

Tests: tests/faults/test_stalls.py, tests/faults/test_scale.py, tests/dist/test_life.py.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager

from utils.dist.state import RUN, Place


def phase(name: str, step: int | None = None, is_sync: bool = False) -> None:
    """Note that the main thread enters a phase. The time in the phase begins at 0.

    The main thread calls this several times in a step, so it must stay cheap.

    name: name of the phase, e.g. "forward".
    step: number of optimizer steps so far, or None if the number has not changed.
    is_sync: whether the phase is a collective, which ends only when all ranks have entered it.
    """
    former = RUN.place
    # Within `stage`, RUN.stage is e.g. " in validate", and otherwise "". Add this text to the name:
    # "forward" -> "forward in validate". If `go_on` calls this function, the name ends with this
    # text already.
    full_name = name if name.endswith(RUN.stage) else name + RUN.stage
    step_now = former.step if step is None else step
    collective_count = former.syncs + 1 if is_sync else former.syncs
    # Replace the whole tuple in one assignment. The watchdog thread reads the tuple without a lock,
    # and must never see a new phase with an old time.
    RUN.place = Place(
        phase=full_name, step=step_now, since=time.monotonic(), syncs=collective_count
    )


def go_on() -> None:
    """Note that the main thread makes progress: the time of its phase begins again at 0.

    A long phase calls this after each part of its work, e.g. after each file that it has read.
    """
    phase(RUN.place.phase)


def asleep_s() -> float:
    """Return a number of seconds that grows only while this process is suspended, e.g. by Ctrl-Z.

    The difference of two results is the number of seconds for which the process was suspended in
    between. A single result has no meaning. While the process is suspended, the clock of the
    watchdog (an AwakeClock) stands still, and the clock of the system goes on.
    """
    if RUN.watchdog is None:
        return 0.0
    return time.monotonic() - RUN.watchdog.beats.clock.now()


@contextmanager
def stage(name: str) -> Generator[None]:
    """Within the block, call each phase "<phase> in `name`", with the time limit of `name`.

    E.g. "forward in validate" may take as long as the limit of "validate" says.
    """
    RUN.stage = f" in {name}"
    try:
        yield
    finally:
        inner = RUN.place.phase.removesuffix(RUN.stage)  # e.g. "forward in validate" -> "forward"
        RUN.stage = ""
        phase(inner)


@contextmanager
def collective(name: str) -> Generator[None]:
    """Within the block, which runs a collective, call the phase "`name` in <phase>".

    This also counts the collective. The ranks wait for the rank with the smallest count, so every
    collective that may hang needs this block, on every rank.
    """
    outer = RUN.place.phase
    phase(f"{name} in {outer}", is_sync=True)
    # There is no `finally`: after an error in the block, the phase must stay as it is, because the
    # report names the phase in which the rank failed.
    yield
    phase(outer)
