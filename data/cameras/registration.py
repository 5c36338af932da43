"""Find where and when two cameras saw the same scene, from blurry frames and their spikes.

The sum of the spikes of an exposure, mapped to the RGB camera, is the blurry frame. The matrix M
maps a spike pixel to a place in the frame. Let

    s  be the details of the summed spikes,
    F  the details of five features at that place: three colours, response curve, lens blur,
    a  the weights of the features.

Then the residual of each compared pixel

    r = s(middle, length, roll) - F(M) a

should be noise. The sums depend on the times of the exposure: its middle, its length in planes, and
its roll (how much later the rows further down are exposed). Gauss-Newton finds M and the times.
With

    J = dr / d(changes of M, middle, length, roll, a)      (n, k)  of n pixels
    W = diag(w)                                            (n, n)  small where r is large
    H = J' W J,  g = J' W r                                (k, k), (k,)

a round makes the step -(H + P)^-1 (g + P p). P (diagonal) holds the weights of the priors of the
times, p the present distance of the times from their priors. H and g are sums over all frames.

A round uses details of one size, first coarse, then fine, and all frames together. In the last
rounds, parts of the plane are matched separately (`State._step_of_parts`). Parallax moves
layers at other depths, so the spread of the parts gives the error of the matrix.

A value that the clip does not determine is not changed (`Found.is_changed`). If everything moves at
one speed (a pan), a shift and a time offset look the same. Then only both together are right.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from data.cameras.spike_grid import scale_of
from data.spike.simulate import to_linear

MOST_PIXELS = 120_000  # of a plane; larger ones are binned
MOST_OFFSET = 20.0  # planes; largest offset that is searched
# Changes with time are measured over STEP planes before and after; at least LEAST_ROOM.
STEP = 8
LEAST_ROOM = 3
# Small changes of a plane with coordinates from -1 to 1.
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
MODELS = {"similarity": 4, "affine": 6, "homography": 8}  # how many CHANGES each model uses
PARTS = 5  # the plane is cut into PARTS x PARTS parts
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
# A value is sure if its error is at most this. On 100 random rigs, 95 % of the sure places were
# within 0.2 px.
MOST_PX = 0.15
MOST_PLANES = 0.7
MOST_SHARE = 0.03
# A change below this, or below three times its error, is ignored.
LEAST_PX = 0.15
LEAST_PLANES = 0.75
LEAST_SHARE = 0.04
# Windows of planes, pixels and the lens all blur the spikes, so their ratio to the mean of the
# exposure is too weak. A longer mean makes up for it. Measured at shares of 0.5 to 0.8, for the
# estimate without training and for weights/operator.pth (docs/benchmarks/calibration.md).
LONGER = 1.12


@dataclass(frozen=True)
class View:
    """A blurry frame and the spikes around its exposure.

    frame: (H, W, 3) uint8, R, G, B.
    stream: (T, h, w). The exposure has the planes before ... before + count - 1.

    A stream of one plane (before = 0) may hold the spike counts of an exposure. Then only the
    matrix is fitted.
    """

    frame: np.ndarray
    stream: np.ndarray
    before: int
    count: int


@dataclass(frozen=True)
class Found:
    """The result of a fit.

    matrix: (3, 3), spike pixel -> RGB pixel.
    offset: how many planes later than nominal the middle of the exposure is.
    share: exposed part of the planes.
    gain, dark: spikes per plane = gain light + dark.
    errors: standard errors of the place in RGB pixels (mean over the plane), of the offset and of
    the share. An error is infinite if the clip does not show the value.
    explained: share of the details' variance that the frames explain.
    moved: mean distance from the start in RGB pixels.
    residuals: distances in RGB pixels of parts of the plane from where the matrix places them.
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
    def read(self) -> float:
        """The share of the planes to read: a little more than was exposed, see LONGER."""
        return min(LONGER * self.share, 1.0)

    @property
    def is_shown(self) -> bool:
        """Whether the clip shows the matrix (see LEAST_EXPLAINED)."""
        return self.explained >= LEAST_EXPLAINED and self.errors[0] <= LARGEST_PX

    @property
    def is_sure(self) -> tuple[bool, bool, bool]:
        """Whether matrix, offset and share are sure (see MOST_PX)."""
        place_error, offset_error, share_error = self.errors
        return (
            self.is_shown and bool(place_error <= MOST_PX),
            self.is_shown and bool(offset_error <= MOST_PLANES),
            self.is_shown and bool(share_error <= MOST_SHARE),
        )

    @property
    def is_changed(self) -> tuple[bool, bool, bool]:
        """Whether to apply matrix, offset and share.

        The offset and the share must be sure, and their change larger than their error. The matrix
        need not be sure: `is_shown` is enough.
        """
        _, is_offset_sure, is_share_sure = self.is_sure
        place_error, offset_error, share_error = self.errors
        return (
            self.is_shown and self.moved >= max(LEAST_PX, 3 * place_error),
            is_offset_sure and abs(self.offset) >= max(LEAST_PLANES, 3 * offset_error),
            is_share_sure and 1 - self.read >= max(LEAST_SHARE, 3 * share_error),
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
        """Return notes for the log on matrix, offset and share; "" if the found value is used."""
        notes = []
        for is_sure, is_changed in zip(self.is_sure, self.is_changed, strict=True):
            if is_changed:
                notes.append("")
            elif is_sure:
                notes.append(", left as it was")
            else:
                notes.append(", not sure: left")
        if self.is_changed[0] and not self.is_sure[0]:
            notes[0] = ", not sure, yet nearer"
        if self.is_changed[2]:
            notes[2] = f", {self.read:.0%} are read"
        return notes


def nominal(spike: Sequence[int], rgb: Sequence[int]) -> np.ndarray:
    """Return the matrix (3, 3), spike pixel -> RGB pixel, of two cameras with the same view.

    spike, rgb: sizes (height, width).
    """
    y = rgb[0] / spike[0]
    x = rgb[1] / spike[1]
    # (x - 1) / 2: the centres of pixels are whole numbers.
    return np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2], [0, 0, 1.0]])


class Pair:
    """A frame and its spikes, as the fit needs them.

    light: (H, W, 3) float32 of the frame. bright: (H, W), 1 where the frame is overexposed.
    sums: (T + 1, h, w), the spikes of each pixel before plane 0, 1, ... T.
    """

    def __init__(self, view: View, factor: int, light: str) -> None:
        """Prepare a view. factor: factor x factor pixels become one. light: see `fit`."""
        values = view.frame.astype(np.float32) / 255
        self.light = to_linear(values) if light == "linear" else values
        self.bright = (view.frame.max(axis=2) >= 252).astype(np.float32)  # nearly saturated
        self.before = view.before
        self.count = view.count

        planes, height, width = view.stream.shape
        height, width = height // factor, width // factor
        stream = view.stream[:, : height * factor, : width * factor]
        if factor > 1:
            self.light = _binned(self.light, factor)
            self.bright = _binned(self.bright, factor)
            stream = stream.reshape(planes, height, factor, width, factor)
            # A sum of factor^2 spikes may not fit into 8 bits.
            kind = np.promote_types(np.uint16, stream.dtype)
            stream = stream.sum(axis=(2, 4), dtype=kind)

        # With cumulative sums, the sum of any range of planes is one difference.
        kind = np.uint16 if planes * int(stream.max()) < 2**16 else np.uint32
        self.sums = np.zeros((planes + 1, height, width), kind)
        np.cumsum(stream, axis=0, dtype=kind, out=self.sums[1:])
        self._mend_pixels()

    def _mend_pixels(self) -> None:
        """Replace pixels that always or never fire by the median of their neighbours."""
        total = self.sums[-1].astype(np.float32)
        usual = cv2.medianBlur(total, 5)
        # Three times the neighbours or a third of them, with a margin of 8 spikes.
        is_wrong = (total > 3 * usual + 8) | (total < usual / 3 - 8)
        for y, x in np.argwhere(is_wrong):
            around = self.sums[:, max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
            self.sums[:, y, x] = np.median(around, axis=(1, 2))

    def features(self, sigma: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the features that explain the spikes, and the overexposure, blurred by `sigma`.

        Features: (H, W, 5): the three colours; the square of grey, for the response curve; the
        Laplacian of grey, for the blur of the spike camera's lens. Overexposure: (H, W). sigma: in
        RGB pixels.
        """
        grey = self.light.mean(axis=2)
        colours = _blur(self.light, sigma)
        curve = _blur(grey**2, sigma)
        lens = 2 * cv2.Laplacian(_blur(grey, sigma), cv2.CV_32F)
        features = np.concatenate((colours, np.stack((curve, lens), axis=2)), axis=2)
        return features, _blur(self.bright, sigma)

    def until(self, times: np.ndarray) -> np.ndarray:
        """Return the spikes of each pixel up to the time of its row, (h, w) float32.

        times: (h,), in planes from the nominal start of the exposure. The sums are interpolated
        between two planes.
        """
        last = len(self.sums) - 1
        times = np.clip(times + self.before, 0, last)
        plane = np.minimum(times.astype(int), last - 1)  # so that plane + 1 exists
        rows = np.arange(self.sums.shape[1])
        below = self.sums[plane, rows].astype(np.float32)
        above = self.sums[plane + 1, rows].astype(np.float32)
        part = (times - plane).astype(np.float32)
        return below + part[:, None] * (above - below)


def fit(
    views: Sequence[View],
    start: np.ndarray,
    light: str = "linear",
    model: str | None = "similarity",
    most_offset: float = MOST_OFFSET,
) -> Found:
    """Fit the matrix and times that explain the spikes best.

    start: the matrix to begin with.
    light: what the spikes integrate, "linear" light or "display" values.
    model: what the last rounds change of the matrix (MODELS). Earlier rounds change shift, scale
    and turn. None: the matrix is fixed, and has no error.
    most_offset: largest offset that is searched, in planes.
    """
    height, width = views[0].stream.shape[1:]
    factor = int(np.ceil(np.sqrt(height * width / MOST_PIXELS)))
    pairs = [Pair(view, factor, light) for view in views]
    to_pixel = nominal((1, 1), (factor, factor))  # binned pixel -> pixel
    to_binned = np.linalg.inv(to_pixel)
    state = State(pairs, to_binned @ start @ to_pixel, model, most_offset)

    # From coarse to fine: if the start is off by many pixels, fine details match at wrong places.
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


class State:
    """The present estimate, and its rounds of Gauss-Newton. The module has the equations.

    Lengths are in spike pixels, times in planes from the nominal start of the exposure. Changes of
    the matrix are measured in half sides of the plane (`radius`).
    """

    def __init__(
        self, pairs: Sequence[Pair], matrix: np.ndarray, model: str | None, most_offset: float
    ) -> None:
        self.pairs = pairs
        self.matrix = matrix
        self.most_offset = most_offset
        self.changes = CHANGES[: MODELS[model] if model else 0]

        self.planes = pairs[0].count
        self.middle = self.planes / 2
        self.length = float(self.planes)
        self.roll = 0.0

        height, width = pairs[0].sums.shape[1:]
        center_x = (width - 1) / 2
        center_y = (height - 1) / 2
        self.radius = max(height, width) / 2
        # Coordinates in half sides: -1 ... 1 along the longer side.
        y, x = np.mgrid[:height, :width].astype(np.float32)
        self.x = (x - center_x) / self.radius
        self.y = (y - center_y) / self.radius
        to_unit = [[1, 0, -center_x], [0, 1, -center_y], [0, 0, self.radius]]
        self.to_unit = np.array(to_unit) / self.radius

        # Times are fitted only if an exposure has planes before and after it.
        self.has_room = False
        for pair in pairs:
            after = len(pair.sums) - 1 - pair.before - self.planes
            if min(pair.before, after) >= LEAST_ROOM:
                self.has_room = True
        self.place_error = np.inf
        self.time_errors = (np.inf, np.inf)
        self.explained = 0.0
        self.residuals = np.empty(0)

    def settle(self, sigma: float, rounds: int) -> None:
        """Run `rounds` rounds on details of size `sigma` (spike pixels).

        On the finest details only the matrix is changed, from its parts.
        """
        is_fine = sigma < TIME_SIGMA
        scale = scale_of(self.matrix)
        # Blur the frame as much as the spikes, by at least half a pixel. 1/12: variance of the area
        # of one pixel.
        blur = np.sqrt(max((sigma**2 + 1 / 12) * scale**2 - 1 / 12, 0.25))
        features = [pair.features(blur) for pair in self.pairs]
        for _ in range(rounds):
            # The views that can be compared at the present estimate.
            rows = []
            for pair, (values, bright) in zip(self.pairs, features, strict=True):
                row = self._row(pair, values, bright, sigma)
                if row is not None and row.inside.any():
                    rows.append(row)
            if not rows:
                return
            if is_fine:
                step = self._step_of_parts(rows, sigma)
            else:
                step = self._step(rows, sigma, with_times=self.has_room)
            pixels = np.abs(step[:4]).max() * self.radius
            planes = np.abs(step[4:]).max(initial=0)
            if pixels < 0.003 and planes < 0.03:  # settled
                break

    def _row(
        self, pair: Pair, features: np.ndarray, bright: np.ndarray, sigma: float
    ) -> "Row | None":
        """Return the details of a view at the present estimate.

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
        reach = max(reach, 1.0)  # without room the times are fixed, and any reach will do

        # The details that the spikes show.
        every = max(1, int(sigma / 1.5))  # blurred details vary slowly: every `every`-th pixel
        sums = pair.until(end) - pair.until(start)
        around_start = pair.until(start + reach) - pair.until(start - reach)
        around_end = pair.until(end + reach) - pair.until(end - reach)
        spikes = _details(sums, sigma)[::every, ::every]
        first = _details(around_start, sigma)[::every, ::every]
        last = _details(around_end, sigma)[::every, ::every]

        # The details that the frame shows at the places of these pixels.
        u, v = self._places(sums.shape, every)
        inside = self._inside(u, v, bright, sigma, every)
        moved = cv2.remap(features, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        side = _odd(8 * sigma / every)
        return Row(
            spikes=spikes,
            shown=moved - cv2.blur(moved, (side, side)),
            first=first / (2 * reach),  # spikes per plane
            last=last / (2 * reach),
            inside=inside,
            noise=self._noise(sums, inside, sigma, reach),
            reach=reach,
            every=every,
        )

    def _places(self, size: tuple[int, int], every: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the column u and row v of the frame, (h, w), of every `every`-th spike pixel."""
        y = np.arange(0, size[0], every, dtype=np.float32)
        x = np.arange(0, size[1], every, dtype=np.float32)
        x, y = np.meshgrid(x, y)
        M = self.matrix
        u = M[0, 0] * x + M[0, 1] * y + M[0, 2]
        v = M[1, 0] * x + M[1, 1] * y + M[1, 2]
        depth = M[2, 0] * x + M[2, 1] * y + M[2, 2]
        return (u / depth).astype(np.float32), (v / depth).astype(np.float32)

    def _inside(
        self, u: np.ndarray, v: np.ndarray, bright: np.ndarray, sigma: float, every: int
    ) -> np.ndarray:
        """Select the pixels (h, w) to compare: within the frame, and not overexposed there."""
        height, width = bright.shape
        margin = (sigma + 1) * scale_of(self.matrix) / 2  # RGB pixels
        inside = (u > margin) & (v > margin)
        inside &= (u < width - 1 - margin) & (v < height - 1 - margin)
        # Less than 2 % of the blur's area is overexposed.
        inside &= cv2.remap(bright, u, v, cv2.INTER_LINEAR) < 0.02

        border = -(-2 // every)  # two pixels, rounded up
        inside[:border] = inside[-border:] = False
        inside[:, :border] = inside[:, -border:] = False
        return inside

    def _noise(
        self, sums: np.ndarray, inside: np.ndarray, sigma: float, reach: float
    ) -> list[float]:
        """Return the expected squared noise of the summed spikes, and of the rates at both ends.

        A pixel counts whole spikes from a random phase. If it expects c spikes, and p is the
        fraction of c, it counts one more with probability p. The variance is p (1 - p).
        """
        rates = np.maximum(_blur(sums, 3.0), 0) / self.length  # spikes per plane
        # Blurring divides the variance of the noise by 4 pi sigma^2.
        filtered = inside.sum() / (4 * np.pi * sigma**2)
        noise = []
        for planes in (self.length, 2 * reach):
            p = rates * planes % 1
            noise.append(filtered * float((p * (1 - p)).mean()))
        return noise

    def _step(self, rows: list["Row"], sigma: float, with_times: bool) -> np.ndarray:
        """Change the estimate by one round of Gauss-Newton. Returns the changes (7,).

        Order: shift right, shift down, scale, turn (in half sides of the plane); middle, length,
        roll (in planes). Without times the last three are 0.
        """
        mix, residuals, weights, explained = _explained(rows)
        self.explained = explained
        count = 7 if with_times else 4  # changes; J has five more columns, the mix

        # The normal equations, summed over the views.
        H = np.zeros((count + 5, count + 5))
        g = np.zeros(count + 5)
        of_tiles = []  # g of each tile, because the errors of its pixels are correlated
        time_noise = np.zeros(3)  # part of the diagonal of H for the times that is only noise
        unexplained = 0.0  # gradient of the residual by the length, removed from g
        for row, w, r in zip(rows, weights, residuals, strict=True):
            J = self._jacobian(row, mix, count)
            WJ = J * w[:, None]
            H = H + WJ.T @ J
            of_pixels = WJ * r[:, None]
            g = g + of_pixels.sum(axis=0)
            tiles = self._tiles(row, 4)
            for tile in np.unique(tiles):
                of_tiles.append(of_pixels[tiles == tile].sum(axis=0))
            if with_times:
                # The residual grows with the length, which would pull the length down. Remove this
                # part of g.
                share = float(w.mean())
                misfit = max(0.0, (w * r**2).sum() - share * row.noise[0]) / self.length
                g[5] -= misfit
                unexplained += misfit
                # J of the times holds noise as well, see _time_errors.
                time_noise += share * row.noise[1] / (4 * row.reach**2) * np.array((2, 0.5, 1))

        # Priors: of the times, and a very strong one if the matrix is fixed.
        P = np.zeros(len(H))
        p = np.zeros(len(H))
        if with_times:
            noise = _mean_square(residuals, weights) * _shared(sigma, rows[0].every)
            length = SPREAD_SHARE * self.planes
            roll = SPREAD_ROLL * self.planes
            spread = np.array((SPREAD_OFFSET, length, roll))
            P[4:7] = noise / spread**2
            p[4:7] = self.middle - self.planes / 2, self.length - self.planes, self.roll
        if not len(self.changes):
            P[:4] = 1e9 * np.diag(H)[:4]
        A = H + np.diag(P + 1e-7 * np.diag(H) + 1e-12)  # solvable even without texture
        step = -np.linalg.solve(A, g + P * p)

        change = self._move(step[:4])
        if not with_times:
            return np.concatenate((change, np.zeros(3)))
        self._change_times(step[4:7])
        self.time_errors = self._time_errors(H, A, np.array(of_tiles), time_noise, unexplained)
        return np.concatenate((change, step[4:7]))

    def _jacobian(self, row: "Row", mix: np.ndarray, count: int) -> np.ndarray:
        """Return J (n, count + 5): columns of the first `count` changes, then of the mix."""
        columns = self._columns(row, row.shown @ mix.astype(np.float32))
        of_changes = np.stack([column[row.inside] for column in columns[:count]], axis=1)
        return np.concatenate((of_changes.astype(float), -row.shown[row.inside]), axis=1)

    def _change_times(self, step: np.ndarray) -> None:
        """Change middle, length and roll by a step (3,), within their limits."""
        later, longer, rolled = np.clip(step, -8, 8)
        planes = self.planes
        offset = self.middle + later - planes / 2
        offset = np.clip(offset, -self.most_offset, self.most_offset)
        self.middle = planes / 2 + float(offset)
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

        The errors of the step are the roots of the diagonal of A^-1 (sum of g g' over the tiles)
        A^-1. Errors are correlated within a tile, not between tiles. They are divided by the part
        of H that is not noise, because noise shows no motion.
        """
        inverse = np.linalg.inv(A)
        covariance = inverse @ of_tiles.T @ of_tiles @ inverse
        of_times = np.diag(H)[4:6]
        seen = of_times - time_noise[:2]
        real = np.maximum(seen / of_times, 1e-3)
        errors = np.sqrt(np.diag(covariance))[4:6] / real
        errors[1] += 0.5 * unexplained / max(float(seen[1]), 1e-9)
        return float(errors[0]), float(errors[1]) / self.planes

    def _move(self, step: np.ndarray) -> np.ndarray:
        """Change the matrix by at most a twentieth of the plane. Returns the change, see _step."""
        change = step * min(1.0, 0.1 / (np.abs(step).max() + 1e-12))
        unit = np.eye(3) + np.tensordot(change, CHANGES[: len(change)], 1)
        self.matrix = self.matrix @ np.linalg.inv(self.to_unit) @ unit @ self.to_unit
        self.matrix /= self.matrix[2, 2]
        return change

    def _step_of_parts(self, rows: list["Row"], sigma: float) -> np.ndarray:
        """Shift PARTS x PARTS parts t separately, and change the matrix from their shifts.

        H_t (2, 2) and g_t (2,) belong to the shift of part t, summed over the views v. The shift is
        d_t = -H_t^-1 g_t. `_joined` turns the shifts into one change of the matrix, which is
        returned, see `_step`.
        """
        mix, residuals, weights, _ = _explained(rows)
        count = PARTS * PARTS
        # The normal equations of each view and part.
        H = np.zeros((len(rows), count, 2, 2))
        g = np.zeros((len(rows), count, 2))
        center_sums = np.zeros((count, 3))  # x, y and number of the compared pixels of a part
        for v, (row, w, r) in enumerate(zip(rows, weights, residuals, strict=True)):
            tiles = self._tiles(row, PARTS)
            columns = self._columns(row, row.shown @ mix.astype(np.float32))
            J = [column[row.inside] for column in columns[:2]]  # right, down
            for a in (0, 1):
                g[v, :, a] = np.bincount(tiles, w * J[a] * r, count)
                for b in (0, 1):
                    H[v, :, a, b] = np.bincount(tiles, w * J[a] * J[b], count)
            x = self.x[:: row.every, :: row.every]
            y = self.y[:: row.every, :: row.every]
            for a, place in enumerate((x, y, np.ones_like(x))):
                center_sums[:, a] += np.bincount(tiles, place[row.inside], count)

        # Use only parts with texture. If too few are left, do not change the matrix.
        usable = _usable_parts(H.sum(axis=0), pixels=center_sums[:, 2])
        if usable.sum() < len(self.changes):
            self.place_error = np.inf
            self.residuals = np.empty(0)
            return np.zeros(4)
        H = H[:, usable]
        g = g[:, usable]
        centers = center_sums[usable] / center_sums[usable, 2:]

        # Turn the shifts of the parts into one change of the matrix.
        noise = _mean_square(residuals, weights) * _shared(sigma, rows[0].every)
        shifts, variances = _shifts(H, g, noise)
        step, covariance, left = _joined(shifts, variances, centers, self.changes)

        # The error of this change is a mean over the plane in RGB pixels. A shift moves all places
        # alike; any other change moves a place in proportion to its distance from the middle.
        pixel = self.radius * scale_of(self.matrix)
        of_change = np.diag(covariance)
        mean_square = float((self.x**2 + self.y**2).mean())
        variance = of_change[:2].sum() + mean_square * of_change[2:].sum()
        self.place_error = pixel * float(np.sqrt(variance))
        self.residuals = pixel * np.hypot(left[:, 0], left[:, 1])
        return self._move(step)

    def _columns(self, row: "Row", shown: np.ndarray) -> list[np.ndarray]:
        """Return the derivatives of r, each (h, w).

        Order: shift right, shift down, scale, turn, middle, length, roll.
        shown: the details of the frame that explain the spikes, F a, (h, w).
        """
        down, right = np.gradient(shown)
        down = down * self.radius / row.every
        right = right * self.radius / row.every
        x = self.x[:: row.every, :: row.every]
        y = self.y[:: row.every, :: row.every]
        later = row.last - row.first
        # A longer exposure has larger sums. The mix explains that part; the rest shows the length.
        longer = (row.first + row.last) / 2 - shown / np.float32(self.length)
        return [
            -right,
            -down,
            -(right * x + down * y),
            right * y - down * x,
            later,
            longer,
            later * y,
        ]

    def _tiles(self, row: "Row", count: int) -> np.ndarray:
        """Return the number of the tile of each compared pixel, in a grid of count x count."""
        x = self.x[:: row.every, :: row.every][row.inside]
        y = self.y[:: row.every, :: row.every][row.inside]
        columns = np.clip((x + 1) * count / 2, 0, count - 0.01).astype(int)
        rows = np.clip((y + 1) * count / 2, 0, count - 0.01).astype(int)
        return count * rows + columns

    def gain_and_dark(self) -> tuple[float, float]:
        """Fit spikes per plane of a (binned) pixel = gain light + dark, by least squares."""
        every_light = []
        every_rate = []
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        for pair in self.pairs:
            begin = np.full(len(self.y), self.middle - self.length / 2)
            end = np.full(len(self.y), self.middle + self.length / 2)
            rate = (pair.until(end) - pair.until(begin)) / self.length
            every_rate.append(rate.ravel())
            height, width = pair.sums.shape[1:]
            light = cv2.warpPerspective(
                pair.light.mean(axis=2),
                self.matrix,
                (width, height),
                flags=flags,
                borderMode=cv2.BORDER_REPLICATE,
            )
            every_light.append(light.ravel())

        light = np.concatenate(every_light).astype(float)
        rate = np.concatenate(every_rate).astype(float)
        covariance = ((light - light.mean()) * (rate - rate.mean())).mean()
        gain = float(covariance / max(light.var(), 1e-9))
        dark = float(rate.mean() - gain * light.mean())
        return gain, dark


@dataclass(frozen=True)
class Row:
    """A view at an estimate, on every `every`-th spike pixel.

    spikes: details of the summed spikes (h, w).
    shown: details of the five features (h, w, 5).
    first, last: details of the spikes per plane around the first and the last plane (h, w).
    inside: the pixels to compare (h, w).
    noise: see `State._noise`.
    reach: number of planes around start and end, over which the change with time was measured.
    """

    spikes: np.ndarray
    shown: np.ndarray
    first: np.ndarray
    last: np.ndarray
    inside: np.ndarray
    noise: Sequence[float]
    reach: float
    every: int


def _explained(
    rows: Sequence[Row],
) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray], float]:
    """Find the mix a (5,) with which the frames explain the spikes best.

    Returns a, the residuals r (n,) and weights w (n,) of the compared pixels of each view, and the
    explained share of the variance. a = (F' W F)^-1 F' W s, summed over the views and solved twice;
    the second time pixels with large residuals count less (Huber).
    """
    features = [row.shown[row.inside].astype(float) for row in rows]
    spikes = [row.spikes[row.inside].astype(float) for row in rows]
    weights = [np.ones(len(s)) for s in spikes]
    for _ in range(2):
        square = 0.0
        target = 0.0
        for F, s, w in zip(features, spikes, weights, strict=True):
            WF = F * w[:, None]
            square = square + WF.T @ F
            target = target + WF.T @ s
        regular = 1e-5 * np.diag(square) + 1e-12
        mix = np.linalg.solve(square + np.diag(regular), target)
        residuals = [s - F @ mix for F, s in zip(features, spikes, strict=True)]

        # 1.4826 times the median of |r| is the standard deviation of normal residuals. Pixels
        # beyond 2.5 standard deviations count less.
        usual = 2.5 * 1.4826 * np.median(np.abs(np.concatenate(residuals))) + 1e-9
        weights = [1 / np.maximum(1, np.abs(r) / usual) for r in residuals]
    left = sum((r**2).sum() for r in residuals)
    whole = sum((s**2).sum() for s in spikes)
    return mix, residuals, weights, float(1 - left / whole)


def _mean_square(residuals: list[np.ndarray], weights: list[np.ndarray]) -> float:
    """Return the weighted mean square of the residuals of all views."""
    squares = [r**2 * w for r, w in zip(residuals, weights, strict=True)]
    return np.concatenate(squares).mean()


def _shared(sigma: float, every: int) -> float:
    """Return the number of compared pixels whose noise is correlated by the blur."""
    return 4 * np.pi * sigma**2 / every**2


def _usable_parts(H: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Select the parts (t,) with enough pixels, and texture in two directions. H: (t, 2, 2)."""
    strength = np.trace(H, axis1=1, axis2=2)
    usual = np.median(strength[strength > 0])
    usable = (pixels > 0.3 * pixels.max()) & (strength > 1e-3 * usual)
    # The determinant is 0 if all texture has one direction, as along an edge.
    return usable & (np.linalg.det(H) > 1e-4 * strength**2)


def _shifts(H: np.ndarray, g: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the shifts (t, 2) of the parts and their variances (t, 2, 2).

    H: (v, t, 2, 2), g: (v, t, 2), of each view and part. With several views, the variance is the
    mean of two estimates: from the noise, and from the spread of the views.
    """
    views = len(H)
    inverse = np.linalg.inv(H.sum(axis=0))
    shifts = -np.einsum("tij,vtj->ti", inverse, g)
    expected = inverse * noise
    if views == 1:
        return shifts, expected
    misfit = g + np.einsum("vtij,tj->vti", H, shifts)
    own = np.einsum("tij,vtj->vti", inverse, misfit)
    found = np.einsum("vti,vtj->tij", own, own) * views / max(views - 1, 1)
    return shifts, (expected + found) / 2


def _joined(
    shifts: np.ndarray, variances: np.ndarray, places: np.ndarray, changes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the one change of the matrix that moves n parts by their shifts.

    shifts: (n, 2) of parts at `places` (n, 3) with `variances` (n, 2, 2). changes: (k, 3, 3).
    Returns the amounts c (k,) of these changes, their covariance (k, k), and what is left of the
    shifts (n, 2).

    c = (sum J' V^-1 J)^-1 sum J' V^-1 d over the parts, where J (2, k) says how a part at its place
    moves with c. Besides their noise, all parts have one extra variance (parallax). It is chosen so
    that the residuals are as large as expected (Paule-Mandel).
    """
    fields = np.einsum("kij,tj->tki", changes, places)
    # In the image the third coordinate divides: d(x / z) = dx - x dz at z = 1.
    J = (fields[..., :2] - places[:, None, :2] * fields[..., 2:]).swapaxes(1, 2)

    def solve(extra: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        W = np.linalg.inv(variances + extra * np.eye(2))
        covariance = np.linalg.inv(np.einsum("tia,tij,tjb->ab", J, W, J))
        c = covariance @ np.einsum("tia,tij,tj->a", J, W, shifts)
        left = shifts - J @ c
        misfit = float(np.einsum("ti,tij,tj->", left, W, left))
        return c, covariance, left, misfit

    # Bisection: the misfit falls as the extra variance grows.
    expected = 2 * len(shifts) - len(changes)  # degrees of freedom
    low = 0.0
    high = 1.0  # in squared half sides of the plane
    while high > 1e-9:
        extra = (low + high) / 2
        _, _, _, misfit = solve(extra)
        if misfit > expected:
            low = extra
        else:
            high = extra
        if high - low < 1e-3 * high:
            break
    c, covariance, left, _ = solve(high)
    return c, covariance, left


def _mean_distance(before: np.ndarray, after: np.ndarray, width: int, height: int) -> float:
    """Return the mean distance in RGB pixels between two matrices, on 9 x 9 spike pixels."""
    columns = np.linspace(0, width - 1, 9)
    rows = np.linspace(0, height - 1, 9)
    grid = np.stack(np.meshgrid(columns, rows), axis=-1).reshape(1, -1, 2)
    moved = cv2.perspectiveTransform(grid, after) - cv2.perspectiveTransform(grid, before)
    x, y = moved[0].T
    return float(np.hypot(x, y).mean())


def _binned(image: np.ndarray, factor: int) -> np.ndarray:
    """Replace factor x factor pixels of an image (H, W, ...) by their mean."""
    height = image.shape[0] // factor
    width = image.shape[1] // factor
    whole = image[: height * factor, : width * factor]
    return cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA)


def _details(image: np.ndarray, sigma: float) -> np.ndarray:
    """Band-pass: keep details larger than `sigma` and smaller than 8 `sigma` pixels."""
    side = _odd(8 * sigma)
    blurred = _blur(image, sigma)
    return blurred - cv2.blur(blurred, (side, side))


def _odd(x: float) -> int:
    return int(x) | 1  # a box has a middle only with an odd side


def _blur(image: np.ndarray, sigma: float) -> np.ndarray:
    return cv2.GaussianBlur(image, (0, 0), float(sigma))
