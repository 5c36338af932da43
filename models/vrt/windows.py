"""Partition of a token volume into (shifted) windows; computed once per size and shared by all
blocks.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import torch
from torch import Tensor

from utils.errors import CheckpointError

# Added to the logits of pairs that must not attend. Not -inf: the published weights were trained
# with this value.
MASKED = -100.0


@dataclass(frozen=True, eq=False)  # compared by identity, so that it can be a key of a cache
class Span:
    """The windows start .. stop - 1, which share one mask: (T, T), added to the logits, or None."""

    start: int
    stop: int
    mask: Tensor | None


@dataclass(frozen=True)
class Chunk:
    """Windows whose tokens are computed together, or any rows.

    rows: the token at each position of each window. padding: True at padding, (rows, 1), or None.
    kept: positions of the rows that are no padding; results: their tokens. spans: of the windows.
    """

    rows: Any  # a Tensor, or a slice of any rows
    results: Any
    padding: Tensor | None = None
    kept: Tensor | None = None
    spans: tuple[Span, ...] = ()

    @property
    def tokens(self) -> int:
        """T of a window."""
        return len(self.rows) // self.spans[-1].stop


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.shape = x.shape
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        (grad,) = grads
        return grad.new_zeros(ctx.shape).index_copy_(0, *ctx.saved_tensors, grad), None


def take(x: Tensor, rows: Tensor | slice | None) -> Tensor:
    """x[rows], each row at most once: its gradient is then a copy, many times faster than
    autograd's index_add.

    None: all rows.
    """
    if rows is None:
        return x
    return x[rows] if isinstance(rows, slice) else _Take.apply(x, rows)


@lru_cache(maxsize=128)
@torch.inference_mode(False)  # a mask is saved for backward
def window_chunks(
    size: tuple[int, int, int],
    window: tuple[int, int, int],
    shift: tuple[int, int, int],
    device: torch.device,
    batch: int = 1,
    most: int = 1 << 40,
) -> tuple[Chunk, ...]:
    """Padding, shift and partition of the tokens of clips of size (D, H, W), at most `most` windows
    in a chunk.

    An axis that is not longer than the window is not shifted. batch: number of clips that count as
    one sample. Windows are sorted by mask pattern (at most 8: last or not along each axis), so that
    each pattern is one span.
    """
    fits = [s <= w for s, w in zip(size, window, strict=True)]
    window = _triple(s if f else w for s, w, f in zip(size, window, fits, strict=True))
    shift = _triple(0 if f else s for s, f in zip(shift, fits, strict=True))
    padded = tuple(-(-s // w) * w for s, w in zip(size, window, strict=True))
    counts = [p // w for p, w in zip(padded, window, strict=True)]
    tokens, pixels = math.prod(window), math.prod(size)

    places = torch.full(padded, -1)  # -1 at padding
    places[: size[0], : size[1], : size[2]] = torch.arange(pixels).view(size)
    places = places.roll([-s for s in shift], (0, 1, 2))
    (nd, nh, nw), (wd, wh, ww) = counts, window
    cells = (
        places.view(nd, wd, nh, wh, nw, ww).permute(0, 2, 4, 1, 3, 5).reshape(nd, nh, nw, tokens)
    )

    # Along each shifted axis only the last window needs a mask.
    cuts = [
        [(0, n)] if s == 0 else [(0, n - 1), (n - 1, n)] for n, s in zip(counts, shift, strict=True)
    ]
    parts, spans, start = [], [], 0
    for cut in product(*cuts):
        part = cells[slice(*cut[0]), slice(*cut[1]), slice(*cut[2])].reshape(-1, tokens)
        part = torch.cat(
            [torch.where(part < 0, part, part + sample * pixels) for sample in range(batch)]
        )
        last = [len(axis) == 2 and piece == axis[1] for axis, piece in zip(cuts, cut, strict=True)]
        moved = _triple(s if at_end else 0 for s, at_end in zip(shift, last, strict=True))
        mask = _mask(window, moved)
        if len(part):
            spans.append(Span(start, start + len(part), None if mask is None else mask.to(device)))
            parts.append(part)
            start += len(part)

    chunks = []
    for first, own in zip(
        range(0, start, most), torch.cat(parts).split(min(most, start)), strict=True
    ):
        within = [
            Span(max(s.start - first, 0), min(s.stop - first, len(own)), s.mask) for s in spans
        ]
        within, rows = tuple(s for s in within if s.start < s.stop), own.flatten()
        if padded == size:
            rows = rows.to(device)
            chunks.append(Chunk(rows, rows, spans=within))
        else:
            kept, real = (rows >= 0).nonzero().flatten(), rows.clamp(min=0).to(device)
            padding, results = (rows < 0)[:, None].to(device), rows[kept].to(device)
            chunks.append(Chunk(real, results, padding, kept.to(device), within))
    return tuple(chunks)


def _triple(sizes: Iterable[int]) -> tuple[int, int, int]:
    frames, height, width = sizes
    return frames, height, width


def _mask(window: tuple[int, int, int], shift: tuple[int, int, int]) -> Tensor | None:
    """(T, T) mask of a window whose last `shift` tokens along each axis were shifted in from the
    other end.
    """
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
    """Return the row of the bias table for each pair of tokens of a window, (T, T), int64.

    The tensor is cached and shared by all networks of the process: do not modify it.
    """
    # Always on the CPU: with the default device "meta", a meta tensor would be cached.
    axes = [torch.arange(s, device="cpu") for s in window]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)
    offset = (
        points[:, :, None]
        - points[:, None, :]
        + torch.tensor(window, device="cpu").view(3, 1, 1)
        - 1
    )
    return (offset[0] * (2 * window[1] - 1) + offset[1]) * (2 * window[2] - 1) + offset[2]


def refuse_other_index(given: Tensor, own: Tensor, key: str, where: str) -> None:
    """Raise CheckpointError if an index under `key` in the weights `where` is not the `own` one.

    It follows from the window. Weights that were trained with another one mean something else.
    """
    if given.shape == own.shape and torch.equal(given.to(own.device), own):
        return
    raise CheckpointError(
        what=f"{key} {tuple(given.shape)} holds other numbers than follow from the window",
        where=where,
        expected=f"the row of the bias table for each pair of tokens, {tuple(own.shape)}",
        do="set netG.window_size as in the training of these weights, or choose other weights",
    )


def sine_positions(height: int, width: int, channels: int) -> Tensor:
    """Sine/cosine position table of a height x width window, (1, height * width, channels),
    float32.

    First half of the channels: rows, second half: columns, counted from 1 over (0, 2 pi].
    """
    half = channels // 2
    # Always on the CPU: on the device "meta", where options are checked, each operation takes torch
    # a millisecond.
    divisor = 10000.0 ** (2 * (torch.arange(half, device="cpu") // 2) / half)
    tables = []
    for size in (height, width):
        angle = torch.arange(1, size + 1, device="cpu") / (size + 1e-6) * (2 * torch.pi)
        phase = angle[:, None] / divisor
        tables.append(torch.stack((phase[:, 0::2].sin(), phase[:, 1::2].cos()), dim=2).flatten(1))
    rows = tables[0][:, None, :].expand(height, width, half)
    columns = tables[1][None, :, :].expand(height, width, half)
    return torch.cat((rows, columns), dim=2).reshape(1, height * width, channels)
