"""Load tensors into a network by name, and report what happened to each tensor.

`load_weights` takes a network, and tensors from `read_weights` (weights_file.py) or from a
checkpoint. `load_weights` changes the network, and returns a `LoadReport` (load_report.py).
`compare_weights` only says what `load_weights` would do, so it also works on the device "meta",
where a network takes no memory.

What must stay: weights that do not fit are refused, and leave the network as it was
(test_weights_of_another_network_are_refused_and_change_nothing).

Tests: tests/parts/models/test_weights.py, test_shared_tables.py
"""

from torch import Tensor, nn

from models.load_report import LoadReport
from models.vrt.positions import refuse_other_index
from utils.errors import CheckpointError
from utils.words import counted


def load_weights(
    net: nn.Module, weights: dict[str, Tensor], where: str, strict: bool = False
) -> LoadReport:
    """Load `weights` into `net` by name, in place. Returns what happened to each tensor.

    If conv_first of the network has more input channels than in the file, the additional weights
    are zero, so that the network ignores these channels at first.

    where: what an error names as the source of the weights, e.g. their path.
    strict: whether all names and shapes must match. If False, 90 % of the network's tensors must
        match (`LEAST_MATCHED`).

    Raises CheckpointError if the weights do not fit, and SpoiltWeightsError if they hold NaN or
    integers. After an error the network is unchanged, and callers rely on this.
    """
    report, fitting = compare_weights(net, weights, where, strict)
    _refuse_integers(net, fitting, where)
    _refuse_nan(net, fitting, where)
    tensors_of_network = net.state_dict()
    for name in fitting:
        # The attention computes the table of relative positions from the size of the window, and
        # does not load it (models/vrt/attention/layer.py). The table of the file must be equal.
        if name.endswith(".relative_position_index"):
            refuse_other_index(fitting[name], tensors_of_network[name], name, where)
    net.load_state_dict(fitting, strict=False)  # compare_weights has checked the names
    return report


# Without `strict`, at least this fraction of the tensors must match. If fewer match, the file most
# likely belongs to another network. With 1.0, a network with one more layer than the file could not
# begin with the weights of the file. The description of train.G_param_strict names the number
# (90 %), so change both (utils/options/train_options.py).
LEAST_MATCHED = 0.9


def compare_weights(
    net: nn.Module, weights: dict[str, Tensor], where: str, strict: bool = False
) -> tuple[LoadReport, dict[str, Tensor]]:
    """Return what `load_weights` would report, and the tensors that it would load.

    net: the network, which may be on the device "meta".
    weights: name -> tensor.
    where: the source of the weights, for errors, e.g. their path.
    strict: whether all names and shapes must match.

    Raises CheckpointError if the weights do not fit.
    """
    tensors_of_network = net.state_dict()
    report = LoadReport(
        missing=[name for name in tensors_of_network if name not in weights],
        unexpected=[name for name in weights if name not in tensors_of_network],
    )
    fitting: dict[str, Tensor] = {}
    in_both = tensors_of_network.keys() & weights.keys()
    for name in sorted(in_both):
        in_file = weights[name]
        in_network = tensors_of_network[name]
        if in_file.shape == in_network.shape:
            fitting[name] = in_file
            report.matched.append(name)
            continue
        # The first layer may get zeros for additional input channels, e.g. for spikes.
        is_first_layer = name == "conv_first.weight"
        wide = widen_first(in_file, in_network, net) if is_first_layer else None
        file_shape = tuple(in_file.shape)
        network_shape = tuple(in_network.shape)
        if wide is not None:
            fitting[name] = wide
            report.widened.append(f"{name} {file_shape} -> {network_shape}")
        else:
            report.mismatched.append(f"{name} {file_shape}, network {network_shape}")

    _refuse_misfit(report, where, strict)
    return report, fitting


def _refuse_misfit(report: LoadReport, where: str, strict: bool) -> None:
    """Raise CheckpointError if too few tensors match. With `strict`, all of them must match."""
    differences = report.missing + report.mismatched + report.unexpected + report.widened
    has_forbidden_difference = strict and len(differences) > 0
    if report.loaded_share >= LEAST_MATCHED and not has_forbidden_difference:
        return
    if strict:
        expected = "every tensor (strict)"
    else:
        expected = f"at least {LEAST_MATCHED:.0%} of the network's tensors"
    raise CheckpointError(
        what=f"the weights do not fit the network: {report}",
        where=where,
        expected=expected,
        do="choose weights of the same depths, dims and window, or adapt netG to them",
    )


def widen_first(in_file: Tensor, in_network: Tensor, net: nn.Module) -> Tensor | None:
    """Return the weight of conv_first, (E, inputs, 1, 3, 3), with zeros for new input channels.

    So a network with spikes starts with the weights of a network for RGB, and the new channels have
    no effect at first (test_rgb_weights_start_a_concat_network_that_gives_the_same_output). E.g.
    with two spike channels, the weights of the inputs R G B in the file become R G B 0 0, in each
    group of channels.

    A network with alignment has nine such groups: the frame, and the four nearest pixels in each of
    two neighbours (`aligned_input` in vrt/flow.py). Other networks have one group. If there is a
    noise map, it is the last input channel, after the groups.

    in_file: the weight in the file.
    in_network: the weight in the network. Only its shape is used.

    Returns None if the shapes differ in another axis, or if the network has no additional inputs.
    """
    has_other_outputs = in_file.shape[0] != in_network.shape[0]
    has_other_kernel = in_file.shape[2:] != in_network.shape[2:]
    if has_other_outputs or has_other_kernel:
        return None
    # `pa_frames` above 0 means alignment: the frame and 2 neighbours x 4 pixels are 9 groups. A
    # network of a user may lack `pa_frames` and `nonblind`. Such a network counts as one without
    # alignment and without a noise map.
    groups = 9 if getattr(net, "pa_frames", 0) else 1
    noise_channels = int(getattr(net, "nonblind", False))  # 0 or 1
    file_inputs = in_file.shape[1] - noise_channels
    network_inputs = in_network.shape[1] - noise_channels
    if file_inputs % groups != 0 or network_inputs % groups != 0:
        return None
    has_more_inputs = 0 < file_inputs < network_inputs
    if not has_more_inputs:
        return None

    file_width = file_inputs // groups  # channels of a group in the file, e.g. 3
    network_width = network_inputs // groups  # channels of a group in the network, e.g. 5
    wide = in_file.new_zeros(in_network.shape)
    for group in range(groups):
        # The first channel of the group in the file, and in the network. E.g. with 3 channels in
        # the file and 5 in the network, group 1 goes from the channels 3, 4, 5 to 5, 6, 7.
        source = group * file_width
        target = group * network_width
        wide[:, target : target + file_width] = in_file[:, source : source + file_width]
    if noise_channels:  # the noise map is the last channel
        wide[:, -1] = in_file[:, -1]
    return wide


# ---- Weights with NaN or integers ------------------------------------------------------------


class SpoiltWeightsError(CheckpointError):
    """Weights that fit the network, but hold NaN, or integers in place of parameters."""


def _refuse_integers(net: nn.Module, weights: dict[str, Tensor], where: str) -> None:
    """Raise SpoiltWeightsError if a parameter is an integer, e.g. after a quantization.

    torch would load the integers without a warning, although the scale of quantized weights is
    missing, or the decimals of rounded weights are lost.
    """
    for name, _ in net.named_parameters():
        if name in weights and not weights[name].is_floating_point():
            dtype = str(weights[name].dtype).removeprefix("torch.")
            raise SpoiltWeightsError(
                what=f"the weights hold a tensor of {dtype}, {name}",
                where=where,
                expected="floating-point numbers",
                do="take the weights as the training saved them, without quantization",
            )


def _refuse_nan(net: nn.Module, weights: dict[str, Tensor], where: str) -> None:
    """Raise SpoiltWeightsError if a parameter is NaN, e.g. in weights of a training that diverged.

    With such weights a network restores NaN, and a training skips every step. The warnings of the
    training would name its samples, although the samples are not the cause. Buffers are not
    checked, because NaN may have a meaning in a buffer.
    """
    spoilt = []
    for name, _ in net.named_parameters():
        if name in weights and weights[name].isnan().any():
            spoilt.append(name)
    if spoilt:
        raise SpoiltWeightsError(
            what=f"the weights hold NaN in {counted(len(spoilt), 'tensor')}, "
            f"{spoilt[0]} among them",
            where=where,
            expected="numbers",
            do="take weights that were saved before the training diverged, e.g. "
            "checkpoint_latest_previous.pth or checkpoint_best.pth of its run",
        )
