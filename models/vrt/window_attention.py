"""Window attention: self attention with relative position bias, and mutual attention between two frames."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.vrt.attention_core import window_attention
from models.vrt.cpu_block import AttentionBranch, AttentionConfig, MlpBranch
from models.vrt.gpu_block import BlockConfig, GpuBlock
from models.vrt.kernel_choice import read_choice
from models.vrt.kernels import use_cache_blocks, use_gpu_blocks, use_triton
from models.vrt.mlp import DropPath, GatedMlp
from models.vrt.precision import LayerNorm, compute_dtype
from models.vrt.recompute import recomputed
from models.vrt.windows import WindowPlan, relative_position_index, sine_positions, window_plan


class WindowAttention(nn.Module):
    """Attention among the T tokens of each window, (windows, T, C) -> (windows, T, C).

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
        kernels: str,
    ) -> None:
        super().__init__()
        self.heads, self.mutual, self.kernels = heads, mutual, kernels
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

    def forward(self, u: Tensor, plan: WindowPlan) -> Tensor:
        """u: (B * windows, T, C)."""
        n, t, c = u.shape
        qkv = self.qkv_self(u).view(n, t, 3, self.heads, c // self.heads)
        out = self._attend(qkv, self.bias(t), plan).reshape(n, t, c)
        if self.mutual:
            # The output at frame 1 comes from frame 2's queries and frame 1's keys and values, and vice versa.
            positioned = u.view(2 * n, t // 2, c) + self.position_bias.to(u.dtype)
            qkv = self.qkv_mut(positioned).view(2 * n, t // 2, 3, self.heads, c // self.heads)
            out = torch.cat((self._attend(qkv, None, plan).reshape(n, t, c), out), dim=2)
        return self.proj(out)

    def _attend(self, qkv: Tensor, bias: Tensor | None, plan: WindowPlan) -> Tensor:
        """qkv: (B * windows, T, 3, heads, hd). bias None: mutual attention, where qkv has one window per frame."""
        mutual = bias is None
        if use_triton("attention", self.kernels, qkv):
            from models.vrt.triton_attention import triton_attention  # Triton is optional

            return triton_attention(qkv, bias, *plan.patterns, self.scale, mutual)[0]
        if not mutual:
            q, k, v = qkv.unflatten(0, (-1, plan.count)).unbind(3)
            return window_attention(q, k, v, self.scale, bias, plan.spans)
        q, k, v = qkv.unflatten(0, (-1, plan.count, 2)).unbind(4)
        q, k, v = (x.flatten(1, 2) for x in (q.flip(2), k, v))
        return window_attention(q, k, v, self.scale, None, plan.frame_spans)


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
        kernels: str = "auto",
    ) -> None:
        super().__init__()
        self.window, self.shift, self.kernels = window, shift, kernels
        self.checkpoint_attn, self.checkpoint_ffn = checkpoint_attn, checkpoint_ffn
        self.norm1 = LayerNorm(dim)
        self.attn = WindowAttention(dim, window, heads, qkv_bias, qk_scale, mutual, kernels)
        self.drop_path = DropPath(drop_path) if drop_path > 0.0 else nn.Identity()
        self.norm2 = LayerNorm(dim)
        self.mlp = GatedMlp(dim, int(dim * mlp_ratio), dim)
        self.is_compiled = False

    def forward(self, x: Tensor) -> Tensor:
        if use_gpu_blocks(self.kernels, x) and not self.is_compiled:
            return self._forward_at_once(x)
        plan = window_plan(tuple(x.shape[1:4]), self.window, self.shift, x.device)
        return self._forward_in_cache(x, plan) if use_cache_blocks(self.kernels, x) else self._forward_plain(x, plan)

    def compile(self, *args: Any, **options: Any) -> None:
        """torch.compile of the plain form, in place. The window plan is not compiled: it is made once per size."""
        torch.compiler.assume_constant_result(read_choice)  # which reads a file: it cannot be traced
        self._forward_plain = torch.compile(self._forward_plain, *args, **options)
        self.is_compiled = True

    def _forward_plain(self, x: Tensor, plan: WindowPlan) -> Tensor:
        attn, ffn = (flag and torch.is_grad_enabled() for flag in (self.checkpoint_attn, self.checkpoint_ffn))
        if attn and ffn:
            return recomputed(lambda x: self._mlp_branch(self._attention_branch(x, plan)), x, is_random=True)
        x = recomputed(self._attention_branch, x, plan, is_random=True) if attn else self._attention_branch(x, plan)
        return recomputed(self._mlp_branch, x, is_random=True) if ffn else self._mlp_branch(x)

    def _attention_branch(self, x: Tensor, plan: WindowPlan) -> Tensor:
        return x + self.drop_path(plan.merge(self.attn(plan.partition(self.norm1(x)), plan), x.shape))

    def _mlp_branch(self, x: Tensor) -> Tensor:
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def _forward_in_cache(self, x: Tensor, plan: WindowPlan) -> Tensor:
        a, m = self.attn, self.mlp
        config = AttentionConfig(a.heads, a.scale, a.mutual, self.norm1.eps, save_output=not self.checkpoint_attn)
        weights = [self.norm1.weight, self.norm1.bias, a.bias(plan.tokens), a.qkv_self.weight, a.qkv_self.bias]
        weights += [a.proj.weight, a.proj.bias]
        if a.mutual:
            weights += [a.qkv_mut.weight, a.qkv_mut.bias, a.position_bias]
        y = AttentionBranch.apply(x.flatten(1, 3), self._drop_factors(x), plan, config, *weights)
        norm = (self._drop_factors(x), self.norm2.eps, self.norm2.weight, self.norm2.bias)
        return MlpBranch.apply(y, *norm, *m.weights()).view(x.shape)

    def _forward_at_once(self, x: Tensor) -> Tensor:
        a = self.attn
        plan = window_plan(tuple(x.shape[1:4]), self.window, self.shift, x.device, len(x))
        config = BlockConfig(
            a.heads, a.scale, a.mutual, self.norm1.eps, not self.checkpoint_attn, not self.checkpoint_ffn,
            *(use_triton(kernel, self.kernels, x) for kernel in ("attention", "mlp", "rows")),
        )  # fmt: skip
        weights = [self.norm1.weight, self.norm1.bias, a.bias(plan.tokens), a.qkv_self.weight, a.qkv_self.bias]
        weights += [a.proj.weight, a.proj.bias]
        weights += [a.qkv_mut.weight, a.qkv_mut.bias, a.position_bias] if a.mutual else [None] * 3
        factors = None
        if self.training and isinstance(self.drop_path, DropPath):
            ones = torch.ones(len(x), 1, 1, device=x.device)  # float32: 1 / 0.9 in bfloat16 is off by 0.2 %
            factors = torch.stack((self.drop_path.factors(ones), self.drop_path.factors(ones)))
        tokens = x.to(compute_dtype(x)).flatten(1, 3)
        with torch.autocast(x.device.type, enabled=False):
            norm2 = (self.norm2.weight, self.norm2.bias)
            y = GpuBlock.apply(tokens, factors, plan, config, *weights, *norm2, *self.mlp.weights())
        return y.view(x.shape)

    def _drop_factors(self, x: Tensor) -> list[float]:
        """The factor of a residual branch for each sample; 0.0 if stochastic depth drops it."""
        if isinstance(self.drop_path, nn.Identity):
            return [1.0] * len(x)
        return self.drop_path.factors(x).flatten().tolist()


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
