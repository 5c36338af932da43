"""What a checkpoint holds is checked before a run resumes from it.

A checkpoint is a dict: the position of the run (step, epoch, batch, ...), and its parts
(model_state_dict, optimizer, ...). A run of one step writes a correct checkpoint. The tests change
a value of this checkpoint, and read the checkpoint with `find_checkpoint`, as the start of a run
does.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.checked import not_none
from tests.helpers.damage import CHARACTERS, examples
from tests.helpers.train_files import folder_of_run, latest_checkpoint, run_odd, write_odd_options
from utils.errors import CheckpointError
from utils.run import checkpoint
from utils.run.resume import find_checkpoint


class FinishedRun(NamedTuple):
    """A run of one step."""

    folder: Path  # the folder of the run
    state: dict[str, Any]  # its checkpoint


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> FinishedRun:
    """Give a run of one step."""
    options = write_odd_options(tmp_path_factory.mktemp("run"))
    result = run_odd(options, "datasets.test={}", "train.total_iter=1")
    assert result.exit_codes == [0], result.text
    return FinishedRun(folder_of_run(options), latest_checkpoint(options))


def path_in(folder: Path) -> Path:
    """Return the path of the latest checkpoint of a run in this folder."""
    return folder / "checkpoints" / "checkpoint_latest.pth"


# ---- Values of a wrong type or range ----


# A key of the checkpoint, and a value that a run never writes there. For Python, True equals 1, but
# True is no count. A count is at most 2^40 (LARGEST_COUNT of utils/run/saved_state.py).
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", -1),
        ("step", math.nan),
        ("step", True),
        ("step", 2**70),
        ("step", "1"),
        ("epoch", None),
        ("batch", -3),
        ("best_psnr", math.nan),
        ("best_psnr", "high"),
        ("validated", 1.5),
        ("wandb_id", 7),
        ("order", {"samples": 0}),
        ("order", [1]),
        ("options", []),
        ("model_state_dict", {"conv.weight": 3}),
        ("model_state_dict", None),
        ("optimizer", 0),
        ("nonfinite_in_a_row", -1),
        ("world_size", 0),
        ("scaler", 3),
        ("ema_state_dict", "x"),
        ("ema_state_dict", {"conv.weight": 3}),
    ],
)
def test_a_position_or_part_of_a_wrong_type_is_refused_by_its_key(run, tmp_path, key, value):
    checkpoint.save({**run.state, key: value}, path_in(tmp_path))

    with pytest.raises(CheckpointError, match=key) as error:
        find_checkpoint("auto", tmp_path)

    assert str(path_in(tmp_path)) in str(error.value)


def test_keys_that_a_newer_version_adds_are_left_alone(run, tmp_path):
    order = {**run.state["order"], "of_tomorrow": 1}
    checkpoint.save({**run.state, "of_tomorrow": 1, "order": order}, path_in(tmp_path))

    found = not_none(find_checkpoint("auto", tmp_path))

    assert found.state["step"] == 1


# ---- Any value ----


def containers_of(inner: st.SearchStrategy) -> st.SearchStrategy:
    """Draw a list or a dict of values that `inner` draws."""
    texts = st.text(CHARACTERS, max_size=3)
    return st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)


single_values = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(CHARACTERS, max_size=5)
)
any_values = st.recursive(single_values, containers_of, max_leaves=4)


def keys_of_values(value: Any, outer: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the keys that lead to each value of nested dicts, from outside.

    E.g. {"order": {"samples": 8}} gives ("order",) and ("order", "samples"). A key that is a number
    becomes a text. The state of the optimizer has such keys.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            keys = (*outer, str(key))
            yield keys
            yield from keys_of_values(item, keys)


def with_value(content: dict[Any, Any], keys: tuple[str, ...], new: Any) -> dict[Any, Any]:
    """Return a copy of nested dicts with one value replaced.

    keys: the keys that lead to the value, as `keys_of_values` gives them.
    """
    first, *others = keys
    changed = dict(content)
    for key, item in content.items():
        if str(key) == first:
            changed[key] = with_value(item, tuple(others), new) if others else new
    return changed


@examples(60)
@given(data=st.data())
def test_whatever_one_value_of_a_checkpoint_is_the_run_resumes_or_ends_in_words(run, data):
    keys = data.draw(st.sampled_from(sorted(keys_of_values(run.state))))
    changed = with_value(run.state, keys, data.draw(any_values))
    # With keep=0, no former checkpoint stays. Otherwise a start could take a former checkpoint in
    # place of the changed one.
    checkpoint.save(changed, path_in(run.folder), keep=0)

    try:
        found = find_checkpoint("auto", run.folder)
    except CheckpointError as error:
        assert str(run.folder) in str(error)
    else:
        assert not_none(found).state["step"] >= 0
