"""Score a clip of which all frames are restored, and write its strips, videos and scores.

In: the files of the frames, which run_job.py has written, and the clip, with its sharp frames. The
frames are read back, because several ranks may have restored them. `Outputs` (outputs.py) says
where the files are. Out: strips, videos, and clips/<name>.json with the scores, for report.py.

What must stay: the keys of this JSON, and that it is written after all other files of the clip,
because it is the sign for a continued test that the clip is finished. The scores must stay
(test_the_numbers_equal_the_numbers_of_a_restoration_by_hand). Free to change: how strips look.

Tests: tests/parts/utils/test_results.py, test_output_folder.py, tests/stories/test_main_test.py
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from models.metrics import METRICS_OF_TESTS, Metric, Scores, add_scores, choose_metrics
from models.restore.clip_videos import open_videos
from models.restore.outputs import STRIPS_PER_CLIP, Outputs, evenly_spaced
from utils.contract import ClipReader
from utils.dist import watchdog
from utils.files import remove_files, write_whole
from utils.image import (
    ERROR,
    comparison,
    comparison_strip,
    imread_rgb,
    imwrite_rgb,
    scored_values,
    tensor_to_uint8,
)
from utils.options.models import MetricOptions
from utils.results import json_bytes
from utils.video.writer import VideoWriter

# A function (restored frame, sharp frame) -> {name of a score: value}, e.g. {"lpips": 0.12}, for
# scores beyond those of models/metrics.py. The frames are (H, W, 3) RGB.
MoreScores = Callable[[np.ndarray, np.ndarray], dict[str, float]]


def finish_clip(
    clip: ClipReader,
    indices: Sequence[int],
    outputs: Outputs,
    more_scores: MoreScores | None,
    notes: Mapping[str, Any],
    is_grey: bool = False,
) -> None:
    """Score the restored frames of a clip, write strips and videos, then the JSON of the clip.

    The JSON marks the clip as finished, so it must be written after all other files of the clip.
    The input is scored too if it has the size of the sharp frame. A method may restore several
    sharp frames of an exposure, its instants. They are scored too if the clip has a true sharp
    frame for each instant.

    This function calls `watchdog.go_on` after each slow part. The call says that the process makes
    progress; without it, the watchdog would end a test of long clips.

    clip: the input, with its spikes and sharp frames. outputs: where the files are.
    indices: indices of the restored frames in the clip.
    more_scores: function (restored frame, sharp frame) -> further scores, or None.
    notes: further entries of the JSON.
    is_grey: whether the luma alone is scored.
    """
    scorer = ClipScorer(outputs.metric, more_scores, is_grey)
    # Strips are written for at most STRIPS_PER_CLIP frames, evenly spaced over the clip.
    positions = evenly_spaced(len(indices), most=STRIPS_PER_CLIP)
    indices_of_strips = {indices[position] for position in positions}
    middle_index = example_of(indices)
    with ExitStack() as stack:
        videos = open_videos(clip, outputs, len(indices), stack)  # kind -> open video
        for index in indices:
            stem = clip.stems[index]
            item = clip.frame(index)  # input, spikes and sharp frames
            # frame.restored is the picture that was saved. frame.scored are the values to score:
            # the picture, or its instants, or the exact values before rounding.
            frame = _read_frame(outputs, clip.name, stem)
            watchdog.go_on()
            scorer.add(item, frame.scored)
            watchdog.go_on()

            if "video" in videos:
                videos["video"].write(frame.restored)
            if "slowmotion" in videos:
                for image in frame.instants:
                    videos["slowmotion"].write(image)
            has_strip = index in indices_of_strips
            if "comparison" in videos or has_strip:
                panels = comparison_of(clip, index, item, frame.restored)
                strip_file = outputs.file("strip", clip.name, stem) if has_strip else None
                _write_comparison(panels, strip_file, videos.get("comparison"))
            if index == middle_index:
                imwrite_rgb(outputs.file("example", clip.name), frame.restored)

    content = {
        "name": clip.name,
        "frames": len(indices),
        "stems": [clip.stems[index] for index in indices],
        "example": clip.stems[middle_index],
        "per_frame": scorer.scores,
        **notes,  # e.g. {"s_per_frame": 0.31, "tile": "tiles of 12 frames x 256 px"}
    }
    write_whole(outputs.file("clip", clip.name), json_bytes(content))
    # Remove the files that only the scoring needed. This comes after the JSON, because a test that
    # is interrupted before the JSON must find these files again. Some of the files do not exist,
    # e.g. the file of a frame that was not restored.
    temporary = outputs.exact_files(clip.name, clip.stems)
    if "frames" not in outputs.save:
        temporary += outputs.frame_files(clip.name, clip.stems)
    remove_files(outputs.folder, temporary)


def _write_comparison(
    panels: dict[str, np.ndarray], strip_file: Path | None, video: VideoWriter | None
) -> None:
    """Write a frame beside its input and sharp frame, as a picture and as a frame of a video.

    panels: name -> picture, from `comparison_of`. If there is a video, this function removes the
        panel of the error from `panels`.
    strip_file: path of the picture, or None for no picture.
    video: the open video, or None for no video.
    """
    if strip_file is not None:
        imwrite_rgb(strip_file, comparison_strip(panels))
    if video is not None:
        panels.pop(ERROR, None)  # a video has no panel of the error
        video.write(comparison_strip(panels))


class _RestoredFrame(NamedTuple):
    """The content of the files of a restored frame."""

    restored: np.ndarray  # (H, W, 3) uint8
    instants: list[np.ndarray]  # the K instants, (H, W, 3) uint8 each; [] if K is 1
    # The pictures to score: the K instants, or the frame alone if K is 1. With metric.values
    # "uint8" a list of (H, W, 3) uint8. Otherwise float values that were not rounded, (K, H, W, 3).
    scored: Any


def _read_frame(outputs: Outputs, clip: str, stem: str) -> _RestoredFrame:
    """Read what `Outputs.write_frame` wrote for the frame `stem` of a clip."""
    # If a frame has several instants, their files come first. The frame comes last.
    images = [imread_rgb(path) for path in outputs.frame_files(clip, [stem])]
    instants = images[:-1]
    restored = images[-1]
    scored: Any = instants if instants else [restored]
    # With metric.values "uint8" there is no exact file. Otherwise there is one, and its values
    # replace the images.
    for path in outputs.exact_files(clip, [stem]):
        exact = torch.from_numpy(np.load(path))  # (K, 3, H, W)
        scored = scored_values(exact, outputs.metric.values)
    return _RestoredFrame(restored, instants, scored)


def example_of(indices: Sequence[int]) -> int:
    """Return the frame of a clip that the report shows: the middle one of the restored frames."""
    return indices[len(indices) // 2]


class ClipScorer:
    """Collects the scores of the frames of one clip. `finish_clip` explains the arguments.

    scores: the result: what is scored -> metric -> value of each frame. E.g.
        {"restored": {"psnr": [30.1, 30.4], ...}, "input": ..., "instant 0": ..., "instant 1": ...}.
    """

    def __init__(
        self, metric: MetricOptions, more_scores: MoreScores | None, is_grey: bool
    ) -> None:
        self.values = metric.values
        self.more_scores = more_scores
        self.metrics_of_input = choose_metrics(METRICS_OF_TESTS, metric.more)
        self.metrics_of_restored = self.metrics_of_input
        if is_grey:  # then the restored frames have no colour, so only metrics on luma apply
            self.metrics_of_restored = [each for each in self.metrics_of_input if each.on_luma]
        self.metrics_of_instants = choose_metrics(("psnr",), more=())
        self.scores: Scores = {}

    def add(self, item: dict[str, Any], images: Sequence[np.ndarray] | np.ndarray) -> None:
        """Score a frame, and its instants if there are several.

        item: input and sharp frames: "lq", and "gt" and "gt_instants" if there are any.
        images: the instants, or the frame alone. The middle instant counts as the frame.
        """
        if "gt" in item:
            sharp = scored_values(item["gt"], self.values)
            middle = images[len(images) // 2]  # the only image if there is one
            self._add("restored", middle, sharp, self.metrics_of_restored)
            watchdog.go_on()
            blurry = item["lq"][:3]  # without the noise map, which may be a fourth channel
            # In super-resolution the input is smaller, so it has no score.
            if blurry.shape == item["gt"].shape:
                self._add("input", scored_values(blurry, self.values), sharp, self.metrics_of_input)
        if len(images) > 1 and "gt_instants" in item:
            instants = item["gt_instants"].unflatten(0, (len(images), -1))  # (K, 3, H, W)
            truth = scored_values(instants, self.values)
            for number, (image, sharp) in enumerate(zip(images, truth, strict=True)):
                add_scores(self.scores, f"instant {number}", image, sharp, self.metrics_of_instants)

    def _add(
        self, kind: str, image: np.ndarray, sharp: np.ndarray, metrics: Sequence[Metric]
    ) -> None:
        """Score one image, also with `more_scores`. The instants get no such further scores."""
        add_scores(self.scores, kind, image, sharp, metrics, self.more_scores)


def comparison_of(
    clip: ClipReader, index: int, item: dict[str, Any], restored: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the restored frame with its input, its spikes and its sharp frame, as panels.

    The result is {title: (H, W, 3) uint8}, see `utils.image.comparison`.
    """
    spikes = clip.spike_light(index, item["spike"]) if "spike" in item else None
    sharp = tensor_to_uint8(item["gt"]) if "gt" in item else None
    return comparison(tensor_to_uint8(item["lq"][:3]), spikes, restored, sharp)
