"""Open a clip that has spikes but no frames. Its blurry frames are made from the spikes.

data/own_clips.py calls `spike_clip` if main_test_vrt.py restores by a formula, and --spike is given
without --input. The formula then restores from the same spikes.

What must stay: the values of `LongExposures`, because reports show them beside the restored frames.

Tests: tests/stories/test_reconstruct.py
"""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from data.cameras.spike_errors import spike_errors_as_data_errors
from data.cameras.spike_source import SPIKE_SOURCES, DatSpikes
from data.clips.clip_reader import UserClips
from data.clips.readers import DatasetClip
from data.clips.user_clip import user_clip
from data.clips.user_frames import UserFrames
from data.clips.user_spike_files import section_and_info, spike_files
from data.spike.formats import FORMATS, count_planes, open_spikes
from data.spike.pictures import to_display, to_uint8
from utils.errors import DataError
from utils.user_path import expand_path

# If the firing rate at full light is unknown, this percentage of the pixels is darker than white.
# With 100, one bright or defective pixel could make the whole picture dark. With a much smaller
# value, bright parts of the scene would all become white. Chosen by hand.
WHITE_PERCENTILE = 99.5
# Smallest firing rate that counts as white, in spikes per plane. All rates are divided by the rate
# of white, so this rate must not be 0. This limit only has an effect if a clip has nearly no
# spikes.
LEAST_WHITE = 1e-6


class LongExposures(UserFrames):
    """Frames that are made of spikes, for a clip that has spikes but no frames.

    A plane is one read-out of the spike camera, with one bit for each pixel. A frame is the mean of
    its planes, in grey. Each spike file gives one frame. If the option spike.exposure is set, there
    is one file, and each exposure in this file gives one frame.

    The brightness follows from the rate, the spikes per plane at full light. If the rate is
    unknown, the brightest pixels of the first frame are white.

    `user_clip` gets this object in place of the `FrameSource` of other clips. The two classes are
    subclasses of `UserFrames` (data/clips/user_frames.py).
    """

    def __init__(self, path: Path, clip: str, source: DatSpikes) -> None:
        """List the frames. Raises DataError if there is no spike file.

        path: the spike file or the folder of spike files.
        clip: name of the clip.
        source: settings that say how the spikes are read.
        """
        self.path = path
        # These are the other attributes of `UserFrames`. Frames from spikes come from no video, so
        # they have no times.
        self.fps = None
        self.times = None
        self.pixel_aspect = Fraction(1)
        self.is_video = False
        self._clip = clip
        self._source = source
        files = spike_files(path)
        if not files:
            raise DataError(
                what="the folder holds no spikes",
                where=str(path),
                expected=", ".join(FORMATS),
                do="correct --spike",
            )
        # The file and the name of each frame.
        if source.timing.has_exposures:  # one file has all frames, named "000000", "000001", ...
            frame_count = self._frames_in(files[0])
            # The one file once for each frame: [file] * 3 is [file, file, file].
            self.files = files * frame_count
            self.stems = [f"{frame:06d}" for frame in range(frame_count)]
        else:
            self.files = files
            self.stems = [file.stem for file in files]
        self.size = (source.geometry.height, source.geometry.width)
        # `_rate_of_white` may read the first frame, so all other attributes must be set before.
        self._white_rate = self._rate_of_white()

    def __len__(self) -> int:
        return len(self.stems)

    def _frames_in(self, file: Path) -> int:
        """Return how many frames the option spike.exposure finds in a spike file."""
        source = self._source
        with spike_errors_as_data_errors():
            # remainder: what is done with bytes after the last whole plane, "error" or "truncate"
            # (the option spike.remainder).
            planes = count_planes(file, source.geometry, source.remainder)
        return source.timing.frames(self._clip, planes)

    def _rate_of_white(self) -> float:
        """Return the spikes per plane of a white pixel."""
        rate = self._source.rate
        if rate != "match":  # the rate is known
            return rate
        # "match" measures the rate from frames, but this clip has no frames. So the brightest
        # pixels of the first frame are white.
        rates_of_first_frame = self._firing_rates(0)
        brightest = float(np.percentile(rates_of_first_frame, WHITE_PERCENTILE))
        return max(brightest, LEAST_WHITE)

    def _firing_rates(self, index: int) -> np.ndarray:
        """Return the spikes per plane of each pixel of frame `index`, (H, W) float32."""
        source = self._source
        with spike_errors_as_data_errors():
            file = open_spikes(self.files[index], source.geometry, source.remainder)
            span = source.timing.span(self._clip, index, file.planes)  # the planes of this frame
            planes = file.read(span.first, span.count)  # (T, H, W)
            return planes.mean(axis=0, dtype=np.float32)

    def read(self, index: int) -> np.ndarray:
        """Return frame `index` as (H, W, 3) uint8 RGB."""
        values = self._firing_rates(index) / self._white_rate  # 1 is white
        # The frame gets display values. If the spikes have integrated linear light, as in a real
        # camera, the light is converted. If the spikes have integrated display values, as simulated
        # spikes may have, nothing is converted.
        if self._source.light == "linear":
            values = to_display(values)
        grey = to_uint8(values)  # (H, W)
        return np.repeat(grey[..., None], 3, axis=2)


def spike_clip(path: str | Path, gt: str | Path | None, section: Any) -> DatasetClip:
    """Return the reader of a clip of spikes without frames. Its blurry frames are `LongExposures`.

    path: a folder with one spike file per frame, or one file. One file is a single frame. With
    spike.exposure, one file has several frames: a frame for each exposure that the table of
    exposures lists, or for each period that fits into the file.
    gt: a sharp picture for each frame.
    section: the section `spike` of the options.
    Raises DataError if spikes and sharp pictures do not belong together.
    """
    path = Path(expand_path(str(path)))
    if not path.exists():
        raise DataError(
            what="no such file or folder",
            where=str(path),
            expected="a spike file, or a folder of them",
            do="check --spike",
        )
    # The spikes of a data set are in <clip>/spike, so the name of the clip is one folder above.
    name = path.stem
    if path.name == "spike":
        name = path.resolve().parent.name
    # `section_and_info` completes the section by what a dataset.json beside the spikes says.
    section, info = section_and_info(section, path, name)
    source = SPIKE_SOURCES.build(section, "spike", info=info)
    frames = LongExposures(path, name, source)
    clip = user_clip(name, frames, gt=gt, spike=path, spikes=source)
    # A test set of this single clip has a single reader.
    [reader] = UserClips([clip]).readers()
    return reader
