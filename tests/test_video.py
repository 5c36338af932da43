import gc
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tests.clip_files import picture, write_video
from utils.errors import DataError
from utils.video import VideoReader, VideoWriter

FULL_DISK = """
import resource, signal, sys
sys.path.insert(0, {root!r})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
import numpy as np
from utils.errors import DataError
from utils.video import VideoWriter
noise = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
try:
    with VideoWriter({path!r}, 25) as video:
        for _ in range(8):
            video.write(noise)
except DataError as e:
    print(e)
    sys.exit(3)
"""


def test_a_full_disk_leaves_no_video_that_looks_finished(tmp_path, pytestconfig):
    script = FULL_DISK.format(root=str(pytestconfig.rootpath), path=str(tmp_path / "out.mp4"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)

    assert done.returncode == 3, done.stderr
    assert "out." in done.stdout and "free some space" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_video_keeps_its_frames_and_frame_rate(tmp_path):
    write_video(tmp_path / "v.mp4")
    video = VideoReader(tmp_path / "v.mp4")
    assert (video.num_frames, video.fps) == (6, 12.5)
    for index in (0, 1, 4, 2, 5, 5, 4, 3, 0):  # forwards, with a gap, and back
        assert np.abs(video.read(index).astype(int) - picture(seed=index)).mean() < 12
    assert [p.name for p in tmp_path.iterdir()] == ["v.mp4"]


def test_a_dropped_reader_closes_its_file_without_the_garbage_collector(tmp_path):
    # Otherwise a forked loader worker may collect it, and wait for decoder threads that it does not have.
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
    # Of a phone: 23.976 a second, a gap, then faster. Sides are odd, and the texture is one pixel fine.
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
    assert found.shape == (36, 46, 3) and np.abs(found[:35, :45].astype(int) - image).mean() < 4


def test_a_video_of_a_phone_held_upright_is_read_upright(tmp_path):
    write_video(tmp_path / "v.mp4", count=2)
    content = (tmp_path / "v.mp4").read_bytes()
    # The display matrix of the track: a quarter turn clockwise instead of the identity.
    one, matrix = 0x10000, content.index(b"tkhd") + 4 + 40
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
