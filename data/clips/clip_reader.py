"""The clips of a user's own files: frames or a film, with their spikes and their sharp frames."""

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

BY_TIME = (
    "the frames last for different times, so each has the planes of its own time. The last one is "
    "taken to last as long as the one before it; give spike.exposure if it does not"
)
LEFT_OUT = "each frame has the planes of its own time; those of the missing frames are left out"


class Places(NamedTuple):
    """Where the files of a clip are. spike, gt: None if there are none."""

    frames: Path
    spike: Path | None
    gt: Path | None


@dataclasses.dataclass(eq=False)
class UserClips(TestClips):
    """The clips of a user's files, read as a test set."""

    clips: Sequence[Clip]
    files: io_backend.DiskFiles = dataclasses.field(default_factory=io_backend.DiskFiles)

    # What a test set has of its section: no simulated camera, and all frames.
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

    spike, gt: the spikes and the sharp frames, laid out in the same way.
    spike_options: a `spike` section of the options. None: the network takes no spikes.
    scale: size of the sharp frames over the size of the input.
    trained: the spikes in training (ClipDataset.spike_data). They are used if nothing is known of
    the user's spikes.
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
            own_section, info = described(section, places.spike, name)
            spikes = spike_source.user_spikes(own_section, trained, info, name)
        try:
            clips.append(user_clip(name, frames, places.gt, places.spike, spikes, trained, scale))
        except spike_info.UnknownPlanes as e:
            refused.append(e)
    if refused:
        # One error for all clips, so that one spike.exposure can answer it.
        raise spike_info.joined(refused)

    clips = calibrated(clips, io_backend.DiskFiles())
    for clip in clips:
        if clip.spikes:
            warn_uncovered(clip.grid, f"clip {clip.name}", str(clip.opened["lq"].path))
    return UserClips(clips).readers()


def _as_path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(expanded(str(path)))


def _find_clips(root: Path, spike: Path | None, gt: Path | None) -> dict[str, Places]:
    """Return {clip: its places}. root, spike, gt: see `user_clips`. Raises DataError."""
    if not root.is_dir() or files.files_in(root):
        return {_name_of(root): Places(root, spike, gt)}
    within = files.clip_place(root, "blur")
    if within != root:
        spike = _spike_place(spike)
        gt = _gt_place(gt)
        if files.files_in(within):  # <clip>/blur/<frame>: the folder of a single clip
            return {_name_of(within): Places(within, spike, gt)}
        root = within  # blur/<clip>/<frame>: a folder for each kind of file

    found: dict[str, Places] = {}
    for name, frames in files.clips_in(root, "blur"):
        if name in found:
            raise DataError(
                what=f"two clips are named {name}",
                where=f"{found[name].frames}, {frames}",
                expected="names that differ",
                do="rename one of them",
            )
        own_spike = None if spike is None else _spike_place(spike / name)
        own_gt = None if gt is None else _gt_place(gt / name)
        found[name] = Places(frames, own_spike, own_gt)
    # Without a clip, the root is read as a folder of frames, which says that it holds none.
    return found or {_name_of(root): Places(root, spike, gt)}


def _spike_place(path: Path | None) -> Path | None:
    """Return where the spikes of a clip are: <path>.dat, <path>/spike, or <path>."""
    return None if path is None else files.clip_place(path, "spike", tuple(FORMATS))


def _gt_place(path: Path | None) -> Path | None:
    """Return where the sharp frames of a clip are: <path>.mp4, <path>/sharp, or <path>."""
    return None if path is None else files.clip_place(path, "sharp", FILM_SUFFIXES)


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

    Files of a frame have equal names; files for a film are taken in order.
    frames: a data.clips.files.FrameSource, or what stands in for it.
    gt: a folder of sharp frames, or a film. spike: a folder with one file per frame, or one file
    for the clip. spikes: how they are read. `Timing.shares` says which planes of one file belong
    to which frame. trained, scale: see `user_clips`.
    Raises DataError if they do not belong together.
    """
    opened = {"lq": frames}
    places = {"lq": str(frames.path)}
    if gt is not None:
        opened["gt"] = files.FrameSource(Path(gt), watchdog.go_on)
        places["gt"] = str(gt)
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
        spikes = spikes.changed(is_stretched=True)
        places["spike"] = str(spike)
        paths = spike_files(Path(spike))
        stems = _matched_stems(frames.stems, [file.stem for file in paths], frames.is_video)
        if frames.is_video and times.missing and len(paths) not in (1, len(frames)):
            raise _frames_missing(times, f"{len(paths)} spike files", str(spike))
        listing["spike"] = _listing(name, stems, paths, places["spike"])

    gt_size = opened.get("gt", frames).size
    source = Source(
        dataroot_lq=places["lq"],
        dataroot_gt=places.get("gt"),
        dataroot_spike=places.get("spike"),
        spikes=spikes,
        is_own=True,
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
    origin = {"input" if kind == "lq" else kind: place for kind, place in places.items()}
    return dataclasses.replace(clip, opened=opened, origin=origin)


def _matched_stems(
    frame_stems: Sequence[str], stems: Sequence[str], in_order: bool
) -> Sequence[str]:
    """Return the names under which files are matched with the frames.

    stems: names of the files. in_order: whether the files are matched in order, because frames of
    a film have no names. Then file number i takes the name of frame number i. Files beyond the
    last frame keep their names, so that the check reports them.
    """
    if not in_order:
        return stems
    return [*frame_stems[: len(stems)], *stems[len(frame_stems) :]]


def _listing(
    clip: str, stems: Sequence[str], paths: Sequence[Path], place: str
) -> dict[str, files.FileEntry]:
    """Return {stem: file}. place: for messages. Raises DataError for names that cannot be used."""
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
    """Warn of slow and of assumed reading. Refuse planes of another shape than the frames.

    times: of the frames. where: the spikes, for messages.
    """
    is_one_file = len(clip.spike_files) == 1 < len(clip)
    if is_one_file and files.is_read_from_start(clip.spike[0]):
        logger.warning("spikes of %s: %s", clip.name, files.FROM_START)
    if is_one_file and not spikes.timing.is_one_file and not times.is_even:
        logger.warning("spikes of %s: %s", clip.name, LEFT_OUT if times.missing else BY_TIME)
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
    """Refuse sharp frames that are not `scale` times as large as the frames. gt, lq: (H, W)."""
    height, width = lq[0] * scale, lq[1] * scale
    if gt == (height, width):
        return
    raise DataError(
        what=f"reference of {gt[1]}x{gt[0]} for frames of {lq[1]}x{lq[0]}",
        where=where,
        expected=f"{width}x{height}, as the network enlarges by {scale}",
        do="check --gt",
    )


def times_of(frames: Any) -> FrameTimes:
    """Return when the frames of a film or a folder were taken, as far as they say it.

    frames: see `user_clip`.
    """
    if not frames.is_video:
        return times_of_names(frames.stems)
    return film_times(frames.path, frames.times, watchdog.go_on)


# ---- Spike files -----------------------------------------------------------------------------


def spike_files(path: Path) -> list[Path]:
    """Return the spike files of a folder in natural order; a file stands for itself.

    Of several formats, a folder's files are those of the first one in `FORMATS`.
    """
    if not path.is_dir():
        return [path]
    for suffix in FORMATS:
        found = files.files_in(path, (suffix,))
        if found:
            return found
    return []


def described(section: Any, spike: Path, clip: str = "") -> tuple[Any, spike_info.DatasetInfo]:
    """Return the spike section, and what the nearest dataset.json says of the clip.

    If nobody gives the size of a plane, the section gets the size of the arrays (.npy, .npz).
    A dataset.json of spikes of another size describes other files, so it is left out.
    """
    info = spike_info.nearest_info(spike).of_clip(clip)
    paths = spike_files(spike)
    if paths and {section.h, section.w, info.h, info.w} == {None}:
        with spike_info.spike_errors_as_data_errors():
            shape = array_shape(paths[0])
        if shape and len(shape) == 3:
            section = section.model_copy(update={"h": shape[1], "w": shape[2]})
    for asked, recorded in ((section.h, info.h), (section.w, info.w)):
        if None not in (asked, recorded) and asked != recorded:
            return section, spike_info.DatasetInfo()
    return section, info
