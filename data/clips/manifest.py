"""From the files below the roots of a dataset to the records of its clips, and its problems.

Two layouts are read. GoPro is published as <root>/<clip>/{blur,sharp,spike}/<frame>. KAIR has one
root for each kind of file, with <root>/<clip>/<frame>. Each root may have either layout.

`scan` checks a data root by names and sizes alone, with `ClipCheck` for each clip. The data check
before a run (data/clips/preflight.py) uses the same functions and also looks into the files.
`raise_problems` makes one error of all problems, with a table.

Tests: tests/parts/data/test_manifest.py, tests/parts/data/test_preflight.py
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from data.clip import Clip
from data.clips.clip_check import ClipCheck, Size, most_frequent
from data.clips.files import FileEntry, Folder, Listing, read_bytes
from data.clips.source import Problem, Source, joined_errors, joined_texts, list_source
from data.clips.threads import mapped
from utils.errors import DataError
from utils.files import natural_key

# {val_partition: REDS training clips that it keeps for validation}, as in BasicSR and KAIR.
HELD_OUT = {
    "REDS4": frozenset(("000", "011", "015", "020")),
    "official": frozenset(map(str, range(240, 270))),
}
# Number of problems that an error shows. scripts/doctor.py lists all.
MOST_PROBLEMS = 30
SAME_FILES = (
    "gt and lq are the same files, so a network would learn to change nothing: the sharp frames of "
    "the clip are also its blurry ones"
)
SAME_CONTENT = "the sharp frames of all clips are copies of the blurry ones"


def scan(source: Source) -> tuple[list[Clip], list[Problem]]:
    """Return the clips without problems, and the problems of the others.

    Reads names, sizes and the header of the first image of each clip.
    Raises DataError if a whole root or the meta file is missing.
    """
    found = list_source(source)
    names = names_of(source, found)
    clips: list[Clip] = []
    problems: list[Problem] = []
    for name, files in zip(names, entries_of(source, found, names), strict=True):
        check = ClipCheck(name, source, files, usual_sizes(source, clips))
        listed = source.listed[name] if source.listed else None
        clip = check.run(listed)
        problems += check.problems
        if clip and not check.problems:
            clips.append(clip)
    return clips, problems + other_scales(clips)


def names_of(source: Source, found: Mapping[str, Listing]) -> list[str]:
    """Return the names of the clips in natural order.

    With a meta file, these are the clips that it lists. Otherwise these are all clips that have
    files of any kind.
    found: {kind: its files}.
    """
    if source.listed:
        names = set(source.listed)
    else:
        names = set()
        for listing in found.values():
            names.update(listing)
    return sorted(names - source.left_out, key=natural_key)


def entries_of(
    source: Source, found: Mapping[str, Listing], names: Sequence[str]
) -> Iterator[dict[str, dict[str, FileEntry] | None]]:
    """Yield {kind: {stem: file}} of each clip; {kind: None} if the clip has no folder of the kind.

    found: {kind: its files}. names: names of the clips.
    Size and time of change of every file are looked up, in threads. Raises DataError for a link
    whose target is gone.
    """

    def of_clip(name: str) -> dict[str, dict[str, FileEntry] | None]:
        files: dict[str, dict[str, FileEntry] | None] = {}
        for kind, listing in found.items():
            folder = listing.get(name)
            files[kind] = None if folder is None else folder.entries()
        return files

    try:
        yield from mapped(of_clip, names)
    except DataError as e:
        raise gone_error(source, found) from e


def gone_error(source: Source, found: Mapping[str, Listing]) -> DataError:
    """Return the error for links whose targets are gone: the first one of each kind of file.

    found: {kind: its files}.
    """
    errors = []
    for listing in found.values():
        try:
            for folder in listing.values():
                folder.entries()
        except DataError as e:
            errors.append(e)
    return joined_errors(errors, source.layout())


def usual_sizes(source: Source, clips: Sequence[Clip]) -> tuple[Size, Size] | None:
    """Return the sizes of lq and gt that need not be read, or None if each clip must be read.

    Vimeo-90K has 64,612 clips of one size. Reading a header of each would take minutes, so the
    sizes of the first clip are taken for all.
    clips: the clips without problems so far.
    """
    if source.septuplets and clips:
        return clips[0].size, clips[0].gt_size
    return None


def other_scales(clips: Sequence[Clip]) -> list[Problem]:
    """Find clips whose scale differs from the scale of most clips, because a network has one scale.

    The scale is the side of gt over the side of lq.
    """
    if not clips:
        return []
    scales = [clip.scale for clip in clips]
    usual = most_frequent(scales)
    problems = []
    for number, scale in enumerate(scales):
        if scale != usual:
            clip = clips[number]
            what = f"gt is {scale} times as large as lq, that of most clips is {usual} times"
            problems.append(Problem(clip.name, what, clip.gt[0]))
    return problems


def raise_problems(
    found: Iterable[tuple[Source, Sequence[Problem]]],
    shown: int = MOST_PROBLEMS,
    unreadable: Sequence[DataError] = (),
) -> None:
    """Raise one DataError with a table of the problems of all sources, if there are any.

    found: (data root, its problems) for each root. shown: number of problems that the table shows.
    unreadable: errors of whole roots that cannot be read. They become part of the same error.
    """
    errors = list(unreadable)
    sources = []
    problems: list[Problem] = []
    for source, of_source in found:
        if of_source:
            sources.append(source)
            problems += of_source
    if problems:
        errors.append(problems_error(sources, problems, shown))
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

    shown: see `raise_problems`.
    """
    table = problems[:shown]
    width = max(len(problem.clip) for problem in table)
    lines = [f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in the data:"]
    for problem in table:
        lines.append(f"    {problem.clip:{width}} | {problem.what}")
        lines.append(f"    {'':{width}} |   {problem.where}")
    left = len(problems) - len(table)
    if left:
        lines.append(f"    ... and {left} more; scripts/doctor.py --data --opt FILE lists all")

    roots: list[str] = []
    lists: list[str] = []  # where a clip is removed from
    for source in sources:
        roots += source.roots().values()
        lists.append(f"the meta list {source.meta}" if source.meta else "the folders")
    # The advice of the problems that have one, and then the usual advice for all others.
    advice = [problem.do for problem in problems if problem.do]
    if len(advice) < len(problems):
        # dict.fromkeys leaves out what comes again, and keeps the order.
        places = " and ".join(dict.fromkeys(lists))
        advice.append(f"restore these files, or remove the clips from {places}")
    return DataError(
        what="\n".join(lines),
        where=", ".join(dict.fromkeys(roots)),
        expected=joined_texts(source.wanted() for source in sources),
        do=joined_texts(advice),
    )


def same_files(source: Source, clips: Sequence[Clip]) -> list[Problem]:
    """Find clips whose blurry and sharp frames are the same files.

    Paths are compared after links are followed. The first frame of a clip is enough.
    """
    if source.may_share_frames or not source.dataroot_gt:
        return []
    problems = []
    for clip in clips:
        if os.path.realpath(clip.lq[0]) == os.path.realpath(clip.gt[0]):
            do = f"correct dataroot_gt, dataroot_lq or lq_folder ({source.lq_folder})"
            problems.append(Problem(clip.name, SAME_FILES, clip.lq[0], do))
    return problems


def have_same_content(source: Source, clips: Sequence[Clip]) -> bool:
    """Whether the sharp frames of all clips are copies of the blurry frames.

    Only the first and the last frame of each clip are compared, because in a clip with real blur
    every frame differs from its sharp frame. The first clip that differs ends the comparison.
    """
    if source.may_share_frames or not source.dataroot_gt or not clips:
        return False
    for clip in clips:
        for frame in {0, len(clip) - 1}:
            if read_bytes(clip.lq[frame]) != read_bytes(clip.gt[frame]):
                return False
    return True


def digest(listings: dict[str, Listing]) -> str:
    """Return 16 hex digits that change with the name, size or time of change of any file.

    A clip cache stores them, so whoever changes the hashed texts makes all caches stale.
    """
    table = hashlib.sha256()
    for kind, listing in sorted(listings.items()):
        clips = sorted(listing.items())
        for (clip, _), files in zip(clips, mapped(_entries, clips), strict=True):
            for stem, file in sorted(files.items()):
                table.update(f"{kind}/{clip}/{stem} {file.size} {file.mtime_ns}\n".encode())
    return table.hexdigest()[:16]


def _entries(named: tuple[str, Folder]) -> dict[str, FileEntry]:
    """Return {stem: file} of a clip. named: its (name, folder)."""
    _, folder = named
    return folder.entries()
