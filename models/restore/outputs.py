"""The files of a test: restored frames, scores, side-by-side strips and videos, in a folder of one test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.restore.results import clip_file, json_bytes, load_clip, read_json
from utils.contract import ClipReader
from utils.dist import watchdog
from utils.errors import DataError, OptionError
from utils.files import RESULTS, refuse_links, refuse_run_folder, remove_files, write_whole
from utils.image import comparison, comparison_strip, encode_rgb, imread_rgb, side_by_side
from utils.metrics import LUMA_METRICS, frame_scores, psnr, tensor_to_uint8
from utils.video import VideoWriter

STRIPS_PER_CLIP = 3
VIDEOS = {"video": "", "comparison": "_comparison", "slowmotion": "_slowmotion"}  # kind -> end of the file's name
OF_ALL_CLIPS = (RESULTS, "metrics.json", "table.txt", "report.html")


@dataclass(frozen=True)
class Outputs:
    """The output folder, and which of "frames", "video", "comparison", "slowmotion" to save.

    frames: folder/<clip>/<stem>.png; video: folder/<clip>.mp4; comparison: folder/<clip>_comparison.mp4; slowmotion:
    folder/<clip>_slowmotion.mp4, all instants of all frames; always folder/strips/<clip>/<stem>.png and folder/clips/.
    fps: of the videos where the input has no frame rate. instants: restored for each frame; of several, "frames" saves
    the middle one, and all of them as folder/instants/<clip>/<stem>_<number>.png.
    The folder is new, or one of an earlier test: see `claim_folder`.
    """

    folder: Path
    save: tuple[str, ...] = ("frames",)
    fps: float = 25.0
    instants: int = 1

    def results(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """The files to save of a clip with these frames."""
        frames = self.frame_files(clip, stems) if "frames" in self.save else []
        return frames + [self.video_file(clip, kind) for kind in VIDEOS if kind in self.save]

    def planned(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """Every file written for a clip with these frames, each once."""
        files = [*self.results(clip, stems), *self.frame_files(clip, stems)]
        files += [self.strip_file(clip, stems[i]) for i in _spaced(len(stems))]
        return list(dict.fromkeys([*files, clip_file(self.folder, clip), self.example_file(clip)]))

    def frame_file(self, clip: str, stem: str) -> Path:
        """A restored frame. Without "frames" in `save` it is removed once its clip is finished."""
        return self._frames_folder / clip / f"{stem}.png"

    def instant_files(self, clip: str, stem: str) -> list[Path]:
        """The restored instants of a frame; [] where there is but one, the frame. They are removed with the frame."""
        if self.instants == 1:
            return []
        return [self._frames_folder / "instants" / clip / f"{stem}_{k}.png" for k in range(self.instants)]

    def frame_files(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """The restored frames with these names, and their instants."""
        return [path for s in stems for path in (*self.instant_files(clip, s), self.frame_file(clip, s))]

    @property
    def _frames_folder(self) -> Path:
        return self.folder if "frames" in self.save else self.folder / ".work"

    def video_file(self, clip: str, kind: str) -> Path:
        """kind: of `VIDEOS`."""
        return self.folder / f"{clip}{VIDEOS[kind]}.mp4"

    def example_file(self, clip: str) -> Path:
        """The restored frame of the clip that the report shows."""
        return self.folder / "clips" / f"{clip}.png"

    def strip_file(self, clip: str, stem: str) -> Path:
        """A frame beside its input, spikes and sharp frame."""
        return self.folder / "strips" / clip / f"{stem}.png"

    def write_image(self, path: Path, image: np.ndarray) -> None:
        """Write (H, W, 3) uint8 to `path` below the folder."""
        write_whole(path, encode_rgb(path, image))

    def write_frame(self, clip: str, stem: str, frame: Tensor) -> None:
        """Write a restored frame (3 K, H, W) with its K instants; the file of the frame comes last."""
        images = tensor_to_uint8(frame.unflatten(0, (self.instants, -1)))
        for path, image in zip(self.instant_files(clip, stem), images, strict=False):
            self.write_image(path, image)
        self.write_image(self.frame_file(clip, stem), images[self.instants // 2])


def claim_folder(
    outputs: Outputs,
    settings: dict[str, Any],
    inputs: dict[str, str],
    stems: Mapping[str, Sequence[str]],
    overwrite: bool,
) -> None:
    """Take the output folder for one test: its earlier results are kept, those of another test are refused.

    settings: everything that the results depend on; inputs: clip -> digest of its files. Both are kept in run.json,
    which marks the folder as ours. stems: clip -> frames to restore. overwrite: remove the results that are there.
    Raises OptionError for results of other settings or inputs and for the folder of a training run, DataError for a
    folder with other files, for links under the names of results, and for two results of the same name.
    """
    refuse_run_folder(outputs.folder)
    known = _known_results(outputs.folder)
    common = [outputs.folder / name for name in OF_ALL_CLIPS]
    planned = {"all clips": common} | {f"clip {name}": outputs.planned(name, of) for name, of in stems.items()}
    _refuse_same_names(planned, outputs.folder)
    refuse_links(outputs.folder, [path for files in planned.values() for path in files])
    new = [
        path for name, of in stems.items() if name not in known.get("inputs", ()) for path in outputs.planned(name, of)
    ]
    if taken := [str(path.relative_to(outputs.folder)) for path in new if path.exists()]:
        raise _foreign(outputs.folder, taken)
    if overwrite and known:
        remove_files(outputs.folder, [*_results_of(outputs, known["inputs"], stems), *common[1:]])
    elif known:
        changed = _differences(known["settings"], settings)
        old = [name for name, digest in known["inputs"].items() if inputs.get(name, digest) != digest]
        changed += [f"the files of clip {name} have changed" for name in old]
        if changed:
            raise OptionError(
                f"the folder holds results of another test: {'; '.join(changed[:3])}", str(outputs.folder),
                "the same settings and input files, to continue that test",
                "choose another --output, or add --overwrite",
            )  # fmt: skip
        earlier = sorted(known["inputs"].keys() - stems)
        there = {f"clip {name}, which is there already": outputs.planned(name, ()) for name in earlier}
        _refuse_same_names(planned | there, outputs.folder)
        inputs = known["inputs"] | inputs
    write_whole(common[0], json_bytes({"settings": settings, "inputs": inputs}))


def _known_results(folder: Path) -> dict[str, Any]:
    """The contents of run.json; {} for a new or empty folder. Raises DataError for a folder that is not ours."""
    file = folder / RESULTS
    if file.is_file() and not file.is_symlink():
        known = read_json(file)
        if isinstance(known, dict) and {"settings", "inputs"} <= known.keys():
            return known
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if names:
        raise _foreign(folder, names)
    return {}


def _foreign(folder: Path, names: Sequence[str]) -> DataError:
    return DataError(
        f"the output folder holds files that no test of this program made: {', '.join(names[:5])}", str(folder),
        f"a new or empty folder, or one of an earlier test, with its {RESULTS}",
        "choose another output folder, or move these files away",
    )  # fmt: skip


def _results_of(outputs: Outputs, clips: Iterable[str], stems: Mapping[str, Sequence[str]]) -> Iterator[Path]:
    """Every file that an earlier test wrote for these clips, whatever it saved. stems: of this test."""
    for name in clips:
        finished = load_clip(outputs.folder, name)
        of = [*stems.get(name, ()), *(finished["stems"] if finished else ())]
        for save in (("frames", *VIDEOS), ()):
            every = replace(outputs, save=save)
            yield from every.planned(name, of)
            yield from (every.strip_file(name, stem) for stem in of)


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
    The input is scored too where it has the size of the sharp frame, and each instant where it has a sharp frame of its
    own. Each image, and the end of each video, counts as progress for the watchdog.
    """
    per_frame: dict[str, dict[str, list[float]]] = {}
    strips, example = {indices[i] for i in _spaced(len(indices))}, indices[len(indices) // 2]
    with ExitStack() as stack:
        videos = _open_videos(clip, outputs, len(indices), stack)
        for index in indices:
            item, stem = clip.frame(index), clip.stems[index]
            restored = imread_rgb(outputs.frame_file(clip.name, stem))
            blurry = tensor_to_uint8(item["lq"][:3])
            sharp = tensor_to_uint8(item["gt"]) if "gt" in item else None
            instants = [imread_rgb(path) for path in outputs.instant_files(clip.name, stem)]
            if sharp is not None:
                images = {"restored": restored, **({"input": blurry} if blurry.shape == sharp.shape else {})}
                for kind, image in images.items():
                    watchdog.go_on()
                    values = frame_scores(image, sharp) | (more_scores(image, sharp) if more_scores else {})
                    if is_grey and kind == "restored":
                        values = {name: values[name] for name in LUMA_METRICS}
                    _add(per_frame, kind, values)
            if instants and "gt_instants" in item:
                truth = tensor_to_uint8(item["gt_instants"].unflatten(0, (len(instants), -1)))
                for number, (image, sharp_then) in enumerate(zip(instants, truth, strict=True)):
                    _add(per_frame, f"instant {number}", {"psnr": psnr(image, sharp_then)})
            watchdog.go_on()
            shown = {"video": [restored], "slowmotion": instants}
            shown |= {"comparison": [_panels(blurry, restored, sharp)]} if "comparison" in videos else {}
            for kind, video in videos.items():
                for picture in shown[kind]:
                    video.write(picture)
            if index in strips:
                spikes = clip.spike_light(index, item["spike"]) if "spike" in item else None
                strip = comparison_strip(comparison(item["lq"], spikes, _tensor(restored), item.get("gt")))
                outputs.write_image(outputs.strip_file(clip.name, stem), strip)
            if index == example:
                outputs.write_image(outputs.example_file(clip.name), restored)
    about = {
        "name": clip.name, "frames": len(indices), "stems": [clip.stems[i] for i in indices],
        "example": clip.stems[example], "per_frame": per_frame,
    }  # fmt: skip
    write_whole(clip_file(outputs.folder, clip.name), json_bytes({**about, **notes}))
    if "frames" not in outputs.save:
        remove_files(outputs.folder, outputs.frame_files(clip.name, clip.stems))


def _add(per_frame: dict[str, dict[str, list[float]]], kind: str, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        per_frame.setdefault(kind, {}).setdefault(name, []).append(value)


def _spaced(count: int) -> list[int]:
    """Positions of the strips, evenly spaced over `count` frames."""
    return np.linspace(0, count - 1, min(STRIPS_PER_CLIP, count)).round().astype(int).tolist()


def _open_videos(clip: ClipReader, outputs: Outputs, count: int, stack: ExitStack) -> dict[str, VideoWriter]:
    """The videos to save, by kind; with time stamps and sound only where all `count` frames are restored."""
    is_whole = count == len(clip.stems)
    times = clip.times if is_whole else None
    # Slow motion shows every instant for as long as a frame was shown. Sound would not fit.
    slow = [outputs.instants * a + k * (b - a) for a, b in _intervals(times) for k in range(outputs.instants)]
    how: dict[str, dict[str, Any]] = {
        "video": {"times": times, "sound": clip.sound if is_whole else None, "chroma": "444"},
        "comparison": {"times": times},
        "slowmotion": {"times": slow or None, "chroma": "444"},
    }
    videos = {}
    for kind in (kind for kind in VIDEOS if kind in outputs.save):
        path = outputs.video_file(clip.name, kind)
        video = VideoWriter(path, clip.fps or outputs.fps, **how[kind])
        videos[kind] = stack.enter_context(video)
        stack.callback(watchdog.go_on)  # closing a video encodes the last frames and reads the file back
    return videos


def _intervals(times: Sequence[Fraction] | None) -> list[tuple[Fraction, Fraction]]:
    """The time of each frame and of the next one; the last frame is shown as long as the one before it."""
    times = list(times or ())
    if len(times) < 2:
        return []
    return list(itertools.pairwise([*times, 2 * times[-1] - times[-2]]))


def _panels(blurry: np.ndarray, restored: np.ndarray, sharp: np.ndarray | None) -> np.ndarray:
    images = [blurry, restored, *([sharp] if sharp is not None else [])]
    return side_by_side(images, ["blurry", "restored", "sharp"][: len(images)], restored.shape[:2])


def _tensor(image: np.ndarray) -> Tensor:
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255
