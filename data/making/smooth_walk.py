"""Draw a smooth random motion, like the motion of a camera that a person holds.

What must stay: the order of the draws and of the arithmetic, because made data sets (of
scripts/prepare_gopro_spike.py) depend on every bit (test_a_seed_gives_its_scene).

Tests: tests/parts/data/test_seeds.py
"""

import numpy as np

# Weights of the four sines of a random motion, with the sum 1. Four sines of different periods give
# an irregular motion. A single sine would repeat itself.
WALK_WEIGHTS = (0.4, 0.3, 0.2, 0.1)


def smooth_walk(
    rng: np.random.Generator, planes: int, amplitude: float, periods: tuple[float, float]
) -> np.ndarray:
    """Return a smooth random motion, (planes,): a sum of four sines with random periods.

        walk(t) = amplitude sum_i w_i sin(2 pi (t / T_i + phase_i))

    The weights w_i are WALK_WEIGHTS. Their sum is 1, so the walk stays between -amplitude and
    amplitude.

    planes: number of planes.
    periods: (shortest, longest) allowed period T_i, in planes. The logarithm of each period is
    drawn uniformly.
    rng: generator. For each sine, the period is drawn first and then the phase. A change of the
    order would change the data sets.
    """
    log_shortest, log_longest = np.log(periods)
    t = np.arange(planes)
    walk = np.zeros(planes)
    for weight in WALK_WEIGHTS:
        period = np.exp(rng.uniform(log_shortest, log_longest))
        phase = rng.uniform()
        walk += weight * np.sin(2 * np.pi * (t / period + phase))
    return amplitude * walk
