import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch

from utils.utils_errors import DataError
from utils.utils_files import write_whole
from utils.utils_image import (
    LABEL_HEIGHT,
    VideoReader,
    VideoWriter,
    comparison_strip,
    error_picture,
    imwrite_rgb,
    list_images,
    spike_picture,
)


def picture(height=48, width=64, seed=0):
    rows, cols = np.mgrid[:height, :width]
    return np.stack((rows * 4 % 256, cols * 3 % 256, (rows + cols + 40 * seed) % 256), axis=2).astype(np.uint8)


def test_a_png_comes_back_as_it_went_out(tmp_path):
    imwrite_rgb(tmp_path / "a" / "x.png", picture())
    assert np.array_equal(cv2.imread(str(tmp_path / "a" / "x.png"))[..., ::-1], picture())
    assert [p.name for p in list_images(tmp_path / "a")] == ["x.png"]


def test_a_folder_without_images_is_named(tmp_path):
    with pytest.raises(DataError, match="holds no images"):
        list_images(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        list_images(tmp_path / "none")


FULL_DISK = """
import resource, signal, sys
sys.path.insert(0, {root!r})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
import numpy as np
from utils.utils_errors import DataError
from utils.utils_files import write_whole
from utils.utils_image import VideoWriter
noise = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
try:
    if {video}:
        with VideoWriter({path!r}, 25) as video:
            for _ in range(8):
                video.write(noise)
    else:
        write_whole({path!r}, noise.tobytes())
except DataError as e:
    print(e)
    sys.exit(3)
"""


@pytest.mark.parametrize("video", [False, True])
def test_a_full_disk_leaves_no_file_that_looks_finished(tmp_path, pytestconfig, video):
    path = tmp_path / ("out.mp4" if video else "out.bin")
    script = FULL_DISK.format(root=str(pytestconfig.rootpath), path=str(path), video=video)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)

    assert done.returncode == 3, done.stderr
    assert "out." in done.stdout and "free some space" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_write_whole_replaces_and_leaves_nothing_beside(tmp_path):
    write_whole(tmp_path / "x", b"one")
    write_whole(tmp_path / "x", b"two")
    assert [p.name for p in tmp_path.iterdir()] == ["x"] and (tmp_path / "x").read_bytes() == b"two"


def write_video(path, count=6, fps=12.5):
    with VideoWriter(path, fps) as video:
        for i in range(count):
            video.write(picture(seed=i))


def test_a_video_keeps_its_frames_and_frame_rate(tmp_path):
    write_video(tmp_path / "v.mp4")
    video = VideoReader(tmp_path / "v.mp4")
    assert (video.num_frames, video.fps) == (6, 12.5)
    for index in (0, 1, 4, 2, 5, 5, 4, 3, 0):  # forwards, with a gap, and back
        assert np.abs(video.read(index).astype(int) - picture(seed=index)).mean() < 12
    assert [p.name for p in tmp_path.iterdir()] == ["v.mp4"]


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


def test_a_strip_shows_what_there_is():
    lq, spike, restored = torch.rand(3, 20, 30), torch.rand(4, 20, 30), torch.rand(3, 40, 60)
    full = comparison_strip(lq, spike, restored, restored)
    assert full.shape == (40 + LABEL_HEIGHT, 5 * 60 + 4 * 2, 3) and full.dtype == np.uint8
    assert (full[LABEL_HEIGHT:, -60:] == 0).all()  # no error where restored is sharp
    assert comparison_strip(lq, None, restored, None, labels=False).shape == (40, 2 * 60 + 2, 3)


def test_error_and_spike_pictures():
    a = np.full((2, 2, 3), 100, np.uint8)
    assert (error_picture(a, a + 10) == 50).all() and (error_picture(a, a - 90) == 255).all()
    rate = torch.linspace(0, 0.4, 100).reshape(1, 10, 10).repeat(3, 1, 1)
    grey = spike_picture(rate)
    assert grey.shape == (10, 10, 3) and grey[0, 0, 0] == 0 and grey[-1, -1, 0] == 255
    assert (spike_picture(torch.zeros(2, 4, 4)) == 0).all()
