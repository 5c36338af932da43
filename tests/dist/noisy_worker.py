"""main_train_vrt.py with a network of one convolution that warns and prints in each training step, as libraries do.

    noisy_worker.py ARGUMENTS OF main_train_vrt.py
"""

from __future__ import annotations

import sys
import time
import warnings

from torch import Tensor, nn

import main_train_vrt
from models.select_network import NETWORKS
from utils.dist import process


@NETWORKS.register("noisy")
class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, 1, 1)

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        if self.training:
            warnings.warn("a library warns", stacklevel=2)
            print("a library prints to stderr", file=sys.stderr)
            print("a library prints to stdout")
        else:
            time.sleep(0.05)  # as a tile of a real network takes a while
        return self.conv(lq.flatten(0, 1)).view_as(lq)


if __name__ == "__main__":
    process.end(main_train_vrt.main(sys.argv[1:]))
