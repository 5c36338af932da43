"""The option files that come with the project, against the real networks and datasets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import main_train_vrt
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


def test_the_page_of_options_is_up_to_date():
    page = (ROOT / "docs/options.md").read_text(encoding="utf-8")
    # In a process of its own: other tests register parts that no user has.
    script = "from scripts.make_options_doc import make_page; print(make_page(), end='')"
    made = run_command([sys.executable, "-c", script])
    assert made.stdout[0] == page, "run python scripts/make_options_doc.py"
