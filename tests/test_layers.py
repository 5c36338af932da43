"""Three floors: imports run down only. data/ and models/ meet in the batch alone; data/spike/ is a library on numpy."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OWN = {"data", "models", "utils", "scripts", "tests", "main_train_vrt", "main_test_vrt"}
MAY_IMPORT = {"utils": {"utils"}, "data": {"data", "utils"}, "models": {"models", "utils"}}
SPIKE_LIBRARY = {"numpy", "data"}


def imports_of(path: Path) -> set[str]:
    """Absolute dotted names of all that the file imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(path.relative_to(ROOT).parent.parts[: None if node.level < 2 else 1 - node.level])
            names.add(".".join(filter(None, [package if node.level else "", node.module or ""])))
    return names


@pytest.mark.parametrize("floor", sorted(MAY_IMPORT))
def test_imports_run_down_only(floor):
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / floor).rglob("*.py")
        for name in imports_of(path)
        if name.split(".")[0] in OWN - MAY_IMPORT[floor]
    }
    assert not wrong


def test_the_spike_library_needs_numpy_alone():
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "data/spike").rglob("*.py")
        for name in imports_of(path)
        if name.split(".")[0] not in SPIKE_LIBRARY | set(sys.stdlib_module_names)
        or (name.split(".")[0] == "data" and not name.startswith("data.spike"))
    }
    assert not wrong


def test_modules_do_not_import_in_circles():
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for floor in MAY_IMPORT
        for path in (ROOT / floor).rglob("*.py")
    }
    graph = {name: imports_of(path) & modules.keys() - {name} for name, path in modules.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail, name])
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())
