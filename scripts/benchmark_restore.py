#!/usr/bin/env python3
"""Restores a long video and measures time and memory: memory must depend on the tile, not on the length of the clip.

    python scripts/benchmark_restore.py --frames 300 --size 720 1280 --most-gb 3
    python scripts/benchmark_restore.py --network vrt --frames 20 --size 128 128

The video and the weights are generated. conv: two convolutions, minutes on a CPU; vrt: a small VRT; 006: the network of
the GoPro recipe, for a GPU (a CPU needs minutes per frame). Exit code 1 where the peak of the resident memory exceeds
--most-gb.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import main_test_vrt
from models.select_network import NETWORKS
from scripts.benchmark_net import NAMED
from utils.video import VideoWriter

NETWORK_OPTIONS = {
    "conv": {"net_type": "conv"},
    "vrt": {
        "net_type": "vrt", "upscale": 1, "img_size": [6, 64, 64], "window_size": [6, 8, 8], "depths": [2] * 9,
        "indep_reconsts": [], "embed_dims": [24] * 9, "num_heads": [4] * 9, "mul_attn_ratio": 0.5,
        "deformable_groups": 4,
    },
    "006": {"net_type": "vrt", **NAMED["006"]},
}  # fmt: skip


class SmallConv(nn.Module):
    """A cheap network, to measure memory and time of everything else."""

    def __init__(self, width: int = 8, window_size: list[int] | tuple[int, ...] = (2, 8, 8)) -> None:
        super().__init__()
        self.first = nn.Conv3d(3, width, 3, padding=1)
        self.last = nn.Conv3d(width, 3, (1, 3, 3), padding=(0, 1, 1))

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        """lq: (B, T, 3, H, W), returned with a residual."""
        return lq + 0.1 * self.last(torch.relu(self.first(lq.transpose(1, 2)))).transpose(1, 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--size", type=int, nargs=2, default=(720, 1280), metavar=("H", "W"))
    parser.add_argument("--network", choices=NETWORK_OPTIONS, default="conv")
    parser.add_argument("--tile", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--most-gb", type=float, default=3.0)
    args = parser.parse_args()
    NETWORKS.register("conv")(SmallConv)  # not on import: scripts/benchmark.py imports this module too
    with tempfile.TemporaryDirectory() as folder:
        weights, video = Path(folder) / "weights.pth", Path(folder) / "clip.mp4"
        write_weights(weights, NETWORK_OPTIONS[args.network])
        write_clip(video, args.frames, *args.size)
        before, begin = peak_gb(), time.perf_counter()
        main_test_vrt.main(
            ["--weights", str(weights), "--input", str(video), "--output", f"{folder}/out", "--tile", args.tile,
             "--dtype", args.dtype]
        )  # fmt: skip
        seconds = time.perf_counter() - begin
    peak = peak_gb()
    print(
        f"{args.frames} frames of {args.size[1]}x{args.size[0]}, {args.network}: {seconds:.0f} s in all, "
        f"{seconds / args.frames:.3f} s/frame; peak memory {peak:.2f} GB ({before:.2f} GB before the start)"
    )
    return int(peak > args.most_gb)


def write_weights(path: Path, netG: dict[str, Any]) -> None:
    torch.manual_seed(0)
    section = NETWORKS.resolve(netG, "netG")
    net = NETWORKS.build(section, "netG", spike_channels=0)
    options = {"scale": 1, "netG": section.plain(), "spike_channels": 0, "spike": None}
    torch.save({"params": net.state_dict(), "options": options}, path)


def write_clip(path: Path, frames: int, height: int, width: int) -> None:
    rng = np.random.default_rng(0)
    texture = np.repeat(np.repeat(rng.integers(0, 256, (height // 8 + 1, width // 8 + 64, 3), np.uint8), 8, 0), 8, 1)
    with VideoWriter(path, 25) as video:
        for i in range(frames):
            video.write(np.ascontiguousarray(texture[:height, i % 256 : i % 256 + width]))


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    sys.exit(main())
