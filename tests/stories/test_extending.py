"""What docs/extending.md promises: a new part is one new file, which all programs find and use.

A part is a class that an option file can name, e.g. a network, a data set, a loss or a log writer.
The new files are the code blocks of this document, and four files of this test: DATASET, CHANNELS,
DEPTH and FIRST. Some programs refuse CHANNELS, DEPTH and FIRST.

A fixture runs tests/helpers/with_new_parts.py once for all tests, in a process of its own. This
program checks small clips, trains on them, tests and caches them, in these runs:

    tiny      the network "tiny" of the document, on the data set "LabTrain" from files
    vrt       VRT with the fusion operator "add" of the document, on a cache of "LabTrain"
    noise     the network "tiny", on the data set "Noise" of the document, which has no files
    squares   as "noise", with the test set "Squares" of the document
    page      the option file of the document

Then each test reads files that these runs have written. "The page" is docs/extending.md.
"""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.dist.fork_server import ROOT
from tests.dist.launching import run_ranks
from tests.helpers.clip_files import write_clip, write_info
from tests.helpers.train_files import network_section

# ---- New files ----

# A data set that names its folders by other option keys: recordings, truth and streams.
DATASET = """
from pydantic import Field
from data.clip_dataset import TestClips, TrainClips
from data.clip_options import Crops, FileReading, Spikes, WholeClips
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
            # Name of the folder of each clip that has its frames.
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

# Two test sets without files. "Channels" has spikes. The clips of "Foreign" are not derived from
# `Reader`.
CHANNELS = """
import torch
from torch.utils.data import Dataset
from data.clips.readers import Reader
from data.select_dataset import DATASETS

class ChannelClip(Reader):
    name, stems = "gray", ["0", "1"]

    def frame(self, index, reverse=False):
        gt = torch.full((3, 32, 32), 0.5)
        return {"lq": gt, "gt": gt, "spike": gt}

class ForeignClip:
    name, stems = "gray", ["0"]

    def frame(self, index, reverse=False):
        return ChannelClip().frame(index)

@DATASETS.register("Channels")
class Channels(Dataset):
    @classmethod
    def spike_channels(cls, section):
        return 3

    def readers(self):
        return [ChannelClip()]

@DATASETS.register("Foreign")
class Foreign(Dataset):
    def readers(self):
        return [ForeignClip()]
"""

# A loss that needs a tensor, "depth". No data set of these tests gives this tensor.
DEPTH = """
from torch import nn
from models.losses import LOSSES

@LOSSES.register("depth")
class DepthLoss(nn.Module):
    takes = ("gt", "depth")

    def forward(self, restored, gt, depth):
        return (restored - gt).abs().mean() + depth.mean()
"""

# A network that returns only the first frame of a clip.
FIRST = """
from torch import nn
from models.select_network import NETWORKS

@NETWORKS.register("first")
class FirstFrame(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, lq, spike=None):
        return self.conv(lq[:, 0]).unsqueeze(1)
"""


def files_of_page() -> dict[str, str]:
    """Return the code blocks of docs/extending.md that are whole files: name -> content.

    Such a block begins with the name of its file, e.g. "# models/loss_power.py".
    """
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    # Each match is a pair (name, content).
    return dict(re.findall(r"```python\n# (\S+)\n(.*?)```", page, re.DOTALL))


def option_file_of_page() -> str:
    """Return the option file of docs/extending.md."""
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    # The page must have exactly one such block. Otherwise the unpacking below raises ValueError.
    block = r"Save this as `options/tiny\.json`:\n\n```json\n(.*?)```"
    [text] = re.findall(block, page, re.DOTALL)
    return text


def new_files() -> dict[str, str]:
    """Return all new files, of the page and of this test file: name -> content."""
    files = files_of_page() | {
        "data/dataset_lab.py": DATASET,
        "data/dataset_channels.py": CHANNELS,
        "models/loss_depth.py": DEPTH,
        "models/network_first.py": FIRST,
    }
    # Add an option to the network "tiny". Its name looks like a secret, because it has the word
    # "token".
    tiny = files["models/network_tiny.py"]
    with_token_dim = tiny.replace("width: int = 3,", "width: int = 3, token_dim: int = 1,")
    assert with_token_dim != tiny
    files["models/network_tiny.py"] = with_token_dim
    return files


# ---- The runs with them ----

# The names of the steps of with_new_parts.py in its report. The first word is the program:
#
#     check, examine   scripts/doctor.py, with and without --data
#     train            main_train_vrt.py
#     test             main_test_vrt.py
#     show             scripts/show_sample.py
#     cache            scripts/build_clip_cache.py
#
# The other words of a name say what the program uses. "noise", "squares" and "channels" are data
# sets without files. "vrt" is the network. "the page" is the option file of docs/extending.md.
# "again" means the options that a run has saved.
STEPS = (
    "check",
    "train",
    "train on noise",
    "check noise",
    "train with squares",
    "test squares",
    "train as the page says",
    "examine squares",
    "show noise",
    "show squares",
    "show channels",
    "train again",
    "cache train",
    "cache test",
    "train vrt",
    "test",
    "test vrt",
)

# Name of a refused case in the report of with_new_parts.py -> words of its error.
REFUSED = {
    "a formula on channels": "this method reads spike files, and datasets.test (Channels) gives",
    "a reader of another class": "(ForeignClip) lacks fps, times, pixel_aspect",
    "a loss without its tensor": "the loss DepthLoss takes depth, and the batch has lq, gt",
    "a network that returns too few frames": "the network returns clips of (1, 1, 3, 32, 32)",
    "motion of channels": "Channels has no spike files, so no motion can be shown",
}

# A misspelt option -> the right key. The error must name the right key. One option also holds a
# secret ("canary-3"). No message may show the secret.
MISSPELT = {
    "datasets.train.recording=x": "recordings",
    "datasets.train.camera.evry=2": "every",
    "datasets.train.spike.representation.part=2": "parts",
    "netG.widht=3": "width",
    'netG={"net_type":"vrt","fusion":{"type":"add","gian":1}}': "gain",
    "train.G_powr=1": "G_power",
    "train.G_linear_step=1": "G_linear_steps",
    "train.G_momentm=0.1": "G_momentum",
    'metric.more=[{"type":"mae","bordr":2}]': "border",
    'logging.writers=[{"type":"table","seperator":""}]': "separator",
    'logging={"wandb_api_key":"canary-3","progres":"bar"}': "progress",
}
# Secrets in values of a wrong type. The error shows these values, with the secret as "***".
WRONG_SECRETS = [
    # The value is a list in place of a text.
    'logging.writers=[{"type":"table","token":["canary-4"]}]',
    # The value is a text in place of a list. The text looks like JSON, but is not valid JSON,
    # because its brace is not closed.
    'logging={"writers":"{token: canary-5"}',
]


def arrange_clips(root: Path, split: str) -> dict[str, str]:
    """Copy the clips of a split, "train" or "test", into the folders of the new data set.

    The folders are recordings, truth and streams in <root>/lab/<split>. Returns the options of the
    data set that name these folders, e.g. "truth" -> "<root>/lab/train/truth".
    """
    rgb = root / "GOPRO_Large" / split
    spikes = root / "GOPRO_Large_spike_seq"
    lab = root / "lab" / split

    for clip in rgb.iterdir():
        shutil.copytree(clip / "blur", lab / "recordings" / clip.name / "frames")
        shutil.copytree(clip / "sharp", lab / "truth" / clip.name / "sharp")
    shutil.copytree(spikes / split, lab / "streams")
    shutil.copy(spikes / "dataset.json", lab / "streams")
    return {key: str(lab / key) for key in ("recordings", "truth", "streams")}


def options_with_new_parts(root: Path) -> dict[str, Any]:
    """Return options that use a new part in each section that can name one.

    "LabTrain" and "LabTest" are classes of DATASET. All other types, e.g. "slow", are examples of
    the page.

    root: folder of the clips.
    """
    spike = {"type": "inverted", "representation": {"type": "count", "parts": 3}}
    train = {
        "dataset_type": "LabTrain",
        **arrange_clips(root, "train"),
        "spike": spike,
        "camera": {"type": "slow", "every": 3},
        "num_frame": 2,
        "gt_size": 32,
        "dataloader_num_workers": 0,
    }
    test = {"dataset_type": "LabTest", **arrange_clips(root, "test"), "spike": spike}
    return {
        "task": "tiny",
        "path": {"root": str(root / "experiments")},
        "datasets": {"train": train, "test": test},
        "netG": {"net_type": "tiny", "token_dim": 7},
        "train": {
            "total_iter": 2,
            "checkpoint_print": 1,
            "G_lossfn_type": "power",
            "G_power": 1.5,
            "G_scheduler_type": "linear",
            "G_linear_steps": 4,
            "G_optimizer_type": "momentum",
        },
        "metric": {"more": [{"type": "mae", "border": 2}]},
        "logging": {
            "use_tensorboard": False,
            "writers": [{"type": "table", "separator": " "}],
        },
    }


class UsedParts(NamedTuple):
    """The results of the programs with the new parts."""

    # The folder that has a folder for each run.
    runs: Path
    # The output of all programs.
    text: str
    # Option of MISSPELT or WRONG_SECRETS, or name of a case of REFUSED -> error message.
    refusals: dict[str, str]
    # Name of a step of STEPS -> its exit code.
    exit_codes: dict[str, int]

    def history(self, run: str) -> dict[str, list[list[float]]]:
        """Return the curves of a run: name -> [step, value] for each step."""
        return json.loads((self.runs / run / "training_history.json").read_text())

    def steps(self, run: str, curve: str) -> list[float]:
        """Return the steps at which a curve of a run has a value."""
        return [step for step, _ in self.history(run)[curve]]

    def results(self, run: str) -> dict[str, Any]:
        """Return the scores of the test of a run."""
        return json.loads((self.runs / run / "test/metrics.json").read_text())

    def restored(self, run: str, clip: str) -> list[Path]:
        """Return the frames that the test of a run has saved for a clip."""
        return list((self.runs / run / "test" / clip).glob("*.png"))

    def weights(self, run: str) -> dict[str, Any]:
        """Return the file of weights of a run. The run trained for two steps."""
        return torch.load(self.runs / run / "models/2_G.pth", weights_only=True)

    def page_of_samples(self, name: str) -> str:
        """Return the page of the step "show <name>", e.g. "show noise": samples of a data set."""
        return (self.runs.parent / f"{name}.html").read_text(encoding="utf-8")

    def table(self, run: str) -> dict[tuple[int, str], float]:
        """Return the numbers that the log writer of the page has written: (step, name) -> value.

        A line is e.g. "1 train/loss 0.25". The second start of the run "tiny" writes lines with
        commas. These lines are left out here.
        """
        found = {}
        for line in (self.runs / run / "numbers.txt").read_text().splitlines():
            fields = line.split(" ")
            if len(fields) == 3:
                step, name, value = fields
                found[int(step), name] = float(value)
        return found


@pytest.fixture(scope="module")
def used_parts(tmp_path_factory) -> UsedParts:
    """Run the programs with the new files, and give the results."""
    folder = tmp_path_factory.mktemp("extending")
    for name, text in new_files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    # Frames are twice as large as spike planes: 40 x 40 pixels. The network of the page has the
    # stride 16. 40 is no multiple of 16, so this size tests that frames are padded.
    size: dict[str, Any] = {"h": 20, "w": 20}
    write_clip(folder, "clip0", frames=2, seed=0, **size)
    write_clip(folder, "clip1", frames=2, seed=1, **size)
    write_clip(folder, "clip2", frames=2, seed=2, split="test", **size)
    write_info(folder, **size)
    (folder / "options.json").write_text(json.dumps(options_with_new_parts(folder)))
    vrt = network_section(in_chans=None, fusion={"type": "add", "gain": 0.5})
    (folder / "vrt.json").write_text(json.dumps(vrt))

    (folder / "tiny.json").write_text(option_file_of_page())

    program = ROOT / "tests/helpers/with_new_parts.py"
    result = run_ranks(1, program, folder, *MISSPELT, *WRONG_SECRETS, limit_s=240)

    assert result.exit_codes == [0], result.text
    report = json.loads((folder / "report.json").read_text())
    return UsedParts(folder / "experiments", result.text, **report)


@pytest.fixture(params=["tiny", "vrt"])
def run_on_files(request) -> str:
    """Give the name of a run on the data set from files: "tiny", then "vrt".

    A test with this argument runs twice.
    """
    return request.param


# ---- All programs ----


@pytest.mark.parametrize("step", STEPS)
def test_each_program_works_with_new_parts(used_parts, step):
    assert used_parts.exit_codes[step] == 0


@pytest.mark.parametrize(("option", "right_key"), MISSPELT.items(), ids=MISSPELT.values())
def test_a_misspelt_key_of_a_new_part_is_refused_with_the_right_one(used_parts, option, right_key):
    assert f"the nearest is {right_key}" in used_parts.refusals[option]


@pytest.mark.parametrize(("name", "words"), REFUSED.items(), ids=REFUSED)
def test_a_part_that_does_not_fit_is_refused_in_words(used_parts, name, words):
    assert words in used_parts.refusals[name]


# ---- Data sets ----


def test_the_frames_of_a_new_dataset_are_counted(used_parts):
    # There are two training clips of 2 frames each.
    assert "data train: 2 clips, 4 frames of 40 x 40, spike files of 24 planes" in used_parts.text


def test_the_check_finds_no_problem_in_a_new_dataset(used_parts):
    assert "no problem found" in used_parts.text


def test_a_new_dataset_can_be_read_from_a_cache(used_parts):
    assert "data train: 2 cached clips" in used_parts.text


def test_a_new_dataset_is_trained_on(used_parts, run_on_files):
    assert used_parts.steps(run_on_files, "train/loss") == [1, 2]


def test_a_new_dataset_is_validated_on(used_parts, run_on_files):
    assert used_parts.history(run_on_files)["val/psnr"]


def test_the_clips_of_a_new_dataset_are_tested(used_parts, run_on_files):
    assert list(used_parts.results(run_on_files)["clips"]) == ["clip2"]


def test_each_frame_of_a_new_dataset_is_scored(used_parts, run_on_files):
    assert used_parts.results(run_on_files)["averages"]["restored"]["frames"] == 2


def test_each_frame_of_a_new_dataset_is_saved(used_parts, run_on_files):
    assert len(used_parts.restored(run_on_files, "clip2")) == 2


def test_a_plain_dataset_of_torch_is_trained_on(used_parts):
    assert used_parts.steps("noise", "train/loss") == [1, 2]


def test_a_test_set_of_ones_own_is_validated_on(used_parts):
    assert used_parts.steps("squares", "val/psnr") == [2]


def test_the_clips_of_a_test_set_of_ones_own_are_tested(used_parts):
    assert list(used_parts.results("squares")["clips"]) == ["square0", "square1"]


def test_the_option_file_of_the_page_trains_and_validates(used_parts):
    assert used_parts.steps("page", "val/psnr") == [2]


def as_8_bits(value: float) -> float:
    """Round a grey level (0 to 1) to the nearest of the 256 levels of a file."""
    return round(255 * value) / 255


def test_the_frames_of_a_test_set_of_ones_own_are_compared_with_its_sharp_ones(used_parts):
    # All pixels of the sharp frame i of this test set have the grey level 1 / (1 + i). The blurry
    # frame has half of this level.
    expected = []
    for sharp in (1, 1 / 2, 1 / 3):
        error = as_8_bits(sharp) - as_8_bits(sharp / 2)
        expected.append(-20 * math.log10(error))  # PSNR in dB

    found = used_parts.results("squares")["clips"]["square1"]["per_frame"]["input"]["psnr"]

    assert found == pytest.approx(expected, abs=0.1)


def test_the_frames_of_a_test_set_of_ones_own_are_saved(used_parts):
    assert len(used_parts.restored("squares", "square0")) == 3


@pytest.mark.parametrize(
    ("name", "frames", "spike_channels"), [("noise", 2, 0), ("squares", 3, 0), ("channels", 2, 3)]
)
def test_samples_of_other_data_sets_are_shown(used_parts, name, frames, spike_channels):
    page = used_parts.page_of_samples(name)

    # Each frame has a picture of its lq, of its gt, and of each channel of its spikes.
    pictures_of_frame = 2 + spike_channels
    assert page.count("<img ") == frames * pictures_of_frame


def test_the_doctor_counts_the_clips_of_a_test_set_of_ones_own(used_parts):
    assert "4 training samples, 2 test clips" in used_parts.text


# ---- Networks and the spikes they get ----
#
# `run_on_files` is "tiny", then "vrt". The options of both runs come from `options_with_new_parts`.


def test_a_network_is_built_with_the_channels_of_a_new_representation(used_parts):
    # The input has RGB, and the three channels of the representation "count" with "parts": 3.
    input_channels = 3 + 3

    weight = used_parts.weights("tiny")["params"]["conv.weight"]

    assert weight.shape == (3, input_channels, 3, 3)


def test_a_fusion_operator_is_built_with_the_channels_of_a_new_representation(used_parts):
    weight = used_parts.weights("vrt")["params"]["fusion.mix.weight"]

    # The VRT of these tests has 8 features, and "count" gives 3 channels.
    assert weight.shape == (8, 3)


def test_weights_name_a_new_source_of_spikes(used_parts, run_on_files):
    spike = used_parts.weights(run_on_files)["options"]["spike"]

    assert spike["type"] == "inverted"  # as in `options_with_new_parts`


def test_weights_name_a_new_representation(used_parts, run_on_files):
    spike = used_parts.weights(run_on_files)["options"]["spike"]

    # `options_with_new_parts` sets this representation.
    assert spike["representation"] == {"type": "count", "parts": 3}


# ---- Log writers and losses ----


@pytest.mark.parametrize(
    ("step", "name"),
    [
        pytest.param(1, "train/loss", id="a loss"),
        pytest.param(2, "val/psnr", id="a score"),
        pytest.param(2, "val/clip2", id="a picture"),
    ],
)
def test_a_log_writer_is_given(used_parts, run_on_files, step, name):
    assert (step, name) in used_parts.table(run_on_files)


@pytest.mark.parametrize("step", [1, 2])
def test_the_terms_of_a_loss_are_logged(used_parts, run_on_files, step):
    values = used_parts.table(run_on_files)

    terms = values[step, "train/loss_power"] + values[step, "train/loss_bias"]

    assert terms == pytest.approx(values[step, "train/loss"])


def test_saved_options_hold_the_keys_of_a_new_loss(used_parts, run_on_files):
    saved = list((used_parts.runs / run_on_files / "options").iterdir())

    assert saved
    for path in saved:
        # `options_with_new_parts` sets the value 1.5.
        assert json.loads(path.read_text())["train"]["G_power"] == 1.5


# ---- Metrics ----


@pytest.fixture
def errors(used_parts) -> list[float]:
    """Give the metric "mae" of the page for each restored frame of the run "tiny"."""
    return used_parts.results("tiny")["clips"]["clip2"]["per_frame"]["restored"]["mae"]


def test_a_metric_is_computed_for_each_frame_of_a_test(errors):
    assert len(errors) == 2
    assert min(errors) > 0


def test_a_metric_is_averaged_over_the_frames_of_a_test(used_parts, errors):
    average = used_parts.results("tiny")["averages"]["restored"]["mae"]

    assert average == pytest.approx(sum(errors) / 2)


def test_a_metric_is_a_column_of_the_table_of_a_test(used_parts, errors):
    header, line_of_clip, *_ = (used_parts.runs / "tiny/test/table.txt").read_text().splitlines()

    assert " MAE   input" in header
    assert f" {sum(errors) / 2:.3f} " in line_of_clip


def test_the_results_of_a_test_explain_a_metric(used_parts):
    message = used_parts.results("tiny")["protocol"]["further metrics"]

    assert message.startswith("mae (border 2): Mean absolute error")


@pytest.mark.parametrize("curve", ["val/mae", "val/mae_input"])
def test_a_metric_is_in_the_history_of_validations(used_parts, curve):
    assert used_parts.steps("tiny", curve) == [2]


def test_a_metric_is_in_the_log_line_of_a_validation(used_parts):
    _, value = used_parts.history("tiny")["val/mae"][0]

    assert f", mae: {value:.4f} (input " in used_parts.text


def test_a_metric_is_in_the_report_of_a_run(used_parts):
    assert ">mae<" in (used_parts.runs / "tiny/report.html").read_text()


# ---- Secrets ----


def test_secrets_of_a_new_part_are_in_no_message(used_parts):
    assert "canary" not in used_parts.text


def test_secrets_of_a_new_part_are_in_no_file(used_parts):
    files = [path for path in used_parts.runs.rglob("*") if path.is_file()]

    assert files
    for path in files:
        assert b"canary" not in path.read_bytes(), path


@pytest.mark.parametrize("option", WRONG_SECRETS, ids=["list", "text"])
def test_a_secret_of_a_wrong_type_is_hidden_in_the_error(used_parts, option):
    assert "***" in used_parts.refusals[option]


def test_the_record_of_a_run_hides_the_secret_of_a_new_part(used_parts):
    record = (used_parts.runs / "tiny/environment.json").read_text()

    # The record holds the command line as a text, so quotes within the text have a backslash.
    assert r'"token\": \"***' in record


def test_an_option_whose_name_begins_like_a_secret_is_no_secret(used_parts):
    assert used_parts.weights("tiny")["options"]["netG"]["token_dim"] == 7
