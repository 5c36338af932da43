"""Restore clips of any length and size in tiles of time and space.

The memory that a network needs grows with the clip. So a clip is cut into tiles, e.g. of 12 frames
of 256 x 256 pixels, which overlap. The cut has two steps: a tile in time is a run of whole frames,
and a tile in space is a rectangle of these frames. The tiles are restored one by one and blended:
each pixel of the result is a weighted mean over the tiles that contain this pixel. There are two
blends:

    "kair"     the blend of KAIR, the published code: equal weights, and trimmed borders
    "smooth"   weights that rise and fall over the overlap, so that no seam is visible

    Restorer.frames        a network on a device: restores frames of a clip, and takes smaller tiles
                           if the memory is full
      stream_clip          tile by tile in time
        restore_space      tile by tile in space
          _run             one tile, padded to a size that the network takes

Networks that interpolate (VRT with pa_frames 0) take the frames around a gap and make a new frame
in the gap. InterpolatedClip and LeftOutFrames are clips with gaps.

Shapes: B clips, n frames, C channels of a blurry frame, S spike channels, H x W pixels. A result
has C' channels (the colours of all its instants) and sH x sW pixels, where s is the scale of the
network, e.g. 4 for super-resolution.

What must stay, and which test notices (in tests/parts/models/test_tiling.py):

    the blend "kair" gives the published       test_published_tiling_is_reproduced
    numbers
    a part of a clip has the bits of the       test_a_part_of_a_clip_equals_that_part_of_the_whole
    whole, because several processes may
    restore parts of one clip
    the order in which tiles are added         none: another order changes the last bits

Free to change: the blend "smooth", the tiles that `smaller_tiling` proposes, and AUTO_TILE. (With
another AUTO_TILE all scores change that were made with "auto".) tests/stories/test_main_test.py
runs the program.
"""

import itertools
import logging
import math
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from utils import device as devices
from utils.contract import ClipReader, FrameReader, InputSpec, Tick
from utils.dist import watchdog
from utils.errors import DataError, OptionError
from utils.options.models import ValOptions

# Index of a frame, and whether time is reversed. In reversed time, the frame comes with the spikes
# of the reversed stream.
Moment = tuple[int, bool]
# A function that reads n moments. It returns a tuple of one or two tensors: the blurry frames, lq
# (B, n, C, H, W), and if the clip has spikes, the spike channels (B, n, S, H, W).
ReadMoments = Callable[[Sequence[Moment]], tuple[Tensor, ...]]
# The value of num_frame_testing or size_patch_testing for a single tile: the whole clip in time, or
# the whole frame in space.
WHOLE = 0
# Frames that a cache holds beyond the frames that are needed at once: a reserve, not measured. With
# 0, one frame too many would push out a frame that is still needed, and it would be read twice.
SPARE_FRAMES = 2
# The tile for "auto", in frames and in pixels. The tile is the same on every machine, so that no
# score depends on the memory of a machine, see docs/testing.md. The network sees less of the clip
# in a smaller tile, and needs more memory for a larger tile.
AUTO_TILE = {"num_frame_testing": 12, "size_patch_testing": 256}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tiling:
    """How a clip is cut into tiles and blended again.

    Sizes are in input pixels, lengths in frames. All fields but `spec` and `may_halve` are option
    keys of the section `val`, so their names must stay.

    spec: what the network requires of its input, e.g. a multiple of 8 pixels. Tiles are padded to
    fit it.
    num_frame_testing, size_patch_testing: length and side of a tile, or WHOLE.
    num_frame_overlapping, size_patch_overlapping: overlap of neighbouring tiles.
    blend: "kair" or "smooth", see `_blend_weights`.
    flip_seq: whether the time-reversed clip is put behind the clip, with reversed spikes. Each
    frame is then the mean of its two results.
    pad_seq: whether the last frame is repeated before restoring. The result for the repetition is
    dropped.
    center_frame_only: whether only frame n // 2 of n is restored.
    batch_tiles: number of spatial tiles per pass of the network. More are faster on a GPU, and use
    more memory.
    may_halve: whether smaller tiles are tried after an out-of-memory error.
    """

    spec: InputSpec
    num_frame_testing: int = WHOLE
    num_frame_overlapping: int = 2
    size_patch_testing: int = WHOLE
    size_patch_overlapping: int = 20
    blend: str = "kair"
    flip_seq: bool = False
    pad_seq: bool = False
    center_frame_only: bool = False
    batch_tiles: int = 1
    may_halve: bool = False

    def __post_init__(self) -> None:
        """Raise OptionError if a tile is not larger than the overlap, or cuts attention windows."""
        # Each tile must reach beyond the tile before it. Otherwise the tiles would never reach the
        # end of the clip. The keys are num_frame_testing and num_frame_overlapping for time,
        # size_patch_testing and size_patch_overlapping for space.
        for key in ("num_frame", "size_patch"):
            size = getattr(self, f"{key}_testing")
            overlap = getattr(self, f"{key}_overlapping")
            if size != WHOLE and size <= overlap:
                raise OptionError(
                    what=f"tiles of {size} that overlap by {overlap}",
                    where=f"val.{key}_testing, val.{key}_overlapping",
                    expected="overlap < tile, or tile 0 (the whole)",
                    do=f"raise {key}_testing or lower {key}_overlapping",
                )
        # A tile holds whole attention windows, so that no window is padded. WHOLE is 0, which is a
        # multiple of any window, so it passes. The tile of a whole frame is padded in `_run`.
        side = self.size_patch_testing
        _, window_height, window_width = self.spec.window_size
        window_side = math.lcm(window_height, window_width)  # the side of a tile fits both
        if side % window_side != 0:
            raise OptionError(
                what=f"val.size_patch_testing {side} is not a multiple of {window_side}",
                where="val.size_patch_testing",
                expected="a multiple of the window",
                do=f"use {_round_up(side, window_side)}",
            )

    @classmethod
    def of(cls, val: ValOptions, spec: InputSpec, **changes: Any) -> "Tiling":
        """Return the tiling that the options `val` ask for, for a network with `spec`.

        changes: fields that replace fields of `val`, or that `val` lacks (`blend`, `may_halve`).
        """
        # Where `changes` has a key of `val`, `changes` wins.
        fields: dict[str, Any] = val.plain() | changes
        # This option says whether a validation saves pictures. It is no field of this class.
        del fields["save_img"]

        # Replace "auto" by a number: AUTO_TILE, rounded up to whole windows of the network.
        window_frames = spec.window_size[0]
        multiples = {"num_frame_testing": window_frames, "size_patch_testing": spec.multiple}
        for key, multiple in multiples.items():
            if fields[key] == "auto":
                fields[key] = _round_up(AUTO_TILE[key], multiple)
                # A user of "auto" wants a result without seams, and no out-of-memory error. A user
                # who gives a size may want to reproduce the published result for this size. So a
                # given size keeps the defaults of the class: blend "kair", and no smaller tile.
                fields.setdefault("blend", "smooth")
                fields.setdefault("may_halve", True)

        # A network that interpolates takes exactly `least_frames` frames: half of them before a
        # gap, and half behind it. These frames are one tile in time. The tiles do not overlap,
        # because `Restorer._interpolate_frames` puts the frames of all gaps one behind the other.
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
        frames = "the whole clip" if is_whole_in_time else f"{self.num_frame_testing} frames"
        side = "the whole frame" if is_whole_in_space else f"{self.size_patch_testing} px"
        phrases = [f"tiles of {frames} x {side}"]
        # A single tile overlaps nothing.
        if not is_whole_in_time or not is_whole_in_space:
            phrases.append(
                f"overlap {self.num_frame_overlapping} frames, {self.size_patch_overlapping} px"
            )
        if self.batch_tiles > 1:
            phrases.append(f"{self.batch_tiles} at once")
        phrases.append(f"{self.blend} blend")
        for option in ("flip_seq", "pad_seq", "center_frame_only"):
            is_set = getattr(self, option)
            if is_set:
                phrases.append(option)
        return ", ".join(phrases)


def _round_up(size: int, multiple: int) -> int:
    """Return the least multiple that is not below `size`, e.g. 12 and 8 -> 16."""
    return math.ceil(size / multiple) * multiple


def _round_down(size: int, multiple: int) -> int:
    """Return the largest multiple that is not above `size`, e.g. 12 and 8 -> 8."""
    return size // multiple * multiple


# ---- Tiles in time ---------------------------------------------------------------------------


@torch.no_grad()
def stream_clip(
    net: Callable[..., Tensor],
    read: ReadMoments,
    num_frames: int,
    tiling: Tiling,
    wanted: range,
    tick: Tick = lambda part: None,
) -> Iterator[Tensor]:
    """Yield the restored frames `wanted` in order, (B, C', sH, sW) each, on the CPU.

    Memory holds one tile in time. Only the tiles that contain wanted frames are computed. (With
    flip_seq all tiles are computed, because the second result of frame 0 is in the last tile.) The
    frames equal the frames of a run over the whole clip bit for bit, so several processes may
    restore parts of one clip. The network must be in eval mode.

    net: takes the tensors that `read` returns, and returns (B, n, C', sH, sW).
    read: reads moments of the clip. A moment is (index of a frame, whether time runs backwards).
    num_frames: number of frames of the clip. wanted: indices of the frames to yield.
    tick: is called with the share of the work, 0 to 1, that was done since the call before.
    """
    moments = [(index, False) for index in range(num_frames)]
    # Repeat the last frame: e.g. 7 frames become 8, because a training with the option pad_sequence
    # repeats the last frame, too. The result for the repetition is not used, because `wanted` has
    # only frames of the clip.
    if tiling.pad_seq:
        last_moment = moments[-1]
        moments.append(last_moment)
    if not tiling.flip_seq:
        yield from _stream_moments(net, read, moments, tiling, wanted, tick)
        return

    # The clip, and then the clip in reversed time. E.g. for 3 frames: 0 1 2 2 1 0.
    backwards = [(index, True) for index, _ in reversed(moments)]
    there_and_back = moments + backwards
    count = len(there_and_back)
    # Each frame has two results, and the second result of frame 0 comes last. So all results wait
    # in a file.
    with tempfile.TemporaryFile() as file:
        results = _FrameStore(file)
        all_positions = range(count)
        for frame in _stream_moments(net, read, there_and_back, tiling, all_positions, tick):
            results.append(frame)
        for index in wanted:
            forward = results.read(index)
            backward = results.read(count - 1 - index)  # e.g. frame 0 of 6 positions: also at 5
            # A network may restore K instants of each frame, one behind the other along the
            # channels. In the reversed clip the last instant comes first, so reverse their order.
            instants = backward.unflatten(-3, (tiling.spec.out_instants, -1))  # (B, K, 3, sH, sW)
            in_order = instants.flip(-4)
            backward = in_order.flatten(-4, -3)  # (B, C', sH, sW), where C' is 3 K
            yield (forward + backward) / 2


class _FrameStore:
    """Frames of one shape and dtype in a file, to be read in any order.

    Only `stream_clip` uses it, so that the memory does not hold all frames of a clip.
    """

    def __init__(self, file: IO[bytes]) -> None:
        """file: an empty file, open for writing and reading."""
        self.file = file
        # Shape, dtype and size of every frame. `append` sets them.
        self.shape = torch.Size()
        self.dtype = torch.float32
        self.bytes_of_frame = 0

    def append(self, frame: Tensor) -> None:
        """Write a frame on the CPU behind the frames so far. Append all frames before you read."""
        self.shape = frame.shape
        self.dtype = frame.dtype
        self.bytes_of_frame = frame.nbytes
        self.file.write(frame.numpy().tobytes())

    def read(self, position: int) -> Tensor:
        """Return the frame that was appended as number `position`, from 0."""
        self.file.seek(position * self.bytes_of_frame)
        # torch takes only a buffer that it may write to, so copy the bytes into a bytearray.
        content = bytearray(self.file.read(self.bytes_of_frame))
        return torch.frombuffer(content, dtype=self.dtype).reshape(self.shape)


def tile_starts(length: int, size: int, overlap: int) -> list[int]:
    """Return the starts of the tiles along one axis, in time or in space.

    The last tile ends with the axis, so it may overlap its neighbour by more than `overlap`. E.g.
    length 10, size 4, overlap 1 -> 0, 3, 6; length 9 -> 0, 3, 5.

    The published code has these starts. With other starts the published numbers are no longer
    reproduced (test_published_tiling_is_reproduced). So change nothing here.
    """
    if length <= size:
        return [0]
    last_start = length - size
    step = size - overlap
    return [*range(0, last_start, step), last_start]


def _stream_moments(
    net: Callable[..., Tensor],
    read: ReadMoments,
    moments: Sequence[Moment],
    tiling: Tiling,
    wanted: range,
    tick: Tick,
) -> Iterator[Tensor]:
    """Yield the restored frames at positions `wanted` of `moments`, tile by tile in time.

    Only `stream_clip` calls this. The order of the tiles must stay, because a frame in two tiles is
    the sum of both, in this order. test_tiling.py notices a frame that is missing, or that differs
    if only a part of the clip is wanted.
    """
    length = len(moments)
    size = length  # number of frames of a tile
    if tiling.num_frame_testing != WHOLE:
        size = min(tiling.num_frame_testing, length)
    starts = tile_starts(length, size, tiling.num_frame_overlapping)  # e.g. 0, 10, 20
    # With the blend "kair", all frames of a tile have the weight 1: overlap 0. This blend trims the
    # borders of tiles in space only.
    overlap = tiling.num_frame_overlapping if tiling.blend == "smooth" else 0

    # Index and start of each tile that contains a wanted frame.
    needed_tiles = []
    for tile_index, start in enumerate(starts):
        stop = start + size
        begins_before_end = start < wanted.stop
        ends_after_begin = stop > wanted.start
        if begins_before_end and ends_after_begin:
            needed_tiles.append((tile_index, start))

    # The sums of the frames from the start of the present tile on, in the order of time. A sum is
    # complete if the next tile begins after its frame.
    pending: deque[_WeightedSum] = deque()
    for tile_index, start in needed_tiles:
        inputs = read(moments[start : start + size])

        def tick_of_tile(share_of_tile: float) -> None:
            # `restore_space` counts shares of one tile. The caller counts shares of all tiles.
            tick(share_of_tile / len(needed_tiles))

        clip = restore_space(net, inputs, tiling, tick_of_tile)
        del inputs  # the input of this tile can leave the memory

        weights = _blend_weights(starts, tile_index, size, overlap, tiling.blend)
        _add_frames(pending, clip, weights.tolist())
        del clip  # the next tile is computed without this tile in memory

        # Yield the frames before the next tile, because no further tile contains them.
        is_last_tile = tile_index + 1 == len(starts)
        next_start = length if is_last_tile else starts[tile_index + 1]
        for position in range(start, next_start):
            finished = pending.popleft()
            if position in wanted:
                yield finished.total / finished.weight


class _WeightedSum(NamedTuple):
    """The results for one frame, summed over the tiles in time that contain this frame."""

    total: Tensor  # sum of the results times their weights, (B, C', sH, sW)
    weight: float  # sum of the weights, by which the total is divided at the end


def _add_frames(pending: deque[_WeightedSum], clip: Tensor, weights: Sequence[float]) -> None:
    """Add the frames of a restored tile to the sums `pending`, which is changed in place.

    pending: its first sum belongs to the first frame of the tile.
    clip: the tile (B, n, C', sH, sW). weights: weight of each of its n frames.
    """
    for frame_index, weight in enumerate(weights):
        frame = clip[:, frame_index] * weight  # (B, C', sH, sW)
        if frame_index < len(pending):  # an earlier tile contains this frame, too
            so_far = pending[frame_index]
            total = so_far.total.add_(frame)  # in place, which saves the memory of a frame
            pending[frame_index] = _WeightedSum(total, so_far.weight + weight)
        else:
            pending.append(_WeightedSum(frame, weight))


# ---- Tiles in space --------------------------------------------------------------------------


class _Patch(NamedTuple):
    """A tile in space, in pixels of the input.

    E.g. the second of three tiles along the height, in the first column of tiles: row 1, column 0.
    """

    row: int  # number of the tile along the height, from 0
    top: int  # first row of pixels
    column: int  # number of the tile along the width, from 0
    left: int  # first column of pixels
    height: int
    width: int

    def area(self, scale: int = 1) -> tuple[slice, slice]:
        """Return the rows and the columns of pixels that the tile covers.

        scale: 1 for pixels of the input, the scale of the network for pixels of its output.
        """
        rows = slice(self.top * scale, (self.top + self.height) * scale)
        columns = slice(self.left * scale, (self.left + self.width) * scale)
        return rows, columns


def restore_space(
    net: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    tiling: Tiling,
    tick: Tick = lambda part: None,
) -> Tensor:
    """Restore one tile in time, tile by tile in space: (B, n, C', sH, sW) on the CPU.

    inputs: the n frames lq (B, n, C, H, W), and with spikes their channels (B, n, S, H, W).
    tick: called after each batch of tiles with the share of the work that the batch was, 0 ... 1.
    """
    height, width = inputs[0].shape[-2:]
    scale = tiling.spec.scale
    # Height and width of a tile, in pixels of the input. A small frame is a single tile.
    tile_height = height
    tile_width = width
    if tiling.size_patch_testing != WHOLE:
        tile_height = min(tiling.size_patch_testing, height)
        tile_width = min(tiling.size_patch_testing, width)
    tops = tile_starts(height, tile_height, tiling.size_patch_overlapping)
    lefts = tile_starts(width, tile_width, tiling.size_patch_overlapping)
    if len(tops) == 1 and len(lefts) == 1:
        whole = _run(net, inputs, tiling)
        tick(1)  # all of the work is done
        return whole

    # The tiles row by row, and from left to right within a row.
    patches = []
    for row, top in enumerate(tops):
        for column, left in enumerate(lefts):
            patches.append(_Patch(row, top, column, left, tile_height, tile_width))

    # The weighted sum of the tiles, and the sum of their weights. Only the first result says how
    # many channels there are, so until then `total` is an empty tensor.
    total = torch.empty(0)
    total_weight = torch.zeros(height * scale, width * scale)
    for first in range(0, len(patches), tiling.batch_tiles):
        batch = patches[first : first + tiling.batch_tiles]
        results = _restore_patches(net, inputs, batch, tiling)
        if first == 0:
            leading_axes = results[0].shape[:-2]  # (B, n, C')
            total = results[0].new_zeros(*leading_axes, height * scale, width * scale)
        # Add each result, times its weight, to the sum at the place of its tile. Both sums are
        # changed in place. The weights are float32. They take the dtype of the result, which is
        # float64 if the network computes in float64.
        for patch, result in zip(batch, results, strict=True):
            weight = _patch_weight(patch, tops, lefts, tiling)
            rows, columns = patch.area(scale)
            total[..., rows, columns] += result * weight.to(result.dtype)
            total_weight[rows, columns] += weight
        share_of_batch = len(batch) / len(patches)
        tick(share_of_batch)
    return total.div_(total_weight.to(total.dtype))


def _patch_weight(patch: _Patch, tops: list[int], lefts: list[int], tiling: Tiling) -> Tensor:
    """Return the weight of each output pixel of a tile, (s * tile height, s * tile width).

    s is the scale of the network.

    tops, lefts: first rows and first columns of all tiles, in pixels of the input.
    """
    scale = tiling.spec.scale
    # Neighbouring tiles share `overlap` pixels of the input, which are scale * overlap pixels of
    # the output. The published code does not multiply by the scale: with an overlap of 20, it trims
    # 10 output pixels at the border of a tile at any scale. "kair" does the same, because it
    # reproduces the published numbers.
    overlap = tiling.size_patch_overlapping
    if tiling.blend == "smooth":
        overlap *= scale
    along_height = _blend_weights(tops, patch.row, patch.height * scale, overlap, tiling.blend)
    along_width = _blend_weights(lefts, patch.column, patch.width * scale, overlap, tiling.blend)
    return along_height[:, None] * along_width


def _restore_patches(
    net: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    batch: Sequence[_Patch],
    tiling: Tiling,
) -> tuple[Tensor, ...]:
    """Restore several tiles in one pass of the network. Returns a (B, n, C', h, w) for each tile.

    inputs: lq and perhaps the spike channels of the whole frames, (B, n, channels, H, W) each.
    """
    stacked = []  # each input, with the tiles as clips of one batch
    for x in inputs:
        cut_tiles = []
        for patch in batch:
            rows, columns = patch.area()
            cut_tiles.append(x[..., rows, columns])
        # For the network, each tile is a clip of its own.
        stacked.append(torch.cat(cut_tiles))  # (tiles B, n, channels, tile height, tile width)
    restored = _run(net, tuple(stacked), tiling)
    clip_count = len(inputs[0])  # B
    return restored.split(clip_count)


def _blend_weights(
    starts: list[int], tile_index: int, size: int, overlap: int, blend: str
) -> Tensor:
    """Return the weights (size,) of one tile along one axis, in time or in space.

    The caller adds the weighted tiles, and divides by the sum of the weights. So weights need not
    sum to 1, but every pixel needs a tile with a weight above 0. The weights are 1, except where
    the tile overlaps a neighbour:

    "kair"      0 over half of the overlap. Half of an odd overlap is rounded down at the start of
                a tile and up at its end, so that at each pixel one of two neighbours has the
                weight 1, and the other has 0. E.g. two tiles that share 5 pixels:
                    end of one tile      ... 1 1 1 0 0 0
                    start of the next          0 0 1 1 1 1 ...
    "smooth"    half a period of a cosine over the whole overlap, from nearly 0 to nearly 1. The
                weight is never 0, because the sum of the weights is a divisor.

    starts: starts of all tiles along the axis.
    tile_index: which of these tiles, from 0.
    size, overlap: size of the tile and overlap of neighbours, in pixels or frames of the result.

    "kair" must stay as it is: test_published_tiling_is_reproduced compares with the published code.
    "smooth" is free to change, if no weight is 0.
    """
    if blend == "smooth":
        overlap = min(overlap, size)  # a small frame may be smaller than the overlap
        # The middles of `overlap` equal steps from 0 to pi. E.g. overlap 2: pi / 4, 3 pi / 4.
        divisor = max(overlap, 1)  # for overlap 0 there are no steps, and no division by 0
        phase = torch.pi * (torch.arange(overlap) + 0.5) / divisor
        begin = 0.5 - 0.5 * torch.cos(phase)  # rises from nearly 0 to nearly 1
        end = begin.flip(0)
    else:
        begin = torch.zeros(overlap // 2)
        end = torch.zeros(math.ceil(overlap / 2))
    weights = torch.ones(size)
    has_tile_before = tile_index > 0
    has_tile_after = tile_index < len(starts) - 1
    if has_tile_before:
        weights[: len(begin)] *= begin
    if has_tile_after:
        weights[size - len(end) :] *= end
    return weights


def _run(net: Callable[..., Tensor], inputs: tuple[Tensor, ...], tiling: Tiling) -> Tensor:
    """Run the network once over a tile, which is padded to a size that the network takes.

    The padding mirrors the tile at its end, as often as needed. The result is cropped to the tile,
    and on the CPU. Every pass of the network goes through this function.
    """
    scale = tiling.spec.scale
    _, frames, _, height, width = inputs[0].shape
    padded_height, padded_width = _padded_size(height, width, tiling.spec)
    padded_frames = _padded_length(frames, tiling)
    padded = []
    for x in inputs:  # (B, n, channels, H, W)
        x = _extend_by_mirroring(x, axis=1, size=padded_frames)
        x = _extend_by_mirroring(x, axis=3, size=padded_height)
        x = _extend_by_mirroring(x, axis=4, size=padded_width)
        padded.append(x)
    out = net(*padded)  # (B, n, C', sH, sW), of the padded tile
    out = out[:, :frames, :, : height * scale, : width * scale]
    out = out.cpu()
    # float64 is kept, because tests compare in float64. Any other dtype (e.g. bfloat16) becomes
    # float32, in which the weighted tiles are summed.
    if out.dtype == torch.float64:
        return out
    return out.float()


def _padded_length(frames: int, tiling: Tiling) -> int:
    """Return the number of frames with which the network runs on a tile of `frames` frames.

    A network can take an incomplete window: it fills the window with positions without a token. So
    padding by mirrored frames is a choice. The blend "kair" follows the published tiling, which
    pads a whole clip only. E.g. windows of 6 frames, and a clip of 7 frames:

        num_frame_testing 0                 12   the whole clip is one tile: padded
        num_frame_testing 12, "smooth"      12   the clip is shorter than a tile: padded
        num_frame_testing 12, "kair"         7   the same clip: not padded, as published
        num_frame_testing 7                  7   the tile has the length asked for: not padded
    """
    is_whole_clip = tiling.num_frame_testing == WHOLE
    is_short_clip = frames < tiling.num_frame_testing
    needs_whole_windows = is_whole_clip or (is_short_clip and tiling.blend == "smooth")
    if needs_whole_windows:
        window_frames = tiling.spec.window_size[0]
        frames = _round_up(frames, window_frames)
    return max(frames, tiling.spec.least_frames)


def _padded_size(height: int, width: int, spec: InputSpec) -> tuple[int, int]:
    """Return height and width with which the network runs on a tile of this height and width.

    Height and width become multiples of two numbers: the side of a window, and the stride. The
    stride is the number of pixels that the network merges into one position at its coarsest
    resolution. E.g. windows of 8 x 8 pixels: with stride 1, 20 x 64 becomes 24 x 64; with stride
    16, it becomes 32 x 64.
    """
    _, window_height, window_width = spec.window_size
    least_height, least_width = spec.least_size
    height_step = math.lcm(window_height, spec.stride)
    width_step = math.lcm(window_width, spec.stride)
    padded_height = max(_round_up(height, height_step), least_height)
    padded_width = max(_round_up(width, width_step), least_width)
    return padded_height, padded_width


def _extend_by_mirroring(x: Tensor, axis: int, size: int) -> Tensor:
    """Extend x along an axis to `size`, e.g. 0 1 2 -> 0 1 2 2 1 0 0 1 2 ..."""
    length = x.shape[axis]
    if size == length:
        return x
    # One period has twice the length: the axis forward, then backward. E.g. for length 3 the
    # positions 0 1 2 3 4 5, of which 3 4 5 become 2 1 0.
    index = torch.arange(size, device=x.device) % (2 * length)
    index = torch.where(index < length, index, 2 * length - 1 - index)
    return x.index_select(axis, index)


# ---- Restoring a clip ------------------------------------------------------------------------


def smaller_tiling(tiling: Tiling, height: int, width: int) -> Tiling | None:
    """Return the next tiling to try after an out-of-memory error, or None after the smallest.

    The order: fewer tiles per pass, then half the side, then half the length. E.g. for a network
    whose smallest side is 64: 12 frames x 256 px -> 12 x 128 -> 12 x 64 -> 6 x 64. The order may
    change, but each result must be smaller than `tiling`, because `Restorer._restore_frames` tries
    again until the clip fits or the result is None.

    height, width: size of a frame of the input.
    """
    # The number of tiles per pass changes no result, so it is lowered first.
    if tiling.batch_tiles > 1:
        return replace(tiling, batch_tiles=tiling.batch_tiles // 2)

    step = tiling.spec.multiple  # common multiple of stride, window height and window width
    least_side = _round_up(max(tiling.spec.least_size), step)
    side = tiling.size_patch_testing
    if side == WHOLE:
        side = max(height, width)
    half_side = max(least_side, _round_down(side // 2, step))
    is_side_smaller = half_side < side  # False if the side is the smallest already
    # A tile must be larger than its overlap with the next tile.
    if is_side_smaller and half_side > tiling.size_patch_overlapping:
        return replace(tiling, size_patch_testing=half_side)

    # A tile of the whole length is not halved. Its `length` is WHOLE, which is 0, so `half_length`
    # is never below it.
    length = tiling.num_frame_testing
    half_length = max(tiling.spec.least_frames, length // 2)
    if half_length < length and half_length > tiling.num_frame_overlapping:
        return replace(tiling, num_frame_testing=half_length)
    return None


class FrameCache:
    """A selection of the frames of a clip. The frames that were read last are kept in memory.

    So a frame that lies in two overlapping tiles is decoded once.
    """

    def __init__(
        self, clip: FrameReader, capacity: int, selection: Sequence[int] | None = None
    ) -> None:
        """Wrap a clip.

        capacity: number of frames that are kept.
        selection: indices of frames of the clip, e.g. [0, 1, 2, 3, 1, 2, 3, 4]. A frame may come
        several times, and the order is free. None selects all frames.
        """
        self.name = clip.name
        self._selection = range(len(clip.stems)) if selection is None else selection
        self.stems = [clip.stems[index] for index in self._selection]
        self._cached_frame = lru_cache(capacity)(clip.frame)

    def frame(self, index: int, reverse: bool = False) -> dict[str, Any]:
        """Return the tensors of a frame: "lq", and "spike" if the clip has spikes.

        index: position in the selection. reverse: whether the spikes are given as in reversed time.
        """
        return self._cached_frame(self._selection[index], reverse)


class Restorer:
    """A network on a device, and the tiles in which it restores clips.

    Validation and tests restore with it (`validation`, `network_method`).

    net: is moved to the device, and set to eval mode.
    tiling: the tiles in use. They become smaller if may_halve is set and memory is full.
    dtype: dtype of autocast, or None for float32.
    noise_sigma: noise level 0..255 for a non-blind denoiser, which takes it as one more channel of
    its input. None: the network takes no noise level.
    finite_only: whether NaN or Inf in a restored frame is an error.
    do: advice in the error for out of memory.
    """

    def __init__(
        self,
        net: nn.Module,
        tiling: Tiling,
        device: torch.device,
        *,
        dtype: torch.dtype | None = None,
        noise_sigma: float | None = None,
        finite_only: bool = True,
        do: str = "use --tile auto, smaller tiles (--tile 6,128), or --dtype bfloat16",
    ) -> None:
        self.net = net.to(device).eval()
        self.tiling = tiling
        self.device = device
        self.dtype = dtype
        self.noise_sigma = noise_sigma
        self.finite_only = finite_only
        self.do = do

    def describe(self) -> str:
        """Return the tiles in use, in words."""
        return self.tiling.describe()

    def with_cache(self, reader: FrameReader) -> FrameReader:
        """Return the reader with a cache for the frames of one tile in time.

        A caller may pass the cached reader to `frames`. Afterwards the cache still holds the input
        of the last tile, e.g. to compare the results with it.
        """
        # A reader may have a cache already, from the caller of `frames`. For a network that
        # interpolates, `_interpolate_frames` makes the cache.
        if isinstance(reader, FrameCache) or self.tiling.spec.interpolates:
            return reader
        frames_of_tile = self.tiling.num_frame_testing
        if frames_of_tile == WHOLE:
            frames_of_tile = len(reader.stems)
        # A cache smaller than a tile would read the frames that two tiles share twice.
        capacity = frames_of_tile + SPARE_FRAMES
        return FrameCache(reader, capacity)

    def frames(self, reader: Any, wanted: range, tick: Tick = lambda _: None) -> Iterator[Tensor]:
        """Yield the restored frames `wanted` of a clip, each (C, sH, sW) float32 on the CPU.

        reader: the clip, a FrameReader. For a network that interpolates, an InterpolatedClip or
        LeftOutFrames, whose given frames come back unchanged. tick: see `stream_clip`.
        """
        if self.tiling.spec.interpolates:
            yield from self._interpolate_frames(reader, wanted, tick)
        else:
            yield from self._restore_frames(reader, wanted, tick)

    def _interpolate_frames(self, reader: Any, wanted: range, tick: Tick) -> Iterator[Tensor]:
        """Yield the frames `wanted` of a clip with gaps, see `frames`.

        The frames around the gaps are put one behind the other, as if they were one clip. E.g.
        length 4: the given frames 0 0 1 2 for gap 0, then 0 1 2 3 for gap 1. The tiles in time have
        this length and no overlap (`Tiling.of`), so each tile is one gap.
        """
        length = self.tiling.spec.least_frames  # given frames that the network takes for a gap
        selection = _frames_around_gaps(reader, wanted, length)
        # Two neighbouring gaps share all but one of their frames. So with a cache of little more
        # than `length` frames, each frame is read once.
        capacity = length + SPARE_FRAMES
        frames_of_gaps = FrameCache(reader.clip, capacity=capacity, selection=selection)

        def tick_of_wanted_frames(done_frames: float) -> None:
            # `_restore_frames` counts frames of the selection. The caller counts wanted frames.
            done_share = done_frames / len(selection)
            tick(done_share * len(wanted))

        restored = self._restore_frames(
            frames_of_gaps, range(len(selection)), tick_of_wanted_frames
        )
        # The network makes one new frame of `length` given frames. `_restore_frames` needs as many
        # results as given frames, so `_run` repeats the new frame `length` times. Here only the
        # first repetition is taken, e.g. for length 4 the results 0, 4, 8, ...
        new_frames = itertools.islice(restored, 0, None, length)
        for index in wanted:
            if reader.gaps[index] is None:
                yield reader.frame(index)["lq"]
            else:
                yield next(new_frames)

    def _restore_frames(self, reader: FrameReader, wanted: range, tick: Tick) -> Iterator[Tensor]:
        """Yield what the network makes of the frames `wanted`. Memory holds one tile in time.

        With `Tiling.may_halve`, the clip is tried again with smaller tiles after an out-of-memory
        error, as long as no frame has been yielded. All tiles of a clip have the same size, so
        memory that suffices for the first frame suffices for the last. An error after the first
        frame is raised, because frames of two tilings in one clip would not fit together.
        """
        cache = self.with_cache(reader)
        has_yielded = False
        # An empty range, e.g. if a clip has no gap to fill.
        if not wanted:
            return

        def tick_of_frames(done_share: float) -> None:
            # `stream_clip` counts shares of the clip. The caller counts frames.
            tick(done_share * len(wanted))

        # Each round tries all of the clip with `self.tiling`, which is smaller in the next round.
        while True:
            frames = stream_clip(
                net=self._run,
                read=lambda moments: self._read(cache, moments),
                num_frames=len(cache.stems),
                tiling=self.tiling,
                wanted=wanted,
                tick=tick_of_frames,
            )
            try:
                for frame in frames:  # (1, C, sH, sW)
                    has_yielded = True
                    self._refuse_nonfinite(frame, reader.name)
                    yield frame[0]
                return
            except (RuntimeError, MemoryError) as e:
                if not devices.is_out_of_memory(e):
                    raise
                next_tiling = None if has_yielded else self._next_tiling(cache)
                if next_tiling is None:
                    raise DataError(
                        what="out of memory",
                        where=f"the network with {self.tiling.describe()}",
                        expected="tiles that fit into memory",
                        do=self.do,
                    ) from e
            # Free the memory only here, behind the except block. Within the block, the traceback of
            # the error still holds the tensors that filled the memory.
            devices.free_kept_memory(self.device)
            self.tiling = next_tiling
            logger.warning("out of memory; trying again with %s", next_tiling.describe())

    def _next_tiling(self, cache: FrameReader) -> Tiling | None:
        """Return the tiling to try after an out-of-memory error in this clip.

        Returns None if smaller tiles were not asked for, or if the tiles are the smallest already.
        """
        if not self.tiling.may_halve:
            return None
        height, width = cache.frame(0)["lq"].shape[-2:]
        return smaller_tiling(self.tiling, height, width)

    def _read(self, cache: FrameReader, moments: Sequence[Moment]) -> tuple[Tensor, ...]:
        """Return lq (1, n, C, H, W) and, if the clip has spikes, spike (1, n, S, H, W).

        If `noise_sigma` is set, lq has the noise level as one more channel.

        moments: pairs (index of a frame, whether time is reversed).
        """
        items = [cache.frame(index, reverse) for index, reverse in moments]
        lq = torch.stack([item["lq"] for item in items])  # (n, C, H, W)
        lq = lq[None]  # a batch of one clip
        if self.noise_sigma is not None:
            one_channel = lq[:, :, :1]  # (1, n, 1, H, W)
            noise_map = torch.full_like(one_channel, self.noise_sigma / 255)
            lq = torch.cat((lq, noise_map), dim=2)
        if "spike" not in items[0]:
            return (lq,)
        spike = torch.stack([item["spike"] for item in items])  # (n, S, H, W)
        return lq, spike[None]

    def _refuse_nonfinite(self, frame: Tensor, clip: str) -> None:
        """Raise DataError if a restored frame has NaN or Inf. clip: name of its clip."""
        if self.finite_only and not torch.isfinite(frame).all():
            raise DataError(
                what=f"the network gave NaN or Inf for clip {clip}",
                where=clip,
                expected="finite values",
                do="use --dtype float32, and check the weights",
            )

    def _run(self, *inputs: Tensor) -> Tensor:
        """Run the network on padded tiles, (B, n, channels, H, W) -> (B, n, C', sH, sW)."""
        # Tell the watchdog that the process makes progress. A single tile may take long, and a clip
        # has many tiles.
        watchdog.go_on()
        on_device = [x.to(self.device, non_blocking=True) for x in inputs]
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            out = self.net(*on_device)
        if not self.tiling.spec.interpolates:
            return out
        # `stream_clip` expects one result for each frame of a tile. So repeat the one new frame for
        # every input frame. `expand` copies nothing.
        new_frame = out[:, :1]  # (B, 1, C', sH, sW)
        frame_count = inputs[0].shape[1]
        return new_frame.expand(-1, frame_count, -1, -1, -1)


# ---- Clips with new frames in the gaps -------------------------------------------------------


def _frames_around_gaps(reader: Any, wanted: range, length: int) -> list[int]:
    """Return the frames from which the network makes the new frames, `length` for each gap.

    Gap g lies between the given frames g and g + 1. Half of the frames lie before the gap. E.g.
    length 4: for gap 1 the given frames 0, 1 | 2, 3, and for gap 0 the given frames 0, 0 | 1, 2,
    because there is no frame before frame 0.

    reader: an InterpolatedClip or LeftOutFrames.
    wanted: indices of frames of `reader`.

    The result has indices of frames of `reader.clip`.
    """
    last_given_frame = len(reader.given_frames) - 1
    selection = []
    for index in wanted:
        gap = reader.gaps[index]
        if gap is None:  # a given frame, which the network does not make
            continue
        first = gap + 1 - length // 2
        for position in range(first, first + length):
            # Beyond the ends of the clip, the first or the last given frame is repeated.
            inside = min(max(position, 0), last_given_frame)
            selection.append(reader.given_frames[inside])
    return selection


class InterpolatedClip:
    """A clip of n frames as a clip of 2 n - 1 frames, without gt.

    The new frame between "000003" and "000004" is "000003_5". E.g. for a clip of 2 frames:

        stems   "000000"   "000000_5"   "000001"
        gaps    None       0            None

    given_frames: indices of the frames of `clip` between which new frames are made.
    gaps: for each frame the number of the gap in which it lies, from 0. None for a given frame.
    """

    def __init__(self, clip: ClipReader) -> None:
        self.clip = clip
        self.name = clip.name
        self.origin = {"input": clip.origin["input"]}
        self.pixel_aspect = clip.pixel_aspect
        self.fps = None if clip.fps is None else 2 * clip.fps
        self.times = None if clip.times is None else _insert_middles(clip.times)
        self.given_frames = range(len(clip.stems))
        self.stems: list[str] = []
        self.gaps: list[int | None] = []
        for frame_index, stem in enumerate(clip.stems):
            self.stems += [stem, f"{stem}_5"]
            self.gaps += [None, frame_index]  # gap g lies after frame g
        # There is no gap after the last frame.
        del self.stems[-1]
        del self.gaps[-1]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Any]:
        """Return the given frame at or before the time of frame `index`, to compare with.

        E.g. for the frames 4 and 5 of this clip, frame 2 of the given clip. `reverse` has no
        effect, because only spikes depend on the direction of time.
        """
        return {"lq": self.clip.frame(index // 2)["lq"]}

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        return self.clip.spike_light(index // 2, spike)

    def digest(self) -> str:
        return self.clip.digest()


def _insert_middles(times: Sequence[Fraction]) -> list[Fraction]:
    """Insert the middle between neighbouring times, e.g. 0, 2, 6 -> 0, 1, 2, 4, 6."""
    all_times = [times[0]]
    for before, after in itertools.pairwise(times):
        all_times += [(before + after) / 2, after]
    return all_times


class LeftOutFrames:
    """A clip of which every second frame is given, to score an interpolation.

    The network makes new frames between the given frames. The new frames are compared with the
    frames that were left out. Only gaps with `length` / 2 given frames on either side count.

    E.g. Vimeo-90K has clips im1 ... im7. For length 4, the frames im1, im3, im5 and im7 are given
    (indices 0, 2, 4, 6), and im4 (gap 1) is scored, as published.

    given_frames, gaps: see InterpolatedClip. Each frame of this clip lies in a gap.
    """

    # The frame rate and the times of a clip are for films. The left-out frames are only scored, and
    # no film is made of them, so both are None.
    fps = None
    times = None

    def __init__(self, clip: ClipReader, length: int) -> None:
        """length: number of frames that the network takes. Raises DataError for a short clip."""
        self.clip = clip
        self.name = clip.name
        self.origin = clip.origin
        self.pixel_aspect = clip.pixel_aspect
        self.given_frames = range(0, len(clip.stems), 2)
        # E.g. length 4: gap 1 is the first gap with two given frames before it. The network takes 4
        # given frames in a row, with the gap in their middle. m given frames have m - 3 such rows,
        # so m - 3 gaps count.
        first_gap = length // 2 - 1
        gap_count = len(self.given_frames) - length + 1
        self.gaps = range(first_gap, first_gap + gap_count)
        if not self.gaps:
            raise DataError(
                what=f"clip {clip.name} has {len(clip.stems)} frames",
                where=clip.name,
                expected=f"at least {2 * length - 1}: {length} given frames and those between",
                do="leave the clip out",
            )
        # Gap g lies between the frames 2 g and 2 g + 2 of the clip.
        self.stems = [clip.stems[2 * gap + 1] for gap in self.gaps]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Any]:
        """Return the left-out frame as gt, and as lq the mean of the given frames beside it.

        The mean is the simplest interpolation, to compare with.
        """
        first = 2 * self.gaps[index]
        before = self.clip.frame(first)
        left_out = self.clip.frame(first + 1)
        after = self.clip.frame(first + 2)
        mean = (before["lq"] + after["lq"]) / 2
        return {"lq": mean, "gt": left_out["gt"]}

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        left_out = 2 * self.gaps[index] + 1
        return self.clip.spike_light(left_out, spike)

    def digest(self) -> str:
        return self.clip.digest()


def scored_clips(clips: Sequence[ClipReader], spec: InputSpec) -> Sequence[ClipReader]:
    """Return clips with sharp frames, in the form in which a network with `spec` is scored on them.

    A network that interpolates is scored on frames that were left out, see `LeftOutFrames`.
    """
    if not spec.interpolates:
        return clips
    return [LeftOutFrames(clip, spec.least_frames) for clip in clips]
