"""The form of the network for GPUs, as far as a machine without a GPU can tell, and its options.

A form is one of several implementations of the same computation: the network takes one form on a
CPU, and another form on a GPU (models/vrt/forms.py).

The first half is about the memory of a training step. tests/helpers/fake_gpu.py runs a step on
tensors without numbers. They seem to be on a GPU. The program prints how many bytes the step holds
and moves, and which kernels of attention a GPU would choose.

The second half is about the option files in options/gpu. Each file is for a number of GPUs with a
certain memory (a "card" is a GPU with this memory). lab/card_recipes.py counts how many clips such
a GPU can take at once, and docs/gpu.md shows its tables.

Words of this file (1 GB = 10^9 bytes):

    kept        memory that autograd keeps for the backward pass
    held        all memory that is used after the forward pass
    transient   memory that the backward pass of one block needs for a moment, in addition to `kept`
"""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import main_train_vrt
from lab.card_recipes import (
    BATCH,
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
from models.vrt import forms
from models.vrt.block import Block
from models.vrt.memory.transient import block_transient
from tests.dist.launching import run_ranks
from tests.helpers.checked import options_of_part
from utils.options.models import Options

# Exit code of fake_gpu.py if this version of torch has no fake tensors on a missing GPU.
NO_FAKE_GPU = 77
# Names of cases of fake_gpu.py:
#
#     PUBLISHED       the network has its form for GPUs
#     CHECKPOINTED    the same form; options ask every block to compute its activations again in the
#                     backward pass
#     PLAIN           the network uses only operators of torch, none of our own forms of attention
PUBLISHED = "auto, bfloat16"
CHECKPOINTED = "auto, bfloat16, checkpointed"
PLAIN = "plain, bfloat16"


def count_figures(*arguments: str) -> Any:
    """Run tests/helpers/fake_gpu.py. Return what it prints: case -> name of a figure -> figure.

    The test is skipped if this version of torch has no such fake tensors. The program gets a
    process of its own, because it replaces functions of torch.
    """
    done = run_ranks(1, "tests/helpers/fake_gpu.py", *arguments, limit_s=300)
    if done.exit_codes == [NO_FAKE_GPU]:
        reason = done.stderr[0].strip().splitlines()[0]
        pytest.skip(reason)
    assert done.exit_codes == [0], done.text
    return json.loads(done.stdout[0])


# ---- Memory of a step ----


@pytest.fixture(scope="module")
def kept_of_published_network() -> dict[str, float]:
    """Give the GB that a step of the GoPro recipe keeps, for PUBLISHED and for CHECKPOINTED."""
    figures = count_figures("--kept-only", PUBLISHED, CHECKPOINTED)
    return {case: figures_of_case["kept_gb"] for case, figures_of_case in figures.items()}


def transient_gb_of_last_block() -> float:
    """Return the GB that the backward pass of a block of the last stage needs for a moment.

    This memory is needed in addition to the memory that the whole network keeps.

    `forms.CPU_FORM` must be empty, so that the CPU uses the form for GPUs.
    """
    # The input of the block is 1 clip of 6 x 192 x 192 tokens of 120 channels. This tensor takes no
    # memory for its values, because all of them are one number (`expand`).
    x = torch.empty((), dtype=torch.bfloat16).expand(1, 6, 192, 192, 120)
    last_block = Block(dim=120, heads=6, window=(6, 8, 8), shift=(0, 0, 0), mutual=False)
    return block_transient(last_block, x) / 1e9


# The next tests are slow, because a network of full depth takes ten seconds of a core. Other tests
# build a quarter of its blocks.
@pytest.mark.slow
@pytest.mark.parametrize("case", [PUBLISHED, CHECKPOINTED])
def test_the_form_for_gpus_keeps_little(kept_of_published_network, case):
    # The options of CHECKPOINTED change nothing: both cases keep 3.48 GB. The reason is that in 16
    # bits on a GPU, each block computes its inner tensors again even if no option asks for it
    # (docs/benchmarks/net_details.md). In the case PLAIN, blocks keep these tensors, and a step
    # keeps 38.5 GB.
    assert kept_of_published_network[case] < 4


@pytest.mark.slow
@pytest.mark.parametrize("case", [PUBLISHED, CHECKPOINTED])
def test_the_page_on_memory_has_the_counted_activations(
    kept_of_published_network, case, monkeypatch
):
    monkeypatch.setattr(forms, "CPU_FORM", ())

    # The backward pass begins with the last block, when all kept memory is still in use. So the
    # peak is the kept memory plus the memory that the last block needs for a moment.
    most_gb = kept_of_published_network[case] + transient_gb_of_last_block()

    # `counted_gb` reads the number in docs/memory.md. The numbers may differ by 5 %, because
    # `block_transient` is an estimate.
    assert counted_gb() == pytest.approx(most_gb, rel=0.05)


@pytest.fixture(scope="module")
def step() -> dict[str, float]:
    """Give the figures of a step of the network with a quarter of its blocks.

    Fake tensors of a forward and a backward pass take nine seconds of a core.
    """
    return count_figures("--shallow", PUBLISHED)[PUBLISHED]


@pytest.mark.slow
def test_a_step_holds_little_more_than_it_keeps(step):
    # In addition to what autograd keeps, the step holds the flows and the loss: 0.04 GB of 2.1 GB.
    assert step["kept_gb"] < step["held_gb"] < step["kept_gb"] + 0.2


@pytest.mark.slow
def test_the_backward_pass_needs_little_more_than_the_step_holds(step):
    # The backward pass needed 1.47 GB more on 28 Nov 2026. The limit is a little higher, so the
    # test notices a change that needs much more memory.
    assert step["peak_gb"] < step["held_gb"] + 1.6


@pytest.mark.slow
def test_a_step_moves_few_bytes(step):
    # A GPU spends most of a step on moving bytes, so a step that moves more takes longer. This
    # step moved 254 GB on 28 Nov 2026. 260 GB leaves room for other versions of torch.
    assert step["moved_gb"] < 260


@pytest.mark.slow
def test_a_step_copies_nothing_from_the_host(step):
    # A GPU waits for each such copy.
    assert step["copies_from_host"] == 0


# ---- Kernels of attention ----


@pytest.fixture(scope="module")
def calls_of_attention() -> dict[str, list[str]]:
    """Give the calls of attention of a forward pass, for the case PLAIN and for PUBLISHED.

    A call is a text, e.g. "efficient: head 16, 128 tokens, gradient, mask none": the kernel, the
    channels of a head, the tokens of a window, whether q has a gradient, and the kind of mask.
    """
    figures = count_figures("--kept-only", "--shallow", PLAIN, PUBLISHED)
    return {case: list(figures_of_case["attention"]) for case, figures_of_case in figures.items()}


# This test and the next ones are slow, because their fixture takes 4 seconds of a core.
@pytest.mark.slow
@pytest.mark.parametrize("case", [PLAIN, PUBLISHED])
def test_no_attention_of_the_network_needs_matrices_in_float32_or_cudnn(calls_of_attention, case):
    kernels = {call.split(":")[0] for call in calls_of_attention[case]}

    # "math" computes in float32, and "cudnn" needs cuDNN.
    assert kernels == {"efficient", "flash"}, calls_of_attention[case]


@pytest.mark.slow
@pytest.mark.parametrize("case", [PLAIN, PUBLISHED])
def test_heads_are_padded_to_a_multiple_of_8_channels(calls_of_attention, case):
    # The third word of a call, e.g. of "efficient: head 16, ...".
    channels = {call.split()[2].strip(",") for call in calls_of_attention[case]}

    # 96 channels in 6 heads are 16 channels a head, and 120 channels are 20. A head of 20 channels
    # is padded to 24.
    assert channels == {"16", "24"}


@pytest.mark.slow
def test_the_counted_calls_cover_all_windows_of_the_network(calls_of_attention):
    # The fourth word of a call, e.g. of "efficient: head 16, 128 tokens, ...".
    tokens = {call.split()[3] for call in calls_of_attention[PLAIN]}

    # Windows have 6 x 8 x 8 = 384 or 2 x 8 x 8 = 128 tokens. In mutual attention, the 64 tokens of
    # one frame attend to the tokens of the other frame of their window.
    assert tokens == {"384", "128", "64"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [pytest.param("gradient, mask", id="gradient"), pytest.param("mask none", id="no mask")]
)
def test_the_counted_calls_have_each_kind_that_changes_the_choice_of_a_kernel(
    calls_of_attention, part
):
    assert any(part in call for call in calls_of_attention[PLAIN])


def test_the_estimate_of_the_alignment_is_what_it_holds_in_backward_or_a_little_more():
    # For a shape of the input, `held` is the number of bytes that were counted, and `estimated` is
    # the number of bytes of the estimate.
    for shape, held, estimated in count_figures("--align"):
        # The estimate was 2 to 10 % too large when it was made. 1.15 allows for other versions of
        # torch. An estimate that is too small would end a training run for lack of memory.
        assert held < estimated < 1.15 * held, shape


# ---- Option files for cards ----

# A card is a GPU with a certain memory, e.g. 24 GB.

# Beginning of the names of the published option files.
GOPRO = ROOT / "options/vrt/006_train_vrt_videodeblurring_gopro"


@functools.cache
def read(file: Path) -> Options:
    """Return the options of a file. Many tests read the same file."""
    return main_train_vrt.read_options(["--opt", str(file)])


# All machines: a number of GPUs (8, 4 or 1), and the memory of each GPU in GB (24 to 141).
for_each_machine = pytest.mark.parametrize(
    ("gpus", "card"), [(gpus, card) for gpus in GPUS for card in CARDS]
)


@for_each_machine
def test_the_file_for_a_card_takes_the_published_batch(gpus, card):
    opt = read(file_for(gpus, card)).for_ranks(gpus)

    clips = options_of_part(opt.datasets.train).dataloader_batch_size
    assert clips == clips_at_once(gpus, card)
    assert gpus * clips * opt.train.accumulation_steps == BATCH == 8


@for_each_machine
def test_a_step_of_the_file_for_a_card_fits_the_card(gpus, card):
    opt = read(file_for(gpus, card))
    clips = options_of_part(opt.datasets.train).dataloader_batch_size
    net = options_of_part(opt.netG)

    # `counted_gb` is the memory of a clip in bfloat16, so the file must switch bfloat16 on.
    assert opt.train.amp.enable
    # `counted_gb` is a count without a GPU, so a real step may take more. A step must take less
    # than 70 % of the budget by the count. If a real step needed more than the budget, it would be
    # slower, but would not fail. With "auto", more blocks would keep less in memory. They would be
    # computed a second time in the backward pass.
    assert net.checkpoint == "auto"
    assert step_gb(clips, counted_gb()) < 0.7 * net.memory_budget_gb
    # 1e-6 GB allows for the rounding of a product, e.g. 0.9 * 24.
    assert net.memory_budget_gb <= USABLE_SHARE * card + 1e-6


@for_each_machine
def test_the_file_for_a_card_changes_only_memory_and_precision(gpus, card):
    opt = read(file_for(gpus, card))
    published = read(Path(f"{GOPRO}_rgbspike.json"))

    allowed = {"amp", "global_batch_size"}
    assert opt.train.model_dump(exclude=allowed) == published.train.model_dump(exclude=allowed)
    # Give both networks the same values of the keys about memory.
    memory = {"checkpoint": None, "memory_budget_gb": None}
    assert (
        options_of_part(opt.netG).plain() | memory
        == options_of_part(published.netG).plain() | memory
    )


@pytest.mark.parametrize("page", ["docs/gpu.md", "docs/zh/gpu.md"])
def test_every_option_file_for_a_card_has_its_line_in_the_table_of_the_page(page):
    # `table` has lines of the English page. The Chinese page has the same lines with another comma.
    text = (ROOT / page).read_text(encoding="utf-8").replace("、", ", ")

    for line in table():
        assert line in text


def test_the_name_of_every_option_file_says_for_which_card_it_is():
    named = {file_for(gpus, card) for gpus in GPUS for card in CARDS}

    assert named == set((ROOT / "options/gpu").glob("*.json"))


@pytest.mark.parametrize("page", ["docs/gpu.md", "docs/zh/gpu.md"])
def test_the_options_for_small_cards_stand_in_the_page(page):
    text = (ROOT / page).read_text(encoding="utf-8")

    for line in small_table():
        assert line in text


def cells_of(row: str) -> list[str]:
    """Return the cells of a row of `small_table`.

    The cells are the memory of a card, an option, and the GB that a step takes, e.g.
    | 4 GB | `datasets.train.gt_size=128` | 2.5 |
    """
    return [cell.strip(" `") for cell in row.strip("|").split("|")]


def card_of(row: str) -> str:
    """Return the name of a test of this row, e.g. "4 GB"."""
    card, *_ = cells_of(row)
    return card


@pytest.mark.parametrize("gpus", GPUS)
@pytest.mark.parametrize("row", list(small_table()), ids=card_of)
def test_the_options_for_small_cards_keep_the_published_batch_within_the_card(row, gpus):
    card, option, gb_of_step = cells_of(row)
    # These are the options that docs/gpu.md advises. "auto" makes the tiles of a validation smaller
    # if the memory is short.
    options = [
        option,
        "val.num_frame_testing=auto",
        "val.size_patch_testing=auto",
    ]

    file = file_for(gpus=8, card=24)
    opt = main_train_vrt.read_options(["--opt", str(file), *options]).for_ranks(gpus)

    clips = options_of_part(opt.datasets.train).dataloader_batch_size
    assert gpus * clips * opt.train.accumulation_steps == BATCH
    # `card` is e.g. "4 GB".
    assert float(gb_of_step) <= USABLE_SHARE * int(card.split()[0])
    # The step must be in 16 bits, and the kind of GPU decides in which type (bfloat16 or float16).
    assert options_of_part(opt.netG).checkpoint == "auto"
    assert opt.train.amp.enable
    assert opt.train.amp.dtype == "auto"


# ---- The recipe in bfloat16 ----


@pytest.mark.parametrize(
    "end", [pytest.param("", id="without spikes"), pytest.param("_rgbspike", id="with spikes")]
)
def test_the_recipe_in_bfloat16_differs_from_the_published_one_only_in_precision(end):
    published = read(Path(f"{GOPRO}{end}.json"))
    fast = read(Path(f"{GOPRO}{end}_bf16.json"))

    assert fast.train.amp.enable
    assert not published.train.amp.enable
    without_amp = fast.train.model_copy(update={"amp": published.train.amp})
    assert without_amp == published.train
    assert fast.datasets == published.datasets
    assert fast.netG == published.netG
    assert fast.val == published.val
    assert fast.logging == published.logging
