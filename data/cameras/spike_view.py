"""Compute where and when a simulated spike camera looks.

A simulated spike camera stands beside the RGB camera of the rig (rig.py). It differs in two ways:

    where   a spike pixel sees a different point of the scene than the RGB pixel at its place
            (`places_of_points`). Two things move the point: the matrix of the rig (shift, rotation,
            size of a pixel), and the parallax. The parallax is different for each layer of the
            scene
    when    a plane shows an earlier or later moment than the frame (`delayed_views`)

Coordinates are as in a calibration file (data/cameras/calibration.py): (0, 0) is the centre of
the upper left pixel, x grows to the right, y down.

What must stay: all numbers, to the bit, and the order of the random draws of the parallax, because
a data set is made again from its seed. If you change arithmetic, make a clip with the same seed
before and after the change, and compare the files.

Tests: tests/parts/scripts/test_prepare_gopro_spike.py makes clips again. But no test notices if a
value changes by a few percent.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import repeat

import cv2
import numpy as np

from utils.random_streams import random_stream

Size = tuple[int, int]  # height, width

# ---- Where ---------------------------------------------------------------------------------------


def places_of_points(
    matrix: np.ndarray, spike_size: Size, n: int, parallax: float, seed: int
) -> np.ndarray:
    """Return the positions in the frame of n x n points in each spike pixel.

    The points are spread evenly over the area of the spike pixel. Returns (2, h n, w n) float32: x
    and y of each point, in RGB pixels.

    matrix: (3, 3), from a spike pixel (x, y, 1) to an RGB pixel.
    spike_size: (h, w), the size of the sensor.
    n: number of points along a side of a spike pixel.
    parallax: shift of the nearest layer minus shift of the farthest layer, in RGB pixels.
    seed: seed of the layers and of the direction of the parallax.
    """
    height, width = spike_size
    # The coordinates of the points, in spike pixels. The centre of a pixel is a whole number. So
    # for n = 2, pixel 0 has the points -0.25 and 0.25, and pixel 1 has the points 0.75 and 1.25.
    y = (np.arange(height * n) + 0.5) / n - 0.5
    x = (np.arange(width * n) + 0.5) / n - 0.5
    # The points (x, y, 1), (3, h n, w n): x is repeated over the rows, y over the columns.
    points = np.stack(np.broadcast_arrays(x[None], y[:, None], 1.0))
    # (2, h n, w n): places[k] = matrix[k, 0] * x + matrix[k, 1] * y + matrix[k, 2].
    places = np.tensordot(matrix[:2], points, axes=1)
    if parallax:
        places += _shifts_by_parallax(points.shape[1:], n, parallax, seed)
    return places.astype(np.float32)


def _shifts_by_parallax(size: Size, n: int, parallax: float, seed: int) -> np.ndarray:
    """Return the shift by parallax of each point, (2, *size), in RGB pixels. The mean shift is 0.

    The scene has four layers of random shapes with soft edges. All shifts have one direction,
    because they come from the distance between the two cameras (the baseline).

    size: (h n, w n), number of points. n: number of points along a spike pixel.
    """
    rng = random_stream("parallax of a rig", seed)
    height, width = size
    # A smooth random image: 4 x 5 random values, enlarged.
    clouds = cv2.resize(rng.random((4, 5)), (width, height), interpolation=cv2.INTER_CUBIC)
    # The quartiles of the image divide its pixels into the layers 0 ... 3, each with a quarter of
    # the area. The depths of the layers are 0, 1/3, 2/3 and 1. Depth 1 is the nearest layer,
    # because it is shifted most.
    quartiles = np.quantile(clouds, (0.25, 0.5, 0.75))
    # searchsorted counts the quartiles below a pixel: 0 to 3.
    layer = np.searchsorted(quartiles, clouds)  # (h n, w n)
    depth = np.linspace(0, 1, 4)[layer]  # (h n, w n)
    # Blur the edges of the layers. The sigma of the blur is one spike pixel, i.e. n points.
    soft_depth = cv2.GaussianBlur(depth, (0, 0), float(n))
    shift = soft_depth * parallax
    angle = rng.uniform(0, 2 * np.pi)
    baseline = np.array([np.cos(angle), np.sin(angle)])  # x, y of a unit vector
    return baseline[:, None, None] * (shift - shift.mean())


def are_pixel_centres(places: np.ndarray, rgb_size: Size) -> bool:
    """Return whether positions in the frame are the centres of its pixels, one for each pixel.

    If so, the light at the positions is known without interpolation.

    places: x and y of the positions, (2, h, w). rgb_size: (H, W), the size of the frame.
    """
    if places.shape[1:] != rgb_size:
        return False
    y_x = np.indices(rgb_size)  # (2, H, W): the row and the column of each pixel
    centres = y_x[::-1]  # x and y
    return np.allclose(places, centres, atol=1e-3)


# ---- When ----------------------------------------------------------------------------------------


def delayed_views(views: Iterable[np.ndarray], offset: float) -> Iterator[np.ndarray]:
    """Delay views (h, w) in time: result p is the view at the time p - offset.

        offset 2       result 10 is view 8
        offset 1.25    result 10 is 0.75 * view 9 + 0.25 * view 8, a weighted mean
        offset -3      result 10 is view 13

    There are as many results as views. Before the first view, the result is the first view. After
    the last view, the result is the last view.

    The views are read one by one, because all views together would not fit into the memory. Result
    p is yielded only after view p was read: `Rig.record` makes the frame of an interval from the
    lights that were read until the last plane of the interval.

    If earlier and later views change places,
    test_a_light_is_in_the_planes_that_the_time_offset_says fails.
    """
    # Result p is a mean of two neighbouring views, with the numbers
    #
    #     later = p - whole       weight 1 - share    (share: the offset minus whole)
    #     earlier = later - 1     weight share
    #
    # E.g. the offset 1.25 is whole = 1 and share = 0.25, so result 10 is made of the views 9 and 8.
    # The offset -2.5 is whole = -3 and share = 0.5, so result 10 is made of the views 13 and 12.
    whole = int(np.floor(offset))
    share = np.float32(offset - whole)

    # `recent` keeps the views that were read last, oldest first. A positive offset needs older
    # views, so `recent` keeps `delay` more views. A negative offset needs views that come later, so
    # the results begin only after `ahead` views. When result p is yielded, `earlier` and `later`
    # are the first two views of `recent`:
    #
    #     offset   delay   ahead   newest view   recent
    #     1.25     1       0       p             p - 2, p - 1, p
    #     -2.5     0       3       p + 3         p + 2, p + 3
    delay = max(whole, 0)
    ahead = max(-whole, 0)
    recent: deque[np.ndarray] = deque(maxlen=delay + 2)
    # With a negative offset, the last results need views that do not exist. So the last view is
    # repeated.
    for newest_number, newest in enumerate(_with_last_repeated(views, ahead)):
        if not recent:
            # Before the first view, all views are taken to be equal to the first view.
            recent.extend([newest] * (delay + 2))
        else:
            recent.append(newest)  # the oldest view drops out, because the deque has a maxlen
        if newest_number >= ahead:
            earlier = recent[0]
            later = recent[1]
            # If the offset is a whole number (share 0), yield the view itself. A mean would have
            # rounding errors.
            if share:
                yield (1 - share) * later + share * earlier
            else:
                yield later


def _with_last_repeated(views: Iterable[np.ndarray], times: int) -> Iterator[np.ndarray]:
    """Yield the views, and then the last view `times` more times. Yields nothing without views."""
    last = None
    for view in views:
        yield view
        last = view
    if last is not None:
        yield from repeat(last, times)
