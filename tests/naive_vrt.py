"""VRT in its plainest form: its blocks and its alignment as the specification says them, one statement per sentence.

The oracle of the benchmarks and of the equality tests: dense logits, a mask per window, frames and directions in Python
loops, a Conv3d for every frame convolution, nothing saved or recomputed. No DropPath, no spikes.
"""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.network_vrt import VRT
from models.vrt.block import Block, Stage, WindowAttention
from models.vrt.chunks import GatedMlp
from models.vrt.deform_align import DeformAlign
from models.vrt.flow import estimate_flows, flow_warp
from models.vrt.layers import FrameConv, LayerNorm


class NaiveNorm(LayerNorm):
    forward = nn.LayerNorm.forward


class NaiveMlp(GatedMlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc11(x)) * self.fc12(x))


class NaiveAttention(WindowAttention):
    def split(self, qkv: Tensor) -> Tensor:
        n, t, _ = qkv.shape
        return qkv.view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        logits = (q * self.scale) @ k.transpose(-2, -1)
        if bias is not None:
            logits = logits + bias
        if mask is not None:
            n, heads, t, _ = logits.shape
            logits = (logits.view(-1, len(mask), heads, t, t) + mask[None, :, None]).view(n, heads, t, t)
        out = logits.softmax(-1) @ v
        return out.transpose(1, 2).flatten(2)

    def forward(self, u: Tensor, mask: Tensor | None) -> Tensor:
        """Windows (n, T, C); mask: (windows of a clip, T, T)."""
        t = u.shape[1]
        out = self.attend(*self.split(self.qkv_self(u)), mask, self.bias(t))
        if self.mutual:
            half = t // 2
            q, k, v = self.split(self.qkv_mut(u + self.position_bias.repeat(1, 2, 1)))
            mask = None if mask is None else mask[:, :half, :half]
            one = self.attend(q[:, :, half:], k[:, :, :half], v[:, :, :half], mask, None)
            two = self.attend(q[:, :, :half], k[:, :, half:], v[:, :, half:], mask, None)
            out = torch.cat((torch.cat((one, two), 1), out), 2)
        return self.proj(out)


@lru_cache(maxsize=128)
def shift_mask(size, window, shift, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(windows, T, T); kept, as the published code does."""
    region, number = torch.zeros(1, *size, 1), 0
    cuts = [
        ((slice(-w), slice(-w, -s), slice(-s, None)) if s else (slice(None),))
        for w, s in zip(window, shift, strict=True)
    ]
    for d in cuts[0]:
        for h in cuts[1]:
            for w in cuts[2]:
                region[:, d, h, w] = number
                number += 1
    region = partition(region, window).squeeze(2)
    return torch.where(region[:, :, None] == region[:, None, :], 0.0, -100.0).to(device, dtype)


def partition(x: Tensor, window: tuple[int, ...]) -> Tensor:
    b, d, h, w, c = x.shape
    x = x.view(b, d // window[0], window[0], h // window[1], window[1], w // window[2], window[2], c)
    return x.permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(-1, math.prod(window), c)


def unpartition(x: Tensor, window: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
    b, d, h, w = size
    x = x.view(b, d // window[0], h // window[1], w // window[2], *window, -1)
    return x.permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(b, d, h, w, -1)


class NaiveBlock(Block):
    def attention_branch(self, x: Tensor) -> Tensor:
        b, *size, _ = x.shape
        window = tuple(min(s, w) for s, w in zip(size, self.window, strict=True))
        shift = tuple(0 if s <= w else n for s, w, n in zip(size, self.window, self.shift, strict=True))
        y = self.norm1(x)
        pd, ph, pw = ((-s) % w for s, w in zip(size, window, strict=True))
        y = F.pad(y, (0, 0, 0, pw, 0, ph, 0, pd))
        padded, mask = y.shape[1:4], None
        if any(shift):
            y = y.roll([-s for s in shift], (1, 2, 3))
            mask = shift_mask(padded, window, shift, y.dtype, y.device)
        y = unpartition(self.attn(partition(y, window), mask), window, (b, *padded))
        if any(shift):
            y = y.roll(shift, (1, 2, 3))
        return y[:, : size[0], : size[1], : size[2]]

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention_branch(x)
        return x + self.mlp(self.norm2(x))


class NaiveAlign(DeformAlign):
    def forward(self, sources: list[Tensor], target: Tensor, flows: list[Tensor]) -> Tensor:
        warped = [flow_warp(s, f) for s, f in zip(sources, flows, strict=True)]
        o1, o2, m = self.conv_offset(torch.cat((*warped, target, *flows), 1)).chunk(3, 1)
        runs = (self.max_residual * torch.tanh(torch.cat((o1, o2), 1))).chunk(self.sources, 1)
        offset = [r + f.flip(1).repeat(1, r.shape[1] // 2, 1, 1) for r, f in zip(runs, flows, strict=True)]
        from torchvision.ops import deform_conv2d  # imports torch's compiler, which takes seconds

        moved = torch.cat(sources, 1)
        return deform_conv2d(moved, torch.cat(offset, 1), self.weight, self.bias, 1, 1, 1, torch.sigmoid(m))


class NaiveStage(Stage):
    def forward(self, x: Tensor, backward: list[Tensor], forward: list[Tensor]) -> Tensor:
        x = self.reshape(x)
        x = x + self.linear1(self.residual_group1(x))
        x = x + self.linear2(self.residual_group2(x))
        frames = x.permute(0, 1, 4, 2, 3)
        aligned = torch.cat((frames, self.align(frames, backward, 1), self.align(frames, forward, -1)), 2)
        return self.pa_fuse(aligned.permute(0, 1, 3, 4, 2))

    def align(self, x: Tensor, flows: list[Tensor], step: int) -> Tensor:
        """Frames t + step, t + 2 step, .. brought onto each frame t of x (B, N, C, H, W)."""
        n, out = x.shape[1], []
        for t in range(n):
            if not 0 <= t + step < n:
                out.append(torch.zeros_like(x[:, 0]))
                continue
            sources, offsets = [], []
            for d in range(1, self.pa_deform.sources + 1):
                other = t + d * step
                if 0 <= other < n:
                    sources.append(x[:, other])
                    offsets.append(flows[d - 1][:, min(t, other)])
                else:
                    sources.append(torch.zeros_like(x[:, 0]))
                    offsets.append(torch.zeros_like(flows[0][:, 0]))
            out.append(self.pa_deform(sources, x[:, t], offsets))
        return torch.stack(out, 1)


class NaiveFrameConv(FrameConv):
    def forward(self, x: Tensor) -> Tensor:
        return nn.Conv3d.forward(self, x[:, :, None])[:, :, 0]


NAIVE = (NaiveNorm, NaiveMlp, NaiveAttention, NaiveBlock, NaiveAlign, NaiveStage, NaiveFrameConv)


class NaiveVRT(VRT):
    """Restoration and super-resolution, pa_frames > 0. The flows are VRT's: warping and SpyNet have no other form."""

    def __init__(self, **options) -> None:
        super().__init__(**{**options, "drop_path_rate": 0.0})
        of_kind = {naive.__base__: naive for naive in NAIVE}
        for module in self.modules():
            module.__class__ = of_kind.get(type(module), type(module))

    def estimate_flows(self, frames: Tensor):
        return estimate_flows(self.spynet, frames, self.pa_frames // 2)  # the device "meta" has no autocast
