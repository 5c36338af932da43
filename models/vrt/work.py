"""Describe what chunks.InChunks computes chunk by chunk: a `Work`.

A chunk is a few windows of tokens, or a slice of consecutive tokens. A `Work` says what to compute,
for which chunks and with which weights:

    work = Work(hidden, chunks, names)
    y = InChunks.apply(x, work, *weights)           weights in the order of `names`

What must stay: the order of the chunks (`Work.pieces`). The tape (tape.py) relies on this order,
because its results have no names. The last bits of the gradients depend on this order, too.
tests/parts/models/test_block.py notices a wrong gradient, but no change of last bits. Free to
change: how a `Work` keeps its factors.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.vrt.chunk import Chunk
from models.vrt.stochastic_depth import Factors

Weights = dict[str, Any]  # name -> Tensor, or None for a bias that the layer lacks
# Names of the weights that `cast` leaves in float32: the two layer norms of a block, and the bias
# of its attention (`Block.weights`). These weights are added to float32 values, or the operator
# that uses them casts them itself. All other weights are cast to the dtype of the tokens. If a name
# is missing here, the weight is cast and loses bits, without an error.
FLOAT32_WEIGHTS = ("norm1", "norm1_bias", "bias", "norm2", "norm2_bias")


def cast(weights: Weights, dtype: torch.dtype) -> Weights:
    """Return a new dictionary, with all weights but FLOAT32_WEIGHTS in `dtype`.

    A weight that has this dtype already is not copied.
    """
    result: Weights = {}
    for name, weight in weights.items():
        if weight is None or name in FLOAT32_WEIGHTS:
            result[name] = weight
        else:
            result[name] = weight.to(dtype)
    return result


class Piece(NamedTuple):
    """One chunk of one sample."""

    sample: int  # number of the sample in the batch
    chunk: Chunk
    factors: Factors


class Work(NamedTuple):
    """What is computed for each chunk: y + factor * (h fc2^T + fc2_bias).

    `hidden` returns y and h. `hidden` leaves out fc2, the linear layer at the end of a Block and of
    a GatedMlp. The gradients of fc2 follow from h, so backward need not compute fc2 again.

    To run another kind of layer in chunks, give a new `hidden`, with its chunks and names. Backward
    calls `hidden` again and expects the same numbers, so `hidden` must not draw random numbers or
    keep any state.
    """

    # hidden(tokens, chunk, factors, weights, tape) -> (y, h). See tape.Tape for the tape.
    # y: the residual, or None for 0. h: the input of fc2, or None to leave fc2 out.
    hidden: Callable[..., tuple[Tensor | None, Tensor | None]]
    # The chunks of each sample. Together they hold each token once.
    chunks: Sequence[Chunk]
    # The names of the weights, in the order in which InChunks.apply takes them. "fc2" and
    # "fc2_bias" must be among them.
    names: tuple[str, ...]
    # Factors of stochastic depth for the two branches, in one of three forms:
    #   [[attention, MLP], ...]     two numbers per sample (on a CPU)
    #   Tensor (2, tokens, 1)       one column per branch, for all tokens (on a GPU)
    #   None                        every factor is 1
    factors: Tensor | Sequence[Sequence[float]] | None = None
    # Whether `hidden` computes attention by our own operator for CPUs, which needs a tape.
    has_own_attention: bool = False
    # Whether the forward pass keeps the results of this attention for backward. If it is False,
    # backward computes the results again, and a step takes more time and less memory.
    keeps_attention: bool = False

    def pieces(self, samples: int) -> Iterator[Piece]:
        """Yield all chunks of all samples, in the order that forward and backward must share.

        samples: number of samples in the batch.
        """
        for sample in range(samples):
            for chunk in self.chunks:
                yield Piece(sample, chunk, self._factors_of(sample, chunk))

    def _factors_of(self, sample: int, chunk: Chunk) -> Factors:
        """Return the factors of one chunk of one sample."""
        if self.factors is None:
            return Factors()  # both None, which means 1
        if isinstance(self.factors, Tensor):
            # The tokens in the order of the windows: (2, results, 1).
            columns = self.factors.index_select(1, chunk.results)
            return Factors(attention=columns[0], mlp=columns[1])
        attention, mlp = self.factors[sample]
        return Factors(attention, mlp)
