"""Ask for a property of all clips of a dataset, without making the clips.

A dataset holds its clips as a table (`ClipTable`), as the tables of several roots (`JoinedClips`),
or as a list. Each function has a branch for each of the three cases. For a table, the function
reads the arrays of the table, because making all clips would take minutes for large data sets. Only
`one_of_each_form` makes some clips. A new function needs the same three branches.

What must stay: the order of the clips, because training samples are numbered through all clips.
tests/parts/data/test_kept.py compares the results for the three kinds of sequences.

Tests: tests/parts/data/test_kept.py
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from data.clip import Clip
from data.clips.ranges import begins_of, range_of
from data.clips.table import Clips, ClipTable


class JoinedClips(Clips):
    """The clips of several roots, one root after the other."""

    def __init__(self, clips_of_roots: Sequence[Sequence[Clip]]) -> None:
        self.clips_of_roots = clips_of_roots
        # Number of the first clip of each root, then the number of all clips.
        self.begins = begins_of([len(clips) for clips in clips_of_roots])

    def __len__(self) -> int:
        return int(self.begins[-1])

    def _clip(self, number: int) -> Clip:
        root = range_of(number, self.begins)  # number of the root that has the clip
        number_in_root = number - int(self.begins[root])
        return self.clips_of_roots[root][number_in_root]


def join_clips(clips_of_roots: Sequence[Sequence[Clip]]) -> Sequence[Clip]:
    """Return the clips of several roots as one sequence, one root after the other.

    The order of the roots must stay, because training samples are numbered through all clips.
    """
    if len(clips_of_roots) == 1:
        return clips_of_roots[0]
    # If a root has a table, do not make a plain list, because a list would make all its clips.
    if any(isinstance(clips, Clips) for clips in clips_of_roots):
        return JoinedClips(clips_of_roots)
    all_clips: list[Clip] = []
    for clips in clips_of_roots:
        all_clips.extend(clips)
    return all_clips


def frame_counts(clips: Sequence[Clip]) -> list[int]:
    """Return the number of frames of each clip, in the order of the clips.

    data/clip_dataset.py numbers the training samples by these counts. If the counts or their order
    changed, a resumed run would get different samples.
    """
    if isinstance(clips, ClipTable):
        return clips.frame_counts.tolist()
    if isinstance(clips, JoinedClips):
        counts: list[int] = []
        for clips_of_root in clips.clips_of_roots:
            counts.extend(frame_counts(clips_of_root))
        return counts
    return [len(clip) for clip in clips]


def scales_of(clips: Sequence[Clip]) -> list[int]:
    """Return the scale of each clip: height of a sharp frame over height of a blurry frame.

    `other_scales` (data/clips/manifest.py) reports the clips whose scale differs.
    """
    if isinstance(clips, ClipTable):
        # `sizes` is (clips, 4): height and width of lq, height and width of gt.
        height, _, gt_height, _ = clips.sizes.T  # each (clips,)
        return (gt_height // height).tolist()
    if isinstance(clips, JoinedClips):
        scales: list[int] = []
        for clips_of_root in clips.clips_of_roots:
            scales.extend(scales_of(clips_of_root))
        return scales
    return [clip.scale for clip in clips]


def planes_of(clips: Sequence[Clip]) -> set[int]:
    """Return the different numbers of planes that the spike files of the clips have.

    E.g. {49, 56} if most files have 56 planes and some have 49. The result is empty without spikes.
    """
    if isinstance(clips, ClipTable):
        if not clips.spike_columns:
            return set()
        return set(np.unique(clips.spike_columns["planes"]).tolist())
    plane_counts: set[int] = set()
    if isinstance(clips, JoinedClips):
        for clips_of_root in clips.clips_of_roots:
            plane_counts.update(planes_of(clips_of_root))
        return plane_counts
    for clip in clips:
        plane_counts.update(clip.planes)
    return plane_counts


def one_of_each_form(clips: Sequence[Any]) -> Iterator[Any]:
    """Yield one clip of each form. Clips of one form share properties, e.g. the scale.

    Clips of a table have one form if they have the same sizes, the same number of sharp instants
    and the same spike settings. E.g. of three clips with the heights 720, 720 and 480, the first
    and the third are yielded. If the clips are in no table, every clip is yielded.

    Test: test_one_of_each_form_has_the_sizes_of_all_clips
    """
    if isinstance(clips, ClipTable):
        for number in clips.first_of_each_form():
            yield clips[number]
    elif isinstance(clips, JoinedClips):
        for clips_of_root in clips.clips_of_roots:
            yield from one_of_each_form(clips_of_root)
    else:
        yield from clips
