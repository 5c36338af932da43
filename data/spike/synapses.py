"""Represent spikes by a model of synapses (TFSTP, texture from short-term plasticity).

Each pixel has a synapse. The state of the synapse depends on the intervals between the spikes of
the pixel, smoothed over several intervals. So the firing rate can be computed from the state at any
plane (one read-out of the camera). The docstring of `tfstp` has the equations, and `_Synapses`
computes them for all pixels, plane after plane.

What must stay: every number, because trained networks expect these channels. To compute other
numbers, write a new function with a new name (docs/extending.md, representation).

Tests: tests/parts/data/test_spike_represent.py (compares with a loop over the spikes of a pixel),
tests/parts/data/test_published_streams.py (restores published streams)
"""

import numpy as np

from .registry import Numbers, representation


@representation("tfstp", proportional=True)
def tfstp(
    stream: np.ndarray,
    center: int,
    tau_d: float = 5.0,
    tau_f: float = 10.0,
    utilisation: float = 0.05,
    offsets: Numbers = (0,),
) -> np.ndarray:
    """Texture from short-term plasticity: channel i = the firing rate at plane center + offsets[i],
    in (0, 1].

    Each pixel drives a model of a synapse (Tsodyks and Markram) with two state variables. Between
    two spikes, the resources R recover to 1 with the time constant tau_d, and the utilisation u
    decays to U with the time constant tau_f. A spike uses up u R and raises u by U (1 - u). After
    an interval of dt planes, just before the next spike, the state is

        u' = U + (u + U (1 - u) - U) exp(-dt / tau_f)
        R' = 1 - (1 - R (1 - u)) exp(-dt / tau_d)

    With R' = R, the second equation gives the interval from the state, and 1 / dt is the rate:

        dt = -tau_d ln((1 - R) / (1 - R (1 - u)))

    The rate is at most 1 / (planes since the last spike). A pixel of fewer than two spikes has the
    rate spikes / planes. Only planes 0 ... center + offsets[i] count, so the result lags behind
    motion.
    Source: Zheng et al., CVPR 2021; Zheng et al., IEEE TPAMI 45(7), 2023.

    tau_d, tau_f: in planes; larger values average over more intervals. utilisation: U, in (0, 1).
    """
    for name, tau in (("tau_d", tau_d), ("tau_f", tau_f)):
        if tau <= 0:
            raise ValueError(f"{name} is {tau}, expected a number above 0")
    if not 0 < utilisation < 1:
        raise ValueError(f"utilisation is {utilisation}, expected a number between 0 and 1")
    centers = [center + offset for offset in offsets]
    for time in centers:
        if not 0 <= time < len(stream):
            raise ValueError(f"plane {time} is outside of 0 to {len(stream) - 1}")

    synapses = _Synapses(stream.shape, tau_d, tau_f, utilisation)
    rates = {}  # plane -> firing rate
    for time, plane in enumerate(stream[: max(centers) + 1]):
        synapses.add_plane(time, has_fired=plane > 0)
        if time in centers:
            rates[time] = synapses.rates(time)
    return np.stack([rates[time] for time in centers])


class _Synapses:
    """The model of `tfstp`: one synapse for each pixel. The docstring of `tfstp` has the equations.

    E.g. a pixel fires in the planes 3, 7 and 11. At plane 3, its first interval begins. At plane 7,
    the pixel gets the steady state of the interval dt = 4, i.e. the state that no longer changes if
    all intervals are 4 planes. At plane 11, the equations are applied with dt = 4. The equations
    give the same state, because the state is steady.

    The state of each pixel is (h, w), and changes only where the pixel fires:

        u            the utilisation u
        used         1 - R. `used` is stored in place of R, because R of a dark pixel is so close to
                     1 that float64 would lose the difference from 1
        last_spike   plane of the last spike, -1 before the first
        spikes       number of spikes so far

    Test: test_tfstp_solves_the_equations_of_the_synapse
    """

    def __init__(
        self, shape: tuple[int, ...], tau_d: float, tau_f: float, utilisation: float
    ) -> None:
        """Begin before plane 0.

        shape: (T, h, w) of the stream.
        """
        planes, height, width = shape
        self.tau_d = tau_d
        self.U = utilisation
        # exp(-dt / tau) for every interval dt = 1 ... T. The interval dt has the index dt - 1.
        intervals = np.arange(1, planes + 1, dtype=np.float64)
        self.decay_d = np.exp(-intervals / tau_d)
        self.decay_f = np.exp(-intervals / tau_f)
        # At its second spike, a pixel has one interval, dt. The pixel gets the steady state of this
        # interval, for which u' = u and R' = R:
        #     u = U / (1 - (1 - U) exp(-dt / tau_f))
        #     1 - R = exp(-dt / tau_d) u / (1 - exp(-dt / tau_d) (1 - u))
        steady_u = self.U / (1 - (1 - self.U) * self.decay_f)
        steady_used = self.decay_d * steady_u / (1 - self.decay_d * (1 - steady_u))
        self.steady_u = steady_u  # (T,), for each interval dt
        self.steady_used = steady_used

        self.u = np.full((height, width), self.U)
        self.used = np.zeros((height, width))
        self.last_spike = np.full((height, width), -1)
        self.spikes = np.zeros((height, width), np.int64)

    def add_plane(self, time: int, has_fired: np.ndarray) -> None:
        """Change the state by one plane. Planes come in order of time.

        has_fired: bool (h, w).
        """
        # A mask (h, w) of the n pixels whose interval ends. Arrays indexed with it are (n,).
        ends_interval = has_fired & (self.spikes > 0)
        if ends_interval.any():
            index = time - self.last_spike[ends_interval] - 1  # dt - 1
            u = self.u[ends_interval]
            used = self.used[ends_interval]
            is_second = self.spikes[ends_interval] == 1
            # u' = U + (u + U (1 - u) - U) exp(-dt / tau_f)
            next_u = self.U + (u + self.U * (1 - u) - self.U) * self.decay_f[index]
            # 1 - R' = (1 - R (1 - u)) exp(-dt / tau_d), where 1 - R (1 - u) = (1 - R) (1 - u) + u
            next_used = (used * (1 - u) + u) * self.decay_d[index]
            self.u[ends_interval] = np.where(is_second, self.steady_u[index], next_u)
            self.used[ends_interval] = np.where(is_second, self.steady_used[index], next_used)
        self.last_spike[has_fired] = time
        self.spikes += has_fired

    def rates(self, time: int) -> np.ndarray:
        """Return the firing rate of each pixel at a plane, (h, w) float32.

        time: number of the plane that was added last.
        """
        # dt = -tau_d ln((1 - R) / (1 - R (1 - u))), where `used` is 1 - R. The bound 1e-300 avoids
        # the logarithm of 0.
        used_after_spike = self.used * (1 - self.u) + self.u  # 1 - R (1 - u)
        interval = -self.tau_d * np.log(np.maximum(self.used, 1e-300) / used_after_spike)
        # A pixel that fires in this plane would have 0 planes, so the number is at least 1.
        planes_since_spike = np.maximum(time - self.last_spike, 1)
        rate = 1 / np.maximum(interval, planes_since_spike)
        rate_of_few_spikes = self.spikes / (time + 1)  # planes 0 ... time
        return np.where(self.spikes > 1, rate, rate_of_few_spikes).astype(np.float32)
