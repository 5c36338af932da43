"""What everything else may import."""

import re
from pathlib import Path

_PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
VERSION = re.search(r'(?m)^version = "(.+)"', _PROJECT.read_text(encoding="utf-8"))[1]
