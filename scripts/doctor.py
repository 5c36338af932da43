#!/usr/bin/env python3
"""Check this host, the options, the data, the network and the ranks. Exit code 0: nothing failed, 1: something did.

    python scripts/doctor.py                                     this host and its environment
    python scripts/doctor.py --opt FILE [section.key=value ...]  also the data, the network, one process
    python scripts/doctor.py --opt FILE --data --decode          only the data: every clip, every problem; exit code 3
    torchrun --nproc_per_node=N scripts/doctor.py --opt FILE     also the ranks together (or srun, or a platform launch)
    python scripts/doctor.py --log FILE                          what the failure in a log means

Each finding that is not ok says what to do. docs/troubleshooting.md lists the known failures.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import main_train_vrt
from models.ddp import unwrap_ddp, weights_hash
from models.model_vrt import ModelVRT
from models.select_model import define_Model
from scripts.parts.check_data import check_data
from scripts.parts.doctor_checks import (
    FAIL,
    OK,
    WARN,
    Finding,
    check_collectives,
    check_devices,
    check_environment,
    check_leftovers,
    check_ranks,
    read_log,
    table,
)
from scripts.parts.exit_codes import with_exit_code
from utils import utils_dist
from utils.dist import process
from utils.errors import SpikeVRTError
from utils.run import boot
from utils.run.measure import seconds_of

STEPS = 3  # timed steps


@with_exit_code
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opt", metavar="FILE", help="option file: check its data and its network too")
    parser.add_argument("--data", action="store_true", help="list the clips of --opt and all problems of its data")
    parser.add_argument("--decode", action="store_true", help="with --data: decode every image (finds flipped bits)")
    parser.add_argument("--log", metavar="FILE", help="read this log instead of checking anything")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    args = parser.parse_args(argv)
    if args.data:
        if not args.opt:
            parser.error("--data needs --opt")
        check_data(args.opt, args.overrides, args.decode)
        return 0
    if args.log:
        try:
            findings = read_log(Path(args.log).read_text(errors="replace"))
        except OSError as e:
            findings = [Finding(FAIL, "log", f"cannot read {args.log}: {e.strerror}", "", "correct --log")]
        print(table(findings))
        return int(any(f.status == FAIL for f in findings))

    begin = time.perf_counter()
    with boot.ranks(log=False):
        utils_dist.init_dist(120)
        findings = [Finding(OK, "rendezvous", f"all ranks met in {time.perf_counter() - begin:.1f} s")]
        cores = os.cpu_count() or 1
        findings += from_all_ranks([*check_environment(os.environ, cores), *check_devices(), *check_leftovers()])
        findings += [*check_ranks(), *check_collectives()]
        if args.opt:
            findings += check_training(["--opt", args.opt, *args.overrides])
        is_main = utils_dist.is_main_process()
    if is_main:
        print(table(findings), flush=True)
    return int(any(f.status == FAIL for f in findings))


def from_all_ranks(findings: list[Finding]) -> list[Finding]:
    """Findings that are not "ok" on any rank, once each with its ranks, and those of rank 0. Collective."""
    gathered = utils_dist.gather_objects(findings)
    merged = list(gathered[0])
    for finding in {f: None for other in gathered[1:] for f in other if f.status != OK}:
        if finding not in merged:
            ranks = [str(rank) for rank, other in enumerate(gathered) if finding in other]
            merged.append(replace(finding, what=f"rank {', '.join(ranks)}: {finding.what}"))
    return merged


def check_training(argv: list[str]) -> list[Finding]:
    """Options, data, shards, network, gradients, speed. Collective."""
    found: list[Finding] = []
    state: dict[str, Any] = {}

    def step(check: Callable[[], str]) -> bool:
        """Run one check on all ranks. False where it failed on any of them."""
        try:
            mine = Finding(OK, check.__name__, check())
        except SpikeVRTError as e:
            mine = Finding(FAIL, check.__name__, f"{e.what} (in {e.where})", e.expected, e.do)
        merged = from_all_ranks([mine])
        found.extend(merged)
        return not any(finding.status == FAIL for finding in merged)

    def options() -> str:
        state["opt"] = main_train_vrt.read_options(argv)
        return f"{state['opt'].opt_path} is valid"

    def data() -> str:
        state["loader"], clips = main_train_vrt.build_data(state["opt"])
        sampler = state["loader"].sampler
        count = len(clips) if clips is not None else 0
        return f"{sampler.dataset_len} training samples, {count} test clips"

    def network() -> str:
        state["model"] = define_Model(state["opt"])
        state["model"].init_train(None)
        return state["model"].describe()

    if step(options) and step(data) and step(network):
        found += check_shards(state["loader"])
        found += check_parameters(state["model"])
        batches = state["loader"].start(0, 0)
        batch = next(batches)[0]
        found += check_loader(batches, batch)
        state["model"].fit_memory(batch)
        found += check_scaling(state["model"], batch)
        found += check_gradients(state["model"], batch)
    return found


def check_shards(loader: Any) -> list[Finding]:
    """Different samples on each rank, and equally many. Collective."""
    mine = [index for _, index in loader.sampler]
    shards = utils_dist.gather_objects(mine)
    first = "; ".join(f"rank {rank}: {', '.join(map(str, shard[:3]))}" for rank, shard in enumerate(shards))
    if len({len(shard) for shard in shards}) > 1 or len(set(itertools.chain(*shards))) < sum(map(len, shards)):
        return [Finding(FAIL, "shards", f"overlapping or unequal; first samples {first}", "work done twice")]
    return [Finding(OK, "shards", f"{len(mine)} samples a rank and epoch, none twice; first samples {first}")]


def check_parameters(model: ModelVRT) -> list[Finding]:
    """All ranks hold the same network. Collective."""
    digests = utils_dist.gather_objects(weights_hash(model.netG))
    if len(set(digests)) == 1:
        return [Finding(OK, "parameters", f"hash {digests[0]} on all ranks")]
    # Fresh weights may differ: DDP broadcasts those of rank 0 when it wraps the network.
    return [Finding(WARN, "parameters", f"hashes {digests}", "fresh weights differ until DDP wraps them")]


def check_loader(batches: Iterator[Any], batch: dict[str, Any]) -> list[Finding]:
    """How many clips a second this rank's loader gives. Collective."""
    begin, count = time.perf_counter(), 0
    for following in itertools.islice(batches, STEPS):
        count += sum(len(b["key"]) for b in following)
    rates = utils_dist.gather_objects(count / (time.perf_counter() - begin) if count else 0.0)
    return [
        Finding(OK, "loader", f"{min(rates):.1f} to {max(rates):.1f} clips/s a rank; a batch holds {len(batch['key'])}")
    ]


def check_scaling(model: ModelVRT, batch: dict[str, Any]) -> list[Finding]:
    """Time of a step on rank 0 alone, against all ranks with the exchange of gradients. Collective."""
    world = utils_dist.get_world_size()
    alone = time_of_steps(model, batch) if utils_dist.is_main_process() else 0.0
    utils_dist.barrier()
    if world == 1:
        return [Finding(OK, "step", f"{alone:.2f} s forward and backward")]
    net = unwrap_ddp(model.netG)
    model.netG = model.wrap(net)
    together = max(utils_dist.gather_objects(time_of_steps(model, batch)))
    model.netG = net
    share = utils_dist.gather_objects(alone)[0] / together
    cpu = utils_dist.get_device().type == "cpu"
    status = WARN if share < 0.85 and not cpu else OK
    return [
        Finding(
            status, "scaling", f"{share * world:.2f} x on {world} ranks ({share:.0%}): a step takes "
            f"{share * together:.2f} s alone, {together:.2f} s together" + (" (ranks share the cores)" if cpu else ""),
            "the exchange of gradients is slow" if status == WARN else "", "see bandwidth" if status == WARN else "",
        )
    ]  # fmt: skip


def time_of_steps(model: ModelVRT, batch: dict[str, Any]) -> float:
    """Median seconds of forward and backward."""

    def step() -> None:
        model.loss().backward()
        model.netG.zero_grad(set_to_none=True)

    model.feed_data(batch)
    return seconds_of(step, model.device, STEPS)


def check_gradients(model: ModelVRT, batch: dict[str, Any]) -> list[Finding]:
    """Gradients of all ranks together against those of one process that sees all their samples; float64. Collective."""
    if utils_dist.get_world_size() == 1:
        return []
    net = unwrap_ddp(model.netG).double().eval()
    batches = utils_dist.gather_objects({k: v for k, v in batch.items() if isinstance(v, torch.Tensor)})

    def gradients(parts: list[dict[str, Any]]) -> torch.Tensor:
        for part in parts:
            model.feed_data({key: value.double() for key, value in part.items()})
            (model.loss() / len(parts)).backward()
        flat = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        net.zero_grad(set_to_none=True)
        return flat

    model.netG = net
    for parameter in net.parameters():  # DDP broadcasts rank 0's weights; the reference needs them as well
        torch.distributed.broadcast(parameter.data, 0)
    expected = gradients(batches)
    model.netG = model.wrap(net)
    found = gradients([batches[utils_dist.get_rank()]])
    error = float((found - expected).abs().max() / expected.abs().max())
    worst = max(utils_dist.gather_objects(error))
    if worst < 1e-6:
        return [
            Finding(
                OK, "gradients", f"{utils_dist.get_world_size()} ranks agree with one process: {worst:.0e} relative"
            )
        ]
    return [
        Finding(FAIL, "gradients", f"differ from one process by {worst:.0e} (relative)", "it would train wrongly",
                "set find_unused_parameters; see docs/ddp.md")
    ]  # fmt: skip


if __name__ == "__main__":
    process.end(main(sys.argv[1:]))
