"""The start and the end of a program: output that is no file or that nobody reads, threads still
inside torch.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.dist.launching import run_command, run_into, run_ranks
from tests.helpers.clip_files import write_clip
from tests.helpers.train_files import MAIN, folder_of_run, write_options

PROGRAM = """
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
process.end(7)
"""


WITHOUT_EXITFUNCS = """
import atexit
del atexit._run_exitfuncs
from utils.dist import process
atexit.register(print, "handled")
process.end(7)
"""
UNWATCHED = """
import io, sys
sys.stderr = io.StringIO()
from utils import utils_dist
from utils.options.watchdog_options import WatchdogOptions
with utils_dist.ranks():
    utils_dist.begin(WatchdogOptions())
    print("watched")
"""
# A loader process that dies raises an error in the main thread, by the handler of torch.
LEAVES = """
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
threading.Thread(target=leave, args=(70, None)).start()
time.sleep(60)
"""
# env: no fork of a process with torch in it
FRESH = ("env",)
LINUX = "SpikeVRT runs on Linux and macOS (on Windows: in WSL)"
LIBRARIES = """
import sys, main_train_vrt, main_test_vrt
heavy = {"torch._dynamo", "torchvision", "matplotlib", "tensorboard", "wandb"}
print("loaded", *(heavy & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    ("program", "prefix", "code", "said"),
    [
        (WITHOUT_EXITFUNCS, (), 7, "handled\n"),
        # As in a notebook. The watchdog waited for its own first turn, which had failed, until the
        # limit of the stall.
        (UNWATCHED, (), 0, "watched\n"),
        (
            "import sys; sys.platform = 'win32'; import utils",
            FRESH,
            1,
            f"{LINUX}, not on Windows itself\n",
        ),
    ],
    ids=[
        "without a private function of Python",
        "stderr is no file",
        "other system",
    ],
)
def test_a_program_starts_and_ends_as_it_should(tmp_path, program, prefix, code, said):
    (tmp_path / "program.py").write_text(program)
    ended = run_ranks(1, tmp_path / "program.py", prefix=prefix)
    assert ended.exit_codes == [code], ended.text
    assert ended.stdout[0].endswith(said) or ended.stderr[0] == said, ended.text


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Give the end of a new Python that loads the programs, and ends with threads in torch."""
    program = tmp_path_factory.mktemp("fresh") / "program.py"
    program.write_text(LIBRARIES + PROGRAM)
    return run_ranks(1, program, prefix=FRESH)


def test_the_programs_load_no_heavy_library(fresh):
    # torchvision imports the compiler of torch: half of the time in which each rank, worker and
    # tool starts.
    assert fresh.stdout[0].splitlines()[0] == "loaded", fresh.text


def test_a_program_with_threads_in_torch_ends_with_its_code(fresh):
    # With sys.exit, Python before 3.14 aborts: a thread that wants the interpreter back is unwound
    # through C++.
    assert fresh.exit_codes == [7], fresh.text
    assert fresh.stdout[0].endswith("done\nhandled\n"), fresh.text


def run_unread(*arguments):
    """`run_into` a pipe that nobody reads."""
    unread, stdout = os.pipe()
    os.close(unread)
    with os.fdopen(stdout, "wb") as stream:
        return run_into(stream, *arguments)


@pytest.mark.parametrize(
    "arguments", ["scripts/spike_tool.py info --size 8 12", "scripts/doctor.py --log"]
)
def test_a_script_whose_output_nobody_reads_ends_without_a_traceback(tmp_path, arguments):
    write_clip(tmp_path, "clip", frames=1)
    code, said = run_unread(
        *arguments.split(), tmp_path / "GOPRO_Large_spike_seq/train/clip/spike/000000.dat"
    )

    assert code == 141, said
    assert "Error" not in said, said


def ends_with(command: str, code: int) -> None:
    """Check that a command of a shell, behind the name of Python, ends with this exit code."""
    ended = run_command(["bash", "-c", f"{sys.executable} {command}"], limit_s=120)
    assert ended.exit_codes == [code], ended.text
    assert "Traceback" not in ended.text, ended.text


# Slow: a new Python imports torch three times.
@pytest.mark.slow
def test_a_program_whose_output_is_closed_ends_with_its_own_code(tmp_path):
    options = write_options(tmp_path)
    spikes = f"{tmp_path}/GOPRO_Large_spike_seq/test/test0/spike/000000.dat"

    ends_with(f"scripts/spike_tool.py info --size 16 16 {spikes} >&-", code=0)
    ends_with(f"scripts/spike_tool.py info --size 16 x {spikes} >&-", code=2)
    train = f"{MAIN} --opt {options} train.total_iter=1 datasets.test={{}}"
    ends_with(f"{train} >&- 2>&-", code=0)

    assert "Finished at iter 1" in (folder_of_run(options) / "log/train.log").read_text()


# Slow: a new Python imports torch.
@pytest.mark.slow
def test_a_wrong_option_of_a_training_whose_output_is_closed_has_its_own_code(tmp_path):
    ends_with(f"{MAIN} --opt {write_options(tmp_path)} train.total_iter=x >&-", code=2)


def test_a_training_run_whose_output_nobody_reads_goes_on_and_keeps_its_log(tmp_path):
    options = write_options(tmp_path)
    code, said = run_unread(MAIN, "--opt", options, "train.total_iter=1", "datasets.test={}")

    assert code == 0, said
    assert "Traceback" not in said, said
    assert said.count("cannot write the log (stdout") == 1, said
    assert "Finished at iter 1" in (folder_of_run(options) / "log/train.log").read_text()


def test_a_rank_that_the_watchdog_ends_says_nothing_of_its_loader_processes(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(LEAVES)

    result = run_ranks(1, program)

    assert result.exit_codes == [70]
    assert result.text.strip() == ""


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
    # Until all have closed it
    run = subprocess.run([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, timeout=50)

    assert run.returncode == -signal.SIGKILL
    assert time.monotonic() - start < 30
