"""VRT in its plainest form: the specification transcribed, one statement per sentence, nothing
saved.

The oracle of the benchmarks and of the equality tests: dense logits, a mask per window, frames and
directions in Python loops, a Conv3d for every frame convolution. Evaluation arithmetic only (no
DropPath). Keys are those of network_vrt. Flow and position tables, which have reference vectors of
their own, are the project's.
"""

import math
from collections import OrderedDict
from functools import lru_cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.vrt.flow import SpyNet, aligned_input, estimate_flows, flow_warp
from models.vrt.windows import relative_position_index, sine_positions


class GatedMlp(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.fc11, self.fc12 = nn.Linear(inputs, hidden), nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc11(x)) * self.fc12(x))


class Attention(nn.Module):
    relative_position_index: Tensor
    position_bias: Tensor

    def __init__(self, dim: int, window: tuple[int, ...], heads: int, mutual: bool) -> None:
        super().__init__()
        self.heads, self.mutual, self.scale = heads, mutual, (dim // heads) ** -0.5
        d, h, w = window
        rows = (2 * d - 1) * (2 * h - 1) * (2 * w - 1)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(rows, heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        self.register_buffer("relative_position_index", relative_position_index(window))
        if mutual:
            self.register_buffer("position_bias", sine_positions(h, w, dim))
        self.qkv_self = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(2 * dim if mutual else dim, dim)
        if mutual:
            self.qkv_mut = nn.Linear(dim, 3 * dim)

    def split(self, qkv: Tensor) -> Tensor:
        n, t, _ = qkv.shape
        return qkv.view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        logits = (q * self.scale) @ k.transpose(-2, -1)
        if bias is not None:
            logits = logits + bias
        if mask is not None:
            n, heads, t, _ = logits.shape
            logits = (logits.view(-1, len(mask), heads, t, t) + mask[None, :, None]).view(
                n, heads, t, t
            )
        out = logits.softmax(-1) @ v
        return out.transpose(1, 2).flatten(2)

    def forward(self, u: Tensor, mask: Tensor | None) -> Tensor:
        t = u.shape[1]
        index = self.relative_position_index[:t, :t]
        bias = self.relative_position_bias_table[index.flatten()].view(t, t, -1).permute(2, 0, 1)
        out = self.attend(*self.split(self.qkv_self(u)), mask, bias)
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
    x = x.view(
        b, d // window[0], window[0], h // window[1], window[1], w // window[2], window[2], c
    )
    return x.permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(-1, math.prod(window), c)


def unpartition(x: Tensor, window: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
    b, d, h, w = size
    x = x.view(b, d // window[0], h // window[1], w // window[2], *window, -1)
    return x.permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(b, d, h, w, -1)


class Block(nn.Module):
    def __init__(self, dim, heads, window, shift, mutual, mlp_ratio) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, window, heads, mutual)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = GatedMlp(dim, int(dim * mlp_ratio), dim)

    def attention_branch(self, x: Tensor) -> Tensor:
        b, *size, _ = x.shape
        window = tuple(min(s, w) for s, w in zip(size, self.window, strict=True))
        shift = tuple(
            0 if s <= w else n for s, w, n in zip(size, self.window, self.shift, strict=True)
        )
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


class Group(nn.Module):
    def __init__(self, dim, depth, heads, window, mutual, mlp_ratio) -> None:
        super().__init__()
        half = tuple(w // 2 for w in window)
        shifts = [half if j % 2 else (0, 0, 0) for j in range(depth)]
        self.blocks = nn.ModuleList(
            Block(dim, heads, window, shift, mutual, mlp_ratio) for shift in shifts
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 4, 1)
        for block in self.blocks:
            x = block(x)
        return x.permute(0, 4, 1, 2, 3)


def over_channels(module: nn.Module, x: Tensor) -> Tensor:
    return module(x.transpose(1, 4)).transpose(1, 4)


class Deform(nn.Module):
    def __init__(self, dim: int, groups: int, k: int, magnitude: float) -> None:
        super().__init__()
        self.k, self.magnitude = k, magnitude
        self.weight = nn.Parameter(torch.empty(dim, dim, 3, 3).uniform_(-1, 1) / math.sqrt(9 * dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        widths = [(1 + k) * dim + 2 * k, dim, dim, dim, 27 * groups]
        layers = [
            m for a, b in pairwise(widths) for m in (nn.Conv2d(a, b, 3, 1, 1), nn.LeakyReLU(0.1))
        ]
        self.conv_offset = nn.Sequential(*layers[:-1])

    def forward(self, sources: list[Tensor], target: Tensor, flows: list[Tensor]) -> Tensor:
        warped = [flow_warp(s, f) for s, f in zip(sources, flows, strict=True)]
        o1, o2, m = self.conv_offset(torch.cat((*warped, target, *flows), 1)).chunk(3, 1)
        runs = (self.magnitude * torch.tanh(torch.cat((o1, o2), 1))).chunk(self.k, 1)
        pairs = zip(runs, flows, strict=True)
        offset = torch.cat([r + f.flip(1).repeat(1, r.shape[1] // 2, 1, 1) for r, f in pairs], 1)
        from torchvision.ops import deform_conv2d  # imports torch's compiler, which takes seconds

        return deform_conv2d(
            torch.cat(sources, 1),
            offset,
            self.weight,
            self.bias,
            stride=(1, 1),
            padding=(1, 1),
            dilation=(1, 1),
            mask=torch.sigmoid(m),
        )


class Stage(nn.Module):
    def __init__(
        self,
        kind,
        inputs,
        dim,
        depth,
        heads,
        window,
        mutual_depth,
        mlp_ratio,
        pa_frames,
        groups,
        scale,
    ) -> None:
        super().__init__()
        self.kind, self.k = kind, pa_frames // 2
        fold = {"none": dim, "down": 4 * inputs, "up": inputs // 4}[kind]
        layers = [nn.Identity(), nn.LayerNorm(fold)] + (
            [] if kind == "none" else [nn.Linear(fold, dim)]
        )
        self.reshape = nn.Sequential(*layers)
        self.residual_group1 = Group(dim, mutual_depth, heads, (2, *window[1:]), True, mlp_ratio)
        self.linear1 = nn.Linear(dim, dim)
        self.residual_group2 = Group(dim, depth - mutual_depth, heads, window, False, mlp_ratio)
        self.linear2 = nn.Linear(dim, dim)
        if self.k:
            self.pa_deform = Deform(dim, groups, self.k, 10.0 / scale)
            self.pa_fuse = GatedMlp(3 * dim, 3 * dim, dim)

    def forward(self, x: Tensor, backward: list[Tensor], forward: list[Tensor]) -> Tensor:
        b, c, n, h, w = x.shape
        if self.kind == "down":
            x = (
                x.view(b, c, n, h // 2, 2, w // 2, 2)
                .permute(0, 6, 4, 1, 2, 3, 5)
                .reshape(b, 4 * c, n, h // 2, w // 2)
            )
        if self.kind == "up":
            x = (
                x.view(b, 2, 2, c // 4, n, h, w)
                .permute(0, 3, 4, 5, 2, 6, 1)
                .reshape(b, c // 4, n, 2 * h, 2 * w)
            )
        x = over_channels(self.reshape, x)
        x = x + over_channels(self.linear1, self.residual_group1(x))
        x = x + over_channels(self.linear2, self.residual_group2(x))
        if not self.k:
            return x
        frames = x.transpose(1, 2)
        aligned = torch.cat(
            (frames, self.align(frames, backward, 1), self.align(frames, forward, -1)), 2
        )
        return over_channels(self.pa_fuse, aligned.transpose(1, 2))

    def align(self, x: Tensor, flows: list[Tensor], step: int) -> Tensor:
        """Frames t + step, t + 2 step, .. brought onto each frame t of x (B, N, C, H, W)."""
        n, out = x.shape[1], []
        for t in range(n):
            if not 0 <= t + step < n:
                out.append(torch.zeros_like(x[:, 0]))
                continue
            sources, offsets = [], []
            for d in range(1, self.k + 1):
                other = t + d * step
                if 0 <= other < n:
                    sources.append(x[:, other])
                    offsets.append(flows[d - 1][:, min(t, other)])
                else:
                    sources.append(torch.zeros_like(x[:, 0]))
                    offsets.append(torch.zeros_like(flows[0][:, 0]))
            out.append(self.pa_deform(sources, x[:, t], offsets))
        return torch.stack(out, 1)


class Refine(nn.Module):
    def __init__(self, dim, depth, heads, window, mlp_ratio) -> None:
        super().__init__()
        self.residual_group = Group(dim, depth, heads, window, False, mlp_ratio)
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + over_channels(self.linear, self.residual_group(x))


def conv3d(inputs: int, outputs: int) -> nn.Conv3d:
    return nn.Conv3d(inputs, outputs, (1, 3, 3), padding=(0, 1, 1))


class NaiveVRT(nn.Module):
    """Restoration and super-resolution by 2^k, pa_frames > 0; forward(lq) as that of
    network_vrt.VRT without spikes.
    """

    stage1: Stage
    stage2: Stage
    stage3: Stage
    stage4: Stage
    stage5: Stage
    stage6: Stage
    stage7: Stage

    def __init__(
        self, upscale=1, in_chans=3, out_chans=3, window_size=(6, 8, 8), depths=(8,) * 7 + (4,) * 4,
        indep_reconsts=(9, 10), embed_dims=(96,) * 7 + (120,) * 4, num_heads=(6,) * 11,
        mul_attn_ratio=0.75, mlp_ratio=2.0, pa_frames=2, deformable_groups=16,
        nonblind_denoising=False, **unused,
    ) -> None:  # fmt: skip
        super().__init__()
        self.upscale, self.in_chans, self.reach = upscale, in_chans, pa_frames // 2
        window = tuple(window_size)
        self.conv_first = conv3d(9 * in_chans + nonblind_denoising, embed_dims[0])
        self.spynet = SpyNet()
        plan = (("none", 1), ("down", 2), ("down", 4), ("down", 8), ("up", 4), ("up", 2), ("up", 1))
        for i, (kind, scale) in enumerate(plan):
            stage = Stage(
                kind, embed_dims[i - 1], embed_dims[i], depths[i], num_heads[i], window,
                int(depths[i] * mul_attn_ratio), mlp_ratio, pa_frames, deformable_groups, scale,
            )  # fmt: skip
            self.add_module(f"stage{i + 1}", stage)
        dims = embed_dims
        self.stage8 = nn.ModuleList(
            [nn.Sequential(nn.Identity(), nn.LayerNorm(dims[6]), nn.Linear(dims[6], dims[7]))]
        )
        for i in range(7, len(depths)):
            seen = (1, *window[1:]) if i in indep_reconsts else window
            self.stage8.append(Refine(dims[i], depths[i], num_heads[i], seen, mlp_ratio))
        self.norm = nn.LayerNorm(dims[-1])
        self.conv_after_body = nn.Linear(dims[-1], dims[0])
        if upscale > 1:
            self.conv_before_upsample = nn.Sequential(conv3d(dims[0], 64), nn.LeakyReLU(0.01))
            steps = int(math.log2(upscale))
            convs = [(str(5 * s), conv3d(64, 256)) for s in range(steps)] + [
                (str(5 * steps), conv3d(64, 64))
            ]
            self.upsample = nn.ModuleDict(OrderedDict(convs))
        self.conv_last = conv3d(64 if upscale > 1 else dims[0], out_chans)

    def forward(self, lq: Tensor) -> Tensor:
        x, noise = lq[:, :, : self.in_chans], lq[:, :, self.in_chans :]
        backward, forward = zip(*estimate_flows(self.spynet, x, self.reach), strict=True)
        y = torch.cat((aligned_input(x, backward[0][0], forward[0][0]), noise), 2)
        first = self.conv_first(y.transpose(1, 2))
        x1 = self.stage1(first, backward[0], forward[0])
        x2 = self.stage2(x1, backward[1], forward[1])
        x3 = self.stage3(x2, backward[2], forward[2])
        y = self.stage4(x3, backward[3], forward[3])
        y = self.stage5(y, backward[2], forward[2])
        y = self.stage6(y + x3, backward[1], forward[1])
        y = self.stage7(y + x2, backward[0], forward[0]) + x1
        y = over_channels(self.stage8[0], y)
        for layer in self.stage8[1:]:
            y = layer(y)
        y = first + over_channels(nn.Sequential(self.norm, self.conv_after_body), y)
        if self.upscale == 1:
            return self.conv_last(y).transpose(1, 2) + x
        y = self.conv_before_upsample(y)
        *doublings, last = self.upsample.values()
        for conv in doublings:
            y = F.leaky_relu(F.pixel_shuffle(conv(y).transpose(1, 2), 2).transpose(1, 2), 0.1)
        y = self.conv_last(last(y)).transpose(1, 2)
        return y + F.interpolate(x.flatten(0, 1), scale_factor=self.upscale, mode="bilinear").view(
            y.shape
        )
