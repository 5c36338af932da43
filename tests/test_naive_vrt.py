"""The oracle itself against the reference vectors, so that being equal to it means something."""

from __future__ import annotations

import pytest
import torch

from tests import golden
from tests.naive_vrt import NaiveVRT


@pytest.mark.parametrize(
    "name", ["net_deblur_pa2_2f_w8", "net_deblur_pa4_4f", "net_denoise_nonblind_3f", "net_gray_1ch", "net_sr4_pa2_6f"]
)
def test_the_plain_transcription_gives_the_reference_output(name):
    vector = golden.load_net(name)
    net = NaiveVRT(**vector.config["network"]).eval()
    net.load_state_dict(vector.weights, strict=False)
    stride = vector.config["output_stride"]

    with torch.no_grad():
        y = net.double()(vector.input)[..., ::stride, ::stride]

    assert golden.difference(vector.sampled("output", y), vector.samples["output"]) < golden.TOLERANCE
