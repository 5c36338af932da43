"""Which GPUs a process uses, seen from machines that this one is not; and GPUs that are here but of no use."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from tests.dist.launching import run_command
from tests.train_files import MAIN, write_options
from utils.dist.gpu import claim, missing_wheel, note_on_gpu_ids, visible_gpus
from utils.dist.launch import LaunchInfo
from utils.errors import DistError

FOUR = LaunchInfo("torchrun", 1, 1, 4, "localhost", 29500)
SINGLE, RANK = LaunchInfo("single"), LaunchInfo("torchrun", 1, 1, 2, "localhost", 29500)


@pytest.mark.parametrize(
    ("launch", "ids", "env", "expected"),
    [
        (SINGLE, [2, 3], {}, "2,3"),
        (SINGLE, None, {}, None),
        (SINGLE, [0, 1], {"CUDA_VISIBLE_DEVICES": "3"}, None),
        (SINGLE, [0, 1], {"CUDA_VISIBLE_DEVICES": ""}, None),
        (RANK, [2, 3], {}, None),
    ],
)
def test_gpu_ids_choose_only_where_nobody_else_has_chosen(launch, ids, env, expected):
    assert visible_gpus(launch, ids, env) == expected


@pytest.mark.parametrize(
    ("launch", "ids", "chosen", "env", "count", "expected"),
    [
        (SINGLE, [2, 3], "2,3", {}, 2, "CUDA_VISIBLE_DEVICES=2,3 ./launch_train.sh 2 my.json"),
        (SINGLE, [0, 1, 2], "0,1,2", {}, 1, ""),  # the reference file on a machine with one GPU
        (SINGLE, [0, 1], None, {"CUDA_VISIBLE_DEVICES": "3"}, 1, "CUDA_VISIBLE_DEVICES=3 wins over gpu_ids [0,1]"),
        (SINGLE, [0, 1], None, {"CUDA_VISIBLE_DEVICES": ""}, 0, ""),
        (RANK, [0, 1, 2, 3], None, {}, 2, ""),
        (RANK, [0, 1], None, {}, 4, ""),  # two ranks on a machine of four
        (RANK, [0, 1, 2, 3], None, {}, 4, "gpu_ids [0,1,2,3] has no effect with several ranks"),
        (FOUR, [0, 1, 2, 3], None, {"LOCAL_WORLD_SIZE": "2"}, 4, "gpu_ids [0,1,2,3] has no effect"),  # two nodes
        (RANK, [2, 3], None, {}, 4, "gpu_ids [2,3] has no effect with several ranks"),
    ],
)
def test_what_runs_is_said_where_it_is_not_what_gpu_ids_lists(launch, ids, chosen, env, count, expected):
    note = note_on_gpu_ids(launch, ids, "my.json", chosen, env, count)
    assert note == expected or (expected and expected in note)


CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU132 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "built_for", "wheel"),
    [
        ((7, 0), CU132, "cu126"),  # V100
        ((6, 1), CU132, "cu126"),  # GTX 1080
        ((6, 1), CU126, ""),  # by sm_60
        ((7, 5), CU132, ""),  # T4
        ((8, 9), CU132, ""),  # RTX 4090, by sm_86
        ((9, 0), CU132, ""),
        ((12, 0), CU126, "CUDA 12.8 or later"),  # RTX 5090 with an old torch
        ((12, 1), CU132, ""),
        ((13, 0), CU132, ""),  # a later GPU, by PTX
        ((8, 0), ["sm_86"], "CUDA 12.8 or later"),
        ((9, 0), ["sm_90a"], ""),
        ((3, 5), CU132, "another GPU"),
        ((9, 0), ["gfx90a", "gfx942"], ""),
    ],
)
def test_a_gpu_that_this_torch_was_not_built_for_is_told_with_the_wheel_that_was(capability, built_for, wheel):
    found = missing_wheel(capability, built_for)
    assert wheel in found and bool(found) == bool(wheel)


def test_two_ranks_on_one_gpu_are_both_named():
    store = torch.distributed.HashStore()
    for rank, uuid in enumerate(["GPU-a", "GPU-b"]):
        claim(store, rank, uuid)
    with pytest.raises(DistError, match="ranks 1 and 2 use the same GPU, GPU-b"):
        claim(store, 2, "GPU-b")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPUs of this machine are of use")
def test_a_gpu_that_torch_cannot_use_is_an_error_unless_the_cpu_is_asked_for(tmp_path):
    fake = tmp_path / "bin" / "nvidia-smi"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 470.82.01\necho 470.82.01\n")
    fake.chmod(0o755)
    options = write_options(tmp_path)
    command = [sys.executable, MAIN, "--opt", options, "datasets.train.dataroot_gt=/nowhere"]
    path = f"{fake.parent}:{os.environ['PATH']}"

    refused = run_command(command, 60, {"PATH": path, "CUDA_VISIBLE_DEVICES": ""})  # launching: "" unsets it
    allowed = run_command(command, 60, {"PATH": path, "CUDA_VISIBLE_DEVICES": "-1"})

    assert refused.exit_codes == [2]
    assert "torch cannot use the 2 GPUs of this machine" in refused.text
    assert "NVIDIA driver 470.82.01" in refused.text and f"torch {torch.__version__}" in refused.text
    assert 'CUDA_VISIBLE_DEVICES=""' in refused.text
    assert allowed.exit_codes == [3] and "/nowhere" in allowed.text
