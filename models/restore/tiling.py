"""Restores clips of any length and size in tiles of time and space, with memory bounded by the tile.

Two blends: "kair", as published, equal weights with trimmed borders; "smooth", ramps over the overlap, which leave no
visible seam.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from models.vrt.fit_memory import is_out_of_memory
from utils.contract import FrameReader, InputSpec, Tick, reversed_instants
from utils.dist import watchdog
from utils.errors import DataError, OptionError
from utils.options.models import ValOptions

# Index of a frame, and whether time is reversed (its spikes are then those of the reversed stream).
Moment = tuple[int, bool]
# Moments -> lq (B, n, C, H, W) and spike (B, n, S, H, W) or None, in this order.
Reader = Callable[[Sequence[Moment]], tuple[Tensor, Tensor | None]]
# Frames and side of an "auto" tile, on every machine: no score depends on how much memory it has, see docs/testing.md.
AUTO_FRAMES, AUTO_SIDE = 12, 256


@dataclass(frozen=True)
class Tiling:
    """How a clip is cut into tiles and blended again. Sizes in input pixels, lengths in frames.

    num_frame_testing, size_patch_testing: length and side of a tile; 0: the whole.
    num_frame_overlapping, size_patch_overlapping: overlap of neighbouring tiles.
    blend: "kair" or "smooth".
    flip_seq: restore the clip followed by its time-reversed copy, spikes included, and average.
    pad_seq: repeat the last frame before restoring; the result for the copy is dropped.
    center_frame_only: restore only frame n // 2 of n.
    batch_tiles: spatial tiles per pass of the network; faster on a GPU, uses more memory.
    is_halved: after an out-of-memory error, smaller tiles are tried.
    window_size, stride, least_size, min_frames: of the network, see InputSpec; tiles are padded accordingly.
    out_instants: of the network; in the time-reversed copy the instants of a frame are in reversed order too.
    """

    num_frame_testing: int = 0
    num_frame_overlapping: int = 2
    size_patch_testing: int = 0
    size_patch_overlapping: int = 20
    window_size: tuple[int, int, int] = (6, 8, 8)
    scale: int = 1
    blend: str = "kair"
    flip_seq: bool = False
    pad_seq: bool = False
    center_frame_only: bool = False
    batch_tiles: int = 1
    is_halved: bool = False
    min_frames: int = 2
    stride: int = 8
    out_instants: int = 1
    least_size: tuple[int, int] = (64, 64)

    def __post_init__(self) -> None:
        if self.blend not in ("kair", "smooth"):
            raise OptionError(f"blend is {self.blend!r}", "val.blend", "kair or smooth", "correct it")
        if self.batch_tiles < 1:
            raise OptionError(f"batch_tiles is {self.batch_tiles}", "val.batch_tiles", "1 or more", "correct it")
        axes = (
            ("num_frame_testing", self.num_frame_testing, "num_frame_overlapping", self.num_frame_overlapping),
            ("size_patch_testing", self.size_patch_testing, "size_patch_overlapping", self.size_patch_overlapping),
        )
        for size_key, size, overlap_key, overlap in axes:
            if size < 0 or overlap < 0 or 0 < size <= overlap:
                raise OptionError(
                    f"tiles of {size} that overlap by {overlap}", f"val.{size_key}, val.{overlap_key}",
                    "0 <= overlap < tile, or tile 0 (the whole)", f"raise {size_key} or lower {overlap_key}",
                )  # fmt: skip
        for window in self.window_size[1:]:
            if self.size_patch_testing % window:
                raise OptionError(
                    f"size_patch_testing {self.size_patch_testing} is not a multiple of {window}",
                    "val.size_patch_testing", "a multiple of the window",
                    f"use {-(-self.size_patch_testing // window) * window}",
                )  # fmt: skip

    @classmethod
    def of(cls, val: ValOptions, spec: InputSpec, **changes: Any) -> Tiling:
        """The tiles of the options `val` for a network with `spec`; changes: fields with other values."""
        fields = {key: value for key, value in val.plain().items() if key != "save_img"}
        of_network = ("window_size", "scale", "stride", "least_size", "out_instants")
        fields |= {key: getattr(spec, key) for key in of_network}
        fields["min_frames"] = 1 if spec.interpolates else spec.least_frames
        fields |= changes
        auto = {
            "num_frame_testing": (AUTO_FRAMES, spec.window_size[0]), "size_patch_testing": (AUTO_SIDE, spec.multiple),
        }  # fmt: skip
        for key, (size, multiple) in auto.items():
            if fields[key] == "auto":
                fields = {"blend": "smooth", "is_halved": True} | fields | {key: -(-size // multiple) * multiple}
        return cls(**fields)

    def frames_of(self, count: int) -> range:
        """The frames to restore of a clip of `count` frames: all, or the middle one."""
        return range(count // 2, count // 2 + 1) if self.center_frame_only else range(count)

    def describe(self) -> str:
        """The tiles in words, for the log and the protocol."""
        frames = f"{self.num_frame_testing} frames" if self.num_frame_testing else "the whole clip"
        side = f"{self.size_patch_testing} px" if self.size_patch_testing else "the whole frame"
        parts = [f"tiles of {frames} x {side}"]
        if self.num_frame_testing or self.size_patch_testing:
            parts.append(f"overlap {self.num_frame_overlapping} frames, {self.size_patch_overlapping} px")
        parts += [f"{self.batch_tiles} at once"] if self.batch_tiles > 1 else []
        parts.append(f"{self.blend} blend")
        parts += [name for name in ("flip_seq", "pad_seq", "center_frame_only") if getattr(self, name)]
        return ", ".join(parts)


@torch.no_grad()
def stream_clip(
    net: nn.Module, read: Reader, num_frames: int, tiling: Tiling, wanted: range, tick: Tick = lambda part: None
) -> Iterator[Tensor]:
    """The restored frames `wanted`, (B, C', sH, sW) each, in order, on the CPU. Memory holds one tile in time.

    Only the tiles that contain wanted frames are computed (with flip_seq all tiles). The frames equal those of a run
    over the whole clip bit for bit. The network must be in eval mode. tick: takes the part, 0..1, that was done.
    """
    order = [(index, False) for index in [*range(num_frames), *([num_frames - 1] if tiling.pad_seq else [])]]
    if tiling.flip_seq:
        both = order + [(index, True) for index, _ in reversed(order)]
        restored = _stream_sequence(net, read, both, tiling, range(len(both)), tick)
        halves = _average_halves(restored, len(order), tiling.out_instants)
        yield from (frame for index, frame in enumerate(halves) if index in wanted)
    else:
        yield from _stream_sequence(net, read, order, tiling, wanted, tick)


def tile_starts(length: int, size: int, overlap: int) -> list[int]:
    """Starts of the tiles along one axis; the last tile ends with the axis, so it may overlap more than the others."""
    if length <= size:
        return [0]
    return [*range(0, length - size, size - overlap), length - size]


def _stream_sequence(
    net: nn.Module, read: Reader, order: Sequence[Moment], tiling: Tiling, wanted: range, tick: Tick
) -> Iterator[Tensor]:
    """Restored frames at positions `wanted` of the sequence `order`, computed tile by tile in time."""
    length = len(order)
    size = min(tiling.num_frame_testing or length, length)
    starts = tile_starts(length, size, tiling.num_frame_overlapping)
    needed = [(n, at) for n, at in enumerate(starts) if at + size > wanted.start and at < wanted.stop]
    pending: deque[tuple[Tensor, float]] = deque()  # weighted sums and weights, from `start` on
    for number, start in needed:
        clip = restore_space(net, *read(order[start : start + size]), tiling, lambda part: tick(part / len(needed)))
        weights = _blend_weights(starts, number, size, tiling.num_frame_overlapping, tiling.blend, trim=False)
        for position, weight in enumerate(weights.tolist()):
            frame = clip[:, position] * weight
            if position < len(pending):
                total, total_weight = pending[position]
                pending[position] = (total.add_(frame), total_weight + weight)
            else:
                pending.append((frame, weight))
        del clip
        for position in range(start, starts[number + 1] if number + 1 < len(starts) else length):
            total, total_weight = pending.popleft()
            if position in wanted:
                yield total / total_weight


def restore_space(
    net: nn.Module, lq: Tensor, spike: Tensor | None, tiling: Tiling, tick: Tick = lambda part: None
) -> Tensor:
    """One tile in time, restored tile by tile in space: lq (B, n, C, H, W) -> (B, n, C', sH, sW) on the CPU."""
    height, width = lq.shape[-2:]
    patch = tiling.size_patch_testing
    rows, cols = min(patch or height, height), min(patch or width, width)
    tops = tile_starts(height, rows, tiling.size_patch_overlapping)
    lefts = tile_starts(width, cols, tiling.size_patch_overlapping)
    if len(tops) == len(lefts) == 1:
        whole = _run(net, lq, spike, tiling)
        tick(1)
        return whole

    s = tiling.scale
    # KAIR trims overlap / 2 output pixels at any scale; a ramp must span the whole overlap in output pixels.
    overlap = tiling.size_patch_overlapping * (s if tiling.blend == "smooth" else 1)
    total, total_weight = None, torch.zeros(height * s, width * s)
    tiles = list(itertools.product(enumerate(tops), enumerate(lefts)))
    for first in range(0, len(tiles), tiling.batch_tiles):
        batch = tiles[first : first + tiling.batch_tiles]
        cuts = [(..., slice(top, top + rows), slice(left, left + cols)) for (_, top), (_, left) in batch]
        inputs = [None if x is None else torch.cat([x[cut] for cut in cuts]) for x in (lq, spike)]
        for ((row, top), (col, left)), out in zip(batch, _run(net, *inputs, tiling).split(len(lq)), strict=True):
            weight = _blend_weights(tops, row, rows * s, overlap, tiling.blend)[:, None] * _blend_weights(
                lefts, col, cols * s, overlap, tiling.blend
            )
            if total is None:
                total = out.new_zeros(*out.shape[:-2], height * s, width * s)
            place = (..., slice(top * s, (top + rows) * s), slice(left * s, (left + cols) * s))
            total[place] += out * weight.to(out.dtype)
            total_weight[place] += weight
        tick(len(batch) / len(tiles))
    return total.div_(total_weight.to(total.dtype))


def _blend_weights(starts: list[int], number: int, size: int, overlap: int, blend: str, trim: bool = True) -> Tensor:
    """Weights (size,) of tile `number` along one axis; 1 where the tile meets an end of the axis.

    kair: 1; with trim (in space, not in time) 0 over half of the overlap, rounded down at the start and up at the end.
    smooth: a raised cosine over the overlap, never 0, so that no sum of weights is 0.
    """
    weights = torch.ones(size)
    is_first, is_last = number == 0, number == len(starts) - 1
    if blend == "smooth":
        overlap = min(overlap, size)
        ramp = 0.5 - 0.5 * torch.cos(torch.pi * (torch.arange(overlap) + 0.5) / max(overlap, 1))
        if not is_first:
            weights[:overlap] *= ramp
        if not is_last:
            weights[size - overlap :] *= ramp.flip(0)
        return weights
    if trim and not is_first:
        weights[: overlap // 2] = 0
    if trim and not is_last:
        weights[size - math.ceil(overlap / 2) :] = 0
    return weights


def _run(net: nn.Module, lq: Tensor, spike: Tensor | None, tiling: Tiling) -> Tensor:
    """One pass of the network over a tile, padded by reflection to a size that it takes; cropped, on the CPU."""
    frames, (height, width) = lq.shape[1], lq.shape[-2:]
    s = tiling.scale
    step_t, *steps = tiling.window_size
    whole_time = tiling.num_frame_testing == 0
    shorter = frames < tiling.num_frame_testing and tiling.blend == "smooth"
    steps = (step_t if whole_time or shorter else 1, *(math.lcm(step, tiling.stride) for step in steps))
    lengths, least = (frames, height, width), (tiling.min_frames, *tiling.least_size)
    target = tuple(max(-(-length // step) * step, low) for length, step, low in zip(lengths, steps, least, strict=True))
    device = next((p.device for p in net.parameters()), lq.device)
    lq = _pad(lq, target).to(device, non_blocking=True)
    spike = None if spike is None else _pad(spike, target).to(device, non_blocking=True)
    out = net(lq) if spike is None else net(lq, spike)
    out = out[:, :frames, :, : height * s, : width * s].cpu()
    return out if out.dtype == torch.float64 else out.float()


def _pad(clip: Tensor, target: tuple[int, int, int]) -> Tensor:
    """Frames, height and width continued by reflection with the edge repeated, as often as needed."""
    for axis, size in zip((1, 3, 4), target, strict=True):
        if (length := clip.shape[axis]) != size:
            index = torch.arange(size, device=clip.device) % (2 * length)
            clip = clip.index_select(axis, torch.where(index < length, index, 2 * length - 1 - index))
    return clip


def _average_halves(frames: Iterator[Tensor], length: int, instants: int) -> Iterator[Tensor]:
    """Mean of frames i and 2 length - 1 - i of a sequence of 2 length frames, of the latter with reversed instants.

    The frames are stored on disk, because the partner of the first frame comes last.
    """
    with tempfile.TemporaryFile() as store:
        for frame in frames:
            store.write(frame.numpy().tobytes())
            shape, dtype, bytes_each = frame.shape, frame.dtype, frame.nbytes
        for index in range(length):
            halves = []
            for position in (index, 2 * length - 1 - index):
                store.seek(position * bytes_each)
                halves.append(torch.frombuffer(bytearray(store.read(bytes_each)), dtype=dtype).reshape(shape))
            yield (halves[0] + reversed_instants(halves[1], instants)) / 2


def smaller(tiling: Tiling, height: int, width: int) -> Tiling | None:
    """The next tiling to try after an out-of-memory error, None after the smallest.

    First fewer tiles per pass, then half the side, then half the length.
    """
    if tiling.batch_tiles > 1:
        return dataclasses.replace(tiling, batch_tiles=tiling.batch_tiles // 2)
    step = math.lcm(tiling.stride, *tiling.window_size[1:])
    least = -(-max(tiling.least_size) // step) * step
    side = tiling.size_patch_testing or max(height, width)
    half = max(least, side // 2 // step * step)
    if half < side and half > tiling.size_patch_overlapping:
        return dataclasses.replace(tiling, size_patch_testing=half)
    half = max(tiling.min_frames, tiling.num_frame_testing // 2)
    if half < tiling.num_frame_testing and half > tiling.num_frame_overlapping:
        return dataclasses.replace(tiling, num_frame_testing=half)
    return None


logger = logging.getLogger(__name__)

DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


class FrameCache:
    """A reader that keeps the last frames, so that overlapping tiles and scores decode each frame only once."""

    def __init__(self, reader: FrameReader, capacity: int) -> None:
        self.name, self.stems = reader.name, reader.stems
        self._frame = lru_cache(capacity)(reader.frame)

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        return self._frame(index, reverse)


class Restorer:
    """A network with its tiles on a device.

    tiling: the one in use, which is_halved changes. dtype: "float32", or the autocast dtype. noise_sigma: noise level
    0..255, a further input channel of non-blind denoisers. finite_only: NaN or Inf in a restored frame is an error.
    do: advice in the error for out of memory.
    """

    def __init__(
        self,
        net: nn.Module,
        tiling: Tiling,
        device: torch.device,
        *,
        dtype: str = "float32",
        noise_sigma: float | None = None,
        finite_only: bool = True,
        do: str = "use --tile auto, smaller tiles (--tile 6,128), or --dtype bfloat16",
    ) -> None:
        self.net = _Autocast(net.to(device).eval(), device, DTYPES[dtype])
        self.tiling, self.device, self.dtype = tiling, device, dtype
        self.noise_sigma, self.finite_only, self.do = noise_sigma, finite_only, do

    def describe(self) -> str:
        return self.tiling.describe()

    def cached(self, reader: FrameReader) -> FrameCache:
        """The reader with a cache for the frames of one tile in time."""
        return FrameCache(reader, (self.tiling.num_frame_testing or len(reader.stems)) + 2)

    def frames(self, reader: FrameReader, wanted: range, tick: Tick = lambda _: None) -> Iterator[Tensor]:
        """The restored frames `wanted` of a clip, in order, each (C, sH, sW) float32 on the CPU.

        The tile in time bounds the memory. A reader from `cached` still has the input of the frame restored last.
        """
        if not wanted:
            return
        try:
            cache = reader if isinstance(reader, FrameCache) else self.cached(reader)
            for frame in self._stream(cache, wanted, tick):
                if self.finite_only and not torch.isfinite(frame).all():
                    raise DataError(
                        f"the network gave NaN or Inf for clip {reader.name}", reader.name, "finite values",
                        "use --dtype float32, and check the weights",
                    )  # fmt: skip
                yield frame[0]
        except (RuntimeError, MemoryError) as e:
            if not is_out_of_memory(e):
                raise
            what = f"the network with {self.tiling.describe()}"
            raise DataError("out of memory", what, "tiles that fit into memory", self.do) from e

    def _stream(self, cache: FrameCache, wanted: range, tick: Tick) -> Iterator[Tensor]:
        """`stream_clip`; where the tiles are halved, again with smaller tiles after an out-of-memory error.

        All tiles of a clip have the same size, so if memory suffices for the first frame, it does for the last.
        """

        def read(moments: Sequence[Moment]) -> tuple[Tensor, Tensor | None]:
            items = [cache.frame(*moment) for moment in moments]
            lq = torch.stack([item["lq"] for item in items])[None]
            if self.noise_sigma is not None:
                lq = torch.cat((lq, torch.full_like(lq[:, :, :1], self.noise_sigma / 255)), dim=2)
            return lq, torch.stack([item["spike"] for item in items])[None] if "spike" in items[0] else None

        height, width = cache.frame(0)["lq"].shape[-2:]
        while True:
            frames = stream_clip(self.net, read, len(cache.stems), self.tiling, wanted, lambda p: tick(p * len(wanted)))
            try:
                first = next(frames)
                break
            except (RuntimeError, MemoryError) as e:
                shrunk = smaller(self.tiling, height, width) if self.tiling.is_halved and is_out_of_memory(e) else None
                if shrunk is None:
                    raise
            # After the except block, because the traceback keeps the tensors that filled the memory.
            torch.cuda.empty_cache()
            self.tiling = shrunk
            logger.warning("out of memory; trying again with %s", shrunk.describe())
        yield first
        yield from frames


class _Autocast(nn.Module):
    """The network under autocast (dtype None: without)."""

    def __init__(self, net: nn.Module, device: torch.device, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.net, self._device, self._dtype = net, device.type, dtype

    def forward(self, *inputs: Tensor) -> Tensor:
        watchdog.go_on()  # each tile counts as progress: it may take long, and a clip may have many
        with torch.autocast(self._device, self._dtype, enabled=self._dtype is not None):
            return self.net(*inputs)
