"""A training set whose spikes fit its frames, and its option file.

Each clip shows a random texture that moves. Frames have 96 x 96 pixels, and spike planes have
48 x 48 pixels. `make_textured_home` writes the whole set.
"""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from data.spike.geometry import SpikeGeometry
from data.spike.pictures import to_linear
from data.spike.simulate import IntegrateAndFire
from tests.helpers.clip_files import data_section, write_dat, write_info
from tests.helpers.train_files import LOADER, network_section
from tests.helpers.two_cameras import texture
from utils.image import imwrite_rgb

# Height and width of the frames.
SIDE = 96
# Number of frames of a clip, and number of spike planes of a frame.
FRAMES = 4
PLANES = 40
PLANE = SpikeGeometry(height=48, width=48)
# Changes of a training sample that are drawn at random: flips, quarter turns, reversed time.
TURNS: dict[str, Any] = {"use_hflip": True, "use_rot": True, "random_reverse": True}
SPIKES = {
    "type": "dat",
    "center": "file",
    "gamma": 2.2,
    "representation": {"type": "tfi", "offsets": [-6, 0, 6]},
}


def make_textured_home(folder: Path) -> Path:
    """Write a training clip, a test clip of another scene, and options.json. Returns `folder`."""
    for seed, split in enumerate(("train", "test")):
        write_textured_clip(folder, split, np.random.default_rng(seed))
    write_info(folder, h=48, w=48, planes=PLANES, gt_plane=20, rate=0.6, flip=None)
    train = data_section(folder, num_frame=3, gt_size=48, **TURNS, spike=SPIKES) | LOADER
    options = {
        "task": "run",
        "path": {"root": str(folder / "experiments")},
        "datasets": {"train": train, "test": data_section(folder, "test", spike=SPIKES)},
        "netG": network_section(fusion={"type": "none"}),
        "train": {"total_iter": 1, "manual_seed": 5, "G_lossfn_type": "charbonnier"},
    }
    (folder / "options.json").write_text(json.dumps(options))
    return folder


def write_textured_clip(folder: Path, split: str, rng: np.random.Generator) -> None:
    """Write the frames, sharp frames and spikes of clip0 of a split.

    The scene moves by 3 pixels along x and 5 along y per frame. The frames are blurred along x.
    """
    scene = texture(rng, (SIDE + 40, SIDE + 40))
    rgb = folder / "GOPRO_Large" / split / "clip0"
    spikes = folder / "GOPRO_Large_spike_seq" / split / "clip0" / "spike"
    for frame in range(FRAMES):
        top = 5 * frame
        left = 3 * frame
        sharp = scene[top : top + SIDE, left : left + SIDE]
        write_grey(rgb / "sharp" / f"{frame:06d}.png", sharp)
        write_grey(rgb / "blur" / f"{frame:06d}.png", cv2.blur(sharp, (5, 1)))

        light = cv2.resize(to_linear(sharp), (SIDE // 2, SIDE // 2), interpolation=cv2.INTER_AREA)
        sensor = IntegrateAndFire(*light.shape, rate=0.6, rng=np.random.default_rng(frame))
        write_dat(spikes / f"{frame:06d}.dat", sensor.run([light] * PLANES))


def write_grey(path: Path, values: np.ndarray) -> None:
    """Write display values (H, W) in [0, 1] as a grey picture."""
    grey = np.round(255 * values).astype(np.uint8)
    imwrite_rgb(path, grey[..., None].repeat(3, axis=2))
