"""What a restored clip becomes: scores per frame, side-by-side strips, videos, and the note that it is finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from utils.utils_image import comparison_strip, imwrite_rgb, side_by_side
from utils.utils_metrics import frame_scores, tensor_to_uint8
from utils.utils_video import VideoWriter

STRIPS_PER_CLIP = 3
Score = Callable[[np.ndarray, np.ndarray], dict[str, float]]


class Reader(Protocol):
    """The clip that was restored."""

    name: str
    stems: Sequence[str]
    fps: float | None

    def frame(self, index: int) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class Outputs:
    """Where results go and which of "frames", "video", "comparison" are wanted.

    folder/<clip>/<stem>.png frames, folder/<clip>.mp4 video, folder/<clip>_comparison.mp4 comparison; always
    folder/strips/<clip>/<stem>.png and folder/clips/. fps: of the videos where the input has no frame rate.
    """

    folder: Path
    save: tuple[str, ...] = ("frames",)
    fps: float = 25.0

    def frame_file(self, clip: str, stem: str) -> Path:
        """Where a restored frame is put at first; frames that are not wanted leave when their clip is finished."""
        return (self.folder if "frames" in self.save else self.folder / ".work") / clip / f"{stem}.png"

    def example_file(self, clip: str) -> Path:
        """The restored frame that stands for the clip in the report."""
        return self.folder / "clips" / f"{clip}.png"


def finish_clip(
    reader: Reader,
    indices: Sequence[int],
    outputs: Outputs,
    read_restored: Callable[[int], np.ndarray],
    more_scores: Score | None = None,
) -> dict[str, Any]:
    """Score the restored frames `indices` of a clip, write strips and videos; the clip's entry for `save_clip`.

    read_restored: index -> the finished frame, (H, W, 3) uint8. more_scores: further metrics of (restored, sharp).
    The input is scored as well where it has the size of the sharp frame.
    """
    per_frame: dict[str, dict[str, list[float]]] = {}
    spaced = np.linspace(0, len(indices) - 1, min(STRIPS_PER_CLIP, len(indices))).round().astype(int)
    strips, example = {indices[i] for i in spaced}, indices[len(indices) // 2]
    with ExitStack() as stack:
        video, comparison = (_open_videos(reader, outputs, stack)) if len(indices) else (None, None)
        for index in indices:
            item, restored = reader.frame(index), read_restored(index)
            blurry = tensor_to_uint8(item["lq"][:3])
            sharp = tensor_to_uint8(item["gt"]) if "gt" in item else None
            if sharp is not None:
                images = {"restored": restored, **({"input": blurry} if blurry.shape == sharp.shape else {})}
                for kind, image in images.items():
                    values = frame_scores(image, sharp) | (more_scores(image, sharp) if more_scores else {})
                    for name, value in values.items():
                        per_frame.setdefault(kind, {}).setdefault(name, []).append(value)
            if video is not None:
                video.write(restored)
            if comparison is not None:
                comparison.write(_panels(blurry, restored, sharp))
            if index in strips:
                strip = comparison_strip(item["lq"], item.get("spike"), _tensor(restored), item.get("gt"))
                imwrite_rgb(outputs.folder / "strips" / reader.name / f"{reader.stems[index]}.png", strip)
            if index == example:
                imwrite_rgb(outputs.example_file(reader.name), restored)
    return {
        "name": reader.name,
        "frames": len(indices),
        "stems": [reader.stems[i] for i in indices],
        "example": reader.stems[example],
        "per_frame": per_frame,
    }


def _open_videos(reader: Reader, outputs: Outputs, stack: ExitStack) -> tuple[VideoWriter | None, VideoWriter | None]:
    fps = reader.fps or outputs.fps
    names = {reader.name: "video", f"{reader.name}_comparison": "comparison"}
    return tuple(
        stack.enter_context(VideoWriter(outputs.folder / f"{name}.mp4", fps)) if kind in outputs.save else None
        for name, kind in names.items()
    )


def _panels(blurry: np.ndarray, restored: np.ndarray, sharp: np.ndarray | None) -> np.ndarray:
    images = [blurry, restored, *([sharp] if sharp is not None else [])]
    return side_by_side(images, ["blurry", "restored", "sharp"][: len(images)], restored.shape[:2])


def _tensor(image: np.ndarray) -> Tensor:
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255
