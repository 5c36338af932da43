"""Which planes of one spike file belong to which frame, by the times of the frames."""

import itertools
import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from data.cameras.frame_times import times_of_film
from data.clips.clip_reader import user_clips
from data.spike.simulate import to_display
from tests.helpers.clip_files import (
    build,
    picture,
    write_clip,
    write_dat,
    write_info,
    write_png,
)
from tests.helpers.film_files import (
    CLOCK,
    SIZE,
    moving_scene,
    noise_film,
    starts_of,
    write_cut_film,
    write_film,
    write_film_with_lost_packets,
    write_scene_spikes,
)
from tests.helpers.weights_files import metrics, restore
from utils.errors import DataError

SHORT, LONG = Fraction(1, 60), Fraction(1, 15)
RATE = 1440  # planes a second: 24 in the short time
OPTIONS = {"type": "dat", "h": 48, "w": 64, "center": "file", "rate": 1.0, "light": "linear"}


def planes_of(clip):
    """(first, count) of the planes of each frame."""
    return [(e.own.first, e.own.count) for e in clip.clip.exposures]


def true_planes(starts, lengths):
    return [(int(s * RATE), int(d * RATE)) for s, d in zip(starts, lengths, strict=True)]


@pytest.mark.parametrize(
    "ticks, edges",
    [
        ([0, 320, 641, 961], [0, 320, 640, 960, 1281]),
        ([0, 321, 643, 960], [0, 321, 643, 960, 1277]),
        ([0, 320, 960, 1280], [0, 320, 960, 1280, 1600]),
        ([0, 320, 639, 957, 1274, 1590, 1905], [0, 320, 639, 957, 1274, 1590, 1905, 2220]),
        ([7, 327, 647, 967], [0, 320, 640, 960, 1280]),
        # Whole hundredths of a second, as in a GIF: 3, 3, 4; and 1, 2, 1, which is no rounding.
        ([0, 576, 1152, 1920], [0, 640, 1280, 1920, 2560]),
        ([0, 192, 576, 768], [0, 192, 576, 768, 960]),
    ],
    ids=["rounded", "more", "whole frames", "slower and slower", "later", "coarse", "coarse, more"],
)
def test_only_rounding_to_a_tick_counts_as_one_distance(ticks, edges):
    times = times_of_film([Fraction(tick, CLOCK) for tick in ticks])

    assert times.shares(3, edges[-1]) == [(3 + a, 3 + b) for a, b in itertools.pairwise(edges)]


def film_with_spikes(folder, lengths, keep=None, planes=None):
    """A film and a file of empty planes that begin and end with it; path of both."""
    starts = starts_of(lengths)
    kept = range(len(lengths)) if keep is None else keep
    write_film(folder / "f.mp4", [picture(seed=i) for i in kept], [starts[i] for i in kept])
    total = int(sum(lengths) * RATE) if planes is None else planes
    write_dat(folder / "f.dat", np.zeros((total, *SIZE), np.uint8))
    return folder / "f.mp4", folder / "f.dat"


@pytest.mark.parametrize(
    "lengths",
    [
        [SHORT] * 6 + [LONG] * 6,
        [LONG] * 3 + [SHORT] * 3,
        [SHORT, LONG, SHORT, LONG, LONG],
        [SHORT * 2, SHORT * 3, SHORT * 5, SHORT * 5],
    ],
    ids=["slower", "faster", "changing", "each its own"],
)
def test_frames_of_a_film_have_the_planes_of_their_times(tmp_path, lengths):
    film, spikes = film_with_spikes(tmp_path, lengths)

    (clip,) = user_clips(film, spikes, spike_options=OPTIONS)

    assert planes_of(clip) == true_planes(starts_of(lengths), lengths)


@pytest.mark.parametrize("first, count", [(7, 288), (0, 290)])
def test_frames_at_one_distance_share_the_planes_evenly(tmp_path, first, count):
    film, spikes = film_with_spikes(tmp_path, [SHORT] * 12, planes=300)

    (clip,) = user_clips(film, spikes, spike_options=OPTIONS | {"first": first, "count": count})

    edges = [first + i * count // 12 for i in range(13)]
    assert planes_of(clip) == [(a, b - a) for a, b in itertools.pairwise(edges)]


def test_times_that_a_container_rounds_count_as_one_distance(tmp_path):
    # Matroska's clock counts milliseconds: 0, 33, 67, 100, ...
    starts = [Fraction(i, 30) for i in range(9)]
    write_film(tmp_path / "f.mkv", [picture(seed=i) for i in range(9)], starts)
    write_dat(tmp_path / "f.dat", np.zeros((9 * 50 + 4, *SIZE), np.uint8))

    (clip,) = user_clips(tmp_path / "f.mkv", tmp_path / "f.dat", spike_options=OPTIONS)

    assert [first for first, _ in planes_of(clip)] == [i * 454 // 9 for i in range(9)]


def test_a_film_of_changing_rate_is_restored_as_with_its_true_planes(tmp_path):
    lengths = [SHORT] * 6 + [LONG] * 6
    light = moving_scene(720)
    true = true_planes(starts_of(lengths), lengths)
    frames = []
    (tmp_path / "gt").mkdir()
    for number, (first, count) in enumerate(true):
        blurry = to_display(light[first : first + count].mean(axis=0))
        frames.append(np.round(255 * blurry).astype(np.uint8)[..., None].repeat(3, axis=2))
        sharp = np.round(255 * to_display(light[first + count // 2]))
        cv2.imwrite(str(tmp_path / f"gt/{number:06d}.png"), sharp.astype(np.uint8))
    write_film(tmp_path / "f.mp4", frames, starts_of(lengths))
    write_scene_spikes(tmp_path / "f.dat", light)
    common = [
        "--method", "exposure", "--input", tmp_path / "f.mp4", "--spike", tmp_path / "f.dat",
        "--gt", tmp_path / "gt", "--spike-size", 48, 64, "spike.rate=1", "--save", "frames",
    ]  # fmt: skip

    restore(*common, "--output", tmp_path / "timed")
    rows = json.dumps({"f": [list(map(float, row)) for row in true]})
    restore(*common, "--output", tmp_path / "true", f"spike.exposure={rows}")

    timed, told = (metrics(tmp_path / name)["averages"] for name in ("timed", "true"))
    assert timed["restored"]["psnr"] == told["restored"]["psnr"] > timed["input"]["psnr"] + 1


@pytest.mark.parametrize(
    "first, last, words",
    [(14, 14, "1 of 36 frames is missing: frame 14 at 0.560 s"),
     (6, 8, "3 of 36 frames are missing: frames 6 to 8 at 0.240 s")],
    ids=["one", "three"],
)  # fmt: skip
def test_frames_beside_lost_ones_keep_their_planes_and_the_lost_ones_are_named(
    tmp_path, caplog, first, last, words
):
    write_film_with_lost_packets(tmp_path / "f.ts", 36, first, last)
    write_dat(tmp_path / "f.dat", np.zeros((36 * 40, *SIZE), np.uint8))

    (clip,) = user_clips(tmp_path / "f.ts", tmp_path / "f.dat", spike_options=OPTIONS)

    there = [i for i in range(36) if not first <= i <= last]
    assert planes_of(clip) == [(40 * i, 40) for i in there]
    assert words in caplog.text and "those of the missing frames are left out" in caplog.text


def test_the_lost_beginning_of_a_film_is_named_and_takes_its_planes_with_it(tmp_path, caplog):
    # Frame 0 is gone, and frames 1 to 5 cannot be decoded without it.
    write_film_with_lost_packets(tmp_path / "f.ts", 36, 0, 0, codec="libx265")
    write_dat(tmp_path / "f.dat", np.zeros((35 * 40, *SIZE), np.uint8))

    (clip,) = user_clips(tmp_path / "f.ts", tmp_path / "f.dat", spike_options=OPTIONS)

    assert planes_of(clip) == [(40 * i, 40) for i in range(5, 35)]
    assert "5 of 35 frames are missing: frames 0 to 4 at 0.040 s" in caplog.text


def test_a_film_that_begins_later_has_its_planes_from_its_first_frame_on(tmp_path):
    lengths = [SHORT] * 3 + [LONG] * 3
    starts = [2 + start for start in starts_of(lengths)]
    write_film(tmp_path / "f.mkv", [picture(seed=i) for i in range(6)], starts)
    write_dat(tmp_path / "f.dat", np.zeros((360, *SIZE), np.uint8))

    (clip,) = user_clips(tmp_path / "f.mkv", tmp_path / "f.dat", spike_options=OPTIONS)
    said = refusal(
        tmp_path / "f.mkv", tmp_path / "f.dat", calibration=calibration(tmp_path, 2 * RATE)
    )

    # Matroska rounds to milliseconds, 1.44 planes.
    expected = np.array(true_planes(starts_of(lengths), lengths))
    assert np.abs(np.array(planes_of(clip)) - expected).max() <= 2
    assert "the film lasts 0.249 s, its planes 0.125 s" in said.what


def test_the_lost_end_of_a_film_is_named_and_takes_its_planes_with_it(tmp_path, caplog):
    write_cut_film(tmp_path / "f.mp4", 36, 0.6)
    write_dat(tmp_path / "f.dat", np.zeros((36 * 40, *SIZE), np.uint8))

    (clip,) = user_clips(tmp_path / "f.mp4", tmp_path / "f.dat", spike_options=OPTIONS)

    count = len(clip.stems)
    assert 5 < count < 30
    assert planes_of(clip) == [(40 * i, 40) for i in range(count)]
    lost = f"{36 - count} of 36 frames are missing: frames {count} to 35 at {count / 25:.3f} s"
    assert lost in caplog.text


@pytest.mark.parametrize(
    "name, codec, options",
    [
        ("f.mp4", "libx264", {"bf": "3"}), ("f.mkv", "libx264", {"bf": "3"}),
        ("f.ts", "libx264", {"bf": "3"}), ("f.mov", "mpeg4", {"bf": "2"}),
        ("f.webm", "libvpx-vp9", {"auto-alt-ref": "1", "lag-in-frames": "10", "cpu-used": "8"}),
        ("f.avi", "mpeg4", {"bf": "2"}),
    ],
    ids=["mp4", "mkv", "ts", "mov", "webm", "avi"],
)  # fmt: skip
@pytest.mark.parametrize("rate", [Fraction(25), Fraction(30000, 1001)], ids=str)
def test_a_sound_film_lacks_no_frame(tmp_path, caplog, name, codec, options, rate):
    noise_film(tmp_path / name, 20, codec=codec, rate=rate, options=options)
    write_dat(tmp_path / "f.dat", np.zeros((20 * 24 + 7, *SIZE), np.uint8))

    (clip,) = user_clips(tmp_path / name, tmp_path / "f.dat", spike_options=OPTIONS)

    assert [first for first, _ in planes_of(clip)] == [i * 487 // 20 for i in range(20)]
    assert "missing" not in caplog.text and "damaged" not in caplog.text


def test_missing_frames_of_a_film_without_spikes_are_named(tmp_path, caplog):
    write_cut_film(tmp_path / "f.mp4", 36, 0.6)

    user_clips(tmp_path / "f.mp4")

    assert "of 36 frames are missing" in caplog.text


def test_a_file_for_each_frame_of_a_film_that_lacks_some_is_refused(tmp_path):
    write_film_with_lost_packets(tmp_path / "f.ts", 36, 14, 15)
    for frame in range(36):
        write_dat(tmp_path / f"each/{frame:02d}.dat", np.zeros((24, *SIZE), np.uint8))

    error = refusal(tmp_path / "f.ts", tmp_path / "each")

    assert "2 of 36 frames are missing: frames 14 to 15 at 0.560 s" in error.what
    assert "beside it are 36 spike files" in error.what and "repair the film" in error.do


def test_one_period_for_a_film_that_lacks_frames_is_refused(tmp_path):
    write_film_with_lost_packets(tmp_path / "f.ts", 36, 14, 15)
    write_dat(tmp_path / "f.dat", np.zeros((36 * 40, *SIZE), np.uint8))
    exposure = {"start": 0.0, "length": 40.0, "period": 40.0}

    error = refusal(tmp_path / "f.ts", tmp_path / "f.dat", exposure=exposure)

    rows = [[40.0 * i, 40.0] for i in range(36) if i not in (14, 15)]
    assert "frames 14 to 15" in error.what and json.dumps({"f": rows}) in error.do


def folder_with_spikes(folder, names, planes=240):
    for number, name in enumerate(names):
        write_png(folder / "frames" / f"{name}.png", np.full(SIZE, 20 * number))
    write_dat(folder / "all.dat", np.zeros((planes, *SIZE), np.uint8))
    return folder / "frames", folder / "all.dat"


def refusal(*args, **options):
    with pytest.raises(DataError) as error:
        user_clips(*args, spike_options=OPTIONS | options)
    return error.value


GAP = ["frame00", "frame01", "frame04", "frame05"]


@pytest.mark.parametrize(
    "names, words, exposures",
    [
        (GAP, "2 of 6 frames are missing: frames 2 to 3",
         [[0, 40], [40, 40], [160, 40], [200, 40]]),
        (["0", "1", "3"], "1 of 4 frames is missing: frame 2", [[0, 60], [60, 60], [180, 60]]),
        (["10", "12", "14"], "2 of 5 frames are missing: frame 11, frame 13",
         [[0, 48], [96, 48], [192, 48]]),
        (["left", "right"], "no numbers", {"start": 0, "length": 120.0, "period": 120.0}),
        (["a1", "b2", "b3"], "no numbers", {"start": 0, "length": 80.0, "period": 80.0}),
        (["1000000", "1033000", "1099000"], "1 of 4 frames is missing: frame 2",
         [[0, 80], [80, 80], [160, 80]]),
        (["3.1", "3.2", "3.5"], "2 of 5 frames are missing: frames 2 to 3",
         [[0, 48], [48, 48], [192, 48]]),
        (["0", "1", "9000000000"], "frames 2 to 8999999999", None),
    ],
    ids=["gap", "one", "every second", "words", "two kinds", "stamps", "seconds", "huge"],
)  # fmt: skip
def test_frames_whose_times_are_unknown_are_refused_with_exposures_to_correct(
    tmp_path, names, words, exposures
):
    error = refusal(*folder_with_spikes(tmp_path, names))

    assert words in error.what and "spike.exposure" in error.do
    if exposures is not None and names[0] != "1000000":
        table = error.do.partition("spike.exposure=")[2].rstrip("'")
        assert json.loads(table) == {"frames": exposures}


@pytest.mark.parametrize("gaps, more", [(5, ""), (6, ", ..."), (7, ", ...")])
def test_the_first_five_gaps_are_named(tmp_path, gaps, more):
    files = folder_with_spikes(tmp_path, [str(2 * i) for i in range(gaps + 1)])

    said = refusal(*files).what

    named = "frame 1, frame 3, frame 5, frame 7, frame 9" + more
    assert said.endswith(f"{gaps} of {2 * gaps + 1} frames are missing: {named}")


def test_the_proposed_exposures_are_accepted(tmp_path):
    files = folder_with_spikes(tmp_path, GAP)
    table = refusal(*files).do.partition("spike.exposure=")[2].rstrip("'")

    (clip,) = user_clips(*files, spike_options=OPTIONS | {"exposure": json.loads(table)})

    assert planes_of(clip) == [(0, 40), (40, 40), (160, 40), (200, 40)]


@pytest.mark.parametrize(
    "names",
    [["7", "8", "9", "10"], ["x_01_a", "x_02_a", "x_03_a", "x_04_a"], ["1e", "2e", "3e", "4e"],
     ["1000000", "1033333", "1066667", "1100000"], ["0.1", "0.2", "0.3", "0.4"]],
    ids=["numbers", "between text", "before text", "stamps", "seconds"],
)  # fmt: skip
def test_a_folder_without_gaps_shares_its_planes_evenly(tmp_path, names):
    (clip,) = user_clips(*folder_with_spikes(tmp_path, names, 242), spike_options=OPTIONS)

    assert planes_of(clip) == [(0, 60), (60, 61), (121, 60), (181, 61)]


@pytest.mark.parametrize("step, is_stamp", [(999, False), (1000, True)])
def test_numbers_a_thousand_apart_count_microseconds(tmp_path, step, is_stamp):
    files = folder_with_spikes(tmp_path, [str(10_000 + step * i) for i in range(3)])

    if is_stamp:
        (clip,) = user_clips(*files, spike_options=OPTIONS)
        assert planes_of(clip) == [(0, 80), (80, 80), (160, 80)]
    else:
        assert "1996 of 1999 frames are missing: frames 10001 to 10998" in refusal(*files).what


def test_stamps_at_changing_distances_give_planes_by_time(tmp_path):
    files = folder_with_spikes(tmp_path, ["1000000", "1030000", "1070000", "1100000"], 130)

    (clip,) = user_clips(*files, spike_options=OPTIONS)

    assert planes_of(clip) == [(0, 30), (30, 40), (70, 30), (100, 30)]


@pytest.mark.parametrize("name", ["7", "alone"])
def test_one_frame_takes_one_exposure(tmp_path, name):
    regular = {"start": 3.0, "length": 20.0, "period": 30.5}
    options = OPTIONS | {"exposure": regular}

    (clip,) = user_clips(*folder_with_spikes(tmp_path, [name]), spike_options=options)

    assert planes_of(clip) == [(3, 20)]


@pytest.mark.parametrize("name", ["7", "alone"])
def test_one_frame_takes_all_planes_of_its_file(tmp_path, name):
    (clip,) = user_clips(*folder_with_spikes(tmp_path, [name]), spike_options=OPTIONS)

    assert planes_of(clip) == [(0, 240)]


def test_one_period_for_frames_with_a_gap_is_refused(tmp_path):
    regular = {"start": 3.0, "length": 20.0, "period": 30.5}
    error = refusal(*folder_with_spikes(tmp_path, GAP), exposure=regular)

    rows = [[3.0, 20.0], [33.5, 20.0], [125.0, 20.0], [155.5, 20.0]]
    assert "one period" in error.what and json.dumps({"frames": rows}) in error.do


def test_one_period_for_a_film_of_changing_rate_is_refused(tmp_path):
    lengths = [SHORT] * 4 + [LONG] * 2
    files = film_with_spikes(tmp_path, lengths)
    error = refusal(*files, exposure={"start": 0.0, "length": 24.0, "period": 24.0})

    assert "several distances" in error.what
    assert json.dumps({"f": [[float(24 * i), 24.0] for i in (0, 1, 2, 3, 4, 8)]}) in error.do


def test_a_list_of_other_frames_than_are_there_is_refused(tmp_path):
    rows = {"frames": [[40.0 * i, 40.0] for i in range(6)]}
    error = refusal(*folder_with_spikes(tmp_path, GAP), exposure=rows)

    assert "lists 6 frames" in error.what and "frames 2 to 3" in error.what
    left = [[0.0, 40.0], [40.0, 40.0], [160.0, 40.0], [200.0, 40.0]]
    assert json.dumps({"frames": left}) in error.do


def test_several_clips_are_refused_at_once(tmp_path):
    (tmp_path / "sp").mkdir()
    for clip in ("a", "b"):
        frames, spikes = folder_with_spikes(tmp_path / clip, GAP)
        shutil.move(frames, tmp_path / "in" / clip)
        shutil.move(spikes, tmp_path / f"sp/{clip}.dat")
    error = refusal(tmp_path / "in", tmp_path / "sp")

    table = json.loads(error.do.partition("spike.exposure=")[2].rstrip("'"))
    assert list(table) == ["a", "b"] and "clip a" in error.what and "clip b" in error.what


def test_missing_numbers_are_named_where_the_spikes_have_a_file_for_each_frame(tmp_path, caplog):
    frames, _ = folder_with_spikes(tmp_path, GAP)
    for name in GAP:
        write_dat(tmp_path / f"each/{name}.dat", np.zeros((24, *SIZE), np.uint8))

    user_clips(frames, tmp_path / "each", spike_options=OPTIONS)

    assert "2 of 6 frames are missing: frames 2 to 3" in caplog.text


def test_sharp_frames_are_as_many_times_larger_as_the_network_enlarges(tmp_path):
    frames, _ = folder_with_spikes(tmp_path, ["0", "1"])
    for number in range(2):
        write_png(tmp_path / f"sharp/{number}.png", np.full((3 * SIZE[0], 3 * SIZE[1]), 9))

    (clip,) = user_clips(frames, gt=tmp_path / "sharp", scale=3)

    assert (clip.size, clip.gt_size, clip.scale) == ((48, 64), (144, 192), 3)
    for scale, size in ((1, "64x48"), (2, "128x96"), (4, "256x192")):
        with pytest.raises(DataError) as error:
            user_clips(frames, gt=tmp_path / "sharp", scale=scale)
        assert error.value.what == "reference of 192x144 for frames of 64x48"
        assert error.value.expected.startswith(size)


def test_the_folder_of_a_clip_is_one_clip(tmp_path):
    clip = tmp_path / "take 3"
    for kind in ("blur", "sharp"):
        for frame in range(3):
            write_png(clip / kind / f"{frame:02d}.png", np.full(SIZE, 20 * frame))
    for frame in range(3):
        write_dat(clip / f"spike/{frame:02d}.dat", np.zeros((24, *SIZE), np.uint8))

    (found,) = user_clips(clip, clip, clip, spike_options=OPTIONS)

    assert found.name == "take 3" and len(found.stems) == 3
    assert found.origin == {
        "input": f"{clip}/blur", "gt": f"{clip}/sharp", "spike": f"{clip}/spike"
    }  # fmt: skip


def test_a_folder_of_each_kind_of_file_is_a_folder_of_clips(tmp_path):
    for clip in ("a", "b"):
        for kind in ("blur", "sharp"):
            for frame in range(2):
                write_png(tmp_path / kind / clip / f"{frame}.png", np.full(SIZE, 20 * frame))
        write_dat(tmp_path / f"spike/{clip}.dat", np.zeros((48, *SIZE), np.uint8))

    for spike, gt in ((tmp_path, tmp_path), (tmp_path / "spike", tmp_path / "sharp")):
        found = user_clips(tmp_path, spike, gt, spike_options=OPTIONS)

        assert [clip.name for clip in found] == ["a", "b"]
        assert [clip.origin["gt"] for clip in found] == [f"{tmp_path}/sharp/{n}" for n in "ab"]
        assert [clip.origin["spike"] for clip in found] == [
            f"{tmp_path}/spike/{n}.dat" for n in "ab"
        ]


def test_a_folder_with_one_spike_file_for_all_frames_is_told_from_the_file_itself(tmp_path):
    frames, _ = folder_with_spikes(tmp_path, ["0", "1", "2", "3"])
    write_dat(tmp_path / "only/all.dat", np.zeros((96, *SIZE), np.uint8))

    error = refusal(frames, tmp_path / "only")

    assert "one spike file for 4 frames" in error.what
    assert f"--spike {tmp_path}/only/all.dat takes it as one file" in error.do


def test_an_order_that_the_names_do_not_tell_is_said(tmp_path, caplog):
    frames, _ = folder_with_spikes(tmp_path, ["left", "right"])

    user_clips(frames)

    assert "taken in the order of their names: the names of the frames have no numbers" in (
        caplog.text
    )


def calibration(folder, tick_hz):
    values = {"format": 1, "matrix": [[1, 0, 0], [0, 1, 0]], "spike_size": SIZE, "rgb_size": SIZE}
    (folder / "c.json").write_text(json.dumps(values | {"tick_hz": tick_hz}))
    return str(folder / "c.json")


@pytest.mark.parametrize("tick_hz, seconds", [(RATE * 2, "0.167"), (RATE / 2, "0.667")])
def test_clocks_of_two_cameras_that_contradict_are_refused(tmp_path, tick_hz, seconds):
    files = film_with_spikes(tmp_path, [SHORT] * 4 + [LONG] * 4)
    error = refusal(*files, calibration=calibration(tmp_path, tick_hz))

    assert f"the film lasts 0.333 s, its planes {seconds} s" in error.what


@pytest.mark.parametrize(
    "seconds, is_fine", [(0.26, False), (0.275, True), (0.395, True), (0.41, False)]
)
def test_clocks_may_differ_by_a_frame(tmp_path, seconds, is_fine):
    # The last frame begins at 0.267 s and lasts for 0.067 s.
    files = film_with_spikes(tmp_path, [SHORT] * 4 + [LONG] * 4)
    options = {"calibration": calibration(tmp_path, 480 / seconds)}

    if is_fine:
        (clip,) = user_clips(*files, spike_options=OPTIONS | options)
        assert planes_of(clip)[1][0] == int(480 / 60 / seconds)
    else:
        assert "the film lasts 0.333 s" in refusal(*files, **options).what


def test_the_clock_of_the_spike_camera_tells_how_long_the_last_frame_lasts(tmp_path):
    lengths = [LONG, LONG, SHORT, LONG]  # the film says as long as the frame before, SHORT
    files = film_with_spikes(tmp_path, lengths)

    (clip,) = user_clips(
        *files, spike_options=OPTIONS | {"calibration": calibration(tmp_path, RATE)}
    )

    assert planes_of(clip) == true_planes(starts_of(lengths), lengths)


FLOATS = ["432.033333", "432.066667", "432.1", "432.133333", "432.166667", "432.2"]


@pytest.mark.parametrize(
    "stems",
    [
        FLOATS,
        ["0", "0.04", "0.08", "0.12", "0.16", "0.2", "0.24"],
        ["-0.04", "0", "4e-05", "0.04"],
        ["1.8", "1.9", "1.10", "1.11"],  # a counter behind a point
        ["-1", "-2", "-10"],  # a text of one sign before a counter
        ["9", "10", "011"],
    ],
)
@pytest.mark.parametrize("kind", ["frames", "spikes of a film"])
def test_names_that_are_numbers_are_taken_in_the_order_of_their_values(tmp_path, stems, kind):
    for number in np.random.default_rng(0).permutation(len(stems)):
        write_png(tmp_path / f"in/{stems[number]}.png", np.full(SIZE, 20 * number))
        write_dat(tmp_path / f"spikes/{stems[number]}.dat", np.full((24, *SIZE), number % 2))
    options: dict[str, Any] = {"spike": tmp_path / "spikes", "spike_options": OPTIONS}
    if kind == "frames":
        (clip,) = user_clips(tmp_path / "in", **options)
        assert list(clip.stems) == stems
        reds = [round(255 * float(clip.frame(i)["lq"][0, 0, 0])) for i in range(len(stems))]
        assert reds == [20 * number for number in range(len(stems))]
    else:
        frames = [picture(*SIZE)] * len(stems)
        write_film(tmp_path / "f.mp4", frames, starts_of([SHORT] * len(stems)))
        (clip,) = user_clips(tmp_path / "f.mp4", **options)
        assert [Path(path).stem for path in clip.clip.spike] == stems


def test_numbers_behind_a_text_that_are_out_of_order_by_value_are_doubted(tmp_path, caplog):
    for stem in FLOATS:
        write_png(tmp_path / f"in/t_{stem}.png", np.zeros(SIZE))
    user_clips(tmp_path / "in")
    assert "taken in the order of their names: the numbers in the names" in caplog.text
    write_dat(tmp_path / "all.dat", np.zeros((144, *SIZE), np.uint8))
    with pytest.raises(DataError, match="another order by value"):
        user_clips(tmp_path / "in", tmp_path / "all.dat", spike_options=OPTIONS)


@pytest.mark.parametrize(
    "numbers", [["0.04", "0.08", "0.12"], ["1.8", "1.9", "1.10"]], ids=["seconds", "counter"]
)
def test_numbers_behind_a_text_that_are_in_order_are_not_doubted(tmp_path, caplog, numbers):
    for number in numbers:
        write_png(tmp_path / f"in/t_{number}.png", np.zeros(SIZE))

    (clip,) = user_clips(tmp_path / "in")

    assert list(clip.stems) == [f"t_{number}" for number in numbers]
    assert "taken in the order of their names" not in caplog.text


def test_frames_at_one_distance_may_begin_at_any_time(tmp_path):
    stems = ["432.04", "432.08", "432.12", "432.16"]
    for stem in stems:
        write_png(tmp_path / f"in/{stem}.png", np.zeros(SIZE))
    write_dat(tmp_path / "all.dat", np.zeros((96, *SIZE), np.uint8))
    exposure = {"start": 0.0, "length": 20.0, "period": 24.0}

    (clip,) = user_clips(
        tmp_path / "in", tmp_path / "all.dat", spike_options=OPTIONS | {"exposure": exposure}
    )

    assert planes_of(clip) == [(0, 20), (24, 20), (48, 20), (72, 20)]


def test_frames_named_by_seconds_are_trained_on_in_order(tmp_path):
    write_clip(tmp_path, "a", frames=len(FLOATS))
    write_info(tmp_path)
    for path in sorted(tmp_path.rglob("00000?.*")):
        path.rename(path.with_name(FLOATS[int(path.stem)] + path.suffix))
    (clip,) = build(tmp_path).clips
    assert list(clip.stems) == FLOATS
