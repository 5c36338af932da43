"""Films are read as players show them: upright, without covers, in their shape and colours."""

import io
from fractions import Fraction

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
from utils.video import VideoReader, VideoWriter

# Display matrix (a, b, c, d) in quarter turns, and how NumPy makes the same of an image (H, W, 3).
ORIENTATIONS = {
    "as it is": ((1, 0, 0, 1), lambda image: image),
    "columns reversed": ((-1, 0, 0, 1), np.fliplr),
    "rows reversed": ((1, 0, 0, -1), np.flipud),
    "half a turn": ((-1, 0, 0, -1), lambda image: np.rot90(image, 2)),
    "a quarter turn clockwise": ((0, 1, -1, 0), lambda image: np.rot90(image, -1)),
    "a quarter turn counter-clockwise": ((0, -1, 1, 0), lambda image: np.rot90(image)),
    "rows and columns exchanged": ((0, 1, 1, 0), lambda image: image.swapaxes(0, 1)),
    "exchanged and turned": ((0, -1, -1, 0), lambda image: np.rot90(image.swapaxes(0, 1), 2)),
}


@pytest.mark.parametrize("name", ORIENTATIONS)
def test_a_turned_or_mirrored_film_is_read_as_players_show_it(tmp_path, name):
    matrix, shown = ORIENTATIONS[name]
    image = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    write_turned_film(tmp_path / "v.mp4", image, matrix)
    assert np.array_equal(VideoReader(tmp_path / "v.mp4").read(0), shown(image))


def test_a_cover_picture_is_no_frame_of_the_film(tmp_path):
    frames = [np.full((48, 64, 3), level, np.uint8) for level in (40, 120, 200)]
    write_film_with_cover(tmp_path / "v.mp4", picture(96, 96), frames)
    with av.open(str(tmp_path / "v.mp4")) as container:
        assert [stream.codec.name for stream in container.streams.video] == ["png", "h264"]

    video = VideoReader(tmp_path / "v.mp4")
    assert (video.num_frames, video.fps) == (3, 25)
    for number, frame in enumerate(frames):
        assert np.abs(video.read(number).astype(int) - frame).max() < 4


def test_a_sound_file_with_a_cover_holds_no_video(tmp_path):
    write_film_with_cover(tmp_path / "song.mp4", picture(), [])
    with pytest.raises(DataError, match=r"(?s)holds no video.*song\.mp4"):
        VideoReader(tmp_path / "song.mp4")


@pytest.mark.parametrize(("matrix", "shown"), [((1, 0, 0, 1), "4/3"), ((0, 1, -1, 0), "3/4")])
def test_pixels_that_are_not_square_keep_their_shape_when_a_film_is_copied(tmp_path, matrix, shown):
    with VideoWriter(tmp_path / "v.mp4", 25, pixel_aspect=Fraction(4, 3)) as video:
        video.write(picture())
    content = (tmp_path / "v.mp4").read_bytes()
    begin = content.index(b"tkhd") + 4 + 40
    one = 2**16
    a, b, c, d = (one * value for value in matrix)
    stored = np.array([a, b, 0, c, d, 0, 0, 0, 2**30], ">i4").tobytes()
    (tmp_path / "t.mp4").write_bytes(content[:begin] + stored + content[begin + 36 :])

    source = VideoReader(tmp_path / "t.mp4")
    assert source.pixel_aspect == Fraction(shown)
    with VideoWriter(tmp_path / "copy.mp4", 25, pixel_aspect=source.pixel_aspect) as video:
        video.write(source.read(0))
    assert VideoReader(tmp_path / "copy.mp4").pixel_aspect == Fraction(shown)


def test_square_pixels_are_left_unsaid(tmp_path):
    with VideoWriter(tmp_path / "v.mp4", 25) as video:
        video.write(picture())
    assert VideoReader(tmp_path / "v.mp4").pixel_aspect == 1


def test_a_film_whose_size_changes_is_refused_with_both_sizes(tmp_path):
    write_film_of_two_sizes(tmp_path / "v.ts", picture(96, 128), picture(64, 96))
    message = r"frame 3 is 96 x 64, those before are 128 x 96(?s:.*)v\.ts"
    with pytest.raises(DataError, match=message):
        VideoReader(tmp_path / "v.ts")


def test_the_videos_of_a_restored_film_have_its_pixels(tmp_path):
    with VideoWriter(tmp_path / "v.mp4", 25, pixel_aspect=Fraction(32, 27)) as video:
        for seed in range(2):
            video.write(picture(seed=seed))
    write_dat(tmp_path / "v.dat", np.zeros((48, 48, 64), np.uint8))
    args = ["--input", tmp_path / "v.mp4", "--spike", tmp_path / "v.dat", "--spike-size", 48, 64]
    restore("--method", "exposure", *args, "--output", tmp_path / "out")

    for name in ("v.mp4", "v_comparison.mp4"):
        assert VideoReader(tmp_path / "out" / name).pixel_aspect == Fraction(32, 27)


@pytest.mark.parametrize(
    ("size", "written"), [((720, 1280), "ITU709"), ((1280, 720), "ITU709"), ((480, 640), "ITU601")]
)
def test_colours_that_a_film_does_not_describe_are_those_of_its_size(tmp_path, size, written):
    height, width = size
    blocks = np.random.default_rng(0).integers(0, 256, (height // 16, width // 16, 3), np.uint8)
    image = np.kron(blocks, np.ones((16, 16, 1), np.uint8))
    with av.open(str(tmp_path / "v.mp4"), "w") as out:
        stream = out.add_stream("libx264", rate=25, options={"crf": "4", "preset": "ultrafast"})
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv444p"
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame = frame.reformat(format="yuv444p", dst_colorspace=written, dst_color_range="MPEG")
        frame.pts, frame.colorspace = 0, 2  # unspecified
        out.mux(stream.encode(frame))
        out.mux(stream.encode())
    assert np.abs(VideoReader(tmp_path / "v.mp4").read(0).astype(int) - image).mean() < 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"x264-params": "transfer=smpte2084"}, "the film is HDR (PQ)"),
        ({"x264-params": "transfer=arib-std-b67"}, "the film is HDR (HLG)"),
        ({"x264-params": "tff=1"}, "the film is interlaced"),
        ({}, ""),
    ],
)
def test_a_film_of_high_dynamic_range_or_of_two_fields_a_frame_is_said_to_be_one(
    tmp_path, caplog, options, said
):
    noise_film(tmp_path / "v.mp4", 3, options=options)
    VideoReader(tmp_path / "v.mp4")
    assert (f"{tmp_path / 'v.mp4'}: {said}" in caplog.text) if said else not caplog.messages


@pytest.mark.parametrize("name", ["list.avi", "text.avi"])
def test_a_list_of_films_and_a_text_are_no_film_whatever_their_names(tmp_path, name):
    noise_film(tmp_path / "secret.mp4", 3)
    content = "ffconcat version 1.0\nfile secret.mp4\n" if name == "list.avi" else "text\n" * 5000
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=f"(?s)not a video.*{name}"):
        VideoReader(tmp_path / name)


@pytest.mark.parametrize("name", ["12:30:05.mp4", "v%03d.mp4", "concat:a|b.mp4"])
def test_a_name_that_looks_like_an_address_is_a_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with VideoWriter(name, 25) as video:
        video.write(picture())
    assert VideoReader(name).num_frames == 1


def test_a_film_whose_table_of_names_is_damaged_is_read(tmp_path):
    noise_film(tmp_path / "v.mkv", 3)
    content = (tmp_path / "v.mkv").read_bytes()
    (tmp_path / "w.mkv").write_bytes(content.replace(b"libx264", b"\xff\xfe\xfdx264"))
    assert VideoReader(tmp_path / "w.mkv").num_frames == 3


def test_a_small_film_of_huge_frames_is_refused_before_it_takes_memory(tmp_path):
    screen = b"GIF89a" + b"\xff\xff" * 2 + bytes(3)
    image = b"," + bytes(4) + b"\xff\xff" * 2 + b"\0\x02\x02L\x01\0;"
    (tmp_path / "v.gif").write_bytes(screen + image)
    (tmp_path / "v.y4m").write_bytes(b"YUV4MPEG2 W16000 H8000 F25:1 C420\nFRAME\n" + bytes(100))
    for name in ("v.gif", "v.y4m"):
        reader = "utils.video.VideoReader"
        assert_refused(reader, tmp_path / name, by="DataError", saying="67 million pixels")


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, -1), (8, 1)])
def test_a_film_of_jpegs_with_exif_is_read_upright(tmp_path, orientation, turns):
    blocks = np.random.default_rng(0).integers(0, 256, (3, 4, 3), np.uint8)
    image = np.kron(blocks, np.ones((16, 16, 1), np.uint8))
    exif = Image.Exif()
    exif[0x112] = orientation
    jpeg = io.BytesIO()
    Image.fromarray(image).save(jpeg, "JPEG", exif=exif, quality=100, subsampling=0)
    with av.open(str(tmp_path / "v.mov"), "w") as out:
        stream = out.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj444p"
        stream.codec_context.color_range = 2
        for number in range(2):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame = frame.reformat(format="yuvj444p")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            for made in stream.encode(frame):
                packet = av.Packet(jpeg.getvalue())
                packet.pts, packet.dts, packet.time_base = made.pts, made.dts, made.time_base
                packet.stream = stream
                out.mux(packet)
    found = VideoReader(tmp_path / "v.mov").read(1)
    shown = np.rot90(image, turns)
    assert found.shape == shown.shape and np.abs(found.astype(int) - shown).mean() < 4
