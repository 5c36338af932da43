"""Mixed precision: the type that "auto" chooses, from what the devices of all ranks can compute in."""

from __future__ import annotations

import logging

import pytest
import torch

from models.model_vrt import amp_dtype, choose_dtype
from utils.options.models import AmpOptions


@pytest.mark.parametrize(
    ("wanted", "has_bfloat16", "chosen"),
    [
        ("auto", [True], "bfloat16"),
        ("auto", [False], "float16"),  # V100, MX450
        ("auto", [True, False], "float16"),  # one type on all ranks: only float16 gradients are scaled
        ("bfloat16", [False], "bfloat16"),
        ("float16", [True], "float16"),
    ],
)
def test_auto_takes_bfloat16_only_where_every_device_has_it(wanted, has_bfloat16, chosen):
    assert choose_dtype(wanted, has_bfloat16) == chosen


def test_the_cpu_trains_in_bfloat16_and_the_log_says_so(caplog):
    caplog.set_level(logging.INFO)

    assert amp_dtype(AmpOptions(enable=True), torch.device("cpu")) is torch.bfloat16
    assert amp_dtype(AmpOptions(), torch.device("cpu")) is None

    assert [record.message for record in caplog.records] == ["mixed precision in bfloat16"]
