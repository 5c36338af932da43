"""The error for a training step that runs out of memory: which options to change, and the memory each then needs."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.vrt.fit_memory import GB, StepMemory, count_step
from utils import utils_dist
from utils.contract import InputSpec, input_spec
from utils.errors import SpikeVRTError
from utils.options.models import LoaderOptions, TrainOptions
from utils.options.section import Section

logger = logging.getLogger(__name__)

# Share of a device that a step may use. The rest is for the CUDA context, other processes and fragmentation.
USABLE_SHARE = 0.9
# Smallest side of the crop that is measured instead of the whole clip. On smaller crops, padding distorts the result.
PROBE_SIDE = 64
GENERAL_ADVICE = (
    "in this order: dataloader_batch_size 1 with accumulation_steps; train.amp.enable; "
    "netG.use_checkpoint_attn and use_checkpoint_ffn for more stages; a smaller gt_size or num_frame"
)


class StepOptions(NamedTuple):
    """The sections that decide on the memory of a step. data: datasets.train."""

    train: TrainOptions
    data: LoaderOptions
    netG: Section


def is_out_of_memory(error: BaseException) -> bool:
    """True for the errors that torch raises if a GPU or the host has no memory left."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def out_of_memory_error(
    error: BaseException,
    where: str,
    options: StepOptions,
    net: nn.Module,
    clips: tuple[Tensor, Tensor | None],
    autocast: Callable[[], AbstractContextManager],
) -> SpikeVRTError:
    """The error to raise instead of `error`, an out-of-memory in a training step of net (without DDP) on `clips`.

    clips: lq (B, T, C, H, W) and spike (B, T, S, H, W) or None, on any device. The memory of the step is extrapolated
    from a small crop. Before that the tensors of the step are freed; afterwards only the traceback of `error` is
    usable.
    """
    lq, device = clips[0], next(net.parameters()).device
    peak = f", {torch.cuda.max_memory_allocated() / GB:.1f} GB at the peak" if device.type == "cuda" else ""
    total = device_gb(device)
    expected, do = f"a step within the {total:.1f} GB of the device", GENERAL_ADVICE
    traceback.clear_frames(error.__traceback__)
    net.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        memory = estimate_step(net, *clips, autocast)
        if options.train.E_decay:  # netE is a fifth copy besides weights, gradients and two moments
            memory = replace(memory, fixed=memory.fixed * 5 // 4)
        # If the estimate fits, something else uses the memory, and the step must still become smaller.
        budget_gb = min(USABLE_SHARE * total, 0.8 * memory.gb())
        changes = suggest_changes(memory, options, budget_gb, input_spec(net))
        expected += f"; this one needs about {memory.gb():.1f} GB"
        if memory.gb() < USABLE_SHARE * total:
            expected += ", which should fit: other processes use the rest, or the memory is fragmented"
        do = "\n".join(["one of these:", *(f"{'':<12}{line:<76} {need}" for line, need in changes)])
    except Exception as e:  # a failing estimate must not hide the error itself
        logger.debug("the memory of a step could not be estimated: %s", e)
    what = f"out of memory on rank {utils_dist.get_rank()}{peak}"
    return SpikeVRTError(what, f"{where}, clips of {tuple(lq.shape)}", expected, do)


def device_gb(device: torch.device) -> float:
    """Total memory of a GPU, or of this host for the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / GB
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GB


def estimate_step(
    net: nn.Module, lq: Tensor, spike: Tensor | None, autocast: Callable[[], AbstractContextManager]
) -> StepMemory:
    """Memory of a step on these clips, extrapolated from a crop of the first clip, as a batch of one and of two.

    The difference of the two grows with the clips; the rest, such as the relative position biases, does not.
    """
    spec = input_spec(net)
    side = min(-(-max(*spec.least_size, PROBE_SIDE) // spec.multiple) * spec.multiple, *lq.shape[-2:])
    corner = (slice(0, 1), slice(None), slice(None), slice(0, side), slice(0, side))
    device = next(net.parameters()).device
    parts = [None if x is None else x[corner].to(device, copy=True) for x in (lq, spike)]

    def measure(times: int) -> StepMemory:
        inputs = [None if x is None else x.repeat(times, 1, 1, 1, 1) for x in parts]
        with autocast():  # around the count: it also runs single blocks
            return count_step(net, lambda: net(*inputs))

    more = lq.numel() / parts[0].numel() - 1
    once = measure(1)
    twice = measure(2) if more else once
    return StepMemory(
        once.fixed,
        int(once.activations + more * (twice.activations - once.activations)),
        int(once.checkpointed + more * (twice.checkpointed - once.checkpointed)),
    )


def suggest_changes(
    memory: StepMemory, options: StepOptions, budget_gb: float, spec: InputSpec
) -> Iterator[tuple[str, str]]:
    """Yield (options, memory of a step with them): for each kind of change the mildest that fits, else the strongest.

    memory: of a step with `options`.
    """
    train, data, netG = options
    batch, accumulated = data.dataloader_batch_size, train.accumulation_steps

    def mildest(candidates: list[tuple[str, float]]) -> Iterator[tuple[str, str]]:
        """candidates: (options, share of the current pixels), mildest first."""
        for line, scale in candidates:
            if (need := memory.gb(scale)) <= budget_gb:
                yield line, f"about {need:.1f} GB"
                return
        if candidates:
            line, scale = candidates[-1]
            yield line, f"about {memory.gb(scale):.1f} GB, still too much"

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
        exceptions = [f"no_checkpoint_{part}_blocks" for part in ("attn", "ffn")]
        keys += [f"netG.{key}=[]" for key in exceptions if getattr(netG, key, [])]
        yield " ".join(keys), f"about {need:.1f} GB" + ("" if fits else ", still too much")
    scale, side = spec.scale, data.gt_size // spec.scale
    sides = range((side - 1) // spec.multiple * spec.multiple, max(spec.least_size) - 1, -spec.multiple)
    yield from mildest([(f"datasets.train.gt_size={s * scale}", (s / side) ** 2) for s in sides])
    # One frame more than the network requires, so that attention between frames has several frames to use.
    frames, fewest = data.num_frame, spec.least_frames + 1
    if not spec.interpolates:  # an interpolating network takes a fixed number of frames
        yield from mildest([(f"datasets.train.num_frame={n}", n / frames) for n in range(frames - 1, fewest - 1, -1)])
    if not train.amp.enable:
        yield "train.amp.enable=true", "halves the activations (not estimated here)"
