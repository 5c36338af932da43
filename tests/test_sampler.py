import pytest

from data.loader import ResumableDistributedSampler
from utils.errors import OptionError


def make(rank=0, world_size=1, batch_size=2, length=23, seed=0, epoch=0, **options):
    sampler = ResumableDistributedSampler(
        length, world_size=world_size, rank=rank, batch_size=batch_size, seed=seed, **options
    )
    sampler.seek(epoch)
    return sampler


def test_the_incomplete_last_batch_is_left_out_on_every_rank():
    samplers = [make(rank, world_size=2, batch_size=3, length=23) for rank in range(2)]

    assert [len(list(s)) for s in samplers] == [9, 9]
    assert [len(s) for s in samplers] == [9, 9]
    assert [s.batches_per_epoch for s in samplers] == [3, 3]


@pytest.mark.parametrize("world_size", range(1, 9))
def test_shards_are_disjoint_and_equal_whatever_the_size(world_size):
    for length in range(world_size, 51):
        shards = [[i for _, i in make(rank, world_size, 1, length)] for rank in range(world_size)]

        assert {len(shard) for shard in shards} == {length // world_size}
        together = [index for shard in shards for index in shard]
        assert len(set(together)) == len(together) and set(together) <= set(range(length))


def test_one_run_over_changing_numbers_of_ranks_sees_the_order_of_one_rank():
    whole, seen = list(make(batch_size=8, length=50)), []
    for batch, world_size in enumerate((1, 2, 4, 8, 1)):
        ranks = [make(rank, world_size, 8 // world_size, 50) for rank in range(world_size)]
        for sampler in ranks:
            sampler.seek(0, batch)
        # The samples of all ranks, row by row, are the global batch in order.
        rows = zip(*(list(sampler)[: 8 // world_size] for sampler in ranks), strict=True)
        seen += [sample for row in rows for sample in row]

    assert seen == whole[:40]


def test_the_order_follows_from_seed_and_epoch_only():
    assert list(make(epoch=3)) == list(make(epoch=3))
    assert {epoch for epoch, _ in make(epoch=3)} == {3}  # it travels with every index
    assert [i for _, i in make(epoch=3)] != [i for _, i in make(epoch=4)]
    assert [i for _, i in make(seed=1)] != [i for _, i in make(seed=2)]


def test_going_on_in_the_middle_gives_the_rest_of_the_epoch_and_the_next_one_whole():
    whole, sampler = (list(make(rank=1, world_size=2, epoch=5)), make(rank=1, world_size=2, epoch=1))
    sampler.seek(5, 3)
    assert list(sampler) == whole[6:] and len(sampler) == len(whole) - 6
    sampler.seek(2)
    assert list(sampler) == list(make(rank=1, world_size=2, epoch=2))


def test_without_shuffling_the_samples_come_in_order():
    assert [i for _, i in make(length=6, shuffle=False)] == list(range(6))


def test_a_dataset_smaller_than_one_batch_is_refused_with_the_numbers():
    with pytest.raises(OptionError, match="3 training samples are fewer than one batch of 8") as error:
        make(world_size=4, batch_size=2, length=3)
    assert "4 ranks x 2" in str(error.value)
