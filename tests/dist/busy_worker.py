"""Training with a network of one convolution that computes long enough to be timed, on some ranks longer.

busy_worker.py TIMES,TIMES  ARGUMENTS OF main_train_vrt.py

TIMES: how many times as long as it computes a forward pass of rank 0, of rank 1, .. takes. The rest is waiting: on a busy
machine too, the ratio is as given.
"""

import sys
import time

import torch
from torch import Tensor

import main_train_vrt
from models.select_network import NETWORKS
from tests.dist.one_conv import OneConv
from utils import utils_dist
from utils.dist import process

PRODUCTS = 40
TIMES = [int(number) for number in sys.argv[1].split(",")]


@NETWORKS.register("busy")
class Busy(OneConv):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(256), persistent=False)

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        begin, product = time.perf_counter(), self.matrix
        for _ in range(PRODUCTS):
            product = product @ self.matrix
        restored = super().forward(lq) * product[0, 0]
        time.sleep((TIMES[utils_dist.get_rank()] - 1) * (time.perf_counter() - begin))
        return restored


if __name__ == "__main__":
    process.end(main_train_vrt.main(sys.argv[2:]))
