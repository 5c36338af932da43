"""The sharp frame, solved from the blurry frame and the spikes together, along their motion.

Unknown are the display values z (3, H, W) of the sharp instant. Their light is x = z^2.2. The spike
camera integrates l = luma(x), or luma(z) if it sees display values. The exposure is cut into G
groups of planes. Pixel p of group g shows what is at p + u_g(p) in the sharp instant, so its light
is x(p + u_g(p)). Two kinds of equations tell x:

    RGB     B x = sum over g of s_g x(p + u_g(p)) = b
            b: light of the blurry frame; s_g: part of group g in the exposure of a row
    spikes  S l = sum over g of c_g D L l(p + u_g(p)) = y = n / (gain (e - f))
            n thresholds of a pixel from one of its spikes, at f, to a later one, at e;
            c_g: part of group g in [f, e); L: lens of the spike camera; D: mean over a spike pixel

A blurry pixel is wrong by sigma_b in display values. The two times of a spike equation are rounded
to planes, and jitter j adds up: var(n) = r^2 / 6 + j^2 n with r = n / (e - f). That is far less
than Poisson's n: at 0.12 spikes a plane one interval is known to 5 %. Motion and optics add
sigma_s. A weight w is 1 / (error in light): the error in display values times the slope dx / dz.

    minimise  sum rho(w_b (b - B x)) + sum rho(w_s (y - S l)) + sum lambda |z - z_0|^2

rho is Cauchy's, so an equation along a wrong motion counts little. z_0 is a first estimate, and
lambda = 1 + K (q / sigma_b)^2 holds z to it where the expected error q of the motion is large, in
pixels. Each linearisation solves (A^T W A + lambda) d = A^T W r - lambda (z - z_0) by a few steps
of conjugate gradients, and adds d to z. These steps end before noise is fitted.

Where the motion is wrong without being known to be, z is worse than z_0. So both are blended at the
end (`guarded`): each counts by how well it fits the spikes around the sharp instant, for which no
motion is needed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.motion.flow import Motion
from data.motion.recording import Recording, View
from data.spike.simulate import DISPLAY_GAMMA, LUMA

# Of the equations above. The errors are in display values.
SIGMA_S = 0.02
JITTER = 0.02
CAUCHY = 2.0  # an equation wrong by so many times its error has 1 / sqrt(2) of its weight
K = 0.008
# Most spike equations of a pixel in an exposure. More of them would only share their rounding.
INTERVALS = 8
# Darker display values have the slope of this one: it would become 0, and weights infinite.
DARK = 0.04
# The guard compares the light of so many planes, in means over squares of spike pixels.
GUARD_PLANES = 9
GUARD_SIDE = 7
# Pixels of the guard that fit as well as this share of all fit perfectly, up to noise.
WELL = 0.2
# A network sees the spikes of so many planes as those of the sharp instant.
INSTANT_PLANES = 9
# Least spikes per plane and noise whose logarithms a network sees.
LEAST_RATE, LEAST_NOISE = 1e-3, 3e-4
# Limits of what a network sees, in display values: an equation far off is wrong.
MOST_OFF, MOST_PULL = 0.5, 0.3
# The spikes pull a grey that they know less well than to 1 / sqrt of this only weakly.
PRIOR_PRECISION = 400.0
# At a spike pixel on the frame, nearly all of its points are on the frame.
ON_FRAME = 0.999


@dataclass(frozen=True)
class Solver:
    """The choices of the solution.

    groups: G. linearisations: how often the equations are linearised. steps: of conjugate gradients
    after each. noise: sigma_b. guard: how many times worse z may fit than z_0 where both count
    alike; 0 leaves out the guard.
    """

    groups: int = 16
    linearisations: int = 2
    steps: int = 8
    noise: float = 0.01
    guard: float = 2.5


# ---- Light and display values ----------------------------------------------------------------


def light_of(z: Tensor) -> Tensor:
    """Return x of display values."""
    return z.clamp(0, 1) ** DISPLAY_GAMMA


def shown(light: Tensor) -> Tensor:
    """Return the display values of light."""
    return light.clamp(0, 1) ** (1 / DISPLAY_GAMMA)


def slope_of(z: Tensor) -> Tensor:
    """Return dx / dz, at least the one of `DARK`."""
    return DISPLAY_GAMMA * z.clamp(DARK, 1) ** (DISPLAY_GAMMA - 1)


def luma(rgb: Tensor) -> Tensor:
    """Return the luma (1, H, W) of (3, H, W)."""
    weights = torch.from_numpy(LUMA).to(rgb.device)
    return (weights[:, None, None] * rgb).sum(0, keepdim=True)


# ---- What the cameras see of the sharp instant -------------------------------------------------


class SpikePixels:
    """D L: pictures (N, 1, H, W) -> what the spike pixels see of them, (N, h, w)."""

    def __init__(self, view: View, device: torch.device) -> None:
        self.view = view
        places = view.places()
        self._places = normalised(torch.from_numpy(places).to(device), view.size)
        sigma = view.lens_blur * max(view.fine)  # in RGB pixels
        self._kernel = gaussian(sigma).to(device) if sigma else None
        x, y = places[..., 0], places[..., 1]
        on_frame = (x > -0.5) & (x < view.size[1] - 0.5) & (y > -0.5) & (y < view.size[0] - 0.5)
        share = F.avg_pool2d(torch.from_numpy(on_frame).float()[None], view.fine)[0]
        self.are_on_frame = (share > ON_FRAME).to(device)  # (h, w)

    def __call__(self, pictures: Tensor) -> Tensor:
        if self._kernel is not None:
            pictures = blurred(pictures, self._kernel)
        places = self._places.expand(len(pictures), -1, -1, -1)
        points = F.grid_sample(pictures, places, padding_mode="border", align_corners=True)
        return F.avg_pool2d(points, self.view.fine)[:, 0]


class Cameras:
    """A: the linear map from the sharp instant to what both cameras record of it.

    shifts: u, (G, H, W, 2) in pixels. shares: s, (G, H). coverage: c, (M, G, h, w).
    """

    def __init__(
        self, pixels: SpikePixels, shifts: Tensor, shares: Tensor, coverage: Tensor
    ) -> None:
        height, width = shifts.shape[1:3]
        y = torch.arange(height, device=shifts.device)
        x = torch.arange(width, device=shifts.device)
        here = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)  # (H, W, 2)
        self._places = normalised(here + shifts, (height, width))
        self._pixels = pixels
        self._shares = shares[:, None, :, None]
        self._coverage = coverage

    def __call__(self, x: Tensor, l: Tensor) -> tuple[Tensor, Tensor]:  # noqa: E741
        """(x (3, H, W), l (1, H, W)) -> B x (3, H, W), S l (M, h, w)."""
        picture = torch.cat((x, l)).expand(len(self._places), -1, -1, -1)
        moved = F.grid_sample(picture, self._places, padding_mode="border", align_corners=True)
        blurry = (self._shares * moved[:, :3]).sum(0)
        seen = self._pixels(moved[:, 3:])  # (G, h, w)
        return blurry, (self._coverage * seen).sum(1)


def normalised(places: Tensor, size: tuple[int, int]) -> Tensor:
    """Return x and y in pixels ([N,] h, w, 2) as grid_sample takes them, (N, h, w, 2)."""
    last = torch.tensor([max(size[1] - 1, 1), max(size[0] - 1, 1)], device=places.device)
    places = places * (2 / last) - 1
    return places if places.ndim == 4 else places[None]


def gaussian(sigma: float) -> Tensor:
    """Return a normalised kernel (n,) of odd length."""
    radius = int(np.ceil(3 * sigma))
    kernel = torch.exp(-((torch.arange(-radius, radius + 1) / sigma) ** 2) / 2)
    return kernel / kernel.sum()


def blurred(pictures: Tensor, kernel: Tensor) -> Tensor:
    """Blur (N, 1, H, W) along both axes; edges are repeated."""
    radius = len(kernel) // 2
    pictures = F.pad(pictures, (radius,) * 4, mode="replicate")
    pictures = F.conv2d(pictures, kernel[None, None, None])
    return F.conv2d(pictures, kernel[None, None, :, None])


# ---- What the cameras recorded -----------------------------------------------------------------


def exposure_shares(
    recording: Recording, edges: np.ndarray, rows: int, rolling: float
) -> np.ndarray:
    """Return s (G, rows) float32, whose sums over G are 1.

    edges: (G + 1,) times between the groups. rolling: share of the exposure by which the last row
    is exposed later than the first.
    """
    late = (np.arange(rows) / max(rows - 1, 1) - 0.5) * rolling * recording.length
    begin, end = recording.begin + late, recording.end + late  # of each row
    first, last = edges[:-1, None], edges[1:, None]
    overlap = np.clip(np.minimum(last, end) - np.maximum(first, begin), 0, None)
    return (overlap / overlap.sum(0)).astype(np.float32)


def spike_intervals(
    stream: np.ndarray, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find an interval of each pixel between every two edges: from one spike to a later one.

    stream: (T, h, w) uint8 in {0, 1}. edges: (M + 1,) times, ascending whole planes. An interval
    begins and ends at the spikes that are nearest to the edges and lie between the first and the
    last of these.
    Returns f, e and n, each (M, h, w) float32. n is 0 where there is no interval.
    """
    planes = len(stream)
    none = planes + 1
    # Of each spike the time at which it ends an interval, else 0.
    times = stream * np.arange(1, planes + 1, dtype=np.int32)[:, None, None]
    last = np.zeros(stream.shape[1:], np.int32)
    count = np.zeros(stream.shape[1:], np.int32)  # of spikes so far
    borders, counts, done = [], [], 0
    for edge in edges.tolist():
        part = times[done:edge]
        done = edge
        last = np.maximum(last, part.max(axis=0, initial=0))
        count = count + (part > 0).sum(axis=0, dtype=np.int32)
        rest = times[edge:]
        following = np.where(rest > 0, rest, none).min(axis=0, initial=none)
        has_last = (last > 0) & (last >= edges[0])
        has_next = following <= edges[-1]
        is_last_nearer = has_last & (~has_next | (edge - last <= following - edge))
        borders.append(np.where(is_last_nearer, last, np.where(has_next, following, 0)))
        counts.append(count + (~is_last_nearer & has_next))

    starts, ends, thresholds = [], [], []
    start, before = borders[0], counts[0]
    for border, after in zip(borders[1:], counts[1:], strict=True):
        is_interval = (start > 0) & (border > start)
        starts.append(start)
        ends.append(border)
        thresholds.append(np.where(is_interval, after - before, 0))
        # Where two edges have the same nearest spike, the interval goes on to the next edge.
        moves_on = is_interval | (start == 0)
        start = np.where(moves_on, border, start)
        before = np.where(moves_on, after, before)
    f, e, n = (np.stack(values).astype(np.float32) for values in (starts, ends, thresholds))
    return f, e, n


# ---- The solution ------------------------------------------------------------------------------


class Equations:
    """All equations of one exposure.

    gain, is_good: (h, w), see `RecordedClip.gain`.
    """

    def __init__(
        self,
        recording: Recording,
        pixels: SpikePixels,
        motion: Motion,
        gain: np.ndarray,
        is_good: np.ndarray,
        solver: Solver,
        device: torch.device,
    ) -> None:
        def put(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.asarray(values, np.float32)).to(device)

        view = pixels.view
        self.solver = solver
        self.pixels = pixels
        self.is_display = view.is_display

        # Groups: where each shows the sharp instant, and its part in the exposure of each row.
        around = view.rolling * recording.length / 2
        edges = np.linspace(recording.begin - around, recording.end + around, solver.groups + 1)
        middles = (edges[:-1] + edges[1:]) / 2
        ways = [motion.back(time - recording.sharp) for time in middles.tolist()]
        shifts = put(np.stack([shift for shift, _ in ways]))  # u
        q = put(np.mean([error for _, error in ways], axis=0))
        self.error = q
        self.length = shifts.norm(dim=-1).mean(0)  # of the motion, (H, W)
        self.near = 1 + K * (q / solver.noise) ** 2  # lambda
        shares = put(exposure_shares(recording, edges, view.size[0], view.rolling))  # s

        # Spikes: y, and the part of each group in each interval.
        borders = np.linspace(recording.begin, recording.end, INTERVALS + 1).round().astype(int)
        f, e, n = (put(values) for values in spike_intervals(recording.stream, borders))
        length = (e - f).clamp(min=1)
        first, last = put(edges[:-1])[:, None, None], put(edges[1:])[:, None, None]
        overlap = torch.minimum(e[:, None], last) - torch.maximum(f[:, None], first)
        coverage = overlap.clamp(min=0) / length[:, None]  # c
        self.cameras = Cameras(pixels, shifts, shares, coverage)
        r = n / length
        self.y = r / put(gain)
        relative = (r**2 / 6 + JITTER**2 * n).sqrt() / n.clamp(min=1)  # error of y over y
        if self.is_display:
            error = (self.y.clamp(DARK, 1) * relative).square() + SIGMA_S**2
            slope = torch.ones_like(self.y)
        else:
            seen = shown(self.y)
            error = (seen.clamp(DARK, 1) * relative / DISPLAY_GAMMA).square() + SIGMA_S**2
            slope = slope_of(seen)
        is_used = (n > 0) & pixels.are_on_frame & torch.from_numpy(is_good).to(device)
        self.w_s = is_used / (error.sqrt() * slope)

        # The blurry frame.
        blurry = put(recording.blurry).permute(2, 0, 1)
        self.blurry = blurry
        self.b = light_of(blurry)
        self.w_b = 1 / (solver.noise * slope_of(blurry))

        # What is seen of the sharp instant, for which no motion is needed.
        [rate] = recording.light([recording.window(recording.sharp, INSTANT_PLANES)])
        self.instant = self._display_of(put(rate / gain))  # (h, w)
        self.rate = (
            max(float(np.median(r.cpu()[n.cpu() > 0])), LEAST_RATE) if n.any() else LEAST_RATE
        )
        to_plane = torch.from_numpy(view.spike_places()).to(device)
        self._to_plane = normalised(to_plane, view.plane)
        self._known: Tensor | None = None  # see `_precision`

    def solve(self, z_0: Tensor) -> Tensor:
        """Return z (3, H, W). z_0: (3, H, W)."""
        z = z_0
        for _ in range(self.solver.linearisations):
            r_b, r_s = self.residuals(z)
            w_b, w_s = self.robust_weights(r_b, r_s)
            slope = slope_of(z)
            weighted = self._linearised(slope, w_b, w_s)
            adjoint = adjoint_of(weighted, z)

            def normal(d: Tensor, forth: Linear = weighted, back: Adjoint = adjoint) -> Tensor:
                return back(forth(d)) + self.near * d

            right = adjoint((w_b * r_b, w_s * r_s)) - self.near * (z - z_0)
            z = (z + conjugate_gradients(normal, right, self.solver.steps)).clamp(0, 1)
        return z

    def residuals(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return b - B x (3, H, W) and y - S l (M, h, w)."""
        blurry, rates = self.cameras(light_of(z), self._integrated(z))
        return self.b - blurry, self.y - rates

    # ---- For a network that takes steps on the equations (models/fusion/fusion_motion.py) ----

    def proposal(self, z_0: Tensor) -> Tensor:
        """Return the solution z (3, H, W) of one linearisation at z_0 (3, H, W)."""
        return self.solve(z_0)

    def evidence(self) -> Tensor:
        """Return what is known of each pixel before any step, (6, H, W), each about 1 or less.

        In this order: how well the spikes know its grey, the length of its motion, the expected
        error of this motion, and the same everywhere: the spikes per plane of a median interval,
        the noise of the blurry frame, the share of pixels that move.
        """
        noise = noise_of(luma(self.blurry)[0])
        values = [
            self._precision().clamp(min=1).log10() - 3,
            0.3 * self.length.sqrt(),
            0.3 * self.error.sqrt(),
            math.log10(max(self.rate, LEAST_RATE)) + 1,
            math.log10(max(noise, LEAST_NOISE)) + 2.5,
            (self.length > 1).float().mean(),
        ]
        size = self.length.shape
        return torch.stack(
            [torch.as_tensor(value).to(self.length).expand(size) for value in values]
        )

    def pulls(self, z: Tensor) -> Tensor:
        """Return where the equations pull a frame z (3, H, W), and how far they are off: (7, H, W).

        In this order: the change of each colour that the RGB equations ask for, and of the grey
        that those of the spikes ask for, in display values; how far both are off at this place; by
        how much the spikes of the sharp instant are brighter than z.
        """
        r_b, r_s = self.residuals(z)
        sigma = slope_of(self.blurry)
        r_b = (r_b / sigma).clamp(-MOST_OFF, MOST_OFF)  # in display values
        r_s = self.w_s * r_s  # in its own error
        r_s = r_s / (1 + (r_s / CAUCHY) ** 2).sqrt()
        slope = slope_of(z)
        colour, grey = self._back(r_b / sigma, self.w_s * r_s)
        slope_of_grey = self._slope_of_grey(z)
        colour = (colour * slope).clamp(-MOST_PULL, MOST_PULL)
        grey = grey * slope_of_grey / (self._precision() + PRIOR_PRECISION)
        off = r_s.abs().mean(0) / CAUCHY
        instant = self.instant - self._display_of(self.pixels(self._integrated(z)[None])[0])
        on_plane = torch.stack((off, instant))[None]  # (1, 2, h, w)
        on_frame = F.grid_sample(
            on_plane, self._to_plane, padding_mode="border", align_corners=True
        )[0]
        grey = grey.clamp(-MOST_PULL, MOST_PULL)
        return torch.cat((colour, grey, luma(r_b.abs()), on_frame))

    def _back(self, blurry: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the adjoint of A. Returns what belongs to x (3, H, W), and to l (1, H, W)."""
        with torch.enable_grad():
            x = torch.zeros_like(blurry).requires_grad_()
            l = torch.zeros_like(blurry[:1]).requires_grad_()  # noqa: E741
            outputs = self.cameras(x, l)
        of_x, of_l = torch.autograd.grad(outputs, (x, l), (blurry, rates))
        return of_x, of_l

    def _precision(self) -> Tensor:
        """Return 1 / variance (H, W) of the grey display values, as the spikes alone know them."""
        if self._known is None:
            _, known = self._back(torch.zeros_like(self.b), self.w_s**2)
            self._known = known[0] * self._slope_of_grey(self.blurry)[0] ** 2
        return self._known

    def _slope_of_grey(self, z: Tensor) -> Tensor:
        """Return by how much what the spike camera integrates changes with grey, (1, H, W)."""
        return torch.ones_like(z[:1]) if self.is_display else slope_of(luma(z))

    def _integrated(self, z: Tensor) -> Tensor:
        """Return what the spike camera integrates of z, (1, H, W)."""
        return luma(z if self.is_display else light_of(z))

    def _display_of(self, rates: Tensor) -> Tensor:
        """Return the display values of what the spike camera integrated."""
        return rates.clamp(0, 1) if self.is_display else shown(rates)

    def robust_weights(self, r_b: Tensor, r_s: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of Cauchy's rho at these residuals, one for all colours."""
        off_b = ((self.w_b * r_b) ** 2).mean(0, keepdim=True) / CAUCHY**2
        off_s = (self.w_s * r_s) ** 2 / CAUCHY**2
        return self.w_b / (1 + off_b).sqrt(), self.w_s / (1 + off_s).sqrt()

    def _linearised(self, slope: Tensor, w_b: Tensor, w_s: Tensor) -> "Linear":
        """Return the map from a change d of z to the weighted changes of what the cameras see."""

        def weighted(d: Tensor) -> tuple[Tensor, Tensor]:
            x = slope * d
            blurry, rates = self.cameras(x, luma(d if self.is_display else x))
            return w_b * blurry, w_s * rates

        return weighted


Linear = Callable[[Tensor], tuple[Tensor, Tensor]]
Adjoint = Callable[[tuple[Tensor, Tensor]], Tensor]


def noise_of(grey: Tensor) -> float:
    """Return the standard deviation of the noise of a picture (H, W), from its second differences.

    The median of their sizes is that of flat places (Immerkaer, CVIU 1996, with a median).
    """
    if min(grey.shape) < 3:
        return 0.0
    kernel = torch.tensor([[1.0, -2, 1], [-2, 4, -2], [1, -2, 1]], device=grey.device)
    second = F.conv2d(grey[None, None], kernel[None, None])
    return float(second.abs().median()) / 0.6745 / 6


def adjoint_of(linear: Linear, like: Tensor) -> Adjoint:
    """Return the adjoint of a linear map: the gradient of its outputs. like: of its input."""
    with torch.enable_grad():
        free = torch.zeros_like(like).requires_grad_()
        outputs = linear(free)

    def adjoint(values: tuple[Tensor, Tensor]) -> Tensor:
        # The graph of a linear map is the same everywhere, so one serves all steps.
        [gradient] = torch.autograd.grad(outputs, free, values, retain_graph=True)
        return gradient

    return adjoint


def conjugate_gradients(normal: Callable[[Tensor], Tensor], right: Tensor, steps: int) -> Tensor:
    """Return d after some steps from 0 towards normal(d) = right."""
    d = torch.zeros_like(right)
    residual = direction = right
    energy = (residual**2).sum()
    tiny = torch.finfo(right.dtype).tiny
    for _ in range(steps):
        image = normal(direction)
        step = energy / (direction * image).sum().clamp(min=tiny)
        d = d + step * direction
        residual = residual - step * image
        before, energy = energy, (residual**2).sum()
        direction = residual + energy / before.clamp(min=tiny) * direction
    return d


def guarded(
    z: Tensor,
    z_0: Tensor,
    recording: Recording,
    pixels: SpikePixels,
    gain: np.ndarray,
    guard: float,
) -> tuple[Tensor, Tensor]:
    """Blend z with z_0 by how well each fits the spikes around the sharp instant.

    With the squared errors a of z and a_0 of z_0, the weight of z is 1 / (1 + (a / (guard a_0))^2).
    Returns the frame (3, H, W), and the weight of z (H, W) in [0, 1].
    guard: see `Solver`.
    """
    if not guard:
        return z, torch.ones_like(z[0])
    [rate] = recording.light([recording.window(recording.sharp, GUARD_PLANES)])
    y = torch.from_numpy(rate / gain).to(z.device)
    errors = []
    for picture in (z, z_0):
        if pixels.view.is_display:
            difference = pixels(luma(picture)[None]) - y
        else:
            difference = shown(pixels(luma(light_of(picture))[None])) - shown(y)
        mean = F.avg_pool2d(difference**2, GUARD_SIDE, 1, GUARD_SIDE // 2, count_include_pad=False)
        errors.append(mean[0])  # (h, w)
    best = torch.minimum(*errors).flatten()
    floor = best.kthvalue(max(1, int(WELL * len(best)))).values + 1e-6
    a, a_0 = (error + floor for error in errors)
    weight = 1 / (1 + (a / (guard * a_0)) ** 2)
    places = torch.from_numpy(pixels.view.spike_places()).to(z.device)
    places = normalised(places, pixels.view.plane)
    weight = F.grid_sample(weight[None, None], places, padding_mode="border", align_corners=True)
    weight = weight[0, 0]
    return weight * z + (1 - weight) * z_0, weight
