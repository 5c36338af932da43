"""Number the samples of a training, and say which frames of which clip a numbered sample has.

Nothing is drawn here. data/sample_order.py draws a permutation of the positions of an epoch.
data/clip_dataset.py calls this module to find the sample at a position.

All samples are numbered consecutively, clip after clip. The number of a sample in this order is its
serial number. E.g. clips of 3, 5 and 4 frames have the serial numbers

    clip 0    0 ... 2     root 0
    clip 1    3 ... 7     root 0
    clip 2    8 ... 11    root 1

A root is a set of folders whose clips belong together. An epoch has as many samples as there are
serial numbers, and takes them root after root. Without shares, position i of an epoch has the
serial number i. With shares, an epoch takes more samples from one root and fewer from another.

    SampleNumbers     (epoch, position) -> serial number -> clip and frame
    frames_to_play    (first frame, interval, number of frames) -> the frames of a sample

What must stay: every result, because a resumed run must see the samples that it would have seen
without the interruption.

Tests: tests/parts/data/test_sample_numbers.py (has numbers that must stay),
tests/parts/data/test_manifest.py (shares), tests/parts/data/test_dataset_video_rgbspike.py
"""

from collections.abc import Sequence

import numpy as np

from data.clips.ranges import begins_of, first_and_end, range_of
from utils.errors import OptionError


class SampleNumbers:
    """The serial numbers of all samples, and the samples that an epoch takes from each root.

    The examples behind the attributes are for the clips in the head of this file, and shares of
    [1, 1].
    """

    def __init__(
        self,
        sample_counts: Sequence[int],
        first_clips: np.ndarray,
        shares: list[float] | None = None,
    ) -> None:
        """Number the samples.

        sample_counts: number of samples of each clip, e.g. [3, 5, 4].
        first_clips: number of the first clip of each root, then the number of all clips, e.g.
        [0, 2, 3].
        shares: share of each root in an epoch. Only the ratios count. None: an epoch has each
        sample once.
        """
        # Serial number of the first sample of each clip, and then the number of all samples.
        self.begins = begins_of(sample_counts)  # [0, 3, 8, 12]
        # Serial number of the first sample of each root, and then the number of all samples.
        self.begins_of_roots = self.begins[first_clips]  # [0, 8, 12]
        # Position in an epoch at which each root begins, and then the number of all positions.
        self.epoch_begins = self.begins_of_roots
        if shares:
            self.epoch_begins = begins_of(_samples_of_roots(shares, len(self)))  # [0, 6, 12]

    def __len__(self) -> int:
        """Return the number of all samples, which is the number of samples of an epoch."""
        return int(self.begins[-1])

    def serial_number(self, epoch: int, position: int) -> int:
        """Return the serial number of the sample at a position of an epoch.

        Each epoch continues where the epoch before has stopped in each root, so over many epochs
        all samples of a root are used equally often. E.g. two roots have the serial numbers 0 ... 2
        and 3 ... 7. (This is not the example in the head of the file.) The shares are [1, 3], so
        the roots give 2 and 6 samples to an epoch:

            epoch 0   0 1   3 4 5 6 7 3
            epoch 1   2 0   4 5 6 7 3 4

        A position beyond the end of the epoch counts as a position of a later epoch.
        """
        later_epochs, position = divmod(position, len(self))
        root = range_of(position, self.epoch_begins)
        # The positions first ... end - 1 of an epoch belong to this root. The samples of the root
        # have the serial numbers first_serial ... end_serial - 1.
        first, end = first_and_end(self.epoch_begins, root)
        first_serial, end_serial = first_and_end(self.begins_of_roots, root)

        # The samples that the root has given before this position. After its last sample, the root
        # gives its first sample again, by the modulo. The numbers behind the lines are for position
        # 3 of epoch 1 in the example: this position belongs to the second root, and has the serial
        # number 5.
        in_earlier_epochs = (epoch + later_epochs) * (end - first)  # 1 * (8 - 2) = 6
        in_this_epoch = position - first  # 3 - 2 = 1
        samples_of_root = end_serial - first_serial  # 8 - 3 = 5
        return first_serial + (in_earlier_epochs + in_this_epoch) % samples_of_root  # 3 + 7 % 5 = 5

    def clip_and_frame(self, serial: int) -> tuple[int, int]:
        """Return the number of the clip of a sample, and the frame at which the sample begins.

        E.g. the serial number 4 is frame 1 of clip 1.
        """
        clip = range_of(serial, self.begins)
        return clip, serial - int(self.begins[clip])


def _samples_of_roots(shares: list[float], samples: int) -> list[int]:
    """Split the samples of an epoch by the shares of the roots.

    E.g. shares [1, 3] of 8 samples -> [2, 6].
    Raises OptionError if a root would give no sample.
    """
    # Cumulative shares, as fractions of 1: [1, 3] -> [0.25, 1].
    share_at_ends = np.cumsum(shares) / sum(shares)
    # The positions in an epoch at which the roots end: [2, 8] for 8 samples. The ends are rounded
    # and not the counts, because the sum of rounded counts could differ from `samples`.
    ends = np.rint(share_at_ends * samples).astype(int)
    counts = np.diff(ends, prepend=0).tolist()
    if 0 in counts:
        raise OptionError(
            what=f"dataroot_share {shares} gives {counts} samples in an epoch",
            where="datasets.train.dataroot_share",
            expected="at least one sample of each root",
            do="raise the small shares",
        )
    return counts


def frames_to_play(
    clip_length: int, first: int, interval: int, count: int, is_reversed: bool
) -> tuple[list[int], list[bool]]:
    """Return the frames of a sample, and for each frame whether time runs backwards within it.

    clip_length: number of frames of the clip.
    first: first frame of the sample.
    interval: distance between two frames of the sample.
    count: number of frames of the sample.
    is_reversed: whether the sample is played backwards.

    A clip that is too short is played back and forth. The period is one round, from the first frame
    to the last and back, and the phase is the position within a round. E.g. a clip of 3 frames has
    the period 4:

        phase      0   1   2   3       0 ...
        frame      0   1   2   1       0 ...
                   forward ->  <- back
    """
    # A round has clip_length - 1 steps forward, and as many back. A single frame has the period 1.
    period = max(2 * (clip_length - 1), 1)
    phases = [(first + i * interval) % period for i in range(count)]
    if is_reversed:
        phases.reverse()

    frames = []
    backwards = []
    for phase in phases:
        # The last frame, clip_length - 1, still belongs to the way forward.
        is_on_way_back = phase >= clip_length
        # E.g. phase 3 of the period 4 is frame 4 - 3 = 1.
        frame = period - phase if is_on_way_back else phase
        frames.append(frame)
        # A reversed sample exchanges the two ways: time runs backwards on the way forward
        # (test_on_the_way_back_the_planes_of_each_frame_are_reversed).
        backwards.append(is_on_way_back != is_reversed)
    return frames, backwards
