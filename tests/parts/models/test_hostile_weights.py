"""A small weights file is read or refused within two seconds and one gigabyte of memory.

The files here are made to do harm, e.g. to fill the memory. `assert_refused` reads such a file in
another process with these limits (tests/helpers/limited.py).
"""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from models.portable import read_saved
from models.weights_file import read_weights
from tests.dist.launching import ROOT
from tests.helpers.limited import assert_refused
from utils.errors import CheckpointError
from utils.run import checkpoint

SMALL = ROOT / "weights" / "vrt_small.pth"


def build(path):
    """Build the network of a weights file, as a test does."""
    return read_saved(path).build()


def load_checkpoint(path):
    """Read a checkpoint as a run does that resumes. path: a text, as `call_limited` gives it."""
    return checkpoint.load(Path(path))


# `assert_refused` gets a function by its name, because another process calls the function.
READ = "models.weights_file.read_weights"
BUILD = f"{__name__}.build"
LOAD = f"{__name__}.load_checkpoint"


def members_of(content):
    """Return the files within the zip file that torch.save makes: name -> bytes."""
    file = io.BytesIO()
    torch.save(content, file)
    with zipfile.ZipFile(file) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def write_zip(path, members, packing=zipfile.ZIP_STORED):
    """Write a zip file. members: name -> bytes."""
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def write_with_pickle(path, data):
    """Write a file as torch.save does, but with `data` in place of its pickle."""
    members = members_of({"a": torch.zeros(4)})
    name = next(name for name in members if name.endswith("data.pkl"))
    write_zip(path, {**members, name: data})


# The content of the first two pickles of a file of torch before 1.6. By these numbers, torch
# recognises its own files.
MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
FORMAT = 1001


def write_with_old_pickle(path, data):
    """Write a file as torch did before version 1.6: several pickles. The last one is `data`."""
    head = [MAGIC_NUMBER, FORMAT, {"little_endian": True}]
    path.write_bytes(b"".join(pickle.dumps(part, 2) for part in head) + data)


# The next pickles have few bytes, but reading them needs much memory or time. A pickle is a program
# of a small machine with a stack. The module pickle has a name for each command:
#
#     PROTO 2               the version of the pickle
#     GLOBAL module, name   puts a function on the stack
#     LONG1 5 bytes         puts a number on the stack
#     BINUNICODE text       puts a text on the stack: its length as 4 bytes, then the text in UTF-8
#     TUPLE1, TUPLE2        makes a tuple of the last one or two things on the stack
#     REDUCE                calls the function with the tuple
#     STOP                  ends the pickle
PROTO_2 = pickle.PROTO + bytes([2])


def binunicode(text):
    """Return the bytes that put a text on the stack."""
    encoded = text.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(encoded)) + encoded


# A pickle that calls bytearray(2**33). The result would take 8 GB.
HUGE = b"".join(
    [
        PROTO_2,
        pickle.GLOBAL + b"__builtin__\nbytearray\n",
        pickle.LONG1 + bytes([5]) + (2**33).to_bytes(5, "little"),
        pickle.TUPLE1,
        pickle.REDUCE,
        pickle.STOP,
    ]
)
# A pickle that calls codecs.encode("éé...é", "punycode"). The text has 50,000 characters. The time
# grows with the square of this number.
SLOW = b"".join(
    [
        PROTO_2,
        pickle.GLOBAL + b"_codecs\nencode\n",
        binunicode("é" * 50_000),
        binunicode("punycode"),
        pickle.TUPLE2,
        pickle.REDUCE,
        pickle.STOP,
    ]
)


@pytest.mark.parametrize("reader", [READ, LOAD])
@pytest.mark.parametrize("write", [write_with_pickle, write_with_old_pickle])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(HUGE, "makes a bytearray", id="much memory"),
        pytest.param(SLOW, "punycode", id="much time"),
    ],
)
def test_a_small_pickle_that_would_take_much_memory_or_time_is_refused(
    tmp_path, reader, write, data, message
):
    write(tmp_path / "a.pth", data)
    assert (tmp_path / "a.pth").stat().st_size < 200_000
    assert_refused(reader, tmp_path / "a.pth", by="CheckpointError", saying=message)


@pytest.fixture(scope="module")
def compressed_file(tmp_path_factory):
    """Give a small file that unpacks to 67 MB: 2^24 zeros of 4 bytes.

    The tests share the file, because packing it takes half a second of a core.
    """
    path = tmp_path_factory.mktemp("compressed") / "a.pth"
    write_zip(path, members_of({"a": torch.zeros(2**24)}), zipfile.ZIP_DEFLATED)
    return path


@pytest.mark.parametrize("reader", [READ, LOAD])
def test_members_that_are_compressed_are_not_unpacked(compressed_file, reader):
    assert compressed_file.stat().st_size < 100_000
    assert_refused(reader, compressed_file, by="CheckpointError", saying="is compressed")


def test_nested_lists_with_too_many_leaves_are_refused(tmp_path):
    # Each list holds the former list twice, so the leaves are 1, 2, 4, 8, ... The 41st list has
    # 2**40 leaves, and all 41 lists fit into a small file.
    nested = ["x"]
    for _ in range(40):
        nested = [nested, nested]
    torch.save({"params": {"a": torch.zeros(4)}, "options": nested}, tmp_path / "a.pth")
    assert_refused(READ, tmp_path / "a.pth", by="CheckpointError", saying="hold one another")


def test_tensors_that_repeat_one_number_are_refused(tmp_path):
    content = torch.load(SMALL, weights_only=True)
    # The file has one number of 4 bytes for 2.5e9 places of this tensor. With a number for each
    # place, the tensor would take 10 GB.
    content["params"]["conv_last.weight"] = torch.zeros(1).expand(50_000, 50_000)
    torch.save(content, tmp_path / "a.pth")
    tensors = content["params"].values()
    megabytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors) / 1e6
    message = f"{len(tensors)} tensors of {megabytes:.0f} MB in a file"
    assert_refused(BUILD, tmp_path / "a.pth", by="CheckpointError", saying=message)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(4).to_sparse(),
        torch.quantize_per_tensor(torch.zeros(4), 1.0, 0, torch.qint8),
        torch.zeros(4, device="meta"),
    ],
    ids=["sparse", "quantized", "meta"],
)
def test_tensors_without_a_number_for_each_place_are_refused(tmp_path, tensor):
    torch.save({"a": tensor}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError):
        read_weights(tmp_path / "a.pth")


@pytest.mark.parametrize(
    "change",
    [
        {"embed_dims": [7200] * 9, "num_heads": [4] * 9},
        {"embed_dims": [32] * 8 + [2**31]},
        {"window_size": [6, 400, 400], "img_size": [6, 400, 400]},
        # The product of these six numbers is 1e174. Its square, 1e348, is no float, because floats
        # end at about 1e308.
        {"window_size": [10**29] * 6},
        {"window_size": [1e200] * 6},
        {"depths": [10**6] + [2] * 8},
        {"mlp_ratio": 1e300},
        {"mul_attn_ratio": 1e300},
        {"mlp_ratio": float("nan")},
        {"fusion": {"type": "exposure", "features": 10**9}},
        {"embed_dims": [64] * 9},  # a possible network, but not the network of the weights
    ],
    ids=lambda change: next(iter(change)),
)
def test_options_of_a_larger_network_than_the_weights_are_refused_unbuilt(tmp_path, change):
    content = torch.load(SMALL, weights_only=True)
    content["options"]["netG"] |= change
    torch.save(content, tmp_path / "a.pth")
    assert_refused(BUILD, tmp_path / "a.pth", by="CheckpointError", saying="network")


def test_the_shipped_weights_and_shared_tensors_are_read(tmp_path):
    assert len(build(SMALL).state_dict()) == len(read_weights(SMALL))
    shared = torch.arange(4.0)
    torch.save(OrderedDict(a=shared, b=shared, c=shared[:2]), tmp_path / "a.pth")
    assert list(read_weights(tmp_path / "a.pth")) == ["a", "b", "c"]
