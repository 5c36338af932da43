"""Validation on clips made up frame by frame: what it keeps, tells and asks on each rank.

    validate_worker.py OPTIONS_FILE [section.key=value ...]

Clips of 12, 3 and 3 frames, tiles of 4. Prints per rank: the most frames alive at once, the votes, the phases that the
watchdog saw, the scores, the names of the pictures.
"""

import json
import sys
import weakref

import torch
from torch import Tensor, nn

from main_train_vrt import PARTS
from models.model_vrt import ModelVRT
from models.restore.validation import validate
from models.select_network import NETWORKS
from utils import utils_dist
from utils.dist import preempt, process
from utils.dist.state import RUN
from utils.options.load import load_options

ticks: set[float] = set()


@NETWORKS.register("same")
class Same(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        ticks.add(RUN.place.since)
        return lq * self.factor


class Clip:
    """Noise; counts its frames that are alive."""

    def __init__(self, number: int, frames: int) -> None:
        self.name, self.number, self.alive, self.most = f"clip{number}", number, 0, 0
        self.stems = [f"{i:03d}" for i in range(frames)]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(100 * self.number + index)
        gt = torch.rand(3, 64, 64, generator=generator)
        lq = (gt + 0.1 * torch.rand(gt.shape, generator=generator)).clamp(0, 1)
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(lq, self.gone)
        return {"lq": lq, "gt": gt}

    def gone(self) -> None:
        self.alive -= 1


def main() -> None:
    with utils_dist.ranks(log=False):
        utils_dist.init_dist(60)
        model = ModelVRT(load_options(sys.argv[1], sys.argv[2:], PARTS))
        clips, votes = [Clip(number, frames) for number, frames in enumerate((12, 3, 3))], []
        preempt.is_stop_requested = lambda: bool(votes.append(1))
        found = validate(model, clips)
        calls = len(ticks)
        preempt.is_stop_requested = lambda: True
        stopped = validate(model, clips)
        told = {
            "most": max(clip.most for clip in clips), "votes": len(votes), "ticks": calls, "stopped": stopped is None,
            "psnr": found.scalars["val/psnr"], "pictures": sorted(found.panels), "training": model.netG.training,
        }  # fmt: skip
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
    process.end(0)
