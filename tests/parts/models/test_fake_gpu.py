"""The form of the network for GPUs, as far as a machine without a GPU can tell, and its options.

tests/helpers/fake_gpu.py runs a training step on tensors without numbers, which seem to be on a
GPU. It prints how many bytes the step keeps and moves, and which kernels of attention a GPU would
choose. The second half is about option files for cards of a certain memory: lab/card_recipes.py
counts which batch fits.
"""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import main_train_vrt
from lab.card_recipes import (
    CARDS,
    GPUS,
    ROOT,
    USABLE_SHARE,
    clips_at_once,
    counted_gb,
    file_for,
    small_table,
    step_gb,
    table,
)
from models.vrt import block, forms
from tests.dist.launching import run_ranks
from tests.helpers.checked import of_part

# Names of cases of fake_gpu.py: without and with activations that are computed again.
CASES = ("auto, bfloat16", "auto, bfloat16, checkpointed")


def counted(*arguments: str) -> Any:
    """Run tests/helpers/fake_gpu.py. Return what it prints: case -> name of a figure -> figure.

    Skips the test if this version of torch cannot do it.
    """
    # In a process of its own, because the program replaces functions of torch.
    done = run_ranks(1, "tests/helpers/fake_gpu.py", *arguments, limit_s=300)
    if done.exit_codes == [77]:
        pytest.skip(done.stderr[0].strip().splitlines()[0])
    assert done.exit_codes == [0], done.text
    return json.loads(done.stdout[0])


# The network of the full depth takes ten seconds of a core. Other tests build a quarter of it.
@pytest.mark.slow
def test_the_form_for_gpus_mixes_no_devices_and_keeps_little_as_the_page_on_memory_says(
    monkeypatch,
):
    kept = counted("--kept-only", *CASES)
    assert kept["auto, bfloat16"]["kept_gb"] < 8
    assert kept["auto, bfloat16, checkpointed"]["kept_gb"] < 4
    # The backward pass begins with the last blocks, when everything that was kept is still there.
    # So the most that is alive is what was kept, and what one of these blocks needs besides.
    monkeypatch.setattr(forms, "CPU_FORM", ())
    x = torch.empty((), dtype=torch.bfloat16).expand(1, 6, 192, 192, 120)
    besides = block.block_transient(block.Block(120, 6, (6, 8, 8), (0, 0, 0), False), x) / 1e9
    page = counted_gb()
    for case in ("auto, bfloat16", "auto, bfloat16, checkpointed"):
        assert page == pytest.approx(kept[case]["kept_gb"] + besides, rel=0.05)


# Fake tensors of a forward and a backward pass take nine seconds of a core.
@pytest.mark.slow
def test_a_step_holds_little_more_than_it_keeps_and_copies_nothing_from_the_host():
    step = counted("--shallow", "auto, bfloat16")["auto, bfloat16"]

    # `held` has the flows and the loss besides what autograd keeps.
    assert step["kept_gb"] < step["held_gb"] < step["kept_gb"] + 0.2
    assert step["peak_gb"] < step["held_gb"] + 1.6
    # In GB. docs/gpu.md predicts the time of a step from the bytes that all blocks move: 650 GB. A
    # quarter of the blocks is built here.
    assert step["moved_gb"] < 260
    assert step["copies_from_host"] == 0


def test_no_attention_of_the_network_needs_matrices_in_float32_or_cudnn():
    found = counted("--kept-only", "--shallow", "plain, bfloat16", "auto, bfloat16")
    chosen = found["plain, bfloat16"]["attention"]
    for called in (chosen, found["auto, bfloat16"]["attention"]):
        assert {kernel.split(":")[0] for kernel in called} == {"efficient", "flash"}, called
        assert {"16", "24"} == {kernel.split()[2].strip(",") for kernel in called}  # 20 is padded

    # The tokens of the windows of the network.
    assert {"64", "128", "384"} == {kernel.split()[3] for kernel in chosen}
    assert any("gradient, mask" in kernel for kernel in chosen)
    assert any("mask none" in kernel for kernel in chosen)


def test_the_estimate_of_the_alignment_is_what_it_holds_in_backward_or_a_little_more():
    for case, held, estimated in counted("--align"):
        assert held < estimated < 1.15 * held, case


# Beginning of the names of the published option files.
GOPRO = ROOT / "options/vrt/006_train_vrt_videodeblurring_gopro"


@functools.cache
def read(file: Path):
    """Return the options of a file. Many tests read the same file."""
    return main_train_vrt.read_options(["--opt", str(file)])


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("gpus", GPUS)
def test_the_file_for_a_card_trains_the_published_batch_within_it(gpus, card):
    opt = read(file_for(gpus, card))
    published = read(Path(f"{GOPRO}_rgbspike.json"))
    clips = opt.datasets.train.dataloader_batch_size
    assert clips == clips_at_once(gpus, card)
    assert gpus * clips * opt.train.accumulation_steps == 8
    # If the count were too low, checkpoint "auto" would compute more blocks again. By the count, a
    # step needs less than 70 % of the budget, so this should not happen.
    assert opt.train.amp.enable
    assert opt.netG.checkpoint == "auto"
    assert step_gb(clips, counted_gb()) < 0.7 * opt.netG.memory_budget_gb
    assert opt.netG.memory_budget_gb <= USABLE_SHARE * card + 1e-6
    # All else is as published.
    chosen = {"amp", "accumulation_steps"}
    assert opt.train.model_dump(exclude=chosen) == published.train.model_dump(exclude=chosen)
    memory = {"checkpoint": None, "memory_budget_gb": None}

    assert opt.netG.plain() | memory == published.netG.plain() | memory


def test_every_file_has_its_line_in_the_tables_and_its_name_says_for_which_card():
    lines = list(table())
    for readme in ("docs/gpu.md", "docs/zh/gpu.md"):
        text = (ROOT / readme).read_text(encoding="utf-8").replace("、", ", ")
        assert all(line in text for line in lines), lines
    files = {file_for(gpus, card) for gpus in GPUS for card in CARDS}

    assert files == set((ROOT / "options/gpu").glob("*.json"))


def test_the_options_for_small_cards_stand_in_both_pages_fit_and_keep_the_published_batch():
    for line in small_table():
        for page in ("docs/ddp.md", "docs/zh/ddp.md"):
            assert line in (ROOT / page).read_text(encoding="utf-8")
        gpus, card, options, gb = (cell.strip(" `") for cell in line.strip("|").split("|"))
        opt = main_train_vrt.read_options(["--opt", str(file_for(8, 24)), *options.split()])
        train = of_part(opt.datasets.train)
        net = of_part(opt.netG)
        assert int(gpus) * train.dataloader_batch_size * opt.train.accumulation_steps == 8
        assert float(gb) <= net.memory_budget_gb < int(card.split()[0])
        assert (net.checkpoint, opt.train.amp.dtype) == ("auto", "auto")


@pytest.mark.parametrize("end", ["", "_rgbspike"])
def test_the_recipe_in_bfloat16_differs_from_the_published_one_in_that_alone(end):
    precise = read(Path(f"{GOPRO}{end}.json"))
    fast = read(Path(f"{GOPRO}{end}_bf16.json"))

    assert fast.train.amp.enable
    assert not precise.train.amp.enable
    assert fast.train.model_copy(update={"amp": precise.train.amp}) == precise.train
    assert all(
        getattr(fast, part) == getattr(precise, part)
        for part in ("datasets", "netG", "val", "logging")
    )
