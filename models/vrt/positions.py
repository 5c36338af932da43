"""Tables of the positions within a window: which bias two tokens get, and where a token is.

    relative_position_index    for each pair of tokens, the row of the bias table
    sine_positions             for each token, the sines and cosines of its row and column

Letters: T, the number of tokens in a window. A window has frames, height and width, e.g. 6 x 8 x 8.

What must stay: both tables, because published weights rely on them. test_vrt_modules.py and
test_shared_tables.py in tests/parts/models fail if a number changes. Free to change: how the
numbers are computed.
"""

from functools import lru_cache

import torch
from torch import Tensor

from models.vrt.windows import Triple
from utils.errors import CheckpointError


# maxsize: 16 results, because a network has a few sizes of windows.
# inference_mode(False): if a tensor was made in inference mode, autograd cannot save it for
# backward. If the first call came from inference mode, a training would later get such a tensor
# from the cache (test_a_network_first_used_in_inference_mode_still_trains).
@lru_cache(maxsize=16)
@torch.inference_mode(False)
def relative_position_index(window: Triple) -> Tensor:
    """Return the row of the bias table for each pair of tokens of a window, (T, T), int64.

    The table has one row for each offset (time, height, width) between two tokens. Along an axis of
    n tokens the offsets are -(n - 1) ... n - 1, and adding n - 1 makes them count from 0. From row
    to row the offset in width changes fastest, then in height, then in time. This order is part of
    the published weights.

    E.g. a window of 6 x 8 x 8: a token and itself have the offset (0, 0, 0), which is (5, 7, 7)
    counted from 0. There are 15 offsets along height and width, so the row is
    (5 * 15 + 7) * 15 + 7 = 1237.

    The tensor is cached and shared by all networks of the process: do not modify it.
    """
    frames, height, width = window
    # Compute on the CPU, because the default device may be "meta". Tensors on "meta" hold no
    # numbers, and the cache would keep such a tensor.
    axes = [torch.arange(length, device="cpu") for length in window]
    grid = torch.meshgrid(*axes, indexing="ij")  # three tensors (frames, height, width)
    points = torch.stack(grid).flatten(1)  # (3, T): time, row and column of each token
    largest = torch.tensor([frames - 1, height - 1, width - 1], device="cpu")
    offset = points[:, :, None] - points[:, None, :]  # (3, T, T)
    offset = offset + largest.view(3, 1, 1)  # now counted from 0
    in_time, in_height, in_width = offset
    heights = 2 * height - 1  # number of offsets along the height
    widths = 2 * width - 1  # number of offsets along the width
    return (in_time * heights + in_height) * widths + in_width


def refuse_other_index(in_file: Tensor, in_network: Tensor, key: str, where: str) -> None:
    """Raise CheckpointError if relative_position_index differs in a weights file and the network.

    The index follows from the window. With another index, the weights of the bias table belong to
    other pairs of tokens.

    in_file: the index in the file.
    in_network: the index of the network.
    key: name of the tensor.
    where: the file, for the error.
    """
    has_same_shape = in_file.shape == in_network.shape
    if has_same_shape and torch.equal(in_file.to(in_network.device), in_network):
        return
    raise CheckpointError(
        what=f"{key} {tuple(in_file.shape)} does not hold the numbers that follow from the window",
        where=where,
        expected=f"the row of the bias table for each pair of tokens, {tuple(in_network.shape)}",
        do="set netG.window_size as in the training of these weights, or choose other weights",
    )


def sine_positions(height: int, width: int, channels: int) -> Tensor:
    """Return the sine/cosine position table of a window, (1, height * width, channels), float32.

    The first half of the channels describes the row, the second half the column. Rows and columns
    are counted from 1 and scaled to (0, 2 pi]. E.g. 8 rows: pi / 4, pi / 2, ..., 2 pi. Within a
    half, sine and cosine of one frequency alternate. The table is part of the published network, so
    its numbers must stay.
    """
    half = channels // 2
    # Compute on the CPU. To check options, a network is built with the default device "meta", on
    # which each of these operations would take a millisecond.
    frequency_number = torch.arange(half, device="cpu") // 2  # 0, 0, 1, 1, ...
    divisor = 10000.0 ** (2 * frequency_number / half)
    tables = []  # one table for the rows, one for the columns
    for size in (height, width):
        number = torch.arange(1, size + 1, device="cpu")  # 1 ... size
        angle = number / (size + 1e-6) * (2 * torch.pi)  # the published table has this 1e-6
        phase = angle[:, None] / divisor  # (size, half)
        sines = phase[:, 0::2].sin()  # even channels, (size, half / 2)
        cosines = phase[:, 1::2].cos()  # odd channels, (size, half / 2)
        alternating = torch.stack((sines, cosines), dim=2).flatten(1)  # sine, cosine, sine, ...
        tables.append(alternating)
    row_table, column_table = tables
    rows = row_table[:, None, :].expand(height, width, half)
    columns = column_table[None, :, :].expand(height, width, half)
    return torch.cat((rows, columns), dim=2).reshape(1, height * width, channels)
