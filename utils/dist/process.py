"""Processes of this host, as /proc shows them (Linux): time, signals, stacks, and their end.

The parts of this page:

* `AwakeClock` counts the seconds in which this process really ran.
* `process_state`, `children_of` and `machine` look at processes.
* `signals_held` and `leave_signals_to_parent` keep signals away from loader processes.
* `first_to_claim` chooses, among the ranks of a host, the one that reports an error.
* `kill_trees`, `end`, `die_with_parent` end processes.
* `dump_stacks` writes what the threads of a process do.
* `stack_file_of` proves that a process is a rank of this run, before anything is done to it.
* `guard` watches one rank from outside.

Run as a program (`python -m utils.dist.process ...`), this module is the guard of a rank: a small
process beside the rank, which ends it if no Python code of the rank can. While C code holds
Python's lock (the GIL), no thread of the rank runs. faulthandler has a timer that needs no lock.
But this timer also counts the time in which the process is suspended, and says only
"Timeout (0:00:10)!".
"""

import atexit
import errno
import faulthandler
import fcntl
import hashlib
import json
import multiprocessing
import os
import platform
import re
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

from utils import system
from utils.errors import StallError

# Python's own function that runs the exit handlers. It is private, and has no public equivalent.
# None if this Python does not have it. See `end`.
run_exit_handlers = getattr(atexit, "_run_exitfuncs", None)

# A request to fcntl, from linux/fcntl.h.
F_GET_SEALS = 1034

# Numbers of the system calls write and writev in linux/unistd.h: on x86-64, and on most others.
WRITE_CALLS = ("1", "20") if platform.machine() == "x86_64" else ("64", "66")

# Ranks of one start that fail alike do so within this time, in seconds.
CLAIM_S = 10.0
# Longest wait for exit handlers of libraries, in seconds.
HANDLERS_S = 60.0
# A guard that cannot write its report to a paused terminal ends after this time, in seconds.
LAST_WORDS_S = 5

# The claims of this process, see `first_to_claim`. A claim lasts as long as its socket is here.
CLAIMS: list[socket.socket] = []

# Signals that a launcher, a cluster or a terminal sends to all processes of a rank at once.
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


# ---- Time ------------------------------------------------------------------------------------


class AwakeClock:
    """Counts the seconds in which this process ran, for limits of time.

    Ctrl-Z, `scontrol suspend`, `docker pause` and the stop of a virtual machine suspend a process
    while all clocks of the system go on. This clock does not: the time between two calls of `now`
    counts as slice_s at most. So call it at least every slice_s seconds.
    """

    def __init__(self, slice_s: float = 5.0) -> None:
        self.slice_s = slice_s
        self.awake_s = 0.0
        self.asked = time.monotonic()  # time of the last call of `now`
        self.lock = threading.Lock()

    def now(self) -> float:
        """Return the seconds in which this process ran since the clock was made."""
        with self.lock:
            now = time.monotonic()
            self.awake_s += min(now - self.asked, self.slice_s)
            self.asked = now
            return self.awake_s


# ---- Processes -------------------------------------------------------------------------------


@cache
def machine() -> str:
    """Return a name for where a process id is valid: host name, start of the host, PID namespace.

    The host name is not enough, because containers and copied virtual machines may share it.
    """
    parts = [socket.gethostname()]
    with suppress(OSError):  # a system without /proc
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
        parts += [boot, namespace]
    return "/".join(parts)


def process_state(pid: int) -> str | None:
    """Return the state of a process, as the letter of /proc/<pid>/stat.

    R running, S sleeping, D waiting for a disk, T stopped, t stopped by a debugger, Z zombie (it
    has ended, and its parent has not asked for its exit code), ... Returns None if there is no such
    process.
    """
    try:
        # Each beat comes here, and open() takes half of the time of Path.read_text.
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
        # E.g. "4711 (python (3)) S 1 ...": the letter follows the last bracket.
        return text.rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        if not system.has_proc() and system.is_alive(pid):
            return "R"
        return None


def children_of(pid: int) -> list[int]:
    """Return the ids of all descendants of a process. A child comes before its own children.

    On a system without /proc, these are the children that multiprocessing started in this process,
    and of another process none.
    """
    if not system.has_proc():
        own = multiprocessing.active_children() if pid == os.getpid() else []
        return [child.pid for child in own if child.pid is not None]
    found: list[int] = []
    # Each thread of the process has a file with the children that it started.
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread or the process has ended meanwhile
            for child in map(int, children.read_text().split()):
                found.append(child)
                found.extend(children_of(child))
    return found


def open_closed_streams() -> None:
    """Drop what is written to stdout or stderr if the shell has closed it (`>&-`).

    Without this, the first line that is written would end the program.
    """
    # The files stay open until the process ends, so `with` (SIM115) does not serve.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


# ---- Signals and loader processes ------------------------------------------------------------


@contextmanager
def signals_held() -> Generator[None]:
    """Let GROUP_SIGNALS wait until the end of the block.

    In a process that is forked within the block, they wait until it calls
    `leave_signals_to_parent`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


def leave_signals_to_parent() -> None:
    """Ignore signals that are sent to all processes of a rank. Called in a loader process.

    The rank itself handles them, and saves first. torchrun signals the process group of a rank,
    SLURM all its descendants. A loader process that ended then would fail the rank in the middle of
    a step.

    The first SIGTERM is ignored as well; the second one ends the process. This is how the rank
    itself ends its loader processes.
    """

    def end_at_next(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)

    for number in GROUP_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end_at_next)
    # Signals that came while they were held arrive now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


# ---- One report of each host -----------------------------------------------------------------


def first_to_claim(name: str) -> bool:
    """Claim a name on this machine. Returns whether no other living process has claimed it.

    Ranks that fail alike all call this with the same name, e.g. the text of their error. Only the
    process that gets the claim reports the error. It then calls `outlast_siblings` before it ends.

    A claim is an address of a Unix socket that lies in no folder (an abstract address). It leaves
    no file behind, and is free again as soon as its process ends.
    """
    claim = socket.socket(socket.AF_UNIX)
    # The machine is a part of the name, because containers may share their addresses.
    text = f"{os.getuid()} {machine()} {name}".encode(errors="replace")
    address = f"\0spikevrt-{hashlib.sha256(text).hexdigest()}"  # \0 makes it abstract
    try:
        claim.bind(address)
        claim.listen()  # so that others can ask the system who has the claim
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            return not _is_ours(address)
        # If nothing can be claimed, reporting twice is better than not at all.
        return True
    CLAIMS.append(claim)
    return True


def _is_ours(address: str) -> bool:
    """Whether a process of our own user has claimed the address.

    Any user of the host can bind it. The system says who listens there (SO_PEERCRED of unix(7)).
    """
    # 20 times 10 ms: a process that has just bound the address may not listen yet.
    for _ in range(20):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as other:
            other.settimeout(1.0)
            other.connect(address)
            # Three integers of 4 bytes: process, user, group.
            credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            _, user, _ = struct.unpack("3i", credentials)
            return user == os.getuid()
        time.sleep(0.01)
    return False


def outlast_siblings(mark: str | None = None) -> None:
    """Wait until the other ranks of this host have ended, if this process has a claim.

    They would report the same error if the claim ended before them. Waits at most CLAIM_S.

    mark: end of the names of this run's memory files, see `watchdog.run_mark`. It tells the ranks
        of this run from other programs of the same parent, which go on. None if the ranks have no
        memory files yet; then every process of the same parent that runs this Python is waited for.
    """
    if not CLAIMS:
        return
    deadline = time.monotonic() + CLAIM_S
    with suppress(ValueError):  # in another thread than the main one
        # torchrun sends SIGTERM as soon as one of the ranks has gone.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while time.monotonic() < deadline and _has_siblings(mark):
        time.sleep(0.02)


def _has_siblings(mark: str | None) -> bool:
    """Whether another rank with the same parent is alive. mark: see `outlast_siblings`."""
    own_tree = {os.getpid(), *children_of(os.getpid())}
    for pid in set(children_of(os.getppid())) - own_tree:
        with suppress(OSError):  # it has ended meanwhile
            is_python = os.path.samefile(f"/proc/{pid}/exe", "/proc/self/exe")
            if is_python and (mark is None or _has_mark(pid, mark)):
                return True
    return False


def _has_mark(pid: int, mark: str) -> bool:
    """Whether a process has a memory file whose name ends with `mark`."""
    folder = f"/proc/{pid}/fd"
    for entry in os.listdir(folder):
        with suppress(OSError):  # it was closed meanwhile
            # The system calls a file in memory "/memfd:<name> (deleted)".
            if os.readlink(f"{folder}/{entry}").endswith(f"{mark} (deleted)"):
                return True
    return False


# ---- The end of processes --------------------------------------------------------------------


def kill_trees(pids: Iterable[int] | None = None) -> None:
    """Send SIGKILL to processes and to all their descendants.

    pids: the processes. None for those that multiprocessing started, such as loader processes: they
        have nothing to save.

    The exit handlers of Python would send SIGTERM to these twice, and then wait for their end. If
    both signals come before a loader process runs again, they count as one. One is ignored
    (`leave_signals_to_parent`), so the wait would never end.
    """
    # torch raises an error when a loader process ends, by a handler of SIGCHLD. The handler can be
    # replaced in the main thread only; elsewhere this raises ValueError.
    with suppress(ValueError):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pids is None:
        roots = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    else:
        roots = list(pids)
    # All are found before the first is killed, so that no time passes between the kills.
    doomed = []
    for pid in roots:
        doomed.extend(children_of(pid))
        doomed.append(pid)
    for process in doomed:
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or is not ours
            os.kill(process, signal.SIGKILL)


def end(code: int) -> NoReturn:
    """End a program of one or several ranks: run the exit handlers, then os._exit(code).

    Python's own shutdown is left out. During that shutdown, a thread of torch that releases a
    tensor aborts the process (SIGABRT, "terminate called without an active exception"), and a
    finished run would seem to have failed: pytorch#190489.

    If this Python has no function to run the handlers, this is sys.exit(code).
    """
    kill_trees()
    if run_exit_handlers is None:
        sys.exit(code)
    # In a thread: a handler that waits for a network must not hold a program that has done its
    # work.
    handlers = threading.Thread(target=run_exit_handlers, daemon=True)
    handlers.start()
    handlers.join(HANDLERS_S)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a full disk behind it must not change the exit code
            stream.flush()
    os._exit(code)


def die_with_parent() -> None:
    """End this process as soon as its parent is gone, so that none is left over after a kill -9."""
    system.ask_for_signal_at_end_of_parent(signal.SIGKILL)
    # The parent may have ended before that request.
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os.kill(os.getpid(), signal.SIGKILL)


def write_exit_file(code: int) -> None:
    """Note the exit code for scripts/torchrun_quiet.py, if that program has started this one.

    torchrun turns every exit code into 1, so the code goes through a file. The first line of the
    file counts: the rank that failed writes before the ranks that end because of it.
    """
    path = os.environ.get("SPIKEVRT_EXIT_FILE")
    if path:
        # An OSError, e.g. of a full disk, must not change the exit code.
        with suppress(OSError), open(path, "a", encoding="ascii") as file:
            file.write(f"{code}\n")


# ---- The guard of a rank ---------------------------------------------------------------------


def start_guard(
    rank: int, limit_s: float, stack_file: str, is_alone: bool, log_file: str | None
) -> subprocess.Popen[bytes] | None:
    """Start the guard of this process, see `guard`.

    Whoever calls this writes a byte to the stdin of the guard now and then, as a heartbeat.

    Returns None if the system starts no more processes, or has no /proc. By /proc a guard knows a
    rank that is stopped on purpose. The guard keeps GROUP_SIGNALS blocked, as it starts.

    limit_s: seconds without a heartbeat after which the guard ends this process.
    stack_file: path of the memory file for the stacks.
    is_alone: whether no other rank reports the stall.
    log_file: path of the run's log, or None if this rank has none.
    """
    if not system.has_proc():
        return None
    arguments = json.dumps([rank, os.getpid(), limit_s, stack_file, is_alone, log_file])
    # -S starts Python without installed packages, which the guard does not need.
    command = [sys.executable, "-S", "-m", "utils.dist.process", arguments]
    root = Path(__file__).resolve().parents[2]
    with suppress(OSError), signals_held():
        guard_process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, bufsize=0)
        if guard_process.stdin is not None:
            os.set_blocking(guard_process.stdin.fileno(), False)  # no beat waits for the guard
        return guard_process
    return None


def guard(
    rank: int, pid: int, limit_s: float, stack_file: str, is_alone: bool, log_file: str | None
) -> None:
    """Watch a rank until it ends, and end it if no Python code of its own can.

    This is the main function of the guard process. The rank is its parent. A rank that is stopped
    by a signal is left to the other ranks, or to whoever stopped it.

    Arguments as in `start_guard`; pid: process of the rank.
    """
    clock = AwakeClock(slice_s=min(1.0, limit_s / 3))
    heard = 0.0  # time of the last heartbeat
    while True:
        if os.getppid() != pid:  # the rank has ended, so the guard has another parent now
            return
        # Wait for a byte on stdin, at most half a slice.
        readable, _, _ = select.select([0], [], [], clock.slice_s / 2)
        is_heard = bool(readable)
        if is_heard and not os.read(0, 4096):  # the rank has closed the pipe
            return
        now = clock.now()
        if is_heard or process_state(pid) in ("T", "t"):  # stopped, by a signal or a debugger
            heard = now
        elif now - heard > limit_s:
            break

    # First the stacks, while the process lives; then its end; then the words, because the terminal
    # may be paused. The guard outlives the rank for the words, a few seconds at most.
    stacks = ""
    if is_alone:
        with suppress(OSError), open(stack_file, "a+b", buffering=0) as file:
            stacks = dump_stacks(file, pid)
    system.ask_for_signal_at_end_of_parent(0)  # no signal: the guard stays
    signal.alarm(LAST_WORDS_S)
    write_exit_file(StallError.exit_code)
    os.kill(pid, signal.SIGKILL)
    if not is_alone:
        return  # the other ranks report
    error = StallError(
        what=f"rank {rank} is SILENT: its threads did not run for {now - heard:.1f} s: C code "
        "holds Python's lock",
        where=f"host {socket.gethostname()}, pid {pid}",
        expected="a beat each half second (option watchdog.stall_s)",
        do="see its stack below",
    )
    words = f"{error}\n\nStacks of rank {rank}:\n{stacks}\n".encode()
    if log_file is not None:
        with suppress(OSError):
            # O_NOFOLLOW: never write behind a link that somebody put there.
            descriptor = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
            os.write(descriptor, words)
    with suppress(OSError):
        os.write(2, words)


# ---- Other ranks of this host ----------------------------------------------------------------


def stack_file_of(pid: int, name: str) -> FileIO | None:
    """Open the memory file `name` of the process `pid`, or return None if it has none.

    A rank writes its stacks into a memory file whose name tells the run and the rank. The system
    shows such names to processes of the same user alone, and no other user can give one of our
    processes such a file. So the file proves that the process is this rank of this run.

    pid: what the network says. Nothing is done to the process, and no path comes from the network.
    """
    wanted = f"/memfd:{name} (deleted)"
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):  # there is no such process, or it is not ours
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return None
        for entry in os.listdir(folder):
            if os.readlink(f"{folder}/{entry}") == wanted:
                # The caller closes the file.
                file = open(f"{folder}/{entry}", "a+b", buffering=0)  # noqa: SIM115
                # A file on a disk can have this name too. Only a file in memory has seals: for
                # another one this raises OSError.
                fcntl.fcntl(file, F_GET_SEALS)
                return file
    return None


def stacks_of(pid: int, name: str) -> str:
    """Return the stacks of the process if it holds the memory file `name`, else ""."""
    file = stack_file_of(pid, name)
    if file is None:
        return ""
    with suppress(OSError), file:
        return dump_stacks(file, pid)
    return ""


def kill_rank(pid: int, name: str) -> None:
    """End the process and what it started, if it holds the memory file `name`."""
    file = stack_file_of(pid, name)
    if file is not None:
        file.close()
        kill_trees([pid])


# ---- What a process does ---------------------------------------------------------------------


def main_thread_writes() -> bool:
    """Whether the main thread waits in a write to a terminal or pipe: stdout or stderr."""
    # The system call that the thread is in, e.g. "1 0x2 0x7f... ...": its number, its arguments in
    # hexadecimal. "running" if it is in none.
    try:
        with open(f"/proc/self/task/{os.getpid()}/syscall", encoding="ascii") as file:
            text = file.read()
    except OSError:  # some systems do not show it
        return False
    words = text.split()
    if len(words) < 2 or words[0] not in WRITE_CALLS:
        return False
    descriptor = int(words[1], 16)
    if descriptor not in (1, 2):  # stdout, stderr
        return False
    # A terminal is a character device.
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def dump_stacks(file: Any, pid: int | None = None) -> str:
    """Write the Python stacks of a process and of its loader processes into `file`.

    faulthandler writes the stacks, so they come whatever the threads do. Another process writes its
    own, if it handles SIGUSR2; ranks and their loader processes do, see `Watchdog`.

    file: a memory file that this process and the others have open, without a buffer.
    pid: the process, or None for this one.

    Returns the text of the file.
    """
    file.truncate(0)
    if pid is None:
        faulthandler.dump_traceback(file, all_threads=True)
        _ask_for_stacks(file, children_of(os.getpid()), titled=True)
    else:
        children = children_of(pid)
        _ask_for_stacks(file, [pid], titled=False)
        _ask_for_stacks(file, children, titled=True)
    file.seek(0)
    return file.read().decode(errors="replace")


def _ask_for_stacks(file: Any, pids: list[int], titled: bool) -> None:
    """Let processes write their stacks into `file`, one after the other.

    titled: whether a line "child process <pid>:" goes before each.
    """
    for pid in pids:
        title = f"\nchild process {pid}:\n" if titled else ""
        with suppress(OSError):  # the process has ended
            status = Path(f"/proc/{pid}/status").read_text()
            if "State:\tT" in status:
                reason = (
                    "(the process is stopped by a signal, so it has no stack; "
                    "kill -CONT lets it go on)"
                )
                file.write(f"{title}{reason}\n".encode())
            # The signal would end a process that does not handle it.
            elif _handles(status, signal.SIGUSR2):
                file.write(title.encode())
                size_before = os.fstat(file.fileno()).st_size
                os.kill(pid, signal.SIGUSR2)
                _wait_for_growth(file, size_before)


def _wait_for_growth(file: Any, size_before: int) -> None:
    """Wait until another process has written into `file`, half a second at most."""
    deadline = time.monotonic() + 0.5
    while os.fstat(file.fileno()).st_size == size_before and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.05)  # for the rest of the stacks, after their first line


def _handles(status: str, number: signal.Signals) -> bool:
    """Whether a process handles a signal. status: its /proc/<pid>/status."""
    # E.g. "SigCgt: 0000000000000a00": a hexadecimal number with one bit for each handled signal;
    # the lowest bit is signal 1.
    found = re.search(r"SigCgt:\s*(\w+)", status)
    if found is None:
        return False
    handled = int(found[1], 16)
    return (handled >> (number - 1)) & 1 == 1


if __name__ == "__main__":
    die_with_parent()
    guard(*json.loads(sys.argv[1]))
