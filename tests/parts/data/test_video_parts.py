"""data/making/video_parts.py: the parts of a video that can be interpolated.

A video is a textured picture. The view moves over it by some pixels from frame to frame. The motion
of a part may be at most 8 pixels per frame (MOST_STEP). If the motion is faster, the frames are
scaled down until the motion is 8 pixels, but not below the least side. E.g. 12 pixels at a side of
160 pixels become 8 pixels at a side of 107 pixels. If the least side is larger, the part is left
out.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from data.making.video_parts import Cut, find_cuts
from tests.helpers.two_cameras import texture

SIDE = 160  # height and width of the frames


class Video:
    """A video in memory, as `data.clips.user_frames.FrameSource`.

    steps: motion in pixels from each frame to the next. None: the next frame shows another scene.
    """

    size = (SIDE, SIDE)

    def __init__(self, steps: Sequence[int | None]) -> None:
        self.frames = []
        scene = 0
        x = 0
        for step in [0, *steps]:
            if step is None:
                scene += 1
                x = 0
            else:
                x += step
            picture = texture(np.random.default_rng(scene), (SIDE, 4 * SIDE))
            grey = (255 * picture[:, x : x + SIDE]).astype(np.uint8)
            # A dark scene and a bright scene differ by more than 40 grey levels.
            grey = grey // 2 if scene % 2 == 0 else 128 + grey // 2
            self.frames.append(np.repeat(grey[..., None], 3, axis=2))

    def __len__(self) -> int:
        return len(self.frames)

    def read(self, number: int) -> np.ndarray:
        """Return a frame, (SIDE, SIDE, 3)."""
        return self.frames[number]


def cuts_of(steps: Sequence[int | None], least_side: int = SIDE) -> list[Cut]:
    """Return the parts of a video with 3 intervals of 1 frame."""
    video: Any = Video(steps)  # read like a FrameSource
    rng = np.random.default_rng(0)
    return find_cuts(video, intervals=3, sides=(least_side, SIDE), frames_per_interval=1, rng=rng)


def test_parts_follow_one_another():
    # The video has 11 frames. A part has 5 frames: 3 intervals of 1 frame, a frame before the
    # intervals, and a frame after them. The next part begins 3 intervals later. So the parts are
    # the frames 0 to 4, 3 to 7 and 6 to 10.
    assert [cut.first for cut in cuts_of([2] * 10)] == [0, 3, 6]


def test_no_part_has_a_change_of_the_scene():
    # The scene changes from frame 6 to frame 7. The part at frame 3 would have frames 3 to 7, so
    # there is no such part. The next part begins after the change, at frame 7.
    steps = [2, 2, 2, 2, 2, 2, None, 2, 2, 2, 2, 2]

    # With least_side=10, no motion is too fast for a part. So only the change of the scene (None)
    # decides where the parts begin.
    assert [cut.first for cut in cuts_of(steps, least_side=10)] == [0, 7]


def test_no_part_has_a_motion_that_is_too_fast():
    # The step from frame 4 to frame 5 is too long. The part of frames 0 to 4 ends before this step.
    # So the next part begins with frame 5, not with frame 3: frames 3 to 7 contain the step.
    steps = [2, 2, 2, 2, 20, 2, 2, 2, 2, 2]

    assert [cut.first for cut in cuts_of(steps)] == [0, 5]


def test_frames_of_a_fast_motion_are_scaled_down():
    [slow, *_] = cuts_of([2] * 10, least_side=SIDE // 4)
    [fast, *_] = cuts_of([12] * 10, least_side=SIDE // 4)

    assert slow.side == SIDE
    # 12 pixels at side 160 are 8 pixels at side 107. The measured motion is a little off.
    assert 95 < fast.side < 120
