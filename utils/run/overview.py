"""What a run trains on what, in a few lines for the start of its log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from utils.options.models import Options, TrainOptions


@dataclass(frozen=True)
class RunLength:
    """total_iter: planned steps of the whole run. samples: of an epoch."""

    total_iter: int
    steps_per_epoch: int
    samples: int


def overview(
    opt: Options, devices: Sequence[tuple[str, str]], network: str, length: RunLength, test_clips: int
) -> list[str]:
    """Lines on task and results, ranks, data, batch, network, and schedule.

    devices: (host, device) of every rank. network: its description. test_clips: 0 without a test split.
    """
    return [
        f"Task:     {opt.task} ({opt.opt_path}), results in {opt.folder}",
        f"Ranks:    {_ranks(devices)}",
        f"Data:     {_data(opt, length, test_clips)}",
        f"Batch:    {_batch(opt, len(devices))}",
        f"Network:  {network}",
        f"Schedule: {_schedule(opt.train, length, test_clips)}",
    ]


def _ranks(devices: Sequence[tuple[str, str]]) -> str:
    hosts = len({host for host, _ in devices})
    kinds = ", ".join(f"{count} x {device}" for device, count in Counter(device for _, device in devices).items())
    return f"{len(devices)} on {hosts} host{'s' * (hosts > 1)}: {kinds}"


def _data(opt: Options, length: RunLength, test_clips: int) -> str:
    section = opt.datasets.train.plain()
    spike = section.get("spike")
    kind = spike.get("representation") if isinstance(spike, dict) else None
    name = kind["type"] if isinstance(kind, dict) else kind
    channels = opt.spike_channels
    spikes = f"spikes as {channels} channels" + (f" ({name})" if name else "") if channels else "no spikes"
    crop = [section.get(key) for key in ("num_frame", "gt_size")]
    size = f" of {crop[0]} frames, {crop[1]} x {crop[1]}" if all(crop) else ""
    test = f"{test_clips} test clips" if test_clips else "no test clips"
    return f"{length.samples:,} samples an epoch{size}; {spikes}; {test}"


def _batch(opt: Options, ranks: int) -> str:
    section, accumulated = opt.datasets.train, opt.train.accumulation_steps
    total = section.dataloader_batch_size * ranks * accumulated
    return (
        f"{section.dataloader_batch_size} a rank x {ranks} ranks x {accumulated} accumulated = {total}; "
        f"{section.dataloader_num_workers * ranks} loader workers in all"
    )


def _schedule(train: TrainOptions, length: RunLength, test_clips: int) -> str:
    epochs = -(-length.total_iter // length.steps_per_epoch)
    warmup = f" after {train.G_warmup_iter:,} steps of warm-up" if train.G_warmup_iter else ""
    validate = f"validate every {train.checkpoint_test:,}, " if test_clips else ""
    return (
        f"{length.total_iter:,} steps, {epochs:,} epochs of {length.steps_per_epoch:,}; {train.G_optimizer_type} "
        f"lr {train.G_optimizer_lr:g}{warmup}, {train.G_scheduler_type}; log every {train.checkpoint_print:,}, "
        f"{validate}save every {train.checkpoint_save:,}"
    )
