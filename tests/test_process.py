"""The start and the end of a program: output that is no file, threads that are still inside torch."""

import subprocess
import sys

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
{end}(7)
"""


def test_a_program_ends_with_its_code_while_threads_are_in_torch():
    # With sys.exit, Python before 3.14 aborts here: a thread that wants the interpreter back is unwound through C++.
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(end="process.end")], capture_output=True, text=True, timeout=300
    )

    assert (ended.returncode, ended.stdout.split()) == (7, ["done", "handled"]), ended.stderr


def test_without_the_private_function_of_python_the_handlers_run_and_the_code_stays():
    program = (
        "import atexit; del atexit._run_exitfuncs; from utils.dist import process; "
        "atexit.register(print, 'handled'); process.end(7)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)

    assert (ended.returncode, ended.stdout.split()) == (7, ["handled"]), ended.stderr


def test_other_systems_than_linux_are_refused_with_one_line():
    program = "import sys; sys.platform = 'darwin'; import utils.dist.process"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)

    assert ended.returncode == 1
    assert ended.stderr.splitlines() == ["SpikeVRT runs on Linux (on Windows: in WSL), not on darwin"]


def test_a_program_whose_error_output_is_no_file_is_watched():
    # As in a notebook. The watchdog waited for its own first turn, which had failed, until the limit of the stall.
    program = (
        "import io, sys; sys.stderr = io.StringIO(); from utils import utils_dist; from utils.run import boot\n"
        "from utils.options.models import WatchdogOptions\n"
        "with boot.ranks():\n    boot.begin(None); utils_dist.watch(WatchdogOptions()); print('watched')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)

    assert (ended.returncode, ended.stdout.split()[-1]) == (0, "watched"), ended.stderr


def test_a_program_starts_without_the_compiler_of_torch():
    # torchvision imports it: half of the time in which each rank, loader worker and tool starts.
    program = (
        "import sys, main_train_vrt, main_test_vrt\n"
        "print(*({'torch._dynamo', 'torchvision', 'matplotlib', 'tensorboard', 'wandb'} & sys.modules.keys()))"
    )
    started = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)

    assert (started.returncode, started.stdout) == (0, "\n"), started.stderr
