"""Runs a module as `python -m MODULE ARGUMENTS` does.

    run_module.py MODULE ARGUMENTS

The fork server can only start scripts. With this script it can also start the launchers of torch,
so that they need not import torch anew.
"""

import runpy
import sys

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
