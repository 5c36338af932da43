"""Read the section `spike.representation`: the name and the options of a representation.

    "representation": {"type": "voxel", "num_bins": 4}

"type" is the name of a representation, i.e. of a function that turns spike planes into channels
(data/spike/represent.py). All other keys are parameters of this function. This module checks the
keys, and `channels_of` returns the number of channels, here 4. A new representation needs only its
function, and no change here.

What must stay: the names of representations and their options, because option files have them.

Tests: tests/parts/data/test_spike_source.py, tests/parts/utils/test_option_files.py
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from data.spike import represent as rp
from utils.errors import OptionError
from utils.options.registry import Registry, import_parts

# Two tables have this name:
#
#     REPRESENTATIONS       the registry: values of `spike.representation.type`, with their options
#     rp.REPRESENTATIONS    the functions (data/spike/represent.py, which knows no option files)
#
# The loop below fills the registry from the table of functions.
REPRESENTATIONS = Registry("spike representation", "type")
# Files data/spike/represent_*.py of a user add representations when they are imported.
import_parts("data.spike", "represent_*")
# The options of a representation are the parameters of its function, without `stream` and `center`,
# because the program itself gives these two.
for _name, _representation in rp.REPRESENTATIONS.items():
    # These two calls have the same effect as the decorator @REPRESENTATIONS.register(...) above the
    # function. The decorator cannot be used, because the module of the function knows no option
    # files.
    register_function = REPRESENTATIONS.register(_name, given=("stream", "center"))
    register_function(_representation.function)


class ChosenRepresentation(NamedTuple):
    """The section spike.representation, after it was read."""

    name: str  # e.g. "voxel"
    options: dict[str, Any]  # arguments of the function of this name in data/spike/represent.py
    # Keys of the section spike that change nothing with these options. Setting such a key is an
    # error.
    without_effect: frozenset[str]


def read_representation(section: Mapping[str, Any] | str) -> ChosenRepresentation:
    """Read the section spike.representation. Raises OptionError.

    section: the section, or only the name of a representation.
    """
    # `resolve` checks the keys and adds missing keys with their defaults. `plain` turns the result
    # into a dict, e.g. {"type": "voxel", "num_bins": 4}.
    options = REPRESENTATIONS.resolve(section, "spike.representation").plain()
    name = options.pop("type")
    # `ignored` returns the keys of the section spike that have no effect, e.g. "rate".
    without_effect = frozenset(rp.REPRESENTATIONS[name].ignored(**options))
    return ChosenRepresentation(name, options, without_effect)


def channels_of(representation: Mapping[str, Any] | str) -> int:
    """Return the number of channels S that a section spike.representation gives.

    representation: the section, or only the name of a representation.
    Raises OptionError for options that contradict one another.
    """
    # All options as a dict, e.g. {"type": "voxel", "num_bins": 4}.
    options = REPRESENTATIONS.resolve(representation, "spike.representation").plain()
    name = options.pop("type")
    try:
        return rp.channel_count(name, **options)
    except ValueError as e:
        # The message shows the parameters of the function, e.g. "(stream: ..., center: float,
        # num_bins: int = 4)".
        parameters = str(inspect.signature(rp.REPRESENTATIONS[name].function))
        raise OptionError(
            what=f"spike.representation {name} cannot be made: {e}",
            where="spike.representation",
            expected=parameters,
            do="correct the options of spike.representation",
        ) from e


def refuse_keys_without_effect(
    is_set: Mapping[str, bool], without_effect: frozenset[str], representation: str
) -> None:
    """Raise OptionError if keys are set that have no effect on the representation.

    is_set: key of the section spike -> whether the section sets the key.
    without_effect: keys that have no effect on the representation.
    representation: name and options of the representation, for the message.
    """
    refused = []
    for key in is_set:
        if is_set[key] and key in without_effect:
            refused.append(f"spike.{key}")
    if not refused:
        return
    keys = ", ".join(refused)
    raise OptionError(
        what=f"{keys} has no effect on spike.representation {representation}",
        where=keys,
        expected="keys that it uses",
        do=f"remove {keys}, or choose another representation",
    )
