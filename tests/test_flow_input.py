"""netG.flow_input: what the flow network sees, and what is refused."""

import numpy as np
import pytest
import torch

from lab.flow_scenes import make_pair
from models.model_vrt import define_Model
from models.select_network import define_G
from tests.test_vrt_modules import SMALL
from utils.errors import DataError, OptionError

S = 4


def network(spike_channels=S, **netG):
    torch.manual_seed(0)
    return define_G({"netG": {"net_type": "vrt", **SMALL, **netG}}, spike_channels=spike_channels).eval()


def flow(net, rgb, spike):
    """The output of the finest level of the flow network in a forward pass."""
    seen = []
    hook = net.spynet.basic_module[-1].register_forward_hook(lambda *a: seen.append(a[2].detach()))
    torch.nn.init.normal_(net.spynet.basic_module[-1].basic_module[-1].weight, generator=torch.manual_seed(1))
    with torch.no_grad():
        net(rgb, spike)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("kind, sees", [("rgb", "rgb"), ("spike", "spike"), ("both", "rgb spike")])
def test_the_flow_comes_from_what_the_option_names(kind, sees):
    net = network(flow_input=kind)
    torch.manual_seed(0)
    rgb, spike = torch.rand(1, 2, 3, 32, 32), torch.rand(1, 2, S, 32, 32)

    before = flow(net, rgb, spike)

    assert ("rgb" in sees) == (not torch.equal(flow(net, rgb.flip(-1), spike), before))
    assert ("spike" in sees) == (not torch.equal(flow(net, rgb, spike.flip(-1)), before))


def test_the_channels_around_the_sharp_frame_can_be_named():
    torch.manual_seed(0)
    rgb, spike = torch.rand(1, 2, 3, 32, 32), torch.rand(1, 2, 3, 32, 32)
    changed = spike.clone()
    changed[:, :, 2] = 0.5

    for channels, is_changed in ((None, False), ([1], False), ([2], True), ([1, 2], True)):
        net = network(3, flow_input="spike", flow_channels=channels)
        assert torch.equal(flow(net, rgb, spike), flow(net, rgb, changed)) != is_changed


def test_pictures_from_spikes_are_sharper_than_the_blurry_frames():
    pair = make_pair(np.random.default_rng(8))
    assert pair.flow.norm(dim=1).mean() > 15  # where nothing moves, the blurry frame is best
    blurry, both, spike, sharp = (pair.pictures[kind] for kind in ("blurry", "both", "spike", "sharp"))
    assert (both - sharp).square().mean() < 0.6 * (blurry - sharp).square().mean()
    grey, blurry_grey = ((image - sharp).mean(1) for image in (spike, blurry))
    assert grey.square().mean() < 0.6 * blurry_grey.square().mean()


def test_without_spikes_the_estimate_is_the_blurry_frame():
    rgb, dark = torch.rand(1, 2, 3, 32, 32), torch.zeros(1, 2, S, 32, 32)
    net = network(flow_input="both")
    assert torch.equal(flow(net, rgb, dark), flow(network(), rgb, dark))
    with pytest.raises(DataError, match="no spike tensor"):  # dark is not absent
        net(rgb)


@pytest.mark.parametrize(
    "spikes, options, where",
    [
        (0, {"flow_input": "spike"}, "netG.flow_input"),
        (S, {"flow_input": "both", "pa_frames": 0}, "netG.flow_input"),
        (S, {"flow_input": "spike", "flow_channels": [S]}, "netG.flow_channels"),
        (S, {"flow_input": "spike", "flow_channels": []}, "netG.flow_channels"),
        (S, {"flow_channels": [0]}, "netG.flow_channels"),
    ],
)
def test_what_cannot_give_a_flow_is_refused(spikes, options, where):
    with pytest.raises(OptionError) as refused:
        network(spikes, **options)
    assert refused.value.where == where


def test_the_flow_network_is_frozen_and_released_with_each_input():
    train = {"G_lossfn_type": "l1", "E_decay": 0, "G_optimizer_lr": 1e-3, "fix_iter": 2, "fix_keys": ["spynet"]}
    values = {"netG": {"net_type": "vrt", **SMALL, "flow_input": "both"}, "train": train}
    model = define_Model(values, spike_channels=S)
    model.init_train()
    torch.manual_seed(0)
    clip = {"lq": torch.rand(1, 2, 3, 32, 32), "spike": torch.rand(1, 2, S, 32, 32), "key": ["a/0"]}
    weights = [model.training_state()["model_state_dict"]]

    for step in (1, 2):
        model.optimize_parameters(step, [{**clip, "gt": 1 - clip["lq"]}])
        weights.append({k: v.clone() for k, v in model.training_state()["model_state_dict"].items()})

    last = "spynet.basic_module.5.basic_module.8.bias"
    assert not weights[1][last].any()  # still zero flow
    assert weights[2][last].any()
