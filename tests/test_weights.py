"""Weights files: what is read, how RGB weights start an RGB+spike network, what is refused."""

import pytest
import torch

from models.network_vrt import VRT
from models.select_network import define_G
from models.weights import load_pretrained, load_weights, read_weights
from tests.test_vrt_modules import SMALL
from utils.errors import CheckpointError, OptionError

S = 4


@pytest.fixture(scope="module")
def rgb_net() -> VRT:
    torch.manual_seed(0)
    net = VRT(**SMALL).eval()
    net.conv_last.weight.data.normal_(std=0.1)
    return net


@pytest.mark.parametrize("container", [None, "params", "params_ema", "model_state_dict"])
def test_a_state_dict_is_found_bare_or_in_its_container(tmp_path, rgb_net, container):
    state = rgb_net.state_dict()
    torch.save({container: state, "iter": 3} if container else state, tmp_path / "w.pth")
    assert read_weights(tmp_path / "w.pth").keys() == state.keys()


@pytest.mark.parametrize("noise", [False, True])
def test_rgb_weights_start_a_concat_network_that_gives_the_same_output(tmp_path, noise):
    torch.manual_seed(0)
    rgb = VRT(**SMALL, nonblind_denoising=noise).eval()
    rgb.conv_last.weight.data.normal_(std=0.1)
    wide = VRT(**SMALL, nonblind_denoising=noise, in_chans=3 + S, fusion="concat", spike_channels=S).eval()
    torch.save({"params": rgb.state_dict()}, tmp_path / "rgb.pth")

    report = load_pretrained(wide, tmp_path / "rgb.pth", strict=False)

    lq, spike = torch.rand(1, 3, 3 + noise, 32, 32).double(), torch.rand(1, 3, S, 32, 32).double()
    # In float64: a wider convolution may sum in another order.
    assert torch.allclose(wide.double()(lq, spike), rgb.double()(lq), atol=1e-12)
    assert len(report.widened) == 1 and not report.missing and not report.unexpected
    assert "1 widened" in str(report)


def test_rgb_weights_start_a_gated_network_whose_operator_is_reported_missing(tmp_path, rgb_net):
    net = VRT(**SMALL, fusion="gated", spike_channels=S).eval()
    torch.save(rgb_net.state_dict(), tmp_path / "rgb.pth")
    report = load_pretrained(net, tmp_path / "rgb.pth", strict=False)
    assert report.missing and all(k.startswith("fusion.") for k in report.missing)
    assert report.share == 1.0


def test_an_operator_trained_alone_starts_the_fusion_of_a_network(tmp_path):
    fusion = {"type": "gated", "base": "fused"}
    torch.manual_seed(0)
    operator = define_G({"netG": {"net_type": "fusion", "fusion": fusion}}, spike_channels=S)
    torch.save({"params": operator.state_dict()}, tmp_path / "operator.pth")
    net = VRT(**SMALL, fusion=fusion, spike_channels=S)

    report = load_pretrained(net, tmp_path / "operator.pth", strict=False)

    assert "(100% of the fusion)" in str(report)
    assert all(torch.equal(net.state_dict()[key], value) for key, value in operator.state_dict().items())
    with pytest.raises(CheckpointError, match="do not fit"):
        load_weights(net, operator.state_dict(), "operator.pth", strict=True)


def test_an_operator_alone_is_not_begun_with_half_of_its_tensors():
    options = {"net_type": "fusion", "fusion": {"type": "gated", "base": "fused", "layers": 1}}
    half = define_G({"netG": options}, spike_channels=S)
    options["fusion"]["layers"] = 4
    net = define_G({"netG": options}, spike_channels=S)
    with pytest.raises(CheckpointError, match="8 tensors matched, 0 widened \\(57% of the fusion\\)"):
        load_weights(net, half.state_dict(), "half.pth")


def test_weights_of_another_network_are_refused_and_change_nothing(rgb_net):
    other = VRT(**{**SMALL, "embed_dims": [32] * 9})
    before = {k: v.clone() for k, v in other.state_dict().items()}
    with pytest.raises(CheckpointError, match="do not fit"):
        load_weights(other, rgb_net.state_dict(), "rgb.pth")
    assert all(torch.equal(v, before[k]) for k, v in other.state_dict().items())


def test_strict_refuses_a_single_missing_tensor(tmp_path, rgb_net):
    state = rgb_net.state_dict()
    del state["norm.weight"]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=r"missing \(1\): norm\.weight"):
        load_pretrained(VRT(**SMALL), tmp_path / "w.pth", strict=True)
    assert load_pretrained(VRT(**SMALL), tmp_path / "w.pth", strict=False).missing == ["norm.weight"]


def test_spynet_weights_are_read_with_or_without_the_normalisation(tmp_path, rgb_net):
    donor = VRT(**SMALL).spynet
    torch.nn.init.normal_(donor.basic_module[5].basic_module[0].weight)
    learned = {k: v for k, v in donor.state_dict().items() if k not in ("mean", "std")}
    torch.save({"params": learned}, tmp_path / "spynet.pth")
    net = VRT(**SMALL, spynet_path=str(tmp_path / "spynet.pth"))
    assert all(torch.equal(v, learned[k]) for k, v in net.spynet.state_dict().items() if k in learned)


def test_absent_or_foreign_spynet_weights_are_refused_by_path(tmp_path):
    with pytest.raises(OptionError, match=r"no file .*absent\.pth"):
        VRT(**SMALL, spynet_path=str(tmp_path / "absent.pth"))
    torch.save({"a": torch.zeros(1)}, tmp_path / "foreign.pth")
    with pytest.raises(OptionError, match="does not hold SpyNet weights"):
        VRT(**SMALL, spynet_path=str(tmp_path / "foreign.pth"))
