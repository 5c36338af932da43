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


@pytest.mark.parametrize(
    ("work", "parts", "step_s", "shares", "last"),
    [
        # parts of a unit add up to the whole, and a slow one is told in seconds
        ((2, "restoring", "frames"), 3, 30.0, (16, 33, 50, 66, 83, 100), "2 of 2 frames, 90.0 s each"),
        # an action of seconds has no line
        ((10, "checking", "files"), 1, 1.0, (50, 60, 70, 80, 90, 100), "10 of 10 files, 1.0 a second"),
    ],
)
def test_a_line_has_the_share_and_the_pace(monkeypatch, caplog, work, parts, step_s, shares, last):
    caplog.set_level(logging.INFO)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with open_progress("line", *work) as progress:
        for _ in range(work[0] * parts):
            now += step_s
            progress.update(1 / parts)
    assert [line.split(",")[0] for line in caplog.messages] == [f"{work[1]}: {share} %" for share in shares]
    assert caplog.messages[-1] == f"{work[1]}: 100 %, {last}, 00:00:00 left"
    assert caplog.messages[0].endswith(("0.3 of 2 frames, 90.0 s each, 00:02:30 left", "a second, 00:00:05 left"))
