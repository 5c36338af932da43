"""Restores clips of any length and size in tiles of time and space, with memory bounded by the
tile.

Two blends: "kair", as published, equal weights with trimmed borders; "smooth", ramps over the
overlap, which leave no visible seam. Networks that take the frames around a gap (VRT with pa_frames
0) make new frames: see Restorer.frames.
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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from utils import device as devices
from utils.contract import ClipReader, FrameReader, InputSpec, Tick
from utils.dist import watchdog
from utils.errors import DataError, OptionError
from utils.options.models import ValOptions

# Index of a frame, and whether time is reversed (its spikes are then those of the reversed stream).
Moment = tuple[int, bool]
# Moments -> lq (B, n, C, H, W) and, where there are any, spike (B, n, S, H, W), in this order.
Reader = Callable[[Sequence[Moment]], tuple[Tensor, ...]]
# Frames and side of an "auto" tile, on every machine: no score depends on how much memory it has,
# see docs/testing.md.
AUTO_FRAMES, AUTO_SIDE = 12, 256

logger = logging.getLogger(__name__)


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
    """

    spec: InputSpec  # of the network; tiles are padded accordingly
    num_frame_testing: int = 0
    num_frame_overlapping: int = 2
    size_patch_testing: int = 0
    size_patch_overlapping: int = 20
    blend: str = "kair"
    flip_seq: bool = False
    pad_seq: bool = False
    center_frame_only: bool = False
    batch_tiles: int = 1
    is_halved: bool = False

    def __post_init__(self) -> None:
        for what in ("num_frame", "size_patch"):
            size, overlap = getattr(self, f"{what}_testing"), getattr(self, f"{what}_overlapping")
            if 0 < size <= overlap:
                raise OptionError(
                    f"tiles of {size} that overlap by {overlap}",
                    f"val.{what}_testing, val.{what}_overlapping",
                    "overlap < tile, or tile 0 (the whole)",
                    f"raise {what}_testing or lower {what}_overlapping",
                )  # fmt: skip
        side, key = self.size_patch_testing, "val.size_patch_testing"
        for window in self.spec.window_size[1:]:
            if side % window:
                near = f"use {-(-side // window) * window}"
                raise OptionError(
                    f"{key} {side} is not a multiple of {window}",
                    key,
                    "a multiple of the window",
                    near,
                )

    @classmethod
    def of(cls, val: ValOptions, spec: InputSpec, **changes: Any) -> "Tiling":
        """The tiles of the options `val` for a network with `spec`; changes: fields with other
        values.
        """
        fields: dict[str, Any] = val.plain() | changes
        del fields["save_img"]
        auto = {
            "num_frame": (AUTO_FRAMES, spec.window_size[0]),
            "size_patch": (AUTO_SIDE, spec.multiple),
        }
        for what, (size, multiple) in auto.items():
            if fields[key := f"{what}_testing"] == "auto":
                fields = (
                    {"blend": "smooth", "is_halved": True}
                    | fields
                    | {key: -(-size // multiple) * multiple}
                )
        if spec.interpolates:  # each window of frames around a gap is one tile in time
            fields |= {"num_frame_testing": spec.least_frames, "num_frame_overlapping": 0}
        return cls(spec, **fields)

    def describe(self) -> str:
        """The tiles in words, for the log and the protocol."""
        frames = f"{self.num_frame_testing} frames" if self.num_frame_testing else "the whole clip"
        side = f"{self.size_patch_testing} px" if self.size_patch_testing else "the whole frame"
        parts = [f"tiles of {frames} x {side}"]
        if self.num_frame_testing or self.size_patch_testing:
            parts.append(
                f"overlap {self.num_frame_overlapping} frames, {self.size_patch_overlapping} px"
            )
        parts += [f"{self.batch_tiles} at once"] if self.batch_tiles > 1 else []
        parts.append(f"{self.blend} blend")
        parts += [
            name for name in ("flip_seq", "pad_seq", "center_frame_only") if getattr(self, name)
        ]
        return ", ".join(parts)


@torch.no_grad()
def stream_clip(
    net: Callable[..., Tensor],
    read: Reader,
    num_frames: int,
    tiling: Tiling,
    wanted: range,
    tick: Tick = lambda part: None,
) -> Iterator[Tensor]:
    """The restored frames `wanted`, (B, C', sH, sW) each, in order, on the CPU.

    Memory holds one tile in time.

    Only the tiles that contain wanted frames are computed (with flip_seq all tiles). The frames
    equal those of a run over the whole clip bit for bit. The network must be in eval mode. tick:
    takes the part, 0..1, that was done.
    """
    order = [(index, False) for index in range(num_frames)]
    order += order[-1:] if tiling.pad_seq else []
    if not tiling.flip_seq:
        yield from _stream_sequence(net, read, order, tiling, wanted, tick)
        return
    both = order + [(index, True) for index, _ in reversed(order)]
    with tempfile.TemporaryFile() as store:  # the partner of the first frame comes last
        for frame in _stream_sequence(net, read, both, tiling, range(len(both)), tick):
            store.write(frame.numpy().tobytes())
        for index in wanted:
            halves = []
            for position in (index, len(both) - 1 - index):
                store.seek(position * frame.nbytes)
                stored = torch.frombuffer(bytearray(store.read(frame.nbytes)), dtype=frame.dtype)
                halves.append(stored.reshape(frame.shape))
            # In the channels of the copy, the instants of a frame are in the opposite order.
            yield (
                halves[0]
                + halves[1].unflatten(-3, (tiling.spec.out_instants, -1)).flip(-4).flatten(-4, -3)
            ) / 2


def tile_starts(length: int, size: int, overlap: int) -> list[int]:
    """Starts of the tiles along one axis; the last tile ends with the axis, so it may overlap more
    than the others.
    """
    if length <= size:
        return [0]
    return [*range(0, length - size, size - overlap), length - size]


def _stream_sequence(
    net: Callable[..., Tensor],
    read: Reader,
    order: Sequence[Moment],
    tiling: Tiling,
    wanted: range,
    tick: Tick,
) -> Iterator[Tensor]:
    """Restored frames at positions `wanted` of the sequence `order`, computed tile by tile in
    time.
    """
    length, overlap = len(order), tiling.num_frame_overlapping
    size = min(tiling.num_frame_testing or length, length)
    starts = tile_starts(length, size, overlap)
    needed = [
        (n, at) for n, at in enumerate(starts) if at + size > wanted.start and at < wanted.stop
    ]
    pending: deque[tuple[Tensor, float]] = deque()  # weighted sums and weights, from `start` on
    for number, start in needed:
        clip = restore_space(
            net, read(order[start : start + size]), tiling, lambda part: tick(part / len(needed))
        )
        # KAIR trims the borders in space, not in time.
        weights = _blend_weights(
            starts, number, size, overlap if tiling.blend == "smooth" else 0, tiling.blend
        )
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
    net: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    tiling: Tiling,
    tick: Tick = lambda part: None,
) -> Tensor:
    """One tile in time, restored tile by tile in space: see `Reader` -> (B, n, C', sH, sW) on the
    CPU.
    """
    height, width = inputs[0].shape[-2:]
    patch, s = tiling.size_patch_testing, tiling.spec.scale
    rows, cols = min(patch or height, height), min(patch or width, width)
    tops = tile_starts(height, rows, tiling.size_patch_overlapping)
    lefts = tile_starts(width, cols, tiling.size_patch_overlapping)
    if len(tops) == len(lefts) == 1:
        whole = _run(net, inputs, tiling)
        tick(1)
        return whole

    # KAIR trims overlap / 2 output pixels at any scale; a ramp must span the whole overlap in
    # output pixels.
    overlap = tiling.size_patch_overlapping * (s if tiling.blend == "smooth" else 1)
    total = torch.empty(0)  # its size follows from the first output
    total_weight = torch.zeros(height * s, width * s)
    tiles = list(itertools.product(enumerate(tops), enumerate(lefts)))
    for first in range(0, len(tiles), tiling.batch_tiles):
        batch = tiles[first : first + tiling.batch_tiles]
        cuts = []
        for (_, top), (_, left) in batch:
            cuts.append((..., slice(top, top + rows), slice(left, left + cols)))
        stacked = tuple(torch.cat([x[cut] for cut in cuts]) for x in inputs)
        outs = _run(net, stacked, tiling).split(len(inputs[0]))
        if first == 0:
            total = outs[0].new_zeros(*outs[0].shape[:-2], height * s, width * s)
        for ((row, top), (col, left)), out in zip(batch, outs, strict=True):
            weight = _blend_weights(tops, row, rows * s, overlap, tiling.blend)[:, None]
            weight = weight * _blend_weights(lefts, col, cols * s, overlap, tiling.blend)
            place = (..., slice(top * s, (top + rows) * s), slice(left * s, (left + cols) * s))
            total[place] += out * weight.to(out.dtype)
            total_weight[place] += weight
        tick(len(batch) / len(tiles))
    return total.div_(total_weight.to(total.dtype))


def _blend_weights(starts: list[int], number: int, size: int, overlap: int, blend: str) -> Tensor:
    """Weights (size,) of tile `number` along one axis; 1 where the tile meets an end of the axis.

    kair: 0 over half of the overlap, rounded down at the start and up at the end, else 1.
    smooth: a raised cosine over the overlap, never 0, so that no sum of weights is 0.
    """
    if blend == "smooth":
        overlap = min(overlap, size)
        begin = 0.5 - 0.5 * torch.cos(torch.pi * (torch.arange(overlap) + 0.5) / max(overlap, 1))
        end = begin.flip(0)
    else:
        begin, end = torch.zeros(overlap // 2), torch.zeros(math.ceil(overlap / 2))
    weights = torch.ones(size)
    if number > 0:
        weights[: len(begin)] *= begin
    if number < len(starts) - 1:
        weights[size - len(end) :] *= end
    return weights


def _run(net: Callable[..., Tensor], inputs: tuple[Tensor, ...], tiling: Tiling) -> Tensor:
    """One pass of the network over a tile, padded by reflection to a size that it takes; cropped,
    on the CPU.
    """
    spec, (frames, height, width) = tiling.spec, (inputs[0].shape[axis] for axis in (1, 3, 4))
    step_t, *steps = spec.window_size
    shorter = frames < tiling.num_frame_testing and tiling.blend == "smooth"
    pads_time = tiling.num_frame_testing == 0 or shorter
    steps = (step_t if pads_time else 1, *(math.lcm(step, spec.stride) for step in steps))
    least, padded = (spec.least_frames, *spec.least_size), []
    for x in inputs:
        for axis, step, low in zip((1, 3, 4), steps, least, strict=True):
            length = x.shape[axis]
            size = max(-(-length // step) * step, low)
            if size != length:  # the edge is repeated, as often as needed
                index = torch.arange(size, device=x.device) % (2 * length)
                x = x.index_select(axis, torch.where(index < length, index, 2 * length - 1 - index))
        padded.append(x)
    out = net(*padded)[:, :frames, :, : height * spec.scale, : width * spec.scale].cpu()
    return out if out.dtype == torch.float64 else out.float()


def smaller(tiling: Tiling, height: int, width: int) -> Tiling | None:
    """The next tiling to try after an out-of-memory error, None after the smallest.

    First fewer tiles per pass, then half the side, then half the length.
    """
    if tiling.batch_tiles > 1:
        return replace(tiling, batch_tiles=tiling.batch_tiles // 2)
    step = tiling.spec.multiple
    least = -(-max(tiling.spec.least_size) // step) * step
    side = tiling.size_patch_testing or max(height, width)
    half = max(least, side // 2 // step * step)
    if half < side and half > tiling.size_patch_overlapping:
        return replace(tiling, size_patch_testing=half)
    half = max(tiling.spec.least_frames, tiling.num_frame_testing // 2)
    if half < tiling.num_frame_testing and half > tiling.num_frame_overlapping:
        return replace(tiling, num_frame_testing=half)
    return None


class FrameCache:
    """The frames `numbers` of a clip. The last ones read are kept.

    Where tiles overlap, a frame is decoded once.
    """

    def __init__(
        self, clip: FrameReader, capacity: int, numbers: Sequence[int] | None = None
    ) -> None:
        """numbers: in any order, also several times, or None for all frames."""
        self.name = clip.name
        self._numbers = range(len(clip.stems)) if numbers is None else numbers
        self.stems = [clip.stems[number] for number in self._numbers]
        self._frame = lru_cache(capacity)(clip.frame)

    def frame(self, index: int, reverse: bool = False) -> dict[str, Any]:
        return self._frame(self._numbers[index], reverse)


class Restorer:
    """A network with its tiles on a device.

    tiling: the one in use, which is_halved changes. dtype: of autocast; None: float32. noise_sigma:
    noise level 0..255, a further input channel of non-blind denoisers. finite_only: NaN or Inf in a
    restored frame is an error. do: advice in the error for out of memory.
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
        self.net, self.tiling, self.device, self.dtype = (
            net.to(device).eval(),
            tiling,
            device,
            dtype,
        )
        self.noise_sigma, self.finite_only, self.do = noise_sigma, finite_only, do

    def describe(self) -> str:
        return self.tiling.describe()

    def cached(self, reader: FrameReader) -> FrameReader:
        """The reader with a cache for the frames of one tile in time; after `frames`, it has the
        last input.
        """
        # A reader for a network that interpolates has a cache of its own.
        if isinstance(reader, FrameCache) or self.tiling.spec.interpolates:
            return reader
        capacity = (self.tiling.num_frame_testing or len(reader.stems)) + 2
        return FrameCache(reader, capacity)

    def frames(self, reader: Any, wanted: range, tick: Tick = lambda _: None) -> Iterator[Tensor]:
        """The restored frames `wanted` of a clip, in order, each (C, sH, sW) float32 on the CPU.

        A network that interpolates takes an InterpolatedClip or LeftOutFrames: given frames come
        back unchanged.
        """
        if not self.tiling.spec.interpolates:
            yield from self._restored(reader, wanted, tick)
            return
        # The network takes `length` frames, half of them before the gap; at the ends of the clip,
        # frames are repeated.
        length = self.tiling.spec.least_frames
        gaps = [gap for index in wanted if (gap := reader.gaps[index]) is not None]
        window, last = range(1 - length // 2, 1 - length // 2 + length), len(reader.given) - 1
        numbers = [reader.given[min(max(gap + i, 0), last)] for gap in gaps for i in window]
        windows = FrameCache(reader.clip, length + 2, numbers)
        made = self._restored(
            windows, range(len(numbers)), lambda done: tick(done * len(wanted) / len(numbers))
        )
        made = itertools.islice(made, 0, None, length)
        for index in wanted:
            yield reader.frame(index)["lq"] if reader.gaps[index] is None else next(made)

    def _restored(self, reader: FrameReader, wanted: range, tick: Tick) -> Iterator[Tensor]:
        """What the network makes of the frames `wanted`, in memory that is bounded by the tile in
        time.

        Where the tiles are halved, smaller ones follow an out-of-memory error; all of a clip have
        the same size, so if memory suffices for the first frame, it does for the last.
        """
        cache = self.cached(reader)

        def read(moments: Sequence[Moment]) -> tuple[Tensor, ...]:
            items = [cache.frame(*moment) for moment in moments]
            lq, *spike = (
                torch.stack([i[key] for i in items])[None]
                for key in ("lq", "spike")
                if key in items[0]
            )
            if self.noise_sigma is not None:
                lq = torch.cat((lq, torch.full_like(lq[:, :, :1], self.noise_sigma / 255)), dim=2)
            return lq, *spike

        is_started = False
        while wanted:
            shrunk = None
            try:
                for frame in stream_clip(
                    self._run,
                    read,
                    len(cache.stems),
                    self.tiling,
                    wanted,
                    lambda part: tick(part * len(wanted)),
                ):
                    is_started = True
                    if self.finite_only and not torch.isfinite(frame).all():
                        raise DataError(
                            f"the network gave NaN or Inf for clip {reader.name}", reader.name,
                            "finite values",
                            "use --dtype float32, and check the weights",
                        )  # fmt: skip
                    yield frame[0]
                return
            except (RuntimeError, MemoryError) as e:
                if not devices.is_out_of_memory(e):
                    raise
                if self.tiling.is_halved and not is_started:
                    shrunk = smaller(self.tiling, *cache.frame(0)["lq"].shape[-2:])
                if shrunk is None:
                    what = f"the network with {self.tiling.describe()}"
                    raise DataError(
                        "out of memory", what, "tiles that fit into memory", self.do
                    ) from e
            # After the except block, because the traceback keeps the tensors that filled the
            # memory.
            devices.free_kept_memory(self.device)
            self.tiling = shrunk
            logger.warning("out of memory; trying again with %s", shrunk.describe())

    def _run(self, *inputs: Tensor) -> Tensor:
        """The network on padded tiles, in its dtype."""
        watchdog.go_on()  # each tile counts as progress: it may take long, and a clip may have many
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            out = self.net(*(x.to(self.device, non_blocking=True) for x in inputs))
        # The one new frame, repeated for every input frame, as the tiles expect it.
        return (
            out[:, :1].expand(-1, inputs[0].shape[1], -1, -1, -1)
            if self.tiling.spec.interpolates
            else out
        )


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
    """Return times with the middle of each two neighbours between them."""
    found = [times[0]]
    for before, after in itertools.pairwise(times):
        found += [(before + after) / 2, after]
    return found


class LeftOutFrames:
    """A clip whose every second frame is given, to score an interpolation.

    The frames between are made and compared. Only the frames with `length` / 2 given frames on
    either side count: im4 of im1 ... im7 for length 4, as published for Vimeo-90K.

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
        """Return gt, and as lq the mean of both neighbours, the simplest interpolation."""
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
    """Clips with sharp frames as a network with `spec` is scored on them."""
    if not spec.interpolates:
        return clips
    return [LeftOutFrames(clip, spec.least_frames) for clip in clips]
