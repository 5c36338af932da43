"""utils_process.end: the end of a program whose threads are still inside torch."""

import subprocess
import sys

PROGRAM = """
import atexit, sys, threading, torch
from utils import utils_process

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
        [sys.executable, "-c", PROGRAM.format(end="utils_process.end")], capture_output=True, text=True, timeout=60
    )

    assert (ended.returncode, ended.stdout.split()) == (7, ["done", "handled"]), ended.stderr
