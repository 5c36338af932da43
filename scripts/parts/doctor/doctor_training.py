"""Check a training: options, data and network, then shards, loader, speed and gradients.

A rank is one process of a training. A function whose docstring says "Collective" waits for all
ranks. So every rank must call it, in the same order.

What must stay: the order of the checks, which is the same on all ranks
(test_two_ranks_are_examined_together). `check_gradients` comes last, because it changes the
network.
Free to change: limits and words, unless docs/troubleshooting.md quotes the words.

Tests: tests/parts/scripts/test_doctor.py
"""

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import main_train_vrt
from models.ddp import unwrap_ddp
from models.model_state import weights_hash
from models.model_vrt import ModelVRT, define_Model
from scripts.parts.doctor.doctor_failures import FAIL, OK, WARN, Finding
from scripts.parts.doctor.doctor_ranks import from_all_ranks
from utils import device as devices
from utils import utils_dist
from utils.dist import watchdog
from utils.errors import SpikeVRTError
from utils.run.timing import seconds_of
from utils.words import counted

TIMED_STEPS = 3  # number of timed steps. A few steps are enough to see a slow exchange
# Below this efficiency (`check_scaling`) the doctor warns about the exchange of gradients. The
# limit was chosen by hand. On a CPU the doctor does not warn, because the ranks share the cores,
# and so a low efficiency is usual.
LEAST_EFFICIENCY = 0.85
# Largest difference between the gradients of all ranks together and the gradients of one process,
# relative to the largest gradient. Rounding in float64 gives far smaller differences, and a missing
# gradient gives far larger ones.
LARGEST_DIFFERENCE = 1e-6


def check_training(argv: list[str]) -> list[Finding]:
    """Return what is found about options, data, network, speed and gradients. Collective.

    argv: arguments of main_train_vrt.py.
    """
    findings: list[Finding] = []
    parts = make_parts(argv, findings)
    if parts is None:
        return findings

    loader, model = parts
    findings.append(check_shards(loader))
    findings.append(check_parameters(model))
    watchdog.phase("check the loader")
    # An iterator over the steps of an epoch. Each step is a list of its batches.
    steps = loader.start(epoch=0, batch=0)
    first_step = next(steps)
    batch = first_step[0]  # all checks below use this batch
    findings.append(check_loader(steps, batch))
    watchdog.phase("check the speed of a step")
    # Choose the blocks that are recomputed, so that a step fits into the memory, as a training
    # does.
    model.fit_memory(batch)
    findings.append(check_scaling(model, batch))
    if utils_dist.get_world_size() > 1:
        watchdog.phase("check the gradients")
        findings.append(check_gradients(model, batch))
    return findings


# ---- The parts of the training ----------------------------------------------------------------


def make_parts(argv: list[str], findings: list[Finding]) -> tuple[Any, ModelVRT] | None:
    """Make the loader and the model of the training. Collective.

    The data need the options, and the network needs the options and the data. So the order is:
    options, data, network. If one of these parts cannot be made, the result is None, because the
    other checks need all three.

    argv: arguments of main_train_vrt.py.
    findings: gets a finding of each part that was tried.
    """

    def read_options() -> Any:
        opt = main_train_vrt.read_options(argv)
        # `for_ranks` sets the number of batches in a step by the number of ranks.
        return opt.for_ranks(utils_dist.get_world_size())

    opt = made_on_all_ranks(
        "options",
        make=read_options,
        in_words=options_in_words,
        findings=findings,
    )
    if opt is None:
        return None
    data = made_on_all_ranks(
        "data",
        make=partial(main_train_vrt.build_data, opt),
        in_words=data_in_words,
        findings=findings,
    )
    if data is None:
        return None
    loader, _ = data  # the test set is not needed
    model = made_on_all_ranks(
        "network",
        make=partial(make_model, opt),
        in_words=ModelVRT.describe,
        findings=findings,
    )
    if model is None:
        return None
    return loader, model


def made_on_all_ranks(
    check: str,
    make: Callable[[], Any],
    in_words: Callable[[Any], str],
    findings: list[Finding],
) -> Any:
    """Make a part of the training on each rank. Collective.

    Returns what `make` returns. If `make` fails on any rank, all ranks get None and must stop. E.g.
    if `make` fails on rank 1, rank 0 gets None, too, because rank 0 would wait forever for rank 1
    in the next collective.

    check: name of the finding, e.g. "data".
    make: function that makes the part, e.g. the network.
    in_words: function that describes the part in the finding, e.g. `data_in_words`.
    findings: gets the finding of this part, whether it was made or not.
    """
    watchdog.phase(f"check the {check}")
    part = None
    try:
        part = make()
        own_finding = Finding(OK, check, in_words(part))
    except SpikeVRTError as e:
        what = f"{e.what} (in {e.where})"
        own_finding = Finding(FAIL, check, what, why=e.expected, cure=e.do)
    findings_of_ranks = from_all_ranks([own_finding])
    findings += findings_of_ranks
    has_failed = any(finding.status == FAIL for finding in findings_of_ranks)
    return None if has_failed else part


def options_in_words(opt: Any) -> str:
    """Return that the options are valid, with the path of their file."""
    return f"{opt.opt_path} is valid"


def data_in_words(data: Any) -> str:
    """Return how much data there is. data: the loader, and the test set or None."""
    loader, test_set = data
    clips = [] if test_set is None else test_set.readers()
    samples = counted(loader.sampler.dataset_len, "training sample")
    return f"{samples}, {counted(len(clips), 'test clip')}"


def make_model(opt: Any) -> ModelVRT:
    """Return the model of a training that begins anew."""
    model = define_Model(opt)
    model.init_train(state=None)
    return model


# ---- The checks -------------------------------------------------------------------------------


def check_shards(loader: Any) -> Finding:
    """Return whether the ranks share the samples of an epoch well. Collective.

    The samples that one rank reads are its shard of the epoch. No sample may be in two shards, and
    all shards must have the same number of samples.

    loader: the loader of the training samples. Its `sampler` yields the shard of this rank.
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
        return Finding(
            FAIL,
            "shards",
            f"the ranks have the same samples, or unequally many; first samples {first_samples}",
            why="ranks would train twice on a sample, or wait for one another",
        )
    return Finding(
        OK,
        "shards",
        f"{counted(len(shard_of_this_rank), 'sample')} a rank and epoch, none twice; first samples "
        f"{first_samples}",
    )


def check_parameters(model: ModelVRT) -> Finding:
    """Return whether the networks of all ranks have the same weights. Collective."""
    digests = utils_dist.gather_objects(weights_hash(model.netG))
    if len(set(digests)) == 1:
        return Finding(OK, "parameters", f"hash {digests[0]} on all ranks")
    # All ranks draw their initial weights with the same seed, so different weights are a mistake.
    # But when DDP wraps the network, it gives the weights of rank 0 to all ranks. So the mistake
    # does no harm, and the finding is only a warning.
    return Finding(
        WARN,
        "parameters",
        f"hashes {digests}",
        why="weights that follow from train.manual_seed would be equal on all ranks; training "
        "still begins with equal weights, because DDP gives all ranks those of rank 0",
        cure="in your own network draw weights from torch's generator; give all hosts the same "
        "weights file",
    )


def check_loader(steps: Iterator[Any], batch: dict[str, Any]) -> Finding:
    """Return how many clips per second the loader reads on each rank. Collective.

    steps: the steps of an epoch after its first step. Each step is a list of its batches.
    batch: the first batch of the epoch. The finding says how many clips a batch has.
    """
    begin = time.perf_counter()
    clips = 0
    # A step has several batches if train.accumulation_steps is above 1.
    for step in itertools.islice(steps, TIMED_STEPS):
        for next_batch in step:
            clips += len(next_batch["key"])  # "key" has the name of each sample
    seconds = time.perf_counter() - begin
    # 0 if `steps` is empty, because the epoch has only its first step.
    rate = clips / seconds if clips else 0.0
    rates = utils_dist.gather_objects(rate)
    return Finding(
        OK,
        "loader",
        f"{min(rates):.1f} to {max(rates):.1f} clips/s a rank; a batch holds {len(batch['key'])}",
    )


def check_scaling(model: ModelVRT, batch: dict[str, Any]) -> Finding:
    """Return how much faster all ranks are than rank 0 alone. Collective.

    A step is timed twice: on rank 0 while the others wait, and on all ranks together. All ranks
    together also exchange the gradients. The efficiency is 1 if this exchange takes no time:

        efficiency = seconds alone / seconds together

    E.g. 1.0 s alone and 1.25 s together are an efficiency of 0.8: 8 ranks are 6.4 times as fast as
    one rank.

    batch: what the loader returned for one step.
    """
    on_device = model.to_device(batch)

    def step() -> None:
        # Forward and backward, without an update: the weights stay as they are.
        model.loss_terms(on_device)["loss"].backward()
        model.netG.zero_grad(set_to_none=True)

    world = utils_dist.get_world_size()  # number of ranks
    alone = seconds_alone(step, model.device)
    if world == 1:
        return Finding(OK, "step", f"{alone:.2f} s forward and backward")
    together = seconds_together(step, model)
    efficiency = alone / together
    is_cpu = devices.kind() == "cpu"
    shared_cores = " (ranks share the cores)" if is_cpu else ""
    speedup = efficiency * world  # how many times as fast as one rank
    what = (
        f"{speedup:.2f} x on {world} ranks ({efficiency:.0%}): a step takes "
        f"{alone:.2f} s alone, {together:.2f} s together{shared_cores}"
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


def seconds_alone(step: Callable[[], None], device: torch.device) -> float:
    """Time a step on rank 0 while the other ranks wait. All ranks get the result. Collective."""
    seconds = 0.0
    if utils_dist.is_main_process():
        seconds = seconds_of(step, device, TIMED_STEPS)
    utils_dist.barrier()  # the other ranks are idle until rank 0 has finished
    seconds_of_ranks = utils_dist.gather_objects(seconds)
    return seconds_of_ranks[0]


def seconds_together(step: Callable[[], None], model: ModelVRT) -> float:
    """Time a step of all ranks, with the exchange of gradients. Collective.

    step: a forward and a backward pass of model.netG. Returns the time of the slowest rank.
    """
    # Wrapped in DDP, the network exchanges gradients in each backward pass. Take the wrapper off
    # afterwards, because the next check wraps the network itself.
    net = unwrap_ddp(model.netG)
    model.netG = model.wrap(net)
    seconds_of_ranks = utils_dist.gather_objects(seconds_of(step, model.device, TIMED_STEPS))
    model.netG = net
    return max(seconds_of_ranks)


def check_gradients(model: ModelVRT, batch: dict[str, Any]) -> Finding:
    """Return whether the ranks together get the gradients of one process. Collective.

    Each rank computes the gradients twice, and both results must be equal:

        expected    without DDP, from the batches of all ranks
        actual      with DDP, from its own batch: DDP averages the gradients of all ranks

    Both computations are in float64, so that rounding does not hide an error.
    """
    # double() and eval() change the network in place. The check of the gradients is the last check,
    # so no other check uses the changed network. eval() turns dropout off, because dropout would
    # drop other neurons in each computation.
    net = unwrap_ddp(model.netG).double().eval()
    tensors = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}
    batches_of_ranks = utils_dist.gather_objects(tensors)
    batch_of_this_rank = batches_of_ranks[utils_dist.get_rank()]

    # DDP gives the weights of rank 0 to all ranks. The computation without DDP must have the same
    # weights, so broadcast them here.
    model.netG = net
    for parameter in net.parameters():
        dist.broadcast(parameter.data, src=0)
    expected = gradients_of_mean_loss(model, batches_of_ranks)
    model.netG = model.wrap(net)
    actual = gradients_of_mean_loss(model, [batch_of_this_rank])

    largest_difference = (actual - expected).abs().max()
    error = float(largest_difference / expected.abs().max())
    worst = max(utils_dist.gather_objects(error))
    if worst < LARGEST_DIFFERENCE:
        return Finding(
            OK,
            "gradients",
            f"{len(batches_of_ranks)} ranks agree with one process: {worst:.0e} relative",
        )
    return Finding(
        FAIL,
        "gradients",
        f"differ from one process by {worst:.0e} (relative)",
        why="the network would train wrongly",
        cure="set find_unused_parameters; see docs/ddp_reference.md",
    )


def gradients_of_mean_loss(model: ModelVRT, batches: list[dict[str, Any]]) -> torch.Tensor:
    """Return the gradients of the mean loss of some batches, as one vector.

    The network of the model computes them, with or without DDP.
    """
    for batch in batches:
        in_float64 = {key: value.double() for key, value in batch.items()}
        loss = model.loss_terms(model.to_device(in_float64))["loss"] / len(batches)
        loss.backward()  # adds to the gradients of the batches before
    net = unwrap_ddp(model.netG)
    parts = []
    for parameter in net.parameters():
        if parameter.grad is not None:  # a frozen parameter has no gradient
            parts.append(parameter.grad.flatten())
    vector = torch.cat(parts)
    net.zero_grad(set_to_none=True)
    return vector
