"""VRT, the Video Restoration Transformer (Liang et al., arXiv 2201.12288), on RGB or RGB + spike clips.

Written from a description of the published network's arithmetic; released weights load by name. This file connects
the parts, which are in models/vrt/ and models/fusion/.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.fusion.operators import FUSIONS, checked_spike
from models.select_network import NETWORKS
from models.vrt.block import Block
from models.vrt.chunks import Kernels
from models.vrt.fit_memory import fit_memory
from models.vrt.flow import FlowInput, Flows, SpyNet, aligned_input, estimate_flows, flow_frames, middle_channels
from models.vrt.layers import FrameConv, LayerNorm, Upsample, full_float32
from models.vrt.limits import check_input, check_options, vrt_input_spec
from models.vrt.stage import RefineLayer, Stage
from models.weights import PUBLISHED, read_weights
from utils import utils_dist
from utils.contract import InputSpec
from utils.errors import OptionError

logger = logging.getLogger(__name__)

# How stages 1 to 7 change the resolution at their entry, and how much smaller than the input they then work.
KINDS = ("none", "down", "down", "down", "up", "up", "up")
STAGE_SCALES = (1, 2, 4, 8, 4, 2, 1)
# KAIR's scripts download this file; where it is missing, the weights that this project ships stand in.
PUBLISHED_FLOW = "model_zoo/vrt/spynet_sintel_final-3d2a1287.pth"
OWN_FLOW = Path(__file__).parent / "vrt/spynet_scenes.pth"
# Share of a GPU's memory that a step may use with checkpoint "auto" and no budget.
GPU_SHARE = 0.9


@NETWORKS.register("vrt", given=("spike_channels",))
class VRT(nn.Module):
    """Restores all frames of a clip together: (B, N, C, H, W) in [0, 1] -> (B, N, out_chans, sH, sW).

    upscale: 1 (restoration), 3 or a power of two (super-resolution). in_chans: input channels of the trunk per frame,
    without a noise map (null: those of the fusion operator). img_size: its first number is the clip length if pa_frames
    is 0; else unused.
    window_size: [frames, height, width] of an attention window. depths, embed_dims, num_heads: entries 0 to 6 are
    stages 1 to 7, the rest the layers of stage 8. indep_reconsts: indices of layers that process each frame separately.
    mul_attn_ratio: share of blocks with mutual attention. pa_frames: neighbours aligned by parallel warping, 2, 4 or 6;
    0: frame interpolation.
    spynet_path: weights of the flow network; null starts from zero flow. A missing file of KAIR gives way to
    models/vrt/spynet_scenes.pth, with a warning. flow_input: what the flow network sees, "rgb" the blurry frames,
    "spike" the spike channels flow_channels in grey, "both" the blurry frames times the relative rate in these channels
    (rates of linear light, as of "voxel"). flow_channels: those around the sharp frame; null: the one or two in the
    middle.
    use_checkpoint_attn, use_checkpoint_ffn: recompute this branch of every block in backward, except in the stages of
    no_checkpoint_attn_blocks, no_checkpoint_ffn_blocks (indices into depths). checkpoint: "auto" chooses the recomputed
    branches so that a step fits memory_budget_gb (null: 90 % of the GPU); null: the four keys above decide. kernels:
    "auto" runs blocks in chunks that backward recomputes, "plain" as a whole under torch's autograd.
    fusion: how the spikes enter.

    out_instants: K sharp frames for each blurry one, (B, N, K out_chans, sH, sW) in the order of time: the middles of K
    equal parts of the exposure. K is odd, and the middle one is the frame of gt. 1: as published.
    """

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
        flow_input: FlowInput = "rgb",
        flow_channels: list[int] | None = None,
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
        options = {key: value for key, value in locals().items() if key not in ("self", "__class__")}
        fusion_options = FUSIONS.resolve(fusion, "netG.fusion")
        self.image_chans, in_chans = fusion_options.constructor.channels(in_chans, spike_channels)
        check_options(options, self.image_chans)
        self.is_fitted, self.memory_budget_gb = checkpoint != "auto", memory_budget_gb
        self.notes: list[str] = []  # messages about this network for the training log
        self.upscale, self.in_chans, self.out_chans = upscale, in_chans, out_instants * out_chans
        self.out_instants = out_instants
        self.pa_frames, self.nonblind = pa_frames, nonblind_denoising
        self.flow_input, self.spike_channels = flow_input, spike_channels
        self.flow_channels = flow_channels or middle_channels(spike_channels)
        needed = spike_channels if fusion_options.constructor.needs_spikes or flow_input != "rgb" else 0
        self.input_spec: InputSpec = vrt_input_spec(options, self.image_chans, needed)

        trunk_inputs = in_chans * 9 + int(nonblind_denoising) if pa_frames else in_chans
        self.conv_first = FrameConv(trunk_inputs, embed_dims[0])
        if pa_frames:
            self.spynet = SpyNet(return_levels=(2, 3, 4, 5))
        self._build_trunk(options)
        self._build_tail(embed_dims[0], img_size[0])
        widths = [embed_dims[0], *embed_dims[:7]]
        self.fusion = FUSIONS.build(
            fusion_options, "netG.fusion", spike_channels=spike_channels, feature_channels=widths
        )
        self._init_for_scratch(spynet_path)

    def _build_trunk(self, o: dict[str, Any]) -> None:
        depths, dims, heads, window = o["depths"], o["embed_dims"], o["num_heads"], tuple(o["window_size"])
        rates = torch.linspace(0, o["drop_path_rate"], sum(depths), device="cpu").tolist()
        rates = [rates[sum(depths[:i]) : sum(depths[: i + 1])] for i in range(len(depths))]

        def block_options(i: int) -> dict[str, Any]:
            return {
                "mlp_ratio": o["mlp_ratio"],
                "qkv_bias": o["qkv_bias"],
                "qk_scale": o["qk_scale"],
                "kernels": o["kernels"],
                "checkpoint_attn": o["use_checkpoint_attn"] and i not in o["no_checkpoint_attn_blocks"],
                "checkpoint_ffn": o["use_checkpoint_ffn"] and i not in o["no_checkpoint_ffn_blocks"],
            }

        for i, (kind, scale) in enumerate(zip(KINDS, STAGE_SCALES, strict=True)):
            stage = Stage(
                kind, dims[i - 1] if i else dims[0], dims[i], depths[i], heads[i], window,
                int(depths[i] * o["mul_attn_ratio"]), rates[i], o["pa_frames"], o["deformable_groups"], scale,
                **block_options(i),
            )  # fmt: skip
            self.add_module(f"stage{i + 1}", stage)
        entry = nn.Sequential(nn.Identity(), LayerNorm(dims[6]), nn.Linear(dims[6], dims[7]))
        self.stage8 = nn.ModuleList([entry])
        for i in range(7, len(depths)):
            own = (1, *window[1:]) if i in o["indep_reconsts"] else window
            self.stage8.append(RefineLayer(dims[i], depths[i], heads[i], own, rates[i], **block_options(i)))
        self.norm = LayerNorm(dims[-1])
        self.conv_after_body = nn.Linear(dims[-1], dims[0])

    def _build_tail(self, dim: int, frames: int) -> None:
        if not self.pa_frames:
            self.linear_fuse = nn.Conv2d(dim * frames, 64, 1)
            self.conv_last = nn.Conv2d(64, self.out_chans, 7)
        elif self.upscale == 1:
            self.conv_last = FrameConv(dim, self.out_chans)
        else:
            self.conv_before_upsample = nn.Sequential(FrameConv(dim, 64), nn.LeakyReLU(0.01))
            self.upsample = Upsample(self.upscale, 64)
            self.conv_last = FrameConv(64, self.out_chans)

    def _init_for_scratch(self, spynet_path: str | None) -> None:
        """Initialise so that the untrained network returns its input; load SpyNet, or start from zero flow."""
        nn.init.zeros_(self.conv_last.weight)
        nn.init.zeros_(self.conv_last.bias)
        if not self.pa_frames:
            return
        if spynet_path is None:
            self.notes.append("netG.spynet_path is null: optical flow starts at zero and is learned")
            self.spynet.start_at_zero()
            return
        is_here = Path(spynet_path).is_file()
        if not is_here and spynet_path != PUBLISHED_FLOW:
            raise OptionError(
                f"no file {spynet_path}", "netG.spynet_path",
                f"SpyNet weights: the published ones ({PUBLISHED}) or models/vrt/{OWN_FLOW.name}",
                "correct the path, or set netG.spynet_path to null to start from zero flow",
            )  # fmt: skip
        if self.conv_last.weight.is_meta:  # only the options are being checked
            return
        if not is_here:
            spynet_path = str(OWN_FLOW)
            if utils_dist.is_main_process():
                logger.warning(
                    "netG.spynet_path: no file %s; models/vrt/%s of this project stands in for it (docs/model.md). "
                    "The published weights: %s", PUBLISHED_FLOW, OWN_FLOW.name, PUBLISHED,
                )  # fmt: skip
        weights = read_weights(spynet_path, key="netG.spynet_path")
        # Some files lack the two constants of the normalisation.
        weights = {"mean": self.spynet.mean, "std": self.spynet.std, **weights}
        try:
            self.spynet.load_state_dict(weights)
        except RuntimeError as e:
            raise OptionError(
                f"{spynet_path} does not hold SpyNet weights", "netG.spynet_path",
                "the 60 tensors basic_module.{0..5}.basic_module.{0,2,4,6,8}.{weight,bias}", "choose another file",
            ) from e  # fmt: skip

    def compile(self, *args: Any, **options: Any) -> None:
        """torch.compile of the blocks, in place. Compiling the whole network takes ten times as long."""
        import torch._dynamo  # takes seconds to import, so only when it is needed

        if self.conv_first.weight.is_cuda and utils_dist.is_main_process():
            logger.warning("train.compile: compiled blocks keep more memory for backward than blocks in chunks")
        # All blocks share one code object, which is compiled again per width, mask, size, and mutual or self attention.
        torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
        for block in (m for m in self.modules() if isinstance(m, Block)):
            block.compile(*args, **options)

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        """lq: (B, N, C, H, W), C = image channels (+ 1 noise map); spike: (B, N, S, H, W) if the fusion needs it.

        Returns (B, N, out_instants * out_chans, upscale * H, upscale * W), or (B, out_chans / 3, 3, H, W) if pa_frames
        is 0.
        """
        check_input(lq, self.input_spec)
        image, noise = lq[:, :, : self.image_chans], lq[:, :, self.image_chans :]
        trunk = self.fusion.on_input(image, spike)
        if not self.pa_frames:
            return self._interpolate(trunk, spike)
        rgb = image[:, :, :3]
        flows = self.estimate_flows(self._flow_frames(rgb, spike))
        x = aligned_input(trunk, flows.backward[0][0], flows.forward[0][0])
        x = torch.cat((x, noise), dim=2) if self.nonblind else x
        return self._restore(self._features(x, flows, spike), self.fusion.on_base(rgb, trunk, spike))

    def fit(self, lq: Tensor, spike: Tensor | None = None) -> None:
        """With checkpoint "auto": choose the recomputed branches, once, for training steps on clips of this size.

        ModelVRT calls this before the first step. It leaves no gradients.
        """
        if self.is_fitted:
            return
        self.is_fitted = True
        # Asked only now: the constructor runs before the process has its GPU, and would open a context on GPU 0.
        budget = self.memory_budget_gb
        if budget is None:
            budget = GPU_SHARE * torch.cuda.get_device_properties(lq.device).total_memory / 1e9
        fit_memory(self, lambda: self(lq, spike), budget)

    def _flow_frames(self, rgb: Tensor, spike: Tensor | None) -> Tensor:
        spike = None if self.flow_input == "rgb" else checked_spike(rgb, spike, self.spike_channels)
        return flow_frames(self.flow_input, rgb, spike, self.flow_channels)

    def estimate_flows(self, frames: Tensor) -> Flows:
        """All flows of frames (B, N, 1 or 3, H, W), in float32 or float64: nearest sampling amplifies rounding."""
        with full_float32(frames.device):
            frames = frames if frames.dtype == torch.float64 else frames.float()
            return estimate_flows(self.spynet, frames, self.pa_frames // 2)

    def _features(self, x: Tensor, flows: Flows | None, spike: Tensor | None) -> Tensor:
        """Shallow plus deep features, (B, N, E, H, W), channels innermost in memory. x: (B, N, K, H, W)."""
        b, n = x.shape[:2]
        first = self.conv_first(x.flatten(0, 1)).permute(0, 2, 3, 1)
        first = self.fusion.on_features(first.reshape(b, n, *first.shape[1:]), spike)
        return (first + self.conv_after_body(self.norm(self._body(first, flows, spike)))).permute(0, 1, 4, 2, 3)

    def _body(self, x: Tensor, flows: Flows | None, spike: Tensor | None) -> Tensor:
        """The U-net of stages 1 to 7 and the refinement layers of stage 8; tokens (B, N, H, W, E)."""

        def stage(number: int, x: Tensor, level: int) -> Tensor:
            pairs = flows.at(level) if flows else ([], [])
            return self.fusion.on_stage(number, getattr(self, f"stage{number}")(x, *pairs), spike)

        # Skips are popped, so that each is freed after its sum.
        skips = []
        for level in range(3):
            x = stage(level + 1, x, level)
            skips.append(x)
        x = stage(4, x, 3)
        x = stage(5, x, 2)
        # A skip is added at its own scale, before the next stage upscales.
        x = stage(6, x + skips.pop(), 1)
        x = stage(7, x + skips.pop(), 0)
        x = x + skips.pop()
        for layer in self.stage8:
            x = layer(x)
        return x

    def _restore(self, features: Tensor, base: Tensor) -> Tensor:
        """Output frames from features (B, N, E, H, W) and base (B, N, 3, H, W), to which each instant is added."""
        b, n = base.shape[:2]
        x, base = features.flatten(0, 1), base.flatten(0, 1)
        if self.upscale > 1:
            x = self.upsample(self.conv_before_upsample(x))
            base = F.interpolate(base, scale_factor=self.upscale, mode="bilinear", align_corners=False)
        x = self.conv_last(x) + base.repeat(1, self.out_instants, 1, 1)
        return x.view(b, n, *x.shape[1:])

    def _interpolate(self, x: Tensor, spike: Tensor | None) -> Tensor:
        """Frame interpolation: (B, N, C, H, W) -> the frames in the middle of the clip, (B, out_chans / 3, 3, H, W)."""
        b, _, _, h, w = x.shape
        mean = x.mean((1, 3, 4), keepdim=True)
        features = self._features(x - mean, None, spike)
        y = F.leaky_relu(self.linear_fuse(features.flatten(1, 2)), 0.2)
        y = self.conv_last(F.pad(y, (3, 3, 3, 3), mode="reflect"))
        return y.view(b, -1, 3, h, w) + mean
