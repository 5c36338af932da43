"""Turn a stored picture upright: exchange rows and columns, then reverse them.

A camera stores a picture as its sensor saw it, and notes in the file how the picture must be
turned. Pictures (utils/picture) and films (utils/video) both use `Orientation` for this.

Tests: test_a_picture_is_turned_as_its_orientation_says (tests/parts/data/test_pictures.py),
test_a_turned_or_mirrored_film_is_read_as_players_show_it (tests/parts/utils/test_video.py)
"""

from typing import NamedTuple

import numpy as np


class Orientation(NamedTuple):
    """What makes a stored picture upright. `upright` does these three steps in their order.

    E.g. if the first two fields are True, rows and columns are exchanged, and then the columns are
    reversed:

        stored    exchanged    upright
        1 2 3     1 4          4 1
        4 5 6     2 5          5 2
                  3 6          6 3
    """

    is_transposed: bool = False  # whether rows and columns are exchanged
    has_reversed_columns: bool = False  # whether left and right are exchanged
    has_reversed_rows: bool = False  # whether top and bottom are exchanged


UPRIGHT = Orientation()


def upright(image: np.ndarray, orientation: Orientation) -> np.ndarray:
    """Turn an image upright, without a copy.

    Returns (H, W, ...), or (W, H, ...) if the orientation is transposed. The result shares its
    memory with `image`: a change of the result changes `image`, too.

    image: (H, W, ...) as it is stored.
    """
    if orientation.is_transposed:
        image = image.swapaxes(0, 1)  # (W, H, ...)
    if orientation.has_reversed_columns:
        image = image[:, ::-1]
    if orientation.has_reversed_rows:
        image = image[::-1]
    return image
