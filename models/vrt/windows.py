"""How a token volume is cut into (shifted) windows: computed once per size, shared by all blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

# Added to the logits of pairs that must not attend. Not -inf: a checkpoint was trained with this leak.
MASKED = -100.0


@dataclass(frozen=True)
class Span:
    """Windows start .. stop - 1 share one mask: (T, T) to add to the logits, or None."""

    start: int
    stop: int
    mask: Tensor | None


class _Permute(torch.autograd.Function):
    """Rows of x in the order `index`; the gradient is a gather as well, for an index_add is many times slower."""

    @staticmethod
    def forward(ctx, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(index, inverse)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx, grad: Tensor):
        index, inverse = ctx.saved_tensors
        return _Permute.apply(grad, inverse, index), None, None


@dataclass(frozen=True)
class WindowPlan:
    """Padding, shift and partition of (B, D, H, W, C) tokens as one permutation.

    Windows are ordered by mask pattern (at most 8 of them: last or not along each axis), so that each
    pattern covers one span. Their order means nothing elsewhere: `merge` undoes it.
    """

    size: tuple[int, int, int, int]
    padded: tuple[int, int, int]
    window: tuple[int, int, int]
    index: Tensor
    inverse: Tensor
    spans: tuple[Span, ...]

    def partition(self, x: Tensor) -> Tensor:
        """(B, D, H, W, C) -> (windows, T, C). Padding is zeros, which take part in attention."""
        c = x.shape[-1]
        if self.padded != self.size[1:]:
            d, h, w = (p - s for p, s in zip(self.padded, self.size[1:], strict=True))
            x = F.pad(x, (0, 0, 0, w, 0, h, 0, d))
        wd, wh, ww = self.window
        return _Permute.apply(x.reshape(-1, c), self.index, self.inverse).view(-1, wd * wh * ww, c)

    def merge(self, x: Tensor) -> Tensor:
        """(windows, T, C) -> (B, D, H, W, C)."""
        b, d, h, w = self.size
        x = _Permute.apply(x.reshape(-1, x.shape[-1]), self.inverse, self.index)
        x = x.view(b, *self.padded, -1)
        return x if self.padded == (d, h, w) else x[:, :d, :h, :w]


@lru_cache(maxsize=128)
def window_plan(
    size: tuple[int, int, int, int], window: tuple[int, int, int], shift: tuple[int, int, int], device: torch.device
) -> WindowPlan:
    """The plan for tokens of size (B, D, H, W). An axis not longer than its window is not shifted."""
    fits = [s <= w for s, w in zip(size[1:], window, strict=True)]
    window = tuple(s if f else w for s, w, f in zip(size[1:], window, fits, strict=True))
    shift = tuple(0 if f else s for s, f in zip(shift, fits, strict=True))
    padded = tuple(-(-s // w) * w for s, w in zip(size[1:], window, strict=True))
    counts = [p // w for p, w in zip(padded, window, strict=True)]
    tokens = window[0] * window[1] * window[2]

    rows = torch.arange(size[0] * padded[0] * padded[1] * padded[2]).view(size[0], *padded)
    rows = rows.roll([-s for s in shift], (1, 2, 3))
    (nd, nh, nw), (wd, wh, ww) = counts, window
    rows = rows.view(-1, nd, wd, nh, wh, nw, ww).permute(0, 1, 3, 5, 2, 4, 6).reshape(size[0], nd, nh, nw, tokens)

    # Along each shifted axis the windows but the last share one pattern (no mask), the last has another.
    cuts = [[(0, n)] if s == 0 else [(0, n - 1), (n - 1, n)] for n, s in zip(counts, shift, strict=True)]
    index, spans, start = [], [], 0
    for cut in product(*cuts):
        part = rows[:, slice(*cut[0]), slice(*cut[1]), slice(*cut[2])].reshape(-1, tokens)
        if not len(part):
            continue
        last = [len(axis) == 2 and piece == axis[1] for axis, piece in zip(cuts, cut, strict=True)]
        mask = _mask(window, tuple(s if at_end else 0 for s, at_end in zip(shift, last, strict=True)))
        spans.append(Span(start, start + len(part), None if mask is None else mask.to(device)))
        start += len(part)
        index.append(part.flatten())
    flat = torch.cat(index)
    inverse = torch.empty_like(flat)
    inverse[flat] = torch.arange(len(flat))
    return WindowPlan(size, padded, window, flat.to(device), inverse.to(device), tuple(spans))


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
    # On the CPU whatever the default device: a network built on "meta" must not leave its ghost in the cache.
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
