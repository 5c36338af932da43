"""Who this process is in its run, as the environment says, where it stands, and one line about every rank.

Such lines are in the log at the start, and in <run>/status after ``touch <run>/status``. utils_dist and the modules
beside this one change the state, nothing else does. The watchdog of each rank publishes it with every beat; a thread of
rank 0, with its own connection, reads the beats and writes the lines into the file that was touched. So the answer
comes while the ranks compute, wait for one another or hang, and slows none of them.
"""

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from utils.errors import DataError, DistError
from utils.files import write_whole

STATUS_NAME, POLL_S = "status", 1.0
# torchrun's names for a node, which Kubeflow sets in part, and the names that other platforms give the same.
NODE_NAMES = {
    "PET_NPROC_PER_NODE": "NPROC_PER_NODE", "PET_NNODES": "WORLD_SIZE", "PET_NODE_RANK": "RANK",
    "PET_MASTER_ADDR": "MASTER_ADDR", "PET_MASTER_PORT": "MASTER_PORT",
}  # fmt: skip


@dataclass(frozen=True)
class LaunchInfo:
    """mode: "single", "torchrun", "platform" (variables injected by hand or by a cloud) or "slurm".

    by_agent: torchrun's agent hosts the store on that port; it outlives the ranks of its node, not those of the others.
    join_s: how long the ranks wait for one another. timeout_s: NCCL_TIMEOUT, of a collective; 0: not given.
    """

    mode: str
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    master_addr: str = ""
    master_port: int = 0
    by_agent: bool = False
    join_s: float = 300
    timeout_s: float = 0


class Place(NamedTuple):
    """Where the main thread is. syncs: collectives entered so far; the other ranks wait for the one with the fewest."""

    phase: str = "start"
    step: int = 0
    since: float = 0.0
    syncs: int = 0


@dataclass
class Run:
    """Written by the main thread only; the threads of the watchdog and of the status file read it.

    rounds: calls of `all_ranks_or_none`, equal on all ranks. timeout_s: of the process group. stage: " in <name>"
    within `watchdog.stage`. facts: what `tell` was given. stop_requested: when, by a signal; 0: not. reported: the
    error that ends this process, and its exit code. leaving: held by the thread that ends this process. kept: folder of
    what was found in the data, for later runs; None: nothing is kept.
    """

    launch: LaunchInfo = LaunchInfo("single")
    store: Any = None  # torch.distributed.Store; the scripts that need no torch start without it
    kept: Path | None = None
    watchdog: Any = None  # utils.dist.watchdog.Watchdog, which imports this module
    timeout_s: float = float("inf")
    rounds: int = 0
    place: Place = field(default_factory=lambda: Place(since=time.monotonic()))
    stage: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    stop_requested: float = 0.0
    reported: tuple[BaseException, int] | None = None
    leaving: threading.Lock = field(default_factory=threading.Lock)


RUN = Run()


def tell(**facts: Any) -> None:
    """Keep these facts of this rank for the status file. Plain types only.

    device; samples (of this rank, each epoch) and first (indices of the first three); weights, their hash, at
    weights_step; loss_is_finite, of the newest step; gpu, the text of gpu.describe at the newest log line.
    """
    RUN.facts = {**RUN.facts, **facts}  # never changed in place: another thread may be reading it


def status_line(rank: int | None = None, state: dict[str, Any] | None = None) -> str:
    """Host, process, place in the run, weights and share of the data; of a rank with this beat, or of this one."""
    if state is None:
        place = RUN.place
        state = {
            "host": socket.gethostname(), "pid": os.getpid(), "step": place.step,
            "age": time.monotonic() - place.since, "phase": place.phase, "facts": RUN.facts,
        }  # fmt: skip
    facts = state["facts"]
    parts = [
        f"rank {RUN.launch.rank if rank is None else rank} of {RUN.launch.world_size} on {state['host']}, "
        f"{facts['device']}, pid {state['pid']}",
        f'step {state["step"]}, {state["age"]:.1f} s in phase "{state["phase"]}"',
        f"loss {'finite' if facts['loss_is_finite'] else 'NaN or Inf'}",
        f"weights {facts['weights']} at step {facts['weights_step']}",
        f"{facts['samples']} samples an epoch, first {', '.join(map(str, facts['first'])) or 'none left of this one'}",
    ]
    return "; ".join([*parts, *filter(None, [facts.get("gpu")])])


@contextmanager
def answering(folder: Path) -> Iterator[None]:
    """Within the block, rank 0 answers in `folder`/status each time that file is touched."""
    if RUN.launch.rank:
        yield
        return
    path, over = folder / STATUS_NAME, threading.Event()
    store = RUN.store.clone() if RUN.store else None  # each thread needs a connection of its own

    def answer() -> None:
        answered = _time_of(path) if path.exists() and path.stat().st_size else None
        with suppress(RuntimeError):  # the store is lost, so the run is ending
            while not over.wait(POLL_S):
                if _time_of(path) in (None, answered):
                    continue
                over.wait(POLL_S)  # for a beat that is newer than the request
                beats = (
                    store.multi_get([f"beat/{rank}" for rank in range(RUN.launch.world_size)])
                    if store
                    else []
                )
                lines = [
                    status_line(rank, json.loads(beat)) for rank, beat in enumerate(beats)
                ] or [status_line()]
                text = "\n".join([time.strftime("%Y-%m-%d %H:%M:%S"), *lines, ""])
                with suppress(DataError):  # a full disk: the next request may succeed
                    write_whole(path, text.encode())
                answered = _time_of(path)

    threading.Thread(target=answer, daemon=True, name="status").start()
    try:
        yield
    finally:
        over.set()


def _time_of(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return None


def read_launch(env: Mapping[str, str], gpu_count: int = 0, command: str = "COMMAND") -> LaunchInfo:
    """The launch that `env` describes: WORLD_SIZE > 1, else SLURM_NTASKS > 1 with SLURM_PROCID, else one process.

    gpu_count: GPUs that this process sees; with 0 or 1 of them LOCAL_RANK has no upper bound (`utils_dist.get_device`).
    command: what started this process, for the advice of an error.
    Raises one DistError that lists every variable that is missing, no number or out of range.
    """
    faults: list[str] = []
    # torchrun's own variables win: in an sbatch shell those of SLURM describe the allocation.
    is_task = "SLURM_PROCID" in env and "TORCHELASTIC_RUN_ID" not in env
    tasks = _number(env, "SLURM_NTASKS", faults, default=1, low=1) if is_task else 1
    world_size = _count(env, "WORLD_SIZE", faults, is_required=tasks == 1)
    if world_size > 1:
        mode = "torchrun" if "TORCHELASTIC_RUN_ID" in env else "platform"
        rank, addr, port = _place(env, ["WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"], faults)
    elif tasks > 1:
        mode, world_size = "slurm", tasks
        rank = _number(
            env, "SLURM_PROCID", faults, low=0, high=world_size - 1, bound="SLURM_NTASKS"
        )
        # Address and port are the same in every task of the step; the user's own MASTER_* take precedence. The step's
        # list: with `srun --nodelist` task 0 need not sit on the first host of the job.
        hosts = (
            env.get("SLURM_STEP_NODELIST")
            or env.get("SLURM_JOB_NODELIST")
            or env.get("SLURM_NODELIST", "")
        )
        addr = env.get("MASTER_ADDR", "").strip() or first_host(hosts)
        if not addr:
            faults.append("SLURM_JOB_NODELIST is missing (first host of the job)")
        if env.get("MASTER_PORT"):
            port = _number(env, "MASTER_PORT", faults, low=1, high=65535)
        else:
            port = 15000 + _number(env, "SLURM_JOB_ID", faults, low=0) % 10000
    else:
        mode, rank, addr, port = "single", 0, "", 0
    local_rank, join_s, timeout_s = 0, 300.0, 0.0
    if mode != "single":
        join_s, timeout_s = (
            _seconds(env, "SPIKEVRT_JOIN_TIMEOUT", join_s),
            _seconds(env, "NCCL_TIMEOUT", timeout_s),
        )
        name = "LOCAL_RANK" if env.get("LOCAL_RANK") else "SLURM_LOCALID"
        high = gpu_count - 1 if gpu_count > 1 else None
        local_rank = _number(
            env, name, faults, default=0, low=0, high=high, bound="the number of GPUs on this host"
        )
        if mode == "platform" and gpu_count > 1 and not env.get(name) and not faults:
            raise DistError(
                f"WORLD_SIZE is {world_size}, LOCAL_RANK and NPROC_PER_NODE are missing, {gpu_count} GPUs are visible",
                f"the environment of rank {rank}",
                "LOCAL_RANK if the platform starts one process per GPU, NPROC_PER_NODE if it starts one per node",
                f"one process per GPU:  LOCAL_RANK=$((RANK % {gpu_count})) {command}\n"
                f"{'':<12}one process per node: NPROC_PER_NODE={gpu_count} {command}",
            )
    _refuse(faults, env)
    by_agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return LaunchInfo(mode, rank, local_rank, world_size, addr, port, by_agent, join_s, timeout_s)


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    with suppress(ValueError):
        if not text or 0 < float(text) < 10**6:
            return float(text or default)
    raise DistError(
        f"{name} is {text!r}", "the environment", "seconds > 0", f"correct or unset {name}"
    )


def node_variables(env: Mapping[str, str], gpu_count: int = 0) -> dict[str, str]:
    """torchrun's variables for the ranks of this node, where a platform starts one process per node; {} for a rank.

    Such a platform sets NPROC_PER_NODE (PAI-DLC) or PET_NPROC_PER_NODE (Kubeflow), and no LOCAL_RANK. Its RANK counts
    nodes, and so does its WORLD_SIZE, unless it sets PET_NNODES: Kubeflow's WORLD_SIZE counts processes.
    gpu_count: GPUs that this process sees, for NPROC_PER_NODE "auto" and "gpu". Raises DistError as `read_launch`.
    """
    names = [own if env.get(own) else other for own, other in NODE_NAMES.items()]
    found = {
        own: env[name].strip() for own, name in zip(NODE_NAMES, names, strict=True) if env.get(name)
    }
    is_task = "SLURM_PROCID" in env and "WORLD_SIZE" not in env
    if "PET_NPROC_PER_NODE" not in found or env.get("LOCAL_RANK") or is_task:
        return {}
    if found["PET_NPROC_PER_NODE"] in ("auto", "gpu"):
        found["PET_NPROC_PER_NODE"] = str(max(1, gpu_count))
    if "PET_RDZV_ENDPOINT" in env:  # an elastic job, described by torchrun's variables alone
        return found
    faults: list[str] = []
    ranks = _number({names[0]: found["PET_NPROC_PER_NODE"]}, names[0], faults, low=1)
    nodes = _count(env, names[1], faults)
    if nodes > 1:
        _place(env, names[1:], faults)
    else:
        found["PET_STANDALONE"] = "1"
    _refuse(faults, env)
    return {} if ranks == 1 and env.get("WORLD_SIZE", "1") == str(nodes) else found


def _count(env: Mapping[str, str], name: str, faults: list[str], is_required: bool = True) -> int:
    """The number of ranks or nodes; 1 where it is missing and no RANK with an address says that there are others."""
    is_one = not (is_required and env.get("RANK") and env.get("MASTER_ADDR"))
    return _number(env, name, faults, default=1 if is_one else None, low=1)


def _place(env: Mapping[str, str], names: list[str], faults: list[str]) -> tuple[int, str, int]:
    """(rank, address, port) among several ranks or nodes; names: of their number and of these three."""
    count, rank, addr, port = names
    number = _number(env, rank, faults, low=0, high=int(env[count]) - 1, bound=count)
    if not env.get(addr, "").strip():
        faults.append(f"{addr} is missing (host name or address of rank 0)")
    return number, env.get(addr, "").strip(), _number(env, port, faults, low=1, high=65535)


def _refuse(faults: list[str], env: Mapping[str, str]) -> None:
    if faults:
        where = "the environment of " + (
            f"rank {env['RANK']}" if env.get("RANK", "").isdigit() else "this process"
        )
        expected = "RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as docs/ddp.md describes them"
        do = "correct these variables, or unset WORLD_SIZE to train in one process"
        raise DistError(f"the launch variables are wrong: {'; '.join(faults)}", where, expected, do)


def first_host(nodelist: str) -> str:
    """The first host of a SLURM node list, zero padding kept: "gpu[003-007,9],cpu1" -> "gpu003"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist.strip())
    return re.sub(r"\[([^\],\-]*)[^\]]*\]", r"\1", first[0])


def _number(
    env: Mapping[str, str], name: str, faults: list[str], low: int, high: int | None = None, bound: str = "",
    default: int | None = None,
) -> int:  # fmt: skip
    """The variable as an integer within [low, high]; after a fault, which is added to `faults`, `low`."""
    text = env.get(name, "").strip()
    if not text:
        if default is None:
            faults.append(f"{name} is missing")
        return low if default is None else default
    try:
        value = int(text)
    except ValueError:
        faults.append(f"{name} is {text!r}, no number")
        return low
    if value < low or (high is not None and value > high):
        limit = f"{low} or more" if high is None else f"{low} to {high}"
        faults.append(
            f"{name} is {value}, expected {limit}" + (f" (below {bound})" if bound else "")
        )
        return low
    return value
