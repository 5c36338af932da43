"""Computes a layer chunk by chunk, to save memory; and the gated MLP.

Under autograd, a block of the transformer keeps every intermediate tensor until backward: 16 to 21
tensors of the size of its input. The autograd function `InChunks` keeps only the input of the
block:

    forward     takes a chunk of tokens through the whole block, then the next chunk
    backward    computes each chunk again with a graph, runs backward through the graph, and frees
                the graph before the next chunk

On a CPU a chunk is so small that its intermediate tensors stay in the cache.

Two layers run this way: `Block` in block.py and `GatedMlp` at the end of this file. Each describes
its computation by a `Work`:

    work = Work(hidden, chunks, names)              what to compute, for which tokens
    y = InChunks.apply(x, work, *weights)           weights in the order of `names`

A `Tape` carries the results of our attention for CPUs from the forward pass to the backward pass.
Computing attention again would take much time, and its output takes little memory. So its output is
kept, and everything else is computed again.

What must stay, and which test notices (in tests/parts/models):

    the result and all gradients of a layer             test_block.py compares with the plain form
    what is in memory at a time                         test_fake_gpu.py counts all tensors
    the size and the order of the chunks, and the
    order of the sums in backward                       none: with another order, the last bits of a
                                                        training change, so existing runs would not
                                                        resume exactly

Free to change: how `backward` is written, as long as the order of its sums stays.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from models.vrt.forms import has_kernels, in_cpu_form
from models.vrt.layers import Seed, compute_dtype, recompute_in_backward
from models.vrt.windows import Chunk, take

Kernels = Literal["auto", "plain"]
Weights = dict[str, Any]  # name -> Tensor, or None for a bias that the layer lacks

# Tokens of a chunk on a CPU. The widest intermediate tensor of a chunk should fit the last-level
# cache: e.g. 2048 tokens x 360 channels x 4 bytes are 3 MB. With more tokens it would leave the
# cache, with fewer tokens there would be more calls. Another number also changes the last bits of a
# training.
CPU_TOKENS = 2048
# Tokens of a chunk on a GPU without our kernels, 131,072. With our kernels, `gpu_tokens` returns
# four times as many. Fewer tokens would not keep the GPU busy. More tokens would need more memory:
# e.g. 131,072 tokens x 360 channels x 2 bytes are 94 MB for each intermediate tensor of a chunk.
GPU_TOKENS = 1 << 17
# Names of weights that keep float32, whatever the dtype of the tokens is: the weights of the two
# layer norms of a block, and the bias of its attention. They are added to float32 values, or the
# operator that uses them casts them itself. `Block.weights` gives the names. A name that is missing
# here is cast, without an error.
FLOAT32 = ("norm1", "norm1_bias", "bias", "norm2", "norm2_bias")


def runs_in_chunks(kernels: str) -> bool:
    """Say whether a layer runs chunk by chunk, and not as a whole under autograd.

    kernels: the option netG.kernels. torch.compile traces the plain form, whatever the option is.
    """
    return kernels != "plain" and not torch.compiler.is_compiling()


def gpu_tokens(x: Tensor) -> int:
    """Return the number of tokens of a chunk on a GPU.

    With our kernels a chunk is four times as large, because the kernels need no memory per window,
    and fewer chunks need fewer kernel launches. A step of eight clips on an H200 took 3.4 s with
    the smaller chunks and 2.4 s with the larger chunks.
    """
    if has_kernels(x):
        return 4 * GPU_TOKENS
    return GPU_TOKENS


def cast(weights: Weights, dtype: torch.dtype) -> Weights:
    """Return a new table, with the weights of linear layers in `dtype`.

    The weights named in FLOAT32 stay as they are. A weight that has the dtype already is not
    copied: the new table then has the same tensor.
    """
    result: Weights = {}
    for name, weight in weights.items():
        if weight is None or name in FLOAT32:
            result[name] = weight
        else:
            result[name] = weight.to(dtype)
    return result


@dataclass
class Tape:
    """Results of our attention for CPUs, from the forward pass to the backward pass.

    attention.CpuAttention writes and reads the tape. The results have no names: they are found by
    their order. So the backward pass must visit the chunks in the order of the forward pass.
    """

    # Whether each call of the attention appends its results to `recorded`.
    is_recording: bool
    # Output and log-sum-exp of each call, in the order of the calls: out, sums, out, sums, ...
    recorded: list[Tensor] = field(default_factory=list)
    # In the backward pass: the recorded results, which are read and not computed again. None: the
    # results are computed again.
    playback: Iterator[Tensor] | None = None
    # The sum of bias and mask that is added to the logits, for each mask. Windows with the same
    # mask share one tensor. The keys are made in attention.py.
    offsets: dict[Any, Tensor | None] = field(default_factory=dict)


# Factors of the outputs of the two residual branches of a block, (attention, MLP), for stochastic
# depth. A factor is a number for all tokens, a column (tokens, 1), or None for 1.
Factors = tuple[Any, Any]


class Piece(NamedTuple):
    """One chunk of one sample."""

    sample: int  # number of the sample in the batch
    chunk: Chunk
    factors: Factors


class Work(NamedTuple):
    """What is computed for each chunk: y + factor * (h fc2^T + fc2_bias).

    `hidden` returns y and h. Both kinds of layers end with a linear layer, named fc2. It is not in
    `hidden`, because its gradients follow from h alone. So backward does not compute fc2 again.

    To run another kind of layer in chunks, give a new `hidden`, and the chunks and names that fit
    it. `hidden` must compute the same numbers each time that it is called, because backward calls
    it again. So it may draw no random numbers and may keep no state.
    """

    # hidden(tokens, chunk, factors, weights, tape) -> (y, h).
    # y: the residual, or None for 0. h: the input of the last layer, or None to leave it out.
    hidden: Callable[..., tuple[Tensor | None, Tensor | None]]
    # The chunks of each sample. Together they hold each token once.
    chunks: Sequence[Chunk]
    # The names of the weights, in the order in which InChunks.apply takes them. "fc2" and
    # "fc2_bias" must be among them.
    names: tuple[str, ...]
    # Factors of the two branches in stochastic depth, one of:
    #   [(attention, MLP), ...]     numbers, one pair per sample (on a CPU)
    #   Tensor (2, tokens, 1)       one column per branch, for all tokens (on a GPU)
    #   None                        every factor is 1
    factors: Tensor | Sequence[tuple[float, float]] | None = None
    # Whether `hidden` computes attention by our own operator for CPUs. It then takes a tape.
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
        """Return the factors of one chunk of one sample, (attention, MLP)."""
        if self.factors is None:
            return None, None
        if isinstance(self.factors, Tensor):
            # The tokens in the order of the windows: (2, results, 1).
            columns = self.factors.index_select(1, chunk.results)
            return columns[0], columns[1]
        attention, mlp = self.factors[sample]
        return attention, mlp


# ---- Forward and backward --------------------------------------------------------------------


class InChunks(torch.autograd.Function):
    """Computes `work` on x (samples, tokens, C). Forward returns (samples, tokens, outputs of fc2).

    Call `InChunks.apply(x, work, *weights)` without autocast. The weights have the order of
    work.names. Each weight is an argument, because autograd finds no tensors within other objects.

    What must stay:

        Forward and backward go through the chunks in the order of work.pieces. The tape is read in
        the order in which it was written, and the last bits of the gradients depend on the order.

        No tensor with a graph outlives its round of the loop in backward. Otherwise the graph of
        its chunk stays in memory. test_fake_gpu.py measures the memory.

    One chunk in forward, and in backward (from right to left):

        x  --take-->  tokens  --hidden-->  y, h  --last layer-->  out
        grad_x  <--put--  grad_tokens  <--autograd--  gradients of y, h  <--by hand--  grad
    """

    @staticmethod
    def forward(ctx, x: Tensor, work: Work, *weights: Tensor | None) -> Tensor:
        # By name, without a graph: autograd must not record what this function does.
        w: Weights = {}
        for name, weight in zip(work.names, weights, strict=True):
            w[name] = None if weight is None else weight.detach()
        w = cast(w, x.dtype)

        has_backward = ctx.needs_input_grad[0]  # whether x needs a gradient
        tape = _tape_of_forward(work, x.dtype, has_backward)

        samples, tokens, _ = x.shape
        output_channels = len(w["fc2"])
        out = x.new_empty(samples, tokens, output_channels)
        for sample, chunk, factors in work.pieces(samples):
            _, mlp_factor = factors
            # The taken tokens have no name here, so that they are freed before the last layer.
            y, h = work.hidden(take(x[sample], chunk.rows), chunk, factors, w, tape)
            # h is None if stochastic depth has dropped the MLP. y is None if a layer has no
            # residual.
            if h is not None:
                branch = scale_branch(F.linear(h, w["fc2"], w["fc2_bias"]), mlp_factor)
                # In place, because nobody else needs the branch.
                y = branch if y is None else branch.add_(y)
            _put(out[sample], chunk.results, y)

        recorded = [] if tape is None else tape.recorded
        ctx.save_for_backward(x, *weights, *recorded)
        ctx.work = work
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        """Return the gradients of x and of the weights.

        grad: the gradient of the result, (samples, tokens, outputs of fc2).
        """
        # The saved tensors are x, then the weights, then what the tape has recorded.
        work = ctx.work
        saved = ctx.saved_tensors
        x = saved[0]
        end_of_weights = 1 + len(work.names)
        weights = dict(zip(work.names, saved[1:end_of_weights], strict=True))
        tape = _tape_of_backward(work, recorded=saved[end_of_weights:])
        # The gradient of a weight is the sum over all chunks.
        # The arguments of forward before the weights are x and work.
        needs_gradient = ctx.needs_input_grad[2:]
        sums = _zeros_for_gradients(weights, needs_gradient)

        # The gradients of fc2 and its bias are computed in step 2 below, without a graph. All other
        # gradients come from autograd. For this the weights become leaves of the graph of each
        # chunk, i.e. tensors for which autograd can be asked.
        with_graph = [name for name in sums if name not in ("fc2", "fc2_bias")]
        w = _as_leaves(weights, with_graph, x.dtype)

        grad_x = torch.empty_like(x)
        for sample, chunk, factors in work.pieces(len(x)):
            _, mlp_factor = factors
            # 1. Compute the chunk again, this time with a graph.
            tokens = take(x[sample], chunk.rows).detach().requires_grad_()
            with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
                y, h = work.hidden(tokens, chunk, factors, w, tape)

            # 2. Compute the gradients of fc2, of y and of h by hand. This adds to `sums`.
            grad_y = take(grad[sample], chunk.results)
            outputs, gradients = _gradients_of_last_layer(y, h, grad_y, mlp_factor, w, sums)

            # 3. Run backward through the graph of this chunk, to its tokens and to the weights. It
            # starts at two outputs, y and h, with their gradients. torch.autograd.grad(outputs,
            # inputs, gradients) could do this. But if gradients are given, it imports sympy, which
            # takes a quarter of a second in each process. So `Seed` (layers.py) makes one scalar of
            # the outputs: the backward pass of the scalar gives each output its gradient.
            inputs = [tokens] + [w[name] for name in with_graph]
            with torch.enable_grad():
                seed: Any = Seed.apply(*outputs, *gradients)
            grad_tokens, *grads_of_weights = torch.autograd.grad(seed, inputs, allow_unused=True)
            for name, grad_weight in zip(with_graph, grads_of_weights, strict=True):
                # None: stochastic depth has dropped the branch of this weight.
                if grad_weight is not None:
                    sums[name] += grad_weight
            # A chunk may have tokens of padding. Their gradients belong to no token of x.
            # `chunk.kept` leaves them out.
            _put(grad_x[sample], chunk.results, take(grad_tokens, chunk.kept))

        # One result for each argument of forward: x, work, then the weights.
        grad_weights = [sums.get(name) for name in work.names]
        return (grad_x, None, *grad_weights)


def _tape_of_forward(work: Work, dtype: torch.dtype, has_backward: bool) -> Tape | None:
    """Return the tape that `hidden` gets in forward, or None if it uses torch's attention.

    Our attention for CPUs is used if there is a backward pass, for which the tape keeps its
    results. Without a backward pass, ours is used in bfloat16 alone: there it is faster than
    torch's attention, and in other dtypes it is not.

    dtype: of the tokens. has_backward: whether a backward pass may follow.
    """
    if not work.has_own_attention:
        return None
    if not has_backward and dtype is not torch.bfloat16:
        return None
    return Tape(is_recording=work.keeps_attention and has_backward)


def _tape_of_backward(work: Work, recorded: tuple[Tensor, ...]) -> Tape | None:
    """Return the tape that `hidden` gets in backward, or None if it uses torch's attention.

    recorded: what the tape of the forward pass has recorded. If it is empty, our attention for CPUs
    computes its results again.
    """
    if not work.has_own_attention:
        return None
    playback = iter(recorded) if recorded else None
    return Tape(is_recording=False, playback=playback)


def _zeros_for_gradients(weights: Weights, needs_gradient: Sequence[bool]) -> dict[str, Tensor]:
    """Return zeros to sum the gradients of weights in, for each weight that needs a gradient.

    A frozen weight needs no gradient. The sums have the dtype of the weights, usually float32, even
    if the tokens have bfloat16. In bfloat16 a sum over many chunks would lose its small terms.

    needs_gradient: whether each weight needs a gradient, in the order of `weights`.
    """
    sums: dict[str, Tensor] = {}
    for (name, weight), is_needed in zip(weights.items(), needs_gradient, strict=True):
        if is_needed:
            sums[name] = torch.zeros_like(weight)
    return sums


def _as_leaves(weights: Weights, with_graph: Sequence[str], dtype: torch.dtype) -> Weights:
    """Return the weights in `dtype`, cut off from the graph of the network.

    with_graph: names of the weights for which autograd can be asked for gradients. With the graph
    of the network, the backward pass of a chunk would run on into the layers before the block.
    """
    leaves: Weights = {}
    for name, weight in cast(weights, dtype).items():
        leaves[name] = None if weight is None else weight.detach()
    for name in with_graph:
        leaves[name].requires_grad_()
    return leaves


def _gradients_of_last_layer(
    y: Tensor | None,
    h: Tensor | None,
    grad_y: Tensor,
    factor: float | Tensor | None,
    w: Weights,
    sums: dict[str, Tensor],
) -> tuple[list[Tensor], list[Tensor]]:
    """Run backward through the last layer of a chunk, y + factor * (h fc2^T + fc2_bias).

    With the gradient G of the result:

        gradient of y          G
        gradient of fc2        (factor G)^T h
        gradient of fc2_bias   the sum of factor G over the tokens
        gradient of h          (factor G) fc2

    grad_y: G, (results, C). factor: factor of the MLP branch. w: the weights by name.
    sums: gradients of the weights so far. The gradients of fc2 and fc2_bias are added in place, if
        `sums` has these names.

    Returns the list of y and h without None, and the list of their gradients.
    """
    outputs: list[Tensor] = []
    gradients: list[Tensor] = []
    if y is not None:
        outputs.append(y)
        gradients.append(grad_y)
    if h is not None:
        grad_branch = scale_branch(grad_y, factor)
        if "fc2" in sums:
            sums["fc2"] += grad_branch.t() @ h.detach()
        if "fc2_bias" in sums:
            sums["fc2_bias"] += grad_branch.sum(0)
        outputs.append(h)
        gradients.append(grad_branch @ w["fc2"])
    return outputs, gradients


def scale_branch(x: Tensor, factor: float | Tensor | None) -> Tensor:
    """Return x times a factor, in the dtype of x.

    factor: a number, a column of float32, or None for 1. The product is computed in float32.
    """
    if factor is None:
        return x
    return (x * factor).to(x.dtype)


def _put(out: Tensor, rows: slice | Tensor, values: Any) -> None:
    """Write values (n, C) to the n `rows` of out, in place."""
    if isinstance(rows, slice):
        out[rows] = values
    else:
        out.index_copy_(0, rows, values)


# ---- The gated MLP ---------------------------------------------------------------------------


def geglu(u: Tensor, w: Weights, is_plain: bool = True) -> Tensor:
    """Return the hidden layer gelu(fc11(u)) * fc12(u): (tokens, C) -> (tokens, hidden).

    w: the weights "fc11", "fc11_bias", "fc12" and "fc12_bias".
    is_plain: whether torch's operators are used on every device. The plain form must use them,
        because torch.compile cannot trace our kernels.
    """
    if not is_plain and has_kernels(u):
        # Imported here, because Triton is not installed everywhere.
        from models.vrt import triton_rows

        return triton_rows.geglu(u, w["fc11"], w["fc11_bias"], w["fc12"], w["fc12_bias"])
    gate = F.gelu(F.linear(u, w["fc11"], w["fc11_bias"]))
    value = F.linear(u, w["fc12"], w["fc12_bias"])
    if gate.requires_grad:
        return gate * value
    return gate.mul_(value)  # in place: without a graph nobody needs `gate`


class GatedMlp(nn.Module):
    """The gated MLP: fc2(gelu(fc11(x)) * fc12(x)) over the last axis.

    It is the GEGLU of Shazeer (2020). The GELU is the exact one with erf, not the approximation
    with tanh. The names fc11, fc12 and fc2 are part of the released weights, so they must stay.

    inputs, hidden, outputs: numbers of channels.
    checkpoint: whether backward computes the hidden layer again, from the input alone. If the layer
    runs in chunks, backward always computes it again.
    kernels: "auto" computes chunk by chunk, "plain" computes all tokens at once.
    """

    # models/vrt/fit_memory.py sets this flag to fit the network to the memory.
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
        if not runs_in_chunks(self.kernels):
            # As a whole under autograd.
            return recompute_in_backward(
                lambda u: self.fc2(geglu(u, w)), x, weights=w.values(), when=self.checkpoint
            )

        # The MLP computes each token alone, so a chunk is any slice of consecutive tokens.
        rows = x.to(compute_dtype(x)).flatten(0, -2)  # (tokens, inputs)
        most_tokens = CPU_TOKENS if in_cpu_form(x) else gpu_tokens(rows)
        chunks = []
        for first in range(0, len(rows), most_tokens):
            tokens = slice(first, first + most_tokens)
            chunks.append(Chunk(rows=tokens, results=tokens))
        work = Work(_hidden_of_mlp, chunks, names=tuple(w))
        as_one_sample = rows[None]  # (1, tokens, inputs)
        # No autocast, because `rows` already has the dtype of autocast.
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
    """Compute the MLP without its last linear layer: `hidden` of Work. It has no residual sum."""
    return None, geglu(tokens, w, is_plain=False)
