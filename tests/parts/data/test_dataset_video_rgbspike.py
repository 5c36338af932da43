"""Samples of training and clips of a test: crops and turns, planes and rates, the order of an
epoch, refusals.
"""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from data.augment import Augment
from data.cameras.spike_grid import ScaledGrid
from data.clips.preflight import preflight
from data.loader import ResumableDistributedSampler, TrainLoader
from data.select_dataset import build_dataset
from data.spike.formats import SpikeGeometry
from scripts.make_sample_data import SAMPLE, make_sample
from tests.helpers.clip_files import (
    PLANES,
    build,
    resolved,
    same,
    section,
    write_clip,
    write_clips,
    write_info,
)
from utils.errors import DataError, OptionError
from utils.options.models import DatasetsOptions, LoaderOptions

ALL_TURNS: dict[str, Any] = {"use_hflip": True, "use_rot": True, "random_reverse": True}


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    root = tmp_path_factory.mktemp("clips")
    for number, frames in enumerate((6, 4)):
        write_clip(root, f"clip{number}", frames=frames, first=47 * number, seed=number)
    write_clip(root, "clip9", split="test", frames=5, seed=9)
    write_info(root)
    return root


def levels_in(item):
    """The level of each spike pixel according to lq, gt and spikes, on the lq grid."""
    lq = item["lq"][:, 0] * 255 / 20
    scale = item["gt"].shape[-1] // item["lq"].shape[-1]
    gt = item["gt"][:, 0, ::scale, ::scale] * 255 / 10
    spike = item["spike"].sum(1) * PLANES / 2  # two bins of half the planes each
    return lq, gt, spike


def greens_in(item):
    return (item["lq"][:, 1, 0, 0] * 255).round().int().tolist()


def test_a_sample_has_the_shapes_and_ranges_of_the_batch_and_travels_to_spawned_workers(clips):
    dataset = build(clips)
    item = dataset[(0, 0)]
    for key, channels in (("lq", 3), ("spike", 2), ("gt", 3)):
        assert (
            item[key].shape == (3, channels, 8, 8)
            and item[key].dtype == torch.float32
            and item[key].min() >= 0
        )
    assert item["lq"].max() <= 1 and item["key"].startswith("clip0/00000")
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[(0, 1)]["lq"], dataset[(0, 1)]["lq"])


@pytest.mark.parametrize("scale", [1, 2])
def test_crops_and_turns_agree_to_the_pixel_in_lq_gt_and_spikes(tmp_path, scale):
    write_clips(tmp_path, "clip0", scale=scale)
    dataset = build(tmp_path, gt_size=8 * scale, **ALL_TURNS)
    for item in (dataset[(epoch, index)] for epoch in range(4) for index in range(len(dataset))):
        assert item["lq"].shape[-2:] == (8, 8) and item["gt"].shape[-2:] == (8 * scale, 8 * scale)
        lq, gt, spike = levels_in(item)
        assert torch.allclose(lq, spike, atol=1e-3) and torch.allclose(lq, gt, atol=1e-3)


def draws(count=200, size=(20, 30), **allowed):
    rng = np.random.default_rng(0)
    return [Augment.draw(rng, size, 8, 2, **allowed) for _ in range(count)]


def test_crops_reach_every_even_place_and_each_turn_comes_half_of_the_time_where_allowed():
    plain, turned = draws(2000), draws(hflip=True, rot=True, reverse=True)
    assert {a.top for a in plain} == set(range(0, 13, 2)) and {a.left for a in plain} == set(
        range(0, 23, 2)
    )
    assert {(a.top, a.left) for a in draws(20, size=(8, 8))} == {(0, 0)}
    for name in ("hflip", "vflip", "transpose", "reverse"):
        assert 60 < sum(getattr(a, name) for a in turned) < 140 and not any(
            getattr(a, name) for a in plain
        )
    # An allowed turn leaves the rest of the draw as it was.
    assert [(a.top, a.left, a.hflip) for a in turned] == [
        (a.top, a.left, a.hflip) for a in draws(hflip=True)
    ]


def test_time_reversal_reverses_frames_and_the_planes_within_them(clips):
    dataset = build(clips, random_reverse=True)
    seen = set()
    for epoch in range(8):
        item = dataset[(epoch, 0)]
        reverse = greens_in(item) == [2, 1, 0]
        assert reverse or greens_in(item) == [0, 1, 2]
        # All ones lie in the first half of a file, as recorded.
        assert item["spike"][:, 0 if reverse else 1].max() == 0
        seen.add(reverse)
    assert seen == {False, True}


def test_a_sample_depends_on_seed_epoch_and_index_only(clips):
    first, second = (build(clips, **ALL_TURNS) for _ in range(2))
    second[(7, 3)]  # samples read before have no influence
    for index in range(len(first)):
        assert same(first[(2, index)], second[(2, index)])
    others = [
        build(clips, **ALL_TURNS)[(3, 0)],
        build(clips, seed=1, **ALL_TURNS)[(2, 0)],
        first[(2, len(first))],
    ]
    assert not any(torch.equal(first[(2, 0)]["lq"], other["lq"]) for other in others)


def test_an_interval_skips_frames_and_a_short_clip_is_played_back_and_forth_with_a_notice(
    clips, caplog
):
    dataset = build(clips, interval_list=[2])
    assert all(greens_in(dataset[(0, index)]) in ([0, 2, 4], [1, 3, 5]) for index in range(6))
    item = build(clips, num_frame=6)[(0, 6)]
    assert "1 clips have fewer than 6 frames" in caplog.text and "clip1" in caplog.text
    assert greens_in(item) == [47, 48, 49, 50, 49, 48]
    # On the way back, the planes of every frame are reversed.
    assert [bool(item["spike"][i, 0].max() > 0) for i in range(6)] == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]


def test_spikes_resized_within_a_crop_are_the_crop_of_the_resized_ones(clips):
    spike = {"type": "dat", "representation": {"type": "tfp", "half_window": 9}}
    whole = build(clips, "test", spike=spike)
    train = section(
        clips, dataroot_gt=str(clips / "GOPRO_Large/test"), spike=spike, num_frame=1, gt_size=8
    )
    train |= {
        "dataroot_lq": train["dataroot_gt"],
        "dataroot_spike": str(clips / "GOPRO_Large_spike_seq/test"),
    }
    sample = build_dataset(train, "train", 0)
    everything = whole[0]
    for index in range(5):
        item = sample[(0, index)]
        position = (
            everything["lq"][index].unfold(1, 8, 1).unfold(2, 8, 1) == item["lq"][0][:, None, None]
        ).all(-1)
        y, x = position.all(-1).all(0).nonzero()[0].tolist()
        assert torch.equal(item["spike"][0], everything["spike"][index][:, y : y + 8, x : x + 8])


def test_a_test_item_is_the_whole_clip_and_can_be_read_in_parts(clips):
    dataset = build(clips, "test")
    item = dataset[0]

    assert len(dataset) == 1 and item["key"] == "clip9"
    assert item["frames"] == ["000000", "000001", "000002", "000003", "000004"]
    assert item["lq"].shape == (5, 3, 16, 24) and item["spike"].shape == (5, 2, 16, 24)
    part = dataset.read_frames(0, 1, 2)
    assert part["frames"] == ["000001", "000002"]
    assert all(torch.equal(part[k], item[k][1:3]) for k in ("lq", "gt", "spike"))
    item = build(clips, "test", num_frame=2, dataroot_gt=None)[0]
    assert item["lq"].shape[0] == 2 and "gt" not in item


def test_pictures_kept_in_memory_outlive_the_loader_processes_that_decoded_them(tmp_path):
    write_clips(tmp_path, "clip0", frames=6)
    kept, plain = build(tmp_path, cache_data=True), build(tmp_path)
    loading = LoaderOptions(dataloader_shuffle=False)
    loader = TrainLoader(kept, loading, accumulation_steps=1, seed=0)
    expected = [plain[(1, index)] for index in range(len(plain))]
    assert len(list(loader.start(0, 0))) == 6
    for path in (tmp_path / "GOPRO_Large").rglob("*.png"):
        path.unlink()

    for (batch,), item in zip(loader.start(1, 0), expected, strict=True):
        assert torch.equal(batch["lq"][0], item["lq"]) and torch.equal(batch["gt"][0], item["gt"])
    assert torch.equal(kept[(1, 0)]["lq"], expected[0]["lq"])  # and the parent process sees them


def test_a_resume_sees_other_planes_and_another_rate_of_the_same_frames(tmp_path):
    write_clips(tmp_path, "clip0")
    before = build(tmp_path).sample_names()
    assert build(tmp_path).sample_names() == before
    write_info(tmp_path, rate=0.5)
    assert build(tmp_path).sample_names() != before
    write_clip(tmp_path, "clip0", planes=32)
    write_info(tmp_path, planes=32)
    assert build(tmp_path).sample_names() != before


def test_the_representation_uses_rate_and_centre_of_the_data(clips, tmp_path):
    spike = {"type": "dat", "representation": {"type": "tfp", "half_window": 2}}
    # gt_plane 12: no pixel of a level up to 12 fires later
    at_12 = build(clips, "test", spike=spike)[0]["spike"]
    at_5 = build(clips, "test", spike={**spike, "center": 5})[0]["spike"]
    at_file = build(clips, "test", spike={**spike, "center": "file"})[0]["spike"]

    assert at_12.max() < 0.45 < at_5.max() and torch.equal(at_file, at_12)
    write_clip(tmp_path, "clip9", split="test", frames=5, seed=9)
    write_info(tmp_path, rate=0.5)
    assert torch.allclose(build(tmp_path, "test", spike=spike)[0]["spike"], at_12 * 2)


def test_without_dataset_json_the_options_must_give_the_size_and_a_damaged_one_is_named(tmp_path):
    write_clip(tmp_path, "GOPR0372_03_00", planes=24)
    with pytest.raises(OptionError, match=r"spike\.h is missing"):
        build(tmp_path)
    item = build(tmp_path, spike={"type": "dat", "h": 8, "w": 12})[(0, 0)]
    assert item["spike"].shape == (3, 4, 8, 8)
    write_clip(tmp_path, "street")
    with pytest.raises(DataError, match="plane of the sharp frame is not known for clip street"):
        build(tmp_path, spike={"type": "dat", "h": 8, "w": 12})
    for content in ("{", '{"format": 2}', '{"format": 1, "h": "8"}'):
        (tmp_path / "GOPRO_Large_spike_seq/dataset.json").write_text(content)
        with pytest.raises(DataError, match=r"dataset.json"):
            build(tmp_path)


def test_options_that_do_not_fit_the_data_are_refused(clips):
    # dataset.json may be repeated.
    build(clips, spike={"type": "dat", "h": 8, "w": 12, "flip": True, "rate": 1.0})
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"gt_size": 7}, OptionError, "gt_size is 7"),
        ({"gt_size": 32}, DataError, "crops of 32 do not fit into clip clip0"),
        (
            {"spike": {"type": "dat", "h": 16, "w": 12}},
            OptionError,
            "spike.h is 16, dataset.json has 8",
        ),
        ({"spike": {"type": "dat", "heigth": 8}}, OptionError, "unknown option .*spike.heigth"),
        (
            {"spike": {"representation": {"type": "raw", "window": 4}, "type": "dat"}},
            OptionError,
            "raw cannot be made",
        ),
    ]
    for changes, error, said in cases:
        with pytest.raises(error, match=said):
            build(clips, **changes)
    with pytest.raises(OptionError, match="a dataset for testing"):
        build_dataset(section(clips, "train"), "test", 0)


def test_another_camera_changes_the_spikes_and_nothing_else(clips):
    camera = {"type": "perturb", "threshold_prob": 1.0, "threshold_range": [2.0, 2.0]}
    plain, other = build(clips, **ALL_TURNS), build(clips, camera=camera, **ALL_TURNS)
    known = build(clips, camera=camera | {"known_rate": True}, **ALL_TURNS)
    for index in range(4):
        a, b = plain[(1, index)], other[(1, index)]
        assert float(known[(1, index)]["spike"].mean()) == pytest.approx(
            float(a["spike"].mean()), rel=0.2
        )
        assert (
            torch.equal(a["lq"], b["lq"]) and torch.equal(a["gt"], b["gt"]) and a["key"] == b["key"]
        )
        assert float(b["spike"].mean()) == pytest.approx(float(a["spike"].mean()) / 2, rel=0.2)
        assert torch.equal(b["spike"], other[(1, index)]["spike"])


def test_a_matched_rate_gives_the_frame_s_own_brightness_whatever_the_threshold(tmp_path):
    make_sample(tmp_path / "sample", replace(SAMPLE, clips={"test": 1}, frames=1))
    values = []
    for factor in (1.0, 2.0, 4.0):
        camera = {"type": "perturb", "threshold_prob": 1.0, "threshold_range": [factor, factor]}
        spike = {"type": "dat", "rate": "match", "representation": {"type": "voxel", "num_bins": 1}}
        item = build(tmp_path / "sample", "test", spike=spike, camera=camera)[0]
        grey = (item["lq"] ** 2.2 * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1)
        values.append(float(item["spike"].mean()) / float(grey.mean()))
    assert values == pytest.approx([1.0, 1.0, 1.0], rel=0.01)


def test_keys_without_effect_are_refused(clips):
    raw, spread = (
        {"type": "raw", "window": 3},
        {"type": "encoding25", "num_windows": 3, "pad": "edge"},
    )
    for key, value, representation in (
        ("gamma", 2.2, raw), ("rate", "match", raw), ("light", "linear", raw),
        ("center", 5, spread), ("center", 5, {"type": "tfp", "half_window": 2, "num_bins": 3}),
        ("context", 8, "voxel"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=rf"spike\.{key} has no effect"):
            build(
                clips, "test", spike={"type": "dat", key: value, "representation": representation}
            )
    # Where no rate is divided out
    camera = {
        "type": "perturb",
        "threshold_prob": 1.0,
        "known_rate": True,
    }
    for spike in ({"type": "dat", "rate": "match"}, {"type": "dat", "representation": raw}):
        with pytest.raises(OptionError, match=r"camera\.known_rate has no effect"):
            build(clips, "test", spike=spike, camera=camera)


def test_light_decides_what_match_and_gamma_do(tmp_path):
    write_clip(tmp_path, "clip0", split="test", frames=1)
    write_info(tmp_path, rate=None, light=None)
    spike = {
        "type": "dat",
        "rate": "match",
        "representation": {"type": "voxel", "num_bins": 1},
        "center": "file",
    }
    source = {
        light: build(tmp_path, "test", spike={**spike, "light": light}).clips[0].spikes
        for light in ("linear", "display")
    }
    # A camera of rate 0.6 that looks at an even grey, as light and as display value.
    grey = np.full((4, 4, 3), 128, np.uint8)
    for light, seen in (("linear", (128 / 255) ** 2.2), ("display", 128 / 255)):
        stream = np.zeros((1000, 2, 2), np.uint8)
        stream[: round(600 * seen)] = 1
        window = ScaledGrid(SpikeGeometry(2, 2), (4, 4), 0).window(Augment.whole((4, 4)))
        rate = source[light].rate_of(stream, grey, window)
        assert rate == pytest.approx(0.6, abs=0.002)
        # gamma 1: linear light, whatever the sensor integrated; gamma 2.2: the picture's own
        # values.
        for gamma, value in ((1.0, (128 / 255) ** 2.2), (2.2, 128 / 255)):
            spikes = source[light].changed(gamma=gamma)
            assert spikes.represent(stream, 499.5, rate).mean() == pytest.approx(value, abs=0.002)
    write_info(tmp_path, light="display")
    with pytest.raises(OptionError, match=r"spike\.light is linear, dataset.json has display"):
        build(tmp_path, "test", spike={**spike, "light": "linear"})


def test_the_check_of_the_data_tells_light_and_rates_that_nobody_states(tmp_path, caplog):
    # The test clips' spikes are proportional to the values of their pictures.
    write_clip(tmp_path, "clip0", split="test", frames=2)
    datasets = DatasetsOptions(test=resolved(section(tmp_path, "test")))
    for stated, words in (
        (None, ["look like display light of rate 1.7", "firing rate at full light"]),
        ("linear", []),
    ):
        write_info(tmp_path, light=stated, rate=1.0 if stated else None, made_for=str(stated))
        caplog.clear()
        preflight(datasets, tmp_path / f"runs {stated}")
        assert all(word in caplog.text for word in words) and (
            words or "WARNING" not in caplog.text
        ), caplog.text


def make(rank=0, world_size=1, batch_size=2, length=23, seed=0, epoch=0, **how):
    how |= {"world_size": world_size, "rank": rank, "batch_size": batch_size, "seed": seed}
    sampler = ResumableDistributedSampler(length, **how)
    sampler.seek(epoch)
    return sampler


def test_the_incomplete_last_batch_is_left_out_on_every_rank():
    samplers = [make(rank, world_size=2, batch_size=3, length=23) for rank in range(2)]

    assert [(len(list(s)), len(s), s.batches_per_epoch) for s in samplers] == [(9, 9, 3)] * 2


@pytest.mark.parametrize("world_size", range(1, 9))
def test_shards_are_disjoint_and_equal_whatever_the_size(world_size):
    for length in range(world_size, 51):
        shards = [[i for _, i in make(rank, world_size, 1, length)] for rank in range(world_size)]

        assert {len(shard) for shard in shards} == {length // world_size}
        together = [index for shard in shards for index in shard]
        assert len(set(together)) == len(together) and set(together) <= set(range(length))


def test_the_order_follows_from_seed_and_epoch_only():
    assert list(make(epoch=3)) == list(make(epoch=3))
    assert {epoch for epoch, _ in make(epoch=3)} == {3}  # it travels with every index
    assert [i for _, i in make(epoch=3)] != [i for _, i in make(epoch=4)]
    assert [i for _, i in make(seed=1)] != [i for _, i in make(seed=2)]
    assert [i for _, i in make(length=6, shuffle=False)] == list(range(6))
