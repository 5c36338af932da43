"""The stages of VRT on tokens (B, N, H, W, C), and their blocks: window attention and gated MLP, both residual.

A block is one plain function of a chunk of windows, `Block._hidden`: a chunk at a time and recomputed in backward
(chunks.py). `Block.forward_plain` runs its two parts on all windows under torch's autograd: for torch.compile, and as
the reference.
"""

# Not evaluated: those of nested functions would be, in each call, and torch 2.8's compiler stops there.
from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.vrt import chunks
from models.vrt.attention import window_attention
from models.vrt.chunks import GatedMlp, Kernels, Tape, Weights, Work
from models.vrt.deform_align import DeformAlign, align_clip
from models.vrt.layers import LayerNorm, compute_dtype, layer_norm, recomputed
from models.vrt.windows import Chunk, relative_position_index, sine_positions, take, window_chunks

# Torch's attention on a GPU writes a gradient of the bias for each window: at most so many bytes of them at a time.
BIAS_BYTES = 1 << 29


class WindowAttention(nn.Module):
    """The parameters of the attention among the T tokens of each window.

    mutual: the window holds two frames; in addition to self attention, the frames attend to each other.
    """

    def __init__(
        self, dim: int, window: tuple[int, int, int], heads: int, qkv_bias: bool, qk_scale: float | None, mutual: bool
    ) -> None:
        super().__init__()
        self.heads, self.mutual = heads, mutual
        self.scale = qk_scale or (dim // heads) ** -0.5
        rows = (2 * window[0] - 1) * (2 * window[1] - 1) * (2 * window[2] - 1)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(rows, heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        self.register_buffer("relative_position_index", relative_position_index(window))
        if mutual:
            self.register_buffer("position_bias", sine_positions(window[1], window[2], dim))
        self.qkv_self = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(2 * dim if mutual else dim, dim)
        if mutual:
            self.qkv_mut = nn.Linear(dim, 3 * dim, bias=qkv_bias)


class Block(nn.Module):
    """Transformer block on tokens (B, D, H, W, C): window attention and gated MLP, both residual.

    checkpoint_attn, checkpoint_ffn: recompute this branch in the backward pass; with both, the block saves only its
    input. drop_path: probability of dropping a branch of a sample in training (stochastic depth).
    """

    FLAGS = ("checkpoint_attn", "checkpoint_ffn")

    def __init__(
        self,
        dim: int,
        heads: int,
        window: tuple[int, int, int],
        shift: tuple[int, int, int],
        mutual: bool,
        mlp_ratio: float = 2.0,
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        drop_path: float = 0.0,
        checkpoint_attn: bool = False,
        checkpoint_ffn: bool = False,
        kernels: Kernels = "auto",
    ) -> None:
        super().__init__()
        self.window, self.shift, self.drop_path, self.kernels = window, shift, drop_path, kernels
        self.checkpoint_attn, self.checkpoint_ffn = checkpoint_attn, checkpoint_ffn
        self.norm1 = LayerNorm(dim)
        self.attn = WindowAttention(dim, window, heads, qkv_bias, qk_scale, mutual)
        self.norm2 = LayerNorm(dim)
        self.mlp = GatedMlp(dim, int(dim * mlp_ratio), dim)
        self.is_compiled = False  # whether VRT.compile has compiled forward_plain

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(compute_dtype(x))
        is_public, tokens = x.device.type in chunks.PUBLIC_ATTENTION, x[0].numel() // x.shape[-1]
        factors = None
        if self.training and self.drop_path:
            # Of both branches, (2, B, 1): 0 or 1 / (1 - drop_path). The draws come from torch's default generator, not
            # from an explicit one: torch's own layers, such as nn.Dropout in an added network, take no other. ModelVRT
            # seeds it from (manual_seed, step, rank) before each step.
            keep, precise = 1.0 - self.drop_path, torch.promote_types(x.dtype, torch.float32)  # bfloat16: 0.2 % off
            draws = [torch.ones(len(x), 1, device=x.device, dtype=precise).bernoulli_(keep) / keep for _ in range(2)]
            factors = torch.stack(draws)
        with torch.autocast(x.device.type, enabled=False):
            # A compiled block is the plain form: it pays on a GPU. The window plan is not compiled.
            if not chunks.runs_in_chunks(self.kernels, x) or (self.is_compiled and x.device.type != "cpu"):
                (chunk,) = window_chunks(tuple(x.shape[1:4]), self.window, self.shift, x.device, len(x))
                if factors is not None:
                    factors = factors.repeat_interleave(tokens, 1).index_select(1, chunk.results)
                return self.forward_plain(x, chunk, (None, None) if factors is None else tuple(factors))
            if factors is not None:  # on a CPU, a dropped branch is not computed
                factors = factors.repeat_interleave(tokens, 1) if is_public else factors.squeeze(2).t().tolist()
            parts, records = self.chunks(x), None if is_public else not self.checkpoint_attn
            weights = self.weights(parts[0].tokens)
            work = Work(self._hidden, parts, tuple(weights), factors, records)
            rows = x.reshape(1 if is_public else len(x), -1, x.shape[-1])
            return chunks.InChunks.apply(rows, work, *weights.values()).view(x.shape)

    def forward_plain(self, x: Tensor, chunk: Chunk, factors: tuple[Any, Any]) -> Tensor:
        """chunk: all windows; factors: a column for its results, or None, for each branch."""
        w = chunks.cast(self.weights(chunk.tokens), x.dtype)

        def attention(tokens: Tensor) -> Tensor:
            return self._attended(tokens, chunk, factors[0], w, None)

        def ffn(y: Tensor) -> Tensor:
            h = chunks.gated(layer_norm(y, w["norm2"], w["norm2_bias"], self.norm2.eps), w)
            h = F.linear(h, w["fc2"], w["fc2_bias"])
            return y + chunks.scaled(h, factors[1])

        y = take(x.flatten(0, 3), chunk.results)
        if chunk.kept is not None:
            y = y.new_zeros(len(chunk.rows), x.shape[-1]).index_copy(0, chunk.kept, y)
        parts = [(attention, self.checkpoint_attn), (ffn, self.checkpoint_ffn)]
        if self.checkpoint_attn and self.checkpoint_ffn:
            parts = [(lambda tokens: ffn(attention(tokens)), True)]
        for part, recomputes in parts:
            y = recomputed(part, y, weights=w.values(), when=recomputes)
        return torch.empty_like(y).index_copy(0, chunk.results, y).view(x.shape)

    def _hidden(
        self, tokens: Tensor, chunk: Chunk, factors: tuple[Any, Any], w: Weights, tape: Tape | None
    ) -> tuple[Tensor, Tensor | None]:
        """See chunks.Work."""
        y = self._attended(tokens, chunk, factors[0], w, tape)
        if isinstance(factors[1], float) and factors[1] == 0.0:
            return y, None
        return y, chunks.gated(layer_norm(y, w["norm2"], w["norm2_bias"], self.norm2.eps), w)

    def _attended(self, tokens: Tensor, chunk: Chunk, factor: Any, w: Weights, tape: Tape | None) -> Tensor:
        """The sum with the attention branch, proj(attention(norm1(x))): (rows, C) -> (results, C)."""
        t, heads = chunk.tokens, self.attn.heads
        if isinstance(factor, float) and factor == 0.0:
            return take(tokens, chunk.kept)

        def attention(u: Tensor, key: str, added: Tensor | None, mutual: bool) -> Tensor:
            qkv = F.linear(u, w[key], w[f"{key}_bias"]).view(-1, t, 3, heads, u.shape[1] // heads)
            return window_attention(qkv, added, chunk.spans, self.attn.scale, mutual, tape).flatten(0, 1)

        u = layer_norm(tokens, w["norm1"], w["norm1_bias"], self.norm1.eps)
        if chunk.padding is not None:
            u = u.masked_fill(chunk.padding, 0.0)
        out = attention(u, "qkv", w["bias"], False)
        if self.attn.mutual:
            # The output at frame 1 comes from frame 2's queries and frame 1's keys and values, and vice versa.
            u = (u.view(-1, t // 2, u.shape[1]) + w["positions"]).view_as(u)
            out = torch.cat((attention(u, "qkv_mut", None, True), out), dim=1)
        out = chunks.scaled(take(F.linear(out, w["proj"], w["proj_bias"]), chunk.kept), factor)
        return take(tokens, chunk.kept) + out

    def chunks(self, x: Tensor) -> tuple[Chunk, ...]:
        """The windows of a sample a few at a time on a CPU; on a GPU many of all samples."""
        size, is_public = tuple(x.shape[1:4]), x.device.type in chunks.PUBLIC_ATTENTION
        tokens = math.prod(min(s, w) for s, w in zip(size, self.window, strict=True))
        most = chunks.CPU_TOKENS // tokens
        if is_public:
            most = min(chunks.GPU_TOKENS // tokens, BIAS_BYTES // (self.attn.heads * tokens**2 * x.element_size()))
        return window_chunks(size, self.window, self.shift, x.device, len(x) if is_public else 1, max(1, most))

    def weights(self, tokens: int) -> Weights:
        """By name; tokens: of a window."""
        a, mutual = self.attn, {}
        # A clipped window uses the corner of the full index, as in the published network.
        index = a.relative_position_index[:tokens, :tokens].reshape(-1)
        bias = a.relative_position_bias_table.index_select(0, index).view(tokens, tokens, -1).permute(2, 0, 1)
        if a.mutual:
            mutual = {"qkv_mut": a.qkv_mut.weight, "qkv_mut_bias": a.qkv_mut.bias, "positions": a.position_bias}
        return {
            "norm1": self.norm1.weight, "norm1_bias": self.norm1.bias,
            "bias": bias.contiguous(),  # the fused kernels reject a bias whose last axis is strided
            "qkv": a.qkv_self.weight, "qkv_bias": a.qkv_self.bias, "proj": a.proj.weight, "proj_bias": a.proj.bias,
            **mutual, "norm2": self.norm2.weight, "norm2_bias": self.norm2.bias, **self.mlp.weights(),
        }  # fmt: skip


def block_transient(block: Block, x: Tensor) -> int:
    """Bytes that the backward pass of a block on a GPU holds at most besides what was saved: x (B, D, H, W, C).

    Counted on fake tensors (tests/fake_gpu.py): those of a chunk, and the gradients of the bias, one for each window.
    """
    is_public = x.device.type in chunks.PUBLIC_ATTENTION
    if not is_public or not chunks.runs_in_chunks(block.kernels, x) or block.is_compiled:
        return 0
    x = x.to(compute_dtype(x))
    chunk = max(block.chunks(x), key=lambda chunk: len(chunk.rows))
    return x.element_size() * (2 * x.numel() + len(chunk.rows) * (13 * x.shape[-1] + block.attn.heads * chunk.tokens))


class BlockGroup(nn.Sequential):
    """`depth` blocks on tokens (B, D, H, W, C); every second one is shifted by half a window."""

    def __init__(
        self, dim: int, depth: int, heads: int, window: tuple[int, int, int], mutual: bool, drop_path: list[float],
        **block: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        half = tuple(w // 2 for w in window)
        blocks = (
            Block(dim, heads, window, half if j % 2 else (0, 0, 0), mutual, drop_path=drop_path[j], **block)
            for j in range(depth)
        )
        self.blocks = nn.Sequential(*blocks)


class FoldPatches(nn.Module):
    """2x2 patches to channels, (B, N, H, W, C) -> (B, N, H/2, W/2, 4C); channel order: column (slowest), row, C."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, h, w, c = x.shape
        return x.view(b, n, h // 2, 2, w // 2, 2, c).permute(0, 1, 2, 4, 5, 3, 6).reshape(b, n, h // 2, w // 2, 4 * c)


class UnfoldPatches(nn.Module):
    """The inverse of FoldPatches, (B, N, H, W, 4C) -> (B, N, 2H, 2W, C)."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, h, w, c = x.shape
        return x.view(b, n, h, w, 2, 2, c // 4).permute(0, 1, 2, 5, 3, 4, 6).reshape(b, n, 2 * h, 2 * w, c // 4)


class Stage(nn.Module):
    """Stages 1 to 7: blocks with mutual attention, blocks with self attention, then fusion with aligned neighbours.

    kind: what happens at the entry: "none" (LayerNorm), "down" (scale 1/2) or "up" (scale 2); inputs: channels there.
    mutual_depth: number of blocks with mutual attention. pa_frames: 0 = no alignment, else 2, 4 or 6 neighbours.
    scale: size of the network's input over that of this stage. block: see Block.
    """

    def __init__(
        self,
        kind: str,
        inputs: int,
        dim: int,
        depth: int,
        heads: int,
        window: tuple[int, int, int],
        mutual_depth: int,
        drop_path: list[float],
        pa_frames: int,
        deformable_groups: int,
        scale: int,
        **block: Any,
    ) -> None:
        super().__init__()
        patches = {"none": nn.Identity, "down": FoldPatches, "up": UnfoldPatches}[kind]
        width = {"none": dim, "down": 4 * inputs, "up": inputs // 4}[kind]
        self.reshape = nn.Sequential(patches(), LayerNorm(width))
        if kind != "none":
            self.reshape.append(nn.Linear(width, dim))
        pair = (2, *window[1:])
        self.residual_group1 = BlockGroup(dim, mutual_depth, heads, pair, True, drop_path, **block)
        self.linear1 = nn.Linear(dim, dim)
        self.residual_group2 = BlockGroup(dim, depth - mutual_depth, heads, window, False, drop_path, **block)
        self.linear2 = nn.Linear(dim, dim)
        self.aligns = pa_frames > 0
        if self.aligns:
            self.pa_deform = DeformAlign(dim, deformable_groups, pa_frames // 2, 10.0 / scale)
            of_mlp = block.get("checkpoint_ffn", False), block.get("kernels", "auto")
            self.pa_fuse = GatedMlp(3 * dim, 3 * dim, dim, *of_mlp)

    def forward(self, x: Tensor, backward: list[Tensor], forward: list[Tensor]) -> Tensor:
        """x: (B, N, H, W, C) at the previous scale; backward, forward: flows at this stage's scale, nearest first."""
        x = self.reshape(x)
        x = x + self.linear1(self.residual_group1(x))
        x = x + self.linear2(self.residual_group2(x))
        if not self.aligns:
            return x
        later, earlier = align_clip(self.pa_deform, x.permute(0, 1, 4, 2, 3), backward, forward)
        return self.pa_fuse(torch.cat((x, later.permute(0, 1, 3, 4, 2), earlier.permute(0, 1, 3, 4, 2)), dim=-1))


class RefineLayer(nn.Module):
    """One layer of stage 8: self attention at full resolution, then a linear layer, with a residual connection."""

    def __init__(
        self, dim: int, depth: int, heads: int, window: tuple[int, int, int], drop_path: list[float], **block: Any
    ) -> None:
        super().__init__()
        self.residual_group = BlockGroup(dim, depth, heads, window, False, drop_path, **block)
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.residual_group(x))
