#!/usr/bin/env python3
"""Gain in dB of a noise-free grey camera at half the resolution, with the colours of the fusion
`exposure`.

python lab/grey_limit.py CLIP ...   each a folder with blur/ and sharp/
"""

import sys
from pathlib import Path

import cv2
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.spike.simulate import LUMA, to_display, to_linear
from models.fusion.operators import ExposureFusion
from models.metrics import psnr
from utils.image import imread_rgb

gains: dict[str, list[float]] = {"bilinear": [], "bicubic": []}
for file in (file for clip in sys.argv[1:] for file in sorted(Path(clip, "sharp").iterdir())):
    sharp, blurry = (imread_rgb(path) for path in (file, file.parent.parent / "blur" / file.name))
    lights, size = (
        [to_linear(image / np.float32(255)) @ LUMA for image in (sharp, blurry)],
        blurry.shape[1::-1],
    )
    small = [
        to_display(cv2.resize(light, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA))
        for light in lights
    ]
    frame = torch.from_numpy(blurry / np.float32(255)).permute(2, 0, 1)[None]
    changes = ExposureFusion(spike_channels=2).colour_changes(frame)[0].permute(1, 2, 0).numpy()
    for found, how in zip(gains.values(), (cv2.INTER_LINEAR, cv2.INTER_CUBIC), strict=True):
        ratio = cv2.resize(small[0] / small[1].clip(1e-3), size, interpolation=how)
        estimate = np.clip(blurry / np.float32(255) + changes * (ratio[..., None] - 1), 0, 1)
        found.append(psnr((255 * estimate + 0.5).astype(np.uint8), sharp) - psnr(blurry, sharp))
print("\n".join(f"{name} {np.mean(found):+.2f}" for name, found in gains.items()))
