"""Where and when two cameras saw the same: fitted from blurry frames and the spikes around their exposures.

What the spikes of an exposure sum up to, moved to where the RGB camera sees it, is the blurry frame. So the matrix
(shift, rotation, scale), the time offset and the share of the planes that was exposed are those with which the frames
explain the sums best: Gauss-Newton on details between two sizes, from coarse to fine, over all frames together. At
last parts of the plane are matched on their own, and count alike where they differ by more than their noise: layers at
other depths are seen elsewhere (parallax), and how much the parts differ is how sure the matrix is. The mix of the
colours, the response curve and the blur of the spike camera's lens are fitted along, linearly. Where the pixels are
exposed depends on the row (rolling shutter), fitted as well.
What cannot be told from the clip stays as it is: see `Found.is_changed`. Where all moves at one speed, as in a pan, a
shift looks like a time offset: only both together are right.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from data.spike.simulate import to_linear
from data.spike_grid import scale_of

MOST_PIXELS = 120_000  # of a plane; larger ones are binned
MOST_OFFSET = 20.0  # planes that are looked for
STEP, LEAST_ROOM = 8, 3  # planes before and after a time by which its change is measured, and the fewest
# Small changes of a plane whose half side is 1.
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
MODELS = {"similarity": 4, "affine": 6, "homography": 8}  # how many of them a matrix may have
PARTS = 5  # of the plane's larger side, matched on their own
TIME_SIGMA, FINE_SIGMA = 2.0, 1.2  # in (binned) spike pixels: the finest details for the times, for the matrix
SPREAD_OFFSET, SPREAD_SHARE, SPREAD_ROLL = 15.0, 0.3, 0.1  # priors: planes, share, share per half of the rows
# Shown: the details of the frames explain as much of the variance, and the place is as exact. Sure: errors are at most
# these; of 100 random rigs, 95 % of the places that are sure lie within 0.2 px.
LEAST_EXPLAINED, LARGEST_PX, MOST_PX, MOST_PLANES, MOST_SHARE = 0.25, 0.5, 0.15, 0.7, 0.03
# Changes below these, or below three times their error, are none.
LEAST_PX, LEAST_PLANES, LEAST_SHARE = 0.15, 0.75, 0.04
# Windows of several planes, pixels and lens weaken ratios to the mean of the exposure; one of more planes makes up for
# it. Measured at shares of 0.5 to 0.8, for the estimate without training and for weights/operator.pth.
LONGER = 1.12


@dataclass(frozen=True)
class View:
    """A blurry frame (H, W, 3) uint8, R, G, B, and its spikes (T, h, w): planes before + count of T are its own.

    A stream of one plane, before 0, may hold the numbers of spikes of an exposure: only the matrix is fitted then.
    """

    frame: np.ndarray
    stream: np.ndarray
    before: int
    count: int


@dataclass(frozen=True)
class Found:
    """matrix (3, 3): spike pixel -> RGB pixel. offset: planes by which the middle of the exposure is later; share: of
    the planes that was exposed. gain, dark: spikes per plane = gain light + dark. errors: standard errors of the place
    in RGB pixels (mean over the plane), of the offset and of the share; infinite where the clip does not show it.
    explained: share of the details' variance that the frames explain. moved: mean distance from the start in RGB
    pixels. residuals: distances in RGB pixels of parts of the plane from where the matrix places them.
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
        """The share of the planes that is to be read: a little more than was exposed, see LONGER."""
        return min(LONGER * self.share, 1.0)

    @property
    def is_shown(self) -> bool:
        """Whether the frames show anything of where the spikes are."""
        return self.explained >= LEAST_EXPLAINED and self.errors[0] <= LARGEST_PX

    @property
    def is_sure(self) -> tuple[bool, bool, bool]:
        """Of the matrix, the offset and the share."""
        limits = zip(self.errors, (MOST_PX, MOST_PLANES, MOST_SHARE), strict=True)
        return tuple(self.is_shown and bool(error <= most) for error, most in limits)

    @property
    def is_changed(self) -> tuple[bool, bool, bool]:
        """Whether to change matrix, offset and share: by more than their errors, and sure (the matrix: shown)."""
        sizes = (self.moved, LEAST_PX), (abs(self.offset), LEAST_PLANES), (1 - self.read, LEAST_SHARE)
        trusted = zip((self.is_shown, *self.is_sure[1:]), sizes, self.errors, strict=True)
        return tuple(known and size >= max(least, 3 * error) for known, (size, least), error in trusted)

    def sentence(self) -> str:
        if not self.is_shown:
            shown = f"explain {self.explained:.0%} of the spikes' details, error of the place {self.errors[0]:.2f} px"
            return f"not sure (the frames {shown}): nothing is changed"
        angle = np.degrees(np.arctan2(self.matrix[1, 0], self.matrix[0, 0]))
        texts = (
            f"moved by {self.moved:.2f} px, turned by {angle:.2f} degrees, {scale_of(self.matrix):.4f} RGB pixels per "
            f"spike pixel (error {self.errors[0]:.2f} px)",
            f"exposed {self.offset:+.1f} planes later (error {self.errors[1]:.1f})",
            f"for {self.share:.0%} of the planes (error {self.errors[2]:.1%})",
        )
        sure, changed = self.is_sure, self.is_changed
        how = ["" if c else ", left as it was" if s else ", not sure: left" for s, c in zip(sure, changed, strict=True)]
        if changed[0] and not sure[0]:
            how[0] = ", not sure, yet nearer"
        if changed[2]:
            how[2] = f", {self.read:.0%} are read"
        text = "; ".join(text + note for text, note in zip(texts, how, strict=True))
        return f"{text}; spikes per plane = {self.gain:.3f} light {self.dark:+.4f}"


def nominal(spike: Sequence[int], rgb: Sequence[int]) -> np.ndarray:
    """(3, 3): spike pixel -> RGB pixel of two cameras with the same view; sizes (height, width)."""
    y, x = (side / own for side, own in zip(rgb, spike, strict=True))
    return np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2], [0, 0, 1.0]])


class Pair:
    """Light and overexposure of a frame, and its spikes summed up to each plane; factor: pixels that become one."""

    def __init__(self, view: View, factor: int, light: str) -> None:
        values = view.frame.astype(np.float32) / 255
        self.light = to_linear(values) if light == "linear" else values
        self.bright = (view.frame.max(axis=2) >= 252).astype(np.float32)
        planes, height, width = view.stream.shape
        height, width = height // factor, width // factor
        stream = view.stream[:, : height * factor, : width * factor]
        if factor > 1:
            size = tuple(side // factor for side in self.bright.shape[::-1])
            self.light, self.bright = (
                cv2.resize(image[: size[1] * factor, : size[0] * factor], size, interpolation=cv2.INTER_AREA)
                for image in (self.light, self.bright)
            )
            stream = stream.reshape(planes, height, factor, width, factor).sum(
                axis=(2, 4), dtype=np.promote_types(np.uint16, stream.dtype)
            )
        kind = np.uint16 if planes * int(stream.max()) < 2**16 else np.uint32
        self.sums = np.zeros((planes + 1, height, width), kind)
        np.cumsum(stream, axis=0, dtype=kind, out=self.sums[1:])
        # Pixels that always or never fire count as their neighbours.
        total = self.sums[-1].astype(np.float32)
        usual = cv2.medianBlur(total, 5)
        for y, x in np.argwhere((total > 3 * usual + 8) | (total < usual / 3 - 8)):
            around = self.sums[:, max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
            self.sums[:, y, x] = np.median(around, axis=(1, 2))
        self.before, self.count = view.before, view.count

    def features(self, sigma: float) -> tuple[np.ndarray, np.ndarray]:
        """What explains the spikes, blurred by `sigma` RGB pixels: (H, W, 5), and how overexposed it is (H, W)."""
        light, grey = _blur(self.light, sigma), self.light.mean(axis=2)
        curve, lens = _blur(grey**2, sigma), 2 * cv2.Laplacian(_blur(grey, sigma), cv2.CV_32F)
        return np.concatenate((light, np.stack((curve, lens), axis=2)), axis=2), _blur(self.bright, sigma)

    def until(self, times: np.ndarray) -> np.ndarray:
        """Spikes of each pixel up to the time of its row (h,), in planes from the nominal start: (h, w) float32."""
        times = np.clip(times + self.before, 0, len(self.sums) - 1)
        plane, rows = np.minimum(times.astype(int), len(self.sums) - 2), np.arange(self.sums.shape[1])
        below, above = (self.sums[plane + more, rows].astype(np.float32) for more in (0, 1))
        return below + (times - plane).astype(np.float32)[:, None] * (above - below)


def fit(
    views: Sequence[View],
    start: np.ndarray,
    light: str = "linear",
    model: str | None = "similarity",
    most_offset: float = MOST_OFFSET,
) -> Found:
    """The matrix and times that explain the spikes of the views best. start: the matrix to begin with.

    light: what the spikes integrate, "linear" light or "display" values. model: what is changed of the matrix at last,
    see MODELS, before that its shift, scale and turn; None: it stays, and has no error. most_offset: planes.
    """
    height, width = views[0].stream.shape[1:]
    factor = int(np.ceil(np.sqrt(height * width / MOST_PIXELS)))
    pairs = [Pair(view, factor, light) for view in views]
    same = nominal((1, 1), (factor, factor))  # binned pixel -> pixel
    state = State(pairs, np.linalg.inv(same) @ start @ same, model, most_offset)
    coarse = max(6.0, min(pairs[0].sums.shape[1:]) / 10)
    for sigma, rounds in ((coarse, 8), (3.0, 6), (TIME_SIGMA, 8), (FINE_SIGMA, 4 if model else 0)):
        state.settle(sigma, rounds)
    moved = same @ state.matrix @ np.linalg.inv(same)
    corners = np.stack(np.meshgrid(np.linspace(0, width - 1, 9), np.linspace(0, height - 1, 9)), axis=-1).reshape(-1, 2)
    places = [cv2.perspectiveTransform(corners[None], matrix)[0] for matrix in (start, moved)]
    light, rates = [], []  # spikes per plane of a (binned) pixel = gain light + dark, by least squares
    for pair in pairs:
        begin, end = (np.full(len(state.y), state.middle + side * state.length / 2) for side in (-1, 1))
        rates.append(((pair.until(end) - pair.until(begin)) / state.length).ravel())
        how = {"flags": cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, "borderMode": cv2.BORDER_REPLICATE}
        light.append(cv2.warpPerspective(pair.light.mean(axis=2), state.matrix, pair.sums.shape[:0:-1], **how).ravel())
    light, rates = (np.concatenate(each).astype(float) for each in (light, rates))
    gain = float(((light - light.mean()) * (rates - rates.mean())).mean() / max(light.var(), 1e-9))
    dark = float(rates.mean() - gain * light.mean())
    return Found(
        moved, state.middle - pairs[0].count / 2, state.length / pairs[0].count, gain / factor**2, dark / factor**2,
        (state.place_error * factor, *state.time_errors), state.explained,
        float(np.hypot(*(places[1] - places[0]).T).mean()), tuple((state.residuals * factor).tolist()),
    )  # fmt: skip


class State:
    """The present estimate, and its rounds of Gauss-Newton."""

    def __init__(self, pairs: Sequence[Pair], matrix: np.ndarray, model: str | None, most_offset: float) -> None:
        self.pairs, self.matrix, self.planes = pairs, matrix, pairs[0].count
        self.changes, self.residuals = CHANGES[: MODELS[model] if model else 0], np.empty(0)
        self.most_offset = most_offset
        self.middle, self.length, self.roll = self.planes / 2, float(self.planes), 0.0
        height, width = pairs[0].sums.shape[1:]
        self.radius = max(height, width) / 2
        y, x = np.mgrid[:height, :width].astype(np.float32)
        self.x, self.y = (x - (width - 1) / 2) / self.radius, (y - (height - 1) / 2) / self.radius
        self.to_unit = np.array(
            [[1, 0, -(width - 1) / 2], [0, 1, -(height - 1) / 2], [0, 0, self.radius]]
        ) / self.radius  # fmt: skip
        # Without planes around any exposure, its time stays as it is.
        self.has_room = any(min(p.before, len(p.sums) - 1 - p.before - self.planes) >= LEAST_ROOM for p in pairs)
        self.place_error, self.time_errors, self.explained = np.inf, (np.inf, np.inf), 0.0

    def settle(self, sigma: float, rounds: int) -> None:
        """Rounds on the details of this size in spike pixels; the finest ones move the matrix alone, part by part."""
        scale, with_times = scale_of(self.matrix), sigma >= TIME_SIGMA and self.has_room
        blur = np.sqrt(max((sigma**2 + 1 / 12) * scale**2 - 1 / 12, 0.25))  # a pixel is a mean over its area
        features = [pair.features(blur) for pair in self.pairs]
        for _ in range(rounds):
            rows = [self._row(pair, *known, sigma) for pair, known in zip(self.pairs, features, strict=True)]
            if not (rows := [row for row in rows if row is not None and row.inside.any()]):
                return
            step = self._step_of_parts(rows, sigma) if sigma < TIME_SIGMA else self._step(rows, sigma, with_times)
            if np.abs(step[:4]).max() * self.radius < 0.003 and np.abs(step[4:]).max(initial=0) < 0.03:
                break

    def _row(self, pair: Pair, features: np.ndarray, bright: np.ndarray, sigma: float) -> "Row | None":
        """The details of a view at the present estimate; None where the stream lacks planes around the exposure."""
        start, end = (self.middle + side * self.length / 2 + self.roll * self.y[:, 0] for side in (-1, 1))
        reach = min(STEP, start.min() + pair.before, len(pair.sums) - 1 - pair.before - end.max())
        if reach < LEAST_ROOM and self.has_room:
            return None
        reach = max(reach, 1.0)
        every = max(1, int(sigma / 1.5))
        sums = pair.until(end) - pair.until(start)
        first, last = (pair.until(time + reach) - pair.until(time - reach) for time in (start, end))
        side, blurred = int(8 * sigma) | 1, [_blur(each, sigma) for each in (sums, first, last)]
        spikes, first, last = ((each - cv2.blur(each, (side, side)))[::every, ::every] for each in blurred)
        height, width = bright.shape
        y, x = (np.arange(0, side, every, dtype=np.float32) for side in sums.shape)
        u, v, depth = (row[0] * x + row[1] * y[:, None] + row[2] for row in self.matrix)
        u, v = (u / depth).astype(np.float32), (v / depth).astype(np.float32)
        margin = (sigma + 1) * scale_of(self.matrix) / 2
        inside = (u > margin) & (v > margin) & (u < width - 1 - margin) & (v < height - 1 - margin)
        inside &= cv2.remap(bright, u, v, cv2.INTER_LINEAR) < 0.02
        border = -(-2 // every)
        inside[:border] = inside[-border:] = inside[:, :border] = inside[:, -border:] = False
        moved = cv2.remap(features, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        side = int(8 * sigma / every) | 1
        rates = np.maximum(_blur(sums, 3.0), 0) / self.length
        # Expected noise of the counts: whole spikes of a light whose phase is random, so of variance p (1 - p).
        filtered, parts = inside.sum() / (4 * np.pi * sigma**2), (rates * self.length % 1, rates * 2 * reach % 1)
        noise = [filtered * float((part * (1 - part)).mean()) for part in parts]
        shown = moved - cv2.blur(moved, (side, side))
        return Row(spikes, shown, first / (2 * reach), last / (2 * reach), inside, noise, reach, every)

    def _step(self, rows: list["Row"], sigma: float, with_times: bool) -> np.ndarray:
        """One round: the estimate is changed. The changes: shift right, down, scale, turn (of the plane's half side
        in spike pixels), then planes of the middle, the length, and the last row.
        """
        mix, left, weights, self.explained = _explained(rows)
        count = 7 if with_times else 4
        normal, gradient, clusters, excess, hidden = 0.0, 0.0, [], 0.0, np.zeros(3)
        for row, weight, residual in zip(rows, weights, left, strict=True):
            shown = row.shown @ mix.astype(np.float32)
            columns, tiles = self._columns(row, shown), self._tiles(row, 4)
            changes = np.stack([column[row.inside] for column in columns[:count]], axis=1).astype(float)
            changes = np.concatenate((changes, -row.shown[row.inside]), axis=1)
            weighted = changes * weight[:, None]
            normal, own = normal + weighted.T @ changes, weighted * residual[:, None]
            gradient = gradient + own.sum(axis=0)
            clusters += [own[tiles == tile].sum(axis=0) for tile in np.unique(tiles)]
            if with_times:
                # What misfits that grow with the length add to the slope by the length.
                share = float(weight.mean())
                misfit = max(0.0, (weight * residual**2).sum() - share * row.noise[0]) / self.length
                gradient[5] -= misfit
                excess += misfit
                hidden += share * row.noise[1] / (4 * row.reach**2) * np.array((2, 0.5, 1))
        residual = np.concatenate([each**2 * w for each, w in zip(left, weights, strict=True)])
        prior, now = np.zeros(len(normal)), np.zeros(len(normal))
        if with_times:
            spread = np.array((SPREAD_OFFSET, SPREAD_SHARE * self.planes, SPREAD_ROLL * self.planes))
            prior[4:7] = residual.mean() * 4 * np.pi * sigma**2 / rows[0].every ** 2 / spread**2
            now[4:7] = self.middle - self.planes / 2, self.length - self.planes, self.roll
        if not len(self.changes):
            prior[:4] = 1e9 * np.diag(normal)[:4]
        full = normal + np.diag(prior + 1e-7 * np.diag(normal) + 1e-12)
        step = -np.linalg.solve(full, gradient + prior * now)
        change = self._move(step[:4])
        if with_times:
            later, longer, rolled = np.clip(step[4:7], -8, 8)
            offset = np.clip(self.middle + later - self.planes / 2, -self.most_offset, self.most_offset)
            self.middle = self.planes / 2 + float(offset)
            self.length = float(np.clip(self.length + longer, 0.4 * self.planes, 1.05 * self.planes))
            self.roll = float(np.clip(self.roll + rolled, -0.2 * self.planes, 0.2 * self.planes))
            # The normal matrix holds the noise of the changes too, which shows no motion.
            seen = np.diag(normal)[4:6] - hidden[:2]
            real = np.maximum(seen / np.diag(normal)[4:6], 1e-3)
            inverse, clusters = np.linalg.inv(full), np.array(clusters)
            errors = np.sqrt(np.diag(inverse @ clusters.T @ clusters @ inverse))[4:6] / real
            errors[1] += 0.5 * excess / max(float(seen[1]), 1e-9)
            self.time_errors = float(errors[0]), float(errors[1]) / self.planes
        return np.concatenate((change, step[4:7] if with_times else np.zeros(3)))

    def _move(self, step: np.ndarray) -> np.ndarray:
        """The matrix is changed by at most a twentieth of the plane; gives the change, see `_step`."""
        change = step * min(1.0, 0.1 / (np.abs(step).max() + 1e-12))
        unit = np.eye(3) + np.tensordot(change, CHANGES[: len(change)], 1)
        self.matrix = self.matrix @ np.linalg.inv(self.to_unit) @ unit @ self.to_unit
        self.matrix /= self.matrix[2, 2]
        return change

    def _step_of_parts(self, rows: list["Row"], sigma: float) -> np.ndarray:
        """One round in which PARTS x PARTS parts are shifted on their own. Gives the changes of the matrix."""
        mix, left, weights, _ = _explained(rows)
        count = PARTS * PARTS
        normal, pull, middle = np.zeros((len(rows), count, 2, 2)), np.zeros((len(rows), count, 2)), np.zeros((count, 3))
        for row, weight, residual, own, force in zip(rows, weights, left, normal, pull, strict=True):
            slopes = [column[row.inside] for column in self._columns(row, row.shown @ mix.astype(np.float32))[:2]]
            tiles, places = self._tiles(row, PARTS), [each[:: row.every, :: row.every] for each in (self.x, self.y)]
            for a, slope in enumerate(slopes):
                force[:, a] = np.bincount(tiles, weight * slope * residual, count)
                for b, other in enumerate(slopes):
                    own[:, a, b] = np.bincount(tiles, weight * slope * other, count)
            for a, each in enumerate((*places, np.ones_like(places[0]))):
                middle[:, a] += np.bincount(tiles, each[row.inside], count)
        noise = np.concatenate([each**2 * w for each, w in zip(left, weights, strict=True)]).mean()
        noise *= 4 * np.pi * sigma**2 / rows[0].every ** 2  # neighbours share it
        texture = normal.sum(axis=0)
        strength = np.trace(texture, axis1=1, axis2=2)
        usable = (middle[:, 2] > 0.3 * middle[:, 2].max()) & (strength > 1e-3 * np.median(strength[strength > 0]))
        usable &= np.linalg.det(texture) > 1e-4 * strength**2
        if usable.sum() < len(self.changes):
            self.place_error, self.residuals = np.inf, np.empty(0)
            return np.zeros(4)
        inverse, normal, pull = np.linalg.inv(texture[usable]), normal[:, usable], pull[:, usable]
        shifts = -np.einsum("tij,vtj->ti", inverse, pull)
        spread = np.einsum("tij,vtj->vti", inverse, pull + np.einsum("vtij,tj->vti", normal, shifts))
        spread = np.einsum("vti,vtj->tij", spread, spread) * len(rows) / max(len(rows) - 1, 1)
        variances = inverse * noise if len(rows) == 1 else (inverse * noise + spread) / 2
        step, covariance, beside = _joined(shifts, variances, middle[usable] / middle[usable, 2:], self.changes)
        errors, radius2 = np.diag(covariance), float((self.x**2 + self.y**2).mean())
        pixel = self.radius * scale_of(self.matrix)
        self.place_error = pixel * float(np.sqrt(errors[:2].sum() + radius2 * errors[2:].sum()))
        self.residuals = pixel * np.hypot(*beside.T)
        return self._move(step)

    def _columns(self, row: "Row", shown: np.ndarray) -> list[np.ndarray]:
        """Derivatives of the residual by shift right, down, scale, turn, middle, length and roll, each (h, w)."""
        down, right = (each * self.radius / row.every for each in np.gradient(shown))
        x, y = (each[:: row.every, :: row.every] for each in (self.x, self.y))
        later = row.last - row.first
        longer = (row.first + row.last) / 2 - shown / np.float32(self.length)
        return [-right, -down, -(right * x + down * y), right * y - down * x, later, longer, later * y]

    def _tiles(self, row: "Row", count: int) -> np.ndarray:
        """In which of count x count parts of a square around the plane each compared pixel lies."""
        x, y = (each[:: row.every, :: row.every][row.inside] for each in (self.x, self.y))
        columns, rows = (np.clip((each + 1) * count / 2, 0, count - 0.01).astype(int) for each in (x, y))
        return count * rows + columns


@dataclass(frozen=True)
class Row:
    """A view at an estimate, on every `every`th spike pixel: the details of the spikes (h, w) and of what explains
    them (h, w, 5), spikes per plane around the first and the last plane, the pixels to compare; noise: expected squares
    of the spikes' noise, and of that of both rates.
    """

    spikes: np.ndarray
    shown: np.ndarray
    first: np.ndarray
    last: np.ndarray
    inside: np.ndarray
    noise: Sequence[float]
    reach: float
    every: int


def _explained(rows: Sequence[Row]) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray], float]:
    """How the frames explain the spikes best: weights (5,) of what is shown; of each view, what is left of the compared
    pixels and how much each counts; the explained share of the variance.
    """
    weights = [np.ones(int(row.inside.sum())) for row in rows]
    for _ in range(2):  # the residuals that are large count less
        pairs = [(row.shown[row.inside].astype(float), row.spikes[row.inside].astype(float)) for row in rows]
        square = sum((a * w[:, None]).T @ a for (a, _), w in zip(pairs, weights, strict=True))
        target = sum((a * w[:, None]).T @ b for (a, b), w in zip(pairs, weights, strict=True))
        mix = np.linalg.solve(square + np.diag(1e-5 * np.diag(square) + 1e-12), target)
        left = [b - a @ mix for a, b in pairs]
        usual = 2.5 * 1.4826 * np.median(np.abs(np.concatenate(left))) + 1e-9
        weights = [1 / np.maximum(1, np.abs(each) / usual) for each in left]
    explained = 1 - sum((each**2).sum() for each in left) / sum((b**2).sum() for _, b in pairs)
    return mix, left, weights, float(explained)


def _joined(
    shifts: np.ndarray, variances: np.ndarray, places: np.ndarray, changes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The amounts (k,) of the `changes` (k, 3, 3) of the plane and their covariance (k, k), from shifts (n, 2) of parts
    at `places` (n, 3) with variances (n, 2, 2); and what is left of the shifts.

    The parts differ by their noise and by a variance of their own, the same for all, for which the residuals are as
    large as expected (Paule and Mandel's estimate).
    """
    fields = np.einsum("kij,tj->tki", changes, places)
    design = (fields[..., :2] - places[:, None, :2] * fields[..., 2:]).swapaxes(1, 2)

    def solve(own: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        weights = np.linalg.inv(variances + own * np.eye(2))
        covariance = np.linalg.inv(np.einsum("tia,tij,tjb->ab", design, weights, design))
        found = covariance @ np.einsum("tia,tij,tj->a", design, weights, shifts)
        left = shifts - design @ found
        return found, covariance, left, float(np.einsum("ti,tij,tj->", left, weights, left))

    low, high = 0.0, 1.0
    while high > 1e-9:  # of the squared half side of the plane
        middle = (low + high) / 2
        low, high = (middle, high) if solve(middle)[3] > 2 * len(shifts) - len(changes) else (low, middle)
        if high - low < 1e-3 * high:
            break
    return solve(high)[:3]


def _blur(image: np.ndarray, sigma: float) -> np.ndarray:
    return cv2.GaussianBlur(image, (0, 0), float(sigma))
