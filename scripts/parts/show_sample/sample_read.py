"""Read the sample that show_sample.py shows.

    read_sample             reads a sample of a data set of clips from files
    sample_of_other_set     reads a sample of a data set of another kind, e.g. of a user's class
    refuse_missing_sample   raises an error if the data set has no such sample

A sample has three kinds of images: "lq" (low quality) is the blurry frame, "gt" (ground truth) is
the sharp frame, and "spike" has the channels that are computed from the spikes. A draw says which
clip, frames, crop and flips were chosen for the sample.

Some values have the type Any, because their modules import torch, and --help must not wait for
torch. In `read_sample` the data set is a `ClipDataset` (data/clip_reading.py). In the other
functions it may be any data set of docs/extending.md.

What must stay: the sample is the one that training gets
(test_the_page_shows_the_frames_of_the_sample).
Free to change: SHOWN_FRAMES.

Tests: tests/parts/scripts/test_show_sample.py
"""

from typing import Any, NamedTuple

from utils.errors import OptionError

# Number of frames of a test clip that are shown. The page holds every image, so more frames make
# the page larger.
SHOWN_FRAMES = 6


class Wanted(NamedTuple):
    """Which sample the user wants to see."""

    split: str  # "train" or "test"
    index: int  # number of the sample of training, or of the test clip
    epoch: int  # epoch of a sample of training. A test has no epochs


class Sample(NamedTuple):
    """One sample of a data set, as it is read for the network."""

    title: str  # e.g. "Sample 3 of datasets.train, epoch 0"
    draw: Any  # data.clip_reading.Draw: clip, frames, crop and flips that were chosen
    # What the data set returns for the sample:
    #
    #     "lq", "gt", "spike"   tensors (frames, channels, H, W)
    #     "key"                 clip and first frame, e.g. "clip0/00000", or "clip0" in a test
    item: dict[str, Any]


class BareSample(NamedTuple):
    """One sample of a data set without files: its tensors, and no draw."""

    title: str  # e.g. "Sample 3 of datasets.train, epoch 0: clip0/00000"
    names: list[str]  # a name for each frame of "lq"
    item: dict[str, Any]  # as in `Sample`


def read_sample(dataset: Any, wanted: Wanted) -> Sample:
    """Read a sample of training, or the first frames of a test clip.

    dataset: a data set of clips from files, a `ClipDataset` (data/clip_reading.py).
    """
    split, index, epoch = wanted
    title = f"Sample {index} of datasets.{split}"
    if dataset.is_training:
        # A training set draws a sample by (epoch, index). The same pair always gives the same draw.
        # So `dataset.draw` describes the crop of the tensors that `dataset[...]` returns.
        sample_id = (epoch, index)
        return Sample(f"{title}, epoch {epoch}", dataset.draw(sample_id), dataset[sample_id])
    count = min(SHOWN_FRAMES, dataset.frame_count(index))
    # A test set draws frames of a clip by (clip, first frame, number of frames): here the frames
    # 0 ... count - 1. The draw and the tensors must be of the same frames.
    draw = dataset.draw(index, 0, count)
    return Sample(title, draw, dataset.read_frames(index, 0, count))


def sample_of_other_set(dataset: Any, wanted: Wanted) -> BareSample:
    """Read a sample of training, or the first frames of a test clip, from any kind of data set.

    This function uses only what every data set has (docs/extending.md), so it needs no files.

    dataset: a data set of any class.
    """
    split, index, epoch = wanted
    title = f"Sample {index} of datasets.{split}"
    if split == "train":
        item = dataset[(epoch, index)]
        names = [f"frame {number}" for number in range(len(item["lq"]))]
        key = item.get("key", "")
        return BareSample(f"{title}, epoch {epoch}: {key}", names, item)
    reader = dataset.readers()[index]
    names = list(reader.stems[:SHOWN_FRAMES])
    item = stack_frames([reader.frame(number) for number in range(len(names))])
    return BareSample(f"{title}: {reader.name}", names, item)


def stack_frames(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the frames of a clip, {kind: (C, H, W)} each, to {kind: (frames, C, H, W)}."""
    import torch  # here, so that --help does not wait for it

    clip = {}
    for kind in frames[0]:
        clip[kind] = torch.stack([frame[kind] for frame in frames])
    return clip


def refuse_missing_sample(dataset: Any, wanted: Wanted) -> None:
    """Raise OptionError if the data set has no sample of this index and epoch.

    dataset: a data set of any class.

    Test: test_wrong_indices_are_named
    """
    split, index, epoch = wanted
    if split == "test":
        # A test set has a reader for each clip. A user's test set may have no `__len__`.
        count = len(dataset.readers())
    else:
        count = len(dataset)
    if 0 <= index < count and epoch >= 0:
        return
    raise OptionError(
        what=f"sample {index} of epoch {epoch} does not exist",
        where="--index, --epoch",
        expected=f"an index of 0 to {count - 1}, an epoch of at least 0",
        do="correct them",
    )
