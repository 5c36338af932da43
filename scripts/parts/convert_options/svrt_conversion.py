"""The options of one file of S-VRT, while their keys change to ours, and what is reported.

    Conversion   the options by their dotted keys, the three tables of the report, and the problems
    Problem      a key that cannot be converted, and the user's way out

A key is dotted: `netG.depths` is the option `depths` of the section `netG`. A split is one of the
two data sets: `datasets.train` or `datasets.test`.

The functions `convert_...` of svrt_splits.py, svrt_spikes.py, svrt_representation.py and
svrt_network.py all change one `Conversion`. Each function removes the keys of S-VRT that it knows
(`take`), and sets ours in their place. A key that no function removes stays among the options, and
`refuse_problems` (option_problems.py) names it. So a new function may be added anywhere in
`convert` of scripts/convert_options.py.

What must stay: no key gets lost without a message. A key that is taken is reported
(test_each_dropped_key_of_s_vrt_is_named).
"""

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SPLITS = ("datasets.train", "datasets.test")


class Problem(NamedTuple):
    """A key or value that this program cannot convert, and the user's way out."""

    what: str  # what is wrong
    do: str  # what to add to the command


@dataclass
class Conversion:
    """The options of one file while their keys change from S-VRT's to ours, and what is reported.

    The functions that the top of this file names change it.
    """

    # Dotted key -> value. At first the keys are S-VRT's, in the end all keys are ours.
    values: dict[str, Any]
    # The three tables of the report: key of S-VRT -> a text for the user.
    renamed: dict[str, str] = field(default_factory=dict)  # what the key became
    dropped: dict[str, str] = field(default_factory=dict)  # why the key was left out
    differences: dict[str, str] = field(default_factory=dict)  # what our options cannot express
    # Key -> problem. With any problem nothing is written.
    problems: dict[str, Problem] = field(default_factory=dict)

    def has(self, section_or_key: str) -> bool:
        """Return whether there is this option, or an option in this section.

        For example, a file with the option `netG.depths` has `netG.depths` and `netG`.
        """
        return bool(self.keys_of(section_or_key))

    def keys_of(self, section_or_key: str) -> list[str]:
        """Return the keys of a section. The only key of an option is the option itself.

        For example, `netG` -> [`netG.depths`, `netG.img_size`], and `netG.depths` ->
        [`netG.depths`]. Returns an empty list if there is neither such a section nor such a key.
        """
        # With the dots at the end, `netG.depths` finds `netG.depths` itself, and not
        # `netG.depths_of_flow`:
        #
        #     netG.depths.             begins with   netG.depths.
        #     netG.depths_of_flow.     does not
        return [key for key in self.values if f"{key}.".startswith(f"{section_or_key}.")]

    def take(self, section_or_key: str) -> Any:
        """Remove an option and return its value, or remove a section and return {key: value}.

        The keys of a returned section are relative to it. E.g. the section `netG.optical_flow` is
        returned as {"module": "spynet"}. Returns None if there is neither such an option nor such a
        section.
        """
        taken = {}  # dotted key -> value
        for key in self.keys_of(section_or_key):
            taken[key] = self.values.pop(key)
        if not taken:
            return None
        is_option = section_or_key in taken
        if is_option:
            return taken[section_or_key]
        section = {}
        for key, value in taken.items():
            key_in_section = key.removeprefix(f"{section_or_key}.")
            section[key_in_section] = value
        return section

    def set_ours(self, new: str, value: Any, old: str | None = None, note: str = "") -> None:
        """Set our option `new`, and report that the key `old` of S-VRT became this option.

        new: our key. value: its value.
        old: the key of S-VRT. Call `take(old)` first, because `set_ours` does not remove the key.
            None means that the key keeps its name, and only its value changes.
        note: text of the report, if it says more than "new = value"
        """
        self.values[new] = value
        self.renamed[old or new] = note or f"{new} = {json.dumps(value)}"

    def drop(self, section_or_key: str, why: str) -> None:
        """Leave out an option or a section, and report why. If there is neither, do nothing."""
        if self.has(section_or_key):
            self.take(section_or_key)
            self.dropped[section_or_key] = why
