"""Open the videos that a test saves of a clip: the result, a comparison, and slow motion.

In: a clip, and what is saved (`Outputs`), from finished_clip.py. Out: a table {kind: open video}.
finished_clip.py writes the frames into the videos, one by one.

What must stay: if the input is a video, the results have the time stamps of the input
(tests/stories/test_main_test.py compares them). Free to change: how the pixels are encoded.

Tests: tests/stories/test_main_test.py
"""

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from fractions import Fraction

from models.restore.outputs import VIDEOS, Outputs
from utils.contract import ClipReader
from utils.dist import watchdog
from utils.video.writer import VideoWriter


def open_videos(
    clip: ClipReader, outputs: Outputs, count: int, stack: ExitStack
) -> dict[str, VideoWriter]:
    """Open the videos to save, by kind. Leaving `stack` closes them.

    If the input is a video and all its frames are restored, the results have the time stamps of the
    input. Otherwise they have a constant frame rate.

    count: number of restored frames.
    """
    times: list[Fraction] = []
    if clip.times is not None and count == len(clip.stems):
        times = list(clip.times)
    videos = {}
    for kind in VIDEOS:
        if kind not in outputs.save:
            continue
        stamps = times
        if kind == "slowmotion":
            stamps = _slowmotion_times(times, outputs.instants)
        video = VideoWriter(
            outputs.file(kind, clip.name),
            # A folder of frames has no frame rate, so the user's flag --fps gives it.
            fps=clip.fps or outputs.fps,
            times=stamps or None,  # None: a constant frame rate
            # Many players only play 4:2:0 (colour in half the resolution), so a comparison has it.
            # The other videos are results, and keep the full resolution of colour, 4:4:4.
            chroma="420" if kind == "comparison" else "444",
            pixel_aspect=clip.pixel_aspect,
        )
        videos[kind] = stack.enter_context(video)
        # Closing a video encodes the last frames and reads the file back.
        stack.callback(watchdog.go_on)
    return videos


def _slowmotion_times(times: Sequence[Fraction], instants: int) -> list[Fraction]:
    """Return the times of the instants in slow motion, or [] if there are fewer than two times.

    Each instant is shown for as long as its frame was shown in the input. E.g. frames at 0 s and
    1 s with 2 instants each: each frame was shown for 1 s, so the instants are at 0, 1, 2, 3 s.
    """
    if len(times) < 2:  # one time does not say how long a frame is shown
        return []
    # The last frame is shown for as long as the frame before it.
    last_duration = times[-1] - times[-2]
    end = times[-1] + last_duration
    stamps = []
    # The slow video takes `instants` times as long as the input. So the instants of a frame that
    # the input shows from `begin` on begin at instants * begin.
    for begin, after in itertools.pairwise([*times, end]):
        duration = after - begin
        for instant in range(instants):
            stamps.append(instants * begin + instant * duration)
    return stamps
