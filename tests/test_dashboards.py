"""What TensorBoard shows of a run of two ranks that was resumed, and the warnings of a run in which much is wrong."""

import json
import re

import pytest

from tests.pages import show_scalars, tensorboard
from tests.test_show_sample import home  # noqa: F401
from tests.train_files import events_of, experiment, odd

# Without the two that are true on a busy machine: a slow rank, a wait for data. tests/test_health.py has them.
WARNINGS = ("explodes", "nearly full", "at its floor", "has room for", "falls while", "do not show the same")


@pytest.fixture(scope="module")
def runs(home, tmp_path_factory):  # noqa: F811
    """Two ranks: 25 steps; then 50 more without loader processes, a slow rank 1 and too short a schedule."""
    folder = tmp_path_factory.mktemp("dashboards")
    options = json.loads((home / "options.json").read_text())
    loader = {"dataloader_batch_size": 4, "dataloader_num_workers": 2, "dataloader_epoch_repeat": 200}
    options["datasets"]["train"] |= loader
    options |= {"netG": {"net_type": "odd"}, "path": {"root": str(folder / "experiments")}}
    every = {"checkpoint_print": 5, "checkpoint_test": 25, "checkpoint_save": 25, "G_scheduler_periods": 100}
    options["train"] = {"total_iter": 25, "G_lossfn_type": "charbonnier", **every}
    (folder / "options.json").write_text(json.dumps(options))

    def run(times, *overrides):
        result = odd(folder / "options.json", *overrides, case="busy", struck=(1, times), ranks=2)
        assert result.exit_codes == [0, 0], result.text
        return result.text

    texts = run(1), run(
        3, "train.total_iter=75", "datasets.train.dataloader_num_workers=0", "train.G_scheduler_periods=45"
    )  # fmt: skip
    return folder / "options.json", texts


def test_a_healthy_run_gives_no_warning(runs):
    assert [text for text in WARNINGS if text in runs[1][0]] == []


def test_a_slow_rank_a_slow_loader_and_a_short_schedule_are_named_once(runs):
    text = runs[1][1]
    slow = (
        r"rank 1 on \S+ is slower than the others, which wait for it at every step: data [\d.]+ s \+ forward [\d.]+ s"
    )
    wait = r"rank \d on \S+ waits for data \d+ % of the time, and all others with it: "
    floor = r"at its floor from iter 45 on, for 40 % of the run, .*: stretch train\.G_scheduler_periods to the end"
    for pattern in (slow, wait, floor):
        assert len(re.findall(pattern, text)) == 1, (pattern, text)


def test_the_event_files_hold_each_rank_and_no_step_twice(runs):
    events = events_of(runs[0])
    steps = {tag: [event.step for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert steps["train/loss"] == steps["train/grad_norm"] == list(range(5, 76, 5))
    assert steps["val/psnr"] == steps["clips/psnr/clip0"] == [25, 50, 75]
    own = {f"ranks/{name}/{rank}" for name in ("data_s", "forward_s", "compute_s") for rank in (0, 1)}
    assert own <= steps.keys() and all(steps[tag] == steps["train/loss"] for tag in own)
    first, second = ([event.value for event in events.Scalars(f"ranks/forward_s/{rank}")][-5:] for rank in (0, 1))
    assert sum(second) > 1.5 * sum(first)


def test_tensorboard_shows_the_scalars_in_a_browser(runs, browser):
    browser.set_window_size(1600, 2400)  # only cards that are in sight are drawn
    with tensorboard(experiment(runs[0]) / "tb_logger") as address:
        text = show_scalars(browser, address, ("train/loss", "train/grad_norm", "val/psnr", "ranks/data_s/1"))
    assert "clips/psnr" not in text  # the page shows what it was asked for, and the names are no menu
