"""Refuse a clip if the times of its frames do not tell which planes belong to which frame.

A plane is one read-out of the spike camera. If one spike file holds a whole clip, the times of the
frames tell the planes of each frame, or the option `spike.exposure` lists the planes. If the times
are in doubt, or if frames are missing, the planes could only be guessed. After a wrong guess, a
network would be trained with the spikes of other frames. So the clip is refused. The error proposes
exposures, i.e. the first plane and the number of planes of each frame. The user corrects them and
pastes them into the command line:

    correct these exposures where they are wrong, and give them (or a file that holds them):
    'spike.exposure={"clip_07": {"start": 0, "length": 40.0, "period": 40.0}}'

What must stay: the proposed exposures are a valid value of `spike.exposure`. Free to change: how
exposures are guessed, because the user corrects them.

Tests: tests/parts/data/test_frame_times.py reads a proposal as an option, and quotes some of the
words.
"""

import json
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from data.cameras.exposures import Exposures
from data.cameras.frame_times import FrameTimes
from utils.errors import DataError

# ---- The error ----------------------------------------------------------------------------------

# The beginning of `do`, the part of the error that says what the user should do.
ADVICE = "correct these exposures where they are wrong, and give them (or a file that holds them)"


class UnknownPlanes(DataError):
    """A clip has one spike file, and it is not known which planes in it belong to which frame.

    clip: name of the clip.
    proposal: guessed exposures of this clip, as `spike.exposure` takes them for a clip: a dict with
        start, length and period, or a list of rows [start, length].
    """

    def __init__(self, what: str, clip: str, proposal: Any) -> None:
        self.clip = clip
        self.proposal = proposal
        argument = exposure_argument({clip: proposal})
        super().__init__(
            what=what,
            where=f"clip {clip}",
            expected="a known time of each frame, none missing between them",
            do=f"{ADVICE}: {argument}",
        )


def error_for_all_clips(errors: Sequence[UnknownPlanes]) -> DataError:
    """Return one error for several clips. It proposes one `spike.exposure` for all clips.

    With one error for each clip, a user would correct one clip, start again, and get the error of
    the next clip.

    errors: the errors of the clips, at least one.

    If only the first error is returned, test_several_clips_are_refused_at_once fails.
    """
    first = errors[0]
    # An UnknownPlanes is for one clip, so the error for several clips is a DataError. The error for
    # a single clip is a DataError, too, so that callers get one class.
    if len(errors) == 1:
        return DataError(first.what, first.where, first.expected, first.do)
    proposals = {error.clip: error.proposal for error in errors}
    argument = exposure_argument(proposals)
    return DataError(
        what="; ".join(error.what for error in errors),
        where=", ".join(error.where for error in errors),
        expected=first.expected,
        do=f"{ADVICE}: {argument}",
    )


def exposure_argument(table: dict[str, Any]) -> str:
    """Return the argument of a command line that sets `spike.exposure`.

    table: clip -> exposures. E.g. {"clip_07": [[0, 40]]} gives, with the quotes for the shell,
    'spike.exposure={"clip_07": [[0, 40]]}'.
    """
    return f"'spike.exposure={json.dumps(table)}'"


# ---- Times in doubt -----------------------------------------------------------------------------


def unknown_times(
    clip: str, times: FrameTimes, first: int, count: int, tick_hz: float | None = None
) -> UnknownPlanes:
    """Return the error for a clip with one spike file and no spike.exposure. The caller raises it.

    The error says why the times are not sure, and proposes exposures. E.g.

        one spike file for the 4 frames of clip clip_07: 1 of 5 frames is missing: frame 3

    first, count: the planes first ... first + count - 1 of the file belong to the frames.
    tick_hz: planes per second, from the calibration, if the length of a film contradicts the number
        of planes. The guess then uses the seconds of the film, because the planes of the file do
        not end with the film. None: there is no such contradiction.
    """
    what = f"one spike file for the {len(times)} frames of clip {clip}: {times.in_words()}"
    return UnknownPlanes(what, clip, _guessed_exposures(times, first, count, tick_hz))


def _guessed_exposures(
    times: FrameTimes, first: int, count: int, tick_hz: float | None
) -> dict[str, float] | list[list[float]]:
    """Guess exposures for a clip if its times are not sure.

    There are three guesses:

        frames at equal distances       equal numbers of planes, e.g. 120 planes for 3 frames:
                                        {"start": 0, "length": 40.0, "period": 40.0}
        other frames, with `tick_hz`    the seconds of the film, turned into planes, because the
                                        planes of the file do not end with the film
        other frames                    the planes, divided by the times of the frames

    The first and the last guess assume that the first plane was recorded at the start of the clip,
    and the last plane at its end.

    times: times of the frames, which are not sure.
    first, count: the planes first ... first + count - 1 of the file belong to the frames.
    tick_hz: as in `unknown_times`.

    Returns {"start": ..., "length": ..., "period": ...}, or a list of rows [start, length].
    """
    if times.is_even:
        length = round(count / len(times), 3)
        return {"start": first, "length": length, "period": length}
    if tick_hz:
        return _rows_by_seconds(times, first, tick_hz)
    rows: list[list[float]] = []
    for of_frame in times.plane_ranges(first, count):
        # E.g. the range (30, 40) has 10 planes. An exposure has at least one plane.
        length = max(of_frame.end - of_frame.first, 1)
        rows.append([of_frame.first, length])
    return rows


def _rows_by_seconds(times: FrameTimes, first: int, tick_hz: float) -> list[list[float]]:
    """Return a row [start, length] in planes for each frame of a film, from its seconds.

    E.g. a frame from 0.5 s to 0.6 s of the film, at 1000 planes per second, has the row [500, 100].

    first: the plane at the start of the film. tick_hz: planes per second.
    """
    rows = []
    # Compute with exact fractions, and round only the results. `tick_hz` becomes a fraction, too,
    # because a fraction times a float is a rounded float.
    for start, end in zip(times.starts, times.ends, strict=True):
        begin = (start - times.begin) * Fraction(tick_hz)  # in planes, 0 at the start of the film
        length = (end - start) * Fraction(tick_hz)
        rows.append([first + _with_three_digits(begin), _with_three_digits(length)])
    return rows


# ---- Exposures of other frames ------------------------------------------------------------------


def refuse_exposures_of_other_frames(clip: str, listed: Exposures, times: FrameTimes) -> None:
    """Raise UnknownPlanes if the exposures of a user do not fit the frames that exist.

    listed: the exposures of a clip as the user gives them.
    times: the times of the existing frames. The error proposes the exposures of these frames.
    """
    if listed.rows:
        _refuse_rows_of_missing_frames(clip, listed, times)
    else:
        _refuse_period_of_uneven_frames(clip, listed, times)


def _refuse_rows_of_missing_frames(clip: str, listed: Exposures, times: FrameTimes) -> None:
    """Raise UnknownPlanes if frames are missing, and there is not one row for each existing frame.

    E.g. frame 2 of 4 frames is missing, so 3 frames exist, but the list has 4 rows. The list
    probably has rows for the missing frames, too. The error proposes the list without these rows.

    test_a_table_of_other_frames_than_are_there_is_refused notices wrong rows.
    """
    if not times.gaps or len(listed.rows) == len(times):
        return
    rows = []
    for number in times.numbers_in_whole_clip():  # e.g. 0, 1, 3 if frame 2 is missing
        # A list that is too short has no row for the last frames. The user must add the missing
        # rows.
        if number < len(listed.rows):
            start, length = listed.rows[number]
            rows.append([start, length])
    what = f"spike.exposure lists {len(listed.rows)} frames of clip {clip}"
    raise UnknownPlanes(f"{what}: {times.in_words()}", clip, rows)


def _refuse_period_of_uneven_frames(clip: str, listed: Exposures, times: FrameTimes) -> None:
    """Raise UnknownPlanes if the exposures have one period, but the frames have several distances.

    The error proposes a list with a row for each frame.
    """
    if times.is_even:
        return
    rows = []
    for start in times.starts:
        # Frames at the usual distance, `times.step`, are one period apart. E.g. a frame that
        # follows a gap of one missing frame is 2 periods later than the frame before the gap.
        periods = (start - times.begin) / times.step
        begin = Fraction(listed.start) + periods * Fraction(listed.period)
        rows.append([_with_three_digits(begin), listed.length])
    cause = times.in_words() or "the frames follow one another at several distances"
    what = f"spike.exposure gives one period for the {len(times)} frames of clip {clip}"
    raise UnknownPlanes(f"{what}: {cause}", clip, rows)


def _with_three_digits(planes: Fraction) -> float:
    """Return a number of planes as messages show it, with three digits after the point.

    A user has to read and correct the number, so it must be short. A thousandth of a plane hardly
    matters, because exposures are rounded to whole planes later (`Exposures.planes_of`).
    """
    return round(float(planes), 3)
