"""The clips of a user's own files: frames or a film, with their spikes and their sharp frames.

`main_test_vrt.py --input` calls `user_clips`, which finds the clips below a path. For each clip,
`user_clip` matches the files of frames, spikes and sharp frames, and `ClipCheck` checks them as
the clips of a data set. The result is a list of readers (data/clips/readers.py), one for each clip.

Tests: tests/parts/data/test_user_folders.py, tests/stories/test_foreign_files.py,
tests/stories/test_main_test.py
"""

import dataclasses
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data.cameras import spike_info, spike_source
from data.cameras.frame_times import FrameTimes, times_of_names
from data.cameras.self_calibration import calibrated
from data.cameras.spike_grid import warn_uncovered
from data.clip import Clip, checked_name
from data.clip_dataset import TestClips
from data.clips import files, io_backend
from data.clips.clip_check import ClipCheck
from data.clips.film_times import film_times
from data.clips.manifest import problems_error
from data.clips.readers import DatasetClip
from data.clips.source import Source
from data.spike.formats import FORMATS, array_shape
from utils.dist import watchdog
from utils.errors import DataError
from utils.user_path import advice_on, expanded
from utils.video import FILM_SUFFIXES

logger = logging.getLogger(__name__)

# Warnings about one spike file whose planes were divided by the times of the frames.
BY_TIME = (
    "the frames last for different times, so each has the planes of its own time. The last one is "
    "taken to last as long as the one before it; give spike.exposure if it does not"
)
LEFT_OUT = "each frame has the planes of its own time; those of the missing frames are left out"


class Places(NamedTuple):
    """Where the files of a clip are: a folder or a file for each kind of file.

    spike, gt: None if there are no spikes or no sharp frames.
    """

    frames: Path
    spike: Path | None
    gt: Path | None


@dataclasses.dataclass(eq=False)
class UserClips(TestClips):
    """The clips of a user's files, read as a test set."""

    clips: Sequence[Clip]
    files: io_backend.DiskFiles = dataclasses.field(default_factory=io_backend.DiskFiles)

    # Attributes that a test set has from its option section: no simulated camera, and all frames.
    camera = None
    seed = 0
    num_frame = -1


def user_clips(
    path: str | Path,
    spike: str | Path | None = None,
    gt: str | Path | None = None,
    spike_options: dict[str, Any] | None = None,
    scale: int = 1,
    trained: dict[str, Any] | None = None,
) -> list[DatasetClip]:
    """Return a reader for each clip at `path`: a film, a folder of frames, or a folder of either.

    spike, gt: paths of the spikes and the sharp frames. If `path` has a folder for each clip, these
    paths need a folder for each clip, too.
    spike_options: a `spike` section of the options. None: the network takes no spikes.
    scale: how many times as large as the input the sharp frames are.
    trained: properties of the training spikes (ClipDataset.spike_data). These are assumed if
    nothing is known of the user's spikes.
    Raises DataError, naming the files, if frames, spikes and sharp frames do not belong together.
    """
    root = Path(expanded(str(path)))
    if not root.exists():
        raise DataError(
            what="no such file or folder",
            where=str(root),
            expected="a folder of frames or a video",
            do=f"check --input{advice_on(str(root))}",
        )
    section = None
    if spike_options is not None:
        section = spike_source.SPIKE_SOURCES.resolve(spike_options, "spike")

    clips = []
    refused = []
    for name, places in _find_clips(root, _as_path(spike), _as_path(gt)).items():
        frames = files.FrameSource(places.frames, watchdog.go_on)
        spikes = None
        if section is not None and places.spike is not None:
            section_of_clip, info = described(section, places.spike, name)
            spikes = spike_source.user_spikes(section_of_clip, trained, info, name)
        try:
            clips.append(user_clip(name, frames, places.gt, places.spike, spikes, trained, scale))
        except spike_info.UnknownPlanes as e:
            # It is not known which planes of the spike file belong to which frame.
            refused.append(e)
    if refused:
        # One error for all clips, so that one spike.exposure can answer it.
        raise spike_info.joined(refused)

    # With spike.calibration "auto", this estimates where the spike pixels lie on the frames.
    clips = calibrated(clips, io_backend.DiskFiles())
    for clip in clips:
        if clip.spikes:
            warn_uncovered(clip.grid, f"clip {clip.name}", str(clip.opened["lq"].path))
    return UserClips(clips).readers()


def _as_path(path: str | Path | None) -> Path | None:
    """Return a path with ~ and $NAME replaced. None stays None."""
    return None if path is None else Path(expanded(str(path)))


def _find_clips(root: Path, spike: Path | None, gt: Path | None) -> dict[str, Places]:
    """Return {name of a clip: its places}. Arguments: see `user_clips`.

    Four layouts are known. `root` is one of:

        <film>, or a folder of images          a single clip
        <clip>, with <clip>/blur/<frame>       a single clip in the layout of GoPro
        <root>, with <root>/blur/<clip>/...    a folder for each kind of file
        <root>, with <root>/<clip>/...         a folder, or a film, for each clip

    Raises DataError if two clips have one name.
    """
    if not root.is_dir() or files.files_in(root):
        return {_name_of(root): Places(root, spike, gt)}
    # <root>/blur if it exists, else `root` itself.
    within = files.clip_path(root, "blur")
    if within != root:
        spike = _spike_place(spike)
        gt = _gt_place(gt)
        if files.files_in(within):
            return {_name_of(within): Places(within, spike, gt)}
        root = within

    found: dict[str, Places] = {}
    for name, frames in files.clips_in(root, "blur"):
        # "a.mp4" and a folder "a" would both be the clip "a".
        if name in found:
            raise DataError(
                what=f"two clips are named {name}",
                where=f"{found[name].frames}, {frames}",
                expected="names that differ",
                do="rename one of them",
            )
        spike_of_clip = None if spike is None else _spike_place(spike / name)
        gt_of_clip = None if gt is None else _gt_place(gt / name)
        found[name] = Places(frames, spike_of_clip, gt_of_clip)
    if not found:
        # Take the root as a folder of frames. `FrameSource` raises the error for an empty folder.
        return {_name_of(root): Places(root, spike, gt)}
    return found


def _spike_place(path: Path | None) -> Path | None:
    """Return where the spikes of a clip are: <path>.dat, <path>/spike, or <path>."""
    return None if path is None else files.clip_path(path, "spike", tuple(FORMATS))


def _gt_place(path: Path | None) -> Path | None:
    """Return where the sharp frames of a clip are: <path>.mp4, <path>/sharp, or <path>."""
    return None if path is None else files.clip_path(path, "sharp", FILM_SUFFIXES)


def _name_of(frames: Path) -> str:
    """Return the name of a single clip. <clip>/blur is named after the clip."""
    if frames.is_file():
        return frames.stem
    folder = frames.resolve()
    if folder.name.startswith("blur"):
        return folder.parent.name
    return folder.name


# ---- One clip --------------------------------------------------------------------------------


def user_clip(
    name: str,
    frames: Any,
    gt: str | Path | None = None,
    spike: str | Path | None = None,
    spikes: spike_source.DatSpikes | None = None,
    trained: dict[str, Any] | None = None,
    scale: int = 1,
) -> Clip:
    """Return the clip of a user's frames, with their sharp frames and spikes if there are any.

    Files of one frame must have equal names. A film has no names, so its files are taken in order.
    frames: a data.clips.files.FrameSource, or an object with its attributes (LongExposures in
    data/reconstruct.py).
    gt: a folder of sharp frames, or a film. spike: a folder with one file per frame, or one file
    for the clip. spikes: how the spikes are read. `Timing.plane_ranges` says which planes of one
    file belong to which frame. trained, scale: see `user_clips`.
    Raises DataError if frames, sharp frames and spikes do not belong together.
    """
    opened = {"lq": frames}
    places = {"lq": str(frames.path)}
    if gt is not None:
        opened["gt"] = files.FrameSource(Path(gt), watchdog.go_on)
        places["gt"] = str(gt)
    # {kind: {stem: file}}, the form that `ClipCheck` takes.
    listing = {}
    for kind, images in opened.items():
        in_order = frames.is_video or images.is_video
        stems = _matched_stems(frames.stems, images.stems, in_order)
        listing[kind] = _listing(name, stems, images.files, places[kind])
    times = times_of(frames)
    if times.missing:
        logger.warning("frames of %s: %s", name, times.described())
    elif times.doubt and not frames.is_video:
        text = "frames of %s: taken in the order of their names: %s"
        logger.warning(text, name, times.doubt)
    if spikes and spike is not None:
        # Planes of another size than the frames are stretched over the whole frame.
        spikes = spikes.changed(is_stretched=True)
        places["spike"] = str(spike)
        listing["spike"] = _listing_of_spikes(name, frames, times, Path(spike))

    # Check the files as those of a data set with this one clip.
    gt_size = opened.get("gt", frames).size
    source = Source(
        dataroot_lq=places["lq"],
        dataroot_gt=places.get("gt"),
        dataroot_spike=places.get("spike"),
        spikes=spikes,
        is_user_clip=True,
        trained=trained,
        times=times,
    )
    check = ClipCheck(name, source, listing, (frames.size, gt_size))
    with spike_info.spike_errors_as_data_errors():
        clip = check.run(None)
    if clip is None or check.problems:
        raise problems_error([source], check.problems)
    if gt is not None:
        _refuse_other_size(gt_size, frames.size, scale, str(gt))
    if spikes:
        _check_spikes(clip, spikes, times, str(spike))
    # The report calls the frames "input".
    origin = {}
    for kind, place in places.items():
        origin["input" if kind == "lq" else kind] = place
    return dataclasses.replace(clip, opened=opened, origin=origin)


def _listing_of_spikes(
    name: str, frames: Any, times: FrameTimes, spike: Path
) -> dict[str, files.FileEntry]:
    """Return {stem: spike file} of a clip. Arguments: see `user_clip`. times: of the frames."""
    paths = spike_files(spike)
    # If a decoder left out frames of the film, file number i no longer belongs to frame number i.
    # So files that are matched in order are refused. One file for the whole clip is divided by the
    # times of the frames, so it is accepted.
    if frames.is_video and times.missing and len(paths) not in (1, len(frames)):
        raise _frames_missing(times, f"{len(paths)} spike files", str(spike))
    stems = _matched_stems(frames.stems, [file.stem for file in paths], frames.is_video)
    return _listing(name, stems, paths, str(spike))


def _matched_stems(
    frame_stems: Sequence[str], stems: Sequence[str], in_order: bool
) -> Sequence[str]:
    """Return the names under which files are matched with the frames.

    frame_stems: names of the frames. stems: names of the files.
    in_order: whether file number i belongs to frame number i, whatever its name, because frames of
    a film have no names.
    Frames "000000", "000001" and files "a", "b", "c" in order -> "000000", "000001", "c". Files
    beyond the last frame keep their names, so that the check reports them.
    """
    if not in_order:
        return stems
    names_of_frames = frame_stems[: len(stems)]
    beyond_last_frame = stems[len(frame_stems) :]
    return [*names_of_frames, *beyond_last_frame]


def _listing(
    clip: str, stems: Sequence[str], paths: Sequence[Path], place: str
) -> dict[str, files.FileEntry]:
    """Return {stem: file}.

    clip: name of the clip. stems, paths: name and path of each file. place: for messages.
    Raises DataError for names that cannot be used, and for equal names.
    """
    for stem in (clip, *stems):
        checked_name(stem, place)
    twice = [stem for stem, count in Counter(stems).items() if count > 1]
    if twice:
        raise DataError(
            what=f"frames with the same name: {', '.join(twice)}",
            where=place,
            expected="one file per frame",
            do="remove one",
        )
    # A film is one file for all its frames, so each path is looked up once.
    entries = {path: files.entry_of(str(path)) for path in set(paths)}
    return {stem: entries[path] for stem, path in zip(stems, paths, strict=True)}


def _check_spikes(
    clip: Clip, spikes: spike_source.DatSpikes, times: FrameTimes, where: str
) -> None:
    """Warn of slow files and of planes that were divided by time. Refuse planes of another shape.

    times: times of the frames. where: path of the spikes, for messages.
    """
    is_one_file = len(clip) > 1 and len(clip.spike_files) == 1
    if is_one_file and files.is_read_from_start(clip.spike[0]):
        logger.warning("spikes of %s: %s", clip.name, files.SLOW_FROM_START)
    # Without spike.exposure, the times of the frames divide the planes. Say so if the frames last
    # for different times, because the user may not expect it.
    if is_one_file and not spikes.timing.is_one_file and not times.is_even:
        logger.warning("spikes of %s: %s", clip.name, LEFT_OUT if times.missing else BY_TIME)
    # A calibration says where the planes lie, so any shape is right.
    if spikes.calibration is None:
        plane = (spikes.geometry.height, spikes.geometry.width)
        files.check_same_view(clip.size, plane, where)


def _frames_missing(times: FrameTimes, found: str, where: str) -> DataError:
    """Return the refusal of files that are matched in order with a film that lacks frames."""
    return DataError(
        what=f"{times.described()}; beside it are {found}, which would belong to other frames",
        where=where,
        expected="a film without gaps, or a file for each frame that can be decoded",
        do="repair the film, or give its frames and their files under equal names",
    )


def _refuse_other_size(gt: tuple[int, int], lq: tuple[int, int], scale: int, where: str) -> None:
    """Refuse sharp frames that are not `scale` times as large as the frames.

    gt, lq: (height, width). where: path of the sharp frames.
    """
    height = lq[0] * scale
    width = lq[1] * scale
    if gt == (height, width):
        return
    raise DataError(
        what=f"reference of {gt[1]}x{gt[0]} for frames of {lq[1]}x{lq[0]}",
        where=where,
        expected=f"{width}x{height}, as the network enlarges by {scale}",
        do="check --gt",
    )


def times_of(frames: Any) -> FrameTimes:
    """Return when the frames of a film or a folder were taken.

    A film has times in its container. For images, the numbers in their names are taken as times.
    frames: see `user_clip`.
    """
    if not frames.is_video:
        return times_of_names(frames.stems)
    return film_times(frames.path, frames.times, watchdog.go_on)


# ---- Spike files -----------------------------------------------------------------------------


def spike_files(path: Path) -> list[Path]:
    """Return the spike files of a folder in natural order. Returns [path] for a file.

    If a folder holds several formats, only files of the first format in `FORMATS` are returned.
    """
    if not path.is_dir():
        return [path]
    for suffix in FORMATS:
        found = files.files_in(path, (suffix,))
        if found:
            return found
    return []


def described(section: Any, spike: Path, clip: str = "") -> tuple[Any, spike_info.DatasetInfo]:
    """Return the spike section for a clip, and what the nearest dataset.json says of the clip.

    section: the section `spike` of the options. spike: path of the spikes. clip: name of the clip.
    If nobody gives the size of a plane, the section gets the size of the arrays (.npy, .npz).
    A dataset.json that gives another size than the section describes other files, so it is left
    out.
    """
    info = spike_info.nearest_info(spike).of_clip(clip)
    paths = spike_files(spike)
    is_size_unknown = {section.h, section.w, info.h, info.w} == {None}
    if paths and is_size_unknown:
        with spike_info.spike_errors_as_data_errors():
            shape = array_shape(paths[0])
        if shape and len(shape) == 3:  # (planes, h, w)
            section = section.model_copy(update={"h": shape[1], "w": shape[2]})
    for asked, recorded in ((section.h, info.h), (section.w, info.w)):
        if asked is not None and recorded is not None and asked != recorded:
            return section, spike_info.DatasetInfo()
    return section, info
