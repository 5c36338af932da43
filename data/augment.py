"""Random changes of a training sample: crop, flips, time reversal, and a simulated spike camera.

    Augment         one crop with flips. It is drawn once for a sample, for lq, gt and spikes
    CameraPerturb   the option `camera`: draws a simulated spike camera for each sample
    CameraDraw      the camera that was drawn. It changes the spikes of a sample, and maybe its
                    blurry frames, as if this camera had recorded them

data/clip_dataset.py and data/clip_reading.py use these classes. To add another simulated camera,
write a file data/camera_<name>.py whose class registers itself in `CAMERAS`.

What must stay: the random numbers that are drawn, and their order, because a resumed run must see
the same samples. A new draw takes its numbers from a new generator, as
`CameraPerturb._draw_dark_and_rgb` does. ("stream" has two meanings here: `random_stream` returns a
generator of random numbers, and the argument `stream` holds recorded spikes.)
test_an_allowed_turn_leaves_the_rest_of_the_draw_as_it_was notices a draw that depends on another
draw.
Free to add: options of `CameraPerturb` that are off by default.

Tests: tests/parts/data/test_dataset_video_rgbspike.py, tests/parts/data/test_spike_simulate.py
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from data.cameras.rgb_camera import RgbCamera
from data.spike.geometry import Crop
from data.spike.pictures import to_linear
from data.spike.threshold import change_threshold
from utils.errors import OptionError
from utils.options.registry import Registry, import_parts
from utils.random_streams import random_stream

CAMERAS = Registry("camera", "type")
Range = list[float] | tuple[float, ...]  # [lowest, highest]
Share = Annotated[float, Field(ge=0, le=1)]  # a probability or a fraction


@dataclass(frozen=True)
class Augment(Crop):
    """The crop, in pixels of the lq frame, and the flips. They are the same for every frame.

    The fields top, left, height and width come from `Crop`.

    What must stay: the order crop, hflip, vflip, transpose. Another order would give other samples
    to a resumed run (test_the_axes_are_swapped_after_the_flips). E.g. a frame of 2 x 2 pixels:

        frame         hflip         then transpose
        1 2     ->    2 1     ->    2 4
        3 4           4 3           1 3

        frame         transpose     then hflip
        1 2     ->    1 3     ->    3 1
        3 4           2 4           4 2
    """

    hflip: bool = False  # left and right are swapped
    vflip: bool = False  # up and down are swapped
    # The two axes are swapped. Flips and swapped axes together give all rotations by 90 degrees.
    transpose: bool = False
    reverse: bool = False  # the clip is played backwards, its spikes too

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        region: Crop,
        patch: int,
        step: int = 1,
        *,
        hflip: bool = False,
        rot: bool = False,
        reverse: bool = False,
    ) -> "Augment":
        """Draw a random square crop and random flips.

        region: the part of the frame in which the crop must lie.
        patch: side of the crop.
        step: number of RGB pixels along a spike pixel. The crop begins at a multiple of `step`, so
        that no spike pixel is cut. The pixels are counted from the top and from the left of the
        region.
        hflip, rot, reverse: which flips are allowed. rot allows vflip and transpose.
        """
        # The crop begins at a random multiple of `step`, and each flip has the chance 1/2. All
        # random numbers are drawn in this order, also for flips that are not allowed. So if a user
        # forbids one flip, the crops and the other flips of all samples stay the same.
        top = region.top + _random_start(rng, region.height - patch, step)
        left = region.left + _random_start(rng, region.width - patch, step)
        wants_hflip, wants_vflip, wants_transpose, wants_reverse = (rng.random(4) < 0.5).tolist()
        return cls(
            top=top,
            left=left,
            height=patch,
            width=patch,
            hflip=hflip and wants_hflip,
            vflip=rot and wants_vflip,
            transpose=rot and wants_transpose,
            reverse=reverse and wants_reverse,
        )

    @classmethod
    def whole(cls, size: tuple[int, int]) -> "Augment":
        """Return the whole frame without a flip. size: its (height, width)."""
        height, width = size
        return cls(0, 0, height, width)

    def crop(self, frame: np.ndarray, scale: int = 1) -> np.ndarray:
        """Return the crop of a frame (scale H, scale W, ...), as a view.

        scale: size of the frame over size of lq, e.g. 4 for gt of a fourfold upscaling.
        """
        top = self.top * scale
        left = self.left * scale
        bottom = top + self.height * scale
        right = left + self.width * scale
        return frame[top:bottom, left:right]

    def flip(self, frames: np.ndarray) -> np.ndarray:
        """Flip and transpose the last two axes of frames (..., h, w)."""
        if self.hflip:
            frames = frames[..., ::-1]
        if self.vflip:
            frames = frames[..., ::-1, :]
        if self.transpose:
            frames = frames.swapaxes(-1, -2)
        # The lines above make a view. torch takes no array with a negative stride, so the view is
        # copied.
        return np.ascontiguousarray(frames)


@dataclass(frozen=True)
class CameraDraw:
    """A simulated camera, the same for all frames of a sample.

    The dataset and the spike source call `apply` and `photograph`, and read known_rate_factor and
    rgb. A camera class that a user has written may lack fields that were added later. So read such
    a field, e.g. `rgb`, with `getattr` and a default.

    A plane is one read-out of the spike camera: one bit for each pixel, whether it fired.
    """

    # Seed of the random numbers of this camera, such as (seed of the dataset, epoch, index).
    seed: tuple[int, ...]
    # Threshold of a pixel relative to the threshold of the real camera. A pixel with threshold 2
    # needs twice as much light for a spike, so it fires half as often.
    threshold: float
    # Fraction of the planes that are lost.
    drop: float
    # Fraction of the pixels that fire in every plane.
    hot: float
    # Fraction of the pixels that never fire.
    dead: float
    # Factor of the firing rate by which the channels are divided. The factor depends on whether the
    # changed threshold is known. E.g. with threshold 2, a pixel fires half as often:
    #
    #     0.5    known: the channels are as bright as before
    #     1      not known: the channels are half as bright
    known_rate_factor: float
    # Spikes per plane of a pixel without light.
    dark: float = 0.0
    # Noise and JPEG of the blurry frames. None: the frames stay as recorded.
    rgb: RgbCamera | None = None

    def apply(self, stream: np.ndarray, frame: int) -> np.ndarray:
        """Return the spikes of a frame as this camera records them.

        stream: recorded spikes, (T, h, w) uint8 in {0, 1}. The result has the same shape and type.
        frame: number of the frame.
        The result depends only on the stream, the seed and `frame`.
        """
        rng = random_stream("frame of a camera", *self.seed, frame)
        # A threshold above 1 removes spikes, and a dark current adds spikes.
        stream = change_threshold(stream, self.threshold, rng, self.dark)
        if self.drop:
            # A lost plane stays in the stream, without spikes, so that times do not change.
            is_recorded = rng.random(len(stream)) >= self.drop  # (T,)
            factors = is_recorded.astype(np.uint8)[:, None, None]  # (T, 1, 1), 0 or 1
            stream = stream * factors
        if self.hot or self.dead:
            # These random numbers do not depend on `frame`, so that the same pixels are stuck in
            # all frames (test_the_frames_of_a_sample_have_the_same_hot_pixels).
            rng_of_pixels = random_stream("stuck pixels", *self.seed)
            # One number for each pixel decides whether it is hot (small numbers) or dead (large
            # numbers). E.g. with hot 0.1 and dead 0.2, a pixel is hot below 0.1 and dead from 0.8
            # on. If the two fractions add up to more than 1, some pixels are hot and dead. Such
            # pixels count as hot.
            draws = rng_of_pixels.random(stream.shape[1:])  # (h, w), uniform in [0, 1)
            is_hot = draws < self.hot
            is_dead = draws >= 1.0 - self.dead
            stream = np.where(is_dead, np.uint8(0), stream)
            stream = np.where(is_hot, np.uint8(1), stream)
        return stream

    def photograph(self, picture: np.ndarray, frame: int) -> np.ndarray:
        """Return a blurry frame as this camera records it, with noise and JPEG.

        picture: (H, W, 3) uint8 in B, G, R. The result has the same shape and type.
        frame: number of the frame.
        The result depends only on the picture, the seed and `frame`.
        """
        assert self.rgb is not None  # only called for a camera that records frames
        rgb = picture[..., ::-1] / np.float32(255)
        linear = to_linear(rgb)  # noise is added to linear light
        rng = random_stream("noise of a frame", *self.seed, frame)
        recorded = self.rgb.frame(linear, rng)
        return recorded[..., ::-1]  # R, G, B -> B, G, R


@CAMERAS.register("perturb")
@dataclass
class CameraPerturb:
    """A random camera for each sample.

    threshold_prob: probability that the threshold of the pixels is changed.
    threshold_range: range from which the factor of the threshold is drawn, log-uniformly; factor 2
    halves the firing rate.

    known_rate: if true, spikes are divided by the changed firing rate, as if the rate of the new
    camera had been measured. If false, spikes are divided by the rate of the data, which is wrong
    for the changed threshold, so that the network learns to handle an unknown threshold.

    drop_prob: probability that planes are lost.
    drop_max: largest fraction of lost planes.
    hot_prob: probability that some pixels always fire.
    hot_max: largest fraction of these pixels.
    dead_prob: probability that some pixels never fire.
    dead_max: largest fraction of these pixels.
    A fraction is drawn uniformly between 0 and its largest value.

    dark_prob: probability of a dark current.
    dark_max: largest dark current in spikes per plane.

    rgb_prob: probability of noise in the blurry frames.
    rgb_shot_max: largest standard deviation of the noise at full light, in linear light from
    0 to 1.
    rgb_read_max: largest standard deviation of the noise in darkness.
    jpeg_prob: probability that the blurry frames are compressed as JPEG.
    jpeg_min: lowest quality of the JPEG; the quality is drawn between this value and 100.
    """

    # Every probability is 0 by default, so that only the changes that a user asks for happen.
    # A largest value below has an effect only if its probability is above 0. The largest values
    # were chosen by hand.
    threshold_prob: Share = 0.0
    threshold_range: Range = (0.5, 4.0)  # 0.5 doubles the spikes, 4.0 leaves a quarter of them
    known_rate: bool = False
    drop_prob: Share = 0.0
    drop_max: Share = 0.1  # one plane in ten
    hot_prob: Share = 0.0
    hot_max: Share = 0.002  # one pixel in 500
    dead_prob: Share = 0.0
    dead_max: Share = 0.002
    dark_prob: Share = 0.0
    dark_max: Share = 0.005  # a dark pixel fires once in 200 planes
    rgb_prob: Share = 0.0
    rgb_shot_max: Share = 0.02
    rgb_read_max: Share = 0.005
    jpeg_prob: Share = 0.0
    jpeg_min: Annotated[int, Field(ge=1, le=100)] = 85  # OpenCV's scale, 100 is best

    def __post_init__(self) -> None:
        # `draw` takes the logarithm of both ends, so both ends must be above 0.
        limits = list(self.threshold_range)
        is_range = len(limits) == 2 and 0 < limits[0] <= limits[1]
        if not is_range:
            raise OptionError(
                what=f"camera.threshold_range is {limits}",
                where="camera.threshold_range",
                expected="[lowest, highest] factor, both > 0",
                do="set for instance [0.5, 4.0]",
            )

    def draw(self, seed: list[int]) -> CameraDraw:
        """Draw the camera of one sample. The same `seed` gives the same camera.

        For each change, one random number decides whether it happens, and another number decides
        how large it is. All numbers are drawn in any case, so that an option that switches one
        change on does not alter the other changes.

        seed: [seed of the dataset, epoch, number of the sample], or for a test [seed, clip].
        """
        # The order of the random numbers must stay, because it fixes the samples of existing runs.
        # A "chance" decides whether a change happens, and a "size" decides how large it is.
        rng = random_stream("camera", *seed)
        threshold_chance, drop_chance, hot_chance, dead_chance = rng.random(4)
        threshold_size, drop_size, hot_size, dead_size = rng.random(4)
        threshold = 1.0
        if threshold_chance < self.threshold_prob:
            # Uniform in the logarithm: half and double the threshold are equally likely.
            low, high = np.log(self.threshold_range)
            threshold = float(np.exp(low + threshold_size * (high - low)))
        drop = _amount(drop_chance, self.drop_prob, drop_size, self.drop_max)
        hot = _amount(hot_chance, self.hot_prob, hot_size, self.hot_max)
        dead = _amount(dead_chance, self.dead_prob, dead_size, self.dead_max)

        # A pixel with twice the threshold fires half as often.
        known_rate_factor = 1.0 / threshold if self.known_rate else 1.0
        dark, rgb = self._draw_dark_and_rgb(seed)
        return CameraDraw(
            seed=tuple(seed),
            threshold=threshold,
            drop=drop,
            hot=hot,
            dead=dead,
            known_rate_factor=known_rate_factor,
            dark=dark,
            rgb=rgb,
        )

    def _draw_dark_and_rgb(self, seed: list[int]) -> tuple[float, RgbCamera | None]:
        """Draw the dark current, and the noise and JPEG of the blurry frames.

        The noise and JPEG are None if the frames stay as recorded.

        The options of these changes are newer than the other options. They take their numbers from
        a generator of their own, so that the older draws stayed the same. The order of the numbers
        must stay here, too.
        """
        rng = random_stream("dark current and frames of a camera", *seed)
        dark_chance, rgb_chance, jpeg_chance = rng.random(3)
        dark_size, shot_size, read_size, jpeg_size = rng.random(4)
        dark = _amount(dark_chance, self.dark_prob, dark_size, self.dark_max)
        # A camera with one kind of noise has the other kind, too. So one chance decides on both
        # kinds.
        shot = _amount(rgb_chance, self.rgb_prob, shot_size, self.rgb_shot_max)
        read = _amount(rgb_chance, self.rgb_prob, read_size, self.rgb_read_max)
        jpeg = 0  # the quality. 0: no JPEG
        if jpeg_chance < self.jpeg_prob:
            jpeg = round(self.jpeg_min + jpeg_size * (100 - self.jpeg_min))
        if shot or read or jpeg:
            return dark, RgbCamera(shot=shot, read=read, jpeg=jpeg)
        return dark, None


def _random_start(rng: np.random.Generator, largest: int, step: int) -> int:
    """Draw a random multiple of `step` from 0 to `largest`: 0, 4 or 8 for step 4 and largest 10."""
    steps = largest // step
    return int(rng.integers(0, steps + 1)) * step


def _amount(chance: float, probability: float, size: float, largest: float) -> float:
    """Return how large a change is: size * largest if chance < probability, else 0.

    chance, size: random numbers, uniform in [0, 1).
    """
    if chance < probability:
        return float(size * largest)
    return 0.0


# Load every data/camera_*.py, so that their classes register themselves. The call must be the last
# line, because these files may import names of this module, e.g. `CAMERAS`.
import_parts("data", "camera_*")
