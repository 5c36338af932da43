"""Counts what a training step saves in memory for backward, module by module.

`count_moments` runs the forward pass once with every branch recomputed, and notes what autograd has
saved by the end of each module (`Moment`). Then it measures, for each branch, what autograd would
save in addition if the branch were not recomputed (`Branch`). A branch is the attention or the MLP
of a block, or the MLP at the end of a stage.

What must stay, and which test notices (tests/parts/models/test_fit_memory.py, test_fake_gpu.py):

    counting changes neither gradients nor       test_measuring_changes_neither_the_gradients_nor_
    random numbers                               the_random_numbers
    the count is what a step allocates           test_the_count_is_what_a_step_allocates
    the count depends on no rank and no chance   none

Free to change: how a branch is measured.
"""

import math
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.vrt.block import Block
from models.vrt.chunk_sizes import has_kernel
from models.vrt.deform_align import DeformAlign
from models.vrt.forms import in_cpu_form
from models.vrt.layers import compute_dtype
from models.vrt.stages import Stage
from utils import device as devices


class Branch(NamedTuple):
    """One branch of a block, or the MLP at the end of a stage, which backward may recompute."""

    owner: Any  # a Block, or the GatedMlp at the end of a stage (Stage.pa_fuse)
    flag: str  # attribute of the owner: whether backward recomputes the branch
    bytes: int  # what autograd saves for the branch if backward does not recompute it
    flops: float  # operations that recomputing takes


class Moment(NamedTuple):
    """The memory in use during the backward pass of one module."""

    # The branches of this module.
    branches: list[Branch]
    # Bytes that autograd has saved by the end of the module's forward pass, if all branches are
    # recomputed: by this module and all modules before it. They are in use during the module's
    # backward pass. The tensors of later modules are free again, because backward goes from the
    # last module to the first.
    saved: int
    # Further bytes that the module's backward pass allocates on a GPU.
    transient: int = 0


class _ForwardPass(NamedTuple):
    """A module that has run its forward pass."""

    module: Any
    x: Tensor  # its input
    saved: int  # bytes that autograd had saved by the end of this pass


def count_moments(net: nn.Module, run: Callable[[], Any]) -> list[Moment]:
    """Set every checkpoint flag of the network, in place, and count what a step then saves.

    Returns the moments in the order of the forward pass. The last moment is the end of the forward
    pass, and has no branches.
    """
    owners = _owners_of_branches(net)
    # The modules that align frames have no branches, but their backward pass allocates much.
    aligns = [module for module in net.modules() if isinstance(module, DeformAlign)]
    passes: list[_ForwardPass] = []  # in the order of the forward pass

    # `forked_generators` restores torch's random generators at the end. So the training draws the
    # same numbers as without this run.
    first_parameter = next(net.parameters())
    with devices.forked_generators(first_parameter.device), torch.enable_grad():
        # 1. Run the network once with all flags set. A hook notes each module and its input.
        with ExitStack() as stack:
            # Fills up during the run: address of a saved storage -> its bytes.
            sizes = stack.enter_context(saved_bytes(net))

            def note(module: nn.Module, args: tuple[Any, ...], _: Any) -> None:
                # torch calls this after the forward pass of a module. DeformAlign takes (sources,
                # target, flows), all other modules take x alone.
                x = args[1] if module in aligns else args[0]
                passes.append(_ForwardPass(module, x.detach(), saved=sum(sizes.values())))

            for owner in owners:
                for flag in owner.FLAGS:
                    setattr(owner, flag, True)
            for module in (*owners, *aligns):
                hook = module.register_forward_hook(note)
                stack.callback(hook.remove)
            run()
        # 2. Measure the branches of the modules that have run.
        # Kind and size of a module -> bytes of each of its branches. `_moment` fills it.
        measured_bytes: dict[tuple, list[int]] = {}
        moments = []
        for module, x, saved in passes:
            if module in aligns:
                moments.append(Moment([], saved, module.transient(x)))
            else:
                moments.append(_moment(net, module, x, saved, measured_bytes))
        end_of_forward = Moment([], sum(sizes.values()))
        return [*moments, end_of_forward]


def _owners_of_branches(net: nn.Module) -> list[Any]:
    """Return the modules with branches that backward may recompute.

    They are all blocks, then the fusion of each stage that aligns frames. Each has the attribute
    FLAGS: the names of its checkpoint flags.
    """
    owners: list[Any] = []
    for module in net.modules():
        if isinstance(module, Block):
            owners.append(module)
    for module in net.modules():
        if isinstance(module, Stage) and module.aligns:
            owners.append(module.pa_fuse)
    return owners


@contextmanager
def saved_bytes(net: nn.Module) -> Generator[dict[int, int]]:
    """Count what autograd saves for backward within this context.

    Yields a dictionary that fills up: address of a storage -> its bytes. A storage that several
    tensors share counts once. Parameters and buffers of the network do not count.
    """
    tensors_of_net = (*net.parameters(), *net.buffers())
    addresses_of_net = {tensor.untyped_storage().data_ptr() for tensor in tensors_of_net}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []  # keeps the tensors, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        # torch calls this for each tensor that it saves, and keeps what it returns.
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in addresses_of_net and address not in sizes:
            sizes[address] = storage.nbytes()
            alive.append(tensor)
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        # torch calls this in the backward pass, to get the saved tensor.
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield sizes


def _moment(
    net: nn.Module, owner: Any, x: Tensor, saved: int, measured_bytes: dict[tuple, list[int]]
) -> Moment:
    """Return the moment of a block, or of the GatedMlp of a stage.

    owner: the block, or the GatedMlp. x: its input. saved: bytes that autograd has saved by the end
        of its forward pass.
    measured_bytes: kind and size of a module -> bytes of each of its branches. This function adds
        new measurements, so that blocks that are alike are measured once.
    """
    # `kind`: everything that the bytes depend on. The shift is part of it, because only a block
    # with a shift has masks.
    kind: tuple[Any, ...] = (type(owner), tuple(x.shape), x.dtype)
    if isinstance(owner, Block):
        attn = owner.attn
        shift = owner.shift if any(owner.shift) else None
        kind += (owner.window, shift, attn.mutual, attn.heads)
        transient = block_transient(owner, x)
        flops = _flops_of_block(owner, x)
    else:
        transient = 0
        tokens = x.numel() / x.shape[-1]
        weight_count = sum(weight.numel() for weight in owner.weights().values())
        flops = [2.0 * tokens * weight_count]  # a multiplication and an addition for each weight
    # x was detached from the network. `requires_grad_` changes it in place, so that a gradient
    # flows back to it, as in training.
    if kind not in measured_bytes:
        measured_bytes[kind] = _measure_flags(net, owner, x.requires_grad_())
    branches = []
    for flag, size, work in zip(owner.FLAGS, measured_bytes[kind], flops, strict=True):
        branches.append(Branch(owner, flag, size, work))
    return Moment(branches, saved, transient)


def _measure_flags(net: nn.Module, owner: Any, x: Tensor) -> list[int]:
    """Return the bytes that autograd saves in addition if a flag of `owner` is cleared.

    The flags are cleared one by one, and are set again at the end. E.g. 10 MB with all flags set,
    40 MB without the first flag, 60 MB without both flags -> [30 MB, 20 MB].
    """
    totals = []
    for flag in (None, *owner.FLAGS):  # None: all flags are set
        if flag is not None:
            setattr(owner, flag, False)
        with saved_bytes(net) as sizes:
            owner(x)
        totals.append(sum(sizes.values()))
    for flag in owner.FLAGS:
        setattr(owner, flag, True)
    # Never below 0: a branch may save less memory if it is not recomputed.
    return [max(0, after - before) for before, after in pairwise(totals)]


def _flops_of_block(block: Block, x: Tensor) -> list[float]:
    """Return the operations of the two branches of a block: [attention, MLP], as in Block.FLAGS.

    Only the ratios between blocks matter, so norms and softmax are left out.

    x: (B, D, H, W, C).
    """
    attn = block.attn
    batch, *size, channels = x.shape
    # The attention computes whole windows, with padding. A window that is larger than the clip is
    # as large as the clip.
    window = [min(length, most) for length, most in zip(size, block.window, strict=True)]
    padded_tokens = batch
    for length, window_length in zip(size, window, strict=True):
        windows = math.ceil(length / window_length)
        padded_tokens *= windows * window_length
    tokens = batch * math.prod(size)

    # Linear layers: a token takes a multiplication and an addition for each weight. The products
    # q k^T and p v: a token takes a multiplication and an addition for each channel and each token
    # of its window. Mutual attention has two such products within half a window, which count as one
    # product within a window.
    attn_weights = _weights_in_layers(attn)
    mlp_weights = _weights_in_layers(block.mlp)
    products = 3 if attn.mutual else 2
    tokens_of_window = math.prod(window)
    in_products = products * tokens_of_window * channels
    attention_flops = padded_tokens * 2.0 * (attn_weights + in_products)
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


def block_transient(block: Block, x: Tensor) -> int:
    """Estimate the memory that the backward pass of one block takes on a GPU, in bytes.

    The tensors that forward saves are not counted: `count_moments` counts them.
    tests/parts/models/test_fake_gpu.py compares the estimate with a count of all tensors.

    x: input of the block, (B, D, H, W, C). Returns 0 on a CPU, where chunks are small, and for the
    plain form, which has no chunks.
    """
    if in_cpu_form(x) or block.runs_plain(x):
        return 0
    x = x.to(compute_dtype(x))
    largest_chunk = max(block.plan(x), key=lambda chunk: len(chunk.rows))
    # Backward holds the gradients of the block's output and input.
    numbers_of_gradients = 2 * x.numel()
    # For each token of a chunk, backward holds 13 numbers per channel. This was counted with
    # tests/helpers/fake_gpu.py. With a smaller number, `netG.checkpoint=auto` would plan steps that
    # do not fit into the memory.
    numbers_per_token = 13 * x.shape[-1]
    if not has_kernel(x, largest_chunk.tokens, block.attn.heads):
        # torch's attention gives each window a bias gradient (heads, T, T). A window has T tokens,
        # so these are heads * T numbers per token.
        numbers_per_token += block.attn.heads * largest_chunk.tokens
    numbers_of_chunk = len(largest_chunk.rows) * numbers_per_token
    return x.element_size() * (numbers_of_gradients + numbers_of_chunk)
