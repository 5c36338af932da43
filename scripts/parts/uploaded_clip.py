"""Restore files that somebody uploaded to the page of app.py.

app.py calls `start_work` and then asks the `Work` for frames and messages. The restoration is a
process of main_test_vrt.py, so that it can be ended and has its own memory. The page may be open to
strangers, so this module limits the sizes of their files, and refuses options that could name a
file outside of this project.

The folder of a restoration:

    clip/blur, clip/spike, clip/sharp    the uploaded files, under their own names
    results                              what main_test_vrt.py writes
    log                                  what main_test_vrt.py prints

What must stay:

* every limit, because strangers fill in the page (test_more_frames_than_allowed_are_refused,
  test_an_option_names_no_file_of_the_machine_and_no_flag),
* the order of the arguments of `start_work`, because it is the order of the fields in app.py.

Free to change: the words of refusals.

Tests: tests/parts/scripts/test_uploaded_clip.py, tests/stories/test_app.py
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data.cameras.dataset_info import FILE_NAME
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.clips.user_frames import FrameSource
from data.clips.user_spike_files import spike_files
from models.restore.flags import JOINT
from models.restore.request import SHIPPED_WEIGHTS
from scripts.parts.spike_tool.spike_geometry import GeometryOptions
from scripts.parts.spike_tool.spike_ranking import Ranking
from utils.errors import DataError, OptionError
from utils.words import counted

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "main_test_vrt.py"
NETWORK = "network"  # the method on the page for which main_test_vrt.py gets no --method
# Name on the page -> value of --weights, e.g. "motion" -> "weights/motion.pth". The files in
# weights/ come first, so a new file in weights/ appears on the page. The released networks that
# deblur and need no spikes follow.
WEIGHTS = {
    path.stem: f"weights/{path.name}" for path in sorted(SHIPPED_WEIGHTS.parent.glob("*.pth"))
}
WEIGHTS |= {name: name for name in ("vrt/005", "vrt/006", "vrt/007")}
# Limits of what a stranger may upload. With larger limits, a visitor could use more disk, memory
# and time. The limits were chosen by judgement, and not measured.
MOST_BYTES_OF_FILE = 256 * 2**20  # app.py passes the number to gradio, which refuses larger files
MOST_BYTES = 512 * 2**20  # bytes of all files together
MOST_FRAMES = 120
MOST_PIXELS = 1920 * 1088  # pixels of a frame. Codecs round 1080 rows up to 1088
# An option of the page, e.g. "spike.exposure=[0, 20]" or "method.groups=8". Only these two sections
# may be set, and a value has no "/", so that it names no file outside of this project. E.g.
# "spike.calibration=/etc/passwd" does not match.
OPTION = re.compile(r"(?:spike|method)(?:\.\w+)+=[\w.,+\-\[\]{}:\"' ]*")


@dataclass
class Work:
    """One restoration that has been started."""

    folder: Path  # its files: clip/, results/ and log
    frames: FrameSource  # the blurry frames
    process: subprocess.Popen[bytes]  # runs main_test_vrt.py
    is_cancelled: bool = False  # whether the user ended it

    @property
    def results(self) -> Path:
        """Return the folder of the results. The folder may not exist yet."""
        return self.folder / "results"

    def restored(self) -> list[Path]:
        """Return the files of the restored frames so far, in the order of the blurry frames.

        A restored frame has the name of its blurry frame. The names are looked up in the order of
        the blurry frames, because sorted names can have another order, e.g. "10" before "2".
        """
        # In the results the frames are in a folder with the name of the clip: <clip>/<stem>.png.
        path_of_stem = {path.stem: path for path in self.results.glob("*/*.png")}
        return [path_of_stem[stem] for stem in self.frames.stems if stem in path_of_stem]

    def messages(self) -> str:
        """Return what the program has printed so far.

        Files have the names that the visitor knows, and not their paths on this machine.
        """
        text = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
        return as_uploaded(text, self.folder)

    def cancel(self) -> None:
        """End the process, and wait until it has ended. The process may have ended before.

        Test: test_a_clip_that_is_cancelled_leaves_no_process
        """
        self.is_cancelled = True
        self.process.kill()
        self.process.wait()

    def remove(self) -> None:
        """End the process and remove its folder, with the uploaded files."""
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
    """Start main_test_vrt.py on uploaded files. Raises SpikeVRTError if they are refused.

    The page gives the values of its fields in the order of these arguments, so the order must stay.
    A new field of the page needs its limit here, because strangers fill it in.

    folder: folder for the files of this restoration. It has no files yet.
    frames, spikes, sharp: paths of uploaded files, None without any. Only frames are needed.
    method: NETWORK, or a value of --method.
    weights: a key of WEIGHTS.
    height, width: size of a spike plane, 0 if it is to be found. A plane is one readout of the
        spike camera, a bit for each pixel.
    rate: spikes per plane at full light (spike.rate), 0 if it is to be found.
    more: options, one "key=value" per line.
    """
    # The size of all files together is checked before anything is copied or read.
    all_files = [*(frames or ()), *(spikes or ()), *(sharp or ())]
    refuse_size(all_files)
    if not frames:
        raise OptionError(
            what="no frames",
            where="the page",
            expected="a blurry film, or frames",
            do="give the files",
        )
    blurry = copy_to(frames, folder / "clip/blur")
    source = FrameSource(blurry)
    frame_size = source.read(0).shape[:2]
    refuse_long(source, frame_size)

    # The arguments of main_test_vrt.py. Each field of the page adds its flags, or none if it is
    # empty.
    command: list[str | int | Path]
    command = ["--input", blurry, "--output", folder / "results", "--save", "frames", "comparison"]
    if source.is_video:
        command.append("video")  # one more value of --save
    if spikes:
        command += spike_flags(copy_to(spikes, folder / "clip/spike"), height, width, frame_size)
    if sharp:
        command += ["--gt", copy_to(sharp, folder / "clip/sharp")]
    if method != NETWORK:
        command += ["--method", method]
    if method in (NETWORK, JOINT):  # the other methods have no weights
        command += ["--weights", WEIGHTS[weights]]
    if rate:
        command.append(f"spike.rate={rate}")
    for option in more.splitlines():
        if option:
            command.append(checked_option(option))
    return Work(folder, source, start_program(command, folder / "log"))


def spike_flags(
    spikes: Path, height: int, width: int, frame_size: tuple[int, int]
) -> list[str | int | Path]:
    """Return the flags of main_test_vrt.py for the spikes: --spike, and --spike-size if known.

    spikes: file or folder.
    height, width: as the visitor gave them. Both are 0 if the size is to be found. If only one is
        0, main_test_vrt.py refuses the size.
    frame_size: (height, width) of a blurry frame.
    """
    if height or width:
        size = (height, width)
    else:
        size = find_size(spikes, frame_size)
    if size is None:  # main_test_vrt.py finds the size, or says what is missing
        return ["--spike", spikes]
    return ["--spike", spikes, "--spike-size", *size]


def start_program(command: Sequence[str | int | Path], log_file: Path) -> subprocess.Popen[bytes]:
    """Start main_test_vrt.py with these arguments. Its output goes to a new file."""
    # The process gets its own handle of the open log, so the file can be closed here.
    with open(log_file, "wb") as log:
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), *map(str, command)],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def copy_to(files: Sequence[str], folder: Path) -> Path:
    """Copy uploaded files to a folder. Return the folder, or the file if there is only one.

    dataset.json does not count, because it only describes the spikes. E.g. a spike file and a
    dataset.json are copied, and the path of the spike file is returned. Raises DataError for two
    files of the same name.

    Test: test_two_files_of_one_name_are_refused
    """
    folder.mkdir(parents=True)
    for file in files:
        path = folder / Path(file).name
        if path.exists():
            raise DataError(
                what="two files with the same name",
                where=path.name,
                expected="names that differ",
                do="rename one",
            )
        shutil.copyfile(file, path)
    without_info = [path for path in folder.iterdir() if path.name != FILE_NAME]
    return without_info[0] if len(without_info) == 1 else folder


def find_size(spikes: Path, picture: tuple[int, int]) -> tuple[int, int] | None:
    """Return (height, width) of a spike plane, found from the length of the file.

    `spike_tool.py info` finds a size in the same way. Returns None in three cases:

        there is no spike file
        the file or dataset.json says the size, and main_test_vrt.py reads this size itself
        no size is clearly the best

    spikes: file or folder.
    picture: (height, width) of a frame. Only sizes of planes with about the same ratio of
        height to width are tried.
    """
    # All spike files of a clip have the same size, so the first one is enough.
    files = spike_files(spikes)
    if not files:
        return None
    with spike_errors_as_data_errors():
        ranking = Ranking(files[0], GeometryOptions(), picture)
    if ranking.is_given or not ranking.is_clear:
        return None
    best = ranking.shown[0]
    return best.file.size


def checked_option(option: str) -> str:
    """Return an option unchanged. Raises OptionError if the page may not set it.

    OPTION says what may be set. The check keeps strangers from naming files of this machine. If
    OPTION allows more, e.g. the character "/", a value could be the path of such a file.

    Test: test_an_option_names_no_file_of_the_machine_and_no_flag
    """
    if OPTION.fullmatch(option) is None:
        raise OptionError(
            what=f"cannot set {option}",
            where="the options",
            expected="spike.key=value or method.key=value, without the name of a file",
            do="correct it, or use main_test_vrt.py",
        )
    return option


def refuse_size(files: Sequence[str]) -> None:
    """Raise DataError if all files together have more than MOST_BYTES.

    Test: test_more_bytes_than_allowed_are_refused_before_they_are_read
    """
    size = sum(os.stat(file).st_size for file in files)
    if size > MOST_BYTES:
        raise DataError(
            what=f"{size / 2**20:.0f} MB of files",
            where="the upload",
            expected=f"at most {MOST_BYTES / 2**20:.0f} MB",
            do="give a part of the clip, or use main_test_vrt.py, which has no such limit",
        )


def refuse_long(source: FrameSource, size: tuple[int, int]) -> None:
    """Raise DataError for too many frames, or for too large frames. size: (height, width).

    Tests: test_more_frames_than_allowed_are_refused,
    test_a_larger_frame_than_allowed_is_refused
    """
    height, width = size
    if len(source) > MOST_FRAMES or height * width > MOST_PIXELS:
        raise DataError(
            what=f"{counted(len(source), 'frame')} of {height} x {width}",
            where=source.path.name,
            expected=f"at most {MOST_FRAMES} frames, of at most {MOST_PIXELS} pixels",
            do="give a part of the clip, or use main_test_vrt.py, which has no such limit",
        )


def as_uploaded(text: str, folder: Path) -> str:
    """Return a text with the names of files as they were uploaded.

    E.g. "<folder>/clip/blur/a.mp4" -> "blur/a.mp4". So messages do not show paths of the machine.
    """
    # Remove the longer path "<folder>/clip/" first. If "<folder>/" were removed first, "clip/"
    # would stay.
    without_clip_folder = text.replace(f"{folder / 'clip'}/", "")
    return without_clip_folder.replace(f"{folder}/", "")
