"""Raw clips in the layout of GOPRO_Large_all, and the program that makes training clips of them.

A raw clip is a folder of sharp frames at a high rate, e.g. train/GOPR0001_03_00. In this name, 0001
is the number of the clip, and 03 is the number of frames whose mean is a blurry frame.
"""

import cv2
import numpy as np

from scripts import prepare_gopro_spike

# Height and width of the frames.
SIZE = 32


def moving_frames(count, seed=0, step=0.5):
    """Return frames (count, 32, 32, 3) uint8 of smooth clouds that move to the right.

    count: number of frames. At most 40 / step, because the clouds end there.
    seed: chooses the clouds.
    step: pixels by which the clouds move per frame.
    """
    noise = np.random.default_rng(seed).random((SIZE, 96, 3)).astype(np.float32)
    clouds = cv2.GaussianBlur(noise, (0, 0), 3)
    clouds = (clouds - clouds.min()) / np.ptp(clouds)
    x, y = np.meshgrid(np.arange(SIZE, dtype=np.float32), np.arange(SIZE, dtype=np.float32))
    # The clouds have 96 columns. The view begins at column 40 and moves to the left, so the clouds
    # move to the right. The view reaches column 0 after 40 / step frames, e.g. 80 with a step of
    # 0.5.
    frames = [cv2.remap(clouds, x + 40 - step * i, y, cv2.INTER_LINEAR) for i in range(count)]
    return np.rint(255 * np.stack(frames)).astype(np.uint8)


def write_folder(path, frames):
    """Write frames as 000001.png, 000002.png, ..."""
    path.mkdir(parents=True)
    for number, frame in enumerate(frames, start=1):
        cv2.imwrite(str(path / f"{number:06d}.png"), frame[..., ::-1])


def write_tree(root, clips=4, frames=60):
    """Write raw clips. Returns the number of all frames.

    E.g. with frames = 60:

        clip 0    60 frames    train
        clip 1    66 frames    test
        clip 2    72 frames    train
        ...

    clips: number of clips.
    frames: number of frames of clip 0.
    """
    total = 0
    for number in range(clips):
        count = frames + 6 * number
        split = "test" if number == 1 else "train"
        folder = root / split / f"GOPR{number:04d}_03_00"
        write_folder(folder, moving_frames(count, seed=number, step=0.25))
        total += count
    return total


def write_raw(root):
    """Write three raw clips of few frames. Returns their root."""
    write_folder(root / "train/GOPR0001_03_00", moving_frames(count=13, seed=1))
    write_folder(root / "train/GOPR0002_05_00", moving_frames(count=10, seed=2))
    write_folder(root / "test/GOPR0003_03_00", moving_frames(count=9, seed=3))
    return root


def prepare(*arguments):
    """Run scripts/prepare_gopro_spike.py in this process. Returns its exit code."""
    return prepare_gopro_spike.main([*map(str, arguments), "--workers", "1"])


def read_files(root):
    """Return the content of all files below a folder, by their path within it."""
    content = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            content[str(path.relative_to(root))] = path.read_bytes()
    return content
