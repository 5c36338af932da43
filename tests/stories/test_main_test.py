"""main_test_vrt.py with both of its command lines: what it restores, writes and refuses.

One command line has an option file (--opt) with a test set. The other command line has a user's
files (--input, --spike). The test clips test0, test1 and test2 have 2, 3 and 4 frames of 32 x 32
pixels (tests/helpers/train_files.py). The weights are random, so restored frames differ from their
input but are not sharp.

The parts of the program are in models/restore/: request.py reads the command line, tiles/ makes
tiles, network_method.py has the weights, and own_spikes.py reads a user's spikes.
"""

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import main_test_vrt
from data.clips.clip_reader import user_clips
from data.spike.formats import read_spikes, write_spikes
from data.spike.geometry import SpikeGeometry
from models.metrics import psnr
from models.portable import read_saved
from models.restore.find_weights import find_weights
from models.restore.own_spikes import spikes_for_network
from models.restore.request import read_request
from models.select_network import NETWORKS
from scripts import demo
from scripts.make_sample_data import make_sample
from tests.dist.launching import RankResult, run_ranks
from tests.helpers import weights_files
from tests.helpers.checked import not_none
from tests.helpers.clip_files import data_section, small_files, write_clip, write_info, write_video
from tests.helpers.tensor_clip import restore_clip
from tests.helpers.train_files import network_section, run_odd
from tests.helpers.weights_files import make_home, read_metrics, refusal_message, save_weights
from utils.errors import CheckpointError
from utils.image import imread_rgb, imwrite_rgb, tensor_to_uint8
from utils.options.models import PathOptions
from utils.video.reader import VideoReader

MAIN = "main_test_vrt.py"
# Time limit of a process in seconds. A process takes a few seconds on an idle machine, but far
# longer on a busy machine. So the limit only ends a process that hangs.
LIMIT_S = 300

# ---- The files of the tests ----


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give a folder with an option file, clips, and weights.

    options.json     the option file
    spike.pth        weights of a network with spikes
    rgb.pth          weights of a network without spikes
    GOPRO_Large/, GOPRO_Large_spike_seq/   the data set
    clips/           the blurry frames of the test clips, as a user's folders
    """
    folder = make_home(tmp_path_factory.mktemp("home"))
    for clip in ("test0", "test1", "test2"):
        shutil.copytree(folder / "GOPRO_Large" / "test" / clip / "blur", folder / "clips" / clip)
    return folder


def option_file_arguments(home):
    """Return the arguments that test the test set of the option file."""
    return ["--opt", home / "options.json", "--weights", home / "spike.pth"]


def user_arguments(home, clip):
    """Return the arguments that restore a user's frames without spikes. clip: their path."""
    return ["--weights", home / "rgb.pth", "--input", clip]


def metrics_of_restoring(out, *arguments):
    """Run main_test_vrt.py in this process. Return its metrics.json.

    out: folder of the results.
    """
    weights_files.restore(*arguments, "--output", out)
    return read_metrics(out)


@pytest.fixture(scope="module")
def tested_folder(home):
    """Give the results of a test with the option file, with frames and comparisons."""
    metrics_of_restoring(
        home / "tested", *option_file_arguments(home), "--save", "frames", "comparison"
    )
    return home / "tested"


def mean_psnr(results):
    """Return the mean PSNR of the restored frames in a metrics.json."""
    return results["averages"]["restored"]["psnr"]


def files_of_clip(home, clip):
    """Return the folders of blurry frames, spikes and sharp frames of a test clip."""
    rgb = home / "GOPRO_Large" / "test" / clip
    spikes = home / "GOPRO_Large_spike_seq" / "test" / clip / "spike"
    return rgb / "blur", spikes, rgb / "sharp"


# ---- The numbers ----


@pytest.fixture(scope="module")
def restored_by_hand(home):
    """Give the frames (4, H, W, 3) of clip test2, restored without main_test_vrt.py.

    The clip is restored as a whole, without tiles.
    """
    saved = read_saved(home / "spike.pth")
    blur, spikes, sharp = files_of_clip(home, "test2")
    # `user_clips` returns a list of readers, here with one reader, because there is one clip.
    (clip,) = user_clips(blur, spikes, sharp, saved.spike)
    items = [clip.frame(number) for number in range(4)]
    # [None] makes a batch of one clip.
    lq = torch.stack([item["lq"] for item in items])[None]
    spike = torch.stack([item["spike"] for item in items])[None]
    # The attention windows of the network have 2 frames of 4 x 4 pixels (`network_section`).
    frames = restore_clip(saved.build(), lq, spike, window_size=(2, 4, 4), least_size=(8, 8))
    return tensor_to_uint8(frames)[0]


def test_the_numbers_equal_the_numbers_of_a_restoration_by_hand(
    home, tested_folder, restored_by_hand
):
    _, _, sharp = files_of_clip(home, "test2")
    by_hand = []
    for number, frame in enumerate(restored_by_hand):
        by_hand.append(psnr(frame, imread_rgb(sharp / f"{number:06d}.png")))

    found = read_metrics(tested_folder)["clips"]["test2"]

    # A few pixel values are rounded in another way, as the next test explains. So the PSNR differs
    # a little. The limit of 0.01 dB is chosen by hand.
    assert found["per_frame"]["restored"]["psnr"] == pytest.approx(by_hand, abs=0.01)
    assert found["restored"]["psnr"] == pytest.approx(np.mean(by_hand), abs=0.01)


def test_the_written_frames_equal_frames_that_were_restored_by_hand(
    tested_folder, restored_by_hand
):
    for number, expected in enumerate(restored_by_hand):
        found = imread_rgb(tested_folder / "test2" / f"{number:06d}.png").astype(int)
        # main_test_vrt.py restores in tiles and sums the tiles. So the order of its sums is not the
        # order of the restoration by hand, and a value may be rounded to the next whole number.
        assert np.abs(found - expected).max() <= 1


def test_a_folder_with_spikes_gives_the_numbers_of_the_data_set(home, tested_folder, tmp_path):
    rgb = home / "GOPRO_Large" / "test"
    spikes = home / "GOPRO_Large_spike_seq" / "test"
    files = ["--weights", home / "spike.pth", "--input", rgb, "--spike", spikes, "--gt", rgb]

    found = metrics_of_restoring(tmp_path, *files, "--tile", "0,0")

    assert found["averages"] == read_metrics(tested_folder)["averages"]
    assert found["protocol"]["weights"].endswith("network from the weights file")


@pytest.mark.parametrize(
    ("factor", "is_equal"),
    [pytest.param(1, True, id="the same threshold"), pytest.param(4, False, id="4 times as high")],
)
def test_the_test_set_can_be_seen_by_a_camera_with_another_threshold(
    home, tested_folder, tmp_path, factor, is_equal
):
    # A pixel fires when its collected light reaches the threshold. With 4 times the threshold, only
    # about a quarter of the spikes are left, so the network restores other frames.
    camera = {"type": "perturb", "threshold_prob": 1, "threshold_range": [factor, factor]}
    option = f"datasets.test.camera={json.dumps(camera)}"

    found = metrics_of_restoring(tmp_path / "out", *option_file_arguments(home), option)

    has_equal_score = mean_psnr(found) == mean_psnr(read_metrics(tested_folder))
    assert has_equal_score == is_equal


# ---- A test that is not complete ----


@pytest.fixture(scope="module")
def incomplete_folder(home, tmp_path_factory):
    """Give the results of a test of only two frames of one of the three clips."""
    folder = tmp_path_factory.mktemp("incomplete")
    # A line has the clip, its number of frames, a shape, and its first frame. The shape is not
    # read.
    (folder / "meta.txt").write_text("test1 3 0 000000\n")
    options = [f"datasets.test.meta_info_file={folder / 'meta.txt'}", "datasets.test.num_frame=2"]
    metrics_of_restoring(folder / "out", *option_file_arguments(home), *options)
    return folder / "out"


def test_a_meta_file_that_leaves_clips_out_makes_the_average_incomplete(incomplete_folder):
    total = read_metrics(incomplete_folder)["averages"]["restored"]

    assert total["clips_found"] == 1
    assert total["clips_expected"] == 3
    assert total["complete"] is False
    assert total["frames"] == 2


def test_the_table_and_the_report_say_that_an_average_is_incomplete(incomplete_folder):
    assert (incomplete_folder / "table.txt").read_text().startswith("INCOMPLETE")
    assert "Incomplete: 1 of 3 clips" in (incomplete_folder / "report.html").read_text()


def test_the_protocol_says_that_frames_are_left_out(incomplete_folder):
    assert read_metrics(incomplete_folder)["protocol"]["frames"] == "the first 2 of each clip"


# ---- What a test leaves ----


def test_a_test_leaves_these_files(tested_folder):
    assert sorted(path.name for path in tested_folder.iterdir()) == [
        "clips",
        "metrics.json",
        "report.html",
        "run.json",
        "strips",
        "table.txt",
        "test0",
        "test0_comparison.mp4",
        "test1",
        "test1_comparison.mp4",
        "test2",
        "test2_comparison.mp4",
    ]


def test_a_comparison_has_all_frames_of_its_clip(tested_folder):
    assert VideoReader(tested_folder / "test2_comparison.mp4").num_frames == 4


# A clip has strips of its first, its middle and its last frame.
def test_a_clip_has_three_strips(tested_folder):
    assert len(list((tested_folder / "strips" / "test2").iterdir())) == 3


def test_the_table_says_the_mean_over_clips(tested_folder):
    assert "mean over clips" in (tested_folder / "table.txt").read_text()


def test_a_complete_average_counts_all_clips_with_all_frames(tested_folder):
    total = read_metrics(tested_folder)["averages"]["restored"]

    assert total["clips_found"] == 3
    assert total["clips_expected"] == 3
    assert total["complete"] is True
    assert total["frames"] == 9  # 2 + 3 + 4


def test_the_protocol_says_how_the_numbers_were_made(tested_folder):
    protocol = read_metrics(tested_folder)["protocol"]

    assert {
        "weights",
        "input",
        "gt",
        "crop",
        "border",
        "tile",
        "dtype",
        "SpikeVRT",
    } <= protocol.keys()


def test_the_report_has_a_slider_for_each_clip(tested_folder):
    page = (tested_folder / "report.html").read_text()

    assert page.count('type="range"') == 3


def test_the_report_needs_no_other_file(tested_folder):
    page = (tested_folder / "report.html").read_text()

    links_to_files = re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert links_to_files == []


# ---- A second run with the same command ----


class InterruptedTest(NamedTuple):
    """Results of a test, before some of its files were removed and after it was repeated.

    The removed files are the scores of clip test1 and one of its frames.
    """

    folder: Path  # the folder of the results
    results_before: dict[str, Any]  # metrics.json before the files were removed
    # File that was not removed -> the time when it was written (ns), read before the repetition.
    times_before: dict[Path, int]
    results_after: dict[str, Any]  # metrics.json after the repetition


@pytest.fixture(scope="module")
def interrupted_test(home, tested_folder):
    """Give a test that was repeated after two of its files were removed."""
    folder = home / "interrupted"
    shutil.copytree(tested_folder, folder)
    before = read_metrics(folder)
    (folder / "clips" / "test1.json").unlink()
    (folder / "test1" / "000001.png").unlink()

    times = {}
    # All frames, and the scores and pictures of the clips test0 and test2 in the folder clips.
    finished = [*folder.glob("test?/*.png"), *folder.glob("clips/test[02].*")]
    for path in finished:
        # Leave out the missing frame, and also the frames of other clips that have its name.
        if path.name != "000001.png":
            times[path] = path.stat().st_mtime_ns
    after = metrics_of_restoring(
        folder, *option_file_arguments(home), "--save", "frames", "comparison"
    )
    return InterruptedTest(folder, before, times, after)


def test_a_second_run_writes_no_finished_file_again(interrupted_test):
    # `times_before` has six frames: 2 + 3 + 4 frames of the clips, without the frame 000001.png of
    # each clip. It also has the files of test0 and test2 in the folder clips. With no files, the
    # loop below would check nothing.
    assert len(interrupted_test.times_before) > 5
    for path, time in interrupted_test.times_before.items():
        assert path.stat().st_mtime_ns == time, path


def test_a_second_run_gives_the_missing_numbers(interrupted_test):
    before = interrupted_test.results_before["clips"]["test1"]["restored"]

    assert interrupted_test.results_after["clips"]["test1"]["restored"] == before


def test_a_second_run_writes_the_missing_frame(interrupted_test):
    assert (interrupted_test.folder / "test1" / "000001.png").exists()


def test_a_clip_without_scores_is_scored_and_not_restored(home, tested_folder, capfd):
    folder = home / "only_scores_missing"
    shutil.copytree(tested_folder, folder)
    (folder / "clips" / "test1.json").unlink()

    after = metrics_of_restoring(
        folder, *option_file_arguments(home), "--save", "frames", "comparison"
    )

    log = capfd.readouterr().out
    assert "test1: scored; its frames were restored before" in log
    assert "s/frame on" not in log  # part of "test1: frames 1 to 3 restored; 0.500 s/frame on ..."
    before = read_metrics(tested_folder)
    assert after["clips"]["test1"]["restored"] == before["clips"]["test1"]["restored"]


# ---- Which weights are tested ----


@pytest.fixture
def some_weights(tmp_path):
    """Give a folder with the checkpoints of two runs, and other weights. All files are empty.

    run/     the run of the option file: its latest checkpoint
    other/   another run: its latest and its best checkpoint
    empty/   a folder without weights
    """
    for name in (
        "run/checkpoints/checkpoint_latest.pth",
        "other/checkpoints/checkpoint_latest.pth",
        "other/checkpoints/checkpoint_best.pth",
        "netG.pth",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


def path_options(folder, resume):
    """Return a section `path`. resume: "auto", None, or a name in the folder."""
    if resume not in ("auto", None):
        resume = str(folder / resume)
    return PathOptions(resume=resume, pretrained_netG=str(folder / "netG.pth"))


@pytest.mark.parametrize(
    ("resume", "found"),
    [
        pytest.param("auto", "run/checkpoints/checkpoint_latest.pth", id="auto"),
        pytest.param(None, "netG.pth", id="not given"),
        pytest.param("other", "other/checkpoints/checkpoint_best.pth", id="folder of a run"),
        pytest.param(
            "other/checkpoints",
            "other/checkpoints/checkpoint_best.pth",
            id="folder of checkpoints",
        ),
        pytest.param(
            "other/checkpoints/checkpoint_latest.pth",
            "other/checkpoints/checkpoint_latest.pth",
            id="checkpoint",
        ),
    ],
)
def test_these_weights_are_tested(some_weights, resume, found):
    path = path_options(some_weights, resume)

    # The second argument is the folder of the run. The third argument is --weights. It is not given
    # here.
    assert find_weights(path, some_weights / "run", None) == str(some_weights / found)


@pytest.mark.parametrize("resume", ["none.pth", "empty"])
def test_a_place_without_weights_is_refused(some_weights, resume):
    path = path_options(some_weights, resume)

    with pytest.raises(CheckpointError, match="no weights to test"):
        find_weights(path, some_weights / "run", None)


@pytest.mark.parametrize("resume", ["auto", None, "none.pth", "empty", "other"])
def test_weights_on_the_command_line_come_first(some_weights, resume):
    path = path_options(some_weights, resume)

    assert find_weights(path, some_weights / "run", "given.pth") == "given.pth"


# ---- Options of the section `val` ----

# Restore the frames in pairs: 0 and 1, 1 and 2, and so on. Neighbouring pairs share a frame.
IN_PAIRS = ["val.num_frame_testing=2", "val.num_frame_overlapping=1"]


@pytest.fixture(scope="module")
def with_val_options(home, tmp_path_factory):
    """Give the results of a test with flags of `val`.

    save_img saves the frames. center_frame_only restores only the middle frame of a clip. flip_seq
    and pad_seq change the input of the network.
    """
    flags = [
        "val.save_img=true",
        "val.center_frame_only=true",
        "val.flip_seq=true",
        "val.pad_seq=true",
    ]
    out = tmp_path_factory.mktemp("val")
    metrics_of_restoring(out, *option_file_arguments(home), *IN_PAIRS, *flags)
    return out


@pytest.fixture(scope="module")
def without_val_options(home, tmp_path_factory):
    """Give the results of the test of `with_val_options`, but without its flags."""
    out = tmp_path_factory.mktemp("no_val")
    metrics_of_restoring(out, *option_file_arguments(home), *IN_PAIRS)
    return out


def test_frames_are_not_saved_if_save_img_is_false(without_val_options):
    assert not (without_val_options / "test0").exists()


def test_only_the_middle_frame_is_saved_with_center_frame_only(with_val_options):
    saved = [path.name for path in (with_val_options / "test2").iterdir()]

    # The clip has 4 frames. The middle of n frames is frame n // 2.
    assert saved == ["000002.png"]


def test_only_the_middle_frame_is_counted_with_center_frame_only(with_val_options):
    assert read_metrics(with_val_options)["averages"]["restored"]["frames"] == 3  # one of each clip


def test_the_protocol_says_the_flags_of_val(with_val_options):
    tile = read_metrics(with_val_options)["protocol"]["tile"]

    assert "flip_seq, pad_seq, center_frame_only" in tile


def test_flip_seq_changes_the_frame(with_val_options, without_val_options):
    # With center_frame_only, the score of the clip is the score of its frame 2 alone.
    flipped = read_metrics(with_val_options)["clips"]["test2"]
    not_flipped = read_metrics(without_val_options)["clips"]["test2"]

    assert flipped["restored"]["psnr"] != not_flipped["per_frame"]["restored"]["psnr"][2]


# ---- Several ranks ----


def test_two_ranks_share_clips_and_give_the_same_numbers(home, tested_folder):
    out = home / "ranks"

    done = run_ranks(2, MAIN, *option_file_arguments(home), "--output", out, limit_s=LIMIT_S)

    assert done.exit_codes == [0, 0], done.text
    assert read_metrics(out)["averages"] == read_metrics(tested_folder)["averages"]


def restore_on_ranks(home, out, ranks):
    """Restore one clip in tiles of two frames, so that each rank has work.

    --tile 2,0: a tile has two frames, and 0 stands for the whole height and width.
    --overlap 1,8: neighbouring tiles share one frame. The second number, 8 pixels in space, has no
    effect. A tile is as large as the frame, so it has no neighbour in space.

    ranks: number of processes.

    Returns {name of a frame: content of its file}.
    """
    tiles = ["--tile", "2,0", "--overlap", "1,8"]
    arguments = [*user_arguments(home, home / "clips" / "test2"), *tiles]
    done = run_ranks(ranks, MAIN, *arguments, "--output", out, limit_s=LIMIT_S)
    assert done.exit_codes == [0] * ranks, done.text
    return {path.name: path.read_bytes() for path in (out / "test2").iterdir()}


def test_two_ranks_share_the_frames_of_a_clip_and_give_the_same_bits(home):
    of_one = restore_on_ranks(home, home / "one", ranks=1)
    of_two = restore_on_ranks(home, home / "two", ranks=2)

    assert len(of_one) == 4
    assert of_two == of_one
    assert (home / "two" / "test2_comparison.mp4").exists()


# ---- A user's spikes ----

# The arguments of a user who has spikes. The letters stand for paths. The paths need not exist,
# because `read_request` only reads the command line.
WITH_SPIKES = ["--weights", "w", "--input", "i", "--output", "o", "--spike", "s"]
# Keys of the section `spike` that say which planes of a spike file belong to which frame.
PLANE_KEYS = {"first", "count", "exposure", "calibration"}

# Keys of the section `spike` in the training of the weights.
TRAINED_ON = [
    pytest.param({"first": 2, "count": 20}, id="trained on 20 planes"),
    pytest.param(
        {"exposure": {"train0": [[0, 24]]}, "calibration": "rig.json"}, id="trained on a table"
    ),
]


def section_of_user(home, trained_on, *overrides):
    """Return the section `spike` for a user's files.

    trained_on: keys of the section in training. overrides: options on the user's command line.
    """
    saved = read_saved(home / "spike.pth")
    trained = dataclasses.replace(saved, spike=not_none(saved.spike) | trained_on)
    request = read_request([*WITH_SPIKES, *overrides], "")
    files = not_none(request.own_files)
    return not_none(spikes_for_network(trained, files, request.network))


@pytest.mark.parametrize("trained_on", TRAINED_ON)
def test_planes_that_the_training_read_are_not_looked_for_in_the_users_files(home, trained_on):
    section = section_of_user(home, trained_on)

    assert PLANE_KEYS.isdisjoint(section)


@pytest.mark.parametrize("trained_on", TRAINED_ON)
@pytest.mark.parametrize(
    "asked_for",
    [
        pytest.param({"exposure": {"start": 2.0, "length": 20, "period": 33}}, id="exposure"),
        pytest.param({"first": 3, "count": 9}, id="first and count"),
    ],
)
def test_the_planes_that_the_user_asks_for_are_read(home, trained_on, asked_for):
    overrides = [f"spike.{key}={json.dumps(value)}" for key, value in asked_for.items()]

    found = section_of_user(home, trained_on, *overrides)

    plane_settings = {key: value for key, value in found.items() if key in PLANE_KEYS}
    assert plane_settings == asked_for


def spikes_of_user(home):
    """Return the arguments that restore the clip test2 with its spikes, 24 planes in a file."""
    blur, spikes, _ = files_of_clip(home, "test2")
    return ["--weights", home / "spike.pth", "--input", blur, "--spike", spikes]


def test_a_center_outside_of_the_planes_is_refused(home, tmp_path, capfd):
    outside = [*spikes_of_user(home), "--output", tmp_path / "out", "spike.center=99"]

    text, _ = weights_files.refusal_message(capfd, *outside)

    assert "99 is outside of 0 to 23" in text


class HalfRate:
    """Spikes of a camera with half the rate of the camera in training.

    The rate is the number of spikes per plane that a pixel fires at full light. The spikes are the
    spikes of clip test2, without the spikes of every second plane. No dataset.json tells the rate.

    home: the folder of the weights and of the clip test2. folder: the folder to which the spikes
    are written.
    """

    def __init__(self, home, folder):
        blur, spikes, _ = files_of_clip(home, "test2")
        self.frames = blur
        self.folder = folder
        for path in spikes.iterdir():
            planes = read_spikes(path, SpikeGeometry(16, 16))
            # Remove the spikes of the planes 1, 3, 5, ..., so on average half of the spikes are
            # left.
            planes[1::2] = 0
            write_spikes(folder / path.name, planes, SpikeGeometry(16, 16))
        saved = read_saved(home / "spike.pth")
        self.trained = not_none(saved.spike_data)  # properties of the spikes in training
        request = read_request([*WITH_SPIKES, "--spike-size", "16", "16"], "")
        files = not_none(request.own_files)
        self.section = not_none(spikes_for_network(saved, files, request.network))

    def read(self, trained=None, **given):
        """Return the spike channels of frame 0.

        trained: properties of the spikes in training, or None if they are unknown. given: keys of
        the section `spike` that the user sets.
        """
        section = self.section | given
        (clip,) = user_clips(
            self.frames, self.folder, gt=None, spike_options=section, scale=1, trained=trained
        )
        return clip.frame(0)["spike"]


@pytest.fixture
def half_rate(home, tmp_path):
    """Give the spikes of a camera with half the rate."""
    return HalfRate(home, tmp_path)


def test_weights_hold_the_properties_of_the_spikes_in_training(half_rate):
    assert half_rate.trained == {
        "rate": 1.0,
        "light": "linear",
        "center": "file",
        "planes": 24,
        "gt_plane": 12,
    }


def test_a_camera_whose_rate_nobody_gives_is_measured(half_rate):
    measured = half_rate.read(half_rate.trained)

    # "match" measures the rate.
    expected = half_rate.read(half_rate.trained, rate="match", light="linear")
    assert torch.equal(measured, expected)


def test_the_log_says_that_a_rate_is_measured(half_rate, caplog):
    half_rate.read(half_rate.trained)

    assert "firing rate at full light is not known and measured" in caplog.text
    assert "linear light" in caplog.text


def test_a_camera_whose_rate_is_given_is_not_measured(half_rate, caplog):
    of_half = half_rate.read(half_rate.trained, rate=0.5)
    of_one = half_rate.read(half_rate.trained, rate=1.0)

    # Spike counts are divided by the rate, so half the rate gives twice the values.
    assert torch.allclose(of_half, 2 * of_one)
    assert "not known" not in caplog.text


# is_known: whether the weights say what the spikes in training were like. The rate None says that
# training did not divide the spike counts.
@pytest.mark.parametrize("is_known", [False, True], ids=["nothing known", "undivided rates"])
def test_rates_are_not_divided_if_they_were_not_divided_in_training(half_rate, caplog, is_known):
    if is_known:
        trained = half_rate.trained | {"rate": None}
    else:
        trained = None

    undivided = half_rate.read(trained)

    assert "taken as 1" in caplog.text
    # Division by a rate of 1 changes nothing.
    divided_by_1 = half_rate.read(half_rate.trained, rate=1.0)
    assert torch.equal(undivided, divided_by_1)


# ---- A user's video, and other clips ----


@pytest.fixture(scope="module")
def holiday(home, tmp_path_factory):
    """Give a folder with holiday.mp4, restored into out/.

    The video has 5 frames of 45 x 35 pixels, at 12.5 frames per second.
    """
    folder = tmp_path_factory.mktemp("video")
    write_video(folder / "holiday.mp4", count=5, fps=12.5, height=35, width=45)
    # A tile has 3 frames of 32 x 32 pixels. Neighbouring tiles share 1 frame and 8 pixels.
    tiles = ["--tile", "3,32", "--overlap", "1,8", "--blend", "kair"]
    # This call restores the video into out/. The metrics that it returns are not used here.
    metrics_of_restoring(folder / "out", *user_arguments(home, folder / "holiday.mp4"), *tiles)
    return folder


def test_a_video_gives_a_video_of_the_same_name_with_the_same_rate(holiday):
    source = VideoReader(holiday / "holiday.mp4")
    restored = VideoReader(holiday / "out" / "holiday.mp4")

    assert restored.num_frames == 5
    assert restored.fps == 12.5
    assert restored.read(0).shape == source.read(0).shape


def test_the_video_shows_the_restored_frames(holiday):
    source = VideoReader(holiday / "holiday.mp4").read(2)
    video = VideoReader(holiday / "out" / "holiday.mp4").read(2)
    # The folder clips has a picture for each clip: the restored frame in the middle of the clip.
    restored = imread_rgb(holiday / "out/clips/holiday.png").astype(int)

    # The compression of the video changes a frame, too, but less than the restoration did. E.g. if
    # the restoration changes a pixel by 4 levels on average, the compression may change it by less
    # than 2. The factor 0.5 is chosen by hand.
    assert np.abs(video - restored).mean() < 0.5 * np.abs(source - restored).mean()


# The comparison has a frame for each of the 5 frames of the video.
def test_a_restored_video_has_a_comparison(holiday):
    assert VideoReader(holiday / "out/holiday_comparison.mp4").num_frames == 5


def test_no_work_files_stay_beside_a_restored_video(holiday):
    assert not (holiday / "out/holiday").exists()
    assert not (holiday / "out/.work").exists()


# `holiday` was restored with --blend kair. This way of blending cuts off the borders of the tiles.
def test_the_protocol_says_how_tiles_were_blended(holiday):
    assert read_metrics(holiday / "out")["protocol"]["tile"].endswith("kair blend")


def test_a_video_without_sharp_frames_has_no_scores(holiday):
    assert read_metrics(holiday / "out")["averages"] == {}
    assert "PSNR" not in (holiday / "out/table.txt").read_text()


class InterpolatedClip(NamedTuple):
    """A clip of 4 frames, restored by a network of frame interpolation."""

    net: torch.nn.Module
    source: list[np.ndarray]  # the given frames
    out: Path  # the folder of the results


@pytest.fixture(scope="module")
def interpolated_clip(home, tmp_path_factory):
    """Give a clip whose frame rate is doubled. Frame 0_5 lies between frames 0 and 1."""
    folder = tmp_path_factory.mktemp("interpolated")
    netG = network_section(pa_frames=0, fusion="none", img_size=[4, 32, 32], drop_path_rate=0.0)
    net = NETWORKS.build(netG, "netG", spike_channels=0).eval()
    # In a fresh network, conv_last is 0, so the network adds nothing to its input. With random
    # values, the network changes its input. Their standard deviation 0.02 is chosen by hand.
    torch.nn.init.normal_(net.conv_last.weight, 0, 0.02)
    options = {
        "scale": 1,
        "netG": NETWORKS.resolve(netG, "netG").plain(),
        "spike_channels": 0,
        "spike": None,
    }
    torch.save({"params": net.state_dict(), "options": options}, folder / "fi.pth")
    clip = home / "clips" / "test2"
    # The video has twice as many frames, so it is written with twice the default rate of 25.
    arguments = ["--weights", folder / "fi.pth", "--input", clip, "--fps", "50"]
    metrics_of_restoring(folder / "out", *arguments, "--save", "frames", "video")
    source = [imread_rgb(clip / f"{number:06d}.png") for number in range(4)]
    return InterpolatedClip(net, source, folder / "out")


def test_frame_interpolation_gives_a_frame_between_each_two(interpolated_clip):
    names = sorted(path.name for path in (interpolated_clip.out / "test2").iterdir())

    assert names == [
        "000000.png",
        "000000_5.png",
        "000001.png",
        "000001_5.png",
        "000002.png",
        "000002_5.png",
        "000003.png",
    ]


def test_frame_interpolation_doubles_the_frames_of_the_video(interpolated_clip):
    assert VideoReader(interpolated_clip.out / "test2.mp4").num_frames == 7


def test_frame_interpolation_keeps_the_given_frames(interpolated_clip):
    for number, given in enumerate(interpolated_clip.source):
        found = imread_rgb(interpolated_clip.out / "test2" / f"{number:06d}.png")
        assert np.array_equal(found, given)


def test_a_frame_between_two_is_made_of_its_four_neighbours(interpolated_clip):
    # Frame 0_5 is made of frames -1, 0, 1 and 2. There is no frame -1, so frame 0 is taken twice.
    neighbours = np.stack([interpolated_clip.source[number] for number in (0, 0, 1, 2)])
    # (4, H, W, 3) of 0 to 255 -> (1, 4, 3, H, W) of 0 to 1
    window = torch.from_numpy(neighbours).permute(0, 3, 1, 2)[None] / 255
    with torch.no_grad():
        restored = tensor_to_uint8(interpolated_clip.net(window))  # (1, 1, H, W, 3)
    expected = restored[0, 0]

    found = imread_rgb(interpolated_clip.out / "test2" / "000000_5.png").astype(int)

    # A value may be rounded to the next whole number.
    assert np.abs(found - expected).max() <= 1


@pytest.mark.parametrize("frames", [1, 2])
def test_a_clip_may_have_few_frames(home, tmp_path, frames):
    shutil.copytree(home / "clips" / "test2", tmp_path / "in")
    for path in sorted((tmp_path / "in").iterdir())[frames:]:
        path.unlink()

    metrics_of_restoring(
        tmp_path / "out", *user_arguments(home, tmp_path / "in"), "--save", "frames"
    )

    assert len(list((tmp_path / "out" / "in").iterdir())) == frames


# ---- Tiles ----


class FinishedTest(NamedTuple):
    """A finished run of main_test_vrt.py."""

    results: dict[str, Any]  # content of metrics.json
    process: RankResult  # exit code and output
    table: str  # content of table.txt


def auto_and_whole(folder, frames, width, run):
    """Test a clip twice: in the tiles that the program chooses ("auto"), and as a whole ("whole").

    folder: all files are written here. frames, width: size of the clip. Its frames are 32 pixels
    high. run: a function (option file, arguments) that runs main_test_vrt.py.
    Returns {"auto": FinishedTest, "whole": FinishedTest}.
    """
    home = make_home(folder)
    data = home / "large"
    # `write_clip` takes the size of the spike planes. The frames are twice as high and wide.
    write_clip(data, "long", split="test", frames=frames, h=16, w=width // 2, seed=3)
    write_info(data, h=16, w=width // 2)
    test_set = f"datasets.test={json.dumps(data_section(data, 'test'))}"
    whole = ["val.num_frame_testing=0", "val.size_patch_testing=0"]

    tests = {}
    for name, options in {"auto": [], "whole": whole}.items():
        out = home / name
        arguments = ["--weights", home / "spike.pth", test_set, "--output", out, *options]
        ended = run(home / "options.json", arguments)
        assert ended.exit_codes == [0], ended.text
        table = (out / "table.txt").read_text()
        tests[name] = FinishedTest(read_metrics(out), ended, table)
    return tests


@pytest.fixture(scope="module")
def long_clip(tmp_path_factory):
    """Give two tests of a clip of 14 frames of 32 x 32: "auto", in two tiles, and "whole".

    A tile of "auto" has 12 frames, so 14 frames need two tiles.
    """

    def run(options, arguments):
        return run_ranks(1, MAIN, "--opt", options, *arguments, limit_s=LIMIT_S)

    return auto_and_whole(tmp_path_factory.mktemp("long"), frames=14, width=32, run=run)


@pytest.mark.parametrize(
    ("name", "beginning"),
    [
        ("auto", "tiles of 12 frames x 256 px, overlap 2 frames, 20 px, smooth"),
        ("whole", "tiles of the whole clip x the whole frame"),
    ],
)
def test_a_large_clip_is_restored_in_tiles_unless_0_asks_for_the_whole(long_clip, name, beginning):
    assert long_clip[name].results["protocol"]["tile"].startswith(beginning)


def test_tiles_give_nearly_the_numbers_of_the_whole(long_clip):
    in_tiles = mean_psnr(long_clip["auto"].results)
    whole = mean_psnr(long_clip["whole"].results)

    # The frames that two tiles share are blended, so the numbers differ a little. The limit of
    # 0.05 dB is chosen by hand.
    assert in_tiles != whole
    assert in_tiles == pytest.approx(whole, abs=0.05)  # dB


# This test is slow, because its clip must need much more memory than Python itself. In `make test`,
# test_tiling.py tests how many tiles are read and restored at a time.
@pytest.mark.slow
def test_tiles_take_less_memory_than_the_whole_and_give_nearly_its_numbers(tmp_path):
    def run(options, arguments):
        # The worker prints the peak of its memory.
        return run_odd(options, *arguments, case="peak", program="test")

    # A tile of "auto" has at most 12 frames and 256 pixels. So this clip has several tiles in time
    # and along its width.
    tests = auto_and_whole(tmp_path, frames=32, width=272, run=run)

    in_tiles = tests["auto"]
    whole = tests["whole"]
    # The difference must be more than chance. The margin of 0.05 GB was chosen by hand.
    assert in_tiles.process.json["peak_gb"] + 0.05 < whole.process.json["peak_gb"]
    assert mean_psnr(in_tiles.results) == pytest.approx(mean_psnr(whole.results), abs=0.05)  # dB


@pytest.mark.parametrize("name", ["auto", "whole"])
def test_the_console_shows_the_main_lines_of_the_protocol(long_clip, name):
    assert "\ntile: tiles of" in long_clip[name].process.text
    assert "crop: " not in long_clip[name].process.text


@pytest.mark.parametrize("name", ["auto", "whole"])
def test_the_table_has_all_lines_of_the_protocol(long_clip, name):
    assert "\ncrop: none" in long_clip[name].table


# ---- Bad input ----


@pytest.fixture(scope="module")
def bad_files(home):
    """Give a folder with files that cannot be used:

    broken.mp4    a text
    foreign.pth   a text
    unknown.pth   weights that do not say their network
    few/          the spikes of a clip, without one of its files
    GOPRO_Large/test/wide/   sharp frames of another size
    """
    folder = home / "bad"
    folder.mkdir()
    (folder / "broken.mp4").write_bytes(b"no video")
    (folder / "foreign.pth").write_bytes(b"no weights")
    torch.save({"params": {"layer.weight": torch.zeros(3)}}, folder / "unknown.pth")
    _, spikes, _ = files_of_clip(home, "test2")
    shutil.copytree(spikes, folder / "few")
    (folder / "few" / "000001.dat").unlink()
    write_clip(folder, "wide", split="test", frames=4, h=16, w=24)
    return folder


WRONG_USE = 2  # exit code: the command or an option is wrong
WRONG_DATA = 3  # exit code: a file is missing, or cannot be used


class Refusal(NamedTuple):
    """A command line of main_test_vrt.py that is refused, and the error that is expected."""

    # The arguments. A name in braces stands for a file, e.g. {clip} for the frames of a clip. The
    # dictionary `files` in `test_bad_input_ends_with_one_message` has all names.
    command: str
    exit_code: int
    message: str  # a part of the error
    do: str = ""  # a part of the advice in the error, after the word "do"


# Parts of the commands. The test replaces the names in braces.
RGB_WEIGHTS = "--weights {rgb}"
SPIKE_WEIGHTS = "--weights {spike}"
OPTION_FILE = "--opt {options}"
# A correct command for a user's frames and spikes.
WITH_SPIKES_OF_USER = "--weights {spike} --spike-size 16 16 --input {clip} --spike {spikes}"

REFUSALS = [
    # Files that are missing, or cannot be used.
    Refusal(RGB_WEIGHTS + " --input {bad}/broken.mp4", WRONG_DATA, "not a video"),
    Refusal(RGB_WEIGHTS + " --input {bad}/none", WRONG_DATA, "no such file or folder"),
    Refusal(RGB_WEIGHTS + " --input {bad}/few", WRONG_DATA, "the folder holds no images"),
    Refusal(
        RGB_WEIGHTS + " --input {clip} --gt {other_clip}",
        WRONG_DATA,
        "gt lacks 1 of 4 frames: 000003.png",
    ),
    Refusal(
        RGB_WEIGHTS + " --input {clip} --gt {bad}/GOPRO_Large/test/wide/sharp",
        WRONG_DATA,
        "reference of 48x32",
    ),
    Refusal(
        SPIKE_WEIGHTS + " --spike-size 16 16 --input {clip} --spike {bad}/few",
        WRONG_DATA,
        "spike lacks 1 of 4 frames: 000001.dat",
    ),
    Refusal(
        SPIKE_WEIGHTS + " --spike-size 160 160 --input {clip} --spike {spikes}",
        WRONG_DATA,
        "holds no plane of 160 x 160",
        do="--spike-size H W",
    ),
    Refusal(SPIKE_WEIGHTS + " --input {clip}", WRONG_USE, "these weights need spikes"),
    Refusal(
        SPIKE_WEIGHTS + " --input {clip} --spike {bad}/few/000000.dat",
        WRONG_USE,
        "spike.h is missing",
        do="--spike-size H W",
    ),
    Refusal(RGB_WEIGHTS + " --input {clip} --lpips {bad}/none.pth", WRONG_DATA, "correct --lpips"),
    # Weights.
    Refusal(
        "--weights {bad}/none.pth --input {clip}",
        WRONG_DATA,
        "no such weights file",
        do="--weights",
    ),
    Refusal("--weights {bad}/foreign.pth --input {clip}", WRONG_DATA, "not a weights file"),
    Refusal("--weights {bad}/unknown.pth --input {clip}", WRONG_DATA, "does not say what network"),
    Refusal(
        RGB_WEIGHTS + " --input {clip} " + OPTION_FILE + " --spike {spikes}",
        WRONG_DATA,
        "the weights do not fit",
    ),
    # Options that these weights cannot have.
    Refusal(RGB_WEIGHTS + " --input {clip} --sigma 20", WRONG_USE, "do not take a noise level"),
    Refusal(WITH_SPIKES_OF_USER + " val.flip_seq=true", WRONG_USE, "cannot set val.flip_seq"),
    Refusal(
        WITH_SPIKES_OF_USER + " spike.gamma=2.2",
        WRONG_USE,
        "spike.gamma is 2.2, but the network was trained with 1",
    ),
    Refusal(
        WITH_SPIKES_OF_USER + " spike.representation=tfp",
        WRONG_USE,
        "spike.representation is tfp, but the network was trained with voxel",
    ),
    Refusal(
        SPIKE_WEIGHTS
        + " "
        + OPTION_FILE
        + " datasets.train.spike.gamma=2.2 datasets.test.spike.gamma=2.2",
        WRONG_DATA,
        "the spike channels have gamma 2.2, but the weights were trained with 1",
    ),
    Refusal(WITH_SPIKES_OF_USER + " spike.bins=3", WRONG_USE, "unknown option spike.bins"),
    # Values.
    Refusal(RGB_WEIGHTS + " --input {clip} --tile 12", WRONG_USE, "--tile is 12"),
    # By default, neighbouring tiles share 2 frames.
    Refusal(RGB_WEIGHTS + " --input {clip} --tile 2,32", WRONG_USE, "tiles of 2 that overlap by 2"),
    Refusal(RGB_WEIGHTS + " --input {clip} --batch-tiles 0", WRONG_USE, "val.batch_tiles is 0"),
    Refusal(OPTION_FILE + " --overlap 2", WRONG_USE, "--overlap is 2"),
    Refusal(OPTION_FILE + " --dtype int8", WRONG_USE, "invalid choice"),
    Refusal(
        RGB_WEIGHTS + " --input {clip} --fps 0",
        WRONG_USE,
        "argument --fps: invalid frame_rate value: '0'",
    ),
    Refusal(
        RGB_WEIGHTS + " --input {clip} --fps inf", WRONG_USE, "invalid frame_rate value: 'inf'"
    ),
    # Arguments that do not go together.
    Refusal(OPTION_FILE + " --spike-size 16 16", WRONG_USE, "--spike-size without --input"),
    Refusal(
        SPIKE_WEIGHTS + " --spike-size 0 16 --input {clip} --spike {spikes}",
        WRONG_USE,
        "'0' is not a whole number of pixels, 1 or more",
    ),
    Refusal(
        WITH_SPIKES_OF_USER + " spike.exposure.start=0 spike.exposure.period=24",
        WRONG_USE,
        "length is missing",
    ),
    Refusal(
        RGB_WEIGHTS + " --input {clip} --spike-size 2 2", WRONG_USE, "--spike-size without --spike"
    ),
    Refusal(OPTION_FILE + " --gt {clip}", WRONG_USE, "--gt without --input"),
    Refusal(OPTION_FILE + " --tiles 2,2", WRONG_USE, "unrecognized arguments"),
]


def refuse(capfd, arguments, refusal):
    """Run a command that is refused, and check its message and its exit code.

    refusal: what is expected. Its `command` is not read, because `arguments` has the command.
    """
    text, exit_code = refusal_message(capfd, *arguments)

    assert refusal.message in text, text
    assert "  expected  " in text, text
    # An error of this project has lines that begin with its parts, e.g. "  expected  ..." and
    # "  do ...". Take what follows "do".
    what_to_do = text.partition("\n  do ")[2]
    assert what_to_do, text
    assert refusal.do in what_to_do, text
    # The message must show values and sections as a user writes them. These two texts are JSON.
    assert "null" not in text, text
    assert '"spike": {' not in text, text
    assert exit_code == refusal.exit_code, text


# `bad_files` is a folder with files that cannot be used, e.g. broken.mp4.
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.message)
def test_bad_input_ends_with_one_message(home, bad_files, tmp_path, capfd, refusal):
    clip = home / "clips" / "test2"
    _, spikes, _ = files_of_clip(home, "test2")
    files = {
        "bad": bad_files,
        "clip": clip,
        "other_clip": home / "clips" / "test1",
        "options": home / "options.json",
        "rgb": home / "rgb.pth",
        "spike": home / "spike.pth",
        "spikes": spikes,
    }
    arguments = [word.format(**files) for word in refusal.command.split()]
    out = tmp_path / "out"

    refuse(capfd, [*arguments, "--output", out], refusal)

    assert not out.exists()


# In the next tests, the command of a `Refusal` is "", because `refuse` gets the arguments apart.


def test_results_over_the_input_are_refused(home, tmp_path, capfd):
    clip = home / "clips" / "test2"
    refusal = Refusal("", WRONG_USE, "--output would write over")

    refuse(capfd, [*user_arguments(home, clip), "--output", clip], refusal)


def test_a_user_s_clip_without_a_place_for_results_is_refused(home, capfd):
    refusal = Refusal("", WRONG_USE, "--output is missing")

    refuse(capfd, user_arguments(home, home / "clips" / "test2"), refusal)


def test_weights_without_a_clip_are_refused(home, capfd):
    refusal = Refusal("", WRONG_USE, "nothing to restore")

    refuse(capfd, ["--weights", home / "rgb.pth"], refusal)


def test_a_path_that_is_no_text_in_utf_8_is_refused(home, tmp_path, capfd):
    # The folder has a name in Latin-1, as on old disks. The single byte F6 is not UTF-8.
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xf6m"))
    shutil.copytree(home / "clips" / "test2", folder)
    out = tmp_path / "out"
    refusal = Refusal("", WRONG_DATA, "the path is no text in UTF-8")

    refuse(capfd, [*user_arguments(home, folder), "--output", out], refusal)

    assert not out.exists()


# ---- Spike channels that differ from those in training ----


def tfi_options(half_window):
    """Return options that set the representation "tfi" for training and for the test.

    A representation is the way in which spikes become channels of the network's input. half_window:
    a setting of "tfi".
    """
    value = json.dumps({"type": "tfi", "half_window": half_window})
    return [f"datasets.{split}.spike.representation={value}" for split in ("train", "test")]


@pytest.fixture(scope="module")
def tfi_weights(home):
    """Give weights that were trained with "tfi" and half_window 3."""
    return save_weights(home / "options.json", home / "tfi.pth", *tfi_options(half_window=3))


@pytest.mark.parametrize(
    ("half_window", "is_warned_of"),
    [pytest.param(3, False, id="same"), pytest.param(5, True, id="wider")],
)
def test_spike_channels_with_other_settings_than_in_training_are_warned_of(
    home, tfi_weights, tmp_path, capfd, half_window, is_warned_of
):
    arguments = ["--opt", str(home / "options.json"), "--weights", tfi_weights]
    arguments += [*tfi_options(half_window), "--output", str(tmp_path / "out")]

    code = main_test_vrt.main(arguments)

    assert code == 0
    printed = capfd.readouterr().out
    warning = "other spike channels than the options give: representation.half_window 3 -> 5"
    if is_warned_of:
        assert warning in printed
    else:
        assert "other spike channels" not in printed


# ---- A full disk ----


@pytest.fixture
def noise_clip(home, tmp_path):
    """Give the command that restores two frames of noise into `tmp_path`/out.

    Noise cannot be compressed. A frame has 40 x 40 x 3 = 4800 values of one byte. So the file of a
    restored frame is larger than 1500 bytes, the limit of the tests below.
    """
    rng = np.random.default_rng(0)
    for number in range(2):
        frame = rng.integers(0, 256, (40, 40, 3), np.uint8)
        imwrite_rgb(tmp_path / "in" / f"{number}.png", frame)
    return [*user_arguments(home, tmp_path / "in"), "--output", tmp_path / "out"]


def test_a_full_disk_is_reported_in_one_message(noise_clip, tmp_path, capfd):
    # `small_files` lets no file of this process grow beyond the limit. `noise_clip` is the list of
    # the arguments.
    with small_files(limit=1500):
        text, code = refusal_message(capfd, *noise_clip)

    assert code == WRONG_DATA
    assert "cannot write" in text
    assert "the same command" in text
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    for path in left:
        assert path.suffix not in (".png", ".mp4", ".html")
        assert path.name != "metrics.json"


def test_the_same_command_finishes_after_a_full_disk(noise_clip, tmp_path, capfd):
    with small_files(limit=1500):
        refusal_message(capfd, *noise_clip)

    weights_files.restore(*noise_clip)

    assert len(list((tmp_path / "out" / "in").iterdir())) == 2


# ---- The demo, the first thing that a user runs ----


# The gain in PSNR that each clip of the demo must have, in dB. The clips gain 10 to 12 dB. So the
# test fails only if the demo restores badly.
LEAST_GAIN = 6


# This test is slow. The clips have all their frames, and the test makes training data: the data set
# of `make sample`, but with one clip of each split.
@pytest.mark.slow
def test_the_whole_demo_shows_the_clips_then_the_curves_of_a_training_that_a_signal_stopped(
    tmp_path, monkeypatch
):
    small_set = dataclasses.replace(demo.SAMPLE, clips={"train": 1, "test": 1})
    monkeypatch.setattr(demo, "SAMPLE", small_set)
    out = tmp_path / "out"
    experiments = tmp_path / "experiments"
    folders = ["--data", str(tmp_path / "data"), "--output", str(out)]
    folders += ["--sample", str(tmp_path / "sample"), "--root", str(experiments)]

    code = demo.main([*folders, "--train_s", "1"])

    assert code == 0
    for scores in read_metrics(out)["clips"].values():
        # A clip of the demo has 8 frames.
        assert len(scores["per_frame"]["restored"]["psnr"]) == 8
        assert scores["restored"]["psnr"] > scores["input"]["psnr"] + LEAST_GAIN
    run = experiments / "000_train_vrt_sample_rgbspike"
    assert "stopped by a signal" in (run / "log/train.log").read_text()
    assert (run / "checkpoints/checkpoint_latest.pth").is_file()
    page = (out / "report.html").read_text()
    assert page.count('class="slider') == 2  # one for each clip
    assert 'id="training"' in page


class Demo(NamedTuple):
    """A finished demo of short clips, without training."""

    out: Path  # the folder of the results
    clips: dict[str, Any]  # name of a clip -> its scores
    # Settings of the results that were in the folder before the demo wrote over them.
    former_settings: dict[str, Any]


# Number of frames of a clip of `finished_demo`, and their side in pixels. In `make demo` a clip has
# 8 frames of 256 x 256.
DEMO_FRAMES = 2
DEMO_SIDE = 128


@pytest.fixture(scope="module")
def finished_demo(tmp_path_factory):
    """Give a demo that ran in a folder with results of other weights, as of a former version."""
    folder = tmp_path_factory.mktemp("demo")
    data = folder / "data"
    out = folder / "out"
    with pytest.MonkeyPatch.context() as patch:
        small = dataclasses.replace(demo.DEMO, frames=DEMO_FRAMES, side=DEMO_SIDE)
        patch.setattr(demo, "DEMO", small)
        patch.setattr(demo, "SIDE", DEMO_SIDE)  # `demo.scene` reads it for the size of the layers
        make_sample(data, demo.DEMO)
        former = ["--opt", str(demo.ROOT / "options/operators/exposure_alone.json")]
        former += ["--weights", str(demo.ROOT / "weights/operator.pth")]
        former += demo.data_roots("test", data)
        # One frame of each clip is enough, because these results only have to exist before the demo
        # overwrites them.
        metrics_of_restoring(
            out, *former, "--save", "frames", "task=demo", "datasets.test.num_frame=1"
        )
        former_settings = settings_of(out)

        assert demo.main(["--data", str(data), "--output", str(out), "--train_s", "0"]) == 0
    return Demo(out, read_metrics(out)["clips"], former_settings)


def settings_of(results: Path) -> dict[str, Any]:
    """Return the settings with which results were made."""
    return json.loads((results / "run.json").read_text())["settings"]


def test_the_demo_restores_both_clips(finished_demo):
    assert len(finished_demo.clips) == 2
    for scores in finished_demo.clips.values():
        assert scores["restored"]["psnr"] > scores["input"]["psnr"] + LEAST_GAIN


def test_the_videos_of_the_demo_show_four_pictures_in_a_row(finished_demo):
    for name in finished_demo.clips:
        video = VideoReader(finished_demo.out / f"{name}_comparison.mp4")
        height, width = video.read(0).shape[:2]
        assert video.num_frames == DEMO_FRAMES
        # The four pictures are the blurry frame, the spikes, the restored frame and the sharp
        # frame. The pictures stand in a row, and a line of text adds to the height.
        assert width > 4 * DEMO_SIDE
        assert height > DEMO_SIDE


def test_the_page_of_the_demo_shows_both_clips(finished_demo):
    page = (finished_demo.out / "report.html").read_text()

    assert page.count('class="slider') == 2
    assert page.count('data-show="spikes"') == 2
    assert page.count('src="data:video/mp4;base64,') == 2


def test_the_demo_writes_over_the_results_of_another_version(finished_demo):
    assert settings_of(finished_demo.out) != finished_demo.former_settings
