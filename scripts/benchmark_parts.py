"""Time per part of VRT in one run, from profiler ranges that exist only during that run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from models import network_vrt
from models.vrt import deform_align, flows, gpu_block, spynet, stage
from models.vrt.deform_align import DeformAlign
from models.vrt.mlp import GatedMlp
from models.vrt.stage import RefineLayer, Stage
from models.vrt.window_attention import Block

OTHER = "other"
# "mutual attention": the attention branch of blocks that have it, including their self attention; "warp": all warping,
# which "flow" and "alignment" therefore exclude; "convolutions": at both ends and in the fusion of spikes; "linears":
# between blocks and stages.
PARTS = (
    "flow", "warp", "alignment", "mutual attention", "self attention", "MLP", "convolutions", "linears", "optimiser",
    OTHER,
)  # fmt: skip
MARK = "part: "
# Parts known by the names of their events: branches computed by one autograd function, and the optimiser.
EVENTS = {"MlpBranch": "MLP", "Optimizer.": "optimiser"}
# Autograd runs each node of the backward pass in an event of this name, which refers to its forward operation.
BACKWARD = "autograd::engine::evaluate_function"


class Profile:
    """One run of a network, forward with or without backward, whose every operation is booked under one of PARTS.

    An operation belongs to the innermost range around it, and its backward to the same part. What is computed anew in
    backward belongs to the part that it computes, not to the one whose gradient asked for it.
    """

    def __init__(self, net: nn.Module, job: Callable[[], Any], device: torch.device) -> None:
        """job: a run of net."""
        self.is_gpu = device.type == "cuda"
        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self.is_gpu
        with ranges(net), profile(activities=kinds) as profiled, record_function(MARK + OTHER):
            job()
        self._events = profiled.events()
        # A range, also one of torch's own, is listed among what ran on the GPU, from its first kernel to its last.
        self._ranges = {e.name for e in self._events if e.is_user_annotation or e.name.startswith(MARK)}

    def operations(self) -> Iterator[tuple[FunctionEvent, str]]:
        """Every event on the host, with its part."""
        owners: dict[tuple[int, int], str] = {}  # (thread, sequence number) of a forward operation -> its part
        roots = [e for e in self._events if e.cpu_parent is None and e.device_type == DeviceType.CPU]
        stack = [(event, OTHER) for event in sorted(roots, key=_start, reverse=True)]
        while stack:  # in order of time, as a recomputed operation (checkpointing) gets a new backward node
            event, part = stack.pop()
            part = _part(event, owners) or part
            if event.sequence_nr >= 0 and not event.fwd_thread:
                # Several operations may share a number; the last of them created the graph node.
                owners[event.thread, event.sequence_nr] = part
            yield event, part
            stack.extend((child, part) for child in sorted(event.cpu_children, key=_start, reverse=True))

    def kernels(self) -> Iterator[tuple[str, str, float]]:
        """Name, part and microseconds of every kernel on the GPU."""
        for event, part in self.operations():
            for kernel in event.kernels:
                if kernel.name not in self._ranges:
                    yield kernel.name, part, kernel.duration

    def seconds(self) -> dict[str, float]:
        """Seconds in each of PARTS; of kernels on a GPU."""
        found = dict.fromkeys(PARTS, 0.0)
        if self.is_gpu:
            for _, part, us in self.kernels():
                found[part] += us / 1e6
        else:
            for event, part in self.operations():
                found[part] += event.self_cpu_time_total / 1e6
        return found

    def idle_share(self) -> float:
        """Share of the time from the first kernel to the last in which the GPU runs none."""
        spans = sorted(
            (e.time_range.start, e.time_range.end)
            for e in self._events
            if e.device_type != DeviceType.CPU and e.name not in self._ranges
        )
        busy, reached = 0.0, spans[0][0]
        for start, end in spans:
            busy += max(0.0, end - max(start, reached))
            reached = max(reached, end)
        return 1 - busy / (reached - spans[0][0])


def _start(event: FunctionEvent) -> float:
    return event.time_range.start


def _part(event: FunctionEvent, owners: dict[tuple[int, int], str]) -> str | None:
    if event.name.startswith(MARK):
        return event.name.removeprefix(MARK)
    known = next((part for name, part in EVENTS.items() if name in event.name), None)
    if known is None and event.name.startswith(BACKWARD):
        return owners.get((event.fwd_thread, event.sequence_nr))
    return known


@contextmanager
def ranges(net: nn.Module) -> Iterator[None]:
    """Within this context, every part of net runs inside a profiler range of its name."""
    before = []
    try:
        for owner, name, part in _places(net):
            before.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, _ranged(getattr(owner, name), MARK + part))
        yield
    finally:
        for owner, name, original in reversed(before):
            if original is None:
                delattr(owner, name)  # restores the method of the class
            else:
                setattr(owner, name, original)


def _ranged(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return function(*args, **kwargs)

    return inside


def _places(net: nn.Module) -> Iterator[tuple[Any, str, str]]:
    """(owner, name of its function, part) of every function to wrap."""
    for module in (deform_align, spynet, flows):
        yield module, "flow_warp", "warp"
    yield network_vrt, "aligned_input", "warp"
    yield net, "estimate_flows", "flow"
    for name, child in net.named_children():
        if name in ("norm", "conv_after_body"):
            yield child, "forward", "linears"
        elif name != "spynet" and not isinstance(child, Stage | nn.ModuleList):
            yield child, "forward", "convolutions"
    yield net.stage8[0], "forward", "linears"
    yield stage, "mlp_at_once", "MLP"
    for name in ("gated_mlp", "gated_mlp_backward", "_mlp_backward"):  # within one function for a whole block
        yield gpu_block, name, "MLP"
    for module in net.modules():
        if isinstance(module, Block):
            attention = "mutual attention" if module.attn.mutual else "self attention"
            # The branches have ranges of their own: checkpointing calls them again in backward.
            for name, part in (("forward", attention), ("_attention_branch", attention), ("_mlp_branch", "MLP")):
                yield module, name, part
        elif isinstance(module, GatedMlp):
            yield module, "forward", "MLP"
            yield module, "_forward", "MLP"
        elif isinstance(module, DeformAlign):
            yield module, "forward", "alignment"
            yield module, "_sampled", "alignment"
            yield module, "_aligned", "alignment"
        elif isinstance(module, Stage):
            for linear in (module.reshape, module.linear1, module.linear2):
                yield linear, "forward", "linears"
        elif isinstance(module, RefineLayer):
            yield module.linear, "forward", "linears"
