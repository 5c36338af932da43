"""A test of clips takes over the results in its output folder if settings and inputs are the same.

A "test of clips" is a run of main_test_vrt.py. A test of clips "takes over" results if it finds
them in its output folder and does not compute them again. An earlier test has written them. If
settings or inputs differ, the test refuses the results. A file is "ours" if an earlier test of
clips wrote the file, and listed it in run.json.

main_test_vrt.py runs in this process, with tiny networks of random weights: spike.pth is for a
network with spikes, and rgb.pth is for a network without spikes. Most tests restore the user's clip
X/clip1, with a few frames of 32 x 32 pixels. Tests that only need names of files call
`claim_folder`, the first step of main_test_vrt.py.
"""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest

from data.clips.clip_reader import user_clips
from models.restore.earlier_results import FILES_OF_ALL_CLIPS
from models.restore.finished_clip import finish_clip
from models.restore.output_folder import claim_folder
from models.restore.outputs import Outputs
from tests.helpers.checked import read_picture
from tests.helpers.clip_files import check_clips, data_section, write_clip, write_info, write_video
from tests.helpers.foreign import snapshot
from tests.helpers.weights_files import make_home, read_metrics, refusal_message, restore
from utils.dist import watchdog
from utils.dist.state import RUN
from utils.errors import DataError, OptionError
from utils.files import MARK, RESULTS, claim_run_folder
from utils.image import imwrite_rgb
from utils.video.reader import VideoReader

# Runs a test twice: without and with the flag --overwrite.
WITH_AND_WITHOUT_OVERWRITE = pytest.mark.parametrize(
    "overwrite", [False, True], ids=["kept", "overwrite"]
)
# The error about files that are not ours. The names of the files follow.
ABOUT_FOREIGN_FILES = "no test of this program made"
# Exit code if the user must change the value of --output, or add --overwrite.
EXIT_CHANGE_OPTIONS = 2
# Exit code if the user must move or rename files, because they are not ours, or because two results
# would have one name.
EXIT_MOVE_FILES = 3


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Give the folder with the weights, an option file, and its test clips."""
    return make_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def clip(home, tmp_path) -> Path:
    """Give a copy of a test clip, as <tmp_path>/X/clip1 with the folders blur and sharp."""
    folder = tmp_path / "X" / "clip1"
    shutil.copytree(home / "GOPRO_Large/test/test0", folder)
    return folder


@pytest.fixture
def out(tmp_path) -> Path:
    """Give the path of the output folder. It does not exist yet."""
    return tmp_path / "out"


def restoring_command(home: Path, clip: Path, out: Path, *more: object) -> list[object]:
    """Return the arguments that restore a clip to `out` without spikes.

    more: additional arguments.
    """
    return ["--weights", home / "rgb.pth", "--input", clip / "blur", "--output", out, *more]


def scoring_command(home: Path, clip: Path, out: Path) -> list[object]:
    """Return the arguments that restore a clip, score its frames, and save the frames."""
    return restoring_command(home, clip, out, "--gt", clip / "sharp", "--save", "frames")


def times_of_change(folder: Path) -> dict[Path, int]:
    """Return when each file of a folder was last written."""
    return {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def names_of_files(folder: Path) -> set[str]:
    """Return the name of each file below a folder, e.g. "clips/clip1.json"."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# ---- Output and input in one place --------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("X", id="around the clip"),
        pytest.param("X/clip1", id="the clip"),
        pytest.param("X/clip1/sharp/new", id="in the sharp frames"),
        pytest.param("link", id="a link around the clip"),
    ],
)
def test_an_output_around_the_inputs_is_refused(home, clip, tmp_path, capfd, place):
    (tmp_path / "link").symlink_to(clip.parent)
    before = snapshot(tmp_path)

    out = tmp_path / place
    command = restoring_command(home, clip, out, "--gt", clip / "sharp", "--overwrite")
    text, code = refusal_message(capfd, *command)

    assert code == EXIT_CHANGE_OPTIONS
    assert "--output would write over the input" in text
    assert snapshot(tmp_path) == before


# ---- Frames that are there already --------------------------------------------------------------


class RestartedTest(NamedTuple):
    """A test of a clip that was interrupted before the end of the clip, and was started again."""

    # The words of the results about the restored frames: "all" or "the middle one".
    expected_choice: str
    # Scores of the first start and of the second start.
    before: dict[str, Any]
    after: dict[str, Any]
    # Times at which each restored frame was written, read after the first start and after the
    # second start.
    times_before: dict[Path, int]
    times_after: dict[Path, int]


@pytest.fixture(
    scope="module", params=["all frames", pytest.param("middle frame", marks=pytest.mark.slow)]
)
def restarted_test(request, home, tmp_path_factory) -> RestartedTest:
    """Restore a clip, remove the file that marks it as finished, and run the command again."""
    out = tmp_path_factory.mktemp("restarted")
    command = scoring_command(home, home / "GOPRO_Large/test/test0", out)
    expected_choice = "all"
    if request.param == "middle frame":
        command.append("--center-frame-only")
        expected_choice = "the middle one"
    restore(*command)
    before = read_metrics(out)
    times_before = times_of_change(out / "test0")
    (out / "clips" / "test0.json").unlink()

    restore(*command)

    return RestartedTest(
        expected_choice=expected_choice,
        before=before,
        after=read_metrics(out),
        times_before=times_before,
        times_after=times_of_change(out / "test0"),
    )


def test_frames_of_an_unfinished_clip_are_not_restored_again(restarted_test):
    assert restarted_test.times_after == restarted_test.times_before


def test_frames_of_an_unfinished_clip_are_scored(restarted_test):
    assert restarted_test.after["averages"] == restarted_test.before["averages"]
    assert restarted_test.after["clips"]["test0"]["frames"] == len(restarted_test.times_before)


def test_the_results_say_which_frames_were_restored(restarted_test):
    assert restarted_test.after["protocol"]["frames"] == restarted_test.expected_choice


def test_pictures_in_a_folder_without_run_json_are_not_taken_over(home, clip, out, capfd):
    # If these sharp frames were taken for restored frames, the PSNR would be infinite.
    shutil.copytree(clip / "sharp", out / "clip1")

    text, code = refusal_message(capfd, *scoring_command(home, clip, out))

    assert code == EXIT_MOVE_FILES
    assert f"{ABOUT_FOREIGN_FILES}: clip1" in text


@pytest.fixture
def finished_command(home, clip, out) -> list[object]:
    """Restore the clip to `out`, and give the command that did this."""
    command = scoring_command(home, clip, out)
    restore(*command)
    return command


def test_results_whose_run_json_is_gone_are_not_taken_over(finished_command, out, capfd):
    (out / "run.json").unlink()

    text, code = refusal_message(capfd, *finished_command)

    assert code == EXIT_MOVE_FILES
    assert ABOUT_FOREIGN_FILES in text
    # The advice is to give another folder, or the folder of the earlier test, which has a run.json.
    assert "which has a run.json" in text


def invert(path: Path) -> None:
    """Change a picture to its negative."""
    cv2.imwrite(str(path), 255 - read_picture(path))


def test_results_of_a_changed_input_are_not_taken_over(finished_command, clip, capfd):
    invert(clip / "blur" / "000000.png")

    text, code = refusal_message(capfd, *finished_command)

    assert code == EXIT_CHANGE_OPTIONS
    assert "the files of clip clip1 have changed" in text


def test_a_changed_input_is_restored_again_with_overwrite(finished_command, clip, out):
    before = read_picture(out / "clip1" / "000000.png")
    invert(clip / "blur" / "000000.png")

    restore(*finished_command, "--overwrite")

    assert not np.array_equal(read_picture(out / "clip1" / "000000.png"), before)


# ---- Other settings -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def command_with_options(home) -> list[object]:
    """Run a command with an option file once, and give the command."""
    places = ["--weights", home / "spike.pth", "--output", home / "out_of_options"]
    command = ["--opt", home / "options.json", *places, "datasets.test.num_frame=2"]
    restore(*command)
    return command


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        pytest.param("--dtype=bfloat16", "dtype was float32, is bfloat16", id="type of numbers"),
        pytest.param(
            "datasets.test.num_frame=-1",
            "datasets.test.num_frame was 2, is -1",
            id="length of a window",
        ),
        pytest.param(
            "datasets.test.spike.resize=bilinear",
            "spike.resize was nearest, is bilinear",
            id="way to resize spikes",
        ),
    ],
)
def test_results_of_other_settings_are_not_taken_over(
    command_with_options, capfd, change, difference
):
    text, code = refusal_message(capfd, *command_with_options, change)

    assert code == EXIT_CHANGE_OPTIONS
    assert difference in text, text


def test_results_are_taken_over_with_another_number_of_loaders(command_with_options):
    # The number of loader processes changes no result.
    restore(*command_with_options, "datasets.test.dataloader_num_workers=3")


def test_results_hold_no_secret_of_a_path_and_are_continued(home, out, tmp_path):
    frames = tmp_path / "api_key=canary"
    shutil.copytree(home / "GOPRO_Large", frames / "GOPRO_Large")
    lq = f"{frames}/GOPRO_Large/test"
    places = ["--weights", home / "spike.pth", "--output", out]
    command = ["--opt", home / "options.json", *places, f"datasets.test.dataroot_lq={lq}"]

    restore(*command)
    # An older version wrote the secret into run.json. Make such a run.json: replace the shortened
    # path by the whole path. In the shortened path, "***" stands for the secret and the rest of the
    # path.
    run_json = out / "run.json"
    run_json.write_text(run_json.read_text().replace(f"{tmp_path}/api_key=***", lq))
    assert "canary" in run_json.read_text()
    restore(*command)

    for path in out.rglob("*"):
        assert path.is_dir() or b"canary" not in path.read_bytes(), path


# ---- Several clips ------------------------------------------------------------------------------


def restoring_all_command(home: Path, folder: Path, *save: str) -> list[object]:
    """Return the arguments that restore the clips in <folder>/in to <folder>/out without spikes.

    save: the kinds of results to save, e.g. "frames".
    """
    places = ["--input", folder / "in", "--output", folder / "out"]
    return ["--weights", home / "rgb.pth", *places, "--save", *save]


def test_a_folder_of_videos_is_restored_with_its_times(home, tmp_path):
    (tmp_path / "in").mkdir()
    write_video(tmp_path / "in" / "one.mp4", count=2)
    write_video(tmp_path / "in" / "two.avi", count=3)

    restore(*restoring_all_command(home, tmp_path, "video"))

    for name in ("one.mp4", "two.avi"):
        source = VideoReader(tmp_path / "in" / name)
        result = VideoReader((tmp_path / "out" / name).with_suffix(".mp4"))
        assert result.times == source.times
        assert result.read(0).shape == source.read(0).shape


@pytest.mark.parametrize(
    ("names", "save", "name_of_both"),
    [
        # The clip "x" has the comparison x_comparison.mp4. The clip "x_comparison" has the video
        # x_comparison.mp4.
        pytest.param(
            ("x", "x_comparison"),
            ("video", "comparison"),
            "x_comparison.mp4",
            id="video of another clip",
        ),
        # The program writes an example frame of each clip NAME to clips/NAME.png, here to
        # clips/000000.png. The first frame of the clip "clips" has the same name.
        pytest.param(
            ("clips", "000000"), ("frames",), "clips/000000.png", id="example of another clip"
        ),
        # The program writes the file run.json. The frames of a clip "run.json" lie in a folder of
        # this name.
        pytest.param(("run.json", "x"), ("frames",), "run.json", id="file of all clips"),
    ],
)
def test_two_results_of_one_name_are_refused_before_any_is_written(
    home, clip, tmp_path, capfd, names, save, name_of_both
):
    for name in names:
        shutil.copytree(clip / "blur", tmp_path / "in" / name)
    before = snapshot(tmp_path)

    text, code = refusal_message(capfd, *restoring_all_command(home, tmp_path, *save))

    assert code == EXIT_MOVE_FILES
    assert f"two results would have the name {name_of_both}" in text
    assert "rename one of the clips" in text
    assert snapshot(tmp_path) == before


# ---- Names of results ---------------------------------------------------------------------------

VIDEOS = ("video", "comparison")


def begin_test(
    folder: Path,
    clip: str,
    overwrite: bool = False,
    save: tuple[str, ...] = VIDEOS,
    settings: dict[str, Any] | None = None,
) -> None:
    """Claim the folder for a run of main_test_vrt.py, as this program does first.

    The run has one clip, with one frame, "0". `claim_folder` writes the names of the results into
    run.json, but writes no results.

    save: the kinds of results that the run saves. settings: its settings, for run.json.
    """
    claim_folder(
        Outputs(folder, save),
        settings=settings or {},
        inputs={clip: "digest"},
        stems={clip: ["0"]},
        overwrite=overwrite,
    )


def videos_in(folder: Path) -> list[str]:
    """Return the names of the videos in a folder."""
    return [path.name for path in folder.glob("*.mp4")]


def test_a_clip_does_not_replace_the_results_of_an_earlier_clip(tmp_path):
    begin_test(tmp_path, "x")  # its results are x.mp4 and x_comparison.mp4
    begin_test(tmp_path, "y")

    with pytest.raises(DataError, match=r"the name x_comparison\.mp4") as error:
        begin_test(tmp_path, "x_comparison")

    assert "clip x, which is there already" in str(error.value)


# name: the foreign file. shown: how the error names it, as a regular expression.
@WITH_AND_WITHOUT_OVERWRITE
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        pytest.param("strips/x/1.png", "strips", id="within the folder of the strips"),
        pytest.param("strips", "strips", id="in place of the folder of the strips"),
        pytest.param("x.mp4", r"x\.mp4", id="in place of the film"),
        pytest.param("clips", "clips", id="in place of the folder of the scores"),
        pytest.param("report.html", r"report\.html", id="in place of the report"),
        pytest.param(".work/x/0.png", r"\.work", id="within the folder of unsaved frames"),
    ],
)
def test_a_foreign_file_under_any_name_that_is_written_is_refused_at_the_start(
    tmp_path, name, shown, overwrite
):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"theirs")

    with pytest.raises(DataError, match=f"{ABOUT_FOREIGN_FILES}: {shown}"):
        begin_test(tmp_path, "x", overwrite)

    assert not (tmp_path / "run.json").exists()


@WITH_AND_WITHOUT_OVERWRITE
def test_a_video_of_the_user_beside_our_results_is_not_taken_for_a_result(tmp_path, overwrite):
    begin_test(tmp_path, "x")
    (tmp_path / "mine.mp4").write_bytes(b"theirs")

    with pytest.raises(DataError, match=rf"{ABOUT_FOREIGN_FILES}: mine\.mp4"):
        begin_test(tmp_path, "mine", overwrite)

    assert (tmp_path / "mine.mp4").read_bytes() == b"theirs"


def test_a_frame_of_the_user_beside_our_results_is_not_taken_for_a_result(tmp_path):
    # This run saves only videos, and no frames. So x/0.png is not one of its results.
    begin_test(tmp_path, "x")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "0.png").write_bytes(b"theirs")

    with pytest.raises(DataError, match=rf"{ABOUT_FOREIGN_FILES}: x/0\.png"):
        begin_test(tmp_path, "x", overwrite=True, save=("frames",))

    assert (tmp_path / "x" / "0.png").read_bytes() == b"theirs"


def test_overwrite_leaves_a_file_of_the_user_that_no_test_would_write(tmp_path):
    begin_test(tmp_path, "x")
    (tmp_path / "mine.mp4").write_bytes(b"theirs")

    # Give this run other settings. With the same settings, it would continue the first run, and
    # overwrite nothing.
    begin_test(tmp_path, "x", overwrite=True, settings={"other": 1})

    assert names_of_files(tmp_path) == {"mine.mp4", "run.json"}
    assert (tmp_path / "mine.mp4").read_bytes() == b"theirs"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"settings": [1], "inputs": {}}, id="settings that are a list"),
        pytest.param({"settings": {"save": 5}, "inputs": {}}, id="a number in place of names"),
        pytest.param({"settings": {}, "inputs": {}, "files": [1]}, id="files that are a list"),
        pytest.param({"settings": {}, "inputs": {}, "files": {"x": [5]}}, id="a number as a file"),
        pytest.param(
            {"settings": {}, "inputs": {}, "files": {"x": ["/elsewhere"]}},
            id="a file outside the folder",
        ),
    ],
)
def test_a_damaged_run_json_marks_no_folder_as_ours(tmp_path, content):
    (tmp_path / "run.json").write_text(json.dumps(content))
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "0.png").write_bytes(b"theirs")

    with pytest.raises(DataError, match=ABOUT_FOREIGN_FILES):
        begin_test(tmp_path, "x", overwrite=True, save=("frames",))


# ---- Results beside a training run --------------------------------------------------------------
#
# `claim_run_folder` takes a folder for a training run. Its argument `is_ours` says whether an
# earlier start of this run is known to have made the folder.

# Names of files that a training run writes into its folder.
FILES_OF_RUN = ["log"]


@WITH_AND_WITHOUT_OVERWRITE
def test_the_folder_of_a_training_run_is_refused_for_results(tmp_path, overwrite):
    claim_run_folder(tmp_path, FILES_OF_RUN, is_ours=False)

    with pytest.raises(OptionError, match="--output is the folder of a training run"):
        begin_test(tmp_path, "x", overwrite)

    assert (tmp_path / MARK).is_file()


def test_a_folder_within_the_folder_of_a_training_run_may_hold_results(tmp_path):
    claim_run_folder(tmp_path, FILES_OF_RUN, is_ours=False)

    begin_test(tmp_path / "test", "x")

    assert (tmp_path / "test" / RESULTS).is_file()


def test_the_folder_of_results_is_refused_for_a_training_run(tmp_path):
    begin_test(tmp_path, "x")

    with pytest.raises(OptionError, match="holds the results of a test"):
        claim_run_folder(tmp_path, FILES_OF_RUN, is_ours=False)


def test_a_training_run_whose_checkpoints_lie_beside_results_goes_on(tmp_path):
    begin_test(tmp_path, "x")

    # `is_ours` is true if the folder has checkpoints of this run, so the run made the folder.
    claim_run_folder(tmp_path, FILES_OF_RUN, is_ours=True)

    assert (tmp_path / RESULTS).is_file()


# ---- What --overwrite removes -------------------------------------------------------------------

# Files of the user. The last three have names that main_test_vrt.py would use in another run.
FILES_OF_USER = (
    "clip1/notes.txt",  # in the folder of the restored frames
    "clips/mine.png",  # in the folder of the scores of each clip
    "clip1.mp4",  # --save video would write it
    "clip1_slowmotion.mp4",  # --save slowmotion would write it
    ".work/clip1/000000.png",  # a run that does not save frames would write it
)


@pytest.fixture
def overwriting_command(home, clip, out) -> list[object]:
    """Give a command that restores another clip, "second", and overwrites the results in `out`.

    `out` holds the frames and comparison of clip1, and files of the user.
    """
    saving = ["--save", "frames", "comparison"]
    restore(*restoring_command(home, clip, out, "--gt", clip / "sharp", *saving))
    for name in FILES_OF_USER:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")

    second = clip.parent / "second"
    shutil.copytree(clip / "blur", second / "blur")
    # Another --dtype is another setting, so this run cannot continue the first run.
    saving = ["--overwrite", "--save", "video"]
    return restoring_command(home, second, out, *saving, "--dtype", "bfloat16")


def test_overwrite_removes_only_the_results_of_the_earlier_test(overwriting_command, out):
    restore(*overwriting_command)

    of_first_clip = {name for name in names_of_files(out) if "second" not in name}
    assert of_first_clip == {*FILES_OF_USER, *FILES_OF_ALL_CLIPS}
    for name in FILES_OF_USER:
        assert (out / name).read_text() == "mine"


def test_overwrite_writes_the_results_of_the_new_test(overwriting_command, out):
    restore(*overwriting_command)

    assert {"second.mp4", "clips/second.json"} <= names_of_files(out)


def test_overwrite_does_not_need_results_that_the_user_removed(overwriting_command, out):
    shutil.rmtree(out / "strips")

    restore(*overwriting_command)

    assert (out / "second.mp4").is_file()


def test_overwrite_removes_nothing_through_a_link(overwriting_command, out, tmp_path, capfd):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "000000.png").write_text("theirs")
    shutil.rmtree(out / "strips")
    (out / "strips").symlink_to(elsewhere)

    refusal_message(capfd, *overwriting_command)

    assert [path.read_text() for path in elsewhere.iterdir()] == ["theirs"]


def test_overwrite_removes_what_a_killed_test_has_written(tmp_path):
    begin_test(tmp_path, "x")
    (tmp_path / "x.mp4").write_bytes(b"ours")
    (tmp_path / "x_comparison.mp4").write_bytes(b"ours")

    begin_test(tmp_path, "y", overwrite=True)

    assert videos_in(tmp_path) == []


def test_overwrite_removes_what_a_test_of_an_earlier_version_saved(tmp_path):
    # Earlier versions did not list their files in run.json. Only the setting `save` says which
    # files they wrote: here a video, and no comparison. So x_comparison.mp4 must be a file of the
    # user.
    begin_test(tmp_path, "x", settings={"save": ["video"]})
    about = json.loads((tmp_path / RESULTS).read_text())
    del about["files"]
    (tmp_path / RESULTS).write_text(json.dumps(about))
    (tmp_path / "x.mp4").write_bytes(b"ours")
    (tmp_path / "x_comparison.mp4").write_bytes(b"theirs")

    begin_test(tmp_path, "y", overwrite=True)

    assert videos_in(tmp_path) == ["x_comparison.mp4"]


# ---- Signs of life for the watchdog -------------------------------------------------------------


class ScoredClip(NamedTuple):
    """A clip whose restored frames were scored and shown."""

    frames: int
    # The phases of the run that the watchdog saw, at each score and at the end.
    phases: set[str]
    # The time of the last sign of life before each score and before the end.
    times: list[float]


@pytest.fixture
def scored_clip(clip, out) -> ScoredClip:
    """Score black frames, and make videos of them."""
    (reader,) = user_clips(clip / "blur", gt=clip / "sharp")
    outputs = Outputs(out, ("comparison", "video"))
    _, height, width = reader.frame(0)["lq"].shape
    for stem in reader.stems:
        imwrite_rgb(outputs.file("frame", "clip1", stem), np.zeros((height, width, 3), np.uint8))
    # The watchdog sees RUN.place of this process: the phase of its work (`phase`), and the time of
    # its last sign of life (`since`).
    places = []

    def note_place(*_: Any) -> dict[str, float]:
        """Note when the last sign of life was. Return no additional score."""
        places.append(RUN.place)
        return {}

    watchdog.phase("score: clip1")
    all_frames = range(len(reader.stems))
    finish_clip(reader, all_frames, outputs, more_scores=note_place, notes={})
    places.append(RUN.place)
    watchdog.phase("start")
    return ScoredClip(
        frames=len(reader.stems),
        phases={place.phase for place in places},
        times=[place.since for place in places],
    )


def test_each_score_of_a_frame_is_a_sign_of_life(scored_clip):
    # Two pictures of each frame are scored: the restored frame and the blurry frame. One more sign
    # of life comes at the end of the videos. If the clip had one frame, the test would show little.
    assert scored_clip.frames > 1
    assert len(set(scored_clip.times)) == 2 * scored_clip.frames + 1


def test_signs_of_life_do_not_change_the_phase(scored_clip):
    assert scored_clip.phases == {"score: clip1"}


@pytest.fixture
def signs(monkeypatch) -> list[str]:
    """Give a list to which each sign of life adds an item."""
    found: list[str] = []
    monkeypatch.setattr(watchdog, "go_on", lambda: found.append("sign"))
    return found


def test_opening_a_video_gives_a_sign_of_life_for_each_frame(tmp_path, signs):
    write_video(tmp_path / "v.mp4", count=6)
    signs.clear()

    user_clips(tmp_path / "v.mp4")

    # All 6 frames are read for their times, and frame 0 is read again for its size. Each read of a
    # frame gives a sign.
    assert len(signs) == 6 + 1


def test_reading_a_late_frame_of_a_video_gives_a_sign_of_life_for_each_frame(tmp_path, signs):
    write_video(tmp_path / "v.mp4", count=6)
    (reader,) = user_clips(tmp_path / "v.mp4")
    signs.clear()

    reader.frame(5)

    # A film is decoded frame by frame. `user_clips` has read frame 0, so a read of frame 5 must
    # decode the frames 1 to 5.
    assert len(signs) == 5


def test_checking_a_clip_gives_a_sign_of_life_for_each_file(tmp_path, signs):
    write_clip(tmp_path, "clip0", frames=6)
    write_info(tmp_path)
    signs.clear()

    check_clips(data_section(tmp_path))

    # Each frame has a blurry, a sharp and a spike file. One more sign of life comes when the spikes
    # of the whole clip are checked.
    assert len(signs) == 3 * 6 + 1
