"""Restores clips of any length and size in tiles of time and space.

The memory that a network needs grows with the clip. So a clip is cut into tiles, e.g. of 12 frames
of 256 x 256 pixels, which overlap. The tiles are restored one by one and blended: each pixel of the
result is a weighted mean over the tiles that contain it. There are two blends: "kair", as
published, has equal weights and trimmed borders; "smooth" has ramps over the overlap, which leave
no visible seam.

    Restorer.frames        a network on a device: restores frames of a clip, and takes smaller tiles
                           if the memory is full
      stream_clip          tile by tile in time
        restore_space      tile by tile in space
          _run             one tile, padded to a size that the network takes

Networks that interpolate (VRT with pa_frames 0) take the frames around a gap and make a new frame
in the gap: see Restorer.frames, InterpolatedClip and LeftOutFrames.

The blend "kair" has to give the published numbers, and results of clips that are cut between
processes must equal those of a single process bit for bit. So the order in which tiles are added
must stay.

Tests: tests/parts/models/test_tiling.py, tests/stories/test_main_test.py
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
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from utils import device as devices
from utils.contract import ClipReader, FrameReader, InputSpec, Tick
from utils.dist import watchdog
from utils.errors import DataError, OptionError
from utils.options.models import ValOptions

# Index of a frame, and whether time is reversed. If it is, the frame comes with the spikes of the
# reversed stream.
Moment = tuple[int, bool]
# A function that reads n moments: lq (B, n, C, H, W), then spike (B, n, S, H, W) if there are any.
Reader = Callable[[Sequence[Moment]], tuple[Tensor, ...]]
# The value of num_frame_testing or size_patch_testing for a single tile: the whole clip in time, or
# the whole frame in space.
WHOLE = 0
# The tile for "auto". It is the same on every machine, so that no score depends on the memory of a
# machine, see docs/testing.md.
AUTO = {"num_frame_testing": 12, "size_patch_testing": 256}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tiling:
    """How a clip is cut into tiles and blended again.

    Sizes are in input pixels, lengths in frames.

    spec: what the network requires. Tiles are padded accordingly.
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
    is_halved: whether smaller tiles are tried after an out-of-memory error.
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
    is_halved: bool = False

    def __post_init__(self) -> None:
        for what in ("num_frame", "size_patch"):
            size = getattr(self, f"{what}_testing")
            overlap = getattr(self, f"{what}_overlapping")
            if 0 < size <= overlap:  # 0 is WHOLE, which overlaps nothing
                raise OptionError(
                    what=f"tiles of {size} that overlap by {overlap}",
                    where=f"val.{what}_testing, val.{what}_overlapping",
                    expected="overlap < tile, or tile 0 (the whole)",
                    do=f"raise {what}_testing or lower {what}_overlapping",
                )
        side = self.size_patch_testing
        _, height, width = self.spec.window_size
        for window in (height, width):
            if side % window:
                raise OptionError(
                    what=f"val.size_patch_testing {side} is not a multiple of {window}",
                    where="val.size_patch_testing",
                    expected="a multiple of the window",
                    do=f"use {_rounded_up(side, window)}",
                )

    @classmethod
    def of(cls, val: ValOptions, spec: InputSpec, **changes: Any) -> "Tiling":
        """Return the tiles of the options `val` for a network with `spec`.

        changes: fields with other values.
        """
        fields: dict[str, Any] = val.plain() | changes
        del fields["save_img"]  # an option of validation alone
        multiples = {"num_frame_testing": spec.window_size[0], "size_patch_testing": spec.multiple}
        for key, multiple in multiples.items():
            if fields[key] == "auto":
                fields[key] = _rounded_up(AUTO[key], multiple)
                # Who leaves the tile to us wants a result without seams, and no out-of-memory
                # error. Who gives the tile may want the published result, of just this tile.
                fields.setdefault("blend", "smooth")
                fields.setdefault("is_halved", True)
        if spec.interpolates:  # each window of frames around a gap is one tile in time
            fields["num_frame_testing"] = spec.least_frames
            fields["num_frame_overlapping"] = 0
        return cls(spec, **fields)

    def describe(self) -> str:
        """Return the tiles in words, for the log and the protocol.

        E.g. "tiles of 12 frames x 256 px, overlap 2 frames, 20 px, smooth blend".
        """
        frames = f"{self.num_frame_testing} frames" if self.num_frame_testing else "the whole clip"
        side = f"{self.size_patch_testing} px" if self.size_patch_testing else "the whole frame"
        parts = [f"tiles of {frames} x {side}"]
        if self.num_frame_testing or self.size_patch_testing:
            parts.append(
                f"overlap {self.num_frame_overlapping} frames, {self.size_patch_overlapping} px"
            )
        if self.batch_tiles > 1:
            parts.append(f"{self.batch_tiles} at once")
        parts.append(f"{self.blend} blend")
        for name in ("flip_seq", "pad_seq", "center_frame_only"):
            if getattr(self, name):
                parts.append(name)
        return ", ".join(parts)


def _rounded_up(size: int, multiple: int) -> int:
    """Return the least multiple that is not below `size`, e.g. 12 and 8 -> 16."""
    return math.ceil(size / multiple) * multiple


def _rounded_down(size: int, multiple: int) -> int:
    """Return the largest multiple that is not above `size`, e.g. 12 and 8 -> 8."""
    return size // multiple * multiple


# ---- Time ------------------------------------------------------------------------------------


@torch.no_grad()
def stream_clip(
    net: Callable[..., Tensor],
    read: Reader,
    num_frames: int,
    tiling: Tiling,
    wanted: range,
    tick: Tick = lambda part: None,
) -> Iterator[Tensor]:
    """Yield the restored frames `wanted` in order, (B, C', sH, sW) each, on the CPU.

    Memory holds one tile in time. Only the tiles that contain wanted frames are computed (with
    flip_seq all tiles). The frames equal those of a run over the whole clip bit for bit. The
    network must be in eval mode.

    tick: takes the share, 0..1, that was done since the last call.
    """
    order = [(index, False) for index in range(num_frames)]
    if tiling.pad_seq:
        order.append(order[-1])
    if not tiling.flip_seq:
        yield from _stream_sequence(net, read, order, tiling, wanted, tick)
        return
    # The clip, and then the clip in reversed time. E.g. the frames 0 1 2 2 1 0: frame i is also at
    # position len(both) - 1 - i.
    both = order + [(index, True) for index, _ in reversed(order)]
    # The second result of the first frame comes last, so all results wait in a file.
    with tempfile.TemporaryFile() as store:
        frame = torch.empty(0)
        for frame in _stream_sequence(net, read, both, tiling, range(len(both)), tick):
            store.write(frame.numpy().tobytes())

        def stored(position: int) -> Tensor:
            store.seek(position * frame.nbytes)
            content = bytearray(store.read(frame.nbytes))
            return torch.frombuffer(content, dtype=frame.dtype).reshape(frame.shape)

        for index in wanted:
            forward = stored(index)
            backward = stored(len(both) - 1 - index)
            # In the reversed clip, the instants of a frame are in the opposite order. They are
            # groups of channels: (B, K C, H, W) -> (B, K, C, H, W), reverse, and back.
            instants = backward.unflatten(-3, (tiling.spec.out_instants, -1))
            backward = instants.flip(-4).flatten(-4, -3)
            yield (forward + backward) / 2


def tile_starts(length: int, size: int, overlap: int) -> list[int]:
    """Return the starts of the tiles along one axis.

    The last tile ends with the axis, so it may overlap its neighbour by more than `overlap`. E.g.
    length 10, size 4, overlap 1 -> 0, 3, 6; length 9 -> 0, 3, 5.
    """
    if length <= size:
        return [0]
    last = length - size
    return [*range(0, last, size - overlap), last]


def _stream_sequence(
    net: Callable[..., Tensor],
    read: Reader,
    order: Sequence[Moment],
    tiling: Tiling,
    wanted: range,
    tick: Tick,
) -> Iterator[Tensor]:
    """Yield the restored frames at positions `wanted` of the sequence, tile by tile in time."""
    length = len(order)
    size = length
    if tiling.num_frame_testing != WHOLE:
        size = min(tiling.num_frame_testing, length)
    starts = tile_starts(length, size, tiling.num_frame_overlapping)
    # The blend "kair" trims the borders of tiles in space, not in time.
    overlap = tiling.num_frame_overlapping if tiling.blend == "smooth" else 0
    # The tiles that contain a wanted frame.
    needed = []
    for number, start in enumerate(starts):
        if start + size > wanted.start and start < wanted.stop:
            needed.append((number, start))

    # For each frame from `start` on: the weighted sum over the tiles so far, and the sum of the
    # weights. A frame is complete if the next tile begins behind this frame.
    pending: deque[tuple[Tensor, float]] = deque()
    for number, start in needed:
        inputs = read(order[start : start + size])
        clip = restore_space(net, inputs, tiling, lambda done: tick(done / len(needed)))
        del inputs  # the tile in time is restored, so its input can leave the memory
        weights = _blend_weights(starts, number, size, overlap, tiling.blend)
        for place, weight in enumerate(weights.tolist()):  # place: number of a frame in the tile
            frame = clip[:, place] * weight
            if place < len(pending):  # an earlier tile has this frame, too
                total, total_weight = pending[place]
                pending[place] = (total.add_(frame), total_weight + weight)
            else:
                pending.append((frame, weight))
        del clip  # the next tile is computed without it in memory
        # Yield the frames before the next tile. No further tile contains them.
        next_start = starts[number + 1] if number + 1 < len(starts) else length
        for position in range(start, next_start):
            total, total_weight = pending.popleft()
            if position in wanted:
                yield total / total_weight


# ---- Space -----------------------------------------------------------------------------------


class _Patch(NamedTuple):
    """A tile in space. E.g. the second of three tiles along the height: row 1."""

    row: int  # number of the tile along the height, from 0
    top: int  # its first row of pixels, of the input
    column: int  # number of the tile along the width, from 0
    left: int  # its first column of pixels, of the input


def restore_space(
    net: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    tiling: Tiling,
    tick: Tick = lambda part: None,
) -> Tensor:
    """Restore one tile in time, tile by tile in space: (B, n, C', sH, sW) on the CPU.

    inputs: see `Reader`.
    """
    height, width = inputs[0].shape[-2:]
    s = tiling.spec.scale
    # Height and width of a tile, in pixels of the input.
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

    # The overlap in output pixels. "kair": the published rule takes the number of input pixels as
    # output pixels, at any scale. "smooth": the ramp spans the whole overlap, which is `s` times as
    # many output pixels as input pixels.
    overlap = tiling.size_patch_overlapping
    if tiling.blend == "smooth":
        overlap *= s
    clips = len(inputs[0])  # B
    total = torch.empty(0)  # weighted sum; its size follows from the first output
    total_weight = torch.zeros(height * s, width * s)
    patches = []
    for row, top in enumerate(tops):
        for column, left in enumerate(lefts):
            patches.append(_Patch(row, top, column, left))
    for first in range(0, len(patches), tiling.batch_tiles):
        batch = patches[first : first + tiling.batch_tiles]
        # Restore the tiles of a batch together, side by side along the axis of clips.
        cuts = []
        for patch in batch:
            rows = slice(patch.top, patch.top + tile_height)
            columns = slice(patch.left, patch.left + tile_width)
            cuts.append((..., rows, columns))
        stacked = tuple(torch.cat([x[cut] for cut in cuts]) for x in inputs)
        outs = _run(net, stacked, tiling).split(clips)  # one result (B, n, C', ...) per tile
        if first == 0:
            total = outs[0].new_zeros(*outs[0].shape[:-2], height * s, width * s)
        # Add each result to the sum at its place, which is `s` times as large as in the input.
        for patch, out in zip(batch, outs, strict=True):
            along_height = _blend_weights(tops, patch.row, tile_height * s, overlap, tiling.blend)
            along_width = _blend_weights(lefts, patch.column, tile_width * s, overlap, tiling.blend)
            weight = along_height[:, None] * along_width  # (rows, columns)
            rows = slice(patch.top * s, (patch.top + tile_height) * s)
            columns = slice(patch.left * s, (patch.left + tile_width) * s)
            total[..., rows, columns] += out * weight.to(out.dtype)
            total_weight[rows, columns] += weight
        tick(len(batch) / len(patches))  # the share of the tiles that this batch was
    return total.div_(total_weight.to(total.dtype))


def _blend_weights(starts: list[int], number: int, size: int, overlap: int, blend: str) -> Tensor:
    """Return the weights (size,) of tile `number` along one axis.

    The weights are 1, except where the tile overlaps a neighbour:

    "kair"      0 over half of the overlap. Half of an odd overlap is rounded down at the start of
                a tile and up at its end, so that one of two neighbours has 1 and the other one 0.
                E.g. overlap 5: 0 0 1 1 ... 1 0 0 0.
    "smooth"    half a period of a cosine over the whole overlap, from nearly 0 to nearly 1. The
                weight is never 0, because the sum of the weights is a divisor.

    starts: starts of all tiles along the axis. size: size of the tile. overlap: overlap of
    neighbours. The last two count pixels or frames of the result.
    """
    if blend == "smooth":
        overlap = min(overlap, size)
        phase = torch.pi * (torch.arange(overlap) + 0.5) / max(overlap, 1)  # between 0 and pi
        begin = 0.5 - 0.5 * torch.cos(phase)
        end = begin.flip(0)
    else:
        begin = torch.zeros(overlap // 2)
        end = torch.zeros(math.ceil(overlap / 2))
    weights = torch.ones(size)
    if number > 0:
        weights[: len(begin)] *= begin
    if number < len(starts) - 1:
        weights[size - len(end) :] *= end
    return weights


def _run(net: Callable[..., Tensor], inputs: tuple[Tensor, ...], tiling: Tiling) -> Tensor:
    """Run the network once over a tile, which is padded to a size that the network takes.

    The padding mirrors the tile at its end, as often as needed. The result is cropped, on the CPU.
    """
    spec = tiling.spec
    _, frames, _, height, width = inputs[0].shape
    window_frames, window_height, window_width = spec.window_size

    # In time, a clip that is restored whole is padded to whole windows of the network. A tile of
    # the length that the options ask for is not padded: the length for "auto" is a multiple of the
    # window already. If the clip is shorter than a tile, the blend "smooth" pads it like a whole
    # clip, and "kair" runs it at its own length, as in the published tiling.
    is_whole_clip = tiling.num_frame_testing == WHOLE
    is_shorter = frames < tiling.num_frame_testing and tiling.blend == "smooth"
    step_in_time = window_frames if is_whole_clip or is_shorter else 1
    padded_frames = max(_rounded_up(frames, step_in_time), spec.least_frames)
    # Height and width become multiples of the window and of the stride of the network.
    step_in_height = math.lcm(window_height, spec.stride)
    step_in_width = math.lcm(window_width, spec.stride)
    least_height, least_width = spec.least_size
    padded_height = max(_rounded_up(height, step_in_height), least_height)
    padded_width = max(_rounded_up(width, step_in_width), least_width)

    padded = []
    for x in inputs:  # (B, n, C, H, W)
        x = _mirrored(x, 1, padded_frames)
        x = _mirrored(x, 3, padded_height)
        x = _mirrored(x, 4, padded_width)
        padded.append(x)
    out = net(*padded)[:, :frames, :, : height * spec.scale, : width * spec.scale].cpu()
    # Tests compare in float64, so this dtype is kept. All others become float32, in which the
    # weighted tiles are summed.
    if out.dtype == torch.float64:
        return out
    return out.float()


def _mirrored(x: Tensor, axis: int, size: int) -> Tensor:
    """Extend x along an axis by mirroring: 0 1 2 -> 0 1 2 2 1 0 0 1 2 ..., up to `size`."""
    length = x.shape[axis]
    if size == length:
        return x
    index = torch.arange(size, device=x.device) % (2 * length)  # a period: there and back
    index = torch.where(index < length, index, 2 * length - 1 - index)
    return x.index_select(axis, index)


# ---- Clips -----------------------------------------------------------------------------------


def smaller(tiling: Tiling, height: int, width: int) -> Tiling | None:
    """Return the next tiling to try after an out-of-memory error, or None after the smallest.

    First fewer tiles per pass, then half the side, then half the length. E.g. 12 frames x 256 px
    -> 12 x 128 -> 12 x 64 -> 6 x 64, for a network whose smallest side is 64.
    """
    if tiling.batch_tiles > 1:
        return replace(tiling, batch_tiles=tiling.batch_tiles // 2)
    step = tiling.spec.multiple  # common multiple of stride, window height and window width
    least = _rounded_up(max(tiling.spec.least_size), step)
    side = tiling.size_patch_testing
    if side == WHOLE:
        side = max(height, width)
    half = max(least, _rounded_down(side // 2, step))
    # A tile must be larger than its overlap with the next tile.
    if half < side and half > tiling.size_patch_overlapping:
        return replace(tiling, size_patch_testing=half)
    # Tiles of the whole length are not halved: 0 // 2 is not below 0.
    half = max(tiling.spec.least_frames, tiling.num_frame_testing // 2)
    if half < tiling.num_frame_testing and half > tiling.num_frame_overlapping:
        return replace(tiling, num_frame_testing=half)
    return None


class FrameCache:
    """The frames `numbers` of a clip. The frames that were read last are kept in memory.

    So a frame that lies in two overlapping tiles is decoded once.
    """

    def __init__(
        self, clip: FrameReader, capacity: int, numbers: Sequence[int] | None = None
    ) -> None:
        """Wrap a clip.

        capacity: number of frames that are kept. numbers: frames of the clip, in any order and also
        several times, or None for all frames.
        """
        self.name = clip.name
        self._numbers = range(len(clip.stems)) if numbers is None else numbers
        self.stems = [clip.stems[number] for number in self._numbers]
        self._frame = lru_cache(capacity)(clip.frame)

    def frame(self, index: int, reverse: bool = False) -> dict[str, Any]:
        """Return the tensors of a frame: "lq", and "spike" if the clip has spikes.

        index: position in `numbers`. reverse: whether the spikes are those of reversed time.
        """
        return self._frame(self._numbers[index], reverse)


class Restorer:
    """A network with its tiles on a device.

    tiling: the tiles in use. They become smaller if is_halved is set and memory is full.
    dtype: dtype of autocast, or None for float32.
    noise_sigma: noise level 0..255, a further input channel of non-blind denoisers.
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

    def cached(self, reader: FrameReader) -> FrameReader:
        """Return the reader with a cache for the frames of one tile in time.

        A caller that passes the cached reader to `frames` finds the input of the last tile in the
        cache afterwards, e.g. to compare with it.
        """
        # For a network that interpolates, `_interpolated` makes a cache.
        if isinstance(reader, FrameCache) or self.tiling.spec.interpolates:
            return reader
        frames_of_tile = self.tiling.num_frame_testing
        if frames_of_tile == WHOLE:
            frames_of_tile = len(reader.stems)
        capacity = frames_of_tile + 2
        return FrameCache(reader, capacity)

    def frames(self, reader: Any, wanted: range, tick: Tick = lambda _: None) -> Iterator[Tensor]:
        """Yield the restored frames `wanted` of a clip, each (C, sH, sW) float32 on the CPU.

        A network that interpolates takes an InterpolatedClip or LeftOutFrames. Given frames come
        back unchanged.
        """
        if self.tiling.spec.interpolates:
            yield from self._interpolated(reader, wanted, tick)
        else:
            yield from self._restored(reader, wanted, tick)

    def _interpolated(self, reader: Any, wanted: range, tick: Tick) -> Iterator[Tensor]:
        """Yield the frames `wanted` of a clip with gaps, see `frames`."""
        # Gap g lies between the given frames g and g + 1. For each gap the network takes `length`
        # given frames, half of them before the gap. At the ends of the clip, frames are repeated.
        length = self.tiling.spec.least_frames
        last_given = len(reader.given) - 1
        numbers = []  # frames of the clip, `length` for each gap
        for index in wanted:
            gap = reader.gaps[index]
            if gap is not None:
                first = gap + 1 - length // 2
                for position in range(first, first + length):
                    inside = min(max(position, 0), last_given)
                    numbers.append(reader.given[inside])
        # Windows of neighbouring gaps share all frames but one, so the cache holds one window and
        # the next frames.
        windows = FrameCache(reader.clip, length + 2, numbers)
        restored = self._restored(
            windows, range(len(numbers)), lambda done: tick(done * len(wanted) / len(numbers))
        )
        # The network gives each new frame `length` times (see _run). So take every frame whose
        # number is a multiple of `length`.
        made = itertools.islice(restored, 0, None, length)
        for index in wanted:
            if reader.gaps[index] is None:
                yield reader.frame(index)["lq"]
            else:
                yield next(made)

    def _restored(self, reader: FrameReader, wanted: range, tick: Tick) -> Iterator[Tensor]:
        """Yield what the network makes of the frames `wanted`. Memory holds one tile in time.

        With `Tiling.is_halved`, the clip is tried again with smaller tiles after an out-of-memory
        error, until its first frame is there. All tiles of a clip have the same size, so memory
        that suffices for the first frame suffices for the last. An error after the first frame is
        raised, because frames of two tilings in one clip would not fit together.
        """
        cache = self.cached(reader)
        is_started = False
        while wanted:
            frames = stream_clip(
                self._run,
                lambda moments: self._read(cache, moments),
                len(cache.stems),
                self.tiling,
                wanted,
                lambda done: tick(done * len(wanted)),
            )
            try:
                for frame in frames:
                    is_started = True
                    self._refuse_nonfinite(frame, reader.name)
                    yield frame[0]
                return
            except (RuntimeError, MemoryError) as e:
                if not devices.is_out_of_memory(e):
                    raise
                shrunk = None
                if self.tiling.is_halved and not is_started:
                    height, width = cache.frame(0)["lq"].shape[-2:]
                    shrunk = smaller(self.tiling, height, width)
                if shrunk is None:
                    raise DataError(
                        what="out of memory",
                        where=f"the network with {self.tiling.describe()}",
                        expected="tiles that fit into memory",
                        do=self.do,
                    ) from e
            # Free the memory only here, behind the except block, because until its end the
            # traceback holds the tensors that filled the memory.
            devices.free_kept_memory(self.device)
            self.tiling = shrunk
            logger.warning("out of memory; trying again with %s", shrunk.describe())

    def _read(self, cache: FrameReader, moments: Sequence[Moment]) -> tuple[Tensor, ...]:
        """Return lq (1, n, C, H, W) and, if the clip has spikes, spike (1, n, S, H, W).

        For a non-blind denoiser, lq has the noise map as a further channel.
        """
        items = [cache.frame(index, reverse) for index, reverse in moments]
        lq = torch.stack([item["lq"] for item in items])[None]
        if self.noise_sigma is not None:
            noise_map = torch.full_like(lq[:, :, :1], self.noise_sigma / 255)
            lq = torch.cat((lq, noise_map), dim=2)
        if "spike" not in items[0]:
            return (lq,)
        return lq, torch.stack([item["spike"] for item in items])[None]

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
        """Run the network on padded tiles, in its dtype."""
        watchdog.go_on()  # each tile counts as progress: it may take long, and a clip may have many
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            out = self.net(*(x.to(self.device, non_blocking=True) for x in inputs))
        if not self.tiling.spec.interpolates:
            return out
        # Repeat the one new frame for every input frame, because `stream_clip` expects one result
        # for each frame of a tile.
        return out[:, :1].expand(-1, inputs[0].shape[1], -1, -1, -1)


class InterpolatedClip:
    """A clip of n frames as a clip of 2 n - 1 frames, without gt.

    The new frame between "000003" and "000004" is "000003_5".

    given: the frames of `clip` between which others are made.
    gaps: for each frame the gap in which it lies, 0 for the first gap, or None for a given frame.
    """

    def __init__(self, clip: ClipReader) -> None:
        self.clip = clip
        self.name = clip.name
        self.origin = {"input": clip.origin["input"]}
        self.pixel_aspect = clip.pixel_aspect
        self.fps = None if clip.fps is None else 2 * clip.fps
        self.times = None if clip.times is None else _with_middles(clip.times)
        self.given = range(len(clip.stems))
        self.stems: list[str] = []
        self.gaps: list[int | None] = []
        for number, stem in enumerate(clip.stems):
            self.stems += [stem, f"{stem}_5"]
            self.gaps += [None, number]
        # There is no gap behind the last frame.
        del self.stems[-1], self.gaps[-1]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Any]:
        """Return the given frame at or before the time of frame `index`, to compare with."""
        return {"lq": self.clip.frame(index // 2)["lq"]}

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        return self.clip.spike_light(index // 2, spike)

    def digest(self) -> str:
        return self.clip.digest()


def _with_middles(times: Sequence[Fraction]) -> list[Fraction]:
    """Insert the middle between neighbouring times, e.g. 0, 2, 6 -> 0, 1, 2, 4, 6."""
    found = [times[0]]
    for before, after in itertools.pairwise(times):
        found += [(before + after) / 2, after]
    return found


class LeftOutFrames:
    """A clip whose every second frame is given, to score an interpolation.

    The frames between the given frames are made and compared with the frames that were left out.
    Only frames with `length` / 2 given frames on either side count. E.g. Vimeo-90K has clips
    im1 ... im7: for length 4, im1, im3, im5 and im7 are given, and im4 is scored, as published.

    given, gaps: see InterpolatedClip.
    """

    fps = None
    times = None

    def __init__(self, clip: ClipReader, length: int) -> None:
        """length: number of frames that the network takes. Raises DataError for a short clip."""
        self.clip = clip
        self.name = clip.name
        self.origin = clip.origin
        self.pixel_aspect = clip.pixel_aspect
        self.given = range(0, len(clip.stems), 2)
        first = length // 2 - 1
        self.gaps = range(first, first + len(self.given) - length + 1)
        if not self.gaps:
            raise DataError(
                what=f"clip {clip.name} has {len(clip.stems)} frames",
                where=clip.name,
                expected=f"at least {2 * length - 1}: {length} given frames and those between",
                do="leave it out",
            )
        self.stems = [clip.stems[2 * gap + 1] for gap in self.gaps]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Any]:
        """Return the left-out frame as gt, and as lq the mean of the given frames beside it.

        The mean is the simplest interpolation, to compare with.
        """
        first = 2 * self.gaps[index]
        before = self.clip.frame(first)
        made = self.clip.frame(first + 1)
        after = self.clip.frame(first + 2)
        return {"lq": (before["lq"] + after["lq"]) / 2, "gt": made["gt"]}

    def spike_light(self, index: int, spike: Tensor) -> np.ndarray:
        return self.clip.spike_light(2 * self.gaps[index] + 1, spike)

    def digest(self) -> str:
        return self.clip.digest()


def scored_clips(clips: Sequence[ClipReader], spec: InputSpec) -> Sequence[ClipReader]:
    """Return clips with sharp frames as a network with `spec` is scored on them."""
    if not spec.interpolates:
        return clips
    return [LeftOutFrames(clip, spec.least_frames) for clip in clips]
