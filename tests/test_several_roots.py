"""One section of several roots, whose clips differ in size, light, rate and planes."""

import dataclasses
import json
from collections import Counter

import numpy as np
import pytest
import torch

from data.clip_reader import dataset_clips, user_clips
from data.loader import TrainLoader
from data.select_dataset import build_dataset
from data.spike.formats import SpikeGeometry, write_spikes
from tests.clip_files import (
    build,
    cached,
    check,
    doctor_of_data,
    resolved,
    same,
    section,
    write_clip,
    write_clips,
    write_info,
)
from utils.errors import DataError, OptionError

SPIKE = {"type": "dat", "resize": "nearest", "center": "gt", "representation": {"type": "tfp", "offsets": [0]}}


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Two roots; the second has larger frames, more RGB pixels per spike pixel and another camera."""
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    write_clips(one, "a", "b")
    for seed, clip in enumerate(("a", "c", "d")):
        write_clip(two, clip, seed=5 + seed, frames=4, h=16, w=20)
        for frame in range(4):
            stream = np.random.default_rng([seed, frame]).random((40, 8, 10)) < 0.3
            path = two / "GOPRO_Large_spike_seq/train" / clip / "spike" / f"{frame:06d}.dat"
            write_spikes(path, stream.astype(np.uint8), SpikeGeometry(8, 10))
    write_info(two, h=8, w=10, planes=40, gt_plane=20, rate=0.5, light="display")
    return one, two


def joined(roots, split="train", **changes):
    """The section of all roots."""
    each = [section(root, split) for root in roots]
    lists = {key: [one[key] for one in each] for key in each[0] if key.startswith("dataroot_")}
    return each[0] | lists | {"spike": SPIKE} | changes


def test_a_sample_of_several_roots_is_that_of_its_own_root(roots):
    turned = {"use_hflip": True, "use_rot": True, "random_reverse": True}
    every = build_dataset(joined(roots, **turned), "train", 3)
    single = [build(root, seed=3, spike=SPIKE, **turned) for root in roots]
    assert [clip.name for clip in every.clips] == ["0/a", "0/b", "1/a", "1/c", "1/d"] and len(every) == 2 * 6 + 3 * 4
    for index in range(2 * len(every)):
        draw = every.draw((1, index))
        root, name = draw.clip.name.split("/")
        own = single[int(root)]
        clip = next(clip for clip in own.clips if clip.name == name)
        assert same(every.read(draw), own.read(dataclasses.replace(draw, clip=clip)))
        assert every[(1, index)]["key"].startswith(f"{root}/{name}/")
    assert {clip.spikes.rate for clip in every.clips} == {1.0, 0.5}
    assert {clip.grid.step for clip in every.clips} == {2, 4} and {clip.planes[0] for clip in every.clips} == {24, 40}


def test_batches_of_several_roots_have_one_shape(roots):
    values = resolved(joined(roots, dataloader_batch_size=4, dataloader_num_workers=0))
    dataset = build_dataset(values, "train", 0)
    loader = TrainLoader(dataset, values, accumulation_steps=1, seed=0, rank=0, world_size=1)
    shapes = {tuple(batch["spike"].shape) for (batch,) in loader.start(0, 0)}
    assert shapes == {(4, 3, 1, 8, 8)}


@pytest.mark.parametrize(("share", "counts"), [(None, (12, 12)), ([1, 3], (6, 18)), ([0.9, 0.1], (22, 2))])
def test_shares_say_how_many_samples_each_root_gives(roots, share, counts):
    dataset = build_dataset(joined(roots, dataroot_share=share), "train", 0)
    names = [(clip.name, stem) for clip in dataset.clips for stem in clip.stems]
    used = Counter()
    for epoch in range(6):
        begun = [names[dataset.place_of(epoch, index)] for index in range(len(dataset))]
        assert tuple(sum(name.startswith(root) for name, _ in begun) for root in "01") == counts
        used.update(begun)
    for root, count in zip("01", counts, strict=True):  # every frame of a root as often as the others
        often = [used[name] for name in names if name[0].startswith(root)]
        assert max(often) - min(often) <= 1 and sum(often) == 6 * count
    again = build_dataset(joined(roots, dataroot_share=share), "train", 0)
    assert same(dataset[(2, 7)], again[(2, 7)])


def test_a_resumed_run_compares_roots_and_shares(roots):
    names = {
        tuple(build_dataset(values, "train", 0).sample_names())
        for values in (
            joined(roots), joined(roots[::-1]), joined(roots, dataroot_share=[1, 3]),
            joined(roots, dataroot_share=[1, 2]), joined(roots, dataroot_share=[1, 3]),
        )
    }  # fmt: skip
    assert len(names) == 4


def test_roots_that_do_not_match_are_refused(roots, tmp_path):
    values = joined(roots)
    for changes, words in (
        ({"dataroot_lq": values["dataroot_lq"][:1]}, "dataroot_lq has 1, dataroot_spike has 2"),
        ({"dataroot_gt": values["dataroot_gt"][0]}, "dataroot_gt is one"),
        ({"dataroot_share": [1.0]}, "dataroot_share has 1"),
        ({"dataroot_share": [1.0, 0.0]}, "dataroot_share"),
        ({"dataroot_share": [1.0, 1e-4]}, r"gives \[24, 0\] samples"),
    ):
        with pytest.raises(OptionError, match=words):
            build_dataset(values | changes, "train", 0)
    write_clips(tmp_path, "large", scale=2)
    with pytest.raises(DataError, match="scale 2 and 0 sharp instants in clip 1/large, scale 1"):
        build_dataset(joined((roots[0], tmp_path)), "train", 0)


def test_the_check_and_a_cache_know_every_root(roots, tmp_path, capsys):
    values = joined(roots)
    assert doctor_of_data(tmp_path, train=values) == 0
    text = capsys.readouterr().out
    assert "train 0: 2 clips, 12 frames of 16 x 24" in text and "train 1: 3 clips, 12 frames of 32 x 40" in text
    in_cache = build_dataset(cached(values, tmp_path / "cache"), "train", 0)
    plain, kept = (build_dataset(values | {"cache_data": kept}, "train", 0) for kept in (False, True))
    for index in range(len(plain)):
        assert same(plain[(0, index)], in_cache[(0, index)]) and same(plain[(0, index)], kept[(0, index)])


def test_several_roots_can_be_tested_on(roots, tmp_path):
    folders = {key: value for key, value in joined(roots).items() if key.startswith("dataroot_")}
    values = joined(roots, "test") | folders
    clips, alone = dataset_clips(build_dataset(values, "test", 0)), joined(roots[1:], "test") | folders
    alone |= {key: value[1:] for key, value in folders.items()}
    single = dataset_clips(build_dataset(alone, "test", 0))
    assert [clip.name for clip in clips[2:]] == [f"1/{clip.name}" for clip in single] and len(clips) == 5
    assert clips[0].dataset.count_folders() == 5
    for clip, same_clip in zip(clips[2:], single, strict=True):
        assert torch.equal(clip.frame(1)["spike"], same_clip.frame(1)["spike"]) and clip.digest() == same_clip.digest()
    kept = dataset_clips(build_dataset(cached(values, tmp_path / "cache"), "test", 0))
    assert torch.equal(kept[3].frame(2)["spike"], clips[3].frame(2)["spike"]) and kept[3].digest() != clips[3].digest()


def test_weights_of_several_roots_say_what_they_have_in_common(roots):
    known = resolved(joined(roots)).spike_data
    assert known == {"rate": "match", "light": "linear", "center": "gt", "planes": None, "gt_plane": None}
    assert resolved(joined((roots[0], roots[0]))).spike_data == resolved(section(roots[0], spike=SPIKE)).spike_data


def test_a_clip_may_have_spikes_of_its_own(tmp_path):
    write_clips(tmp_path, "a", "b")
    table = {"format": 1, "matrix": [[2, 0, 0.5], [0, 2, 0.5]], "spike_size": [8, 12], "rgb_size": [16, 24]}
    expected = [build(tmp_path, spike=SPIKE)[(0, index)] for index in range(12)]
    write_info(tmp_path, clips={"b": {"rate": 0.5, "planes": 24, "rig": {"any": 1}}})
    halved = build(tmp_path, spike=SPIKE)
    for index, before in enumerate(expected):
        assert torch.equal(halved[(0, index)]["spike"], before["spike"] * (2 if before["key"].startswith("b") else 1))
    spikes, frames = (tmp_path / name / "train" for name in ("GOPRO_Large_spike_seq", "GOPRO_Large"))
    for clip, rate in zip(user_clips(frames, spikes, spike_options=SPIKE), (1.0, 0.5), strict=True):
        single = user_clips(frames / clip.name / "blur", spikes / clip.name / "spike", spike_options=SPIKE)[0]
        assert clip.clip.spikes.rate == single.clip.spikes.rate == rate
    write_info(tmp_path, clips={"b": {"calibration": table}})
    (tmp_path / "b.json").write_text(json.dumps(table))
    spike = SPIKE | {"resize": "bilinear"}
    for calibration, of_a, of_b in ((None, None, None), ("recorded", None, 0.5), (str(tmp_path / "b.json"), 0.5, 0.5)):
        clips = build(tmp_path, spike=spike | {"calibration": calibration}).clips
        known = [clip.spikes.calibration and clip.spikes.calibration.matrix[0][2] for clip in clips]
        assert known == [of_a, of_b]
    assert any(
        "calibration" in line for line in build(tmp_path, spike=spike | {"calibration": "recorded"}).sample_names()
    )
    write_info(tmp_path, rate=None, clips={"a": {"rate": 0.7}, "b": {"rate": 0.5}})
    values = section(tmp_path, spike=SPIKE)
    assert resolved(values).spike_data["rate"] == "match" and not check(values).warnings
    write_info(tmp_path, clips={"b": {"rate": "fast"}})
    with pytest.raises(DataError, match=r"clip b: rate.* is 'fast'"):
        build(tmp_path, spike=SPIKE)
