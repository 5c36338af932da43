"""Frame interpolation, with networks that take the frames around a gap (VRT with pa_frames 0)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from models.restore.restorer import Restorer
from models.restore.tiling import Tiling
from utils.contract import ClipReader, FrameReader


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

    def digest(self) -> str:
        return self.source.digest()


class Interpolator(Restorer):
    """Restorer of an InterpolatedClip: given frames are returned unchanged, the others come from the network."""

    def __init__(self, net: nn.Module, tiling: Tiling, device: torch.device, *, length: int, **options: Any) -> None:
        """length: frames that the network takes, half of them before the gap."""
        # Each window of frames around a gap is one tile in time.
        tiling = dataclasses.replace(tiling, num_frame_testing=length, num_frame_overlapping=0, min_frames=length)
        super().__init__(_Repeated(net), tiling, device, **options)
        self.length = length

    def frames(self, reader: InterpolatedClip, wanted: range) -> Iterator[Tensor]:
        gaps = range(wanted.start // 2, wanted.stop // 2)
        windows = _Windows(reader.source, self.length)
        made = super().frames(windows, range(gaps.start * self.length, gaps.stop * self.length))
        between = islice(made, 0, None, self.length)
        for index in wanted:
            yield next(between) if index % 2 else reader.frame(index)["lq"]


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
