"""Build the network of weights/motion.pth, and read and write its weights.

The operator is the network of weights/operator.pth. It makes a sharp frame from a blurry frame and
its spikes. A fusion is the first module of a network. It joins frames and spikes. The network of
weights/motion.pth is the operator with another fusion, "motion". This fusion restores a frame as
the operator does, and improves it by learned steps (`MotionSteps`).

What must stay: the keys of the written weights, because models/fusion/fusion_motion.py reads them
(test_the_written_weights_keep_all_of_the_operator_but_its_fusion).
Free to change before a new training: STEP_COUNT. STEP_WEIGHTS in lab/motion_steps/loss.py must have
one weight for each step.
"""

from dataclasses import replace
from pathlib import Path

import torch

from lab.tools import ROOT
from models.fusion.fusion_motion import MotionFusion, MotionSteps, motion_of
from models.portable import read_saved
from models.saved_network import SavedNetwork
from models.select_network import NETWORKS

OPERATOR_WEIGHTS = ROOT / "weights/operator.pth"  # the operator without learned steps
SHIPPED_WEIGHTS = ROOT / "weights/motion.pth"  # the operator with the shipped learned steps
# Number of learned steps. The third step gains 0.1 to 0.3 dB over two steps, and takes about 0.05 s
# per frame.
STEP_COUNT = 3


def motion_network(
    operator: SavedNetwork, network: Path | None = None
) -> tuple[SavedNetwork, MotionFusion]:
    """Build the fusion "motion" with the weights of the operator, before any training.

    Returns the description of the network, as it stands in a weights file, and the fusion. The
    initial weights of the learned steps change nothing, so the fusion returns the operator's frame.

    network: weights file of a small network. This network and DIS, the optical flow of OpenCV, find
        the motion together. None: DIS finds the motion alone.
    """
    # The options of the operator's network, with another fusion.
    fusion = {
        **operator.netG["fusion"],
        "type": "motion",
        "step_count": STEP_COUNT,
    }
    # The option `motion_by` says what finds the motion. "both" means the small network and DIS.
    # Without the option, DIS finds the motion.
    if network:
        fusion["motion_by"] = "both"
    # `resolve` checks the options and adds the defaults of missing options. `plain` makes a dict.
    netG = NETWORKS.resolve({**operator.netG, "fusion": fusion}, "netG").plain()
    saved = replace(operator, netG=netG)
    net = NETWORKS.build(netG, "netG", spike_channels=saved.spike_channels)

    # strict=False, because the operator has no weights of the steps. The steps keep their initial
    # weights.
    net.load_state_dict(operator.weights, strict=False)
    if network:
        net.fusion.motion_net.load_state_dict(torch.load(network))
    return saved, net.fusion.eval()


def steps_of(net: MotionFusion, part: str) -> MotionSteps:
    """Return the learned steps for "few" spikes or for "good" light.

    Only a network with the option `motion_by` "both" has separate steps for few spikes.
    lab/train_motion.py builds such a network, because its flag --network is required.
    """
    if part == "good":
        return net.steps
    assert net.few_steps is not None
    return net.few_steps


def network_of(weights: Path) -> MotionFusion:
    """Return the fusion "motion" of a weights file. The file must have this fusion."""
    fusion = motion_of(read_saved(weights).build())
    assert fusion is not None, f"{weights} has another fusion than motion"
    return fusion.eval()


def begin_at(net: MotionFusion, weights: Path) -> None:
    """Copy the learned steps of a weights file with the fusion "motion" into `net`.

    If the file has no steps for few spikes, its only steps are copied to both places
    (test_both_parts_begin_at_the_steps_of_weights_with_a_single_part).
    """
    fusion_of_file = network_of(weights)
    net.steps.load_state_dict(fusion_of_file.steps.state_dict())
    if net.few_steps is None:
        return
    few_steps = fusion_of_file.few_steps
    if few_steps is None:
        few_steps = fusion_of_file.steps
    net.few_steps.load_state_dict(few_steps.state_dict())


def write_weights(file: Path, saved: SavedNetwork, net: MotionFusion, updates: int) -> None:
    """Write a weights file in the form in which main_train_vrt.py writes the weights of a run.

    `read_saved` (models/portable.py) reads the keys, so they must stay
    (test_the_written_weights_keep_all_of_the_operator_but_its_fusion).

    updates: number of updates, key "iter" of the file.
    """
    options = {
        "scale": saved.scale,
        "netG": saved.netG,
        "spike_channels": saved.spike_channels,
        "spike": saved.spike,
        "spike_data": saved.spike_data,
    }
    # The fusion is the part "fusion" of the whole network.
    params = {f"fusion.{name}": value for name, value in net.state_dict().items()}
    torch.save({"params": params, "options": options, "iter": updates}, file)
