"""The files of a test: restored frames, scores, side-by-side strips and videos, in a folder of one test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.restore.results import clip_file, json_bytes, read_json, save_clip
from utils import utils_dist
from utils.contract import ClipReader
from utils.dist import watchdog
from utils.errors import DataError, OptionError
from utils.files import Made, refuse_run_folder
from utils.image import comparison_strip, encode_rgb, imread_rgb, side_by_side
from utils.metrics import LUMA_METRICS, frame_scores, tensor_to_uint8
from utils.video import VideoWriter

STRIPS_PER_CLIP = 3
OF_ALL_CLIPS = ("run.json", "metrics.json", "table.txt", "report.html")


@dataclass(frozen=True)
class Outputs:
    """The output folder, and which of "frames", "video", "comparison" to save.

    frames: folder/<clip>/<stem>.png; video: folder/<clip>.mp4; comparison: folder/<clip>_comparison.mp4; always
    folder/strips/<clip>/<stem>.png and folder/clips/. fps: of the videos where the input has no frame rate.
    Everything is written through `made`, which never changes or removes a file that this program did not make.
    """

    folder: Path
    save: tuple[str, ...] = ("frames",)
    fps: float = 25.0

    @cached_property
    def made(self) -> Made:
        """The files that this program has made in the folder."""
        return Made(self.folder, f"rank{utils_dist.get_rank()}", watchdog.go_on)

    def results(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """The files to save of a clip with these frames."""
        frames = [self.frame_file(clip, stem) for stem in stems] if "frames" in self.save else []
        names = {"video": f"{clip}.mp4", "comparison": f"{clip}_comparison.mp4"}
        return frames + [self.folder / name for kind, name in names.items() if kind in self.save]

    def planned(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """Every file written for a clip with these frames, each once."""
        files = [*self.results(clip, stems), *(self.frame_file(clip, stem) for stem in stems)]
        files += [self.strip_file(clip, stems[i]) for i in _spaced(len(stems))]
        return list(dict.fromkeys([*files, clip_file(self.folder, clip), self.example_file(clip)]))

    def frame_file(self, clip: str, stem: str) -> Path:
        """A restored frame. Without "frames" in `save` it is removed once its clip is finished."""
        return (self.folder if "frames" in self.save else self.folder / ".work") / clip / f"{stem}.png"

    def example_file(self, clip: str) -> Path:
        """The restored frame of the clip that the report shows."""
        return self.folder / "clips" / f"{clip}.png"

    def strip_file(self, clip: str, stem: str) -> Path:
        """A frame beside its input, spikes and sharp frame."""
        return self.folder / "strips" / clip / f"{stem}.png"

    def write_image(self, path: Path, image: np.ndarray) -> None:
        """Write (H, W, 3) uint8 to `path` below the folder."""
        self.made.write(path, encode_rgb(path, image))


def claim_folder(
    outputs: Outputs,
    settings: dict[str, Any],
    inputs: dict[str, str],
    stems: Mapping[str, Sequence[str]],
    overwrite: bool,
) -> None:
    """Take the output folder for one test: its earlier results are kept, those of another test are refused.

    settings: everything that the results depend on; inputs: clip -> digest of its files. Both are kept in run.json.
    stems: clip -> frames to restore. overwrite: remove what this program made there before, and nothing else.
    Raises OptionError for results of other settings or inputs and for the folder of a training run, DataError where
    other files have the names of results, or two results the same name.
    """
    file, made = outputs.folder / OF_ALL_CLIPS[0], outputs.made
    refuse_run_folder(outputs.folder)
    common = [outputs.folder / name for name in OF_ALL_CLIPS]
    planned = {"all clips": common} | {f"clip {name}": outputs.planned(name, of) for name, of in stems.items()}
    _refuse_same_names(planned, outputs.folder)
    if overwrite:
        made.remove_all()
    made.check(path for files in planned.values() for path in files)
    changed = []
    if file.exists():
        known = read_json(file)
        changed = _differences(known["settings"], settings)
        old = [name for name, digest in known["inputs"].items() if inputs.get(name, digest) != digest]
        changed += [f"the files of clip {name} have changed" for name in old]
        earlier = sorted(known["inputs"].keys() - stems)
        there = {f"clip {name}, which is there already": outputs.planned(name, ()) for name in earlier}
        _refuse_same_names(planned | there, outputs.folder)
        inputs = known["inputs"] | inputs
    elif any(path.exists() for files in planned.values() for path in files):
        changed = ["run.json, which says how they were made, is missing"]
    if changed:
        raise OptionError(
            f"the folder holds results of another test: {'; '.join(changed[:3])}", str(outputs.folder),
            "the same settings and input files, to continue that test", "choose another --output, or add --overwrite",
        )  # fmt: skip
    made.write(file, json_bytes({"settings": settings, "inputs": inputs}))


def _refuse_same_names(planned: Mapping[str, Sequence[Path]], folder: Path) -> None:
    """Raises DataError where two results, or a file and a folder, would have one name. planned: owner -> its files."""
    owners: dict[Path, str] = {}
    for owner, files in planned.items():
        for path in files:
            first = owners.setdefault(path, owner)
            if first != owner:
                raise _same_name(path.relative_to(folder), first, owner)
    for path, owner in owners.items():
        for parent in path.parents:
            if parent in owners:
                raise _same_name(parent.relative_to(folder), owners[parent], owner)


def _same_name(path: Path, first: str, second: str) -> DataError:
    return DataError(
        f"two results would have the name {path}", f"{first}, {second}", "one file for every name",
        "rename one of the clips, restore it into a folder of its own, or leave out one kind of --save",
    )  # fmt: skip


def _differences(old: Any, new: Any, key: str = "") -> list[str]:
    """ "key was OLD, is NEW" for every value that differs, with dotted keys."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*new, *(k for k in old if k not in new)]
        return [d for k in keys for d in _differences(old.get(k), new.get(k), f"{key}.{k}" if key else str(k))]
    return [] if old == new else [f"{key} was {old}, is {new}"]


def finish_clip(
    clip: ClipReader,
    indices: Sequence[int],
    outputs: Outputs,
    more_scores: Callable[[np.ndarray, np.ndarray], dict[str, float]] | None,
    notes: Mapping[str, Any],
    is_grey: bool = False,
) -> None:
    """Score the restored frames `indices` of a clip, write strips and videos, then the JSON that marks it as finished.

    more_scores: further metrics of (restored, sharp), each (H, W, 3) uint8. notes: further entries of the JSON.
    is_grey: the restored frames have no colour, so that only their luma is scored.
    The input is scored too where it has the size of the sharp frame. Each image, and the end of each video, counts as
    progress for the watchdog.
    """
    per_frame: dict[str, dict[str, list[float]]] = {}
    strips, example = {indices[i] for i in _spaced(len(indices))}, indices[len(indices) // 2]
    with ExitStack() as stack:
        video, comparison = _open_videos(clip, outputs, len(indices), stack)
        for index in indices:
            item, restored = clip.frame(index), imread_rgb(outputs.frame_file(clip.name, clip.stems[index]))
            blurry = tensor_to_uint8(item["lq"][:3])
            sharp = tensor_to_uint8(item["gt"]) if "gt" in item else None
            if sharp is not None:
                images = {"restored": restored, **({"input": blurry} if blurry.shape == sharp.shape else {})}
                for kind, image in images.items():
                    watchdog.go_on()
                    values = frame_scores(image, sharp) | (more_scores(image, sharp) if more_scores else {})
                    if is_grey and kind == "restored":
                        values = {name: values[name] for name in LUMA_METRICS}
                    for name, value in values.items():
                        per_frame.setdefault(kind, {}).setdefault(name, []).append(value)
            watchdog.go_on()
            if video is not None:
                video.write(restored)
            if comparison is not None:
                comparison.write(_panels(blurry, restored, sharp))
            if index in strips:
                strip = comparison_strip(item["lq"], item.get("spike"), _tensor(restored), item.get("gt"))
                outputs.write_image(outputs.strip_file(clip.name, clip.stems[index]), strip)
            if index == example:
                outputs.write_image(outputs.example_file(clip.name), restored)
    about = {
        "name": clip.name, "frames": len(indices), "stems": [clip.stems[i] for i in indices],
        "example": clip.stems[example], "per_frame": per_frame,
    }  # fmt: skip
    save_clip(outputs.made, {**about, **notes})
    if "frames" not in outputs.save:
        outputs.made.remove(outputs.frame_file(clip.name, stem) for stem in clip.stems)


def _spaced(count: int) -> list[int]:
    """Positions of the strips, evenly spaced over `count` frames."""
    return np.linspace(0, count - 1, min(STRIPS_PER_CLIP, count)).round().astype(int).tolist()


def _open_videos(
    clip: ClipReader, outputs: Outputs, count: int, stack: ExitStack
) -> tuple[VideoWriter | None, VideoWriter | None]:
    """The video and the comparison, None where not saved; time stamps and sound only where all frames are restored."""
    fps = clip.fps or outputs.fps
    is_whole = count == len(clip.stems)
    form = {"made": outputs.made, "times": clip.times if is_whole else None}
    video = comparison = None
    if "video" in outputs.save:
        sound = clip.sound if is_whole else None
        video = VideoWriter(outputs.folder / f"{clip.name}.mp4", fps, sound=sound, chroma="444", **form)
        stack.enter_context(video)
        stack.callback(watchdog.go_on)  # closing a video encodes the last frames and reads the file back: once for each
    if "comparison" in outputs.save:
        comparison = VideoWriter(outputs.folder / f"{clip.name}_comparison.mp4", fps, **form)
        stack.enter_context(comparison)
    return video, comparison


def _panels(blurry: np.ndarray, restored: np.ndarray, sharp: np.ndarray | None) -> np.ndarray:
    images = [blurry, restored, *([sharp] if sharp is not None else [])]
    return side_by_side(images, ["blurry", "restored", "sharp"][: len(images)], restored.shape[:2])


def _tensor(image: np.ndarray) -> Tensor:
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255
