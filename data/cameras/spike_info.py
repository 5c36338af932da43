"""What is known of spike files: dataset.json, and which planes belong to which frame.

`DatasetInfo` holds the contents of a dataset.json. `Timing` holds the keys `spike.first`,
`spike.count` and `spike.exposure`. It decides which planes are read for a frame.
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
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from data.cameras.frame_times import FrameTimes
from data.spike.formats import SpikeFileError
from utils.errors import DataError, OptionError
from utils.json_file import read_json
from utils.user_path import advice_on, expanded

FILE_NAME = "dataset.json"
FORMAT = 1
# Keys that a clip may have of its own, see `DatasetInfo.of_clip`.
OF_CLIP = ("h", "w", "flip", "rate", "light", "calibration")
# Planes for each 240-fps frame of the published Spk-GoPro streams.
GOPRO_INTERPOLATE = 8
# A clip name of Spk-GoPro, GOPR0372_07_00, has the number of averaged frames in the middle.
GOPRO_NAME = re.compile(r"GOPR\d+_(\d\d)_\d\d")
# Upper bound of planes in a file: 15 years at 2 kHz. Sums of such numbers fit into 64 bits.
MOST_PLANES = 2**40
EXPOSURE_FORM = (
    '{"start": planes, "length": planes, "period": planes}; {"<clip>": such an object, or a list '
    "with [start, length] of every frame}; or the name of a JSON file that holds one of these"
)
ADVICE = "correct these exposures where they are wrong, and give them (or a file that holds them)"

Side = Annotated[int, Field(ge=1, le=2**16)]
Planes = Annotated[int, Field(ge=1, le=MOST_PLANES)]
Plane = Annotated[int, Field(ge=0, lt=MOST_PLANES)]
Rate = Annotated[float | int, Field(gt=0, allow_inf_nan=False)]
Light = Literal["linear", "display"]


@contextmanager
def spike_errors_as_data_errors() -> Generator[None]:
    """Raise a SpikeFileError, which data/spike raises, as a DataError with the same four parts."""
    try:
        yield
    except SpikeFileError as e:
        raise DataError(e.what, e.where, e.expected, e.do) from e


# ---- dataset.json ----------------------------------------------------------------------------


class ClipKeys(BaseModel, strict=True, extra="allow"):
    """The keys of a clip in dataset.json, see `DatasetInfo.clips`. Other keys are records."""

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

    h, w: size of a spike plane. flip: whether rows are stored bottom first.
    planes: number of planes in a file. gt_plane: the plane at which the sharp frame was taken.
    rate: spikes per plane at full light. light: what the sensor integrated, "linear" light or
    "display" values.
    interpolate: number of planes for each raw frame.
    calibration: the contents of a file of scripts/calibrate.py. It is not shown by repr, because
    digests contain the calibration of `DatSpikes`.
    clips: {clip: its own values}: the keys of `of_clip`, planes, gt_plane, and offset, the number
    of raw frames from the middle of an exposure to its sharp frame.
    """

    path: str = ""
    h: Side | None = None
    w: Side | None = None
    flip: bool | None = None
    planes: Planes | None = None
    gt_plane: Plane | None = None
    rate: Rate | None = None
    light: Light | None = None
    interpolate: Annotated[int, Field(ge=1, le=MOST_PLANES)] = GOPRO_INTERPOLATE
    calibration: dict[str, Any] | None = field(default=None, repr=False)
    clips: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of_clip(self, clip: str) -> "DatasetInfo":
        """Return what is known of the spikes of one clip: its own values, else those of all clips.

        Returns this object itself if the clip has no value of its own.
        """
        own = {}
        for key, value in self.clips.get(clip, {}).items():
            if key in OF_CLIP and value is not None:
                own[key] = value
        if not own:
            return self
        return dataclasses.replace(self, **own)

    @property
    def trained_rate(self) -> float | str | None:
        """The rate; "match" if each clip has its own rate; None if it is unknown."""
        if self.rate is not None:
            return self.rate
        if self.clips and all(clip.get("rate") for clip in self.clips.values()):
            return "match"
        return None

    def planes_of(self, clip: str, usual: int) -> tuple[int, int]:
        """Return how many planes each file of a clip holds, and how many its last file at least.

        usual: the number to return if nothing is known.

        The light after the last raw frame is unknown, so the planes interpolated after it are
        missing. If sharp frames are later than the middle of their exposure, the planes of the raw
        frames that would follow are missing too.
        """
        own = self.clips.get(clip, {})
        planes = own.get("planes") or self.planes or usual
        offset = max(own.get("offset") or 0, 0)
        missing = self.interpolate - 1 + offset * self.interpolate
        return planes, planes - missing

    def gt_plane_of(self, clip: str, planes: int) -> int | None:
        """Return the plane of the sharp frame in a file of `planes` planes.

        It comes from dataset.json, or from a clip name of Spk-GoPro. Returns None if neither
        tells it.

        For GOPR0372_07_00, n = 7 frames were averaged. Each 240-fps frame is followed by 7
        interpolated ones, so frame i of the n is plane 8 i. The sharp frame, number (n - 1) / 2,
        is plane 4 n - 4. The last file of a clip may lack 7 of its 8 n planes.
        """
        own = self.clips.get(clip, {}).get("gt_plane")
        if own is not None:
            return own
        if self.gt_plane is not None:
            return self.gt_plane
        named = GOPRO_NAME.fullmatch(clip)
        if not named:
            return None
        n = int(named[1])
        if n and 8 * n - 7 <= planes <= 8 * n:
            return 4 * n - 4
        return None


def nearest_info(path: Path) -> DatasetInfo:
    """Return the dataset.json of the data set that a spike file or folder belongs to.

    Layout: <root>/<split>/<clip>/spike/<file>. Returns an empty one if there is no such file.
    """
    above = path.resolve().parents
    folders = [path, *above[:3]] if path.is_dir() else [path.parent, *above[:4]]
    for folder in folders:
        info = load_info(str(folder))
        if info.path:
            return info
    return DatasetInfo()


def load_info(dataroot_spike: str) -> DatasetInfo:
    """Return the dataset.json in the spike folder or in its parent, which holds the splits.

    Returns an empty one if there is no such file.
    Raises DataError for a file that is no JSON object of this format, and for values of a wrong
    type.
    """
    root = Path(dataroot_spike)
    for path in (root / FILE_NAME, root.parent / FILE_NAME):
        if path.is_file():
            return _read_info(path)
    return DatasetInfo()


def _read_info(path: Path) -> DatasetInfo:
    whose = ""
    try:
        known = _known_values(read_json(path))
        info = TypeAdapter(DatasetInfo).validate_json(json.dumps(known), strict=True)
        for clip, own in info.clips.items():
            whose = f"clip {clip}: "
            ClipKeys.model_validate_json(json.dumps(own))
            _refuse_misspelt(own)
    except (OSError, ValueError) as e:
        raise DataError(
            what=f"dataset.json cannot be used: {whose}{_in_words(e)}",
            where=str(path),
            expected=f'a JSON object with "format": {FORMAT}, "h", "w", "flip", "planes", "rate", '
            '"light", "gt_plane"',
            do="correct it, or make the data set again",
        ) from e
    # Set last: a folder's name need not be text that JSON can hold.
    return dataclasses.replace(info, path=str(path))


def _known_values(table: Any) -> dict[str, Any]:
    """Return the fields of `DatasetInfo` in the contents of a file. Raises ValueError."""
    if not isinstance(table, dict):
        raise ValueError("it is no JSON object")
    if table.get("format") != FORMAT:
        raise ValueError(f"format is {table.get('format')!r}")
    recipe = table.get("recipe")
    if recipe is None:
        recipe = {}
    if not isinstance(recipe, dict):
        raise ValueError("recipe is no JSON object")
    # Older files of scripts/prepare_gopro_spike.py name the light in their recipe only.
    values = {"light": recipe.get("light"), **table, "interpolate": recipe.get("interpolate")}
    known = {}
    for one in dataclasses.fields(DatasetInfo):
        if one.name != "path" and values.get(one.name) is not None:
            known[one.name] = values[one.name]
    return known


def _refuse_misspelt(own: dict[str, Any]) -> None:
    """Raise ValueError for a key that is nearly a key of a clip. Other keys are records."""
    known = list(ClipKeys.model_fields)
    for key in own:
        near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.8)
        if key not in known and near:
            raise ValueError(f"the key {key!r} is unknown; the nearest one is {near[0]}")


def _in_words(e: Exception) -> str:
    """Return the first error of pydantic, or the system's reason, in one line."""
    if isinstance(e, ValidationError):
        first = e.errors()[0]
        found = reprlib.repr(first["input"])  # it may be a table of a whole data set
        key = ".".join(map(str, first["loc"]))
        return f"{key} is {found}: {first['msg']}".strip()
    return getattr(e, "strerror", None) or str(e)


# ---- The planes of a frame -------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """The planes of one frame: first ... first + count - 1 of its file.

    The plane of the sharp frame (`spike.center`, gt_plane) is counted in the planes of the file,
    or with `spike.exposure` in the planes of the exposure. There are `length` of these planes, and
    the planes of the frame are origin ... origin + count - 1 among them.
    middle: the middle of the planes that belong to the frame, counted in the same way; x.5 lies
    between two planes. It differs from the middle of the planes that are read if the file lacks
    some.
    """

    first: int
    count: int
    origin: int
    length: int
    middle: float


Start = Annotated[float, Field(strict=True, ge=0, le=MOST_PLANES, allow_inf_nan=False)]
# At least one plane, once rounded.
Length = Annotated[float, Field(strict=True, ge=0.5, le=MOST_PLANES, allow_inf_nan=False)]


class Exposures(BaseModel, frozen=True, extra="forbid"):
    """The exposures of the frames of a clip, in planes of its one file.

    The exposure of frame i is row i, (start, length). Without rows it begins at
    start + i period and has `length` planes.

    Times may lie between planes, for instance with the period 20000 / 24 of a 24-fps camera. The
    first plane is the rounded start, and the number of planes is the rounded length. So rounding
    errors do not add up, and all exposures of one length have as many planes.
    """

    start: Start = 0.0
    length: Length = 0.0
    # Also at least one plane. With a shorter period a file would hold frames without end.
    period: Length = 0.0
    rows: Annotated[tuple[tuple[Start, Length], ...], Field(min_length=1)] = ()

    def planes_of(self, frame: int, offset: float = 0.0) -> tuple[int, int]:
        """Return (first plane, number of planes) of a frame.

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
    """The planes that are read of each file.

    first, count: the planes of a file per frame; count None: to the end of the file; first
    "central": the planes in the middle.
    exposures: {clip: exposures in its one file}, with "" for every other clip. None: there is a
    file for each frame, or the frames of a clip share one file, see `shares`.
    offset: number of planes that is added to the first plane. share: part of an exposure's planes,
    in their middle, that are read. Both come from the calibration, see
    data/cameras/spike_grid.py. `share` is not shown by repr, because digests contain the
    calibration.
    """

    first: int | Literal["central"] = 0
    count: int | None = None
    exposures: dict[str, Exposures] | None = None
    offset: float = 0.0
    share: float = field(default=1.0, repr=False)

    @property
    def is_one_file(self) -> bool:
        """Whether `exposures` says which planes of one file belong to each frame of a clip."""
        return self.exposures is not None

    def table(self, clip: str) -> Exposures | None:
        """Return the exposures of a clip. Returns None if `exposures` has none for it."""
        if self.exposures is None:
            return None
        return self.exposures.get(clip, self.exposures.get(""))

    def frames(self, clip: str, planes: int) -> int:
        """Return how many frames the one file of a clip holds.

        These are the rows of `spike.exposure`, or as many exposures as end within `planes` planes.
        Returns at least 1; `span` refuses this frame if it lies outside of the file.
        """
        table = self.table(clip)
        if table is None:
            return 1
        if table.rows:
            return len(table.rows)
        first, count = table.planes_of(0, self.offset)
        frames = max(int((planes - first - count) / table.period), 1)
        # So many fit in any case; starts are rounded to planes, so a few more may fit.
        while sum(table.planes_of(frames, self.offset)) <= planes:
            frames += 1
        return frames

    def window(self, planes: int) -> tuple[int, int]:
        """Return (first plane, number of planes) that `first` and `count` choose of a file."""
        if self.first == "central":
            count = min(self.count or planes, planes)
            return (planes - count) // 2, count
        count = planes - self.first if self.count is None else self.count
        return self.first, count

    def shares(
        self, clip: str, planes: int, times: FrameTimes, tick_hz: float | None = None
    ) -> list[tuple[int, int]] | None:
        """Decide which planes of the one file of a clip belong to which of its frames.

        planes: number of planes in the file. times: of the frames. tick_hz: planes per second, if
        known.
        Returns (first plane, plane after the last) of each frame, or None if `exposures` says it.

        Frames at one distance share the planes evenly. Other frames of a film have the planes of
        their own times. A list of exposures must have a row for each frame. A single start, length
        and period needs frames at one distance.
        Raises UnknownPlanes, which proposes exposures, if the times do not tell the planes.
        """
        if self.exposures is not None:
            table = self.table(clip)
            # Without a table for the clip, `span` refuses it.
            if table is not None:
                _refuse_other_frames(clip, table, times)
            return None

        first, count = self.window(planes)
        # Numbers in names say that frames are missing, but not that the others kept their pace.
        if times.doubt or (times.missing and not times.is_film):
            raise _unknown_times(clip, times, first, count)
        # Both cameras have a clock, so the two must agree on the length of the clip.
        if times.is_film and tick_hz:
            times = times.until(times.begin + Fraction(count) / Fraction(tick_hz))
            if times.doubt:
                raise _unknown_times(clip, times, first, count, tick_hz)
        return times.shares(first, count)

    def span(
        self,
        clip: str,
        frame: int,
        planes: int,
        shares: Sequence[tuple[int, int]] | None = None,
    ) -> Span:
        """Return the planes of frame number `frame` of a clip, in a file of `planes` planes.

        shares: the planes of each frame in one file, see `shares`; None: `exposures` says them, or
        there is a file for each frame.
        Raises DataError if the planes reach outside of the file, and for a frame that
        `spike.exposure` lacks.
        """
        if self.exposures is not None:
            start, count = self._exposure(clip, frame)
            origin = 0
            length = count
        elif shares is not None:
            begin, after = shares[frame]
            start = begin + nearest_plane(self.offset)
            count = after - begin
            origin = 0
            length = count
        else:
            begin, count = self.window(planes)
            start = begin + nearest_plane(self.offset)
            origin = begin
            length = planes

        # Of the planes of the frame, read those in the middle, during which it was exposed. This is
        # at least one, unless the frame has none.
        exposed = max(min(count, 1), nearest_plane(count * self.share))
        lo = start + (count - exposed) // 2
        hi = lo + exposed
        if self.exposures is None and self.count is None:
            # Read to the end of the file: planes that it lacks are left out.
            lo = min(max(lo, 0), planes)
            hi = min(hi, planes)
        if lo < 0 or hi <= lo or hi > planes:
            raise self._outside(clip, frame, lo, hi, planes)
        middle = origin + (count - 1) / 2
        return Span(lo, hi - lo, origin + lo - start, length, middle)

    def _exposure(self, clip: str, frame: int) -> tuple[int, int]:
        """Return (first plane, number of planes) of a frame in `exposures`. Raises DataError."""
        table = self.table(clip)
        if table is None:
            raise _unlisted_frame("does not list", clip, frame)
        if table.rows and frame >= len(table.rows):
            raise _unlisted_frame(f"lists {len(table.rows)} frames of", clip, frame)
        return table.planes_of(frame, self.offset)

    def _outside(self, clip: str, frame: int, lo: int, hi: int, planes: int) -> DataError:
        keys = "spike.exposure" if self.is_one_file else "spike.first, spike.count"
        shift = f", time offset {self.offset:g}" if self.offset else ""
        needs = f"frame {frame} of clip {clip} needs planes {lo} to {hi - 1} ({keys}{shift})"
        return DataError(
            what=f"{needs}, the file has {planes} planes",
            where=f"clip {clip}",
            expected=f"within 0 to {planes - 1}",
            do=f"correct {keys}, or restore the file",
        )

    def describe(self) -> str:
        """Return what differs from reading whole files of one frame each, for digests."""
        return "" if self == Timing() else f" {self}"


def nearest_plane(time: float) -> int:
    """Return the nearest whole number; half a plane is rounded up."""
    return math.floor(time + 0.5)


# ---- spike.exposure --------------------------------------------------------------------------

# {clip: its exposures}, with "" for every other clip.
Tables = Annotated[dict[str, dict[str, Any] | list[Any]], Field(min_length=1)]
# An object without rows needs all of these keys, so None stands for a missing one.
REGULAR = dict.fromkeys(("start", "length", "period"))


def read_exposures(value: dict[str, Any] | str | None) -> dict[str, Exposures] | None:
    """Read the key `spike.exposure` of the options.

    value: exposures of all clips or of each clip, or the name of a file with them.
    Raises OptionError for a wrong form, DataError for an unreadable file.
    """
    if value is None:
        return None
    where = "spike.exposure"
    table: Any = value
    if isinstance(value, str):
        where = expanded(value)
        table = _exposures_in(where)
    if isinstance(table, dict) and table.keys() & REGULAR.keys():
        table = {"": table}

    found = {}
    clip = ""
    try:
        for clip, entry in TypeAdapter(Tables).validate_python(table).items():
            fields = REGULAR | entry if isinstance(entry, dict) else {"rows": entry}
            found[clip] = Exposures.model_validate(fields)
    except ValidationError as e:
        whose = f" for clip {clip}" if clip else ""
        raise OptionError(
            what=f"spike.exposure is not of the expected form{whose}: {_in_words(e)}",
            where=where,
            expected=EXPOSURE_FORM,
            do="correct spike.exposure",
        ) from e
    return found


def _exposures_in(path: str) -> Any:
    """Return the contents of a file of exposures. Raises DataError."""
    try:
        return read_json(path)
    except (OSError, ValueError) as e:
        raise DataError(
            what=f"cannot read the exposures: {_in_words(e)}",
            where=path,
            expected=EXPOSURE_FORM,
            do=f"correct spike.exposure{advice_on(path)}",
        ) from e


# ---- Refusals: the times of the frames do not tell the planes --------------------------------


class UnknownPlanes(DataError):
    """The times of a clip's frames do not tell which planes of its one spike file are whose.

    clip: its name. proposal: exposures to correct, in the form of `spike.exposure` for a clip.
    """

    def __init__(self, what: str, clip: str, proposal: Any) -> None:
        self.clip = clip
        self.proposal = proposal
        super().__init__(
            what=what,
            where=f"clip {clip}",
            expected="a known time of each frame, none missing between them",
            do=f"{ADVICE}: {exposure_argument({clip: proposal})}",
        )


def joined(refused: Sequence[UnknownPlanes]) -> DataError:
    """Return one error for several clips, with one `spike.exposure` for all of them."""
    first = refused[0]
    if len(refused) == 1:
        return DataError(first.what, first.where, first.expected, first.do)
    table = {each.clip: each.proposal for each in refused}
    return DataError(
        what="; ".join(each.what for each in refused),
        where=", ".join(each.where for each in refused),
        expected=first.expected,
        do=f"{ADVICE}: {exposure_argument(table)}",
    )


def exposure_argument(table: dict[str, Any]) -> str:
    """Return the argument of a command line that gives `spike.exposure`. table: by clip."""
    return f"'spike.exposure={json.dumps(table)}'"


def _unlisted_frame(verb: str, clip: str, frame: int) -> DataError:
    return DataError(
        what=f"spike.exposure {verb} clip {clip}, which has a frame {frame}",
        where=f"clip {clip}",
        expected="one for every frame",
        do="complete spike.exposure",
    )


def _unknown_times(
    clip: str, times: FrameTimes, first: int, count: int, tick_hz: float | None = None
) -> UnknownPlanes:
    """Return the refusal of one file without spike.exposure.

    first, count: the planes to share. tick_hz: planes per second, if the clocks contradict.
    """
    proposal: Any
    # The guess: the planes begin and end with the clip.
    if times.is_even:
        length = round(count / len(times), 3)
        proposal = {"start": first, "length": length, "period": length}
    elif tick_hz:
        proposal = []
        for start, end in zip(times.starts, times.ends, strict=True):
            begin = first + _plain((start - times.begin) * Fraction(tick_hz))
            proposal.append([begin, _plain((end - start) * Fraction(tick_hz))])
    else:
        shares = times.shares(first, count)
        proposal = [[begin, max(after - begin, 1)] for begin, after in shares]
    what = f"one spike file for the {len(times)} frames of clip {clip}: {times.described()}"
    return UnknownPlanes(what, clip, proposal)


def _refuse_other_frames(clip: str, table: Exposures, times: FrameTimes) -> None:
    """Refuse exposures that are not those of the frames that are there.

    table: the exposures of a clip as the user gives them. times: of the frames.
    """
    if table.rows:
        if times.missing and len(table.rows) != len(times):
            what = f"spike.exposure lists {len(table.rows)} frames of clip {clip}"
            # The list is likely to have the missing frames too.
            kept = [place for place in times.places() if place < len(table.rows)]
            rows = [list(table.rows[place]) for place in kept]
            raise UnknownPlanes(f"{what}: {times.described()}", clip, rows)
        return
    if times.is_even:
        return
    rows = []
    for start in times.starts:
        # Frames at the usual distance are one period apart.
        periods = (start - times.begin) / times.step
        begin = Fraction(table.start) + periods * Fraction(table.period)
        rows.append([_plain(begin), table.length])
    cause = times.described() or "the frames follow one another at several distances"
    what = f"spike.exposure gives one period for the {len(times)} frames of clip {clip}"
    raise UnknownPlanes(f"{what}: {cause}", clip, rows)


def _plain(number: Fraction) -> float:
    """Return a number of planes as it is shown, with three digits behind the point."""
    return round(float(number), 3)
