"""The parts of the network against the reference vectors of single modules, and its flow in
training.
"""

import cv2
import numpy as np
import pytest
import torch

from models.model_vrt import define_Model
from models.network_vrt import OWN_FLOW, VRT
from models.portable import read_saved
from models.select_network import define_G
from models.vrt import forms
from models.vrt.block import BlockGroup
from models.vrt.deform_align import DeformAlign, align_clip
from models.vrt.flow import SpyNet, flow_warp, nearest4
from models.vrt.windows import sine_positions
from scripts.make_sample_data import texture
from tests.helpers import golden
from tests.helpers.checked import present
from tests.helpers.small_vrt import SMALL, small_vrt
from utils.errors import DataError, OptionError


def names(prefix: str) -> list[str]:
    return sorted(p.stem for p in golden.FOLDER.glob(f"{prefix}*.npz"))


def compare(found: dict[str, torch.Tensor], t: dict[str, torch.Tensor]) -> None:
    for key, value in found.items():
        assert golden.difference(value, t[key]) < golden.TOLERANCE, key


def gradients(tensors) -> dict[str, torch.Tensor]:
    return {f"grad/{key}": present(tensor.grad) for key, tensor in tensors}


@pytest.mark.parametrize(
    "mode", ["bilinear/zeros", "bilinear/border", "nearest/zeros", "nearest4/zeros"]
)
@pytest.mark.parametrize("lacking", [(), ("cpu",)])  # kinds without padding of the border
def test_warps_and_their_gradients(mode, lacking, monkeypatch):
    monkeypatch.setattr(forms, "NO_BORDER_PADDING", lacking)
    _, t = golden.load("mod_flow_warp")
    x, flow = t["x"].requires_grad_(), t["flow"].requires_grad_()
    moved = flow.permute(0, 3, 1, 2)
    y = nearest4(x, moved) if mode == "nearest4/zeros" else flow_warp(x, moved, *mode.split("/"))
    (y * golden.cotangent(y)).sum().backward()
    compare({f"out/{mode}": y, f"grad_x/{mode}": present(x.grad)}, t)
    assert (flow.grad is None) == (mode == "nearest4/zeros")
    found = torch.zeros_like(flow) if flow.grad is None else flow.grad
    assert torch.allclose(found, t[f"grad_flow/{mode}"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_nearest4_survives_a_flow_that_is_no_number(bad):
    flow = torch.full((1, 2, 4, 4), bad)
    assert nearest4(torch.ones(1, 1, 4, 4), flow).shape == (1, 4, 4, 4)


def test_one_coordinate_that_is_no_number_changes_no_bit_elsewhere():
    torch.manual_seed(0)
    x, flow = torch.rand(1, 2, 16, 16), 3 * torch.randn(1, 2, 16, 16)
    results = []
    for bad in (flow, flow.clone()):
        picture = x.clone().requires_grad_()
        bad.requires_grad_()
        if results:
            bad.data[0, :, 5, 7] = float("nan")
        y = flow_warp(picture, bad, padding="border")
        weight = torch.ones(16, 16)
        weight[5, 7] = 0
        (y * weight).square().sum().backward()
        results.append([y.detach(), present(picture.grad), present(bad.grad)])

    exact, found = results
    for tensor in (exact[0], found[0], exact[2], found[2]):
        tensor[0, :, 5, 7] = 0
    assert all(map(torch.equal, found, exact))


@pytest.mark.parametrize("size", [(32, 32), (8, 40), (16, 24)])
def test_spynet_takes_images_whose_coarsest_level_is_one_pixel(size):
    flows = SpyNet()(torch.rand(1, 3, *size), torch.rand(1, 3, *size))
    assert [tuple(f.shape[2:]) for f in flows] == [
        (size[0] // s, size[1] // s) for s in (1, 2, 4, 8)
    ]
    assert all(torch.isfinite(f).all() for f in flows)


# SpyNet, flows of distances one to three and the convolution itself: the networks of
# tests/parts/models/test_network_vrt.py.
@pytest.mark.parametrize("name", names("mod_align"))
def test_alignment_of_a_clip_and_its_gradients(name):
    config, t = golden.load(name)
    reach = config["pa_frames"] // 2
    module = DeformAlign(
        config["dim"], config["deformable_groups"], reach, config["max_residue_magnitude"]
    ).double()
    module.load_state_dict(golden.entries(t, "sd/pa_deform."))
    inputs = {k: t[k].requires_grad_() for k in t if k == "x" or k.startswith("flow_")}
    flows = ([inputs[f"flow_{way}/{d}"] for d in range(reach)] for way in ("backward", "forward"))
    later, earlier = align_clip(module, inputs["x"], *flows)
    (
        (later * golden.cotangent(later)).sum() + 2 * (earlier * golden.cotangent(earlier)).sum()
    ).backward()
    compare({"x_backward": later, "x_forward": earlier, **gradients(inputs.items())}, t)


@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize("name", names("mod_tmsag"))
def test_attention_group_and_all_its_gradients(name, kernels):
    config, t = golden.load(name)
    group = BlockGroup(
        config["dim"], config["depth"], config["num_heads"], tuple(config["window_size"]),
        config["mut_attn"], [0.0] * config["depth"], mlp_ratio=config["mlp_ratio"],
        qkv_bias=config["qkv_bias"], kernels=kernels,
    ).double()  # fmt: skip
    group.load_state_dict(golden.entries(t, "sd/"))
    x = t["input"].requires_grad_()
    y = group(x.permute(0, 2, 3, 4, 1)).permute(0, 4, 1, 2, 3)
    (y * golden.cotangent(y)).sum().backward()
    compare({"output": y, **gradients([("input", x), *group.named_parameters()])}, t)


def test_computed_tables_are_those_of_the_reference():
    config, t = golden.load("mod_tmsag_mutual")
    sizes = (config[key] for key in ("dim", "depth", "num_heads"))
    fresh = BlockGroup(*sizes, tuple(config["window_size"]), True, [0.0]).state_dict()
    for key in ("blocks.0.attn.position_bias", "blocks.0.attn.relative_position_index"):
        assert torch.allclose(fresh[key].double(), t[f"sd/{key}"].double(), atol=1e-6), key
    assert sine_positions(8, 8, 96).shape == (1, 64, 96)


def test_bfloat16_keeps_the_flow_in_float32_and_the_output_near():
    torch.manual_seed(0)
    net, x = VRT(**SMALL).eval(), torch.rand(1, 3, 3, 32, 32)
    net.conv_last.weight.data.normal_(std=0.1)
    exact = net(x)
    with torch.autocast("cpu", torch.bfloat16):
        rough = net(x)
        flows = net.estimate_flows(x)
    assert all(f.dtype is torch.float32 for backward, _ in flows for f in backward)
    assert 0 < (rough - exact).abs().max() < 0.05 * (exact - x).abs().max()
    rough.square().mean().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in net.parameters())


def test_a_fresh_network_moves_everywhere_as_soon_as_its_last_convolution_has_moved():
    torch.manual_seed(0)
    net, x = VRT(**SMALL, drop_path_rate=0.0), torch.rand(1, 3, 3, 32, 32)
    net.conv_last.weight.data.normal_(std=0.01)
    net(x).square().mean().backward()
    still = [k for k, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    # What stands before another convolution of zeros waits one step more.
    assert all(k.startswith("spynet.") or "pa_deform.conv_offset" in k for k in still), still
    last = net.get_parameter("spynet.basic_module.5.basic_module.8.weight")
    assert present(last.grad).any()


@pytest.mark.parametrize("change, key", [
    ({"num_heads": [3] * 9}, "netG.embed_dims[0]"), ({"depths": [2] * 7}, "netG.depths"),
    ({"embed_dims": [16] * 8}, "netG.embed_dims"),
    ({"embed_dims": [16] * 8 + [20]}, "netG.embed_dims"),
    ({"embed_dims": [10] * 9, "num_heads": [2] * 9}, "netG.embed_dims[0]"),
    ({"embed_dims": [16] * 6 + [20] * 3}, "netG.embed_dims[6]"),
    ({"pa_frames": 6}, "netG.embed_dims[0]"),
    ({"deformable_groups": 5}, "netG.deformable_groups"),
    ({"window_size": [6, 4]}, "netG.window_size"),
    ({"pa_frames": 4, "deformable_groups": 1, "embed_dims": [16] * 9}, "netG.deformable_groups"),
    ({"upscale": 6}, "netG.upscale"), ({"indep_reconsts": [11]}, "netG.indep_reconsts"),
    ({"out_chans": 1}, "netG.out_chans"), ({"in_chans": 2}, "netG.in_chans"),
])  # fmt: skip
def test_sizes_that_do_not_fit_together_are_refused_by_name(change, key):
    with pytest.raises(OptionError) as refused:
        small_vrt(**change)
    assert refused.value.where == key


@pytest.mark.parametrize("shape, expected", [
    ((1, 3, 3, 36, 32), "multiples of 8"), ((1, 3, 3, 24, 32), "at least 32 x 32"),
    ((1, 1, 3, 32, 32), "at least 2 frames"), ((1, 3, 4, 32, 32), "(B, N, 3, H, W)"),
])  # fmt: skip
def test_clips_that_cannot_go_through_are_refused(shape, expected):
    with pytest.raises(DataError) as refused:
        VRT(**SMALL)(torch.rand(shape))
    assert expected in refused.value.expected


@pytest.mark.parametrize("motion", [(3.0, 0.0), (-6.0, 9.0)])
def test_the_shipped_weights_find_a_known_translation_of_sharp_and_blurry_frames(motion):
    sheet = cv2.GaussianBlur(
        texture(np.random.default_rng(11), 192).astype(np.float32), (0, 0), 1.0
    )
    frames = np.stack(
        [
            cv2.getRectSubPix(sheet, (128, 128), (96 - s * motion[0], 96 - s * motion[1]))
            for s in (0, 1)
        ]
    )
    sharp = torch.from_numpy(frames).permute(0, 3, 1, 2)[None]
    net = VRT(**SMALL, spynet_path=str(OWN_FLOW))
    true = torch.tensor(motion).view(1, 1, 2, 1, 1)
    for clip in (sharp, torch.nn.functional.avg_pool2d(sharp[0], 5, 1, 2)[None]):
        with torch.no_grad():
            backward, forward = (way[0] for way in net.estimate_flows(clip)[0])
        for found, sign in ((backward, 1), (forward, -1)):
            assert (found - sign * true).norm(dim=2).mean() < 0.25 * true.norm()


def test_the_flow_network_is_frozen_and_released():
    train = {
        "G_lossfn_type": "l1",
        "E_decay": 0,
        "G_optimizer_lr": 1e-3,
        "fix_iter": 2,
        "fix_keys": ["spynet"],
    }
    model = define_Model({"netG": {"net_type": "vrt", **SMALL}, "train": train})
    model.init_train()
    torch.manual_seed(0)
    clip = {"lq": torch.rand(1, 2, 3, 32, 32), "key": ["a/0"]}
    weights = []
    for step in (1, 2):
        model.optimize_parameters(step, [{**clip, "gt": 1 - clip["lq"]}])
        weights.append(
            {k: v.clone() for k, v in model.training_state()["model_state_dict"].items()}
        )
    last = "spynet.basic_module.5.basic_module.8.bias"
    assert not weights[0][last].any()  # still zero flow
    assert weights[1][last].any()


def test_weights_that_name_the_input_of_the_flow_load_if_it_is_the_blurry_frames(tmp_path):
    netG = {"net_type": "vrt", **SMALL, "flow_input": "rgb", "flow_channels": None}
    net = define_G({"netG": netG})
    options = {"scale": 1, "netG": netG, "spike_channels": 0, "spike": None, "spike_data": None}
    torch.save({"params": net.state_dict(), "options": options}, tmp_path / "former.pth")
    assert read_saved(tmp_path / "former.pth").build()(torch.rand(1, 2, 3, 32, 32)).shape == (
        1,
        2,
        3,
        32,
        32,
    )
    with pytest.raises(OptionError, match=r"unknown option netG\.flow_input") as refused:
        define_G({"netG": {**netG, "flow_input": "both"}})
    assert refused.value.do.startswith("remove it")
