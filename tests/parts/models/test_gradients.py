"""Gradients of several ranks, of accumulated micro-batches, and of a compiled network.

Several ranks must compute the same as one process on the joint batch. But they add numbers in
another order than one process. So gradients and weights are compared in float64, in which the order
makes only tiny differences. The ranks run tests/dist/gradient_worker.py. It gives each step the
same samples for any number of ranks. A compiled network must train like the network without
torch.compile. tests/dist/compile_worker.py compares the two trainings.
"""

import json
import os

import pytest
import torch

from tests.dist.launching import run_ranks
from tests.helpers.train_files import network_section, write_options

WORKER = "tests/dist/gradient_worker.py"


def train_steps(options, out, ranks, per_rank, micro_batches=1, steps=1):
    """Train some steps. Return the gradients of the first step and the weights after the last.

    out: the file that the worker writes. per_rank: samples of a micro-batch on each rank.
    micro_batches: number of micro-batches of a step.
    """
    numbers = [str(per_rank), str(micro_batches), str(steps)]
    result = run_ranks(ranks, WORKER, str(options), str(out), *numbers, limit_s=120)
    assert result.exit_codes == [0] * ranks, result.text
    return torch.load(out, weights_only=True)


def write_changed_options(options, train=None, **sections):
    """Write another option file beside `options`. Return its path.

    train: keys to add to the section "train". sections: whole sections to replace.
    """
    content = json.loads(options.read_text())
    if train is not None:
        content["train"].update(train)
    content.update(sections)
    target = options.with_name("changed.json")
    target.write_text(json.dumps(content))
    return target


def assert_close(found, expected):
    """Check that two sets of tensors are equal up to the rounding of float64.

    The largest difference counts relative to the largest value of all tensors, because rounding in
    a sum is relative to the largest terms.
    """
    assert found.keys() == expected.keys()
    largest_value = max(value.abs().max() for value in expected.values())
    for name, value in expected.items():
        difference = (found[name] - value).abs().max()
        assert difference / largest_value < 1e-9, name


# ---- Several ranks, and several micro-batches ----


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    """Give options without randomness in the network, and the step of one process on 2 samples."""
    folder = tmp_path_factory.mktemp("gradients")
    options = write_options(folder, netG=network_section(drop_path_rate=0.0))
    return options, train_steps(options, folder / "one.pth", ranks=1, per_rank=2)


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({}, id="activations kept"),
        pytest.param(
            {"netG": network_section(drop_path_rate=0.0, use_checkpoint_attn=True)},
            id="activations computed again",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_ranks_have_the_gradients_of_one_rank_with_twice_the_batch(
    one_rank, tmp_path, sections
):
    options, expected = one_rank

    found = train_steps(
        write_changed_options(options, **sections), tmp_path / "two.pth", ranks=2, per_rank=1
    )

    assert found["same_on_all_ranks"]
    assert_close(found["gradients"], expected["gradients"])


def test_accumulation_has_the_gradients_of_the_whole_batch(one_rank, tmp_path):
    options, _ = one_rank
    accumulating = write_changed_options(options, train={"accumulation_steps": 2})

    # Both runs take 4 samples in a step. The first has one rank with 4 samples. The second has 2
    # ranks with 2 micro-batches of 1 sample each.
    whole = train_steps(options, tmp_path / "whole.pth", ranks=1, per_rank=4)
    found = train_steps(
        accumulating, tmp_path / "accumulated.pth", ranks=2, per_rank=1, micro_batches=2
    )

    assert found["same_on_all_ranks"]
    assert_close(found["gradients"], whole["gradients"])


# ---- Frozen parts ----

# The parts with these names are frozen in step 1, and trained from step 2 on.
FREEZE = {"fix_iter": 2, "fix_keys": ["spynet", "deform"]}


@pytest.fixture(scope="module")
def results_of_frozen_step(one_rank, tmp_path_factory):
    """Give the result of two steps of one process: the first with frozen parts, then without."""
    options = write_changed_options(one_rank[0], train=FREEZE)
    folder = tmp_path_factory.mktemp("frozen")
    return train_steps(options, folder / "one.pth", ranks=1, per_rank=2, steps=2)


def test_frozen_parts_have_no_gradient(results_of_frozen_step):
    for name in results_of_frozen_step["gradients"]:
        assert "deform" not in name


# DDP (torch's DistributedDataParallel) sums only the gradients of parameters that were trained when
# DDP was built. So DDP must be built anew at fix_iter. Otherwise it would leave out the released
# parts without an error, and the weights of the ranks would drift apart.
@pytest.mark.parametrize(
    "is_static",
    [
        pytest.param(False, id="any graph"),
        pytest.param(True, id="use_static_graph", marks=pytest.mark.slow),
    ],
)
def test_parts_released_at_fix_iter_are_reduced_over_the_ranks(
    one_rank, results_of_frozen_step, tmp_path, is_static
):
    options = write_changed_options(one_rank[0], train=FREEZE, use_static_graph=is_static)

    found = train_steps(options, tmp_path / "two.pth", ranks=2, per_rank=1, steps=2)

    assert found["same_on_all_ranks"]
    assert_close(found["weights"], results_of_frozen_step["weights"])


# ---- torch.compile ----

# Options of networks of one stage with one block of each kind, so that as little as possible is
# compiled. The first blocks of a stage have mutual attention. `mul_attn_ratio` is their fraction of
# all blocks: e.g. 0.4 x 3 blocks = 1.2, rounded down to 1 block. The other blocks have only
# self-attention, and every second one of these other blocks shifts its windows.
TWO_KINDS = {"depths": [2] + [0] * 7, "mul_attn_ratio": 0.5}  # mutual, self
THREE_KINDS = {"depths": [3] + [0] * 7, "mul_attn_ratio": 0.4}  # mutual, self, shifted self
needs_patience = pytest.mark.skipif(
    not os.environ.get("SPIKEVRT_SLOW"), reason="five minutes; set SPIKEVRT_SLOW=1"
)


def write_options_to_compile(path, blocks):
    """Write an option file for compile_worker.py. blocks: keys of netG that say which blocks."""
    netG = network_section(
        **blocks,
        kernels="plain",
        fusion="none",
        drop_path_rate=0.0,
        use_checkpoint_attn=True,
        use_checkpoint_ffn=True,
    )
    options = {"task": "run", "netG": netG, "train": {"G_lossfn_type": "charbonnier"}}
    path.write_text(json.dumps(options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "arguments", "graphs"),
    [
        # With "eager", torch runs each graph operation by operation, because making code of the
        # graphs takes minutes.
        pytest.param(TWO_KINDS, ["eager"], 4, id="graphs"),
        pytest.param(THREE_KINDS, [], 6, id="code", marks=needs_patience),
    ],
)
def test_a_compiled_network_trains_as_the_plain_one_does(tmp_path, blocks, arguments, graphs):
    options = tmp_path / "options.json"
    write_options_to_compile(options, blocks)

    result = run_ranks(2, "tests/dist/compile_worker.py", str(options), *arguments, limit_s=900)

    assert result.exit_codes == [0, 0], result.text
    for rank in result.jsons:
        # Compiled code may add numbers in another order, so float32 may round differently.
        assert rank["compiled"] == pytest.approx(rank["plain"], rel=1e-4)
        assert rank["gradient_error"] < 1e-4
        # The plain steps make no graph. The first compiled step makes a graph for each kind of
        # block. The second step has frames of another size. So for each kind, torch makes one more
        # graph. This graph takes any size. The third step makes no graph. This gives two graphs for
        # each kind of block.
        assert rank["graphs"] == [0, graphs]
