"""Which planes of a spike file belong to a frame: `spike.first`, `spike.count` and `spike.exposure`."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.clip import Piece
from utils.errors import DataError, OptionError

KEYS = ("start", "length", "period")
FORM = (
    '{"start": planes, "length": planes, "period": planes}; {"<clip>": such an object, or a list with [start, length] '
    "of every frame}; or the name of a JSON file that holds one of these"
)


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


def with_context(span: Span, own: int, files: Sequence[tuple[str, int]], context: int) -> tuple[list[Piece], int]:
    """The planes of `span` of file number `own`, and up to `context` planes before and after them, as far as there are.

    files: path and planes of each file of the clip, which follow one another in time. Returns the pieces in the order
    of time, and how many planes lie before those of the span.
    """
    lo, hi = span.first - context, span.first + span.count + context
    first_file, last_file = max(own - 1, 0), min(own + 2, len(files))
    start = -sum(planes for _, planes in files[first_file:own])  # counted in the span's own file
    before, pieces = min(context, span.first - start), []
    for path, planes in files[first_file:last_file]:
        first, stop = max(lo - start, 0), min(hi - start, planes)
        if first < stop:
            pieces.append(Piece(path, first, stop - first))
        start += planes
    return pieces, before


@dataclass(frozen=True)
class Exposures:
    """The exposures of the frames of a clip in planes of its one file: (start, length) of frame i.

    period: start + i period, length; else rows: row i. Times may lie between planes, for instance with the period
    20000 / 24 of a 24-fps camera: the first plane is the start rounded to the nearest plane (half a plane: up), the
    number of planes the rounded length, so rounding errors do not add up and all exposures of one length have as many.
    """

    start: float = 0.0
    length: float = 0.0
    period: float = 0.0
    rows: tuple[tuple[float, float], ...] = ()

    def planes_of(self, frame: int, offset: float = 0.0) -> tuple[int, int] | None:
        """(first plane, number of planes) of frame `frame`; None where the table has no such row.

        offset: planes by which the start moves.
        """
        if self.rows and frame >= len(self.rows):
            return None
        start, length = self.rows[frame] if self.rows else (self.start + frame * self.period, self.length)
        return nearest_plane(start + offset), nearest_plane(length)

    def count(self, planes: int, offset: float = 0.0) -> int:
        """How many exposures there are: the rows, or as many as end, moved by offset, within `planes` planes."""
        return len(self.rows) or next(i for i in itertools.count() if sum(self.planes_of(i, offset)) > planes)


@dataclass(frozen=True)
class Timing:
    """The planes that are read of each file.

    first, count: of a file per frame; count None: to its end. exposures: of one file per clip, by clip, "" for every
    other clip; None for a file per frame. offset: added to the first plane, see data/calibration.py.
    """

    first: int = 0
    count: int | None = None
    exposures: dict[str, Exposures] | None = None
    offset: float = 0.0

    @property
    def is_one_file(self) -> bool:
        """Whether the planes of all frames of a clip are in one file."""
        return self.exposures is not None

    def frames(self, clip: str, planes: int) -> int:
        """How many frames a file of `planes` planes is for; at least 1, of which `span` may say that it is outside."""
        table = self._table(clip)
        return max(table.count(planes, self.offset), 1) if table else 1

    def span(self, clip: str, frame: int | str, planes: int) -> Span:
        """The planes of frame number `frame` of a clip, in a file of `planes` planes; frame: a name, for messages only,
        where each frame has its own file. Raises DataError where they reach outside of the file.
        """
        if self.exposures is not None:
            return self._exposure(clip, int(frame), planes)
        return self._moved(clip, frame, planes, self.first, self._count(planes), self.first, planes)

    def share(self, clip: str, frame: int, frames: int, planes: int) -> Span:
        """The planes of one of `frames` frames that share the planes of their one file evenly. Raises as `span`."""
        first, after = (self.first + i * self._count(planes) // frames for i in (frame, frame + 1))
        return self._moved(clip, frame, planes, first, after - first, 0, after - first)

    def _count(self, planes: int) -> int:
        return planes - self.first if self.count is None else self.count

    def _moved(
        self, clip: str, frame: int | str, planes: int, first: int, count: int, origin: int, length: int
    ) -> Span:
        """Planes first ... first + count - 1, moved by the offset. origin: the number of the first one in `length`.

        To the end of the file (`count` None), those of them that the file lacks are left out.
        """
        start = moved = first + nearest_plane(self.offset)
        stop = start + count
        if self.count is None:
            start, stop = min(max(start, 0), planes), min(stop, planes)
        count_read = self._inside(clip, frame, planes, start, stop - start)
        return Span(start, count_read, origin + start - moved, length, origin + (count - 1) / 2)

    def _table(self, clip: str) -> Exposures | None:
        return self.exposures.get(clip, self.exposures.get("")) if self.exposures else None

    def _exposure(self, clip: str, frame: int, planes: int) -> Span:
        table = self._table(clip)
        found = table.planes_of(frame, self.offset) if table else None
        if found is None:
            what = f"lists {len(table.rows)} frames of" if table else "does not list"
            raise DataError(
                f"spike.exposure {what} clip {clip}, which has a frame {frame}", f"clip {clip}",
                "an exposure for every frame of every clip", "complete spike.exposure",
            )  # fmt: skip
        first, count = found
        return Span(first, self._inside(clip, frame, planes, first, count), 0, count, (count - 1) / 2)

    def _inside(self, clip: str, frame: int | str, planes: int, first: int, count: int) -> int:
        """count. Raises DataError where the planes are not all in the file."""
        if first < 0 or count < 1 or first + count > planes:
            keys = "spike.exposure" if self.is_one_file else "spike.first, spike.count"
            shift = f", time offset {self.offset:g}" if self.offset else ""
            raise DataError(
                f"frame {frame} of clip {clip} needs planes {first} to {first + count - 1} ({keys}{shift}), the file "
                f"has {planes} planes", f"clip {clip}", f"planes within 0 to {planes - 1}",
                f"correct {keys}, or restore the file",
            )  # fmt: skip
        return count

    def describe(self) -> str:
        """What differs from reading whole files of one frame each, for digests; "" for nothing."""
        return "" if self == Timing() else f" {self}"


def nearest_plane(time: float) -> int:
    """The nearest whole number; half a plane is rounded up."""
    return math.floor(time + 0.5)


def read_exposures(value: Any) -> dict[str, Exposures] | None:
    """`spike.exposure` of the options. Raises OptionError for a wrong form, DataError for an unreadable file."""
    if value is None:
        return None
    where = "spike.exposure"
    if isinstance(value, str):
        where, value = value, _load(value)
    table = {"": value} if isinstance(value, dict) and set(value) & set(KEYS) else value
    if not isinstance(table, dict) or not table:
        raise _wrong(where, repr(table))
    return {clip: _exposures(entry, where, clip) for clip, entry in table.items()}


def _load(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise DataError(
            f"cannot read the exposures: {getattr(e, 'strerror', None) or e}", path, FORM, "correct spike.exposure"
        ) from e


def _exposures(entry: Any, where: str, clip: str) -> Exposures:
    of_clip = f" of clip {clip}" if clip else ""
    if isinstance(entry, dict) and set(entry) == set(KEYS) and all(map(_is_number, entry.values())):
        found = Exposures(**{key: float(value) for key, value in entry.items()})
        if found.start < 0 or found.period <= 0 or nearest_plane(found.length) < 1:
            raise _wrong(where, f"{entry}{of_clip}: start >= 0, length >= 1 and period > 0 are needed")
        return found
    if not isinstance(entry, list) or not entry:
        raise _wrong(where, f"{entry!r}{of_clip}")
    for frame, row in enumerate(entry):
        is_row = isinstance(row, list) and len(row) == 2 and all(map(_is_number, row))
        if not is_row or row[0] < 0 or nearest_plane(row[1]) < 1:
            raise _wrong(where, f"{row!r} for frame {frame}{of_clip}")
    return Exposures(rows=tuple((float(start), float(length)) for start, length in entry))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _wrong(where: str, what: str) -> OptionError:
    return OptionError(f"spike.exposure is {what}", where, FORM, "correct spike.exposure")
