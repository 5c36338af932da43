"""lab/train_flow.py: its training, its scenes, and figures of any weights in the published form; the shipped ones."""

import json
import re

import cv2
import numpy as np
import pytest
import torch

from data.spike import simulate
from lab import train_flow
from lab.flow_scenes import KINDS, SHEET, STEPS, make_pair, recorded
from models.vrt.flow import flow_warp
from models.weights import read_weights
from scripts.make_sample_data import Layer, texture
from tests.test_flow_input import network

SHIPPED = "models/vrt/spynet_scenes.pth"
SHORT = ["--steps", "4", "--scenes", "1", "--test", "1"]


@pytest.fixture(autouse=True)
def opencv_as_before():
    """The script sets the threads of OpenCV for its process."""
    threads = cv2.getNumThreads()
    yield
    cv2.setNumThreads(threads)


def errors_in(text):
    return {name: float(error) for name, error in re.findall(r"^\| ([a-z ]+?) +\| ([\d.]+)", text, re.MULTILINE)}


def test_a_training_writes_weights_and_the_figures_that_it_prints_of_weights_of_any_source(tmp_path, capsys):
    assert train_flow.main(["--out", str(tmp_path / "flow"), *SHORT]) == 0

    shown = errors_in(capsys.readouterr().out)
    written = json.loads((tmp_path / "flow/flow.json").read_text())["end_point_error_px"]
    assert shown.keys() == {"zero flow", "blurry", "sharp", "spike", "both"} == written.keys()
    ours = tmp_path / "flow/spynet_scenes.pth"
    theirs = {name: value for name, value in read_weights(ours).items() if name not in ("mean", "std")}
    torch.save({"state_dict": theirs}, tmp_path / "theirs.pth")
    for path in (ours, tmp_path / "theirs.pth"):
        assert train_flow.main(["--weights", str(path), "--test", "1"]) == 0
        assert errors_in(capsys.readouterr().out) == shown


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
        for found, sign in zip((way[0] for way in flows[0]), (1, -1), strict=True):
            off = (found - sign * true).norm(dim=2).mean()
            assert off < 0.25 * true.norm(), kind
