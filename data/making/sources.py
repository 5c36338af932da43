"""Find the sources of made clips: folders of images, videos and photographs, and their parts.

    find_sources   finds the sources
    cuts_of        with a rig (two simulated cameras that record the source): chooses the parts of
                   a source that are recorded, one for each clip

A `Recipe` (recipe.py) has the settings of the made clips. A `Cut` (video_parts.py) is a part of a
source. It has three numbers: the first frame of the part, how many frames of the video are averaged
to a frame of the clip, and the shorter side of the scaled frames.

The program runs `cuts_of` in several processes, so the arguments and the result can be pickled. If
a source cannot be used, `cuts_of` returns the error and does not raise it, so that the program
continues with the other sources.

What must stay: the same source and recipe give the same parts. If the parts must change, raise
VERSION in data/making/recipe.py.
Free to change: the texts, together with the tests that quote them.

Tests: tests/parts/scripts/test_prepare_gopro_spike.py
"""

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from data.clip import checked_name
from data.clips.user_folders import clips_in
from data.clips.user_frames import FrameSource
from data.making.recipe import Recipe
from data.making.video_parts import Cut, find_cuts
from utils.errors import DataError
from utils.image import IMAGE_SUFFIXES
from utils.name_order import natural_key
from utils.random_streams import random_stream

# Names of the folders of --source that are kept apart, also in the made data set.
SPLITS = ("train", "test")
# The shorter side of the scaled frames is at least this many times the side of the crop. With 1,
# the crop could not move along the shorter side. With a larger value, the frames and the motion in
# them would have more pixels, so fewer parts of fast videos could be used.
LEAST_SIDE_PER_CROP = 1.1


class ClipSource(NamedTuple):
    """The source of a clip.

    With a rig (two simulated cameras), several clips may be made from one source.
    """

    name: str  # name of the file or folder, without suffix
    path: Path  # a folder of images, a video file or, with a rig, a photograph
    split: str  # "train" or "test" if the source has such folders, else ""

    @property
    def is_photo(self) -> bool:
        """Return whether the source is a single image file."""
        return self.path.suffix.lower() in IMAGE_SUFFIXES and self.path.is_file()


def find_sources(path: Path, photos: bool = False) -> list[ClipSource]:
    """Return the sources in a folder, or in its folders `train` and `test`.

    path: --source, a folder or one file. photos: whether image files are sources too.
    Raises DataError if there is no source, and if two sources have the same name.
    """
    if path.is_file():
        return [ClipSource(path.stem, path, split="")]
    # The folders to search, as (folder, name of the split).
    roots = []
    for split in SPLITS:
        folder = path / split
        if folder.is_dir():
            roots.append((folder, split))
    if not roots and path.is_dir():
        roots = [(path, "")]

    # Folders of images and videos come first, then photographs, because clips are made and shown in
    # this order. `clips_in` warns of files that it cannot read as a clip. The second loop below
    # reads the photographs, so `also_read` names their endings, and `clips_in` does not warn of
    # photographs.
    sources = []
    photo_endings = IMAGE_SUFFIXES if photos else ()
    for root, split in roots:
        for name, file_or_folder in clips_in(root, also_read=photo_endings):
            sources.append(ClipSource(name, file_or_folder, split))
    if photos:
        for root, split in roots:
            for file_name in sorted(os.listdir(root), key=natural_key):  # "2.jpg" before "10.jpg"
                file = root / file_name
                source = ClipSource(file.stem, file, split)
                if source.is_photo:
                    sources.append(source)

    # The names become names of folders, so a name that no folder can have is refused.
    for source in sources:
        checked_name(source.name, str(path))
    _refuse_no_source(sources, path)
    _refuse_equal_names(sources, path)
    return sources


# ---- Parts of a source -------------------------------------------------------------------------


def cuts_of(source: ClipSource, recipe: Recipe) -> list[Cut] | DataError:
    """Return the parts of a source that a rig records, at most `recipe.clips`.

    A rig is a pair of simulated cameras. recipe: the settings of the made clips.

    If the source cannot be used, a DataError is returned and not raised, so that the program goes
    on with the other sources.
    """
    try:
        return _find_cuts_of(source, recipe)
    except DataError as e:
        return e


def _find_cuts_of(source: ClipSource, recipe: Recipe) -> list[Cut]:
    """Return the parts of a source that a rig (two simulated cameras) records.

    Raises DataError if there are none.

    The same source and recipe give the same parts on every machine, because `random_stream` gives
    the same numbers everywhere. A change of the order of the draws would change the data sets, and
    would need a new VERSION (recipe.py).
    """
    # This changes OpenCV in the whole process. The program runs one process on each core, so more
    # threads would compete for the cores.
    cv2.setNumThreads(1)
    frames = FrameSource(source.path)
    _refuse_small_frames(frames, source, recipe)
    if source.is_photo:
        # A photograph has no parts, so each clip shows a different motion over the whole
        # photograph. In the cut of a video, `first` is the first frame of the part. In the cut of a
        # photograph, `first` is only the number of the clip. `average` is 1, because a frame of the
        # clip uses one picture.
        return [Cut(first=i, average=1, side=recipe.side) for i in range(recipe.clips)]

    # The least side of the scaled frames is 1.1 times the crop, so that the crop can move. It is
    # never larger than the side that the user wants. E.g. with crop 256 and side 288, the least
    # side is 1.1 * 256 = 282. With side 260, it is 260.
    least_side = min(round(LEAST_SIDE_PER_CROP * recipe.crop), recipe.side)
    cuts = find_cuts(
        frames,
        intervals=recipe.frames,  # one interval for each frame of the clip
        sides=(least_side, recipe.side),
        frames_per_interval=recipe.average,  # averaged to one frame of the clip
        rng=random_stream(f"cuts of {source.name}", recipe.seed),
    )
    _refuse_no_cut(cuts, source, recipe)
    # Spread the clips evenly over the video: 3 clips of 9 parts are the parts 0, 4 and 8.
    number_of_clips = min(recipe.clips, len(cuts))
    evenly_spaced = np.linspace(0, len(cuts) - 1, number_of_clips)
    return [cuts[number] for number in evenly_spaced.round().astype(int)]


# ---- What is refused ---------------------------------------------------------------------------


def _refuse_no_source(sources: list[ClipSource], path: Path) -> None:
    """Raise DataError if nothing was found. path: --source, for the message."""
    if not sources:
        raise DataError(
            what="no raw clip found",
            where=str(path),
            expected="folders of images or video files, with or without train/ and test/",
            do="correct --source",
        )


def _refuse_equal_names(sources: list[ClipSource], path: Path) -> None:
    """Raise DataError for two sources of one name, because their clips would have one folder.

    path: --source, for the message.
    """
    counts = Counter(source.name for source in sources)
    repeated_names = [name for name, count in counts.items() if count > 1]
    if repeated_names:
        raise DataError(
            what=f"two raw clips have the same name: {', '.join(repeated_names[:5])}",
            where=str(path),
            expected="a different name for each clip",
            do="rename one of the clips",
        )


def _refuse_small_frames(frames: FrameSource, source: ClipSource, recipe: Recipe) -> None:
    """Raise DataError if a crop does not fit into the frames of a source."""
    height, width = frames.size
    if min(height, width) < recipe.crop:
        raise DataError(
            what=f"frames of {height} x {width}",
            where=str(source.path),
            expected=f"both sides at least --crop {recipe.crop}",
            do="lower --crop",
        )


def _refuse_no_cut(cuts: list[Cut], source: ClipSource, recipe: Recipe) -> None:
    """Raise DataError if a video has no part that can be recorded."""
    if not cuts:
        raise DataError(
            what="the video has no part without a cut and with small motion",
            where=str(source.path),
            expected=f"{recipe.frames} exposures whose frames can be interpolated",
            do="lower --frames, --average or --crop",
        )
