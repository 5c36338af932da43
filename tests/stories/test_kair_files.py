"""KAIR's nine option files for training VRT. Each kind of file is trained, resumed and tested.

The tests write the option files from tests/data/kair_options.json, and small data sets in KAIR's
layouts beside them (tests/helpers/kair_files.py). The second half of this file is about two kinds
of data that only these option files use. Septuplets are clips of seven frames, from the data set
Vimeo-90K. The other kind is clips to which noise is added.

What is tested: utils/options/ reads the files, data/dataset_video.py has KAIR's datasets, and
models/select_network.py refuses a network that does not fit the datasets.
"""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
import torch

import main_test_vrt
import main_train_vrt
from data.dataset_video import jitter_colors
from data.select_dataset import build_dataset
from models.select_network import define_G
from tests.dist.launching import RankResult
from tests.helpers.checked import options_of_part, read_picture
from tests.helpers.clip_files import check_clips
from tests.helpers.kair_files import (
    NAMES,
    clip_pictures,
    options_of,
    paths_in_folder,
    shrink_options,
    write_data,
    write_file,
    write_files,
)
from tests.helpers.train_files import history, train
from tests.helpers.weights_files import save_weights
from utils.errors import DataError, OptionError
from utils.options.kair_keys import KAIR_ONLY

# The address of published weights in messages.
ADDRESS = "https://github.com/JingyunLiang/VRT/releases/tag/v0.0"
# The path in KAIR's files for the weights of the network of optical flow. This project does not
# have these weights.
SPYNET = "model_zoo/vrt/spynet_sintel_final-3d2a1287.pth"
# Exit codes.
WRONG_OPTIONS = 2
WRONG_DATA = 3  # also for a missing file
# Dotted keys of KAIR's files that have no effect here, and are left out.
NO_EFFECT = {f"{section}.{key}" for section, keys in KAIR_ONLY.items() for key in keys}


# ---- Reading the files ----


def read_training_options(path: Path, *overrides: str) -> Any:
    """Return the options of a file as main_train_vrt.py reads them."""
    return main_train_vrt.read_options(["--opt", str(path), *overrides])


def value_at(tree: dict[str, Any], dotted_key: str) -> Any:
    """Return a value of nested sections, e.g. "netG.img_size" -> tree["netG"]["img_size"]."""
    value: Any = tree
    for name in dotted_key.split("."):
        value = value[name]
    return value


@pytest.mark.parametrize("name", NAMES)
def test_the_files_of_kair_load_unchanged(tmp_path, name):
    assert not Path(SPYNET).exists()
    options = options_of(name)

    found = read_training_options(write_file(tmp_path / f"{name}.json", options)).plain()

    # val_partition is in NO_EFFECT, but some datasets of this project read this key. So its value
    # must be loaded.
    left_out = NO_EFFECT - {"datasets.train.val_partition"}
    for key, value in options.items():
        if key not in left_out:
            assert value_at(found, key) == value, key


def write_short_run(folder: Path, number: str, **changes: Any) -> Path:
    """Write the option file with this number for a short run, and its data. Return its path.

    The data and the network are small. The task and the folder of the results have the name "run".
    No weights are loaded. changes: dotted keys of the options -> their new values.
    """
    options = shrink_options(options_of(number))
    options["task"] = "run"
    options["path.pretrained_netG"] = None
    options.update(changes)
    write_data(folder, options)
    return write_file(folder / "options.json", paths_in_folder(folder, options))


# ---- Training, resuming and testing ----


def results_of_test(out: Path, options: Path, *arguments: str) -> dict[str, Any]:
    """Run main_test_vrt.py. Return its metrics.json.

    out: folder of the results. arguments: additional arguments. By default the best checkpoint of
    the training is tested.
    """
    command = ["--opt", str(options), "--output", str(out), "--save", "frames", *arguments]
    assert main_test_vrt.main(command) == 0
    return json.loads((out / "metrics.json").read_text())


def train_resume_and_test(
    options: Path, frames: int, *overrides: str, ranks: int = 1
) -> RankResult:
    """Train one step, resume for a second step, then test. Check the results of all three programs.

    options: an option file of `write_short_run`, with 2 steps and a validation after each step.
    frames: number of restored frames of the two test clips. overrides: options of the command line.

    Return the run of the first step.
    """
    first = train(options, "train.total_iter=1", *overrides, ranks=ranks)
    second = train(options, *overrides, ranks=ranks)
    tested = results_of_test(options.parent / "tested", options)

    assert first.exit_codes == [0] * ranks, first.text
    assert second.exit_codes == [0] * ranks, second.text
    assert "at iter 1" in second.text
    assert_stand_in_of_the_flow_is_told(options, first, second)
    assert_totals_of_kair_are_told(first, ranks)
    assert_test_finds_the_best_validation(options, tested["averages"]["restored"], frames)
    return first


def assert_totals_of_kair_are_told(run: RankResult, ranks: int) -> None:
    """Check that a run on several ranks says once that KAIR's numbers of the loader are totals.

    The warning begins with the reason why the file is taken for a file of KAIR: it has keys that
    only KAIR has. A run on one rank gives no such warning.
    """
    times = 1 if ranks > 1 else 0
    warning = f"dataloader_batch_size 1 x {ranks} ranks = {ranks} in all, in KAIR 1"
    assert run.text.count(warning) == times
    assert run.text.count("keys that only KAIR has") == times


def assert_test_finds_the_best_validation(
    options: Path, scores: dict[str, Any], frames: int
) -> None:
    """Check that each of the 2 steps has a loss and a validation, and that the test agrees.

    scores: the scores of the restored frames in metrics.json. frames: number of these frames.
    """
    curves = history(options)
    assert steps_of(curves["train/loss"]) == [1, 2]
    assert steps_of(curves["val/psnr"]) == [1, 2]
    # The test restores with the weights of the best validation, so both PSNRs must agree.
    best = max(psnr for _, psnr in curves["val/psnr"])
    assert scores["psnr"] == pytest.approx(best, abs=1e-6)
    assert scores["clips_found"] == 2
    assert scores["complete"] is True
    assert scores["frames"] == frames


def steps_of(curve: list[list[float]]) -> list[float]:
    """Return the steps of a curve, a list of [step, value]."""
    return [step for step, _ in curve]


def assert_stand_in_of_the_flow_is_told(options: Path, *runs: RankResult) -> None:
    """Check that each run says once that the flow network of this project replaces KAIR's.

    A network with pa_frames 0 (no parallel warping) has no flow network, so there is no warning.
    """
    times = 1 if read_training_options(options).netG.pa_frames else 0
    warning = (
        f"WARNING: netG.spynet_path: no file {SPYNET}; "
        "models/vrt/spynet_scenes.pth of this project stands in"
    )
    for run in runs:
        assert run.text.count(warning) == times
    assert runs[0].text.count(ADDRESS) == times
    log = (options.parent / "experiments/run/log/train.log").read_text()
    assert (warning in log) == (times == 1)


# The number of an option file, and the number of frames that its test restores. There are two test
# clips of three frames each. For file 009 the clips have seven frames, and the network makes the
# fourth frame.
@pytest.mark.parametrize(
    ("number", "frames"),
    [
        # This case is slow, because `make test` has shorter tests of a file that enlarges by 4.
        # The shorter tests use file 003, and have "vimeo_x4" and "pad_sequence" in their names.
        pytest.param("001", 6, id="REDS x4", marks=pytest.mark.slow),
        # This case is slow, because the next test is a shorter test of the same file.
        pytest.param("008", 6, id="noise", marks=pytest.mark.slow),
        pytest.param("009", 2, id="interpolation"),
    ],
)
def test_each_kind_trains_validates_resumes_and_is_tested(number, frames, tmp_path):
    train_resume_and_test(write_short_run(tmp_path, number), frames)


def test_a_file_with_noise_trains_and_validates(tmp_path):
    options = write_short_run(tmp_path, "008")

    run = train(options, "train.total_iter=1")

    assert run.exit_codes == [0], run.text
    curves = history(options)
    assert steps_of(curves["train/loss"]) == [1]
    assert steps_of(curves["val/psnr"]) == [1]


def list_of_clips(split: str) -> str:
    """Return the option for a list of the clips of GoPro. This project does not have these lists.

    split: a part of the name of the list. KAIR has a list for "train", but no list for the
    misspelt "trian".
    """
    return f"datasets.train.meta_info_file=data/meta_info/meta_info_GoPro_{split}_GT.txt"


def assert_folders_are_taken_for_the_list(run: RankResult) -> None:
    """Check that a run of file 006 says once that it trains on all clips in the folders."""
    message = "the list of the clips is missing: all 2 in the folders are used, KAIR's list has 22"
    assert run.text.count(message) == 1
    # Each of the two training clips has 6 frames: 2 x 6 = 12.
    assert "2 clips, 12 frames of 64 x 80" in run.text


def test_deblurring_on_two_ranks_takes_the_folders_for_a_missing_list_of_kair(tmp_path):
    options = write_short_run(tmp_path, "006")

    run = train(options, list_of_clips("train"), "train.total_iter=1", "datasets.test={}", ranks=2)

    assert run.exit_codes == [0, 0], run.text
    assert_folders_are_taken_for_the_list(run)
    assert_totals_of_kair_are_told(run, ranks=2)
    assert_stand_in_of_the_flow_is_told(options, run)


# This test is slow, because `make test` does the same with other files, on one rank.
@pytest.mark.slow
def test_deblurring_on_two_ranks_trains_validates_resumes_and_is_tested(tmp_path):
    options = write_short_run(tmp_path, "006")

    frames = 6  # all frames of the two test clips
    run = train_resume_and_test(options, frames, list_of_clips("train"), ranks=2)

    assert_folders_are_taken_for_the_list(run)


def test_a_list_of_clips_that_kair_does_not_have_is_refused(tmp_path):
    run = train(write_short_run(tmp_path, "006"), list_of_clips("trian"))

    assert run.exit_codes == [WRONG_DATA]
    assert "cannot read the meta file" in run.text


def test_weights_of_the_flow_that_kair_does_not_have_are_refused(tmp_path):
    run = train(write_short_run(tmp_path, "006"), f"netG.spynet_path={SPYNET}.pht")

    assert run.exit_codes == [WRONG_OPTIONS]
    assert f"no file {SPYNET}.pht" in run.text
    assert ADDRESS in run.text


# File 003 starts from the weights that file 002 trained.
PUBLISHED = "002_VRT_videosr_bi_REDS_16frames.pth"


def test_missing_published_weights_are_named_with_their_address(tmp_path):
    run = train(write_short_run(tmp_path, "003", **{"path.pretrained_netG": PUBLISHED}))

    assert run.exit_codes == [WRONG_DATA]
    assert run.text.count("no such weights file") == 1, run.text
    _, _, rest = run.text.partition("no such weights file")
    assert f"download: {ADDRESS}" in rest


def test_vimeo_x4_starts_from_weights_of_another_deformable_convolution(tmp_path):
    options = write_short_run(tmp_path, "003", **{"path.pretrained_netG": PUBLISHED})
    # The network of 002 has another number of deformable groups. File 003 has G_param_strict false,
    # so it may start from weights that do not fit everywhere.
    net = define_G(read_training_options(options, "netG.deformable_groups=2"))
    torch.save({"params": net.state_dict()}, tmp_path / PUBLISHED)

    run = train(options, "train.total_iter=1")

    assert run.exit_codes == [0], run.text
    assert steps_of(history(options)["val/psnr"]) == [1]
    assert_stand_in_of_the_flow_is_told(options, run)
    # The network has 7 stages. In each stage, one convolution computes the offsets. Its weight and
    # its bias do not fit. These are 7 x 2 = 14 tensors.
    assert "mismatched (14): stage" in run.text
    assert "tensors matched" in run.text


def test_frames_of_another_scale_than_the_network_are_named_before_the_first_step(tmp_path):
    # Give the sharp frames as blurry frames, too. The network enlarges by 4, so it expects blurry
    # frames with a quarter of the height and width.
    gt = options_of("001")["datasets.train.dataroot_gt"]

    run = train(write_short_run(tmp_path, "001", **{"datasets.train.dataroot_lq": gt}))

    assert run.exit_codes == [WRONG_DATA]
    assert run.text.count("gt of 64 x 80 for lq of 64 x 80 in clip 001, but scale is 4") == 1


# ---- Testing ----


def psnr_by_hand(image: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the PSNR of an image (3, H, W) against its reference, in dB.

    Both images have values from 0 to 1. The image is rounded to whole numbers from 0 to 255, as in
    a written file.
    """
    error = (image * 255).round() - reference * 255
    root_mean_square = (error.double() ** 2).mean().sqrt()
    return float(20 * torch.log10(255 / root_mean_square))


def read_rgb(path: Path) -> torch.Tensor:
    """Return a picture as (3, H, W) in RGB, with values from 0 to 255."""
    bgr = read_picture(path)
    rgb = torch.from_numpy(bgr[..., ::-1].copy())  # (H, W, 3)
    return rgb.permute(2, 0, 1)


class InterpolatedClip(NamedTuple):
    """A clip of seven frames. File 009 makes the fourth frame from frames 1, 3, 5 and 7."""

    frames: torch.Tensor  # the frames of the clip (7, 3, H, W), from 0 to 1
    by_hand: torch.Tensor  # the fourth frame (3, H, W), computed without the program
    out: Path  # folder of the frames that the program has written
    scores: dict[str, Any]  # the scores of the clip


@pytest.fixture(scope="module")
def interpolated_clip(tmp_path_factory) -> InterpolatedClip:
    """Give a clip of file 009 after a test with random weights."""
    folder = tmp_path_factory.mktemp("interpolated")
    options = write_short_run(folder, "009")
    opt = read_training_options(options)
    net = define_G(opt).eval()
    # In a fresh network the weights of the last layer are 0, and its output is only a mean of the
    # input. So give this layer random weights. Their standard deviation 0.02 is chosen by hand.
    torch.nn.init.normal_(net.get_parameter("conv_last.weight"), 0, 0.02)
    weights = folder / "G.pth"
    torch.save({"params": net.state_dict()}, weights)
    found = results_of_test(folder / "out", options, "--weights", str(weights))

    name = "00001/0266"
    clip = Path(options_of_part(opt.datasets.test).dataroot_gt) / name
    pictures = [read_rgb(clip / f"im{number}.png") for number in range(1, 8)]
    frames = torch.stack(pictures) / 255  # (7, 3, H, W)
    with torch.no_grad():
        given = frames[None, ::2]  # (1, 4, 3, H, W): every second frame, im1, im3, im5 and im7
        by_hand = net(given)[0, 0].clamp(0, 1)
    return InterpolatedClip(frames, by_hand, folder / "out" / name, found["clips"][name])


def test_the_interpolated_frame_is_the_fourth_of_seven(interpolated_clip):
    assert [path.name for path in interpolated_clip.out.iterdir()] == ["im4.png"]
    written = read_rgb(interpolated_clip.out / "im4.png")
    # The written frame is rounded to whole values. This may change a value by 1.
    assert abs(written - 255 * interpolated_clip.by_hand).max() <= 1


def test_the_interpolated_frame_is_compared_with_the_fourth(interpolated_clip):
    # Frame 3 is the fourth one. `psnr_by_hand` rounds the frame to 8 bits, as a written frame is.
    expected = psnr_by_hand(interpolated_clip.by_hand, interpolated_clip.frames[3])

    assert interpolated_clip.scores["restored"]["psnr"] == pytest.approx(expected, abs=0.01)


def test_the_input_of_an_interpolation_is_scored_as_the_mean_of_the_two_neighbours(
    interpolated_clip,
):
    third, fourth, fifth = interpolated_clip.frames[2:5]

    expected = psnr_by_hand((third + fifth) / 2, fourth)

    assert interpolated_clip.scores["input"]["psnr"] == pytest.approx(expected, abs=0.1)


@pytest.fixture
def septuplet_test(tmp_path):
    """Give the paths of two files: an option file, and weights of its network.

    The option file is file 003, but with a test on clips of seven frames.
    """
    # File 009 tests on septuplets. So take its test set, with other folders: sharp frames in gt,
    # and frames that are to be enlarged in lq. temporal_scale 1 gives the network every frame.
    changes = {}
    for key, value in options_of("009").items():
        if key.startswith("datasets.test."):
            changes[key] = value
    changes["datasets.test.dataroot_gt"] = "testsets/vimeo90k/gt"
    changes["datasets.test.dataroot_lq"] = "testsets/vimeo90k/lq"
    changes["datasets.test.temporal_scale"] = 1
    options = write_short_run(tmp_path, "003", **changes)
    return options, save_weights(options, tmp_path / "G.pth")


def test_pad_sequence_of_a_test_clip_restores_with_an_eighth_frame_and_scores_seven(
    septuplet_test, tmp_path
):
    options, weights = septuplet_test

    def scores(name: str, *overrides: str) -> dict[str, Any]:
        found = results_of_test(tmp_path / name, options, "--weights", weights, *overrides)
        return found["clips"]["00002/0008"]["per_frame"]

    padded = scores("a", "datasets.test.pad_sequence=true")

    assert len(padded["restored"]["psnr"]) == 7
    # This project's option val.pad_seq does the same as KAIR's option, so the scores are equal.
    # Without the eighth frame the scores differ.
    assert padded == scores("b", "val.pad_seq=true")
    assert padded != scores("c")


# ---- Warnings and refusals ----

BATCH = "datasets.train.dataloader_batch_size"
WORKERS = "datasets.train.dataloader_num_workers"


@pytest.fixture
def totals(tmp_path):
    """Give file 006 with a batch of 8 and 1 loader process.

    In KAIR's files, these two numbers are totals: all GPUs share them. `note_on_totals` returns the
    note of a run about this, or "".
    """
    return write_short_run(tmp_path, "006", **{BATCH: 8})


def test_totals_of_kair_are_named_with_the_numbers_for_each_rank(totals):
    # A batch of 8 is 2 for each of 4 ranks. Each rank needs at least one loader process.
    assert f"{BATCH}=2 {WORKERS}=1" in read_training_options(totals).note_on_totals(ranks=4)


def test_one_rank_gets_no_note_on_totals(totals):
    assert read_training_options(totals).note_on_totals(ranks=1) == ""


def test_a_total_that_the_ranks_cannot_share_evenly_is_named(totals):
    message = "a batch of 8 cannot be divided evenly among 3 ranks"
    assert message in read_training_options(totals).note_on_totals(ranks=3)


def test_a_number_from_the_command_line_is_no_total(totals):
    note = read_training_options(totals, f"{WORKERS}=4").note_on_totals(ranks=4)

    # The batch still comes from the file. The number of loader processes is no total any more.
    assert f"{BATCH}=2" in note
    assert WORKERS not in note
    assert read_training_options(totals, f"{WORKERS}=4", f"{BATCH}=2").note_on_totals(ranks=4) == ""


def test_a_file_with_keys_of_older_versions_of_this_project_does_not_count_as_kairs(tmp_path):
    options = shrink_options(options_of("006"))
    without_keys_of_kair = {}
    for key, value in options.items():
        if key not in NO_EFFECT:
            without_keys_of_kair[key] = value
    without_keys_of_kair["datasets.train.spike_channels"] = 0  # a key of older versions

    path = write_file(tmp_path / "options.json", without_keys_of_kair)

    assert read_training_options(path).note_on_totals(ranks=4) == ""


def test_missing_data_are_named_all_at_once_with_the_layout_expected(tmp_path):
    options = shrink_options(options_of("009"))
    options["task"] = "run"

    run = train(write_file(tmp_path / "options.json", paths_in_folder(tmp_path, options)))

    assert run.exit_codes == [WRONG_DATA], run.text
    assert run.text.count("DataError") == 1, run.text
    for line in (
        "trainsets/vimeo90k/vimeo90k_train_GT_all.lmdb/data.mdb  a file under each key "
        "00001/0001/im1",
        "vimeo90k_train_GT_all.lmdb/meta_info.txt  a line for each key: "
        "00001/0001/im1.png (<height>,<width>,3) 1",
        "testsets/vimeo90k/vimeo_septuplet/sequences/00001/0001/im1.png",
        "meta_info_Vimeo90K_train_GT.txt  a line for each clip: "
        "00001/0001 <frames> (<height>,<width>,3)",
        "meta_info_Vimeo90K_test_GT.txt  a line for each clip",
    ):
        assert line in run.text
    expected = (
        "correct meta_info_file; "
        "download: https://github.com/cszn/KAIR/tree/master/data/meta_info; "
        "correct the dataroot in the options, or make or copy the data (docs/data_format.md); "
        "download: http://toflow.csail.mit.edu/"
    )
    # The advice is the line after "do".
    _, _, rest = run.text.partition("\n  do ")
    assert rest.splitlines()[0].strip() == expected


# number: the option file. 006 is for deblurring, 008 for denoising, 009 for frame interpolation. A
# network with pa_frames 0 makes new frames.
@pytest.mark.parametrize(
    ("number", "overrides", "message"),
    [
        ("009", ["datasets.train.num_frame=5"], "datasets.train.num_frame is 5"),
        ("009", ["datasets.test.temporal_scale=1"], "datasets.test is VideoTestVimeo90KDataset"),
        ("009", ["val.flip_seq=true"], "val.flip_seq"),
        ("009", ["netG.pa_frames=2", "netG.deformable_groups=2"], "restores every frame"),
        ("009", ["netG.out_chans=6"], "netG.out_chans is 6"),
        ("006", ["netG.pa_frames=0", "netG.spynet_path=null"], "the network makes new frames"),
        ("008", ["netG.nonblind_denoising=false"], "gives a noise map"),
        ("008", ["datasets.test.sigma=null"], "the test clips have no noise"),
    ],
)
def test_a_network_and_datasets_for_different_tasks_are_refused(
    tmp_path, number, overrides, message
):
    path = write_file(tmp_path / "options.json", shrink_options(options_of(number)))

    with pytest.raises(OptionError, match=message):
        read_training_options(path, *overrides)


# ---- Septuplets ----

# The three septuplets of the data. The meta file lists the first and the last septuplet.
FIRST = "00001/0001"
NOT_LISTED = "00001/0002"
LAST = "00096/0936"
STEMS = ["im1", "im2", "im3", "im4", "im5", "im6", "im7"]


def grey(number: int, size: tuple[int, int]) -> bytes:
    """Return the picture of a frame. Its grey level is 30 x its number: 30 for im1, 60 for im2."""
    picture = np.full((*size, 3), 30 * number, np.uint8)
    _, encoded = cv2.imencode(".png", picture)
    return encoded.tobytes()


def septuplets(size: tuple[int, int]) -> dict[str, bytes]:
    """Return the pictures of all septuplets by their path, e.g. "00001/0001/im1.png"."""
    files = {}
    for clip in (FIRST, NOT_LISTED, LAST):
        for number, stem in enumerate(STEMS, start=1):
            files[f"{clip}/{stem}.png"] = grey(number, size)
    return files


@pytest.fixture
def root(tmp_path):
    """Give a folder with the septuplets and a meta file.

    gt, gt.lmdb   sharp septuplets of 96 x 128, as a folder and as an LMDB
    lq, lq.lmdb   septuplets with a quarter of the height and width, 24 x 32
    meta.txt      the list of the clips, without NOT_LISTED
    """
    for kind, size in (("gt", (96, 128)), ("lq", (24, 32))):
        files = septuplets(size)
        write_files(tmp_path / kind, files)
        write_files(tmp_path / f"{kind}.lmdb", files)
    (tmp_path / "meta.txt").write_text(f"{FIRST} 7 (96,128,3)\n{LAST} 7 (96,128,3)\n")
    return tmp_path


# Names of datasets in KAIR's files. Each is the name of a class of KAIR.
SUPER_RESOLUTION = "VideoRecurrentTrainVimeoDataset"
INTERPOLATION = "VideoRecurrentTrainVimeoVFIDataset"
TEST = "VideoTestVimeo90KDataset"


def section_of(root, name=SUPER_RESOLUTION, end="", lq="lq", **changes):
    """Return a section `datasets.train` or `datasets.test` on the septuplets of `root`.

    name: class of the dataset. end: "" for folders, ".lmdb" for LMDBs.
    lq: folder of the input. For interpolation it is "gt", because the input is sharp frames.
    changes: additional keys.
    """
    section = {
        "dataset_type": name,
        "dataroot_gt": f"{root}/gt{end}",
        "dataroot_lq": f"{root}/{lq}{end}",
        "meta_info_file": f"{root}/meta.txt",
        "num_frame": 7,
    }
    if name != TEST:
        section["gt_size"] = 32  # side of the crops
    if end:
        section["io_backend"] = {"type": "lmdb"}
    return section | changes


def build(root, name=SUPER_RESOLUTION, **changes):
    """Return the dataset of `section_of`."""
    split = "test" if name == TEST else "train"
    return build_dataset(section_of(root, name, **changes), split, seed=0)


def numbers(frames: torch.Tensor) -> list[int]:
    """Return the number of each frame (n, 3, H, W): 1 for im1, 2 for im2, ...

    `grey` gives frame n the level 30 n of 255, so a value x in 0 ... 1 belongs to frame 255 x / 30.
    """
    found = []
    for frame in frames:
        assert frame.unique().numel() == 1  # one grey level
        found.append(round(float(frame.mean()) * 255 / 30))
    return found


@pytest.fixture(params=["", ".lmdb"], ids=["folders", "LMDB"])
def end(request):
    """Give the ending of the names of the data: "" for folders, ".lmdb" for LMDBs.

    Each test that takes `end` runs twice.
    """
    return request.param


# `root` has three septuplets, as folders and as LMDBs, and a meta file that lists two of them.
def test_a_listed_septuplet_is_one_sample_and_is_padded_to_eight_frames(root, end):
    dataset = build(root, end=end, pad_sequence=True)

    assert len(dataset) == 2
    for index, clip in enumerate((FIRST, LAST)):
        sample = dataset[(0, index)]  # epoch, index
        assert sample["key"] == f"{clip}/im1"
        # Sharp crops are 32 x 32 (gt_size). The input is a quarter as large: 8 x 8.
        assert sample["lq"].shape == (8, 3, 8, 8)
        assert sample["gt"].shape == (8, 3, 32, 32)
        # A septuplet has 7 frames. The last frame comes twice, so that the sample has 8 frames.
        assert numbers(sample["lq"]) == [1, 2, 3, 4, 5, 6, 7, 7]
        assert numbers(sample["gt"]) == [1, 2, 3, 4, 5, 6, 7, 7]


def test_a_sample_of_fewer_frames_has_the_middle_frames_of_a_septuplet(root, end):
    sample = build(root, end=end, num_frame=5)[(0, 0)]

    assert numbers(sample["lq"]) == [2, 3, 4, 5, 6]


# The order of the frames is drawn for each epoch: forward or backward. Twelve epochs show both
# orders. The chance that all 12 draws are equal is 2 / 2^12, one in 2048, and the seed is fixed.
EPOCHS = range(12)


def test_in_reversed_time_the_frame_that_is_played_last_is_repeated(root, end):
    dataset = build(root, end=end, pad_sequence=True, random_reverse=True)

    orders = {tuple(numbers(dataset[(epoch, 0)]["lq"])) for epoch in EPOCHS}

    assert orders == {(1, 2, 3, 4, 5, 6, 7, 7), (7, 6, 5, 4, 3, 2, 1, 1)}


def test_interpolation_gets_every_second_frame_and_the_middle_frame_as_target(root, end):
    dataset = build(root, INTERPOLATION, end=end, lq="gt", temporal_scale=2, random_reverse=True)

    samples = [dataset[(epoch, 1)] for epoch in EPOCHS]

    # The input is im1, im3, im5 and im7. The network must make im4 from them, so im4 is the target.
    orders = {tuple(numbers(sample["lq"])) for sample in samples}
    assert orders == {(1, 3, 5, 7), (7, 5, 3, 1)}
    for sample in samples:
        assert numbers(sample["gt"]) == [4]


def test_a_test_clip_has_all_seven_frames(root):
    dataset = build(root, TEST, lq="gt", temporal_scale=2)

    clips = dataset.readers()

    assert [clip.name for clip in clips] == [FIRST, LAST]
    assert list(clips[1].stems) == STEMS
    frames = [clips[1].frame(index)["gt"] for index in range(7)]
    assert numbers(torch.stack(frames)) == [1, 2, 3, 4, 5, 6, 7]


def test_folders_that_the_meta_file_does_not_list_are_not_looked_at(root):
    shutil.rmtree(root / "lq" / NOT_LISTED)

    # The missing folder is not in the list, so both data sets open. `count_folders` returns 0,
    # because it does not look at the folders.
    assert len(build(root)) == 2
    assert build(root, TEST, lq="gt", temporal_scale=2).count_folders() == 0


def test_a_missing_frame_of_a_listed_septuplet_is_named(root):
    (root / "lq" / LAST / "im4.png").unlink()

    with pytest.raises(DataError, match=r"00096/0936 +\| lq lacks 1 of 7 frames: im4\.png"):
        build(root)


def test_a_missing_folder_of_a_listed_septuplet_is_named(root):
    shutil.rmtree(root / "lq" / LAST)

    with pytest.raises(DataError, match=r"00096/0936 .*lq has no folder"):
        build(root)


# end: ending of the names of the data. missing: how the error names the septuplet without data.
# example: the name of a frame that the error gives as an example of what is expected.
@pytest.mark.parametrize(
    ("end", "missing", "example"),
    [
        ("", "folder 00009/0009", "00001/0001/im1.png"),
        (".lmdb", "key 00009/0009/<frame>", "00001/0001/im1"),
    ],
    ids=["folders", "LMDB"],
)
def test_a_listed_septuplet_without_data_is_named_with_its_frames_and_the_meta_list(
    root, end, missing, example
):
    with (root / "meta.txt").open("a") as file:
        file.write("00009/0009 7 (96,128,3)\n")

    with pytest.raises(DataError) as error:
        build(root, end=end)

    text = str(error.value)
    assert f"lq has no {missing}" in text
    assert f"gt has no {missing}" in text
    assert "im1 ... im7 of every listed clip, each with its lq and gt file" in text
    _, _, from_expected_on = text.partition("expected")
    assert example in from_expected_on
    assert f"restore these files, or remove the clips from the meta list {root}/meta.txt" in text
    # The message must have no words that only fit data sets with spikes, or folders without a list.
    for word in ("blur", "sharp", "spike", "from the folders"):
        assert word not in text


@pytest.fixture
def root_with_a_small_frame(root):
    """Give `root`, with a frame of the last septuplet half as large as the other frames."""
    (root / "lq" / LAST / "im2.png").write_bytes(grey(2, (12, 16)))
    return root


# Vimeo-90K has 64,612 septuplets, and reading all their headers would take minutes. So opening a
# data set reads only the size of the first clip. A frame of another size is found when it is read.
def test_a_frame_of_another_size_is_refused_when_it_is_read(root_with_a_small_frame):
    dataset = build(root_with_a_small_frame)

    with pytest.raises(DataError, match="frame of 12 x 16"):
        dataset[(0, 1)]  # epoch 0, sample 1: the last septuplet


def test_checking_all_files_finds_a_frame_of_another_size(root_with_a_small_frame):
    report = check_clips(section_of(root_with_a_small_frame))

    (problem,) = report.problems
    assert problem.what == "lq frame of 12 x 16, the first of the clip has 24 x 32"


# ---- Changed colours ----


@pytest.fixture
def coloured_picture():
    """Give a picture (3, 8, 8) with values from 0.2 to 0.8, so that no change is cut off."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(3, 8, 8, generator=generator) * 0.6 + 0.2


def with_other_colours(picture):
    """Return three equal frames (3, 3, 8, 8) after the option color_jitter has changed them."""
    frames = picture.expand(3, -1, -1, -1)  # (3, 3, 8, 8), three times the picture
    return jitter_colors(frames, np.random.default_rng(1))


def test_color_jitter_is_equal_in_all_frames(coloured_picture):
    first, second, third = with_other_colours(coloured_picture)

    assert torch.equal(first, second)
    assert torch.equal(second, third)


def test_color_jitter_is_small(coloured_picture):
    first, _, _ = with_other_colours(coloured_picture)

    # The values are between 0 and 1. The draw of this seed changes the values by at most 0.16. The
    # limit of 0.3 is chosen by hand.
    change = float((first - coloured_picture).abs().max())
    assert 0 < change < 0.3


def test_color_jitter_is_a_function_of_the_sample(root):
    # The same sample (epoch, number) has the same colours each time that it is read.
    dataset = build(root, INTERPOLATION, lq="gt", color_jitter=True)

    first = dataset[(0, 0)]["lq"]

    assert torch.equal(first, dataset[(0, 0)]["lq"])
    # The colours are drawn for each epoch, so another epoch has other colours.
    assert not torch.equal(first, dataset[(1, 0)]["lq"])


# ---- Clips with noise ----


@pytest.fixture
def clean_clips(tmp_path):
    """Give a folder with two clips of three sharp frames of 48 x 48, as .jpg files."""
    stems = ["00000", "00001", "00002"]
    write_files(tmp_path / "clean", clip_pictures(["a", "b"], stems, (48, 48), "jpg"))
    return str(tmp_path / "clean")


def training_set(clean, name, **changes):
    """Return a dataset of training on crops of the sharp frames.

    clean: folder of the sharp frames. name: class of the dataset. changes: additional keys.
    """
    section = {
        "dataset_type": name,
        "dataroot_gt": clean,
        "dataroot_lq": clean,
        "filename_ext": "jpg",
        "num_frame": 3,
        "gt_size": 40,
    }
    return build_dataset(section | changes, "train", seed=7)


def denoising(clean, **changes):
    """Return a dataset of training that adds noise of 10 to 50 grey levels."""
    noise = {"sigma_min": 10, "sigma_max": 50}
    # If `changes` has one of these keys, the value in `changes` is used.
    return training_set(clean, "VideoRecurrentTrainNonblindDenoisingDataset", **noise | changes)


# The input of a denoising sample, "lq", has the shape (frames, 4, H, W). Its channels are three
# colours and the noise map. Each value of the noise map is the level of the noise, divided by 255.


def level_of(sample):
    """Return the level of the noise of a sample, in grey levels (0 ... 255)."""
    noise_map = sample["lq"][:, 3:]
    return 255 * float(noise_map[0, 0, 0, 0])


def noise_of(sample):
    """Return the noise of a sample (frames, 3, H, W), in grey levels."""
    noisy = sample["lq"][:, :3]
    return 255 * (noisy - sample["gt"])


# The noise is drawn for each sample and epoch, so six epochs are six draws.
EACH_EPOCH = pytest.mark.parametrize("epoch", range(6))


# `clean_clips` has two clips of three sharp frames of 48 x 48.
@EACH_EPOCH
def test_a_denoising_sample_has_one_level_of_noise_within_the_options(clean_clips, epoch):
    sample = denoising(clean_clips)[(epoch, 0)]

    noise_map = sample["lq"][:, 3:]
    assert noise_map.unique().numel() == 1
    # The limits are the options sigma_min and sigma_max of `denoising`.
    assert 10 <= level_of(sample) <= 50


@EACH_EPOCH
def test_the_noise_of_a_denoising_sample_has_the_level_of_the_noise_map(clean_clips, epoch):
    sample = denoising(clean_clips)[(epoch, 0)]

    noise = noise_of(sample)

    # A sample has n = 3 x 3 x 40 x 40 = 14,400 values. By chance, the standard deviation of the
    # values differs from the level by about 1 / sqrt(2 n) = 0.6 %. The mean of the values differs
    # from 0 by about level / sqrt(n), at most 50 / 120 = 0.4. The limits are several times as
    # large.
    assert float(noise.std()) == pytest.approx(level_of(sample), rel=0.05)
    assert abs(float(noise.mean())) < 1.5


@EACH_EPOCH
def test_the_frames_of_a_denoising_sample_have_different_noise(clean_clips, epoch):
    noise = noise_of(denoising(clean_clips)[(epoch, 0)])

    assert not torch.equal(noise[0], noise[1])


def test_each_epoch_has_another_level_of_noise(clean_clips):
    dataset = denoising(clean_clips)

    levels = {level_of(dataset[(epoch, 0)]) for epoch in range(6)}

    assert len(levels) == 6


def test_a_denoising_sample_is_a_function_of_epoch_and_index(clean_clips):
    dataset = denoising(clean_clips)

    for epoch in range(6):
        found = dataset[(epoch, 0)]["lq"]
        # A new data set has drawn no earlier sample. If its sample is equal, then earlier samples
        # have no influence.
        of_new_dataset = denoising(clean_clips)[(epoch, 0)]["lq"]
        assert torch.equal(found, of_new_dataset)


def test_a_seed_gives_the_noise_that_it_always_gave(clean_clips):
    sample = denoising(clean_clips)[(2, 0)]

    # The first version with this test printed these numbers. They must stay, because a resumed run
    # must see the sample that it would have seen without the interruption.
    assert level_of(sample) == pytest.approx(38.4410, abs=1e-3)
    first_values = noise_of(sample)[0, 0, 0, :3].tolist()
    assert first_values == pytest.approx([35.7385, 17.1315, 107.1369], abs=1e-2)


def test_noise_does_not_change_the_crop(clean_clips):
    without_noise = training_set(clean_clips, "VideoRecurrentTrainDataset")

    assert torch.equal(denoising(clean_clips)[(2, 0)]["gt"], without_noise[(2, 0)]["gt"])


def test_noise_on_other_frames_than_the_sharp_frames_is_refused(clean_clips):
    with pytest.raises(OptionError, match="the same as dataroot_gt"):
        denoising(clean_clips, dataroot_lq=f"{clean_clips}/a")


def test_a_least_level_of_noise_above_the_highest_is_refused(clean_clips):
    with pytest.raises(OptionError, match="sigma_min is 60, sigma_max 50"):
        denoising(clean_clips, sigma_min=60)


def test_crops_larger_than_a_clip_are_refused_with_its_first_file(clean_clips):
    with pytest.raises(DataError, match=r"crops of 64 do not fit into clip a\n.*00000\.jpg"):
        denoising(clean_clips, gt_size=64)


def noisy_test_set(clean, seed, **changes):
    """Return a dataset of testing that adds noise of 30 grey levels.

    As in KAIR's files, the section has no filename_ext, although the frames are .jpg files.
    """
    section = {"dataset_type": "VideoRecurrentTestDataset", "sigma": 30}
    section["dataroot_gt"] = clean
    section["dataroot_lq"] = clean
    return build_dataset(section | changes, "test", seed)


def test_test_noise_has_the_level_of_the_options(clean_clips):
    clip = noisy_test_set(clean_clips, seed=0)[1]

    # The clip has 3 x 3 x 48 x 48 = 20,736 values. By chance, their deviation differs from 30 by
    # about 1 / sqrt(2 x 20,736) = 0.5 %.
    assert float((255 * (clip["lq"] - clip["gt"])).std()) == pytest.approx(30, rel=0.05)


def test_test_noise_depends_only_on_the_names_of_clip_and_frame(clean_clips):
    whole = noisy_test_set(clean_clips, seed=0)[1]["lq"]  # clip b
    # Now clip b is the first clip, and only two of its frames are read. The noise must stay.
    shutil.rmtree(f"{clean_clips}/a")
    without_clip_a = noisy_test_set(clean_clips, seed=0, num_frame=2)

    part = without_clip_a[0]["lq"]
    [reader] = without_clip_a.readers()
    of_reversed_time = reader.frame(1, reverse=True)["lq"]

    assert torch.equal(part, whole[:2])
    assert torch.equal(of_reversed_time, whole[1])


def test_another_seed_gives_another_test_noise(clean_clips):
    first = noisy_test_set(clean_clips, seed=0)[1]["lq"]
    second = noisy_test_set(clean_clips, seed=1)[1]["lq"]

    assert not torch.equal(first[0], second[0])
