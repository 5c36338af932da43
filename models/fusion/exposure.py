"""The fusion operator "exposure": mixes the blurry frame with estimates of the sharp frame.

`ExposureFusion.on_input` takes some frames at a time, and its method `mixture` restores them:

    colour_changes   how much each colour changes if luma doubles, fitted to the blurry frame
    estimates        a sharp frame for each ratio, i.e. for each spike channel with the brightness
                     around the sharp instant, divided by the brightness of the whole exposure
    conv net         the weights of the mixture, and a correction

Shapes: N frames, S spike channels, H x W pixels. The class explains the method.

What must stay:

* The names of modules, and the order of channels in the conv net's input and output, because
  trained weights depend on both. (In the method `mixture`: the arrays `inputs` and `pictures`.)
  (test_shipped_weights_hold_their_network_and_restore_in_float32)
* The order of sums in training. (test_exact_step.py)

Free to change: how much is computed at a time, and the texts of errors.

Tests: tests/parts/models/test_fusion.py, test_weights.py, test_exact_step.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.fusion.base import FUSIONS, Base, ImageFusion, checked_spike
from models.vrt.forms import in_cpu_form
from utils.errors import OptionError
from utils.options.section import Positive

# Luma is the brightness of a pixel without its colour: 0.299 R + 0.587 G + 0.114 B (Rec. 601). A
# grey sensor gives red, green and blue about these weights.
LUMA = (0.299, 0.587, 0.114)
# If the variance of luma in a window is below VARIANCE_OF_FLAT_WINDOW, the window counts as flat,
# i.e. only noise changes its luma. The unit is squared display values. The root is 0.017, about 4
# of 255 levels. With a larger number, `colour_changes` would ignore weak edges. With a smaller
# number, it would fit lines to noise.
VARIANCE_OF_FLAT_WINDOW = 3e-4
# Least luma by which a colour is divided, in display values 0 to 1. A division by a smaller luma
# would amplify noise, and in a black window the division would be by 0
# (test_exposure_keeps_a_dark_place_dark).
LEAST_LUMA = 1e-3
# Number of pixels that are computed at a time on a CPU: one frame of 256 x 256. Four such frames at
# once do not fit into the cache of the CPU, and take three times as long as one after another.
PIXELS_AT_A_TIME = 2**16


@FUSIONS.register("exposure", given=("spike_channels",))
class ExposureFusion(ImageFusion):
    """Mixes the blurry frame with estimates of the sharp frame, pixel by pixel, and adds a
    correction.

    The spikes come in the representation "relative": S - 1 ratios and a confidence. A ratio is the
    mean brightness of a pixel in a part of the exposure, divided by its mean brightness in the
    whole exposure. E.g. a ratio of 1.2 says that the pixel was 20 % brighter around the sharp
    instant than on average. So each ratio gives an estimate of the brightness (luma) of the sharp
    frame:

        sharp luma = ratio * blurry luma

    A ratio over a short part of the exposure is noisy. A ratio over a long part is blurred by
    motion. So several ratios are given, and the network chooses between their estimates.

    Spikes do not see colour. Where motion blurs two objects together, the blurry colours lie on a
    line between the colours of the two objects. The slope of this line says how much a colour
    changes if luma changes. E.g. if red grows by 0.3 along the line while luma grows by 0.1, the
    slope of red is 3. So if luma changes by 0.02, red changes by 0.06. `colour_changes` fits the
    slope to the blurry frame.

    A small conv net gives the weights of the mixture and the correction. The weights sum to 1. The
    correction is 0 at the start of a training.

    `MotionFusion` (fusion_motion.py) inherits from this class. The first estimate of `MotionFusion`
    is the result of `on_input` of this class.

    The method is of this project. S-SDM also uses short and long rates, Omer and Werman (CVPR 2004)
    use lines of colour, and the guided filter (He et al., ECCV 2010) fits such lines.

    estimates: number n of ratios that give an estimate. The first n ratios of the input must be for
    parts of the exposure around the sharp instant. The other ratios are only inputs of the conv
    net. null: all ratios give an estimate.
    features: width of the conv net. layers: number of its residual convolutions.
    colour_radius: radius in pixels of the windows in which colours are fitted.
    base: the frame to which the network adds its output. "blurry": the blurry frame, as in VRT.
    "fused": the frame that the operator has made.
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
        # The last spike channel is the confidence. All other channels are ratios. So 9 spike
        # channels give at most 8 estimates.
        estimate_count = spike_channels - 1 if estimates is None else estimates
        is_valid = 1 <= estimate_count < spike_channels
        if not is_valid:
            key = "netG.fusion.estimates"
            raise OptionError(
                what=f"{spike_channels} spike channels cannot give {estimate_count} estimates",
                where=key,
                expected="a ratio for each and a confidence, as the representation relative gives",
                do=f"set spike.representation to relative, or correct {key}",
            )
        # Here `pictures` is a number: the blurry frame and the estimates, 3 colours each.
        pictures = 1 + estimate_count
        # The conv net gets all pictures and all spike channels, e.g. 3 * 9 + 9 = 36 channels.
        super().__init__(base, 3 * pictures + spike_channels, features, layers)
        self.spike_channels = spike_channels
        self.estimates = estimate_count
        self.colour_radius = colour_radius
        # The last layers of the conv net. `weight` gives the weight of each picture, and `value`
        # gives the correction. Weights files have these two names, so they must stay.
        self.weight = nn.Conv2d(features, pictures, kernel_size=3, padding=1)
        self.value = nn.Conv2d(features, 3, kernel_size=3, padding=1)
        # The correction starts at 0.
        nn.init.zeros_(self.value.weight)
        assert self.value.bias is not None  # a Conv2d has a bias if it is not told otherwise
        nn.init.zeros_(self.value.bias)

    def on_input(self, image: Tensor, spike: Tensor | None) -> Tensor:
        """Return the `mixture` for each frame, in the shape of image (B, T, 3, H, W)."""
        spike = checked_spike(image, spike, self.spike_channels)
        frames = image.flatten(0, 1)  # (B T, 3, H, W)
        spikes = spike.flatten(0, 1)  # (B T, S, H, W)
        # The number of frames at a time. Frames do not depend on each other, so this number changes
        # no result.
        batch = len(frames)
        if in_cpu_form(image):  # true for tensors on a CPU
            pixels = image.shape[-2] * image.shape[-1]
            # E.g. 4 frames of 128 x 128 pixels. A frame above 256 x 256 is a batch of its own.
            batch = max(1, PIXELS_AT_A_TIME // pixels)
        mixtures = []
        for some_frames, some_spikes in zip(frames.split(batch), spikes.split(batch), strict=True):
            mixtures.append(self.mixture(some_frames, some_spikes))
        return torch.cat(mixtures).view_as(image)

    def mixture(self, image: Tensor, spike: Tensor) -> Tensor:
        """Return an estimate of the sharp frames, (N, 3, H, W).

            mixture = sum over the pictures of (weight * picture) + correction

        There are P = 1 + estimates pictures: the blurry frame, and an estimate for each ratio. A
        ratio is a channel of `spike`: the brightness around the sharp instant, divided by the
        brightness of the whole exposure.

        image: N blurry frames, (N, 3, H, W). spike: their spike channels, (N, S, H, W).
        """
        # `colour_changes` is the change for ratio 2, i.e. if luma doubles. Colours change along a
        # line, so for any ratio
        #
        #     estimate = frame + colour_changes * (ratio - 1)
        #
        # E.g. a colour of 0.4 that changes by 0.3 if luma doubles: at the ratio 1.2 it is 0.46. At
        # the ratio 1 it stays (test_exposure_starts_as_the_mean_of_the_frame_with_its_estimates).
        frame = image.unsqueeze(1)  # (N, 1, 3, H, W)
        changes = self.colour_changes(image).unsqueeze(1)  # (N, 1, 3, H, W)
        ratios = spike[:, : self.estimates].unsqueeze(2)  # (N, estimates, 1, H, W)
        estimated_frames = (frame + changes * (ratios - 1)).clamp(0, 1)  # (N, estimates, 3, H, W)
        # The order of the channels of `pictures` and `inputs` must stay. With another order,
        # trained weights would compute something else, without an error.
        pictures = torch.cat((frame, estimated_frames), dim=1)  # (N, P, 3, H, W)

        # The conv net sees all pictures and spikes, and gives a weight for each picture, and the
        # correction.
        inputs = torch.cat((pictures.flatten(1, 2), spike), dim=1)  # (N, 3 P + S, H, W)
        if in_cpu_form(inputs) and not torch.is_grad_enabled():
            # With the channels of a pixel side by side, the convolutions take two thirds of the
            # time on a CPU. A training keeps the usual layout, so that its sums have the same order
            # as before, bit for bit.
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        x = self.features_of(inputs)  # (N, features, H, W)
        weights = torch.softmax(self.weight(x), dim=1)  # (N, P, H, W), sum over P is 1
        correction = self.value(x)  # (N, 3, H, W)
        weighted = weights.unsqueeze(2) * pictures  # (N, P, 3, H, W)
        return weighted.sum(dim=1) + correction

    def colour_changes(self, image: Tensor) -> Tensor:
        """Return how much each colour changes if luma (the brightness) doubles, (N, 3, H, W).

        Each pixel has a window around it, of 2 colour_radius + 1 pixels on a side. Within the
        window, each colour is fitted by a line over luma:

            slope = covariance(colour, luma) / variance(luma)

        If luma doubles, it grows by its own value. So the colour grows by slope * luma.

        In a flat window, covariance and variance are noise. In such a window the right slope is
        mean(colour) / mean(luma), as if the whole window became brighter. So both slopes are mixed,
        with the number f = VARIANCE_OF_FLAT_WINDOW:

            slope = (covariance + f * mean(colour) / mean(luma)) / (variance + f)

        If the variance is much smaller than f, the result is the slope of a flat window. If the
        variance is much larger than f, the result is the slope of the line.

        image: (N, 3, H, W).
        """
        weight_of_red, weight_of_green, weight_of_blue = LUMA
        red, green, blue = image.split(1, dim=1)
        luma = weight_of_red * red + weight_of_green * green + weight_of_blue * blue  # (N, 1, H, W)

        # 3 + 3 + 1 + 1 channels. Their means give the covariance and the variance.
        channels = torch.cat((image, image * luma, luma, luma * luma), dim=1)  # (N, 8, H, W)
        means = self._window_means(channels)
        mean_colour, mean_product, mean_luma, mean_square = means.split((3, 3, 1, 1), dim=1)

        slope_of_flat_window = mean_colour / mean_luma.clamp(min=LEAST_LUMA)  # (N, 3, H, W)
        covariance = mean_product - mean_colour * mean_luma  # (N, 3, H, W)
        variance = mean_square - mean_luma * mean_luma  # (N, 1, H, W)
        f = VARIANCE_OF_FLAT_WINDOW
        # Without the part of a flat window, test_exposure_keeps_the_colour_of_a_flat_place fails.
        slope = (covariance + f * slope_of_flat_window) / (variance + f)
        return luma * slope

    def _window_means(self, channels: Tensor) -> Tensor:
        """Return the mean of each channel over the window around each pixel.

        Pixels outside the image do not count.

        channels: (N, C, H, W), as the result.
        """
        radius = self.colour_radius
        side = 2 * radius + 1
        if in_cpu_form(channels):
            # With the channels of a pixel side by side, pools take half of the time on a CPU.
            channels = channels.contiguous(memory_format=torch.channels_last)
        # Take the mean along the columns, then along the rows. Both together take 2 * side
        # additions for each pixel, e.g. 18 for radius 4. A pool over the whole square would take
        # side^2 additions, e.g. 81.
        means = F.avg_pool2d(
            channels, kernel_size=(side, 1), stride=1, padding=(radius, 0), count_include_pad=False
        )
        means = F.avg_pool2d(
            means, kernel_size=(1, side), stride=1, padding=(0, radius), count_include_pad=False
        )
        return means.contiguous()
