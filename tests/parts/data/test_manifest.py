"""The clips of one root or several: layouts, meta files and names that fit, and what is said of
those that do not.
"""

import dataclasses
import json
import shutil
from collections import Counter
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.clips.clip_reader import user_clips
from data.clips.manifest import Source
from data.loader import TrainLoader
from tests.helpers import clip_files
from tests.helpers.checked import present
from tests.helpers.clip_files import (
    build,
    cached,
    check,
    resolved,
    same,
    section,
    set_for_testing,
    set_for_training,
    write_clip,
    write_clips,
    write_dat,
    write_info,
)
from tests.helpers.damage import examples
from utils.errors import DataError, OptionError

PLANES, PLANE_BYTES = clip_files.PLANES, 12


@pytest.fixture
def root(tmp_path):
    return write_clips(tmp_path, "clip0", "clip1", first=47)


def complaint(root, **changes):
    with pytest.raises(DataError) as error:
        build(root, **changes)
    return str(error.value)


def folder(root, kind, clip="clip0"):
    base = "GOPRO_Large_spike_seq" if kind == "spike" else "GOPRO_Large"
    return root / base / "train" / clip / kind


def of_all_kinds(root, pattern, clip="clip0"):
    return [
        path
        for kind in ("blur", "sharp", "spike")
        for path in folder(root, kind, clip).glob(pattern)
    ]


def test_published_and_regrouped_folders_hold_the_same_clips(root, tmp_path):
    a, b = (
        build(root),
        build(write_clips(tmp_path / "b", "clip0", first=47, regrouped=True), regrouped=True),
    )
    assert a.clips[0].stems == b.clips[0].stems == tuple(f"{47 + i:06d}" for i in range(6))
    assert same(a[(0, 2)], b[(0, 2)])


def test_the_blurry_folder_can_be_chosen_and_other_files_are_left_alone(root):
    for clip in ("clip0", "clip1"):
        shutil.copytree(folder(root, "blur", clip), folder(root, "blur_gamma", clip))
    for kind in ("blur", "spike"):
        for name in (".DS_Store", "._000047.png", "notes.txt"):
            (folder(root, kind) / name).write_bytes(b"x")
    (root / "GOPRO_Large/train/.cache").mkdir()
    assert "blur_gamma" in build(root, lq_folder="blur_gamma").clips[0].lq[0]
    assert "/blur/" in build(root).clips[0].lq[0] and len(build(root).clips) == 2


def test_a_meta_file_that_lists_what_is_not_there_is_an_error(root):
    (root / "meta.txt").write_text("clip0 9 0 000047\nclip5 1 0 000000\n")
    text = complaint(root, meta_info_file=str(root / "meta.txt"))

    assert "clip0 | lq lacks 3 of 9 frames: 000053.png, 000054.png, 000055.png" in text
    assert "clip5 | lq has no folder" in text
    assert f"remove the clips from the meta list {root}/meta.txt" in text
    assert "cannot read the meta file" in complaint(root, meta_info_file=str(root / "none.txt"))


def rename_frames(root, name_of):
    for path in [p for p in root.rglob("*") if p.suffix in (".png", ".dat")]:
        path.rename(path.with_name(name_of(int(path.stem)) + path.suffix))


@pytest.mark.parametrize("name_of", ["{:06d}", "{}", "{:04d}", "frame_{}"])
@pytest.mark.parametrize(
    "line", ["clip0 5 0 48", "clip0 5 (16,24,3) 000048", "clip0 5 (16, 24, 3) 000048"]
)
def test_a_meta_file_of_s_vrt_or_kair_fits_however_numbers_are_written(tmp_path, name_of, line):
    write_clips(tmp_path, "clip0", "clip1", first=48)
    rename_frames(tmp_path, name_of.format)
    (tmp_path / "meta.txt").write_text(line + "\n")
    meta: dict[str, Any] = {"meta_info_file": str(tmp_path / "meta.txt")}

    (clip,) = build(tmp_path, **meta).clips
    assert clip.name == "clip0" and clip.stems == tuple(name_of.format(i) for i in range(48, 53))
    if name_of == "{}":
        assert "do not follow filename_tmpl '06d': 48, 49" in complaint(
            tmp_path, filename_tmpl="06d", **meta
        )
    (tmp_path / "meta.txt").write_text(line.replace(" 5 ", " 7 ") + "\n")
    assert f"clip0 | lq lacks 1 of 7 frames: {name_of.format(54)}.png" in complaint(
        tmp_path, **meta
    )


def test_lines_of_a_meta_file_that_say_nothing_certain_are_refused(tmp_path):
    write_clips(tmp_path, "clip0")
    meta = tmp_path / "meta.txt"
    for line, said in (
        ("clip0 3 47", "line 1 is"),  # 47 may be the shape's 0 or the first frame
        ("clip0 3 0 0\nclip0 3 0 3", "line 2 lists clip clip0 again"),
        ("../../x 3 0 0", "'../../x' cannot be the name of a clip"),
        ("/tmp/x 3 0 0", "'/tmp/x' cannot be the name of a clip"),
        ("clip0 0 0 0", "line 1 is"),
        ("clip0", "line 1 is 'clip0'"),
    ):
        meta.write_text(line + "\n")
        assert said in complaint(tmp_path, meta_info_file=str(meta)), line
    meta.write_text("clip0 3 (16,24,3)\n")  # BasicSR's form: from frame 0 on
    assert build(tmp_path, meta_info_file=str(meta)).clips[0].stems == (
        "000000",
        "000001",
        "000002",
    )


def test_frames_and_clips_are_in_the_order_of_their_numbers(tmp_path):
    write_clips(tmp_path, "clip10", "clip2", frames=11, first=1)
    rename_frames(tmp_path, "frame_{}".format)
    clips = build(tmp_path).clips

    assert [clip.name for clip in clips] == ["clip2", "clip10"]
    assert clips[0].stems == tuple(f"frame_{i}" for i in range(1, 12))
    for path in of_all_kinds(tmp_path, "frame_10.*", "clip2"):
        path.unlink()
    assert "clip2 | frame numbers jump at frame_9-frame_11" in complaint(tmp_path)


def copy_of(path, name):
    """Copy a file to another name in its folder."""
    shutil.copy(path, path.with_name(name))


def write_first(root, content):
    (folder(root, "blur") / "000047.png").write_bytes(content)


RAW_27 = {"type": "dat", "representation": {"type": "raw", "window": 27}}
SMALL_PNG = cv2.imencode(".png", np.zeros((16, 20, 3), np.uint8))[1].tobytes()
DAMAGES = {  # what is done, what is said, and option keys
    "two files of a number": (
        lambda root: copy_of(folder(root, "blur") / "000050.png", "50.png"),
        ["clip0 | lq has two files of one number:"]),
    "no name for a log": (
        lambda root: (root / "GOPRO_Large/train/clip\n9").mkdir(),
        ["'clip\\n9' cannot be the name of a clip or frame"]),
    "link without target": (
        lambda root: (folder(root, "blur") / "000053.png").symlink_to(root / "nowhere.png"),
        ["cannot read: No such file or directory", "clip0/blur/000053.png"]),
    "another scale": (
        lambda root: write_clip(root, "clip2", scale=2),
        ["clip2 | gt is 2 times as large as lq, that of most clips is 1 times"]),
    "no spikes of a clip": (
        lambda root: shutil.rmtree(folder(root, "spike").parent), ["clip0 | spike has no folder"]),
    "spikes without frame": (
        lambda root: copy_of(folder(root, "spike") / "000052.dat", "000053.dat"),
        ["clip0 | lq lacks 1 of 7 frames: 000053.png"]),
    "few planes": (lambda root: None, ["24 planes are too few for spike.representation raw"],
        {"spike": RAW_27}),
    "no multiple": (
        lambda root: write_first(root, SMALL_PNG),
        ["gt is 16 x 24, lq 16 x 20: no whole multiple",
         "lq is 16 x 20, spikes 8 x 12: no whole multiple"]),
    "gap": (
        lambda root: [path.unlink() for path in of_all_kinds(root, "000049.*")],
        ["clip0 | frame numbers jump at 000048-000050"]),
    "template": (lambda root: None, ["do not follow filename_tmpl '08d'"],
        {"filename_tmpl": "08d"}),
    "size of zero": (
        lambda root: write_first(root, SMALL_PNG[:16] + bytes(8) + SMALL_PNG[24:]),
        ["clip0 | cannot read image"]),
    "no blurry frames": (lambda root: shutil.rmtree(folder(root, "blur")),
        ["clip0 | lq holds no .png file"]),
    "many": (
        lambda root: [(root / f"GOPRO_Large/train/empty{n:02d}").mkdir() for n in range(40)],
        ["120 problems", "... and 90 more"]),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_fault_of_the_data_is_named_before_training(root, name):
    damage, texts, *changes = DAMAGES[name]
    build(root)
    damage(root)
    said = complaint(root, **dict(*changes))
    assert all(text in said for text in texts), said


def test_a_root_without_clips_says_what_to_do(root):
    (root / "empty").mkdir()
    assert "holds no clip" in complaint(root, dataroot_gt=str(root / "empty"))
    for name in ("200.dat", "203.dat"):
        (root / "empty" / name).write_bytes(bytes(PLANE_BYTES * PLANES))
    text = complaint(
        root,
        dataroot_spike=str(root / "empty"),
        spike={"type": "dat", "h": 8, "w": 12, "center": 1},
    )
    assert "holds no clip, but 2 files (200.dat, 203.dat)" in text and "give spike.exposure" in text


# Only the last file may lack the planes that are interpolated after it: 8 for GoPro, or as the
# recipe says.
@pytest.mark.parametrize(("number", "interpolate", "planes", "fine"), [
    *((49, None, planes, False) for planes in (PLANES - 1, PLANES + 1, PLANES * 2)),
    *((52, None, PLANES - missing, missing < 8) for missing in (1, 7, 8)),
    *((52, 20, PLANES - missing, missing < 20) for missing in (19, 20)),
    (52, 1, PLANES - 1, False), (52, 4, PLANES - 3, True),
])  # fmt: skip
def test_a_file_within_a_clip_has_as_many_planes_as_the_others(
    root, number, interpolate, planes, fine
):
    if interpolate:
        write_info(root, recipe={"interpolate": interpolate})
    (folder(root, "spike") / f"0000{number}.dat").write_bytes(b"\1" * (PLANE_BYTES * planes))
    spikes = {"type": "dat", "center": 1, "representation": {"type": "voxel", "num_bins": 2}}
    if fine:
        assert build(root, spike=spikes).clips[0].planes == (PLANES,) * 5 + (planes,)
    else:
        said = f"has {planes} planes ({planes * PLANE_BYTES} bytes), "
        said += f"expected {PLANES} ({PLANES * PLANE_BYTES} bytes)"
        assert said in complaint(root, spike=spikes)


@pytest.mark.parametrize(
    "line",
    ["clip0 " + "9" * 5000 + " (16,24,3)", "clip0 6 (16,24,3) " + "9" * 5000,
     "clip0 99999999 (16,24,3)", "clip0 1000001 0 0", "clip0 0 (16,24,3)"],
    ids=["frames", "first", "many", "too many", "none"],
)  # fmt: skip
def test_numbers_of_a_list_that_no_clip_has_are_refused(root, line):
    (root / "meta.txt").write_text(line + "\n")

    text = complaint(root, meta_info_file=str(root / "meta.txt"))

    assert "line 1 is " in text and len(text) < 1000


@examples(100)
@given(
    data=st.binary(max_size=60)
    | st.lists(
        st.sampled_from(
            ["clip0", "a/b", "..", "0", "6", "9" * 30, "(1,1,3)", "(", ")", "\n", "\x00"]
        ),
        max_size=12,
    ).map(lambda words: " ".join(words).encode())
)
def test_whatever_a_list_of_clips_holds_it_is_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "meta.txt"
    path.write_bytes(data)

    try:
        listed = Source("lq", meta_info_file=str(path)).listed
    except DataError as error:
        assert error.where.startswith(str(path))
    else:
        assert all(1 <= count <= 1_000_000 for count, _ in present(listed).values())


@pytest.mark.parametrize("template", ["x", "{}", "1000d", "08.3f", " d", "s", "-8d"])
def test_a_form_of_names_that_is_none_is_refused(root, template):
    with pytest.raises(OptionError, match="filename_tmpl"):
        build(root, filename_tmpl=template)


@pytest.mark.parametrize(
    "change",
    [{"num_frame": 10_001}, {"gt_size": 2**16 + 1}, {"interval_list": [1, 10_001]},
     {"spike": {"type": "dat", "gamma": 1e-300}}, {"spike": {"type": "dat", "gamma": 1e300}}],
    ids=str,
)  # fmt: skip
def test_numbers_far_above_any_use_are_refused(root, change):
    with pytest.raises(OptionError, match=next(iter(change))):
        build(root, **change)


def test_clips_may_differ_in_their_planes(tmp_path):
    for name, planes in (("GOPR0001_07_00", 56), ("GOPR0002_11_00", 88), ("GOPR0003_13_00", 104)):
        write_clip(tmp_path, name, planes=planes)
    dataset = build(
        tmp_path,
        spike={"type": "dat", "h": 8, "w": 12, "representation": {"type": "raw", "window": 21}},
    )

    assert [clip.planes[0] for clip in dataset.clips] == [56, 88, 104]
    assert [clip.exposures[0].center for clip in dataset.clips] == [24, 40, 48]
    assert dataset[(0, 0)]["spike"].shape == (3, 21, 8, 8)


@pytest.mark.parametrize("regrouped", [False, True])
def test_clips_in_nested_folders_have_both_names(tmp_path, regrouped):
    write_clips(tmp_path, "00001/0001", "00001/0002", "00002/0001", regrouped=regrouped)
    lq = tmp_path / "GOPRO_Large" / ("train_GT_blurred" if regrouped else "train")
    (lq / "00001" / ".DS_Store").write_bytes(b"x")
    (lq / "00002" / ".cache").mkdir()
    dataset = build(tmp_path, regrouped=regrouped)

    assert [clip.name for clip in dataset.clips] == ["00001/0001", "00001/0002", "00002/0001"]
    assert dataset[0, 13]["key"] == "00002/0001/000001"
    shutil.rmtree(tmp_path / "GOPRO_Large_spike_seq/train/00001/0002")
    text = complaint(tmp_path, regrouped=regrouped)
    assert "1 problem " in text and "00001/0002 | spike has no folder" in text
    (lq / "00002" / "notes.txt").write_bytes(b"x")  # a folder of files is a clip
    assert "00002      | lq holds no .png file" in complaint(tmp_path, regrouped=regrouped)


def test_a_partition_keeps_its_clips_out_of_training(tmp_path):
    for name in ("000", "001", "241"):
        write_clip(tmp_path, name, frames=3)
    rgb: dict[str, Any] = {
        "dataset_type": "VideoRecurrentTrainDataset",
        "dataroot_spike": None,
        "spike": None,
    }
    for partition, names in (
        (None, ["000", "001", "241"]),
        ("REDS4", ["001", "241"]),
        ("official", ["000", "001"]),
    ):
        assert [
            clip.name for clip in build(tmp_path, val_partition=partition, **rgb).clips
        ] == names


SPIKE = {
    "type": "dat",
    "resize": "nearest",
    "center": "gt",
    "representation": {"type": "tfp", "offsets": [0]},
}


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Two roots; the second has larger frames, more RGB pixels a spike pixel and another camera."""
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    write_clips(one, "a", "b")
    for seed, clip in enumerate(("a", "c", "d")):
        write_clip(two, clip, seed=5 + seed, frames=4, h=16, w=20)
        for frame in range(4):
            stream = np.random.default_rng([seed, frame]).random((40, 8, 10)) < 0.3
            path = two / "GOPRO_Large_spike_seq/train" / clip / "spike" / f"{frame:06d}.dat"
            write_dat(path, stream.astype(np.uint8))
    write_info(two, h=8, w=10, planes=40, gt_plane=20, rate=0.5, light="display")
    return one, two


def joined(roots, split="train", **changes):
    each = [section(root, split) for root in roots]
    lists = {key: [one[key] for one in each] for key in each[0] if key.startswith("dataroot_")}
    return each[0] | lists | {"spike": SPIKE} | changes


def test_a_sample_of_several_roots_is_that_of_its_own_root_and_batches_have_one_shape(roots):
    turned: dict[str, Any] = {"use_hflip": True, "use_rot": True, "random_reverse": True}
    every = set_for_training(joined(roots, **turned), seed=3)
    single = [build(root, seed=3, spike=SPIKE, **turned) for root in roots]
    assert [clip.name for clip in every.clips] == ["0/a", "0/b", "1/a", "1/c", "1/d"]
    assert len(every) == 2 * 6 + 3 * 4
    for index in range(2 * len(every)):
        draw = every.draw((1, index))
        root, name = draw.clip.name.split("/")
        own = single[int(root)]
        clip = next(clip for clip in own.clips if clip.name == name)
        assert same(every.read(draw), own.read(dataclasses.replace(draw, clip=clip)))
        assert every[(1, index)]["key"].startswith(f"{root}/{name}/")
    assert {present(clip.spikes).rate for clip in every.clips} == {1.0, 0.5}
    assert {clip.grid.step for clip in every.clips} == {2, 4}
    assert {clip.planes[0] for clip in every.clips} == {24, 40}

    values = resolved(joined(roots, dataloader_batch_size=4, dataloader_num_workers=0))
    dataset = set_for_training(values)
    loader = TrainLoader(dataset, values, accumulation_steps=1, seed=0)
    shapes = {tuple(batch["spike"].shape) for (batch,) in loader.start(0, 0)}
    assert shapes == {(4, 3, 1, 8, 8)}


@pytest.mark.parametrize(
    ("share", "counts"), [(None, (12, 12)), ([1, 3], (6, 18)), ([0.9, 0.1], (22, 2))]
)
def test_shares_say_how_many_samples_each_root_gives(roots, share, counts):
    dataset = set_for_training(joined(roots, dataroot_share=share))
    names = [(clip.name, stem) for clip in dataset.clips for stem in clip.stems]
    used = Counter()
    for epoch in range(6):
        begun = [names[dataset.place_of(epoch, index)] for index in range(len(dataset))]
        assert tuple(sum(name.startswith(root) for name, _ in begun) for root in "01") == counts
        used.update(begun)
    # Every frame of a root as often as the others
    for root, count in zip("01", counts, strict=True):
        often = [used[name] for name in names if name[0].startswith(root)]
        assert max(often) - min(often) <= 1 and sum(often) == 6 * count
    again = set_for_training(joined(roots, dataroot_share=share))
    assert same(dataset[(2, 7)], again[(2, 7)])


def test_a_resumed_run_compares_roots_and_shares(roots):
    names = {
        tuple(set_for_training(values).sample_names())
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
            set_for_training(values | changes)
    write_clips(tmp_path, "large", scale=2)
    with pytest.raises(DataError, match="scale 2 and 0 sharp instants in clip 1/large, scale 1"):
        set_for_training(joined((roots[0], tmp_path)))


def test_the_check_and_a_cache_know_every_root(roots, tmp_path, capsys):
    values = joined(roots)
    assert clip_files.doctor_of_data(tmp_path, train=values) == 0
    text = capsys.readouterr().out
    assert (
        "train 0: 2 clips, 12 frames of 16 x 24" in text
        and "train 1: 3 clips, 12 frames of 32 x 40" in text
    )
    in_cache = set_for_training(cached(values, tmp_path / "cache"))
    plain, kept = (set_for_training(values | {"cache_data": is_kept}) for is_kept in (False, True))
    for index in range(len(plain)):
        assert same(plain[(0, index)], in_cache[(0, index)])
        assert same(plain[(0, index)], kept[(0, index)])


def test_several_roots_can_be_tested_on_and_weights_say_what_they_have_in_common(roots, tmp_path):
    folders = {key: value for key, value in joined(roots).items() if key.startswith("dataroot_")}
    values = joined(roots, "test") | folders
    clips = set_for_testing(values).readers()
    alone = joined(roots[1:], "test") | {key: value[1:] for key, value in folders.items()}
    single = set_for_testing(alone).readers()
    assert len(clips) == 5
    assert [clip.name for clip in clips[2:]] == [f"1/{clip.name}" for clip in single]
    assert clips[0].dataset.count_folders() == 5
    for clip, same_clip in zip(clips[2:], single, strict=True):
        assert (
            torch.equal(clip.frame(1)["spike"], same_clip.frame(1)["spike"])
            and clip.digest() == same_clip.digest()
        )
    kept = set_for_testing(cached(values, tmp_path / "cache")).readers()
    assert (
        torch.equal(kept[3].frame(2)["spike"], clips[3].frame(2)["spike"])
        and kept[3].digest() != clips[3].digest()
    )

    known = resolved(joined(roots)).spike_data
    assert known == {
        "rate": "match",
        "light": "linear",
        "center": "gt",
        "planes": None,
        "gt_plane": None,
    }
    assert (
        resolved(joined((roots[0], roots[0]))).spike_data
        == resolved(section(roots[0], spike=SPIKE)).spike_data
    )


def test_a_clip_may_have_spikes_of_its_own(tmp_path):
    write_clips(tmp_path, "a", "b")
    table = {
        "format": 1,
        "matrix": [[2, 0, 0.5], [0, 2, 0.5]],
        "spike_size": [8, 12],
        "rgb_size": [16, 24],
    }
    expected = [build(tmp_path, spike=SPIKE)[(0, index)] for index in range(12)]
    write_info(tmp_path, clips={"b": {"rate": 0.5, "planes": 24, "rig": {"any": 1}}})
    halved = build(tmp_path, spike=SPIKE)
    for index, before in enumerate(expected):
        assert torch.equal(
            halved[(0, index)]["spike"],
            before["spike"] * (2 if before["key"].startswith("b") else 1),
        )
    spikes, frames = (
        tmp_path / name / "train" for name in ("GOPRO_Large_spike_seq", "GOPRO_Large")
    )
    for clip, rate in zip(user_clips(frames, spikes, spike_options=SPIKE), (1.0, 0.5), strict=True):
        single = user_clips(
            frames / clip.name / "blur", spikes / clip.name / "spike", spike_options=SPIKE
        )[0]
        assert clip.clip.spikes.rate == single.clip.spikes.rate == rate
    write_info(tmp_path, clips={"b": {"calibration": table}})
    (tmp_path / "b.json").write_text(json.dumps(table))
    spike = SPIKE | {"resize": "bilinear"}
    for calibration, of_a, of_b in (
        (None, None, None),
        ("recorded", None, 0.5),
        (str(tmp_path / "b.json"), 0.5, 0.5),
    ):
        clips = build(tmp_path, spike=spike | {"calibration": calibration}).clips
        known = [clip.spikes.calibration and clip.spikes.calibration.matrix[0][2] for clip in clips]
        assert known == [of_a, of_b]
    names = build(tmp_path, spike=spike | {"calibration": "recorded"}).sample_names()
    assert any("calibration" in line for line in names)
    write_info(tmp_path, rate=None, clips={"a": {"rate": 0.7}, "b": {"rate": 0.5}})
    values = section(tmp_path, spike=SPIKE)
    assert resolved(values).spike_data["rate"] == "match" and not check(values).warnings
    write_info(tmp_path, clips={"b": {"rate": "fast"}})
    with pytest.raises(DataError, match=r"clip b: rate.* is 'fast'"):
        build(tmp_path, spike=SPIKE)
