"""Hold what both cameras recorded during one exposure: the blurry frame and the spikes.

A network sees the spikes of an exposure as a few channels. The motion (flow.py, learned.py) and the
equations of both cameras need each spike, so they read a `Recording`:

    plane     one binary picture (h, w) of the spike camera; 1 where a pixel fired
    stream    the planes of an exposure and some planes around it, (T, h, w)
    time      counted in planes from the first plane of the stream. Plane p collects light from p to
              p + 1, so a spike in plane p has the time p + 1
    sharp     the time at which the sharp frame is wanted, usually the middle of the exposure

A frame has H x W RGB pixels. `RecordedClip` (recording.py) reads the recordings of a clip.
data/cameras/frame_planes.py says which planes belong to an exposure.

What must stay: the numbers of `spike_rates`. The fusion operator "motion"
(models/fusion/fusion_motion.py) improves frames by learned steps along the motion. Its shipped
weights were trained on pictures and gains that are made of these rates. test_exposure.py works out
rates and windows by hand.

Tests: tests/parts/data/test_exposure.py
"""

import itertools
from dataclasses import dataclass, replace
from functools import cached_property

import cv2
import numpy as np

from data.spike.light import Intervals, intervals_of, window_light


@dataclass(frozen=True)
class Recording:
    """What both cameras recorded during one exposure, and the spikes around it.

    E.g. an exposure has 60 planes, with 30 more planes on each side. So the stream has 120 planes,
    `begin` is 30 and `end` is 90. If the sharp frame shows the middle of plane 60, `sharp` is 60.5.
    """

    blurry: np.ndarray  # (H, W, 3) float32, display values in [0, 1], R, G, B
    stream: np.ndarray  # (T, h, w) uint8 in {0, 1}, the planes of the exposure and around it
    begin: int  # time at which the exposure begins: the index of its first plane
    end: int  # time at which it ends: the index of the plane after its last
    sharp: float  # time of the sharp frame, e.g. 44.5, the middle of plane 44

    @property
    def length(self) -> int:
        """Return the number of planes in the exposure."""
        return self.end - self.begin

    def window(self, time: float, planes: float) -> tuple[int, int]:
        """Return (first plane, plane after the last) of a window around a time.

        E.g. 9 planes around the time 44.5 are the planes 40 to 48, so the window is (40, 49).
        Planes before or after the stream are left out. If all planes of a window would be left out,
        the window is the plane of the stream that is nearest to this window.

        time: the middle of the window. data/motion/joint/ passes the sharp instant, and
        spike_pictures.py passes any time of the exposure.
        planes: the length of the window, which need not be a whole number.
        """
        # `round` rounds a half to the even number, so the window may have one plane more or one
        # plane less than `planes`. E.g. 9 planes around 44.0 reach from 39.5 to 48.5, which becomes
        # (40, 48): 8 planes. Around 45.0 the window is (40, 50): 10 planes.
        wanted_begin = round(time - planes / 2)
        wanted_end = round(time + planes / 2)
        # Keep the window within the stream, with one plane or more. A window before the stream
        # becomes the first plane, and a window after the stream becomes the last plane.
        number_of_planes = len(self.stream)
        begin = min(max(wanted_begin, 0), number_of_planes - 1)
        end = min(max(wanted_end, begin + 1), number_of_planes)
        return begin, end

    def parts(self, count: int) -> list[tuple[int, int]]:
        """Return windows that divide the exposure, as evenly as planes allow.

        E.g. 3 windows of the planes 0 to 7 are (0, 3), (3, 5), (5, 8): (first plane, plane after
        the last).

        count: number of windows. An exposure with fewer planes has one window for each plane.
        """
        count = min(count, self.length)
        edges = np.linspace(self.begin, self.end, count + 1).round().astype(int).tolist()
        return list(itertools.pairwise(edges))

    def spike_rates(self, windows: list[tuple[int, int]]) -> np.ndarray:
        """Return the spikes per plane in each window, (windows, h, w) float32.

        Each interval between two spikes counts as one spike, spread evenly over the interval. E.g.
        an interval that lies with half of its length in a window adds 0.5 spikes to this window. So
        a short window without a spike is not black.

        windows: (first plane, plane after the last) of each window.
        """
        # Spikes in each window, (h, w) each.
        sums = window_light(self.stream, windows, self._intervals)
        rates = []
        for spikes_of_window, (begin, end) in zip(sums, windows, strict=True):
            rates.append(spikes_of_window / (end - begin))
        return np.stack(rates).astype(np.float32)

    @cached_property
    def _intervals(self) -> Intervals:
        """Return the intervals between the spikes of each pixel.

        The intervals are computed once, because `spike_rates` is called several times for a frame.
        """
        return intervals_of(self.stream)

    def with_planes(self, first: int, end: int) -> "Recording":
        """Return the recording with only the planes first ... end - 1, which hold the exposure.

        E.g. of the planes 0 ... 119, with the exposure 30 ... 89, `with_planes(30, 120)` keeps 90
        planes, and the exposure becomes 0 ... 59.

        If `sharp` is not shifted,
        test_times_of_an_exposure_are_shifted_if_planes_before_it_are_removed fails.
        """
        return replace(
            self,
            stream=self.stream[first:end],
            begin=self.begin - first,
            end=self.end - first,
            sharp=self.sharp - first,
        )

    def with_repaired_pixels(self, is_good: np.ndarray) -> "Recording":
        """Return the recording, with the spikes of each untrusted pixel replaced.

        An untrusted pixel gets the spikes of the nearest trusted pixel. Without this, a hot pixel
        would be a bright point that never moves, and would mislead the search for the motion.

        is_good: (h, w) bool, whether each spike pixel can be trusted. If all pixels or none can be
        trusted, the recording is returned unchanged.

        If untrusted pixels get no spikes,
        test_a_pixel_that_is_not_trusted_repeats_its_nearest_neighbour fails.
        """
        if is_good.all() or not is_good.any():
            return self
        rows, columns = _nearest_good(is_good)
        stream = self.stream.copy()
        stream[:, ~is_good] = stream[:, rows, columns]  # both are (T, n), for n untrusted pixels
        return replace(self, stream=stream)


def _nearest_good(is_good: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and the column of the nearest trusted pixel, for each untrusted pixel.

    OpenCV numbers the trusted pixels, and gives each untrusted pixel the number (label) of the
    nearest trusted pixel. E.g. a row of five pixels, the third of them untrusted, has the labels
    1 2 2 3 4. So the third pixel is nearest to the trusted pixel with the label 2, in column 1.

    is_good: (h, w) bool, with at least one True and one False.
    Returns two arrays (n,), for the n untrusted pixels in the order of stream[:, ~is_good].
    """
    is_bad = (~is_good).astype(np.uint8)
    _, labels = cv2.distanceTransformWithLabels(
        is_bad, cv2.DIST_L2, cv2.DIST_MASK_5, labelType=cv2.DIST_LABEL_PIXEL
    )  # (h, w)
    # Tables: label -> row and column of the trusted pixel with this label.
    row_of_label = np.zeros(labels.max() + 1, int)
    column_of_label = np.zeros(labels.max() + 1, int)
    good_rows, good_columns = np.nonzero(is_good)
    row_of_label[labels[is_good]] = good_rows
    column_of_label[labels[is_good]] = good_columns

    labels_of_nearest = labels[~is_good]  # (n,)
    return row_of_label[labels_of_nearest], column_of_label[labels_of_nearest]
