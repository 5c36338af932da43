"""The optical flows of a clip: both directions, four scales, neighbours up to three frames away."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.vrt.spynet import SpyNet
from models.vrt.warp import flow_warp, nearest4


@dataclass(frozen=True)
class Flows:
    """backward[d][level][:, i] warps frame i + d + 1 to frame i; forward[d][level][:, i] warps i to i + d + 1.

    Each tensor: (B, N - 1 - d, 2, H / 2^level, W / 2^level), in pixels of its level.
    """

    backward: list[list[Tensor]]
    forward: list[list[Tensor]]

    def at(self, level: int) -> tuple[list[Tensor], list[Tensor]]:
        """(backward, forward) flows at one level, nearest neighbour first."""
        return [d[level] for d in self.backward], [d[level] for d in self.forward]


def estimate_flows(spynet: SpyNet, frames: Tensor, distance: int) -> Flows:
    """Flows of a clip (B, N, 1 or 3, H, W) in [0, 1], for neighbours up to `distance` frames away.

    SpyNet runs once on a batch of all pairs in both directions; the pyramid of each frame is built once.
    """
    b, n, _, height, width = frames.shape
    levels = [p.view(b, n, *p.shape[1:]) for p in spynet.pyramid(frames.flatten(0, 1))]
    ref = [torch.stack((p[:, :-1], p[:, 1:])).flatten(0, 2) for p in levels]
    supp = [torch.stack((p[:, 1:], p[:, :-1])).flatten(0, 2) for p in levels]
    pairs = [f.view(2, b, n - 1, *f.shape[1:]) for f in spynet.estimate(ref, supp, (height, width))]
    return compose_flows([f[0] for f in pairs], [f[1] for f in pairs], distance)


def compose_flows(backward: list[Tensor], forward: list[Tensor], distance: int) -> Flows:
    """Flows to neighbours 2 .. distance frames away, composed from those of distance 1 (lists over levels)."""
    all_backward, all_forward = [backward], [forward]
    for reach in range(1, distance):
        near_b, near_f = all_backward[-1], all_forward[-1]
        all_backward.append(
            [far[:, :-1] + warp_clip(one[:, reach:], far[:, :-1]) for one, far in zip(backward, near_b, strict=True)]
        )
        all_forward.append(
            [far[:, 1:] + warp_clip(one[:, :-reach], far[:, 1:]) for one, far in zip(forward, near_f, strict=True)]
        )
    return Flows(all_backward, all_forward)


def warp_clip(x: Tensor, flow: Tensor) -> Tensor:
    """flow_warp on clips: x (B, M, C, h, w), flow (B, M, 2, h, w)."""
    return flow_warp(x.flatten(0, 1), flow.flatten(0, 1)).view(x.shape)


def aligned_input(frames: Tensor, backward: Tensor, forward: Tensor) -> Tensor:
    """Each frame, then its two neighbours warped to it by nearest4: (B, N, 9C, H, W).

    frames: (B, N, C, H, W); backward, forward: (B, N - 1, 2, H, W). A missing neighbour is zero.
    """
    b, n, c, height, width = frames.shape
    source = torch.stack((frames[:, 1:], frames[:, :-1])).flatten(0, 2)
    warped = nearest4(source, torch.stack((backward, forward)).flatten(0, 2))
    warped = warped.view(2, b, n - 1, 4 * c, height, width)
    missing = warped.new_zeros(b, 1, 4 * c, height, width)
    return torch.cat((frames, torch.cat((warped[0], missing), 1), torch.cat((missing, warped[1]), 1)), dim=2)
