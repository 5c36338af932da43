"""Raw clips in the layout of GOPRO_Large_all, and the program that prepares them."""

import cv2
import numpy as np

from scripts import prepare_gopro_spike

SIZE = 32


def moving_frames(count, seed=0, step=0.5):
    """(count, 32, 32, 3) uint8: smooth clouds that move `step` pixels to the right per frame."""
    clouds = cv2.GaussianBlur(
        np.random.default_rng(seed).random((SIZE, 96, 3)).astype(np.float32), (0, 0), 3
    )
    clouds = (clouds - clouds.min()) / np.ptp(clouds)
    x, y = np.meshgrid(np.arange(SIZE, dtype=np.float32), np.arange(SIZE, dtype=np.float32))
    frames = [cv2.remap(clouds, x + 40 - step * i, y, cv2.INTER_LINEAR) for i in range(count)]
    return np.rint(255 * np.stack(frames)).astype(np.uint8)


def write_folder(path, frames):
    path.mkdir(parents=True)
    for number, frame in enumerate(frames):
        cv2.imwrite(str(path / f"{number + 1:06d}.png"), frame[..., ::-1])


def write_tree(root, clips=4, frames=60):
    """Raw clips in the layout of GOPRO_Large_all, each longer than the one before; their number of
    frames.
    """
    counts = [frames + 6 * number for number in range(clips)]
    for number, count in enumerate(counts):
        split = "test" if number == 1 else "train"
        write_folder(
            root / split / f"GOPR{number:04d}_03_00", moving_frames(count, seed=number, step=0.25)
        )
    return sum(counts)


def write_raw(root):
    """Three raw clips of few frames in the layout of GOPRO_Large_all; their root."""
    write_folder(root / "train/GOPR0001_03_00", moving_frames(13, seed=1))
    write_folder(root / "train/GOPR0002_05_00", moving_frames(10, seed=2))
    write_folder(root / "test/GOPR0003_03_00", moving_frames(9, seed=3))
    return root


def prepare(*arguments):
    return prepare_gopro_spike.main([*map(str, arguments), "--workers", "1"])


def files(root):
    return {
        str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()
    }
