"""Compute the light of each plane of a part of a video, seen through a crop that moves.

A plane is one read-out of the spike camera. A frame interval is the time from one frame of the made
clip to the next, e.g. 88 planes. The crop moves smoothly, as if a person held the camera. Light is
linear, float32, 1 at full scale.

What must stay: every bit of the light and the order of the draws, for the same video and seed,
because made data sets are published, and an interrupted data set is continued later. No test
notices a change of the last bits, so make a clip before and after you change the arithmetic, and
compare the files. If the light must change, raise VERSION in data/making/recipe.py.

Tests: tests/parts/scripts/test_prepare_gopro_spike.py
(test_a_sharp_frame_of_a_rig_is_a_part_of_a_raw_frame)
"""

from collections.abc import Iterator

import cv2
import numpy as np

from data.clips.user_frames import FrameSource
from data.making.frame_light import LIGHT_OF_DISPLAY_VALUE, scale_down
from data.making.light_path import LightPath
from data.making.smooth_walk import smooth_walk
from data.making.video_parts import Cut


def video_scene(
    frames: FrameSource, cut: Cut, intervals: int, planes: int, crop: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield the light (crop, crop, 3) float32 of each plane of a cut.

    The middle plane of each interval, planes // 2, becomes the sharp frame of the made clip. So the
    light of this plane must not be interpolated, neither in time nor in space. Therefore the time
    of this plane is exactly the time of a frame of the video, and the corner of the crop is on a
    whole pixel (test_a_sharp_frame_of_a_rig_is_a_part_of_a_raw_frame).

    frames: frames of the video. cut: the part of the video.
    intervals: number of frame intervals. planes: number of planes in an interval.
    crop: side of the made frame in pixels.
    rng: generator of the motion. The order of its draws must stay, because it decides the clips.
    """

    def light_of(number: int) -> np.ndarray:
        """Return the light of a frame of the cut, (H, W, 3)."""
        picture = scale_down(frames.read(cut.first + number), cut.side)
        return cv2.LUT(picture, LIGHT_OF_DISPLAY_VALUE)

    # `cut.frames` counts the frames of the intervals, one frame before them, and one frame after
    # them (FRAMES_BESIDE).
    light_path = LightPath(light_of, count=cut.frames(intervals=intervals))
    height, width = light_path.at(0.0).shape[:2]
    corners = _corners_of_crop(
        height, width, crop=crop, intervals=intervals, planes=planes, rng=rng
    )

    # Times are in frames of the cut. The first interval begins at 0.5 (`find_cuts`) and has n
    # frames, so its middle is (n + 1) / 2. The middle is rounded down to the time of a frame: 1 for
    # n = 1 or 2, and 2 for n = 3 or 4. E.g. with 88 planes in an interval and n = 1, plane 44 has
    # the time 1, and plane 132 has the time 2.
    frames_per_interval = cut.average  # n
    first_sharp_time = (frames_per_interval + 1) // 2
    first_sharp_plane = planes // 2
    for plane, corner in enumerate(corners):
        planes_since_sharp = plane - first_sharp_plane
        time = first_sharp_time + frames_per_interval * planes_since_sharp / planes
        x, y = (corner + (crop - 1) / 2).tolist()  # middle of the crop
        yield cv2.getRectSubPix(light_path.at(time), (crop, crop), (x, y))


def _corners_of_crop(
    height: int, width: int, crop: int, intervals: int, planes: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the upper left corner of a moving crop in each plane: (intervals planes, 2), x and y.

    height, width: size of the scaled frames. crop: side of the crop in pixels.
    intervals: number of frame intervals. planes: number of planes in an interval.
    rng: generator of the motion. First for x and then for y, it draws an amplitude, a walk (a
    smooth random motion) and the middle of the walk. A change of the order would change the data
    sets.
    """
    largest_corner = np.array((width, height)) - crop  # x and y
    number_of_planes = intervals * planes
    # The middle plane of each interval. The corner must be on a whole pixel there.
    sharp_planes = range(planes // 2, number_of_planes, planes)
    corners = np.empty((number_of_planes, 2))
    for axis, most in enumerate(largest_corner):
        # The walk lies between `middle - amplitude` and `middle + amplitude`, and has periods of 2
        # to 8 frame intervals. The corner may lie from 0 to `most` along this axis. So the
        # amplitude is at most half of the smaller `most`, and the middle is at least one amplitude
        # away from 0 and from `most`.
        amplitude = rng.uniform(0.1, 1.0) * min(largest_corner) / 2
        periods = (2.0 * planes, 8.0 * planes)
        walk = smooth_walk(rng, number_of_planes, amplitude, periods)
        middle = rng.uniform(amplitude, most - amplitude)
        walk += middle
        # Shift the walk to whole pixels at the sharp planes. Between two sharp planes, interpolate
        # the shift, so that the crop does not jump. E.g. a walk at 3.4 and 5.8 is shifted by -0.4
        # at one sharp plane, by +0.2 at the next, and by -0.1 half way between them.
        to_whole_pixel = np.round(walk) - walk
        shift_at_sharp = to_whole_pixel[sharp_planes]
        walk += np.interp(range(number_of_planes), sharp_planes, shift_at_sharp)
        # The shift is up to half a pixel, so the corner may have left the range 0 ... `most`.
        corners[:, axis] = np.clip(walk, 0, most)
    return corners
