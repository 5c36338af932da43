"""Memory of a training step: netG.checkpoint "auto" fits the step to a budget, and an
out-of-memory error says what to change.

Autograd keeps tensors for backward. A block can instead compute a branch (attention or MLP) again
in backward ("checkpointing"), which saves memory and costs time. `fit_memory` chooses which
branches are computed again:

    count    run the forward pass once with every branch recomputed, and note what autograd has
             saved before each module (`Moment`)
    measure  for each branch, what autograd would save in addition without recomputing (`Branch`)
    choose   stop recomputing the branches with the most work per byte, while the estimate of the
             peak stays within the budget

`suggest_changes` and `out_of_memory_error` say which options make a step smaller.

The choice must not depend on the rank or on chance, because all ranks must recompute the same
branches. Recomputing changes no number, so another choice changes only memory and time.

Tests: tests/parts/models/test_fit_memory.py, test_fake_gpu.py
"""

import logging
import math
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.vrt.block import Block, Stage, block_transient
from models.vrt.deform_align import DeformAlign
from utils import device as devices
from utils import utils_dist
from utils.contract import InputSpec
from utils.dist import gpu
from utils.errors import SpikeVRTError
from utils.options.models import LoaderOptions, TrainOptions
from utils.options.section import Section

logger = logging.getLogger(__name__)

GB = 1e9
# Weight, gradient and the two moments of Adam: four numbers of 4 bytes, float32.
BYTES_PER_PARAMETER = 16
# For workspaces and fragmentation, which the count of tensors does not include.
MARGIN = 1.1


class Branch(NamedTuple):
    """One branch of a block, or the fusion of a stage, which backward may recompute."""

    owner: Any  # a Block, or the GatedMlp of a stage
    flag: str  # attribute of the owner: whether backward recomputes the branch
    bytes: int  # what autograd saves for the branch if backward does not recompute it
    flops: float  # operations that recomputing takes


class Moment(NamedTuple):
    """The backward pass of one module."""

    # The branches of this module.
    branches: list[Branch]
    # Bytes that autograd has saved by the end of the module's forward pass, if all branches are
    # recomputed. These bytes are in use during the module's backward pass. The bytes of later
    # modules are free again by then, because backward goes from the last module to the first.
    saved: int
    # Further bytes that the module's backward pass allocates on a GPU.
    transient: int = 0


class Activations(NamedTuple):
    """Bytes of activations in a training step."""

    kept: int  # between forward and backward
    peak: int  # the most at a time


# ---- Choosing the recomputed branches --------------------------------------------------------


def fit_memory(net: nn.Module, run: Callable[[], Any], budget_gb: float) -> float:
    """Set the checkpoint flags of every block so that a training step needs at most `budget_gb`.

    run: function that runs one forward pass of net at the training size.

    Returns the estimate of what a step needs, in GB.

    The estimate counts the tensors that autograd saves, without a backward pass. So gradients and
    random numbers are not changed, and every rank gets the same result. The count is within 3 % of
    what a step allocates, and up to 10 % below it for recomputed blocks of the plain form
    (docs/benchmarks/net.md). MARGIN covers both.
    """
    moments = _checkpoint_all(net, run)
    branches = [branch for moment in moments for branch in moment.branches]
    fixed = BYTES_PER_PARAMETER * sum(p.numel() for p in net.parameters())

    # The branches that take the most operations per byte gain most if they are not recomputed.
    # Stop recomputing a branch, unless the step then needs more than the budget.
    branches_by_gain = sorted(branches, key=lambda b: b.flops / max(b.bytes, 1), reverse=True)
    for branch in branches_by_gain:
        setattr(branch.owner, branch.flag, False)
        if MARGIN * (fixed + _activations(moments).peak) > budget_gb * GB:
            setattr(branch.owner, branch.flag, True)

    kept, peak = _activations(moments)
    need = MARGIN * (fixed + peak)
    recomputed = sum(_is_recomputed(branch) for branch in branches)
    logger.info(
        "checkpoint auto: %d of %d branches are recomputed in backward; about %.2f GB of %.2f GB "
        "(kept %.2f GB, at most %.2f GB more in backward, weights and moments %.2f GB, and a "
        "margin)",
        recomputed, len(branches), need / GB, budget_gb, kept / GB, (peak - kept) / GB, fixed / GB,
    )  # fmt: skip
    if need > budget_gb * GB:
        # Activations grow with the area of a crop, so its side shrinks by the square root.
        share = (budget_gb * GB / MARGIN - fixed) / (need / MARGIN - fixed)
        logger.warning(
            "netG.memory_budget_gb is %.2f, but a step needs about %.2f GB even with every "
            "block checkpointed: "
            "reduce gt_size to %.0f %%, or reduce num_frame or the batch", budget_gb, need / GB,
            100 * max(0.0, share) ** 0.5,
        )  # fmt: skip
    return need / GB


def _activations(moments: list[Moment]) -> Activations:
    """Estimate the activations with the present flags. moments: in the order of forward."""
    kept_in_branches = 0  # bytes of the branches so far that are not recomputed
    peak = 0
    for moment in moments:
        recomputed = 0  # what the backward pass of this module computes again
        for branch in moment.branches:
            if _is_recomputed(branch):
                recomputed += branch.bytes
            else:
                kept_in_branches += branch.bytes
        peak = max(peak, moment.saved + kept_in_branches + recomputed + moment.transient)
    end_of_forward = moments[-1]
    return Activations(end_of_forward.saved + kept_in_branches, peak)


def _is_recomputed(branch: Branch) -> bool:
    """Whether backward computes the branch again: the flag of its owner."""
    return getattr(branch.owner, branch.flag)


# ---- Counting --------------------------------------------------------------------------------


def _checkpoint_all(net: nn.Module, run: Callable[[], Any]) -> list[Moment]:
    """Set every checkpoint flag, and count what a step then saves.

    Returns the moments in the order of the forward pass. The last moment is the end of the forward
    pass, and has no branches.
    """
    owners: list[Any] = []
    for module in net.modules():
        if isinstance(module, Block):
            owners.append(module)
    for module in net.modules():
        if isinstance(module, Stage) and module.aligns:
            owners.append(module.pa_fuse)
    aligns = [module for module in net.modules() if isinstance(module, DeformAlign)]
    # For each module that has run: itself, its input, and the bytes saved so far.
    seen: list[tuple[Any, Tensor, int]] = []

    def note(module: nn.Module, args: tuple[Any, ...], _: Any) -> None:
        # DeformAlign takes (sources, target, flows), the others take x alone.
        x = args[1] if module in aligns else args[0]
        seen.append((module, x.detach(), sum(sizes.values())))

    first = next(net.parameters())
    with devices.forked_generators(first.device), torch.enable_grad():
        with ExitStack() as stack:
            sizes = stack.enter_context(saved_bytes(net))
            for owner in owners:
                for flag in owner.FLAGS:
                    setattr(owner, flag, True)
            for module in (*owners, *aligns):
                hook = module.register_forward_hook(note)
                stack.callback(hook.remove)
            run()
        known: dict[tuple, list[int]] = {}
        moments = []
        for module, x, saved in seen:
            if module in aligns:
                moments.append(Moment([], saved, module.transient(x)))
            else:
                moments.append(_moment(net, module, x, saved, known))
        moments.append(Moment([], sum(sizes.values())))
        return moments


@contextmanager
def saved_bytes(net: nn.Module) -> Generator[dict[int, int]]:
    """Count what autograd saves for backward within this context.

    Yields a dictionary that fills up: address of a storage -> its bytes. Parameters and buffers of
    the network do not count.
    """
    own = {t.untyped_storage().data_ptr() for t in (*net.parameters(), *net.buffers())}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []  # keeps the tensors, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and storage.data_ptr() not in sizes:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        yield sizes


def _moment(
    net: nn.Module, owner: Any, x: Tensor, saved: int, known: dict[tuple, list[int]]
) -> Moment:
    """Describe the backward pass of a block, or of the GatedMlp of a stage.

    owner: the block, or the GatedMlp. x: its input. saved: see `Moment`.
    known: kind and size of a module -> its measurement. A new measurement is added here, so that
    blocks that are alike are measured once.
    """
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
        weights = sum(w.numel() for w in owner.weights().values())
        flops = [2.0 * tokens * weights]
    if kind not in known:
        known[kind] = _measured(net, owner, x.requires_grad_())
    branches = []
    for flag, size, work in zip(owner.FLAGS, known[kind], flops, strict=True):
        branches.append(Branch(owner, flag, size, work))
    return Moment(branches, saved, transient)


def _measured(net: nn.Module, owner: Any, x: Tensor) -> list[int]:
    """Return the bytes that autograd saves in addition if a flag of `owner` is cleared.

    The flags are cleared one by one, and are set again at the end. E.g. 10 MB with all flags set,
    40 MB without the first flag, 60 MB without both -> [30 MB, 20 MB].
    """
    totals = []
    for flag in (None, *owner.FLAGS):
        if flag is not None:
            setattr(owner, flag, False)
        with saved_bytes(net) as sizes:
            owner(x)
        totals.append(sum(sizes.values()))
    for flag in owner.FLAGS:
        setattr(owner, flag, True)
    return [max(0, after - before) for before, after in pairwise(totals)]


def _flops_of_block(block: Block, x: Tensor) -> list[float]:
    """Return the operations of the two branches of a block, attention and MLP.

    x: (B, D, H, W, C).
    """
    attn = block.attn
    batch, *size, channels = x.shape
    # The attention computes whole windows, with padding. A window that is larger than the clip is
    # as large as the clip.
    window = [min(s, w) for s, w in zip(size, block.window, strict=True)]
    padded_tokens = batch
    for length, length_of_window in zip(size, window, strict=True):
        padded_tokens *= math.ceil(length / length_of_window) * length_of_window
    tokens = batch * math.prod(size)

    # A token takes one multiplication and one addition for each weight, and in the products q k^T
    # and p v one of each for each channel and partner. Mutual attention adds such products within
    # half a window.
    attn_weights = _weights_in_layers(attn)
    mlp_weights = _weights_in_layers(block.mlp)
    products = 3 if attn.mutual else 2
    pairs = products * math.prod(window) * channels
    return [padded_tokens * 2.0 * (attn_weights + pairs), tokens * 2.0 * mlp_weights]


def _weights_in_layers(module: nn.Module) -> int:
    """Return the number of weights in the linear layers of a module, without biases."""
    count = 0
    for child in module.children():
        layer: Any = child
        count += layer.weight.numel()
    return count


# ---- Advice ----------------------------------------------------------------------------------


def out_of_memory_error(
    where: str,
    device: torch.device,
    train: TrainOptions,
    data: LoaderOptions | None,
    netG: Section,
    spec: InputSpec,
) -> SpikeVRTError:
    """Make the error for a training step without room, with option lines that make it smaller.

    where: the step, for the error. The other arguments: see `suggest_changes`.
    """
    peak_gb = devices.peak_gb(device)
    peak = "" if peak_gb is None else f", {peak_gb:.1f} GB at the peak"
    lines = suggest_changes(train, data, netG, spec)
    if not lines:
        lines = ["take a smaller network, or a GPU with more memory"]
    if gpu.is_cuda(device):
        lines.append(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment, against "
            "fragmentation"
        )
    indent = " " * 12  # as deep as the text of an error
    return SpikeVRTError(
        what=f"out of memory on rank {utils_dist.get_rank()}{peak}",
        where=where,
        expected=f"a step within the {devices.total_gb(device):.1f} GB of the device, less what "
        "other processes use",
        do="\n".join(["one of these, or several:", *(f"{indent}{line}" for line in lines)]),
    )


def suggest_changes(
    train: TrainOptions, data: LoaderOptions | None, netG: Section, spec: InputSpec
) -> list[str]:
    """Return option lines that make a training step smaller.

    The first lines change the result least. E.g. "train.amp.enable=true".

    data: datasets.train, or None in a notebook without datasets. spec: what the network requires.
    """
    lines = []

    # Fewer clips at a time and as many more passes give the same step.
    batch = getattr(data, "dataloader_batch_size", 1)
    if batch > 1:
        fewer = batch // 2
        while batch % fewer != 0:
            fewer -= 1
        steps = train.accumulation_steps * batch // fewer
        lines.append(
            f"datasets.train.dataloader_batch_size={fewer} train.accumulation_steps={steps}"
        )

    # Checkpointing everywhere gives the same numbers, and takes more time.
    keys = []
    for key in ("use_checkpoint_attn", "use_checkpoint_ffn"):
        if getattr(netG, key, None) is False:
            keys.append(f"netG.{key}=true")
    for key in ("no_checkpoint_attn_blocks", "no_checkpoint_ffn_blocks"):
        if getattr(netG, key, []):
            keys.append(f"netG.{key}=[]")
    if keys:
        lines.append(" ".join(keys))

    if not train.amp.enable:
        lines.append("train.amp.enable=true")

    # Crops of at most three quarters of the side, in steps that the network takes.
    side = getattr(data, "gt_size", 0) // spec.scale * 3 // 4
    side = side // spec.multiple * spec.multiple
    if side >= max(spec.least_size):
        lines.append(f"datasets.train.gt_size={side * spec.scale}")

    # One frame less, but one frame more than the network requires, so that attention between frames
    # has several frames to use.
    frames = getattr(data, "num_frame", 0) - 1
    if frames > spec.least_frames and not spec.interpolates:
        lines.append(f"datasets.train.num_frame={frames}")
    return lines
