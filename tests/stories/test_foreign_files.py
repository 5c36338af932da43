"""No program changes or removes a file that it did not make, wherever it is told to write.

Each program first runs into an empty folder, which tells the names of its files. Then it runs into
folders full of foreign files, folders and links, many of them with these names
(tests/helpers/foreign.py). All of them must stay as they are.
"""

import json
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

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
from tests.helpers.train_files import experiment, train, write_options
from tests.helpers.weights_files import save_weights
from utils.errors import SpikeVRTError

# Stands in the arguments of a program for the path at which it is told to write.
OUT = "<out>"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give a folder with clips, an option file, weights without spikes, and curves of a run."""
    folder = tmp_path_factory.mktemp("their home")
    options = write_options(folder)
    save_weights(options, folder / "rgb.pth", "netG.fusion=none")
    shutil.copytree(folder / "GOPRO_Large/test/test0/blur", folder / "clips" / "clip..1")
    history = {"train/loss": [[i, 1.0 / i] for i in range(1, 9)]}
    (folder / "training_history.json").write_text(json.dumps(history))
    return folder


def small_sample(arguments):
    """Make a sample set of one frame, as scripts/make_sample_data.py does."""
    size = replace(make_sample_data.SAMPLE, clips={"train": 1}, frames=1)
    make_sample_data.make_sample(Path(arguments[0]), size)


def programs(home):
    """Return all programs: name -> (program, its arguments, file below the output folder).

    The file is "" if the program is told a folder.
    """
    dat = home / "GOPRO_Large_spike_seq/test/test0/spike/000000.dat"
    size = ("--size", 16, 16)
    opt = ("--opt", home / "options.json")
    out = ("--out", OUT)
    restore = (
        "--weights",
        home / "rgb.pth",
        "--input",
        home / "clips",
        "--save",
        "frames",
        "video",
        "--output",
        OUT,
    )
    raw = (
        "--source",
        home / "clips",
        "--average",
        1,
        "--interpolate",
        8,
        "--workers",
        1,
        "--ratio",
        2,
    )
    return {
        "restore": (main_test_vrt.main, restore, ""),
        "restore, overwrite": (main_test_vrt.main, (*restore, "--overwrite"), ""),
        "sample": (small_sample, (OUT,), ""),
        "prepare": (prepare.main, (*raw, *out), ""),
        "cache": (build_clip_cache.main, (*opt, *out), ""),
        "view": (spike_tool.main, ("view", dat, *size, *out), "a.png"),
        "play": (spike_tool.main, ("play", dat, *size, *out), "a.mp4"),
        "recon": (spike_tool.main, ("recon", dat, *size, "--planes", 1, 2, 9, *out), ""),
        "page": (show_sample.main, (*opt, "--index", 0, *out), "a.html"),
        "simulate": (spike_tool.main, ("simulate", home / "clips/clip..1", OUT), "a.dat"),
        "history": (compare_runs.main, (home / "training_history.json", *out), "a.png"),
        "run report": (compare_runs.main, (home, *out), "a.html"),
        "convert": (
            convert_options.main,
            (ROOT / "tests/data/options/svrt_006.json", *out),
            "a.json",
        ),
    }


def run(program, arguments, out, *more):
    """Run a program to its end. It may succeed or refuse."""
    with suppress(SpikeVRTError, SystemExit):
        program(
            [str(out) if argument == OUT else str(argument) for argument in (*arguments, *more)]
        )


NAMES = list(programs(ROOT))


@pytest.mark.parametrize("name", NAMES)
def test_foreign_files_stay_whatever_program_writes_there(home, tmp_path, name):
    *program, below = programs(home)[name]
    names = [below] if below else []
    if not below:
        run(*program, tmp_path / "clean")
        clean = tmp_path / "clean"
        names = sorted(
            path.relative_to(clean).as_posix() for path in clean.rglob("*") if path.is_file()
        )
        assert len(names) > 2
    # Three folders with other foreign files in them.
    for seed in range(3):
        folder = tmp_path / f"{seed} populated"
        outside = tmp_path / f"{seed} outside"
        populate(folder, outside, names, np.random.default_rng([seed, NAMES.index(name)]))
        # The cache has a temporary folder of this name.
        (tmp_path / f".{folder.name}.partial").mkdir()
        (tmp_path / f".{folder.name}.partial" / "mine").write_bytes(CONTENT)
        before = snapshot(tmp_path) | snapshot(home)

        run(*program, folder / below if below else folder)

        after = snapshot(tmp_path) | snapshot(home)
        assert {path: after.get(path) for path in before} == before


def test_training_refuses_a_folder_with_strangers_under_its_names_and_leaves_all_others(
    home, tmp_path
):
    options = write_options(tmp_path)
    run = experiment(options)
    populate(run, tmp_path / "outside", [], np.random.default_rng(0))
    populate(
        run.parent / "another run", tmp_path / "outside 2", ["train.log"], np.random.default_rng(1)
    )
    (run / "training_history.json").write_bytes(CONTENT)
    before = snapshot(tmp_path)
    refused = train(options, "train.total_iter=1")
    assert refused.exit_codes == [2]
    assert "no run of this program made: training_history.json" in refused.text
    assert snapshot(tmp_path) == before

    (run / "training_history.json").rename(run / ".lock")
    refused = train(options, "train.total_iter=1")
    assert refused.exit_codes == [2]
    assert "no run of this program made: .lock" in refused.text

    (run / ".lock").rename(run / "status")
    # A run of KAIR has the first names; others use the last one as well.
    for name in (
        "options/run_240101_120000.json",
        "models/4_G.pth",
        "checkpoints/checkpoint_best.pth",
    ):
        (run / name).parent.mkdir()
        (run / name).write_bytes(CONTENT)
    refused = train(options, "train.total_iter=1")
    assert refused.exit_codes == [2], refused.text
    assert "made: options, checkpoints, models, status" in refused.text, refused.text

    for name in ("options", "models", "checkpoints", "status"):
        (run / name).rename(tmp_path / name)
    before = snapshot(tmp_path)
    done = train(options, "train.total_iter=1", "datasets.test={}")
    assert done.exit_codes == [0], done.text
    after = snapshot(tmp_path)
    assert {path: after.get(path) for path in before} == before


def test_make_clean_leaves_results_and_data(tmp_path):
    for name in ("experiments/run/a.pth", "trainsets/sample/mine.png", ".venv/bin/mine"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(CONTENT)
    before = snapshot(tmp_path)
    subprocess.run(
        ["make", "-f", str(ROOT / "Makefile"), "-C", str(tmp_path), "clean"], check=True, timeout=30
    )

    assert snapshot(tmp_path) == before
