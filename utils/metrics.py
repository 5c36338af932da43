"""PSNR and SSIM as the field reports them, and their averages as sums and counts.

Protocol (one implementation serves validation and testing): clamp to 0..1, x255, round to uint8; per frame, in
float64, no border crop; mean over the frames of a clip, then mean over clips. The frame mean is kept beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from utils.errors import DataError

if TYPE_CHECKING:  # programs that only prepare data start without torch
    from torch import Tensor

METRICS = ("psnr", "ssim", "psnr_y", "ssim_y")
LUMA_METRICS = ("psnr_y", "ssim_y")
PROTOCOL = (
    "clamp 0..1, x255, round to uint8; MSE over RGB in float64; SSIM with an 11x11 Gaussian (sigma 1.5), valid region, "
    "mean over channels; Y: BT.601 luma 16..235, not rounded; no border crop; frame -> clip mean -> mean over clips"
)

_SSIM_KERNEL = cv2.getGaussianKernel(11, 1.5)
_SSIM_BORDER = 5


def tensor_to_uint8(image: Tensor) -> np.ndarray:
    """(..., C, H, W) float in [0, 1] -> (..., H, W, C) uint8: clamped, x255, rounded half to even."""
    return (image.detach().float().clamp(0, 1) * 255).round().byte().movedim(-3, -1).contiguous().cpu().numpy()


def rgb_to_y(image: np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8 RGB -> (H, W) float64 luma in 16..235, not rounded (ITU-R BT.601, MATLAB's rgb2ycbcr)."""
    return image.astype(np.float64) @ (np.array([65.481, 128.553, 24.966]) / 255.0) + 16.0


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """20 log10(255 / sqrt(MSE)) in dB over all values of two images in 0..255; inf where they are equal."""
    _check_shapes(a, b)
    mse = float(np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2))
    return float("inf") if mse == 0 else 20 * float(np.log10(255.0 / np.sqrt(mse)))


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Structural similarity of two images (H, W) or (H, W, C) in 0..255, mean over channels; at most 1.

    Source: Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment: from error visibility to structural similarity",
    IEEE TIP 13(4), 2004, eq. 13 with the authors' constants and window: K1 0.01, K2 0.03, L 255, Gaussian 11x11 of
    sigma 1.5, population (not sample) covariance, mean over the pixels whose window lies inside the image.
    """
    _check_shapes(a, b)
    if min(a.shape[:2]) < len(_SSIM_KERNEL):
        raise DataError(
            f"SSIM of an image of {a.shape[1]}x{a.shape[0]}", "", "at least 11x11 pixels", "use larger frames"
        )
    x, y = a.astype(np.float64), b.astype(np.float64)
    mean_x, mean_y = _ssim_window(x), _ssim_window(y)
    var_x = _ssim_window(x * x) - mean_x**2
    var_y = _ssim_window(y * y) - mean_y**2
    cov = _ssim_window(x * y) - mean_x * mean_y
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    similarity = (2 * mean_x * mean_y + c1) * (2 * cov + c2) / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))
    return float(similarity.mean())


def frame_scores(restored: np.ndarray, gt: np.ndarray) -> dict[str, float]:
    """The values of `METRICS` for one frame; both (H, W, 3) uint8 RGB."""
    restored_y, gt_y = rgb_to_y(restored), rgb_to_y(gt)
    return {
        "psnr": psnr(restored, gt),
        "ssim": ssim(restored, gt),
        "psnr_y": psnr(restored_y, gt_y),
        "ssim_y": ssim(restored_y, gt_y),
    }


class ClipScores:
    """Per-frame values of every clip seen here. Its sums and counts may be added up over ranks in any order."""

    def __init__(self) -> None:
        self.frames: dict[str, list[dict[str, float]]] = {}

    def add(self, clip: str, values: dict[str, float]) -> None:
        """One more frame of `clip`; values: metric name -> value."""
        self.frames.setdefault(clip, []).append(dict(values))

    def update(self, frames: dict[str, list[dict[str, float]]]) -> None:
        """Take over whole clips, e.g. from another rank. A clip that is here already is an error: it counts once."""
        twice = sorted(set(frames) & set(self.frames))
        if twice:
            raise ValueError(f"clips scored twice: {', '.join(twice)}")
        self.frames.update(frames)

    def clip_means(self) -> dict[str, dict[str, float]]:
        """clip -> metric -> mean over the frames of that clip."""
        return {clip: _means(values) for clip, values in sorted(self.frames.items())}

    def sums(self, metrics: Iterable[str] = METRICS) -> dict[str, float]:
        """Plain sums with the same keys on every rank, to be added up over the ranks; read by `averages`."""
        means = self.clip_means().values()
        every = [values for clip in self.frames.values() for values in clip]
        totals = {"clips": float(len(self.frames)), "frames": float(len(every))}
        for name in metrics:
            totals[f"{name}/clip_sum"] = float(sum(m[name] for m in means))
            totals[f"{name}/frame_sum"] = float(sum(v[name] for v in every))
        return totals


def averages(sums: dict[str, float], clips_expected: int) -> dict[str, Any]:
    """Sums over all ranks -> {metric: mean over clips, metric_frame_mean, clips_found, clips_expected, complete}.

    Metrics are NaN where no clip was found; `complete` is False where clips are missing.
    """
    clips, frames = int(sums["clips"]), int(sums["frames"])
    result: dict[str, Any] = {}
    for key, total in sums.items():
        name, _, kind = key.rpartition("/")
        if kind == "clip_sum":
            result[name] = total / clips if clips else float("nan")
        elif kind == "frame_sum":
            result[f"{name}_frame_mean"] = total / frames if frames else float("nan")
    return {
        **result,
        "frames": frames,
        "clips_found": clips,
        "clips_expected": clips_expected,
        "complete": clips == clips_expected,
    }


def _means(values: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([v[name] for v in values])) for name in values[0]}


def _ssim_window(image: np.ndarray) -> np.ndarray:
    filtered = cv2.sepFilter2D(image, cv2.CV_64F, _SSIM_KERNEL, _SSIM_KERNEL)
    return filtered[_SSIM_BORDER:-_SSIM_BORDER, _SSIM_BORDER:-_SSIM_BORDER]


def _check_shapes(a: np.ndarray, b: np.ndarray) -> None:
    if a.shape != b.shape:
        raise DataError(f"two images of different sizes: {a.shape} and {b.shape}", "", "the same size", "check --gt")
