"""Decide which planes of the spike files are read for a frame.

A plane is one read-out of the spike camera. Spike files come in two kinds:

    one file per frame   the frame has the planes first ... first + count - 1 of its file
    one file per clip    `spike.exposure` lists the planes of each frame (exposures.py), or the
                         planes follow from the times of the frames (`Timing.plane_ranges`)

`Timing` holds the options of both kinds, and two values of the calibration of the cameras:

    offset   number of planes that is added to the first plane of each frame. E.g. with offset 3,
             a frame that would have the planes 100 ... 155 has the planes 103 ... 158. A
             positive offset means that the spike camera started first
    share    fraction of the planes of a frame that is read, in their middle. E.g. share 0.5 of
             the planes 100 ... 155 is 114 ... 141

`Timing.span` finds the planes of a frame in three steps:

    1. Take the planes that belong to the frame, and add the offset to their numbers.
    2. Keep only the fraction `share` of these planes, in their middle.
    3. If the file lacks some of these planes, leave them out. But if the user gave the numbers of
       the planes (spike.exposure or spike.count), refuse the frame.

The planes around a frame (`spike.context`) are added later, in context_planes.py.

What must stay:

    * the planes of each frame, because they are the spikes of a sample
    * the `repr` of `Timing`, because digests of runs contain it. So do not rename or reorder
      fields. A new field must not appear in the repr while it has its default

Free to change: the names with _, and how `span` finds its result.

Tests: tests/parts/data/test_timing.py (planes, repr, words of the errors),
tests/parts/data/test_frame_times.py (planes, words of the errors)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, NamedTuple

from data.cameras.exposures import Exposures, nearest_plane
from data.cameras.frame_times import FrameTimes, PlaneRange
from data.cameras.unknown_planes import refuse_exposures_of_other_frames, unknown_times
from utils.errors import DataError


@dataclass(frozen=True)
class Span:
    """The planes that are read for one frame.

    A plane has two numbers. The field `first` is a number in the file. The fields `origin` and
    `middle` are numbers in the options spike.center and gt_plane (a key of dataset.json):

        as the file counts      0 is the first plane of the file
        as the options count    one file per clip: 0 is the first plane of the exposure
                                one file per frame: the number in the file, minus the offset

    Example of one file per clip. The exposure of the frame is the planes 100 ... 155 of the file,
    and the share is 0.5:

        as the file counts       100 ... 113 | 114 ... 141 | 142 ... 155
        as the options count       0 ...  13 |  14 ...  41 |  42 ...  55
                                             |   are read  |

        Span(first=114, count=28, origin=14, length=56, middle=27.5)

    Example of one file per frame. The file has 56 planes, and the offset is 3:

        as the file counts         3 ... 55 | 56 ... 58
        as the options count       0 ... 52 | 53 ... 55
                                   are read | not in the file

        Span(first=3, count=53, origin=0, length=56, middle=27.5)
    """

    first: int  # the planes first ... first + count - 1 of the frame's file are read
    count: int
    origin: int  # number of the plane `first`, as the options count
    # Number of planes: of the exposure if a clip has one file, of the file if a frame has a file.
    length: int
    # Middle of all planes that belong to the frame, as the options count. The planes that the file
    # lacks are counted, too: in the second example, `middle` is the middle of 0 ... 55, and not of
    # 0 ... 52.
    middle: float


class _PlanesOfFrame(NamedTuple):
    """The planes of one frame: start ... start + count - 1 of a file.

    The planes may reach outside of the file, because the offset has moved them.
    """

    start: int  # as the file counts
    count: int
    number_of_start: int  # number of the plane `start`, as the options count
    length: int  # as in `Span`

    def middle_part(self, share: float) -> PlaneRange:
        """Return the planes of the frame that are read, as the file counts.

        share: fraction of the planes that is read, in their middle. E.g. share 0.5 of the planes
        100 ... 155 gives (114, 142).

        The part has at least one plane if the frame has planes. A frame has no planes if, e.g.,
        `spike.first` is 60 and the file has 56 planes. `span` refuses such a frame.
        """
        count = nearest_plane(self.count * share)
        if self.count > 0:
            count = max(count, 1)
        first = self.start + (self.count - count) // 2  # e.g. 100 + (56 - 28) // 2 = 114
        return PlaneRange(first, end=first + count)


@dataclass(frozen=True)
class Timing:
    """The options that decide which planes are read. The defaults read whole files:

        Timing().span("clip_07", frame=0, planes=56)
        # Span(first=0, count=56, origin=0, length=56, middle=27.5)

    `exposures_of` (frame_planes.py) calls `plane_ranges` if a clip has one file, and then
    `span` for each frame.
    """

    # The window of a file: its planes first ... first + count - 1.
    first: int | Literal["central"] = 0  # "central": the window is in the middle of the file
    count: int | None = None  # None means all planes to the end of the file
    # The option `spike.exposure`: {clip: its exposures}, for clips that have one file. The key ""
    # is for every clip without a key of its own. None if the option is not given. In this case,
    # each frame has a file, or a clip has one file and `plane_ranges` divides its planes by the
    # times of the frames.
    exposures: dict[str, Exposures] | None = None
    # Two values of the calibration. The repr leaves out `share`, because digests of runs contain
    # the calibration already. The repr shows `offset` only because the digests of existing runs
    # contain `offset`.
    offset: float = 0.0
    share: float = field(default=1.0, repr=False)

    @property
    def has_exposures(self) -> bool:
        """Return whether `spike.exposure` says which planes of one file belong to a frame."""
        return self.exposures is not None

    def listed_exposures(self, clip: str) -> Exposures | None:
        """Return the exposures of a clip, or None if `exposures` has no entry for the clip."""
        if self.exposures is None:
            return None
        for_every_other_clip = self.exposures.get("")
        return self.exposures.get(clip, for_every_other_clip)

    def frames(self, clip: str, planes: int) -> int:
        """Return how many frames the one file of a clip holds, at least 1.

        planes: number of planes in the file.
        """
        listed = self.listed_exposures(clip)
        if listed is None:
            return 1
        # The offset moves all exposures. So with a positive offset, fewer of them may fit.
        return listed.frames_in(planes, self.offset)

    def window(self, planes: int) -> tuple[int, int]:
        """Return (first plane, number of planes) of the window of a file.

        planes: number of planes in the file.
        """
        if self.first == "central":
            count = planes
            if self.count is not None:
                count = min(self.count, planes)
            # There are as many planes before the window as after it. E.g. a window of 10 of 56
            # planes begins at plane 23.
            return (planes - count) // 2, count
        count = self.count
        if count is None:
            count = planes - self.first
        return self.first, count

    def plane_ranges(
        self, clip: str, planes: int, times: FrameTimes, tick_hz: float | None = None
    ) -> list[PlaneRange] | None:
        """Divide the one file of a clip among its frames by their times, or refuse the times.

        planes: number of planes in the file. times: when the frames were taken.
        tick_hz: planes per second, if known.

        Returns the planes of each frame: [(0, 40), (40, 80)] for two frames of 40 planes. If
        `exposures` lists the planes, this method divides nothing: it checks that the exposures fit
        frames at these times, and returns None.
        Raises UnknownPlanes if the times do not tell the planes. The error proposes exposures.
        """
        if self.has_exposures:
            listed = self.listed_exposures(clip)
            # If there are no exposures for the clip, `span` refuses the clip.
            if listed is not None:
                refuse_exposures_of_other_frames(clip, listed, times)
            return None

        first, count = self.window(planes)
        # `times.doubt` says why the times are not sure, "" if they are sure.
        if times.doubt:
            raise unknown_times(clip, times, first, count)
        # The names 1, 2, 4 show that frame 3 is missing. But the names do not tell when frame 4 was
        # taken. E.g. frame 1 was taken at 0 ms and frame 2 at 40 ms. Then frame 4 may be from 120
        # ms, but also from 100 ms or 150 ms. Only the time stamps of a film tell the time of frame
        # 4.
        if times.gaps and not times.is_film:
            raise unknown_times(clip, times, first, count)
        # Two clocks may tell the length of the clip in seconds: the time stamps of a film, and the
        # spike camera if `tick_hz` is known. If one of the two clocks is missing, the times are
        # taken as they are.
        if not (times.is_film and tick_hz):
            return times.plane_ranges(first, count)
        # The spike camera gives a second length of the clip: e.g. 2000 planes at 20,000 Hz are
        # 0.1 s. `until` returns the same times, but sets the end of the clip to begin + 0.1 s. If
        # this end contradicts the time stamps of the film, the returned times have a `doubt`, a
        # text for the user.
        seconds = Fraction(count) / Fraction(tick_hz)
        times_of_both = times.until(times.begin + seconds)
        if times_of_both.doubt:
            raise unknown_times(clip, times_of_both, first=first, count=count, tick_hz=tick_hz)
        return times_of_both.plane_ranges(first, count)

    def span(
        self,
        clip: str,
        frame: int,
        planes: int,
        ranges: Sequence[PlaneRange] | None = None,
    ) -> Span:
        """Return the planes of frame number `frame` of a clip, in a file of `planes` planes.

        Step 1 takes the planes that belong to the frame, moved by the offset. Step 2 keeps the
        fraction `share` in their middle. If the file lacks some of the kept planes, step 3 leaves
        these planes out. But if the user gave the numbers of the planes, step 3 refuses a frame
        that lacks planes.

        ranges: the result of `plane_ranges`, if the clip has one file. None: `exposures` lists the
        planes, or each frame has a file of its own.
        Raises DataError if `spike.exposure` does not list the frame, if the file has no plane of
        the frame, or if it lacks planes whose numbers the user gave.
        """
        # Steps 1 and 2. The planes that are left are first ... end - 1 of the file.
        of_frame = self._planes_of_frame(clip, frame, planes, ranges)
        first, end = of_frame.middle_part(self.share)
        # Step 3. Some of these planes may lie outside of the file. Two cases:
        #
        #     the user gave the numbers of the planes,    the numbers may be wrong, so `first` and
        #     by spike.exposure or spike.count            `end` stay, and the frame is refused below
        #     no numbers are given                        the offset has moved the planes out of the
        #                                                 file, so they are left out here
        has_numbers_of_user = self.has_exposures or self.count is not None
        if not has_numbers_of_user:
            first = min(max(first, 0), planes)
            end = min(end, planes)
        # `end <= first` means that no plane is left. `end` may even be below 0, after a large
        # negative offset.
        if first < 0 or end <= first or end > planes:
            raise self._outside(clip, frame, first, end, planes)
        # A plane has two numbers: as the file counts, and as the options count (see `Span`). From
        # the first plane of the frame to the first plane that is read, both numbers grow equally.
        # E.g. the frame has the planes 100 ... 155 of the file. They are read from plane 114 on:
        #
        #                              as the file counts    as the options count
        #     first of the frame       start    100          number_of_start     0
        #     first that is read       first    114          number_of_first    14 = 0 + (114 - 100)
        #
        # Without `first - start`, test_the_time_offset_moves_the_middle_of_whole_files fails.
        number_of_first = of_frame.number_of_start + (first - of_frame.start)
        # The middle of all planes of the frame: the numbers 0 ... 55 have the middle 27.5. The
        # middle does not depend on which of these planes are read.
        middle = of_frame.number_of_start + (of_frame.count - 1) / 2
        # `first`, `count` and `origin` describe the planes that are read. `length` and `middle`
        # describe all planes of the frame or file.
        return Span(
            first=first,
            count=end - first,
            origin=number_of_first,
            length=of_frame.length,
            middle=middle,
        )

    def _planes_of_frame(
        self, clip: str, frame: int, planes: int, ranges: Sequence[PlaneRange] | None
    ) -> _PlanesOfFrame:
        """Return the planes that belong to a frame, before the share and the limits of the file.

        frame: number of the frame. planes: number of planes of the file.
        ranges: the result of `plane_ranges`, if the clip has one file, else None.
        Raises DataError for a frame that `spike.exposure` lacks.
        """
        if self.has_exposures:
            # One file for the clip, and the option spike.exposure lists the planes. `_exposure` has
            # added the offset to `start`.
            start, count = self._exposure(clip, frame)
            return _PlanesOfFrame(start, count, number_of_start=0, length=count)
        if ranges is not None:
            # One file for the clip, and the times of the frames tell the planes.
            of_frame = ranges[frame]
            start = of_frame.first + nearest_plane(self.offset)
            count = of_frame.end - of_frame.first
            return _PlanesOfFrame(start, count, number_of_start=0, length=count)
        # One file for each frame. With offset 3, the frame begins at plane 3 of the file instead of
        # plane 0. In the options, the first plane of the frame still has the number 0, because the
        # numbers in the options do not contain the offset. So the offset is added to `start`, not
        # to `number_of_start`. `length` is the whole file, even if spike.count reads less of it:
        # `gt_plane_of` compares it with the number of planes that a clip name of Spk-GoPro tells,
        # e.g. 56.
        first_plane, count = self.window(planes)
        start = first_plane + nearest_plane(self.offset)
        return _PlanesOfFrame(start, count, number_of_start=first_plane, length=planes)

    def _exposure(self, clip: str, frame: int) -> tuple[int, int]:
        """Return (first plane, number of planes) that `exposures` lists for a frame.

        The offset is added to the first plane. Raises DataError if the frame is not listed.
        """
        listed = self.listed_exposures(clip)
        if listed is None:
            raise _unlisted_frame("does not list", clip, frame)
        # Without rows, the exposures repeat with a period, so every frame has an exposure.
        if listed.rows and frame >= len(listed.rows):
            raise _unlisted_frame(f"lists {len(listed.rows)} frames of", clip, frame)
        return listed.planes_of(frame, self.offset)

    def _outside(self, clip: str, frame: int, first: int, end: int, planes: int) -> DataError:
        """Return the error for a frame if its file lacks some of the planes first ... end - 1."""
        keys = "spike.first, spike.count"
        if self.has_exposures:
            keys = "spike.exposure"
        shift = ""
        if self.offset:
            shift = f", time offset {self.offset:g}"
        if end <= first:
            needs = f"frame {frame} of clip {clip} gets no plane"
        else:
            needs = f"frame {frame} of clip {clip} needs planes {first} to {end - 1}"
        return DataError(
            what=f"{needs} ({keys}{shift}), the file has {planes} planes",
            where=f"clip {clip}",
            expected=f"within 0 to {planes - 1}",
            do=f"correct {keys}, or restore the file",
        )

    def describe(self) -> str:
        """Return the text of these options that enters a digest.

        The text is "" for the defaults, which read whole files. For other options, it is a space
        and the repr. The text must stay, because digests of existing runs contain it
        (test_the_text_of_the_planes_in_a_digest_stays notices a changed text).
        """
        if self == Timing():
            return ""
        return f" {self}"


def _unlisted_frame(does: str, clip: str, frame: int) -> DataError:
    """Return the error for a frame that `spike.exposure` does not list.

    does: words of the error between "spike.exposure" and "clip". E.g. with "lists 2 frames of" the
        error says

        spike.exposure lists 2 frames of clip clip_07, which has a frame 3
    """
    return DataError(
        what=f"spike.exposure {does} clip {clip}, which has a frame {frame}",
        where=f"clip {clip}",
        expected="an exposure for every frame",
        do="complete spike.exposure",
    )
