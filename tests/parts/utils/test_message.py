"""Messages between ranks: what arrives equals what was sent, and nothing of it is executed."""

import pickle
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.damage import examples
from utils.dist.message import LARGEST, pack, refuse_size, unpack
from utils.errors import DistError

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers(), inner),
    max_leaves=20,
)


@examples(200)
@given(plain)
def test_plain_values_arrive_with_their_types(value):
    found = unpack(pack(value), sender=0)

    assert found == value
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

    found = unpack(pack((picture[:, ::-1], np.float64(0.5), np.int32(7), Path("a/b"))), sender=1)

    assert np.array_equal(found[0], picture[:, ::-1])
    assert found[1:] == (0.5, 7, Path("a/b"))


def test_a_tensor_without_content_arrives_as_its_shape():
    found = unpack(pack(torch.zeros(2, 3, device="meta", dtype=torch.float16)), sender=0)

    assert found.device.type == "meta"
    assert (found.shape, found.dtype) == ((2, 3), torch.float16)


def test_a_pickle_is_refused_and_not_executed(tmp_path):
    class Planted:
        def __reduce__(self):
            return Path.touch, (tmp_path / "executed",)

    with pytest.raises(DistError, match="rank 5 sent something that no rank of this version sends"):
        unpack(pickle.dumps(Planted()), sender=5)

    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda message: message[:-1],
        lambda message: message + b"x",
        lambda message: message[:5],
        lambda message: b"",
        lambda message: message.replace(b"float32", b"Tensor!"),
        lambda message: message.replace(b"[2, 3]", b"[2, 9]"),
        lambda message: message.replace(b"[2, 3]", b"[-2,3]"),
        lambda message: message.replace(b'"tensor"', b'"pickle"'),
    ],
)
def test_a_message_that_was_changed_on_its_way_is_refused(change):
    message = pack([torch.zeros(2, 3), "text"])

    with pytest.raises(DistError, match="rank 2 sent"):
        unpack(change(message), sender=2)


@examples(300)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(message):
    with suppress(DistError):
        unpack(message, sender=0)


def test_any_text_is_read_or_refused():
    for text in (
        b"[" * 100_000,
        b'["dict", [[], 1]]',
        b'["dict", 3]',
        b'["array", "O", [1]]',
        b"NaN",
        b'["path", {}]',
    ):
        message = len(text).to_bytes(8, "little") + text
        with suppress(DistError):
            unpack(message, sender=0)


@pytest.mark.parametrize("size", [-1, 0, 7, LARGEST + 1, 2**62])
def test_a_size_that_no_message_has_is_refused_before_memory_is_taken(size):
    with pytest.raises(DistError, match="rank 3 sent"):
        refuse_size(size, sender=3)


def test_a_value_that_is_not_plain_is_an_error_of_the_sender():
    with pytest.raises(TypeError, match="cannot hold a object"):
        pack({"x": object()})
