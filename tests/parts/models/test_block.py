"""models/vrt/block.py: all forms of a block compute the same result.

A block computes attention in windows. It has three forms: a plain form, a form for a CPU and a form
for a GPU. The forms for a CPU and for a GPU compute few windows at a time (a "chunk"), to save
memory. The plain form in float64 is the reference here. Features and weights are random. Under
autocast, a step computes in bfloat16, as a GPU would with mixed precision.
"""

import pytest
import torch

from models.vrt import chunk_sizes, forms
from models.vrt.stages import BlockGroup

# These options say which branches are computed again in the backward pass instead of kept in
# memory.
ATTENTION = {"checkpoint_attn": True}
MLP = {"checkpoint_ffn": True}
RECOMPUTED = [
    pytest.param({}, id="none recomputed"),
    pytest.param(ATTENTION, id="attention recomputed"),
    pytest.param(MLP, id="MLP recomputed"),
    pytest.param({**ATTENTION, **MLP}, id="both recomputed"),
]

# Frames, height and width of features. 7 x 6 pixels do not fill windows of 4 x 4 pixels, so padding
# is needed.
WHOLE_WINDOWS = (4, 8, 8)
PADDED = (4, 7, 6)
CHANNELS = 12


@pytest.fixture(params=["CPU form", "GPU form"])
def form(request, monkeypatch):
    """Let blocks use the form for a CPU, then the form for a GPU, on the CPU.

    A block works on its windows in chunks. The number of tokens of a chunk is limited. The limits
    are so low here that a chunk has one to five windows.
    """
    monkeypatch.setattr(chunk_sizes, "CPU_TOKENS", 100)
    if request.param == "GPU form":
        monkeypatch.setattr(forms, "CPU_FORM", ())  # so tensors on the CPU take the GPU form
        monkeypatch.setattr(chunk_sizes, "GPU_TOKENS", 160)
        # A head here has 6 channels in float64: 48 bytes. On a GPU, a head is padded to a multiple
        # of 16 bytes, so 48 bytes would need no padding. Require a multiple of 64 bytes, so that
        # the head is padded here.
        monkeypatch.setattr(forms, "HEAD_BYTES", {"cpu": 64})
    return request.param


def group_of_blocks(mutual: bool, **options) -> BlockGroup:
    """Return a group of two blocks in float64.

    The windows of the second block are shifted by half a window. In training, each branch of the
    second block is dropped at random, with the probability 0.4 for a sample.

    mutual: whether attention is mutual: each of two frames attends to the other frame.
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
    # With this seed, the branches of one of the two samples are dropped.
    torch.manual_seed(3)
    y = group(x)
    # The loss is a weighted sum of the output. No two values have the same weight. So if the group
    # exchanged two values of the output, the gradients would change.
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y)
    loss = (y.double() * weights).sum()  # double: y is bfloat16 in the last tests

    inputs = {"input": x}
    for name, parameter in group.named_parameters():
        if parameter.requires_grad:
            inputs[name] = parameter
    gradients = torch.autograd.grad(loss, list(inputs.values()))
    return {"output": y, **dict(zip(inputs, gradients, strict=True))}


def assert_equal(found, expected, tolerance):
    """Check that tensors differ by at most `tolerance` of their largest value.

    In float64 a rounding error is about 1e-16. The tolerance 1e-9 also allows sums over chunks in
    another order. 1e-12 is for the same operations in the same order.
    """
    assert found.keys() == expected.keys()
    for name, value in found.items():
        scale = expected[name].abs().max()
        assert (value - expected[name]).abs().max() <= tolerance * scale, name


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize(
    "size",
    [pytest.param(WHOLE_WINDOWS, id="whole windows"), pytest.param(PADDED, id="padded")],
)
@pytest.mark.parametrize("flags", RECOMPUTED)
def test_a_step_gives_the_numbers_of_the_plain_form(form, mutual, size, flags):
    plain = plain_group(mutual)
    ours = group_like(plain, mutual, **flags)  # takes the form that the fixture `form` chooses
    x = features(size)

    assert_equal(step(ours, x), step(plain, x), 1e-9)


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("flags", RECOMPUTED[1:])  # without the first case, "none recomputed"
def test_the_plain_form_gives_the_same_numbers_if_branches_are_recomputed(mutual, flags):
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

    # Neither result of `step` has a gradient for a frozen weight. assert_equal compares the names.
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
    found_by_plain_form = step_in_bfloat16(plain, x)

    for name, exact in expected.items():
        error = (found[name] - exact).norm()
        error_of_plain_form = (found_by_plain_form[name] - exact).norm()
        # A gradient is a sum over the chunks, and the part of each chunk is rounded. The loss has
        # positive and negative weights, so the parts nearly cancel. E.g. 1.00 - 0.98 = 0.02: if a
        # part is rounded by 0.002, this is 10 % of the sum. So the error may be larger than the
        # error of the plain form, by 10 % of the tensor.
        assert error < 0.1 * exact.norm() + error_of_plain_form, name


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
