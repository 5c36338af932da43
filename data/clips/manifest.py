"""Make the clips of a data root from its files, and collect all problems of the clips.

Two layouts are read:

    <root>/<clip>/<kind>/<frame>   GoPro as published: a clip has the folders blur, sharp and spike
    <root>/<clip>/<frame>          KAIR: each kind of file has a separate root

Each root may have either layout. "lq" are the blurry frames, "gt" the sharp frames.

    scan             checks each clip of a data root by names and sizes of its files (`ClipCheck`)
    raise_problems   makes one error of all problems, with a table

The data check before a run (data/clips/root_check.py) calls most of the other functions, and also
looks into the files. `digest` is for clip caches.

What must stay:

* the order of the clips (`names_of`), because training samples are numbered in this order
  (test_clips_are_in_the_order_of_their_numbers),
* the hashed texts in `digest`, because clip caches store the result
  (test_the_digest_of_a_listing_stays).

Free to change: how the table of problems looks.

Tests: tests/parts/data/test_manifest.py, tests/parts/data/test_preflight.py
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from data.clip import Clip
from data.clips.clip_check import ClipCheck, Size
from data.clips.clip_lists import scales_of
from data.clips.clip_problems import most_frequent
from data.clips.file_content import read_bytes
from data.clips.joined_errors import joined_errors, joined_texts
from data.clips.listed_files import FileEntry, Folder, Listing
from data.clips.source import Problem, Source, list_source
from data.clips.threads import map_in_threads
from utils.errors import DataError
from utils.name_order import natural_key
from utils.words import counted

# {value of the option val_partition: clips of the training set of REDS that are used for validation
# and not for training}. Names and clips are the same as in BasicSR and KAIR.
HELD_OUT = {
    "REDS4": frozenset(("000", "011", "015", "020")),
    "official": frozenset(map(str, range(240, 270))),  # "240", "241", ... "269"
}
# Largest number of problems that an error shows, so that the error fits on a screen or two. Each
# problem takes two lines. scripts/doctor.py lists all problems.
MOST_PROBLEMS = 30
# Text of the problem that lq and gt are the same files.
SAME_FILES = (
    "gt and lq are the same files, so a network would learn to change nothing: the sharp frames of "
    "the clip are also its blurry ones"
)
# Text of the warning that lq and gt are different files with the same content.
SAME_CONTENT = "the sharp frames of all clips are copies of the blurry ones"


def scan(source: Source) -> tuple[list[Clip], list[Problem]]:
    """Return the clips without problems, and the problems of the other clips.

    Reads names, file sizes, and of each clip the size of the first image.
    Raises DataError if a whole root or the meta file is missing.
    """
    listings = list_source(source)
    names = names_of(source, listings)
    clips: list[Clip] = []
    problems: list[Problem] = []
    files_of_clips = entries_of(source, listings, names)
    for name, files in zip(names, files_of_clips, strict=True):
        check = ClipCheck(name, source, files, sizes=usual_sizes(source, clips))
        meta_entry = source.meta_entries[name] if source.meta_entries else None
        clip = check.run(meta_entry)
        problems += check.problems
        if clip and not check.problems:
            clips.append(clip)
    return clips, problems + other_scales(clips)


def names_of(source: Source, listings: Mapping[str, Listing]) -> list[str]:
    """Return the names of the clips in natural order ("2" before "10").

    With a meta file, the result has the clips that the meta file lists. Without a meta file, the
    result has all clips that have files of any kind.

    The order must stay, because training samples are numbered in this order. If the order changed,
    a resumed run would get different samples.

    listings: {kind: {clip: its files}}.
    """
    if source.meta_entries:
        names = set(source.meta_entries)
    else:
        names = set()
        for listing in listings.values():
            names.update(listing)  # the keys of a listing are the names of its clips
    return sorted(names - source.excluded_clips, key=natural_key)


def entries_of(
    source: Source, listings: Mapping[str, Listing], names: Sequence[str]
) -> Iterator[dict[str, dict[str, FileEntry] | None]]:
    """Yield {kind: {stem: file}} of each clip. A kind without a folder has the value None.

    The size and the time of change of every file are looked up. The work is done in threads.

    listings: {kind: {clip: its files}}.
    names: names of the clips.
    Raises DataError for a broken link.
    """

    def entries_of_clip(name: str) -> dict[str, dict[str, FileEntry] | None]:
        """Return {kind: {stem: file}} of one clip. Runs in a thread."""
        files: dict[str, dict[str, FileEntry] | None] = {}
        for kind, listing in listings.items():
            folder = listing.get(name)
            files[kind] = None if folder is None else folder.entries()
        return files

    try:
        yield from map_in_threads(entries_of_clip, names)
    except DataError as e:
        raise gone_error(source, listings) from e


def gone_error(source: Source, listings: Mapping[str, Listing]) -> DataError:
    """Return the error for broken links. It names the first broken link of each kind of file.

    All files are looked up again, so call `gone_error` only after a broken link was found.

    listings: {kind: {clip: its files}}.
    """
    errors = []
    for listing in listings.values():
        try:
            for folder in listing.values():
                folder.entries()
        except DataError as e:
            errors.append(e)
    return joined_errors(errors, source.layout())


def usual_sizes(source: Source, clips: Sequence[Clip]) -> tuple[Size, Size] | None:
    """Return the sizes (height, width) of lq and gt that the next clip has, without reading it.

    Returns None if the sizes must be read. Only the 64,612 clips of Vimeo-90K (septuplets) are
    known to have one size, so the sizes of their first clip are taken. Reading a header of each
    clip would take minutes.

    clips: the clips without problems so far.
    """
    if source.septuplets and clips:
        return clips[0].size, clips[0].gt_size
    return None


def other_scales(clips: Sequence[Clip]) -> list[Problem]:
    """Return a problem for each clip whose scale is not the scale of most clips.

    The scale is the side of gt over the side of lq. A network has one scale, so all clips must have
    the same scale.
    """
    if not clips:
        return []
    scales = scales_of(clips)
    usual_scale = most_frequent(scales)
    problems = []
    # `clips` may be a table, which makes a new `Clip` at each access. So only the clips with a
    # different scale are taken from it.
    for number, scale in enumerate(scales):
        if scale != usual_scale:
            clip = clips[number]
            what = (
                f"gt is {scale} times as large as lq, in most clips it is {usual_scale} times as "
                "large"
            )
            problems.append(Problem(clip.name, what, clip.gt[0]))
    return problems


def raise_problems(
    found: Iterable[tuple[Source, Sequence[Problem]]],
    shown: int = MOST_PROBLEMS,
    unreadable: Sequence[DataError] = (),
) -> None:
    """Raise one DataError with a table of the problems of all sources, if there are any.

    found: (data root, its problems) for each root.
    shown: largest number of problems that the table shows.
    unreadable: errors of whole roots that cannot be read. They become part of the raised error.
    """
    errors = list(unreadable)
    sources_with_problems = []
    problems: list[Problem] = []
    for source, problems_of_source in found:
        if problems_of_source:
            sources_with_problems.append(source)
            problems += problems_of_source
    if problems:
        errors.append(problems_error(sources_with_problems, problems, shown))
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise joined_errors(errors)


def problems_error(
    sources: Sequence[Source], problems: Sequence[Problem], shown: int = MOST_PROBLEMS
) -> DataError:
    """Return the error for problems of several sources.

    Its table has two lines for each problem:

        clip_a | gt lacks 1 of 40 frames: 000013.png
               |   /data/train/clip_a

    shown: largest number of problems that the table shows.
    """
    roots: list[str] = []
    lists_of_clips: list[str] = []  # where the user can remove a clip
    for source in sources:
        roots += source.roots().values()
        if source.meta_file:
            lists_of_clips.append(f"the meta list {source.meta_file}")
        else:
            lists_of_clips.append("the folders")
    # A problem may have advice of its own (`do`). The usual advice is for all other problems.
    advice = [problem.do for problem in problems if problem.do]
    if len(advice) < len(problems):
        joined_lists = " and ".join(_without_repeats(lists_of_clips))
        advice.append(f"restore these files, or remove the clips from {joined_lists}")
    return DataError(
        what=_table_of(problems, shown),
        where=", ".join(_without_repeats(roots)),
        expected=joined_texts(source.wanted_files() for source in sources),
        do=joined_texts(advice),
    )


def _table_of(problems: Sequence[Problem], shown: int) -> str:
    """Return the table in `problems_error`.

    shown: largest number of problems in the table.
    """
    shown_problems = problems[:shown]
    width = max(len(problem.clip) for problem in shown_problems)  # width of the column of clips
    lines = [f"{counted(len(problems), 'problem')} in the data:"]
    for problem in shown_problems:
        # `:{width}` fills a text with spaces up to the width of the column.
        lines.append(f"    {problem.clip:{width}} | {problem.what}")
        lines.append(f"    {'':{width}} |   {problem.where}")
    not_shown = len(problems) - len(shown_problems)
    if not_shown:
        lines.append(f"    ... and {not_shown} more; scripts/doctor.py --data --opt FILE lists all")
    return "\n".join(lines)


def _without_repeats(texts: Iterable[str]) -> list[str]:
    """Return each text once, in the order in which it comes first."""
    return list(dict.fromkeys(texts))


def same_files(source: Source, clips: Sequence[Clip]) -> list[Problem]:
    """Return a problem for each clip that has the same files as blurry and as sharp frames.

    Paths are compared after links are followed. The first frame of a clip is enough: if it is the
    same file in lq and gt, all frames of lq and gt come from one folder.

    Test: test_sharp_frames_behind_a_link_to_the_blurry_ones_are_refused
    """
    if source.may_share_frames or not source.dataroot_gt:
        return []
    problems = []
    for clip in clips:
        blurry = os.path.realpath(clip.lq[0])
        sharp = os.path.realpath(clip.gt[0])
        if blurry == sharp:
            do = f"correct dataroot_gt, dataroot_lq or lq_folder ({source.lq_folder})"
            problems.append(Problem(clip.name, SAME_FILES, clip.lq[0], do))
    return problems


def have_same_content(source: Source, clips: Sequence[Clip]) -> bool:
    """Return whether the sharp frames of all clips are copies of the blurry frames.

    Only the first and the last frame of each clip are compared. Two frames are enough, because
    every frame with real blur differs from its sharp frame. The comparison ends with the first
    frame that differs, so it is fast for usual data.

    Test: test_copies_of_the_blurry_frames_as_sharp_frames_are_warned_of
    """
    if source.may_share_frames or not source.dataroot_gt or not clips:
        return False
    for clip in clips:
        for frame in {0, len(clip) - 1}:  # a set, because a clip of one frame has only frame 0
            if read_bytes(clip.lq[frame]) != read_bytes(clip.gt[frame]):
                return False
    return True


def digest(kind: str, listing: Listing) -> str:
    """Return 16 hex digits that change with the name, size or time of change of any file.

    A clip cache stores the digits. So the hashed texts and their order must stay. With other
    digits, all existing caches would look outdated (test_the_digest_of_a_listing_stays).

    kind: kind of the files, e.g. "lq".
    listing: {clip: the folder with its files}.
    """
    sha256 = hashlib.sha256()
    clips = sorted(listing)
    folders = [listing[clip] for clip in clips]
    # The files are looked up in threads. The results come in the order of the folders.
    files_of_clips = map_in_threads(Folder.entries, folders)
    for clip, files in zip(clips, files_of_clips, strict=True):
        for stem, file in sorted(files.items()):
            sha256.update(f"{kind}/{clip}/{stem} {file.size} {file.mtime_ns}\n".encode())
    return sha256.hexdigest()[:16]
