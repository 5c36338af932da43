#!/usr/bin/env python3
"""Write an option file of S-VRT (JSON or YAML) as an option file of this project.

The program prints which keys were renamed, which were dropped because they have no effect here,
and what our options cannot say, with the size of the effect. A key without a counterpart is an
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.parts.exit_codes import with_exit_code
from utils.errors import OptionError
from utils.files import write_whole
from utils.options.kair_keys import KAIR_ONLY
from utils.options.key_lines import DEEPEST
from utils.options.option_file import read_with_base
from utils.options.override import apply_override
from utils.options.secrets import KEY, redact
from utils.options.section import UNKNOWN_OPTION
from utils.options.sources import Sources
from utils.options.typed import TOTALS, drop_without_effect, read_options
from utils.output_folder import refuse_existing

# Test: tests/parts/scripts/test_convert_options.py, with files of S-VRT. Nothing else uses this
# file.
# What must stay: no key of a user's file may get lost without a word. A key is converted, reported
# as dropped, or a problem (test_each_dropped_key_of_s_vrt_is_named,
# test_the_problems_of_a_file_are_named_at_once). Secrets are not copied
# (test_secrets_of_services_reach_neither_the_new_file_nor_the_output).
# Free to change: which keys have a counterpart, and the words of the report.
#
# A conversion in this order:
#
#     read_with_base, read_yaml   the file           -> sections
#     flattened                   sections           -> `Conversion`: dotted key -> value
#     convert_...                 S-VRT's keys       -> our keys, and a text for the report
#     nested                      dotted keys        -> sections again
#     refuse_problems             problems           -> one error with all of them
#     file_text                   sections           -> the new file
#
# Throughout this file, a key is dotted: `netG.depths` is the option `depths` of the section `netG`.
# A split is one of the two data sets: `datasets.train` or `datasets.test`. PARTS is the table of
# main_train_vrt.py that knows the networks, datasets and losses, and so which keys each section may
# have.

# Most bytes of a YAML file. PyYAML reads some 50 kB a second, so a larger file would seem to hang.
# The option files of S-VRT have less than a tenth of this size.
MOST_YAML_BYTES = 2**16
# Most values of a YAML file. A few lines with aliases can stand for billions of values, which would
# fill the memory. Option files have some hundreds.
MOST_YAML_VALUES = 20_000

SPLITS = ("datasets.train", "datasets.test")

# Matches the beginning of a key that only S-VRT has, e.g. `netG.input_mode`,
# `datasets.train.spike_h` or `swanlab.project`. A file with one such key is a file of S-VRT. A key
# that KAIR has as well must not be here, or files of KAIR would be converted.
OF_SVRT = re.compile(
    r"(swanlab|logfire|netG\.(input_mode|optical_flow)|datasets\.\w+\.(spike_(h|w|flipud|reconstruction|normalize)"
    r"|spike\.reconstruction|middle_tfp_center|rgb_normalize|input_pack_mode|keep_legacy_l))(\.|$)"
)

# Keys of S-VRT without a counterpart that are left out although no --drop names them. Each pattern
# must match the whole key of an option or of a section. E.g. the first pattern matches
# `use_swanlab` and `train.logfire`. The text is the reason, for the report. Add only keys that
# change no result: a key that changes a result must be a problem, so that the user decides.
DROPPED_UNASKED = {
    r"(?i)(.*\.)?(use_)?(swanlab|logfire)(_.*)?": "reports go to TensorBoard and Weights & "
    "Biases; nothing is copied",
    f".*{KEY.pattern}": "secrets are never copied; give WANDB_API_KEY in the environment",
    r"datasets\.\w+\.keep_legacy_l": "it only kept a second copy of the input in the batch",
    r"datasets\.\w+\.scale": "it follows from the sizes of the frames",
    r"datasets\.test\.dataloader_(shuffle|num_workers|batch_size)": "clips are tested one by "
    "one, without a loader",
}

# The keys of our `spike` section that a test split can take over from the training split.
SPIKE_KEYS = ("type", "h", "w", "flip", "rate", "gamma", "center", "representation")


class Problem(NamedTuple):
    """A key or value that this program cannot convert, and the user's way out."""

    what: str  # what is wrong
    do: str  # what to add to the command


@dataclass
class Conversion:
    """The options of one file while their keys change from S-VRT's to ours, and what is reported.

    The functions `convert_...` below all change one object of this class. Each takes the keys that
    it knows. A key that nobody takes stays in `values`, and `refuse_problems` names it. So a new
    function may be added anywhere before `nested`.
    """

    values: dict[str, Any]  # dotted key -> value; in the end, only keys of ours
    # The three tables of the report: key of S-VRT -> a text for the user.
    renamed: dict[str, str] = field(default_factory=dict)  # what the key became
    dropped: dict[str, str] = field(default_factory=dict)  # why the key was left out
    differences: dict[str, str] = field(default_factory=dict)  # what our options cannot express
    # Key -> problem. With any problem nothing is written.
    problems: dict[str, Problem] = field(default_factory=dict)

    def has(self, where: str) -> bool:
        """Return whether there is an option `where`, or an option in a section `where`.

        For example, a file with the option `netG.depths` has `netG.depths` and `netG`.
        """
        return bool(self.keys_of(where))

    def keys_of(self, where: str) -> list[str]:
        """Return the keys of a section; or `where` itself, if `where` is an option.

        For example, `netG` -> [`netG.depths`, `netG.img_size`], and `netG.depths` ->
        [`netG.depths`]. Returns an empty list if there is neither.
        """
        # With the dots at the end, `netG.depths` does not match `netG.depths_of_flow`.
        return [key for key in self.values if f"{key}.".startswith(f"{where}.")]

    def take(self, where: str) -> Any:
        """Remove an option and return its value, or remove a section and return {key: value}.

        The keys of a returned section are relative to it. E.g. the section `netG.optical_flow` is
        returned as {"module": "spynet"}. Returns None if there is neither.
        """
        keys = self.keys_of(where)
        if where in self.values:
            taken = self.values[where]
            for key in keys:
                del self.values[key]
            return taken
        section = {}
        for key in keys:
            relative_key = key.removeprefix(f"{where}.")
            section[relative_key] = self.values[key]
            del self.values[key]
        if not section:
            return None
        return section

    def set_ours(self, new: str, value: Any, old: str | None = None, note: str = "") -> None:
        """Set our option `new`, and report that the key `old` of S-VRT became this option.

        old: None: the key keeps its name, and only its value changes. Otherwise `take(old)` comes
        before, because `old` is not removed here.
        note: text of the report, if it says more than "new = value"
        """
        self.values[new] = value
        self.renamed[old or new] = note or f"{new} = {json.dumps(value)}"

    def drop(self, where: str, why: str) -> None:
        """Leave out an option or a section, and report why. If there is neither, do nothing."""
        if self.has(where):
            self.take(where)
            self.dropped[where] = why


# ---- The command ------------------------------------------------------------------------------


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    """Convert a file, or check a file of KAIR. Returns the exit code 0.

    `with_exit_code` handles errors.
    """
    command = parse(arguments)
    # PARTS: section -> registry of the networks, datasets or losses that the section can name.
    # Imported after `parse`, so that --help need not import torch.
    from main_train_vrt import PARTS

    source = Path(command.file)
    out = Path(command.out)
    refuse_unfit_out(out)

    # Read the file and tell its kind.
    is_yaml = source.suffix.lower() in (".yml", ".yaml")
    if is_yaml:
        values = read_yaml(source)
    else:
        # A JSON file may name a base file, whose options it changes. `Sources` records for messages
        # which file each option came from.
        values = read_with_base(source, Sources(main_file=str(source)))
    # `redact` replaces the values of secrets, so that no secret gets into the report or the file.
    conversion = Conversion(flattened(redact(values)))
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
        print(f"{source} is in the form that this program reads, KAIR's, and needs no conversion.")
        print(
            "dataloader_batch_size and dataloader_num_workers are per GPU here, and totals of "
            "all GPUs in KAIR."
        )
        print(f"nothing was written; train with: ./launch_train.sh N {source}")
        return 0

    write_whole(out, file_text(values, source, conversion).encode() + b"\n")
    print(f"written: {out}\ntrain with: ./launch_train.sh {process_count(values)} {out}")
    return 0


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


def process_count(values: dict[str, Any]) -> int:
    """Return the number of processes for the option `dist`: one for each GPU. Without `dist`, 1.

    If gpu_ids is missing or empty, it counts as [0], the first GPU.

    values: sections of the new file
    """
    if not values.get("dist"):
        return 1
    gpu_ids = values.get("gpu_ids") or [0]
    return len(gpu_ids)


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
        "--spike-size", nargs=2, type=int, metavar=("H", "W"), help="size of a spike plane"
    )
    parser.add_argument(
        "--drop", nargs="+", default=[], metavar="KEY", help="keys of FILE that may be left out"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="options of ours to set in the new file"
    )
    # Intermixed, so that key=value may also be given between the options.
    return parser.parse_intermixed_args(arguments)


def refuse_unless_kair(values: dict[str, Any], source: Path) -> None:
    """Raise OptionError if a file is not of KAIR.

    The caller has found no key of S-VRT in the file. So a file that is not of KAIR is unknown.

    values: the sections of the file.
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


def file_text(values: dict[str, Any], source: Path, conversion: Conversion) -> str:
    """Return the new file as text: the options as JSON, under a comment that says its origin."""
    text = json.dumps(values, indent=2, ensure_ascii=False)

    # json.dumps writes each value of a list on a line of its own. Join the lines of plain lists:
    # "[\n    6,\n    224\n  ]" becomes "[6, 224]". The pattern finds lists without brackets inside.
    # A string of JSON has no line ends, so only the indentation is removed.
    def on_one_line(found: re.Match[str]) -> str:
        spaced = re.sub(r",\n *", ", ", found[0])
        return re.sub(r"\n *", "", spaced)

    text = re.sub(r"\[\n[^\[\]{}]*\]", on_one_line, text)

    paragraphs = [f"Converted from {source.name} of S-VRT by scripts/convert_options.py."]
    for key, why in conversion.differences.items():
        paragraphs.append(f"It cannot say: {key}: {why}.")
    comment = ""
    for paragraph in paragraphs:
        # Lines of 120 columns, of which "  // " takes 5.
        for line in textwrap.wrap(paragraph, width=115):
            comment += f"  // {line}\n"
    # The comment comes below the first bracket of the file, so replace only the first one.
    return text.replace("{\n", "{\n" + comment, 1)


# ---- Reading YAML -----------------------------------------------------------------------------


class UnfitYamlError(ValueError):
    """A YAML file is too large, or its aliases stand for too many values.

    The text is a clause that ends the sentence "cannot read the option file: ...".
    """


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the sections of a YAML file. Raises OptionError if the file cannot be read.

    The file may come from anybody, so its size, its aliases and its depth are limited.
    test_convert_options.py goes beyond each limit.
    """
    try:
        import yaml  # the package wandb brings PyYAML; this project does not require it
    except ImportError as e:
        raise OptionError(
            what="no package PyYAML",
            where=str(path),
            expected="PyYAML, to read a YAML file",
            do="pip install pyyaml",
        ) from e

    where = str(path)
    try:
        values = _parse_yaml(path, yaml)
        if isinstance(values, dict):
            return values
        what = "the option file holds no object"
    except (OSError, ValueError, ArithmeticError, RecursionError, yaml.YAMLError) as e:
        # The message gives only the line of PyYAML's error, because the error's text may quote a
        # secret.
        reason = ""
        if isinstance(e, OSError):
            reason = f": {e.strerror}"
        elif isinstance(e, RecursionError):
            reason = ": too many brackets within one another"
        elif isinstance(e, UnfitYamlError):
            reason = f": {e}"
        what = f"cannot read the option file{reason}"
        mark = getattr(e, "problem_mark", None)  # where PyYAML stopped
        if mark is not None:
            where += f", line {mark.line + 1}"  # PyYAML counts lines from 0
    # Raised after the `except` block, because within it Python would print PyYAML's error too.
    raise OptionError(
        what=what,
        where=where,
        expected="plain YAML in UTF-8: sections and keys",
        do="correct it, or its path",
    )


def _parse_yaml(path: Path, yaml: Any) -> Any:
    """Return the value that a YAML file holds, or None for an empty file.

    yaml: the module of PyYAML.

    Raises UnfitYamlError if the file is too large or repeats too much, and the errors of PyYAML.
    """

    # YAML 1.1 reads 4.0e-4 as a number, and 4e-4 as text. Our loader reads both as numbers.
    # `add_implicit_resolver` changes the class on which it is called. So call it on a new class,
    # and not on PyYAML's own.
    class Loader(yaml.SafeLoader):
        pass

    number = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+$")
    first_characters = list("+-0123456789")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, first_characters)

    # Read one byte more than allowed: if the byte is there, the file is too large.
    with open(path, "rb") as file:
        content = file.read(MOST_YAML_BYTES + 1)
    if len(content) > MOST_YAML_BYTES:
        raise UnfitYamlError(f"it has more than {MOST_YAML_BYTES} bytes")
    loader = Loader(content.decode("utf-8-sig"))  # "-sig": without the byte order mark
    root = loader.get_single_node()  # the tree of the file, in which no value is made yet; or None
    _refuse_repetition(root)
    # Make the values only after the check. At each use of a merged key (<<) PyYAML copies its
    # values, so a file with very many uses would fill the memory.
    return loader.construct_document(root) if root else None


def _refuse_repetition(root: Any) -> None:
    """Raise UnfitYamlError if the aliases of a YAML file stand for very many values.

    An alias `*name` repeats the value `&name`. Ten lines, each with ten aliases of the line
    before, stand for 10**10 values. An alias within its own value stands for endlessly many values.

    root: the root node of the file, or None. PyYAML puts the same node object at each alias. So
        this walk visits a node once for each use, and not once for each line.
    """
    waiting = [(root, 0)]  # nodes to visit, each with its depth
    visits = 0
    while waiting:
        node, depth = waiting.pop()
        visits += 1
        if visits > MOST_YAML_VALUES:
            raise UnfitYamlError(f"its aliases (*name) make more than {MOST_YAML_VALUES} values")
        if depth > DEEPEST:
            raise UnfitYamlError(f"more than {DEEPEST} brackets or sections within one another")
        # A list node holds nodes. A mapping node holds pairs (key node, value node).
        inner = getattr(node, "value", None)
        if not isinstance(inner, list):
            continue
        for item in inner:
            children = item if isinstance(item, tuple) else (item,)
            for child in children:
                waiting.append((child, depth + 1))


# ---- Sections and dotted keys -----------------------------------------------------------------


def flattened(section: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Return all options as dotted key -> value, e.g. {"a": {"b": 1}} -> {"a.b": 1}.

    An empty section stays as a value: {"a": {}} -> {"a": {}}.

    where: dotted key of the section, with a dot at its end, or "" for the whole file
    """
    found = {}
    for key, value in section.items():
        if isinstance(value, dict) and value:
            found.update(flattened(value, f"{where}{key}."))
        else:
            found[f"{where}{key}"] = value
    return found


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Return dotted keys as sections, e.g. {"a.b": 1} -> {"a": {"b": 1}}."""
    root: dict[str, Any] = {}
    for key, value in values.items():
        *names, last = key.split(".")
        section = root
        for name in names:
            section = section.setdefault(name, {})
        section[last] = value
    return root


def prefixes(key: str) -> list[str]:
    """Return the sections of a key and the key, e.g. `a.b.c` -> [`a`, `a.b`, `a.b.c`]."""
    names = key.split(".")
    return [".".join(names[:count]) for count in range(1, len(names) + 1)]


# ---- Conversion -------------------------------------------------------------------------------


def convert(conversion: Conversion, command: argparse.Namespace, parts: Any) -> dict[str, Any]:
    """Return the sections of the new file. Prints what became of each key.

    A key without a counterpart stays as it is. `refuse_problems` then names it.

    command: the result of `parse`.
    parts: PARTS of main_train_vrt.py.
    """
    # In `--drop train.lora_rank path.root=runs`, argparse gives both words to --drop. The second is
    # an override.
    keys_to_drop = [word for word in command.drop if "=" not in word]
    overrides = command.overrides + [word for word in command.drop if "=" in word]

    # First, because the rest could call these keys problems.
    drop_without_counterpart(conversion)
    drop_as_asked(conversion, keys_to_drop, command.file)
    for split in SPLITS:
        convert_spikes(conversion, split, command.spike_size)
        convert_frames(conversion, split)
    # After `convert_spikes`, because it copies the section `spike` that this has made.
    convert_test_split(conversion)
    convert_network(conversion)
    for key in ("train.G_regularizer_orthstep", "train.G_regularizer_clipstep"):
        if conversion.values.get(key) is not None:
            conversion.differences[key] = (
                "there is no such regularizer; its effect has not been measured"
            )
    divide_totals(conversion)

    # From here on the options are sections again, as the functions of utils/options expect.
    values = nested(conversion.values)
    # `drop_without_effect` removes from `values` the keys of KAIR that have no effect here, and
    # returns these keys. A key stays if a part that the file names, e.g. the network of netG, has a
    # parameter of this name. KAIR_ONLY has the reason for each: {section: {key: reason}}.
    keys_without_effect = drop_without_effect(values, parts)
    for key in keys_without_effect:
        section, _, name = key.rpartition(".")
        why = KAIR_ONLY[section][name]
        conversion.dropped[key] = why
    # Last, because the overrides are keys of ours.
    sources = Sources(main_file=command.file)  # for messages: in which file a key stands
    for text in overrides:
        apply_override(values, text, sources)
    print_report(conversion, command.file)
    return values


def drop_without_counterpart(conversion: Conversion) -> None:
    """Leave out the options and sections that DROPPED_UNASKED names."""
    for key in list(conversion.values):  # a copy, because `drop` removes keys
        # A pattern may match a section around the key. Then the whole section goes. `drop` does
        # nothing for the other keys of this section, which are gone when their turn comes.
        for section_or_key in prefixes(key):
            why = _why_dropped(section_or_key)
            if why is not None:
                conversion.drop(section_or_key, why)


def _why_dropped(section_or_key: str) -> str | None:
    """Return the reason of DROPPED_UNASKED to leave out a section or key. None: it stays."""
    for pattern, why in DROPPED_UNASKED.items():
        if re.fullmatch(pattern, section_or_key):
            return why
    return None


def drop_as_asked(conversion: Conversion, keys: list[str], file: str) -> None:
    """Leave out the keys of --drop. Raises OptionError if the file does not have such a key."""
    for key in keys:
        # A key that `drop_without_counterpart` has removed is no error.
        if not conversion.has(key) and key not in conversion.dropped:
            raise OptionError(
                what=f"--drop {key}: no such key",
                where=file,
                expected="dotted keys of the file",
                do="correct --drop",
            )
        conversion.drop(key, "as asked with --drop")


# What differs between frames that S-VRT normalized and frames here, for the report.
NORMALIZED = (
    "S-VRT scales the input to about [-2.1, 2.6] while the sharp frames stay in [0, 1], and VRT "
    "adds its input to its output; here both are in [0, 1], and weights trained the other way do "
    "not fit"
)


def convert_frames(conversion: Conversion, split: str) -> None:
    """Convert the options of a split that concern its RGB frames: crop size and normalization."""
    # S-VRT gives height and width of the crop, e.g. [256, 256]. Our crop is square, so it is one
    # number, 256. A crop of unequal sides stays as it is, and `refuse_problems` names the key.
    key = f"{split}.gt_size"
    sizes = conversion.values.get(key)
    if isinstance(sizes, list) and sizes:
        is_square = all(size == sizes[0] for size in sizes)
        if is_square:
            conversion.set_ours(key, sizes[0])

    key = f"{split}.rgb_normalize"
    kind = conversion.take(key)
    if kind:
        conversion.differences[key] = f"{kind!r}: {NORMALIZED}"


def divide_totals(conversion: Conversion) -> None:
    """Divide batch size and number of workers: S-VRT counts all GPUs together, we count each."""
    ids = conversion.values.get("gpu_ids")
    gpus = 1
    if conversion.values.get("dist") and isinstance(ids, list):
        gpus = len(ids)
    if gpus <= 1:
        return
    for name in TOTALS:  # dataloader_batch_size, dataloader_num_workers
        key = f"datasets.train.{name}"
        total = conversion.values.get(key)
        if not isinstance(total, int):
            continue
        # At least 1 per GPU, e.g. 4 samples on 8 GPUs, because a batch needs a sample on each GPU.
        # 0 workers stay 0: then the main process reads.
        least = min(total, 1)
        per_gpu = max(total // gpus, least)
        new_total = per_gpu * gpus
        note = f"{total} for {gpus} GPUs in all -> {per_gpu} per GPU, {new_total} in all"
        conversion.set_ours(key, per_gpu, note=note)
        if new_total != total:
            conversion.differences[key] = (
                f"{total} in all is no multiple of {gpus} GPUs: {per_gpu} per GPU is {new_total} "
                "in all"
            )


def print_report(conversion: Conversion, file: str) -> None:
    """Print the three tables of the conversion."""
    print(f"{file}: these keys change, all other keys stay")
    tables = {
        "renamed or changed": conversion.renamed,
        "dropped, without effect here": conversion.dropped,
        "cannot be said": conversion.differences,
    }
    for title, table in tables.items():
        if not table:
            continue
        print(f"{title} ({len(table)}):")
        for key, text in table.items():
            print(f"  {key}: {text}")


# ---- Conversion of spikes ---------------------------------------------------------------------
#
# What must stay: the network gets the channels that it gets in S-VRT, but for the differences that
# are reported (test_the_converted_channels_differ_from_s_vrt_only_by_its_rounding).


def convert_spikes(conversion: Conversion, split: str, spike_size: list[int] | None) -> None:
    """Convert the spike options of a split, if it has any, to our section `spike`.

    Raises DataError if the dataset.json beside the spikes is wrong.

    spike_size: [height, width] of --spike-size
    """
    pattern = re.compile(rf"{split}\.((dataroot_)?spike|middle_tfp)")
    if not any(pattern.match(key) for key in conversion.values):
        return
    # Imported here, so that --help does not wait for this slow import.
    from data.cameras.dataset_info import DatasetInfo, load_info

    # What the dataset.json in the folder of the spikes says. Without a folder it says nothing.
    root = conversion.values.get(f"{split}.dataroot_spike")
    info = load_info(root) if isinstance(root, str) else DatasetInfo()

    convert_spike_size(conversion, split, spike_size, info)
    convert_spike_brightness(conversion, split, info)
    conversion.differences[f"{split}, missing spike files"] = (
        "S-VRT replaces them by zeros; here they are an error"
    )
    key = f"{split}.spike_flipud"
    flip = conversion.take(key)
    if flip is not None:
        conversion.set_ours(f"{split}.spike.flip", flip, old=key)
    convert_representation(conversion, split)
    convert_spike_scale(conversion, split)


def convert_spike_size(
    conversion: Conversion, split: str, spike_size: list[int] | None, info: Any
) -> None:
    """Set `spike.h` and `spike.w`: from --spike-size, else dataset.json, else the file of S-VRT.

    info: DatasetInfo, what the dataset.json of the spikes says.
    """
    spike = f"{split}.spike"
    height = conversion.take(f"{spike}_h")
    width = conversion.take(f"{spike}_w")
    size_of_file = f"the file says {height} x {width}"  # the option file of S-VRT
    report_key = f"{spike}_h, spike_w"

    conversion.values[f"{spike}.type"] = "dat"
    if spike_size:
        size = spike_size
    elif info.h:
        # Our options h and w stay unset. Then our reader takes the size of dataset.json.
        conversion.renamed[report_key] = (
            f"{spike}.h, w = the size in dataset.json, {info.h} x {info.w}; {size_of_file}"
        )
        return
    else:
        size = [height, width]
        conversion.differences[report_key] = (
            f"{size_of_file}; S-VRT's published 250 x 400 contradicts its data, 360 x 640: give "
            "--spike-size H W"
        )
    conversion.values[f"{spike}.h"] = size[0]
    conversion.values[f"{spike}.w"] = size[1]
    conversion.renamed[report_key] = f"{spike}.h, w = {size}; {size_of_file}"


def convert_spike_brightness(conversion: Conversion, split: str, info: Any) -> None:
    """Keep the firing rates as S-VRT reads them, or report by how much they differ.

    info: DatasetInfo, what the dataset.json of the spikes says
    """
    if info.light == "display":
        # These spikes were simulated from display values, not from light. Our reader raises firing
        # rates to the power 2.2 / gamma. With gamma 2.2 the power is 1, and the rates stay as
        # S-VRT has them.
        conversion.values[f"{split}.spike.gamma"] = 2.2
    if info.rate not in (None, 1.0):
        # Our reader divides by the rate, S-VRT does not.
        factor = 1 / info.rate
        conversion.differences[f"{split}, firing rates"] = (
            f"channels are divided by {info.rate:g}, the rate of dataset.json: {factor:.3g} "
            "times the channels of S-VRT"
        )


def convert_spike_scale(conversion: Conversion, split: str) -> None:
    """Convert `spike_normalize`, which subtracts a mean and divides by a std, to `spike.rate`."""
    key = f"{split}.spike_normalize"
    if not conversion.has(key):
        return
    scale = conversion.take(key)  # {"mean": ..., "std": ...}, or null
    mean = None
    std = None
    if isinstance(scale, dict):
        mean = scale.get("mean")
        std = scale.get("std")
    # The mean is one number, or a list with a number for each channel. So is the std.
    means = mean if isinstance(mean, list) else [mean]
    stds = std if isinstance(std, list) else [std]

    has_offset = any(means)
    has_one_scale = len(set(stds)) == 1
    if has_offset or not has_one_scale:
        # Our option `spike.rate` is one divisor for all channels. There is no option for an offset.
        note = "a scale and offset that the first convolution learns; not applied"
        conversion.differences[key] = f"mean {means}, std {stds}: {note}"
    elif stds[0] not in (None, 1):
        conversion.set_ours(f"{split}.spike.rate", float(stds[0]), old=key)
    else:
        conversion.dropped[key] = "null, or mean 0 and std 1, change nothing"


def convert_representation(conversion: Conversion, split: str) -> None:
    """Set `spike.representation`, and `spike.center` if it has an effect.

    The versions of S-VRT name the representation in two different keys. A third key may hold the
    center of one representation, "middle_tfp". For example, the file

        spike.reconstruction   {"type": "middle_tfp", "half_win_length": 20}
        middle_tfp_center      44

    becomes

        spike.representation   {"type": "tfp", "half_window": 20}
        spike.center           44

    A file may have several of the three keys. `_joined_reconstruction` removes the keys and joins
    what they say. If they contradict one another, it notes a problem.
    """
    key = f"{split}.spike.reconstruction"
    other_key = f"{split}.spike_reconstruction"
    center_key = f"{split}.middle_tfp_center"
    given_keys = [given for given in (key, other_key, center_key) if conversion.has(given)]
    # E.g. {"type": "middle_tfp", "half_win_length": 20, "middle_tfp_center": 44}. Each `pop` below
    # takes out a parameter that this function knows.
    parameters = _joined_reconstruction(
        conversion, given_keys, center_key=center_key, key_of_problems=key
    )

    # The values that S-VRT takes if a key is missing (docs/coming_from.md): TFP of 20 planes on
    # each side, 4 bins, a window of 21 planes.
    kind = parameters.pop("type", "spikecv_tfp")
    center = parameters.pop("middle_tfp_center", None)
    channels = conversion.take(f"{split}.spike_channels")
    # S-VRT has two names for the planes on each side. If a file has both, `half_win_length` counts.
    usual_half_window = parameters.pop("half_window", 20)
    half_window = parameters.pop("half_win_length", usual_half_window)
    # Without num_bins, S-VRT makes as many bins as spike_channels says.
    usual_bins = channels if channels else 4
    bins = parameters.pop("num_bins", usual_bins)
    window = parameters.pop("window", 21)

    counterparts = _counterparts(half_window, bins, window)
    # A file may hold a list or a number in place of a name.
    if not isinstance(kind, str) or kind not in counterparts:
        conversion.problems[key] = Problem(
            what=f"{kind!r} has no counterpart; only tfp, middle_tfp, tfi, raw_window and "
            "encoding25 have one",
            do=f"--drop {' '.join(given_keys)}, to write tfp with {bins} bins instead",
        )
        return
    counterpart = counterparts[kind]

    # This function does not know the parameters that are left.
    for name in parameters:
        conversion.problems[f"{key}.{name}"] = Problem(
            what="unknown to this script",
            do=f"--drop {key}.{name}, if it may be left out",
        )
    _compare_channels(conversion, f"{split}.spike_channels", channels, counterpart)

    # The report names `key`, also if the file has the other key or none of the three.
    new_key = f"{split}.spike.representation"
    conversion.set_ours(new_key, counterpart.representation, old=key)
    if counterpart.difference:
        conversion.differences[key] = counterpart.difference
    if center is not None and kind == "middle_tfp":
        conversion.set_ours(f"{split}.spike.center", center, old=center_key)
    elif center is not None:
        conversion.dropped[center_key] = f"only middle_tfp uses it, not {kind}"


# How the channels of S-VRT differ from ours, for the report.
# test_the_rounding_of_s_vrt_lowers_a_channel_by_0_002_on_average measures these numbers.
ROUNDED = (
    "S-VRT rounds it down to a multiple of 1/255: ours, in [0, 1], is 0.002 higher on "
    "average, at most 0.004"
)
# Here h is `half_window`, the number of planes on each side.
STRETCHED = (
    "S-VRT averages 2 h planes and stretches each frame to [0, 1] by its minimum and maximum, "
    "which loses the brightness; here it is the mean of 2 h + 1 planes as it is"
)


class Counterpart(NamedTuple):
    """Our representation that replaces a representation of S-VRT."""

    representation: dict[str, Any]  # the section spike.representation
    channels: int | None  # number of its channels; None: not compared with `spike_channels`
    difference: str  # how its channels differ from the channels of S-VRT, or ""


def _counterparts(half_window: Any, bins: Any, window: Any) -> dict[str, Counterpart]:
    """Return the counterpart of each representation of S-VRT: {its name in S-VRT: counterpart}.

    Each name is a way to turn spike planes into channels (data/spike/represent.py):

        tfp, middle_tfp     the mean of the planes around a time
        tfi                 one over the number of planes from one spike to the next
        raw                 the planes themselves
        encoding25          windows of 25 planes

    A new name of S-VRT needs only an entry here, and a case of
    test_each_other_representation_of_s_vrt_becomes_one_of_ours. The arguments come from the user's
    file. They are not checked here, because `refuse_problems` checks the whole new file.

    half_window: number of planes on each side, for tfp, middle_tfp and tfi.
    bins: number of channels of tfp, or number of windows of encoding25.
    window: number of planes, for raw.
    """
    tfp = {"type": "tfp", "half_window": half_window}
    tfp_of_bins = Counterpart({**tfp, "num_bins": bins}, channels=bins, difference=ROUNDED)
    middle_tfp = Counterpart(tfp, channels=1, difference=f"{STRETCHED}, h = {half_window}")
    tfi = Counterpart({"type": "tfi", "half_window": half_window}, channels=1, difference=ROUNDED)
    raw = Counterpart({"type": "raw", "window": window}, channels=window, difference="")
    encoding25 = Counterpart(
        {"type": "encoding25", "num_windows": bins}, channels=None, difference=""
    )
    return {
        "spikecv_tfp": tfp_of_bins,
        "tfp": tfp_of_bins,
        "spikecv_tfi": tfi,
        "tfi": tfi,
        "middle_tfi": tfi,
        "raw_window": raw,
        "raw": raw,
        "middle_tfp": middle_tfp,
        "encoding25": encoding25,
    }


def _compare_channels(
    conversion: Conversion, channels_key: str, channels: Any, counterpart: Counterpart
) -> None:
    """Report `spike_channels` as dropped, or as a problem if it contradicts the representation.

    The new file has no such key, because our number of channels follows from the representation.

    channels_key: the key of `spike_channels`, e.g. `datasets.train.spike_channels`
    channels: the value of this key in the file of S-VRT, or None if the file does not have it
    """
    if channels is None:
        return
    our_channels = counterpart.channels
    if our_channels and channels != our_channels:
        section = json.dumps(counterpart.representation)
        conversion.problems[channels_key] = Problem(
            what=f"{channels}, but {section} has {our_channels} channels",
            do=f"--drop {channels_key}, or correct the reconstruction",
        )
    else:
        conversion.dropped[channels_key] = "it follows from the representation"


def _joined_reconstruction(
    conversion: Conversion, given_keys: list[str], center_key: str, key_of_problems: str
) -> dict[str, Any]:
    """Remove the keys `given_keys` and return what they say, as one section of S-VRT.

    E.g. `spike_reconstruction` "middle_tfp" and `middle_tfp_center` 44 -> {"type": "middle_tfp",
    "middle_tfp_center": 44}. If two keys give one parameter different values, e.g. the types "tfp"
    and "tfi", the first value stays and a problem is noted.

    center_key: the key that holds the center, the number of the plane in the middle. Each other key
        holds a section, or the type alone.
    key_of_problems: the key that a problem names, e.g. `datasets.train.spike.reconstruction`
    """
    joined: dict[str, Any] = {}
    for given_key in given_keys:
        given = conversion.take(given_key)
        if isinstance(given, dict):
            section = given
        elif given_key == center_key:
            section = {"middle_tfp_center": given}
        else:
            section = {"type": given}
        for name, value in section.items():
            if value is None:
                continue
            first = joined.setdefault(name, value)  # the value of the first key that has this name
            if first != value:
                both_keys = f"{given_key}, {key_of_problems}.{name}"  # they contradict each other
                conversion.problems[both_keys] = Problem(
                    what=f"{value!r} and {first!r} are given", do=f"--drop {given_key}"
                )
    return joined


# ---- Conversion of the test split and the network ---------------------------------------------
#
# test_the_converted_file_trains_on_data_of_its_layout trains with a converted file. The tests
# before it compare the lines of the report about the test split.


def convert_test_split(conversion: Conversion) -> None:
    """Give the test split spikes, if the training has spikes.

    S-VRT's test section may name no spikes. A network that was trained with spikes needs spikes in
    the test, too.
    """
    train, test = SPLITS
    key = f"{test}.dataset_type"
    name = conversion.values.get(key)

    # In a training without spikes, only the dataset class has another name here.
    if not conversion.has(f"{train}.spike"):
        if name == "TestDataset" and conversion.has(train):
            conversion.set_ours(key, "VideoRecurrentTestDataset")
        return

    # Without a test split there is nothing to do. `flattened` keeps an empty split as one key,
    # `datasets.test`, with the value {} or null.
    is_empty = test in conversion.values and not conversion.values[test]
    if is_empty or not conversion.has(test):
        return
    if name != "TestDatasetRGBSpike":
        note = f"{name} -> TestDatasetRGBSpike: the network reads spikes"
        conversion.set_ours(key, "TestDatasetRGBSpike", note=note)

    # Without a spike section of its own, the test reads its spikes as the training does.
    if not conversion.has(f"{test}.spike"):
        for spike_key in SPIKE_KEYS:
            key_in_training = f"{train}.spike.{spike_key}"
            if key_in_training in conversion.values:
                conversion.values[f"{test}.spike.{spike_key}"] = conversion.values[key_in_training]
        conversion.renamed[f"{test}.spike"] = "the section of training, because the test has none"

    # Assume that the folders of the spikes are .../train and .../test, and say so.
    root = str(conversion.values.get(f"{train}.dataroot_spike", "")).rstrip("/")
    if f"{test}.dataroot_spike" not in conversion.values and root.endswith("train"):
        assumed = f"{root.removesuffix('train')}test"
        conversion.values[f"{test}.dataroot_spike"] = assumed
        conversion.renamed[f"{test}.dataroot_spike"] = (
            f"{assumed}, assumed, because the folder of training ends with train"
        )


def convert_network(conversion: Conversion) -> None:
    """Convert the way in which RGB and spikes are joined, and the optical flow network."""
    if conversion.has("datasets.train.spike"):
        conversion.drop("netG.in_chans", "it follows from netG.fusion and the spike channels")

    # One version of S-VRT says in the network how RGB and spikes are joined, another in each split.
    input_keys = ["netG.input_mode"]
    input_keys += [f"{split}.input_pack_mode" for split in SPLITS]
    for key in input_keys:
        mode = conversion.take(key)
        if mode == "concat":
            conversion.set_ours("netG.fusion", {"type": "concat"}, old=key)
        elif mode is not None:
            conversion.problems[key] = Problem(
                what=f"{mode!r}: S-VRT's other ways to join RGB and spikes have no counterpart",
                do=f"--drop {key}, and give netG.fusion=exposure, gated, concat or none",
            )

    convert_optical_flow(conversion)


def convert_optical_flow(conversion: Conversion) -> None:
    """Convert the section of the optical flow network to `netG.spynet_path`."""
    key = "netG.optical_flow"
    do = "give netG.spynet_path=FILE"
    if key in conversion.dropped:  # the user left out the whole section with --drop
        conversion.differences[key] = f"its weights went with it: {do}"
    # E.g. {"module": "spynet", "checkpoint": "spynet.pth"}.
    flow = conversion.take(key)
    if not isinstance(flow, dict):
        return
    module = flow.pop("module", "spynet")
    if module != "spynet":
        conversion.problems[f"{key}.module"] = Problem(
            what="the only flow network here is SpyNet", do=f"--drop {key}, and {do}"
        )
        return
    weights_file = flow.pop("checkpoint", None)
    conversion.set_ours("netG.spynet_path", weights_file, old=key)
    # Any other parameter is a problem, unless it is unset: null, false, 0 or empty.
    for name, value in flow.items():
        if value:
            conversion.problems[f"{key}.{name}"] = Problem(
                what="SpyNet has no parameters here",
                do=f"--drop {key}.{name}, if it may be left out",
            )


# ---- Problems ---------------------------------------------------------------------------------


def refuse_problems(
    conversion: Conversion, values: dict[str, Any], source: Path, parts: Any
) -> None:
    """Raise one OptionError with all problems, so that the user can answer them in one command.

    The problems of the conversion come first, then what our option models and our network refuse.

    values: the sections of the new file.
    parts: PARTS of main_train_vrt.py.
    """
    from models.select_network import check_options

    # The weights of SpyNet may be on another machine. So a missing file is no problem here: check a
    # copy of the options without the path.
    path = conversion.values.get("netG.spynet_path")
    if isinstance(path, str) and not Path(path).is_file():
        values = {**values, "netG": {**values["netG"], "spynet_path": None}}

    try:
        opt = read_options(values, parts)
        check_options(opt.netG, opt.datasets, opt.val, opt.scale)
    except OptionError as e:
        # An error about several keys holds one error for each key in `found`. In an error about one
        # key, `found` is empty.
        errors = e.found if e.found else (e,)
        for single in errors:
            what = f"{single.what}; expected {single.expected}"
            # If the conversion has noted a problem of this key, it says more, so it stays.
            conversion.problems.setdefault(single.where, Problem(what, do=_way_out(single)))
    if not conversion.problems:
        return

    count = len(conversion.problems)
    problems = "problem" if count == 1 else "problems"
    what = f"{count} {problems} in the option file, nothing was written:"
    for key, problem in conversion.problems.items():
        what += f"\n    {key}: {problem.what}\n      do: {problem.do}"
    raise OptionError(
        what=what,
        where=str(source),
        expected="keys and values that this program has",
        do="answer all in one command",
    )


def _way_out(error: OptionError) -> str:
    """Return what to add to the command so that the error about one key goes away."""
    if not error.what.startswith(UNKNOWN_OPTION):
        key = error.where.partition("[")[0]  # `netG.depths[3]` is set as a whole
        return f"give {key}=VALUE"
    drop = f"--drop {error.where}, if it may be left out"
    # If the key is nearly the name of one of our keys, the error advises to rename it.
    if error.do == "rename it":
        return f"{error.do}, or {drop}"
    return drop


if __name__ == "__main__":
    sys.exit(main())
