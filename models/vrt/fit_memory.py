"""Memory of a training step: checkpoint "auto" fits it to a budget; a step without room says what
to change.
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
# Weights, gradients and the two moments of Adam, all float32.
BYTES_PER_PARAMETER = 16
# For workspaces and fragmentation, which the count of tensors does not include.
MARGIN = 1.1


class Branch(NamedTuple):
    """One branch of a block, or the fusion of a stage: bytes of its intermediates, and FLOPs to
    recompute them.
    """

    owner: Any  # a Block, or the GatedMlp of a stage
    flag: str
    bytes: int
    flops: float


class Moment(NamedTuple):
    """The backward pass of one module.

    saved: bytes that autograd has saved by the end of its forward pass if all branches are
    recomputed; what later modules saved is free again. transient: bytes that its backward pass
    allocates besides, on a GPU.
    """

    branches: list[Branch]
    saved: int
    transient: int = 0


def fit_memory(net: nn.Module, run: Callable[[], Any], budget_gb: float) -> float:
    """Set the checkpoint flags of every block so that a training step needs at most `budget_gb`;
    returns the estimate.

    run: one forward pass of net at the training size. The branches with the most FLOPs per byte are
    the first to be saved instead of recomputed. Counted from the tensors that autograd saves,
    without a backward pass: gradients and random numbers are not changed, and every rank gets the
    same result. The count is within 3 % of what a step allocates, and up to 10 % below it for
    recomputed blocks of the plain form (docs/benchmarks/net.md); MARGIN covers both.
    """
    moments = _checkpoint_all(net, run)
    branches = [branch for moment in moments for branch in moment.branches]
    fixed = BYTES_PER_PARAMETER * sum(p.numel() for p in net.parameters())

    def kept_and_peak() -> tuple[int, int]:
        """Bytes of activations that are kept for the backward pass, and the most that there are at
        a time.
        """
        kept = peak = 0
        for moment in moments:
            again = sum(
                branch.bytes for branch in moment.branches if getattr(branch.owner, branch.flag)
            )
            kept += sum(branch.bytes for branch in moment.branches) - again
            peak = max(peak, moment.saved + kept + again + moment.transient)
        return moments[-1].saved + kept, peak

    for branch in sorted(branches, key=lambda b: b.flops / max(b.bytes, 1), reverse=True):
        setattr(branch.owner, branch.flag, False)
        if MARGIN * (fixed + kept_and_peak()[1]) > budget_gb * GB:
            setattr(branch.owner, branch.flag, True)
    kept, peak = kept_and_peak()
    need, recomputed = MARGIN * (fixed + peak), sum(getattr(b.owner, b.flag) for b in branches)
    logger.info(
        "checkpoint auto: %d of %d branches are recomputed in backward; about %.2f GB of %.2f GB "
        "(kept %.2f GB, at most %.2f GB more in backward, weights and moments %.2f GB, and a "
        "margin)",
        recomputed, len(branches), need / GB, budget_gb, kept / GB, (peak - kept) / GB, fixed / GB,
    )  # fmt: skip
    if need > budget_gb * GB:
        logger.warning(
            "netG.memory_budget_gb is %.2f, but a step needs about %.2f GB even with every "
            "block checkpointed: "
            "reduce gt_size to %.0f %%, or reduce num_frame or the batch", budget_gb, need / GB,
            100 * max(0.0, (budget_gb * GB / MARGIN - fixed) / (need / MARGIN - fixed)) ** 0.5,
        )  # fmt: skip
    return need / GB


def _checkpoint_all(net: nn.Module, run: Callable[[], Any]) -> list[Moment]:
    """Set every checkpoint flag.

    Returns the moments in the order of the forward pass; the last is the end of it.
    """
    owners: list[Any] = [m for m in net.modules() if isinstance(m, Block)]
    owners += [m.pa_fuse for m in net.modules() if isinstance(m, Stage) and m.aligns]
    aligns = [m for m in net.modules() if isinstance(m, DeformAlign)]
    seen: list[tuple[Any, Tensor, int]] = []

    def note(module: nn.Module, args: tuple[Any, ...], _: Any) -> None:
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
                stack.callback(module.register_forward_hook(note).remove)
            run()
        known: dict[tuple, list[int]] = {}
        moments = [
            Moment([], saved, module.transient(x))
            if module in aligns
            else _moment(net, module, x, saved, known)
            for module, x, saved in seen
        ]
        return [*moments, Moment([], sum(sizes.values()))]


@contextmanager
def saved_bytes(net: nn.Module) -> Generator[dict[int, int]]:
    """Bytes of each storage that autograd saves for the backward pass, by address, without
    parameters and buffers.
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
    """known: bytes that are saved in addition when the flags are cleared one by one, of each kind
    and size of owner.
    """
    key, transient = (type(owner), tuple(x.shape), x.dtype), 0
    if isinstance(owner, Block):
        attn, transient = owner.attn, block_transient(owner, x)
        key += (owner.window, owner.shift if any(owner.shift) else None, attn.mutual, attn.heads)
        batch, *size, channels = x.shape
        window = [min(s, w) for s, w in zip(size, owner.window, strict=True)]
        padded = batch * math.prod(-(-s // w) * w for s, w in zip(size, window, strict=True))
        # Mutual attention adds the products within half a window.
        pairs = (3 if attn.mutual else 2) * math.prod(window) * channels
        of_attn, of_mlp = (
            sum(layer.weight.numel() for layer in m.children()) for m in (attn, owner.mlp)
        )
        work = padded * 2.0 * (of_attn + pairs), batch * math.prod(size) * 2.0 * of_mlp
    else:
        work = (2.0 * x.numel() / x.shape[-1] * sum(w.numel() for w in owner.weights().values()),)
    if key not in known:
        x, totals = x.requires_grad_(), []
        for flag in (None, *owner.FLAGS):
            if flag:
                setattr(owner, flag, False)
            with saved_bytes(net) as sizes:
                owner(x)
            totals.append(sum(sizes.values()))
        known[key] = [max(0, now - before) for before, now in pairwise(totals)]
        for flag in owner.FLAGS:
            setattr(owner, flag, True)
    branches = [
        Branch(owner, *branch) for branch in zip(owner.FLAGS, known[key], work, strict=True)
    ]
    return Moment(branches, saved, transient)


def out_of_memory_error(
    where: str,
    device: torch.device,
    train: TrainOptions,
    data: LoaderOptions | None,
    netG: Section,
    spec: InputSpec,
) -> SpikeVRTError:
    """The error for a training step without room, with the option lines that make it smaller."""
    peak_gb = devices.peak_gb(device)
    peak = "" if peak_gb is None else f", {peak_gb:.1f} GB at the peak"
    lines = suggest_changes(train, data, netG, spec) or [
        "take a smaller network, or a GPU with more memory"
    ]
    if gpu.is_cuda(device):
        lines.append(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment, against "
            "fragmentation"
        )
    return SpikeVRTError(
        what=f"out of memory on rank {utils_dist.get_rank()}{peak}",
        where=where,
        expected=f"a step within the {devices.total_gb(device):.1f} GB of the device, less what "
        "other processes use",
        do="\n".join(["one of these, or several:", *(f"{'':<12}{line}" for line in lines)]),
    )


def suggest_changes(
    train: TrainOptions, data: LoaderOptions | None, netG: Section, spec: InputSpec
) -> list[str]:
    """Option lines that make a training step smaller, those first that change the result least.

    data: datasets.train; None in a notebook without datasets.
    """
    lines, batch = [], getattr(data, "dataloader_batch_size", 1)
    if batch > 1:
        fewer = next(b for b in range(batch // 2, 0, -1) if batch % b == 0)
        steps = train.accumulation_steps * batch // fewer
        lines.append(
            f"datasets.train.dataloader_batch_size={fewer} train.accumulation_steps={steps}"
        )
    keys = [
        f"netG.{k}=true"
        for k in ("use_checkpoint_attn", "use_checkpoint_ffn")
        if getattr(netG, k, None) is False
    ]
    keys += [
        f"netG.{k}=[]"
        for k in ("no_checkpoint_attn_blocks", "no_checkpoint_ffn_blocks")
        if getattr(netG, k, [])
    ]
    if keys:
        lines.append(" ".join(keys))
    if not train.amp.enable:
        lines.append("train.amp.enable=true")
    side = getattr(data, "gt_size", 0) // spec.scale * 3 // 4 // spec.multiple * spec.multiple
    if side >= max(spec.least_size):
        lines.append(f"datasets.train.gt_size={side * spec.scale}")
    frames = getattr(data, "num_frame", 0) - 1
    # One frame more than the network requires, so that attention between frames has several frames
    # to use.
    if frames > spec.least_frames and not spec.interpolates:
        lines.append(f"datasets.train.num_frame={frames}")
    return lines
