"""utils/video: films are read in the direction, shape and colours in which players show them.

The tests write the films themselves. Each film has one unusual feature, e.g. a display matrix, a
cover picture, pixels that are not square, or colours without a description.
"""

import io
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import av
import numpy as np
import pytest
from PIL import Image

from tests.helpers.clip_files import picture, write_dat
from tests.helpers.film_files import (
    noise_film,
    write_film_of_two_sizes,
    write_film_with_cover,
    write_turned_film,
)
from tests.helpers.limited import assert_refused
from tests.helpers.weights_files import restore
from utils.errors import DataError
from utils.video.reader import VideoReader
from utils.video.writer import VideoWriter


def blocks(height: int, width: int) -> np.ndarray:
    """Return a picture (height, width, 3) uint8 of blocks of 16 x 16 with random colours."""
    colours = np.random.default_rng(0).integers(0, 256, (height // 16, width // 16, 3), np.uint8)
    # Each colour becomes a block of 16 x 16 pixels of this colour.
    return np.kron(colours, np.ones((16, 16, 1), np.uint8))


def mean_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the mean difference of two uint8 pictures."""
    return float(np.abs(found.astype(int) - expected).mean())


# ---- Direction ----


class Orientation(NamedTuple):
    """A way to turn or mirror a picture."""

    # The display matrix (a, b, c, d) in an MP4: the pixel (x, y), with y down, is shown at
    # (a x + c y, b x + d y). Then the picture is moved so that it begins at (0, 0). E.g. with
    # (0, 1, -1, 0) the pixel (x, y) is shown at (-y, x), which is a quarter turn clockwise:
    #
    #     p q r          s p
    #     s t u    ->    t q      p (0, 0) -> (0, 0), the right column;  s (0, 1) -> (-1, 0)
    #                    u r
    matrix: tuple[int, int, int, int]
    shown: Callable[[np.ndarray], np.ndarray]  # the same change of an array (H, W, 3)


def exchange_axes(image: np.ndarray) -> np.ndarray:
    """Return the image with rows and columns exchanged."""
    return image.swapaxes(0, 1)


ORIENTATIONS = {
    "as it is": Orientation((1, 0, 0, 1), lambda image: image),
    "columns reversed": Orientation((-1, 0, 0, 1), np.fliplr),
    "rows reversed": Orientation((1, 0, 0, -1), np.flipud),
    "half a turn": Orientation((-1, 0, 0, -1), lambda image: np.rot90(image, 2)),
    "quarter turn clockwise": Orientation((0, 1, -1, 0), lambda image: np.rot90(image, -1)),
    "quarter turn counter-clockwise": Orientation((0, -1, 1, 0), np.rot90),
    "rows and columns exchanged": Orientation((0, 1, 1, 0), exchange_axes),
    # (x, y) is shown at (-y, -x): exchange x and y, then change both signs, which is half a turn.
    "exchanged and turned": Orientation(
        (0, -1, -1, 0), lambda image: np.rot90(exchange_axes(image), 2)
    ),
}


@pytest.mark.parametrize("name", ORIENTATIONS)
def test_a_turned_or_mirrored_film_is_read_as_players_show_it(tmp_path, name):
    orientation = ORIENTATIONS[name]
    image = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    write_turned_film(tmp_path / "v.mp4", image, orientation.matrix)

    found = VideoReader(tmp_path / "v.mp4").read(0)

    assert np.array_equal(found, orientation.shown(image))


def write_jpeg_film(path, image, orientation):
    """Write a film of two JPEG frames. orientation: the number in their EXIF data."""
    exif = Image.Exif()
    exif[0x112] = orientation  # the tag Orientation of EXIF
    jpeg = io.BytesIO()
    Image.fromarray(image).save(jpeg, "JPEG", exif=exif, quality=100, subsampling=0)

    with av.open(str(path), "w") as out:
        stream = out.add_stream("mjpeg", rate=25)
        stream.height, stream.width = image.shape[:2]
        stream.pix_fmt = "yuvj444p"
        stream.codec_context.color_range = 2  # full range, as JPEG has
        for number in range(2):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame = frame.reformat(format="yuvj444p")
            frame.pts = number
            frame.time_base = Fraction(1, 25)
            for encoded in stream.encode(frame):
                # Write our JPEG in place of the encoded frame, because only our JPEG has EXIF data.
                # Our JPEG gets the times of the encoded frame: pts says when it is shown, dts says
                # when it is decoded, and time_base is the unit of both in seconds.
                packet = av.Packet(jpeg.getvalue())
                packet.pts = encoded.pts
                packet.dts = encoded.dts
                packet.time_base = encoded.time_base
                packet.stream = stream
                out.mux(packet)


@pytest.mark.parametrize(
    ("orientation", "quarter_turns"),
    [
        pytest.param(1, 0, id="upright"),
        pytest.param(3, 2, id="half a turn"),
        pytest.param(6, -1, id="clockwise"),
        pytest.param(8, 1, id="counter-clockwise"),
    ],
)
def test_a_film_of_jpegs_with_exif_is_read_upright(tmp_path, orientation, quarter_turns):
    image = blocks(height=48, width=64)
    write_jpeg_film(tmp_path / "v.mov", image, orientation)

    # Read the second frame, because it must be turned like the first frame. Both frames show the
    # same.
    found = VideoReader(tmp_path / "v.mov").read(1)

    shown = np.rot90(image, quarter_turns)
    assert found.shape == shown.shape
    # JPEG alone makes an error of 0.25 grey levels. A picture in another direction would have a far
    # larger error.
    assert mean_error(found, shown) < 4


# ---- Covers ----


@pytest.fixture
def film_with_cover(tmp_path):
    """Give a film of three grey frames whose first stream is a cover, and the frames."""
    frames = [np.full((48, 64, 3), level, np.uint8) for level in (40, 120, 200)]
    path = tmp_path / "v.mp4"
    write_film_with_cover(path, picture(96, 96), frames)
    # If the cover were not the first stream, the tests below would prove nothing.
    with av.open(str(path)) as container:
        assert [stream.codec.name for stream in container.streams.video] == ["png", "h264"]
    return path, frames


def test_a_cover_picture_is_no_frame_of_the_film(film_with_cover):
    path, frames = film_with_cover

    video = VideoReader(path)

    assert video.num_frames == 3
    for number, frame in enumerate(frames):
        # Compression changes these grey frames by 1 level. The levels of the frames are 80 apart,
        # so a limit of 4 tells the frames from one another.
        assert np.abs(video.read(number).astype(int) - frame).max() < 4


def test_a_cover_picture_does_not_change_the_frame_rate(film_with_cover):
    path, _ = film_with_cover

    assert VideoReader(path).fps == 25


def test_a_sound_file_with_a_cover_holds_no_video(tmp_path):
    write_film_with_cover(tmp_path / "song.mp4", picture(), [])

    with pytest.raises(DataError, match=r"(?s)holds no video.*song\.mp4"):
        VideoReader(tmp_path / "song.mp4")


# ---- The shape of pixels ----


@pytest.fixture(params=["upright", "quarter turn"])
def wide_pixels(request, tmp_path):
    """Give a film whose pixels are not square, and their width / height as a player shows it.

    The pixels are 4/3 as wide as high. If the film is turned by a quarter, a player shows them 3/4
    as wide as high.
    """
    with VideoWriter(tmp_path / "v.mp4", fps=25, pixel_aspect=Fraction(4, 3)) as video:
        video.write(picture())
    if request.param == "upright":
        return tmp_path / "v.mp4", Fraction(4, 3)

    # The name of the box "tkhd" has 4 bytes. The display matrix lies 40 bytes behind the name. The
    # matrix has nine fixed-point numbers of 4 bytes:
    #
    #     number            bits of the fraction    1 is stored as
    #     first to eighth   16                      2^16
    #     ninth             30                      2^30
    one = 2**16
    matrix = np.array([0, one, 0, -one, 0, 0, 0, 0, 2**30], ">i4").tobytes()
    content = (tmp_path / "v.mp4").read_bytes()
    begin = content.index(b"tkhd") + 4 + 40
    end = begin + len(matrix)
    (tmp_path / "t.mp4").write_bytes(content[:begin] + matrix + content[end:])
    return tmp_path / "t.mp4", Fraction(3, 4)


def test_pixels_that_are_not_square_are_read_as_players_show_them(wide_pixels):
    path, shown = wide_pixels

    assert VideoReader(path).pixel_aspect == shown


def test_pixels_that_are_not_square_keep_their_shape_when_a_film_is_copied(wide_pixels, tmp_path):
    path, shown = wide_pixels
    source = VideoReader(path)

    with VideoWriter(tmp_path / "copy.mp4", fps=25, pixel_aspect=source.pixel_aspect) as video:
        video.write(source.read(0))

    assert VideoReader(tmp_path / "copy.mp4").pixel_aspect == shown


def test_pixels_are_square_if_nothing_else_is_said(tmp_path):
    with VideoWriter(tmp_path / "v.mp4", fps=25) as video:
        video.write(picture())

    assert VideoReader(tmp_path / "v.mp4").pixel_aspect == 1


def test_the_videos_of_a_restored_film_have_its_pixels(tmp_path):
    with VideoWriter(tmp_path / "v.mp4", fps=25, pixel_aspect=Fraction(32, 27)) as video:
        for seed in range(2):
            video.write(picture(seed=seed))
    write_dat(tmp_path / "v.dat", np.zeros((48, 48, 64), np.uint8))
    files = ["--input", tmp_path / "v.mp4", "--spike", tmp_path / "v.dat", "--spike-size", 48, 64]

    restore("--method", "exposure", *files, "--output", tmp_path / "out")

    for name in ("v.mp4", "v_comparison.mp4"):
        assert VideoReader(tmp_path / "out" / name).pixel_aspect == Fraction(32, 27)


# ---- Colours ----


@pytest.mark.parametrize(
    ("height", "width", "colours"),
    [
        pytest.param(720, 1280, "ITU709", id="HD"),
        pytest.param(1280, 720, "ITU709", id="HD, upright"),
        pytest.param(480, 640, "ITU601", id="smaller than HD"),
    ],
)
def test_a_film_that_does_not_describe_its_colours_gets_them_by_its_size(
    tmp_path, height, width, colours
):
    image = blocks(height, width)
    with av.open(str(tmp_path / "v.mp4"), "w") as out:
        stream = out.add_stream("libx264", rate=25, options={"crf": "4", "preset": "ultrafast"})
        stream.height = height
        stream.width = width
        stream.pix_fmt = "yuv444p"
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame = frame.reformat(format="yuv444p", dst_colorspace=colours, dst_color_range="MPEG")
        frame.pts = 0
        frame.colorspace = 2  # unspecified
        out.mux(stream.encode(frame))
        out.mux(stream.encode())

    found = VideoReader(tmp_path / "v.mp4").read(0)

    # The compression makes an error below 1 level. If the reader took the other standard of
    # colours, the error would be several levels.
    assert mean_error(found, image) < 1


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        pytest.param({"x264-params": "transfer=smpte2084"}, "the film is HDR (PQ)", id="PQ"),
        pytest.param({"x264-params": "transfer=arib-std-b67"}, "the film is HDR (HLG)", id="HLG"),
        pytest.param({"x264-params": "tff=1"}, "the film is interlaced", id="two fields per frame"),
    ],
)
def test_a_film_that_is_hdr_or_interlaced_is_named(tmp_path, caplog, options, warning):
    noise_film(tmp_path / "v.mp4", count=3, options=options)

    VideoReader(tmp_path / "v.mp4")

    assert f"{tmp_path / 'v.mp4'}: {warning}" in caplog.text


def test_a_usual_film_gives_no_warning(tmp_path, caplog):
    noise_film(tmp_path / "v.mp4", count=3, options={})

    VideoReader(tmp_path / "v.mp4")

    assert not caplog.messages


# ---- Files that are no film, or a strange one ----


def test_a_film_whose_size_changes_is_refused_with_both_sizes(tmp_path):
    write_film_of_two_sizes(tmp_path / "v.ts", picture(96, 128), picture(64, 96))

    message = r"frame 3 is 96 x 64, the frames before are 128 x 96(?s:.*)v\.ts"
    with pytest.raises(DataError, match=message):
        VideoReader(tmp_path / "v.ts")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        # FFmpeg would take this text for a list of films, and would open any file that it names.
        pytest.param("list.avi", "ffconcat version 1.0\nfile secret.mp4\n", id="list of films"),
        pytest.param("text.avi", "text\n" * 5000, id="text"),
    ],
)
def test_a_text_is_no_film_whatever_its_name(tmp_path, name, content):
    noise_film(tmp_path / "secret.mp4", count=3)
    (tmp_path / name).write_text(content)

    with pytest.raises(DataError, match=f"(?s)not a video.*{name}"):
        VideoReader(tmp_path / name)


@pytest.mark.parametrize("name", ["12:30:05.mp4", "v%03d.mp4", "concat:a|b.mp4"])
def test_a_name_that_looks_like_an_address_is_a_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with VideoWriter(name, fps=25) as video:
        video.write(picture())

    assert VideoReader(name).num_frames == 1


def test_a_film_whose_table_of_names_is_damaged_is_read(tmp_path):
    noise_film(tmp_path / "v.mkv", count=3)
    content = (tmp_path / "v.mkv").read_bytes()
    # The new bytes are no text in UTF-8.
    (tmp_path / "w.mkv").write_bytes(content.replace(b"libx264", b"\xff\xfe\xfdx264"))

    assert VideoReader(tmp_path / "w.mkv").num_frames == 3


def huge_gif() -> bytes:
    """Return a GIF of a few bytes that says to have 65535 x 65535 pixels."""
    # Width and height have two bytes each.
    size = b"\xff\xff\xff\xff"
    # Three bytes of settings, all 0: there is no table of colours.
    header = b"GIF89a" + size + bytes(3)
    # "," begins a picture. It has a place (0, 0), a size, a byte of settings, and almost no data.
    # ";" ends the file.
    image = b"," + bytes(4) + size + b"\0\x02\x02L\x01\0;"
    return header + image


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("v.gif", huge_gif(), id="GIF"),
        # 16000 x 8000 are 128 million pixels.
        pytest.param(
            "v.y4m", b"YUV4MPEG2 W16000 H8000 F25:1 C420\nFRAME\n" + bytes(100), id="YUV4MPEG"
        ),
    ],
)
def test_a_small_film_of_huge_frames_is_refused_before_memory_is_taken(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)

    assert_refused(
        "utils.video.reader.VideoReader",
        tmp_path / name,
        by="DataError",
        saying="67 million pixels",
    )


def test_a_film_that_became_shorter_names_the_first_frame_that_is_missing(tmp_path):
    film = tmp_path / "film.mp4"
    noise_film(film, count=8)
    reader = VideoReader(film)  # counts the frames, and reads none
    noise_film(film, count=4)  # somebody replaces the film

    with pytest.raises(DataError) as caught:
        reader.read(6)

    assert caught.value.what.startswith("frame 4 of 8 cannot be decoded")


# ---- Writing ----


def test_a_video_that_lost_bytes_while_it_was_written_is_refused(tmp_path):
    with (
        pytest.raises(DataError, match="cannot write"),
        VideoWriter(tmp_path / "v.mp4", fps=10) as video,
    ):
        # With so many frames, the encoder has already written the first frames to the file.
        for _ in range(60):
            video.write(np.zeros((16, 16, 3), np.uint8))
        (unfinished,) = tmp_path.iterdir()
        unfinished.write_bytes(b"")  # like a disk that has lost the data

    assert list(tmp_path.iterdir()) == []
