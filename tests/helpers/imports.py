"""Who imports whom: the edges between the modules below a folder, read from the source."""

import ast
from pathlib import Path


def modules_below(root: Path, folders: set[str]) -> dict[str, Path]:
    """{dotted name: file} of the modules in `root` itself and in these folders of it; a package is
    its __init__.py.
    """
    files = [
        *root.glob("*.py"),
        *(path for folder in folders for path in (root / folder).rglob("*.py")),
    ]
    return {module_name(path, root): path for path in files}


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, root: Path, modules: dict[str, Path]) -> set[str]:
    """Absolute dotted names of all that a file imports, in every form, also in functions and under
    TYPE_CHECKING.

    ``from a import b`` gives a.b where `modules` has it, else a. ``import a.b`` also runs a, and
    gives both.
    """
    names: set[str] = set()
    package = list(path.relative_to(root).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*start, *filter(None, [node.module])])
            found = {f"{base}.{alias.name}" for alias in node.names} & modules.keys()
            names |= found
            if len(found) < len(node.names):
                names.add(base)
    parents = {name.rsplit(".", k)[0] for name in names for k in range(1, name.count(".") + 1)}
    return names | (parents & modules.keys())


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, the first one again at the end; empty where there is none."""
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if found := visit(other, [*trail, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := visit(name, []))), [])
