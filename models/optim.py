"""Optimizer groups, and the learning rate as a pure function of the step (a resume needs no scheduler state)."""

import inspect
import logging
import math
from itertools import accumulate, chain
from typing import Any

import torch
from torch import nn

from utils import utils_dist
from utils.options.models import TrainOptions

logger = logging.getLogger(__name__)


def build_optimizer(net: nn.Module, train: TrainOptions) -> torch.optim.Optimizer:
    """Adam or AdamW over two groups: the ordinary parameters, and those of `fix_keys` at lr * `fix_lr_mul`.

    Frozen parameters are included from the start: the optimizer skips parameters without a gradient. Warns where one of
    `fix_keys` names none.
    """
    base, mul, named = train.G_optimizer_lr, train.fix_lr_mul, dict(net.named_parameters())
    unknown = [key for key in train.fix_keys if not any(key in name for name in named)]
    if unknown and train.fix_iter not in (None, -1) and utils_dist.is_main_process():
        logger.warning("train.fix_keys: no parameter of the network has %s in its name", " or ".join(unknown))
    groups = [
        {"params": [named[name] for name in names], "initial_lr": lr, "lr": lr}
        for names, lr in zip(group_names(net, train.fix_iter, train.fix_keys), (base, base * mul), strict=True)
        if names
    ]
    cls = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[train.G_optimizer_type]
    # Around these methods torch imports its compiler, two seconds of each process. The optimizer is not compiled.
    methods = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    eager = {name: inspect.unwrap(getattr(cls, name)) for name in methods}
    cls = type(cls.__name__, (cls,), {**eager, "step": torch.no_grad()(inspect.unwrap(cls.step))})
    fused = all(p.is_cuda for p in named.values())
    return cls(groups, betas=tuple(train.G_optimizer_betas), weight_decay=train.G_optimizer_wd, fused=fused)


def group_names(net: nn.Module, fix_iter: int | None, fix_keys: list[str]) -> tuple[list[str], list[str]]:
    """Names of the ordinary parameters and of those of `train.fix_keys`, in the order of the optimizer's groups.

    The second group is frozen until `fix_iter`; null or -1 leave it empty.
    """
    keys = () if fix_iter in (None, -1) else fix_keys
    groups: tuple[list[str], list[str]] = ([], [])
    for name, _ in net.named_parameters():
        groups[any(key in name for key in keys)].append(name)
    return groups


def load_moments(
    optimizer: torch.optim.Optimizer, saved: dict[str, Any], net: nn.Module, was: dict[str, Any], train: TrainOptions
) -> None:
    """Load Adam's moments from the state dict `saved` by parameter name; lr, betas and weight decay stay as they are.

    was: the `train` section that `saved` was made with. A state dict names parameters by their index in the groups,
    which depends on `fix_iter` and `fix_keys`.
    """
    own = optimizer.state_dict()
    groups = group_names(net, was["fix_iter"], was["fix_keys"]), group_names(net, train.fix_iter, train.fix_keys)
    then, here = (
        dict(zip(chain(*names), chain(*(g["params"] for g in state["param_groups"])), strict=True))
        for names, state in zip(groups, (saved, own), strict=True)
    )
    state = {n: saved["state"][then[name]] for name, n in here.items() if then[name] in saved["state"]}
    optimizer.load_state_dict({"state": state, "param_groups": own["param_groups"]})


def lr_at(step: int, base: float, train: TrainOptions) -> float:
    """Learning rate at `step` (counted from 1) for a group whose full rate is `base`.

    MultiStepLR: base * gamma^(number of milestones <= step). CosineAnnealingWarmRestarts: SGDR (Loshchilov & Hutter,
    ICLR 2017, eq. 5) over the listed periods; after the last one the rate stays at eta_min, whereas torch's scheduler
    would restart at the full rate. The first `G_warmup_iter` steps are scaled by a linear warm-up.
    """
    warm_up = min(1.0, step / train.G_warmup_iter) if train.G_warmup_iter else 1.0
    if train.G_scheduler_type == "MultiStepLR":
        return warm_up * (base * train.G_scheduler_gamma ** sum(step >= m for m in train.G_scheduler_milestones))
    periods, weights = (
        value if isinstance(value, list) else [value]
        for value in (train.G_scheduler_periods, train.G_scheduler_restart_weights)
    )
    lr = train.G_scheduler_eta_min
    for index, (stop, period) in enumerate(zip(accumulate(periods), periods, strict=True)):
        if step < stop:
            angle = math.pi * (step - stop + period) / period
            lr += weights[min(index, len(weights) - 1)] * (base - lr) * (1 + math.cos(angle)) / 2
            break
    return warm_up * lr


def lr_floor(train: TrainOptions, total_iter: int) -> int | None:
    """The step, to a thousandth of the run, from which the learning rate stays at its floor; None: there is none.

    The floor is G_scheduler_eta_min after the last period, and anything up to a thousandth of the full rate.
    """
    base, stride = train.G_optimizer_lr, max(1, total_iter // 1000)
    floor = 0.001 * base
    if train.G_scheduler_type == "CosineAnnealingWarmRestarts":
        floor = max(floor, train.G_scheduler_eta_min)
    found = None
    for step in range(total_iter, train.G_warmup_iter or 0, -stride):
        if lr_at(step, base, train) > floor:
            break
        found = step
    return found
