"""Where the clips of one data root are (`Source`), and what is wrong with them (`Problem`).

A data root is a set of folders, one for each kind of file: blurry frames ("lq"), sharp frames
("gt"), several sharp frames of each exposure ("gt_instants"), and spike files ("spike"). A dataset
makes a `Source` of its options (data/clip_dataset.py). `list_source` lists the files.

A field of `Source` that decides the result of the data check must also be added to `question` in
data/clips/kept.py. Otherwise a stored result of another value would be used.

Tests: tests/parts/data/test_manifest.py, tests/parts/data/test_preflight.py
"""

import os
import re
import reprlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from data.cameras.frame_times import FrameTimes
from data.cameras.spike_source import DatSpikes
from data.clip import checked_name
from data.clips.files import CLIP_FOLDERS, Listing, is_lmdb, list_root
from data.spike.formats import FORMATS
from utils.errors import DataError, address_of
from utils.files import open_plain
from utils.image import IMAGE_SUFFIXES
from utils.user_path import advice_on

# Lists of whole training sets that KAIR brings along: {path in its option files: number of clips}.
# They list all clips, so the clips of all folders are used if such a list is missing.
KAIR_LISTS = {
    "data/meta_info/meta_info_REDS_GT.txt": 270,
    "data/meta_info/meta_info_DVD_train_GT.txt": 61,
    "data/meta_info/meta_info_GoPro_train_GT.txt": 22,
    "data/meta_info/meta_info_DAVIS_train_GT.txt": 90,
}
# A line of a meta file: clip, frames, shape, first frame, such as "000 100 (720,1280,3) 0". The
# shape may hold blanks, "(720, 1280, 3)". S-VRT writes 0 in its place. After a shape in brackets,
# the first frame may be left out.
_LINE = re.compile(r"(\S+)\s+(\d{1,7})\s+(?:\(.*\)|\d+(?=\s))(?:\s+(\d{1,18}))?", re.ASCII)
_FORM = "<clip> <frames> <shape or 0> <first frame>; after a shape the first frame may be left out"
# A list with a clip of more frames must be wrong: so many are 9 hours at 30 frames a second.
MOST_FRAMES = 1_000_000
# Name of the folder within a clip, for each kind of file, in the layout of GoPro.
FOLDER_OF_KIND = {"lq": "blur", "gt": "sharp", "gt_instants": "instants", "spike": "spike"}


class Problem(NamedTuple):
    """One thing that is wrong with the data.

    clip: name of the clip, or of the option. what: the problem. where: a path.
    do: advice. "" stands for the usual advice: restore the files, or remove the clip.
    """

    clip: str
    what: str
    where: str
    do: str = ""

    def __str__(self) -> str:
        return f"{self.clip}: {self.what}  [{self.where}]"


class Kind(NamedTuple):
    """Where the files of one kind are: <root>/<clip>/[<folder>/]<frame><ending>.

    endings: endings of the files' names, such as ".png". If there are several, a clip has the files
    with the first ending that fits any of its files.
    """

    root: str
    folder: str
    endings: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Where the clips of a data root are, and how they are read.

    The fields from dataroot_lq to filename_ext are keys of the dataset section, see
    docs/options.md.
    other_images: whether a clip without a picture with `filename_ext` may have other pictures.
    spikes: how the spikes are read. None for a dataset without spikes.
    own_spikes: {clip: how its spikes are read}, for clips that differ, see `DatasetInfo.of_clip`.
    left_out: clips in the folders that are not part of the data set.
    may_share_frames: whether lq and gt may be the same files. This is so if noise is added to lq,
    or if they are other frames.
    septuplets: whether it is Vimeo-90K: clips <a>/<b> of im1 ... im7, all of one size. Only listed
    clips are read.
    name_prefix: text before the names of the clips. "" with one root, "0/", "1/", ... with several.

    For the single clip of a user's own files (data.clips.clip_reader.user_clip):
    is_user_clip: whether this is such a clip. Its roots are folders or files of the clip itself.
    trained: properties of the training spikes, see `ClipDataset.spike_data`.
    times: when the frames were taken. None: as the numbers in their names say.
    """

    dataroot_lq: str
    dataroot_gt: str | None = None
    dataroot_gt_instants: str | None = None
    dataroot_spike: str | None = None
    lq_folder: str = "blur"
    meta_info_file: str | None = None
    filename_tmpl: str | None = None
    filename_ext: str = "png"
    other_images: bool = False
    spikes: DatSpikes | None = None
    own_spikes: dict[str, DatSpikes] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    may_share_frames: bool = False
    septuplets: bool = False
    name_prefix: str = ""
    is_user_clip: bool = False
    trained: dict[str, Any] | None = None
    times: FrameTimes | None = None

    # ---- Files ------------------------------------------------------------------------------

    def kinds(self) -> dict[str, Kind]:
        """Return where the files of each kind are, as {"lq": ..., "gt": ..., ...}.

        Kinds without a root are left out. The order is lq, gt, gt_instants, spike.
        """
        image_endings = [f".{self.filename_ext.lstrip('.')}".lower()]
        if self.other_images:
            image_endings += [ending for ending in IMAGE_SUFFIXES if ending not in image_endings]
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
            # lq_folder may name another folder than "blur", such as "blur_gamma".
            folder = self.lq_folder if kind == "lq" else FOLDER_OF_KIND[kind]
            endings = FORMATS if kind == "spike" else image_endings
            kinds[kind] = Kind(root, folder, tuple(endings))
        return kinds

    def roots(self) -> dict[str, str]:
        """Return {option key: data root}."""
        return {f"dataroot_{kind}": place.root for kind, place in self.kinds().items()}

    @property
    def has_one_spike_file(self) -> bool:
        """Whether the planes of all frames of a clip are in one file.

        The option `spike.exposure` then says which planes belong to which frame. A user may give
        one file without this option; the times of the frames divide it.
        """
        if self.spikes is None or not self.dataroot_spike:
            return False
        if self.spikes.timing.is_one_file:
            return True
        return self.is_user_clip and not os.path.isdir(self.dataroot_spike)

    # ---- The list of clips ------------------------------------------------------------------

    @property
    def meta(self) -> str | None:
        """The file with the list of clips. None if the clips of all folders are used.

        All folders are also used if the file is one of KAIR's lists and is missing.
        """
        path = self.meta_info_file
        if path in KAIR_LISTS and not os.path.exists(path):
            return None
        return path

    @cached_property
    def listed(self) -> dict[str, list[Any]] | None:
        """{clip: [number of frames, number of the first frame]} of the meta file; None without one.

        The number of the first frame is a text, as it is written; "0" if it is left out. The values
        are lists and not tuples, because the index of a clip cache (JSON) has lists.
        Raises DataError, which names the line.
        """
        path = self.meta
        if path is None:
            return None
        clips: dict[str, list[Any]] = {}
        for number, line in enumerate(self._meta_lines(path), 1):
            if not line.strip():
                continue
            found = _LINE.fullmatch(line.strip())
            if not found or not 1 <= int(found[2]) <= MOST_FRAMES:
                what = f"line {number} is {reprlib.repr(line)}"
                raise DataError(what, path, _FORM, "correct the line")
            name = checked_name(found[1], f"{path}, line {number}")
            frames = int(found[2])
            first_frame = found[3] or "0"
            if name in clips:
                what = f"line {number} lists clip {name} again"
                raise DataError(what, path, "one line per clip", "join the lines")
            clips[name] = [frames, first_frame]
        if not clips:
            what = "the meta file lists no clip"
            raise DataError(what, path, "one line per clip", "correct meta_info_file")
        return clips

    def _meta_lines(self, path: str) -> list[str]:
        """Return the lines of the meta file. Raises DataError."""
        try:
            with open_plain(path) as file:
                # utf-8-sig: editors of Windows put a mark before the first line.
                return file.read().decode("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as e:
            if isinstance(e, OSError):
                why = e.strerror
                do = "correct meta_info_file"
            else:
                why = "it is not UTF-8 text"
                do = "save it as UTF-8"
            # Vimeo-90K is read only with a list.
            if not self.septuplets:
                do += ", or set meta_info_file to null to use all folders"
            raise DataError(
                what=f"cannot read the meta file: {why}",
                where=path,
                expected="a text file with one line per clip",
                do=do + address_of(path) + advice_on(path),
            ) from e

    # ---- Words ------------------------------------------------------------------------------

    def notes(self, clips: int) -> list[Problem]:
        """Return warnings about clips that are left out or not listed.

        clips: number of clips that are read.
        """
        found = []
        path = self.meta_info_file
        if path and not self.meta:
            what = (
                f"the list of the clips is missing: all {clips} in the folders are used, "
                f"KAIR's list has {KAIR_LISTS[path]}"
            )
            found.append(Problem("meta_info_file", what, path))
        if self.left_out:
            names = self.listed or list_source(self, ("lq",))["lq"]
            gone = sorted(self.left_out & names.keys())
            if gone:
                what = (
                    f"{len(gone)} of {clips + len(gone)} clips are left out, {', '.join(gone)}: "
                    "KAIR trains on them, as null does here"
                )
                found.append(Problem("val_partition", what, self.dataroot_lq))
        return found

    def wanted(self) -> str:
        """Return in words which files every clip must have.

        For example "every frame with its lq, gt and spike file; docs/data_format.md shows ...".
        """
        *others, last = self.kinds()
        files = f"{last} file"
        if others:
            files = f"{', '.join(others)} and {files}"
        if self.septuplets:
            return f"im1 ... im7 of every listed clip, each with its {files}{self.layout()}"
        return f"every frame with its {files}; docs/data_format.md shows the folders"

    def layout(self) -> str:
        """Return the paths of the files of this data set, for error messages.

        A line for each kind of file, for example "\\n    <root>/<clip>/[spike/]<frame>.dat".
        """
        clip = "<clip>"
        frame = "<frame>"
        if self.filename_tmpl:
            frame = format(0, self.filename_tmpl)  # "08d" -> "00000000"
        more = ""
        if self.septuplets:
            clip = "00001/0001"
            frame = "im1"
            more = "... im7"
        # {path: what stands behind it}
        lines = {}
        for kind, (root, folder, endings) in self.kinds().items():
            ending = endings[0]
            name = f"{frame}_<instant>" if kind == "gt_instants" else frame
            key = f"{clip}/{name}"
            if is_lmdb(root):
                lines[f"{root}/data.mdb"] = f"a file under each key {key} {more}"
                about = f"a line for each key: {key}{ending} (<height>,<width>,3) 1"
                lines[f"{root}/meta_info.txt"] = about
            elif self.dataroot_spike:
                lines[f"{root}/{clip}/[{folder}/]{name}{ending}"] = more
            else:
                lines[f"{root}/{key}{ending}"] = more
        if self.meta:
            lines[self.meta] = f"a line for each clip: {clip} <frames> (<height>,<width>,3)"
        return "".join(f"\n    {path}  {what}".rstrip() for path, what in lines.items())


def list_source(source: Source, kinds: Collection[str] | None = None) -> dict[str, Listing]:
    """Return {kind of file: the files below its root}. kinds: the kinds to list; None: all.

    Raises one DataError for all roots, and the meta file, that cannot be read. It shows the layout
    of the data set.
    """
    found = {}
    errors = []
    # None lists every clip in the folders. From Vimeo-90K, only listed clips are looked up.
    names = None
    try:
        listed = source.listed
        if source.septuplets:
            names = listed
    except DataError as e:
        errors.append(e)
    for kind, place in source.kinds().items():
        if kinds is not None and kind not in kinds:
            continue
        takes_single_files = kind == "spike" and source.has_one_spike_file
        try:
            found[kind] = list_root(*place, takes_single_files, names)
            _refuse_folders_of_a_clip(kind, place.root, found[kind])
        except DataError as e:
            e.do += advice_on(place.root)
            errors.append(e)
    if errors:
        raise joined_errors(errors, source.layout()) from errors[0]
    return found


def _refuse_folders_of_a_clip(kind: str, root: str, listing: Listing) -> None:
    """Refuse a root whose folders are named blur, sharp or spike, which are never clips.

    Raises DataError, which names the folder that was probably meant.
    """
    folders = {name.split("/")[0] for name in listing}
    within_clip = sorted(folders & CLIP_FOLDERS)
    if not within_clip:
        return
    if all(name in CLIP_FOLDERS for name in listing):
        # <clip>/blur/<frame>: the root is a single clip.
        meant = f"the folder above it, {os.path.dirname(os.path.abspath(root))}"
        found = "the folders of a single clip"
    else:
        # blur/<clip>/<frame>: the root holds a root of each kind.
        meant = f"the folder of its own kind, such as {os.path.join(root, FOLDER_OF_KIND[kind])}"
        found = "a folder for each kind of file"
    raise DataError(
        what=f"dataroot_{kind} holds {found}, {', '.join(within_clip)}, in place of clips",
        where=root,
        expected="a folder with one folder per clip",
        do=f"set dataroot_{kind} to {meant}",
    )


# ---- Several errors as one -------------------------------------------------------------------


def joined_errors(errors: Sequence[DataError], layout: str = "") -> DataError:
    """Return one error for several errors, which says nothing twice.

    layout: lines to add to what is expected, see `Source.layout`.
    """
    return DataError(
        what=joined_texts(e.what for e in errors),
        where=joined_texts(e.where for e in errors),
        expected=joined_texts(e.expected for e in errors) + layout,
        do=joined_texts(e.do for e in errors),
    )


def joined_texts(texts: Iterable[str]) -> str:
    """Join the first lines of texts to one line, and put their other lines below it.

    A piece of a first line, up to a semicolon, and the lines below it are said once:
    "a; b" and "b; c\\nd" -> "a; b; c\\nd".
    """
    # Dicts instead of sets, because they keep the order.
    pieces: dict[str, None] = {}
    below: dict[str, None] = {}
    for text in texts:
        first_line, _, rest = text.partition("\n")
        for piece in first_line.split("; "):
            pieces[piece] = None
        if rest:
            below[f"\n{rest}"] = None
    return "; ".join(pieces) + "".join(below)
