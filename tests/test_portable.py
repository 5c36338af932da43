from pathlib import Path

import pytest
import torch

from main_train_vrt import PARTS
from models.portable import RELEASED, RELEASED_TILES, identify, read_saved
from models.select_network import NETWORKS, define_G
from tests import golden
from tests.clip_files import section, write_info
from tests.train_files import network
from utils.options.load import read_options

BINS = {"type": "voxel", "num_bins": 2}
VALUES = {"task": "t", "train": {"G_lossfn_type": "l1"}}
KNOWN = {"rate": 0.9, "light": "linear", "center": "gt", "planes": 88, "gt_plane": 44}


@pytest.fixture
def described(tmp_path):
    """A folder whose dataset.json holds what KNOWN says."""
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
    whole = NETWORKS.build(netG, "netG").state_dict() | {k: v.float() for k, v in vector.weights.items()}
    torch.save({"params": whole}, tmp_path / "006_x.pth")
    saved = read_saved(tmp_path / "006_x.pth", read_options({**VALUES, "netG": netG}, PARTS).portable())
    with torch.no_grad():
        output = saved.build().double()(vector.input)

    stride = vector.config["output_stride"]
    got = output[..., ::stride, ::stride]
    assert golden.difference(vector.sampled("output", got), vector.samples["output"]) < golden.TOLERANCE


@pytest.mark.parametrize("name", sorted(golden.manifests()))
def test_a_released_network_is_known_by_its_tensors(name):
    manifest = golden.manifests()[name]
    weights = {key: torch.empty(shape, device="meta") for key, shape, *_ in manifest["keys"]}
    found = identify(weights)
    same = {k: v for k, v in manifest["config"].items() if k != "img_size"}
    assert {k: RELEASED[found].get(k, same[k]) for k in same} == same
    assert found[:3] in RELEASED_TILES


def test_released_weights_take_their_name_from_the_file(tmp_path):
    keys = golden.manifests()["006_VRT_videodeblurring_GoPro"]["keys"]
    tensors = {key: torch.zeros((), dtype=getattr(torch, kind)).expand(shape) for key, shape, kind, *_ in keys}
    torch.save({"params": tensors}, tmp_path / "006_VRT_videodeblurring_GoPro.pth")
    saved = read_saved(tmp_path / "006_VRT_videodeblurring_GoPro.pth")
    assert saved.released == "006_VRT_videodeblurring_GoPro"
    assert saved.netG["deformable_groups"] == 16 and saved.scale == 1 and saved.spike is None
    saved.build()


def test_our_weights_and_checkpoints_say_what_they_are(described, tmp_path):
    opt = options(described)
    net, about = define_G(opt), opt.portable()
    full = {"model_state_dict": net.state_dict(), "ema_state_dict": None, "options": opt.plain(), "step": 3}
    ema = {key: value + 1 if value.is_floating_point() else value for key, value in net.state_dict().items()}
    torch.save({"params": net.state_dict(), "options": about, "iter": 3}, tmp_path / "3_G.pth")
    torch.save(full | {"network": about}, tmp_path / "checkpoint_latest.pth")
    torch.save(full | {"network": about, "ema_state_dict": ema}, tmp_path / "averaged.pth")
    # Former versions wrote what they had found out into the data's section.
    full["options"]["datasets"]["train"] |= {"spike_channels": 2, "spike_data": KNOWN}
    torch.save(full, tmp_path / "checkpoint_before.pth")

    for name in ("3_G.pth", "checkpoint_latest.pth", "averaged.pth", "checkpoint_before.pth"):
        saved = read_saved(tmp_path / name)
        assert saved.spike_channels == 2 and saved.spike["type"] == "dat" and saved.netG == opt.netG.plain()
        assert saved.spike_data == KNOWN
        built = saved.build().state_dict()
        wanted = ema if name == "averaged.pth" else net.state_dict()
        assert all(torch.equal(built[key], wanted[key]) for key in wanted)


def test_the_weights_know_their_spikes_better_than_an_option_file_without_its_data(described, tmp_path):
    opt = options(described)
    torch.save({"params": define_G(opt).state_dict(), "options": opt.portable()}, tmp_path / "a.pth")
    write_info(tmp_path, **KNOWN | {"rate": None})
    assert read_saved(tmp_path / "a.pth", opt.portable()).spike_data == KNOWN
    # Files of before have no such entry.
    old = {key: value for key, value in opt.portable().items() if key != "spike_data"}
    torch.save({"params": define_G(opt).state_dict(), "options": old}, tmp_path / "old.pth")
    assert read_saved(tmp_path / "old.pth").spike_data is None
