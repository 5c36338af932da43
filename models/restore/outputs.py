"""The files of a test: restored frames, scores, side-by-side strips and videos, in a folder of one
test.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.metrics import OF_TESTS, Scores, add_scores, chosen_metrics
from utils.contract import ClipReader
from utils.dist import watchdog
from utils.errors import DataError, OptionError
from utils.files import MARK, RESULTS, refuse_links, remove_files, write_whole
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

STRIPS_PER_CLIP = 3
VIDEOS = ("video", "comparison", "slowmotion")
# Kind of file -> its place. "clip" holds {"name", "frames", "stems", "example", "per_frame", ...}
# of a finished clip; "example" is the restored frame that the report shows, "strip" a frame beside
# its input, spikes and sharp frame, "exact" (K, C, H, W) float32: the instants of a frame as the
# network gave them, until its clip is finished.
PLACES = {
    "exact": ".work/{clip}/{stem}.npy",
    "frame": "{clip}/{stem}.png",
    "instant": "instants/{clip}/{stem}_{k}.png",
    "strip": "strips/{clip}/{stem}.png",
    "clip": "clips/{clip}.json",
    "example": "clips/{clip}.png",
    "video": "{clip}.mp4",
    "comparison": "{clip}_comparison.mp4",
    "slowmotion": "{clip}_slowmotion.mp4",
}
OF_ALL_CLIPS = (RESULTS, "metrics.json", "table.txt", "report.html")


@dataclass(frozen=True)
class Outputs:
    """The output folder, and which of "frames", "video", "comparison", "slowmotion" to save; strips
    are always saved.

    fps: of the videos where the input has no frame rate. instants: restored for each frame; of
    several, "frame" is the middle one. metric: how the frames are scored. The folder is new, or one
    of an earlier test: see `claim_folder`.
    """

    folder: Path
    save: tuple[str, ...] = ("frames",)
    fps: float = 25.0
    instants: int = 1
    metric: MetricOptions = field(default_factory=MetricOptions)

    def file(self, kind: str, clip: str, stem: str = "", k: int = 0) -> Path:
        """kind: of PLACES.

        Without "frames" in `save`, frames are removed once their clip is finished.
        """
        passes = kind in ("frame", "instant") and "frames" not in self.save
        return (
            self.folder
            / (".work" if passes else "")
            / PLACES[kind].format(clip=clip, stem=stem, k=k)
        )

    def frame_files(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """Return the restored frames with these names, each after its instants if it has some."""
        files = []
        for stem in stems:
            if self.instants > 1:
                files += [self.file("instant", clip, stem, k) for k in range(self.instants)]
            files.append(self.file("frame", clip, stem))
        return files

    def exact_files(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """What else is kept of the restored frames with these names until their clip is scored."""
        return (
            []
            if self.metric.values == "uint8"
            else [self.file("exact", clip, stem) for stem in stems]
        )

    def results(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """The files to save of a clip with these frames."""
        frames = self.frame_files(clip, stems) if "frames" in self.save else []
        return frames + [self.file(kind, clip) for kind in VIDEOS if kind in self.save]

    def planned(self, clip: str, stems: Sequence[str]) -> list[Path]:
        """Every file written for a clip with these frames, each once."""
        files = [
            *self.results(clip, stems),
            *self.frame_files(clip, stems),
            *self.exact_files(clip, stems),
        ]
        files += [self.file("strip", clip, stems[i]) for i in spaced(len(stems))]
        return list(dict.fromkeys([*files, self.file("clip", clip), self.file("example", clip)]))

    def load_clip(self, clip: str) -> dict[str, Any] | None:
        """What the file of a finished clip holds; None where it is not finished."""
        path = self.file("clip", clip)
        return read_json(path) if path.exists() else None

    def write_frame(self, clip: str, stem: str, frame: torch.Tensor) -> None:
        """Write a restored frame (3 K, H, W) with its K instants, the file of the frame last."""
        instants = frame.unflatten(0, (self.instants, -1))
        for path in self.exact_files(clip, [stem]):
            np.save(content := BytesIO(), instants.numpy())
            write_whole(path, content.getvalue())
        images = [*tensor_to_uint8(instants)]
        images += [images[len(images) // 2]] if len(images) > 1 else []
        for path, image in zip(self.frame_files(clip, [stem]), images, strict=True):
            imwrite_rgb(path, image)


def claim_folder(
    outputs: Outputs,
    settings: dict[str, Any],
    inputs: dict[str, str],
    stems: Mapping[str, Sequence[str]],
    overwrite: bool,
) -> None:
    """Take the output folder for one test: its earlier results are kept, those of another test are
    refused.

    settings: everything that the results depend on; inputs: clip -> digest of its files. Both are
    kept in run.json, with the names of all results; it marks the folder as ours. stems: clip ->
    frames to restore. overwrite: remove the results that are there.
    Raises OptionError for results of other settings or inputs and for the folder of a training run,
    DataError for a folder with other files, for links under the names of results, and for two
    results of the same name.
    """
    folder, mark = outputs.folder, outputs.folder / RESULTS
    if (folder / MARK).is_file():
        what, do = (
            "--output is the folder of a training run",
            f"choose another folder, such as {folder / 'test'}",
        )
        raise OptionError(what, f"--output {folder}", "a folder for results alone", do)
    known = read_json(mark) if mark.is_file() and not mark.is_symlink() else {}
    is_ours = isinstance(known, dict) and all(
        isinstance(known.get(key), dict) for key in ("settings", "inputs")
    )
    known, made = (known, _made(outputs, known, stems)) if is_ours else ({}, set())
    foreign = (
        sorted(path.name for path in folder.iterdir()) if folder.is_dir() and not known else []
    )
    planned = {name: outputs.planned(name, of) for name, of in stems.items()}
    if not foreign:
        owned = {"all clips": [folder / name for name in OF_ALL_CLIPS]}
        owned |= {f"clip {name}": files for name, files in planned.items()}
        every = [path for files in owned.values() for path in files]
        _refuse_same_names(owned, folder)
        refuse_links(folder, every)
        foreign = [
            str(path.relative_to(folder)) for path in every if path not in made and path.exists()
        ]
    if foreign:
        raise DataError(
            what="the output folder holds files that no test of this program made: "
            f"{', '.join(foreign[:5])}",
            where=str(folder),
            expected=f"a new or empty folder, or one of a test, with its {RESULTS}",
            do="choose another, or move these files away",
        )
    if overwrite and known:
        remove_files(folder, made - {mark})
    elif known:
        unsaid = {"metric.values": "uint8", "metric.more": []}  # of older tests
        changed = _differences(unsaid | known["settings"], unsaid | settings)
        old = [
            name for name, digest in known["inputs"].items() if inputs.get(name, digest) != digest
        ]
        if changed := changed + [f"the files of clip {name} have changed" for name in old]:
            what = f"the folder holds results of another test: {'; '.join(changed[:3])}"
            do = "choose another --output, or add --overwrite"
            raise OptionError(
                what, str(folder), "the same settings and input files, to continue that test", do
            )
        earlier = sorted(known["inputs"].keys() - stems)
        there = {
            f"clip {name}, which is there already": outputs.planned(name, ()) for name in earlier
        }
        _refuse_same_names(owned | there, folder)
        inputs = known["inputs"] | inputs
    files = {} if overwrite else known.get("files", {})
    files |= {name: [str(path.relative_to(folder)) for path in of] for name, of in planned.items()}
    write_whole(mark, json_bytes({"settings": settings, "inputs": inputs, "files": files}))


def _made(outputs: Outputs, known: dict[str, Any], stems: Mapping[str, Sequence[str]]) -> set[Path]:
    """What the tests of run.json (`known`) wrote; that of an earlier version does not name the
    files of its clips.
    """
    files, older = (
        known.get("files", {}),
        replace(outputs, save=tuple(known["settings"].get("save", ()))),
    )
    made = {outputs.folder / file for of in (OF_ALL_CLIPS, *files.values()) for file in of}
    for name in known["inputs"].keys() - files.keys():
        made |= {
            *older.planned(
                name, (outputs.load_clip(name) or {"stems": stems.get(name, ())})["stems"]
            )
        }
    return made


def _refuse_same_names(planned: Mapping[str, Sequence[Path]], folder: Path) -> None:
    """Raises DataError where two results, or a file and a folder, would have one name. planned:
    owner -> its files.
    """
    owners: dict[Path, str] = {}
    twice = []
    for owner, files in planned.items():
        twice += [(path, owner) for path in files if owners.setdefault(path, owner) != owner]
    twice += [
        (parent, owner)
        for path, owner in owners.items()
        for parent in path.parents
        if parent in owners
    ]
    for path, owner in twice:
        what, do = (
            f"two results would have the name {path.relative_to(folder)}",
            "rename one of the clips",
        )
        raise DataError(
            what,
            f"{owners[path]}, {owner}",
            "one file for every name",
            f"{do}, or save less of them",
        )


def _differences(old: Any, new: Any, key: str = "") -> list[str]:
    """ "key was OLD, is NEW" for every value that differs, with dotted keys."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*new, *(k for k in old if k not in new)]
        return [
            d
            for k in keys
            for d in _differences(old.get(k), new.get(k), f"{key}.{k}" if key else str(k))
        ]
    return [] if old == new else [f"{key} was {old}, is {new}"]


def finish_clip(
    clip: ClipReader,
    indices: Sequence[int],
    outputs: Outputs,
    more_scores: Callable[[np.ndarray, np.ndarray], dict[str, float]] | None,
    notes: Mapping[str, Any],
    is_grey: bool = False,
) -> None:
    """Score the restored frames `indices` of a clip, write strips and videos, then the JSON that
    marks it as finished.

    more_scores: see `add_scores`. notes: further entries of the JSON. is_grey: only the luma is
    scored. The input is scored too where it has the size of the sharp frame, and each instant where
    it has a sharp frame of its own. Each image, and the end of each video, counts as progress for
    the watchdog.
    """
    scores: Scores = {}
    values = outputs.metric.values
    metrics = chosen_metrics(OF_TESTS, outputs.metric.more)
    # Grey frames have a luma alone.
    of_restored = [metric for metric in metrics if metric.on_luma] if is_grey else metrics
    of_instants = chosen_metrics(("psnr",), ())
    strips, example = {indices[i] for i in spaced(len(indices))}, indices[len(indices) // 2]
    with ExitStack() as stack:
        videos = _open_videos(clip, outputs, len(indices), stack)
        for index in indices:
            item, stem = clip.frame(index), clip.stems[index]
            *instants, restored = (
                imread_rgb(path) for path in outputs.frame_files(clip.name, [stem])
            )
            images = instants or [restored]  # as they are scored
            blurry, sharp = (
                tensor_to_uint8(item["lq"][:3]),
                tensor_to_uint8(item["gt"]) if "gt" in item else None,
            )
            for path in outputs.exact_files(clip.name, [stem]):
                images = scored_values(torch.from_numpy(np.load(path)), values)
            watchdog.go_on()
            if sharp is not None:
                truth = scored_values(item["gt"], values)
                middle = images[len(images) // 2]
                add_scores(scores, "restored", middle, truth, of_restored, more_scores)
                watchdog.go_on()
                if blurry.shape == sharp.shape:
                    add_scores(
                        scores,
                        "input",
                        scored_values(item["lq"][:3], values),
                        truth,
                        metrics,
                        more_scores,
                    )
            if instants and "gt_instants" in item:
                truth = scored_values(item["gt_instants"].unflatten(0, (len(instants), -1)), values)
                for number, pair in enumerate(zip(images, truth, strict=True)):
                    add_scores(scores, f"instant {number}", *pair, of_instants)
            watchdog.go_on()
            if "video" in videos:
                videos["video"].write(restored)
            for image in instants if "slowmotion" in videos else ():
                videos["slowmotion"].write(image)
            if "comparison" in videos or index in strips:
                spikes = clip.spike_light(index, item["spike"]) if "spike" in item else None
                panels = comparison(blurry, spikes, restored, sharp)
            if index in strips:
                imwrite_rgb(outputs.file("strip", clip.name, stem), comparison_strip(panels))
            if "comparison" in videos:
                panels.pop(ERROR, None)
                videos["comparison"].write(comparison_strip(panels))
            if index == example:
                imwrite_rgb(outputs.file("example", clip.name), restored)
    about = {
        "name": clip.name, "frames": len(indices), "stems": [clip.stems[i] for i in indices],
        "example": clip.stems[example], "per_frame": scores,
    }  # fmt: skip
    write_whole(outputs.file("clip", clip.name), json_bytes({**about, **notes}))
    passing = [] if "frames" in outputs.save else outputs.frame_files(clip.name, clip.stems)
    remove_files(outputs.folder, passing + outputs.exact_files(clip.name, clip.stems))


def spaced(count: int, most: int = STRIPS_PER_CLIP) -> list[int]:
    """At most `most` positions, evenly spaced over `count` frames or clips: those of the strips."""
    return np.linspace(0, count - 1, min(most, count)).round().astype(int).tolist()


def _open_videos(
    clip: ClipReader, outputs: Outputs, count: int, stack: ExitStack
) -> dict[str, VideoWriter]:
    """The videos to save, by kind; with the time stamps of the clip only where all `count` frames
    are restored.
    """
    times, k = list(clip.times or ()) if count == len(clip.stems) else [], outputs.instants
    # Slow motion shows every instant for as long as a frame was shown; the last frame as long as
    # the one before it.
    ends = [*times[1:], 2 * times[-1] - times[-2]] if len(times) > 1 else []
    slow = [
        k * begin + i * (end - begin)
        for begin, end in zip(times, ends, strict=False)
        for i in range(k)
    ]
    videos = {}
    for kind in (kind for kind in VIDEOS if kind in outputs.save):
        stamps, chroma = (
            slow if kind == "slowmotion" else times,
            "420" if kind == "comparison" else "444",
        )
        video = VideoWriter(
            outputs.file(kind, clip.name),
            clip.fps or outputs.fps,
            times=stamps or None,
            chroma=chroma,
            pixel_aspect=clip.pixel_aspect,
        )
        videos[kind] = stack.enter_context(video)
        stack.callback(
            watchdog.go_on
        )  # closing a video encodes the last frames and reads the file back
    return videos
