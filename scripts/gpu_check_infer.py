"""gpu_check.py infer: seconds a frame of a whole frame and of tiles; curves of short trainings in each precision."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from models.restore.restorer import Restorer
from models.restore.tiling import Tiling
from scripts.benchmark_net import NAMED
from scripts.gpu_check_tools import TINY, Measurement, Setting, network, peak_gb, relative
from utils.run.timer import seconds_of

STEPS = 300
SMOOTHED = 25  # steps
# Name of a training -> kernels, autocast in bfloat16, seed. The second seed shows what a difference is worth.
CURVES = {
    "float32": ("auto", False, 0),
    "float32, seed 1": ("auto", False, 1),
    "bfloat16": ("auto", True, 0),
    "bfloat16, Triton": ("triton", True, 0),
}


class Frames:
    """A clip in memory, as a FrameReader."""

    def __init__(self, clip: Tensor) -> None:
        self.name, self.clip = "made", clip
        self.stems = [f"{i:06d}" for i in range(len(clip))]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        return {"lq": self.clip[index]}


def restored(setting: Setting, kernels: str, dtype: str) -> dict[str, Any]:
    """Seconds a frame and peak GB of 12 frames of 1280 x 720, whole and in tiles of 256, and how far they differ."""
    frames, height, width, tile = (2, 40, 48, 32) if setting.is_small else (12, 720, 1280, 256)
    clip = blurred_clip(torch.Generator().manual_seed(5), 1, frames, height, width)[0][0]
    net, found, results = network(setting, kernels=kernels), {}, {}
    window = net.input_spec.window_size
    for name, side in (("whole", 0), ("tiles", tile)):
        tiling = Tiling(
            size_patch_testing=side, size_patch_overlapping=8 if setting.is_small else 20,
            window_size=window, least_size=net.input_spec.least_size,
        )  # fmt: skip
        restorer = Restorer(net, tiling, setting.device, dtype=dtype)

        def run(restorer: Restorer = restorer, name: str = name) -> None:
            results[name] = torch.stack(list(restorer.frames(Frames(clip), range(frames))))

        with torch.no_grad():
            found[f"{name}, peak GB"] = peak_gb(setting, run)
            repeats = 0 if setting.is_small else 2
            found[f"{name}, s a frame"] = seconds_of(run, setting.device, repeats) / frames if repeats else None
    return {**found, "tiles against whole": relative(results["tiles"], results["whole"])}


def blurred_clip(generator: torch.Generator, batch: int, frames: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """(blurry, sharp) clips of a moving texture, (B, T, 3, H, W) in [0, 1]; a frame is the mean of seven moments."""
    coarse = torch.rand(batch, 3, height // 4 + 1, width // 4 + 1, generator=generator)
    texture = torch.nn.functional.interpolate(coarse, scale_factor=4)[..., :height, :width]
    dy, dx = torch.randint(-1, 2, (2,), generator=generator).tolist()
    moments = torch.stack([texture.roll((i * dy, i * dx), (2, 3)) for i in range(8 * frames)], dim=1)
    moments = moments.unflatten(1, (frames, 8))
    return moments[:, :, :7].mean(2), moments[:, :, 3]


def curve(setting: Setting, kernels: str, amp: bool, seed: int) -> dict[str, Any]:
    """The loss of each of 300 steps of the small network on made clips; the same clips in every training."""
    if setting.is_small and kernels == "triton":
        setting.need_gpu("the interpreter is too slow to train")
    options, side = (TINY, 32) if setting.is_small else (NAMED["small"], 64)
    net = network(setting, options, seed, kernels=kernels).train()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(6)
    losses = []
    for _ in range(2 if setting.is_small else STEPS):
        blurry, sharp = (x.to(setting.device) for x in blurred_clip(generator, 1, options["img_size"][0], side, side))
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(setting.device.type, torch.bfloat16, enabled=amp):
            y = net(blurry)
        loss = (y.float() - sharp).square().add(1e-9).sqrt().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return {"loss": [round(value, 6) for value in torch.stack(losses).tolist()]}


def spread(setting: Setting) -> dict[str, Any]:
    """How far the smoothed curves lie from that of float32: rms of the relative difference."""
    curves = {name: setting.found.get(f"curve, {name}", {}).get("loss") for name in CURVES}
    if curves["float32"] is None:
        raise ValueError("there is no curve in float32 to compare with")
    smooth = {name: _smoothed(losses) for name, losses in curves.items() if losses}
    reference = smooth.pop("float32")
    return {"rms": {name: float((c / reference - 1).square().mean().sqrt()) for name, c in smooth.items()}}


def _smoothed(losses: list[float]) -> Tensor:
    return torch.tensor(losses, dtype=torch.float64).unfold(0, min(SMOOTHED, len(losses)), 1).mean(1)


def measurements(setting: Setting) -> dict[str, Measurement]:
    kinds = [(form, "bfloat16") for form in setting.forms] + [("auto", "float32")]
    frames = {
        f"{kernels}, {dtype}": functools.partial(restored, kernels=kernels, dtype=dtype) for kernels, dtype in kinds
    }
    curves = {
        f"curve, {name}": functools.partial(curve, kernels=kernels, amp=amp, seed=seed)
        for name, (kernels, amp, seed) in CURVES.items()
    }
    return {**frames, **curves, "spread of the curves": spread}
