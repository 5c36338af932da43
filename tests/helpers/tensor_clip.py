"""Restoring a clip that is a tensor."""

import dataclasses
from typing import Any

import torch

from models.restore.tiling import Tiling, stream_clip
from tests.helpers.checked import present
from utils.contract import InputSpec, wanted_frames

VRT_LIKE = InputSpec(stride=8, window_size=(6, 8, 8), least_size=(64, 64), least_frames=2)


def tiles(**fields: Any) -> Tiling:
    """Return a tiling; fields: of Tiling, and of the spec of the network, by default of a VRT."""
    of_spec = {
        key: fields.pop(key) for key in list(fields) if key in InputSpec.__dataclass_fields__
    }
    return Tiling(dataclasses.replace(VRT_LIKE, **of_spec), **fields)


def reader(lq, spike=None, spike_reversed=None):
    """Moments -> lq (B, n, C, H, W) and spike (B, n, S, H, W) or None."""

    def read(moments):
        frames = lq[:, [index for index, _ in moments]]
        if spike is None:
            return (frames,)
        spikes = [present(spike_reversed if back else spike)[:, index] for index, back in moments]
        return frames, torch.stack(spikes, dim=1)

    return read


def restore_clip(net, lq, spike=None, spike_reversed=None, **tiling):
    """lq (B, T, C, H, W) -> (B, T, C', sH, sW); T is 1 with center_frame_only.

    tiling: as `tiles`.
    """
    cut, count = tiles(**tiling), lq.shape[1]
    wanted = wanted_frames(count, cut.center_frame_only)
    frames = stream_clip(net, reader(lq, spike, spike_reversed), count, cut, wanted)
    return torch.stack(list(frames), dim=1)
