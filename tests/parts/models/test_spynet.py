"""models/vrt/flow_warp.py and spynet.py: sampling along a flow, and the network that finds flows.

Some tests compare with reference vectors of the published network, in tests/data/golden/. The other
tests are about cases that the vectors lack: flows with NaN or infinity, the weights that this
project ships, and the step from which the flow network learns.
"""

import cv2
import numpy as np
import pytest
import torch

from models.flow_weights import OWN_FLOW
from models.model_vrt import define_Model
from models.network_vrt import VRT
from models.vrt import forms
from models.vrt.flow_warp import flow_warp, nearest4
from models.vrt.spynet import SpyNet
from scripts.parts.make_sample_data.sample_layers import texture
from tests.helpers import golden
from tests.helpers.checked import not_none
from tests.helpers.small_vrt import SMALL

# The last convolution of the flow network at its finest level. Its weights are 0 at the start.
LAST_OF_FLOW = "spynet.basic_module.5.basic_module.8"


def frames(*shape: int) -> torch.Tensor:
    """Return random frames (B, N, C, H, W) of this shape, by default (1, 3, 3, 32, 32)."""
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
    # On some kinds of device, torch's grid_sample cannot pad the border, so our own code pads it.
    # If "cpu" is among these kinds, this test runs our own code.
    monkeypatch.setattr(forms, "NO_BORDER_PADDING", kinds_without_padding)
    # Stored inputs, outputs and gradients of the published code. The keys are e.g. "x", "flow",
    # "out/bilinear/zeros" and "grad_x/bilinear/zeros".
    _, vector = golden.load("mod_flow_warp")
    x = vector["x"].requires_grad_()
    flow = vector["flow"].requires_grad_()
    channels_first = flow.permute(0, 3, 1, 2)

    if mode == "nearest4/zeros":
        y = nearest4(x, channels_first)
    else:
        interpolation, padding = mode.split("/")
        y = flow_warp(x, channels_first, interpolation, padding)
    golden.run_backward(y)

    golden.assert_near({f"out/{mode}": y, f"grad_x/{mode}": not_none(x.grad)}, vector)
    if mode == "nearest4/zeros":
        # A small change of the flow does not change which pixels are nearest. So the result has no
        # gradient with respect to the flow. The reference has stored zeros.
        assert flow.grad is None
        assert not vector[f"grad_flow/{mode}"].any()
    else:
        expected = vector[f"grad_flow/{mode}"]
        assert torch.allclose(not_none(flow.grad), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_nearest4_survives_a_flow_that_is_huge_or_not_finite(bad):
    # nearest4 computes indices of pixels from the flow. A flow of 1e30 would give an index outside
    # the picture. nearest4 must not read there. The result has the four nearest pixels, so 1
    # channel becomes 4 channels.
    flow = torch.full((1, 2, 4, 4), bad)

    assert nearest4(torch.ones(1, 1, 4, 4), flow).shape == (1, 4, 4, 4)


def test_one_flow_that_is_nan_changes_no_bit_elsewhere():
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
        # is_good is 0 at the pixel whose flow is NaN. So if its result is finite, the pixel does
        # not count in the loss.
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

    # The first flow has the full height and width. The next flows have a half, a quarter and an
    # eighth of the height and width.
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
    # Cut both pictures out of a sheet of 192 x 192 pixels. Its middle is (96, 96). If the second
    # cut lies farther to the left, its content is farther to the right.
    x, y = motion
    first = cv2.getRectSubPix(sheet, (128, 128), center=(96, 96))
    second = cv2.getRectSubPix(sheet, (128, 128), center=(96 - x, 96 - y))
    return np.stack([first, second])


@pytest.mark.parametrize("motion", [(3.0, 0.0), (-6.0, 9.0)])
@pytest.mark.parametrize("is_blurry", [False, True])
def test_the_shipped_weights_find_a_known_translation(motion, is_blurry):
    clip = torch.from_numpy(moved_pictures(motion)).permute(0, 3, 1, 2)
    if is_blurry:
        # Replace each pixel by the mean of the 5 x 5 pixels around it.
        clip = torch.nn.functional.avg_pool2d(clip, kernel_size=5, stride=1, padding=2)
    net = VRT(**SMALL, spynet_path=str(OWN_FLOW))

    with torch.no_grad():
        full_resolution = net.estimate_flows(clip[None])[0]
    backward, forward = full_resolution
    to_next = backward[0]  # index 0: between neighbours
    to_former = forward[0]

    # The mean error over all pixels must be below a quarter of the motion. The mean includes pixels
    # at the border. Their flow cannot be found, because their content comes from outside. A flow of
    # 0 would have an error as large as the motion.
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
