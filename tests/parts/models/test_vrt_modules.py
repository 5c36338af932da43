"""The modules of the network, compared with reference vectors of the published network.

The vectors are in tests/data/golden/. A vector has the options, the weights and the input of a
module, and the output and gradients that the published code computes in float64. The gradients
belong to a loss in which each value of the output has another weight (`golden.cotangent`). The last
tests use a whole small network. They test the precision of this network in bfloat16, and which of
its layers learn from the first step on.
"""

from typing import NamedTuple

import pytest
import torch

from models.network_vrt import VRT
from models.vrt.align_clip import align_clip
from models.vrt.deform_align import DeformAlign
from models.vrt.positions import sine_positions
from models.vrt.stages import BlockGroup
from tests.helpers import golden
from tests.helpers.checked import not_none
from tests.helpers.small_vrt import SMALL

# The last convolution of the flow network at its finest level. Its weights are 0 at the start.
LAST_OF_FLOW = "spynet.basic_module.5.basic_module.8"


def frames(*shape: int) -> torch.Tensor:
    """Return random frames (B, N, C, H, W) of this shape, by default (1, 3, 3, 32, 32)."""
    return torch.rand(shape or (1, 3, 3, 32, 32))


# ---- Alignment, and groups of attention blocks ----

# SpyNet, the flows between frames at distances of one to three, and the deformable convolution
# itself have no test here, because test_network_vrt.py compares whole networks with these parts.


@pytest.mark.parametrize("name", golden.names_of_vectors("mod_align"))
def test_the_alignment_and_its_gradients_equal_the_reference(name):
    config, vector = golden.load(name)
    reach = config["pa_frames"] // 2  # frames on each side
    module = DeformAlign(
        config["dim"],
        config["deformable_groups"],
        reach,
        max_residual=config["max_residue_magnitude"],
    ).double()
    module.load_state_dict(golden.entries(vector, "sd/pa_deform."))
    inputs = {}
    for key, tensor in vector.items():
        if key == "x" or key.startswith("flow_"):
            inputs[key] = tensor.requires_grad_()
    # There is one flow for each distance: index 0 for neighbouring frames, and index 1 for frames
    # two apart. A backward flow moves later frames back in time, so the reference calls the result
    # x_backward.
    flows_backward = [inputs[f"flow_backward/{index}"] for index in range(reach)]
    flows_forward = [inputs[f"flow_forward/{index}"] for index in range(reach)]

    later, earlier = align_clip(module, inputs["x"], flows_backward, flows_forward)
    golden.run_backward(later, earlier)  # begins at the loss of the reference

    found = {"x_backward": later, "x_forward": earlier, **golden.gradients(inputs.items())}
    golden.assert_near(found, vector)


@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize("name", golden.names_of_vectors("mod_tmsag"))
def test_an_attention_group_and_its_gradients_equal_the_reference(name, kernels):
    config, vector = golden.load(name)
    group = BlockGroup(
        config["dim"],
        config["depth"],
        config["num_heads"],
        tuple(config["window_size"]),
        mutual=config["mut_attn"],
        drop_path=[0.0] * config["depth"],
        mlp_ratio=config["mlp_ratio"],
        qkv_bias=config["qkv_bias"],
        kernels=kernels,
    ).double()
    group.load_state_dict(golden.entries(vector, "sd/"))  # the weights of the reference
    x = vector["input"].requires_grad_()

    # The reference has channels first, (B, C, N, H, W). Our block has channels last.
    channels_last = x.permute(0, 2, 3, 4, 1)  # (B, N, H, W, C)
    y = group(channels_last).permute(0, 4, 1, 2, 3)
    golden.run_backward(y)  # begins at the loss of the reference

    found = {"output": y, **golden.gradients([("input", x), *group.named_parameters()])}
    golden.assert_near(found, vector)


@pytest.mark.parametrize("table", ["position_bias", "relative_position_index"])
def test_a_computed_table_equals_the_reference(table):
    config, vector = golden.load("mod_tmsag_mutual")
    group = BlockGroup(
        config["dim"],
        config["depth"],
        config["num_heads"],
        tuple(config["window_size"]),
        mutual=True,
        drop_path=[0.0] * config["depth"],
    )
    key = f"blocks.0.attn.{table}"

    found = group.state_dict()[key].double()

    assert torch.allclose(found, vector[f"sd/{key}"].double(), atol=1e-6)


def test_the_table_of_positions_has_a_row_for_each_token_of_a_window():
    assert sine_positions(height=8, width=8, channels=96).shape == (1, 64, 96)


# ---- A whole small network ----


class Precisions(NamedTuple):
    """A network with a random last convolution, used in float32 and in bfloat16."""

    net: VRT
    x: torch.Tensor
    exact: torch.Tensor  # the output in float32
    rough: torch.Tensor  # the output in bfloat16


@pytest.fixture(scope="module")
def precisions():
    """Give a network, its input, and both outputs."""
    torch.manual_seed(0)
    net = VRT(**SMALL).eval()
    x = frames()
    net.conv_last.weight.data.normal_(std=0.1)
    exact = net(x)
    with torch.autocast("cpu", torch.bfloat16):
        rough = net(x)
    return Precisions(net, x, exact, rough)


def test_bfloat16_keeps_the_flow_in_float32(precisions):
    with torch.autocast("cpu", torch.bfloat16):
        flows = precisions.net.estimate_flows(precisions.x)

    for backward, forward in flows:  # a pair of lists for each resolution
        for flow in backward + forward:
            assert flow.dtype is torch.float32


def test_bfloat16_keeps_the_output_near(precisions):
    error = (precisions.rough - precisions.exact).abs().max()

    # A number in bfloat16 has 8 significant bits, so one rounding error is up to 0.4 % of the
    # number. Over all layers, the errors may add up to 5 % of what the network changes. An error of
    # 0 would mean that autocast had no effect.
    largest_change = (precisions.exact - precisions.x).abs().max()
    assert 0 < error < 0.05 * largest_change


def test_bfloat16_gives_finite_gradients(precisions):
    precisions.rough.square().mean().backward()

    for parameter in precisions.net.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()


@pytest.fixture(scope="module")
def network_after_backward():
    """Give a new network whose last convolution is not 0, after a backward pass."""
    torch.manual_seed(0)
    net = VRT(**SMALL, drop_path_rate=0.0)
    x = frames()
    net.conv_last.weight.data.normal_(std=0.01)
    net(x).square().mean().backward()
    return net


def test_a_new_network_learns_everywhere_as_soon_as_its_last_convolution_is_not_0(
    network_after_backward,
):
    without_gradient = []
    for name, parameter in network_after_backward.named_parameters():
        if parameter.grad is None or not parameter.grad.any():
            without_gradient.append(name)

    # Two other convolutions also begin as 0: the last convolution of the flow network, and the last
    # convolution of the offsets. So only layers before these two have no gradient in the first
    # step.
    for name in without_gradient:
        assert name.startswith("spynet.") or "pa_deform.conv_offset" in name


def test_the_flow_of_a_new_network_learns_from_its_last_convolution_on(network_after_backward):
    last = network_after_backward.get_parameter(f"{LAST_OF_FLOW}.weight")

    assert not_none(last.grad).any()
