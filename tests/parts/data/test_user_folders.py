"""Each file in a folder of a user's clips is read, or the log names it.

A user may give a folder of films, of folders, or of the frames of one clip. If a file cannot be
read as a frame or a clip, the log must say that the file is left out. The films have three frames.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.clips.clip_reader import user_clips
from data.clips.readers import DatasetClip
from tests.helpers.clip_files import build_clips, picture, write_clips, write_png
from tests.helpers.film_files import noise_film
from utils.errors import DataError


def write_gif(path: Path) -> None:
    """Write a GIF of three pictures, one each 40 ms."""
    frames = [Image.fromarray(picture(seed=seed)) for seed in range(3)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=40)


@pytest.fixture(scope="module")
def films(tmp_path_factory) -> Path:
    """Give a folder of films of three frames, each named after its ending."""
    folder = tmp_path_factory.mktemp("films")
    noise_film(folder / "ts.ts", 3)
    shutil.copy(folder / "ts.ts", folder / "MTS.MTS")
    shutil.copy(folder / "ts.ts", folder / "m2ts.m2ts")
    noise_film(folder / "mpg.mpg", 3, codec="mpeg2video", options={})
    noise_film(folder / "wmv.wmv", 3, codec="wmv2", options={"g": "1"})  # all frames are key frames
    noise_film(folder / "flv.flv", 3, codec="flv", options={})
    write_gif(folder / "gif.gif")
    return folder


def test_films_of_all_kinds_are_found_in_a_folder(films, caplog):
    clips = user_clips(films)

    found = {clip.name: len(clip.stems) for clip in clips}
    assert found == dict.fromkeys(("ts", "MTS", "m2ts", "mpg", "wmv", "flv", "gif"), 3)
    assert "left out" not in caplog.text


def test_sharp_films_are_found_by_the_names_of_the_blurry_films(films):
    clips = user_clips(films, gt=films)

    assert all(clip.has_gt for clip in clips)


def frame_of(clip: DatasetClip, number: int) -> np.ndarray:
    """Return a frame of a clip (H, W, 3), in levels of 8 bits."""
    return 255 * clip.frame(number)["lq"].movedim(0, -1).numpy()


def test_a_gif_has_its_times(films):
    (clip,) = user_clips(films / "gif.gif")

    assert clip.fps == 25  # a frame each 40 ms


@pytest.mark.parametrize("number", range(3))
def test_a_gif_has_its_frames(films, number):
    (clip,) = user_clips(films / "gif.gif")

    # A GIF has a palette of 256 colours, which changes values a little. Another frame would differ
    # by 13 levels or more: its blue differs by 40 or more, and red and green are equal.
    assert np.abs(frame_of(clip, number) - picture(seed=number)).mean() < 12


def test_a_webp_among_pngs_is_a_frame(tmp_path):
    for number in range(3):
        write_png(tmp_path / f"{number}.png", np.full((32, 48), 50 * number))
    Image.fromarray(picture(height=32, width=48)).save(tmp_path / "3.webp", lossless=True)

    (clip,) = user_clips(tmp_path)

    assert list(clip.stems) == ["0", "1", "2", "3"]
    # The WebP is lossless, so each value is the same when it is rounded.
    assert np.abs(frame_of(clip, 3) - picture(height=32, width=48)).max() < 0.5


def lines_about_what_is_left_out(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines of the log that say that something is left out."""
    return [text for text in caplog.messages if "left out" in text]


def test_frames_of_a_kind_that_is_not_read_are_named(tmp_path, caplog):
    for number in range(2):
        write_png(tmp_path / f"{number}.png", np.zeros((32, 48)))
    # The first two are pictures of cameras and phones. Nobody takes the other files for a picture.
    for name in ("10.heic", "2.cr2", "note.txt", ".hidden.heic", "spikes.dat"):
        (tmp_path / name).touch()

    user_clips(tmp_path)

    message = "left out, as no film or picture that is read: 2.cr2, 10.heic"
    assert lines_about_what_is_left_out(caplog) == [f"{tmp_path}: {message}"]


def test_clips_of_a_kind_that_is_not_read_are_named(tmp_path, caplog):
    write_png(tmp_path / "a/0.png", np.zeros((32, 48)))
    # "b" is a folder of pictures, and c.braw is a film. Nobody takes the other two for a clip.
    for name in ("b/0.heic", "c.braw", "spikes/a.dat", "readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    user_clips(tmp_path)

    message = "left out, as no film or picture that is read: b, c.braw"
    assert lines_about_what_is_left_out(caplog) == [f"{tmp_path}: {message}"]


def test_two_films_of_one_name_are_refused(films, tmp_path):
    shutil.copy(films / "gif.gif", tmp_path / "a.gif")
    shutil.copy(films / "ts.ts", tmp_path / "a.ts")

    with pytest.raises(DataError, match="two clips are named a"):
        user_clips(tmp_path)


# ---- A folder whose name is no text ----


@pytest.fixture
def root_without_text(tmp_path) -> Path:
    """Give a folder of clips with the byte FF in its name. No text in UTF-8 has this byte."""
    write_clips(tmp_path / "root", "a")
    root = tmp_path / os.fsdecode(b"r\xff")
    (tmp_path / "root").rename(root)
    return root


def assert_name_is_the_cause(error: DataError) -> None:
    """Check that an error names the folder, and advises to rename it."""
    # Python writes the byte FF as this code, because the byte itself cannot be printed.
    assert "\\udcff" in error.where
    assert "rename" in error.do


NO_TEXT = "the path is no text in UTF-8"


def test_frames_below_a_folder_whose_name_is_no_text_are_refused(root_without_text):
    with pytest.raises(DataError, match=NO_TEXT) as error:
        user_clips(root_without_text / "GOPRO_Large/train")

    assert_name_is_the_cause(error.value)


def test_spikes_below_a_folder_whose_name_is_no_text_are_refused(root_without_text, tmp_path):
    write_png(tmp_path / "frames/0.png", np.zeros((16, 24)))
    spikes = root_without_text / "GOPRO_Large_spike_seq/train"

    with pytest.raises(DataError, match=NO_TEXT) as error:
        user_clips(tmp_path / "frames", spikes, spike_options={"type": "dat"})

    assert_name_is_the_cause(error.value)


def test_a_data_set_below_a_folder_whose_name_is_no_text_is_refused(root_without_text):
    with pytest.raises(DataError, match=NO_TEXT) as error:
        build_clips(root_without_text)

    assert_name_is_the_cause(error.value)
