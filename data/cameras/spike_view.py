"""W."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import numpy as np

Size = tuple[int, int]  # height, width


def are_centres(places: np.ndarray, rgb: Size) -> bool:
    """Return whether places in the frame are the centres of its pixels, one for each pixel.

    places: x and y, (2, h, w). rgb: size (H, W) of the frame.
    """
    if places.shape[1:] != rgb:
        return False
    y_x = np.indices(rgb)  # (2, H, W): the row and the column of each pixel
    centres = y_x[::-1]  # x and y
    return np.allclose(places, centres, atol=1e-3)


def delayed_views(views: Iterable[np.ndarray], offset: float) -> Iterator[np.ndarray]:
    """Delay views: result p shows what was seen at the time p - offset, in views.

    E.g. with offset 2, result 10 is view 8. If the offset is no whole number, the result is a
    weighted mean of two neighbours: with offset 1.25, result 10 is 0.75 * view 9 + 0.25 * view 8. A
    negative offset shows later views. There are as many results as views. Times before the first
    view show the first view, times after the last view show the last view.
    """
    # Result p is a mean of two views:
    #     later view     p - whole,      with the weight 1 - share
    #     earlier view   p - whole - 1,  with the weight share
    # E.g. offset 1.25: whole = 1, share = 0.25. Offset -2.5: whole = -3, share = 0.5.
    whole = int(np.floor(offset))
    share = np.float32(offset - whole)

    # With whole > 0, a view is needed later, so views are kept for `delay` results. With whole < 0,
    # result p needs a view that is still to come, so it waits for view p + ahead. `recent` has the
    # last delay + 2 views, oldest first. Its first two are the earlier and the later view:
    #
    #     offset   delay   ahead   newest view   recent
    #     1.25     1       0       p             p - 2, p - 1, p
    #     -2.5     0       3       p + 3         p + 2, p + 3
    delay = max(whole, 0)
    ahead = max(-whole, 0)
    recent: deque[np.ndarray] = deque(maxlen=delay + 2)
    # After the last view, None comes `ahead` times, and means that the last view is repeated.
    views_and_end = chain(views, repeat(None, ahead))
    for number, view in enumerate(views_and_end):
        if view is None and not recent:
            # There was no view at all.
            return
        newest = recent[-1] if view is None else view
        if not recent:
            # All views before the first one are equal to the first one.
            recent.extend([newest] * (delay + 2))
        else:
            recent.append(newest)  # the oldest view drops out, because the deque has a maxlen
        if number >= ahead:
            earlier = recent[0]
            later = recent[1]
            # A whole offset gives the view itself, without rounding errors of a mean.
            if share:
                yield (1 - share) * later + share * earlier
            else:
                yield later
