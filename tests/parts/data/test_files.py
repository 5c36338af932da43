"""Files, pictures and videos: written whole or not at all, and read back as they were.

What can go wrong is real here: a link out of the folder, Ctrl-C in the middle of a write, a full
disk, a file that is no picture.
"""

import gc
import os
import signal
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from data.clips.files import FrameSource, files_in
from data.spike.formats import SpikeGeometry, write_spikes
from tests.helpers.checked import read_picture
from tests.helpers.clip_files import picture, small_files, write_video
from utils.errors import DataError, OptionError
from utils.files import (
    publish_folder,
    refuse_existing,
    refuse_links,
    remove_files,
    scratch_folder,
    write_whole,
)
from utils.image import LABEL_HEIGHT, comparison, comparison_strip, imwrite_rgb
from utils.video import VideoReader, VideoWriter


def test_nothing_is_written_or_removed_through_a_link_or_out_of_the_folder(tmp_path):
    inner = tmp_path / "out"
    outer = tmp_path / "elsewhere"
    (inner / "folder.png").mkdir(parents=True), outer.mkdir(), (inner / "ours").mkdir()
    (inner / "clip").symlink_to(outer)
    (inner / "link.png").symlink_to(outer / "x.png")
    (outer / "x.png").write_text("theirs")
    (inner / "file").write_text("theirs")
    names = ("clip/x.png", "../elsewhere/x.png", "link.png", "folder.png", "file/0.png")
    for name in names:
        with pytest.raises(DataError, match="leads out of the output folder, or is no file"):
            refuse_links(inner, [inner / name])
    refuse_links(inner, [inner / "file", inner / "new/0.png"])

    (inner / "ours/0.png").write_text("ours")
    remove_files(
        inner, [*(inner / name for name in names), inner / "ours/0.png", inner / "none.png"]
    )
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert left == [
        "elsewhere",
        "elsewhere/x.png",
        "out",
        "out/clip",
        "out/file",
        "out/folder.png",
        "out/link.png",
    ]


def test_ctrl_c_while_a_file_is_written_leaves_the_former_one_and_nothing_else(
    tmp_path, monkeypatch
):
    (tmp_path / "a.json").write_text("before")
    monkeypatch.setattr(os, "replace", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a.json", b"after")

    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o027, 0o640), (0o002, 0o664)])
def test_files_have_the_permissions_that_the_umask_gives(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "a.json", b"{}")
        write_spikes(tmp_path / "a.dat", np.zeros((8, 8, 8), np.uint8), SpikeGeometry(8, 8))
        with VideoWriter(tmp_path / "a.mp4", 25) as video:
            video.write(np.zeros((32, 32, 3), np.uint8))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}

    assert modes == dict.fromkeys(("a.json", "a.dat", "a.mp4"), mode)


def test_a_scratch_folder_clears_only_its_own(tmp_path):
    scratch = scratch_folder(tmp_path / ".x.tmp")
    (scratch / "half").write_text("ours")
    assert [p.name for p in scratch_folder(scratch).iterdir()] == [".spikevrt"]
    publish_folder(scratch, tmp_path / "x")
    assert list((tmp_path / "x").iterdir()) == []
    (tmp_path / ".x.tmp").mkdir()  # as a kill before the mark leaves it
    (scratch_folder(tmp_path / ".x.tmp") / ".spikevrt").unlink()
    (tmp_path / ".x.tmp" / "note").write_text("theirs")
    with pytest.raises(DataError, match="did not make"):
        scratch_folder(tmp_path / ".x.tmp")


def test_names_that_are_taken_are_refused_even_by_a_link_to_nothing(tmp_path):
    refuse_existing(tmp_path / "a", "--json")
    os.symlink(tmp_path / "nowhere", tmp_path / "a")
    with pytest.raises(OptionError, match="exists already"):
        refuse_existing(tmp_path / "a", "--json")


def test_a_png_comes_back_as_it_went_out(tmp_path):
    imwrite_rgb(tmp_path / "a" / "x.png", picture())
    assert np.array_equal(read_picture(tmp_path / "a" / "x.png")[..., ::-1], picture())
    (tmp_path / "a" / ".x.1a2b3c4d.png").touch()  # left by a killed process
    assert [p.name for p in files_in(tmp_path / "a")] == ["x.png"]


def test_a_jpeg_is_whole_with_the_data_that_a_phone_adds_and_cut_short_without_its_end(tmp_path):
    for path, end, is_whole in (
        ("phone.jpg", b"\xff\xd9 a film \xff\xda" + bytes(200), True),
        ("cut.jpg", b"", False),
    ):
        encoded = cv2.imencode(".jpg", picture())[1].tobytes()
        (tmp_path / path).write_bytes(encoded + end if is_whole else encoded[:-40])
        with nullcontext() if is_whole else pytest.raises(DataError, match="is cut short"):
            assert FrameSource(tmp_path / path).read(0).shape == picture().shape


def test_a_folder_without_images_is_named(tmp_path):
    with pytest.raises(DataError, match="holds no images"):
        FrameSource(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        FrameSource(tmp_path / "none")


def test_a_strip_shows_what_there_is():
    blurry = picture(20, 30)
    restored = picture(40, 60)
    light = np.linspace(0, 0.4, 600).reshape(20, 30)
    full = comparison_strip(comparison(blurry, light, restored, restored))

    assert full.shape == (40 + LABEL_HEIGHT, 5 * 60 + 4 * 2, 3)
    assert full.dtype == np.uint8
    assert (full[LABEL_HEIGHT:, -60:] == 0).all()  # no error where restored is sharp
    assert comparison_strip(comparison(blurry, None, restored, None)).shape == (
        40 + LABEL_HEIGHT,
        2 * 60 + 2,
        3,
    )


@pytest.mark.parametrize(("sharp", "error"), [(110, 50), (10, 255)])
def test_the_error_is_five_times_the_difference_and_the_brightest_spikes_are_white(sharp, error):
    a = np.full((10, 10, 3), 100, np.uint8)
    light = np.linspace(0, 0.4, 100).reshape(10, 10)
    panels = comparison(a, light, a, np.full_like(a, sharp))

    assert (panels["error x5"] == error).all()
    assert panels["spikes"].shape == (10, 10, 3)
    assert panels["spikes"][0, 0, 0] == 0
    assert panels["spikes"][-1, -1, 0] == 255
    assert (comparison(a, 0 * light, a, None)["spikes"] == 0).all()


def test_a_full_disk_leaves_no_video_that_looks_finished(tmp_path):
    # Noise does not compress, so a few frames have more than 2000 bytes.
    noise = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    full = pytest.raises(DataError, match=r"(?s)out\..*free some space")
    with small_files(2000), full, VideoWriter(tmp_path / "out.mp4", 25) as video:
        for _ in range(8):
            video.write(noise)

    assert list(tmp_path.iterdir()) == []


def test_a_video_keeps_its_frames_and_frame_rate(tmp_path):
    write_video(tmp_path / "v.mp4")
    video = VideoReader(tmp_path / "v.mp4")
    assert (video.num_frames, video.fps) == (6, 12.5)
    # Frames are read forwards, with a gap, and back. The compression changes values a little.
    for index in (0, 1, 4, 2, 5, 5, 4, 3, 0):
        assert np.abs(video.read(index).astype(int) - picture(seed=index)).mean() < 12

    assert [p.name for p in tmp_path.iterdir()] == ["v.mp4"]


def test_a_dropped_reader_closes_its_file_without_the_garbage_collector(tmp_path):
    # The garbage collector may run in a forked loader process. There it would wait for the threads
    # of the decoder, which a fork does not have.
    write_video(tmp_path / "v.mp4")
    gc.collect()
    gc.disable()
    try:
        VideoReader(tmp_path / "v.mp4").read(0)
        threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    finally:
        gc.enable()

    assert not [name for name in threads if name.startswith("av:")]


def test_a_video_that_fails_half_way_does_not_appear(tmp_path):
    with pytest.raises(KeyError), VideoWriter(tmp_path / "v.mp4", 25) as video:
        video.write(picture())
        raise KeyError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [None, b"", b"not a video at all"])
def test_an_unreadable_video_is_named(tmp_path, content):
    path = tmp_path / "bad.mp4"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.mp4"):
        VideoReader(path)


def test_every_frame_keeps_its_time_and_every_pixel_its_colour(tmp_path):
    # The times of a phone, in seconds: 24000 / 1001 frames a second, a gap, then faster. The sides
    # are odd, and the texture has details of one pixel, which a codec may lose.
    times = [Fraction(t) for t in ("1001/24000", "1001/12000", "1/2", "53/100", "1")]
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (35, 45, 3), np.uint8) for _ in times]
    with VideoWriter(tmp_path / "v.mp4", 25, times=times, chroma="444") as video:
        for image in frames:
            video.write(image)
    found = VideoReader(tmp_path / "v.mp4")
    assert found.times == times
    error = np.mean([(found.read(i).astype(float) - image) ** 2 for i, image in enumerate(frames)])

    assert 10 * np.log10(255**2 / error) > 32


def test_the_420_form_repeats_the_last_row_instead_of_losing_it(tmp_path):
    image = np.repeat(np.repeat(picture(3, 3), 15, 0), 15, 1)[:35, :45]
    with VideoWriter(tmp_path / "v.mp4", 25) as video:
        video.write(image)
    found = VideoReader(tmp_path / "v.mp4").read(0)

    assert found.shape == (36, 46, 3)
    assert np.abs(found[:35, :45].astype(int) - image).mean() < 4


def test_a_video_of_a_phone_held_upright_is_read_upright(tmp_path):
    write_video(tmp_path / "v.mp4", count=2)
    content = (tmp_path / "v.mp4").read_bytes()
    # The header of a track ("tkhd") has a matrix of 9 numbers of 4 bytes, 40 bytes behind its name.
    # It says how the track is shown. A quarter turn clockwise replaces the identity. The numbers
    # have 16 bits behind the point, but the last one has 30.
    one = 0x10000
    matrix = content.index(b"tkhd") + 4 + 40
    turned = np.array([0, one, 0, -one, 0, 0, 48 * one, 0, 2**30], ">i4").tobytes()
    (tmp_path / "r.mp4").write_bytes(content[:matrix] + turned + content[matrix + 36 :])
    upright = VideoReader(tmp_path / "r.mp4").read(0)

    assert upright.shape == (64, 48, 3)
    assert np.array_equal(upright, np.rot90(VideoReader(tmp_path / "v.mp4").read(0), -1))


def test_a_library_that_switches_pyavs_own_log_on_does_not_bring_its_deadlock_back(tmp_path):
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"\0\0\0\x18ftypmp42" + bytes(4000))
    av.logging.set_level(av.logging.ERROR)  # as torchvision 0.23 does on import

    with av.logging.Capture() as lines, pytest.raises(DataError):
        VideoReader(path)

    assert lines == []
