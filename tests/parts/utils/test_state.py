"""What outlives a function call: every global that the program changes, with its reason.

The tables below name all of them: state of the process, registries and caches. The test reads the
source of all modules and finds the names that functions change. Both must be equal. So whoever adds
a global or a cache must name it here, with a reason.

The scan sees assignments, `with` on a lock, methods that change a container, and decorators. It
does not see the state of libraries that is set by a call, such as torch.manual_seed.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.helpers.imports import modules_below

ROOT = Path(__file__).resolve().parents[3]
# Dotted name of a module -> its file.
MODULES = modules_below(ROOT, {"utils", "data", "models", "scripts"})
# Methods that change a container in place.
CHANGES = (
    "add",
    "append",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "setdefault",
    "update",
)
# Classes whose objects are state wherever a module makes one.
HOLDERS = ("Registry", "Run", "Lock", "Event")

REGISTRIES = (  # filled once, on import, before any option is read
    "data.augment.CAMERAS", "data.clips.io_backend.IO_BACKENDS", "data.select_dataset.DATASETS",
    "data.spike.represent.REPRESENTATIONS", "data.cameras.spike_source.REPRESENTATIONS",
    "data.cameras.spike_source.SPIKE_SOURCES", "models.fusion.operators.FUSIONS",
    "models.losses.LOSSES", "models.metrics.COLUMNS", "models.metrics.METRICS",
    "models.optim.OPTIMIZERS", "models.schedules.SCHEDULES", "models.select_network.NETWORKS",
    "utils.run.writers.WRITERS",
)  # fmt: skip
CACHES = (  # index tensors of a few sizes; the same in each forward pass
    "models.vrt.deform_align._tap_positions", "models.vrt.flow.pixel_grid",
    "models.vrt.windows.relative_position_index", "models.vrt.windows.window_chunks",
    "models.vrt.triton_attention.mask_table",
)  # fmt: skip
STATE = {
    "utils.dist.state.RUN":
        "a process has one rank in one run; signal handlers and every collective need it",
    "utils.logger._unwritten": "a file that cannot be written is reported once, whoever writes it",
    "utils.dist.process.CLAIMS": "a process removes its own claims when it ends, whoever made them",
    "utils.dist.process.machine": "cache: a process stays on its machine",
    "utils.device._load_packages":
        "cache: what torch knows of devices outlives a call; a package is loaded once",
    "models.vrt.forms._kernels_run_on":
        "cache: a GPU that compiles the kernels once goes on doing so",
    "data.clips.files._environments": "LMDB refuses to be opened twice in a process",
    "data.clips.files._opening": "the lock for it: a check reads in several threads",
    "models.foreign_weights._taking_scalars":
        "the lock for the list of names that torch has for a process",
    "os.environ": "CUDA, torch and W&B read their settings there; child processes inherit it",
    "sys.argv": "W&B notes the command line: the key is struck out first",
    "sys.stdout": "where the shell has closed it, what is printed is dropped",
    "sys.stderr": "likewise",
    "sys.stdin": "W&B would wait on a terminal for a key: it sees an empty one",
    "threading.excepthook": "TensorBoard's thread would print an error a second time",
    "torch._dynamo.config.recompile_limit": "torch has no other way to allow more graphs",
    "torch.distributed.launcher.api.LocalElasticAgent":
        "torch has no argument for its agent, which decides on restarts",
    "torch.distributed.elastic.multiprocessing.api.PContext.close.__defaults__":
        "torch 2.8 has no --shutdown-timeout",
}  # fmt: skip
STATE |= dict.fromkeys(REGISTRIES + CACHES, "see above")


class Names(NamedTuple):
    """The names of a module."""

    dotted_names: dict[str, str]  # name -> dotted name
    packages: set[str]  # names that are imported packages


def test_the_table_of_state_is_complete_and_exact():
    found = {
        name
        for module, path in MODULES.items()
        for name in changed_names(module, ast.parse(path.read_text()))
    }

    assert found == STATE.keys()


def changed_names(module: str, tree: ast.Module) -> Iterator[str]:
    """Yield the dotted names of what a module holds or changes, e.g. "utils.dist.state.RUN".

    These are its objects of HOLDERS, its functions with a cache, and what its functions change
    outside of themselves.
    """
    for name in held_names(tree):
        yield f"{module}.{name}"
    names = names_of(module, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            if has_cache(node):
                yield f"{module}.{node.name}"
            for name in global_names(node):
                yield f"{module}.{name}"
            yield from names_changed_in(node, names)


def held_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of objects of HOLDERS that a module makes, e.g. "RUN" for `RUN = Run()`."""
    for node in tree.body:
        makes_object = isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if makes_object and last_name(node.value) in HOLDERS:
            [target] = node.targets
            yield last_name(target)


def has_cache(function: ast.FunctionDef) -> bool:
    """Return whether a function keeps its results: `@cache` or `@lru_cache`."""
    names = [last_name(decorator) for decorator in function.decorator_list]
    return "cache" in names or "lru_cache" in names


def global_names(function: ast.FunctionDef) -> set[str]:
    """Return the names that a function declares by `global`."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            names.update(node.names)
    return names


def own_names(function: ast.FunctionDef) -> set[str]:
    """Return the variables and arguments of a function. Names declared by `global` do not count."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names - global_names(function)


def names_changed_in(function: ast.FunctionDef, names: Names) -> Iterator[str]:
    """Yield the dotted names of what a function changes in place, outside of itself.

    E.g. "os.environ" for `os.environ["A"] = "1"`. names: the names of its module.
    """
    own = own_names(function)
    others = other_names_in(function)
    for target in targets_in(function):
        path = dotted(target)  # e.g. ["os", "environ"]
        if not path:
            continue
        # A second name of the function for something, e.g. `module: Any = torch.cuda`.
        if path[0] in others:
            path = others[path[0]] + path[1:]
        first = path[0]
        is_of_module = first in names.dotted_names and first not in own
        # An imported package counts only with a name in it, e.g. `os.environ`.
        is_bare_package = first in names.packages and len(path) == 1
        if is_of_module and not is_bare_package:
            whole = names.dotted_names[first]
            # The table has some objects as a whole, and not by their attributes.
            yield whole if whole in STATE else ".".join([whole, *path[1:]])


def other_names_in(function: ast.FunctionDef) -> dict[str, list[str]]:
    """Return what names in a function stand for: name -> ["a", "b"] of each `name: Any = a.b`."""
    found = {}
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            value = dotted(node.value) if node.value is not None else None
            if value:
                found[node.target.id] = value
    return found


def names_of(module: str, tree: ast.Module) -> Names:
    """Return the names of a module.

    E.g. `import numpy as np` -> "np": "numpy", which is a package, and `from a.b import c` ->
    "c": "a.b.c", which is none.
    """
    names = {}
    packages = set()
    for node in tree.body:
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Name):
                names[target.id] = f"{module}.{target.id}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = {alias.asname or alias.name.split(".")[0]: alias for alias in node.names}
            packages |= found.keys()
            names |= {name: alias.name if alias.asname else name for name, alias in found.items()}
        elif isinstance(node, ast.ImportFrom):
            names |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    return Names(names, packages)


def targets_in(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """Yield what a function changes in place.

    E.g. `a` in `a[b] = 1`, `del a[b]`, `a.append(1)`, `a += 1` and `with a`, and `a.b` in
    `a.b = 1`.
    """
    for node in ast.walk(function):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            yield node if isinstance(node, ast.Attribute) else node.value
        elif isinstance(node, ast.AugAssign):
            yield node.target
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in CHANGES
        ):
            yield node.func.value
        elif isinstance(node, ast.With):
            yield from (item.context_expr for item in node.items)


def last_name(node: ast.expr) -> str:
    """Return the last name of an expression: "b" of `a.b`, `a.b(1)` and `b`."""
    return ast.unparse(node.func if isinstance(node, ast.Call) else node).split(".")[-1]


def dotted(node: ast.expr) -> list[str]:
    """Return the names of an expression: ["a", "b"] of `a.b` and of `a.b[c]`.

    Return [] if the expression does not begin with a name, e.g. `f().b`.
    """
    if isinstance(node, ast.Name):
        return [node.id]
    before = dotted(node.value) if isinstance(node, (ast.Attribute, ast.Subscript)) else []
    return [*before, node.attr] if before and isinstance(node, ast.Attribute) else before
