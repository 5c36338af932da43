"""The branches that backward may recompute: the bytes that autograd saves, and the work.

A branch is the attention or the MLP of a block, or the MLP at the end of a stage (Stage.pa_fuse).
Its owner, the block or the MLP, has a flag for the branch:

    set        backward recomputes the branch
    cleared    autograd saves the tensors of the branch

The bytes of a branch are what autograd saves in addition if the flag is cleared. The bytes are
measured, and the work is computed from the sizes.

What must stay: the results depend only on sizes, and not on the rank or on chance, because all
ranks must recompute the same branches. No test notices this. tests/parts/models/test_fit_memory.py
compares the count of bytes with the bytes that a step allocates. Free to change: how the work is
computed, because only the ratios between branches matter.
"""

import math
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor, nn

from models.vrt.block import Block
from models.vrt.gated_mlp import GatedMlp
from models.vrt.memory.saved_bytes import saved_bytes
from models.vrt.stages import Stage


class Branch(NamedTuple):
    """What backward may recompute: a branch of a block, or the MLP at the end of a stage."""

    owner: Any  # a Block, or the GatedMlp at the end of a stage (Stage.pa_fuse)
    flag: str  # attribute of the owner: whether backward recomputes the branch
    bytes: int  # what autograd saves for the branch if backward does not recompute it
    flops: float  # operations that recomputing takes


def owners_of_branches(net: nn.Module) -> list[Any]:
    """Return the modules with branches that backward may recompute.

    The modules are all blocks, then the MLP at the end of each stage that aligns frames. (No caller
    needs this order.) Each module has the attribute FLAGS: the names of its checkpoint flags.
    """
    owners: list[Any] = []
    for module in net.modules():
        if isinstance(module, Block):
            owners.append(module)
    for module in net.modules():
        if isinstance(module, Stage) and module.aligns:
            owners.append(module.pa_fuse)
    return owners


class MeasuredBranches:
    """Measures the branches of modules. Modules of the same kind and size are measured once."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        # Kind of a module (result of `_kind`) -> bytes of each of its branches, in the order of
        # FLAGS. E.g. a block: [30 MB of the attention, 20 MB of the MLP].
        self.bytes_of_kind: dict[tuple, list[int]] = {}

    def branches_of(self, owner: Any, x: Tensor) -> list[Branch]:
        """Return the branches of a block, or of the GatedMlp of a stage.

        owner: the block, or the GatedMlp.
        x: its input, detached from the network. When a kind is measured, x is set to require a
            gradient.
        """
        kind = _kind(owner, x)
        if kind not in self.bytes_of_kind:
            x.requires_grad_()  # as in training, where a gradient flows back to the input
            self.bytes_of_kind[kind] = _measure_flags(self.net, owner, x)
        if isinstance(owner, Block):
            flops_of_branches = _flops_of_block(owner, x)
        else:
            flops_of_branches = _flops_of_mlp(owner, x)
        # Each of the three lists has an entry for each flag, in the same order.
        bytes_of_branches = self.bytes_of_kind[kind]
        branches = []
        for flag, saved, flops in zip(
            owner.FLAGS, bytes_of_branches, flops_of_branches, strict=True
        ):
            branches.append(Branch(owner, flag, saved, flops))
        return branches


def _kind(owner: Any, x: Tensor) -> tuple[Any, ...]:
    """Return everything that the bytes of a module's branches depend on.

    owner: the module, a block or the GatedMlp of a stage.
    x: its input.
    """
    kind: tuple[Any, ...] = (type(owner), tuple(x.shape), x.dtype)
    if isinstance(owner, Block):
        # The shift decides which windows have a mask. A block without a shift has no masks.
        shift = owner.shift if any(owner.shift) else None
        kind += (owner.window, shift, owner.attn.mutual, owner.attn.heads)
    return kind


def _measure_flags(net: nn.Module, owner: Any, x: Tensor) -> list[int]:
    """Return, for each flag of `owner`, how many more bytes autograd saves without the flag.

    A flag that is set lets backward recompute its branch. All flags must be set before the call.
    The flags are cleared one by one, and are set again at the end. E.g.

        both flags set          10 MB saved
        first flag cleared      40 MB saved    40 - 10 = 30 MB of the first branch
        both flags cleared      60 MB saved    60 - 40 = 20 MB of the second branch

    gives [30 MB, 20 MB].
    """
    totals = [_bytes_of_forward(net, owner, x)]
    for flag in owner.FLAGS:
        setattr(owner, flag, False)
        totals.append(_bytes_of_forward(net, owner, x))
    for flag in owner.FLAGS:
        setattr(owner, flag, True)
    bytes_of_flags = []
    for before, after in pairwise(totals):
        # Take at least 0, because autograd may save fewer bytes for a branch that is not
        # recomputed.
        bytes_of_flags.append(max(0, after - before))
    return bytes_of_flags


def _bytes_of_forward(net: nn.Module, module: nn.Module, x: Tensor) -> int:
    """Return the bytes that autograd saves in one forward pass of a module of `net`."""
    with saved_bytes(net) as sizes:
        module(x)
    return sum(sizes.values())


def _flops_of_mlp(mlp: GatedMlp, x: Tensor) -> list[float]:
    """Return a list of one number, as in GatedMlp.FLAGS: the operations of the MLP of a stage."""
    tokens = x.numel() / x.shape[-1]
    weight_count = sum(weight.numel() for weight in mlp.weights().values())
    return [2.0 * tokens * weight_count]  # a multiplication and an addition for each weight


def _flops_of_block(block: Block, x: Tensor) -> list[float]:
    """Return the operations of the two branches of a block: [attention, MLP], as in Block.FLAGS.

    Norms and softmax are left out. x: (B, D, H, W, C).
    """
    attn = block.attn
    batch, *size, channels = x.shape
    tokens = batch * math.prod(size)
    # The attention computes whole windows, so its tokens include the padding. E.g. 7 tokens along
    # an axis in windows of 4 are 2 windows, so 8 tokens.
    padded_tokens = batch
    window = []
    for length, largest in zip(size, block.window, strict=True):
        window_length = min(length, largest)  # a window is never larger than the clip
        window_count = math.ceil(length / window_length)
        padded_tokens *= window_count * window_length
        window.append(window_length)

    # Linear layers: each token takes one multiplication and one addition per weight.
    attn_weights = _weights_in_layers(attn)
    mlp_weights = _weights_in_layers(block.mlp)
    # Self attention has two products, q k^T and p v. In each product, a token takes one
    # multiplication and one addition per channel and token of its window. Mutual attention has two
    # more products of half the size, because a token meets only the tokens of the other frame.
    # Together these count as one more product.
    products = 3 if attn.mutual else 2
    tokens_of_window = math.prod(window)
    multiplications_per_token = attn_weights + products * tokens_of_window * channels
    attention_flops = padded_tokens * 2.0 * multiplications_per_token
    mlp_flops = tokens * 2.0 * mlp_weights
    return [attention_flops, mlp_flops]


def _weights_in_layers(module: nn.Module) -> int:
    """Return the number of weights in the linear layers of a module, without biases.

    All modules within an attention or an MLP of a block are linear layers.
    """
    count = 0
    for layer in module.children():
        assert isinstance(layer, nn.Linear)
        count += layer.weight.numel()
    return count
