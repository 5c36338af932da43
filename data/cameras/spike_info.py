"""What is known of spike files: dataset.json, and which planes belong to which frame.

A plane is one read-out of the spike camera. Two things are described here:

`DatasetInfo` holds the contents of a dataset.json beside the spike files, for example

    {"format": 1, "h": 360, "w": 640, "planes": 56, "gt_plane": 24, "rate": 0.5, "light": "linear",
     "clips": {"GOPR0372_07_00": {"planes": 56, "offset": 0}}}

`Timing` holds the keys `spike.first`, `spike.count` and `spike.exposure` of an option file, and
decides which planes are read for a frame. Spike files come in two kinds:

    * one file per frame: the frame has the planes first ... first + count - 1 of its file;
    * one file per clip: either `spike.exposure` lists the planes of each frame (`Exposures`), or
      the planes follow from the times of the frames (`Timing.plane_ranges`).

The result is a `Span` for each frame. The last third of the file has the errors for data that do
not fit.

What must stay, and which test notices (in tests/parts/data):

    test_data_json.py       The keys of dataset.json and their meanings, because published data sets
                            have such files.
    test_frame_times.py,    The planes of each frame, because they are the spikes of a sample. Also
    test_spike_info.py      the words of the errors.
    test_spike_info.py      The `repr` of `DatasetInfo` and of `Timing`. It is part of digests by
                            which a run recognises its data. So a new field of these two classes
                            must not be in the repr while it has its default. Otherwise old runs
                            would not resume.

All functions with a name that begins with _ may change.
"""

import dataclasses
import difflib
import json
import math
import re
import reprlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from data.cameras.frame_times import FrameTimes
from data.spike.formats import SpikeFileError
from utils.errors import DataError, OptionError
from utils.json_file import read_json
from utils.user_path import advice_on, expand_path

FILE_NAME = "dataset.json"
FORMAT = 1
# Keys that "clips" in dataset.json may set for one clip, in place of the value for all clips.
KEYS_OF_ONE_CLIP = ("h", "w", "flip", "rate", "light", "calibration")
# Planes for each 240-fps frame of the published Spk-GoPro streams: the frame itself, and 7 frames
# that are interpolated between it and the next frame.
GOPRO_INTERPOLATE = 8
# A clip name of Spk-GoPro, GOPR0372_07_00, has the number of averaged frames in the middle.
GOPRO_NAME = re.compile(r"GOPR\d+_(\d\d)_\d\d")
# Upper bound of planes in a file, about 17 years at 2 kHz. Sums of such numbers fit into 64 bits.
MOST_PLANES = 2**40
# The last parts of several error texts: what was expected, and what to do.
EXPOSURE_FORM = (
    '{"start": planes, "length": planes, "period": planes}; {"<clip>": such an object, or a list '
    "with [start, length] of every frame}; or the name of a JSON file that holds one of these"
)
ADVICE = "correct these exposures where they are wrong, and give them (or a file that holds them)"

# Types of the values in dataset.json, with the limits that pydantic checks.
Side = Annotated[int, Field(ge=1, le=2**16)]  # height or width of a plane
Planes = Annotated[int, Field(ge=1, le=MOST_PLANES)]  # a number of planes
Plane = Annotated[int, Field(ge=0, lt=MOST_PLANES)]  # the number of a plane, counted from 0
Rate = Annotated[float | int, Field(gt=0, allow_inf_nan=False)]
Light = Literal["linear", "display"]


@contextmanager
def spike_errors_as_data_errors() -> Generator[None]:
    """Turn a SpikeFileError into a DataError with the same four parts.

    data/spike needs numpy alone, so it cannot raise the errors of this project itself.
    """
    try:
        yield
    except SpikeFileError as e:
        raise DataError(e.what, e.where, e.expected, e.do) from e


# ---- dataset.json ----------------------------------------------------------------------------


class ClipKeys(BaseModel, strict=True, extra="allow"):
    """The keys of one clip in "clips" of dataset.json, with the types that they must have.

    A key means what it means in `DatasetInfo`, but for this clip alone. Other keys are allowed,
    because the programs that make data record there how a clip was made.
    """

    h: Side | None = None
    w: Side | None = None
    flip: bool | None = None
    rate: Rate | None = None
    light: Light | None = None
    calibration: dict[str, Any] | None = None
    planes: Planes | None = None
    gt_plane: Plane | None = None
    offset: Annotated[int, Field(gt=-MOST_PLANES, lt=MOST_PLANES)] | None = None


@dataclass(frozen=True)
class DatasetInfo:
    """The contents of a dataset.json. A value is None if the file does not contain it.

    Digests of runs hold the repr of this object: do not rename or reorder fields.
    """

    path: str = ""  # of the file; "" if there is no dataset.json
    h: Side | None = None  # height of a spike plane
    w: Side | None = None  # width of a spike plane
    flip: bool | None = None  # whether rows are stored bottom first
    planes: Planes | None = None  # number of planes in a file
    gt_plane: Plane | None = None  # number of the plane at which the sharp frame was taken
    rate: Rate | None = None  # spikes per plane at full light
    light: Light | None = None  # what the sensor integrated, "linear" light or "display" values
    # Number of planes for each raw frame. A raw frame is a frame of the fast video from which clip
    # and spikes were made.
    interpolate: Annotated[int, Field(ge=1, le=MOST_PLANES)] = GOPRO_INTERPOLATE
    # The contents of a file of scripts/calibrate.py. The repr leaves it out, because digests
    # contain the calibration of `DatSpikes` already.
    calibration: dict[str, Any] | None = field(default=None, repr=False)
    # Name of a clip -> its values, with the keys of `ClipKeys`. `offset` is the number of raw
    # frames from the middle of an exposure to its sharp frame.
    clips: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of_clip(self, clip: str) -> "DatasetInfo":
        """Return what is known of the spikes of one clip.

        A value of the clip takes the place of the value for all clips (KEYS_OF_ONE_CLIP).

        What must stay: returns this object itself if the clip has no such value. So the caller sees
        whether the clip differs, and most clips share one object.
        """
        values_of_clip = {}
        for key, value in self.clips.get(clip, {}).items():
            if key in KEYS_OF_ONE_CLIP and value is not None:
                values_of_clip[key] = value
        if not values_of_clip:
            return self
        return dataclasses.replace(self, **values_of_clip)

    @property
    def trained_rate(self) -> float | str | None:
        """The rate; "match" if each clip has its own rate; None if it is unknown."""
        if self.rate is not None:
            return self.rate
        every_clip_has_a_rate = all(clip.get("rate") for clip in self.clips.values())
        if self.clips and every_clip_has_a_rate:
            return "match"
        return None

    def planes_of(self, clip: str, usual: int) -> tuple[int, int]:
        """Return the planes of a clip's files, and the least number of planes of its last file.

        usual: the number of planes that most files have. It is used if dataset.json has no number.

        The last file may be shorter. A raw frame has `interpolate` planes: the plane of the frame
        itself, and planes interpolated between it and the next raw frame. The last raw frame has no
        next one, so `interpolate` - 1 planes are missing: 49 remain of 56 planes, with 8 planes per
        raw frame. If sharp frames are `offset` raw frames later than the middle of their exposure,
        the planes of `offset` raw frames are missing too.
        """
        values_of_clip = self.clips.get(clip, {})
        planes = usual
        if self.planes is not None:
            planes = self.planes
        if values_of_clip.get("planes") is not None:
            planes = values_of_clip["planes"]
        # A negative offset (a sharp frame before the middle) takes no planes from the last file.
        offset = max(values_of_clip.get("offset") or 0, 0)
        missing_planes = self.interpolate - 1 + offset * self.interpolate
        return planes, planes - missing_planes

    def gt_plane_of(self, clip: str, planes: int) -> int | None:
        """Return the plane of the sharp frame in a file of `planes` planes.

        The plane comes from dataset.json, or from a clip name of Spk-GoPro. Returns None if neither
        gives it.

        The name GOPR0372_07_00 says that n = 7 raw frames were averaged. Between two raw frames
        there are 7 interpolated frames, and each frame is a plane. So raw frame i is plane 8 i, and
        a file has 8 n = 56 planes. The last file of a clip may lack the last 7 planes. The sharp
        frame is the middle raw frame, i = (n - 1) / 2 = 3, so it is plane 8 i = 4 n - 4 = 24.
        """
        plane_of_clip = self.clips.get(clip, {}).get("gt_plane")
        if plane_of_clip is not None:
            return plane_of_clip
        if self.gt_plane is not None:
            return self.gt_plane
        match = GOPRO_NAME.fullmatch(clip)
        if not match:
            return None
        n = int(match[1])
        if n == 0:
            return None
        # A file with another number of planes was made in another way, so its name says nothing.
        most_planes = 8 * n
        least_planes = most_planes - 7
        if least_planes <= planes <= most_planes:
            return 4 * n - 4
        return None


def nearest_info(path: Path) -> DatasetInfo:
    """Return the dataset.json of the data set that a spike file or folder belongs to.

    path: a spike file, a folder of spike files or of a clip. Layout of a data set:
    <root>/dataset.json and <root>/<split>/<clip>/spike/<file>. Folders are tried from the nearest
    to the root. Returns an empty DatasetInfo if none has a dataset.json.
    """
    parents = path.resolve().parents  # the nearest first
    if path.is_dir():
        # Of <root>/<split>/<clip>/spike, the root is the third parent.
        folders = [path, *parents[:3]]
    else:
        # Of <root>/<split>/<clip>/spike/<file>, the root is the fourth parent.
        folders = [path.parent, *parents[:4]]
    for folder in folders:
        info = load_info(str(folder))
        if info.path:
            return info
    return DatasetInfo()


def load_info(dataroot_spike: str) -> DatasetInfo:
    """Return the dataset.json in the spike folder or in its parent, which holds the splits.

    Returns an empty DatasetInfo if there is no such file.
    Raises DataError for a file that is no JSON object of this format, and for values of a wrong
    type.
    """
    root = Path(dataroot_spike)
    for path in (root / FILE_NAME, root.parent / FILE_NAME):
        if path.is_file():
            return _read_info(path)
    return DatasetInfo()


def _read_info(path: Path) -> DatasetInfo:
    """Read and check a dataset.json. Raises DataError."""
    clip_in_message = ""  # "clip a: " while the values of clip a are checked
    try:
        fields_of_info = _fields_in(read_json(path))
        # The strict mode of JSON accepts neither "56" nor true as a number.
        info = TypeAdapter(DatasetInfo).validate_json(json.dumps(fields_of_info), strict=True)
        for clip, values_of_clip in info.clips.items():
            clip_in_message = f"clip {clip}: "
            ClipKeys.model_validate_json(json.dumps(values_of_clip))
            _refuse_misspelt_keys(values_of_clip)
    except (OSError, ValueError) as e:
        raise DataError(
            what=f"dataset.json cannot be used: {clip_in_message}{_cause_in_words(e)}",
            where=str(path),
            expected=f'a JSON object with "format": {FORMAT}, "h", "w", "flip", "planes", "rate", '
            '"light", "gt_plane"',
            do="correct it, or make the data set again",
        ) from e
    # The path is set last, because the name of a folder may have bytes that JSON cannot hold.
    return dataclasses.replace(info, path=str(path))


def _fields_in(table: Any) -> dict[str, Any]:
    """Return the fields of `DatasetInfo` that the contents of a file give. Raises ValueError.

    table: what the JSON file holds. Its other keys are ignored, because newer versions may add
    some.
    """
    if not isinstance(table, dict):
        raise ValueError("it is no JSON object")
    if table.get("format") != FORMAT:
        raise ValueError(f"format is {table.get('format')!r}")
    # The recipe holds the settings with which scripts/prepare_gopro_spike.py made the clips. Two
    # values come from the recipe: `interpolate`, and in older files also `light`.
    recipe = table.get("recipe")
    if recipe is None:
        recipe = {}
    if not isinstance(recipe, dict):
        raise ValueError("recipe is no JSON object")
    values = dict(table)
    values["interpolate"] = recipe.get("interpolate")
    values.setdefault("light", recipe.get("light"))
    fields_of_info = {}
    for one_field in dataclasses.fields(DatasetInfo):
        name = one_field.name
        # `path` is not in the file: it is the path of the file.
        if name != "path" and values.get(name) is not None:
            fields_of_info[name] = values[name]
    return fields_of_info


def _refuse_misspelt_keys(values_of_clip: dict[str, Any]) -> None:
    """Raise ValueError for a key of a clip that is probably misspelt, such as "gt_plan".

    A key that resembles no known key is a note of the user, and is allowed.
    """
    valid_keys = list(ClipKeys.model_fields)
    for key in values_of_clip:
        # cutoff: "gt_plan" and "gt_plane" have a similarity of 0.93. Below 0.8 lie other words.
        similar_keys = difflib.get_close_matches(key.lower(), valid_keys, n=1, cutoff=0.8)
        if key not in valid_keys and similar_keys:
            raise ValueError(f"the key {key!r} is unknown; the nearest one is {similar_keys[0]}")


def _cause_in_words(e: Exception) -> str:
    """Return the cause of an error in one line: "clips.a.h is 0: Input should be ..."."""
    if isinstance(e, ValidationError):
        first = e.errors()[0]
        # `reprlib` shortens the value, because it may be the table of a whole data set.
        value = reprlib.repr(first["input"])
        key = ".".join(str(name) for name in first["loc"])  # ("clips", "a", "h") -> "clips.a.h"
        return f"{key} is {value}: {first['msg']}".strip()
    # Only the reason of the system, because the whole text of an OSError repeats the path.
    if isinstance(e, OSError) and e.strerror:
        return e.strerror
    return str(e)


# ---- The planes of a frame -------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """The planes that are read for one frame. `Timing.span` makes it, and `DatSpikes` reads it.

    Planes are counted in two ways:

        in the file      from the first plane of the file: `first`
        in the options   as spike.center and gt_plane count: from the first plane of the file if
                         each frame has a file, else from the first plane of the exposure:
                         `origin`, `middle`

    Example: a clip has one file. The exposure of the frame is the planes 100 ... 155 of the file.
    `Timing.share` is 0.5, so the middle half of them is read, the planes 114 ... 141:

        first=114    the first plane that is read, counted from the start of the file
        count=28     the number of planes that are read
        origin=14    the first plane that is read, counted from the start of the exposure
        length=56    the number of planes of the exposure
        middle=27.5  the middle of the exposure, between its planes 27 and 28
    """

    first: int  # the planes first ... first + count - 1 of the frame's file are read
    count: int
    origin: int  # number of the first plane that is read, as the options count
    # Number of planes of the frame, before a part is chosen: of the exposure, or of the whole file.
    length: int
    # Middle of the planes that belong to the frame, as the options count. If the file lacks some of
    # the planes, the middle of the planes that are read is another plane.
    middle: float


class _PlanesOfFrame(NamedTuple):
    """The planes start ... start + count - 1 of a file, which belong to one frame."""

    start: int  # counted from the start of the file
    count: int
    number_of_start: int  # number of the plane `start`, as the options count (see `Span`)
    length: int  # number of planes of the exposure, or of the whole file


Start = Annotated[float, Field(strict=True, ge=0, le=MOST_PLANES, allow_inf_nan=False)]
# At least half a plane, which is rounded to one plane.
Length = Annotated[float, Field(strict=True, ge=0.5, le=MOST_PLANES, allow_inf_nan=False)]


class Exposures(BaseModel, frozen=True, extra="forbid"):
    """The exposures of the frames of a clip, in planes of its one file.

    Either `rows` lists the exposures, or the exposure of frame i begins at start + i period and has
    `length` planes.

    Times may lie between planes. E.g. a camera of 24 frames a second has the period 20000 / 24 =
    833.33 planes, so its frames begin at the planes 0, 833, 1667, 2500, ... Each start is rounded
    by itself, so rounding errors do not add up. The length is rounded alone, too, so all exposures
    of one length have as many planes.
    """

    start: Start = 0.0
    # The default 0.0 means "not given, because `rows` is". It is below the limit of Length, but
    # pydantic checks only values that are given.
    length: Length = 0.0
    # At least half a plane. With a shorter period a file would hold frames without end.
    period: Length = 0.0
    # (start, length) of the exposure of each frame.
    rows: Annotated[tuple[tuple[Start, Length], ...], Field(min_length=1)] = ()

    def planes_of(self, frame: int, offset: float = 0.0) -> tuple[int, int]:
        """Return (first plane, number of planes) of a frame.

        frame: number of the frame; the caller checks that there is a row for it.
        offset: planes by which the start moves.
        """
        if self.rows:
            start, length = self.rows[frame]
        else:
            start = self.start + frame * self.period
            length = self.length
        return nearest_plane(start + offset), nearest_plane(length)


@dataclass(frozen=True)
class Timing:
    """Which planes of the spike files are read.

    `DatSpikes.exposures` calls `plane_ranges` if a clip has one file, and then `span` for each
    frame. E.g. the defaults read whole files. So a file of 56 planes gives the planes 0 ... 55,
    with the middle between the planes 27 and 28:

        Timing().span("clip_07", frame=0, planes=56)
        Span(first=0, count=56, origin=0, length=56, middle=27.5)

    Digests of runs hold the repr of this object: do not rename or reorder fields.
    """

    # If each frame has a file, its planes first ... first + count - 1 are read. count None: all
    # planes to the end of the file. first "central": the `count` planes in the middle.
    first: int | Literal["central"] = 0
    count: int | None = None
    # The option `spike.exposure`: {clip: its exposures}, for clips that have one file. The key ""
    # is for every clip without a key of its own. None if the option is not given. Then each frame
    # has a file, or a clip has one file and `plane_ranges` divides it by the times of the frames.
    exposures: dict[str, Exposures] | None = None
    # The next two come from the calibration of the cameras. `offset` is a number of planes that is
    # added to the first plane, because the clocks of the two cameras differ.
    offset: float = 0.0
    # `share` is the fraction of the planes of an exposure that is read, in the middle of the
    # exposure. The repr leaves it out, because digests contain the calibration with its share. They
    # would not need `offset` either, but without it the digests of old runs would change.
    share: float = field(default=1.0, repr=False)

    @property
    def has_exposures(self) -> bool:
        """Whether the option `spike.exposure` says which planes of one file belong to a frame."""
        return self.exposures is not None

    def table(self, clip: str) -> Exposures | None:
        """Return the exposures of a clip, or None if `exposures` has no entry for the clip."""
        if self.exposures is None:
            return None
        for_every_other_clip = self.exposures.get("")
        return self.exposures.get(clip, for_every_other_clip)

    def frames(self, clip: str, planes: int) -> int:
        """Return how many frames the one file of a clip holds.

        With `rows`, the number of rows. Without, the number of exposures that end within the file.
        Returns at least 1, even if the first exposure does not fit: `span` then refuses this frame
        with a message.

        planes: number of planes in the file.
        """
        table = self.table(clip)
        if table is None:
            return 1
        if table.rows:
            return len(table.rows)
        # Begin with a number that is not too large: the whole periods between the end of the first
        # exposure and the end of the file. E.g. 100 planes, and exposures of 20 planes every 25
        # planes: after the first exposure 80 planes are left, which are 3 periods. If the loop
        # below began with 1 frame, it would take long for a file of a billion planes.
        first, count = table.planes_of(0, self.offset)
        planes_after_first = planes - first - count
        frames = max(int(planes_after_first / table.period), 1)
        # Then add frames as long as the next exposure ends within the file, because the division
        # does not count the first exposure, and because starts are rounded. In the example, the
        # exposures 0 to 3 end at the planes 20, 45, 70 and 95. Exposure 4 would end at 120, so
        # there are 4 frames.
        while True:
            first, count = table.planes_of(frames, self.offset)
            if first + count > planes:
                return frames
            frames += 1

    def window(self, planes: int) -> tuple[int, int]:
        """Return (first plane, number of planes) that `first` and `count` choose of a file.

        planes: number of planes in the file.
        """
        if self.first == "central":
            count = planes
            if self.count is not None:
                count = min(self.count, planes)
            # As many planes before as after: 10 of 56 planes begin at plane 23.
            return (planes - count) // 2, count
        count = self.count
        if count is None:
            count = planes - self.first
        return self.first, count

    def plane_ranges(
        self, clip: str, planes: int, times: FrameTimes, tick_hz: float | None = None
    ) -> list[tuple[int, int]] | None:
        """Decide which planes of the one file of a clip belong to which of its frames.

        Returns (first plane, plane after the last) for each frame: [(0, 40), (40, 80)] for two
        frames of 40 planes. Returns None if `exposures` says the planes of each frame.

        planes: number of planes in the file. times: when the frames were taken.
        tick_hz: planes per second, if known.

        Frames at equal distances get equal numbers of planes. Frames of a film at other distances
        get the planes of their times. A list of exposures must have a row for each frame. A single
        start, length and period needs frames at equal distances.
        Raises UnknownPlanes, which proposes exposures, if the times do not tell the planes.
        """
        if self.exposures is not None:
            table = self.table(clip)
            # Without a table for the clip, `span` refuses it.
            if table is not None:
                _refuse_exposures_of_other_frames(clip, table, times)
            return None

        first, count = self.window(planes)
        # `times.doubt` says why the times are not sure, "" if they are sure.
        if times.doubt:
            raise _unknown_times(clip, times, first, count)
        # The names 1, 2, 4 show that frame 3 is missing. But such numbers are no times, so nobody
        # knows whether frames 2 and 4 were taken at twice the usual distance. A film has times.
        if times.gaps and not times.is_film:
            raise _unknown_times(clip, times, first, count)
        # Two clocks give the length of the clip in seconds: the film, and the number of planes
        # divided by `tick_hz`. If they do not agree, `until` returns times with a doubt.
        if times.is_film and tick_hz:
            seconds = Fraction(count) / Fraction(tick_hz)
            times = times.until(times.begin + seconds)
            if times.doubt:
                raise _unknown_times(clip, times, first, count, tick_hz)
        return times.plane_ranges(first, count)

    def span(
        self,
        clip: str,
        frame: int,
        planes: int,
        ranges: Sequence[tuple[int, int]] | None = None,
    ) -> Span:
        """Return the planes of frame number `frame` of a clip, in a file of `planes` planes.

        ranges: the result of `plane_ranges`, if the clip has one file. None: `exposures` says the
        planes, or there is a file for each frame.
        Raises DataError if the planes reach outside of the file, and for a frame that
        `spike.exposure` lacks.

        What must stay: the result, because it says which spikes a sample has.
        tests/parts/data/test_frame_times.py and test_spike_info.py notice.
        """
        of_frame = self._planes_of_frame(clip, frame, planes, ranges)
        # The frame was exposed only during the share in the middle of its planes. Read these
        # planes, first ... end - 1. They are at least one plane, unless the frame has no plane.
        exposed = nearest_plane(of_frame.count * self.share)
        if of_frame.count > 0:
            exposed = max(exposed, 1)
        first = of_frame.start + (of_frame.count - exposed) // 2
        end = first + exposed

        has_numbers_of_user = self.exposures is not None or self.count is not None
        if not has_numbers_of_user:
            # After a shift by the offset, planes may lie outside of the file. Leave them out. If
            # the user gave plane numbers, refuse such planes below: the numbers may be wrong.
            first = min(max(first, 0), planes)
            end = min(end, planes)
        if first < 0 or end <= first or end > planes:
            raise self._outside(clip, frame, first, end, planes)
        return Span(
            first=first,
            count=end - first,
            origin=of_frame.number_of_start + (first - of_frame.start),
            length=of_frame.length,
            middle=of_frame.number_of_start + (of_frame.count - 1) / 2,
        )

    def _planes_of_frame(
        self, clip: str, frame: int, planes: int, ranges: Sequence[tuple[int, int]] | None
    ) -> "_PlanesOfFrame":
        """Return the planes that belong to a frame, before the share and the limits of the file.

        The arguments are those of `span`. Raises DataError for a frame that `spike.exposure` lacks.
        """
        if self.exposures is not None:
            # One file for the clip, and the user lists the exposures.
            start, count = self._exposure(clip, frame)
            return _PlanesOfFrame(start, count, number_of_start=0, length=count)
        if ranges is not None:
            # One file for the clip, and the times of the frames tell the planes.
            first_plane, plane_after = ranges[frame]
            start = first_plane + nearest_plane(self.offset)
            count = plane_after - first_plane
            return _PlanesOfFrame(start, count, number_of_start=0, length=count)
        # One file for the frame. The options count from the first plane of the file, and a shift by
        # the offset does not change the numbers.
        first_plane, count = self.window(planes)
        start = first_plane + nearest_plane(self.offset)
        return _PlanesOfFrame(start, count, number_of_start=first_plane, length=planes)

    def _exposure(self, clip: str, frame: int) -> tuple[int, int]:
        """Return (first plane, number of planes) of a frame in `exposures`. Raises DataError."""
        table = self.table(clip)
        if table is None:
            raise _unlisted_frame("does not list", clip, frame)
        if table.rows and frame >= len(table.rows):
            raise _unlisted_frame(f"lists {len(table.rows)} frames of", clip, frame)
        return table.planes_of(frame, self.offset)

    def _outside(self, clip: str, frame: int, first: int, end: int, planes: int) -> DataError:
        """Return the refusal of a frame if its file lacks some of the planes first ... end - 1."""
        keys = "spike.exposure" if self.has_exposures else "spike.first, spike.count"
        shift = f", time offset {self.offset:g}" if self.offset else ""
        needs = f"frame {frame} of clip {clip} needs planes {first} to {end - 1} ({keys}{shift})"
        return DataError(
            what=f"{needs}, the file has {planes} planes",
            where=f"clip {clip}",
            expected=f"within 0 to {planes - 1}",
            do=f"correct {keys}, or restore the file",
        )

    def describe(self) -> str:
        """Return a text for digests: "" for the defaults (whole files), else a space and the repr.

        What must stay: the text, because digests of existing runs contain it.
        """
        if self == Timing():
            return ""
        return f" {self}"


def nearest_plane(time: float) -> int:
    """Return the nearest whole number. Half a plane is rounded up: 2.5 -> 3, -2.5 -> -2.

    round() would take the even number: 2.5 -> 2, but 3.5 -> 4.
    """
    return math.floor(time + 0.5)


# ---- spike.exposure --------------------------------------------------------------------------

# {clip: its exposures}, with the key "" for clips without a key of their own. Exposures are an
# object or a list of rows.
Tables = Annotated[dict[str, dict[str, Any] | list[Any]], Field(min_length=1)]
# The keys of such an object. All of them are needed.
PERIODIC_KEYS = ("start", "length", "period")


def read_exposures(value: dict[str, Any] | str | None) -> dict[str, Exposures] | None:
    """Read the key `spike.exposure` of the options.

    value: one of
        {"start": 0, "length": 20, "period": 25}             for all clips
        {"clip1": {"start": 0, ...}, "clip2": [[0, 20], [25, 20]]}
        the name of a JSON file with one of these.
    Returns clip -> exposures, with the key "" for all clips; None if the key is not set.
    Raises OptionError for a wrong form, DataError for an unreadable file.
    """
    if value is None:
        return None
    where = "spike.exposure"
    table: Any = value
    if isinstance(value, str):
        where = expand_path(value)
        table = _exposures_in(where)
    # An object with one of the keys "start", "length", "period" is meant for all clips.
    is_for_all_clips = isinstance(table, dict) and any(key in table for key in PERIODIC_KEYS)
    if is_for_all_clips:
        table = {"": table}

    exposures = {}
    clip = ""  # for the message
    try:
        for clip, entry in TypeAdapter(Tables).validate_python(table).items():
            exposures[clip] = _exposures_of_clip(entry)
    except ValidationError as e:
        for_clip = f" for clip {clip}" if clip else ""
        raise OptionError(
            what=f"spike.exposure is not of the expected form{for_clip}: {_cause_in_words(e)}",
            where=where,
            expected=EXPOSURE_FORM,
            do="correct spike.exposure",
        ) from e
    return exposures


def _exposures_of_clip(entry: dict[str, Any] | list[Any]) -> Exposures:
    """Return the exposures of one clip. Raises ValidationError.

    entry: {"start": 0, "length": 20, "period": 25}, or a list of rows [[0, 20], [25, 20]].
    """
    if isinstance(entry, list):
        return Exposures.model_validate({"rows": entry})
    # `Exposures` has defaults for lists of rows, but here each key is needed. So a missing key
    # becomes None, which is refused.
    fields: dict[str, Any] = dict.fromkeys(PERIODIC_KEYS)  # {key: None}
    fields.update(entry)
    return Exposures.model_validate(fields)


def _exposures_in(path: str) -> Any:
    """Return the contents of a file of exposures. Raises DataError."""
    try:
        return read_json(path)
    except (OSError, ValueError) as e:
        # A path such as "$DATA/exposures.json" may have a variable without a value. Then
        # `advice_on` returns "; set the variable $DATA, which has no value here", otherwise "".
        raise DataError(
            what=f"cannot read the exposures: {_cause_in_words(e)}",
            where=path,
            expected=EXPOSURE_FORM,
            do=f"correct spike.exposure{advice_on(path)}",
        ) from e


# ---- Refusals: the times of the frames do not tell the planes --------------------------------


class UnknownPlanes(DataError):
    """A clip has one spike file, and it is not known which planes in it belong to which frame.

    The planes follow from the times of the frames. This error is raised if these times are not
    sure, or if frames are missing. Its last part proposes a value of `spike.exposure`, e.g.

        correct these exposures where they are wrong, and give them (or a file that holds them):
        'spike.exposure={"clip_07": {"start": 0, "length": 40.0, "period": 40.0}}'

    clip: name of the clip.
    proposal: exposures in the form of `spike.exposure` for a clip, a guess that the user corrects.
    """

    def __init__(self, what: str, clip: str, proposal: Any) -> None:
        self.clip = clip
        self.proposal = proposal
        argument = exposure_argument({clip: proposal})
        super().__init__(
            what=what,
            where=f"clip {clip}",
            # That is: the time of every frame is known, and no frame is missing.
            expected="a known time of each frame, none missing between them",
            do=f"{ADVICE}: {argument}",
        )


def joined(errors: Sequence[UnknownPlanes]) -> DataError:
    """Return one error for several clips, which proposes one `spike.exposure` for all of them.

    Without this, a user would correct one clip, start again, and meet the error of the next clip.

    errors: the errors of the clips, at least one.
    """
    first = errors[0]
    # The result has the same type for one clip and for several: a DataError, without the attributes
    # `clip` and `proposal` of UnknownPlanes.
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


def _unlisted_frame(does: str, clip: str, frame: int) -> DataError:
    """Return the refusal of a frame that `spike.exposure` does not list.

    does: what spike.exposure does, "does not list" or, e.g., "lists 2 frames of". The error says

        spike.exposure lists 2 frames of clip clip_07, which has a frame 3
    """
    return DataError(
        what=f"spike.exposure {does} clip {clip}, which has a frame {frame}",
        where=f"clip {clip}",
        expected="one for every frame",
        do="complete spike.exposure",
    )


def _unknown_times(
    clip: str, times: FrameTimes, first: int, count: int, tick_hz: float | None = None
) -> UnknownPlanes:
    """Return the refusal of a clip with one spike file and no spike.exposure.

    The error says why the times are not sure, and proposes exposures. E.g.

        one spike file for the 4 frames of clip clip_07: 1 of 5 frames is missing: frame 3

    first, count: the planes first ... first + count - 1 of the file belong to the frames.
    tick_hz: planes per second, if they contradict the times of a film.
    """
    what = f"one spike file for the {len(times)} frames of clip {clip}: {times.described()}"
    return UnknownPlanes(what, clip, _guessed_exposures(times, first, count, tick_hz))


def _guessed_exposures(
    times: FrameTimes, first: int, count: int, tick_hz: float | None
) -> dict[str, float] | list[list[float]]:
    """Guess exposures for a clip if its times are not sure. The user corrects them.

    The guess: the first plane was recorded at the begin of the clip, and the last plane at its end.

    times: the times of the frames.
    first, count: the planes first ... first + count - 1 of the spike file belong to the frames.
    tick_hz: planes per second. It is given only if the length of the clip, computed from planes and
    tick_hz, contradicts the times of the film.
    Returns {"start": ..., "length": ..., "period": ...}, or a list of rows [start, length].
    """
    if times.is_even:
        length = round(count / len(times), 3)
        return {"start": first, "length": length, "period": length}
    rows: list[list[float]] = []
    if tick_hz:
        # The times of the film in seconds, turned into planes.
        for start, end in zip(times.starts, times.ends, strict=True):
            begin = (start - times.begin) * Fraction(tick_hz)  # planes since the first one
            length = (end - start) * Fraction(tick_hz)
            rows.append([first + _with_three_digits(begin), _with_three_digits(length)])
        return rows
    for first_plane, plane_after in times.plane_ranges(first, count):
        length = max(plane_after - first_plane, 1)  # an exposure has at least one plane
        rows.append([first_plane, length])
    return rows


def _refuse_exposures_of_other_frames(clip: str, table: Exposures, times: FrameTimes) -> None:
    """Raise UnknownPlanes if exposures do not belong to the frames that exist.

    table: the exposures of a clip as the user gives them.
    times: the times of the existing frames. The error proposes the exposures of these frames.
    """
    if table.rows:
        _refuse_rows_of_missing_frames(clip, table, times)
    else:
        _refuse_period_of_uneven_frames(clip, table, times)


def _refuse_rows_of_missing_frames(clip: str, table: Exposures, times: FrameTimes) -> None:
    """Raise UnknownPlanes if frames are missing, and a list has not one row for each frame.

    The list probably has rows for the missing frames too. The error proposes the list without them.
    """
    if not times.gaps or len(table.rows) == len(times):
        return
    rows = []
    # `places` are the numbers of the existing frames among all frames, 0, 1, 3 if frame 2 is
    # missing.
    for place in times.places():
        if place < len(table.rows):
            start, length = table.rows[place]
            rows.append([start, length])
    what = f"spike.exposure lists {len(table.rows)} frames of clip {clip}"
    raise UnknownPlanes(f"{what}: {times.described()}", clip, rows)


def _refuse_period_of_uneven_frames(clip: str, table: Exposures, times: FrameTimes) -> None:
    """Raise UnknownPlanes if frames do not follow one another at the one distance of a period.

    The error proposes a list with a row for each frame.
    """
    if times.is_even:
        return
    rows = []
    for start in times.starts:
        # Frames at the usual distance, `times.step`, are one period apart.
        periods = (start - times.begin) / times.step
        begin = Fraction(table.start) + periods * Fraction(table.period)
        rows.append([_with_three_digits(begin), table.length])
    cause = times.described() or "the frames follow one another at several distances"
    what = f"spike.exposure gives one period for the {len(times)} frames of clip {clip}"
    raise UnknownPlanes(f"{what}: {cause}", clip, rows)


def _with_three_digits(planes: Fraction) -> float:
    """Return a number of planes as messages show it, with three digits after the point."""
    return round(float(planes), 3)
