"""data/cameras/frame_times.py: which planes of one spike file belong to which frame.

A user may have one spike file for all frames of a clip. The planes of a frame follow from the times
of the frames: those of a film, the numbers in the names of images, a table (spike.exposure), or the
clock of a calibration. Frames have 48 x 64 pixels, and the spike files have empty planes of that
size, because only their number matters here.
"""

import itertools
import json
import shutil
from fractions import Fraction
from pathlib import Path

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

# How long frames last, in seconds.
SHORT = Fraction(1, 60)
LONG = Fraction(1, 15)
# Planes a second of the spike camera: 24 in the short time, 96 in the long time.
RATE = 1440
OPTIONS = {"type": "dat", "h": 48, "w": 64, "center": "file", "rate": 1.0, "light": "linear"}


def planes_of(clip):
    """Return (first, count) of the planes of each frame."""
    return [(exposure.own.first, exposure.own.count) for exposure in clip.clip.exposures]


def true_planes(lengths):
    """Return (first, count) of the planes of frames that last for these times."""
    planes = []
    for start, length in zip(starts_of(lengths), lengths, strict=True):
        planes.append((int(start * RATE), int(length * RATE)))
    return planes


def evenly(count, frames, first=0):
    """Return (first, count) of each frame if `frames` frames share `count` planes evenly."""
    edges = [first + number * count // frames for number in range(frames + 1)]
    return [(begin, end - begin) for begin, end in itertools.pairwise(edges)]


def write_empty_planes(path, count):
    """Write a spike file of `count` planes without spikes. Returns its path."""
    write_dat(path, np.zeros((count, *SIZE), np.uint8))
    return path


def clip_of(frames, spikes, **options):
    """Return a user's clip. options: keys of the section `spike`."""
    (clip,) = user_clips(frames, spikes, spike_options=OPTIONS | options)
    return clip


def refusal(frames, spikes, **options):
    """Return the error of a user's clip. options: keys of the section `spike`."""
    with pytest.raises(DataError) as error:
        user_clips(frames, spikes, spike_options=OPTIONS | options)
    return error.value


def proposed_table(error):
    """Return the table that an error proposes as `spike.exposure`."""
    return json.loads(error.do.partition("spike.exposure=")[2].rstrip("'"))


# ---- Films: frames at one distance, or not ----


@pytest.mark.parametrize(
    ("ticks", "edges"),
    [
        # The starts of the frames as the film has them, and the edges that are meant.
        pytest.param([0, 320, 641, 961], [0, 320, 640, 960, 1281], id="rounded"),
        pytest.param([0, 321, 643, 960], [0, 321, 643, 960, 1277], id="more"),
        pytest.param([0, 320, 960, 1280], [0, 320, 960, 1280, 1600], id="whole frames"),
        pytest.param(
            [0, 320, 639, 957, 1274, 1590, 1905],
            [0, 320, 639, 957, 1274, 1590, 1905, 2220],
            id="slower and slower",
        ),
        pytest.param([7, 327, 647, 967], [0, 320, 640, 960, 1280], id="later"),
        # Whole hundredths of a second, as in a GIF: 3, 3 and 4 of them.
        pytest.param([0, 576, 1152, 1920], [0, 640, 1280, 1920, 2560], id="coarse"),
        # 1, 2 and 1 of them, which is no rounding.
        pytest.param([0, 192, 576, 768], [0, 192, 576, 768, 960], id="coarse, more"),
    ],
)
def test_only_rounding_to_a_tick_counts_as_one_distance(ticks, edges):
    times = times_of_film([Fraction(tick, CLOCK) for tick in ticks])

    # A plane a tick, from plane 3 on.
    ranges = times.plane_ranges(3, edges[-1])

    assert ranges == [(3 + begin, 3 + end) for begin, end in itertools.pairwise(edges)]


def film_with_spikes(folder, lengths, planes=None):
    """Write a film and a spike file that begin and end together. Returns the path of both.

    lengths: how long each frame lasts. planes: of the spike file, if it is not as long as the film.
    """
    frames = [picture(seed=number) for number in range(len(lengths))]
    write_film(folder / "f.mp4", frames, starts_of(lengths))
    total = int(sum(lengths) * RATE) if planes is None else planes
    return folder / "f.mp4", write_empty_planes(folder / "f.dat", total)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([SHORT] * 6 + [LONG] * 6, id="slower"),
        pytest.param([LONG] * 3 + [SHORT] * 3, id="faster"),
        pytest.param([SHORT, LONG, SHORT, LONG, LONG], id="changing"),
        pytest.param([SHORT * 2, SHORT * 3, SHORT * 5, SHORT * 5], id="each its own"),
    ],
)
def test_frames_of_a_film_have_the_planes_of_their_times(tmp_path, lengths):
    clip = clip_of(*film_with_spikes(tmp_path, lengths))

    assert planes_of(clip) == true_planes(lengths)


@pytest.mark.parametrize(("first", "count"), [(7, 288), (0, 290)])
def test_frames_at_one_distance_share_the_planes_evenly(tmp_path, first, count):
    files = film_with_spikes(tmp_path, [SHORT] * 12, planes=300)

    clip = clip_of(*files, first=first, count=count)

    assert planes_of(clip) == evenly(count, frames=12, first=first)


def test_times_that_a_container_rounds_count_as_one_distance(tmp_path):
    # Matroska's clock counts milliseconds: 0, 33, 67, 100, ...
    starts = [Fraction(number, 30) for number in range(9)]
    write_film(tmp_path / "f.mkv", [picture(seed=number) for number in range(9)], starts)
    spikes = write_empty_planes(tmp_path / "f.dat", 454)

    clip = clip_of(tmp_path / "f.mkv", spikes)

    assert planes_of(clip) == evenly(454, frames=9)


def later_film(folder):
    """Write a film that begins at 2 s, and spikes. Returns the path of both, and the lengths."""
    lengths = [SHORT] * 3 + [LONG] * 3
    starts = [2 + start for start in starts_of(lengths)]
    write_film(folder / "f.mkv", [picture(seed=number) for number in range(6)], starts)
    return folder / "f.mkv", write_empty_planes(folder / "f.dat", 360), lengths


def test_a_film_that_begins_later_has_its_planes_from_its_first_frame_on(tmp_path):
    film, spikes, lengths = later_film(tmp_path)

    clip = clip_of(film, spikes)

    difference = np.array(planes_of(clip)) - np.array(true_planes(lengths))
    assert np.abs(difference).max() <= 2  # Matroska rounds to milliseconds, 1.44 planes


def test_a_film_that_begins_later_is_as_long_as_its_frames_last(tmp_path):
    film, spikes, _ = later_film(tmp_path)

    said = refusal(film, spikes, calibration=write_clock(tmp_path, 2 * RATE))

    assert "the film lasts 0.249 s, its planes 0.125 s" in said.what


def write_film_of_scene(folder):
    """Write a film of changing rate, its spikes and its sharp frames. Returns the true planes.

    The scene moves, and each frame is the mean of the light of its planes.
    """
    lengths = [SHORT] * 6 + [LONG] * 6
    light = moving_scene(720)
    planes = true_planes(lengths)
    frames = []
    (folder / "gt").mkdir()
    for number, (first, count) in enumerate(planes):
        blurry = to_display(light[first : first + count].mean(axis=0))
        frames.append(np.round(255 * blurry).astype(np.uint8)[..., None].repeat(3, axis=2))
        sharp = np.round(255 * to_display(light[first + count // 2]))
        cv2.imwrite(str(folder / f"gt/{number:06d}.png"), sharp.astype(np.uint8))
    write_film(folder / "f.mp4", frames, starts_of(lengths))
    write_scene_spikes(folder / "f.dat", light)
    return planes


def test_a_film_of_changing_rate_is_restored_as_with_its_true_planes(tmp_path):
    planes = write_film_of_scene(tmp_path)
    table = {"f": [[float(first), float(count)] for first, count in planes]}
    files = ["--input", tmp_path / "f.mp4", "--spike", tmp_path / "f.dat", "--gt", tmp_path / "gt"]
    how = ["--method", "exposure", "--spike-size", 48, 64, "spike.rate=1", "--save", "frames"]

    restore(*files, *how, "--output", tmp_path / "timed")
    restore(*files, *how, "--output", tmp_path / "told", f"spike.exposure={json.dumps(table)}")

    by_times = metrics(tmp_path / "timed")["averages"]
    by_table = metrics(tmp_path / "told")["averages"]
    assert by_times["restored"]["psnr"] == by_table["restored"]["psnr"]
    assert by_times["restored"]["psnr"] > by_times["input"]["psnr"] + 1  # dB


# ---- Films that lack frames ----

# Planes of a frame of a film of 25 frames a second, where spikes have 1000 planes a second.
PLANES_OF_FRAME = 40
# The film has this many frames before some are lost.
FRAMES = 36


def frames_at(numbers):
    """Return (first, count) of the planes of the frames with these numbers."""
    return [(PLANES_OF_FRAME * number, PLANES_OF_FRAME) for number in numbers]


def write_lossy_film(folder, first, last):
    """Write a film that lacks frames `first` to `last`, and spikes of all frames."""
    write_film_with_lost_packets(folder / "f.ts", FRAMES, first, last)
    spikes = write_empty_planes(folder / "f.dat", FRAMES * PLANES_OF_FRAME)
    return folder / "f.ts", spikes


LOST = [
    pytest.param(14, 14, "1 of 36 frames is missing: frame 14 at 0.560 s", id="one"),
    pytest.param(6, 8, "3 of 36 frames are missing: frames 6 to 8 at 0.240 s", id="three"),
]


@pytest.mark.parametrize(("first", "last", "said"), LOST)
def test_frames_beside_lost_ones_keep_their_planes(tmp_path, first, last, said):
    clip = clip_of(*write_lossy_film(tmp_path, first, last))

    there = [number for number in range(FRAMES) if not first <= number <= last]
    assert planes_of(clip) == frames_at(there)


@pytest.mark.parametrize(("first", "last", "said"), LOST)
def test_lost_frames_are_named(tmp_path, caplog, first, last, said):
    clip_of(*write_lossy_film(tmp_path, first, last))

    assert said in caplog.text
    assert "those of the missing frames are left out" in caplog.text


def test_the_lost_beginning_of_a_film_takes_its_planes_with_it(tmp_path, caplog):
    # Frame 0 is gone, and frames 1 to 5 cannot be decoded without it.
    write_film_with_lost_packets(tmp_path / "f.ts", FRAMES, 0, 0, codec="libx265")
    spikes = write_empty_planes(tmp_path / "f.dat", 35 * PLANES_OF_FRAME)

    clip = clip_of(tmp_path / "f.ts", spikes)

    assert planes_of(clip) == frames_at(range(5, 35))
    assert "5 of 35 frames are missing: frames 0 to 4 at 0.040 s" in caplog.text


def test_the_lost_end_of_a_film_takes_its_planes_with_it(tmp_path, caplog):
    write_cut_film(tmp_path / "f.mp4", FRAMES, share=0.6)
    spikes = write_empty_planes(tmp_path / "f.dat", FRAMES * PLANES_OF_FRAME)

    clip = clip_of(tmp_path / "f.mp4", spikes)

    count = len(clip.stems)
    assert 5 < count < 30
    assert planes_of(clip) == frames_at(range(count))
    lost = f"{FRAMES - count} of 36 frames are missing: frames {count} to 35"
    assert f"{lost} at {count / 25:.3f} s" in caplog.text


def test_missing_frames_of_a_film_without_spikes_are_named(tmp_path, caplog):
    write_cut_film(tmp_path / "f.mp4", FRAMES, share=0.6)

    user_clips(tmp_path / "f.mp4")

    assert "of 36 frames are missing" in caplog.text


def test_a_file_for_each_frame_of_a_film_that_lacks_some_is_refused(tmp_path):
    film, _ = write_lossy_film(tmp_path, 14, 15)
    for frame in range(FRAMES):
        write_empty_planes(tmp_path / f"each/{frame:02d}.dat", 24)

    error = refusal(film, tmp_path / "each")

    assert "2 of 36 frames are missing: frames 14 to 15 at 0.560 s" in error.what
    assert "beside it are 36 spike files" in error.what
    assert "repair the film" in error.do


def test_one_period_for_a_film_that_lacks_frames_is_refused_with_a_table(tmp_path):
    files = write_lossy_film(tmp_path, 14, 15)

    error = refusal(*files, exposure={"start": 0.0, "length": 40.0, "period": 40.0})

    there = [number for number in range(FRAMES) if number not in (14, 15)]
    rows = [[40.0 * number, 40.0] for number in there]
    assert "frames 14 to 15" in error.what
    assert json.dumps({"f": rows}) in error.do


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        pytest.param("f.mp4", "libx264", {"bf": "3"}, id="mp4"),
        pytest.param("f.mkv", "libx264", {"bf": "3"}, id="mkv"),
        pytest.param("f.ts", "libx264", {"bf": "3"}, id="ts"),
        pytest.param("f.mov", "mpeg4", {"bf": "2"}, id="mov"),
        pytest.param(
            "f.webm",
            "libvpx-vp9",
            {"auto-alt-ref": "1", "lag-in-frames": "10", "cpu-used": "8"},
            id="webm",
        ),
        pytest.param("f.avi", "mpeg4", {"bf": "2"}, id="avi"),
    ],
)
@pytest.mark.parametrize("rate", [Fraction(25), Fraction(30000, 1001)], ids=str)
def test_a_sound_film_lacks_no_frame(tmp_path, caplog, name, codec, options, rate):
    noise_film(tmp_path / name, 20, codec=codec, rate=rate, options=options)
    spikes = write_empty_planes(tmp_path / "f.dat", 487)

    clip = clip_of(tmp_path / name, spikes)

    assert planes_of(clip) == evenly(487, frames=20)
    assert "missing" not in caplog.text
    assert "damaged" not in caplog.text


# ---- Images, whose times follow from the numbers in their names ----


def images_with_spikes(folder, names, planes=240):
    """Write images with these names, and one spike file. Returns the path of both."""
    for number, name in enumerate(names):
        write_png(folder / "frames" / f"{name}.png", np.full(SIZE, 20 * number))
    return folder / "frames", write_empty_planes(folder / "all.dat", planes)


# Six frames of which two are missing.
GAP = ["frame00", "frame01", "frame04", "frame05"]


@pytest.mark.parametrize(
    ("names", "said", "exposures"),
    [
        pytest.param(
            GAP,
            "2 of 6 frames are missing: frames 2 to 3",
            [[0, 40], [40, 40], [160, 40], [200, 40]],
            id="gap",
        ),
        pytest.param(
            ["0", "1", "3"],
            "1 of 4 frames is missing: frame 2",
            [[0, 60], [60, 60], [180, 60]],
            id="one",
        ),
        pytest.param(
            ["10", "12", "14"],
            "2 of 5 frames are missing: frame 11, frame 13",
            [[0, 48], [96, 48], [192, 48]],
            id="every second",
        ),
        pytest.param(
            ["left", "right"],
            "no numbers",
            {"start": 0, "length": 120.0, "period": 120.0},
            id="words",
        ),
        pytest.param(
            ["a1", "b2", "b3"],
            "no numbers",
            {"start": 0, "length": 80.0, "period": 80.0},
            id="two kinds",
        ),
        pytest.param(
            ["3.1", "3.2", "3.5"],
            "2 of 5 frames are missing: frames 2 to 3",
            [[0, 48], [48, 48], [192, 48]],
            id="seconds",
        ),
    ],
)
def test_frames_whose_times_are_unknown_are_refused_with_exposures_to_correct(
    tmp_path, names, said, exposures
):
    error = refusal(*images_with_spikes(tmp_path, names))

    assert said in error.what
    assert proposed_table(error) == {"frames": exposures}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        pytest.param(
            ["1000000", "1033000", "1099000"],
            "1 of 4 frames is missing: frame 2",
            id="stamps in microseconds",
        ),
        pytest.param(["0", "1", "9000000000"], "frames 2 to 8999999999", id="huge"),
    ],
)
def test_frames_whose_times_are_unknown_are_refused(tmp_path, names, said):
    error = refusal(*images_with_spikes(tmp_path, names))

    assert said in error.what
    assert "spike.exposure" in error.do


@pytest.mark.parametrize(
    ("gaps", "more"),
    [
        pytest.param(5, "", id="5"),
        pytest.param(6, ", ...", id="6"),
        pytest.param(7, ", ...", id="7"),
    ],
)
def test_the_first_five_gaps_are_named(tmp_path, gaps, more):
    every_second = [str(2 * number) for number in range(gaps + 1)]

    said = refusal(*images_with_spikes(tmp_path, every_second)).what

    named = "frame 1, frame 3, frame 5, frame 7, frame 9" + more
    assert said.endswith(f"{gaps} of {2 * gaps + 1} frames are missing: {named}")


def test_the_proposed_exposures_are_accepted(tmp_path):
    files = images_with_spikes(tmp_path, GAP)
    table = proposed_table(refusal(*files))

    clip = clip_of(*files, exposure=table)

    assert planes_of(clip) == [(0, 40), (40, 40), (160, 40), (200, 40)]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["7", "8", "9", "10"], id="numbers"),
        pytest.param(["x_01_a", "x_02_a", "x_03_a", "x_04_a"], id="between text"),
        pytest.param(["1e", "2e", "3e", "4e"], id="before text"),
        pytest.param(["1000000", "1033333", "1066667", "1100000"], id="stamps"),
        pytest.param(["0.1", "0.2", "0.3", "0.4"], id="seconds"),
    ],
)
def test_a_folder_without_gaps_shares_its_planes_evenly(tmp_path, names):
    clip = clip_of(*images_with_spikes(tmp_path, names, planes=242))

    assert planes_of(clip) == [(0, 60), (60, 61), (121, 60), (181, 61)]


def test_numbers_a_thousand_apart_count_microseconds(tmp_path):
    clip = clip_of(*images_with_spikes(tmp_path, ["10000", "11000", "12000"]))

    assert planes_of(clip) == [(0, 80), (80, 80), (160, 80)]


def test_numbers_less_than_a_thousand_apart_count_frames(tmp_path):
    said = refusal(*images_with_spikes(tmp_path, ["10000", "10999", "11998"])).what

    assert "1996 of 1999 frames are missing: frames 10001 to 10998" in said


def test_stamps_at_changing_distances_give_planes_by_time(tmp_path):
    stamps = ["1000000", "1030000", "1070000", "1100000"]

    clip = clip_of(*images_with_spikes(tmp_path, stamps, planes=130))

    assert planes_of(clip) == [(0, 30), (30, 40), (70, 30), (100, 30)]


@pytest.mark.parametrize("name", ["7", "alone"])
def test_one_frame_takes_one_exposure(tmp_path, name):
    files = images_with_spikes(tmp_path, [name])

    clip = clip_of(*files, exposure={"start": 3.0, "length": 20.0, "period": 30.5})

    assert planes_of(clip) == [(3, 20)]


@pytest.mark.parametrize("name", ["7", "alone"])
def test_one_frame_takes_all_planes_of_its_file(tmp_path, name):
    clip = clip_of(*images_with_spikes(tmp_path, [name]))

    assert planes_of(clip) == [(0, 240)]


def test_missing_numbers_are_named_if_the_spikes_have_a_file_for_each_frame(tmp_path, caplog):
    frames, _ = images_with_spikes(tmp_path, GAP)
    for name in GAP:
        write_empty_planes(tmp_path / f"each/{name}.dat", 24)

    user_clips(frames, tmp_path / "each", spike_options=OPTIONS)

    assert "2 of 6 frames are missing: frames 2 to 3" in caplog.text


# ---- A table of exposures, or one period ----


def test_one_period_for_frames_with_a_gap_is_refused_with_a_table(tmp_path):
    files = images_with_spikes(tmp_path, GAP)

    error = refusal(*files, exposure={"start": 3.0, "length": 20.0, "period": 30.5})

    rows = [[3.0, 20.0], [33.5, 20.0], [125.0, 20.0], [155.5, 20.0]]
    assert "one period" in error.what
    assert json.dumps({"frames": rows}) in error.do


def test_one_period_for_a_film_of_changing_rate_is_refused_with_a_table(tmp_path):
    files = film_with_spikes(tmp_path, [SHORT] * 4 + [LONG] * 2)

    error = refusal(*files, exposure={"start": 0.0, "length": 24.0, "period": 24.0})

    # A long frame lasts for four periods.
    rows = [[24.0 * period, 24.0] for period in (0, 1, 2, 3, 4, 8)]
    assert "several distances" in error.what
    assert json.dumps({"f": rows}) in error.do


def test_one_period_may_begin_at_any_time(tmp_path):
    for stem in ("432.04", "432.08", "432.12", "432.16"):
        write_png(tmp_path / f"in/{stem}.png", np.zeros(SIZE))
    spikes = write_empty_planes(tmp_path / "all.dat", 96)

    clip = clip_of(tmp_path / "in", spikes, exposure={"start": 0.0, "length": 20.0, "period": 24.0})

    assert planes_of(clip) == [(0, 20), (24, 20), (48, 20), (72, 20)]


def test_a_table_of_other_frames_than_are_there_is_refused(tmp_path):
    files = images_with_spikes(tmp_path, GAP)
    rows = [[40.0 * number, 40.0] for number in range(6)]

    error = refusal(*files, exposure={"frames": rows})

    assert "lists 6 frames" in error.what
    assert "frames 2 to 3" in error.what
    there = [[0.0, 40.0], [40.0, 40.0], [160.0, 40.0], [200.0, 40.0]]
    assert json.dumps({"frames": there}) in error.do


def test_several_clips_are_refused_at_once(tmp_path):
    (tmp_path / "sp").mkdir()
    for clip in ("a", "b"):
        frames, spikes = images_with_spikes(tmp_path / clip, GAP)
        shutil.move(frames, tmp_path / "in" / clip)
        shutil.move(spikes, tmp_path / f"sp/{clip}.dat")

    error = refusal(tmp_path / "in", tmp_path / "sp")

    assert list(proposed_table(error)) == ["a", "b"]
    assert "clip a" in error.what
    assert "clip b" in error.what


# ---- The clock of a calibration ----


def write_clock(folder, tick_hz):
    """Write a calibration with this clock: planes a second. Returns its path as a text."""
    calibration = {
        "format": 1,
        "matrix": [[1, 0, 0], [0, 1, 0]],
        "spike_size": SIZE,
        "rgb_size": SIZE,
        "tick_hz": tick_hz,
    }
    path = folder / "c.json"
    path.write_text(json.dumps(calibration))
    return str(path)


@pytest.mark.parametrize(
    ("tick_hz", "seconds"),
    [
        pytest.param(RATE * 2, "0.167", id="too fast"),
        pytest.param(RATE / 2, "0.667", id="too slow"),
    ],
)
def test_clocks_of_two_cameras_that_contradict_are_refused(tmp_path, tick_hz, seconds):
    files = film_with_spikes(tmp_path, [SHORT] * 4 + [LONG] * 4)

    error = refusal(*files, calibration=write_clock(tmp_path, tick_hz))

    assert f"the film lasts 0.333 s, its planes {seconds} s" in error.what


# The last frame of this film begins at 0.267 s, and the film lasts for 0.333 s. Its spike file has
# 480 planes.
ENDS_WITH_A_LONG_FRAME = [SHORT] * 4 + [LONG] * 4


@pytest.mark.parametrize("seconds", [0.275, 0.395])
def test_clocks_may_differ_by_a_frame(tmp_path, seconds):
    files = film_with_spikes(tmp_path, ENDS_WITH_A_LONG_FRAME)

    clip = clip_of(*files, calibration=write_clock(tmp_path, 480 / seconds))

    first_plane_of_second_frame, _ = planes_of(clip)[1]
    assert first_plane_of_second_frame == int(480 / 60 / seconds)


@pytest.mark.parametrize("seconds", [0.26, 0.41])
def test_clocks_may_not_differ_by_more_than_a_frame(tmp_path, seconds):
    files = film_with_spikes(tmp_path, ENDS_WITH_A_LONG_FRAME)

    error = refusal(*files, calibration=write_clock(tmp_path, 480 / seconds))

    assert "the film lasts 0.333 s" in error.what


def test_the_clock_of_the_spike_camera_tells_how_long_the_last_frame_lasts(tmp_path):
    # The film says that the last frame lasts as long as the one before it: SHORT.
    lengths = [LONG, LONG, SHORT, LONG]
    files = film_with_spikes(tmp_path, lengths)

    clip = clip_of(*files, calibration=write_clock(tmp_path, RATE))

    assert planes_of(clip) == true_planes(lengths)


# ---- The order of frames ----

SECONDS = ["432.033333", "432.066667", "432.1", "432.133333", "432.166667", "432.2"]
NAMES_BY_VALUE = [
    pytest.param(SECONDS, id="seconds"),
    pytest.param(["0", "0.04", "0.08", "0.12", "0.16", "0.2", "0.24"], id="seconds from 0 on"),
    pytest.param(["-0.04", "0", "4e-05", "0.04"], id="seconds around 0"),
    pytest.param(["1.8", "1.9", "1.10", "1.11"], id="counter behind a point"),
    pytest.param(["-1", "-2", "-10"], id="counter behind a dash"),
    pytest.param(["9", "10", "011"], id="counter"),
]


def write_in_random_order(folder, stems):
    """Write images (in/) and spike files (spikes/) with these names, in a random order."""
    for number in np.random.default_rng(0).permutation(len(stems)):
        write_png(folder / f"in/{stems[number]}.png", np.full(SIZE, 20 * number))
        write_dat(folder / f"spikes/{stems[number]}.dat", np.full((24, *SIZE), number % 2))


@pytest.mark.parametrize("stems", NAMES_BY_VALUE)
def test_images_are_taken_in_the_order_of_the_values_of_their_names(tmp_path, stems):
    write_in_random_order(tmp_path, stems)

    clip = clip_of(tmp_path / "in", tmp_path / "spikes")

    assert list(clip.stems) == stems
    for number in range(len(stems)):
        red = round(255 * float(clip.frame(number)["lq"][0, 0, 0]))
        assert red == 20 * number


@pytest.mark.parametrize("stems", NAMES_BY_VALUE)
def test_spikes_of_a_film_are_taken_in_the_order_of_the_values_of_their_names(tmp_path, stems):
    write_in_random_order(tmp_path, stems)
    lengths = [SHORT] * len(stems)
    write_film(tmp_path / "f.mp4", [picture(*SIZE)] * len(stems), starts_of(lengths))

    clip = clip_of(tmp_path / "f.mp4", tmp_path / "spikes")

    assert [Path(path).stem for path in clip.clip.spike] == stems


def test_frames_named_by_seconds_are_trained_on_in_order(tmp_path):
    write_clip(tmp_path, "a", frames=len(SECONDS))
    write_info(tmp_path)
    for path in sorted(tmp_path.rglob("00000?.*")):
        path.rename(path.with_name(SECONDS[int(path.stem)] + path.suffix))

    (clip,) = build(tmp_path).clips

    assert list(clip.stems) == SECONDS


@pytest.fixture
def seconds_behind_a_text(tmp_path):
    """Give a folder of images t_432.033333.png, ...: by value in another order than by name."""
    for stem in SECONDS:
        write_png(tmp_path / f"in/t_{stem}.png", np.zeros(SIZE))
    return tmp_path / "in"


def test_numbers_behind_a_text_that_are_out_of_order_by_value_are_doubted(
    seconds_behind_a_text, caplog
):
    user_clips(seconds_behind_a_text)

    assert "taken in the order of their names: the numbers in the names" in caplog.text


def test_numbers_behind_a_text_that_are_out_of_order_by_value_tell_no_times(
    seconds_behind_a_text, tmp_path
):
    spikes = write_empty_planes(tmp_path / "all.dat", 144)

    error = refusal(seconds_behind_a_text, spikes)

    assert "another order by value" in str(error)


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(["0.04", "0.08", "0.12"], id="seconds"),
        pytest.param(["1.8", "1.9", "1.10"], id="counter"),
    ],
)
def test_numbers_behind_a_text_that_are_in_order_are_not_doubted(tmp_path, caplog, numbers):
    for number in numbers:
        write_png(tmp_path / f"in/t_{number}.png", np.zeros(SIZE))

    (clip,) = user_clips(tmp_path / "in")

    assert list(clip.stems) == [f"t_{number}" for number in numbers]
    assert "taken in the order of their names" not in caplog.text


def test_an_order_that_the_names_do_not_tell_is_said(tmp_path, caplog):
    frames, _ = images_with_spikes(tmp_path, ["left", "right"])

    user_clips(frames)

    said = "taken in the order of their names: the names of the frames have no numbers"
    assert said in caplog.text


# ---- Sharp frames, and folders of a user ----


@pytest.fixture
def three_times_as_large(tmp_path):
    """Give folders of two frames, and of sharp frames three times as large."""
    frames, _ = images_with_spikes(tmp_path, ["0", "1"])
    height, width = SIZE
    for number in range(2):
        write_png(tmp_path / f"sharp/{number}.png", np.full((3 * height, 3 * width), 9))
    return frames, tmp_path / "sharp"


def test_sharp_frames_are_as_many_times_larger_as_the_network_enlarges(three_times_as_large):
    frames, sharp = three_times_as_large

    (clip,) = user_clips(frames, gt=sharp, scale=3)

    assert clip.size == (48, 64)
    assert clip.gt_size == (144, 192)
    assert clip.scale == 3


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        pytest.param(1, "64x48", id="1"),
        pytest.param(2, "128x96", id="2"),
        pytest.param(4, "256x192", id="4"),
    ],
)
def test_sharp_frames_of_another_size_are_refused(three_times_as_large, scale, expected):
    frames, sharp = three_times_as_large

    with pytest.raises(DataError) as error:
        user_clips(frames, gt=sharp, scale=scale)

    assert error.value.what == "reference of 192x144 for frames of 64x48"
    assert error.value.expected.startswith(expected)


def test_the_folder_of_a_clip_is_one_clip(tmp_path):
    folder = tmp_path / "take 3"
    for frame in range(3):
        for kind in ("blur", "sharp"):
            write_png(folder / kind / f"{frame:02d}.png", np.full(SIZE, 20 * frame))
        write_empty_planes(folder / f"spike/{frame:02d}.dat", 24)

    (clip,) = user_clips(folder, folder, folder, spike_options=OPTIONS)

    assert clip.name == "take 3"
    assert len(clip.stems) == 3
    assert clip.origin == {
        "input": f"{folder}/blur",
        "gt": f"{folder}/sharp",
        "spike": f"{folder}/spike",
    }


@pytest.mark.parametrize("is_root_given", [True, False], ids=["root", "folders of kinds"])
def test_a_folder_of_each_kind_of_file_is_a_folder_of_clips(tmp_path, is_root_given):
    for name in ("a", "b"):
        for kind in ("blur", "sharp"):
            for frame in range(2):
                write_png(tmp_path / kind / name / f"{frame}.png", np.full(SIZE, 20 * frame))
        write_empty_planes(tmp_path / f"spike/{name}.dat", 48)
    spike = tmp_path if is_root_given else tmp_path / "spike"
    gt = tmp_path if is_root_given else tmp_path / "sharp"

    clips = user_clips(tmp_path, spike, gt, spike_options=OPTIONS)

    assert [clip.name for clip in clips] == ["a", "b"]
    for clip in clips:
        assert clip.origin["gt"] == f"{tmp_path}/sharp/{clip.name}"
        assert clip.origin["spike"] == f"{tmp_path}/spike/{clip.name}.dat"


def test_a_folder_with_one_spike_file_for_all_frames_is_told_from_the_file_itself(tmp_path):
    frames, _ = images_with_spikes(tmp_path, ["0", "1", "2", "3"])
    write_empty_planes(tmp_path / "only/all.dat", 96)

    error = refusal(frames, tmp_path / "only")

    assert "one spike file for 4 frames" in error.what
    assert f"--spike {tmp_path}/only/all.dat takes it as one file" in error.do
