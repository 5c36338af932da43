"""A run that goes on after something was changed: options, data, or the moment at which it was
stopped.
"""

import fcntl
import json
import shutil

import pytest
import torch

from tests.helpers.train_files import (
    events_of,
    experiment,
    files_of_run,
    history,
    latest,
    odd,
    same,
    state_of,
    write_odd,
)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """One run, started again and again: (option file, {chapter: result})."""
    options = write_odd(tmp_path_factory.mktemp("story"))
    text = json.loads(options.read_text())
    text["datasets"]["test"] = {}
    options.write_text(json.dumps(text))
    path = experiment(options) / "checkpoints/checkpoint_latest.pth"
    lr = (
        "train.G_optimizer_lr=1e-6",
        "train.G_optimizer_betas=[0.5,0.6]",
        'train.fix_keys=["bias"]',
    )
    found = {}
    # 8 samples an epoch; the file says total_iter 4.
    found["epochs"] = odd(options, "--epochs", "1", "debug.every=4"), latest(options)
    changed = ("train.total_iter=13", "train.epochs=2", *lr)
    found["changed"] = odd(options, *changed, case="states", struck=(0, 1)), latest(options)
    with open(experiment(options) / ".lock", "ab") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        found["locked"] = odd(options, "train.total_iter=15"), latest(options)
    found["weights"] = (
        odd(options, "task=other", "--resume", str(experiment(options) / "models/8_G.pth")),
        None,
    )
    for root in ("GOPRO_Large", "GOPRO_Large_spike_seq"):
        shutil.rmtree(options.parent / root / "train/train1")
    # 4 samples an epoch, and the run stands at batch 5 of the last epoch: nothing would be left of
    # it
    found["fewer"] = odd(options, "train.total_iter=15", "train.epochs=2"), latest(options)
    found["named"] = (
        odd(options, "train.total_iter=15", "--resume", str(path), "debug.every=1"),
        latest(options),
    )
    return found


def test_epochs_on_the_command_line_decide_and_a_file_that_cuts_them_says_so(story):
    result, state = story["epochs"]
    assert result.exit_codes == [0] and state["step"] == 8, result.text
    result, state = story["changed"]
    assert result.exit_codes == [0] and (state["step"], state["epoch"], state["batch"]) == (
        13,
        1,
        5,
    ), result.text
    assert result.text.count("train.total_iter = 13 ends the run before train.epochs = 2") == 1
    result, _ = story["epochs"]  # the first batch of a rank is described once
    assert result.stdout[0].count("[Rank 0/1] First batch: lq (1, 2, 3, 32, 32) float32 0") == 1
    assert (
        "gt (1, 2, 3, 32, 32) float32" in result.stdout[0] and "loss () float32" in result.stdout[0]
    )
    assert result.stdout[0].count("[Rank 0/1] Step ") == 2


def test_changed_rates_betas_and_groups_take_effect_and_no_checkpoint_stays_in_memory(
    story,
):
    result, state = story["changed"]
    groups = state["optimizer"]["param_groups"]
    assert [(g["initial_lr"], tuple(g["betas"]), len(g["params"])) for g in groups] == [
        (1e-6, (0.5, 0.6), 1)
    ] * 2
    assert "train.G_optimizer_lr: 0.001 -> 1e-06" in result.text
    assert 'train.fix_keys: [] -> ["bias"]' in result.text and "lr: 1.000e-03" not in result.text
    assert all(entry["step"] == 13 for entry in state["optimizer"]["state"].values())
    assert "0 checkpoints in memory" in result.text


def test_a_second_run_in_a_folder_is_refused(story):
    result, state = story["locked"]
    assert (
        result.exit_codes == [2] and result.text.count("another run is at work in this folder") == 1
    ), result.text
    assert "process " in result.text and state["step"] == 13


def test_weights_are_no_checkpoint_to_resume_from(story):
    result, _ = story["weights"]
    assert result.exit_codes == [3] and "Traceback" not in result.text, result.text
    assert (
        "it holds no optimizer state and no position" in result.text
        and "path.pretrained_netG=" in result.text
    )


def test_other_clips_than_before_stop_a_run_unless_the_checkpoint_is_named(story):
    result, state = story["fewer"]
    assert result.exit_codes == [3] and state["step"] == 13, result.text
    assert (
        "samples an epoch 8 -> 4, other clips, frames or spikes" in result.text
        and "--resume" in result.text
    )
    result, state = story["named"]
    assert result.exit_codes == [0] and (state["step"], state["epoch"], state["batch"]) == (
        15,
        2,
        2,
    ), result.text
    assert result.text.count("epoch 3 begins with its first sample") == 1
    assert "train1" not in result.text.rpartition("starting at")[2]


def test_a_signal_in_a_validation_stops_it_and_the_run_validates_again_and_ends_with_the_same_bits(
    tmp_path,
):
    options = write_odd(tmp_path)
    args = ("train.checkpoint_test=2", "train.total_iter=3")
    whole = odd(options, "task=whole", *args, ranks=2)
    first = odd(options, *args, ranks=2, case="signal", struck=(1, 2))
    stopped = latest(options)
    second = odd(options, *args, ranks=2)
    assert [r.exit_codes for r in (whole, first, second)] == [[0, 0], [75, 75], [0, 0]], (
        first.text + second.text
    )
    assert (stopped["step"], stopped["validated"], stopped["best_psnr"]) == (2, 0, None)
    assert "Iter: 2, validation" not in first.text and second.text.count("Iter: 2, validation") == 1
    assert same(state_of(options, "whole"), state_of(options)) and latest(options)["validated"] == 3


def test_a_validation_that_never_fits_into_a_life_of_the_run_holds_neither_it_nor_a_queue_for_ever(
    tmp_path,
):
    options = write_odd(tmp_path)
    args = ("train.checkpoint_test=2", "train.total_iter=4")
    # Twice in each validation; the last life begins none.
    lives = [odd(options, *args, case="signal", struck=(0, step)) for step in (2, 0, 2, 0, 0)]
    assert [r.exit_codes for r in lives] == [[75]] * 4 + [[0]], lives[-1].text
    for life, step in ((2, 2), (4, 4)):
        assert f"the validation at iter {step} was stopped twice" in lives[life].text, lives[
            life
        ].text


@pytest.fixture(scope="module")
def best(tmp_path_factory):
    """The best PSNR of a run of two steps that nobody stopped."""
    options = write_odd(tmp_path_factory.mktemp("whole"))
    result = odd(options, "train.total_iter=2")
    assert result.exit_codes == [0], result.text
    return latest(options)["best_psnr"]


# Stopped in step 1, which comes into effect after step 2; in the validation; killed there, and as
# it is recorded.
@pytest.mark.parametrize(
    ("case", "step", "writers", "code"),
    [("term", 1, [], 75), ("signal", 2, [], 75), ("kill", 2, [], -9), ("none", 0, ["killing"], -9)],
)
def test_the_last_validation_is_recorded_once_wherever_the_run_was_cut(
    tmp_path, best, case, step, writers, code
):
    options = write_odd(tmp_path)
    args = ("train.total_iter=2", "logging.use_tensorboard=true")
    cut = odd(options, *args, f"logging.writers={json.dumps(writers)}", case=case, struck=(0, step))
    assert latest(options)["step"] == 2 and (
        code == 75 or (experiment(options) / "models/2_G.pth").exists()
    ), cut.text
    second = odd(options, *args)
    files = files_of_run(experiment(options))
    # The best PSNR of another crop would not count
    third = odd(options, *args, "datasets.test.num_frame=1")
    assert [r.exit_codes for r in (cut, second, third)] == [[code], [0], [0]], (
        cut.text + second.text
    )
    assert second.text.count("Iter: 2, validation") == 1 and "Iter: 2, validation" not in third.text
    assert "already finished at iter 2" in third.text and "mean over clips" in third.text
    assert files_of_run(experiment(options)) == files  # what is recorded stays as it is
    state, kept = latest(options), experiment(options) / "checkpoints/checkpoint_best.pth"
    assert (state["validated"], state["best_step"], state["best_psnr"]) == (2, 2, best)
    assert torch.load(kept, weights_only=True)["best_psnr"] == best and history(options)[
        "val/psnr"
    ] == [[2, best]]
    assert [event.step for event in events_of(options).Scalars("val/psnr")] == [2]
    assert "<td>2 (best)</td>" in (experiment(options) / "report.html").read_text()


def test_a_line_of_skipped_steps_has_no_loss_and_a_new_start_hides_the_curves_of_the_one_before(
    tmp_path,
):
    options = write_odd(tmp_path)
    args = (
        "train.total_iter=4",
        "datasets.test={}",
        "logging.use_tensorboard=true",
        "train.max_nonfinite_steps=2",
    )
    failed = odd(options, *args, case="nan", struck=(0, 3))
    losses = history(options)["train/loss"]
    again = odd(options, *args)
    assert [r.exit_codes for r in (failed, again)] == [[4], [0]], failed.text + again.text
    assert (
        "Iter: 3, Loss: none (all steps skipped), lr" in failed.text
        and "Loss: 0.0000" not in failed.text
    )
    assert [step for step, _ in losses] == [1, 2, 3] and losses[2][1] is None and losses[0][1] > 0
    assert [event.step for event in events_of(options).Scalars("train/loss")] == [1, 2, 3, 4]


def test_tensorboard_shows_the_newer_start_after_a_clock_that_went_back(tmp_path):
    options = write_odd(tmp_path)
    args = ("datasets.test={}", "logging.use_tensorboard=true")
    first = odd(options, "train.total_iter=2", *args)
    (written,) = (experiment(options) / "tb_logger").iterdir()
    _, _, _, second, rest = written.name.split(".", 4)
    written.rename(written.with_name(f"events.out.tfevents.{int(second) + 3600}.{rest}"))
    foreign = written.with_name("events.out.tfevents.of_my_own")
    foreign.write_bytes(b"")

    again = odd(options, "train.total_iter=4", *args)

    assert [r.exit_codes for r in (first, again)] == [[0], [0]], first.text + again.text
    foreign.unlink()
    assert [event.step for event in events_of(options).Scalars("train/loss")] == [1, 2, 3, 4]
