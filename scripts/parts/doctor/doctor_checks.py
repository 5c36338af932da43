"""The checks of doctor.py: host, environment, ranks, and with an option file its training.

    examine                all checks, as a table
        check_host         launch, environment variables, devices, disk, memory: each rank alone
        check_ranks        versions, sums and their speed: all ranks together
        check_training     options, data, network; with them shards, loader, speed and gradients

Each check gives a `Finding`: what was seen and, if something is wrong, why it matters and the cure.
A rank is one process of a training. A function whose docstring says "Collective" waits for all
ranks. So every rank must call it, in the same order.

What must stay: the order of the checks that wait for other ranks, which is the same on all ranks
(test_two_ranks_are_examined_together). Free to change: a new check yields its findings in one of
these functions. If it waits for other ranks, it belongs to `check_ranks` or `check_training`. The
words of a finding may change, unless docs/troubleshooting.md quotes them
(test_the_doctor_prints_the_findings_that_the_page_quotes).

Tests: tests/parts/scripts/test_doctor.py
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
from models.ddp import unwrap_ddp
from models.model_state import weights_hash
from models.model_vrt import ModelVRT, define_Model
from scripts.parts.doctor.doctor_failures import FAIL, OK, WARN, Finding, table
from utils import device as devices
from utils import utils_dist
from utils.dist import gpu, watchdog
from utils.dist.state import RUN
from utils.errors import SpikeVRTError
from utils.run.timing import seconds_of

TIMED_STEPS = 3  # steps that are timed: a few are enough to see a slow exchange
# Seconds that ranks wait for one another at the start. A rank that is missing then has failed.
LONGEST_WAIT_S = 120
LEAST_FREE_GB = 5  # below it the check warns: a few checkpoints of VRT take some GB
LEAST_SHARED_MB = 1024  # the same for /dev/shm: Docker gives a container 64 MB by default
# Below this efficiency the check warns about the exchange of gradients. On a CPU a low efficiency
# is usual, because the ranks share the cores, so the check does not warn there.
LEAST_EFFICIENCY = 0.85
# Largest relative difference of the gradients of the ranks together and of one process. Rounding in
# float64 stays far below it, and a missing gradient is far above it.
LARGEST_DIFFERENCE = 1e-6


def examine(file: str | None, overrides: Sequence[str]) -> int:
    """Print what all checks found. Return the exit code: 1 if a check failed. Collective.

    file: option file. None: only the host and the ranks are checked.
    """
    begin = time.perf_counter()
    with utils_dist.ranks(log=False):
        utils_dist.init_dist(LONGEST_WAIT_S)
        seconds = time.perf_counter() - begin
        findings = [Finding(OK, "rendezvous", f"all ranks met in {seconds:.1f} s")]
        # The names of the phases stand in the report if a rank does not come to the end of a check.
        watchdog.phase("check the host")
        findings += from_all_ranks(list(check_host()))
        watchdog.phase("check the ranks")
        findings += check_ranks()
        if file:
            findings += check_training(["--opt", file, *overrides])
        is_main = utils_dist.is_main_process()
    if is_main:
        print(table(findings), flush=True)
    has_failed = any(finding.status == FAIL for finding in findings)
    return 1 if has_failed else 0


# ---- The host ---------------------------------------------------------------------------------


def check_host() -> Iterator[Finding]:
    """Yield what this rank sees of its launch, its environment and its host."""
    launch = RUN.launch  # how this rank was started: by torchrun, srun, ...
    what = (
        f"{launch.mode}, rank {launch.rank} of {launch.world_size}, local rank {launch.local_rank}"
    )
    yield Finding(OK, "launch", what)
    yield from check_environment()
    yield from check_devices()
    yield from check_room()


def check_environment() -> Iterator[Finding]:
    """Yield environment variables that are known to cause failures or slow runs."""
    env = os.environ
    launch = RUN.launch

    # 10**5 s are more than a day, so a value of 10**5 or more is probably in milliseconds.
    timeout = env.get("NCCL_TIMEOUT")
    if timeout:
        what = f"{timeout} s for every collective"
        if timeout.isdigit() and int(timeout) < 10**5:
            yield Finding(OK, "NCCL_TIMEOUT", what)
        else:
            yield Finding(
                WARN,
                "NCCL_TIMEOUT",
                f"{what}; that looks like milliseconds",
                why="NCCL does not read it; this project takes it as seconds",
                cure="give seconds",
            )

    # torch starts a thread for each core in each process, unless OMP_NUM_THREADS says otherwise.
    threads = env.get("OMP_NUM_THREADS", "")
    cores = os.cpu_count() or 1  # None if the system does not tell the number
    # A launcher that does not set LOCAL_WORLD_SIZE: assume that all ranks are on this host.
    ranks_here = int(env.get("LOCAL_WORLD_SIZE", "0")) or launch.world_size
    has_too_many = not threads.isdigit() or int(threads) * ranks_here > cores
    if launch.world_size > 1 and has_too_many:
        yield Finding(
            WARN,
            "threads",
            f"OMP_NUM_THREADS is {threads or 'not set'}, {ranks_here} ranks share {cores} cores",
            why="ranks that fight for cores are slow in all they do",
            cure="start through launch_train.sh, or set it to 1",
        )

    # The variable has an old name and a new name. The new name counts.
    blocking = env.get("NCCL_BLOCKING_WAIT", "0")
    blocking = env.get("TORCH_NCCL_BLOCKING_WAIT", blocking)
    if blocking not in ("0", ""):
        yield Finding(
            WARN,
            "environment",
            "NCCL_BLOCKING_WAIT is set",
            why="each collective blocks the host",
            cure="unset it",
        )


def check_devices() -> Iterator[Finding]:
    """Yield the GPUs of this host, and what keeps torch from using them or their network."""
    kind = devices.kind()  # "cuda", "cpu", ...
    names = [devices.name(torch.device(kind, index)) for index in range(devices.count())]

    has_infiniband = any(Path("/sys/class/infiniband").glob("*"))
    is_disabled = os.environ.get("NCCL_IB_DISABLE") == "1"
    if names and RUN.launch.world_size > 1 and has_infiniband and is_disabled:
        yield Finding(
            WARN,
            "network",
            "the host has InfiniBand, but NCCL_IB_DISABLE is 1",
            why="NCCL uses slow sockets instead",
            cure="unset it",
        )

    what = "no GPU: ranks run on the CPU"
    if names:
        what = f"{len(names)} x {names[0]}"
    yield Finding(OK, "devices", f"torch {torch.__version__}; {what}")
    # A device of the host that this installation of torch cannot use.
    for reason in devices.notes_on_unused(torch.device(kind)):
        yield Finding(
            WARN,
            "devices",
            reason,
            why="the CPU takes many times as long",
            cure="install the build of torch for this device, or its package (docs/gpu.md)",
        )


def check_room() -> Iterator[Finding]:
    """Yield how much room the disk and the memory have."""
    free_gb = shutil.disk_usage(".").free / 2**30
    what = f"{free_gb:.0f} GB free here"
    if free_gb < LEAST_FREE_GB:
        yield Finding(
            WARN,
            "disk",
            what,
            why="checkpoints need room",
            cure="free some space, or set path.root",
        )
    else:
        yield Finding(OK, "disk", what)

    # Linux keeps shared memory in this folder. Other systems have no such folder.
    shared = Path("/dev/shm")
    shared_mb = shutil.disk_usage(shared).free / 2**20 if shared.exists() else None
    if shared_mb is not None and shared_mb < LEAST_SHARED_MB:
        yield Finding(
            WARN,
            "shared memory",
            f"/dev/shm has {shared_mb:.0f} MB free",
            why="loader processes hand batches over in it and die with 'Bus error' when it is full",
            cure="docker run --shm-size=8g, or fewer dataloader_num_workers",
        )

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        yield Finding(
            WARN,
            "address space",
            f"limited to {limit / 1e9:.1f} GB",
            why="torch maps several GB of files, CUDA far more; programs abort or crash at the "
            "limit",
            cure="ulimit -v unlimited",
        )


# ---- The ranks --------------------------------------------------------------------------------


def check_ranks() -> Iterator[Finding]:
    """Yield where the ranks are, and whether their sums are right and fast. Collective."""
    # Of each rank: its host, and its version of torch.
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
    rates = []
    for megabytes in (0.01, 1, 16):
        data = torch.ones(int(megabytes * 2**20 / 4), device=device)  # float32: 4 bytes each
        seconds = seconds_of(partial(dist.all_reduce, data), device, warmup=1)
        rate = megabytes / seconds
        rates.append(f"{megabytes:g} MB in {1000 * seconds:.1f} ms ({rate:.0f} MB/s)")
    return Finding(OK, "bandwidth", "; ".join(rates))


def from_all_ranks(findings: list[Finding]) -> list[Finding]:
    """Return the findings of rank 0, and of other ranks the findings that are not "ok". Collective.

    A finding that several ranks have is returned once, with the numbers of these ranks.

    findings: what this rank found.
    """
    # The ranks exchange plain values, so a finding travels as a tuple of its fields.
    gathered = utils_dist.gather_objects([astuple(finding) for finding in findings])
    findings_of_rank = []
    for tuples in gathered:
        findings_of_rank.append([Finding(*fields) for fields in tuples])

    # All findings of rank 0, then each bad finding of the other ranks that is new.
    of_rank_0 = findings_of_rank[0]
    merged = list(of_rank_0)
    seen = set(of_rank_0)
    for of_rank in findings_of_rank[1:]:
        for finding in of_rank:
            if finding.status == OK or finding in seen:
                continue
            seen.add(finding)
            ranks = [str(rank) for rank, found in enumerate(findings_of_rank) if finding in found]
            merged.append(replace(finding, what=f"rank {', '.join(ranks)}: {finding.what}"))
    return merged


# ---- The training -----------------------------------------------------------------------------


def check_training(argv: list[str]) -> list[Finding]:
    """Return what is found about options, data, network, speed and gradients. Collective.

    Options, data and network are checked in this order, because each needs the one before. The
    first failure ends the checks.

    argv: arguments of main_train_vrt.py.
    """
    findings: list[Finding] = []
    # One loop for the three checks, because an error is handled in the same way in each.
    for check in ("options", "data", "network"):
        watchdog.phase(f"check the {check}")
        try:
            if check == "options":
                opt = main_train_vrt.read_options(argv)
                what = f"{opt.opt_path} is valid"
            elif check == "data":
                loader, test_set = main_train_vrt.build_data(opt)
                clips = [] if test_set is None else test_set.readers()
                samples = loader.sampler.dataset_len
                what = f"{samples} training samples, {len(clips)} test clips"
            else:
                model = define_Model(opt)
                model.init_train(state=None)
                what = model.describe()
            of_this_rank = Finding(OK, check, what)
        except SpikeVRTError as e:
            what = f"{e.what} (in {e.where})"
            of_this_rank = Finding(FAIL, check, what, why=e.expected, cure=e.do)
        # All ranks stop if one rank failed. Otherwise the other ranks would wait for it forever.
        merged = from_all_ranks([of_this_rank])
        findings += merged
        if any(finding.status == FAIL for finding in merged):
            return findings

    findings += check_shards(loader, model)
    watchdog.phase("check the loader")
    # Each item is a list with the batches of one step.
    batches = loader.start(epoch=0, batch=0)
    batch = next(batches)[0]
    findings.append(check_loader(batches, batch))
    watchdog.phase("check the speed of a step")
    model.fit_memory(batch)
    findings.append(check_scaling(model, batch))
    if utils_dist.get_world_size() > 1:
        watchdog.phase("check the gradients")
        findings.append(check_gradients(model, batch))
    return findings


def check_shards(loader: Any, model: ModelVRT) -> Iterator[Finding]:
    """Yield whether the ranks have equally many, different samples, and equal weights. Collective.

    The samples that one rank reads are its shard of the epoch.
    """
    shard_of_this_rank = [index for _, index in loader.sampler]  # (epoch, index of the sample)
    shards = utils_dist.gather_objects(shard_of_this_rank)
    texts = []
    for rank, shard in enumerate(shards):
        texts.append(f"rank {rank}: {', '.join(map(str, shard[:3]))}")
    first_samples = "; ".join(texts)
    lengths = {len(shard) for shard in shards}
    has_unequal_shards = len(lengths) > 1
    samples = list(itertools.chain(*shards))
    has_sample_twice = len(set(samples)) < len(samples)
    if has_unequal_shards or has_sample_twice:
        yield Finding(
            FAIL,
            "shards",
            f"the ranks have the same samples, or unequally many; first samples {first_samples}",
            why="ranks would train twice on a sample, or wait for one another",
        )
    else:
        yield Finding(
            OK,
            "shards",
            f"{len(shard_of_this_rank)} samples a rank and epoch, none twice; first samples "
            f"{first_samples}",
        )

    digests = utils_dist.gather_objects(weights_hash(model.netG))
    if len(set(digests)) == 1:
        yield Finding(OK, "parameters", f"hash {digests[0]} on all ranks")
    else:
        # ModelVRT seeds the initial weights equally on all ranks. Different weights are no failure,
        # because DDP broadcasts the weights of rank 0 when it wraps the network.
        yield Finding(
            WARN,
            "parameters",
            f"hashes {digests}",
            why="weights that train.manual_seed decides are equal on all ranks; DDP will give all "
            "ranks the weights of rank 0",
            cure="in your own network draw weights from torch's generator; give all hosts the same "
            "weights file",
        )


def check_loader(batches: Iterator[Any], batch: dict[str, Any]) -> Finding:
    """Return how many clips per second the loader reads on each rank. Collective.

    batches: the steps that are left of an epoch. batch: its first batch, which was read before.
    """
    begin = time.perf_counter()
    clips = 0
    # A step has several batches if train.accumulation_steps is above 1.
    for batches_of_step in itertools.islice(batches, TIMED_STEPS):
        for next_batch in batches_of_step:
            clips += len(next_batch["key"])  # "key" has the name of each sample
    seconds = time.perf_counter() - begin
    rate = clips / seconds if clips else 0.0  # an epoch of one step has no further batch
    rates = utils_dist.gather_objects(rate)
    return Finding(
        OK,
        "loader",
        f"{min(rates):.1f} to {max(rates):.1f} clips/s a rank; a batch holds {len(batch['key'])}",
    )


def check_scaling(model: ModelVRT, batch: dict[str, Any]) -> Finding:
    """Return how much faster all ranks are than rank 0 alone. Collective.

    A step is timed twice: on rank 0 while the others wait, and on all ranks together. The only
    additional work of a step of all ranks is the exchange of the gradients, so

        efficiency = seconds alone / seconds together

    is 1 if this exchange takes no time. E.g. 1.0 s alone and 1.25 s together: 0.8, so 8 ranks are
    6.4 times as fast as one.
    """
    on_device = model.to_device(batch)

    def step() -> None:
        # Forward and backward, without an update: the weights stay as they are.
        model.loss_terms(on_device)["loss"].backward()
        model.netG.zero_grad(set_to_none=True)

    world = utils_dist.get_world_size()  # number of ranks
    alone = 0.0
    if utils_dist.is_main_process():
        alone = seconds_of(step, model.device, TIMED_STEPS)
    utils_dist.barrier()  # the other ranks are idle until rank 0 has finished
    if world == 1:
        return Finding(OK, "step", f"{alone:.2f} s forward and backward")

    # Wrapped in DDP, the network exchanges gradients in each backward pass. Take the wrapper off
    # afterwards, because the next check wraps the network itself.
    net = unwrap_ddp(model.netG)
    model.netG = model.wrap(net)
    seconds_of_ranks = utils_dist.gather_objects(seconds_of(step, model.device, TIMED_STEPS))
    model.netG = net
    together = max(seconds_of_ranks)  # seconds of a step on the slowest rank
    alone_of_rank_0 = utils_dist.gather_objects(alone)[0]
    efficiency = alone_of_rank_0 / together
    is_cpu = devices.kind() == "cpu"
    shared_cores = " (ranks share the cores)" if is_cpu else ""
    what = (
        f"{efficiency * world:.2f} x on {world} ranks ({efficiency:.0%}): a step takes "
        f"{alone_of_rank_0:.2f} s alone, {together:.2f} s together{shared_cores}"
    )
    if efficiency < LEAST_EFFICIENCY and not is_cpu:
        return Finding(
            WARN,
            "scaling",
            what,
            why="the exchange of gradients is slow",
            cure="look at the bandwidth above",
        )
    return Finding(OK, "scaling", what)


def check_gradients(model: ModelVRT, batch: dict[str, Any]) -> Finding:
    """Return whether the ranks together get the gradients of one process. Collective.

    Each rank computes the gradients twice: alone from the batches of all ranks, and through DDP
    from its own batch. Everything is float64, so that rounding does not hide an error.
    """
    # In float64, and without dropout (eval), which would draw other neurons in each computation.
    # Both change the network in place. This is the last check, so nothing trains with it later.
    net = unwrap_ddp(model.netG).double().eval()
    tensors = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}
    of_all_ranks = utils_dist.gather_objects(tensors)

    def gradients(batches: list[dict[str, Any]]) -> torch.Tensor:
        """Return the gradients of the mean loss of the batches, as one vector, by model.netG."""
        for each in batches:
            in_float64 = {key: value.double() for key, value in each.items()}
            loss = model.loss_terms(model.to_device(in_float64))["loss"] / len(batches)
            loss.backward()  # adds to the gradients of the batches before
        parts = []
        for parameter in net.parameters():
            if parameter.grad is not None:  # a frozen parameter has no gradient
                parts.append(parameter.grad.flatten())
        vector = torch.cat(parts)
        net.zero_grad(set_to_none=True)
        return vector

    # DDP broadcasts the weights of rank 0. So give all ranks these weights also for the computation
    # without DDP.
    model.netG = net
    for parameter in net.parameters():
        dist.broadcast(parameter.data, src=0)
    expected = gradients(of_all_ranks)
    model.netG = model.wrap(net)
    found = gradients([of_all_ranks[utils_dist.get_rank()]])

    error = float((found - expected).abs().max() / expected.abs().max())
    worst = max(utils_dist.gather_objects(error))
    if worst < LARGEST_DIFFERENCE:
        return Finding(
            OK,
            "gradients",
            f"{len(of_all_ranks)} ranks agree with one process: {worst:.0e} relative",
        )
    return Finding(
        FAIL,
        "gradients",
        f"differ from one process by {worst:.0e} (relative)",
        why="the network would train wrongly",
        cure="set find_unused_parameters; see docs/ddp.md",
    )
