"""define_G: networks from options, and the refusals before anything is built."""

import logging

import pytest
import torch

from data.clip_dataset import Crops, FileReading, TrainClips
from data.select_dataset import DATASETS
from main_train_vrt import PARTS
from models.fusion.operators import GatedFusion
from models.model_vrt import define_Model
from models.select_network import check_options, define_G
from tests.helpers.checked import module_of
from tests.helpers.small_vrt import SMALL
from utils.errors import OptionError
from utils.options.load import read_options

BINS = {"type": "voxel", "num_bins": 4}


def options(size=32, representation=BINS, gamma=1.0, test=None, **netG):
    """Return the options of a training with spikes. size: side of the crops. netG: its keys."""
    spike = {"type": "dat", "h": 8, "w": 8, "gamma": gamma, "representation": representation}
    spikes = {"dataroot_spike": "none", "spike": spike}
    files = {"dataroot_lq": "none", "dataroot_gt": "none", "num_frame": 2, "gt_size": size}
    train = {"dataset_type": "TrainDatasetRGBSpike", **files, **spikes}
    values = {
        "task": "t",
        "netG": {"net_type": "vrt", **SMALL, **netG},
        "train": {"G_lossfn_type": "l1"},
        "datasets": {"train": train, "test": test},
    }
    return read_options(values, PARTS)


def check(opt):
    """Check the options as a program does before it builds the network."""
    check_options(opt.netG, opt.datasets, opt.val, opt.scale)


def test_the_network_of_the_options_is_built_with_the_channels_of_the_data(caplog):
    with caplog.at_level(logging.INFO):
        net = define_G(options(fusion="concat", in_chans=7))
    assert net.get_parameter("conv_first.weight").shape[1] == 9 * 7
    assert caplog.text.count("flow starts at zero") == 1


@pytest.mark.parametrize(("changes", "where", "said"), [
    ({"size": 24}, "datasets.train.gt_size", "set it to 32"),
    (
        {"fusion": "exposure"},
        "datasets.train.spike.representation",
        "exposure cannot use voxel channels",
    ),
])  # fmt: skip
def test_crops_and_channels_that_do_not_fit_the_network_are_refused(changes, where, said):
    check(options(fusion="exposure", representation="relative"))
    with pytest.raises(OptionError) as refused:
        check(options(**changes))

    assert refused.value.where == where
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"), [("gamma", 2.2), ("representation", {"type": "tfp", "offsets": [0, 1, 2, 3]})]
)
def test_a_network_is_not_tested_on_other_channels_than_it_learns_from(key, value):
    section = {
        "dataset_type": "TestDatasetRGBSpike",
        "dataroot_lq": "none",
        "dataroot_gt": "none",
        "dataroot_spike": "none",
        "spike": {"type": "dat", "h": 8, "w": 8, "representation": BINS, key: value},
    }
    check(options(fusion="none", test=section))
    with pytest.raises(OptionError, match=f"datasets.test.spike has the {key}") as refused:
        check(options(fusion="gated", test=section))

    assert refused.value.where == f"datasets.test.spike.{key}"


def test_a_fusion_operator_alone_is_a_network_that_trains():
    values = {
        "netG": {
            "net_type": "fusion",
            "fusion": {"type": "gated", "base": "fused", "gate_bias": 0.0},
        },
        "train": {"G_lossfn_type": "l1", "G_optimizer_lr": 1e-3},
    }
    model = define_Model(values, spike_channels=2)
    model.init_train()
    torch.manual_seed(0)
    batch = {"lq": torch.rand(1, 2, 3, 5, 7), "spike": torch.rand(1, 2, 2, 5, 7), "key": ["a/0"]}
    losses = []
    for step in range(1, 6):
        result = model.optimize_parameters(step, [{**batch, "gt": batch["lq"] * 0.5}])
        losses.append(float(result.losses["loss"]))
    assert losses[-1] < losses[0]
    net = define_G(values, spike_channels=2)
    operator = module_of(net, "fusion", GatedFusion)
    restored = net(batch["lq"], batch["spike"])

    assert torch.equal(restored, operator.on_input(batch["lq"], batch["spike"]))


@pytest.mark.parametrize(
    "fusion", ["none", "concat", "gated", {"type": "exposure", "base": "blurry"}]
)
def test_an_operator_that_gives_no_frame_is_no_network(fusion):
    with pytest.raises(
        OptionError, match=r'netG\.fusion (none|concat|gated|exposure)\n(.*\n)*.*base "fused"'
    ):
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
    files = {
        "dataset_type": "OwnSpikes",
        "dataroot_lq": "none",
        "dataroot_gt": "none",
        "num_frame": 2,
        "gt_size": 32,
    }
    values = {
        "task": "t",
        "netG": {"net_type": "vrt", **SMALL, "fusion": "concat"},
        "train": {"G_lossfn_type": "l1"},
        "datasets": {"train": files, "test": files},
    }
    check(read_options(values, PARTS))
