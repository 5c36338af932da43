"""The clip cache: arrays of decoded frames and spikes, which are read in place of the files.

`build_cache` writes a folder with index.json and, for each clip, its arrays. Samples from a cache
must equal the samples from the files. A cache that does not fit its files is refused. Nothing that
somebody else put into the folder of a cache is removed.
"""

import json
import os
import shutil
from typing import Any

import cv2
import numpy as np
import pytest

from data.clips.cache_builder import build_cache
from tests.helpers.clip_files import (
    build_clips,
    data_section,
    equal_samples,
    source_of,
    write_clip,
    write_clips,
)
from tests.helpers.gopro_files import read_files
from utils.errors import DataError, OptionError

# All random turns of a sample: flips, turns by 90 degrees, and reversed time.
TURNS: dict[str, Any] = {"use_hflip": True, "use_rot": True, "random_reverse": True}
# Options of a training on frames without spikes.
RGB: dict[str, Any] = {
    "dataset_type": "VideoRecurrentTrainDataset",
    "dataroot_spike": None,
    "spike": None,
}
FRAME = "GOPRO_Large/train/clip0/blur/000002.png"  # a file of the source
# clip0 has six frames, and clip1 has four. A training set has a sample for each frame. Its index is
# (epoch, number of the frame), e.g. (0, 7) for a sample that begins at the second frame of clip1,
# and (0, 3) for a sample that begins at the fourth frame of clip0.
NUMBER_OF_FRAMES = 10


@pytest.fixture
def root(tmp_path):
    """Give a folder with clip0 (six frames, seed 0) and clip1 (four frames, seed 1).

    Blurry frames are twice as large as spike planes, and sharp frames four times.
    """
    write_clip(tmp_path, "clip1", frames=4, scale=2, seed=1)
    return write_clips(tmp_path, "clip0", frames=6, scale=2)


def make_cache(root, **changes):
    """Write the cache of the clips to root/cache. changes: keys of the section datasets.train."""
    return build_cache(source_of(data_section(root, **changes)), str(root / "cache"))


def read_cache(root, **changes):
    """Return a data set that reads root/cache. Its sharp crops are 16 x 16 pixels.

    changes: keys of the section datasets.train.
    """
    backend = {"type": "cache", "path": str(root / "cache")}
    return build_clips(root, gt_size=16, io_backend=backend, **changes)


def replace_in_index(root, old, new):
    """Replace a text in the index of the cache."""
    index = root / "cache/index.json"
    assert old in index.read_text()
    index.write_text(index.read_text().replace(old, new))


# ---- Samples ----


def test_a_cache_gives_the_samples_of_the_files(root):
    (root / "cache").mkdir()  # an empty folder may exist
    make_cache(root)

    from_files = build_clips(root, gt_size=16, **TURNS)
    from_cache = read_cache(root, **TURNS)

    assert len(from_files) == len(from_cache)
    for epoch in range(3):
        for index in range(len(from_files)):
            assert equal_samples(from_files[(epoch, index)], from_cache[(epoch, index)])


def test_a_cache_with_spikes_serves_a_training_without_spikes(root):
    make_cache(root)

    sample = read_cache(root, **RGB)[(0, 0)]

    assert "spike" not in sample
    assert sample["gt"].shape[-1] == 16


def test_a_cache_can_be_read_without_its_source(root):
    make_cache(root)
    before = read_cache(root, **TURNS)[(0, 3)]

    os.rename(root / "GOPRO_Large", root / "elsewhere")

    assert equal_samples(read_cache(root, **TURNS)[(0, 3)], before)


def test_a_cache_of_an_earlier_version_is_read(root):
    make_cache(root)
    before = read_cache(root, **TURNS)[(0, 3)]
    # Earlier versions did not write these keys.
    index = json.loads((root / "cache/index.json").read_text())
    for key in ("bit_order", "layout"):
        del index["spike"][key]
    (root / "cache/index.json").write_text(json.dumps(index))

    assert equal_samples(read_cache(root, **TURNS)[(0, 3)], before)


def test_a_cache_has_the_form_that_it_always_had(root):
    make_cache(root)

    index = json.loads((root / "cache/index.json").read_text())
    assert index["format"] == 1
    assert index.keys() == {"format", "source", "selection", "spike", "clips"}
    of_clip = {"name", "stems", "lq", "gt", "gt_instants", "spike", "planes", "size", "gt_size"}
    assert index["clips"][0].keys() == of_clip
    # Frames are arrays (frames, H, W, 3) in the order of OpenCV: B, G, R.
    assert sorted(os.listdir(root / "cache/clip0")) == ["gt.u8", "lq.u8", "spike.u8"]
    files = sorted((root / "GOPRO_Large/train/clip0/blur").iterdir())
    frames = b"".join(np.asarray(cv2.imread(str(path))).tobytes() for path in files)
    assert (root / "cache/clip0/lq.u8").read_bytes() == frames
    # The array has the planes of all spike files, one after the other, packed as in a .dat.
    files = sorted((root / "GOPRO_Large_spike_seq/train/clip0/spike").iterdir())
    planes = b"".join(path.read_bytes() for path in files)
    assert (root / "cache/clip0/spike.u8").read_bytes() == planes


@pytest.fixture
def option_of_three_frames(root):
    """Give the option that chooses three frames of clip1, of which a cache was made."""
    # A line has the name of the clip, its number of frames, its shape (0: not known), and its first
    # frame.
    (root / "meta.txt").write_text("clip1 3 0 000001\n")
    choice = {"meta_info_file": str(root / "meta.txt")}
    make_cache(root, **choice)
    return choice


def test_a_cache_of_chosen_clips_holds_only_these(root, option_of_three_frames):
    assert len(read_cache(root, **option_of_three_frames)) == 3

    # Without the option, all clips are asked for.
    with pytest.raises(DataError, match="another selection of clips"):
        read_cache(root)


def test_an_array_that_is_removed_during_the_run_is_named(root, option_of_three_frames):
    dataset = read_cache(root, **option_of_three_frames)
    removed = root / "cache/clip1/gt.u8"
    removed.unlink()

    with pytest.raises(DataError, match="cannot map cached clip") as error:
        dataset[(0, 0)]

    assert str(removed) in str(error.value)


# ---- A cache that does not fit ----

# Each of the next functions damages the cache, or changes a file of its source.


def touch(root):
    os.utime(root / FRAME, (1, 1))  # another time of change


def lengthen(root):
    (root / FRAME).write_bytes((root / FRAME).read_bytes() + b"x")


def add_a_frame(root):
    shutil.copy(root / FRAME, (root / FRAME).with_name("000006.png"))


def cut_an_array(root):
    os.truncate(root / "cache/clip0/gt.u8", 100)


def change_the_format(root):
    replace_in_index(root, '"format": 1', '"format": 99')


def remove_the_index(root):
    (root / "cache/index.json").unlink()


def lead_out_of_the_folder(root):
    replace_in_index(root, '"name": "clip0"', '"name": "../../clip0"')


def change_the_size_of_spikes(root):
    replace_in_index(root, '"height": 8', '"height": 12')


CHANGED = "lq files of the source have changed since"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (touch, CHANGED),
        (lengthen, CHANGED),
        (add_a_frame, CHANGED),
        (cut_an_array, r"gt\.u8 has 100 bytes"),
        (change_the_format, "format 99"),
        (remove_the_index, "cannot read the clip cache"),
        (lead_out_of_the_folder, "cannot be the name of a clip"),
        (change_the_size_of_spikes, "its spikes are"),
    ],
)
def test_a_cache_that_does_not_fit_its_source_or_is_broken_is_refused(root, damage, message):
    make_cache(root)
    read_cache(root)  # raises nothing, because the cache still fits

    damage(root)

    with pytest.raises(DataError, match=message):
        read_cache(root)


@pytest.fixture
def without_spike_files(root):
    """Make a cache, then move the spike files of its source away. Give the section `spike`."""
    make_cache(root)
    os.rename(root / "GOPRO_Large_spike_seq/train", root / "elsewhere")
    # The section states the size of the planes, because no spike file is left in the source.
    return {"type": "dat", "h": 8, "w": 12}


def test_a_cache_is_read_although_a_part_of_its_source_is_missing(root, without_spike_files):
    assert len(read_cache(root, spike=without_spike_files)) == NUMBER_OF_FRAMES


def test_the_part_of_a_source_that_exists_is_checked(root, without_spike_files):
    touch(root)

    with pytest.raises(DataError, match="files of the source have changed since"):
        read_cache(root, spike=without_spike_files)


# ---- Making a cache ----


def test_an_interrupted_build_goes_on_where_it_stopped(root):
    # `build_cache` takes its clips one by one from a function. Usually this function shows the
    # progress.
    def interrupt(clips):
        """Give the first clip, then stop as by Ctrl-C."""
        yield clips[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_cache(source_of(data_section(root)), str(root / "cache"), interrupt)
    assert not (root / "cache").exists()
    # An unfinished cache lies in the folder .cache.partial.
    made = root / ".cache.partial/clip0/lq.u8"
    time_of_first_clip = made.stat().st_mtime_ns

    make_cache(root)

    # The first clip was not written again.
    assert (root / "cache/clip0/lq.u8").stat().st_mtime_ns == time_of_first_clip
    # The second clip was added: sample 7 belongs to clip1.
    assert equal_samples(read_cache(root)[(0, 7)], build_clips(root, gt_size=16)[(0, 7)])


def test_a_cache_is_replaced_by_a_newer_one_of_its_clips(root):
    make_cache(root)
    touch(root)

    make_cache(root)

    assert len(read_cache(root)) == NUMBER_OF_FRAMES


def test_a_cache_is_not_replaced_by_one_of_another_split(root):
    make_cache(root)
    for kind in ("GOPRO_Large", "GOPRO_Large_spike_seq"):
        for clip in sorted((root / kind / "train").iterdir()):
            clip.rename(clip.with_name(f"other_{clip.name}"))

    with pytest.raises(DataError, match="the cache of other clips: clip0"):
        make_cache(root)


# path: where the foreign file lies. is_in_cache: whether a cache was made before.
@pytest.mark.parametrize(
    ("path", "is_in_cache"),
    [
        ("cache/clip0/photo.png", False),
        ("cache/clip0/notes.txt", True),
        ("cache/index.json", True),
        ("cache", False),
        (".cache.partial/clip0/photo.png", False),
    ],
    ids=["no cache", "beside arrays", "the index", "a file at its path", "an unfinished cache"],
)
def test_a_cache_replaces_no_foreign_file(root, path, is_in_cache):
    if is_in_cache:
        make_cache(root)
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("[]")
    before = read_files(root)

    with pytest.raises(DataError) as error:
        make_cache(root)

    assert read_files(root) == before
    # The message must not advise to build the cache, because that is what failed.
    assert "build it" not in str(error.value)


def test_a_cache_within_its_source_is_refused(root):
    with pytest.raises(OptionError, match="lies in"):
        build_cache(source_of(data_section(root)), str(root / "GOPRO_Large/train/cache"))


def test_wrong_data_make_no_cache(root):
    (root / FRAME).unlink()

    with pytest.raises(DataError, match="lq lacks 1 of 6 frames"):
        make_cache(root)

    assert not (root / "cache").exists()
