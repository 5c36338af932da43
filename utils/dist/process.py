"""Find processes of this host, hold back signals, and end processes.

* `process_state`, `process_parent`, `descendants_of` and `machine` tell which processes there are.
  They read /proc, the folder in which Linux shows its processes.
* `main_thread_writes` tells whether the main thread waits for a terminal. `open_closed_streams`
  opens stdout and stderr if the shell has closed them.
* `signals_held` and `leave_signals_to_parent` protect loader processes (the processes of a
  DataLoader, which read samples) from signals to all processes of a rank.
* `kill_trees`, `end` and `die_with_parent` end processes. `write_exit_file` writes the exit code to
  a file for scripts/torchrun_quiet.py, if that program has started torchrun.

What must stay: the guard of a rank (utils/dist/guard.py) uses this module without installed
packages. So this module imports only the standard library, and modules of this project that do the
same. Free to change: HANDLERS_S, and how /proc is read.

Tests: tests/parts/utils/test_process.py, tests/faults/test_stalls.py, tests/dist/test_life.py.
"""

import atexit
import multiprocessing
import os
import platform
import signal
import socket
import stat
import sys
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from utils import system

# ---- Processes -------------------------------------------------------------------------------


@cache
def machine() -> str:
    """Return a name of the host or container that this process runs in.

    A process id means a process only within this host or container.

    E.g. "gpu7/1b4e28ba-.../pid:[4026531836]": the host name, an id of the last start of the host,
    and the pid namespace, of which each container has its own. The host name alone is not enough,
    because containers and copied virtual machines may have the same host name.
    """
    parts = [socket.gethostname()]
    with suppress(OSError):  # a system without /proc has the host name only
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
        parts += [boot, namespace]
    return "/".join(parts)


def process_state(pid: int) -> str | None:
    """Return the state of a process, as the letter of /proc/<pid>/stat.

        R  runs
        S  sleeps
        D  waits for a disk
        T  is stopped by a signal
        t  is stopped by a debugger
        Z  is a zombie: it has ended, but its parent has not asked for its exit code yet
        X  has ended

    Returns None if there is no such process. On a system without /proc, each living process is "R".
    """
    fields = _stat_fields(pid)
    if fields:
        return fields[0].decode()
    if not system.has_proc() and system.is_alive(pid):
        return "R"
    return None


def process_parent(pid: int) -> int:
    """Return the process id of the parent of a process, or 0 if there is no such process."""
    fields = _stat_fields(pid)
    if not fields:
        return 0
    return int(fields[1])  # fields[0] is the state of the process


def _stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/<pid>/stat after the name of the process: state, parent, ...

    E.g. [b"S", b"1", ...] for b"4711 (python (3)) S 1 ...". The name may have brackets and blanks
    itself, so the fields begin after the last bracket.

    Returns [] if there is no such process, or if the file is empty.
    """
    try:
        # The watchdog calls this function twice a second, so use open(), which takes half the time
        # of Path.read_bytes.
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return []
    _, _, after_name = text.rpartition(b")")
    return after_name.split()


def descendants_of(pid: int) -> list[int]:
    """Return the ids of all descendants of a process. A child comes before its own children.

    On a system without /proc, only the processes are found that multiprocessing has started from
    this process. For another process the list is empty.
    """
    if not system.has_proc():
        if pid != os.getpid():
            return []
        return _started_by_multiprocessing()
    descendants: list[int] = []
    # Each thread of the process has a file with the children that it started, e.g. "4712 4713 ".
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread or the process has ended meanwhile
            for word in children.read_text().split():
                child = int(word)
                descendants.append(child)
                descendants.extend(descendants_of(child))
    return descendants


def _started_by_multiprocessing() -> list[int]:
    """Return the ids of the living processes that multiprocessing has started from this process."""
    children = multiprocessing.active_children()
    return [child.pid for child in children if child.pid is not None]


def open_closed_streams() -> None:
    """If the shell has closed stdout or stderr (`>&-`), replace it by a file that drops all text.

    Without this, the first written line would raise an error and end the program.
    """
    # The files stay open until the process ends, so they cannot be opened by `with` (SIM115).
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


# The numbers of the system calls write and writev: 1 and 20 on x86-64, 64 and 66 on most other
# processors (linux/unistd.h). While the main thread waits in a write to a paused terminal, the file
# /proc/.../syscall has one of these numbers, as a text. `main_thread_writes` reads the file.
WRITE_CALLS = ("1", "20") if platform.machine() == "x86_64" else ("64", "66")


def main_thread_writes() -> bool:
    """Return whether the main thread waits until it can write to stdout or stderr.

    It waits if stdout or stderr is a paused terminal, or a pipe that nobody empties. Returns False
    for a write to a file on a disk.
    """
    # The folder /proc/self/task has a folder for each thread, named by the number of the thread.
    # The number of the main thread equals the process id. In the folder of a thread, the file
    # `syscall` shows the system call in which the thread waits:
    #
    #     1 0x2 0x7f... ...   write (1) to the file 2, which is stderr
    #     running             the thread does not wait
    try:
        with open(f"/proc/self/task/{os.getpid()}/syscall", encoding="ascii") as file:
            text = file.read()
    except OSError:  # some systems do not show this file
        return False
    words = text.split()
    if len(words) < 2 or words[0] not in WRITE_CALLS:
        return False
    descriptor = int(words[1], 16)  # the file that is written
    if descriptor not in (1, 2):  # stdout, stderr
        return False
    # Only a terminal (a character device), a pipe or a socket makes a write wait for a reader.
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


# ---- Signals and loader processes ------------------------------------------------------------


# Signals that a launcher, a cluster or a terminal sends to all processes of a rank at once.
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@contextmanager
def signals_held() -> Generator[None]:
    """Hold back GROUP_SIGNALS (SIGINT, SIGTERM, ...) within the block. They arrive at its end.

    A process that is started within the block inherits the signal mask of its parent, so the
    signals are held back in the new process, too. There are two such processes:

        a loader process    `leave_signals_to_parent` installs its handlers, and then lets the
                            signals arrive. So no signal arrives before there are handlers
        the guard           the signals stay held back (guard.py)
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


def leave_signals_to_parent() -> None:
    """Ignore GROUP_SIGNALS (SIGINT, SIGTERM, ...) in this process, which is a loader process.

    torchrun sends its signals to the process group of a rank, and SLURM sends them to all
    descendants of a rank. The rank handles them: it saves and then ends. If a loader process ended
    at once, the rank would fail in the middle of its step.

    Only the first SIGTERM is ignored, and the second one ends the process, because the rank itself
    ends its loader processes by SIGTERM.
    """

    def end_at_next(number: int, _: Any) -> None:
        """Ignore this signal, and let the system end the process at the next one."""
        signal.signal(number, signal.SIG_DFL)

    for number in GROUP_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end_at_next)
    # Signals that were held back since the fork arrive now, at the handlers set above.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


# ---- The end of processes --------------------------------------------------------------------


def kill_trees(pids: Iterable[int] | None = None) -> None:
    """Send SIGKILL to processes and to all their descendants.

    pids: the processes. None means all that multiprocessing has started, such as loader processes,
        which have nothing to save.

    Loader processes must be ended here, before the exit handlers of Python run. These handlers send
    SIGTERM twice to each loader process, and then wait for its end. The system may deliver only one
    of two signals that come at once. A loader process ignores the first SIGTERM
    (`leave_signals_to_parent`), so the wait would never end.
    """
    # torch has a handler of SIGCHLD, which raises an error when a loader process ends. Put back the
    # system's default, which does nothing.
    with suppress(ValueError):  # only the main thread may replace a handler
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    roots = _started_by_multiprocessing() if pids is None else list(pids)
    # Find all processes before killing the first one. If processes were killed during the search, a
    # process could notice that another process is gone, and report an error.
    pids_to_kill = []
    for pid in roots:
        pids_to_kill.extend(descendants_of(pid))
        pids_to_kill.append(pid)
    for pid in pids_to_kill:
        with suppress(ProcessLookupError, PermissionError):  # ended meanwhile, or of another user
            os.kill(pid, signal.SIGKILL)


# Python's own function that runs the functions registered with atexit. `end` calls it. The function
# is private, but there is no public equivalent. None if this Python does not have it.
run_exit_handlers = getattr(atexit, "_run_exitfuncs", None)

# Longest wait for exit handlers of libraries, in seconds. A library may still send its last data
# over a slow network. With a shorter wait, these data could be lost. Chosen by hand.
HANDLERS_S = 60.0


def end(code: int) -> NoReturn:
    """End a program: kill its loader processes, run the exit handlers, then call os._exit(code).

    This leaves out Python's own shutdown. If a thread of torch releases a tensor during that
    shutdown, the process aborts (SIGABRT, "terminate called without an active exception"), and a
    finished run would seem to have failed: pytorch#190489.

    If this Python has no function to run the handlers, this calls sys.exit(code) instead.
    """
    kill_trees()
    if run_exit_handlers is None:
        sys.exit(code)
    # Run the handlers in a thread, because the program has done its work, and a handler that waits
    # for a network must not keep it alive.
    handlers = threading.Thread(target=run_exit_handlers, daemon=True)
    handlers.start()
    handlers.join(HANDLERS_S)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # if the output goes to a full disk, the exit code stays
            stream.flush()
    os._exit(code)


def die_with_parent() -> None:
    """Let the system end this process as soon as its parent has ended.

    So no process is left over if a user ends the parent by `kill -9`.
    """
    system.ask_for_signal_at_end_of_parent(signal.SIGKILL)
    # If the parent ended before this request, the system sends no signal.
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os.kill(os.getpid(), signal.SIGKILL)


def write_exit_file(code: int) -> None:
    """Append the exit code to a file, if scripts/torchrun_quiet.py has started this program.

    torchrun turns every exit code into 1, so scripts/torchrun_quiet.py reads the code from this
    file. Each rank that ends early appends its code, and the first code in the file is used. The
    ranks agree on one code before they end (utils/dist/failure.py), so any rank may be the first.
    """
    path = os.environ.get("SPIKEVRT_EXIT_FILE")
    if path:
        # An OSError, e.g. of a full disk, must not change the exit code.
        with suppress(OSError), open(path, "a", encoding="ascii") as file:
            file.write(f"{code}\n")
