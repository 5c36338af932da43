"""The option files that come with the project, against the real networks and datasets."""

import functools
import json
from pathlib import Path

import json5
import jsonschema
import pytest

import main_train_vrt
from lab.make_options_doc import MADE_WITH, make_page
from tests.dist.launching import run_ranks
from tests.helpers.checked import of_part
from tests.helpers.kair_files import options_of, write_file
from utils.errors import OptionError

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "options").glob("*/*.json"))
SAMPLE = ROOT / "options/vrt/000_train_vrt_sample_rgbspike.json"
SCHEMA = json.loads((ROOT / "options/schema.json").read_text(encoding="utf-8"))
CHECK = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)
GOPRO = ROOT / "options/vrt/006_train_vrt_videodeblurring_gopro"


def faults(values: dict[str, object]) -> set[str]:
    """The dotted places where the values of an option file break the schema."""
    found = set()
    for error in CHECK.iter_errors(values):
        keys = {""}
        if error.validator == "additionalProperties":
            assert isinstance(error.schema, dict)
            keys = error.instance.keys() - error.schema["properties"].keys()
        found |= {".".join([*map(str, error.absolute_path), key]).strip(".") for key in keys}
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_option_file_of_the_project_is_valid(file):
    opt = main_train_vrt.read_options(["--opt", str(file)])
    assert opt.task == file.stem


def test_the_rgb_ablation_differs_from_the_reference_in_the_spikes_alone():
    rgb, both = (
        main_train_vrt.read_options(["--opt", f"{GOPRO}{end}.json"]) for end in ("", "_rgbspike")
    )
    assert (rgb.spike_channels, both.spike_channels) == (0, 12)
    assert of_part(rgb.netG).fusion.type == "none"
    assert {**rgb.netG.plain(), "fusion": 0} == {**both.netG.plain(), "fusion": 0}
    for section in ("train", "val", "logging"):
        assert getattr(rgb, section) == getattr(both, section)


def test_the_pages_and_the_schema_of_options_are_up_to_date(tmp_path):
    # In a process of its own: other tests register parts that no user has.
    (tmp_path / "make.py").write_text("""import json; from lab.make_options_doc import *
print(json.dumps({"made": [make_page(), make_page(CHINESE), make_schema()]}))""")
    names = ("docs/options.md", "docs/zh/options.md", "options/schema.json")
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in names]
    made = run_ranks(1, tmp_path / "make.py").json["made"]
    assert made[:2] == pages[:2], "run python lab/make_options_doc.py"
    if SCHEMA["$comment"].endswith(MADE_WITH):
        assert made[2] == pages[2], "run python lab/make_options_doc.py"


def test_a_key_without_translation_and_an_outdated_translation_are_named():
    with pytest.raises(SystemExit) as error:
        make_page({"Optimizer.": "优化器。", "A sentence of the past.": "过去的句子。"})
    lines = str(error.value).splitlines()
    assert "no translation for train.G_optimizer_lr: Full learning rate." in lines
    assert [line for line in lines if "any more" in line] == [
        "nothing has this text any more: A sentence of the past."
    ]
    assert not [line for line in lines if "Optimizer." in line]


def test_the_option_files_of_the_project_and_of_kair_follow_the_schema(tmp_path):
    ours = {file: json5.loads(file.read_text(encoding="utf-8")) for file in FILES}
    for file, values in ours.items():
        assert (file.parent / values["$schema"]).resolve() == ROOT / "options/schema.json"
    of_kair = {
        n: json5.loads(write_file(tmp_path / f"{n}.json", options_of(n)).read_text())
        for n in ("001", "008")
    }
    for name, values in {**ours, **of_kair}.items():
        assert not faults(values), name
    # The schema that a file names is no option.
    assert "schema" not in json.dumps(main_train_vrt.read_options(["--opt", str(SAMPLE)]).plain())
    with pytest.raises(OptionError, match="schema"):
        main_train_vrt.read_options(["--opt", str(SAMPLE), "$schema=../schema.json"])


@pytest.mark.parametrize(("key", "value", "place"), [
    ("tsak", "a", "tsak"), ("train.G_optimizer_lrr", 1e-4, "train.G_optimizer_lrr"),
    ("train.G_optimizer_lr", "fast", "train.G_optimizer_lr"),
    ("train.amp", {"enable": 1}, "train.amp.enable"),
    ("train.G_lossfn_type", "l1", "train.G_charbonnier_eps"),
    ("train.checkpoint_save", 0, "train.checkpoint_save"), ("netG.depths", "8", "netG.depths"),
    ("netG.fusion", {"type": "concat", "features": 32}, "netG.fusion.features"),
    ("netG.fusion", "gate", "netG.fusion"), ("datasets.test.gt_size", 64, "datasets.test.gt_size"),
    ("datasets.train.dataset_type", "TrainDataset", "datasets.train.dataset_type"),
    ("datasets.train.spike.representation.num_bin", 8,
     "datasets.train.spike.representation.num_bin"),
    ("datasets.train.spike.representation.num_bins", 8.5,
     "datasets.train.spike.representation.num_bins"),
])  # fmt: skip
def test_the_schema_and_the_programs_refuse_the_same_wrong_keys_and_types(
    tmp_path, key, value, place
):
    values = json5.loads(SAMPLE.read_text(encoding="utf-8"))
    *sections, last = key.split(".")
    section = functools.reduce(dict.__getitem__, sections, values)
    section[last] = value
    assert place in faults(values)
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(OptionError):
        main_train_vrt.read_options(["--opt", str(file)])
