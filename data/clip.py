"""The record of one clip. Whatever a clip comes from, it becomes one of these at the edge, resolved and checked."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from data.cameras.frame_times import FrameTimes
from utils.errors import DataError

IMAGE_KINDS = ("lq", "gt", "gt_instants")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Piece:
    """Planes first ... first + count - 1 of a spike file."""

    file: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Exposure:
    """The planes that are read for one frame.

    own: those of the frame itself. pieces: all of them in the order of time, `before` planes before its own.
    center: the plane of the sharp frame, counted in its own planes; x.5 lies between two.
    origin: the number of its first plane as options and dataset.json count planes.
    """

    own: Piece
    pieces: tuple[Piece, ...]
    before: int
    center: float
    origin: int


@dataclass(frozen=True)
class Clip:
    """The files of one clip, frame by frame; gt and spike are empty where the data set has none.

    One spike file may hold the planes of all frames; it is then listed for each of them. gt_instants: sharp frames of
    each exposure in the order of time, as many for each frame, those of the first frame first.
    size, gt_size: (height, width) in pixels of the first frame. planes: spike planes per file.
    exposures: the planes of each frame; none without spikes. spikes: what they mean, a data.cameras.spike_source.DatSpikes.
    opened: of a user's clip, "lq", "gt" -> data.clips.files.FrameSource. origin: of it, "input", "gt", "spike" -> path.
    times: when the frames were taken, where one spike file holds the planes of all; else None.
    """

    name: str
    stems: tuple[str, ...]
    lq: tuple[str, ...]
    gt: tuple[str, ...]
    spike: tuple[str, ...]
    planes: tuple[int, ...]
    size: tuple[int, int]
    gt_size: tuple[int, int]
    gt_instants: tuple[str, ...] = ()
    exposures: tuple[Exposure, ...] = ()
    spikes: Any = None
    opened: Any = None
    origin: Any = None
    times: FrameTimes | None = None

    def __len__(self) -> int:
        return len(self.stems)

    @cached_property
    def spike_files(self) -> dict[str, int]:
        """Spike file -> its planes, in the order of the frames."""
        return dict(
            zip(self.spike, self.planes, strict=False)
        )  # without spikes, a cached clip still has planes

    @cached_property
    def grid(self) -> Any:
        """How its spike planes lie on its lq frames, see data/cameras/spike_grid.py."""
        return self.spikes.grid(self.size)

    @property
    def croppable(self) -> tuple[tuple[int, int, int, int], int]:
        """(top, left, height, width) of the part of the lq frames from which crops are drawn, and their step."""
        return (self.grid.region, self.grid.step) if self.spikes else ((0, 0, *self.size), 1)

    @property
    def has_gt(self) -> bool:
        return bool(self.gt)

    @property
    def gt_place(self) -> str:
        """Where a sharp frame is, for messages: a file of several instants, if there are any."""
        return (self.gt_instants or self.gt or self.lq)[0]

    @property
    def scale(self) -> int:
        return self.gt_size[0] // self.size[0]

    @property
    def instants(self) -> int:
        """K, the sharp frames of each exposure; 0 where the data set has none."""
        return len(self.gt_instants) // len(self)

    @property
    def image_kinds(self) -> list[str]:
        return [kind for kind in IMAGE_KINDS if getattr(self, kind)]

    def size_of(self, kind: str) -> tuple[int, int]:
        """(height, width) of the frames of one kind."""
        return self.size if kind == "lq" else self.gt_size


def checked_name(name: str, where: str) -> str:
    """`name`, read from `where`, if it can name a clip or frame: results are written under it.

    Raises DataError for names that lead out of their folder, control characters, and bytes that are not UTF-8.
    """
    parts = name.split("/")
    if {"", ".", ".."} & set(parts) or _UNPRINTABLE.search(name):
        expected = 'a name without "..", without an empty part and without control characters'
        raise DataError(
            f"{name!r} cannot be the name of a clip or frame", where, expected, "rename it"
        )
    return name
