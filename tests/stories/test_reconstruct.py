"""main_test_vrt.py --method: frames from spikes without weights, on synthetic clips.

The methods tfp, tfi and tfstp compute a grey frame only from the spikes. The method exposure
computes a frame in colour from a blurry frame and its spikes. Three test clips of 2, 3 and 4 frames
of 32 x 32 pixels are restored. A frame has 24 planes of 16 x 16 spikes. Plane 12 is the sharp
instant.

What is tested: data/reconstruct.py has the methods, and models/restore/ has the rest of the
program.
"""

import shutil
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest

from data.spike.formats import read_spikes, write_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.ratios import exposure_estimate
from data.spike.represent import represent
from models.metrics import psnr, rgb_to_y, ssim
from scripts.compare_runs import main as compare_runs
from tests.dist.launching import run_ranks
from tests.helpers.clip_files import write_info
from tests.helpers.train_files import write_options
from tests.helpers.weights_files import read_metrics, refusal_message, restore
from utils.image import imread_rgb

# Folders below `home`: frames and spikes of the test clips.
FRAMES = "GOPRO_Large/test"
SPIKES = "GOPRO_Large_spike_seq/test"
GEOMETRY = SpikeGeometry(16, 16)

# Exit codes.
WRONG_USE = 2  # the command or an option is wrong
WRONG_DATA = 3  # a file is missing, or cannot be used

# Methods that make grey frames.
GREY = ("tfp", "tfi", "tfstp")
METHODS = (*GREY, "exposure")

# These options say what a network reads of the spikes. A method has its own representation, so
# these options must change nothing.
OPTIONS_OF_NETWORKS = []
for split in ("train", "test"):
    spike = f"datasets.{split}.spike"
    OPTIONS_OF_NETWORKS += [
        f'{spike}.representation={{"type": "relative", "half_windows": [2, 6]}}',
        f"{spike}.context=8",
        f"{spike}.gamma=2.2",
    ]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give a folder with the three test clips and an option file."""
    folder = tmp_path_factory.mktemp("home")
    write_options(folder)
    return folder


@pytest.fixture(scope="module")
def folders_of_methods(home):
    """Give the results of each method with an option file: method -> its output folder."""
    folders = {}
    for method in METHODS:
        out = home / f"test_{method}"
        # Each method except tfstp has an option half_window.
        options = [] if method == "tfstp" else ["method.half_window=5"]
        # Each list with a star is a flag and its value.
        restore(
            *["--method", method],
            *["--opt", home / "options.json"],
            *["--output", out],
            *["--save", "frames"],
            *OPTIONS_OF_NETWORKS,
            *options,
        )
        folders[method] = out
    return folders


# ---- Frames and scores ----


class ByHand(NamedTuple):
    """Frame 2 of clip test2. Each picture is (32, 32, 3) uint8."""

    restored: np.ndarray
    blurry: np.ndarray
    sharp: np.ndarray


def restored_by_hand(home, method):
    """Restore frame 2 of clip test2 with the functions of the method, without the program."""
    clip = home / FRAMES / "test2"
    blurry = imread_rgb(clip / "blur/000002.png")
    sharp = imread_rgb(clip / "sharp/000002.png")
    stream = read_spikes(home / SPIKES / "test2/spike/000002.dat", GEOMETRY)

    options: dict[str, Any] = {} if method == "tfstp" else {"half_window": 5}
    # The grey methods return values for the screen: light ** (1 / 2.2). The method exposure works
    # on the light itself, so its gamma is 1.
    gamma = 1.0 if method == "exposure" else 2.2
    planes = represent(method, stream, center=12, gamma=gamma, **options)
    channels = [cv2.resize(plane, (32, 32)) for plane in planes]
    if method == "exposure":
        restored = exposure_estimate(blurry.astype(np.float32) / 255, np.stack(channels))
    else:
        grey = np.clip(channels[0], 0, 1)
        restored = np.repeat(grey[..., None], 3, axis=2)
    return ByHand(np.round(255 * restored).astype(np.uint8), blurry, sharp)


def scores_of_test2(tested, method):
    """Return the scores of each frame of clip test2: "restored" or "input" -> metric -> values.

    tested: method -> the folder of its results.
    """
    return read_metrics(tested[method])["clips"]["test2"]["per_frame"]


# `home` has the three test clips and the option file.
@pytest.mark.parametrize("method", METHODS)
def test_frames_equal_frames_that_were_made_by_hand(home, folders_of_methods, method):
    expected = restored_by_hand(home, method).restored

    written = imread_rgb(folders_of_methods[method] / "test2/000002.png")

    # Rounding may change a value by 1, because test and program compute in different orders.
    assert np.abs(written.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("method", METHODS)
def test_scores_equal_scores_that_were_computed_by_hand(home, folders_of_methods, method):
    expected = restored_by_hand(home, method)

    scores = scores_of_test2(folders_of_methods, method)

    # Compute the metrics of the luminance, Y. A written frame may differ by 1 from the frame by
    # hand, as the test above says. So the scores of the two frames may differ a little.
    restored_y = rgb_to_y(expected.restored)
    sharp_y = rgb_to_y(expected.sharp)
    restored = scores["restored"]
    assert restored["psnr_y"][2] == pytest.approx(psnr(restored_y, sharp_y), abs=0.05)
    assert restored["ssim_y"][2] == pytest.approx(ssim(restored_y, sharp_y), abs=2e-3)
    of_input = psnr(expected.blurry, expected.sharp)
    assert scores["input"]["psnr"][2] == pytest.approx(of_input)


@pytest.mark.parametrize("method", METHODS)
def test_a_picture_without_colour_is_not_compared_in_colour(folders_of_methods, method):
    has_colour = method == "exposure"

    is_compared_in_colour = "psnr" in scores_of_test2(folders_of_methods, method)["restored"]
    # Only the protocol of a grey method has a line "colour". The line says that the frames have no
    # colour.
    says_that_it_is_grey = "colour" in read_metrics(folders_of_methods[method])["protocol"]

    assert is_compared_in_colour == has_colour
    assert says_that_it_is_grey != has_colour


@pytest.mark.parametrize("method", METHODS)
def test_the_results_name_the_method(folders_of_methods, method):
    assert read_metrics(folders_of_methods[method])["protocol"]["method"].startswith(method)


@pytest.mark.parametrize("method", METHODS)
def test_the_page_has_a_slider_for_each_clip(folders_of_methods, method):
    page = (folders_of_methods[method] / "report.html").read_text()

    assert page.count('type="range"') == 3  # there are three test clips


@pytest.mark.parametrize("method", METHODS)
def test_the_curve_of_a_grey_method_shows_the_psnr_of_the_luminance(folders_of_methods, method):
    page = (folders_of_methods[method] / "report.html").read_text()

    # A grey frame has no PSNR of colours, so its curve is the PSNR of the luminance (PSNR-Y).
    shows_luminance = "PSNR-Y of each frame" in page
    assert shows_luminance == (method in GREY)


# ---- The table of several methods ----


def cells_of(line):
    """Return the cells of a row of a Markdown table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_methods_stand_in_one_table(folders_of_methods, capfd):
    folders = [str(folder) for folder in folders_of_methods.values()]

    assert compare_runs([*folders, "--md"]) == 0

    lines = [cells_of(line) for line in capfd.readouterr().out.splitlines()]
    assert lines[0] == ["test", "method", "PSNR dB", "SSIM", "PSNR-Y dB", "SSIM-Y"]
    # Line 1 is the line under the head of the table, "|---|---|...". A row begins with the name of
    # the folder.
    rows = {row[0]: row for row in lines[2:]}
    assert list(rows) == ["input", "test_tfp", "test_tfi", "test_tfstp", "test_exposure"]
    # A grey method has no PSNR and no SSIM of colours.
    assert rows["test_tfp"][2:4] == ["-", "-"]
    assert "-" not in rows["input"]
    assert "-" not in rows["test_exposure"]
    averages = read_metrics(folders_of_methods["exposure"])["averages"]
    assert rows["input"][2] == f"{averages['input']['psnr']:.2f}"
    assert rows["test_exposure"][2] == f"{averages['restored']['psnr']:.2f}"


def test_a_test_on_other_frames_is_refused_in_the_table(home, folders_of_methods, tmp_path, capfd):
    restore(
        *["--method", "tfp"],
        *["--opt", home / "options.json"],
        *["--output", tmp_path],
        "datasets.test.num_frame=2",
    )

    assert compare_runs([str(folders_of_methods["tfp"]), str(tmp_path)]) == WRONG_DATA

    assert "not scored on the same frames" in capfd.readouterr().err


def test_a_folder_without_results_is_refused_in_the_table(home, folders_of_methods, capfd):
    assert compare_runs([str(folders_of_methods["tfp"]), str(home)]) == WRONG_DATA

    # The message has a column of labels, 10 characters wide: "in" and 8 blanks.
    assert f"in        {home}" in capfd.readouterr().err


# ---- Results that exist already ----


@pytest.fixture
def copied_results(folders_of_methods, tmp_path):
    """Give a copy of the results of tfp, which were made with half_window 5."""
    folder = tmp_path / "again"
    shutil.copytree(folders_of_methods["tfp"], folder)
    return folder


def command_with_another_window(home, out):
    """Return a command of tfp that writes to `out` with half_window 4."""
    return [
        *["--method", "tfp"],
        *["--opt", home / "options.json"],
        *["--output", out],
        *["--save", "frames"],
        "method.half_window=4",
    ]


def test_results_of_other_windows_are_refused(home, copied_results, capfd):
    text, code = refusal_message(capfd, *command_with_another_window(home, copied_results))

    assert code == WRONG_USE
    assert "method.half_window was 5, is 4" in text


def test_results_of_other_windows_are_overwritten_if_asked(home, copied_results):
    restore(*command_with_another_window(home, copied_results), "--overwrite")

    assert read_metrics(copied_results)["protocol"]["method"] == "tfp (half_window 4)"


# ---- Clips of a user ----


def clips_of_user(folder):
    """Return the arguments for the test clips as clips of a user, without an option file."""
    frames = folder / FRAMES
    return ["--input", frames, "--gt", frames, "--spike", folder / SPIKES]


def test_the_direct_form_gives_what_the_dataset_gives_on_two_ranks(
    home, folders_of_methods, tmp_path
):
    command = ["--method", "exposure", *clips_of_user(home), "--output", tmp_path / "out"]

    # half_window=5, because `folders_of_methods` has the results of this window.
    done = run_ranks(2, "main_test_vrt.py", *command, "method.half_window=5", limit_s=300)

    assert done.exit_codes == [0, 0], done.text
    assert (
        read_metrics(tmp_path / "out")["averages"]
        == read_metrics(folders_of_methods["exposure"])["averages"]
    )


# The brightness of the frames depends on the firing rate at full light. If neither the user nor
# dataset.json gives this rate, the program measures it.
RATE_IS_UNKNOWN = "firing rate at full light is not known"


def test_both_forms_of_the_command_measure_a_rate_that_nobody_gives(tmp_path, capfd):
    options = write_options(tmp_path)
    without_rate = {"h": 16, "w": 16, "rate": None}
    # Name of a case -> the arguments, and what dataset.json says about the spikes.
    forms = {
        "option file": (["--opt", options], without_rate),
        "direct": (clips_of_user(tmp_path), without_rate),
        # The arguments give planes of 16 x 16. dataset.json gives another size (the default of
        # `write_info`), so dataset.json does not describe these files. So the program must not use
        # the rate of dataset.json.
        "another size": ([*clips_of_user(tmp_path), "--spike-size", 16, 16], {"rate": 0.5}),
    }

    averages = []
    for name, (arguments, info) in forms.items():
        write_info(tmp_path, **info)
        out = tmp_path / name
        restore("--method", "tfp", *arguments, "--output", out, "--save", "frames")
        printed = capfd.readouterr()
        assert (printed.out + printed.err).count(RATE_IS_UNKNOWN) == 1
        averages.append(read_metrics(out)["averages"])

    assert averages[0] == averages[1]
    assert averages[0] == averages[2]


def test_spikes_alone_give_frames_of_their_own_size(home, tmp_path, capfd):
    # No dataset.json is near this copy, so the rate is unknown.
    shutil.copytree(home / SPIKES / "test2/spike", tmp_path / "in")
    out = tmp_path / "out"

    restore(
        *["--method", "tfi"],
        *["--spike", tmp_path / "in", "--spike-size", 16, 16],
        *["--output", out, "--save", "frames"],
    )

    printed = capfd.readouterr()
    assert RATE_IS_UNKNOWN in printed.out + printed.err
    written = sorted(path.name for path in (out / "in").iterdir())
    assert written == ["000000.png", "000001.png", "000002.png", "000003.png"]
    assert imread_rgb(out / "in/000002.png").shape == (16, 16, 3)
    # There are no sharp frames, so there is nothing to compare with.
    assert read_metrics(out)["averages"] == {}
    assert "the mean of all planes" in read_metrics(out)["protocol"]["frames"]


@pytest.fixture
def folder_of_joined_file(home, tmp_path):
    """Give a folder with the spikes of a clip twice: as four files, and as one file.

    clip/ has four files of 24 planes. clip.dat has the same planes, with 8 dark planes between two
    exposures. So an exposure begins every 32 planes.
    """
    dark = np.zeros((8, 16, 16), np.uint8)
    (tmp_path / "clip").mkdir()
    parts = []
    for file in sorted((home / SPIKES / "test2/spike").iterdir()):
        shutil.copy(file, tmp_path / "clip")
        parts += [read_spikes(file, GEOMETRY), dark]
    without_last_dark = parts[:-1]
    write_spikes(tmp_path / "clip.dat", np.concatenate(without_last_dark), GEOMETRY)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "exposure"),
    [
        ("clip.dat", '{"start": 0, "length": 24, "period": 32}'),
        ("./clip.dat", '{"clip": [[0, 24], [32, 24], [64, 24], [96, 24]]}'),
    ],
    ids=["start, length, period", "a list for each clip"],
)
def test_one_spike_file_gives_a_frame_for_each_of_its_exposures(
    folder_of_joined_file, path, exposure
):
    of_files = folder_of_joined_file / "of files"
    of_one = folder_of_joined_file / "of one"

    restore_with_tfp(folder_of_joined_file / "clip", of_files)
    restore_with_tfp(f"{folder_of_joined_file}/{path}", of_one, f"spike.exposure={exposure}")

    assert len(list((of_one / "clip").iterdir())) == 4
    assert pictures_below(of_one) == pictures_below(of_files)
    assert "each exposure" in read_metrics(of_one)["protocol"]["frames"]
    assert "each exposure" not in read_metrics(of_files)["protocol"]["frames"]


@pytest.mark.parametrize(
    ("length", "period", "is_warned"),
    [
        pytest.param(24, 32, False, id="with a gap"),
        pytest.param(32, 32, False, id="without a gap"),
        pytest.param(33.4, 32.6, False, id="longer by rounding"),
        pytest.param(34, 28, True, id="longer than the period"),
    ],
)
def test_exposures_that_overlap_are_a_warning(
    home, folder_of_joined_file, capfd, length, period, is_warned
):
    exposure = f'{{"start": 0, "length": {length}, "period": {period}}}'
    frames = folder_of_joined_file / "frames"
    frames.mkdir()
    for path in sorted((home / FRAMES / "test2/blur").iterdir())[:3]:
        shutil.copy(path, frames)

    restore(
        *["--method", "exposure", "--input", frames],
        *["--spike", folder_of_joined_file / "clip.dat", "--spike-size", 16, 16],
        *["--output", folder_of_joined_file / "out", f"spike.exposure={exposure}"],
    )

    output = capfd.readouterr().out
    assert ("ends after the next one has begun" in output) == is_warned
    if is_warned:
        assert "frame 0 has planes 0 to 33, frame 1 begins at plane 28" in output


def restore_with_tfp(spikes, out, *overrides):
    """Restore frames from spikes of 16 x 16. overrides: additional options."""
    restore(
        *["--method", "tfp"],
        *["--spike", spikes, "--spike-size", 16, 16],
        *["--output", out, "--save", "frames"],
        *overrides,
    )


def pictures_below(folder):
    """Return the content of each picture below a folder, by its path in the folder."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.png")}


# ---- What a method cannot do ----

# In the lists below, {home} is the folder of the clips, and {out} is an output folder.
OPTIONS = ["--opt", "{home}/options.json"]
SPIKES_ALONE = ["--spike", "{home}/GOPRO_Large_spike_seq/test/test2/spike", "--output", "{out}"]
# The exposure asks for 50 planes, but the file has only 24 planes.
TOO_LONG = [
    *["--spike", "{home}/GOPRO_Large_spike_seq/test/test2/spike/000000.dat"],
    'spike.exposure={"start": 0, "length": 50, "period": 100}',
    *["--output", "{out}"],
]
# Options of data sets and of a network without spikes.
COLOUR_ALONE = [
    "netG.fusion=none",
    "datasets.train.dataset_type=VideoRecurrentTrainDataset",
    "datasets.test.dataset_type=VideoRecurrentTestDataset",
]
HALF_WINDOW_OF_NETWORK = "spike.representation.half_window=3"


class Refusal(NamedTuple):
    """A command that is refused: part of the message, exit code, and the words after --method."""

    message: str
    code: int
    words: list[str]


REFUSALS = [
    # The method and its options.
    Refusal("method.type is 'tfq'", WRONG_USE, ["tfq", *OPTIONS]),
    Refusal("method.type=tfi with --method tfp", WRONG_USE, ["tfp", *OPTIONS, "method.type=tfi"]),
    Refusal("the nearest is half_window", WRONG_USE, ["tfp", *OPTIONS, "method.half_windw=3"]),
    Refusal(
        "the nearest is offsets (list of int)\n", WRONG_USE, ["tfp", *OPTIONS, "method.offset=3"]
    ),
    Refusal(
        "method.offsets would make several pictures",
        WRONG_USE,
        ["tfp", *OPTIONS, "method.offsets=[0, 3]"],
    ),
    Refusal(
        "tau_d is 0.0, expected a number above 0",
        WRONG_USE,
        ["tfstp", *OPTIONS, "method.tau_d=0"],
    ),
    # Plane 12 of the 24 planes is the sharp instant, and plane 0 is not used. So 11 planes lie on
    # each side: 1 to 11, and 13 to 23.
    Refusal(
        "half_window is 12, expected 0 or more, and less than half_exposure, 11",
        WRONG_DATA,
        ["exposure", *OPTIONS, "method.half_window=12"],
    ),
    # 12 planes and one more on each side of plane 14, and plane 0: 28 planes.
    Refusal(
        "24 planes are too few for spike.representation exposure, which needs 28 or more; the "
        "planes are read as 16 x 16",
        WRONG_DATA,
        ["exposure", *OPTIONS, "method.half_window=12"],
    ),
    # Options that only a network has, or that need colours.
    Refusal(
        "--weights, --tile, --flip-seq with --method tfp",
        WRONG_USE,
        ["tfp", *OPTIONS, "--weights", "w.pth", "--tile", "2,2", "--flip-seq"],
    ),
    Refusal("cannot set val.pad_seq", WRONG_USE, ["tfp", *SPIKES_ALONE, "val.pad_seq=true"]),
    Refusal("scale is 2", WRONG_USE, ["tfp", *OPTIONS, "scale=2", "netG.upscale=2"]),
    Refusal(
        "--lpips cannot score the frames of --method tfi: they are grey",
        WRONG_USE,
        ["tfi", *OPTIONS, "--lpips", "w.pth"],
    ),
    Refusal(
        "spike.gamma=1.8 has no effect with --method tfp",
        WRONG_USE,
        ["tfp", *SPIKES_ALONE, "spike.gamma=1.8"],
    ),
    Refusal(
        f"{HALF_WINDOW_OF_NETWORK} has no effect",
        WRONG_USE,
        ["exposure", *SPIKES_ALONE, HALF_WINDOW_OF_NETWORK],
    ),
    # Data that are missing.
    Refusal("datasets.test has no spikes", WRONG_USE, ["tfp", *OPTIONS, *COLOUR_ALONE]),
    Refusal(
        "--spike is missing",
        WRONG_USE,
        ["tfp", "--input", "{home}/GOPRO_Large/test/test2/blur", "--output", "{out}"],
    ),
    Refusal("needs the blurry frames", WRONG_USE, ["exposure", *SPIKES_ALONE]),
    Refusal(
        "no such file or folder",
        WRONG_DATA,
        ["tfp", "--spike", "{out}_none", "--spike-size", "16", "16", "--output", "{out}"],
    ),
    Refusal(
        "needs planes 0 to 49 (spike.exposure), the file has 24 planes",
        WRONG_DATA,
        ["tfp", *TOO_LONG],
    ),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=[refusal.message for refusal in REFUSALS])
def test_what_a_method_cannot_do_is_refused_with_one_message(home, tmp_path, capfd, refusal):
    out = tmp_path / "out"
    words = []
    for word in refusal.words:
        words.append(word.replace("{home}", str(home)).replace("{out}", str(out)))

    text, code = refusal_message(capfd, "--method", *words)

    assert refusal.message in text, text
    assert code == refusal.code
    assert not out.exists()
