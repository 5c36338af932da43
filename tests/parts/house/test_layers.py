"""Imports run down only, between folders and within them. data/spike/ is a library on numpy.

The tests read the source of all modules (tests/helpers/imports.py), and import nothing. The program
import-linter is not used, because it takes no module outside of a package, and looks for circles
within one folder only.
"""

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.imports import circle, imports_of, modules_below

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = {"utils", "data", "models", "scripts"}
# Dotted name of a module -> its file.
MODULES = modules_below(ROOT, FOLDERS)
# Everything that belongs to the project, and the part of it that users run.
OWN = FOLDERS | {"tests", "lab", "main_train_vrt", "main_test_vrt", "app"}
PRODUCT = OWN - {"tests", "lab", "app"}
# Folder or program -> what it may import.
MAY_IMPORT = {"utils": {"utils"}, "data": {"data", "utils"}, "models": {"models", "utils"}}
# lab/ and tests/ may import everything.
MAY_IMPORT |= dict.fromkeys(("scripts", "main_train_vrt", "main_test_vrt", "app"), PRODUCT)
# The layers of each folder, the lowest first. A module may import its own layer and lower ones. It
# belongs to the longest of these names with which it begins, e.g. utils.run.folder to "utils.run".
LAYERS = [
    [{"utils"}, {"utils.options"}, {"utils.dist", "utils.utils_dist"}, {"utils.run"}],
    [{"models.vrt", "models.fusion"}, {"models"}, {"models.restore"}],
    [{"data.spike"}, {"data"}],
]
HEIGHT = {
    name: height for folder in LAYERS for height, names in enumerate(folder) for name in names
}


@cache
def graph():
    """Return what each module imports: name of a module -> names.

    This takes a second, so it is done when a test asks, and not when the tests are collected.
    """
    return {name: imports_of(path, ROOT, MODULES) for name, path in MODULES.items()}


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_imports_between_folders_run_down_only(folder):
    wrong = {
        f"{module} imports {name}"
        for module, names in graph().items()
        for name in names
        if module.split(".")[0] == folder and name.split(".")[0] in OWN - MAY_IMPORT[folder]
    }

    assert not wrong


def layer_of(module: str) -> str:
    """Return the layer of a module, a name in LAYERS, or "" if it has none."""
    return max(
        (name for name in HEIGHT if f"{module}.".startswith(f"{name}.")), key=len, default=""
    )


def test_imports_within_a_folder_run_down_only():
    wrong = {
        f"{module} imports {name}"
        for module, names in graph().items()
        for name in names & MODULES.keys()
        if module.split(".")[0] == name.split(".")[0] and (layer := layer_of(module))
        # Every module runs the __init__.py of the packages around it.
        if not module.startswith(f"{name}.") and HEIGHT[layer] < HEIGHT[layer_of(name)]
    }

    assert not wrong


def test_the_spike_library_needs_numpy_alone_and_works_as_a_copied_folder(tmp_path):
    wrong = {
        f"{module} imports {name}"
        for module, names in graph().items()
        for name in names
        if module.startswith("data.spike.")
        if name.split(".")[0] not in {"numpy", *sys.stdlib_module_names}
        and not f"{name}.spike".startswith("data.spike")
    }
    assert not wrong
    shutil.copytree(ROOT / "data/spike", tmp_path / "copied")
    modules = [f"copied.{path.stem}" for path in (tmp_path / "copied").glob("*.py")]
    # -I: neither this folder nor PYTHONPATH is searched.
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import {', '.join(modules)}; "
    code += "sys.exit('data' in sys.modules)"
    subprocess.run([sys.executable, "-I", "-c", code], check=True)


def test_modules_do_not_import_in_circles():
    assert circle({name: names & MODULES.keys() - {name} for name, names in graph().items()}) == []


def test_every_form_of_import_is_an_edge_and_closes_a_circle(tmp_path):
    (tmp_path / "box/inner").mkdir(parents=True)
    for name in ("box/__init__", "box/inner/__init__", "box/inner/other"):
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "box/inner/last.py").write_text("import os\n\nfrom box import first")
    modules = modules_below(tmp_path, {"box"}) | {"box.first": tmp_path / "box/first.py"}
    for statement in (
        "import box.inner.last", "from box.inner import last", "from box.inner.last import value",
        "from .inner import last", "from .inner.last import value",
        "from ..box.inner import other, last", "def f():\n    from box.inner import last",
        "if TYPE_CHECKING:\n    import box.inner.last as short",
    ):  # fmt: skip
        modules["box.first"].write_text(statement)
        edges = {
            name: imports_of(path, tmp_path, modules) & modules.keys() - {name}
            for name, path in modules.items()
        }
        assert circle(edges) == ["box.first", "box.inner.last", "box.first"], statement
