"""Digests of 50 draws of each kind of data set and of a user's own clips: run before and after a change of the reader.

python -m lab.golden_samples > before.json      # then, after the change
python -m lab.golden_samples | diff before.json -
"""

import hashlib
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from data.clip_reader import dataset_clips, user_clips
from data.io_backend import build_cache
from data.select_dataset import build_dataset
from data.spike.formats import SpikeGeometry, write_spikes
from main_train_vrt import PARTS
from tests import kair_files
from tests.clip_files import section, source_of, write_clip, write_info
from tests.test_io_backend import to_lmdb
from utils.options.load import load_options
from utils.video import VideoWriter

DRAWS = 50
RELATIVE = {"type": "relative", "half_windows": [2, 5, 0]}
CAMERA = {"type": "perturb", "threshold_prob": 0.7, "drop_prob": 0.5, "hot_prob": 0.5, "dead_prob": 0.5}


def digest(items: Any) -> str:
    table = hashlib.sha256()
    for item in items:
        for key, value in sorted(item.items()):
            table.update(key.encode() + (value.numpy().tobytes() if hasattr(value, "numpy") else repr(value).encode()))
    return table.hexdigest()[:16]


def drawn(values: Any, split: str = "train") -> str:
    dataset = build_dataset(values, split, 3)
    if split == "train":
        return digest(dataset[(n // len(dataset), n % len(dataset))] for n in range(DRAWS))
    clips = dataset_clips(dataset)
    return digest(clip.frame(i, reverse) for clip in clips for i in range(len(clip.stems)) for reverse in (False, True))


def spike_cases(root: Path) -> dict[str, dict[str, Any]]:
    for seed, clip in enumerate(("a", "b")):
        write_clip(root, clip, frames=7, seed=seed, instants=3)
    write_info(root)
    turned = {"use_hflip": True, "use_rot": True, "random_reverse": True, "interval_list": [1, 2]}
    spike = {"type": "dat", "resize": "nearest", "center": "file"}
    plain = section(root, **turned)
    cases = {
        "folders": plain,
        "longer than the clip": section(root, num_frame=11, **turned),
        "context and camera": plain | {"spike": spike | {"context": 30, "representation": RELATIVE}, "camera": CAMERA},
        "rates": plain | {"rate_windows": 3},
        "match": plain | {"spike": spike | {"rate": "match", "representation": "tfp"}},
        "instants": plain | {"dataroot_gt_instants": plain["dataroot_lq"]},
        "in memory": plain | {"cache_data": True},
    }
    for kind, inner in (("lq", "blur"), ("gt", "sharp")):
        to_lmdb(root / "GOPRO_Large/train", inner, root / f"{kind}.lmdb")
    to_lmdb(root / "GOPRO_Large_spike_seq/train", "spike", root / "spike.lmdb")
    lmdb = {f"dataroot_{kind}": str(root / f"{kind}.lmdb") for kind in ("lq", "gt", "spike")}
    known = {"h": 8, "w": 12, "flip": True, "rate": 1.0, "light": "linear"}
    cases["lmdb"] = plain | lmdb | {"io_backend": {"type": "lmdb"}, "spike": plain["spike"] | known}
    build_cache(source_of(plain), str(root / "cache"))
    cases["cache"] = plain | {"io_backend": {"type": "cache", "path": str(root / "cache")}}
    one = root / "one"
    for clip in ("a", "b"):
        write_clip(one, clip, frames=4)
        folder = one / "GOPRO_Large_spike_seq/train" / clip / "spike"
        for file in folder.iterdir():
            file.unlink()
        planes = np.random.default_rng(5).integers(0, 2, (150, 8, 12)).astype(np.uint8)
        write_spikes(folder / "all.dat", planes, SpikeGeometry(8, 12))
    write_info(one, planes=None)
    exposure = {"exposure": {"start": 3, "length": 24, "period": 31.5}, "context": 9, "representation": RELATIVE}
    cases["one file"] = section(one, num_frame=3, gt_size=8, **turned) | {"spike": spike | exposure}
    table = {"format": 1, "matrix": [[1.9, 0.1, 0.5], [-0.1, 1.9, 0.7]], "spike_size": [8, 12], "rgb_size": [16, 24]}
    (root / "calibration.json").write_text(json.dumps(table | {"time_offset_planes": 2.4}))
    calibrated = {"type": "dat", "center": "file", "calibration": str(root / "calibration.json")}
    cases["calibrated"] = plain | {"spike": calibrated | {"representation": RELATIVE, "context": 20}}
    return cases


def kair_cases(root: Path) -> dict[str, str]:
    found = {}
    for number in ("001", "003", "006", "008", "009"):
        options = kair_files.small(kair_files.in_folder(root / number, kair_files.options_of(number)))
        kair_files.write_data(root / number, kair_files.in_folder(root / number, kair_files.options_of(number)))
        datasets = load_options(kair_files.write_file(root / f"{number}.json", options), (), parts=PARTS).datasets
        found |= {f"KAIR {number} {split}": drawn(getattr(datasets, split), split) for split in ("train", "test")}
    return found


def user_cases(root: Path) -> dict[str, str]:
    frames, spikes = root / "GOPRO_Large/train/a/blur", root / "GOPRO_Large_spike_seq/train/a/spike"
    images = [cv2.imread(str(file))[..., ::-1] for file in sorted(frames.iterdir())]
    with VideoWriter(root / "blur.mp4", 25.0) as video:
        for image in images:
            video.write(np.ascontiguousarray(image))
    stream = np.random.default_rng(1).integers(0, 2, (7 * 24 + 8, 8, 12)).astype(np.uint8)
    write_spikes(root / "all.npy", stream, SpikeGeometry(8, 12))
    write_spikes(root / "all.dat", stream, SpikeGeometry(8, 12))
    # A plane that is no whole part of the frame.
    write_spikes(root / "odd.npy", np.ascontiguousarray(stream[:, :6, :9]), SpikeGeometry(6, 9))
    known = {"type": "dat", "h": 8, "w": 12, "rate": 1.0, "center": "file", "representation": "voxel"}
    ratios = {"type": "dat", "h": 8, "w": 12, "context": 9, "representation": RELATIVE}
    cases = {
        "frames": (frames, None, None, None),
        "clips": (root / "GOPRO_Large/train", root / "GOPRO_Large_spike_seq/train", None, known),
        "files": (frames, spikes, frames.parent / "sharp", ratios),
        "shared": (frames, root / "all.npy", None, known | {"first": 5}),
        "exposures": (frames, root / "all.dat", None, ratios | {"exposure": {"start": 2, "length": 20, "period": 24}}),
        "another ratio": (frames, root / "odd.npy", None, {"type": "dat", "rate": "match", "representation": "tfp"}),
        "video": (root / "blur.mp4", spikes, None, known),
        "calibrated": (frames, spikes, None, ratios | {"calibration": str(root / "calibration.json")}),
    }
    found = {}
    for name, (path, spike, gt, options) in cases.items():
        clips = user_clips(path, spike, gt, options)
        frames_of = (clip.frame(i, r) for clip in clips for i in range(len(clip.stems)) for r in (False, True))
        found[f"user: {name}"] = digest(frames_of)
    return found


def main() -> None:
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        found = {name: drawn(values) for name, values in spike_cases(root).items()}
        tested = section(root, "test", dataroot_lq=str(root / "GOPRO_Large/train"))
        tested |= {key: tested[key].replace("/test", "/train") for key in ("dataroot_gt", "dataroot_spike")}
        found |= {"tested": drawn(tested, "test"), "tested, camera": drawn(tested | {"camera": CAMERA}, "test")}
        found |= kair_cases(root) | user_cases(root)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
