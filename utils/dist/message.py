"""Write and read messages between ranks as bytes: plain values, arrays and tensors.

torch's own functions for this (`all_gather_object` and others) send pickles. Loading a pickle runs
code that its sender has chosen, and anybody who reaches the ports of a run may be the sender. A
message of this module is a text in JSON and the bytes of arrays, so reading a message runs no code.
E.g. for {"loss": 0.5, "image": tensor}:

    8 bytes   length of the text: 63
    63 bytes  ["dict", ["loss", 0.5], ["image", ["tensor", "uint8", [2, 3]]]]
    6 bytes   the numbers of the tensor

This text is called the outline of the value. A list in it begins with a word that says what the
list stands for. Only the pairs of a dict, [key, value], have no such word. Arrays have their bytes
after the text, in the order of the outline.

`utils_dist.gather_objects` and `utils_dist.from_rank` send messages.

What must stay: `unpack` gets data from a network, so it refuses every message that `pack` cannot
have made (test_a_pickle_is_refused_and_not_executed, test_any_bytes_are_read_or_refused). Free to
change: the form of a message, because all ranks have the same version of this program.

Tests: tests/parts/utils/test_message.py.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from utils.errors import DistError

# A message begins with the length of its text, as a number of this many bytes.
HEAD = 8
# Largest number of bytes of a message, 4 GiB, chosen by hand. The largest messages of a run, which
# hold pictures of a validation, have some MB.
LARGEST = 2**32

# The errors that Python, NumPy and torch raise in `unpack` for bytes that `pack` has not made.
ERRORS_OF_OTHER_MESSAGES = (
    ValueError,  # the text is not JSON, or an array has more bytes than the message
    TypeError,  # ["array", "no type", [2]]: NumPy knows no such type
    IndexError,  # ["path"]: the path is missing
    KeyError,  # no case is known; kept, because NumPy does not say which errors its types raise
    OverflowError,  # a length of 31 digits, because lengths have 64 bits
    RuntimeError,  # a negative length, for torch; RecursionError, for lists nested too deeply
)


def pack(value: Any) -> bytes:
    """Return the message that holds `value`.

    value: None, bool, int, float, str or Path; a tensor or array; a list, tuple or dict of these. A
        tensor on the device "meta" is sent as its shape and type.

    Raises TypeError for a value of another type.
    """
    contents: list[bytes] = []
    text = json.dumps(_outline(value, contents)).encode()
    return len(text).to_bytes(HEAD, "little") + text + b"".join(contents)


def unpack(message: bytes, sender: int) -> Any:
    """Return the value that `message` holds.

    sender: the rank that sent the message, for the error.

    Raises DistError if the message was not made by `pack`.
    """
    text_end = HEAD + int.from_bytes(message[:HEAD], "little")
    reader = _ArrayReader(message, begin=text_end)
    try:
        outline = json.loads(message[HEAD:text_end])
        value = _value(outline, reader)
    except ERRORS_OF_OTHER_MESSAGES as e:
        raise _not_a_message(sender) from e
    if reader.position != len(message):  # some bytes belong to no array
        raise _not_a_message(sender)
    return value


def _outline(value: Any, contents: list[bytes]) -> Any:
    """Return the outline of `value`, and append the bytes of its arrays to `contents`.

    E.g. a tensor of 2 x 3 numbers has the outline ["tensor", "uint8", [2, 3]], and its 6 bytes are
    appended. `_value` reads each kind of outline that is made here, so a new kind needs a branch in
    both functions.
    """
    if isinstance(value, np.generic):  # a single number of NumPy
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        # Write a dict as pairs of key and value, because a key in JSON can only be a text.
        pairs = []
        for key, item in value.items():
            pairs.append([_outline(key, contents), _outline(item, contents)])
        return ["dict", *pairs]
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        items = [_outline(item, contents) for item in value]
        return [kind, *items]
    if isinstance(value, Path):
        return ["path", str(value)]
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        # A tensor on the device "meta" has a type and a shape, but no numbers, and so no bytes.
        if value.device.type == "meta":
            return ["shape", dtype, list(value.shape)]
        # Take the numbers as bytes, because NumPy does not know bfloat16.
        flat = value.detach().cpu().contiguous().reshape(-1)
        contents.append(flat.view(torch.uint8).numpy().tobytes())
        return ["tensor", dtype, list(value.shape)]
    # The letters of NumPy for bool, integer, unsigned integer and floating-point number.
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        contents.append(np.ascontiguousarray(value).tobytes())
        return ["array", value.dtype.str, list(value.shape)]
    raise TypeError(f"a message between ranks cannot hold a {type(value).__name__}")


class _ArrayReader:
    """Takes the bytes of the arrays out of a message, one array after the other.

    E.g. for two arrays of 6 bytes each, after a text that ends at position 71:

        at the start              position 71
        take(6) for the first     position 77
        take(6) for the second    position 83, the end of the message
    """

    def __init__(self, message: bytes, begin: int) -> None:
        """Begin at the first array of a message.

        message: the whole message.
        begin: position in `message` at which the bytes of the first array begin.
        """
        self.message = message
        self.position = begin  # at which the bytes of the next array begin

    def take(self, byte_count: int) -> np.ndarray:
        """Return a copy of the next bytes as uint8, (byte_count,). Moves `position` behind them.

        byte_count: number of bytes of the array. The message may come from another program, so
            the number may be of any size, and even negative.

        Raises ValueError if the message has fewer bytes left, or if the number is negative.
        """
        bytes_left = len(self.message) - self.position
        if not 0 <= byte_count <= bytes_left:
            raise ValueError("the message is too short")
        shared = np.frombuffer(self.message, np.uint8, count=byte_count, offset=self.position)
        self.position += byte_count
        # Copy the bytes, because `shared` uses the memory of the message and is read-only.
        # `reshape` sets the stride of an empty array, which torch needs for a view.
        return shared.copy().reshape(-1)


def _value(outline: Any, reader: _ArrayReader) -> Any:
    """Return the value that an outline describes. Takes the bytes of its arrays from `reader`.

    `pack` has written the bytes in the order of the outline. So this function must go through the
    outline in the same order as `_outline`: in a dict, a key comes before its value.

    outline: an outline that `_outline` made, or any other JSON value, because the sender may be
        another program.

    Raises ValueError, or another error that `unpack` catches, if `_outline` cannot have made the
    outline.
    """
    if not isinstance(outline, list):
        return outline
    kind, *rest = outline
    if kind == "list":
        return [_value(item, reader) for item in rest]
    if kind == "tuple":
        return tuple([_value(item, reader) for item in rest])
    if kind == "dict":
        pairs = {}
        for key_outline, value_outline in rest:
            key = _value(key_outline, reader)
            pairs[key] = _value(value_outline, reader)
        return pairs
    if kind == "path":
        return Path(rest[0])
    # All other kinds are arrays and tensors, e.g. ["tensor", "uint8", [2, 3]].
    type_name, shape = rest  # a ValueError if `rest` does not have two items
    if kind == "array":
        return _array(np.dtype(type_name), shape, reader)
    if kind == "shape":
        return torch.empty(shape, dtype=_torch_type(type_name), device="meta")
    if kind == "tensor":
        return _tensor(_torch_type(type_name), shape, reader)
    raise ValueError(f"{kind} is no kind of value")


def _torch_type(name: str) -> torch.dtype:
    """Return the type of torch with this name, e.g. "uint8". Raises ValueError for another name."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is no type of a tensor")
    return dtype


def _tensor(dtype: torch.dtype, shape: list[int], reader: _ArrayReader) -> Tensor:
    """Return a tensor with the next bytes of `reader`."""
    content = reader.take(_byte_count(shape, dtype.itemsize))
    # The bytes become a tensor of uint8 first, and then a view of the tensor's type, because NumPy
    # does not know all types of torch, e.g. bfloat16.
    return torch.from_numpy(content).view(dtype).reshape(shape)


def _array(dtype: np.dtype, shape: list[int], reader: _ArrayReader) -> np.ndarray:
    """Return an array with the next bytes of `reader`.

    dtype: type of the numbers. Object arrays and texts are refused, because they are not bytes of
        numbers.
    """
    if dtype.kind not in "biuf":
        raise ValueError(f"{dtype} is no type of an array")
    content = reader.take(_byte_count(shape, dtype.itemsize))
    return content.view(dtype).reshape(shape)


def _byte_count(shape: list[int], bytes_each: int) -> int:
    """Return the number of bytes of an array, e.g. 24 for the shape [2, 3] and 4 bytes each.

    bytes_each: number of bytes of each number of the array.
    """
    return int(np.prod(shape, dtype=np.int64)) * bytes_each


def refuse_size(size: int, sender: int) -> None:
    """Raise DistError if no message of this program has `size` bytes: too few or too many."""
    if not HEAD <= size <= LARGEST:
        raise _not_a_message(sender)


def _not_a_message(sender: int) -> DistError:
    """Return the error of bytes that `pack` has not made.

    sender: the rank that sent them.
    """
    return DistError(
        what=f"rank {sender} sent something that no rank of this version sends",
        where=f"the connection to rank {sender}",
        expected="a message of the same version of this program",
        do="start all ranks from the same files; if they are the same, another program reached the "
        "ports of this run: see docs/ddp_reference.md on trust",
    )
