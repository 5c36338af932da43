"""The option files that come with the project, their schema, and the pages about options.

The tests read the files with the real networks and data sets. options/schema.json is a JSON schema
of option files. With it, an editor shows which keys an option file may have, and marks wrong keys.
"""

import json
from pathlib import Path
from typing import Any

import json5
import jsonschema
import pytest

import main_train_vrt
from lab.make_options_doc import make_page
from lab.options_doc.parts import MADE_WITH
from tests.dist.launching import run_ranks
from tests.helpers.checked import options_of_part
from tests.helpers.kair_files import options_of, write_file
from utils.errors import OptionError

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "options").glob("*/*.json"))
SAMPLE = ROOT / "options/vrt/000_train_vrt_sample_rgbspike.json"
SCHEMA = json.loads((ROOT / "options/schema.json").read_text(encoding="utf-8"))
# Finds the faults of an option file by the schema.
CHECK = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)


def faults(values: dict[str, object]) -> set[str]:
    """Return the dotted keys at which the values of an option file break the schema."""
    found = set()
    for error in CHECK.iter_errors(values):
        section = ".".join(str(key) for key in error.absolute_path)
        if error.validator == "additionalProperties":
            # The error names only the section. The wrong keys are the keys that the schema of the
            # section does not have.
            assert isinstance(error.schema, dict)
            unknown = error.instance.keys() - error.schema["properties"].keys()
            found |= {f"{section}.{key}".strip(".") for key in unknown}
        else:
            found.add(section)
    return found


def values_of(file: Path) -> dict[str, Any]:
    """Return the content of an option file. The file may have comments."""
    return json5.loads(file.read_text(encoding="utf-8"))


# ---- Option files of the project ----


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_option_file_of_the_project_is_valid(file):
    opt = main_train_vrt.read_options(["--opt", str(file)])

    assert opt.task == file.stem


@pytest.fixture(scope="module")
def ablation():
    """Give the options of the training without spikes, for comparison with `reference`."""
    file = ROOT / "options/vrt/006_train_vrt_videodeblurring_gopro.json"
    return main_train_vrt.read_options(["--opt", str(file)])


@pytest.fixture(scope="module")
def reference():
    """Give the options of the reference, a training with frames and spikes."""
    file = ROOT / "options/vrt/006_train_vrt_videodeblurring_gopro_rgbspike.json"
    return main_train_vrt.read_options(["--opt", str(file)])


def test_the_rgb_ablation_reads_no_spikes(ablation, reference):
    assert ablation.spike_channels == 0
    assert options_of_part(ablation.netG).fusion.type == "none"
    # 3 windows (half_windows), a confidence, and 8 equal parts of the exposure (num_bins).
    assert reference.spike_channels == 12


def test_the_network_of_the_rgb_ablation_differs_only_in_its_fusion(ablation, reference):
    without_fusion = {**ablation.netG.plain(), "fusion": None}

    assert without_fusion == {**reference.netG.plain(), "fusion": None}


@pytest.mark.parametrize("section", ["train", "val", "logging"])
def test_the_rgb_ablation_is_trained_as_the_reference(ablation, reference, section):
    assert getattr(ablation, section) == getattr(reference, section)


# ---- Pages and schema are made of the code ----

# A program that makes the pages and the schema. It runs in another process. Tests of this process
# register parts that no user has, and the pages would list these parts.
MAKE_PAGES = """
import json
from lab.make_options_doc import *
print(json.dumps({"made": [make_page(), make_page(CHINESE), make_schema()]}))
"""


@pytest.fixture(scope="module")
def pages_and_schema(tmp_path_factory):
    """Give the English page, the Chinese page and the schema, as the code makes them now."""
    script = tmp_path_factory.mktemp("made") / "make.py"
    script.write_text(MAKE_PAGES)
    return run_ranks(1, script).json["made"]


# A case: the index of the page in `pages_and_schema`, and the file of the page.
@pytest.mark.parametrize(("number", "name"), [(0, "docs/options.md"), (1, "docs/zh/options.md")])
def test_the_pages_of_options_are_up_to_date(pages_and_schema, number, name):
    page = (ROOT / name).read_text(encoding="utf-8")

    assert pages_and_schema[number] == page, "run python lab/make_options_doc.py"


def test_the_schema_of_options_is_up_to_date(pages_and_schema):
    schema = (ROOT / "options/schema.json").read_text(encoding="utf-8")

    # Other versions of pydantic write the schema in other words. So compare only if the installed
    # version has made the file.
    if SCHEMA["$comment"].endswith(MADE_WITH):
        assert pages_and_schema[2] == schema, "run python lab/make_options_doc.py"


@pytest.fixture(scope="module")
def complaints():
    """Give the complaints of `make_page` about two translations, of which only one is used."""
    translations = {"Optimizer.": "优化器。", "A sentence of the past.": "过去的句子。"}
    with pytest.raises(SystemExit) as error:
        make_page(translations)
    return str(error.value).splitlines()


def test_a_key_without_translation_is_named(complaints):
    assert "no translation for train.G_optimizer_lr: Full learning rate." in complaints


def test_an_outdated_translation_is_named(complaints):
    outdated = [line for line in complaints if "any more" in line]

    assert outdated == ["nothing has this text any more: A sentence of the past."]


def test_a_translation_that_is_used_is_not_named(complaints):
    assert [line for line in complaints if "Optimizer." in line] == []


# ---- The schema ----


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_option_file_of_the_project_names_the_schema(file):
    schema = values_of(file)["$schema"]

    assert (file.parent / schema).resolve() == ROOT / "options/schema.json"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_option_file_of_the_project_follows_the_schema(file):
    assert not faults(values_of(file))


@pytest.mark.parametrize("number", ["001", "008"])
def test_an_option_file_of_kair_follows_the_schema(tmp_path, number):
    file = write_file(tmp_path / f"{number}.json", options_of(number))

    assert not faults(values_of(file))


def test_the_schema_that_a_file_names_is_no_option():
    opt = main_train_vrt.read_options(["--opt", str(SAMPLE)])

    assert "schema" not in json.dumps(opt.plain())


def test_the_schema_cannot_be_set_on_the_command_line():
    with pytest.raises(OptionError, match="schema"):
        main_train_vrt.read_options(["--opt", str(SAMPLE), "$schema=../schema.json"])


REPRESENTATION = "datasets.train.spike.representation"
# A case: a key, a wrong value of it, and the key that the schema must name.
WRONG_VALUES = [
    ("tsak", "a", "tsak"),
    ("train.G_optimizer_lrr", 1e-4, "train.G_optimizer_lrr"),
    ("train.G_optimizer_lr", "fast", "train.G_optimizer_lr"),
    ("train.amp", {"enable": 1}, "train.amp.enable"),
    # The sample has the key G_charbonnier_eps. The loss l1 does not have it.
    ("train.G_lossfn_type", "l1", "train.G_charbonnier_eps"),
    ("train.checkpoint_save", 0, "train.checkpoint_save"),
    ("netG.depths", "8", "netG.depths"),
    ("netG.fusion", {"type": "concat", "features": 32}, "netG.fusion.features"),
    ("netG.fusion", "gate", "netG.fusion"),
    ("datasets.test.gt_size", 64, "datasets.test.gt_size"),
    ("datasets.train.dataset_type", "TrainDataset", "datasets.train.dataset_type"),
    (f"{REPRESENTATION}.num_bin", 8, f"{REPRESENTATION}.num_bin"),
    (f"{REPRESENTATION}.num_bins", 8.5, f"{REPRESENTATION}.num_bins"),
]


def sample_with(key, value):
    """Return the options of the sample with another value of a dotted key."""
    values = values_of(SAMPLE)
    *names, last = key.split(".")
    section = values
    for name in names:
        section = section[name]
    section[last] = value
    return values


@pytest.mark.parametrize(("key", "value", "place"), WRONG_VALUES)
def test_the_schema_finds_a_wrong_key_or_type(key, value, place):
    assert place in faults(sample_with(key, value))


@pytest.mark.parametrize(("key", "value", "place"), WRONG_VALUES)
def test_the_programs_refuse_what_the_schema_finds(tmp_path, key, value, place):
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(sample_with(key, value)), encoding="utf-8")

    with pytest.raises(OptionError):
        main_train_vrt.read_options(["--opt", str(file)])
