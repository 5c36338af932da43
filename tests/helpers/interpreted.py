"""Runs a module as `python -m MODULE ARGUMENTS` does, with Triton's interpreter in place of a GPU.

    tests/helpers/interpreted.py MODULE ARGUMENTS

Triton decides while it is imported whether it uses its interpreter. This program is a fork of a
process that has imported Triton already (tests/dist/fork_server.py), so it imports Triton anew.
Only the part in C++ is not imported anew, because a process can load it only once. This part does
not decide.
"""

import os
import runpy
import sys


def forget_triton() -> None:
    """Let the next import load the Python modules of Triton again."""
    for name in list(sys.modules):
        is_of_triton = name == "triton" or name.startswith("triton.")
        if is_of_triton and not name.startswith("triton._C"):
            del sys.modules[name]


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    forget_triton()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
