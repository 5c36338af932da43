"""Find where and when two cameras saw the same scene, from blurry frames and their spikes.

`fit` finds both. `data/cameras/self_calibration.py` calls `fit` for `spike.calibration` "auto", and
`scripts/calibrate.py` calls it for recordings of a calibration.

Idea. The sum of the spikes of an exposure, mapped to the RGB camera, is the blurry frame. If the
map or the times are wrong, the two differ. So we look for the map and the times with the smallest
difference.

Equations. The matrix M (3, 3) maps a spike pixel to a place in the frame. Let

    s  be the details of the summed spikes of a pixel,
    F  the details of five features of the frame at the place of this pixel:
       three colours, response curve, lens blur (`Pair.features`),
    a  the five weights of the features.

"Details" are what a band-pass keeps: no slow changes of brightness, no noise of single pixels. Then
the residual of each compared pixel

    r = s(middle, length, roll) - F(M) a

should be noise. s depends on the times of the exposure, in planes: its middle, its length, and its
roll (how much later the rows further down are exposed). Gauss-Newton finds M and the times. With

    J = dr / d(changes of M, middle, length, roll, a)      (n, k)  of n pixels
    W = diag(w)                                            (n, n)  small where r is large
    H = J' W J,  g = J' W r                                (k, k), (k,)

a round makes the step -(H + P)^-1 (g + P p). P (diagonal) holds the weights of the priors of the
times, p the present distance of the times from their priors. H and g are sums over all views. A
view is one blurry frame with its spikes.

Order of the rounds. A round uses details of one size, first coarse, then fine, and all views
together. In the last rounds, parts of the plane are matched separately (`State._step_of_parts`).
Objects at other depths move differently (parallax), so the spread of the parts gives the error of
the matrix.

A value that the clip does not determine is not changed (`Found.is_changed`). If everything moves at
one speed (a pan), a shift and a time offset look the same. Then only both together are right.

The letters above are the names in the code. Numbers must stay equal to the bit, because results are
kept between runs: do not reorder products or sums without raising
`data/cameras/self_calibration.py:FORMAT`.

Tests: tests/parts/data/test_self_calibration.py, tests/parts/scripts/test_calibrate.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np

from data.cameras.spike_grid import scale_of
from data.spike.simulate import to_linear

# Larger planes are binned (2 x 2 pixels become one, ...) to this number of pixels, for speed.
MOST_PIXELS = 120_000
# Largest offset in planes that is searched.
MOST_OFFSET = 20.0
# The change of the sums with time is measured over STEP planes before and after a time. Near the
# ends of a stream there are fewer. With less than LEAST_ROOM planes the change would be noise.
STEP = 8
LEAST_ROOM = 3

# Small changes of the spike plane, whose coordinates go from -1 to 1. A change times its amount is
# added to the identity matrix.
CHANGES = np.array([
    [[0, 0, 1], [0, 0, 0], [0, 0, 0]],  # right
    [[0, 0, 0], [0, 0, 1], [0, 0, 0]],  # down
    [[1, 0, 0], [0, 1, 0], [0, 0, 0]],  # larger
    [[0, -1, 0], [1, 0, 0], [0, 0, 0]],  # turned
    [[1, 0, 0], [0, -1, 0], [0, 0, 0]],  # wider
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]],  # sheared
    [[0, 0, 0], [0, 0, 0], [-1, 0, 0]],  # nearer at the right
    [[0, 0, 0], [0, 0, 0], [0, -1, 0]],  # nearer at the bottom
], float)  # fmt: skip
# How many of CHANGES each model of the matrix uses.
MODELS = {"similarity": 4, "affine": 6, "homography": 8}

# Columns of J and of a step: four changes of the matrix (right, down, larger, turned), then the
# times, then FEATURES weights.
MATRIX_CHANGES = 4
MIDDLE = 4
LENGTH = 5
ROLL = 6
WITH_TIMES = 7  # columns before the weights, if the times are fitted
FEATURES = 5

# In the last rounds the plane is cut into PARTS x PARTS parts, which are matched separately.
PARTS = 5
# Errors of pixels are correlated within a tile. For the errors of the times, the plane is cut into
# TILES x TILES tiles.
TILES = 4

# Size of the finest details in (binned) spike pixels, for the times and for the matrix.
TIME_SIGMA = 2.0
FINE_SIGMA = 1.2
# Standard deviations of the priors of the times.
SPREAD_OFFSET = 15.0  # planes
SPREAD_SHARE = 0.3  # of the exposure's planes
SPREAD_ROLL = 0.1  # of the exposure's planes, over half of the rows
# The clip shows the matrix if the frames explain at least this share of the variance, and its error
# is at most LARGEST_PX.
LEAST_EXPLAINED = 0.25
LARGEST_PX = 0.5
# A value is sure if its error is at most MOST_PX (matrix), MOST_PLANES (offset) or MOST_SHARE. On
# 100 random rigs, 95 % of the sure places were within 0.2 px.
MOST_PX = 0.15
MOST_PLANES = 0.7
MOST_SHARE = 0.03
# A change of the matrix, the offset or the share is ignored if it is smaller than this, or smaller
# than three times its error.
LEAST_PX = 0.15
LEAST_PLANES = 0.75
LEAST_SHARE = 0.04
# Windows of planes, pixels and the lens all blur the spikes, so their ratio to the mean of the
# exposure is too weak. A longer mean makes up for it. Measured at shares of 0.5 to 0.8, for the
# estimate without training and for weights/operator.pth (docs/benchmarks/calibration.md).
LONGER = 1.12


# ---- What goes in and what comes out -----------------------------------------------------------


@dataclass(frozen=True)
class View:
    """A blurry frame and the spikes around its exposure.

    frame: (H, W, 3) uint8, R, G, B.
    stream: spikes (T, h, w). The exposure has the planes before ... before + count - 1.
    before: number of planes of the stream before the exposure.
    count: number of planes of the exposure.

    A stream of one plane (before = 0) may hold the spike counts of an exposure. Then only the
    matrix is fitted.
    """

    frame: np.ndarray
    stream: np.ndarray
    before: int
    count: int


class OfEach(NamedTuple):
    """A yes or no for each of the three values that a fit finds. The order is that of `errors`."""

    matrix: bool
    offset: bool
    share: bool


@dataclass(frozen=True)
class Found:
    """The result of a fit.

    matrix: (3, 3), spike pixel -> RGB pixel.
    offset: how many planes later than nominal the middle of the exposure is.
    share: exposed fraction of the planes, e.g. 0.8.
    gain, dark: spikes per plane = gain light + dark.
    errors: standard errors of the place in RGB pixels (mean over the plane), of the offset in
    planes, and of the share. An error is infinite if the clip does not show the value.
    explained: fraction of the details' variance that the frames explain.
    moved: mean distance in RGB pixels between the start and the result.
    residuals: for each part of the plane that was matched alone, the distance in RGB pixels between
    where the part fits best and where the matrix places it.

    The fields are kept in a file beside the run (data/cameras/self_calibration.py): a new name
    needs a new FORMAT there.
    """

    matrix: np.ndarray
    offset: float
    share: float
    gain: float
    dark: float
    errors: tuple[float, float, float]
    explained: float
    moved: float
    residuals: tuple[float, ...] = ()

    @property
    def share_to_read(self) -> float:
        """The fraction of the planes to read: a little more than was exposed, see LONGER."""
        return min(LONGER * self.share, 1.0)

    @property
    def is_shown(self) -> bool:
        """Whether the clip is good enough to find the matrix.

        The frames must explain the spikes (LEAST_EXPLAINED), and the error must be small
        (LARGEST_PX).
        """
        return self.explained >= LEAST_EXPLAINED and self.errors[0] <= LARGEST_PX

    @property
    def is_sure(self) -> OfEach:
        """Whether the error of a value is small (MOST_PX, MOST_PLANES, MOST_SHARE)."""
        place_error, offset_error, share_error = self.errors
        return OfEach(
            matrix=self.is_shown and bool(place_error <= MOST_PX),
            offset=self.is_shown and bool(offset_error <= MOST_PLANES),
            share=self.is_shown and bool(share_error <= MOST_SHARE),
        )

    @property
    def is_changed(self) -> OfEach:
        """Whether a value is applied to the clip.

        Its change must be at least three times its error, and at least LEAST_PX, LEAST_PLANES or
        LEAST_SHARE. The offset and the share must also be sure. The matrix need not be sure,
        because even an unsure matrix is nearer than the start: `is_shown` is enough.
        """
        is_sure = self.is_sure
        place_error, offset_error, share_error = self.errors
        shortened_by = 1 - self.share_to_read
        return OfEach(
            matrix=self.is_shown and self.moved >= max(LEAST_PX, 3 * place_error),
            offset=is_sure.offset and abs(self.offset) >= max(LEAST_PLANES, 3 * offset_error),
            share=is_sure.share and shortened_by >= max(LEAST_SHARE, 3 * share_error),
        )

    def sentence(self) -> str:
        """Describe the result in one line of the log."""
        if not self.is_shown:
            return (
                f"not sure (the frames explain {self.explained:.0%} of the spikes' details, error "
                f"of the place {self.errors[0]:.2f} px): nothing is changed"
            )
        matrix_note, offset_note, share_note = self._notes()
        angle = np.degrees(np.arctan2(self.matrix[1, 0], self.matrix[0, 0]))
        return "; ".join(
            [
                f"moved by {self.moved:.2f} px, turned by {angle:.2f} degrees, "
                f"{scale_of(self.matrix):.4f} RGB pixels per spike pixel "
                f"(error {self.errors[0]:.2f} px){matrix_note}",
                f"exposed {self.offset:+.1f} planes later (error {self.errors[1]:.1f})"
                f"{offset_note}",
                f"for {self.share:.0%} of the planes (error {self.errors[2]:.1%}){share_note}",
                f"spikes per plane = {self.gain:.3f} light {self.dark:+.4f}",
            ]
        )

    def _notes(self) -> list[str]:
        """Return a note for the log on matrix, offset and share, in this order.

        A note says why a value is not used. It is "" if the value is used as it was found.
        """
        notes = []
        for is_sure, is_changed in zip(self.is_sure, self.is_changed, strict=True):
            if is_changed:
                notes.append("")
            elif is_sure:
                notes.append(", left as it was")
            else:
                notes.append(", not sure: left")
        # Two values are used in a special way.
        if self.is_changed.matrix and not self.is_sure.matrix:
            notes[0] = ", not sure, yet nearer"
        if self.is_changed.share:
            notes[2] = f", {self.share_to_read:.0%} are read"
        return notes


def nominal(spike: Sequence[int], rgb: Sequence[int]) -> np.ndarray:
    """Return the matrix (3, 3), spike pixel -> RGB pixel, of two cameras with the same view.

    spike, rgb: sizes (height, width).
    """
    x = rgb[1] / spike[1]  # RGB pixels per spike pixel
    y = rgb[0] / spike[0]
    # Pixel centres are whole numbers. A spike pixel that covers x RGB pixels begins at -1/2 in
    # both images, so its centre 0 is at (x - 1) / 2. For x = 2: between RGB pixels 0 and 1.
    return np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2], [0, 0, 1.0]])


# ---- The fit -----------------------------------------------------------------------------------


def fit(
    views: Sequence[View],
    start: np.ndarray,
    light: str = "linear",
    model: str | None = "similarity",
    most_offset: float = MOST_OFFSET,
) -> Found:
    """Fit the matrix and times that explain the spikes best.

    views: at least one, all of one size and with exposures of one length.
    start: the matrix to begin with.
    light: what the spikes integrate, "linear" light or "display" values.
    model: which CHANGES of the matrix the last rounds fit, a key of MODELS. Earlier rounds change
    shift, scale and turn. None: the matrix is fixed, and has no error.
    most_offset: largest offset that is searched, in planes.
    """
    height, width = views[0].stream.shape[1:]
    factor = int(np.ceil(np.sqrt(height * width / MOST_PIXELS)))
    pairs = [Pair(view, factor, light) for view in views]
    to_pixel = nominal((1, 1), (factor, factor))  # binned pixel -> pixel
    to_binned = np.linalg.inv(to_pixel)
    state = State(pairs, to_binned @ start @ to_pixel, model, most_offset)

    # From coarse to fine: if the start is off by many pixels, fine details match at wrong places.
    # The first details are a tenth of the shorter side.
    coarse = max(6.0, min(pairs[0].sums.shape[1:]) / 10)
    state.settle(coarse, rounds=8)
    state.settle(3.0, rounds=6)
    state.settle(TIME_SIGMA, rounds=8)
    state.settle(FINE_SIGMA, rounds=4 if model else 0)

    # Back to the pixels before binning.
    matrix = to_pixel @ state.matrix @ to_binned
    gain, dark = state.gain_and_dark()
    planes = pairs[0].count
    return Found(
        matrix=matrix,
        offset=state.middle - planes / 2,
        share=state.length / planes,
        gain=gain / factor**2,
        dark=dark / factor**2,
        errors=(state.place_error * factor, *state.time_errors),
        explained=state.explained,
        moved=_mean_distance(start, matrix, width, height),
        residuals=tuple((state.residuals * factor).tolist()),
    )


class Pair:
    """A frame and its spikes, as the fit needs them.

    light: the frame in the unit that the spikes integrate (`light` of `fit`), (H, W, 3) float32.
    bright: (H, W) float32, 1 where the frame is overexposed.
    sums: (T + 1, h, w). sums[p] is the number of spikes of each pixel in the planes 0 ... p - 1.
    before, count: as in `View`.
    """

    def __init__(self, view: View, factor: int, light: str) -> None:
        """Prepare a view. factor: factor x factor pixels become one. light: see `fit`."""
        values = view.frame.astype(np.float32) / 255
        self.light = to_linear(values) if light == "linear" else values
        # A display value of 252 or more (of 255) is nearly saturated: it does not show the light.
        self.bright = (view.frame.max(axis=2) >= 252).astype(np.float32)
        self.before = view.before
        self.count = view.count

        planes, height, width = view.stream.shape
        height = height // factor
        width = width // factor
        stream = view.stream[:, : height * factor, : width * factor]
        if factor > 1:
            self.light = _binned(self.light, factor)
            self.bright = _binned(self.bright, factor)
            # A sum of factor^2 spikes may not fit into 8 bits.
            sum_type = np.promote_types(np.uint16, stream.dtype)
            stream = stream.reshape(planes, height, factor, width, factor)
            stream = stream.sum(axis=(2, 4), dtype=sum_type)  # (T, h, w)

        # With cumulative sums, the sum of any range of planes is one difference.
        largest_sum = planes * int(stream.max())
        sum_type = np.uint16 if largest_sum < 2**16 else np.uint32
        self.sums = np.zeros((planes + 1, height, width), sum_type)
        np.cumsum(stream, axis=0, dtype=sum_type, out=self.sums[1:])
        self._mend_pixels()

    def _mend_pixels(self) -> None:
        """Replace pixels that always or never fire by the median of their neighbours."""
        total = self.sums[-1].astype(np.float32)  # (h, w)
        usual = cv2.medianBlur(total, 5)
        # A pixel is wrong if it fires more than three times, or less than a third, as often as its
        # neighbours. The margin of 8 spikes is for dark pixels, whose counts differ by chance.
        is_wrong = (total > 3 * usual + 8) | (total < usual / 3 - 8)
        for y, x in np.argwhere(is_wrong):
            top = max(y - 1, 0)
            left = max(x - 1, 0)
            around = self.sums[:, top : y + 2, left : x + 2]  # 3 x 3 pixels, fewer at an edge
            self.sums[:, y, x] = np.median(around, axis=(1, 2))

    def features(self, sigma: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the features that explain the spikes, and the overexposure, blurred by `sigma`.

        Features: (H, W, 5), the three colours; the square of grey, for the response curve; the
        Laplacian of grey, for the blur of the spike camera's lens. Overexposure: (H, W).
        sigma: in RGB pixels.
        """
        grey = self.light.mean(axis=2)
        colours = _blur(self.light, sigma)
        curve = _blur(grey**2, sigma)
        lens = 2 * cv2.Laplacian(_blur(grey, sigma), cv2.CV_32F)
        others = np.stack((curve, lens), axis=2)  # (H, W, 2)
        features = np.concatenate((colours, others), axis=2)
        return features, _blur(self.bright, sigma)

    def until(self, times: np.ndarray) -> np.ndarray:
        """Return the number of spikes of each pixel up to the time of its row, (h, w) float32.

        times: (h,), in planes from the nominal start of the exposure. The sums are interpolated
        between two planes.
        """
        last = len(self.sums) - 1
        times = np.clip(times + self.before, 0, last)
        plane = np.minimum(times.astype(int), last - 1)  # so that plane + 1 exists
        rows = np.arange(self.sums.shape[1])
        at_plane = self.sums[plane, rows].astype(np.float32)  # (h, w): each row at its own plane
        at_next = self.sums[plane + 1, rows].astype(np.float32)
        fraction = (times - plane).astype(np.float32)
        return at_plane + fraction[:, None] * (at_next - at_plane)


class Noise(NamedTuple):
    """Expected squared noise of the details of a view, summed over the compared pixels.

    of_sums: of the summed spikes of the exposure.
    of_ends: of the sums around the start and around the end, each over 2 `reach` planes.
    """

    of_sums: float
    of_ends: float


@dataclass(frozen=True)
class Details:
    """The details of one view at an estimate, on every `every`-th spike pixel in both directions.

    spikes: s, details of the summed spikes (h, w).
    shown: F, details of the five features (h, w, 5).
    first, last: details of the spikes per plane around the start and the end (h, w).
    inside: bool (h, w), the pixels to compare. "n" below is their number.
    noise: see `Noise`.
    reach: planes before and after start and end, over which the change with time was measured.
    """

    spikes: np.ndarray
    shown: np.ndarray
    first: np.ndarray
    last: np.ndarray
    inside: np.ndarray
    noise: Noise
    reach: float
    every: int


@dataclass(frozen=True)
class Explanation:
    """The weights of the features with which the frames explain the spikes best.

    a: (5,), the weights of the features.
    residuals: r (n,) of the compared pixels of each view.
    weights: w (n,) of the same pixels, 1 or less.
    explained: fraction of the variance of s that F a explains.
    """

    a: np.ndarray
    residuals: list[np.ndarray]
    weights: list[np.ndarray]
    explained: float


class State:
    """The present estimate, and its rounds of Gauss-Newton. The module has the equations.

    Lengths are in (binned) spike pixels, times in planes from the nominal start of the exposure.
    Changes of the matrix are measured in half sides of the plane (`radius`).
    """

    def __init__(
        self, pairs: Sequence[Pair], matrix: np.ndarray, model: str | None, most_offset: float
    ) -> None:
        """Begin with a matrix and the nominal times. model, most_offset: see `fit`."""
        self.pairs = pairs
        self.matrix = matrix
        self.most_offset = most_offset
        self.changes = CHANGES[: MODELS[model] if model else 0]  # (k, 3, 3)

        # The times. Nominally the whole exposure collects light, and all rows at once.
        self.planes = pairs[0].count
        self.middle = self.planes / 2
        self.length = float(self.planes)
        self.roll = 0.0

        # Coordinates (h, w) in half sides: -1 ... 1 along the longer side.
        height, width = pairs[0].sums.shape[1:]
        center_x = (width - 1) / 2
        center_y = (height - 1) / 2
        self.radius = max(height, width) / 2
        y, x = np.mgrid[:height, :width].astype(np.float32)
        self.x = (x - center_x) / self.radius
        self.y = (y - center_y) / self.radius
        to_unit = [[1, 0, -center_x], [0, 1, -center_y], [0, 0, self.radius]]
        self.to_unit = np.array(to_unit) / self.radius  # pixel -> these coordinates

        # Times are fitted only if an exposure has planes before and after it.
        self.has_room = False
        for pair in pairs:
            after = len(pair.sums) - 1 - pair.before - self.planes
            if min(pair.before, after) >= LEAST_ROOM:
                self.has_room = True

        # Results beside the estimate, see `Found`. No round has run yet, so no error is known.
        self.place_error = np.inf
        self.time_errors = (np.inf, np.inf)
        self.explained = 0.0
        self.residuals = np.empty(0)

    def settle(self, sigma: float, rounds: int) -> None:
        """Run up to `rounds` rounds on details of size `sigma` (spike pixels).

        It ends early if a round changes nearly nothing, or if no view can be compared. On the
        finest details only the matrix is changed, from parts of the plane.
        """
        is_fine = sigma < TIME_SIGMA
        scale = scale_of(self.matrix)
        # Blur the frame as much as the spikes, in RGB pixels. A pixel has an area, which blurs too:
        # the variance of a square of side 1 is 1/12. So the spikes have the variance
        # (sigma^2 + 1/12) scale^2, and the frame has 1/12 already. At least half a pixel.
        variance = (sigma**2 + 1 / 12) * scale**2 - 1 / 12
        blur = np.sqrt(max(variance, 0.25))
        features = [pair.features(blur) for pair in self.pairs]
        for _ in range(rounds):
            # The views that can be compared at the present estimate.
            views = []
            for pair, (values, bright) in zip(self.pairs, features, strict=True):
                details = self._details(pair, values, bright, sigma)
                if details is not None and details.inside.any():
                    views.append(details)
            if not views:
                return

            if is_fine:
                step = self._step_of_parts(views, sigma)
            else:
                step = self._step(views, sigma, with_times=self.has_room)

            # The estimate has settled if the first four changes are below 0.003 pixels and all
            # others below 0.03. The others are the times in planes or, on the finest details, more
            # changes of the matrix.
            pixels = np.abs(step[:MATRIX_CHANGES]).max() * self.radius
            others = np.abs(step[MATRIX_CHANGES:]).max(initial=0)
            if pixels < 0.003 and others < 0.03:
                break

    # ---- The details of a view -----------------------------------------------------------------

    def _details(
        self, pair: Pair, features: np.ndarray, bright: np.ndarray, sigma: float
    ) -> Details | None:
        """Return the details of a view at the present estimate.

        features, bright: from `Pair.features`.
        Returns None if the stream lacks planes around the exposure.
        """
        # Start and end (h,) of the exposure of each row, in planes.
        rolled = self.roll * self.y[:, 0]
        start = self.middle - self.length / 2 + rolled
        end = self.middle + self.length / 2 + rolled

        # Number of planes around start and end, over which the change with time is measured.
        last_plane = len(pair.sums) - 1 - pair.before
        reach = min(STEP, start.min() + pair.before, last_plane - end.max())
        if reach < LEAST_ROOM and self.has_room:
            return None
        # Without room, the times are fixed and the reach has no effect, but it is divided by.
        reach = max(reach, 1.0)

        # The details that the spikes show. Blurred details vary slowly, so every `every`-th pixel
        # is enough.
        every = max(1, int(sigma / 1.5))
        sums = pair.until(end) - pair.until(start)
        around_start = pair.until(start + reach) - pair.until(start - reach)
        around_end = pair.until(end + reach) - pair.until(end - reach)
        spikes = _band_pass(sums, sigma)[::every, ::every]
        first = _band_pass(around_start, sigma)[::every, ::every]
        last = _band_pass(around_end, sigma)[::every, ::every]

        # The details that the frame shows at the places of these pixels. The features are blurred
        # already, so the slow part (a mean over 8 sigma) is subtracted here.
        u, v = self._places(sums.shape, every)
        inside = self._inside(u, v, bright, sigma, every)
        at_places = cv2.remap(features, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        side = _odd(8 * sigma / every)
        return Details(
            spikes=spikes,
            shown=at_places - cv2.blur(at_places, (side, side)),
            first=first / (2 * reach),  # spikes per plane
            last=last / (2 * reach),
            inside=inside,
            noise=self._noise(sums, inside, sigma, reach),
            reach=reach,
            every=every,
        )

    def _places(self, size: tuple[int, int], every: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the column u and row v of the frame, (h, w), of every `every`-th spike pixel.

        size: (height, width) of the plane.
        """
        y = np.arange(0, size[0], every, dtype=np.float32)
        x = np.arange(0, size[1], every, dtype=np.float32)
        x, y = np.meshgrid(x, y)  # (h, w) each
        M = self.matrix
        u = M[0, 0] * x + M[0, 1] * y + M[0, 2]
        v = M[1, 0] * x + M[1, 1] * y + M[1, 2]
        depth = M[2, 0] * x + M[2, 1] * y + M[2, 2]
        return (u / depth).astype(np.float32), (v / depth).astype(np.float32)

    def _inside(
        self, u: np.ndarray, v: np.ndarray, bright: np.ndarray, sigma: float, every: int
    ) -> np.ndarray:
        """Select the pixels (h, w) to compare: within the frame, and not overexposed there.

        u, v: places of the pixels in the frame. bright: the blurred overexposure (H, W).
        """
        # Blurring at the edge of the frame mixes in repeated pixels: keep a distance.
        height, width = bright.shape
        margin = (sigma + 1) * scale_of(self.matrix) / 2  # RGB pixels
        inside = (u > margin) & (v > margin)
        inside &= (u < width - 1 - margin) & (v < height - 1 - margin)
        # Take only pixels of which less than 2 % of the blurred area is overexposed.
        inside &= cv2.remap(bright, u, v, cv2.INTER_LINEAR) < 0.02

        # Leave out two spike pixels at the edge of the plane: 2 / every, rounded up.
        border = -(-2 // every)
        inside[:border] = False
        inside[-border:] = False
        inside[:, :border] = False
        inside[:, -border:] = False
        return inside

    def _noise(self, sums: np.ndarray, inside: np.ndarray, sigma: float, reach: float) -> Noise:
        """Return the expected squared noise of the details.

        A pixel counts whole spikes from a random phase. If it expects c spikes, and p is the
        fraction of c (0.3 for c = 4.3), it counts one more with probability p. The variance of the
        count is p (1 - p).
        """
        rates = np.maximum(_blur(sums, 3.0), 0) / self.length  # spikes per plane
        # Blurring divides the variance of the noise by 4 pi sigma^2.
        blurred_pixels = inside.sum() / (4 * np.pi * sigma**2)

        def expected(planes: float) -> float:
            p = rates * planes % 1
            return blurred_pixels * float((p * (1 - p)).mean())

        return Noise(of_sums=expected(self.length), of_ends=expected(2 * reach))

    # ---- One round on all pixels ---------------------------------------------------------------

    def _step(self, views: list[Details], sigma: float, with_times: bool) -> np.ndarray:
        """Change the estimate by one round of Gauss-Newton. Returns the changes (7,).

        Order: shift right, shift down, scale, turn (in half sides of the plane); middle, length,
        roll (in planes). Without times the last three are 0.
        """
        explanation = _explain(views)
        a = explanation.a
        weights = explanation.weights
        residuals = explanation.residuals
        self.explained = explanation.explained

        # The normal equations, summed over the views.
        count = WITH_TIMES if with_times else MATRIX_CHANGES
        unknowns = count + FEATURES
        H = np.zeros((unknowns, unknowns))
        g = np.zeros(unknowns)
        # For the errors of the times: g of each tile, and the part of the diagonal of H for the
        # times that is only noise.
        of_tiles = []
        time_noise = np.zeros(3)
        # The part of g that is removed because the residual grows with the length, see below.
        unexplained = 0.0
        for details, w, r in zip(views, weights, residuals, strict=True):
            J = self._jacobian(details, a, count)  # (n, unknowns)
            WJ = J * w[:, None]
            H = H + WJ.T @ J
            of_pixels = WJ * r[:, None]
            g = g + of_pixels.sum(axis=0)
            tiles = self._tiles(details, TILES)  # (n,)
            for tile in np.unique(tiles):
                of_tiles.append(of_pixels[tiles == tile].sum(axis=0))

            if with_times:
                # Longer sums have larger residuals, and not only from noise. Least squares would
                # shorten the exposure for this reason alone. Remove this part of g: the squared
                # residual beyond the noise, divided by the length.
                mean_weight = float(w.mean())
                square = (w * r**2).sum()
                misfit = max(0.0, square - mean_weight * details.noise.of_sums) / self.length
                g[LENGTH] -= misfit
                unexplained += misfit
                # The noise of J' W J for the times. A rate is a sum over 2 reach planes, divided by
                # 2 reach. The column of the middle is a difference of two rates (variance 2), of
                # the length half of a sum (variance 1/2). 1 is set for the roll.
                rate_noise = mean_weight * details.noise.of_ends / (4 * details.reach**2)
                time_noise += rate_noise * np.array((2, 0.5, 1))

        # The priors of the times.
        P = np.zeros(unknowns)
        p = np.zeros(unknowns)
        if with_times:
            # Neighbours share their noise, so H counts each independent pixel several times.
            noise = _mean_square(residuals, weights) * _correlated_pixels(sigma, views[0].every)
            spread = np.array(
                (SPREAD_OFFSET, SPREAD_SHARE * self.planes, SPREAD_ROLL * self.planes)
            )
            P[MIDDLE:WITH_TIMES] = noise / spread**2
            p[MIDDLE] = self.middle - self.planes / 2
            p[LENGTH] = self.length - self.planes
            p[ROLL] = self.roll
        # If the matrix is fixed (no model), a very strong prior keeps the step at 0.
        if not len(self.changes):
            P[:MATRIX_CHANGES] = 1e9 * np.diag(H)[:MATRIX_CHANGES]

        # A little more on the diagonal makes A solvable even without texture.
        A = H + np.diag(P + 1e-7 * np.diag(H) + 1e-12)
        step = -np.linalg.solve(A, g + P * p)

        change = self._move(step[:MATRIX_CHANGES])
        if not with_times:
            return np.concatenate((change, np.zeros(3)))
        time_step = step[MIDDLE:WITH_TIMES]
        self._change_times(time_step)
        self.time_errors = self._time_errors(H, A, np.array(of_tiles), time_noise, unexplained)
        return np.concatenate((change, time_step))

    def _jacobian(self, details: Details, a: np.ndarray, count: int) -> np.ndarray:
        """Return J (n, count + 5): the first `count` changes, then the weights of the features."""
        columns = self._columns(details, details.shown @ a.astype(np.float32))
        compared = [column[details.inside] for column in columns[:count]]
        of_changes = np.stack(compared, axis=1).astype(float)  # (n, count)
        # r = s - F a, so its derivative by a is -F.
        of_weights = -details.shown[details.inside]  # (n, 5)
        return np.concatenate((of_changes, of_weights), axis=1)

    def _columns(self, details: Details, shown: np.ndarray) -> list[np.ndarray]:
        """Return the derivatives of r, each (h, w).

        Order: shift right, shift down, scale, turn, middle, length, roll.
        shown: F a, the details of the frame that explain the spikes, (h, w).
        """
        # The gradients of F a, per half side of the plane.
        down, right = np.gradient(shown)
        down = down * self.radius / details.every
        right = right * self.radius / details.every
        x = self.x[:: details.every, :: details.every]
        y = self.y[:: details.every, :: details.every]

        # One plane later, the sum gains the plane at the end and loses the plane at the start.
        later = details.last - details.first
        # One plane longer, the sum gains half a plane at both ends. Larger weights a would explain
        # the mean part of this gain, F a / length: subtract it.
        longer = (details.first + details.last) / 2 - shown / np.float32(self.length)

        # The frame's part of r is -F a. A scale moves a pixel by (x, y), a turn by (-y, x).
        larger = -(right * x + down * y)
        turned = right * y - down * x
        return [-right, -down, larger, turned, later, longer, later * y]

    def _tiles(self, details: Details, count: int) -> np.ndarray:
        """Return the number of the tile (n,) of each compared pixel, in a grid of count x count."""
        x = self.x[:: details.every, :: details.every][details.inside]
        y = self.y[:: details.every, :: details.every][details.inside]
        # -1 ... 1 becomes 0 ... count. The upper limit keeps the last pixel in the last tile.
        columns = np.clip((x + 1) * count / 2, 0, count - 0.01).astype(int)
        rows = np.clip((y + 1) * count / 2, 0, count - 0.01).astype(int)
        return count * rows + columns

    def _move(self, step: np.ndarray) -> np.ndarray:
        """Change the matrix by a step (k,), the amounts of the first k CHANGES.

        A step with a value above 0.1 is shortened as a whole to 0.1, a twentieth of the longer side
        of the plane (its coordinates go from -1 to 1). Returns the change that was made, (k,).
        """
        largest = np.abs(step).max() + 1e-12
        change = step * min(1.0, 0.1 / largest)
        total = np.zeros((3, 3))
        for amount, one_change in zip(change, CHANGES[: len(change)], strict=True):
            total = total + amount * one_change
        # From pixels to coordinates of -1 to 1, change them, and back to pixels.
        moved = np.eye(3) + total
        self.matrix = self.matrix @ np.linalg.inv(self.to_unit) @ moved @ self.to_unit
        self.matrix /= self.matrix[2, 2]
        return change

    def _change_times(self, step: np.ndarray) -> None:
        """Change middle, length and roll by a step (3,), within their limits.

        A step is at most 8 planes, because the change with time was measured over STEP planes.
        """
        later, longer, rolled = np.clip(step, -8, 8)
        planes = self.planes
        offset = self.middle + later - planes / 2
        offset = np.clip(offset, -self.most_offset, self.most_offset)
        self.middle = planes / 2 + float(offset)
        # Exposures of less than 40 % of the planes are not searched.
        self.length = float(np.clip(self.length + longer, 0.4 * planes, 1.05 * planes))
        self.roll = float(np.clip(self.roll + rolled, -0.2 * planes, 0.2 * planes))

    def _time_errors(
        self,
        H: np.ndarray,
        A: np.ndarray,
        of_tiles: np.ndarray,
        time_noise: np.ndarray,
        unexplained: float,
    ) -> tuple[float, float]:
        """Return the standard errors of the offset in planes, and of the share.

        The covariance of the step is A^-1 G A^-1, where G is the sum of g g' over the tiles. Errors
        of pixels are correlated within a tile, not between tiles. A standard error is the root of
        an element of the diagonal. It is divided by the part of H that is not noise, because noise
        shows no motion.

        of_tiles: g of each tile and view, one a row. time_noise: (3,) and unexplained: see `_step`.
        """
        inverse = np.linalg.inv(A)
        # G is of_tiles' of_tiles. The product runs from left to right.
        covariance = inverse @ of_tiles.T @ of_tiles @ inverse

        times = slice(MIDDLE, ROLL)  # middle and length
        with_noise = np.diag(H)[times]
        without_noise = with_noise - time_noise[:2]
        signal = np.maximum(without_noise / with_noise, 1e-3)  # part of H that shows motion
        middle_error, length_error = np.sqrt(np.diag(covariance))[times] / signal

        # How much of the misfit really comes from the length is not known. Half of the change that
        # the removed part of g would have made is added to the error.
        length_error += 0.5 * unexplained / max(float(without_noise[1]), 1e-9)
        return float(middle_error), float(length_error) / self.planes

    # ---- One round on parts of the plane -------------------------------------------------------

    def _step_of_parts(self, views: list[Details], sigma: float) -> np.ndarray:
        """Estimate one shift for each of PARTS x PARTS parts, and change the matrix to fit them.

        H_t (2, 2) and g_t (2,) belong to the shift of part t, summed over the views v. The shift is
        d_t = -H_t^-1 g_t. `_joined` turns the shifts into one change of the matrix, which is
        returned, see `_step`.
        """
        explanation = _explain(views)
        weights = explanation.weights
        residuals = explanation.residuals
        count = PARTS * PARTS
        # The normal equations of each view and part.
        H = np.zeros((len(views), count, 2, 2))
        g = np.zeros((len(views), count, 2))
        center_sums = np.zeros((count, 3))  # x, y and number of the compared pixels of a part
        for v, (details, w, r) in enumerate(zip(views, weights, residuals, strict=True)):
            parts = self._tiles(details, PARTS)  # (n,), the part of each compared pixel
            a = explanation.a.astype(np.float32)
            columns = self._columns(details, details.shown @ a)
            by_right = columns[0][details.inside]  # (n,), dr / d(shift right)
            by_down = columns[1][details.inside]
            J = (by_right, by_down)
            # np.bincount(parts, values) is the sum of the values in each part.
            for i in (0, 1):
                g[v, :, i] = np.bincount(parts, w * J[i] * r, count)
                for j in (0, 1):
                    H[v, :, i, j] = np.bincount(parts, w * J[i] * J[j], count)
            x = self.x[:: details.every, :: details.every]
            y = self.y[:: details.every, :: details.every]
            for i, values in enumerate((x, y, np.ones_like(x))):
                center_sums[:, i] += np.bincount(parts, values[details.inside], count)

        # Use only parts with texture. If too few are left, do not change the matrix.
        usable = _usable_parts(H.sum(axis=0), pixels=center_sums[:, 2])
        if usable.sum() < len(self.changes):
            self.place_error = np.inf
            self.residuals = np.empty(0)
            return np.zeros(MATRIX_CHANGES)
        H = H[:, usable]  # (v, t, 2, 2)
        g = g[:, usable]  # (v, t, 2)
        centers = center_sums[usable] / center_sums[usable, 2:]  # (t, 3): mean x, mean y, 1

        # Turn the shifts of the parts into one change of the matrix.
        noise = _mean_square(residuals, weights) * _correlated_pixels(sigma, views[0].every)
        shifts, variances = _shifts(H, g, noise)
        joined = _joined(shifts, variances, centers, self.changes)

        # The error of this change is a mean over the plane in RGB pixels. A shift moves all places
        # alike; any other change moves a place in proportion to its distance from the middle.
        pixel = self.radius * scale_of(self.matrix)  # RGB pixels per half side
        variance_of_change = np.diag(joined.covariance)
        mean_square = float((self.x**2 + self.y**2).mean())  # of the distance from the middle
        of_shift = variance_of_change[:2].sum()
        variance = of_shift + mean_square * variance_of_change[2:].sum()
        self.place_error = pixel * float(np.sqrt(variance))
        self.residuals = pixel * np.hypot(joined.left[:, 0], joined.left[:, 1])
        return self._move(joined.amounts)

    # ---- Brightness ----------------------------------------------------------------------------

    def gain_and_dark(self) -> tuple[float, float]:
        """Fit spikes per plane of a (binned) pixel = gain light + dark, by least squares."""
        every_light = []
        every_rate = []
        begin = np.full(len(self.y), self.middle - self.length / 2)  # (h,)
        end = np.full(len(self.y), self.middle + self.length / 2)
        for pair in self.pairs:
            rate = (pair.until(end) - pair.until(begin)) / self.length  # (h, w)
            every_rate.append(rate.ravel())
            height, width = pair.sums.shape[1:]
            # With WARP_INVERSE_MAP, `self.matrix` maps a pixel of the result to one of the frame.
            light = cv2.warpPerspective(
                pair.light.mean(axis=2),
                self.matrix,
                (width, height),
                flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
                borderMode=cv2.BORDER_REPLICATE,
            )
            every_light.append(light.ravel())

        light = np.concatenate(every_light).astype(float)
        rate = np.concatenate(every_rate).astype(float)
        covariance = ((light - light.mean()) * (rate - rate.mean())).mean()
        gain = float(covariance / max(light.var(), 1e-9))
        dark = float(rate.mean() - gain * light.mean())
        return gain, dark


# ---- The algebra of a round --------------------------------------------------------------------


def _explain(views: Sequence[Details]) -> Explanation:
    """Find the weights a (5,) with which the frames explain the spikes best.

    a = (F' W F)^-1 F' W s, summed over the views. It is solved twice: the second time pixels with
    large residuals count less (Huber).
    """
    features = [details.shown[details.inside].astype(float) for details in views]  # (n, 5) each
    spikes = [details.spikes[details.inside].astype(float) for details in views]  # (n,) each
    weights = [np.ones(len(s)) for s in spikes]
    for _ in range(2):
        square = 0.0  # F' W F
        target = 0.0  # F' W s
        for F, s, w in zip(features, spikes, weights, strict=True):
            WF = F * w[:, None]
            square = square + WF.T @ F
            target = target + WF.T @ s
        # A little more on the diagonal makes it solvable if a feature is 0 everywhere.
        diagonal = 1e-5 * np.diag(square) + 1e-12
        a = np.linalg.solve(square + np.diag(diagonal), target)
        residuals = [s - F @ a for F, s in zip(features, spikes, strict=True)]

        # 1.4826 times the median of |r| is the standard deviation of normal residuals. Pixels
        # beyond 2.5 standard deviations count less.
        sizes = np.abs(np.concatenate(residuals))
        usual = 2.5 * 1.4826 * np.median(sizes) + 1e-9
        weights = [1 / np.maximum(1, np.abs(r) / usual) for r in residuals]
    left = sum((r**2).sum() for r in residuals)
    whole = sum((s**2).sum() for s in spikes)
    return Explanation(a, residuals, weights, explained=float(1 - left / whole))


def _mean_square(residuals: list[np.ndarray], weights: list[np.ndarray]) -> float:
    """Return the weighted mean square of the residuals of all views."""
    squares = [r**2 * w for r, w in zip(residuals, weights, strict=True)]
    return np.concatenate(squares).mean()


def _correlated_pixels(sigma: float, every: int) -> float:
    """Return the number of compared pixels whose noise is correlated by the blur.

    A Gaussian blur joins the noise of an area of 4 pi sigma^2 pixels, of which one in every^2 is
    compared.
    """
    return 4 * np.pi * sigma**2 / every**2


def _usable_parts(H: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Select the parts (t,) with enough pixels, and texture in two directions.

    H: (t, 2, 2). pixels: (t,), number of compared pixels of a part.
    """
    strength = np.trace(H, axis1=1, axis2=2)
    usual = np.median(strength[strength > 0])
    has_pixels = pixels > 0.3 * pixels.max()
    has_texture = strength > 1e-3 * usual
    # The determinant is 0 if all texture has one direction, as along an edge.
    has_two_directions = np.linalg.det(H) > 1e-4 * strength**2
    return has_pixels & has_texture & has_two_directions


def _shifts(H: np.ndarray, g: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the shifts d (t, 2) of the parts and their variances (t, 2, 2).

    H: (v, t, 2, 2), g: (v, t, 2), of each view and part. noise: variance of a residual.
    With several views, the variance is the mean of two estimates: from the noise, and from the
    spread of the views.
    """
    inverse = np.linalg.inv(H.sum(axis=0))  # (t, 2, 2)
    # d_t = -H_t^-1 g_t, with g_t summed over v.
    shifts = -np.einsum("tij,vtj->ti", inverse, g)
    from_noise = inverse * noise
    views = len(H)
    if views == 1:
        return shifts, from_noise

    # How far each view alone would move the common shift: H_t^-1 (g_vt + H_vt d_t).
    misfit = g + np.einsum("vtij,tj->vti", H, shifts)
    of_view = np.einsum("tij,vtj->vti", inverse, misfit)
    # The sum of their squares, with the usual correction n / (n - 1) for a fitted mean.
    from_spread = np.einsum("vti,vtj->tij", of_view, of_view) * views / (views - 1)
    return shifts, (from_noise + from_spread) / 2


@dataclass(frozen=True)
class Joined:
    """One change of the matrix that moves the parts as their shifts say.

    amounts: c (k,), of the k changes of the model.
    covariance: (k, k), of these amounts.
    left: (t, 2), what is left of the shifts.
    """

    amounts: np.ndarray
    covariance: np.ndarray
    left: np.ndarray


def _joined(
    shifts: np.ndarray, variances: np.ndarray, places: np.ndarray, changes: np.ndarray
) -> Joined:
    """Find the one change of the matrix that moves t parts by their shifts.

    shifts: d (t, 2) of parts at `places` (t, 3) with `variances` V (t, 2, 2). changes: (k, 3, 3).

    c = (sum J' V^-1 J)^-1 sum J' V^-1 d over the parts, where J (2, k) says how a part at its place
    moves with c. Besides their noise, all parts have one extra variance (parallax), which is added
    to V. The extra variance is chosen so that the residuals are as large as expected
    (Paule-Mandel).
    """
    # How each change moves each place, in homogeneous coordinates x, y, z.
    fields = np.einsum("kij,tj->tki", changes, places)  # (t, k, 3)
    # In the image the third coordinate divides: d(x / z) = dx - x dz at z = 1.
    J = fields[..., :2] - places[:, None, :2] * fields[..., 2:]  # (t, k, 2)
    J = J.swapaxes(1, 2)  # (t, 2, k)

    def solve(extra: float) -> tuple[Joined, float]:
        """Solve with an extra variance. Returns the change, and the sum of left' V^-1 left."""
        W = np.linalg.inv(variances + extra * np.eye(2))  # (t, 2, 2)
        covariance = np.linalg.inv(np.einsum("tia,tij,tjb->ab", J, W, J))
        c = covariance @ np.einsum("tia,tij,tj->a", J, W, shifts)
        left = shifts - J @ c
        misfit = float(np.einsum("ti,tij,tj->", left, W, left))
        return Joined(c, covariance, left), misfit

    # Bisection for the extra variance: the misfit falls as it grows. The result is within 0.1 %,
    # or below 1e-9.
    expected = 2 * len(shifts) - len(changes)  # degrees of freedom
    low = 0.0
    high = 1.0  # in squared half sides of the plane
    while high > 1e-9:
        extra = (low + high) / 2
        _, misfit = solve(extra)
        if misfit > expected:
            low = extra
        else:
            high = extra
        if high - low < 1e-3 * high:
            break
    joined, _ = solve(high)
    return joined


def _mean_distance(before: np.ndarray, after: np.ndarray, width: int, height: int) -> float:
    """Return the mean distance in RGB pixels between the results of two matrices.

    The mean is over 9 x 9 spike pixels, spread evenly over the plane of width x height pixels.
    """
    columns = np.linspace(0, width - 1, 9)
    rows = np.linspace(0, height - 1, 9)
    grid = np.stack(np.meshgrid(columns, rows), axis=-1)  # (9, 9, 2)
    points = grid.reshape(1, -1, 2)  # as OpenCV wants them
    moved = cv2.perspectiveTransform(points, after) - cv2.perspectiveTransform(points, before)
    x, y = moved[0].T
    return float(np.hypot(x, y).mean())


# ---- Images ------------------------------------------------------------------------------------


def _binned(image: np.ndarray, factor: int) -> np.ndarray:
    """Replace factor x factor pixels of an image (H, W, ...) by their mean."""
    height = image.shape[0] // factor
    width = image.shape[1] // factor
    whole = image[: height * factor, : width * factor]  # without an incomplete last block
    return cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA)


def _band_pass(image: np.ndarray, sigma: float) -> np.ndarray:
    """Keep details larger than `sigma` and smaller than 8 `sigma` pixels."""
    side = _odd(8 * sigma)
    blurred = _blur(image, sigma)
    return blurred - cv2.blur(blurred, (side, side))


def _odd(x: float) -> int:
    """Return the odd number at or above the whole part of x: 48.7 -> 49, 47.2 -> 47.

    The side of a box filter must be odd, so that the box has a middle pixel.
    """
    return int(x) | 1


def _blur(image: np.ndarray, sigma: float) -> np.ndarray:
    """Blur with a Gaussian. The size (0, 0) lets OpenCV choose the size of the kernel."""
    return cv2.GaussianBlur(image, (0, 0), float(sigma))
