"""Files of weights: what is read from a file, which network can start with it, what it describes.

The networks are tiny (SMALL of tests/helpers/small_vrt.py), and most weights are random. The tests
in the last part of this file read weights as this project writes them: with a description of the
network and of its spikes.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from main_train_vrt import PARTS
from models.loading import load_weights
from models.network_vrt import VRT
from models.portable import read_saved
from models.pretrained import load_pretrained
from models.released_networks import RELEASED, RELEASED_TILES
from models.select_network import NETWORKS, define_G
from models.weights_file import read_weights
from tests.dist.launching import ROOT
from tests.helpers import golden
from tests.helpers.checked import not_none
from tests.helpers.clip_files import data_section, write_info
from tests.helpers.small_vrt import SMALL, small_vrt
from tests.helpers.train_files import network_section
from tests.helpers.weights_files import released_tensors
from utils.errors import CheckpointError, OptionError
from utils.options.typed import read_options

# Channels of the spikes of all networks here that have spikes.
SPIKE_CHANNELS = 4


def random_rgb_net(**more: Any) -> VRT:
    """Return a tiny VRT without spikes, with random weights. more: additional arguments of VRT."""
    torch.manual_seed(0)
    net = VRT(**SMALL, **more).eval()
    # The weights of this layer begin as zeros. Then the output would not depend on other weights.
    net.conv_last.weight.data.normal_(std=0.1)
    return net


@pytest.fixture(scope="module")
def rgb_net() -> VRT:
    """Give a tiny VRT without spikes. No test changes its weights."""
    return random_rgb_net()


def check_holds(net: nn.Module, weights: dict[str, Tensor]) -> None:
    """Check that a network has these weights, bit for bit. It may have more weights than these."""
    state = net.state_dict()
    for name, value in weights.items():
        assert torch.equal(state[name], value), name


def with_one_added(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return other weights: each number is larger by 1."""
    added = {}
    for name, value in weights.items():
        added[name] = value + 1 if value.is_floating_point() else value
    return added


# ---- What is read from a file ----


@pytest.mark.parametrize("container", [None, "params", "params_ema", "model_state_dict"])
def test_a_state_dict_is_found_bare_or_in_its_container(tmp_path, rgb_net, container):
    state = rgb_net.state_dict()
    content = state if container is None else {container: state, "iter": 3}
    torch.save(content, tmp_path / "w.pth")

    assert read_weights(tmp_path / "w.pth").keys() == state.keys()


@pytest.mark.parametrize("content", [{1: torch.zeros(3)}, {"a": "text"}, {"a": [1.0]}], ids=str)
def test_a_dict_that_does_not_map_names_to_tensors_is_refused(tmp_path, content):
    torch.save({"params": content}, tmp_path / "w.pth")

    with pytest.raises(CheckpointError, match="instead of a state dict"):
        read_weights(tmp_path / "w.pth")


# netE is the moving average of the network netG.
@pytest.mark.parametrize(("which", "key"), [("netG", "params"), ("netE", "ema_state_dict")])
def test_each_network_takes_its_own_weights_of_a_file_that_has_both(tmp_path, rgb_net, which, key):
    state = rgb_net.state_dict()
    content = {"params": state, "ema_state_dict": with_one_added(state)}
    torch.save(content, tmp_path / "both.pth")
    net = VRT(**SMALL)

    load_pretrained(net, str(tmp_path / "both.pth"), strict=True, which=which)

    expected = content[key]["conv_first.weight"]
    assert torch.equal(net.state_dict()["conv_first.weight"], expected)


# ---- Weights of RGB start a network with spikes ----


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(True, id="RGB and noise map"),
        pytest.param(False, id="RGB", marks=pytest.mark.slow),
    ],
)
def test_rgb_weights_start_a_concat_network_that_gives_the_same_output(tmp_path, noise):
    rgb = random_rgb_net(nonblind_denoising=noise)
    torch.save({"params": rgb.state_dict()}, tmp_path / "rgb.pth")
    # The first layer of this network also has the channels of the spikes.
    wide = VRT(
        **SMALL,
        nonblind_denoising=noise,
        in_chans=3 + SPIKE_CHANNELS,
        fusion="concat",
        spike_channels=SPIKE_CHANNELS,
    ).eval()

    report = not_none(load_pretrained(wide, tmp_path / "rgb.pth", strict=False))

    channels = 4 if noise else 3
    lq = torch.rand(1, 3, channels, 32, 32).double()
    spike = torch.rand(1, 3, SPIKE_CHANNELS, 32, 32).double()
    # The comparison is in float64, because a wider convolution may sum in another order. In
    # float32, such sums would differ too much.
    assert torch.allclose(wide.double()(lq, spike), rgb.double()(lq), atol=1e-12)
    assert len(report.widened) == 1
    assert not report.missing
    assert not report.unexpected
    assert "1 widened" in str(report)


def test_rgb_weights_start_a_gated_network_whose_operator_is_reported_missing(tmp_path, rgb_net):
    net = VRT(**SMALL, fusion="gated", spike_channels=SPIKE_CHANNELS).eval()
    torch.save(rgb_net.state_dict(), tmp_path / "rgb.pth")

    report = not_none(load_pretrained(net, tmp_path / "rgb.pth", strict=False))

    assert report.missing
    for name in report.missing:
        assert name.startswith("fusion.")
    # loaded_share is the fraction of the weights of the VRT that the file has. The weights of the
    # fusion operator do not count, so the result is 1.
    assert report.loaded_share == 1.0


def operator_net(fusion: dict[str, Any]) -> nn.Module:
    """Return an operator: a network that is only a fusion of frames and spikes.

    fusion: its options.
    """
    netG = {"net_type": "fusion", "fusion": fusion}
    return define_G({"netG": netG}, spike_channels=SPIKE_CHANNELS)


FUSION = {"type": "gated", "base": "fused"}


def test_an_operator_trained_alone_starts_the_fusion_of_a_network(tmp_path):
    torch.manual_seed(0)
    operator = operator_net(FUSION).state_dict()
    torch.save({"params": operator}, tmp_path / "operator.pth")
    net = VRT(**SMALL, fusion=FUSION, spike_channels=SPIKE_CHANNELS)

    report = load_pretrained(net, tmp_path / "operator.pth", strict=False)

    assert "(100% of the fusion)" in str(report)
    check_holds(net, operator)


def test_an_operator_is_not_the_whole_of_a_network():
    operator = operator_net(FUSION).state_dict()
    net = VRT(**SMALL, fusion=FUSION, spike_channels=SPIKE_CHANNELS)

    with pytest.raises(CheckpointError, match="do not fit"):
        load_weights(net, operator, "operator.pth", strict=True)


def test_an_operator_alone_is_not_begun_with_half_of_its_tensors():
    half = operator_net({**FUSION, "layers": 1}).state_dict()
    net = operator_net({**FUSION, "layers": 4})

    # An operator has 6 tensors, and 2 more for each of its layers. So an operator of 1 layer has 8
    # of the 14 tensors of an operator of 4 layers: 57 %.
    message = r"8 tensors matched, 0 widened \(57% of the fusion\)"
    with pytest.raises(CheckpointError, match=message):
        load_weights(net, half, "half.pth")


# ---- What does not fit ----


def test_weights_of_another_network_are_refused_and_change_nothing(rgb_net):
    other = small_vrt(embed_dims=[32] * 9)
    before = {name: value.clone() for name, value in other.state_dict().items()}

    with pytest.raises(CheckpointError, match="do not fit"):
        load_weights(other, rgb_net.state_dict(), "rgb.pth")

    check_holds(other, before)


@pytest.fixture
def without_norm(tmp_path, rgb_net):
    """Give a file of the weights of `rgb_net`, of which one tensor is missing."""
    state = rgb_net.state_dict()
    del state["norm.weight"]
    torch.save(state, tmp_path / "w.pth")
    return tmp_path / "w.pth"


@pytest.mark.parametrize("strict", [False, True])
def test_weights_with_nan_are_refused_and_change_nothing(rgb_net, strict):
    before = {name: value.clone() for name, value in rgb_net.state_dict().items()}
    weights = with_one_added(before)
    weights["conv_last.bias"][0] = torch.nan

    with pytest.raises(CheckpointError, match=r"NaN in 1 tensor, conv_last\.bias among them"):
        load_weights(rgb_net, weights, "file.pth", strict)

    check_holds(rgb_net, before)


def test_strict_refuses_a_single_missing_tensor(without_norm):
    with pytest.raises(CheckpointError, match=r"missing \(1\): norm\.weight"):
        load_pretrained(VRT(**SMALL), without_norm, strict=True)


def test_a_missing_tensor_is_reported_if_strict_is_false(without_norm):
    report = not_none(load_pretrained(VRT(**SMALL), without_norm, strict=False))

    assert report.missing == ["norm.weight"]


# ---- Weights of the optical flow ----


def test_spynet_weights_are_read_with_or_without_the_normalisation(tmp_path):
    donor = VRT(**SMALL).spynet
    # Change a layer of the finest level, so that the weights differ from a new network.
    torch.nn.init.normal_(donor.get_parameter("basic_module.5.basic_module.0.weight"))
    learned = donor.state_dict()
    # "mean" and "std" are constants, by which frames are normalised. Only some files have them.
    del learned["mean"]
    del learned["std"]
    torch.save({"params": learned}, tmp_path / "spynet.pth")

    net = VRT(**SMALL, spynet_path=str(tmp_path / "spynet.pth"))

    check_holds(net.spynet, learned)


def test_absent_spynet_weights_are_refused_by_path(tmp_path):
    with pytest.raises(OptionError, match=r"no file .*absent\.pth"):
        VRT(**SMALL, spynet_path=str(tmp_path / "absent.pth"))


def test_foreign_spynet_weights_are_refused_by_path(tmp_path):
    torch.save({"a": torch.zeros(1)}, tmp_path / "foreign.pth")

    with pytest.raises(OptionError, match="does not hold SpyNet weights"):
        VRT(**SMALL, spynet_path=str(tmp_path / "foreign.pth"))


# ---- Weights that this project ships ----


@pytest.mark.parametrize("name", ["operator", "motion", "vrt_small"])
def test_shipped_weights_hold_their_network_and_restore_in_float32(name):
    saved = read_saved(ROOT / f"weights/{name}.pth")
    frames = torch.full((1, 2, 3, 32, 32), 0.5)
    spikes = torch.ones(1, 2, saved.spike_channels, 32, 32)

    with torch.no_grad():
        restored = saved.build()(frames, spikes)

    # Nothing moves in these frames, so they must stay nearly as they are.
    assert restored.dtype == torch.float32
    assert (restored - frames).abs().max() < 0.1


# ---- Released weights ----

# The options that every option file must have.
LEAST_OPTIONS = {"task": "t", "train": {"G_lossfn_type": "l1"}}


def test_a_file_as_released_loads_strictly_and_gives_the_reference_output(tmp_path):
    # A vector has weights, an input, and the output that the published network computed from them
    # (tests/helpers/golden.py).
    vector = golden.load_net("net_deblur_pa2_2f_w8")
    netG = {"net_type": "vrt", **vector.config["network"]}
    # Released files also have constant tensors, e.g. tables of positions. The vectors leave them
    # out, so they are taken from a new network.
    content = NETWORKS.build(netG, "netG").state_dict()
    for name, value in vector.weights.items():
        content[name] = value.float()
    torch.save({"params": content}, tmp_path / "006_x.pth")
    description = read_options({**LEAST_OPTIONS, "netG": netG}, PARTS).portable()

    saved = read_saved(tmp_path / "006_x.pth", description)
    with torch.no_grad():
        output = saved.build().double()(vector.input)

    # To keep the file small, the vector has only some pixels of the output.
    stride = vector.config["output_stride"]
    found = vector.sample_of("output", output[..., ::stride, ::stride])
    assert golden.difference(found, vector.samples["output"]) < golden.TOLERANCE


def saved_as(path, released):
    """Return what `read_saved` finds in a file with tensors of the shapes of a released network.

    path: the file to write. released: name of the network, a key of golden.manifests().
    """
    # Another program wrote the options, so they do not describe the network.
    torch.save({"params": released_tensors(released), "options": {"lr": 1e-4}}, path)
    return read_saved(path)


# Released networks that `make test` must recognise by their tensors. Each takes a second of a core,
# so only `make slow` tests the others.
KNOWN_AT_ONCE = (
    "001_VRT_videosr_bi_REDS_6frames",
    "006_VRT_videodeblurring_GoPro",
)


def released_networks() -> list[Any]:
    """Return the names of all released networks. All but KNOWN_AT_ONCE are marked `slow`."""
    found = []
    for name in sorted(golden.manifests()):
        marks = () if name in KNOWN_AT_ONCE else pytest.mark.slow
        found.append(pytest.param(name, marks=marks))
    return found


def test_the_networks_that_are_known_at_once_are_released():
    assert set(KNOWN_AT_ONCE) <= set(golden.manifests())


@pytest.mark.parametrize("name", released_networks())
def test_a_released_network_is_known_by_its_tensors(name, tmp_path):
    found = saved_as(tmp_path / "renamed.pth", name).released

    # Networks that differ only in img_size have the same tensors, so this key may differ. RELEASED
    # has only the keys in which a released network differs from the defaults.
    config = golden.manifests()[name]["config"]
    for key, value in config.items():
        if key != "img_size":
            assert RELEASED[found].get(key, value) == value, key
    number = found[:3]  # e.g. "006"
    assert number in RELEASED_TILES


def test_released_weights_take_their_name_from_the_file(tmp_path):
    name = "006_VRT_videodeblurring_GoPro"

    saved = saved_as(tmp_path / f"{name}.pth", name)

    assert saved.released == name
    assert saved.netG["deformable_groups"] == 16
    assert saved.scale == 1
    assert saved.spike is None
    saved.build()


@pytest.mark.parametrize(
    "more",
    [
        {"options": {"netG": 1, "scale": 2}},
        {"options": {"scale": 1, "datasets": {}}},
        {"options": [1]},
        {"network": 3},
    ],
    ids=str,
)
def test_what_another_program_says_of_its_network_is_not_taken_for_ours(tmp_path, more):
    torch.save({"params": {"layer.weight": torch.zeros(3)}, **more}, tmp_path / "w.pth")

    with pytest.raises(CheckpointError, match="does not say what network"):
        read_saved(tmp_path / "w.pth")


# ---- Weights that describe their network ----

# The values of dataset.json about the spikes of training.
SPIKE_DATA = {"rate": 0.9, "light": "linear", "center": "gt", "planes": 88, "gt_plane": 44}


@pytest.fixture
def folder_with_info(tmp_path):
    """Give a folder whose dataset.json has the values of SPIKE_DATA."""
    (tmp_path / "GOPRO_Large_spike_seq").mkdir()
    write_info(tmp_path, **SPIKE_DATA)
    return tmp_path


def options_of(folder: Path) -> Any:
    """Return the options of a training on the data in `folder`: a tiny VRT with spikes."""
    spike = {"representation": {"type": "voxel", "num_bins": 2}, "type": "dat"}
    data = data_section(folder, num_frame=2, gt_size=32, spike=spike)
    values = {**LEAST_OPTIONS, "netG": network_section(), "datasets": {"train": data}}
    return read_options(values, PARTS)


@pytest.fixture
def trained_network(folder_with_info):
    """Give the options of a training, and its network."""
    opt = options_of(folder_with_info)
    return opt, define_G(opt)


def checkpoint_of(opt, net: nn.Module) -> dict[str, Any]:
    """Return the content of a checkpoint that lacks the description of the network."""
    return {
        "model_state_dict": net.state_dict(),
        "ema_state_dict": None,
        "options": opt.plain(),
        "step": 3,
    }


def check_describes(saved, opt, weights: dict[str, Tensor]) -> None:
    """Check that a file says all of its network and spikes, and has these weights."""
    assert saved.spike_channels == 2
    assert not_none(saved.spike)["type"] == "dat"
    assert saved.netG == opt.netG.plain()
    assert saved.spike_data == SPIKE_DATA
    check_holds(saved.build(), weights)


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "form of torch before 1.6"])
def test_our_weights_say_what_they_are(trained_network, tmp_path, is_zip):
    opt, net = trained_network
    content = {"params": net.state_dict(), "options": opt.portable(), "iter": 3}
    torch.save(content, tmp_path / "3_G.pth", _use_new_zipfile_serialization=is_zip)

    check_describes(read_saved(tmp_path / "3_G.pth"), opt, net.state_dict())


def test_our_checkpoints_say_what_they_are(trained_network, tmp_path):
    opt, net = trained_network
    content = checkpoint_of(opt, net) | {"network": opt.portable()}
    torch.save(content, tmp_path / "checkpoint_latest.pth")

    check_describes(read_saved(tmp_path / "checkpoint_latest.pth"), opt, net.state_dict())


def test_a_checkpoint_with_a_moving_average_gives_the_average(trained_network, tmp_path):
    opt, net = trained_network
    average = with_one_added(net.state_dict())
    content = checkpoint_of(opt, net) | {"network": opt.portable(), "ema_state_dict": average}
    torch.save(content, tmp_path / "averaged.pth")

    check_describes(read_saved(tmp_path / "averaged.pth"), opt, average)


def test_checkpoints_of_former_versions_say_what_they_are(trained_network, tmp_path):
    opt, net = trained_network
    content = checkpoint_of(opt, net)
    # Former versions wrote no description of the network. They wrote what they had found in the
    # data into the options of the data.
    found_in_data = {"spike_channels": 2, "spike_data": SPIKE_DATA}
    content["options"]["datasets"]["train"].update(found_in_data)
    torch.save(content, tmp_path / "checkpoint_before.pth")

    check_describes(read_saved(tmp_path / "checkpoint_before.pth"), opt, net.state_dict())


def test_the_weights_know_their_spikes_better_than_an_option_file_without_its_data(
    folder_with_info, trained_network, tmp_path
):
    opt, net = trained_network
    torch.save({"params": net.state_dict(), "options": opt.portable()}, tmp_path / "a.pth")
    # The data have changed since the training, so an option file now finds no rate of the spikes.
    write_info(folder_with_info, **SPIKE_DATA | {"rate": None})
    option_file = options_of(folder_with_info)

    saved = read_saved(tmp_path / "a.pth", option_file.portable())

    assert saved.spike_data == SPIKE_DATA


def test_weights_of_former_versions_say_nothing_of_their_spikes(trained_network, tmp_path):
    opt, net = trained_network
    description = opt.portable()
    del description["spike_data"]
    torch.save({"params": net.state_dict(), "options": description}, tmp_path / "old.pth")

    assert read_saved(tmp_path / "old.pth").spike_data is None
