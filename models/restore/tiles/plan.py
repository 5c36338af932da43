"""Plan how a clip is cut into tiles: their length, their side, and where they start.

The memory that a network needs grows with the clip. So a clip is cut into overlapping tiles, e.g.
of 12 frames of 256 x 256 pixels. First the clip is cut into runs of whole frames, the tiles in
time. Then each run is cut into rectangles, the tiles in space. Along each of the three axes,
`tile_starts` says where the tiles start.

The sizes come from the options `val` and the flags of the command line. network_method.py and
validation.py pass them to `Tiling.of`. The result is a `Tiling`, which the other files of this
folder read. If the memory is full, restorer.py replaces the `Tiling` by the result of
`smaller_tiling`.

What must stay: `tile_starts` (test_published_tiling_is_reproduced), and the names of the fields of
`Tiling`, which are option keys. Free to change: the tiles that `smaller_tiling` proposes.

Tests: tests/parts/models/test_tiling.py; tests/stories/test_main_test.py runs the program
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from utils.contract import InputSpec
from utils.errors import OptionError
from utils.options.val_options import AUTO_FRAMES, AUTO_SIDE, ValOptions
from utils.words import counted

# If the length of a tile in time is WHOLE, one tile holds the whole clip. If the side of a tile in
# space is WHOLE, one tile is the whole frame. Option files and --tile write the same 0.
WHOLE = 0


@dataclass(frozen=True)
class Tiling:
    """How a clip is cut into tiles and blended again.

    There are two sets of defaults. A call from Python (docs/python.md) gets the defaults below,
    i.e. one tile for the whole clip. The programs call `of` with the section `val`, so they get the
    defaults of `ValOptions` (utils/options/val_options.py). Only `blend` and `may_halve` are no
    options of `ValOptions`.
    """

    # What the network requires of its input, e.g. a multiple of 8 pixels.
    spec: InputSpec
    # Length of a tile in frames, or WHOLE for the whole clip.
    num_frame_testing: int = WHOLE
    # Number of frames that two neighbouring tiles share.
    num_frame_overlapping: int = 2
    # Side of a tile in pixels of the input, or WHOLE for the whole frame.
    size_patch_testing: int = WHOLE
    # Number of pixels that two neighbouring tiles share.
    size_patch_overlapping: int = 20
    # "kair": as published, with trimmed borders. "smooth": without a visible seam (blending.py).
    blend: str = "kair"
    # Whether the time-reversed clip, with reversed spikes, is appended to the clip. If it is, each
    # frame has two results, and their mean is the restored frame.
    flip_seq: bool = False
    # Whether the last frame is repeated before restoring. The result of the repetition is dropped.
    pad_seq: bool = False
    # Whether only frame n // 2 of n is restored.
    center_frame_only: bool = False
    # Number of tiles in space per pass of the network. The number changes no result. A larger
    # number is faster on a GPU, and uses more memory.
    batch_tiles: int = 1
    # Whether smaller tiles are tried after an out-of-memory error.
    may_halve: bool = False

    def __post_init__(self) -> None:
        """Raise OptionError if a tile is not larger than the overlap, or cuts attention windows."""
        self._refuse_overlap("num_frame", self.num_frame_testing, self.num_frame_overlapping)
        self._refuse_overlap("size_patch", self.size_patch_testing, self.size_patch_overlapping)
        # A tile holds whole attention windows, so that no window is padded. A tile of the whole
        # frame passes the check, because WHOLE is 0. padding.py pads it to whole windows.
        side = self.size_patch_testing
        _, window_height, window_width = self.spec.window_size
        window_side = math.lcm(window_height, window_width)
        if side % window_side != 0:
            raise OptionError(
                what=f"val.size_patch_testing {side} is not a multiple of {window_side}",
                where="val.size_patch_testing",
                expected="a multiple of the window",
                do=f"use {round_up(side, window_side)}",
            )

    @staticmethod
    def _refuse_overlap(key: str, size: int, overlap: int) -> None:
        """Raise OptionError if a tile is not larger than its overlap with the next tile.

        Each tile begins `size - overlap` after the tile before it. If this step were not above 0,
        the tiles would never reach the end of the clip or of the frame.

        key: the beginning of the names of both options, "num_frame" or "size_patch".
        """
        if size != WHOLE and size <= overlap:
            raise OptionError(
                what=f"the options ask for tiles of {size} that overlap by {overlap}",
                where=f"val.{key}_testing, val.{key}_overlapping",
                expected="overlap < tile, or tile 0 (the whole)",
                do=f"raise {key}_testing or lower {key}_overlapping",
            )

    @classmethod
    def of(cls, val: ValOptions, spec: InputSpec, **changes: Any) -> "Tiling":
        """Return the tiling of the options `val`, for a network that requires `spec`.

        Each "auto" becomes a number here.

        changes: fields that replace fields of `val`, or that `val` lacks (`blend`, `may_halve`).
        """
        # The options of `val` have the names of the fields, so they become the arguments of this
        # class. A value of `changes` wins. Only save_img is no field: it says whether a validation
        # saves pictures. A new option of `val` needs a field, or must be deleted here, too.
        fields: dict[str, Any] = val.plain() | changes
        del fields["save_img"]

        is_length_auto = fields["num_frame_testing"] == "auto"
        is_side_auto = fields["size_patch_testing"] == "auto"
        if is_length_auto:
            window_frames = spec.window_size[0]
            fields["num_frame_testing"] = round_up(AUTO_FRAMES, window_frames)
        if is_side_auto:
            # Take a multiple of the window and of the stride, so that padding.py adds no pixels.
            fields["size_patch_testing"] = round_up(AUTO_SIDE, spec.multiple)
        if is_length_auto or is_side_auto:
            # "auto" asks for a good result: no seams, and no out-of-memory error. Without "auto",
            # the user may want the published result of the given sizes. So the defaults of the
            # class stay: blend "kair", and no smaller tiles.
            fields.setdefault("blend", "smooth")
            fields.setdefault("may_halve", True)

        # If each frame is restored without its neighbours, tiles of several frames would only take
        # more memory.
        if is_length_auto and spec.each_frame_alone:
            fields["num_frame_testing"] = 1
            fields["num_frame_overlapping"] = 0

        # A network that interpolates makes a new frame in a gap, i.e. between two frames of a clip.
        # For this, it takes the `least_frames` frames around the gap.
        # `Restorer._interpolate_frames` joins the frames of all gaps, as if they were one clip. So
        # a tile in time must have the frames of one gap, and tiles must not overlap.
        if spec.interpolates:
            fields["num_frame_testing"] = spec.least_frames
            fields["num_frame_overlapping"] = 0
        return cls(spec, **fields)

    def describe(self) -> str:
        """Return the tiles in words, for the log and for the protocol of a test (run.json).

        E.g. "tiles of 12 frames x 256 px, overlap 2 frames, 20 px, smooth blend".
        """
        is_whole_in_time = self.num_frame_testing == WHOLE
        is_whole_in_space = self.size_patch_testing == WHOLE
        if is_whole_in_time:
            frames = "the whole clip"
        elif self.num_frame_testing == 1:
            frames = "1 frame"
        else:
            frames = counted(self.num_frame_testing, "frame")
        side = "the whole frame" if is_whole_in_space else f"{self.size_patch_testing} px"
        phrases = [f"tiles of {frames} x {side}"]
        # A single tile has no overlap. If there are several tiles, name both overlaps, even if the
        # clip is cut only in time, or only in space.
        if not is_whole_in_time or not is_whole_in_space:
            phrases.append(
                f"overlap {counted(self.num_frame_overlapping, 'frame')}, "
                f"{self.size_patch_overlapping} px"
            )
        if self.batch_tiles > 1:
            phrases.append(f"{self.batch_tiles} at once")
        phrases.append(f"{self.blend} blend")
        for option in ("flip_seq", "pad_seq", "center_frame_only"):
            is_set = getattr(self, option)
            if is_set:
                phrases.append(option)
        return ", ".join(phrases)


def tile_starts(length: int, size: int, overlap: int) -> list[int]:
    """Return the starts of the tiles along one axis, in time or in space.

    E.g. size 4, overlap 1, length 10 -> 0, 3, 6. With length 9 -> 0, 3, 5: the last tile ends at
    the end of the axis, so it overlaps the tile before it by 2.

    The starts must stay as in the published code, because other starts give other scores than the
    published scores (test_published_tiling_is_reproduced).

    length: length of the axis. size: length of a tile. overlap: overlap of neighbouring tiles.
    """
    if length <= size:
        return [0]
    last_start = length - size
    step = size - overlap
    return [*range(0, last_start, step), last_start]


def smaller_tiling(tiling: Tiling, height: int, width: int) -> Tiling | None:
    """Return the next tiling to try after an out-of-memory error, or None after the smallest.

    First the number of tiles per pass of the network is halved, then the side, then the length.
    E.g. for a network whose smallest side is 64, with an overlap of 2 frames:

        12 frames x 256 px -> 12 x 128 -> 12 x 64    half the side, until 64
        12 x 64 -> 6 x 64 -> 3 x 64                  half the length, as long as it is above 2
        3 x 64 -> None

    The order may change
    (test_memory_is_saved_by_fewer_tiles_at_once_then_smaller_sides_then_fewer_frames has it), but
    each result must be smaller than `tiling`. `Restorer._restore_frames` tries one result after the
    other, so without a smaller result it would never end.

    height, width: size of a frame of the input.
    """
    # The number of tiles per pass changes no result, so it is lowered first.
    if tiling.batch_tiles > 1:
        return replace(tiling, batch_tiles=tiling.batch_tiles // 2)

    # Sides of tiles are multiples of this number, the common multiple of the stride and the window
    # sides.
    multiple = tiling.spec.multiple
    least_side = round_up(max(tiling.spec.least_size), multiple)
    side = tiling.size_patch_testing
    if side == WHOLE:
        side = max(height, width)
    half_side = max(least_side, round_down(side // 2, multiple))
    # A tile must be larger than its overlap with the next tile.
    if tiling.size_patch_overlapping < half_side < side:
        return replace(tiling, size_patch_testing=half_side)

    # If a tile is the whole clip, `length` is WHOLE, i.e. 0, and the condition is false. So the
    # whole clip is never cut.
    length = tiling.num_frame_testing
    half_length = max(tiling.spec.least_frames, length // 2)
    if tiling.num_frame_overlapping < half_length < length:
        return replace(tiling, num_frame_testing=half_length)
    return None


def round_up(size: int, multiple: int) -> int:
    """Return the least multiple that is not below `size`, e.g. 12 and 8 -> 16."""
    return math.ceil(size / multiple) * multiple


def round_down(size: int, multiple: int) -> int:
    """Return the largest multiple that is not above `size`, e.g. 12 and 8 -> 8."""
    return size // multiple * multiple
