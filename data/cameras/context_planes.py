"""Find the planes around the planes of a frame (the option `spike.context`).

A plane is one read-out of the spike camera. A representation turns planes into channels. A
representation may use the context: planes before and after the exposure of a frame. E.g. the
representation "relative" uses the time between two spikes, and the first spike may lie before the
exposure. `DatSpikes.context` (spike_source.py) is the number of context planes on each side.
Context planes may lie in the files of other frames, because spike files follow one another in time:

    file of the frame before    file of the frame    file of the frame after
    plane -56 ... -1            plane 0 ... 55       plane 56 ... 111

In this example, each file has 56 planes. Planes are counted from the first plane of the file of the
frame.

What must stay: the pieces and their order, because they are the stream that a network sees. Free to
change: how they are found.

Tests: tests/parts/data/test_timing.py notices wrong pieces
(test_context_of_a_file_per_frame_is_in_the_files_beside).
"""

from collections.abc import Sequence
from typing import NamedTuple

from data.cameras.timing import Span
from data.clip import Piece


class _NearbyFile(NamedTuple):
    """The file of a frame, or the file before or after it, with the numbers of its planes."""

    path: str
    begin: int  # number of the first plane, counted from the first plane of the frame's file
    end: int  # number after the last plane


def with_context(
    files: Sequence[tuple[str, int]], file_index: int, span: Span, context: int
) -> tuple[int, tuple[Piece, ...]]:
    """Return the number of context planes before a frame, and all planes to read for the frame.

    files: (path, number of planes) of each spike file of a clip: one per frame, or only one.
    file_index: index in `files` of the file of the frame.
    span: the planes of the frame in this file.
    context: number of planes that are wanted before and after the planes of the frame. Near the
    ends of the clip, fewer planes may exist, so fewer planes are read.

    E.g. each file has 56 planes, all of one frame, and the context is 8. The result is 8, and three
    pieces: the planes 48 ... 55 of the file before, 0 ... 55 of the file of the frame, and 0 ... 7
    of the file after.
    """
    nearby_files = _nearby_files(files, file_index)
    # The wanted planes are `wanted_from` ... `wanted_end` - 1: -8 ... 63 in the example. From each
    # file, take the wanted planes that the file has.
    wanted_from = span.first - context
    wanted_end = span.first + span.count + context
    pieces = []
    for file in nearby_files:
        first = max(wanted_from, file.begin)
        end = min(wanted_end, file.end)
        if first < end:
            # In a piece, planes are counted from the first plane of its own file.
            pieces.append(Piece(file.path, first=first - file.begin, count=end - first))

    # The context before the frame begins at the first plane of the first nearby file, or later. So
    # this context may have fewer planes than wanted.
    planes_before = min(context, span.first - nearby_files[0].begin)
    return planes_before, tuple(pieces)


def _nearby_files(files: Sequence[tuple[str, int]], file_index: int) -> list[_NearbyFile]:
    """Return the file with this index, the file before it and the file after it, in this order.

    Files further away are never read. So the context on one side is at most the rest of the frame's
    file and one more file.
    """
    path, planes = files[file_index]
    nearby_files = [_NearbyFile(path, begin=0, end=planes)]
    if file_index > 0:
        path_before, planes_before = files[file_index - 1]
        nearby_files.insert(0, _NearbyFile(path_before, begin=-planes_before, end=0))
    if file_index + 1 < len(files):
        path_after, planes_after = files[file_index + 1]
        nearby_files.append(_NearbyFile(path_after, planes, planes + planes_after))
    return nearby_files
