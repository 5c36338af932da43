"""benchmark.py scale: training steps of 1, 2, .. processes on this machine, and what exchanging gradients costs."""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from models.ddp import wrap_ddp
from scripts import benchmark_net
from scripts.benchmark_net import Clip, net_options, networks
from scripts.benchmark_tools import table
from scripts.shown import tracked
from utils import utils_dist
from utils.dist import process
from utils.errors import DistError
from utils.run import boot
from utils.run.timer import seconds_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    benchmark_net.add_shape_arguments(parser)
    parser.add_argument(
        "--ranks", type=int, default=max(1, torch.cuda.device_count()), help="most processes (default: GPUs)"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Steps of 1, 2, 4, .. and --ranks processes, each with a batch of its own, on random clips."""
    gpus = torch.cuda.device_count()
    if args.device.startswith("cuda") and args.ranks > gpus:
        raise DistError(f"{args.ranks} ranks on {gpus} GPUs", "--ranks", "at most one rank per GPU", f"give {gpus}")
    counts = sorted({2**k for k in range(args.ranks.bit_length())} | {args.ranks})
    # The same threads for each process in all runs, so that only the number of processes changes.
    threads = args.threads or max(1, (os.cpu_count() or 1) // args.ranks)
    found = []
    for world in tracked(counts, len(counts), "scale", "numbers of processes"):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(_rank, (world, _free_port(), threads, Path(folder) / "figures", args), nprocs=world)
            found.append(json.loads((Path(folder) / "figures").read_text()))
    for figures in found:
        figures["samples_per_s"] = figures["ranks"] * args.batch / figures["step_s"]
        figures["efficiency"] = found[0]["step_s"] / figures["step_s"]
    rows = []
    for f in found:
        shares = [f"{f[key]:.0%}" for key in ("efficiency", "reduction_share")]
        rows.append([f["ranks"], f["step_s"], 1 / f["step_s"], f["samples_per_s"], *shares])
    shape = f"batch {args.batch} x {args.frames} frames x {args.crop} a process"
    print(f"{args.config}, training step, {shape}, {args.dtype}, {found[-1]['backend']}, {threads} threads a process")
    print(table(rows, ["processes", "step s", "steps/s", "samples/s", "efficiency", "time added by the reduction"]))
    if args.device == "cpu" and args.ranks * threads > (os.cpu_count() or 1):
        print("the processes share the cores: the efficiency is that of the machine, not of the reduction")
    return {"config": args.config, "dtype": args.dtype, "batch": args.batch, "runs": found}


def _rank(rank: int, world: int, port: int, threads: int, path: Path, args: argparse.Namespace) -> None:
    """One process: rank 0 writes the figures of the slowest."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    torch.set_num_threads(threads)
    with boot.ranks(log=False):
        utils_dist.init_dist()
        args.device = str(utils_dist.get_device()) if args.device.startswith("cuda") else "cpu"
        figures = utils_dist.gather_objects(measure(args))
        if utils_dist.is_main_process():
            slowest = max(figures, key=lambda f: f["step_s"])
            path.write_text(json.dumps({"ranks": world, **slowest}))
    process.end(0)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of a step with and without the reduction of gradients, on this rank. Collective."""
    options = net_options(args.config)
    clip = Clip(args, options, (args.frames, *(args.crop * 2)[:2]))
    net = wrap_ddp(networks(args, options)["ours"].train())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=clip.device.type == "cuda")

    def step(is_reduced: bool) -> None:
        apart = isinstance(net, DistributedDataParallel) and not is_reduced
        with net.no_sync() if apart else nullcontext():
            clip.train_step(net, optimizer)

    def seconds(is_reduced: bool) -> float:
        utils_dist.barrier()
        return seconds_of(lambda: step(is_reduced), clip.device, args.repeats, args.warmup)

    together = seconds(True)
    apart = seconds(False) if utils_dist.get_world_size() > 1 else together
    # Reduction that overlaps with the backward pass is not part of this share.
    share = max(0.0, 1 - apart / together)
    backend = torch.distributed.get_backend() if torch.distributed.is_initialized() else "one process"
    return {"step_s": together, "reduction_share": share, "backend": backend}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


SUBCOMMANDS = {"scale": (add_arguments, run)}
