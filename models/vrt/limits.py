"""Checks of a VRT's options and input clips, with errors that name the option key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from utils.contract import InputSpec
from utils.errors import DataError, OptionError

# The U-net halves height and width three times.
UNET_MULTIPLE = 8


def vrt_input_spec(o: dict[str, Any], image_channels: int, spike_channels: int) -> InputSpec:
    """Requirements on the input of a VRT with arguments `o`. Mutual attention needs a whole window at 1/8 scale."""
    window, mutual = o["window_size"], int(o["depths"][3] * o["mul_attn_ratio"]) > 0
    least = (UNET_MULTIPLE * window[1], UNET_MULTIPLE * window[2]) if mutual else (UNET_MULTIPLE, UNET_MULTIPLE)
    interpolates = o["pa_frames"] == 0
    frames = o["img_size"][0] if interpolates else max(2 if mutual else 1, o["pa_frames"] // 2 + 1)
    return InputSpec(
        UNET_MULTIPLE, tuple(window), least, frames, o["upscale"], image_channels, o["nonblind_denoising"],
        spike_channels, interpolates, o["out_instants"],
    )  # fmt: skip


def check_options(o: dict[str, Any], image: int) -> None:
    """Raise OptionError, naming the key of netG, if the arguments `o` of VRT do not fit together.

    image: image channels per frame.
    """
    if o["kernels"] == "triton":
        raise OptionError(
            'netG.kernels is "triton", and the Triton kernels were removed: no GPU has run them; history keeps them at '
            "commit b504aba", "netG.kernels", '"auto" or "plain"', 'set netG.kernels to "auto"',
        )  # fmt: skip
    depths, dims, heads = o["depths"], o["embed_dims"], o["num_heads"]
    _need(len(depths) >= 8, "depths", f"{len(depths)} entries", "7 stages and at least one layer of stage 8")
    for key, values in (("embed_dims", dims), ("num_heads", heads)):
        _need(len(values) == len(depths), key, f"{len(values)} entries", f"{len(depths)}, as many as depths")
        _need(min(values) >= 1, key, f"{values}", "positive integers")
    _need(min(depths) >= 0, "depths", f"{depths}", "integers >= 0")
    for key in ("window_size", "img_size"):
        _need(len(o[key]) == 3 and min(o[key]) >= 1, key, f"{o[key]}", "[frames, height, width]")
    for key in ("indep_reconsts", "no_checkpoint_attn_blocks", "no_checkpoint_ffn_blocks"):
        first = 7 if key == "indep_reconsts" else 0  # its indices are layers of stage 8
        is_inside = all(first <= i < len(depths) for i in o[key])
        _need(is_inside, key, f"{o[key]}", f"indices into depths, {first} to {len(depths) - 1}")
    for i, (dim, head) in enumerate(zip(dims, heads, strict=True)):
        _need(dim % head == 0, f"embed_dims[{i}]", f"{dim}", f"a multiple of num_heads[{i}] = {head}")
        mutual = i < 7 and int(depths[i] * o["mul_attn_ratio"]) > 0
        # The positions of mutual attention are sine/cosine pairs, half the channels for rows, half for columns.
        _need(not mutual or dim % 4 == 0, f"embed_dims[{i}]", f"{dim}", "a multiple of 4, for mutual attention")
    for i in (3, 4, 5):
        _need(dims[i] % 4 == 0, f"embed_dims[{i}]", f"{dims[i]}", "a multiple of 4: the next stage unfolds 2x2 patches")
    for late, early in ((4, 2), (5, 1), (6, 0)):
        expected = f"{dims[early]} = embed_dims[{early}], because of the skip connection"
        _need(dims[late] == dims[early], f"embed_dims[{late}]", f"{dims[late]}", expected)
    _need(len(set(dims[7:])) == 1, "embed_dims", f"{dims[7:]} in stage 8", "one width for all layers of stage 8")
    if o["checkpoint"] == "auto" and o["memory_budget_gb"] is None and not torch.cuda.device_count():
        raise OptionError(
            'netG.checkpoint is "auto" without netG.memory_budget_gb', "netG.memory_budget_gb",
            "a number of gigabytes; it has a default on a GPU only", "set netG.memory_budget_gb",
        )  # fmt: skip
    upscale = o["upscale"]
    power = upscale > 0 and upscale & (upscale - 1) == 0
    _need(upscale == 3 or power, "upscale", f"{upscale}", "1, 3 or a power of two")
    _need(o["pa_frames"] in (0, 2, 4, 6), "pa_frames", f"{o['pa_frames']}", "0, 2, 4 or 6")
    instants = o["out_instants"]
    is_odd = instants >= 1 and instants % 2 == 1
    _need(is_odd, "out_instants", f"{instants}", "an odd number: the middle instant is that of gt")
    if o["pa_frames"]:
        _check_alignment(o, image)
        _check_flow_input(o)
    else:
        _need(o["flow_input"] == "rgb", "flow_input", f"{o['flow_input']!r}", '"rgb": pa_frames 0 has no flow')
        _need(o["out_chans"] % 3 == 0, "out_chans", f"{o['out_chans']}", "a multiple of 3 if pa_frames is 0")
        _need(not o["nonblind_denoising"], "nonblind_denoising", "true with pa_frames 0", "false, or pa_frames > 0")
        _need(instants == 1, "out_instants", f"{instants} with pa_frames 0", "1, or pa_frames > 0")


def _check_alignment(o: dict[str, Any], image: int) -> None:
    distance, groups = o["pa_frames"] // 2, o["deformable_groups"]  # distance: of the farthest aligned neighbour
    _need(groups >= 1, "deformable_groups", f"{groups}", "an integer >= 1")
    for i, dim in enumerate(o["embed_dims"][:7]):
        _need(dim % distance == 0, f"embed_dims[{i}]", f"{dim}", f"a multiple of {distance} = pa_frames / 2")
        total = distance * dim
        expected = f"a divisor of {total} = pa_frames / 2 * embed_dims[{i}]"
        _need(total % groups == 0, "deformable_groups", f"{groups}", expected)
    expected = f"a multiple of {distance} = pa_frames / 2"
    _need(18 * groups % (2 * distance) == 0, "deformable_groups", f"{groups}", expected)
    _need(image == 1 or image >= 3, "in_chans", f"{image}", "1 (gray) or at least 3 (RGB first)")
    base = min(image, 3)
    expected = f"{base}: the output is added to the first {base} input channels"
    _need(base in (1, o["out_chans"]), "out_chans", f"{o['out_chans']}", expected)


def _check_flow_input(o: dict[str, Any]) -> None:
    channels, count = o["flow_channels"], o["spike_channels"]
    if o["flow_input"] != "rgb" and count < 1:
        raise OptionError(
            f"netG.flow_input is {o['flow_input']!r}, but the data has no spike channels", "netG.flow_input",
            'a dataset with spikes, or "rgb"', "choose an RGB+spike dataset, or set netG.flow_input to rgb",
        )  # fmt: skip
    if channels is not None:
        _need(o["flow_input"] != "rgb", "flow_channels", f'{channels} with flow_input "rgb"', "null")
        is_inside = bool(channels) and all(0 <= i < count for i in channels)
        _need(is_inside, "flow_channels", f"{channels}", f"indices of spike channels, 0 to {count - 1}")


def _need(holds: bool, key: str, got: str, expected: str) -> None:
    if not holds:
        raise OptionError(f"netG.{key} is {got}", f"netG.{key}", expected, f"correct netG.{key}")


def check_input(x: Tensor, spec: InputSpec) -> None:
    """Raise DataError if a network with this spec cannot take the clip x (B, N, C, H, W)."""
    shape, channels = f"a clip of shape {tuple(x.shape)}", spec.image_channels + int(spec.noise_map)
    if x.dim() != 5 or x.shape[2] != channels:
        raise DataError(shape, "forward(lq, spike)", f"(B, N, {channels}, H, W)", "check in_chans, fusion and the data")
    frames, (height, width), (least_height, least_width) = x.shape[1], x.shape[3:], spec.least_size
    if frames < spec.least_frames:
        expected, do = f"at least {spec.least_frames} frames", "use a longer clip, or extend it by mirrored frames"
    elif height % spec.stride or width % spec.stride:
        expected = f"height and width that are multiples of {spec.stride}"
        do = "crop the clip, or pad it by reflection and crop the result"
    elif height < least_height or width < least_width:
        expected = f"at least {least_height} x {least_width} pixels: 8 times the attention window"
        do = "use larger crops or tiles, or a smaller netG.window_size"
    else:
        return
    raise DataError(shape, "forward(lq, spike)", expected, do)
