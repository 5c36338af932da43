#!/usr/bin/env python3
"""Write an option file of S-VRT (JSON or YAML) as one of this project.

It prints what was renamed, what was dropped because it has no effect here, and what our options
cannot say, with the size of the effect. Keys without a counterpart stop it; --drop names those that
may be left out.
Files of KAIR need no conversion; docs/coming_from.md has a table for those of BasicSR. Secrets are
never copied.

    python scripts/convert_options.py theirs.json --out ours.json
    python scripts/convert_options.py theirs.yml path.root=runs --out ours.json \
        --drop train.lora_rank
"""

import argparse
import functools
import itertools
import json
import re
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.parts.exit_codes import with_exit_code
from utils.errors import OptionError
from utils.files import refuse_existing, write_whole
from utils.options.load import (
    DEEPEST,
    TOTALS,
    Sources,
    apply_override,
    drop_without_effect,
    read_options,
    read_with_base,
)
from utils.options.models import KAIR_ONLY
from utils.options.secrets import KEY, redact

LARGEST_YAML = 2**16  # bytes; PyYAML reads some 50 kB a second
MOST_VALUES = 20_000
SPLITS = ("datasets.train", "datasets.test")
OF_SVRT = re.compile(  # how an option begins that only S-VRT has
    r"(swanlab|logfire|netG\.(input_mode|optical_flow)|datasets\.\w+\.(spike_(h|w|flipud|reconstruction|normalize)"
    r"|spike\.reconstruction|middle_tfp_center|rgb_normalize|input_pack_mode|keep_legacy_l))(\.|$)"
)
DROPPED = {  # what the whole key of an option or section matches -> why it is left out
    r"(?i)(.*\.)?(use_)?(swanlab|logfire)(_.*)?": "reports go to TensorBoard and Weights & "
    "Biases; nothing is copied",
    f".*{KEY.pattern}": "secrets are never copied; give WANDB_API_KEY in the environment",
    r"datasets\.\w+\.keep_legacy_l": "it only kept a second copy of the input in the batch",
    r"datasets\.\w+\.scale": "it follows from the sizes of the frames",
    r"datasets\.test\.dataloader_(shuffle|num_workers|batch_size)": "clips are tested one by "
    "one, without a loader",
}
# Keys of our `spike` section
OURS = (
    "type",
    "h",
    "w",
    "flip",
    "rate",
    "gamma",
    "center",
    "representation",
)
ROUNDED = (
    "S-VRT rounds it down to a multiple of 1/255: ours, in [0, 1], is 0.002 higher on "
    "average, at most 0.004"
)
STRETCHED = (
    "S-VRT averages 2 h planes and stretches each frame to [0, 1] by its minimum and maximum, "
    "which loses the brightness; here it is the mean of 2 h + 1 planes as it is"
)
NORMALIZED = (
    "S-VRT scales the input to about [-2.1, 2.6] while the sharp frames stay in [0, 1], and VRT "
    "adds its input to its output; here both are in [0, 1], and weights trained the other way do "
    "not fit"
)


@dataclass
class Conversion:
    """The options of a file on their way from S-VRT's keys to ours.

    values: dotted key -> value.
    renamed, dropped: key of S-VRT -> what became of it, and why.
    unsaid: key of S-VRT -> what our options cannot say.
    problems: key -> (what is wrong, what to do). With any problem nothing is written.
    """

    values: dict[str, Any]
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    unsaid: dict[str, str] = field(default_factory=dict)
    problems: dict[str, tuple[str, str]] = field(default_factory=dict)

    def below(self, where: str) -> list[str]:
        """The option `where`, or those of this section."""
        return [key for key in self.values if f"{key}.".startswith(f"{where}.")]

    def take(self, where: str) -> Any:
        """Remove an option, or a section, then {key: value}; None where there is neither."""
        found = {key[len(where) + 1 :]: self.values.pop(key) for key in self.below(where)}
        return found.get("", found or None)

    def rename(self, old: str, new: str, value: Any, note: str = "") -> None:
        """Put `value` under `new`, and note what became of `old`."""
        self.values[new] = value
        self.renamed[old] = note or f"{new} = {json.dumps(value)}"

    def drop(self, where: str, why: str) -> None:
        if self.below(where):
            self.take(where)
            self.dropped[where] = why


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
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
    command = parser.parse_intermixed_args(arguments)
    from main_train_vrt import PARTS  # not before --help: it brings torch

    source, out = Path(command.file), Path(command.out)
    refuse_existing(out, "--out")
    if out.suffix not in (".json", ".json5"):
        raise OptionError(
            "another ending", f"--out {out}", ".json, as launch_train.sh expects", "add it"
        )
    is_yaml = source.suffix.lower() in (".yml", ".yaml")
    values = read_yaml(source) if is_yaml else read_with_base(source, Sources(str(source)))
    c = Conversion(flattened(redact(values)))
    is_svrt = any(map(OF_SVRT.match, c.values))
    if not is_svrt and not all(isinstance(values.get(name), dict) for name in ("netG", "datasets")):
        do = "write one after those in options/vrt; docs/coming_from.md has the keys of BasicSR"
        raise OptionError(
            "unknown kind of option file",
            str(source),
            "S-VRT: netG, datasets with spike_h, ...",
            do,
        )
    if is_svrt or is_yaml:
        values = convert(c, command, PARTS)
    judge(c, values, source, PARTS)
    if not is_svrt and not is_yaml:
        print(f"{source} is in the form that this program reads, KAIR's, and needs no conversion.")
        print(
            "dataloader_batch_size and dataloader_num_workers are per GPU here, and totals of "
            "all GPUs in KAIR."
        )
        print(f"nothing was written; train with: ./launch_train.sh N {source}")
        return 0
    text = json.dumps(values, indent=2, ensure_ascii=False)
    # Lists of plain values take one line. Strings in JSON have no line ends.
    text = re.sub(
        r"\[\n[^\[\]{}]*\]",
        lambda found: re.sub(r"\n *", "", re.sub(r",\n *", ", ", found[0])),
        text,
    )
    head = [f"Converted from {source.name} of S-VRT by scripts/convert_options.py."]
    head += [f"It cannot say: {key}: {why}." for key, why in c.unsaid.items()]
    comment = "".join(f"  // {line}\n" for part in head for line in textwrap.wrap(part, 115))
    write_whole(out, text.replace("{\n", f"{{\n{comment}", 1).encode() + b"\n")
    gpus = len(values.get("gpu_ids") or [0]) if values.get("dist") else 1
    print(f"written: {out}\ntrain with: ./launch_train.sh {gpus} {out}")
    return 0


def read_yaml(path: Path) -> dict[str, Any]:
    """Raises OptionError for a file that cannot be read."""
    try:
        import yaml  # comes with wandb
    except ImportError as e:
        raise OptionError(
            "no package PyYAML", str(path), "PyYAML, to read a YAML file", "pip install pyyaml"
        ) from e

    class Loader(yaml.SafeLoader):
        """Reads 4e-4, without a point, as a number; in YAML 1.1 it is text."""

    number = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, [*"+-0123456789"])
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_YAML + 1)
        if len(content) > LARGEST_YAML:
            raise UnfitYamlError(f"it has more than {LARGEST_YAML} bytes")
        loader = Loader(content.decode("utf-8-sig"))
        node = loader.get_single_node()
        _refuse_repetition(node)
        # Only now: merged keys (<<) are copied as often as they are named.
        if node and isinstance(values := loader.construct_document(node), dict):
            return values
        what, where = "the option file holds no object", str(path)
    except (OSError, ValueError, ArithmeticError, RecursionError, yaml.YAMLError) as e:
        mark = getattr(e, "problem_mark", None)  # the whole message may quote a secret
        reason = ""
        if isinstance(e, OSError):
            reason = f": {e.strerror}"
        elif isinstance(e, RecursionError):
            reason = ": too many brackets within one another"
        elif isinstance(e, UnfitYamlError):
            reason = f": {e}"
        what = f"cannot read the option file{reason}"
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
    raise OptionError(
        what, where, "plain YAML in UTF-8: sections and keys", "correct it, or its path"
    )


class UnfitYamlError(ValueError):
    """A YAML file is too large, or makes too much of little. Its text is a clause."""


def _refuse_repetition(node: Any) -> None:
    """Raise UnfitYamlError for a YAML whose aliases reach very many values, or themselves.

    node: of yaml.compose; one that an alias names stands in each place.
    """
    waiting = [(node, 0)]
    count = 0
    while waiting:
        one, depth = waiting.pop()
        count += 1
        if count > MOST_VALUES:
            raise UnfitYamlError(f"its aliases (*name) make more than {MOST_VALUES} values")
        if depth > DEEPEST:
            raise UnfitYamlError(f"more than {DEEPEST} brackets or sections within one another")
        inner = getattr(one, "value", None)
        if isinstance(inner, list):
            for item in inner:
                parts = item if isinstance(item, tuple) else (item,)
                waiting += [(part, depth + 1) for part in parts]


def flattened(section: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Dotted key -> value of all options; an empty section is a value."""
    found = {}
    for key, value in section.items():
        is_section = isinstance(value, dict) and value
        found |= flattened(value, f"{where}{key}.") if is_section else {f"{where}{key}": value}
    return found


def convert(c: Conversion, command: argparse.Namespace, parts: Any) -> dict[str, Any]:
    """Return the sections of `c` with our keys.

    What has no counterpart keeps its key, which `judge` then refuses.

    Prints what became of each key.
    """
    for key in list(c.values):
        for place in itertools.accumulate(key.split("."), "{}.{}".format):
            for pattern, why in DROPPED.items():
                if re.fullmatch(pattern, place):
                    c.drop(place, why)
    for key in (text for text in command.drop if "=" not in text):
        if not c.below(key) and key not in c.dropped:
            raise OptionError(
                f"--drop {key}: no such key",
                command.file,
                "dotted keys of the file",
                "correct --drop",
            )
        c.drop(key, "as asked with --drop")
    for split in SPLITS:
        if any(re.match(rf"{split}\.((dataroot_)?spike|middle_tfp)", key) for key in c.values):
            convert_spikes(c, split, command.spike_size)
        sizes = c.values.get(key := f"{split}.gt_size")
        if isinstance(sizes, list) and sizes and all(size == sizes[0] for size in sizes):
            c.rename(key, key, sizes[0])
        if kind := c.take(key := f"{split}.rgb_normalize"):
            c.unsaid[key] = f"{kind!r}: {NORMALIZED}"
    convert_test_split(c)
    convert_network(c)
    for key in ("train.G_regularizer_orthstep", "train.G_regularizer_clipstep"):
        if c.values.get(key) is not None:
            c.unsaid[key] = "there is no such regularizer; its effect has not been measured"
    ids = c.values.get("gpu_ids")
    gpus = len(ids) if c.values.get("dist") and isinstance(ids, list) else 1
    for key in (f"datasets.train.{name}" for name in TOTALS):
        if gpus > 1 and isinstance(total := c.values.get(key), int):
            each = max(total // gpus, min(total, 1))
            c.rename(
                key,
                key,
                each,
                f"{total} for {gpus} GPUs in all -> {each} per GPU, {each * gpus} in all",
            )
            if each * gpus != total:
                c.unsaid[key] = (
                    f"{total} in all is no multiple of {gpus} GPUs: {each} per GPU is "
                    f"{each * gpus} in all"
                )
    values: dict[str, Any] = {}
    for key, value in c.values.items():
        *names, last = key.split(".")
        functools.reduce(lambda section, name: section.setdefault(name, {}), names, values)[
            last
        ] = value
    for key in drop_without_effect(values, parts):
        where, _, last = key.rpartition(".")
        c.dropped[key] = KAIR_ONLY[where][last]
    for text in [
        *command.overrides,
        *(text for text in command.drop if "=" in text),
    ]:  # --drop takes all that follows
        apply_override(values, text, Sources(command.file))
    print(f"{command.file}: all keys stay as they are but for these")
    titles = {
        "renamed or changed": c.renamed,
        "dropped, without effect here": c.dropped,
        "cannot be said": c.unsaid,
    }
    for title, table in titles.items():
        if table:
            print(
                "\n  ".join(
                    [f"{title} ({len(table)}):", *(f"{key}: {text}" for key, text in table.items())]
                )
            )
    return values


def convert_spikes(c: Conversion, split: str, spike_size: list[int] | None) -> None:
    """The `spike` section of a split. Raises DataError for a dataset.json that cannot be used."""
    from data.cameras.spike_info import DatasetInfo, load_info  # not before --help: it is slow

    spike, root = f"{split}.spike", c.values.get(f"{split}.dataroot_spike")
    h, w = c.take(f"{spike}_h"), c.take(f"{spike}_w")
    key, said = f"{spike}_h, spike_w", f"the file says {h} x {w}"
    info = load_info(root) if isinstance(root, str) else DatasetInfo()
    size = spike_size or (None if info.h else [h, w])
    c.values |= {
        f"{spike}.type": "dat",
        **dict(zip((f"{spike}.h", f"{spike}.w"), size or (), strict=False)),
    }
    c.renamed[key] = (
        f"{spike}.h, w = {size or f'those of dataset.json, {info.h} x {info.w}'}; {said}"
    )
    if size and not spike_size:
        c.unsaid[key] = (
            f"{said}; S-VRT's published 250 x 400 contradicts its data, 360 x 640: give "
            "--spike-size H W"
        )
    if info.light == "display":
        c.values[f"{spike}.gamma"] = 2.2  # 2.2 / gamma = 1: the firing rates stay as S-VRT has them
    if info.rate not in (None, 1.0):
        rates = f"channels are divided by {info.rate:g}, the rate of dataset.json"
        c.unsaid[f"{split}, firing rates"] = f"{rates}: {1 / info.rate:.3g} times those of S-VRT"
    c.unsaid[f"{split}, missing spike files"] = (
        "S-VRT replaces them by zeros; here they are an error"
    )
    if (flip := c.take(f"{spike}_flipud")) is not None:
        c.rename(f"{spike}_flipud", f"{spike}.flip", flip)
    convert_representation(c, split)

    if c.below(key := f"{spike}_normalize"):
        scale = c.take(key)
        given = (
            (scale.get(name) for name in ("mean", "std"))
            if isinstance(scale, dict)
            else (None, None)
        )
        means, stds = (value if isinstance(value, list) else [value] for value in given)
        if any(means) or len(set(stds)) != 1:
            note = "a scale and offset that the first convolution learns; not applied"
            c.unsaid[key] = f"mean {means}, std {stds}: {note}"
        elif stds[0] not in (None, 1):
            c.rename(key, f"{spike}.rate", float(stds[0]))
        else:
            c.dropped[key] = "null, or mean 0 and std 1, change nothing"


def convert_representation(c: Conversion, split: str) -> None:
    """Set `representation`, and `center` if it counts, from spike.reconstruction and older keys."""
    key, center_key = f"{split}.spike.reconstruction", f"{split}.middle_tfp_center"
    places = [
        place for place in (key, f"{split}.spike_reconstruction", center_key) if c.below(place)
    ]
    known: dict[str, Any] = {}
    for place in places:
        found, own = c.take(place), "middle_tfp_center" if place == center_key else "type"
        for name, value in (found if isinstance(found, dict) else {own: found}).items():
            if value is not None and known.setdefault(name, value) != value:
                what = f"{value!r} and {known[name]!r} are given"
                c.problems[f"{place}, {key}.{name}"] = (what, f"--drop {place}")
    kind, center = known.pop("type", "spikecv_tfp"), known.pop("middle_tfp_center", None)
    channels, half = (
        c.take(f"{split}.spike_channels"),
        known.pop("half_win_length", known.pop("half_window", 20)),
    )
    bins, window = known.pop("num_bins", channels or 4), known.pop("window", 21)
    tfp, tfi = ({"type": name, "half_window": half} for name in ("tfp", "tfi"))
    counterparts = {  # our representation, its channels, what differs
        **dict.fromkeys(("spikecv_tfp", "tfp"), (tfp | {"num_bins": bins}, bins, ROUNDED)),
        **dict.fromkeys(("spikecv_tfi", "tfi", "middle_tfi"), (tfi, 1, ROUNDED)),
        **dict.fromkeys(("raw_window", "raw"), ({"type": "raw", "window": window}, window, "")),
        "middle_tfp": (tfp, 1, f"{STRETCHED}, h = {half}"),
        "encoding25": ({"type": "encoding25", "num_windows": bins}, None, ""),
    }
    if str(kind) not in counterparts:
        what = (
            f"{kind!r} has no counterpart; those of tfp, middle_tfp, tfi, raw_window and "
            "encoding25 do"
        )
        c.problems[key] = (
            what,
            f"--drop {' '.join(places)}, to write tfp with {bins} bins instead",
        )
        return
    found, count, note = counterparts[kind]
    for name in known:
        c.problems[f"{key}.{name}"] = (
            "unknown to this script",
            f"--drop {key}.{name}, if it may be left out",
        )
    if count and channels not in (None, count):
        what = f"{channels}, but {json.dumps(found)} has {count} channels"
        c.problems[f"{split}.spike_channels"] = (
            what,
            f"--drop {split}.spike_channels, or correct the reconstruction",
        )
    elif channels is not None:
        c.dropped[f"{split}.spike_channels"] = "it follows from the representation"
    c.rename(key, f"{split}.spike.representation", found)
    if note:
        c.unsaid[key] = note
    if center is not None and kind == "middle_tfp":
        c.rename(center_key, f"{split}.spike.center", center)
    elif center is not None:
        c.dropped[center_key] = f"only middle_tfp uses it, not {kind}"


def convert_test_split(c: Conversion) -> None:
    """S-VRT's test section may name no spikes; a network that reads them needs them there too."""
    train, test = SPLITS
    name, key = c.values.get(f"{test}.dataset_type"), f"{test}.dataset_type"
    if not c.below(f"{train}.spike"):
        if name == "TestDataset" and c.below(train):
            c.rename(key, key, "VideoRecurrentTestDataset")
        return
    if not c.values.get(test, c.below(test)):  # no test split, or an empty one
        return
    if name != "TestDatasetRGBSpike":
        c.rename(
            key,
            key,
            "TestDatasetRGBSpike",
            f"{name} -> TestDatasetRGBSpike: the network reads spikes",
        )
    if not c.below(f"{test}.spike"):
        both = {key: f"{train}.spike.{key}" for key in OURS}
        c.values |= {
            f"{test}.spike.{key}": c.values[own] for key, own in both.items() if own in c.values
        }
    root = str(c.values.get(f"{train}.dataroot_spike", "")).rstrip("/")
    if f"{test}.dataroot_spike" not in c.values and root.endswith("train"):
        c.values[f"{test}.dataroot_spike"] = assumed = f"{root.removesuffix('train')}test"
        c.renamed[test] = (
            f"dataroot_spike = {assumed}, assumed, and the spike section of training: it has none"
        )


def convert_network(c: Conversion) -> None:
    if c.below("datasets.train.spike"):
        c.drop("netG.in_chans", "it follows from netG.fusion and the spike channels")
    for key in ("netG.input_mode", *(f"{split}.input_pack_mode" for split in SPLITS)):
        mode = c.take(key)
        if mode == "concat":
            c.rename(key, "netG.fusion", {"type": "concat"})
        elif mode is not None:
            what = f"{mode!r}: S-VRT's other ways to join RGB and spikes have no counterpart"
            c.problems[key] = (
                what,
                f"--drop {key}, and give netG.fusion=exposure, gated, concat or none",
            )
    key, do = "netG.optical_flow", "give netG.spynet_path=FILE"
    if key in c.dropped:
        c.unsaid[key] = f"its weights went with it: {do}"
    flow = c.take(key)
    if isinstance(flow, dict) and flow.pop("module", "spynet") != "spynet":
        c.problems[f"{key}.module"] = (
            "the only flow network here is SpyNet",
            f"--drop {key}, and {do}",
        )
    elif isinstance(flow, dict):
        c.rename(key, "netG.spynet_path", flow.pop("checkpoint", None))
        for name in filter(flow.get, flow):
            answer = f"--drop {key}.{name}, if it may be left out"
            c.problems[f"{key}.{name}"] = ("SpyNet has no parameters here", answer)


def judge(c: Conversion, values: dict[str, Any], source: Path, parts: Any) -> None:
    """Raise OptionError with all problems: those so far, of the option models, of the network."""
    from models.select_network import check_options

    path = c.values.get("netG.spynet_path")
    if isinstance(path, str) and not Path(path).is_file():  # it may be on another machine
        values = {**values, "netG": {**values["netG"], "spynet_path": None}}
    try:
        opt = read_options(values, parts)
        check_options(opt.netG, opt.datasets, opt.val, opt.scale)
    except OptionError as e:
        for single in e.found or (e,):
            do = f"give {single.where.partition('[')[0]}=VALUE"
            if single.what.startswith("unknown option"):
                do = f"--drop {single.where}, if it may be left out"
                do = f"{single.do}, or {do}" if single.do == "rename it" else do
            c.problems.setdefault(single.where, (f"{single.what}; expected {single.expected}", do))
    if c.problems:
        rows = "".join(
            f"\n    {key}: {what}\n      do: {do}" for key, (what, do) in c.problems.items()
        )
        what = (
            f"{len(c.problems)} problem{'s' * (len(c.problems) > 1)} in the option file, "
            f"nothing was written:{rows}"
        )
        raise OptionError(
            what, str(source), "keys and values that this program has", "answer all in one command"
        )


if __name__ == "__main__":
    sys.exit(main())
