"""Wrap the trained network in DDP (DistributedDataParallel), and unwrap it.

A rank is one process of a training, and DDP sums the gradients of all ranks. model_vrt.py wraps the
network at the first step, and again at the step train.fix_iter, when frozen parameters are
released. Code that reads names, attributes or weights of the network unwraps it first.

"Collective" in a docstring means that the ranks wait for each other in this function, so every rank
must call it at the same point of the program.

What must stay: all ranks train the same parameters, and gradients are summed once per step
(test_parts_released_at_fix_iter_are_reduced_over_the_ranks,
test_accumulation_has_the_gradients_of_the_whole_batch).

Tests: tests/parts/models/test_gradients.py, tests/stories/test_main_train.py
"""

import hashlib
import warnings
from contextlib import nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from utils import utils_dist


def unwrap_ddp(net: nn.Module) -> nn.Module:
    """Return the network without its DDP wrapper."""
    return net.module if isinstance(net, DistributedDataParallel) else net


def wrap_in_ddp(net: nn.Module, find_unused_parameters: bool, use_static_graph: bool) -> nn.Module:
    """Wrap `net` in DDP. In a single process, return `net` itself.

    Collective: every rank must call this, because the ranks wait for each other in it.

    When DDP is built, it notes which parameters require a gradient, and later sums only the
    gradients of these parameters. So wrap the network again after you have frozen or released
    parameters. If you do not, the weights diverge between ranks without an error.

    find_unused_parameters, use_static_graph: options of DDP. Both may be false for VRT. A user may
    set them for a network of another kind.
    """
    if utils_dist.get_world_size() == 1:
        return net
    # If the networks differ, DDP raises an error on only one rank, and the other ranks hang. So
    # compare the networks first.
    utils_dist.check_same_on_all_ranks("the networks", _outline_hash(net))
    with warnings.catch_warnings():
        # torch warns because broadcast_buffers gets another name in torch 2.15.
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            net,
            # Training changes no buffer of our networks, so there is nothing to send.
            broadcast_buffers=False,
            # Let the gradients be views of DDP's buckets, because DDP would otherwise copy each
            # gradient.
            gradient_as_bucket_view=True,
            find_unused_parameters=find_unused_parameters,
            static_graph=use_static_graph,
        )


def gradient_sync(net: nn.Module, is_last: bool) -> Any:
    """Return the context in which a micro-batch runs: with or without a sum over the ranks.

    A micro-batch is one of the batches of a step (train.accumulation_steps). Each rank adds up the
    gradients of its micro-batches. To save communication, only the backward pass of the last
    micro-batch sums the gradients over the ranks.

    net: the network, perhaps in DDP.
    is_last: whether the micro-batch is the last of its step.
    """
    if is_last or not isinstance(net, DistributedDataParallel):
        return nullcontext()
    return net.no_sync()


def _outline_hash(net: nn.Module) -> str:
    """Hash what DDP needs to be equal on all ranks: names, shapes, dtypes, requires_grad.

    Returns 12 hex digits.
    """
    outline: list[tuple[Any, ...]] = []
    for name, parameter in net.named_parameters():
        shape = tuple(parameter.shape)
        outline.append((name, shape, str(parameter.dtype), parameter.requires_grad))
    for name, buffer in net.named_buffers():
        outline.append((name, tuple(buffer.shape), str(buffer.dtype)))
    return hashlib.sha256(repr(outline).encode()).hexdigest()[:12]
