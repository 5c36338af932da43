"""Find the plane (read-out of the spike camera) of the sharp frame: the option `spike.center`.

    spike.center   plane of the sharp frame
    "gt"           `gt_plane` of dataset.json, or the plane that a clip name of Spk-GoPro tells
    "file"         the middle of the planes of the frame
    24             plane 24

The number of a plane is counted "as the options count" (`Span` in timing.py):

    one file per clip     0 is the first plane of the exposure
    one file per frame    0 is the first plane of the file. With a time offset of 3 planes, 0 is
                          plane 3 of the file

A result such as 27.5 lies between the planes 27 and 28.

What must stay: the plane, because channels are windows around it. Free to add: a new word for the
option.

Tests: tests/parts/data/test_timing.py notices a wrong plane.
"""

from typing import Literal

from data.cameras.dataset_info import DatasetInfo
from data.cameras.timing import Span
from utils.errors import OptionError


def sharp_plane(
    center: Literal["gt", "file"] | int, info: DatasetInfo, clip: str, span: Span
) -> float:
    """Return the plane at which the sharp frame of one frame of a clip was taken.

    center: value of the option spike.center. info: contents of dataset.json.
    clip: name of the clip. span: the planes of the frame.
    Raises OptionError if the plane is unknown, or outside of the planes that are read.
    """
    plane: float | None
    if center == "gt":
        # `span.length` counts all planes of the frame, also the planes that are not read.
        plane = info.gt_plane_of(clip, span.length)
    elif center == "file":
        plane = span.middle
    else:
        plane = center
    if plane is None:
        raise _unknown_center(clip, "is not known")
    # The planes that are read, as the options count: e.g. origin 14 and count 28 are 14 ... 41. If
    # a plane outside of this range is accepted, test_a_sharp_frame_outside_of_the_window_is_refused
    # fails.
    last = span.origin + span.count - 1
    if not span.origin <= plane <= last:
        raise _unknown_center(clip, f"{plane} is outside of {span.origin} to {last}")
    return plane


def middle_of_read_planes(span: Span) -> float:
    """Return the middle of the planes that are read.

    This middle serves as the center if a representation ignores the center. `span.middle` is not
    used, because it is the middle of all planes of the frame, and the file may lack this plane.
    """
    last = span.origin + span.count - 1
    return (span.origin + last) / 2


def _unknown_center(clip: str, why: str) -> OptionError:
    """Return the error for a clip if the plane of its sharp frame cannot be used.

    why: end of the sentence "the plane of the sharp frame ...".

    The key spike.center is named in `expected` and `do`, too, because the table of the data check
    does not show `where`.
    """
    return OptionError(
        what=f"the plane of the sharp frame {why} for clip {clip}",
        where="spike.center",
        expected='spike.center "file" or a plane number; or "gt" with gt_plane in dataset.json or '
        "Spk-GoPro clip names",
        do='set spike.center to "file" or to the number of the plane; leave out a frame whose '
        "middle the file lacks",
    )
