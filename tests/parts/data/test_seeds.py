"""A seed gives the same data as in each version before.

Data sets are made again from their seeds. So neither the order of random draws may change, nor the
arithmetic behind them. The numbers here were printed by the first version that had this file. If
they must change, raise VERSION in data/making/recipe.py.
"""

import numpy as np
import pytest

from data.cameras.rig import Rig
from data.making.photo_scene import PhotoScene
from data.making.smooth_walk import smooth_walk


def test_a_seed_gives_its_rig():
    rig = Rig.random(np.random.default_rng(0))

    # The fields that are drawn first. Values are rounded when they are drawn, so == is exact.
    assert rig.shift_x == 0.5478
    assert rig.shift_y == -0.9209
    assert rig.rotation_deg == -0.459
    assert rig.scale == 0.9903
    # The fields that are drawn last. These fields change if the number or the order of draws
    # changes.
    assert rig.read == 0.0023
    assert rig.jpeg == 95
    assert rig.seed == 552547096


def test_a_seed_gives_its_broken_pixels():
    # In this rig, a pixel is dead with the probability 5 %. Without light, a pixel has 0.1 spikes
    # per plane, times a random factor whose spread is 0.5.
    rig = Rig(seed=1, dead=0.05, dark_rate=0.1, dark_spread=0.5)
    lights = [np.full((8, 8, 3), 0.5, np.float32)] * 20

    fired = np.sum(list(rig.spikes(lights, (8, 8))), axis=0)  # (8, 8), spikes of each pixel

    assert np.argwhere(fired == 0).tolist() == [[0, 1], [7, 5]]
    assert fired[0].tolist() == [12, 0, 11, 10, 11, 9, 11, 11]


def test_a_seed_gives_its_walk():
    walk = smooth_walk(np.random.default_rng(0), planes=100, amplitude=1.0, periods=(20.0, 80.0))

    assert walk[[0, 50, 99]] == pytest.approx([0.224614, 0.294454, -0.010984], abs=1e-6)


def test_a_seed_gives_its_scene():
    # A photograph that becomes brighter from the left to the right.
    brightness = np.arange(160, dtype=np.uint8)
    picture = np.tile(brightness[None, :, None], (120, 1, 3))
    rng = np.random.default_rng(0)
    scene = PhotoScene(picture, side=60, intervals=3, planes=20, crop=32, rng=rng)

    # The mean shift from plane 10 to plane 50, over all pixels. The scene has a background, and two
    # pieces of the photograph that move in front of it.
    mean_shift = scene.shifts(plane=10, other=50).mean(axis=(0, 1))
    assert mean_shift == pytest.approx([3.59747, 2.23950], abs=1e-4)
    # The mean light of the first plane, and of plane 30.
    lights = list(scene.lights())
    assert lights[0].mean() == pytest.approx(0.0781938, abs=1e-5)
    assert lights[30].mean() == pytest.approx(0.0702580, abs=1e-5)
