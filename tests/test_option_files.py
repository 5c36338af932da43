"""The option files that come with the project, against the real networks and datasets."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import main_train_vrt
from scripts.make_options_doc import Translations, make_page
from tests.dist.launching import run_command

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "options").rglob("*.json"))
GOPRO = ROOT / "options/vrt/006_train_vrt_videodeblurring_gopro"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_option_file_of_the_project_is_valid(file):
    opt = main_train_vrt.read_options(["--opt", str(file)])
    assert opt.task == file.stem


def test_the_rgb_ablation_differs_from_the_reference_in_the_spikes_alone():
    rgb, both = (main_train_vrt.read_options(["--opt", f"{GOPRO}{end}.json"]) for end in ("", "_rgbspike"))
    assert (rgb.spike_channels, both.spike_channels) == (0, 8)
    assert rgb.netG.fusion.type == "none"
    assert {**rgb.netG.plain(), "fusion": 0} == {**both.netG.plain(), "fusion": 0}
    for section in ("train", "val", "logging"):
        assert getattr(rgb, section) == getattr(both, section)


def in_own_process(program: str) -> list[str]:
    """The JSON list that a program prints. In a process of its own: other tests register parts that no user has."""
    made = run_command([sys.executable, "-c", program])
    assert made.exit_codes == [0], made.text
    return json.loads(made.stdout[0])


def test_the_pages_of_options_are_up_to_date_in_both_languages():
    program = """import json; from scripts.make_options_doc import make_chinese_page, make_page
print(json.dumps([make_page(), make_chinese_page()]))"""
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("docs/options.md", "docs/zh/options.md")]
    assert in_own_process(program) == pages, "run python scripts/make_options_doc.py"


def test_a_key_without_translation_and_an_outdated_translation_are_named():
    say = Translations({"Optimizer.": "优化器。", "A sentence of the past.": "过去的句子。"})
    make_page(say)
    assert say.missing["train.G_optimizer_lr"] == "Full learning rate."
    assert "train.G_optimizer_type" not in say.missing and list(say.unused) == ["A sentence of the past."]
