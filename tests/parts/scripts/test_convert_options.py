"""scripts/convert_options.py from its command line, on option files in the forms of S-VRT and KAIR.

tests/data/options/svrt_006.json is the option file that S-VRT published. The tests convert it,
changed or as it is, and read the new file, the output, and the training with it.
"""

import json
import re
import sys
from pathlib import Path

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

FILES = ROOT / "tests/data/options"
# What a person changes to train on data and with a network of the size of a test. Every other key
# stays as it is.
SMALL = {
    "netG.img_size": [2, 32, 32], "netG.window_size": [2, 4, 4], "netG.depths": [1] * 11,
    "netG.embed_dims": [8] * 11, "netG.num_heads": [2] * 11, "netG.deformable_groups": 2,
    "netG.spynet_path": None, "train.total_iter": 2, "train.checkpoint_print": 1,
    "datasets.train.num_frame": 2, "datasets.train.gt_size": 32,
    "datasets.train.dataloader_num_workers": 1,
}  # fmt: skip
# Where the published file looks for its data, and the same folders below a root.
PLACES = {
    "trainsets/GoPro/": "GOPRO_Large/", "testsets/GoPro11/": "GOPRO_Large/",
    "trainsets/gopro_spike/": "", "data/meta_info/": "", 'experiments"': 'experiments"',
}  # fmt: skip


def write_data(root: Path) -> None:
    """Write clips in the layout of S-VRT: two for training, one for testing.

    A clip has six frames of 32 x 32 and six files of spikes of 16 x 16. A file has 56 or 88 planes.
    """
    how = {"frames": 6, "h": 16, "w": 16, "first": 47, "regrouped": True}
    for name, split, planes in (
        ("0001_07_00", "train", 56),
        ("0002_11_00", "train", 88),
        ("0003_07_01", "test", 56),
    ):
        write_clip(root, f"GOPR{name}", split=split, planes=planes, **how)
    (root / "meta_info_GoPro_train_GT.txt").write_text(
        "GOPR0001_07_00 6 0 47\nGOPR0002_11_00 6 0 47\n"
    )


def write_svrt(root: Path, **changes: object) -> Path:
    """Write the published file, with its data below `root`. Return its path.

    changes: keys to replace, with two underscores for each dot, e.g. train__total_iter.
    """
    text = (FILES / "svrt_006.json").read_text()
    for old, new in PLACES.items():
        text = text.replace(f'"{old}', f'"{root}/{new}')
    path = root / "theirs.json"
    if changes:
        values = json5.loads(text)
        for key, value in changes.items():
            *sections, last = key.split("__")
            inner = values
            for name in sections:
                inner = inner.setdefault(name, {})
            inner[last] = value
        text = json.dumps(values)
    path.write_text(text)
    return path


def convert(path: Path, *more: str) -> tuple[int, Path]:
    """Convert an option file. Return the exit code, and the path of the new file.

    more: further arguments.
    """
    out = path.parent / "ours.json"
    return main([str(path), "--out", str(out), *more]), out


def test_the_reference_file_of_s_vrt_is_converted_and_trains_on_data_of_its_layout(
    tmp_path, capsys
):
    write_data(tmp_path)
    path = write_svrt(tmp_path)
    code, out = convert(path, "--spike-size", "16", "16")
    said = capsys.readouterr().out
    text = out.read_text()
    assert code == 0
    assert "k3y" not in text + said
    assert "t0ken" not in text + said
    for key in (
        "swanlab", "logfire", "logging.use_swanlab", "logging.wandb_api_key",
        "datasets.train.keep_legacy_l", "datasets.train.spike_normalize",
        "datasets.train.middle_tfp_center", "netG.init_gain",
    ):  # fmt: skip
        assert f"\n  {key}: " in said.split("dropped")[1].split("cannot be said")[0], key
    assert "'imagenet'" in said.split("cannot be said")[1]
    assert "0.002 higher on average" in said
    assert "datasets.train.dataloader_batch_size: 3 for 3 GPUs in all -> 1 per GPU" in said
    assert "  // It cannot say: datasets.train.rgb_normalize" in text
    assert '    "img_size": [6, 224, 224],\n' in text
    result = train(
        out, *(f"{key}={json.dumps(value)}" for key, value in SMALL.items()), limit_s=300
    )
    assert result.exit_codes == [0], result.text
    steps = history(out, "006_train_vrt_videodeblurring_gopro_rgbspike")

    assert [step for step, _ in steps["train/loss"]] == [1, 2]
    assert "val/psnr" in steps


def test_the_converted_channels_are_those_of_s_vrt_but_for_its_rounding(tmp_path, capsys):
    write_data(tmp_path)
    code, out = convert(write_svrt(tmp_path), "--spike-size", "16", "16", "netG.spynet_path=null")
    opt = load_options(out, [], parts=PARTS)
    with torch.device("meta"):
        assert code == 0
        assert (opt.spike_channels, define_G(opt).in_chans) == (4, 7)
    section = present(opt.datasets.train).model_copy(
        update={"use_hflip": False, "use_rot": False, "gt_size": 32}
    )
    dataset = set_for_training(section)

    for clip, middles in ((0, [20, 21, 35, 36]), (1, [20, 33, 55, 68])):
        files = dataset.clips[clip]
        stored = np.fromfile(files.spike[0], np.uint8)
        stream = np.unpackbits(stored, bitorder="little").reshape(-1, 16, 16)[:, ::-1]
        means = np.stack([stream[m - 20 : m + 21].mean(0, dtype=np.float32) for m in middles])
        expected = np.stack(
            [cv2.resize(mean, (32, 32), interpolation=cv2.INTER_LINEAR) for mean in means]
        )
        sample = dataset[0, 6 * clip]
        assert np.allclose(sample["spike"][0].numpy(), expected, atol=1e-6)

    rates = np.arange(42) / 41  # all values of a window of 41 planes
    lost = rates - np.floor(255 * rates) / 255
    assert lost.mean() == pytest.approx(0.002, abs=2e-4)
    assert lost.max() < 0.004
    # The size of a plane comes from dataset.json, and firing rates stay.
    write_info(tmp_path, h=16, w=16, light="display", rate=0.5, planes=None, gt_plane=None)
    capsys.readouterr()
    out.unlink()
    code, _ = convert(write_svrt(tmp_path))
    said = capsys.readouterr().out
    opt = load_options(out, ["netG.spynet_path=null"], parts=PARTS)
    spike = of_part(opt.datasets.train).spike
    assert code == 0
    assert (spike.h, spike.w, spike.gamma) == (None, None, 2.2)
    assert "16 x 16; the file says 250 x 400" in said
    assert "2 times those of S-VRT" in said


def test_the_problems_of_a_file_are_named_at_once_and_what_they_advise_is_enough(tmp_path, capsys):
    path = write_svrt(
        tmp_path, train__lora_rank=8, train__total_iter="many", datasets__train__gt_size=[224, 192],
        datasets__train__spike_reconstruction="spikecv_tfi", netG__input_mode="dual",
        netG__optical_flow__module="scflow", netG__depth=[8], datasets__train__spike__cache="ram",
        datasets__train__spike__reconstruction__theta=2, datasets__train__spike_channels=5,
        in_memory=True,
    )  # fmt: skip
    code, out = convert(path)
    said = capsys.readouterr().err
    wrong = [
        "train.lora_rank", "train.total_iter", "datasets.train.gt_size",
        "datasets.train.spike_reconstruction", "netG.input_mode", "netG.optical_flow.module",
        "netG.depth", "datasets.train.spike.cache", "datasets.train.spike.reconstruction.theta",
        "datasets.train.spike_channels", "in_memory",
    ]  # fmt: skip
    assert code == 2
    assert not out.exists()
    assert said.count("OptionError") == 1
    assert all(f"    {key}" in said for key in wrong), said
    assert "11 problems in the option file" in said, said
    advice = "\n".join(line for line in said.splitlines() if line.startswith("      do: "))
    given = {
        "train.total_iter": 10,
        "datasets.train.gt_size": 192,
        "netG.spynet_path": "null",
        "netG.fusion": "concat",
    }
    assert all(f"give {key}=" in advice for key in given)
    dropped = [key for keys in re.findall(r"--drop ([^,\n]+)", advice) for key in keys.split()]
    code, out = convert(
        path, *(f"{key}={value}" for key, value in given.items()), "--drop", *dropped
    )
    assert code == 0, capsys.readouterr().err
    opt = load_options(out, [], parts=PARTS)
    data = of_part(opt.datasets.train)
    net = of_part(opt.netG)

    assert (opt.train.total_iter, data.gt_size, net.fusion.type) == (
        10,
        192,
        "concat",
    )


@pytest.mark.parametrize(("kind", "channels", "expected", "batch", "workers", "each"), [
    ("middle_tfp", 1, {"type": "tfp", "half_window": 20}, 3, 64, (1, 12)),
    ("spikecv_tfi", 1, {"type": "tfi", "half_window": 20}, 10, 0, (2, 0)),
    ("raw_window", 21, {"type": "raw", "window": 21}, 5, 5, (1, 1)),
    ("encoding25", 100, {"type": "encoding25", "num_windows": 4}, 5, 5, (1, 1)),
])  # fmt: skip
def test_the_other_representations_of_s_vrt_have_ours_and_totals_that_cannot_be_divided_are_told(
    tmp_path, capsys, kind, channels, expected, batch, workers, each
):
    values = {
        "spike_channels": channels, "spike_reconstruction": kind,
        "spike__reconstruction__type": kind, "dataloader_batch_size": batch,
        "dataloader_num_workers": workers,
    }  # fmt: skip
    values = {f"datasets__train__{key}": value for key, value in values.items()}
    code, out = convert(write_svrt(tmp_path, gpu_ids=[0, 1, 2, 3, 4], **values))
    unsaid = capsys.readouterr().out.split("cannot be said")[1]
    train = json5.loads(out.read_text())["datasets"]["train"]

    assert code == 0
    assert train["spike"]["representation"] == expected
    assert train["spike"].get("center") == (44 if kind == "middle_tfp" else None)
    assert (train["dataloader_batch_size"], train["dataloader_num_workers"]) == each
    assert unsaid.count("in all is no multiple of 5 GPUs") == (2 if batch == 3 else 0)


def test_a_yaml_file_is_read_with_its_numbers_or_pyyaml_is_asked_for(tmp_path, capsys, monkeypatch):
    (tmp_path / "theirs.yml").write_text("netG: {}")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "yaml", None)
        assert convert(tmp_path / "theirs.yml")[0] == 2
        assert "pip install pyyaml" in capsys.readouterr().err
    yaml = pytest.importorskip("yaml")
    values = json.loads(write_svrt(tmp_path, train__E_decay=0.9).read_text())
    text = yaml.safe_dump(values).replace("G_optimizer_lr: 0.0004", "G_optimizer_lr: 4e-4")
    (tmp_path / "theirs.yml").write_text(text)
    code, out = convert(tmp_path / "theirs.yml")

    assert "4e-4" in text
    assert code == 0
    assert json5.loads(out.read_text())["train"]["G_optimizer_lr"] == 4e-4


def test_files_of_kair_need_no_conversion_and_no_file_is_overwritten(tmp_path, capsys):
    options = options_of("006")
    path = write_file(tmp_path / "kair.json", options)
    code, out = convert(path)
    assert code == 0
    assert not out.exists()
    assert "needs no conversion" in capsys.readouterr().out
    write_file(path, {**options, "train.G_optimiser_lr": 1e-4, "datasets.train.size_gt": 192})
    code, _ = convert(path)
    said = capsys.readouterr().err
    assert code == 2
    assert "train.G_optimiser_lr" in said
    assert "datasets.train.size_gt" in said
    assert main([str(path), "--out", str(tmp_path / "ours.txt")]) == 2
    assert "another ending" in capsys.readouterr().err
    out.write_text("mine")
    code, _ = convert(write_svrt(tmp_path))

    assert code == 2
    assert out.read_text() == "mine"
    assert "no file is overwritten" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", "{,}"), ("a.yml", "a: [1"), ("a.json", "[1]"), ("a.json", "{}")]
)
def test_what_is_no_option_file_is_refused(tmp_path, capsys, name, text):
    (tmp_path / name).write_text(text)
    code, out = convert(tmp_path / name)

    assert code == 2
    assert not out.exists()
    assert "OptionError" in capsys.readouterr().err
