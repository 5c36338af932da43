"""Prints what each of the given programs shows for --help, as a JSON object: command line -> text."""

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
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        runpy.run_path(sys.argv[0], run_name="__main__")
    shown[command] = text.getvalue()
print(json.dumps(shown))
