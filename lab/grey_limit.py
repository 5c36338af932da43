#!/usr/bin/env python3
"""Measure how much spikes could gain at most: restore with a grey camera that has no noise.

    python lab/grey_limit.py CLIP ...      each a folder with blur/ and sharp/

A spike camera sees the scene in grey, at half the resolution of the frames. This program replaces
the spike camera by a perfect grey camera: it computes the grey picture from the sharp frame. The
colours are restored as the fusion "exposure" restores them. The program prints the mean gain of
PSNR over the blurry frames in dB, for two ways to enlarge the grey picture
(docs/benchmarks/quality_networks.md):

    bilinear +7.55
    bicubic +8.21

A frame is restored in these five steps. All values are display values, like the values of the
frames:

    sharp_grey   what the grey camera sees of the sharp frame, at half its size
    blurry_grey  what the grey camera sees of the blurry frame, at half its size
    ratio        sharp_grey / blurry_grey, enlarged to the size of the frame
    changes      how much each colour of a pixel rises if its grey value becomes twice as large
    restored     blurry + changes * (ratio - 1)

E.g. the sharp grey is 0.6 and the blurry grey 0.4, so ratio - 1 is 0.5. A colour whose change is
0.3 rises by 0.3 * 0.5 = 0.15.

Nothing else uses this file, and no test runs it. docs/benchmarks/quality_networks.md repeats the
two figures. So run the program after a change, and correct the page if the figures differ.
"""

import sys
from pathlib import Path

import cv2
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.spike.pictures import LUMA, to_display, to_linear
from models.fusion.exposure import ExposureFusion
from models.metrics import psnr
from utils.image import imread_rgb

# The two interpolations by which the grey picture is enlarged.
INTERPOLATIONS = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}


def main(clips: list[str]) -> None:
    """Restore all frames of the clips with both interpolations, and print the mean gains."""
    gains: dict[str, list[float]] = {name: [] for name in INTERPOLATIONS}
    for clip in clips:
        for sharp_file in sorted(Path(clip, "sharp").iterdir()):
            sharp = imread_rgb(sharp_file)
            blurry = imread_rgb(Path(clip, "blur", sharp_file.name))
            psnr_before = psnr(blurry, sharp)
            for name, interpolation in INTERPOLATIONS.items():
                restored = restore(blurry, sharp, interpolation)
                gains[name].append(psnr(restored, sharp) - psnr_before)
    for name, gains_of_frames in gains.items():
        print(f"{name} {np.mean(gains_of_frames):+.2f}")


def restore(blurry: np.ndarray, sharp: np.ndarray, interpolation: int) -> np.ndarray:
    """Restore a blurry frame with the grey picture of the sharp frame. Returns (H, W, 3) uint8.

    blurry, sharp: (H, W, 3) uint8. interpolation: a value of INTERPOLATIONS.
    """
    sharp_grey = half_size_grey(sharp)
    # The values are at least 1e-3, so that a black pixel does not divide by 0. The smallest display
    # value above black is 1 / 255 = 0.004, so the limit changes only pixels that are nearly black.
    blurry_grey = half_size_grey(blurry).clip(1e-3)
    grey_ratio = sharp_grey / blurry_grey
    height, width = blurry.shape[:2]
    ratio = cv2.resize(grey_ratio, (width, height), interpolation=interpolation)

    # Compute `changes`, (H, W, 3). The head of this file explains `changes`. The number of spike
    # channels has no effect, because `colour_changes` reads no spikes.
    values = blurry / np.float32(255)
    frame = torch.from_numpy(values).permute(2, 0, 1)[None]  # (1, 3, H, W)
    fusion = ExposureFusion(spike_channels=2)
    changes = fusion.colour_changes(frame)[0]  # (3, H, W)
    changes = changes.permute(1, 2, 0).numpy()  # (H, W, 3)

    # ratio[..., None] is (H, W, 1): all three colours of a pixel have the same ratio.
    restored = np.clip(values + changes * (ratio[..., None] - 1), 0, 1)
    return (255 * restored + 0.5).astype(np.uint8)  # astype cuts off the fraction, so + 0.5 rounds


def half_size_grey(frame: np.ndarray) -> np.ndarray:
    """Return what a perfect grey camera with half the resolution sees, as display values.

    A frame (H, W, 3) uint8 gives (H / 2, W / 2) float32 in 0 ... 1. The camera adds up light. So
    the mean over 2 x 2 pixels is a mean of linear light.
    """
    # LUMA has the weights of R, G and B in grey light: (H, W, 3) @ (3,) -> (H, W).
    light = to_linear(frame / np.float32(255)) @ LUMA
    return to_display(cv2.resize(light, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA))


if __name__ == "__main__":
    main(sys.argv[1:])
