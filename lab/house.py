#!/usr/bin/env python3
"""Print the size of this repository: figures that a change should not raise.

    python lab/house.py

The files that git tracks count, and new files that git does not ignore. The product is everything
outside of lab/ and tests/.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.tools import ROOT
from tests.helpers.imports import imports_of, modules_below

# Folders whose modules a program may import.
FOLDERS = {"utils", "data", "models", "scripts"}


def lines(paths: Iterable[Path]) -> int:
    """Return the number of lines of some files together."""
    return sum(path.read_bytes().count(b"\n") for path in paths)


def lines_of(path: Path) -> int:
    """Return the number of lines of one file."""
    return lines([path])


def reachable(start: str) -> set[str]:
    """Return the modules that a program imports, directly or through other modules.

    An empty module, such as most __init__.py, does not count.

    start: name of the program's module
    """
    modules = modules_below(ROOT, FOLDERS)  # name -> path
    reached = set()
    waiting = [start]  # names of modules whose imports have not been followed yet
    visited = set()
    while waiting:
        name = waiting.pop()
        if name in visited:
            continue
        visited.add(name)
        is_empty = modules[name].stat().st_size == 0
        if not is_empty:
            reached.add(name)
        imported = imports_of(modules[name], ROOT, modules)
        waiting += imported & modules.keys()  # without modules of other packages
    return reached


def tracked_files() -> list[Path]:
    """Return the Python files and shell scripts that git tracks or would add."""
    command = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"]
    output = subprocess.check_output([*command, "*.py", "*.sh"], text=True)
    names = dict.fromkeys(output.splitlines())  # a file in a conflict is listed several times
    paths = [ROOT / name for name in names]
    return [path for path in paths if path.is_file()]  # a deleted file may still be tracked


def main() -> None:
    """Print the figures, one a line."""
    files = tracked_files()
    lab = [path for path in files if path.is_relative_to(ROOT / "lab")]
    tests = [path for path in files if path.is_relative_to(ROOT / "tests")]
    product = [path for path in files if path not in lab and path not in tests]
    modules = [path for path in product if path.suffix == ".py"]
    product_lines = lines(product)
    module_lines = lines(modules)

    # Walk through the syntax trees of the product once.
    functions = 0
    with_opt = 0  # functions that take a parameter `opt`, the options of the whole run
    import_lines = 0
    longest_size = 0
    longest_name = ""
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.stmt):
                continue
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if isinstance(node, ast.Import | ast.ImportFrom):
                import_lines += size
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            functions += 1
            if any(argument.arg == "opt" for argument in node.args.args):
                with_opt += 1
            if size > longest_size:
                longest_size = size
                longest_name = f"{path.relative_to(ROOT)}: {node.name}"

    longest_file = max(product, key=lines_of)
    figures = {
        "product lines": product_lines,
        "modules": sum(lines_of(path) > 0 for path in modules),
        "functions per 1,000 lines": round(1000 * functions / module_lines, 1),
        "lines of imports, %": round(100 * import_lines / module_lines, 1),
        "longest file": f"{lines_of(longest_file)}  {longest_file.relative_to(ROOT)}",
        "longest function": f"{longest_size}  {longest_name}",
        "modules that main_train_vrt reaches": len(reachable("main_train_vrt")),
        "functions that take opt": with_opt,
        "files in scripts/": sum(path.parent == ROOT / "scripts" for path in files),
        "lab lines": lines(lab),
        "tests lines": lines(tests),
        "README lines": lines_of(ROOT / "README.md"),
    }
    for name, figure in figures.items():
        print(f"{name:36} {figure}")


if __name__ == "__main__":
    main()
