"""Find the parts of a video that can be interpolated: parts with small motion and one scene.

Optical flow is reliable only for small motions. If the scene changes between two frames, no motion
leads from one frame to the other. A "frame interval" is the time from one frame of the made clip to
the next. If an interval has several frames of the video, they are averaged.

What must stay: the parts that are found and the order of the draws, for the same video and seed,
because made data sets depend on the parts. If the parts must change, raise VERSION in
data/making/recipe.py. Free to change: speed.

Tests: tests/parts/data/test_video_parts.py (the places of the parts)
"""

from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np

from data.clips.user_frames import FrameSource
from data.making.frame_light import scale_down

# A part of a video has this many frames in addition to the frames of its intervals: one before the
# first interval and one after the last interval. Both are needed because the first interval begins
# between two frames, and the last interval ends between two frames. The light between two frames is
# interpolated from both frames.
FRAMES_BESIDE = 2


@dataclass(frozen=True)
class Cut:
    """A part of a video without a change of the scene. A made clip shows one such part.

    The names of the fields are keys of a file beside the made clips, so the names must stay.
    """

    first: int  # number of the first frame of the part in the video
    average: int  # number of frames of the video that are averaged in one frame interval
    side: int  # shorter side in pixels to which the frames are scaled

    def frames(self, intervals: int) -> int:
        """Return the number of frames of the part, with the two frames beside its intervals."""
        return self.average * intervals + FRAMES_BESIDE


# Largest step, i.e. motion from one frame to the next, in pixels. Optical flow is less reliable for
# larger motions. With a smaller value, fewer parts of a video could be used. No measurement of
# other values is recorded. test_no_part_has_a_motion_that_is_too_fast notices a much larger value.
MOST_STEP = 8.0


def find_cuts(
    frames: FrameSource,
    intervals: int,
    sides: tuple[int, int],
    frames_per_interval: int | None,
    rng: np.random.Generator,
) -> list[Cut]:
    """Return the parts of a video that can be interpolated, without a change of the scene.

    The sharp frame of an interval is in the middle of the interval. E.g. with 3 intervals of 1
    frame, a part that begins at frame 10 has 5 frames. The frames 10 and 14 are the two frames of
    FRAMES_BESIDE:

        frame    10       11       12       13       14
                      |  sharp |  sharp |  sharp |

    The intervals last from the time 10.5 to 13.5. There are 4 steps from frame to frame. The next
    part begins at frame 13: its first interval begins at 13.5, when the last interval of this part
    ends. test_parts_follow_one_another and the tests beside it notice wrong parts.

    intervals: number of frame intervals of a part.
    sides: smallest and largest allowed value of `Cut.side`, the shorter side of the scaled frames.
    In smaller frames, a motion has fewer pixels, so more parts can be interpolated.
    frames_per_interval: number of frames of the video in an interval. None: the number is drawn for
    each part, from 1 to MOST_FRAMES_PER_INTERVAL = 4.
    rng: the generator that draws the number of frames in an interval.
    """
    least_side, most_side = sides
    # `side` is the least of `most_side`, the height and the width. So frames whose shorter side is
    # below `most_side` are not scaled up.
    side = min(most_side, *frames.size)
    # The step from each frame to the next, in pixels of frames that are scaled to `side`. The step
    # is inf at a change of the scene.
    steps = _steps(frames, side)
    # The longest allowed step between frames that are scaled to `side`. If the frames are scaled
    # down to `least_side`, this step becomes MOST_STEP, because motion in pixels is proportional to
    # the side. E.g. with the sides 288 and 144, steps of up to 8 * 288 / 144 = 16 pixels are
    # allowed.
    most_step = MOST_STEP * side / least_side
    cuts = []
    first = 0
    while True:
        # Try a part that begins at frame `first`. Each round makes `first` larger.
        frames_left = len(frames) - first - FRAMES_BESIDE
        most_frames_in_interval = frames_left // intervals
        frames_in_interval = _frames_in_interval(frames_per_interval, most_frames_in_interval, rng)
        if frames_in_interval is None:
            return cuts  # too few frames are left
        cut = Cut(first, frames_in_interval, side)  # the side becomes smaller below, if needed
        number_of_steps = cut.frames(intervals) - 1  # e.g. 4 steps between 5 frames
        # steps[i] leads from frame i to frame i + 1. E.g. the frames 10 to 14 have the steps 10 to
        # 13.
        steps_of_part = np.array(steps[first : first + number_of_steps])

        # Indices of the steps that are too long. A change of the scene is too long, too, because
        # its step is inf.
        too_long = np.flatnonzero(steps_of_part > most_step).tolist()
        if too_long:
            # Reject the part. The next part begins after the last step that is too long: step i
            # leads from frame first + i to frame first + i + 1.
            first += too_long[-1] + 1
        else:
            side_of_part = _side_of_part(float(steps_of_part.max()), side, least_side)
            cuts.append(replace(cut, side=side_of_part))
            first += frames_in_interval * intervals


def _side_of_part(longest_step: float, side: int, least_side: int) -> int:
    """Return the side to which the frames of a part are scaled, so that no step is too long.

    A step is the motion from one frame of the video to the next, in pixels. The side is chosen so
    that the longest step becomes MOST_STEP pixels. E.g. a longest step of 16 pixels at side 288
    gives the side 144 (test_frames_of_a_fast_motion_are_scaled_down). If the longest step is below
    MOST_STEP, the side stays.

    longest_step: longest step of the part, in pixels of frames of `side`.
    least_side: smallest allowed result.
    """
    step = max(longest_step, MOST_STEP)
    return max(least_side, int(side * MOST_STEP / step))


# Largest number of frames of an ordinary video in one frame interval, if the number is drawn. With
# more frames, the made frames would be more blurry, and a video would give fewer clips.
MOST_FRAMES_PER_INTERVAL = 4


def _frames_in_interval(wanted: int | None, most: int, rng: np.random.Generator) -> int | None:
    """Return how many frames of the video each interval of a part has.

    Returns None if too few frames are left.

    wanted: the number that the user gave. None: the number is drawn. most: largest possible number.
    rng: generator of the number. One number is drawn for each part that is tried, also for parts
    that are rejected later. The order of the draws must stay, because a change of the order would
    change the data sets.
    """
    if wanted is not None:
        return wanted if wanted <= most else None
    if most < 1:
        return None
    drawn = rng.integers(1, min(most, MOST_FRAMES_PER_INTERVAL), endpoint=True)
    return int(drawn)


# A "step" is the motion from one frame of a video to the next, in pixels. The optical flow has a
# length at each pixel, and the step is the 95th percentile of these lengths. With the 100th
# percentile, a few pixels with a wrong flow would decide the step. With a smaller percentile, a
# fast object in a still scene would not count. No measurement of other values is recorded.
STEP_PERCENTILE = 95
# If the grey levels (0 to 255) of two frames differ by more than this number on average, the scene
# has changed. A smaller value would take fast motion for a change of the scene. No measurement of
# other values is recorded. test_no_part_has_a_change_of_the_scene notices a much larger value.
SCENE_CHANGE = 40.0


def _steps(frames: FrameSource, side: int) -> list[float]:
    """Return the step from each frame to the next, in pixels, or inf at a change of the scene.

    side: shorter side to which the frames are scaled. A step is the 95th percentile of the motion
    of the pixels (STEP_PERCENTILE).
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
