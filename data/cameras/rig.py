"""Simulate a pair of cameras (a rig): an RGB camera and a spike camera that see the same scene.

The two cameras may look from slightly different positions, and have noise and other flaws. Rigs
make clips for training (`scripts/prepare_gopro_spike.py --rig`), and clips for tests. The true
calibration of such a clip is known.

    rig = Rig.of_flag("random", rng)                # or a name in NAMED (rig_values.py)
    for blurry, sharp, spikes in rig.record(lights, planes=88, spike_size=(96, 96)):
        ...                                       # one frame interval

`lights` are pictures of the scene, linear light (H, W, 3) with 1 at full scale, on the pixels of
the RGB camera. There is one picture per plane (read-out) of the spike camera, and `planes` pictures
are one frame interval: the time from one RGB frame to the next.

    light -> RgbCamera (rgb_camera.py): mean over the exposure, noise, JPEG -> blurry frame
    light -> Rig.views (spike_view.py): another view, blur, larger pixels -> Rig.spikes -> planes

What must stay:

    * The same rig and lights give the same clip, bit for bit, because a data set is made again from
      its seed. tests/parts/data/test_seeds.py notices a changed order of random draws. No test
      notices if a value changes by a few percent. So if you change arithmetic, make a clip before
      and after the change, and compare the files.
    * Frames, sensor, pixels and parallax draw their flaws from random streams of their own. A new
      flaw takes a new stream, `random_stream("<name>", seed)`, so that it does not change the draws
      of the other flaws.
    * The names of the fields are part of dataset.json and of the flag --rig. A new field needs a
      default without effect, because older records do not have it.

Tests: tests/parts/data/test_rig.py (each flaw), tests/parts/scripts/test_prepare_gopro_spike.py
(clips are made again, byte for byte)
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np

from data.cameras.calibration import Calibration
from data.cameras.rgb_camera import RgbCamera
from data.cameras.rig_values import NAMED, draw_values, numbers_of_changes
from data.cameras.spike_view import Size, are_pixel_centres, delayed_views, places_of_points
from data.spike.pictures import LUMA, to_display
from data.spike.simulate import IntegrateAndFire
from utils.errors import OptionError
from utils.random_streams import random_stream


@dataclass(frozen=True)
class Rig(RgbCamera):
    """A pair of simulated cameras. The fields of the RGB camera come from `RgbCamera`.

    By default, the spike camera has no flaw, and it has the same view as the RGB camera.
    """

    # ---- Where the spike camera looks ----

    # Shift of the view in RGB pixels, to the right and down. With shift_x = 2, the middle of the
    # spike plane shows the point that is 2 pixels to the right of the middle of the frame.
    shift_x: float = 0.0
    shift_y: float = 0.0
    # Rotation of the view about the middle of the frame, in degrees. A positive angle turns x
    # towards y.
    rotation_deg: float = 0.0
    # Relative size of a spike pixel. At 1, the spike plane covers the whole width of the frame.
    scale: float = 1.0
    lens_blur: float = 0.0  # blur of the lens, the sigma of a Gaussian in spike pixels
    # Parallax: near objects are shifted against far objects, because the cameras stand side by
    # side. The value is the difference between the shifts of the nearest and of the farthest layer
    # of the scene, in RGB pixels. The mean shift is 0.
    parallax: float = 0.0

    # ---- When the spike camera records, and which light it sees ----

    # Delay of the spikes in planes: plane p shows the light of the time p - time_offset. The true
    # calibration has the same number as `Calibration.time_offset_planes`.
    time_offset: float = 0.0
    # Weights of R, G and B in the grey that the spike camera sees.
    mix: tuple[float, float, float] = (float(LUMA[0]), float(LUMA[1]), float(LUMA[2]))

    # ---- The sensor of the spike camera ----

    rate: float = 0.9  # spikes per plane at full light
    # The sensor integrates "linear" light or "display" values.
    light: Literal["linear", "display"] = "linear"
    # A relative deviation is a standard deviation, divided by the mean.
    jitter: float = 0.0  # relative deviation of the time between two spikes, the same at all lights
    dark_rate: float = 0.0  # spikes per plane without light
    dark_spread: float = 0.0  # relative deviation of the dark rate between pixels
    pattern: float = 0.0  # relative deviation of the thresholds between pixels
    dead: float = 0.0  # fraction of the pixels that never fire
    hot: float = 0.0  # fraction of the pixels that always fire
    seed: int = 0  # seed of noise, fixed patterns and the layers of the parallax

    def __post_init__(self) -> None:
        super().__post_init__()
        # A mix from a JSON file is a list. A list cannot be hashed, so a rig needs a tuple. A
        # frozen dataclass refuses `self.mix = ...`, so the field is set through `object`.
        object.__setattr__(self, "mix", tuple(self.mix))

    @classmethod
    def of_flag(cls, text: str, rng: np.random.Generator) -> "Rig":
        """Return the rig that the flag --rig names.

        text: a name in NAMED, or "random". Numbers for fields may follow, e.g.
        "rig,parallax=0,rate=0.2".
        rng: generator of the fields of the rig "random", or of the seed of a named rig.
        Raises OptionError for an unknown name or field, and for values that do not fit together.
        """
        name, *changes = text.split(",")  # "rig", and "parallax=0", "rate=0.2"
        try:
            if name == "random":
                rig = cls.random(rng)
            else:
                rig = cls(seed=int(rng.integers(2**31)), **NAMED[name])
            fields = asdict(rig)
            fields.update(numbers_of_changes(changes))
            return cls(**fields)
        except (KeyError, TypeError, ValueError) as e:
            raise OptionError(
                what=f"--rig is {text}: {e}",
                where="--rig",
                expected=f"{', '.join(NAMED)} or random, then changes of fields of "
                "data/cameras/rig.py, such as rig,parallax=0,rate=0.2",
                do="correct --rig",
            ) from e

    @classmethod
    def random(cls, rng: np.random.Generator) -> "Rig":
        """Draw the fields in RANGES. The other fields keep their defaults."""
        values = draw_values(rng)
        # The seed of the rig's noise must be drawn after the values. If the order of the draws
        # changed, the values would change, and existing data sets could not be made again.
        return cls(**values, seed=int(rng.integers(2**31)))

    def matrix(self, spike_size: Size, rgb_size: Size) -> np.ndarray:
        """Return the matrix (3, 3) from a spike pixel (x, y, 1) to an RGB pixel.

        The parallax is left out, because it differs between the layers of the scene.

        E.g. without flaws, spike planes of 72 x 96 and frames of 288 x 384: a spike pixel has 4 RGB
        pixels along a side, and x is mapped to 4 x + 1.5. So spike pixel 0 lies in the middle of
        the RGB pixels 0 ... 3.

        spike_size, rgb_size: (height, width) of a spike plane and of a frame.

        Without the shift, test_the_calibration_moves_the_middle_of_a_plane_by_the_shift fails.
        """
        spike_height, spike_width = spike_size
        rgb_height, rgb_width = rgb_size
        rgb_per_spike_pixel = rgb_width / spike_width * self.scale
        angle = np.deg2rad(self.rotation_deg)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        scale_and_turn = rgb_per_spike_pixel * turn  # (2, 2)

        # The middle of the spike plane is mapped to the middle of the frame, plus the shift:
        #     middle_rgb + shift = scale_and_turn @ middle_spike + translation
        middle_rgb = (np.array((rgb_width, rgb_height)) - 1) / 2  # x, y
        middle_spike = (np.array((spike_width, spike_height)) - 1) / 2
        shift = np.array((self.shift_x, self.shift_y))
        translation = middle_rgb + shift - scale_and_turn @ middle_spike

        matrix = np.eye(3)
        matrix[:2, :2] = scale_and_turn
        matrix[:2, 2] = translation
        return matrix

    # ---- The spike camera ----------------------------------------------------------------------

    def views(self, lights: Iterable[np.ndarray], spike_size: Size) -> Iterator[np.ndarray]:
        """Yield the light that each pixel of the sensor integrates, (h, w) float32, for each light.

        A pixel of the sensor integrates the mean light of its area. The mean is computed from n x n
        points in the area. Outside of the picture, a point shows the picture mirrored at its edge.
        Each light goes through four steps, in this order:

            1. mix the colours to grey                                  (H, W)
            2. blur by the lens
            3. take the light at the points of the spike camera's view  (h n, w n)
            4. average the points of each spike pixel                   (h, w)

        lights: (H, W, 3) each. spike_size: (h, w), the size of the sensor.
        """
        # All lights have one size, so the positions of the points are computed once. The first
        # light tells the size. `chain` puts the first light before the other lights again.
        lights = iter(lights)
        first = next(lights, None)
        if first is None:
            return  # there is no light at all
        height, width = spike_size
        rgb_size = first.shape[:2]  # (H, W)
        _, rgb_width = rgb_size
        # n is the number of RGB pixels along a side of a spike pixel, e.g. 4 for 384 RGB columns
        # and 96 spike columns.
        n = max(1, round(rgb_width / width))
        # The positions x and y of every point in the frame, (2, h n, w n).
        places = places_of_points(
            self.matrix(spike_size, rgb_size),
            spike_size,
            n=n,
            parallax=self.parallax,
            seed=self.seed,
        )
        # If the points are exactly the RGB pixels, their light is known without interpolation.
        are_rgb_pixels = are_pixel_centres(places, rgb_size)

        for light in chain([first], lights):
            grey = self._integrated(light)  # (H, W)
            if self.lens_blur:
                # `lens_blur` is in spike pixels, and sigma in RGB pixels.
                sigma = self.lens_blur * rgb_width / width
                grey = cv2.GaussianBlur(grey, (0, 0), sigma, borderType=cv2.BORDER_REFLECT_101)
            if not are_rgb_pixels:
                x, y = places  # (h n, w n) each
                grey = cv2.remap(grey, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
            # INTER_AREA averages n x n points. (h n, w n) -> (h, w)
            yield cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)

    def _integrated(self, light: np.ndarray) -> np.ndarray:
        """Return the grey light or display values that the sensor integrates, (H, W) float32.

        Some simulators integrate display values in place of linear light, e.g. the simulator of the
        public data set Spk-GoPro. A rig does the same if `self.light` is "display".

        light: (H, W, 3), linear.

        The result must stay float32, because any other type would change the bits of existing data
        sets.
        """
        values = to_display(light) if self.light == "display" else light.astype(np.float32)
        # The weights add up to 1: e.g. the mix (1, 2, 1) gives 0.25, 0.5 and 0.25.
        weights_of_colours = np.array(self.mix, np.float32) / np.float32(sum(self.mix))
        return values @ weights_of_colours

    def spikes(self, lights: Iterable[np.ndarray], spike_size: Size) -> Iterator[np.ndarray]:
        """Yield a plane of spikes (h, w) uint8 in {0, 1} for each light (H, W, 3)."""
        # The sensor needs the noise of the charge that a pixel collects in one plane. But `jitter`
        # is the relative noise of the time between two spikes. At full light, this time is n = 1 /
        # rate planes. In this time a pixel collects one threshold of charge. The charge of n planes
        # has sqrt(n) times the noise of the charge of one plane:
        #
        #     jitter = sqrt(1 / rate) * noise_of_a_plane
        #
        # E.g. with rate 0.25 and jitter 0.02, a spike takes 4 planes, and the noise of a plane is
        # 0.02 / sqrt(4) = 0.01. test_rig.py does not notice a wrong noise.
        noise_of_a_plane = self.jitter * np.sqrt(self.rate)  # in thresholds
        height, width = spike_size
        sensor = IntegrateAndFire(
            height,
            width,
            rate=self.rate,
            rng=random_stream("sensor of a rig", self.seed),
            shot_noise=noise_of_a_plane,
            threshold_mismatch=self.pattern,  # each pixel has a threshold of its own
        )
        flaws = self._flaws_of_pixels(spike_size)
        views = self.views(lights, spike_size)  # (h, w) each
        # Plane p shows the view at the time p - time_offset.
        for view in delayed_views(views, self.time_offset):
            plane = sensor.step(view + flaws.dark_light)
            plane[flaws.is_dead] = 0
            plane[flaws.is_hot] = 1
            yield plane

    def _flaws_of_pixels(self, spike_size: Size) -> "FlawsOfPixels":
        """Draw the flaws of each pixel of the sensor. The flaws are the same in all planes.

        The order of the two draws must stay. If it changed, a seed would give different data, and
        test_a_seed_gives_its_broken_pixels would fail.
        """
        rng = random_stream("pixels of a rig", self.seed)
        dark_rates = self.dark_rate * (1 + self.dark_spread * rng.standard_normal(spike_size))
        # One number in [0, 1) for each pixel. The lowest numbers are dead pixels and the highest
        # numbers hot pixels, so no pixel is both.
        random_numbers = rng.random(spike_size)
        return FlawsOfPixels(
            # A pixel in the dark fires at its dark rate. A light with rate * light = dark rate has
            # the same effect. E.g. with rate 0.9 and dark rate 0.009, the light 0.01 is added.
            dark_light=(np.maximum(dark_rates, 0) / self.rate).astype(np.float32),
            is_dead=random_numbers < self.dead,
            is_hot=random_numbers >= 1 - self.hot,
        )

    # ---- Recording -----------------------------------------------------------------------------

    def record(
        self, lights: Iterable[np.ndarray], planes: int, spike_size: Size
    ) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield (blurry frame, sharp frame, spikes) of each frame interval.

        The frames are (H, W, 3) uint8, and the spikes (planes, h, w) uint8. The sharp frame shows
        the light of plane planes // 2, without noise. Only the planes of one interval are kept in
        memory.

        lights: (H, W, 3) linear light of each plane. Lights after the last whole interval are left
        out.
        planes: number of planes, and so of lights, in a frame interval.
        spike_size: (h, w), the size of a spike plane.
        """
        # Each light is needed twice: for the frame and for the spikes. All lights together are too
        # large for the memory, so each light is read once, and goes through two generators:
        #
        #     lights -> _exposed: adds the light to the frame -> spikes: a plane of spikes
        #
        # At the end of an interval, `_exposed` appends the two frames of the interval to the queue
        # `frames`. Frames may wait in the queue for their spikes: with a negative time offset, the
        # spikes of an interval need lights of later intervals.
        frames: deque[tuple[np.ndarray, np.ndarray]] = deque()
        stream = self.spikes(self._exposed(lights, planes, frames), spike_size)
        while True:
            interval = list(islice(stream, planes))
            if len(interval) < planes:
                return
            # The queue has the frames of this interval, because things happen in this order:
            #
            #     1. `_exposed` appends the frames of the interval
            #     2. `_exposed` yields the last light of the interval
            #     3. `delayed_views` (spike_view.py) has read this light, and yields the last plane
            blurry, sharp = frames.popleft()
            yield blurry, sharp, np.stack(interval)

    def _exposed(
        self, lights: Iterable[np.ndarray], planes: int, frames: deque[Any]
    ) -> Iterator[np.ndarray]:
        """Yield the lights unchanged, and append the frames of each whole interval to `frames`.

        `frames` is changed in place: each element is (blurry frame, sharp frame).
        """
        # "frames of a rig" names the stream of random numbers. With any other name, the noise would
        # differ.
        rng = random_stream("frames of a rig", self.seed)
        for light_number, light in enumerate(lights):
            plane = light_number % planes  # number of the plane within its interval
            if plane == 0:  # an interval begins
                weights = self.weights(rows=len(light), planes=planes)  # (planes, H, 1, 1)
                mean = np.zeros(light.shape, np.float32)  # of the lights of the interval
            if plane == planes // 2:
                sharp = self.develop(light)
            # `values_to_average` returns the light itself, or display values if `sum_gamma` is 2.2.
            # For each row of the frame, the weights of all planes add up to 1. So after the last
            # plane, `mean` is a mean of these values. `light_of_average` turns the mean into light.
            mean += weights[plane] * self.values_to_average(light)
            if plane == planes - 1:
                blurry = self.frame(self.light_of_average(mean), rng)
                frames.append((blurry, sharp))
            yield light

    def calibration(self, spike_size: Size, rgb_size: Size) -> Calibration:
        """Return the true calibration. The parallax is left out, because its mean is 0.

        spike_size, rgb_size: (height, width) of a spike plane and of a frame.
        The key `made` records the rig: `Rig(**made["rig"])` is equal to this rig.
        """
        # The seed comes first, as in existing records. `asdict` alone would put the seed last.
        fields = {"seed": self.seed, **asdict(self)}
        return Calibration(
            matrix=self.matrix(spike_size, rgb_size).tolist(),
            spike_size=list(spike_size),
            rgb_size=list(rgb_size),
            time_offset_planes=self.time_offset,
            exposure_share=self.exposure,
            rolling=self.rolling,
            lens_blur=self.lens_blur,
            made={"rig": fields},
        )


class FlawsOfPixels(NamedTuple):
    """The flaws of each pixel of a spike camera, each field (h, w)."""

    dark_light: np.ndarray  # float32: light that has the same effect as the dark current
    is_dead: np.ndarray  # bool: whether the pixel never fires
    is_hot: np.ndarray  # bool: whether the pixel always fires
