"""define_G: networks from options, and the refusals before anything is built."""

from __future__ import annotations

import logging

import pytest
import torch

from data.clip_dataset import TrainClips
from data.clip_options import Crops, FileReading
from data.select_dataset import DATASETS
from main_train_vrt import PARTS
from models.select_model import define_Model
from models.select_network import NETWORKS, check_options, define_G
from tests.test_vrt_modules import SMALL
from utils.errors import OptionError
from utils.options.load import read_options

BINS = {"type": "voxel", "num_bins": 4}


def options(size=32, representation=BINS, gamma=1.0, test=None, **netG):
    spike = {"type": "dat", "h": 8, "w": 8, "gamma": gamma, "representation": representation}
    spikes = {"dataroot_spike": "none", "spike": spike}
    files = {"dataroot_lq": "none", "dataroot_gt": "none", "num_frame": 2, "gt_size": size}
    values = {
        "task": "t", "netG": {"net_type": "vrt", **SMALL, **netG}, "train": {"G_lossfn_type": "l1"},
        "datasets": {"train": {"dataset_type": "TrainDatasetRGBSpike", **files, **spikes}, "test": test},
    }  # fmt: skip
    return read_options(values, PARTS)


def test_the_network_of_the_options_is_built_with_the_channels_of_the_data(caplog):
    with caplog.at_level(logging.INFO):
        net = define_G(options(fusion="concat", in_chans=7))
    assert net.conv_first.weight.shape[1] == 9 * 7
    assert caplog.text.count("flow starts at zero") == 1


def test_a_notebook_gives_a_mapping_in_the_form_of_kair_and_trains():
    values = {"netG": {"net_type": "vrt", **SMALL, "fusion": "concat"}, "train": {"G_lossfn_type": "l1", "E_decay": 0}}
    assert define_G(values, spike_channels=2).conv_first.weight.shape[1] == 9 * 5

    model = define_Model(values, spike_channels=2)
    model.init_train()
    batch = {"lq": torch.rand(1, 2, 3, 32, 32), "spike": torch.rand(1, 2, 2, 32, 32), "key": ["a/0"]}
    model.optimize_parameters(1, [{**batch, "gt": 1 - batch["lq"]}])
    assert model.current_log()["loss"] > 0
    with pytest.raises(OptionError, match="E_deacy"):
        define_Model({**values, "train": {"G_lossfn_type": "l1", "E_deacy": 0}})


def test_checking_options_builds_nothing_and_accepts_what_fits():
    check_options(options(fusion="gated"))
    assert define_G(options()).stage1.residual_group1.blocks[0].attn.relative_position_index.device == torch.device(
        "cpu"
    )


@pytest.mark.parametrize("size", [36, 24])
def test_a_crop_that_does_not_fit_the_windows_is_refused(size):
    with pytest.raises(OptionError) as refused:
        check_options(options(size))
    assert refused.value.where == "datasets.train.gt_size"
    assert refused.value.do == "set it to 32"


def test_channels_that_disagree_with_the_data_are_refused_with_the_sum():
    with pytest.raises(OptionError, match=r"netG\.in_chans is 6") as refused:
        check_options(options(fusion="concat", in_chans=6))
    assert refused.value.expected == "7, which the fusion operator gives for 3 RGB and 4 spike channels"


def test_an_operator_of_one_representation_refuses_the_channels_of_another():
    check_options(options(fusion="exposure", representation="relative"))
    with pytest.raises(OptionError, match="exposure cannot use voxel channels") as refused:
        check_options(options(fusion="exposure"))
    assert (refused.value.where, refused.value.expected) == ("datasets.train.spike.representation", "relative")


@pytest.mark.parametrize("representation", ["relative", "exposure", "raw"])
def test_a_flow_from_spikes_refuses_channels_that_are_no_rates_in_the_order_of_time(representation):
    check_options(options(flow_input="both"))
    check_options(options(representation=representation))
    with pytest.raises(OptionError, match=f"flow_input both cannot use {representation} channels") as refused:
        check_options(options(flow_input="both", representation=representation))
    assert refused.value.where == "datasets.train.spike.representation"


@pytest.mark.parametrize("flow_input", ["spike", "both"])
def test_a_flow_from_spikes_refuses_channels_in_display_values(flow_input):
    check_options(options(gamma=2.2))
    said = f"netG.flow_input {flow_input} with datasets.train.spike.gamma 2.2"
    with pytest.raises(OptionError, match=said) as refused:
        check_options(options(gamma=2.2, flow_input=flow_input))
    assert refused.value.where == "datasets.train.spike.gamma"


@pytest.mark.parametrize(
    ("key", "value"), [("gamma", 2.2), ("representation", {"type": "tfp", "offsets": [0, 1, 2, 3]})]
)
def test_a_network_is_not_tested_on_other_channels_than_it_learns_from(key, value):
    section = {"dataset_type": "TestDatasetRGBSpike", "dataroot_lq": "none", "dataroot_gt": "none"}
    section |= {"dataroot_spike": "none", "spike": {"type": "dat", "h": 8, "w": 8, "representation": BINS, key: value}}
    check_options(options(fusion="none", test=section))
    with pytest.raises(OptionError, match=f"datasets.test.spike has the {key}") as refused:
        check_options(options(fusion="gated", test=section))
    assert refused.value.where == f"datasets.test.spike.{key}"


def test_option_keys_are_the_published_ones_and_ours():
    keys = set(NETWORKS.keys("vrt"))
    assert keys >= {
        "upscale", "in_chans", "img_size", "window_size", "depths", "indep_reconsts", "embed_dims", "num_heads",
        "spynet_path", "pa_frames", "deformable_groups", "nonblind_denoising", "use_checkpoint_attn",
        "use_checkpoint_ffn", "no_checkpoint_attn_blocks", "no_checkpoint_ffn_blocks", "fusion",
    }  # fmt: skip
    assert "spike_channels" not in keys


def test_unknown_network_and_unknown_key_are_refused():
    with pytest.raises(OptionError, match=r"netG\.net_type is 'vrrt'"):
        define_G(options(net_type="vrrt"))
    with pytest.raises(OptionError, match="the nearest is embed_dims"):
        define_G(options(embed_dim=[16] * 9))


def test_a_fusion_operator_alone_is_a_network_that_trains():
    values = {
        "netG": {"net_type": "fusion", "fusion": {"type": "gated", "base": "fused", "gate_bias": 0.0}},
        "train": {"G_lossfn_type": "l1", "G_optimizer_lr": 1e-3},
    }
    model = define_Model(values, spike_channels=2)
    model.init_train()
    torch.manual_seed(0)
    batch = {"lq": torch.rand(1, 2, 3, 5, 7), "spike": torch.rand(1, 2, 2, 5, 7), "key": ["a/0"]}
    losses = []
    for step in range(1, 6):
        model.optimize_parameters(step, [{**batch, "gt": batch["lq"] * 0.5}])
        losses.append(model.current_log()["loss"])
    assert losses[-1] < losses[0]
    net = define_G(values, spike_channels=2)
    assert torch.equal(net(batch["lq"], batch["spike"]), net.fusion.on_input(batch["lq"], batch["spike"]))


@pytest.mark.parametrize("fusion", ["none", "concat", "gated", {"type": "exposure", "base": "blurry"}])
def test_an_operator_that_gives_no_frame_is_no_network(fusion):
    with pytest.raises(OptionError, match=r'netG\.fusion (none|concat|gated|exposure)\n(.*\n)*.*base "fused"'):
        define_G({"netG": {"net_type": "fusion", "fusion": fusion}}, spike_channels=2)


class OwnKeys(Crops, FileReading):
    dataroot_lq: str
    dataroot_gt: str


@DATASETS.register("OwnSpikes", given=("seed",))
class OwnSpikes(TrainClips):
    """Its spikes are no section of the option file."""

    def __init__(self, section: OwnKeys, seed: int = 0) -> None:
        super().__init__(section, seed)

    @classmethod
    def spike_channels(cls, section):
        return 4


def test_a_dataset_without_a_spike_section_may_have_spikes():
    files = {"dataset_type": "OwnSpikes", "dataroot_lq": "none", "dataroot_gt": "none", "num_frame": 2, "gt_size": 32}
    values = {
        "task": "t", "netG": {"net_type": "vrt", **SMALL, "fusion": "concat"}, "train": {"G_lossfn_type": "l1"},
        "datasets": {"train": files, "test": files},
    }  # fmt: skip
    check_options(read_options(values, PARTS))
