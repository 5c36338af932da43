"""Open the videos that a test saves of a clip: the result, a comparison, and slow motion.

finished_clip.py calls `open_videos` with a clip and with what is saved (`Outputs`), and gets a
table {kind: open video}. Then finished_clip.py writes the frames into the videos, one by one.

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
    input. If the input is a folder of frames, or if not all frames are restored, the results have a
    constant frame rate.

    count: number of restored frames.
    """
    are_all_restored = count == len(clip.stems)
    times = clip.times if are_all_restored else None  # None means a constant frame rate
    videos = {}
    for kind in VIDEOS:
        if kind not in outputs.save:
            continue
        times_of_video = times
        if kind == "slowmotion" and times is not None:
            times_of_video = _slowmotion_times(times, outputs.instants)
        # Many players only play 4:2:0 (colour in half the resolution), so a comparison has 4:2:0.
        # The other videos are results, and keep the full resolution of colour, 4:4:4.
        chroma = "420" if kind == "comparison" else "444"
        video = VideoWriter(
            outputs.file(kind, clip.name),
            # A folder of frames has no frame rate, so the user's flag --fps gives it.
            fps=clip.fps or outputs.fps,
            times=times_of_video,
            chroma=chroma,
            pixel_aspect=clip.pixel_aspect,
        )
        videos[kind] = stack.enter_context(video)
        # Closing a video takes long: it encodes the last frames, and reads the file back. The stack
        # calls in the reverse order, so `watchdog.go_on` is called directly before the video is
        # closed. It tells the watchdog that the rank still works.
        stack.callback(watchdog.go_on)
    return videos


def _slowmotion_times(times: Sequence[Fraction], instants: int) -> list[Fraction] | None:
    """Return the time of each instant in a slow-motion video of all instants.

    Each instant is shown for as long as the input shows its frame, so the video takes `instants`
    times as long as the input. E.g. two frames with 2 instants each:

        input          frame 0 at 0 s             frame 1 at 1 s
        slow motion    instants at 0 s and 1 s    instants at 2 s and 3 s

    times: the time of each frame in the input.

    Returns None if there are fewer than two times, because one time does not say how long its frame
    is shown.
    """
    if len(times) < 2:
        return None
    # The last frame is shown for as long as the frame before it. E.g. times 0, 1, 3: the end is 5.
    last_duration = times[-1] - times[-2]
    end = times[-1] + last_duration
    slow_times = []
    for begin, next_begin in itertools.pairwise([*times, end]):
        duration = next_begin - begin
        slow_begin = instants * begin  # time of the first instant of the frame
        for instant in range(instants):
            slow_times.append(slow_begin + instant * duration)
    return slow_times
