"""scripts/convert_options.py from its command line, on option files in the forms of S-VRT and KAIR.

tests/data/options/svrt_006.json is the option file that S-VRT published. The tests convert it,
changed or as it is, and read the new file, the output, and the training with it.
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import json5
import numpy as np
import pytest
import torch

from main_train_vrt import PARTS
from models.select_network import define_G
from scripts.convert_options import main
from tests.dist.launching import ROOT
from tests.helpers.checked import of_part, present
from tests.helpers.clip_files import set_for_training, write_clip, write_info
from tests.helpers.kair_files import options_of, write_file
from tests.helpers.train_files import history, train
from utils.options.load import load_options

PUBLISHED = ROOT / "tests/data/options/svrt_006.json"
# What a person changes to train on data and with a network of the size of a test. Every other key
# stays as it is.
SMALL = {
    "netG.img_size": [2, 32, 32],
    "netG.window_size": [2, 4, 4],
    "netG.depths": [1] * 11,
    "netG.embed_dims": [8] * 11,
    "netG.num_heads": [2] * 11,
    "netG.deformable_groups": 2,
    "netG.spynet_path": None,
    "train.total_iter": 2,
    "train.checkpoint_print": 1,
    "datasets.train.num_frame": 2,
    "datasets.train.gt_size": 32,
    "datasets.train.dataloader_num_workers": 1,
}
# Beginning of a path in the published file -> beginning of this path below the folder of a test.
FOLDERS = {
    '"trainsets/GoPro/': '"{root}/GOPRO_Large/',
    '"testsets/GoPro11/': '"{root}/GOPRO_Large/',
    '"trainsets/gopro_spike/': '"{root}/',
    '"data/meta_info/': '"{root}/',
    '"experiments"': '"{root}/experiments"',
}


def write_data(root: Path) -> None:
    """Write clips in the layout of S-VRT: two for training, one for testing.

    A clip has six frames of 32 x 32 and six files of spikes of 16 x 16. A file has 56 or 88 planes.
    """
    how: dict[str, Any] = {"frames": 6, "h": 16, "w": 16, "first": 47, "regrouped": True}
    write_clip(root, "GOPR0001_07_00", planes=56, **how)
    write_clip(root, "GOPR0002_11_00", planes=88, **how)
    write_clip(root, "GOPR0003_07_01", split="test", planes=56, **how)
    meta = "GOPR0001_07_00 6 0 47\nGOPR0002_11_00 6 0 47\n"
    (root / "meta_info_GoPro_train_GT.txt").write_text(meta)


def write_svrt(root: Path, **changes: object) -> Path:
    """Write the published file, with its data below `root`. Return its path.

    changes: keys to replace, with two underscores for each dot, e.g. train__total_iter.
    """
    text = PUBLISHED.read_text()
    for old, new in FOLDERS.items():
        text = text.replace(old, new.replace("{root}", str(root)))
    if changes:
        values = json5.loads(text)
        for key, value in changes.items():
            set_value(values, key.split("__"), value)
        text = json.dumps(values)
    path = root / "theirs.json"
    path.write_text(text)
    return path


def set_value(tree: dict[str, Any], names: list[str], value: object) -> None:
    """Set tree[name][name]... to a value. Sections that are missing are made."""
    *sections, last = names
    for name in sections:
        tree = tree.setdefault(name, {})
    tree[last] = value


def convert(path: Path, *more: str) -> tuple[int, Path]:
    """Convert an option file. Return the exit code, and the path of the new file.

    more: further arguments.
    """
    out = path.parent / "ours.json"
    return main([str(path), "--out", str(out), *more]), out


# ---- The published file ----


@dataclass(frozen=True)
class Converted:
    """The published file after its conversion."""

    root: Path  # folder with the data
    code: int  # exit code of the conversion
    output: str  # what the program printed
    out: Path  # the new file

    @property
    def dropped(self) -> str:
        """The part of the output with the keys that were left out."""
        # A line begins with the heading "dropped". A later heading has the words "cannot be said".
        return self.output.split("\ndropped")[1].split("cannot be said")[0]

    @property
    def unsaid(self) -> str:
        """The part of the output with what the new file cannot say."""
        return self.output.split("cannot be said")[1]


@pytest.fixture
def converted(tmp_path, capsys):
    """Give the published file after its conversion, with its data. Spikes have 16 x 16 pixels."""
    write_data(tmp_path)
    code, out = convert(write_svrt(tmp_path), "--spike-size", "16", "16")
    return Converted(tmp_path, code, capsys.readouterr().out, out)


def test_keys_of_services_reach_neither_the_new_file_nor_the_output(converted):
    assert converted.code == 0
    # The published file has these made-up keys.
    for key in ("k3y", "t0ken"):
        assert key not in converted.out.read_text()
        assert key not in converted.output


@pytest.mark.parametrize(
    "key",
    [
        "swanlab",
        "logfire",
        "logging.use_swanlab",
        "logging.wandb_api_key",
        "datasets.train.keep_legacy_l",
        "datasets.train.spike_normalize",
        "datasets.train.middle_tfp_center",
        "netG.init_gain",
    ],
)
def test_each_dropped_key_of_s_vrt_is_named(converted, key):
    assert f"\n  {key}: " in converted.dropped


def test_what_the_new_file_cannot_say_is_told(converted):
    assert "'imagenet'" in converted.unsaid
    # S-VRT rounds channels down to 8 bits. A test below computes the mean difference of 0.002.
    assert "0.002 higher on average" in converted.unsaid
    # The new file says it in its comments as well.
    assert "  // It cannot say: datasets.train.rgb_normalize" in converted.out.read_text()


def test_totals_become_numbers_for_each_gpu(converted):
    message = "datasets.train.dataloader_batch_size: 3 for 3 GPUs in all -> 1 per GPU"
    assert message in converted.output


def test_lists_stay_in_one_line(converted):
    assert '    "img_size": [6, 224, 224],\n' in converted.out.read_text()


def test_the_converted_file_trains_on_data_of_its_layout(converted):
    overrides = [f"{key}={json.dumps(value)}" for key, value in SMALL.items()]

    result = train(converted.out, *overrides, limit_s=300)

    assert result.exit_codes == [0], result.text
    curves = history(converted.out, "006_train_vrt_videodeblurring_gopro_rgbspike")
    assert [step for step, _ in curves["train/loss"]] == [1, 2]
    assert "val/psnr" in curves


# ---- The channels of the spikes ----


def stream_of(path: Path) -> np.ndarray:
    """Return the planes of a file of spikes (T, 16, 16), by the rules of S-VRT."""
    bits = np.unpackbits(np.fromfile(path, np.uint8), bitorder="little")
    # The shape is (T, rows, columns). S-VRT flips each plane upside down: the last row comes first.
    return bits.reshape(-1, 16, 16)[:, ::-1]


def channels_of_svrt(stream: np.ndarray, middles: list[int]) -> np.ndarray:
    """Return the channels of S-VRT (n, 32, 32): means of 41 planes around each of the middles.

    A mean has the middle plane, and the 20 planes before and after it. At the end of the stream it
    has one plane less.
    """
    channels = []
    for middle in middles:
        mean = stream[middle - 20 : middle + 21].mean(0, dtype=np.float32)
        channels.append(cv2.resize(mean, (32, 32), interpolation=cv2.INTER_LINEAR))
    return np.stack(channels)


def test_the_converted_channels_count_with_those_of_the_colours(converted):
    opt = load_options(converted.out, ["netG.spynet_path=null"], parts=PARTS)

    assert opt.spike_channels == 4
    # A network on the device "meta" has shapes and no numbers, so it is made at once.
    with torch.device("meta"):
        assert define_G(opt).in_chans == 3 + 4  # colours and spike channels


# S-VRT divides the T planes into four equal parts, and takes the middle of each part. A middle is
# at least 20, and at most T - 20. E.g. the parts of 56 planes have 14 planes and the middles 7, 21,
# 35 and 49, which become 20, 21, 35 and 36.
@pytest.mark.parametrize(
    ("clip", "middles"),
    [(0, [20, 21, 35, 36]), (1, [20, 33, 55, 68])],
    ids=["56 planes", "88 planes"],
)
def test_the_converted_channels_are_those_of_s_vrt_but_for_its_rounding(converted, clip, middles):
    opt = load_options(converted.out, ["netG.spynet_path=null"], parts=PARTS)
    # Whole frames as they are.
    without_changes = {"use_hflip": False, "use_rot": False, "gt_size": 32}
    section = present(opt.datasets.train).model_copy(update=without_changes)
    dataset = set_for_training(section)
    first_file = dataset.clips[clip].spike[0]

    # The first sample of the clip in epoch 0. Each clip has six samples.
    sample = dataset[0, 6 * clip]

    expected = channels_of_svrt(stream_of(first_file), middles)
    assert np.allclose(sample["spike"][0].numpy(), expected, atol=1e-6)


def test_the_rounding_of_s_vrt_lowers_a_channel_by_0_002_on_average():
    # All means of a window of 41 planes, which S-VRT rounds down to 8 bits.
    rates = np.arange(42) / 41
    lost = rates - np.floor(255 * rates) / 255

    assert lost.mean() == pytest.approx(0.002, abs=2e-4)
    assert lost.max() < 0.004


def test_the_size_of_a_plane_comes_from_dataset_json(tmp_path, capsys):
    write_data(tmp_path)
    write_info(tmp_path, h=16, w=16, light="display", rate=0.5, planes=None, gt_plane=None)

    code, out = convert(write_svrt(tmp_path))

    printed = capsys.readouterr().out
    assert code == 0
    opt = load_options(out, ["netG.spynet_path=null"], parts=PARTS)
    spike = of_part(opt.datasets.train).spike
    assert spike.h is None
    assert spike.w is None
    assert spike.gamma == 2.2
    assert "16 x 16; the file says 250 x 400" in printed
    # Firing rates are divided by the rate at full light, here 0.5. S-VRT does not divide them.
    assert "2 times those of S-VRT" in printed


@dataclass(frozen=True)
class Representation:
    """A representation of S-VRT, and what the new file has in its place."""

    kind: str  # its name in S-VRT
    channels: int
    expected: dict[str, Any]  # section `representation` of the new file
    center: int | None  # key `center` of the new file
    # Batch and loader processes of 5 GPUs in all, and those of each GPU in the new file.
    batch: int
    workers: int
    batch_each: int
    workers_each: int


@pytest.mark.parametrize(
    "case",
    [
        Representation(
            "middle_tfp", 1, {"type": "tfp", "half_window": 20}, 44,
            batch=3, workers=64, batch_each=1, workers_each=12,
        ),
        Representation(
            "spikecv_tfi", 1, {"type": "tfi", "half_window": 20}, None,
            batch=10, workers=0, batch_each=2, workers_each=0,
        ),
        Representation(
            "raw_window", 21, {"type": "raw", "window": 21}, None,
            batch=5, workers=5, batch_each=1, workers_each=1,
        ),
        Representation(
            "encoding25", 100, {"type": "encoding25", "num_windows": 4}, None,
            batch=5, workers=5, batch_each=1, workers_each=1,
        ),
    ],
    ids=lambda case: case.kind,
)  # fmt: skip
def test_the_other_representations_of_s_vrt_have_ours_and_totals_that_cannot_be_divided_are_told(
    tmp_path, capsys, case
):
    path = write_svrt(
        tmp_path,
        gpu_ids=[0, 1, 2, 3, 4],
        datasets__train__spike_channels=case.channels,
        # S-VRT names the representation twice.
        datasets__train__spike_reconstruction=case.kind,
        datasets__train__spike__reconstruction__type=case.kind,
        datasets__train__dataloader_batch_size=case.batch,
        datasets__train__dataloader_num_workers=case.workers,
    )

    code, out = convert(path)

    assert code == 0
    section = json5.loads(out.read_text())["datasets"]["train"]
    assert section["spike"]["representation"] == case.expected
    assert section["spike"].get("center") == case.center
    assert section["dataloader_batch_size"] == case.batch_each
    assert section["dataloader_num_workers"] == case.workers_each
    unsaid = capsys.readouterr().out.split("cannot be said")[1]
    # Only 3 clips and 64 processes cannot be divided by 5.
    expected_count = 2 if case.batch == 3 else 0
    assert unsaid.count("in all is no multiple of 5 GPUs") == expected_count


# ---- Files with problems ----


@pytest.fixture
def with_problems(tmp_path):
    """Give the published file with eleven problems, see PROBLEMS."""
    return write_svrt(
        tmp_path,
        train__lora_rank=8,
        train__total_iter="many",
        datasets__train__gt_size=[224, 192],
        datasets__train__spike_reconstruction="spikecv_tfi",
        netG__input_mode="dual",
        netG__optical_flow__module="scflow",
        netG__depth=[8],
        datasets__train__spike__cache="ram",
        datasets__train__spike__reconstruction__theta=2,
        datasets__train__spike_channels=5,
        in_memory=True,
    )


PROBLEMS = [
    "train.lora_rank",
    "train.total_iter",
    "datasets.train.gt_size",
    "datasets.train.spike_reconstruction",
    "netG.input_mode",
    "netG.optical_flow.module",
    "netG.depth",
    "datasets.train.spike.cache",
    "datasets.train.spike.reconstruction.theta",
    "datasets.train.spike_channels",
    "in_memory",
]


def test_the_problems_of_a_file_are_named_at_once(with_problems, capsys):
    code, out = convert(with_problems)

    printed = capsys.readouterr().err
    assert code == 2
    assert not out.exists()
    assert printed.count("OptionError") == 1
    assert "11 problems in the option file" in printed, printed
    for key in PROBLEMS:
        assert f"    {key}" in printed, key


def test_what_the_problems_of_a_file_advise_is_enough(with_problems, capsys):
    convert(with_problems)
    lines = capsys.readouterr().err.splitlines()
    advice = "\n".join(line for line in lines if line.startswith("      do: "))
    # The advice is "give KEY=VALUE", where a person must choose the value, or "--drop KEY KEY ...".
    given = {
        "train.total_iter": 10,
        "datasets.train.gt_size": 192,
        # Not in PROBLEMS: the advice for netG.optical_flow.module gives this key ...
        "netG.spynet_path": "null",
        # ... and the advice for netG.input_mode gives this one.
        "netG.fusion": "concat",
    }
    for key in given:
        assert f"give {key}=" in advice, key
    # A line of advice says e.g. "--drop netG.depth" or "--drop KEY KEY, and give ...". So the keys
    # end at a comma or at the end of the line.
    dropped = []
    for keys in re.findall(r"--drop ([^,\n]+)", advice):
        dropped += keys.split()

    overrides = [f"{key}={value}" for key, value in given.items()]
    code, out = convert(with_problems, *overrides, "--drop", *dropped)

    assert code == 0, capsys.readouterr().err
    opt = load_options(out, [], parts=PARTS)
    assert opt.train.total_iter == 10
    assert of_part(opt.datasets.train).gt_size == 192
    assert of_part(opt.netG).fusion.type == "concat"


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", "{,}"), ("a.yml", "a: [1"), ("a.json", "[1]"), ("a.json", "{}")]
)
def test_what_is_no_option_file_is_refused(tmp_path, capsys, name, text):
    (tmp_path / name).write_text(text)

    code, out = convert(tmp_path / name)

    assert code == 2
    assert not out.exists()
    assert "OptionError" in capsys.readouterr().err


# ---- Other forms of a file ----


def test_pyyaml_is_asked_for_if_it_is_missing(tmp_path, capsys, monkeypatch):
    (tmp_path / "theirs.yml").write_text("netG: {}")
    monkeypatch.setitem(sys.modules, "yaml", None)  # as if it were not installed

    code, _ = convert(tmp_path / "theirs.yml")

    assert code == 2
    assert "pip install pyyaml" in capsys.readouterr().err


def test_a_yaml_file_is_read_with_its_numbers(tmp_path):
    yaml = pytest.importorskip("yaml")
    values = json.loads(write_svrt(tmp_path, train__E_decay=0.9).read_text())
    # PyYAML reads 4e-4, without a point, as a text.
    text = yaml.safe_dump(values).replace("G_optimizer_lr: 0.0004", "G_optimizer_lr: 4e-4")
    assert "4e-4" in text
    (tmp_path / "theirs.yml").write_text(text)

    code, out = convert(tmp_path / "theirs.yml")

    assert code == 0
    assert json5.loads(out.read_text())["train"]["G_optimizer_lr"] == 4e-4


def test_files_of_kair_need_no_conversion(tmp_path, capsys):
    code, out = convert(write_file(tmp_path / "kair.json", options_of("006")))

    assert code == 0
    assert not out.exists()
    assert "needs no conversion" in capsys.readouterr().out


def test_misspelt_keys_of_a_file_of_kair_are_named(tmp_path, capsys):
    misspelt = {"train.G_optimiser_lr": 1e-4, "datasets.train.size_gt": 192}
    path = write_file(tmp_path / "kair.json", options_of("006") | misspelt)

    code, _ = convert(path)

    printed = capsys.readouterr().err
    assert code == 2
    for key in misspelt:
        assert key in printed


def test_another_ending_of_the_new_file_is_refused(tmp_path, capsys):
    path = write_file(tmp_path / "kair.json", options_of("006"))

    assert main([str(path), "--out", str(tmp_path / "ours.txt")]) == 2

    assert "another ending" in capsys.readouterr().err


def test_no_file_is_overwritten(tmp_path, capsys):
    (tmp_path / "ours.json").write_text("mine")

    code, out = convert(write_svrt(tmp_path))

    assert code == 2
    assert out.read_text() == "mine"
    assert "no file is overwritten" in capsys.readouterr().err
