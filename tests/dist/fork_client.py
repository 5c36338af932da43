"""Runs a script as a fork of the fork server of the tests, and ends with its exit code.

    fork_client.py SCRIPT ARGUMENTS

A launcher that starts this program starts `python SCRIPT ARGUMENTS`, but without a new import of
torch: the script gets the environment, the folder and the output of this program. Only its parent
is another process. The variable ADDRESS of tests/dist/fork_server.py says where the fork server is.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.dist.fork_server import fork_server

if __name__ == "__main__":
    command = sys.argv[1:]
    env = dict(os.environ)
    script = fork_server().start(command, env, sys.stdout, sys.stderr, cwd=Path.cwd())
    sys.exit(script.wait())
