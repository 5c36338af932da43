"""Which raw frames the sharp frames of a data set are: the guard against spikes of another moment."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import cv2
import numpy as np

from data.raw_video import FolderFrames, Frames
from utils.errors import DataError

WIDTH = 160  # pixels of the pictures that are compared
SAME = 0.02  # grey levels on average: the same frame, with the same bytes
NEAR = 2.0  # the same frame, coded again
TIE = 0.1  # a difference below which neighbours of a frame that was coded again cannot be told apart


@dataclass(frozen=True)
class Match:
    """What one sharp frame resembles. cost: mean difference in grey levels by offset, in raw frames."""

    name: str
    expected: int
    cost: dict[int, float]

    @property
    def best(self) -> int:
        return min(self.cost, key=lambda offset: (self.cost[offset], abs(offset)))

    def fits(self, offset: int) -> bool:
        """Whether the raw frame at `offset` is near to identical, and none is clearly nearer."""
        cost, least = self.cost.get(offset, np.inf), self.cost[self.best]
        return cost <= NEAR and cost <= least + (SAME if least <= SAME else TIE)


def find_offset(raw: Frames, sharp: FolderFrames, average: int, clip: str, where: str, given: int | None = None) -> int:
    """Raw frames by which all sharp frames are later than the middle ones of their exposures: mostly 0.

    Sharp frame i should be raw frame i * average + average // 2. given: the offset that the user says it has.
    Raises DataError with the numbers where a sharp frame is no raw frame near that one, where the offset changes
    within the clip, and where it is not the one given.
    """
    matches, raw_greys, start = [], _Greys(raw), given or 0
    if raw.read(0).shape != sharp.read(0).shape:
        raise _wrong(clip, where, f"raw frames of {raw.read(0).shape[:2]}, sharp frames of {sharp.read(0).shape[:2]}")
    for index, path in enumerate(sharp.paths):
        match = Match(path.stem, index * average + average // 2, {})
        grey = _grey(sharp.read(index))
        # Most clips are right: an identical frame where it should be needs no search around it.
        for offset in sorted(range(start - average, start + average + 1), key=lambda o: abs(o - start)):
            if 0 <= match.expected + offset < len(raw):
                other = raw_greys.at(match.expected + offset)
                match.cost[offset] = float(np.abs(other - grey).mean())
                if offset == start and match.cost[offset] <= SAME:
                    break
        if not match.cost:
            last = match.expected + start
            raise _wrong(clip, where, f"sharp frame {path.stem} would be raw frame {last} of only {len(raw)}")
        matches.append(match)
    candidates = [start, *(offset for offset, _ in Counter(match.best for match in matches).most_common())]
    offset = next((o for o in candidates if all(match.fits(o) for match in matches)), None)
    if offset is None or (given is not None and offset != given):
        raise _wrong(clip, where, _runs(matches))
    return offset


class _Greys:
    """Small grey pictures of a clip, each frame decoded once; videos in order, as jumping back would decode anew."""

    def __init__(self, frames: Frames) -> None:
        self._frames, self._greys = frames, {}

    def at(self, index: int) -> np.ndarray:
        first = index if isinstance(self._frames, FolderFrames) else max(self._greys, default=-1) + 1
        for number in range(min(first, index), index + 1):
            if number not in self._greys:
                self._greys[number] = _grey(self._frames.read(number))
        return self._greys[index]


def _grey(frame: np.ndarray) -> np.ndarray:
    height, width = frame.shape[:2]
    factor = max(1, width // WIDTH)
    size = (max(1, width // factor), max(1, height // factor))
    return cv2.resize(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), size, interpolation=cv2.INTER_AREA).astype(np.float32)


def _runs(matches: list[Match]) -> str:
    """Which frames are at which offset: "000000-000007 at offset +1 (0.0 grey levels), ..."."""
    texts = []
    for (best, is_near), group in itertools.groupby(matches, key=lambda m: (m.best, m.fits(m.best))):
        frames = list(group)
        names = frames[0].name + (f"-{frames[-1].name}" if len(frames) > 1 else "")
        cost = max(match.cost[match.best] for match in frames)
        texts.append(
            f"{names} at offset {best:+d}" + ("" if is_near else f", {cost:.1f} grey levels off (at most {NEAR:g})")
        )
    return f"sharp frames {'; '.join(texts[:8])}" + (
        f"; and {len(texts) - 8} further changes" if len(texts) > 8 else ""
    )


def _wrong(clip: str, where: str, what: str) -> DataError:
    return DataError(
        f"clip {clip}: its sharp frames are not the middle raw frames: {what}", where,
        "sharp frame i is raw frame i * average + average // 2 + offset, with one offset for the clip",
        "correct --source or --average, give the offset (--offset CLIP=N), or leave the clip out (--leave-out CLIP)",
    )  # fmt: skip
