"""Restore a clip tile by tile in time, and yield its frames in order.

Memory holds one tile in time. A tile is a run of whole frames, e.g. 12 frames, which space.py
restores. A frame in two tiles is the weighted mean of both results.

restorer.py passes a network, and a function that reads frames of the clip, and gets the restored
frames, one by one. This file reads five fields of a `Tiling`:

    num_frame_testing        frames of a tile, 0 for the whole clip
    num_frame_overlapping    frames by which neighbouring tiles overlap
    blend                    how tiles are blended
    flip_seq                 whether the clip is also restored in reversed time
    pad_seq                  whether the last frame is repeated

Shapes: B clips, n frames, C channels of a blurry frame, S spike channels, H x W pixels. A result
has C' channels (the colours of all its instants) and sH x sW pixels, where s is the scale of the
network.

What must stay:

* A frame has the same bits whether the whole clip is restored or only a part of it, because several
  processes may share a clip. (test_a_part_of_a_clip_equals_that_part_of_the_whole)
* The order in which tiles are added, because another order changes the last bits. No test notices
  the order.

Tests: tests/parts/models/test_tiling.py
"""

import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from models.restore.tiles.blending import blend_weights
from models.restore.tiles.frame_store import FrameStore
from models.restore.tiles.plan import WHOLE, Tiling, tile_starts
from models.restore.tiles.space import restore_space
from utils.contract import Tick


class Moment(NamedTuple):
    """A frame of the clip, in forward or in reversed time."""

    index: int  # index of the frame in the clip
    # Whether time is reversed. If it is, the frame comes with the spikes of the reversed stream.
    is_reversed: bool


# A function that reads n moments. It returns (lq,) or (lq, spike): the blurry frames
# (B, n, C, H, W), and if the clip has spikes, the spike channels (B, n, S, H, W).
ReadMoments = Callable[[Sequence[Moment]], tuple[Tensor, ...]]


@torch.no_grad()
def stream_clip(
    net: Callable[..., Tensor],
    read: ReadMoments,
    num_frames: int,
    tiling: Tiling,
    wanted: range,
    tick: Tick = lambda part: None,
) -> Iterator[Tensor]:
    """Yield the restored frames `wanted` in order, (B, C', sH, sW) each, on the CPU.

    Without flip_seq, only the tiles that contain wanted frames are computed. With flip_seq, all
    tiles are computed, because the second result of frame 0 is in the last tile. The network must
    be in eval mode.

    net: takes the tensors that `read` returns, and returns (B, n, C', sH, sW).
    read: reads moments of the clip.
    num_frames: number of frames of the clip.
    wanted: indices of the frames to yield.
    tick: function that gets the fraction of the work, 0 to 1, that was done since its last call.
        The default does nothing.
    """
    moments = [Moment(index, is_reversed=False) for index in range(num_frames)]
    # Repeat the last frame, as a training with the option pad_sequence does: e.g. 7 frames become
    # 8. The result of the repetition is not used, because `wanted` has only frames of the clip.
    if tiling.pad_seq:
        last_moment = moments[-1]
        moments.append(last_moment)
    if tiling.flip_seq:
        yield from _stream_both_ways(net, read, moments, tiling, wanted, tick)
    else:
        yield from _stream_moments(net, read, moments, tiling, wanted, tick)


def _stream_both_ways(
    net: Callable[..., Tensor],
    read: ReadMoments,
    moments: Sequence[Moment],
    tiling: Tiling,
    wanted: range,
    tick: Tick,
) -> Iterator[Tensor]:
    """Yield the mean of each wanted frame and of the same frame in the time-reversed clip.

    test_flip_seq_averages_both_directions_of_time checks the means.

    net, read, tiling, tick: arguments of `stream_clip`. moments: the clip in forward time.
    wanted: indices of the frames to yield.
    """
    # The clip, and then the clip in reversed time. E.g. for 3 frames: 0 1 2 2 1 0.
    backwards = [Moment(moment.index, is_reversed=True) for moment in reversed(moments)]
    there_and_back = [*moments, *backwards]
    count = len(there_and_back)
    # The two results of a frame come far apart. E.g. frame 0 has the first and the last result. All
    # results are kept in a file, because they would not fit into memory.
    with tempfile.TemporaryFile() as file:
        results = FrameStore(file)
        all_positions = range(count)
        for frame in _stream_moments(net, read, there_and_back, tiling, all_positions, tick):
            results.append(frame)
        for index in wanted:
            forward = results.read(index)  # (B, C', sH, sW)
            mirrored = count - 1 - index  # e.g. frame 0 of 3: positions 0 and 5 of 6
            backward = results.read(mirrored)  # (B, C', sH, sW)
            # The channels of a result are the colours of its K instants, one instant after the
            # other. In the reversed clip the last instant comes first, so bring them into order.
            instants = backward.unflatten(-3, (tiling.spec.out_instants, -1))  # (B, K, 3, sH, sW)
            instants = instants.flip(-4)  # along the K instants
            yield (forward + instants.flatten(-4, -3)) / 2


def _stream_moments(
    net: Callable[..., Tensor],
    read: ReadMoments,
    moments: Sequence[Moment],
    tiling: Tiling,
    wanted: range,
    tick: Tick,
) -> Iterator[Tensor]:
    """Yield the restored frames at positions `wanted` of `moments`, tile by tile in time.

    A frame in two tiles is yielded when both tiles are restored. E.g. 22 frames in tiles of 12
    frames that overlap by 2:

        tile    frames       in `pending`      yielded
        0       0 ... 11     0 ... 11          0 ... 9
        1       10 ... 21    10 ... 21         10 ... 21

    net, read, tiling, tick: arguments of `stream_clip`.
    moments: the frames that are restored as one clip, in the order of this list.
    """
    length = len(moments)
    if tiling.num_frame_testing == WHOLE:
        size = length  # number of frames of a tile
    else:
        size = min(tiling.num_frame_testing, length)
    starts = tile_starts(length, size, tiling.num_frame_overlapping)  # e.g. 0, 10, 20
    # With the blend "kair" each frame of a tile has the weight 1, as if there were no overlap.
    overlap = tiling.num_frame_overlapping if tiling.blend == "smooth" else 0

    # Index and start of each tile that contains a wanted frame.
    needed_tiles = []
    for tile_index, start in enumerate(starts):
        stop = start + size
        if start < wanted.stop and stop > wanted.start:
            needed_tiles.append((tile_index, start))

    # The sums of the frames that are not yielded yet, in the order of time. The first sum belongs
    # to the first frame of the present tile.
    pending: deque[_WeightedSum] = deque()
    for tile_index, start in needed_tiles:
        inputs = read(moments[start : start + size])  # (lq,) or (lq, spike)

        def tick_of_tile(share_of_tile: float) -> None:
            # Turn a fraction of this tile into a fraction of all tiles.
            tick(share_of_tile / len(needed_tiles))

        clip = restore_space(net, inputs, tiling, tick_of_tile)
        del inputs  # the input of this tile can leave the memory

        weights = blend_weights(starts, tile_index, size, overlap, tiling.blend)
        _add_frames(pending, clip, weights.tolist())
        del clip  # the next tile is computed without this tile in memory

        # Yield the frames before the start of the next tile, because no later tile contains them.
        is_last_tile = tile_index + 1 == len(starts)
        next_start = length if is_last_tile else starts[tile_index + 1]
        for position in range(start, next_start):
            complete = pending.popleft()
            if position in wanted:
                yield complete.total / complete.weight


class _WeightedSum(NamedTuple):
    """The results for one frame, summed over the tiles in time that contain this frame."""

    total: Tensor  # sum of the results times their weights, (B, C', sH, sW)
    weight: float  # sum of the weights, by which the total is divided at the end


def _add_frames(pending: deque[_WeightedSum], clip: Tensor, weights: Sequence[float]) -> None:
    """Add the frames of a restored tile to the sums `pending`, which is changed in place.

    pending: the sums of the frames so far. The first sum belongs to the first frame of the tile.
    clip: the tile (B, n, C', sH, sW). weights: weight of each of its n frames.
    """
    for frame_index, weight in enumerate(weights):
        weighted_frame = clip[:, frame_index] * weight  # (B, C', sH, sW)
        if frame_index < len(pending):  # an earlier tile contains this frame, too
            so_far = pending[frame_index]
            total = so_far.total.add_(weighted_frame)  # in place, to save the memory of a frame
            pending[frame_index] = _WeightedSum(total, so_far.weight + weight)
        else:
            pending.append(_WeightedSum(weighted_frame, weight))
