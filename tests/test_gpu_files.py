"""The option files for cards, options/gpu/: the published total batch, in what the card holds."""

import functools
from pathlib import Path

import pytest

import main_train_vrt
from lab.card_recipes import CARDS, GPUS, ROOT, SHARE, clips_at_once, counted_gb, file_for, small_table, step_gb, table

GOPRO = ROOT / "options/vrt/006_train_vrt_videodeblurring_gopro"


@functools.cache
def read(file: Path):
    return main_train_vrt.read_options(["--opt", str(file)])


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("gpus", GPUS)
def test_the_file_for_a_card_trains_the_published_batch_within_it(gpus, card):
    opt, published = read(file_for(gpus, card)), read(Path(f"{GOPRO}_rgbspike.json"))
    clips = opt.datasets.train.dataloader_batch_size
    assert clips == clips_at_once(gpus, card)
    assert gpus * clips * opt.train.accumulation_steps == 8
    # Where the count is wrong, "auto" recomputes; even with every block recomputed there is room to spare.
    assert opt.train.amp.enable and opt.netG.checkpoint == "auto"
    assert step_gb(clips, counted_gb()[1]) < 0.7 * opt.netG.memory_budget_gb
    assert opt.netG.memory_budget_gb <= SHARE * card + 1e-6
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
        assert int(gpus) * opt.datasets.train.dataloader_batch_size * opt.train.accumulation_steps == 8
        assert float(gb) <= opt.netG.memory_budget_gb < int(card.split()[0])
        assert (opt.netG.checkpoint, opt.train.amp.dtype) == ("auto", "auto")


@pytest.mark.parametrize("end", ["", "_rgbspike"])
def test_the_recipe_in_bfloat16_differs_from_the_published_one_in_that_alone(end):
    precise, fast = read(Path(f"{GOPRO}{end}.json")), read(Path(f"{GOPRO}{end}_bf16.json"))
    assert fast.train.amp.enable and not precise.train.amp.enable
    assert fast.train.model_copy(update={"amp": precise.train.amp}) == precise.train
    for section in ("datasets", "netG", "val", "logging"):
        assert getattr(fast, section) == getattr(precise, section)
