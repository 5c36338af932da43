"""Score moving pixels: how well a method restores the part of a frame that is blurred.

What must stay: the three numbers below, because the scores of finished runs were computed with
these numbers. The numbers were chosen by hand. Test:
test_the_score_of_moving_pixels_leaves_still_ones_out
"""

from pathlib import Path

import cv2
import numpy as np

from data.clips.pictures import read_bgr

# A pixel counts as moving if the blurry and the sharp frame differ by more than this number of
# levels of 8 bits. A lower limit would count noise as motion.
MOVING_LEVELS = 12
# Pixels within this distance of a moving pixel count as moving, too, because a restored edge may
# lie beside the true edge.
MOVING_AROUND = 7
# A frame with a smaller share of moving pixels has no score of moving pixels, because a few pixels
# would decide the score.
LEAST_MOVING = 0.01


def moving_psnr(restored: Path, clip: Path) -> dict[str, float]:
    """Return the PSNR of the moving pixels in dB, e.g. {"restored": 27.5, "input": 22.1}.

    "input" is the PSNR of the blurry frames. Both numbers are means over frames. A frame counts if
    more than the share LEAST_MOVING of its pixels move. lab/joint_gain.py uses this score as well.

    restored: folder of the restored frames.
    clip: folder with the folders sharp and blur. A frame has the same file name in all three
        folders.
    """
    scores: dict[str, list[float]] = {"restored": [], "input": []}
    for file in sorted((clip / "sharp").iterdir()):
        sharp = _levels_of(file)
        blurry = _levels_of(clip / "blur" / file.name)
        frame = _levels_of(restored / file.name)

        is_moving = _moving_pixels(blurry, sharp)
        if is_moving.mean() > LEAST_MOVING:
            scores["restored"].append(_psnr((frame - sharp)[is_moving]))
            scores["input"].append(_psnr((blurry - sharp)[is_moving]))
    return {kind: float(np.mean(values)) for kind, values in scores.items()}


def _levels_of(picture: Path) -> np.ndarray:
    """Return a picture (H, W, 3) float32, in levels of 8 bits: 0 to 255."""
    return read_bgr(str(picture)).astype(np.float32)


def _moving_pixels(blurry: np.ndarray, sharp: np.ndarray) -> np.ndarray:
    """Return (H, W) bool: where a frame moves. blurry, sharp: (H, W, 3) in levels of 8 bits."""
    largest_difference = np.abs(blurry - sharp).max(axis=2)  # largest of three colours, (H, W)
    differs = (largest_difference > MOVING_LEVELS).astype(np.uint8)
    # Dilation sets a pixel if any pixel in the square around it moves.
    side = 2 * MOVING_AROUND + 1
    return cv2.dilate(differs, np.ones((side, side))).astype(bool)


def _psnr(errors: np.ndarray) -> float:
    """Return the PSNR in dB of errors in levels of 8 bits."""
    return 10 * np.log10(255**2 / (errors**2).mean())
