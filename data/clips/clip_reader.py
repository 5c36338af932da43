"""The clips of a user's own files: frames or a film, with their spikes and their sharp frames.

`main_test_vrt.py --input` calls `user_clips`, which works in these steps:

    _find_clips   finds the clips below a path
    user_clip     matches the files of frames, spikes and sharp frames of a clip
    ClipCheck     checks the clip as if it were a clip of a data set (data/clips/clip_check.py)

The result is a list of readers (data/clips/readers.py), one for each clip.

What must stay: the names of clips and frames, because the results of users have these names. And
every refusal: without it, files that do not belong together would give a wrong result without an
error (test_user_folders.py and test_frame_times.py have a test for most of them). Free to add: a
layout of folders in `_find_clips`, as long as the existing layouts give the same clips.

Tests: tests/parts/data/test_user_folders.py, tests/stories/test_foreign_files.py,
tests/stories/test_main_test.py
"""

import dataclasses
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data.cameras import spike_source
from data.cameras.dataset_info import DatasetInfo, nearest_info
from data.cameras.frame_times import FrameTimes
from data.cameras.name_times import times_of_names
from data.cameras.self_calibration import calibrated
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.cameras.spike_grid import warn_uncovered
from data.cameras.unknown_planes import UnknownPlanes, joined_errors
from data.cameras.user_spikes import user_spikes
from data.clip import Clip, checked_name
from data.clip_dataset import TestClips
from data.clips import io_backend
from data.clips.clip_check import ClipCheck
from data.clips.file_content import SLOW_FROM_START, is_read_from_start
from data.clips.film_times import film_times
from data.clips.listed_files import FileEntry, entry_of
from data.clips.manifest import problems_error
from data.clips.readers import DatasetClip
from data.clips.source import Source
from data.clips.user_folders import clip_path, clips_in, files_in
from data.clips.user_frames import FrameSource, UserFrames
from data.clips.user_spikes import check_same_view
from data.spike.formats import FORMATS, array_shape
from utils.dist import watchdog
from utils.errors import DataError
from utils.user_path import advice_on, expand_path
from utils.video import READABLE_SUFFIXES

logger = logging.getLogger(__name__)

# Two warnings for spikes in one file, if the times of the frames say which planes belong to which
# frame. The first is for frames that last for different times, the second for missing frames.
FRAMES_OF_DIFFERENT_TIMES = (
    "the frames last for different times, so each has the planes of its own time. The last one is "
    "taken to last as long as the one before it; give spike.exposure if it does not"
)
MISSING_FRAMES = (
    "each frame has the planes of its own time; the planes of the missing frames are left out"
)


class ClipPaths(NamedTuple):
    """Where the files of a clip are: a folder or a file for each kind of file."""

    frames: Path
    spike: Path | None  # None if there are no spikes
    gt: Path | None  # None if there are no sharp frames


@dataclasses.dataclass(eq=False)
class UserClips(TestClips):
    """The clips of a user's files, read as a test set.

    The constructor of `TestClips`, which reads options and lists folders, is not called. So each
    attribute that the methods of `TestClips` read needs a value here.
    """

    clips: Sequence[Clip]
    backend: io_backend.DiskFiles | io_backend.CacheReader = dataclasses.field(
        default_factory=io_backend.DiskFiles
    )

    camera = None  # no simulated camera
    seed = 0  # only a simulated camera would use the seed
    num_frame = -1  # all frames of a clip are tested


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
    scale: scale of the network, the side of a sharp frame over the side of a frame.
    trained: properties of the training spikes (ClipDataset.spike_data). If nothing is known of the
    user's spikes, they are assumed to have these properties.
    Raises DataError, naming the files, if frames, spikes and sharp frames do not belong together.
    """
    root = Path(expand_path(str(path)))
    if not root.exists():
        raise DataError(
            what="no such file or folder",
            where=str(root),
            expected="a folder of frames or a video",
            do=f"check --input{advice_on(str(root))}",
        )
    section = None  # the section `spike` with its defaults; None: the network takes no spikes
    if spike_options is not None:
        section = spike_source.SPIKE_SOURCES.resolve(spike_options, "spike")

    clips = []
    refused = []
    for name, paths in _find_clips(root, _as_path(spike), _as_path(gt)).items():
        try:
            clip = _open_clip(name, paths, section=section, trained=trained, scale=scale)
            clips.append(clip)
        except UnknownPlanes as e:
            # It is not known which planes of the spike file belong to which frame. Go on, so that
            # one error names all clips, and the user can correct them with one spike.exposure.
            refused.append(e)
    if refused:
        raise joined_errors(refused)

    # With spike.calibration "auto", this estimates where the spike pixels lie on the frames.
    clips = calibrated(clips, io_backend.DiskFiles())
    for clip in clips:
        if clip.spikes:
            path = str(clip.opened["lq"].path)
            warn_uncovered(clip.grid, what=f"clip {clip.name}", where=path)
    return UserClips(clips).readers()


def _open_clip(
    name: str, paths: ClipPaths, section: Any, trained: dict[str, Any] | None, scale: int
) -> Clip:
    """Open the frames of a clip, and match its other files with them.

    section: the section `spike` of the options. None: the network takes no spikes.
    trained: properties of the training spikes, assumed where the user's spikes say nothing.
    scale: scale of the network, the side of a sharp frame over the side of a frame.
    Raises UnknownPlanes and other DataErrors.
    """
    frames = FrameSource(paths.frames, go_on=watchdog.go_on)
    spikes = None  # how the spikes of this clip are read
    if section is not None and paths.spike is not None:
        section_of_clip, info = section_and_info(section, paths.spike, name)
        spikes = user_spikes(section_of_clip, trained, info, name)
    return user_clip(
        name,
        frames,
        gt=paths.gt,
        spike=paths.spike,
        spikes=spikes,
        trained=trained,
        scale=scale,
    )


def _as_path(path: str | Path | None) -> Path | None:
    """Return a path with ~ and $NAME replaced. None stays None."""
    return None if path is None else Path(expand_path(str(path)))


def _find_clips(root: Path, spike: Path | None, gt: Path | None) -> dict[str, ClipPaths]:
    """Return {name of a clip: its paths}. spike, gt: paths that the user gave for all clips.

    `root` may have four layouts. It is one of:

        <film>, or a folder of images          a single clip
        <clip>, with <clip>/blur/<frame>       a single clip in the layout of GoPro
        <root>, with <root>/blur/<clip>/...    a folder for each kind of file
        <root>, with <root>/<clip>/...         a folder, or a film, for each clip

    Raises DataError if two clips have one name.

    A new layout comes behind these four, so that folders that fit one of them give the same clips
    as before (test_a_root_may_have_a_folder_for_each_kind_of_file tries the third layout).
    """
    # The first layout: a film or an image, or a folder of images.
    if not root.is_dir() or files_in(root):
        return {_name_of(root): ClipPaths(root, spike, gt)}
    # The second and the third layout have a folder <root>/blur. Then `spike` and `gt` may have
    # folders "spike" and "sharp". `clip_path` returns <root>/blur if it exists, else `root` itself.
    blur = clip_path(root, "blur")
    if blur != root:
        spike = _spike_path(spike)
        gt = _gt_path(gt)
        if files_in(blur):
            return {_name_of(blur): ClipPaths(blur, spike, gt)}
        root = blur

    # The third and the fourth layout: a folder or a film for each clip.
    found: dict[str, ClipPaths] = {}
    for name, frames in clips_in(root, "blur"):
        # "a.mp4" and a folder "a" would both be the clip "a".
        if name in found:
            raise DataError(
                what=f"two clips are named {name}",
                where=f"{found[name].frames}, {frames}",
                expected="two different names",
                do="rename one of the two clips",
            )
        spike_of_clip = None if spike is None else _spike_path(spike / name)
        gt_of_clip = None if gt is None else _gt_path(gt / name)
        found[name] = ClipPaths(frames, spike_of_clip, gt_of_clip)
    if not found:
        # Nothing was found. Return the root as a folder of frames, so that `FrameSource` raises its
        # error for an empty folder.
        return {_name_of(root): ClipPaths(root, spike, gt)}
    return found


def _spike_path(path: Path | None) -> Path | None:
    """Return the path of the spikes of a clip: <path>.dat, <path>/spike, or `path` itself."""
    return None if path is None else clip_path(path, "spike", tuple(FORMATS))


def _gt_path(path: Path | None) -> Path | None:
    """Return the path of the sharp frames of a clip: <path>.mp4, <path>/sharp, or `path` itself."""
    return None if path is None else clip_path(path, "sharp", READABLE_SUFFIXES)


def _name_of(frames: Path) -> str:
    """Return the name of a single clip. A folder <clip>/blur is named after the clip.

    The name becomes the name of the results, so it must stay
    (test_the_folder_of_a_clip_is_one_clip).
    """
    if frames.is_file():
        return frames.stem
    folder = frames.resolve()
    if folder.name.startswith("blur"):
        return folder.parent.name
    return folder.name


# ---- One clip --------------------------------------------------------------------------------
#
# What must stay: a file is matched with the right frame, or refused. Two examples are spike files
# beside a film that lacks frames (test_a_file_for_each_frame_of_a_film_that_lacks_some_is_refused),
# and sharp frames of another size (test_sharp_frames_of_another_size_are_refused).


def user_clip(
    name: str,
    frames: UserFrames,
    gt: str | Path | None = None,
    spike: str | Path | None = None,
    spikes: spike_source.DatSpikes | None = None,
    trained: dict[str, Any] | None = None,
    scale: int = 1,
) -> Clip:
    """Return the clip of a user's frames, with their sharp frames and spikes if there are any.

    Files of one frame must have equal names. Frames of a film have no names, so files beside a film
    are matched with its frames by their order.

    gt: a folder of sharp frames, or a film.
    spike: a folder with one file per frame, or one file for the clip.
    spikes: how the spikes are read. If one file holds the planes of all frames, its
    `Timing.plane_ranges` says which planes belong to which frame.
    trained: properties of the training spikes, assumed where the user's spikes say nothing.
    scale: scale of the network, the side of a sharp frame over the side of a frame.
    Raises DataError if frames, sharp frames and spikes do not belong together.
    """
    # Match the files of each kind with the frames.
    opened: dict[str, UserFrames] = {"lq": frames}  # {kind: its frames}
    paths = {"lq": str(frames.path)}  # {kind: folder or file, as the user gave it}
    if gt is not None:
        opened["gt"] = FrameSource(Path(gt), go_on=watchdog.go_on)
        paths["gt"] = str(gt)
    listing = {}  # {kind: {stem: file}}, the form that `ClipCheck` takes
    for kind, images in opened.items():
        in_order = frames.is_video or images.is_video
        stems = _matched_stems(frames.stems, images.stems, in_order)
        listing[kind] = _listing(name, stems, images.files, paths[kind])
    times = times_of(frames)
    _warn_of_doubtful_times(name, times, frames.is_video)
    if spikes and spike is not None:
        # Planes of another size than the frames are stretched over the whole frame.
        spikes = spikes.changed(is_stretched=True)
        paths["spike"] = str(spike)
        listing["spike"] = _listing_of_spikes(name, frames, times, Path(spike))

    # Check the files as if they were a data set with this one clip.
    gt_size = opened.get("gt", frames).size  # without sharp frames: the size of the frames
    source = Source(
        dataroot_lq=paths["lq"],
        dataroot_gt=paths.get("gt"),
        dataroot_spike=paths.get("spike"),
        spikes=spikes,
        is_user_clip=True,
        trained=trained,
        times=times,
    )
    check = ClipCheck(name, source, listing, sizes=(frames.size, gt_size))
    with spike_errors_as_data_errors():
        clip = check.run(meta_entry=None)
    if clip is None or check.problems:
        raise problems_error([source], check.problems)
    if gt is not None:
        _refuse_other_size(gt_size, frames.size, scale, str(gt))
    if spikes:
        _warn_or_refuse_spikes(clip, spikes, times, str(spike))
    return dataclasses.replace(clip, opened=opened, origin=_origin_of(paths))


def _origin_of(paths: dict[str, str]) -> dict[str, str]:
    """Return `Clip.origin`: the paths under the names that the report shows.

    The report calls the frames "input", because the option is --input.
    paths: {"lq", "gt" or "spike": path}.
    """
    origin = {"input": paths["lq"]}
    for kind in ("gt", "spike"):
        if kind in paths:
            origin[kind] = paths[kind]
    return origin


def _warn_of_doubtful_times(clip: str, times: FrameTimes, is_film: bool) -> None:
    """Warn if frames are missing, or if the names of images do not tell their order for sure.

    The times matter because they may say which planes of a spike file belong to which frame.
    clip: name of the clip. times: times of its frames.
    """
    if times.gaps:
        logger.warning("frames of %s: %s", clip, times.described())
    elif times.doubt and not is_film:
        text = "frames of %s: taken in the order of their names: %s"
        logger.warning(text, clip, times.doubt)


def _listing_of_spikes(
    name: str, frames: UserFrames, times: FrameTimes, spike: Path
) -> dict[str, FileEntry]:
    """Return {stem: spike file} of a clip. Raises DataError.

    name: name of the clip. frames: its frames. times: times of the frames.
    spike: a folder with one file per frame, or one file for the clip.
    """
    paths = spike_files(spike)
    # Spike files beside a film are matched with its frames by their order. If the decoder has left
    # out damaged frames, file number i no longer belongs to frame number i, so the files are
    # refused. Two numbers of files are right even then: one file, whose planes the times divide
    # among the frames, and one file for each decoded frame.
    has_accepted_number = len(paths) in (1, len(frames))
    if frames.is_video and times.gaps and not has_accepted_number:
        raise _frames_missing(times, f"{len(paths)} spike files", str(spike))
    stems = _matched_stems(frames.stems, [file.stem for file in paths], frames.is_video)
    return _listing(name, stems, paths, str(spike))


def _matched_stems(
    frame_stems: Sequence[str], stems: Sequence[str], in_order: bool
) -> Sequence[str]:
    """Return the names under which files are matched with the frames.

    frame_stems: names of the frames. stems: names of the files.
    in_order: whether file number i belongs to frame number i, whatever its name. This is so for
    files beside a film, because the frames of a film have no names. The files then get the names of
    the frames (test_spike_files_of_a_film_are_sorted_by_the_numbers_in_their_names).

    E.g. frames "000000", "000001" and files "a", "b", "c" in order -> "000000", "000001", "c".
    Files beyond the last frame keep their names, so that the check reports them.
    """
    if not in_order:
        return stems
    names_of_frames = frame_stems[: len(stems)]
    beyond_last_frame = stems[len(frame_stems) :]
    return [*names_of_frames, *beyond_last_frame]


def _listing(
    clip: str, stems: Sequence[str], paths: Sequence[Path], where: str
) -> dict[str, FileEntry]:
    """Return {stem: file}.

    clip: name of the clip. stems, paths: name and path of each file.
    where: the folder or film, for messages.
    Raises DataError for names that cannot be used, and for equal names.
    """
    # Results are written to files with these names, so the names must be usable.
    for name in (clip, *stems):
        checked_name(name, where)
    repeated_stems = [stem for stem, count in Counter(stems).items() if count > 1]
    if repeated_stems:
        raise DataError(
            what=f"files with the same name: {', '.join(repeated_stems)}",
            where=where,
            expected="one file per frame",
            do="remove one of the files",
        )
    # A film is one file for all its frames, so each path is looked up once.
    entries = {path: entry_of(str(path)) for path in set(paths)}
    return {stem: entries[path] for stem, path in zip(stems, paths, strict=True)}


def _warn_or_refuse_spikes(
    clip: Clip, spikes: spike_source.DatSpikes, times: FrameTimes, where: str
) -> None:
    """Warn of slow files and of uneven times. Refuse planes of another shape than the frames.

    spikes: how the spikes are read. times: times of the frames.
    where: path of the spikes, for messages.
    """
    # Whether one spike file holds the planes of all frames.
    is_one_file = len(clip) > 1 and len(clip.planes_of_spike_files) == 1
    spike_file_of_first_frame = clip.spike[0]
    if is_one_file and is_read_from_start(spike_file_of_first_frame):
        logger.warning("spikes of %s: %s", clip.name, SLOW_FROM_START)
    # With one spike file and no spike.exposure, the times of the frames divide the planes among
    # the frames. If the frames last for different times, they have different numbers of planes. The
    # user may not expect this, so warn.
    is_divided_by_times = is_one_file and not spikes.timing.has_exposures
    if is_divided_by_times and not times.is_even:
        text = MISSING_FRAMES if times.gaps else FRAMES_OF_DIFFERENT_TIMES
        logger.warning("spikes of %s: %s", clip.name, text)
    # A calibration says where the planes lie on the frames, so a plane may then have any shape.
    if spikes.calibration is None:
        plane = (spikes.geometry.height, spikes.geometry.width)
        check_same_view(clip.size, plane, where)


def _frames_missing(times: FrameTimes, found: str, where: str) -> DataError:
    """Return the error for files that are matched in order with a film that lacks frames.

    times: times of the frames. found: the files, e.g. "40 spike files". where: their path.
    """
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
    height, width = lq
    if gt == (height * scale, width * scale):
        return
    gt_height, gt_width = gt
    raise DataError(
        what=f"reference of {gt_width}x{gt_height} for frames of {width}x{height}",
        where=where,
        expected=f"{width * scale}x{height * scale}, as the network enlarges by {scale}",
        do="check --gt",
    )


def times_of(frames: UserFrames) -> FrameTimes:
    """Return when the frames of a film or a folder were taken.

    A film has times in its container. For images, the numbers in their names are taken as times.
    """
    if not frames.is_video:
        return times_of_names(frames.stems)
    assert frames.times is not None  # only images have no times
    return film_times(frames.path, frames.times, watchdog.go_on)


# ---- Spike files -----------------------------------------------------------------------------


def spike_files(path: Path) -> list[Path]:
    """Return the spike files of a folder in natural order. Returns [path] for a file.

    If a folder holds several formats, only files of the first format in `FORMATS` are returned.
    """
    if not path.is_dir():
        return [path]
    for suffix in FORMATS:
        files_of_format = files_in(path, (suffix,))
        if files_of_format:
            return files_of_format
    return []


def section_and_info(section: Any, spike: Path, clip: str = "") -> tuple[Any, DatasetInfo]:
    """Return the spike section for a clip, and what the nearest dataset.json says of the clip.

    section: the section `spike` of the options. spike: path of the spikes. clip: name of the clip.

    Two cases are special. If neither the section nor dataset.json has the size of a plane, the
    returned section has the size of the arrays (.npy, .npz). If dataset.json and the section have
    different sizes, this dataset.json describes other files, and an empty description is returned
    in its place.
    """
    info = nearest_info(spike).of_clip(clip)
    paths = spike_files(spike)
    is_size_unknown = all(side is None for side in (section.h, section.w, info.h, info.w))
    if paths and is_size_unknown:
        with spike_errors_as_data_errors():
            shape = array_shape(paths[0])
        if shape and len(shape) == 3:
            _, h, w = shape  # (planes, h, w)
            section = section.model_copy(update={"h": h, "w": w})
    # Does dataset.json describe these files?
    for side_of_section, side_of_info in ((section.h, info.h), (section.w, info.w)):
        are_both_known = side_of_section is not None and side_of_info is not None
        if are_both_known and side_of_section != side_of_info:
            return section, DatasetInfo()
    return section, info
