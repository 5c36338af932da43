"""The design of a VRT: the arguments that decide its layers, and what follows from them.

The lists `depths`, `embed_dims` and `num_heads` have 7 entries for the stages 1 to 7, and then an
entry for each layer of stage 8. So entry 0 is for stage 1. The docstring of `VRT`
(models/network_vrt.py) explains each argument.

What must stay: the names of the fields, because option files and weights files have them as keys,
and the drop rates, because other rates give another training
(tests/parts/models/test_network_vrt.py compares them with the published rates). Free to change: how
the drop rates are computed. A new argument of VRT becomes a field here if building or checking the
network needs it.
"""

from dataclasses import dataclass
from typing import Any

import torch

from models.vrt.forms import Kernels

# How each of the stages 1 to 7 changes the resolution before its first block. "none" keeps height
# and width, "down" halves them, "up" doubles them. STAGE_SCALES and UNET_MULTIPLE below follow from
# this: change all three together.
KINDS = ("none", "down", "down", "down", "up", "up", "up")
# Height of the network's input, divided by the height in each of the stages 1 to 7.
STAGE_SCALES = (1, 2, 4, 8, 4, 2, 1)
# Height and width must be multiples of this number, because the U-net halves them three times.
UNET_MULTIPLE = 8


@dataclass(frozen=True)
class Design:
    """Arguments of VRT, by their names."""

    # Input and output.
    upscale: int  # size of the output / size of the input
    out_chans: int  # channels of an output frame
    img_size: list[int]  # [frames, height, width]
    window_size: list[int]  # [frames, height, width] of an attention window

    # Stages. Each list but `indep_reconsts` has an entry for each stage or layer.
    depths: list[int]  # numbers of blocks
    indep_reconsts: list[int]  # entries of `depths` whose layers process each frame separately
    embed_dims: list[int]  # numbers of channels
    num_heads: list[int]  # numbers of attention heads

    # Blocks.
    mul_attn_ratio: float  # fraction of the blocks of a stage that have mutual attention
    mlp_ratio: float  # channels of the hidden layer of the MLP / channels of the block
    qkv_bias: bool  # whether queries, keys and values have a bias
    qk_scale: float | None  # factor of q k^T; None: 1 / sqrt(channels of a head)
    drop_path_rate: float  # stochastic depth: probability of dropping a branch of the last block

    # Alignment.
    pa_frames: int  # number of neighbours that are aligned to a frame; 0: interpolation
    deformable_groups: int  # groups of channels that share the offsets of the alignment

    nonblind_denoising: bool  # whether the last input channel is a map of the noise

    # Which branches are recomputed in backward (gradient checkpointing).
    use_checkpoint_attn: bool  # the attention of each block
    use_checkpoint_ffn: bool  # the MLP of each block
    no_checkpoint_attn_blocks: list[int]  # entries of `depths` whose attention is not recomputed
    no_checkpoint_ffn_blocks: list[int]  # entries of `depths` whose MLP is not recomputed
    checkpoint: str | None  # "auto": as many branches as the memory needs
    memory_budget_gb: float | None  # memory for "auto"; None: 90 % of the GPU

    kernels: Kernels  # "auto" or "plain", see models/vrt/forms.py
    out_instants: int  # number of sharp frames of each exposure

    @property
    def window(self) -> tuple[int, int, int]:
        """Return frames, height and width of an attention window."""
        frames, height, width = self.window_size
        return frames, height, width

    @property
    def aligned_neighbours(self) -> int:
        """Return the number of neighbours on each side of a frame that are aligned to it."""
        return self.pa_frames // 2

    def mutual_depth(self, entry: int) -> int:
        """Return the number of blocks with mutual attention in a stage.

        The first blocks of a stage have mutual attention. E.g. depth 8 and mul_attn_ratio 0.75: the
        first 6 blocks.

        entry: index into `depths`, e.g. 0 for stage 1.
        """
        return int(self.depths[entry] * self.mul_attn_ratio)

    def drop_rates(self) -> list[list[float]]:
        """Return the probability of dropping a branch, for each block of each entry of `depths`.

        The probabilities rise evenly over all blocks, from 0 to drop_path_rate. E.g. depths [2, 1]
        and drop_path_rate 0.2 -> [[0, 0.1], [0.2]].
        """
        # Compute on the CPU, because the default device may be "meta". Tensors on "meta" hold no
        # numbers.
        rates = torch.linspace(0, self.drop_path_rate, sum(self.depths), device="cpu").tolist()
        rates_of_stages = []
        first = 0
        for depth in self.depths:
            rates_of_stages.append(rates[first : first + depth])
            first += depth
        return rates_of_stages

    def block_options(self, entry: int) -> dict[str, Any]:
        """Return the arguments of `Block` for the blocks of a stage, or of a layer of stage 8.

        The keys are names of arguments of `Block`. `Stage` also uses "checkpoint_ffn" and "kernels"
        for its last MLP.

        entry: index into `depths`, e.g. 0 for stage 1.
        """
        recomputes_attn = self.use_checkpoint_attn and entry not in self.no_checkpoint_attn_blocks
        recomputes_ffn = self.use_checkpoint_ffn and entry not in self.no_checkpoint_ffn_blocks
        return {
            "mlp_ratio": self.mlp_ratio,
            "qkv_bias": self.qkv_bias,
            "qk_scale": self.qk_scale,
            "kernels": self.kernels,
            "checkpoint_attn": recomputes_attn,
            "checkpoint_ffn": recomputes_ffn,
        }
