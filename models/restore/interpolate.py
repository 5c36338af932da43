"""Frame interpolation, with networks that take the frames around a gap (VRT with pa_frames 0)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from models.restore.restorer import Restorer
from models.restore.tiling import Tiling
from utils.contract import ClipReader, FrameReader, InputSpec, Tick
from utils.errors import DataError


class InterpolatedClip:
    """A clip of n frames as one of 2 n - 1: the new frame between "000003" and "000004" is "000003_5". Without gt.

    frame: the given frame at or before that time, to compare with.
    """

    def __init__(self, source: ClipReader) -> None:
        self.source, self.name, self.origin = source, source.name, {"input": source.origin["input"]}
        self.fps = None if source.fps is None else 2 * source.fps
        self.sound, self.times = source.sound, None
        if source.times is not None:
            between = [(a + b) / 2 for a, b in itertools.pairwise(source.times)]
            self.times = [t for pair in zip(source.times, between, strict=False) for t in pair] + [source.times[-1]]
        self.stems = [f"{stem}{half}" for stem in source.stems for half in ("", "_5")][:-1]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        return {"lq": self.source.frame(index // 2)["lq"]}

    def gap_of(self, index: int) -> int | None:
        """The gap of `source` in which frame `index` lies, 0 for the first; None for a given frame."""
        return index // 2 if index % 2 else None

    def digest(self) -> str:
        return self.source.digest()


class LeftOutFrames:
    """To score an interpolation: every second frame of a clip is given, the frames between are made and compared.

    Only the frames with `length` / 2 given frames on either side count: im4 of im1 ... im7 for length 4, as published
    for Vimeo-90K. frame: gt, and as lq the mean of the two frames beside the gap, the simplest interpolation.
    Raises DataError for a clip that is too short.
    """

    fps = times = sound = None

    def __init__(self, clip: ClipReader, length: int) -> None:
        """length: frames that the network takes."""
        self.clip, self.name, self.origin = clip, clip.name, clip.origin
        self.source = _EverySecond(clip)
        self.first_gap = length // 2 - 1
        gaps = len(self.source.stems) - length + 1
        if gaps < 1:
            raise DataError(
                f"clip {clip.name} has {len(clip.stems)} frames", clip.name,
                f"at least {2 * length - 1}: {length} given frames and those between", "leave the clip out",
            )  # fmt: skip
        self.stems = [clip.stems[2 * (self.first_gap + i) + 1] for i in range(gaps)]

    def gap_of(self, index: int) -> int:
        return self.first_gap + index

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        gap = self.gap_of(index)
        before, after = (self.source.frame(i)["lq"] for i in (gap, gap + 1))
        return {"lq": (before + after) / 2, "gt": self.clip.frame(2 * gap + 1)["gt"]}

    def digest(self) -> str:
        return self.clip.digest()


class _EverySecond:
    """The frames 0, 2, 4, ... of a clip."""

    def __init__(self, clip: FrameReader) -> None:
        self.name, self.stems, self._clip = clip.name, clip.stems[::2], clip

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        return self._clip.frame(2 * index)


def scored_clips(clips: Sequence[ClipReader], spec: InputSpec) -> Sequence[ClipReader]:
    """Clips with sharp frames as a network with `spec` is scored on them."""
    return [LeftOutFrames(clip, spec.least_frames) for clip in clips] if spec.interpolates else clips


def restorer_of(net: nn.Module, spec: InputSpec, tiling: Tiling, device: torch.device, **options: Any) -> Restorer:
    """The restorer for a network with `spec`. options: see Restorer."""
    if spec.interpolates:
        return Interpolator(net, tiling, device, length=spec.least_frames, **options)
    return Restorer(net, tiling, device, **options)


class Interpolator(Restorer):
    """Restorer of clips with gaps: given frames are returned unchanged, the others come from the network."""

    def __init__(self, net: nn.Module, tiling: Tiling, device: torch.device, *, length: int, **options: Any) -> None:
        """length: frames that the network takes, half of them before the gap."""
        # Each window of frames around a gap is one tile in time.
        tiling = dataclasses.replace(tiling, num_frame_testing=length, num_frame_overlapping=0, min_frames=length)
        super().__init__(_Repeated(net), tiling, device, **options)
        self.length = length

    def cached(self, reader: FrameReader) -> FrameReader:
        """Windows with a cache; clips with gaps as they are."""
        return super().cached(reader) if isinstance(reader, _Windows) else reader

    def frames(self, reader: InterpolatedClip | LeftOutFrames, wanted: range, tick: Tick) -> Iterator[Tensor]:
        gaps = [gap for index in wanted if (gap := reader.gap_of(index)) is not None]
        first, stop = (gaps[0], gaps[-1] + 1) if gaps else (0, 0)
        windows = _Windows(reader.source, self.length)
        inner = range(first * self.length, stop * self.length)
        made = super().frames(windows, inner, lambda done: tick(done * len(wanted) / len(inner)))
        between = islice(made, 0, None, self.length)
        for index in wanted:
            yield reader.frame(index)["lq"] if reader.gap_of(index) is None else next(between)


class _Windows:
    """The frames around each gap of a clip, one window after the other; at its ends frames are repeated."""

    def __init__(self, source: FrameReader, length: int) -> None:
        self.name, self._source, self._length = source.name, source, length
        self.stems = range((len(source.stems) - 1) * length)

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        gap, position = divmod(index, self._length)
        number = gap + position - (self._length // 2 - 1)
        return {"lq": self._source.frame(min(max(number, 0), len(self._source.stems) - 1))["lq"]}


class _Repeated(nn.Module):
    """Repeats the one output frame for every input frame, as the tiles expect it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, lq: Tensor) -> Tensor:
        return self.net(lq)[:, :1].expand(-1, lq.shape[1], -1, -1, -1)
