"""Memory of a training step: netG.checkpoint "auto" fits the step to a budget, and an
out-of-memory error says what to change.

Autograd keeps tensors for backward. A block can instead compute a branch (attention or MLP) again
in backward. This is called checkpointing: it saves memory and costs time. `fit_memory` chooses
which branches are computed again:

    count    run the forward pass once with every branch recomputed, and note what autograd has
             saved by the end of each module (`Moment`)
    measure  for each branch, what autograd would save in addition without recomputing (`Branch`)
    choose   stop recomputing the branches with the most work per byte, as long as the estimate of
             the peak stays within the budget

`suggest_changes` and `out_of_memory_error` say which options make a step smaller.

What must stay: the choice does not depend on the rank or on chance, because all ranks must
recompute the same branches. Counting changes neither gradients nor random numbers
(test_measuring_changes_neither_the_gradients_nor_the_random_numbers), and the count is what a step
allocates (test_the_count_is_what_a_step_allocates). Free to change: which branches are chosen, and
the advice. Recomputing changes no number, so another choice changes only memory and time.

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
# The count of tensors leaves out workspaces and fragmentation, and is at most 10 % too low
# (docs/benchmarks/net.md). So the estimate is the count times this factor. With a larger factor,
# more would be recomputed than needed. With a smaller factor, a step may not fit.
MARGIN = 1.1


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


class Activations(NamedTuple):
    """Bytes of activations in a training step."""

    kept: int  # between forward and backward
    peak: int  # the most at a time


# ---- Choosing the recomputed branches --------------------------------------------------------


def fit_memory(net: nn.Module, run: Callable[[], Any], budget_gb: float) -> float:
    """Set the checkpoint flags of every block so that a training step needs at most `budget_gb`.

    VRT.fit calls this before the first step, on every rank. Only the flags of the modules change.

    run: function that runs one forward pass of net at the training size.

    Returns the estimate of what a step needs, in GB (1e9 bytes). If it is larger than the budget,
    all branches are recomputed, and a warning says so.

    The estimate counts the tensors that autograd saves, without a backward pass. So gradients and
    random numbers are not changed, and every rank gets the same result. The count is within 3 % of
    what a step allocates, and for recomputed blocks of the plain form up to 10 % below it
    (docs/benchmarks/net.md). MARGIN covers this error.
    """
    moments = _checkpoint_all(net, run)
    branches = []
    for moment in moments:
        branches += moment.branches
    parameter_count = sum(parameter.numel() for parameter in net.parameters())
    parameter_bytes = BYTES_PER_PARAMETER * parameter_count
    budget = budget_gb * GB

    def needed_bytes() -> float:
        # The estimate for the present flags of the modules, which the loop below changes.
        return MARGIN * (parameter_bytes + _activations(moments).peak)

    def work_per_byte(branch: Branch) -> float:
        # At least 1 byte, because a branch may save nothing.
        return branch.flops / max(branch.bytes, 1)

    # Stop recomputing one branch after the other. Begin with the branch for which a byte of memory
    # saves the most work. If the step then needs more than the budget, recompute this branch after
    # all, and try the next branch, which may be smaller.
    for branch in sorted(branches, key=work_per_byte, reverse=True):
        setattr(branch.owner, branch.flag, False)
        if needed_bytes() > budget:
            setattr(branch.owner, branch.flag, True)

    kept, peak = _activations(moments)
    need = needed_bytes()
    recomputed_count = sum(_is_recomputed(branch) for branch in branches)
    logger.info(
        "checkpoint auto: %d of %d branches are recomputed in backward; about %.2f GB of %.2f GB "
        "(kept %.2f GB, at most %.2f GB more in backward, weights and moments %.2f GB, and a "
        "margin)",
        recomputed_count, len(branches), need / GB, budget_gb, kept / GB, (peak - kept) / GB,
        parameter_bytes / GB,
    )  # fmt: skip
    if need > budget:
        _warn_of_small_budget(budget_gb, need, parameter_bytes)
    return need / GB


def _warn_of_small_budget(budget_gb: float, need: float, parameter_bytes: int) -> None:
    """Warn that a step does not fit the budget, and say how small a crop would fit.

    need: the estimate for a step with every branch recomputed, in bytes.
    """
    # The share of the present activations that would fit. Activations grow with the area of a crop,
    # so the side of the crop shrinks by the square root of the share. If the weights alone exceed
    # the budget, the room is negative, and the share is 0.
    room_for_activations = budget_gb * GB / MARGIN - parameter_bytes
    activations = need / MARGIN - parameter_bytes
    share = max(0.0, room_for_activations / activations)
    logger.warning(
        "netG.memory_budget_gb is %.2f, but a step needs about %.2f GB even with every "
        "block checkpointed: "
        "reduce gt_size to %.0f %%, or reduce num_frame or the batch", budget_gb, need / GB,
        100 * share**0.5,
    )  # fmt: skip


def _activations(moments: list[Moment]) -> Activations:
    """Estimate the activations with the present flags, in bytes.

    In the backward pass of a module, three things are in memory: what all modules up to this module
    have saved, what its recomputed branches give, and what the pass itself allocates (transient).
    E.g. two blocks, each with one branch of 10 MB. The second branch is recomputed. In MB:

        moment           saved   branches kept so far   recomputed   in all
        block 1              5                     10            0       15
        block 2             10                     10           10       30   the peak
        end of forward      10                     10            0       20   kept

    moments: one for each module, in the order of the forward pass.

    `fit_memory` alone calls this. test_fit_memory.py compares the estimate with what a step
    allocates.
    """
    kept_in_branches = 0  # bytes of the branches so far that are not recomputed
    peak = 0
    for moment in moments:
        recomputed = 0  # bytes of the branches that the backward pass of this module recomputes
        for branch in moment.branches:
            if _is_recomputed(branch):
                recomputed += branch.bytes
            else:
                kept_in_branches += branch.bytes
        during_backward = moment.saved + kept_in_branches + recomputed + moment.transient
        peak = max(peak, during_backward)
    end_of_forward = moments[-1]
    kept = end_of_forward.saved + kept_in_branches
    return Activations(kept, peak)


def _is_recomputed(branch: Branch) -> bool:
    """Say whether backward computes the branch again: the flag of its owner."""
    return getattr(branch.owner, branch.flag)


# ---- Counting --------------------------------------------------------------------------------


def _checkpoint_all(net: nn.Module, run: Callable[[], Any]) -> list[Moment]:
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


# ---- Advice ----------------------------------------------------------------------------------


def out_of_memory_error(
    where: str,
    device: torch.device,
    train: TrainOptions,
    data: LoaderOptions | None,
    netG: Section,
    spec: InputSpec,
) -> SpikeVRTError:
    """Make the error for a training step that ran out of memory. It says how to make it smaller.

    where: the step, for the error. device: the rank's GPU. train: the section `train` of the
        options. data: datasets.train, or None in a notebook without datasets. netG: the options of
        the network. spec: what the network requires of its clips.
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
    # The lines are printed below one another. `SpikeVRTError.__str__` begins a text after 12
    # characters ("  do        ").
    indent = " " * 12
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
    # Mixed precision changes the numbers a little.
    mixed_precision = "" if train.amp.enable else "train.amp.enable=true"
    lines = [
        _fewer_clips_at_a_time(train, data),
        _checkpointing_everywhere(netG),
        mixed_precision,
        _smaller_crops(data, spec),
        _one_frame_less(data, spec),
    ]
    return [line for line in lines if line]  # "" is a change that is not possible


# Each function below returns an option line, or "" if its change is not possible. A dataset of a
# user, or data None, may lack an option. Then the function takes a default that gives "".


def _fewer_clips_at_a_time(train: TrainOptions, data: LoaderOptions | None) -> str:
    """Return a smaller batch with as many more micro-batches, which give the same step.

    E.g. a batch of 9 clips: 3 clips, three times as many micro-batches.
    """
    batch = getattr(data, "dataloader_batch_size", 1)
    if batch <= 1:
        return ""
    # Take the largest number that divides the batch and is at most its half. E.g. 9: 4 does not
    # divide 9, 3 does.
    fewer = batch // 2
    while batch % fewer != 0:
        fewer -= 1
    micro_batches = train.accumulation_steps * batch // fewer
    return f"datasets.train.dataloader_batch_size={fewer} train.accumulation_steps={micro_batches}"


def _checkpointing_everywhere(netG: Section) -> str:
    """Return the keys that recompute every branch. The numbers stay, but a step takes more time."""
    keys = []
    for key in ("use_checkpoint_attn", "use_checkpoint_ffn"):
        if getattr(netG, key, None) is False:
            keys.append(f"netG.{key}=true")
    for key in ("no_checkpoint_attn_blocks", "no_checkpoint_ffn_blocks"):
        if getattr(netG, key, []):
            keys.append(f"netG.{key}=[]")
    return " ".join(keys)


def _smaller_crops(data: LoaderOptions | None, spec: InputSpec) -> str:
    """Return crops of at most three quarters of the side.

    The side is rounded down to a multiple that the network takes.
    """
    side = getattr(data, "gt_size", 0) // spec.scale  # side of the input, in pixels
    smaller_side = side * 3 // 4
    smaller_side = smaller_side // spec.multiple * spec.multiple  # rounded down to a multiple
    if smaller_side < max(spec.least_size):
        return ""
    return f"datasets.train.gt_size={smaller_side * spec.scale}"


def _one_frame_less(data: LoaderOptions | None, spec: InputSpec) -> str:
    """Return one frame less, but at least one frame more than the network requires.

    So the attention between frames still has several frames to use. A network that interpolates
    needs a certain number of frames.
    """
    fewer_frames = getattr(data, "num_frame", 0) - 1
    if fewer_frames <= spec.least_frames or spec.interpolates:
        return ""
    return f"datasets.train.num_frame={fewer_frames}"
