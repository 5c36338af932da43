"""A file that breaks while two ranks train: both end at once, with one message that names it."""

from __future__ import annotations

import os

import pytest

from tests.dist.launching import Ranks
from tests.train_files import MAIN, write_options

WORDS = {"vanished frame": "No such file", "cut spikes": "100 bytes holds"}


def damage(folder, kind):
    """Break one frame of every training clip, so that the next samples meet it whatever their order."""
    rgb, spikes = folder / "GOPRO_Large/train", folder / "GOPRO_Large_spike_seq/train"
    for clip in ("train0", "train1"):
        for frame in range(4):
            frame_path = rgb / clip / "sharp" / f"{frame:06d}.png"
            spike_path = spikes / clip / "spike" / f"{frame:06d}.dat"
            if kind == "vanished frame":
                frame_path.unlink()
            else:
                os.truncate(spike_path, 100)


@pytest.mark.parametrize("kind", sorted(WORDS))
def test_a_file_that_breaks_during_training_ends_both_ranks_with_its_name(tmp_path, kind):
    options = write_options(tmp_path)
    arguments = ("--opt", str(options), "train.total_iter=100000")
    with Ranks(2, MAIN, *arguments) as ranks:
        ranks.wait_for("Iter: 1,", rank=0, limit_s=90)
        damage(tmp_path, kind)
        result = ranks.wait(limit_s=60)

    assert not result.timed_out
    assert result.exit_codes == [3, 3], result.text
    assert WORDS[kind] in result.text
    assert "/train0/" in result.text or "/train1/" in result.text
