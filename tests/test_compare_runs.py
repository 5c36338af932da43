"""scripts/compare_runs.py from its command line."""

import json

import pytest

from lab import compare_curves
from scripts.compare_runs import main


def write_run(folder, **history):
    """A run with this history, the first _ of each name for /; its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "training_history.json").write_text(json.dumps({k.replace("_", "/", 1): v for k, v in history.items()}))
    return str(folder)


@pytest.mark.parametrize(("factor", "code"), [(1.01, 0), (1.1, 1)])
def test_a_difference_is_judged_by_that_of_another_seed(tmp_path, factor, code):
    losses = {"fp32": 1.0, "bf16": factor, "seed1": 0.96}
    runs = [write_run(tmp_path / k, train_loss=[[i, f / i] for i in range(10, 210, 10)]) for k, f in losses.items()]
    runs.insert(2, "--noise")

    assert compare_curves.main([*runs, "--out", str(tmp_path / "docs" / "amp")]) == code

    found = json.loads((tmp_path / "docs" / "amp.json").read_text())
    assert found["difference"]["rms"] == pytest.approx(factor - 1)
    assert found["noise"] == pytest.approx({"rms": 0.04, "largest": 0.04, "last": 0.04})
    assert found["is_within_noise"] == (code == 0)
    assert (tmp_path / "docs" / "amp.png").stat().st_size > 5000


@pytest.mark.parametrize("is_md", [False, True])
def test_training_runs_give_a_table_of_scores_speed_size_and_the_options_that_differ(tmp_path, capsys, is_md):
    folders = []
    for name, lr, psnr in (("a_run_with_a_long_name", 2e-3, 30.5), ("b", 1e-3, 31.25)):
        folder = tmp_path / "experiments" / name
        (folder / "options").mkdir(parents=True)
        curves = {"train_loss": [[10, 0.5], [20, 0.25]], "val_psnr": [[10, psnr], [20, psnr - 1]]}
        folders.append(write_run(folder, train_it_per_s=[[20, 1.5]], **curves))
        options = {"task": name, "train": {"G_optimizer_lr": lr, "total_iter": 20}, "netG": {"depths": [2] * 40 + [lr]}}
        (folder / "options" / "x.json").write_text(json.dumps(options))
        (folder / "environment.json").write_text('{"parameters": "1.23 M"}')

    assert main([*folders, *(["--md"] if is_md else [])]) == 0

    lines = capsys.readouterr().out.splitlines()
    rows = [line.strip("| ").replace(" | ", "  ").split() for line in lines]
    assert ["b", "31.25", "10", "0.25", "1.5", "1.23", "M"] in rows
    assert ["train.G_optimizer_lr", "0.002", "0.001"] in rows and not any("total_iter" in row[:1] for row in rows)
    assert is_md or max(map(len, lines)) <= 100


def test_tests_give_a_table_of_at_most_100_columns(tmp_path, capsys):
    folders = [tmp_path / ("long_" * 8) / name for name in ("test", "test_other")]
    for folder in folders:
        folder.mkdir(parents=True)
        scores = {kind: {"psnr": 30.0, "ssim": 0.9, "psnr_y": 31.0, "ssim_y": 0.91} for kind in ("restored", "input")}
        weights = {"weights": f"{folder.parent}/checkpoints/checkpoint_best.pth (sha256 0123), network from the file"}
        content = {"protocol": weights, "clips": {}, "averages": scores}
        (folder / "metrics.json").write_text(json.dumps(content))

    assert main(list(map(str, folders))) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all(len(line) <= 100 for line in lines), lines
    assert lines[2].startswith("test  ") and "30.00" in lines[2]


@pytest.mark.parametrize(
    ("restored", "code", "said"),
    [(27.6, 0, "+3.00 dB, as expected"), (27.5, 1, "NOT as expected"), (float("nan"), 1, "NOT"), (None, 3, "")],
)
def test_a_run_must_gain_three_decibels_in_its_last_validation(tmp_path, capsys, restored, code, said):
    scores = {"val_psnr": [[250, 30.0], [500, restored]], "val_psnr_input": [[250, 24.6], [500, 24.6 - 1e-9]]}
    run = write_run(tmp_path, train_loss=[[1, 0.5]], **(scores if restored is not None else {}))

    assert main([run, "--at-least", "3"]) == code

    printed = capsys.readouterr()
    assert said in printed.out
    assert code != 3 or "no validation" in printed.err


def test_absent_files_files_of_another_form_and_a_run_given_twice_are_refused(tmp_path, capsys):
    for number, (name, content, said) in enumerate((
        ("metrics.json", "{", "cannot read results"),
        ("metrics.json", "[1, 2]", "no results of a test"),
        ("training_history.json", '{"train/loss": [[10, "low"]]}', "train/loss is 'low' at step 10"),
        ("training_history.jsonl", '{"step": 10, "train/loss": [1]}\n', "train/loss is [1] at step 10"),
        ("training_history.json", '{"train/loss": [[10, 0.5]]}', "a run is given twice"),
        ("log.txt", "", "the folder of a run, or its training_history.jsonl"),
    )):  # fmt: skip
        folders = [tmp_path / f"{number} {copy}" for copy in range(2)]
        for folder in folders:
            folder.mkdir()
            (folder / name).write_text(content)
        given = [folders[0], folders["twice" not in said]]
        assert main(list(map(str, given))) == 3
        text = capsys.readouterr().err
        assert said in text and text.count("Error: ") == 1 and "Traceback" not in text
