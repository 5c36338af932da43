"""scripts/parts/uploaded_clip.py: which files and options of an unknown user are allowed.

On the page of app.py anybody can give files and options. `start_work` checks them and starts a
restoration in a process of its own: main_test_vrt.py in a new folder. A `Work` is this process,
with its messages and its results.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.parts.uploaded_clip import MOST_BYTES, MOST_FRAMES, MOST_PIXELS, Work, start_work
from tests.dist.launching import ROOT, fork_client_variable, write_python
from tests.helpers.clip_files import picture, write_dat, write_video
from tests.helpers.textured_clips import make_textured_home
from utils.errors import DataError, OptionError
from utils.image import imwrite_rgb

# Exit code of main_test_vrt.py if an option must be changed.
EXIT_CHANGE_OPTIONS = 2
# Seconds until a restoration must have ended. A restoration takes less than ten on an idle machine.
LIMIT_S = 120


def start_restoration(
    folder: Path, frames: list[Path], spikes: Sequence[Path] = (), **changes: Any
) -> Work:
    """Start a restoration as the page of app.py does.

    changes: the fields of the page that a user fills in. The other fields keep the values with
        which the page begins, e.g. 0 for a height that is not given.
    """
    asked: dict[str, Any] = {
        "frames": [str(path) for path in frames],
        "spikes": [str(path) for path in spikes],
        "sharp": None,
        "method": "network",
        "weights": "operator",  # the shipped weights/operator.pth
        "height": 0,
        "width": 0,
        "rate": 0.0,
        "more": "",
    }
    folder.mkdir()
    return start_work(folder, **(asked | changes))


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the file of a picture of 48 x 64."""
    path = tmp_path_factory.mktemp("frames") / "000.png"
    imwrite_rgb(path, picture())
    return path


@dataclass(frozen=True)
class Clip:
    """The files of a clip of moving textures."""

    frames: list[Path]  # the blurry frames
    spikes: list[Path]  # one spike file for each frame
    info: Path  # dataset.json, which says the rate of the spikes


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Clip:
    """Give a clip with frames, spikes and dataset.json."""
    home = make_textured_home(tmp_path_factory.mktemp("home"))
    return Clip(
        frames=sorted((home / "GOPRO_Large/test/clip0/blur").iterdir()),
        spikes=sorted((home / "GOPRO_Large_spike_seq/test/clip0/spike").iterdir()),
        info=home / "GOPRO_Large_spike_seq/dataset.json",
    )


# ---- What is refused before a process starts ----


def test_more_frames_than_allowed_are_refused(tmp_path, frame):
    frames = [tmp_path / f"{number:03d}.png" for number in range(MOST_FRAMES + 1)]
    for path in frames:
        shutil.copyfile(frame, path)

    with pytest.raises(DataError, match=f"{MOST_FRAMES + 1} frames of 48 x 64"):
        start_restoration(tmp_path / "work", frames)


def test_a_larger_frame_than_allowed_is_refused(tmp_path):
    width = 2000
    height = MOST_PIXELS // width + 1  # one row more than is allowed
    imwrite_rgb(tmp_path / "wide.png", picture(height, width))

    with pytest.raises(DataError, match=f"1 frame of {height} x {width}"):
        start_restoration(tmp_path / "work", [tmp_path / "wide.png"])


def test_more_bytes_than_allowed_are_refused_before_they_are_read(tmp_path, frame):
    # This file has exactly the allowed size, but takes no room on the disk. Together with the
    # frame, the files are too large.
    (tmp_path / "clip.dat").touch()
    os.truncate(tmp_path / "clip.dat", MOST_BYTES)

    with pytest.raises(DataError, match="MB of files"):
        start_restoration(tmp_path / "work", [frame], [tmp_path / "clip.dat"])


@pytest.mark.parametrize(
    "option",
    [
        pytest.param("spike.calibration=/etc/passwd", id="a file of the machine"),
        pytest.param("--opt x", id="a flag"),
        pytest.param("path.root=out", id="a folder to write to"),
    ],
)
def test_an_option_names_no_file_of_the_machine_and_no_flag(tmp_path, frame, option):
    with pytest.raises(OptionError, match="cannot set"):
        start_restoration(tmp_path / "work", [frame], more=option)


def test_two_files_of_one_name_are_refused(tmp_path, frame):
    with pytest.raises(DataError, match="two files with the same name"):
        start_restoration(tmp_path / "work", [frame, frame])


def test_a_clip_without_frames_is_refused(tmp_path):
    with pytest.raises(OptionError, match="no frames"):
        start_restoration(tmp_path / "work", [])


# ---- What the program does ----


@pytest.fixture
def forks(tmp_path, monkeypatch) -> None:
    """Let each restoration begin as a fork of a process that has imported torch already.

    A fork saves the seconds of the import. The test of a film below does not use this fixture. So
    one restoration begins as it does for a user.
    """
    fork_client_variable()  # starts the fork server, whose address os.environ then has
    # `write_python` writes a command that runs a script as `python` does, but in a fork.
    monkeypatch.setattr(sys, "executable", str(write_python(tmp_path / "bin" / "python")))


# `clip` has frames, spikes and dataset.json.
@pytest.mark.usefixtures("forks")
def test_an_option_of_the_page_is_refused_in_the_words_of_the_program(tmp_path, clip):
    # "half_windw" is a typing error. "tfp" is a formula that needs no network.
    work = start_restoration(
        tmp_path / "work", clip.frames, clip.spikes, method="tfp", more="method.half_windw=3"
    )

    assert work.process.wait(LIMIT_S) == EXIT_CHANGE_OPTIONS
    assert "half_windw" in work.messages()
    # An unknown user must not learn the names of folders of the machine.
    assert str(tmp_path) not in work.messages()


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("rate", "is_asked_for"),
    [pytest.param(0.0, True, id="no rate"), pytest.param(0.6, False, id="a rate")],
)
def test_a_rate_is_asked_for_if_nobody_gives_it(tmp_path, clip, rate, is_asked_for):
    # Without dataset.json the rate of the spikes is not known. 0 in the page means: not given.
    work = start_restoration(tmp_path / "work", clip.frames, clip.spikes, method="tfp", rate=rate)

    assert work.process.wait(LIMIT_S) == 0, work.messages()
    assert ("give spike.rate" in work.messages()) == is_asked_for


# This test is slow. For `make test`, one name is enough: the test of a film below restores by
# "operator", the default of `start_restoration`.
@pytest.mark.slow
@pytest.mark.parametrize("weights", sorted(path.stem for path in (ROOT / "weights").glob("*.pth")))
def test_all_shipped_weights_restore_by_name(tmp_path, clip, weights):
    work = start_restoration(
        tmp_path / "work", clip.frames, [*clip.spikes, clip.info], weights=weights
    )

    assert work.process.wait(LIMIT_S) == 0, work.messages()
    assert len(work.restored()) == len(clip.frames)


def test_a_film_with_one_spike_file_gives_restored_frames_and_a_film(tmp_path):
    write_video(tmp_path / "film.mp4", count=4, fps=10, height=96, width=96)
    # The file has 40 planes of 48 x 48 for each of 4 frames. A pixel fires with a probability of
    # 0.3.
    spikes = np.random.default_rng(0).random((160, 48, 48)) < 0.3
    write_dat(tmp_path / "clip.dat", spikes.astype(np.uint8))
    options = 'spike.exposure={"start": 0, "length": 40, "period": 40}\nspike.flip=false'

    work = start_restoration(
        tmp_path / "work",
        [tmp_path / "film.mp4"],
        [tmp_path / "clip.dat"],
        height=48,
        width=48,
        more=options,
    )

    assert work.process.wait(LIMIT_S) == 0, work.messages()
    assert len(work.restored()) == 4
    assert (work.results / "film.mp4").is_file()


# ---- Cancelling ----


@pytest.fixture(scope="module")
def cancelled_restoration(tmp_path_factory, frame) -> Work:
    """Give a restoration that was cancelled at once."""
    work = start_restoration(tmp_path_factory.mktemp("cancelled") / "work", [frame])
    work.remove()
    return work


def test_a_clip_that_is_cancelled_leaves_no_process(cancelled_restoration):
    assert cancelled_restoration.process.returncode is not None  # None: it still runs


def test_a_clip_that_is_cancelled_leaves_no_file(cancelled_restoration):
    assert not cancelled_restoration.folder.exists()
