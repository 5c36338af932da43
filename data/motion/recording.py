"""Read what both cameras recorded of a clip, and measure the gain of its spike pixels.

    clip = RecordedClip(reader, context)

    clip.view               where the spike pixels lie on the frame (view.py)
    clip.read(frame)        the blurry frame and all spike planes around its exposure (exposure.py)
    clip.gain()             spikes per plane of each spike pixel at full light (gain.py)
    clip.gain_in(...)       the gain for one frame. It differs from the gain of the clip if the RGB
                            camera has changed its exposure time

A frame has H x W RGB pixels. A plane is one binary picture (h, w) of the spike camera. The planes
before and after an exposure are its context. With the context, the motion within the exposure is
found better. docs/python.md shows these calls to users, so their names and arguments must stay.

Tests: tests/parts/data/test_recording.py
"""

import numpy as np

from data.augment import Augment
from data.cameras.frame_planes import exposures_of, of_exposure
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.clip import Clip, Exposure
from data.clip_reading import Draw
from data.clips.readers import DatasetClip
from data.motion.exposure import Recording
from data.motion.gain import exposure_light, gain_in_exposure, gain_over_exposures
from data.motion.view import view_of
from data.spike.geometry import Crop
from utils.errors import DataError

# Largest number of frames of a clip from which the gain is measured. All planes of these frames are
# read once more, so a larger number takes longer. A smaller number gives a noisier gain. In usual
# light, a pixel has some hundred spikes in 16 exposures of 60 planes.
MOST_FRAMES = 16


class RecordedClip:
    """The recordings of a clip, one for each frame.

    reader: the clip.
    context: number of planes that are read before and after an exposure. If it is None, the number
    is half of the planes of the longest exposure. At the beginning and at the end of a clip, fewer
    planes are read, or none.

    Raises DataError if the clip has no spikes.
    """

    def __init__(self, reader: DatasetClip, context: int | None) -> None:
        clip = reader.clip
        if not clip.spikes:
            raise DataError(
                what=f"clip {clip.name} has no spikes",
                where="spike",
                expected="the spikes of each exposure",
                do="add them, or choose a method that needs none",
            )
        # `reader.dataset` is a `TestClips`, or for --input a `UserClips`
        # (data/clips/clip_reader.py), which reads files and simulates no camera.
        self.reader = reader
        self.frames = len(reader.stems)  # number of frames of the clip
        if context is None:
            without_context = _exposures_with_context(clip, context=0)
            longest = max(exposure.own.count for exposure in without_context)  # planes
            context = longest // 2
        # For each frame: the planes of its exposure (`own`), the context, and the files that have
        # them (`pieces`).
        self._exposures = _exposures_with_context(clip, context)
        geometry = clip.spikes.geometry
        self._whole_plane = Crop(top=0, left=0, height=geometry.height, width=geometry.width)
        self.view = view_of(clip)

    def read(self, frame: int) -> Recording:
        """Return the recording of a frame. Reads its files. frame: number of the frame, from 0."""
        # A draw says which frames are read (here a single one), and whether a camera is simulated
        # on their spikes.
        reader = self.reader
        draw = reader.dataset.draw(reader.clip_index, first=frame, count=1)
        stream = self._stream(draw, frame)
        exposure = self._exposures[frame]
        begin = exposure.before  # number of planes of context before the exposure
        sharp_plane = begin + exposure.center
        return Recording(
            blurry=self._blurry(draw, frame),
            stream=stream,
            begin=begin,
            end=begin + exposure.own.count,
            sharp=sharp_plane + 0.5,  # the middle of this plane
        )

    def _stream(self, draw: Draw, frame: int) -> np.ndarray:
        """Return the planes of an exposure and around it, (T, h, w).

        draw: the clip, and its simulated camera if there is one. frame: number of the frame.
        """
        backend = self.reader.dataset.backend  # reads files, an LMDB or a clip cache
        # An exposure may reach over several spike files, with a piece of planes in each.
        pieces = []  # (planes, h, w) each
        with spike_errors_as_data_errors():
            for piece in self._exposures[frame].pieces:
                pieces.append(backend.stream(draw.clip, piece, self._whole_plane))
        stream = np.concatenate(pieces)
        # A dataset may simulate a camera on the recorded spikes. The number of the frame chooses
        # its noise.
        if draw.camera:
            stream = draw.camera.apply(stream, frame)
        return stream

    def _blurry(self, draw: Draw, frame: int) -> np.ndarray:
        """Return the blurry frame, (H, W, 3) float32, display values in [0, 1], R, G, B."""
        clip = draw.clip
        backend = self.reader.dataset.backend
        # "lq" is the blurry frame. OpenCV has the colours in the order B, G, R.
        # One frame is asked for, so there is one picture, (H, W, 3) uint8.
        [blue_green_red] = backend.images(clip, "lq", [frame], Augment.whole(clip.size))
        red_green_blue = np.ascontiguousarray(blue_green_red[..., ::-1])  # uint8
        return red_green_blue / np.float32(255)

    def gain(self) -> tuple[np.ndarray, np.ndarray]:
        """Measure the gain of each spike pixel: its spikes per plane at full light.

        The gain is measured over up to `MOST_FRAMES` frames, spread evenly over the clip. If the
        RGB camera changed its exposure time within the clip, the gain is right only for a frame of
        the median exposure time. `gain_in` gives the gain for one frame.

        Returns the gain (h, w) float32, and whether each pixel can be trusted (h, w) bool. A pixel
        that cannot be trusted has the usual gain.
        """
        count = min(self.frames, MOST_FRAMES)
        chosen_frames = np.linspace(0, self.frames - 1, count).round().astype(int)
        exposures = []
        for frame in chosen_frames.tolist():
            exposures.append(exposure_light(self.read(frame), self.view))
        return gain_over_exposures(exposures)

    def gain_in(self, recording: Recording, gain: np.ndarray, is_good: np.ndarray) -> np.ndarray:
        """Return the gain (h, w) float32 for one exposure.

        If the RGB camera has changed its exposure time, the gain differs from the gain of the clip.
        In other exposures, it equals the gain of the clip.

        gain, is_good: (h, w) each, of the clip: the result of the method `gain`.
        """
        return gain_in_exposure(exposure_light(recording, self.view), gain, is_good)


def _exposures_with_context(clip: Clip, context: int) -> tuple[Exposure, ...]:
    """Return the planes during which each frame was exposed, and `context` planes on each side.

    `clip.exposures` cannot be used here, because it has the planes from which the channels of a
    network are made. These planes may differ from the planes of the exposure, e.g. they may be its
    middle half.
    """
    files = list(clip.planes_of_spike_files.items())  # (path, number of its planes)
    spikes = of_exposure(clip.spikes, context)
    return exposures_of(spikes, clip.name, files=files, frames=len(clip), times=clip.times)
