"""Read the spike channels of one frame: turn its planes into channels on the pixels of the frame.

A plane is one read-out of the spike camera. Channels are what a network sees of the planes.
`read_channels` reads the channels of each frame of a sample, within the crop of the sample:

    1. Read the planes, with the io backend of the data set. From files on disk: `stream` in
       data/clips/disk_files.py, then data/clips/file_content.py, and in data/spike/ formats.py,
       packed_file.py, spike_file.py and packing.py.
    2. If the sample has a simulated camera (`CameraPerturb` in data/augment.py), change the planes.
    3. Find the rate, the spikes per plane at full light: from the options, or by measured_rate.py.
    4. Turn the planes into channels: `DatSpikes.represent`, which calls data/spike/represent.py.
    5. Put the channels onto the pixels of the frame, with a `Window` (spike_grid.py).

What must stay: the result of `read_channels`, because it is what a network sees, and the order of
the steps.

Tests: tests/parts/data/test_dataset_video_rgbspike.py notices a changed order.
"""

from typing import Any

import numpy as np

from data.augment import Augment, CameraDraw
from data.cameras.measured_rate import measured_rate
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.cameras.spike_grid import Window
from data.cameras.spike_source import DatSpikes
from data.clip import Clip


def read_channels(
    spikes: DatSpikes,
    files: Any,
    clip: Clip,
    frame: int,
    aug: Augment,
    image: np.ndarray,
    reverse: bool = False,
    camera: CameraDraw | None = None,
) -> np.ndarray:
    """Read the channels of one frame within the crop of `aug`. The channels are not flipped.

    files: object that reads the spike files, e.g. a `DiskFiles` (data/clips/disk_files.py).
    clip: the clip, with the exposures of its frames. frame: number of the frame in the clip.
    aug: the crop of the frame. Its flips are not used here.
    image: the crop of the blurry frame, (aug.height, aug.width, 3) uint8, B, G, R.
    reverse: whether the clip is played backwards.
    camera: a simulated camera, which changes the recorded spikes. None: the spikes stay as
    recorded.

    Returns (S, aug.height, aug.width) float32. The result is equal to the crop of the channels
    of the whole frame, although only the spike pixels that the crop needs are unpacked.
    """
    # The order of the steps must stay: planes, simulated camera, rate, channels, pixels of the
    # frame. `clip.grid` is `spikes.grid(clip.size)`, computed once for the clip.
    window = clip.grid.window(aug)  # window.crop: the spike pixels that the crop needs
    # `exposures_of` (frame_planes.py) made the exposures when the clips were listed.
    exposure = clip.exposures[frame]
    with spike_errors_as_data_errors():
        pieces = [files.stream(clip, piece, window.crop) for piece in exposure.pieces]
    stream = np.concatenate(pieces)  # (context before + planes of the frame + after, h, w)
    if camera:
        stream = camera.apply(stream, frame)

    # The rate is measured from the planes of the frame, without context.
    before = exposure.before
    end_of_frame = before + exposure.own.count
    rate = rate_of(spikes, stream[before:end_of_frame], image, window)
    # The option `spike.rate` is the rate of the real camera. `known_rate_factor` is the rate of the
    # simulated camera, divided by the rate of the real camera. E.g. with twice the threshold, a
    # pixel fires half as often, so the factor is 0.5. If the option camera.known_rate is false, the
    # factor is 1, and the network learns to handle an unknown threshold. With "match", no factor is
    # needed, because the rate was measured from the spikes of the simulated camera.
    if camera and spikes.rate != "match":
        rate *= camera.known_rate_factor
    after = len(stream) - end_of_frame
    # Pass the arguments by position, because a user's subclass may give them other names.
    channels = spikes.represent(stream, exposure.center, rate, reverse, (before, after))
    return window.to_rgb(channels)


def rate_of(spikes: DatSpikes, stream: np.ndarray, image: np.ndarray, window: Window) -> float:
    """Return the spikes per plane at full light: the known rate, or the measured rate ("match").

    stream: the planes of the frame, (T, h, w). image: the blurry frame at the same place,
    (H, W, 3) uint8, B, G, R. window: which spike pixel lies at which RGB pixel.
    """
    if spikes.rate != "match":
        return spikes.rate
    return measured_rate(stream, image, window, spikes.light)
