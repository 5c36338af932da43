"""Training or testing with a network of one convolution that goes wrong on one rank, at one step.

    odd_worker.py CASE RANK STEP train|test  ARGUMENTS OF main_train_vrt.py or main_test_vrt.py

CASE: "none", "drift" (its weights change), "stall" (it sleeps), "wait" (it says so, and goes on once its loader processes
are stopped), "nan" (its output is NaN from then on), "shape" (its layers are of another size, whatever the step),
"signal", "kill" (SIGTERM, SIGKILL to itself in a validation after that many training steps), "term" (SIGTERM to itself in
that training step), "states" (it says how many checkpoints are in memory), "noisy" (it warns and prints in each step)
The writer "hanging" never ends its `close`; "killing" sends SIGKILL when it is given a validation.
"""

import gc
import os
import signal
import sys
import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import main_test_vrt
import main_train_vrt
from models.select_network import NETWORKS
from tests.dist.one_conv import OneConv
from utils import utils_dist
from utils.dist import process
from utils.dist.process import children_of, process_state
from utils.run.writers import WRITERS

CASE, RANK, STEP = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


@NETWORKS.register("odd")
class Odd(OneConv):
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        if CASE == "shape" and utils_dist.get_rank() == RANK:
            self.conv = nn.Conv2d(3, 3, 5, 1, 2)

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        restored = super().forward(lq)
        Odd.steps += self.training  # of the class, for a validation runs in the average, a copy
        struck = utils_dist.get_rank() == RANK
        if struck and CASE == "stall" and self.calls == STEP:
            time.sleep(600)
        if struck and CASE == "wait" and self.calls == STEP:
            print("waiting", flush=True)
            while any(process_state(child) != "T" for child in children_of(os.getpid())):
                time.sleep(0.02)
        if struck and CASE in ("signal", "kill", "term") and Odd.steps == STEP and self.training == (CASE == "term"):
            os.kill(os.getpid(), signal.SIGKILL if CASE == "kill" else signal.SIGTERM)
        if struck and CASE == "states" and self.calls == STEP:
            found = [x for x in gc.get_objects() if isinstance(x, dict) and {"model_state_dict", "optimizer"} <= x.keys()]
            print(f"{len(found)} checkpoints in memory", flush=True)
        if struck and CASE == "drift" and self.calls == STEP:
            self.conv.bias.data += 1e-6
        if CASE == "noisy" and self.training:  # as libraries do
            warnings.warn("a library warns", stacklevel=2)
            print("a library prints to stderr", file=sys.stderr)
            print("a library prints to stdout")
        elif CASE == "noisy":
            time.sleep(0.05)  # as a tile of a real network takes a while
        return restored * float("nan") if struck and CASE == "nan" and self.calls >= STEP else restored


@WRITERS.register("hanging")
class Hanging:
    def scalars(self, values: dict[str, float], step: int) -> None: ...

    def image(self, tag: str, rgb: Any, step: int) -> None: ...

    def close(self) -> None:
        time.sleep(600)


@WRITERS.register("killing")
class Killing(Hanging):
    def scalars(self, values: dict[str, float], step: int) -> None:
        if "val/psnr" in values:
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None: ...


if __name__ == "__main__":
    process.end({"train": main_train_vrt, "test": main_test_vrt}[sys.argv[4]].main(sys.argv[5:]))
