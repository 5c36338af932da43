"""Read the pairs of calibrate.py: the spikes and the frame of the same moment.

    read_view       a frame and the spikes of its exposure, as a `View`
    mirror_views    views with mirrored spike images
    images_of       a view as two grey images

A plane is one readout of the spike camera: a bit for each spike pixel.

What must stay: a search for the time offset reads as many planes around an exposure as the fit
needs (test_the_time_offset_is_found_if_the_scene_moves).
Free to change: the words of the errors, except where tests/parts/scripts/test_calibrate.py quotes
them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from data.cameras.registration.view import MOST_REACH, View
from data.clips.user_frames import FrameSource
from data.spike.formats import count_planes, read_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.pictures import to_display, to_grey
from utils.errors import DataError

# ---- Reading ----------------------------------------------------------------------------------


def read_view(
    path: Path,
    frame: Path,
    geometry: SpikeGeometry,
    planes: tuple[int, int] | None,
    search_planes: int | None,
) -> View:
    """Read one pair: the frame and the spikes of its exposure.

    path: the spike file. geometry: height, width and storage of its planes.
    frame: an image. For a folder or a video, the mean of all images is taken.
    planes: first plane and number of planes of the exposure. None: all planes of the file.
    search_planes: largest time offset that is searched, which needs `planes`. None: the time is
        known.
    """
    # A view has a stream of planes, and says which part of the stream is the exposure of the frame:
    # `before` planes come before the exposure, and the exposure has `count` planes.
    if planes and search_planes:
        # To find the time offset, the stream has the single planes of the exposure, and planes
        # before and after it.
        first, count = planes
        stream, before = _stream_around(
            path, geometry, first=first, count=count, search_planes=search_planes
        )
    else:
        # To find how the cameras lie to one another, one picture is enough: the sum of all planes
        # of the exposure. The stream has only this picture in place of a plane. So there are two
        # numbers: `count_in_file` planes in the sum, and `count` = 1 picture in the stream.
        first = 0
        count_in_file: int | None = None  # None: to the end of the file
        if planes:
            first, count_in_file = planes
        spikes = read_spikes(path, geometry, first, count_in_file)  # (planes, h, w)
        picture = spikes.sum(axis=0, dtype=np.uint32)  # (h, w)
        stream = picture[None]  # (1, h, w)
        before = 0
        count = 1

    frames = FrameSource(frame)
    images = [frames.read(index) for index in range(len(frames))]  # each (H, W, 3), uint8
    mean_image = np.mean(images, axis=0, dtype=np.float32)
    rounded = (mean_image + 0.5).astype(np.uint8)
    return View(frame=rounded, stream=stream, before=before, count=count)


def _stream_around(
    path: Path, geometry: SpikeGeometry, first: int, count: int, search_planes: int
) -> tuple[np.ndarray, int]:
    """Read the planes of an exposure, and planes before and after it, to find the time.

    Returns the planes (T, h, w), and how many of them lie before the exposure.

    first: the first plane of the exposure.
    count: the number of planes of the exposure.
    search_planes: the largest time offset that is searched, in planes.
    """
    # An exposure with any searched offset must lie within the stream. The fit also measures how the
    # light changes with time. For this it needs MOST_REACH (8) additional planes on each side.
    end = first + count
    around = search_planes + MOST_REACH
    begin = max(first - around, 0)  # a file has no planes before plane 0
    stop = min(end + around, count_planes(path, geometry))  # the file may end earlier
    # A file that ends within the exposure is an error. Read up to the end of the exposure
    # nevertheless, because then the reader raises the error that names the missing planes.
    stop = max(stop, end)
    stream = read_spikes(path, geometry, begin, stop - begin)
    planes_before = first - begin
    return stream, planes_before


# ---- Images of a view -------------------------------------------------------------------------


def mirror_views(views: Sequence[View], mirror: str) -> list[View]:
    """Return the views with mirrored spike images.

    mirror: "none", "columns" (left and right change places), "rows" or "both".
    """
    # The axes along which a stream (planes, h, w) is reversed. E.g. "columns" reverses axis 2 (w).
    axes_of_mirror = {"none": (), "columns": (2,), "rows": (1,), "both": (1, 2)}
    axes = axes_of_mirror[mirror]
    mirrored_views = []
    for view in views:
        stream = np.ascontiguousarray(np.flip(view.stream, axes))
        mirrored_views.append(replace(view, stream=stream))
    return mirrored_views


def images_of(view: View, light: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the spikes (h, w) and the frame (H, W) as grey display values in [0, 1], float32.

    light: what the spike camera integrates, "linear" light or "display" values.
    """
    # The stream begins `before` planes before the exposure, which has `count` planes.
    end = view.before + view.count
    exposure = view.stream[view.before : end]
    rates = exposure.mean(axis=0, dtype=np.float32)  # (h, w), spikes per plane
    # The brightest half percent of the pixels becomes white. 1e-6 keeps the divisor above 0, even
    # for a file without spikes.
    white = max(float(np.percentile(rates, 99.5)), 1e-6)
    rates /= white
    spikes = to_display(rates) if light == "linear" else np.clip(rates, 0, 1)
    return spikes, to_grey(view.frame).astype(np.float32) / 255


# ---- What is refused --------------------------------------------------------------------------


def refuse_different_sizes(views: Sequence[View], frames: Sequence[Path]) -> None:
    """Raise DataError if the frames differ in size, because then they are not of one camera.

    frames: the file of each view.
    """
    sizes = {}  # shape of a frame -> a file of this shape
    for view, frame in zip(views, frames, strict=True):
        sizes[view.frame.shape] = frame
    if len(sizes) == 1:
        return
    sizes_in_words = []
    for (height, width, _), path in sizes.items():
        sizes_in_words.append(f"{path} has {height} x {width}")
    raise DataError(
        what=f"the frames differ in size: {', '.join(sizes_in_words)}",
        where="--pair",
        expected="frames of one camera",
        do="leave out the others",
    )


def cannot_calibrate(what: str, where: str) -> DataError:
    """Return the error for a pair that cannot be calibrated.

    what: the reason. where: the files.
    """
    return DataError(
        what=f"the two cameras cannot be calibrated with this pair: {what}",
        where=where,
        expected="the same moment of one scene with much texture, sharp in both cameras, of which "
        "they see a good part together",
        do="use other pairs, check the spike size and flip (spike_tool.py view), or try --model "
        "similarity or affine",
    )
