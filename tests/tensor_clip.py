"""Restoring a clip that is a tensor."""

import torch

from models.restore.tiling import Tiling, stream_clip


def reader(lq, spike=None, spike_reversed=None):
    """Moments -> lq (B, n, C, H, W) and spike (B, n, S, H, W) or None."""

    def read(moments):
        frames = lq[:, [index for index, _ in moments]]
        if spike is None:
            return frames, None
        return frames, torch.stack([(spike_reversed if back else spike)[:, index] for index, back in moments], dim=1)

    return read


def restore_clip(net, lq, spike=None, spike_reversed=None, **tiling):
    """lq (B, T, C, H, W) -> (B, T, C', sH, sW); T is 1 with center_frame_only. tiling: fields of Tiling."""
    tiles, count = Tiling(**tiling), lq.shape[1]
    frames = stream_clip(net, reader(lq, spike, spike_reversed), count, tiles, tiles.frames_of(count))
    return torch.stack(list(frames), dim=1)
