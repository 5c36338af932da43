"""VRT, the Video Restoration Transformer (Liang et al., arXiv 2201.12288), on RGB or RGB + spike
clips.

Written from a description of the published network's arithmetic; released weights load by name.
This file connects the parts, which are in models/vrt/ and models/fusion/:

    frames, spikes -> fusion.on_input -> align neighbours along the optical flow -> conv_first
      -> stages 1 to 4 (each at half the resolution of the one before)
      -> stages 5 to 7 (each at twice the resolution, with skip connections from stages 3 to 1)
      -> stage 8 (at full resolution) -> conv_last -> add the input frames

`check_arguments` refuses options that do not fit together, `check_input` refuses clips.

What must stay, and which test notices:

    the names of modules, which are     test_state_dict_of_a_released_model_has_its_keys_in_order
    names in the released weights
    the arithmetic                      test_the_plain_transcription_gives_the_reference_output
    the order in which modules are      test_exact_step.py, which has the numbers of a step
    built, which decides their
    random initial weights

Free to change: the texts of errors. A new option needs a default that changes nothing.

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

from models.fusion.operators import FUSIONS
from models.select_network import NETWORKS
from models.vrt.block import Block
from models.vrt.flow import Flows, SpyNet, aligned_input, estimate_flows
from models.vrt.forms import Kernels, in_cpu_form
from models.vrt.layers import FrameConv, LayerNorm, tf32
from models.vrt.memory.fit_memory import fit_memory
from models.vrt.stages import RefineLayer, Stage
from models.weights_file import read_weights
from utils import device as devices
from utils import utils_dist
from utils.contract import InputSpec
from utils.errors import PUBLISHED, DataError, OptionError

logger = logging.getLogger(__name__)

# How stages 1 to 7 change the resolution at their entry: not, to half of it, or to twice of it.
KINDS = ("none", "down", "down", "down", "up", "up", "up")
# Size of the input / size in stages 1 to 7.
STAGE_SCALES = (1, 2, 4, 8, 4, 2, 1)
# KAIR's scripts download this file. If it is missing, the flow weights that this project ships are
# used.
PUBLISHED_FLOW = "model_zoo/vrt/spynet_sintel_final-3d2a1287.pth"
OWN_FLOW = Path(__file__).parent / "vrt/spynet_scenes.pth"
# Share of a GPU's memory that a step may use with checkpoint "auto", unless memory_budget_gb says
# otherwise. The need of a step is an estimate, so with a larger share a step may run out of memory.
# With a smaller share more branches are recomputed, which takes time.
GPU_SHARE = 0.9
# torch compiles a function again for each kind of input, up to this number of times. Above it,
# torch runs the function without compiling it. torch's own limit is 8. The blocks of VRT have more
# kinds: each width, mask and size, mutual and self attention. 64 is well above their number.
COMPILATIONS_OF_BLOCK = 64
# Height and width must be multiples of this number, because the U-net halves them three times.
UNET_MULTIPLE = 8


# `given`: the program gives this argument. All other arguments are options of netG.
@NETWORKS.register("vrt", given=("spike_channels",))
class VRT(nn.Module):
    """Restores all frames of a clip together: (B, N, C, H, W) in [0, 1] -> (B, N, out_chans, sH,
    sW).

    upscale: 1 (restoration), 3 or a power of two (super-resolution).
    in_chans: number of input channels of the trunk (the network behind the fusion operator),
    without a noise map. With null the fusion operator gives the number.
    img_size: [frames, height, width]. If pa_frames is 0, each clip must have this number of frames.
    window_size: [frames, height, width] of an attention window.
    depths, embed_dims, num_heads: number of blocks, of channels, and of attention heads. Entries 0
    to 6 are for stages 1 to 7. All further entries are for the layers of stage 8.
    indep_reconsts: indices into depths of the layers that process each frame separately.
    mul_attn_ratio: share of the blocks of a stage that have mutual attention.
    pa_frames: number of neighbours that are aligned to each frame, 2, 4 or 6. With 0 the network
    interpolates frames.
    spynet_path: file with the weights of the flow network. With null the flow is zero at first.
    use_checkpoint_attn, use_checkpoint_ffn: whether backward recomputes this branch of every block,
    except in the stages of no_checkpoint_attn_blocks, no_checkpoint_ffn_blocks (indices into
    depths).
    checkpoint: "auto" chooses the recomputed branches so that a step fits memory_budget_gb. If the
    budget is null, it is 90 % of the GPU. With checkpoint null, the four keys above decide.
    kernels: "auto" runs blocks in chunks that backward recomputes. "plain" runs each block as a
    whole under torch's autograd.
    fusion: how the spikes enter.
    out_instants: number K of sharp frames for each blurry frame, at the middles of K equal parts of
    the exposure. K is odd. The published network has 1.

    With out_instants K the output is (B, N, K out_chans, sH, sW) in the order of time. The frame in
    the middle is the frame of gt.
    """

    # Options that former versions had -> the only value that this version accepts. Weights files
    # of former versions still name them.
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
        # Share of a stage's blocks, from its first on, that have mutual attention: the two frames
        # of a window attend to each other.
        mul_attn_ratio: float = 0.75,
        mlp_ratio: float = 2.0,  # width of the hidden layer of a block's MLP / width of the block
        qkv_bias: bool = True,  # whether queries, keys and values have a bias
        qk_scale: float | None = None,  # factor of the attention's logits; None: the published one
        # Probability of dropping a branch of the last block. It rises from 0 in the first block.
        drop_path_rate: float = 0.2,
        spynet_path: str | None = None,
        pa_frames: Literal[0, 2, 4, 6] = 2,
        deformable_groups: int = 16,  # the channels of a group are aligned with the same offsets
        nonblind_denoising: bool = False,  # whether the last input channel is a noise map
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
        # All arguments by name, e.g. options["upscale"]. `self` and `__class__` come from Python.
        options = dict(locals())
        del options["self"]
        del options["__class__"]
        # The class of the fusion operator decides how many of the input channels are image channels
        # and how many channels the trunk gets. `resolve` checks the section and fills in defaults.
        fusion_options = FUSIONS.resolve(fusion, "netG.fusion")
        fusion_class = fusion_options.constructor
        self.image_chans, trunk_chans = fusion_class.channels(in_chans, spike_channels)
        check_arguments(options, self.image_chans)

        self.upscale = upscale
        self.in_chans = trunk_chans  # channels per frame after fusion.on_input
        self.out_instants = out_instants
        self.out_chans = out_instants * out_chans
        self.pa_frames = pa_frames
        self.nonblind = nonblind_denoising
        self.memory_budget_gb = memory_budget_gb
        # Whether `fit` has nothing left to do: it has run, or checkpoint is null.
        self.is_fitted = checkpoint != "auto"
        self.notes: list[str] = []  # messages about this network for the training log
        needed_spikes = spike_channels if fusion_class.needs_spikes else 0
        self.input_spec: InputSpec = vrt_input_spec(options, self.image_chans, needed_spikes)

        # The order of the following lines decides which random numbers the weights get. A new
        # module goes behind them, or every run from scratch starts from other weights.
        if pa_frames:
            # Each frame, and the four nearest pixels in each of its two neighbours: 9 groups of
            # channels. flow.aligned_input makes them.
            inputs = 9 * trunk_chans + int(nonblind_denoising)
        else:
            inputs = trunk_chans
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

    def _build(self, options: dict[str, Any]) -> None:
        """Add the stages, and the layers behind them, in the order of the forward pass.

        options: the arguments of the constructor.
        """
        drop_rates = _drop_rates(options["depths"], options["drop_path_rate"])
        self._build_stages_1_to_7(options, drop_rates)
        self._build_stage_8(options, drop_rates)
        self._build_output(options)

    def _build_stages_1_to_7(self, options: dict[str, Any], drop_rates: list[list[float]]) -> None:
        """Add the stages of the U-net.

        drop_rates: for each entry of `depths`, the probabilities of dropping a branch, one per
        block (see `_drop_rates`).
        """
        dims = options["embed_dims"]

        # `entry` is the index into the lists of the options. Entry 0 is stage 1.
        for entry, (kind, scale) in enumerate(zip(KINDS, STAGE_SCALES, strict=True)):
            width_before = dims[entry - 1] if entry > 0 else dims[0]
            depth = options["depths"][entry]
            # The first blocks of a stage have mutual attention. The other blocks have
            # self-attention alone.
            mutual_depth = int(depth * options["mul_attn_ratio"])
            stage = Stage(
                kind,
                inputs=width_before,
                dim=dims[entry],
                depth=depth,
                heads=options["num_heads"][entry],
                window=tuple(options["window_size"]),
                mutual_depth=mutual_depth,
                drop_path=drop_rates[entry],
                pa_frames=options["pa_frames"],
                deformable_groups=options["deformable_groups"],
                scale=scale,
                **_block_options(options, entry),
            )
            self.add_module(f"stage{entry + 1}", stage)

    def _build_stage_8(self, options: dict[str, Any], drop_rates: list[list[float]]) -> None:
        """Add stage 8: a linear layer to its width, then the layers of the entries 7, 8, ... .

        drop_rates: for each entry of `depths`, the probabilities of dropping a branch, one per
        block.
        """
        depths = options["depths"]
        dims = options["embed_dims"]
        window = tuple(options["window_size"])
        # From the width of stage 7 to the width of stage 8. nn.Identity takes place 0, because the
        # released weights have the names stage8.0.1 (the norm) and stage8.0.2 (the linear layer).
        to_width = nn.Sequential(nn.Identity(), LayerNorm(dims[6]), nn.Linear(dims[6], dims[7]))
        self.stage8 = nn.ModuleList([to_width])
        single_frame = (1, *window[1:])  # a window within one frame, for indep_reconsts
        for entry in range(7, len(depths)):
            is_single_frame = entry in options["indep_reconsts"]
            layer = RefineLayer(
                dim=dims[entry],
                depth=depths[entry],
                heads=options["num_heads"][entry],
                window=single_frame if is_single_frame else window,
                drop_path=drop_rates[entry],
                **_block_options(options, entry),
            )
            self.stage8.append(layer)

    def _build_output(self, options: dict[str, Any]) -> None:
        """Add the layers that make frames of the features."""
        dims = options["embed_dims"]
        self.norm = LayerNorm(dims[-1])
        self.conv_after_body = nn.Linear(dims[-1], dims[0])

        # Frames are made in one of three ways. The released weights fix the 64 channels and the
        # kernel sizes of these layers.
        if not self.pa_frames:  # interpolation: all frames are joined, then new frames are made
            frames = options["img_size"][0]
            self.linear_fuse = nn.Conv2d(dims[0] * frames, 64, kernel_size=1)
            self.conv_last = nn.Conv2d(64, self.out_chans, kernel_size=7)
        elif self.upscale == 1:  # restoration: each frame is made from its own features
            self.conv_last = FrameConv(dims[0], self.out_chans)
        else:  # super-resolution
            self._build_upsampling(dims[0])

    def _build_upsampling(self, dim: int) -> None:
        """Add the layers of super-resolution. dim: channels of the features.

        The slopes for negative values (0.01 and 0.1) are those of the published network.
        """
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
        conv_name = 0
        for factor in factors:
            # The pixel shuffle moves factor^2 channels to factor x factor pixels.
            self.upsample.add_module(f"{conv_name}", FrameConv(64, 64 * factor * factor))
            self.upsample.add_module(f"{conv_name + 1}", nn.PixelShuffle(factor))
            self.upsample.add_module(f"{conv_name + 2}", nn.LeakyReLU(0.1))
            conv_name += 5
        self.upsample.add_module(f"{conv_name}", FrameConv(64, 64))
        self.conv_last = FrameConv(64, self.out_chans)

    def _init_for_scratch(self, spynet_path: str | None) -> None:
        """Initialise the network so that it returns its input before training.

        The last convolution is zero, so nothing is added to the input
        (test_a_fresh_network_returns_its_input_at_every_instant). The flow network SpyNet gets its
        weights from the file spynet_path. If the path is None, it starts with zero flow.
        """
        nn.init.zeros_(self.conv_last.weight)
        assert self.conv_last.bias is not None
        nn.init.zeros_(self.conv_last.bias)
        if not self.pa_frames:  # no alignment, so no flow network
            return
        if spynet_path is None:
            self._start_with_zero_flow()
        else:
            self._start_with_flow_of(spynet_path)

    def _start_with_zero_flow(self) -> None:
        """Set the last layer of each level of SpyNet to zero. A random flow would misalign."""
        self.notes.append("netG.spynet_path is null: optical flow starts at zero and is learned")
        levels: Any = self.spynet.basic_module
        for level in levels:
            last_layer = level.basic_module[-1]
            nn.init.zeros_(last_layer.weight)
            nn.init.zeros_(last_layer.bias)

    def _start_with_flow_of(self, spynet_path: str) -> None:
        """Load the weights of SpyNet from a file, or the shipped weights in place of KAIR's file.

        Raises OptionError if any other file is missing.
        """
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
        weights = read_weights(spynet_path, key="netG.spynet_path")
        # Some files lack the two constants of the normalisation. The network has their values.
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
        """Compile the blocks with torch.compile, in place. torch.compile gets the arguments.

        Only the blocks are compiled, because compiling the whole network takes ten times as long.
        """
        import torch._dynamo  # the import takes seconds, so it waits until somebody compiles

        if not in_cpu_form(self.conv_first.weight) and utils_dist.is_main_process():
            logger.warning(
                "train.compile: compiled blocks keep more memory for backward than blocks in chunks"
            )
        # All blocks share the code of `forward_plain`, and torch counts its compilations. Above
        # the limit torch would run the code without compiling it.
        # Any, because the type checker takes the limit for a constant, its default value.
        config: Any = torch._dynamo.config
        config.recompile_limit = max(COMPILATIONS_OF_BLOCK, config.recompile_limit)
        for block in self.modules():
            if isinstance(block, Block):
                block.forward_plain = torch.compile(block.forward_plain, *args, **options)
                block.is_compiled = True

    # ---- Forward -----------------------------------------------------------------------------

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        """Restore the frames of a clip. If pa_frames is 0, make new frames in the middle of it.

        lq: (B, N, C, H, W) in [0, 1]. C: image channels, then the noise map if there is one.
        spike: (B, N, S, H, W), or None if the fusion operator takes no spikes.

        Returns the restored frames, (B, N, out_instants * out_chans, upscale * H, upscale * W). If
        pa_frames is 0, returns the new frames, (B, out_chans / 3, 3, H, W).
        """
        check_input(lq, self.input_spec)
        image = lq[:, :, : self.image_chans]
        noise_map = lq[:, :, self.image_chans :]  # (B, N, 0 or 1, H, W)
        trunk = self.fusion.on_input(image, spike)  # (B, N, in_chans, H, W)
        if not self.pa_frames:
            return self._interpolate_frames(trunk, spike)

        # Align the neighbours of each frame along the flow, which is estimated from RGB or gray.
        rgb = image[:, :, :3]
        # flows[level]: (backward flows, forward flows) at 1 / 2**level of the resolution. Each is a
        # list with a flow for each distance in frames: 1, 2, ... Here: level 0, distance 1.
        flows = self.estimate_flows(rgb)
        backward, forward = flows[0]
        x = aligned_input(trunk, backward[0], forward[0])  # (B, N, 9 in_chans, H, W)
        if self.nonblind:
            x = torch.cat((x, noise_map), dim=2)

        # The network computes what is to be added to the base. The base is the input frames, or the
        # frames that the fusion operator makes of the input frames. From here the frames of all
        # clips are one batch.
        x = self._features(x, flows, spike).flatten(0, 1)  # (B N, E, H, W)
        base = self.fusion.on_base(rgb, trunk, spike).flatten(0, 1)  # (B N, 1 or out_chans, H, W)
        if self.upscale > 1:
            x = self.upsample(self.conv_before_upsample(x))
            base = F.interpolate(
                base, scale_factor=self.upscale, mode="bilinear", align_corners=False
            )
        # Each of the K instants is added to the same base. A gray base, with one channel, is added
        # to each colour.
        x = self.conv_last(x)  # (B N, K out_chans, sH, sW)
        instants = x.unflatten(1, (self.out_instants, -1))  # (B N, K, out_chans, sH, sW)
        instants = instants + base[:, None]
        x = instants.flatten(1, 2)
        batch_and_frames = lq.shape[:2]
        return x.view(*batch_and_frames, *x.shape[1:])

    def _interpolate_frames(self, trunk: Tensor, spike: Tensor | None) -> Tensor:
        """Make new frames in the middle of the clip.

        trunk: result of fusion.on_input, (B, N, C, H, W). Returns (B, out_chans / 3, 3, H, W).
        """
        height, width = trunk.shape[3:]
        # The network sees the frames without the mean colour of the clip. The mean is added to the
        # new frames at the end.
        mean = trunk.mean((1, 3, 4), keepdim=True)  # (B, 1, C, 1, 1): over frames and pixels
        x = self._features(trunk - mean, flows=None, spike=spike)  # (B, N, E, H, W)
        x = x.flatten(1, 2)  # (B, N E, H, W): the features of all frames as channels
        x = F.leaky_relu(self.linear_fuse(x), negative_slope=0.2)  # (B, 64, H, W)
        x = F.pad(x, (3, 3, 3, 3), mode="reflect")  # 3 pixels at each side, for the 7x7 kernel
        x = self.conv_last(x)  # (B, out_chans, H, W)
        return x.view(len(x), -1, 3, height, width) + mean  # (B, out_chans / 3, 3, H, W)

    def fit(self, lq: Tensor, spike: Tensor | None = None) -> None:
        """Choose the recomputed branches for training steps on clips of this size, once.

        With checkpoint "auto", a step then fits into memory_budget_gb. Otherwise this does nothing.
        ModelVRT calls this before the first step. No gradients are left behind. A network that a
        user adds may have a method with this name and these arguments, too.
        """
        if self.is_fitted:
            return
        self.is_fitted = True
        # Ask for the size of the GPU only now. The constructor runs before the process has chosen
        # its GPU, so asking in the constructor would let each process take memory on GPU 0.
        budget = self.memory_budget_gb
        if budget is None:
            budget = GPU_SHARE * devices.total_gb(lq.device)

        def forward_of_step() -> Tensor:
            return self(lq, spike)

        fit_memory(self, forward_of_step, budget)

    def estimate_flows(self, frames: Tensor) -> Flows:
        """Estimate the flows between neighbouring frames (B, N, 1 or 3, H, W).

        The flows are float32 or float64 under any autocast, because sampling the nearest pixel
        amplifies rounding. If a flow is rounded across the middle between two pixels, the other
        pixel is sampled. So TF32, which torch uses by default in cuDNN's convolutions, is off here.
        The backward pass of the flow network runs later, with the settings of the caller.
        """
        with torch.autocast(frames.device.type, enabled=False), tf32(is_on=False):
            if frames.dtype != torch.float64:
                frames = frames.float()
            distance = self.pa_frames // 2  # neighbours on either side
            return estimate_flows(self.spynet, frames, distance)

    def _features(self, x: Tensor, flows: Flows | None, spike: Tensor | None) -> Tensor:
        """Compute shallow plus deep features: (B, N, channels of x, H, W) -> (B, N, E, H, W).

        The result is channels last: a view of (B, N, H, W, E), in which all stages compute.
        flows: the flows between neighbouring frames at four scales, flows[level] = (backward flows,
        forward flows) at 1 / 2**level of the resolution. None if nothing is aligned.
        """
        clips, frames = x.shape[:2]
        shallow = self.conv_first(x.flatten(0, 1))  # (B N, E, H, W)
        shallow = shallow.permute(0, 2, 3, 1)  # (B N, H, W, E)
        shallow = shallow.reshape(clips, frames, *shallow.shape[1:])  # (B, N, H, W, E)
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
            if flows is None:  # pa_frames is 0: nothing is aligned
                backward = []
                forward = []
            else:
                # The scales 1, 2, 4, 8 have the levels 0, 1, 2, 3.
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
        x = shallow + self.conv_after_body(self.norm(x))  # (B, N, H, W, E)
        return x.permute(0, 1, 4, 2, 3)  # (B, N, E, H, W)


def _drop_rates(depths: list[int], last_rate: float) -> list[list[float]]:
    """Return, for each entry of `depths`, the probabilities of dropping a branch, one per block.

    The probabilities grow evenly over all blocks, from 0 to last_rate. E.g. depths [2, 1] and
    last_rate 0.2 -> [[0, 0.1], [0.2]].
    """
    # Always on the CPU. The default device may be "meta", whose tensors have no numbers.
    rates = torch.linspace(0, last_rate, sum(depths), device="cpu").tolist()
    rates_of_stages = []
    first = 0
    for depth in depths:
        rates_of_stages.append(rates[first : first + depth])
        first += depth
    return rates_of_stages


def _block_options(options: dict[str, Any], entry: int) -> dict[str, Any]:
    """Return the arguments of `Block` that a stage or layer passes on to its blocks.

    options: the arguments of VRT. entry: index into `depths`, 0 to 6 for the stages 1 to 7, then
    the layers of stage 8.
    """
    arguments = {key: options[key] for key in ("mlp_ratio", "qkv_bias", "qk_scale", "kernels")}
    for branch in ("attn", "ffn"):  # attention, and the gated MLP
        is_exempt = entry in options[f"no_checkpoint_{branch}_blocks"]
        recomputes = options[f"use_checkpoint_{branch}"] and not is_exempt
        arguments[f"checkpoint_{branch}"] = recomputes
    return arguments


# ---- Requirements on the input ---------------------------------------------------------------
#
# The spec is what tiles, padding and the checks of data rely on. If a layer comes to need larger
# clips, the spec must say so (test_clips_that_cannot_go_through_are_refused).


def vrt_input_spec(options: dict[str, Any], image_channels: int, spike_channels: int) -> InputSpec:
    """Return what a VRT with these arguments requires of its input.

    E.g. with windows of 6 x 8 x 8 and mutual attention: at least 2 frames of 64 x 64 pixels.
    """
    window_frames, window_height, window_width = options["window_size"]
    # pa_frames is 0 in the published network for interpolation alone. Its layers behind stage 8
    # make new frames from the features of all frames.
    interpolates = options["pa_frames"] == 0

    # Stage 4 has 1/8 of the resolution. Mutual attention needs a whole window there, too. The share
    # mul_attn_ratio of the blocks of a stage, rounded down, has mutual attention.
    depth_of_stage4 = options["depths"][3]
    mutual_blocks = int(depth_of_stage4 * options["mul_attn_ratio"])
    has_mutual = mutual_blocks > 0
    if has_mutual:
        least_size = (UNET_MULTIPLE * window_height, UNET_MULTIPLE * window_width)
    else:
        least_size = (UNET_MULTIPLE, UNET_MULTIPLE)

    if interpolates:
        # The layers behind stage 8 have weights for exactly this number of frames.
        least_frames = options["img_size"][0]
    else:
        # A window of mutual attention has two frames. The farthest aligned neighbour must exist.
        least_for_mutual = 2 if has_mutual else 1
        farthest = options["pa_frames"] // 2  # distance in frames
        least_frames = max(least_for_mutual, farthest + 1)
    return InputSpec(
        stride=UNET_MULTIPLE,
        window_size=(window_frames, window_height, window_width),
        least_size=least_size,
        least_frames=least_frames,
        scale=options["upscale"],
        image_channels=image_channels,
        noise_map=options["nonblind_denoising"],
        spike_channels=spike_channels,
        interpolates=interpolates,
        out_instants=options["out_instants"],
    )


def check_input(x: Tensor, spec: InputSpec) -> None:
    """Raise DataError if a network with this spec cannot take the clip x (B, N, C, H, W)."""
    channels = spec.image_channels + int(spec.noise_map)  # a noise map is one more channel
    what = f"a clip of shape {tuple(x.shape)}"
    where = "forward(lq, spike)"
    if x.dim() != 5 or x.shape[2] != channels:
        raise DataError(
            what=what,
            where=where,
            expected=f"(B, N, {channels}, H, W)",
            do="check in_chans, fusion and the data",
        )
    _, frames, _, height, width = x.shape
    least_height, least_width = spec.least_size
    if frames < spec.least_frames:
        expected = f"at least {spec.least_frames} frames"
        do = "use a longer clip, or extend it by mirrored frames"
    elif height % spec.stride != 0 or width % spec.stride != 0:
        expected = f"height and width that are multiples of {spec.stride}"
        do = "crop the clip, or pad it by reflection and crop the result"
    elif height < least_height or width < least_width:
        expected = f"at least {least_height} x {least_width} pixels: 8 times the attention window"
        do = "use larger crops or tiles, or a smaller netG.window_size"
    else:
        return
    raise DataError(what=what, where=where, expected=expected, do=do)


# ---- Checks of the options -------------------------------------------------------------------
#
# Each check is a call of `_need(is_valid, key, got, expected)`, at the end of this file. The first
# invalid key is an OptionError, so the order of the calls decides which key the user sees first.
# test_sizes_that_do_not_fit_together_are_refused_by_name has wrong values for most of the rules.


def check_arguments(options: dict[str, Any], image_channels: int) -> None:
    """Raise OptionError, naming the key of netG, if the arguments of VRT do not fit together.

    options: the arguments by name. image_channels: number of image channels per frame.
    """
    _check_lists(options)
    _check_widths(options)
    if options["checkpoint"] == "auto" and options["memory_budget_gb"] is None:
        # The GPUs are counted only here: counting may begin to use the driver of the GPU, which a
        # process must not do before it forks.
        _need(
            devices.count() > 0,
            "memory_budget_gb",
            'null with checkpoint "auto"',
            "gigabytes; it has a default on a GPU only",
        )
    upscale = options["upscale"]
    is_power_of_two = upscale.bit_count() == 1  # e.g. 4 is 100 in binary
    _need(upscale == 3 or is_power_of_two, "upscale", f"{upscale}", "1, 3 or a power of two")
    pa_frames = options["pa_frames"]
    _need(pa_frames in (0, 2, 4, 6), "pa_frames", f"{pa_frames}", "0, 2, 4 or 6")
    instants = options["out_instants"]
    is_odd = instants >= 1 and instants % 2 == 1
    expected = "an odd number: the middle instant is the instant of gt"
    _need(is_odd, "out_instants", f"{instants}", expected)
    if pa_frames:
        _check_alignment(options, image_channels)
    else:
        _check_interpolation(options)


def _check_lists(options: dict[str, Any]) -> None:
    """Check the lengths and entries of the lists."""
    depths = options["depths"]
    _need(
        len(depths) >= 8,
        "depths",
        f"{len(depths)} entries",
        "7 stages and at least one layer of stage 8",
    )
    for key in ("embed_dims", "num_heads"):
        values = options[key]
        expected = f"{len(depths)}, as many as depths"
        _need(len(values) == len(depths), key, f"{len(values)} entries", expected)
        _need(min(values) >= 1, key, f"{values}", "positive integers")
    _need(min(depths) >= 0, "depths", f"{depths}", "integers >= 0")
    for key in ("window_size", "img_size"):
        sizes = options[key]
        is_valid = len(sizes) == 3 and min(sizes) >= 1
        _need(is_valid, key, f"{sizes}", "[frames, height, width]")
    # The entries of these lists are indices into depths. Only the layers of stage 8, from index 7,
    # may be in indep_reconsts.
    last = len(depths) - 1
    for key in ("indep_reconsts", "no_checkpoint_attn_blocks", "no_checkpoint_ffn_blocks"):
        first = 7 if key == "indep_reconsts" else 0
        is_inside = all(first <= index <= last for index in options[key])
        _need(is_inside, key, f"{options[key]}", f"indices into depths, {first} to {last}")


def _check_widths(options: dict[str, Any]) -> None:
    """Check the channels of each stage."""
    depths = options["depths"]
    dims = options["embed_dims"]
    heads = options["num_heads"]
    for i, dim in enumerate(dims):
        key = f"embed_dims[{i}]"
        _need(dim % heads[i] == 0, key, f"{dim}", f"a multiple of num_heads[{i}] = {heads[i]}")
        # The positions of mutual attention are pairs of sine and cosine. Half of the channels are
        # for rows, and half for columns. So there are groups of 4 channels.
        mutual_blocks = int(depths[i] * options["mul_attn_ratio"])
        has_mutual = i < 7 and mutual_blocks > 0  # stage 8 has no mutual attention
        is_valid = not has_mutual or dim % 4 == 0
        _need(is_valid, key, f"{dim}", "a multiple of 4, for mutual attention")
    for i in (3, 4, 5):
        expected = "a multiple of 4: the next stage unfolds 2x2 patches"
        _need(dims[i] % 4 == 0, f"embed_dims[{i}]", f"{dims[i]}", expected)
    # The outputs of stages 5, 6, 7 are added to the outputs of stages 3, 2, 1. Stage 1 is index 0.
    for late, early in ((4, 2), (5, 1), (6, 0)):
        expected = f"{dims[early]} = embed_dims[{early}], because of the skip connection"
        _need(dims[late] == dims[early], f"embed_dims[{late}]", f"{dims[late]}", expected)
    of_stage8 = dims[7:]
    different_widths = set(of_stage8)
    _need(
        len(different_widths) == 1,
        "embed_dims",
        f"{of_stage8} in stage 8",
        "one width for all layers of stage 8",
    )


def _check_alignment(options: dict[str, Any], image_channels: int) -> None:
    """Check the options of a network that aligns neighbours."""
    # Each frame is aligned with as many frames before it as behind it.
    on_either_side = options["pa_frames"] // 2
    groups = options["deformable_groups"]
    _need(groups >= 1, "deformable_groups", f"{groups}", "an integer >= 1")
    for i, dim in enumerate(options["embed_dims"][:7]):
        expected = f"a multiple of {on_either_side} = pa_frames / 2"
        _need(dim % on_either_side == 0, f"embed_dims[{i}]", f"{dim}", expected)
        # The neighbours of one side are aligned together, and their channels are divided into
        # groups.
        aligned_channels = on_either_side * dim
        expected = f"a divisor of {aligned_channels} = pa_frames / 2 * embed_dims[{i}]"
        _need(aligned_channels % groups == 0, "deformable_groups", f"{groups}", expected)
    # A group has an offset (dy, dx) for each of the 9 points of a 3x3 kernel: 18 channels. These
    # channels are divided equally among the neighbours of one side, in pairs.
    offset_channels = 18 * groups
    expected = f"a multiple of {on_either_side} = pa_frames / 2"
    is_valid = offset_channels % (2 * on_either_side) == 0
    _need(is_valid, "deformable_groups", f"{groups}", expected)
    expected = "1 (gray) or at least 3 (RGB first)"
    is_valid = image_channels == 1 or image_channels >= 3
    _need(is_valid, "in_chans", f"{image_channels}", expected)
    # The output is added to gray or RGB frames. A gray frame is added to each output channel.
    base_channels = min(image_channels, 3)
    out_chans = options["out_chans"]
    expected = f"{base_channels}: the output is added to the first {base_channels} input channels"
    _need(base_channels in (1, out_chans), "out_chans", f"{out_chans}", expected)


def _check_interpolation(options: dict[str, Any]) -> None:
    """Check the options of a network that makes new frames (pa_frames 0)."""
    # Each new frame has three channels.
    out_chans = options["out_chans"]
    expected = "a multiple of 3 if pa_frames is 0"
    _need(out_chans % 3 == 0, "out_chans", f"{out_chans}", expected)
    _need(
        not options["nonblind_denoising"],
        "nonblind_denoising",
        "true with pa_frames 0",
        "false, or pa_frames > 0",
    )
    instants = options["out_instants"]
    _need(instants == 1, "out_instants", f"{instants} with pa_frames 0", "1, or pa_frames > 0")


def _need(is_valid: bool, key: str, got: str, expected: str) -> None:
    """Raise OptionError for netG.<key> unless is_valid. got: the present value, in words."""
    if not is_valid:
        raise OptionError(f"netG.{key} is {got}", f"netG.{key}", expected, f"correct netG.{key}")
