"""Score a clip when all its frames are restored, and write its strips, videos and scores.

run_job.py calls `finish_clip` after it has written the files of all frames. The frames are read
back from these files, because several ranks may have restored them. `Outputs` (outputs.py) says
where the files are. report.py reads the scores in clips/<name>.json.

What must stay: the keys of clips/<name>.json, and the scores
(test_the_numbers_equal_the_numbers_of_a_restoration_by_hand). The JSON must be written after all
other files of the clip, because it tells a continued test that the clip is finished. Free to
change: how strips look.

Tests: tests/parts/utils/test_results.py, test_output_folder.py, tests/stories/test_main_test.py
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch

from models.restore.clip_scores import ClipScorer, MoreScores
from models.restore.clip_videos import open_videos
from models.restore.outputs import STRIPS_PER_CLIP, Outputs, evenly_spaced
from utils.contract import ClipReader
from utils.dist import watchdog
from utils.files import write_whole
from utils.image import (
    ERROR,
    comparison,
    comparison_strip,
    imread_rgb,
    imwrite_rgb,
    scored_values,
    tensor_to_uint8,
)
from utils.output_folder import remove_files
from utils.results import json_bytes


def finish_clip(
    clip: ClipReader,
    indices: Sequence[int],
    outputs: Outputs,
    more_scores: MoreScores | None,
    notes: Mapping[str, Any],
    is_grey: bool = False,
) -> None:
    """Score the restored frames of a clip, write strips and videos, then the JSON of the clip.

    A strip is a picture with a frame beside its input, its spikes and its sharp frame.

    This function calls `watchdog.go_on` after each slow part, to report progress. The watchdog ends
    a process that hangs. Without these calls, the watchdog would end a test of long clips.

    clip: the input, with its spikes and sharp frames.
    indices: indices of the restored frames in the clip.
    outputs: where the files are.
    more_scores: function (restored frame, sharp frame) -> additional scores, or None.
    notes: more entries of the JSON, e.g. {"s_per_frame": 0.31, "tile": "tiles of 12 frames"}.
    is_grey: whether only the luma (brightness) is scored.
    """
    scorer = ClipScorer(outputs.metric, more_scores, is_grey)
    with ExitStack() as stack:
        pictures = _Pictures(clip, indices, outputs, stack)
        for index in indices:
            item = clip.frame(index)  # input, spikes and sharp frames
            frame = _read_frame(outputs, clip.name, clip.stems[index])
            watchdog.go_on()
            scorer.add(item, frame.scored)
            watchdog.go_on()
            pictures.write(index, item, frame)

    # The keys must stay, because report.py reads them, also from the file of an earlier test.
    content = {
        "name": clip.name,
        "frames": len(indices),
        "stems": [clip.stems[index] for index in indices],
        "example": clip.stems[example_of(indices)],
        "per_frame": scorer.scores,
        **notes,
    }
    write_whole(outputs.file("clip", clip.name), json_bytes(content))
    # Remove the files that only the scoring needed. These files stay until the JSON is written. If
    # main_test_vrt.py is interrupted before, its next run needs these files again. Some of the
    # files may not exist, e.g. the file of a frame that was not restored.
    temporary = outputs.exact_files(clip.name, clip.stems)
    if "frames" not in outputs.save:  # the user did not ask for the frames
        temporary += outputs.frame_files(clip.name, clip.stems)
    remove_files(outputs.folder, temporary)


class _RestoredFrame(NamedTuple):
    """The content of the files of a restored frame, for K instants of its exposure."""

    restored: np.ndarray  # (H, W, 3) uint8
    instants: list[np.ndarray]  # K pictures (H, W, 3) uint8; [] if K is 1
    # The K pictures to score, (H, W, 3) each. Their values are rounded to uint8 if the option
    # metric.values is "uint8". With another value of this option, they are floats that are not
    # rounded.
    scored: Sequence[np.ndarray] | np.ndarray


def _read_frame(outputs: Outputs, clip: str, stem: str) -> _RestoredFrame:
    """Read what `Outputs.write_frame` wrote for the frame `stem` of a clip."""
    # `frame_files` names the files of the instants first, if K is above 1, and the file of the
    # frame last. E.g. K = 3: instants 0, 1, 2, then the frame. K = 1: only the frame.
    images = [imread_rgb(path) for path in outputs.frame_files(clip, [stem])]
    instants = images[:-1]
    restored = images[-1]
    exact_files = outputs.exact_files(clip, [stem])  # one file, or none with "uint8"
    if exact_files:
        exact = torch.from_numpy(np.load(exact_files[0]))  # (K, 3, H, W)
        scored = scored_values(exact, outputs.metric.values)  # (K, H, W, 3)
        return _RestoredFrame(restored, instants, scored)
    # Without exact files, the pictures themselves are scored. If K is 1, the frame is the only
    # picture.
    pictures = instants if instants else [restored]
    return _RestoredFrame(restored, instants, scored=pictures)


class _Pictures:
    """Writes the videos, the strips and the example frame of a clip, frame by frame.

    A strip is a picture with a frame beside its input, its spikes and its sharp frame.
    """

    def __init__(
        self, clip: ClipReader, indices: Sequence[int], outputs: Outputs, stack: ExitStack
    ) -> None:
        """Open the videos. Leaving `stack` closes them.

        indices: indices of the restored frames in the clip.
        """
        self.clip = clip
        self.outputs = outputs
        # {kind: open video}, for each of "video", "comparison", "slowmotion" in outputs.save.
        self.videos = open_videos(clip, outputs, len(indices), stack)
        positions = evenly_spaced(len(indices), most=STRIPS_PER_CLIP)
        self.indices_of_strips = {indices[position] for position in positions}
        self.example_index = example_of(indices)

    def write(self, index: int, item: dict[str, Any], frame: _RestoredFrame) -> None:
        """Write what is saved of a frame.

        index: index of the frame in the clip. item: its input, spikes and sharp frames.
        """
        if "video" in self.videos:
            self.videos["video"].write(frame.restored)
        if "slowmotion" in self.videos:
            for image in frame.instants:
                self.videos["slowmotion"].write(image)
        has_strip = index in self.indices_of_strips
        if "comparison" in self.videos or has_strip:
            panels = comparison_of(self.clip, index, item, frame.restored)
            if has_strip:
                stem = self.clip.stems[index]
                strip_file = self.outputs.file("strip", self.clip.name, stem)
                imwrite_rgb(strip_file, comparison_strip(panels))
            if "comparison" in self.videos:
                panels.pop(ERROR, None)  # a video has no panel of the error
                self.videos["comparison"].write(comparison_strip(panels))
        if index == self.example_index:
            imwrite_rgb(self.outputs.file("example", self.clip.name), frame.restored)


def example_of(indices: Sequence[int]) -> int:
    """Return the index of the example frame, which the report shows: the middle restored frame."""
    return indices[len(indices) // 2]


def comparison_of(
    clip: ClipReader, index: int, item: dict[str, Any], restored: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the restored frame with its input, its spikes and its sharp frame, as panels.

    item: the tensors of frame `index`: "lq", and "spike" and "gt" if there are any.

    Returns {title: (H, W, 3) uint8}, see `utils.image.comparison`.
    """
    blurry = tensor_to_uint8(item["lq"][:3])  # without the noise map, if there is one
    spikes = clip.spike_light(index, item["spike"]) if "spike" in item else None
    sharp = tensor_to_uint8(item["gt"]) if "gt" in item else None
    return comparison(blurry, spikes, restored, sharp)
