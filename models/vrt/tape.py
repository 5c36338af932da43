"""The tape: results of our attention for CPUs, from the forward pass to the backward pass.

A layer that runs chunk by chunk (chunks.py) keeps only its input, and computes each chunk again in
backward. The attention is an exception, because it takes much time and its output takes little
memory. So forward records the output on a tape, and backward plays it back.

What must stay: the backward pass visits the chunks in the order of the forward pass. The results
have no names, so only their order says to which chunk they belong.
tests/parts/models/test_block.py compares the gradients with the plain form. Free to change: when
the tape records.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Tape:
    """Results of the attention in one layer. attention/cpu.py writes and reads them."""

    # Whether each call of the attention appends its results to `recorded`.
    is_recording: bool
    # Output and log-sum-exp of each call, in the order of the calls: out, sums, out, sums, ...
    recorded: list[Tensor] = field(default_factory=list)
    # In the backward pass: an iterator over the recorded results. None if nothing was recorded.
    # Without recorded results, the attention is computed again.
    playback: Iterator[Tensor] | None = None
    # Key of a mask -> sum of bias and mask. The attention adds this sum to its logits. Windows with
    # the same mask share one tensor. A key is (whether there is no bias, address of the mask in
    # memory), e.g. (False, 140234). attention/cpu.py makes the keys.
    offsets: dict[Any, Tensor | None] = field(default_factory=dict)


def tape_of_forward(
    has_own_attention: bool, keeps_results: bool, dtype: torch.dtype, needs_grad_of_x: bool
) -> Tape | None:
    """Return the tape for a forward pass, or None if torch's attention is used.

    The attention of a layer with has_own_attention:

        x needs a gradient                        our attention, because it can keep its results
        x needs no gradient, bfloat16             our attention, because it is faster
        x needs no gradient, another dtype        torch's attention, because ours is not faster

    has_own_attention: whether the layer can use our attention for CPUs (`Work` in work.py).
    keeps_results: whether the results are kept for backward, and not computed again.
    dtype: the dtype of the tokens.
    needs_grad_of_x: whether the input of the layer needs a gradient. If only weights need
        gradients, this is False, although a backward pass follows.
    """
    if not has_own_attention:
        return None
    if not needs_grad_of_x and dtype is not torch.bfloat16:
        return None
    return Tape(is_recording=keeps_results and needs_grad_of_x)


def tape_of_backward(has_own_attention: bool, recorded: Sequence[Tensor]) -> Tape | None:
    """Return the tape for a backward pass, or None if torch's attention is used.

    has_own_attention: as in `tape_of_forward`.
    recorded: what the tape of the forward pass has recorded. If it is empty, our attention for CPUs
        computes its results again.
    """
    if not has_own_attention:
        return None
    playback = iter(recorded) if recorded else None
    return Tape(is_recording=False, playback=playback)
