"""Partition of a token volume into (shifted) windows; computed once per size and shared by all blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor

# Added to the logits of pairs that must not attend. Not -inf: the published weights were trained with this value.
MASKED = -100.0


@dataclass(frozen=True)
class Span:
    """The windows start .. stop - 1, which share one mask: (T, T), added to the logits, or None."""

    start: int
    stop: int
    mask: Tensor | None


@dataclass(frozen=True)
class Chunk:
    """Windows that are computed together. rows: as in the plan; padding: True at padding, (rows, 1), or None.

    kept: positions of the rows that are no padding; results: their tokens. spans: counted from the first window.
    """

    rows: Tensor
    padding: Tensor | None
    kept: Tensor | None
    results: Tensor
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class WindowPlan:
    """Padding, shift and partition of the tokens of one sample, (D, H, W, C), as token indices.

    window: its size, clipped to the clip. tokens: T of a window. rows: index of the token at each position of each
    window, (windows * T,) int64. real: False at padding, (windows * T,), or None if there is none. places: position of
    each token in `rows`, (D * H * W,). Windows are sorted by mask pattern (at most 8: last or not along each axis), so
    that each pattern is one span; `merge` restores the order of the tokens. chunks: see window_plan.
    """

    window: tuple[int, int, int]
    tokens: int
    rows: Tensor
    real: Tensor | None
    places: Tensor
    spans: tuple[Span, ...]
    chunks: tuple[Chunk, ...]

    @property
    def count(self) -> int:
        """Number of windows of one sample."""
        return self.spans[-1].stop

    @property
    def whole(self) -> Chunk:
        """All windows, with their masks."""
        padding = None if self.real is None else ~self.real[:, None]
        return Chunk(self.rows, padding, None, self.rows, self.spans)

    def partition(self, x: Tensor) -> Tensor:
        """(B, D, H, W, C) -> (B * windows, T, C). Padding is zero and takes part in attention."""
        return _Partition.apply(x.reshape(-1, len(self.places), x.shape[-1]), self).view(-1, self.tokens, x.shape[-1])

    def merge(self, windows: Tensor, size: torch.Size) -> Tensor:
        """(B * windows, T, C) -> (B, D, H, W, C); size: of the clip."""
        return _Merge.apply(windows.reshape(-1, len(self.rows), windows.shape[-1]), self).view(*size[:4], -1)

    def gather(self, x: Tensor) -> Tensor:
        """Tokens (B, D * H * W, C) in window order, (B, windows * T, C)."""
        gathered = x.index_select(1, self.rows)
        return gathered if self.real is None else gathered.masked_fill_(~self.real[:, None], 0.0)


class _Partition(torch.autograd.Function):
    """WindowPlan.gather, with a gather as its gradient: autograd's index_add is many times slower."""

    @staticmethod
    def forward(ctx, x: Tensor, plan: WindowPlan) -> Tensor:
        ctx.plan = plan
        return plan.gather(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Merge.apply(grad, ctx.plan), None


class _Merge(torch.autograd.Function):
    """The tokens from window order back in their own order, without padding."""

    @staticmethod
    def forward(ctx, x: Tensor, plan: WindowPlan) -> Tensor:
        ctx.plan = plan
        return x.index_select(1, plan.places)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Partition.apply(grad, ctx.plan), None


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.shape = x.shape
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad.new_zeros(ctx.shape).index_copy_(0, *ctx.saved_tensors, grad), None


def take(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows], each row at most once: its gradient is then a copy, many times faster than autograd's index_add."""
    return _Take.apply(x, rows)


@lru_cache(maxsize=128)
@torch.inference_mode(False)  # a mask is saved for backward
def window_plan(
    size: tuple[int, int, int],
    window: tuple[int, int, int],
    shift: tuple[int, int, int],
    device: torch.device,
    batch: int = 1,
    most: int = 1 << 40,
    joins: bool = False,
) -> WindowPlan:
    """The plan for clips of size (D, H, W). An axis that is not longer than the window is not shifted.

    batch: number of clips that count as one sample; windows with one mask then lie next to each other. most: windows
    of a chunk; joins: it may have windows with several masks, for fewer launches.
    """
    fits = [s <= w for s, w in zip(size, window, strict=True)]
    window = tuple(s if f else w for s, w, f in zip(size, window, fits, strict=True))
    shift = tuple(0 if f else s for s, f in zip(shift, fits, strict=True))
    padded = tuple(-(-s // w) * w for s, w in zip(size, window, strict=True))
    counts = [p // w for p, w in zip(padded, window, strict=True)]
    tokens = window[0] * window[1] * window[2]

    pixels = size[0] * size[1] * size[2]
    places = torch.full(padded, -1)
    places[: size[0], : size[1], : size[2]] = torch.arange(pixels).view(size)
    places = places.roll([-s for s in shift], (0, 1, 2))
    (nd, nh, nw), (wd, wh, ww) = counts, window
    cells = places.view(nd, wd, nh, wh, nw, ww).permute(0, 2, 4, 1, 3, 5).reshape(nd, nh, nw, tokens)

    # Along each shifted axis only the last window needs a mask.
    cuts = [[(0, n)] if s == 0 else [(0, n - 1), (n - 1, n)] for n, s in zip(counts, shift, strict=True)]
    parts, spans, start = [], [], 0
    for cut in product(*cuts):
        part = cells[slice(*cut[0]), slice(*cut[1]), slice(*cut[2])].reshape(-1, tokens)
        if not len(part):
            continue
        part = torch.cat([torch.where(part < 0, part, part + sample * pixels) for sample in range(batch)])
        last = [len(axis) == 2 and piece == axis[1] for axis, piece in zip(cuts, cut, strict=True)]
        mask = _mask(window, tuple(s if at_end else 0 for s, at_end in zip(shift, last, strict=True)))
        spans.append(Span(start, start + len(part), None if mask is None else mask.to(device)))
        start += len(part)
        parts.append(part.flatten())
    rows = torch.cat(parts)
    real = rows >= 0
    inverse = torch.empty(batch * pixels, dtype=torch.long)
    inverse[rows[real]] = real.nonzero().flatten()
    real = None if padded == size else real
    chunks = tuple(_chunks(rows, real, spans, tokens, most, joins, device))
    real = None if real is None else real.to(device)
    return WindowPlan(window, tokens, rows.clamp(min=0).to(device), real, inverse.to(device), tuple(spans), chunks)


def _chunks(
    rows: Tensor, real: Tensor | None, spans: list[Span], tokens: int, most: int, joins: bool, device: torch.device
) -> Iterator[Chunk]:
    """rows: -1 at padding."""
    for first, own_spans in _groups(spans, most, joins):
        part = slice(first * tokens, (first + own_spans[-1].stop) * tokens)
        own = rows[part].clamp(min=0).to(device)
        if real is None:
            yield Chunk(own, None, None, own, own_spans)
        else:
            kept = real[part].nonzero().flatten()
            yield Chunk(own, ~real[part, None].to(device), kept.to(device), rows[part][kept].to(device), own_spans)


def _groups(spans: list[Span], most: int, joins: bool) -> Iterator[tuple[int, tuple[Span, ...]]]:
    """(first window, spans counted from it) of the chunks."""
    first, group = 0, []
    for span in spans:
        for start in range(span.start, span.stop, most):
            stop = min(start + most, span.stop)
            if group and (not joins or stop - first > most):
                yield first, tuple(group)
                group = []
            first = first if group else start
            group.append(Span(start - first, stop - first, span.mask))
    yield first, tuple(group)


def _mask(window: tuple[int, int, int], shift: tuple[int, int, int]) -> Tensor | None:
    """(T, T) mask of a window whose last `shift` tokens along each axis were shifted in from the other end."""
    if not any(shift):
        return None
    region = torch.zeros(window, dtype=torch.long)
    for axis, s in enumerate(shift):
        if s:
            wrapped = (torch.arange(window[axis]) >= window[axis] - s).long()
            region = 2 * region + wrapped.view([-1 if i == axis else 1 for i in range(3)])
    region = region.flatten()
    return torch.where(region[:, None] == region[None, :], 0.0, MASKED)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def relative_position_index(window: tuple[int, int, int]) -> Tensor:
    """(T, T) row of the bias table for each pair of tokens of a window, int64. Cached: do not modify it."""
    # Always on the CPU: with the default device "meta", a meta tensor would be cached.
    axes = [torch.arange(s, device="cpu") for s in window]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)
    offset = points[:, :, None] - points[:, None, :] + torch.tensor(window, device="cpu").view(3, 1, 1) - 1
    return (offset[0] * (2 * window[1] - 1) + offset[1]) * (2 * window[2] - 1) + offset[2]


def sine_positions(height: int, width: int, channels: int) -> Tensor:
    """Sine/cosine position table of a height x width window, (1, height * width, channels), float32.

    First half of the channels: rows, second half: columns, counted from 1 over (0, 2 pi].
    """
    half = channels // 2
    # Always on the CPU: on the device "meta", where options are checked, each operation takes torch a millisecond.
    divisor = 10000.0 ** (2 * (torch.arange(half, device="cpu") // 2) / half)
    tables = []
    for size in (height, width):
        angle = torch.arange(1, size + 1, device="cpu") / (size + 1e-6) * (2 * torch.pi)
        phase = angle[:, None] / divisor
        tables.append(torch.stack((phase[:, 0::2].sin(), phase[:, 1::2].cos()), dim=2).flatten(1))
    rows = tables[0][:, None, :].expand(height, width, half)
    columns = tables[1][None, :, :].expand(height, width, half)
    return torch.cat((rows, columns), dim=2).reshape(1, height * width, channels)
