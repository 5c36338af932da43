"""What docs/extending.md promises: each part is one new file, and everything else finds and uses
it.
"""

import json
import math
import re
import shutil

import pytest
import torch

from tests.dist.fork_server import ROOT
from tests.dist.launching import run_ranks
from tests.helpers.clip_files import write_clip, write_info
from tests.helpers.train_files import network

DATASET = """
from pydantic import Field
from data.clip_dataset import Crops, FileReading, Spikes, TestClips, TrainClips, WholeClips
from data.select_dataset import DATASETS

class LabFiles(Spikes, FileReading):
    recordings: str = Field(description="Folder of the blurry clips.")
    truth: str = Field(description="Folder of the sharp clips.")
    streams: str = Field(description="Folder of the spikes.")

class Lab:
    @classmethod
    def places(cls, section):
        return {
            "dataroot_lq": section.recordings,
            "dataroot_gt": section.truth,
            "dataroot_spike": section.streams,
            "lq_folder": "frames",
        }

class LabTrainKeys(Crops, LabFiles):
    pass

class LabTestKeys(WholeClips, LabFiles):
    pass

@DATASETS.register("LabTrain", given=("seed",))
class LabTrain(Lab, TrainClips):
    def __init__(self, section: LabTrainKeys, seed: int = 0) -> None:
        super().__init__(section, seed)

@DATASETS.register("LabTest", given=("seed",))
class LabTest(Lab, TestClips):
    def __init__(self, section: LabTestKeys, seed: int = 0) -> None:
        super().__init__(section, seed)
"""

SOURCE = '''
from data.cameras.spike_source import SPIKE_SOURCES, DatSpikes

@SPIKE_SOURCES.register("inverted", given=("info",))
class InvertedSpikes(DatSpikes):
    """Files of a camera that stores 0 for a spike."""

    def represent(self, stream, *args, **options):
        return super().represent(1 - stream, *args, **options)
'''

CAMERA = '''
from dataclasses import dataclass
from data.augment import CAMERAS

@dataclass(frozen=True)
class SlowDraw:
    every: int
    known_rate_factor: float = 1.0

    def apply(self, stream, frame):
        return stream.repeat(self.every, axis=0)[: len(stream)]

@CAMERAS.register("slow")
class Slow:
    """A camera that repeats each plane."""

    known_rate = False

    def __init__(self, every: int = 2) -> None:
        self.every = every

    def draw(self, seed):
        return SlowDraw(self.every)
'''

# The page's own code: each block begins with the name of its file.
TEXT = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
PAGE = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", TEXT, re.DOTALL))
TINY = PAGE["models/network_tiny.py"]
PAGE["models/network_tiny.py"] = TINY.replace(
    "width: int = 3,", "width: int = 3, token_dim: int = 1,"
)
FILES = PAGE | {
    "data/dataset_lab.py": DATASET,
    "data/spike_source_inverted.py": SOURCE,
    "data/camera_slow.py": CAMERA,
}

# To Python the new files lie where a user puts them; then the programs run as from their command
# lines.
PROGRAM = """
import json, sys
from pathlib import Path
root, new, options, *misspelt = sys.argv[1:]
sys.path.insert(0, root)
import data, data.spike, models, models.fusion, utils
for package in (data, data.spike, models, models.fusion, utils):
    package.__path__.append(f"{new}/{package.__name__.replace('.', '/')}")
import main_test_vrt, main_train_vrt
from scripts import build_clip_cache, doctor
from utils.errors import OptionError
opt = ["--opt", options]
for key in misspelt:
    try:
        main_train_vrt.read_options([*opt, key])
    except OptionError as e:
        print("refused", misspelt.index(key), e, flush=True)
assert doctor.main(["--data", *opt]) == 0
sys.argv[1:] = [
    *opt, 'logging={"use_tensorboard":false,"wandb_api_key":"canary-1"}',
    'logging.writers=[{"type":"table","separator":" ","token":"canary-2"}]',
]
assert main_train_vrt.main(sys.argv[1:]) == 0
noise = {"train": {"dataset_type": "Noise", "samples": 4, "dataloader_num_workers": 1}}
assert main_train_vrt.main([*opt, "task=noise", f"datasets={json.dumps(noise)}"]) == 0
assert doctor.main(["--data", *opt, f"datasets={json.dumps(noise)}"]) == 0
noise["test"] = {"dataset_type": "Squares", "clips": 2}
squares = [*opt, "task=squares", f"datasets={json.dumps(noise)}"]
assert main_train_vrt.main(squares) == 0
assert main_test_vrt.main([*squares, "--save", "frames"]) == 0
(saved,) = Path(new).glob("experiments/tiny/options/*.json")
assert main_train_vrt.main(["--opt", str(saved), 'logging.writers=["table"]']) == 0
cached = []
for split in ("train", "test"):
    path = f"{new}/cache_{split}"
    assert build_clip_cache.main([*opt, "--split", split, "--out", path]) == 0
    cached.append(f'datasets.{split}.io_backend={{"type": "cache", "path": "{path}"}}')
vrt = [*opt, *cached, "task=vrt", 'netG=' + open(f"{new}/vrt.json").read()]
assert main_train_vrt.main(vrt) == 0
for arguments in (opt, vrt):
    assert main_test_vrt.main([*arguments, "--save", "frames"]) == 0
"""


def move_clips(root, split):
    """The test clips in the folders of the new dataset: lab/<split>/{recordings,truth,streams}."""
    lab = root / "lab" / split
    for clip in (root / "GOPRO_Large" / split).iterdir():
        shutil.copytree(clip / "blur", lab / "recordings" / clip.name / "frames")
        shutil.copytree(clip / "sharp", lab / "truth" / clip.name / "sharp")
    shutil.copytree(root / "GOPRO_Large_spike_seq" / split, lab / "streams")
    shutil.copy(root / "GOPRO_Large_spike_seq" / "dataset.json", lab / "streams")
    return {key: str(lab / key) for key in ("recordings", "truth", "streams")}


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """Everything added and used: the folder, and what the programs said."""
    folder = tmp_path_factory.mktemp("extending")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for number in range(2):
        write_clip(folder, f"clip{number}", frames=2, h=20, w=20, seed=number)
    write_clip(folder, "clip2", split="test", frames=2, h=20, w=20, seed=2)
    # Frames of 40 x 40, no multiple of the stride of the new network
    write_info(folder, h=20, w=20)
    spikes = {"spike": {"type": "inverted", "representation": {"type": "count", "parts": 3}}}
    train, test = move_clips(folder, "train"), move_clips(folder, "test")
    options = {
        "task": "tiny", "path": {"root": str(folder / "experiments")},
        "datasets": {
            "train": {"dataset_type": "LabTrain", **train, **spikes, "num_frame": 2, "gt_size": 32,
                      "camera": {"type": "slow", "every": 3}, "dataloader_num_workers": 0},
            "test": {"dataset_type": "LabTest", **test, **spikes},
        },
        "netG": {"net_type": "tiny", "token_dim": 7},
        "train": {
            "total_iter": 2, "G_lossfn_type": "power", "G_power": 1.5, "checkpoint_print": 1,
            "G_scheduler_type": "linear", "G_linear_steps": 4, "G_optimizer_type": "momentum",
        },
        "metric": {"more": [{"type": "mae", "border": 2}]},
        "logging": {"use_tensorboard": False, "writers": [{"type": "table", "separator": " "}]},
    }  # fmt: skip
    (folder / "options.json").write_text(json.dumps(options))
    (folder / "vrt.json").write_text(
        json.dumps(network(in_chans=None, fusion={"type": "add", "gain": 0.5}))
    )
    (folder / "run.py").write_text(PROGRAM)
    result = run_ranks(
        1, folder / "run.py", ROOT, folder, folder / "options.json", *MISSPELT, limit_s=240
    )
    assert result.exit_codes == [0], result.text
    return folder / "experiments", result.text


MISSPELT = {
    "datasets.train.recording=x": "recordings", "datasets.train.camera.evry=2": "every",
    "netG.widht=3": "width", "train.G_powr=1": "G_power", "train.G_linear_step=1": "G_linear_steps",
    "train.G_momentm=0.1": "G_momentum", "datasets.train.spike.representation.part=2": "parts",
    'logging.writers=[{"type":"table","seperator":""}]': "separator",
    'metric.more=[{"type":"mae","bordr":2}]': "border",
    'netG={"net_type":"vrt","fusion":{"type":"add","gian":1}}': "gain",
    'logging={"wandb_api_key":"canary-3","progres":"bar"}': "progress",
    'logging.writers=[{"type":"table","token":["canary-4"]}]': "***",
    'logging={"writers":"{token: canary-5"}': "***",
}  # fmt: skip


def test_secrets_of_a_new_part_reach_no_file_and_no_message_and_the_saved_options_start_again(used):
    runs, text = used
    assert "canary" not in text and "***" in text
    files = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    assert not [path for path, content in files.items() if b"canary" in content]
    assert b'"token\\": \\"***' in files[runs / "tiny/environment.json"]
    assert (
        torch.load(runs / "tiny/models/2_G.pth", weights_only=True)["options"]["netG"]["token_dim"]
        == 7
    )


def test_a_dataset_trains_is_checked_cached_validated_and_tested_and_one_of_torch_trains(used):
    runs, text = used
    assert "data train: 2 clips, 4 frames of 40 x 40, spike files of 24 planes" in text
    assert "no problem found" in text and "data train: 2 cached clips" in text
    for task in ("tiny", "vrt"):
        history = json.loads((runs / task / "training_history.json").read_text())
        assert [step for step, _ in history["train/loss"]] == [1, 2] and history["val/psnr"]
        table = json.loads((runs / task / "test" / "metrics.json").read_text())
        assert list(table["clips"]) == ["clip2"] and table["averages"]["restored"]["frames"] == 2
        assert len(list((runs / task / "test" / "clip2").glob("*.png"))) == 2
    history = json.loads((runs / "noise/training_history.json").read_text())
    assert [step for step, _ in history["train/loss"]] == [1, 2]


def test_a_test_set_of_ones_own_is_validated_on_and_tested(used):
    runs, _ = used
    history = json.loads((runs / "squares/training_history.json").read_text())
    table = json.loads((runs / "squares/test/metrics.json").read_text())

    assert [step for step, _ in history["val/psnr"]] == [2]
    assert list(table["clips"]) == ["square0", "square1"]
    # Levels 1, 1/2 and 1/3 seen at half of the light: the error of a frame is half of its level.
    halves = [1 / 2, 1 / 4, 1 / 6]
    levels = [round(255 * half) / 255 for half in halves]
    truth = [round(255 * 2 * half) / 255 for half in halves]
    expected = [-20 * math.log10(b - a) for a, b in zip(levels, truth, strict=True)]
    found = table["clips"]["square1"]["per_frame"]["input"]["psnr"]
    assert found == pytest.approx(expected, abs=0.1)
    assert len(list((runs / "squares/test/square0").glob("*.png"))) == 3


def test_a_network_and_an_operator_are_built_with_the_channels_of_a_new_representation(used):
    runs, _ = used
    tiny, vrt = (
        torch.load(runs / task / "models" / "2_G.pth", weights_only=True)
        for task in ("tiny", "vrt")
    )
    assert tiny["params"]["conv.weight"].shape == (3, 3 + 3, 3, 3)
    assert vrt["params"]["fusion.mix.weight"].shape == (8, 3)
    for weights in (tiny, vrt):
        spike = weights["options"]["spike"]
        assert (spike["type"], spike["representation"]) == (
            "inverted",
            {"type": "count", "parts": 3},
        )


def test_a_loss_and_a_writer_are_used(used):
    runs, _ = used
    for task in ("tiny", "vrt"):
        lines = (runs / task / "numbers.txt").read_text().splitlines()
        told = {tuple(line.split(" ")[:2]) for line in lines}
        assert {("1", "train/loss"), ("2", "val/psnr"), ("2", "val/clip2")} <= told
        values = {
            name: [float(line.split(" ")[2]) for line in lines if f" train/loss{name} " in line]
            for name in ("", "_power", "_bias")
        }
        assert len(terms := values["_power"] + values["_bias"]) == 4 and sum(
            terms
        ) == pytest.approx(sum(values[""]))
        saved = [json.loads(path.read_text()) for path in (runs / task / "options").iterdir()]
        assert saved and all(options["train"]["G_power"] == 1.5 for options in saved)


def test_a_metric_is_in_validations_and_in_the_table_of_a_test(used):
    runs, text = used
    history = json.loads((runs / "tiny/training_history.json").read_text())
    results = json.loads((runs / "tiny/test/metrics.json").read_text())
    header, clip, *_ = (runs / "tiny/test/table.txt").read_text().splitlines()
    values = results["clips"]["clip2"]["per_frame"]["restored"]["mae"]

    assert len(values) == 2 and min(values) > 0
    assert results["averages"]["restored"]["mae"] == pytest.approx(sum(values) / 2)
    assert " MAE   input" in header and f" {sum(values) / 2:.3f} " in clip
    assert results["protocol"]["further metrics"].startswith("mae (border 2): Mean absolute error")
    assert [step for step, _ in history["val/mae"]] == [2]
    assert [step for step, _ in history["val/mae_input"]] == [2]
    assert f", mae: {history['val/mae'][0][1]:.4f} (input " in text
    assert ">mae<" in (runs / "tiny/report.html").read_text()


@pytest.mark.parametrize("key", MISSPELT)
def test_a_misspelt_key_of_a_new_part_is_refused_with_the_right_one(used, key):
    said = used[1].partition(f"refused {list(MISSPELT).index(key)} ")[2].partition("refused ")[0]
    assert f"the nearest is {MISSPELT[key]}" in said or "***" in MISSPELT[key] in said
