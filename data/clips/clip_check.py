"""Check one clip: find the files of each frame, and the problems of the clip.

A clip has up to four kinds of files: blurry frames ("lq"), sharp frames ("gt"), several sharp
frames of an exposure ("gt_instants"), and spikes ("spike"). `ClipCheck.run` gets the listed files
of a clip and makes a `Clip`, in these steps:

    find_files     is there a folder with files for each kind?          (frame_files.py)
    find_stems     which file of each kind belongs to which frame?      (frame_files.py)
    find_frames    which frames does the clip have?                     (frame_files.py)
    SpikePlanes    which planes of the spike files belong to a frame?   (spike_planes.py)
    _find_sizes    do the sizes of blurry frame, sharp frame and spike plane fit?

Each fault becomes a `Problem`, so that one run can show all faults. The check reads names, file
sizes, the size of the first image, and the headers of spike files. `ClipCheck` is called by the
checks of data sets (manifest.py, root_check.py, unchanged_data.py) and by the check of a user's own
clip (user_clip.py).

What must stay: if `problems` is empty, the clip is complete, i.e. every tuple of the `Clip` has an
entry for each frame. Callers rely on complete clips.
test_a_fault_of_the_data_is_named_before_training tries one fault after the other.
Free to add: a rule. If you add a rule, add 1 to the number FORMAT in data/clips/kept.py, because
stored results of earlier checks did not use the new rule.

Tests: tests/parts/data/test_manifest.py, tests/parts/data/test_preflight.py,
tests/parts/data/test_user_folders.py, tests/parts/data/test_instants.py
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data.cameras.spike_source import DatSpikes
from data.clip import Clip
from data.clips.clip_problems import ClipProblems, most_frequent, names_in_short
from data.clips.frame_files import FrameFiles
from data.clips.frame_names import FrameKey, frame_key
from data.clips.listed_files import FileEntry
from data.clips.pictures import image_size
from data.clips.source import Problem, Source
from data.clips.spike_planes import SpikePlanes
from utils.errors import DataError

Size = tuple[int, int]  # height, width


@dataclass
class ClipCheck:
    """The check of one clip. Call `run` once, then read `problems`.

    name: name of the clip.
    source: where its data set is, and how its spikes are read.
    files: {kind: {stem: file}}. A stem is the name of a file without its suffix. The value of a
    kind is None if its folder is missing, and {} if the folder has no such file.
    sizes: sizes of lq and gt, if they are known. None: the sizes of the first frames are looked up.
    size_of: a function: path -> size of the picture in this file.
    problems: what is wrong with the clip. Every step may add a problem, and none removes one.
    """

    name: str
    source: Source
    files: Mapping[str, dict[str, FileEntry] | None]
    sizes: tuple[Size, Size] | None
    size_of: Callable[[str], Size] = image_size
    problems: list[Problem] = field(default_factory=list)

    def run(self, meta_entry: Sequence[Any] | None) -> Clip | None:
        """Check the clip. Returns the clip, or None if no frame is complete.

        meta_entry: [number of frames, number of the first frame] of the meta file, e.g.
        [100, "00000047"]. The second value is the text of the file, with its zeros. None: there is
        no meta file, so all frames of the folder belong to the clip.

        If `problems` is not empty, the returned clip may lack frames, so it must not be used. The
        order of the steps is the order of the problems, and tests compare the order of the
        problems.
        """
        # The steps report to `problems`, which appends each report to the list `self.problems`.
        problems = ClipProblems(self.name, self.source, found=self.problems)

        # Which file belongs to which frame?
        frame_files = FrameFiles(problems, self.files)
        frame_files.find_files()
        if self.problems:
            return None
        frame_files.find_stems()
        # The key of a frame is the common part of the names of its files, e.g. the number 47 of
        # "000047.png" and "47.dat" (frame_names.py).
        all_keys = frame_files.find_frames(meta_entry)
        # `find_frames` has reported the frames that lack files. The next steps still look at the
        # complete frames, so that one run shows all problems.
        keys = [key for key in all_keys if frame_files.is_complete(key)]
        if not keys:
            return None
        # {kind: path of each frame's file}, for the kinds that have a file for each frame.
        paths = {kind: frame_files.paths(kind, keys) for kind in frame_files.stems}
        stems = tuple(frame_files.stems["lq"][key] for key in keys)

        # Which planes belong to which frame? The result is a `SpikesOfFrames`.
        spikes_of_frames = SpikePlanes(problems, frame_files).find(keys, stems)
        # The sharp frames of each frame, if it has several (gt_instants).
        instants: tuple[str, ...] = ()
        if "gt_instants" in frame_files.by_kind:
            instants = _find_instants(problems, frame_files, keys)
        # The sizes of a blurry frame and of a sharp frame.
        if self.sizes:
            size, gt_size = self.sizes
        else:
            size, gt_size = _find_sizes(problems, paths, self.size_of, spikes_of_frames.settings)
        return Clip(
            name=self.name,
            stems=stems,
            lq=paths["lq"],
            gt=paths.get("gt", ()),
            spike=tuple(file.path for file in spikes_of_frames.files),
            planes=spikes_of_frames.planes,
            size=size,
            gt_size=gt_size,
            gt_instants=instants,
            exposures=spikes_of_frames.exposures,
            spikes=spikes_of_frames.settings,
            times=spikes_of_frames.times,
        )


# ---- Sharp frames and sizes ------------------------------------------------------------------
#
# What must stay: each problem that the functions below report. Without it, lq, gt and spikes of a
# sample could show different pixels or different instants
# (test_an_even_number_of_instants_is_a_problem, and the case "no multiple" of
# test_a_fault_of_the_data_is_named_before_training).


def _find_instants(
    problems: ClipProblems, frame_files: FrameFiles, keys: Sequence[FrameKey]
) -> tuple[str, ...]:
    """Return the paths of the sharp frames <frame>_0, <frame>_1, ... of each frame in turn.

    Each frame must have the same odd number K of sharp frames, because the middle one is gt.

    keys: the frames of the clip.

    Test: test_a_missing_instant_is_a_problem
    """
    # {frame: {number of the instant: path}}, e.g. {frame 12: {0: ..., 1: ..., 2: ...}}.
    paths_of_instants: dict[FrameKey, dict[int, str]] = {key: {} for key in keys}
    for stem, file in frame_files.by_kind["gt_instants"].items():
        frame, _, number = stem.rpartition("_")  # "000012_2" -> "000012", "_", "2"
        key = frame_key(frame)
        if number.isdecimal() and key in paths_of_instants:
            paths_of_instants[key][int(number)] = file.path
    _report_numbers_of_instants(problems, paths_of_instants, frame_files.stems["lq"])
    # `in_order` has the K paths of the first frame, then the K paths of the next frame, and so on.
    in_order = []
    for key in keys:
        paths = paths_of_instants[key]
        in_order += [paths[number] for number in sorted(paths)]
    return tuple(in_order)


def _report_numbers_of_instants(
    problems: ClipProblems,
    paths_of_instants: Mapping[FrameKey, Mapping[int, str]],
    stems: Mapping[FrameKey, str],
) -> None:
    """Report an even number K of instants, or frames whose instants are not 0 ... K - 1.

    The instants are the K sharp frames of one exposure. The middle instant is gt, so K must be odd.

    paths_of_instants: {frame: {number of the instant: path}}.
    stems: the name of each frame.
    """
    # K is the number of sharp frames that most frames have. Every frame must have the instants
    # 0 ... K - 1.
    K = most_frequent(len(paths) for paths in paths_of_instants.values())
    incomplete_frames = []  # their names
    for key, paths in paths_of_instants.items():
        if sorted(paths) != list(range(K)):
            incomplete_frames.append(stems[key])
    if K % 2 == 0:
        what = f"gt_instants has {K} files <frame>_0, ... for a frame of lq: the number must be odd"
        problems.report(what, "gt_instants")
    elif incomplete_frames:
        what = (
            f"gt_instants has other files than _0 ... _{K - 1} for {len(incomplete_frames)} "
            f"frames, such as {names_in_short(incomplete_frames, limit=3)}"
        )
        problems.report(what, "gt_instants")


def _find_sizes(
    problems: ClipProblems,
    paths: Mapping[str, tuple[str, ...]],
    size_of: Callable[[str], Size],
    spikes: DatSpikes | None,
) -> tuple[Size, Size]:
    """Return (height, width) of the first lq frame and of the first gt frame.

    Without gt, both sizes are the size of lq. Two problems are reported:

        the sides of gt are not the sides of lq times one whole number
        the spike planes do not fit on lq

    paths: {kind: path of each frame}.
    size_of: path -> size.
    spikes: how the spikes are read.
    """
    # A picture that cannot be read is reported. If lq cannot be read, both sizes stay (0, 0).
    lq = (0, 0)
    gt = (0, 0)
    try:
        lq = size_of(paths["lq"][0])
        gt = lq
        if "gt" in paths:
            gt = size_of(paths["gt"][0])
    except DataError as e:
        problems.report(e.what, e.where, e.do)
        return lq, gt
    # The sides of gt must be the sides of lq times one whole number.
    gt_height, gt_width = gt
    height, width = lq
    scale_of_height, rest_of_height = divmod(gt_height, height)
    scale_of_width, rest_of_width = divmod(gt_width, width)
    if rest_of_height or rest_of_width or scale_of_height != scale_of_width:
        sizes = f"gt is {gt_height} x {gt_width}, lq {height} x {width}"
        problems.report(f"{sizes}: no whole multiple", paths["gt"][0])
    try:
        if spikes:
            # The result of `grid` is not used. `grid` is called because it raises DataError if
            # planes do not fit on frames of this size.
            spikes.grid(lq)
    except DataError as e:
        problems.report(e.what, paths["lq"][0], e.do)
    return lq, gt
