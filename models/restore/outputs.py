"""Say where each file of a test lies, and write and read restored frames.

Each test (a restoration by main_test_vrt.py) has a folder of its own. E.g. for a clip "street":

    run.json                        settings and input files of the test, and names of its results
    street/000001.png               a restored frame
    strips/street/000001.png        the frame beside its input, spikes and sharp frame
    street.mp4                      a video, if asked for
    clips/street.json, street.png   scores of the finished clip, and its example frame
    pictures/street/motion.png      how the example frame was restored, if the method shows it
    metrics.json, table.txt, report.html    results of all clips

main_test_vrt.py makes an `Outputs` from --output, --save and --fps. Four modules ask the `Outputs`
for the paths of files, by the kind of a file:

    output_folder.py    takes the folder for the test
    run_job.py          writes restored frames, with `write_frame`
    finished_clip.py    writes the scores and videos of a clip
    report.py           writes the files of all clips

What must stay: names and contents of these files, because an interrupted test is continued from
them. The interrupted test may be of an older version
(test_overwrite_removes_what_a_test_of_an_earlier_version_saved).
Free to change: how strips and videos look. A new kind of file is a line in PLACES.

Tests: tests/parts/utils/test_output_folder.py, test_results.py, tests/stories/test_main_test.py
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from utils.contract import FramePicture
from utils.files import write_whole
from utils.image import imread_rgb, imwrite_rgb, tensor_to_uint8
from utils.options.val_options import MetricOptions
from utils.results import json_bytes, read_json

# A strip is a picture with a frame beside its input, its spikes and its sharp frame. Strips are for
# a first look at the results: the first, the middle and the last frame of each clip
# (test_a_clip_has_three_strips).
STRIPS_PER_CLIP = 3
# Kinds of files that are videos. They are also values of the flag --save (flags.py).
VIDEOS = ("video", "comparison", "slowmotion")
# Kind of file -> its path below the output folder. A stem is the name of a frame, e.g. "000001".
# The paths must stay, because a test that is continued finds its files by these paths.
PLACES = {
    # The K instants of a frame, as the network returned them, (K, C, H, W) float32. An instant is
    # the sharp picture of one moment of the exposure. The file is removed when its clip is
    # finished.
    "exact": ".work/{clip}/{stem}.npy",
    "frame": "{clip}/{stem}.png",
    "instant": "instants/{clip}/{stem}_{k}.png",
    # A frame beside its input, spikes and sharp frame.
    "strip": "strips/{clip}/{stem}.png",
    # {"name", "frames", "stems", "example", "per_frame", ...} of a finished clip.
    "clip": "clips/{clip}.json",
    # The restored frame that the report shows.
    "example": "clips/{clip}.png",
    # A picture of how the method restored this frame, e.g. of the motion that it found. {stem} is
    # the name of the picture, e.g. "motion". The captions are {name of a picture: text}.
    "picture": "pictures/{clip}/{stem}.png",
    "captions": "pictures/{clip}/captions.json",
    "video": "{clip}.mp4",
    "comparison": "{clip}_comparison.mp4",
    "slowmotion": "{clip}_slowmotion.mp4",
}


@dataclass(frozen=True)
class Outputs:
    """The output folder of a test, and what is saved there."""

    # A new folder, or the folder of an earlier test that is continued or replaced.
    folder: Path
    # What is saved, of "frames", "video", "comparison", "slowmotion". Strips are always saved.
    save: tuple[str, ...] = ("frames",)
    # Frame rate of the videos if the input has none. main_test_vrt.py passes the value of --fps,
    # which has the same default (flags.py).
    fps: float = 25.0
    # K, the number of sharp instants that are restored for each frame. If there are several, the
    # file of kind "frame" is the middle instant.
    instants: int = 1
    # How the frames are scored.
    metric: MetricOptions = field(default_factory=MetricOptions)
    # Names of the pictures with which the method shows how it restored a frame, e.g. ("motion",).
    pictures: tuple[str, ...] = ()

    # ---- Where files are ----

    def file(self, kind: str, clip: str, stem: str = "", k: int = 0) -> Path:
        """Return the path of a file. E.g. "frame", "street", "000001" -> street/000001.png.

        If "frames" is not in `save`, frames are written below .work, and removed once their clip is
        finished.

        kind: a key of PLACES.
        stem: name of the frame or of the picture. "" for a file of the whole clip.
        k: number of the instant, for the kind "instant".
        """
        # A place without {stem} or {k} ignores the argument `stem` or `k`.
        path_in_folder = PLACES[kind].format(clip=clip, stem=stem, k=k)
        is_temporary = kind in ("frame", "instant") and "frames" not in self.save
        if is_temporary:
            return self.folder / ".work" / path_in_folder
        return self.folder / path_in_folder

    def frame_files(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """Return the paths of the restored frames with these names.

        If there are several instants, the paths of the instants of a frame stand before the path of
        the frame. E.g. for 3 instants: instants/street/000001_0.png, ..._1.png, ..._2.png,
        street/000001.png.
        """
        files = []
        for stem in stems:
            if self.instants > 1:
                files += [self.file("instant", clip, stem, k) for k in range(self.instants)]
            files.append(self.file("frame", clip, stem))
        return files

    def exact_files(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """Return the paths of kind "exact" of these frames, one per frame.

        With the option metric.values "clamped" or "float", frames are scored with values that are
        not rounded. The scoring reads these values from the files. With "uint8" the scoring needs
        no file of kind "exact", so the result is [].
        """
        if self.metric.values == "uint8":
            return []
        return [self.file("exact", clip, stem) for stem in stems]

    def results(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """Return the files that the user asked for by `save`, for a clip with these frames."""
        frames = self.frame_files(clip, stems) if "frames" in self.save else []
        videos = [self.file(kind, clip) for kind in VIDEOS if kind in self.save]
        return frames + videos

    def planned_files(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """Return every file that is written for a clip, each once.

        stems: names of the frames. With (), only the files of the whole clip are returned, such as
        its videos.
        """
        # Strips are written for at most STRIPS_PER_CLIP frames, e.g. frames 0, 3 and 6 of 7 frames.
        positions = evenly_spaced(len(stems), most=STRIPS_PER_CLIP)
        strips = [self.file("strip", clip, stems[position]) for position in positions]
        # E.g. pictures/street/motion.png for the method's picture "motion".
        pictures = [self.file("picture", clip, name) for name in self.pictures]
        # "clip" is the JSON with the scores, and "example" the frame that the report shows.
        files = [
            *self.results(clip, stems),
            *self.frame_files(clip, stems),
            *self.exact_files(clip, stems),
            *strips,
            self.file("clip", clip),
            self.file("example", clip),
            *pictures,
        ]
        if self.pictures:
            files.append(self.file("captions", clip))
        # Drop repetitions, and keep the order. With "frames" in `save`, `results` and `frame_files`
        # return the same files.
        return list(dict.fromkeys(files))

    # ---- Writing and reading ----

    def load_clip(self, clip: str) -> dict[str, Any] | None:
        """Return what the JSON of a finished clip holds, or None if the clip is not finished."""
        path = self.file("clip", clip)
        return read_json(path) if path.exists() else None

    def write_pictures(self, clip: str, pictures: Sequence[FramePicture]) -> None:
        """Write pictures of how the example frame of a clip was restored.

        The file of the captions is written last. If it exists, the report knows that all pictures
        exist.
        """
        for picture in pictures:
            imwrite_rgb(self.file("picture", clip, picture.name), picture.image)
        captions = {picture.name: picture.caption for picture in pictures}
        write_whole(self.file("captions", clip), json_bytes(captions))

    def load_pictures(self, clip: str) -> list[FramePicture]:
        """Return the pictures that `write_pictures` wrote for a clip.

        Returns [] if there are none, e.g. for a method without pictures, or for a clip that an
        older version restored.
        """
        path = self.file("captions", clip)
        if not self.pictures or not path.exists():
            return []
        pictures = []
        for name, caption in read_json(path).items():
            image = imread_rgb(self.file("picture", clip, name))
            pictures.append(FramePicture(name, image, caption))
        return pictures

    def write_frame(self, clip: str, stem: str, frame: torch.Tensor) -> None:
        """Write a restored frame and its K instants.

        The file of kind "frame" must be written last. If it exists, a continued test takes the
        frame as finished.

        frame: (3 K, H, W), the colours of each instant.
        """
        # K instants of 3 channels each, e.g. 9 channels -> 3 x 3. -1 stands for 3 K / K.
        instants = frame.unflatten(0, (self.instants, -1))  # (K, 3, H, W)
        exact_files = self.exact_files(clip, [stem])  # one file, or none if scores are of uint8
        if exact_files:
            content = BytesIO()
            np.save(content, instants.numpy())
            write_whole(exact_files[0], content.getvalue())
        # The images in the order of `frame_files`. The middle instant is the frame, so it comes
        # twice if there are several instants, e.g. 0, 1, 2 and again 1 for K = 3. `middle_instant`
        # (utils/contract.py) and clip_scores.py take the same instant.
        images = list(tensor_to_uint8(instants))
        if len(images) > 1:
            middle = images[len(images) // 2]
            images.append(middle)
        for path, image in zip(self.frame_files(clip, [stem]), images, strict=True):
            imwrite_rgb(path, image)


def evenly_spaced(count: int, most: int) -> list[int]:
    """Return at most `most` positions, evenly spaced over `count` frames or clips.

    E.g. 7 frames, at most 3 positions -> 0, 3, 6. A test writes strips of the frames at these
    positions. A validation shows the clips at these positions.
    """
    number_of_positions = min(most, count)
    positions = np.linspace(0, count - 1, number_of_positions)
    return positions.round().astype(int).tolist()
