"""The ranks of a run: start, identity, collectives, and how all of them end together, by an error
or by a signal.

In a single process, which has no process group, every function works the same.
"""

import logging
import os
import re
import shlex
import signal
import socket
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import DistNetworkError, PrefixStore

from utils import device as devices
from utils import system
from utils.dist import gpu, message, process, rendezvous, watchdog
from utils.dist.beats import FAILURE, claim_failure, read_states, where
from utils.dist.launchers import processes_said, with_standard_names
from utils.dist.platforms import node_variables, read_launch
from utils.dist.rendezvous import Round
from utils.dist.state import RUN, LaunchInfo
from utils.dist.store_values import Failure, ForeignValueError, read_state
from utils.dist.watchdog import Watchdog
from utils.errors import DistError, SpikeVRTError, StallError
from utils.logger import setup_logging
from utils.options.load import shown_argument
from utils.options.models import MULTIPLES, WatchdogOptions

logger = logging.getLogger(__name__)

JOB_KEY = "SPIKEVRT_JOB_KEY"  # secret of one start of a run, made by its launcher
PREEMPTED = (
    75  # exit code: "temporary failure, try again" (sysexits.h); submit_job.sh requeues on it
)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
# From the first signal on, another of these ends the rank at once. scancel sends SIGTERM to the
# step and to the job, a moment apart, and some launchers pass on the SIGINT that a terminal has
# sent to all: that is one request.
REPEATED_S = {signal.SIGTERM: 2.0, signal.SIGINT: 0.5}
# for what is closed after an error; less than watchdog.EXIT_S, in which this rank has to end
CLOSE_S = 5.0
PATIENCE_S = 3.0  # for the report of the rank that failed first

# Messages of gloo, NCCL and the store about a peer that is gone or does not answer. NCCL's other
# errors, such as a GPU given to two ranks or a full /dev/shm, concern this rank: each of them is a
# cause.
OF_A_PEER = re.compile(
    r"[Cc]onnection|Broken pipe|gloo/transport|Timed out waiting|wait timeout|"
    r"client socket has timed out|ncclRemoteError|remote process|communicator was aborted|"
    r"pair closure"
)


class _PeerFailed(BaseException):
    """Another rank failed with this exit code, and has reported it.

    This rank ends without a message.
    """


def get_rank() -> int:
    return RUN.launch.rank


def get_world_size() -> int:
    return RUN.launch.world_size


def is_main_process() -> bool:
    return RUN.launch.rank == 0


def get_device() -> torch.device:
    """Return the accelerator of this rank, or the CPU where there is none."""
    return devices.of_rank(RUN.launch.local_rank)


@contextmanager
def ranks(log: bool = True) -> Generator[None]:
    """Wrap the whole program in it: the ranks meet, and end together with one message and one exit
    code. Collective.

    From the meeting on, an error on one rank ends all, reported once. They end by os._exit then:
    destroying a broken process group can block for ever. Where a platform has started one process
    for all GPUs of a node, torchrun takes its place.

    Read the options next, within `all_ranks_or_none`, then call `begin`. Without options:
    `init_dist`.
    log: set up the log of a run; tools that print their results need none.
    """
    process.open_closed_streams()
    try:
        gpu_count = devices.count()
        command = shlex.join(["python", "-u", *map(shown_argument, sys.argv)])
        env = with_standard_names(os.environ, gpu_count, command)
        if node := node_variables(env, gpu_count):
            torchrun = str(Path(__file__).parents[1] / "scripts/torchrun_quiet.py")
            os.execve(
                sys.executable, [sys.executable, "-u", torchrun, *sys.argv], os.environ | node
            )
        launch = read_launch(env, gpu_count, command)
        if launch.world_size > 1:
            system.refuse_ranks_without_proc()
        is_group_of_others = dist.is_initialized()  # made by Ray Train, for example
        if is_group_of_others:
            launch = _launch_of_group(launch)
        if log:
            setup_logging(launch.rank)
        RUN.launch = launch
        # Out of the environment, so that no child process and no report has the key.
        RUN.job_key = os.environ.pop(JOB_KEY, "").encode() or RUN.job_key
        if launch.mode == "torchrun":
            process.die_with_parent()
        if launch.world_size > 1:
            RUN.store = rendezvous.open_store(launch)
            RUN.watchdog = Watchdog()
            rendezvous.meet(RUN.store, launch)
            # If rank 0 and its store are lost before its first beat is read, it can be named.
            RUN.watchdog.beats.states.setdefault(0, read_state(0, RUN.store.get("beat/0")))
        yield
        if RUN.watchdog is not None:
            RUN.watchdog.ending = True
            barrier()
            RUN.watchdog.stop()
        if dist.is_initialized() and not is_group_of_others:
            dist.destroy_process_group()
        RUN.watchdog = None
        _forget_run()
    except SystemExit:
        _forget_run()
        raise
    except BaseException as e:
        code = _report(e)
        RUN.reported = None  # its frames hold the tensors of the run
        if get_world_size() > 1:
            watchdog.leave(code, RUN.store)
        process.write_exit_file(code)
        process.outlast_siblings()
        process.kill_trees()
        _forget_run()
        sys.exit(code)


def begin(
    budgets: WatchdogOptions | None = None,
    timeout_s: float = 1800,
    digest: str = "",
    kept: Path | None = None,
) -> None:
    """Make the process group, check that all ranks have the same options, and watch the phases.

    Collective.

    From now on a rank that stays too long in one phase ends the run (utils.dist.watchdog). budgets:
    None for a test without an option file. timeout_s: of a collective, at least. digest: of all
    options. kept: see `Run`.
    """
    RUN.kept = kept
    init_dist(budgets.timeout_s(timeout_s) if budgets else timeout_s)
    check_same_on_all_ranks("the options", digest)
    if not budgets and get_world_size() == 1:
        return  # it may be as slow as it likes: no other rank waits for it
    budgets = budgets or WatchdogOptions()
    if get_world_size() > 1:
        budgets = _fitted(budgets)
    RUN.watchdog = RUN.watchdog or Watchdog()
    RUN.watchdog.watch(budgets)


def _fitted(budgets: WatchdogOptions) -> WatchdogOptions:
    """The limits of the watchdog beside the process group's time-out, which ends a run without a
    name.

    Raises DistError where it always would before the watchdog can; warns where it does in slow
    phases.
    """
    names = ("stall_s", *MULTIPLES)
    if RUN.launch.timeout_s:
        # Slow ranks are allowed so much: they may need it while the others wait.
        unset = [name for name in MULTIPLES if getattr(budgets, name) is None]
        budgets = budgets.model_copy(
            update={name: max(budgets.limit(name), 0.9 * RUN.timeout_s) for name in unset}
        )
        limits = ", ".join(f"{name} {budgets.limit(name):g}" for name in names)
        logger.info(
            "NCCL_TIMEOUT is %g s; the limits of the watchdog are then: %s", RUN.timeout_s, limits
        )
    if late := [
        f"{name} is {s:g} s" for name in names if (s := budgets.limit(name)) >= RUN.timeout_s
    ]:
        what = (
            f"watchdog: {', '.join(late)}; the time-out of the process group is {RUN.timeout_s:g} s"
        )
        if budgets.stall_s >= RUN.timeout_s:
            expected = "the watchdog first: only it can say which rank stands still, and where"
            raise DistError(
                what,
                "NCCL_TIMEOUT",
                expected,
                "raise or unset NCCL_TIMEOUT, or lower watchdog.stall_s",
            )
        if is_main_process():
            logger.warning("%s: a rank that takes so long is ended without a name", what)
    return budgets


def init_dist(timeout_s: float = 1800) -> None:
    """Within `ranks`: make the process group, with the backend of the device. Collective.

    timeout_s: of every collective; the environment's NCCL_TIMEOUT, in seconds, takes precedence.
    Raises DistError where this machine has GPUs that torch cannot use, and where two ranks have the
    same GPU.
    """
    gpu.require_usable_gpus()
    launch, device = RUN.launch, get_device()
    gpu.require_kernels(device)
    if launch.world_size == 1:
        return
    RUN.timeout_s = launch.timeout_s or timeout_s
    backend = devices.backend(device)
    if device.type != "cpu":
        devices.make_current(device)
        gpu.claim(RUN.store, launch.rank, gpu.identity(device))
    # Scripts, libraries and DDP itself read these; SLURM sets none of them.
    os.environ |= {
        "RANK": str(launch.rank),
        "LOCAL_RANK": str(launch.local_rank),
        "WORLD_SIZE": str(launch.world_size),
        "MASTER_ADDR": launch.master_addr, "MASTER_PORT": str(launch.master_port),
    }  # fmt: skip
    if rendezvous.is_loopback_name(launch.master_addr):
        # All ranks are on this host, so gloo need not listen on its network.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # NCCL exchanges its ids through the store, whose own time-out of 10 s would be too short.
    RUN.store.set_timeout(timedelta(seconds=RUN.timeout_s))
    if not dist.is_initialized():
        dist.init_process_group(
            backend,
            store=PrefixStore("group", RUN.store),
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=timedelta(seconds=RUN.timeout_s),
            device_id=device if gpu.is_cuda(device) else None,  # NCCL connects at once with it
        )
    line = "=" * 40
    text = (
        f"{line}\nDistributed Training Setup\n{line}\n"
        f"Backend: {dist.get_backend()}\nWorld Size: {launch.world_size}\nRank: {launch.rank}\n"
        f"Local Rank: {launch.local_rank}\nMaster: "
        f"{launch.master_addr}:{launch.master_port}\n{line}\n"
    )
    with suppress(OSError):  # the output may go to a full disk
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), text.encode())  # one write, so that ranks do not interleave


def _forget_run() -> None:
    """Forget a run that has ended, and stop its watchdog.

    The process may live on, in a notebook for example, and must not be taken for a run that hangs.
    """
    if RUN.watchdog is not None:
        RUN.watchdog.stop()
    RUN.store = None
    RUN.watchdog = None
    RUN.launch = LaunchInfo("single")
    RUN.rounds = 0
    RUN.kept = None
    RUN.stop_requested = 0.0
    RUN.checked = {}


def _launch_of_group(launch: LaunchInfo) -> LaunchInfo:
    """Return the launch of a process group that is there already. Collective.

    Our own store, for the watchdog, needs a port beside that of the group.
    """
    world_size = dist.get_world_size()
    if world_size == 1:
        return launch
    kind = get_device().type
    device = torch.device(kind if dist.get_backend() == devices.backend(get_device()) else "cpu")
    port = torch.zeros(1, dtype=torch.int64, device=device)
    if dist.get_rank() == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            port[0] = free.getsockname()[1]
    dist.broadcast(port, 0)
    return replace(
        launch,
        mode="platform",
        rank=dist.get_rank(),
        world_size=world_size,
        local_rank=launch.local_rank,
        master_addr=launch.master_addr or os.environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=int(port),
        by_agent=False,
    )


def barrier() -> None:
    """Collective."""
    if dist.is_initialized():
        with watchdog.collective("barrier"):
            own = get_device()
            dist.barrier(device_ids=None if own.type == "cpu" else [own.index])


def gather_objects(obj: Any) -> list[Any]:
    """Return the object of every rank, in the order of the ranks, on every rank. Collective.

    obj: plain values, arrays and tensors; `message.pack` lists the types.
    """
    if get_world_size() == 1:
        return [obj]
    device = get_device()
    own = torch.frombuffer(bytearray(message.pack(obj)), dtype=torch.uint8)
    with watchdog.collective("all_gather"):
        # First the sizes, because all ranks give tensors of one size.
        sizes = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(get_world_size())]
        dist.all_gather(sizes, torch.tensor([len(own)], device=device))
        counts = [int(size) for size in sizes]
        for rank, count in enumerate(counts):
            message.refuse_size(count, rank)

        padded = torch.zeros(max(counts), dtype=torch.uint8)
        padded[: len(own)] = own
        found = [torch.empty(max(counts), dtype=torch.uint8, device=device) for _ in counts]
        dist.all_gather(found, padded.to(device))
    return [
        message.unpack(bytes(data[:count].cpu().numpy()), rank)
        for rank, (data, count) in enumerate(zip(found, counts, strict=True))
    ]


def from_rank(source: int, obj: Any) -> Any:
    """Return the object of rank `source`, on every rank. Collective.

    obj: as in `gather_objects`; the objects of the other ranks are ignored.
    """
    if get_world_size() == 1:
        return obj
    device = get_device()
    is_source = get_rank() == source
    data = torch.frombuffer(bytearray(message.pack(obj if is_source else None)), dtype=torch.uint8)
    with watchdog.collective("broadcast"):
        size = torch.tensor([len(data)], device=device)
        dist.broadcast(size, source)
        message.refuse_size(int(size), source)
        if not is_source:
            data = torch.empty(int(size), dtype=torch.uint8)
        data = data.to(device)
        dist.broadcast(data, source)
    return obj if is_source else message.unpack(bytes(data.cpu().numpy()), source)


def share_checked(checked: dict[str, Any] | None) -> None:
    """Tell all ranks what rank 0 has checked, see `Run.checked`. Collective."""
    RUN.checked = from_rank(0, checked) or {}


def all_reduce_mean(tensor: Tensor) -> Tensor:
    """Return the mean of `tensor` over all ranks, on every rank. Collective.

    tensor: of a floating type and of one shape on all ranks; it stays as it is.
    """
    mean = tensor.detach().clone()
    if dist.is_initialized():
        with watchdog.collective("all_reduce"):
            dist.all_reduce(mean)
        mean /= get_world_size()
    return mean


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """A copy of `value` in which each tensor t of its dicts, lists and tuples is change(t), in
    their order.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    return (
        type(value)(map_tensors(item, change) for item in value)
        if isinstance(value, (list, tuple))
        else value
    )


def state_from_rank_0(state: Any) -> Any:
    """The nested `state` of rank 0 on every rank, tensors on the CPU. Collective.

    One tensor at a time is on the device: a checkpoint may be larger than what is free there.
    """
    if get_world_size() == 1:
        return state
    outline = from_rank(0, map_tensors(state, lambda tensor: tensor.to("meta")))

    def broadcast(tensor: Tensor) -> Tensor:
        given = (
            tensor.reshape(-1)
            if is_main_process()
            else torch.empty(tensor.numel(), dtype=tensor.dtype)
        )
        sent = given.view(torch.uint8).to(get_device())  # bytes, for gloo does not know every dtype
        dist.broadcast(sent, 0)
        return tensor if is_main_process() else sent.cpu().view(tensor.dtype).view(tensor.shape)

    with watchdog.collective("broadcast"):
        return map_tensors(state if is_main_process() else outline, broadcast)


def check_same_on_all_ranks(
    name: str, value: Any, do: str = "start all ranks from the same files"
) -> None:
    """Raises DistError, on all ranks, where `value` differs between ranks; do: the advice of the
    error. Collective.
    """
    found = gather_objects(value)
    if all(other == found[0] for other in found):
        return
    texts = [repr(other) for other in found]
    groups = {
        text: [str(rank) for rank, other in enumerate(texts) if other == text] for text in texts
    }
    listed = "; ".join(f"rank {', '.join(ranks)}: {text}" for text, ranks in groups.items())
    raise DistError(f"{name} differ between the ranks", listed, "the same on all ranks", do)


@contextmanager
def all_ranks_or_none() -> Generator[None]:
    """Run the body on every rank.

    If any rank fails, all end, and the lowest one that failed reports it. Collective.
    """
    if get_world_size() == 1 or RUN.store is None:
        yield
        return
    RUN.rounds += 1
    meeting = Round(RUN.store, f"round/{RUN.rounds}", get_rank(), get_world_size())
    try:
        yield
    except Exception as e:
        code = getattr(e, "exit_code", 1)
        meeting.arrive(code)
        if get_rank() and meeting.wait(5.0) != (get_rank(), code):  # lower ranks may fail as well
            raise _PeerFailed(code) from e
        raise
    meeting.arrive()
    with watchdog.collective("the other ranks"):
        failed = meeting.wait()  # the watchdog ends this wait if a rank fails elsewhere
    if failed:
        raise _PeerFailed(failed[1])


@contextmanager
def closed_after_report(resource: Any) -> Generator[Any]:
    """As contextlib.closing; an error in the block is reported before `resource.close()`, which may
    hang.

    This rank then ends within CLOSE_S, whether it hangs or not.
    """

    def leave() -> None:
        reported: Any = RUN.reported  # started only after an error has been reported
        watchdog.leave(reported[1], RUN.store)

    limit = threading.Timer(CLOSE_S, leave)
    limit.daemon = True
    with ExitStack() as last:
        last.callback(limit.cancel)
        last.callback(resource.close)
        try:
            yield resource
        except BaseException as e:
            _report(e)
            limit.start()
            raise


def _report(error: BaseException) -> int:
    """The exit code of the error that ends this rank, once reported here or by the first rank that
    failed.
    """
    if RUN.reported and RUN.reported[0] is error:
        return RUN.reported[1]
    code = 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)
    cause, is_first = error, False
    if isinstance(error, _PeerFailed):
        code = error.args[0]
    elif RUN.store is None:
        # Before joining there is no store to ask. A single process reports always, and of the ranks
        # that one launcher started on this host the first with this error at this place; a process
        # that started later reports again.
        env = os.environ
        size = processes_said(env)
        # What differs between ranks is no other place
        place = re.sub(r"rank \d+", "rank", getattr(error, "where", ""))
        said = f"{getattr(error, 'what', error)} {place} {os.getppid()}"
        is_first = size == 1 or process.first_to_claim(said)
    else:
        # An error that follows from the failure of another rank, which that rank or a watchdog
        # reports.
        is_of_peer = isinstance(error, DistNetworkError) or OF_A_PEER.search(str(error))
        if isinstance(error, RuntimeError) and is_of_peer:
            cause = _lost_contact(error)
            code = cause.exit_code
        own = Failure(get_rank(), code, get_rank())
        try:
            noted = claim_failure(RUN.store, own, get_world_size())
        except ForeignValueError as e:
            noted = None
            if isinstance(cause, StallError):
                # The other ranks have left because a stranger wrote into the store. So does this
                # rank, and one rank of the host says so.
                cause = e
                code = e.exit_code
                if not watchdog.first_to_say_foreign():
                    noted = own._replace(code=code)
        except RuntimeError:  # the store is gone with its rank; the watchdog reports that
            noted = own._replace(code=StallError.exit_code)
        is_first = noted is None
        if noted is not None:
            code = noted.code
        if noted is not None and code == StallError.exit_code:
            time.sleep(10)  # a watchdog thread, here or on another rank, ends this process
    if is_first:
        if isinstance(cause, SpikeVRTError):
            text = str(cause)
        elif isinstance(cause, KeyboardInterrupt):
            text = "Interrupted (Ctrl-C). The same command continues from what was saved last."
        else:
            prefix = f"[rank {get_rank()}] " if get_world_size() > 1 else ""
            text = textwrap.indent(
                "".join(traceback.format_exception(cause)).rstrip(), prefix, lambda line: True
            )
        watchdog.say(text)
        with suppress(RuntimeError):
            if RUN.store is not None:
                # The other ranks wait for this before they end
                RUN.store.set(watchdog.REPORTED, "1")
    RUN.reported = error, code
    return code


def _lost_contact(error: BaseException) -> StallError:
    """The error of a broken connection, with the ranks that stopped beating.

    First waits for another rank's report.
    """
    store, suspects = RUN.store, ""
    # The store is lost as well, or a stranger has written into it, which the watchdog reports.
    with suppress(RuntimeError, ForeignValueError):
        # One rank compares the beats of all ranks before and after the wait; the others give it
        # time to report.
        looks = store.add("lost contact", 1) == 1
        before = read_states(store, get_world_size()) if looks else {}
        deadline = time.monotonic() + (PATIENCE_S if looks else 2 * PATIENCE_S)
        while not store.get(FAILURE) and time.monotonic() < deadline:
            time.sleep(0.1)
        after = read_states(store, get_world_size()) if looks and not store.get(FAILURE) else {}
        suspects = "; ".join(
            f"rank {other} on {state['host']}, last seen in {where(state)}"
            for other, state in after.items()
            if other != get_rank() and state["beat"] == before[other]["beat"]
        )
    do = (
        "look into the logs of the other ranks (was the run suspended? raise dist_timeout_s); "
        f"torch says:\n{error}"
    )
    return StallError(
        "lost contact with another rank",
        suspects or f"rank {get_rank()}",
        "all ranks connected",
        do,
    )


def stop_on(*numbers: signal.Signals) -> None:
    """From now on these signals ask for a stop; a repeated one, see REPEATED_S, ends this rank.

    `nohup` starts a program so that it ignores SIGHUP, and a shell script starts `command &` so
    that it ignores Ctrl-C: it goes on. But torchrun takes Ctrl-C in any case, passes it on and
    kills the ranks that do not end.
    """
    is_torchrun = RUN.launch.mode == "torchrun"
    handled = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "")  # torch 2.8 does not set it
    if signal.SIGUSR1 in numbers and is_torchrun and "SIGUSR1" not in handled and is_main_process():
        logger.warning(
            "SIGUSR1 would kill torchrun before the ranks can save: "
            "start scripts/torchrun_quiet.py in its place, which takes the same arguments"
        )
    for number in numbers:
        is_meant = (
            number in (signal.SIGTERM, signal.SIGUSR1)
            or signal.getsignal(number) is not signal.SIG_IGN
        )
        if is_meant or (number == signal.SIGINT and is_torchrun):
            signal.signal(number, _on_signal)


def _on_signal(number: int, _: Any) -> None:
    since = time.monotonic() - RUN.stop_requested
    if RUN.stop_requested and since > REPEATED_S.get(number, float("inf")):
        os._exit(128 + number)
    if number == signal.SIGINT and not RUN.stop_requested and is_main_process():
        with suppress(OSError):
            os.write(
                2,
                b"\nCtrl-C: the run saves after this step and ends; Ctrl-C again ends it at once\n",
            )
    RUN.stop_requested = RUN.stop_requested or time.monotonic()


def stop_vote() -> Callable[[], bool]:
    """Whether any rank was asked to stop, exchanged while the step computes; call the result for
    the answer.

    Collective; the answer is the same on all ranks. All must stop after the same step: one that
    stops earlier leaves the others in a collective.
    """
    device, work, copied = get_device(), None, None
    # Filled there: a tensor made from a Python number is copied to a GPU, and the copy waits for
    # the last step.
    flag = torch.full((), float(RUN.stop_requested > 0), device=device)
    if dist.is_initialized():
        # A sum: gloo's MAX loses NaN, and sums do as well
        work = dist.all_reduce(flag, async_op=True)
    if devices.pins_memory(device):
        # Copied before the step's own work, so that the answer waits for no more than this.
        if work is not None:
            work.wait()  # only the stream waits
        flag = torch.empty((), pin_memory=True).copy_(flag, non_blocking=True)
        copied = torch.Event(device)
        copied.record()

    def is_stop() -> bool:
        if copied is not None:
            copied.synchronize()
        elif work is not None:
            work.wait()
        return bool(flag > 0)

    return is_stop
