"""Numbers and memory gone wrong on one rank of two.

tests/dist/odd_worker.py trains a network of one layer, in which something goes wrong on one rank at
one step: "once" makes the loss NaN in this step, "nan" from this step on, and "memory" lets the
memory run out. All ranks must take the same decision, or they would wait for one another.
"""

import json
import re

import pytest
import torch

from models.model_vrt import define_Model
from tests.faults.secret_keys import ENV, KEY, KEY_OF_OPTIONS, SECRET, files_with_a_key
from tests.helpers.train_files import (
    experiment,
    latest,
    network,
    odd,
    same,
    train,
    write_odd,
    write_options,
)
from tests.helpers.weights_files import save_weights
from utils.run.steps import StepLog


def test_nan_on_one_rank_skips_the_step_on_all_and_is_named(tmp_path):
    options = write_odd(tmp_path)
    # compare_every=1: the ranks compare their weights after each step.
    changes = (
        "datasets.test={}",
        "train.checkpoint_save=1",
        "debug.compare_every=1",
    )
    result = odd(options, *changes, case="once", struck=(1, 2), ranks=2)
    assert result.exit_codes == [0, 0], result.text
    assert result.text.count("step skipped on all ranks") == 1  # the other rank is silent
    assert (
        "iteration 2: loss is NaN or Inf, step skipped on all ranks (rank 1: train" in result.text
    )
    files = [experiment(options) / f"models/{step}_G.pth" for step in (1, 2, 3)]
    first, second, third = (torch.load(file, weights_only=True)["params"] for file in files)

    assert same(first, second)
    assert not same(second, third)


def test_nan_in_too_many_steps_stops_all_ranks_with_code_4_and_numbers_without_a_key(tmp_path):
    options = write_odd(tmp_path)
    changes = (
        "datasets.test={}",
        "train.max_nonfinite_steps=3",
        "debug.every=1",
        "train.checkpoint_save=1",
        SECRET,
    )
    result = odd(options, *changes, case="nan", struck=(1, 1), ranks=2, env=ENV)
    assert result.exit_codes == [4, 4]
    assert result.text.count("NonFiniteError: loss NaN or Inf in 3 steps in a row") == 1
    dump = experiment(options) / "nonfinite_3.json"
    assert str(dump) in result.text
    steps = json.loads(dump.read_text(), parse_constant=pytest.fail)["steps"]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert {(s["what"], s["grad_norm"], s["scale"]) for s in steps} == {("loss", "nan", 1.0)}
    assert all(0.0009 < s["lr"] <= 0.001 for s in steps)
    seen = [re.findall(r"Step \d, .*Samples: (\S+)", out) for out in result.stdout]  # of each rank
    healthy, broken = steps[1]["ranks"]

    assert healthy["finite"]
    assert healthy["loss"] > 0
    assert healthy["samples"] == seen[0][1:2]
    assert broken == {"rank": 1, "loss": "nan", "finite": False, "samples": seen[1][1:2]}
    assert files_with_a_key(tmp_path / "experiments") == []
    assert not re.search(f"{KEY}|{KEY_OF_OPTIONS}", result.text)
    assert f"rank 1: {steps[2]['ranks'][1]['samples'][0]}" in result.text


def test_skipped_steps_before_and_after_a_resume_are_counted_together(tmp_path):
    options = write_odd(tmp_path)
    changes = ("datasets.test={}", "train.max_nonfinite_steps=3", "train.checkpoint_save=1")
    first = odd(options, *changes, "train.total_iter=2", case="nan")
    assert first.exit_codes == [0], first.text

    second = odd(options, *changes, "train.total_iter=9", case="nan")

    assert second.exit_codes == [4], second.text
    assert (experiment(options) / "nonfinite_3.json").is_file()


def test_a_resume_goes_on_with_the_loss_scale_of_float16(tmp_path):
    options = write_odd(tmp_path)
    changes = ("datasets.test={}", "train.amp.enable=true", "train.amp.dtype=float16")
    first = odd(options, *changes, "train.total_iter=2", case="once", struck=(0, 2))
    assert first.exit_codes == [0], first.text
    # It begins with 2^16. The step whose loss was NaN halved it.
    assert latest(options)["scaler"]["scale"] == 2.0**15

    second = odd(options, *changes, "train.total_iter=3")

    assert second.exit_codes == [0], second.text
    assert latest(options)["scaler"]["scale"] == 2.0**15


def test_weights_that_diverge_while_the_flow_is_trained_end_with_code_4(tmp_path):
    # With this learning rate the weights of the flow are useless after the first step, so the flow
    # is NaN from the second step on. The last layer of a new network has zeros, and then no
    # gradient would reach the flow. So the run starts from other weights.
    options = write_options(tmp_path)
    weights = save_weights(options, tmp_path / "w.pth")
    changes = (
        "datasets.test={}",
        "train.max_nonfinite_steps=3",
        "train.G_optimizer_lr=1e30",
        f"path.pretrained_netG={weights}",
    )

    result = train(options, *changes)

    assert result.exit_codes == [4], result.text
    assert result.text.count("NonFiniteError: loss NaN or Inf in 3 steps in a row") == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_error_is_reported_before_a_dashboard_that_hangs_while_closing(tmp_path, ranks):
    logging = {"use_tensorboard": False, "writers": ["hanging"]}
    changes = ("datasets.test={}", "train.max_nonfinite_steps=1")
    result = odd(
        write_odd(tmp_path, logging=logging), *changes, case="nan", struck=(0, 2), ranks=ranks
    )

    assert result.exit_codes == [4] * ranks, result.text
    assert result.text.count("NonFiniteError: ") == 1
    assert "StallError" not in result.text


def test_one_rank_without_memory_ends_all_and_says_what_to_change(tmp_path):
    # With three ranks. In its first two passes DDP settles how it groups the gradients, before the
    # first step itself.
    result = odd(write_odd(tmp_path), "datasets.test={}", case="memory", struck=(1, 1), ranks=3)

    assert result.exit_codes == [1, 1, 1]
    assert result.text.count("out of memory on rank 1") == 1
    assert "train.amp.enable=true" in result.text
    assert "gt_size=" in result.text
    assert "Traceback" not in result.text


def test_an_infinite_loss_whose_gradients_are_finite_is_skipped_too():
    # The loss is a square root, whose slope at infinity is 0. So the gradients are finite, and a
    # look at their norm alone would not notice.
    values = {
        "netG": network(fusion="none"),
        "train": {"G_lossfn_type": "charbonnier", "E_decay": 0},
    }
    model = define_Model(values)
    model.init_train()
    log = StepLog()
    clip = torch.rand(1, 2, 3, 32, 32)
    for step, gt in enumerate((clip, torch.full_like(clip, 1e30), clip), start=1):
        log.add(model.optimize_parameters(step, [{"lq": clip, "gt": gt, "key": ["a/0"]}]))
    found = log.read_epoch()

    assert (found["steps"], found["skipped"]) == (3, 1)
    assert found["loss"] < 1
