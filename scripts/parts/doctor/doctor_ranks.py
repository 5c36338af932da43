"""Check all ranks together: their versions of torch, and whether sums are right and fast.

A rank is one process of a training. A function whose docstring says "Collective" waits for all
ranks. So every rank must call it, in the same order.

What must stay: the order of the checks, which is the same on all ranks
(test_two_ranks_are_examined_together).
Free to change: the words, unless docs/troubleshooting.md quotes them.

Tests: tests/parts/scripts/test_doctor.py
"""

import os
from collections.abc import Iterator
from dataclasses import astuple, replace
from functools import partial

import torch
import torch.distributed as dist

from scripts.parts.doctor.doctor_failures import FAIL, OK, Finding
from utils import utils_dist
from utils.dist import gpu
from utils.run.timing import seconds_of


def check_ranks() -> Iterator[Finding]:
    """Yield where the ranks are, and whether their sums are right and fast. Collective."""
    # For each rank: its host, and its version of torch.
    ranks = utils_dist.gather_objects((os.uname().nodename, torch.__version__))
    hosts = sorted({host for host, _ in ranks})
    versions = {version for _, version in ranks}
    hosts_text = "host" if len(hosts) == 1 else "hosts"
    yield Finding(OK, "ranks", f"{len(ranks)} on {len(hosts)} {hosts_text}: {', '.join(hosts)}")

    device = utils_dist.get_device()
    if gpu.is_cuda(device):
        texts = []
        for rank, usage in enumerate(utils_dist.gather_objects(gpu.usage(device))):
            texts.append(f"rank {rank}: {gpu.describe(usage) if usage else 'unknown'}")
        yield Finding(OK, "GPUs", "; ".join(texts))
    if len(versions) > 1:
        yield Finding(
            FAIL,
            "versions",
            f"the ranks have different versions of torch: {ranks}",
            why="other versions compute other numbers",
            cure="install the same version on all hosts",
        )
    if utils_dist.get_world_size() == 1:
        yield Finding(OK, "collectives", "one process: none are needed")
        return
    yield check_sum(device)
    yield check_bandwidth(device)


def check_sum(device: torch.device) -> Finding:
    """Return whether a sum over all ranks is right. Collective."""
    # Rank r gives r + 1, so the sum over all ranks is 1 + 2 + ... + world = world (world + 1) / 2.
    world = utils_dist.get_world_size()  # number of ranks
    total = torch.tensor([float(utils_dist.get_rank() + 1)], device=device)
    dist.all_reduce(total)
    expected = world * (world + 1) / 2
    if float(total) == expected:
        return Finding(
            OK, "all_reduce", f"the sum over {world} ranks is right ({dist.get_backend()})"
        )
    return Finding(
        FAIL,
        "all_reduce",
        f"the sum over {world} ranks is {float(total):g} and should be {expected:g}",
        why="gradients would be wrong",
        cure="update torch and drivers",
    )


def check_bandwidth(device: torch.device) -> Finding:
    """Return how long the ranks take to add up data of three sizes. Collective."""
    # The smallest size shows how long an exchange takes to begin, the largest size its bandwidth.
    texts = []  # e.g. "16 MB in 2.5 ms (6400 MB/s)"
    for megabytes in (0.01, 1, 16):
        data = torch.ones(int(megabytes * 2**20 / 4), device=device)  # float32: 4 bytes each
        seconds = seconds_of(partial(dist.all_reduce, data), device, warmup=1)
        rate = megabytes / seconds
        texts.append(f"{megabytes:g} MB in {1000 * seconds:.1f} ms ({rate:.0f} MB/s)")
    return Finding(OK, "bandwidth", "; ".join(texts))


def from_all_ranks(findings: list[Finding]) -> list[Finding]:
    """Return all findings of rank 0, and the bad findings of the other ranks. Collective.

    A bad finding has another status than "ok". If several ranks have the same bad finding, it is
    returned once. E.g. "little room" on the ranks 1 and 3 becomes "rank 1, 3: little room". A bad
    finding that rank 0 has, too, is returned as rank 0 has it, without the numbers of ranks.

    findings: what this rank found.
    """
    # The ranks exchange plain values, so a finding travels as a tuple of its fields.
    gathered = utils_dist.gather_objects([astuple(finding) for finding in findings])
    findings_of_rank = []
    for tuples in gathered:
        findings_of_rank.append([Finding(*fields) for fields in tuples])

    # All findings of rank 0, then each bad finding of the other ranks that is new.
    merged = list(findings_of_rank[0])
    known_findings = set(findings_of_rank[0])
    for findings_of_other in findings_of_rank[1:]:
        for finding in findings_of_other:
            if finding.status == OK or finding in known_findings:
                continue
            known_findings.add(finding)
            ranks = _ranks_with(finding, findings_of_rank)
            merged.append(replace(finding, what=f"rank {', '.join(ranks)}: {finding.what}"))
    return merged


def _ranks_with(finding: Finding, findings_of_rank: list[list[Finding]]) -> list[str]:
    """Return the numbers of the ranks that have a finding, e.g. ["1", "3"]."""
    ranks = []
    for rank, findings in enumerate(findings_of_rank):
        if finding in findings:
            ranks.append(str(rank))
    return ranks
