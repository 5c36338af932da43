"""Findings of the doctor, and the known failures as they appear in logs. docs/troubleshooting.md shows their table."""

# ruff: noqa: E501 - one failure, one entry

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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


# (pattern, name, what it means, what to do); the first match in a line counts.
KNOWN_FAILURES: tuple[tuple[str, str, str, str], ...] = (
    (r"rank (\d+) is (STUCK|SILENT|DEAD)", "watchdog", "rank {0} was {2} and stopped the run; the others waited for it",
     "read the stack below that line; the phase says where to look"),
    (r"Watchdog caught collective operation timeout.*?OpType=(\w+)", "NCCL timeout", "a rank did not enter {0} in time; "
     "the rank of this line waited for it", "find the rank whose log ends first or differs; run again with the watchdog on"),
    (r"Timed out waiting \d+ms for (?:recv|send) operation", "gloo timeout", "a rank did not enter a collective in time; the rank of this line waited for it",
     "find the rank whose log ends first or differs; run again with the watchdog on"),
    (r"heartbeat monitor timed out|HeartbeatMonitor", "NCCL heartbeat", "NCCL's monitor thread hung, often in a CUDA call",
     "look at dmesg for Xid errors, and at TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
    (r"/dev/shm.*No space left", "shared memory", "/dev/shm is too small for NCCL or for the loader processes",
     "enlarge it (docker: --shm-size=8g)"),
    (r"unhandled (?:system|cuda) error|ncclSystemError|ncclUnhandledCudaError", "NCCL error", "NCCL could not use the network or the GPU",
     "NCCL_DEBUG=INFO names the interface; set NCCL_SOCKET_IFNAME, or NCCL_IB_DISABLE=1 without InfiniBand"),
    (r"ncclRemoteError|remote process exited|Connection closed by peer|Connection reset by peer", "lost peer",
     "another rank left or died first", "read that rank's log; on its host look for the out-of-memory killer (dmesg)"),
    (r"Duplicate GPU detected", "shared GPU", "two ranks use the same GPU", "set LOCAL_RANK for each rank"),
    (r"Expected to have finished reduction in the prior iteration", "unused parameters", "some parameters took no part in the loss",
     "set find_unused_parameters, or take them out of training"),
    (r"Expected to mark a variable ready only once", "parameters used twice", "re-entrant checkpointing or shared weights under DDP",
     "use non-reentrant checkpointing, or use_static_graph"),
    (r"training graph has changed in this iteration", "static graph", "the graph changed although use_static_graph is true",
     "set use_static_graph to false"),
    (r"expect_autograd_hooks_|INTERNAL ASSERT FAILED.*reducer", "no_sync and static graph", "accumulation under a static graph crashes in torch",
     "set use_static_graph to false"),
    (r"DataLoader worker \(pid (\S+)\) is killed by signal: (\w+)", "loader killed", "loader process {0} was killed ({1}), usually because memory ran out",
     "fewer dataloader_num_workers, more memory, or a larger /dev/shm (Bus error)"),
    (r"DataLoader timed out after (\d+)", "loader timeout", "no batch within {0} s: slow or hanging storage", "look at the disk; raise watchdog.stall_s, and dataloader_timeout_s where it is set"),
    (r"DataLoader worker .* exited unexpectedly", "loader died", "a loader process ended without a message", "set dataloader_num_workers to 0 to see why"),
    (r"Too many open files|received 0 items of ancdata", "file handles", "the limit of open files was reached", "ulimit -n 65536"),
    (r"(?:CUDA )?out of memory|OutOfMemoryError", "out of memory", "the GPU's memory did not suffice",
     "checkpoint more stages, smaller gt_size or num_frame, amp, batch 1 with accumulation_steps"),
    (r"oom-kill|Out of memory: Killed|exitcode:? -9|Killed$", "killed", "the kernel or the scheduler killed a process, usually because memory ran out", "ask for more memory, or use fewer loader processes"),
    (r"EADDRINUSE|[Aa]ddress already in use|port \d+ is in use", "port in use", "another run listens on MASTER_PORT", "choose another MASTER_PORT"),
    (r"client socket has timed out|DistNetworkError", "rendezvous", "rank 0 was not reached: not started, wrong MASTER_ADDR, or a firewall",
     "check that rank 0 runs and that MASTER_ADDR names its host"),
    (r"(\d+)/(\d+) clients joined", "rendezvous", "only {0} of {1} ranks arrived", "look into the logs of the others"),
    (r"environment variable (\w+) expected", "launch", "{0} is missing", "start through launch_train.sh, torchrun, srun or the platform"),
    (r"Default process group has not been initialized", "no process group", "a collective was called before init_dist, or by a single process",
     "start through launch_train.sh or torchrun; call it after utils_dist.init_dist, through utils_dist"),
    (r"CUDA error: (?:device-side assert|an illegal memory access)", "CUDA error", "a kernel failed; the line shown is not the cause",
     "run once with CUDA_LAUNCH_BLOCKING=1"),
    (r"Xid.*?: (\d+)", "GPU fault", "the driver reports Xid {0}: hardware or driver", "exclude that node"),
    (r"No space left on device|disk is too full|unexpected pos \d+ vs", "disk full", "a file could not be written", "free some space, then resume"),
    (r"NonFiniteError|is NaN or Inf", "numbers", "loss or gradient became NaN or Inf", "lower G_optimizer_lr, clip gradients, use bfloat16"),
    (r"stopped by a signal at iter (\d+)", "pre-empted", "the run was asked to stop and saved at iter {0}", "start the same command again"),
    (r"DUE TO TIME LIMIT", "time limit", "the job reached its time limit", "submit_job.sh saves and requeues before that"),
    (r"((?:Option|Data|Dist|Checkpoint)Error): (.*)", "the run's own message", "{0}: {1}", "see the lines below it in the log"),
)  # fmt: skip


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
