"""From the roots of a dataset to the records of its clips, checked by their names and sizes.

Layouts: <root>/<clip>/{blur,sharp,spike}/<frame>, as GoPro is published, or <root>/<clip>/<frame>
with one root per kind of file, as in KAIR. Each root may have either layout.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from data.clip import Clip
from data.clips.clip_check import ClipCheck, Size
from data.clips.files import FileEntry, Folder, Listing, read_bytes
from data.clips.source import Problem, Source, joined_errors, joined_texts, list_source
from data.clips.threads import mapped
from utils.errors import DataError
from utils.files import natural_key

# REDS training clips that a val_partition keeps for validation.
HELD_OUT = {
    "REDS4": frozenset(("000", "011", "015", "020")),
    "official": frozenset(map(str, range(240, 270))),
}
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
        clip = check.run(source.listed[name] if source.listed else None)
        problems += check.problems
        if clip and not check.problems:
            clips.append(clip)
    return clips, problems + other_scales(clips)


def names_of(source: Source, found: Mapping[str, Listing]) -> list[str]:
    """Return the names of the clips in natural order. found: the files of each kind."""
    names = set(source.listed or set().union(*found.values()))
    return sorted(names - source.left_out, key=natural_key)


def entries_of(
    source: Source, found: Mapping[str, Listing], names: Sequence[str]
) -> Iterator[dict[str, dict[str, FileEntry] | None]]:
    """Yield {kind: {stem: file}} of each clip; None in place of the files if it has no folder.

    Every file is asked for its state. Raises DataError for a link whose target is gone.
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
    """Return the error for links whose targets are gone: the first one of each kind of file."""
    errors = []
    for listing in found.values():
        try:
            for folder in listing.values():
                folder.entries()
        except DataError as e:
            errors.append(e)
    return joined_errors(errors, source.layout())


def usual_sizes(source: Source, clips: Sequence[Clip]) -> tuple[Size, Size] | None:
    """Return the sizes of lq and gt that a clip has if nothing else is known.

    Vimeo-90K has 64,612 clips of one size. Reading a header of each would take minutes.
    """
    if source.septuplets and clips:
        return clips[0].size, clips[0].gt_size
    return None


def other_scales(clips: Sequence[Clip]) -> list[Problem]:
    """Find clips with another number of gt pixels per lq pixel: a network has one scale."""
    if not clips:
        return []
    scales = [clip.scale for clip in clips]
    usual = Counter(scales).most_common(1)[0][0]
    problems = []
    for number, scale in enumerate(scales):
        if scale != usual:
            clip = clips[number]
            what = f"gt is {scale} times as large as lq, that of most clips is {usual} times"
            problems.append(Problem(clip.name, what, clip.gt[0]))
    return problems


def raise_problems(
    found: Iterable[tuple[Source, Sequence[Problem]]],
    shown: int = 30,
    unreadable: Sequence[DataError] = (),
) -> None:
    """Raise one DataError with a table of the problems of all sources, if there are any.

    shown: number of problems that the table shows.
    unreadable: what is wrong with whole sources; it belongs to the same error.
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
    sources: Sequence[Source], problems: Sequence[Problem], shown: int = 30
) -> DataError:
    """Return the error for problems of several sources. shown: see `raise_problems`."""
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
    lists: list[str] = []
    for source in sources:
        roots += source.roots().values()
        lists.append(f"the meta list {source.meta}" if source.meta else "the folders")
    # Problems with advice of their own, and once the advice for all others.
    advice = [problem.do for problem in problems if problem.do]
    if len(advice) < len(problems):
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

    Paths are compared after links are followed.
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
    """Whether the first and last sharp frame of each clip is a copy of its blurry frame."""
    if source.may_share_frames or not source.dataroot_gt or not clips:
        return False
    for clip in clips:
        # Two frames are enough: a clip of real blur differs in each.
        for frame in {0, len(clip) - 1}:
            if read_bytes(clip.lq[frame]) != read_bytes(clip.gt[frame]):
                return False
    return True


def digest(listings: dict[str, Listing]) -> str:
    """Return 16 hex digits that change with the name, size or time of change of any file."""
    table = hashlib.sha256()
    for kind, listing in sorted(listings.items()):
        clips = sorted(listing.items())
        for (clip, _), files in zip(clips, mapped(_entries, clips), strict=True):
            for stem, file in sorted(files.items()):
                table.update(f"{kind}/{clip}/{stem} {file.size} {file.mtime_ns}\n".encode())
    return table.hexdigest()[:16]


def _entries(clip: tuple[str, Folder]) -> dict[str, FileEntry]:
    return clip[1].entries()
