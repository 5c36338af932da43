"""Several ranks validate together, and begin each epoch together.

A validation restores test clips in tiles. A tile has some successive frames, and neighbouring tiles
overlap in time. The watchdog ends a run that gives no sign of life for too long. So each tile must
give a sign of life.
"""

import re
import weakref
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from main_train_vrt import read_options
from models.model_vrt import ModelVRT
from models.restore.validation import validate
from models.select_network import NETWORKS
from tests.helpers.checked import not_none
from tests.helpers.train_files import run_odd, write_odd_options, write_options
from utils.dist import watchdog
from utils.dist.state import RUN

# The times at which signs of life were given. In each forward pass, the network "same" adds the
# time of the last sign. Two signs have different times, so the size of this set is the number of
# signs.
ticks: set[float] = set()


@NETWORKS.register("same")
class Same(nn.Module):
    """A network that returns its input. It notes the time of the last sign of life in `ticks`."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        ticks.add(RUN.place.since)
        return lq * self.factor


# ---- One validation ----


class Clip:
    """A test clip of noise. It counts how many of its blurry frames are in memory at once."""

    def __init__(self, number: int, frames: int) -> None:
        self.name = f"clip{number}"
        self.number = number
        # `alive` is the number of blurry frames that are in memory now, and `most` the largest
        # number so far.
        self.alive = 0
        self.most = 0
        self.stems = [f"{i:03d}" for i in range(frames)]

    def frame(self, index: int, reverse: bool = False) -> dict[str, Tensor]:
        """Return a sharp frame, and the same frame with noise."""
        generator = torch.Generator().manual_seed(100 * self.number + index)
        gt = torch.rand(3, 64, 64, generator=generator)
        lq = (gt + 0.1 * torch.rand(gt.shape, generator=generator)).clamp(0, 1)
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(lq, self.gone)
        return {"lq": lq, "gt": gt}

    def gone(self) -> None:
        """Python calls this when it deletes a blurry frame."""
        self.alive -= 1


class Validation(NamedTuple):
    """A validation of three clips in tiles of 4 frames."""

    model: ModelVRT
    clips: list[Clip]
    panels: dict[str, Any]  # name of a clip -> pictures of it
    signs_of_life: int  # number of signs, see `ticks`


@pytest.fixture(scope="module")
def validation(tmp_path_factory) -> Validation:
    """Validate clips of 12, 3 and 3 frames in this process."""
    options = write_options(tmp_path_factory.mktemp("validated"), netG={"net_type": "same"})
    tiles_of_4 = "val.num_frame_testing=4"
    model = ModelVRT(read_options(["--opt", str(options), "train.E_decay=0", tiles_of_4]))
    clips = [Clip(number=0, frames=12), Clip(number=1, frames=3), Clip(number=2, frames=3)]

    # `Clip` has the parts of a reader that a validation reads, and no others.
    readers: Any = clips
    ticks.clear()
    found = not_none(validate(model, readers))
    watchdog.phase("start")  # end the phase of the validation
    return Validation(model, clips, found.panels, len(ticks))


def test_a_validation_keeps_one_tile_of_a_clip_in_memory(validation):
    # The test counted 7 of the 12 frames of clip 0. These are the 4 frames of a tile, and 3 frames
    # that are kept or read for the neighbours of this tile.
    assert max(clip.most for clip in validation.clips) <= 7


def test_each_tile_of_a_validation_is_a_sign_of_life(validation):
    # Neighbouring tiles share 2 frames by default (val.num_frame_overlapping). So 12 frames make 5
    # tiles of 4 frames. The tiles begin at the frames 0, 2, 4, 6 and 8. The two clips of 3 frames
    # make one tile each.
    assert validation.signs_of_life == 5 + 1 + 1


def test_a_validation_shows_each_clip(validation):
    assert sorted(validation.panels) == ["clip0", "clip1", "clip2"]


def test_after_a_validation_the_network_is_in_training_again(validation):
    assert validation.model.netG.training


# ---- Several ranks ----


def test_one_rank_and_two_ranks_give_the_same_scores(tmp_path):
    # There are 3 clips for 2 ranks. If each rank took 2 clips, one clip would count twice.
    options = write_odd_options(tmp_path)

    one_rank = run_odd(options, "train.total_iter=1", ranks=1)
    # The run is finished, so this start only validates it.
    two_ranks = run_odd(options, "train.total_iter=1", ranks=2)

    assert one_rank.exit_codes == [0], one_rank.text
    assert two_ranks.exit_codes == [0, 0], two_ranks.text
    scores = table_of_scores(one_rank.text)
    assert scores == table_of_scores(two_ranks.text)
    assert "mean over clips" in scores


def table_of_scores(text: str) -> str:
    """Return the table that a run of one step prints at its end."""
    # The table ends before the next line of the log. This line begins with "[".
    found = re.search(r"test split after 1 iteration:\n(.*?)\n\[", text, re.DOTALL)
    assert found, text
    return found[1]


# ---- Epochs ----


def test_the_progress_of_an_epoch_opens_when_all_ranks_have_their_loaders(tmp_path):
    changes = (
        "train.epochs=6",
        "train.total_iter=100",  # more than 6 epochs
        "datasets.test={}",
        "datasets.train.dataloader_persistent_workers=true",
        "datasets.train.dataloader_num_workers=2",
    )

    # Rank 1 takes longer to start its loaders.
    result = run_odd(
        write_odd_options(tmp_path), *changes, case="late", struck_rank=1, at_step=0, ranks=2
    )

    # No rank hangs between two epochs.
    assert result.exit_codes == [0, 0], result.text
    # Each rank prints two times of each epoch: when it had started the loader, and when it showed
    # the progress.
    rank_0, rank_1 = result.jsons
    for rank in (rank_0, rank_1):
        assert len(rank["loader"]) == 6
        assert len(rank["progress"]) == 6
    for epoch in range(6):
        all_started = max(rank_0["loader"][epoch], rank_1["loader"][epoch])
        assert rank_0["progress"][epoch] >= all_started
        assert rank_1["progress"][epoch] >= all_started
