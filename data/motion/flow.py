"""Motion within an exposure, from the spikes.

DIS (Kroeger et al., ECCV 2016) finds the displacements between a picture of the sharp instant and
pictures of other instants. A picture is the light of about ten planes. It is far sharper than the
blurry frame, but without colour.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from data.motion.recording import Recording, View
from data.spike.simulate import to_display, to_uint8, window_light

# Instants at which motion is measured, on each side of the sharp one, as shares of the time to the
# end of the exposure.
INSTANTS = (0.25, 0.5, 0.75, 1.0)
# A picture has as many planes as bring so many spikes to a pixel of median light, within these
# shares of the exposure.
SPIKES_OF_PICTURE = 3.0
LEAST_PICTURE, MOST_PICTURE = 0.11, 0.4
# Spikes are few if a pixel of median light has fewer than this in an exposure.
FEW = 18.0
# Where spikes are few, DIS compares squares of so many pixels, this far apart. With its own 8 and 3
# it follows the noise; in good light these find small things that move by themselves.
PATCH, STRIDE = 16, 4
LEAST_SIDE = 2 * PATCH
# Sigma in RGB pixels by which pictures are smoothed before DIS sees them.
SMOOTH = 1.5
# Steps in which a field of shifts is inverted. Each multiplies the error by about the gradient of
# the field.
INVERSION = 4
# Sigma in pixels of the mean over the neighbours, in the expected error.
AROUND = 4.0
# The expected error in pixels: of a still pixel, and more for each pixel by which the ways there
# and back differ, and for each pixel of motion. Chosen on scenes under known motion
# (tests/parts/data/test_motion.py). Where spikes are few, noise misleads both ways alike, so all is
# this much larger.
LEAST_ERROR, OF_DIFFERENCE, OF_LENGTH = 0.15, 0.7, 0.05
TIMES_IF_FEW = 2.5


@dataclass(frozen=True)
class Motion:
    """Displacements of the pixels of the sharp instant.

    times: (K,) planes after the sharp instant, ascending; 0 is among them. shifts: (K, H, W, 2)
    float32, x and y in RGB pixels: what is at p in the sharp instant is at p + shifts[k][p] at
    times[k]. errors: (K, H, W) float32, expected length of the error of each shift.
    """

    times: np.ndarray
    shifts: np.ndarray
    errors: np.ndarray

    def at(self, time: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the shifts (H, W, 2) and their errors (H, W) at any time.

        They are linear between the measured instants, and beyond the first and the last of these.
        """
        right = int(np.clip(np.searchsorted(self.times, time), 1, len(self.times) - 1))
        begin, end = self.times[right - 1], self.times[right]
        share = np.float32((time - begin) / (end - begin))
        mixed = [
            (1 - share) * values[right - 1] + share * values[right]
            for values in (self.shifts, self.errors)
        ]
        return mixed[0], mixed[1]

    def back(self, time: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the shifts of the pixels of another time to the sharp instant.

        Returns the shifts (H, W, 2) and their errors (H, W).
        """
        shifts, errors = self.at(time)
        back = -shifts
        for _ in range(INVERSION):
            back = -moved(shifts, back)
        return back, moved(errors, back)


def motion_times(recording: Recording) -> list[float]:
    """Return the times at which motion is measured, in planes after the sharp instant.

    First those before it, then those after it, each side from the sharp instant outwards.
    """
    before = recording.sharp - recording.begin
    after = recording.end - recording.sharp
    return [-share * before for share in INSTANTS] + [share * after for share in INSTANTS]


def median_spikes(recording: Recording) -> float:
    """Return the number of spikes in the exposure of a pixel of median light."""
    [rate] = recording.light([(recording.begin, recording.end)])
    return float(np.median(rate)) * recording.length


def motion_of(
    recording: Recording, view: View, gain: np.ndarray, begin: Motion | None = None
) -> Motion:
    """Measure the motion within an exposure.

    gain: (h, w) spikes per plane of each spike pixel at full light, see `RecordedClip.gain`.
    begin: a motion at which the search begins. If it is None, each search begins where the one of
    the instant before ended, and the first one at no motion.
    """
    wanted = motion_times(recording)
    spikes = median_spikes(recording)
    pictures = _pictures(recording, view, gain, [0.0, *wanted], spikes)
    sharp, others = pictures[0], pictures[1:]

    dis = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    if spikes < FEW:
        dis.setPatchSize(PATCH)
        dis.setPatchStride(STRIDE)
    still = np.zeros((*view.size, 2), np.float32)
    found = {0.0: (still, np.zeros(view.size, np.float32))}
    for side in (wanted[: len(INSTANTS)], wanted[len(INSTANTS) :]):
        nearer = 0.0
        # From the sharp instant outwards: each search begins where the last one ended.
        for time in side:
            picture = others[wanted.index(time)]
            start = found[nearer][0]
            if begin is not None:
                start, _ = begin.at(time)
            elif nearer:
                start = start * np.float32(time / nearer)
            there = _shifts(dis, sharp, picture, start)
            back = _shifts(dis, picture, sharp, -moved(there, -there))
            error = expected_error(there, back)
            found[time] = there, TIMES_IF_FEW * error if spikes < FEW else error
            nearer = time
    times = sorted(found)
    shifts, errors = zip(*(found[time] for time in times), strict=True)
    return Motion(np.array(times), np.stack(shifts), np.stack(errors))


def _pictures(
    recording: Recording, view: View, gain: np.ndarray, times: list[float], spikes: float
) -> list[np.ndarray]:
    """Return pictures (H, W) uint8 on the RGB grid.

    times: planes after the sharp instant. spikes: of a pixel of median light in the exposure. Where
    they are few, an interval between two spikes reaches into several pictures. It would show the
    same light in all of them, and pull the motion to zero. So each picture is then made of its own
    planes alone.
    """
    share = np.clip(SPIKES_OF_PICTURE / max(spikes, 1e-6), LEAST_PICTURE, MOST_PICTURE)
    planes = float(share) * recording.length
    windows = [recording.window(recording.sharp + time, planes) for time in times]
    if spikes < FEW:
        rates = [window_light(recording.stream[a:b], [(0, b - a)])[0] / (b - a) for a, b in windows]
    else:
        rates = recording.light(windows)
    x, y = np.moveaxis(view.spike_places(), -1, 0)
    pictures = []
    for rate in rates:
        light = np.clip(rate / gain, 0, 1).astype(np.float32)
        shown = light if view.is_display else to_display(light)
        picture = cv2.remap(shown, x, y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        pictures.append(to_uint8(cv2.GaussianBlur(picture, (0, 0), SMOOTH)))
    return pictures


def _shifts(
    dis: cv2.DenseOpticalFlow, a: np.ndarray, b: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """Return the shifts (H, W, 2) from picture a to picture b. start: where the search begins.

    DIS refuses pictures that are smaller than its squares, so the edges of small ones are repeated.
    """
    height, width = a.shape
    below, right = max(LEAST_SIDE - height, 0), max(LEAST_SIDE - width, 0)
    a, b, begin = (
        # A copy: DIS writes to it
        cv2.copyMakeBorder(each, 0, below, 0, right, cv2.BORDER_REPLICATE)
        for each in (a, b, start)
    )
    return np.ascontiguousarray(dis.calc(a, b, begin)[:height, :width])


def expected_error(there: np.ndarray, back: np.ndarray) -> np.ndarray:
    """Return the expected length of the error (H, W) of shifts (H, W, 2), in pixels.

    back: the shifts found in the other direction. Where they do not lead back, one of both is
    wrong: noise, an occlusion, or a thing too small and fast for the search.
    """
    difference = np.linalg.norm(there + moved(back, there), axis=-1)
    around = cv2.GaussianBlur(difference, (0, 0), AROUND)
    length = np.linalg.norm(there, axis=-1)
    return LEAST_ERROR + OF_DIFFERENCE * around + OF_LENGTH * length


def moved(picture: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Return the values of a picture (H, W[, C]) float32 at p + shifts[p].

    They are interpolated bilinearly. Edges are repeated.
    """
    height, width = shifts.shape[:2]
    x = np.arange(width, dtype=np.float32)[None] + shifts[..., 0]
    y = np.arange(height, dtype=np.float32)[:, None] + shifts[..., 1]
    return cv2.remap(picture, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
