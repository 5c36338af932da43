"""Refuse arguments of VRT that do not fit together, and name the key of netG that is wrong.

Each rule is a call of `_need`, at the end of this file:

    _need(groups >= 1, "deformable_groups", groups, "an integer >= 1")

For 0 groups the error says "netG.deformable_groups is 0", expected "an integer >= 1". The first
broken rule raises the error, so the order of the calls decides which key the user sees first.

What must stay: arguments are refused if the network cannot be built or cannot run with them.
tests/parts/models/test_vrt_requirements.py has wrong values for most of the rules. Free to change:
the texts.
"""

from typing import Any

from models.vrt.design import Design
from utils import device as devices
from utils.errors import OptionError

# A network with pa_frames 0 makes new frames of three channels, and adds the mean of each input
# channel to them. So it takes input frames of one or three channels.
CHANNELS_OF_NEW_FRAMES = (1, 3)
EXPECTED_FOR_NEW_FRAMES = "1 or 3 channels: their mean is added to the new frames"


def refuse_fusion_for_new_frames(fusion: str, trunk_channels: int, has_in_chans: bool) -> None:
    """Raise OptionError if a fusion operator does not fit a network with pa_frames 0.

    VRT calls this function before `Fusion.channels`, because `Fusion.channels` would advise another
    in_chans. This advice would not help, because the operator itself does not fit.

    fusion: name of the operator.
    trunk_channels: number of channels per frame that the operator gives if the option file leaves
        in_chans out.
    has_in_chans: whether the option file has in_chans.
    """
    if trunk_channels in CHANNELS_OF_NEW_FRAMES:
        return
    # A different operator gives a different number of channels, so in_chans cannot stay.
    first = "remove netG.in_chans; then " if has_in_chans else ""
    raise OptionError(
        what=f"netG.fusion {fusion} gives {trunk_channels} channels of a frame with pa_frames 0",
        where="netG.fusion",
        expected=EXPECTED_FOR_NEW_FRAMES,
        do=f'{first}set netG.fusion to "none" or "gated"; or, to restore the given frames, set '
        "netG.pa_frames to 2, 4 or 6",
    )


def check_arguments(design: Design, image_channels: int, trunk_channels: int) -> None:
    """Raise OptionError, naming the key of netG, if the arguments of VRT do not fit together.

    image_channels: number of image channels per frame.
    trunk_channels: number of channels per frame that the fusion operator passes to the network.

    Call `refuse_fusion_for_new_frames` before this function.
    """
    _check_lists(design)
    _check_widths(design)
    if design.checkpoint == "auto" and design.memory_budget_gb is None:
        # Count the GPUs only in this case. Counting may initialise the driver of the GPU, and the
        # driver must not be initialised before the process forks.
        _need(
            devices.count() > 0,
            "memory_budget_gb",
            'null with checkpoint "auto"',
            "gigabytes; it has a default on a GPU only",
        )
    upscale = design.upscale
    is_power_of_two = upscale >= 1 and upscale.bit_count() == 1  # e.g. 4 is 100 in binary
    _need(upscale == 3 or is_power_of_two, "upscale", upscale, "1, 3 or a power of two")
    pa_frames = design.pa_frames
    _need(pa_frames in (0, 2, 4, 6), "pa_frames", pa_frames, "0, 2, 4 or 6")
    instants = design.out_instants
    _need(
        instants >= 1 and instants % 2 == 1,
        "out_instants",
        instants,
        "an odd number: the middle instant is the instant of gt",
    )
    if pa_frames > 0:
        _check_alignment(design, image_channels)
    else:
        _check_interpolation(design, trunk_channels)


def _check_lists(design: Design) -> None:
    """Check the lengths and entries of the lists."""
    depths = design.depths
    _need(
        len(depths) >= 8,
        "depths",
        f"{len(depths)} entries",
        "7 stages and at least one layer of stage 8",
    )
    for key in ("embed_dims", "num_heads"):
        values = getattr(design, key)
        as_many = f"{len(depths)}, as many as depths"
        _need(len(values) == len(depths), key, f"{len(values)} entries", as_many)
        _need(min(values) >= 1, key, values, "positive integers")
    _need(min(depths) >= 0, "depths", depths, "integers >= 0")
    for key in ("window_size", "img_size"):
        sizes = getattr(design, key)
        is_valid = len(sizes) == 3 and min(sizes) >= 1
        _need(is_valid, key, sizes, "[frames, height, width]")
    # The entries of these lists are indices into depths. indep_reconsts may name only layers of
    # stage 8, which begin at index 7.
    last = len(depths) - 1
    for key in ("indep_reconsts", "no_checkpoint_attn_blocks", "no_checkpoint_ffn_blocks"):
        first = 7 if key == "indep_reconsts" else 0
        indices = getattr(design, key)
        is_inside = all(first <= index <= last for index in indices)
        _need(is_inside, key, indices, f"indices into depths, {first} to {last}")


def _check_widths(design: Design) -> None:
    """Check the channels of each stage."""
    dims = design.embed_dims
    heads = design.num_heads
    for i, dim in enumerate(dims):
        key = f"embed_dims[{i}]"
        _need(dim % heads[i] == 0, key, dim, f"a multiple of num_heads[{i}] = {heads[i]}")
        # Mutual attention adds a table to its channels (`sine_positions`): sines and cosines of the
        # row, and as many of the column. So the number of channels must be a multiple of 4.
        has_mutual = i < 7 and design.mutual_depth(i) > 0  # stage 8 has no mutual attention
        if has_mutual:
            _need(dim % 4 == 0, key, dim, "a multiple of 4, for mutual attention")
    # The stages 5, 6, 7 begin by unfolding each pixel into a patch of 2x2 pixels, with a quarter of
    # the channels. So the stages before them, whose indices are 3, 4, 5, need a multiple of 4.
    for i in (3, 4, 5):
        expected = "a multiple of 4: the next stage unfolds 2x2 patches"
        _need(dims[i] % 4 == 0, f"embed_dims[{i}]", dims[i], expected)
    # The outputs of stages 5, 6, 7 are added to the outputs of stages 3, 2, 1. Stage 1 is index 0.
    for late, early in ((4, 2), (5, 1), (6, 0)):
        expected = f"{dims[early]} = embed_dims[{early}], because of the skip connection"
        _need(dims[late] == dims[early], f"embed_dims[{late}]", dims[late], expected)
    widths_of_stage8 = dims[7:]
    _need(
        len(set(widths_of_stage8)) == 1,
        "embed_dims",
        f"{widths_of_stage8} in stage 8",
        "one width for all layers of stage 8",
    )


def _check_alignment(design: Design, image_channels: int) -> None:
    """Check the options of a network that aligns neighbours."""
    # One half of the neighbours is earlier than the frame, the other half is later. Each half has
    # this number of neighbours. The neighbours of a half are aligned together.
    on_either_side = design.aligned_neighbours
    multiple_of_neighbours = f"a multiple of {on_either_side} = pa_frames / 2"
    groups = design.deformable_groups
    _need(groups >= 1, "deformable_groups", groups, "an integer >= 1")
    for i, dim in enumerate(design.embed_dims[:7]):
        _need(dim % on_either_side == 0, f"embed_dims[{i}]", dim, multiple_of_neighbours)
        # The channels of the neighbours on one side are divided into groups.
        aligned_channels = on_either_side * dim
        divisor = f"a divisor of {aligned_channels} = pa_frames / 2 * embed_dims[{i}]"
        _need(aligned_channels % groups == 0, "deformable_groups", groups, divisor)
    # Each group has 9 offsets (dy, dx), one per point of a 3x3 kernel (deform_conv.TAPS). All
    # offsets are divided equally among the neighbours on one side. E.g. pa_frames 4: 2 neighbours
    # on a side, so 9 * groups must be even.
    offsets = 9 * groups
    has_whole_offsets = offsets % on_either_side == 0
    _need(has_whole_offsets, "deformable_groups", groups, multiple_of_neighbours)

    is_gray_or_rgb = image_channels == 1 or image_channels >= 3
    _need(is_gray_or_rgb, "in_chans", image_channels, "1 (gray) or at least 3 (RGB first)")
    # The output is added to gray or RGB frames. A gray frame is added to each output channel.
    base_channels = min(image_channels, 3)
    out_chans = design.out_chans
    expected = f"{base_channels}: the output is added to the first {base_channels} input channels"
    _need(base_channels in (1, out_chans), "out_chans", out_chans, expected)


def _check_interpolation(design: Design, trunk_channels: int) -> None:
    """Check the options of a network that makes new frames (pa_frames 0).

    `refuse_fusion_for_new_frames` has refused fusion operators that do not fit. So only in_chans
    can still give a wrong number of channels.
    """
    got = f"{trunk_channels} channels of a frame with pa_frames 0"
    _need(trunk_channels in CHANNELS_OF_NEW_FRAMES, "in_chans", got, EXPECTED_FOR_NEW_FRAMES)
    # Each new frame has three channels.
    out_chans = design.out_chans
    _need(out_chans % 3 == 0, "out_chans", out_chans, "a multiple of 3 if pa_frames is 0")
    _need(
        not design.nonblind_denoising,
        "nonblind_denoising",
        "true with pa_frames 0",
        "false, or pa_frames > 0",
    )
    instants = design.out_instants
    _need(instants == 1, "out_instants", f"{instants} with pa_frames 0", "1, or pa_frames > 0")


def _need(is_valid: bool, key: str, got: Any, expected: str) -> None:
    """Raise OptionError for netG.<key> if the value is not valid.

    got: the value, or a description of it, e.g. "7 entries".
    expected: which values are valid.
    """
    if not is_valid:
        raise OptionError(
            what=f"netG.{key} is {got}",
            where=f"netG.{key}",
            expected=expected,
            do=f"correct netG.{key}",
        )
