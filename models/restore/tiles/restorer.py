"""Restore the frames of clips with a network on a device, with smaller tiles if the memory is full.

    Restorer.frames      yields the restored frames of a clip (`utils.contract.FrameRestorer`)
      stream_clip        tile by tile in time (stream.py)
        restore_space    tile by tile in space (space.py)
          run_padded     one tile, padded to a size that the network takes (padding.py)
            _run_network the network itself, on its device and in its precision

For the input of each tile in time, stream_clip calls `Restorer._read`, which joins the frames of
the tile. `_read` gets the frames from a cache (frame_cache.py), so that a frame in two tiles is
decoded once. The cache reads the frames from a reader of the clip, usually a `DatasetClip`
(data/clips/readers.py).

E.g. a clip of 14 frames, and tiles of 12 frames x 256 px: stream_clip restores the frames 0 ... 11,
then 2 ... 13. The frames 2 ... 11 are weighted means of both results. restore_space cuts the frames
into squares of 256 x 256 pixels.

network_method.py (in a test) and validation.py (in a training) make a `Restorer` of a network and a
`Tiling` (plan.py). `Restorer.frames` takes a reader of a clip, and yields restored frames on the
CPU, one by one. run_job.py writes them, and validated_clip.py scores them.

What must stay: the frames of one clip come from one tiling. Free to change: the advice of the
errors.

Tests: tests/parts/models/test_tiling.py; tests/stories/test_main_test.py runs the program
"""

import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from models.restore.tiles.frame_cache import SPARE_FRAMES, FrameCache
from models.restore.tiles.gaps import ClipWithGaps, frames_around_gaps
from models.restore.tiles.plan import WHOLE, Tiling, smaller_tiling
from models.restore.tiles.stream import Moment, stream_clip
from utils import device as devices
from utils.contract import FrameReader, Tick
from utils.dist import watchdog
from utils.errors import DataError
from utils.system import keep_freed_memory

logger = logging.getLogger(__name__)


class Restorer:
    """A network on a device, and the tiles in which it restores clips.

    net: the network. It is moved to the device, and set to eval mode.
    tiling: the tiles in use. They become smaller if `Tiling.may_halve` is true and the memory is
        full.
    dtype: dtype of autocast, or None for float32.
    noise_sigma: noise level 0..255 for a denoiser that takes the level as one more channel of its
        input. None for any other network.
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

    def frames(
        self, reader: FrameReader | ClipWithGaps, wanted: range, tick: Tick = lambda _: None
    ) -> Iterator[Tensor]:
        """Yield the restored frames `wanted` of a clip, each (C', sH, sW) float32 on the CPU.

        C' channels are the colours of all sharp instants of the frame, usually 3. s is the scale of
        the network.

        reader: the clip. For a network that interpolates, a clip with gaps (gaps.py), whose given
        frames come back unchanged.
        tick: function that gets the number of wanted frames that were restored since its last call.
        The default does nothing.
        """
        if self.tiling.spec.interpolates:
            clip_with_gaps = cast(ClipWithGaps, reader)
            yield from self._interpolate_frames(clip_with_gaps, wanted, tick)
        else:
            yield from self._restore_frames(reader, wanted, tick)

    def _restore_frames(self, reader: FrameReader, wanted: range, tick: Tick) -> Iterator[Tensor]:
        """Yield what the network makes of the frames `wanted`. Memory holds one tile in time.

        With `Tiling.may_halve`, the clip is begun again with smaller tiles if the memory runs out
        before the first frame is yielded. If the memory runs out later, the error is raised,
        because frames of two tilings would not fit together in one clip. A later error is not
        expected, because all tiles of a clip have the same size.
        (test_tiles_are_halved_until_memory_suffices)
        """
        if not wanted:  # e.g. if no frame that the caller wants lies in a gap
            return
        cache = self.with_cache(reader)
        # Each frame needs arrays of the same sizes. So keep the memory of the previous frame for
        # the next one, which saves a tenth of the time of a large frame.
        if self.tiling.spec.each_frame_alone:
            keep_freed_memory()

        has_yielded = False
        while True:  # until the clip is restored with tiles that fit into the memory
            try:
                for frame in self._stream(cache, wanted, tick):  # (1, C', sH, sW)
                    has_yielded = True
                    self._refuse_nonfinite(frame, reader.name)
                    yield frame[0]
                return
            except (RuntimeError, MemoryError) as e:
                if not devices.is_out_of_memory(e):
                    raise
                next_tiling = None
                if not has_yielded:
                    next_tiling = self._next_tiling(cache)
                if next_tiling is None:
                    raise self._out_of_memory_error() from e
            # Free the memory after the except block. Within the except block, the traceback of the
            # error still refers to the tensors that filled the memory.
            devices.free_kept_memory(self.device)
            self.tiling = next_tiling
            logger.warning("out of memory; trying again with %s", next_tiling.describe())

    def _stream(self, cache: FrameReader, wanted: range, tick: Tick) -> Iterator[Tensor]:
        """Yield the frames `wanted` with the present tiles, (1, C', sH, sW) each.

        cache: reader of the clip.
        wanted: indices of the frames to yield.
        tick: function that gets the work that was done since its last call, in frames.
        """

        def read_tile(moments: Sequence[Moment]) -> tuple[Tensor, ...]:
            return self._read(cache, moments)

        def tick_of_frames(done_share: float) -> None:
            # Turn a fraction of the clip into a number of frames.
            tick(done_share * len(wanted))

        return stream_clip(
            net=self._run_network,  # padding.py calls it, for each tile in space
            read=read_tile,  # stream.py calls it, for each tile in time
            num_frames=len(cache.stems),
            tiling=self.tiling,
            wanted=wanted,
            tick=tick_of_frames,
        )

    def _out_of_memory_error(self) -> DataError:
        """Make the error for tiles that do not fit into the memory."""
        return DataError(
            what="out of memory",
            where=f"the network with {self.tiling.describe()}",
            expected="tiles that fit into memory",
            do=self.do,
        )

    def with_cache(self, reader: FrameReader) -> FrameReader:
        """Return the reader with a cache for the frames of one tile in time.

        `frames` reads each clip through such a cache. validated_clip.py makes the cache itself, and
        passes the cache to `frames`. So validated_clip.py can read the input of the last tile once
        more, from the cache.
        """
        if isinstance(reader, FrameCache):  # it has a cache already
            return reader
        # A network that interpolates reads other frames than it returns, so `_interpolate_frames`
        # makes a cache of its own.
        if self.tiling.spec.interpolates:
            return reader
        frames_of_tile = self.tiling.num_frame_testing
        if frames_of_tile == WHOLE:
            frames_of_tile = len(reader.stems)
        # With a cache smaller than a tile, each frame in two tiles would be read twice.
        capacity = frames_of_tile + SPARE_FRAMES
        return FrameCache(reader, capacity)

    def _next_tiling(self, cache: FrameReader) -> Tiling | None:
        """Return the tiling to try after an out-of-memory error in this clip.

        Returns None if smaller tiles were not asked for, or if the tiles are the smallest already.
        """
        if not self.tiling.may_halve:
            return None
        height, width = cache.frame(0)["lq"].shape[-2:]
        return smaller_tiling(self.tiling, height, width)

    def _read(self, cache: FrameReader, moments: Sequence[Moment]) -> tuple[Tensor, ...]:
        """Return the input of the network for n moments, as a batch of one clip.

        Returns the blurry frames lq (1, n, C, H, W), and if the clip has spikes, also their
        channels spike (1, n, S, H, W). If `noise_sigma` is not None, lq has the noise level as one
        more channel.

        moments: which frames, and whether time is reversed.
        """
        items = [cache.frame(moment.index, moment.is_reversed) for moment in moments]
        lq = torch.stack([item["lq"] for item in items])[None]  # (1, n, C, H, W)
        if self.noise_sigma is not None:
            one_channel = lq[:, :, :1]  # (1, n, 1, H, W)
            noise_map = torch.full_like(one_channel, self.noise_sigma / 255)
            lq = torch.cat((lq, noise_map), dim=2)
        if "spike" not in items[0]:
            return (lq,)
        spike = torch.stack([item["spike"] for item in items])[None]  # (1, n, S, H, W)
        return lq, spike

    def _refuse_nonfinite(self, frame: Tensor, clip: str) -> None:
        """Raise DataError if a restored frame has NaN or Inf. clip: name of its clip."""
        if self.finite_only and not torch.isfinite(frame).all():
            raise DataError(
                what=f"the network gave NaN or Inf for clip {clip}",
                where=clip,
                expected="finite values",
                do="use --dtype float32, and check the weights",
            )

    def _run_network(self, *inputs: Tensor) -> Tensor:
        """Run the network on padded tiles, (B, n, channels, H, W) -> (B, n, C', sH, sW)."""
        # Tell the watchdog that this process still works, because the watchdog ends a process that
        # hangs. Tell it for each tile, because a single tile may take long.
        watchdog.go_on()
        on_device = [x.to(self.device, non_blocking=True) for x in inputs]
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            out = self.net(*on_device)
        if not self.tiling.spec.interpolates:
            return out
        # A network that interpolates makes one new frame of a tile. `stream_clip` expects a result
        # for each frame of the tile, so repeat the new frame. `expand` copies nothing.
        new_frame = out[:, :1]  # (B, 1, C', sH, sW)
        frame_count = inputs[0].shape[1]
        return new_frame.expand(-1, frame_count, -1, -1, -1)

    def _interpolate_frames(
        self, reader: ClipWithGaps, wanted: range, tick: Tick
    ) -> Iterator[Tensor]:
        """Yield the frames `wanted` of a clip with gaps, see `frames`.

        A gap lies between two given frames, and the network makes a new frame in it.

        The frames around the gaps are joined, as if they were one clip. E.g. with two given frames
        on either side of a gap:

            gap             0            1
            given frames    0 0 | 1 2    0 1 | 2 3    (frame 0 is repeated, as none is before it)
            joined clip     0 0 1 2 0 1 2 3
            results         a a a a b b b b           (a: the new frame in gap 0, b: in gap 1)

        `Tiling.of` gives a tile in time this length and no overlap, so a tile has the frames of one
        gap. The new frame is repeated for each frame of the tile (`_run_network`).
        """
        length = self.tiling.spec.least_frames  # given frames that the network takes for a gap
        selection = frames_around_gaps(reader, wanted, length)  # the joined clip
        # From gap to gap only one frame is new. So a cache of little more than `length` frames is
        # enough to read each frame once.
        capacity = length + SPARE_FRAMES
        joined_clip = FrameCache(reader.clip, capacity=capacity, selection=selection)

        def tick_of_wanted_frames(done_frames: float) -> None:
            # Turn a number of frames of the joined clip into a number of wanted frames.
            done_share = done_frames / len(selection)
            tick(done_share * len(wanted))

        results = self._restore_frames(joined_clip, range(len(selection)), tick_of_wanted_frames)
        # The results 0, length, 2 * length, ...: the new frame of each gap, once.
        new_frames = itertools.islice(results, 0, None, length)
        for index in wanted:
            if reader.gaps[index] is None:
                yield reader.frame(index)["lq"]  # a given frame, unchanged
            else:
                yield next(new_frames)
