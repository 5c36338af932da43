"""The flow network in training, its shipped weights, and files of versions in which it could see spikes."""

import cv2
import numpy as np
import pytest
import torch

from models.model_vrt import define_Model
from models.network_vrt import OWN_FLOW
from models.portable import read_saved
from models.select_network import define_G
from scripts.make_sample_data import texture
from tests.test_vrt_modules import SMALL
from utils.errors import OptionError


@pytest.mark.parametrize("motion", [(3.0, 0.0), (-6.0, 9.0)])
def test_the_shipped_weights_find_a_known_translation_of_sharp_and_blurry_frames(motion):
    sheet = cv2.GaussianBlur(texture(np.random.default_rng(11), 192).astype(np.float32), (0, 0), 1.0)
    frames = np.stack([cv2.getRectSubPix(sheet, (128, 128), (96 - s * motion[0], 96 - s * motion[1])) for s in (0, 1)])
    sharp = torch.from_numpy(frames).permute(0, 3, 1, 2)[None]
    net = define_G({"netG": {"net_type": "vrt", **SMALL, "spynet_path": str(OWN_FLOW)}})
    true = torch.tensor(motion).view(1, 1, 2, 1, 1)

    for clip in (sharp, torch.nn.functional.avg_pool2d(sharp[0], 5, 1, 2)[None]):
        with torch.no_grad():
            backward, forward = (way[0] for way in net.estimate_flows(clip)[0])
        for found, sign in ((backward, 1), (forward, -1)):
            assert (found - sign * true).norm(dim=2).mean() < 0.25 * true.norm()


def test_the_flow_network_is_frozen_and_released():
    train = {"G_lossfn_type": "l1", "E_decay": 0, "G_optimizer_lr": 1e-3, "fix_iter": 2, "fix_keys": ["spynet"]}
    model = define_Model({"netG": {"net_type": "vrt", **SMALL}, "train": train})
    model.init_train()
    torch.manual_seed(0)
    clip = {"lq": torch.rand(1, 2, 3, 32, 32), "key": ["a/0"]}
    weights = []

    for step in (1, 2):
        model.optimize_parameters(step, [{**clip, "gt": 1 - clip["lq"]}])
        weights.append({k: v.clone() for k, v in model.training_state()["model_state_dict"].items()})

    last = "spynet.basic_module.5.basic_module.8.bias"
    assert not weights[0][last].any()  # still zero flow
    assert weights[1][last].any()


def test_weights_that_name_the_input_of_the_flow_load_if_it_is_the_blurry_frames(tmp_path):
    netG = {"net_type": "vrt", **SMALL, "flow_input": "rgb", "flow_channels": None}
    net = define_G({"netG": netG})
    options = {"scale": 1, "netG": netG, "spike_channels": 0, "spike": None, "spike_data": None}
    torch.save({"params": net.state_dict(), "options": options}, tmp_path / "former.pth")

    assert read_saved(tmp_path / "former.pth").build()(torch.rand(1, 2, 3, 32, 32)).shape == (1, 2, 3, 32, 32)
    with pytest.raises(OptionError, match=r"unknown option netG\.flow_input") as refused:
        define_G({"netG": {**netG, "flow_input": "both"}})
    assert refused.value.do.startswith("remove it")
