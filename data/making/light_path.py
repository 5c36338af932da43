"""Give the light at any time between the frames of a video, by optical flow.

A spike camera reads out thousands of planes per second, but a video has only tens or hundreds of
frames per second. So the light between two frames A and B is interpolated: both frames are moved
along the optical flow, and then mixed. With the flow f from A to B, the flow g from B to A, and the
fraction p of the time from A to B that has passed:

    light(x) = (1 - p) A(x - p f(x)) + p B(x - (1 - p) g(x))

Light is linear, float32, 1 at full scale.

What must stay: every bit of the light, for the same frames, because made data sets (of
scripts/prepare_gopro_spike.py) are published, and an interrupted data set is continued later. No
test notices a change of the last bits, so make a clip before and after a change of the arithmetic,
and compare the files. If the light must change, raise VERSION in data/making/recipe.py.
Free to change: speed and memory.

Tests: tests/parts/scripts/test_prepare_gopro_spike.py (what the light shows)
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import cv2
import numpy as np


class _Flows(NamedTuple):
    """The optical flow between two neighbouring frames A and B, (h, w, 2) each, in pixels."""

    index_of_A: int  # number of the frame A. B is the next frame
    f: np.ndarray  # A -> B: the pixel at x in A is at x + f(x) in B
    g: np.ndarray  # B -> A


class LightPath:
    """The light at any time between the frames of a clip.

    Call `at` with increasing times. Times in any other order give the same light, but take longer,
    because only the flows of the last pair of frames are stored.
    """

    def __init__(
        self, light: Callable[[int], np.ndarray], count: int, method: str = "flow"
    ) -> None:
        """Prepare a path through `count` frames.

        light: function that takes the number of a frame and returns its light, (h, w) or (h, w, 3)
        float32.
        method: "flow" moves the frames A and B and then mixes them. "linear" only mixes them.
        """
        # Keep the last two frames, A and B, in memory, because many times lie between them.
        self.light = lru_cache(2)(light)
        self.count = count
        self.method = method
        # The flows between the last pair of frames. None: no flow was computed yet.
        self._last_flows: _Flows | None = None
        # DIS is the method of optical flow ("dense inverse search").
        self._dis: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)

    def at(self, time: float) -> np.ndarray:
        """Return the light at `time`, in the form of a frame.

        time: in frames, e.g. 2.25 is a quarter of the way from frame 2 to frame 3. The light is
        constant before the first and after the last frame.
        """
        index, fraction = self._frame_and_fraction(time)
        # At the time of a frame, return the frame itself, without interpolation. The time may have
        # a rounding error, e.g. 2.9999999999 in place of 3.
        is_at_frame = min(fraction, 1 - fraction) < 1e-9
        if is_at_frame:
            return self.light(index + round(fraction))
        A = self.light(index)
        B = self.light(index + 1)
        if self.method == "linear":
            return (1 - fraction) * A + fraction * B
        # light(x) = (1 - p) A(x - p f(x)) + p B(x - (1 - p) g(x))
        flows = self._flows_from(index)
        p = np.float32(fraction)
        moved_A = _move(A, shift=-p * flows.f)  # A(x - p f(x))
        moved_B = _move(B, shift=(p - 1) * flows.g)  # B(x - (1 - p) g(x))
        return (1 - p) * moved_A + p * moved_B

    def _frame_and_fraction(self, time: float) -> tuple[int, float]:
        """Return the number of the frame A before a time, and p: 0 at A, 1 at the next frame B.

        E.g. the time 2.25 gives (2, 0.25). The last frame has no next frame, so it can only be B:
        with 4 frames, the time 3 gives (2, 1).
        """
        last_frame = self.count - 1
        time = min(max(time, 0.0), float(last_frame))
        last_A = max(last_frame - 1, 0)
        index = min(int(time), last_A)
        return index, time - index

    def _flows_from(self, index: int) -> _Flows:
        """Return the flows between frame `index` and the next frame.

        The flows of the last call are stored in `_last_flows`, because the next plane usually lies
        between the same two frames.
        """
        last = self._last_flows
        if last is not None and last.index_of_A == index:
            return last
        A = _for_flow(self.light(index))
        B = _for_flow(self.light(index + 1))
        f = self._dis.calc(A, B, None)
        g = self._dis.calc(B, A, None)
        self._last_flows = _Flows(index, f, g)
        return self._last_flows


def _for_flow(light: np.ndarray) -> np.ndarray:
    """Return the grey image (h, w) uint8 of a frame, from which optical flow is computed.

    light: (h, w) or (h, w, 3).

    The image has the square root of the light, i.e. display values of gamma 2. In linear light,
    dark parts of the scene would have nearly equal grey levels, and the flow could not follow them.
    """
    grey = light if light.ndim == 2 else light.mean(axis=2)
    display = np.sqrt(np.clip(grey, 0, 1))
    return (display * 255).astype(np.uint8)


def _move(light: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Move an image: pixel x of the result is the light at x + shift(x).

    Outside of the image, its edge pixels are repeated.

    shift: (h, w, 2) in pixels, first the column and then the row.
    """
    height, width = light.shape[:2]
    columns = np.arange(width, dtype=np.float32)
    rows = np.arange(height, dtype=np.float32)
    x, y = np.meshgrid(columns, rows)  # (h, w) each: coordinates of every pixel
    x = x + shift[..., 0]
    y = y + shift[..., 1]
    return cv2.remap(light, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
