"""What a checkpoint holds is checked before a run resumes from it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.checked import present
from tests.helpers.damage import examples
from tests.helpers.train_files import experiment, latest, odd, write_odd
from utils.errors import CheckpointError
from utils.run import checkpoint
from utils.run.checkpoint import find_checkpoint


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Options and folder of a run of one step, and its checkpoint."""
    options = write_odd(tmp_path_factory.mktemp("run"))
    assert odd(options, "datasets.test={}", "train.total_iter=1").exit_codes == [0]
    return options, experiment(options), latest(options)


@pytest.mark.parametrize(("key", "value"), [
    ("step", -1), ("step", math.nan), ("step", True), ("step", 2**70), ("step", "1"),
    ("epoch", None), ("batch", -3), ("best_psnr", math.nan), ("best_psnr", "high"),
    ("validated", 1.5), ("wandb_id", 7), ("order", {"samples": 0}), ("order", [1]), ("options", []),
    ("model_state_dict", {"conv.weight": 3}), ("model_state_dict", None), ("optimizer", 0),
    ("nonfinite_in_a_row", -1), ("world_size", 0), ("scaler", 3), ("ema_state_dict", "x"),
])  # fmt: skip
def test_a_position_or_part_of_a_wrong_type_is_refused_by_its_key(run, tmp_path, key, value):
    state = {**run[2], key: value}
    path = tmp_path / "checkpoints" / "checkpoint_latest.pth"
    checkpoint.save(state, path)
    with pytest.raises(CheckpointError, match=key) as error:
        find_checkpoint("auto", tmp_path)

    assert str(path) in str(error.value)


def test_keys_that_a_newer_version_adds_are_left_alone(run, tmp_path):
    state = {**run[2], "of_tomorrow": 1, "order": {**run[2]["order"], "of_tomorrow": 1}}
    checkpoint.save(state, tmp_path / "checkpoints" / "checkpoint_latest.pth")
    assert present(find_checkpoint("auto", tmp_path)).state["step"] == 1


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)


@examples(60)
@given(data=st.data())
def test_whatever_one_value_of_a_checkpoint_is_the_run_resumes_or_ends_in_words(run, data):
    _, folder, state = run
    where = data.draw(st.sampled_from(sorted(_places(state))))
    changed = _changed(state, where, data.draw(PLAIN))
    checkpoint.save(changed, folder / "checkpoints" / "checkpoint_latest.pth", keep=0)
    try:
        resumed = find_checkpoint("auto", folder)
    except CheckpointError as e:
        assert str(folder) in str(e)
    else:
        assert present(resumed).state["step"] >= 0


def _places(value, at=()):
    """Yield the keys that lead to each value of nested dicts and lists."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*at, str(key))
            yield from _places(item, (*at, str(key)))


def _changed(value, where, new):
    """Return a copy of nested dicts with one value replaced. where: its keys, from outside."""
    key = next(key for key in value if str(key) == where[0])
    inner = new if len(where) == 1 else _changed(value[key], where[1:], new)
    return {**value, key: inner}
