import os
import shutil

import cv2
import numpy as np
import pytest

from data.select_dataset import build_dataset
from tests.clip_files import PLANES, section, write_clip, write_info
from utils.errors import DataError

PLANE_BYTES = 12


@pytest.fixture
def root(tmp_path):
    for number in range(2):
        write_clip(tmp_path, f"clip{number}", first=47, seed=number)
    write_info(tmp_path)
    return tmp_path


def build(root, split="train", **changes):
    return build_dataset(section(root, split, **changes), split, 0)


def complaint(root, **changes):
    with pytest.raises(DataError) as error:
        build(root, **changes)
    return str(error.value)


def blur(root, clip="clip0"):
    return root / "GOPRO_Large/train" / clip / "blur"


def spike(root, clip="clip0"):
    return root / "GOPRO_Large_spike_seq/train" / clip / "spike"


def test_published_and_regrouped_folders_hold_the_same_clips(tmp_path):
    write_clip(tmp_path / "a", "clip0", first=47)
    write_clip(tmp_path / "b", "clip0", first=47, regrouped=True)
    for name in "ab":
        write_info(tmp_path / name)
    a, b = build(tmp_path / "a"), build(tmp_path / "b", regrouped=True)

    assert a.clips[0].stems == b.clips[0].stems == tuple(f"{47 + i:06d}" for i in range(6))
    assert (a[(0, 2)]["lq"] == b[(0, 2)]["lq"]).all() and (a[(0, 2)]["gt"] == b[(0, 2)]["gt"]).all()


def test_the_blurry_folder_can_be_chosen(root):
    for clip in ("clip0", "clip1"):
        shutil.copytree(blur(root, clip), blur(root, clip).parent / "blur_gamma")
    assert "blur_gamma" in build(root, lq_folder="blur_gamma").clips[0].lq[0]
    assert "/blur/" in build(root).clips[0].lq[0]


@pytest.mark.parametrize("line", ["{} 4 (8,12,3) 000048", "{} 4 (8, 12, 3) 000048", "{} 4 0 000048"])
def test_a_meta_file_chooses_clips_and_frames(root, line):
    (root / "meta.txt").write_text(line.format("clip1") + "\n")
    clips = build(root, meta_info_file=str(root / "meta.txt")).clips

    assert [clip.name for clip in clips] == ["clip1"]
    assert clips[0].stems == ("000048", "000049", "000050", "000051")


def test_a_meta_file_that_lists_what_is_not_there_is_an_error(root):
    (root / "meta.txt").write_text("clip0 9 0 000047\nclip5 1 0 000000\n")
    text = complaint(root, meta_info_file=str(root / "meta.txt"))

    assert "clip0 | lq lacks 3 of 9 frames: 000053.png, 000054.png, 000055.png" in text
    assert "clip5 | lq has no folder" in text
    assert f"remove the clips from the meta list {root}/meta.txt" in text
    assert "cannot read the meta file" in complaint(root, meta_info_file=str(root / "none.txt"))
    (root / "meta.txt").write_text("clip0\n")
    assert "line 1 is 'clip0'" in complaint(root, meta_info_file=str(root / "meta.txt"))


def rename_frames(root, name_of):
    """Rename all files of all clips by their number."""
    for path in [p for p in root.rglob("*") if p.suffix in (".png", ".dat")]:
        path.rename(path.with_name(name_of(int(path.stem)) + path.suffix))


@pytest.mark.parametrize("name_of", ["{:06d}", "{}", "{:04d}", "frame_{}"])
@pytest.mark.parametrize("line", ["clip0 5 0 48", "clip0 5 (16,24,3) 000048"])
def test_a_meta_file_of_s_vrt_or_kair_fits_however_numbers_are_written(tmp_path, name_of, line):
    write_clip(tmp_path, "clip0", first=96 - 48, frames=6)
    write_info(tmp_path)
    rename_frames(tmp_path, name_of.format)
    (tmp_path / "meta.txt").write_text(line + "\n")
    meta = {"meta_info_file": str(tmp_path / "meta.txt")}

    assert build(tmp_path, **meta).clips[0].stems == tuple(name_of.format(i) for i in range(48, 53))
    if name_of == "{}":
        assert "do not follow filename_tmpl '06d': 48, 49" in complaint(tmp_path, filename_tmpl="06d", **meta)
    (tmp_path / "meta.txt").write_text(line.replace(" 5 ", " 7 ") + "\n")
    assert f"clip0 | lq lacks 1 of 7 frames: {name_of.format(54)}.png" in complaint(tmp_path, **meta)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("clip0 3 (16,24,3)", ""),  # BasicSR's form: from frame 0 on
        ("clip0 3 47", "line 1 is"),  # 47 may be the shape's 0 or the first frame
        ("clip0 3 0 0\nclip0 3 0 3", "line 2 lists clip clip0 again"),
        ("../../x 3 0 0", "'../../x' cannot be the name of a clip"),
        ("/tmp/x 3 0 0", "'/tmp/x' cannot be the name of a clip"),
        ("clip0 0 0 0", "line 1 is"),
    ],
)
def test_lines_of_a_meta_file_that_say_nothing_certain_are_refused(tmp_path, line, said):
    write_clip(tmp_path, "clip0")
    write_info(tmp_path)
    (tmp_path / "meta.txt").write_text(line + "\n")
    meta = {"meta_info_file": str(tmp_path / "meta.txt")}
    if said:
        assert said in complaint(tmp_path, **meta)
    else:
        assert build(tmp_path, **meta).clips[0].stems == ("000000", "000001", "000002")


def test_frames_and_clips_are_in_the_order_of_their_numbers(tmp_path):
    for name in ("clip10", "clip2"):
        write_clip(tmp_path, name, frames=11, first=1)
    write_info(tmp_path)
    rename_frames(tmp_path, "frame_{}".format)
    clips = build(tmp_path).clips

    assert [clip.name for clip in clips] == ["clip2", "clip10"]
    assert clips[0].stems == tuple(f"frame_{i}" for i in range(1, 12))
    (blur(tmp_path, "clip2") / "frame_10.png").unlink()
    (blur(tmp_path, "clip2").parent / "sharp/frame_10.png").unlink()
    (spike(tmp_path, "clip2") / "frame_10.dat").unlink()
    assert "clip2 | frame numbers jump at frame_9-frame_11" in complaint(tmp_path)


def test_two_files_of_one_number_are_an_error(root):
    shutil.copy(blur(root) / "000050.png", blur(root) / "50.png")
    assert "clip0 | lq has two files of one number:" in complaint(root)


def test_a_name_that_no_log_can_show_is_an_error(root):
    (root / "GOPRO_Large/train/clip\n9").mkdir()
    assert "'clip\\n9' cannot be the name of a clip or frame" in complaint(root)


def test_a_link_whose_target_is_gone_is_named(root):
    (blur(root) / "000053.png").symlink_to(root / "nowhere.png")
    text = complaint(root)
    assert "cannot read: No such file or directory" in text and str(blur(root) / "000053.png") in text


def test_clips_of_two_scales_are_an_error(tmp_path):
    for number, scale in enumerate((1, 1, 2)):
        write_clip(tmp_path, f"clip{number}", scale=scale)
    write_info(tmp_path)
    assert "clip2 | gt is 2 times as large as lq, that of most clips is 1 times" in complaint(tmp_path)


def test_a_missing_or_empty_root_is_named(root):
    assert "GOPRO_Large/val" in complaint(root, dataroot_lq=str(root / "GOPRO_Large/val"))
    (root / "empty").mkdir()
    assert "holds no clip" in complaint(root, dataroot_gt=str(root / "empty"))


def test_spike_files_without_folders_suggest_spike_exposure(root):
    (root / "captures").mkdir()
    for name in ("200.dat", "203.dat"):
        (root / "captures" / name).write_bytes(bytes(PLANE_BYTES * PLANES))
    text = complaint(root, dataroot_spike=str(root / "captures"), spike={"type": "dat", "h": 8, "w": 12, "center": 1})
    assert "holds no clip, but 2 files (200.dat, 203.dat)" in text and "give spike.exposure" in text


def test_all_problems_come_in_one_message(root):
    os.remove(blur(root) / "000048.png")
    with open(spike(root, "clip1") / "000049.dat", "r+b") as file:
        file.truncate(100)
    write_clip(root, "clip2")
    shutil.rmtree(root / "GOPRO_Large/train/clip2/sharp")
    text = complaint(root)

    assert text.startswith("DataError: 3 problems in the data")
    assert "clip0 | lq lacks 1 of 6 frames: 000048.png" in text
    assert "100 bytes holds 8 planes of 8 x 12 and 4 bytes more" in text and "000049.dat" in text
    assert "clip2 | gt holds no .png file" in text
    assert text.count("clip1") >= 1 and str(root / "GOPRO_Large_spike_seq/train") in text


def test_missing_spikes_are_an_error_and_never_zeros(root):
    os.remove(spike(root) / "000050.dat")
    assert "clip0 | spike lacks 1 of 6 frames: 000050.dat" in complaint(root)
    shutil.rmtree(spike(root).parent)
    assert "clip0 | spike has no folder" in complaint(root)


def test_a_spike_file_without_its_frame_is_an_error(root):
    shutil.copy(spike(root) / "000052.dat", spike(root) / "000053.dat")
    assert "clip0 | lq lacks 1 of 7 frames: 000053.png" in complaint(root)


@pytest.mark.parametrize("planes", [PLANES - 1, PLANES + 1, PLANES * 2])
def test_a_file_within_a_clip_has_as_many_planes_as_the_others(root, planes):
    (spike(root) / "000049.dat").write_bytes(b"\1" * (PLANE_BYTES * planes))
    text = complaint(root)
    assert (
        f"has {planes} planes ({planes * PLANE_BYTES} bytes), expected {PLANES} ({PLANES * PLANE_BYTES} bytes)" in text
    )


@pytest.mark.parametrize(("missing", "fine"), [(1, True), (7, True), (8, False)])
def test_only_the_last_file_may_lack_the_seven_interpolated_planes(root, missing, fine):
    (spike(root) / "000052.dat").write_bytes(b"\1" * (PLANE_BYTES * (PLANES - missing)))
    if fine:
        assert build(root).clips[0].planes == (PLANES,) * 5 + (PLANES - missing,)
    else:
        assert f"has {PLANES - 8} planes" in complaint(root)


@pytest.mark.parametrize(("k", "missing", "fine"), [(20, 19, True), (20, 20, False), (1, 1, False), (4, 3, True)])
def test_how_many_planes_the_last_file_may_lack_comes_from_the_recipe(root, k, missing, fine):
    write_info(root, recipe={"interpolate": k})
    (spike(root) / "000052.dat").write_bytes(b"\1" * (PLANE_BYTES * (PLANES - missing)))
    spikes = {"type": "dat", "center": 1, "representation": {"type": "voxel", "num_bins": 2}}
    if fine:
        assert build(root, spike=spikes).clips[0].planes[-1] == PLANES - missing
    else:
        assert f"has {PLANES - missing} planes" in complaint(root, spike=spikes)


def test_clips_may_differ_in_their_planes(tmp_path):
    for name, planes in (("GOPR0001_07_00", 56), ("GOPR0002_11_00", 88), ("GOPR0003_13_00", 104)):
        write_clip(tmp_path, name, planes=planes)
    dataset = build(tmp_path, spike={"type": "dat", "h": 8, "w": 12, "representation": {"type": "raw", "window": 21}})

    assert [clip.planes[0] for clip in dataset.clips] == [56, 88, 104]
    assert [clip.exposures[0].center for clip in dataset.clips] == [24, 40, 48]
    assert dataset[(0, 0)]["spike"].shape == (3, 21, 8, 8)


def test_files_too_short_for_the_representation_are_found_before_training(root):
    text = complaint(root, spike={"type": "dat", "representation": {"type": "raw", "window": 27}})
    assert "24 planes are too few for spike.representation raw" in text


def test_pictures_and_spikes_must_be_whole_multiples(root):
    cv2.imwrite(str(blur(root) / "000047.png"), np.zeros((16, 20, 3), np.uint8))
    text = complaint(root)
    assert "gt is 16 x 24, lq 16 x 20: no whole multiple" in text
    assert "lq is 16 x 20, spikes 8 x 12: no whole multiple" in text


def test_a_jump_in_the_frame_numbers_is_an_error(root):
    for folder in (blur(root), blur(root).parent / "sharp", spike(root)):
        for path in folder.glob("000049.*"):
            path.unlink()
    assert "clip0 | frame numbers jump at 000048-000050" in complaint(root)


def test_names_that_do_not_follow_the_template_are_an_error(root):
    build(root, filename_tmpl="06d")
    assert "do not follow filename_tmpl '08d'" in complaint(root, filename_tmpl="08d")


def test_an_unreadable_first_picture_is_an_error(root):
    first = blur(root) / "000047.png"
    size_of_zero = first.read_bytes()[:16] + bytes(8) + first.read_bytes()[24:]
    for content in (b"no picture", size_of_zero):
        first.write_bytes(content)
        assert "clip0 | cannot read picture" in complaint(root)


def test_hidden_files_and_other_types_are_left_alone(root):
    for folder in (blur(root), spike(root)):
        (folder / ".DS_Store").write_bytes(b"x")
        (folder / "._000047.png").write_bytes(b"x")
        (folder / "notes.txt").write_bytes(b"x")
    (root / "GOPRO_Large/train/.cache").mkdir()
    assert len(build(root).clips) == 2


def nested_root(root, regrouped):
    """Clips 00001/0001, 00001/0002 and 00002/0001, beside things that are no clips."""
    for number, name in enumerate(("00001/0001", "00001/0002", "00002/0001")):
        write_clip(root, name, seed=number, regrouped=regrouped)
    write_info(root)
    folder = root / "GOPRO_Large" / ("train_GT_blurred" if regrouped else "train")
    (folder / "00001" / ".DS_Store").write_bytes(b"x")
    (folder / "00002" / ".cache").mkdir()
    return folder


@pytest.mark.parametrize("regrouped", [False, True])
def test_clips_in_nested_folders_have_both_names(tmp_path, regrouped):
    nested_root(tmp_path, regrouped)
    dataset = build(tmp_path, regrouped=regrouped)
    assert [clip.name for clip in dataset.clips] == ["00001/0001", "00001/0002", "00002/0001"]
    assert dataset[0, 13]["key"] == "00002/0001/000001"


def test_a_nested_clip_without_spikes_is_named_and_a_folder_of_files_is_a_clip(tmp_path):
    folder = nested_root(tmp_path, regrouped=True)
    shutil.rmtree(tmp_path / "GOPRO_Large_spike_seq/train/00001/0002")
    text = complaint(tmp_path, regrouped=True)
    assert "1 problem " in text and "00001/0002 | spike has no folder" in text
    (folder / "00002" / "notes.txt").write_bytes(b"x")
    assert "00002      | lq holds no .png file" in complaint(tmp_path, regrouped=True)


def test_a_clip_that_lacks_its_blurry_frames_is_no_folder_of_clips(root):
    shutil.rmtree(blur(root))
    assert "clip0 | lq holds no .png file" in complaint(root)


def test_a_long_list_of_problems_is_cut(root):
    for number in range(40):
        (root / f"GOPRO_Large/train/empty{number:02d}").mkdir()
    text = complaint(root)
    assert "120 problems" in text and "... and 90 more" in text


def test_a_partition_keeps_its_clips_out_of_training(tmp_path):
    for name in ("000", "001", "241"):
        write_clip(tmp_path, name, frames=3)
    rgb = {"dataset_type": "VideoRecurrentTrainDataset", "dataroot_spike": None, "spike": None}
    for partition, names in ((None, ["000", "001", "241"]), ("REDS4", ["001", "241"]), ("official", ["000", "001"])):
        assert [clip.name for clip in build(tmp_path, val_partition=partition, **rgb).clips] == names
