"""No program changes or removes a file that it did not make, wherever it is told to write."""

import json
import shutil
import subprocess
from contextlib import suppress

import numpy as np
import pytest

import main_test_vrt
from scripts import build_clip_cache, convert_options, make_sample_data, plot_history, show_sample, spike_tool
from scripts import prepare_gopro_spike as prepare
from tests.dist.launching import ROOT
from tests.foreign import CONTENT, populate, snapshot, written
from tests.train_files import experiment, train, write_options
from tests.weights_files import save_weights
from utils.errors import SpikeVRTError


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Clips, an option file, weights without spikes, and a history."""
    folder = tmp_path_factory.mktemp("their home")
    options = write_options(folder)
    save_weights(options, folder / "rgb.pth", "netG.fusion=none")
    shutil.copytree(folder / "GOPRO_Large/test/test0/blur", folder / "clips" / "clip..1")
    (folder / "second").mkdir()
    for run in (folder, folder / "second"):
        (run / "training_history.json").write_text(json.dumps({"train/loss": [[i, 1.0 / i] for i in range(1, 9)]}))
    return folder


def ends(call, *args):
    """Run to the end, whatever the end is."""
    with suppress(SpikeVRTError, SystemExit):
        call(*args)


def restore(home, *more):
    args = ["--weights", home / "rgb.pth", "--input", home / "clips", "--save", "frames", "video", *more]
    return lambda out: main_test_vrt.main([*map(str, args), "--output", str(out)])


def programs(home):
    """Name -> (program that writes to a path, the flag's path below the populated folder)."""
    dat = home / "GOPRO_Large_spike_seq/test/test0/spike/000000.dat"
    history = home / "training_history.json"
    sample = {"clips": {"train": 1}, "frames": 1}
    raw = ["--source", home / "clips", "--average", 1, "--interpolate", 8, "--workers", 1, "--ratio", 2]
    cache = ["--opt", home / "options.json", "--out"]
    return {
        "restore": (restore(home), ""),
        "restore, overwrite": (restore(home, "--overwrite"), ""),
        "sample": (lambda out: make_sample_data.make_sample(out, **sample), ""),
        "prepare": (lambda out: prepare.main([*map(str, raw), "--out", str(out)]), ""),
        "cache": (lambda out: build_clip_cache.main([*map(str, cache), str(out)]), ""),
        "view": (lambda out: spike_tool.main(["view", str(dat), "--size", "16", "16", "--out", str(out)]), "a.png"),
        "play": (lambda out: spike_tool.main(["play", str(dat), "--size", "16", "16", "--out", str(out)]), "a.mp4"),
        "recon": (
            lambda out: spike_tool.main(
                ["recon", str(dat), "--size", "16", "16", "--planes", "1", "2", "9", "--out", str(out)]
            ),
            "",
        ),
        "page": (lambda out: show_sample.main([*map(str, cache[:2]), "--index", "0", "--out", str(out)]), "a.html"),
        "simulate": (lambda out: spike_tool.main(["simulate", str(home / "clips/clip..1"), str(out)]), "a.dat"),
        "history": (lambda out: plot_history.main([str(history), "--out", str(out)]), "a.png"),
        "run report": (lambda out: plot_history.main([str(home), "--out", str(out)]), "a.html"),
        "convert": (
            lambda out: convert_options.main([str(ROOT / "tests/data/options/svrt_006.json"), "--out", str(out)]),
            "a.json",
        ),
    }  # fmt: skip


NAMES = list(programs(ROOT))


@pytest.mark.parametrize("name", NAMES)
def test_foreign_files_stay_whatever_program_writes_there(home, tmp_path, name):
    program, below = programs(home)[name]
    names = [below] if below else []
    if not below:
        ends(program, tmp_path / "clean")
        names = written(tmp_path / "clean")
        assert len(names) > 2
    for seed in range(3):
        folder, outside = tmp_path / f"{seed} populated", tmp_path / f"{seed} outside"
        populate(folder, outside, names, np.random.default_rng([seed, NAMES.index(name)]))
        (tmp_path / f".{folder.name}.partial").mkdir()  # the name of the cache's temporary folder
        (tmp_path / f".{folder.name}.partial" / "mine").write_bytes(CONTENT)
        before = snapshot(tmp_path) | snapshot(home)

        ends(program, folder / below if below else folder)

        after = snapshot(tmp_path) | snapshot(home)
        assert {path: after.get(path) for path in before} == before


def test_strangers_in_a_results_folder_of_ours_survive_overwrite_and_going_on(home, tmp_path):
    out = tmp_path / "out"
    restore(home)(out)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "000000.png").write_bytes(CONTENT)
    (out / "clip..1" / "mine.png").write_bytes(CONTENT)
    shutil.rmtree(out / "strips")
    (out / "strips").symlink_to(tmp_path / "elsewhere")
    theirs = [out / "clip..1/mine.png", tmp_path / "elsewhere/000000.png", out / "strips"]
    before = {str(path): snapshot(tmp_path)[str(path)] for path in theirs}

    for more in ((), ("--overwrite",), ("--overwrite", "--dtype", "bfloat16")):
        ends(restore(home, *more), out)
        after = snapshot(tmp_path)
        assert {path: after.get(path) for path in before} == before


def test_training_refuses_a_folder_with_strangers_under_its_names_and_leaves_all_others(home, tmp_path):
    options = write_options(tmp_path)
    run = experiment(options)
    populate(run, tmp_path / "outside", [], np.random.default_rng(0))
    populate(run.parent / "another run", tmp_path / "outside 2", ["train.log"], np.random.default_rng(1))
    (run / "training_history.json").write_bytes(CONTENT)
    before = snapshot(tmp_path)
    refused = train(options, "train.total_iter=1")
    assert refused.exit_codes == [2] and "no run of this program made: training_history.json" in refused.text
    assert snapshot(tmp_path) == before

    (run / "training_history.json").rename(run / ".lock")
    refused = train(options, "train.total_iter=1")
    assert refused.exit_codes == [2] and "no run of this program made: .lock" in refused.text

    (run / ".lock").rename(run / "status")
    # A run of KAIR has the first names; others use the last one as well.
    for name in ("options/run_240101_120000.json", "models/4_G.pth", "checkpoints/checkpoint_best.pth"):
        (run / name).parent.mkdir()
        (run / name).write_bytes(CONTENT)
    refused = train(options, "train.total_iter=1")
    assert refused.exit_codes == [2] and "made: options, checkpoints, models, status" in refused.text, refused.text

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
    subprocess.run(["make", "-f", str(ROOT / "Makefile"), "-C", str(tmp_path), "clean"], check=True, timeout=30)
    assert snapshot(tmp_path) == before
