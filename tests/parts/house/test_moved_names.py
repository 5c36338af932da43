"""Names that moved to another module are still found where version 0.9.0 had them."""

import importlib
import subprocess
import sys

import pytest

from tests.dist.launching import ROOT

# Old module, name, new module.
MOVED = [
    ("data.clip_dataset", "Crops", "data.clip_options"),
    ("data.clip_dataset", "FileReading", "data.clip_options"),
    ("data.clip_dataset", "Spikes", "data.clip_options"),
    ("data.spike.represent", "exposure_estimate", "data.spike.ratios"),
    ("data.spike.simulate", "to_display", "data.spike.pictures"),
    ("data.spike.simulate", "to_grey", "data.spike.pictures"),
    ("data.spike.simulate", "to_linear", "data.spike.pictures"),
]


@pytest.mark.parametrize(("old", "name", "new"), MOVED)
def test_a_moved_name_is_the_new_object_and_a_warning_says_where_it_is(old, name, new):
    with pytest.warns(FutureWarning, match=f"{name} moved from {old} to {new}"):
        found = getattr(importlib.import_module(old), name)

    assert found is getattr(importlib.import_module(new), name)


def test_the_former_module_of_tiles_gives_its_names_with_a_warning():
    program = (
        "from models.restore.tiling import Tiling, restore_space\n"
        "print(Tiling.__module__, restore_space.__module__)"
    )

    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert run.stdout.split() == ["models.restore.tiles.plan", "models.restore.tiles.space"]
    assert "FutureWarning: models.restore.tiling was divided" in run.stderr


def test_a_name_that_never_was_is_missing_as_usual():
    with pytest.raises(ImportError, match="cannot import name 'to_infrared'"):
        exec("from data.spike.simulate import to_infrared")
