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

A frame has H x W RGB pixels, and a plane has h x w spike pixels.

Tests: tests/parts/data/test_joint.py, tests/parts/data/test_motion.py
"""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np

from data.augment import Augment
from data.cameras.spike_info import spike_errors_as_data_errors
from data.clip import Clip, Exposure
from data.clips.readers import DatasetClip
from data.spike.formats import Crop
from data.spike.simulate import DISPLAY_GAMMA, LUMA, to_linear, window_light
from utils.errors import DataError

# Largest number of frames of a clip from which the gain of each spike pixel is measured. All planes
# of these frames are read once more, so a larger number takes longer. A smaller number gives a
# noisier gain.
MOST_FRAMES = 16
# Number of windows of an exposure in which the gain measures how the light changes. With fewer
# windows, the light could change within a window. With more windows, their rates would be noisier.
PARTS = 8
# Light below this value counts as this value where light is a divisor, because a black pixel would
# divide by 0.
DARK = 1e-3
# Least usual gain, in spikes per plane. It matters only for a clip without any spike, whose gain
# would be 0. Grey values are rates over gains, so a gain of 0 would divide by 0.
LEAST_GAIN = 1e-6
# The spike camera is saturated if a pixel fires in more than this share of the planes, in the mean
# over all pixels. It fires at most once in a plane, so brighter light then gives no more spikes.
SATURATED = 0.95
# The level of a frame is spikes over light, over all its pixels. By noise, and by what moves in and
# out of view, it differs from frame to frame by up to about this factor. If the level differs more,
# the RGB camera has changed its exposure time or its gain between the frames.
SAME_LEVEL = 1.1
# Light above this may be clipped in the blurry frame.
CLIPPED = 0.9
# A pixel is not trusted if its gain is more than this many times the usual gain, or less than the
# usual gain over this number, and not by chance: it is hot or dead, or was too dark in all frames.
# A smaller factor would also distrust good pixels of a sensor whose pixels differ much.
ODD_GAIN = 2.5
# A number of spikes differs by chance if it differs from the expected number by less than this many
# standard deviations. In 10,000 pixels, chance alone exceeds 4 about once.
CHANCE = 4.0
# The gain of each pixel is measured as if this many more spikes had been counted at the usual gain.
# Without them, the gain of a pixel with one or no spike is noise. With many spikes they matter
# little. On dim and on bright clips, 3 to 30 gave the same PSNR within 0.02 dB, and 400 gave up to
# 0.04 dB less.
USUAL_SPIKES = 3.0


@dataclass(frozen=True)
class View:
    """Where the spike pixels lie on the frame, and what they integrate.

    It is the same for all frames of a clip. data/motion/bands.py makes the view of a part of the
    frame: whoever adds a field must decide there what the field is for a part.
    """

    size: tuple[int, int]  # (H, W) of the frames
    plane: tuple[int, int]  # (h, w) of the spike planes
    to_rgb: np.ndarray  # (3, 3), spike pixel (x, y, 1) -> RGB pixel, up to a factor
    is_display: bool  # True: the sensor integrates display values. False: it integrates light.
    lens_blur: float = 0.0  # sigma of the lens in spike pixels, see `Calibration`
    rolling: float = 0.0  # how much later the last row is exposed, see `Calibration`
    # If the rows are a band of a larger frame (data/motion/bands.py): the row of the larger frame
    # at which the band begins, and the number of its rows. None: the frame is whole.
    first_row: int = 0
    all_rows: int | None = None

    @property
    def points_in_pixel(self) -> tuple[int, int]:
        """Return the number of points in a spike pixel, (down, across).

        There is about one point for each RGB pixel. E.g. a spike pixel that is 2.9 RGB pixels high
        and 3.1 wide has (3, 3) points. What a spike pixel sees is the mean over its points.
        """
        # Column 0 of the matrix is the step on the frame, (x, y), from a spike pixel to its right
        # neighbour. Column 1 is the step to the neighbour below. The lengths of these steps are the
        # sides of a spike pixel, in RGB pixels.
        to_right = self.to_rgb[:2, 0]
        to_below = self.to_rgb[:2, 1]
        width = float(np.hypot(to_right[0], to_right[1]))
        height = float(np.hypot(to_below[0], to_below[1]))
        # At least one point, because a spike pixel may be smaller than half an RGB pixel.
        return max(1, round(height)), max(1, round(width))

    @property
    def pixel_area(self) -> float:
        """Return the area of a spike pixel in RGB pixels."""
        across = self.to_rgb[:2, 0]  # the step on the frame to the next spike pixel
        down = self.to_rgb[:2, 1]
        return abs(float(across[0] * down[1] - across[1] * down[0]))

    def delays(self) -> np.ndarray:
        """Return by how much each row is exposed later than the middle of the whole frame.

        Returns (H,), as shares of the exposure: from -rolling / 2 (top) to rolling / 2 (bottom).
        E.g. with rolling 0.4 the top row is exposed 0.2 exposures earlier than the middle row.
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
        """
        # Spike pixel 0 reaches from -0.5 to 0.5. E.g. with 2 points, they are at -0.25 and 0.25.
        down, across = self.points_in_pixel
        y = (np.arange(self.plane[0] * down) + 0.5) / down - 0.5
        x = (np.arange(self.plane[1] * across) + 0.5) / across - 0.5
        return mapped(self.to_rgb, _grid(x, y))

    def means(self, picture: np.ndarray) -> np.ndarray:
        """Return the means of a picture (H, W) float32 over the spike pixels, (h, w)."""
        # Sample the picture at all points of all spike pixels, (h m, w n).
        x, y = np.moveaxis(self.points_on_frame(), -1, 0)
        samples = cv2.remap(picture, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        # INTER_AREA takes the mean over the m x n samples of each spike pixel.
        height, width = self.plane
        return cv2.resize(samples, (width, height), interpolation=cv2.INTER_AREA)

    def pixels_on_plane(self) -> np.ndarray:
        """Return where the RGB pixels lie on the spike plane: (H, W, 2) float32, x and y."""
        height, width = self.size
        pixels_on_frame = _grid(np.arange(width), np.arange(height))  # (H, W, 2)
        to_plane = np.linalg.inv(self.to_rgb)
        return mapped(to_plane, pixels_on_frame)


def _grid(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the points (h, w, 2) of a grid. x: (w,). y: (h,)."""
    return np.stack(np.broadcast_arrays(x[None], y[:, None]), axis=-1)


def mapped(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Map points by a matrix, e.g. from the spike plane to the frame. Returns (h, w, 2) float32.

    matrix: (3, 3), a homography. points: (h, w, 2), x and y in pixels.
    """
    x = points[..., 0]
    y = points[..., 1]
    homogeneous = np.stack(np.broadcast_arrays(x, y, 1.0))  # (3, h, w)
    # The product is (x depth, y depth, depth) of the mapped point. Its depth is 1 everywhere if the
    # matrix is affine, and differs between points if one camera is tilted.
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
        begin = min(max(wanted_begin, 0), number_of_planes - 1)
        end = min(max(wanted_end, begin + 1), number_of_planes)
        return begin, end

    def parts(self, count: int) -> list[tuple[int, int]]:
        """Return windows that divide the exposure, as evenly as planes allow.

        E.g. 3 windows of planes 0..7 are (0, 3), (3, 5), (5, 8). count: number of windows. There
        are fewer if the exposure has fewer planes.
        """
        count = min(count, self.length)
        edges = np.linspace(self.begin, self.end, count + 1).round().astype(int).tolist()
        return list(itertools.pairwise(edges))

    def light(self, windows: list[tuple[int, int]]) -> np.ndarray:
        """Return the spikes per plane in each window, (windows, h, w) float32.

        An interval between two spikes counts as one spike. If it lies in a window only partly, the
        part counts as the same part of a spike. So a short window without a spike is not black.

        windows: (first plane, plane after the last) of each window.
        """
        sums = window_light(self.stream, windows)  # spikes in each window, (windows, h, w)
        rates = []
        for spikes_of_window, (begin, end) in zip(sums, windows, strict=True):
            rates.append(spikes_of_window / (end - begin))
        return np.stack(rates).astype(np.float32)


class RecordedClip:
    """The recordings of a clip, one for each frame.

    reader: the clip. context: number of planes that are read before and after an exposure. None:
    half as many as the longest exposure has.
    At the begin and the end of a clip there are fewer planes around the exposure, or none.

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
        self.frames = len(reader.stems)
        # The planes of each exposure with the context around it, and the files that have them. Only
        # planes that were exposed count as the exposure. `clip.exposures` is not used, because it
        # has a few planes more, from which the channels of a network are made.
        if context is None:
            exposed = _exposures(clip, context=0)
            context = max(exposure.own.count for exposure in exposed) // 2
        self._exposures = _exposures(clip, context)
        geometry = clip.spikes.geometry
        self._plane = Crop(0, 0, geometry.height, geometry.width)
        self.view = _view(clip)

    def read(self, frame: int) -> Recording:
        """Return the recording of a frame. Reads its files. frame: number of the frame, from 0."""
        # The dataset may simulate a spike camera on the recorded spikes. Its draw, the random
        # choices for one sample, says which camera. Here the sample is a single frame.
        reader = self.reader
        draw = reader.dataset.draw(reader.clip_index, frame, 1)
        clip = draw.clip
        exposure = self._exposures[frame]
        files = reader.dataset.files
        # An exposure may reach over several spike files, with a piece in each. Planes are read
        # whole, because `_plane` is the crop that leaves nothing out.
        pieces = []
        with spike_errors_as_data_errors():
            for piece in exposure.pieces:
                pieces.append(files.stream(clip, piece, self._plane))
        stream = np.concatenate(pieces)  # (T, h, w)
        if draw.camera:
            stream = draw.camera.apply(stream, frame)

        # "lq" is the blurry frame. OpenCV has the colours in the order B, G, R.
        [blue_green_red] = files.images(clip, "lq", [frame], Augment.whole(clip.size))
        red_green_blue = np.ascontiguousarray(blue_green_red[..., ::-1])  # (H, W, 3) uint8
        begin = exposure.before  # number of planes before the exposure
        return Recording(
            blurry=red_green_blue / np.float32(255),
            stream=stream,
            begin=begin,
            end=begin + exposure.own.count,
            sharp=begin + exposure.center + 0.5,  # the middle of its plane
        )

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
        # A saturated exposure, and an exposure without any spike, say nothing of the pixels. If
        # there are no others, they count all the same: frames like them are not improved anyway.
        usable = [each for each in exposures if 0 < each.fired.mean() < SATURATED]
        if usable:
            exposures = usable

        # Bring the light of all frames to the median level: a frame whose RGB exposure was halved
        # has half of the light, and twice the level. So its light is multiplied by 2.
        levels = np.array([each.level() for each in exposures])
        usual_level = float(np.median(levels))
        # Sums over all planes of the frames, (h, w): spikes, and light in [0, 1].
        spikes = np.zeros(self.view.plane)
        light = np.zeros(self.view.plane)
        planes = 0
        for exposure, level in zip(exposures, levels.tolist(), strict=True):
            spikes += exposure.fired * exposure.planes
            light += exposure.seen * _change(level, usual_level) * exposure.planes
            planes += exposure.planes
        light = np.maximum(light, DARK * planes)

        usual = _usual_gain(spikes, light)
        gain = (spikes + USUAL_SPIKES) / (light + USUAL_SPIKES / usual)
        is_good = ~_is_odd(spikes, expected=usual * light)
        return np.where(is_good, gain, usual).astype(np.float32), is_good

    def gain_in(self, recording: Recording, gain: np.ndarray) -> np.ndarray:
        """Return the gain (h, w) float32 for one exposure.

        It differs from the gain of the clip if the RGB camera has changed its exposure.

        gain: (h, w), the gain of the clip.
        """
        exposure = self._exposure_light(recording)
        # The same exposure with as many spikes as the gain of the clip lets expect.
        as_in_clip = exposure._replace(fired=gain * exposure.seen)
        return gain * np.float32(_change(exposure.level(), as_in_clip.level()))

    def _exposure_light(self, recording: Recording) -> "ExposureLight":
        """Return the light of an exposure, as each camera measures it."""
        rates = recording.light(recording.parts(PARTS))  # (parts, h, w)
        # The light that the spike pixels have integrated, as the blurry frame shows it.
        grey = integrated(recording.blurry, self.view.is_display)
        seen = self.view.means(grey)  # (h, w)
        if self.view.is_display:
            # The blurry frame shows the mean light, and this sensor the mean display value.
            seen *= _of_mean_light(rates)
        return ExposureLight(fired=rates.mean(axis=0), seen=seen, planes=recording.length)


class ExposureLight(NamedTuple):
    """The light of an exposure on the spike pixels, as each camera measures it."""

    fired: np.ndarray  # by the spike camera: spikes per plane, (h, w)
    seen: np.ndarray  # by the RGB camera: light in [0, 1], (h, w)
    planes: int  # number of planes in the exposure

    def level(self) -> float:
        """Return spikes per plane over light, of all pixels together: their mean gain.

        Pixels at full light do not count, because the RGB camera clips there: a lamp that comes
        into view would look like another exposure. If all are at full light, all count.
        """
        counts = self.seen < CLIPPED
        if not counts.any():
            counts = np.ones_like(counts)
        return float(self.fired[counts].sum()) / max(float(self.seen[counts].sum()), DARK)


def _usual_gain(spikes: np.ndarray, light: np.ndarray) -> float:
    """Return the gain of a usual pixel, in spikes per plane at full light.

    Half of the light falls on pixels of a smaller gain. Pixels count by their light, because most
    pixels of a dark scene may have no spike at all, e.g. if stars are few.

    spikes, light: sums over the same planes, (h, w) each. The light is above 0.
    """
    gain = (spikes / light).ravel()
    by_gain = np.argsort(gain)
    light_so_far = np.cumsum(light.ravel()[by_gain])
    middle = np.searchsorted(light_so_far, light_so_far[-1] / 2)
    usual = float(gain[by_gain[middle]])
    if usual == 0:
        # So few spikes that even bright pixels mostly have none. All pixels together have some.
        usual = float(spikes.sum() / light.sum())
    return max(usual, LEAST_GAIN)


def _is_odd(spikes: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return which pixels have far more or fewer spikes than expected, and not by chance.

    Returns (h, w) bool. spikes: number of spikes of each pixel, (h, w). expected: the same at the
    usual gain.
    """
    is_far = (spikes > expected * ODD_GAIN) | (spikes < expected / ODD_GAIN)
    # The square root of a count has about the standard deviation 1/2, whatever the count is.
    deviations = 2 * np.abs(np.sqrt(spikes) - np.sqrt(expected))
    return is_far & (deviations > CHANCE)


def _change(level: float, usual_level: float) -> float:
    """Return level / usual_level, or 1 if both differ by less than `SAME_LEVEL`.

    1 changes nothing, so a clip without automatic exposure has the same gain in all its frames.
    """
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
    files = list(clip.spike_files.items())  # (path, number of its planes)
    spikes = clip.spikes.of_exposure(context)
    return spikes.exposures(clip.name, files, len(clip), clip.times)


def _of_mean_light(rates: np.ndarray) -> np.ndarray:
    """Return (mean display value) / (display value of the mean light), (h, w), at most 1.

    The blurry frame shows the mean light of an exposure, as a display value. A sensor of display
    values counts the mean display value. Both differ if the light changes. E.g. for half the time 0
    and half the time 1, the mean display value is 0.5, and the display value of the mean light is
    0.5^(1 / 2.2) = 0.73.

    rates: (parts, h, w), proportional to the display values in parts of an exposure.
    """
    mean_light = np.mean(rates**DISPLAY_GAMMA, axis=0)
    # At least 1e-12: a pixel without any spike would divide by 0. Its quotient is not used below.
    shown = np.maximum(mean_light, 1e-12) ** (1 / DISPLAY_GAMMA)
    # The light of a pixel without any spike does not change, so its factor is 1.
    return np.where(mean_light > 0, rates.mean(axis=0) / shown, 1.0)


def integrated(frame: np.ndarray, is_display: bool) -> np.ndarray:
    """Return what a spike camera integrates of a frame: its luma (H, W).

    frame: (H, W, 3), display values in [0, 1]. is_display: True if the camera integrates the luma
    of display values. False if it integrates the luma of their light.
    """
    colours = frame if is_display else to_linear(frame)
    return colours @ LUMA


def spikes_at_full_light(recording: Recording, view: View) -> float:
    """Return how many spikes a spike pixel at full light would have in an exposure.

    It is the mean number of spikes of a pixel over the mean light. So the number says how sensitive
    the camera is, and a dark scene gives the same number as a bright one. Light below `DARK` counts
    as `DARK`, because a black frame would divide by 0.
    """
    exposure = recording.stream[recording.begin : recording.end]
    spikes = float(exposure.mean()) * recording.length
    light = float(view.means(integrated(recording.blurry, view.is_display)).mean())
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
    # spike pixel then has `down` x `across` RGB pixels. E.g. with 3 RGB pixels across, they are the
    # RGB pixels 0, 1 and 2 for spike pixel 0, so its middle is at 1 = (3 - 1) / 2.
    down = clip.size[0] / plane[0]
    across = clip.size[1] / plane[1]
    matrix = np.array([[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2], [0, 0, 1]])
    return View(clip.size, plane, matrix, is_display)
