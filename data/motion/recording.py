"""What both cameras recorded around one exposure: the blurry frame and all spike planes.

    RecordedClip    a clip: `read` reads the recording of a frame, `gain` measures the spike pixels
    Recording       one exposure: the blurry frame and its stream
    View            where the spike pixels lie on the frame

A network sees the spikes of an exposure as a few channels. The motion (data/motion/flow.py,
data/motion/learned.py) and the equations (data/motion/joint.py) need each spike, so they use the
classes of this file.

    plane     one binary picture (h, w) of the spike camera; 1 where a pixel fired
    stream    the planes of an exposure and some planes around it, (T, h, w)
    time      counted in planes from the first plane of the stream. Plane p collects light from p to
              p + 1. So a spike in plane p has the time p + 1.
    sharp     the time at which the sharp frame is wanted, usually the middle of the exposure
    rate      of a spike pixel: its spikes per plane
    gain      of a spike pixel: its spikes per plane at full light (light 1)
    level     of a frame: its spikes per plane over its light, both summed over the pixels

A frame has H x W RGB pixels, and a plane has h x w spike pixels.

What must stay: the numbers of `gain`, `gain_in` and `spike_rates`. The shipped weights of the
fusion "motion" were trained on equations and pictures that are made of these numbers. With other
numbers, the weights still run, but fit a little worse. test_the_gain_is_the_rate_of_the_camera
notices another gain, and test_hot_pixels_do_not_look_like_another_exposure a wrong `gain_in`.

Tests: tests/parts/data/test_joint.py, tests/parts/data/test_motion.py
"""

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import cv2
import numpy as np

from data.augment import Augment
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.clip import Clip, Exposure
from data.clip_dataset import Draw
from data.clips.readers import DatasetClip
from data.spike.geometry import Crop
from data.spike.light import window_light
from data.spike.pictures import DISPLAY_GAMMA, LUMA, to_linear
from utils.errors import DataError

# Largest number of frames of a clip from which the gain of each spike pixel is measured. All planes
# of these frames are read once more, so a larger number takes longer. A smaller number gives a
# noisier gain. In usual light, a pixel has some hundred spikes in 16 exposures of 60 planes.
MOST_FRAMES = 16
# The light may change within an exposure. To see this change, the exposure is cut into this many
# windows, and the spikes of each window are counted. With fewer windows, the light could change
# within a window. With more windows, their counts would be noisier. The value is a judgement.
PARTS = 8
# Light below this value counts as this value where light is a divisor, because a black pixel would
# divide by 0. It is the display value 11 of 255.
DARK = 1e-3
# Least usual gain, in spikes per plane. It matters only for a clip without any spike, whose gain
# would be 0. Grey values are rates over gains, so a gain of 0 would divide by 0. No real camera has
# a gain as small as one spike in a million planes.
LEAST_GAIN = 1e-6
# The spike camera is saturated if a pixel fires in more than this share of the planes, in the mean
# over all pixels. A pixel fires at most once in a plane, so brighter light gives no more spikes.
# The limit is a little below 1, because a saturated camera may have some dark or dead pixels.
SATURATED = 0.95
# If the levels (see above) of two frames differ by more than this factor, the RGB camera has
# changed its exposure time or its gain between them. They differ by a smaller factor although no
# camera has changed, because of noise, and because things move into view or out of it. With 1.0,
# test_hot_pixels_do_not_look_like_another_exposure fails.
SAME_LEVEL = 1.1
# A spike pixel counts as clipped by the RGB camera if its light in the frame is CLIPPED or more.
# The RGB camera clips at light 1. But a spike pixel sees the mean of several RGB pixels, and at the
# edge of a lamp only some of them are clipped. So the limit is below 1. The value is a judgement: a
# larger value would count edges of lamps, a smaller value would leave out bright pixels that are
# right. Without the limit, test_pixels_at_full_light_say_nothing_of_the_level_of_a_frame fails.
CLIPPED = 0.9
# A pixel is not trusted if its gain is more than MOST_GAIN_RATIO times the usual gain, or less than
# the usual gain / MOST_GAIN_RATIO, and if the difference is no chance (`CHANCE`). Then the pixel is
# hot or dead, or was too dark in all frames. A smaller ratio would also distrust good pixels of a
# sensor whose pixels differ much. The value is a judgement. With a very large ratio,
# test_dead_and_hot_pixels_are_not_trusted fails.
MOST_GAIN_RATIO = 2.5
# A number of spikes may differ from the expected number by chance, up to this many standard
# deviations. With 4, chance alone goes beyond the limit in about one of 10,000 pixels. With 0,
# test_pixels_are_trusted_although_most_of_them_have_no_spike fails.
CHANCE = 4.0
# The gain of each pixel is measured as if this many more spikes had been counted at the usual gain.
# Without these spikes, the gain of a pixel with one or no spike would be noise. A pixel with many
# spikes hardly changes by them. Any value from 3 to 30 is right. PSNR on dim and on bright clips:
#
#     3 to 30    the same within 0.02 dB
#     400        up to 0.04 dB less (no test notices)
USUAL_SPIKES = 3.0


@dataclass(frozen=True)
class View:
    """Where the spike pixels lie on the frame, and what they integrate.

    All frames of a clip have the same view. data/motion/bands.py makes the view of a band (some
    rows of the frame): whoever adds a field must decide there what the field is for a band.
    """

    size: tuple[int, int]  # (H, W) of the frames
    plane: tuple[int, int]  # (h, w) of the spike planes
    # (3, 3), a homography: spike pixel (x, y, 1) -> RGB pixel. A factor of the whole matrix has no
    # effect, so its last value need not be 1.
    to_rgb: np.ndarray
    is_display: bool  # True: the sensor integrates display values. False: it integrates light.
    lens_blur: float = 0.0  # by the lens of the spike camera: sigma in spike pixels
    # The last row is exposed later than the first row by this share of the exposure.
    rolling: float = 0.0
    # If the rows are a band of a larger frame: the row of the larger frame at which the band
    # begins, and the number of rows of the larger frame. None: the rows are the whole frame.
    first_row: int = 0
    all_rows: int | None = None

    @property
    def points_in_pixel(self) -> tuple[int, int]:
        """Return the number of points in a spike pixel, (down, across).

        There is about one point for each RGB pixel. E.g. a spike pixel that is 2.9 RGB pixels high
        and 3.1 wide has (3, 3) points. What a spike pixel sees is the mean over its points.
        """
        # The lengths of both steps are the sides of a spike pixel, in RGB pixels.
        to_right = self._steps[:, 0]
        to_below = self._steps[:, 1]
        width = float(np.hypot(to_right[0], to_right[1]))
        height = float(np.hypot(to_below[0], to_below[1]))
        # At least one point, because a spike pixel may be smaller than half an RGB pixel.
        return max(1, round(height)), max(1, round(width))

    @property
    def pixel_area(self) -> float:
        """Return the area of a spike pixel in RGB pixels.

        It is the area of the parallelogram between the steps to the right and below. E.g. the steps
        (3, 0) and (0, 2) give the area 6.
        """
        # The determinant is negative if the matrix mirrors.
        return abs(float(np.linalg.det(self._steps)))

    @property
    def _steps(self) -> np.ndarray:
        """Return the steps on the frame between neighbouring spike pixels, (2, 2).

        Column 0 is the step (x, y) in RGB pixels from a spike pixel to its right neighbour. Column
        1 is the step to the neighbour below. If one camera is tilted, the steps differ a little
        over the frame, and these steps are right near the first spike pixel.
        """
        # Divided by its last value, the matrix has no free factor any more (see `to_rgb`).
        return self.to_rgb[:2, :2] / self.to_rgb[2, 2]

    def delays(self) -> np.ndarray:
        """Return by how much each row is exposed later than the middle of the whole frame.

        Returns (H,), in exposures: from -rolling / 2 (top) to rolling / 2 (bottom). E.g. with
        rolling 0.4 the top row is exposed 0.2 exposures earlier than the middle row.
        """
        height, _ = self.size
        row = self.first_row + np.arange(height)  # row of the whole frame, (H,)
        rows_of_frame = height if self.all_rows is None else self.all_rows
        last_row = max(rows_of_frame - 1, 1)  # at least 1: a frame of one row would divide by 0
        return (row / last_row - 0.5) * self.rolling

    def points_on_frame(self) -> np.ndarray:
        """Return where the points of the spike pixels lie on the frame.

        A spike pixel has m x n points, where (m, n) is `points_in_pixel`.
        Returns (h m, w n, 2) float32, x and y in RGB pixels. The points of the spike pixel in row r
        and column c of the plane are at [r m : (r + 1) m, c n : (c + 1) n].

        They are computed once, so the array must not be changed.
        """
        return self._points_on_frame

    @cached_property
    def _points_on_frame(self) -> np.ndarray:
        # Spike pixel 0 reaches from -0.5 to 0.5. E.g. with 2 points, they are at -0.25 and 0.25.
        down, across = self.points_in_pixel
        y = (np.arange(self.plane[0] * down) + 0.5) / down - 0.5
        x = (np.arange(self.plane[1] * across) + 0.5) / across - 0.5
        return mapped(self.to_rgb, _grid(x, y))

    def means(self, picture: np.ndarray) -> np.ndarray:
        """Return the means of a picture (H, W) float32 over the spike pixels, (h, w)."""
        # Sample the picture at all points of all spike pixels, (h m, w n).
        points = self.points_on_frame()
        x = points[..., 0]
        y = points[..., 1]
        samples = cv2.remap(picture, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        # INTER_AREA takes the mean over the m x n samples of each spike pixel.
        height, width = self.plane
        return cv2.resize(samples, (width, height), interpolation=cv2.INTER_AREA)

    def pixels_on_plane(self) -> np.ndarray:
        """Return where the RGB pixels lie on the spike plane: (H, W, 2) float32, x and y.

        It is computed once, so the array must not be changed.
        """
        return self._pixels_on_plane

    @cached_property
    def _pixels_on_plane(self) -> np.ndarray:
        height, width = self.size
        pixels_on_frame = _grid(np.arange(width), np.arange(height))  # (H, W, 2)
        to_plane = np.linalg.inv(self.to_rgb)
        return mapped(to_plane, pixels_on_frame)


def _grid(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the points (h, w, 2), x and y, of a grid. x: (w,). y: (h,)."""
    # x belongs to columns and is repeated over the rows. y is repeated over the columns.
    return np.stack(np.broadcast_arrays(x[None], y[:, None]), axis=-1)


def mapped(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Map points by a matrix, e.g. from the spike plane to the frame. Returns (h, w, 2) float32.

    matrix: (3, 3), a homography. points: (h, w, 2), x and y in pixels.
    """
    x = points[..., 0]
    y = points[..., 1]
    homogeneous = np.stack(np.broadcast_arrays(x, y, 1.0))  # (3, h, w)
    # The product is (x depth, y depth, depth) of the mapped point. If one camera is tilted, the
    # depth differs between points. Else all points have the same depth, usually 1.
    x_times_depth, y_times_depth, depth = np.tensordot(matrix, homogeneous, axes=1)  # (h, w) each
    mapped_x = x_times_depth / depth
    mapped_y = y_times_depth / depth
    return np.stack((mapped_x, mapped_y), axis=-1).astype(np.float32)


@dataclass(frozen=True)
class Recording:
    """What both cameras recorded during one exposure, and the spikes around it.

    E.g. an exposure of 60 planes with 30 planes of context on each side: a stream of 120 planes,
    begin 30, end 90, and sharp 60.5 if the sharp frame is the middle of plane 60.
    """

    blurry: np.ndarray  # (H, W, 3) float32, display values in [0, 1], R, G, B
    stream: np.ndarray  # (T, h, w) uint8 in {0, 1}, the planes of the exposure and around it
    begin: int  # time at which the exposure begins: the index of its first plane
    end: int  # time at which it ends: the index of the plane after its last
    sharp: float  # time of the sharp frame, e.g. 44.5, the middle of plane 44

    @property
    def length(self) -> int:
        """Return the number of planes in the exposure."""
        return self.end - self.begin

    def window(self, time: float, planes: float) -> tuple[int, int]:
        """Return (first plane, plane after the last) of a window around a time.

        E.g. 9 planes around the time 44.5 are the planes 40 to 48, so the window is (40, 49).
        Planes before or after the stream are left out. At least one plane is left: the nearest one.

        time: the middle of the window. planes: its length.
        """
        number_of_planes = len(self.stream)
        wanted_begin = round(time - planes / 2)
        wanted_end = round(time + planes / 2)
        # A window before the stream becomes its first plane, and a window after the stream its last
        # plane.
        begin = min(max(wanted_begin, 0), number_of_planes - 1)
        end = min(max(wanted_end, begin + 1), number_of_planes)
        return begin, end

    def parts(self, count: int) -> list[tuple[int, int]]:
        """Return windows that divide the exposure, as evenly as planes allow.

        E.g. 3 windows of the planes 0 to 7 are (0, 3), (3, 5), (5, 8): (first plane, plane after
        the last).

        count: number of windows. An exposure with fewer planes has one window for each plane.
        """
        count = min(count, self.length)
        edges = np.linspace(self.begin, self.end, count + 1).round().astype(int).tolist()
        return list(itertools.pairwise(edges))

    def spike_rates(self, windows: list[tuple[int, int]]) -> np.ndarray:
        """Return the spikes per plane in each window, (windows, h, w) float32.

        An interval between two spikes counts as one spike. If half of an interval lies in a window,
        it counts as half a spike. So a short window without a spike is not black.

        windows: (first plane, plane after the last) of each window.
        """
        sums = window_light(self.stream, windows)  # spikes in each window, (windows, h, w)
        rates = []
        for spikes_of_window, (begin, end) in zip(sums, windows, strict=True):
            rates.append(spikes_of_window / (end - begin))
        return np.stack(rates).astype(np.float32)

    def with_planes(self, first: int, end: int) -> "Recording":
        """Return the recording with the planes first ... end - 1 alone. They hold the exposure.

        E.g. of the planes 0 ... 119, with the exposure 30 ... 89, `with_planes(30, 120)` keeps 90
        planes, and the exposure becomes 0 ... 59.
        """
        return replace(
            self,
            stream=self.stream[first:end],
            begin=self.begin - first,
            end=self.end - first,
            sharp=self.sharp - first,
        )

    def with_repaired_pixels(self, is_good: np.ndarray) -> "Recording":
        """Return the recording, with the spikes of a neighbour in each pixel that is not trusted.

        The neighbour is the nearest trusted pixel. Otherwise a hot pixel would be a bright point
        that never moves, and the motion that is found would follow it.

        is_good: (h, w) bool, whether each spike pixel can be trusted. If all or none can, the
        recording stays as it is.
        """
        if is_good.all() or not is_good.any():
            return self
        # OpenCV gives each trusted pixel a number, and each other pixel the number of the nearest
        # trusted one. E.g. a row of five pixels, of which the third one is not trusted, has the
        # numbers 1 2 2 3 4.
        is_bad = (~is_good).astype(np.uint8)
        _, numbers = cv2.distanceTransformWithLabels(
            is_bad, cv2.DIST_L2, cv2.DIST_MASK_5, labelType=cv2.DIST_LABEL_PIXEL
        )
        # Number -> row and column of the trusted pixel with this number.
        row_of_number = np.zeros(numbers.max() + 1, int)
        column_of_number = np.zeros(numbers.max() + 1, int)
        good_rows, good_columns = np.nonzero(is_good)
        row_of_number[numbers[is_good]] = good_rows
        column_of_number[numbers[is_good]] = good_columns

        nearest = numbers[~is_good]
        stream = self.stream.copy()
        stream[:, ~is_good] = stream[:, row_of_number[nearest], column_of_number[nearest]]
        return replace(self, stream=stream)


class RecordedClip:
    """The recordings of a clip, one for each frame.

    reader: the clip. context: number of planes that are read before and after an exposure. None:
    half as many as the longest exposure has.
    At the begin and the end of a clip there are fewer planes around the exposure, or none.
    `view` says where the spike pixels lie on the frames.

    Raises DataError if the clip has no spikes.
    """

    def __init__(self, reader: DatasetClip, context: int | None) -> None:
        clip = reader.clip
        if not clip.spikes:
            raise DataError(
                what=f"clip {clip.name} has no spikes",
                where="spike",
                expected="the spikes of each exposure",
                do="add them, or choose a method that needs none",
            )
        self.reader = reader
        self.frames = len(reader.stems)  # number of frames of the clip
        if context is None:
            exposed = _exposures(clip, context=0)  # only to see how many planes an exposure has
            context = max(exposure.own.count for exposure in exposed) // 2
        # For each frame: the planes of its exposure, the context, and the files that have them.
        # Here an exposure is only the planes during which the frame was exposed. `clip.exposures`
        # is wider: it has the planes from which the channels of a network are made.
        self._exposures = _exposures(clip, context)
        geometry = clip.spikes.geometry
        self._whole_plane = Crop(top=0, left=0, height=geometry.height, width=geometry.width)
        self.view = _view(clip)

    def read(self, frame: int) -> Recording:
        """Return the recording of a frame. Reads its files. frame: number of the frame, from 0."""
        # A draw says what is read for one sample, here a single frame, and which camera (if any) is
        # simulated on its spikes.
        reader = self.reader
        draw = reader.dataset.draw(reader.clip_index, first=frame, count=1)
        stream = self._stream(draw, frame)
        exposure = self._exposures[frame]
        begin = exposure.before  # number of planes before the exposure
        return Recording(
            blurry=self._blurry(draw, frame),
            stream=stream,
            begin=begin,
            end=begin + exposure.own.count,
            sharp=begin + exposure.center + 0.5,  # 0.5: the middle of the sharp plane
        )

    def _stream(self, draw: Draw, frame: int) -> np.ndarray:
        """Return the planes of an exposure and around it, (T, h, w). frame: number of its frame."""
        backend = self.reader.dataset.backend
        # An exposure may reach over several spike files, with a piece of planes in each.
        pieces = []  # (planes, h, w) each
        with spike_errors_as_data_errors():
            for piece in self._exposures[frame].pieces:
                pieces.append(backend.stream(draw.clip, piece, self._whole_plane))
        stream = np.concatenate(pieces)
        # A dataset may simulate a camera on the recorded spikes. The number of the frame chooses
        # its noise.
        if draw.camera:
            stream = draw.camera.apply(stream, frame)
        return stream

    def _blurry(self, draw: Draw, frame: int) -> np.ndarray:
        """Return the blurry frame, (H, W, 3) float32, display values in [0, 1], R, G, B."""
        clip = draw.clip
        backend = self.reader.dataset.backend
        # "lq" is the blurry frame. OpenCV has the colours in the order B, G, R.
        [blue_green_red] = backend.images(clip, "lq", [frame], Augment.whole(clip.size))
        red_green_blue = np.ascontiguousarray(blue_green_red[..., ::-1])  # uint8
        return red_green_blue / np.float32(255)

    def gain(self) -> tuple[np.ndarray, np.ndarray]:
        """Measure the gain of each spike pixel: its spikes per plane at full light.

            gain = spikes per plane / light

        A pixel with few spikes gets about the usual gain, see `USUAL_SPIKES`.

        The light comes from the blurry frames, because both cameras collect the same light in an
        exposure. So the threshold of the sensor and its fixed pattern need not be known. Spikes and
        light are summed over up to `MOST_FRAMES` frames, spread evenly over the clip.

        With automatic exposure, the RGB camera shows the same light by other values in each frame.
        Then the gain is right for a frame of the median level, and `gain_in` gives the gain for one
        frame.

        Returns the gain (h, w) float32, and whether each pixel can be trusted (h, w) bool. A pixel
        that cannot be trusted has the usual gain.
        """
        count = min(self.frames, MOST_FRAMES)
        chosen = np.linspace(0, self.frames - 1, count).round().astype(int)
        exposures = [self._exposure_light(self.read(frame)) for frame in chosen.tolist()]
        usable = _usable_exposures(exposures)
        spikes, light = _sums_at_usual_level(usable)

        # Where the RGB camera clips, e.g. in the sky, there is more light than it shows. So these
        # pixels say nothing of the usual gain. If all pixels are clipped, all are used.
        is_clipped = np.mean([exposure.frame_light for exposure in usable], axis=0) >= CLIPPED
        if is_clipped.all():
            is_clipped[:] = False
        usual = _usual_gain(spikes[~is_clipped], light[~is_clipped])
        # gain = spikes / light, as if each pixel had USUAL_SPIKES more spikes, and the light that
        # gives USUAL_SPIKES at the usual gain.
        gain = (spikes + USUAL_SPIKES) / (light + USUAL_SPIKES / usual)
        # A hot or dead pixel is not trusted. But where the RGB camera clips, there is more light
        # than it shows, so many spikes are no sign of a hot pixel there.
        expected = usual * light
        is_overexposed = is_clipped & (spikes > expected)
        is_good = is_overexposed | ~_is_implausible(spikes, expected)
        return np.where(is_good, gain, usual).astype(np.float32), is_good

    def gain_in(self, recording: Recording, gain: np.ndarray, is_good: np.ndarray) -> np.ndarray:
        """Return the gain (h, w) float32 for one exposure.

        It differs from the gain of the clip if the RGB camera has changed its exposure. E.g. with
        half of the exposure time, the frame shows half of the light for the same spikes, so the
        gain is twice as large.

        gain, is_good: (h, w) each, of the clip, from `gain`. Only trusted pixels count: the spikes
        of hot pixels would look like another exposure.
        """
        exposure = self._exposure_light(recording)
        # The spikes that the light of the frame would give with the gain of the clip.
        with_gain_of_clip = exposure._replace(spike_rates=gain * exposure.frame_light)
        level = exposure.level(is_good)
        level_with_gain_of_clip = with_gain_of_clip.level(is_good)
        return gain * np.float32(_level_change(level, level_with_gain_of_clip))

    def _exposure_light(self, recording: Recording) -> "ExposureLight":
        """Return the light of an exposure, as each camera measures it."""
        rates = recording.spike_rates(recording.parts(PARTS))  # (parts, h, w)
        # What the spike pixels have integrated, as the blurry frame shows it.
        grey = integrated(recording.blurry, self.view.is_display)  # (H, W)
        frame_light = self.view.means(grey)  # (h, w)
        if self.view.is_display:
            # The blurry frame shows the display value of the mean light, but this sensor counts the
            # mean display value. E.g. light 0 for half of the exposure, then 1: the frame shows
            # 0.73, and the sensor counts 0.5, so the frame's value is multiplied by 0.5 / 0.73.
            # In place: `frame_light` is a new array.
            frame_light *= _display_correction(rates)
        return ExposureLight(rates.mean(axis=0), frame_light, planes=recording.length)


class ExposureLight(NamedTuple):
    """The light of an exposure on the spike pixels, as each camera measures it."""

    spike_rates: np.ndarray  # by the spike camera: spikes per plane, (h, w)
    frame_light: np.ndarray  # by the RGB camera: light in [0, 1], (h, w)
    planes: int  # number of planes in the exposure

    def level(self, is_good: np.ndarray | None = None) -> float:
        """Return the level of a frame: spikes per plane over light, of all its pixels together.

        is_good: (h, w) bool, the pixels that count. None, or if none is good: all.

        Pixels at full light do not count, because the RGB camera clips there: a lamp that comes
        into view would look like another exposure. If all of them are at full light, all count.
        test_pixels_at_full_light_say_nothing_of_the_level_of_a_frame notices.
        """
        is_usable = np.ones(self.frame_light.shape, bool)
        if is_good is not None and is_good.any():
            is_usable = is_good
        is_counted = is_usable & (self.frame_light < CLIPPED)
        if not is_counted.any():
            is_counted = is_usable
        spikes_per_plane = float(self.spike_rates[is_counted].sum())
        light = float(self.frame_light[is_counted].sum())
        return spikes_per_plane / max(light, DARK)


def _usable_exposures(exposures: list[ExposureLight]) -> list[ExposureLight]:
    """Return the exposures that say something of the gain of the pixels.

    A saturated exposure, and an exposure without any spike, say nothing. If no exposure says
    anything, all are returned: their frames are not improved anyway.
    """
    usable = []
    for exposure in exposures:
        spikes_per_plane = exposure.spike_rates.mean()
        if 0 < spikes_per_plane < SATURATED:
            usable.append(exposure)
    return usable or exposures


def _sums_at_usual_level(exposures: list[ExposureLight]) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of spikes and of light over all planes of some exposures, (h, w) each.

    The light of each exposure is brought to the median level first. E.g. a frame whose RGB exposure
    was halved shows half of the light, and has twice the level. So its light is multiplied by 2.
    """
    levels = np.array([exposure.level() for exposure in exposures])
    usual_level = float(np.median(levels))
    size = exposures[0].frame_light.shape  # (h, w)
    spikes = np.zeros(size)
    light = np.zeros(size)
    planes = 0
    for exposure, level in zip(exposures, levels.tolist(), strict=True):
        to_usual_level = _level_change(level, usual_level)
        spikes += exposure.spike_rates * exposure.planes
        light += exposure.frame_light * to_usual_level * exposure.planes
        planes += exposure.planes
    return spikes, np.maximum(light, DARK * planes)


def _usual_gain(spikes: np.ndarray, light: np.ndarray) -> float:
    """Return the usual gain: the median of the gains, in which a pixel counts by its light.

    E.g. the gains 0, 0 and 0.6 with the light 1, 1 and 10: the total light is 12, and the pixel of
    the middle, 6, has the gain 0.6. A plain median would be 0. Most pixels of a dark scene may have
    no spike at all, e.g. if stars are few.

    spikes, light: sums over the same planes, an array of pixels each. The light is above 0.
    """
    gain = (spikes / light).ravel()  # (h w,)
    by_gain = np.argsort(gain)  # numbers of the pixels, the smallest gain first
    light_so_far = np.cumsum(light.ravel()[by_gain])
    total_light = light_so_far[-1]
    middle = np.searchsorted(light_so_far, total_light / 2)
    usual = float(gain[by_gain[middle]])
    if usual == 0:
        # So few spikes that even bright pixels mostly have none. All pixels together have some.
        usual = float(spikes.sum() / light.sum())
    return max(usual, LEAST_GAIN)


def _is_implausible(spikes: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return which pixels have far more or fewer spikes than expected, and not by chance.

    Returns (h, w) bool.
    spikes: number of spikes of each pixel, (h, w).
    expected: number of spikes that each pixel would have at the usual gain, (h, w).
    """
    is_far = (spikes > expected * MOST_GAIN_RATIO) | (spikes < expected / MOST_GAIN_RATIO)
    # The square root of a count has about the standard deviation 1/2, whatever the count is. So
    # twice the difference of two roots is a number of standard deviations.
    deviations = 2 * np.abs(np.sqrt(spikes) - np.sqrt(expected))
    return is_far & (deviations > CHANCE)


def _level_change(level: float, usual_level: float) -> float:
    """Return level / usual_level, or 1 if both differ by less than the factor `SAME_LEVEL`.

    Callers multiply by the result, and 1 changes nothing. So a clip without automatic exposure has
    the same gain in all its frames.
    """
    # At least LEAST_GAIN, because the level of a clip without any spike is 0.
    change = level / max(usual_level, LEAST_GAIN)
    if 1 / SAME_LEVEL < change < SAME_LEVEL:
        return 1.0
    return change


def is_saturated(recording: Recording) -> bool:
    """Return whether nearly all spike pixels fire in each plane of an exposure."""
    exposure = recording.stream[recording.begin : recording.end]
    return float(exposure.mean()) > SATURATED


def _exposures(clip: Clip, context: int) -> tuple[Exposure, ...]:
    """Return the planes during which each frame was exposed, and `context` planes on each side."""
    files = list(clip.planes_of_spike_files.items())  # (path, number of its planes)
    spikes = clip.spikes.of_exposure(context)
    return spikes.exposures(clip.name, files, len(clip), clip.times)


def _display_correction(rates: np.ndarray) -> np.ndarray:
    """Return (mean display value) / (display value of the mean light), (h, w), at most 1.

    Both differ if the light changes within the exposure. E.g. if the display value is 0 for half of
    the time, and 1 for the other half: the mean display value is 0.5. The mean light is 0.5, too,
    and its display value is 0.5^(1 / 2.2) = 0.73. So the result is 0.5 / 0.73 = 0.68.

    rates: (parts, h, w), proportional to the display values in parts of an exposure.
    """
    mean_light = np.mean(rates**DISPLAY_GAMMA, axis=0)
    # At least 1e-12: a pixel without any spike would divide by 0. Its quotient is not used below.
    display_of_mean = np.maximum(mean_light, 1e-12) ** (1 / DISPLAY_GAMMA)
    # The light of a pixel without any spike does not change, so its factor is 1.
    return np.where(mean_light > 0, rates.mean(axis=0) / display_of_mean, 1.0)


def integrated(frame: np.ndarray, is_display: bool) -> np.ndarray:
    """Return what a spike camera integrates of a frame: its luma (H, W).

    frame: (H, W, 3), display values in [0, 1]. is_display: True if the camera integrates the luma
    of display values. False if it integrates the luma of their light.
    """
    colours = frame if is_display else to_linear(frame)
    return colours @ LUMA


def spikes_at_full_light(recording: Recording, view: View) -> float:
    """Return how many spikes a spike pixel at full light would have in an exposure.

    It is the mean number of spikes of a pixel, divided by the mean light. So the number says how
    sensitive the camera is: a dark scene gives the same number as a bright scene.
    """
    exposure = recording.stream[recording.begin : recording.end]
    spikes = float(exposure.mean()) * recording.length
    grey = integrated(recording.blurry, view.is_display)  # (H, W)
    light = float(view.means(grey).mean())
    # At least DARK, because a black frame would divide by 0.
    return spikes / max(light, DARK)


def _view(clip: Clip) -> View:
    """Return where the spike pixels of a clip lie on its frames, with or without a calibration."""
    geometry = clip.spikes.geometry
    calibration = clip.spikes.calibration
    plane = (geometry.height, geometry.width)
    is_display = clip.spikes.light == "display"
    if calibration:
        return View(
            size=clip.size,
            plane=plane,
            to_rgb=calibration.to_rgb(),
            is_display=is_display,
            lens_blur=calibration.lens_blur,
            rolling=calibration.rolling,
        )
    # Without a calibration both cameras have the same view, and the plane fills the whole frame. A
    # spike pixel then has `down` x `across` RGB pixels. E.g. with 3 RGB pixels across, spike pixel
    # 0 has the RGB pixels 0, 1 and 2, so its middle is at x = 1 = (3 - 1) / 2.
    down = clip.size[0] / plane[0]
    across = clip.size[1] / plane[1]
    matrix = np.array([[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2], [0, 0, 1]])
    return View(clip.size, plane, matrix, is_display)
