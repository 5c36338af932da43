"""The form of the network for GPUs, as far as a machine without one can tell."""

import json
from typing import Any

import pytest
import torch

from lab.card_recipes import counted_gb
from models.vrt import block, chunks
from tests.dist.launching import run_ranks

CASES = ("auto, bfloat16", "auto, bfloat16, checkpointed")


def counted(*arguments: str) -> Any:
    # A process of its own: the stand-ins must not meet other tests.
    done = run_ranks(1, "tests/fake_gpu.py", *arguments, limit_s=300)
    if done.exit_codes == [77]:
        pytest.skip(done.stderr[0].strip().splitlines()[0])
    assert done.exit_codes == [0], done.text
    return json.loads(done.stdout[0])


@pytest.fixture(scope="module")
def kept() -> dict[str, dict]:
    return counted("--kept-only", *CASES)


def test_the_form_for_gpus_mixes_no_devices_and_keeps_little(kept):
    assert kept["auto, bfloat16"]["kept_gb"] < 8
    assert kept["auto, bfloat16, checkpointed"]["kept_gb"] < 4


def test_the_page_on_memory_has_what_is_kept_and_the_largest_backward_pass(kept, monkeypatch):
    # The last blocks come first in backward, when all that was kept still lives.
    monkeypatch.setattr(chunks, "PUBLIC_ATTENTION", ("cuda", "cpu"))
    x = torch.empty((), dtype=torch.bfloat16).expand(1, 6, 192, 192, 120)
    besides = block.block_transient(block.Block(120, 6, (6, 8, 8), (0, 0, 0), False), x) / 1e9
    for page, case in zip(counted_gb(), CASES, strict=True):
        assert page == pytest.approx(kept[case]["kept_gb"] + besides, rel=0.05)


def test_a_step_holds_little_more_than_it_keeps_and_copies_nothing_from_the_host():
    step = counted("--shallow", "auto, bfloat16")["auto, bfloat16"]
    # The emulated autocast keeps what torch's own keeps: `held` has the flows and the loss besides.
    assert step["kept_gb"] < step["held_gb"] < step["kept_gb"] + 0.2
    assert step["peak_gb"] < step["held_gb"] + 1.6
    assert step["moved_gb"] < 260  # docs/gpu.md predicts the time of a step from that of all blocks, 650
    assert step["copies_from_host"] == 0


def test_no_attention_of_the_network_needs_matrices_in_float32_or_cudnn(kept):
    chosen = counted("--kept-only", "--shallow", "plain, bfloat16")["plain, bfloat16"]["attention"]
    assert {kernel.split(":")[0] for kernel in chosen} == {"efficient", "flash"}, chosen
    assert {"16", "24"} == {kernel.split()[2].strip(",") for kernel in chosen}  # 20 is padded
    assert {"64", "128", "384"} == {kernel.split()[3] for kernel in chosen}
    assert any("gradient, mask" in kernel for kernel in chosen) and any("mask none" in kernel for kernel in chosen)
    called = kept["auto, bfloat16"]["attention"]
    assert {kernel.split(":")[0] for kernel in called} == {"efficient", "flash"}, called
    assert {"16", "24"} == {kernel.split()[2].strip(",") for kernel in called}


def test_the_estimate_of_the_alignment_is_what_it_holds_in_backward_or_a_little_more():
    for case, held, estimated in counted("--align"):
        assert held < estimated < 1.15 * held, case
