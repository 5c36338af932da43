"""Find the spike files of a user, and compare their content with the frames.

    spike_files              returns the spike files in a folder
    section_and_info         finds the size of the planes, and what dataset.json says of the spikes
    warn_of_one_spike_file   warns of a file that is slow to read, or is divided unevenly
    check_same_view          refuses planes whose shape is not the shape of the frames

A plane is one binary picture of the spike camera. A clip has a spike file for each frame, or one
file with the planes of all frames.

What must stay: the order of the files, because beside a film the order decides which file belongs
to which frame. The refusal of planes of a wrong shape must stay, too. Free to change: the texts of
the warnings.

Tests: tests/parts/data/test_frame_times.py, tests/parts/data/test_timing.py,
tests/stories/test_main_test.py
"""

import logging
from pathlib import Path
from typing import Any

from data.cameras.dataset_info import DatasetInfo, nearest_info
from data.cameras.frame_times import FrameTimes
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.cameras.spike_source import DatSpikes
from data.clip import Clip
from data.clips.file_content import SLOW_FROM_START, is_read_from_start
from data.clips.user_folders import files_in
from data.spike.formats import FORMATS, array_shape
from utils.errors import DataError

logger = logging.getLogger(__name__)


def spike_files(path: Path) -> list[Path]:
    """Return the spike files of a folder in natural order. Returns [path] for a file.

    If a folder holds several formats, only files of the first format in `FORMATS` are returned.

    Test: test_spike_files_of_a_film_are_sorted_by_the_numbers_in_their_names
    """
    if not path.is_dir():
        return [path]
    for suffix in FORMATS:
        files_of_format = files_in(path, (suffix,))
        if files_of_format:
            return files_of_format
    return []


def section_and_info(section: Any, spike: Path, clip: str = "") -> tuple[Any, DatasetInfo]:
    """Return the spike section for a clip, and what the nearest dataset.json says of the clip.

    Section and dataset.json may lack the size of a plane, or contradict each other:

    * If neither has the size, the returned section has the size of the arrays (.npy, .npz).
    * If they have different sizes, the dataset.json describes other files, so an empty
      description is returned.

    section: the section `spike` of the options.
    spike: path of the spikes.
    clip: name of the clip.
    """
    info = nearest_info(spike).of_clip(clip)
    paths = spike_files(spike)
    is_size_unknown = all(side is None for side in (section.h, section.w, info.h, info.w))
    if paths and is_size_unknown:
        with spike_errors_as_data_errors():
            shape = array_shape(paths[0])
        if shape and len(shape) == 3:
            _, h, w = shape  # (planes, h, w)
            section = section.model_copy(update={"h": h, "w": w})
    # If two sizes differ, dataset.json describes other files.
    if _contradict(section.h, info.h) or _contradict(section.w, info.w):
        return section, DatasetInfo()
    return section, info


def _contradict(side: int | None, other: int | None) -> bool:
    """Return whether two lengths of one side differ. None: the length is not known."""
    return side is not None and other is not None and side != other


# If one spike file has the planes of all frames, the times of the frames may divide the planes. The
# first warning is for frames that last for different times, the second for missing frames.
FRAMES_OF_DIFFERENT_TIMES = (
    "the frames last for different times, so each has the planes of its own time. The last one is "
    "taken to last as long as the one before it; give spike.exposure if it does not"
)
MISSING_FRAMES = (
    "each frame has the planes of its own time; the planes of the missing frames are left out"
)


def warn_of_one_spike_file(clip: Clip, spikes: DatSpikes, times: FrameTimes) -> None:
    """Warn if one file holds the planes of all frames, and is slow or divided unevenly.

    spikes: how the spikes are read.
    times: times of the frames.
    """
    is_one_file = len(clip) > 1 and len(clip.planes_of_spike_files) == 1
    if not is_one_file:
        return
    if is_read_from_start(clip.spike[0]):
        logger.warning("spikes of %s: %s", clip.name, SLOW_FROM_START)
    # Without spike.exposure, the planes are divided by the times of the frames. If the frames last
    # for different times, they get different numbers of planes. The user may not expect this.
    is_divided_by_times = not spikes.timing.has_exposures
    if is_divided_by_times and not times.is_even:
        text = MISSING_FRAMES if times.gaps else FRAMES_OF_DIFFERENT_TIMES
        logger.warning("spikes of %s: %s", clip.name, text)


# Largest relative difference between the ratio height / width of a frame and the ratio of a spike
# plane. The ratios may differ because the sides of a small plane are rounded to whole pixels. E.g.
# a plane of 50 rows may be one row too high, which is 2 %. A larger value would accept planes that
# were read with a wrong size.
_RATIO_TOLERANCE = 0.02


def check_same_view(frame: tuple[int, int], spikes: tuple[int, int], where: str) -> None:
    """Refuse a spike plane if its ratio of height to width differs from the ratio of the frame.

    frame: (H, W) of a frame.
    spikes: (h, w) of a plane.
    where: file of the spikes, for the message.
    Raises DataError if the ratios differ by more than `_RATIO_TOLERANCE`.
    """
    H, W = frame
    h, w = spikes
    # The ratios are equal if H / W = h / w, or W h = H w without a division. E.g. frames of
    # 720 x 1280 and planes of 250 x 400 have W h = 320,000 and H w = 288,000, which differ by 10 %.
    difference = abs(W * h - H * w)
    if difference > _RATIO_TOLERANCE * W * h:
        raise DataError(
            what=f"spikes of {h} x {w} for frames of {H} x {W}",
            where=where,
            expected="the same ratio of height to width",
            do="correct the size of the spike planes; "
            "for a camera with another view, give spike.calibration",
        )
