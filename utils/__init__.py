"""What everything else may import."""

import re
import sys
from pathlib import Path

if sys.platform == "win32":
    sys.exit("SpikeVRT runs on Linux and macOS (on Windows: in WSL), not on Windows itself")

_PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
(VERSION,) = re.findall(r'(?m)^version = "(.+)"', _PROJECT.read_text(encoding="utf-8"))
