"""Training or testing with a network of one convolution in which something happens on one rank, at
one step.

    odd_worker.py CASE RANK STEP train|test  ARGUMENTS OF main_train_vrt.py or main_test_vrt.py

CASE: "none", "drift" (its weights change), "stall" (it sleeps), "wait" (it says so, and goes on
once its loader processes are stopped), "nan" (its output is NaN from then on), "once" (only then),
"memory" (none is left for its forward pass), "shape" (its layers are of another size, whatever the
step), "signal", "kill" (SIGTERM, SIGKILL to itself in a validation after that many training steps),
"term" (SIGTERM to itself in that training step), "states" (it says how many checkpoints are in
memory), "bury" (it kills its loader processes, and computes on), "noisy" (it warns and prints in
each step), "busy" (all ranks compute, this one STEP times as long), "late" (it is long in starting
its loaders; each rank prints {"loader": [...], "progress": [...]}: when the loader of each epoch
had started, and its progress was shown), "peak" (prints {"peak_gb": the most memory that the
process had}), "clips" (each rank prints the calibration of each clip that it trains on). The writer
"hanging" never ends its `close`; "killing" sends SIGKILL when it is given a validation; "filling"
then fills the disk under the checkpoints.
"""

import gc
import json
import os
import signal
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import main_test_vrt
import main_train_vrt
from data.loader import TrainLoader
from models.select_network import NETWORKS
from utils import utils_dist
from utils.dist import process
from utils.dist.process import descendants_of, process_state
from utils.run import history
from utils.run.measure import StepTimer
from utils.run.progress import RunProgress
from utils.run.writers import WRITERS

CASE, RANK, STEP = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
LATE_S, PRODUCTS, MATRIX = 0.3, 40, torch.eye(256)
# Drawing would take half of the time of such a run; runs of the real network draw their curves.
history.draw_panels, history.encoded = (lambda histories: None), (lambda figure: b"")


@NETWORKS.register("odd")
class Odd(nn.Module):
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        is_odd = CASE == "shape" and utils_dist.get_rank() == RANK
        self.conv, self.calls = nn.Conv2d(3, 3, 5, 1, 2) if is_odd else nn.Conv2d(3, 3, 3, 1, 1), 0

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        self.calls += 1
        Odd.steps += self.training  # of the class, for a validation runs in the average, a copy
        restored = self.conv(lq.flatten(0, 1)).view_as(lq)
        struck = utils_dist.get_rank() == RANK
        if struck and self.calls == STEP:
            self.strike()
        if (
            struck
            and CASE in ("signal", "kill", "term")
            and Odd.steps == STEP
            and self.training == (CASE == "term")
        ):
            os.kill(os.getpid(), signal.SIGKILL if CASE == "kill" else signal.SIGTERM)
        if CASE == "busy":
            compute(STEP if struck else 1)
        if CASE == "noisy" and self.training:  # as libraries do
            warnings.warn("a library warns", stacklevel=2)
            print("a library prints to stderr", file=sys.stderr)
            print("a library prints to stdout")
        elif CASE == "noisy":
            time.sleep(0.05)  # as a tile of a real network takes a while
        is_nan = struck and (
            (CASE == "nan" and self.calls >= STEP) or (CASE == "once" and self.calls == STEP)
        )
        return restored * float("nan") if is_nan else restored

    def strike(self) -> None:
        if CASE == "stall":
            time.sleep(600)
        elif CASE == "wait":
            print("waiting", flush=True)
            while any(process_state(child) != "T" for child in descendants_of(os.getpid())):
                time.sleep(0.02)
        elif CASE == "bury":
            for child in descendants_of(os.getpid()):
                os.kill(child, signal.SIGKILL)
            time.sleep(600)  # as a long step; torch's signal handler interrupts it
        elif CASE == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        elif CASE == "states":
            states = ({"model_state_dict", "optimizer"}, {"conv.weight", "conv.bias"})
            dicts = [x.keys() for x in gc.get_objects() if isinstance(x, dict)]
            found = sum(any(keys >= state for state in states) for keys in dicts)
            print(
                f"{found} checkpoints in memory",
                flush=True,
            )
        elif CASE == "drift":
            self.conv.bias.data += 1e-6


def compute(times: int) -> None:
    """What comes after a first part is waiting: on a busy machine too, it takes so many times as
    long.
    """
    begin, product = time.perf_counter(), MATRIX
    for _ in range(PRODUCTS):
        product = product @ MATRIX
    time.sleep((times - 1) * (time.perf_counter() - begin))


moments: dict[str, list[float]] = {"loader": [], "progress": []}
start, begin_epoch = TrainLoader.start, RunProgress.begin_epoch


def late_start(self: TrainLoader, *position: int) -> Any:
    iterator = start(self, *position)
    time.sleep(LATE_S if utils_dist.get_rank() == RANK else 0)
    moments["loader"].append(time.monotonic())
    return iterator


def noted_epoch(self: RunProgress, *position: int) -> None:
    moments["progress"].append(time.monotonic())
    begin_epoch(self, *position)


def told_start(self: TrainLoader, *position: int) -> Any:
    found = {clip.name: clip.spikes.calibration for clip in self.dataset.clips}
    print(json.dumps({name: known and known.plain() for name, known in found.items()}), flush=True)
    return start(self, *position)


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


@WRITERS.register("filling", given=("folder", "step"))
class Filling(Hanging):
    def __init__(self, folder: Path, step: int) -> None:
        self.filler = folder / "checkpoints" / "filler"

    def scalars(self, values: dict[str, float], step: int) -> None:
        if "val/psnr" in values:
            with open(self.filler, "wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)):
                    pass

    def close(self) -> None: ...


if __name__ == "__main__":
    if CASE == "late":
        TrainLoader.start, RunProgress.begin_epoch = late_start, noted_epoch
    if CASE == "clips":
        TrainLoader.start = told_start
    code = {"train": main_train_vrt, "test": main_test_vrt}[sys.argv[4]].main(sys.argv[5:])
    if CASE in ("late", "peak"):
        print(
            json.dumps(moments if CASE == "late" else {"peak_gb": StepTimer().read()["memory_gb"]}),
            flush=True,
        )
    process.end(code)
