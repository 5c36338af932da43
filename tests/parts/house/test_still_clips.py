"""lab/still_clips.py: clips of photographs that stand still or move a little, and their table."""

import numpy as np
import pytest

from data.spike.formats import read_spikes
from data.spike.geometry import SpikeGeometry
from lab.still_clips import (
    BINS,
    DISC,
    HEIGHT,
    LIGHTS,
    MOTIONS,
    PHOTOGRAPHS,
    PLANES,
    WIDTH,
    in_motion,
    table_of,
    with_disc,
    write_clip,
)
from utils.image import imread_rgb

# Light that grows from 0 at the left edge to 1 at the right edge of a picture larger than a frame.
LIGHT_OF_COLUMN = np.linspace(0, 1, 400, dtype=np.float32)
PICTURE = np.broadcast_to(LIGHT_OF_COLUMN[None, :, None], (400, 400, 3)).copy()
# A random light in each pixel, so that each motion makes it blurry.
TEXTURE = np.random.default_rng(0).random((400, 400, 3), dtype=np.float32)


def write_still_clip(folder, scene):
    """Write a clip. Return its first blurry frame, its sharp frame, and its spikes."""
    write_clip(folder, "clip", scene, rate=0.5)
    blurry = imread_rgb(folder / "rgb/clip/blur/000.png")
    sharp = imread_rgb(folder / "rgb/clip/sharp/000.png")
    geometry = SpikeGeometry(HEIGHT // BINS, WIDTH // BINS)
    return blurry, sharp, read_spikes(folder / "spike/clip/000.dat", geometry)


def test_a_still_clip_is_sharp_in_its_blurry_frames_and_has_spikes_by_its_light(tmp_path):
    blurry, sharp, spikes = write_still_clip(tmp_path, in_motion(PICTURE, pixels=0))

    assert np.array_equal(blurry, sharp)
    assert spikes.shape == (PLANES, HEIGHT // BINS, WIDTH // BINS)
    # The frame begins at column 100 of 400, so the light of its left column is 0.25. With the rate
    # 0.5, a pixel has 0.5 spikes per plane in full light, and 0.25 * 0.5 in this light. The pixels
    # begin with a random charge. It changes the number of spikes by one at most.
    spikes_of_left_column = spikes[:, :, 0].sum(axis=0)  # (h,)
    assert spikes_of_left_column.mean() == pytest.approx(0.25 * 0.5 * PLANES, abs=1)


def test_a_clip_in_motion_is_blurry(tmp_path):
    blurry, sharp, _ = write_still_clip(tmp_path, in_motion(TEXTURE, pixels=3.6))

    # The pixels of TEXTURE are independent. The mean of 3.6 such pixels has about 1 / sqrt(3.6) =
    # 0.53 of their standard deviation.
    assert blurry.std() < 0.7 * sharp.std()


def test_in_front_of_a_still_background_only_the_disc_moves(tmp_path):
    blurry, sharp, _ = write_still_clip(tmp_path, with_disc(TEXTURE, 1 - TEXTURE))
    next_sharp = imread_rgb(tmp_path / "rgb/clip/sharp/001.png")

    # The disc stays in the right three quarters of the frame. So the left quarter shows only the
    # background, and stands still. In this quarter the blurry frame is a mean of 60 equal lights.
    # Because of rounding, the blurry frame may differ from the sharp frame by one grey level.
    differs = np.abs(blurry.astype(int) - sharp) > 1  # (HEIGHT, WIDTH, 3)
    assert not differs[:, : WIDTH // 4].any()
    assert differs[:, WIDTH // 4 :].any()
    assert np.array_equal(next_sharp[:, : WIDTH // 4], sharp[:, : WIDTH // 4])


def test_the_table_has_a_row_for_each_motion_with_the_gains_of_the_photographs():
    clips = {}
    for photo in PHOTOGRAPHS:
        for motion in (*MOTIONS, DISC):
            clips[f"{photo.removesuffix('.png')}, {motion}"] = 0.5

    clips_of_light = dict.fromkeys(LIGHTS, clips)  # each light has the same gains
    lines = table_of(clips_of_light).splitlines()

    assert len(lines) == 2 + len(MOTIONS) + 1  # the header has two lines
    # A row has a cell for each light: the gain of each of the three photographs, and their mean.
    assert lines[2].count("+0.50, +0.50, +0.50 (mean +0.50)") == len(LIGHTS)
