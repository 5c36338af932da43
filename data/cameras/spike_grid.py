"""Define what a grid is: it says which spike pixel belongs to which pixel of a frame.

A spike plane (one read-out of the spike camera) and an RGB frame have different sizes. With two
cameras, they may also have different views. A grid describes the whole frame, and a window
describes one crop of the frame:

    ScaledGrid, ScaledWindow           both cameras have the same view (scaled_grid.py)
    CalibratedGrid, CalibratedWindow   the spike camera has a view of its own
                                       (calibrated_grid.py, calibrated_window.py)

A sample uses a grid in three steps (data/cameras/channels_of_frame.py):

    window = grid.window(crop_of_the_frame)
    stream = <read only the spike pixels of window.crop>
    channels = window.to_rgb(representation_of(stream))     # (S, H, W), S channels of the crop

Both grids have the same attributes:

    step                 number of RGB pixels. Crops must begin and end at multiples of this number.
                         E.g. with step 2, a crop may begin at row 10, but not at row 11
    rgb_per_spike_pixel  RGB pixels per spike pixel along a side, rounded, at least 1: 3.96 -> 4
    region               a `Crop`: the RGB pixels from which crops for training are drawn
    coverage             fraction of the pixels of the frame that the spike camera sees, e.g. 0.9

A new kind of grid needs these attributes and a method `window`. Its windows need `crop`, `to_rgb`
and `brightness`.

What must stay: the names of these attributes and methods, because the callers use all grids alike.

Tests: tests/parts/data/test_spike_grid.py, tests/parts/data/test_two_cameras.py
"""

import logging

from data.cameras.calibrated_grid import CalibratedGrid
from data.cameras.calibrated_window import CalibratedWindow
from data.cameras.scaled_grid import ScaledGrid, ScaledWindow
from utils.dist.state import RUN
from utils.errors import DataError

Window = ScaledWindow | CalibratedWindow
Grid = ScaledGrid | CalibratedGrid
logger = logging.getLogger(__name__)

# If the spike camera sees less than this fraction of a frame, the clip is refused. The reason: the
# rest of the frame shows only repeated edge pixels of the spike plane. The limit is chosen by hand.
LEAST_COVERAGE = 0.5


def warn_uncovered(grid: Grid, what: str, where: str) -> None:
    """Warn if the spike camera sees only a part of the frame.

    what: name of the clips, for the message. where: a file of these clips, for the message.
    Raises DataError if the spike camera sees less than half of the frame (LEAST_COVERAGE). Every
    rank may call this function, but only rank 0 writes the warning.
    """
    # If every pixel is seen, the mean of the mask is n / n, which is exactly 1.0.
    if grid.coverage == 1.0:
        return
    region = grid.region.in_words()
    if grid.coverage < LEAST_COVERAGE:
        raise DataError(
            what=f"the spike camera sees only {grid.coverage:.0%} of the frames of {what}",
            where=where,
            expected=f"at least {LEAST_COVERAGE:.0%}: elsewhere the edge of the spike plane is "
            "repeated",
            do=f"crop the frames to {region}, and calibrate with such frames",
        )
    if RUN.launch.rank == 0:
        logger.warning(
            "%s: the spike camera sees %.1f %% of the frame; elsewhere the edge of the spike "
            "plane is repeated. Results hold in %s",
            what,
            100 * grid.coverage,
            region,
        )
