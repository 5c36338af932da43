"""Say which options make a training step smaller, after a step ran out of memory.

`out_of_memory_error` makes the error, and `suggest_changes` makes its option lines. The first lines
change the result least.

What must stay: each line is accepted on the command line, and makes the step smaller.
tests/parts/models/test_memory_advice.py checks the lines. Free to change: the texts, and which
changes are proposed.
"""

import torch

from utils import device as devices
from utils import utils_dist
from utils.contract import InputSpec
from utils.dist import gpu
from utils.errors import SpikeVRTError
from utils.options.loader_options import LoaderOptions
from utils.options.section import Section
from utils.options.train_options import TrainOptions


def out_of_memory_error(
    where: str,
    device: torch.device,
    train: TrainOptions,
    data: LoaderOptions | None,
    netG: Section,
    spec: InputSpec,
) -> SpikeVRTError:
    """Make the error for a training step that ran out of memory, with options for a smaller step.

    where: the step, for the error.
    device: the rank's GPU.
    train: the section `train` of the options.
    data: datasets.train, or None in a notebook without datasets.
    netG: the options of the network.
    spec: what the network requires of its clips.
    """
    peak_gb = devices.peak_gb(device)
    peak = "" if peak_gb is None else f", {peak_gb:.1f} GB at the peak"
    lines = suggest_changes(train, data, netG, spec)
    if not lines:
        lines = ["take a smaller network, or a GPU with more memory"]
    if gpu.is_cuda(device):
        # Fragmentation is free memory in pieces that are too small for the next tensor.
        lines.append(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment, against "
            "fragmentation"
        )
    # The lines are printed below one another, indented like the text of `SpikeVRTError.__str__`,
    # which begins after 12 characters ("  do        ").
    indent = " " * 12
    advice = "choose one of these, or several:"
    for line in lines:
        advice += f"\n{indent}{line}"
    return SpikeVRTError(
        what=f"out of memory on rank {utils_dist.get_rank()}{peak}",
        where=where,
        expected=f"a step within the {devices.total_gb(device):.1f} GB of the device, less what "
        "other processes use",
        do=advice,
    )


def suggest_changes(
    train: TrainOptions, data: LoaderOptions | None, netG: Section, spec: InputSpec
) -> list[str]:
    """Return option lines that make a training step smaller, e.g. "train.amp.enable=true".

    The first lines change the result least.

    data: datasets.train, or None in a notebook without datasets.
    spec: what the network requires.
    """
    changes = [
        _fewer_clips_at_a_time(train, data),
        _checkpointing_everywhere(netG),
        "" if train.amp.enable else "train.amp.enable=true",  # changes the numbers a little
        _smaller_crops(data, spec),
        _one_frame_less(data, spec),
    ]
    return [change for change in changes if change]  # "": this change is not possible


def _fewer_clips_at_a_time(train: TrainOptions, data: LoaderOptions | None) -> str:
    """Return the options for a smaller batch and more micro-batches, or "" for a batch of one clip.

    E.g. a batch of 9 clips becomes 3 clips, with three times the number of micro-batches. The
    product of both numbers stays, so the step stays the same. If train.global_batch_size is set,
    the program chooses the number of micro-batches: a step has train.global_batch_size clips, or
    the nearest number that is possible.
    """
    batch = 1 if data is None else data.dataloader_batch_size
    if batch <= 1:
        return ""
    # The largest divisor of the batch that is at most half of it. E.g. 3 for a batch of 9, because
    # 4 does not divide 9.
    fewer = batch // 2
    while batch % fewer != 0:
        fewer -= 1
    fewer_at_a_time = f"datasets.train.dataloader_batch_size={fewer}"
    if train.global_batch_size is not None:
        # The number of micro-batches follows from this option (Options.for_ranks).
        return fewer_at_a_time
    # E.g. 2 micro-batches of 9 clips become 2 * 9 // 3 = 6 micro-batches of 3 clips.
    micro_batches = train.accumulation_steps * batch // fewer
    return f"{fewer_at_a_time} train.accumulation_steps={micro_batches}"


def _checkpointing_everywhere(netG: Section) -> str:
    """Return the options with which backward recomputes every branch, or "" if they are set.

    The results stay the same, but a step takes more time. A branch is the attention or the MLP of a
    block of VRT. For another network the result is "", because its options lack these keys.
    """
    keys = []
    # Two keys switch the recomputation on. Two keys list stages without recomputation.
    for key in ("use_checkpoint_attn", "use_checkpoint_ffn"):
        if getattr(netG, key, None) is False:
            keys.append(f"netG.{key}=true")
    for key in ("no_checkpoint_attn_blocks", "no_checkpoint_ffn_blocks"):
        if getattr(netG, key, []):
            keys.append(f"netG.{key}=[]")
    return " ".join(keys)


def _smaller_crops(data: LoaderOptions | None, spec: InputSpec) -> str:
    """Return the option for crops of at most three quarters of the side.

    The side is rounded down to a multiple that the network takes. Returns "" if such crops are too
    small for the network.
    """
    # Side of the input, in pixels. Without datasets or without the key gt_size, the side is 0, so
    # the result is "".
    side = getattr(data, "gt_size", 0) // spec.scale
    smaller_side = side * 3 // 4
    smaller_side -= smaller_side % spec.multiple
    if smaller_side < max(spec.least_size):
        return ""
    return f"datasets.train.gt_size={smaller_side * spec.scale}"


def _one_frame_less(data: LoaderOptions | None, spec: InputSpec) -> str:
    """Return the option for one frame less, or "" if the clips are too short.

    The clip keeps at least one frame more than the network requires, so that the attention between
    frames has several frames. A network that interpolates needs a fixed number of frames.
    """
    fewer_frames = getattr(data, "num_frame", 0) - 1
    if fewer_frames <= spec.least_frames or spec.interpolates:
        return ""
    return f"datasets.train.num_frame={fewer_frames}"
