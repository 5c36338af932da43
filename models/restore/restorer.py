"""Restoring clips frame by frame: from a reader of single frames, through the tiles, to finished frames."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from models.restore.tiling import Moment, Tiling, out_of_memory, stream_fitting
from utils.dist import watchdog
from utils.errors import DataError

logger = logging.getLogger(__name__)

DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


class FrameReader(Protocol):
    """Gives single frames; see `frame`."""

    name: str
    stems: Sequence[str]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        """lq (3, H, W) and, where the network takes them, spike (S, H, W). reverse: in reversed time."""
        ...


class FrameCache:
    """A reader that keeps the frames read last: overlapping tiles in time and scores decode each frame only once."""

    def __init__(self, reader: FrameReader, capacity: int) -> None:
        self.name, self.stems = reader.name, reader.stems
        self._reader, self._capacity = reader, capacity
        self._frames: OrderedDict[Moment, dict[str, Tensor]] = OrderedDict()

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        moment = (index, reverse)
        if moment in self._frames:
            self._frames.move_to_end(moment)
        else:
            self._frames[moment] = self._reader.frame(*moment)
            if len(self._frames) > self._capacity:
                self._frames.popitem(last=False)
        return self._frames[moment]


class Restorer:
    """A network with its tiles on a device.

    dtype: "float32", or the autocast dtype. noise_sigma: of networks for non-blind denoising, in 0..255: a further
    input channel. fit: halve the tiles where memory does not suffice; `tiling` then says what was used.
    finite_only: NaN or Inf in a restored frame is an error. do: what to do where memory does not suffice.
    """

    def __init__(
        self,
        net: nn.Module,
        tiling: Tiling,
        device: torch.device,
        *,
        dtype: str = "float32",
        noise_sigma: float | None = None,
        fit: bool = False,
        finite_only: bool = True,
        do: str = "use --tile auto, smaller tiles (--tile 6,128), or --dtype bfloat16",
    ) -> None:
        self.net = _Autocast(net.to(device).eval(), device, DTYPES[dtype])
        self.tiling, self.device, self.dtype = tiling, device, dtype
        self.noise_sigma, self.fit, self.finite_only, self.do = noise_sigma, fit, finite_only, do

    def cached(self, reader: FrameReader) -> FrameCache:
        """The reader, keeping as many frames as one tile in time has."""
        return FrameCache(reader, (self.tiling.num_frame_testing or len(reader.stems)) + 2)

    def frames(self, reader: FrameReader, wanted: range) -> Iterator[Tensor]:
        """The restored frames `wanted` of a clip, in order, each (C, sH, sW) float32 on the CPU.

        With center_frame_only the one in the middle, whatever is wanted, and none where nothing is. Memory is bounded
        by the tile in time. A reader from `cached` still holds the frame that was restored last.
        """
        count = len(reader.stems)
        cache = reader if isinstance(reader, FrameCache) else self.cached(reader)
        height, width = cache.frame(0)["lq"].shape[-2:]

        def read(moments: Sequence[Moment]) -> tuple[Tensor, Tensor | None]:
            items = [cache.frame(*moment) for moment in moments]
            lq = torch.stack([item["lq"] for item in items])[None]
            if self.noise_sigma is not None:
                lq = torch.cat((lq, torch.full_like(lq[:, :, :1], self.noise_sigma / 255)), dim=2)
            return lq, torch.stack([item["spike"] for item in items])[None] if "spike" in items[0] else None

        restored = stream_fitting(self.net, read, count, self.tiling, wanted, (height, width), self._shrink)
        try:
            for frame in restored:
                if self.finite_only and not torch.isfinite(frame).all():
                    raise DataError(
                        f"the network gave NaN or Inf for clip {reader.name}", reader.name, "finite values",
                        "use --dtype float32, and check the weights",
                    )  # fmt: skip
                yield frame[0]
        except RuntimeError as e:
            if out_of_memory(e):
                raise self._too_large() from e
            raise

    def _shrink(self, tiling: Tiling) -> None:
        if not self.fit:
            raise self._too_large()
        logger.warning("out of memory; now with %s", describe_tiling(tiling))
        self.tiling = tiling

    def _too_large(self) -> DataError:
        what = f"the network with {describe_tiling(self.tiling)}"
        return DataError("out of memory", what, "tiles that fit into memory", self.do)


class _Autocast(nn.Module):
    """The network in mixed precision (dtype None: as it is)."""

    def __init__(self, net: nn.Module, device: torch.device, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.net, self._device, self._dtype = net, device.type, dtype

    def forward(self, *inputs: Tensor) -> Tensor:
        watchdog.go_on()  # one tile may take long, and a clip has any number of them
        with torch.autocast(self._device, self._dtype, enabled=self._dtype is not None):
            return self.net(*inputs)


def describe_tiling(tiling: Tiling) -> str:
    """The tiles in words, for the log and the protocol."""
    frames = f"{tiling.num_frame_testing} frames" if tiling.num_frame_testing else "the whole clip"
    side = f"{tiling.size_patch_testing} px" if tiling.size_patch_testing else "the whole frame"
    parts = [f"tiles of {frames} x {side}"]
    if tiling.num_frame_testing or tiling.size_patch_testing:
        parts.append(f"overlap {tiling.num_frame_overlapping} frames, {tiling.size_overlapping} px")
    parts += [f"{tiling.batch_tiles} at once"] if tiling.batch_tiles > 1 else []
    parts.append(f"{tiling.blend} blend")
    parts += [name for name in ("flip_seq", "pad_seq", "center_frame_only") if getattr(tiling, name)]
    return ", ".join(parts)
