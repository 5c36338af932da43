"""A damaged weights file or checkpoint is read, or refused with a CheckpointError.

The library hypothesis draws the damage. Any other error than a CheckpointError fails a test.
"""

import io
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.portable import read_saved
from models.weights_file import read_weights
from tests.dist.launching import ROOT
from tests.helpers.damage import CHARACTERS, damaged_copies, examples
from utils.errors import CheckpointError
from utils.run import checkpoint

STATE = {
    "params": {"a": torch.zeros(4), "b": torch.ones(2, 3)},
    "options": {"scale": 1, "values": [1, 2.5, None, {"x": "y"}]},
}


def bytes_of_save(state: object, is_new: bool = True, has_sums: bool = True) -> bytes:
    """Return the bytes of a file of torch.save.

    is_new: whether the file is a zip archive. torch writes zip archives since version 1.6.
        Otherwise it is a pickle.
    has_sums: whether the file has checksums of its parts.
    """
    file = io.BytesIO()
    torch.serialization.set_crc32_options(has_sums)
    try:
        torch.save(state, file, _use_new_zipfile_serialization=is_new)
    finally:
        torch.serialization.set_crc32_options(True)
    return file.getvalue()


# Name of a kind of file -> the bytes of such a file. With checksums, most damage is noticed before
# the parts of the file are read. Without checksums, damage reaches the code that reads the parts.
WEIGHTS = {
    "zip file": bytes_of_save(STATE),
    "zip file without checksums": bytes_of_save(STATE, has_sums=False),
    "pickle": bytes_of_save(STATE, is_new=False),
}
# The bytes of weights/operator.pth, the smallest shipped network, without checksums.
OPERATOR = bytes_of_save(
    torch.load(ROOT / "weights" / "operator.pth", weights_only=True), has_sums=False
)


def assert_is_whole(error: CheckpointError, path: Path) -> None:
    """Check that an error names the file, and has its four parts."""
    assert str(path) in error.where
    assert error.what
    assert error.expected
    assert error.do


@examples(150)
@given(
    data=st.data(),
    kind=st.sampled_from(sorted(WEIGHTS)),
    read=st.sampled_from([read_weights, checkpoint.load]),
)
def test_a_damaged_file_is_read_or_refused(tmp_path, data, kind, read):
    path = tmp_path / "a.pth"
    path.write_bytes(data.draw(damaged_copies(WEIGHTS[kind])))

    try:
        read(path)
    except CheckpointError as error:
        assert_is_whole(error, path)


@examples(40)
@given(data=st.data())
def test_a_damaged_network_is_built_or_refused(tmp_path, data):
    path = tmp_path / "a.pth"
    path.write_bytes(data.draw(damaged_copies(OPERATOR)))

    try:
        read_saved(path).build()
    except CheckpointError as error:
        assert_is_whole(error, path)


# ---- Options that no network has ----

# The whole numbers include negative numbers, and numbers far above any size of a network.
single_values = (
    st.none()
    | st.booleans()
    | st.integers(-5, 2**40)
    | st.floats()
    | st.text(CHARACTERS, max_size=5)
)


def containers_of(inner: st.SearchStrategy) -> st.SearchStrategy:
    """Draw a list or a dict of values that `inner` draws."""
    return st.lists(inner, max_size=3) | st.dictionaries(st.text(CHARACTERS, max_size=5), inner)


values = st.recursive(single_values, containers_of, max_leaves=6)


@pytest.fixture(scope="module")
def content_of_small():
    """Give the content of the shipped weights vrt_small.pth."""
    return torch.load(ROOT / "weights" / "vrt_small.pth", weights_only=True)


# Keys of the section `netG` in the options that a file holds beside its weights.
NET_KEYS = ("net_type", "depths", "embed_dims", "window_size", "num_heads", "mlp_ratio", "fusion")
# Keys at the top of the options in a file of weights. The key `netG` replaces the whole section.
OUTER_KEYS = ("scale", "netG", "spike_channels", "spike", "spike_data", "datasets")


@examples(10)
@given(
    change=st.dictionaries(st.sampled_from(NET_KEYS), values, max_size=2),
    outer=st.dictionaries(st.sampled_from(OUTER_KEYS), values, max_size=2),
)
def test_weights_that_do_not_fit_their_options_are_refused(
    tmp_path, content_of_small, change, outer
):
    path = Path(tmp_path, "a.pth")
    options = content_of_small["options"]
    changed_options = options | {"netG": options["netG"] | change} | outer
    # Write only 20 of the weights, because this is faster. The other weights are missing, so the
    # file must be refused even if the options were not changed.
    few_weights = dict(list(content_of_small["params"].items())[:20])
    torch.save({"params": few_weights, "options": changed_options}, path)

    with pytest.raises(CheckpointError) as error:
        read_saved(path).build()

    assert_is_whole(error.value, path)
