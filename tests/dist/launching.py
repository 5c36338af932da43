"""Starts real programs for tests: ranks (each rank is a process) and other commands.

* `Ranks` starts ranks. A test can watch the ranks, send them signals and wait for them. `run_ranks`
  runs ranks to their end. Ranks get the environment variables that torchrun would give them: RANK,
  WORLD_SIZE, ...
* `run_command`, `start_command` and `run_into` start any other command.
* Each wait has a limit, and no test leaves a process behind: all processes are killed at the end.

E.g. two ranks that train:

    result = run_ranks(2, "main_train_vrt.py", "--opt", options, limit_s=60)
    assert result.exit_codes == [0, 0], result.text

Every test of several ranks uses this module. tests/dist/test_dist.py is the shortest of these
tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.dist.fork_server import ADDRESS, ROOT, ForkedProcess, clean_env, fork_server

# The time limits of tests only end programs that hang. They do not measure speed. A test gives the
# seconds that a program may take on an idle machine. A busy machine takes longer, so a program is
# ended only after PATIENCE times as many seconds.
PATIENCE = 5


@dataclass
class RankResult:
    """How a program of one or several ranks ended. Lists have one item for each rank."""

    # A negative exit code is the number of the signal that killed the rank, e.g. -9.
    exit_codes: list[int]
    stdout: list[str]
    stderr: list[str]
    # Time from the start of the first rank to the end of the last rank.
    seconds: float

    @property
    def text(self) -> str:
        """The output of all ranks: stdout of each, then stderr of each."""
        return "\n".join([*self.stdout, *self.stderr])

    @property
    def json(self) -> Any:
        """The value of the last JSON line of rank 0, or None."""
        return self.jsons[0]

    @property
    def jsons(self) -> list[Any]:
        """The value of the last JSON line of each rank. None if a rank wrote no JSON line.

        A JSON line is an object, e.g. {"steps": 4}, so it begins with a brace.
        """
        values = []
        for text in self.stdout:
            lines = [line for line in text.splitlines() if line.startswith("{")]
            values.append(json.loads(lines[-1]) if lines else None)
        return values


class Ranks:
    """Running ranks, for a `with` statement. At its end, ranks that still run are killed.

    Attributes for tests:

        processes   one for each rank, with pid, poll, wait and send_signal
        port        the port at which rank 0 listens
        start       the time of the start, by time.monotonic()
    """

    def __init__(
        self,
        n: int,
        script: str | Path,
        *args: str | Path,
        env: Mapping[str, str] | None = None,
        env_of: Mapping[int, Mapping[str, str]] | None = None,
        args_of: Mapping[int, Sequence[str]] | None = None,
        prefix: Sequence[str] = (),
        cwd: Path = ROOT,
    ) -> None:
        """Start n ranks that run `script`. They all begin at the same time.

        args: arguments of the script. args_of: rank -> its arguments in place of `args`.
        env: additional variables of all ranks. env_of: rank -> additional variables of this rank,
            which replace the variables of `env`. An empty value removes a variable.
        prefix: a command that runs the command of each rank, e.g. ("nice", "-n", "5"). Usually a
            rank is a fork of a process that has imported torch. With a prefix it is a new process,
            and must import torch first.
        cwd: the folder in which the ranks run. If it is given, `script` must be a whole path.
        """
        self.start = time.monotonic()
        self.port = free_port()
        # Holds the files of the output, so that tests can read them after the ranks have ended.
        self.opened = contextlib.ExitStack()
        # stdout and stderr of each rank.
        self.files = [(self._open_file(), self._open_file()) for _ in range(n)]
        self.processes = []

        # All ranks must begin together. Ranks of users need seconds to import torch, and all ranks
        # are started in this time. But a forked rank has torch already, and would begin at once. So
        # a forked rank first reads from a pipe, the gate. Nobody writes into this pipe. The read
        # ends when `gate_writer` is closed, after the last rank was started.
        gate, gate_writer = os.pipe()
        for rank in range(n):
            # Variables that are set later replace earlier ones, so a test may replace variables of
            # the launch.
            variables = clean_env()
            if n > 1:
                variables |= _variables_of_launch(rank, n, self.port)
            variables |= env or {}
            variables |= (env_of or {}).get(rank, {})
            variables = _without_empty(variables)

            args_of_rank = (args_of or {}).get(rank, args)
            arguments = [str(word) for word in (script, *args_of_rank)]

            stdout, stderr = self.files[rank]
            process = _start(
                arguments,
                env=variables,
                out=stdout,
                err=stderr,
                prefix=prefix,
                gate=gate,
                cwd=cwd,
            )
            self.processes.append(process)
        # Each forked rank has its own copy of `gate`. When this process closes `gate_writer`, the
        # reads of all ranks end, and all ranks begin.
        os.close(gate)
        os.close(gate_writer)

    def _open_file(self) -> IO[bytes]:
        """Open a temporary file, which has no name."""
        return self.opened.enter_context(tempfile.TemporaryFile("w+b"))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the ranks that still run. `wait` also calls this. A second call changes nothing.

        The files with the output of the ranks stay open, so that tests can read the output after
        the `with` block.
        """
        for process in self.processes:
            kill_session(process)

    def output(self, rank: int) -> str:
        """Return what `rank` has written so far: stdout, then stderr."""
        return "".join(_content(file) for file in self.files[rank])

    def wait_for(self, text: str, rank: int, limit_s: float) -> None:
        """Wait until `rank` has written `text`.

        limit_s: seconds that this may take on an idle machine. The limit is PATIENCE times as long.

        Raises AssertionError if the rank ends without this text, or at the limit.
        """
        deadline = time.monotonic() + PATIENCE * limit_s
        while True:
            # First ask whether the rank has ended, then read its output. In the other order, the
            # rank could write the text and end after the reading, and the text would be missed.
            has_ended = self.processes[rank].poll() is not None
            if text in self.output(rank):
                return
            is_late = time.monotonic() > deadline
            if is_late or has_ended:
                raise AssertionError(f"rank {rank} never wrote {text!r}:\n{self.output(rank)}")
            time.sleep(0.02)

    def wait(self, limit_s: float) -> RankResult:
        """Wait for the end of all ranks, and return the result.

        limit_s: seconds that this may take on an idle machine. The limit is PATIENCE times as long.
        A rank that still runs at the limit is killed, so its exit code is -9.
        """
        deadline = time.monotonic() + PATIENCE * limit_s
        for process in self.processes:
            seconds_left = max(0.0, deadline - time.monotonic())
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds_left)
        seconds = time.monotonic() - self.start
        self.__exit__()  # kills what still runs

        codes = [process.returncode for process in self.processes]
        outputs = [_content(stdout) for stdout, _ in self.files]
        errors = [_content(stderr) for _, stderr in self.files]
        return RankResult(codes, outputs, errors, seconds)


def run_ranks(
    n: int, script: str | Path, *args: str | Path, limit_s: float = 60, **options: Any
) -> RankResult:
    """Run `script` on n ranks to the end. options: keyword arguments of Ranks.

    limit_s: seconds that this may take on an idle machine. The limit is PATIENCE times as long.

    Raises AssertionError if a rank still runs at the limit.
    """
    with Ranks(n, script, *args, **options) as ranks:
        result = ranks.wait(limit_s)
    if result.seconds > PATIENCE * limit_s:
        raise AssertionError(f"still running after {PATIENCE * limit_s} s:\n{result.text}")
    return result


def run_command(
    command: Sequence[str | Path],
    limit_s: float = 60,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
) -> RankResult:
    """Run any command to its end. Return a RankResult in which each list has one item.

    limit_s: seconds that this may take on an idle machine. The limit is PATIENCE times as long.
    env: additional variables. {"NAME": ""} removes the variable NAME.
    cwd: the folder in which the command runs, usually the root of the repository.

    Raises AssertionError if the command still runs at the limit.
    """
    start = time.monotonic()
    variables = clean_env()
    if env is not None:
        variables.update(env)
    variables = _without_empty(variables)
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env=variables,
        text=True,
        # With a session of its own, `kill_session` reaches all processes that the command starts.
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, err = process.communicate(timeout=PATIENCE * limit_s)
    except subprocess.TimeoutExpired as e:
        kill_session(process)
        out, err = process.communicate()
        raise AssertionError(
            f"{command} still running after {PATIENCE * limit_s} s:\n{out}{err}"
        ) from e
    return RankResult([process.returncode], [out], [err], time.monotonic() - start)


def _variables_of_launch(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return the environment variables that torchrun gives to a rank, on one host."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _without_empty(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that have a value."""
    return {name: value for name, value in variables.items() if value != ""}


def run_into(stdout: Any, *arguments: object) -> tuple[int, str]:
    """Run a script whose stdout is an open file. Return its exit code and the text of its stderr.

    stdout: e.g. the opened /dev/full, to which nothing can be written. arguments: the script and
    its arguments.
    """
    command = [str(argument) for argument in arguments]
    with tempfile.TemporaryFile("w+b") as stderr:
        process = fork_server().start(command, clean_env(), stdout, stderr)
        exit_code = process.wait(600)  # seconds. The time limit of a test comes earlier
        return exit_code, _content(stderr)


def fork_client_variable() -> dict[str, str]:
    """Return the environment variable that tests/dist/fork_client.py needs.

    The variable has the address at which the fork server (fork_server.py) listens. The fork server
    starts processes fast.
    """
    fork_server()  # starts it if there is none, and sets the variable
    return {ADDRESS: os.environ[ADDRESS]}


def write_python(path: Path, before: str = "") -> Path:
    """Write a command that runs a script as `python` does, but in a fork. Returns `path`.

    The command needs the variable of `fork_client_variable`. before: shell commands to run first,
    e.g. "shift; ".
    """
    client = f'{before}exec {sys.executable} {ROOT}/tests/dist/fork_client.py "$@"'
    return write_command(path, client)


def forking_python(folder: Path) -> dict[str, str]:
    """Return environment variables with which launch_train.sh starts a fork, and no new Python.

    launch_train.sh takes the `python` of an active virtual environment. This function makes such an
    environment in `folder`. Its `python` starts forks.
    """
    # launch_train.sh gives -u as the first argument. `shift` removes it.
    write_python(folder / "bin" / "python", before="shift; ")
    path = f"{folder}/bin:{os.environ['PATH']}"
    return {"VIRTUAL_ENV": str(folder), "PATH": path, **fork_client_variable()}


def write_command(path: Path, lines: str) -> Path:
    """Write a shell script that can be run, e.g. a false `srun`. A test puts its folder in PATH.

    lines: the lines of the script after the first line. Make the folder of `path`. Return `path`.
    """
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return path


# The two kinds of processes that `start_command` gives.
AnyProcess = subprocess.Popen | ForkedProcess


@contextmanager
def start_command(command: Sequence[object], log: Path, **env: str) -> Generator[AnyProcess]:
    """Give the process of a command. Its stdout and stderr go to the file `log`.

    If the command is a script of this Python, the process is a fork of the fork server. A fork
    starts faster than a new Python. The fork server cannot give a fork every environment
    (`ForkServer.can_start`). If it cannot, a new Python runs the script. At the end of the `with`
    block, the process and all processes that it has started are killed.

    command: the program and its arguments. env: additional environment variables.
    """
    words = [str(word) for word in command]
    variables = {**clean_env(), **env}
    is_script = words[0] == sys.executable and words[1].endswith(".py")
    with log.open("wb") as output:
        if is_script and fork_server().can_start(variables):
            process = fork_server().start(words[1:], variables, output, output)
        else:
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=variables,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
    try:
        yield process
    finally:
        kill_session(process)


def wait_for(log: Path, pattern: str, limit_s: float = 600) -> str:
    """Wait until a regular expression matches in the text of `log`. Return the text.

    The file need not exist at first. Raises AssertionError after `limit_s` seconds, also on a busy
    machine.
    """
    deadline = time.monotonic() + limit_s
    while True:
        text = ""
        if log.exists():
            text = log.read_text(errors="replace")
        if re.search(pattern, text):
            return text
        assert time.monotonic() < deadline, text
        time.sleep(0.02)


def _start(
    arguments: list[str],
    env: dict[str, str],
    out: Any,
    err: Any,
    prefix: Sequence[str],
    gate: int,
    cwd: Path,
) -> Any:
    """Start one rank: a fork that waits at the gate or, if it cannot be a fork, a new process.

    arguments: the script and its arguments. env: the whole environment.
    out, err: the files for stdout and stderr.
    prefix: a command that runs the command of the rank, e.g. ("nice", "-n", "5"), or ().
    gate: the reading end of a pipe. A fork begins when the writing end is closed.
    cwd: the folder in which the rank runs.
    """
    # A fork has the libraries of the fork server. The libraries have already read their environment
    # variables. So a rank that needs other values of these variables cannot be a fork. A rank with
    # a prefix, e.g. `nice`, cannot be a fork, either.
    can_fork = not prefix and fork_server().can_start(env)
    if can_fork:
        return fork_server().start(arguments, env=env, out=out, err=err, gate=gate, cwd=cwd)
    return subprocess.Popen(
        [*prefix, sys.executable, *arguments],
        cwd=cwd,
        stdout=out,
        stderr=err,
        env=env,
        start_new_session=True,
    )


def free_port() -> int:
    """Return the number of a port at which no program listens."""
    with socket.socket() as probe:
        # For port 0 the system chooses a free port.
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def kill_session(process: subprocess.Popen | ForkedProcess) -> None:
    """Kill a process that leads a session, and all other processes of this session."""
    # All processes may have ended already.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _content(file: Any) -> str:
    """Return the text of an open file. A process that writes to the file is not disturbed."""
    # The process and the test share the position in the file, at which the process writes next. So
    # this function must not move the position. file.read would move it, but os.pread does not.
    descriptor = file.fileno()
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    size = os.fstat(descriptor).st_size
    content = os.pread(descriptor, max(position, size), 0)
    return content.decode(errors="replace")
