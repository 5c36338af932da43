"""models/select_network.py: networks from options, and the refusals before anything is built.

`define_G` builds the network that the section netG describes. `check_options` refuses sections that
do not fit together, e.g. crops of a size that the network cannot take. The tests read no data, so
the folders in the options need not exist.
"""

import logging

import pytest
import torch

from data.clip_dataset import TrainClips
from data.clip_options import Crops, FileReading
from data.select_dataset import DATASETS
from main_train_vrt import PARTS
from models.fusion.operators import GatedFusion
from models.model_vrt import define_Model
from models.select_network import check_options, define_G
from tests.helpers.checked import module_of
from tests.helpers.small_vrt import SMALL
from utils.errors import OptionError
from utils.options.typed import read_options

# A representation of spikes as 4 channels, each of which counts the spikes in a quarter of an
# exposure.
BINS = {"type": "voxel", "num_bins": 4}
# Roots of frames. No test reads them.
FRAMES = {"dataroot_lq": "none", "dataroot_gt": "none"}


def spike_section(**changes):
    """Return a section `spike` of planes of 8 x 8, with the channels of BINS. changes: its keys."""
    return {"type": "dat", "h": 8, "w": 8, "representation": BINS, **changes}


def read(train, netG, test=None):
    """Return the options of a training of a small VRT.

    train, test: sections of data. netG: keys of the network that replace keys of SMALL.
    """
    values = {
        "task": "t",
        "netG": {"net_type": "vrt", **SMALL, **netG},
        "train": {"G_lossfn_type": "l1"},
        "datasets": {"train": train, "test": test},
    }
    return read_options(values, PARTS)


def options(size=32, representation=BINS, test=None, **netG):
    """Return the options of a training with spikes.

    size: side of the crops. test: section of the data of the validation. netG: keys of the network.
    """
    spike = spike_section(representation=representation)
    train = {
        "dataset_type": "TrainDatasetRGBSpike",
        **FRAMES,
        "num_frame": 2,
        "gt_size": size,
        "dataroot_spike": "none",
        "spike": spike,
    }
    return read(train, netG, test)


def check(opt):
    """Check the options as a program does before it builds the network."""
    check_options(opt.netG, opt.datasets, opt.val, opt.scale)


def test_the_network_of_the_options_is_built_with_the_channels_of_the_data(caplog):
    with caplog.at_level(logging.INFO):
        net = define_G(options(fusion="concat", in_chans=7))

    # "concat" puts the 3 colours and the 4 channels of the spikes together: 7 channels. For each
    # pixel, the first layer sees these channels 9 times: once in the frame itself, and at the 4
    # nearest pixels in each of the 2 neighbouring frames.
    assert net.get_parameter("conv_first.weight").shape[1] == 9 * 7
    # SMALL has no file with weights of the optical flow, so the log says that the flow starts at
    # zero.
    assert caplog.text.count("flow starts at zero") == 1


@pytest.mark.parametrize(
    ("changes", "where", "message"),
    [
        # The windows of the network need crops of a multiple of 32 pixels.
        pytest.param({"size": 24}, "datasets.train.gt_size", "set it to 32", id="crops"),
        pytest.param(
            {"fusion": "exposure"},
            "datasets.train.spike.representation",
            "exposure cannot use voxel channels",
            id="channels",
        ),
    ],
)
def test_crops_and_channels_that_do_not_fit_the_network_are_refused(changes, where, message):
    # With channels that it can use, the fusion "exposure" is accepted. So the refusal below is
    # about the channels, and not about the fusion.
    check(options(fusion="exposure", representation="relative"))

    with pytest.raises(OptionError) as refused:
        check(options(**changes))

    assert refused.value.where == where
    assert message in str(refused.value)


def test_a_refusal_proposes_the_nearest_crop_also_if_the_scale_does_not_divide_the_crop():
    opt = options(size=210)

    # With scale 4, the crop must be a multiple of 4 * 8 = 32. The nearest ones are 192 and 224.
    with pytest.raises(OptionError) as refused:
        check_options(opt.netG, opt.datasets, opt.val, scale=4)

    assert refused.value.do == "set it to 224"


def test_the_crop_that_a_refusal_proposes_is_taken():
    # With these windows, the side of a crop must be at least 64 pixels (8 windows of 8), and a
    # multiple of 24 (of 6 and of 8).
    windows = {"window_size": [2, 6, 8]}

    with pytest.raises(OptionError) as refused:
        check(options(size=24, **windows))
    proposed = int(refused.value.do.removeprefix("set it to "))

    check(options(size=proposed, **windows))


@pytest.mark.parametrize(
    ("key", "value"), [("gamma", 2.2), ("representation", {"type": "tfp", "offsets": [0, 1, 2, 3]})]
)
def test_a_network_is_not_tested_on_other_channels_than_it_learns_from(key, value):
    # The training has BINS without gamma. The test data have four channels, too, but these channels
    # have another meaning.
    test_section = {
        "dataset_type": "TestDatasetRGBSpike",
        **FRAMES,
        "dataroot_spike": "none",
        "spike": spike_section(**{key: value}),
    }
    # Without fusion the network sees no spikes, so the spikes of training and test may differ.
    check(options(fusion="none", test=test_section))

    with pytest.raises(OptionError, match=f"datasets.test.spike has the {key}") as refused:
        check(options(fusion="gated", test=test_section))

    assert refused.value.where == f"datasets.test.spike.{key}"


# Options of a network that is only a fusion operator, without a VRT behind it. With base "fused"
# the operator returns a restored frame.
OPERATOR_ALONE = {
    "netG": {
        "net_type": "fusion",
        "fusion": {"type": "gated", "base": "fused", "gate_bias": 0.0},
    },
    "train": {"G_lossfn_type": "l1", "G_optimizer_lr": 1e-3},
}


def random_clip():
    """Return frames and spikes of a batch of one clip: two frames of 5 x 7 pixels.

    The shapes are (batch, frames, channels, H, W): the frames have three channels, the spikes two.
    """
    torch.manual_seed(0)
    frames = torch.rand(1, 2, 3, 5, 7)
    spikes = torch.rand(1, 2, 2, 5, 7)
    return frames, spikes


def test_a_fusion_operator_alone_is_a_network_that_trains():
    model = define_Model(OPERATOR_ALONE, spike_channels=2)
    model.init_train()
    frames, spikes = random_clip()
    # The sharp frames are half as bright as the input. The operator can learn this easily. "a/0"
    # names the clip "a" and its first frame, 0.
    batch = {"lq": frames, "spike": spikes, "gt": 0.5 * frames, "key": ["a/0"]}

    losses = []
    for step in range(1, 6):
        result = model.optimize_parameters(step, [batch])
        losses.append(float(result.losses["loss"]))

    assert losses[-1] < losses[0]


def test_a_network_without_a_transformer_gives_the_frames_of_its_fusion_operator():
    net = define_G(OPERATOR_ALONE, spike_channels=2)
    operator = module_of(net, "fusion", GatedFusion)
    frames, spikes = random_clip()

    assert torch.equal(net(frames, spikes), operator.on_input(frames, spikes))


@pytest.mark.parametrize(
    ("fusion", "name"),
    [
        ("none", "none"),
        ("concat", "concat"),
        ("gated", "gated"),
        ({"type": "exposure", "base": "blurry"}, "exposure"),
    ],
)
def test_an_operator_that_gives_no_frame_is_no_network(fusion, name):
    with pytest.raises(OptionError) as refused:
        define_G({"netG": {"net_type": "fusion", "fusion": fusion}}, spike_channels=2)

    assert f"netG.fusion {name}\n" in str(refused.value)
    # The error advises this base, with which "gated" and "exposure" give a frame.
    assert 'base "fused"' in str(refused.value)


class OwnKeys(Crops, FileReading):
    """The keys of OwnSpikes in an option file: keys of crops and file reading, and two roots."""

    dataroot_lq: str
    dataroot_gt: str


@DATASETS.register("OwnSpikes", given=("seed",))
class OwnSpikes(TrainClips):
    """A dataset as a user may write it. Its spikes have no section in the option file."""

    def __init__(self, section: OwnKeys, seed: int = 0) -> None:
        super().__init__(section, seed)

    @classmethod
    def spike_channels(cls, section):
        """Return the number of channels of the spikes. `check_options` asks for this number."""
        return 4


def test_a_dataset_without_a_spike_section_may_have_spikes():
    section = {"dataset_type": "OwnSpikes", **FRAMES, "num_frame": 2, "gt_size": 32}

    # "concat" needs spikes, and the section has no key "spike". But there is no error, because the
    # class OwnSpikes says that its data have 4 spike channels.
    check(read(train=section, netG={"fusion": "concat"}, test=section))
