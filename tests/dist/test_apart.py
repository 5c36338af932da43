"""Two hosts that share no disk: only rank 0 reads and writes the folder of the run."""

from __future__ import annotations

import json

import torch
from torch.utils._pytree import tree_flatten

from tests.dist.launching import run_ranks
from tests.train_files import write_options
from utils.files import MARK

# path.root is relative, and each rank works in a folder of its own.
SCRIPT = """
import os, sys
os.chdir(sys.argv.pop(1))
import main_train_vrt
from utils.dist import process
process.end(main_train_vrt.main(sys.argv[1:]))
"""


def test_ranks_without_a_common_disk_resume_with_the_same_bits_as_an_uninterrupted_run(tmp_path):
    options = write_options(tmp_path)
    text = json.loads(options.read_text())
    options.write_text(json.dumps(text | {"path": {"root": "experiments"}}))
    (tmp_path / "apart.py").write_text(SCRIPT)
    for name in ("host0", "host1", "both"):
        (tmp_path / name).mkdir()

    def run(total_iter, *folders):
        given = ("--opt", str(options), f"train.total_iter={total_iter}", "datasets.test={}")
        args_of = {rank: (str(tmp_path / folder), *given) for rank, folder in enumerate(folders)}
        return run_ranks(2, tmp_path / "apart.py", args_of=args_of, limit_s=120)

    def state(folder):
        path = tmp_path / folder / "experiments/run/checkpoints/checkpoint_latest.pth"
        return {key: value for key, value in torch.load(path, weights_only=True).items() if key != "options"}

    first, second, whole = run(1, "host0", "host1"), run(3, "host0", "host1"), run(3, "both", "both")

    assert [r.exit_codes for r in (first, second, whole)] == [[0, 0]] * 3, first.text + second.text
    assert "starting at iter 1 of 3" in second.text and not list((tmp_path / "host1").iterdir())
    resumed, uninterrupted = (tree_flatten(state(folder)) for folder in ("host0", "both"))
    assert resumed[1] == uninterrupted[1]
    assert all(bool(torch.eq(torch.as_tensor(a), b).all()) if torch.is_tensor(b) else a == b
               for a, b in zip(resumed[0], uninterrupted[0], strict=True))  # fmt: skip


def test_a_checkpoint_that_rank_0_cannot_read_is_reported_once_and_ends_both_ranks(tmp_path):
    options = write_options(tmp_path)
    damaged = tmp_path / "experiments/run/checkpoints/checkpoint_latest.pth"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"")
    (tmp_path / "experiments/run" / MARK).touch()

    result = run_ranks(2, "main_train_vrt.py", "--opt", str(options), limit_s=60)

    assert result.exit_codes == [3, 3] and result.text.count("CheckpointError: no readable") == 1, result.text
    assert "Traceback" not in result.text
