"""prepare_gopro_spike.py: its processes, its end and second start, what it shows."""

import base64
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest

from data.pool import run_parallel
from data.spike.formats import read_spikes
from data.spike.represent import represent
from data.spike.stream import SpikeGeometry
from scripts.parts.shown import shown
from tests.dist.launching import ROOT
from tests.gopro_files import SIZE, files, prepare, write_raw, write_tree
from tests.test_progress import Terminal
from utils.errors import DataError


@pytest.fixture
def raw(tmp_path):
    return write_raw(tmp_path / "raw")


def test_a_killed_run_leaves_no_process_and_continues_to_the_same_bytes(tmp_path, capsys):
    raw, out = tmp_path / "GOPRO_Large_all", tmp_path / "out"
    total = write_tree(raw)
    command = [sys.executable, "scripts/prepare_gopro_spike.py", "--source", str(raw), "--out", str(out)]
    environment = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
    run = subprocess.Popen(
        [*command, "--workers", "2"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    line = next(line for line in run.stdout if re.match(r"making: [4-9]\d %", line))
    run.kill()
    rest = run.stdout.read()  # ends when the last process does
    run.wait()

    done, of = map(int, re.search(r"(\d+) of (\d+) frames, [\d.]+ a second, \d\d:\d\d:\d\d left", line).groups())
    assert of == 2 * total and 0.4 * of <= done < of and "summary" not in rest
    finished = {path: path.stat().st_mtime_ns for path in out.glob("*/*/*/made.json")}
    assert finished and list(out.glob("*/*/.*.tmp"))

    assert prepare("--source", raw, "--out", out) == 0
    counted = [int(number) for number in re.findall(r"making: .* of (\d+) frames", capsys.readouterr().out)]
    left = 2 * total - sum(len(list(path.parent.glob("s*/*"))) * 3 for path in finished)
    assert counted and set(counted) == {left}
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    prepare("--source", raw, "--out", tmp_path / "whole")
    assert files(out) == files(tmp_path / "whole")


def test_the_summary_shows_every_clip_with_its_rates(raw, tmp_path, capsys):
    noise = ["--rate", "0.8", "--dark-rate", "0.05", "--shot-noise", "0.1"]
    prepare("--source", raw, "--out", tmp_path / "out", *noise)
    folder = tmp_path / "out/GOPRO_Large_spike_seq"
    numbers = json.loads((folder / "summary.json").read_text())

    assert numbers["recipe"]["rate"] == 0.8 and numbers["recipe"]["shot_noise"] == 0.1
    clips = {clip.pop("clip"): clip for clip in numbers["clips"]}
    assert list(clips) == ["GOPR0001_03_00", "GOPR0002_05_00", "GOPR0003_03_00"]
    clip = clips["GOPR0002_05_00"]
    assert (clip["split"], clip["frames"], clip["planes"], clip["gt_plane"]) == ("train", 2, 40, 16)
    assert (clip["size"], clip["spike_size"], clip["offset"], clip["shown"]) == ([32, 32], [16, 16], 0, "000001")
    assert clip["firing_rate"] == pytest.approx(clip["light_rate"], rel=0.03) and clip["correlation"] > 0.8
    stream = read_spikes(folder / "train/GOPR0002_05_00/spike/000001.dat", SpikeGeometry(16, 16))
    page = (folder / "summary.html").read_text()
    pictures = re.findall(r'alt="(\w+), frame (\d+)" src="data:image/jpeg;base64,([^"]+)"', page)
    assert [(name, frame) for name, frame, _ in pictures] == [(name, c["shown"]) for name, c in clips.items()]
    strip = cv2.imdecode(np.frombuffer(base64.b64decode(pictures[1][2]), np.uint8), cv2.IMREAD_COLOR)[18:, :, ::-1]
    sharp = cv2.imread(str(tmp_path / "out/GOPRO_Large/train/GOPR0002_05_00/sharp/000001.png"))[..., ::-1]
    blurry, shown, spikes = (cv2.resize(strip[:, i * 162 :][:, :160], (SIZE, SIZE)).astype(float) for i in range(3))
    assert np.abs(shown - sharp).mean() < 8 and 0 < np.abs(blurry - sharp).mean() < 30
    seen = represent("tfp", stream, 16, half_window=10, rate=0.8, gamma=2.2)[0]
    assert np.corrcoef(cv2.resize(spikes[..., 0], (16, 16)).ravel(), seen.ravel())[0, 1] > 0.95


def test_a_summary_is_replaced_only_where_it_is_ours(raw, tmp_path, capsys):
    prepare("--source", raw, "--out", tmp_path / "out", "--leave-out", "GOPR0003_03_00")
    summary = tmp_path / "out/GOPRO_Large_spike_seq/summary.json"
    assert prepare("--source", raw, "--out", tmp_path / "out") == 0
    assert "GOPR0003_03_00" in summary.read_text()
    summary.write_text("mine")
    shutil.rmtree(tmp_path / "out/GOPRO_Large_spike_seq/test/GOPR0003_03_00")
    before = files(tmp_path / "out")
    assert prepare("--source", raw, "--out", tmp_path / "out") == 3
    assert "summary.json" in capsys.readouterr().err and files(tmp_path / "out") == before


@pytest.mark.parametrize(("disabled", "has_bar"), [("0", True), ("1", False)])
def test_a_terminal_shows_a_bar_over_all_frames_with_the_time_left(monkeypatch, capsys, disabled, has_bar):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TQDM_DISABLE", disabled)
    with shown(40, "making", "frames") as progress:
        for count in (5, 30, 5):
            progress.update(count)
    assert bool(re.search(r"making: 100%.* 40/40 \[00:00<00:00, .* frames/s\]", terminal.getvalue())) == has_bar
    assert capsys.readouterr().out == ""


def test_an_error_ends_the_other_processes_at_once():
    with pytest.raises(ValueError, match="non-negative"):
        list(run_parallel(time.sleep, [(300,), (-1,), (300,), (300,)], 2))
    assert not multiprocessing.active_children()


def test_a_process_that_dies_is_reported():
    with pytest.raises(DataError, match="a process of the pool died"):
        list(run_parallel(os._exit, [(7,), (7,)], 2))
