"""Validation on several ranks, and the turn of the epoch in the real loop."""

import re
import weakref

import torch
from torch import Tensor, nn

from main_train_vrt import read_options
from models.model_vrt import ModelVRT
from models.restore.validation import validate
from models.select_network import NETWORKS
from tests.helpers.train_files import odd, write_odd, write_options
from utils.dist import watchdog
from utils.dist.state import RUN

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


def test_a_validation_keeps_one_tile_of_a_clip_and_each_tile_is_a_sign_of_life(tmp_path):
    options = write_options(tmp_path, netG={"net_type": "same"})
    model = ModelVRT(
        read_options(["--opt", str(options), "train.E_decay=0", "val.num_frame_testing=4"])
    )
    clips = [Clip(number, frames) for number, frames in enumerate((12, 3, 3))]
    found = validate(model, clips)
    # A tile of 4 frames and 2 more, however long the clip
    assert max(clip.most for clip in clips) <= 7
    assert len(ticks) == 5 + 1 + 1  # 12 frames in tiles of 4 that share 2: 5 tiles
    assert sorted(found.panels) == ["clip0", "clip1", "clip2"] and model.netG.training
    watchdog.phase("start")


def test_one_and_two_ranks_validate_alike(tmp_path):
    # 3 clips on 2 ranks: padding to 4 would count one twice.
    options = write_odd(tmp_path)
    # The second run finds it finished
    results = [odd(options, "train.total_iter=1", ranks=ranks) for ranks in (1, 2)]
    assert [result.exit_codes for result in results] == [[0], [0, 0]], results[1].text
    pattern = r"test split after 1 iterations:\n(.*?)\n\["
    one, two = (re.search(pattern, result.text, re.DOTALL)[1] for result in results)
    assert one == two and "mean over clips" in one


def test_epochs_turn_without_a_hang_and_progress_opens_when_all_ranks_have_their_loaders(tmp_path):
    loader = (
        "datasets.train.dataloader_persistent_workers=true",
        "datasets.train.dataloader_num_workers=2",
    )
    changes = ("train.epochs=6", "train.total_iter=100", "datasets.test={}", *loader)
    result = odd(write_odd(tmp_path), *changes, case="late", struck=(1, 0), ranks=2)
    assert result.exit_codes == [0, 0], result.text
    moments = result.jsons
    assert [len(rank["progress"]) for rank in moments] == [6, 6]
    started = [max(both) for both in zip(*(rank["loader"] for rank in moments), strict=True)]
    for rank in moments:
        assert all(opened >= last for opened, last in zip(rank["progress"], started, strict=True))
