"""The option files for cards, options/gpu/: the published total batch, in what the card holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import main_train_vrt

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "options/gpu").glob("*.json"))
GOPRO = ROOT / "options/vrt/006_train_vrt_videodeblurring_gopro"


def read(file: Path):
    return main_train_vrt.read_options(["--opt", str(file)])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_for_a_card_trains_the_published_batch_in_90_percent_of_it(file):
    gpus, card = map(int, re.search(r"_(\d+)x(\d+)gb$", file.stem).groups())
    opt, published = read(file), read(Path(f"{GOPRO}_rgbspike.json"))
    assert gpus * opt.datasets.train.dataloader_batch_size * opt.train.accumulation_steps == 8
    assert opt.train.amp.enable and opt.netG.checkpoint == "auto"
    assert opt.netG.memory_budget_gb == pytest.approx(0.9 * card)
    # All else is as published.
    chosen = {"amp", "accumulation_steps"}
    assert opt.train.model_dump(exclude=chosen) == published.train.model_dump(exclude=chosen)
    memory = {"checkpoint": None, "memory_budget_gb": None}
    assert opt.netG.plain() | memory == published.netG.plain() | memory


@pytest.mark.parametrize("end", ["", "_rgbspike"])
def test_the_recipe_in_bfloat16_differs_from_the_published_one_in_that_alone(end):
    precise, fast = read(Path(f"{GOPRO}{end}.json")), read(Path(f"{GOPRO}{end}_bf16.json"))
    assert fast.train.amp.enable and not precise.train.amp.enable
    assert fast.train.model_copy(update={"amp": precise.train.amp}) == precise.train
    for section in ("datasets", "netG", "val", "logging"):
        assert getattr(fast, section) == getattr(precise, section)
