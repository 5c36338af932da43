"""The ranks of a run: how they start, what they exchange, and how all of them end together.

A rank is one process of a run. Usually it has one GPU. A program uses this module like this:

    with utils_dist.ranks():                      # the ranks meet, and end together
        with utils_dist.all_ranks_or_none():      # an error on one rank is an error on all
            opt = read_options(argv)
        utils_dist.begin(opt.watchdog, ...)       # process group, and the watchdog
        utils_dist.stop_on(*STOP_SIGNALS)         # these signals now ask for a stop
        ...
        every_rank = utils_dist.gather_objects(value)

A function marked "Collective." must be called by every rank, by all ranks in the same order. If a
rank leaves out such a call, the other ranks wait for it until the watchdog ends the run.

In a single process there is no process group, and every function works the same.

This file has the start and the end of a run. The modules in utils/dist do all other work, and
utils/dist/__init__.py lists them. `__all__` lists the functions of these modules that a program may
call as `utils_dist.<name>`.

Words:

    RUN           the state of the run in this process (utils/dist/state.py)
    store         the key-value store of the run, by which all ranks exchange short texts
    beat          the record of a rank in the store: that the rank lives, where, and in which phase
    watchdog      a thread of each rank. It reads the beats, and ends the run if a rank hangs

What must stay: the order of the lines of a start and of an end, because the ranks wait for one
another by means of the store. An error on one rank ends all ranks, with one report and one exit
code (test_an_error_ends_all_ranks_with_one_message_and_one_code).

Tests: tests/dist/test_dist.py, tests/dist/test_life.py, tests/faults/test_startup.py.
"""

import os
import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from utils import device as devices
from utils import system
from utils.dist import process
from utils.dist.agreement import all_ranks_or_none, check_same_on_all_ranks
from utils.dist.claims import outlast_siblings
from utils.dist.collectives import (
    all_reduce_mean,
    barrier,
    from_rank,
    gather_objects,
    map_tensors,
    share_record_ids,
    state_from_rank_0,
)
from utils.dist.failure import closed_after_report, report_error
from utils.dist.group import init_dist, launch_of_group
from utils.dist.identity import get_device, get_rank, get_world_size, is_main_process
from utils.dist.launchers import with_standard_names
from utils.dist.leave import leave
from utils.dist.node_launch import node_variables
from utils.dist.open_store import open_store
from utils.dist.platforms import read_launch
from utils.dist.rendezvous import meet
from utils.dist.source_code import digest_of_source
from utils.dist.state import RUN, LaunchInfo
from utils.dist.stop import PREEMPTED, STOP_SIGNALS, stop_on, stop_vote
from utils.dist.store_values import read_state
from utils.dist.timeout import fitted_to_timeout
from utils.dist.watchdog_thread import Watchdog
from utils.logger import setup_logging
from utils.options.override import argument_without_secrets
from utils.options.watchdog_options import WatchdogOptions

# What programs call as `utils_dist.<name>`. Code of users calls these names too, so they must stay.
__all__ = [
    "PREEMPTED",
    "STOP_SIGNALS",
    "all_ranks_or_none",
    "all_reduce_mean",
    "barrier",
    "begin",
    "check_same_on_all_ranks",
    "closed_after_report",
    "from_rank",
    "gather_objects",
    "get_device",
    "get_rank",
    "get_world_size",
    "init_dist",
    "is_main_process",
    "map_tensors",
    "ranks",
    "share_record_ids",
    "state_from_rank_0",
    "stop_on",
    "stop_vote",
]

# The environment variable by which a launcher gives all ranks of a start the same secret.
JOB_KEY = "SPIKEVRT_JOB_KEY"


@contextmanager
def ranks(log: bool = True) -> Generator[None]:
    """Start the ranks, and end all of them together. The whole program runs within the block.

    Collective: every rank must call it. At the start the ranks meet: each waits until all have
    arrived. From then on, an error on one rank ends all ranks, with one message and one exit code.
    After an error the ranks end by os._exit, because destroying a broken process group can block
    forever.

    After the block no rank is left over, and RUN, the state of the run in this process, is empty
    again. So a notebook may start the next run.

    The order of the lines in `_start`, `_end_without_error` and `_end_after_error` must stay. The
    comments there give the reasons. Tests: tests/faults and tests/dist/test_life.py.

    A cloud platform may have started one process for all GPUs of a node. This process then becomes
    torchrun, and torchrun starts this program again, once for each GPU.

    Within the block, first read the options within `all_ranks_or_none`, then call `begin`. A
    program without options calls `init_dist` in place of `begin`.

    log: whether to set up the log of a run. Tools that print their results need no log.
    """
    process.open_closed_streams()
    try:
        # Another library, e.g. Ray Train, may have made a process group already. This run then uses
        # the group, and must not destroy it, because the library destroys it later.
        is_group_of_others = dist.is_initialized()
        _start(is_group_of_others, log)
        yield
        _end_without_error(is_group_of_others)
    except SystemExit:
        # The program ends on purpose, and has written why.
        _forget_run()
        raise
    except BaseException as e:
        _end_after_error(e)


def _start(is_group_of_others: bool, log: bool) -> None:
    """Find out which rank this is, and meet the other ranks.

    Collective: every rank must call it.

    Sets the fields `launch`, `job_key`, `store` and `watchdog` of RUN, the state of the run.

    is_group_of_others: whether another library has made a process group, which this run uses.
    log: whether to set up the log of a run.
    """
    launch = _read_own_launch()
    if is_group_of_others:
        launch = launch_of_group(launch)
    if log:
        setup_logging(launch.rank)
    RUN.launch = launch
    # Take the secret of this start out of the environment, so that no child process and no report
    # has it. With the secret, ranks sign what they write into the store. A second run in this
    # process, e.g. in a notebook, finds no secret in the environment. Then RUN.job_key keeps the
    # secret of the first run.
    job_key = os.environ.pop(JOB_KEY, "")
    if job_key:
        RUN.job_key = job_key.encode()
    if launch.mode == "torchrun":
        # torchrun is the parent of this process. If somebody kills torchrun, its ranks end, too.
        process.die_with_parent()
    if launch.world_size == 1:
        return
    # A beat is the record of a rank in the store, the key-value store of all ranks. It says that
    # the rank lives, and where. `Watchdog()` writes the first beat of this rank. This must be done
    # before `meet`, so that every rank has a beat when it meets the other ranks.
    RUN.store = open_store(launch)
    RUN.watchdog = Watchdog()
    meet(RUN.store, launch)
    # To report the end of rank 0, the watchdog needs the host and process id in a beat of rank 0.
    # Give the watchdog such a beat now, because rank 0 and its store may be lost before the thread
    # of the watchdog reads one. If the thread has already read a newer beat, `setdefault` keeps the
    # newer beat.
    first_state = read_state(rank=0, value=RUN.store.get("beat/0"))
    RUN.watchdog.beats.states.setdefault(0, first_state)


def _end_without_error(is_group_of_others: bool) -> None:
    """Leave the other ranks when all have finished. Empties RUN, the state of the run.

    Collective: every rank must call it.

    is_group_of_others: whether another library has made the process group, and destroys it later.
    """
    if RUN.watchdog is not None:
        # From here on, a rank without a process is not a failure for the watchdog.
        RUN.watchdog.is_ending = True
        barrier()  # after the barrier no rank needs another rank
        RUN.watchdog.stop()
    if dist.is_initialized() and not is_group_of_others:
        dist.destroy_process_group()
    RUN.watchdog = None
    _forget_run()


def _end_after_error(error: BaseException) -> NoReturn:
    """Report the error, unless another rank reports it, and end this process.

    The exit code is the code of the error, e.g. 3 for a DataError.
    """
    code = report_error(error)
    # Free the tensors of the run. RUN.reported keeps the error, and the traceback of the error
    # keeps the variables of its functions.
    RUN.reported = None
    if get_world_size() > 1:
        leave(code, RUN.store)  # ends this process
    # This is a single process, or one of several that failed before it knew its rank.
    process.write_exit_file(code)
    # The siblings are the other ranks of this host. They may fail with the same error. Only the
    # first of them to claim the error reports it (utils/dist/claims.py). A claim ends with its
    # process, so this rank waits here until its siblings have ended. If this rank ended earlier, a
    # later sibling could claim the error again, and report it again.
    outlast_siblings()
    process.kill_trees()  # loader processes, for which Python's exit handlers could wait forever
    _forget_run()
    sys.exit(code)


def _read_own_launch() -> LaunchInfo:
    """Return how the environment describes this process: its rank, the number of ranks, ...

    If a cloud platform has started one process for all GPUs of this host (a node), this function
    does not return: torchrun takes the place of this process.
    """
    gpu_count = devices.count()
    # What the user typed, without secrets. Errors show it in their advice.
    command = shlex.join(["python", "-u", *map(argument_without_secrets, sys.argv)])
    env = with_standard_names(os.environ, gpu_count, command)
    # If this process stands for a node, torchrun has to start the ranks of the node. `os.execve`
    # makes this process run torchrun in place of this program, so no line after it runs.
    variables_for_torchrun = node_variables(env, gpu_count)
    if variables_for_torchrun:
        torchrun = str(Path(__file__).parents[1] / "scripts/torchrun_quiet.py")
        arguments = [sys.executable, "-u", torchrun, *sys.argv]
        os.execve(sys.executable, arguments, os.environ | variables_for_torchrun)
    # This process does not stand for a node, so it is one of several ranks, or the only process.
    # Several ranks need /proc, e.g. to see which process of the host is a rank.
    launch = read_launch(env, gpu_count, command)
    if launch.world_size > 1:
        system.refuse_ranks_without_proc()
    return launch


def _forget_run() -> None:
    """Forget a run that has ended, and stop its watchdog.

    The process may live on, e.g. in a notebook. A watchdog that still runs would end the process.

    Each field of RUN that belongs to one run gets its first value again (utils/dist/state.py
    explains the fields). A new field of this kind needs a line here. RUN.job_key stays, because a
    second run in this process finds no secret in the environment.
    """
    if RUN.watchdog is not None:
        RUN.watchdog.stop()
    RUN.store = None
    RUN.watchdog = None
    RUN.launch = LaunchInfo("single")
    RUN.rounds = 0
    RUN.checks_folder = None
    RUN.stop_requested_at = 0.0
    RUN.record_ids = {}


def begin(
    budgets: WatchdogOptions | None = None,
    timeout_s: float = 1800,
    digest: str = "",
    checks_folder: Path | None = None,
) -> None:
    """Make the process group, check that all ranks have the same options, and watch the phases.

    Collective. From now on the watchdog ends the run if a rank stays too long in one phase, e.g. in
    "forward" (utils/dist/watchdog.py).

    budgets: the options `watchdog`: how long each phase may take. None if a network is tested
        without an option file.
    timeout_s: least time-out of a collective operation of the process group, in seconds. The
        default equals the default of the option dist_timeout_s (utils/options/models.py).
    digest: a digest of all options, e.g. "3f9a0c12b4de". It must be equal on all ranks.
    checks_folder: folder in which results of checks of the data are kept for later runs, or None.
    """
    RUN.checks_folder = checks_folder
    is_single = get_world_size() == 1
    # The watchdog enforces the limits of the option file (`budgets`), and ends ranks that would
    # wait for one another. A single process without an option file has no limits and no other
    # ranks, so it needs no watchdog.
    needs_watchdog = budgets is not None or not is_single
    if budgets is None:
        budgets = WatchdogOptions()  # the default limits
    # `budgets.timeout_s` makes the time-out of the process group longer than all limits of the
    # watchdog, because only the watchdog can name the rank that stands still. The user's
    # NCCL_TIMEOUT takes precedence and may be shorter, see `fitted_to_timeout`.
    init_dist(budgets.timeout_s(timeout_s))
    check_same_on_all_ranks("the options", digest)
    if not is_single:
        # A rank with other code would compute other gradients, and no error would show it.
        check_same_on_all_ranks(
            "the source files (data, models, utils)",
            digest_of_source(),
            do="copy the same version of SpikeVRT to all hosts",
        )
    if not needs_watchdog:
        return
    if not is_single:
        budgets = fitted_to_timeout(budgets)
    if RUN.watchdog is None:  # a single process. With several ranks, `ranks` has made a watchdog
        RUN.watchdog = Watchdog()
    RUN.watchdog.watch(budgets)
