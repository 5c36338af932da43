"""No program changes or removes a file that it did not make, wherever it is told to write.

Each program first writes into an empty folder, to show the names of its files. Then it writes into
folders full of foreign files, folders and links (tests/helpers/foreign.py). Many foreign files have
the names of the program's files. All foreign files must stay unchanged. If you add a program that
writes files, add it to `programs`.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import main_test_vrt
from scripts import (
    build_clip_cache,
    compare_runs,
    convert_options,
    make_sample_data,
    show_sample,
    spike_tool,
)
from scripts import prepare_gopro_spike as prepare
from tests.dist.launching import ROOT
from tests.helpers.foreign import CONTENT, populate, snapshot
from tests.helpers.train_files import folder_of_run, train, write_options
from tests.helpers.weights_files import save_weights
from utils.errors import SpikeVRTError

# A placeholder in the arguments of a program. It stands for the path of the output.
OUT = "<out>"
# Exit code of a training that the user must start with other options.
CHANGE_START = 2


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give a folder with clips, an option file, weights without spikes, and curves of a run."""
    folder = tmp_path_factory.mktemp("their home")
    options = write_options(folder)
    save_weights(options, folder / "rgb.pth", "netG.fusion=none")
    shutil.copytree(folder / "GOPRO_Large/test/test0/blur", folder / "clips" / "clip..1")
    # The curve has a loss at each of 8 steps.
    losses = [[step, 1.0 / step] for step in range(1, 9)]
    (folder / "training_history.json").write_text(json.dumps({"train/loss": losses}))
    return folder


# ---- Programs that write where they are told ----------------------------------------------------


class Program(NamedTuple):
    """A program, and where it is told to write."""

    # The function that runs the program with a list of arguments.
    main: Callable[[list[str]], object]
    # The arguments of the program. OUT stands for the output.
    arguments: Sequence[object]
    # The name of the output within a folder, e.g. "a.png", or "" if the output is the folder
    # itself.
    file: str = ""


def make_one_frame(arguments):
    """Make a sample set of one frame, as scripts/make_sample_data.py makes a large set."""
    size = replace(make_sample_data.SAMPLE, clips={"train": 1}, frames=1)
    make_sample_data.make_sample(Path(arguments[0]), size)


def programs(home):
    """Return all programs that write files, by a name.

    home: the folder with their input. Only its path is used here.
    """
    clips = home / "clips"
    spikes = home / "GOPRO_Large_spike_seq/test/test0/spike/000000.dat"
    size = ("--size", 16, 16)  # height and width of the spike planes
    options = ("--opt", home / "options.json")
    out = ("--out", OUT)
    save = ("--save", "frames", "video")
    restore = ("--weights", home / "rgb.pth", "--input", clips, *save, "--output", OUT)
    # With these arguments, a blurry frame is the mean of a single frame of the source. A spike file
    # has 8 planes, of half the height and width of a frame.
    prepare_clips = ("--source", clips, "--average", 1, "--interpolate", 8, "--ratio", 2)
    foreign_options = ROOT / "tests/data/options/svrt_006.json"
    # The clip "clip..1" has two dots in its name. Such a name is allowed. A program must not take
    # these dots for the parent folder.
    return {
        "restore": Program(main_test_vrt.main, restore),
        "restore, overwrite": Program(main_test_vrt.main, (*restore, "--overwrite")),
        "sample": Program(make_one_frame, (OUT,)),
        "prepare": Program(prepare.main, (*prepare_clips, "--workers", 1, *out)),
        "cache": Program(build_clip_cache.main, (*options, *out)),
        "view": Program(spike_tool.main, ("view", spikes, *size, *out), "a.png"),
        "play": Program(spike_tool.main, ("play", spikes, *size, *out), "a.mp4"),
        "recon": Program(spike_tool.main, ("recon", spikes, *size, "--planes", 1, 2, 9, *out)),
        "page": Program(show_sample.main, (*options, "--index", 0, *out), "a.html"),
        "simulate": Program(spike_tool.main, ("simulate", clips / "clip..1", OUT), "a.dat"),
        "history": Program(compare_runs.main, (home / "training_history.json", *out), "a.png"),
        "run report": Program(compare_runs.main, (home, *out), "a.html"),
        "convert": Program(convert_options.main, (foreign_options, *out), "a.json"),
    }


def run(program, out):
    """Run a program to its end, with its output at `out`. It may succeed or refuse."""
    arguments = []
    for argument in program.arguments:
        arguments.append(str(out) if argument == OUT else str(argument))
    with suppress(SpikeVRTError, SystemExit):
        program.main(arguments)


def files_that_it_writes(program, folder):
    """Let a program write into an empty folder. Return the relative paths of its files."""
    run(program, folder)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def assert_unchanged(before, *folders):
    """Check that everything in a snapshot is unchanged. There may be new files.

    before: a snapshot of the folders, {path: what it is}.
    """
    after = {}
    for folder in folders:
        after |= snapshot(folder)
    assert {path: after.get(path) for path in before} == before


# Only the names of the programs are used here, so any folder can be given.
NAMES = list(programs(ROOT))


# `home` has the input of the programs: clips, an option file, weights, and curves of a run.
@pytest.mark.parametrize("name", NAMES)
def test_no_program_changes_foreign_files_where_it_writes(home, tmp_path, name):
    program = programs(home)[name]
    if program.file:
        names = [program.file]
    else:
        names = files_that_it_writes(program, tmp_path / "clean")
        assert len(names) > 2  # a program that ran to its end has written more than 2 files

    # Try three folders, each with other foreign files in it.
    for seed in range(3):
        # The program writes into `folder`. Some of the foreign files in `folder` are links to files
        # and folders in `outside`. A program that follows such a link would change a file in
        # `outside`. The seed and the place of the program in NAMES decide which foreign files there
        # are.
        folder = tmp_path / f"{seed} populated"
        outside = tmp_path / f"{seed} outside"
        rng = np.random.default_rng([seed, NAMES.index(name)])
        populate(folder, outside, names, rng)
        # scripts/build_clip_cache.py makes a temporary folder of this name. A user may have a
        # folder of this name already.
        temporary = tmp_path / f".{folder.name}.partial"
        temporary.mkdir()
        (temporary / "mine").write_bytes(CONTENT)
        before = snapshot(tmp_path) | snapshot(home)

        run(program, folder / program.file if program.file else folder)

        assert_unchanged(before, tmp_path, home)


# ---- A training ---------------------------------------------------------------------------------


@pytest.fixture
def options(tmp_path):
    """Give the option file of a training. Its folder holds foreign files of other names."""
    path = write_options(tmp_path)
    folder = folder_of_run(path)
    populate(folder, tmp_path / "outside", [], np.random.default_rng(0))
    # The folder of another run, with a file that a training writes.
    another = folder.parent / "another run"
    populate(another, tmp_path / "outside 2", ["train.log"], np.random.default_rng(1))
    return path


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        (["training_history.json"], "training_history.json"),
        ([".lock"], ".lock"),
        # A run of KAIR has the first three names. Other programs use the last name as well.
        (
            [
                "options/run_240101_120000.json",
                "models/4_G.pth",
                "checkpoints/checkpoint_best.pth",
                "status",
            ],
            "options, checkpoints, models, status",
        ),
    ],
    ids=["a file", "a hidden file", "a run of KAIR"],
)
def test_training_refuses_a_folder_with_foreign_files_of_its_names(options, names, listed):
    for name in names:
        path = folder_of_run(options) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(CONTENT)
    before = snapshot(options.parent)

    refused = train(options, "train.total_iter=1")

    assert refused.exit_codes == [CHANGE_START], refused.text
    assert f"no run of this program made: {listed}" in refused.text
    assert snapshot(options.parent) == before


def test_training_does_not_change_foreign_files_of_other_names(options):
    before = snapshot(options.parent)

    done = train(options, "train.total_iter=1", "datasets.test={}")

    assert done.exit_codes == [0], done.text
    assert_unchanged(before, options.parent)


# ---- make clean ---------------------------------------------------------------------------------


def test_make_clean_leaves_results_and_data(tmp_path):
    # The last file is in an environment that make did not fill.
    for name in ("experiments/run/a.pth", "trainsets/sample/mine.png", ".venv/bin/mine"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(CONTENT)
    before = snapshot(tmp_path)

    clean = ["make", "-f", str(ROOT / "Makefile"), "-C", str(tmp_path), "clean"]
    subprocess.run(clean, check=True, timeout=30)

    assert snapshot(tmp_path) == before
