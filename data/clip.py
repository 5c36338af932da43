"""The record of one clip. Whatever a clip comes from, it becomes such a record, and is checked."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from data.cameras.frame_times import FrameTimes
from utils.errors import DataError

IMAGE_KINDS = ("lq", "gt", "gt_instants")
# Control characters, and bytes that are not UTF-8, which Python reads as lone surrogates.
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

    own: the planes of the frame itself.
    pieces: all planes that are read, in the order of time. The first `before` of them come before
    the frame's own.
    center: the plane of the sharp frame, counted in the frame's own planes; x.5 lies between two.
    origin: number of the first own plane, as options and dataset.json count planes.
    """

    own: Piece
    pieces: tuple[Piece, ...]
    before: int
    center: float
    origin: int


@dataclass(frozen=True)
class Clip:
    """The files of one clip, frame by frame. Files that the data set does not have are ().

    spike: one file may hold the planes of all frames; then it is listed for each of them.
    planes: number of planes in the spike file of each frame.
    size, gt_size: (height, width) in pixels of the first frame of lq and of gt.
    gt_instants: K sharp frames of each exposure in the order of time, frame after frame.
    exposures: the planes of each frame; () without spikes.
    spikes: how the spikes are read, a data.cameras.spike_source.DatSpikes.
    times: when the frames were taken, if one spike file holds the planes of all; else None.

    Of a user's clip only:
    opened: {"lq", "gt": data.clips.files.FrameSource}. origin: {"input", "gt", "spike": path}.
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
        """Return the number of frames."""
        return len(self.stems)

    # ---- Spikes -----------------------------------------------------------------------------

    @cached_property
    def spike_files(self) -> dict[str, int]:
        """{spike file: its number of planes}, in the order of the frames."""
        # Without spikes, a clip of a cache still has planes: then there is nothing to pair.
        return dict(zip(self.spike, self.planes, strict=False))

    @cached_property
    def grid(self) -> Any:
        """How the spike planes lie on the lq frames, see data/cameras/spike_grid.py."""
        return self.spikes.grid(self.size)

    @property
    def croppable(self) -> tuple[tuple[int, int, int, int], int]:
        """The part of the lq frames that crops are drawn from, and the step of their corners.

        The part is (top, left, height, width).
        """
        if self.spikes:
            return self.grid.region, self.grid.step
        return (0, 0, *self.size), 1

    # ---- Frames -----------------------------------------------------------------------------

    @property
    def image_kinds(self) -> list[str]:
        """The kinds of images that the clip has."""
        return [kind for kind in IMAGE_KINDS if getattr(self, kind)]

    def size_of(self, kind: str) -> tuple[int, int]:
        """Return (height, width) of the frames of one kind."""
        return self.size if kind == "lq" else self.gt_size

    @property
    def scale(self) -> int:
        """Size of the sharp frames over the size of the blurry ones."""
        return self.gt_size[0] // self.size[0]

    @property
    def instants(self) -> int:
        """K, the number of sharp frames of each exposure; 0 if the data set has none."""
        return len(self.gt_instants) // len(self)

    @property
    def has_gt(self) -> bool:
        """Whether there is a sharp frame for each frame."""
        return bool(self.gt)

    @property
    def gt_place(self) -> str:
        """A file of sharp frames, for messages."""
        return (self.gt_instants or self.gt or self.lq)[0]


def checked_name(name: str, where: str) -> str:
    """Return `name` if it can name a clip or a frame, because results are written under it.

    where: where the name was read, for the message.
    Raises DataError for names that lead out of their folder, for control characters, and for bytes
    that are not UTF-8.
    """
    parts = name.split("/")
    if {"", ".", ".."} & set(parts) or _UNPRINTABLE.search(name):
        raise DataError(
            what=f"{name!r} cannot be the name of a clip or frame",
            where=where,
            expected='a name without "..", without an empty part and without control characters',
            do="rename it",
        )
    return name
