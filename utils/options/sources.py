"""Note where each option of a run came from: a line of a file, its base, or the command line.

A message about a wrong option names this place. `Sources` also marks inherited keys. An inherited
key comes from the base. The key was meant for the part of the base, e.g. the network "vrt", but the
file names another part.

Tests: tests/parts/utils/test_option.py, tests/parts/utils/test_option_files.py.
"""

from dataclasses import dataclass, field

# Keys that name a registered part, i.e. a network, a dataset or a loss. The parameters of the part
# stand beside this key. Each of these keys is also the `type_key` of a registry, and
# PART_SECTIONS (typed.py) has the sections that the registries check. A new kind of part of this
# form needs a key here and a row in PART_SECTIONS.
TYPE_KEYS = ("net_type", "dataset_type", "G_lossfn_type")


@dataclass
class Sources:
    """Where each option came from, for messages.

    Two functions fill the object in place: `read_with_base` (option_file.py) sets the places of a
    file, and `apply_override` (override.py) adds the place of an override.
    """

    main_file: str
    # Dotted key -> "FILE, line N", or the override of the command line.
    places: dict[str, str] = field(default_factory=dict)
    # Dotted keys that the command line gives.
    overridden: set[str] = field(default_factory=set)
    # Dotted keys that were meant for another part. E.g. the base has {"net_type": "vrt", "depths":
    # [8]}, and the file says "net_type": "tiny". The section still has "netG.depths", although this
    # key belongs to vrt. An unknown key of this set is dropped. Any other unknown key is an error.
    inherited: set[str] = field(default_factory=set)

    def place(self, where: str) -> str:
        """Return where a dotted key was given, e.g. "train.epochs" -> "a.json, line 3".

        If the key itself was not given, the result is the place of a key within it, or the place of
        the nearest section around it. In both cases `where` follows in brackets, e.g. "a.json, line
        2 (train.epochs)".
        """
        # First choice: the key itself. Second choice: the first key within it, e.g.
        # "train.amp.enable" for "train.amp".
        key = where
        if key not in self.places:
            for other_key in self.places:
                if other_key.startswith(f"{where}."):
                    key = other_key
                    break
        # Third choice: the nearest section around the key. E.g. a missing key of the network gets
        # the place of "netG". The last key to try is "", the whole file.
        while key and key not in self.places:
            key = key.rpartition(".")[0]  # "train.amp.enable" -> "train.amp"
        place = self.places.get(key, self.main_file)
        if key == where or not where:
            return place
        return f"{place} ({where})"
