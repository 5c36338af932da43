"""data/cameras/frame_times.py, name_times.py, unknown_planes.py: planes by the times of frames.

A user may have one spike file for all frames of a clip. Then the times of the frames tell which
planes belong to which frame. The program takes these times from a film, from the numbers in the
names of images, from a table (spike.exposure), or from the clock of a calibration.

Frames have 48 x 64 pixels. The spike files have planes of the same size without any spike, because
only the number of planes matters here.

Words of this file:

    plane     what the spike camera records at one instant: one bit for each pixel
    tick      the unit in which a film counts time; a second has CLOCK = 19200 ticks
    lengths   how long each frame lasts, in seconds
    distance  the time between the starts of two frames
    exposure  the planes of a frame. The option spike.exposure has a row [first plane, number of
              planes] for each frame, or one period for all frames: {"start": 0, "length": 20,
              "period": 24} gives planes 0 to 19 to the first frame, 24 to 43 to the second, ...

The spike camera takes 1440 planes per second (PLANES_PER_S), so a frame of 1/60 s has 24 planes.
tests/helpers/film_files.py writes the films.
"""

import itertools
import json
import shutil
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest

from data.cameras.frame_times import times_of_film
from data.clips.clip_reader import user_clips
from data.clips.readers import DatasetClip
from data.spike.pictures import to_display
from tests.helpers.clip_files import (
    build_clips,
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
from tests.helpers.weights_files import read_metrics, restore
from utils.errors import DataError

# How long frames last, in seconds.
SHORT_FRAME = Fraction(1, 60)
LONG_FRAME = Fraction(1, 15)
# Planes per second of the spike camera. So a short frame has 1440 / 60 = 24 planes, and a long
# frame has 1440 / 15 = 96 planes.
PLANES_PER_S = 1440
# The section `spike` for the spike files of these tests, which have no dataset.json.
SPIKE_OPTIONS = {"type": "dat", "h": 48, "w": 64, "center": "file", "rate": 1.0, "light": "linear"}


class Planes(NamedTuple):
    """The planes of a frame. The tests write a pair: (24, 96) means the planes 24 to 119."""

    first: int  # number of the first plane
    count: int


def planes_of_frames(clip: DatasetClip) -> list[Planes]:
    """Return the planes that the program gives to each frame."""
    exposures = [exposure.own for exposure in clip.clip.exposures]
    return [Planes(exposure.first, exposure.count) for exposure in exposures]


def true_planes(lengths: Sequence[Fraction]) -> list[Planes]:
    """Return the planes of each frame if the first frame begins with plane 0.

    E.g. [SHORT_FRAME, LONG_FRAME, SHORT_FRAME] -> [(0, 24), (24, 96), (120, 24)].
    """
    planes = []
    for start, length in zip(starts_of(lengths), lengths, strict=True):
        planes.append(Planes(int(start * PLANES_PER_S), int(length * PLANES_PER_S)))
    return planes


def equal_shares(count: int, frames: int, first: int = 0) -> list[Planes]:
    """Return the planes of each frame if `frames` frames share `count` planes evenly.

    A frame begins at a whole plane, so counts may differ by 1. E.g. 242 planes and 4 frames: the
    frames would begin at 0, 60.5, 121 and 181.5, so their planes are (0, 60), (60, 61), (121, 60)
    and (181, 61).

    first: number of the first plane that the frames share.
    """
    planes = []
    for number in range(frames):
        begin = number * count // frames
        end = (number + 1) * count // frames
        planes.append(Planes(first + begin, end - begin))
    return planes


def write_empty_planes(path: Path, count: int) -> Path:
    """Write a spike file of `count` planes without spikes. Returns its path."""
    write_dat(path, np.zeros((count, *SIZE), np.uint8))
    return path


def open_clip(frames: Path, spikes: Path, **options: Any) -> DatasetClip:
    """Return a user's clip. options: keys of the section `spike`."""
    (clip,) = user_clips(frames, spikes, spike_options=SPIKE_OPTIONS | options)
    return clip


def error_of_clip(frames: Path, spikes: Path, **options: Any) -> DataError:
    """Return the error of a user's clip. options: keys of the section `spike`."""
    with pytest.raises(DataError) as error:
        user_clips(frames, spikes, spike_options=SPIKE_OPTIONS | options)
    return error.value


def proposed_table(error: DataError) -> Any:
    """Return the table that an error proposes as `spike.exposure`.

    A table has a row [first plane, number of planes] for each frame of a clip. The advice of the
    error ends with the table, in quotes: ... 'spike.exposure={"clip": [[0, 40], [40, 40]]}'.
    """
    _, _, table = error.do.partition("spike.exposure=")
    return json.loads(table.rstrip("'"))


# ---- Films: frames at one distance, or not ----


# A camera that takes 60 frames per second has a frame every 320 ticks. A film may store the start
# of each frame with a rounding error. If all distances between two starts are equal apart from this
# error, the frames share the planes evenly. If the distances differ by more, each frame has the
# planes between its stored start and the next start.
#
# starts: where the frames start, in ticks, as the film stores them.
# edges: where the planes of each frame begin, in ticks. The last edge is the end of the planes of
# the last frame. There are as many planes as ticks, so an edge is also the number of a plane.
@pytest.mark.parametrize(
    ("starts", "edges"),
    [
        pytest.param(
            [0, 320, 641, 961],
            [0, 320, 640, 960, 1281],  # 4 frames share 1281 planes
            id="distances that differ by a tick, the rounding error",
        ),
        pytest.param(
            [0, 321, 643, 960],
            [0, 321, 643, 960, 1277],  # the last frame lasts as long as the frame before it, 317
            id="distances that differ by more than a tick",
        ),
        pytest.param(
            [0, 320, 960, 1280],
            [0, 320, 960, 1280, 1600],
            id="a frame that lasts twice as long",
        ),
        # Each distance is one tick shorter than the distance before: 320, 319, ... 315. Two
        # neighbouring distances differ by only one tick, which rounding could explain. But the
        # first and the last distance differ by 5 ticks.
        pytest.param(
            [0, 320, 639, 957, 1274, 1590, 1905],
            [0, 320, 639, 957, 1274, 1590, 1905, 2220],
            id="a camera that becomes faster and faster",
        ),
        pytest.param(
            [7, 327, 647, 967],
            [0, 320, 640, 960, 1280],  # planes are counted from the first frame on
            id="a film that begins after 0",
        ),
        # A GIF counts in units of 1/100 s, which are 192 ticks. The distances are 3, 3 and 4 units.
        # Distances of 1/30 s, which are 3.33 units, become such distances by rounding. So the
        # program takes these frames as evenly spaced.
        pytest.param(
            [0, 576, 1152, 1920], [0, 640, 1280, 1920, 2560], id="rounded to a coarse unit"
        ),
        # The distances are 1, 2 and 1 units. Here a unit is nearly as long as the mean distance,
        # 4/3 units. So the difference of one unit is no rounding error. One frame lasts longer.
        pytest.param(
            [0, 192, 576, 768], [0, 192, 576, 768, 960], id="in a coarse unit, not rounded"
        ),
    ],
)
def test_only_rounding_to_a_tick_counts_as_one_distance(starts, edges):
    times = times_of_film([Fraction(start, CLOCK) for start in starts])

    # The spike file has planes before the film: the first frame begins with plane 3.
    ranges = times.plane_ranges(3, edges[-1])

    expected = [(3 + begin, 3 + end) for begin, end in itertools.pairwise(edges)]
    assert ranges == expected


def test_a_time_within_a_plane_means_the_start_of_the_plane():
    # The frames begin after 0, 1 and 3 seconds. The last frame is assumed to last as long as the
    # frame before, 2 seconds. So the film ends after 5 seconds.
    times = times_of_film([Fraction(0), Fraction(1), Fraction(3)])

    # The 12 planes of 5 seconds are 2.4 planes per second. So second 1 is within plane 2, at 2.4,
    # and second 3 is within plane 7, at 7.2.
    assert times.plane_ranges(0, 12) == [(0, 2), (2, 7), (7, 12)]


def film_with_spikes(
    folder: Path, lengths: Sequence[Fraction], planes: int | None = None
) -> tuple[Path, Path]:
    """Write a film and a spike file that begin and end together. Return (film, spike file).

    planes: number of planes of the spike file. None: as many as fit the film.
    """
    frames = [picture(seed=number) for number in range(len(lengths))]
    write_film(folder / "f.mp4", frames, starts_of(lengths))
    if planes is None:
        planes = int(sum(lengths) * PLANES_PER_S)
    return folder / "f.mp4", write_empty_planes(folder / "f.dat", planes)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([SHORT_FRAME] * 6 + [LONG_FRAME] * 6, id="slower"),
        pytest.param([LONG_FRAME] * 3 + [SHORT_FRAME] * 3, id="faster"),
        # A film does not say how long its last frame lasts. The program assumes that the last frame
        # lasts as long as the frame before. So in each case the last two frames are equally long.
        pytest.param([SHORT_FRAME, LONG_FRAME, SHORT_FRAME, LONG_FRAME, LONG_FRAME], id="changing"),
        pytest.param(
            [SHORT_FRAME * 2, SHORT_FRAME * 3, SHORT_FRAME * 5, SHORT_FRAME * 5], id="many lengths"
        ),
    ],
)
def test_frames_of_a_film_have_the_planes_of_their_times(tmp_path, lengths):
    clip = open_clip(*film_with_spikes(tmp_path, lengths))

    assert planes_of_frames(clip) == true_planes(lengths)


# first, count: the planes of the spike file that belong to the film.
@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(7, 288, id="24 planes each, from plane 7 on"),
        pytest.param(0, 290, id="290 planes, no multiple of 12"),
    ],
)
def test_frames_at_one_distance_share_the_planes_evenly(tmp_path, first, count):
    files = film_with_spikes(tmp_path, [SHORT_FRAME] * 12, planes=300)

    clip = open_clip(*files, first=first, count=count)

    assert planes_of_frames(clip) == equal_shares(count, frames=12, first=first)


def test_times_that_a_container_rounds_count_as_one_distance(tmp_path):
    # The clock of Matroska, the container .mkv, counts milliseconds: 0, 33, 67, 100, ...
    starts = [Fraction(number, 30) for number in range(9)]
    write_film(tmp_path / "f.mkv", [picture(seed=number) for number in range(9)], starts)
    # With 1440 planes per second, 9 frames of 1/30 s would have 432 planes. The file has 454
    # planes. So planes that follow from the times would differ from planes that are shared evenly.
    spikes = write_empty_planes(tmp_path / "f.dat", 454)

    clip = open_clip(tmp_path / "f.mkv", spikes)

    assert planes_of_frames(clip) == equal_shares(454, frames=9)


# How long the frames of `later_film` last: three frames of 1/60 s (24 planes each), and three
# frames of 1/15 s (96 planes each). These are 0.25 s and 360 planes in all.
LENGTHS_OF_LATER_FILM = [SHORT_FRAME] * 3 + [LONG_FRAME] * 3


def later_film(folder: Path) -> tuple[Path, Path]:
    """Write a film that begins at 2 s, and its spikes. Return (film, spike file)."""
    starts = [2 + start for start in starts_of(LENGTHS_OF_LATER_FILM)]
    write_film(folder / "f.mkv", [picture(seed=number) for number in range(6)], starts)
    return folder / "f.mkv", write_empty_planes(folder / "f.dat", 360)


def test_a_film_that_begins_later_has_its_planes_from_its_first_frame_on(tmp_path):
    film, spikes = later_film(tmp_path)

    clip = open_clip(film, spikes)

    # (6, 2): of each frame, the difference of the first planes and of the numbers of planes.
    difference = np.array(planes_of_frames(clip)) - np.array(true_planes(LENGTHS_OF_LATER_FILM))
    # Matroska rounds times to milliseconds, and the spike camera takes 1.44 planes in a
    # millisecond. So a start or a number of planes may be off by 2 planes.
    assert np.abs(difference).max() <= 2


def test_a_film_that_begins_later_is_as_long_as_its_frames_last(tmp_path):
    film, spikes = later_film(tmp_path)

    # The calibration states twice the true number of planes per second. So the planes seem to last
    # half as long as the film, and the clip is refused:
    #
    #     film      0.25 s, but 0.249 s in the error, because Matroska rounds to milliseconds
    #     planes    0.125 s
    error = error_of_clip(film, spikes, calibration=write_clock(tmp_path, tick_hz=2 * PLANES_PER_S))

    assert "the film lasts 0.249 s, its planes 0.125 s" in error.what


def to_picture(light: np.ndarray) -> np.ndarray:
    """Return linear light in [0, 1] as display values of 8 bits, of the same shape."""
    return np.round(255 * to_display(light)).astype(np.uint8)


def write_film_of_scene(folder: Path) -> list[Planes]:
    """Write a film of changing rate, its spikes and its sharp frames. Returns the true planes.

    The scene moves. Each frame is the mean of the light of its planes. Its sharp frame is the light
    at the middle of these planes.
    """
    lengths = [SHORT_FRAME] * 6 + [LONG_FRAME] * 6
    # A short frame has 24 planes, and a long frame has 96 planes: 6 x 24 + 6 x 96 = 720.
    light = moving_scene(720)
    all_planes = true_planes(lengths)
    frames = []
    (folder / "gt").mkdir()
    for number, planes in enumerate(all_planes):
        mean_light = light[planes.first : planes.first + planes.count].mean(axis=0)
        frames.append(cv2.cvtColor(to_picture(mean_light), cv2.COLOR_GRAY2RGB))
        middle = planes.first + planes.count // 2
        cv2.imwrite(str(folder / f"gt/{number:06d}.png"), to_picture(light[middle]))
    write_film(folder / "f.mp4", frames, starts_of(lengths))
    write_scene_spikes(folder / "f.dat", light)
    return all_planes


def test_a_film_of_changing_rate_is_restored_as_with_its_true_planes(tmp_path):
    all_planes = write_film_of_scene(tmp_path)
    table = {"f": [[float(planes.first), float(planes.count)] for planes in all_planes]}
    files = ["--input", tmp_path / "f.mp4", "--spike", tmp_path / "f.dat", "--gt", tmp_path / "gt"]
    # "exposure" is a formula that needs no network: it computes the sharp frame from spikes.
    flags = ["--method", "exposure", "--spike-size", 48, 64, "spike.rate=1", "--save", "frames"]

    restore(*files, *flags, "--output", tmp_path / "timed")
    restore(*files, *flags, "--output", tmp_path / "told", f"spike.exposure={json.dumps(table)}")

    by_times = read_metrics(tmp_path / "timed")["averages"]
    by_table = read_metrics(tmp_path / "told")["averages"]
    assert by_times["restored"]["psnr"] == by_table["restored"]["psnr"]
    # The restored frames are better than the blurry frames by more than 1 dB. So both restorations
    # used planes that fit the frames. If both restorations used the same wrong planes, the first
    # assertion would pass, but the second would fail.
    assert by_times["restored"]["psnr"] > by_times["input"]["psnr"] + 1


# ---- Films that lack frames ----

# Planes of each frame: the film has 25 frames per second, and the spikes 1000 planes per second.
PLANES_OF_FRAME = 40
# Number of frames of the film before some are lost.
FRAMES = 36


def planes_of_numbers(numbers: Iterable[int]) -> list[Planes]:
    """Return the planes of the frames with these numbers, e.g. [0, 2] -> [(0, 40), (80, 40)]."""
    return [Planes(PLANES_OF_FRAME * number, PLANES_OF_FRAME) for number in numbers]


def numbers_without(first: int, last: int) -> list[int]:
    """Return the numbers of all frames of the film without the frames `first` to `last`."""
    return [number for number in range(FRAMES) if not first <= number <= last]


def write_lossy_film(folder: Path, first: int, last: int) -> tuple[Path, Path]:
    """Write a film that lacks frames `first` to `last`, and spikes of all frames."""
    write_film_with_lost_packets(folder / "f.ts", FRAMES, first, last)
    spikes = write_empty_planes(folder / "f.dat", FRAMES * PLANES_OF_FRAME)
    return folder / "f.ts", spikes


# Each case has the first and the last lost frame, and the warning. A frame lasts 1/25 s. So frame
# 14 is shown at 14 x 0.04 s = 0.560 s.
LOST = [
    pytest.param(14, 14, "1 of 36 frames is missing: frame 14 at 0.560 s", id="one"),
    pytest.param(6, 8, "3 of 36 frames are missing: frames 6 to 8 at 0.240 s", id="three"),
]


@pytest.mark.parametrize(("first", "last", "message"), LOST)
def test_the_other_frames_of_a_film_that_lacks_some_keep_their_planes(
    tmp_path, first, last, message
):
    clip = open_clip(*write_lossy_film(tmp_path, first, last))

    assert planes_of_frames(clip) == planes_of_numbers(numbers_without(first, last))


@pytest.mark.parametrize(("first", "last", "message"), LOST)
def test_lost_frames_are_named(tmp_path, caplog, first, last, message):
    open_clip(*write_lossy_film(tmp_path, first, last))

    assert message in caplog.text
    assert "the planes of the missing frames are left out" in caplog.text


def test_the_lost_beginning_of_a_film_takes_its_planes_with_it(tmp_path, caplog):
    # The packets of frame 0 are lost. So the container counts 35 frames, numbered from 0 again, and
    # its first frame is shown at 1 x 0.04 s. The first 5 of these 35 frames cannot be decoded,
    # because they refer to the lost frame. Then comes a key frame, which needs no other frame:
    # `noise_film` makes every sixth frame a key frame.
    write_film_with_lost_packets(tmp_path / "f.ts", FRAMES, first=0, last=0, codec="libx265")
    spikes = write_empty_planes(tmp_path / "f.dat", 35 * PLANES_OF_FRAME)

    clip = open_clip(tmp_path / "f.ts", spikes)

    assert planes_of_frames(clip) == planes_of_numbers(range(5, 35))
    assert "5 of 35 frames are missing: frames 0 to 4 at 0.040 s" in caplog.text


def test_the_lost_end_of_a_film_takes_its_planes_with_it(tmp_path, caplog):
    write_cut_film(tmp_path / "f.mp4", FRAMES, share=0.6)
    spikes = write_empty_planes(tmp_path / "f.dat", FRAMES * PLANES_OF_FRAME)

    clip = open_clip(tmp_path / "f.mp4", spikes)

    # About 0.6 x 36 = 22 frames are left. The exact number depends on the encoder.
    count = len(clip.stems)
    assert 5 < count < 30
    assert planes_of_frames(clip) == planes_of_numbers(range(count))
    lost = f"{FRAMES - count} of 36 frames are missing: frames {count} to 35"
    start_of_lost = count / 25  # in seconds, with 25 frames per second
    assert f"{lost} at {start_of_lost:.3f} s" in caplog.text


def test_missing_frames_of_a_film_without_spikes_are_named(tmp_path, caplog):
    write_cut_film(tmp_path / "f.mp4", FRAMES, share=0.6)

    user_clips(tmp_path / "f.mp4")

    assert "of 36 frames are missing" in caplog.text


def test_a_file_for_each_frame_of_a_film_that_lacks_some_is_refused(tmp_path):
    film, _ = write_lossy_film(tmp_path, first=14, last=15)
    for frame in range(FRAMES):
        write_empty_planes(tmp_path / f"each/{frame:02d}.dat", 24)

    error = error_of_clip(film, tmp_path / "each")

    assert "2 of 36 frames are missing: frames 14 to 15 at 0.560 s" in error.what
    assert "beside it are 36 spike files" in error.what
    assert "repair the film" in error.do


def test_one_period_for_a_film_that_lacks_frames_is_refused_with_a_table(tmp_path):
    files = write_lossy_film(tmp_path, first=14, last=15)

    error = error_of_clip(*files, exposure={"start": 0.0, "length": 40.0, "period": 40.0})

    # The error proposes a row [first plane, number of planes] for each frame that is left.
    rows = [[40.0 * number, 40.0] for number in numbers_without(first=14, last=15)]
    assert "frames 14 to 15" in error.what
    assert json.dumps({"f": rows}) in error.do


# With these options of the codecs, an undamaged film has B-frames: frames that need a later frame
# to be decoded. So the file has the frames in another order than the film. "bf" is the largest
# number of B-frames in a row. In VP9, the later frame is stored early as a hidden frame.
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
# 30000 / 1001 = 29.97 frames per second is the rate of American television. No clock of a container
# divides this rate evenly, so the stored times are rounded.
@pytest.mark.parametrize("rate", [Fraction(25), Fraction(30000, 1001)], ids=str)
def test_a_sound_film_lacks_no_frame(tmp_path, caplog, name, codec, options, rate):
    noise_film(tmp_path / name, 20, codec=codec, rate=rate, options=options)
    # 487 is no multiple of 20. So some frames get 24 planes, and other frames get 25.
    spikes = write_empty_planes(tmp_path / "f.dat", 487)

    clip = open_clip(tmp_path / name, spikes)

    assert planes_of_frames(clip) == equal_shares(487, frames=20)
    assert "missing" not in caplog.text
    assert "damaged" not in caplog.text


# ---- Images, whose times follow from the numbers in their names ----


def images_with_spikes(folder: Path, names: list[str], planes: int = 240) -> tuple[Path, Path]:
    """Write images with these names, and one spike file. Return (folder of the images, spike file).

    The default, 240 planes, can be divided evenly by 2, 3, 4, 5 and 6 frames.
    """
    for number, name in enumerate(names):
        write_png(folder / "frames" / f"{name}.png", np.full(SIZE, 20 * number))
    return folder / "frames", write_empty_planes(folder / "all.dat", planes)


# The names of six frames, without frames 2 and 3.
GAP = ["frame00", "frame01", "frame04", "frame05"]


# exposures: the rows [first plane, number of planes] that the error proposes. Present and missing
# frames together share 240 planes evenly. E.g. each of 6 frames has 40 planes, so frame 4 begins at
# plane 4 x 40 = 160. If the names tell no times, the error proposes one period for all frames.
@pytest.mark.parametrize(
    ("names", "message", "exposures"),
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
            id="only words",
        ),
        pytest.param(
            ["a1", "b2", "b3"],
            "no numbers",
            {"start": 0, "length": 80.0, "period": 80.0},
            id="numbers behind different texts",
        ),
        pytest.param(
            ["3.1", "3.2", "3.5"],  # the distance is 0.1 s, so 3.3 and 3.4 are missing
            "2 of 5 frames are missing: frames 2 to 3",
            [[0, 48], [48, 48], [192, 48]],
            id="seconds",
        ),
    ],
)
def test_frames_whose_times_are_unknown_are_refused_with_exposures_to_correct(
    tmp_path, names, message, exposures
):
    error = error_of_clip(*images_with_spikes(tmp_path, names))

    assert message in error.what
    assert proposed_table(error) == {"frames": exposures}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        pytest.param(
            ["1000000", "1033000", "1099000"],
            "1 of 4 frames is missing: frame 2",
            id="times in microseconds",
        ),
        # The gap must be named, and no table of nine billion rows must be made.
        pytest.param(["0", "1", "9000000000"], "frames 2 to 8999999999", id="huge"),
    ],
)
def test_frames_whose_times_are_unknown_are_refused(tmp_path, names, message):
    error = error_of_clip(*images_with_spikes(tmp_path, names))

    assert message in error.what
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
    # E.g. for 5 gaps, the names 0, 2, 4, 6, 8, 10 lack 5 of the 11 numbers from 0 to 10.
    every_second = [str(2 * number) for number in range(gaps + 1)]

    message = error_of_clip(*images_with_spikes(tmp_path, every_second)).what

    named = "frame 1, frame 3, frame 5, frame 7, frame 9" + more
    assert message.endswith(f"{gaps} of {2 * gaps + 1} frames are missing: {named}")


def test_the_proposed_exposures_are_accepted(tmp_path):
    files = images_with_spikes(tmp_path, GAP)
    table = proposed_table(error_of_clip(*files))

    clip = open_clip(*files, exposure=table)

    assert planes_of_frames(clip) == [(0, 40), (40, 40), (160, 40), (200, 40)]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["7", "8", "9", "10"], id="numbers"),
        pytest.param(["x_01_a", "x_02_a", "x_03_a", "x_04_a"], id="between text"),
        pytest.param(["1e", "2e", "3e", "4e"], id="before text"),
        # The names are the times of 30 frames per second, rounded to microseconds.
        pytest.param(["1000000", "1033333", "1066667", "1100000"], id="microseconds"),
        pytest.param(["0.1", "0.2", "0.3", "0.4"], id="seconds"),
    ],
)
def test_a_folder_without_gaps_shares_its_planes_evenly(tmp_path, names):
    clip = open_clip(*images_with_spikes(tmp_path, names, planes=242))

    # The frames begin at the planes 0, 60.5, 121 and 181.5, and end at 242. Starts are rounded
    # down.
    assert planes_of_frames(clip) == [(0, 60), (60, 61), (121, 60), (181, 61)]


def test_numbers_a_thousand_apart_count_microseconds(tmp_path):
    clip = open_clip(*images_with_spikes(tmp_path, ["10000", "11000", "12000"]))

    # Read as microseconds, the names are 1 ms apart, as in a film of 1000 frames per second. So no
    # frame is missing, and the 3 frames share 240 planes.
    assert planes_of_frames(clip) == [(0, 80), (80, 80), (160, 80)]


def test_numbers_less_than_a_thousand_apart_count_frames(tmp_path):
    message = error_of_clip(*images_with_spikes(tmp_path, ["10000", "10999", "11998"])).what

    # Read as numbers of frames, the names say that frames 10000 to 11998 exist. These are 1999
    # frames, and only three are present.
    assert "1996 of 1999 frames are missing: frames 10001 to 10998" in message


def test_stamps_at_changing_distances_give_planes_by_time(tmp_path):
    # The names are microseconds: the frames begin at 0, 30, 70 and 100 ms after the first. The last
    # frame lasts as long as the frame before, so it ends at 130 ms. With 130 planes, a plane lasts
    # 1 ms.
    stamps = ["1000000", "1030000", "1070000", "1100000"]

    clip = open_clip(*images_with_spikes(tmp_path, stamps, planes=130))

    assert planes_of_frames(clip) == [(0, 30), (30, 40), (70, 30), (100, 30)]


# A single frame needs no time, so its name may have no number.
@pytest.mark.parametrize("name", ["7", "alone"])
def test_one_frame_takes_one_exposure(tmp_path, name):
    files = images_with_spikes(tmp_path, [name])

    clip = open_clip(*files, exposure={"start": 3.0, "length": 20.0, "period": 30.5})

    assert planes_of_frames(clip) == [(3, 20)]


@pytest.mark.parametrize("name", ["7", "alone"])
def test_one_frame_takes_all_planes_of_its_file(tmp_path, name):
    clip = open_clip(*images_with_spikes(tmp_path, [name]))

    assert planes_of_frames(clip) == [(0, 240)]


def test_missing_numbers_are_named_if_the_spikes_have_a_file_for_each_frame(tmp_path, caplog):
    frames, _ = images_with_spikes(tmp_path, GAP)
    for name in GAP:
        write_empty_planes(tmp_path / f"each/{name}.dat", 24)

    user_clips(frames, tmp_path / "each", spike_options=SPIKE_OPTIONS)

    assert "2 of 6 frames are missing: frames 2 to 3" in caplog.text


# ---- A table of exposures, or one period ----


def test_one_period_for_frames_with_a_gap_is_refused_with_a_table(tmp_path):
    files = images_with_spikes(tmp_path, GAP)

    error = error_of_clip(*files, exposure={"start": 3.0, "length": 20.0, "period": 30.5})

    # The proposed exposure of frame n begins at plane 3 + 30.5 n, and has 20 planes. The frames 0,
    # 1, 4 and 5 are present.
    rows = [[3.0, 20.0], [33.5, 20.0], [125.0, 20.0], [155.5, 20.0]]
    assert "one period" in error.what
    assert json.dumps({"frames": rows}) in error.do


def test_one_period_for_a_film_of_changing_rate_is_refused_with_a_table(tmp_path):
    files = film_with_spikes(tmp_path, [SHORT_FRAME] * 4 + [LONG_FRAME] * 2)

    error = error_of_clip(*files, exposure={"start": 0.0, "length": 24.0, "period": 24.0})

    # The film has four short frames and two long frames. A short frame lasts one period, and a
    # long frame lasts four periods. So the frames begin at the periods 0, 1, 2, 3, 4 and 8.
    rows = [[24.0 * period, 24.0] for period in (0, 1, 2, 3, 4, 8)]
    assert "several distances" in error.what
    assert json.dumps({"f": rows}) in error.do


def test_one_period_may_begin_at_any_time(tmp_path):
    for stem in ("432.04", "432.08", "432.12", "432.16"):
        write_png(tmp_path / f"in/{stem}.png", np.zeros(SIZE))
    spikes = write_empty_planes(tmp_path / "all.dat", 96)  # 4 periods of 24 planes

    # The names are times in seconds, 0.04 s apart. Only the distances are used, so the first frame
    # has the first exposure, although its time is not 0.
    clip = open_clip(
        tmp_path / "in", spikes, exposure={"start": 0.0, "length": 20.0, "period": 24.0}
    )

    assert planes_of_frames(clip) == [(0, 20), (24, 20), (48, 20), (72, 20)]


def test_a_table_of_other_frames_than_are_there_is_refused(tmp_path):
    files = images_with_spikes(tmp_path, GAP)
    rows = [[40.0 * number, 40.0] for number in range(6)]

    error = error_of_clip(*files, exposure={"frames": rows})

    assert "lists 6 frames" in error.what
    assert "frames 2 to 3" in error.what
    # The advice has a row for each frame that is present: 0, 1, 4 and 5.
    rows_of_present_frames = [[0.0, 40.0], [40.0, 40.0], [160.0, 40.0], [200.0, 40.0]]
    assert json.dumps({"frames": rows_of_present_frames}) in error.do


def test_several_clips_are_refused_at_once(tmp_path):
    (tmp_path / "sp").mkdir()
    for clip in ("a", "b"):
        frames, spikes = images_with_spikes(tmp_path / clip, GAP)
        shutil.move(frames, tmp_path / "in" / clip)
        shutil.move(spikes, tmp_path / f"sp/{clip}.dat")

    error = error_of_clip(tmp_path / "in", tmp_path / "sp")

    assert list(proposed_table(error)) == ["a", "b"]
    assert "clip a" in error.what
    assert "clip b" in error.what


# ---- The clock of a calibration ----


def write_clock(folder: Path, tick_hz: float) -> str:
    """Write a calibration that says the clock of the spike camera. Returns its path as a text.

    tick_hz: planes per second.
    """
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
        pytest.param(PLANES_PER_S * 2, "0.167", id="too fast"),
        pytest.param(PLANES_PER_S / 2, "0.667", id="too slow"),
    ],
)
def test_clocks_of_two_cameras_that_contradict_are_refused(tmp_path, tick_hz, seconds):
    files = film_with_spikes(tmp_path, [SHORT_FRAME] * 4 + [LONG_FRAME] * 4)

    error = error_of_clip(*files, calibration=write_clock(tmp_path, tick_hz))

    assert f"the film lasts 0.333 s, its planes {seconds} s" in error.what


# 4 frames of 1/60 s and 4 frames of 4/60 s. The film lasts for 20/60 = 0.333 s, and its last frame
# begins at 16/60 = 0.267 s.
ENDS_WITH_A_LONG_FRAME = [SHORT_FRAME] * 4 + [LONG_FRAME] * 4
# Number of planes of the spike file of this film: 0.333 s x 1440 planes per second.
PLANES_OF_LONG_END = 480


# seconds: how long all planes last by the clock of the calibration. This time may differ from the
# 0.333 s of the film by the longest frame, 0.067 s: it may be 0.267 s to 0.400 s.
@pytest.mark.parametrize("seconds", [0.275, 0.395])
def test_clocks_may_differ_by_a_frame(tmp_path, seconds):
    files = film_with_spikes(tmp_path, ENDS_WITH_A_LONG_FRAME)
    planes_per_second = PLANES_OF_LONG_END / seconds

    clip = open_clip(*files, calibration=write_clock(tmp_path, planes_per_second))

    # The second frame begins at 1/60 s of the film. The planes of 1/60 s come before it.
    second_frame = planes_of_frames(clip)[1]
    assert second_frame.first == int(planes_per_second / 60)


@pytest.mark.parametrize("seconds", [0.26, 0.41])
def test_clocks_may_not_differ_by_more_than_a_frame(tmp_path, seconds):
    files = film_with_spikes(tmp_path, ENDS_WITH_A_LONG_FRAME)
    planes_per_second = PLANES_OF_LONG_END / seconds

    error = error_of_clip(*files, calibration=write_clock(tmp_path, planes_per_second))

    assert "the film lasts 0.333 s" in error.what


def test_the_clock_of_the_spike_camera_tells_how_long_the_last_frame_lasts(tmp_path):
    # Without this clock, the last frame would last as long as the frame before: SHORT_FRAME.
    lengths = [LONG_FRAME, LONG_FRAME, SHORT_FRAME, LONG_FRAME]
    files = film_with_spikes(tmp_path, lengths)

    clip = open_clip(*files, calibration=write_clock(tmp_path, PLANES_PER_S))

    assert planes_of_frames(clip) == true_planes(lengths)


def test_the_last_frame_lasts_no_longer_than_the_longest_frame(tmp_path):
    # The last frame begins at 4/60 s, and the planes last for 7/60 s. So the last frame could last
    # 3/60 s, but the longest frame before it lasts 2/60 s.
    planes = int(7 * SHORT_FRAME * PLANES_PER_S)
    lengths = [SHORT_FRAME, 2 * SHORT_FRAME, SHORT_FRAME, SHORT_FRAME]
    files = film_with_spikes(tmp_path, lengths, planes)

    clip = open_clip(*files, calibration=write_clock(tmp_path, PLANES_PER_S))

    last_frame = planes_of_frames(clip)[-1]
    assert last_frame.count == 2 * SHORT_FRAME * PLANES_PER_S


# ---- The order of frames ----

# These names are in the order of their values. If the digits after the point were a counter, 432.1
# would come first, because 1 is less than 33333.
SECONDS = ["432.033333", "432.066667", "432.1", "432.133333", "432.166667", "432.2"]
NAMES_BY_VALUE = [
    pytest.param(SECONDS, id="seconds"),
    pytest.param(["0", "0.04", "0.08", "0.12", "0.16", "0.2", "0.24"], id="seconds from 0 on"),
    pytest.param(["-0.04", "0", "4e-05", "0.04"], id="seconds around 0"),
    pytest.param(["1.8", "1.9", "1.10", "1.11"], id="counter behind a point"),
    pytest.param(["-1", "-2", "-10"], id="counter behind a dash"),
    pytest.param(["9", "10", "011"], id="counter"),
]


def write_in_random_order(folder: Path, stems: list[str]) -> None:
    """Write images (in/) and spike files (spikes/) with these names, in a random order.

    The red value of image i of the list is 20 i.
    """
    for number in np.random.default_rng(0).permutation(len(stems)):
        write_png(folder / f"in/{stems[number]}.png", np.full(SIZE, 20 * number))
        write_dat(folder / f"spikes/{stems[number]}.dat", np.full((24, *SIZE), number % 2))


@pytest.mark.parametrize("stems", NAMES_BY_VALUE)
def test_images_are_sorted_by_the_numbers_in_their_names(tmp_path, stems):
    write_in_random_order(tmp_path, stems)

    clip = open_clip(tmp_path / "in", tmp_path / "spikes")

    assert list(clip.stems) == stems
    for number in range(len(stems)):
        picture_of_frame = clip.frame(number)["lq"]  # (3, H, W) in [0, 1]
        red = round(255 * float(picture_of_frame[0, 0, 0]))
        assert red == 20 * number


@pytest.mark.parametrize("stems", NAMES_BY_VALUE)
def test_spike_files_of_a_film_are_sorted_by_the_numbers_in_their_names(tmp_path, stems):
    write_in_random_order(tmp_path, stems)
    lengths = [SHORT_FRAME] * len(stems)
    write_film(tmp_path / "f.mp4", [picture(*SIZE)] * len(stems), starts_of(lengths))

    clip = open_clip(tmp_path / "f.mp4", tmp_path / "spikes")

    assert [Path(path).stem for path in clip.clip.spike] == stems


def test_frames_named_by_seconds_are_trained_on_in_order(tmp_path):
    write_clip(tmp_path, "a", frames=len(SECONDS))
    write_info(tmp_path)
    # Rename frames and spike files, e.g. 000002.png -> 432.1.png.
    for path in sorted(tmp_path.rglob("00000?.*")):
        path.rename(path.with_name(SECONDS[int(path.stem)] + path.suffix))

    (clip,) = build_clips(tmp_path).clips

    assert list(clip.stems) == SECONDS


def test_one_period_for_frames_at_uneven_times_is_refused_in_a_data_set(tmp_path):
    # The frames are 1/30 s apart, but the last one comes after 2/30 s.
    seconds = ["432.033333", "432.066667", "432.1", "432.166667"]
    write_clip(tmp_path, "a", frames=len(seconds))
    write_info(tmp_path)
    for number, name in enumerate(seconds):
        for path in tmp_path.rglob(f"00000{number}.*"):
            path.rename(path.with_name(name + path.suffix))
    # Leave only the first spike file, so that it is the one file for all frames.
    _, *others = sorted(tmp_path.rglob("*.dat"))
    for path in others:
        path.unlink()
    exposure = {"start": 0, "length": 4, "period": 4}

    with pytest.raises(DataError, match="gives one period for the 4 frames of clip a") as error:
        build_clips(tmp_path, spike={"type": "dat", "center": "file", "exposure": exposure})

    assert "give spike.exposure a row [start, length] for each frame" in error.value.do


@pytest.fixture
def seconds_behind_a_text(tmp_path):
    """Give a folder of images t_432.033333.png, t_432.066667.png, ...

    Their order by value is not their order by name:

        by value    t_432.066667, then t_432.1    the digits after the point are a fraction
        by name     t_432.1, then t_432.066667    these digits are a counter, and 1 < 66667
    """
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

    error = error_of_clip(seconds_behind_a_text, spikes)

    assert "another order by value" in str(error)


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(["0.04", "0.08", "0.12"], id="seconds"),
        # As values these numbers would not rise (1.10 < 1.8). But 1.8, 1.9, 1.10 is how a counter
        # goes on: part 1, numbers 8, 9, 10.
        pytest.param(["1.8", "1.9", "1.10"], id="counter"),
    ],
)
def test_numbers_behind_a_text_that_are_in_order_are_not_doubted(tmp_path, caplog, numbers):
    for number in numbers:
        write_png(tmp_path / f"in/t_{number}.png", np.zeros(SIZE))

    (clip,) = user_clips(tmp_path / "in")

    assert list(clip.stems) == [f"t_{number}" for number in numbers]
    assert "taken in the order of their names" not in caplog.text


def test_the_log_says_that_the_names_tell_no_order(tmp_path, caplog):
    frames, _ = images_with_spikes(tmp_path, ["left", "right"])

    user_clips(frames)

    message = "taken in the order of their names: the names of the frames have no numbers"
    assert message in caplog.text


# ---- Sharp frames, and folders of a user ----


@pytest.fixture
def three_times_as_large(tmp_path):
    """Give folders of two frames, and of sharp frames three times as large.

    SIZE is (height, width) = (48, 64). Messages have width x height: 64x48, and 192x144 if sharp.
    """
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

    # Give the same folder three times: as path of the frames, of the spikes, and of the sharp
    # frames.
    (clip,) = user_clips(folder, folder, folder, spike_options=SPIKE_OPTIONS)

    assert clip.name == "take 3"
    assert len(clip.stems) == 3
    assert clip.origin == {
        "input": f"{folder}/blur",
        "gt": f"{folder}/sharp",
        "spike": f"{folder}/spike",
    }


@pytest.mark.parametrize("is_root_given", [True, False], ids=["root", "folders of kinds"])
def test_a_root_may_have_a_folder_for_each_kind_of_file(tmp_path, is_root_given):
    for name in ("a", "b"):
        for kind in ("blur", "sharp"):
            for frame in range(2):
                write_png(tmp_path / kind / name / f"{frame}.png", np.full(SIZE, 20 * frame))
        write_empty_planes(tmp_path / f"spike/{name}.dat", 48)
    spike = tmp_path if is_root_given else tmp_path / "spike"
    gt = tmp_path if is_root_given else tmp_path / "sharp"

    clips = user_clips(tmp_path, spike, gt, spike_options=SPIKE_OPTIONS)

    assert [clip.name for clip in clips] == ["a", "b"]
    for clip in clips:
        assert clip.origin["gt"] == f"{tmp_path}/sharp/{clip.name}"
        assert clip.origin["spike"] == f"{tmp_path}/spike/{clip.name}.dat"


def test_a_folder_with_one_spike_file_for_all_frames_is_told_from_the_file_itself(tmp_path):
    frames, _ = images_with_spikes(tmp_path, ["0", "1", "2", "3"])
    write_empty_planes(tmp_path / "only/all.dat", 96)

    error = error_of_clip(frames, tmp_path / "only")

    assert "one spike file for 4 frames" in error.what
    advice = f"--spike {tmp_path}/only/all.dat treats it as the recording of the whole clip"
    assert advice in error.do
