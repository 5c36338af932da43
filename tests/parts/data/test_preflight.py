"""The check of the data before a run: what it finds, its messages, and what it does not read again.

Most tests write two training clips and a test clip of six frames each, in the layout of the GoPro
data set, with one fault. `preflight` is the check of a training. `check_clips`
(tests/helpers/clip_files.py) does the same check for one section of the options, and returns its
report. `doctor_of_data` runs the program scripts/doctor.py, which a user calls before a training.
The exit code 3 means that the data have problems.
"""

import os
import shutil
import zlib
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from data.clips.preflight import preflight
from data.spike.formats import read_spikes, write_spikes
from data.spike.geometry import SpikeGeometry
from tests.helpers.checked import read_picture
from tests.helpers.clip_files import (
    add_cache,
    check_clips,
    data_section,
    doctor_of_data,
    resolve_section,
    set_for_testing,
    write_clip,
    write_clips,
    write_info,
)
from utils.errors import DataError
from utils.options.loader_options import DatasetsOptions

TRAIN = "GOPRO_Large/train"
TRAIN_SPIKES = "GOPRO_Large_spike_seq/train"


@pytest.fixture
def root(tmp_path):
    """Give a folder with the training clips clip0 and clip1, and the test clip clip9.

    Frames have 16 x 24 pixels, and a spike file has 24 planes of 8 x 12.
    """
    write_clip(tmp_path, "clip9", split="test", seed=9)
    return write_clips(tmp_path, "clip0", "clip1")


def check_training_data(root, **changes):
    """Run the check of a training on the data of `root`. changes: keys of datasets.train.

    The check stores its result in experiments/.preflight, and a second check takes it over.
    """
    train = resolve_section(data_section(root, **changes))
    test = resolve_section(data_section(root, "test"))
    datasets = DatasetsOptions(train=train, test=test)
    preflight(datasets, root / "experiments/.preflight")


def error_of_check(root, **changes):
    """Run the check of a training, which must refuse the data. Return the text of the error."""
    with pytest.raises(DataError) as error:
        check_training_data(root, **changes)
    return str(error.value)


@pytest.fixture
def log_of_check(root, caplog):
    """Give a function that runs the check of a training, and returns the log of this run alone.

    Its arguments are keys of datasets.train.
    """
    caplog.set_level("INFO")

    def run(**changes):
        caplog.clear()
        check_training_data(root, **changes)
        return caplog.text

    return run


def training_picture(root, name="blur/000003.png", clip="clip0"):
    """Return the path of a picture of a training clip."""
    return root / TRAIN / clip / name


def cut_short(path):
    """Remove the last 20 bytes of a picture, as if a copy was interrupted."""
    path.write_bytes(path.read_bytes()[:-20])


# ---- Data that were checked before ----


def test_sound_data_are_not_read_again(log_of_check):
    first = log_of_check()
    second = log_of_check()

    counts = "data train: 2 clips, 12 frames of 16 x 24, spike files of 24 planes, checked in"
    assert counts in first
    # The log has this line once for the training clips and once for the test clips.
    assert second.count("as checked before") == 2


# `root` has the training clips clip0 and clip1, and the test clip clip9.
def test_data_are_read_again_if_options_change(root, log_of_check):
    log_of_check()

    assert "do not follow filename_tmpl" in error_of_check(root, filename_tmpl="08d")


def test_data_are_read_again_if_the_stored_result_is_damaged(root, log_of_check):
    log_of_check()
    for stored in (root / "experiments/.preflight").iterdir():
        stored.write_text("{")  # e.g. the disk was full

    assert log_of_check().count("checked in") == 2


def test_data_with_problems_are_read_again(root, log_of_check):
    log_of_check()
    cut_short(training_picture(root))

    # The first check finds the changed file. A result with problems is not stored. So the second
    # check reads the files again, and finds the problem again.
    for _ in range(2):
        assert "is cut short" in error_of_check(root)


def test_a_cache_of_files_that_have_changed_since_is_refused(root, log_of_check):
    # `add_cache` makes a cache, and returns the section that reads it.
    backend = add_cache(data_section(root), root / "cache")["io_backend"]

    assert "data train: 2 cached clips" in log_of_check(io_backend=backend)

    os.utime(training_picture(root), (1, 1))  # gives it another time of change
    assert "the clip cache does not fit the data" in error_of_check(root, io_backend=backend)


def test_the_progress_of_the_check_counts_every_file(root):
    calls = []

    @contextmanager
    def show(total, name, unit):
        """Note the arguments of the progress bar, then 1 for each file."""
        calls.append((total, name, unit))
        yield SimpleNamespace(update=lambda: calls.append(1))

    check_clips(data_section(root), show=show)

    # There are two clips of six frames. Each frame has a blurry picture, a sharp picture and a
    # spike file.
    files = 2 * 6 * 3
    arguments, *updates = calls
    assert arguments == (files, "checking train", "files")
    assert updates == [1] * files


# ---- Pictures ----


def test_a_missing_root_hides_no_problem_of_the_other_split(root, capsys):
    (root / "GOPRO_Large/test/clip9/blur/000003.png").unlink()
    wrong: dict[str, Any] = {"dataroot_gt": str(root / "nowhere")}

    code = doctor_of_data(root, train=data_section(root, **wrong), test=data_section(root, "test"))

    assert code == 3
    # The doctor and the check of a training both name both problems.
    for message in (capsys.readouterr().err, error_of_check(root, **wrong)):
        assert str(root / "nowhere") in message
        assert "clip9 | lq lacks 1 of 6 frames" in message


def test_a_missing_root_hides_no_problem_of_another_root_of_its_split(root, capsys):
    write_clips(root / "second", "clip2")
    (root / "second" / TRAIN / "clip2/blur/000003.png").unlink()
    # The first root lacks its sharp frames, and the second root lacks one blurry frame.
    roots: dict[str, Any] = {
        "dataroot_lq": [str(root / TRAIN), str(root / "second" / TRAIN)],
        "dataroot_gt": [str(root / "nowhere"), str(root / "second" / TRAIN)],
        "dataroot_spike": [str(root / TRAIN_SPIKES), str(root / "second" / TRAIN_SPIKES)],
    }

    code = doctor_of_data(root, train=data_section(root, **roots), test=data_section(root, "test"))

    assert code == 3
    for message in (capsys.readouterr().err, error_of_check(root, **roots)):
        assert str(root / "nowhere") in message
        assert "clip2 | lq lacks 1 of 6 frames" in message


def enlarge_in_header(content):
    """Write the size 2^31 - 1 x 2^31 - 1 into the header of a PNG picture, with its checksum."""
    # Bytes 12 to 28 are the header: 4 bytes each for its name, the width and the height, and 5
    # bytes for the format. Bytes 29 to 32 are the checksum of the header.
    content[16:24] = b"\x7f\xff\xff\xff" * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")


def flip_bits(content):
    """Flip the bits of a byte in the middle of a picture."""
    content[len(content) // 2] ^= 0xFF


@pytest.mark.parametrize("damage", [enlarge_in_header, flip_bits])
def test_a_picture_with_damaged_content_is_found_by_decoding(root, damage):
    content = bytearray(training_picture(root).read_bytes())
    damage(content)
    training_picture(root).write_bytes(content)

    (problem,) = check_clips(data_section(root), decode=True).problems

    assert "cannot read image" in str(problem)
    assert problem.where == str(training_picture(root))


def test_flipped_bits_are_not_found_without_decoding(root):
    content = bytearray(training_picture(root).read_bytes())
    flip_bits(content)
    training_picture(root).write_bytes(content)

    # The usual check reads only headers and lengths. Decoding is an option, because it takes long.
    assert check_clips(data_section(root)).problems == []


def test_a_clip_with_a_picture_that_cannot_be_decoded_is_still_counted(root):
    first = training_picture(root, "sharp/000000.png")
    cut_short(first)

    report = check_clips(data_section(root), decode=True)

    assert [problem.where for problem in report.problems] == [str(first)]
    assert report.counts().startswith("2 clips, 12 frames")


@pytest.fixture
def root_with_odd_pictures(root):
    """Give `root` with the clips 011, 020 and 100. Clip 100 has a grey and a 16-bit picture."""
    for number in ("011", "020", "100"):
        write_clip(root, number, seed=int(number))
    deep = training_picture(root, "sharp/000000.png", "100")
    grey = training_picture(root, "blur/000000.png", "100")
    # 255 x 257 = 65535 is the largest number of 16 bits. So white stays white.
    cv2.imwrite(str(deep), read_picture(deep).astype(np.uint16) * 257)
    cv2.imwrite(str(grey), read_picture(grey, cv2.IMREAD_GRAYSCALE))
    return root


def test_each_check_warns_once_of_held_out_clips_and_of_pictures_that_lose_bits(
    root_with_odd_pictures, caplog
):
    root = root_with_odd_pictures
    without_spikes = {
        "dataset_type": "VideoRecurrentTrainDataset",
        "dataroot_spike": None,
        "spike": None,
    }

    # The second check takes over the stored result, and gives the same warnings.
    for _ in range(2):
        caplog.clear()
        # REDS4 is a list of four clips of the data set REDS, which papers use for tests: 000, 011,
        # 015 and 020. This root has two of these four clips, 011 and 020.
        check_training_data(root, **without_spikes, val_partition="REDS4")

        records = [record for record in caplog.records if record.levelname == "WARNING"]
        warnings = [record.getMessage() for record in records]
        grey = training_picture(root, "blur/000000.png", "100")
        deep = training_picture(root, "sharp/000000.png", "100")
        assert warnings == [
            "data train: val_partition: 2 of 5 clips are left out, 011, 020: KAIR trains on them; "
            f"to do the same, set val_partition to null  [{root}/GOPRO_Large/train]",
            f"data train: 100: lq is a grey image: its value is used for R, G and B  [{grey}]",
            f"data train: 100: gt has 16 bits: they are cut to 8  [{deep}]",
        ]


# ---- Spikes ----


def last_line_of_doctor(root, capfd, **spike):
    """Check the training clips by doctor.py --data. Return the last line, without its end."""
    section = data_section(root, spike={"type": "dat", **spike})
    assert doctor_of_data(root, train=section) == 0
    return capfd.readouterr().out.splitlines()[-1]


def test_the_last_line_of_the_doctor_counts_its_warnings(root, capfd):
    write_info(root, flip=None)

    # With flip=False, both training clips are upside down, which gives one warning for each clip.
    assert last_line_of_doctor(root, capfd, flip=False) == "no error, 2 warnings, see above"
    assert last_line_of_doctor(root, capfd, flip=True) == "no problem found"
    shutil.rmtree(root / TRAIN / "clip1")
    shutil.rmtree(root / TRAIN_SPIKES / "clip1")
    assert last_line_of_doctor(root, capfd, flip=False) == "no error, 1 warning, see above"


def test_spikes_that_do_not_look_upside_down_are_no_warning(root, caplog):
    check_training_data(root)

    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_spikes_that_look_upside_down_are_a_warning(root, log_of_check):
    # The files have the bottom row first. dataset.json does not say so, and the options (flip:
    # False) say that the files have the top row first. So the spikes look upside down.
    write_info(root, flip=None)
    spike = {"type": "dat", "flip": False}

    warnings = check_clips(data_section(root, spike=spike)).warnings
    first = log_of_check(spike=spike)
    second = log_of_check(spike=spike)

    # There is one warning for each clip, even if the stored result is taken over.
    assert len(warnings) == 2
    assert "look upside down" in str(warnings[0])
    assert first.count("look upside down") == 2
    assert second.count("look upside down") == 2
    assert "as checked before" in second


def test_spikes_of_inverted_bits_are_a_warning(root):
    for path in (root / TRAIN_SPIKES).rglob("*.dat"):
        inverted = ~np.fromfile(path, np.uint8)
        inverted.tofile(path)

    warnings = check_clips(data_section(root)).warnings

    assert len(warnings) == 2
    assert "spikes look inverted" in str(warnings[0])


def mirror_spikes(root):
    """Reverse the columns of all spike planes of the training clips."""
    geometry = SpikeGeometry(8, 12)
    for path in (root / TRAIN_SPIKES).rglob("*.dat"):
        planes = read_spikes(path, geometry)
        write_spikes(path, planes[:, :, ::-1], geometry)


def change_nothing(root):
    """Leave the spikes as they are."""


# The light of spikes is only compared with frames that show the same scene at the same place.
@pytest.mark.parametrize(
    ("flip", "change", "seed"),
    [
        pytest.param(False, change_nothing, 4, id="upside down"),
        pytest.param(True, mirror_spikes, 0, id="mirrored left to right"),
    ],
)
def test_spikes_at_another_place_than_the_frame_bring_no_hint_on_light(root, flip, change, seed):
    # dataset.json states neither light nor rate, so the check compares the spikes with linear light
    # and with display light. The seed decides how bright each pixel is. With this seed, display
    # light fits better than linear light even if the spikes lie at another place than the frame. So
    # without the rule that is tested, the check would give a wrong hint.
    write_clip(root, "clip0", seed=seed)
    write_info(root, flip=None, light=None, rate=None)
    assert "look like display light" in warnings_on(root, spike={"type": "dat", "flip": True})
    change(root)

    warnings = warnings_on(root, spike={"type": "dat", "flip": flip})

    assert "look like" not in warnings
    # Only spikes that are upside down bring the warning "look upside down". Mirrored spikes do not.
    assert ("look upside down" in warnings) == (not flip)


# The tests below are about ratios of spikes: the representation "relative" divides the light of a
# short window of planes by the light of the exposure. For ratios, the blurry frame must be the mean
# of linear light, and each window must be long enough to hold spikes.


def relative(*half_windows):
    """Return a section `spike` with ratios in windows of these half lengths, in planes."""
    representation = {"type": "relative", "half_windows": list(half_windows)}
    return {"type": "dat", "gamma": 2.2, "representation": representation}


def warnings_on(root, **changes):
    """Return the warnings of the check of a section, as one text."""
    report = check_clips(data_section(root, **changes))
    return " ".join(str(warning) for warning in report.warnings)


def copy_blur_as_blur_gamma(root):
    """Give each training clip a folder blur_gamma, with copies of the frames of blur.

    The check knows only the names of the folders. In the GoPro data set, frames of blur_gamma are
    means of linear light, and frames of blur are means of display values. If a clip has both
    folders, the check assumes that the frames are such means, whatever the pixels are.
    """
    for clip in (root / TRAIN).iterdir():
        shutil.copytree(clip / "blur", clip / "blur_gamma")


MEAN_OF_DISPLAY_VALUES = "blur is not the mean of the linear values that the spikes integrate"


def test_ratios_are_no_warning_if_nothing_says_how_the_frames_were_averaged(root):
    assert warnings_on(root, spike=relative(2, 6)) == ""


def test_ratios_to_frames_that_are_means_of_display_values_are_a_warning(root):
    copy_blur_as_blur_gamma(root)

    text = warnings_on(root, spike=relative(2, 6))

    assert MEAN_OF_DISPLAY_VALUES in text
    # The warning does not say how many dB the wrong frames cost, because this depends on the
    # pictures. For some pictures the wrong frames even help.
    assert "frame x ratio is not the sharp frame: set lq_folder to blur_gamma" in text


def test_ratios_to_frames_that_are_means_of_linear_values_are_no_warning(root):
    copy_blur_as_blur_gamma(root)

    assert warnings_on(root, lq_folder="blur_gamma", spike=relative(2, 6)) == ""


def test_ratios_are_no_warning_if_the_spikes_integrate_display_values(root):
    copy_blur_as_blur_gamma(root)
    write_info(root, light="display")

    assert warnings_on(root, spike=relative(2, 6)) == ""


@pytest.fixture
def root_with_few_spikes(root):
    """Give `root` with few spikes.

    Half of the rows have 2 spikes in 24 planes. So there is 1 spike in 24 planes on average, which
    is 0.042 per plane. A window of half_windows 6 has 13 planes and 0.54 spikes.
    """
    for path in (root / TRAIN_SPIKES).glob("*/spike/*.dat"):
        stream = np.zeros((24, 8, 12), np.uint8)
        stream[6, ::2] = 1
        stream[18, ::2] = 1
        write_spikes(path, stream, SpikeGeometry(8, 12))
    return root


def test_windows_that_are_too_narrow_for_the_spikes_are_a_warning(root_with_few_spikes):
    message = "0.042 spikes per plane: the windows of half_windows [2, 6]"

    assert message in warnings_on(root_with_few_spikes, spike=relative(2, 6))


def test_windows_that_are_wide_enough_for_the_spikes_are_no_warning(root_with_few_spikes):
    # The window has 13 planes and 0.54 spikes, which is less than one spike. But the warning is
    # about several windows that show the same light, and this is the only window. So there is no
    # warning.
    assert "half_windows" not in warnings_on(root_with_few_spikes, spike=relative(6))


# The check looks at the longest window, which is narrow if it has less than one spike on average. A
# half window of 6 planes makes a window of 2 x 6 + 1 = 13 planes. Half of the pixels have `spikes`
# spikes in 24 planes, and the other half have none. So the mean is spikes / 24 / 2:
#
#     spikes    spikes per plane         spikes in 13 planes
#     1         1 / 24 / 2 = 0.021       0.27, less than one
#     4         4 / 24 / 2 = 0.083       1.08
@pytest.mark.parametrize(
    ("half_windows", "spikes", "is_narrow"),
    [
        ([2, 6], 1, True),
        # The longest window has 2 x 10 + 1 = 21 planes and 0.44 spikes.
        ([2, 10], 1, True),
        ([2, 6], 4, False),
        # Numbers below 1 are shares of half the exposure, which has 12 planes. So 0.5 means 6
        # planes.
        ([0.1, 0.5], 1, True),
        ([0.1, 0.5], 4, False),
        # A single window cannot be compared with a second window.
        ([6], 1, False),
    ],
    ids=str,
)
def test_windows_that_fit_between_two_spikes_are_warned_of(
    tmp_path, half_windows, spikes, is_narrow
):
    write_clips(tmp_path, "c", frames=1)
    stream = np.zeros((24, 8, 12), np.uint8)
    stream[:spikes, :, :6] = 1  # the left half of the pixels
    path = tmp_path / TRAIN_SPIKES / "c/spike/000000.dat"
    write_spikes(path, stream, SpikeGeometry(8, 12))
    representation = {"type": "relative", "half_windows": half_windows}

    spike = {"type": "dat", "representation": representation}
    report = check_clips(data_section(tmp_path, spike=spike))

    found = [each.what for each in report.warnings if "make the windows wider" in each.what]
    if is_narrow:
        (what,) = found
        # All narrow cases have 1 spike in half of the pixels: 0.021 spikes per plane.
        words = f"0.021 spikes per plane: the windows of half_windows {half_windows}"
        assert what.startswith(words)
    else:
        assert found == []


# ---- Sharp frames that are the blurry ones ----

SAME_FILES = "gt and lq are the same files"
COPIES = "copies of the blurry ones"


def test_sharp_frames_that_are_the_blurry_ones_are_refused(root):
    message = error_of_check(root, lq_folder="sharp")

    assert message.count(SAME_FILES) == 2  # one for each clip
    assert "correct dataroot_gt, dataroot_lq or lq_folder (sharp)" in message


def test_sharp_frames_behind_a_link_to_the_blurry_ones_are_refused(root):
    for clip in ("clip0", "clip1"):
        sharp = root / TRAIN / clip / "sharp"
        shutil.rmtree(sharp)
        sharp.symlink_to("blur")

    assert error_of_check(root).count(SAME_FILES) == 2


def test_one_root_without_folders_for_blurry_and_sharp_frames_is_refused(root):
    flat = root / "flat"
    for clip in ("clip0", "clip1"):
        shutil.copytree(root / TRAIN / clip / "blur", flat / clip)

    message = error_of_check(root, dataroot_lq=str(flat), dataroot_gt=str(flat))

    assert message.count(SAME_FILES) == 2


def test_the_doctor_refuses_frames_that_are_their_own_sharp_ones(root, capsys):
    code = doctor_of_data(root, train=data_section(root, lq_folder="sharp"))

    printed = capsys.readouterr()
    assert code == 3
    assert SAME_FILES in printed.err
    assert "no problem found" not in printed.out


@pytest.mark.parametrize("is_cached", [False, True], ids=["files", "clip cache"])
def test_the_same_files_are_found_for_a_network_that_does_not_enlarge(root, tmp_path, is_cached):
    values = data_section(root, lq_folder="sharp")
    if is_cached:
        values = add_cache(values, tmp_path / "cache")

    assert len(check_clips(values).problems) == 2
    # For a network that enlarges, blurry and sharp frames cannot be equal. So the check does not
    # compare them.
    assert not check_clips(values, scale=2).problems


def test_a_denoising_test_may_have_one_folder_for_input_and_sharp_frames(root):
    clean = str(root / TRAIN)
    values = {
        "dataset_type": "VideoRecurrentTestDataset",
        "dataroot_lq": clean,
        "dataroot_gt": clean,
        "lq_folder": "sharp",
    }

    # With sigma, the data set adds noise to the frames. So the input differs from the sharp frames.
    denoising = check_clips(values | {"sigma": 30.0})

    assert not denoising.problems
    assert not denoising.warnings
    assert len(check_clips(values).problems) == 2


def test_copies_of_the_blurry_frames_as_sharp_frames_are_warned_of(root, log_of_check):
    # log_of_check() runs the check and returns its log. COPIES are the words of the warning.
    for clip in ("clip0", "clip1"):
        folder = root / TRAIN / clip
        shutil.rmtree(folder / "sharp")
        shutil.copytree(folder / "blur", folder / "sharp")

    assert f"the sharp frames of all clips are {COPIES}" in log_of_check()


def test_copies_of_some_frames_are_no_warning(root, log_of_check):
    # In each clip one true sharp frame is left: the first frame of clip0, and the last frame of
    # clip1.
    for clip, kept in (("clip0", "000000.png"), ("clip1", "000005.png")):
        folder = root / TRAIN / clip
        for path in (folder / "blur").iterdir():
            if path.name != kept:
                shutil.copy(path, folder / "sharp")

    assert COPIES not in log_of_check()


# ---- Folders and names ----


@pytest.fixture
def root_of_kinds(root):
    """Give `root` with a folder `kinds` in another layout: kinds/blur/clip0, kinds/sharp/clip0."""
    for kind in ("blur", "sharp"):
        shutil.copytree(root / TRAIN / "clip0" / kind, root / "kinds" / kind / "clip0")
    return root


@pytest.mark.parametrize(
    ("key", "wrong", "advice"),
    [
        (
            "dataroot_lq",
            "{root}/GOPRO_Large/train/clip0",
            "set dataroot_lq to the folder above it, {root}/GOPRO_Large/train",
        ),
        (
            "dataroot_spike",
            "{root}/GOPRO_Large_spike_seq/train/clip1",
            "set dataroot_spike to the folder above it, {root}/GOPRO_Large_spike_seq/train",
        ),
        (
            "dataroot_lq",
            "{root}/kinds",
            "set dataroot_lq to the folder of its own kind, such as {root}/kinds/blur",
        ),
        (
            "dataroot_gt",
            "{root}/kinds",
            "set dataroot_gt to the folder of its own kind, such as {root}/kinds/sharp",
        ),
    ],
    ids=["a clip", "spikes of a clip", "kinds, lq", "kinds, gt"],
)
def test_a_root_that_is_not_the_folder_of_the_clips_is_named_with_the_one_meant(
    root_of_kinds, key, wrong, advice
):
    # E.g. dataroot_lq is .../train/clip0. The advice names the folder that was meant, .../train.
    root = root_of_kinds
    # A plane has 8 x 12 pixels. `center` is the plane at the middle of a frame: plane 12 of 24.
    spike = {"type": "dat", "h": 8, "w": 12, "center": 12}

    message = error_of_check(root, spike=spike, **{key: wrong.format(root=root)})

    assert advice.format(root=root) in message


def test_spikes_that_count_from_another_number_are_one_problem(root):
    folder = root / TRAIN_SPIKES / "clip0/spike"
    # Rename the last file first, so that no file gets the name of an existing file.
    for number in reversed(range(6)):
        (folder / f"{number:06d}.dat").rename(folder / f"{number + 1:06d}.dat")

    message = error_of_check(root)

    assert "1 problem " in message  # "1 problem in the data:"; several would be "problems"
    assert "spike counts from 000001, lq from 000000" in message
    assert "give the files of one frame the same name" in message


def test_names_with_another_text_are_one_problem(root):
    folder = root / TRAIN / "clip0/sharp"
    for path in sorted(folder.iterdir()):
        path.rename(folder / f"gt_{path.name}")

    message = error_of_check(root)

    assert "1 problem " in message  # "1 problem in the data:"; several would be "problems"
    assert "gt has the name gt_000000 where lq has 000000" in message


def test_one_spike_file_for_several_frames_asks_for_exposures(root):
    folder = root / TRAIN_SPIKES / "clip0/spike"
    for number in range(1, 6):
        (folder / f"{number:06d}.dat").unlink()

    assert "restore the other spike files, or give spike.exposure" in error_of_check(root)


@pytest.mark.parametrize(
    # The middle one of five frames is removed: of 1 2 3 4 5, or of 98 99 100 101 102.
    ("first", "missing"),
    [(1, "3.png"), (98, "100.png")],
    ids=["one digit", "more digits"],
)
def test_a_missing_frame_is_named_as_its_neighbours_are(tmp_path, first, missing):
    write_clips(tmp_path, "c", frames=5)
    write_clip(tmp_path, "t", split="test")
    # Number the files from `first` on, without zeros before the number.
    folders = [
        tmp_path / TRAIN / "c/blur",
        tmp_path / TRAIN / "c/sharp",
        tmp_path / TRAIN_SPIKES / "c/spike",
    ]
    for folder in folders:
        for path in sorted(folder.iterdir()):
            number = first + int(path.stem)
            path.rename(path.with_stem(str(number)))
    training_picture(tmp_path, f"blur/{missing}", "c").unlink()

    message = error_of_check(tmp_path)

    assert f"lq lacks 1 of 5 frames: {missing}\n" in message
    assert "every frame with its lq, gt and spike file; docs/data_format.md" in message


def test_home_and_variables_in_paths_are_replaced(root, monkeypatch, log_of_check):
    monkeypatch.setenv("HOME", str(root))
    monkeypatch.setenv("CLIPS", str(root / "GOPRO_Large"))

    log = log_of_check(
        dataroot_lq="${CLIPS}/train",
        dataroot_gt="$CLIPS/train",
        dataroot_spike="~/GOPRO_Large_spike_seq/train",
    )

    assert "data train: 2 clips, 12 frames" in log


@pytest.mark.parametrize(
    ("path", "message"),
    [("$NO_SUCH/train", "set the variable $NO_SUCH"), ("~nobody_here/x", "no user ~nobody_here")],
)
def test_a_variable_without_a_value_is_named(root, path, message):
    assert message in error_of_check(root, dataroot_lq=path)


def test_an_index_beyond_the_last_clip_is_refused(root):
    clips = set_for_testing(data_section(root, "test"))

    assert len(clips) == 1
    assert len([*clips]) == 1
    for index in (-1, 1):
        with pytest.raises(IndexError):
            clips[index]
