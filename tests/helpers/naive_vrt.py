"""VRT in its plainest form: the specification as code, without any optimisation.

Tests compare the results of our network with the results of this network, and lab/benchmark.py
compares the speed of both. So nothing here may be optimised: attention computes all logits, each
window has its mask, Python loops go over frames and directions, and a convolution of frames is a
Conv3d.

This network has no DropPath, which leaves out random branches in training. So the two networks can
be compared in evaluation, and in training if drop_path_rate is 0.

The names of the weights must stay, because tests load the weights of models/network_vrt.py into
this network. The results must stay, too: tests/parts/models/test_network_vrt.py compares them with
reference vectors.

The functions for flow, warping and tables of positions are imported from the project. They need no
plain form here, because other tests compare them with reference vectors of their own.

Shapes: B clips, N frames (D in a block), C channels, H x W pixels. A window has T tokens. Features
are (B, C, N, H, W) between the parts, and (B, D, H, W, C) within a block.
"""

import math
from collections import OrderedDict
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.vrt.flow import aligned_input, estimate_flows
from models.vrt.flow_warp import flow_warp
from models.vrt.positions import relative_position_index, sine_positions
from models.vrt.spynet import SpyNet

# ---- Windows ----


def partition(x: Tensor, window: tuple[int, ...]) -> Tensor:
    """Cut features (B, D, H, W, C) into windows (windows, T, C).

    window: frames, height and width of a window. Their product is T. The three numbers must divide
    D, H and W.
    """
    b, d, h, w, c = x.shape
    wd, wh, ww = window
    x = x.view(b, d // wd, wd, h // wh, wh, w // ww, ww, c)
    # The windows first, then the positions within a window: (B, D/wd, H/wh, W/ww, wd, wh, ww, C).
    x = x.permute(0, 1, 3, 5, 2, 4, 6, 7)
    return x.reshape(-1, math.prod(window), c)  # (windows, T, C)


def unpartition(x: Tensor, window: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
    """Put windows (windows, T, C) together again. This undoes `partition`.

    size: (B, D, H, W) of the result.
    """
    b, d, h, w = size
    wd, wh, ww = window
    x = x.view(b, d // wd, h // wh, w // ww, wd, wh, ww, -1)
    x = x.permute(0, 1, 4, 2, 5, 3, 6, 7)  # (B, D/wd, wd, H/wh, wh, W/ww, ww, C)
    return x.reshape(b, d, h, w, -1)


@lru_cache(maxsize=128)
def shift_mask(size, window, shift, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the mask, (windows, T, T), that is added to the logits of shifted windows.

    Features are rolled before they are cut into windows. So the last window along an axis holds
    tokens from both ends of the features. Tokens of different ends must not attend to each other.
    For a pair of such tokens the mask has -100, as in the published network. With this value the
    softmax gives the pair a weight of nearly 0. For any other pair the mask has 0.

    The masks are cached, because the published code also caches them. Otherwise a comparison of
    speed would not be fair.

    size: (D, H, W) of the features.
    window: frames, height and width of a window.
    shift: number of positions by which the features are rolled, for each axis.
    """
    # Number the regions whose tokens may attend to each other. Along an axis with a shift there are
    # three regions: all windows but the last, and two parts of the last window, which come from the
    # two ends of the axis. E.g. with 8 positions, windows of 4 and a shift of 2, the rolled
    # positions are 2 3 4 5 | 6 7 0 1. The regions are 2 3 4 5, then 6 7, and then 0 1.
    cuts = []
    for w, s in zip(window, shift, strict=True):
        if s:
            cuts.append((slice(-w), slice(-w, -s), slice(-s, None)))
        else:
            cuts.append((slice(None),))
    region = torch.zeros(1, *size, 1)
    number = 0
    for d in cuts[0]:
        for h in cuts[1]:
            for w in cuts[2]:
                region[:, d, h, w] = number
                number += 1

    of_tokens = partition(region, window).squeeze(2)  # (windows, T)
    is_same_region = of_tokens[:, :, None] == of_tokens[:, None, :]
    return torch.where(is_same_region, 0.0, -100.0).to(device, dtype)


# ---- A block: attention in windows, then a gated MLP ----


class GatedMlp(nn.Module):
    """An MLP whose hidden values are multiplied by the output of a second linear layer.

    inputs, hidden, outputs: numbers of channels.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.fc11 = nn.Linear(inputs, hidden)
        self.fc12 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc11(x)) * self.fc12(x))


class Attention(nn.Module):
    """Self-attention of a window. If `mutual`, its two frames also attend to each other.

    dim: number of channels.
    window: frames, height and width of a window.
    heads: number of heads. Each head has dim / heads channels.
    """

    relative_position_index: Tensor
    position_bias: Tensor

    def __init__(self, dim: int, window: tuple[int, ...], heads: int, mutual: bool) -> None:
        super().__init__()
        self.heads = heads
        self.mutual = mutual
        self.scale = (dim // heads) ** -0.5
        d, h, w = window
        # The table has a row for each difference of two positions in a window. Along the frames,
        # the difference has 2 d - 1 values, from -(d - 1) to d - 1. The same holds for h and w.
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
        """Split qkv (windows, T, 3 C) into q, k and v: (3, windows, heads, T, C / heads)."""
        n, t, _ = qkv.shape
        return qkv.view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """Return softmax(q k^T / sqrt(C / heads) + bias + mask) v as (windows, T, C).

        q, k, v: (windows, heads, T, C / heads).
        mask: (windows of a clip, T, T), or None to add no mask.
        bias: (heads, T, T), or None to add no bias.
        """
        logits = (q * self.scale) @ k.transpose(-2, -1)  # (windows, heads, T, T)
        if bias is not None:
            logits = logits + bias
        if mask is not None:
            # The mask has the windows of one clip. It is the same for each clip of the batch.
            n, heads, t, _ = logits.shape
            of_clips = logits.view(-1, len(mask), heads, t, t)
            logits = (of_clips + mask[None, :, None]).view(n, heads, t, t)
        out = logits.softmax(-1) @ v  # (windows, heads, T, C / heads)
        return out.transpose(1, 2).flatten(2)  # (windows, T, C)

    def forward(self, u: Tensor, mask: Tensor | None) -> Tensor:
        """Return attention within windows u (windows, T, C), in the same shape.

        mask: (windows of a clip, T, T), or None if the windows are not shifted.
        """
        # A window that is smaller than usual uses the first T rows and columns of the index. If
        # the window only lacks frames, these rows and columns belong to its own pairs of tokens.
        # If its height or width is smaller, they belong to other pairs of tokens. The published
        # network uses these rows and columns, too, so this must stay.
        t = u.shape[1]
        index = self.relative_position_index[:t, :t]  # row of the table for each pair of tokens
        bias = self.relative_position_bias_table[index.flatten()]  # (T * T, heads)
        bias = bias.view(t, t, -1).permute(2, 0, 1)  # (heads, T, T)
        q, k, v = self.split(self.qkv_self(u))
        out = self.attend(q, k, v, mask, bias)
        if self.mutual:
            # Mutual attention comes first, because the columns of the published `proj` have this
            # order.
            out = torch.cat((self.attend_mutually(u, mask), out), 2)
        return self.proj(out)

    def attend_mutually(self, u: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention of each frame of a window to the other frame, (windows, T, C).

        u: (windows, T, C). The first T / 2 tokens are the first frame.
        mask: (windows of a clip, T, T), or None if the windows are not shifted.
        """
        half = u.shape[1] // 2  # tokens of a frame
        # `position_bias` has the values of one frame, (1, T / 2, C). Both frames get these values.
        positions = self.position_bias.repeat(1, 2, 1)
        q, k, v = self.split(self.qkv_mut(u + positions))
        if mask is not None:
            # Both frames of a window have the same regions (see `shift_mask`), so the mask of the
            # first frame is also the mask between the frames.
            mask = mask[:, :half, :half]
        # `of_first` is what the queries of the second frame find in the first frame. The published
        # network stores this result at the tokens of the first frame.
        first = slice(0, half)
        second = slice(half, None)
        of_first = self.attend(q[:, :, second], k[:, :, first], v[:, :, first], mask, None)
        of_second = self.attend(q[:, :, first], k[:, :, second], v[:, :, second], mask, None)
        return torch.cat((of_first, of_second), 1)


class Block(nn.Module):
    """Attention in windows and a gated MLP, each added to its input.

    window: frames, height and width of a window.
    shift: number of positions by which the windows are shifted, for each axis.
    mutual: whether the two frames of a window also attend to each other.
    mlp_ratio: number of hidden channels of the MLP, divided by dim.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        window: tuple[int, ...],
        shift: tuple[int, ...],
        mutual: bool,
        mlp_ratio: float,
    ) -> None:
        super().__init__()
        self.window = window
        self.shift = shift
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, window, heads, mutual)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = GatedMlp(dim, int(dim * mlp_ratio), dim)

    def attention_branch(self, x: Tensor) -> Tensor:
        """Return attention of features x (B, D, H, W, C), in the same shape."""
        b, *size, _ = x.shape  # size: (D, H, W)
        # If the features are not larger than a window along an axis, the window gets the size of
        # the features along this axis. Then one window has all positions of the axis, so nothing is
        # shifted.
        window = tuple(min(s, w) for s, w in zip(size, self.window, strict=True))
        shift = []
        for s, w, offset in zip(size, self.window, self.shift, strict=True):
            shift.append(0 if s <= w else offset)
        shift = tuple(shift)

        # Pad each axis at its end to whole windows. E.g. for 10 positions and windows of 4, add
        # (-10) % 4 = 2 positions. F.pad takes the last axis first.
        y = self.norm1(x)
        pd, ph, pw = ((-s) % w for s, w in zip(size, window, strict=True))
        y = F.pad(y, (0, 0, 0, pw, 0, ph, 0, pd))  # before and after: C, W, H, D
        padded = y.shape[1:4]

        mask = None
        if any(shift):
            y = y.roll([-s for s in shift], (1, 2, 3))
            mask = shift_mask(padded, window, shift, y.dtype, y.device)
        attended = self.attn(partition(y, window), mask)  # (windows, T, C)
        y = unpartition(attended, window, (b, *padded))
        if any(shift):
            y = y.roll(shift, (1, 2, 3))
        return y[:, : size[0], : size[1], : size[2]]

    def forward(self, x: Tensor) -> Tensor:
        """Return features x (B, D, H, W, C), in the same shape."""
        x = x + self.attention_branch(x)
        return x + self.mlp(self.norm2(x))


class Group(nn.Module):
    """Blocks on features (B, C, D, H, W). Every second block is shifted by half a window.

    depth: number of blocks.
    window: frames, height and width of a window.
    mutual: whether the blocks also have mutual attention, between the two frames of a window.
    mlp_ratio: number of hidden channels of an MLP, divided by dim.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        window: tuple[int, ...],
        mutual: bool,
        mlp_ratio: float,
    ) -> None:
        super().__init__()
        half = tuple(w // 2 for w in window)
        self.blocks = nn.ModuleList()
        for number in range(depth):
            shift = half if number % 2 else (0, 0, 0)
            self.blocks.append(Block(dim, heads, window, shift, mutual, mlp_ratio))

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 4, 1)  # (B, D, H, W, C)
        for block in self.blocks:
            x = block(x)
        return x.permute(0, 4, 1, 2, 3)  # (B, C, D, H, W)


def over_channels(module: nn.Module, x: Tensor) -> Tensor:
    """Apply a module to x (B, C, N, H, W) that needs the channels at the end, such as nn.Linear."""
    return module(x.transpose(1, 4)).transpose(1, 4)


# ---- Alignment of neighbouring frames ----


class Deform(nn.Module):
    """A deformable convolution that brings k neighbouring frames onto a frame, the target.

    A convolution of 3 x 3 takes 9 samples for each pixel. Here each sample is taken where the flow
    leads, plus a learned offset.

    dim: number of channels.
    groups: number of groups of channels. All channels of a group have the same offsets.
    k: number of neighbouring frames.
    magnitude: largest offset along an axis, in pixels.
    """

    def __init__(self, dim: int, groups: int, k: int, magnitude: float) -> None:
        super().__init__()
        self.k = k
        self.magnitude = magnitude
        # The convolution has k * dim input channels, but its weight has only dim. From this,
        # torchvision sees that the channels are divided into k groups, one for each source.
        self.weight = nn.Parameter(torch.empty(dim, dim, 3, 3).uniform_(-1, 1) / math.sqrt(9 * dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        # The inputs are k warped frames, the target, and k flows. The outputs are three numbers for
        # each of the 9 samples of each group: an offset along y, an offset along x, and a weight.
        # So a group has 27 output channels.
        self.conv_offset = nn.Sequential(
            nn.Conv2d((1 + k) * dim + 2 * k, dim, 3, 1, 1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(dim, dim, 3, 1, 1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(dim, dim, 3, 1, 1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(dim, 27 * groups, 3, 1, 1),
        )

    def forward(self, sources: list[Tensor], target: Tensor, flows: list[Tensor]) -> Tensor:
        """Return one frame (B, C, H, W), made of k sources (B, C, H, W) brought onto the target.

        flows: (B, 2, H, W) from the target to each source.
        """
        # This import is not at the top, because it loads torch's compiler, which takes seconds.
        from torchvision.ops import deform_conv2d

        warped = [flow_warp(source, flow) for source, flow in zip(sources, flows, strict=True)]
        out = self.conv_offset(torch.cat((*warped, target, *flows), 1))
        # An offset has two numbers and a weight has one. So the first two thirds of the channels
        # are offsets, and the last third are weights.
        third = out.shape[1] // 3
        residue, weights = out.split((2 * third, third), dim=1)
        residue = self.magnitude * torch.tanh(residue)

        # Each source has a part of the offsets, and its flow is added to this part. The channels of
        # a part are y, x, y, x, ..., one pair for each sample. The channels of a flow are x, y. So
        # flip the flow to y, x, and repeat it for each pair.
        offsets = []
        for part, flow in zip(residue.chunk(self.k, 1), flows, strict=True):
            pairs = part.shape[1] // 2
            offsets.append(part + flow.flip(1).repeat(1, pairs, 1, 1))
        return deform_conv2d(
            torch.cat(sources, 1),
            torch.cat(offsets, 1),
            self.weight,
            self.bias,
            stride=(1, 1),
            padding=(1, 1),
            dilation=(1, 1),
            mask=torch.sigmoid(weights),
        )


# ---- A stage of the U ----


def fold(x: Tensor) -> Tensor:
    """Halve the resolution of x (B, C, N, H, W): each 2 x 2 pixels become channels.

    Return (B, 4 C, N, H/2, W/2).
    """
    b, c, n, h, w = x.shape
    x = x.view(b, c, n, h // 2, 2, w // 2, 2)  # (B, C, N, H/2, row, W/2, column)
    x = x.permute(0, 6, 4, 1, 2, 3, 5)  # (B, column, row, C, N, H/2, W/2)
    return x.reshape(b, 4 * c, n, h // 2, w // 2)


def unfold(x: Tensor) -> Tensor:
    """Double the resolution of x (B, C, N, H, W): 4 channels become 2 x 2 pixels.

    Return (B, C/4, N, 2 H, 2 W).
    """
    b, c, n, h, w = x.shape
    x = x.view(b, 2, 2, c // 4, n, h, w)  # (B, column, row, C/4, N, H, W)
    x = x.permute(0, 3, 4, 5, 2, 6, 1)  # (B, C/4, N, H, row, W, column)
    return x.reshape(b, c // 4, n, 2 * h, 2 * w)


class Stage(nn.Module):
    """A stage: change of the resolution, mutual attention, self-attention, alignment."""

    def __init__(
        self,
        kind: str,  # change of the resolution: "none", "down" or "up"
        inputs: int,  # channels before the stage
        dim: int,  # channels of the stage
        depth: int,  # number of blocks
        heads: int,
        window: tuple[int, ...],
        mutual_depth: int,  # number of the first blocks, which have mutual attention
        mlp_ratio: float,
        pa_frames: int,  # number of aligned neighbours; 0 for a stage without alignment
        groups: int,  # offset groups of the alignment
        scale: int,  # width of a pixel of this stage, in pixels of the input: 1, 2, 4 or 8
    ) -> None:
        super().__init__()
        self.kind = kind
        self.k = pa_frames // 2  # neighbouring frames on each side
        if kind == "none":
            layers = [nn.Identity(), nn.LayerNorm(dim)]
        elif kind == "down":
            layers = [nn.Identity(), nn.LayerNorm(4 * inputs), nn.Linear(4 * inputs, dim)]
        else:
            layers = [nn.Identity(), nn.LayerNorm(inputs // 4), nn.Linear(inputs // 4, dim)]
        self.reshape = nn.Sequential(*layers)

        two_frames = (2, *window[1:])
        self.residual_group1 = Group(
            dim, mutual_depth, heads, two_frames, mutual=True, mlp_ratio=mlp_ratio
        )
        self.linear1 = nn.Linear(dim, dim)
        self.residual_group2 = Group(
            dim, depth - mutual_depth, heads, window, mutual=False, mlp_ratio=mlp_ratio
        )
        self.linear2 = nn.Linear(dim, dim)
        if self.k:
            # An offset is at most 10 pixels of the input, as in the published network. The division
            # gives the number of pixels of this resolution.
            self.pa_deform = Deform(dim, groups, self.k, magnitude=10.0 / scale)
            self.pa_fuse = GatedMlp(3 * dim, 3 * dim, dim)

    def forward(self, x: Tensor, backward: list[Tensor], forward: list[Tensor]) -> Tensor:
        """Return features (B, C, N, H, W).

        backward, forward: flows at this resolution. Index 0 has the flows between neighbours, index
        1 the flows between frames at a distance of 2, and so on.
        """
        if self.kind == "down":
            x = fold(x)
        if self.kind == "up":
            x = unfold(x)
        x = over_channels(self.reshape, x)
        x = x + over_channels(self.linear1, self.residual_group1(x))
        x = x + over_channels(self.linear2, self.residual_group2(x))
        if not self.k:
            return x

        # A backward flow brings a later frame back onto a frame, and a forward flow brings an
        # earlier frame onto it.
        frames = x.transpose(1, 2)
        later = self.align(frames, backward, step=1)
        earlier = self.align(frames, forward, step=-1)
        aligned = torch.cat((frames, later, earlier), 2)
        return over_channels(self.pa_fuse, aligned.transpose(1, 2))

    def align(self, x: Tensor, flows: list[Tensor], step: int) -> Tensor:
        """Bring frames t + step, t + 2 step, ... onto each frame t of x (B, N, C, H, W).

        step: 1 for later frames, -1 for earlier frames. Return one frame for each t, in the shape
        of x. If the clip has no frame on this side of t, the returned frame is zero.
        """
        n = x.shape[1]
        no_frame = torch.zeros_like(x[:, 0])
        out = []
        for t in range(n):
            if not 0 <= t + step < n:
                out.append(no_frame)
                continue
            sources = []
            flows_of_frame = []
            for distance in range(1, self.k + 1):
                other = t + distance * step
                if 0 <= other < n:
                    sources.append(x[:, other])
                    # Flow i of a distance lies between frames i and i + distance.
                    flows_of_frame.append(flows[distance - 1][:, min(t, other)])
                else:
                    sources.append(no_frame)
                    flows_of_frame.append(torch.zeros_like(flows[0][:, 0]))
            out.append(self.pa_deform(sources, x[:, t], flows_of_frame))
        return torch.stack(out, 1)


class Refine(nn.Module):
    """A group of self-attention after the U, added to its input."""

    def __init__(
        self, dim: int, depth: int, heads: int, window: tuple[int, ...], mlp_ratio: float
    ) -> None:
        super().__init__()
        self.residual_group = Group(dim, depth, heads, window, mutual=False, mlp_ratio=mlp_ratio)
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + over_channels(self.linear, self.residual_group(x))


# ---- The network ----


def conv3d(inputs: int, outputs: int) -> nn.Conv3d:
    """Return a convolution of 3 x 3 on each frame."""
    return nn.Conv3d(inputs, outputs, (1, 3, 3), padding=(0, 1, 1))


class NaiveVRT(nn.Module):
    """VRT for restoration, or for super-resolution by 2, 4 or 8, with pa_frames > 0.

    forward(lq) gives what network_vrt.VRT gives without spikes. The arguments have the names and
    meanings of VRT, and arguments that this network does not need are accepted (`unused`).
    """

    stage1: Stage
    stage2: Stage
    stage3: Stage
    stage4: Stage
    stage5: Stage
    stage6: Stage
    stage7: Stage

    def __init__(
        self,
        upscale=1,
        in_chans=3,
        out_chans=3,
        window_size=(6, 8, 8),
        depths=(8,) * 7 + (4,) * 4,
        indep_reconsts=(9, 10),
        embed_dims=(96,) * 7 + (120,) * 4,
        num_heads=(6,) * 11,
        mul_attn_ratio=0.75,
        mlp_ratio=2.0,
        pa_frames=2,
        deformable_groups=16,
        nonblind_denoising=False,
        **unused,
    ) -> None:
        super().__init__()
        self.upscale = upscale
        self.in_chans = in_chans
        self.reach = pa_frames // 2
        window = tuple(window_size)
        dims = embed_dims
        # `aligned_input` adds to each frame four samples of the frame after it, and four samples of
        # the frame before it. So the network sees 9 times the channels. `nonblind_denoising` adds
        # one channel, a map of the noise.
        self.conv_first = conv3d(9 * in_chans + nonblind_denoising, dims[0])
        self.spynet = SpyNet()

        # The seven stages of the U: how each changes the resolution, and how many pixels of the
        # input a pixel of the stage is wide. E.g. stage 4 works at 1/8 of the resolution.
        plan = (
            ("none", 1),
            ("down", 2),
            ("down", 4),
            ("down", 8),
            ("up", 4),
            ("up", 2),
            ("up", 1),
        )
        for i, (kind, scale) in enumerate(plan):
            stage = Stage(
                kind,
                inputs=dims[i - 1],  # stage 1, of kind "none", does not use it
                dim=dims[i],
                depth=depths[i],
                heads=num_heads[i],
                window=window,
                mutual_depth=int(depths[i] * mul_attn_ratio),
                mlp_ratio=mlp_ratio,
                pa_frames=pa_frames,
                groups=deformable_groups,
                scale=scale,
            )
            self.add_module(f"stage{i + 1}", stage)

        # Stage 8 begins with a layer that changes the number of channels. Then come groups of
        # blocks at full resolution.
        to_width = nn.Sequential(nn.Identity(), nn.LayerNorm(dims[6]), nn.Linear(dims[6], dims[7]))
        self.stage8 = nn.ModuleList([to_width])
        for i in range(7, len(depths)):
            # In the groups of `indep_reconsts`, a window has one frame, so each frame is refined on
            # its own.
            seen = (1, *window[1:]) if i in indep_reconsts else window
            self.stage8.append(Refine(dims[i], depths[i], num_heads[i], seen, mlp_ratio))
        self.norm = nn.LayerNorm(dims[-1])
        self.conv_after_body = nn.Linear(dims[-1], dims[0])

        if upscale > 1:
            self.conv_before_upsample = nn.Sequential(conv3d(dims[0], 64), nn.LeakyReLU(0.01))
            self.upsample = self._doublings(int(math.log2(upscale)))
        self.conv_last = conv3d(64 if upscale > 1 else dims[0], out_chans)

    @staticmethod
    def _doublings(count: int) -> nn.ModuleDict:
        """Return `count` convolutions, each for a doubling of the resolution, and a last one.

        They have the names of the published network: 0, 5, 10, ... In that network, layers without
        weights have the names in between.
        """
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number in range(count):
            layers[str(5 * number)] = conv3d(64, 256)
        layers[str(5 * count)] = conv3d(64, 64)
        return nn.ModuleDict(layers)

    def forward(self, lq: Tensor) -> Tensor:
        """Restore frames lq (B, N, C, H, W)."""
        x = lq[:, :, : self.in_chans]
        noise = lq[:, :, self.in_chans :]

        # backward[k], forward[k]: the flows at 1 / 2**k of the resolution.
        flows = estimate_flows(self.spynet, x, self.reach)
        backward = [of_level[0] for of_level in flows]
        forward = [of_level[1] for of_level in flows]
        y = torch.cat((aligned_input(x, backward[0][0], forward[0][0]), noise), 2)
        first = self.conv_first(y.transpose(1, 2))  # (B, C, N, H, W)

        # The U: down to 1/8 of the resolution, and up again with the features of the way down.
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
        return self._enlarge(y) + self._interpolated(x)

    def _enlarge(self, y: Tensor) -> Tensor:
        """Return what is added to the enlarged frames (B, N, C, H, W), from features."""
        y = self.conv_before_upsample(y)
        *doublings, last = self.upsample.values()
        for conv in doublings:
            shuffled = F.pixel_shuffle(conv(y).transpose(1, 2), 2).transpose(1, 2)
            y = F.leaky_relu(shuffled, 0.1)
        return self.conv_last(last(y)).transpose(1, 2)

    def _interpolated(self, x: Tensor) -> Tensor:
        """Return frames (B, N, C, H, W) enlarged by interpolation."""
        b, n = x.shape[:2]
        frames = x.flatten(0, 1)
        larger = F.interpolate(frames, scale_factor=self.upscale, mode="bilinear")
        return larger.view(b, n, *larger.shape[1:])
