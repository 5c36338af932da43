"""Frame interpolation, with networks that take the frames around a gap (VRT with pa_frames 0)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.restore.tiling import FrameCache, Restorer, Tiling
from utils.contract import ClipReader, FrameReader, InputSpec, Tick
from utils.errors import DataError


class ChosenFrames:
    """The frames `numbers` of a clip, in this order."""

    def __init__(self, clip: FrameReader, numbers: Sequence[int]) -> None:
        self.name, self.stems, self._clip = clip.name, numbers, clip

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        return self._clip.frame(self.stems[index])


class InterpolatedClip:
    """A clip of n frames as one of 2 n - 1: the new frame between "000003" and "000004" is "000003_5". Without gt.

    given: the frames between which others are made. gaps: of each frame, the gap between them in which it lies, 0 for
    the first; None for a given frame. frame: the given frame at or before that time, to compare with.
    """

    def __init__(self, clip: ClipReader) -> None:
        self.given, self.name, self.origin = clip, clip.name, {"input": clip.origin["input"]}
        self.times, self.digest = None, clip.digest
        self.fps = None if clip.fps is None else 2 * clip.fps
        if clip.times is not None:
            between = [(a + b) / 2 for a, b in itertools.pairwise(clip.times)]
            self.times = [t for pair in zip(clip.times, between, strict=False) for t in pair] + [clip.times[-1]]
        self.stems = [f"{stem}{half}" for stem in clip.stems for half in ("", "_5")][:-1]
        self.gaps = [i // 2 if i % 2 else None for i in range(len(self.stems))]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        return {"lq": self.given.frame(index // 2)["lq"]}


class LeftOutFrames:
    """To score an interpolation: every second frame of a clip is given, the frames between are made and compared.

    Only the frames with `length` / 2 given frames on either side count: im4 of im1 ... im7 for length 4, as published
    for Vimeo-90K. given, gaps: see InterpolatedClip. frame: gt, and as lq the mean of the two frames beside the gap,
    the simplest interpolation. Raises DataError for a clip that is too short.
    """

    fps = times = None

    def __init__(self, clip: ClipReader, length: int) -> None:
        """length: frames that the network takes."""
        self.clip, self.name, self.origin, self.digest = clip, clip.name, clip.origin, clip.digest
        self.given = ChosenFrames(clip, range(0, len(clip.stems), 2))
        first = length // 2 - 1
        self.gaps = range(first, first + len(self.given.stems) - length + 1)
        if not self.gaps:
            raise DataError(
                f"clip {clip.name} has {len(clip.stems)} frames", clip.name,
                f"at least {2 * length - 1}: {length} given frames and those between", "leave the clip out",
            )  # fmt: skip
        self.stems = [clip.stems[2 * gap + 1] for gap in self.gaps]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        gap = self.gaps[index]
        before, after = (self.given.frame(i)["lq"] for i in (gap, gap + 1))
        return {"lq": (before + after) / 2, "gt": self.clip.frame(2 * gap + 1)["gt"]}


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
        return reader  # the given frames have a cache, below

    def frames(self, reader: InterpolatedClip | LeftOutFrames, wanted: range, tick: Tick) -> Iterator[Tensor]:
        gaps = [gap for index in wanted if (gap := reader.gaps[index]) is not None]
        last = len(reader.given.stems) - 1  # at the ends of the clip, frames are repeated
        window = range(1 - self.length // 2, 1 - self.length // 2 + self.length)
        numbers = [min(max(gap + i, 0), last) for gap in gaps for i in window]
        clip = ChosenFrames(FrameCache(reader.given, self.length + 2), numbers)
        made = super().frames(clip, range(len(numbers)), lambda done: tick(done * len(wanted) / len(numbers)))
        made = itertools.islice(made, 0, None, self.length)
        for index in wanted:
            yield reader.frame(index)["lq"] if reader.gaps[index] is None else next(made)


class _Repeated(nn.Module):
    """Repeats the one output frame for every input frame, as the tiles expect it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, lq: Tensor) -> Tensor:
        return self.net(lq)[:, :1].expand(-1, lq.shape[1], -1, -1, -1)
