"""A transformer block: window attention and gated MLP, both residual, as one plain function of a chunk of windows.

`_BlockWork.hidden` is that function: a chunk at a time and recomputed in backward (chunks.py). `Block._forward_plain`
runs its two parts on all windows under torch's autograd: for torch.compile, and as the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.vrt.attention import window_attention
from models.vrt.chunks import (
    CPU_TOKENS,
    GPU_TOKENS,
    InChunks,
    Kernels,
    Piece,
    Tape,
    add_scaled,
    has_public_attention,
    runs_in_chunks,
)
from models.vrt.layers import DropPath, GatedMlp, gated, mlp, recomputed
from models.vrt.precision import LayerNorm, compute_dtype, layer_norm
from models.vrt.windows import Chunk, WindowPlan, relative_position_index, sine_positions, take, window_plan

# Torch's attention on a GPU writes a gradient of the bias for each window: at most so many bytes of them at a time.
BIAS_BYTES = 1 << 29


class BlockWeights(NamedTuple):
    """Tensors of a block, or their gradients. bias: (heads, T, T); the three of mutual attention may be None."""

    norm1: Tensor
    norm1_bias: Tensor
    bias: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    proj: Tensor
    proj_bias: Tensor
    qkv_mut: Tensor | None
    qkv_mut_bias: Tensor | None
    positions: Tensor | None
    norm2: Tensor
    norm2_bias: Tensor
    fc11: Tensor
    fc11_bias: Tensor
    fc12: Tensor
    fc12_bias: Tensor
    fc2: Tensor
    fc2_bias: Tensor

    def to(self, dtype: torch.dtype) -> BlockWeights:
        """The tensors of linear layers in `dtype`; the others are added to float32, or cast where they are used."""
        kept = ("norm1", "norm1_bias", "bias", "norm2", "norm2_bias")
        found = {k: t if t is None or k in kept else t.to(dtype) for k, t in self._asdict().items()}
        return BlockWeights(**found)


@dataclass(frozen=True)
class Heads:
    """eps: of the layer norms. own: the attention has our own gradient, see attention.CpuAttention."""

    count: int
    scale: float
    mutual: bool
    eps: float
    own: bool


def attend_windows(tokens: Tensor, chunk: Chunk, w: BlockWeights, heads: Heads, tape: Tape | None = None) -> Tensor:
    """The branch of the attention, proj(attention(norm1(x))), on the tokens of a chunk of windows, (rows, C)."""
    windows, t = chunk.spans[-1].stop, w.bias.shape[-1]

    def attention(u: Tensor, weight: Tensor, bias: Tensor | None, added: Tensor | None, mutual: bool) -> Tensor:
        qkv = F.linear(u, weight, bias).view(windows, t, 3, heads.count, -1)
        return window_attention(qkv, added, chunk.spans, heads.scale, mutual, heads.own, tape).flatten(0, 1)

    u = layer_norm(tokens, w.norm1, w.norm1_bias, heads.eps)
    if chunk.padding is not None:
        u = u.masked_fill(chunk.padding, 0.0)
    out = attention(u, w.qkv, w.qkv_bias, w.bias, False)
    if heads.mutual:
        # The output at frame 1 comes from frame 2's queries and frame 1's keys and values, and vice versa.
        u = (u.view(2 * windows, t // 2, -1) + w.positions).view_as(u)
        out = torch.cat((attention(u, w.qkv_mut, w.qkv_mut_bias, None, True), out), dim=1)
    return F.linear(out, w.proj, w.proj_bias)


def _drops(factor: float | Tensor) -> bool:
    return isinstance(factor, float) and factor == 0.0


@dataclass(frozen=True)
class _BlockWork:
    """A block on tokens (B * D * H * W, C), see chunks.Work.

    factors: of both branches, a number for each of `samples`, or None; with one plan for all clips, (2, B, 1).
    records: keep the results of the attention for backward.
    """

    plan: WindowPlan
    heads: Heads
    factors: Any
    samples: int
    records: bool

    def pieces(self) -> Iterator[Piece]:
        for sample in range(self.samples):
            for chunk in self.plan.chunks:
                if isinstance(self.factors, Tensor):  # a column, without waiting for the GPU
                    of = chunk.results // (len(self.plan.places) // self.factors.shape[1])
                    factors = tuple(self.factors.index_select(1, of))
                else:
                    factors = (1.0, 1.0) if self.factors is None else tuple(f[sample] for f in self.factors)
                rows, results = chunk.rows, chunk.results
                if sample:
                    first = sample * len(self.plan.places)
                    rows, results = rows + first, results + first
                yield Piece(rows, results, chunk.kept, factors, chunk)

    def named(self, weights: Sequence[Tensor | None], x: Tensor) -> BlockWeights:
        return BlockWeights(*weights).to(x.dtype)

    def hidden(
        self, tokens: Tensor, piece: Piece, weights: BlockWeights, tape: Tape | None
    ) -> tuple[Tensor, Tensor | None]:
        (first, second), chunk = piece.factors, piece.details
        branch = None if _drops(first) else attend_windows(tokens, chunk, weights, self.heads, tape)
        if chunk.kept is not None:
            tokens, branch = (None if x is None else take(x, chunk.kept) for x in (tokens, branch))
        y = tokens if branch is None else add_scaled(tokens, branch, first)
        if _drops(second):
            return y, None
        return y, gated(layer_norm(y, weights.norm2, weights.norm2_bias, self.heads.eps), weights)


class WindowAttention(nn.Module):
    """The parameters of the attention among the T tokens of each window.

    mutual: the window holds two frames; in addition to self attention, the frames attend to each other.
    """

    def __init__(
        self,
        dim: int,
        window: tuple[int, int, int],
        heads: int,
        qkv_bias: bool,
        qk_scale: float | None,
        mutual: bool,
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

    def bias(self, tokens: int) -> Tensor:
        """(heads, tokens, tokens). A clipped window uses the corner of the full index, as in the published network."""
        index = self.relative_position_index[:tokens, :tokens]
        rows = self.relative_position_bias_table.index_select(0, index.reshape(-1))
        # Contiguous: the fused kernels reject a bias whose last axis is strided.
        return rows.view(tokens, tokens, -1).permute(2, 0, 1).contiguous()


class Block(nn.Module):
    """Transformer block on tokens (B, D, H, W, C): window attention and gated MLP, both residual.

    checkpoint_attn, checkpoint_ffn: recompute this branch in the backward pass; with both, the block saves only its
    input.
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
        self.window, self.shift, self.kernels = window, shift, kernels
        self.checkpoint_attn, self.checkpoint_ffn = checkpoint_attn, checkpoint_ffn
        self.norm1 = LayerNorm(dim)
        self.attn = WindowAttention(dim, window, heads, qkv_bias, qk_scale, mutual)
        self.drop_path = DropPath(drop_path) if drop_path > 0.0 else nn.Identity()
        self.norm2 = LayerNorm(dim)
        self.mlp = GatedMlp(dim, int(dim * mlp_ratio), dim)
        self.is_compiled = False

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(compute_dtype(x))
        # A compiled block is the plain form: it pays on a GPU.
        is_plain = not runs_in_chunks(self.kernels, x) or (self.is_compiled and x.device.type != "cpu")
        with torch.autocast(x.device.type, enabled=False):
            return self._forward_plain(x, *self._plain_arguments(x)) if is_plain else self._forward_in_chunks(x)

    def compile(self, *args: Any, **options: Any) -> None:
        """torch.compile of the plain form, in place. The window plan is not compiled: it is made once per size."""
        self._forward_plain = torch.compile(self._forward_plain, *args, **options)
        self.is_compiled = True

    def _plain_arguments(self, x: Tensor) -> tuple[WindowPlan, Tensor | None]:
        plan = window_plan(tuple(x.shape[1:4]), self.window, self.shift, x.device, len(x))
        factors = self._drop_factors(x)
        return plan, None if factors is None else factors.view(2, -1, 1, 1, 1, 1).to(x.dtype)

    def _forward_plain(self, x: Tensor, plan: WindowPlan, factors: Tensor | None) -> Tensor:
        w, heads = self.weights(plan.tokens).to(x.dtype), self._heads(own=False)
        first, second = (1.0, 1.0) if factors is None else factors

        def attention(x: Tensor) -> Tensor:
            branch = attend_windows(plan.partition(x).flatten(0, 1), plan.whole, w, heads)
            return add_scaled(x, plan.merge(branch, x.shape), first)

        def ffn(y: Tensor) -> Tensor:
            u = layer_norm(y, w.norm2, w.norm2_bias, heads.eps)
            return add_scaled(y, mlp(u, w, checkpoint=False), second)

        saves = torch.is_grad_enabled()
        if saves and self.checkpoint_attn and self.checkpoint_ffn:
            return recomputed(lambda x: ffn(attention(x)), x)
        y = recomputed(attention, x) if saves and self.checkpoint_attn else attention(x)
        return recomputed(ffn, y) if saves and self.checkpoint_ffn else ffn(y)

    def _forward_in_chunks(self, x: Tensor) -> Tensor:
        plan, factors, is_public = self.chunk_plan(x), self._drop_factors(x), has_public_attention(x)
        if factors is not None and not is_public:
            factors = factors.flatten(1).tolist()
        heads, samples = self._heads(own=not is_public), 1 if is_public else len(x)
        work = _BlockWork(plan, heads, factors, samples, records=heads.own and not self.checkpoint_attn)
        return InChunks.apply(x.flatten(0, 3), work, *self.weights(plan.tokens)).view(x.shape)

    def chunk_plan(self, x: Tensor) -> WindowPlan:
        """The windows of a sample a few at a time on a CPU; on a GPU many of all samples, which have one mask."""
        size = tuple(x.shape[1:4])
        tokens = math.prod(min(s, w) for s, w in zip(size, self.window, strict=True))
        if not has_public_attention(x):
            return window_plan(size, self.window, self.shift, x.device, 1, max(1, CPU_TOKENS // tokens))
        most = min(GPU_TOKENS // tokens, BIAS_BYTES // (self.attn.heads * tokens**2 * x.element_size()))
        return window_plan(size, self.window, self.shift, x.device, len(x), max(1, most), joins=True)

    def weights(self, tokens: int) -> BlockWeights:
        """tokens: of a window."""
        a, mut = self.attn, {"qkv_mut": None, "qkv_mut_bias": None, "positions": None}
        if a.mutual:
            mut = {"qkv_mut": a.qkv_mut.weight, "qkv_mut_bias": a.qkv_mut.bias, "positions": a.position_bias}
        return BlockWeights(
            norm1=self.norm1.weight, norm1_bias=self.norm1.bias, bias=a.bias(tokens), qkv=a.qkv_self.weight,
            qkv_bias=a.qkv_self.bias, proj=a.proj.weight, proj_bias=a.proj.bias, norm2=self.norm2.weight,
            norm2_bias=self.norm2.bias, **mut, **self.mlp.weights()._asdict(),
        )  # fmt: skip

    def _heads(self, own: bool) -> Heads:
        return Heads(self.attn.heads, self.attn.scale, self.attn.mutual, self.norm1.eps, own)

    def _drop_factors(self, x: Tensor) -> Tensor | None:
        """Factors of both branches of stochastic depth, (2, B, 1), or None if it is off; 0 drops a branch."""
        if not self.training or isinstance(self.drop_path, nn.Identity):
            return None
        # float32 at least: 1 / 0.9 in bfloat16 is off by 0.2 %
        ones = torch.ones(len(x), 1, device=x.device, dtype=torch.promote_types(x.dtype, torch.float32))
        return torch.stack((self.drop_path.factors(ones), self.drop_path.factors(ones)))


def block_transient(block: Block, x: Tensor) -> int:
    """Bytes that the backward pass of a block on a GPU holds at most besides what was saved: x (B, D, H, W, C).

    Counted on fake tensors (tests/fake_gpu.py): those of a chunk, and the gradients of the bias, one for each window.
    """
    if not has_public_attention(x) or not runs_in_chunks(block.kernels, x) or block.is_compiled:
        return 0
    size, plan = torch.finfo(compute_dtype(x)).bits // 8, block.chunk_plan(x.to(compute_dtype(x)))
    windows, tokens = max(chunk.spans[-1].stop for chunk in plan.chunks), plan.tokens
    of_bias = windows * block.attn.heads * tokens**2
    return size * (2 * x.numel() + 13 * windows * tokens * x.shape[-1] + of_bias)


class BlockGroup(nn.Module):
    """`depth` blocks on tokens (B, D, H, W, C); every second one is shifted by half a window."""

    def __init__(
        self, dim: int, depth: int, heads: int, window: tuple[int, int, int], mutual: bool, drop_path: list[float],
        **block: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        half = tuple(w // 2 for w in window)
        self.blocks = nn.ModuleList(
            Block(dim, heads, window, half if j % 2 else (0, 0, 0), mutual, drop_path=drop_path[j], **block)
            for j in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x
