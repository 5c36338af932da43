"""The network against reference vectors: outputs, inner activations, flows, gradients.

The published network made the vectors (tests/helpers/golden.py, tests/data/golden). A vector has
weights, an input, and what the published network computes from them. Our network gets the same
weights and the same input, in float64, and must compute the same.

The gradients of a vector belong to the loss sum(weights * output), in which each value of the
output has another weight (`golden.cotangent`). So a gradient is wrong if two values of the output
are exchanged.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from models.network_vrt import VRT
from models.vrt.block import Block
from models.vrt.flow import Flows
from tests.helpers import golden
from tests.helpers.checked import module_of, not_none
from tests.helpers.naive_vrt import NaiveVRT

# Parts of the names of tensors that are computed and not learned. The vectors leave them out.
COMPUTED = ("relative_position_index", "position_bias", "spynet.mean", "spynet.std")


def load_net(name: str, **more: Any) -> tuple[golden.NetVector, VRT]:
    """Return a vector, and our network with its weights in float64. more: additional arguments."""
    vector = golden.load_net(name)
    net = VRT(**vector.config["network"], **more).eval()
    missing = net.load_state_dict(vector.weights, strict=False).missing_keys
    for key in missing:
        assert any(name in key for name in COMPUTED), key
    return vector, net.double()


# ---- Activations ----


class Activations:
    """The outputs of the parts of a network in a forward pass.

    The vectors have activations as (B, C, N, H, W): batch, channels, frames, height, width. The
    parts of our network have other layouts. Their outputs are kept here in the layout of the
    vectors.
    """

    # Parts of the network whose output is (B, N, H, W, C).
    WITH_CHANNELS_LAST = (
        "stage1.reshape",
        "stage1.residual_group1",
        "stage1",
        "stage2",
        "stage3",
        "stage4",
        "stage5",
        "stage6",
        "stage7",
        "norm",
    )

    def __init__(self, net: VRT, batch: int) -> None:
        """Watch the next forward pass of `net`. batch: number of clips in it."""
        self.batch = batch
        # Activations (B, C, N, H, W), by their names in the vectors.
        self.outputs: dict[str, Tensor] = {}
        self.flows: Flows = []
        for name in self.WITH_CHANNELS_LAST:
            self._keep_output(net, name)
        self._keep_first_convolution(net)
        self._keep_flows(net)

    def _keep_output(self, net: VRT, name: str) -> None:
        # The vectors call the output of the last norm "features".
        key = "features" if name == "norm" else name

        def keep(module: Any, inputs: Any, output: Tensor) -> None:
            self.outputs[key] = output.permute(0, 4, 1, 2, 3)

        net.get_submodule(name).register_forward_hook(keep)

    def _keep_first_convolution(self, net: VRT) -> None:
        def keep(module: Any, inputs: Any, output: Tensor) -> None:
            self.outputs["conv_first_in"] = self._with_clips(inputs[0])
            self.outputs["conv_first"] = self._with_clips(output)

        net.conv_first.register_forward_hook(keep)

    def _with_clips(self, frames: Tensor) -> Tensor:
        """Return frames (B * N, C, H, W) as clips (B, C, N, H, W)."""
        return frames.unflatten(0, (self.batch, -1)).transpose(1, 2)

    def _keep_flows(self, net: VRT) -> None:
        estimate = net.estimate_flows

        def estimate_and_keep(frames: Tensor) -> Flows:
            self.flows = estimate(frames)
            return self.flows

        net.estimate_flows = estimate_and_keep

    def activation(self, name: str) -> Tensor:
        """Return an activation by its name in the vectors.

        To keep the files small, the vectors have only a part of some activations. The end of the
        name says which part: pixels 8 to 23 ("_crop8_24"), or each second pixel ("_stride2").
        """
        if name.startswith("flow_"):
            return self._flow(name)
        if name.endswith("_crop8_24"):
            return self.outputs[name.removesuffix("_crop8_24")][..., 8:24, 8:24]
        if name.endswith("_stride2"):
            return self.outputs[name.removesuffix("_stride2")][..., ::2, ::2]
        return self.outputs[name]

    def _flow(self, name: str) -> Tensor:
        """Return a flow by its name, e.g. "flow_backward/dist2/level3".

        The flow in this example is between frames at a distance of 2, at 1 / 2^3 of the resolution.
        """
        kind, distance, level = name.removeprefix("flow_").split("/")
        # `flows` has a pair (backward, forward) for each level. Each of the two is a list, in which
        # index 0 has the flows between neighbours (distance 1).
        backward, forward = self.flows[int(level.removeprefix("level"))]
        by_distance = forward if kind == "forward" else backward
        return by_distance[int(distance.removeprefix("dist")) - 1].detach()


# ---- The network and the vectors ----

# Vectors of large networks. Only `make slow` compares them, because each takes 4 to 30 seconds of a
# core. So `make test` compares no whole network that aligns 4 or 6 frames (pa4, pa6), that enlarges
# by 4, that restores gray pictures, or that knows the noise level. For most of these networks,
# `make test` has weaker tests. test_vrt_modules.py compares the alignment of 4 and 6 frames alone
# (mod_align_pa4_n4 and mod_align_pa6_n5). tests/stories/test_kair_files.py trains some networks for
# a few steps: they align 4 frames, enlarge, or remove noise.
LARGE = (
    "net_deblur_pa2_5f_b2",
    "net_deblur_pa2_6f",
    "net_deblur_pa4_4f",
    "net_denoise_nonblind_3f",
    "net_gray_1ch",
    "net_sr4_pa2_6f",
    "net_sr4_pa6_5f",
)


def networks() -> list[Any]:
    """Return the names of all vectors of whole networks. The large ones are marked `slow`."""
    found = []
    for path in sorted(golden.FOLDER.glob("net_*.npz")):
        marks = pytest.mark.slow if path.stem in LARGE else ()
        found.append(pytest.param(path.stem, marks=marks))
    return found


# One test compares all values of a vector. All values need the forward and the backward pass, and
# these take most of the time.
@pytest.mark.parametrize("name", networks())
def test_outputs_activations_flows_and_gradients_equal_the_reference(name):
    vector, net = load_net(name)
    x = vector.input.clone().requires_grad_()
    seen = Activations(net, batch=len(x))

    y = net(x)
    (y * golden.cotangent(y)).sum().backward()

    assert list(y.shape) == vector.config["output_shape"]
    parameters: dict[str, Tensor] = dict(net.named_parameters())
    # The vectors also have the gradient of the input.
    parameters["input"] = x
    stride = vector.config["output_stride"]
    for key, expected in vector.samples.items():
        if key == "output":
            value = y[..., ::stride, ::stride]
        elif key.startswith("grad/"):
            value = not_none(parameters[key.removeprefix("grad/")].grad)
        else:
            value = seen.activation(key.removeprefix("act/"))
        difference = golden.difference(vector.sample_of(key, value), expected)
        assert difference < golden.TOLERANCE, key
    # For each other gradient, the vector has only the norm.
    for key, norm in vector.config["grad_norms"].items():
        found = not_none(parameters[key].grad).norm().item()
        assert found == pytest.approx(norm, rel=1e-8), key


@pytest.mark.parametrize(
    "name",
    [
        "net_deblur_pa2_2f_w8",
        pytest.param("net_deblur_pa4_4f", marks=pytest.mark.slow),
        pytest.param("net_gray_1ch", marks=pytest.mark.slow),
    ],
)
def test_the_plain_transcription_gives_the_reference_output(name):
    # NaiveVRT is the published network as plain code, without any optimisation
    # (tests/helpers/naive_vrt.py). Other tests compare our network with it.
    vector = golden.load_net(name)
    net = NaiveVRT(**vector.config["network"]).eval()
    net.load_state_dict(vector.weights, strict=False)

    with torch.no_grad():
        output = net.double()(vector.input)

    stride = vector.config["output_stride"]
    found = vector.sample_of("output", output[..., ::stride, ::stride])
    assert golden.difference(found, vector.samples["output"]) < golden.TOLERANCE


def test_checkpointing_changes_memory_and_nothing_else():
    vector, plain = load_net("net_fi_4f")
    _, saving = load_net(
        "net_fi_4f", use_checkpoint_attn=True, use_checkpoint_ffn=True, no_checkpoint_ffn_blocks=[1]
    )

    # The gradients must be bitwise equal. Any dtype can show this, and float32 is faster than
    # float64.
    for net in (plain.float(), saving.float()):
        y = net(vector.input.float())
        (y * golden.cotangent(y)).sum().backward()

    # The entry 1 of no_checkpoint_ffn_blocks means stage 2, because the option counts from 0. So
    # stage 2 computes its attention again in the backward pass, but not its MLP.
    first_block = module_of(saving, "stage2.residual_group1.blocks.0", Block)
    assert first_block.checkpoint_attn
    assert not first_block.checkpoint_ffn
    saving_parameters = dict(saving.named_parameters())
    for name, parameter in plain.named_parameters():
        gradient = not_none(saving_parameters[name].grad)
        assert torch.equal(not_none(parameter.grad), gradient), name


# ---- Released models ----

# For each released model: its options, and the names, shapes and order of its tensors.
MANIFESTS = golden.manifests()


def released_network(name: str) -> VRT:
    """Return the network of a released model, without memory for its weights."""
    with torch.device("meta"):
        return VRT(**MANIFESTS[name]["config"])


@pytest.mark.parametrize("name", sorted(MANIFESTS))
def test_state_dict_of_a_released_model_has_its_keys_in_order(name):
    net = released_network(name)

    parameters = dict(net.named_parameters())
    state = []
    for key, value in net.state_dict().items():
        dtype = str(value.dtype).removeprefix("torch.")
        kind = "parameter" if key in parameters else "buffer"
        state.append([key, list(value.shape), dtype, kind])
    assert state == MANIFESTS[name]["keys"]
    assert sum(value.numel() for value in parameters.values()) == MANIFESTS[name]["n_params"]


@pytest.mark.parametrize("name", sorted(MANIFESTS))
def test_a_released_model_drops_paths_with_its_probabilities(name):
    net = released_network(name)

    rates = {}
    for key, module in net.named_modules():
        # The table does not list modules without drop_path, or with a probability of 0.
        probability = getattr(module, "drop_path", 0)
        if probability:
            rates[f"{key}.drop_path"] = probability
    assert rates == pytest.approx(MANIFESTS[name]["drop_path_prob"])


# ---- Flows in 16 bits ----


def test_flows_have_full_precision_under_autocast():
    _, net = load_net("net_deblur_pa2_2f_w8")
    net.float()
    frames = torch.rand(1, 2, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    with torch.no_grad():
        expected = net.estimate_flows(frames)
        with torch.autocast("cpu", torch.bfloat16):
            found = net.estimate_flows(frames)

    # The flows from frame 1 to frame 0, at full resolution.
    assert torch.equal(found[0].backward[0], expected[0].backward[0])
