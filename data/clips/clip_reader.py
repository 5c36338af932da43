"""Clips to restore, frame by frame: those of a test dataset, or a user's own frames or video with their spikes."""

import dataclasses
import logging
from collections import Counter
from pathlib import Path
from typing import Any

from data.cameras import spike_info, spike_source
from data.cameras.frame_times import FrameTimes, times_of_film, times_of_names
from data.cameras.self_calibration import calibrated
from data.cameras.spike_grid import warn_uncovered
from data.clip import Clip, checked_name
from data.clip_dataset import TestClips
from data.clips import files, io_backend, manifest
from data.clips.clip_check import ClipCheck
from data.clips.readers import DatasetClip
from data.clips.source import Source
from data.spike.formats import FORMATS, array_shape
from utils.dist import watchdog
from utils.errors import DataError
from utils.options.section import Section
from utils.user_path import advice_on, expanded
from utils.video import VIDEO_SUFFIXES

logger = logging.getLogger(__name__)

BY_TIME = (
    "the frames last for different times, so each has the planes of its own time. The last one is "
    "taken to last as long as the one before it; give spike.exposure if it does not"
)


@dataclasses.dataclass(eq=False)
class UserClips(TestClips):
    """The clips of a user's files."""

    clips: list[Clip]
    files: io_backend.DiskFiles = dataclasses.field(default_factory=io_backend.DiskFiles)
    camera, seed, num_frame = None, 0, -1


def user_clips(
    path: str | Path,
    spike: str | Path | None = None,
    gt: str | Path | None = None,
    spike_options: dict[str, Any] | None = None,
    scale: int = 1,
    trained: dict[str, Any] | None = None,
) -> list[DatasetClip]:
    """The clips of a user's `path`: a video, a folder of frames, or a folder of either.

    spike, gt: laid out in the same way. spike_options: a `spike` section of the options (None: the network takes no
    spikes). scale: size of the sharp frames over that of the input. trained: the spikes in training
    (ClipDataset.spike_data), used where nothing is known of the user's spikes.
    Raises DataError, naming the files, where frames, spikes and reference do not belong together.
    """
    root = Path(expanded(str(path)))
    spike = None if spike is None else expanded(str(spike))
    gt = None if gt is None else expanded(str(gt))
    if not root.exists():
        raise DataError(
            what="no such file or folder",
            where=str(root),
            expected="a folder of frames or a video",
            do=f"check --input{advice_on(str(root))}",
        )
    places: dict[
        str, tuple[Path, str | Path | None, str | Path | None]
    ] = {}  # clip -> frames, spikes, sharp frames
    beside = ((spike, "spike", FORMATS), (gt, "sharp", VIDEO_SUFFIXES))
    within = files.clip_place(root, "blur")
    if within != root and not files.files_in(root):  # the folder of one clip, with its parts
        inner = [base and str(files.clip_place(Path(base), *place)) for base, *place in beside]
        root, spike, gt = within, *inner
    for name, frames in (
        files.clips_in(root, "blur") if root.is_dir() and not files.files_in(root) else ()
    ):
        if name in places:
            where = f"{places[name][0]}, {frames}"
            raise DataError(
                f"two clips are named {name}", where, "names that differ", "rename one of them"
            )
        places[name] = (
            frames,
            *(base and files.clip_place(Path(base, name), *place) for base, *place in beside),
        )
    if not places:
        folder = root.resolve()  # <clip>/blur is named after the clip
        inner = folder.parent.name if folder.name.startswith("blur") else folder.name
        places[root.stem if root.is_file() else inner] = root, spike, gt
    section = (
        None
        if spike_options is None
        else spike_source.SPIKE_SOURCES.resolve(spike_options, "spike")
    )
    clips = []
    refused = []
    for name, (frames, spike, gt) in places.items():
        images, source = files.FrameSource(frames, watchdog.go_on), None
        if section is not None and spike is not None:
            own_section, info = described(section, Path(spike), name)
            source = spike_source.user_spikes(own_section, trained, info, name)
        try:
            clips.append(user_clip(name, images, gt, spike, source, trained, scale))
        except spike_info.UnknownPlanes as e:
            refused.append(e)
    if refused:
        raise spike_info.joined(refused)
    clips = calibrated(clips, io_backend.DiskFiles())
    for clip in clips:
        if clip.spikes:
            warn_uncovered(clip.grid, f"clip {clip.name}", str(clip.opened["lq"].path))
    return UserClips(clips).readers()


def user_clip(
    name: str,
    frames: files.FrameSource,
    gt: str | Path | None = None,
    spike: str | Path | None = None,
    spikes: spike_source.DatSpikes | None = None,
    trained: dict[str, Any] | None = None,
    scale: int = 1,
) -> Clip:
    """The clip of a user's frames, with their sharp frames and spikes where there are any.

    They are matched by their names, those of a video by order. gt: their folder, or a video. spike: a folder with one
    file per frame, or one file for the clip; spikes: what it means. Of one file, a frame has the planes that
    `spike.exposure` says; without it, the frames share all planes evenly. trained, scale: see `user_clips`.
    Raises DataError where they do not belong together.
    """
    if spikes:
        spikes = spikes.changed(is_stretched=True)
    opened, places = (
        {"lq": frames},
        {"lq": frames.path, "gt": gt, "spike": spike if spikes else None},
    )
    if gt is not None:
        opened["gt"] = files.FrameSource(Path(gt), watchdog.go_on)
    found = {kind: (images.files, images.stems) for kind, images in opened.items()}
    if spikes:
        found["spike"] = spike_files(Path(spike)), [path.stem for path in spike_files(Path(spike))]
    listing, places = {}, {kind: str(place) for kind, place in places.items() if place}
    for kind, (paths, stems) in found.items():
        for stem in (name, *stems):
            checked_name(stem, places[kind])
        if twice := [stem for stem, count in Counter(stems).items() if count > 1]:
            what = f"frames with the same name: {', '.join(twice)}"
            raise DataError(what, places[kind], "one file per frame", "remove one")
        if frames.is_video or (kind == "gt" and opened["gt"].is_video):  # by order
            stems = [*frames.stems[: len(paths)], *stems[len(frames) :]]
        entries = {path: files.entry_of(str(path)) for path in set(paths)}
        listing[kind] = {stem: entries[path] for stem, path in zip(stems, paths, strict=True)}
    roots = {f"dataroot_{kind}": place for kind, place in places.items()}
    gt_size = opened.get("gt", frames).size
    times = times_of(frames)
    if times.missing:
        logger.warning("frames of %s: %s", name, times.described())
    source = Source(**roots, spikes=spikes, is_own=True, trained=trained, times=times)
    check = ClipCheck(name, source, listing, (frames.size, gt_size))
    with spike_info.spike_errors_as_data_errors():
        clip = check.run(None)
    manifest.raise_problems([(source, check.problems)])
    wanted = (frames.size[0] * scale, frames.size[1] * scale)
    if gt is not None and gt_size != wanted:
        what = "reference of {1}x{0} for frames of {3}x{2}".format(*gt_size, *frames.size)
        expected = f"{wanted[1]}x{wanted[0]}, as the network enlarges by {scale}"
        raise DataError(what, str(gt), expected, "check --gt")
    if spikes:
        is_one_file = len(clip.spike_files) == 1 < len(clip)
        if is_one_file and files.is_read_from_start(clip.spike[0]):
            logger.warning("spikes of %s: %s", name, files.FROM_START)
        if is_one_file and not spikes.timing.is_one_file and not times.is_even:
            logger.warning("spikes of %s: %s", name, BY_TIME)
        if spikes.calibration is None:
            files.check_same_view(
                frames.size, (spikes.geometry.height, spikes.geometry.width), str(spike)
            )
    origin = {"input" if kind == "lq" else kind: place for kind, place in places.items()}
    return dataclasses.replace(clip, opened=opened, origin=origin)


def times_of(frames: files.FrameSource) -> FrameTimes:
    """Return when the frames of a film or a folder were taken, as far as they say it."""
    if not frames.is_video:
        return times_of_names(frames.stems)
    return times_of_film(frames.times)


def spike_files(path: Path) -> list[Path]:
    """The spike files of a folder in natural order, of the first of `FORMATS` that it holds; a file for itself."""
    if not path.is_dir():
        return [path]
    return next((found for suffix in FORMATS if (found := files.files_in(path, (suffix,)))), [])


def described(
    section: Section, spike: Path, clip: str = ""
) -> tuple[Section, spike_info.DatasetInfo]:
    """The spike section, and what the nearest dataset.json of spikes of its size says of the clip.

    Where nobody gives the size of a plane, the section gets that of the arrays (.npy, .npz).
    """
    info = spike_info.nearest_info(spike).of_clip(clip)
    files = spike_files(spike)
    if files and {section.h, section.w, info.h, info.w} == {None}:
        with spike_info.spike_errors_as_data_errors():
            shape = array_shape(files[0])
        if shape and len(shape) == 3:
            section = section.model_copy(update={"h": shape[1], "w": shape[2]})
    sizes = ((section.h, info.h), (section.w, info.w))
    is_of_another_size = any(None not in pair and pair[0] != pair[1] for pair in sizes)
    return section, spike_info.DatasetInfo() if is_of_another_size else info
