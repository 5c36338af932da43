"""Compute a layer chunk by chunk, so that a training step needs less memory.

Under autograd, a block of the transformer keeps every intermediate tensor until backward: 16 to 21
tensors of the size of its input. The autograd function `InChunks` keeps only the input of the
block:

    forward     takes a chunk of tokens through the whole block, then the next chunk
    backward    computes each chunk again with a graph, runs backward through the graph, and frees
                the graph before the next chunk

On a CPU a chunk is so small that its intermediate tensors stay in the cache. Two layers run this
way: block.Block and gated_mlp.GatedMlp. Each describes its computation by a `Work`.

A tape (tape.py) carries the results of our attention for CPUs from forward to backward. Everything
else is computed again.

What must stay, and which test notices (in tests/parts/models):

    the result and all gradients of a layer    test_block.py compares with the plain form
    what is in memory at a time                test_fake_gpu.py counts all tensors

The order of the chunks, and of the sums in backward, must stay, too. Another order changes the last
bits of a training, so existing runs would not resume exactly. No test notices this.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.vrt.recompute import Seed
from models.vrt.rows import put, take
from models.vrt.stochastic_depth import scale_branch
from models.vrt.tape import tape_of_backward, tape_of_forward
from models.vrt.work import Weights, Work, cast


class InChunks(torch.autograd.Function):
    """Computes `work` on x (samples, tokens, C). Forward returns (samples, tokens, outputs of fc2).

    Call `InChunks.apply(x, work, *weights)` without autocast. The weights have the order of
    work.names. Each weight is an argument, because autograd finds no tensors within other objects.

    Names:

        tape                   stores results of the attention in forward, so that backward need not
                               compute them again
        fc2                    the last linear layer of the MLP. `InChunks` computes fc2, and
                               work.hidden computes the rest of the layer
        y                      the residual. None for a GatedMlp, which has no residual
        h                      the input of fc2. None if stochastic depth has dropped the MLP
        work                   what the layer computes (work.py)
        work.hidden            computes the layer without fc2
        work.pieces            yields each chunk of each sample: (number of the sample, chunk,
                               factors)
        work.keeps_attention   whether forward records the results of the attention on the tape
        factors                two factors of stochastic depth, one for the attention and one for
                               the MLP. fc2(h) is multiplied by the factor of the MLP

    What happens to a chunk (`take` and `put` read and write some tokens of a tensor, rows.py):

        forward     1. x         take          ->  tokens of the chunk
                    2. tokens    work.hidden   ->  y, h
                    3. y, h      y + fc2(h)    ->  put into out

        backward    1. x                     take, work.hidden  ->  y, h, with a graph
                    2. grad                  by hand            ->  gradients of y, h and fc2
                    3. gradients of y and h  autograd           ->  gradients of all other weights,
                                                                    and of the tokens: put into
                                                                    grad_x

    A chunk has three index tensors (chunk.py). E.g. a window of four places holds token 6, padding,
    token 0 and token 1:

        rows      6 0 0 1    (4,): the tokens to read. Token 0 is read in the place of the padding
        results   6   0 1    (3,): the tokens to write
        kept      0   2 3    (3,): the positions of the results among the rows, for backward

    What must stay: both passes go through the chunks in the order of work.pieces, because the tape
    is read in the order in which it was written.
    """

    @staticmethod
    def forward(ctx, x: Tensor, work: Work, *weights: Tensor | None) -> Tensor:
        """Compute all chunks, and save only x, the weights and what the tape has recorded."""
        # The weights by name, without a graph, because autograd must not record this function.
        w: Weights = {}
        for name, weight in zip(work.names, weights, strict=True):
            w[name] = None if weight is None else weight.detach()
        w = cast(w, x.dtype)

        # The tape records only if x needs a gradient. If only weights need gradients, nothing is
        # recorded, and backward computes the attention again.
        needs_grad_of_x = ctx.needs_input_grad[0]
        tape = tape_of_forward(
            work.has_own_attention, work.keeps_attention, x.dtype, needs_grad_of_x
        )

        samples, tokens, _ = x.shape
        output_channels = len(w["fc2"])  # the weight is (outputs, inputs)
        out = x.new_empty(samples, tokens, output_channels)
        for sample, chunk, factors in work.pieces(samples):
            # y: (results, outputs of fc2), or None. h: (results, inputs of fc2), or None. The
            # result of `take`, (rows, C), gets no name, so that it is freed before the last layer.
            y, h = work.hidden(take(x[sample], chunk.rows), chunk, factors, w, tape)
            # h is None if the factor of the MLP is 0. `scale_branch` takes None as the factor 1.
            if h is not None:
                branch = scale_branch(F.linear(h, w["fc2"], w["fc2_bias"]), factors.mlp)
                # add_ works in place, because nobody else needs the branch.
                y = branch if y is None else branch.add_(y)
            put(out[sample], chunk.results, y)

        recorded = [] if tape is None else tape.recorded
        ctx.save_for_backward(x, *weights, *recorded)
        ctx.work = work
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        """Return the gradients of x and of the weights.

        A chunk ends with y + factor * branch, where branch = h fc2^T + fc2_bias is the last layer.
        With the gradient G of this sum, these gradients are computed by hand, not by autograd:

            gradient of y           G
            gradient of the branch  factor G
            gradient of fc2         (factor G)^T h
            gradient of fc2_bias    the sum of factor G over the tokens
            gradient of h           (factor G) fc2

        grad: the gradient of the result, (samples, tokens, outputs of fc2).
        """
        # Forward has saved x, then the weights, then what the tape has recorded.
        work = ctx.work
        x, *others = ctx.saved_tensors
        number_of_weights = len(work.names)
        saved_weights = others[:number_of_weights]
        recorded = others[number_of_weights:]
        weights = dict(zip(work.names, saved_weights, strict=True))
        tape = tape_of_backward(work.has_own_attention, recorded=recorded)
        # needs_input_grad has one entry for each argument of forward: 0 is x, 1 is work, and the
        # entries from 2 on are the weights.
        needs_gradient = ctx.needs_input_grad[2:]
        # Name of a weight -> its gradient, summed over the chunks so far.
        sums = _zeros_for_gradients(weights, needs_gradient)

        # Step 2 computes the gradients of fc2 and its bias by hand. Autograd computes the gradients
        # of all other weights. So the other weights become leaves of the graph of each chunk. A
        # leaf is a tensor whose gradient autograd can return.
        names_with_graph = [name for name in sums if name not in ("fc2", "fc2_bias")]
        w = _as_leaves(weights, names_with_graph, x.dtype)

        grad_x = torch.empty_like(x)
        for sample, chunk, factors in work.pieces(len(x)):
            # 1. Compute the chunk again, this time with a graph. `take` would give a wrong gradient
            # here, because chunk.rows may name token 0 several times. So `tokens` is a leaf, and
            # step 3 brings its gradient to grad_x.
            tokens = take(x[sample], chunk.rows).detach().requires_grad_()
            with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
                y, h = work.hidden(tokens, chunk, factors, w, tape)

            # 2. Compute the gradients of y, of h and of fc2 by hand.
            grad_y = take(grad[sample], chunk.results)  # G, (results, C)
            outputs, gradients = _outputs_and_gradients(y, h, grad_y, factors.mlp, w["fc2"], sums)

            # 3. Run backward through the graph of this chunk, to its tokens and to the weights. Do
            # not pass retain_graph here, because the graph would then keep its saved tensors in
            # memory. test_fake_gpu.py counts the tensors.
            inputs = [tokens] + [w[name] for name in names_with_graph]
            grad_tokens, *grads_of_weights = _through_graph(outputs, gradients, inputs)
            for name, grad_weight in zip(names_with_graph, grads_of_weights, strict=True):
                # None if stochastic depth has dropped the branch of this weight.
                if grad_weight is not None:
                    sums[name] += grad_weight
            # `tokens` has entries at padding, too. `chunk.kept` leaves out their gradients. Each
            # token is in one chunk only, so `put` writes each row of grad_x once.
            put(grad_x[sample], chunk.results, take(grad_tokens, chunk.kept))

        # Return one result for each argument of forward: x, work, then the weights. A weight that
        # needs no gradient gets None.
        grad_weights = [sums.get(name) for name in work.names]
        return (grad_x, None, *grad_weights)


def _zeros_for_gradients(weights: Weights, needs_gradient: Sequence[bool]) -> dict[str, Tensor]:
    """Return {name: zeros} for each weight that needs a gradient, to sum its gradients in.

    A frozen weight needs no gradient. The sums have the dtype of the weights, usually float32, even
    if the tokens are bfloat16: in bfloat16 a sum over many chunks would lose its small terms.

    needs_gradient: whether each weight needs a gradient, in the order of `weights`.
    """
    sums: dict[str, Tensor] = {}
    for (name, weight), is_needed in zip(weights.items(), needs_gradient, strict=True):
        if is_needed:
            sums[name] = torch.zeros_like(weight)
    return sums


def _as_leaves(weights: Weights, names_with_graph: Sequence[str], dtype: torch.dtype) -> Weights:
    """Return the weights in `dtype`, detached, so that the backward pass of a chunk ends at them.

    names_with_graph: names of the weights that need gradients from autograd.
    """
    leaves: Weights = {}
    for name, weight in cast(weights, dtype).items():
        leaves[name] = None if weight is None else weight.detach()
    for name in names_with_graph:
        leaves[name].requires_grad_()
    return leaves


def _outputs_and_gradients(
    y: Tensor | None,
    h: Tensor | None,
    grad_y: Tensor,
    factor: Any,
    fc2: Tensor,
    sums: dict[str, Tensor],
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the outputs of the graph of a chunk, and the gradient of each output.

    The outputs are y and h, without an output that is None. This function also adds the gradients
    of fc2 and of its bias to `sums`, if `sums` has these names. The formulas, with G and factor G,
    are in `InChunks.backward`.

    `_outputs_and_gradients` is a function of its own, so that factor G is freed before backward
    runs through the graph. test_fake_gpu.py counts the tensors.

    y: the residual, (results, C), or None.
    h: the input of fc2, (results, hidden), or None.
    grad_y: G, (results, C).
    factor: the factor of the MLP in stochastic depth. None means 1.
    fc2: the weight of the last layer, (C, hidden).
    """
    outputs: list[Tensor] = []
    gradients: list[Tensor] = []
    if y is not None:
        outputs.append(y)
        gradients.append(grad_y)
    if h is not None:
        grad_branch = scale_branch(grad_y, factor)  # factor G
        if "fc2" in sums:
            sums["fc2"] += grad_branch.t() @ h.detach()
        if "fc2_bias" in sums:
            sums["fc2_bias"] += grad_branch.sum(0)
        outputs.append(h)
        gradients.append(grad_branch @ fc2)
    return outputs, gradients


def _through_graph(
    outputs: list[Tensor], gradients: list[Tensor], inputs: list[Tensor]
) -> tuple[Any, ...]:
    """Run backward from the outputs, with their gradients, and return the gradients of the inputs.

    The gradient of an input is None if the outputs do not depend on it.

    torch.autograd.grad(outputs, inputs, gradients) does the same, but with given gradients it
    imports sympy, which takes a quarter of a second in each process. So `Seed` makes a scalar whose
    backward pass gives each output its gradient.
    """
    with torch.enable_grad():
        seed: Any = Seed.apply(*outputs, *gradients)
    return torch.autograd.grad(seed, inputs, allow_unused=True)
