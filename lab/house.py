#!/usr/bin/env python3
"""The size of the house: prints the figures that a change should not raise, by what git tracks.

python lab/house.py
"""

import ast
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.tools import ROOT
from tests.helpers.imports import imports_of, modules_below

FOLDERS = {"utils", "data", "models", "scripts"}


def lines(*paths: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def reachable(start: str) -> set[str]:
    """The modules that a program imports, directly or not."""
    modules = modules_below(ROOT, FOLDERS)
    graph = {
        name: imports_of(path, ROOT, modules) & modules.keys() for name, path in modules.items()
    }
    found, todo = set(), [start]
    while todo:
        name = todo.pop()
        if name not in found and modules[name].stat().st_size:
            found.add(name)
        todo += graph.pop(name, ())
    return found


def main() -> None:
    command = [
        "git",
        "-C",
        ROOT,
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "*.py",
        "*.sh",
    ]
    names = dict.fromkeys(subprocess.check_output(command, text=True).splitlines())
    files = [path for name in names if (path := ROOT / name).is_file()]
    lab, tests = (
        [path for path in files if path.is_relative_to(ROOT / name)] for name in ("lab", "tests")
    )
    product = [path for path in files if path not in lab and path not in tests]
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in product
        if path.suffix == ".py"
    }
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    sizes = {
        (path, n): (n.end_lineno or n.lineno) - n.lineno + 1
        for path, n in nodes
        if isinstance(n, ast.stmt)
    }
    functions = [
        (path, n) for path, n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    imports = sum(sizes[path, n] for path, n in nodes if isinstance(n, ast.Import | ast.ImportFrom))
    file, function = max(product, key=lines), max(functions, key=lambda each: sizes[each])
    home, definition = function
    figures = {
        "product lines": lines(*product),
        "modules": sum(lines(path) > 0 for path in trees),
        "functions per 1,000 lines": round(1000 * len(functions) / lines(*trees), 1),
        "lines of imports, %": round(100 * imports / lines(*trees), 1),
        "longest file": f"{lines(file)}  {file.relative_to(ROOT)}",
        "longest function": f"{sizes[function]}  {home.relative_to(ROOT)}: {definition.name}",
        "modules that main_train_vrt reaches": len(reachable("main_train_vrt")),
        "functions that take opt": sum(
            any(a.arg == "opt" for a in n.args.args) for _, n in functions
        ),
        "files in scripts/": sum(path.parent == ROOT / "scripts" for path in files),
        "lab lines": lines(*lab),
        "tests lines": lines(*tests),
        "README lines": lines(ROOT / "README.md"),
    }
    print("\n".join(f"{name:36} {figure}" for name, figure in figures.items()))


if __name__ == "__main__":
    main()
