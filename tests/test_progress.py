"""Progress of an action: a bar on a terminal, lines elsewhere, or nothing."""

import io
import logging
import re
import sys
import time

import pytest

from utils.run.progress import open_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch, kind, stream=Terminal):
    """What an action of 30 steps writes to stderr."""
    terminal = stream()
    monkeypatch.setattr(sys, "stderr", terminal)
    with open_progress(kind, 30, "checking", "files", quiet_s=0, is_kept=True) as progress:
        for _ in range(30):
            progress.update()
    assert sys.stderr is terminal
    return terminal.getvalue()


@pytest.mark.parametrize("disabled", ["", "0"])
def test_a_bar_is_drawn_on_a_terminal(monkeypatch, disabled):
    monkeypatch.setenv("TQDM_DISABLE", disabled)
    text = shown(monkeypatch, "bar")
    assert "checking" in text and "30/30" in text


@pytest.mark.parametrize(("kind", "disabled"), [("bar", "1"), ("line", "1"), ("none", "0")])
def test_tqdm_disable_is_honoured_and_none_shows_nothing(monkeypatch, caplog, kind, disabled):
    monkeypatch.setenv("TQDM_DISABLE", disabled)
    caplog.set_level(logging.INFO)
    assert shown(monkeypatch, kind) == "" and caplog.text == ""


@pytest.mark.parametrize(("kind", "stream"), [("line", Terminal), ("bar", io.StringIO)])
def test_lines_come_at_each_tenth_also_where_there_is_no_terminal_for_a_bar(monkeypatch, caplog, kind, stream):
    caplog.set_level(logging.INFO)
    assert shown(monkeypatch, kind, stream) == ""
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 10
    line = r"checking: {} %, {} of 30 files, [\d.]+ a second, 00:00:00 left"
    assert re.fullmatch(line.format(10, 3), lines[0]) and re.fullmatch(line.format(100, 30), lines[-1])


def test_parts_of_a_unit_add_up_to_the_whole_and_a_slow_one_is_told_in_seconds(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with open_progress("line", 2, "restoring", "frames") as progress:
        for _ in range(6):
            now += 30.0
            progress.update(1 / 3)
    assert caplog.messages[0] == "restoring: 16 %, 0.3 of 2 frames, 90.0 s each, 00:02:30 left"
    assert caplog.messages[-1] == "restoring: 100 %, 2 of 2 frames, 90.0 s each, 00:00:00 left"


def test_an_action_of_seconds_has_no_line(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with open_progress("line", 10, "checking", "files") as progress:
        for _ in range(10):
            now += 1.0
            progress.update()
    assert [line.split(",")[0] for line in caplog.messages] == [f"checking: {n} %" for n in (50, 60, 70, 80, 90, 100)]
    assert caplog.messages[0].endswith("5 of 10 files, 1.0 a second, 00:00:05 left")
