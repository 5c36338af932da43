"""What is said of the ranks' GPUs, and that nothing is said where there is none."""

from __future__ import annotations

import pytest
import torch

from scripts.parts.doctor_checks import check_ranks
from utils.dist import gpu_use
from utils.dist.status import line

GPUS = [
    {"busy": 0.9, "used_gb": 40.0, "total_gb": 80.0},
    {"busy": 0.5, "used_gb": 41.5, "total_gb": 80.0},
]
BEAT = {"host": "a", "pid": 7, "step": 3, "age": 0.1, "phase": "data"}
FACTS = {"device": "cuda:1", "loss_is_finite": True, "weights": "0", "weights_step": 3, "samples": 4, "first": [1]}


def test_the_log_line_has_the_idlest_and_the_fullest_gpu():
    assert gpu_use.log_values(GPUS) == {
        "gpu_busy_min": 0.5, "gpu_busy_mean": pytest.approx(0.7), "gpu_used_gb_max": 41.5,
    }  # fmt: skip
    assert gpu_use.log_values([GPUS[0], None]) == gpu_use.log_values([]) == {}


def test_the_status_line_of_a_rank_has_its_gpu_where_it_has_one():
    with_gpu, without = (line(1, 2, BEAT, FACTS | more) for more in ({"gpu": GPUS[1]}, {"gpu": None}))

    assert with_gpu == without + "; GPU 50% busy, 41.5 of 80.0 GB used"
    assert without == line(1, 2, BEAT, FACTS)


def test_without_a_gpu_nothing_is_asked_and_nothing_said():
    assert gpu_use.usage(torch.device("cpu")) is None
    if not torch.cuda.is_available():
        assert gpu_use.usage_of_all_ranks() == []
        assert "GPUs" not in {finding.check for finding in check_ranks()}
