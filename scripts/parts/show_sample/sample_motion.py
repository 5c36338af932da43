"""Show the motion within the exposure of a sample: --motion of show_sample.py.

data/motion/ measures the motion of a frame of a test clip. `OneSample` and `SampleReader` let a
sample of training look like a test clip.

Some values have the type Any, because their modules import torch, and --help must not wait for
torch. `dataset` is a data set of clips from files, a `ClipDataset` (data/clip_reading.py).

What must stay: the page shows the motion of the whole frame, as `--method joint` finds it
(test_the_motion_within_the_exposure_is_shown_if_asked_for).

Tests: tests/parts/scripts/test_show_sample.py
"""

from typing import Any, NamedTuple

from scripts.parts.show_sample.sample_page import Picture, Row, Section, enlarge
from scripts.parts.show_sample.sample_read import Sample


def motion_within_exposure(dataset: Any, sample: Sample) -> Section:
    """Return the motion within the exposure of the middle frame, and its expected error.

    The motion is measured by optical flow between pictures of the spikes, as for `--method joint`.
    The page shows the motion of the whole frame as recorded, without crop, flips or reversed time.

    dataset: the data set of the sample, a `ClipDataset` (data/clip_reading.py).
    """
    # Imported here, so that --help does not wait for torch, which these modules import.
    from data.motion.drawing import LEGEND, pictures_of
    from data.motion.flow import motion_of
    from data.motion.recording import RecordedClip

    clip = sample.draw.clip
    frame = sample.draw.frames[len(sample.draw.frames) // 2]
    # `RecordedClip` expects the reader of a clip in a test set. Here there is no test set. So
    # `OneSample` replaces the test set, and `SampleReader` replaces the reader.
    one_sample = OneSample(dataset.backend, sample.draw)
    reader: Any = SampleReader(clip, clip.stems, one_sample)
    recorded = RecordedClip(reader, context=None)  # None: half an exposure on each side
    # The gain of each spike pixel, (h, w): its spikes per plane at full light. The second result,
    # whether a gain can be trusted, is not needed, because the other pixels have the usual gain.
    gain, _ = recorded.gain()
    motion = motion_of(recorded.read(frame), recorded.view, gain)

    pictures = []
    for picture in pictures_of(motion):
        pictures.append(Picture(picture.caption, enlarge(picture.image)))
    title = f"Motion within the exposure of {clip.stems[frame]}, before the crop and the flips"
    return Section(title, [Row(LEGEND, pictures)])


# ---- A sample that looks like a test clip -----------------------------------------------------
#
# `RecordedClip` (data/motion/recording.py) gets the reader of a clip, and this reader has the data
# set of the clip. Here `SampleReader` replaces the reader, and `OneSample` replaces the data set.
# Both have only the members that `RecordedClip` uses.


class OneSample(NamedTuple):
    """Takes the place of a data set of test clips. It holds the clip of one sample."""

    backend: Any  # an io backend
    of_sample: Any  # data.clip_reading.Draw, of which the clip and the camera are used

    def draw(self, clip_index: int, first: int, count: int) -> Any:
        """Return the draw of the sample.

        The arguments are ignored. `RecordedClip` asks for the draw of a frame to get its camera,
        and all frames of a sample have the same camera.
        """
        return self.of_sample


class SampleReader(NamedTuple):
    """Takes the place of the reader of a test clip (data.clips.readers.DatasetClip)."""

    clip: Any  # data.clip.Clip
    stems: tuple[str, ...]  # names of the frames of the clip
    dataset: OneSample
    clip_index: int = 0  # number of the clip in the data set, which has only this clip
