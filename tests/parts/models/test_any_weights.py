"""Whatever the bytes of a weights file or a checkpoint, it is read, or refused in words."""

import io
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.portable import read_saved, read_weights
from tests.dist.launching import ROOT
from tests.helpers.damage import damaged, examples
from utils.errors import CheckpointError
from utils.run import checkpoint

STATE = {
    "params": {"a": torch.zeros(4), "b": torch.ones(2, 3)},
    "options": {"scale": 1, "values": [1, 2.5, None, {"x": "y"}]},
}


def saved(state: object, is_new: bool = True, sums: bool = True) -> bytes:
    """Bytes of torch.save. sums: whether checksums of its parts are in the file."""
    file = io.BytesIO()
    torch.serialization.set_crc32_options(sums)
    try:
        torch.save(state, file, _use_new_zipfile_serialization=is_new)
    finally:
        torch.serialization.set_crc32_options(True)
    return file.getvalue()


# Without checksums, damage reaches what reads the parts.
WEIGHTS = {
    "zip file": saved(STATE),
    "zip file without checksums": saved(STATE, sums=False),
    "pickle": saved(STATE, is_new=False),
}
OPERATOR = saved(torch.load(ROOT / "weights" / "operator.pth", weights_only=True), sums=False)


@examples(150)
@given(
    data=st.data(),
    kind=st.sampled_from(sorted(WEIGHTS)),
    read=st.sampled_from([read_weights, checkpoint.load]),
)
def test_damaged_weights_and_checkpoints(tmp_path, data, kind, read):
    path = tmp_path / "a.pth"
    path.write_bytes(data.draw(damaged(WEIGHTS[kind])))
    try:
        read(path)
    except CheckpointError as e:
        assert str(path) in e.where
        assert e.what
        assert e.expected
        assert e.do


@examples(40)
@given(data=st.data())
def test_damaged_weights_of_a_network(tmp_path, data):
    path = tmp_path / "a.pth"
    path.write_bytes(data.draw(damaged(OPERATOR)))
    try:
        read_saved(path).build()
    except CheckpointError as e:
        assert str(path) in e.where
        assert e.what
        assert e.expected
        assert e.do


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 2**40), st.floats(), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
KEYS = ("net_type", "depths", "embed_dims", "window_size", "num_heads", "mlp_ratio", "fusion")


@pytest.fixture(scope="module")
def small():
    """Give the content of the shipped weights vrt_small.pth."""
    return torch.load(ROOT / "weights" / "vrt_small.pth", weights_only=True)


# Keys of the description that the file holds beside its weights.
OUTER = ("scale", "netG", "spike_channels", "spike", "spike_data", "datasets")


@examples(10)
@given(
    change=st.dictionaries(st.sampled_from(KEYS), values, max_size=2),
    outer=st.dictionaries(st.sampled_from(OUTER), values, max_size=2),
)
def test_weights_whose_options_are_nonsense(tmp_path, small, change, outer):
    path = Path(tmp_path, "a.pth")
    options = small["options"]
    about = options | {"netG": options["netG"] | change} | outer
    few = dict(list(small["params"].items())[:20])
    torch.save({"params": few, "options": about}, path)
    with pytest.raises(CheckpointError) as e:
        read_saved(path).build()

    assert str(path) in e.value.where
    assert e.value.what
    assert e.value.expected
    assert e.value.do
