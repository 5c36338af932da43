"""Write pictures and videos of a spike file: the files of recon and play of spike_tool.py.

    planes_to_show, write_images   recon: which planes, and a picture, a folder or a video of them
    planes_to_play, write_video    play: which planes, and a video of them
    panels                         images side by side, under their names

spike_rendering.py makes the images. This file only arranges and writes them. A plane is one readout
of the spike camera: a bit for each pixel, 1 if the pixel fired.

What must stay: each image is made only when it is written, so a video of many planes needs the
memory of one image (test_a_long_stream_is_never_whole_in_memory).
Free to change: the limits below, and the titles of the images.

Tests: tests/parts/scripts/test_spike_tool.py
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np

from scripts.parts.exit_codes import with_progress
from scripts.parts.spike_tool.spike_rendering import Rendering
from utils.errors import OptionError
from utils.image import comparison_strip, imwrite_rgb
from utils.output_folder import publish_folder, scratch_folder
from utils.video.container import WRITABLE_SUFFIXES
from utils.video.writer import VideoWriter

# Small images are enlarged by a whole factor, so that single pixels can be seen. The factor is the
# largest with which the height is at most this number of pixels. E.g. a height of 128 becomes 256,
# because 3 * 128 = 384 is too much.
MOST_ENLARGED_HEIGHT = 320
# Without --step, `play` makes at most this number of video frames: 20 s at 25 frames per second.
MOST_FRAMES = 500

# ---- Chosen planes: recon ---------------------------------------------------------------------


def planes_to_show(chosen: Iterable[int] | None, rendering: Rendering) -> list[int]:
    """Return the planes of --planes in rising order. Without --planes, return the middle plane.

    Raises OptionError if a chosen plane has no image.
    """
    if not chosen:
        chosen = [rendering.file.planes // 2]
    planes = sorted(set(chosen))
    outside = [plane for plane in planes if not 0 <= plane <= rendering.last]
    if outside:
        raise OptionError(
            what=f"no {rendering.name} at plane {', '.join(map(str, outside))}",
            where="--planes",
            expected=f"0 to {rendering.last}",
            do="correct them",
        )
    return planes


def write_images(
    out: Path, rendering: Rendering, planes: Sequence[int], fps: float, tick_hz: float | None
) -> None:
    """Write the images at some planes: a picture, a folder of pictures, or a video.

    fps: frames per second of a video.
    tick_hz: planes per second, for the titles. None: the titles have no time.

    Tests: test_recon_writes_a_folder_with_a_picture_of_each_plane,
    test_recon_writes_a_strip_of_the_planes, test_recon_writes_a_video_of_the_planes
    """
    # Each image is made only when it is written. So a video or a folder of many planes needs the
    # memory of one image. `moment` gives the number and the time of a plane as text, and `panels`
    # gives one picture: images side by side, each under its title.
    images = with_progress(rendering.images(planes), len(planes), rendering.name, "planes")
    suffix = out.suffix.lower()
    if suffix in WRITABLE_SUFFIXES:
        with VideoWriter(out, fps) as video:
            for shown in images:
                title = f"{rendering.name}  {moment(shown.number, tick_hz)}"
                video.write(panels({title: shown.image}))
    elif suffix == "":
        # A folder appears under its name only when it is complete.
        scratch = scratch_folder(out.with_name(f".{out.name}.partial"))
        for shown in images:
            _write_grey(scratch / f"{shown.number:06d}.png", shown.image)
        publish_folder(scratch, out)
    elif len(planes) == 1:
        (shown,) = images  # one plane, so one image
        _write_grey(out, shown.image)
    else:  # one picture of several planes
        side_by_side = {moment(shown.number, tick_hz): shown.image for shown in images}
        imwrite_rgb(out, panels(side_by_side))


def _write_grey(path: Path, image: np.ndarray) -> None:
    """Write a grey image (h, w) uint8 as a picture of three equal channels."""
    imwrite_rgb(path, cv2.cvtColor(image, cv2.COLOR_GRAY2RGB))


# ---- A range of planes: play ------------------------------------------------------------------


def planes_to_play(first: int, count: int | None, step: int | None, last: int) -> range:
    """Return the planes that --first, --count and --step choose, one for each video frame.

    Raises OptionError if a chosen plane does not exist, or if the step is negative.

    last: number of the last plane that has an image.

    Tests: test_play_makes_a_frame_of_every_third_plane,
    test_play_ends_with_the_last_plane_of_the_method
    """
    stop = last + 1
    if count is not None:
        stop = min(first + count, stop)
    # A wrong step gets the same error as an empty range, e.g. --first 90 of 88 planes.
    is_step_wrong = step is not None and step < 0
    if not 0 <= first < stop or is_step_wrong:
        raise OptionError(
            what=f"planes {first} to {stop - 1}",
            where="--first, --count, --step",
            expected=f"planes within 0 to {last}, a step of at least 1 (0: as without --step)",
            do="correct them",
        )
    # Without --step (or with 0), take the smallest step with at most MOST_FRAMES frames, e.g. step
    # 3 for 1001 planes.
    if not step:
        step = math.ceil((stop - first) / MOST_FRAMES)
    return range(first, stop, step)


def write_video(
    out: Path, rendering: Rendering, planes: Sequence[int], fps: float, tick_hz: float | None
) -> None:
    """Write a video: each plane, white where a pixel fired, beside its reconstruction.

    fps: frames per second of the video.
    tick_hz: planes per second, for the times in the titles. None: the titles have no times.
    """
    images = with_progress(rendering.images(planes), len(planes), "video", "frames")
    with VideoWriter(out, fps) as video:
        for shown in images:
            title = f"spikes  {moment(shown.number, tick_hz)}"
            black_and_white = 255 * shown.fired
            video.write(panels({title: black_and_white, rendering.label: shown.image}))


# ---- Titles, and images side by side ----------------------------------------------------------


def moment(plane: int, tick_hz: float | None) -> str:
    """Return the title of an image, e.g. "plane 150  7.50 ms", or "plane 150" without `tick_hz`.

    tick_hz: planes per second.
    """
    if not tick_hz:
        return f"plane {plane}"
    return f"plane {plane}  {1e3 * plane / tick_hz:.2f} ms"


def panels(images: dict[str, np.ndarray]) -> np.ndarray:
    """Return grey images side by side under their names, as one RGB image (H, W, 3) uint8.

    images: name -> (h, w) uint8, all of one size. Small images are enlarged by a whole factor.
    """
    first_image = next(iter(images.values()))
    height, width = first_image.shape
    # E.g. 128 rows are enlarged by 320 // 128 = 2. An image of more than 320 rows stays as it is.
    factor = max(1, MOST_ENLARGED_HEIGHT // height)
    shown = {name: cv2.cvtColor(image, cv2.COLOR_GRAY2RGB) for name, image in images.items()}
    return comparison_strip(shown, (factor * height, factor * width))
