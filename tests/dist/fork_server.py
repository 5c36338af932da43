"""Starts test processes that need not import torch anew: each is a fork of one process that has
imported it.

Importing torch and its compiler costs three seconds of a core, many times the work of a rank in a
test. A process made here is a real one: own session, own environment, own standard streams, its
script run as __main__ from its first line, and ended by the interpreter as any other. Only
third-party libraries are imported before, never the project. What it shares with the others is the
salt of hash(); so tests of "the same bits in another process" start theirs afresh.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "SPIKEVRT_FORK_SERVER"  # the name of its socket
LAUNCH_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE",
    "NPROC_PER_NODE", "PET_NPROC_PER_NODE", "PET_NNODES", "PET_NODE_RANK",
)  # fmt: skip
UNSET = (
    *LAUNCH_VARIABLES, "TORCHELASTIC_RUN_ID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID",
    "SPIKEVRT_EXIT_FILE", ADDRESS,
)  # fmt: skip
# As tests began: torch adds variables when it compiles. Without empty ones: they remove a variable
# for a test's ranks.
INHERITED = {key: value for key, value in os.environ.items() if key not in UNSET and value}
LIBRARIES = (
    "torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "torch.utils.checkpoint",
    "torch.utils.data", "numpy", "cv2", "json5", "lmdb", "pydantic", "pydantic.main",
    "pydantic.json_schema", "av", "tqdm", "matplotlib.figure", "matplotlib.backends.backend_agg",
    "PIL.GifImagePlugin", "PIL.JpegImagePlugin", "multiprocessing.queues", "pydantic.types",
    "pydantic.type_adapter", "pydantic.dataclasses", "jinja2",
)  # fmt: skip
# Nothing reads these while the libraries are imported, so a fork may have its own.
LATE_VARIABLES = (
    "RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "SPIKEVRT_", "SLURM_", "NCCL_", "WANDB_", "TQDM_",
    "PYTEST_", "TMPDIR", "CUDA_VISIBLE_DEVICES", "PATH",
)  # fmt: skip
MESSAGE_BYTES = 1 << 20


class ForkedProcess:
    """The part of subprocess.Popen that tests use."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.server, self.pid = server, pid

    @property
    def returncode(self) -> int | None:
        return self.server.ended.get(self.pid)

    def poll(self) -> int | None:
        self.server.receive(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if deadline is None else deadline - time.monotonic()
            self.server.receive(None if left is None else max(0.0, left))
            if self.returncode is None and left is not None and left <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # It has ended, which its server has not told yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkServer:
    """A connection to such a process, and what became of its children: {pid: exit code, negative
    for a signal}.

    The workers of pytest-xdist share the process that their controller starts.
    """

    def __init__(self) -> None:
        self.env, self.ended, self.process = clean_env(), {}, None
        self.waiting: list[int] = []  # pids of children whose start was told
        if ADDRESS not in os.environ:
            os.environ[ADDRESS] = f"spikevrt-tests-{os.getpid()}"
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind("\0" + os.environ[ADDRESS])
                listener.listen()
                self.process = subprocess.Popen(
                    [sys.executable, __file__, str(listener.fileno())], cwd=ROOT, env=self.env,
                    pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect("\0" + os.environ[ADDRESS])
        atexit.register(self.close)

    def can_start(self, env: Mapping[str, str]) -> bool:
        differing = {
            key for key in self.env.keys() | env.keys() if self.env.get(key) != env.get(key)
        }
        return all(key.startswith(LATE_VARIABLES) for key in differing)

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        out: Any,
        err: Any,
        gate: int | None = None,
    ) -> ForkedProcess:
        """argv: a script and its arguments; out, err: open files. gate: a pipe, whose end lets the
        process begin.
        """
        request = json.dumps({"argv": list(map(str, argv)), "env": dict(env)}).encode()
        socket.send_fds(
            self.socket, [request], [out.fileno(), err.fileno(), *([] if gate is None else [gate])]
        )
        while not self.waiting:
            self.receive(None)
        return ForkedProcess(self, self.waiting.pop())

    def receive(self, timeout: float | None) -> None:
        """Take in one message, if one comes within `timeout` seconds (None: wait for it)."""
        self.socket.settimeout(timeout)
        with contextlib.suppress(TimeoutError, BlockingIOError):
            message = self.socket.recv(MESSAGE_BYTES)
            if not message:
                raise RuntimeError("the fork server has ended")
            told = json.loads(message)
            if told["code"] is None:
                self.waiting.append(told["pid"])
            else:
                self.ended[told["pid"]] = told["code"]
        self.socket.settimeout(None)

    def close(self) -> None:
        self.socket.close()
        if self.process is not None:
            self.process.wait()


fork_server = cache(ForkServer)


def clean_env() -> dict[str, str]:
    """The environment in which tests began, without launch variables; one thread per rank."""
    return {
        **INHERITED,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "-1",
    }


def serve(listener: socket.socket) -> list[str]:
    """Fork a child for each request, tell how each ended, until the last connection ends.

    In a child, its arguments.
    """
    selector, connections = selectors.DefaultSelector(), set()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connections.add(connection := listener.accept()[0])
                selector.register(connection, selectors.EVENT_READ)
                continue
            if key.data is not None:
                pid, asked_by = key.data
                selector.unregister(key.fileobj)
                os.close(key.fileobj)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):  # whoever asked for it may have gone
                    asked_by.send(json.dumps({"pid": pid, "code": code}).encode())
                continue
            message = b""
            with contextlib.suppress(ConnectionResetError):  # whoever had not read all has gone
                message, streams, _, _ = socket.recv_fds(key.fileobj, MESSAGE_BYTES, 3)
            if not message:
                selector.unregister(key.fileobj)
                connections.remove(key.fileobj)
                if not connections:
                    os._exit(0)
                continue
            pid = os.fork()
            if pid == 0:
                for resource in (selector, listener, *connections):
                    resource.close()
                return become(json.loads(message), streams)
            for stream in streams:
                os.close(stream)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, key.fileobj))
            with contextlib.suppress(OSError):
                key.fileobj.send(json.dumps({"pid": pid, "code": None}).encode())


def become(request: dict[str, Any], streams: list[int]) -> list[str]:
    """In the child: its own session, streams, environment and first argument.

    A terminal is its input too.
    """
    os.setsid()
    for number, stream in zip((1, 2), streams[:2], strict=True):
        os.dup2(stream, number)
    for gate in streams[2:]:
        os.read(gate, 1)
    if os.isatty(1):
        os.dup2(1, 0)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # TMPDIR is read again
    numpy_random = importlib.import_module("numpy.random")
    numpy_random.seed(None)  # Python's own generator is seeded anew after a fork, numpy's is not
    # Behind the interpreter's own end, the libraries take a quarter of a second of a core to take
    # themselves down.
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    return request["argv"]


def main() -> types.CodeType | None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    for name in LIBRARIES:
        importlib.import_module(name)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        sys.exit(f"{threads} threads after the imports: a fork would lack all but one")
    # or every child would search and copy all objects of the libraries, for a second and a half at
    # its end
    gc.freeze()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Nohup of the tests is none of those that they start
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    argv = serve(listener)
    sys.argv = argv
    path = ROOT / argv[0]
    sys.path[0] = str(path.parent)
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.modules["__main__"].__file__ = str(path)
    return compile(path.read_bytes(), str(path), "exec")


if __name__ == "__main__":
    _server = sys.modules["__main__"]  # kept, or its names would be cleared
    exec(main(), sys.modules["__main__"].__dict__)
