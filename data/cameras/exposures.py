"""Read the option `spike.exposure`: which planes of one file belong to each frame of a clip.

    {"start": 0, "length": 20, "period": 25}    frame i has 20 planes, from plane 25 i on
    [[0, 20], [25, 20], [51, 20]]               a row [start, length] for each frame

`read_exposures` checks the option and returns {clip: `Exposures`}. `Exposures` computes the planes
of a frame. A plane is one read-out of the spike camera.

What must stay: the forms of the option, because option files have them, and the planes of each
form, because they are the spikes of a sample. Free to add: a new form, in `_exposures_of_clip`.

Tests (in tests/parts/data): test_data_json.py (forms), test_timing.py (planes)
"""

import math
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from data.cameras.dataset_info import MOST_PLANES
from utils.errors import DataError, OptionError
from utils.json_file import cause_in_words, read_json
from utils.user_path import advice_on, expand_path

# ---- The exposures of a clip --------------------------------------------------------------------

# Numbers of planes, with the limits that pydantic checks.
Start = Annotated[float, Field(strict=True, ge=0, le=MOST_PLANES, allow_inf_nan=False)]
# A length is at least half a plane, because half a plane is rounded to one plane.
Length = Annotated[float, Field(strict=True, ge=0.5, le=MOST_PLANES, allow_inf_nan=False)]


class Exposures(BaseModel, frozen=True, extra="forbid"):
    """The exposures of the frames of a clip, in planes of its one file.

    Either `rows` lists the exposures, or the exposures follow one another at a period:

        first plane of frame i = start + i * period, rounded
        number of planes = length, rounded

    E.g. with 24 frames per second and 20000 planes per second, the period is 833.33 planes. The
    frames begin at the planes 0, 833, 1667, 2500, ... Each start is computed from the exact period,
    so rounding errors do not add up. The length is rounded separately from the start, so exposures
    of equal length have equal numbers of planes.
    """

    start: Start = 0.0
    # The default 0.0 of `length` and `period` means that `rows` is given. 0.0 is below 0.5, the
    # lower limit of the type Length. Such a default is allowed, because pydantic does not check
    # defaults.
    length: Length = 0.0
    # `frames_in` divides by the period if there are no rows. The period in an option is never 0,
    # because pydantic refuses values of an option below 0.5.
    period: Length = 0.0
    # (start, length) of each frame.
    rows: Annotated[tuple[tuple[Start, Length], ...], Field(min_length=1)] = ()

    def planes_of(self, frame: int, offset: float = 0.0) -> tuple[int, int]:
        """Return (first plane, number of planes) of a frame.

        frame: number of the frame. With `rows`, the caller must check that the frame has a row.
        offset: number of planes that is added to the start.
        """
        if self.rows:
            start, length = self.rows[frame]
        else:
            start = self.start + frame * self.period
            length = self.length
        return nearest_plane(start + offset), nearest_plane(length)

    def frames_in(self, planes: int, offset: float = 0.0) -> int:
        """Return how many frames have an exposure that ends within a file of `planes` planes.

        With `rows`, returns the number of rows. Without rows, returns at least 1, even if the first
        exposure does not fit into the file. E.g. for an exposure of 20 planes and a file of 10
        planes, the result is 1. `Timing.span` then refuses frame 0 with a message.

        planes: number of planes of the file. offset: number of planes that is added to the starts.
        """
        if self.rows:
            return len(self.rows)
        # E.g. a file of 100 planes, with exposures of 20 planes every 25 planes:
        #
        #     frame            0      1      2      3      4
        #     planes from      0      25     50     75     100
        #     planes before    20     45     70     95     120, beyond the file: so 4 frames
        #
        # Begin with a number of frames that surely fit: the number of whole periods in the planes
        # after the first exposure, here 80 / 25, rounded down to 3. (If the loop below began with 1
        # frame, it would take long for a file of a billion planes.)
        first, count = self.planes_of(0, offset)
        planes_after_first = planes - first - count
        frames = max(int(planes_after_first / self.period), 1)  # in the example 3
        # Then add frames as long as the next exposure ends within the file. The next frame has the
        # number `frames`, because frames are counted from 0. In the example frame 3 is added, and
        # frame 4 is not. There may be more frames to add, because starts are rounded.
        while True:
            first, count = self.planes_of(frames, offset)  # the planes of the next frame
            # An exposure may end with the last plane of the file
            # (test_a_file_holds_each_frame_whose_exposure_ends_in_it).
            if first + count > planes:
                return frames
            frames += 1


def nearest_plane(time: float) -> int:
    """Return the nearest whole number. Half a plane is rounded up: 2.5 -> 3, -2.5 -> -2.

    round() is not used, because it rounds a half to the even number: 2.5 -> 2, but 3.5 -> 4.

    With round(), test_half_a_plane_is_rounded_up fails.
    """
    return math.floor(time + 0.5)


# ---- The option ---------------------------------------------------------------------------------

# The words after "expected" in the errors of this file.
EXPOSURE_FORM = (
    '{"start": planes, "length": planes, "period": planes}; {"<clip>": such an object, or a list '
    "with [start, length] of every frame}; or the name of a JSON file that holds one of these"
)
# {clip: its exposures}. Exposures are an object with the three keys, or a list of rows.
Tables = Annotated[dict[str, dict[str, Any] | list[Any]], Field(min_length=1)]
PERIODIC_KEYS = ("start", "length", "period")


def read_exposures(value: dict[str, Any] | str | None) -> dict[str, Exposures] | None:
    """Read the key `spike.exposure` of the options.

    value: one of
        {"start": 0, "length": 20, "period": 25}             for all clips
        {"clip1": {"start": 0, ...}, "clip2": [[0, 20], [25, 20]]}
        the name of a JSON file with one of the two forms above.
    Returns {clip: exposures}. The first form gives {"": exposures}: the key "" is for all clips
    that have no key of their own. Returns None if the option is not set.
    Raises OptionError for a wrong form, DataError for an unreadable file.
    """
    if value is None:
        return None
    where = "spike.exposure"
    table: Any = value
    if isinstance(value, str):
        where = expand_path(value)  # replaces ~ and $NAME
        table = _exposures_in(where)
    # An object with one of the keys "start", "length", "period" is for all clips. Any other object
    # has the names of clips as its keys.
    is_for_all_clips = isinstance(table, dict) and any(key in table for key in PERIODIC_KEYS)
    if is_for_all_clips:
        table = {"": table}

    try:
        entries = TypeAdapter(Tables).validate_python(table)
    except ValidationError as e:  # e.g. an empty object
        raise _wrong_form(e, where) from e
    exposures = {}
    for clip, entry in entries.items():
        try:
            exposures[clip] = _exposures_of_clip(entry)
        except ValueError as e:  # a ValidationError is a ValueError, too
            raise _wrong_form(e, where, clip) from e
    return exposures


def _wrong_form(error: ValueError, where: str, clip: str = "") -> OptionError:
    """Return the error for a spike.exposure that does not have an allowed form (EXPOSURE_FORM).

    where: the file with the exposures, or the option. clip: name of the clip with the wrong
    exposures; "" if they are for all clips.
    """
    for_clip = f" for clip {clip}" if clip else ""
    return OptionError(
        what=f"spike.exposure is not of the expected form{for_clip}: {cause_in_words(error)}",
        where=where,
        expected=EXPOSURE_FORM,
        do="correct spike.exposure",
    )


def _exposures_of_clip(entry: dict[str, Any] | list[Any]) -> Exposures:
    """Return the exposures of one clip. Raises ValueError, e.g. a ValidationError.

    entry: {"start": 0, "length": 20, "period": 25}, or a list of rows [[0, 20], [25, 20]].
    """
    if isinstance(entry, list):
        return Exposures.model_validate({"rows": entry})
    # The user must give all three keys. But each key has a default in `Exposures`, because a list
    # of rows has no such keys. So `Exposures` does not notice a missing key.
    for key in PERIODIC_KEYS:
        if key not in entry:
            raise ValueError(f"{key} is missing")
    return Exposures.model_validate(entry)


def _exposures_in(path: str) -> Any:
    """Return the contents of a file of exposures. Raises DataError."""
    try:
        return read_json(path)
    except (OSError, ValueError) as e:
        # E.g. for "$DATA/exposures.json" with a variable without a value, `advice_on` returns
        # "; set the variable $DATA, which has no value here". For a plain path, it returns "".
        raise DataError(
            what=f"cannot read the exposures: {cause_in_words(e)}",
            where=path,
            expected=EXPOSURE_FORM,
            do=f"correct spike.exposure{advice_on(path)}",
        ) from e
