"""One rank of tests/faults/test_steps.py: steps of ModelVRT on a network and data that fail on one rank.

step_worker.py OPTIONS CASE      CASE: "nan" (once, rank 1), "always" (NaN in each step of rank 1), "memory"
"""

import json
import logging
import os
import sys
from typing import Any

import torch
from torch import Tensor

from main_train_vrt import PARTS
from models.model_vrt import ModelVRT
from models.select_network import NETWORKS
from tests.dist.one_conv import OneConv
from utils import utils_dist
from utils.dist import process
from utils.options.load import load_options

CASE = sys.argv[2]


@NETWORKS.register("forgetful")
class Forgetful(OneConv):
    """In case "memory", no memory is left in the first pass of rank 1."""

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        if CASE == "memory" and utils_dist.get_rank() == 1 and self.calls == 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(lq)


def batch_of(step: int) -> dict[str, Any]:
    rank = utils_dist.get_rank()
    generator = torch.Generator().manual_seed(10 * step + rank)
    lq = torch.rand(1, 2, 3, 8, 8, generator=generator)
    broken = rank == 1 and (CASE == "always" or (CASE == "nan" and step == 2))
    return {"lq": lq * float("nan") if broken else lq, "gt": lq, "key": [f"clip{rank}/{step}"]}


def main() -> None:
    logging.basicConfig(
        format="%(message)s", level=logging.INFO if os.environ.get("RANK", "0") == "0" else logging.ERROR
    )
    with utils_dist.ranks(log=False):
        utils_dist.init_dist(60)
        model = ModelVRT(load_options(sys.argv[1], ["netG.net_type=forgetful"], PARTS))
        model.init_train()
        sums = []
        for step in range(1, 5):
            model.optimize_parameters(step, [batch_of(step)])
            sums.append(sum(float(p.double().sum()) for p in model.netG.parameters()))
        print(json.dumps({"sums": sums}), flush=True)


if __name__ == "__main__":
    main()
    process.end(0)
