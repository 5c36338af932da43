"""Results that lie in the output folder: taken over where settings and inputs are the same, else
refused.
"""

import json
import re
import shutil

import cv2
import numpy as np
import pytest

import main_test_vrt
from data.clips.clip_reader import user_clips
from models.restore.outputs import OF_ALL_CLIPS, Outputs, claim_folder, finish_clip
from tests.helpers.checked import read_picture
from tests.helpers.clip_files import check, section, write_clip, write_info, write_video
from tests.helpers.foreign import snapshot
from tests.helpers.weights_files import make_home, message
from utils.dist import watchdog
from utils.dist.state import RUN
from utils.errors import DataError, OptionError
from utils.files import MARK, RESULTS, claim_run_folder
from utils.image import imwrite_rgb
from utils.video import VideoReader


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return make_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def clip(home, tmp_path):
    """A copy of a test clip as <tmp_path>/X/clip1/{blur,sharp}."""
    shutil.copytree(home / "GOPRO_Large/test/test0", tmp_path / "X" / "clip1")
    return tmp_path / "X" / "clip1"


def args(home, clip, out, *more):
    return [
        *map(str, ["--weights", home / "rgb.pth", "--input", clip / "blur", "--output", out, *more])
    ]


def test_an_output_around_the_inputs_is_refused_and_nothing_is_lost(home, clip, tmp_path, capfd):
    before = snapshot(tmp_path)
    (home / "link").symlink_to(clip.parent)
    for out in (clip.parent, clip / "sharp" / "new", clip, home / "link"):
        text, code = message(capfd, *args(home, clip, out, "--gt", clip / "sharp", "--overwrite"))
        assert code == 2 and "--output would write over the input" in text
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("more", [[], ["--center-frame-only"]])
def test_frames_without_the_mark_of_their_clip_are_scored_and_not_restored_again(
    home, clip, tmp_path, more
):
    out = tmp_path / "out"
    command = args(home, clip, out, "--gt", clip / "sharp", "--save", "frames", *more)
    assert main_test_vrt.main(command) == 0
    before = json.loads((out / "metrics.json").read_text())
    (out / "clips" / "clip1.json").unlink()
    times = {p: p.stat().st_mtime_ns for p in (out / "clip1").iterdir()}
    assert main_test_vrt.main(command) == 0
    assert {p: p.stat().st_mtime_ns for p in (out / "clip1").iterdir()} == times
    after = json.loads((out / "metrics.json").read_text())
    assert after["averages"] == before["averages"] and after["clips"]["clip1"]["frames"] == len(
        times
    )
    assert after["protocol"]["frames"] == ("the middle one" if more else "all")


def test_results_of_others_and_of_changed_inputs_are_not_taken_over(home, clip, tmp_path, capfd):
    out = tmp_path / "out"
    shutil.copytree(clip / "sharp", out / "clip1")  # PSNR inf, if taken for ours
    command = args(home, clip, out, "--gt", clip / "sharp", "--save", "frames")
    text, code = message(capfd, *command)
    assert code == 3 and "no test of this program made: clip1" in text
    shutil.rmtree(out)
    main_test_vrt.main(command)
    (out / "run.json").rename(tmp_path / "run.json")
    text, code = message(capfd, *command)
    assert code == 3 and "no test of this program made" in text and "with its run.json" in text
    (tmp_path / "run.json").rename(out / "run.json")
    picture = read_picture(clip / "blur" / "000000.png")
    cv2.imwrite(str(clip / "blur" / "000000.png"), 255 - picture)
    text, code = message(capfd, *command)
    assert code == 2 and "the files of clip clip1 have changed" in text
    assert main_test_vrt.main([*command, "--overwrite"]) == 0


def test_options_of_the_test_section_are_part_of_the_signature(home, tmp_path, capfd):
    out = tmp_path / "out"
    command = [
        "--opt",
        str(home / "options.json"),
        "--weights",
        str(home / "spike.pth"),
        "--output",
        str(out),
    ]
    assert main_test_vrt.main([*command, "datasets.test.num_frame=2"]) == 0
    for change, said in (
        ("--dtype=bfloat16", "dtype was float32, is bfloat16"),
        ("datasets.test.num_frame=-1", "datasets.test.num_frame was 2, is -1"),
        ("datasets.test.spike.resize=bilinear", "spike.resize was nearest, is bilinear"),
    ):
        text, code = message(capfd, *command, "datasets.test.num_frame=2", change)
        assert code == 2 and said in text, text
    assert (
        main_test_vrt.main(
            [*command, "datasets.test.num_frame=2", "datasets.test.dataloader_num_workers=3"]
        )
        == 0
    )


def in_to_out(home, folder, *save):
    """The arguments that restore <folder>/in to <folder>/out without spikes."""
    places = ["--input", folder / "in", "--output", folder / "out"]
    return ["--weights", home / "rgb.pth", *places, "--save", *save]


def test_a_folder_of_videos_is_restored_with_its_times(home, tmp_path):
    (tmp_path / "in").mkdir()
    sources = {"one": tmp_path / "in" / "one.mp4", "two": tmp_path / "in" / "two.avi"}
    for count, source in enumerate(sources.values(), 2):
        write_video(source, count)
    assert main_test_vrt.main([*map(str, in_to_out(home, tmp_path, "video"))]) == 0
    for name, source in sources.items():
        before, after = VideoReader(source), VideoReader(tmp_path / f"out/{name}.mp4")
        assert after.times == before.times and after.read(0).shape == before.read(0).shape


@pytest.mark.parametrize(("names", "save", "twice"), [
    (("x", "x_comparison"), ("video", "comparison"), "x_comparison.mp4"),
    (("clips", "000000"), ("frames",), "clips/000000.png"),
    (("run.json", "x"), ("frames",), "run.json"),
])  # fmt: skip
def test_two_results_of_one_name_are_refused_before_any_is_written(
    home, clip, tmp_path, capfd, names, save, twice
):
    for name in names:
        shutil.copytree(clip / "blur", tmp_path / "in" / name)
    before = snapshot(tmp_path)
    text, code = message(capfd, *in_to_out(home, tmp_path, *save))
    assert (
        code == 3
        and f"two results would have the name {twice}" in text
        and "rename one of the clips" in text
    )
    assert snapshot(tmp_path) == before


def claim(folder, clip, overwrite=False, **settings):
    """The folder for the results of a clip of one frame."""
    claim_folder(
        Outputs(folder, ("video", "comparison")), settings, {clip: "0"}, {clip: ["0"]}, overwrite
    )


def test_the_results_of_an_earlier_clip_are_not_replaced_by_those_of_another(tmp_path):
    claim(tmp_path, "x")
    claim(tmp_path, "y")
    with pytest.raises(DataError, match=r"the name x_comparison\.mp4") as error:
        claim(tmp_path, "x_comparison")
    assert "clip x, which is there already" in str(error.value)


@pytest.mark.parametrize(
    "name", ["strips/x/1.png", "strips", "x.mp4", "clips", "report.html", ".work/x/0.png"]
)
def test_a_foreign_file_under_any_name_that_is_written_is_refused_at_the_start(tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"theirs")
    for overwrite in (False, True):
        with pytest.raises(
            DataError, match=f"no test of this program made: {re.escape(name.split('/')[0])}"
        ):
            claim(tmp_path, "x", overwrite)
    assert not (tmp_path / "run.json").exists()


def test_a_file_of_the_user_beside_our_results_is_not_taken_for_a_result(tmp_path):
    claim(tmp_path, "x")
    (tmp_path / "mine.mp4").write_bytes(b"theirs")
    for overwrite in (False, True):
        with pytest.raises(DataError, match=r"no test of this program made: mine\.mp4"):
            claim(tmp_path, "mine", overwrite)
    claim(tmp_path, "x", True, other=1)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "0.png").write_bytes(b"theirs")  # no test has saved frames of x
    with pytest.raises(DataError, match=r"no test of this program made: x/0\.png"):
        claim_folder(Outputs(tmp_path), {}, {"x": "0"}, {"x": ["0"]}, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.mp4", "run.json", "x"}
    assert (
        (tmp_path / "mine.mp4").read_bytes() == (tmp_path / "x" / "0.png").read_bytes() == b"theirs"
    )
    for damaged in (
        {"settings": [1], "inputs": {}},
        {"settings": {}, "inputs": {}, "files": {"x": ["/elsewhere"]}},
    ):
        (tmp_path / "run.json").write_text(json.dumps(damaged))
        with pytest.raises(DataError, match="no test of this program made"):
            claim_folder(Outputs(tmp_path), {}, {"x": "0"}, {"x": ["0"]}, overwrite=True)


def test_results_and_training_runs_do_not_share_a_folder(tmp_path):
    run, results = tmp_path / "run", tmp_path / "results"
    claim_run_folder(run, ["log"], False)
    for overwrite in (False, True):
        with pytest.raises(OptionError, match="--output is the folder of a training run"):
            claim(run, "x", overwrite)
    claim(run / "test", "x")
    claim(results, "x")
    with pytest.raises(OptionError, match="holds the results of a test"):
        claim_run_folder(results, ["log"], False)
    claim_run_folder(results, ["log"], True)  # a run's checkpoints lie there
    assert (run / MARK).is_file() and (results / RESULTS).is_file()


def test_scoring_and_looking_through_results_go_on_with_each_file(clip, tmp_path):
    (reader,) = user_clips(clip / "blur", gt=clip / "sharp")
    outputs, seen, indices = (
        Outputs(tmp_path / "out", ("comparison", "video")),
        [],
        range(len(reader.stems)),
    )
    restored = np.zeros((*reader.frame(0)["lq"].shape[1:], 3), np.uint8)
    for stem in reader.stems:
        imwrite_rgb(outputs.file("frame", "clip1", stem), restored)

    def score(*_):
        seen.append(RUN.place)
        return {}

    watchdog.phase("score: clip1")
    finish_clip(reader, indices, outputs, score, {})
    seen.append(RUN.place)
    assert len(indices) > 1 and len({place.since for place in seen}) == 2 * len(indices) + 1
    assert {place.phase for place in [*seen, RUN.place]} == {"score: clip1"}
    watchdog.phase("start")


def test_overwrite_removes_the_results_of_the_earlier_test_and_nothing_else(home, clip, tmp_path):
    out = tmp_path / "out"
    saved = ("frames", "comparison")
    assert main_test_vrt.main(args(home, clip, out, "--gt", clip / "sharp", "--save", *saved)) == 0
    # Names that other tests would have: a video of these frames, the frames of a clip without sharp
    # ones.
    mine = (
        "clip1/notes.txt",
        "clips/mine.png",
        "clip1.mp4",
        "clip1_slowmotion.mp4",
        ".work/clip1/000000.png",
    )
    for name in mine:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
    shutil.rmtree(out / "strips")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "000000.png").write_text("theirs")
    (out / "strips").symlink_to(tmp_path / "elsewhere")
    shutil.copytree(clip / "blur", clip.parent / "second" / "blur")
    command = args(
        home, clip.parent / "second", out, "--overwrite", "--save", "video", "--dtype", "bfloat16"
    )
    with pytest.raises(SystemExit):  # pictures would go through the link
        main_test_vrt.main(command)
    assert [path.read_text() for path in (tmp_path / "elsewhere").iterdir()] == ["theirs"]
    (out / "strips").unlink()
    assert main_test_vrt.main(command) == 0
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {name for name in names if "second" not in name} == {*mine, *OF_ALL_CLIPS}
    assert {"second.mp4", "clips/second.json"} <= names


def test_overwrite_removes_what_a_killed_test_has_written_and_what_one_of_an_earlier_version_saved(
    tmp_path,
):
    for is_older in (False, True):
        claim(tmp_path, "x", overwrite=True, save=["video"])
        (tmp_path / "x.mp4").write_bytes(b"ours")
        if is_older:
            about = json.loads((tmp_path / RESULTS).read_text())
            (tmp_path / RESULTS).write_text(
                json.dumps({key: about[key] for key in ("settings", "inputs")})
            )
        (tmp_path / "x_comparison.mp4").write_bytes(b"ours" if not is_older else b"theirs")
        claim(tmp_path, "y", overwrite=True)
        assert [path.name for path in tmp_path.glob("*.mp4")] == is_older * ["x_comparison.mp4"]


def test_reading_a_long_video_and_checking_many_files_go_on_with_each(tmp_path, monkeypatch):
    write_video(tmp_path / "v.mp4")
    write_clip(tmp_path, "clip0", frames=6)
    write_info(tmp_path)
    monkeypatch.setattr(watchdog, "go_on", lambda: seen.append(0))
    seen = []
    (reader,) = user_clips(tmp_path / "v.mp4")
    assert len(seen) == 6 + 1  # all of them for their times, one for the size
    reader.frame(5)
    assert len(seen) == 6 + 6
    check(section(tmp_path))
    assert len(seen) == 12 + 3 * 6 + 1  # each file, and the spikes of the clip
