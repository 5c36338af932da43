"""Imports only run down, between folders and within them. data/spike/ needs only numpy.

"Down" means: a module imports only modules of lower layers, and of its own layer. So a lower layer
can be understood without the higher layers. `MAY_IMPORT` and `LAYERS` say which layer is lower.

The tests read the source of all modules (tests/helpers/imports.py), and import nothing. The program
import-linter is not used, because it reads no module outside of a package, and finds circles only
within one folder.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.imports import circle, imports_of, modules_below

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = {"utils", "data", "models", "scripts"}
# Dotted name of a module -> its file, e.g. "utils.run.folder": ROOT / "utils/run/folder.py".
MODULES = modules_below(ROOT, FOLDERS)
# Everything that belongs to the project.
OWN = FOLDERS | {"tests", "lab", "main_train_vrt", "main_test_vrt", "app"}
# What programs that users run may import.
PRODUCT = OWN - {"tests", "lab", "app"}
# Folder or program -> what it may import. lab/ and tests/ may import everything.
MAY_IMPORT = {
    "utils": {"utils"},
    "data": {"data", "utils"},
    "models": {"models", "utils"},
    "scripts": PRODUCT,
    "main_train_vrt": PRODUCT,
    "main_test_vrt": PRODUCT,
    "app": PRODUCT,
}
# The layers of each folder, the lowest first. A module may import its own layer and lower layers.
# Its layer is the longest of these names with which its name begins: utils.run.folder begins with
# "utils" and "utils.run", so its layer is "utils.run".
LAYERS = [
    [{"utils"}, {"utils.options"}, {"utils.dist", "utils.utils_dist"}, {"utils.run"}],
    [{"models.vrt", "models.fusion"}, {"models"}, {"models.restore"}],
    [{"data.spike"}, {"data"}],
]


def heights() -> dict[str, int]:
    """Return the height of each name in LAYERS, 0 for the lowest layer of its folder.

    E.g. {"utils": 0, "utils.options": 1, "utils.dist": 2, "utils.utils_dist": 2, ...}.
    """
    height_of = {}
    for layers_of_folder in LAYERS:
        for height, names in enumerate(layers_of_folder):
            height_of |= dict.fromkeys(names, height)
    return height_of


HEIGHT = heights()


class Import(NamedTuple):
    """The dotted names of a module and of a module that it imports."""

    module: str
    imported: str

    def __str__(self) -> str:
        return f"{self.module} imports {self.imported}"


@cache
def graph() -> dict[str, set[str]]:
    """Return what each module imports: name of a module -> names.

    This takes a second, so it is done in the first test that needs it, and not when the tests are
    collected.
    """
    return {name: imports_of(path, ROOT, MODULES) for name, path in MODULES.items()}


def all_imports() -> Iterator[Import]:
    """Yield each import in the project."""
    for module, names in graph().items():
        for imported in names:
            yield Import(module, imported)


def folder_of(module: str) -> str:
    """Return the folder or program of a module, e.g. "utils" of "utils.run.folder"."""
    return module.split(".")[0]


# ---- Layers ----
#
# Between folders: OWN has all folders and programs, and MAY_IMPORT[folder] has the folders and
# programs that the folder may import. Within a folder: HEIGHT of a layer may not be below HEIGHT of
# a layer that it imports.


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_imports_between_folders_run_down_only(folder):
    forbidden = OWN - MAY_IMPORT[folder]

    wrong = []
    for found in all_imports():
        if folder_of(found.module) == folder and folder_of(found.imported) in forbidden:
            wrong.append(str(found))
    assert not wrong


def layer_of(module: str) -> str:
    """Return the layer of a module, a name in LAYERS.

    E.g. "utils.run.folder" is in the layer "utils.run", and "utils.image" in the layer "utils". So
    each module of a folder with layers has a layer. Returns "" for a module of a folder without
    layers, e.g. of `scripts`.
    """
    # Compare names with a point at the end, so that "utils.runner." does not begin with
    # "utils.run.".
    names = [name for name in HEIGHT if f"{module}.".startswith(f"{name}.")]
    return max(names, key=len, default="")


def test_imports_within_a_folder_run_down_only():
    wrong = []
    for found in all_imports():
        is_within_folder = folder_of(found.module) == folder_of(found.imported)
        is_of_project = found.imported in MODULES
        if not (is_within_folder and is_of_project):
            continue
        # A module needs the packages around it. E.g. Python runs the __init__.py of `utils` before
        # utils.run.folder. So an import of a package around the module does not count.
        if found.module.startswith(f"{found.imported}."):
            continue
        layer = layer_of(found.module)
        if not layer:  # a folder without layers
            continue
        # Both modules are in one folder, so the imported module has a layer, too.
        if HEIGHT[layer] < HEIGHT[layer_of(found.imported)]:
            wrong.append(str(found))
    assert not wrong


# ---- The spike library ----


def test_the_spike_library_needs_only_numpy():
    allowed = {"numpy", *sys.stdlib_module_names}

    wrong = []
    for found in all_imports():
        # The library may import itself, and the package `data`. Python imports `data` first,
        # because the library is in it.
        is_own = found.imported == "data" or found.imported.startswith("data.spike")
        is_in_library = found.module.startswith("data.spike.")
        if is_in_library and not is_own and folder_of(found.imported) not in allowed:
            wrong.append(str(found))
    assert not wrong


def test_the_spike_library_works_as_a_copied_folder(tmp_path):
    shutil.copytree(ROOT / "data/spike", tmp_path / "copied")
    modules = [f"copied.{path.stem}" for path in (tmp_path / "copied").glob("*.py")]

    # The exit code is 1 if a module has imported `data` of the project: sys.exit(True) exits with
    # code 1, and sys.exit(False) with code 0.
    lines = [
        "import sys",
        f"sys.path.append({str(tmp_path)!r})",
        f"import {', '.join(modules)}",
        "sys.exit('data' in sys.modules)",
    ]
    code = "\n".join(lines)
    # -I: neither this folder nor PYTHONPATH is searched.
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


# ---- Circles ----


def test_modules_do_not_import_in_circles():
    others_of_module = {}
    for name, imported in graph().items():
        of_project = imported & MODULES.keys()
        others_of_module[name] = of_project - {name}

    assert circle(others_of_module) == []


@pytest.fixture
def package(tmp_path) -> Path:
    """Give a folder with a package `box`, in which box.inner.last imports box.first.

    box/first.py is missing: the test writes it.
    """
    (tmp_path / "box/inner").mkdir(parents=True)
    for name in ("box/__init__", "box/inner/__init__", "box/inner/other"):
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "box/inner/last.py").write_text("import os\n\nfrom box import first")
    return tmp_path


# All forms of an import of box.inner.last in box.first that `imports_of` must see. Python could not
# run one of them, "from ..box.inner": its second dot means the package around `box`, and there is
# none. `imports_of` only reads the statement, and takes the second dot as the folder around `box`.
@pytest.mark.parametrize(
    "statement",
    [
        "import box.inner.last",
        "from box.inner import last",
        "from box.inner.last import value",
        "from .inner import last",
        "from .inner.last import value",
        "from ..box.inner import other, last",
        pytest.param("def f():\n    from box.inner import last", id="within a function"),
        pytest.param(
            "if TYPE_CHECKING:\n    import box.inner.last as short", id="for type checkers only"
        ),
    ],
)
def test_every_form_of_import_closes_a_circle(package, statement):
    first = package / "box/first.py"
    first.write_text(statement)
    modules = modules_below(package, {"box"})

    imported_by = {}
    for name, path in modules.items():
        of_package = imports_of(path, package, modules) & modules.keys()
        imported_by[name] = of_package - {name}

    assert circle(imported_by) == ["box.first", "box.inner.last", "box.first"]
