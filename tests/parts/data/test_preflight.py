import os
import shutil
import zlib

import cv2
import numpy as np
import pytest

from data.clips.preflight import preflight
from data.spike.formats import SpikeGeometry, write_spikes
from tests.helpers.clip_files import (
    cached,
    check,
    doctor_of_data,
    resolved,
    section,
    write_clip,
    write_clips,
    write_info,
)
from utils.errors import DataError
from utils.options.models import DatasetsOptions


@pytest.fixture
def root(tmp_path):
    write_clip(tmp_path, "clip9", split="test", seed=9)
    return write_clips(tmp_path, "clip0", "clip1")


def options(root, **changes):
    train = section(root, **changes)
    datasets = DatasetsOptions(train=resolved(train), test=resolved(section(root, "test")))
    return datasets, root / "experiments/.preflight"


def frame(root, name="blur/000003.png", clip="clip0"):
    return root / "GOPRO_Large/train" / clip / name


def complaint(root, **changes):
    with pytest.raises(DataError) as error:
        preflight(*options(root, **changes))
    return str(error.value)


def test_sound_data_are_not_read_again_unless_files_or_options_change(root, caplog):
    def said():
        caplog.clear()
        preflight(*options(root))
        return caplog.text

    caplog.set_level("INFO")
    assert (
        "data train: 2 clips, 12 frames of 16 x 24, spike files of 24 planes, checked in" in said()
    )
    assert said().count("as checked before") == 2
    assert "do not follow filename_tmpl" in complaint(root, filename_tmpl="08d")
    for stored in (root / "experiments/.preflight").iterdir():
        stored.write_text("{")  # as a full disk leaves it
    assert said().count("checked in") == 2
    frame(root).write_bytes(frame(root).read_bytes()[:-20])
    for _ in range(2):  # a check with problems is not stored
        assert "is cut short" in complaint(root)


def test_a_missing_root_hides_no_problem_of_the_other_split(root, capsys):
    (root / "GOPRO_Large/test/clip9/blur/000003.png").unlink()
    wrong = {"dataroot_gt": str(root / "nowhere")}
    assert doctor_of_data(root, train=section(root, **wrong), test=section(root, "test")) == 3
    for said in (capsys.readouterr().err, complaint(root, **wrong)):
        assert str(root / "nowhere") in said and "clip9 | lq lacks 1 of 6 frames" in said


@pytest.mark.parametrize("damage", ["huge size in the header", "flipped bits"])
def test_a_picture_with_damaged_content_is_found_by_decoding(root, damage):
    content = bytearray(frame(root).read_bytes())
    if damage == "flipped bits":
        content[len(content) // 2] ^= 0xFF
    else:
        content[16:24] = b"\x7f\xff\xff\xff" * 2
        content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    frame(root).write_bytes(bytes(content))
    (problem,) = check(section(root), decode=True).problems
    assert "cannot read image" in str(problem) and problem.where == str(frame(root))
    assert damage != "flipped bits" or check(section(root)).problems == []


def test_spikes_that_look_upside_down_are_a_warning(root, caplog):
    preflight(*options(root))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    write_info(root, flip=None)
    warnings = check(section(root, spike={"type": "dat", "flip": False})).warnings
    assert len(warnings) == 2 and "look upside down" in str(warnings[0])
    caplog.set_level("INFO")
    for _ in range(2):  # the second time from the stored result
        caplog.clear()
        preflight(*options(root, spike={"type": "dat", "flip": False}))
        assert caplog.text.count("look upside down") == 2
    assert "as checked before" in caplog.text


def test_ratios_that_do_not_fit_the_frames_are_a_warning(root):
    def said(windows=(2, 6), **spike):
        about = {
            "gamma": 2.2,
            "representation": {"type": "relative", "half_windows": list(windows)},
            **spike,
        }
        return " ".join(map(str, check(section(root, spike={"type": "dat", **about})).warnings))

    assert said() == ""  # nothing says that these frames are the mean of display values
    for clip in (root / "GOPRO_Large/train").iterdir():
        shutil.copytree(clip / "blur", clip / "blur_gamma")
    assert "blur is not the mean of the linear values that the spikes integrate" in said()
    spike = {
        "type": "dat",
        "gamma": 2.2,
        "representation": {"type": "relative", "half_windows": [2, 6]},
    }
    assert not check(section(root, lq_folder="blur_gamma", spike=spike)).warnings
    write_info(root, light="display")
    assert said() == ""
    for path in (root / "GOPRO_Large_spike_seq/train").glob("*/spike/*.dat"):
        stream = np.zeros((24, 8, 12), np.uint8)
        stream[6, ::2] = stream[18, ::2] = 1  # 0.04 spikes per plane
        write_spikes(path, stream, SpikeGeometry(8, 12))
    assert "0.042 spikes per plane: the windows of half_windows [2, 6]" in said()
    assert "half_windows" not in said([6])


def test_clips_that_are_held_out_and_pictures_that_lose_bits_are_told_once(root, caplog):
    for number in ("011", "020", "100"):
        write_clip(root, number, seed=int(number))
    deep, grey = frame(root, "sharp/000000.png", "100"), frame(root, "blur/000000.png", "100")
    cv2.imwrite(str(deep), cv2.imread(str(deep)).astype(np.uint16) * 257)
    cv2.imwrite(str(grey), cv2.imread(str(grey), cv2.IMREAD_GRAYSCALE))
    rgb = {"dataset_type": "VideoRecurrentTrainDataset", "dataroot_spike": None, "spike": None}
    for _ in range(2):
        caplog.clear()
        preflight(*options(root, **rgb, val_partition="REDS4"))
        warnings = [
            record.getMessage() for record in caplog.records if record.levelname == "WARNING"
        ]
        assert warnings == [
            "data train: val_partition: 2 of 5 clips are left out, 011, 020: KAIR trains on them, as null does here"
            f"  [{root}/GOPRO_Large/train]",
            f"data train: 100: lq is a grey image: its value is used for R, G and B  [{grey}]",
            f"data train: 100: gt has 16 bits: they are cut to 8  [{deep}]",
        ]


def test_a_cache_is_checked_for_its_freshness(root, caplog):
    caplog.set_level("INFO")
    backend = cached(section(root), root / "cache")["io_backend"]
    preflight(*options(root, io_backend=backend))
    assert "data train: 2 cached clips" in caplog.text
    os.utime(frame(root), (1, 1))
    assert "the clip cache does not fit the data" in complaint(root, io_backend=backend)
