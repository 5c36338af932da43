"""Progress of an epoch: a bar on a terminal, ten lines, or nothing."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from utils.run.progress import open_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch, kind):
    """What an epoch of 30 steps writes to a terminal."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with open_progress(kind, 30, "epoch 1") as progress:
        for _ in range(30):
            progress.update("loss 0.1")
    return terminal.getvalue()


@pytest.mark.parametrize("disabled", ["", "0"])
def test_a_bar_is_drawn_on_a_terminal(monkeypatch, disabled):
    monkeypatch.setenv("TQDM_DISABLE", disabled)
    text = shown(monkeypatch, "bar")
    assert "epoch 1" in text and "30/30" in text


@pytest.mark.parametrize("kind", ["bar", "line"])
def test_tqdm_disable_is_honoured(monkeypatch, caplog, kind):
    monkeypatch.setenv("TQDM_DISABLE", "1")
    caplog.set_level(logging.INFO)
    assert shown(monkeypatch, kind) == "" and caplog.text == ""


def test_none_shows_nothing(monkeypatch):
    assert shown(monkeypatch, "none") == ""


def test_lines_come_at_each_tenth(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    assert shown(monkeypatch, "line") == ""
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 10
    assert lines[0] == "epoch 1: 10 %, 3 of 30 it, loss 0.1" and lines[-1] == "epoch 1: 100 %, 30 of 30 it, loss 0.1"
