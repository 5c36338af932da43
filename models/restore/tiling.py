"""Restoring clips of any length and size in tiles of time and space, with memory bounded by the tile.

A reader gives frames on demand, restored frames leave one by one in order; `restore_clip` is the same for a clip that
is already a tensor. Two blends: "kair", the published one, equal weights with trimmed borders; "smooth", ramps over
the overlap, which leave no visible seam.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from utils.errors import OptionError

# A frame's number, and whether it is seen in reversed time (its spikes then are those of the reversed stream).
Moment = tuple[int, bool]
# Moments -> lq (B, n, C, H, W), spike (B, n, S, H, W) or None, of exactly these in this order
Reader = Callable[[Sequence[Moment]], tuple[Tensor, Tensor | None]]

# Three stages halve the frame, and their 2x2 folds need even sizes: 2**3.
NETWORK_STRIDE = 8


@dataclass(frozen=True)
class Tiling:
    """How a clip is cut and put together again. Sizes in input pixels, lengths in frames.

    num_frame_testing, size_patch_testing: tile length and side; 0 = the whole.
    num_frame_overlapping, size_overlapping: what neighbouring tiles share.
    blend: "kair" or "smooth".
    flip_seq: run the clip and its reverse, spikes included, as one sequence and average.
    pad_seq: repeat the last frame, dropped again.
    center_frame_only: give only frame n // 2 of the n that came in.
    batch_tiles: tiles of one moment that go through the network together; faster on a GPU, uses more memory.
    min_frames: the fewest frames the network takes (2 for pa_frames 2, 3 for 4, 4 for 6).
    """

    num_frame_testing: int = 0
    num_frame_overlapping: int = 2
    size_patch_testing: int = 0
    size_overlapping: int = 20
    window_size: tuple[int, int, int] = (6, 8, 8)
    scale: int = 1
    blend: str = "kair"
    flip_seq: bool = False
    pad_seq: bool = False
    center_frame_only: bool = False
    batch_tiles: int = 1
    min_frames: int = 2

    def __post_init__(self) -> None:
        if self.blend not in ("kair", "smooth"):
            raise OptionError(f"blend is {self.blend!r}", "val.blend", "kair or smooth", "correct it")
        if self.batch_tiles < 1:
            raise OptionError(f"batch_tiles is {self.batch_tiles}", "val.batch_tiles", "1 or more", "correct it")
        axes = (
            ("num_frame_testing", self.num_frame_testing, "num_frame_overlapping", self.num_frame_overlapping),
            ("size_patch_testing", self.size_patch_testing, "size_overlapping", self.size_overlapping),
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
                    f"size_patch_testing {self.size_patch_testing} is no multiple of {window}",
                    "val.size_patch_testing",
                    "a multiple of the window", f"use {-(-self.size_patch_testing // window) * window}",
                )  # fmt: skip


@torch.no_grad()
def restore_clip(
    net: nn.Module, lq: Tensor, spike: Tensor | None = None, spike_reversed: Tensor | None = None, **tiling: Any
) -> Tensor:
    """lq (B, T, C, H, W), spike (B, T, S, H, W) -> (B, T, C', sH, sW) on the CPU; T is 1 with center_frame_only.

    spike_reversed: like spike, from the reversed stream of each frame; flip_seq with spikes needs it.
    tiling: the fields of `Tiling`. Call it with the network in eval mode; it runs on the network's device.
    """
    if spike is not None and spike_reversed is None and tiling.get("flip_seq"):
        raise ValueError("flip_seq needs the spikes in reversed time: spike_reversed")

    def read(moments: Sequence[Moment]) -> tuple[Tensor, Tensor | None]:
        frames = lq[:, [index for index, _ in moments]]
        if spike is None:
            return frames, None
        return frames, torch.stack([(spike_reversed if back else spike)[:, index] for index, back in moments], dim=1)

    return torch.stack(list(stream_clip(net, read, lq.shape[1], Tiling(**tiling))), dim=1)


@torch.no_grad()
def stream_clip(
    net: nn.Module, read: Reader, num_frames: int, tiling: Tiling, wanted: range | None = None
) -> Iterator[Tensor]:
    """Restored frames (B, C', sH, sW) on the CPU, in order, with at most one tile in time held in memory.

    wanted: a run of frames, default all (or the centre). Only the tiles that touch it are computed, and the frames
    are the same, bit for bit, as in a run over the whole clip; with flip_seq the whole is computed all the same.
    """
    if tiling.center_frame_only:
        wanted = range(num_frames // 2, num_frames // 2 + 1)
    wanted = range(num_frames) if wanted is None else wanted
    order = [(index, False) for index in [*range(num_frames), *([num_frames - 1] if tiling.pad_seq else [])]]
    if tiling.flip_seq:
        both = order + [(index, True) for index, _ in reversed(order)]
        halves = _average_halves(_stream_sequence(net, read, both, tiling, range(len(both))), len(order))
        yield from (frame for index, frame in enumerate(halves) if index in wanted)
    else:
        yield from _stream_sequence(net, read, order, tiling, wanted)


def stream_fitting(
    net: nn.Module,
    read: Reader,
    num_frames: int,
    tiling: Tiling,
    wanted: range | None,
    size: tuple[int, int],
    on_change: Callable[[Tiling], None],
) -> Iterator[Tensor]:
    """`stream_clip`, with smaller tiles where memory does not suffice for frames of `size` (height, width).

    on_change: told the tiling that is tried next. All tiles of a clip have the same size, so if memory suffices for
    the first frame, it does for the last. Raises the out-of-memory error where the smallest tile is too large.
    """
    if wanted is not None and not wanted:
        return  # the caller has all frames already
    while True:
        frames = stream_clip(net, read, num_frames, tiling, wanted)
        try:
            first = next(frames)
            break
        except Exception as e:
            shrunk = smaller(tiling, *size) if out_of_memory(e) else None
            if shrunk is None:
                raise
        # Outside of the except block: the traceback no longer holds the tensors that filled the memory.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        tiling = shrunk
        on_change(tiling)
    yield first
    yield from frames


def tile_starts(length: int, size: int, overlap: int) -> list[int]:
    """Where the tiles of one axis begin; the last ends with the axis, so it may overlap more than the others."""
    if length <= size:
        return [0]
    return [*range(0, length - size, size - overlap), length - size]


def mirror_index(length: int, target: int) -> Tensor:
    """Indices (target,) that continue 0..length-1 by reflection with the edge repeated, as often as needed."""
    index = torch.arange(target) % (2 * length)
    return torch.where(index < length, index, 2 * length - 1 - index)


def out_of_memory(error: BaseException) -> bool:
    """True for the errors with which torch says that CUDA or the host has no memory left."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def _stream_sequence(
    net: nn.Module, read: Reader, order: Sequence[Moment], tiling: Tiling, wanted: range
) -> Iterator[Tensor]:
    """Positions `wanted` of the sequence `order` (frames, which may repeat), restored tile by tile in time."""
    length = len(order)
    size = min(tiling.num_frame_testing or length, length)
    starts = tile_starts(length, size, tiling.num_frame_overlapping)
    pending: deque[tuple[Tensor, float]] = deque()  # sums and weights of the frames from the current start on
    for number, start in enumerate(starts):
        if start + size <= wanted.start or start >= wanted.stop:
            continue
        clip = restore_space(net, *read(order[start : start + size]), tiling)
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


def restore_space(net: nn.Module, lq: Tensor, spike: Tensor | None, tiling: Tiling) -> Tensor:
    """One tile in time, cut in space: lq (B, n, C, H, W) -> (B, n, C', sH, sW) on the CPU."""
    height, width = lq.shape[-2:]
    patch = tiling.size_patch_testing
    rows, cols = min(patch or height, height), min(patch or width, width)
    tops = tile_starts(height, rows, tiling.size_overlapping)
    lefts = tile_starts(width, cols, tiling.size_overlapping)
    if len(tops) == len(lefts) == 1:
        return _run(net, lq, spike, tiling)

    s = tiling.scale
    # KAIR trims overlap / 2 OUTPUT pixels whatever the scale; a ramp must span the overlap at the output's scale.
    overlap = tiling.size_overlapping * (s if tiling.blend == "smooth" else 1)
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
    return total.div_(total_weight.to(total.dtype))


def _blend_weights(starts: list[int], number: int, size: int, overlap: int, blend: str, trim: bool = True) -> Tensor:
    """Weights (size,) of tile `number` along one axis; 1 towards the ends of the axis.

    kair: 1, and 0 over half of the overlap in space (floor at the beginning, ceil at the end), untrimmed in time.
    smooth: a raised cosine over the overlap, never 0, so that a sum of weights is never 0 either.
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
    """One pass of the network over a tile: padded by reflection to sizes it takes, cropped back, on the CPU."""
    frames, (height, width) = lq.shape[1], lq.shape[-2:]
    s = tiling.scale
    wd, wh, ww = tiling.window_size
    whole_time = tiling.num_frame_testing == 0
    shorter = frames < tiling.num_frame_testing and tiling.blend == "smooth"
    step_t = wd if whole_time or shorter else 1
    target = (
        max(_padded(frames, step_t), tiling.min_frames),
        max(_padded(height, math.lcm(wh, NETWORK_STRIDE)), wh * NETWORK_STRIDE),
        max(_padded(width, math.lcm(ww, NETWORK_STRIDE)), ww * NETWORK_STRIDE),
    )
    device = next((p.device for p in net.parameters()), lq.device)
    lq = _pad(lq, target).to(device, non_blocking=True)
    spike = None if spike is None else _pad(spike, target).to(device, non_blocking=True)
    out = net(lq) if spike is None else net(lq, spike)
    out = out[:, :frames, :, : height * s, : width * s].cpu()
    return out if out.dtype == torch.float64 else out.float()


def _padded(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _pad(clip: Tensor, target: tuple[int, int, int]) -> Tensor:
    for axis, size in zip((1, 3, 4), target, strict=True):
        if clip.shape[axis] != size:
            clip = clip.index_select(axis, mirror_index(clip.shape[axis], size).to(clip.device))
    return clip


def _average_halves(frames: Iterator[Tensor], length: int) -> Iterator[Tensor]:
    """Mean of frame i and frame 2 length - 1 - i of a sequence of 2 length frames.

    They wait on disk, not in memory: the partner of the first frame comes last.
    """
    with tempfile.TemporaryFile() as store:
        for frame in frames:
            store.write(frame.numpy().tobytes())
            shape, dtype, bytes_each = frame.shape, frame.numpy().dtype, frame.nbytes
        for index in range(length):
            halves = []
            for position in (index, 2 * length - 1 - index):
                store.seek(position * bytes_each)
                halves.append(np.frombuffer(store.read(bytes_each), dtype).reshape(shape))
            yield torch.from_numpy((halves[0] + halves[1]) / 2)


def smaller(tiling: Tiling, height: int, width: int) -> Tiling | None:
    """The tiling to try where this one needs too much memory: half as many at once, then half the side, then half the
    length; None at the end."""
    if tiling.batch_tiles > 1:
        return dataclasses.replace(tiling, batch_tiles=tiling.batch_tiles // 2)
    step = math.lcm(NETWORK_STRIDE, *tiling.window_size[1:])
    least = max(tiling.window_size[1:]) * NETWORK_STRIDE
    side = tiling.size_patch_testing or max(height, width)
    half = max(least, side // 2 // step * step)
    if half < side and half > tiling.size_overlapping:
        return dataclasses.replace(tiling, size_patch_testing=half)
    half = max(tiling.min_frames, tiling.num_frame_testing // 2)
    if half < tiling.num_frame_testing and half > tiling.num_frame_overlapping:
        return dataclasses.replace(tiling, num_frame_testing=half)
    return None
