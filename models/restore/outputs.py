"""The files of a test: restored frames, scores, side-by-side strips and videos.

Each test has a folder of its own, which `claim_folder` takes. E.g. for a clip "street":

    run.json                        settings and input files of the test, and names of its results
    street/000001.png               a restored frame
    strips/street/000001.png        the frame beside its input, spikes and sharp frame
    street.mp4                      a video, if asked for
    clips/street.json, street.png   scores of the finished clip, and its example frame
    pictures/street/motion.png      how the example frame was restored, if the method shows it
    metrics.json, table.txt, report.html    results of all clips

`Outputs` says where each file is. `finish_clip` scores a clip when all its frames are restored.

What must stay: names and contents of these files, because an interrupted test, also of an older
version, is continued from them (test_overwrite_removes_what_a_test_of_an_earlier_version_saved). No
file of a user is overwritten or removed
(test_a_foreign_file_under_any_name_that_is_written_is_refused_at_the_start).
Free to change: how strips and videos look. A new kind of file is a line in PLACES.

Tests: tests/parts/utils/test_output_folder.py, test_results.py, tests/stories/test_main_test.py
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from models.metrics import METRICS_OF_TESTS, Metric, Scores, add_scores, choose_metrics
from utils.contract import ClipReader, FramePicture
from utils.dist import watchdog
from utils.errors import DataError, OptionError
from utils.files import MARK as TRAINING_MARK  # the file that marks the folder of a training run
from utils.files import RESULTS, refuse_links, remove_files, write_whole  # RESULTS is "run.json"
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
from utils.results import json_bytes, read_json
from utils.video import VideoWriter

# A strip is a picture with a frame beside its input, its spikes and its sharp frame. Strips are for
# a first look at the results: the first, the middle and the last frame of each clip.
STRIPS_PER_CLIP = 3
# Kinds of files that are videos.
VIDEOS = ("video", "comparison", "slowmotion")
# Kind of file -> its path below the output folder. A stem is the name of a frame, e.g. "000001".
# The paths are part of the format: a test that is continued finds its files by them.
PLACES = {
    # The K instants of a frame, as the network returned them, (K, C, H, W) float32. An instant is
    # the sharp picture of one moment of the exposure, and K is `Outputs.instants`. The file is
    # removed when its clip is finished.
    "exact": ".work/{clip}/{stem}.npy",
    "frame": "{clip}/{stem}.png",
    "instant": "instants/{clip}/{stem}_{k}.png",
    # A frame beside its input, spikes and sharp frame.
    "strip": "strips/{clip}/{stem}.png",
    # {"name", "frames", "stems", "example", "per_frame", ...} of a finished clip.
    "clip": "clips/{clip}.json",
    # The restored frame that the report shows.
    "example": "clips/{clip}.png",
    # How this frame was restored, as pictures, if the method has such pictures. The stem is the
    # name of the picture, e.g. "motion". The captions are {name of a picture: text}.
    "picture": "pictures/{clip}/{stem}.png",
    "captions": "pictures/{clip}/captions.json",
    "video": "{clip}.mp4",
    "comparison": "{clip}_comparison.mp4",
    "slowmotion": "{clip}_slowmotion.mp4",
}
# A function (restored frame, sharp frame) -> {name of a score: value}, e.g. {"lpips": 0.12}, for
# scores beyond those of models/metrics.py. The frames are (H, W, 3) RGB.
MoreScores = Callable[[np.ndarray, np.ndarray], dict[str, float]]
# Files that a test writes once, not per clip.
FILES_OF_ALL_CLIPS = (RESULTS, "metrics.json", "table.txt", "report.html")


@dataclass(frozen=True)
class Outputs:
    """The output folder of a test, and what is saved there.

    folder: a new folder, or the folder of an earlier test that is continued or replaced.
    save: which of "frames", "video", "comparison", "slowmotion". Strips are always saved.
    fps: frame rate of the videos if the input has none.
    instants: number of sharp instants that are restored for each frame. If there are several, the
    file of kind "frame" is the middle instant.
    metric: how the frames are scored.
    pictures: names of the pictures that the method has of a frame, e.g. ("motion",).
    """

    folder: Path
    save: tuple[str, ...] = ("frames",)
    fps: float = 25.0
    instants: int = 1
    metric: MetricOptions = field(default_factory=MetricOptions)
    pictures: tuple[str, ...] = ()

    def file(self, kind: str, clip: str, stem: str = "", k: int = 0) -> Path:
        """Return the path of a file. E.g. "frame", "street", "000001" -> street/000001.png.

        kind: a key of PLACES. k: number of the instant, for the kind "instant".

        If "frames" is not in `save`, frames are written below .work, and removed once their clip is
        finished.
        """
        place = PLACES[kind].format(clip=clip, stem=stem, k=k)
        if kind in ("frame", "instant") and "frames" not in self.save:
            return self.folder / ".work" / place
        return self.folder / place

    def frame_files(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """Return the paths of the restored frames with these names.

        With several instants, the paths of a frame's instants stand before the path of the frame.
        E.g. 3 instants: instants/street/000001_0.png, ..._1.png, ..._2.png, street/000001.png.
        """
        files = []
        for stem in stems:
            if self.instants > 1:
                files += [self.file("instant", clip, stem, k) for k in range(self.instants)]
            files.append(self.file("frame", clip, stem))
        return files

    def exact_files(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """Return the files of kind "exact" for these frames, one per frame.

        Returns [] if scores are computed from uint8 pictures. The files are needed only for scores
        of values that are not rounded.
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
        """Return every file written for a clip with these frames, each once.

        stems: names of the frames. If empty, only the files of the clip itself are returned, such
        as its videos.
        """
        # Strips are written for at most STRIPS_PER_CLIP frames, e.g. frames 0, 3 and 6 of 7 frames.
        positions = evenly_spaced(len(stems), most=STRIPS_PER_CLIP)
        strips = [self.file("strip", clip, stems[position]) for position in positions]
        files = [
            *self.results(clip, stems),
            *self.frame_files(clip, stems),
            *self.exact_files(clip, stems),
            *strips,
            self.file("clip", clip),
            self.file("example", clip),
            *(self.file("picture", clip, name) for name in self.pictures),
        ]
        if self.pictures:
            files.append(self.file("captions", clip))
        # With "frames" in `save`, the frames are among the results, too. A dict keeps the first of
        # equal keys, and the order.
        return list(dict.fromkeys(files))

    def load_clip(self, clip: str) -> dict[str, Any] | None:
        """Return what the JSON of a finished clip holds, or None if the clip is not finished."""
        path = self.file("clip", clip)
        return read_json(path) if path.exists() else None

    def write_pictures(self, clip: str, pictures: Sequence[FramePicture]) -> None:
        """Write pictures of how the example frame of a clip was restored.

        The captions are written last, because the file of the captions is the sign for the report
        that all pictures are there.
        """
        for picture in pictures:
            imwrite_rgb(self.file("picture", clip, picture.name), picture.image)
        captions = {picture.name: picture.caption for picture in pictures}
        write_whole(self.file("captions", clip), json_bytes(captions))

    def load_pictures(self, clip: str) -> list[FramePicture]:
        """Return what `write_pictures` wrote for a clip, or [] if it wrote nothing.

        A test of an older version, or of a method without pictures, wrote nothing.
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
        """Write a restored frame (3 K, H, W) and its K instants.

        The file of kind "frame" must be written last, because it is the sign for a resumed test
        that all files of this frame are there.
        """
        instants = frame.unflatten(0, (self.instants, -1))  # (K, 3, H, W)
        for path in self.exact_files(clip, [stem]):  # one path or none
            content = BytesIO()
            np.save(content, instants.numpy())
            write_whole(path, content.getvalue())
        # The images in the order of `frame_files`. E.g. 3 instants: instant 0, 1, 2, and then
        # instant 1 once more, as the file of the frame. With one instant: the frame alone.
        images = list(tensor_to_uint8(instants))
        if len(images) > 1:
            middle = images[len(images) // 2]
            images.append(middle)
        for path, image in zip(self.frame_files(clip, [stem]), images, strict=True):
            imwrite_rgb(path, image)


# ---- The folder ------------------------------------------------------------------------------


def claim_folder(
    outputs: Outputs,
    settings: dict[str, Any],
    inputs: dict[str, str],
    stems: Mapping[str, Sequence[str]],
    overwrite: bool,
) -> None:
    """Take the output folder for one test.

    What the folder holds, and what happens:

        nothing, or there is no folder       the folder is taken
        results of this test                 the test continues: the results stay
        results of another test              refused; with `overwrite`, these results are removed
        files that no test wrote             refused
        a training run                       refused

    The file run.json shows that a test of this program made the folder. It holds settings, inputs
    and the names of all results. It is written only after all checks, so a refused test changes
    nothing. A new check goes before this write.

    settings: everything that the results depend on.
    inputs: name of a clip -> digest of its files.
    stems: name of a clip -> names of the frames to restore.
    overwrite: whether existing results are removed.

    Raises OptionError if the folder is the folder of a training run, or holds results of other
    settings or inputs. Raises DataError if the folder holds files that no test wrote, if a result
    would replace a symbolic link, or if two results would have one name.

    Rank 0 calls this before any rank restores a frame (job.py).
    tests/parts/utils/test_output_folder.py tests each refusal.
    """
    folder = outputs.folder
    run_json = folder / RESULTS
    _refuse_training_run(folder)
    earlier_run = _read_run_json(run_json)
    # The files that this test will write, for each clip.
    planned_files = {
        clip: outputs.planned_files(clip, frame_names) for clip, frame_names in stems.items()
    }
    # Owner of files, in words for errors -> its files.
    owners = {"all clips": [folder / name for name in FILES_OF_ALL_CLIPS]}
    for name, files in planned_files.items():
        owners[f"clip {name}"] = files

    files_of_clips = {}  # name of a clip -> names of its files, for run.json
    if earlier_run is None:
        # No test of this program made the folder. So it must be new or empty.
        if folder.is_dir():
            _refuse_foreign(sorted(path.name for path in folder.iterdir()), folder)
        # Even in an empty folder, two results may want one name.
        _refuse_occupied(owners, written=set(), folder=folder)
    else:
        earlier_files = _files_of_earlier_tests(outputs, earlier_run, stems)
        _refuse_occupied(owners, earlier_files, folder)
        if overwrite:
            # run.json stays until the new run.json replaces it. So if the program is interrupted
            # here, a later test still knows the folder.
            remove_files(folder, earlier_files - {run_json})
        else:
            # Go on with the earlier test. Its clips stay in run.json, also if this test does not
            # restore them.
            _refuse_another_test(earlier_run, settings, inputs, folder)
            clips_that_stay = sorted(earlier_run["inputs"].keys() - stems)
            _refuse_names_of_kept_clips(owners, clips_that_stay, outputs)
            # run.json lists the clips of both tests. Where both have a clip, the digests are equal
            # (`_refuse_another_test`). A run.json of an older version has no "files".
            inputs = earlier_run["inputs"] | inputs
            files_of_clips = earlier_run.get("files", {})

    # From here on nothing is refused.
    for name, files in planned_files.items():
        files_of_clips[name] = [str(path.relative_to(folder)) for path in files]
    content = {"settings": settings, "inputs": inputs, "files": files_of_clips}
    write_whole(run_json, json_bytes(content))


def _read_run_json(path: Path) -> dict[str, Any] | None:
    """Return the content of run.json, or None if a test of this program did not write the file."""
    if not path.is_file() or path.is_symlink():  # a test never writes a link
        return None
    content = read_json(path)
    return content if _is_run_json(content) else None


def _is_run_json(content: Any) -> bool:
    """Return whether the content has the keys and types that a test of this program writes.

    The content names files that are removed with `overwrite`. So a damaged run.json, or a run.json
    of another program, must not pass.
    """
    if not isinstance(content, dict):
        return False
    settings = content.get("settings")
    inputs = content.get("inputs")
    files = content.get("files", {})  # older versions did not write this key
    if not all(isinstance(table, dict) for table in (settings, inputs, files)):
        return False
    # Each must be a list of texts: what was saved, e.g. ["frames"], and the files of each clip.
    lists = [settings.get("save", []), *files.values()]
    for names in lists:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return False
    return True


def _files_of_earlier_tests(
    outputs: Outputs, earlier_run: dict[str, Any], stems: Mapping[str, Sequence[str]]
) -> set[Path]:
    """Return the files that earlier tests in this folder wrote.

    earlier_run: the content of run.json. stems: name of a clip -> names of its frames in this test.
    """
    files_of_clips = earlier_run.get("files", {})
    written = {outputs.folder / file for file in FILES_OF_ALL_CLIPS}
    for files in files_of_clips.values():
        written |= {outputs.folder / file for file in files}

    # Older versions of SpikeVRT wrote a run.json without "files". For a clip of such a test, the
    # names follow from the setting "save" of the test and from the frames of the clip.
    saved_then = earlier_run["settings"].get("save", ())
    outputs_then = replace(outputs, save=tuple(saved_then))
    clips_without_files = earlier_run["inputs"].keys() - files_of_clips.keys()
    for name in clips_without_files:
        content_of_clip = outputs.load_clip(name)
        if content_of_clip is None:
            # The clip was not finished, so no file says which frames it had. If this test restores
            # the clip too, take its frames.
            stems_then = stems.get(name, ())
        else:
            stems_then = content_of_clip["stems"]
        written |= set(outputs_then.planned_files(name, stems_then))
    return written


def _refuse_training_run(folder: Path) -> None:
    """Raise OptionError if the folder is the folder of a training run."""
    if (folder / TRAINING_MARK).is_file():
        raise OptionError(
            what="--output is the folder of a training run",
            where=f"--output {folder}",
            expected="a folder for results alone",
            do=f"choose another folder, such as {folder / 'test'}",
        )


def _refuse_occupied(
    owners: Mapping[str, Sequence[Path]], written: set[Path], folder: Path
) -> None:
    """Raise DataError if this test cannot write one of its files without harm.

    Two results of one name, links, and files that no earlier test wrote are refused.

    owners: owner, e.g. "clip street" -> its files. written: the files that earlier tests wrote.
    """
    planned = []
    for files in owners.values():
        planned += files
    _refuse_same_names(owners, folder)
    refuse_links(folder, planned)
    foreign = []
    for path in planned:
        if path not in written and path.exists():
            foreign.append(str(path.relative_to(folder)))
    _refuse_foreign(foreign, folder)


def _refuse_foreign(foreign: Sequence[str], folder: Path) -> None:
    """Raise DataError if there is a file that no test wrote. foreign: names of such files."""
    if foreign:
        raise DataError(
            what="the output folder holds files that no test of this program made: "
            f"{', '.join(foreign[:5])}",
            where=str(folder),
            expected=f"a new or empty folder, or the folder of a test, which has a {RESULTS}",
            do="choose another folder, or move these files away",
        )


def _refuse_another_test(
    earlier_run: dict[str, Any], settings: dict[str, Any], inputs: dict[str, str], folder: Path
) -> None:
    """Raise OptionError if this test has other settings or input files than the earlier test."""
    # Older versions of SpikeVRT did not record these settings, and always had these values. A new
    # setting needs a line here. Otherwise no test of an older version could be continued.
    defaults = {"metric.values": "uint8", "metric.more": []}
    changed = _differences(defaults | earlier_run["settings"], defaults | settings)
    # The two tests may have different clips. A clip that both have must have the same files.
    for name, digest_then in earlier_run["inputs"].items():
        if name in inputs and inputs[name] != digest_then:
            changed.append(f"the files of clip {name} have changed")
    if changed:
        raise OptionError(
            what=f"the folder holds results of another test: {'; '.join(changed[:3])}",
            where=str(folder),
            expected="the same settings and input files, to continue that test",
            do="choose another --output, or add --overwrite",
        )


def _refuse_same_names(planned: Mapping[str, Sequence[Path]], folder: Path) -> None:
    """Raise DataError if two results, or a file and a folder, would have one name.

    E.g. a clip "street.mp4" has a folder street.mp4/ for its frames, and the video of a clip
    "street" is the file street.mp4.

    planned: owner, e.g. "clip street" -> its files.
    """
    owner_of_path: dict[Path, str] = {}
    conflicts = []  # (a path that has an owner already, its second owner)
    for owner, files in planned.items():
        for path in files:
            if path not in owner_of_path:
                owner_of_path[path] = owner
            elif owner_of_path[path] != owner:
                conflicts.append((path, owner))
    # A file where another result needs a folder.
    for path, owner in owner_of_path.items():
        for parent in path.parents:
            if parent in owner_of_path:
                conflicts.append((parent, owner))
    if conflicts:
        path, second_owner = conflicts[0]
        raise DataError(
            what=f"two results would have the name {path.relative_to(folder)}",
            where=f"{owner_of_path[path]}, {second_owner}",
            expected="one file for every name",
            do="rename one of the clips, or save fewer kinds of files",
        )


def _refuse_names_of_kept_clips(
    owners: Mapping[str, Sequence[Path]], kept_clips: Sequence[str], outputs: Outputs
) -> None:
    """Raise DataError if a file of this test has the name of a file that stays in the folder.

    owners: owner, e.g. "clip street" -> its files. kept_clips: clips of the earlier test that this
    test does not restore, so that their files stay.
    """
    all_owners = dict(owners)
    for name in kept_clips:
        # This test does not know the frames of the clip. Without stems, `planned_files` returns the
        # files of the clip itself: its JSON, its example and its videos.
        all_owners[f"clip {name}, which is there already"] = outputs.planned_files(name, stems=())
    _refuse_same_names(all_owners, outputs.folder)


def _differences(old: Any, new: Any, key: str = "") -> list[str]:
    """Return "key was OLD, is NEW" for every value that differs, with dotted keys.

    E.g. {"spike": {"rate": 1}} and {"spike": {"rate": 2}} -> ["spike.rate was 1, is 2"].
    """
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        if old == new:
            return []
        return [f"{key} was {old}, is {new}"]
    # Both are dicts: compare the values of each key, in the order of `new`, then the keys that only
    # `old` has. A missing value counts as None.
    sentences = []
    only_old = [name for name in old if name not in new]
    for name in [*new, *only_old]:
        dotted = f"{key}.{name}" if key else str(name)
        sentences += _differences(old.get(name), new.get(name), dotted)
    return sentences


# ---- A finished clip -------------------------------------------------------------------------


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
    scorer = _Scorer(outputs.metric, more_scores, is_grey)
    # Strips are written for at most STRIPS_PER_CLIP frames, evenly spaced over the clip.
    positions = evenly_spaced(len(indices), most=STRIPS_PER_CLIP)
    indices_of_strips = {indices[position] for position in positions}
    middle_index = example_of(indices)
    with ExitStack() as stack:
        videos = _open_videos(clip, outputs, len(indices), stack)  # kind -> open video
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


class _Scorer:
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


def evenly_spaced(count: int, most: int) -> list[int]:
    """Return at most `most` positions, evenly spaced over `count` frames or clips.

    E.g. 7 frames, at most 3 positions -> 0, 3, 6. A test writes strips of the frames at these
    positions. A validation shows the clips at these positions.
    """
    number_of_positions = min(most, count)
    positions = np.linspace(0, count - 1, number_of_positions)
    return positions.round().astype(int).tolist()


def _open_videos(
    clip: ClipReader, outputs: Outputs, count: int, stack: ExitStack
) -> dict[str, VideoWriter]:
    """Open the videos to save, by kind. Leaving `stack` closes them.

    If all frames of a film are restored, the videos have the time stamps of the film. Otherwise
    they have a constant frame rate.

    count: number of restored frames.
    """
    times: list[Fraction] = []
    if clip.times is not None and count == len(clip.stems):
        times = list(clip.times)
    videos = {}
    for kind in VIDEOS:
        if kind not in outputs.save:
            continue
        stamps = times
        if kind == "slowmotion":
            stamps = _slowmotion_times(times, outputs.instants)
        video = VideoWriter(
            outputs.file(kind, clip.name),
            # Single frames have no frame rate of their own, so the user's flag --fps counts.
            fps=clip.fps or outputs.fps,
            times=stamps or None,  # None: a constant frame rate
            # A comparison is for players everywhere, and many players only play 4:2:0 (colour in
            # half the resolution). The other videos are results, so their colour keeps its full
            # resolution, 4:4:4.
            chroma="420" if kind == "comparison" else "444",
            pixel_aspect=clip.pixel_aspect,
        )
        videos[kind] = stack.enter_context(video)
        # Closing a video encodes the last frames and reads the file back.
        stack.callback(watchdog.go_on)
    return videos


def _slowmotion_times(times: Sequence[Fraction], instants: int) -> list[Fraction]:
    """Return the times of the instants in slow motion, or [] if there are fewer than two times.

    Each instant is shown for as long as its frame was shown in the film. E.g. frames at 0 s and
    1 s with 2 instants each: each frame was shown for 1 s, so the instants are at 0, 1, 2, 3 s.
    """
    if len(times) < 2:  # one time does not say how long a frame is shown
        return []
    # The last frame is shown for as long as the frame before it.
    last_duration = times[-1] - times[-2]
    end = times[-1] + last_duration
    stamps = []
    # The slow video is longer by the factor `instants`. So a frame from `begin` to `after` becomes
    # instants from instants * begin to instants * after, (after - begin) each.
    for begin, after in itertools.pairwise([*times, end]):
        duration = after - begin
        for instant in range(instants):
            stamps.append(instants * begin + instant * duration)
    return stamps
