"""Broken files, before and while two ranks train: both end at once, with one message that names the files."""

import os
import re
import signal

from tests.clip_files import write_clip
from tests.dist.launching import Ranks
from tests.faults.refusals import break_file
from tests.train_files import odd_command, train, write_odd, write_options
from utils.dist.process import children_of


def test_a_file_that_breaks_during_training_ends_both_ranks_with_its_name():
    trial = break_file("cut spikes", ranks=2)  # other damages: tests/test_io_backend.py, tests/faults/trials.py

    assert trial.is_named and "loader worker" in trial.text and "Traceback" not in trial.text, trial.text
    assert trial.text.count("DataError: ") == 1


def test_a_loader_process_that_stands_still_at_the_epoch_turn_ends_the_run_with_its_name(tmp_path):
    # The last step of the first epoch waits until the worker hangs, so the hang is noticed between the epochs.
    loader = {"persistent_workers": "true", "timeout_s": 3, "batch_size": 4}
    changes = [f"datasets.train.dataloader_{key}={value}" for key, value in loader.items()]
    changes += ["datasets.test={}", "train.total_iter=100000"]
    with Ranks(1, *odd_command(write_odd(tmp_path), *changes, case="wait", struck=(0, 2))) as ranks:
        ranks.wait_for("waiting", rank=0, limit_s=90)
        for process in children_of(ranks.processes[0].pid):
            os.kill(process, signal.SIGSTOP)
        result = ranks.wait(limit_s=30)

    assert result.exit_codes == [3], result.text
    assert result.text.count("DataError: no batch: DataLoader timed out after 3.0 seconds") == 1
    assert re.search(r"\(epoch, index\) \[\(\d+, \d\),.*\], loader worker 0, rank 0", result.text)
    assert "Traceback" not in result.text


def test_everything_that_is_broken_at_the_start_is_listed_once_for_both_ranks(tmp_path):
    options = write_options(tmp_path)
    spikes = tmp_path / "GOPRO_Large_spike_seq/train/train0/spike"
    os.truncate(spikes / "000000.dat", 100)
    os.truncate(spikes / "000001.dat", 0)
    (spikes / "000002.dat").write_bytes(2 * (spikes / "000002.dat").read_bytes())
    (spikes / "000003.dat").unlink()
    (tmp_path / "GOPRO_Large/train/train1/blur/000000.png").write_bytes(b"<html>moved</html>")
    write_clip(tmp_path, "train2", frames=4, h=8, w=12)  # another camera than the others
    result = train(options, ranks=2, limit_s=60)

    assert result.exit_codes == [3, 3], result.text
    assert result.text.count("DataError: ") == 1 and "Traceback" not in result.text
    for words in (
        "train0 | spike lacks 1 of 4 frames: 000003.dat",
        "train1 | cannot read image: 18 bytes",
        "train0 | spike file of 100 bytes holds 3 planes of 16 x 16 and 4 bytes more",
        "train0 | spike file of 0 bytes holds no plane of 16 x 16",
        "train0 | spike file has 48 planes (1536 bytes), expected 24 (768 bytes)",
        "train2 | spike file has 9 planes (288 bytes), expected 24 (768 bytes)",
        "train2 | lq is 16 x 24, spikes 16 x 16: no whole multiple",
    ):
        assert words in result.text, result.text
