"""Names that moved to another module are still found where version 0.9.0 had them."""

import importlib

import pytest

from tests.dist.launching import ROOT, run_ranks

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


def test_the_former_module_of_tiles_gives_its_names_with_a_warning(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from models.restore.tiling import Tiling, restore_space\n"
        "print(Tiling.__module__, restore_space.__module__)"
    )

    run = run_ranks(1, program)

    assert run.stdout[0].split() == ["models.restore.tiles.plan", "models.restore.tiles.space"]
    assert "FutureWarning: models.restore.tiling was divided" in run.stderr[0]


def test_a_name_that_never_was_is_missing_as_usual():
    with pytest.raises(ImportError, match="cannot import name 'to_infrared'"):
        exec("from data.spike.simulate import to_infrared")
