"""Fusion operators: how the spike representation is combined with the RGB frames.

One class per operator. A new operator is a class in a new file models/fusion/fusion_<name>.py,
which this module imports by itself. The option netG.fusion chooses it by its registered name.

The network calls the four hooks of an operator in this order, see network_vrt.VRT.forward:

    on_input       frames and spikes -> input of the network
    on_features    features after the first convolution
    on_stage       features after each of the stages 1 to 7
    on_base        the frames to which the network adds its output

Shapes: B clips, T frames, C image channels, S spike channels, E channels of features, H x W pixels.

What must stay: the names of modules, because they are the names of tensors in weights files
(test_shipped_weights_hold_their_network_and_restore_in_float32 loads such files); and the order in
which layers are built, because it decides their random initial weights. The hooks are part of
docs/extending.md: operators of other projects override them. Free to change: how much is computed
at a time, and the texts of errors. Free to add: an operator, in a file of its own.

Tests: tests/parts/models/test_fusion.py, test_exact_step.py, tests/stories/test_extending.py
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.vrt.forms import in_cpu_form
from utils.errors import DataError, OptionError
from utils.options.registry import Registry, import_parts
from utils.options.section import Positive

FUSIONS = Registry("fusion operator")
# The frame to which the network adds its output: the blurry frame, or the frame that the operator
# has made of it.
Base = Literal["blurry", "fused"]


class Fusion(nn.Module):
    """Base class of all operators.

    Each hook returns its input unchanged unless an operator overrides it.

    Two arguments of a constructor come from the network: `spike_channels` (S of the data) and
    `feature_channels` (channels of the first features, then of stages 1 to 7). If a constructor
    takes one of them, its class says so in `register(..., given=...)`. All other arguments are
    option keys of netG.fusion, with the defaults of the constructor.
    """

    # Whether the network must be given spikes.
    needs_spikes = True
    # The only spike representation whose channels the operator understands, e.g. "relative". None
    # if it takes any channels.
    representation: str | None = None

    @classmethod
    def trunk_channels(cls, spike_channels: int) -> int:
        """Return the number of channels per frame that `on_input` returns for RGB frames.

        The trunk is the network behind the operator, which takes these channels. Override this
        method if `on_input` returns more than a picture. `channels` calls it, and compares the
        number with netG.in_chans.
        """
        return 3

    @classmethod
    def channels(cls, in_chans: int | None, spike_channels: int) -> tuple[int, int]:
        """Return two numbers of channels per frame: of the image, and of the result of `on_input`.

        in_chans: netG.in_chans, or None if the option file leaves it out.

        Raises OptionError if in_chans or the data's spike channels do not fit the operator.
        """
        if spike_channels < 1:
            raise OptionError(
                what="the fusion operator needs spikes, but the data has no spike channels",
                where="netG.fusion",
                expected='a dataset with spikes, or fusion "none"',
                do='choose a dataset with spikes, or set netG.fusion to "none"',
            )
        trunk = cls.trunk_channels(spike_channels)
        if in_chans is not None and in_chans != trunk:
            raise OptionError(
                what=f"netG.in_chans is {in_chans}",
                where="netG.in_chans",
                expected=f"{trunk}, which the fusion operator gives for 3 RGB and {spike_channels} "
                "spike channels",
                do="remove netG.in_chans, or correct it",
            )
        return 3, trunk

    def on_input(self, image: Tensor, spike: Tensor | None) -> Tensor:
        """Return the input of the network, (B, T, trunk channels, H, W). See `trunk_channels`.

        image: (B, T, C, H, W). spike: (B, T, S, H, W), or None if there are no spikes.
        """
        return image

    def on_features(self, features: Tensor, spike: Tensor | None) -> Tensor:
        """Change the features after the first convolution, (B, T, H, W, E) -> the same shape."""
        return features

    def on_stage(self, stage: int, features: Tensor, spike: Tensor | None) -> Tensor:
        """Change the output of stage 1 to 7, (B, T, h, w, E) at its scale -> the same shape."""
        return features

    def on_base(self, rgb: Tensor, fused: Tensor, spike: Tensor | None) -> Tensor:
        """Return the frames to which the network adds its output, (B, T, 3, H, W).

        fused: the result of `on_input`.
        """
        return rgb


class ImageFusion(Fusion):
    """Base class of operators whose `on_input` returns a better frame.

    They have a small residual conv net, `features_of`, whose modules are `head` and `body`.

    base: the frame to which the network adds its output: the "blurry" one, or the "fused" one,
    which `on_input` has returned.
    inputs: channels before the conv net. features: channels after it.
    layers: number of its residual convolutions.
    """

    def __init__(self, base: Base, inputs: int, features: int, layers: int) -> None:
        super().__init__()
        self.base = base
        self.head = nn.Conv2d(inputs, features, kernel_size=3, padding=1)
        self.body = nn.ModuleList(
            nn.Conv2d(features, features, kernel_size=3, padding=1) for _ in range(layers)
        )

    def features_of(self, x: Tensor) -> Tensor:
        """Run the conv net: (n, inputs, H, W) -> (n, features, H, W)."""
        # The trained weights fit the slope 0.1 for negative values.
        x = F.leaky_relu(self.head(x), 0.1, inplace=True)
        for conv in self.body:
            x = x + F.leaky_relu(conv(x), 0.1, inplace=True)
        return x

    def on_base(self, rgb: Tensor, fused: Tensor, spike: Tensor | None) -> Tensor:
        return fused if self.base == "fused" else rgb


# ---- Operators -------------------------------------------------------------------------------


@FUSIONS.register("none")
class NoFusion(Fusion):
    """The network uses the RGB frames only and ignores the spikes."""

    needs_spikes = False

    @classmethod
    def channels(cls, in_chans: int | None, spike_channels: int) -> tuple[int, int]:
        image_channels = in_chans or 3  # RGB unless the option file says otherwise
        # `on_input` returns the image itself, so both numbers of channels are the same.
        return image_channels, image_channels


# given: the network passes this argument to the constructor. It is no key of the option file.
@FUSIONS.register("concat", given=("spike_channels",))
class ConcatFusion(Fusion):
    """Concatenates RGB and spike channels: in_chans = 3 + S."""

    def __init__(self, spike_channels: int = 0) -> None:
        super().__init__()
        self.spike_channels = spike_channels

    @classmethod
    def trunk_channels(cls, spike_channels: int) -> int:
        return 3 + spike_channels  # of the result of `on_input`

    def on_input(self, image: Tensor, spike: Tensor | None) -> Tensor:
        spike = checked_spike(image, spike, self.spike_channels)
        return torch.cat((image, spike), dim=2)


@FUSIONS.register("gated", given=("spike_channels",))
class GatedFusion(ImageFusion):
    """Adds to each RGB frame the output of a small conv net on RGB and spikes, times a learned gate
    in (0, 1).

    features: width of the conv net. layers: number of its residual convolutions, applied per frame.
    gate_bias: -4 starts with an almost closed gate, for training from published RGB weights. For
    training from scratch 0 is better, because the spikes then contribute from the first step.
    base: the frame to which the network adds its output: "blurry", as published, or "fused".
    """

    def __init__(
        self,
        features: Positive = 32,
        layers: Positive = 4,
        gate_bias: float = -4.0,
        base: Base = "blurry",
        spike_channels: int = 0,
    ) -> None:
        super().__init__(base, 3 + spike_channels, features, layers)
        self.spike_channels = spike_channels
        self.value = nn.Conv2d(features, 3, kernel_size=3, padding=1)
        self.gate = nn.Conv2d(features, 3, kernel_size=3, padding=1)
        # At first the gate has the same value everywhere: sigmoid(gate_bias), 0.018 for -4.
        nn.init.zeros_(self.gate.weight)
        assert self.gate.bias is not None  # a Conv2d has a bias if it is not told otherwise
        nn.init.constant_(self.gate.bias, gate_bias)

    def on_input(self, image: Tensor, spike: Tensor | None) -> Tensor:
        spike = checked_spike(image, spike, self.spike_channels)
        frames = torch.cat((image, spike), dim=2).flatten(0, 1)  # (B T, 3 + S, H, W)
        x = self.features_of(frames)
        correction = torch.sigmoid(self.gate(x)) * self.value(x)
        return image + correction.view_as(image)


def checked_spike(rgb: Tensor, spike: Tensor | None, channels: int) -> Tensor:
    """Return `spike` if it fits the frames, so that the type is known. Raises DataError otherwise.

    rgb: the frames (B, T, 3, H, W). spike: must be (B, T, channels, H, W).
    """
    clips, frames, _, height, width = rgb.shape
    expected_shape = (clips, frames, channels, height, width)
    if spike is not None and tuple(spike.shape) == expected_shape:
        return spike
    if spike is None:
        got = "no spike tensor"
    else:
        got = f"a spike tensor of shape {tuple(spike.shape)}"
    raise DataError(
        what=f"the network was given {got}",
        where="forward(lq, spike)",
        expected=f"shape (B, T, S, H, W) = {expected_shape}, as the network was built for "
        f"S = {channels}",
        do="pass batch['spike'] to the network",
    )


# ---- Mixing with estimates from the exposure -------------------------------------------------

# Weights of R, G and B in the luma (Rec. 601), about what a grey sensor sees of the colours.
LUMA = (0.299, 0.587, 0.114)
# Added to the variance of luma in a window, in squared display values. (Its root is 0.017, about 4
# levels of 255.) In a flat window, luma varies less than this, by noise alone. Then a fitted colour
# follows the mean colour of the window. A larger value would ignore weak edges, a smaller value
# would fit lines to noise.
VARIANCE_OF_FLAT_WINDOW = 3e-4
# Least luma by which a colour is divided, in display values 0 to 1. Division by a smaller luma
# would amplify noise.
LEAST_LUMA = 1e-3
# Number of pixels that are computed at a time on a CPU. 4 frames of 256 x 256 pixels at once take
# three times as long as one frame after the other, because they do not fit the cache.
PIXELS_AT_A_TIME = 2**16


@FUSIONS.register("exposure", given=("spike_channels",))
class ExposureFusion(ImageFusion):
    """Mixes the blurry frame with estimates of the sharp frame, pixel by pixel, and adds a
    correction.

    The spikes come in the representation "relative": S - 1 ratios and a confidence. A ratio is the
    light in a part of the exposure, divided by the light of the whole exposure. E.g. a ratio of 1.2
    says that the pixel was 20 % brighter around the sharp instant than in the mean. So each ratio
    gives an estimate of the sharp frame:

        sharp luma = ratio x blurry luma

    A ratio over a short part of the exposure is noisy. A ratio over a long part is blurred by
    motion. So several ratios are given, and the network chooses between their estimates.

    Spikes do not see colour. Where motion blurs objects of two colours together, the blurry colours
    lie on a line between the two colours. So a change of luma tells the change of each colour, once
    the slope of this line is known. The slope is fitted to the blurry frame, see `colour_changes`.

    A small conv net gives the weights of the mixture, which sum to 1, and the correction, which is
    0 at the start of a training.

    `MotionFusion` inherits from this class, and its first estimate is the result of `on_input`.
    Another order of the channels of `pictures` or `inputs` in `mixture` would change what trained
    weights compute, without an error.

    The method is of this project. Short and long rates are also in S-SDM, lines of colour in Omer
    and Werman (CVPR 2004), and their fit in the guided filter (He et al., ECCV 2010).

    estimates: number of the ratios, from the first, that are around the sharp instant (null: all).
    features: width of the conv net. layers: number of its residual convolutions.
    colour_radius: radius in pixels of the windows in which colours are fitted.
    base: the frame to which the network adds its output: "blurry", as published, or "fused".
    """

    representation = "relative"

    def __init__(
        self,
        features: Positive = 32,
        layers: Positive = 4,
        estimates: int | None = None,
        colour_radius: Positive = 4,
        base: Base = "fused",
        spike_channels: int = 0,
    ) -> None:
        # The last spike channel is the confidence, all other channels are ratios.
        estimate_count = spike_channels - 1 if estimates is None else estimates
        is_valid = 1 <= estimate_count < spike_channels
        if not is_valid:
            key = "netG.fusion.estimates"
            raise OptionError(
                what=f"{estimate_count} estimates from {spike_channels} spike channels",
                where=key,
                expected="a ratio for each and a confidence, as the representation relative gives",
                do=f"set spike.representation to relative, or correct {key}",
            )
        pictures = 1 + estimate_count  # the blurry frame and the estimates, 3 colours each
        super().__init__(base, 3 * pictures + spike_channels, features, layers)
        self.spike_channels = spike_channels
        self.estimates = estimate_count
        self.colour_radius = colour_radius
        # The last layers of the conv net. `weight` gives the weight of each picture, `value` the
        # correction. Their names are in weights files.
        self.weight = nn.Conv2d(features, pictures, kernel_size=3, padding=1)
        self.value = nn.Conv2d(features, 3, kernel_size=3, padding=1)
        # The correction starts at 0.
        nn.init.zeros_(self.value.weight)
        assert self.value.bias is not None  # a Conv2d has a bias if it is not told otherwise
        nn.init.zeros_(self.value.bias)

    def on_input(self, image: Tensor, spike: Tensor | None) -> Tensor:
        spike = checked_spike(image, spike, self.spike_channels)
        # Each frame is computed alone, so any number of frames can be a batch. On a CPU a batch has
        # a few frames, so that they stay in the cache.
        frames = image.flatten(0, 1)  # (B T, 3, H, W)
        spikes = spike.flatten(0, 1)  # (B T, S, H, W)
        batch = len(frames)
        if in_cpu_form(image):
            pixels = image.shape[-2] * image.shape[-1]
            batch = max(1, PIXELS_AT_A_TIME // pixels)  # a large frame is a batch of its own
        mixtures = []
        for some_frames, some_spikes in zip(frames.split(batch), spikes.split(batch), strict=True):
            mixtures.append(self.mixture(some_frames, some_spikes))
        return torch.cat(mixtures).view_as(image)

    def mixture(self, image: Tensor, spike: Tensor) -> Tensor:
        """Return an estimate of the sharp frames, (N, 3, H, W).

            mixture = sum over the pictures (weight x picture) + correction

        The pictures are the blurry frame and an estimate for each ratio. N counts frames.

        image: blurry frames (N, 3, H, W). spike: their spike channels (N, S, H, W).
        """
        # `colour_changes` says how much each colour changes if luma doubles, i.e. for ratio 2.
        # Colours change along a line, so for any ratio
        #     estimate = frame + colour_changes * (ratio - 1)
        frame = image.unsqueeze(1)  # (N, 1, 3, H, W)
        changes = self.colour_changes(image).unsqueeze(1)  # (N, 1, 3, H, W)
        ratios = spike[:, : self.estimates].unsqueeze(2)  # (N, estimates, 1, H, W)
        estimated_frames = (frame + changes * (ratios - 1)).clamp(0, 1)  # (N, estimates, 3, H, W)
        pictures = torch.cat((frame, estimated_frames), dim=1)  # (N, pictures, 3, H, W)

        # The conv net sees all pictures and spikes. It gives a weight for each picture, and the
        # correction.
        inputs = torch.cat((pictures.flatten(1, 2), spike), dim=1)  # (N, 3 pictures + S, H, W)
        if in_cpu_form(inputs) and not torch.is_grad_enabled():
            # With the channels of a pixel side by side, the convolutions take two thirds of the
            # time on a CPU. A training keeps its order of sums, bit for bit.
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        x = self.features_of(inputs)  # (N, features, H, W)
        weights = torch.softmax(self.weight(x), dim=1)  # (N, pictures, H, W); they sum to 1
        correction = self.value(x)  # (N, 3, H, W)
        weighted = weights.unsqueeze(2) * pictures  # (N, pictures, 3, H, W)
        return weighted.sum(dim=1) + correction

    def colour_changes(self, image: Tensor) -> Tensor:
        """Return how much each colour changes where luma doubles, (N, 3, H, W).

        Around each pixel is a window of 2 colour_radius + 1 pixels on a side. Within the window,
        each colour is fitted by a line over luma:

            slope = covariance(colour, luma) / variance(luma)

        If luma doubles, luma grows by luma. So the colour grows by luma x slope.

        In a flat window, covariance and variance are noise. There the colour should grow as if the
        whole window became brighter: slope = mean(colour) / mean(luma). So this slope is mixed in,
        with the weight f = VARIANCE_OF_FLAT_WINDOW:

            slope = (covariance + f mean(colour) / mean(luma)) / (variance + f)

        image: (N, 3, H, W).
        """
        weight_of_red, weight_of_green, weight_of_blue = LUMA
        red, green, blue = image.split(1, dim=1)
        luma = weight_of_red * red + weight_of_green * green + weight_of_blue * blue  # (N, 1, H, W)

        # colour, colour x luma, luma, luma^2: 3 + 3 + 1 + 1 channels
        channels = torch.cat((image, image * luma, luma, luma * luma), dim=1)  # (N, 8, H, W)
        means = self._window_means(channels)
        mean_colour, mean_product, mean_luma, mean_square = means.split((3, 3, 1, 1), dim=1)

        slope_of_flat_window = mean_colour / mean_luma.clamp(min=LEAST_LUMA)  # (N, 3, H, W)
        covariance = mean_product - mean_colour * mean_luma  # (N, 3, H, W)
        variance = mean_square - mean_luma * mean_luma  # (N, 1, H, W)
        f = VARIANCE_OF_FLAT_WINDOW
        slope = (covariance + f * slope_of_flat_window) / (variance + f)
        return luma * slope

    def _window_means(self, channels: Tensor) -> Tensor:
        """Return the mean over the window around each pixel, (N, C, H, W) -> the same shape.

        Pixels outside the image do not count.
        """
        radius = self.colour_radius
        side = 2 * radius + 1
        if in_cpu_form(channels):
            # With the channels of a pixel side by side, pools take half of the time on a CPU.
            channels = channels.contiguous(memory_format=torch.channels_last)
        # First along the columns, then along the rows. This takes 2 x side additions for a pixel. A
        # pool over the whole square would take side^2 additions.
        means = F.avg_pool2d(
            channels, kernel_size=(side, 1), stride=1, padding=(radius, 0), count_include_pad=False
        )
        means = F.avg_pool2d(
            means, kernel_size=(1, side), stride=1, padding=(0, radius), count_include_pad=False
        )
        return means.contiguous()


import_parts("models.fusion", "fusion_*")
