"""Starts real ranks for tests: each a process of its own with the variables of a platform launch,
and a deadline.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.dist.fork_server import ROOT, ForkedProcess, clean_env, fork_server

# The limits of tests end what hangs and measure nothing. They are those of an idle machine; a busy
# one takes longer.
PATIENCE = 5


@dataclass
class RankResult:
    """Of all ranks: exit codes (negative: killed by a signal), output, and after how many seconds
    all were gone.
    """

    exit_codes: list[int]
    stdout: list[str]
    stderr: list[str]
    seconds: float

    @property
    def text(self) -> str:
        return "\n".join([*self.stdout, *self.stderr])

    @property
    def json(self) -> Any:
        return self.jsons[0]

    @property
    def jsons(self) -> list[Any]:
        """The last JSON line of each rank."""
        found = [
            [line for line in text.splitlines() if line.startswith("{")] for text in self.stdout
        ]
        return [json.loads(lines[-1]) if lines else None for lines in found]


class Ranks:
    """Running ranks; use as a context manager, which leaves no process behind."""

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
        """env_of: further variables of single ranks; an empty value removes one. args_of: arguments
        in place of `args`.

        prefix: a command that runs each rank, each then a new process instead of a fork of one with
        torch in it. cwd: the folder in which the ranks run; `script` is then a whole path.
        """
        self.start = time.monotonic()
        self.port = port = free_port()
        # What ranks write can be read as long as this object is there.
        self.opened = contextlib.ExitStack()
        self.files = [(self._file(), self._file()) for _ in range(n)]
        self.processes = []
        # No rank begins before all exist: a fork needs no time to import torch, in which launchers
        # start the others.
        gate, release = os.pipe()
        for rank in range(n):
            launch = {} if n == 1 else {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }  # fmt: skip
            wanted = {**clean_env(), **launch, **(env or {}), **((env_of or {}).get(rank, {}))}
            wanted = {key: value for key, value in wanted.items() if value != ""}
            arguments = [str(script), *map(str, (args_of or {}).get(rank, args))]
            self.processes.append(_start(arguments, wanted, *self.files[rank], prefix, gate, cwd))
        os.close(gate)
        os.close(release)

    def _file(self) -> IO[bytes]:
        return self.opened.enter_context(tempfile.TemporaryFile("w+b"))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            kill_session(process)

    def output(self, rank: int) -> str:
        """What `rank` has written so far, stdout and stderr."""
        return "".join(_content(file) for file in self.files[rank])

    def wait_for(self, text: str, rank: int, limit_s: float) -> None:
        deadline = time.monotonic() + PATIENCE * limit_s
        while text not in self.output(rank):
            if time.monotonic() > deadline or self.processes[rank].poll() is not None:
                raise AssertionError(f"rank {rank} never wrote {text!r}:\n{self.output(rank)}")
            time.sleep(0.02)

    def wait(self, limit_s: float) -> RankResult:
        """The result, once all ranks are gone; those still there at the limit are killed, with the
        exit code -9.
        """
        deadline = time.monotonic() + PATIENCE * limit_s
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        seconds = time.monotonic() - self.start
        self.__exit__()
        texts = [[_content(file) for file in pair] for pair in self.files]
        codes = [process.returncode for process in self.processes]
        return RankResult(codes, [out for out, _ in texts], [err for _, err in texts], seconds)


def run_ranks(
    n: int, script: str | Path, *args: str | Path, limit_s: float = 60, **options: Any
) -> RankResult:
    """Run `script` on n ranks to the end. options: those of Ranks."""
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
    """Any command, from the repository's root or another folder, as one "rank"."""
    start = time.monotonic()
    merged = {key: value for key, value in {**clean_env(), **(env or {})}.items() if value != ""}
    process = subprocess.Popen(
        list(map(str, command)), cwd=cwd, env=merged, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=PATIENCE * limit_s)
    except subprocess.TimeoutExpired as e:
        kill_session(process)
        out, err = process.communicate()
        raise AssertionError(
            f"{command} still running after {PATIENCE * limit_s} s:\n{out}{err}"
        ) from e
    return RankResult([process.returncode], [out], [err], time.monotonic() - start)


def run_into(stdout: Any, *arguments: object) -> tuple[int, str]:
    """Exit code, and what it wrote to stderr, of a script whose stdout is this open file."""
    with tempfile.TemporaryFile("w+b") as stderr:
        process = fork_server().start(list(map(str, arguments)), clean_env(), stdout, stderr)
        return process.wait(600), _content(stderr)


def write_command(path: Path, lines: str) -> Path:
    """A program of these lines of a shell script, in a folder for PATH."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return path


@contextmanager
def started(command: Sequence[object], log: Path, **env: str) -> Iterator[subprocess.Popen]:
    """The process of a command that writes to `log`; nothing of its session stays behind."""
    process = subprocess.Popen(
        list(map(str, command)), cwd=ROOT, env={**clean_env(), **env}, stdout=log.open("wb"),
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        kill_session(process)


def wait_for(log: Path, pattern: str, limit_s: float = 600) -> str:
    deadline = time.monotonic() + limit_s
    while not re.search(pattern, text := log.read_text(errors="replace") if log.exists() else ""):
        assert time.monotonic() < deadline, text
        time.sleep(0.02)
    return text


def _start(
    arguments: list[str],
    env: dict[str, str],
    out: Any,
    err: Any,
    prefix: Sequence[str],
    gate: int,
    cwd: Path,
) -> Any:
    if not prefix and fork_server().can_start(env):
        return fork_server().start(arguments, env, out, err, gate, cwd)
    return subprocess.Popen(
        [*prefix, sys.executable, *arguments],
        cwd=cwd,
        stdout=out,
        stderr=err,
        env=env,
        start_new_session=True,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def kill_session(process: subprocess.Popen | ForkedProcess) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _content(file: Any) -> str:
    position = os.lseek(file.fileno(), 0, os.SEEK_CUR)
    return os.pread(file.fileno(), max(position, os.fstat(file.fileno()).st_size), 0).decode(
        errors="replace"
    )
