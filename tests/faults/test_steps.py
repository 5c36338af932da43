"""A loss that is NaN, or a lack of memory, on one rank of two.

tests/dist/odd_worker.py trains a network of one layer. A fault happens on one rank at one step:

    once      the loss is NaN in this step
    nan       the loss is NaN from this step on
    memory    torch's error for a GPU without free memory is raised

All ranks must take the same decision. Otherwise they would wait for one another.

The arguments `struck_rank` and `at_step` say on which rank and at which step something goes wrong.
Most runs have the option "datasets.test={}", so that they have no test clips. With test clips they
would validate at their end, and take longer.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from models.model_vrt import define_Model
from tests.dist.launching import RankResult
from tests.faults.secret_keys import (
    ENV_WITH_SECRET,
    OPTION_WITH_SECRET,
    SECRET_IN_ENV,
    SECRET_IN_OPTIONS,
    files_with_a_secret,
)
from tests.helpers.train_files import (
    equal_checkpoints,
    folder_of_run,
    latest_checkpoint,
    network_section,
    run_odd,
    train,
    write_odd_options,
    write_options,
)
from tests.helpers.weights_files import save_weights
from utils.run.steps import StepLog

# Exit code of a run that ends because its numbers are NaN or infinite (docs/ddp_reference.md).
NOT_FINITE = 4

# ---- One step with NaN ----


class Run(NamedTuple):
    """A run on two ranks."""

    options: Path  # the option file
    result: RankResult


@pytest.fixture(scope="module")
def run_with_skipped_step(tmp_path_factory) -> Run:
    """Train with a NaN on rank 1 at step 2, and save the weights after each step."""
    options = write_odd_options(tmp_path_factory.mktemp("skipped"))
    # compare_every=1: the ranks compare their weights after each step.
    changes = ("datasets.test={}", "train.checkpoint_save=1", "debug.compare_every=1")
    return Run(options, run_odd(options, *changes, case="once", struck_rank=1, at_step=2, ranks=2))


def test_nan_on_one_rank_is_named_once(run_with_skipped_step):
    text = run_with_skipped_step.result.text

    assert run_with_skipped_step.result.exit_codes == [0, 0], text
    # Only one of the two ranks writes the line. The line ends with the name of the sample. A name
    # of a sample begins with its clip, train0 or train1.
    assert text.count("step skipped on all ranks") == 1
    begin_of_line = "iteration 2: loss is NaN or Inf, step skipped on all ranks (rank 1: train"
    assert begin_of_line in text


def weights_after(options: Path, step: int) -> dict[str, torch.Tensor]:
    """Return the weights that a run saved after a step."""
    path = folder_of_run(options) / f"models/{step}_G.pth"
    return torch.load(path, weights_only=True)["params"]


def test_nan_on_one_rank_skips_the_step_on_all_ranks(run_with_skipped_step):
    first = weights_after(run_with_skipped_step.options, step=1)
    second = weights_after(run_with_skipped_step.options, step=2)
    third = weights_after(run_with_skipped_step.options, step=3)

    assert equal_checkpoints(first, second)
    assert not equal_checkpoints(second, third)


# ---- Too many steps with NaN ----


@pytest.fixture(scope="module")
def run_stopped_by_nan(tmp_path_factory) -> Run:
    """Train with NaN on rank 1 from step 1 on.

    Options and environment hold secret keys, because the run must write them nowhere. Each rank
    prints the samples of each step, because the dump of the run must name them.
    """
    options = write_odd_options(tmp_path_factory.mktemp("stopped"))
    changes = (
        "datasets.test={}",
        "train.max_nonfinite_steps=3",
        "debug.every=1",  # prints the samples
        "train.checkpoint_save=1",
        OPTION_WITH_SECRET,
    )
    return Run(
        options,
        run_odd(
            options, *changes, case="nan", struck_rank=1, at_step=1, ranks=2, env=ENV_WITH_SECRET
        ),
    )


@pytest.fixture(scope="module")
def steps_of_dump(run_stopped_by_nan) -> list[dict[str, Any]]:
    """Give the last steps with their numbers. The run wrote them before it ended."""
    # The run ends at step 3, so the name of the file has a 3. The log must name the file.
    dump = folder_of_run(run_stopped_by_nan.options) / "nonfinite_3.json"
    assert str(dump) in run_stopped_by_nan.result.text
    # JSON has no NaN, so the file must have the text "nan" instead. Python's reader calls
    # `parse_constant` for a NaN without quotes. Here this call fails the test.
    return json.loads(dump.read_text(), parse_constant=pytest.fail)["steps"]


def test_nan_in_too_many_steps_stops_all_ranks(run_stopped_by_nan):
    text = run_stopped_by_nan.result.text

    assert run_stopped_by_nan.result.exit_codes == [NOT_FINITE, NOT_FINITE]
    assert text.count("NonFiniteError: loss NaN or Inf in 3 steps in a row") == 1


def test_a_run_that_nan_stops_writes_the_numbers_of_its_steps(steps_of_dump):
    assert [step["step"] for step in steps_of_dump] == [1, 2, 3]
    for step in steps_of_dump:
        assert step["what"] == "loss"
        assert step["grad_norm"] == "nan"
        assert step["scale"] == 1.0  # the loss is not scaled, because this run is not in float16
        # The rate begins with 0.001, and the schedule lowers it a little.
        assert 0.0009 < step["lr"] <= 0.001


def test_a_run_that_nan_stops_writes_the_numbers_of_each_rank(run_stopped_by_nan, steps_of_dump):
    # Each rank has printed its samples: one for each step. E.g. printed[1][0] is the name of the
    # sample that rank 1 had in step 1.
    printed = [
        re.findall(r"Step \d, .*Samples: (\S+)", out) for out in run_stopped_by_nan.result.stdout
    ]

    step_2 = steps_of_dump[1]
    healthy, broken = step_2["ranks"]
    assert healthy["finite"]
    assert healthy["loss"] > 0
    assert healthy["samples"] == [printed[0][1]]
    assert broken == {"rank": 1, "loss": "nan", "finite": False, "samples": [printed[1][1]]}


def test_a_run_that_nan_stops_names_the_last_sample(run_stopped_by_nan, steps_of_dump):
    _, broken = steps_of_dump[2]["ranks"]

    assert f"rank 1: {broken['samples'][0]}" in run_stopped_by_nan.result.text


def test_a_run_that_nan_stops_writes_no_secret_key(run_stopped_by_nan):
    assert files_with_a_secret(run_stopped_by_nan.options.parent / "experiments") == []
    assert not re.search(f"{SECRET_IN_ENV}|{SECRET_IN_OPTIONS}", run_stopped_by_nan.result.text)


def test_skipped_steps_before_and_after_a_resume_are_counted_together(tmp_path):
    options = write_odd_options(tmp_path)
    changes = ("datasets.test={}", "train.max_nonfinite_steps=3", "train.checkpoint_save=1")
    # Without `at_step`, the loss is NaN in every step. A run may skip two such steps in a row, and
    # the third one ends it. So the first start, of two steps, ends with code 0.
    first = run_odd(options, *changes, "train.total_iter=2", case="nan")
    assert first.exit_codes == [0], first.text

    second = run_odd(options, *changes, "train.total_iter=9", case="nan")

    # The first step of the second start is the third one with NaN.
    assert second.exit_codes == [NOT_FINITE], second.text
    assert (folder_of_run(options) / "nonfinite_3.json").is_file()


def test_a_resume_goes_on_with_the_loss_scale_of_float16(tmp_path):
    options = write_odd_options(tmp_path)
    changes = ("datasets.test={}", "train.amp.enable=true", "train.amp.dtype=float16")
    first = run_odd(options, *changes, "train.total_iter=2", case="once", struck_rank=0, at_step=2)
    assert first.exit_codes == [0], first.text
    # The scale begins with 2^16. The step whose loss was NaN halved it.
    assert latest_checkpoint(options)["scaler"]["scale"] == 2.0**15

    second = run_odd(options, *changes, "train.total_iter=3")

    assert second.exit_codes == [0], second.text
    # The finite step 3 keeps the scale. If the run had begun with 2^16 again, the scale would be
    # 2^16.
    assert latest_checkpoint(options)["scaler"]["scale"] == 2.0**15


def test_weights_that_diverge_while_the_flow_is_trained_end_with_code_4(tmp_path):
    # The first step with this learning rate makes the weights of the flow so large that the flow is
    # NaN from the second step on. The run starts from weights of a file. The last layer of a new
    # network has zeros, and with these zeros no gradient would reach the flow.
    options = write_options(tmp_path)
    weights = save_weights(options, tmp_path / "w.pth")
    changes = (
        "datasets.test={}",
        "train.max_nonfinite_steps=3",
        "train.G_optimizer_lr=1e30",
        f"path.pretrained_netG={weights}",
    )

    result = train(options, *changes)

    assert result.exit_codes == [NOT_FINITE], result.text
    assert result.text.count("NonFiniteError: loss NaN or Inf in 3 steps in a row") == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_error_is_reported_before_a_dashboard_that_hangs_while_closing(tmp_path, ranks):
    # The writer "hanging" of odd_worker.py never comes back from its `close`.
    logging = {"use_tensorboard": False, "writers": ["hanging"]}
    changes = ("datasets.test={}", "train.max_nonfinite_steps=1")

    result = run_odd(
        write_odd_options(tmp_path, logging=logging),
        *changes,
        case="nan",
        struck_rank=0,
        at_step=2,
        ranks=ranks,
    )

    assert result.exit_codes == [NOT_FINITE] * ranks, result.text
    assert result.text.count("NonFiniteError: ") == 1
    assert "StallError" not in result.text


def test_a_rank_without_memory_ends_all_ranks_with_advice(tmp_path):
    # The run has three ranks. Before the first step, DDP settles in two passes how it groups the
    # gradients. The fault comes in step 1, after these passes.
    result = run_odd(
        write_odd_options(tmp_path),
        "datasets.test={}",
        case="memory",
        struck_rank=1,
        at_step=1,
        ranks=3,
    )

    # Exit code 1 is the code of an error that has no number of its own.
    assert result.exit_codes == [1, 1, 1]
    assert result.text.count("out of memory on rank 1") == 1
    assert "train.amp.enable=true" in result.text
    assert "gt_size=" in result.text
    assert "Traceback" not in result.text


def test_an_infinite_loss_whose_gradients_are_finite_is_skipped_too():
    # The loss is a square root, and the slope of a square root at infinity is 0. So the gradients
    # are finite, and a check of only their norm would not notice the infinite loss.
    values = {
        "netG": network_section(fusion="none"),
        "train": {"G_lossfn_type": "charbonnier", "E_decay": 0},
    }
    model = define_Model(values)
    model.init_train()
    log = StepLog()
    clip = torch.rand(1, 2, 3, 32, 32)
    # The square of 1e30 is infinite in float32.
    enormous = torch.full_like(clip, 1e30)

    for step, gt in enumerate((clip, enormous, clip), start=1):
        batch = {"lq": clip, "gt": gt, "key": ["a/0"]}
        log.add(model.optimize_parameters(step, [batch]))

    found = log.read_epoch()
    assert found["steps"] == 3
    assert found["skipped"] == 1
    # The infinite loss is left out: this is the mean over the other two steps.
    assert found["loss"] < 1
