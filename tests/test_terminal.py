"""A training run as a person sees it on a terminal."""

from __future__ import annotations

import re

from tests.terminal import in_terminal, screen
from tests.train_files import write_options

DATE = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "
BAR = (
    r"epoch 2: 100%\|.+\| 10/10, [\d.e+]+ it/s, \d\d:\d\d:\d\d left, loss 0\.\d{4}, lr 9\.7\de-04, data wait \d+ %, "
    r"[\d.]+ GB"
)


def test_one_bar_shows_the_run_and_tears_no_line(tmp_path):
    options = write_options(tmp_path, netG={"net_type": "noisy"})
    code, written = in_terminal(
        "tests/dist/noisy_worker.py", "--opt", str(options), "train.total_iter=10", "train.checkpoint_test=5",
        "datasets.train.dataloader_num_workers=0", "watchdog.stall_s=60",
    )  # fmt: skip

    rows = screen(written)
    assert code == 0, "\n".join(rows)
    bars = [row for row in rows if "%|" in row]
    assert len(bars) == 1 and re.fullmatch(BAR, bars[0]), "\n".join(rows)
    assert b"epoch 1:   0%" in written and b"validation:" in written
    log = [re.sub(DATE, "", row) for row in rows if re.match(DATE, row)]
    steps = [
        row for row in log if re.fullmatch(r"Epoch: \d, Iter: \d+, Loss: 0\.\d{4}, lr: .* memory_gb: [\d.]+.*", row)
    ]
    assert len(steps) == 10
    assert not re.search("it_per_s|eta", steps[0]) and re.search(r", eta: \d\d:\d\d:\d\d, it_per_s", steps[1])
    assert len([row for row in log if row.startswith("Epoch 1 ended: 8 steps, mean loss 0.")]) == 1
    assert rows.count("a library prints to stderr") == rows.count("a library prints to stdout") == 10
    assert any("UserWarning: a library warns" in row for row in log)
    start = next(i for i, row in enumerate(log) if row.startswith("fresh start: starting at iter 0 of 10, epoch 1"))
    words = ["Task:", "Ranks:", "Data:", "Batch:", "Network:", "Schedule:"]
    assert [row.split()[0] for row in log[start - 6 : start]] == words
    assert start < 10  # the first screen has ten lines, with those on the data and the rank
