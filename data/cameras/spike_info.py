"""What is known of spike files: dataset.json, and the planes of each frame (`spike.first`, `count`, `exposure`)."""

import dataclasses
import difflib
import json
import math
import re
import reprlib
from collections.abc import Iterator, Sequence
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
OF_CLIP = ("h", "w", "flip", "rate", "light", "calibration")  # keys that a clip may have of its own
GOPRO_INTERPOLATE = 8  # planes per 240-fps frame of the published Spk-GoPro streams
EXPOSURE_FORM = (
    '{"start": planes, "length": planes, "period": planes}; {"<clip>": such an object, or a list with [start, length] '
    "of every frame}; or the name of a JSON file that holds one of these"
)

ADVICE = "correct these exposures where they are wrong, and give them (or a file that holds them)"


class UnknownPlanes(DataError):
    """The times of a clip's frames do not tell which planes of its one spike file are whose.

    clip: its name. proposal: the exposures to correct, in the form of `spike.exposure` for a clip.
    """

    def __init__(self, what: str, clip: str, proposal: Any) -> None:
        self.clip = clip
        self.proposal = proposal
        super().__init__(
            what,
            f"clip {clip}",
            "a known time of each frame, none missing between them",
            f"{ADVICE}: {exposure_argument({clip: proposal})}",
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


@contextmanager
def spike_errors_as_data_errors() -> Iterator[None]:
    """Raise a SpikeFileError, which data/spike raises, as a DataError with the same four parts."""
    try:
        yield
    except SpikeFileError as e:
        raise DataError(e.what, e.where, e.expected, e.do) from e


MOST_PLANES = 2**40  # in a file: 15 years at 2 kHz. Keeps sums within 64 bits
Side = Annotated[int, Field(ge=1, le=2**16)]
Planes = Annotated[int, Field(ge=1, le=MOST_PLANES)]
Plane = Annotated[int, Field(ge=0, lt=MOST_PLANES)]
Rate = Annotated[float | int, Field(gt=0, allow_inf_nan=False)]
Light = Literal["linear", "display"]


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
    """The contents of a dataset.json; None for what it does not contain.

    h, w: size of a spike plane. flip: rows are stored bottom first. planes: planes per file. gt_plane: the plane at
    which the sharp frame was taken. rate: spikes per tick at full light. light: what the sensor integrated, "linear"
    light or "display" values. interpolate: planes per raw frame. calibration: as in a file of scripts/calibrate.py.
    clips: what differs in single clips: these keys, see `of_clip`; planes, gt_plane, and offset (raw frames between the
    sharp frame and the middle one).
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
    calibration: dict[str, Any] | None = field(
        default=None, repr=False
    )  # digests have that of DatSpikes
    clips: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of_clip(self, clip: str) -> "DatasetInfo":
        """What is known of the spikes of one clip: its own h, w, flip, rate, light, calibration, else those of all."""
        own = {
            key: value
            for key, value in self.clips.get(clip, {}).items()
            if key in OF_CLIP and value is not None
        }
        return dataclasses.replace(self, **own) if own else self

    @property
    def trained_rate(self) -> float | str | None:
        """rate; "match" where each clip has its own, None where it is unknown."""
        is_of_clips = self.clips and all(clip.get("rate") for clip in self.clips.values())
        return "match" if self.rate is None and is_of_clips else self.rate

    def planes_of(self, clip: str, usual: int) -> tuple[int, int]:
        """How many planes the files of a clip hold, `usual` where nothing is known, and the last one at least.

        The light after the last raw frame is unknown: the planes interpolated after it are missing and, where sharp
        frames are later than the middle of their exposure, so are those of the raw frames that would follow.
        """
        known = self.clips.get(clip, {})
        planes = known.get("planes") or self.planes or usual
        return planes, planes - (self.interpolate - 1) - max(
            known.get("offset") or 0, 0
        ) * self.interpolate

    def gt_plane_of(self, clip: str, planes: int) -> int | None:
        """The sharp frame's plane in a file of `planes` planes, from dataset.json or from a Spk-GoPro clip name.

        Of GOPR0372_07_00, n = 7 frames were averaged. Each 240-fps frame is followed by 7 interpolated ones, so frame i
        of the n is plane 8 i, and the sharp frame, number (n - 1) / 2, is plane 4 n - 4. The last file of a clip may
        lack 7 of its 8 n planes.
        """
        known = self.clips.get(clip, {}).get("gt_plane")
        if known is None:
            known = self.gt_plane
        if known is None and (named := re.fullmatch(r"GOPR\d+_(\d\d)_\d\d", clip)):
            n = int(named[1])
            return 4 * n - 4 if n and 8 * n - 7 <= planes <= 8 * n else None
        return known


def nearest_info(path: Path) -> DatasetInfo:
    """The dataset.json of the data set that a spike file or folder is part of; empty where there is none.

    Layout: <root>/<split>/<clip>/spike/<file>.
    """
    above = path.resolve().parents
    places = [path, *above[:3]] if path.is_dir() else [path.parent, *above[:4]]
    return next(
        (info for info in (load_info(str(place)) for place in places) if info.path), DatasetInfo()
    )


def load_info(dataroot_spike: str) -> DatasetInfo:
    """The dataset.json in the spike folder or its parent (which holds the splits); empty where there is none.

    Raises DataError for a file that is no JSON object of this format, and for values of a wrong type.
    """
    root, whose = Path(dataroot_spike), ""
    path = next((p for p in (root / FILE_NAME, root.parent / FILE_NAME) if p.is_file()), None)
    if path is None:
        return DatasetInfo()
    try:
        table = read_json(path)
        if not isinstance(table, dict):
            raise ValueError("it is no JSON object")
        if table.get("format") != FORMAT:
            raise ValueError(f"format is {table.get('format')!r}")
        recipe = {} if table.get("recipe") is None else table["recipe"]
        if not isinstance(recipe, dict):
            raise ValueError("recipe is no JSON object")
        # Older files of scripts/prepare_gopro_spike.py name the light in their recipe only.
        table = {
            "light": recipe.get("light"),
            **table,
            "path": None,  # of no data set; a folder's name need not be text that JSON can hold
            "interpolate": recipe.get("interpolate"),
        }
        known = {
            f.name: table[f.name]
            for f in dataclasses.fields(DatasetInfo)
            if table.get(f.name) is not None
        }
        info = TypeAdapter(DatasetInfo).validate_json(json.dumps(known), strict=True)
        for clip, own in info.clips.items():
            whose = f"clip {clip}: "
            ClipKeys.model_validate_json(json.dumps(own))
            _refuse_misspelt(own)
        return dataclasses.replace(info, path=str(path))
    except (OSError, ValueError, TypeError, AttributeError) as e:
        what = f"dataset.json cannot be used: {whose}{_in_words(e)}"
        expected = f'a JSON object with "format": {FORMAT}, "h", "w", "flip", "planes", "rate", "light", "gt_plane"'
        raise DataError(what, str(path), expected, "correct it, or make the data set again") from e


def _refuse_misspelt(own: dict[str, Any]) -> None:
    """Raise ValueError for a key that is nearly a key of a clip. Other keys are records."""
    known = list(ClipKeys.model_fields)
    for key in own:
        near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.8)
        if key not in known and near:
            raise ValueError(f"the key {key!r} is unknown; the nearest one is {near[0]}")


def _in_words(e: Exception) -> str:
    """The first error of pydantic, or the system's reason, in one line."""
    if isinstance(e, ValidationError):
        first = e.errors()[0]
        found = reprlib.repr(first["input"])  # it may be a table of a whole data set
        place = ".".join(map(str, first["loc"]))
        return f"{place} is {found}: {first['msg']}".strip()
    return getattr(e, "strerror", None) or str(e)


@dataclass(frozen=True)
class Span:
    """The planes of one frame: first ... first + count - 1 of its file.

    origin, length: they are planes origin ... origin + count - 1 of the `length` planes that the plane of the sharp
    frame (`spike.center`, gt_plane) is counted in: those of the file, or with `spike.exposure` of the exposure.
    middle: of the planes that belong to the frame, counted in the same way; x.5 lies between two. It is not the middle
    of the planes that are read where the file lacks some.
    """

    first: int
    count: int
    origin: int
    length: int
    middle: float


Start = Annotated[float, Field(strict=True, ge=0, le=MOST_PLANES, allow_inf_nan=False)]
Length = Annotated[
    float, Field(strict=True, ge=0.5, le=MOST_PLANES, allow_inf_nan=False)
]  # rounded: at least one plane


class Exposures(BaseModel, frozen=True, extra="forbid"):
    """The exposures of the frames of a clip in planes of its one file: row i, else (start + i period, length).

    Times may lie between planes, for instance with the period 20000 / 24 of a 24-fps camera: the first plane is the
    rounded start, the number of planes the rounded length, so rounding errors do not add up and all exposures of one
    length have as many planes.
    """

    start: Start = 0.0
    length: Length = 0.0
    period: Length = 0.0  # also at least a plane, or a file would hold frames without end
    rows: Annotated[tuple[tuple[Start, Length], ...], Field(min_length=1)] = ()

    def planes_of(self, frame: int, offset: float = 0.0) -> tuple[int, int]:
        """(first plane, number of planes) of frame `frame`. offset: planes by which the start moves."""
        start, length = (
            self.rows[frame] if self.rows else (self.start + frame * self.period, self.length)
        )
        return nearest_plane(start + offset), nearest_plane(length)


@dataclass(frozen=True)
class Timing:
    """The planes that are read of each file.

    first, count: of a file per frame; count None: to its end; first "central": in its middle. exposures: of one file
    per clip, by clip, "" for every other clip; None for a file per frame. offset: added to the first plane; share: of
    an exposure's planes, in their middle, that are read, see data/cameras/spike_grid.py.
    """

    first: int | Literal["central"] = 0
    count: int | None = None
    exposures: dict[str, Exposures] | None = None
    offset: float = 0.0
    share: float = field(default=1.0, repr=False)  # of digests, the calibration is a part

    @property
    def is_one_file(self) -> bool:
        """Whether the planes of all frames of a clip are in one file."""
        return self.exposures is not None

    def table(self, clip: str) -> Exposures | None:
        """Return the exposures of a clip; None if `exposures` has none for it."""
        if self.exposures is None:
            return None
        return self.exposures.get(clip, self.exposures.get(""))

    def frames(self, clip: str, planes: int) -> int:
        """How many frames the one file of a clip is for: the rows of `spike.exposure`, or as many as end in its planes.

        At least 1, of which `span` may say that it is outside.
        """
        table = self.table(clip)
        if table is None:
            return 1
        if table.rows:
            return len(table.rows)
        first, count = table.planes_of(0, self.offset)
        frames = max(int((planes - first - count) / table.period), 1)
        # Starts are rounded to planes, so one more or one fewer may fit.
        while sum(table.planes_of(frames, self.offset)) <= planes:
            frames += 1
        while frames > 1 and sum(table.planes_of(frames - 1, self.offset)) > planes:
            frames -= 1
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

        times: of the frames. tick_hz: planes per second, if known. Returns (first plane, plane
        after the last) of each frame, or None if `exposures` says it.

        Frames at one distance share the planes evenly, other frames of a film by their times. A
        list of exposures needs an exposure of each frame. One start, length and period for all
        needs frames at one distance.
        Raises UnknownPlanes, which proposes exposures, if the times do not tell the planes.
        """
        table = self.table(clip)
        if table is None and self.exposures is not None:
            return None  # `span` refuses the clip
        if table is not None and table.rows:
            if times.missing and len(table.rows) != len(times):
                raise _unlisted(clip, table, times)
            return None
        if table is not None:
            if not times.is_even:
                raise _uneven_exposures(clip, table, times)
            return None

        first, count = self.window(planes)
        if times.doubt or (times.missing and not times.is_film):
            raise _unknown_times(clip, times, first, count)
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
        """The planes of frame number `frame` of a clip, in a file of `planes` planes.

        shares: of one file for all frames, (first plane, plane after the last) of each, see `shares`.
        Raises DataError where the planes reach outside of the file, and for a frame that `spike.exposure` lacks.
        """
        if self.exposures is not None:
            table = self.table(clip)
            if table is None or 0 < len(table.rows) <= frame:
                what = f"lists {len(table.rows)} frames of" if table else "does not list"
                what, expected = (
                    f"spike.exposure {what} clip {clip}, which has a frame {frame}",
                    "one for every frame",
                )
                raise DataError(what, f"clip {clip}", expected, "complete spike.exposure")
            start, count = table.planes_of(frame, self.offset)
            origin, length = 0, count
        else:
            first, count = self.window(planes)
            origin, length = first, planes
            if shares is not None:
                first, after = shares[frame]
                origin, count, length = 0, after - first, after - first
            start = first + nearest_plane(self.offset)
        exposed = max(min(count, 1), nearest_plane(count * self.share))
        lo = start + (count - exposed) // 2
        hi = lo + exposed
        if (
            self.exposures is None and self.count is None
        ):  # to the end of the file: what it lacks is left out
            lo, hi = min(max(lo, 0), planes), min(hi, planes)
        if lo < 0 or hi <= lo or hi > planes:
            keys = "spike.exposure" if self.is_one_file else "spike.first, spike.count"
            shift = f", time offset {self.offset:g}" if self.offset else ""
            what = f"frame {frame} of clip {clip} needs planes {lo} to {hi - 1} ({keys}{shift})"
            what, expected = f"{what}, the file has {planes} planes", f"within 0 to {planes - 1}"
            raise DataError(what, f"clip {clip}", expected, f"correct {keys}, or restore the file")
        return Span(lo, hi - lo, origin + lo - start, length, origin + (count - 1) / 2)

    def describe(self) -> str:
        """What differs from reading whole files of one frame each, for digests; "" for nothing."""
        return "" if self == Timing() else f" {self}"


def nearest_plane(time: float) -> int:
    """The nearest whole number; half a plane is rounded up."""
    return math.floor(time + 0.5)


Tables = Annotated[
    dict[str, dict[str, Any] | list[Any]], Field(min_length=1)
]  # by clip, "" for every other one
REGULAR = dict.fromkeys(("start", "length", "period"))  # all are needed


def read_exposures(value: dict[str, Any] | str | None) -> dict[str, Exposures] | None:
    """`spike.exposure` of the options. Raises OptionError for a wrong form, DataError for an unreadable file."""
    if value is None:
        return None
    where, found, clip = "spike.exposure", {}, ""
    if isinstance(value, str):
        try:
            where = value = expanded(value)
            value = read_json(where)
        except (OSError, ValueError) as e:
            what = f"cannot read the exposures: {_in_words(e)}"
            do = f"correct spike.exposure{advice_on(where)}"
            raise DataError(what, where, EXPOSURE_FORM, do) from e
    is_one = isinstance(value, dict) and value.keys() & REGULAR.keys()
    try:
        for clip, entry in (
            TypeAdapter(Tables).validate_python({"": value} if is_one else value).items()
        ):
            found[clip] = Exposures.model_validate(
                REGULAR | entry if isinstance(entry, dict) else {"rows": entry}
            )
    except ValidationError as e:
        what = f"spike.exposure is not of the expected form{f' for clip {clip}' if clip else ''}: {_in_words(e)}"
        raise OptionError(what, where, EXPOSURE_FORM, "correct spike.exposure") from e
    return found


# ---- Refusals: the times of the frames do not tell the planes -----------------------------------


def _unknown_times(
    clip: str, times: FrameTimes, first: int, count: int, tick_hz: float | None = None
) -> UnknownPlanes:
    """Return the refusal of one file without spike.exposure.

    first, count: the planes to share. tick_hz: planes per second, if the clocks contradict.
    """
    if times.is_even:
        length = round(count / len(times), 3)
        proposal: Any = {"start": first, "length": length, "period": length}
    elif tick_hz:
        rows = [(a - times.begin, b - a) for a, b in zip(times.starts, times.ends, strict=True)]
        proposal = [
            [first + _plain(a * Fraction(tick_hz)), _plain(b * Fraction(tick_hz))] for a, b in rows
        ]
    else:
        proposal = [[lo, max(hi - lo, 1)] for lo, hi in times.shares(first, count)]
    what = f"one spike file for the {len(times)} frames of clip {clip}: {times.described()}"
    return UnknownPlanes(what, clip, proposal)


def _uneven_exposures(clip: str, table: Exposures, times: FrameTimes) -> UnknownPlanes:
    """Return the refusal of one start, length and period for frames at several distances."""
    rows = []
    for start in times.starts:
        periods = (start - times.begin) / times.step
        rows.append(
            [_plain(Fraction(table.start) + periods * Fraction(table.period)), table.length]
        )
    cause = times.described() or "the frames follow one another at several distances"
    what = f"spike.exposure gives one period for the {len(times)} frames of clip {clip}: {cause}"
    return UnknownPlanes(what, clip, rows)


def _unlisted(clip: str, table: Exposures, times: FrameTimes) -> UnknownPlanes:
    """Return the refusal of a list of exposures that has more or fewer rows than there are frames."""
    what = f"spike.exposure lists {len(table.rows)} frames of clip {clip}: {times.described()}"
    return UnknownPlanes(what, clip, [list(row) for row in table.rows[: len(times)]])


def _plain(number: Fraction) -> float:
    return round(float(number), 3)
