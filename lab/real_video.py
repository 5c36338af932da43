"""Test clips of real videos in the GoPro layout: python -m lab.real_video --root trainsets/real VIDEO ...

Between two real frames, both are moved along the optical flow (DIS) and mixed, one frame per spike plane; the sharp
frames are real ones. A moving crop adds the motion of a hand to static cameras. Only where the flow stays below
MOST_STEP pixels a frame and no cut lies between.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from data.spike import simulate
from scripts.make_sample_data import GT_PLANE, PLANES, RGB, SPIKES, Cameras, Recording, smooth_walk
from utils.video import VideoReader

MOST_STEP = 8.0  # 95th percentile of the flow between two frames
SENSOR = Cameras(shot_noise=0.01, threshold_mismatch=0.02)  # nearly ideal in time, uneven in space: as a real one


def flow_between(a: np.ndarray, b: np.ndarray, preset: int = cv2.DISOPTICAL_FLOW_PRESET_MEDIUM) -> np.ndarray:
    grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in (a, b)]
    return cv2.DISOpticalFlow_create(preset).calc(*grey, None)


def is_steady(frames: list[np.ndarray]) -> bool:
    pairs = list(itertools.pairwise(frames))
    if max(np.abs(a.astype(np.int16) - b).mean() for a, b in pairs) > 40:
        return False
    flows = [flow_between(a, b, cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST) for a, b in pairs]
    return max(np.percentile(np.hypot(*flow.transpose(2, 0, 1)), 95) for flow in flows) < MOST_STEP


def choose_frames(rng: np.random.Generator, path: Path, count: int, height: int) -> tuple[list[np.ndarray], int]:
    """Frames for `count` exposures of so many frames each; a random part of the video, scaled to this height."""
    reader = VideoReader(path)
    for _ in range(50):
        each = int(rng.integers(1, 5))
        first = int(rng.integers(0, max(1, reader.num_frames - each * count - 2)))
        frames = [reader.read(i) for i in range(first, min(first + each * count + 3, reader.num_frames))]
        width = round(height * frames[0].shape[1] / frames[0].shape[0])
        frames = [cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA) for frame in frames]
        if len(frames) == each * count + 3 and is_steady(frames):
            return frames, each
    raise SystemExit(f"{path}: no part with small motion")


def video_scene(rng: np.random.Generator, path: Path, count: int, side: int) -> Callable[[int], np.ndarray]:
    """Plane -> linear light (side, side, 3)."""
    frames, each = choose_frames(rng, path, count, int(rng.choice([side + 64, round(1.8 * side)])))
    (h, w), planes, walks = frames[0].shape[:2], count * PLANES, []
    for length in (h, w):
        free = max(0.0, (length - side) / 2 - 2)
        amplitude = rng.uniform(0.1, 1.0) * min(free, (h - side) / 2)
        walk = smooth_walk(rng, planes, amplitude, (2.0 * PLANES, 8.0 * PLANES)) + rng.uniform(-free, free)
        walks.append(np.clip(walk, -free, free) + length / 2)
    y, x = np.mgrid[:h, :w].astype(np.float32)
    flows: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def scene(plane: int) -> np.ndarray:
        time = 1 + (each + 1) // 2 + each * (plane - GT_PLANE) / PLANES  # a whole number at each sharp plane
        i = min(int(time), len(frames) - 2)
        share, pair = np.float32(time - i), frames[i : i + 2]
        if i not in flows:
            flows.clear()
            flows[i] = flow_between(*pair), flow_between(*pair[::-1])
        moved = [
            cv2.remap(f, x + s * flow[..., 0], y + s * flow[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            for f, flow, s in zip(pair, flows[i], (-share, share - 1), strict=True)
        ]
        frame = cv2.addWeighted(moved[0], 1 - float(share), moved[1], float(share), 0)
        crop = cv2.getRectSubPix(frame, (side, side), (float(walks[1][plane]), float(walks[0][plane])))
        return simulate.to_linear(crop.astype(np.float32) / 255)

    return scene


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", type=Path, nargs="+")
    parser.add_argument("--root", type=Path, required=True)
    for name, value in (("clips", 2), ("frames", 8), ("side", 192), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    a = parser.parse_args()
    for number, path in enumerate(a.videos):
        for clip in range(a.clips):
            rng = np.random.default_rng([a.seed, number, clip])
            scene = video_scene(rng, path, a.frames, a.side)
            recording = Recording(a.root, "test", f"{path.stem}{clip}", SENSOR, rng, side=a.side)
            for frame in range(a.frames):
                recording.add(frame, [scene(frame * PLANES + plane) for plane in range(PLANES)])
            print(recording.clip, flush=True)
    about = {"format": 1, "h": a.side // 2, "w": a.side // 2, "flip": True, "planes": PLANES, "rate": SENSOR.rate}
    about |= {"light": "linear", "gt_plane": GT_PLANE, "gamma": simulate.DISPLAY_GAMMA}
    (a.root / SPIKES / "dataset.json").write_text(json.dumps(about))
    print(f"test with datasets.test.dataroot_gt={a.root / RGB / 'test'}")


if __name__ == "__main__":
    main()
