"""The start and the end of a program, also if nobody reads what it prints.

Most tests write a small program into a file and run it as a rank. The programs use
utils/dist/process.py (`end`, `die_with_parent`) and utils/dist/leave.py (`leave`). With these
functions our programs end without Python's own shutdown. If you add a way to end, add a program
here.
"""

import io
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.dist.launching import RankResult, run_command, run_into, run_ranks
from tests.helpers.clip_files import write_clip
from tests.helpers.train_files import MAIN, folder_of_run, write_options
from utils.dist import process

# Exit code of the small programs. Nothing else in these tests ends with this number.
CODE = 7
# Exit code of a rank that the watchdog ends.
STALLED = 70
# Exit code of a program that writes to a pipe without a reader. A shell reports it as 128 +
# SIGPIPE.
UNREAD = 141

# A prefix for `run_ranks`. `run_ranks` puts it before the command of a rank. The command "env
# python ..." starts a new Python. Without a prefix, a rank is a fork of a process that has imported
# torch.
NEW_PYTHON = ("env",)


def run_program(folder, program: str, prefix: tuple[str, ...] = ()) -> RankResult:
    """Run the text of a program as one rank, to its end."""
    path = folder / "program.py"
    path.write_text(program)
    return run_ranks(1, path, prefix=prefix)


# ---- Starts and ends -----------------------------------------------------------------------------

# `process.end` calls a private function of Python. Another version of Python may lack this
# function. This program deletes the function, and then ends.
WITHOUT_PRIVATE_FUNCTION = f"""
import atexit
del atexit._run_exitfuncs
from utils.dist import process
atexit.register(print, "handled")
process.end({CODE})
"""


def test_a_program_ends_with_its_code_without_a_private_function_of_python(tmp_path):
    result = run_program(tmp_path, WITHOUT_PRIVATE_FUNCTION)

    assert result.exit_codes == [CODE], result.text
    assert result.stdout == ["handled\n"]


# In a notebook, sys.stderr is an object without a file.
STDERR_IS_NO_FILE = """
import io, sys
sys.stderr = io.StringIO()
from utils import utils_dist
from utils.options.watchdog_options import WatchdogOptions
with utils_dist.ranks():
    utils_dist.begin(WatchdogOptions())
    print("watched")
"""


def test_a_program_is_watched_although_stderr_is_no_file(tmp_path):
    # In a former version, the watchdog failed here in its first turn, and the program waited for
    # this turn without end.
    result = run_program(tmp_path, STDERR_IS_NO_FILE)

    assert result.exit_codes == [0], result.text
    assert result.stdout[0].endswith("watched\n"), result.text


def test_windows_is_refused_in_words(tmp_path):
    program = "import sys; sys.platform = 'win32'; import utils"

    result = run_program(tmp_path, program, prefix=NEW_PYTHON)

    assert result.exit_codes == [1], result.text
    expected = "SpikeVRT runs on Linux and macOS (on Windows: in WSL), not on Windows itself\n"
    assert result.stderr == [expected]


# A program that prints which slow libraries our programs load. Each of them takes long to load.
PRINT_HEAVY_LIBRARIES = """
import sys, main_train_vrt, main_test_vrt
heavy = {"torch._dynamo", "torchvision", "matplotlib", "tensorboard", "wandb"}
print("loaded", *(heavy & sys.modules.keys()))
"""
# A program that ends while eight threads compute with torch.
END_WITH_THREADS = f"""
import atexit, sys, threading, torch
from utils.dist import process
def work():
    a = torch.ones(10)
    while True:
        a + a
for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
atexit.register(print, "handled")
print("done")
process.end({CODE})
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Give the end of a new Python that runs the two programs above, one after the other."""
    folder = tmp_path_factory.mktemp("fresh")
    return run_program(folder, PRINT_HEAVY_LIBRARIES + END_WITH_THREADS, prefix=NEW_PYTHON)


def test_the_programs_load_no_heavy_library(fresh):
    # E.g. torchvision imports the compiler of torch, which takes half of the time in which a rank,
    # a worker or a tool starts.
    assert fresh.stdout[0].splitlines()[0] == "loaded", fresh.text


def test_a_program_with_threads_in_torch_ends_with_its_code(fresh):
    # With sys.exit, Python before 3.14 would abort. The reason is that it ends a thread within C++
    # code when the thread comes back to Python.
    assert fresh.exit_codes == [CODE], fresh.text
    assert fresh.stdout[0].endswith("done\nhandled\n"), fresh.text


# ---- What the system tells of a process ----------------------------------------------------------


def test_a_process_that_has_ended_has_neither_state_nor_parent():
    child = subprocess.Popen(["true"])
    child.wait()

    assert process.process_state(child.pid) is None
    assert process.process_parent(child.pid) == 0


def test_a_process_whose_stat_file_is_empty_has_no_parent(monkeypatch):
    # The name `open` of the module replaces Python's function in this module.
    monkeypatch.setattr(process, "open", lambda path, mode: io.BytesIO(b""), raising=False)

    assert process.process_parent(os.getpid()) == 0


# ---- Output that nobody reads --------------------------------------------------------------------


def run_unread(*arguments):
    """Run a script whose stdout is a pipe that nobody reads. See `run_into`."""
    unread, stdout = os.pipe()
    os.close(unread)
    with os.fdopen(stdout, "wb") as stream:
        return run_into(stream, *arguments)


@pytest.mark.parametrize(
    "arguments", ["scripts/spike_tool.py info --size 8 12", "scripts/doctor.py --log"]
)
def test_a_script_whose_output_nobody_reads_ends_without_a_traceback(tmp_path, arguments):
    write_clip(tmp_path, "clip", frames=1)
    spikes = tmp_path / "GOPRO_Large_spike_seq/train/clip/spike/000000.dat"

    code, errors = run_unread(*arguments.split(), spikes)

    assert code == UNREAD, errors
    assert "Error" not in errors, errors


# In a shell, ">&-" closes stdout of a command, and "2>&-" closes stderr.


def ends_with(command: str, code: int) -> None:
    """Check that Python ends with this exit code. command: its arguments, for a shell."""
    ended = run_command(["bash", "-c", f"{sys.executable} {command}"], limit_s=120)
    assert ended.exit_codes == [code], ended.text
    assert "Traceback" not in ended.text, ended.text


# This test is slow, because new Pythons import torch three times.
@pytest.mark.slow
def test_a_program_whose_output_is_closed_ends_with_its_own_code(tmp_path):
    options = write_options(tmp_path)
    spikes = f"{tmp_path}/GOPRO_Large_spike_seq/test/test0/spike/000000.dat"

    ends_with(f"scripts/spike_tool.py info --size 16 16 {spikes} >&-", code=0)
    ends_with(f"scripts/spike_tool.py info --size 16 x {spikes} >&-", code=2)
    train = f"{MAIN} --opt {options} train.total_iter=1 datasets.test={{}}"
    ends_with(f"{train} >&- 2>&-", code=0)

    assert "Finished at iter 1" in (folder_of_run(options) / "log/train.log").read_text()


# This test is slow, because a new Python imports torch.
@pytest.mark.slow
def test_a_wrong_option_of_a_training_whose_output_is_closed_has_its_own_code(tmp_path):
    ends_with(f"{MAIN} --opt {write_options(tmp_path)} train.total_iter=x >&-", code=2)


def test_a_training_run_whose_output_nobody_reads_goes_on_and_keeps_its_log(tmp_path):
    options = write_options(tmp_path)

    code, errors = run_unread(MAIN, "--opt", options, "train.total_iter=1", "datasets.test={}")

    assert code == 0, errors
    assert "Traceback" not in errors, errors
    assert errors.count("cannot write the log (stdout") == 1, errors
    assert "Finished at iter 1" in (folder_of_run(options) / "log/train.log").read_text()


# ---- Processes that end with another process -----------------------------------------------------

# A thread ends the rank by `leave`, as the watchdog does, and `leave` kills the loader processes.
# torch then raises an error in the main thread, because a loader process has died. The main thread
# must not print this error. The terminal of this program is slow, so that the main thread has time
# to print.
LEAVE_BESIDE_LOADERS = f"""
import os, sys, threading, time
from torch.utils.data import DataLoader
from utils.dist.leave import leave
class SlowTerminal:
    def __getattr__(self, name):
        return getattr(sys.__stdout__, name)
    def flush(self):
        if threading.current_thread() is not threading.main_thread():
            time.sleep(60)
loader = iter(DataLoader(range(100), num_workers=2, prefetch_factor=1))
next(loader)
sys.stdout = SlowTerminal()
threading.Thread(target=leave, args=({STALLED}, None)).start()
time.sleep(60)
"""


def test_a_rank_that_the_watchdog_ends_says_nothing_of_its_loader_processes(tmp_path):
    result = run_program(tmp_path, LEAVE_BESIDE_LOADERS)

    assert result.exit_codes == [STALLED]
    assert result.text.strip() == ""


# The child waits until its parent has died, and only then asks to die with its parent.
ORPHAN = """
import multiprocessing, os, signal, time
from utils.dist.process import die_with_parent
def child(parent):
    while os.getppid() == parent:
        time.sleep(0.01)
    die_with_parent()
    time.sleep(60)
multiprocessing.get_context("fork").Process(target=child, args=(os.getpid(),)).start()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_whose_parent_died_before_it_asked_ends_as_well():
    start = time.monotonic()
    # subprocess.run waits until no process can write to the pipe of stdout. So it also waits for
    # the child.
    run = subprocess.run([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, timeout=50)

    assert run.returncode == -signal.SIGKILL
    # If the child did not end with its parent, it would sleep for 60 s.
    assert time.monotonic() - start < 30
