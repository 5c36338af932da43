"""The moving picture of the README, of what `make demo` made: python -m lab.demo_picture [docs/images/demo.webp]"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from utils.image import panels_of, side_by_side
from utils.video import VideoReader

CLIPS, PANELS = ("DEMO01_test", "DEMO00_test"), ("blurry", "spikes", "restored", "sharp")


def frames(clip: str) -> list[np.ndarray]:
    video = VideoReader(Path("experiments/demo") / f"{clip}_comparison.mp4")
    return [video.read(index) for index in range(video.num_frames)]


def main(path: str = "docs/images/demo.webp") -> None:
    pictures = []
    for strips in zip(*map(frames, CLIPS), strict=True):
        rows = []
        for strip in strips:
            panels = panels_of(strip[:, : strip.shape[1] // 4 * 4], PANELS)
            shown = {name: panels[name] for name in PANELS[:3]}
            rows.append(side_by_side(list(shown.values()), list(shown), shown["restored"].shape[:2]))
        pictures.append(Image.fromarray(np.concatenate(rows)))
    rest = [*pictures[1:], *pictures[-2:0:-1]]  # there and back
    pictures[0].save(path, save_all=True, append_images=rest, duration=200, loop=0, quality=60, method=6)


if __name__ == "__main__":
    main(*sys.argv[1:])
