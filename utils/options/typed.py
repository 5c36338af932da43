"""Check the sections of an option file, add the defaults, and return typed options: `Options`.

A section may name a registered part: a network, a dataset or a loss. Then the parameters of the
part are keys of the section, too. E.g. `depths` is a parameter of the network vrt:

    "netG": {"net_type": "vrt", "depths": [8, 8, ...]}

`read_options` first checks these sections, each with the registry of its kind of part, and then the
whole file. `read_section` (section.py) checks the keys of a section, and makes the error for an
unknown key. The caller passes in the registries, because utils/ may not import models/ and data/.

KAIR is the program in which VRT was published. Its option files can be read: keys that only KAIR
has are dropped with one warning.

What must stay: the options in old checkpoints stay readable, because a program that restores a
network calls `read_options` with these options (tests/stories/test_kair_files.py). Free to change:
the words of errors, together with tests/parts/utils/test_option.py.
"""

import copy
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from utils.errors import OptionError
from utils.options.kair_keys import FORMERLY_OURS, KAIR_ONLY
from utils.options.models import Options
from utils.options.registry import Registry
from utils.options.section import join_errors, read_section
from utils.options.sources import Sources

logger = logging.getLogger(__name__)

# Kind of part -> the registry that knows the parts of this kind.
Parts = Mapping[str, Registry]
# Section that names a registered part -> kind of part, a key of `Parts`. TYPE_KEYS (sources.py) has
# the keys that name the parts in these sections.
PART_SECTIONS = {
    "netG": "netG",
    "train": "train",  # the loss
    "datasets.train": "datasets",
    "datasets.test": "datasets",
}


def read_options(
    values: Mapping[str, Any], parts: Parts, sources: Sources | None = None
) -> Options:
    """Return the typed options, completed with every default. The argument is not changed.

    All wrong keys are collected, and one OptionError names them
    (test_the_problems_of_a_file_are_named_at_once). Its `where` is the dotted key of the first
    wrong key.

    `load_options` (load.py) calls this function with the keys of a file. A program that restores a
    network calls it with the options of a checkpoint, which an older version may have written. So
    the function must still accept the keys of older versions.

    values: the sections as an option file holds them, e.g. {"task": "a", "netG": {...}}
    parts: the registries of networks, datasets and losses
    sources: where the values came from; None if they come from no file
    """
    if sources is None:
        sources = Sources(main_file="")
    # Work on a copy, because the steps below remove keys and replace sections.
    raw = copy.deepcopy(dict(values))
    dropped_keys = drop_without_effect(raw, parts)  # dotted names of keys that only KAIR has
    # Every rank reads the options, but only rank 0 warns. The ranks are not connected yet, so the
    # number of this rank comes from the environment: torchrun sets RANK, Slurm sets SLURM_PROCID.
    rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    if dropped_keys and rank == "0":
        logger.warning("Options that have no effect here: %s", ", ".join(dropped_keys))

    # The keys whose numbers are totals of all GPUs, e.g. the batch size of a file of KAIR.
    # `Options.kair_totals` keeps these keys, for a warning.
    totals = _totals_of_kair(raw, dropped_keys, sources)

    # First check the sections that name a part. The registry of the part checks the section and
    # gives a typed section. The typed section replaces the dict in `raw`.
    errors: list[OptionError] = []
    for where, kind in PART_SECTIONS.items():
        try:
            _resolve_part(raw, where, parts, kind, sources)
        except OptionError as e:
            errors.append(e)
    # Then check the whole file. The sections that name a part are typed already.
    try:
        all_values = {**raw, "opt_path": sources.main_file, "kair_totals": totals}
        opt = read_section(Options, all_values, where="")
    except OptionError as e:
        errors.insert(0, e)  # a wrong section of the file is named before a wrong parameter
    if errors:
        raise join_errors(errors)
    return opt


def _resolve_part(
    raw: dict[str, Any], where: str, parts: Parts, kind: str, sources: Sources
) -> None:
    """Replace the section `where` of `raw` by the typed section of the part that it names.

    E.g. {"net_type": "tiny"} at "netG" becomes a Section with net_type "tiny" and width 16, if 16
    is the default of the parameter `width` of this network.

    Raises OptionError if the section is wrong. In this case, `raw` has unchecked defaults in place
    of the section, so that the caller can go on, and check the other sections as well.

    where: dotted key of the section, e.g. "netG" or "datasets.train"
    kind: kind of part, a key of `parts`
    """
    # "datasets.train" is the key "train" in the section "datasets". "netG" and "train" are keys of
    # the file itself, so `outer` is "".
    outer, _, name = where.rpartition(".")
    is_dataset = outer != ""
    outer_section = _section_of(raw, outer)  # the dict that holds the section
    if outer_section is None:
        return  # `datasets` is missing, or no dict: `read_section` decides later
    if is_dataset and name not in outer_section:
        return  # the run has no such data set

    # `pop` takes the section out of `raw`. A missing network or loss counts as {}, so the error
    # names the key that is missing, e.g. netG.net_type.
    section = outer_section.pop(name, {})
    if not _must_name_part(section, is_dataset):
        outer_section[name] = _null_if_empty(section)
        return

    # The defaults stay in `raw` if `resolve` raises an error. `registry.base` is the model of the
    # keys that every part of this kind has. `model_construct` gives its defaults without a check.
    registry = parts[kind]
    outer_section[name] = registry.base.model_construct()
    own_values = _without_keys_of_other_part(section, where, registry, sources)
    outer_section[name] = registry.resolve(own_values, where)


def _must_name_part(value: Any, is_dataset: bool) -> bool:
    """Return whether the value of a section must name a part. If not, no part is resolved.

        value              result
        {"depths": [8]}    True
        {}                 True for a network or a loss, so {} is an error later
                           False for a data set, because a run may have no such data set
        3, null, []        False, because the value is no section. If the value is wrong,
                           `read_section` refuses it later

    value: the value in the option file
    """
    if not isinstance(value, dict):
        return False
    is_empty = not value
    return not (is_dataset and is_empty)


def _null_if_empty(value: Any) -> Any:
    """Return None for an empty value such as {}, [] or "", and any other value as it is.

    A data set that is null means that the run has no such data set. A network or loss that is null
    is refused later, by `read_section`.
    """
    return value if value else None


def _without_keys_of_other_part(
    section: Mapping[str, Any], where: str, registry: Registry, sources: Sources
) -> Mapping[str, Any]:
    """Return the section without inherited keys that its part does not have.

    A file may build on another option file, its base. An inherited key was meant for the part that
    the base names (sources.py). E.g. the base has the network "vrt" with the key `depths`, and the
    file names the network "tiny". Then `depths` is inherited. `depths` is left out, because "tiny"
    has no key `depths`. Any other unknown key stays, and is refused later.

    A section of an unknown part is returned as it is, because `Registry.resolve` refuses the part
    later.

    where: dotted key of the section
    """
    part = section.get(registry.type_key)  # name of the part, e.g. "vrt"
    if part not in registry.names():
        return section
    known_keys = registry.model(part).model_fields
    own_values = {}
    for key, value in section.items():
        is_inherited = f"{where}.{key}" in sources.inherited
        if key in known_keys or not is_inherited:
            own_values[key] = value
    return own_values


# Keys of datasets.train for the loader, which reads samples in the background. In this project, the
# numbers of these keys are per GPU. In files of KAIR they are totals of all GPUs.
# scripts/convert_options.py uses these names for the totals of S-VRT, too.
TOTALS = ("dataloader_batch_size", "dataloader_num_workers")


def _totals_of_kair(
    raw: Mapping[str, Any], dropped_keys: Sequence[str], sources: Sources
) -> list[str]:
    """Return the keys of datasets.train that are totals of all GPUs, for a warning.

    KAIR is the program in which VRT was published. The result has the keys TOTALS of a file of
    KAIR, e.g. ["dataloader_batch_size"]. For any other file the list is empty. A file counts as a
    file of KAIR if it has a key that this project never had.

    Tests: test_kair_files.py, e.g. test_a_number_from_the_command_line_is_no_total.

    dropped_keys: the dotted keys that `drop_without_effect` has removed, e.g. "netG.init_type"
    """
    names = [key.rpartition(".")[2] for key in dropped_keys]  # "netG.init_type" -> "init_type"
    # FORMERLY_OURS: keys of KAIR that former versions of this project saved, too. So these keys do
    # not show that the file comes from KAIR.
    is_of_kair = any(name not in FORMERLY_OURS for name in names)
    if not is_of_kair:
        return []
    # A number of the command line is no total, because the user means the number per GPU.
    loader = _section_of(raw, "datasets.train") or {}  # {} if the section is missing
    totals = []
    for key in TOTALS:
        if key in loader and f"datasets.train.{key}" not in sources.overridden:
            totals.append(key)
    return totals


def drop_without_effect(raw: dict[str, Any], parts: Parts) -> list[str]:
    """Remove from `raw` the keys that only KAIR has. Return their dotted names, for a warning.

    A file of KAIR, the program in which VRT was published, must load, although some of its keys
    have no meaning here (test_the_files_of_kair_load_unchanged).

    A key stays if the part of its section has a parameter of this name. E.g. "netG.init_type" stays
    if the network has a parameter `init_type`. If the network has no such parameter, the key is
    removed.

    scripts/convert_options.py calls this function, too.
    """
    dropped_keys = []
    # KAIR_ONLY: dotted key of a section -> the keys that only KAIR has in this section.
    for where, keys in KAIR_ONLY.items():
        section = _section_of(raw, where) or {}  # {} if the file has no such section
        part_keys = _parameters_of_part(section, where, parts)
        for key in sorted(keys):
            if key in section and key not in part_keys:
                dropped_keys.append(f"{where}.{key}")
                del section[key]
    return dropped_keys


def _parameters_of_part(section: Mapping[str, Any], where: str, parts: Parts) -> list[str]:
    """Return the parameters of the part that a section names, e.g. ["depths", ...] of "vrt".

    The list is empty if the section names no registered part. Some sections, e.g. "path", never
    name a part.

    where: dotted key of the section, e.g. "netG"
    """
    kind_of_part = PART_SECTIONS.get(where, "")
    if kind_of_part not in parts:
        return []
    registry = parts[kind_of_part]
    name = section.get(registry.type_key)
    return registry.keys(name) if name in registry.names() else []


def _section_of(raw: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """Return the section at a dotted key, e.g. "datasets.train", or the whole file for "".

    Returns None if the key is missing, or if its value is not a section. The result is part of
    `raw`, so a change of the result changes `raw`.
    """
    section: Any = raw
    names = where.split(".") if where else []
    for name in names:
        if not isinstance(section, dict):
            return None
        section = section.get(name)
    return section if isinstance(section, dict) else None
