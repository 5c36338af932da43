"""Write the section "What is tested" of docs/reliability.md from the names of the tests.

usage: python lab/make_tried_table.py [--check]

The section describes the test files in FOLDERS. The first sentence of a test file says the
situation, and the name of each test says what happens then. E.g. a file tests/stories/test_a.py
begins with "Wrong options.", and has one test, `test_a_wrong_key_is_refused`. For this file, the
section has a row in a table, and a list below the table. The page shows the lists only after a
click:

    | Wrong options | 1 | [test_a](../tests/stories/test_a.py) |

    **test_a**

    * a wrong key is refused

With `--check` the program writes nothing. It exits with 1 if the section of the page differs from
the section that it would write.

No other program uses this file. Run this program after a test in FOLDERS was added, removed or
renamed.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# lab/tools.py has ROOT, too, but importing lab/tools.py would load torch.
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reliability.md"
FOLDERS = ("tests/stories", "tests/dist", "tests/faults")
# Two lines of the page. This program writes everything between them, and nothing else.
BEGIN = "<!-- python lab/make_tried_table.py -->\n"
END = "<!-- end of the table -->\n"


def main(argv: list[str] | None = None) -> int:
    """Write the section. With --check, only return 1 if the page has another section, else 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    help_of_check = "write nothing; exit with 1 if the page is old"
    parser.add_argument("--check", action="store_true", help=help_of_check)
    arguments = parser.parse_args(argv)

    # The page is before + BEGIN + section + END + after. Replace the section. The page must have
    # both marks, which is not checked here. Without END, the text after BEGIN would be lost.
    # Without BEGIN, the section would be added at the end of the page.
    old_page = PAGE.read_text(encoding="utf-8")
    before, _, rest = old_page.partition(BEGIN)
    _, _, after = rest.partition(END)
    files = read_test_files()
    lines = [*table(files), "", *lists(files)]
    new_page = before + BEGIN + "\n".join(lines) + "\n" + END + after

    if arguments.check:
        is_old = new_page != old_page
        return 1 if is_old else 0
    PAGE.write_text(new_page, encoding="utf-8")
    return 0


class TestFile(NamedTuple):
    """What a test file says about itself."""

    path: Path  # below the project, e.g. tests/stories/test_a.py
    situation: str  # the first sentence of the docstring of the file
    happens: list[str]  # what happens in each test, e.g. "a wrong key is refused"


def read_test_files() -> list[TestFile]:
    """Return what the test files in FOLDERS say, in the order of the page."""
    files = []
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).glob("test_*.py")):
            files.append(read_test_file(file))
    return files


def read_test_file(file: Path) -> TestFile:
    """Return what a test file says. The file is not imported, because this would run its code."""
    module = ast.parse(file.read_text(encoding="utf-8"))
    docstring = ast.get_docstring(module) or ""
    # A sentence ends with a full stop that is followed by a space, or at the end of the text. The
    # full stop in "app.py" ends no sentence.
    first_sentence = re.split(r"\.(?:\s|$)", docstring, maxsplit=1)[0]
    situation = " ".join(first_sentence.split())
    happens = []
    for node in module.body:
        # Other functions of the file are fixtures and helpers.
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            happens.append(node.name.removeprefix("test_").replace("_", " "))
    return TestFile(file.relative_to(ROOT), cell(situation), happens)


def table(files: list[TestFile]) -> Iterator[str]:
    """Yield the lines of the table. It has a row for each test file."""
    yield "| situation | tests | file |"
    yield "|---|---|---|"
    for file in files:
        yield f"| {file.situation} | {len(file.happens)} | [{file.path.stem}](../{file.path}) |"


def lists(files: list[TestFile]) -> Iterator[str]:
    """Yield the lines of the lists of what happens in each test.

    The page shows the lists only after a click (<details>).
    """
    count = sum(len(file.happens) for file in files)
    yield "<details>"
    yield f"<summary>What happens in each of the {count} tests</summary>"
    for file in files:
        yield ""
        yield f"**{file.path.stem}**"
        yield ""
        for text in file.happens:
            yield f"* {text}"
    yield ""
    yield "</details>"


def cell(text: str) -> str:
    """Return a text as a cell of a table. Without the backslash, a bar would end the cell."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
