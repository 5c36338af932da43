"""Numbers and memory gone wrong on one rank of two."""

import json

import pytest
import torch

from models.model_vrt import define_Model
from tests.dist.launching import run_ranks
from tests.train_files import network, odd, write_odd

WORKER = "tests/dist/step_worker.py"


@pytest.fixture
def options(tmp_path):
    """An option file whose network is left to the worker."""
    path = tmp_path / "options.json"
    path.write_text(json.dumps({
        "task": "steps", "path": {"root": str(tmp_path / "experiments")}, "netG": {"net_type": "forgetful"},
        "train": {"G_lossfn_type": "l1", "max_nonfinite_steps": 3, "G_optimizer_lr": 0.01},
    }))  # fmt: skip
    return path


def test_nan_on_one_rank_skips_the_step_on_all_and_is_named(options):
    result = run_ranks(2, WORKER, str(options), "nan")

    assert result.exit_codes == [0, 0], result.text
    assert result.text.count("step skipped on all ranks") == 1
    assert "iteration 2: loss is NaN or Inf, step skipped on all ranks (rank 1: clip1/2)" in result.text
    sums = result.jsons[0]["sums"]
    assert result.jsons[1]["sums"] == sums
    assert sums[0] == sums[1] != sums[2]


def test_nan_in_too_many_steps_stops_all_ranks_with_code_4(options):
    result = run_ranks(2, WORKER, str(options), "always")

    assert result.exit_codes == [4, 4]
    assert result.text.count("NonFiniteError: loss NaN or Inf in 3 steps in a row") == 1
    assert "rank 1: clip1/3" in result.text
    dump = options.parent / "experiments/steps/nonfinite_3.json"
    assert str(dump) in result.text
    steps = json.loads(dump.read_text(), parse_constant=pytest.fail)["steps"]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert {(s["what"], s["grad_norm"], s["scale"]) for s in steps} == {("loss", "nan", 1.0)}
    assert all(0.009 < s["lr"] <= 0.01 for s in steps)
    healthy, broken = steps[1]["ranks"]
    assert healthy["finite"] and healthy["loss"] > 0 and healthy["samples"] == ["clip0/2"]
    assert broken == {"rank": 1, "loss": "nan", "finite": False, "samples": ["clip1/2"]}


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_error_is_reported_before_a_dashboard_that_hangs_while_closing(tmp_path, ranks):
    logging = {"use_tensorboard": False, "writers": ["hanging"]}
    changes = ("datasets.test={}", "train.max_nonfinite_steps=1")

    result = odd(write_odd(tmp_path, logging=logging), *changes, case="nan", struck=(0, 2), ranks=ranks)

    assert result.exit_codes == [4] * ranks, result.text
    assert result.text.count("NonFiniteError: ") == 1 and "StallError" not in result.text


def test_one_rank_without_memory_ends_all_and_says_what_to_change(options):
    # Three ranks: their first two passes settle the buckets of DDP, before the first step itself.
    result = run_ranks(3, WORKER, str(options), "memory")

    assert result.exit_codes == [1, 1, 1]
    assert result.text.count("out of memory on rank 1") == 1
    assert "train.amp.enable" in result.text and "Traceback" not in result.text


def test_an_infinite_loss_whose_gradients_are_finite_is_skipped_too():
    # sqrt(inf) has a slope of 0: the norm of the gradients alone would pass.
    values = {"netG": network(fusion="none"), "train": {"G_lossfn_type": "charbonnier", "E_decay": 0}}
    model = define_Model(values)
    model.init_train()
    clip = torch.rand(1, 2, 3, 32, 32)

    for step, gt in enumerate((clip, torch.full_like(clip, 1e30), clip), start=1):
        model.optimize_parameters(step, [{"lq": clip, "gt": gt, "key": ["a/0"]}])

    found = model.epoch_log()
    assert (found["steps"], found["skipped"]) == (3, 1) and found["loss"] < 1
