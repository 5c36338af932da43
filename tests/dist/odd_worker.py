"""Train or test with a fault: something goes wrong on one rank and at one step.

    odd_worker.py CASE RANK STEP train|test  ARGUMENTS OF main_train_vrt.py OR main_test_vrt.py

The network, "odd", is one convolution, so a run takes about ten steps per second. RANK and STEP say
on which rank and at which step something goes wrong. Steps count from 1. `odd_command` in
tests/helpers/train_files.py builds the command.

Cases that happen once, in forward pass STEP of rank RANK (`Odd.strike`):

    stall    the rank sleeps for ten minutes
    wait     the rank prints "waiting", and goes on once its loader processes are stopped (SIGSTOP)
    bury     the rank kills its loader processes, and sleeps
    memory   no memory is left
    states   the rank prints how many checkpoints are in memory
    drift    the weights of the rank change
    once     the output is NaN in this forward pass
    nan      the output is NaN from this forward pass on

Cases that send a signal to rank RANK itself after STEP training steps:

    term     SIGTERM, in this training step
    signal   SIGTERM, in a validation
    kill     SIGKILL, in a validation

Cases of the whole run:

    none     nothing goes wrong
    shape    the layers of rank RANK have another size
    slow     rank RANK sleeps for STEP milliseconds in each forward pass
    noisy    each step warns and prints, as libraries do
    late     rank RANK starts its loaders late. Each rank prints two lists of times, one for each
             epoch: when its loader had started, and when its progress was shown, as
             {"loader": [...], "progress": [...]}
    peak     prints {"peak_gb": the most memory that the process had}
    clips    each rank prints the calibration of each clip on which it trains

This program also registers three writers for `logging.writers`: "hanging", "killing" and "filling".

To add a case, add a line above, and a branch at the place where something goes wrong. Tests name
the cases, e.g. case="stall" in tests/faults/test_stalls.py. So search for the name before you
change what a case does.
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
from utils.run import history_writer
from utils.run.run_progress import RunProgress
from utils.run.timing import StepTimer
from utils.run.writers import WRITERS

PROGRAMS = {"train": main_train_vrt, "test": main_test_vrt}
CASE = sys.argv[1]
RANK = int(sys.argv[2])
STEP = int(sys.argv[3])

FOREVER_S = 600  # longer than every limit of a test
LATE_S = 0.3  # seconds by which a loader starts late in the case "late"
TILE_S = 0.05  # seconds that a tile of a real network takes at least
# The case "drift" adds this number to the bias of one rank. It is small, because even a small
# difference between the ranks must be found.
DRIFT = 1e-6


def replace_attributes(owner: Any, **attributes: Any) -> None:
    """Replace attributes of a module or class of the product in this process."""
    for name, value in attributes.items():
        setattr(owner, name, value)


# Drawing the curves would take half of the time of such a run, so this program does not draw them.
# Runs of the real network in other tests draw their curves.
replace_attributes(history_writer, draw_panels=lambda histories: None, encode=lambda figure: b"")


# ---- The network ---------------------------------------------------------------------------------


def is_struck_rank() -> bool:
    """Return whether this process is rank RANK."""
    return utils_dist.get_rank() == RANK


@NETWORKS.register("odd")
class Odd(nn.Module):
    """A network of one convolution. The case strikes in its forward pass."""

    # Number of training steps so far. A validation runs a second network of this class, with the
    # averaged weights. The second network must know the number, too. So the number belongs to the
    # class and not to one network.
    training_steps = 0

    def __init__(self) -> None:
        super().__init__()
        if CASE == "shape" and is_struck_rank():
            self.conv = nn.Conv2d(3, 3, kernel_size=5, padding=2)
        else:
            self.conv = nn.Conv2d(3, 3, kernel_size=3, padding=1)
        self.forward_passes = 0  # counts the passes of this network only

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        """Return the frames (N, D, 3, H, W) after the convolution. The spikes are not used."""
        self.forward_passes += 1
        if self.training:
            Odd.training_steps += 1
        restored = self.conv(lq.flatten(0, 1)).view_as(lq)
        if is_struck_rank():
            if self.forward_passes == STEP:
                self.strike()
            if Odd.training_steps == STEP:
                self.send_signal()
        if CASE == "slow" and is_struck_rank():
            time.sleep(STEP / 1000)
        if CASE == "noisy":
            self.make_noise()
        return restored * float("nan") if self.is_nan() else restored

    def strike(self) -> None:
        """Do what goes wrong in the cases that happen once. Other cases do nothing here.

        `forward` calls this in forward pass STEP of rank RANK.
        """
        if CASE == "stall":
            time.sleep(FOREVER_S)
        elif CASE == "wait":
            print("waiting", flush=True)
            loaders = descendants_of(os.getpid())
            # The state of a process that SIGSTOP has stopped is "T".
            while any(process_state(loader) != "T" for loader in loaders):
                time.sleep(0.02)
                loaders = descendants_of(os.getpid())
        elif CASE == "bury":
            for loader in descendants_of(os.getpid()):
                os.kill(loader, signal.SIGKILL)
            # This sleep stands for a long step. The signal handler of torch's loader interrupts it.
            time.sleep(FOREVER_S)
        elif CASE == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        elif CASE == "states":
            print(f"{checkpoints_in_memory()} checkpoints in memory", flush=True)
        elif CASE == "drift":
            bias = self.conv.bias
            assert bias is not None
            bias.data += DRIFT

    def send_signal(self) -> None:
        """Send a signal to this process, if the case is one of signals and this is its moment."""
        if CASE == "term" and self.training:
            os.kill(os.getpid(), signal.SIGTERM)
        if CASE == "signal" and not self.training:
            os.kill(os.getpid(), signal.SIGTERM)
        if CASE == "kill" and not self.training:
            os.kill(os.getpid(), signal.SIGKILL)

    def make_noise(self) -> None:
        """Warn and print in a training step. In a validation take as long as a real network."""
        if self.training:
            warnings.warn("a library warns", stacklevel=2)
            print("a library prints to stderr", file=sys.stderr)
            print("a library prints to stdout")
        else:
            time.sleep(TILE_S)

    def is_nan(self) -> bool:
        """Return whether the output of this forward pass is NaN."""
        if not is_struck_rank():
            return False
        if CASE == "nan":
            return self.forward_passes >= STEP
        return CASE == "once" and self.forward_passes == STEP


def checkpoints_in_memory() -> int:
    """Return the number of dictionaries that hold a whole checkpoint or all weights."""
    keys_of_checkpoint = {"model_state_dict", "optimizer"}
    keys_of_weights = {"conv.weight", "conv.bias"}
    found = 0
    for value in gc.get_objects():
        if isinstance(value, dict):
            keys = value.keys()
            if keys >= keys_of_checkpoint or keys >= keys_of_weights:
                found += 1
    return found


# ---- Observers of the loaders and of the progress ------------------------------------------------

# `main` replaces methods of the product by these functions. `position` stands for the arguments of
# the method. They are passed on unchanged.

# Times in seconds for the case "late". Each list has one time for each epoch.
moments: dict[str, list[float]] = {"loader": [], "progress": []}
start_of_product = TrainLoader.start
begin_epoch_of_product = RunProgress.begin_epoch


def start_late(self: TrainLoader, *position: int) -> Any:
    """Start the loader as the product does, wait on rank RANK, and then note the time."""
    iterator = start_of_product(self, *position)
    if is_struck_rank():
        time.sleep(LATE_S)
    moments["loader"].append(time.monotonic())
    return iterator


def note_begin_of_epoch(self: RunProgress, *position: int) -> None:
    """Note the time, and show the progress of an epoch as the product does."""
    moments["progress"].append(time.monotonic())
    begin_epoch_of_product(self, *position)


def start_that_prints_calibrations(self: TrainLoader, *position: int) -> Any:
    """Print {clip: its calibration or null}, then start the loader as the product does."""
    calibrations = {}
    for clip in self.dataset.clips:
        calibration = clip.spikes.calibration
        calibrations[clip.name] = calibration.plain() if calibration else calibration
    print(json.dumps(calibrations), flush=True)
    return start_of_product(self, *position)


# ---- Writers -------------------------------------------------------------------------------------


@WRITERS.register("hanging")
class Hanging:
    """A writer whose `close` never ends."""

    def scalars(self, values: dict[str, float], step: int) -> None: ...

    def image(self, tag: str, rgb: Any, step: int) -> None: ...

    def close(self) -> None:
        time.sleep(FOREVER_S)


@WRITERS.register("killing")
class Killing(Hanging):
    """A writer that sends SIGKILL to its process when a validation is written."""

    def scalars(self, values: dict[str, float], step: int) -> None:
        if "val/psnr" in values:
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None: ...


@WRITERS.register("filling", given=("folder", "step"))
class Filling(Hanging):
    """A writer that fills the disk of the checkpoints when a validation is written."""

    def __init__(self, folder: Path, step: int) -> None:
        self.filler = folder / "checkpoints" / "filler"

    def scalars(self, values: dict[str, float], step: int) -> None:
        if "val/psnr" in values:
            # A full disk raises OSError. This ends the loop.
            with open(self.filler, "wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)):
                    pass

    def close(self) -> None: ...


def main() -> None:
    """Run the program, and print what the case asks for. Ends the process with its exit code."""
    if CASE == "late":
        replace_attributes(TrainLoader, start=start_late)
        replace_attributes(RunProgress, begin_epoch=note_begin_of_epoch)
    if CASE == "clips":
        replace_attributes(TrainLoader, start=start_that_prints_calibrations)

    program = PROGRAMS[sys.argv[4]]
    code = program.main(sys.argv[5:])

    if CASE == "late":
        print(json.dumps(moments), flush=True)
    if CASE == "peak":
        print(json.dumps({"peak_gb": StepTimer().read()["memory_gb"]}), flush=True)
    process.end(code)


if __name__ == "__main__":
    main()
