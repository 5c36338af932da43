"""Activation checkpointing: a part of the network saves its inputs, and is computed anew in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def recomputed(function: Callable[..., Tensor], *args: Any, is_random: bool = False) -> Tensor:
    """function(*args); in backward it is computed anew, under the same autocast.

    is_random: it draws random numbers, which have to be the same then.
    """
    kind = args[0].device.type
    if not torch.is_autocast_enabled(kind) or torch.compiler.is_compiling():
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=is_random)
    dtype = torch.get_autocast_dtype(kind)

    def contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
        # Without autocast's cache of weights, whose entries would outlive the recomputation (pytorch#193338).
        return nullcontext(), torch.autocast(kind, dtype, cache_enabled=False)

    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=is_random, context_fn=contexts)
