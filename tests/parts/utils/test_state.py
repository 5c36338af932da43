"""What outlives a function call: every global that the program changes, with its reason.

The tables below name all of these globals: state of the process, registries and caches. The test
reads the source of all modules, and finds the names that functions change. These names must be the
names in the tables. So a new global or a new cache must be named here, with a reason.

What the scan finds in the source:

    RUN = Run()                     an object that holds state (`HOLDERS`), made by a module
    @cache, @lru_cache              a function that keeps its results
    global name                     a name of the module that a function assigns
    os.environ["A"] = "1"           a change of something outside of the function: an assignment, a
    FILES.append(file)              method that changes a container (`CHANGES`), or `with` on a lock
    with LOCK:

The scan does not see that a call changes the state of a library, e.g. a call of torch.manual_seed.
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
# Classes whose objects hold state. The scan lists each object of these classes that a module makes,
# even if no function of this module changes the object.
HOLDERS = ("Registry", "DatasetRegistry", "Run", "Lock", "Event")

# ---- The tables --------------------------------------------------------------------------------

REGISTRIES = (  # they are filled once, on import, before any option is read
    "data.augment.CAMERAS",
    "data.cameras.representation_section.REPRESENTATIONS",
    "data.cameras.spike_source.SPIKE_SOURCES",
    "data.clips.io_backend.IO_BACKENDS",
    "data.select_dataset.DATASETS",
    "data.spike.registry.REPRESENTATIONS",
    "models.fusion.base.FUSIONS",
    "models.losses.LOSSES",
    "models.metrics.COLUMNS",
    "models.metrics.METRICS",
    "models.optim.OPTIMIZERS",
    "models.schedules.SCHEDULES",
    "models.select_network.NETWORKS",
    "utils.run.writers.WRITERS",
)
CACHES = (  # they keep index tensors of a few sizes, the same in each forward pass
    "models.vrt.deform_conv._tap_positions",
    "models.vrt.flow_warp.pixel_grid",
    "models.vrt.attention.kernels.regions.mask_table",
    "models.vrt.positions.relative_position_index",
    "models.vrt.windows.window_chunks",
)
# Dotted name -> why it must outlive a function call.
STATE = {
    "utils.dist.state.RUN":
        "a process has one rank in one run; signal handlers and every collective need it",
    "utils.logger._unwritten": "a file that cannot be written is reported once, whoever writes it",
    "utils.dist.claims.CLAIMS": "a process removes all its claims when it ends, so it lists them",
    "utils.dist.process.machine": "cache: a process stays on its machine",
    "utils.device._load_packages":
        "cache: what torch knows of devices outlives a call; a package is loaded once",
    "utils.image._pages": "cache: to compile a template of a page takes long",
    "models.vrt.forms._kernels_run_on":
        "cache: whether the kernels compile on a GPU does not change, and the check is slow",
    "models.recognise._shapes_of_released":
        "cache: the published networks stay as they are, and building them takes long",
    "data.clips.lmdb_database._environments": "LMDB refuses to be opened twice in a process",
    "data.clips.lmdb_database._opening_lock":
        "for `_environments`: a check reads in several threads",
    "models.foreign_weights._lock_of_allowed_names":
        "the lock for the names that torch.load allows: torch has one list of them in a process",
    "os.environ": "CUDA, torch and W&B read their settings there; child processes inherit it",
    "sys.argv": "W&B stores the command line, so the API key is removed from it before",
    "sys.stdout": "if the shell has closed it, what is printed is dropped",
    "sys.stderr": "if the shell has closed it, what is printed is dropped",
    "sys.stdin": "W&B would ask for its API key, and wait; with an empty stdin it does not",
    "threading.excepthook": "TensorBoard's thread would print an error a second time",
    "torch._dynamo.config.recompile_limit": "torch has no other way to allow more graphs",
    "torch.distributed.launcher.api.LocalElasticAgent":
        "torch has no argument for its agent, which decides on restarts",
    "torch.distributed.elastic.multiprocessing.api.PContext.close.__defaults__":
        "the time that the launcher gives its ranks to end: torch 2.8 has no flag for it",
}  # fmt: skip
for registry in REGISTRIES:
    STATE[registry] = "a registry"
for function in CACHES:
    STATE[function] = "a cache of index tensors"


def test_the_table_of_state_is_complete_and_exact():
    found = set()
    for module, path in MODULES.items():
        tree = ast.parse(path.read_text())
        found.update(changed_names(module, tree))

    assert found == STATE.keys()


# ---- The scan ----------------------------------------------------------------------------------


def changed_names(module: str, tree: ast.Module) -> Iterator[str]:
    """Yield the dotted names of what a module holds or changes, e.g. "utils.dist.state.RUN".

    module: the dotted name of the module. tree: its source.
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


def names_changed_in(function: ast.FunctionDef, names: "Names") -> Iterator[str]:
    """Yield the dotted names of what a function changes in place, outside of itself.

    E.g. "os.environ" for `os.environ["A"] = "1"`. names: the names of its module.
    """
    local_names = local_names_of(function)
    aliases = aliases_in(function)
    for target in targets_in(function):
        words = words_of(target)  # e.g. ["os", "environ"]
        if words and words[0] in aliases:
            words = aliases[words[0]] + words[1:]
        if words and words[0] not in local_names and is_state_of_module(words, names):
            yield name_in_table(words, names)


def is_state_of_module(words: list[str], names: "Names") -> bool:
    """Return whether an expression like ["os", "environ"] begins with a name of its module.

    A package alone does not count, e.g. ["np"] of `np.append(a, b)`, because this call changes no
    package. Something in a package counts, e.g. ["os", "environ"].
    """
    is_only_a_package = len(words) == 1 and words[0] in names.packages
    return words[0] in names.dotted_names and not is_only_a_package


def name_in_table(words: list[str], names: "Names") -> str:
    """Return the name by which the table STATE lists an expression.

    If the table lists a whole object, a change of its attribute is a change of the object. E.g.
    ["RUN", "rank"] of `RUN.rank = 0` gives "utils.dist.state.RUN".
    """
    first, *attributes = words
    whole_object = names.dotted_names[first]
    if whole_object in STATE:
        return whole_object
    return ".".join([whole_object, *attributes])


def local_names_of(function: ast.FunctionDef) -> set[str]:
    """Return the variables and arguments of a function. Names declared by `global` do not count."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names - global_names(function)


def aliases_in(function: ast.FunctionDef) -> dict[str, list[str]]:
    """Return the second names (aliases) that a function gives to objects outside of itself.

    E.g. `module: Any = torch.cuda` -> {"module": ["torch", "cuda"]}. The program has such lines
    because the type checker would not allow the change without them.
    """
    found = {}
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            words = words_of(node.value)
            if words:
                found[node.target.id] = words
    return found


def targets_in(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """Yield what a function changes in place.

    statement             yields
    a.b = 1, del a.b      a.b
    a[b] = 1, del a[b]    a
    a += 1                a
    with a:               a
    a.append(1)           a, as for the other methods of CHANGES
    """
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and is_written(node):
            yield node
        elif isinstance(node, ast.Subscript) and is_written(node):
            yield node.value
        elif isinstance(node, ast.AugAssign):
            yield node.target
        elif isinstance(node, ast.With):
            yield from (item.context_expr for item in node.items)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in CHANGES:
                yield node.func.value


def is_written(node: ast.Attribute | ast.Subscript) -> bool:
    """Return whether an expression is assigned or deleted, and not only read."""
    return not isinstance(node.ctx, ast.Load)


# ---- The names of a module ---------------------------------------------------------------------


class Names(NamedTuple):
    """The names of a module, and what each of them is."""

    dotted_names: dict[str, str]  # name -> dotted name, e.g. "c" -> "a.b.c" after an import
    packages: set[str]  # the names that are packages or modules, e.g. "np" and "os"


def names_of(module: str, tree: ast.Module) -> Names:
    """Return the names of a module: what it assigns, and what it imports anywhere.

    E.g. in the module "utils.logger":

        _unwritten = set()        "_unwritten" -> "utils.logger._unwritten"
        import numpy as np        "np" -> "numpy", a package
        import os.path            "os" -> "os", a package
        from a.b import c as d    "d" -> "a.b.c"
    """
    names = Names({}, set())
    for statement in tree.body:
        for target in assigned_in(statement):
            if isinstance(target, ast.Name):
                names.dotted_names[target.id] = f"{module}.{target.id}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                add_package(names, alias)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names.dotted_names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def add_package(names: Names, alias: ast.alias) -> None:
    """Add the name that `import os.path` or `import numpy as np` makes."""
    if alias.asname:
        name = alias.asname
        dotted_name = alias.name
    else:
        # `import os.path` makes only the name "os".
        name = alias.name.split(".")[0]
        dotted_name = name
    names.dotted_names[name] = dotted_name
    names.packages.add(name)


def assigned_in(statement: ast.stmt) -> list[ast.expr]:
    """Return what a statement assigns to.

    E.g. [a, b] of `a = b = 1`, and [a] of `a: int = 1`, `a += 1` and `for a in b`.
    """
    if isinstance(statement, ast.Assign):
        return statement.targets
    if isinstance(statement, (ast.AnnAssign, ast.AugAssign, ast.For)):
        return [statement.target]
    return []


def last_name(node: ast.expr) -> str:
    """Return the last name of an expression: "b" of `a.b`, `a.b(1)` and `b`."""
    called = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(called).split(".")[-1]


def words_of(node: ast.expr) -> list[str]:
    """Return the words of an expression: ["a", "b"] of `a.b` and of `a.b[c]`.

    Returns [] if the expression does not begin with a name, e.g. `f().b`.
    """
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Subscript):
        return words_of(node.value)
    if isinstance(node, ast.Attribute):
        before = words_of(node.value)
        return [*before, node.attr] if before else []
    return []
