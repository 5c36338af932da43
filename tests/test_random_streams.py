"""What is drawn for one purpose says nothing about what is drawn for another."""

import dataclasses
import itertools

import numpy as np
import pytest

from data.loader import ResumableDistributedSampler
from data.rgb_camera import RgbCamera
from data.select_dataset import build_dataset
from tests.clip_files import section, write_clip, write_info
from utils.random_streams import random_stream

DRAWS = 500
BOUND = 0.2  # 4.5 standard deviations of the correlation of 500 independent pairs
CAMERA = {
    "type": "perturb", "threshold_prob": 1.0,
    "drop_prob": 0.5, "drop_max": 0.5, "hot_prob": 0.5, "hot_max": 0.5, "dead_prob": 0.5, "dead_max": 0.5,
    "dark_prob": 0.5, "rgb_prob": 0.5, "jpeg_prob": 0.5,
}  # fmt: skip


def middle(found):
    """Where the true values lie on average, whatever their number."""
    places = np.flatnonzero(found)
    return (places.mean() if len(places) else (found.size - 1) / 2) / found.size


def seen(dataset, epoch, index):
    """Everything that is drawn for a sample, as numbers none of which follows from another."""
    draw = dataset.draw((epoch, index))
    aug, camera, interval = draw.aug, draw.camera, draw.frames[1] - draw.frames[0]
    # Full light: planes without spikes were lost, pixels without any spike are dead. Darkness: hot pixels fire.
    plain, rgb = dataclasses.replace(camera, threshold=1.0, dark=0.0), camera.rgb or RgbCamera()
    white, black = (plain.apply(np.full((24, 16, 16), value, np.uint8), 0) for value in (1, 0))
    # Of another frame. At twice the threshold, a pixel in full light fires in the first plane if its charge is high.
    charged = dataclasses.replace(camera, threshold=2.0, drop=0.0, hot=0.0, dead=0.0, dark=0.0).apply(
        np.ones_like(white), 1
    )[0]
    order = ResumableDistributedSampler(24 * DRAWS, world_size=1, rank=0, batch_size=1, seed=dataset.seed)
    order.seek(epoch)
    return {
        "interval": interval, "first frame": draw.frames[0] / (23 - 2 * interval),
        "top": aug.top, "left": aug.left, "hflip": aug.hflip, "vflip": aug.vflip, "transpose": aug.transpose,
        "reverse": aug.reverse, "threshold": np.log(camera.threshold), "lost share": camera.drop,
        "hot share": camera.hot, "dead share": camera.dead, "dark": camera.dark, "noise": rgb.shot, "quality": rgb.jpeg,
        "which lost": middle(~white[:, ~black[0].astype(bool)].any(axis=1)),
        "which hot": middle(black.all(axis=0)), "which dead": middle(~white.any(axis=0)),
        "charge of a pixel": charged[0, 0], "charge of another": charged[0, 1],
        "place in the epoch": order.order()[index], "what follows": draw.rng.random(),
    }  # fmt: skip


@pytest.mark.parametrize("place", ["first sample of many epochs", "samples of one epoch"])
def test_no_two_draws_of_a_sample_are_correlated(tmp_path, place):
    write_clip(tmp_path, "clip0", frames=24, h=24, w=32)
    write_info(tmp_path, h=24, w=32)
    dataset = build_dataset(
        section(tmp_path, gt_size=8, camera=CAMERA, use_hflip=True, use_rot=True, random_reverse=True, num_frame=3,
                interval_list=[1, 2]), "train", 0,
    )  # fmt: skip
    # Sample 23 does not fit into the clip of 24 frames: its first frame is drawn; so is that of its repetitions.
    numbers = [(i, 0) if "epochs" in place else (3, 24 * i + 23) for i in range(DRAWS)]
    rows = [seen(dataset, *number) for number in numbers]
    varying = [name for name in rows[0] if len({row[name] for row in rows}) > 1]
    values = np.array([[row[name] for name in varying] for row in rows], float)

    correlation = np.corrcoef(values.T)
    assert len(varying) >= 17, varying
    alike = {
        f"{varying[a]} and {varying[b]}": round(correlation[a, b], 2)
        for a, b in itertools.combinations(range(len(varying)), 2)
        if abs(correlation[a, b]) >= BOUND
    }
    assert not alike


def test_streams_of_different_purposes_and_keys_differ():
    keys = [("a", 0), ("a", 0, 0), ("a",), ("b", 0), ("a", 1), ("a", 2**40), ("a", 2**40, 0), ("a 0",), ("a", 0, 1)]

    assert len({random_stream(*key).integers(2**62) for key in keys}) == len(keys)
    assert random_stream("a", 0).random() == random_stream("a", 0).random()
