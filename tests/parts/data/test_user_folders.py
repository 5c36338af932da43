"""What lies in a folder of a user's clips is taken, or named."""

import os
import shutil

import numpy as np
import pytest
from PIL import Image

from data.clips.clip_reader import user_clips
from tests.helpers.clip_files import build, picture, write_clips, write_png
from tests.helpers.film_files import noise_film
from utils.errors import DataError


def write_gif(path):
    """Write a GIF of three pictures, one each 40 ms."""
    frames = [Image.fromarray(picture(seed=seed)) for seed in range(3)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=40)


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """Give a folder of films of three frames, each named after its ending."""
    folder = tmp_path_factory.mktemp("films")
    noise_film(folder / "ts.ts", 3)
    shutil.copy(folder / "ts.ts", folder / "MTS.MTS")
    shutil.copy(folder / "ts.ts", folder / "m2ts.m2ts")
    noise_film(folder / "mpg.mpg", 3, codec="mpeg2video", options={})
    noise_film(folder / "wmv.wmv", 3, codec="wmv2", options={"g": "1"})
    noise_film(folder / "flv.flv", 3, codec="flv", options={})
    write_gif(folder / "gif.gif")
    return folder


def test_a_folder_of_films_of_all_kinds_has_them_all(films, caplog):
    found = {clip.name: len(clip.stems) for clip in user_clips(films)}
    assert found == dict.fromkeys(("ts", "MTS", "m2ts", "mpg", "wmv", "flv", "gif"), 3)
    assert "left out" not in caplog.text


def test_sharp_films_are_found_by_the_names_of_the_blurry_ones(films):
    assert all(clip.has_gt for clip in user_clips(films, gt=films))


def test_a_gif_has_its_frames_and_times(films):
    (clip,) = user_clips(films / "gif.gif")
    assert clip.fps == 25
    for number in range(3):
        found = 255 * clip.frame(number)["lq"].movedim(0, -1).numpy()
        assert np.abs(found - picture(seed=number)).mean() < 12  # a palette of 256 colours


def test_a_webp_among_pngs_is_a_frame(tmp_path):
    for number in range(3):
        write_png(tmp_path / f"{number}.png", np.full((32, 48), 50 * number))
    Image.fromarray(picture(32, 48)).save(tmp_path / "3.webp", lossless=True)
    (clip,) = user_clips(tmp_path)
    assert list(clip.stems) == ["0", "1", "2", "3"]
    found = 255 * clip.frame(3)["lq"].movedim(0, -1).numpy()

    assert np.abs(found - picture(32, 48)).max() < 0.5


def test_frames_of_a_kind_that_is_not_read_are_named(tmp_path, caplog):
    for number in range(2):
        write_png(tmp_path / f"{number}.png", np.zeros((32, 48)))
    for name in ("10.heic", "2.cr2", "note.txt", ".hidden.heic", "spikes.dat"):
        (tmp_path / name).touch()
    user_clips(tmp_path)
    said = "left out, as no film or picture that is read: 2.cr2, 10.heic"

    assert [text for text in caplog.messages if "left out" in text] == [f"{tmp_path}: {said}"]


def test_clips_of_a_kind_that_is_not_read_are_named(tmp_path, caplog):
    write_png(tmp_path / "a/0.png", np.zeros((32, 48)))
    for name in ("b/0.heic", "c.braw", "spikes/a.dat", "readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    user_clips(tmp_path)
    said = "left out, as no film or picture that is read: b, c.braw"

    assert [text for text in caplog.messages if "left out" in text] == [f"{tmp_path}: {said}"]


def test_two_films_of_one_name_are_refused(films, tmp_path):
    shutil.copy(films / "gif.gif", tmp_path / "a.gif")
    shutil.copy(films / "ts.ts", tmp_path / "a.ts")
    with pytest.raises(DataError, match="two clips are named a"):
        user_clips(tmp_path)


def test_a_folder_whose_name_is_no_utf8_is_named_as_the_cause(tmp_path):
    write_clips(tmp_path / "root", "a")
    odd = tmp_path / os.fsdecode(b"r\xff")
    (tmp_path / "root").rename(odd)
    frames = odd / "GOPRO_Large/train"
    spikes = odd / "GOPRO_Large_spike_seq/train"
    attempts = (
        lambda: user_clips(frames),
        lambda: user_clips(picture_folder, spikes, spike_options={"type": "dat"}),
        lambda: build(odd),
    )
    picture_folder = tmp_path / "frames"
    write_png(picture_folder / "0.png", np.zeros((16, 24)))
    for attempt in attempts:
        with pytest.raises(DataError, match="the path is no text in UTF-8") as e:
            attempt()
        assert "\\udcff" in e.value.where
        assert "rename" in e.value.do
