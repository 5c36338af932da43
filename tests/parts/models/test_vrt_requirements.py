"""What VRT refuses: sizes that do not fit together, clips of a wrong shape, old options.

The network of most tests, SMALL of tests/helpers/small_vrt.py, has nine stages of 16 channels with
2 heads, and windows of 4 x 4 pixels. Each test changes the arguments that its case names. An error
names the option, e.g. netG.embed_dims[0].
"""

import pytest
import torch

from models.network_vrt import VRT
from models.portable import read_saved
from models.select_network import define_G
from tests.helpers.small_vrt import SMALL, small_vrt
from utils.errors import DataError, OptionError


@pytest.mark.parametrize(
    ("change", "key"),
    [
        pytest.param(
            {"num_heads": [3] * 9}, "netG.embed_dims[0]", id="channels not divisible by heads"
        ),
        pytest.param({"depths": [2] * 7}, "netG.depths", id="no layer of the last stage"),
        pytest.param({"embed_dims": [16] * 8}, "netG.embed_dims", id="a width is missing"),
        pytest.param(
            {"embed_dims": [16] * 8 + [20]}, "netG.embed_dims", id="widths of the last stage differ"
        ),
        pytest.param(
            {"embed_dims": [10] * 9, "num_heads": [2] * 9},
            "netG.embed_dims[0]",
            id="channels not divisible by 4",
        ),
        # Stages 1 to 7 form a U. The output of stage 7 (index 6) is added to the output of stage 1.
        pytest.param(
            {"embed_dims": [16] * 6 + [20] * 3}, "netG.embed_dims[6]", id="the U is not closed"
        ),
        pytest.param({"pa_frames": 6}, "netG.embed_dims[0]", id="channels not divisible by frames"),
        pytest.param(
            {"deformable_groups": 5},
            "netG.deformable_groups",
            id="channels not divisible by groups",
        ),
        pytest.param({"window_size": [6, 4]}, "netG.window_size", id="window of two sides"),
        pytest.param(
            {"pa_frames": 4, "deformable_groups": 1, "embed_dims": [16] * 9},
            "netG.deformable_groups",
            id="groups not divisible by frames",
        ),
        pytest.param({"upscale": 6}, "netG.upscale", id="enlargement by 6"),
        pytest.param({"upscale": -4}, "netG.upscale", id="negative enlargement"),
        pytest.param(
            {"indep_reconsts": [11]}, "netG.indep_reconsts", id="a stage that is not there"
        ),
        pytest.param({"out_chans": 1}, "netG.out_chans", id="grey output of RGB input"),
        pytest.param({"in_chans": 2}, "netG.in_chans", id="input of two channels"),
        pytest.param(
            {"pa_frames": 0, "in_chans": 2}, "netG.in_chans", id="new frames of two channels"
        ),
        pytest.param(
            {"pa_frames": 0, "fusion": {"type": "concat"}, "spike_channels": 4},
            "netG.fusion",
            id="new frames of frames and spikes",
        ),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused_by_name(change, key):
    with pytest.raises(OptionError) as refused:
        small_vrt(**change)

    assert refused.value.where == key


# `in_chans` is the value of the option netG.in_chans. None: the option is left out.
@pytest.mark.parametrize("in_chans", [None, 3, 7])
def test_the_advice_on_a_fusion_that_cannot_make_new_frames_works(in_chans):
    given = {"spike_channels": 4, "img_size": [6, 32, 32]}

    with pytest.raises(OptionError) as refused:
        small_vrt(pa_frames=0, fusion={"type": "concat"}, in_chans=in_chans, **given)

    assert refused.value.where == "netG.fusion"
    assert ("remove netG.in_chans" in refused.value.do) == (in_chans is not None)
    # Follow the advice, and leave in_chans out.
    assert 'set netG.fusion to "none" or "gated"' in refused.value.do
    for fusion in ("none", "gated"):
        net = small_vrt(pa_frames=0, fusion={"type": fusion}, **given)
        spike = torch.zeros(1, 6, 4, 32, 32)
        # The network makes one new frame. The shape is (clips, new frames, colours, height, width).
        assert net(torch.zeros(1, 6, 3, 32, 32), spike).shape == (1, 1, 3, 32, 32)
    assert "set netG.pa_frames to 2, 4 or 6" in refused.value.do
    small_vrt(pa_frames=2, fusion={"type": "concat"}, **given)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        pytest.param((1, 3, 3, 36, 32), "multiples of 8", id="height of 36"),
        # The smallest stage has 1/8 of the resolution. So its window of 4 x 4 pixels covers 32 x 32
        # pixels of a frame.
        pytest.param((1, 3, 3, 24, 32), "at least 32 x 32", id="too small"),
        pytest.param((1, 1, 3, 32, 32), "at least 2 frames", id="one frame"),
        pytest.param((1, 3, 4, 32, 32), "(B, N, 3, H, W)", id="four channels"),
    ],
)
def test_clips_of_a_wrong_shape_are_refused(shape, expected):
    with pytest.raises(DataError) as refused:
        VRT(**SMALL)(torch.rand(shape))

    assert expected in refused.value.expected


def test_a_window_must_fit_into_the_smallest_stage_with_mutual_attention():
    # The first 3/4 of the blocks of a stage, rounded down, have mutual attention. Stage 4 has only
    # one block, so none of its blocks has mutual attention. So the smallest stage with mutual
    # attention is stage 3, at 1/4 of the resolution. Its window of 4 x 4 pixels covers 16 x 16
    # pixels of a frame.
    net = small_vrt(depths=[4, 4, 4, 1, 4, 4, 4, 1, 1], mul_attn_ratio=0.75)

    restored = net(torch.rand(1, 2, 3, 16, 16))
    with pytest.raises(DataError) as refused:
        net(torch.rand(1, 2, 3, 8, 16))

    assert restored.shape == (1, 2, 3, 16, 16)
    assert "at least 16 x 16" in refused.value.expected


def test_each_instant_of_gray_frames_begins_as_the_gray_frame_in_each_colour():
    # The network returns 3 instants of 3 colours: 9 channels. The network adds the one channel of
    # its input to each of the 9 channels. A new network computes 0 before it adds the input,
    # because conv_last is 0. So each of the 9 channels is the input.
    net = VRT(**SMALL, in_chans=1, out_chans=3, out_instants=3)
    gray = torch.rand(1, 2, 1, 32, 32)

    restored = net(gray)

    assert torch.equal(restored, gray.expand(1, 2, 9, 32, 32))


# ---- Options of a former version: flow_input ----

FORMER = {"net_type": "vrt", **SMALL, "flow_input": "rgb", "flow_channels": None}


def test_weights_that_name_the_blurry_frames_as_input_of_the_flow_load(tmp_path):
    net = define_G({"netG": FORMER})
    options = {"scale": 1, "netG": FORMER, "spike_channels": 0, "spike": None, "spike_data": None}
    torch.save({"params": net.state_dict(), "options": options}, tmp_path / "former.pth")

    loaded = read_saved(tmp_path / "former.pth").build()

    clip = torch.rand(1, 2, 3, 32, 32)
    assert loaded(clip).shape == clip.shape


def test_another_input_of_the_flow_is_refused():
    with pytest.raises(OptionError, match=r"unknown option netG\.flow_input") as refused:
        define_G({"netG": {**FORMER, "flow_input": "both"}})

    assert refused.value.do.startswith("remove it")
