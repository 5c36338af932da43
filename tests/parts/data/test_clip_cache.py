"""The clip cache: arrays of decoded frames and spikes, which are read in place of the files.

`build_cache` writes a folder with index.json and, for each clip, its arrays. The samples from a
cache must be those from the files. A cache that does not fit its files is refused, and nothing that
somebody else put into its folder is removed.
"""

import json
import os
import shutil
from typing import Any

import pytest

from data.clips.io_backend import build_cache
from tests.helpers.clip_files import build, same, section, source_of, write_clip, write_clips
from tests.helpers.gopro_files import files
from utils.errors import DataError, OptionError

TURNS: dict[str, Any] = {"use_hflip": True, "use_rot": True, "random_reverse": True}


@pytest.fixture
def root(tmp_path):
    """Give a folder with the clips clip0 and clip1. Frames are twice as large as spike planes."""
    write_clip(tmp_path, "clip1", frames=4, scale=2, seed=1)
    return write_clips(tmp_path, "clip0", frames=6, scale=2)


def cached(root, **changes):
    """Return a data set that reads root/cache. changes: keys of the section datasets.train."""
    return build(
        root, gt_size=16, io_backend={"type": "cache", "path": str(root / "cache")}, **changes
    )


def make_cache(root, **changes):
    """Write the cache of the clips to root/cache. changes: keys of the section datasets.train."""
    return build_cache(source_of(section(root, **changes)), str(root / "cache"))


def test_samples_from_the_cache_are_those_from_the_files_also_from_an_earlier_version(root):
    (root / "cache").mkdir()  # an empty folder may be there
    make_cache(root)
    files = build(root, gt_size=16, **TURNS)
    cache = cached(root, **TURNS)
    assert len(files) == len(cache)
    assert all(same(files[(e, i)], cache[(e, i)]) for e in range(3) for i in range(len(files)))
    rgb = {"dataset_type": "VideoRecurrentTrainDataset", "dataroot_spike": None, "spike": None}
    item = cached(root, **rgb)[(0, 0)]
    assert "spike" not in item
    assert item["gt"].shape[-1] == 16
    index = json.loads((root / "cache/index.json").read_text())
    for key in ("bit_order", "layout"):  # caches of an earlier version lack them
        del index["spike"][key]
    (root / "cache/index.json").write_text(json.dumps(index))
    os.rename(root / "GOPRO_Large", root / "elsewhere")

    assert same(cached(root, **TURNS)[(0, 3)], cache[(0, 3)])


def test_a_cache_of_chosen_clips_holds_only_these_and_an_array_that_is_gone_during_the_run_is_named(
    root,
):
    meta = {"meta_info_file": str(root / "meta.txt")}
    (root / "meta.txt").write_text("clip1 3 0 000001\n")
    make_cache(root, **meta)
    dataset = cached(root, **meta)
    gone = root / "cache/clip1/gt.u8"
    assert len(dataset) == 3
    with pytest.raises(DataError, match="another selection of clips"):
        cached(root)
    gone.unlink()
    with pytest.raises(DataError, match="cannot map cached clip") as error:
        dataset[(0, 0)]

    assert str(gone) in str(error.value)


def in_index(root, old, new):
    """Replace a text in the index of the cache."""
    index = root / "cache/index.json"
    assert old in index.read_text()
    index.write_text(index.read_text().replace(old, new))


# A file of the source. Clip clip0 has six frames, clip1 has four.
FRAME = "GOPRO_Large/train/clip0/blur/000002.png"
CHANGED = "lq files of the source have changed since"
FAULTS = {
    "touched": (lambda root: os.utime(root / FRAME, (1, 1)), CHANGED),
    "longer": (
        lambda root: (root / FRAME).write_bytes((root / FRAME).read_bytes() + b"x"),
        CHANGED,
    ),
    "new frame": (
        lambda root: shutil.copy(root / FRAME, (root / FRAME).with_name("000006.png")),
        CHANGED,
    ),
    "cut": (lambda root: os.truncate(root / "cache/clip0/gt.u8", 100), r"gt\.u8 has 100 bytes"),
    "format": (lambda root: in_index(root, '"format": 1', '"format": 99'), "format 99"),
    "no index": (lambda root: (root / "cache/index.json").unlink(), "cannot read the clip cache"),
    "name": (
        lambda root: in_index(root, '"name": "clip0"', '"name": "../../clip0"'),
        "cannot be the name of a clip",
    ),
    "spikes": (lambda root: in_index(root, '"height": 8', '"height": 12'), "its spikes are"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_cache_that_does_not_fit_its_source_or_is_broken_is_refused(root, name):
    damage, said = FAULTS[name]
    make_cache(root)
    cached(root)
    damage(root)
    with pytest.raises(DataError, match=said):
        cached(root)


def test_an_interrupted_build_goes_on_where_it_stopped(root):
    def interrupt(clips):
        """Give the first clip, then stop as by Ctrl-C."""
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
    assert same(cached(root)[(0, 7)], build(root, gt_size=16)[(0, 7)])


def test_a_cache_is_replaced_by_a_newer_one_of_its_clips_and_not_of_another_split(root):
    make_cache(root)
    os.utime(root / FRAME, (1, 1))
    make_cache(root)
    assert len(cached(root)) == 10
    for kind in ("GOPRO_Large", "GOPRO_Large_spike_seq"):
        for clip in sorted((root / kind / "train").iterdir()):
            clip.rename(clip.with_name(f"other_{clip.name}"))
    with pytest.raises(DataError, match="the cache of other clips: clip0"):
        make_cache(root)


@pytest.mark.parametrize(("path", "is_cache"), [
    ("cache/clip0/photo.png", False), ("cache/clip0/notes.txt", True), ("cache/index.json", True),
    ("cache", False), (".cache.partial/clip0/photo.png", False),
])  # fmt: skip
def test_nothing_foreign_makes_room_for_a_cache(root, path, is_cache):
    if is_cache:
        make_cache(root)
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("[]")
    before = files(root)
    with pytest.raises(DataError) as error:
        make_cache(root)

    assert files(root) == before
    assert "build it" not in str(error.value)


def test_a_source_that_is_here_in_part_is_checked_in_part_and_wrong_data_make_no_cache(root):
    with pytest.raises(OptionError, match="lies in"):
        build_cache(source_of(section(root)), str(root / "GOPRO_Large/train/cache"))
    os.rename(root / FRAME, root / "frame.png")
    with pytest.raises(DataError, match="lq lacks 1 of 6 frames"):
        make_cache(root)
    assert not (root / "cache").exists()
    os.rename(root / "frame.png", root / FRAME)
    make_cache(root)
    os.rename(root / "GOPRO_Large_spike_seq/train", root / "elsewhere")
    spike = {"type": "dat", "h": 8, "w": 12}
    assert len(cached(root, spike=spike)) == 10
    os.utime(root / FRAME, (1, 1))
    with pytest.raises(DataError, match="files of the source have changed since"):
        cached(root, spike=spike)
