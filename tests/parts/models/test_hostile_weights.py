"""A small weights file is read, or refused in words, in two seconds and a gigabyte."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict

import pytest
import torch

from models.portable import read_saved
from models.weights_file import read_weights
from tests.dist.launching import ROOT
from tests.helpers.limited import assert_refused
from utils.errors import CheckpointError
from utils.run import checkpoint

READ = "models.weights_file.read_weights"
SMALL = ROOT / "weights" / "vrt_small.pth"


def build(path):
    """Build the network of a weights file, as a test does."""
    return read_saved(path).build()


def load_checkpoint(path):
    """Read a checkpoint, as a run that resumes it."""
    from pathlib import Path

    return checkpoint.load(Path(path))


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


def with_pickle(path, data):
    """Write a file as torch.save does, but with `data` in place of its pickle."""
    members = members_of({"a": torch.zeros(4)})
    name = next(name for name in members if name.endswith("data.pkl"))
    write_zip(path, {**members, name: data})


def with_old_pickle(path, data):
    """A file as torch wrote it before 1.6: pickles one after the other, of which `data` is one."""
    head = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
    path.write_bytes(b"".join(pickle.dumps(part, 2) for part in head) + data)


# bytearray(2**33), and a text of 50,000 characters in a codec of quadratic time.
BYTES = b"\x80\x02c__builtin__\nbytearray\n\x8a\x05" + (2**33).to_bytes(5, "little") + b"\x85R."
TEXT = b"X" + struct.pack("<I", 100_000) + "é".encode() * 50_000
CODEC = b"\x80\x02c_codecs\nencode\n" + TEXT + b"X\x08\0\0\0punycode\x86R."


@pytest.mark.parametrize("reader", [READ, LOAD])
@pytest.mark.parametrize("write", [with_pickle, with_old_pickle])
@pytest.mark.parametrize(("data", "said"), [(BYTES, "makes a bytearray"), (CODEC, "punycode")])
def test_a_pickle_that_makes_much_of_a_number_is_not_read(tmp_path, reader, write, data, said):
    write(tmp_path / "a.pth", data)
    assert (tmp_path / "a.pth").stat().st_size < 200_000
    assert_refused(reader, tmp_path / "a.pth", by="CheckpointError", saying=said)


@pytest.fixture(scope="module")
def compressed_file(tmp_path_factory):
    """Give a small file that unpacks to 268 MB. Packing takes two seconds of a core."""
    path = tmp_path_factory.mktemp("compressed") / "a.pth"
    write_zip(path, members_of({"a": torch.zeros(2**26)}), zipfile.ZIP_DEFLATED)
    return path


@pytest.mark.parametrize("reader", [READ, LOAD])
def test_members_that_are_compressed_are_not_unpacked(compressed_file, reader):
    assert compressed_file.stat().st_size < 400_000
    assert_refused(reader, compressed_file, by="CheckpointError", saying="is compressed")


def test_tables_that_hold_one_another_many_times_are_refused(tmp_path):
    table = ["x"]
    for _ in range(40):
        table = [table, table]
    torch.save({"params": {"a": torch.zeros(4)}, "options": table}, tmp_path / "a.pth")
    assert_refused(READ, tmp_path / "a.pth", by="CheckpointError", saying="hold one another")


def test_tensors_that_repeat_one_number_are_refused(tmp_path):
    content = torch.load(SMALL, weights_only=True)
    content["params"]["conv_last.weight"] = torch.zeros(1).expand(50_000, 50_000)
    torch.save(content, tmp_path / "a.pth")
    said = "567 tensors of 10006 MB in a file"
    assert_refused(BUILD, tmp_path / "a.pth", by="CheckpointError", saying=said)


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
        {"depths": [10**6] + [2] * 8},
        {"mlp_ratio": 1e300},
        {"mul_attn_ratio": 1e300},
        {"mlp_ratio": float("nan")},
        {"fusion": {"type": "exposure", "features": 10**9}},
        {"embed_dims": [64] * 9},  # plausible, and others than the weights have
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
