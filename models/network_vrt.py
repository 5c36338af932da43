"""VRT, the Video Restoration Transformer, on clips of RGB, or of RGB and spikes.

Source: Liang et al., arXiv 2201.12288. The code was written from a description of the published
network's arithmetic, and released weights load by name. This file connects the parts:

    frames, spikes -> fusion.on_input -> align neighbours along the optical flow -> conv_first
      -> stages 1 to 4 (at 1, 1/2, 1/4 and 1/8 of the resolution)
      -> stages 5 to 7 (at 1/4, 1/2 and 1, with skip connections from stages 3 to 1)
      -> stage 8 (at full resolution) -> conv_last -> add the input frames

`fusion` is the operator that brings the spikes into the network. The network calls its hooks
on_input, on_features, on_stage and on_base, each of which may change what it gets (fusion/base.py).
The trunk is the network without the operator.

The parts are in models/fusion/ (the spikes) and in models/vrt/:

    design.py, check_arguments.py        the options that decide the layers, and refusals of options
                                         that do not fit together
    build.py, stages.py, block.py        the layers: stages consist of blocks, and a block has
                                         attention and an MLP
    attention/, gated_mlp.py             what a block computes
    spynet.py, flow.py, align_clip.py    the optical flow, and neighbours aligned along it
    chunks.py, memory/                   what backward computes again, to need less memory
    requirements.py                      which clips the network takes

What must stay, and which test notices (in tests/parts/models):

    the names of modules, which are     test_state_dict_of_a_released_model_has_its_keys_in_order
    names in the released weights
    the arithmetic                      test_the_plain_transcription_gives_the_reference_output
    the order in which modules are      test_exact_step.py, which has the stored output and
    built, which decides their          gradients of a step
    random initial weights

Free to change: the texts of errors. A new option needs a default that changes nothing.

Letters: B clips, N frames, C image channels, S spike channels, E channels of features, H x W
pixels, s scale of the output (upscale), K instants per frame.
"""

import logging
import math
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.flow_weights import load_flow, start_with_zero_flow
from models.fusion.operators import FUSIONS
from models.select_network import NETWORKS
from models.vrt.block import Block
from models.vrt.build import build_stage, build_stage_8, build_upsampling
from models.vrt.check_arguments import check_arguments, refuse_fusion_for_new_frames
from models.vrt.design import STAGE_SCALES, Design
from models.vrt.flow import Flows, aligned_input, estimate_flows
from models.vrt.forms import Kernels, in_cpu_form
from models.vrt.layers import FrameConv, LayerNorm, tf32
from models.vrt.memory.fit_memory import fit_memory
from models.vrt.requirements import check_input, vrt_input_spec
from models.vrt.spynet import SpyNet
from utils import device as devices
from utils import utils_dist
from utils.contract import InputSpec

logger = logging.getLogger(__name__)

# With checkpoint "auto" and no memory_budget_gb, a step may use this fraction of a GPU's memory.
# The memory of a step is only estimated, so with a larger fraction a step may run out of memory.
# With a smaller fraction, more branches (the attention or the MLP of a block) are recomputed, so a
# step takes longer. The docstring of `VRT` names the number (90 %), so change both.
GPU_SHARE = 0.9
# torch compiles a function again for each kind of input. After this number of compilations, torch
# runs the function uncompiled. The limit of torch is 8, but the blocks of VRT have more kinds of
# input: each width, mask and size, mutual and self attention. 64 is well above the number of kinds.
COMPILATIONS_OF_BLOCK = 64


# `given`: the program gives this argument. All other arguments are options of netG.
@NETWORKS.register("vrt", given=("spike_channels",))
class VRT(nn.Module):
    """Restores all frames of a clip together: (B, N, C, H, W) in [0, 1] -> (B, N, out_chans, sH,
    sW).

    upscale: 1 (restoration), 3 or a power of two (super-resolution).
    in_chans: number of input channels of the trunk (the network behind the fusion operator),
    without a noise map. With null the fusion operator gives the number.
    nonblind_denoising: whether the last input channel is a map of the noise.
    img_size: [frames, height, width]. If pa_frames is 0, each clip must have this number of frames.
    window_size: [frames, height, width] of an attention window.

    depths, embed_dims, num_heads: number of blocks, of channels, and of attention heads. Entries 0
    to 6 are for stages 1 to 7. The other entries are for the layers of stage 8.
    indep_reconsts: which entries of depths, by their index, are layers that process each frame
    separately.

    mul_attn_ratio: fraction of the blocks of a stage that have mutual attention. In mutual
    attention, the two frames of a window attend to each other.
    mlp_ratio: width of the hidden layer of a block's MLP, divided by the width of the block.
    qkv_bias: whether queries, keys and values have a bias.
    qk_scale: factor of the logits of the attention. With null it is 1 / sqrt(channels of a head),
    as published.
    drop_path_rate: probability of dropping a branch of the last block in a training step. The
    first block has 0, and from block to block the probability rises evenly.

    pa_frames: number of neighbours that are aligned to each frame, 2, 4 or 6. With 0 the network
    interpolates frames.
    deformable_groups: number of groups of channels in the alignment. The channels of a group are
    aligned with the same offsets.
    spynet_path: file with the weights of the flow network. With null the flow is zero at first.

    use_checkpoint_attn: whether backward recomputes the attention of each block, to save memory.
    no_checkpoint_attn_blocks: stages without this recomputation, as indices into depths.
    use_checkpoint_ffn, no_checkpoint_ffn_blocks: the same for the MLP of each block.
    checkpoint: "auto" chooses the recomputed branches so that a step fits memory_budget_gb. If the
    budget is null, it is 90 % of the GPU. With checkpoint null, the four keys above decide.
    kernels: "auto" runs blocks in chunks that backward recomputes. "plain" runs each block as a
    whole under torch's autograd.

    fusion: how the spikes enter the network.
    out_instants: number K of sharp frames for each blurry frame, at the middles of K equal parts of
    the exposure. K is odd. The published network has 1.

    With out_instants K the output is (B, N, K out_chans, sH, sW) in the order of time. The frame in
    the middle is the frame of gt.
    """

    # Options that former versions had -> the only value that this version accepts. Weights files
    # of former versions still name them.
    GONE: ClassVar[dict[str, Any]] = {"flow_input": "rgb", "flow_channels": None}

    # Names and defaults of the options must stay. Option files and weights files have the names. An
    # option that an option file lacks gets its default.
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
        # The first blocks of a stage have mutual attention, e.g. 6 of 8 blocks with 0.75.
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
        # The design has all arguments but in_chans, spynet_path, fusion and spike_channels. The
        # functions that build or check the layers get the design.
        design = Design(
            upscale=upscale,
            out_chans=out_chans,
            img_size=img_size,
            window_size=window_size,
            depths=depths,
            indep_reconsts=indep_reconsts,
            embed_dims=embed_dims,
            num_heads=num_heads,
            mul_attn_ratio=mul_attn_ratio,
            mlp_ratio=mlp_ratio,
            qkv_bias=qkv_bias,
            qk_scale=qk_scale,
            drop_path_rate=drop_path_rate,
            pa_frames=pa_frames,
            deformable_groups=deformable_groups,
            nonblind_denoising=nonblind_denoising,
            use_checkpoint_attn=use_checkpoint_attn,
            use_checkpoint_ffn=use_checkpoint_ffn,
            no_checkpoint_attn_blocks=no_checkpoint_attn_blocks,
            no_checkpoint_ffn_blocks=no_checkpoint_ffn_blocks,
            checkpoint=checkpoint,
            memory_budget_gb=memory_budget_gb,
            kernels=kernels,
            out_instants=out_instants,
        )
        # The section netG.fusion, checked and with its defaults. The section names the class of the
        # fusion operator.
        fusion_options = FUSIONS.resolve(fusion, "netG.fusion")
        if pa_frames == 0:  # the network interpolates frames
            _refuse_operator_for_new_frames(fusion_options, in_chans, spike_channels)
        # The class of the operator decides how many of the input channels are image channels, and
        # how many channels the trunk gets.
        fusion_class = fusion_options.constructor
        self.image_chans, trunk_chans = fusion_class.channels(in_chans, spike_channels)
        check_arguments(design, self.image_chans, trunk_chans)

        self.upscale = upscale
        # Channels per frame after fusion.on_input. The argument in_chans may be None.
        self.in_chans = trunk_chans
        self.out_instants = out_instants
        self.out_chans = out_instants * out_chans
        self.pa_frames = pa_frames
        self.nonblind = nonblind_denoising
        self.memory_budget_gb = memory_budget_gb
        # Whether `fit` has nothing to do. Only checkpoint "auto" needs `fit`, and only once.
        self.is_fitted = checkpoint != "auto"
        self.notes: list[str] = []  # messages about this network for the training log
        needed_spikes = spike_channels if fusion_class.needs_spikes else 0
        self.input_spec: InputSpec = vrt_input_spec(design, self.image_chans, needed_spikes)

        # The modules below draw their initial weights one after the other. Build a new module after
        # all other modules, because all modules that are built later get different initial weights.
        self._build_input(design)
        self._build_stages(design)
        self._build_output(design)
        # Channels of the first features, then of stages 1 to 7: 8 numbers.
        widths = [embed_dims[0], *embed_dims[:7]]
        # The fusion operator that the options name. An error names the section "netG.fusion". The
        # two arguments at the end come from this program, and are no options of a file.
        self.fusion = FUSIONS.build(
            fusion_options, "netG.fusion", spike_channels=spike_channels, feature_channels=widths
        )
        self._init_for_scratch(spynet_path)

    # ---- Construction ------------------------------------------------------------------------

    def _build_input(self, design: Design) -> None:
        """Add the first convolution, and the network of the optical flow if frames are aligned."""
        if self.pa_frames:
            # The network sees each frame together with the frame before and the next frame, aligned
            # along the flow. The flow of a pixel points between four pixels of the other frame, and
            # the network sees all four. So an aligned frame has 4 * in_chans channels, and all
            # three frames have (1 + 4 + 4) * in_chans (`aligned_input` in flow.py). A noise map is
            # one more channel. E.g. RGB and a noise map: 9 * 3 + 1 = 28. `widen_first` (loading.py)
            # relies on these nine groups, and on the place of the noise map behind them.
            inputs = 9 * self.in_chans + int(self.nonblind)
        else:
            inputs = self.in_chans
        self.conv_first = FrameConv(inputs, design.embed_dims[0])
        if self.pa_frames:
            self.spynet = SpyNet()

    def _build_stages(self, design: Design) -> None:
        """Add the stages 1 to 8. The drop rates rise from block to block over all stages."""
        drop_rates = design.drop_rates()
        for entry in range(7):  # entry 0 of the lists is stage 1
            stage = build_stage(design, entry, drop_rates[entry])
            self.add_module(f"stage{entry + 1}", stage)
        self.stage8 = build_stage_8(design, drop_rates)

    def _build_output(self, design: Design) -> None:
        """Add the layers after the stages, which turn the features into frames.

        The released weights fix the 64 channels and the kernel sizes of these layers. The slope
        0.01 is the slope of the published network.
        """
        width = design.embed_dims[0]  # channels of the features that become frames
        width_of_stage_8 = design.embed_dims[-1]  # width of the last layer of stage 8
        self.norm = LayerNorm(width_of_stage_8)
        self.conv_after_body = nn.Linear(width_of_stage_8, width)
        if not self.pa_frames:  # interpolation: all frames are joined, then new frames are made
            frames = design.img_size[0]
            self.linear_fuse = nn.Conv2d(width * frames, 64, kernel_size=1)
            self.conv_last = nn.Conv2d(64, self.out_chans, kernel_size=7)
        elif self.upscale == 1:  # restoration: each frame is made from its own features
            self.conv_last = FrameConv(width, self.out_chans)
        else:  # super-resolution: the features are enlarged first
            self.conv_before_upsample = nn.Sequential(FrameConv(width, 64), nn.LeakyReLU(0.01))
            self.upsample = build_upsampling(self.upscale)
            self.conv_last = FrameConv(64, self.out_chans)

    def _init_for_scratch(self, spynet_path: str | None) -> None:
        """Initialise the network so that its last convolution gives zero before training.

        A network that restores frames adds the output of this convolution to its input, so it
        returns its input (test_a_fresh_network_returns_its_input_at_every_instant). A network that
        interpolates (pa_frames 0) adds the output to the mean colour of the clip, so it returns
        the mean colour.

        spynet_path: file with the weights of the flow network. If it is None, the flow is zero.
        """
        nn.init.zeros_(self.conv_last.weight)
        assert self.conv_last.bias is not None  # for the type checker
        nn.init.zeros_(self.conv_last.bias)
        if not self.pa_frames:  # no alignment, so no flow network
            return
        if spynet_path is None:
            self.notes.append(
                "netG.spynet_path is null: optical flow starts at zero and is learned"
            )
            start_with_zero_flow(self.spynet)
        else:
            load_flow(self.spynet, spynet_path)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the blocks with torch.compile, in place. torch.compile gets the arguments.

        Only the blocks are compiled, because compiling the whole network takes ten times as long.
        """
        import torch._dynamo  # the import takes seconds, so it waits until somebody compiles

        # A compiled block runs as a whole (`Block.forward_plain`). Its tensors for backward take
        # more memory than the tensors of a block in chunks of windows. On a CPU a compiled block
        # may still run in chunks (models/vrt/block.py). `in_cpu_form` says whether the network is
        # on a CPU.
        if not in_cpu_form(self.conv_first.weight) and utils_dist.is_main_process():
            logger.warning(
                "train.compile: compiled blocks keep more memory for backward than blocks in chunks"
            )
        # torch counts the compilations of `forward_plain` over all blocks together. With its own
        # limit it would run the later blocks uncompiled, see COMPILATIONS_OF_BLOCK.
        config: Any = torch._dynamo.config  # Any: the type checker takes the limit for a constant
        config.recompile_limit = max(COMPILATIONS_OF_BLOCK, config.recompile_limit)
        for block in self.modules():
            if isinstance(block, Block):
                block.forward_plain = torch.compile(block.forward_plain, *args, **options)
                block.is_compiled = True

    # ---- Forward -----------------------------------------------------------------------------

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        """Restore the frames of a clip, or make new frames.

        A network with pa_frames 0 aligns nothing. Such a network interpolates, as published: it
        makes new frames in the middle of the clip. All other networks restore the frames.

        lq: (B, N, C, H, W) in [0, 1]. C: image channels, then the noise map if there is one.
        spike: (B, N, S, H, W), or None if the fusion operator takes no spikes.

        Returns the restored frames, (B, N, out_instants * out_chans, upscale * H, upscale * W).
        Each frame has the channels of all its sharp instants: out_chans channels for each of them.
        If pa_frames is 0, returns the new frames, (B, out_chans / 3, 3, H, W). Each new frame has 3
        of the out_chans channels, e.g. out_chans 6 gives two new frames.
        """
        check_input(lq, self.input_spec)
        image = lq[:, :, : self.image_chans]
        noise_map = lq[:, :, self.image_chans :]  # (B, N, 0 or 1, H, W)
        fused = self.fusion.on_input(image, spike)  # (B, N, in_chans, H, W)
        if not self.pa_frames:
            return self._interpolate_frames(fused, spike)

        # Align the neighbours of each frame along the flow. RGB or grey is enough for the flow.
        rgb = image[:, :, :3]
        # flows[level]: (backward flows, forward flows) at 1 / 2**level of the resolution. A
        # backward flow warps a later frame to an earlier frame. A forward flow warps an earlier
        # frame to a later frame. Both are lists with one flow for each distance in frames: 1, 2,
        # ...
        flows = self.estimate_flows(rgb)
        backward, forward = flows[0]  # at full resolution
        to_previous = backward[0]  # at distance 1: warps each frame to the frame before
        to_next = forward[0]  # at distance 1: warps each frame to the next frame
        x = aligned_input(fused, to_previous, to_next)  # (B, N, 9 in_chans, H, W)
        if self.nonblind:
            x = torch.cat((x, noise_map), dim=2)

        # The network corrects the base: the input frames, or the frames that the fusion operator
        # makes of them. From here on the frames of all clips are one batch.
        x = self._features(x, flows, spike).flatten(0, 1)  # (B N, E, H, W)
        base = self.fusion.on_base(rgb, fused, spike).flatten(0, 1)  # (B N, 1 or out_chans, H, W)
        frames = self._to_frames(x, base)  # (B N, K out_chans, sH, sW)
        return frames.unflatten(0, lq.shape[:2])  # (B, N, K out_chans, sH, sW)

    def _to_frames(self, x: Tensor, base: Tensor) -> Tensor:
        """Make frames of the features, and add the base: (n, K out_chans, sH, sW).

        x: features, (n, E, H, W).
        base: the frames to which the network adds its output, (n, 1 or out_chans, H, W).
        """
        if self.upscale > 1:
            x = self.upsample(self.conv_before_upsample(x))
            base = F.interpolate(
                base, scale_factor=self.upscale, mode="bilinear", align_corners=False
            )
        x = self.conv_last(x)  # (n, K out_chans, sH, sW)
        # All K instants have the same base. The one channel of a grey base is added to each colour.
        instants = x.unflatten(1, (self.out_instants, -1))  # (n, K, out_chans, sH, sW)
        instants = instants + base[:, None]
        return instants.flatten(1, 2)

    def _interpolate_frames(self, fused: Tensor, spike: Tensor | None) -> Tensor:
        """Make new frames in the middle of the clip.

        fused: result of fusion.on_input, (B, N, C, H, W).
        spike: (B, N, S, H, W), or None if the fusion operator takes no spikes.

        Returns (B, out_chans / 3, 3, H, W).
        """
        height, width = fused.shape[3:]
        # The network sees the frames minus the mean colour of the clip. The mean is added again at
        # the end.
        mean = fused.mean((1, 3, 4), keepdim=True)  # (B, 1, C, 1, 1): over frames and pixels
        x = self._features(fused - mean, flows=None, spike=spike)  # (B, N, E, H, W)
        x = x.flatten(1, 2)  # (B, N E, H, W): the features of all frames as channels
        x = F.leaky_relu(self.linear_fuse(x), negative_slope=0.2)  # (B, 64, H, W)
        x = F.pad(x, (3, 3, 3, 3), mode="reflect")  # 3 pixels at each side, for the 7x7 kernel
        x = self.conv_last(x)  # (B, out_chans, H, W)
        new_frames = x.view(len(x), -1, 3, height, width)  # (B, out_chans / 3, 3, H, W)
        # C is 3 or 1. If C is 1, the one mean is added to each of the 3 colours.
        return new_frames + mean

    def fit(self, lq: Tensor, spike: Tensor | None = None) -> None:
        """Choose which branches are recomputed in training steps on clips of this size, once.

        A branch is the attention or the MLP of a block. If the backward pass recomputes it, less
        memory is needed. With checkpoint "auto", the choice lets a step fit into memory_budget_gb.
        With checkpoint null, this function does nothing. Afterwards the weights have no gradients.

        ModelVRT calls `fit` before the first step, also on a user's network that has such a method.
        """
        if self.is_fitted:
            return
        self.is_fitted = True
        # Ask for the size of the GPU only here. The constructor runs before the process has chosen
        # its GPU. If the constructor asked, each process would take memory on GPU 0.
        budget_gb = self.memory_budget_gb
        if budget_gb is None:
            budget_gb = GPU_SHARE * devices.total_gb(lq.device)

        def forward_of_step() -> Tensor:
            return self(lq, spike)

        fit_memory(self, forward_of_step, budget_gb)

    def estimate_flows(self, frames: Tensor) -> Flows:
        """Estimate the flows between neighbouring frames (B, N, 1 or 3, H, W).

        The flows must be exact, because they decide which pixels `nearest4` (flow_warp.py) takes:
        for a shift of 2.999 the pixels 2 and 3 to the right, but for 3.001 the pixels 3 and 4. So
        the flows are float32 or float64, also under autocast, and computed without TF32. TF32 is a
        less exact arithmetic that torch uses by default in cuDNN's convolutions.
        (test_flows_have_full_precision_under_autocast)

        The backward pass of the flow network runs after this function. So in the backward pass,
        TF32 is on or off as the caller has set it. TF32 does no harm there, because gradients
        choose no pixels.
        """
        with torch.autocast(frames.device.type, enabled=False), tf32(is_on=False):
            if frames.dtype != torch.float64:
                frames = frames.float()
            distance = self.pa_frames // 2  # neighbours on either side
            return estimate_flows(self.spynet, frames, distance)

    def _features(self, x: Tensor, flows: Flows | None, spike: Tensor | None) -> Tensor:
        """Compute the features of the frames: (B, N, channels of x, H, W) -> (B, N, E, H, W).

        The first convolution makes shallow features. The stages make deep features of the shallow
        features. The result is the sum of both.

        The arithmetic must stay, because released weights fit it
        (test_the_plain_transcription_gives_the_reference_output).

        The result is a view of (B, N, H, W, E), because the stages compute with the channels last.

        flows: the result of `estimate_flows`. None if nothing is aligned.
        spike: (B, N, S, H, W), or None if the fusion operator takes no spikes.
        """
        clips, frames = x.shape[:2]
        shallow = self.conv_first(x.flatten(0, 1))  # (B N, E, H, W)
        shallow = shallow.permute(0, 2, 3, 1)  # (B N, H, W, E)
        shallow = shallow.reshape(clips, frames, *shallow.shape[1:])  # (B, N, H, W, E)
        shallow = self.fusion.on_features(shallow, spike)

        # The U-net, with its skip connections:
        #   output of stage 3   added before stage 6
        #   output of stage 2   added before stage 7
        #   output of stage 1   added after stage 7
        # The last output is added first, so `skips` is a stack. `pop` also frees the memory of the
        # output after the sum.
        x = shallow
        skips = []
        for number, scale in enumerate(STAGE_SCALES, start=1):  # scales 1, 2, 4, 8, 4, 2, 1
            if number in (6, 7):
                x = x + skips.pop()
            if flows is None:  # nothing is aligned
                backward = []
                forward = []
            else:
                level = int(math.log2(scale))  # scales 1, 2, 4, 8 -> levels 0, 1, 2, 3
                backward, forward = flows[level]
            stage = getattr(self, f"stage{number}")
            x = stage(x, flows_backward=backward, flows_forward=forward)
            x = self.fusion.on_stage(number, x, spike)  # most operators return x as it is
            if number in (1, 2, 3):
                skips.append(x)
        x = x + skips.pop()

        for layer in self.stage8:
            x = layer(x)
        x = shallow + self.conv_after_body(self.norm(x))  # (B, N, H, W, E)
        return x.permute(0, 1, 4, 2, 3)  # (B, N, E, H, W)


def _refuse_operator_for_new_frames(
    fusion_options: Any, in_chans: int | None, spike_channels: int
) -> None:
    """Raise OptionError if a network that interpolates cannot have this fusion operator.

    fusion_options: the section netG.fusion.
    in_chans: the option netG.in_chans.
    """
    # Ask the operator how many channels the trunk (the network behind the operator) would get
    # without the option in_chans, because the error names this number.
    _, own_trunk_chans = fusion_options.constructor.channels(None, spike_channels)
    refuse_fusion_for_new_frames(
        fusion_options.type, own_trunk_chans, has_in_chans=in_chans is not None
    )
