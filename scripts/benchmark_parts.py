"""Seconds per part of VRT in one run, from profiler ranges that exist only during that run."""

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
from models.vrt import deform_align, flows, spynet
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


def seconds_per_part(net: nn.Module, job: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """Seconds that `job`, a run of net with or without backward, spends in each of PARTS; of kernels on a GPU.

    The time of an operation counts for the innermost range around it; its backward counts for the same part.
    """
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with ranges(net), profile(activities=kinds) as profiled, record_function(MARK + OTHER):
        job()
    found = dict.fromkeys(PARTS, 0.0)
    owners: dict[tuple[int, int], str] = {}  # (thread, sequence number) of a forward operation -> its part
    roots = [e for e in profiled.events() if e.cpu_parent is None and e.device_type == DeviceType.CPU]
    stack = [(event, OTHER) for event in sorted(roots, key=_start, reverse=True)]
    while stack:  # in order of time, as a recomputed operation (checkpointing) gets a new backward node
        event, part = stack.pop()
        part = _part(event, owners) or part
        if event.sequence_nr >= 0 and not event.fwd_thread:
            # Several operations may share a number; the last of them created the graph node.
            owners[event.thread, event.sequence_nr] = part
        own_us = event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total
        found[part] += own_us / 1e6
        stack.extend((child, part) for child in sorted(event.cpu_children, key=_start, reverse=True))
    return found


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
    for module in net.modules():
        if isinstance(module, Block):
            yield module, "forward", "mutual attention" if module.attn.mutual else "self attention"
            yield module.norm2, "forward", "MLP"
        elif isinstance(module, GatedMlp):
            yield module, "forward", "MLP"
        elif isinstance(module, DeformAlign):
            yield module, "forward", "alignment"
        elif isinstance(module, Stage):
            for linear in (module.reshape, module.linear1, module.linear2):
                yield linear, "forward", "linears"
        elif isinstance(module, RefineLayer):
            yield module.linear, "forward", "linears"
