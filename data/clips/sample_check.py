"""Refuse a result of a user's data set that is not a sample or a frame of a test clip.

Without these checks, a wrong type would cause an error of torch far from its origin. Pictures with
values from 0 to 255 would be compared with pictures with values from 0 to 1. The data sets of this
project need no check.

What must stay: the results of the data sets in docs/extending.md are accepted.

Tests: tests/parts/data/test_readers.py
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from utils.errors import DataError

# The tensors of pictures, with values from 0 to 1. Spikes are not checked, because each network
# takes spikes of its own form.
PICTURES = ("lq", "gt", "gt_instants")
# Allowed types of the values of pictures. float16 and bfloat16 can be used with train.amp.
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# A training warns of values outside of these limits. The limits are chosen by hand. They are far
# from 0 and 1, so that strong noise causes no warning.
LOWEST = -4
HIGHEST = 5
WHERE_DESCRIBED = "(docs/extending.md, Layers)"


def refuse_wrong_samples(samples: Sequence[Any], where: str) -> None:
    """Raise DataError if these samples of a training set cannot become a micro-batch.

    samples: what the data set returned for each index.
    where: names the samples in messages.
    """
    do = f"correct __getitem__ of the data set {WHERE_DESCRIBED}"
    for sample in samples:
        _refuse_wrong_tensors(sample, "(T, 3, H, W)", where, do)
        # torch stacks the samples of a micro-batch, so their shapes must be equal.
        for key, value in samples[0].items():
            if _shape(sample.get(key)) != _shape(value):
                raise DataError(
                    what=f"two samples of a batch differ: {key} has {_described(value)} and "
                    f"{_described(sample.get(key))}",
                    where=where,
                    expected="the same keys and shapes in all samples",
                    do=f"{do}, or set datasets.train.dataloader_batch_size=1",
                )


def refuse_wrong_frame(frame: Any, where: str) -> None:
    """Raise DataError if the result of a reader is not a frame.

    where: the clip, for messages.
    """
    do = f"correct `frame` of the readers {WHERE_DESCRIBED}"
    _refuse_wrong_tensors(frame, "(3, H, W)", where, do)
    for key, value in frame.items():
        if not isinstance(value, Tensor):
            raise DataError(
                what=f"{key} is {_described(value)}",
                where=where,
                expected="tensors of torch",
                do=do,
            )


def warning_of_range(batch: dict[str, Any]) -> str:
    """Return a warning if the pictures of a micro-batch have values far from 0 to 1, or ""."""
    for key in PICTURES:
        if key in batch:
            low = float(batch[key].min())
            high = float(batch[key].max())
            # NaN is neither below nor above the limits, so it gives no warning here. A training
            # skips a step with NaN.
            if low < LOWEST or high > HIGHEST:
                return (
                    f"{key} of the training samples has values from {low:.3g} to {high:.3g}, not "
                    "from 0 to 1: loss and scores will not mean what they say; divide pictures of "
                    f"uint8 by 255 {WHERE_DESCRIBED}"
                )
    return ""


def _refuse_wrong_tensors(item: Any, shape: str, where: str, do: str) -> None:
    """Raise DataError if a sample or a frame is not a dict with pictures of floating-point numbers.

    Only type and number of axes of the pictures are checked (`warning_of_range` checks the values).

    item: the sample or the frame.
    shape: shape of the pictures in words, e.g. "(3, H, W)".
    where, do: texts of the error.
    """
    expected = f'a dict with "lq", and "gt" to compare with: {shape}, float32 from 0 to 1'
    if not isinstance(item, dict):
        raise DataError(
            what=f"the data set returned {_described(item)}", where=where, expected=expected, do=do
        )
    if "lq" not in item:
        keys = ", ".join(map(str, item)) or "none"
        raise DataError(
            what=f'no "lq" among the keys ({keys})', where=where, expected=expected, do=do
        )
    for key in PICTURES:
        if key not in item:
            continue
        value = item[key]
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        is_picture = isinstance(value, Tensor) and value.dtype in FLOATS
        number_of_axes = len(shape.split(","))  # "(3, H, W)" has 3
        if not is_picture or value.ndim != number_of_axes:
            raise DataError(
                what=f"{key} is {_described(item[key])}", where=where, expected=expected, do=do
            )


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor or an array, and None for any other value."""
    return tuple(value.shape) if isinstance(value, (Tensor, np.ndarray)) else None


def _described(value: Any) -> str:
    """Return type and shape of a value in words, e.g. "a tensor (2, 3, 8, 8) of uint8"."""
    if isinstance(value, (Tensor, np.ndarray)):
        noun = "a tensor" if isinstance(value, Tensor) else "a NumPy array"
        return f"{noun} {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    return "None" if value is None else f"of type {type(value).__name__}"
