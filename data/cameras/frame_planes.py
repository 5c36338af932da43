"""Find the planes of each frame of a clip, and check that they can be used.

A plane is one read-out of the spike camera. `exposures_of` finds and checks the planes when the
clips are listed, before a sample is read. `DatSpikes` (spike_source.py) has the options. Each step
has its own module:

    timing.py            finds the planes of a frame, without context: a `Span`
    sharp_plane.py       finds the plane of the sharp frame: the center
    context_planes.py    finds the planes before and after the planes of a frame

The result for each frame is an `Exposure` (data/clip.py). channels_of_frame.py reads these planes.

What must stay: the planes of each frame, because a network sees them, and the errors for wrong
planes.

Tests: tests/parts/data/test_timing.py, tests/parts/data/test_spike_source.py
"""

import dataclasses
import logging
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from data.cameras.context_planes import with_context
from data.cameras.frame_times import FrameTimes, PlaneRange
from data.cameras.sharp_plane import middle_of_read_planes, sharp_plane
from data.cameras.spike_source import DatSpikes
from data.cameras.timing import Span
from data.clip import Exposure, Piece
from utils.dist.state import RUN
from utils.errors import DataError
from utils.words import are, counted

# Two exposures may share this number of planes without a warning, because start and length of an
# exposure are rounded to whole planes.
SHARED_BY_ROUNDING = 1

logger = logging.getLogger(__name__)


def exposures_of(
    spikes: DatSpikes,
    clip: str,
    files: list[tuple[str, int]],
    frames: int,
    times: FrameTimes | None = None,
) -> tuple[Exposure, ...]:
    """Return the planes of each frame of a clip, and check that they can be used.

    All errors of the planes are found here, before a run starts. E.g. the files lack planes, or a
    frame has too few planes for the representation. `read_channels` (channels_of_frame.py) relies
    on this check.

    clip: name of the clip.
    files: (path, number of planes) of each spike file: one file for each frame, or one file for the
    whole clip.
    frames: number of frames.
    times: the times of the frames, or None if they are not known. If one file holds the whole clip,
    the times divide its planes among the frames. If the option spike.exposure lists the planes, the
    times are only compared with the option.

    Raises OptionError if the plane of the sharp frame is unknown, and DataError for planes that
    do not fit.
    """
    is_one_file = len(files) == 1
    ranges = None  # the planes of each frame in the one file
    if times and is_one_file:
        _, planes = files[0]
        ranges = plane_ranges(spikes, clip, planes, times)

    exposures = []
    tried = set()  # pairs (number of planes, center) for which the representation was tried
    for frame in range(frames):
        file_index = 0 if is_one_file else frame
        _, planes = files[file_index]
        span = spikes.timing.span(clip, frame, planes, ranges)
        exposure = _exposure(spikes, clip, files, file_index, span)
        exposures.append(exposure)

        # Try whether the planes are enough for the representation. The result depends only on the
        # number of planes and on the center. Most frames of a clip have the same number and center.
        # Try each pair (number, center) only once, because a trial takes longer than the rest of
        # this loop.
        count_and_center = (span.count, exposure.center)
        if count_and_center not in tried:
            tried.add(count_and_center)
            _refuse_too_few_planes(spikes, exposure)
    return tuple(exposures)


def _exposure(
    spikes: DatSpikes, clip: str, files: list[tuple[str, int]], file_index: int, span: Span
) -> Exposure:
    """Return the planes of one frame, with their context.

    files: (path, number of planes) of each spike file of the clip.
    file_index: index in `files` of the file with the planes `span`.
    Raises OptionError if the plane of the sharp frame is unknown.
    """
    path, _ = files[file_index]
    # If the representation ignores the center, the plane of the sharp frame need not be known, and
    # any plane that is read may be the center.
    if "center" in spikes.without_effect:
        plane = middle_of_read_planes(span)
    else:
        plane = sharp_plane(spikes.center, spikes.info, clip, span)
    planes_before, pieces = with_context(files, file_index, span, spikes.context)
    return Exposure(
        own=Piece(path, span.first, span.count),
        pieces=pieces,
        before=planes_before,
        # `plane` is a number as the options count (`Span` in timing.py), in which the first plane
        # that is read has the number `span.origin`. `center` is 0 at this first plane. E.g. if the
        # first 14 planes of a frame are not read, plane 27.5 becomes the center 13.5. Without the
        # subtraction, test_a_window_gives_the_same_channels_as_files_of_these_planes fails.
        center=plane - span.origin,
        origin=span.origin,
    )


def warn_of_overlap(clip: str, exposures: Sequence[Exposure]) -> None:
    """Warn if the exposure of a frame ends after the exposure of the next frame has begun.

    No camera exposes two frames at once, so a length or a period of spike.exposure is wrong. The
    planes are read as the user has given them. Only the first such pair of frames is named.

    clip: name of the clip. exposures: the planes of its frames. Every rank may call this function,
    but only rank 0 writes the warning.
    """
    if RUN.launch.rank != 0:
        return
    for frame, (exposure, next_exposure) in enumerate(pairwise(exposures)):
        own = exposure.own
        next_own = next_exposure.own
        # The numbers of planes can only be compared within one file, and in the order of time.
        if own.file != next_own.file or own.first > next_own.first:
            continue
        end = own.first + own.count
        if end - next_own.first <= SHARED_BY_ROUNDING:
            continue
        logger.warning(
            "spikes of %s: the exposure of a frame ends after the next one has begun: "
            "frame %d has planes %d to %d, frame %d begins at plane %d. No camera does so: "
            "check length and period of spike.exposure (both in planes; length is at most "
            "period)",
            clip,
            frame,
            own.first,
            end - 1,
            frame + 1,
            next_own.first,
        )
        return


def plane_ranges(
    spikes: DatSpikes, clip: str, planes: int, times: FrameTimes
) -> list[PlaneRange] | None:
    """Return the planes of each frame of a clip with one spike file.

    planes: number of planes of the file. times: when the frames were taken.
    Returns None if spike.exposure lists the planes of each frame.
    """
    tick_hz = spikes.calibration.tick_hz if spikes.calibration else None  # planes per second
    return spikes.timing.plane_ranges(clip, planes, times, tick_hz)


def _refuse_too_few_planes(spikes: DatSpikes, exposure: Exposure) -> None:
    """Raise DataError if the representation cannot be made of the planes of an exposure.

    The representation is tried on one pixel without spikes, and without context planes. The trial
    must work without context planes, because no plane comes before the first frame of a clip.
    """
    count = exposure.own.count
    center = exposure.center
    error = _error_of_trial(spikes, count, center)
    if error is None:
        return
    # A representation raises ValueError if its windows do not fit into the planes.
    least = _shortest_exposure(spikes)
    needs = ""
    advice = "use smaller windows, or another spike.center"
    if least is not None and least > count:
        plane_size = f"{spikes.geometry.height} x {spikes.geometry.width}"
        needs = f", which needs {least} or more; the planes are read as {plane_size}"
        advice = (
            "check the length of the exposure (seconds x planes per second) and the height and "
            f"width of a plane; for a training of your own, {advice}"
        )
    raise DataError(
        what=f"{counted(count, 'plane')} {are(count)} too few for spike.representation "
        f"{spikes.name}{needs}: {error}",
        where=exposure.own.file,
        expected=f"planes for {spikes.options} around plane {center:g}",
        do=advice,
    ) from error


def _error_of_trial(spikes: DatSpikes, count: int, center: float) -> ValueError | None:
    """Return why the representation cannot be made of so many planes, or None if it can.

    The representation is tried on one pixel without spikes. center: plane of the sharp frame.
    """
    one_pixel = np.zeros((count, 1, 1), np.uint8)
    try:
        spikes.represent(one_pixel, center, rate=1.0)
    except ValueError as e:
        return e
    return None


# Longest exposure that `_shortest_exposure` tries, in planes. Usual windows need fewer than 100
# planes. The trials take milliseconds, and only in a start that is refused.
LONGEST_TRIAL = 300


def _shortest_exposure(spikes: DatSpikes) -> int | None:
    """Return how many planes an exposure needs if the sharp frame is in its middle.

    Returns None if no exposure up to LONGEST_TRIAL planes is long enough.
    """
    for count in range(1, LONGEST_TRIAL + 1):
        middle = (count - 1) / 2
        if _error_of_trial(spikes, count, middle) is None:
            return count
    return None


def of_exposure(spikes: DatSpikes, context: int) -> DatSpikes:
    """Return a copy that reads exactly the planes of the exposure, and context planes.

    A calibration has two shares (fractions) of the planes of a frame:

        exposure_share   the planes during which the frame was exposed, e.g. 0.5
        share_to_read    the planes that are read for channels, 1.12 times as many, e.g. 0.56

    The copy reads the planes of `exposure_share`. data/motion/recording.py calls this function,
    because the motion within the exposure is computed from exactly these planes.

    context: number of planes that are read before and after the planes of the exposure.
    """
    timing = spikes.timing
    # Without a calibration, all planes of a frame are read, for the channels and for the motion.
    if spikes.calibration:
        timing = dataclasses.replace(timing, share=spikes.calibration.exposure_share)
    return spikes.changed(context=context, timing=timing)
