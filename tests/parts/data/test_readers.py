"""Data sets that a user adds: the values that follow from frames, and the samples that are refused.

A reader gives the frames of one clip, for a test. A data set of a training gives samples. The
program checks what a reader or a data set gives, because a user may have written it
(docs/extending.md).
"""

import re

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from data.clips.readers import Reader
from data.loader import TrainLoader
from data.network_fit import check_clips
from utils.errors import DataError
from utils.options.loader_options import LoaderOptions


class ComputedFrames(Reader):
    """A clip of three blurry frames (4 x 6). A frame has spikes and five sharp frames (8 x 12).

    The sharp frames are twice as large as the blurry frames, so the scale is 2.

    level: value of all pixels. kinds: names of the tensors that a frame has.
    """

    def __init__(self, name="c", level=0.5, kinds=("lq", "gt", "gt_instants", "spike")):
        self.name = name
        self.stems = ["0", "1", "2"]
        self.level = level
        self.kinds = kinds

    def frame(self, index, reverse=False):
        """Return the tensors of a frame: kind -> (C, H, W)."""
        # "gt_instants" has the five sharp frames of three colours: 15 channels.
        shapes = {"lq": (3, 4, 6), "gt": (3, 8, 12), "gt_instants": (15, 8, 12), "spike": (2, 4, 6)}
        return {kind: torch.full(shapes[kind], self.level) for kind in self.kinds}


class Own(Dataset):
    """A test set that a user has written: it gives these readers."""

    def __init__(self, *readers):
        self.own = list(readers)

    def readers(self):
        return self.own


def test_sizes_follow_from_the_first_frame():
    clip = ComputedFrames()

    assert clip.size == (4, 6)
    assert clip.gt_size == (8, 12)
    assert clip.scale == 2
    assert clip.instants == 5
    assert clip.has_gt


def test_a_reader_that_gives_only_frames_has_no_times_and_no_origin():
    clip = ComputedFrames()

    assert clip.fps is None
    assert clip.times is None
    assert clip.origin == {}


def test_a_reader_without_sharp_frames_has_the_size_of_its_frames():
    clip = ComputedFrames(kinds=("lq",))

    assert clip.size == (4, 6)
    assert clip.gt_size == (4, 6)
    assert clip.scale == 1
    assert clip.instants == 0
    assert not clip.has_gt


def test_spikes_are_shown_as_their_mean_and_never_below_0():
    spike = torch.tensor([[[0.2, -3.0]], [[0.4, 1.0]]])  # (2, 1, 2): two channels of two pixels

    shown = ComputedFrames().spike_light(0, spike)

    # The means are (0.2 + 0.4) / 2 = 0.3 and (-3.0 + 1.0) / 2 = -1, which is shown as 0.
    assert np.allclose(shown, [[0.3, 0.0]])


def test_the_digest_changes_with_the_frames():
    digest = ComputedFrames().digest()

    assert ComputedFrames().digest() == digest
    assert ComputedFrames(level=0.6).digest() != digest
    assert len(digest) == 16  # hex digits


# scale and instants: how many times the network enlarges a frame, and how many sharp frames it
# gives for each blurry frame. None: any number of sharp frames fits.
@pytest.mark.parametrize(("scale", "instants"), [(2, 5), (2, None)])
def test_a_test_set_that_fits_the_network_is_accepted(scale, instants):
    check_clips(Own(ComputedFrames(), ComputedFrames("d")), "test", scale, instants)


# `ComputedFrames` has the scale 2, and five sharp frames for each blurry frame.
@pytest.mark.parametrize(
    ("scale", "instants", "words"),
    [
        (1, 5, "gt of 8 x 12 for lq of 4 x 6 in clip d, but scale is 1"),
        (4, 5, "but scale is 4"),
        (2, 3, "5 sharp frames for each blurry frame in clip d, but netG.out_instants is 3"),
    ],
)
def test_a_test_set_that_does_not_fit_the_network_is_refused(scale, instants, words):
    with pytest.raises(DataError, match=words):
        check_clips(Own(ComputedFrames("d")), "test", scale, instants)


def test_a_test_set_without_clips_is_refused():
    with pytest.raises(DataError, match="has no clip"):
        check_clips(Own(), "test", scale=2, instants=5)


def test_two_clips_of_one_name_are_refused():
    # The frames of the second clip would replace the frames of the first clip.
    with pytest.raises(DataError, match=r"1 name of clips of .* occurs twice, 'c'"):
        check_clips(Own(ComputedFrames(), ComputedFrames()), "test", scale=2, instants=5)


def test_two_frames_of_one_name_are_refused():
    clip = ComputedFrames()
    clip.stems = ["0", "1", "1"]

    with pytest.raises(DataError, match="frames of clip c occurs twice, '1'"):
        check_clips(Own(clip), "test", scale=2, instants=5)


@pytest.mark.parametrize("name", ["../c", "a/../../c", "/c"])
def test_a_clip_whose_results_would_lie_outside_is_refused(name):
    with pytest.raises(DataError, match="leads out of the folder of the results"):
        check_clips(Own(ComputedFrames(name)), "test", scale=2, instants=5)


def test_clips_without_sharp_frames_fit_every_scale():
    check_clips(Own(ComputedFrames(kinds=("lq",))), "test", scale=4, instants=None)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (None, "the data set returned None"),
        ({"gt": torch.zeros(3, 4, 4)}, 'no "lq" among the keys (gt)'),
        ({"lq": np.zeros((3, 4, 4), np.float32)}, "lq is a NumPy array (3, 4, 4) of float32"),
        ({"lq": torch.zeros(3, 4, 4, dtype=torch.uint8)}, "lq is a tensor (3, 4, 4) of uint8"),
        ({"lq": torch.zeros(2, 3, 4, 4)}, "lq is a tensor (2, 3, 4, 4) of float32"),
        ({"lq": torch.zeros(3, 4, 4), "spike": None}, "spike is None"),
    ],
)
def test_a_frame_of_a_wrong_type_or_shape_is_refused(frame, words):
    # A frame is a dict of tensors (C, H, W) of float32, among them "lq".
    class Wrong(ComputedFrames):
        def frame(self, index, reverse=False):
            return frame

    with pytest.raises(DataError, match=re.escape(words)):
        check_clips(Own(Wrong()), "test", scale=1, instants=1)


class Samples(Dataset):
    """A training set of one or two samples. The index of a sample is (epoch, number)."""

    def __init__(self, *samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        _, number = index
        return self.samples[number]


def first_batch(*samples):
    """Return the first batch of a loader: a batch of all these samples."""
    section = LoaderOptions(dataloader_num_workers=0, dataloader_batch_size=len(samples))
    loader = TrainLoader(Samples(*samples), section, accumulation_steps=1, seed=0)
    steps = loader.start(epoch=0, batch=0)
    (batch,) = next(steps)  # a step has one batch, because accumulation_steps is 1
    return batch


# Two frames of 4 x 4 pixels: (T, C, H, W).
CLIP = torch.zeros(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([None], "the data set returned None"),
        ([(CLIP, CLIP)], "the data set returned of type tuple"),
        ([{"gt": CLIP}], 'no "lq" among the keys (gt)'),
        ([{"lq": CLIP.byte(), "gt": CLIP.byte()}], "lq is a tensor (2, 3, 4, 4) of uint8"),
        ([{"lq": CLIP, "gt": CLIP.byte()}], "gt is a tensor (2, 3, 4, 4) of uint8"),
        ([{"lq": CLIP[0]}], "lq is a tensor (3, 4, 4) of float32"),
        ([{"lq": CLIP}, {"lq": CLIP[:1]}], "two samples of a batch differ: lq has a tensor"),
        ([{"lq": CLIP, "gt": CLIP}, {"lq": CLIP}], "two samples of a batch differ: gt has a"),
    ],
)
def test_a_sample_of_a_wrong_type_or_shape_is_refused(samples, words):
    with pytest.raises(DataError) as refused:
        first_batch(*samples)

    assert words in refused.value.what
    assert refused.value.where.startswith("Samples, (epoch, index) [(0, ")


def test_samples_of_numpy_arrays_are_read():
    batch = first_batch({"lq": CLIP.numpy(), "key": "c/0"})

    # A batch has one more dimension than a sample. Here it has one sample.
    assert torch.equal(batch["lq"], CLIP[None])


def test_samples_with_values_up_to_255_are_logged_once(caplog):
    first_batch({"lq": CLIP, "gt": CLIP + 255})

    assert caplog.text.count("gt of the training samples has values from 255 to 255") == 1


def test_the_check_of_clips_reads_no_sample_of_a_plain_dataset():
    class Plain(Dataset):
        def __getitem__(self, index):
            raise AssertionError("the check has read a sample")

    check_clips(Plain(), "train", scale=4, instants=3)
