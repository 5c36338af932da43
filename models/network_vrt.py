"""VRT, the Video Restoration Transformer (Liang et al., arXiv 2201.12288), on RGB or RGB + spike
clips.

Written from a description of the published network's arithmetic; released weights load by name.
This file connects the parts, which are in models/vrt/ and models/fusion/.
"""

import logging
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import portable
from models.fusion.operators import FUSIONS
from models.select_network import NETWORKS
from models.vrt.block import Block, RefineLayer, Stage
from models.vrt.chunks import Kernels
from models.vrt.fit_memory import fit_memory
from models.vrt.flow import Flows, SpyNet, aligned_input, estimate_flows
from models.vrt.forms import in_cpu_form
from models.vrt.layers import FrameConv, LayerNorm, tf32
from utils import device as devices
from utils import utils_dist
from utils.contract import InputSpec
from utils.errors import PUBLISHED, DataError, OptionError

logger = logging.getLogger(__name__)

# How stages 1 to 7 change the resolution at their entry, and how much smaller than the input they
# then work.
KINDS = ("none", "down", "down", "down", "up", "up", "up")
STAGE_SCALES = (1, 2, 4, 8, 4, 2, 1)
# KAIR's scripts download this file; where it is missing, the weights that this project ships stand
# in.
PUBLISHED_FLOW = "model_zoo/vrt/spynet_sintel_final-3d2a1287.pth"
OWN_FLOW = Path(__file__).parent / "vrt/spynet_scenes.pth"
# Share of a GPU's memory that a step may use with checkpoint "auto" and no budget.
GPU_SHARE = 0.9
# The U-net halves height and width three times.
UNET_MULTIPLE = 8


@NETWORKS.register("vrt", given=("spike_channels",))
class VRT(nn.Module):
    """Restores all frames of a clip together: (B, N, C, H, W) in [0, 1] -> (B, N, out_chans, sH,
    sW).

    upscale: 1 (restoration), 3 or a power of two (super-resolution). in_chans: input channels of
    the trunk, without a noise map (null: those of the fusion operator). img_size: its first number
    is the clip length if pa_frames is 0.
    window_size: [frames, height, width] of an attention window. depths, embed_dims, num_heads:
    entries 0 to 6 are stages 1 to 7, the rest the layers of stage 8. indep_reconsts: layers that
    process each frame separately.
    mul_attn_ratio: share of blocks with mutual attention. pa_frames: neighbours that are aligned,
    2, 4 or 6; 0: frame interpolation. spynet_path: weights of the flow network; null starts from
    zero flow.
    use_checkpoint_attn, use_checkpoint_ffn: recompute this branch of every block in backward,
    except in the stages of no_checkpoint_attn_blocks, no_checkpoint_ffn_blocks (indices into
    depths). checkpoint: "auto" chooses the recomputed branches so that a step fits memory_budget_gb
    (null: 90 % of the GPU); null: the four keys above decide. kernels: "auto" runs blocks in chunks
    that backward recomputes, "plain" as a whole under torch's autograd.
    fusion: how the spikes enter. out_instants: K sharp frames for each blurry one, at the middles
    of K equal parts of the exposure; K is odd. 1: as published.

    With out_instants K the output is (B, N, K out_chans, sH, sW) in the order of time; the middle
    one is the frame of gt.
    """

    # Options of former versions, which weights files still name -> their only value that has a
    # meaning today.
    GONE: ClassVar[dict[str, Any]] = {"flow_input": "rgb", "flow_channels": None}

    def __init__(
        self,
        upscale: int = 4,
        in_chans: int | None = None,
        out_chans: int = 3,
        img_size: list[int] = [6, 64, 64],  # noqa: B006 - never modified; option files hold lists
        window_size: list[int] = [6, 8, 8],  # noqa: B006
        depths: list[int] = [8] * 7 + [4] * 6,
        indep_reconsts: list[int] = [11, 12],  # noqa: B006
        embed_dims: list[int] = [120] * 7 + [180] * 6,
        num_heads: list[int] = [6] * 13,
        mul_attn_ratio: float = 0.75,
        mlp_ratio: float = 2.0,
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        drop_path_rate: float = 0.2,
        spynet_path: str | None = None,
        pa_frames: Literal[0, 2, 4, 6] = 2,
        deformable_groups: int = 16,
        nonblind_denoising: bool = False,
        use_checkpoint_attn: bool = False,
        use_checkpoint_ffn: bool = False,
        no_checkpoint_attn_blocks: list[int] = [],  # noqa: B006
        no_checkpoint_ffn_blocks: list[int] = [],  # noqa: B006
        checkpoint: Literal["auto"] | None = None,
        memory_budget_gb: float | None = None,
        kernels: Kernels = "auto",
        fusion: Annotated[dict[str, Any] | str, FUSIONS] = "none",
        out_instants: int = 1,
        spike_channels: int = 0,
    ) -> None:
        super().__init__()
        options = {
            key: value for key, value in locals().items() if key not in ("self", "__class__")
        }
        fusion_options = FUSIONS.resolve(fusion, "netG.fusion")
        self.image_chans, in_chans = fusion_options.constructor.channels(in_chans, spike_channels)
        check_options(options, self.image_chans)
        self.is_fitted, self.memory_budget_gb = checkpoint != "auto", memory_budget_gb
        self.notes: list[str] = []  # messages about this network for the training log
        self.upscale, self.in_chans, self.out_chans = upscale, in_chans, out_instants * out_chans
        self.out_instants = out_instants
        self.pa_frames, self.nonblind = pa_frames, nonblind_denoising
        needed = spike_channels if fusion_options.constructor.needs_spikes else 0
        self.input_spec: InputSpec = vrt_input_spec(options, self.image_chans, needed)

        trunk_inputs = in_chans * 9 + int(nonblind_denoising) if pa_frames else in_chans
        self.conv_first = FrameConv(trunk_inputs, embed_dims[0])
        if pa_frames:
            self.spynet = SpyNet()
        self._build(options)
        widths = [embed_dims[0], *embed_dims[:7]]
        self.fusion = FUSIONS.build(
            fusion_options, "netG.fusion", spike_channels=spike_channels, feature_channels=widths
        )
        self._init_for_scratch(spynet_path)

    def _build(self, o: dict[str, Any]) -> None:
        depths, dims, heads, window = (
            o["depths"],
            o["embed_dims"],
            o["num_heads"],
            tuple(o["window_size"]),
        )
        rates = torch.linspace(0, o["drop_path_rate"], sum(depths), device="cpu").tolist()
        rates = [rates[sum(depths[:i]) : sum(depths[: i + 1])] for i in range(len(depths))]
        blocks = [
            {key: o[key] for key in ("mlp_ratio", "qkv_bias", "qk_scale", "kernels")}
            for _ in depths
        ]
        for i, part in product(range(len(depths)), ("attn", "ffn")):
            skips = i in o[f"no_checkpoint_{part}_blocks"]
            blocks[i][f"checkpoint_{part}"] = o[f"use_checkpoint_{part}"] and not skips
        for i, (kind, scale) in enumerate(zip(KINDS, STAGE_SCALES, strict=True)):
            stage = Stage(
                kind,
                dims[i - 1] if i else dims[0],
                dims[i],
                depths[i],
                heads[i],
                window,
                int(depths[i] * o["mul_attn_ratio"]),
                rates[i],
                o["pa_frames"],
                o["deformable_groups"],
                scale,
                **blocks[i],
            )
            self.add_module(f"stage{i + 1}", stage)
        entry = nn.Sequential(nn.Identity(), LayerNorm(dims[6]), nn.Linear(dims[6], dims[7]))
        self.stage8 = nn.ModuleList([entry])
        for i in range(7, len(depths)):
            own = (1, *window[1:]) if i in o["indep_reconsts"] else window
            self.stage8.append(
                RefineLayer(dims[i], depths[i], heads[i], own, rates[i], **blocks[i])
            )
        self.norm = LayerNorm(dims[-1])
        self.conv_after_body = nn.Linear(dims[-1], dims[0])
        if not self.pa_frames:
            self.linear_fuse = nn.Conv2d(dims[0] * o["img_size"][0], 64, 1)
            self.conv_last = nn.Conv2d(64, self.out_chans, 7)
        elif self.upscale == 1:
            self.conv_last = FrameConv(dims[0], self.out_chans)
        else:
            self.conv_before_upsample = nn.Sequential(FrameConv(dims[0], 64), nn.LeakyReLU(0.01))
            # Pixel shuffles by 2 or 3. The convolutions are named 0, 5, 10, ... as in the released
            # checkpoints.
            self.upsample = nn.Sequential()
            factors = [3] if self.upscale == 3 else [2] * (self.upscale.bit_length() - 1)
            for step, factor in enumerate(factors):
                layers = (
                    FrameConv(64, 64 * factor * factor),
                    nn.PixelShuffle(factor),
                    nn.LeakyReLU(0.1),
                )
                for place, layer in enumerate(layers, start=5 * step):
                    self.upsample.add_module(str(place), layer)
            self.upsample.add_module(str(5 * len(factors)), FrameConv(64, 64))
            self.conv_last = FrameConv(64, self.out_chans)

    def _init_for_scratch(self, spynet_path: str | None) -> None:
        """Initialise so that the untrained network returns its input; load SpyNet, or start from
        zero flow.
        """
        nn.init.zeros_(self.conv_last.weight)
        assert self.conv_last.bias is not None
        nn.init.zeros_(self.conv_last.bias)
        if not self.pa_frames:
            return
        if spynet_path is None:
            self.notes.append(
                "netG.spynet_path is null: optical flow starts at zero and is learned"
            )
            levels: Any = self.spynet.basic_module
            for level in levels:  # a random flow would misalign the features
                nn.init.zeros_(level.basic_module[-1].weight)
                nn.init.zeros_(level.basic_module[-1].bias)
            return
        is_here = Path(spynet_path).is_file()
        if not is_here and spynet_path != PUBLISHED_FLOW:
            expected = (
                f"SpyNet weights: the published ones ({PUBLISHED}) or models/vrt/{OWN_FLOW.name}"
            )
            do = "correct the path, or set it to null to start from zero flow"
            raise OptionError(f"no file {spynet_path}", "netG.spynet_path", expected, do)
        if self.conv_last.weight.is_meta:  # only the options are being checked
            return
        if not is_here:
            spynet_path = str(OWN_FLOW)
            if utils_dist.is_main_process():
                logger.warning(
                    "netG.spynet_path: no file %s; models/vrt/%s of this project stands in for "
                    "it (docs/model.md). "
                    "The published weights: %s", PUBLISHED_FLOW, OWN_FLOW.name, PUBLISHED,
                )  # fmt: skip
        weights = portable.read_weights(spynet_path, key="netG.spynet_path")
        # Some files lack the two constants of the normalisation.
        weights = {"mean": self.spynet.mean, "std": self.spynet.std, **weights}
        try:
            self.spynet.load_state_dict(weights)
        except RuntimeError as e:
            expected = "the 60 tensors basic_module.{0..5}.basic_module.{0,2,4,6,8}.{weight,bias}"
            what = f"{spynet_path} does not hold SpyNet weights"
            raise OptionError(what, "netG.spynet_path", expected, "choose another file") from e

    def compile(self, *args: Any, **options: Any) -> None:
        """torch.compile of the blocks, in place.

        Compiling the whole network takes ten times as long.
        """
        import torch._dynamo  # takes seconds to import, so only when it is needed

        if not in_cpu_form(self.conv_first.weight) and utils_dist.is_main_process():
            logger.warning(
                "train.compile: compiled blocks keep more memory for backward than blocks in chunks"
            )
        # All blocks share one code object, which is compiled again per width, mask, size, and
        # mutual or self attention.
        config: Any = torch._dynamo.config  # its attributes have the types of their defaults
        config.recompile_limit = max(64, config.recompile_limit)
        for block in (m for m in self.modules() if isinstance(m, Block)):
            block.forward_plain = torch.compile(block.forward_plain, *args, **options)
            block.is_compiled = True

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        """lq: (B, N, C, H, W), C = image channels (+ 1 noise map); spike: (B, N, S, H, W) if the
        fusion needs it.

        Returns (B, N, out_instants * out_chans, upscale * H, upscale * W), or if pa_frames is 0 the
        frames in the middle of the clip, (B, out_chans / 3, 3, H, W).
        """
        check_input(lq, self.input_spec)
        image, noise = lq[:, :, : self.image_chans], lq[:, :, self.image_chans :]
        trunk = self.fusion.on_input(image, spike)
        if not self.pa_frames:
            mean = trunk.mean((1, 3, 4), keepdim=True)
            x = self._features(trunk - mean, None, spike)
            x = F.leaky_relu(self.linear_fuse(x.flatten(1, 2)), 0.2)
            x = self.conv_last(F.pad(x, (3, 3, 3, 3), mode="reflect"))
            return x.view(len(x), -1, 3, *lq.shape[3:]) + mean
        rgb = image[:, :, :3]
        flows = self.estimate_flows(rgb)
        x = aligned_input(trunk, flows[0][0][0], flows[0][1][0])
        x = torch.cat((x, noise), dim=2) if self.nonblind else x
        x = self._features(x, flows, spike).flatten(0, 1)
        base = self.fusion.on_base(rgb, trunk, spike).flatten(0, 1)
        if self.upscale > 1:
            x = self.upsample(self.conv_before_upsample(x))
            base = F.interpolate(
                base, scale_factor=self.upscale, mode="bilinear", align_corners=False
            )
        # Each instant is added to the same base.
        x = self.conv_last(x) + base.repeat(1, self.out_instants, 1, 1)
        return x.view(*lq.shape[:2], *x.shape[1:])

    def fit(self, lq: Tensor, spike: Tensor | None = None) -> None:
        """With checkpoint "auto": choose the recomputed branches, once, for training steps on clips
        of this size.

        ModelVRT calls this before the first step. It leaves no gradients.
        """
        if self.is_fitted:
            return
        self.is_fitted = True
        # Asked only now: the constructor runs before the process has its GPU, and would open a
        # context on GPU 0.
        budget = self.memory_budget_gb
        if budget is None:
            budget = GPU_SHARE * devices.total_gb(lq.device)
        fit_memory(self, lambda: self(lq, spike), budget)

    def estimate_flows(self, frames: Tensor) -> Flows:
        """All flows of frames (B, N, 1 or 3, H, W), in float32 or float64: nearest sampling
        amplifies rounding.

        By default torch computes float32 convolutions of cuDNN in TF32. A backward pass uses the
        settings outside.
        """
        with torch.autocast(frames.device.type, enabled=False), tf32(False):
            frames = frames if frames.dtype == torch.float64 else frames.float()
            return estimate_flows(self.spynet, frames, self.pa_frames // 2)

    def _features(self, x: Tensor, flows: Flows | None, spike: Tensor | None) -> Tensor:
        """Shallow plus deep features, (B, N, E, H, W), channels innermost in memory. x: (B, N, K,
        H, W).
        """
        b, n = x.shape[:2]
        first = self.conv_first(x.flatten(0, 1)).permute(0, 2, 3, 1)
        # Tokens (B, N, H, W, E)
        x = first = self.fusion.on_features(first.reshape(b, n, *first.shape[1:]), spike)
        skips = []
        for number, scale in enumerate(STAGE_SCALES, start=1):
            if (
                number > 5
                # at its own scale, before the stage upscales; popped, so that it is freed after the
                # sum
            ):
                x = x + skips.pop()
            pairs = flows[scale.bit_length() - 1] if flows else ([], [])
            x = self.fusion.on_stage(number, getattr(self, f"stage{number}")(x, *pairs), spike)
            if number < 4:
                skips.append(x)
        x = x + skips.pop()
        for layer in self.stage8:
            x = layer(x)
        return (first + self.conv_after_body(self.norm(x))).permute(0, 1, 4, 2, 3)


def vrt_input_spec(o: dict[str, Any], image_channels: int, spike_channels: int) -> InputSpec:
    """Requirements on the input of a VRT with arguments `o`.

    Mutual attention needs a whole window at 1/8 scale.
    """
    frames, height, width = o["window_size"]
    has_mutual = int(o["depths"][3] * o["mul_attn_ratio"]) > 0
    if has_mutual:
        least_size = (UNET_MULTIPLE * height, UNET_MULTIPLE * width)
    else:
        least_size = (UNET_MULTIPLE, UNET_MULTIPLE)
    interpolates = o["pa_frames"] == 0
    if interpolates:
        least_frames = o["img_size"][0]
    else:
        least_frames = max(2 if has_mutual else 1, o["pa_frames"] // 2 + 1)
    return InputSpec(
        stride=UNET_MULTIPLE,
        window_size=(frames, height, width),
        least_size=least_size,
        least_frames=least_frames,
        scale=o["upscale"],
        image_channels=image_channels,
        noise_map=o["nonblind_denoising"],
        spike_channels=spike_channels,
        interpolates=interpolates,
        out_instants=o["out_instants"],
    )


def check_options(o: dict[str, Any], image: int) -> None:
    """Raise OptionError, naming the key of netG, if the arguments `o` of VRT do not fit together.

    image: image channels per frame.
    """
    depths, dims, heads = o["depths"], o["embed_dims"], o["num_heads"]
    _need(
        len(depths) >= 8,
        "depths",
        f"{len(depths)} entries",
        "7 stages and at least one layer of stage 8",
    )
    for key, values in (("embed_dims", dims), ("num_heads", heads)):
        _need(
            len(values) == len(depths),
            key,
            f"{len(values)} entries",
            f"{len(depths)}, as many as depths",
        )
        _need(min(values) >= 1, key, f"{values}", "positive integers")
    _need(min(depths) >= 0, "depths", f"{depths}", "integers >= 0")
    for key in ("window_size", "img_size"):
        _need(len(o[key]) == 3 and min(o[key]) >= 1, key, f"{o[key]}", "[frames, height, width]")
    for key in ("indep_reconsts", "no_checkpoint_attn_blocks", "no_checkpoint_ffn_blocks"):
        first = 7 if key == "indep_reconsts" else 0  # its indices are layers of stage 8
        is_inside = all(first <= i < len(depths) for i in o[key])
        _need(is_inside, key, f"{o[key]}", f"indices into depths, {first} to {len(depths) - 1}")
    for i, (dim, head) in enumerate(zip(dims, heads, strict=True)):
        _need(
            dim % head == 0, f"embed_dims[{i}]", f"{dim}", f"a multiple of num_heads[{i}] = {head}"
        )
        mutual = i < 7 and int(depths[i] * o["mul_attn_ratio"]) > 0
        # The positions of mutual attention are sine/cosine pairs, half the channels for rows, half
        # for columns.
        _need(
            not mutual or dim % 4 == 0,
            f"embed_dims[{i}]",
            f"{dim}",
            "a multiple of 4, for mutual attention",
        )
    for i in (3, 4, 5):
        _need(
            dims[i] % 4 == 0,
            f"embed_dims[{i}]",
            f"{dims[i]}",
            "a multiple of 4: the next stage unfolds 2x2 patches",
        )
    for late, early in ((4, 2), (5, 1), (6, 0)):
        expected = f"{dims[early]} = embed_dims[{early}], because of the skip connection"
        _need(dims[late] == dims[early], f"embed_dims[{late}]", f"{dims[late]}", expected)
    _need(
        len(set(dims[7:])) == 1,
        "embed_dims",
        f"{dims[7:]} in stage 8",
        "one width for all layers of stage 8",
    )
    has_budget = (
        o["checkpoint"] != "auto" or o["memory_budget_gb"] is not None or devices.count() > 0
    )
    _need(
        has_budget,
        "memory_budget_gb",
        'null with checkpoint "auto"',
        "gigabytes; it has a default on a GPU only",
    )
    upscale = o["upscale"]
    _need(
        upscale == 3 or upscale.bit_count() == 1, "upscale", f"{upscale}", "1, 3 or a power of two"
    )
    _need(o["pa_frames"] in (0, 2, 4, 6), "pa_frames", f"{o['pa_frames']}", "0, 2, 4 or 6")
    instants = o["out_instants"]
    got, expected = f"{instants}", "an odd number: the middle instant is that of gt"
    _need(instants >= 1 and instants % 2 == 1, "out_instants", got, expected)
    if o["pa_frames"]:
        # distance: of the farthest aligned neighbour
        distance, groups = (
            o["pa_frames"] // 2,
            o["deformable_groups"],
        )
        _need(groups >= 1, "deformable_groups", f"{groups}", "an integer >= 1")
        for i, dim in enumerate(dims[:7]):
            _need(
                dim % distance == 0,
                f"embed_dims[{i}]",
                f"{dim}",
                f"a multiple of {distance} = pa_frames / 2",
            )
            expected = f"a divisor of {distance * dim} = pa_frames / 2 * embed_dims[{i}]"
            _need(distance * dim % groups == 0, "deformable_groups", f"{groups}", expected)
        expected = f"a multiple of {distance} = pa_frames / 2"
        _need(18 * groups % (2 * distance) == 0, "deformable_groups", f"{groups}", expected)
        _need(
            image == 1 or image >= 3, "in_chans", f"{image}", "1 (gray) or at least 3 (RGB first)"
        )
        base = min(image, 3)
        expected = f"{base}: the output is added to the first {base} input channels"
        _need(base in (1, o["out_chans"]), "out_chans", f"{o['out_chans']}", expected)
    else:
        _need(
            o["out_chans"] % 3 == 0,
            "out_chans",
            f"{o['out_chans']}",
            "a multiple of 3 if pa_frames is 0",
        )
        _need(
            not o["nonblind_denoising"],
            "nonblind_denoising",
            "true with pa_frames 0",
            "false, or pa_frames > 0",
        )
        _need(instants == 1, "out_instants", f"{instants} with pa_frames 0", "1, or pa_frames > 0")


def _need(holds: bool, key: str, got: str, expected: str) -> None:
    if not holds:
        raise OptionError(f"netG.{key} is {got}", f"netG.{key}", expected, f"correct netG.{key}")


def check_input(x: Tensor, spec: InputSpec) -> None:
    """Raise DataError if a network with this spec cannot take the clip x (B, N, C, H, W)."""
    shape, channels = f"a clip of shape {tuple(x.shape)}", spec.image_channels + int(spec.noise_map)
    if x.dim() != 5 or x.shape[2] != channels:
        raise DataError(
            shape,
            "forward(lq, spike)",
            f"(B, N, {channels}, H, W)",
            "check in_chans, fusion and the data",
        )
    frames, (height, width), (least_height, least_width) = x.shape[1], x.shape[3:], spec.least_size
    if frames < spec.least_frames:
        expected, do = (
            f"at least {spec.least_frames} frames",
            "use a longer clip, or extend it by mirrored frames",
        )
    elif height % spec.stride or width % spec.stride:
        expected = f"height and width that are multiples of {spec.stride}"
        do = "crop the clip, or pad it by reflection and crop the result"
    elif height < least_height or width < least_width:
        expected = f"at least {least_height} x {least_width} pixels: 8 times the attention window"
        do = "use larger crops or tiles, or a smaller netG.window_size"
    else:
        return
    raise DataError(shape, "forward(lq, spike)", expected, do)
