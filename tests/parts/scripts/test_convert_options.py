"""scripts/convert_options.py from its command line, on option files in the forms of S-VRT and KAIR.

S-VRT is an earlier program for the same task. tests/data/options/svrt_006.json is the option file
that S-VRT published. The tests convert this file, sometimes with changes. Then the tests look at
the new file, at the output of the program, and at a training run with the new file.

The output has two headings. The part below "dropped" lists the keys that the program left out. The
part below "cannot be said" lists what the new file cannot express. If the program writes no file,
the program prints an error instead.

Words of this file:

    plane    one bit for each spike pixel: whether it fired at one instant
    channel  a picture made of many planes, e.g. their mean; the network gets the channels
    middle   the plane in the middle of the planes of a channel
"""

import contextlib
import io
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
from tests.helpers.checked import not_none, options_of_part
from tests.helpers.clip_files import set_for_training, write_clip, write_info
from tests.helpers.kair_files import options_of, write_file
from tests.helpers.train_files import history, train
from utils.options.load import load_options
from utils.options.models import Options

PUBLISHED = ROOT / "tests/data/options/svrt_006.json"
# Exit code if the program refuses the file or an argument, which the user must change.
EXIT_REFUSED = 2
# A person changes these keys to train on small data with a small network, as the tests do. Every
# other key stays as it is.
SMALL_TRAINING = {
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
# Text of the published file -> the text that replaces it. After this, all paths lie below the
# folder of a test. The opening quote is a part of the text, so that only the beginning of a path
# matches.
FOLDERS = {
    '"trainsets/GoPro/': '"{root}/GOPRO_Large/',
    '"testsets/GoPro11/': '"{root}/GOPRO_Large/',
    '"trainsets/gopro_spike/': '"{root}/',
    '"data/meta_info/': '"{root}/',
    '"experiments': '"{root}/experiments',
}
# Number of frames of each clip that `write_data` writes.
FRAMES = 6
# The first frame of a clip is 000047.png.
FIRST_FRAME = 47
# Spike planes have 16 x 16 pixels, half of the 32 x 32 pixels of a frame.
SPIKE_SIDE = 16
FRAME_SIDE = 32


def write_data(root: Path) -> None:
    """Write clips in the layout of S-VRT: two for training, one for testing.

    Each frame has its own file of spikes. A file of the training clips has 56 or 88 planes.
    """
    clip_arguments: dict[str, Any] = {
        "frames": FRAMES,
        "h": SPIKE_SIDE,
        "w": SPIKE_SIDE,
        "first": FIRST_FRAME,
        "regrouped": True,  # blurry and sharp frames in the two folders that S-VRT names
    }
    write_clip(root, "GOPR0001_07_00", planes=56, **clip_arguments)
    write_clip(root, "GOPR0002_11_00", planes=88, **clip_arguments)
    write_clip(root, "GOPR0003_07_01", split="test", planes=56, **clip_arguments)
    # A line has the name of a clip, its number of frames, its shape (0: not given) and the number
    # of its first frame.
    lines = [f"{clip} {FRAMES} 0 {FIRST_FRAME}\n" for clip in ("GOPR0001_07_00", "GOPR0002_11_00")]
    (root / "meta_info_GoPro_train_GT.txt").write_text("".join(lines))


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
    path = root / "svrt.json"
    path.write_text(text)
    return path


def set_value(tree: dict[str, Any], names: list[str], value: object) -> None:
    """Set a value in nested sections. Make the sections that are missing.

    E.g. the names ["datasets", "train", "gt_size"] set tree["datasets"]["train"]["gt_size"].
    """
    *sections, last = names
    section = tree
    for name in sections:
        if name not in section:
            section[name] = {}
        section = section[name]
    section[last] = value


def convert(path: Path, *more: str) -> tuple[int, Path]:
    """Convert an option file. Return the exit code, and the path of the new file.

    more: additional arguments.
    """
    out = path.parent / "converted.json"
    return main([str(path), "--out", str(out), *more]), out


# ---- The published file ----


@dataclass(frozen=True)
class Conversion:
    """An option file after its conversion."""

    code: int  # exit code of the conversion
    output: str  # what the program printed on stdout
    errors: str  # what the program printed on stderr
    out: Path  # the new file

    @property
    def dropped(self) -> str:
        """The part of the output with the keys that were left out."""
        _, after_heading = self.output.split("\ndropped")
        part, _ = after_heading.split("cannot be said")
        return part

    @property
    def cannot_be_said(self) -> str:
        """The part of the output with what the new file cannot express."""
        _, after_heading = self.output.split("cannot be said")
        return after_heading


def convert_and_capture(path: Path, *more: str) -> Conversion:
    """Convert an option file, and return the result with the output of the program.

    Unlike pytest's capsys, this function can be called by a fixture that several tests share.
    """
    with (
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        code, out = convert(path, *more)
    return Conversion(code, output.getvalue(), errors.getvalue(), out)


@pytest.fixture(scope="module")
def conversion(tmp_path_factory) -> Conversion:
    """Give the published file after its conversion. Its data lie beside it."""
    folder = tmp_path_factory.mktemp("published")
    write_data(folder)
    side = str(SPIKE_SIDE)
    return convert_and_capture(write_svrt(folder), "--spike-size", side, side)


def options_of_new_file(out: Path) -> Options:
    """Return the options of a new file, as the two main programs read them.

    The published file names a file of weights for SPyNet, which does not exist here.
    """
    return load_options(out, ["netG.spynet_path=null"], parts=PARTS)


def test_the_published_file_is_converted(conversion):
    assert conversion.code == 0
    assert conversion.out.is_file()


# The file has three made-up secrets of services, e.g. "wandb-k3y-never-to-be-copied". Each secret
# contains one of these two texts.
@pytest.mark.parametrize("secret", ["k3y", "t0ken"])
def test_secrets_of_services_reach_neither_the_new_file_nor_the_output(conversion, secret):
    assert secret in PUBLISHED.read_text()

    assert secret not in conversion.out.read_text()
    assert secret not in conversion.output


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
def test_each_dropped_key_of_s_vrt_is_named(conversion, key):
    assert f"\n  {key}: " in conversion.dropped


def test_the_output_says_that_colours_are_not_normalized_as_in_s_vrt(conversion):
    # The published file has "rgb_normalize": "imagenet".
    assert "'imagenet'" in conversion.cannot_be_said


def test_the_output_says_how_much_the_rounding_of_s_vrt_changes_a_channel(conversion):
    # S-VRT rounds channels down to 8 bits, so a channel loses half a step of 1/255 on average:
    # 0.002 (test_the_rounding_of_s_vrt_lowers_a_channel_by_0_002_on_average).
    assert "0.002 higher on average" in conversion.cannot_be_said


def test_the_new_file_says_in_its_comments_what_it_cannot_express(conversion):
    assert "  // It cannot say: datasets.train.rgb_normalize" in conversion.out.read_text()


# In the published file, only the training split has options of spikes. So the new file takes these
# options for the test split, too.
def test_the_output_says_that_the_test_split_has_the_spike_options_of_training(conversion):
    line = "\n  datasets.test.spike: the section of training, because the test has none\n"
    assert line in conversion.output


def test_the_output_says_which_folder_of_spikes_is_assumed_for_the_test_split(conversion):
    assert re.search(r"\n  datasets\.test\.dataroot_spike: \S+/test, assumed", conversion.output)


def test_no_note_on_missing_spike_options_if_the_test_split_has_them(tmp_path):
    # Two underscores stand for a dot: the key is datasets.test.spike.reconstruction.type.
    path = write_svrt(tmp_path, datasets__test__spike__reconstruction__type="tfp")

    converted = convert_and_capture(path)

    assert converted.code == 0, converted.errors
    assert "datasets.test.dataroot_spike: " in converted.output
    assert "the test has none" not in converted.output
    assert "it has none" not in converted.output


def test_totals_become_numbers_for_each_gpu(conversion):
    message = "datasets.train.dataloader_batch_size: 3 for 3 GPUs in all -> 1 per GPU"
    assert message in conversion.output


def test_lists_stay_in_one_line(conversion):
    assert '    "img_size": [6, 224, 224],\n' in conversion.out.read_text()


def test_the_converted_file_trains_on_data_of_its_layout(conversion):
    overrides = [f"{key}={json.dumps(value)}" for key, value in SMALL_TRAINING.items()]

    result = train(conversion.out, *overrides, limit_s=300)

    assert result.exit_codes == [0], result.text
    # The name of the run is `task` in the published file.
    curves = history(conversion.out, "006_train_vrt_videodeblurring_gopro_rgbspike")
    # SMALL_TRAINING asks for two steps, and for a point of the curve at each step.
    steps = [step for step, _loss in curves["train/loss"]]
    assert steps == [1, 2]
    assert "val/psnr" in curves


# ---- The channels of the spikes ----

# A channel of S-VRT is the mean of 41 planes: the middle, and 20 planes on either side of it.
HALF_WINDOW = 20


def read_planes_of_svrt(path: Path) -> np.ndarray:
    """Return the planes of a file of spikes (T, 16, 16) as S-VRT reads them.

    Each bit of the file is one pixel of a plane. The first pixel of a byte is its lowest bit.
    """
    bits = np.unpackbits(np.fromfile(path, np.uint8), bitorder="little")
    planes = bits.reshape(-1, SPIKE_SIDE, SPIKE_SIDE)  # (T, row, column)
    # The cameras store the last row of a plane first, so S-VRT turns each plane upside down.
    return np.flip(planes, axis=1)


def middles_of_svrt(plane_count: int) -> list[int]:
    """Return the middles of the four channels of S-VRT for a file with this number of planes.

    S-VRT divides the planes into four equal parts and takes the middle of each part. A middle below
    20 becomes 20. A middle above T - 20 becomes T - 20. T is the number of planes.

    E.g. 56 planes: the parts have 14 planes each, and their middles are 7, 21, 35 and 49. Plane 7
    becomes 20. Plane 49 becomes 56 - 20 = 36. So the middles are 20, 21, 35 and 36.
    """
    planes_of_part = plane_count / 4
    middles = []
    for part in range(4):
        middle = int((part + 0.5) * planes_of_part)
        middle = max(middle, HALF_WINDOW)
        middle = min(middle, plane_count - HALF_WINDOW)
        middles.append(middle)
    return middles


def channels_of_svrt(planes: np.ndarray) -> np.ndarray:
    """Return the four channels of S-VRT (4, 32, 32) for the planes of a file (T, 16, 16).

    S-VRT rounds the values to 8 bits. This function does not.
    """
    channels = []
    for middle in middles_of_svrt(len(planes)):
        # If the middle is plane T - 20, only 19 planes follow it. Then the mean has 40 planes, and
        # not 41.
        window = planes[middle - HALF_WINDOW : middle + HALF_WINDOW + 1]
        mean = window.mean(axis=0, dtype=np.float32)
        enlarged = cv2.resize(mean, (FRAME_SIDE, FRAME_SIDE), interpolation=cv2.INTER_LINEAR)
        channels.append(enlarged)
    return np.stack(channels)


# The spike files of the two training clips of `write_data` have 56 and 88 planes.
@pytest.mark.parametrize(
    ("plane_count", "middles"),
    [
        pytest.param(56, [20, 21, 35, 36], id="56 planes"),
        pytest.param(88, [20, 33, 55, 68], id="88 planes"),
    ],
)
def test_the_rule_of_middles_gives_the_middles_of_s_vrt(plane_count, middles):
    assert middles_of_svrt(plane_count) == middles


def test_the_network_of_the_new_file_takes_colours_together_with_spike_channels(conversion):
    opt = options_of_new_file(conversion.out)

    assert opt.spike_channels == 4
    # On the device "meta" a network has shapes but no numbers. So making it takes no time.
    with torch.device("meta"):
        net = define_G(opt)
    assert net.in_chans == 3 + 4  # colours and spike channels


@pytest.mark.parametrize(
    ("clip_index", "plane_count"),
    [pytest.param(0, 56, id="56 planes"), pytest.param(1, 88, id="88 planes")],
)
def test_the_converted_channels_differ_from_s_vrt_only_by_its_rounding(
    conversion, clip_index, plane_count
):
    opt = options_of_new_file(conversion.out)
    # Switch off the random changes, so that a sample shows whole frames, neither turned nor
    # mirrored.
    without_changes = {"use_hflip": False, "use_rot": False, "gt_size": FRAME_SIDE}
    section = not_none(opt.datasets.train).model_copy(update=without_changes)
    dataset = set_for_training(section)
    planes = read_planes_of_svrt(dataset.clips[clip_index].spike[0])
    assert len(planes) == plane_count

    # A clip has as many samples as frames. Its first sample begins with its first frame.
    epoch = 0
    first_sample = FRAMES * clip_index
    sample = dataset[epoch, first_sample]

    channels_of_first_frame = sample["spike"][0].numpy()
    # The tolerance allows for the rounding of float32.
    assert np.allclose(channels_of_first_frame, channels_of_svrt(planes), atol=1e-6)


def test_the_rounding_of_s_vrt_lowers_a_channel_by_0_002_on_average():
    # A pixel fires in 0 to 41 of the 41 planes of a channel. S-VRT rounds the mean down to 8 bits.
    means = np.arange(42) / 41
    rounded = np.floor(255 * means) / 255
    lost = means - rounded

    # On average, half of a level 1/255 is lost: 0.5 / 255 = 0.00196.
    assert lost.mean() == pytest.approx(0.002, abs=2e-4)
    # Always less than a whole level is lost: 1 / 255 = 0.0039. So the output says "at most 0.004".
    assert lost.max() < 0.004


# ---- What dataset.json says about the spikes ----


@pytest.fixture(scope="module")
def converted_with_info(tmp_path_factory) -> Conversion:
    """Give the published file after its conversion, with a dataset.json beside the spikes.

    dataset.json says the size of the planes, the kind of light, and `rate`: the share of planes in
    which a pixel in full light fires.
    """
    folder = tmp_path_factory.mktemp("with_info")
    write_data(folder)
    write_info(
        folder,
        h=SPIKE_SIDE,
        w=SPIKE_SIDE,
        light="display",
        rate=0.5,
        # None leaves the key out: numbers and positions of planes differ between the clips.
        planes=None,
        gt_plane=None,
    )
    return convert_and_capture(write_svrt(folder))


def test_the_size_of_a_plane_in_dataset_json_is_used(converted_with_info):
    assert converted_with_info.code == 0
    # The published file has the size of another camera.
    assert "16 x 16; the file says 250 x 400" in converted_with_info.output
    # null means that the size in dataset.json is used.
    spike = options_of_part(options_of_new_file(converted_with_info.out).datasets.train).spike
    assert spike.h is None
    assert spike.w is None


def test_rates_of_display_values_stay_as_s_vrt_reads_them(converted_with_info):
    spike = options_of_part(options_of_new_file(converted_with_info.out).datasets.train).spike

    # The spikes come from display values. Our reader raises their rates to the power 2.2 / gamma.
    # S-VRT uses the rates as they are, so our power must be 1. Therefore gamma must be 2.2.
    assert spike.gamma == 2.2


def test_the_output_says_how_much_larger_the_channels_are_than_in_s_vrt(converted_with_info):
    # Our reader divides firing rates by the rate in full light, 0.5. S-VRT does not divide them. So
    # our channels are twice as large.
    assert "2 times the channels of S-VRT" in converted_with_info.output


# ---- Other representations of the spikes, other numbers of GPUs ----


@dataclass(frozen=True)
class Representation:
    """A representation of S-VRT, and what the new file must have in its place."""

    kind: str  # name of the representation in S-VRT
    channels: int
    expected: dict[str, Any]  # section `representation` of the new file
    center: int | None  # key `center` of the new file: the plane at the middle of the exposure


# The published file has 44 for its key `middle_tfp_center`. Only "middle_tfp" reads this key.
REPRESENTATIONS = [
    Representation(
        "middle_tfp", channels=1, expected={"type": "tfp", "half_window": 20}, center=44
    ),
    Representation(
        "spikecv_tfi", channels=1, expected={"type": "tfi", "half_window": 20}, center=None
    ),
    Representation("raw_window", channels=21, expected={"type": "raw", "window": 21}, center=None),
    # 25 channels for each of 4 windows.
    Representation(
        "encoding25", channels=100, expected={"type": "encoding25", "num_windows": 4}, center=None
    ),
]


@pytest.mark.parametrize("case", REPRESENTATIONS, ids=lambda case: case.kind)
def test_each_other_representation_of_s_vrt_becomes_one_of_ours(tmp_path, case):
    path = write_svrt(
        tmp_path,
        datasets__train__spike_channels=case.channels,
        # S-VRT names the representation twice.
        datasets__train__spike_reconstruction=case.kind,
        datasets__train__spike__reconstruction__type=case.kind,
    )

    code, out = convert(path)

    assert code == 0
    spike = json5.loads(out.read_text())["datasets"]["train"]["spike"]
    assert spike["representation"] == case.expected
    assert spike.get("center") == case.center


@dataclass(frozen=True)
class Totals:
    """Totals for 5 GPUs in a file of S-VRT, and what the new file must say for each GPU."""

    batch: int  # clips of a batch
    workers: int  # loader processes
    batch_per_gpu: int
    workers_per_gpu: int
    # Number of totals that are no multiple of 5. Only these change, and the output names each one.
    changed_totals: int


@pytest.mark.parametrize(
    "case",
    [
        # 3 clips for 5 GPUs are less than one clip per GPU, but each GPU needs a clip. 64 workers
        # for 5 GPUs are 12.8 per GPU, rounded down to 12.
        pytest.param(
            Totals(batch=3, workers=64, batch_per_gpu=1, workers_per_gpu=12, changed_totals=2),
            id="no multiples of 5",
        ),
        # With 0 loader processes, the main process reads the data. So 0 stays 0 for each GPU.
        pytest.param(
            Totals(batch=10, workers=0, batch_per_gpu=2, workers_per_gpu=0, changed_totals=0),
            id="no loader processes",
        ),
        pytest.param(
            Totals(batch=5, workers=5, batch_per_gpu=1, workers_per_gpu=1, changed_totals=0),
            id="one for each GPU",
        ),
    ],
)
def test_the_output_names_each_total_that_is_no_multiple_of_the_number_of_gpus(
    tmp_path, capsys, case
):
    # The keys of write_svrt have two underscores for each dot: datasets.train.dataloader_...
    path = write_svrt(
        tmp_path,
        gpu_ids=[0, 1, 2, 3, 4],
        datasets__train__dataloader_batch_size=case.batch,
        datasets__train__dataloader_num_workers=case.workers,
    )

    code, out = convert(path)

    assert code == 0
    section = json5.loads(out.read_text())["datasets"]["train"]
    assert section["dataloader_batch_size"] == case.batch_per_gpu
    assert section["dataloader_num_workers"] == case.workers_per_gpu
    # The totals are named below the heading "cannot be said" of the output.
    _, cannot_be_said = capsys.readouterr().out.split("cannot be said")
    assert cannot_be_said.count("in all is no multiple of 5 GPUs") == case.changed_totals


# ---- Files with problems ----

# The 11 problems of the file of `with_problems`: key of S-VRT's file -> a value that the program
# refuses. A comment says why the value is refused. The error must name all 11 problems, and its
# advice must solve them. Seven problems are solved by --drop alone. The four problems with a * need
# a new value, of this key or of another key (CHOSEN_VALUES below).
PROBLEMS = {
    "train.lora_rank": 8,  # not a key that we know
    "train.total_iter": "many",  # * no number
    "datasets.train.gt_size": [224, 192],  # * our crops are squares
    # This value contradicts `spike.reconstruction.type` of the published file, "spikecv_tfp".
    "datasets.train.spike_reconstruction": "spikecv_tfi",
    "netG.input_mode": "dual",  # * a network that we do not have
    "netG.optical_flow.module": "scflow",  # * a network of flow that we do not have
    "netG.depth": [8],  # misspelt: the key is `depths`
    "datasets.train.spike.cache": "ram",  # not a key that we know
    "datasets.train.spike.reconstruction.theta": 2,  # not a parameter of "spikecv_tfp"
    "datasets.train.spike_channels": 5,  # contradicts `num_bins` of the published file, 4
    "in_memory": True,  # not a key that we know
}


@pytest.fixture(scope="module")
def with_problems(tmp_path_factory) -> Path:
    """Give the published file with the eleven PROBLEMS."""
    changes = {key.replace(".", "__"): value for key, value in PROBLEMS.items()}
    return write_svrt(tmp_path_factory.mktemp("with_problems"), **changes)


@pytest.fixture(scope="module")
def refusal(with_problems) -> Conversion:
    """Give what the program did with the file of PROBLEMS."""
    return convert_and_capture(with_problems)


def test_a_file_with_problems_is_not_converted(with_problems, tmp_path):
    # The fixture `refusal` calls `convert`, which writes its file elsewhere. So no other test can
    # have written this file.
    out = tmp_path / "new.json"

    code = main([str(with_problems), "--out", str(out)])

    assert code == EXIT_REFUSED
    assert not out.exists()


def test_the_problems_of_a_file_are_named_at_once(refusal):
    assert refusal.errors.count("OptionError") == 1
    assert "11 problems in the option file" in refusal.errors, refusal.errors
    for key in PROBLEMS:
        assert f"    {key}" in refusal.errors, key


# A person who follows the advice chooses these values. The values solve the four PROBLEMS with a *:
# two keys get another value, and two keys are replaced by another key.
CHOSEN_VALUES = {
    "train.total_iter": 10,
    "datasets.train.gt_size": 192,
    # This key takes the place of netG.optical_flow.module. null: the network of flow starts without
    # pretrained weights.
    "netG.spynet_path": "null",
    # This key takes the place of netG.input_mode. "concat": the spikes are additional channels of
    # the input.
    "netG.fusion": "concat",
}


def advice_in(printed: str) -> str:
    """Return the lines with the advice of an error, e.g. "      do: give --drop netG.depth"."""
    lines = printed.splitlines()
    return "\n".join(line for line in lines if line.startswith("      do: "))


def keys_to_drop(advice: str) -> list[str]:
    """Return the keys that an advice says to drop.

    E.g. "do: give --drop a.b c.d, and give x=1" -> ["a.b", "c.d"]: the keys end at a comma or at
    the end of the line.
    """
    dropped = []
    for keys in re.findall(r"--drop ([^,\n]+)", advice):
        dropped += keys.split()
    return dropped


@pytest.mark.parametrize("key", CHOSEN_VALUES)
def test_the_advice_names_each_key_that_needs_a_value(refusal, key):
    assert f"give {key}=" in advice_in(refusal.errors)


def test_a_file_is_converted_after_its_advice_was_followed(refusal, with_problems, capsys):
    dropped = keys_to_drop(advice_in(refusal.errors))
    overrides = [f"{key}={value}" for key, value in CHOSEN_VALUES.items()]

    code, out = convert(with_problems, *overrides, "--drop", *dropped)

    assert code == 0, capsys.readouterr().err
    opt = load_options(out, [], parts=PARTS)
    assert opt.train.total_iter == 10
    assert options_of_part(opt.datasets.train).gt_size == 192
    assert options_of_part(opt.netG).fusion.type == "concat"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("a.json", "{,}", id="no JSON"),
        pytest.param("a.yml", "a: [1", id="no YAML"),
        pytest.param("a.json", "[1]", id="a list"),
        pytest.param("a.json", "{}", id="no keys"),
    ],
)
def test_what_is_no_option_file_is_refused(tmp_path, capsys, name, text):
    (tmp_path / name).write_text(text)

    code, out = convert(tmp_path / name)

    assert code == EXIT_REFUSED
    assert not out.exists()
    assert "OptionError" in capsys.readouterr().err


# ---- Other forms of a file ----


def test_pyyaml_is_asked_for_if_it_is_missing(tmp_path, capsys, monkeypatch):
    (tmp_path / "svrt.yml").write_text("netG: {}")
    monkeypatch.setitem(sys.modules, "yaml", None)  # as if it were not installed

    code, _ = convert(tmp_path / "svrt.yml")

    assert code == EXIT_REFUSED
    assert "pip install pyyaml" in capsys.readouterr().err


def test_a_yaml_file_is_read_with_its_numbers(tmp_path):
    yaml = pytest.importorskip("yaml")
    values = json.loads(write_svrt(tmp_path, train__E_decay=0.9).read_text())
    # PyYAML reads 4e-4 as a text, because the number has no decimal point. The program must read it
    # as a number.
    text = yaml.safe_dump(values).replace("G_optimizer_lr: 0.0004", "G_optimizer_lr: 4e-4")
    assert "4e-4" in text
    (tmp_path / "svrt.yml").write_text(text)

    code, out = convert(tmp_path / "svrt.yml")

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
    assert code == EXIT_REFUSED
    for key in misspelt:
        assert key in printed


def test_another_ending_of_the_new_file_is_refused(tmp_path, capsys):
    path = write_file(tmp_path / "kair.json", options_of("006"))

    code = main([str(path), "--out", str(tmp_path / "converted.txt")])

    assert code == EXIT_REFUSED
    assert "another ending" in capsys.readouterr().err


def test_no_file_is_overwritten(tmp_path, capsys):
    (tmp_path / "converted.json").write_text("mine")

    code, out = convert(write_svrt(tmp_path))

    assert code == EXIT_REFUSED
    assert out.read_text() == "mine"
    assert "no file is overwritten" in capsys.readouterr().err
