"""Find the raw frame of each sharp frame of a clip, so that no spikes are made from frames of another moment."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import cv2
import numpy as np

from data.files import Frames, FrameSource
from utils.errors import DataError

WIDTH = 160  # pixels of the reduced frames that are compared
# Mean differences in grey levels: of identical frames, of a re-encoded frame, and the least that separates the
# neighbours of a re-encoded frame.
IDENTICAL = 0.02
REENCODED = 2.0
TIE = 0.1


@dataclass(frozen=True)
class Match:
    """One sharp frame, and by offset in raw frames (from raw frame `expected`) the mean difference in grey levels."""

    name: str
    expected: int
    cost: dict[int, float]

    @property
    def best(self) -> int:
        return min(self.cost, key=lambda offset: (self.cost[offset], abs(offset)))

    def fits(self, offset: int) -> bool:
        """Whether the raw frame at `offset` is about the same, and no other one is clearly more similar."""
        cost, least = self.cost.get(offset, np.inf), self.cost[self.best]
        return cost <= REENCODED and cost <= least + (IDENTICAL if least <= IDENTICAL else TIE)


def find_offset(raw: Frames, sharp: FrameSource, average: int, clip: str, where: str, given: int | None = None) -> int:
    """How many raw frames later than the middle of its exposure every sharp frame is; usually 0.

    Without an offset, sharp frame i is raw frame i * average + average // 2. given: the offset stated by the user.
    Raises DataError with the offsets found where a sharp frame matches no raw frame near that one, where the offset
    changes within the clip, and where it is not the given one.
    """
    matches, raw_greys, start = [], _Greys(raw), given or 0
    if raw.read(0).shape != sharp.read(0).shape:
        raise _wrong(clip, where, f"raw frames of {raw.read(0).shape[:2]}, sharp frames of {sharp.read(0).shape[:2]}")
    for index, stem in enumerate(sharp.stems):
        match = Match(stem, index * average + average // 2, {})
        raw_greys.forget(match.expected + start - average)
        grey = _grey(sharp.read(index))
        # An identical frame at the expected place, as in most clips, needs no search around it.
        for offset in sorted(range(start - average, start + average + 1), key=lambda o: abs(o - start)):
            if 0 <= match.expected + offset < len(raw):
                other = raw_greys.at(match.expected + offset)
                match.cost[offset] = float(np.abs(other - grey).mean())
                if offset == start and match.cost[offset] <= IDENTICAL:
                    break
        if not match.cost:
            last = match.expected + start
            raise _wrong(clip, where, f"sharp frame {stem} would be raw frame {last} of only {len(raw)}")
        matches.append(match)
    candidates = [start, *(offset for offset, _ in Counter(match.best for match in matches).most_common())]
    offset = next((o for o in candidates if all(match.fits(o) for match in matches)), None)
    if offset is None or (given is not None and offset != given):
        raise _wrong(clip, where, _runs(matches))
    return offset


class _Greys:
    """Reduced grey frames of a clip, each decoded once; a video in order, as it cannot seek backwards cheaply."""

    def __init__(self, frames: Frames) -> None:
        self._frames, self._greys, self._last = frames, {}, -1

    def at(self, index: int) -> np.ndarray:
        is_folder = isinstance(self._frames, FrameSource) and not self._frames.is_video
        first = index if is_folder else self._last + 1
        for number in range(min(first, index), index + 1):
            if number not in self._greys:
                self._greys[number] = _grey(self._frames.read(number))
                self._last = max(self._last, number)
        return self._greys[index]

    def forget(self, before: int) -> None:
        """Free the frames before this one: no later sharp frame is compared with them."""
        for number in [number for number in self._greys if number < before]:
            del self._greys[number]


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
        far = "" if is_near else f", {cost:.1f} grey levels off (at most {REENCODED:g})"
        texts.append(f"{names} at offset {best:+d}{far}")
    more = f"; and {len(texts) - 8} further changes" if len(texts) > 8 else ""
    return f"sharp frames {'; '.join(texts[:8])}{more}"


def _wrong(clip: str, where: str, what: str) -> DataError:
    return DataError(
        f"clip {clip}: its sharp frames are not the middle raw frames: {what}", where,
        "sharp frame i is raw frame i * average + average // 2 + offset, with one offset for the clip",
        "correct --source or --average, or give the offset (--offset CLIP=N)",
    )  # fmt: skip
