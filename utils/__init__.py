"""What everything else may import.

    contract.py          interfaces between data, networks and programs
    words.py             a count with its noun, as messages write it
    errors.py            errors that a user sees, and exit codes
    secrets.py           hides secrets in options, errors and the log
    arguments.py         numbers of a command line
    user_path.py         paths as users write them
    files.py             reads and writes files; json_file.py reads JSON
    output_folder.py     writes a folder of results
    results.py           tables, and JSON with infinite numbers
    name_order.py        "2" before "10"
    image.py             pictures on disk, strips, HTML pages
    logger.py            the text log
    random_streams.py    generators of all random numbers
    device.py            accelerator or CPU
    host_memory.py       memory of this process
    system.py            functions that only Linux has
    utils_dist.py        the ranks of a run

Folders: options/ (option files), dist/ (ranks and watchdog), run/ (a training run), picture/ and
video/ (headers of pictures, and videos), templates/ (HTML pages).
"""

import re
import sys
from pathlib import Path

if sys.platform == "win32":
    sys.exit("SpikeVRT runs on Linux and macOS (on Windows: in WSL), not on Windows itself")

# The version of this project is written only in pyproject.toml, e.g. in the line version = "1.0".
_PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
(VERSION,) = re.findall(r'(?m)^version = "(.+)"', _PROJECT.read_text(encoding="utf-8"))
