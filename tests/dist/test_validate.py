"""Several ranks validate together, and begin each epoch together."""

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

# Times at which the watchdog last saw a sign of life, one for each tile of the validation.
ticks: set[float] = set()


@NETWORKS.register("same")
class Same(nn.Module):
    """A network that returns its input. It notes the last sign of life in `ticks`."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        ticks.add(RUN.place.since)
        return lq * self.factor


class Clip:
    """A test clip of noise that counts its frames in memory."""

    def __init__(self, number: int, frames: int) -> None:
        self.name = f"clip{number}"
        self.number = number
        # Blurry frames that are in memory now, and the most at once.
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


def test_a_validation_keeps_one_tile_of_a_clip_and_each_tile_is_a_sign_of_life(tmp_path):
    options = write_options(tmp_path, netG={"net_type": "same"})
    tiles_of_4 = "val.num_frame_testing=4"
    model = ModelVRT(read_options(["--opt", str(options), "train.E_decay=0", tiles_of_4]))
    clips = [Clip(0, frames=12), Clip(1, frames=3), Clip(2, frames=3)]

    found = validate(model, clips)

    # A tile has 4 frames, and a few more are read beside it, however long the clip is.
    assert max(clip.most for clip in clips) <= 7
    # 12 frames make 5 tiles of 4 frames, because neighbours share 2 frames. 3 frames make one tile.
    assert len(ticks) == 5 + 1 + 1
    assert sorted(found.panels) == ["clip0", "clip1", "clip2"]
    assert model.netG.training
    watchdog.phase("start")  # as before the test


def test_one_and_two_ranks_validate_alike(tmp_path):
    # There are 3 clips. If 2 ranks took 2 clips each, one clip would count twice.
    options = write_odd(tmp_path)

    one_rank = odd(options, "train.total_iter=1", ranks=1)
    # The run is finished, so this start only validates it.
    two_ranks = odd(options, "train.total_iter=1", ranks=2)

    assert one_rank.exit_codes == [0], one_rank.text
    assert two_ranks.exit_codes == [0, 0], two_ranks.text
    scores = table_of_scores(one_rank.text)
    assert scores == table_of_scores(two_ranks.text)
    assert "mean over clips" in scores


def table_of_scores(text: str) -> str:
    """Return the table that a run of one step prints at its end."""
    # It ends where the next line of the log begins, with "[".
    found = re.search(r"test split after 1 iterations:\n(.*?)\n\[", text, re.DOTALL)
    assert found, text
    return found[1]


def test_epochs_turn_without_a_hang_and_progress_opens_when_all_ranks_have_their_loaders(tmp_path):
    changes = (
        "train.epochs=6",
        "train.total_iter=100",  # more than 6 epochs
        "datasets.test={}",
        "datasets.train.dataloader_persistent_workers=true",
        "datasets.train.dataloader_num_workers=2",
    )

    # Rank 1 takes longer to start its loaders.
    result = odd(write_odd(tmp_path), *changes, case="late", struck=(1, 0), ranks=2)

    assert result.exit_codes == [0, 0], result.text
    # Each rank prints when it had started the loader and when it showed the progress of each epoch.
    first, second = result.jsons
    assert len(first["progress"]) == 6
    assert len(second["progress"]) == 6
    assert len(first["loader"]) == 6
    assert len(second["loader"]) == 6
    for epoch in range(6):
        all_started = max(first["loader"][epoch], second["loader"][epoch])
        assert first["progress"][epoch] >= all_started
        assert second["progress"][epoch] >= all_started
