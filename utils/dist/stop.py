"""Stop a run on request: after its step it saves and ends, and the next start goes on from there.

A cluster asks by a signal, e.g. SIGTERM before the time of a job is over. A user asks by Ctrl-C.
The signal may reach the ranks at different moments, or only one rank. So a rank only notes the time
of a signal (RUN.stop_requested_at). In each step all ranks vote: if any rank was asked to stop, all
ranks stop after this step.

    stop_on     from now on, take these signals as requests
    stop_vote   ask all ranks whether one of them was asked; collective

If a rank was asked, main_train_vrt.py calls `Run.stop_early` (utils/run/run.py), which saves the
newest steps, and returns PREEMPTED as the exit code.

What must stay: the exit code PREEMPTED, and that the vote never waits for the step on a GPU.

Tests: tests/dist/test_resume.py, tests/dist/test_slurm.py, tests/dist/test_torchrun.py.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from utils import device as devices
from utils.dist.identity import get_device, is_main_process
from utils.dist.state import RUN

logger = logging.getLogger(__name__)

# Exit code of a run that a signal has stopped: "temporary failure, try again" (sysexits.h).
# submit_job.sh queues the job again if it sees this code.
PREEMPTED = 75
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def stop_on(*numbers: signal.Signals) -> None:
    """From now on, take these signals as requests to stop.

    After a request the run finishes its step, saves and ends: all ranks agree by `stop_vote`. A
    later SIGTERM or SIGINT ends this rank at once (`_on_signal`).
    """
    is_torchrun = RUN.launch.mode == "torchrun"
    if signal.SIGUSR1 in numbers and is_torchrun and is_main_process():
        # torchrun sets this variable to the list of the signals that it passes on to its ranks.
        # The torchrun of torch 2.8 does not set the variable, and does not pass SIGUSR1 on.
        if "SIGUSR1" not in os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", ""):
            logger.warning(
                "SIGUSR1 would kill torchrun before the ranks can save: "
                "start scripts/torchrun_quiet.py in its place, which takes the same arguments"
            )
    for number in numbers:
        if _is_to_be_handled(number, is_torchrun):
            signal.signal(number, _on_signal)


def _is_to_be_handled(number: signal.Signals, is_torchrun: bool) -> bool:
    """Return whether the run shall take this signal as a request to stop.

        SIGTERM, SIGUSR1                               yes
        SIGINT under torchrun                          yes
        SIGINT or SIGHUP that this process ignores     no
        SIGINT or SIGHUP otherwise                     yes

    is_torchrun: whether torchrun has started the ranks.
    """
    if number in (signal.SIGTERM, signal.SIGUSR1):
        return True
    # torchrun passes Ctrl-C on to the ranks, and kills ranks that do not end. So the ranks must
    # handle Ctrl-C, even if a shell started them with Ctrl-C ignored.
    if number == signal.SIGINT and is_torchrun:
        return True
    # A program that was started by `nohup` ignores SIGHUP. In a shell script, `command &` ignores
    # Ctrl-C. The user wants this, so such a run goes on ignoring the signal.
    return signal.getsignal(number) is not signal.SIG_IGN


# Signal -> seconds. A second signal, e.g. a second Ctrl-C, ends the rank at once. But a rank may
# get the same request twice, so a second signal is ignored if it comes within these seconds of the
# first one. The two numbers are chosen by hand.
LEAST_S_BETWEEN_REQUESTS = {
    signal.SIGTERM: 2.0,  # scancel sends SIGTERM to the step and to the job, a moment apart
    # A terminal sends SIGINT to the launcher and to the ranks, and some launchers pass it on.
    signal.SIGINT: 0.5,
}


def _on_signal(number: int, _: Any) -> None:
    """Handle a signal: note the time of the first request to stop, or end at a repeated request.

        a stop was requested   signal             what this function does
        no                     any                notes the time of the request
        yes, a moment ago      SIGTERM, SIGINT    nothing: it is the same request
        yes, earlier           SIGTERM, SIGINT    ends this rank at once
        yes                    SIGUSR1, SIGHUP    nothing

    LEAST_S_BETWEEN_REQUESTS says how long a moment is.

    number: the signal. The second argument is the interrupted stack frame, which Python gives to
        every signal handler.
    """
    if RUN.stop_requested_at:  # 0 if none was requested
        seconds_since = time.monotonic() - RUN.stop_requested_at
        # SIGUSR1 and SIGHUP have no entry, so `get` returns infinity for them.
        if seconds_since > LEAST_S_BETWEEN_REQUESTS.get(number, float("inf")):
            os._exit(128 + number)  # the exit code of a shell for a program that a signal has ended
        return
    if number == signal.SIGINT and is_main_process():
        # Use os.write, because `print` fails if the signal has interrupted another `print`.
        text = "\nCtrl-C: the run saves after this step and ends; Ctrl-C again ends it at once\n"
        with suppress(OSError):
            os.write(2, text.encode())
    RUN.stop_requested_at = time.monotonic()


def stop_vote() -> Callable[[], bool]:
    """Begin to ask all ranks whether one of them was asked to stop.

    Returns a function that waits for the answer: True if any rank was asked. Collective: every rank
    must call it. The ranks exchange their answers while the step computes, so the exchange costs no
    time:

        wait_for_result = stop_vote()
        ...                            # the step
        if wait_for_result(): ...      # the same answer on all ranks

    All ranks must stop after the same step. If a rank stopped earlier, the others would wait for it
    in a collective.
    """
    device = get_device()
    # torch.full writes the number directly on the device. torch.tensor would copy the number from
    # the host, and this copy would wait until the GPU has computed the last step.
    was_asked = RUN.stop_requested_at > 0
    flag = torch.full((), float(was_asked), device=device)
    exchange = None
    if dist.is_initialized():
        # The sum over the ranks is above 0 if any rank was asked to stop.
        exchange = dist.all_reduce(flag, async_op=True)

    # On a device without pinned memory, e.g. the CPU, the returned function waits for the exchange
    # itself.
    if not devices.pins_memory(device):

        def is_stop() -> bool:
            if exchange is not None:
                exchange.wait()
            return bool(flag > 0)

        return is_stop

    # A GPU does its work in the order of its queue: the exchange, the copy of the answer to the
    # host, and then the step, which comes into the queue later. `is_stop_on_gpu` waits for the
    # copy, so it does not wait for the step.
    if exchange is not None:
        exchange.wait()  # the GPU waits for the exchange, the host does not
    answer = torch.empty((), pin_memory=True).copy_(flag, non_blocking=True)
    copy_done = torch.Event(device)  # marks a place in the queue
    copy_done.record()

    def is_stop_on_gpu() -> bool:
        copy_done.synchronize()  # wait until the GPU has come to this place
        return bool(answer > 0)

    return is_stop_on_gpu
