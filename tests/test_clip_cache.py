import json
import os

import pytest
import torch

from data.clip_cache import build_cache
from data.select_dataset import build_dataset
from tests.clip_files import section, source_of, write_clip, write_info
from utils.errors import DataError, OptionError

TURNS = {"use_hflip": True, "use_rot": True, "random_reverse": True}


@pytest.fixture
def root(tmp_path):
    for number, (frames, planes) in enumerate(((6, 24), (4, 24))):
        write_clip(tmp_path, f"clip{number}", frames=frames, planes=planes, scale=2, seed=number)
    write_info(tmp_path)
    return tmp_path


def build(root, split="train", **changes):
    return build_dataset(section(root, split, gt_size=16, **changes), split, 0)


def cached(root, **changes):
    return build(root, io_backend={"type": "cache", "path": str(root / "cache")}, **changes)


def make_cache(root, **changes):
    return build_cache(source_of(section(root, **changes)), str(root / "cache"))


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) if k != "key" else a[k] == b[k] for k in a)


def test_samples_from_the_cache_are_those_from_the_files(root):
    make_cache(root)
    files, cache = build(root, **TURNS), cached(root, **TURNS)

    assert len(files) == len(cache)
    assert all(same(files[(e, i)], cache[(e, i)]) for e in range(3) for i in range(len(files)))


def test_a_cache_of_an_earlier_version_is_still_used(root):
    make_cache(root)
    index = json.loads((root / "cache/index.json").read_text())
    for key in ("bit_order", "layout"):  # such caches lack them
        del index["spike"][key]
    (root / "cache/index.json").write_text(json.dumps(index))
    assert same(cached(root)[(0, 3)], build(root)[(0, 3)])


def test_one_cache_serves_rgb_only_runs_as_well(root):
    make_cache(root)
    item = cached(root, dataset_type="VideoRecurrentTrainDataset", dataroot_spike=None, spike=None)[(0, 0)]
    assert "spike" not in item and item["gt"].shape[-1] == 16


def test_a_cache_of_chosen_clips_holds_only_these(root):
    (root / "meta.txt").write_text("clip1 3 0 000001\n")
    make_cache(root, meta_info_file=str(root / "meta.txt"))

    assert len(cached(root, meta_info_file=str(root / "meta.txt"))) == 3
    with pytest.raises(DataError, match="another selection of clips"):
        cached(root)


@pytest.mark.parametrize("change", ["touched", "longer", "new frame"])
def test_a_cache_whose_source_changed_is_refused(root, change):
    make_cache(root)
    path = root / "GOPRO_Large/train/clip0/blur/000002.png"
    if change == "touched":
        os.utime(path, (1, 1))
    elif change == "longer":
        path.write_bytes(path.read_bytes() + b"x")
    else:
        (path.parent / "000006.png").write_bytes(path.read_bytes())
    with pytest.raises(DataError, match="lq files of the source have changed since"):
        cached(root)


def test_a_cache_works_without_its_source(root):
    make_cache(root)
    expected = build(root)[(0, 1)]
    os.rename(root / "GOPRO_Large", root / "elsewhere")
    assert same(cached(root)[(0, 1)], expected)


def test_a_cut_or_missing_array_is_found_at_the_start_and_during_the_run(root):
    make_cache(root)
    dataset = cached(root)
    path = root / "cache/clip0/gt.u8"
    os.truncate(path, 100)
    with pytest.raises(DataError, match=r"gt\.u8 has 100 bytes"):
        cached(root)
    path.unlink()
    with pytest.raises(DataError, match="cannot map cached clip") as error:
        dataset[(0, 0)]
    assert str(path) in str(error.value)


def test_another_format_or_no_index_is_refused(root):
    make_cache(root)
    index = root / "cache/index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"format": 99}))
    with pytest.raises(DataError, match="format 99"):
        cached(root)
    index.unlink()
    with pytest.raises(DataError, match="cannot read the clip cache"):
        cached(root)


def test_another_spike_geometry_is_refused(root):
    make_cache(root)
    write_info(root, h=None, w=None)
    with pytest.raises(DataError, match="its spikes are"):
        cached(root, spike={"type": "dat", "h": 12, "w": 8})


def test_an_interrupted_build_goes_on_where_it_stopped(root):
    def interrupt(clips):
        yield clips[0]
        raise KeyboardInterrupt

    source = source_of(section(root))
    with pytest.raises(KeyboardInterrupt):
        build_cache(source, str(root / "cache"), interrupt)
    assert not (root / "cache").exists()
    made = root / ".cache.partial/clip0/lq.u8"
    before = made.stat().st_mtime_ns
    make_cache(root)
    assert (root / "cache/clip0/lq.u8").stat().st_mtime_ns == before
    assert same(cached(root)[(0, 7)], build(root)[(0, 7)])


def test_building_again_replaces_a_stale_cache(root):
    make_cache(root)
    os.utime(root / "GOPRO_Large/train/clip0/blur/000002.png", (1, 1))
    make_cache(root)
    assert len(cached(root)) == 10


def test_the_cache_of_one_split_does_not_replace_that_of_another(root):
    make_cache(root)
    for kind in ("GOPRO_Large", "GOPRO_Large_spike_seq"):
        for clip in sorted((root / kind / "train").iterdir()):
            clip.rename(clip.with_name(f"other_{clip.name}"))
    with pytest.raises(DataError, match="the cache of other clips: clip0"):
        make_cache(root)


def foreign_files(root, name):
    """Another folder under the name of the cache, or a foreign file in a cache."""
    if name == "ours and more":
        make_cache(root)
        (root / "cache/clip0/notes.txt").write_text("mine")
    elif name == "damaged index":
        make_cache(root)
        (root / "cache/index.json").write_text("[]")
    elif name == "a file":
        (root / "cache").write_text("mine")
    else:
        (root / name / "clip0").mkdir(parents=True)
        (root / name / "clip0/photo.png").write_text("mine")


@pytest.mark.parametrize("name", ["cache", "ours and more", "damaged index", "a file", ".cache.partial"])
def test_nothing_foreign_makes_room_for_a_cache(root, name):
    foreign_files(root, name)
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    with pytest.raises(DataError):
        make_cache(root)
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before


def test_a_cache_must_not_lie_among_its_own_clips(root):
    with pytest.raises(OptionError, match="lies in"):
        build_cache(source_of(section(root)), str(root / "GOPRO_Large/train/cache"))


def test_a_source_that_is_here_in_part_is_checked_in_part(root):
    make_cache(root)
    os.rename(root / "GOPRO_Large_spike_seq/train", root / "elsewhere")
    spike = {"type": "dat", "h": 8, "w": 12}
    assert len(cached(root, spike=spike)) == 10
    os.utime(root / "GOPRO_Large/train/clip0/blur/000002.png", (1, 1))
    with pytest.raises(DataError, match="files of the source have changed since"):
        cached(root, spike=spike)


def test_names_of_clips_in_an_index_are_checked(root):
    make_cache(root)
    index = root / "cache/index.json"
    index.write_text(index.read_text().replace('"name": "clip0"', '"name": "../../clip0"'))
    with pytest.raises(DataError, match="cannot be the name of a clip"):
        cached(root)


def test_wrong_data_make_no_cache(root):
    os.remove(root / "GOPRO_Large/train/clip0/blur/000002.png")
    with pytest.raises(DataError, match="lq lacks 1 of 6 frames"):
        make_cache(root)
    assert not (root / "cache").exists()
