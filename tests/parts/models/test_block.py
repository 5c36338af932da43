"""Every form of attention and of a block gives the numbers of the plain one in float64; what a GPU
would lose.
"""

import logging

import pytest
import torch

from models.model_vrt import AMP_DTYPES, amp_dtype
from models.network_vrt import VRT
from models.vrt import attention, chunks, forms
from models.vrt.block import Block, BlockGroup
from models.vrt.deform_align import deform_conv
from tests.helpers.cuda_autocast import CudaAutocast
from tests.helpers.small_vrt import SMALL
from utils import utils_dist
from utils.options.models import AmpOptions

FLAGS = [
    {},
    {"checkpoint_attn": True},
    {"checkpoint_ffn": True},
    {"checkpoint_attn": True, "checkpoint_ffn": True},
]
# 7 x 6 pixels in windows of 4 x 4 need padding.
SIZES = {"whole windows": (4, 8, 8), "padded": (4, 7, 6)}


@pytest.fixture(params=["own attention", "public attention"])
def form(request, monkeypatch):
    """The form for a CPU, or that for a GPU, in chunks of one to five windows."""
    monkeypatch.setattr(chunks, "CPU_TOKENS", 100)
    if request.param == "public attention":
        monkeypatch.setattr(forms, "CPU_FORM", ())
        monkeypatch.setattr(forms, "HEAD_BYTES", {"cpu": 64})  # heads of 6 channels get 8
        monkeypatch.setattr(chunks, "GPU_TOKENS", 160)
    return request.param


def groups(mutual: bool, **options):
    """(plain, in chunks): two blocks, the second shifted and dropped by stochastic depth for one
    sample.
    """
    window = (2, 4, 4) if mutual else (3, 4, 4)
    plain = BlockGroup(12, 2, 2, window, mutual, [0.0, 0.4], kernels="plain").double()
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours = BlockGroup(12, 2, 2, window, mutual, [0.0, 0.4], **options).double()
    ours.load_state_dict(plain.state_dict())
    return plain, ours


def step(group, x):
    torch.manual_seed(3)  # drops the branches of one sample
    y = group(x)
    wanted = {"input": x, **{name: p for name, p in group.named_parameters() if p.requires_grad}}
    loss = (y.double() * torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y)).sum()
    return {
        "output": y,
        **dict(zip(wanted, torch.autograd.grad(loss, list(wanted.values())), strict=True)),
    }


def assert_equal(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        scale = expected[name].abs().max()
        assert (value - expected[name]).abs().max() <= tolerance * scale, name


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("flags", FLAGS)
def test_output_and_gradients_are_those_of_the_plain_form(form, mutual, size, flags):
    plain, ours = groups(mutual, **flags)
    x = torch.randn(2, *SIZES[size], 12, dtype=torch.float64, requires_grad=True)

    assert_equal(step(ours, x), step(plain, x), 1e-9)


@pytest.mark.parametrize("mutual", [False, True])
def test_the_plain_form_with_every_branch_recomputed_has_its_own_numbers(mutual):
    plain, _ = groups(mutual)
    x = torch.randn(2, 4, 7, 6, 12, dtype=torch.float64, requires_grad=True)
    for flags in FLAGS[1:]:
        _, saving = groups(mutual, kernels="plain", **flags)
        saving.load_state_dict(plain.state_dict())
        assert_equal(step(saving, x), step(plain, x), 1e-12)


@pytest.mark.parametrize("frozen", ["qkv", "fc2", "norm", "relative_position_bias_table"])
def test_frozen_weights_get_no_gradient_and_the_others_keep_theirs(form, frozen):
    plain, ours = groups(mutual=True)
    for name, parameter in [*plain.named_parameters(), *ours.named_parameters()]:
        parameter.requires_grad_(frozen not in name)
    x = torch.randn(2, 4, 7, 6, 12, dtype=torch.float64, requires_grad=True)

    assert_equal(step(ours, x), step(plain, x), 1e-9)


@pytest.mark.parametrize("mutual", [False, True])
def test_under_autocast_the_numbers_are_near_and_gradients_keep_the_dtype_of_their_weights(
    form, mutual
):
    plain, ours = groups(mutual)
    x = torch.randn(2, 4, 7, 6, 12, dtype=torch.float64, requires_grad=True)
    expected = step(plain, x)

    with torch.autocast("cpu", torch.bfloat16):
        found, by_autograd = (
            step(group.float(), x.detach().float().requires_grad_()) for group in (ours, plain)
        )

    for name, value in found.items():
        assert value.dtype is (torch.bfloat16 if name == "output" else torch.float32), name
        error, usual = ((other - expected[name]).norm() for other in (value, by_autograd[name]))
        # The sums of chunks are rounded one by one, and the weights of this loss make them cancel.
        assert error < 0.1 * expected[name].norm() + usual, name
    every = [torch.cat([t[name].flatten().double() for name in found]) for t in (found, expected)]
    assert (every[0] - every[1]).norm() < 0.02 * every[1].norm()


@pytest.mark.parametrize(
    ("is_masked", "is_biased"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_padded_heads_and_few_windows_a_call_change_no_number(is_masked, is_biased, monkeypatch):
    q, k, v = (torch.randn(7, 3, 6, 5, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(3, 6, 6, dtype=torch.float64, requires_grad=True) if is_biased else None
    mask = torch.randn(6, 6, dtype=torch.float64) if is_masked else None
    inputs = [q, k, v] if bias is None else [q, k, v, bias]
    weight = torch.randn(7, 3, 6, 5, dtype=torch.float64)

    def numbers():
        out = attention.attend(q, k, v, 0.3, bias, mask)
        return out, *torch.autograd.grad((out * weight).sum(), inputs)

    plain = numbers()
    monkeypatch.setattr(forms, "HEAD_BYTES", {"cpu": 64})  # 5 channels to 8
    monkeypatch.setattr(attention, "MOST_HEADS", 10)  # three windows a call
    for found, expected in zip(numbers(), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("factor", [1, 500])  # 500: exp of the logits would overflow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_and_log_sums_are_right_for_logits_of_any_size(dtype, factor):
    q, k, v = (torch.randn(5, 2, 9, 4).to(dtype) for _ in range(3))
    added = torch.randn(1, 2, 9, 9).to(dtype)

    offset = (added * attention.LOG2_E).expand(5, 2, 9, 9).flatten(0, 1)
    out, sums = attention.cpu_attention(q * factor, k, v, offset, 0.5)

    logits = (0.5 * factor) * q.double() @ k.double().transpose(2, 3) + added.double()
    largest = 1e-4 if dtype == torch.float32 else 0.1
    if factor == 1:
        expected = logits.softmax(3) @ v.double()
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=largest)
    scale = logits.abs().max()
    sums_of_e = sums.double().squeeze(3) / attention.LOG2_E
    expected = logits.logsumexp(3) / scale
    torch.testing.assert_close(sums_of_e / scale, expected, rtol=0, atol=largest)
    assert out.isfinite().all() and sums.dtype == torch.float32


def test_a_far_offset_keeps_its_fraction_in_bfloat16():
    # In bfloat16, 20.0625 is 20.0 and column 301 does not exist. Steps between the columns show the
    # fraction.
    x = (torch.arange(320) % 2).float().expand(1, 1, 4, 320)
    offset, mask = torch.full((1, 18, 4, 320), 20.0625), torch.ones(1, 9, 4, 320)
    offset[:, 0::2] = 0
    weight = torch.zeros(1, 1, 3, 3)
    weight[0, 0, 1, 1] = 1
    exact = deform_conv(x, offset, mask, weight, torch.zeros(1))

    with torch.autocast("cpu", torch.bfloat16):
        rough = deform_conv(x.bfloat16(), offset, mask, weight, torch.zeros(1))

    assert rough.dtype is torch.bfloat16
    assert torch.equal(rough, exact.bfloat16())


def precision() -> tuple[bool, bool]:
    """Whether torch may use TF32 in convolutions, and in matrix products."""
    if hasattr(torch.backends.cudnn, "conv"):
        parts = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)
        return tuple(part.fp32_precision == "tf32" for part in parts)
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


@pytest.mark.filterwarnings("error")
def test_the_flow_is_computed_in_full_float32_and_the_settings_come_back():
    net, seen = VRT(**SMALL), set()
    for conv in (m for m in net.spynet.modules() if isinstance(m, torch.nn.Conv2d)):
        conv.register_forward_pre_hook(lambda _, args: seen.add((args[0].dtype, *precision())))
    before = precision()
    assert before[0]  # torch's default, without which the test shows nothing

    with torch.autocast("cpu", torch.bfloat16):
        net(torch.rand(1, 2, 3, 32, 32))
    assert seen == {(torch.float32, False, False)} and precision() == before

    net.spynet.get_submodule("basic_module.0.basic_module").register_forward_pre_hook(
        lambda *_: 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        net(torch.rand(1, 2, 3, 32, 32))
    assert precision() == before


@pytest.mark.parametrize("cpu_form", [("cpu",), ()])  # else with public attention
def test_under_autocast_every_block_takes_and_gives_the_dtype_of_autocast(cpu_form, monkeypatch):
    monkeypatch.setattr(forms, "CPU_FORM", cpu_form)
    net, seen = VRT(**SMALL), set()
    for module in (m for m in net.modules() if isinstance(m, Block)):
        module.register_forward_hook(lambda _, args, out: seen.update((args[0].dtype, out.dtype)))

    with torch.autocast("cpu", torch.bfloat16), CudaAutocast("cpu"):
        restored = net(torch.rand(1, 2, 3, 32, 32))

    assert seen == {torch.bfloat16} and torch.isfinite(restored).all()


def test_a_network_first_used_in_inference_mode_still_trains():
    # A size of its own: constant tensors are cached per size.
    net, x = VRT(**SMALL, kernels="plain"), torch.rand(1, 2, 3, 40, 56)
    with torch.inference_mode():
        net(x)
    net(x).square().mean().backward()
    assert net.conv_first.weight.grad is not None


@pytest.mark.parametrize(("wanted", "has_bfloat16", "chosen"), [
    ("auto", [True], "bfloat16"), ("auto", [False], "float16"),  # V100, MX450
    ("auto", [True, False], "float16"),  # one type on all ranks: only float16 gradients are scaled
    ("bfloat16", [False], "bfloat16"), ("float16", [True], "float16"),
])  # fmt: skip
def test_auto_takes_bfloat16_only_where_every_device_has_it(
    wanted, has_bfloat16, chosen, monkeypatch
):
    monkeypatch.setattr(utils_dist, "gather_objects", lambda _: has_bfloat16)
    assert (
        amp_dtype(AmpOptions(enable=True, dtype=wanted), torch.device("cpu")) is AMP_DTYPES[chosen]
    )


def test_the_cpu_trains_in_bfloat16_and_the_log_says_so(caplog):
    caplog.set_level(logging.INFO)

    assert amp_dtype(AmpOptions(enable=True), torch.device("cpu")) is torch.bfloat16
    assert amp_dtype(AmpOptions(), torch.device("cpu")) is None

    assert [record.message for record in caplog.records] == ["mixed precision in bfloat16"]
