"""Validation on several ranks, and the turn of the epoch in the real loop."""

import pytest

from tests.dist.launching import run_ranks
from tests.train_files import experiment, odd, write_odd, write_options


def test_ranks_stream_their_clips_vote_alike_and_only_rank_0_has_and_writes_pictures(tmp_path):
    options = write_options(tmp_path, netG={"net_type": "same"})
    command = (str(options), "train.E_decay=0", "val.num_frame_testing=4", "val.save_img=true")

    alone = run_ranks(1, "tests/dist/validate_worker.py", *command, "path.root=" + str(tmp_path / "alone"))
    two = run_ranks(2, "tests/dist/validate_worker.py", *command)

    assert alone.exit_codes == [0] and two.exit_codes == [0, 0], alone.text + two.text
    one, (first, second) = alone.json, two.jsons
    # A tile of 4 frames and 2 more, however long the clip.
    assert one["most"] <= 7 and first["most"] <= 7
    # 12 frames in tiles of 4 that share 2: 5 tiles; each is a sign of life.
    assert one["ticks"] == 5 + 1 + 1 and (first["ticks"], second["ticks"]) == (5 + 1, 1)
    # Asked between rounds: 3 on one rank; 2 on two ranks, of which the second has one clip only.
    assert (one["votes"], first["votes"], second["votes"]) == (2, 1, 1)
    assert all(rank["stopped"] and rank["training"] for rank in (one, first, second))
    assert first["psnr"] == second["psnr"] == pytest.approx(one["psnr"], abs=1e-9)
    assert one["pictures"] == first["pictures"] == ["clip0", "clip1", "clip2"] and second["pictures"] == []
    written = {path.parent.name for path in experiment(options).glob("images/*/*.png")}
    assert written == {"clip0", "clip2"}


def test_epochs_turn_without_a_hang_and_progress_opens_when_all_ranks_have_their_loaders(tmp_path):
    loader = ("datasets.train.dataloader_persistent_workers=true", "datasets.train.dataloader_num_workers=2")
    changes = ("train.epochs=6", "train.total_iter=100", "datasets.test={}", *loader)

    result = odd(write_odd(tmp_path), *changes, case="late", struck=(1, 0), ranks=2)

    assert result.exit_codes == [0, 0], result.text
    moments = result.jsons
    assert [len(rank["progress"]) for rank in moments] == [6, 6]
    started = [max(both) for both in zip(*(rank["loader"] for rank in moments), strict=True)]
    for rank in moments:
        assert all(opened >= last for opened, last in zip(rank["progress"], started, strict=True))
