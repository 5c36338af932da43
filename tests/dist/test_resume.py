"""Resume on other numbers of ranks, from another file, and without a common disk.

The network is one layer (tests/dist/odd_worker.py), and each rank prints the samples of each step.
So the tests can compare the samples of several starts with the order of one rank.
"""

import json
import re

from data.loader import ResumableDistributedSampler
from data.select_dataset import build_dataset
from tests.dist.launching import ROOT, run_ranks
from tests.helpers import train_files as runs
from utils.files import MARK

BATCH = "datasets.train.dataloader_batch_size={}"


def run(options, ranks, total_iter, batch, accumulated, *overrides):
    """Train until step `total_iter` of the run.

    batch: samples of a micro-batch on a rank. accumulated: micro-batches of a step. So a step has
    ranks x batch x accumulated samples.
    """
    steps = (
        f"train.total_iter={total_iter}",
        f"train.accumulation_steps={accumulated}",
        BATCH.format(batch),
    )
    return runs.odd(options, "debug.every=1", "datasets.test={}", *steps, *overrides, ranks=ranks)


def samples_of_steps(stdout):
    """Return the samples of each step: step -> keys in the order of the global batch.

    This order has the first sample of each rank, then the second sample of each rank, and so on.
    stdout: the output of each rank.
    """
    found = {}
    for text in stdout:
        for step, keys in re.findall(r"\[Rank \d/\d\] Step (\d+), .*Samples: (.*)", text):
            found.setdefault(int(step), []).append(keys.split(", "))
    return {
        step: [key for row in zip(*ranks, strict=True) for key in row]
        for step, ranks in found.items()
    }


def test_a_run_goes_on_with_the_next_sample_on_any_number_of_ranks_and_from_the_furthest_file(
    tmp_path,
):
    options = runs.write_odd(tmp_path)
    source, own = (
        runs.experiment(options, task) / "checkpoints" / "checkpoint_latest.pth"
        for task in ("run", "other")
    )
    named = ("--resume", str(source))
    other = ("task=other", *named)
    # A step has 4 samples on each number of ranks, and an epoch has 2 steps.
    two = run(options, 2, 1, 2, 1)
    four = run(options, 4, 2, 1, 1, *other)
    one = run(options, 1, 3, 2, 2, *other)

    assert [r.exit_codes for r in (two, four, one)] == [[0] * 2, [0] * 4, [0]], four.text + one.text
    data = build_dataset(json.loads(options.read_text())["datasets"]["train"], "train", 0)
    order = ResumableDistributedSampler(len(data), world_size=1, rank=0, batch_size=4, seed=0)
    expected = []
    for epoch in range(2):
        order.seek(epoch)
        expected += [data[sample]["key"] for sample in order]
    seen = (
        samples_of_steps(two.stdout) | samples_of_steps(four.stdout) | samples_of_steps(one.stdout)
    )
    assert seen[1] + seen[2] + seen[3] == expected[:12]
    assert (
        four.text.count(
            "4 ranks now, 2 before: the same samples in the same order, but sums round differently"
        )
        == 1
    )

    assert f"resumed from {source} at iter 1" in four.text
    assert "this run has a checkpoint of its own at iter 2" in one.text
    assert f"resumed from {own} at iter 2" in one.text
    assert runs.latest(options)["step"] == 1
    assert runs.latest(options, "other")["step"] == 3
    # With another number of samples in a step, the position in the epoch means other samples. So a
    # resume is refused unless the checkpoint is named. Then the next epoch begins.
    refused = run(options, 1, 3, 1, 1)
    begun = run(options, 1, 4, 1, 1, *named)
    again = run(options, 1, 5, 1, 1)

    said = "samples a step 4 -> 1"
    assert [r.exit_codes for r in (refused, begun, again)] == [[2], [0], [0]], (
        refused.text + begun.text
    )
    assert said in refused.text
    assert f"--resume {source}" in refused.text
    assert f"({said}): epoch 2 begins with its first sample" in begun.text
    assert "ranks now" not in begun.text
    state = runs.latest(options)
    assert (state["step"], state["epoch"], state["batch"]) == (
        5,
        1,
        4,
    )
    assert "begins with" not in again.text
    # The run "other" goes on from its own checkpoint, although its source has gone further.
    branch = run(options, 1, 5, 2, 2, *other)

    assert branch.exit_codes == [0], branch.text
    assert "starting at iter 3 of 5" in branch.text, branch.text
    assert runs.latest(options, "other")["step"] == runs.latest(options)["step"] == 5
    assert [step for step, _ in runs.history(options, "other")["train/loss"]] == [2, 3, 4, 5]


# A rank that works in the folder of its first argument. The results of the run are in a relative
# folder. So each rank has results of its own, as on hosts without a common disk.
APART = f"""
import os, runpy, sys
os.chdir(sys.argv.pop(1))
runpy.run_path("{ROOT}/tests/dist/odd_worker.py", run_name="__main__")
"""


def test_ranks_without_a_common_disk_resume_with_the_same_bits_as_an_uninterrupted_run(tmp_path):
    options = runs.write_odd(tmp_path, path={"root": "experiments"})
    (tmp_path / "apart.py").write_text(APART)
    hosts = [tmp_path / name for name in ("host0", "host1", "both")]
    for host in hosts:
        host.mkdir()

    def run(total_iter, *folders):
        given = runs.odd_command(options, f"train.total_iter={total_iter}", "datasets.test={}")[1:]
        args_of = {rank: (str(folder), *given) for rank, folder in enumerate(folders)}
        return run_ranks(2, tmp_path / "apart.py", args_of=args_of, limit_s=120)

    first = run(1, *hosts[:2])
    second = run(3, *hosts[:2])
    whole = run(3, hosts[2], hosts[2])
    assert [r.exit_codes for r in (first, second, whole)] == [[0, 0]] * 3, first.text + second.text
    assert "starting at iter 1 of 3" in second.text
    assert not list(hosts[1].iterdir())
    assert runs.same(*(runs.state_of(folder / "options.json") for folder in (hosts[0], hosts[2])))


def test_a_checkpoint_that_rank_0_cannot_read_is_reported_once_and_ends_both_ranks(tmp_path):
    options = runs.write_options(tmp_path)
    damaged = runs.experiment(options) / "checkpoints/checkpoint_latest.pth"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"")
    (runs.experiment(options) / MARK).touch()
    result = runs.train(options, ranks=2, limit_s=60)

    assert result.exit_codes == [3, 3], result.text
    assert result.text.count("CheckpointError: no readable") == 1, result.text
    assert "Traceback" not in result.text
