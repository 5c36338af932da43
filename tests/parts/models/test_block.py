"""models/vrt/block.py and models/vrt/attention/: each way to compute a block gives one result.

A block computes attention in windows. It has several forms: a plain one, one for a CPU and one for
a GPU. The last two compute few windows at a time (a chunk), to save memory. The plain form in
float64 is the reference here; features and weights are random. The last tests are about bfloat16
and float16, which a GPU would use (AMP).
"""

import logging

import pytest
import torch

from models.network_vrt import VRT
from models.precision import AMP_DTYPES, amp_dtype
from models.vrt import chunk_sizes, forms
from models.vrt.attention import cpu_forward, window
from models.vrt.block import Block
from models.vrt.deform_conv import deform_conv
from models.vrt.stages import BlockGroup
from tests.helpers.cuda_autocast import CudaAutocast
from tests.helpers.small_vrt import SMALL
from utils import utils_dist
from utils.options.models import AmpOptions

# Which branches are computed again in the backward pass instead of kept in memory.
ATTENTION = {"checkpoint_attn": True}
MLP = {"checkpoint_ffn": True}
RECOMPUTED = [
    pytest.param({}, id="none recomputed"),
    pytest.param(ATTENTION, id="attention recomputed"),
    pytest.param(MLP, id="MLP recomputed"),
    pytest.param({**ATTENTION, **MLP}, id="both recomputed"),
]

# Frames, height and width. 7 x 6 pixels need padding to fill windows of 4 x 4.
WHOLE_WINDOWS = (4, 8, 8)
PADDED = (4, 7, 6)
CHANNELS = 12


@pytest.fixture(params=["CPU form", "GPU form"])
def form(request, monkeypatch):
    """Let blocks use the form for a CPU, then the form for a GPU, on the CPU.

    The limits of tokens are so low that a chunk has one to five windows.
    """
    monkeypatch.setattr(chunk_sizes, "CPU_TOKENS", 100)
    if request.param == "GPU form":
        monkeypatch.setattr(forms, "CPU_FORM", ())  # so tensors on the CPU take the GPU form
        monkeypatch.setattr(chunk_sizes, "GPU_TOKENS", 160)
        # On a GPU, a head must have a multiple of 16 bytes. Here it is 64, so that heads of 6
        # channels in float64, 48 bytes, are padded to 8 channels.
        monkeypatch.setattr(forms, "HEAD_BYTES", {"cpu": 64})
    return request.param


def group_of_blocks(mutual: bool, **options) -> BlockGroup:
    """Return a group of two blocks in float64. The second block is shifted, and dropped at times.

    mutual: whether each of two frames attends to the other frame.
    """
    window = (2, 4, 4) if mutual else (3, 4, 4)
    drop_path = [0.0, 0.4]
    group = BlockGroup(
        CHANNELS,
        depth=2,
        heads=2,
        window=window,
        mutual=mutual,
        drop_path=drop_path,
        **options,
    )
    return group.double()


def plain_group(mutual: bool) -> BlockGroup:
    """Return a group in the plain form with random weights: the reference."""
    group = group_of_blocks(mutual, kernels="plain")
    for parameter in group.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return group


def group_like(reference: BlockGroup, mutual: bool, **options) -> BlockGroup:
    """Return a group with the weights of another group. options: arguments of BlockGroup."""
    group = group_of_blocks(mutual, **options)
    group.load_state_dict(reference.state_dict())
    return group


def features(size=PADDED) -> torch.Tensor:
    """Return random features (2, frames, height, width, channels) in float64."""
    return torch.randn(2, *size, CHANNELS, dtype=torch.float64, requires_grad=True)


def step(group: BlockGroup, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the output and all gradients of a training step, by name."""
    # This seed drops the branches of one of the two samples.
    torch.manual_seed(3)
    y = group(x)
    # A loss in which each value of the output has another weight.
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y)
    loss = (y.double() * weights).sum()  # double: y is bfloat16 in the last tests

    inputs = {"input": x}
    for name, parameter in group.named_parameters():
        if parameter.requires_grad:
            inputs[name] = parameter
    gradients = torch.autograd.grad(loss, list(inputs.values()))
    return {"output": y, **dict(zip(inputs, gradients, strict=True))}


def assert_equal(found, expected, tolerance):
    """Check that tensors differ by at most `tolerance` of their largest value."""
    assert found.keys() == expected.keys()
    for name, value in found.items():
        scale = expected[name].abs().max()
        assert (value - expected[name]).abs().max() <= tolerance * scale, name


# ---- A group of blocks ----


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize(
    "size",
    [pytest.param(WHOLE_WINDOWS, id="whole windows"), pytest.param(PADDED, id="padded")],
)
@pytest.mark.parametrize("flags", RECOMPUTED)
def test_a_step_gives_the_numbers_of_the_plain_form(form, mutual, size, flags):
    plain = plain_group(mutual)
    ours = group_like(plain, mutual, **flags)
    x = features(size)

    assert_equal(step(ours, x), step(plain, x), 1e-9)


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("flags", RECOMPUTED[1:])
def test_the_plain_form_with_branches_recomputed_has_its_own_numbers(mutual, flags):
    plain = plain_group(mutual)
    saving = group_like(plain, mutual, kernels="plain", **flags)
    x = features()

    assert_equal(step(saving, x), step(plain, x), 1e-12)


@pytest.mark.parametrize("frozen", ["qkv", "fc2", "norm", "relative_position_bias_table"])
def test_frozen_weights_get_no_gradient_while_the_others_keep_theirs(form, frozen):
    plain = plain_group(mutual=True)
    ours = group_like(plain, mutual=True)
    for group in (plain, ours):
        for name, parameter in group.named_parameters():
            parameter.requires_grad_(frozen not in name)
    x = features()

    # Frozen weights are left out of both.
    assert_equal(step(ours, x), step(plain, x), 1e-9)


def step_in_bfloat16(group: BlockGroup, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the output and all gradients of a step under autocast. Weights are in float32."""
    with torch.autocast("cpu", torch.bfloat16):
        return step(group.float(), x.detach().float().requires_grad_())


@pytest.mark.parametrize("mutual", [False, True])
def test_under_autocast_gradients_keep_the_dtype_of_their_weights(form, mutual):
    ours = group_like(plain_group(mutual), mutual)

    found = step_in_bfloat16(ours, features())

    assert found.pop("output").dtype is torch.bfloat16
    for name, gradient in found.items():
        assert gradient.dtype is torch.float32, name


@pytest.mark.parametrize("mutual", [False, True])
def test_under_autocast_each_tensor_is_near_the_exact_one(form, mutual):
    plain = plain_group(mutual)
    ours = group_like(plain, mutual)
    x = features()
    expected = step(plain, x)

    found = step_in_bfloat16(ours, x)
    by_autograd = step_in_bfloat16(plain, x)

    for name, exact in expected.items():
        error = (found[name] - exact).norm()
        usual_error = (by_autograd[name] - exact).norm()
        # The sums of the chunks are rounded one by one. The weights of the loss make them cancel,
        # so the error may be larger than the usual one.
        assert error < 0.1 * exact.norm() + usual_error, name


@pytest.mark.parametrize("mutual", [False, True])
def test_under_autocast_all_tensors_together_are_near_the_exact_ones(form, mutual):
    plain = plain_group(mutual)
    ours = group_like(plain, mutual)
    x = features()
    expected = step(plain, x)

    found = step_in_bfloat16(ours, x)

    all_found = torch.cat([found[name].flatten().double() for name in expected])
    all_expected = torch.cat([expected[name].flatten() for name in expected])
    assert (all_found - all_expected).norm() < 0.02 * all_expected.norm()


# ---- Attention alone ----


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("is_biased", [False, True])
def test_padded_heads_in_several_calls_change_no_number(is_masked, is_biased, monkeypatch):
    # 7 windows, 3 heads, 6 tokens, 5 channels of a head.
    shape = (7, 3, 6, 5)
    q = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    k = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    v = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(shape, dtype=torch.float64)
    inputs = [q, k, v]
    bias = None
    mask = None
    if is_biased:
        bias = torch.randn(3, 6, 6, dtype=torch.float64, requires_grad=True)
        inputs.append(bias)
    if is_masked:
        mask = torch.randn(6, 6, dtype=torch.float64)

    def output_with_gradients():
        out = window.attend(q, k, v, scale=0.3, bias=bias, mask=mask)
        return out, *torch.autograd.grad((out * weight).sum(), inputs)

    plain = output_with_gradients()
    monkeypatch.setattr(forms, "HEAD_BYTES", {"cpu": 64})  # pads 5 channels to 8
    monkeypatch.setattr(window, "MOST_HEADS", 10)  # three windows a call
    padded = output_with_gradients()

    for found, expected in zip(padded, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


class RandomAttention:
    """Random q, k, v (5, 2, 9, 4) and a bias (1, 2, 9, 9), and what `cpu_attention` makes of them.

    factor: scales q, and so the logits. 500 is so large that exp of the logits overflows.
    """

    SCALE = 0.5

    def __init__(self, dtype: torch.dtype, factor: int) -> None:
        q = torch.randn(5, 2, 9, 4).to(dtype)
        k = torch.randn(5, 2, 9, 4).to(dtype)
        v = torch.randn(5, 2, 9, 4).to(dtype)
        bias = torch.randn(1, 2, 9, 9).to(dtype)

        # cpu_attention takes exponents of 2 instead of e.
        offset = (bias * cpu_forward.LOG2_E).expand(5, 2, 9, 9).flatten(0, 1)
        self.out, self.sums = cpu_forward.cpu_attention(q * factor, k, v, offset, self.SCALE)

        products = q.double() @ k.double().transpose(2, 3)
        self.logits = self.SCALE * factor * products + bias.double()
        self.v = v.double()
        # The largest error that is accepted.
        self.tolerance = 1e-4 if dtype == torch.float32 else 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_right(dtype):
    made = RandomAttention(dtype, factor=1)

    expected = made.logits.softmax(3) @ made.v
    torch.testing.assert_close(made.out.double(), expected, rtol=0, atol=made.tolerance)


@pytest.mark.parametrize("factor", [1, 500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_finite_for_logits_of_any_size(dtype, factor):
    assert RandomAttention(dtype, factor).out.isfinite().all()


@pytest.mark.parametrize("factor", [1, 500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_sums_are_right_for_logits_of_any_size(dtype, factor):
    made = RandomAttention(dtype, factor)

    assert made.sums.dtype == torch.float32
    log_sums = made.sums.double().squeeze(3) / cpu_forward.LOG2_E
    scale = made.logits.abs().max()
    expected = made.logits.logsumexp(3) / scale
    torch.testing.assert_close(log_sums / scale, expected, rtol=0, atol=made.tolerance)


# ---- Autocast, and what must stay in float32 ----


def test_a_far_offset_keeps_its_fraction_in_bfloat16():
    # bfloat16 has 8 bits: 20.0625 becomes 20.0, and column 301 becomes 300 or 302. The columns
    # alternate between 0 and 1, so a wrong column shows in the result.
    x = (torch.arange(320) % 2).float().expand(1, 1, 4, 320)
    offset = torch.full((1, 18, 4, 320), 20.0625)
    offset[:, 0::2] = 0  # only along x
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
    # torch allows TF32 in convolutions by default. Otherwise this test would show nothing.
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

    with torch.autocast("cpu", torch.bfloat16), CudaAutocast("cpu"):
        restored = net(clip())

    assert seen == {torch.bfloat16}
    assert torch.isfinite(restored).all()


def test_a_network_first_used_in_inference_mode_still_trains():
    net = VRT(**SMALL, kernels="plain")
    # No other test has this size. Constant tensors are cached for each size, and tensors that are
    # made in inference mode could not be used for training.
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
        # All ranks need one type, because only gradients in float16 are scaled.
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
