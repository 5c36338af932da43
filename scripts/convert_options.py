#!/usr/bin/env python3
"""Write an option file of S-VRT (JSON or YAML) as one of this project.

It prints what was translated, what was dropped because it has no effect here, and what our options cannot say, with the
size of the effect. Keys without a counterpart stop it, all named at once; --drop names those that may be left out.
Files of KAIR need no conversion; docs/coming_from.md has a table for those of BasicSR. Secrets are never copied.

    python scripts/convert_options.py theirs.json --out ours.json
    python scripts/convert_options.py theirs.yml path.root=runs --out ours.json --drop train.lora_rank
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from main_train_vrt import PARTS
from models.released import RELEASED
from models.select_network import check_options
from scripts.parts import convert_svrt
from scripts.parts.convert_tools import (
    MISSING,
    Conversion,
    drop_secrets,
    drop_unused,
    is_yaml,
    look_up,
    ordered,
    plain_values,
    read_file,
    remove,
    render,
)
from scripts.parts.exit_codes import with_exit_code
from utils.errors import OptionError, SpikeVRTError
from utils.files import refuse_existing, write_whole
from utils.options.file import Sources, apply_override, read_with_base
from utils.options.load import read_options

# The keys of netG that must fit together.
SIZES = {"netG.depths", "netG.embed_dims", "netG.num_heads", "netG.indep_reconsts", "netG.deformable_groups"}
VALID = {"num_frame": 6, "gt_size": 192}  # of required keys that have no default
PATHS = ("dataroot_lq", "dataroot_gt", "dataroot_spike", "meta_info_file")


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="option file of S-VRT, JSON or YAML")
    parser.add_argument("--out", required=True, help="the new option file; an existing file is never overwritten")
    parser.add_argument("--spike-size", nargs=2, type=int, metavar=("H", "W"), help="size of a spike plane")
    parser.add_argument("--drop", nargs="+", default=[], metavar="KEY", help="keys of FILE that may be left out")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options of ours to set in the new file")
    command = parser.parse_intermixed_args(arguments)
    source, out = Path(command.file), Path(command.out)
    refuse_existing(out, "--out")
    if out.suffix not in (".json", ".json5"):
        raise OptionError(
            "the new file has another ending", f"--out {out}", ".json, as launch_train.sh expects", "add it"
        )
    overrides = [*command.overrides, *(text for text in command.drop if "=" in text)]  # --drop takes all that follows
    c, manner, twice = read(source, [text for text in command.drop if "=" not in text])
    if manner == "KAIR" and not is_yaml(source):
        return keep(source)
    # S-VRT's keys are those of KAIR and some more.
    convert_svrt.convert(c, tuple(command.spike_size) if command.spike_size else None)
    for key in twice:
        c.dropped[f"{key}, the first of two"] = "the last one counts, as in the original program"
    plain_values(c, PARTS)
    drop_unused(c, PARTS)
    for override in overrides:
        apply_override(c.target, override, Sources(str(source)))
    find_paths(c)
    choose_groups(c)
    for key, (what, do) in remaining_problems(c.target).items():
        answer = f"give {key.partition('[')[0]}=VALUE, {what.partition('; expected ')[2]}"
        if what.startswith("unknown option"):
            answer = f"--drop {c.origin(key)}, if it may be left out"
        c.problems.setdefault(c.origin(key), (what, f"{do}, or {answer}" if do == "rename it" else answer))
    print(report(c, source, manner))
    if c.problems:
        raise problems_error(c, source)
    head = [f"Converted from {source.name}, in {manner}'s manner, by scripts/convert_options.py."]
    head += [f"It cannot say: {key}: {why}." for key, why in c.unsaid.items()]
    write_whole(out, render(ordered(c.target, PARTS), c.comments, head).encode())
    gpus = len(c.target.get("gpu_ids") or [0]) if c.target.get("dist") else 1
    print(f"written: {out}\ntrain with: ./launch_train.sh {gpus} {out}")
    return 0


def read(source: Path, drop: list[str]) -> tuple[Conversion, str, list[str]]:
    """The conversion with its source, without secrets and what --drop names; the manner of the file; keys given twice.

    Raises OptionError for a file that is not readable or of another program, and for a --drop that is not in it.
    """
    values, twice = read_file(source)
    c = Conversion(copy.deepcopy(values))
    drop_secrets(c)
    absent = [key for key in drop if not c.has(key) and key not in c.dropped]
    if absent:
        raise OptionError(
            f"--drop {' '.join(absent)}: no such key", str(source), "dotted keys of the file", "correct --drop"
        )
    for key in drop:
        c.drop(key, "as asked with --drop")
    if convert_svrt.is_svrt(values):
        return c, "S-VRT", twice
    if isinstance(values.get("netG"), dict) and isinstance(values.get("datasets"), dict):
        return c, "KAIR", twice
    raise OptionError(
        "the file is of no program that this script knows", str(source),
        "S-VRT: netG and datasets with spike_h, ...",
        "write one after those in options/vrt; docs/coming_from.md has the keys of BasicSR",
    )  # fmt: skip


def keep(source: Path) -> int:
    """Say that a file of KAIR, or of ours, can be used as it is. Raises OptionError with all problems if it cannot."""
    c = Conversion({}, read_with_base(source, Sources(str(source))))
    find_paths(c)
    c.problems = remaining_problems(c.target)
    if c.problems:
        raise problems_error(c, source)
    print(f"{source} is in the form that this program reads, KAIR's, and needs no conversion; nothing was written.")
    print("dataloader_batch_size and dataloader_num_workers are per GPU here, and totals of all GPUs in KAIR.")
    print("\n".join([*_paths_text(c), f"train with: ./launch_train.sh N {source}"]))
    return 0


def find_paths(c: Conversion) -> None:
    """Note the data and weights that are not on this machine."""
    keys = [f"datasets.{split}.{key}" for split in ("train", "test") for key in PATHS]
    for key in (*keys, "netG.spynet_path", "path.pretrained_netG", "path.pretrained_netE"):
        path = look_up(c.target, key)
        if isinstance(path, str) and path and not Path(path).exists():
            c.missing[key] = path


def choose_groups(c: Conversion) -> None:
    """Add deformable_groups to a VRT that leaves them out where the default, 16, does not divide its channels."""
    net = c.target.get("netG")
    if not isinstance(net, dict) or "deformable_groups" in net:
        return
    same = [o for o in RELEASED.values() if o["pa_frames"] == net.get("pa_frames", 2)]
    for groups in (16, *(o["deformable_groups"] for o in same if "deformable_groups" in o), 8, 4, 2, 1):
        trial = {**c.target, "netG": {**net, "deformable_groups": groups}}
        if "netG.deformable_groups" not in remaining_problems(trial):
            break
    if groups != 16:
        c.put("netG.deformable_groups", groups, "Not in the original; VRT's default, 16, does not divide the channels.")
        c.translated["netG.deformable_groups"] = f"{groups}: the default, 16, does not divide the channels"


def remaining_problems(target: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Key -> (what, do) of everything that the option models and the network refuse."""
    values, problems = copy.deepcopy(target), {}
    path, tried, is_default = look_up(values, "netG.spynet_path"), set(), False
    if isinstance(path, str) and not Path(path).is_file():
        values["netG"]["spynet_path"] = None  # its absence is told with the other paths
    while True:
        try:
            check_options(read_options(values, PARTS))
            return problems
        except SpikeVRTError as e:
            found = getattr(e, "found", ()) or (e,)
        new = [single for single in found if key_of(single) not in tried]
        # A section counts as missing while something in it is wrong.
        new = [s for s in new if not (s.what.endswith("is missing") and look_up(target, s.where) is not MISSING)]
        problems |= {s.where: (f"{s.what}; expected {s.expected}", s.do) for s in new}
        # Without the wrong values, what they hide is found as well.
        keys = {key_of(single): single for single in new}
        tried |= keys.keys()
        for key, single in keys.items():
            _repair(values, key, single.what.endswith("is missing"))
        if not is_default and (keys.keys() & SIZES or (not keys and key_of(found[0]).startswith("netG"))):
            # Sizes fit only together: the defaults stand in for all of them, with a valid deformable_groups.
            net, is_default = values.get("netG"), True
            kept = {k: v for k, v in net.items() if f"netG.{k}" not in SIZES} if isinstance(net, dict) else {}
            values["netG"] = {"net_type": "vrt", "upscale": values.get("scale", 1)} | kept | {"deformable_groups": 12}
        elif not keys:
            return problems


def key_of(error: SpikeVRTError) -> str:
    """The dotted key that an error names, without an index."""
    return error.where.partition("[")[0]


def _repair(values: dict[str, Any], key: str, is_missing: bool) -> None:
    """Take a wrong value out, or put a valid one in its place, so that what it hides is checked."""
    remove(values, key)
    outer, _, last = key.rpartition(".")
    section = look_up(values, outer) if outer else values
    if not isinstance(section, dict):
        return
    if key == "netG.upscale":
        section[last] = values.get("scale", 1)
    elif last == "dataset_type":
        kind = "Test" if outer == "datasets.test" else "Train"
        section[last] = f"{kind}DatasetRGBSpike" if "dataroot_spike" in section else f"VideoRecurrent{kind}Dataset"
    elif last in VALID:
        section[last] = VALID[last]
    elif is_missing:
        section[last] = "missing"


def problems_error(c: Conversion, source: Path) -> OptionError:
    rows = "".join(f"\n    {key}: {what}\n      do: {do}" for key, (what, do) in c.problems.items())
    count = len(c.problems)
    return OptionError(
        f"{count} problem{'s' if count > 1 else ''} in the option file, nothing was written:{rows}", str(source),
        "keys and values that this program has, or that --drop leaves out", "answer all of them in one command",
    )  # fmt: skip


def report(c: Conversion, source: Path, manner: str) -> str:
    """What became of each key."""
    lines = [f"{source}: in {manner}'s manner; {c.kept} keys as they are"]
    for title, table in (
        ("translated", c.translated), ("dropped, without effect here", c.dropped), ("cannot be said", c.unsaid),
    ):  # fmt: skip
        if table:
            lines += [f"{title} ({len(table)}):", *(f"  {key}: {text}" for key, text in table.items())]
    return "\n".join([*lines, *_paths_text(c)])


def _paths_text(c: Conversion) -> list[str]:
    lines = [f"  {key}: {path}" for key, path in c.missing.items()]
    return [f"not on this machine, to be put there or changed ({len(lines)}):", *lines] if lines else []


if __name__ == "__main__":
    sys.exit(main())
