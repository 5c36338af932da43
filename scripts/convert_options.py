#!/usr/bin/env python3
"""Write an option file of S-VRT (JSON or YAML) as an option file of this project.

The program prints which keys were renamed, which were dropped because they have no effect here,
and what our options cannot express, with the size of the effect. A key without a counterpart is an
error. --drop names the keys that may be left out.

Files of KAIR need no conversion. docs/coming_from.md has a table for files of BasicSR. Secrets
are never copied.

    python scripts/convert_options.py theirs.json --out ours.json
    python scripts/convert_options.py theirs.yml path.root=runs --out ours.json \
        --drop train.lora_rank
"""

import argparse
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

# Python finds the packages of the repository, e.g. `utils`, by this path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.parts.convert_options.dotted_keys import flatten, nest
from scripts.parts.convert_options.option_problems import refuse_problems
from scripts.parts.convert_options.option_yaml import read_yaml
from scripts.parts.convert_options.svrt_conversion import SPLITS, Conversion
from scripts.parts.convert_options.svrt_dropped import drop_as_asked, drop_without_counterpart
from scripts.parts.convert_options.svrt_network import convert_network, report_regularizers
from scripts.parts.convert_options.svrt_spikes import convert_spikes
from scripts.parts.convert_options.svrt_splits import (
    convert_frames,
    convert_test_split,
    divide_totals,
)
from scripts.parts.exit_codes import with_exit_code
from utils.arguments import plane_side
from utils.errors import OptionError
from utils.files import write_whole
from utils.options.kair_keys import KAIR_ONLY
from utils.options.option_file import read_with_base
from utils.options.override import apply_override
from utils.options.sources import Sources
from utils.options.typed import drop_without_effect
from utils.output_folder import refuse_existing
from utils.secrets import redact

# This file has the command, the order of the conversion, and what is printed and written. A
# conversion in this order, with the module that does it:
#
#     read_with_base, read_yaml   the file      -> sections                    (option_yaml.py)
#     flatten                     sections      -> dotted key -> value         (dotted_keys.py)
#     drop_..., convert_...       S-VRT's keys  -> our keys, and a text for the report
#                                                                              (svrt_*.py)
#     nest                        dotted keys   -> sections again              (dotted_keys.py)
#     refuse_problems             problems      -> one error with all of them  (option_problems.py)
#     file_text                   sections      -> the new file
#
# PARTS is the table of main_train_vrt.py that knows the networks, datasets and losses, and so which
# keys each section may have.
#
# What must stay: no key of a user's file may get lost without a word. A key is converted, reported
# as dropped, or a problem (test_each_dropped_key_of_s_vrt_is_named,
# test_the_problems_of_a_file_are_named_at_once). Secrets are not copied
# (test_secrets_of_services_reach_neither_the_new_file_nor_the_output).
# Free to change: which keys have a counterpart, and the words of the report.
# Test: tests/parts/scripts/test_convert_options.py, with files of S-VRT.

# Matches the beginning of a key that only S-VRT has. The alternatives match, for example:
#
#     swanlab | logfire      swanlab.project
#     netG\. ...             netG.input_mode
#     datasets\.\w+\. ...    datasets.train.spike_h
#
# A file with one such key is a file of S-VRT. A key that KAIR has as well must not be here, or
# files of KAIR would be converted.
OF_SVRT = re.compile(
    r"""
    (
        swanlab | logfire
        | netG\.(input_mode | optical_flow)
        | datasets\.\w+\.(
            spike_(h | w | flipud | reconstruction | normalize) | spike\.reconstruction
            | middle_tfp_center | rgb_normalize | input_pack_mode | keep_legacy_l
        )
    )
    (\.|$)  # a whole key or section: not `datasets.train.spike_high`
    """,
    re.VERBOSE,
)


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    """Convert a file, or check a file of KAIR. Returns the exit code 0.

    `with_exit_code` handles errors.
    """
    command = parse(arguments)
    # PARTS is a table: name of a section -> the classes that the section can name, e.g. "netG" ->
    # all networks. The import stands here because it imports torch, which --help does not need.
    from main_train_vrt import PARTS

    source = Path(command.file)
    out = Path(command.out)
    refuse_unfit_out(out)

    # Read the file, and find out whether it is of S-VRT or of KAIR.
    is_yaml = source.suffix.lower() in (".yml", ".yaml")
    if is_yaml:
        values = read_yaml(source)
    else:
        # A JSON file may name a base file, whose options it changes. `Sources` records for messages
        # which file each option came from.
        values = read_with_base(source, Sources(main_file=str(source)))
    # `redact` replaces the values of secrets, so that no secret gets into the report or the file.
    conversion = Conversion(flatten(redact(values)))
    is_svrt = any(OF_SVRT.match(key) for key in conversion.values)
    if not is_svrt:
        refuse_unless_kair(values, source)

    # A JSON file of KAIR is checked and not converted. A YAML file of KAIR becomes JSON, because
    # our programs read only JSON.
    is_converted = is_svrt or is_yaml
    if is_converted:
        values = convert(conversion, command, PARTS)
    # The check comes before the write, so that a refused file leaves nothing behind.
    refuse_problems(conversion, values, source, PARTS)
    if not is_converted:
        print_no_conversion(source)
        return 0

    write_whole(out, file_text(values, source, conversion).encode() + b"\n")
    print(f"written: {out}\ntrain with: ./launch_train.sh {process_count(values)} {out}")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line as file, out, spike_size, drop and overrides."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="option file of S-VRT, JSON or YAML")
    parser.add_argument(
        "--out", required=True, help="the new option file; an existing file is never overwritten"
    )
    parser.add_argument(
        "--spike-size", nargs=2, type=plane_side, metavar=("H", "W"), help="size of a spike plane"
    )
    parser.add_argument(
        "--drop", nargs="+", default=[], metavar="KEY", help="keys of FILE that may be left out"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="options of ours to set in the new file"
    )
    # `parse_intermixed_args` also takes key=value between the options.
    return parser.parse_intermixed_args(arguments)


def convert(conversion: Conversion, command: argparse.Namespace, parts: Any) -> dict[str, Any]:
    """Return the sections of the new file. Prints what became of each key.

    A key without a counterpart stays as it is. `refuse_problems` then names it.

    command: the result of `parse`.
    parts: PARTS of main_train_vrt.py.
    """
    # argparse gives --drop all words that follow it, so `command.drop` may contain overrides.
    # Overrides have an equals sign. E.g. `--drop train.lora_rank path.root=runs` drops
    # train.lora_rank, and path.root=runs is an override.
    keys_to_drop = [word for word in command.drop if "=" not in word]
    overrides = command.overrides + [word for word in command.drop if "=" in word]

    # Drop keys first, because the later functions note a problem for each key that they cannot
    # convert (test_a_file_is_converted_after_its_advice_was_followed).
    drop_without_counterpart(conversion)  # e.g. use_swanlab, which changes no result
    drop_as_asked(conversion, keys_to_drop, command.file)
    for split in SPLITS:
        convert_spikes(conversion, split, command.spike_size)
        convert_frames(conversion, split)
    # The next two functions need the section `spike` of the training, which `convert_spikes` has
    # made. `convert_test_split` may copy the section, and `convert_network` asks whether it exists.
    convert_test_split(conversion)
    convert_network(conversion)
    # The order of the next two calls does not matter.
    report_regularizers(conversion)  # this project has none of S-VRT's regularizers
    # S-VRT gives the batch size and the number of workers as totals of all GPUs. This project gives
    # them for each GPU.
    divide_totals(conversion)

    # From here on the options are sections again, as the functions of utils/options expect.
    values = nest(conversion.values)
    # Remove the keys of KAIR that have no effect here from `values`, e.g. "netG.init_type". A key
    # stays if the network of the file has a parameter of this name. KAIR_ONLY has the reason for
    # each removed key: {section: {key: reason}}.
    keys_without_effect = drop_without_effect(values, parts)
    for key in keys_without_effect:
        section, _, name = key.rpartition(".")
        why = KAIR_ONLY[section][name]
        conversion.dropped[key] = why
    # The overrides come last, because they are keys of this project.
    sources = Sources(main_file=command.file)  # for messages: in which file a key stands
    for text in overrides:
        apply_override(values, text, sources)
    print_report(conversion, command.file)
    return values


# ---- What is printed --------------------------------------------------------------------------


def print_report(conversion: Conversion, file: str) -> None:
    """Print the three tables of the conversion."""
    print(f"{file}: these keys change, all other keys stay")
    tables = {
        "renamed or changed": conversion.renamed,
        "dropped, without effect here": conversion.dropped,
        "cannot be said": conversion.differences,  # what the options of this project cannot express
    }
    for title, table in tables.items():
        if not table:
            continue
        print(f"{title} ({len(table)}):")
        for key, text in table.items():
            print(f"  {key}: {text}")


def print_no_conversion(source: Path) -> None:
    """Say that a file of KAIR can be used as it is, and which numbers mean something else here."""
    print(f"{source} is in the form that this program reads, KAIR's, and needs no conversion.")
    print(
        "dataloader_batch_size and dataloader_num_workers are per GPU here, and totals of "
        "all GPUs in KAIR."
    )
    print(f"nothing was written; train with: ./launch_train.sh N {source}")


def process_count(values: dict[str, Any]) -> int:
    """Return the number of processes: one for each GPU with the option `dist`, otherwise 1.

    If gpu_ids is missing or empty, it counts as [0], the first GPU.

    values: sections of the new file
    """
    if not values.get("dist"):
        return 1
    gpu_ids = values.get("gpu_ids") or [0]
    return len(gpu_ids)


# ---- The new file -----------------------------------------------------------------------------


def file_text(values: dict[str, Any], source: Path, conversion: Conversion) -> str:
    """Return the new file as text: the options as JSON, under a comment that says its origin.

    values: the sections of the new file. source: the file that was converted.

    Test: test_the_new_file_says_in_its_comments_what_it_cannot_express
    """
    text = with_short_lists(json.dumps(values, indent=2, ensure_ascii=False))

    paragraphs = [f"Converted from {source.name} of S-VRT by scripts/convert_options.py."]
    # `differences` has what our options cannot express: {key: what differs}.
    for key, why in conversion.differences.items():
        paragraphs.append(f"It cannot say: {key}: {why}.")
    comment = ""
    for paragraph in paragraphs:
        # Lines of 120 columns, of which "  // " takes 5.
        for line in textwrap.wrap(paragraph, width=115):
            comment += f"  // {line}\n"
    # The comment comes below the first bracket of the file. The last argument, 1, replaces only the
    # first bracket.
    return text.replace("{\n", "{\n" + comment, 1)


# Matches a list of JSON over several lines that has no other list or object in it, e.g. from "[" to
# "]" of "[\n    6,\n    224\n  ]": a bracket, a line end, no further bracket or brace, a bracket.
PLAIN_LIST = re.compile(r"\[\n[^\[\]{}]*\]")


def with_short_lists(text: str) -> str:
    """Return JSON with each plain list in one line: "[\\n    6,\\n    224\\n  ]" -> "[6, 224]".

    json.dumps writes each value of a list on a line of its own.

    Test: test_lists_stay_in_one_line
    """
    return PLAIN_LIST.sub(_in_one_line, text)


def _in_one_line(plain_list: re.Match[str]) -> str:
    """Return a list without its line ends.

    Strings do not change: json.dumps writes a line end within a string as a backslash and an n.
    """
    text = plain_list[0]  # "[\n    6,\n    224\n  ]"
    # A line end after a comma becomes a blank. The first and the last line end are removed.
    text = re.sub(r",\n *", ", ", text)  # "[\n    6, 224\n  ]"
    return re.sub(r"\n *", "", text)  # "[6, 224]"


# ---- What is refused --------------------------------------------------------------------------


def refuse_unfit_out(out: Path) -> None:
    """Raise an error if the new file exists already, or has another ending than .json or .json5."""
    refuse_existing(out, "--out")
    # The error does not advise .json5, because the option files of this project end in .json.
    if out.suffix not in (".json", ".json5"):
        name = out.name
        raise OptionError(
            what=f"{name} has another ending",
            where=f"--out {out}",
            expected=".json, as launch_train.sh expects",
            do=f"name the file {name}.json",
        )


def refuse_unless_kair(values: dict[str, Any], source: Path) -> None:
    """Raise OptionError if a file is not of KAIR.

    The caller has found no key of S-VRT in the file. If the file is not of KAIR, its kind is
    unknown.

    values: the sections of the file.

    Test: test_what_is_no_option_file_is_refused
    """
    has_network = isinstance(values.get("netG"), dict)
    has_data = isinstance(values.get("datasets"), dict)
    if has_network and has_data:  # every file of KAIR has both sections
        return
    raise OptionError(
        what="unknown kind of option file",
        where=str(source),
        expected="S-VRT: netG, datasets with spike_h, ...",
        do="write a file as in options/vrt; docs/coming_from.md has the keys of BasicSR",
    )


if __name__ == "__main__":
    sys.exit(main())
