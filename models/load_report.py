"""Say what happened to each tensor of a weights file that was loaded into a network.

loading.py fills a `LoadReport` with the names of the tensors. The report gives the fraction of the
network that was loaded, and a text for the log and for errors. If the fraction is too small,
loading.py refuses the file.

What must stay: `loaded_share`, because the weights of an RGB network must be able to start a
network with spikes (tests/parts/models/test_weights.py). Free to change: the text.

Tests: tests/parts/models/test_weights.py
"""

from dataclasses import dataclass, field

from utils.words import counted

# The report shows at most this number of names of each kind. The number was chosen by hand.
SHOWN_NAMES = 6


@dataclass
class LoadReport:
    """What happened to each tensor when a weights file was loaded: five lists of names.

    In `widened` and `mismatched`, both shapes follow the name, e.g. "conv_last.weight (3, 120, 1,
    3, 3), network (1, 120, 1, 3, 3)".

    `loaded_share` decides whether the file is refused. The log shows the report as a text.
    """

    # Tensors that were loaded as they are.
    matched: list[str] = field(default_factory=list)
    # Tensors that were loaded with zeros for the input channels that the file does not have.
    widened: list[str] = field(default_factory=list)
    # Tensors in the network, but not in the file.
    missing: list[str] = field(default_factory=list)
    # Tensors in the network and in the file, with different shapes.
    mismatched: list[str] = field(default_factory=list)
    # Tensors in the file, but not in the network.
    unexpected: list[str] = field(default_factory=list)

    def file_has_fusion(self) -> bool:
        """Return whether the file has any tensor of the fusion operator."""
        return any(_is_of_fusion(name) for name in self._names_in_file())

    def file_has_trunk(self) -> bool:
        """Return whether the file has any tensor of the trunk, the network without its fusion."""
        return any(not _is_of_fusion(name) for name in self._names_in_file())

    def _names_in_file(self) -> tuple[str, ...]:
        """Return the entries for the tensors in the file. Each begins with the tensor's name."""
        return (*self.matched, *self.widened, *self.mismatched, *self.unexpected)

    @property
    def loaded_share(self) -> float:
        """Return the fraction of the network's tensors that were loaded, 0 to 1.

        A missing tensor of the fusion operator counts only if the file has some tensor of a fusion
        operator. So the weights of an RGB network may start a network with spikes. E.g. the network
        has 100 tensors of its trunk and 10 of its fusion operator, and the file has only the trunk:
        the fraction is 100 of 100. In the same way, a missing tensor of the trunk counts only if
        the file has some tensor of a trunk.
        """
        file_has_fusion = self.file_has_fusion()
        file_has_trunk = self.file_has_trunk()
        missing_count = 0
        for name in self.missing:
            counts = file_has_fusion if _is_of_fusion(name) else file_has_trunk
            if counts:
                missing_count += 1
        loaded_count = len(self.matched) + len(self.widened)
        total = loaded_count + missing_count + len(self.mismatched)
        return loaded_count / max(total, 1)  # no division by 0 for a network without tensors

    def __str__(self) -> str:
        if self.file_has_fusion() and not self.file_has_trunk():
            part = "fusion"
        else:
            part = "network"
        lines = [
            f"{counted(len(self.matched), 'tensor')} matched, {len(self.widened)} widened "
            f"({self.loaded_share:.0%} of the {part})"
        ]
        # The first names of each kind are enough to see what is wrong.
        for kind in ("widened", "missing", "mismatched", "unexpected"):
            names = getattr(self, kind)
            if names:
                shown = ", ".join(names[:SHOWN_NAMES])
                unnamed = len(names) - SHOWN_NAMES
                more = f", and {unnamed} more" if unnamed > 0 else ""
                lines.append(f"  {kind} ({len(names)}): {shown}{more}")
        return "\n".join(lines)


def _is_of_fusion(name: str) -> bool:
    """Return whether a tensor belongs to the fusion operator, e.g. "fusion.gate.weight".

    name: the name, or an entry of `LoadReport` that begins with the name.
    """
    return name.startswith("fusion.")
