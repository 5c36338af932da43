"""Runs each of the given programs with --help.

Prints a JSON object: command line -> [exit code, text].
"""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

shown = {}
for command in sys.argv[1:]:
    sys.argv = [*command.split(), "--help"]
    code = 0
    with contextlib.redirect_stdout(io.StringIO()) as text:
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as e:
            code = e.code or 0
        except Exception as e:
            code = repr(e)
    shown[command] = [code, text.getvalue()]
print(json.dumps(shown))
