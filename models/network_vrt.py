"""VRT, the Video Restoration Transformer (Liang et al., arXiv 2201.12288), on RGB or RGB + spike
clips.

Written from a description of the published network's arithmetic; released weights load by name.
This file connects the parts, which are in models/vrt/ and models/fusion/:

    frames, spikes -> fusion.on_input -> align neighbours along the optical flow -> conv_first
      -> stages 1 to 4 (each at half the resolution of the one before)
      -> stages 5 to 7 (each at twice the resolution, with skip connections from stages 3 to 1)
      -> stage 8 (at full resolution) -> conv_last -> add the input frames

`check_options` refuses options that do not fit together, `check_input` refuses clips.

Names of modules are names of tensors in the released weights, and the order in which modules are
built decides their random initial weights. So neither may change.

Letters: B clips, N frames, C image channels, S spike channels, E channels of features, H x W
pixels, s scale of the output (upscale), K instants per frame.

Tests: tests/parts/models/test_network_vrt.py, test_vrt_modules.py, test_exact_step.py
"""

import logging
import math
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

# How stages 1 to 7 change the resolution at their entry.
KINDS = ("none", "down", "down", "down", "up", "up", "up")
# Size of the input / size in stages 1 to 7.
STAGE_SCALES = (1, 2, 4, 8, 4, 2, 1)
# KAIR's scripts download this file. If it is missing, the flow weights that this project ships are
# used.
PUBLISHED_FLOW = "model_zoo/vrt/spynet_sintel_final-3d2a1287.pth"
OWN_FLOW = Path(__file__).parent / "vrt/spynet_scenes.pth"
# Share of a GPU's memory that a step may use with checkpoint "auto" and no budget.
GPU_SHARE = 0.9
# Height and width must be multiples of this number, because the U-net halves them three times.
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
        # All arguments by name. `self` and `__class__` come from Python.
        options = dict(locals())
        del options["self"], options["__class__"]
        fusion_options = FUSIONS.resolve(fusion, "netG.fusion")
        operator = fusion_options.constructor
        self.image_chans, in_chans = operator.channels(in_chans, spike_channels)
        check_options(options, self.image_chans)

        self.upscale = upscale
        self.in_chans = in_chans  # channels per frame after fusion.on_input
        self.out_instants = out_instants
        self.out_chans = out_instants * out_chans
        self.pa_frames = pa_frames
        self.nonblind = nonblind_denoising
        self.memory_budget_gb = memory_budget_gb
        self.is_fitted = checkpoint != "auto"  # whether `fit` has nothing left to do
        self.notes: list[str] = []  # messages about this network for the training log
        needed_spikes = spike_channels if operator.needs_spikes else 0
        self.input_spec: InputSpec = vrt_input_spec(options, self.image_chans, needed_spikes)

        # The order of the following lines decides which random numbers the weights get. A new
        # module goes behind them, or every run from scratch starts from other weights.
        if pa_frames:
            # Each frame, and the four nearest pixels in each of its two neighbours: 9 groups of
            # channels. See flow.aligned_input.
            inputs = 9 * in_chans + int(nonblind_denoising)
        else:
            inputs = in_chans
        self.conv_first = FrameConv(inputs, embed_dims[0])
        if pa_frames:
            self.spynet = SpyNet()
        self._build(options)
        # Channels of the first features, then of stages 1 to 7.
        widths = [embed_dims[0], *embed_dims[:7]]
        self.fusion = FUSIONS.build(
            fusion_options, "netG.fusion", spike_channels=spike_channels, feature_channels=widths
        )
        self._init_for_scratch(spynet_path)

    # ---- Construction ------------------------------------------------------------------------

    def _build(self, o: dict[str, Any]) -> None:
        """Add the stages, and the layers behind them.

        o: the arguments of the constructor. The names of the modules are those of the released
        weights.
        """
        depths = o["depths"]
        dims = o["embed_dims"]
        heads = o["num_heads"]
        window = tuple(o["window_size"])
        drop_rates = _drop_rates(depths, o["drop_path_rate"])

        for i, (kind, scale) in enumerate(zip(KINDS, STAGE_SCALES, strict=True)):
            stage = Stage(
                kind,
                inputs=dims[i - 1] if i > 0 else dims[0],
                dim=dims[i],
                depth=depths[i],
                heads=heads[i],
                window=window,
                mutual_depth=int(depths[i] * o["mul_attn_ratio"]),
                drop_path=drop_rates[i],
                pa_frames=o["pa_frames"],
                deformable_groups=o["deformable_groups"],
                scale=scale,
                **_block_options(o, i),
            )
            self.add_module(f"stage{i + 1}", stage)

        # Stage 8: a linear layer from the width of stage 7 to that of stage 8, then the layers with
        # the remaining entries of `depths`.
        entry = nn.Sequential(nn.Identity(), LayerNorm(dims[6]), nn.Linear(dims[6], dims[7]))
        self.stage8 = nn.ModuleList([entry])
        single_frame = (1, *window[1:])  # a window within one frame, for indep_reconsts
        for i in range(7, len(depths)):
            layer_window = single_frame if i in o["indep_reconsts"] else window
            layer = RefineLayer(
                dims[i], depths[i], heads[i], layer_window, drop_rates[i], **_block_options(o, i)
            )
            self.stage8.append(layer)
        self.norm = LayerNorm(dims[-1])
        self.conv_after_body = nn.Linear(dims[-1], dims[0])

        if not self.pa_frames:  # interpolation: all frames are joined, then new frames are made
            self.linear_fuse = nn.Conv2d(dims[0] * o["img_size"][0], 64, 1)
            self.conv_last = nn.Conv2d(64, self.out_chans, 7)
        elif self.upscale == 1:
            self.conv_last = FrameConv(dims[0], self.out_chans)
        else:
            self._build_upsampling(dims[0])

    def _build_upsampling(self, dim: int) -> None:
        """Add the layers of super-resolution. dim: channels of the features."""
        self.conv_before_upsample = nn.Sequential(FrameConv(dim, 64), nn.LeakyReLU(0.01))
        # One pixel shuffle by 3, or one by 2 for each factor of 2 in the scale, e.g. two for 4.
        if self.upscale == 3:
            factors = [3]
        else:
            powers = self.upscale.bit_length() - 1  # e.g. 4 is 100 in binary, 3 bits: 2 powers
            factors = [2] * powers
        # In the released weights the convolutions have the names 0, 5, 10, ... The layers between
        # them have no weights, so their names are free.
        self.upsample = nn.Sequential()
        name = 0
        for factor in factors:
            self.upsample.add_module(f"{name}", FrameConv(64, 64 * factor * factor))
            self.upsample.add_module(f"{name + 1}", nn.PixelShuffle(factor))
            self.upsample.add_module(f"{name + 2}", nn.LeakyReLU(0.1))
            name += 5
        self.upsample.add_module(f"{name}", FrameConv(64, 64))
        self.conv_last = FrameConv(64, self.out_chans)

    def _init_for_scratch(self, spynet_path: str | None) -> None:
        """Initialise the network so that it returns its input before training.

        The last convolution is zero, so nothing is added to the input. The flow network SpyNet gets
        its weights from spynet_path, or starts with zero flow.
        """
        nn.init.zeros_(self.conv_last.weight)
        assert self.conv_last.bias is not None
        nn.init.zeros_(self.conv_last.bias)
        if not self.pa_frames:  # no alignment, so no flow network
            return
        if spynet_path is None:
            self.notes.append(
                "netG.spynet_path is null: optical flow starts at zero and is learned"
            )
            levels: Any = self.spynet.basic_module
            for level in levels:  # a random flow would misalign the features
                last_layer = level.basic_module[-1]
                nn.init.zeros_(last_layer.weight)
                nn.init.zeros_(last_layer.bias)
            return

        # Only the published file may be missing, because this project ships weights in its place.
        is_found = Path(spynet_path).is_file()
        if not is_found and spynet_path != PUBLISHED_FLOW:
            raise OptionError(
                what=f"no file {spynet_path}",
                where="netG.spynet_path",
                expected=f"SpyNet weights: the published ones ({PUBLISHED}) or "
                f"models/vrt/{OWN_FLOW.name}",
                do="correct the path, or set it to null to start from zero flow",
            )
        # On the device "meta" only the options are being checked, and there are no weights to fill.
        if self.conv_last.weight.is_meta:
            return
        if not is_found:
            spynet_path = str(OWN_FLOW)
            if utils_dist.is_main_process():
                logger.warning(
                    "netG.spynet_path: no file %s; models/vrt/%s of this project stands in for "
                    "it (docs/model.md). "
                    "The published weights: %s", PUBLISHED_FLOW, OWN_FLOW.name, PUBLISHED,
                )  # fmt: skip
        self._load_flow_weights(spynet_path)

    def _load_flow_weights(self, spynet_path: str) -> None:
        """Load SpyNet's weights. Raises OptionError if the file holds other tensors."""
        weights = portable.read_weights(spynet_path, key="netG.spynet_path")
        # Some files lack the two constants of the normalisation.
        weights.setdefault("mean", self.spynet.mean)
        weights.setdefault("std", self.spynet.std)
        try:
            self.spynet.load_state_dict(weights)
        except RuntimeError as e:
            raise OptionError(
                what=f"{spynet_path} does not hold SpyNet weights",
                where="netG.spynet_path",
                expected="the 60 tensors "
                "basic_module.{0..5}.basic_module.{0,2,4,6,8}.{weight,bias}",
                do="choose another file",
            ) from e

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the blocks with torch.compile, in place. For the arguments see torch.compile.

        Compiling the whole network takes ten times as long.
        """
        import torch._dynamo  # takes seconds to import, so only when it is needed

        if not in_cpu_form(self.conv_first.weight) and utils_dist.is_main_process():
            logger.warning(
                "train.compile: compiled blocks keep more memory for backward than blocks in chunks"
            )
        # All blocks share one code object. torch compiles it again for each width, mask and size,
        # and for mutual and self attention. Beyond recompile_limit it would give up.
        config: Any = torch._dynamo.config  # its attributes have the types of their defaults
        config.recompile_limit = max(64, config.recompile_limit)
        for block in self.modules():
            if isinstance(block, Block):
                block.forward_plain = torch.compile(block.forward_plain, *args, **options)
                block.is_compiled = True

    # ---- Forward -----------------------------------------------------------------------------

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        """Restore the frames of a clip, or make new frames between them if pa_frames is 0.

        lq: (B, N, C, H, W) in [0, 1]. C: image channels, then the noise map if there is one.
        spike: (B, N, S, H, W), or None if the fusion operator takes no spikes.

        Returns (B, N, out_instants * out_chans, upscale * H, upscale * W), or if pa_frames is 0 the
        frames in the middle of the clip, (B, out_chans / 3, 3, H, W).
        """
        check_input(lq, self.input_spec)
        image = lq[:, :, : self.image_chans]
        noise_map = lq[:, :, self.image_chans :]  # (B, N, 0 or 1, H, W)
        trunk = self.fusion.on_input(image, spike)  # (B, N, in_chans, H, W)
        if not self.pa_frames:
            return self._interpolated(trunk, spike)

        # Align the neighbours of each frame along the flow, which is estimated from RGB or gray.
        rgb = image[:, :, :3]
        flows = self.estimate_flows(rgb)
        backward, forward = flows[0]  # at full resolution
        x = aligned_input(trunk, backward[0], forward[0])  # flows to the nearest frames
        if self.nonblind:
            x = torch.cat((x, noise_map), dim=2)

        # The network computes what is to be added to the base: the input frames, or the frames that
        # the fusion operator makes of them. From here the frames of all clips are one batch.
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

    def _interpolated(self, trunk: Tensor, spike: Tensor | None) -> Tensor:
        """Make new frames in the middle of the clip.

        trunk: result of fusion.on_input, (B, N, C, H, W). Returns (B, out_chans / 3, 3, H, W).
        """
        height, width = trunk.shape[3:]
        mean = trunk.mean((1, 3, 4), keepdim=True)  # one number for each channel of a clip
        x = self._features(trunk - mean, None, spike)
        x = x.flatten(1, 2)  # (B, N E, H, W): the features of all frames side by side
        x = F.leaky_relu(self.linear_fuse(x), 0.2)
        x = self.conv_last(F.pad(x, (3, 3, 3, 3), mode="reflect"))  # 7x7, so 3 pixels at each side
        return x.view(len(x), -1, 3, height, width) + mean

    def fit(self, lq: Tensor, spike: Tensor | None = None) -> None:
        """Choose the recomputed branches for training steps on clips of this size, once.

        With checkpoint "auto" this fits a step to memory_budget_gb, else it does nothing. ModelVRT
        calls this before the first step. It leaves no gradients.
        """
        if self.is_fitted:
            return
        self.is_fitted = True
        # The size of the GPU is asked only now. The constructor runs before the process has its
        # GPU, and asking there would take memory on GPU 0 for each process.
        budget = self.memory_budget_gb
        if budget is None:
            budget = GPU_SHARE * devices.total_gb(lq.device)
        fit_memory(self, lambda: self(lq, spike), budget)

    def estimate_flows(self, frames: Tensor) -> Flows:
        """Estimate the flows between neighbouring frames (B, N, 1 or 3, H, W).

        The flows are float32 or float64 under any autocast, because nearest sampling along the
        flow amplifies rounding: a flow that is rounded across the middle between two pixels takes
        the other pixel. So TF32, which torch uses by default in cuDNN's convolutions, is off here.
        The backward pass of the flow network runs later, with the settings of the caller.
        """
        with torch.autocast(frames.device.type, enabled=False), tf32(False):
            if frames.dtype != torch.float64:
                frames = frames.float()
            distance = self.pa_frames // 2  # neighbours on either side
            return estimate_flows(self.spynet, frames, distance)

    def _features(self, x: Tensor, flows: Flows | None, spike: Tensor | None) -> Tensor:
        """Compute shallow plus deep features: (B, N, channels of x, H, W) -> (B, N, E, H, W).

        The result is channels last: a view of (B, N, H, W, E), in which all stages compute.
        flows: see `estimate_flows`, or None for no alignment.
        """
        b, n = x.shape[:2]
        shallow = self.conv_first(x.flatten(0, 1))  # (B N, E, H, W)
        shallow = shallow.permute(0, 2, 3, 1)  # (B N, H, W, E)
        shallow = shallow.reshape(b, n, *shallow.shape[1:])  # (B, N, H, W, E)
        shallow = self.fusion.on_features(shallow, spike)

        # The U-net. The outputs of stages 1 to 3 are kept, and added where their resolution comes
        # again:
        #   output of stage 3   added before stage 6
        #   output of stage 2   added before stage 7
        #   output of stage 1   added after stage 7
        # The last output kept is the first one added, so `skips` is a stack. `pop` also frees the
        # output after the sum.
        x = shallow
        skips = []
        for number, scale in enumerate(STAGE_SCALES, start=1):
            if number in (6, 7):
                x = x + skips.pop()
            if flows is None:
                backward, forward = [], []
            else:
                # flows[level] has 1 / 2**level of the resolution. The scales 1, 2, 4, 8 have the
                # levels 0, 1, 2, 3.
                level = int(math.log2(scale))
                backward, forward = flows[level]
            stage = getattr(self, f"stage{number}")
            x = stage(x, backward, forward)
            x = self.fusion.on_stage(number, x, spike)
            if number in (1, 2, 3):
                skips.append(x)
        x = x + skips.pop()

        for layer in self.stage8:
            x = layer(x)
        x = shallow + self.conv_after_body(self.norm(x))
        return x.permute(0, 1, 4, 2, 3)


def _drop_rates(depths: list[int], last_rate: float) -> list[list[float]]:
    """Return, for each entry of `depths`, the drop probabilities of its blocks.

    The probabilities grow evenly over all blocks, from 0 to last_rate. E.g. depths [2, 1] and
    last_rate 0.2 -> [[0, 0.1], [0.2]].
    """
    # On the CPU also if the default device is "meta", because the numbers are read.
    rates = torch.linspace(0, last_rate, sum(depths), device="cpu").tolist()
    rates_of_stages = []
    first = 0
    for depth in depths:
        rates_of_stages.append(rates[first : first + depth])
        first += depth
    return rates_of_stages


def _block_options(options: dict[str, Any], entry: int) -> dict[str, Any]:
    """Return further arguments of the blocks of depths[entry].

    options: the arguments of VRT. entry: 0 to 6 for the stages 1 to 7, then the layers of stage 8.
    """
    block = {key: options[key] for key in ("mlp_ratio", "qkv_bias", "qk_scale", "kernels")}
    for part in ("attn", "ffn"):
        is_exempt = entry in options[f"no_checkpoint_{part}_blocks"]
        block[f"checkpoint_{part}"] = options[f"use_checkpoint_{part}"] and not is_exempt
    return block


# ---- Requirements on the input ---------------------------------------------------------------


def vrt_input_spec(o: dict[str, Any], image_channels: int, spike_channels: int) -> InputSpec:
    """Return what a VRT with arguments `o` requires of its input.

    E.g. with windows of 6 x 8 x 8 and mutual attention: at least 2 frames of 64 x 64 pixels.
    """
    frames, height, width = o["window_size"]
    # Without alignment (pa_frames 0) the network is the one for frame interpolation, whose layers
    # behind stage 8 mix all frames.
    interpolates = o["pa_frames"] == 0

    # Mutual attention needs a whole window also in stage 4, at 1/8 of the resolution. The first
    # blocks of a stage have mutual attention, as many as this share of its depth.
    mutual_blocks = int(o["depths"][3] * o["mul_attn_ratio"])  # of stage 4
    has_mutual = mutual_blocks > 0
    if has_mutual:
        least_size = (UNET_MULTIPLE * height, UNET_MULTIPLE * width)
    else:
        least_size = (UNET_MULTIPLE, UNET_MULTIPLE)

    if interpolates:
        least_frames = o["img_size"][0]  # the layers behind stage 8 take exactly so many frames
    else:
        # A window of mutual attention has two frames. The farthest aligned neighbour must exist.
        window_frames = 2 if has_mutual else 1
        distance = o["pa_frames"] // 2
        least_frames = max(window_frames, distance + 1)
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


def check_input(x: Tensor, spec: InputSpec) -> None:
    """Raise DataError if a network with this spec cannot take the clip x (B, N, C, H, W)."""
    channels = spec.image_channels + int(spec.noise_map)  # a noise map is one more channel
    what = f"a clip of shape {tuple(x.shape)}"
    where = "forward(lq, spike)"
    if x.dim() != 5 or x.shape[2] != channels:
        raise DataError(
            what, where, f"(B, N, {channels}, H, W)", "check in_chans, fusion and the data"
        )
    _, frames, _, height, width = x.shape
    least_height, least_width = spec.least_size
    if frames < spec.least_frames:
        expected = f"at least {spec.least_frames} frames"
        do = "use a longer clip, or extend it by mirrored frames"
    elif height % spec.stride or width % spec.stride:
        expected = f"height and width that are multiples of {spec.stride}"
        do = "crop the clip, or pad it by reflection and crop the result"
    elif height < least_height or width < least_width:
        expected = f"at least {least_height} x {least_width} pixels: 8 times the attention window"
        do = "use larger crops or tiles, or a smaller netG.window_size"
    else:
        return
    raise DataError(what, where, expected, do)


# ---- Checks of the options -------------------------------------------------------------------


def check_options(o: dict[str, Any], image: int) -> None:
    """Raise OptionError, naming the key of netG, if the arguments `o` of VRT do not fit together.

    image: image channels per frame.
    """
    _check_lists(o)
    _check_widths(o)
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
    is_power_of_two = upscale.bit_count() == 1
    _need(upscale == 3 or is_power_of_two, "upscale", f"{upscale}", "1, 3 or a power of two")
    _need(o["pa_frames"] in (0, 2, 4, 6), "pa_frames", f"{o['pa_frames']}", "0, 2, 4 or 6")
    instants = o["out_instants"]
    expected = "an odd number: the middle instant is that of gt"
    _need(instants >= 1 and instants % 2 == 1, "out_instants", f"{instants}", expected)
    if o["pa_frames"]:
        _check_alignment(o, image)
    else:
        _check_interpolation(o)


def _check_lists(o: dict[str, Any]) -> None:
    """Check the lengths and entries of the lists."""
    depths = o["depths"]
    _need(
        len(depths) >= 8,
        "depths",
        f"{len(depths)} entries",
        "7 stages and at least one layer of stage 8",
    )
    for key in ("embed_dims", "num_heads"):
        values = o[key]
        expected = f"{len(depths)}, as many as depths"
        _need(len(values) == len(depths), key, f"{len(values)} entries", expected)
        _need(min(values) >= 1, key, f"{values}", "positive integers")
    _need(min(depths) >= 0, "depths", f"{depths}", "integers >= 0")
    for key in ("window_size", "img_size"):
        sizes = o[key]
        is_valid = len(sizes) == 3 and min(sizes) >= 1
        _need(is_valid, key, f"{sizes}", "[frames, height, width]")
    for key in ("indep_reconsts", "no_checkpoint_attn_blocks", "no_checkpoint_ffn_blocks"):
        first = 7 if key == "indep_reconsts" else 0  # its indices are layers of stage 8
        is_inside = all(first <= i < len(depths) for i in o[key])
        _need(is_inside, key, f"{o[key]}", f"indices into depths, {first} to {len(depths) - 1}")


def _check_widths(o: dict[str, Any]) -> None:
    """Check the channels of each stage."""
    depths = o["depths"]
    dims = o["embed_dims"]
    heads = o["num_heads"]
    for i, dim in enumerate(dims):
        key = f"embed_dims[{i}]"
        _need(dim % heads[i] == 0, key, f"{dim}", f"a multiple of num_heads[{i}] = {heads[i]}")
        # The positions of mutual attention are sine/cosine pairs, half the channels for rows, half
        # for columns.
        is_mutual = i < 7 and int(depths[i] * o["mul_attn_ratio"]) > 0
        is_valid = not is_mutual or dim % 4 == 0
        _need(is_valid, key, f"{dim}", "a multiple of 4, for mutual attention")
    for i in (3, 4, 5):
        expected = "a multiple of 4: the next stage unfolds 2x2 patches"
        _need(dims[i] % 4 == 0, f"embed_dims[{i}]", f"{dims[i]}", expected)
    # Indices from 0: the outputs of stages 5, 6, 7 are added to those of stages 3, 2, 1.
    for late, early in ((4, 2), (5, 1), (6, 0)):
        expected = f"{dims[early]} = embed_dims[{early}], because of the skip connection"
        _need(dims[late] == dims[early], f"embed_dims[{late}]", f"{dims[late]}", expected)
    of_stage8 = dims[7:]
    _need(
        len(set(of_stage8)) == 1,
        "embed_dims",
        f"{of_stage8} in stage 8",
        "one width for all layers of stage 8",
    )


def _check_alignment(o: dict[str, Any], image: int) -> None:
    """Check the options of a network that aligns neighbours. image: image channels per frame."""
    distance = o["pa_frames"] // 2  # of the farthest aligned neighbour
    groups = o["deformable_groups"]
    _need(groups >= 1, "deformable_groups", f"{groups}", "an integer >= 1")
    for i, dim in enumerate(o["embed_dims"][:7]):
        expected = f"a multiple of {distance} = pa_frames / 2"
        _need(dim % distance == 0, f"embed_dims[{i}]", f"{dim}", expected)
        expected = f"a divisor of {distance * dim} = pa_frames / 2 * embed_dims[{i}]"
        _need(distance * dim % groups == 0, "deformable_groups", f"{groups}", expected)
    # Each neighbour has an equal number of the 18 offset channels of each group, in pairs (dy, dx).
    expected = f"a multiple of {distance} = pa_frames / 2"
    _need(18 * groups % (2 * distance) == 0, "deformable_groups", f"{groups}", expected)
    expected = "1 (gray) or at least 3 (RGB first)"
    _need(image == 1 or image >= 3, "in_chans", f"{image}", expected)
    base = min(image, 3)  # channels of the frames to which the output is added
    expected = f"{base}: the output is added to the first {base} input channels"
    _need(base in (1, o["out_chans"]), "out_chans", f"{o['out_chans']}", expected)


def _check_interpolation(o: dict[str, Any]) -> None:
    """Check the options of a network that makes new frames (pa_frames 0)."""
    out_chans = o["out_chans"]
    expected = "a multiple of 3 if pa_frames is 0"
    _need(out_chans % 3 == 0, "out_chans", f"{out_chans}", expected)
    _need(
        not o["nonblind_denoising"],
        "nonblind_denoising",
        "true with pa_frames 0",
        "false, or pa_frames > 0",
    )
    instants = o["out_instants"]
    _need(instants == 1, "out_instants", f"{instants} with pa_frames 0", "1, or pa_frames > 0")


def _need(is_valid: bool, key: str, got: str, expected: str) -> None:
    """Raise OptionError for netG.<key> unless is_valid. got: the present value, in words."""
    if not is_valid:
        raise OptionError(f"netG.{key} is {got}", f"netG.{key}", expected, f"correct netG.{key}")
