"""Give the light at any instant: of a video by optical flow, or of a photograph in motion.

A spike camera reads out thousands of planes a second, but a video has only tens or hundreds of
frames a second. So the light between two frames must be interpolated. `data/making/prepare.py` and
`scripts/spike_tool.py` use

    LightPath      gives the light at any time between the frames of a video
    find_cuts      finds the parts of a video that can be interpolated: slow motion, one scene
    video_scene    gives the light of each plane of such a part, seen through a crop that moves
    PhotoScene     a photograph that the camera moves over: its light, and its true motion

Light is linear, float32, 1 at full scale. A "plane" is one read-out of the spike camera. A "frame
interval" is the time from one frame of the made clip to the next. It has a number of planes, and
may have several frames of the video.

What must stay: every bit of the light, for the same source and seed. The reason: made data sets are
published, and an interrupted data set is continued later. So neither the order of the random draws
nor the order of the arithmetic may change. If the light must change, raise VERSION in
data/making/prepare.py. What may change freely: speed and memory.

Tests: tests/parts/scripts/test_prepare_gopro_spike.py (what the light shows),
tests/parts/data/test_light_in_motion.py (the parts of a video), tests/parts/data/test_seeds.py (a
seed gives the same motion as ever). No test notices a change of the last bits: whoever changes
arithmetic makes a clip before and after, and compares the files.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import cv2
import numpy as np

from data.clips.user_frames import FrameSource
from data.spike.pictures import to_grey, to_linear

# A "step" is the motion from one frame of a video to the next, in pixels. 95 % of the pixels move
# less than the step. With 100 %, a few pixels with a wrong flow would decide. With a smaller share,
# a fast thing in a still scene would not count.
STEP_PERCENTILE = 95
# Largest step in pixels between two frames that are interpolated. Optical flow is less reliable for
# larger motions. A smaller value would leave fewer parts of a video.
# test_no_part_has_a_motion_that_is_too_fast notices a much larger value.
MOST_STEP = 8.0
# If the grey levels (0 to 255) of two frames differ by more than this on average, the scene has
# changed. A smaller value would take fast motion for a change of the scene.
# test_no_part_has_a_change_of_the_scene notices a much larger value.
SCENE_CHANGE = 40.0
# Largest number of frames of an ordinary video in one frame interval, if the number is drawn. With
# more frames, the made frames would be more blurry, and a video would give fewer clips.
MOST_FRAMES_PER_INTERVAL = 4
# A part of a video has this many frames beside the frames of its intervals: one before the first
# interval and one after the last interval. Its light begins and ends between two frames, where it
# is interpolated, and these two frames are needed for it.
FRAMES_BESIDE = 2
# Linear light of each display value 0 ... 255, at gamma 2.2. cv2.LUT looks pixels up in this table.
LIGHT_OF_DISPLAY_VALUE = to_linear(np.arange(256, dtype=np.float32) / 255.0)
# A photograph has this many pixels along one RGB pixel of the made frame. So each RGB pixel is a
# mean of FINE x FINE pixels. With 1, the pixels of the photograph would be visible when it moves.
FINE = 2
# Weights of the four sines of a random motion. Their sum is 1. The motion is irregular, because the
# sines have different periods. A single sine would repeat itself.
WALK_WEIGHTS = (0.4, 0.3, 0.2, 0.1)
# Number of pieces of a photograph that are nearer than the rest. More of them would hide the rest.
NEAR_LAYERS = 2


def smooth_walk(
    rng: np.random.Generator, planes: int, amplitude: float, periods: tuple[float, float]
) -> np.ndarray:
    """Return a smooth random motion, (planes,): a sum of four sines with random periods.

        walk(t) = amplitude sum_i w_i sin(2 pi (t / T_i + phase_i))

    The weights w_i are WALK_WEIGHTS. They add up to 1, so the walk stays within -amplitude and
    amplitude.

    periods: the shortest and the longest period T_i, in planes. The logarithm of each period is
    drawn uniformly.
    rng: four times, a period and then a phase is drawn. Another order would give other data sets.
    """
    log_shortest, log_longest = np.log(periods)
    t = np.arange(planes)
    walk = np.zeros(planes)
    for weight in WALK_WEIGHTS:
        period = np.exp(rng.uniform(log_shortest, log_longest))
        phase = rng.uniform()
        walk += weight * np.sin(2 * np.pi * (t / period + phase))
    return amplitude * walk


class _Flows(NamedTuple):
    """The optical flow between two neighbouring frames A and B, (h, w, 2) each, in pixels."""

    index_of_A: int  # number of the frame A. B is the next frame
    f: np.ndarray  # A -> B: the pixel at x in A is at x + f(x) in B
    g: np.ndarray  # B -> A


class LightPath:
    """The light at any time between the frames of a clip.

    The frame A before this time and the frame B after it are moved along the optical flow and
    mixed. At the fraction p of the time from A to B, with the flows f: A -> B and g: B -> A,

        light(x) = (1 - p) A(x - p f(x)) + p B(x - (1 - p) g(x)).

    Call `at` with increasing times. Only the flows of the last pair of frames are stored, so times
    in another order would give the same light, but would compute the flows again and again.
    """

    def __init__(
        self, light: Callable[[int], np.ndarray], count: int, method: str = "flow"
    ) -> None:
        """Prepare a path through `count` frames.

        light: function that returns the light of a frame, (h, w) or (h, w, 3) float32, by number.
        method: "flow", or "linear", which only mixes the neighbours.
        """
        # The last two frames, A and B, stay in memory, because many times lie between them.
        self.light = lru_cache(2)(light)
        self.count = count
        self.method = method
        # The flows between the last pair of frames. None: no flow was computed yet.
        self._last_flows: _Flows | None = None
        # DIS is the method of optical flow ("dense inverse search").
        self._dis: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)

    def at(self, time: float) -> np.ndarray:
        """Return the light at `time`, in the form of a frame.

        time: in frames, e.g. 2.25 is a quarter of the way from frame 2 to frame 3. The light is
        constant before the first and after the last frame.
        """
        last_frame = self.count - 1
        time = min(max(time, 0.0), float(last_frame))
        # A is frame `index`, and B is the next frame. No frame follows the last frame. So at its
        # time, A is the frame before it, and B is the last frame.
        last_A = max(last_frame - 1, 0)
        index = min(int(time), last_A)
        fraction = time - index  # p: 0 at A, 1 at B
        # Some times are computed, and a rounding error moves them away from the time of a frame,
        # e.g. 2.9999999999. They must show the frame itself, without interpolation.
        is_at_frame = min(fraction, 1 - fraction) < 1e-9
        if is_at_frame:
            return self.light(round(time))
        A = self.light(index)
        B = self.light(index + 1)
        if self.method == "linear":
            return (1 - fraction) * A + fraction * B
        # light(x) = (1 - p) A(x - p f(x)) + p B(x - (1 - p) g(x))
        flows = self._flows_from(index)
        p = np.float32(fraction)
        moved_A = _move(A, shift=-p * flows.f)  # A(x - p f(x))
        moved_B = _move(B, shift=(p - 1) * flows.g)  # B(x - (1 - p) g(x))
        return (1 - p) * moved_A + p * moved_B

    def _flows_from(self, index: int) -> _Flows:
        """Return the flows between frame `index` and the next frame. They are kept."""
        last = self._last_flows
        if last is not None and last.index_of_A == index:
            return last
        A = _for_flow(self.light(index))
        B = _for_flow(self.light(index + 1))
        f = self._dis.calc(A, B, None)
        g = self._dis.calc(B, A, None)
        self._last_flows = _Flows(index, f, g)
        return self._last_flows


def _for_flow(light: np.ndarray) -> np.ndarray:
    """Return the image of a frame that optical flow is computed from, (h, w) uint8.

    light: (h, w) or (h, w, 3). The image has the square root of the light, which are display values
    of gamma 2. In linear light, dark parts of the scene would have nearly equal grey levels, and
    the flow could not follow them.
    """
    grey = light if light.ndim == 2 else light.mean(axis=2)
    display = np.sqrt(np.clip(grey, 0, 1))
    return (display * 255).astype(np.uint8)


def _move(light: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Move an image: pixel p of the result shows the light at p + shift(p).

    shift: (h, w, 2) in pixels, x first. Beyond its border, the light goes on as at the border.
    """
    height, width = light.shape[:2]
    columns = np.arange(width, dtype=np.float32)
    rows = np.arange(height, dtype=np.float32)
    x, y = np.meshgrid(columns, rows)  # (h, w) each: coordinates of every pixel
    x = x + shift[..., 0]
    y = y + shift[..., 1]
    return cv2.remap(light, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def grey_light(
    frames: FrameSource, size: tuple[int, int], gamma: float
) -> Callable[[int], np.ndarray]:
    """Return a function: number of a frame -> its grey light (h, w).

    size: (h, w), to which frames are scaled. gamma: exponent from display values to light.
    """
    # Linear light of each display value 0 ... 255.
    curve = to_linear(np.arange(256, dtype=np.float32) / 255.0, gamma)
    height, width = size

    def light(number: int) -> np.ndarray:
        grey = to_grey(cv2.LUT(frames.read(number), curve))
        return cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)

    return light


# ---- Videos ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """A part of a video without a change of the scene. A made clip shows one such part.

    The names of the fields are keys of a file beside the made clips, so they stay.
    """

    first: int  # number of its first frame in the video
    average: int  # number of frames of the video in one frame interval, which are averaged
    side: int  # shorter side in pixels to which the frames are scaled

    def frames(self, intervals: int) -> int:
        """Return the number of its frames, with the two beside its intervals."""
        return self.average * intervals + FRAMES_BESIDE


def scale_down(picture: np.ndarray, side: int) -> np.ndarray:
    """Scale a picture to a shorter side of `side` pixels. A smaller picture stays as it is."""
    height, width = picture.shape[:2]
    factor = min(1.0, side / min(height, width))
    if factor == 1:
        return picture
    size = (round(width * factor), round(height * factor))
    return cv2.resize(picture, size, interpolation=cv2.INTER_AREA)


def find_cuts(
    frames: FrameSource,
    intervals: int,
    sides: tuple[int, int],
    frames_per_interval: int | None,
    rng: np.random.Generator,
) -> list[Cut]:
    """Return the parts of a video that can be interpolated, without a change of the scene.

    The sharp frame of an interval is in its middle. E.g. with 3 intervals of 1 frame, a part that
    begins at frame 10 has 5 frames (FRAMES_BESIDE says why it has two more):

        frame    10       11       12       13       14
                      |  sharp |  sharp |  sharp |

    The light goes from the time 10.5 to 13.5. There are 4 steps from frame to frame. The next part
    begins at frame 13: its first interval begins at 13.5, where the last interval of this part
    ends. test_parts_follow_one_another and the tests beside it notice wrong parts.

    intervals: number of frame intervals of a part.
    sides: smallest and largest allowed value of `Cut.side`, the shorter side of the scaled frames.
    In smaller frames, a motion has fewer pixels, so more parts can be interpolated.
    frames_per_interval: number of frames of the video in an interval. None: the number is drawn for
    each part, 1 to MOST_FRAMES_PER_INTERVAL.
    rng: the generator of this number.
    """
    least_side, most_side = sides
    side = min(most_side, *frames.size)
    steps = _steps(frames, side)  # in pixels of frames that are scaled to `side`
    # Motion in pixels is proportional to the side. A step of MOST_STEP pixels in frames of
    # `least_side` has this many pixels in frames of `side`:
    most_step = MOST_STEP * side / least_side
    cuts = []
    first = 0
    while True:
        # Try a part that begins at frame `first`.
        frames_left = len(frames) - first - FRAMES_BESIDE
        most_in_interval = frames_left // intervals
        in_interval = _frames_in_interval(frames_per_interval, most_in_interval, rng)
        if in_interval is None:
            return cuts  # too few frames are left
        cut = Cut(first, in_interval, side)  # the side becomes smaller below, if needed
        steps_of_part = np.array(steps[first : first + cut.frames(intervals) - 1])

        # No part may contain a step that is longer than allowed, or a change of the scene (inf). So
        # the next part begins after the last of these steps. Step i of this part leads to frame
        # first + i + 1.
        too_long = np.flatnonzero(steps_of_part > most_step).tolist()
        if too_long:
            first += too_long[-1] + 1
            continue

        side_of_part = _side_of_part(float(steps_of_part.max()), side, least_side)
        cuts.append(replace(cut, side=side_of_part))
        first += in_interval * intervals


def _side_of_part(longest_step: float, side: int, least_side: int) -> int:
    """Return the side that the frames of a part are scaled to, so that no step is too long.

    The longest step becomes MOST_STEP pixels: a step of 16 pixels at side 288 gives the side 144.
    Frames with a shorter step than MOST_STEP keep their side.

    longest_step: in pixels of frames of `side`. least_side: the smallest allowed result.
    """
    step = max(longest_step, MOST_STEP)
    return max(least_side, int(side * MOST_STEP / step))


def _frames_in_interval(wanted: int | None, most: int, rng: np.random.Generator) -> int | None:
    """Return how many frames of the video each interval of a part has.

    Returns None if too few frames are left.

    wanted: the number that the user gave. None: it is drawn. most: the largest possible number.
    rng: one number is drawn for each part that is tried, also if the part is rejected later. The
    order belongs to the made data sets.
    """
    if wanted is not None:
        return wanted if wanted <= most else None
    if most < 1:
        return None
    drawn = rng.integers(1, min(most, MOST_FRAMES_PER_INTERVAL), endpoint=True)
    return int(drawn)


def _steps(frames: FrameSource, side: int) -> list[float]:
    """Return the step from each frame to the next, in pixels; inf at a change of the scene.

    side: shorter side to which the frames are scaled. STEP_PERCENTILE says what a step is.
    """
    # Only the length of the motion is needed here, so the fastest setting is enough.
    dis: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
    steps = []
    before = None
    for number in range(len(frames)):
        picture = scale_down(frames.read(number), side)
        grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        if before is not None:
            flow = dis.calc(before, grey, None)  # (h, w, 2)
            mean_difference = cv2.absdiff(grey, before).mean()
            if mean_difference > SCENE_CHANGE:
                steps.append(np.inf)
            else:
                lengths = np.hypot(flow[..., 0], flow[..., 1])  # (h, w)
                step = np.percentile(lengths, STEP_PERCENTILE)
                steps.append(float(step))
        before = grey
    return steps


def video_scene(
    frames: FrameSource, cut: Cut, count: int, planes: int, crop: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield the light (crop, crop, 3) float32 of each plane of a cut.

    The crop moves smoothly, as if a person held the camera. The sharp instant of each interval is
    its middle plane, planes // 2. The light of this plane becomes the sharp frame of the made clip,
    so nothing in it may be interpolated. Two things ensure this: the sharp instant has the time of
    a frame of the video, and the corner of the crop is on a whole pixel then. If one of them is
    wrong, test_a_sharp_frame_of_a_rig_is_a_part_of_a_raw_frame fails.

    count: number of frame intervals. planes: number of planes in an interval. crop: side in pixels.
    rng: generator of the motion. The order of its draws belongs to the made data sets.
    """

    def light_of(number: int) -> np.ndarray:
        """Return the light of a frame of the cut, (H, W, 3)."""
        picture = scale_down(frames.read(cut.first + number), cut.side)
        return cv2.LUT(picture, LIGHT_OF_DISPLAY_VALUE)

    # The frames of the intervals, with one frame before and one frame after them (FRAMES_BESIDE).
    path = LightPath(light_of, count=cut.frames(intervals=count))
    height, width = path.at(0.0).shape[:2]
    corners = _corners_of_crop(height, width, crop=crop, count=count, planes=planes, rng=rng)

    # Times are in frames of the cut. The first sharp instant is at the first whole frame that has
    # half an interval before it: 1 for intervals of 1 or 2 frames, 2 for 3 or 4 frames. E.g. with
    # 88 planes and one frame in an interval, plane 44 has the time 1, and plane 132 the time 2.
    first_sharp_time = (cut.average + 1) // 2
    first_sharp_plane = planes // 2
    for plane, corner in enumerate(corners):
        # An interval of `planes` planes has `cut.average` frames.
        planes_since_sharp = plane - first_sharp_plane
        time = first_sharp_time + cut.average * planes_since_sharp / planes
        x, y = (corner + (crop - 1) / 2).tolist()  # middle of the crop
        yield cv2.getRectSubPix(path.at(time), (crop, crop), (x, y))


def _corners_of_crop(
    height: int, width: int, crop: int, count: int, planes: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the upper left corner of a moving crop in each plane: (count planes, 2), x and y.

    height, width: of the scaled frames. crop: side of the crop in pixels.
    count: number of frame intervals. planes: number of planes in an interval.
    rng: for x and then for y, an amplitude, a walk and its middle are drawn. Another order would
    give other data sets.
    """
    room = np.array((width, height)) - crop  # largest x and y of a corner
    number_of_planes = count * planes
    # The middle plane of each interval. The corner must be on a whole pixel there.
    sharp_planes = range(planes // 2, number_of_planes, planes)
    corners = np.empty((number_of_planes, 2))
    for axis, most in enumerate(room):
        # A walk from `middle - amplitude` to `middle + amplitude`, with periods of 2 to 8 frame
        # intervals. The amplitude is at most half of the smaller room, so `middle` can be drawn
        # such that the crop stays within the frame.
        amplitude = rng.uniform(0.1, 1.0) * min(room) / 2
        periods = (2.0 * planes, 8.0 * planes)
        walk = smooth_walk(rng, number_of_planes, amplitude, periods)
        middle = rng.uniform(amplitude, most - amplitude)
        walk += middle
        # Shift the walk to whole pixels at the sharp planes. Between two sharp planes, the shift
        # changes linearly, so that the crop does not jump.
        to_whole_pixel = np.round(walk) - walk
        shift_at_sharp = to_whole_pixel[sharp_planes]
        walk += np.interp(range(number_of_planes), sharp_planes, shift_at_sharp)
        corners[:, axis] = np.clip(walk, 0, most)
    return corners


# ---- Photographs -----------------------------------------------------------------------------

# A layer is the photograph, or a piece of it. Three images have pixels of their own:
#
#     sheet   the image of a layer, (H, W): as large as the photograph, and transparent outside of
#             the piece
#     view    what the camera sees of the sheets, FINE * crop pixels along each side
#     crop    the made frame, crop x crop: the view, reduced by FINE
#
# P is the number of planes of the whole clip.


@dataclass(frozen=True)
class _Layer:
    """A piece of a photograph that moves on its own, like a sheet of paper before other sheets."""

    # (H, W, 4) light and opacity (0 to 1). The light is multiplied by the opacity already.
    sheet: np.ndarray
    # (P, 2), the point x, y of the sheet that is in the middle of the view, for each plane.
    centers: np.ndarray
    border: int  # what is beyond the edges of the sheet, a constant of OpenCV


@dataclass(frozen=True)
class _Camera:
    """The motion of the camera over a photograph, for each of the P planes of the clip."""

    shake: np.ndarray  # (P, 2), x and y in pixels of the view
    angles: np.ndarray  # (P,), in radians
    zooms: np.ndarray  # (P,), factors; above 1, objects look larger
    # (P, 2), how fast the scale changes along x and y. `_camera_homography` has the matrix.
    tilts: np.ndarray


class PhotoScene:
    """A photograph in motion: the light of each plane, and where each pixel moves.

    The camera shakes, zooms, turns and tilts. Two pieces of the photograph are nearer than the
    rest: they move more with the camera, and also move by themselves.

    picture: (H, W, 3) uint8. It is scaled down to a shorter side of FINE x side.
    count: number of frame intervals (from one made frame to the next).
    planes: number of planes in an interval.
    crop: side of a made frame in pixels.
    rng: first the camera is drawn (`_draw_camera`), then the layers from the farthest to the
    nearest (`_layer`).

    What must stay: the order and the ranges of the draws, because they decide which scene a seed
    gives. test_a_seed_gives_its_scene notices another order or range. With wider ranges, the motion
    would be faster, and data sets would be others: then raise VERSION in data/making/prepare.py.
    """

    def __init__(
        self,
        picture: np.ndarray,
        side: int,
        count: int,
        planes: int,
        crop: int,
        rng: np.random.Generator,
    ) -> None:
        light = cv2.LUT(scale_down(picture, FINE * side), LIGHT_OF_DISPLAY_VALUE)  # (H, W, 3)
        self.crop = crop
        self.number_of_planes = count * planes  # P
        view_side = FINE * crop

        # All random numbers are drawn here, before the first plane is painted.
        self._camera = _draw_camera(self.number_of_planes, planes, crop, rng)
        # The time of each plane in frame intervals, from -count / 2 to count / 2: (P, 1).
        share_of_clip = np.arange(self.number_of_planes) / self.number_of_planes  # (P,)
        time = (share_of_clip - 0.5)[:, None] * count
        self._layers = []  # the farthest one first
        for depth in range(1 + NEAR_LAYERS):  # 0 is the whole photograph
            layer = _layer(
                light, depth, shake=self._camera.shake, time=time, view_side=view_side, rng=rng
            )
            self._layers.append(layer)

    def lights(self) -> Iterator[np.ndarray]:
        """Yield the light (crop, crop, 3) float32 of each plane."""
        size = (self.crop, self.crop)
        for plane in range(self.number_of_planes):
            canvas = self._paint(plane)
            yield cv2.resize(canvas, size, interpolation=cv2.INTER_AREA)

    def shifts(self, plane: int, other: int) -> np.ndarray:
        """Return how far the scene of each pixel moves from `plane` to `other`.

        Returns (crop, crop, 2) float32: x and y in pixels of the made frame. What a pixel shows in
        `plane` is the nearest layer whose opacity is above 1/2 there. In `other`, a nearer layer
        may hide it.

        These are the true motions that benchmarks and tests compare with. A wrong scale fails
        test_the_true_motion_of_a_photograph_leads_from_a_plane_to_the_same_scene_in_another. An
        error of a few pixels in `points` does not, because the shifts hardly differ there.
        """
        # From pixels of the crop to points of the view. E.g. with FINE = 2, pixel 0 of the crop
        # covers the pixels 0 and 1 of the view, so its middle is at 0.5.
        in_crop = np.arange(self.crop)
        y, x = np.meshgrid(in_crop, in_crop, indexing="ij")  # (crop, crop) each
        pixels = np.stack((x, y), axis=-1)  # (crop, crop, 2)
        points = pixels * FINE + (FINE - 1) / 2

        shifts = np.zeros((self.crop, self.crop, 2), np.float32)
        for layer in self._layers:  # a nearer layer replaces the shifts of the layers behind it
            # From the view in `plane` to the sheet, and from there to the view in `other`.
            on_sheet = cv2.perspectiveTransform(points, self._to_sheet(layer, plane))
            to_other_view = np.linalg.inv(self._to_sheet(layer, other))
            in_other = cv2.perspectiveTransform(on_sheet, to_other_view)
            of_layer = (in_other - points) / FINE  # in pixels of the crop
            is_shown = _opacity_at(layer, on_sheet) > 0.5  # (crop, crop)
            shifts = np.where(is_shown[..., None], of_layer, shifts)
        return shifts.astype(np.float32)

    def _paint(self, plane: int) -> np.ndarray:
        """Return the view of a plane: the light that the camera sees, (view_side, view_side, 3).

        The layers are painted from the farthest to the nearest, and each layer covers what is
        behind it by its opacity: light = (1 - opacity) light_behind + light_of_layer.
        """
        view_side = FINE * self.crop
        # WARP_INVERSE_MAP: the matrix leads from the result (view) to the source (sheet).
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        canvas = np.zeros((view_side, view_side, 3), np.float32)
        for layer in self._layers:
            seen = cv2.warpPerspective(
                layer.sheet,
                self._to_sheet(layer, plane),
                (view_side, view_side),
                flags=flags,
                borderMode=layer.border,
            )  # (view_side, view_side, 4)
            light_of_layer = seen[..., :3]  # multiplied by the opacity already
            opacity = seen[..., 3:]
            canvas = canvas * (1 - opacity) + light_of_layer
        return canvas

    def _to_sheet(self, layer: _Layer, plane: int) -> np.ndarray:
        """Return the homography (3, 3) from a point of the view to a point of the sheet."""
        camera = self._camera
        turn_and_zoom = _camera_homography(
            camera.angles[plane], camera.zooms[plane], camera.tilts[plane]
        )
        view_side = FINE * self.crop
        middle_to_origin = _translation(-view_side / 2, -view_side / 2)
        x, y = layer.centers[plane]
        # A product of matrices acts from right to left: move the middle of the view to 0; turn,
        # zoom and tilt; move 0 to the center of the layer in this plane.
        return _translation(x, y) @ turn_and_zoom @ middle_to_origin


def _draw_camera(
    number_of_planes: int, planes_of_interval: int, crop: int, rng: np.random.Generator
) -> _Camera:
    """Draw the motion of the camera.

    number_of_planes: P, of the whole clip. crop: side of a made frame in pixels.
    rng: the order of its draws must not change, because it decides which scene a seed gives.
    """
    view_side = FINE * crop
    # walk(amplitude) is a random motion (P,) between -amplitude and amplitude. It swings once in 2
    # to 8 frame intervals.
    periods = (2.0 * planes_of_interval, 8.0 * planes_of_interval)
    walk = partial(smooth_walk, rng, number_of_planes, periods=periods)
    # The amplitude is at most a sixth of the made frame.
    shake_x = walk(rng.uniform(2, crop / 6))  # in pixels of the made frame
    shake_y = walk(rng.uniform(2, crop / 6))
    shake = FINE * np.stack([shake_x, shake_y], axis=1)  # in pixels of the view
    # The camera turns by up to 0.1 radians (6 degrees). It zooms by 8 % around a factor of 1 to
    # 1.3, because a person who films mostly holds one zoom.
    angles = walk(0.1)
    zooms = rng.uniform(1.0, 1.3) * np.exp(walk(0.08))
    # At most 0.1 / view_side in x and y. An edge of the view is view_side / 2 from its middle, so a
    # tilt changes the scale there by at most 0.1 / 2 = 5 %.
    tilts = np.stack([walk(0.1), walk(0.1)], axis=1) / view_side
    return _Camera(shake, angles, zooms, tilts)


def _layer(
    light: np.ndarray,
    depth: int,
    shake: np.ndarray,
    time: np.ndarray,
    view_side: int,
    rng: np.random.Generator,
) -> _Layer:
    """Draw a layer. depth: 0 for the whole photograph; 1 and 2 for its pieces, 2 is the nearest.

    light: (H, W, 3) of the photograph. shake: (P, 2), motion of the camera in pixels of the view.
    time: (P, 1), time of each plane in frame intervals. view_side: side of the view in pixels.
    rng: the order of its draws must not change, because it decides which scene a seed gives.
    """
    height, width = light.shape[:2]
    size = np.array((width, height))  # x before y, as in all points here
    opaque = np.ones((height, width, 1), np.float32)
    if depth == 0:
        # The whole photograph. Nothing is drawn for it. Beyond its edges it is mirrored, so that it
        # always fills the view.
        centers = size / 2 + shake
        sheet = np.concatenate((light, opaque), axis=2)
        return _Layer(sheet, centers, cv2.BORDER_REFLECT_101)

    # A piece of the photograph around the point `middle`. It appears in the view at another place
    # than it has in the photograph, and moves with a constant speed.
    middle = rng.uniform(0.3, 0.7, 2) * size
    speed = view_side * rng.uniform(-0.05, 0.05, 2)  # pixels per frame interval
    center_at_time_0 = middle + view_side * rng.uniform(-0.3, 0.3, 2)
    # Its shape is the convex hull of eight random points. The edge is blurred by 0.8 pixels, so
    # that it has no steps of whole pixels.
    corners = middle + view_side * rng.uniform(-0.2, 0.2, (8, 2))  # (8, 2), x and y
    hull = cv2.convexHull(corners.astype(np.int32))
    mask = cv2.fillPoly(np.zeros_like(opaque), [hull], 1.0, cv2.LINE_AA)
    opacity = cv2.GaussianBlur(mask, (0, 0), 0.8)[..., None]  # (H, W, 1)
    sheet = np.concatenate((light * opacity, opacity), axis=2)
    # The nearer the layer, the more it moves with the camera: 1.35 and 1.7 times as much as the
    # whole photograph.
    parallax = 1 + 0.35 * depth
    centers = center_at_time_0 + parallax * shake + speed * time
    return _Layer(sheet, centers, cv2.BORDER_CONSTANT)


def _camera_homography(angle: float, zoom: float, tilt: np.ndarray) -> np.ndarray:
    """Return the homography (3, 3) of a camera that is turned, zoomed and tilted.

        [cos / zoom, -sin / zoom, 0]
        [sin / zoom,  cos / zoom, 0]
        [tilt[0],     tilt[1],    1]

    It leads from a point of the view to a point of the sheet, both counted from the middle of the
    view. angle: in radians. zoom: above 1, objects look larger. tilt: (2,). A homography divides
    x and y by the third number, tilt[0] x + tilt[1] y + 1. So the scale changes along x and y.
    """
    cos = np.cos(angle)
    sin = np.sin(angle)
    homography = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
    homography[:2] /= zoom
    homography[2, :2] = tilt
    return homography


def _translation(x: float, y: float) -> np.ndarray:
    """Return the matrix (3, 3) that moves a point by x, y."""
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])


def _opacity_at(layer: _Layer, points: np.ndarray) -> np.ndarray:
    """Return the opacity (h, w) of a layer at points of its sheet, (h, w, 2)."""
    x, y = np.moveaxis(points.astype(np.float32), -1, 0)
    opacity = np.ascontiguousarray(layer.sheet[..., 3])
    return cv2.remap(opacity, x, y, cv2.INTER_LINEAR, borderMode=layer.border)
