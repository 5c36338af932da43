"""What the files of a stranger may ask of the machine, see scripts/parts/uploaded_clip.py.

On the page of app.py anybody can give files and options. `start_work` checks them and starts a
restoration in a process of its own.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.parts.uploaded_clip import MOST_BYTES, MOST_FRAMES, Work, start_work
from tests.dist.launching import ROOT
from tests.helpers.clip_files import picture, write_dat, write_video
from tests.helpers.textured_clips import make_textured_home
from utils.errors import DataError, OptionError
from utils.image import imwrite_rgb


def started(folder: Path, frames: list[Path], spikes: Sequence[Path] = (), **changes: Any) -> Work:
    """Start a restoration as the page does. changes: fields of the page to fill in otherwise."""
    asked: dict[str, Any] = {
        "frames": [str(path) for path in frames],
        "spikes": [str(path) for path in spikes],
        "sharp": None,
        "method": "network",
        "weights": "operator",
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


def test_more_frames_and_larger_ones_than_allowed_are_refused(tmp_path, frame):
    frames = [tmp_path / f"{number:03d}.png" for number in range(MOST_FRAMES + 1)]
    for path in frames:
        shutil.copyfile(frame, path)
    with pytest.raises(DataError, match=f"{MOST_FRAMES + 1} frames of 48 x 64"):
        started(tmp_path / "long", frames)
    imwrite_rgb(tmp_path / "wide.png", picture(1100, 2000))
    with pytest.raises(DataError, match="1 frames of 1100 x 2000"):
        started(tmp_path / "wide", [tmp_path / "wide.png"])


def test_more_bytes_than_allowed_are_refused_before_they_are_read(tmp_path, frame):
    (tmp_path / "clip.dat").touch()
    os.truncate(tmp_path / "clip.dat", MOST_BYTES)
    with pytest.raises(DataError, match="MB of files"):
        started(tmp_path / "many", [frame], [tmp_path / "clip.dat"])


def test_an_option_names_no_file_of_the_machine_and_no_flag(tmp_path, frame):
    for number, more in enumerate(("spike.calibration=/etc/passwd", "--opt x", "path.root=out")):
        with pytest.raises(OptionError, match="cannot set"):
            started(tmp_path / str(number), [frame], more=more)


def test_two_files_of_one_name_and_no_frames_are_refused(tmp_path, frame):
    with pytest.raises(DataError, match="two files with the same name"):
        started(tmp_path / "twice", [frame, frame])
    with pytest.raises(OptionError, match="no frames"):
        started(tmp_path / "none", [])


def test_an_option_of_the_page_reaches_the_program_which_refuses_it_in_its_words(tmp_path):
    home = make_textured_home(tmp_path / "home")
    frames = sorted((home / "GOPRO_Large/test/clip0/blur").iterdir())
    spikes = sorted((home / "GOPRO_Large_spike_seq/test/clip0/spike").iterdir())
    work = started(tmp_path / "work", frames, spikes, method="tfp", more="method.half_windw=3")

    assert work.process.wait(120) == 2
    assert "half_windw" in work.messages()
    assert str(tmp_path) not in work.messages()


def test_a_rate_that_nobody_gives_is_asked_for_and_one_that_is_given_is_used(tmp_path):
    home = make_textured_home(tmp_path / "home")
    frames = sorted((home / "GOPRO_Large/test/clip0/blur").iterdir())
    spikes = sorted((home / "GOPRO_Large_spike_seq/test/clip0/spike").iterdir())
    said = []
    for name, rate in (("unknown", 0.0), ("known", 0.6)):
        work = started(tmp_path / name, frames, spikes, method="tfp", rate=rate)
        assert work.process.wait(120) == 0, work.messages()
        said.append(work.messages())

    assert "give spike.rate" in said[0]
    assert "give spike.rate" not in said[1]


def names_of_weights() -> list[Any]:
    """Return the names of the shipped weights.

    `make test` restores with "operator". The others take the same way, so they are marked `slow`.
    """
    found = []
    for path in sorted((ROOT / "weights").glob("*.pth")):
        marks = () if path.stem == "operator" else pytest.mark.slow
        found.append(pytest.param(path.stem, marks=marks))
    return found


@pytest.mark.parametrize("weights", names_of_weights())
def test_all_shipped_weights_restore_by_name(tmp_path, weights):
    home = make_textured_home(tmp_path / "home")
    frames = sorted((home / "GOPRO_Large/test/clip0/blur").iterdir())
    spikes = sorted((home / "GOPRO_Large_spike_seq/test/clip0/spike").iterdir())
    info = home / "GOPRO_Large_spike_seq/dataset.json"
    work = started(tmp_path / "work", frames, [*spikes, info], weights=weights)

    assert work.process.wait(120) == 0, work.messages()
    assert len(work.restored()) == len(frames)


def test_a_film_with_one_spike_file_is_restored_also_as_a_film(tmp_path, frame):
    write_video(tmp_path / "film.mp4", 4, 10, height=96, width=96)
    light = np.full((160, 48, 48), 0.3)
    drawn = np.random.default_rng(0).random(light.shape) < light
    write_dat(tmp_path / "clip.dat", drawn.astype(np.uint8))
    planes = 'spike.exposure={"start": 0, "length": 40, "period": 40}\nspike.flip=false'
    size = {"height": 48, "width": 48, "more": planes}
    work = started(tmp_path / "work", [tmp_path / "film.mp4"], [tmp_path / "clip.dat"], **size)

    assert work.process.wait(120) == 0, work.messages()
    assert len(work.restored()) == 4
    assert (work.results / "film.mp4").is_file()


def test_a_clip_that_is_cancelled_leaves_no_process_and_no_file(tmp_path, frame):
    work = started(tmp_path / "work", [frame])
    work.remove()
    assert work.process.returncode is not None
    assert not work.folder.exists()
