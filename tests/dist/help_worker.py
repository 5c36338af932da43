"""Runs each of the given programs with --help, all in this process, because that is fast.

    help_worker.py COMMAND ...

A command is e.g. "scripts/spike_tool.py info". Prints a JSON object: command -> [exit code, text].
If a program fails, the exit code is replaced by the exception.
"""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

shown = {}  # command -> [exit code or exception, text]
for command in sys.argv[1:]:
    sys.argv = [*command.split(), "--help"]
    code = 0
    with contextlib.redirect_stdout(io.StringIO()) as text:
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as e:
            code = e.code or 0  # `sys.exit()` has the code None, which means success
        except Exception as e:
            code = repr(e)
    shown[command] = [code, text.getvalue()]
print(json.dumps(shown))
