"""The checks of doctor.py that need no option file: host, environment, ranks, and known failures in a log."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from scripts.parts.doctor_failures import KNOWN_FAILURES
from utils import utils_dist
from utils.dist import gpu_use

OK, WARN, FAIL = "ok", "warn", "fail"
MOST = 200  # characters of a line of a log: a stall is told with rank, phase and step


@dataclass(frozen=True)
class Finding:
    """status: "ok", "warn" or "fail". what was seen, why it matters, and the cure (both empty where all is well)."""

    status: str
    check: str
    what: str
    why: str = ""
    cure: str = ""


def table(findings: Sequence[Finding]) -> str:
    """The findings as text, the worst last."""
    lines = []
    for f in sorted(findings, key=lambda f: (OK, WARN, FAIL).index(f.status)):
        lines.append(f"{f.status:<5} {f.check:<14} {f.what}")
        lines += [f"{'':<20} {label:<4} {text}" for label, text in (("why", f.why), ("cure", f.cure)) if text]
    counts = {status: sum(f.status == status for f in findings) for status in (OK, WARN, FAIL)}
    return "\n".join([*lines, "", ", ".join(f"{count} {status}" for status, count in counts.items())])


# ---- this process and its host --------------------------------------------------------------------------------------


def check_environment(env: Mapping[str, str], cores: int) -> Iterator[Finding]:
    """The launch, and environment variables that are known to cause failures or slow runs."""
    launch = utils_dist.get_launch()
    yield Finding(
        OK, "launch", f"{launch.mode}, rank {launch.rank} of {launch.world_size}, local rank {launch.local_rank}"
    )
    if text := env.get("NCCL_TIMEOUT"):
        unit = "" if text.isdigit() and int(text) < 10**5 else "; that looks like milliseconds"
        yield Finding(
            WARN if unit else OK, "NCCL_TIMEOUT", f"{text} s for every collective{unit}",
            "NCCL does not read it; this project takes it as seconds" if unit else "", "give seconds" if unit else "",
        )  # fmt: skip
    threads = env.get("OMP_NUM_THREADS", "")
    if launch.world_size > 1 and (not threads.isdigit() or int(threads) * _ranks_here() > cores):
        yield Finding(
            WARN, "threads", f"OMP_NUM_THREADS is {threads or 'not set'}, {_ranks_here()} ranks share {cores} cores",
            "ranks that fight for cores are slow in all they do", "start through launch_train.sh, or set it to 1",
        )  # fmt: skip
    if env.get("TORCH_NCCL_BLOCKING_WAIT", env.get("NCCL_BLOCKING_WAIT", "0")) not in ("0", ""):
        yield Finding(
            WARN, "environment", "NCCL_BLOCKING_WAIT is set", "each collective then blocks the host", "unset it"
        )
    if torch.cuda.is_available() and launch.world_size > 1:
        has_ib = any(Path("/sys/class/infiniband").glob("*"))
        if has_ib and env.get("NCCL_IB_DISABLE") == "1":
            yield Finding(
                WARN, "network", "InfiniBand is here, and NCCL_IB_DISABLE=1", "NCCL uses slow sockets", "unset it"
            )


def check_devices() -> Iterator[Finding]:
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    what = f"torch {torch.__version__}; " + (f"{len(names)} x {names[0]}" if names else "no GPU: ranks run on the CPU")
    yield Finding(OK, "devices", what)
    free = shutil.disk_usage(".").free / 2**30
    low = free < 5
    yield Finding(
        WARN if low else OK, "disk", f"{free:.0f} GB free here", "checkpoints need room" if low else "",
        "free some space, or set path.root" if low else "",
    )  # fmt: skip
    memory = shutil.disk_usage("/dev/shm").free / 2**20 if Path("/dev/shm").exists() else 1e9
    if memory < 1024:
        yield Finding(
            WARN, "shared memory", f"/dev/shm has {memory:.0f} MB free",
            "loader processes hand batches over in it and die with 'Bus error' when it is full",
            "docker run --shm-size=8g, or fewer dataloader_num_workers",
        )  # fmt: skip


def check_leftovers() -> Iterator[Finding]:
    """Processes of an earlier run on this host that still hold memory, GPU or port."""
    own = {os.getpid(), os.getppid()}
    left = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if any(part.endswith(b"main_train_vrt.py") for part in command) and parent == 1 and int(entry.name) not in own:
            left.append(int(entry.name))
    if left:
        yield Finding(
            WARN, "leftovers", f"processes {sorted(left)} train without a parent",
            "what a dead job left holds GPU memory and ports",
            f"kill {' '.join(map(str, sorted(left)))}, unless they are wanted",
        )  # fmt: skip
    else:
        yield Finding(OK, "leftovers", "no process of an earlier job")


# ---- all ranks ------------------------------------------------------------------------------------------------------


def check_ranks() -> list[Finding]:
    """Who is where. Collective."""
    places = utils_dist.gather_objects((socket.gethostname(), torch.__version__))
    hosts = {host for host, _ in places}
    findings = [
        Finding(
            OK,
            "ranks",
            f"{len(places)} on {len(hosts)} host{'s' if len(hosts) > 1 else ''}: {', '.join(sorted(hosts))}",
        )
    ]
    if found := gpu_use.usage_of_all_ranks():
        texts = [f"rank {rank}: {gpu_use.describe(one) if one else 'unknown'}" for rank, one in enumerate(found)]
        findings.append(Finding(OK, "GPUs", "; ".join(texts)))
    if len({version for _, version in places}) > 1:
        findings.append(Finding(FAIL, "versions", f"torch differs: {places}", "sums differ", "install the same"))
    return findings


def check_collectives(sizes_mb: Sequence[float] = (0.01, 1, 16)) -> list[Finding]:
    """Sums are right, and how fast they travel. Collective."""
    world, device = utils_dist.get_world_size(), utils_dist.get_device()
    if world == 1:
        return [Finding(OK, "collectives", "one process: none are needed")]
    total = torch.tensor([float(utils_dist.get_rank() + 1)], device=device)
    dist.all_reduce(total)
    right = float(total) == world * (world + 1) / 2
    findings = [
        Finding(OK, "all_reduce", f"the sum over {world} ranks is right ({dist.get_backend()})")
        if right
        else Finding(FAIL, "all_reduce", f"sum {float(total)}", "gradients would be wrong", "update torch and drivers")
    ]
    rates = []
    for size in sizes_mb:
        data = torch.ones(int(size * 2**20 / 4), device=device)
        dist.all_reduce(data)
        utils_dist.barrier()
        begin = time.perf_counter()
        for _ in range(3):
            dist.all_reduce(data)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - begin) / 3
        rates.append(f"{size:g} MB in {1000 * seconds:.1f} ms ({size / seconds:.0f} MB/s)")
    return [*findings, Finding(OK, "bandwidth", "; ".join(rates))]


def _ranks_here() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or utils_dist.get_world_size()


def read_log(text: str) -> list[Finding]:
    """What the known failures in a log mean, in the order in which they appeared; each kind once.

    A log holds all starts of a run: the last one counts.
    """
    begin = max(text.rfind("] rank 0 of "), 0)
    last_start = text[begin:]
    findings: dict[str, Finding] = {}
    for number, line in enumerate(last_start.splitlines(), 1 + text.count("\n", 0, begin)):
        for pattern, name, meaning, cure in KNOWN_FAILURES:
            if found := re.search(pattern, line):
                groups = [group or "" for group in found.groups()]
                if "{2}" in meaning:
                    groups.append({"STUCK": "stuck", "SILENT": "silent", "DEAD": "dead"}[groups[1]])
                what = f"line {number}: {line.strip()[:MOST]}"
                findings.setdefault(name, Finding(FAIL, name, what, meaning.format(*groups), cure))
                break
    if not findings and (error := re.search(r"^(\[rank \d+\] )?(Traceback|\w+Error: ).*", last_start, re.MULTILINE)):
        return [
            Finding(FAIL, "log", error[0][:MOST], "the last start ended with this error", "read the lines below it")
        ]
    if re.search("Finished at iter|already finished", last_start) and not findings:
        return [Finding(OK, "log", "the run finished")]
    return list(findings.values()) or [
        Finding(WARN, "log", "no known failure in this log", "the run may have been killed from outside, or still runs",
                "look at the logs of the other ranks, of the scheduler, and at dmesg")
    ]  # fmt: skip
