import pytest

from data.sampler import ResumableDistributedSampler
from utils.errors import OptionError


def make(rank=0, world_size=1, batch_size=2, length=23, seed=0, epoch=0, **options):
    sampler = ResumableDistributedSampler(
        length, world_size=world_size, rank=rank, batch_size=batch_size, seed=seed, **options
    )
    sampler.set_epoch(epoch)
    return sampler


def batches(samples, size):
    return [set(samples[i : i + size]) for i in range(0, len(samples), size)]


def test_each_sample_is_seen_once_and_ranks_do_not_overlap():
    seen = [list(make(rank, world_size=4, batch_size=1, length=12)) for rank in range(4)]

    assert [len(s) for s in seen] == [3, 3, 3, 3]
    assert sorted(index for s in seen for _, index in s) == list(range(12))


def test_the_incomplete_last_batch_is_left_out_on_every_rank():
    samplers = [make(rank, world_size=2, batch_size=3, length=23) for rank in range(2)]

    assert [len(list(s)) for s in samplers] == [9, 9]
    assert [len(s) for s in samplers] == [9, 9]
    assert [s.batches_per_epoch for s in samplers] == [3, 3]


def test_a_global_batch_holds_the_same_samples_on_one_rank_and_on_four():
    one = batches(list(make(batch_size=4)), 4)
    four = [list(make(rank, world_size=4, batch_size=1)) for rank in range(4)]

    assert [{four[r][b] for r in range(4)} for b in range(len(one))] == one


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
            sampler.start_batch = batch
        # The samples of all ranks, row by row, are the global batch in order.
        rows = zip(*(list(sampler)[: 8 // world_size] for sampler in ranks), strict=True)
        seen += [sample for row in rows for sample in row]

    assert seen == whole[:40]


def test_the_order_follows_from_seed_and_epoch_only():
    assert list(make(epoch=3)) == list(make(epoch=3))
    assert [i for _, i in make(epoch=3)] != [i for _, i in make(epoch=4)]
    assert [i for _, i in make(seed=1)] != [i for _, i in make(seed=2)]


def test_the_epoch_travels_with_every_index():
    assert {epoch for epoch, _ in make(epoch=7)} == {7}


def test_going_on_in_the_middle_gives_the_rest_of_the_epoch():
    whole = list(make(rank=1, world_size=2, epoch=5))
    resumed = make(rank=1, world_size=2, epoch=5)
    resumed.start_batch = 3

    assert list(resumed) == whole[6:]
    assert len(resumed) == len(whole) - 6


def test_a_new_epoch_starts_at_its_first_batch():
    sampler = make(epoch=1)
    sampler.start_batch = 4
    sampler.set_epoch(2)

    assert list(sampler) == list(make(epoch=2))


def test_without_shuffling_the_samples_come_in_order():
    assert [i for _, i in make(length=6, shuffle=False)] == list(range(6))


def test_a_dataset_smaller_than_one_batch_is_refused_with_the_numbers():
    with pytest.raises(OptionError, match="3 training samples are fewer than one batch of 8") as error:
        make(world_size=4, batch_size=2, length=3)
    assert "4 ranks x 2" in str(error.value)
