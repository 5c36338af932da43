"""What is computed chunk by chunk: a `Work`, for chunks.InChunks.

A chunk is a few windows of tokens, or a slice of consecutive tokens. A Work says what to compute,
for which chunks, with which weights:

    work = Work(hidden, chunks, names)              what to compute, for which tokens
    y = InChunks.apply(x, work, *weights)           weights in the order of `names`

What must stay: the order of the chunks (`Work.pieces`). Results on the tape (tape.py) have no names
and are found by this order, and the last bits of the gradients depend on it.
tests/parts/models/test_block.py notices a wrong gradient, but no change of last bits. Free to
change: how a Work keeps its factors.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.vrt.chunk import Chunk
from models.vrt.stochastic_depth import Factors

Weights = dict[str, Any]  # name -> Tensor, or None for a bias that the layer lacks
# Names (`Block.weights`) of the weights that `cast` leaves in float32: the weights of the two layer
# norms of a block, and the bias of its attention. They are added to float32 values, or the operator
# that uses them casts them itself. A weight whose name is missing here is cast to the dtype of the
# tokens, without an error.
FLOAT32 = ("norm1", "norm1_bias", "bias", "norm2", "norm2_bias")


def cast(weights: Weights, dtype: torch.dtype) -> Weights:
    """Return a new table, with the weights of linear layers in `dtype`.

    The weights named in FLOAT32 stay as they are. A weight that has the dtype already is not
    copied.
    """
    result: Weights = {}
    for name, weight in weights.items():
        if weight is None or name in FLOAT32:
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

    `hidden` returns y and h. A Block and a GatedMlp both end with a linear layer, fc2. The
    gradients of fc2 follow from h, so backward need not compute fc2 again. For this reason fc2 is
    not in `hidden`.

    To run another kind of layer in chunks, give a new `hidden`, with its chunks and names. Backward
    calls `hidden` again, and it must compute the same numbers. So it may draw no random numbers and
    may keep no state.
    """

    # hidden(tokens, chunk, factors, weights, tape) -> (y, h). See tape.Tape for the tape.
    # y: the residual, or None for 0. h: the input of the last layer, or None to leave it out.
    hidden: Callable[..., tuple[Tensor | None, Tensor | None]]
    # The chunks of each sample. Together they hold each token once.
    chunks: Sequence[Chunk]
    # The names of the weights, in the order in which InChunks.apply takes them. "fc2" and
    # "fc2_bias" must be among them.
    names: tuple[str, ...]
    # Factors of the two branches in stochastic depth, one of:
    #   [[attention, MLP], ...]     two numbers per sample (on a CPU)
    #   Tensor (2, tokens, 1)       one column per branch, for all tokens (on a GPU)
    #   None                        every factor is 1
    factors: Tensor | Sequence[Sequence[float]] | None = None
    # Whether `hidden` computes attention by our own operator for CPUs, which needs a tape.
    has_own_attention: bool = False
    # Whether the forward pass keeps the results of this attention for backward. Otherwise backward
    # computes them again, which takes more time and less memory.
    keeps_attention: bool = False

    def pieces(self, samples: int) -> Iterator[Piece]:
        """Yield all chunks of all samples. Forward and backward must use this same order.

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
