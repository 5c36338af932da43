"""Options: one JSON file with // comments -> base -> command line -> checked and completed.

A wrong key, type or value is an OptionError that names the file and line, the dotted key, what was expected and the
nearest valid key. The table of keys is utils/option_models.py; parts such as networks and datasets are checked by the
registries that the caller hands in, for this floor knows none of them.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from utils.option_file import SECRET, Sources, apply_override, parse_command_line, read_with_base
from utils.option_models import KAIR_ONLY, LoaderOptions, Options, Section, TrainOptions, describe_field
from utils.utils_errors import OptionError
from utils.utils_files import write_whole
from utils.utils_registry import Registry, nearest

__all__ = ["load_options", "options_digest", "parse_command_line", "redact", "save_options"]

logger = logging.getLogger(__name__)

# Sections that hold keys of the table and keys of a registered part side by side.
SHARED_SECTIONS: dict[str, type[Section]] = {
    "datasets.train": LoaderOptions,
    "datasets.test": LoaderOptions,
    "train": TrainOptions,
}


def load_options(
    path: str | Path,
    overrides: Sequence[str] = (),
    parts: Mapping[str, Registry] | None = None,
    check: Sequence[Callable[[dict[str, Any]], None]] = (),
) -> dict[str, Any]:
    """The options of file `path`, completed with every default.

    overrides: "section.key=value", value in JSON, else a string.
    parts: registries of the sections "netG", "datasets" (both splits) and "train" (the loss); without its registry a
        section keeps its keys unchecked.
    check: functions of the resolved options that fill in what follows from them, or raise OptionError with the dotted
        key in `where`.
    Raises OptionError; see the module's text.
    """
    sources = Sources(str(path))
    raw = read_with_base(Path(path), sources)
    for override in overrides:
        apply_override(raw, override, sources)
    try:
        _drop_kair_only(raw, parts or {})
        opt = _typed(raw, parts or {}, sources.soft)
        opt["path"]["task"] = str(Path(opt["path"]["root"]) / opt["task"])
        opt["opt_path"] = str(path)
        for function in (_check_conflicts, _order_time_outs, *check):
            function(opt)
    except OptionError as e:
        raise OptionError(e.what, sources.place(e.where), e.expected, e.do) from e
    return opt


def redact(value: Any) -> Any:
    """A copy in which every value whose key looks like a secret is null."""
    if isinstance(value, Mapping):
        return {k: None if SECRET.search(str(k)) else redact(v) for k, v in value.items()}
    return [redact(v) for v in value] if isinstance(value, (list, tuple)) else value


def save_options(opt: dict[str, Any], folder: str | Path) -> Path:
    """Write the resolved options, without secrets, to <folder>/<option file's name>_<time>.json and return its path."""
    folder = Path(folder)
    target = folder / f"{Path(opt['opt_path']).stem}_{time.strftime('%y%m%d_%H%M%S')}.json"
    resolved = {k: v for k, v in redact(opt).items() if k != "opt_path"}
    write_whole(target, f"{json.dumps(resolved, indent=2)}\n".encode())
    return target


def options_digest(opt: dict[str, Any]) -> str:
    """12 hex digits that are equal where all options but secrets are equal; ranks compare it at the start."""
    return hashlib.sha256(json.dumps(redact(opt), sort_keys=True).encode()).hexdigest()[:12]


def _drop_kair_only(raw: dict[str, Any], parts: Mapping[str, Registry]) -> None:
    dropped = []
    for where, keys in KAIR_ONLY.items():
        section = raw
        for name in where.split("."):
            section = section.get(name, {}) if isinstance(section, dict) else {}
        if not isinstance(section, dict):
            continue
        registry = parts.get(where.partition(".")[0])
        name = section.get(registry.type_key) if registry else None
        known = set(registry.keys(name)) if registry and name in registry.names() else set()
        for key in sorted((keys - known) & section.keys()):
            dropped.append(f"{where}.{key}")
            del section[key]
    # Every rank reads the options, before any rank can talk to another: one of them speaks.
    if dropped and os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":
        logger.warning("Options of KAIR that have no effect here: %s", ", ".join(dropped))


def _typed(raw: dict[str, Any], parts: Mapping[str, Registry], soft: set[str]) -> dict[str, Any]:
    """Every section checked against the table or its registry, and completed.

    soft: dotted keys that fall away where the part of their section does not have them.
    """
    raw = copy.deepcopy(raw)
    rest: dict[str, dict[str, Any]] = {}  # the keys of shared sections that belong to a registered part
    if isinstance(raw.get("train"), dict):
        raw["train"], rest["train"] = _split(raw["train"], TrainOptions)
    table = _validate(Options, raw, "")
    for split, section in table["datasets"].items():
        if not section:
            continue
        own, rest[f"datasets.{split}"] = _split(section, LoaderOptions)
        table["datasets"][split] = _validate(LoaderOptions, own, f"datasets.{split}")
    for where, section in rest.items():
        *outer, name = where.split(".")
        holder = table[outer[0]] if outer else table
        registry = parts.get(where.partition(".")[0])
        if registry:
            section = _resolve(registry, _without(section, where, registry, soft), where)
        holder[name] = {**section, **holder[name]}
    if "netG" in parts:
        table["netG"] = parts["netG"].resolve(_without(table["netG"], "netG", parts["netG"], soft), "netG")
    return table


def _without(section: dict[str, Any], where: str, registry: Registry, soft: set[str]) -> dict[str, Any]:
    """`section` without the soft keys that its part does not have."""
    name = section.get(registry.type_key)
    known = {registry.type_key, *(registry.keys(name) if name in registry.names() else section)}
    return {key: value for key, value in section.items() if key in known or f"{where}.{key}" not in soft}


def _resolve(registry: Registry, section: dict[str, Any], where: str) -> dict[str, Any]:
    """As registry.resolve, but an unknown key may also have been meant for the section's table."""
    name = section.get(registry.type_key)
    if name in registry.names():
        table = [*SHARED_SECTIONS[where].model_fields, registry.type_key, *registry.keys(name)]
        for key in section:
            if key not in table:
                raise _unknown(where, key, table, SHARED_SECTIONS[where])
    return registry.resolve(section, where)


def _split(section: dict[str, Any], model: type[Section]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(keys of `model`, the others)."""
    own = {k: v for k, v in section.items() if k in model.model_fields}
    return own, {k: v for k, v in section.items() if k not in own}


def _validate(model: type[BaseModel], values: dict[str, Any], where: str) -> dict[str, Any]:
    try:
        return model(**values).model_dump()
    except ValidationError as e:
        errors = e.errors()
    first = errors[0]
    names = [str(part) for part in first["loc"]]
    owner, depth = model, 0  # the model that the wrong key belongs to, and how deep it lies
    while depth < len(names) - 1 and isinstance(inner := _model_of(owner, names[depth]), type):
        owner, depth = inner, depth + 1
    section = ".".join([where, *names[:depth]]).strip(".")
    dotted = ".".join([section, names[depth]]).strip(".")
    if first["type"] == "extra_forbidden":
        error = _unknown(section, names[depth], list(owner.model_fields), owner)
    else:
        field = owner.model_fields[names[depth]]
        expected = "an object { ... }" if _model_of(owner, names[depth]) else describe_field(field)
        value = _look_up(values, names[: depth + 1])
        shown = "***" if SECRET.search(names[depth]) else repr(value)
        what = f"{dotted} is missing" if first["type"] == "missing" else f"{dotted} is {shown}"
        error = OptionError(what, dotted, expected, f"correct {dotted}; docs/options.md lists all keys")
    others = sorted({".".join(map(str, e["loc"][: depth + 1])) for e in errors[1:]} - {".".join(names[: depth + 1])})
    if others:
        error.do += f"; then also: {', '.join(others)}"
    raise error


def _unknown(section: str, key: str, valid: list[str], model: type[BaseModel] | None = None) -> OptionError:
    hint = nearest(key, valid)
    name = hint.rpartition(" ")[2]
    if model and name in model.model_fields:
        hint += f" ({describe_field(model.model_fields[name])})"
    dotted = f"{section}.{key}".strip(".")
    place = f'one of the keys of "{section}"' if section else "one of the sections"
    do = "rename it" if hint else f"remove it; the keys are {', '.join(valid)}"
    return OptionError(f"unknown option {dotted}", dotted, f"{place}{hint}", do)


def _model_of(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    field = model.model_fields.get(name)
    candidates = [field.annotation, *get_args(field.annotation)] if field else []
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _look_up(values: Any, names: list[str]) -> Any:
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _order_time_outs(opt: dict[str, Any]) -> None:
    """The loader, which can name the samples of a batch, must speak before the watchdog."""
    stall_s = opt["watchdog"]["stall_s"]
    for split, section in opt["datasets"].items():
        if not section:
            continue
        if section["dataloader_timeout_s"] is None:
            section["dataloader_timeout_s"] = 0.8 * stall_s
        elif split == "train" and section["dataloader_timeout_s"] >= stall_s:
            raise OptionError(
                f"datasets.train.dataloader_timeout_s is {section['dataloader_timeout_s']:g}, watchdog.stall_s "
                f"{stall_s:g}", "datasets.train.dataloader_timeout_s",
                "less than watchdog.stall_s: the loader can name the samples, the watchdog cannot",
                "lower or remove it, or raise watchdog.stall_s",
            )  # fmt: skip


def _check_conflicts(opt: dict[str, Any]) -> None:
    """Values that are right one by one and wrong together."""
    train, netG = opt["train"], opt["netG"]
    if opt["use_static_graph"] and opt["find_unused_parameters"]:
        raise OptionError(
            "use_static_graph and find_unused_parameters are both true", "find_unused_parameters",
            "one of them: a static graph already copes with unused parameters", "set find_unused_parameters to false",
        )  # fmt: skip
    if opt["use_static_graph"] and train["accumulation_steps"] > 1:
        # pytorch #143580: no_sync() with static_graph crashes, or silently misses reductions.
        raise OptionError(
            f"train.accumulation_steps is {train['accumulation_steps']} and use_static_graph is true",
            "use_static_graph", "false with accumulation: DDP cannot skip the reduction of a static graph",
            "set use_static_graph to false",
        )  # fmt: skip
    if train["total_iter"] is None and train["epochs"] is None:
        raise OptionError(
            "train.total_iter and train.epochs are both null", "train.total_iter", "steps or epochs", "set one of them"
        )
    if train["G_scheduler_type"] == "MultiStepLR":
        steps = train["G_scheduler_milestones"]
        if not steps or steps != sorted(set(steps)):
            raise OptionError(
                f"train.G_scheduler_milestones is {steps}", "train.G_scheduler_milestones",
                "rising steps, at least one", "correct them, or choose CosineAnnealingWarmRestarts",
            )  # fmt: skip
    if "upscale" in netG and netG["upscale"] != opt["scale"]:
        raise OptionError(
            f"netG.upscale is {netG['upscale']}, scale is {opt['scale']}",
            "netG.upscale",
            "the same number",
            "correct one of them",
        )
    size = opt["datasets"].get("train", {}).get("gt_size")
    if isinstance(size, int) and (size <= 0 or size % (8 * opt["scale"])):
        raise OptionError(
            f"datasets.train.gt_size is {size}", "datasets.train.gt_size",
            f"a multiple of {8 * opt['scale']}: three halvings of the input (scale {opt['scale']})",
            f"set it to {max(1, round(size / (8 * opt['scale']))) * 8 * opt['scale']}",
        )  # fmt: skip
