"""data/making/recipe.py and clip_plan.py: the record of a made clip, made.json.

A data set is continued only if the record of a clip is equal to the record that would be made now.
So with the same settings and files, each version of the project must make the same record. If you
change what the files of a clip contain, raise VERSION in data/making/recipe.py.
"""

import hashlib
import os

import numpy as np

from data.making.clip_plan import Job, Plan, plan_clip
from data.making.recipe import Recipe
from data.making.sources import ClipSource
from utils.image import imwrite_rgb


def test_the_record_of_a_recipe_stays():
    assert Recipe().record() == {
        "average": None,
        "interpolate": 8,
        "method": "flow",
        "ratio": 2,
        "gamma": 2.2,
        "light": "linear",
        "rate": 0.5,
        "threshold": 1.0,
        "initial_charge": 1.0,
        "shot_noise": 0.0,
        "dark_rate": 0.0,
        "threshold_mismatch": 0.0,
        "seed": 0,
    }


def test_the_record_of_a_recipe_with_a_rig_stays():
    assert Recipe(rig="rig").record() == {
        "average": None,
        "ratio": 2,
        "seed": 0,
        "rig": "rig",
        "side": 288,
        "crop": 192,
        "clips": 4,
        "frames": 8,
        "planes": 88,
    }


def test_the_record_of_a_clip_stays(tmp_path):
    folder = tmp_path / "raw/a"
    folder.mkdir(parents=True)
    # A record has the digest of its source: a line for each raw frame, with its name, size and
    # time.
    lines = ""
    for number in range(7):  # one exposure of seven raw frames
        path = folder / f"{number}.png"
        imwrite_rgb(path, np.zeros((16, 16, 3), np.uint8))
        os.utime(path, ns=(1, 1_700_000_000_000_000_000 + number))
        about = path.stat()
        lines += f"raw/{number}.png {about.st_size} {about.st_mtime_ns}\n"
    job = Job("a", "train", ClipSource("a", folder, split=""), out=tmp_path / "made")

    plan = plan_clip(job, Recipe())

    assert isinstance(plan, Plan)
    assert plan.record.keys() == {"version", "recipe", "source"}
    assert plan.record["version"] == 2
    assert plan.record["recipe"] == Recipe().record()
    assert plan.record["source"] == hashlib.sha256(lines.encode()).hexdigest()[:16]
