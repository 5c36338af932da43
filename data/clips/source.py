"""Define where the clips of one data root are (`Source`), and a fault of a clip (`Problem`).

A data root is a set of folders, one for each kind of file: blurry frames ("lq"), sharp frames
("gt"), several sharp frames of each exposure ("gt_instants"), and spike files ("spike"). A dataset
makes a `Source` from its options (data/clip_sources.py). `list_source` lists the files.

A meta file is a list of the clips that belong to the data set. KAIR is the program in which VRT was
published. KAIR comes with a few meta files, and the option files of KAIR name these meta files by
paths within KAIR (KAIR_LISTS in data/clips/meta_file.py). In this project, such a file is often
missing.

What must stay: the order of `Source.kinds`, because names of stored results depend on it.
Free to add: a field of `Source`. If the field changes the result of the data check, add the field
to `digest_of_options` in data/clips/kept.py, too. Without this, a stored result would be used
although the value of the field has changed.
Free to change: the texts of errors, together with the tests that compare them.

Tests: tests/parts/data/test_manifest.py, tests/parts/data/test_preflight.py
"""

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from data.cameras.frame_times import FrameTimes
from data.cameras.spike_source import DatSpikes
from data.clips.clip_folder import CLIP_FOLDERS
from data.clips.data_root import list_root
from data.clips.joined_errors import joined_errors
from data.clips.listed_files import Listing, is_lmdb
from data.clips.meta_file import KAIR_LISTS, read_meta_file
from data.spike.formats import FORMATS
from utils.errors import DataError
from utils.image import IMAGE_SUFFIXES
from utils.user_path import advice_on

# Name of the folder within a clip, for each kind of file, in the layout of GoPro. CLIP_FOLDERS
# (clip_folder.py) must have these names, too.
FOLDER_OF_KIND = {"lq": "blur", "gt": "sharp", "gt_instants": "instants", "spike": "spike"}


class Problem(NamedTuple):
    """A fault of the data.

    clip: name of the clip. For a problem of an option: the name of the option.
    what: the problem.
    where: a path.
    do: advice to the user. "" stands for the usual advice: restore the files, or remove the clip.
    """

    clip: str
    what: str
    where: str
    do: str = ""

    def __str__(self) -> str:
        return f"{self.clip}: {self.what}  [{self.where}]"


class Kind(NamedTuple):
    """Where the files of one kind are: <root>/<clip>/[<folder>/]<frame><suffix>.

    E.g. /data/train/clip_a/blur/000000.png. If clip_a has no folder "blur", the files are
    /data/train/clip_a/000000.png, ...

    suffixes: suffixes that the files may have, e.g. (".png", ".jpg"), the preferred suffix first.
    If a clip has files with several suffixes, only the files with the earliest suffix are used.
    """

    root: str
    folder: str
    suffixes: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Where the clips of a data root are, and how they are read.

    `ClipSources._source_of` (data/clip_sources.py) makes a `Source` from the options of a data set.
    `user_clip` (data/clips/user_clip.py) makes a `Source` for a user's own files.
    """

    # Keys of the dataset section (docs/options.md). `dataroot_...` is the root of a kind of file.
    # A root is None if the data set has no files of this kind.
    dataroot_lq: str
    dataroot_gt: str | None = None
    dataroot_gt_instants: str | None = None
    dataroot_spike: str | None = None
    lq_folder: str = "blur"  # name of the folder with the blurry frames, within each clip
    meta_info_file: str | None = None  # path of the meta file. None: all clips in the folders
    # Format of the number in a frame's name: "08d" -> 00000000. None: names of any form.
    filename_tmpl: str | None = None
    filename_ext: str = "png"  # suffix of the frames' names

    # Whether pictures with other suffixes are read if a clip has no picture with the suffix
    # `filename_ext`. E.g. filename_ext is "png", and the clip has only .jpg files.
    accepts_other_images: bool = False
    spikes: DatSpikes | None = None  # how the spikes are read; None without spikes
    # {clip: how its spikes are read}, only for clips that have values of their own in dataset.json,
    # e.g. a firing rate.
    own_spikes: dict[str, DatSpikes] = field(default_factory=dict)
    # Clips in the folders that are not part of the data set.
    excluded_clips: frozenset[str] = frozenset()
    # Whether lq and gt may be the same files. True: noise is added to lq, or a sample takes
    # different frames as lq and gt. False: the check of the data refuses the same files, because lq
    # and gt would be equal, and a network would learn to change nothing.
    may_share_frames: bool = False
    # Whether the data set is Vimeo-90K. Its clips are <a>/<b>, with the frames im1 ... im7, and all
    # have one size. Only clips of the meta file are read.
    septuplets: bool = False
    # Text before the names of the clips: "" with one root, and "0/", "1/", ... with several roots.
    name_prefix: str = ""

    # Whether the source is a clip of a user's own files. If so, a root is the folder or the file of
    # the clip itself, e.g. "street.mp4", and not a folder of clips. Only a source of a user's files
    # has `trained` and `times`.
    is_user_clip: bool = False
    # Properties of the spikes with which the network was trained, e.g. {"planes": 40, "gt_plane":
    # 20}. The user's files may not say which plane is at the time of the sharp frame. In this case,
    # the check of the clip assumes a plane by these properties (`SpikePlanes._assumed_center`).
    # `trained` is None if the properties are not known.
    trained: dict[str, Any] | None = None
    # The times at which the frames were taken. If `times` is None, the times may follow from the
    # names of the frames (`times_of_names`).
    times: FrameTimes | None = None

    # ---- Files ------------------------------------------------------------------------------

    def kinds(self) -> dict[str, Kind]:
        """Return {name of the kind: where its files are}, e.g. {"lq": Kind(...), "gt": Kind(...)}.

        Kinds without a root are left out. The order lq, gt, gt_instants, spike must stay, because
        `ClipCheck` takes the names of frames from the first kind, and because the names of stored
        results depend on the order (`digest_of_options` in kept.py).
        """
        # The suffix in the options comes first, because the first suffix is preferred.
        first_suffix = f".{self.filename_ext.lstrip('.')}".lower()
        image_suffixes = [first_suffix]
        if self.accepts_other_images:
            image_suffixes += [suffix for suffix in IMAGE_SUFFIXES if suffix != first_suffix]
        roots = {
            "lq": self.dataroot_lq,
            "gt": self.dataroot_gt,
            "gt_instants": self.dataroot_gt_instants,
            "spike": self.dataroot_spike,
        }
        kinds = {}
        for kind, root in roots.items():
            if not root:
                continue
            # lq_folder need not be "blur". It may be e.g. "blur_gamma".
            folder = self.lq_folder if kind == "lq" else FOLDER_OF_KIND[kind]
            # FORMATS are the suffixes of spike files: ".dat", ".bin", ".npy", ".npz".
            suffixes = FORMATS if kind == "spike" else image_suffixes
            kinds[kind] = Kind(root, folder, tuple(suffixes))
        return kinds

    def roots(self) -> dict[str, str]:
        """Return {option key: data root}, e.g. {"dataroot_lq": "/data/blur"}."""
        return {f"dataroot_{name}": kind.root for name, kind in self.kinds().items()}

    @property
    def has_one_spike_file(self) -> bool:
        """Return whether the planes of all frames of a clip are in one file.

        If so, the option `spike.exposure` says which planes belong to which frame. If a user gives
        one file without this option, the planes are divided by the times of the frames.
        """
        if self.spikes is None or not self.dataroot_spike:
            return False
        # `timing` holds the option spike.exposure.
        if self.spikes.timing.has_exposures:
            return True
        return self.is_user_clip and not os.path.isdir(self.dataroot_spike)

    # ---- The list of clips ------------------------------------------------------------------

    @property
    def meta_file(self) -> str | None:
        """Return the path of the meta file, or None if the clips of all folders are used.

        KAIR is the program in which VRT was published. If a meta file of KAIR is missing, the
        result is None, because the file would name all clips of a training set. Any other path is
        returned, even if the file is missing. Reading the missing file then raises an error.
        """
        path = self.meta_info_file
        if path in KAIR_LISTS and not os.path.exists(path):
            return None
        return path

    @cached_property
    def meta_entries(self) -> dict[str, list[Any]] | None:
        """Return {clip: [number of frames, number of the first frame]} of the meta file, or None.

        E.g. {"000": [100, "0"]}. The number of the first frame is a text, as it is written in the
        file, and "0" if the file leaves it out. Returns None if there is no meta file.
        Raises DataError, which names the line.

        The values are lists and not tuples, because the index of a clip cache stores the values as
        JSON. JSON has only lists, and a later start compares the values with the index.
        """
        if self.meta_file is None:
            return None
        return read_meta_file(self.meta_file, needs_list=self.septuplets)

    # ---- Texts of messages ------------------------------------------------------------------

    def notes(self, clip_count: int) -> list[Problem]:
        """Return warnings about clips that are left out or not listed.

        clip_count: number of clips that are read.
        """
        warnings = []
        path = self.meta_info_file
        # Only a list of KAIR can be missing here (`meta_file`).
        if path and self.meta_file is None:
            what = (
                f"the list of the clips is missing: all {clip_count} in the folders are used, "
                f"KAIR's list has {KAIR_LISTS[path]}"
            )
            warnings.append(Problem("meta_info_file", what, path))
        left_out = self._left_out_clips()
        if left_out:
            number_of_all = clip_count + len(left_out)
            what = (
                f"{len(left_out)} of {number_of_all} clips are left out, "
                f"{', '.join(left_out)}: KAIR trains on them; "
                "to do the same, set val_partition to null"
            )
            warnings.append(Problem("val_partition", what, self.dataroot_lq))
        return warnings

    def _left_out_clips(self) -> list[str]:
        """Return the names of the clips that `excluded_clips` takes out of the data set.

        `excluded_clips` may also name clips that are not in the data.
        """
        if not self.excluded_clips:
            return []
        if self.meta_entries is None:
            names = set(list_source(self, ("lq",))["lq"])
        else:
            names = set(self.meta_entries)
        return sorted(self.excluded_clips & names)

    def wanted_files(self) -> str:
        """Return in words which files every clip must have.

        For example "every frame with its lq, gt and spike file; docs/data_format.md shows ...".
        """
        names = list(self.kinds())  # e.g. ["lq", "gt", "spike"]
        files = f"{names[-1]} file"
        if len(names) > 1:
            files = f"{', '.join(names[:-1])} and {files}"
        if self.septuplets:
            return f"im1 ... im7 of every listed clip, each with its {files}{self.layout()}"
        return f"every frame with its {files}; docs/data_format.md shows the folders"

    def layout(self) -> str:
        """Return the paths of the files of this data set, for error messages.

        A line for each kind of file, for example "\\n    <root>/<clip>/[spike/]<frame>.dat". The
        folder in brackets may be left out.
        """
        # A line has a clip, a frame and a remark, e.g. "<root>/00001/0001/im1.png  ... im7". In
        # "<root>/<clip>/<frame>.png" the remark is empty.
        clip = "<clip>"
        frame = "<frame>"
        if self.filename_tmpl:
            frame = format(0, self.filename_tmpl)  # "08d" -> "00000000"
        remark = ""
        if self.septuplets:
            clip = "00001/0001"
            frame = "im1"
            remark = "... im7"
        lines: dict[str, str] = {}  # {path: its remark}
        for kind_name, kind in self.kinds().items():  # e.g. "lq", Kind(root="/data/blur", ...)
            file_name = f"{frame}_<instant>" if kind_name == "gt_instants" else frame
            lines.update(self._paths_of_kind(kind, clip, file_name, remark))
        if self.meta_file:
            lines[self.meta_file] = f"a line for each clip: {clip} <frames> (<height>,<width>,3)"
        text = ""
        for path, remark_on_path in lines.items():
            # rstrip removes the two spaces if there is no remark.
            text += f"\n    {path}  {remark_on_path}".rstrip()
        return text

    def _paths_of_kind(self, kind: Kind, clip: str, file_name: str, remark: str) -> dict[str, str]:
        """Return {path: its remark} of the files of one kind, for `layout`.

        clip, file_name: names as they are shown, e.g. "<clip>" and "<frame>".
        remark: text behind the path, e.g. "... im7", or "".
        """
        root = kind.root
        suffix = kind.suffixes[0]
        key = f"{clip}/{file_name}"
        if is_lmdb(root):
            # BasicSR ends each line with the PNG compression level, 1.
            line_of_key = f"{key}{suffix} (<height>,<width>,3) 1"
            return {
                f"{root}/data.mdb": f"a file under each key {key} {remark}",
                f"{root}/meta_info.txt": f"a line for each key: {line_of_key}",
            }
        if self.dataroot_spike:
            # Clips with spikes are in the layout of GoPro, with a folder for each kind.
            return {f"{root}/{clip}/[{kind.folder}/]{file_name}{suffix}": remark}
        return {f"{root}/{key}{suffix}": remark}


def list_source(source: Source, kinds: Collection[str] | None = None) -> dict[str, Listing]:
    """Return {kind of file: the files below its root}.

    kinds: names of the kinds to list, e.g. ("lq",). None: all kinds.
    Raises one DataError for all roots that cannot be read, and for the meta file. The error shows
    the layout of the data set.
    """
    listings = {}
    errors = []
    # Names of the clips to look up. If `names` stays None, every clip in the folders is looked up.
    names = None
    try:
        meta_entries = source.meta_entries
        if source.septuplets:
            # The folders of Vimeo-90K have more clips than its meta file lists, so only the listed
            # clips are looked up.
            names = meta_entries
    except DataError as e:
        errors.append(e)
    for name, kind in source.kinds().items():
        if kinds is not None and name not in kinds:
            continue
        try:
            listings[name] = list_root(
                kind.root,
                kind.folder,
                kind.suffixes,
                single_files=name == "spike" and source.has_one_spike_file,
                names=names,
            )
            _refuse_folders_of_a_clip(name, kind.root, listings[name])
        except DataError as e:
            e.do += advice_on(kind.root)
            errors.append(e)
    if errors:
        raise joined_errors(errors, source.layout()) from errors[0]
    return listings


def _refuse_folders_of_a_clip(kind: str, root: str, listing: Listing) -> None:
    """Refuse a root with folders named blur, sharp or spike, because such folders are not clips.

    kind: "lq", "gt", "gt_instants" or "spike".
    listing: the clips that were found in the root.
    Raises DataError, which names the folder that was probably meant
    (test_a_root_that_is_not_the_folder_of_the_clips_is_named_with_the_one_meant).
    """
    # A clip "a/b" is in the folder "a" of the root.
    folders_in_root = {name.split("/")[0] for name in listing}
    within_clip = sorted(folders_in_root & CLIP_FOLDERS)
    if not within_clip:
        return
    if all(name in CLIP_FOLDERS for name in listing):
        # <clip>/blur/<frame>: the root is a single clip.
        meant = f"the folder above it, {os.path.dirname(os.path.abspath(root))}"
        content = "the folders of a single clip"
    else:
        # blur/<clip>/<frame>: the root holds a folder of clips for each kind.
        meant = f"the folder of its own kind, such as {os.path.join(root, FOLDER_OF_KIND[kind])}"
        content = "a folder for each kind of file"
    raise DataError(
        what=f"dataroot_{kind} holds {content}, {', '.join(within_clip)}, in place of clips",
        where=root,
        expected="a folder with one folder per clip",
        do=f"set dataroot_{kind} to {meant}",
    )
