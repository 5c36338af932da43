"""One restoration of files that somebody uploaded: its limits, its command line, its process."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data.cameras.spike_info import FILE_NAME, spike_errors_as_data_errors
from data.clips.clip_reader import spike_files
from data.clips.files import FrameSource
from models.restore.request import JOINT, SHIPPED
from scripts import spike_tool
from utils.errors import DataError, OptionError

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "main_test_vrt.py"
NETWORK = "network"
# Name on the page -> --weights. Of the released networks those that deblur without further input.
WEIGHTS = {path.stem: f"weights/{path.name}" for path in sorted(SHIPPED.parent.glob("*.pth"))}
WEIGHTS |= {name: name for name in ("vrt/005", "vrt/006", "vrt/007")}
# What a stranger may ask of the machine: bytes of a file and of all files, frames and their pixels.
MOST_FILE, MOST_BYTES = 256 * 2**20, 512 * 2**20
MOST_FRAMES, MOST_PIXELS = 120, 1920 * 1088
# An option has no "/", so that it names no file outside of this project.
OPTION = re.compile(r"(?:spike|method)(?:\.\w+)+=[\w.,+\-\[\]{}:\"' ]*")


@dataclass
class Work:
    """One restoration: the folder of its files, the blurry frames, and the process."""

    folder: Path
    frames: FrameSource
    process: subprocess.Popen[bytes]
    is_cancelled: bool = False

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def restored(self) -> list[Path]:
        """Return the restored frames, in the order of the blurry ones."""
        found = {path.stem: path for path in self.results.glob("*/*.png")}
        return [found[stem] for stem in self.frames.stems if stem in found]

    def messages(self) -> str:
        """Return what the program has said, with names of files as they were uploaded."""
        text = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
        return as_uploaded(text, self.folder)

    def cancel(self) -> None:
        self.is_cancelled = True
        self.process.kill()
        self.process.wait()

    def remove(self) -> None:
        self.cancel()
        shutil.rmtree(self.folder, ignore_errors=True)


def start_work(
    folder: Path,
    frames: Sequence[str] | None,
    spikes: Sequence[str] | None,
    sharp: Sequence[str] | None,
    method: str,
    weights: str,
    height: int,
    width: int,
    rate: float,
    more: str,
) -> Work:
    """Start main_test_vrt.py on uploaded files. Raises SpikeVRTError.

    folder: for the files of this restoration. frames, spikes, sharp: the files, None without any.
    height, width, rate: 0 for what is to be found.
    """
    refuse_size([*(frames or ()), *(spikes or ()), *(sharp or ())])
    if not frames:
        raise OptionError("no frames", "the page", "a blurry film, or frames", "give the files")
    blurry = placed(frames, folder / "clip/blur")
    source = FrameSource(blurry)
    frame_size = source.read(0).shape[:2]
    refuse_long(source, frame_size)
    command: list[str | int | Path]
    command = ["--input", blurry, "--output", folder / "results", "--save", "frames", "comparison"]
    command += ["video"] if source.is_video else []
    if spikes:
        recorded = placed(spikes, folder / "clip/spike")
        size = [height, width] if height or width else found_size(recorded, frame_size)
        command += ["--spike", recorded]
        command += ["--spike-size", *size] if size else []
    command += ["--gt", placed(sharp, folder / "clip/sharp")] if sharp else []
    command += ["--method", method] if method != NETWORK else []
    command += ["--weights", WEIGHTS[weights]] if method in (NETWORK, JOINT) else []
    command += [f"spike.rate={rate}"] if rate else []
    command += [checked_option(option) for option in more.splitlines() if option]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *map(str, command)],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    return Work(folder, source, process)


def placed(files: Sequence[str], folder: Path) -> Path:
    """Copy uploaded files to a folder. Return it, or the only file. Raises DataError."""
    folder.mkdir(parents=True)
    for file in files:
        path = folder / Path(file).name
        if path.exists():
            raise DataError(
                "two files with the same name", path.name, "names that differ", "rename one"
            )
        shutil.copyfile(file, path)
    others = [path for path in folder.iterdir() if path.name != FILE_NAME]
    return others[0] if len(others) == 1 else folder


def found_size(spikes: Path, picture: tuple[int, int]) -> tuple[int, int] | None:
    """Return height and width of a spike plane as `spike_tool.py info` finds them.

    picture: height and width of a frame. Returns None if the program finds them itself, or nobody
    can without doubt.
    """
    files = spike_files(spikes)
    if not files:
        return None
    with spike_errors_as_data_errors():
        ranking = spike_tool.Ranking(spike_tool.parse(["info", str(files[0])]), picture)
    return None if ranking.is_given or not ranking.is_clear else ranking.shown[0].file.size


def checked_option(option: str) -> str:
    if OPTION.fullmatch(option) is None:
        raise OptionError(
            what=f"cannot set {option}",
            where="the options",
            expected="spike.key=value or method.key=value, without the name of a file",
            do="correct it, or use main_test_vrt.py",
        )
    return option


def refuse_size(files: Sequence[str]) -> None:
    size = sum(os.stat(file).st_size for file in files)
    if size > MOST_BYTES:
        raise DataError(
            what=f"{size / 2**20:.0f} MB of files",
            where="the upload",
            expected=f"at most {MOST_BYTES / 2**20:.0f} MB",
            do="give a part of the clip, or use main_test_vrt.py, which has no such limit",
        )


def refuse_long(source: FrameSource, size: tuple[int, int]) -> None:
    height, width = size
    if len(source) > MOST_FRAMES or height * width > MOST_PIXELS:
        raise DataError(
            what=f"{len(source)} frames of {height} x {width}",
            where=source.path.name,
            expected=f"at most {MOST_FRAMES} frames, of at most {MOST_PIXELS} pixels",
            do="give a part of the clip, or use main_test_vrt.py, which has no such limit",
        )


def as_uploaded(text: str, folder: Path) -> str:
    """Return a text with names of files as they were uploaded."""
    return text.replace(f"{folder / 'clip'}/", "").replace(f"{folder}/", "")
