"""Match the files of a user's clip with its frames: sharp frames and spikes.

Files of one frame have equal names. But the frames of a film have no names, so files beside a film
are matched with its frames by their order: file 3 belongs to frame 3. After the matching,
`ClipCheck` (data/clips/clip_check.py) checks the clip as a data set with one clip.

What must stay: a file is matched with the right frame, or refused. If files that do not belong
together were accepted, the result would be wrong without an error. Two examples of refusals:

* a spike file for each frame, beside a film that lacks frames
  (test_a_file_for_each_frame_of_a_film_that_lacks_some_is_refused)
* sharp frames of a wrong size (test_sharp_frames_of_another_size_are_refused)

Tests: tests/parts/data/test_user_folders.py, tests/parts/data/test_frame_times.py,
tests/stories/test_foreign_files.py
"""

import dataclasses
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.cameras import spike_source
from data.cameras.frame_times import FrameTimes
from data.cameras.name_times import times_of_names
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.clip import Clip, checked_name
from data.clips.clip_check import ClipCheck
from data.clips.film_times import film_times
from data.clips.listed_files import FileEntry, entry_of
from data.clips.manifest import problems_error
from data.clips.source import Source
from data.clips.user_frames import FrameSource, UserFrames
from data.clips.user_spike_files import check_same_view, spike_files, warn_of_one_spike_file
from utils.dist import watchdog
from utils.errors import DataError

logger = logging.getLogger(__name__)


def user_clip(
    name: str,
    frames: UserFrames,
    gt: str | Path | None = None,
    spike: str | Path | None = None,
    spikes: spike_source.DatSpikes | None = None,
    trained: dict[str, Any] | None = None,
    scale: int = 1,
) -> Clip:
    """Return the clip of a user's frames, with its sharp frames and spikes if there are any.

    frames: the frames, already opened.
    gt: a folder of sharp frames, or a film.
    spike: path of the spike files: a folder with one file per frame, or one file for the clip.
    spikes: how the spikes are read. Its `timing` says which planes belong to which frame if one
    file holds the planes of all frames. A clip with spikes needs both `spike` and `spikes`. For a
    clip without spikes, both are None.
    trained: properties of the training spikes. If a property of the user's spikes is unknown, the
    property of the training spikes is used.
    scale: scale of the network, the side of a sharp frame over the side of a frame.
    Raises DataError if frames, sharp frames and spikes do not belong together.
    """
    # Match the files of each kind with the frames. "lq" are the blurry frames, "gt" the sharp ones.
    opened: dict[str, UserFrames] = {"lq": frames}  # {kind: its frames}
    paths = {"lq": str(frames.path)}  # {kind: folder or file, as the user gave it}
    if gt is not None:
        # `go_on` tells the watchdog that the reading of a long film makes progress.
        opened["gt"] = FrameSource(Path(gt), go_on=watchdog.go_on)
        paths["gt"] = str(gt)
    listing = _listing_of_frames(name, opened, paths)  # {kind: {stem: file}}
    times = times_of(frames)
    _warn_of_doubtful_times(name, times, frames.is_video)
    if spikes and spike is not None:
        # Planes whose size differs from the frames are stretched over the whole frame.
        spikes = spikes.changed(may_be_stretched=True)
        paths["spike"] = str(spike)
        listing["spike"] = _listing_of_spikes(name, frames, times, Path(spike))

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
    clip = _checked_clip(name, source, listing, sizes=(frames.size, gt_size))
    if gt is not None:
        _refuse_other_size(gt_size, frames.size, scale, str(gt))
    if spikes:
        warn_of_one_spike_file(clip, spikes, times)
        # With a calibration, a plane may have any shape. Without a calibration, it must have the
        # shape of the frame. For spike.calibration "auto", the calibration is still None here,
        # because it is found later.
        if spikes.calibration is None:
            plane = (spikes.geometry.height, spikes.geometry.width)
            check_same_view(clip.size, plane, str(spike))
    # `opened` has the open films and folders, so that nothing opens them again to read the frames.
    # `origin` has the paths as the user gave them, for the report.
    return dataclasses.replace(clip, opened=opened, origin=_origin_of(paths))


def _checked_clip(
    name: str,
    source: Source,
    listing: dict[str, dict[str, FileEntry]],
    sizes: tuple[tuple[int, int], tuple[int, int]],
) -> Clip:
    """Check the files as a data set that has only this clip. Returns the clip.

    listing: {kind: {stem: file}}.
    sizes: (H, W) of a frame, and of a sharp frame.
    Raises DataError with all problems.
    """
    check = ClipCheck(name, source, listing, sizes=sizes)
    with spike_errors_as_data_errors():
        # None: all frames of `listing` belong to the clip. Only a data set may have a meta file,
        # which lists the frames of each clip.
        clip = check.run(meta_entry=None)
    if clip is None or check.problems:
        raise problems_error([source], check.problems)
    return clip


def _origin_of(paths: dict[str, str]) -> dict[str, str]:
    """Return `Clip.origin`: the paths under the names that the report shows.

    The report calls the frames "input", because the option is --input.

    paths: {kind of files: path}, with the kind "lq", and with "gt" and "spike" if the user gave
    such files.
    """
    origin = {"input": paths["lq"]}
    for kind in ("gt", "spike"):
        if kind in paths:
            origin[kind] = paths[kind]
    return origin


def times_of(frames: UserFrames) -> FrameTimes:
    """Return when the frames of a film or a folder were taken.

    A film has times in its container. For images, the numbers in their names are taken as times.
    """
    if not frames.is_video:
        return times_of_names(frames.stems)
    assert frames.times is not None  # only images have no times
    return film_times(frames.path, frames.times, watchdog.go_on)


def _warn_of_doubtful_times(clip: str, times: FrameTimes, is_film: bool) -> None:
    """Warn if frames are missing, or if the names of images do not tell their order for certain.

    The times matter because they may say which planes of a spike file belong to which frame.

    clip: name of the clip.
    times: times of its frames.
    is_film: whether the frames are of a film.
    """
    # `times.gaps` are the missing frames. `times.doubt` says in words why the times are not sure.
    #
    #     gaps                      a warning
    #     doubt, for images         a warning
    #     doubt, for a film         no warning, because the doubt matters only for a spike file that
    #                               is divided by the times. timing.py refuses such a file
    if times.gaps:
        logger.warning("frames of %s: %s", clip, times.in_words())
    elif times.doubt and not is_film:
        text = "frames of %s: taken in the order of their names: %s"
        logger.warning(text, clip, times.doubt)


def _listing_of_frames(
    name: str, opened: dict[str, UserFrames], paths: dict[str, str]
) -> dict[str, dict[str, FileEntry]]:
    """Return {kind: {stem: file}} of the blurry frames ("lq") and the sharp frames ("gt").

    name: name of the clip.
    opened: {kind: its frames}.
    paths: {kind: folder or file}.
    Raises DataError.
    """
    frames = opened["lq"]
    listing = {}
    for kind, images in opened.items():
        in_order = frames.is_video or images.is_video
        stems = _matched_stems(frames.stems, images.stems, in_order)
        listing[kind] = _listing(name, stems, images.files, paths[kind])
    return listing


def _listing_of_spikes(
    name: str, frames: UserFrames, times: FrameTimes, spike: Path
) -> dict[str, FileEntry]:
    """Return {stem: spike file} of a clip. Raises DataError.

    name: name of the clip.
    frames: its frames.
    times: times of the frames.
    spike: a folder with one file per frame, or one file for the clip.
    """
    paths = spike_files(spike)
    # Spike files beside a film are matched with its frames by their order. E.g. a film of 6 frames
    # has a damaged frame 2, so 5 frames are decoded:
    #
    #     1 spike file     accepted: its planes are divided by the times of the frames
    #     5 spike files    accepted: file i belongs to decoded frame i
    #     6 spike files    refused: file 2 belongs to the damaged frame, not to decoded frame 2
    has_accepted_number = len(paths) in (1, len(frames))
    if frames.is_video and times.gaps and not has_accepted_number:
        raise _frames_missing(times, f"{len(paths)} spike files", str(spike))
    names_of_files = [file.stem for file in paths]
    stems = _matched_stems(frames.stems, names_of_files, in_order=frames.is_video)
    return _listing(name, stems, paths, str(spike))


def _frames_missing(times: FrameTimes, found: str, where: str) -> DataError:
    """Return the error for files that are matched in order with a film that lacks frames.

    times: times of the frames.
    found: the files, e.g. "40 spike files".
    where: their path.
    """
    return DataError(
        what=f"{times.in_words()}; beside it are {found}, which would belong to other frames",
        where=where,
        expected="a film without gaps, or a file for each frame that can be decoded",
        do="repair the film, or give its frames and their files under equal names",
    )


def _matched_stems(
    frame_stems: Sequence[str], stems: Sequence[str], in_order: bool
) -> Sequence[str]:
    """Return the names by which files are matched with the frames.

    By default, the names of the files are returned. If files are matched in order, they get the
    names of the frames. Files beyond the last frame keep their names, so that the check reports
    these files. E.g. with the frames "000000", "000001" and the files "a", "b", "c", the result is
    "000000", "000001", "c".

    frame_stems: names of the frames.
    stems: names of the files.
    in_order: whether file i belongs to frame i in spite of its name, as beside a film
    (test_spike_files_of_a_film_are_sorted_by_the_numbers_in_their_names).
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

    clip: name of the clip.
    stems, paths: name and path of each file.
    where: the folder or film, for messages.
    Raises DataError for names that cannot be used, and for equal names.
    """
    # Results are written to files with these names, so the names must be usable.
    for name in (clip, *stems):
        checked_name(name, where)
    repeated_stems = [stem for stem, count in Counter(stems).items() if count > 1]
    if repeated_stems:
        raise DataError(
            what=f"several files have the same name: {', '.join(repeated_stems)}",
            where=where,
            expected="one file per frame",
            do="remove one of the files",
        )
    # A film is one file for all its frames, so each path is looked up once.
    entries = {path: entry_of(str(path)) for path in set(paths)}
    return {stem: entries[path] for stem, path in zip(stems, paths, strict=True)}


def _refuse_other_size(gt: tuple[int, int], lq: tuple[int, int], scale: int, where: str) -> None:
    """Refuse sharp frames that are not `scale` times as large as the frames.

    gt, lq: (height, width).
    where: path of the sharp frames.

    Test: test_sharp_frames_of_another_size_are_refused
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
