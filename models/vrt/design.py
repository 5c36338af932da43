"""The design of a VRT: the arguments that decide its layers, and what follows from them.

The lists `depths`, `embed_dims` and `num_heads` have an entry for each stage: entries 0 to 6 for
the stages 1 to 7, the other entries for the layers of stage 8. models/network_vrt.py explains the
arguments, because they are options of netG.

What must stay: the names of the fields, because option files and weights files have them as keys.
The drop rates must stay, too, because another rate gives another training. Free to change: how the
drop rates are computed. A new argument of VRT becomes a field here if building or checking needs
it.
"""

from dataclasses import dataclass
from typing import Any

import torch

from models.vrt.forms import Kernels

# How each of the stages 1 to 7 changes the resolution before its first block. "none" keeps height
# and width, "down" halves them, "up" doubles them.
KINDS = ("none", "down", "down", "down", "up", "up", "up")
# Height of the network's input, divided by the height in each of the stages 1 to 7.
STAGE_SCALES = (1, 2, 4, 8, 4, 2, 1)
# Height and width must be multiples of this number, because the U-net halves them three times.
UNET_MULTIPLE = 8


@dataclass(frozen=True)
class Design:
    """Arguments of VRT, by their names."""

    upscale: int
    out_chans: int
    img_size: list[int]
    window_size: list[int]
    depths: list[int]
    indep_reconsts: list[int]
    embed_dims: list[int]
    num_heads: list[int]
    mul_attn_ratio: float
    mlp_ratio: float
    qkv_bias: bool
    qk_scale: float | None
    drop_path_rate: float
    pa_frames: int
    deformable_groups: int
    nonblind_denoising: bool
    use_checkpoint_attn: bool
    use_checkpoint_ffn: bool
    no_checkpoint_attn_blocks: list[int]
    no_checkpoint_ffn_blocks: list[int]
    checkpoint: str | None
    memory_budget_gb: float | None
    kernels: Kernels
    out_instants: int

    @property
    def window(self) -> tuple[int, int, int]:
        """Return frames, height and width of an attention window."""
        frames, height, width = self.window_size
        return frames, height, width

    @property
    def aligned_neighbours(self) -> int:
        """Return how many neighbours are aligned to a frame, on either side of it."""
        return self.pa_frames // 2

    def mutual_depth(self, entry: int) -> int:
        """Return how many blocks of a stage have mutual attention, from its first block on."""
        return int(self.depths[entry] * self.mul_attn_ratio)

    def drop_rates(self) -> list[list[float]]:
        """Return the probability of dropping a branch, for each block of each entry of `depths`.

        The probabilities rise evenly over all blocks, from 0 to drop_path_rate. E.g. depths [2, 1]
        and drop_path_rate 0.2 -> [[0, 0.1], [0.2]].
        """
        # Always on the CPU. The default device may be "meta", whose tensors have no numbers.
        rates = torch.linspace(0, self.drop_path_rate, sum(self.depths), device="cpu").tolist()
        rates_of_stages = []
        first = 0
        for depth in self.depths:
            rates_of_stages.append(rates[first : first + depth])
            first += depth
        return rates_of_stages

    def block_options(self, entry: int) -> dict[str, Any]:
        """Return the arguments of `Block` that a stage or layer passes on to its blocks."""
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
