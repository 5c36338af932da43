"""A run resumes after its options or data were changed, or after it was stopped in a validation.

Each test trains in real processes, on small clips in tmp_path and with the network "odd" of
tests/dist/odd_worker.py. `run_odd` runs such a training until it ends. Three of its arguments say
what goes wrong: `case` is the kind of fault, `struck_rank` the rank, and `at_step` the step,
counted from the beginning of this start.

Exit codes: 0 finished, 2 wrong start or wrong options, 3 wrong files or data, 4 no finite loss, 75
stopped by a signal and to be started again, -9 killed by SIGKILL.

`story` starts one run several times, and each start depends on the earlier starts. So add a new
start at the end of `story`.
"""

import fcntl
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.dist.launching import RankResult
from tests.helpers.train_files import (
    equal_checkpoints,
    events_of,
    files_of_run,
    folder_of_run,
    history,
    latest_checkpoint,
    run_odd,
    state_of,
    write_odd_options,
)

# Option of a run without a validation.
NO_TEST = "datasets.test={}"
TENSORBOARD = "logging.use_tensorboard=true"
REPORT = "logging.use_report=true"


def end_at_step(step: int) -> str:
    """Return the option that ends a run after this step."""
    return f"train.total_iter={step}"


class Position(NamedTuple):
    """Where in the data a checkpoint was saved."""

    step: int  # steps of the whole run
    epoch: int  # whole epochs before this epoch
    batch: int  # batches of this epoch that the run has taken


def position(state: dict[str, Any]) -> Position:
    """Return where in the data a checkpoint was saved."""
    return Position(state["step"], state["epoch"], state["batch"])


def exit_codes(*results: RankResult) -> list[list[int]]:
    """Return the exit codes of the ranks of each run."""
    return [result.exit_codes for result in results]


def texts(*results: RankResult) -> str:
    """Return the output of all runs, for the message of an assertion."""
    return "\n".join(result.text for result in results)


# ---- Starts with other options or other data ----------------------------------------------------


class Start(NamedTuple):
    """One start of the run of `story`."""

    # Exit codes, and the output of the run.
    result: RankResult
    # The latest checkpoint after this start.
    state: dict[str, Any]


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> dict[str, Start]:
    """Start one run six times. Return {name of a start: Start}.

    An epoch has 8 samples: 2 training clips of 4 frames. A step takes one sample. The option file
    has total_iter 4.
    """
    options = write_odd_options(tmp_path_factory.mktemp("story"))
    file = json.loads(options.read_text())
    file["datasets"]["test"] = {}
    options.write_text(json.dumps(file))
    checkpoint = folder_of_run(options) / "checkpoints/checkpoint_latest.pth"
    starts = {}

    # Start 1: one epoch of 8 steps, although the file says 4 steps. Each rank prints every fourth
    # step.
    result = run_odd(options, "--epochs", "1", "debug.every=4")
    starts["epochs"] = Start(result, latest_checkpoint(options))

    # Start 2: another learning rate, other betas and parameter groups. The run ends at step 13,
    # before the end of the second epoch at step 16. In the first step of this start, the case
    # "states" prints how many checkpoints are in memory.
    result = run_odd(
        options,
        end_at_step(13),
        "train.epochs=2",
        "train.G_optimizer_lr=1e-6",
        "train.G_optimizer_betas=[0.5,0.6]",
        'train.fix_keys=["bias"]',
        case="states",
        struck_rank=0,
        at_step=1,
    )
    starts["changed"] = Start(result, latest_checkpoint(options))

    # Start 3: another process holds the lock of the folder.
    with open(folder_of_run(options) / ".lock", "ab") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        result = run_odd(options, end_at_step(15))
    starts["locked"] = Start(result, latest_checkpoint(options))

    # Start 4: weights are given in place of a checkpoint.
    weights = folder_of_run(options) / "models/8_G.pth"
    result = run_odd(options, "task=other", "--resume", str(weights))
    starts["weights"] = Start(result, latest_checkpoint(options))

    # Start 5: one of the two training clips is removed. Now an epoch has only 4 samples, but the
    # run has already taken 5 samples of its second epoch (13 steps = 8 + 5).
    for root in ("GOPRO_Large", "GOPRO_Large_spike_seq"):
        shutil.rmtree(options.parent / root / "train/train1")
    result = run_odd(options, end_at_step(15), "train.epochs=2")
    starts["fewer clips"] = Start(result, latest_checkpoint(options))

    # Start 6: the same data, but the checkpoint is named. Each step prints its sample, so that a
    # test can see from which clip the sample comes.
    result = run_odd(options, end_at_step(15), "--resume", str(checkpoint), "debug.every=1")
    starts["checkpoint named"] = Start(result, latest_checkpoint(options))
    return starts


def test_epochs_on_the_command_line_replace_the_steps_of_the_file(story):
    start = story["epochs"]

    assert start.result.exit_codes == [0], start.result.text
    # One epoch has 8 samples, and a step takes one sample.
    assert start.state["step"] == 8


def test_a_start_says_that_the_steps_end_the_run_before_its_epochs(story):
    start = story["changed"]

    assert start.result.exit_codes == [0], start.result.text
    # 13 steps are one whole epoch of 8 samples, and 5 samples of the next epoch.
    assert position(start.state) == Position(step=13, epoch=1, batch=5)
    message = "train.total_iter = 13 ends the run before train.epochs = 2"
    assert start.result.text.count(message) == 1


def test_the_first_batch_of_a_rank_is_described_once(story):
    output = story["epochs"].result.stdout[0]

    # The batch has 1 clip of 2 frames with 3 colours and 32 x 32 pixels. After the type "float32"
    # comes the range of the values, e.g. "0.012..0.98".
    assert output.count("[Rank 0/1] First batch: lq (1, 2, 3, 32, 32) float32 0") == 1
    assert "gt (1, 2, 3, 32, 32) float32" in output
    assert "loss () float32" in output
    # debug.every is 4, and this start has 8 steps. So the steps 4 and 8 are printed.
    assert output.count("[Rank 0/1] Step ") == 2


def test_changed_rates_and_betas_take_effect_in_each_parameter_group(story):
    start = story["changed"]
    optimizer = start.state["optimizer"]

    groups = []
    for group in optimizer["param_groups"]:
        groups.append((group["initial_lr"], tuple(group["betas"]), len(group["params"])))
    # `fix_keys` makes two groups of one parameter each: one has the weight, the other has the bias.
    assert groups == [(1e-6, (0.5, 0.6), 1), (1e-6, (0.5, 0.6), 1)]
    # Adam counts the steps of each parameter. It counts on from start 1, up to the end of the run.
    assert all(entry["step"] == 13 for entry in optimizer["state"].values())
    assert "train.G_optimizer_lr: 0.001 -> 1e-06" in start.result.text
    assert 'train.fix_keys: [] -> ["bias"]' in start.result.text
    assert "lr: 1.000e-03" not in start.result.text


def test_no_checkpoint_stays_in_memory_after_a_resume(story):
    assert "0 checkpoints in memory" in story["changed"].result.text


def test_a_second_run_in_a_folder_is_refused(story):
    start = story["locked"]

    assert start.result.exit_codes == [2], start.result.text
    assert start.result.text.count("another run is at work in this folder") == 1
    assert "process " in start.result.text
    # The checkpoint is still the checkpoint of start 2.
    assert start.state["step"] == 13


def test_weights_are_no_checkpoint_to_resume_from(story):
    result = story["weights"].result

    assert result.exit_codes == [3], result.text
    assert "it holds no optimizer state and no position" in result.text
    assert "path.pretrained_netG=" in result.text
    assert "Traceback" not in result.text


def test_a_run_refuses_other_training_clips_than_before(story):
    start = story["fewer clips"]

    assert start.result.exit_codes == [3], start.result.text
    assert start.state["step"] == 13
    assert "samples an epoch 8 -> 4, other clips, frames or spikes" in start.result.text
    assert "--resume" in start.result.text


def test_a_run_takes_other_training_clips_if_the_checkpoint_is_named(story):
    start = story["checkpoint named"]

    assert start.result.exit_codes == [0], start.result.text
    # After 13 steps the run begins the third epoch, and takes 2 steps of it, up to step 15.
    assert position(start.state) == Position(step=15, epoch=2, batch=2)
    assert start.result.text.count("epoch 3 begins with its first sample") == 1
    # Before the first step, a warning may name the removed clip. But no step may take a sample of
    # the removed clip.
    _, _, after_start = start.result.text.rpartition("starting at")
    assert "Samples: train0" in after_start
    assert "train1" not in after_start


# ---- Stopped in a validation --------------------------------------------------------------------


def test_a_run_stopped_in_a_validation_ends_with_the_bits_of_an_uninterrupted_run(tmp_path):
    options = write_odd_options(tmp_path)
    steps = ("train.checkpoint_test=2", end_at_step(3))
    whole = run_odd(options, "task=whole", *steps, ranks=2)

    # Rank 1 gets a signal in the validation after step 2.
    first = run_odd(options, *steps, ranks=2, case="signal", struck_rank=1, at_step=2)
    stopped = latest_checkpoint(options)
    second = run_odd(options, *steps, ranks=2)

    assert exit_codes(whole, first, second) == [[0, 0], [75, 75], [0, 0]], texts(first, second)
    assert (stopped["step"], stopped["validated"]) == (2, 0)
    assert stopped["best_psnr"] is None
    assert "Iter: 2, validation" not in first.text
    assert second.text.count("Iter: 2, validation") == 1
    assert equal_checkpoints(state_of(options, "whole"), state_of(options))
    assert latest_checkpoint(options)["validated"] == 3


def test_a_validation_that_was_stopped_twice_is_left_out(tmp_path):
    options = write_odd_options(tmp_path)
    steps = ("train.checkpoint_test=2", end_at_step(4))

    # Each start gets a signal in its validation. at_step counts the steps of this start only:
    #
    #     start   takes the steps   signal in the validation after   at_step
    #     1       1, 2              step 2                           2
    #     2       none              step 2                           0
    #     3       3, 4              step 4                           2
    #     4       none              step 4                           0
    #     5       none              no validation                    0
    starts = []
    for step in (2, 0, 2, 0, 0):
        starts.append(run_odd(options, *steps, case="signal", struck_rank=0, at_step=step))

    assert exit_codes(*starts) == [[75], [75], [75], [75], [0]], starts[-1].text
    assert "the validation at iter 2 was stopped twice" in starts[2].text, starts[2].text
    assert "the validation at iter 4 was stopped twice" in starts[4].text, starts[4].text


@pytest.fixture(scope="module")
def best_psnr(tmp_path_factory) -> float:
    """Give the best PSNR of a run of two steps that was not stopped."""
    options = write_odd_options(tmp_path_factory.mktemp("whole"))
    result = run_odd(options, end_at_step(2))
    assert result.exit_codes == [0], result.text
    return latest_checkpoint(options)["best_psnr"]


class Cut(NamedTuple):
    """How a run of two steps is stopped before its last validation is recorded."""

    case: str  # a case of odd_worker.py
    step: int  # number of steps after which the case strikes
    writers: list[str]  # names of additional log writers
    exit_code: int  # the exit code of the stopped run


@pytest.mark.parametrize(
    "cut",
    [
        # A signal in step 1 takes effect after step 2. So the run stops before its validation.
        pytest.param(
            Cut("term", step=1, writers=[], exit_code=75),
            id="signal in a step",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Cut("signal", step=2, writers=[], exit_code=75), id="signal in the validation"
        ),
        pytest.param(
            Cut("kill", step=2, writers=[], exit_code=-9),
            id="killed in the validation",
            marks=pytest.mark.slow,
        ),
        # This writer kills the process when it is given the scores.
        pytest.param(
            Cut("none", step=0, writers=["killing"], exit_code=-9),
            id="killed while scores are recorded",
        ),
    ],
)
def test_the_last_validation_is_recorded_once_wherever_the_run_was_cut(tmp_path, best_psnr, cut):
    options = write_odd_options(tmp_path)
    common = (end_at_step(2), TENSORBOARD, REPORT)
    writers = f"logging.writers={json.dumps(cut.writers)}"

    first = run_odd(options, *common, writers, case=cut.case, struck_rank=0, at_step=cut.step)
    step_after_first = latest_checkpoint(options)["step"]
    has_weights = (folder_of_run(options) / "models/2_G.pth").exists()
    second = run_odd(options, *common)
    files = files_of_run(folder_of_run(options))
    # Validate the finished run on the first frame of each clip only. The mean PSNR of these frames
    # differs from the mean PSNR of all frames, and must not count as the best.
    third = run_odd(options, *common, "datasets.test.num_frame=1")

    assert exit_codes(first, second, third) == [[cut.exit_code], [0], [0]], texts(first, second)
    assert step_after_first == 2
    # A run that is killed cannot save any more. So the weights must have been saved before the
    # validation.
    if cut.exit_code != 75:
        assert has_weights, first.text
    assert second.text.count("Iter: 2, validation") == 1
    assert "Iter: 2, validation" not in third.text
    assert "already finished at iter 2" in third.text
    assert "mean over clips" in third.text
    assert files_of_run(folder_of_run(options)) == files

    assert_validated_once(options, best_psnr)


def assert_validated_once(options: Path, psnr: float) -> None:
    """Check that each record of a run of two steps has its one validation, with this PSNR."""
    state = latest_checkpoint(options)
    assert (state["validated"], state["best_step"]) == (2, 2)
    assert state["best_psnr"] == psnr
    best = torch.load(folder_of_run(options) / "checkpoints/checkpoint_best.pth", weights_only=True)
    assert best["best_psnr"] == psnr
    assert history(options)["val/psnr"] == [[2, psnr]]
    assert steps_in_tensorboard(options, "val/psnr") == [2]
    assert "<td>2 (best)</td>" in (folder_of_run(options) / "report.html").read_text()


def steps_in_tensorboard(options: Path, curve: str) -> list[int]:
    """Return the steps at which TensorBoard shows a value of a curve."""
    return [event.step for event in events_of(options).Scalars(curve)]


# ---- Curves of several starts -------------------------------------------------------------------


@pytest.fixture(scope="module")
def after_skipped_steps(tmp_path_factory) -> dict[str, Any]:
    """Let a run end, because its output is NaN from step 3 on. Then start the run again."""
    options = write_odd_options(tmp_path_factory.mktemp("skipped"))
    # With max_nonfinite_steps 2, two skipped steps in a row end the run.
    changes = (end_at_step(4), NO_TEST, TENSORBOARD, "train.max_nonfinite_steps=2")
    failed = run_odd(options, *changes, case="nan", struck_rank=0, at_step=3)
    losses = history(options)["train/loss"]
    again = run_odd(options, *changes)
    assert exit_codes(failed, again) == [[4], [0]], texts(failed, again)
    return {"options": options, "failed": failed, "losses": losses}


def test_a_log_line_of_skipped_steps_has_no_loss(after_skipped_steps):
    text = after_skipped_steps["failed"].text
    losses = after_skipped_steps["losses"]

    assert "Iter: 3, Loss: none (all steps skipped), lr" in text
    assert "Loss: 0.0000" not in text
    assert [step for step, _ in losses] == [1, 2, 3]
    loss_of_first_step = losses[0][1]
    loss_of_skipped_step = losses[2][1]
    assert loss_of_first_step > 0
    assert loss_of_skipped_step is None


def test_tensorboard_shows_each_step_once_after_a_second_start(after_skipped_steps):
    assert steps_in_tensorboard(after_skipped_steps["options"], "train/loss") == [1, 2, 3, 4]


def test_tensorboard_shows_the_newer_start_after_a_clock_that_went_back(tmp_path):
    options = write_odd_options(tmp_path)
    first = run_odd(options, end_at_step(2), NO_TEST, TENSORBOARD)
    # The name of the file has the time of the start: events.out.tfevents.<seconds>.<host>...
    # E.g. the first start was at 12:00, and the second start is at 12:01. Rename the first file
    # to 13:00. Now the clock seems to have gone back between the starts, from 13:00 to 12:01.
    (written,) = (folder_of_run(options) / "tb_logger").iterdir()
    _, _, _, seconds, rest = written.name.split(".", 4)
    an_hour_later = int(seconds) + 3600
    written.rename(written.with_name(f"events.out.tfevents.{an_hour_later}.{rest}"))
    # Beside this file lies a file of the user. Its name has no time.
    foreign = written.with_name("events.out.tfevents.of_my_own")
    foreign.write_bytes(b"")

    again = run_odd(options, end_at_step(4), NO_TEST, TENSORBOARD)

    assert exit_codes(first, again) == [[0], [0]], texts(first, again)
    # TensorBoard could not read the file of the user, so remove it. This line fails if the run has
    # removed the file.
    foreign.unlink()
    assert steps_in_tensorboard(options, "train/loss") == [1, 2, 3, 4]
