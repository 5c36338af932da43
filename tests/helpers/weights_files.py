"""An option file, clips and weights for main_test_vrt.py, and functions that run the program.

    make_home          writes all that a test needs
    restore            runs the program in this process
    read_metrics       reads the scores that the program has written
    refusal_message    runs a command that must be refused

What must stay: the numbers of test clips and frames (`write_options`), because tests count them.
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
    """Save random weights of the option file's network. Returns the path as a text.

    In a new network the last convolution is 0, so the network would not change its input. Here this
    convolution gets random weights, too.

    options: the option file.
    path: the file of the weights.
    overrides: options as on the command line, e.g. "netG.fusion=none".
    """
    opt = load_options(str(options), overrides, parts=main_test_vrt.PARTS)
    torch.manual_seed(3)
    net = define_G(opt)
    # A mean of 0 and a deviation of 0.02, which was chosen by hand.
    torch.nn.init.normal_(net.get_parameter("conv_last.weight"), 0, 0.02)
    torch.save({"params": net.state_dict(), "options": opt.portable(), "iter": 1}, path)
    return str(path)


def released_tensors(name: str) -> dict[str, torch.Tensor]:
    """Return tensors with the names and shapes of a released file.

    All weights are 0. They take no memory, because each tensor is a single 0 that is expanded to
    the shape. Only tables of positions have their true values, because a network refuses weights
    with other tables.

    name: name of a released model in `golden.manifests`.
    """
    about = golden.manifests()[name]
    tensors = {}
    for key, shape, dtype, *_ in about["keys"]:  # dtype: a name, e.g. "float32"
        tensors[key] = torch.zeros((), dtype=getattr(torch, dtype)).expand(shape)
    with torch.device("meta"):  # the network takes no memory, either
        computed = VRT(**about["config"]).state_dict()
    for key, value in computed.items():
        if key.endswith("relative_position_index"):
            tensors[key] = value
    return tensors


def make_home(folder):
    """Write options.json, clips, and two files of weights. Returns `folder`.

    The test clips test0, test1 and test2 have 2, 3 and 4 frames of 32 x 32 pixels
    (`write_options`). spike.pth has the weights of a network with spikes, and rgb.pth has the
    weights of a network without spikes.
    """
    options = write_options(folder)
    save_weights(options, folder / "spike.pth")
    save_weights(options, folder / "rgb.pth", "netG.fusion=none")
    return folder


def restore(*arguments):
    """Run main_test_vrt.py in this process. Fails if the program fails."""
    assert main_test_vrt.main([str(argument) for argument in arguments]) == 0


def read_metrics(folder):
    """Return metrics.json of a folder of results."""
    return json.loads((folder / "metrics.json").read_text())


def refusal_message(capfd, *arguments):
    """Run main_test_vrt.py, which refuses the arguments. Returns its output and its exit code.

    Fails if the output has not exactly one error, or has a traceback.

    capfd: the fixture of pytest with this name.
    """
    with pytest.raises(SystemExit) as error:
        main_test_vrt.main([str(argument) for argument in arguments])
    printed = capfd.readouterr()
    text = printed.out + printed.err
    assert text.count("Error: ") == 1, text
    assert "Traceback" not in text, text
    return text, error.value.code
