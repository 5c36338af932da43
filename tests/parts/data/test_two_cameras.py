"""A data set with two cameras side by side: an RGB camera and a spike camera, the "second" camera.

The second camera has planes of 30 x 40 pixels and is slightly turned. The frames of the RGB camera
have 45 x 80 pixels. A calibration file says where a spike pixel lies in a frame. The tests compare
the second camera with a spike camera "same". This camera looks through the lens of the RGB camera,
so it needs no calibration.

A plane is what a spike camera records at one instant: one bit for each pixel. A channel, the input
of the network, is a mean of planes. A matrix maps a spike pixel (x, y, 1) to a pixel of a frame.
tests/helpers/two_cameras.py draws a random scene (`record`) and makes the matrices (`similarity`).
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from data.cameras.calibration import Calibration, save_calibration
from data.clips.clip_reader import user_clips
from data.clips.preflight import preflight
from data.select_dataset import build_dataset
from models.portable import read_saved
from tests.helpers.checked import not_none
from tests.helpers.clip_files import (
    add_cache,
    doctor_of_data,
    equal_samples,
    resolve_section,
    write_dat,
)
from tests.helpers.train_files import LOADER, folder_of_run, train, write_options
from tests.helpers.two_cameras import record, similarity
from tests.helpers.weights_files import read_metrics, restore
from utils.errors import DataError, OptionError
from utils.image import imwrite_rgb
from utils.options.loader_options import DatasetsOptions

FRAME = (45, 80)  # height and width of the frames
PLANE = (30, 40)  # height and width of the spike planes
PLANES = 48  # number of planes of a frame
# Spikes per plane of a pixel in full light. `record` simulates spikes with this rate.
RATE = 0.6


# The true position of the second camera relative to the RGB camera.
TRUE_TURN = 2.0  # degrees
TRUE_SHIFT = (2.4, -1.3)  # along x and along y, in pixels of a frame


def position_matrix(
    turn: float = TRUE_TURN, scale: float = 1.37, shift: tuple[float, float] = TRUE_SHIFT
) -> np.ndarray:
    """Return the matrix (3, 3) from spike pixels to frame pixels, for a position of the camera.

    scale: frame pixels per spike pixel. Without arguments the matrix is of the true position.
    """
    return similarity(turn, scale, PLANE, FRAME, shift)


def shifted_along_x(pixels: float) -> np.ndarray:
    """Return the true matrix (3, 3), shifted along x by this number of frame pixels."""
    x, y = TRUE_SHIFT
    return position_matrix(shift=(x + pixels, y))


TRUE_MATRIX = position_matrix()
# Options of the section `spike`: the size of the planes of the second camera.
SIZE_OF_SECOND = {"h": 30, "w": 40}
# Options of the section `spike` for channels that are means of planes. The program divides channels
# by the option `rate`. With 1.0, the channels stay in spikes per plane, from 0 to RATE.
OPTIONS_OF_MEANS = {
    "representation": {"type": "voxel", "num_bins": 2},
    "center": "file",
    "rate": 1.0,
    "light": "linear",
}


class Camera(NamedTuple):
    """A spike camera."""

    name: str  # "second" or "same", the folder of its files
    matrix: np.ndarray  # (3, 3), from spike pixels to frame pixels
    size: tuple[int, int]  # height and width of its planes


def write_frames(
    root: Path, split: str, clip: str, frames: int, seed: int, second: np.ndarray = TRUE_MATRIX
) -> None:
    """Write a clip: RGB frames, spikes of the second camera, and spikes of the camera "same".

    second: the matrix of the second camera.
    """
    without_change = np.eye(3)
    cameras = [Camera("second", second, PLANE), Camera("same", without_change, FRAME)]
    for number in range(frames):
        for camera in cameras:
            # `record` draws the scene with the first random numbers of `rng`. Both cameras get the
            # same random numbers, so they see the same scene.
            rng = np.random.default_rng([seed, number])
            frame, spikes = record(
                rng, camera.matrix, rgb=FRAME, spike=camera.size, planes=PLANES, rate=RATE
            )
            write_dat(root / camera.name / split / clip / "spike" / f"{number:06d}.dat", spikes)
        # Nothing moves, so the sharp frame is the blurry frame.
        picture = frame[..., None].repeat(3, axis=2)
        for folder in ("blur", "sharp"):
            imwrite_rgb(root / "rgb" / split / clip / folder / f"{number:06d}.png", picture)


def write_calibration(path: Path, matrix: np.ndarray, **keys: Any) -> str:
    """Save a calibration. keys: additional fields. Return its path as a text."""
    fields: dict[str, Any] = {"spike_size": list(PLANE), "rgb_size": list(FRAME)}
    fields |= keys
    first_two_rows = np.asarray(matrix)[:2].tolist()
    save_calibration(path, Calibration(matrix=first_two_rows, **fields))
    return str(path)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Give a folder with training clips a and b, test clip c, and the true calibration."""
    root = tmp_path_factory.mktemp("cameras")
    write_frames(root, "train", "a", frames=3, seed=0)
    write_frames(root, "train", "b", frames=3, seed=1)
    write_frames(root, "test", "c", frames=3, seed=2)
    write_calibration(root / "true.json", TRUE_MATRIX)
    return root


def camera_section(root: Path, split: str, kind: str = "second", **spike: Any) -> dict[str, Any]:
    """Return a section of `datasets`.

    kind: the camera, "second" or "same". spike: keys of its section `spike` to replace.
    """
    if kind == "second":
        camera = SIZE_OF_SECOND | {"calibration": str(root / "true.json")}
    else:
        camera = {"h": 45, "w": 80}
    values = {
        "dataroot_gt": str(root / "rgb" / split),
        "dataroot_lq": str(root / "rgb" / split),
        "dataroot_spike": str(root / kind / split),
        "spike": {"type": "dat"} | OPTIONS_OF_MEANS | camera | spike,
    }
    if split == "test":
        return values | {"dataset_type": "TestDatasetRGBSpike"}
    crops = {"num_frame": 2, "gt_size": 24, "use_hflip": True, "use_rot": True}
    return values | {"dataset_type": "TrainDatasetRGBSpike"} | crops


def build_set(root: Path, split: str, kind: str = "second", **spike: Any) -> Any:
    """Return the data set of `camera_section`."""
    return build_dataset(camera_section(root, split, kind, **spike), split, seed=0)


# ---- Channels ----


def mean_channels(dataset: Any) -> torch.Tensor:
    """Return the mean of the channels of the test clip, for each frame and pixel (3, H, W)."""
    clip = dataset[0]
    return clip["spike"].mean(dim=1)


@pytest.fixture(scope="module")
def error_with(home) -> Callable[[str], float]:
    """Give a function: calibration file -> mean error of the channels of the second camera.

    The error is the difference from the channels of the camera "same", in the region of a frame
    that the second camera sees. Channels are between 0 and RATE.
    """
    region = build_set(home, "test").clips[0].grid.region

    def in_region(channels: torch.Tensor) -> torch.Tensor:
        rows, columns = region.slices
        return channels[:, rows, columns]

    ideal = in_region(mean_channels(build_set(home, "test", "same")))

    def error(calibration: str) -> float:
        found = in_region(mean_channels(build_set(home, "test", calibration=calibration)))
        return float((found - ideal).abs().mean())

    return error


# `home` has the training clips a and b, the test clip c, and the true calibration.
def test_the_channels_equal_the_channels_of_a_camera_behind_the_same_lens(home, error_with):
    # One spike in 48 planes is 0.02. So the mean error must be less than half a spike per pixel.
    # The error is not 0, because the two cameras sample the scene at different places.
    assert error_with(str(home / "true.json")) < 0.01


@pytest.mark.parametrize(
    ("matrix", "keys"),
    [
        pytest.param(TRUE_MATRIX, {"mirror": "columns"}, id="mirrored"),
        pytest.param(position_matrix(turn=TRUE_TURN - 8), {}, id="turned by 8 degrees more"),
        pytest.param(shifted_along_x(5), {}, id="shifted by 5 pixels more"),
    ],
)
def test_with_a_wrong_calibration_the_channels_differ(tmp_path, error_with, matrix, keys):
    wrong = write_calibration(tmp_path / "wrong.json", matrix, **keys)

    # The errors are 0.071 (mirrored), 0.020 (turned) and 0.031 (shifted). With the true calibration
    # the error is 0.008, and the limit is twice this error.
    assert error_with(wrong) > 0.016


@pytest.mark.parametrize("kind", ["second", "same"])
def test_rate_match_divides_the_channels_by_the_rate_of_the_camera(home, kind):
    # "match" means that the program finds the rate from frames and spikes.
    matched = build_set(home, "test", kind, rate="match")[0]["spike"]
    given = build_set(home, "test", kind, rate=1.0)[0]["spike"]

    factor = (matched / given)[given > 0].median()
    # The measured rate differs from the true rate only by the noise of the spikes.
    assert float(factor) == pytest.approx(1 / RATE, rel=0.05)


# ---- Samples ----


def test_samples_lie_where_both_cameras_look(home):
    dataset = build_set(home, "train")

    epoch = 0
    for number in range(len(dataset)):
        sample = dataset[(epoch, number)]
        assert sample["spike"].shape == (2, 2, 24, 24)  # (frames, channels, H, W)
        # Spikes and frames of a crop must show the same light. If the spikes came from another
        # place, they would not be correlated with the frames. Display values to the power of 2.2
        # are light.
        rates = sample["spike"].mean(dim=1).ravel()
        light = sample["gt"].mean(dim=1).ravel() ** 2.2
        assert np.corrcoef(rates, light)[0, 1] > 0.8


def test_samples_are_the_same_from_a_cache(home):
    dataset = build_set(home, "train")

    from_cache = build_dataset(
        add_cache(camera_section(home, "train"), home / "cache"), "train", seed=0
    )

    epoch = 0
    for number in range(len(dataset)):
        assert equal_samples(dataset[(epoch, number)], from_cache[(epoch, number)])


def test_crops_that_are_larger_than_what_both_cameras_see_are_refused(home):
    # A spike plane covers 30 x 1.37 = 41 rows of a frame, because a spike pixel is 1.37 frame
    # pixels high. So crops of 44 rows are too large.
    too_large = camera_section(home, "train") | {"gt_size": 44}

    with pytest.raises(DataError, match="what the spike camera sees"):
        build_dataset(too_large, "train", seed=0)


def test_a_changed_note_in_a_calibration_does_not_change_the_names_of_the_samples(home, tmp_path):
    # A resumed run compares the names. `made` is a note, which has no effect on a sample.
    file = tmp_path / "calibration.json"
    write_calibration(file, TRUE_MATRIX, made={"by": "hand"})
    names = build_set(home, "train", calibration=str(file)).sample_names()

    write_calibration(file, TRUE_MATRIX, made={"by": "someone else"})

    assert build_set(home, "train", calibration=str(file)).sample_names() == names


def test_another_calibration_under_the_same_name_changes_the_names_of_the_samples(home, tmp_path):
    # Another calibration gives other crops. A resumed run must notice that the crops are different.
    file = tmp_path / "calibration.json"
    write_calibration(file, TRUE_MATRIX)
    names = build_set(home, "train", calibration=str(file)).sample_names()

    # The scale along x becomes larger by a thousandth.
    write_calibration(file, TRUE_MATRIX @ np.diag([1.001, 1, 1]))

    assert build_set(home, "train", calibration=str(file)).sample_names() != names


# ---- The check of the data ----
#
# `home` has the test clip c, whose spikes were recorded with the matrix TRUE_MATRIX. A calibration
# says which matrix the program assumes. The tests write calibrations with the true matrix and with
# wrong ones.


@pytest.fixture
def check(home, tmp_path, caplog) -> Callable[..., str]:
    """Give a function that checks the test clips, and returns the lines of the log.

    root: the folder of the clips. spike: keys of the section `spike` to replace.
    """
    caplog.set_level(logging.INFO)

    def run(root: Path = home, **spike: Any) -> str:
        # `resolve_section` adds the defaults to a section.
        datasets = DatasetsOptions(test=resolve_section(camera_section(root, "test", **spike)))
        preflight(datasets, tmp_path / "runs")
        return caplog.text

    return run


def test_the_check_finds_no_fault_with_the_true_calibration(check):
    message = check()

    assert "resemble" not in message
    assert "1 clip, 3 frames" in message


def test_the_check_sees_spikes_of_another_place(check, tmp_path):
    # The calibration says that the second camera is turned by 180 degrees more than it is.
    turned = write_calibration(tmp_path / "turned.json", position_matrix(turn=TRUE_TURN + 180))

    assert "do not resemble the frame" in check(calibration=turned)


def test_the_check_sees_spikes_that_are_upside_down(check):
    # The files have the last row first, so flip=True, the default, would be correct.
    assert "upside down" in check(flip=False)


def test_the_check_finds_no_fault_with_planes_that_are_larger_than_the_frame(check, tmp_path):
    # A spike pixel is 2.4 frame pixels wide. In frame pixels:
    #
    #     a plane of 30 x 40 spike pixels    72 rows (30 x 2.4), 96 columns (40 x 2.4)
    #     a frame                            45 rows, 80 columns
    near = position_matrix(scale=2.4)
    write_frames(tmp_path / "near", "test", "c", frames=1, seed=7, second=near)

    message = check(tmp_path / "near", calibration=write_calibration(tmp_path / "near.json", near))

    assert "resemble" not in message
    assert "upside" not in message
    assert "1 clip, 1 frame of" in message


def test_the_check_refuses_a_calibration_for_frames_of_another_size(check, tmp_path):
    large = write_calibration(tmp_path / "large.json", TRUE_MATRIX, rgb_size=[90, 160])

    expected = r"lq is 45 x 80, spike\.calibration was made for frames of 90 x 160"
    with pytest.raises(DataError, match=expected):
        check(calibration=large)


# ---- The size of a plane ----
#
# `camera_section` gives the options of a data set. `build_set` makes the data set from these
# options. `build_dataset` makes a data set from options that a test has changed.

# Changes of the section `spike`: the height and width of a plane are left out.
NO_SIZE: dict[str, Any] = {"h": None, "w": None}


def test_the_size_of_a_plane_may_come_from_the_calibration(home, tmp_path, capsys):
    without_size = camera_section(home, "test", **NO_SIZE)

    code = doctor_of_data(tmp_path, test=without_size)

    assert code == 0, capsys.readouterr().err
    found = build_dataset(without_size, "test", seed=0)[0]["spike"]
    assert torch.equal(found, build_set(home, "test")[0]["spike"])


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        pytest.param({"h": 15, "w": 80}, "15 x 80", id="another plane"),
        # The missing side is taken from the calibration, but the given side differs from it.
        pytest.param({"h": 15, "w": None}, "15 x 40", id="another height"),
        pytest.param({"h": None, "w": 80}, "30 x 80", id="another width"),
    ],
)
def test_a_size_that_contradicts_the_calibration_is_refused(home, sizes, found):
    expected = f"the calibration was made for spike planes of 30 x 40, these are {found}"
    with pytest.raises(DataError, match=expected):
        build_set(home, "test", **sizes)


def test_a_dataset_json_that_contradicts_the_calibration_is_refused(home, tmp_path):
    spikes = tmp_path / "second"
    shutil.copytree(home / "second", spikes)
    (spikes / "dataset.json").write_text('{"format": 1, "h": 15, "w": 80}')
    values = camera_section(home, "test", **NO_SIZE) | {"dataroot_spike": str(spikes / "test")}

    with pytest.raises(DataError, match="spike planes of 30 x 40, these are 15 x 80"):
        build_dataset(values, "test", seed=0)


def test_a_calibration_that_is_yet_to_be_found_says_no_size(home):
    with pytest.raises(OptionError, match=r"spike\.h is missing") as error:
        build_set(home, "test", calibration="auto", **NO_SIZE)

    assert "spike.calibration" in error.value.expected


def test_a_user_s_own_spikes_need_no_size_beside_a_calibration(home, tmp_path):
    files = ["--input", home / "rgb/test/c/blur", "--spike", home / "second/test/c/spike"]
    flags = ["--method", "exposure", f"spike.calibration={home / 'true.json'}", "spike.rate=1"]
    command = [*files, *flags, "--save", "frames"]

    restore(*command, "--output", tmp_path / "without")
    restore(*command, "--spike-size", 30, 40, "--output", tmp_path / "with")

    without = tmp_path / "without/c/000001.png"
    with_size = tmp_path / "with/c/000001.png"
    assert without.read_bytes() == with_size.read_bytes()


# ---- A training, and its weights ----


class Training(NamedTuple):
    """A training of two steps on the second camera."""

    options: Path  # the option file
    text: str  # what the run printed
    weights: Path


@pytest.fixture(scope="module")
def training(home, tmp_path_factory) -> Training:
    """Train for two steps, with a validation and a save at the end."""
    # The simulated changes of a spike camera must work with a calibration, too. So the changes are
    # switched on.
    camera = {"type": "perturb", "threshold_prob": 1.0, "drop_prob": 1.0}
    datasets = {
        "train": camera_section(home, "train") | LOADER | {"camera": camera},
        "test": camera_section(home, "test"),
    }
    options = write_options(tmp_path_factory.mktemp("trained"), datasets=datasets)
    at_the_end = ("train.checkpoint_test=2", "train.checkpoint_save=2")

    result = train(options, "train.total_iter=2", *at_the_end)

    assert result.exit_codes == [0], result.text
    *_, weights = sorted((folder_of_run(options) / "models").glob("*_G.pth"))
    return Training(options, result.text, weights)


def test_a_training_says_what_the_second_camera_sees(training):
    # The message gives the share of a frame in percent: "the spike camera sees 6x % of it". A plane
    # covers 41 x 55 of the 45 x 80 pixels of a frame, which are about 62 %.
    assert "the spike camera sees 6" in training.text


def test_weights_hold_the_calibration_of_their_training(training):
    stored = not_none(read_saved(training.weights).spike_data)["calibration"]

    assert stored["matrix"] == TRUE_MATRIX[:2].tolist()
    assert stored["spike_size"] == [30, 40]


def test_a_user_s_own_files_are_restored_as_the_test_clip_of_the_option_file(
    home, training, tmp_path
):
    weights = ["--weights", training.weights]
    files = [
        *["--input", home / "rgb/test/c/blur"],
        *["--gt", home / "rgb/test/c/sharp"],
        *["--spike", home / "second/test/c/spike"],
    ]
    # These flags repeat the values of the option file. The tile 0,0 means that a frame is restored
    # as a whole.
    spikes = [
        *["--spike-size", 30, 40],
        f"spike.calibration={home / 'true.json'}",
        "spike.rate=1",
        "spike.light=linear",
        *["--tile", "0,0"],
    ]

    restore("--opt", training.options, *weights, "--output", tmp_path / "by_options")
    restore(*weights, *files, *spikes, "--save", "frames", "--output", tmp_path / "by_flags")

    by_options = read_metrics(tmp_path / "by_options")["clips"]["c"]
    (by_flags,) = read_metrics(tmp_path / "by_flags")["clips"].values()
    # The numbers are in dB. The two runs may cut the clip into other windows of frames. So the
    # numbers are only equal up to rounding.
    expected = by_options["restored"]["psnr"]
    assert by_flags["restored"]["psnr"] == pytest.approx(expected, abs=0.01)


# ---- A user's clip ----


@pytest.fixture
def open_clip(home) -> Callable[..., Any]:
    """Give a function that opens test clip c as a user's own files.

    spike: additional keys of the section `spike`.
    """

    def run(**spike: Any) -> Any:
        options = {"type": "dat"} | SIZE_OF_SECOND | OPTIONS_OF_MEANS | spike
        frames = home / "rgb/test/c/blur"
        (clip,) = user_clips(frames, home / "second/test/c/spike", spike_options=options)
        return clip

    return run


def test_a_user_without_a_calibration_is_told_to_give_one(open_clip):
    # 45 x 80 is no multiple of 30 x 40. So without a calibration the program cannot know the place
    # of a spike pixel.
    with pytest.raises(DataError, match="spikes of 30 x 40 for frames of 45 x 80") as error:
        open_clip()

    assert "spike.calibration" in error.value.do


def test_a_calibration_with_which_the_camera_sees_little_of_a_frame_is_refused(open_clip, tmp_path):
    # The camera is shifted by 45 pixels, more than half of the 80 pixels of a frame.
    far = write_calibration(tmp_path / "far.json", position_matrix(shift=(45, 0)))

    with pytest.raises(DataError, match="sees only"):
        open_clip(calibration=far)


def test_a_user_s_clip_has_the_channels_of_the_test_clip(home, open_clip):
    clip = open_clip(calibration=str(home / "true.json"))

    channels_of_clip = build_set(home, "test")[0]["spike"]
    assert torch.equal(clip.frame(1)["spike"], channels_of_clip[1])


def test_another_calibration_changes_the_digest_of_a_user_s_clip(home, open_clip, tmp_path):
    clip = open_clip(calibration=str(home / "true.json"))

    other = open_clip(calibration=write_calibration(tmp_path / "other.json", TRUE_MATRIX * 1.01))

    assert other.digest() != clip.digest()
