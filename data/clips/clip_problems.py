"""Collect the problems of one clip, so that one run of the check can show all of them.

data/clips/clip_check.py and the modules that it calls report to a `ClipProblems`. Its list is the
output of the check.

What must stay: the order of the problems, because tests compare the order. The names of clips and
folders in the problems must stay, too, because these names lead the user to the files. Free to
change: the number of names in a message.

Tests: tests/parts/data/test_manifest.py, tests/parts/data/test_preflight.py
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from data.clips.listed_files import is_lmdb
from data.clips.source import Problem, Source

# Largest number of names in a message. More names would make the message unreadable.
MOST_NAMES = 5


@dataclass
class ClipProblems:
    """The problems of one clip.

    clip: name of the clip.
    source: where its data set is, and how its spikes are read.
    found: the problems so far. Every step of the check may add a problem, and none removes one.
    """

    clip: str
    source: Source
    found: list[Problem]

    def report(self, what: str, where: str, do: str = "") -> None:
        """Add a problem.

        where: a path, or a kind such as "lq". For a kind, the problem names the folder of the clip
        with the files of this kind, e.g. "/data/train/clip_a".
        do: what the user should do. "" if `what` makes it clear already.
        """
        kinds = self.source.kinds()
        if where in kinds:
            root = kinds[where].root.rstrip("/")
            if self.source.is_user_clip:
                where = root  # a user's single clip has no folder within a root
            elif is_lmdb(root):
                where = f"{root}::{self.clip}"
            else:
                where = os.path.join(root, self.clip)
        self.found.append(Problem(self.clip, what, where, do))


def names_in_short(names: Iterable[str], limit: int = MOST_NAMES) -> str:
    """Return the first `limit` names, separated by commas, and the number of all if it is larger.

    E.g. ["a", "b", "c"] with limit 2 gives "a, b, ... (3 in all)".
    """
    names = list(names)
    shown = ", ".join(names[:limit])
    if len(names) > limit:
        shown += f", ... ({len(names)} in all)"
    return shown


def most_frequent(values: Iterable[int]) -> int:
    """Return the most frequent value. If several values are equally frequent, return the first.

    values: at least one value.
    """
    value, _ = Counter(values).most_common(1)[0]  # the value, and how often it occurs
    return value
