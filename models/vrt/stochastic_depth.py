"""Stochastic depth: in training, drops a branch of a block for some samples of a batch.

A block has two branches, attention and MLP. Each branch of each sample is dropped with a given
probability. A dropped branch has the factor 0. A kept branch has the factor 1 / (1 - probability),
so that the mean over many steps does not change. E.g. probability 0.2: factors 0 and 1.25.

    draw_drop      draws the factors of a step
    Drop           the factors of a step. All tokens of a sample have the same factor. A GPU reads a
                   factor for each token. A CPU reads a number for each sample
    Factors        the factors of both branches, for a chunk: some windows of the feature maps that
                   are computed together (chunk.py)
    is_dropped     whether a branch is skipped
    scale_branch   multiplies a branch by its factor

What must stay: which numbers are drawn, and their order, attention before MLP. With another order
a seed would give another training. A block has several forms: plain, in chunks on a GPU, and in
chunks on a CPU (block.py). All forms draw the same numbers, and tests/parts/models/test_block.py
compares the forms. Free to change: how factors are kept.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Factors(NamedTuple):
    """Factors of the outputs of the two branches.

    Each factor has one of three forms:

        a number                the factor of all tokens, from `Drop.numbers`
        a tensor (tokens, 1)    the factor of each token, from `Drop.columns`
        None                    1 for all tokens
    """

    attention: Any = None
    mlp: Any = None


def draw_drop(x: Tensor, probability: float) -> "Drop":
    """Draw which branches of a block to drop, for each sample of x (B, ...).

    The draws come from torch's default generator, which ModelVRT seeds from (manual_seed, step,
    rank) before each step. A generator of our own would not be enough, because layers of torch draw
    from the default generator, too, e.g. nn.Dropout in a network that a user adds.
    """
    # Take at least float32, because 1 / (1 - probability) in bfloat16 would be wrong by 0.2 %.
    dtype = torch.promote_types(x.dtype, torch.float32)
    keep_probability = 1.0 - probability
    factors = []
    for _ in ("attention", "mlp"):
        ones = torch.ones(len(x), 1, device=x.device, dtype=dtype)
        is_kept = ones.bernoulli_(keep_probability)  # overwrites the ones by 0 or 1
        factors.append(is_kept / keep_probability)
    return Drop(torch.stack(factors))  # (2, B, 1)


class Drop:
    """The factors of both branches in one step, for each sample.

    factors: (2, B, 1), attention first.
    """

    def __init__(self, factors: Tensor) -> None:
        self.factors = factors

    def columns(self, tokens: int) -> Tensor:
        """Return one factor per token, (2, B * tokens, 1), for a GPU.

        The tokens of a sample follow one another. E.g. 2 samples of 3 tokens, with the factors a
        and b of a branch, have a a a b b b. The factors stay on the GPU, because reading them would
        make the CPU wait for the GPU.

        tokens: number of tokens per sample.
        """
        return self.factors.repeat_interleave(tokens, dim=1)

    def numbers(self) -> list[list[float]]:
        """Return the factors [attention, MLP] of each sample as Python numbers, for a CPU.

        On a CPU reading costs nothing. A branch with the factor 0 is then skipped.
        """
        by_sample = self.factors.squeeze(2).t()  # (2, B, 1) -> (B, 2)
        return by_sample.tolist()


def is_dropped(factor: Any) -> bool:
    """Say whether a branch is skipped, because its factor is the number 0.

    A branch whose factor is a tensor is never skipped, because reading the tensor would make the
    CPU wait for the GPU.
    """
    return isinstance(factor, float) and factor == 0.0


def scale_branch(x: Tensor, factor: float | Tensor | None) -> Tensor:
    """Return x times a factor, in the dtype of x.

    factor: a number, a column of float32, or None for 1. The product is computed in float32.
    """
    if factor is None:
        return x
    return (x * factor).to(x.dtype)
