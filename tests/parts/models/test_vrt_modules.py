"""The modules of the network, compared with reference vectors of the published network.

The vectors lie in tests/data/golden/: for each module its options, weights and input, and the
output and gradients of the published code in float64. A gradient belongs to a loss in which each
value of the output has another weight (`golden.cotangent`). Other tests ask for what the vectors
cannot show: flows without a number, precision, sizes that are refused, the shipped flow network.
"""

from typing import NamedTuple

import cv2
import numpy as np
import pytest
import torch

from models.flow_weights import OWN_FLOW
from models.model_vrt import define_Model
from models.network_vrt import VRT
from models.portable import read_saved
from models.select_network import define_G
from models.vrt import forms
from models.vrt.align_clip import align_clip
from models.vrt.deform_align import DeformAlign
from models.vrt.flow_warp import flow_warp, nearest4
from models.vrt.positions import sine_positions
from models.vrt.spynet import SpyNet
from models.vrt.stages import BlockGroup
from scripts.make_sample_data import texture
from tests.helpers import golden
from tests.helpers.checked import not_none
from tests.helpers.small_vrt import SMALL, small_vrt
from utils.errors import DataError, OptionError

# The last convolution of the flow network at its finest level. In a new network it is 0.
LAST_OF_FLOW = "spynet.basic_module.5.basic_module.8"


def names_of_vectors(prefix: str) -> list[str]:
    """Return the names of the reference vectors that begin with `prefix`, e.g. "mod_align"."""
    return sorted(path.stem for path in golden.FOLDER.glob(f"{prefix}*.npz"))


def assert_near(found: dict[str, torch.Tensor], vector: dict[str, torch.Tensor]) -> None:
    """Check tensors against the tensors of a vector that have the same keys."""
    for key, value in found.items():
        assert golden.difference(value, vector[key]) < golden.TOLERANCE, key


def run_backward(*outputs: torch.Tensor) -> None:
    """Run backward from the loss of the vectors: sum over n of n sum(cotangent * output n).

    The factor n = 1, 2, ... makes the gradients wrong if two outputs are exchanged.
    """
    loss = torch.zeros((), dtype=torch.float64)
    for number, output in enumerate(outputs, start=1):
        loss = loss + number * (output * golden.cotangent(output)).sum()
    loss.backward()


def gradients(tensors) -> dict[str, torch.Tensor]:
    """Return the gradients of pairs (name, tensor) under the keys of a vector."""
    return {f"grad/{name}": not_none(tensor.grad) for name, tensor in tensors}


def frames(*shape: int) -> torch.Tensor:
    """Return random frames; by default 3 frames of 32 x 32."""
    return torch.rand(shape or (1, 3, 3, 32, 32))


# ---- Warping by a flow ----


@pytest.mark.parametrize(
    "mode", ["bilinear/zeros", "bilinear/border", "nearest/zeros", "nearest4/zeros"]
)
@pytest.mark.parametrize(
    "kinds_without_padding",
    [
        pytest.param((), id="torch pads the border"),
        pytest.param(("cpu",), id="border padded by us"),
    ],
)
def test_a_warp_and_its_gradients_equal_the_reference(mode, kinds_without_padding, monkeypatch):
    # On some kinds of device grid_sample cannot pad the border, so our own code does it there. With
    # "cpu" among these kinds, this test runs our code.
    monkeypatch.setattr(forms, "NO_BORDER_PADDING", kinds_without_padding)
    _, vector = golden.load("mod_flow_warp")
    x = vector["x"].requires_grad_()
    flow = vector["flow"].requires_grad_()
    channels_first = flow.permute(0, 3, 1, 2)

    if mode == "nearest4/zeros":
        y = nearest4(x, channels_first)
    else:
        interpolation, padding = mode.split("/")
        y = flow_warp(x, channels_first, interpolation, padding)
    run_backward(y)

    assert_near({f"out/{mode}": y, f"grad_x/{mode}": not_none(x.grad)}, vector)
    if mode == "nearest4/zeros":
        # The nearest pixels do not change with a small change of the flow. So there is no gradient
        # here, and the reference stored zeros.
        assert flow.grad is None
        assert not vector[f"grad_flow/{mode}"].any()
    else:
        expected = vector[f"grad_flow/{mode}"]
        assert torch.allclose(not_none(flow.grad), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_nearest4_survives_a_flow_that_is_no_number(bad):
    # The function computes indices of pixels from the flow. It must not read at a wrong index.
    flow = torch.full((1, 2, 4, 4), bad)

    assert nearest4(torch.ones(1, 1, 4, 4), flow).shape == (1, 4, 4, 4)


def test_one_coordinate_that_is_no_number_changes_no_bit_elsewhere():
    torch.manual_seed(0)
    x = torch.rand(1, 2, 16, 16)
    flow = 3 * torch.randn(1, 2, 16, 16)
    bad_flow = flow.clone()
    bad_flow[0, :, 5, 7] = float("nan")
    is_good = torch.ones(16, 16)
    is_good[5, 7] = 0

    def warp_and_gradients(flow):
        """Return the warped picture without the bad pixel, and the gradients of x and flow."""
        picture = x.clone().requires_grad_()
        moves = flow.clone().requires_grad_()
        y = flow_warp(picture, moves, padding="border")
        (y * is_good).square().sum().backward()
        good = is_good.bool()
        return y.detach()[..., good], not_none(picture.grad), not_none(moves.grad)[..., good]

    exact = warp_and_gradients(flow)
    found = warp_and_gradients(bad_flow)

    for tensor, expected in zip(found, exact, strict=True):
        assert torch.equal(tensor, expected)


# ---- The flow network ----


@pytest.mark.parametrize("size", [(32, 32), (8, 40), (16, 24)])
def test_spynet_takes_images_whose_coarsest_level_is_one_pixel(size):
    height, width = size

    flows = SpyNet()(frames(1, 3, height, width), frames(1, 3, height, width))

    # The flows are in full resolution, then at a half, a quarter and an eighth of it.
    sizes = [tuple(flow.shape[2:]) for flow in flows]
    assert sizes == [(height // scale, width // scale) for scale in (1, 2, 4, 8)]
    for flow in flows:
        assert torch.isfinite(flow).all()


def moved_pictures(motion: tuple[float, float]) -> np.ndarray:
    """Return two pictures (2, 128, 128, 3) float32.

    motion: x and y in pixels, by which the content of the second picture is moved.
    """
    sheet = texture(np.random.default_rng(11), 192).astype(np.float32)
    sheet = cv2.GaussianBlur(sheet, (0, 0), 1.0)
    # Cut both pictures out of the sheet of 192 x 192. Its middle is (96, 96). The content moves to
    # the right if the cut moves to the left.
    x, y = motion
    first = cv2.getRectSubPix(sheet, (128, 128), center=(96, 96))
    second = cv2.getRectSubPix(sheet, (128, 128), center=(96 - x, 96 - y))
    return np.stack([first, second])


@pytest.mark.parametrize("motion", [(3.0, 0.0), (-6.0, 9.0)])
@pytest.mark.parametrize("is_blurry", [False, True])
def test_the_shipped_weights_find_a_known_translation(motion, is_blurry):
    clip = torch.from_numpy(moved_pictures(motion)).permute(0, 3, 1, 2)
    if is_blurry:
        # The mean of 5 x 5 pixels around each pixel.
        clip = torch.nn.functional.avg_pool2d(clip, kernel_size=5, stride=1, padding=2)
    net = VRT(**SMALL, spynet_path=str(OWN_FLOW))

    with torch.no_grad():
        full_resolution = net.estimate_flows(clip[None])[0]
    backward, forward = full_resolution
    to_next = backward[0]  # index 0: between neighbours
    to_former = forward[0]

    # The mean error over all pixels, those at the border too, whose content comes from outside. It
    # must be below a quarter of the motion: a flow of 0 would have an error of the whole motion.
    true = torch.tensor(motion).view(1, 1, 2, 1, 1)
    largest_error = 0.25 * true.norm()
    assert (to_next - true).norm(dim=2).mean() < largest_error
    to_former_reversed = -to_former  # the motion to the former frame is the opposite
    assert (to_former_reversed - true).norm(dim=2).mean() < largest_error


@pytest.fixture(scope="module")
def weights_of_steps():
    """Give the weights after step 1 and after step 2 of a run with fix_iter 2.

    The flow network ("spynet") is frozen before step 2.
    """
    train = {
        "G_lossfn_type": "l1",
        "E_decay": 0,
        "G_optimizer_lr": 1e-3,
        "fix_iter": 2,
        "fix_keys": ["spynet"],
    }
    model = define_Model({"netG": {"net_type": "vrt", **SMALL}, "train": train})
    model.init_train()
    torch.manual_seed(0)
    lq = frames(1, 2, 3, 32, 32)
    batch = {"lq": lq, "gt": 1 - lq, "key": ["a/0"]}
    weights = []
    for step in (1, 2):
        model.optimize_parameters(step, [batch])
        state = model.training_state()["model_state_dict"]
        weights.append({name: value.clone() for name, value in state.items()})
    return weights


def test_the_flow_network_is_frozen_at_first(weights_of_steps):
    assert not weights_of_steps[0][f"{LAST_OF_FLOW}.bias"].any()  # 0, as in a new network


def test_the_flow_network_is_released_after_fix_iter(weights_of_steps):
    assert weights_of_steps[1][f"{LAST_OF_FLOW}.bias"].any()


# ---- Alignment, and groups of attention blocks ----

# tests/parts/models/test_network_vrt.py compares whole networks. It covers SpyNet, flows between
# frames at distances of one to three, and the deformable convolution itself.


@pytest.mark.parametrize("name", names_of_vectors("mod_align"))
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
    # One flow for each distance: index 0 for neighbouring frames, index 1 for frames two apart. A
    # backward flow brings later frames back, so its result is the reference's x_backward.
    flows_backward = [inputs[f"flow_backward/{index}"] for index in range(reach)]
    flows_forward = [inputs[f"flow_forward/{index}"] for index in range(reach)]

    later, earlier = align_clip(module, inputs["x"], flows_backward, flows_forward)
    run_backward(later, earlier)

    found = {"x_backward": later, "x_forward": earlier, **gradients(inputs.items())}
    assert_near(found, vector)


@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize("name", names_of_vectors("mod_tmsag"))
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
    group.load_state_dict(golden.entries(vector, "sd/"))
    x = vector["input"].requires_grad_()

    # The reference has channels first, (B, C, N, H, W). Our block has channels last.
    channels_last = x.permute(0, 2, 3, 4, 1)  # (B, N, H, W, C)
    y = group(channels_last).permute(0, 4, 1, 2, 3)
    run_backward(y)

    found = {"output": y, **gradients([("input", x), *group.named_parameters()])}
    assert_near(found, vector)


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

    for backward, forward in flows:  # of each resolution
        for flow in backward + forward:
            assert flow.dtype is torch.float32


def test_bfloat16_keeps_the_output_near(precisions):
    error = (precisions.rough - precisions.exact).abs().max()

    # bfloat16 has 8 bits, so one rounding error is up to 0.4 % of a number. Through all layers the
    # errors may add up to 5 % of what the network changes. An error of 0 would mean that autocast
    # had no effect.
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

    # The last convolutions of the flow network and of the offsets begin as 0, too. So the layers
    # before them have no gradient in the first step.
    for name in without_gradient:
        assert name.startswith("spynet.") or "pa_deform.conv_offset" in name


def test_the_flow_of_a_new_network_learns_from_its_last_convolution_on(network_after_backward):
    last = network_after_backward.get_parameter(f"{LAST_OF_FLOW}.weight")

    assert not_none(last.grad).any()


# ---- What is refused ----


@pytest.mark.parametrize(
    ("change", "key"),
    [
        pytest.param(
            {"num_heads": [3] * 9}, "netG.embed_dims[0]", id="channels not divisible by heads"
        ),
        pytest.param({"depths": [2] * 7}, "netG.depths", id="no layer of the last stage"),
        pytest.param({"embed_dims": [16] * 8}, "netG.embed_dims", id="a width is missing"),
        pytest.param(
            {"embed_dims": [16] * 8 + [20]}, "netG.embed_dims", id="widths of the last stage differ"
        ),
        pytest.param(
            {"embed_dims": [10] * 9, "num_heads": [2] * 9},
            "netG.embed_dims[0]",
            id="channels not divisible by 4",
        ),
        pytest.param(
            {"embed_dims": [16] * 6 + [20] * 3}, "netG.embed_dims[6]", id="the U is not closed"
        ),
        pytest.param({"pa_frames": 6}, "netG.embed_dims[0]", id="channels not divisible by frames"),
        pytest.param(
            {"deformable_groups": 5},
            "netG.deformable_groups",
            id="channels not divisible by groups",
        ),
        pytest.param({"window_size": [6, 4]}, "netG.window_size", id="window of two sides"),
        pytest.param(
            {"pa_frames": 4, "deformable_groups": 1, "embed_dims": [16] * 9},
            "netG.deformable_groups",
            id="groups not divisible by frames",
        ),
        pytest.param({"upscale": 6}, "netG.upscale", id="enlargement by 6"),
        pytest.param(
            {"indep_reconsts": [11]}, "netG.indep_reconsts", id="a stage that is not there"
        ),
        pytest.param({"out_chans": 1}, "netG.out_chans", id="grey output of RGB input"),
        pytest.param({"in_chans": 2}, "netG.in_chans", id="input of two channels"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused_by_name(change, key):
    with pytest.raises(OptionError) as refused:
        small_vrt(**change)

    assert refused.value.where == key


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        pytest.param((1, 3, 3, 36, 32), "multiples of 8", id="height of 36"),
        pytest.param((1, 3, 3, 24, 32), "at least 32 x 32", id="too small"),
        pytest.param((1, 1, 3, 32, 32), "at least 2 frames", id="one frame"),
        pytest.param((1, 3, 4, 32, 32), "(B, N, 3, H, W)", id="four channels"),
    ],
)
def test_clips_that_cannot_go_through_are_refused(shape, expected):
    with pytest.raises(DataError) as refused:
        VRT(**SMALL)(torch.rand(shape))

    assert expected in refused.value.expected


def test_each_instant_of_gray_frames_begins_as_the_gray_frame_in_each_colour():
    """The network adds the one channel of its input to 3 instants x 3 colours. A new network adds
    nothing else."""
    net = VRT(**SMALL, in_chans=1, out_chans=3, out_instants=3)
    gray = torch.rand(1, 2, 1, 32, 32)

    restored = net(gray)

    assert torch.equal(restored, gray.expand(1, 2, 9, 32, 32))


# ---- Options of a former version: flow_input ----

FORMER = {"net_type": "vrt", **SMALL, "flow_input": "rgb", "flow_channels": None}


def test_weights_that_name_the_blurry_frames_as_input_of_the_flow_load(tmp_path):
    net = define_G({"netG": FORMER})
    options = {"scale": 1, "netG": FORMER, "spike_channels": 0, "spike": None, "spike_data": None}
    torch.save({"params": net.state_dict(), "options": options}, tmp_path / "former.pth")

    loaded = read_saved(tmp_path / "former.pth").build()

    clip = frames(1, 2, 3, 32, 32)
    assert loaded(clip).shape == clip.shape


def test_another_input_of_the_flow_is_refused():
    with pytest.raises(OptionError, match=r"unknown option netG\.flow_input") as refused:
        define_G({"netG": {**FORMER, "flow_input": "both"}})

    assert refused.value.do.startswith("remove it")
