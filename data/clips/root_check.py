"""Check the clips of one data root, file by file.

`RootCheck.run` lists all files, then takes them in groups (FILES_AT_ONCE):

    _look_at_files    opens each file once, in threads
    _check_clips      checks names, sizes and numbers of files (clip_check.py)
    _warn_of_content  warns of bits that are lost in reading (picture_losses.py), and of spikes
                      that do not fit their frames (spike_check.py)

A look at a file gives a `Look` (data/clips/look.py): size and time of change of the file, size of
the picture, and what is wrong. Later steps read the looks and not the files. Only
`_warn_of_content` opens a few files of each clip again. `_report` puts problems and warnings into
one `Report`.

What must stay: every rule, and the order of problems and warnings, because the order is part of the
output (test_a_fault_of_the_data_is_named_before_training).
Free to add: a rule. If you add a rule, raise FORMAT in data/clips/kept.py, because stored results
of earlier checks did not use the new rule.
Free to change: the size of a group of files, and what runs in threads.

Tests: tests/parts/data/test_preflight.py, tests/parts/data/test_manifest.py,
tests/stories/test_bad_input.py
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from data.clip import IMAGE_KINDS, Clip
from data.clips import manifest
from data.clips.clip_check import ClipCheck, Size
from data.clips.clip_lists import frame_counts, one_of_each_form, planes_of
from data.clips.columns import Columns
from data.clips.file_content import SLOW_FROM_START, is_read_from_start
from data.clips.kept import RecordId
from data.clips.listed_files import FileEntry, Folder, Listing, State, entry_of
from data.clips.look import Look, look_at_picture, look_at_spikes
from data.clips.picture_losses import what_is_lost
from data.clips.source import Problem, Source
from data.clips.spike_check import check_spikes
from data.clips.table import ClipTable
from data.clips.table_builder import TableBuilder
from data.clips.threads import map_in_threads
from utils.dist import watchdog
from utils.errors import DataError
from utils.words import counted

# The type of a function (total, name, unit) that opens a progress bar for a `with` block. E.g. with
# a function `show`: `with show(2103, "checking train", "files") as progress`.
OpenProgress = Callable[[int, str, str], Any]
# Size of a group: number of files that are looked at before their clips are checked. A group ends
# with the clip that reaches this number. A larger group takes more memory, because the `Look` of
# each file is kept until the end of the group. With a group of e.g. 10 files, threads would often
# be idle at the end of a group. (LEAST_FILES in unchanged_data.py is 4096, too, but it counts the
# files of a repeated start.)
FILES_AT_ONCE = 4096


@dataclass
class Report:
    """The result of the check of one data root."""

    name: str  # name of the split, and of the root if there are several, e.g. "train"
    source: Source  # the checked root
    clips: Sequence[Clip]  # the clips of the root that have no problems
    problems: list[Problem] = field(default_factory=list)  # faults that forbid a run
    warnings: list[Problem] = field(default_factory=list)  # warnings for the log
    # If a stored result or a clip cache was read, the log shows this text in place of `counts()`,
    # e.g. "22 cached clips". If the files were checked, the text is "".
    note: str = ""
    seconds: float = 0.0  # how long the check of the files took
    # Where the result is stored. A later start finds it by the digest of the options that were
    # checked. The other ranks of this start find the result by (name, checksum). "" and None if the
    # result is not stored.
    options_digest: str = ""
    record_id: RecordId | None = None

    def counts(self) -> str:
        """Return clips, frames, sizes and planes in one line.

        For example "22 clips, 2103 frames of 720 x 1280, spike files of 56 planes".
        """
        frames = sum(frame_counts(self.clips))
        sizes = set()
        # Clips of one form have one size, so take one clip of each form. `self.clips` may be a
        # `ClipTable`, which makes a new `Clip` at each access. So taking all clips would take
        # longer.
        for clip in one_of_each_form(self.clips):
            height, width = clip.size
            sizes.add(f"{height} x {width}")
        shown_sizes = ", ".join(sorted(sizes)) or "-"
        text = f"{counted(len(self.clips), 'clip')}, {counted(frames, 'frame')} of {shown_sizes}"
        planes = sorted(planes_of(self.clips))
        if planes:
            text += f", spike files of {', '.join(map(str, planes))} planes"
        return text


class _Job(NamedTuple):
    """A file to look at."""

    clip: str  # name of its clip
    kind: str  # "lq", "gt", "gt_instants" or "spike"
    path: str
    # Size and time of a file in an LMDB. None for a file on disk, because its size and time are
    # looked up later.
    lmdb_entry: FileEntry | None


class RootCheck:
    """Checks the clips of one data root. Call `run` once.

    A data root is a set of folders, one for each kind of file: "lq" (blurry frames), "gt" (sharp
    frames), "gt_instants" (several sharp frames of an exposure) and "spike".
    """

    def __init__(self, source: Source, decode: bool) -> None:
        """Prepare the check.

        source: the data root.
        decode: whether to decode every image, which also finds flipped bits.
        """
        self.source = source
        self.decode = decode
        # `run` fills `columns` and `states`. Both are stored, and a later start compares the data
        # with both.
        self.columns: Columns = {}  # the clips as arrays
        self.states: dict[str, State] = {}  # {folder: its state}
        self.listings: dict[str, Listing] = {}  # {kind: {clip: its files}}
        self.first_clip: Clip | None = None  # the first clip without problems
        # Problems, in the order in which they are reported.
        self.clip_problems: list[Problem] = []  # wrong names, sizes or numbers of files
        self.same_files: list[Problem] = []  # lq and gt are the same files
        self.picture_problems: list[Problem] = []
        self.spike_problems: list[Problem] = []
        # Warnings. `lossy_pictures` is {what is lost: the first picture with this loss}.
        # `spike_warnings` are spikes that do not fit their frames.
        self.lossy_pictures: dict[str, Problem] = {}
        self.spike_warnings: list[Problem] = []

    def run(self, name: str, show: OpenProgress, scale: int) -> Report:
        """Check all clips, in groups of files.

        name: name of the report.
        show: a function that opens a progress bar.
        scale: scale of the network.
        """
        source = self.source
        self.listings = manifest.list_source(source)
        # Each listing has the states of all folders that were listed for it.
        for listing in self.listings.values():
            self.states.update(listing.states)
        # {clip: number of its files}, for the progress bar and for groups of one size.
        file_counts = {}
        for clip in manifest.names_of(source, self.listings):
            file_counts[clip] = sum(len(folder) for _, folder in self._folders(clip))

        builder = TableBuilder(source)
        total = sum(file_counts.values())
        with show(total, f"checking {name}", "files") as progress:
            for names in _groups(file_counts):
                looks = self._look_at_files(names, progress)
                # Clips with problems are reported, and are not in the table.
                passed_clips = self._check_clips(names, looks)
                for clip in passed_clips:
                    builder.add(clip, looks)
                self._warn_of_content(passed_clips, looks)
        clips, self.columns = builder.table()
        return self._report(name, clips, scale)

    def _report(self, name: str, clips: ClipTable, scale: int) -> Report:
        """Return the report: all problems and warnings, in the order in which users see them.

        name: name of the report, e.g. "train".
        clips: the clips that passed the check.
        scale: scale of the network.
        """
        source = self.source
        # The report shares the list `clip_problems`, so the lines below change the list itself. The
        # change does no harm, because `run` is called once.
        report = Report(
            name,
            source,
            clips,
            problems=self.clip_problems,
            warnings=source.notes(len(clips)),
        )
        report.problems += manifest.other_scales(clips)
        # The next two checks are for networks of scale 1. With any other scale, gt would have a
        # wrong size if gt and lq were the same files. The wrong size was reported already, and says
        # more about the cause.
        if scale == 1:
            report.problems += self.same_files
            if not report.problems and manifest.have_same_content(source, clips):
                report.warnings.append(
                    Problem(clips[0].name, manifest.SAME_CONTENT, source.dataroot_lq)
                )
        report.problems += self.picture_problems + self.spike_problems
        report.warnings += [*self.lossy_pictures.values(), *self.spike_warnings]
        if source.spikes:
            report.warnings += _slow_files(source, clips)
        return report

    def _folders(self, clip: str) -> Iterator[tuple[str, Folder]]:
        """Yield (kind, files) for each kind of files that a clip has."""
        for kind, listing in self.listings.items():
            folder = listing.get(clip)
            if folder is not None:
                yield kind, folder

    # ---- Look at the files ------------------------------------------------------------------

    def _look_at_files(self, clips: Sequence[str], progress: Any) -> dict[str, Look]:
        """Look at all files of some clips, in threads. Returns {path: look}.

        clips: names of the clips.
        progress: the progress bar.
        """
        jobs = []
        for clip in clips:
            for kind, folder in self._folders(clip):
                # Size and time of each file in an LMDB. A file on disk has None here, because its
                # size and time are looked up in a thread, by `_look_at`.
                entries: Sequence[FileEntry | None] | None = folder.lmdb_entries
                if entries is None:
                    entries = [None] * len(folder)
                for path, entry in zip(folder.paths, entries, strict=True):
                    jobs.append(_Job(clip, kind, path, entry))
        looks = {}
        try:
            # `go_on` tells the watchdog that this process still works. Without these calls, the
            # watchdog would end a long check on a slow file system as a hang.
            looks_in_order = map_in_threads(self._look_at, jobs, go_on=watchdog.go_on)
            for job, look in zip(jobs, looks_in_order, strict=True):
                looks[job.path] = look
                progress.update()
        except DataError as e:
            # A file is a broken link. The new error names the first broken link of each kind of
            # file, so that the user sees all kinds at once.
            raise manifest.gone_error(self.source, self.listings) from e
        return looks

    def _look_at(self, job: _Job) -> Look:
        """Look at one file. Runs in a thread."""
        if job.kind != "spike":
            return look_at_picture(job.path, self.decode, job.lmdb_entry)
        # How the spikes of this clip are read.
        spikes = self.source.own_spikes.get(job.clip, self.source.spikes)
        if spikes is None:
            # An RGB dataset reads no spikes, so size and time are enough.
            return Look(job.lmdb_entry or entry_of(job.path))
        return look_at_spikes(job.path, spikes.geometry, spikes.remainder, job.lmdb_entry)

    # ---- Check the clips --------------------------------------------------------------------

    def _check_clips(self, names: Sequence[str], looks: Mapping[str, Look]) -> list[Clip]:
        """Check some clips and report their problems.

        Returns the clips with right names, sizes and numbers of files. A file of these clips may
        still be damaged. `_check_files` reports damaged files.

        names: names of the clips.
        looks: {path: what was seen of this file}, for all files of these clips.
        """
        meta_entries = self.source.meta_entries
        passed_clips = []
        for name in names:
            # {kind: {stem: file}}, or {kind: None} if the clip has no folder of this kind. At
            # first, each kind has None.
            files: dict[str, dict[str, FileEntry] | None] = dict.fromkeys(self.listings)
            for kind, folder in self._folders(name):
                entries = [looks[path].entry for path in folder.paths]
                files[kind] = dict(zip(folder.stems, entries, strict=True))
            earlier_clips = [self.first_clip] if self.first_clip else []
            # Only Vimeo-90K has `sizes`: all of its clips have the sizes of the first clip. For
            # other data, `sizes` is None and the check calls `size_of`, a function path -> size of
            # the picture. The files were looked at already, so `size_of` reads no file here.
            check = ClipCheck(
                name,
                self.source,
                files,
                sizes=manifest.usual_sizes(self.source, earlier_clips),
                size_of=partial(_seen_size, looks),
            )
            # The meta file lists the clips. Its entry for this clip is [number of frames, number of
            # the first frame]. Without a meta file, the entry is None.
            meta_entry = meta_entries[name] if meta_entries else None
            clip = check.run(meta_entry)
            self.clip_problems += check.problems
            if clip and not check.problems:
                if self.first_clip is None:
                    self.first_clip = clip
                self._check_files(clip, looks)
                passed_clips.append(clip)
        return passed_clips

    def _check_files(self, clip: Clip, looks: Mapping[str, Look]) -> None:
        """Report the files of a clip that cannot be read, and pictures of a wrong size.

        The right size is the size of the first picture of the clip.

        looks: {path: what was seen of this file}.

        Test: test_a_fault_of_the_data_is_named_before_training
        """
        for kind in IMAGE_KINDS:
            size = clip.size_of(kind)
            for path in getattr(clip, kind):
                what = _what_is_wrong(looks[path], kind, size)
                if what:
                    self.picture_problems.append(Problem(clip.name, what, path))
        for path in clip.planes_of_spike_files:
            flaw = looks[path].flaw
            if flaw:
                self.spike_problems.append(Problem(clip.name, flaw, path))
        # Are lq and gt the same files? If so, the function `manifest.same_files` returns a problem.
        # The function is slow, because following links takes a call to the system for each folder
        # of the path. Two names of one file always have the same file id (device and inode). So the
        # function is only called if the ids of the first pair are equal, which is rare. The list
        # `self.same_files` has its results.
        if clip.gt:
            blurry = looks[clip.lq[0]]
            sharp = looks[clip.gt[0]]
            if blurry.file_id == sharp.file_id:
                self.same_files += manifest.same_files(self.source, [clip])

    def _warn_of_content(self, clips: Sequence[Clip], looks: Mapping[str, Look]) -> None:
        """Warn of pictures that lose bits when they are read, and of spikes that do not fit.

        Pictures are read as 8-bit RGB, so a 16-bit picture loses bits. Spikes do not fit if they
        do not resemble their frames. The clips are checked in threads.

        looks: {path: what was seen of this file}.

        Test: test_each_check_warns_once_of_held_out_clips_and_of_pictures_that_lose_bits
        """

        def warnings_of(clip: Clip) -> tuple[list[Problem], list[Problem]]:
            """Return warnings about pictures, and about spikes. Runs in a thread."""
            lossy_pictures = []
            # The first picture of each kind is enough, because one program has made all pictures of
            # a clip.
            for kind in clip.image_kinds:
                path = getattr(clip, kind)[0]  # the first picture of this kind
                # is_reduced: reading the picture as 8-bit RGB may lose something.
                lost = what_is_lost(path) if looks[path].is_reduced else ""
                if lost:
                    lossy_pictures.append(Problem(clip.name, f"{kind} {lost}", path))
            spike_warnings = []
            if clip.spikes:
                # Some properties are the same for all clips of the root, e.g. the kind of light.
                # They are checked in the first clip only.
                spike_warnings = check_spikes(clip, is_first=clip is self.first_clip)
            return lossy_pictures, spike_warnings

        # A thread gets two clips at once and not the usual 32 items (ITEMS_AT_ONCE in threads.py),
        # because one clip takes long and all threads should be busy. `go_on` tells the watchdog
        # that this process still works, as in `_look_at_files`.
        warnings_of_clips = map_in_threads(warnings_of, clips, at_once=2, go_on=watchdog.go_on)
        for lossy_pictures, spike_warnings in warnings_of_clips:
            for warning in lossy_pictures:
                # "lq has 16 bits, ..." and "gt has 16 bits, ..." count as one warning, and only the
                # first one is kept. So the key is the text without its first word, the kind.
                _, _, lost = warning.what.partition(" ")
                self.lossy_pictures.setdefault(lost, warning)
            self.spike_warnings += spike_warnings


def _groups(file_counts: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield the names of the clips in groups of about FILES_AT_ONCE files.

    file_counts: {clip: number of its files}.
    """
    group: list[str] = []
    files_in_group = 0
    for clip, file_count in file_counts.items():
        group.append(clip)
        files_in_group += file_count
        if files_in_group >= FILES_AT_ONCE:
            yield group
            group = []
            files_in_group = 0
    if group:
        yield group


def _seen_size(looks: Mapping[str, Look], path: str) -> Size:
    """Return the size of a picture that was looked at.

    looks: {path: what was seen of this file}.
    Raises DataError if the picture cannot be read. `ClipCheck` expects this error of `size_of`.
    """
    look = looks[path]
    if look.shape is None:
        raise DataError(
            what=look.flaw,
            where=path,
            expected="a picture that can be read",
            do="restore the file",
        )
    return look.shape


def _what_is_wrong(look: Look, kind: str, size: Size) -> str:
    """Return what is wrong with a picture, e.g. "gt frame of 720 x 1280, ...", or "".

    If a file is cut short and its picture has a wrong size, only the wrong size is reported,
    because the size says more about the cause.

    kind: "lq", "gt" or "gt_instants".
    size: (height, width) of the first picture of its clip.
    """
    if look.flaw:
        return look.flaw
    if look.shape is not None and look.shape != size:
        height, width = look.shape
        first_height, first_width = size
        what = f"{kind} frame of {height} x {width}"
        return f"{what}, the first of the clip has {first_height} x {first_width}"
    return look.missing_end  # "", or a message that the end of a PNG is missing


def _slow_files(source: Source, clips: ClipTable) -> list[Problem]:
    """Return a warning if spike files are slow to read, because every read begins at their start.

    E.g. an .npz is slow to read, because it is compressed. The list has at most one warning. The
    paths are read from the table, because making every clip would take long for a large data set.

    Test: test_a_compressed_spike_file_of_a_whole_clip_is_said_to_be_slow_once
    """
    # If each frame has a file, the files are short, so reading a file from its start is fast.
    if not source.has_one_spike_file:
        return []
    for number in range(len(clips)):
        [path] = clips.paths("spike", number)
        if is_read_from_start(path):
            return [Problem(clips[number].name, SLOW_FROM_START, path)]
    return []
