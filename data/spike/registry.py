"""Register representations: functions that turn spike planes into channels of a network.

`@representation("name", ...)` adds a function to REPRESENTATIONS. The other arguments of this
decorator are fields of `Representation`: what `represent` and the option files must know about the
function.

A plane is one read-out of the spike camera. The center is the plane of the sharp frame, and the
exposure is the planes that were recorded while the blurry frame was exposed.

Import REPRESENTATIONS from represent.py, because represent.py imports the modules of all
representations. Before these imports, the table is not complete.

What must stay: names and meanings of the fields, because files of users set them
(docs/extending.md). Free to add: a field with a default that changes nothing.

Tests: tests/stories/test_extending.py (runs the code of docs/extending.md)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Numbers = tuple[int, ...] | list[int]


# The defaults of three fields of `Representation`. Each function gets the options of a
# representation.
def _no_lag(**_: Any) -> int:
    return 0


def _always(**_: Any) -> bool:
    return True


def _never(**_: Any) -> bool:
    return False


@dataclass(frozen=True)
class Representation:
    """A registered function, and how it uses the keys of the `spike` section."""

    function: Callable[..., np.ndarray]
    # Whether the channels are firing rates, to which the option keys `rate`, `light` and `gamma`
    # apply.
    proportional: bool
    # Whether the channels are ratios of firing rates. `light` and `gamma` apply to them, but `rate`
    # has no effect, because a ratio does not depend on the rate.
    is_ratio: bool = False
    # Whether the function also uses planes outside of the exposure. If so, it must have the option
    # half_exposure, because this option tells the function where the exposure ends.
    takes_context: bool = False
    # Whether the function accepts a center between two planes, such as 27.5. Other functions get
    # the next plane, 28. Around plane 28, `exposure` and `relative` show the time 27.5.
    accepts_half_planes: bool = False

    # The next three fields are functions of the options, because their results may depend on the
    # options.
    #
    # The time that the channels show, minus `center`, in half planes. E.g. TFI at center 5 shows
    # the time 5.5, so its lag is 1. `_center_in_reversed` (represent.py) needs the lag to reverse
    # time exactly.
    lag_in_half_planes: Callable[..., int] = _no_lag
    # Whether the function uses `center`. False if its windows are spread over the whole stream.
    is_centered: Callable[..., bool] = _always
    # How time is reversed. False: the function gets the reversed stream. True: the function gets
    # the stream as it is, and its channels are put in reverse order. This is needed if windows are
    # spread over the stream, because their middles are rounded (`_channels_in_reverse` in
    # represent.py has an example).
    reverses_channels: Callable[..., bool] = _never

    def ignored(self, **options: Any) -> set[str]:
        """Return the keys of the `spike` section that have no effect with these options."""
        if self.proportional:
            keys = set()
        elif self.is_ratio:
            keys = {"rate"}
        else:
            keys = {"rate", "light", "gamma"}
        if not self.takes_context:
            keys.add("context")
        if not self.is_centered(**options):
            keys.add("center")
        return keys


# Name -> representation.
REPRESENTATIONS: dict[str, Representation] = {}


def representation(
    name: str, proportional: bool, **properties: Any
) -> Callable[..., Callable[..., np.ndarray]]:
    """Register a function as a representation (a decorator).

    name: value of the option `spike.representation.type` that chooses the representation.
    proportional, properties: fields of `Representation`.
    """

    def register(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        if name in REPRESENTATIONS:
            raise ValueError(f"representation {name!r} is registered twice")
        REPRESENTATIONS[name] = Representation(function, proportional, **properties)
        return function

    return register
