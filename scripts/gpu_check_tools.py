"""Shared by the parts of gpu_check: the device and its sizes, networks, timing, differences, poisoned memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.benchmark import Timer

from models.network_vrt import VRT
from scripts.benchmark_net import NAMED, RECIPES

# A measurement returns its figures as plain JSON. One that raises `Skipped` has its reason in the report.
Measurement = Callable[["Setting"], dict[str, Any]]
# Small enough for a CPU, with every kind of block.
TINY: dict[str, Any] = {
    "upscale": 1, "img_size": [2, 32, 32], "window_size": [2, 4, 4], "depths": [2] + [0] * 6 + [2, 1],
    "indep_reconsts": [8], "embed_dims": [16] * 9, "num_heads": [2] * 9, "mul_attn_ratio": 1.0, "pa_frames": 2,
    "deformable_groups": 4,
}  # fmt: skip
CHECKPOINTING = {
    "none": {},
    "recipe": {key: value for key, value in RECIPES["006"].items() if "checkpoint" in key},
    "all": {"use_checkpoint_attn": True, "use_checkpoint_ffn": True},
}


# Where the user's choice of kernels lies, see models/vrt/kernel_choice.py.
USER_CACHE = os.environ.get("XDG_CACHE_HOME")


@contextmanager
def cache_folder(folder: str | None) -> Iterator[None]:
    """The choice of kernels is read from and written to this folder; None: the default one."""
    before = os.environ.pop("XDG_CACHE_HOME", None)
    try:
        if folder is not None:
            os.environ["XDG_CACHE_HOME"] = folder
        yield
    finally:
        os.environ.pop("XDG_CACHE_HOME", None)
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before


class Skipped(Exception):
    """Why a measurement is not made on this machine."""


@dataclass(frozen=True)
class Setting:
    """The device, and the sizes that fit it: those of the GoPro recipe on a GPU, tiny ones on a CPU.

    found: the results of the measurements before this one in the same part.
    """

    device: torch.device
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def is_small(self) -> bool:
        return self.device.type == "cpu"

    @property
    def options(self) -> dict[str, Any]:
        """Of the network: 006 or TINY."""
        return TINY if self.is_small else NAMED["006"]

    @property
    def clip(self) -> tuple[int, int, int]:
        """Frames, height, width of a training sample."""
        return (2, 32, 32) if self.is_small else (6, 192, 192)

    @property
    def forms(self) -> tuple[str, ...]:
        """netG.kernels to compare. No earlier choice is read here, so that "auto" is not Triton."""
        return ("auto",) if self.is_small else ("auto", "triton")

    def need_gpu(self, why: str) -> None:
        if self.is_small:
            raise Skipped(f"needs a GPU: {why}")


def network(setting: Setting, options: dict[str, Any] | None = None, seed: int = 0, **changes: Any) -> VRT:
    """A network whose every part has an effect: parameters that start at zero get small random values."""
    torch.manual_seed(seed)
    net = VRT(**{**(options or setting.options), "drop_path_rate": 0.0, **changes})
    for parameter in net.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    return net.to(setting.device)


def step_loss(restored: Tensor) -> Tensor:
    """A scalar like that of training."""
    precise = torch.promote_types(restored.dtype, torch.float32)
    return (restored.to(precise) - 0.5).square().add(1e-9).sqrt().mean()


def milliseconds(setting: Setting, run: Callable[[], Any]) -> float:
    """Median time of `run` in ms, after one call that compiles and warms up."""
    run()
    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=0.005 if setting.is_small else 0.2).median * 1e3


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest expected value; infinite where `found` is not finite."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    if not torch.isfinite(found).all():
        return float("inf")
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def poison(setting: Setting, gigabytes: float = 4.0) -> None:
    """Fill memory with NaN and give it back, so that a kernel that leaves a part of its output unwritten is found."""
    if setting.device.type == "cuda":
        torch.cuda.empty_cache()
        pieces = [torch.full((2**28 // 4,), float("nan"), device=setting.device) for _ in range(int(4 * gigabytes))]
        # The small tensors of torch have blocks of their own, of 2 MiB.
        pieces += [torch.full((2**17,), float("nan"), device=setting.device) for _ in range(64)]
        del pieces


def peak_gb(setting: Setting, run: Callable[[], Any]) -> float | None:
    """Most GB (1e9 bytes) of tensors during `run`; None on a CPU."""
    if setting.device.type != "cuda":
        run()
        return None
    torch.cuda.reset_peak_memory_stats(setting.device)
    run()
    return torch.cuda.max_memory_allocated(setting.device) / 1e9
