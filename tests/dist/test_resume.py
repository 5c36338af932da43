"""Resume on other numbers of ranks, from another file, and without a common disk.

The network is one layer (tests/dist/odd_worker.py), and each rank prints the samples of each step.
So the tests can compare the samples of several starts with the order of one rank.

A step has ranks x batch x accumulated samples. `batch` is the number of samples of a batch, and
`accumulated` is the number of batches that a rank takes in a step. E.g. 2 ranks, batch 2 and
accumulated 1 are 4 samples. With train.global_batch_size 4, the program chooses `accumulated`.

Most tests look at the seven starts of the class `Starts`. Each start depends on the earlier starts,
so a new start must be added at the end.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from data.sample_order import ResumableDistributedSampler
from data.select_dataset import build_dataset
from tests.dist.launching import ROOT, RankResult, run_ranks
from tests.helpers import train_files as runs
from utils.files import MARK

# Exit codes of a start that is refused: an option must be changed, or a file cannot be used.
CHANGE_OPTIONS = 2
FILE_UNUSABLE = 3


def run(
    options: Path, *overrides: str, ranks: int, until: int, batch: int, accumulated: int | None
) -> RankResult:
    """Train until step `until` of the run.

    accumulated: number of batches that a rank takes in a step. None: as many as a step of 4 samples
        needs.
    """
    if accumulated is None:
        samples_of_step = "train.global_batch_size=4"
    else:
        samples_of_step = f"train.accumulation_steps={accumulated}"
    steps = (
        f"train.total_iter={until}",
        samples_of_step,
        f"datasets.train.dataloader_batch_size={batch}",
    )
    # debug.every=1: print the samples of each step.
    return runs.run_odd(
        options, "debug.every=1", "datasets.test={}", *steps, *overrides, ranks=ranks
    )


def samples_of_steps(result: RankResult) -> dict[int, list[str]]:
    """Return the samples of each step: step -> keys in the order of the global batch.

    This order has the first sample of each rank, then the second sample of each rank, and so on.
    """
    # Step -> the samples of each rank, e.g. {3: [["a/1", "b/7"], ["a/4", "c/2"]]}.
    of_ranks: dict[int, list[list[str]]] = {}
    for text in result.stdout:
        for step, keys in re.findall(r"\[Rank \d/\d\] Step (\d+), .*Samples: (.*)", text):
            if int(step) not in of_ranks:
                of_ranks[int(step)] = []
            of_ranks[int(step)].append(keys.split(", "))

    samples = {}
    for step, samples_of_ranks in of_ranks.items():
        in_order = []
        # Row i has sample i of each rank.
        for row in zip(*samples_of_ranks, strict=True):
            in_order += row
        samples[step] = in_order
    return samples


# ---- One run on several numbers of ranks ----


@dataclass
class Starts:
    """Seven starts of two runs, one after another. A name says to which step a start trains.

    The run "run" is named by the option file. The run "other" begins from the checkpoint of "run":

        start         ranks   samples a step   --resume names      trains the steps
        run_to_1      2       4                nothing             1
        other_to_2    4       4                checkpoint of run   2
        other_to_3    1       4                checkpoint of run   3, from its own checkpoint
        run_refused   1       1                nothing             none
        run_to_4      1       1                checkpoint of run   2 to 4
        run_to_5      1       1                nothing             5
        other_to_5    1       4                checkpoint of run   4 and 5, from its own checkpoint
    """

    options: Path
    checkpoint_of_run: Path
    checkpoint_of_other: Path
    run_to_1: RankResult
    other_to_2: RankResult
    other_to_3: RankResult
    # The last steps of both runs after these three starts.
    step_of_run: int
    step_of_other: int
    run_refused: RankResult
    run_to_4: RankResult
    run_to_5: RankResult
    # The last checkpoint of "run".
    state_of_run: dict[str, Any]
    other_to_5: RankResult


@pytest.fixture(scope="module")
def starts(tmp_path_factory) -> Starts:
    """Train by seven starts."""
    options = runs.write_odd_options(tmp_path_factory.mktemp("starts"))
    checkpoint_of_run = runs.folder_of_run(options, "run") / "checkpoints/checkpoint_latest.pth"
    checkpoint_of_other = runs.folder_of_run(options, "other") / "checkpoints/checkpoint_latest.pth"
    named = ("--resume", str(checkpoint_of_run))
    other = ("task=other", *named)

    run_to_1 = run(options, ranks=2, until=1, batch=2, accumulated=1)
    other_to_2 = run(options, *other, ranks=4, until=2, batch=1, accumulated=1)
    other_to_3 = run(options, *other, ranks=1, until=3, batch=2, accumulated=None)
    step_of_run = runs.latest_checkpoint(options, "run")["step"]
    step_of_other = runs.latest_checkpoint(options, "other")["step"]

    run_refused = run(options, ranks=1, until=3, batch=1, accumulated=1)
    run_to_4 = run(options, *named, ranks=1, until=4, batch=1, accumulated=1)
    run_to_5 = run(options, ranks=1, until=5, batch=1, accumulated=1)
    state_of_run = runs.latest_checkpoint(options, "run")

    other_to_5 = run(options, *other, ranks=1, until=5, batch=2, accumulated=2)
    return Starts(
        options=options,
        checkpoint_of_run=checkpoint_of_run,
        checkpoint_of_other=checkpoint_of_other,
        run_to_1=run_to_1,
        other_to_2=other_to_2,
        other_to_3=other_to_3,
        step_of_run=step_of_run,
        step_of_other=step_of_other,
        run_refused=run_refused,
        run_to_4=run_to_4,
        run_to_5=run_to_5,
        state_of_run=state_of_run,
        other_to_5=other_to_5,
    )


def samples_of_one_rank(options: Path, epochs: int) -> list[str]:
    """Return the samples of the first epochs, in the order in which one rank takes them."""
    section = json.loads(options.read_text())["datasets"]["train"]
    dataset: Any = build_dataset(section, "train", seed=0)
    order = ResumableDistributedSampler(
        len(dataset), world_size=1, rank=0, samples_per_step=4, seed=0
    )
    samples = []
    for epoch in range(epochs):
        order.seek(epoch)
        samples += [dataset[sample]["key"] for sample in order]
    return samples


def test_a_run_goes_on_with_the_next_sample_on_any_number_of_ranks(starts):
    assert starts.run_to_1.exit_codes == [0, 0], starts.run_to_1.text
    assert starts.other_to_2.exit_codes == [0, 0, 0, 0], starts.other_to_2.text
    assert starts.other_to_3.exit_codes == [0], starts.other_to_3.text

    samples = samples_of_steps(starts.run_to_1)
    samples |= samples_of_steps(starts.other_to_2)
    samples |= samples_of_steps(starts.other_to_3)
    # Three steps have 3 x 4 = 12 samples. An epoch has 8 samples, so the last 4 samples are of the
    # second epoch.
    expected = samples_of_one_rank(starts.options, epochs=2)
    assert samples[1] + samples[2] + samples[3] == expected[:12]


def test_a_step_has_the_samples_of_global_batch_size(starts):
    assert starts.other_to_3.exit_codes == [0], starts.other_to_3.text
    assert "2 a rank x 1 rank x 2 accumulated = 4;" in starts.other_to_3.text
    assert [len(keys) for keys in samples_of_steps(starts.other_to_3).values()] == [4]


def test_a_start_on_another_number_of_ranks_says_once_what_differs(starts):
    message = (
        "4 ranks now, 2 before: the same samples in the same order, but sums round differently"
    )
    assert starts.other_to_2.text.count(message) == 1


def test_a_run_begins_from_the_checkpoint_that_is_named(starts):
    assert f"resumed from {starts.checkpoint_of_run} at iter 1" in starts.other_to_2.text


def test_a_run_goes_on_from_its_own_checkpoint_if_it_has_more_steps_than_the_named_one(starts):
    assert "this run has a checkpoint of its own at iter 2" in starts.other_to_3.text
    assert f"resumed from {starts.checkpoint_of_other} at iter 2" in starts.other_to_3.text


def test_a_run_that_begins_from_another_run_does_not_change_the_checkpoint_of_the_other_run(starts):
    assert starts.step_of_run == 1
    assert starts.step_of_other == 3


# A checkpoint says how many steps of the epoch are done, and not how many samples. E.g. 1 step of 4
# samples has used the samples 0 to 3. If a step had 1 sample now, only sample 0 would count as
# used. So a start with another number of samples in a step is refused.
OTHER_SAMPLES = "samples a step 4 -> 1"


def test_a_resume_with_another_number_of_samples_in_a_step_is_refused(starts):
    assert starts.run_refused.exit_codes == [CHANGE_OPTIONS], starts.run_refused.text
    assert OTHER_SAMPLES in starts.run_refused.text
    # The advice is to name the checkpoint.
    assert f"--resume {starts.checkpoint_of_run}" in starts.run_refused.text


def test_a_named_checkpoint_of_another_number_of_samples_begins_the_next_epoch(starts):
    assert starts.run_to_4.exit_codes == [0], starts.run_to_4.text
    # The log counts epochs from 1, and a checkpoint counts them from 0. So epoch 2 of the log is
    # epoch 1 of the checkpoint.
    message = f"({OTHER_SAMPLES}): epoch 2 begins with its first sample"
    assert message in starts.run_to_4.text
    # The message is about the order of the samples, and not about the number of ranks.
    assert "ranks now" not in starts.run_to_4.text


def test_a_run_goes_on_in_the_epoch_that_a_named_checkpoint_began(starts):
    assert starts.run_to_5.exit_codes == [0], starts.run_to_5.text
    assert "begins with" not in starts.run_to_5.text
    assert starts.state_of_run["step"] == 5
    # Step 1 was in epoch 0. run_to_4 began epoch 1 with step 2, as the test above checks. So steps
    # 2 to 5 are the first four steps of epoch 1.
    assert starts.state_of_run["epoch"] == 1
    assert starts.state_of_run["batch"] == 4


def test_a_run_goes_on_from_its_own_checkpoint_although_the_named_one_has_more_steps_now(starts):
    # At the start of other_to_5, "run" (which --resume names) is at step 5, and "other" at step 3.
    assert starts.other_to_5.exit_codes == [0], starts.other_to_5.text
    assert "starting at iter 3 of 5" in starts.other_to_5.text, starts.other_to_5.text
    assert runs.latest_checkpoint(starts.options, "run")["step"] == 5
    assert runs.latest_checkpoint(starts.options, "other")["step"] == 5
    # Step 1 belongs to "run", and "other" began after this step. So the curve of "other" begins
    # with step 2.
    curve = runs.history(starts.options, "other")["train/loss"]
    assert [step for step, _loss in curve] == [2, 3, 4, 5]


# ---- Ranks without a common disk ----

# A program that runs a rank in the folder of its first argument. The path of the results is
# relative, so each rank has results of its own, as on hosts without a common disk. `pop` removes
# the first argument, because odd_worker.py must not get it.
APART = f"""
import os, runpy, sys
os.chdir(sys.argv.pop(1))
runpy.run_path("{ROOT}/tests/dist/odd_worker.py", run_name="__main__")
"""


@dataclass
class Apart:
    """Two ranks that can train in folders of their own, as on two hosts."""

    # The folder of the option file and of apart.py.
    folder: Path
    options: Path

    def host(self, name: str) -> Path:
        """Return the folder of a host. Make the folder if it is missing."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def start(self, until: int, of_rank_0: Path, of_rank_1: Path) -> RankResult:
        """Train until step `until`, with each rank in its folder."""
        command = runs.odd_command(self.options, f"train.total_iter={until}", "datasets.test={}")
        _, *arguments = command  # without the program: apart.py runs it
        args_of = {0: (str(of_rank_0), *arguments), 1: (str(of_rank_1), *arguments)}
        result = run_ranks(2, self.folder / "apart.py", args_of=args_of, limit_s=120)
        assert result.exit_codes == [0, 0], result.text
        return result


@pytest.fixture
def apart(tmp_path) -> Apart:
    """Give two ranks on two hosts."""
    options = runs.write_odd_options(tmp_path, path={"root": "experiments"})
    (tmp_path / "apart.py").write_text(APART)
    return Apart(tmp_path, options)


# This test is slow, because it has three runs of two ranks.
@pytest.mark.slow
def test_ranks_without_a_common_disk_resume_with_the_same_bits_as_an_uninterrupted_run(apart):
    host0 = apart.host("host0")
    host1 = apart.host("host1")
    both = apart.host("both")

    apart.start(until=1, of_rank_0=host0, of_rank_1=host1)
    second = apart.start(until=3, of_rank_0=host0, of_rank_1=host1)
    apart.start(until=3, of_rank_0=both, of_rank_1=both)

    assert "starting at iter 1 of 3" in second.text
    # `state_of` reads the checkpoint in the folder "experiments" beside the option file.
    resumed = runs.state_of(host0 / "options.json")
    uninterrupted = runs.state_of(both / "options.json")
    assert runs.equal_checkpoints(resumed, uninterrupted)
    assert not list(host1.iterdir())


def test_a_rank_other_than_0_writes_nothing_on_its_own_disk(apart):
    host1 = apart.host("host1")

    apart.start(until=1, of_rank_0=apart.host("host0"), of_rank_1=host1)

    assert not list(host1.iterdir())


# ---- A checkpoint that cannot be read ----


@pytest.fixture(scope="module")
def with_damaged_checkpoint(tmp_path_factory) -> RankResult:
    """Start two ranks on a run with an empty checkpoint."""
    options = runs.write_options(tmp_path_factory.mktemp("damaged"))
    damaged = runs.folder_of_run(options) / "checkpoints/checkpoint_latest.pth"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"")
    # This file marks the folder as the folder of a training run.
    (runs.folder_of_run(options) / MARK).touch()
    return runs.train(options, ranks=2, limit_s=60)


def test_a_checkpoint_that_rank_0_cannot_read_ends_both_ranks(with_damaged_checkpoint):
    result = with_damaged_checkpoint

    assert result.exit_codes == [FILE_UNUSABLE, FILE_UNUSABLE], result.text


def test_a_checkpoint_that_rank_0_cannot_read_is_reported_once(with_damaged_checkpoint):
    result = with_damaged_checkpoint

    assert result.text.count("CheckpointError: no readable") == 1, result.text
    assert "Traceback" not in result.text
