"""The gated MLP: fc2(gelu(fc11(x)) * fc12(x)) over the last axis.

The MLP is the GEGLU of Shazeer (2020). The GELU is the exact function with erf, not the
approximation with tanh. There are two users:

    Block       calls `geglu` for each of its chunks
    Stage       joins the aligned neighbours by a `GatedMlp`, its last layer. This layer is computed
                in chunks of tokens (chunks.InChunks), or as a whole under autograd

What must stay, and which test notices (in tests/parts/models):

    the names fc11, fc12, fc2, which are in
    the released weights                        test_vrt_modules.py
    the results and gradients, computed in
    chunks or as a whole                        test_block.py, test_triton.py

The size of the chunks must stay, too. The gradients of the weights are summed chunk by chunk, so
another size changes the last bits of these gradients. No test notices this.

Free to change: how `geglu` computes, as long as its results stay.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.vrt.chunk import Chunk
from models.vrt.chunk_sizes import most_tokens
from models.vrt.chunks import InChunks
from models.vrt.forms import has_kernels, runs_in_chunks
from models.vrt.layers import compute_dtype
from models.vrt.recompute import recompute_in_backward
from models.vrt.stochastic_depth import Factors
from models.vrt.tape import Tape
from models.vrt.work import Weights, Work


def geglu(u: Tensor, w: Weights, is_plain: bool = True) -> Tensor:
    """Return the hidden layer gelu(fc11(u)) * fc12(u): (tokens, C) -> (tokens, hidden).

    w: the weights "fc11", "fc11_bias", "fc12" and "fc12_bias".
    is_plain: True uses only torch's operators. torch.compile needs this, because it cannot trace
        our kernels. False uses our kernel on a device that has kernels.
    """
    if not is_plain and has_kernels(u):
        # Imported here, because Triton is not installed everywhere.
        from models.vrt.row_kernels import geglu as kernel

        return kernel.geglu(u, w["fc11"], w["fc11_bias"], w["fc12"], w["fc12_bias"])
    gate = F.gelu(F.linear(u, w["fc11"], w["fc11_bias"]))
    value = F.linear(u, w["fc12"], w["fc12_bias"])
    if gate.requires_grad:
        return gate * value
    return gate.mul_(value)  # in place, because without a graph nobody needs `gate` afterwards


class GatedMlp(nn.Module):
    """The gated MLP: fc2(gelu(fc11(x)) * fc12(x)) over the last axis.

    inputs, hidden, outputs: numbers of channels.
    checkpoint: whether backward computes the hidden layer again, so that only the input is saved.
        If the layer runs in chunks, backward always computes the hidden layer again.
    kernels: "auto" computes chunk by chunk, "plain" computes all tokens at once.
    """

    # models/vrt/memory/fit_memory.py sets this flag to fit the network to the memory.
    # `_flops_of_mlp` (models/vrt/memory/branches.py) returns one number for each flag.
    FLAGS = ("checkpoint",)

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        checkpoint: bool = False,
        kernels: str = "auto",
    ) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.kernels = kernels
        self.fc11 = nn.Linear(inputs, hidden)
        self.fc12 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the MLP: (..., inputs) -> (..., outputs)."""
        w = self.weights()
        if runs_in_chunks(self.kernels):
            return self._in_chunks(x, w)

        # Compute all tokens at once, with gradients by autograd. The function is a lambda, because
        # torch 2.8's compiler stops at the annotations of an inner function.
        return recompute_in_backward(
            lambda u: self.fc2(geglu(u, w)), x, weights=w.values(), when=self.checkpoint
        )

    def _in_chunks(self, x: Tensor, w: Weights) -> Tensor:
        """Compute the MLP chunk by chunk: (..., inputs) -> (..., outputs). w: the weights by name.

        The MLP computes each token separately, so a chunk can be any slice of consecutive tokens.
        It reads the tokens `rows` and writes the tokens `results`, which are the same slice here.
        """
        tokens = x.to(compute_dtype(x)).flatten(0, -2)  # (tokens, inputs)
        tokens_at_a_time = most_tokens(tokens)
        chunks = []
        for first in range(0, len(tokens), tokens_at_a_time):
            in_chunk = slice(first, first + tokens_at_a_time)
            chunks.append(Chunk(rows=in_chunk, results=in_chunk))
        work = Work(_hidden_of_mlp, chunks, names=tuple(w))
        # `InChunks` takes (samples, tokens, channels). The chunks count through the tokens of all
        # samples, so pass all tokens as one sample.
        as_one_sample = tokens[None]  # (1, tokens, inputs)
        # No autocast, because `tokens` already has the dtype of autocast.
        with torch.autocast(x.device.type, enabled=False):
            y = InChunks.apply(as_one_sample, work, *w.values())
        return y.view(*x.shape[:-1], -1)

    def weights(self) -> Weights:
        """Return the weights by the names that `geglu` and `InChunks` use."""
        return {
            "fc11": self.fc11.weight,
            "fc11_bias": self.fc11.bias,
            "fc12": self.fc12.weight,
            "fc12_bias": self.fc12.bias,
            "fc2": self.fc2.weight,
            "fc2_bias": self.fc2.bias,
        }


def _hidden_of_mlp(
    tokens: Tensor, chunk: Chunk, factors: Factors, w: Weights, tape: Tape | None
) -> tuple[None, Tensor]:
    """Return (None, hidden layer). This is the function `hidden` of the `Work` of a GatedMlp.

    `InChunks` calls this function for each chunk, and then computes the last linear layer, fc2.
    None is the residual, which a GatedMlp does not have. Every `hidden` gets the arguments chunk,
    factors and tape (work.py). A GatedMlp does not use these three arguments.
    """
    return None, geglu(tokens, w, is_plain=False)
