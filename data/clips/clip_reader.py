"""Find and open the clips of a user: frames or a film, with their spikes and their sharp frames.

data/own_clips.py calls `user_clips` for `main_test_vrt.py --input`. `user_clips` calls:

    _find_clips       finds the clips below a path
    user_clip         matches the files of frames, spikes and sharp frames of a clip, and checks
                      them (data/clips/user_clip.py)
    calibrate_clips   with spike.calibration "auto": finds where the spike pixels lie on the frames

The result is a list of readers (data/clips/readers.py), one for each clip.

What must stay: the names of clips and frames, because the results of users have these names. Free
to add: a layout of folders in `_find_clips`, as long as the existing layouts give the same clips.

Tests: tests/parts/data/test_user_folders.py, tests/parts/data/test_frame_times.py,
tests/stories/test_foreign_files.py, tests/stories/test_main_test.py
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data.cameras import spike_source
from data.cameras.frame_planes import warn_of_overlap
from data.cameras.self_calibration import calibrate_clips
from data.cameras.spike_grid import warn_uncovered
from data.cameras.unknown_planes import UnknownPlanes, error_for_all_clips
from data.cameras.user_spikes import user_spikes
from data.clip import Clip
from data.clip_dataset import TestClips
from data.clips.clip_cache import CacheReader
from data.clips.disk_files import DiskFiles
from data.clips.readers import DatasetClip
from data.clips.user_clip import user_clip
from data.clips.user_folders import clip_path, clips_in, files_in
from data.clips.user_frames import FrameSource
from data.clips.user_spike_files import section_and_info
from data.spike.formats import FORMATS
from utils.dist import watchdog
from utils.errors import DataError
from utils.user_path import advice_on, expand_path
from utils.video.container import READABLE_SUFFIXES


class ClipPaths(NamedTuple):
    """Where the files of a clip are: a folder or a file for each kind of file."""

    frames: Path
    spike: Path | None  # None if there are no spikes
    gt: Path | None  # None if there are no sharp frames


@dataclasses.dataclass(eq=False)
class UserClips(TestClips):
    """The clips of a user's files, read as a test set.

    The constructor of `TestClips` reads options and lists folders, so this class does not call it.
    Each attribute that the methods of `TestClips` read needs a value in this class.
    """

    clips: Sequence[Clip]
    backend: DiskFiles | CacheReader = dataclasses.field(default_factory=DiskFiles)

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
    """Return a reader for each clip at `path`.

    `path` is a film, a folder of frames, or a folder with several films or folders of frames.

    spike, gt: paths of the spikes and the sharp frames. If `path` has a folder for each clip, these
    paths need a folder for each clip, too.
    spike_options: a `spike` section of the options. None: the network takes no spikes.
    scale: scale of the network, the side of a sharp frame over the side of a frame.
    trained: properties of the training spikes (`ClipSources.spike_data`, data/clip_sources.py). If
    a property of the user's spikes is unknown, the property of the training spikes is used.
    Raises DataError if frames, spikes and sharp frames do not belong together. The error names the
    files.
    """
    root = Path(expand_path(str(path)))  # replaces ~ and $NAME
    if not root.exists():
        raise DataError(
            what="no such file or folder",
            where=str(root),
            expected="a folder of frames or a video",
            do=f"check --input{advice_on(str(root))}",
        )
    # The section `spike` with its defaults. It stays None if the network takes no spikes.
    section = None
    if spike_options is not None:
        section = spike_source.SPIKE_SOURCES.resolve(spike_options, "spike")

    clips = []
    refused = []
    for name, paths in _find_clips(root, _as_path(spike), _as_path(gt)).items():
        try:
            clip = _open_clip(name, paths, section=section, trained=trained, scale=scale)
            clips.append(clip)
        except UnknownPlanes as e:
            # The planes of each frame are not known. Go on, so that one error names all clips, and
            # the user can correct them with one spike.exposure.
            refused.append(e)
    if refused:
        raise error_for_all_clips(refused)

    for clip in clips:
        if clip.spikes:
            warn_of_overlap(clip.name, clip.exposures)
    # With spike.calibration "auto", `calibrate_clips` estimates where the spike pixels lie on the
    # frames. With other values, `calibrate_clips` changes nothing.
    clips = calibrate_clips(clips, DiskFiles())
    for clip in clips:
        if clip.spikes:
            path_of_frames = str(clip.opened["lq"].path)
            warn_uncovered(clip.grid, what=f"clip {clip.name}", where=path_of_frames)
    return UserClips(clips).readers()


def _open_clip(
    name: str, paths: ClipPaths, section: Any, trained: dict[str, Any] | None, scale: int
) -> Clip:
    """Open the frames of a clip, and match its spikes and sharp frames with the frames.

    section: the section `spike` of the options, e.g. with `section.h` and `section.light`. None:
    the network takes no spikes.
    trained: properties of the training spikes, e.g. {"rate": 0.5, "planes": 40, "light": "linear"}.
    If e.g. the light of the user's spikes is unknown, the light of the training is taken. None: the
    training is not known.
    scale: scale of the network, the side of a sharp frame over the side of a frame.
    Raises UnknownPlanes if it is not known which planes belong to which frame, and other DataErrors
    if files cannot be read or do not belong together.
    """
    # E.g. for a folder: `frames.files` are street/000000.png, street/000001.png, ..., and
    # `frames.stems` are "000000", "000001", ... With `go_on`, the watchdog sees progress while a
    # long film is read.
    frames = FrameSource(paths.frames, go_on=watchdog.go_on)
    spikes = None  # how the spikes of this clip are read
    if section is not None and paths.spike is not None:
        # `user_spikes` looks up e.g. the light in three places, in this order:
        #
        #     section_of_clip    the options. If options and dataset.json lack the size of a plane,
        #                        the size of the arrays is taken
        #     info               what the nearest dataset.json says of the clip
        #     trained            the properties of the training spikes
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
    """Return {name of a clip: its paths}.

    spike, gt: paths of spikes and sharp frames that the user gave for all clips. None: the user
    gave no such path.

    `root` may have four layouts:

        (1) <film>, or a folder of images          a single clip
        (2) <clip>, with <clip>/blur/<frame>       a single clip in the layout of GoPro
        (3) <root>, with <root>/blur/<clip>/...    a folder for each kind of file
        (4) <root>, with <root>/<clip>/...         a folder, or a film, for each clip

    In (3) and (4), the files of a clip may lie one folder deeper. E.g. in (4), the frames may be
    <root>/<clip>/blur/<frame>, and the spikes <root>/<clip>/spike/<file>.

    Raises DataError if two clips have one name.

    Add a new layout after the four layouts, so that existing folders still give the same clips
    (test_a_root_may_have_a_folder_for_each_kind_of_file tries the third layout).
    """
    # (1): `root` is a film, or a folder that holds files.
    if not root.is_dir() or files_in(root):
        return {_name_of(root): ClipPaths(root, spike, gt)}
    blur = root / "blur"
    if not blur.is_dir():  # (4)
        return _clips_below(root, spike, gt)
    # In (2) and (3), --spike <root> means <root>/spike, and --gt <root> means <root>/sharp.
    spike = _spike_path(spike)
    gt = _gt_path(gt)
    if files_in(blur):  # (2)
        return {_name_of(blur): ClipPaths(blur, spike, gt)}
    return _clips_below(blur, spike, gt)  # (3)


def _clips_below(folder: Path, spike: Path | None, gt: Path | None) -> dict[str, ClipPaths]:
    """Return {name of a clip: its paths} of a folder that has a folder or a film for each clip.

    spike: folder with the spikes of each clip, in <spike>/<clip>.dat, <spike>/<clip>/spike or
    <spike>/<clip>. None: the clips have no spikes.
    gt: folder with the sharp frames of each clip, in <gt>/<clip>.mp4, <gt>/<clip>/sharp or
    <gt>/<clip>. None: the clips have no sharp frames.
    Raises DataError if two clips have one name.

    Tests: test_sharp_films_are_found_by_the_names_of_the_blurry_films,
    test_two_films_of_one_name_are_refused
    """
    paths_of_clips: dict[str, ClipPaths] = {}
    for name, frames in clips_in(folder, "blur"):
        # "a.mp4" and a folder "a" would both be the clip "a".
        if name in paths_of_clips:
            raise DataError(
                what=f"two clips are named {name}",
                where=f"{paths_of_clips[name].frames}, {frames}",
                expected="two different names",
                do="rename one of the two clips",
            )
        spike_of_clip = None if spike is None else _spike_path(spike / name)
        gt_of_clip = None if gt is None else _gt_path(gt / name)
        paths_of_clips[name] = ClipPaths(frames, spike_of_clip, gt_of_clip)
    if not paths_of_clips:
        # Return the folder itself as a clip, so that `FrameSource` raises its error for a folder
        # without images.
        return {_name_of(folder): ClipPaths(folder, spike, gt)}
    return paths_of_clips


def _spike_path(path: Path | None) -> Path | None:
    """Return the path of the spikes of a clip: <path>.dat, <path>/spike, or `path` itself.

    Returns None if `path` is None, i.e. if the clip has no spikes.
    """
    return None if path is None else clip_path(path, "spike", tuple(FORMATS))


def _gt_path(path: Path | None) -> Path | None:
    """Return the path of the sharp frames of a clip: <path>.mp4, <path>/sharp, or `path` itself.

    Returns None if `path` is None, i.e. if the clip has no sharp frames.
    """
    return None if path is None else clip_path(path, "sharp", READABLE_SUFFIXES)


def _name_of(frames: Path) -> str:
    """Return the name of a single clip. A folder <clip>/blur... is named after the clip.

    The name becomes the name of the results, so it must stay
    (test_the_folder_of_a_clip_is_one_clip).
    """
    if frames.is_file():
        return frames.stem
    folder = frames.resolve()
    if folder.name.startswith("blur"):  # "blur", or "blur_gamma" in the GoPro data
        return folder.parent.name
    return folder.name
