"""Messages between ranks: what arrives equals what was sent, and no part of it is executed.

`pack` turns a value into a message of bytes, and `unpack` turns the message into the value again. A
message has three parts:

    8 bytes     the length of the outline
    outline     a JSON text with types and shapes
    content     the bytes of arrays and tensors

A message may come from an unknown program, so `unpack` must trust nothing in it. The errors of
`unpack` name the sender.
"""

import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.damage import CHARACTERS, examples
from utils.dist.message import LARGEST, pack, refuse_size, unpack
from utils.errors import DistError

# ---- What arrives ----

# NaN is left out, because NaN does not equal itself.
numbers_and_texts = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(CHARACTERS)
)


def containers_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw a list, a pair or a dict of values that `inner` draws."""
    return st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers(), inner)


plain = st.recursive(numbers_and_texts, containers_of, max_leaves=20)


@examples(200)
@given(plain)
def test_plain_values_arrive_with_their_types(value):
    found = unpack(pack(value), sender=0)

    assert found == value
    # In Python, 1, 1.0 and True are equal. Only their texts show whether the type is the same.
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
)
def test_tensors_arrive_bit_for_bit(dtype):
    sent = {
        "weights": [torch.arange(12).reshape(3, 4).to(dtype)],
        "empty": torch.zeros(0, 3, dtype=dtype),
    }

    found = unpack(pack(sent), sender=1)

    assert found["weights"][0].dtype == dtype
    assert torch.equal(found["weights"][0], sent["weights"][0])
    assert found["empty"].shape == (0, 3)


def test_arrays_scalars_and_paths_arrive():
    picture = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    mirrored = picture[:, ::-1]  # a view: its values do not lie one after another in memory

    message = pack((mirrored, np.float64(0.5), np.int32(7), Path("a/b")))
    found = unpack(message, sender=1)

    array = found[0]
    assert np.array_equal(array, mirrored)
    assert found[1:] == (0.5, 7, Path("a/b"))


def test_a_tensor_without_content_arrives_as_its_shape():
    # A tensor on the device "meta" has no content.
    sent = torch.zeros(2, 3, device="meta", dtype=torch.float16)

    found = unpack(pack(sent), sender=0)

    assert found.device.type == "meta"
    assert found.shape == (2, 3)
    assert found.dtype == torch.float16


# ---- What is refused ----


def test_a_pickle_is_refused_and_not_executed(tmp_path):
    class Planted:
        """An object for which pickle.loads would create a file."""

        def __reduce__(self):
            return Path.touch, (tmp_path / "executed",)

    with pytest.raises(DistError, match="rank 5 sent something that no rank of this version sends"):
        unpack(pickle.dumps(Planted()), sender=5)

    assert not (tmp_path / "executed").exists()


# A message with a tensor of float32. Its shape stands as "[2, 3]" in the outline.
MESSAGE = pack([torch.zeros(2, 3), "text"])


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(MESSAGE[:-1], id="a byte less"),
        pytest.param(MESSAGE + b"x", id="a byte more"),
        pytest.param(MESSAGE[:5], id="shorter than the length of the outline"),
        pytest.param(b"", id="empty"),
    ],
)
def test_a_message_of_another_length_is_refused(changed):
    with pytest.raises(DistError, match="rank 2 sent"):
        unpack(changed, sender=2)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # The new text is as long as the old text, so that the length of the outline stays right.
        pytest.param(b"float32", b"Tensor!", id="an unknown type of numbers"),
        pytest.param(b"[2, 3]", b"[2, 9]", id="more values than there are"),
        pytest.param(b"[2, 3]", b"[-2,3]", id="a length below zero"),
        pytest.param(b'"tensor"', b'"pickle"', id="an unknown kind of value"),
    ],
)
def test_a_message_with_another_outline_is_refused(before, after):
    assert MESSAGE.count(before) == 1

    with pytest.raises(DistError, match="rank 2 sent"):
        unpack(MESSAGE.replace(before, after), sender=2)


@examples(300)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(message):
    with suppress(DistError):
        unpack(message, sender=0)


@pytest.mark.parametrize(
    "outline",
    [
        pytest.param(b"[" * 100_000, id="nested too deeply for the parser"),
        pytest.param(b'["dict", [[], 1]]', id="a dict with a list as a key"),
        pytest.param(b'["dict", 3]', id="a dict that is a number"),
        pytest.param(b'["array", "O", [1]]', id="an array of Python objects"),
        pytest.param(b"NaN", id="no JSON, although Python reads it"),
        pytest.param(b'["path", {}]', id="a path that is no text"),
        pytest.param(b'["shape", "uint8", [-1]]', id="a shape with a negative length"),
        pytest.param(b'["tensor", "uint8", [0, -1]]', id="a negative length in an empty tensor"),
        pytest.param(b'["array", "<f4", [%d]]' % 10**30, id="a length of 31 digits"),
    ],
)
def test_any_outline_is_read_or_refused(outline):
    message = len(outline).to_bytes(8, "little") + outline

    # Any other error, or a crash, fails the test.
    with suppress(DistError):
        unpack(message, sender=0)


# A message has at least the 8 bytes of its length.
@pytest.mark.parametrize("size", [-1, 0, 7, LARGEST + 1, 2**62])
def test_a_size_that_no_message_has_is_refused_before_memory_is_taken(size):
    with pytest.raises(DistError, match="rank 3 sent"):
        refuse_size(size, sender=3)


def test_a_value_that_is_not_plain_is_an_error_of_the_sender():
    with pytest.raises(TypeError, match="cannot hold a object"):
        pack({"x": object()})
