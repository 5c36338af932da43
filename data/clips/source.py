"""Where the clips of one root are: `Source`, and a problem with them."""

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
from data.clips.files import PARTS, Listing, is_lmdb, list_root
from data.spike.formats import FORMATS
from utils.errors import DataError, address_of
from utils.files import open_plain
from utils.image import IMAGE_SUFFIXES
from utils.user_path import advice_on

# KAIR brings these lists of whole training sets along; path in its option files -> number of clips.
KAIR_LISTS = {
    "data/meta_info/meta_info_REDS_GT.txt": 270,
    "data/meta_info/meta_info_DVD_train_GT.txt": 61,
    "data/meta_info/meta_info_GoPro_train_GT.txt": 22,
    "data/meta_info/meta_info_DAVIS_train_GT.txt": 90,
}
# A line of a meta file: clip, frames, shape, first frame. The shape may contain blanks,
# "(720,1280,3)" or "(720, 1280, 3)"; S-VRT writes 0 instead.
_LINE = re.compile(r"(\S+)\s+(\d{1,7})\s+(?:\(.*\)|\d+(?=\s))(?:\s+(\d{1,18}))?", re.ASCII)
_FORM = "<clip> <frames> <shape or 0> <first frame>; after a shape the first frame may be left out"
# A clip of more frames is an error of the list: 9 hours at 30 frames a second.
MOST_FRAMES = 1_000_000


class Problem(NamedTuple):
    """One thing wrong with the data. do: the advice; "": restore the files, or remove the clip."""

    clip: str
    what: str
    where: str
    do: str = ""

    def __str__(self) -> str:
        return f"{self.clip}: {self.what}  [{self.where}]"


class Kind(NamedTuple):
    """Where the files of one kind are: <root>/<clip>/[<folder>/]<frame><ending>.

    endings: endings of the files' names, such as ".png". Of several, a clip has files with the
    first one that fits.
    """

    root: str
    folder: str
    endings: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Where the clips are: the roots and names of a dataset section.

    other_images: whether a clip without a picture with `filename_ext` may have other pictures.
    spikes: how the spikes are read. own_spikes: {clip: its own way}, see `DatasetInfo.of_clip`.
    left_out: clips in the folders that are not part of the data set.
    may_share_frames: whether lq and gt may be the same files. This is so if noise is added to lq,
    or if they are other frames.
    septuplets: whether it is Vimeo-90K: clips <a>/<b> of im1 ... im7, all of one size. Only listed
    clips are read.
    part: prefix of the names of the clips if there are several roots: the number of the root, "/".

    Of the files of a user's single clip (data.clips.clip_reader.user_clip):
    is_own: whether they are such files.
    trained: the spikes in training, see `ClipDataset.spike_data`.
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
    part: str = ""
    is_own: bool = False
    trained: dict[str, Any] | None = None
    times: FrameTimes | None = None

    # ---- Files ------------------------------------------------------------------------------

    def kinds(self) -> dict[str, Kind]:
        """Return where the files of each kind are: "lq", "gt", "gt_instants", "spike".

        Kinds without a root are left out.
        """
        images = [f".{self.filename_ext.lstrip('.')}".lower()]
        if self.other_images:
            images += [suffix for suffix in IMAGE_SUFFIXES if suffix not in images]
        places = (
            ("lq", self.dataroot_lq, self.lq_folder, images),
            ("gt", self.dataroot_gt, "sharp", images),
            ("gt_instants", self.dataroot_gt_instants, "instants", images),
            ("spike", self.dataroot_spike, "spike", FORMATS),
        )
        kinds = {}
        for kind, root, folder, endings in places:
            if root:
                kinds[kind] = Kind(root, folder, tuple(endings))
        return kinds

    def roots(self) -> dict[str, str]:
        """Return {option key: data root}."""
        return {f"dataroot_{kind}": place.root for kind, place in self.kinds().items()}

    @property
    def has_one_spike_file(self) -> bool:
        """Whether the planes of all frames of a clip are in one file.

        `spike.exposure` then says which planes belong to which frame. A user may give one file
        without it.
        """
        if self.spikes is None or not self.dataroot_spike:
            return False
        if self.spikes.timing.is_one_file:
            return True
        return self.is_own and not os.path.isdir(self.dataroot_spike)

    # ---- The list of clips ------------------------------------------------------------------

    @property
    def meta(self) -> str | None:
        """The file with the list of clips. None if all folders are used.

        They are also used if the file is one of KAIR's lists and is missing.
        """
        path = self.meta_info_file
        if path in KAIR_LISTS and not os.path.exists(path):
            return None
        return path

    @cached_property
    def listed(self) -> dict[str, list[Any]] | None:
        """{clip: [number of frames, number of the first frame]} of the meta file; None without one.

        The number of the first frame is text, as it is written; "0" if it is left out. Lists, as
        the index of a clip cache has them.
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
            if name in clips:
                what = f"line {number} lists clip {name} again"
                raise DataError(what, path, "one line per clip", "join the lines")
            clips[name] = [int(found[2]), found[3] or "0"]
        if not clips:
            what = "the meta file lists no clip"
            raise DataError(what, path, "one line per clip", "correct meta_info_file")
        return clips

    def _meta_lines(self, path: str) -> list[str]:
        """Return the lines of the meta file. Raises DataError."""
        try:
            with open_plain(path) as file:
                return file.read().decode("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as e:
            if isinstance(e, OSError):
                why = e.strerror
                do = "correct meta_info_file"
            else:
                why = "it is not UTF-8 text"
                do = "save it as UTF-8"
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
        """Return warnings of clips that are left out or not listed. clips: how many are read."""
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
        """Return the files that every clip must have, in words."""
        *others, last = self.kinds()
        files = f"{last} file"
        if others:
            files = f"{', '.join(others)} and {files}"
        if self.septuplets:
            return f"im1 ... im7 of every listed clip, each with its {files}{self.layout()}"
        return f"every frame with its {files}; docs/data_format.md shows the folders"

    def layout(self) -> str:
        """Return the files of this data set: a line for each kind of path, with an example."""
        clip = "<clip>"
        frame = format(0, self.filename_tmpl) if self.filename_tmpl else "<frame>"
        more = ""
        if self.septuplets:
            clip = "00001/0001"
            frame = "im1"
            more = "... im7"
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
            _refuse_parts_as_clips(kind, place.root, found[kind])
        except DataError as e:
            e.do += advice_on(place.root)
            errors.append(e)
    if errors:
        raise joined_errors(errors, source.layout()) from errors[0]
    return found


def _refuse_parts_as_clips(kind: str, root: str, listing: Listing) -> None:
    """Refuse a root whose folders are blur, sharp or spike, which are never clips.

    Raises DataError, which names the folder that was probably meant.
    """
    folders = {name.split("/")[0] for name in listing}
    parts = sorted(folders & PARTS)
    if not parts:
        return
    if all(name in PARTS for name in listing):  # <clip>/blur/<frame>: the root is one clip
        meant = f"the folder above it, {os.path.dirname(os.path.abspath(root))}"
        found = "the folders of a single clip"
    else:  # blur/<clip>/<frame>: the root holds a root of each kind
        own = {"lq": "blur", "gt": "sharp", "gt_instants": "instants", "spike": "spike"}[kind]
        meant = f"the folder of its own kind, such as {os.path.join(root, own)}"
        found = "a folder for each kind of file"
    raise DataError(
        what=f"dataroot_{kind} holds {found}, {', '.join(parts)}, in place of clips",
        where=root,
        expected="a folder with one folder per clip",
        do=f"set dataroot_{kind} to {meant}",
    )


# ---- Several errors as one -------------------------------------------------------------------


def joined_errors(errors: Sequence[DataError], layout: str = "") -> DataError:
    """Return one error for several, which says nothing twice.

    layout: lines to add to what is expected.
    """
    return DataError(
        what=joined_texts(e.what for e in errors),
        where=joined_texts(e.where for e in errors),
        expected=joined_texts(e.expected for e in errors) + layout,
        do=joined_texts(e.do for e in errors),
    )


def joined_texts(texts: Iterable[str]) -> str:
    """Join the first lines of texts to one line, and put their other lines below it.

    A piece of a first line, up to a semicolon, and the lines below it are said once.
    """
    pieces: dict[str, None] = {}  # a dict, because it keeps the order
    below: dict[str, None] = {}
    for text in texts:
        first, _, rest = text.partition("\n")
        for piece in first.split("; "):
            pieces[piece] = None
        if rest:
            below[f"\n{rest}"] = None
    return "; ".join(pieces) + "".join(below)
