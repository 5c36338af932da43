"""Options: one JSON file with // comments -> base -> command line -> a frozen, typed tree.

A wrong key, type or value is an OptionError that names the file and line, the dotted key, what was expected and the
nearest valid key. The table of keys is utils/options/models.py; networks, datasets and losses are checked by the
registries that the caller passes in, for utils/ may not import them.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from utils.errors import OptionError
from utils.files import write_whole
from utils.options.file import Sources, apply_override, read_with_base
from utils.options.models import FORMERLY_OURS, KAIR_ONLY, Options
from utils.options.registry import Registry
from utils.options.section import joined, read_section, redact

logger = logging.getLogger(__name__)

# Sections that name a registered part, and the registry's key in `parts`.
PART_SECTIONS = {"netG": "netG", "train": "train", "datasets.train": "datasets", "datasets.test": "datasets"}


def load_options(
    path: str | Path,
    overrides: Sequence[str],
    parts: Mapping[str, Registry],
    check: Sequence[Callable[[Options], None]] = (),
) -> Options:
    """The options of file `path`, completed with every default.

    overrides: "section.key=value", value in JSON, else a string.
    parts: registries of the sections "netG", "datasets" (both splits) and "train" (the loss).
    check: functions of the options that raise OptionError with the dotted key in `where`.
    Raises OptionError; see the module's text.
    """
    sources = Sources(str(path))
    raw = read_with_base(Path(path), sources)
    for override in overrides:
        apply_override(raw, override, sources)
    try:
        opt = read_options(raw, parts, sources.soft, str(path), sources.overridden)
        for function in check:
            function(opt)
    except OptionError as e:
        raise OptionError(e.what, sources.place(e.where), e.expected, e.do) from e
    return opt


def read_options(
    values: Mapping[str, Any],
    parts: Mapping[str, Registry],
    soft: Collection[str] = (),
    opt_path: str = "",
    overridden: Collection[str] = (),
) -> Options:
    """The options of a mapping in the form of an option file, completed with every default.

    soft: dotted keys that are dropped where the part of their section does not have them. overridden: dotted keys that
    the command line gives. Raises OptionError.
    """
    raw = copy.deepcopy(dict(values))
    dropped = {key.rpartition(".")[2] for key in _drop_kair_only(raw, parts)}
    loader = _section_of(raw, "datasets.train") or {}
    totals = [
        key
        for key in ("dataloader_batch_size", "dataloader_num_workers")
        if key in loader and f"datasets.train.{key}" not in overridden
    ]
    opt = _typed(raw, parts, soft, {"opt_path": opt_path, "kair_totals": totals if dropped - FORMERLY_OURS else []})
    _check_conflicts(opt)
    return opt


def save_options(opt: Options, folder: str | Path) -> Path:
    """Write the resolved options, without secrets, to <folder>/<option file's name>_<time>.json and return its path."""
    folder = Path(folder)
    name = f"{Path(opt.opt_path).stem}_{time.strftime('%y%m%d_%H%M%S')}"
    starts = sum(path.name.startswith(name) for path in folder.glob("*.json"))  # within this second
    target = folder / f"{name}{f'_{starts + 1}' if starts else ''}.json"
    write_whole(target, f"{json.dumps(redact(opt.plain()), indent=2)}\n".encode())
    return target


def options_digest(opt: Options) -> str:
    """12 hex digits that are equal where all options but secrets are equal; ranks compare it at the start."""
    return hashlib.sha256(json.dumps(redact(opt.plain()), sort_keys=True).encode()).hexdigest()[:12]


def _section_of(raw: dict[str, Any], where: str) -> dict[str, Any] | None:
    """The section at the dotted place; None where there is none, or something else."""
    section: Any = raw
    for name in where.split("."):
        section = section.get(name) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else None


def _drop_kair_only(raw: dict[str, Any], parts: Mapping[str, Registry]) -> list[str]:
    """Remove the keys that say nothing here; their dotted names."""
    dropped = []
    for where, keys in KAIR_ONLY.items():
        section = _section_of(raw, where)
        if section is None:
            continue
        registry = parts.get(PART_SECTIONS.get(where, ""))
        name = section.get(registry.type_key) if registry else None
        known = set(registry.keys(name)) if registry and name in registry.names() else set()
        for key in sorted((keys.keys() - known) & section.keys()):
            dropped.append(f"{where}.{key}")
            del section[key]
    # Every rank reads the options; only rank 0 warns.
    if dropped and os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":
        logger.warning("Options that have no effect here: %s", ", ".join(dropped))
    return dropped


def _typed(
    raw: dict[str, Any], parts: Mapping[str, Registry], soft: Collection[str], about: Mapping[str, Any]
) -> Options:
    """Every section checked against the table and its registry, and completed. about: fields that are no options."""
    wrong: list[OptionError] = []
    for where, kind in PART_SECTIONS.items():
        *outer, name = where.split(".")
        holder = _section_of(raw, outer[0]) if outer else raw
        if holder is None or (outer and not holder.get(name)):
            if outer and holder and name in holder:
                holder[name] = None  # an empty section is none
            continue
        section = holder.pop(name, {})
        if not isinstance(section, dict):  # refused below
            holder[name] = section
            continue
        try:
            holder[name] = parts[kind].resolve(_without(section, where, parts[kind], soft), where)
        except OptionError as e:
            wrong.append(e)
    try:
        opt = read_section(Options, {**raw, **about}, "")
    except OptionError as e:
        unknown = e.what.startswith("unknown")  # it may be the misspelt name of a section that was looked for above
        wrong = [e, *wrong] if unknown or not wrong else wrong
    if wrong:
        raise joined(wrong)
    return opt


def _without(section: dict[str, Any], where: str, registry: Registry, soft: Collection[str]) -> dict[str, Any]:
    """`section` without the soft keys that its part does not have."""
    name = section.get(registry.type_key)
    known = registry.model(name).model_fields if name in registry.names() else section
    return {key: value for key, value in section.items() if key in known or f"{where}.{key}" not in soft}


def _check_conflicts(opt: Options) -> None:
    """Raises OptionError for values that contradict one another."""
    train = opt.train
    if opt.task == ".preflight" or len(os.fsencode(opt.task)) > 255:
        raise OptionError(
            f"task is {opt.task[:80]}{'...' * (len(opt.task) > 80)}", "task",
            "a folder name: at most 255 bytes, and not .preflight, which has the data checks", "choose another name",
        )  # fmt: skip
    if opt.use_static_graph and opt.find_unused_parameters:
        raise OptionError(
            "use_static_graph and find_unused_parameters are both true", "find_unused_parameters",
            "one of them: a static graph already copes with unused parameters", "set find_unused_parameters to false",
        )  # fmt: skip
    if opt.use_static_graph and train.accumulation_steps > 1:
        # pytorch #143580: no_sync() with static_graph crashes, or silently misses reductions.
        raise OptionError(
            f"train.accumulation_steps is {train.accumulation_steps} and use_static_graph is true",
            "use_static_graph", "false with accumulation: DDP cannot skip the reduction of a static graph",
            "set use_static_graph to false",
        )  # fmt: skip
    if train.total_iter is None and train.epochs is None:
        raise OptionError(
            "train.total_iter and train.epochs are both null", "train.total_iter", "steps or epochs", "set one of them"
        )
    loader, stall_s = opt.datasets.train, opt.watchdog.stall_s
    if loader and (loader.dataloader_timeout_s or 0) >= stall_s:
        raise OptionError(
            f"datasets.train.dataloader_timeout_s is {loader.dataloader_timeout_s:g}, watchdog.stall_s {stall_s:g}",
            "datasets.train.dataloader_timeout_s",
            "less than watchdog.stall_s: the loader can name the samples, the watchdog cannot",
            "lower or remove it, or raise watchdog.stall_s",
        )  # fmt: skip
    if train.G_scheduler_type == "MultiStepLR":
        steps = train.G_scheduler_milestones
        if not steps or steps != sorted(set(steps)):
            raise OptionError(
                f"train.G_scheduler_milestones is {steps}", "train.G_scheduler_milestones",
                "rising steps, at least one", "correct them, or choose CosineAnnealingWarmRestarts",
            )  # fmt: skip
    upscale = getattr(opt.netG, "upscale", opt.scale)
    if upscale != opt.scale:
        raise OptionError(
            f"netG.upscale is {upscale}, scale is {opt.scale}", "netG.upscale", "the same number",
            "correct one of them",
        )  # fmt: skip
