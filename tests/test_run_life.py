"""The life of a run: which checkpoint it resumes from, and when it is finished. Both are tables of cases."""

import pytest

from main_train_vrt import read_options
from tests.train_files import write_options
from utils.errors import CheckpointError, OptionError
from utils.run import checkpoint
from utils.run.checkpoint import Progress, find_checkpoint, left_to_do


def write(folder, name, step):
    """A checkpoint of `step` as checkpoints/checkpoint_<name>.pth of the run in `folder`; "damaged": not readable."""
    path = folder / "checkpoints" / f"checkpoint_{name}.pth"
    path.parent.mkdir(parents=True, exist_ok=True)
    if step == "damaged":
        path.write_bytes(b"")
    elif step is not None:
        parts = ("model_state_dict", "optimizer", "epoch", "batch", "options")
        checkpoint.save({"step": step} | dict.fromkeys(parts, 0), path)
    return path


@pytest.mark.parametrize(
    ("resume", "own", "best", "other", "expected"),
    [
        # path.resume, steps in this run's latest and best checkpoint and in another run's latest, what it resumes from
        (None, None, None, None, None),
        (None, 4, None, None, "path.resume is null"),
        ("auto", None, None, None, None),
        ("auto", 4, 2, None, ("own", 4)),
        ("auto", "damaged", 2, None, "no readable checkpoint"),
        ("other", None, None, 4, ("other", 4)),
        ("other", 4, None, 2, ("own", 4)),
        ("other", 4, None, 4, ("own", 4)),
        ("other", 4, None, 6, ("own", 4)),
        # What is left of this run must not be overwritten by another's checkpoint, unless a person decides so.
        ("other", "damaged", None, 6, "no readable checkpoint"),
        ("other", 4, None, None, ("own", 4)),
        ("other", None, None, None, "no such checkpoint"),
        ("other", None, None, "damaged", "no readable checkpoint"),
        ("best", 4, 2, None, ("own", 4)),
        ("best", 4, 4, None, ("best", 4)),
        ("best", "damaged", 2, None, ("best", 2)),
        ("best", None, 2, None, ("best", 2)),
        ("best", 4, "damaged", None, "no readable checkpoint"),
        ("own", 4, 2, None, ("own", 4)),
        ("folder of own", 4, None, None, ("own", 4)),
        ("folder of other", None, None, 4, ("other", 4)),
        ("checkpoints of other", None, None, 4, ("other", 4)),
        ("folder of other", 2, None, 4, ("own", 2)),
        ("folder of other", None, None, None, "no such checkpoint"),
    ],
)
def test_which_checkpoint_wins(tmp_path, resume, own, best, other, expected):
    runs = {"own": tmp_path / "run", "other": tmp_path / "other"}
    files = {name: write(runs[name], "latest", step) for name, step in (("own", own), ("other", other))}
    files["best"] = write(runs["own"], "best", best)
    named = {f"folder of {name}": folder for name, folder in runs.items()} | files
    named["checkpoints of other"] = runs["other"] / "checkpoints"

    def find():
        return find_checkpoint(str(named.get(resume, resume)) if resume else None, runs["own"])

    if isinstance(expected, str):
        with pytest.raises((CheckpointError, OptionError), match=expected):
            find()
    elif expected is None:
        assert find() is None
    else:
        name, step = expected
        found = find()
        assert (found.path, found.state["step"]) == (files[name], step)
        # Only a file that the user named, and got, allows other data than before.
        assert found.is_named == (resume.rpartition(" ")[2] == name)


@pytest.mark.parametrize(
    ("step", "validated", "stops", "test_every", "left"),
    [
        # a run of 10 steps; test_every 0: without a test split
        (0, 0, 0, 4, "steps"),
        (3, 0, 0, 4, "steps"),
        (4, 0, 0, 4, "validation"),  # cut before its validation, or in it
        (4, 0, 1, 4, "validation"),
        (4, 0, 2, 4, "steps"),
        (4, 4, 0, 4, "steps"),
        (4, 0, 0, 0, "steps"),
        (8, 4, 0, 4, "validation"),
        (10, 8, 0, 4, "validation"),  # the last step, whatever its number
        (10, 0, 0, 5, "validation"),
        (10, 8, 1, 4, "validation"),
        (10, 8, 2, 4, "nothing"),
        (10, 10, 0, 4, "nothing"),
        (10, 0, 0, 0, "nothing"),
        (12, 12, 0, 4, "nothing"),  # total_iter was lowered
        (11, 8, 0, 4, "validation"),
    ],
)
def test_when_a_run_is_finished(step, validated, stops, test_every, left):
    progress = Progress(step=step, validated=validated, validation_stops=stops)
    assert left_to_do(progress, 10, test_every) == left


def test_two_starts_in_one_second_leave_two_option_files(tmp_path):
    opt = read_options(["--opt", str(write_options(tmp_path))])
    assert len({opt.save(tmp_path / "saved") for _ in range(3)}) == 3
