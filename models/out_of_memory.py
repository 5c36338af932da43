"""What to say where a training step does not fit: what to change, and by how much."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor, nn

from models.vrt.fit_memory import GB, StepMemory, count_step
from utils import utils_dist
from utils.contract import InputSpec, input_spec
from utils.errors import SpikeVRTError
from utils.options.models import Options

logger = logging.getLogger(__name__)

# Share of a device that a step may take: the rest goes to the context of CUDA, other processes and fragments.
USABLE = 0.9
# Least side of the clip that is counted in place of the one that did not fit; below, padding would count too much.
PROBE_SIDE = 64


def memory_error(
    error: BaseException,
    where: str,
    opt: Options,
    net: nn.Module,
    clips: tuple[Tensor, Tensor | None],
    autocast: Callable[[], AbstractContextManager],
) -> SpikeVRTError:
    """The error to raise in place of `error`, an out-of-memory in a training step of net (bare) on `clips`.

    clips: lq (B, T, C, H, W) and spike (B, T, S, H, W) or None, on any device. What the step needs is counted
    on one clip of the smallest size, for memory grows in proportion to pixels and frames. The step's own tensors are
    dropped first, so only the traceback of `error` is usable afterwards.
    """
    lq, device = clips[0], next(net.parameters()).device
    peak = f", {torch.cuda.max_memory_allocated() / GB:.1f} GB at the peak" if device.type == "cuda" else ""
    total = device_gb(device)
    expected, do = f"a step within the {total:.1f} GB of the device", GENERAL
    traceback.clear_frames(error.__traceback__)
    net.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        memory = probe(net, *clips, autocast)
        if opt.train.E_decay:  # netE is a fifth copy beside weights, gradients and two moments
            memory = replace(memory, fixed=memory.fixed * 5 // 4)
        # Where the count says that it fits, something else holds memory: the step must shrink all the same.
        budget_gb = min(USABLE * total, 0.8 * memory.gb())
        ways = list(ways_out(memory, opt, budget_gb, input_spec(net)))
        expected += f"; this one needs about {memory.gb():.1f} GB"
        if memory.gb() < USABLE * total:
            expected += ", which should fit: other processes hold the rest, or it is in fragments"
        do = "\n".join(["one of these:", *(f"{'':<12}{line:<76} {words}" for line, words in ways)])
    except Exception as e:  # whatever keeps us from counting must not hide the error itself
        logger.debug("memory could not be counted: %s", e)
    what = f"out of memory on rank {utils_dist.get_rank()}{peak}"
    return SpikeVRTError(what, f"{where}, clips of {tuple(lq.shape)}", expected, do)


GENERAL = (
    "in this order: dataloader_batch_size 1 with accumulation_steps; train.amp.enable; "
    "netG.use_checkpoint_attn and use_checkpoint_ffn for more stages; a smaller gt_size or num_frame"
)


def device_gb(device: torch.device) -> float:
    """Memory of a GPU, or of this host."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / GB
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GB


def probe(
    net: nn.Module, lq: Tensor, spike: Tensor | None, autocast: Callable[[], AbstractContextManager]
) -> StepMemory:
    """Memory of a step on these clips, counted on the corner of one of them, once and twice.

    What does not grow from once to twice, such as the relative biases, does not grow with the clips either.
    """
    spec = input_spec(net)
    side = min(-(-max(*spec.least_size, PROBE_SIDE) // spec.multiple) * spec.multiple, *lq.shape[-2:])
    corner = (slice(0, 1), slice(None), slice(None), slice(0, side), slice(0, side))
    device = next(net.parameters()).device
    parts = [None if x is None else x[corner].to(device, copy=True) for x in (lq, spike)]

    def counted(times: int) -> StepMemory:
        inputs = [None if x is None else x.repeat(times, 1, 1, 1, 1) for x in parts]

        def run() -> Tensor:
            with autocast():
                return net(*inputs)

        return count_step(net, run)

    more = lq.numel() / parts[0].numel() - 1
    once = counted(1)
    twice = counted(2) if more else once
    return StepMemory(
        once.fixed,
        int(once.activations + more * (twice.activations - once.activations)),
        int(once.checkpointed + more * (twice.checkpointed - once.checkpointed)),
    )


def ways_out(memory: StepMemory, opt: Options, budget_gb: float, spec: InputSpec) -> Iterator[tuple[str, str]]:
    """(option line, what a step then needs): the mildest change of each kind that fits, else the strongest there is.

    memory: of the step as `opt` describes it.
    """
    data, train, netG = opt.datasets.train, opt.train, opt.netG
    batch, accumulated = data.dataloader_batch_size, train.accumulation_steps

    def mildest(found: list[tuple[str, float]]) -> Iterator[tuple[str, str]]:
        """found: (option line, share of the present pixels), mildest first."""
        for line, scale in found:
            if (need := memory.gb(scale)) <= budget_gb:
                yield line, f"about {need:.1f} GB"
                return
        if found:
            line, scale = found[-1]
            yield line, f"about {memory.gb(scale):.1f} GB, too much still"

    yield from mildest(
        [
            (f"datasets.train.dataloader_batch_size={b} train.accumulation_steps={accumulated * batch // b}", b / batch)
            for b in range(batch - 1, 0, -1)
            if batch % b == 0
        ]
    )
    if memory.checkpointed < memory.activations:
        need = memory.gb(checkpointed=True)
        fits = need <= budget_gb
        if fits:
            yield f"netG.checkpoint=auto netG.memory_budget_gb={budget_gb:.1f}", f"at most {budget_gb:.1f} GB"
        keys = [f"netG.use_checkpoint_{part}=true" for part in ("attn", "ffn")]
        spared = [f"no_checkpoint_{part}_blocks" for part in ("attn", "ffn")]
        keys += [f"netG.{key}=[]" for key in spared if getattr(netG, key, [])]
        yield " ".join(keys), f"about {need:.1f} GB" + ("" if fits else ", too much still")
    scale, side = opt.scale, data.gt_size // opt.scale
    sides = range((side - 1) // spec.multiple * spec.multiple, max(spec.least_size) - 1, -spec.multiple)
    yield from mildest([(f"datasets.train.gt_size={s * scale}", (s / side) ** 2) for s in sides])
    # A crop of more frames than the network needs at least, or attention across frames has nothing to look at.
    frames, fewest = data.num_frame, spec.least_frames + 1
    yield from mildest([(f"datasets.train.num_frame={n}", n / frames) for n in range(frames - 1, fewest - 1, -1)])
    if not train.amp.enable:
        yield "train.amp.enable=true", "activations in half the bytes, not counted here"
