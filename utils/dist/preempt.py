"""SIGTERM, SIGUSR1, SIGHUP and Ctrl-C, to any rank: all save after the same step and exit, to be started again."""

import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import torch
import torch.distributed as dist

from utils import utils_dist
from utils.dist.state import RUN

PREEMPTED = 75  # exit code: "temporary failure, try again" (sysexits.h); submit_job.sh requeues on it
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
# From the first signal on, another of these ends the rank at once. scancel sends SIGTERM to the step and to the job, a
# moment apart, and some launchers pass on the SIGINT that a terminal has sent to all: that is one request.
REPEATED_S = {signal.SIGTERM: 2.0, signal.SIGINT: 0.5}

logger = logging.getLogger(__name__)


def listen(*numbers: signal.Signals) -> None:
    """From now on these signals ask for a stop; a repeated one, see REPEATED_S, ends this rank.

    `nohup` starts a program so that it ignores SIGHUP, and a shell script starts `command &` so that it ignores Ctrl-C:
    it goes on. But torchrun takes Ctrl-C in any case, passes it on and kills the ranks that do not end.
    """
    is_torchrun = RUN.launch.mode == "torchrun"
    handled = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "")  # torch 2.8 does not set it
    if signal.SIGUSR1 in numbers and is_torchrun and "SIGUSR1" not in handled and utils_dist.is_main_process():
        logger.warning(
            "SIGUSR1 would kill torchrun before the ranks can save: "
            "start scripts/torchrun_quiet.py in its place, which takes the same arguments"
        )
    for number in numbers:
        is_meant = number in (signal.SIGTERM, signal.SIGUSR1) or signal.getsignal(number) is not signal.SIG_IGN
        if is_meant or (number == signal.SIGINT and is_torchrun):
            signal.signal(number, _on_signal)


def _on_signal(number: int, _: FrameType | None) -> None:
    since = time.monotonic() - RUN.stop_requested
    if RUN.stop_requested and since > REPEATED_S.get(number, float("inf")):
        os._exit(128 + number)
    if number == signal.SIGINT and not RUN.stop_requested and utils_dist.is_main_process():
        with suppress(OSError):
            os.write(2, b"\nCtrl-C: the run saves after this step and ends; Ctrl-C again ends it at once\n")
    RUN.stop_requested = RUN.stop_requested or time.monotonic()


def stop_vote() -> Callable[[], bool]:
    """Whether any rank was asked to stop, exchanged while the step computes; call the result for the answer.

    Collective; the answer is the same on all ranks. All must stop after the same step: one that stops earlier leaves
    the others in a collective.
    """
    device, work, copied = utils_dist.get_device(), None, None
    # Filled there: a tensor made from a Python number is copied to a GPU, and the copy waits for the last step.
    flag = torch.full((), float(RUN.stop_requested > 0), device=device)
    if dist.is_initialized():
        work = dist.all_reduce(flag, async_op=True)  # a sum: gloo's MAX loses NaN, and sums do as well
    if device.type == "cuda":
        # Copied before the step's own work, so that the answer waits for no more than this.
        if work is not None:
            work.wait()  # only the stream waits
        flag = torch.empty((), pin_memory=True).copy_(flag, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

    def is_stop() -> bool:
        if copied is not None:
            copied.synchronize()
        elif work is not None:
            work.wait()
        return bool(flag > 0)

    return is_stop
