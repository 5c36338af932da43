#!/usr/bin/env python3
"""The size of the house: prints the figures that a change should not raise, by what git tracks.

python lab/house.py
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.tools import ROOT
from tests.imports import imports_of, modules_below

FOLDERS = {"utils", "data", "models", "scripts"}


def tracked(*kinds: str) -> list[Path]:
    """Files of the working tree, new ones too."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *kinds]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in dict.fromkeys(names) if (ROOT / name).is_file()]


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def below(path: Path, *names: str) -> bool:
    return path.relative_to(ROOT).parts[0] in names


def reachable(start: str) -> set[str]:
    """The modules that a program imports, directly or not."""
    modules = modules_below(ROOT, FOLDERS)
    graph = {name: imports_of(path, ROOT, modules) & modules.keys() for name, path in modules.items()}
    found, todo = set(), [start]
    while todo:
        name = todo.pop()
        if name not in found and modules[name].stat().st_size:
            found.add(name)
        todo += graph.pop(name, ())
    return found


def main() -> None:
    files = tracked("*.py", "*.sh")
    product = [path for path in files if not below(path, "tests", "lab")]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in product if path.suffix == ".py"}
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    functions = [(path, n) for path, n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    imports = sum(n.end_lineno - n.lineno + 1 for _, n in nodes if isinstance(n, ast.Import | ast.ImportFrom))
    code = sum(map(lines, trees))
    longest, (where, function) = max(product, key=lines), max(functions, key=lambda f: f[1].end_lineno - f[1].lineno)
    with_opt = [n for _, n in functions if any(a.arg == "opt" for a in (*n.args.args, *n.args.kwonlyargs))]
    print(f"product lines             {sum(map(lines, product))}")
    print(f"modules                   {sum(lines(path) > 0 for path in trees)}")
    print(f"functions per 1,000 lines {1000 * len(functions) / code:.1f}")
    print(f"lines of imports          {100 * imports / code:.1f} %")
    print(f"longest file              {lines(longest)}  {longest.relative_to(ROOT)}")
    length = function.end_lineno - function.lineno + 1
    print(f"longest function          {length}  {where.relative_to(ROOT)}: {function.name}")
    print(f"main_train_vrt.py reaches {len(reachable('main_train_vrt'))} modules")
    print(f"functions that take opt   {len(with_opt)}")
    for folder in ("lab", "tests"):
        print(f"{folder:5} lines               {sum(lines(path) for path in files if below(path, folder))}")
    print(f"scripts                   {len([path for path in files if path.parent == ROOT / 'scripts'])} programs")
    print(f"README lines              {lines(ROOT / 'README.md')}")


if __name__ == "__main__":
    main()
