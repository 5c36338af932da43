"""Refuse clips that do not fit the network: its scale, and its number of sharp instants.

The scale is the size of a sharp frame over the size of a blurry frame, e.g. 4 for super-resolution.
Sharp instants are several sharp frames for each blurry frame, at several moments of its exposure.

The main programs call `check_clips` when data and network are known, before the first step. Without
this check, a wrong scale would end in an error of torch, or in a loss between pictures of different
sizes.

What must stay: the refusals. Free to change: their texts, together with the tests.

Tests: tests/parts/data/test_readers.py, tests/stories/test_bad_input.py
"""

import inspect
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.clips.clip_lists import one_of_each_form
from data.clips.readers import Reader
from utils.errors import DataError, OptionError
from utils.words import counted


def check_clips(dataset: Any, split: str, scale: int, instants: int | None) -> None:
    """Refuse clips if their scale or number of sharp instants does not fit the network.

    dataset: a dataset of this project (`ClipDataset`), or a test set that a user adds
        (docs/extending.md, test set). If the dataset has an attribute `clips`, the clips are
        checked. If not, the objects that its method `readers` returns are checked. Each object
        reads one clip, and has the members of `Reader`.
    split: "train" or "test", for the message.
    scale: scale of the network.
    instants: number of sharp frames that the network gives for each blurry frame. None accepts any
        number.
    Raises DataError.
    """
    clips = getattr(dataset, "clips", None)
    if clips is None and hasattr(dataset, "readers"):
        clips = dataset.readers()
        _refuse_other_readers(clips, split)
        _refuse_names(clips, split)
    if clips is None:
        return  # a user's training set may have neither clips nor readers to check
    # Check one clip for each combination of sizes, number of instants and spike settings.
    for clip in one_of_each_form(clips):
        _refuse_other_scale(clip, split, scale)
        _refuse_other_instants(clip, split, instants)


def _refuse_other_scale(clip: Any, split: str, scale: int) -> None:
    """Refuse a clip whose sharp frames are not `scale` times as large as its blurry frames."""
    if not clip.has_gt or clip.scale == scale:
        return
    gt_height, gt_width = clip.gt_size
    height, width = clip.size
    sizes = f"gt of {gt_height} x {gt_width} for lq of {height} x {width}"
    raise DataError(
        what=f"datasets.{split} has {sizes} in clip {clip.name}, but scale is {scale}",
        where=clip.gt_place,
        expected=f"sharp frames {scale} times as large as the lq frames",
        do=f"correct datasets.{split}.dataroot_gt or dataroot_lq, or scale and netG.upscale",
    )


def _refuse_other_instants(clip: Any, split: str, instants: int | None) -> None:
    """Refuse a clip with another number of sharp instants than the network has.

    A clip without sharp instants is accepted, because the loss or the test may need none.

    instants: number of sharp frames that the network gives for each blurry frame. None accepts any
    number.
    """
    if not instants or clip.instants in (0, instants):
        return
    found = f"{clip.instants} sharp frames for each blurry frame in clip {clip.name}"
    raise DataError(
        what=f"datasets.{split} has {found}, but netG.out_instants is {instants}",
        where=clip.gt_place,
        expected=f"{instants} sharp frames for each blurry frame",
        do=f"correct netG.out_instants, or datasets.{split}.dataroot_gt_instants",
    )


def _refuse_other_readers(clips: Sequence[Any], split: str) -> None:
    """Refuse clips of a user's test set that lack a member of `Reader`.

    clips: the result of `readers` of the test set.
    split: "train" or "test", for the message.
    """
    # vars(Reader) has the methods, the properties, and the attributes with a default. vars(Reader)
    # lacks `stems` and `name`, because the class gives both a type but no value.
    names_of_members = (*vars(Reader), "stems", "name")
    needed = [name for name in names_of_members if not name.startswith("_")]
    absent = object()  # `getattr_static` returns `absent` for a missing member
    for clip in clips:
        missing = []
        for name in needed:
            # Only find out whether the member exists. `hasattr` would compute a property, and so
            # might read a frame.
            if inspect.getattr_static(clip, name, absent) is absent:
                missing.append(name)
        if missing:
            raise OptionError(
                what=f"a clip of datasets.{split} ({type(clip).__name__}) lacks "
                f"{', '.join(missing)}",
                where=f"datasets.{split}.dataset_type",
                expected="readers whose class is derived from Reader of data/clips/readers.py",
                do="derive the class of the clips from Reader (docs/extending.md, test set)",
            )


def _refuse_names(clips: Sequence[Any], split: str) -> None:
    """Refuse a user's test set without clips, and clips whose results would be the same files.

    A result is the file <name of the clip>/<name of the frame>.png.
    """
    where = f"datasets.{split}.dataset_type"
    if not clips:
        raise DataError(
            what=f"datasets.{split} has no clip",
            where=where,
            expected="at least one reader",
            do="correct `readers` of the data set (docs/extending.md, test set)",
        )
    _refuse_repeated([clip.name for clip in clips], f"clips of datasets.{split}", where)
    for clip in clips:
        stems = [str(stem) for stem in clip.stems]
        _refuse_repeated(stems, f"frames of clip {clip.name}", where)
    for clip in clips:
        path = Path(clip.name)
        if path.is_absolute() or ".." in path.parts:
            raise DataError(
                what=f"the name of clip {clip.name!r} leads out of the folder of the results",
                where=where,
                expected='a name without ".." that does not begin with "/"',
                do="correct `name` of the readers (docs/extending.md, test set)",
            )


def _refuse_repeated(names: Sequence[str], kind: str, where: str) -> None:
    """Refuse names if two of them are equal. kind: what is named, for the message."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        occur = "occurs" if len(repeated) == 1 else "occur"
        raise DataError(
            what=f"{counted(len(repeated), 'name')} of {kind} {occur} twice, "
            f"{repeated[0]!r} among them",
            where=where,
            expected="a name of its own for each clip, and for each frame of a clip",
            do="correct `name` and `stems` of the readers (docs/extending.md, test set)",
        )
