"""The checks of doctor.py: host, environment, ranks, and with an option file its data, network and
gradients.
"""

import itertools
import os
import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import main_train_vrt
from models.model_vrt import ModelVRT, define_Model, unwrap_ddp, weights_hash
from scripts.parts.doctor_failures import FAIL, OK, WARN, Finding, table
from utils import device as devices
from utils import utils_dist
from utils.dist import gpu
from utils.dist.state import RUN
from utils.errors import SpikeVRTError
from utils.run.measure import seconds_of

STEPS = 3  # timed steps


def examine(file: str | None, overrides: Sequence[str]) -> int:
    """Print what all checks found, those of training too where there is an option file.

    Exit code. Collective.
    """
    begin = time.perf_counter()
    with utils_dist.ranks(log=False):
        utils_dist.init_dist(120)
        findings = [
            Finding(OK, "rendezvous", f"all ranks met in {time.perf_counter() - begin:.1f} s")
        ]
        findings += [*from_all_ranks([*check_host()]), *check_ranks()]
        if file:
            findings += check_training(["--opt", file, *overrides])
        is_main = utils_dist.is_main_process()
    if is_main:
        print(table(findings), flush=True)
    return int(any(f.status == FAIL for f in findings))


def check_host() -> Iterator[Finding]:
    """The launch, environment variables that are known to cause failures or slow runs, and what
    this host has.
    """
    env, cores, launch = os.environ, os.cpu_count() or 1, RUN.launch
    ranks_here = int(env.get("LOCAL_WORLD_SIZE", "0")) or launch.world_size
    place = (
        f"{launch.mode}, rank {launch.rank} of {launch.world_size}, local rank {launch.local_rank}"
    )
    yield Finding(OK, "launch", place)
    if text := env.get("NCCL_TIMEOUT"):
        what, why = (
            f"{text} s for every collective",
            "NCCL does not read it; this project takes it as seconds",
        )
        if text.isdigit() and int(text) < 10**5:
            yield Finding(OK, "NCCL_TIMEOUT", what)
        else:
            yield Finding(
                WARN, "NCCL_TIMEOUT", f"{what}; that looks like milliseconds", why, "give seconds"
            )
    threads = env.get("OMP_NUM_THREADS", "")
    if launch.world_size > 1 and (not threads.isdigit() or int(threads) * ranks_here > cores):
        what = f"OMP_NUM_THREADS is {threads or 'not set'}, {ranks_here} ranks share {cores} cores"
        cure = "start through launch_train.sh, or set it to 1"
        yield Finding(
            WARN, "threads", what, "ranks that fight for cores are slow in all they do", cure
        )
    if env.get("TORCH_NCCL_BLOCKING_WAIT", env.get("NCCL_BLOCKING_WAIT", "0")) not in ("0", ""):
        yield Finding(
            WARN,
            "environment",
            "NCCL_BLOCKING_WAIT is set",
            "each collective blocks the host",
            "unset it",
        )
    kind = devices.kind()
    names = [devices.name(torch.device(kind, i)) for i in range(devices.count())]
    has_ib = any(Path("/sys/class/infiniband").glob("*"))
    if names and launch.world_size > 1 and has_ib and env.get("NCCL_IB_DISABLE") == "1":
        yield Finding(
            WARN,
            "network",
            "InfiniBand, and NCCL_IB_DISABLE=1",
            "NCCL uses slow sockets",
            "unset it",
        )
    what = f"{len(names)} x {names[0]}" if names else "no GPU: ranks run on the CPU"
    yield Finding(OK, "devices", f"torch {torch.__version__}; {what}")
    for reason in devices.unused(torch.device(kind)):
        cure = "install the torch, or the package, that is made for it (docs/gpu.md)"
        yield Finding(WARN, "devices", reason, "the CPU takes many times as long", cure)
    free = shutil.disk_usage(".").free / 2**30
    low = ("checkpoints need room", "free some space, or set path.root") if free < 5 else ()
    yield Finding(WARN if low else OK, "disk", f"{free:.0f} GB free here", *low)
    memory = shutil.disk_usage("/dev/shm").free / 2**20 if Path("/dev/shm").exists() else 1e9
    if memory < 1024:
        why = "loader processes hand batches over in it and die with 'Bus error' when it is full"
        cure = "docker run --shm-size=8g, or fewer dataloader_num_workers"
        yield Finding(WARN, "shared memory", f"/dev/shm has {memory:.0f} MB free", why, cure)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        why = "torch maps several GB of files, CUDA far more; programs abort or crash at the limit"
        found = f"limited to {limit / 1e9:.1f} GB"
        yield Finding(WARN, "address space", found, why, "ulimit -v unlimited")


def check_ranks() -> Iterator[Finding]:
    """Who is where; whether sums are right, and how fast they travel. Collective."""
    places = utils_dist.gather_objects((os.uname().nodename, torch.__version__))
    hosts = sorted({host for host, _ in places})
    yield Finding(
        OK,
        "ranks",
        f"{len(places)} on {len(hosts)} host{'s' * (len(hosts) > 1)}: {', '.join(hosts)}",
    )
    world, device = utils_dist.get_world_size(), utils_dist.get_device()
    if gpu.is_cuda(device):
        found = utils_dist.gather_objects(gpu.usage(device))
        texts = [
            f"rank {rank}: {gpu.describe(one) if one else 'unknown'}"
            for rank, one in enumerate(found)
        ]
        yield Finding(OK, "GPUs", "; ".join(texts))
    if len({version for _, version in places}) > 1:
        yield Finding(
            FAIL, "versions", f"torch differs: {places}", "sums differ", "install the same"
        )
    if world == 1:
        yield Finding(OK, "collectives", "one process: none are needed")
        return
    total = torch.tensor([float(utils_dist.get_rank() + 1)], device=device)
    dist.all_reduce(total)
    if float(total) == world * (world + 1) / 2:
        yield Finding(
            OK, "all_reduce", f"the sum over {world} ranks is right ({dist.get_backend()})"
        )
    else:
        yield Finding(
            FAIL,
            "all_reduce",
            f"sum {total}",
            "gradients would be wrong",
            "update torch and drivers",
        )
    rates = []
    for size in (0.01, 1, 16):  # MB
        data = torch.ones(int(size * 2**20 / 4), device=device)
        seconds = seconds_of(partial(dist.all_reduce, data), device, warmup=1)
        rates.append(f"{size:g} MB in {1000 * seconds:.1f} ms ({size / seconds:.0f} MB/s)")
    yield Finding(OK, "bandwidth", "; ".join(rates))


def from_all_ranks(findings: list[Finding]) -> list[Finding]:
    """Findings that are not "ok" on any rank, once each with its ranks, and those of rank 0.

    Collective.
    """
    of_ranks = utils_dist.gather_objects([astuple(finding) for finding in findings])
    gathered = [[Finding(*values) for values in of_rank] for of_rank in of_ranks]
    merged = list(gathered[0])
    for finding in {f: None for other in gathered[1:] for f in other if f.status != OK}:
        if finding not in merged:
            ranks = [str(rank) for rank, other in enumerate(gathered) if finding in other]
            merged.append(replace(finding, what=f"rank {', '.join(ranks)}: {finding.what}"))
    return merged


def check_training(argv: list[str]) -> list[Finding]:
    """Options, data, shards, network, gradients, speed. Collective."""
    found: list[Finding] = []
    for check in ("options", "data", "network"):
        try:
            if check == "options":
                opt = main_train_vrt.read_options(argv)
                what = f"{opt.opt_path} is valid"
            elif check == "data":
                loader, clips = main_train_vrt.build_data(opt)
                what = (
                    f"{loader.sampler.dataset_len} training samples, {len(clips or ())} test clips"
                )
            else:
                model = define_Model(opt)
                model.init_train(None)
                what = model.describe()
            mine = Finding(OK, check, what)
        except SpikeVRTError as e:
            mine = Finding(FAIL, check, f"{e.what} (in {e.where})", e.expected, e.do)
        merged = from_all_ranks([mine])
        found += merged
        if any(finding.status == FAIL for finding in merged):
            return found
    found += check_shards(loader, model)
    batches = loader.start(0, 0)
    batch = next(batches)[0]
    begin, count = time.perf_counter(), 0
    for following in itertools.islice(batches, STEPS):
        count += sum(len(b["key"]) for b in following)
    rates = utils_dist.gather_objects(count / (time.perf_counter() - begin) if count else 0.0)
    what = f"{min(rates):.1f} to {max(rates):.1f} clips/s a rank; a batch holds {len(batch['key'])}"
    found.append(Finding(OK, "loader", what))
    model.fit_memory(batch)
    found.append(check_scaling(model, batch))
    if utils_dist.get_world_size() > 1:
        found.append(check_gradients(model, batch))
    return found


def check_shards(loader: Any, model: ModelVRT) -> Iterator[Finding]:
    """Different samples on each rank, and equally many, for the same network. Collective."""
    mine = [index for _, index in loader.sampler]
    shards = utils_dist.gather_objects(mine)
    first = "; ".join(
        f"rank {rank}: {', '.join(map(str, shard[:3]))}" for rank, shard in enumerate(shards)
    )
    if len({len(shard) for shard in shards}) > 1 or len(set(itertools.chain(*shards))) < sum(
        map(len, shards)
    ):
        yield Finding(
            FAIL, "shards", f"overlapping or unequal; first samples {first}", "work done twice"
        )
    else:
        yield Finding(
            OK, "shards", f"{len(mine)} samples a rank and epoch, none twice; first samples {first}"
        )
    digests = utils_dist.gather_objects(weights_hash(model.netG))
    if len(set(digests)) == 1:
        yield Finding(OK, "parameters", f"hash {digests[0]} on all ranks")
    else:  # fresh weights may differ: DDP broadcasts those of rank 0 when it wraps the network
        yield Finding(
            WARN, "parameters", f"hashes {digests}", "fresh weights differ until DDP wraps them"
        )


def check_scaling(model: ModelVRT, batch: dict[str, Any]) -> Finding:
    """Time of a step on rank 0 alone, against all ranks with the exchange of gradients.

    Collective.
    """

    on_device = model.to_device(batch)

    def step() -> None:
        model.loss_terms(on_device)["loss"].backward()
        model.netG.zero_grad(set_to_none=True)

    world = utils_dist.get_world_size()
    alone = seconds_of(step, model.device, STEPS) if utils_dist.is_main_process() else 0.0
    utils_dist.barrier()
    if world == 1:
        return Finding(OK, "step", f"{alone:.2f} s forward and backward")
    net = unwrap_ddp(model.netG)
    model.netG = model.wrap(net)
    together = max(utils_dist.gather_objects(seconds_of(step, model.device, STEPS)))
    model.netG = net
    share = utils_dist.gather_objects(alone)[0] / together
    cpu = devices.kind() == "cpu"
    what = (
        f"{share * world:.2f} x on {world} ranks ({share:.0%}): a step takes "
        f"{share * together:.2f} s alone, {together:.2f} s "
        f"together{' (ranks share the cores)' * cpu}"
    )
    if share < 0.85 and not cpu:
        return Finding(WARN, "scaling", what, "the exchange of gradients is slow", "see bandwidth")
    return Finding(OK, "scaling", what)


def check_gradients(model: ModelVRT, batch: dict[str, Any]) -> Finding:
    """Gradients of all ranks together against those of one process that sees all their samples;
    float64. Collective.
    """
    net = unwrap_ddp(model.netG).double().eval()
    batches = utils_dist.gather_objects(
        {k: v for k, v in batch.items() if isinstance(v, torch.Tensor)}
    )

    def gradients(parts: list[dict[str, Any]]) -> torch.Tensor:
        for part in parts:
            precise = {key: value.double() for key, value in part.items()}
            (model.loss_terms(model.to_device(precise))["loss"] / len(parts)).backward()
        flat = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        net.zero_grad(set_to_none=True)
        return flat

    model.netG = net
    for (
        parameter
    ) in net.parameters():  # DDP broadcasts rank 0's weights; the reference needs them as well
        dist.broadcast(parameter.data, 0)
    expected = gradients(batches)
    model.netG = model.wrap(net)
    found = gradients([batches[utils_dist.get_rank()]])
    worst = max(
        utils_dist.gather_objects(float((found - expected).abs().max() / expected.abs().max()))
    )
    if worst < 1e-6:
        return Finding(
            OK, "gradients", f"{len(batches)} ranks agree with one process: {worst:.0e} relative"
        )
    what, cure = (
        f"differ from one process by {worst:.0e} (relative)",
        "set find_unused_parameters; see docs/ddp.md",
    )
    return Finding(FAIL, "gradients", what, "it would train wrongly", cure)
