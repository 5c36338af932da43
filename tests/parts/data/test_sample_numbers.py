"""data/sample_numbers.py and data/sample_order.py: which sample comes when.

A resumed run must see the samples that it would have seen without the interruption, even if the
project has a newer version by then. So the numbers in these tests must stay. The shuffled orders
were printed by the first version of the project that had this file.

Words of this file:

    serial number   number of a frame among all frames of all clips
    position        number of a sample within an epoch
"""

import numpy as np

from data.sample_numbers import SampleNumbers, frames_to_play
from data.sample_order import ResumableDistributedSampler


def serial_numbers(numbers: SampleNumbers, epoch: int) -> list[int]:
    """Return the serial numbers of the samples of an epoch, in order."""
    return [numbers.serial_number(epoch, position) for position in range(len(numbers))]


def test_each_frame_of_each_clip_is_the_beginning_of_one_sample():
    # The clips have 3, 5 and 4 frames, so the serial numbers 0 ... 2, 3 ... 7 and 8 ... 11. The
    # first two clips are in root 0, and the third clip is in root 1.
    numbers = SampleNumbers([3, 5, 4], first_clips=np.array([0, 2, 3]))

    assert serial_numbers(numbers, epoch=4) == list(range(12))
    # (clip, frame) of the first and the last sample of each clip.
    begins_and_ends = [numbers.clip_and_frame(serial) for serial in (0, 2, 3, 7, 8, 11)]
    assert begins_and_ends == [(0, 0), (0, 2), (1, 0), (1, 4), (2, 0), (2, 3)]


def test_an_epoch_with_shares_goes_on_where_the_epoch_before_stopped():
    # The first root has the serial numbers 0 ... 2, and gives 2 samples to each epoch. The second
    # root has 3 ... 7, and gives 6 samples. Root 0 gives 0 1, then 2 0, then 1 2. Root 1 gives
    # 3 4 5 6 7 3, then 4 5 6 7 3 4, and so on.
    numbers = SampleNumbers([3, 5], first_clips=np.array([0, 1, 2]), shares=[1, 3])

    assert serial_numbers(numbers, epoch=0) == [0, 1, 3, 4, 5, 6, 7, 3]
    assert serial_numbers(numbers, epoch=1) == [2, 0, 4, 5, 6, 7, 3, 4]
    assert serial_numbers(numbers, epoch=2) == [1, 2, 5, 6, 7, 3, 4, 5]
    # A position beyond the end of an epoch is a position of the next epoch.
    assert numbers.serial_number(0, position=8) == numbers.serial_number(1, position=0)


def test_a_short_clip_is_played_back_and_forth():
    forward = frames_to_play(clip_length=3, first=0, interval=1, count=6, is_reversed=False)
    backward = frames_to_play(clip_length=3, first=0, interval=1, count=6, is_reversed=True)

    # The frames, and whether time runs backwards within each frame:
    #
    #     played      forward   back   forward again
    #     frames      0 1 2     1      0 1
    #     backwards   no        yes    no
    #
    # In the reversed sample, the order and the direction of each frame are the opposite.
    assert forward == ([0, 1, 2, 1, 0, 1], [False, False, False, True, False, False])
    assert backward == ([1, 0, 1, 2, 1, 0], [True, True, False, True, True, True])


def test_a_seed_gives_the_order_that_it_always_gave():
    sampler = ResumableDistributedSampler(7, world_size=1, rank=0, samples_per_step=1, seed=5)
    orders = {}
    for epoch in (3, 4):
        sampler.seek(epoch)
        orders[epoch] = [index for _, index in sampler]

    assert orders == {3: [6, 1, 0, 3, 4, 2, 5], 4: [1, 0, 5, 2, 3, 6, 4]}


def test_ranks_take_the_samples_of_an_order_in_turn():
    # The order of epoch 3 is 6 1 0 3 4 2 5. Sample 5 is left out, because the other rank would have
    # no sample for this step.
    of_ranks = []
    for rank in (0, 1):
        sampler = ResumableDistributedSampler(
            7, world_size=2, rank=rank, samples_per_step=1, seed=5
        )
        sampler.seek(3)
        of_ranks.append([index for _, index in sampler])

    assert of_ranks == [[6, 0, 4], [1, 3, 2]]
