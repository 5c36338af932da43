"""Several sharp frames of each exposure, <frame>_0, <frame>_1, ...: K of them, of which the middle one is gt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torch.utils.data import Dataset

from data.names import FrameKey, frame_key
from data.roots import FileEntry
from utils.errors import DataError


def find_instants(
    files: Mapping[str, FileEntry], names: Mapping[FrameKey, str], frames: Sequence[FrameKey]
) -> tuple[tuple[str, ...], list[str]]:
    """The paths of the instants of `frames`, in the order of time, and what is wrong with them.

    files: stem -> file of a clip's instants; names: of the frames, for the text.
    """
    found: dict[FrameKey, dict[int, str]] = {key: {} for key in frames}
    for stem, file in files.items():
        frame, _, number = stem.rpartition("_")
        if number.isdecimal() and frame_key(frame) in found:
            found[frame_key(frame)][int(number)] = file.path
    count = Counter(map(len, found.values())).most_common(1)[0][0]
    odd = [names[key] for key, instants in found.items() if sorted(instants) != list(range(count))]
    paths = tuple(path for instants in found.values() for _, path in sorted(instants.items()))
    if count % 2 == 0:
        return paths, [f"gt_instants has {count} files <frame>_0, ... for a frame of lq: the number must be odd"]
    wrong = f"gt_instants has other files than _0 ... _{count - 1} for {len(odd)} frames, such as {', '.join(odd[:3])}"
    return paths, [wrong] if odd else []


def instants_of(count: int, frames: Sequence[int], backwards: Iterable[bool]) -> list[int]:
    """Positions in Clip.gt_instants of the `count` instants of each frame, in the order of playing."""
    forwards = range(count)
    return [i * count + k for i, back in zip(frames, backwards, strict=True) for k in forwards[:: -1 if back else 1]]


def check_instants(dataset: Dataset, instants: int, split: str) -> None:
    """Raise DataError where clips have another number of sharp instants than the network restores, `instants`."""
    wrong = [clip for clip in getattr(dataset, "clips", ()) if clip.instants not in (0, instants)]
    if wrong:
        clip = wrong[0]
        raise DataError(
            f"datasets.{split} has {clip.instants} sharp frames for each blurry one in clip {clip.name}, but "
            f"netG.out_instants is {instants}", clip.gt_instants[0], f"{instants} for each",
            f"set netG.out_instants to {clip.instants}, or correct datasets.{split}.dataroot_gt_instants",
        )  # fmt: skip
