"""VRT in its plainest form: the specification transcribed, one statement per sentence, nothing shared or saved.

The oracle of the benchmarks and of the equality tests: dense logits, a mask per window, frames and directions in Python
loops, a Conv3d for every frame convolution. Evaluation arithmetic only (no DropPath). Keys are those of network_vrt.
"""

import math
from collections import OrderedDict
from functools import lru_cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def warp(x: Tensor, flow: Tensor, mode: str = "bilinear", padding: str = "zeros") -> Tensor:
    """x (n, c, h, w) at pixel + flow; flow (n, h, w, 2)."""
    h, w = x.shape[-2:]
    gy, gx = torch.meshgrid(torch.arange(h).to(x), torch.arange(w).to(x), indexing="ij")
    grid = torch.stack((gx, gy), 2) + flow
    grid = torch.stack((2 * grid[..., 0] / max(w - 1, 1) - 1, 2 * grid[..., 1] / max(h - 1, 1) - 1), 3)
    return F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=True)


def nearest4(x: Tensor, flow: Tensor) -> Tensor:
    h, w = x.shape[-2:]
    gy, gx = torch.meshgrid(torch.arange(h).to(x), torch.arange(w).to(x), indexing="ij")
    px, py = gx + flow[..., 0], gy + flow[..., 1]
    corners = []
    for ix in (px.floor(), px.ceil()):
        for iy in (py.floor(), py.ceil()):
            corners.append(warp(x, torch.stack((ix - gx, iy - gy), 3).detach(), "nearest"))
    return torch.cat(corners, 1)


class SpyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        widths = (8, 32, 64, 32, 16, 2)
        self.basic_module = nn.ModuleList()
        for _ in range(6):
            layers = [m for a, b in pairwise(widths) for m in (nn.Conv2d(a, b, 7, 1, 3), nn.ReLU())]
            self.basic_module.append(nn.ModuleDict({"basic_module": nn.Sequential(*layers[:-1])}))

    def forward(self, ref: Tensor, supp: Tensor) -> list[Tensor]:
        h, w = ref.shape[-2:]
        hf, wf = 32 * math.ceil(h / 32), 32 * math.ceil(w / 32)
        pyramids = []
        for image in (ref, supp):
            image = F.interpolate(image, (hf, wf), mode="bilinear", align_corners=False)
            pyramid = [(image - self.mean) / self.std]
            for _ in range(5):
                pyramid.insert(0, F.avg_pool2d(pyramid[0], 2, 2))
            pyramids.append(pyramid)
        flow, flows = None, []
        for level in range(6):
            r, s = pyramids[0][level], pyramids[1][level]
            up = r.new_zeros(len(r), 2, *r.shape[-2:])
            if level:
                up = 2 * F.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=True)
            warped = warp(s, up.permute(0, 2, 3, 1), padding="border")
            flow = self.basic_module[level]["basic_module"](torch.cat((r, warped, up), 1)) + up
            if level >= 2:
                q = 2 ** (5 - level)
                out = F.interpolate(flow, (h // q, w // q), mode="bilinear", align_corners=False)
                out = torch.stack((out[:, 0] * (w // q) / (wf // q), out[:, 1] * (h // q) / (hf // q)), 1)
                flows.insert(0, out)
        return flows


class GatedMlp(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.fc11, self.fc12 = nn.Linear(inputs, hidden), nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc11(x)) * self.fc12(x))


class Attention(nn.Module):
    def __init__(self, dim: int, window: tuple[int, ...], heads: int, mutual: bool) -> None:
        super().__init__()
        self.heads, self.mutual, self.scale = heads, mutual, (dim // heads) ** -0.5
        d, h, w = window
        rows = (2 * d - 1) * (2 * h - 1) * (2 * w - 1)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(rows, heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        tokens = [(a, b, c) for a in range(d) for b in range(h) for c in range(w)]
        t = torch.tensor(tokens)
        e = t[:, None] - t[None] + torch.tensor([d - 1, h - 1, w - 1])
        self.register_buffer("relative_position_index", (e[..., 0] * (2 * h - 1) + e[..., 1]) * (2 * w - 1) + e[..., 2])
        if mutual:
            self.register_buffer("position_bias", self.sines(h, w, dim))
        self.qkv_self = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(2 * dim if mutual else dim, dim)
        if mutual:
            self.qkv_mut = nn.Linear(dim, 3 * dim)

    @staticmethod
    def sines(height: int, width: int, dim: int) -> Tensor:
        f = dim // 2
        table = torch.zeros(height, width, dim)
        for k in range(f):
            divisor = 10000 ** (2 * (k // 2) / f)
            wave = torch.cos if k % 2 else torch.sin
            y = torch.arange(1, height + 1) / (height + 1e-6) * 2 * math.pi / divisor
            x = torch.arange(1, width + 1) / (width + 1e-6) * 2 * math.pi / divisor
            table[:, :, k], table[:, :, f + k] = wave(y)[:, None], wave(x)[None, :]
        return table.view(1, height * width, dim)

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
    x = x.view(b, d // window[0], window[0], h // window[1], window[1], w // window[2], window[2], c)
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


class Group(nn.Module):
    def __init__(self, dim, depth, heads, window, mutual, mlp_ratio) -> None:
        super().__init__()
        half = tuple(w // 2 for w in window)
        self.blocks = nn.ModuleList(
            Block(dim, heads, window, half if j % 2 else (0, 0, 0), mutual, mlp_ratio) for j in range(depth)
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
        layers = [m for a, b in pairwise(widths) for m in (nn.Conv2d(a, b, 3, 1, 1), nn.LeakyReLU(0.1))]
        self.conv_offset = nn.Sequential(*layers[:-1])

    def forward(self, sources: list[Tensor], target: Tensor, flows: list[Tensor]) -> Tensor:
        warped = [warp(s, f.permute(0, 2, 3, 1)) for s, f in zip(sources, flows, strict=True)]
        o1, o2, m = self.conv_offset(torch.cat((*warped, target, *flows), 1)).chunk(3, 1)
        runs = (self.magnitude * torch.tanh(torch.cat((o1, o2), 1))).chunk(self.k, 1)
        offset = torch.cat(
            [r + f.flip(1).repeat(1, r.shape[1] // 2, 1, 1) for r, f in zip(runs, flows, strict=True)], 1
        )
        from torchvision.ops import deform_conv2d  # imports torch's compiler, which takes seconds

        return deform_conv2d(torch.cat(sources, 1), offset, self.weight, self.bias, 1, 1, 1, torch.sigmoid(m))


class Stage(nn.Module):
    def __init__(
        self, kind, inputs, dim, depth, heads, window, mutual_depth, mlp_ratio, pa_frames, groups, scale
    ) -> None:
        super().__init__()
        self.kind, self.k = kind, pa_frames // 2
        fold = {"none": dim, "down": 4 * inputs, "up": inputs // 4}[kind]
        layers = [nn.Identity(), nn.LayerNorm(fold)] + ([] if kind == "none" else [nn.Linear(fold, dim)])
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
            x = x.view(b, c, n, h // 2, 2, w // 2, 2).permute(0, 6, 4, 1, 2, 3, 5).reshape(b, 4 * c, n, h // 2, w // 2)
        if self.kind == "up":
            x = x.view(b, 2, 2, c // 4, n, h, w).permute(0, 3, 4, 5, 2, 6, 1).reshape(b, c // 4, n, 2 * h, 2 * w)
        x = over_channels(self.reshape, x)
        x = x + over_channels(self.linear1, self.residual_group1(x))
        x = x + over_channels(self.linear2, self.residual_group2(x))
        if not self.k:
            return x
        frames = x.transpose(1, 2)
        aligned = torch.cat((frames, self.align(frames, backward, 1), self.align(frames, forward, -1)), 2)
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
    """Restoration and super-resolution by 2^k, pa_frames > 0; forward(lq) as that of network_vrt.VRT without spikes."""

    def __init__(
        self, upscale=1, in_chans=3, out_chans=3, window_size=(6, 8, 8), depths=(8,) * 7 + (4,) * 4,
        indep_reconsts=(9, 10), embed_dims=(96,) * 7 + (120,) * 4, num_heads=(6,) * 11, mul_attn_ratio=0.75,
        mlp_ratio=2.0, pa_frames=2, deformable_groups=16, nonblind_denoising=False, **unused,
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
        self.stage8 = nn.ModuleList([nn.Sequential(nn.Identity(), nn.LayerNorm(dims[6]), nn.Linear(dims[6], dims[7]))])
        for i in range(7, len(depths)):
            seen = (1, *window[1:]) if i in indep_reconsts else window
            self.stage8.append(Refine(dims[i], depths[i], num_heads[i], seen, mlp_ratio))
        self.norm = nn.LayerNorm(dims[-1])
        self.conv_after_body = nn.Linear(dims[-1], dims[0])
        if upscale > 1:
            self.conv_before_upsample = nn.Sequential(conv3d(dims[0], 64), nn.LeakyReLU(0.01))
            steps = int(math.log2(upscale))
            convs = [(str(5 * s), conv3d(64, 256)) for s in range(steps)] + [(str(5 * steps), conv3d(64, 64))]
            self.upsample = nn.ModuleDict(OrderedDict(convs))
        self.conv_last = conv3d(64 if upscale > 1 else dims[0], out_chans)

    def flows(self, x: Tensor) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """Per level: backward and forward flows of distance 1, 2, ..; each (B, M, 2, h, w)."""
        b, n = x.shape[:2]
        first, second = x[:, :-1].flatten(0, 1), x[:, 1:].flatten(0, 1)
        back = [f.unflatten(0, (b, n - 1)) for f in self.spynet(first, second)]
        fore = [f.unflatten(0, (b, n - 1)) for f in self.spynet(second, first)]
        backward, forward = [[f] for f in back], [[f] for f in fore]
        for d in range(1, self.reach):
            for level in range(4):
                b1, f1, bd, fd = back[level], fore[level], backward[level][-1], forward[level][-1]
                nb, nf = [], []
                for i in range(n - 1 - d):
                    nb.append(bd[:, i] + warp(b1[:, i + d], bd[:, i].permute(0, 2, 3, 1)))
                    nf.append(fd[:, i + 1] + warp(f1[:, i], fd[:, i + 1].permute(0, 2, 3, 1)))
                backward[level].append(torch.stack(nb, 1))
                forward[level].append(torch.stack(nf, 1))
        return backward, forward

    def forward(self, lq: Tensor) -> Tensor:
        x, noise = lq[:, :, : self.in_chans], lq[:, :, self.in_chans :]
        n = x.shape[1]
        backward, forward = self.flows(x)
        none = x.new_zeros(x[:, 0].shape).repeat(1, 4, 1, 1)
        later = [nearest4(x[:, t + 1], backward[0][0][:, t].permute(0, 2, 3, 1)) for t in range(n - 1)] + [none]
        earlier = [none] + [nearest4(x[:, t], forward[0][0][:, t].permute(0, 2, 3, 1)) for t in range(n - 1)]
        y = torch.cat((x, torch.stack(later, 1), torch.stack(earlier, 1), noise), 2)
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
        return y + F.interpolate(x.flatten(0, 1), scale_factor=self.upscale, mode="bilinear").view(y.shape)
