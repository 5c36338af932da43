"""Fusion operators: what the trunk sees, what warm starts keep, what is refused."""

import pytest
import torch

from models.fusion.operators import FUSIONS, Fusion
from models.network_vrt import VRT
from tests.helpers.small_vrt import SMALL
from utils.errors import DataError, OptionError

S = 4


def operator(section, spike_channels=S):
    return FUSIONS.build(section, "netG.fusion", spike_channels=spike_channels)


def exposure(spike_channels=S, **options):
    return operator({"type": "exposure", "features": 8, "layers": 1, **options}, spike_channels)


def clip(size=32):
    torch.manual_seed(0)
    return torch.rand(1, 3, 3, size, size), torch.rand(1, 3, S, size, size)


def test_concat_shows_the_trunk_every_channel_without_parameters():
    rgb, spike = clip()
    assert torch.equal(operator("concat").on_input(rgb, spike), torch.cat((rgb, spike), 2))
    assert not operator("none").state_dict() and not operator("concat").state_dict()
    # gated starts almost closed unless told otherwise
    closed = (operator("gated").on_input(rgb, spike) - rgb).abs().max()
    opened = (operator({"type": "gated", "gate_bias": 0.0}).on_input(rgb, spike) - rgb).abs().max()
    assert 0 < closed < 0.05
    assert opened > 5 * closed


@pytest.mark.parametrize(
    "section, in_chans", [("concat", 3 + S), ("concat", None), ("gated", 3), ("gated", None)]
)
def test_a_network_with_spikes_refuses_clips_without(section, in_chans):
    rgb, spike = clip()
    net = VRT(**SMALL, in_chans=in_chans, fusion=section, spike_channels=S)
    assert torch.equal(net(rgb, spike), rgb)
    with pytest.raises(DataError, match="no spike tensor"):
        net(rgb)
    with pytest.raises(DataError, match="S = 4"):
        net(rgb, spike[:, :, :2])


def test_a_network_without_fusion_ignores_spikes():
    rgb, spike = clip()
    net = VRT(**SMALL).eval()
    net.conv_last.weight.data.normal_()
    assert torch.equal(net(rgb), net(rgb, spike))


@pytest.mark.parametrize("base", ["blurry", "fused"])
@pytest.mark.parametrize("name", ["gated", "exposure"])
def test_spikes_reach_the_output_and_gradients_reach_the_operator(name, base):
    rgb, spike = clip()
    net = VRT(
        **SMALL, fusion={"type": name, "features": 8, "layers": 1, "base": base}, spike_channels=S
    ).eval()
    net.conv_last.weight.data.normal_()
    y = net(rgb, spike)
    assert (y - net(rgb, spike.flip(2))).abs().max() > 1e-3
    y.square().mean().backward()
    assert all(p.grad.any() for p in net.fusion.parameters())


@pytest.mark.parametrize("name", ["gated", "exposure"])
def test_the_untrained_network_returns_the_base(name):
    rgb, spike = clip()
    section = {"type": name, "features": 8, "layers": 1}
    nets = {
        base: VRT(**SMALL, fusion=section | {"base": base}, spike_channels=S)
        for base in ("blurry", "fused")
    }
    assert torch.equal(nets["blurry"](rgb, spike), rgb)
    fused = nets["fused"].fusion.on_input(rgb, spike)
    assert torch.equal(nets["fused"](rgb, spike), fused) and not torch.equal(fused, rgb)


def test_exposure_starts_as_the_mean_of_the_frame_and_its_estimates_and_can_choose_each():
    rgb, ratios = clip()
    rgb = rgb[:, :, :1].expand_as(rgb)  # in a grey frame all colours change as luma does
    net = exposure()
    images = [rgb, *((rgb * ratios[:, :, i : i + 1] * 3).clamp(0, 1) for i in range(S - 1))]
    torch.nn.init.zeros_(net.weight.weight)
    torch.nn.init.zeros_(net.weight.bias)
    spike = torch.cat((3 * ratios[:, :, :-1], ratios[:, :, -1:]), dim=2)
    assert torch.allclose(net.on_input(rgb, spike), sum(images) / S, atol=1e-6)
    for index, image in enumerate(images):
        net.weight.bias.data = 50 * torch.eye(S)[index]
        assert torch.allclose(net.on_input(rgb, spike), image, atol=1e-6)


def chosen_estimate(rgb, ratio, **options):
    """The estimate of an exposure operator that trusts the first ratio (B, T, 1, H, W) of three
    alone.
    """
    net = exposure(spike_channels=3, estimates=1, **options)
    net.weight.bias.data = torch.tensor([0.0, 50.0])
    net.weight.weight.data.zero_()
    return net.on_input(rgb, torch.cat((ratio, 2 * ratio, torch.ones_like(ratio)), dim=2))


@pytest.mark.parametrize("size", [(32, 32), (17, 23)])
def test_exposure_estimates_the_colours_of_objects_that_are_blurred_together(size):
    red, blue = (
        torch.tensor(colour).view(3, 1, 1) for colour in ((0.8, 0.2, 0.1), (0.1, 0.2, 0.5))
    )
    torch.manual_seed(0)
    blurry, sharp = (share * red + (1 - share) * blue for share in torch.rand(2, 1, 2, 1, *size))
    luma = torch.tensor((0.299, 0.587, 0.114)).view(3, 1, 1)
    ratio = (sharp * luma).sum(2, keepdim=True) / (blurry * luma).sum(2, keepdim=True)
    error = (chosen_estimate(blurry, ratio) - sharp).abs().mean()
    proportional = ((blurry * ratio).clamp(0, 1) - sharp).abs().mean()
    assert error < 0.2 * proportional


def test_exposure_keeps_the_colour_of_a_flat_or_dark_place():
    flat = torch.tensor((0.6, 0.3, 0.2)).view(3, 1, 1).expand(1, 1, 3, 16, 16)
    ratio = torch.full((1, 1, 1, 16, 16), 1.3)
    assert torch.allclose(chosen_estimate(flat, ratio), 1.3 * flat, atol=1e-4)
    assert chosen_estimate(0 * flat, ratio).abs().max() < 1e-6
    column = flat[..., :5, :1]  # smaller than the window
    assert torch.allclose(chosen_estimate(column, ratio[..., :5, :1]), 1.3 * column, atol=1e-4)


@pytest.mark.parametrize("radius", [1, 7])
def test_exposure_fits_colours_in_windows_of_this_radius_only(radius):
    torch.manual_seed(0)
    rgb, ratio = torch.rand(1, 1, 3, 32, 32), torch.full((1, 1, 1, 32, 32), 1.2)
    other = rgb.clone()
    other[..., 16, 16] = 1 - other[..., 16, 16]
    before, after = (chosen_estimate(image, ratio, colour_radius=radius) for image in (rgb, other))
    rows = (before - after).abs().sum((0, 1, 2, 4)).gt(1e-6).nonzero().flatten()
    assert rows.min() == 16 - radius and rows.max() == 16 + radius


def test_exposure_under_autocast_keeps_its_sums_in_the_precision_of_the_frames():
    rgb, spike = clip()
    net = exposure()
    exact = net.colour_changes(rgb.flatten(0, 1))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(net.colour_changes(rgb.flatten(0, 1)), exact)
        assert net.on_input(rgb, spike).dtype == torch.float32


@pytest.mark.parametrize(("section", "channels", "said"), [
    ({"type": "exposure", "estimates": None}, 1, "representation relative"),
    ({"type": "exposure", "estimates": 2}, 2, "representation relative"),
    ({"type": "exposure", "estimates": 0}, 2, "representation relative"),
    ("concat", 0, "no spike channels"),
    ("gated", 0, "no spike channels"),
    ("exposure", 0, "no spike channels"),
    ({"type": "exposure", "colour_radius": 0}, S, r"colour_radius is 0\n(.*\n)*.*int >= 1"),
    ("gatd", S, "'gatd'"),
    ({"type": "gated", "feature": 3}, S, r"unknown option netG\.fusion\.feature"),
])  # fmt: skip
def test_what_an_operator_cannot_take_is_refused(section, channels, said):
    with pytest.raises(OptionError, match=said):
        VRT(**SMALL, fusion=section, spike_channels=channels)


@FUSIONS.register("everywhere", given=("spike_channels", "feature_channels"))
class EverywhereFusion(Fusion):
    def __init__(self, spike_channels: int = 0, feature_channels: list[int] | None = None) -> None:
        super().__init__()
        self.widths, self.seen = feature_channels, []

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


def test_an_operator_acts_on_input_features_stages_and_base():
    rgb, spike = clip()
    net = VRT(**SMALL, fusion="everywhere", spike_channels=S).eval()
    with torch.no_grad():
        restored = net(rgb, spike)
    assert torch.equal(restored, rgb + spike.mean(2, keepdim=True))  # step 0 returns the base
    assert [stage for stage, _ in net.fusion.seen] == list(range(8))
    for stage, shape in net.fusion.seen:
        scale = (1, 1, 2, 4, 8, 4, 2, 1)[stage]
        assert shape == (1, 3, 32 // scale, 32 // scale, net.fusion.widths[stage])
