"""Run a network on a tile of any size, by padding the tile to a size that the network takes.

A network takes only certain sizes, e.g. multiples of 8 pixels (`utils.contract.InputSpec`). So the
tile is mirrored at its end, and the result is cropped to the tile.

space.py passes a tile to `run_padded`, gets the restored tile, on the CPU, and blends it with the
other tiles. Every pass of a network in a restoration goes through `run_padded`. This file reads
three fields of a `Tiling`:

    spec                 the sizes that the network takes
    num_frame_testing    frames of a tile, 0 for the whole clip
    blend                the published tiling, "kair", pads the frames of a whole clip only

Shapes: B clips, n frames, H x W pixels. A result has C' channels and sH x sW pixels, where s is the
scale of the network, e.g. 4 for super-resolution.

What must stay: the padded sizes, because a network gives other frames for another padding
(test_published_tiling_is_reproduced).

Tests: tests/parts/models/test_tiling.py
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from models.restore.tiles.plan import WHOLE, Tiling, round_up
from utils.contract import InputSpec


def run_padded(net: Callable[..., Tensor], inputs: tuple[Tensor, ...], tiling: Tiling) -> Tensor:
    """Run the network once on a tile, padded to a size that the network takes.

    The padding mirrors the tile at its end, as often as needed. The result is cropped to the size
    of the tile, and is on the CPU.

    net: `Restorer._run_network`, which runs the network on its device.
    inputs: the blurry frames of the tile, and perhaps their spike channels, (B, n, channels, H, W)
        each.
    """
    scale = tiling.spec.scale
    _, frames, _, height, width = inputs[0].shape
    padded_height, padded_width = _padded_size(height, width, tiling.spec)
    padded_frames = _padded_length(frames, tiling)
    padded = []
    for x in inputs:  # (B, n, channels, H, W)
        x = _extend_by_mirroring(x, axis=1, size=padded_frames)
        x = _extend_by_mirroring(x, axis=3, size=padded_height)
        x = _extend_by_mirroring(x, axis=4, size=padded_width)
        padded.append(x)
    out = net(*padded)  # (B, n, C', sH, sW), of the padded tile
    out = out[:, :frames, :, : height * scale, : width * scale]
    out = out.cpu()
    # float64 is kept, because tests compare in float64. Any other dtype (e.g. bfloat16) becomes
    # float32, because the weighted tiles are summed in float32.
    if out.dtype == torch.float64:
        return out
    return out.float()


def _padded_length(frames: int, tiling: Tiling) -> int:
    """Return the padded length of a tile of `frames` frames.

    The length becomes a multiple of the window, except where the published tiling does not pad.
    (The network also takes a clip whose last window is not full.) E.g. a clip of 7 frames, in
    windows of 6 frames:

        num_frame_testing 0                 12   the whole clip is one tile: padded
        num_frame_testing 12, "smooth"      12   the clip is shorter than a tile: padded
        num_frame_testing 12, "kair"         7   the same clip: not padded, as published
        num_frame_testing 7                  7   the tile has the given length: not padded
    """
    is_whole_clip = tiling.num_frame_testing == WHOLE
    is_short_clip = frames < tiling.num_frame_testing
    needs_whole_windows = is_whole_clip or (is_short_clip and tiling.blend == "smooth")
    padded_frames = frames
    if needs_whole_windows:
        window_frames = tiling.spec.window_size[0]
        padded_frames = round_up(frames, window_frames)
    return max(padded_frames, tiling.spec.least_frames)


def _padded_size(height: int, width: int, spec: InputSpec) -> tuple[int, int]:
    """Return the padded height and width of a tile.

    Each side becomes a multiple of two numbers: the side of a window, and the network's stride.
    E.g. a tile of 20 x 64 and windows of 8 x 8: 24 x 64 with stride 1, and 32 x 64 with stride 16.
    """
    _, window_height, window_width = spec.window_size
    least_height, least_width = spec.least_size
    height_step = math.lcm(window_height, spec.stride)
    width_step = math.lcm(window_width, spec.stride)
    padded_height = max(round_up(height, height_step), least_height)
    padded_width = max(round_up(width, width_step), least_width)
    return padded_height, padded_width


def _extend_by_mirroring(x: Tensor, axis: int, size: int) -> Tensor:
    """Extend x along an axis to `size` by mirroring it, e.g. 0 1 2 -> 0 1 2 2 1 0 0 1 2 ..."""
    length = x.shape[axis]
    if size == length:
        return x
    # The axis forward, then backward, again and again. E.g. for length 3 the period is 0 1 2 2 1 0.
    forward = torch.arange(length, device=x.device)
    period = torch.cat((forward, forward.flip(0)))
    positions = torch.arange(size, device=x.device) % (2 * length)
    return x.index_select(axis, period[positions])
