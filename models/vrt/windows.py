"""How a token volume is cut into (shifted) windows: computed once per size, shared by all blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import torch
from torch import Tensor

# Added to the logits of pairs that must not attend. Not -inf: a checkpoint was trained with this leak.
MASKED = -100.0


@dataclass(frozen=True)
class Span:
    """Windows start .. stop - 1 share one mask: (T, T) to add to the logits, or None."""

    start: int
    stop: int
    mask: Tensor | None


@dataclass(frozen=True)
class WindowPlan:
    """Padding, shift and partition of the tokens of one sample, (D, H, W, C), as a list of rows.

    window: its sizes where they fit the clip; tokens: T of a window. rows: the token at each place of each
    window, (windows * T,) int64; real: which of them are no padding, or None where all are; places: where
    each token went. Windows are ordered by mask pattern (at most 8: last or not along each axis), so that
    each pattern covers one span. Their order means nothing elsewhere, for `merge` undoes it.
    """

    window: tuple[int, int, int]
    tokens: int
    rows: Tensor
    real: Tensor | None
    places: Tensor
    spans: tuple[Span, ...]

    @property
    def count(self) -> int:
        """Windows of one sample."""
        return self.spans[-1].stop

    @property
    def frame_spans(self) -> tuple[Span, ...]:
        """The spans where each frame of a two-frame window is a window of its own: the mask inside a frame."""
        half = self.tokens // 2
        return tuple(
            Span(2 * s.start, 2 * s.stop, None if s.mask is None else s.mask[:half, :half]) for s in self.spans
        )

    @cached_property
    def patterns(self) -> tuple[Tensor | None, Tensor | None]:
        """The masks of all spans, (spans, T, T), and the span of each window, int32; None where nothing is masked."""
        if all(span.mask is None for span in self.spans):
            return None, None
        blank = self.rows.new_zeros((self.tokens, self.tokens), dtype=torch.float32)
        counts = torch.tensor([span.stop - span.start for span in self.spans])
        pattern = torch.arange(len(self.spans), dtype=torch.int32).repeat_interleave(counts)
        masks = torch.stack([blank if span.mask is None else span.mask for span in self.spans])
        return masks, pattern.to(self.rows.device)

    def partition(self, x: Tensor) -> Tensor:
        """(B, D, H, W, C) -> (B * windows, T, C). Padding is zeros, which take part in attention."""
        return _Partition.apply(x.flatten(1, 3), self).view(-1, self.tokens, x.shape[-1])

    def merge(self, windows: Tensor, size: torch.Size) -> Tensor:
        """(B * windows, T, C) -> (B, D, H, W, C); size: that of the clip."""
        return _Merge.apply(windows.reshape(size[0], -1, windows.shape[-1]), self).view(*size[:4], -1)

    def pick(self, x: Tensor) -> Tensor:
        """Tokens (B, D * H * W, C) in window order, (B, windows * T, C)."""
        picked = x.index_select(1, self.rows)
        return picked if self.real is None else picked.masked_fill_(~self.real[:, None], 0.0)


class _Partition(torch.autograd.Function):
    """WindowPlan.pick; the gradient is a gather as well, for an index_add is many times slower."""

    @staticmethod
    def forward(ctx, x: Tensor, plan: WindowPlan) -> Tensor:
        ctx.plan = plan
        return plan.pick(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Merge.apply(grad, ctx.plan), None


class _Merge(torch.autograd.Function):
    """Tokens in window order back to their places; padding is dropped."""

    @staticmethod
    def forward(ctx, x: Tensor, plan: WindowPlan) -> Tensor:
        ctx.plan = plan
        return x.index_select(1, plan.places)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Partition.apply(grad, ctx.plan), None


@lru_cache(maxsize=128)
def window_plan(
    size: tuple[int, int, int], window: tuple[int, int, int], shift: tuple[int, int, int], device: torch.device
) -> WindowPlan:
    """The plan for clips of size (D, H, W). An axis not longer than its window is not shifted."""
    fits = [s <= w for s, w in zip(size, window, strict=True)]
    window = tuple(s if f else w for s, w, f in zip(size, window, fits, strict=True))
    shift = tuple(0 if f else s for s, f in zip(shift, fits, strict=True))
    padded = tuple(-(-s // w) * w for s, w in zip(size, window, strict=True))
    counts = [p // w for p, w in zip(padded, window, strict=True)]
    tokens = window[0] * window[1] * window[2]

    places = torch.full(padded, -1)
    places[: size[0], : size[1], : size[2]] = torch.arange(size[0] * size[1] * size[2]).view(size)
    places = places.roll([-s for s in shift], (0, 1, 2))
    (nd, nh, nw), (wd, wh, ww) = counts, window
    cells = places.view(nd, wd, nh, wh, nw, ww).permute(0, 2, 4, 1, 3, 5).reshape(nd, nh, nw, tokens)

    # Along each shifted axis the windows but the last share one pattern (no mask), the last has another.
    cuts = [[(0, n)] if s == 0 else [(0, n - 1), (n - 1, n)] for n, s in zip(counts, shift, strict=True)]
    parts, spans, start = [], [], 0
    for cut in product(*cuts):
        part = cells[slice(*cut[0]), slice(*cut[1]), slice(*cut[2])].reshape(-1, tokens)
        if not len(part):
            continue
        last = [len(axis) == 2 and piece == axis[1] for axis, piece in zip(cuts, cut, strict=True)]
        mask = _mask(window, tuple(s if at_end else 0 for s, at_end in zip(shift, last, strict=True)))
        spans.append(Span(start, start + len(part), None if mask is None else mask.to(device)))
        start += len(part)
        parts.append(part.flatten())
    rows = torch.cat(parts)
    real = None if padded == size else (rows >= 0)
    inverse = torch.empty(size[0] * size[1] * size[2], dtype=torch.long)
    inverse[rows[rows >= 0]] = (rows >= 0).nonzero().flatten()
    real = None if real is None else real.to(device)
    return WindowPlan(window, tokens, rows.clamp(min=0).to(device), real, inverse.to(device), tuple(spans))


def _mask(window: tuple[int, int, int], shift: tuple[int, int, int]) -> Tensor | None:
    """(T, T) mask of the window whose last `shift` tokens along each axis came from the other end."""
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
def relative_position_index(window: tuple[int, int, int]) -> Tensor:
    """(T, T) row of the bias table for each pair of tokens of a window; int64. Shared: do not write to it."""
    # On the CPU whatever the default device: a network built on "meta" must not put a meta tensor into the cache.
    axes = [torch.arange(s, device="cpu") for s in window]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)
    offset = points[:, :, None] - points[:, None, :] + torch.tensor(window, device="cpu").view(3, 1, 1) - 1
    return (offset[0] * (2 * window[1] - 1) + offset[1]) * (2 * window[2] - 1) + offset[2]


def sine_positions(height: int, width: int, channels: int) -> Tensor:
    """Sine/cosine position table of a height x width window, (1, height * width, channels), float32.

    First half of the channels: rows, second half: columns, counted from 1 over (0, 2 pi].
    """
    half = channels // 2
    divisor = 10000.0 ** (2 * (torch.arange(half) // 2) / half)
    tables = []
    for size in (height, width):
        angle = torch.arange(1, size + 1) / (size + 1e-6) * (2 * torch.pi)
        phase = angle[:, None] / divisor
        tables.append(torch.stack((phase[:, 0::2].sin(), phase[:, 1::2].cos()), dim=2).flatten(1))
    rows = tables[0][:, None, :].expand(height, width, half)
    columns = tables[1][None, :, :].expand(height, width, half)
    return torch.cat((rows, columns), dim=2).reshape(1, height * width, channels)
