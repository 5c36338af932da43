"""Refuse weights files that would fill the memory of this machine, or take very long to load.

Weights files may be downloads from anywhere, so nothing in them is trusted: e.g. a file of 1 kB may
state a tensor of 1 TB. Each function here raises an error before this program would run out of
memory. weights_file.py and saved_network.py call the functions.

What must stay: each check, and its place before the code that it protects. test_hostile_weights.py
has a file for each kind of attack. Free to change: the texts of errors.

Tests: tests/parts/models/test_hostile_weights.py, test_any_weights.py
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from utils.errors import CheckpointError


def refuse_odd_tensors(weights: dict[str, Tensor], path: Path) -> None:
    """Raise CheckpointError for a tensor that is sparse, quantized or not on the CPU."""
    for name, tensor in weights.items():
        is_dense = tensor.layout is torch.strided
        if not is_dense or tensor.is_quantized or tensor.device.type != "cpu":
            raise CheckpointError(
                what=f"{name} is no plain tensor: {tensor.layout}, {tensor.device}",
                where=str(path),
                expected="dense tensors of numbers",
                do="save tensor.dequantize().to_dense().cpu() of each",
            )


# All tensors together may be at most this many times as large as the file. The tensors may be
# larger than the file, because a real file may have a few tensors that share an array, e.g. a
# weight that two layers use. A hostile file repeats one number millions of times, and would fill
# the memory. The 4 was chosen by hand.
MOST_TIMES_FILE_SIZE = 4
# If all tensors together have at most this many bytes (537 MB), the file is accepted, however small
# it is. Chosen by hand.
ALWAYS_ALLOWED_BYTES = 2**29


def refuse_repeated_numbers(weights: dict[str, Tensor], path: Path) -> None:
    """Raise CheckpointError if the tensors have many more numbers than the file has room for.

    E.g. a tensor that repeats one number a million times takes a few bytes in the file. Its copy in
    a network takes 4 MB (test_tensors_that_repeat_one_number_are_refused).
    """
    file_bytes = path.stat().st_size
    tensor_bytes = bytes_of(weights.values())
    most_bytes = max(MOST_TIMES_FILE_SIZE * file_bytes, ALWAYS_ALLOWED_BYTES)
    if tensor_bytes > most_bytes:
        raise CheckpointError(
            what=f"there are {len(weights)} tensors of {tensor_bytes / 1e6:.0f} MB in a file of "
            f"{file_bytes / 1e6:.1f} MB",
            where=str(path),
            expected="one number in the file for each number of a tensor",
            do="save tensor.clone() of each, or download the file again",
        )


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the memory that copies of the tensors take, in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Rule(NamedTuple):
    """One rule of `refuse_larger`: how much the weights file of a network must have at least."""

    key: str  # the option that asks for this much, for the error
    least_count: float  # the least number of tensors, or of numbers in all tensors together
    count_in_file: int  # the number in the file
    things: str  # what is counted, "tensors" or "numbers", for the error


def refuse_larger(
    netG: dict[str, Any], spike_channels: int, weights: dict[str, Tensor], where: str
) -> None:
    """Raise CheckpointError if the options of one of our networks ask for more than `weights` hold.

    Call this before the network is built, because building it may take all memory, or hours. Each
    of four simple rules says how many tensors the file must have at least, or how many numbers in
    all tensors together. E.g. depths [8, 8] needs a file of at least 8 + 8 = 16 tensors. The last
    rule covers all options, also the options that no other rule knows.

        key           rule                                          least that the file must have
        depths        a block has at least one tensor               sum(depths) tensors
        embed_dims    a layer of n features has n x n weights       max(embed_dims)^2 numbers
        window_size   a window of n tokens has a table of n x n     prod(window_size)^2 numbers
        a number      no number in the options is larger than the   max(all options) numbers
                      number of weights: options are small, e.g.
                      256, and a network has more weights

    netG: the options of the network, from the file.
    spike_channels: the number of spike channels, also from the file.
    where: the file, for the error.
    """
    tensor_count = len(weights)
    number_count = sum(tensor.numel() for tensor in weights.values())
    # Each option may have a wrong type, as the file is not trusted. So take all numbers in it: 8, 8
    # from [8, 8], and none from the text "8".
    depths = list(_numbers_in(netG.get("depths")))
    embed_dims = list(_numbers_in(netG.get("embed_dims")))
    window_size = list(_numbers_in(netG.get("window_size")))
    all_options = list(_numbers_in([netG, spike_channels]))
    # If the options lack depths or embed_dims, the least number is 0. Without window_size, it is 1,
    # the empty product.
    widest = max(embed_dims, default=0)
    # If a product of floats is too large for a float, the result is inf, without an error. A power
    # that is too large would raise OverflowError, so the squares below are products, too.
    window_tokens = math.prod(window_size, start=1.0)
    largest = max(all_options, default=0)
    rules = (
        Rule("depths", sum(depths), tensor_count, "tensors"),
        Rule("embed_dims", widest * widest, number_count, "numbers"),
        Rule("window_size", window_tokens * window_tokens, number_count, "numbers"),
        Rule("a number", largest, number_count, "numbers"),
    )
    for rule in rules:
        if rule.least_count > rule.count_in_file:
            raise CheckpointError(
                what="the options in it make a larger network than its weights: "
                f"{rule.key} asks for at least {rule.least_count:.3g} {rule.things}, "
                f"and the file has {rule.count_in_file}",
                where=where,
                expected=f"options of a network of {tensor_count} tensors with {number_count} "
                "numbers",
                do="take the file as main_train_vrt.py wrote it, or give --opt FILE",
            )


# A whole number in the options of a file may have millions of digits, and fits into no float. So
# numbers above this limit count as the limit (`_numbers_in`). The limit is far above what any
# network has, and sums and squares of such numbers still fit into a float.
LARGEST_NUMBER = 1e30


def _numbers_in(value: Any) -> Iterator[float]:
    """Yield the absolute values of all numbers in `value`, e.g. {"a": [1, -2], "b": "x"} -> 1, 2.

    Numbers above LARGEST_NUMBER, and NaN, count as LARGEST_NUMBER. True counts as 1, and texts are
    skipped.
    """
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _numbers_in(inner)
    elif isinstance(value, (int, float)):
        # LARGEST_NUMBER comes first, because min(a, NaN) is a, but min(NaN, a) is NaN.
        yield min(LARGEST_NUMBER, abs(value))
