"""scripts/train_flow.py: training that goes on where it stopped, and figures of any weights in the published form."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sys

import cv2
import numpy as np
import pytest
import torch

from data.spike import simulate
from models.vrt.spynet import SpyNet
from models.vrt.warp import flow_warp
from scripts import train_flow
from scripts.flow_scenes import KINDS, SHEET, STEPS, make_pair, recorded
from scripts.sample_scenes import Layer, texture
from tests.test_flow_input import network

SHIPPED = "models/vrt/spynet_scenes.pth"
SHORT = ["--steps", "4", "--scenes", "1", "--test", "1"]


@pytest.fixture(autouse=True)
def opencv_as_before():
    """The script sets the threads of OpenCV for its process."""
    threads = cv2.getNumThreads()
    yield
    cv2.setNumThreads(threads)


class Terminal(io.StringIO):
    """At which someone presses Ctrl-C after the first step."""

    def write(self, text):
        if text.startswith("step 1:"):
            raise KeyboardInterrupt
        return super().write(text)


def errors_in(text):
    return {name: float(error) for name, error in re.findall(r"^\| ([a-z ]+?) +\| ([\d.]+)", text, re.MULTILINE)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a finished training, and what it printed."""
    folder, printed = tmp_path_factory.mktemp("whole"), io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert train_flow.main(["--out", str(folder), *SHORT]) == 0
    return folder, printed.getvalue()


def test_a_stopped_training_goes_on_and_gives_the_same_weights(whole, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(train_flow, "SAVE_EVERY", 1)
    shown = errors_in(whole[1])
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Terminal())
        assert train_flow.main(["--out", str(tmp_path / "stopped"), *SHORT]) == 130
    assert not (tmp_path / "stopped/spynet_scenes.pth").exists()

    assert train_flow.main(["--out", str(tmp_path / "stopped"), *SHORT]) == 0

    assert "step 2:" in (text := capsys.readouterr().out) and "step 1:" not in text
    one, two = (torch.load(f / "spynet_scenes.pth")["params"] for f in (whole[0], tmp_path / "stopped"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    written = json.loads((tmp_path / "stopped/flow.json").read_text())["end_point_error_px"]
    assert shown.keys() == {"zero flow", "blurry", "sharp", "spike", "both"} == written.keys()
    assert shown == errors_in(text)


def test_another_training_in_the_folder_is_neither_continued_nor_overwritten(whole, tmp_path, capsys):
    (tmp_path / "flow.json").write_text("mine")
    assert train_flow.main(["--out", str(tmp_path), *SHORT]) == 2
    assert (tmp_path / "flow.json").read_text() == "mine"

    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    assert train_flow.main(["--out", str(tmp_path), "--steps", "5", "--scenes", "1", "--test", "1"]) == 2
    assert "the same --seed, --steps and --scenes" in capsys.readouterr().err


def test_weights_of_another_source_are_measured(tmp_path, capsys):
    net = SpyNet()
    net.start_at_zero()
    learned = {name: value for name, value in net.state_dict().items() if name not in ("mean", "std")}
    torch.save({"state_dict": learned}, tmp_path / "theirs.pth")

    assert train_flow.main(["--weights", str(tmp_path / "theirs.pth"), "--test", "1"]) == 0

    errors = errors_in(capsys.readouterr().out)
    assert len(errors) == 5 and set(errors.values()) == {errors["zero flow"]}


def test_the_flow_of_a_scene_leads_from_one_sharp_frame_to_the_other():
    pair = make_pair(np.random.default_rng(8))
    sharp = pair.pictures["sharp"]

    off = (flow_warp(sharp.flip(0), pair.flow, padding="border") - sharp).abs()

    assert (sharp[0] - sharp[1]).abs().median() > 0.05
    assert off.median() < 0.005  # more only where something is seen in one frame alone


@pytest.mark.parametrize("motion", [(3.0, 0.0), (-6.0, 9.0)])
def test_the_shipped_weights_find_a_known_translation_with_each_input(motion):
    rng = np.random.default_rng(11)
    sheet = np.dstack((simulate.to_linear(texture(rng, SHEET)), np.ones((SHEET, SHEET), np.float32)))
    # What moves to the right is seen by a camera that moves to the left.
    shift = -np.arange(2 * STEPS)[:, None] / STEPS * np.array(motion)
    pair = recorded([Layer(sheet, np.column_stack((shift, np.zeros(2 * STEPS))))], rng)
    true = torch.tensor(motion).view(1, 1, 2, 1, 1)
    assert torch.allclose(pair.flow[:1], true[0].expand(1, 2, *pair.flow.shape[2:]), atol=0.02)

    net = network(flow_input="both", spynet_path=SHIPPED)
    for kind in KINDS:
        with torch.no_grad():
            flows = net.estimate_flows(pair.pictures[kind][None])
        for found, sign in ((flows.backward[0][0], 1), (flows.forward[0][0], -1)):
            off = (found - sign * true).norm(dim=2).mean()
            assert off < 0.25 * true.norm(), kind
