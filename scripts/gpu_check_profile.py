"""gpu_check.py profile: where a training step spends its time: parts, kinds of kernels, idle time; torch.compile."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import torch
from torch.autograd import grad

from models.vrt.window_attention import Block
from scripts.benchmark_parts import PARTS, Profile
from scripts.gpu_check_step import Trainee
from scripts.gpu_check_tools import CHECKPOINTING, Measurement, Setting, milliseconds, network

KERNELS = 40
# Words in the names of kernels that compute element by element: casts, sums, products, LayerNorm, GELU, gathers.
ELEMENTWISE = ("elementwise", "norm", "_gate", "reduce", "index", "copy", "cat", "fill")


def profiled_step(setting: Setting, batch: int, kernels: str) -> dict[str, Any]:
    """Shares of the parts, forward, backward and recomputation together; the costliest kernels with their part."""
    flags = {"checkpointing all": CHECKPOINTING["all"]} if setting.is_small else {"": CHECKPOINTING["recipe"]}
    trainee = Trainee(setting, network(setting, kernels=kernels, **next(iter(flags.values()))), batch)
    trainee.step()
    profile = Profile(trainee.net, trainee.step, setting.device)
    found: dict[str, Any] = {"shares": _shares(profile.seconds())}
    if setting.is_small:
        return found
    costs: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for name, part, microseconds in profile.kernels():
        costs[name, part] += microseconds
        counts[name, part] += 1
    total = sum(costs.values())
    elementwise = sum(us for (name, _), us in costs.items() if any(word in name.lower() for word in ELEMENTWISE))
    return found | {
        "kernels launched": counts.total(), "elementwise": elementwise / total, "GPU idle": profile.idle_share(),
        "costliest": [
            {"kernel": name[:120], "part": part, "calls": counts[name, part], "share": us / total}
            for (name, part), us in costs.most_common(KERNELS)
        ],
    }  # fmt: skip


def _shares(seconds: dict[str, float]) -> dict[str, float]:
    total = sum(seconds.values())
    return {part: seconds[part] / total for part in PARTS}


def compiled_block(setting: Setting, index: int) -> dict[str, Any]:
    """ms of one block at full resolution in bfloat16, forward and backward; torch.compile takes the plain form."""
    setting.need_gpu("compiling takes minutes on a CPU")
    found = {}
    frames, height, width = setting.clip
    for form, kernels in (("auto", "auto"), ("plain", "plain"), ("plain, compiled", "plain")):
        block = [m for m in network(setting, kernels=kernels).modules() if isinstance(m, Block)][index]
        x = torch.randn(1, frames, height, width, block.norm1.normalized_shape[0], device=setting.device)
        x.requires_grad_()
        if "compiled" in form:
            block.compile()

        def both(block: Block = block, x: torch.Tensor = x) -> Any:
            with torch.autocast("cuda", torch.bfloat16):
                y = block(x)
            return grad(y.float().sum(), [x, *block.parameters()])

        found[f"{form} ms"] = milliseconds(setting, both)
    return found


def measurements(setting: Setting) -> dict[str, Measurement]:
    batch = 1 if setting.is_small else 8
    steps = {
        f"batch {batch}, {kernels}": functools.partial(profiled_step, batch=batch, kernels=kernels)
        for kernels in setting.forms
    }
    blocks = {"mutual": 1, "self": 7, "stage 8": -1}  # the second, the eighth and the last block of network 006
    compiled = {f"block, {name}": functools.partial(compiled_block, index=i) for name, i in blocks.items()}
    return {**steps, **compiled}
