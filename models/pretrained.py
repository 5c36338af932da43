"""Start a training from the weights that an option file names.

model_state.py passes a network, and the option path.pretrained_netG or path.pretrained_netE.
`load_pretrained` loads the weights into this network.

What must stay: which of the two sets of weights in a checkpoint a network takes
(tests/parts/models/test_weights.py).

Tests: tests/parts/models/test_weights.py, tests/stories/test_checkpoint.py
"""

import logging

from torch import nn

from models.load_report import LoadReport
from models.loading import load_weights
from models.recognise import file_of
from models.weights_file import read_weights

logger = logging.getLogger(__name__)


def load_pretrained(
    net: nn.Module, path: str | None, strict: bool, which: str = "netG"
) -> LoadReport | None:
    """Load the weights at `path` into `net`, and log the report. Returns None without a path.

    which: "netG", or "netE" for the running average of the weights. The path comes from the option
    path.pretrained_<which>. If a file has normal and averaged weights, netE takes the averaged
    weights.
    """
    if not path:
        return None
    # The preferred key of the file. If the file lacks this key, `read_weights` takes the first key
    # of CONTAINERS (weights_file.py) that the file has. The keys hold
    #
    #     "params"              the weights of <step>_G.pth or <step>_E.pth
    #     "model_state_dict"    the normal weights of a checkpoint
    #     "ema_state_dict"      the running average of the weights of a checkpoint
    container = "params" if which == "netG" else "ema_state_dict"
    # `path` may be the name of published weights, such as "vrt/006". `file_of` returns their file.
    file = str(file_of(path))
    # Completes the error for a missing file: "correct path.pretrained_netG, or set it to null".
    key = f"path.pretrained_{which}, or set it to null"
    weights = read_weights(file, prefer=container, key=key)
    report = load_weights(net, weights, file, strict)
    logger.info("Pretrained %s %s: %s", which, file, report)
    return report
