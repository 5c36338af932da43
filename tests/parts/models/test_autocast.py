"""Mixed precision: which dtype is chosen, what computes in it, and what stays in float32."""

import logging

import pytest
import torch

from models.network_vrt import VRT
from models.precision import AMP_DTYPES, amp_dtype
from models.vrt import forms
from models.vrt.block import Block
from models.vrt.deform_conv import deform_conv
from tests.helpers.cuda_autocast import CudaAutocast
from tests.helpers.small_vrt import SMALL
from utils import utils_dist
from utils.options.train_options import AmpOptions


def test_a_far_offset_keeps_its_fraction_in_bfloat16():
    # A number in bfloat16 has 8 significant bits: 20.0625 becomes 20.0, and column 301 becomes 300
    # or 302. The columns of x are 0 and 1 in turn, so a sample between two columns is 0.0625 or
    # 0.9375. The result shows whether the fraction is lost or the column is wrong.
    x = (torch.arange(320) % 2).float().expand(1, 1, 4, 320)
    offset = torch.full((1, 18, 4, 320), 20.0625)
    # The 18 channels are 9 pairs (y, x): y_0, x_0, y_1, x_1, ... Set each y to 0.
    offset[:, 0::2] = 0
    mask = torch.ones(1, 9, 4, 320)
    weight = torch.zeros(1, 1, 3, 3)
    weight[0, 0, 1, 1] = 1
    exact = deform_conv(x, offset, mask, weight, torch.zeros(1))

    with torch.autocast("cpu", torch.bfloat16):
        rough = deform_conv(x.bfloat16(), offset, mask, weight, torch.zeros(1))

    assert rough.dtype is torch.bfloat16
    assert torch.equal(rough, exact.bfloat16())


def allows_tf32() -> tuple[bool, bool]:
    """Return whether torch may use TF32 in convolutions, and in matrix products."""
    # Newer versions of torch have a setting for each operation.
    if hasattr(torch.backends.cudnn, "conv"):
        convolutions = torch.backends.cudnn.conv.fp32_precision == "tf32"
        products = torch.backends.cuda.matmul.fp32_precision == "tf32"
        return convolutions, products
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


def clip(height: int = 32, width: int = 32) -> torch.Tensor:
    """Return random frames (1, 2, 3, height, width)."""
    return torch.rand(1, 2, 3, height, width)


@pytest.mark.filterwarnings("error")
def test_the_flow_is_computed_in_full_float32():
    net = VRT(**SMALL)
    seen = set()

    def note_precision(_, args):
        seen.add((args[0].dtype, *allows_tf32()))

    for module in net.spynet.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_pre_hook(note_precision)
    # By default, torch allows TF32 in convolutions. The network must switch TF32 off for the flow.
    assert allows_tf32()[0]

    with torch.autocast("cpu", torch.bfloat16):
        net(clip())

    assert seen == {(torch.float32, False, False)}


@pytest.mark.filterwarnings("error")
def test_the_precision_that_the_user_set_comes_back_after_the_flow():
    before = allows_tf32()

    with torch.autocast("cpu", torch.bfloat16):
        VRT(**SMALL)(clip())

    assert allows_tf32() == before


@pytest.mark.filterwarnings("error")
def test_the_precision_that_the_user_set_comes_back_after_an_error():
    net = VRT(**SMALL)
    before = allows_tf32()

    def fail(*_):
        raise ZeroDivisionError

    net.spynet.get_submodule("basic_module.0.basic_module").register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        net(clip())

    assert allows_tf32() == before


# cpu_form: the types of devices on which blocks are computed in the CPU form. If it is empty, the
# CPU takes the GPU form, too.
@pytest.mark.parametrize(
    "cpu_form",
    [pytest.param(("cpu",), id="CPU form"), pytest.param((), id="GPU form")],
)
def test_under_autocast_every_block_takes_the_dtype_that_it_gives(cpu_form, monkeypatch):
    monkeypatch.setattr(forms, "CPU_FORM", cpu_form)
    net = VRT(**SMALL)
    seen = set()

    def note_dtypes(_, args, out):
        seen.update((args[0].dtype, out.dtype))

    for module in net.modules():
        if isinstance(module, Block):
            module.register_forward_hook(note_dtypes)

    # CudaAutocast gives functions on the CPU the dtypes that they have under autocast on a GPU.
    with torch.autocast("cpu", torch.bfloat16), CudaAutocast("cpu"):
        restored = net(clip())

    assert seen == {torch.bfloat16}
    assert torch.isfinite(restored).all()


def test_a_network_first_used_in_inference_mode_still_trains():
    net = VRT(**SMALL, kernels="plain")
    # The network caches constant tensors for each size. No other test has this size, so the call
    # in inference mode makes the tensors. torch refuses a backward pass with inference tensors.
    x = clip(40, 56)

    with torch.inference_mode():
        net(x)
    net(x).square().mean().backward()

    assert net.conv_first.weight.grad is not None


@pytest.mark.parametrize(
    ("wanted", "has_bfloat16", "chosen"),
    [
        pytest.param("auto", [True], "bfloat16", id="auto, a GPU that has it"),
        pytest.param("auto", [False], "float16", id="auto, a GPU that lacks it (V100)"),
        # All ranks need the same type, because gradients are scaled in float16 and not in bfloat16.
        pytest.param("auto", [True, False], "float16", id="auto, two ranks that differ"),
        pytest.param("bfloat16", [False], "bfloat16", id="bfloat16 by name"),
        pytest.param("float16", [True], "float16", id="float16 by name"),
    ],
)
def test_auto_takes_bfloat16_only_if_every_device_has_it(wanted, has_bfloat16, chosen, monkeypatch):
    monkeypatch.setattr(utils_dist, "gather_objects", lambda _: has_bfloat16)

    dtype = amp_dtype(AmpOptions(enable=True, dtype=wanted), torch.device("cpu"))

    assert dtype is AMP_DTYPES[chosen]


def test_the_cpu_trains_in_bfloat16_if_asked():
    assert amp_dtype(AmpOptions(enable=True), torch.device("cpu")) is torch.bfloat16


def test_the_cpu_trains_in_float32_if_not_asked():
    assert amp_dtype(AmpOptions(), torch.device("cpu")) is None


def test_the_log_names_the_type_of_mixed_precision_once(caplog):
    caplog.set_level(logging.INFO)

    amp_dtype(AmpOptions(enable=True), torch.device("cpu"))
    amp_dtype(AmpOptions(), torch.device("cpu"))

    assert [record.message for record in caplog.records] == ["mixed precision in bfloat16"]
