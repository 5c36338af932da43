"""Files of weights: what is read, what starts which network, what a file says of its network.

The networks are tiny, and most weights are random. The last part reads files in the form in which
this project writes them, with a description of the network and of its spikes.
"""

from pathlib import Path

import pytest
import torch

from main_train_vrt import PARTS
from models.network_vrt import VRT
from models.portable import (
    RELEASED,
    RELEASED_TILES,
    load_pretrained,
    load_weights,
    read_saved,
    read_weights,
)
from models.select_network import NETWORKS, define_G
from tests.dist.launching import ROOT
from tests.helpers import golden
from tests.helpers.checked import present
from tests.helpers.clip_files import section, write_info
from tests.helpers.small_vrt import SMALL, small_vrt
from tests.helpers.train_files import network
from tests.helpers.weights_files import released_tensors
from utils.errors import CheckpointError, OptionError
from utils.options.load import read_options

S = 4


@pytest.fixture(scope="module")
def rgb_net() -> VRT:
    """Give a tiny VRT without spikes. No test changes its weights."""
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
    wide = VRT(
        **SMALL, nonblind_denoising=noise, in_chans=3 + S, fusion="concat", spike_channels=S
    ).eval()
    torch.save({"params": rgb.state_dict()}, tmp_path / "rgb.pth")

    report = present(load_pretrained(wide, tmp_path / "rgb.pth", strict=False))

    lq = torch.rand(1, 3, 3 + noise, 32, 32).double()
    spike = torch.rand(1, 3, S, 32, 32).double()
    # In float64: a wider convolution may sum in another order.
    assert torch.allclose(wide.double()(lq, spike), rgb.double()(lq), atol=1e-12)
    assert len(report.widened) == 1
    assert not report.missing
    assert not report.unexpected
    assert "1 widened" in str(report)


def test_rgb_weights_start_a_gated_network_whose_operator_is_reported_missing(tmp_path, rgb_net):
    net = VRT(**SMALL, fusion="gated", spike_channels=S).eval()
    torch.save(rgb_net.state_dict(), tmp_path / "rgb.pth")
    report = present(load_pretrained(net, tmp_path / "rgb.pth", strict=False))

    assert report.missing
    assert all(k.startswith("fusion.") for k in report.missing)
    assert report.share == 1.0


def test_an_operator_trained_alone_starts_the_fusion_of_a_network(tmp_path):
    fusion = {"type": "gated", "base": "fused"}
    torch.manual_seed(0)
    operator = define_G({"netG": {"net_type": "fusion", "fusion": fusion}}, spike_channels=S)
    torch.save({"params": operator.state_dict()}, tmp_path / "operator.pth")
    net = VRT(**SMALL, fusion=fusion, spike_channels=S)

    report = load_pretrained(net, tmp_path / "operator.pth", strict=False)

    assert "(100% of the fusion)" in str(report)
    assert all(
        torch.equal(net.state_dict()[key], value) for key, value in operator.state_dict().items()
    )
    with pytest.raises(CheckpointError, match="do not fit"):
        load_weights(net, operator.state_dict(), "operator.pth", strict=True)


@pytest.mark.parametrize("name", ["operator", "motion", "vrt_small"])
def test_shipped_weights_hold_their_network_and_restore_in_float32(name):
    saved = read_saved(ROOT / f"weights/{name}.pth")
    frames = torch.full((1, 2, 3, 32, 32), 0.5)
    ratios = torch.ones(1, 2, saved.spike_channels, 32, 32)
    with torch.no_grad():
        restored = saved.build()(frames, ratios)

    # Nothing moves
    assert restored.dtype == torch.float32
    assert (restored - frames).abs().max() < 0.1


def test_an_operator_alone_is_not_begun_with_half_of_its_tensors():
    options = {"net_type": "fusion", "fusion": {"type": "gated", "base": "fused", "layers": 1}}
    half = define_G({"netG": options}, spike_channels=S)
    options["fusion"]["layers"] = 4
    net = define_G({"netG": options}, spike_channels=S)
    with pytest.raises(
        CheckpointError, match="8 tensors matched, 0 widened \\(57% of the fusion\\)"
    ):
        load_weights(net, half.state_dict(), "half.pth")


def test_weights_of_another_network_are_refused_and_change_nothing(rgb_net):
    other = small_vrt(embed_dims=[32] * 9)
    before = {k: v.clone() for k, v in other.state_dict().items()}
    with pytest.raises(CheckpointError, match="do not fit"):
        load_weights(other, rgb_net.state_dict(), "rgb.pth")

    assert all(torch.equal(v, before[k]) for k, v in other.state_dict().items())


@pytest.mark.parametrize(("which", "key"), [("netG", "params"), ("netE", "ema_state_dict")])
def test_each_network_takes_its_own_weights_of_a_file_that_has_both(tmp_path, rgb_net, which, key):
    state = rgb_net.state_dict()
    moved = {name: t + 1 if t.is_floating_point() else t for name, t in state.items()}
    content = {"params": state, "ema_state_dict": moved}
    torch.save(content, tmp_path / "both.pth")
    net = VRT(**SMALL)

    load_pretrained(net, str(tmp_path / "both.pth"), True, which)

    wanted = content[key]["conv_first.weight"]
    assert torch.equal(net.state_dict()["conv_first.weight"], wanted)


def test_strict_refuses_a_single_missing_tensor(tmp_path, rgb_net):
    state = rgb_net.state_dict()
    del state["norm.weight"]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=r"missing \(1\): norm\.weight"):
        load_pretrained(VRT(**SMALL), tmp_path / "w.pth", strict=True)
    report = present(load_pretrained(VRT(**SMALL), tmp_path / "w.pth", strict=False))

    assert report.missing == ["norm.weight"]


def test_spynet_weights_are_read_with_or_without_the_normalisation(tmp_path, rgb_net):
    donor = VRT(**SMALL).spynet
    torch.nn.init.normal_(donor.get_parameter("basic_module.5.basic_module.0.weight"))
    learned = {k: v for k, v in donor.state_dict().items() if k not in ("mean", "std")}
    torch.save({"params": learned}, tmp_path / "spynet.pth")
    net = VRT(**SMALL, spynet_path=str(tmp_path / "spynet.pth"))

    assert all(
        torch.equal(v, learned[k]) for k, v in net.spynet.state_dict().items() if k in learned
    )


def test_absent_or_foreign_spynet_weights_are_refused_by_path(tmp_path):
    with pytest.raises(OptionError, match=r"no file .*absent\.pth"):
        VRT(**SMALL, spynet_path=str(tmp_path / "absent.pth"))
    torch.save({"a": torch.zeros(1)}, tmp_path / "foreign.pth")
    with pytest.raises(OptionError, match="does not hold SpyNet weights"):
        VRT(**SMALL, spynet_path=str(tmp_path / "foreign.pth"))


BINS = {"type": "voxel", "num_bins": 2}
VALUES = {"task": "t", "train": {"G_lossfn_type": "l1"}}
KNOWN = {"rate": 0.9, "light": "linear", "center": "gt", "planes": 88, "gt_plane": 44}


@pytest.fixture
def described(tmp_path):
    """Give a folder whose dataset.json says what KNOWN has."""
    (tmp_path / "GOPRO_Large_spike_seq").mkdir()
    write_info(tmp_path, **KNOWN)
    return tmp_path


def options(folder=Path("nowhere"), **netG):
    """Options with these spikes, of which folder's dataset.json may tell more."""
    data = section(folder, num_frame=2, gt_size=32, spike={"representation": BINS, "type": "dat"})
    return read_options({**VALUES, "netG": network(**netG), "datasets": {"train": data}}, PARTS)


def test_a_file_as_released_loads_strictly_and_gives_the_reference_output(tmp_path):
    vector = golden.load_net("net_deblur_pa2_2f_w8")
    netG = {"net_type": "vrt", **vector.config["network"]}
    # The vectors leave the constant buffers out; released files hold them.
    whole = NETWORKS.build(netG, "netG").state_dict() | {
        k: v.float() for k, v in vector.weights.items()
    }
    torch.save({"params": whole}, tmp_path / "006_x.pth")
    saved = read_saved(
        tmp_path / "006_x.pth", read_options({**VALUES, "netG": netG}, PARTS).portable()
    )
    with torch.no_grad():
        output = saved.build().double()(vector.input)

    stride = vector.config["output_stride"]
    got = output[..., ::stride, ::stride]
    assert (
        golden.difference(vector.sampled("output", got), vector.samples["output"])
        < golden.TOLERANCE
    )


def saved_as(path, released):
    """Return what `read_saved` finds in a file with tensors of the shapes of a released network.

    path: the file to write. released: name of the network, a key of golden.manifests().
    """
    # The options are those of another program
    torch.save({"params": released_tensors(released), "options": {"lr": 1e-4}}, path)
    return read_saved(path)


@pytest.mark.parametrize("name", sorted(golden.manifests()))
def test_a_released_network_is_known_by_its_tensors(name, tmp_path):
    found = saved_as(tmp_path / "renamed.pth", name).released
    same = {k: v for k, v in golden.manifests()[name]["config"].items() if k != "img_size"}
    assert {k: RELEASED[found].get(k, same[k]) for k in same} == same
    assert found[:3] in RELEASED_TILES


def test_released_weights_take_their_name_from_the_file(tmp_path):
    saved = saved_as(
        tmp_path / "006_VRT_videodeblurring_GoPro.pth", "006_VRT_videodeblurring_GoPro"
    )
    assert saved.released == "006_VRT_videodeblurring_GoPro"
    assert saved.netG["deformable_groups"] == 16
    assert saved.scale == 1
    assert saved.spike is None
    saved.build()


@pytest.mark.parametrize("more", [
    {"options": {"netG": 1, "scale": 2}}, {"options": {"scale": 1, "datasets": {}}}, {"network": 3},
    {"options": [1]},
])  # fmt: skip
def test_what_another_program_says_of_its_network_is_not_taken_for_ours(tmp_path, more):
    torch.save({"params": {"layer.weight": torch.zeros(3)}, **more}, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="does not say what network"):
        read_saved(tmp_path / "w.pth")


@pytest.mark.parametrize("content", [{1: torch.zeros(3)}, {"a": "text"}, {"a": [1.0]}], ids=str)
def test_what_is_no_tensor_by_name_is_no_weight(tmp_path, content):
    torch.save({"params": content}, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="instead of a state dict"):
        read_weights(tmp_path / "w.pth")


def test_our_weights_and_checkpoints_say_what_they_are(described, tmp_path):
    opt = options(described)
    net = define_G(opt)
    about = opt.portable()
    full = {
        "model_state_dict": net.state_dict(),
        "ema_state_dict": None,
        "options": opt.plain(),
        "step": 3,
    }
    ema = {
        key: value + 1 if value.is_floating_point() else value
        for key, value in net.state_dict().items()
    }
    torch.save({"params": net.state_dict(), "options": about, "iter": 3}, tmp_path / "3_G.pth")
    torch.save(
        torch.load(tmp_path / "3_G.pth"),
        tmp_path / "legacy.pth",
        _use_new_zipfile_serialization=False,
    )
    torch.save(full | {"network": about}, tmp_path / "checkpoint_latest.pth")
    torch.save(full | {"network": about, "ema_state_dict": ema}, tmp_path / "averaged.pth")
    # Former versions wrote what they had found out into the data's section.
    full["options"]["datasets"]["train"] |= {"spike_channels": 2, "spike_data": KNOWN}
    torch.save(full, tmp_path / "checkpoint_before.pth")

    for name in (
        "3_G.pth",
        "legacy.pth",
        "checkpoint_latest.pth",
        "averaged.pth",
        "checkpoint_before.pth",
    ):
        saved = read_saved(tmp_path / name)
        assert saved.spike_channels == 2
        assert present(saved.spike)["type"] == "dat"
        assert saved.netG == opt.netG.plain()
        assert saved.spike_data == KNOWN
        built = saved.build().state_dict()
        wanted = ema if name == "averaged.pth" else net.state_dict()
        assert all(torch.equal(built[key], wanted[key]) for key in wanted)


def test_the_weights_know_their_spikes_better_than_an_option_file_without_its_data(
    described, tmp_path
):
    opt = options(described)
    torch.save(
        {"params": define_G(opt).state_dict(), "options": opt.portable()}, tmp_path / "a.pth"
    )
    write_info(tmp_path, **KNOWN | {"rate": None})
    assert read_saved(tmp_path / "a.pth", opt.portable()).spike_data == KNOWN
    # Files of before have no such entry.
    old = {key: value for key, value in opt.portable().items() if key != "spike_data"}
    torch.save({"params": define_G(opt).state_dict(), "options": old}, tmp_path / "old.pth")

    assert read_saved(tmp_path / "old.pth").spike_data is None
