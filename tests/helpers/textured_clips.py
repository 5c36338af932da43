"""A training set of textured clips, whose spikes fit their frames, and its option file."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from data.spike.formats import SpikeGeometry
from data.spike.simulate import IntegrateAndFire, to_linear
from tests.helpers.clip_files import section, write_dat, write_info
from tests.helpers.train_files import LOADER, network
from tests.helpers.two_cameras import texture
from utils.image import imwrite_rgb

SIDE, FRAMES, PLANES = 96, 4, 40
PLANE = SpikeGeometry(48, 48)
TURNS: dict[str, Any] = {"use_hflip": True, "use_rot": True, "random_reverse": True}
SPIKES = {
    "type": "dat",
    "center": "file",
    "gamma": 2.2,
    "representation": {"type": "tfi", "offsets": [-6, 0, 6]},
}


def make_textured_home(folder: Path) -> Path:
    """Write one clip per split, of another scene, of 4 frames of 96 x 96, spikes of 48 x 48."""
    for seed, split in enumerate(("train", "test")):
        write_textured_clip(folder, split, np.random.default_rng(seed))
    write_info(folder, h=48, w=48, planes=PLANES, gt_plane=20, rate=0.6, flip=None)
    options = {
        "task": "run",
        "path": {"root": str(folder / "experiments")},
        "datasets": {
            "train": section(folder, num_frame=3, gt_size=48, **TURNS, spike=SPIKES) | LOADER,
            "test": section(folder, "test", spike=SPIKES),
        },
        "netG": network(fusion={"type": "none"}),
        "train": {"total_iter": 1, "manual_seed": 5, "G_lossfn_type": "charbonnier"},
    }
    (folder / "options.json").write_text(json.dumps(options))
    return folder


def write_textured_clip(folder: Path, split: str, rng: np.random.Generator) -> None:
    scene = texture(rng, (SIDE + 40, SIDE + 40))
    for frame in range(FRAMES):
        shown = scene[5 * frame : 5 * frame + SIDE, 3 * frame : 3 * frame + SIDE]
        for kind, view in (("sharp", shown), ("blur", cv2.blur(shown, (5, 1)))):
            path = folder / "GOPRO_Large" / split / "clip0" / kind / f"{frame:06d}.png"
            imwrite_rgb(path, np.round(255 * view).astype(np.uint8)[..., None].repeat(3, axis=2))
        light = cv2.resize(to_linear(shown), (SIDE // 2, SIDE // 2), interpolation=cv2.INTER_AREA)
        sensor = IntegrateAndFire(*light.shape, rate=0.6, rng=np.random.default_rng(frame))
        path = folder / "GOPRO_Large_spike_seq" / split / "clip0" / "spike" / f"{frame:06d}.dat"
        write_dat(path, sensor.run([light] * PLANES))
