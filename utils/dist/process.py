"""Processes of this host, as /proc shows them (Linux): their time, their signals, their stacks,
their end.

Run as a program, it is the guard of a rank: a small process beside it, which ends it where no
Python code of its own can. While C code holds Python's lock (the GIL), no thread of the rank runs.
faulthandler's timer needs no lock, but it counts the time in which the process is suspended, and
says "Timeout (0:00:10)!".
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

# Private, without a public equivalent: see `end`.
run_exit_handlers = getattr(atexit, "_run_exitfuncs", None)
F_GET_SEALS = 1034  # linux/fcntl.h
# Numbers of write and writev in linux/unistd.h: on x86-64, and on most others.
WRITE_CALLS = ("1", "20") if platform.machine() == "x86_64" else ("64", "66")
CLAIM_S = 10.0  # ranks of one start that fail alike do so within this time
HANDLERS_S = 60.0  # longest wait for exit handlers of libraries
LAST_WORDS_S = 5  # a guard that cannot write its report to a paused terminal ends after this time
CLAIMS: list[socket.socket] = []  # of this process


class AwakeClock:
    """Seconds in which this process ran, for limits of time. Ask it at least every slice_s seconds.

    Ctrl-Z, `scontrol suspend`, `docker pause` and the stop of a virtual machine suspend a process
    while all clocks of the system go on; so the time between two questions counts as slice_s at
    most.
    """

    def __init__(self, slice_s: float = 5.0) -> None:
        self.slice_s, self.awake_s, self.asked = slice_s, 0.0, time.monotonic()
        self.lock = threading.Lock()

    def now(self) -> float:
        with self.lock:
            now = time.monotonic()
            self.awake_s += min(now - self.asked, self.slice_s)
            self.asked = now
            return self.awake_s


@cache
def machine() -> str:
    """A name for where a process id is valid; containers and copied virtual machines share the host
    name.
    """
    parts, boot = [socket.gethostname()], Path("/proc/sys/kernel/random/boot_id")
    with suppress(OSError):
        parts += [boot.read_text().strip(), os.readlink("/proc/self/ns/pid")]  # the PID namespace
    return "/".join(parts)


def process_state(pid: int) -> str | None:
    """The letter of /proc/<pid>/stat (R, S, D, T stopped, Z zombie, ...); None where there is no
    such process.
    """
    try:
        # With each beat: open() takes half of the time of Path.read_text.
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return "R" if not system.has_proc() and system.is_alive(pid) else None


def children_of(pid: int) -> list[int]:
    """All descendants, nearest first. Without /proc: of this process, those of multiprocessing."""
    if not system.has_proc():
        own = multiprocessing.active_children() if pid == os.getpid() else []
        return [child.pid for child in own if child.pid is not None]
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, tasks.read_text().split()):
                found += [child, *children_of(child)]
    return found


def open_closed_streams() -> None:
    """Where the shell has closed stdout or stderr (`>&-`), what is written there is dropped and
    ends no program.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


# What a launcher, a cluster or a terminal sends to all processes of a rank at once.
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@contextmanager
def signals_held() -> Generator[None]:
    """These signals wait until the end of the block, in a child forked meanwhile until
    `leave_signals_to_parent`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


def leave_signals_to_parent() -> None:
    """In a child: ignore signals sent to all processes of a rank; the rank itself handles them, and
    saves first.

    torchrun signals the process group of a rank, SLURM all its descendants; a loader process that
    ended would fail the rank in the middle of a step. The second SIGTERM ends the child: that is
    how the rank itself ends its children.
    """
    for number in set(GROUP_SIGNALS) - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


def first_to_claim(name: str) -> bool:
    """Whether no other living process of its machine has claimed the name; it alone reports.

    Before it ends, it calls `outlast_siblings`. A claim is an abstract address: no file, free once
    its process ends.
    """
    claim = socket.socket(socket.AF_UNIX)
    # Containers may share addresses
    text = f"{os.getuid()} {machine()} {name}".encode(errors="replace")
    address = f"\0spikevrt-{hashlib.sha256(text).hexdigest()}"
    try:
        claim.bind(address)
        claim.listen()  # so that others can ask the system who has the claim
    except OSError as e:
        # If nothing can be claimed, reporting twice is better than not at all.
        return e.errno != errno.EADDRINUSE or not _is_ours(address)
    CLAIMS.append(claim)
    return True


def _is_ours(address: str) -> bool:
    """Whether a process of our own user has claimed the address.

    Any user of the host can bind it. The system says who listens there (SO_PEERCRED of unix(7)).
    """
    for _ in range(20):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as other:
            other.settimeout(1.0)
            other.connect(address)
            credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            _, user, _ = struct.unpack("3i", credentials)
            return user == os.getuid()
        time.sleep(0.01)  # it is bound, and does not listen yet
    return False


def outlast_siblings(mark: str | None = None) -> None:
    """With a claim: wait for the end of the other ranks here (Python, same parent), which would
    report the same.

    mark: end of the names of this run's memory files (`stack_file_of`), once each rank has one. The
    same parent may have started other programs, which go on. None: before that.
    """
    if not CLAIMS:
        return
    deadline = time.monotonic() + CLAIM_S
    with suppress(ValueError):  # in another thread than the main one
        # Torchrun sends it as soon as one of the others has gone
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while time.monotonic() < deadline:
        for pid in set(children_of(os.getppid())) - {os.getpid(), *children_of(os.getpid())}:
            with suppress(OSError):  # it is gone
                is_python = os.path.samefile(f"/proc/{pid}/exe", "/proc/self/exe")
                if is_python and (mark is None or _has_mark(pid, mark)):
                    break
        else:
            return
        time.sleep(0.02)


def _has_mark(pid: int, mark: str) -> bool:
    folder = f"/proc/{pid}/fd"
    for entry in os.listdir(folder):
        with suppress(OSError):  # it was closed meanwhile
            if os.readlink(f"{folder}/{entry}").endswith(f"{mark} (deleted)"):
                return True
    return False


def kill_trees(pids: Iterable[int] | None = None) -> None:
    """SIGKILL to these processes and what they started; None: to those of multiprocessing, which
    have nothing to save.

    Exit handlers would send those two SIGTERMs and join: where both come before a loader process
    looks, they count as one, which it ignores (`leave_signals_to_parent`), and the join never ends.
    """
    # The handler of torch would raise an error for each loader process. It can be replaced in the
    # main thread only.
    with suppress(ValueError):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pids is None:
        roots = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    else:
        roots = list(pids)
    # All are found before the first is killed, so that no time passes between the kills.
    doomed = [process for pid in roots for process in (*children_of(pid), pid)]
    for process in doomed:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def end(code: int) -> NoReturn:
    """End a program of one or several ranks: run the exit handlers, then os._exit(code) in place of
    Python's shutdown.

    During that shutdown, a thread of torch that releases a tensor aborts the process (SIGABRT,
    "terminate called without an active exception"), and a finished run would seem to have failed:
    pytorch#190489. Where Python has no function to run the handlers, this is sys.exit(code).
    """
    kill_trees()
    if run_exit_handlers is None:
        sys.exit(code)
    # A handler that waits for a network must not hold a program that has done its work.
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
    if (parent := multiprocessing.parent_process()) and not parent.is_alive():  # it was gone before
        os.kill(os.getpid(), signal.SIGKILL)


def write_exit_file(code: int) -> None:
    """torchrun turns every exit code into 1; scripts/torchrun_quiet.py reads the run's own code
    here.
    """
    if path := os.environ.get("SPIKEVRT_EXIT_FILE"):
        # The first line counts: the rank that failed writes before those that end because of it.
        # A full disk must not change the code
        with (
            suppress(OSError),
            open(path, "a", encoding="ascii") as file,
        ):
            file.write(f"{code}\n")


def start_guard(
    rank: int, limit_s: float, stack_file: str, is_alone: bool, log_file: str | None
) -> subprocess.Popen[bytes] | None:
    """Start the guard of this process; it hears a heartbeat from what is written to its stdin.

    is_alone: whether no other rank reports the stall. log_file: path of the run's log.

    Returns None if the system starts no more processes, or has no /proc, by which a guard knows a
    rank that is stopped on purpose. The guard keeps the signals of GROUP_SIGNALS blocked, as it
    starts.
    """
    if not system.has_proc():
        return None
    arguments = json.dumps([rank, os.getpid(), limit_s, stack_file, is_alone, log_file])
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
    """Watch the rank until it ends, and end it if no Python code of its own can.

    A rank that is stopped by a signal is left to the other ranks, or to whoever stopped it.
    """
    clock, heard = AwakeClock(slice_s=min(1.0, limit_s / 3)), 0.0
    while os.getppid() == pid:
        is_ready = bool(select.select([0], [], [], clock.slice_s / 2)[0])
        if is_ready and not os.read(0, 4096):
            return
        now = clock.now()
        if is_ready or process_state(pid) in ("T", "t"):
            heard = now
        elif now - heard > limit_s:
            break
    else:
        return
    stacks = ""
    if is_alone:
        with suppress(OSError), open(stack_file, "a+b", buffering=0) as file:
            stacks = dump_stacks(file, pid)
    # First the end, then the words: the terminal may be paused. The guard outlives the rank for
    # them, a few seconds at most.
    system.ask_for_signal_at_end_of_parent(0)
    signal.alarm(LAST_WORDS_S)
    write_exit_file(StallError.exit_code)
    os.kill(pid, signal.SIGKILL)
    if is_alone:
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
                descriptor = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
                os.write(descriptor, words)
        with suppress(OSError):
            os.write(2, words)


# ---- Other ranks of this host ----------------------------------------------------------------


def stack_file_of(pid: int, name: str) -> FileIO | None:
    """Open the memory file `name` of the process `pid`, or return None if it has none.

    pid: what the network says; nothing is done to the process, and no path comes from the network.

    A rank writes its stacks into a memory file whose name tells the run and the rank. The system
    shows such names to processes of the same user alone, and no other user can give one of our
    processes such a file. So the file proves that the process is this rank of this run.
    """
    wanted = f"/memfd:{name} (deleted)"
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return None
        for entry in os.listdir(folder):
            if os.readlink(f"{folder}/{entry}") == wanted:
                file = open(f"{folder}/{entry}", "a+b", buffering=0)  # noqa: SIM115
                # A file on a disk can have this name too; only a file in memory has seals.
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


def main_thread_writes() -> bool:
    """Whether the main thread waits in a write to a terminal or pipe: stdout or stderr."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/syscall", encoding="ascii") as file:
            text = file.read()
    except OSError:  # some systems do not show it
        return False
    words = text.split()
    if len(words) < 2 or words[0] not in WRITE_CALLS:
        return False
    descriptor = int(words[1], 16)
    if descriptor not in (1, 2):
        return False
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _handles(status: str, number: signal.Signals) -> bool:
    """Whether a process handles a signal. status: its /proc/<pid>/status."""
    found = re.search(r"SigCgt:\s*(\w+)", status)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def dump_stacks(file: Any, pid: int | None = None) -> str:
    """Python stacks of this process (pid None) or of another one into `file`, and of its loader
    processes.

    They are faulthandler's, so they come whatever the main threads do; others give theirs if they
    handle SIGUSR2.
    """
    file.truncate(0)
    if pid is None:
        faulthandler.dump_traceback(file, all_threads=True)
    for asked in [*([pid] if pid else []), *children_of(pid or os.getpid())]:
        title = "" if asked == pid else f"\nchild process {asked}:\n"
        with suppress(OSError):
            status = Path(f"/proc/{asked}/status").read_text()
            if "State:\tT" in status:
                said = (
                    "(the process is stopped by a signal, so it has no stack; "
                    "kill -CONT lets it go on)"
                )
                file.write(f"{title}{said}\n".encode())
            elif _handles(status, signal.SIGUSR2):  # or it would end
                file.write(title.encode())
                before = os.fstat(file.fileno()).st_size
                os.kill(asked, signal.SIGUSR2)
                deadline = time.monotonic() + 0.5
                while os.fstat(file.fileno()).st_size == before and time.monotonic() < deadline:
                    time.sleep(0.02)
                time.sleep(0.05)
    file.seek(0)
    return file.read().decode(errors="replace")


if __name__ == "__main__":
    die_with_parent()
    guard(*json.loads(sys.argv[1]))
