"""Films are read as players show them: upright, without covers, in their shape and colours."""

from fractions import Fraction

import av
import numpy as np
import pytest

from tests.helpers.clip_files import picture, write_dat
from tests.helpers.film_files import (
    write_film_of_two_sizes,
    write_film_with_cover,
    write_turned_film,
)
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
