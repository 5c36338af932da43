"""models/fusion/operators.py: how spikes reach the network.

A fusion operator combines RGB frames (B, T, 3, H, W) and spike channels (B, T, S, H, W). It may act
on the input, on the features, after each stage, and on the base. The base is the image to which the
network adds its result. The frames and channels are random, and the network is a small VRT.

In an untrained network, the weights of the last convolution are 0. So the network returns its base
exactly. Tests that must see an effect of the network fill this convolution with random numbers.

In this file, "operator" means such a class, and not the weights in weights/operator.pth.

The operators:

    none, concat   operators without weights
    gated          adds a learned correction, times a gate between 0 (closed) and 1 (open)
    exposure       a weighted mean of the blurry frame and of estimates of the sharp frame
"""

import pytest
import torch

from models.fusion.operators import FUSIONS, Fusion
from models.network_vrt import VRT
from tests.helpers.small_vrt import SMALL
from utils.errors import DataError, OptionError

# Spike channels of a frame.
SPIKE_CHANNELS = 4
# The smallest operator with parameters.
SMALL_OPERATOR = {"features": 8, "layers": 1}


def build_operator(section, spike_channels=SPIKE_CHANNELS):
    """Return the operator of a section `netG.fusion`: a name, or a dict with a type."""
    return FUSIONS.build(section, "netG.fusion", spike_channels=spike_channels)


def small_exposure(spike_channels=SPIKE_CHANNELS, **options):
    """Return a small operator "exposure"."""
    return build_operator({"type": "exposure", **SMALL_OPERATOR, **options}, spike_channels)


def small_network(**options):
    """Return a small VRT with spikes. Untrained, it returns its base exactly.

    The base is the image to which the network adds its result.
    """
    return VRT(**SMALL, spike_channels=SPIKE_CHANNELS, **options)


def random_clip(size=32):
    """Return random frames (1, 3, 3, size, size) and spike channels (1, 3, S, size, size)."""
    torch.manual_seed(0)
    return torch.rand(1, 3, 3, size, size), torch.rand(1, 3, SPIKE_CHANNELS, size, size)


# ---- What the network sees ----


def test_concat_shows_the_network_every_channel():
    rgb, spike = random_clip()

    # `on_input` is the method of an operator that acts on the input of the network.
    seen = build_operator("concat").on_input(rgb, spike)

    assert torch.equal(seen, torch.cat((rgb, spike), 2))


@pytest.mark.parametrize("name", ["none", "concat"])
def test_an_operator_that_learns_nothing_has_no_parameters(name):
    assert not build_operator(name).state_dict()


def test_gated_starts_almost_closed():
    rgb, spike = random_clip()

    change = build_operator("gated").on_input(rgb, spike) - rgb

    # At the start the gate is sigmoid(-4) = 0.018, because -4 is the default of the option
    # `gate_bias`. The gate multiplies the correction. In an untrained network, the correction
    # depends on random weights. The largest product here is 0.011. If the gate was open, the
    # product would be far above the limit.
    assert 0 < change.abs().max() < 0.05


def test_gated_starts_open_if_told():
    rgb, spike = random_clip()

    closed = build_operator("gated").on_input(rgb, spike) - rgb
    opened = build_operator({"type": "gated", "gate_bias": 0.0}).on_input(rgb, spike) - rgb

    # sigmoid(0) = 0.5 is 28 times as much as sigmoid(-4). The limit is only 5 times as much,
    # because the two operators draw different weights for their corrections.
    assert opened.abs().max() > 5 * closed.abs().max()


# A case: the operator, and the option netG.in_chans, the number of channels that the network sees.
#
#     "concat"    3 channels of the frames, and all spike channels
#     "gated"     3 channels: the frames, which the operator changes by means of the spikes
#     None        netG.in_chans is not given, so the operator counts the channels
WITH_SPIKES = [
    pytest.param("concat", 3 + SPIKE_CHANNELS, id="concat, channels given"),
    pytest.param("concat", None, id="concat"),
    pytest.param("gated", 3, id="gated, channels given"),
    pytest.param("gated", None, id="gated"),
]


@pytest.mark.parametrize(("section", "in_chans"), WITH_SPIKES)
def test_an_untrained_network_with_spikes_returns_its_frames(section, in_chans):
    rgb, spike = random_clip()
    net = small_network(in_chans=in_chans, fusion=section)

    assert torch.equal(net(rgb, spike), rgb)


@pytest.mark.parametrize(("section", "in_chans"), WITH_SPIKES)
def test_a_network_with_spikes_refuses_clips_without(section, in_chans):
    rgb, _ = random_clip()
    net = small_network(in_chans=in_chans, fusion=section)

    with pytest.raises(DataError, match="no spike tensor"):
        net(rgb)


@pytest.mark.parametrize(("section", "in_chans"), WITH_SPIKES)
def test_a_network_with_spikes_refuses_another_number_of_channels(section, in_chans):
    rgb, spike = random_clip()
    two_channels = spike[:, :, :2]
    net = small_network(in_chans=in_chans, fusion=section)

    with pytest.raises(DataError, match=f"S = {SPIKE_CHANNELS}"):
        net(rgb, two_channels)


def test_a_network_without_fusion_ignores_spikes():
    rgb, spike = random_clip()
    net = VRT(**SMALL).eval()
    # conv_last begins with zeros, so an untrained network returns its frames whatever the spikes
    # are. With random weights the result would change if the network used the spikes.
    net.conv_last.weight.data.normal_()

    assert torch.equal(net(rgb), net(rgb, spike))


# ---- The whole network with an operator that learns ----


@pytest.mark.parametrize("base", ["blurry", "fused"])
@pytest.mark.parametrize("name", ["gated", "exposure"])
def test_spikes_reach_the_output(name, base):
    rgb, spike = random_clip()
    net = small_network(fusion={"type": name, **SMALL_OPERATOR, "base": base}).eval()
    net.conv_last.weight.data.normal_()  # with weights of 0, the network would have no effect
    other_spike = spike.flip(2)  # the channels in the opposite order

    change = net(rgb, spike) - net(rgb, other_spike)

    # If the spikes did not reach the output, the change would be 0.
    assert change.abs().max() > 1e-3


@pytest.mark.parametrize("base", ["blurry", "fused"])
@pytest.mark.parametrize("name", ["gated", "exposure"])
def test_gradients_reach_the_operator(name, base):
    rgb, spike = random_clip()
    net = small_network(fusion={"type": name, **SMALL_OPERATOR, "base": base}).eval()
    net.conv_last.weight.data.normal_()  # with weights of 0, no gradient would pass this layer

    net(rgb, spike).square().mean().backward()

    for parameter in net.fusion.parameters():
        assert parameter.grad.any()


@pytest.mark.parametrize("name", ["gated", "exposure"])
def test_the_untrained_network_on_the_blurry_base_returns_the_blurry_frames(name):
    rgb, spike = random_clip()
    net = small_network(fusion={"type": name, **SMALL_OPERATOR, "base": "blurry"})

    assert torch.equal(net(rgb, spike), rgb)


@pytest.mark.parametrize("name", ["gated", "exposure"])
def test_the_untrained_network_on_the_fused_base_returns_the_fused_frames(name):
    rgb, spike = random_clip()
    net = small_network(fusion={"type": name, **SMALL_OPERATOR, "base": "fused"})

    restored = net(rgb, spike)

    assert torch.equal(restored, net.fusion.on_input(rgb, spike))
    assert not torch.equal(restored, rgb)


# ---- exposure: a weighted mean of the frame and of its estimates ----


@pytest.fixture
def grey_estimates():
    """Give (frames, spike channels, images). The operator mixes these 4 images.

    There are 4 spike channels: three ratios, and the confidence as the last channel. A ratio is the
    light around the sharp instant, divided by the mean light of the exposure. The first image is
    the frame. Each other image is the frame times a ratio. It estimates the sharp frame.

    The frames are grey, because a ratio compares grey values. In a coloured frame, the operator may
    change each colour by another factor.
    """
    rgb, channels = random_clip()
    rgb = rgb[:, :, :1].expand_as(rgb)
    # The channels are random in [0, 1]. Times 3, some ratios make the frame darker, and some make
    # it brighter.
    ratios = 3 * channels[:, :, :-1]
    confidence = channels[:, :, -1:]
    images = [rgb]
    for ratio in ratios.split(1, dim=2):  # (1, 3, 1, H, W) each
        images.append((rgb * ratio).clamp(0, 1))
    spike = torch.cat((ratios, confidence), dim=2)
    return rgb, spike, images


def set_constant_weights(operator, values):
    """Let the softmax of `values` be the weights of the images, for any frames and spikes.

    The layer `weight` of the operator computes the values from frames and spikes. If its matrix is
    zero, its result is its bias.
    """
    layer = operator.weight
    layer.weight.data.zero_()
    layer.bias.data = torch.as_tensor(values)


@pytest.fixture
def constant_weights():
    """Give an operator "exposure" whose weights do not depend on frames and spikes."""
    operator = small_exposure()
    # The softmax of equal values gives equal weights, so the operator gives the mean of the images.
    set_constant_weights(operator, [0.0] * SPIKE_CHANNELS)
    return operator


def test_exposure_starts_as_the_mean_of_the_frame_with_its_estimates(
    grey_estimates, constant_weights
):
    rgb, spike, images = grey_estimates

    fused = constant_weights.on_input(rgb, spike)

    # There are as many images as spike channels.
    assert torch.allclose(fused, sum(images) / SPIKE_CHANNELS, atol=1e-6)


@pytest.mark.parametrize("index", range(SPIKE_CHANNELS))
def test_exposure_can_choose_each_of_its_images(grey_estimates, constant_weights, index):
    rgb, spike, images = grey_estimates
    # The weights are the softmax of these values. The image with the value 50 gets a weight of
    # nearly 1, and the images with the value 0 get a weight of nearly 0.
    set_constant_weights(constant_weights, 50 * torch.eye(SPIKE_CHANNELS)[index])

    fused = constant_weights.on_input(rgb, spike)

    assert torch.allclose(fused, images[index], atol=1e-6)


def chosen_estimate(rgb, ratio, **options):
    """Return the estimate of an exposure operator from one ratio (B, T, 1, H, W).

    The spike channels are this ratio, a second ratio, and the confidence. With estimates=1, the
    operator makes an image only of the first ratio.
    """
    net = small_exposure(spike_channels=3, estimates=1, **options)
    # The weights are the softmax of 0 (for the frame) and 50 (for the estimate). This is nearly
    # (0, 1), so only the estimate counts.
    set_constant_weights(net, [0.0, 50.0])
    second_ratio = 2 * ratio
    confidence = torch.ones_like(ratio)
    spike = torch.cat((ratio, second_ratio, confidence), dim=2)
    return net.on_input(rgb, spike)


def luma(rgb):
    """Return the luma (B, T, 1, H, W) of frames."""
    weights = torch.tensor((0.299, 0.587, 0.114)).view(3, 1, 1)
    return (rgb * weights).sum(2, keepdim=True)


@pytest.mark.parametrize(
    "size", [pytest.param((32, 32), id="even size"), pytest.param((17, 23), id="odd size")]
)
def test_exposure_estimates_the_colours_of_objects_that_are_blurred_together(size):
    # The colours of the two objects, (R, G, B).
    red = torch.tensor((0.8, 0.2, 0.1)).view(3, 1, 1)
    blue = torch.tensor((0.1, 0.2, 0.5)).view(3, 1, 1)
    torch.manual_seed(0)
    # Each pixel shows a share of the red object, and the rest of the pixel is the blue object. The
    # blurry frame and the sharp frame have different shares.
    share_in_blurry, share_in_sharp = torch.rand(2, 1, 2, 1, *size)  # (1, 2, 1, H, W) each
    blurry = share_in_blurry * red + (1 - share_in_blurry) * blue
    sharp = share_in_sharp * red + (1 - share_in_sharp) * blue
    ratio = luma(sharp) / luma(blurry)

    error = (chosen_estimate(blurry, ratio) - sharp).abs().mean()

    # A simple estimate multiplies all colours by the ratio. It is wrong where the mixture of the
    # objects changes.
    error_of_simple = ((blurry * ratio).clamp(0, 1) - sharp).abs().mean()
    assert error < 0.2 * error_of_simple


# A frame of one colour, (B, T, 3, H, W), and the ratio 1.3: the sharp instant is 30 % brighter.
FLAT = torch.tensor((0.6, 0.3, 0.2)).view(3, 1, 1).expand(1, 1, 3, 16, 16)
BRIGHTER = torch.full((1, 1, 1, 16, 16), 1.3)


def test_exposure_keeps_the_colour_of_a_flat_place():
    estimate = chosen_estimate(FLAT, BRIGHTER)

    assert torch.allclose(estimate, 1.3 * FLAT, atol=1e-4)


def test_exposure_keeps_a_dark_place_dark():
    estimate = chosen_estimate(0 * FLAT, BRIGHTER)

    assert estimate.abs().max() < 1e-6


def test_exposure_keeps_the_colour_of_a_frame_smaller_than_its_window():
    column = FLAT[..., :5, :1]

    estimate = chosen_estimate(column, BRIGHTER[..., :5, :1])

    assert torch.allclose(estimate, 1.3 * column, atol=1e-4)


@pytest.mark.parametrize("radius", [1, 7])
def test_exposure_fits_colours_in_windows_of_this_radius_only(radius):
    torch.manual_seed(0)
    rgb = torch.rand(1, 1, 3, 32, 32)
    ratio = torch.full((1, 1, 1, 32, 32), 1.2)
    # `other` is `rgb` with another value of the pixel in row 16 and column 16.
    other = rgb.clone()
    other[..., 16, 16] = 1 - other[..., 16, 16]

    before = chosen_estimate(rgb, ratio, colour_radius=radius)
    after = chosen_estimate(other, ratio, colour_radius=radius)

    change_of_row = (before - after).abs().sum((0, 1, 2, 4))  # (H,)
    changed_rows = change_of_row.gt(1e-6).nonzero().flatten()
    assert changed_rows.min() == 16 - radius
    assert changed_rows.max() == 16 + radius


def test_exposure_under_autocast_keeps_its_sums_in_the_precision_of_the_frames():
    rgb, _ = random_clip()
    net = small_exposure()
    exact = net.colour_changes(rgb.flatten(0, 1))

    with torch.autocast("cpu", torch.bfloat16):
        found = net.colour_changes(rgb.flatten(0, 1))

    assert torch.equal(found, exact)


def test_exposure_under_autocast_gives_frames_in_float32():
    rgb, spike = random_clip()

    with torch.autocast("cpu", torch.bfloat16):
        fused = small_exposure().on_input(rgb, spike)

    assert fused.dtype == torch.float32


# ---- What is refused ----


@pytest.mark.parametrize(
    ("section", "channels", "message"),
    [
        pytest.param(
            {"type": "exposure", "estimates": None},
            1,
            "representation relative",
            id="exposure: one channel is the confidence, so there is no ratio",
        ),
        pytest.param(
            {"type": "exposure", "estimates": 2},
            2,
            "representation relative",
            id="exposure: more estimates than ratios",
        ),
        pytest.param(
            {"type": "exposure", "estimates": 0},
            2,
            "representation relative",
            id="exposure: no estimate",
        ),
        pytest.param("concat", 0, "no spike channels", id="concat without spikes"),
        pytest.param("gated", 0, "no spike channels", id="gated without spikes"),
        pytest.param("exposure", 0, "no spike channels", id="exposure without spikes"),
        pytest.param(
            {"type": "exposure", "colour_radius": 0},
            SPIKE_CHANNELS,
            r"colour_radius is 0\n(.*\n)*.*int >= 1",
            id="a value out of its range",
        ),
        pytest.param("gatd", SPIKE_CHANNELS, "'gatd'", id="an unknown operator"),
        pytest.param(
            {"type": "gated", "feature": 3},
            SPIKE_CHANNELS,
            r"unknown option netG\.fusion\.feature",
            id="an unknown option",
        ),
    ],
)
def test_what_an_operator_cannot_take_is_refused(section, channels, message):
    with pytest.raises(OptionError, match=message):
        VRT(**SMALL, fusion=section, spike_channels=channels)


# ---- Where an operator can act ----


@FUSIONS.register("everywhere", given=("spike_channels", "feature_channels"))
class EverywhereFusion(Fusion):
    """An operator that acts in each hook, and notes the shapes of the features that it sees.

    A hook is a method that the network calls at a certain place: `on_input`, `on_features`,
    `on_stage` and `on_base`.
    """

    def __init__(self, spike_channels: int = 0, feature_channels: list[int] | None = None) -> None:
        super().__init__()
        # Channels of the features: before the stages (0), and after stages 1 to 7.
        self.widths = feature_channels
        # Stage and shape, in the order of the calls.
        self.seen = []

    def on_input(self, image, spike):
        return image + spike.mean(2, keepdim=True)

    def on_features(self, features, spike):
        self.seen.append((0, tuple(features.shape)))
        return features

    def on_stage(self, stage, features, spike):
        self.seen.append((stage, tuple(features.shape)))
        return features

    def on_base(self, rgb, fused, spike):
        return fused[:, :, :3]


@pytest.fixture
def everywhere():
    """Give an operator that has acted in a network, and the frames that the network restored."""
    rgb, spike = random_clip()
    net = small_network(fusion="everywhere").eval()
    with torch.no_grad():
        restored = net(rgb, spike)
    return net.fusion, restored


def test_an_operator_acts_on_the_input_as_on_the_base(everywhere):
    rgb, spike = random_clip()
    _, restored = everywhere

    # An untrained network returns its base. Here the base, from `on_base`, is the result of
    # `on_input`.
    assert torch.equal(restored, rgb + spike.mean(2, keepdim=True))


def test_an_operator_acts_on_the_features_of_each_stage(everywhere):
    fusion, _ = everywhere

    stages = [stage for stage, _ in fusion.seen]
    assert stages == [0, 1, 2, 3, 4, 5, 6, 7]  # 0: before the first stage


def test_an_operator_sees_the_features_at_the_scale_of_the_stage(everywhere):
    fusion, _ = everywhere
    # The network is a U: stages 2 to 4 halve the size, and stages 5 to 7 double it. The frame has
    # 32 x 32 pixels.
    sides = (32, 32, 16, 8, 4, 8, 16, 32)  # before the first stage, then after each stage

    for stage, shape in fusion.seen:
        side = sides[stage]
        assert shape == (1, 3, side, side, fusion.widths[stage])
