"""Turn pictures into light and back.

    display value   value in a picture file, here in [0, 1]: light ** (1 / 2.2)
    light           linear brightness, in [0, 1]: twice the light is twice the number

E.g. the display value 0.5 is the light 0.5 ** 2.2 = 0.22.

What must stay: all numbers, bit for bit, because made data sets (with simulated spikes) and
training samples consist of them. The equations of data/motion/ take DISPLAY_GAMMA and LUMA from
here, and the shipped weights were trained with both.

Tests: tests/parts/data/test_display_values.py
"""

import numpy as np

# Display values of images: light = value ** 2.2.
DISPLAY_GAMMA = 2.2
# Weights of R, G and B in grey, by Rec. 601, as in the published spike simulators.
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def to_linear(picture: np.ndarray, gamma: float = DISPLAY_GAMMA) -> np.ndarray:
    """Turn display values in [0, 1] into linear light in [0, 1], float32.

    picture: display values. Divide bytes by 255 first. Values are not clipped, and a negative value
        becomes NaN.
    gamma: light = value ** gamma.
    """
    return np.power(picture, gamma, dtype=np.float32)


def to_display(light: np.ndarray) -> np.ndarray:
    """Turn linear light into display values in [0, 1], float32. Clips the light to [0, 1] first."""
    return np.power(np.clip(light, 0.0, 1.0), 1.0 / DISPLAY_GAMMA, dtype=np.float32)


def to_grey(rgb: np.ndarray) -> np.ndarray:
    """Turn (..., H, W, 3) in R, G, B order into grey (..., H, W) float32."""
    return rgb.astype(np.float32) @ LUMA


def to_uint8(picture: np.ndarray) -> np.ndarray:
    """Turn display values in [0, 1] into the nearest uint8, e.g. 1.0 into 255."""
    values = np.clip(picture, 0.0, 1.0) * 255.0
    # The conversion cuts off the fraction, so half a step is added to round.
    return (values + 0.5).astype(np.uint8)


def bin_pixels(light: np.ndarray, factor: int) -> np.ndarray:
    """Turn light (H, W) into (H / factor, W / factor), as larger pixels would see it.

    Each value is the mean of a block of factor x factor pixels. H and W must be multiples of
    factor. If they are not, `reshape` fails.
    """
    rows = light.shape[0] // factor
    columns = light.shape[1] // factor
    blocks = light.reshape(rows, factor, columns, factor)  # (rows, y in block, columns, x in block)
    return blocks.mean(axis=(1, 3), dtype=np.float32)
