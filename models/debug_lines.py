"""Lines that every rank prints with `debug.every`: they show that all ranks train, and on which samples."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch import Tensor

from models.model_vrt import ModelVRT
from utils import utils_dist


def print_debug_lines(model: ModelVRT, step: int, micro_batches: list[dict[str, Any]], every: int) -> None:
    """Print the tensors of the first batch once per process, and loss and samples every `every` steps."""
    rank = f"[Rank {utils_dist.get_rank()}/{utils_dist.get_world_size()}]"
    if not model.is_described:
        model.is_described = True
        tensors = {"lq": model.lq, "spike": model.spike, **model.compared, "loss": model.step_losses["loss"]}
        found = "; ".join(f"{name} {_describe(value)}" for name, value in tensors.items() if value is not None)
        _print(f"{rank} First batch: {found}")
    if step % every == 0:
        keys = [key for batch in micro_batches for key in batch["key"]]
        loss = float(model.step_losses["loss"])
        _print(f"{rank} Step {step}, Batch size: {len(keys)}, Loss: {loss:.4f}, Samples: {', '.join(keys)}")


def _print(text: str) -> None:
    with suppress(OSError):  # a full disk behind stdout must not end the run
        print(text, flush=True)


def _describe(value: Tensor) -> str:
    """Shape, type, range and device, e.g. "(1, 2, 3, 32, 32) float32 0.012..0.98 on cpu"."""
    low, high = value.aminmax()
    kind = str(value.dtype).removeprefix("torch.")
    return f"{tuple(value.shape)} {kind} {low.item():.3g}..{high.item():.3g} on {value.device}"
