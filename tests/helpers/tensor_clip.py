"""Restoration of a clip in tiles, without files and options: the clip is a tensor.

    make_tiling     how a clip is cut into tiles
    make_reader     the function by which `stream_clip` reads frames and spikes
    restore_clip    restores a whole clip

lab/gpu.py uses these functions as well as the tests.
"""

import dataclasses
from typing import Any

import torch

from models.restore.tiles.plan import Tiling
from models.restore.tiles.stream import stream_clip
from tests.helpers.checked import not_none
from utils.contract import InputSpec, wanted_frames

# What a VRT requires of its input.
VRT_LIKE = InputSpec(stride=8, window_size=(6, 8, 8), least_size=(64, 64), least_frames=2)


def make_tiling(**fields: Any) -> Tiling:
    """Return how a clip is cut into tiles.

    fields: fields of Tiling, and fields of InputSpec that differ from the spec of a VRT.
    """
    of_network = {}
    of_tiling = {}
    for key, value in fields.items():
        if key in InputSpec.__dataclass_fields__:
            of_network[key] = value
        else:
            of_tiling[key] = value
    spec = dataclasses.replace(VRT_LIKE, **of_network)
    return Tiling(spec, **of_tiling)


def make_reader(lq, spike=None, spike_reversed=None):
    """Return a function that reads frames and spikes of a clip, as `stream_clip` wants it.

    The argument of the returned function is a list of n moments. A moment is a pair (index of a
    frame, whether it is played backwards), e.g. [(0, False), (1, False), (1, True), (0, True)] for
    a clip of two frames and its reversal. The function returns a tuple: the frames (B, n, C, H, W),
    and the spike channels (B, n, S, H, W) if there are spikes.

    lq: frames (B, T, C, H, W).
    spike: spike channels (B, T, S, H, W), or None without spikes.
    spike_reversed: the spike channels for frames that are played backwards.
    """

    def read(moments):
        frames = lq[:, [index for index, _ in moments]]
        if spike is None:
            return (frames,)
        planes = []
        for index, is_reversed in moments:
            source = not_none(spike_reversed if is_reversed else spike)
            planes.append(source[:, index])
        return frames, torch.stack(planes, dim=1)

    return read


def restore_clip(net, lq, spike=None, spike_reversed=None, **tiling):
    """Restore a clip in tiles. Returns frames (B, T, C', scale H, scale W).

    C' is the number of channels that the network returns. With center_frame_only, the result has
    only the middle frame.

    net: the network that restores a tile.
    lq: frames (B, T, C, H, W).
    spike: spike channels (B, T, S, H, W), or None without spikes.
    spike_reversed: the spike channels for frames that are played backwards.
    tiling: fields of Tiling and of InputSpec, e.g. flip_seq=True.
    """
    cut = make_tiling(**tiling)
    frame_count = lq.shape[1]
    wanted = wanted_frames(frame_count, cut.center_frame_only)
    frames = stream_clip(net, make_reader(lq, spike, spike_reversed), frame_count, cut, wanted)
    return torch.stack(list(frames), dim=1)
