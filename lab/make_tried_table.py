"""Write the table "What is tried" of docs/reliability.md from the names of the tests.

usage: python lab/make_tried_table.py [--check]

The table has a row for each story: a test in one of FOLDERS, which starts whole programs. The first
line of a test file says the situation, and the name of a test says what happens. E.g. a file
tests/stories/test_a.py that begins with "Wrong options." and has a test
`test_a_wrong_key_is_refused` gives

    | Wrong options | a wrong key is refused | [test_a](../tests/stories/test_a.py) |

`--check` writes nothing and exits with 1 if the page has another table.

Nothing else uses this file. Run it after a test of FOLDERS got another name.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reliability.md"
FOLDERS = ("tests/stories", "tests/dist", "tests/faults")
# Lines of the page before and after the table.
BEGIN = "<!-- python lab/make_tried_table.py -->\n"
END = "<!-- end of the table -->\n"


def main(argv: list[str] | None = None) -> int:
    """Write the table, or compare it with the page. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if the table is old")
    arguments = parser.parse_args(argv)

    # Replace what is between the two marks.
    old_page = PAGE.read_text(encoding="utf-8")
    before, _, rest = old_page.partition(BEGIN)
    _, _, after = rest.partition(END)
    new_page = before + BEGIN + "\n".join(table()) + "\n" + END + after

    if arguments.check:
        is_old = new_page != old_page
        return 1 if is_old else 0
    PAGE.write_text(new_page, encoding="utf-8")
    return 0


def table() -> Iterator[str]:
    """Yield the lines of the table, without line ends."""
    yield "| situation | what happens | tests |"
    yield "|---|---|---|"
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).glob("test_*.py")):
            yield from rows(file)


def rows(file: Path) -> Iterator[str]:
    """Yield a row for each test of a file. Only the first row says the situation."""
    module = ast.parse(file.read_text(encoding="utf-8"))
    docstring = ast.get_docstring(module) or ""
    first_line = docstring.split("\n")[0]
    situation = sentence(first_line)
    path = file.relative_to(ROOT)
    for node in module.body:
        # Other functions of the file are fixtures and helpers.
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            happens = node.name.removeprefix("test_").replace("_", " ")
            yield f"| {situation} | {happens} | [{file.stem}](../{path}) |"
            situation = ""


def sentence(text: str) -> str:
    """Return a sentence as a cell of the table: no full stop, and bars do not end the cell."""
    return text.rstrip(".").replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
