"""Restores the frames of a clip, one after the other, tile by tile."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from models.out_of_memory import is_out_of_memory
from models.restore.tiling import Moment, Tiling, smaller, stream_clip
from utils.contract import FrameReader, Tick
from utils.dist import watchdog
from utils.errors import DataError

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
