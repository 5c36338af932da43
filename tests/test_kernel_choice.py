"""Which kernels "auto" takes: those that were measured on this very machine, and else the plain form."""

from __future__ import annotations

import importlib.util
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.vrt import kernel_choice
from models.vrt.kernel_choice import read_choice, write_choice
from utils.errors import DataError

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
CPU = torch.device("cpu")
# A process has read its choice once and keeps it.
READ = """
import logging, torch
from models.vrt.kernel_choice import read_choice
logging.basicConfig(level="WARNING", format="%(message)s")
torch.set_num_threads({threads})
print(*(read_choice(kernel, torch.device("cpu")) for kernel in ("attention", "deform_conv", "attention")))
"""


def choices_of_a_new_process(threads: int | None = None, **env: str) -> tuple[list[str], str]:
    code = READ.format(threads=threads or torch.get_num_threads())
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent.parent, env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout.split(), done.stderr


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return kernel_choice.choice_file()


def test_a_choice_holds_for_the_machine_that_was_measured_and_for_no_other(file, tmp_path):
    assert write_choice({"attention": "triton", "deform_conv": "plain"}, CPU) == file

    env = {"XDG_CACHE_HOME": str(tmp_path)}
    assert choices_of_a_new_process(**env) == (["triton", "plain", "triton"], "")
    # The number of threads is part of a CPU's name, as the model is of a GPU's.
    assert choices_of_a_new_process(torch.get_num_threads() + 1, **env) == (["plain"] * 3, "")


def test_a_new_choice_leaves_those_of_other_machines(file):
    file.parent.mkdir()
    file.write_text(json.dumps({"another GPU": {"attention": "plain"}}))

    write_choice({"attention": "triton"}, CPU)

    assert list(json.loads(file.read_text()).values()) == [{"attention": "plain"}, {"attention": "triton"}]


@pytest.mark.parametrize("content", ["{", "[1]", '{"x": {"attention": "fast"}}', '{"x": {"conv": "plain"}}'])
def test_an_unreadable_file_means_the_plain_form_one_warning_and_no_overwriting(file, content, tmp_path):
    file.parent.mkdir()
    file.write_text(content)

    found, said = choices_of_a_new_process(XDG_CACHE_HOME=str(tmp_path))

    assert found == ["plain"] * 3
    assert said.count("\n") == 1 and str(file) in said
    with pytest.raises(DataError, match="XDG_CACHE_HOME"):
        write_choice({"attention": "triton"}, CPU)
    assert file.read_text() == content


def test_a_home_that_is_a_file_means_the_plain_form_and_one_warning(tmp_path):
    (tmp_path / "home").write_text("")

    found, said = choices_of_a_new_process(HOME=str(tmp_path / "home"))

    assert found == ["plain"] * 3 and said.count("\n") == 1


def test_without_a_file_the_plain_form_runs_and_nothing_is_said(file, caplog):
    kernel_choice._choices.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert read_choice("attention", CPU) == "plain"
    assert not caplog.text
    kernel_choice._choices.cache_clear()
