"""The record of one clip, `Clip`: its files, frame by frame.

Clips come from the folders of a data set, from a clip cache, or from a user's own files. All clips
become the same kind of record. Spikes are stored in planes. A plane has one bit for each spike
pixel: whether the pixel fired in one short time step of the spike camera.

The checks (data/clips/clip_check.py) make the record, and datasets and readers read the files that
the record names. A record never changes: `dataclasses.replace` makes a changed copy.

What must stay: the names of the fields, because clip caches and users' programs have them.
Free to add: a field with a default, so that other code can still make records without the field. If
the field must survive in a clip cache, add the field to STORED_FIELDS_OF_CLIP in
data/clips/cache_format.py.
Free to change: how the properties are computed from the fields.

Tests: tests/parts/data/test_preflight.py, tests/parts/data/test_clip_cache.py
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from data.cameras.frame_times import FrameTimes
from data.spike.geometry import Crop
from utils.errors import DataError

# Kinds of images, each a field of `Clip`: blurry frames, sharp frames, and several sharp frames
# (instants) of each exposure.
IMAGE_KINDS = ("lq", "gt", "gt_instants")
# Control characters, and bytes that are not UTF-8. Python reads such bytes as lone surrogates,
# characters from U+D800 to U+DFFF.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive planes of a spike file: first ... first + count - 1."""

    file: str  # path
    first: int  # number of the first plane in the file
    count: int  # number of planes


@dataclass(frozen=True, slots=True)
class Exposure:
    """The planes that are read for one frame: `own`, of its exposure, and context around them.

    `exposures_of` (data/cameras/frame_planes.py) makes the exposures when the clips are listed.

    E.g. the exposure has the planes 40 ... 79 of a file, and 8 planes of context are read before
    and after the exposure. The sharp frame is at plane 60 of the file:

        32 ... 39 | 40 ... 60 ... 79 | 80 ... 87
         context          own          context

    In this example, `pieces` is one piece, the planes 32 ... 87. The other fields are before = 8,
    center = 20 and origin = 40.
    """

    own: Piece  # the planes of the exposure that are read, without context
    # All planes that are read, in the order of time. They may come from several files.
    pieces: tuple[Piece, ...]
    before: int  # number of planes of context that are read before `own`
    # The plane of the sharp frame, counted from the first plane of `own`. E.g. 19.5 lies between
    # the planes 19 and 20.
    center: float
    # Number of the first plane of `own`, in the numbers that a user writes (the option
    # spike.center, and the key gt_plane of dataset.json). If each frame has a file of its own,
    # these numbers count from the first plane of the file, so origin is own.first. If one file
    # holds the whole clip, these numbers count from the first plane of the frame. E.g. a frame has
    # the planes 100 ... 155 of the file, and `own` is the middle half, 114 ... 141. Then origin is
    # 114 - 100 = 14.
    origin: int


class Croppable(NamedTuple):
    """Where the crops of training samples may lie, in lq pixels."""

    region: Crop  # every crop lies in this region
    # Crops begin at multiples of this number, e.g. at 0, 4, 8, ... with step 4. The pixels are
    # counted from the top and from the left of the region. With spikes, step is the side of a spike
    # pixel in lq pixels, so that no crop cuts a spike pixel.
    step: int


@dataclass(frozen=True)
class Clip:
    """The files of one clip, frame by frame. Files that the data set does not have are ()."""

    name: str
    stems: tuple[str, ...]  # names of the frames, without a suffix
    lq: tuple[str, ...]  # paths of the blurry frames
    gt: tuple[str, ...]  # paths of the sharp frames
    # Path of the spike file of each frame. If one file holds the planes of all frames, the same
    # path is listed for each frame.
    spike: tuple[str, ...]
    planes: tuple[int, ...]  # number of planes in the spike file of each frame
    size: tuple[int, int]  # (height, width) in pixels of the lq frames
    gt_size: tuple[int, int]  # (height, width) of the gt frames. Without gt, of the lq frames
    # Paths of the K sharp frames of each exposure in the order of time. The K paths of the first
    # frame come first.
    gt_instants: tuple[str, ...] = ()
    exposures: tuple[Exposure, ...] = ()  # the planes of each frame. () without spikes
    # How the files `spike` are read, a data.cameras.spike_source.DatSpikes. None without spikes.
    spikes: Any = None
    # The frames of a user's clip by kind, e.g. {"lq": `UserFrames`} (data/clips/user_frames.py).
    # `UserFrames.read` returns a frame. `opened` is None if the clip is not a user's clip.
    opened: Any = None
    # {"input", "gt" or "spike": path as the user gave it} of a user's clip, for the report. None
    # for any other clip. This is unrelated to `Exposure.origin`, which is a number.
    origin: Any = None
    # When the frames were taken, if one spike file holds the planes of all frames. None in all
    # other cases.
    times: FrameTimes | None = None

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self.stems)

    # ---- Spikes -----------------------------------------------------------------------------

    @cached_property
    def planes_of_spike_files(self) -> dict[str, int]:
        """Return {spike file: number of its planes}, each file once, in the order of the frames."""
        # strict=False: without spikes in the options, `spike` is empty, but a clip of a cache still
        # has `planes`. In this case, the result is empty.
        return dict(zip(self.spike, self.planes, strict=False))

    @cached_property
    def grid(self) -> Any:
        """Return how spike planes lie on the lq frames: a `ScaledGrid` or a `CalibratedGrid`.

        `DatSpikes.grid` (data/cameras/spike_source.py) makes the grid.
        """
        return self.spikes.grid(self.size)

    @property
    def croppable(self) -> Croppable:
        """Return where crops of lq frames may lie. With spikes, both cameras must see them."""
        if self.spikes:
            return Croppable(self.grid.region, self.grid.step)
        height, width = self.size
        return Croppable(Crop(0, 0, height, width), step=1)

    # ---- Frames -----------------------------------------------------------------------------

    @property
    def image_kinds(self) -> list[str]:
        """Return the kinds of images that the clip has, e.g. ["lq", "gt"]."""
        return [kind for kind in IMAGE_KINDS if getattr(self, kind)]

    def size_of(self, kind: str) -> tuple[int, int]:
        """Return (height, width) of the frames of one kind."""
        return self.size if kind == "lq" else self.gt_size

    @property
    def scale(self) -> int:
        """Return the height of gt divided by the height of lq, e.g. 1 for deblurring."""
        gt_height, _ = self.gt_size
        height, _ = self.size
        return gt_height // height

    @property
    def instants(self) -> int:
        """Return K, the number of sharp frames of each exposure in `gt_instants`. It may be 0."""
        return len(self.gt_instants) // len(self)

    @property
    def has_gt(self) -> bool:
        """Return whether there is a sharp frame for each frame."""
        return bool(self.gt)

    @property
    def gt_place(self) -> str:
        """Return a file of sharp frames, for messages. Without sharp frames: a blurry frame."""
        for paths in (self.gt_instants, self.gt, self.lq):
            if paths:
                return paths[0]
        raise ValueError("a clip has at least one frame")


def checked_name(name: str, where: str) -> str:
    """Return `name` if it can be the name of a clip or of a frame.

    Results are written under this name, so the name must not lead to another folder. Code that
    reads names must call this function, because names come from files that anybody may have
    written.

    where: where the name was read, for the message.
    Raises DataError for names that lead out of their folder, for control characters, and for bytes
    that are not UTF-8. "a/b" is a correct name; "a//b", "../b" and "/b" are not.
    """
    parts = name.split("/")  # "/b" -> "", "b"
    stays_below = "" not in parts and "." not in parts and ".." not in parts
    is_unprintable = _UNPRINTABLE.search(name) is not None
    if not stays_below or is_unprintable:
        raise DataError(
            what=f"{name!r} cannot be the name of a clip or frame",
            where=where,
            expected='a name without "..", without an empty part and without control characters',
            do="rename the clip or frame",
        )
    return name
