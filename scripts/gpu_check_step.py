"""gpu_check.py step: seconds and memory of a training step, by batch, kernels and checkpointing, against the counts."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from models.vrt.fit_memory import MARGIN, count_step
from models.vrt.precision import tf32
from scripts.gpu_check_tools import CHECKPOINTING, Measurement, Setting, network, peak_gb, step_loss
from utils.run.timer import seconds_of

WARMUP, REPEATS = 2, 5


class Trainee:
    """A network with optimiser and a random batch.

    amp: under autocast in bfloat16.
    """

    def __init__(self, setting: Setting, net: nn.Module, batch: int, amp: bool = True) -> None:
        frames, height, width = setting.clip
        self.net, self.device, self.amp = net.train(), setting.device, amp
        self.clip = torch.rand(batch, frames, 3, height, width, generator=torch.Generator().manual_seed(4))
        self.clip = self.clip.to(setting.device)
        self.optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=setting.device.type == "cuda")

    def restore(self) -> torch.Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.amp):
            return self.net(self.clip)

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        step_loss(self.restore()).backward()
        self.optimizer.step()


def training_step(setting: Setting, batch: int, kernels: str, flags: str) -> dict[str, Any]:
    """Median seconds, peak GB, and the GB that fit_memory counts, without its margin."""
    trainee = Trainee(setting, network(setting, kernels=kernels, **CHECKPOINTING[flags]), batch)
    found = _measured(setting, trainee)
    one = Trainee(setting, trainee.net, 1)
    try:
        with torch.autocast(setting.device.type, torch.bfloat16):  # as in training: blocks are counted one by one
            found["counted GB"] = count_step(one.net, one.restore).gb(scale=batch) / MARGIN
    except torch.OutOfMemoryError:
        found["counted GB"] = None
    return found


def naive_step(setting: Setting, is_tf32: bool) -> dict[str, Any]:
    """One clip through the published equations without optimisations, in float32."""
    from tests.naive_vrt import NaiveVRT

    with tf32(is_tf32):
        return _measured(setting, Trainee(setting, NaiveVRT(**setting.options).to(setting.device), 1, amp=False))


def _measured(setting: Setting, trainee: Trainee) -> dict[str, Any]:
    first = peak_gb(setting, trainee.step)
    repeats = (0, 1) if setting.is_small else (WARMUP - 1, REPEATS)
    s = seconds_of(trainee.step, setting.device, repeats[1], repeats[0])
    return {"s": s, "peak GB": first if first is None else max(first, torch.cuda.max_memory_allocated() / 1e9)}


def _cases() -> Iterator[tuple[int, str, str]]:
    """Batch, kernels, checkpointing: what matters most comes first, as the time may not suffice for all."""
    for batch in (8, 1, 2):
        yield from itertools.product((batch,), ("auto", "triton"), ("none", "recipe", "all"))


def measurements(setting: Setting) -> dict[str, Measurement]:
    cases = [(1, "auto", "none"), (1, "auto", "all")] if setting.is_small else list(_cases())
    steps = {
        f"batch {batch}, {kernels}, checkpointing {flags}": functools.partial(
            training_step, batch=batch, kernels=kernels, flags=flags
        )
        for batch, kernels, flags in cases
    }
    kinds = (False,) if setting.is_small else (False, True)
    naive = {f"naive, {'TF32' if on else 'float32'}": functools.partial(naive_step, is_tf32=on) for on in kinds}
    return dict([*list(steps.items())[:6], *naive.items(), *list(steps.items())[6:]])
