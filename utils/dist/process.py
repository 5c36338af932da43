"""Functions on the processes of this host: their time, signals, stacks, and end.

Most of them read /proc, the folder in which Linux shows its processes. The parts of this page:

* `AwakeClock` counts the seconds in which this process really ran.
* `process_state`, `descendants_of` and `machine` tell which processes there are.
* `signals_held` and `leave_signals_to_parent` keep signals away from loader processes (the
  processes of a DataLoader, which read samples).
* `first_to_claim` chooses, among the ranks of a host, the rank that reports an error.
* `kill_trees`, `end` and `die_with_parent` end processes.
* `dump_stacks` writes what the threads of a process do.
* `stack_file_of` proves that a process is a rank of this run. Without this proof no process is
  asked for its stacks or ended.
* `guard` watches one rank from another process.

Run as a program (`python -m utils.dist.process ...`), this module is the guard of a rank: a small
process beside the rank. It ends the rank if the rank cannot run Python code any more, because C
code holds Python's lock (the GIL). The timer of faulthandler could do this too. But this timer also
counts the time in which the process is suspended, and it reports only "Timeout (0:00:10)!".

What must stay:

    the guard starts with `python -S`, which knows no installed packages. So this module imports
    only the standard library, and modules of this project that do the same.
        test_a_rank_that_stops_or_dies_is_named_and_all_ranks_end, kind "gil"
    no process is ended or asked for its stacks without the proof of `stack_file_of`
        test_a_forged_beat_harms_no_file_or_process_that_it_names

Free to change: the waits (CLAIM_S, HANDLERS_S), and how /proc is read.

Tests: tests/parts/utils/test_process.py, tests/faults/test_stalls.py, tests/dist/test_life.py.
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

# Python's own function that runs the functions registered with atexit. It is private, and has no
# public equivalent. It is None if this Python does not have it. `end` calls it.
run_exit_handlers = getattr(atexit, "_run_exitfuncs", None)

# The numbers of the system calls write and writev: 1 and 20 on x86-64, 64 and 66 on most other
# processors (linux/unistd.h). `main_thread_writes` finds them in /proc/.../syscall if the main
# thread waits in a write, e.g. to a paused terminal. They are texts, because this file is a text.
WRITE_CALLS = ("1", "20") if platform.machine() == "x86_64" else ("64", "66")

# The claims of this process. If several ranks of a host fail with the same error, each of them
# claims a name, e.g. the text of the error, and only the first rank reports (`first_to_claim`). A
# claim is a socket, and lasts as long as the socket is open. This list keeps the sockets open.
CLAIMS: list[socket.socket] = []
# Seconds that a rank that has made a claim waits before it ends, so that the other ranks find its
# claim. Ranks of one start that fail with the same error do so within this time.
CLAIM_S = 10.0
# Longest wait for exit handlers of libraries, in seconds. A library may still send its last data
# over a slow network; a shorter wait would lose them, a longer one only delays the end.
HANDLERS_S = 60.0
# Longest time, in seconds, that a guard takes to write its report. If the terminal is paused, the
# write never returns, and the guard ends after this time.
LAST_WORDS_S = 5

# Signals that a launcher, a cluster or a terminal sends to all processes of a rank at once.
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


# ---- Time ------------------------------------------------------------------------------------


class AwakeClock:
    """Counts the seconds in which this process ran, for limits of time.

    Ctrl-Z, `scontrol suspend`, `docker pause` and the stop of a virtual machine suspend a process,
    while all clocks of the system go on. This clock stands still instead: it counts the time
    between two calls of `now`, but at most slice_s. E.g. with slice_s = 1, a call 0.5 s after the
    last one adds 0.5 s, and a call an hour after the last one adds 1 s.

    Whoever uses it must call `now` at least once in slice_s seconds. Otherwise the clock loses time
    in which the process ran, and a limit comes late.
    """

    def __init__(self, slice_s: float = 5.0) -> None:
        """slice_s: the most seconds that the clock counts between two calls of `now`."""
        self.slice_s = slice_s
        self.awake_s = 0.0
        self.last_call = time.monotonic()  # when `now` was called last
        self.lock = threading.Lock()

    def now(self) -> float:
        """Return the seconds in which this process ran since the clock was made."""
        with self.lock:
            now = time.monotonic()
            self.awake_s += min(now - self.last_call, self.slice_s)
            self.last_call = now
            return self.awake_s


# ---- Processes -------------------------------------------------------------------------------


@cache
def machine() -> str:
    """Return the name of the host or container in which the process ids of this process are valid.

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
        T  stopped by a signal; t: by a debugger
        Z  zombie: it has ended, but its parent has not asked for its exit code yet
        X  has ended

    Returns None if there is no such process. On a system without /proc, each living process is "R".
    """
    try:
        # Each beat of the watchdog calls this, and open() takes half the time of Path.read_text.
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
        # E.g. "4711 (python (3)) S 1 ...": the letter follows the last bracket.
        return text.rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        if not system.has_proc() and system.is_alive(pid):
            return "R"
        return None


def descendants_of(pid: int) -> list[int]:
    """Return the ids of all descendants of a process. A child comes before its own children.

    On a system without /proc, only the processes are found that multiprocessing has started from
    this process. For another process the list is empty.
    """
    if not system.has_proc():
        own_children = multiprocessing.active_children() if pid == os.getpid() else []
        return [child.pid for child in own_children if child.pid is not None]
    descendants: list[int] = []
    # Each thread of the process has a file with the children that it started.
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread or the process has ended meanwhile
            for child in map(int, children.read_text().split()):
                descendants.append(child)
                descendants.extend(descendants_of(child))
    return descendants


def open_closed_streams() -> None:
    """If the shell has closed stdout or stderr (`>&-`), drop what is written there from now on.

    Without this, the first written line would raise an error and end the program.
    """
    # The files stay open until the process ends, so they cannot be opened by `with` (SIM115).
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


# ---- Signals and loader processes ------------------------------------------------------------


@contextmanager
def signals_held() -> Generator[None]:
    """Hold back GROUP_SIGNALS (SIGINT, SIGTERM, ...) until the end of the block. They arrive then.

    Fork a loader process within this block: it inherits the hold. So no signal can end it before
    it has its own handlers, which `leave_signals_to_parent` installs and which end the hold.
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

    Only the first SIGTERM is ignored. The second one ends the process, because this is how the rank
    itself ends its loader processes.
    """

    def end_at_next(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)

    for number in GROUP_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end_at_next)
    # Signals that were held back since the fork arrive now, at the handlers set above.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


# ---- One report of each host -----------------------------------------------------------------


def first_to_claim(name: str) -> bool:
    """Claim a name on this host. Returns whether this process is the first that claims the name.

    Ranks that fail with the same error all call this with the same name, e.g. the text of the
    error. Only the first rank reports the error. It calls `outlast_siblings` before it ends,
    because the name is free again when its process has ended.

    A claim is a Unix socket with an abstract address, i.e. an address that is no file. So a claim
    leaves nothing on the disk.
    """
    claim = socket.socket(socket.AF_UNIX)
    # `machine` goes into the name, because containers of one host may share their addresses.
    text = f"{os.getuid()} {machine()} {name}".encode(errors="replace")
    address = f"\0spikevrt-{hashlib.sha256(text).hexdigest()}"  # \0 makes the address abstract
    try:
        claim.bind(address)
        claim.listen()  # `_is_ours` of the other ranks connects to it
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            return not _is_ours(address)
        # If this system allows no claims, every rank reports: too many reports are better than
        # none.
        return True
    CLAIMS.append(claim)
    return True


def _is_ours(address: str) -> bool:
    """Whether a process of our own user has claimed the address.

    Any user of the host could claim it, and so silence our reports. The system tells which user
    listens at an address (SO_PEERCRED of unix(7)). Test:
    test_a_socket_that_another_user_has_bound_silences_no_report.
    """
    # A process that has just bound the address may not listen yet. So try 20 times, 10 ms apart.
    # With fewer tries, both ranks could report.
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
    """If this process has a claim, wait until the other ranks of this host have ended.

    If this process ended first, its claim would be free, and another rank would report the same
    error again. Waits at most CLAIM_S.

    mark: end of the names of the memory files of this run, e.g. "-of-5f0c2a9be81d4477"
        (`watchdog.run_mark`). Only the ranks of this run have such files, so this does not wait
        for other programs of the same parent. None if the ranks have no memory files yet. Then
        this waits for every process of the same parent that runs this Python.
    """
    if not CLAIMS:
        return
    deadline = time.monotonic() + CLAIM_S
    with suppress(ValueError):  # only the main thread may set a signal handler
        # torchrun sends SIGTERM to all ranks as soon as one of them has ended.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while time.monotonic() < deadline and _has_siblings(mark):
        time.sleep(0.02)


def _has_siblings(mark: str | None) -> bool:
    """Whether another rank with the same parent is alive.

    mark: end of the names of the memory files of this run, or None: any process of this Python.
    """
    # All processes below the same parent, without this process and its own descendants.
    own_tree = {os.getpid(), *descendants_of(os.getpid())}
    others = set(descendants_of(os.getppid())) - own_tree
    for pid in others:
        with suppress(OSError):  # the process has ended meanwhile
            is_python = os.path.samefile(f"/proc/{pid}/exe", "/proc/self/exe")
            if is_python and (mark is None or _has_mark(pid, mark)):
                return True
    return False


def _has_mark(pid: int, mark: str) -> bool:
    """Whether a process has a memory file whose name ends with `mark`."""
    folder = f"/proc/{pid}/fd"
    for entry in os.listdir(folder):
        with suppress(OSError):  # the file was closed meanwhile
            # The system calls a file in memory "/memfd:<name> (deleted)".
            if os.readlink(f"{folder}/{entry}").endswith(f"{mark} (deleted)"):
                return True
    return False


# ---- The end of processes --------------------------------------------------------------------


def kill_trees(pids: Iterable[int] | None = None) -> None:
    """Send SIGKILL to processes and to all their descendants.

    pids: the processes. None means all that multiprocessing has started, such as loader processes,
        which have nothing to save.

    Loader processes must be ended here, before the exit handlers of Python run. These handlers send
    SIGTERM twice to each loader process, and then wait for its end. If both signals come before the
    process runs again, the system delivers only one, and a loader process ignores the first one
    (`leave_signals_to_parent`). So the wait would never end.
    """
    # torch has a handler of SIGCHLD, which raises an error when a loader process ends. Only the
    # main thread may replace a handler; in another thread this raises ValueError.
    with suppress(ValueError):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pids is None:
        roots = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    else:
        roots = list(pids)
    # Find all processes before killing the first one. Otherwise a process could notice that another
    # one is gone, and report an error, before it is killed itself.
    pids_to_kill = []
    for pid in roots:
        pids_to_kill.extend(descendants_of(pid))
        pids_to_kill.append(pid)
    for pid in pids_to_kill:
        with suppress(ProcessLookupError, PermissionError):  # ended meanwhile, or of another user
            os.kill(pid, signal.SIGKILL)


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
    file. Only the first line of the file counts. The rank that failed writes it, because the other
    ranks end later.
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
    """Start the guard of this process: another process, which runs `guard`. Returns the guard.

    The caller must write a byte to the stdin of the guard more often than every limit_s seconds, as
    a heartbeat.

    Returns None if the system starts no more processes, or has no /proc. Without /proc a guard
    could not tell a rank that hangs from a rank that is stopped on purpose.

    rank: number of this rank, for the report.
    limit_s: seconds without a heartbeat after which the guard ends this process.
    stack_file: path of the memory file for the stacks.
    is_alone: whether there is no other rank, which would report the stall.
    log_file: path of the log of the run, or None if this rank has none.
    """
    if not system.has_proc():
        return None
    # In the order of the parameters of `guard`, which gets them as a list.
    arguments = json.dumps([rank, os.getpid(), limit_s, stack_file, is_alone, log_file])
    # -S starts Python without installed packages, which the guard does not need.
    command = [sys.executable, "-S", "-m", "utils.dist.process", arguments]
    root = Path(__file__).resolve().parents[2]
    # The guard inherits that GROUP_SIGNALS are held back, and never releases them. So a signal to
    # all processes of the rank does not end the guard before the rank.
    with suppress(OSError), signals_held():
        guard_process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, bufsize=0)
        if guard_process.stdin is not None:
            # A write to a full pipe then raises an error, instead of waiting for the guard.
            os.set_blocking(guard_process.stdin.fileno(), False)
        return guard_process
    return None


def guard(
    rank: int, pid: int, limit_s: float, stack_file: str, is_alone: bool, log_file: str | None
) -> None:
    """Watch a rank until it ends, and end it if it sends no heartbeat for limit_s seconds.

    This is the main function of the guard process. Its parent is the rank. A rank that is stopped
    by a signal (Ctrl-Z) sends no heartbeat either. The guard leaves such a rank alone: the user
    will let it go on, or the other ranks end it.

    pid: process id of the rank. `start_guard` explains the other arguments.
    """
    silent_s = _wait_for_silence(pid, limit_s)
    if silent_s is None:
        return  # the rank has ended

    # The order of these three steps matters. Read the stacks first, while the rank lives. Then end
    # the rank. Write the report last, because the terminal may be paused. For the report the guard
    # outlives the rank, but at most LAST_WORDS_S.
    stacks = ""
    if is_alone:
        with suppress(OSError), open(stack_file, "a+b", buffering=0) as file:
            stacks = dump_stacks(file, pid)
    system.ask_for_signal_at_end_of_parent(number=0)  # 0: no signal, so the guard outlives the rank
    signal.alarm(LAST_WORDS_S)  # ends the guard after this time
    write_exit_file(StallError.exit_code)
    os.kill(pid, signal.SIGKILL)
    if not is_alone:
        return  # the other ranks report
    error = StallError(
        what=f"rank {rank} is SILENT: its threads did not run for {silent_s:.1f} s: C code "
        "holds Python's lock",
        where=f"host {socket.gethostname()}, pid {pid}",
        expected="a beat each half second (option watchdog.stall_s)",
        do="see its stack below",
    )
    _write_last_words(f"{error}\n\nStacks of rank {rank}:\n{stacks}\n".encode(), log_file)


def _wait_for_silence(pid: int, limit_s: float) -> float | None:
    """Wait until the rank has sent no heartbeat for limit_s seconds. Returns these seconds.

    Returns None if the rank ends before. Each byte on stdin is a heartbeat.

    pid: process id of the rank, which is the parent of this process
    """
    # With at most a third of the limit, one late turn of the loop does not end a rank.
    clock = AwakeClock(slice_s=min(1.0, limit_s / 3))
    heard_at = 0.0  # time of the last heartbeat, on `clock`
    while True:
        if os.getppid() != pid:  # the rank has ended, so the system gave the guard another parent
            return None
        # Wait for a byte on stdin (file 0), but at most half a slice, so that the clock is asked
        # often enough.
        readable, _, _ = select.select([0], [], [], clock.slice_s / 2)
        is_heard = bool(readable)
        if is_heard and not os.read(0, 4096):  # end of the file: the rank has closed the pipe
            return None
        now = clock.now()
        if is_heard:
            heard_at = now
        elif process_state(pid) in ("T", "t"):  # stopped, by a signal or a debugger
            heard_at = now
        elif now - heard_at > limit_s:
            return now - heard_at


def _write_last_words(words: bytes, log_file: str | None) -> None:
    """Write the report of the guard into the log and to the terminal, as far as they take it."""
    if log_file is not None:
        with suppress(OSError):
            # O_NOFOLLOW: if somebody has put a link in place of the log, do not write to its
            # target.
            descriptor = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
            os.write(descriptor, words)
    with suppress(OSError):
        os.write(2, words)


# ---- Other ranks of this host ----------------------------------------------------------------


def stack_file_of(pid: int, name: str) -> FileIO | None:
    """Open the memory file `name` of the process `pid`, or return None if it has none.

    This is the proof that a process is a certain rank of this run. A rank opens a memory file whose
    name tells the run and the rank (`watchdog.stack_file_name`). The system shows such names only
    to processes of the same user, and no other user can give one of our processes such a file.

    pid: a process id that came from the network and may be false. This function only reads, so
        nothing happens to a wrong process.
    name: name of the memory file. It must not come from the network.
    """
    link_target = f"/memfd:{name} (deleted)"
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):  # there is no such process, or another user has it
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return None
        for entry in os.listdir(folder):
            if os.readlink(f"{folder}/{entry}") == link_target:
                # The caller closes the file.
                file = open(f"{folder}/{entry}", "a+b", buffering=0)  # noqa: SIM115
                # A file on a disk can have this name too. This request raises OSError for it,
                # because only a file in memory has seals.
                fcntl.fcntl(file, fcntl.F_GET_SEALS)
                return file
    return None


def stacks_of(pid: int, name: str) -> str:
    """Return the stacks of the process `pid`, or "" if it is not the rank of the file `name`."""
    file = stack_file_of(pid, name)
    if file is None:
        return ""
    with suppress(OSError), file:
        return dump_stacks(file, pid)
    return ""


def kill_rank(pid: int, name: str) -> None:
    """End the process `pid` and its descendants, if it is the rank of the memory file `name`."""
    file = stack_file_of(pid, name)
    if file is not None:
        file.close()
        kill_trees([pid])


# ---- What a process does ---------------------------------------------------------------------


def main_thread_writes() -> bool:
    """Whether the main thread waits in a write to a terminal or pipe: stdout or stderr."""
    # The file shows the system call in which the thread waits, e.g. "1 0x2 0x7f... ...": number of
    # the call, and its arguments in hexadecimal. It is "running" if the thread does not wait.
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
    # A terminal is a character device. A write to a file on a disk is no wait for a terminal.
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def dump_stacks(file: Any, pid: int | None = None) -> str:
    """Write the Python stacks of a process and of its loader processes into `file`.

    faulthandler writes the stacks, even if no thread can run Python code. A process can write only
    its own stacks, so another process is asked for them by SIGUSR2. Ranks and their loader
    processes have a handler for this signal, which `Watchdog` installs.

    file: the memory file of the rank, opened without a buffer. The rank and its loader processes
        have the same file open.
    pid: process id of the rank, or None for this process.

    Returns the text of the file.
    """
    file.truncate(0)
    if pid is None:
        faulthandler.dump_traceback(file, all_threads=True)
        _ask_for_stacks(file, descendants_of(os.getpid()), has_titles=True)
    else:
        descendants = descendants_of(pid)
        _ask_for_stacks(file, [pid], has_titles=False)
        _ask_for_stacks(file, descendants, has_titles=True)
    file.seek(0)
    return file.read().decode(errors="replace")


def _ask_for_stacks(file: Any, pids: list[int], has_titles: bool) -> None:
    """Let processes write their stacks into `file`, one after the other.

    has_titles: whether a line "child process <pid>:" goes before the stacks of each process.
    """
    for pid in pids:
        title = f"\nchild process {pid}:\n" if has_titles else ""
        with suppress(OSError):  # the process has ended
            status = Path(f"/proc/{pid}/status").read_text()
            if "State:\tT" in status:
                reason = (
                    "(the process is stopped by a signal, so it has no stack; "
                    "kill -CONT lets it go on)"
                )
                file.write(f"{title}{reason}\n".encode())
            # SIGUSR2 ends a process that has no handler for it, so such a process gets no signal.
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
    # The first line is there. Leave time for the other lines; a shorter time could cut the stacks.
    time.sleep(0.05)


def _handles(status: str, number: signal.Signals) -> bool:
    """Whether a process handles a signal. status: its /proc/<pid>/status."""
    # E.g. "SigCgt: 0000000000000a00": a hexadecimal number with one bit for each handled signal;
    # the lowest bit is signal 1.
    line = re.search(r"SigCgt:\s*(\w+)", status)
    if line is None:
        return False
    handled_signals = int(line[1], 16)
    # Shift the bit of this signal to the lowest place, and look at this bit alone. E.g. 0xa00 has
    # the bits 9 and 11, counted from 0, for the signals 10 and 12.
    bit = (handled_signals >> (number - 1)) & 1
    return bit == 1


if __name__ == "__main__":
    die_with_parent()
    guard(*json.loads(sys.argv[1]))
