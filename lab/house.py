#!/usr/bin/env python3
"""Print figures about the size of this repository. A change should not raise them.

    python lab/house.py

The program counts the files that git tracks, and new files that git does not ignore. The product
is everything outside of lab/ and tests/.

Nothing else uses this file, and no test runs it: change it freely.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.tools import ROOT
from tests.helpers.imports import imports_of, modules_below

# Folders of the modules that a program of the product may import.
FOLDERS = {"utils", "data", "models", "scripts"}


def lines(paths: Iterable[Path]) -> int:
    """Return the number of lines of some files together."""
    return sum(path.read_bytes().count(b"\n") for path in paths)


def lines_of(path: Path) -> int:
    """Return the number of lines of one file."""
    return lines([path])


def reachable(start: str) -> set[str]:
    """Return the modules that a program imports, directly or through other modules.

    The result includes the program itself. Empty modules are left out, e.g. most __init__.py.

    start: name of the program's module, e.g. "main_train_vrt".
    """
    modules = modules_below(ROOT, FOLDERS)  # name -> path
    reached = set()
    waiting = [start]  # modules whose imports are not yet followed, some of them several times
    visited = set()  # modules whose imports are followed
    while waiting:
        name = waiting.pop()
        if name in visited:
            continue
        visited.add(name)
        is_empty = modules[name].stat().st_size == 0
        if not is_empty:
            reached.add(name)
        imported = imports_of(modules[name], ROOT, modules)  # names of modules
        own_modules = imported & modules.keys()  # without modules of other packages
        waiting += own_modules
    return reached


def tracked_files() -> list[Path]:
    """Return the Python files and shell scripts that git tracks or would add."""
    command = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"]
    output = subprocess.check_output([*command, "*.py", "*.sh"], text=True)
    names = dict.fromkeys(output.splitlines())  # git lists a file in a conflict several times
    paths = [ROOT / name for name in names]
    return [path for path in paths if path.is_file()]  # a deleted file may still be tracked


@dataclass
class Counts:
    """What the syntax trees of some modules show."""

    functions: int = 0
    # Number of functions with a parameter `opt`, the options of the whole run. A parameter that is
    # keyword-only does not count.
    with_opt: int = 0
    import_lines: int = 0  # lines of all import statements
    longest_size: int = 0  # lines of the longest function
    longest_name: str = ""  # file and name of this function, e.g. "data/clip.py: checked_name"

    def add_module(self, path: Path) -> None:
        """Add the functions and imports of a module, including those inside of functions."""
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.import_lines += lines_of_node(node)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._add_function(node, path)

    def _add_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, path: Path) -> None:
        """Add one function of a module."""
        self.functions += 1
        if any(argument.arg == "opt" for argument in node.args.args):
            self.with_opt += 1
        size = lines_of_node(node)
        if size > self.longest_size:
            self.longest_size = size
            self.longest_name = f"{path.relative_to(ROOT)}: {node.name}"


def lines_of_node(node: ast.stmt) -> int:
    """Return the number of lines of a statement. Both its first and its last line count."""
    last_line = node.end_lineno
    assert last_line is not None  # `ast.parse` sets it
    return last_line - node.lineno + 1


def main() -> None:
    """Print the figures, each in a line."""
    files = tracked_files()
    lab = [path for path in files if path.is_relative_to(ROOT / "lab")]
    tests = [path for path in files if path.is_relative_to(ROOT / "tests")]
    product = [path for path in files if path not in lab and path not in tests]
    # The figures on functions and imports are only about the Python files of the product.
    modules = [path for path in product if path.suffix == ".py"]
    module_lines = lines(modules)

    counts = Counts()
    for path in modules:
        counts.add_module(path)

    longest_file = max(product, key=lines_of)
    figures = {
        "product lines": lines(product),
        # Counts the modules with at least one line: `sum` counts each True as 1.
        "modules": sum(lines_of(path) > 0 for path in modules),
        "functions per 1,000 lines": round(1000 * counts.functions / module_lines, 1),
        "lines of imports, %": round(100 * counts.import_lines / module_lines, 1),
        "longest file": f"{lines_of(longest_file)}  {longest_file.relative_to(ROOT)}",
        "longest function": f"{counts.longest_size}  {counts.longest_name}",
        "modules that main_train_vrt reaches": len(reachable("main_train_vrt")),
        "functions that take opt": counts.with_opt,
        "files in scripts/": sum(path.parent == ROOT / "scripts" for path in files),
        "lab lines": lines(lab),
        "tests lines": lines(tests),
        "README lines": lines_of(ROOT / "README.md"),
    }
    for name, figure in figures.items():
        print(f"{name:36} {figure}")  # 36 characters for each name, so the figures are aligned


if __name__ == "__main__":
    main()
