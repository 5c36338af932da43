"""Starts the processes of tests as forks of one process that has imported torch already.

Importing torch and its compiler takes three seconds of a core. The work of a rank in a test takes
much less. A fork need not import them, so tests with forks take far less time. A process starts
like this:

    test         calls `ForkServer.start`, which sends a request (script, arguments, environment)
    serve        forks a child for each request. It sends the test the pid of the child and, at
                 the end of the child, its exit code
    become       turns the child into the process that was asked for
    main         returns the script of the child, which is to run as __main__
    run_to_end   runs the script from its first line, and ends the process

A child is a real process: it has a session, an environment and standard streams of its own, and it
ends with its own exit code. A child differs from a new Python in two ways:

* The libraries and the modules of the project are imported already. A script outside of the
  repository may belong to a changed copy of the project, so its child imports the project anew.
* All children have the same salt. The salt is a random number of the fork server. From it Python
computes hash() of a text. Two new Pythons would have two salts. So a test that needs two salts,
e.g. a
  test of "the same bits in another process", starts a new Python instead.

A child may start Python programs itself, e.g. torchrun's agent starts ranks. These programs are
forks as well, see `start_programs_as_forks`.

tests/conftest.py starts one fork server for all workers of pytest-xdist. tests/dist/launching.py
decides which processes are forks and which are new Pythons.

Free to add: names in LIBRARIES. If a library is missing in LIBRARIES, each child imports the
library anew. This only takes time. A name may be added to LATE_VARIABLES only if no import reads
the variable. A new step of `serve` must not start a thread, see `main`. Every test of several ranks
uses this module. tests/dist/test_dist.py is the shortest of these tests.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

# Python's function that calls the functions that were registered with `atexit`. A script of a test
# removes this function from the module `atexit`, so the fork server keeps it here.
RUN_EXIT_FUNCTIONS = atexit._run_exitfuncs

ROOT = Path(__file__).resolve().parents[2]
# Where Python looks for modules after the folder of the script.
LATER_PATH = sys.path[1:]

# Environment variable with the name of the fork server's socket. If a process finds this variable,
# it connects to the fork server that listens at the socket. Otherwise it starts a fork server.
ADDRESS = "SPIKEVRT_FORK_SERVER"

# Variables by which a launcher tells a process its rank. A test of a launch sets these variables
# itself.
LAUNCH_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LOCAL_WORLD_SIZE",
    "NPROC_PER_NODE",
    "PET_NPROC_PER_NODE",
    "PET_NNODES",
    "PET_NODE_RANK",
)
# Variables that no process of a test inherits from the shell in which pytest runs.
UNSET = (
    *LAUNCH_VARIABLES,
    "TORCHELASTIC_RUN_ID",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SPIKEVRT_EXIT_FILE",
    ADDRESS,
)


def inherited_variables() -> dict[str, str]:
    """Return the environment without the variables of `UNSET` and without empty variables.

    Empty variables are left out, because tests use the empty value for another purpose: a variable
    that a test sets to "" is removed for its ranks.
    """
    variables = {}
    for name, value in os.environ.items():
        if name not in UNSET and value:
            variables[name] = value
    return variables


# The variables that the processes of tests inherit. They are read once, when the tests begin. If
# torch compiles later, it adds variables to os.environ. The processes of tests must not inherit
# these variables.
INHERITED = inherited_variables()

# The libraries that are imported before the first fork: all that the project imports.
LIBRARIES = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.checkpoint",
    "torch.utils.data",
    "numpy",
    "cv2",
    "json5",
    "lmdb",
    "pydantic",
    "pydantic.main",
    "pydantic.json_schema",
    "av",
    "tqdm",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "PIL.GifImagePlugin",
    "PIL.JpegImagePlugin",
    "multiprocessing.queues",
    "pydantic.types",
    "pydantic.type_adapter",
    "pydantic.dataclasses",
    "jinja2",
)
# The modules of the project, at the root of the repository, that are imported after the libraries.
PROGRAMS = ("main_train_vrt", "main_test_vrt")
# The folders of the repository from which PROGRAMS import modules.
PACKAGES = ("data", "models", "utils")
# Beginnings of names of environment variables that nothing reads during the imports, neither a
# library nor the project. So a child may have other values of these variables than the fork server.
# If a process needs another value of any other variable, e.g. OMP_NUM_THREADS, it is not forked,
# but started as a new Python.
LATE_VARIABLES = (
    "RANK",
    "LOCAL_",
    "WORLD_SIZE",
    "MASTER_",
    "NPROC_PER_NODE",
    "PET_",
    "SPIKEVRT_",
    "SLURM_",
    "NCCL_",
    "WANDB_",
    "TQDM_",
    "PYTEST_",
    "TMPDIR",
    "GIT_",
    "MPLBACKEND",
    "CUDA_VISIBLE_DEVICES",
    "PATH",
    "VIRTUAL_ENV",
    # torchrun gives these to its ranks.
    "GROUP_",
    "ROLE_",
    "TORCHELASTIC_",
    "TORCH_NCCL_",
)
# Largest size of a message in bytes, 1 MiB. The longest request holds a whole environment, and is
# far smaller.
MESSAGE_BYTES = 1 << 20
# A request comes with the files for stdout and stderr. It may also come with a gate: a pipe that
# holds the child back until a test closes its other end (`ForkServer.start`).
MOST_FILES = 3


# ---- In the process of the tests ----------------------------------------------------------------


class ForkedProcess:
    """A process that the fork server has started. It has the methods of Popen that tests use."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.server = server
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        """The exit code. It is negative if a signal has ended the process.

        It is None until the fork server's message about the end of the process has been read.
        """
        return self.server.ended.get(self.pid)

    def poll(self) -> int | None:
        """Return the exit code, or None if the process runs."""
        self.server.receive(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process ends. Returns its exit code.

        timeout: in seconds. None: without a limit.

        Raises subprocess.TimeoutExpired.
        """
        if timeout is None:
            while self.returncode is None:
                self.server.receive(None)
            return self.returncode

        deadline = time.monotonic() + timeout
        while self.returncode is None:
            seconds_left = deadline - time.monotonic()
            # The message about the end may have come before the deadline without being read. So
            # look once more after the deadline.
            self.server.receive(max(0.0, seconds_left))
            if self.returncode is None and seconds_left <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is not None:
            return
        # The process may have ended, and the message of its end may still be on its way.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A connection to the fork server.

    ended: pid of each child that has ended -> its exit code, negative for a signal.
    """

    def __init__(self) -> None:
        self.env = clean_env()
        self.ended: dict[int, int] = {}
        self.process: subprocess.Popen[bytes] | None = None
        # Pids of children that the server has reported as started. `start` removes each from here.
        self.started_pids: list[int] = []
        if ADDRESS not in os.environ:
            os.environ[ADDRESS] = f"spikevrt-tests-{os.getpid()}"
            self.process = self._start_server()
        # An address that begins with a zero byte is only a name. It needs no file, so no file is
        # left behind.
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect("\0" + os.environ[ADDRESS])
        atexit.register(self.close)

    def _start_server(self) -> subprocess.Popen[bytes]:
        """Start the process that imports the libraries and then forks."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind("\0" + os.environ[ADDRESS])
            listener.listen()
            return subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno())],
                cwd=ROOT,
                env=self.env,
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    def can_start(self, env: Mapping[str, str]) -> bool:
        """Return whether a fork of the server can run with this environment.

        It can if the environment differs from the environment of the server only in LATE_VARIABLES.
        """
        return differ_in_late_variables_only(self.env, env)

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        out: Any,
        err: Any,
        gate: int | None = None,
        cwd: Path = ROOT,
    ) -> ForkedProcess:
        """Start a process.

        argv: a script and its arguments. env: the whole environment. out, err: open files.
        gate: the reading end of a pipe. The process begins when the writing end is closed. Without
            a gate it begins at once.
        cwd: the folder in which the process runs. The path of a script is relative to ROOT, not to
            this folder.
        """
        request = {"argv": [str(word) for word in argv], "env": dict(env), "cwd": str(cwd)}
        files = [out.fileno(), err.fileno()]
        if gate is not None:
            files.append(gate)
        socket.send_fds(self.socket, [json.dumps(request).encode()], files)
        # Messages about the ends of other children may come first.
        while not self.started_pids:
            self.receive(None)
        return ForkedProcess(self, self.started_pids.pop())

    def receive(self, timeout: float | None) -> None:
        """Read one message of the fork server, if one comes within `timeout` seconds.

        timeout: 0 only reads a message that has already come. None waits until a message comes.
        """
        self.socket.settimeout(timeout)
        with contextlib.suppress(TimeoutError, BlockingIOError):
            message = self.socket.recv(MESSAGE_BYTES)
            if not message:
                raise RuntimeError("the fork server has ended")
            news = json.loads(message)
            if news["code"] is None:
                # A child has started. Its pid may be the pid of a child that has ended before, so
                # forget the exit code of that child.
                self.ended.pop(news["pid"], None)
                self.started_pids.append(news["pid"])
            else:
                self.ended[news["pid"]] = news["code"]
        self.socket.settimeout(None)

    def close(self) -> None:
        """Close the connection. The fork server ends once its last connection is closed."""
        self.socket.close()
        if self.process is not None:
            self.process.wait()


# The one connection of this process. The first call makes it, and later calls return it.
fork_server = cache(ForkServer)


def differ_in_late_variables_only(env: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether all variables but LATE_VARIABLES are the same in two environments."""
    for name in env.keys() | other.keys():
        is_late = name.startswith(LATE_VARIABLES)
        if not is_late and env.get(name) != other.get(name):
            return False
    return True


def clean_env() -> dict[str, str]:
    """Return the environment that each process of a test has: one thread, and no GPU."""
    return {
        **INHERITED,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "-1",
    }


# ---- In the fork server -------------------------------------------------------------------------


def serve(listener: socket.socket) -> list[str]:
    """Fork a child for each request, and tell how each child ended.

    This function is called once, in the fork server. In the fork server it never returns, because
    the process ends when its last connection is closed. Each child begins as a copy of the process
    in the middle of this function. In a child this function returns: it returns the script and its
    arguments.

    The selector watches three kinds of sources. Its `select` returns the sources that have news:

        the listener         a worker of the tests connects
        a child (a pidfd)    the child has ended
        a connection         a worker asks for a child, or has gone
    """
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    connections: set[socket.socket] = set()
    while True:
        for key, _ in selector.select():
            source: Any = key.fileobj
            if source is listener:
                connection = listener.accept()[0]
                connections.add(connection)
                selector.register(connection, selectors.EVENT_READ)
                continue

            # Only children are registered with data: the pid of the child, and the connection that
            # asked for the child.
            has_child_ended = key.data is not None
            if has_child_ended:
                pid, asked_by = key.data
                selector.unregister(source)
                os.close(source)
                _, status = os.waitpid(pid, 0)
                tell(asked_by, pid, os.waitstatus_to_exitcode(status))
                continue

            message, streams = receive_request(source)
            has_worker_gone = not message
            if has_worker_gone:
                selector.unregister(source)
                connections.remove(source)
                if not connections:
                    os._exit(0)
                continue

            pid = os.fork()
            if pid == 0:
                for resource in (selector, listener, *connections):
                    resource.close()
                return become(json.loads(message), streams)
            # The child has its own copies of the streams, so this process closes its copies.
            for stream in streams:
                os.close(stream)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, source))
            tell(source, pid, None)


def receive_request(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return the request of a worker and its streams, see `become`.

    The request is b"" if the worker has gone.
    """
    message = b""
    streams: list[int] = []
    # A worker that ends without having read all of its messages resets the connection.
    with contextlib.suppress(ConnectionResetError):
        message, streams, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, MOST_FILES)
    return message, streams


def tell(connection: socket.socket, pid: int, code: int | None) -> None:
    """Tell a worker of pytest that its child has started (code None) or ended (its exit code)."""
    with contextlib.suppress(OSError):  # the worker may have gone
        connection.send(json.dumps({"pid": pid, "code": code}).encode())


def become(request: dict[str, Any], streams: list[int]) -> list[str]:
    """Turn this child into the process that was asked for. Returns the script and its arguments.

    streams: descriptors of stdout and stderr, and perhaps of a gate.
    """
    os.setsid()
    for number, stream in zip((1, 2), streams[:2], strict=True):
        os.dup2(stream, number)
    # Reading from the gate waits until its other end is closed.
    for gate in streams[2:]:
        os.read(gate, 1)
    # If stdout is a terminal, the terminal is also stdin, as for a program that a user starts.
    if os.isatty(1):
        os.dup2(1, 0)
    reset_files_and_environment(request["env"])
    os.chdir(request["cwd"])
    # After Python has ended, the exit handlers of the C libraries would take a quarter of a second
    # of a core. C calls these handlers in reverse order: the handler that was registered last is
    # called first. The last handler here is `_exit`. It ends the process at once, so no other
    # handler is called.
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    return request["argv"]


def reset_files_and_environment(env: Mapping[str, str]) -> None:
    """Close all files but the standard streams, and take over this environment."""
    open_files = [int(name) for name in os.listdir("/proc/self/fd")]
    os.closerange(3, max(open_files) + 1)  # 0, 1 and 2 are the standard streams
    os.environ.clear()
    os.environ.update(env)
    # Python remembers the folder for temporary files. With None it reads TMPDIR again.
    tempfile.tempdir = None
    # Python seeds its own random generator anew after a fork. NumPy does not.
    numpy_random = importlib.import_module("numpy.random")
    numpy_random.seed(None)


def forget_project() -> None:
    """Let this child import the modules of the project anew, from the folder of its script."""
    for name in list(sys.modules):
        package = name.partition(".")[0]
        if name in PROGRAMS or package in PACKAGES:
            del sys.modules[name]


def run_to_end(script: types.CodeType, names: dict[str, Any]) -> None:
    """Run the script of this child with these global names, and end the process.

    Python ends a script in two parts:

        1. wait for threads, call the functions that were registered with `atexit`, and write the
           output
        2. free the objects of all libraries, one by one

    Part 2 changes the memory that the child shares with the fork server, so Linux must copy this
    memory. This takes a third of a second of a core. So this function does part 1, and then ends
    the process without part 2.

    In three cases Python itself ends the process, because it prints a message and sets the exit
    code:

        an error of the script              this function raises it
        SystemExit with a text              this function raises it
        output that cannot be written       this function returns
    """
    exit_code = 0
    try:
        exec(script, names)
    except SystemExit as end:
        if end.code is None:  # `sys.exit()` means success
            exit_code = 0
        elif isinstance(end.code, int):
            exit_code = end.code
        else:  # a text, e.g. `sys.exit("no such file")`
            raise

    # `_shutdown` and RUN_EXIT_FUNCTIONS are private functions of Python. No public function does
    # the same.
    private: Any = threading
    private._shutdown()  # waits for the threads that are no daemons
    RUN_EXIT_FUNCTIONS()
    for stream in (sys.stdout, sys.stderr):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except OSError:
            return
    os._exit(exit_code)


# ---- In a child that starts another Python program ----------------------------------------------
#
# The new program must not inherit anything from the program that starts it, e.g. no handler of a
# signal. `replace_program` removes everything that a fork would inherit.
#
# A launcher that is not a fork starts new Pythons, as it does for users. One test uses such a
# launcher: test_a_signal_to_the_launcher_saves_the_run_for_another_start.


def start_programs_as_forks() -> None:
    """Let this process and its children start Python programs as forks, without a new Python.

    Two functions are replaced in this process, and so in its children:

        SubprocessHandler._popen   torchrun's agent calls it to start a rank
        os.execve                  a program that a platform starts calls it to become torchrun's
                                   agent

    Both new functions still start a new Python if the program needs one (`script_of`).
    """
    name = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
    handler: Any = importlib.import_module(name).SubprocessHandler
    popen = handler._popen
    system: Any = os
    execve = system.execve

    def start_rank(self: Any, command: Sequence[str], env: Mapping[str, str]) -> Any:
        """Start a rank as a fork, unless it needs a new Python."""
        argv = script_of(command, env)
        if argv is None:
            return popen(self, command, env)
        return subprocess.Popen(
            command,
            env=env,
            stdout=self._stdout,
            stderr=self._stderr,
            start_new_session=True,
            # Popen makes a fork and calls `preexec_fn` in it. Then it would replace the fork by
            # `command`. But this `preexec_fn` never returns, so the process stays a fork. A fork
            # has one thread only. So the threads of the agent's store, by which ranks find one
            # another, are missing. The fork does not use this store.
            preexec_fn=lambda: replace_program(argv, env),
        )

    def replace_this_program(path: Any, command: Sequence[Any], env: Mapping[str, str]) -> Any:
        """Run the command in this process, without a new Python unless the command needs one."""
        argv = script_of(command, env)
        if argv is None:
            return execve(path, command, env)
        return replace_program(argv, env)

    handler._popen = start_rank
    system.execve = replace_this_program


def script_of(command: Sequence[str], env: Mapping[str, str]) -> list[str] | None:
    """Return the script of a command, and its arguments. Return None if it needs a new Python.

    E.g. for [sys.executable, "-u", "main_train_vrt.py", "--opt", "a.json"] this returns the last
    three items.
    """
    python, *argv = command
    # -u: Python writes its output without a buffer. The children never have a buffer
    # (`replace_program`), so the flag is left out.
    if argv[0] == "-u":
        argv = argv[1:]
    # `script_to_run` looks for a relative path below ROOT. So the current folder must be ROOT, too.
    is_script = python == sys.executable and argv[0].endswith(".py")
    is_found = Path(argv[0]).is_absolute() or Path.cwd() == ROOT
    can_have_env = differ_in_late_variables_only(os.environ, env)
    if is_script and is_found and can_have_env:
        return argv
    return None


def replace_program(argv: list[str], env: Mapping[str, str]) -> NoReturn:
    """Run a script in this process, and end the process with it, as `exec` would.

    Before the script runs, remove what the earlier program has left in Python: handlers of signals,
    unwritten output, modules of the project, and functions for its end.

    argv: the script and its arguments.
    """
    # As with `exec`, an ignored signal stays ignored. Every other signal is set as at the start of
    # Python.
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.stdout = sys.__stdout__ = unbuffered(1)
    sys.stderr = sys.__stderr__ = unbuffered(2)
    # Functions that the former program registered for its end, e.g. to remove a temporary folder.
    finalize: Any = weakref.finalize
    finalize._registry.clear()
    reset_files_and_environment(env)
    forget_project()

    try:
        script = script_to_run(argv)
        run_to_end(script, sys.modules["__main__"].__dict__)
    except SystemExit as end:
        print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    # `run_to_end` has ended the process, except in the three cases that its docstring names.
    os._exit(1)


def unbuffered(descriptor: int) -> io.TextIOWrapper:
    """Open a standard stream without a buffer, so that each text arrives at once."""
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)


def make_models() -> None:
    """Make the pydantic models of all parts that an option file can name, e.g. of each network.

    A registry makes a model when the model is first needed, and keeps it. Without this function
    each training would make 13 models, in 25 ms.
    """
    registry: Any = importlib.import_module("utils.options.registry").Registry
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in PACKAGES]
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, registry):
                for name in value.names():
                    value.model(name)


def main() -> types.CodeType:
    """Import the libraries and the project, and serve. Return in each child, with its script."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    for name in (*LIBRARIES, *PROGRAMS):
        importlib.import_module(name)
    make_models()
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        # A fork has only one thread. If a library gave work to another thread, a child would wait
        # for this work forever.
        sys.exit(f"{threads} threads after the imports: a fork would lack all but one")
    # Exclude all present objects from garbage collection. Otherwise each child would search these
    # objects at its end. This would copy their memory and take a second and a half.
    gc.freeze()
    # pytest may ignore Ctrl-C and hang-up, e.g. under nohup. The processes of the tests must react
    # to both signals.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

    start_programs_as_forks()

    argv = serve(listener)

    # From here on this process is a child.
    if ROOT not in (ROOT / argv[0]).parents:
        forget_project()
    return script_to_run(argv)


def script_to_run(argv: list[str]) -> types.CodeType:
    """Prepare Python for a script, as `python SCRIPT ARGUMENTS` would, and return its code.

    argv: the script and its arguments. The script will run as the module __main__.
    """
    script = ROOT / argv[0]
    sys.argv = argv
    sys.path[:] = [str(script.parent), *LATER_PATH]
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.modules["__main__"].__file__ = str(script)
    return compile(script.read_bytes(), str(script), "exec")


if __name__ == "__main__":
    # `main` replaces this module in sys.modules. A reference keeps its names alive.
    _server = sys.modules["__main__"]
    run_to_end(main(), sys.modules["__main__"].__dict__)
