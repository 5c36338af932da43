"""Which module imports which: the imports of the modules below a folder, read from the source.

Two programs use these functions: the tests of the order of the layers, and lab/house.py, which
measures the size of the project. A module is named by its dotted name, e.g. `data.spike.formats`.
The module of a package is its __init__.py. In all functions, `root` is the folder from which the
dotted names begin.

What must stay: every form of import is found. If the functions here miss a form of import,
test_every_form_of_import_closes_a_circle fails.
"""

import ast
from pathlib import Path


def modules_below(root: Path, folders: set[str]) -> dict[str, Path]:
    """Return dotted name -> file, for the modules in `root` itself and in these folders of it."""
    files = list(root.glob("*.py"))
    for folder in folders:
        files += (root / folder).rglob("*.py")
    return {module_name(path, root): path for path in files}


def module_name(path: Path, root: Path) -> str:
    """Return the dotted name of a file, e.g. `utils/run/run.py` -> `utils.run.run`."""
    parts = path.relative_to(root).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


def imports_of(path: Path, root: Path, modules: dict[str, Path]) -> set[str]:
    """Return the absolute dotted names of all that a file imports, also within functions.

        import a.b         a and a.b, because Python also runs a
        from a import b    a and a.b if b is a module, otherwise a

    A name of another library is in the result, too, e.g. torch.

    modules: the modules of the project, as `modules_below` returns them.
    """
    package = list(path.relative_to(root).parent.parts)
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= _names_of_import_from(node, package, modules)

    # Add the packages that Python also runs for such an import: a and a.b for a.b.c.
    for name in list(names):
        for parent in _parents(name):
            if parent in modules:
                names.add(parent)
    return names


def _names_of_import_from(
    node: ast.ImportFrom, package: list[str], modules: dict[str, Path]
) -> set[str]:
    """Return the names that a statement `from ... import ...` imports.

    package: the parts of the package in which the statement stands, e.g. [a, b] for a.b.
    modules: the modules of the project.
    """
    base = []
    if node.level:
        # One dot is the package itself, and each additional dot goes up by one package. E.g. in the
        # package a.b, "from .c" (level 1) keeps [a, b], and "from ..c" (level 2) keeps [a].
        base = package[: len(package) + 1 - node.level]
    if node.module:
        base = [*base, node.module]
    base_name = ".".join(base)

    names = set()
    for alias in node.names:
        full_name = f"{base_name}.{alias.name}"
        # The imported name is a module, or a function or class of the module `base_name`.
        names.add(full_name if full_name in modules else base_name)
    return names


def _parents(name: str) -> list[str]:
    """Return the packages of a dotted name: a.b.c -> [a, a.b]."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of one circle of imports, e.g. [a, b, a], or [] if there is no circle.

    graph: module -> modules that it imports.
    """
    without_circle: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str]:
        """Follow the imports of a module. Returns a circle that it leads to, or [].

        trail: the modules that led to it.
        """
        if name in trail:
            # E.g. a imports b, b imports c, and c imports b: the circle is [b, c, b].
            return [*trail[trail.index(name) :], name]
        if name in without_circle:
            return []
        for imported in sorted(graph[name]):
            found = visit(imported, [*trail, name])
            if found:
                return found
        without_circle.add(name)
        return []

    for name in sorted(graph):
        found = visit(name, [])
        if found:
            return found
    return []
