"""A training run as a person sees it on a terminal."""

import re

from tests.terminal import in_terminal, screen
from tests.train_files import history, odd_command, write_odd

DATE = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "
BAR = r"epoch 2: 100%\|.{8,}\| [\d.e+]+ it/s, \d\d:\d\d:\d\d left, loss 0\.\d{4}, lr 9\.[78]e-04"
STEP = r"Epoch: \d, Iter: \d+, Loss: 0\.\d{4}, lr: [\de.-]+(, it/s: [\d.e+]+, eta: \d\d:\d\d:\d\d)?"
COLUMNS = 80


def test_one_bar_shows_the_run_and_tears_no_line(tmp_path):
    options = write_odd(tmp_path)
    changes = ("train.total_iter=10", "train.checkpoint_test=5", "datasets.train.dataloader_num_workers=0")
    tiles = ("val.size_patch_testing=16", "val.size_patch_overlapping=4")
    command = odd_command(options, *changes, *tiles, "watchdog.stall_s=60", case="noisy")
    code, written = in_terminal(*command, env={"MPLCONFIGDIR": str(tmp_path / "fonts")}, size=(50, COLUMNS))

    rows = screen(written)
    assert code == 0, "\n".join(rows)
    bars = [row for row in rows if "%|" in row]
    assert len(bars) == 1 and re.fullmatch(BAR, bars[0]) and len(bars[0]) <= COLUMNS, "\n".join(rows)
    assert b"epoch 1:   0%" in written
    # The first of three clips has 2 of the 9 frames: the bar moves from its first tiles on.
    assert any(0 < int(share) < 22 for share in re.findall(rb"validation: +(\d+)%", written))
    assert all(len(row) <= 110 for row in rows if re.search("Iter: ", row))
    log = [re.sub(DATE, "", row) for row in rows if re.match(DATE, row)]
    steps = [found for row in log if (found := re.fullmatch(STEP, row))]
    assert len(steps) == 10 and steps[0][1] is None and all(step[1] for step in steps[1:])
    assert len(history(options)["train/data_share"]) == 9 and not any("fontManager" in row for row in log)
    assert len([row for row in log if row.startswith("Epoch 1 ended: 8 steps, mean loss 0.")]) == 1
    assert rows.count("a library prints to stderr") == rows.count("a library prints to stdout") == 10
    assert any("UserWarning: a library warns" in row for row in log)
    start = next(i for i, row in enumerate(log) if row.startswith("fresh start: starting at iter 0 of 10, epoch 1"))
    words = ["Task:", "Ranks:", "Data:", "Batch:", "Network:", "Schedule:"]
    assert [row.split()[0] for row in log[start - 6 : start]] == words
    assert start < 10  # the first screen has ten lines, with those on the data and the rank
