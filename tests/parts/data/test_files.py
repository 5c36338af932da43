"""Files, pictures and videos: written whole or not at all, and read back as they were.

The tests let the faults happen: a link out of the folder, Ctrl-C in the middle of a write, a full
disk, a file that is no picture. The pictures are the ramps of `picture`: (height, width, 3) uint8.
"""

import gc
import os
import signal
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import cv2
import numpy as np
import pytest

from data.clips.user_folders import files_in
from data.clips.user_frames import FrameSource
from data.spike.formats import write_spikes
from data.spike.geometry import SpikeGeometry
from tests.helpers.checked import read_picture
from tests.helpers.clip_files import picture, small_files, write_video
from utils.errors import DataError, OptionError
from utils.files import write_whole
from utils.image import LABEL_HEIGHT, comparison, comparison_strip, imwrite_rgb
from utils.output_folder import (
    publish_folder,
    refuse_existing,
    refuse_links,
    remove_files,
    scratch_folder,
)
from utils.video.reader import VideoReader
from utils.video.writer import VideoWriter


def names_in(folder: Path) -> list[str]:
    """Return the names of all files and folders in a folder."""
    return [path.name for path in folder.iterdir()]


# ---- Links ----

# Paths below the folder "out" of `folder_with_links`, at which nothing may be written.
UNSAFE = {
    "clip/x.png": "a link to another folder",
    "../elsewhere/x.png": "a path out of the folder",
    "link.png": "a link to a file",
    "folder.png": "a folder in place of the file",
    "file/0.png": "a file in place of the folder",
}
each_unsafe_place = pytest.mark.parametrize("name", UNSAFE, ids=UNSAFE.values())


@pytest.fixture
def folder_with_links(tmp_path) -> Path:
    """Give a folder "out" with links to a folder "elsewhere" beside it, in which a file lies."""
    out = tmp_path / "out"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x.png").write_text("theirs")
    (out / "folder.png").mkdir(parents=True)
    (out / "clip").symlink_to(elsewhere)
    (out / "link.png").symlink_to(elsewhere / "x.png")
    (out / "file").write_text("theirs")
    return out


@each_unsafe_place
def test_a_place_that_leads_out_of_the_folder_or_is_no_file_is_refused(folder_with_links, name):
    with pytest.raises(DataError, match="leads out of the output folder, or is no file"):
        refuse_links(folder_with_links, [folder_with_links / name])


@pytest.mark.parametrize("name", ["file", "new/0.png"])
def test_a_file_within_the_folder_is_not_refused(folder_with_links, name):
    refuse_links(folder_with_links, [folder_with_links / name])


def everything_below(folder: Path) -> list[str]:
    """Return the path of each file, folder and link below a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@each_unsafe_place
def test_nothing_is_removed_through_a_link_or_out_of_the_folder(folder_with_links, tmp_path, name):
    before = everything_below(tmp_path)

    remove_files(folder_with_links, [folder_with_links / name])

    assert everything_below(tmp_path) == before


def test_a_file_within_the_folder_is_removed_with_its_empty_folder(folder_with_links, tmp_path):
    before = everything_below(tmp_path)
    ours = folder_with_links / "ours/0.png"
    ours.parent.mkdir()
    ours.write_text("ours")

    # An unsafe place is skipped, and the places after it in the list are removed. A file that does
    # not exist is no error.
    link = folder_with_links / "link.png"
    remove_files(folder_with_links, [link, ours, folder_with_links / "none.png"])

    assert everything_below(tmp_path) == before


# "--json" is the flag with which the user gives the path. An error would name this flag.
def test_a_name_that_is_free_is_not_refused(tmp_path):
    refuse_existing(tmp_path / "a", "--json")


def test_a_name_that_is_taken_is_refused_even_if_it_is_a_link_to_nothing(tmp_path):
    os.symlink(tmp_path / "nowhere", tmp_path / "a")

    with pytest.raises(OptionError, match="exists already"):
        refuse_existing(tmp_path / "a", "--json")


# ---- Writing ----


def test_ctrl_c_while_a_file_is_written_leaves_the_former_file_unchanged(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text("before")
    # The last step of a write puts the new file in the place of the former file. Ctrl-C comes in
    # this step.
    monkeypatch.setattr(os, "replace", lambda *_: signal.raise_signal(signal.SIGINT))

    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a.json", b"after")

    # The folder holds only the former file. So no unfinished file is left.
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


# A new file has the permissions 0o666, but without the permissions that the umask forbids.
@pytest.mark.parametrize(
    ("umask", "permissions"),
    [
        pytest.param(0o077, 0o600, id="only the owner may read"),
        pytest.param(0o027, 0o640, id="the group may read"),
        pytest.param(0o002, 0o664, id="the group may write"),
    ],
)
def test_files_have_the_permissions_that_the_umask_gives(tmp_path, umask, permissions):
    former_umask = os.umask(umask)
    try:
        write_whole(tmp_path / "a.json", b"{}")
        write_spikes(tmp_path / "a.dat", np.zeros((8, 8, 8), np.uint8), SpikeGeometry(8, 8))
        with VideoWriter(tmp_path / "a.mp4", fps=25) as video:
            video.write(np.zeros((32, 32, 3), np.uint8))
    finally:
        os.umask(former_umask)

    # 0o777 selects the bits that say who may read, write and execute.
    found = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert found == dict.fromkeys(("a.json", "a.dat", "a.mp4"), permissions)


# ---- Scratch folders, in which results are made before they get their name ----

# The file that marks a scratch folder as ours.
MARK = ".spikevrt"


def test_a_scratch_folder_of_an_earlier_start_is_cleared(tmp_path):
    scratch = scratch_folder(tmp_path / ".x.tmp")
    (scratch / "half").write_text("ours")

    again = scratch_folder(scratch)

    assert names_in(again) == [MARK]


def test_a_published_folder_has_no_mark(tmp_path):
    scratch = scratch_folder(tmp_path / ".x.tmp")

    publish_folder(scratch, tmp_path / "x")

    assert names_in(tmp_path / "x") == []


def test_an_empty_folder_becomes_a_scratch_folder(tmp_path):
    # A process that is killed before it has written the mark leaves an empty folder. So an empty
    # folder must be accepted.
    (tmp_path / ".x.tmp").mkdir()

    assert names_in(scratch_folder(tmp_path / ".x.tmp")) == [MARK]


def test_a_folder_of_somebody_else_is_not_cleared(tmp_path):
    (tmp_path / ".x.tmp").mkdir()
    (tmp_path / ".x.tmp/note").write_text("theirs")

    with pytest.raises(DataError, match="something else has it"):
        scratch_folder(tmp_path / ".x.tmp")


# ---- Pictures ----


def test_a_png_comes_back_as_it_went_out(tmp_path):
    imwrite_rgb(tmp_path / "a/x.png", picture())

    found = read_picture(tmp_path / "a/x.png")
    assert np.array_equal(found[..., ::-1], picture())  # ::-1 turns BGR into RGB


def test_a_picture_that_a_killed_process_has_left_is_not_taken_for_a_frame(tmp_path):
    imwrite_rgb(tmp_path / "x.png", picture())
    (tmp_path / ".x.1a2b3c4d.png").touch()  # the name of a picture while it is written

    assert [path.name for path in files_in(tmp_path)] == ["x.png"]


def jpeg() -> bytes:
    """Return an encoded JPEG."""
    _, encoded = cv2.imencode(".jpg", picture())
    return encoded.tobytes()


def test_a_jpeg_is_read_with_the_data_that_a_phone_adds(tmp_path):
    # Phones add a film after the mark FF D9, which ends the picture.
    added = b"\xff\xd9 a film \xff\xda" + bytes(200)
    (tmp_path / "phone.jpg").write_bytes(jpeg() + added)

    found = FrameSource(tmp_path / "phone.jpg").read(0)

    assert found.shape == picture().shape


def test_a_jpeg_without_its_end_is_refused(tmp_path):
    (tmp_path / "cut.jpg").write_bytes(jpeg()[:-40])

    with pytest.raises(DataError, match="is cut short"):
        FrameSource(tmp_path / "cut.jpg").read(0)


def test_a_png_without_its_end_is_refused(tmp_path):
    _, encoded = cv2.imencode(".png", picture())
    (tmp_path / "cut.png").write_bytes(encoded.tobytes()[:-40])

    with pytest.raises(DataError, match="is damaged or cut short"):
        FrameSource(tmp_path / "cut.png").read(0)


def test_a_folder_without_images_is_named(tmp_path):
    with pytest.raises(DataError, match="holds no images"):
        FrameSource(tmp_path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        FrameSource(tmp_path / "none")


# ---- Strips: panels side by side, to compare them ----


def test_a_strip_shows_five_panels_of_a_clip_with_spikes_and_sharp_frames():
    blurry = picture(height=20, width=30)
    restored = picture(height=40, width=60)
    sharp = restored
    light = np.linspace(0, 0.4, 600).reshape(20, 30)

    strip = comparison_strip(comparison(blurry, light, restored, sharp))

    # The panels are blurry, spikes, restored, sharp and error, with gaps of 2 pixels. The first two
    # panels are smaller than the others, so they are enlarged.
    assert strip.shape == (40 + LABEL_HEIGHT, 5 * 60 + 4 * 2, 3)
    assert strip.dtype == np.uint8
    # The last panel is the error, which is 0 here.
    last_panel = strip[LABEL_HEIGHT:, -60:]
    assert (last_panel == 0).all()


def test_a_strip_shows_two_panels_of_a_clip_without_spikes_and_sharp_frames():
    blurry = picture(height=20, width=30)
    restored = picture(height=40, width=60)

    strip = comparison_strip(comparison(blurry, spikes=None, restored=restored, sharp=None))

    # The panels are blurry and restored.
    assert strip.shape == (40 + LABEL_HEIGHT, 2 * 60 + 2, 3)


GREY = np.full((10, 10, 3), 100, np.uint8)


@pytest.mark.parametrize(
    ("sharp", "error"),
    [
        pytest.param(110, 5 * 10, id="five times 10"),
        pytest.param(10, 255, id="five times 90, at most white"),
    ],
)
def test_the_error_is_five_times_the_difference(sharp, error):
    panels = comparison(GREY, spikes=None, restored=GREY, sharp=np.full_like(GREY, sharp))

    assert (panels["error x5"] == error).all()


def test_the_brightest_spikes_are_white():
    light = np.linspace(0, 0.4, 100).reshape(10, 10)  # from dark to bright

    spikes = comparison(GREY, spikes=light, restored=GREY, sharp=None)["spikes"]

    assert spikes.shape == (10, 10, 3)
    assert spikes[0, 0, 0] == 0
    assert spikes[-1, -1, 0] == 255


def test_a_frame_without_spikes_is_black():
    dark = np.zeros((10, 10))

    # The brightest light is 0. The light is divided by the brightest light, but not by 0.
    panels = comparison(GREY, spikes=dark, restored=GREY, sharp=None)
    assert (panels["spikes"] == 0).all()


# ---- Videos ----


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the mean difference of two pictures, in levels of 8 bits."""
    return float(np.abs(found.astype(int) - expected).mean())


def test_a_full_disk_leaves_no_video_that_looks_finished(tmp_path):
    # Noise cannot be compressed, so a few frames have more than 2000 bytes, the limit of a file.
    noise = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)

    with (
        small_files(limit=2000),
        pytest.raises(DataError, match=r"(?s)out\..*free some space"),
        VideoWriter(tmp_path / "out.mp4", fps=25) as video,
    ):
        for _ in range(8):
            video.write(noise)

    assert names_in(tmp_path) == []


def test_a_video_that_fails_half_way_does_not_appear(tmp_path):
    with pytest.raises(KeyError), VideoWriter(tmp_path / "v.mp4", fps=25) as video:
        video.write(picture())
        raise KeyError

    assert names_in(tmp_path) == []


def test_a_video_keeps_its_number_of_frames_and_its_rate(tmp_path):
    write_video(tmp_path / "v.mp4", count=6, fps=12.5)

    video = VideoReader(tmp_path / "v.mp4")

    assert video.num_frames == 6
    assert video.fps == 12.5
    assert names_in(tmp_path) == ["v.mp4"]


def test_the_frames_of_a_video_are_read_in_any_order(tmp_path):
    write_video(tmp_path / "v.mp4", count=6)
    video = VideoReader(tmp_path / "v.mp4")

    # Read forwards, with a gap, the same frame twice, and backwards.
    for index in (0, 1, 4, 2, 5, 5, 4, 3, 0):
        # Compression changes values by 2 or 3 levels on average. Another frame differs by 13 or
        # more: the blue of neighbouring pictures differs by 40, which is 13 per colour.
        assert difference(video.read(index), picture(seed=index)) < 12


def test_a_dropped_reader_closes_its_file_without_the_garbage_collector(tmp_path):
    # The garbage collector may run in a forked loader process. A fork does not have the threads of
    # the decoder, so the garbage collector would wait forever for these threads. So the reader must
    # close its file itself.
    write_video(tmp_path / "v.mp4")
    gc.collect()
    gc.disable()
    try:
        VideoReader(tmp_path / "v.mp4").read(0)
        # The names of the threads of this process.
        threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    finally:
        gc.enable()

    # The threads of the decoder have names like "av:h264:df0".
    assert not [name for name in threads if name.startswith("av:")]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="no file"),
        pytest.param(b"", id="an empty file"),
        pytest.param(b"not a video at all", id="a text"),
    ],
)
def test_an_unreadable_video_is_named(tmp_path, content):
    path = tmp_path / "bad.mp4"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(DataError, match=r"bad\.mp4"):
        VideoReader(path)


class Noise(NamedTuple):
    """A video of noise in the form 4:4:4, which stores a colour for each pixel.

    The usual form, 4:2:0, stores a colour for 2 x 2 pixels.
    """

    times: list[Fraction]
    frames: list[np.ndarray]
    video: VideoReader


@pytest.fixture(scope="module")
def noise_video(tmp_path_factory) -> Noise:
    """Write frames of noise at uneven times, and open the video."""
    # The times are in seconds, and uneven, as a phone gives them: two frames 1001 / 24000 s apart,
    # a gap, two frames 0.03 s apart, and a gap.
    times = [Fraction(t) for t in ("1001/24000", "1001/12000", "1/2", "53/100", "1")]
    # The sides are odd, because a codec may need even sides. Noise has details of one pixel, which
    # a codec may lose.
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (35, 45, 3), np.uint8) for _ in times]
    path = tmp_path_factory.mktemp("noise") / "v.mp4"
    with VideoWriter(path, fps=25, times=times, chroma="444") as video:
        for frame in frames:
            video.write(frame)
    return Noise(times, frames, VideoReader(path))


def test_every_frame_of_a_video_keeps_its_time(noise_video):
    assert noise_video.video.times == noise_video.times


def test_every_pixel_of_a_video_in_444_keeps_its_colour(noise_video):
    squares = []
    for index, frame in enumerate(noise_video.frames):
        squares.append((noise_video.video.read(index).astype(float) - frame) ** 2)
    psnr = 10 * np.log10(255**2 / np.mean(squares))

    # The PSNR is 35 dB. A video in 4:2:0 stores one value of colour for 4 pixels, so most of the
    # noise would be lost, and the PSNR would be 12 dB.
    assert psnr > 32


def test_the_420_form_repeats_the_last_row_instead_of_losing_it(tmp_path):
    # The picture has 9 patches of 15 x 15 pixels, each of one colour. Its height is cut to 35 rows.
    # So both sides are odd, but 4:2:0 needs even sides.
    patches = picture(height=3, width=3).repeat(15, axis=0).repeat(15, axis=1)
    odd = patches[:35, :45]
    with VideoWriter(tmp_path / "v.mp4", fps=25) as video:
        video.write(odd)

    found = VideoReader(tmp_path / "v.mp4").read(0)

    assert found.shape == (36, 46, 3)
    # The mean difference is about 0.7 grey levels, because the video is compressed.
    assert difference(found[:35, :45], odd) < 4


def write_turned(path: Path, upright: Path) -> None:
    """Write a video of a phone that was held upright.

    Such a phone stores the frames lying on their side. A mark in the file says: show them turned
    clockwise by 90 degrees.

    upright: a video of 48 x 64 pixels without such a mark.
    """
    content = upright.read_bytes()
    # The header of a track ("tkhd") has a matrix of 9 numbers of 4 bytes, 40 bytes behind its name.
    # The matrix says how the track is shown. The identity is replaced by a quarter turn, which
    # moves a point (x, y) to (48 - y, x). Without the 48, the height of the lying frame, x would be
    # negative.
    #
    # The numbers are fixed-point numbers: 1 is stored as 2**16 in the first 8 numbers, and as 2**30
    # in the last one.
    begin = content.index(b"tkhd") + 4 + 40
    one = 2**16
    turn = np.array([0, one, 0, -one, 0, 0, 48 * one, 0, 2**30], ">i4").tobytes()
    path.write_bytes(content[:begin] + turn + content[begin + len(turn) :])


def test_a_video_of_a_phone_held_upright_is_read_upright(tmp_path):
    write_video(tmp_path / "v.mp4", count=2)
    write_turned(tmp_path / "turned.mp4", tmp_path / "v.mp4")

    found = VideoReader(tmp_path / "turned.mp4").read(0)

    lying = VideoReader(tmp_path / "v.mp4").read(0)
    assert found.shape == (64, 48, 3)
    assert np.array_equal(found, np.rot90(lying, -1))  # -1: clockwise


def test_a_library_that_switches_pyavs_own_log_on_does_not_bring_its_deadlock_back(tmp_path):
    # If PyAV writes its own log, it can block a process that decodes in threads. So the project
    # switches this log off.
    path = tmp_path / "clip.mp4"
    begin_of_mp4 = b"\0\0\0\x18ftypmp42"
    path.write_bytes(begin_of_mp4 + bytes(4000))  # zeros in place of the content
    av.logging.set_level(av.logging.ERROR)  # as torchvision 0.23 does on import

    with av.logging.Capture() as lines, pytest.raises(DataError):
        VideoReader(path)

    assert lines == []
