"""Make wrong motions, from which the learned steps learn when not to trust the motion.

The ranges below were chosen by hand, and no other ranges were measured. The usual error of
`finder_of` is 0.65 pixels in bright light and up to 2.5 pixels in dim light
(docs/benchmarks/quality_details.md). The ranges go from small errors to several times this error.
Much smaller errors would hardly change the equations, so the steps could not learn to see them.

What must stay: the expected error of each shift (test_a_wrong_motion_keeps_its_expected_error). The
order of the draws must stay, too, because with another order the same seed gives other weights. No
test notices another order. Free to change, for the next training: the ranges.
"""

from dataclasses import replace

import cv2
import numpy as np

from data.motion.shifts import Motion

# Factor of the whole motion: 0 is no motion, and 1.8 is 80 % too much.
MOTION_FACTORS = (0, 1.8)
# Smooth errors grow with the distance from the sharp instant, in both directions of time.
SMOOTH_ERROR_PX = (0.5, 8)  # standard deviation of the errors at the start and end of the exposure
SMOOTH_SIGMA_PX = (6, 24)  # sigma of the Gaussian that smooths the errors
# In the ways "still region" and "moving region" below, a region of the frame moves differently.
REGION_SIGMA_PX = 16  # sigma of the Gaussian that smooths the noise of which the region is made
SHARE_OUTSIDE_REGION = (0.3, 0.9)  # share of the frame outside of the region
REGION_EDGE_PX = 2  # sigma of the soft edge of the region
REGION_SHIFT_PX = (-10, 10)  # x or y of the shift added to the region, at the end of the exposure


# The ways in which a motion is wrong. A way is drawn by its index, so their order must stay.
WAYS = (
    "factor",  # all shifts times a factor: too slow or too fast
    "other frame",  # the motion of another frame
    "smooth error",  # a smooth error is added
    "still region",  # a region stands still
    "moving region",  # a region has another motion in addition
)


def wrong_motion(motion: Motion, other: Motion, rng: np.random.Generator) -> Motion:
    """Return a motion that is wrong in one of the WAYS. The way is drawn at random.

    The expected error of each shift (`Motion.errors`) stays as in `motion`
    (test_a_wrong_motion_keeps_its_expected_error). So the expected error does not tell the learned
    steps that the motion is wrong. The steps must learn to see a wrong motion from the spikes of
    the sharp instant.

    motion: the measured motion.
    other: the motion of another frame.
    """
    shifts = motion.shifts  # (K, H, W, 2): K times of the exposure, x and y in pixels
    way = WAYS[rng.integers(len(WAYS))]
    if way == "other frame" and other.shifts.shape != shifts.shape:
        way = "smooth error"  # the other frame has another size, so its shifts do not fit
    if way == "factor":
        wrong = shifts * np.float32(rng.uniform(*MOTION_FACTORS))
    elif way == "other frame":
        wrong = other.shifts
    elif way == "smooth error":
        wrong = with_smooth_error(motion, rng)
    elif way == "still region":
        wrong = with_another_region_motion(motion, rng, stands_still=True)
    else:
        wrong = with_another_region_motion(motion, rng, stands_still=False)
    return replace(motion, shifts=np.ascontiguousarray(wrong, np.float32))


def with_smooth_error(motion: Motion, rng: np.random.Generator) -> np.ndarray:
    """Return the shifts (K, H, W, 2) plus a smooth random error that grows with the time."""
    size = motion.shifts.shape[1:3]
    # Log-uniform: e.g. an error of 0.5 to 1 pixel is as frequent as an error of 4 to 8 pixels.
    lowest, highest = np.log(SMOOTH_ERROR_PX)
    error_px = np.exp(rng.uniform(lowest, highest))
    error_x = clouds(size, rng.uniform(*SMOOTH_SIGMA_PX), rng)
    error_y = clouds(size, rng.uniform(*SMOOTH_SIGMA_PX), rng)
    error = np.stack([error_x, error_y], axis=-1)  # (H, W, 2)
    error = (error_px * error).astype(np.float32)
    return motion.shifts + time_from_minus_1_to_1(motion) * error


def with_another_region_motion(
    motion: Motion, rng: np.random.Generator, *, stands_still: bool
) -> np.ndarray:
    """Return the shifts (K, H, W, 2), in which one region of the frame has another motion.

    stands_still: True: the region does not move. False: a random motion is added to its motion.
    """
    # The region has the pixels at which a smooth noise is above one of its quantiles. E.g. 30 % of
    # the pixels are above the quantile 0.7.
    noise = clouds(motion.shifts.shape[1:3], REGION_SIGMA_PX, rng)
    limit = np.quantile(noise, rng.uniform(*SHARE_OUTSIDE_REGION))
    region = (noise > limit).astype(np.float32)
    region = cv2.GaussianBlur(region, (0, 0), REGION_EDGE_PX)  # (H, W), 1 inside and 0 outside
    region = region[None, :, :, None]  # (1, H, W, 1)

    # The shift is drawn even if it is not used, because all later draws depend on this draw.
    added_shift = rng.uniform(*REGION_SHIFT_PX, size=2).astype(np.float32)  # x and y
    if stands_still:
        return motion.shifts * (1 - region)
    return motion.shifts + region * time_from_minus_1_to_1(motion) * added_shift


def time_from_minus_1_to_1(motion: Motion) -> np.ndarray:
    """Return the times of a motion in [-1, 1], as (K, 1, 1, 1). The sharp instant is 0.

    E.g. the times -40, 0, 20 give -1, 0, 0.5. If a shift is multiplied by these numbers, the result
    is a motion with constant speed.
    """
    farthest = np.abs(motion.times).max()
    times = (motion.times / farthest).astype(np.float32)
    return times[:, None, None, None]


def clouds(size: tuple[int, int], sigma: float, rng: np.random.Generator) -> np.ndarray:
    """Return smooth noise (H, W) of mean 0 and standard deviation 1.

    size: (H, W).
    sigma: width in pixels of the Gaussian that smooths the noise.
    """
    height, width = size
    # The noise is drawn and smoothed at a quarter of the size and then enlarged, because this is
    # faster. No detail is lost, because sigma is at least 6 pixels.
    noise = rng.standard_normal((height // 4, width // 4)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), sigma / 4)
    smooth = cv2.resize(smooth, (width, height))
    return (smooth - smooth.mean()) / smooth.std()
