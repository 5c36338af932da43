"""Option file, clips and weights to test main_test_vrt.py with, its results, and what it says where
it fails.
"""

import json

import pytest
import torch

import main_test_vrt
from models.network_vrt import VRT
from models.select_network import define_G
from tests.helpers import golden
from tests.helpers.train_files import write_options
from utils.options.load import load_options


def save_weights(options, path, *overrides):
    """Random weights of the option file's network, with a tail that changes the picture."""
    opt = load_options(str(options), overrides, parts=main_test_vrt.PARTS)
    torch.manual_seed(3)
    net = define_G(opt)
    torch.nn.init.normal_(net.get_parameter("conv_last.weight"), 0, 0.02)
    torch.save({"params": net.state_dict(), "options": opt.portable(), "iter": 1}, path)
    return str(path)


def released_tensors(name: str) -> dict[str, torch.Tensor]:
    """Tensors of a released file, which take little room: all but the tables are zero."""
    about = golden.manifests()[name]
    tensors = {
        key: torch.zeros((), dtype=getattr(torch, kind)).expand(shape)
        for key, shape, kind, *_ in about["keys"]
    }
    with torch.device("meta"):
        computed = VRT(**about["config"]).state_dict()
    return tensors | {k: v for k, v in computed.items() if k.endswith("relative_position_index")}


def make_home(folder):
    """Three test clips of 2, 3 and 4 frames of 32 x 32, an option file, weights with and without
    spikes.
    """
    options = write_options(folder)
    save_weights(options, folder / "spike.pth")
    save_weights(options, folder / "rgb.pth", "netG.fusion=none")
    return folder


def restore(*arguments):
    assert main_test_vrt.main([*map(str, arguments)]) == 0


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text())


def message(capfd, *args):
    """The one message and the exit code of a failing run."""
    with pytest.raises(SystemExit) as error:
        main_test_vrt.main(list(map(str, args)))
    said = capfd.readouterr()
    text = said.out + said.err
    assert text.count("Error: ") == 1 and "Traceback" not in text, text
    return text, error.value.code
