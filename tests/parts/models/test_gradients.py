"""Gradients of several ranks, of accumulated micro-batches, and of a compiled network.

Several ranks must compute what one process computes on the joint batch. Gradients and weights are
compared in float64, so that the order of a sum changes nothing that counts. The ranks run
tests/dist/gradient_worker.py, which gives each step the same samples for any number of ranks. A
compiled network must train as the plain network does, which tests/dist/compile_worker.py compares.
"""

import json
import os

import pytest
import torch

from tests.dist.launching import run_ranks
from tests.helpers.train_files import network, write_options

WORKER = "tests/dist/gradient_worker.py"


def steps(options, out, ranks, per_rank, parts=1, count=1):
    """Train for `count` steps. Returns the gradients of the first, and the weights after the last.

    per_rank: samples of a micro-batch on each rank. parts: micro-batches of a step.
    """
    numbers = [str(number) for number in (per_rank, parts, count)]
    result = run_ranks(ranks, WORKER, str(options), str(out), *numbers, limit_s=120)
    assert result.exit_codes == [0] * ranks, result.text
    return torch.load(out, weights_only=True)


def changed(options, **values):
    """The option file with other top-level keys, train's keys merged."""
    content = json.loads(options.read_text())
    content["train"] |= values.pop("train", {})
    target = options.with_name("changed.json")
    target.write_text(json.dumps(content | values))
    return target


def assert_close(found, expected):
    """Check that two sets of tensors are equal, but for the rounding of float64.

    The largest difference counts relative to the largest value of all tensors, because rounding in
    a sum is relative to the largest terms.
    """
    assert found.keys() == expected.keys()
    scale = max(value.abs().max() for value in expected.values())
    worst = max(float((found[name] - expected[name]).abs().max() / scale) for name in expected)
    assert worst < 1e-9


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    """Give options without randomness in the network, and the step of one process on 2 samples."""
    folder = tmp_path_factory.mktemp("gradients")
    options = write_options(folder, netG=network(drop_path_rate=0.0))
    return options, steps(options, folder / "one.pth", ranks=1, per_rank=2)


@pytest.mark.parametrize(
    "values", [{}, {"netG": network(drop_path_rate=0.0, use_checkpoint_attn=True)}]
)
def test_two_ranks_have_the_gradients_of_one_rank_with_twice_the_batch(one_rank, tmp_path, values):
    options, expected = one_rank
    found = steps(changed(options, **values), tmp_path / "two.pth", ranks=2, per_rank=1)
    assert found["same_on_all_ranks"]
    assert_close(found["gradients"], expected["gradients"])


def test_accumulation_has_the_gradients_of_the_whole_batch(one_rank, tmp_path):
    options, _ = one_rank
    whole = steps(options, tmp_path / "whole.pth", ranks=1, per_rank=4)
    twice = changed(options, train={"accumulation_steps": 2})
    parts = steps(twice, tmp_path / "parts.pth", ranks=2, per_rank=1, parts=2)
    assert parts["same_on_all_ranks"]
    assert_close(parts["gradients"], whole["gradients"])


@pytest.fixture(scope="module")
def frozen(one_rank, tmp_path_factory):
    """Give the result of two steps of one process: the first with frozen parts, then without."""
    freeze = {"fix_iter": 2, "fix_keys": ["spynet", "deform"]}
    folder = tmp_path_factory.mktemp("frozen")
    options = changed(one_rank[0], train=freeze)
    # The parts are released in the second step.
    return freeze, steps(options, folder / "one.pth", ranks=1, per_rank=2, count=2)


@pytest.mark.parametrize("static", [False, True])
def test_parts_released_at_fix_iter_are_reduced_over_the_ranks(one_rank, frozen, tmp_path, static):
    # DDP forgets, without an error, what was frozen when it was built.
    freeze, single = frozen
    options = changed(one_rank[0], train=freeze, use_static_graph=static)
    double = steps(options, tmp_path / "two.pth", ranks=2, per_rank=1, count=2)
    assert not any("deform" in name for name in single["gradients"])
    assert double["same_on_all_ranks"]
    assert_close(double["weights"], single["weights"])


# Networks of one stage with one block of each kind, so that as little as possible is compiled. The
# first share `mul_attn_ratio` of the blocks, rounded down, has mutual attention, the rest has self
# attention alone. Of the self blocks, the second one shifts its windows.
TWO_KINDS = {"depths": [2] + [0] * 7, "mul_attn_ratio": 0.5}  # a mutual block and a self block
THREE_KINDS = {"depths": [3] + [0] * 7, "mul_attn_ratio": 0.4}  # and a shifted one
# The same graphs, run as they stand: making code of them takes minutes.
WITHOUT_CODE = ("eager",)
needs_patience = pytest.mark.skipif(
    not os.environ.get("SPIKEVRT_SLOW"), reason="five minutes; set SPIKEVRT_SLOW=1"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "backend", "graphs"),
    [(TWO_KINDS, WITHOUT_CODE, 4), pytest.param(THREE_KINDS, (), 6, marks=needs_patience)],
    ids=["graphs", "code"],
)
def test_a_compiled_network_trains_as_the_plain_one_does(tmp_path, blocks, backend, graphs):
    options = tmp_path / "options.json"
    recomputed = {"use_checkpoint_attn": True, "use_checkpoint_ffn": True}
    netG = network(**blocks, kernels="plain", fusion="none", drop_path_rate=0.0, **recomputed)
    options.write_text(
        json.dumps({"task": "run", "netG": netG, "train": {"G_lossfn_type": "charbonnier"}})
    )
    result = run_ranks(2, "tests/dist/compile_worker.py", str(options), *backend, limit_s=900)
    assert result.exit_codes == [0, 0], result.text
    for rank in result.jsons:
        assert rank["compiled"] == pytest.approx(rank["plain"], rel=1e-4)
        assert rank["gradient_error"] < 1e-4
        # One for each kind of block; the second size makes one more, of any size; the third none.
        assert rank["graphs"] == [0, graphs]
