"""main_test_vrt.py --method: frames from spikes without weights, on made clips.

The methods tfp, tfi and tfstp compute a grey frame from the spikes alone. The method exposure
computes a frame in colour from a blurry frame and its spikes. Three test clips of 2, 3 and 4 frames
of 32 x 32 pixels are restored; a frame has 24 planes of 16 x 16 spikes, and plane 12 is the sharp
instant.
"""

import shutil
from typing import Any

import cv2
import numpy as np
import pytest

from data.spike.formats import SpikeGeometry, read_spikes, write_spikes
from data.spike.represent import exposure_estimate, represent
from models.metrics import psnr, rgb_to_y, ssim
from scripts.compare_runs import main as compare_runs
from tests.dist.launching import run_ranks
from tests.helpers.clip_files import write_info
from tests.helpers.train_files import write_options
from tests.helpers.weights_files import message, metrics, restore
from utils.image import imread_rgb

MAIN = "main_test_vrt.py"
TEST2 = "GOPRO_Large/test/test2"
# Methods that make grey frames.
GREY = ("tfp", "tfi", "tfstp")
# What a network reads of the spikes is nothing to a method: it has a representation of its own.
RELATIVE = [
    f"datasets.{split}.spike.{change}"
    for split in ("train", "test")
    for change in (
        'representation={"type": "relative", "half_windows": [2, 6]}',
        "context=8",
        "gamma=2.2",
    )
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give a folder with the three test clips and an option file."""
    folder = tmp_path_factory.mktemp("home")
    write_options(folder)
    return folder


@pytest.fixture(scope="module")
def tested(home):
    """Give the results of each method with an option file: method -> its output folder."""
    folders = {method: home / f"test_{method}" for method in (*GREY, "exposure")}
    for method, out in folders.items():
        args = [
            "--method",
            method,
            "--opt",
            home / "options.json",
            "--output",
            out,
            "--save",
            "frames",
            *RELATIVE,
        ]
        restore(*args, *(["method.half_window=5"] if method != "tfstp" else []))
    return folders


def by_hand(home, method, index=2):
    """Frame `index` of clip test2: (made, blurry, sharp), each (32, 32, 3) uint8."""
    clip = home / TEST2
    stem = f"{index:06d}"
    blurry, sharp = (imread_rgb(clip / kind / f"{stem}.png") for kind in ("blur", "sharp"))
    stream = read_spikes(
        home / f"GOPRO_Large_spike_seq/test/test2/spike/{stem}.dat", SpikeGeometry(16, 16)
    )
    options: dict[str, Any] = {} if method == "tfstp" else {"half_window": 5}
    gamma = 1.0 if method == "exposure" else 2.2
    planes = represent(method, stream, center=12, gamma=gamma, **options)
    channels = [cv2.resize(plane, (32, 32)) for plane in planes]
    if method == "exposure":
        made = exposure_estimate(blurry.astype(np.float32) / 255, np.stack(channels))
    else:
        made = np.repeat(np.clip(channels[0], 0, 1)[..., None], 3, axis=2)
    return np.round(255 * made).astype(np.uint8), blurry, sharp


@pytest.mark.parametrize("method", [*GREY, "exposure"])
def test_frames_and_scores_are_those_made_by_hand(home, tested, method):
    made, blurry, sharp = by_hand(home, method)
    found = metrics(tested[method])
    scores = found["clips"]["test2"]["per_frame"]
    assert np.abs(imread_rgb(tested[method] / "test2/000002.png").astype(int) - made).max() <= 1
    assert scores["restored"]["psnr_y"][2] == pytest.approx(
        psnr(rgb_to_y(made), rgb_to_y(sharp)), abs=0.05
    )
    assert scores["restored"]["ssim_y"][2] == pytest.approx(
        ssim(rgb_to_y(made), rgb_to_y(sharp)), abs=2e-3
    )
    assert scores["input"]["psnr"][2] == pytest.approx(psnr(blurry, sharp))
    # A picture without colour is not compared with one that has some.
    assert (
        ("psnr" in scores["restored"])
        == (method == "exposure")
        == ("colour" not in found["protocol"])
    )
    assert found["protocol"]["method"].startswith(method)
    page = (tested[method] / "report.html").read_text()

    assert ("PSNR-Y of each frame" in page) == (method in GREY)
    assert page.count('type="range"') == 3


def test_methods_stand_in_one_table_and_a_foreign_test_is_refused(home, tested, tmp_path, capfd):
    folders = [str(folder) for folder in tested.values()]
    assert compare_runs([*folders, "--md"]) == 0
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in capfd.readouterr().out.splitlines()
    ]
    assert lines[0] == ["test", "method", "PSNR dB", "SSIM", "PSNR-Y dB", "SSIM-Y"]
    rows = {row[0]: row for row in lines[2:]}
    names = [folder.name for folder in tested.values()]
    assert list(rows) == ["input", *names]
    assert rows[names[0]][2:4] == ["-", "-"]
    assert "-" not in rows["input"] + rows[names[3]]
    total = metrics(tested["exposure"])["averages"]
    assert [rows[name][2] for name in ("input", names[3])] == [
        f"{total[k]['psnr']:.2f}" for k in ("input", "restored")
    ]
    restore(
        "--method",
        "tfp",
        "--opt",
        home / "options.json",
        "--output",
        tmp_path,
        "datasets.test.num_frame=2",
    )

    assert compare_runs([folders[0], str(tmp_path)]) == 3
    assert "not scored on the same frames" in capfd.readouterr().err
    assert compare_runs([folders[0], str(home)]) == 3
    assert f"in        {home}" in capfd.readouterr().err


def test_results_of_other_windows_are_refused_or_overwritten(home, tested, tmp_path, capfd):
    folder = tmp_path / "again"
    shutil.copytree(tested["tfp"], folder)
    args = [
        "method.half_window=4",
        "--method",
        "tfp",
        "--opt",
        home / "options.json",
        "--output",
        folder,
    ]
    text, code = message(capfd, *args, "--save", "frames")
    assert code == 2
    assert "method.half_window was 5, is 4" in text
    restore(*args, "--save", "frames", "--overwrite")

    assert metrics(folder)["protocol"]["method"] == "tfp (half_window 4)"


def test_the_direct_form_gives_what_the_dataset_gives_on_two_ranks(home, tested, tmp_path):
    rgb = home / "GOPRO_Large/test"
    spikes = home / "GOPRO_Large_spike_seq/test"
    args = [
        "--method",
        "exposure",
        "--input",
        rgb,
        "--spike",
        spikes,
        "--gt",
        rgb,
        "--output",
        tmp_path / "out",
    ]
    done = run_ranks(2, MAIN, *args, "method.half_window=5", limit_s=300)

    assert done.exit_codes == [0, 0], done.text
    assert metrics(tmp_path / "out")["averages"] == metrics(tested["exposure"])["averages"]


def test_both_forms_measure_a_rate_that_nobody_gives(tmp_path, capfd):
    options = write_options(tmp_path)
    rgb = tmp_path / "GOPRO_Large/test"
    spikes = tmp_path / "GOPRO_Large_spike_seq/test"
    direct = ["--input", rgb, "--spike", spikes, "--gt", rgb]
    known = {"h": 16, "w": 16, "rate": None}
    # A dataset.json of another size does not describe these files; nor does its rate.
    forms = [
        (["--opt", options], known),
        (direct, known),
        ([*direct, "--spike-size", 16, 16], {"rate": 0.5}),
    ]
    for number, (form, info) in enumerate(forms):
        write_info(tmp_path, **info)
        restore("--method", "tfp", *form, "--output", tmp_path / f"out{number}", "--save", "frames")
        said = capfd.readouterr()
        assert (said.out + said.err).count("firing rate at full light is not known") == 1
    found = [metrics(tmp_path / f"out{number}")["averages"] for number in (0, 1, 2)]

    assert found[0] == found[2]
    assert found[1] == found[2]


def test_spikes_alone_give_frames_of_their_own_size(home, tmp_path, capfd):
    spikes = home / "GOPRO_Large_spike_seq/test/test2/spike"
    shutil.copytree(spikes, tmp_path / "in")  # away from dataset.json: the rate is unknown
    args = [
        "--method",
        "tfi",
        "--spike",
        tmp_path / "in",
        "--spike-size",
        "16",
        "16",
        "--output",
        tmp_path / "out",
    ]
    restore(*args, "--save", "frames")
    said = capfd.readouterr()

    assert "firing rate at full light is not known" in said.out + said.err
    assert sorted(p.name for p in (tmp_path / "out/in").iterdir()) == [
        f"{i:06d}.png" for i in range(4)
    ]
    assert imread_rgb(tmp_path / "out/in/000002.png").shape == (16, 16, 3)
    assert metrics(tmp_path / "out")["averages"] == {}
    assert "the mean of all planes" in metrics(tmp_path / "out")["protocol"]["frames"]


def test_one_spike_file_gives_a_frame_for_each_of_its_exposures(home, tmp_path):
    # The four files of a clip in one, with 8 dark planes between them: the frames are those of the
    # four files.
    files = sorted((home / "GOPRO_Large_spike_seq/test/test2/spike").iterdir())
    geometry = SpikeGeometry(16, 16)
    dark = np.zeros((8, 16, 16), np.uint8)
    parts = [part for file in files for part in (read_spikes(file, geometry), dark)]
    (tmp_path / "clip").mkdir()
    for file in files:
        shutil.copy(file, tmp_path / "clip")
    write_spikes(tmp_path / "clip.dat", np.concatenate(parts[:-1]), geometry)
    forms = {
        "clip": [],
        "clip.dat": ['spike.exposure={"start": 0, "length": 24, "period": 32}'],
        "./clip.dat": ['spike.exposure={"clip": [[0, 24], [32, 24], [64, 24], [96, 24]]}'],
    }
    found = []
    for number, (path, exposure) in enumerate(forms.items()):
        args = [
            "--method",
            "tfp",
            "--spike",
            f"{tmp_path}/{path}",
            "--spike-size",
            16,
            16,
            "--save",
            "frames",
        ]
        out = tmp_path / f"out{number}"
        restore(*args, "--output", out, *exposure)
        # Strips have the input
        found.append({path.relative_to(out): path.read_bytes() for path in out.rglob("*.png")})
        assert len(list((out / "clip").iterdir())) == 4
        assert ("each exposure" in metrics(out)["protocol"]["frames"]) == bool(exposure)

    assert found[0] == found[2]
    assert found[1] == found[2]


def test_what_a_method_cannot_do_is_refused_with_one_message(home, tmp_path, capfd):
    options = ["--opt", home / "options.json"]
    spikes = home / "GOPRO_Large_spike_seq/test/test2/spike"
    network = ["--weights", "w.pth", "--tile", "2,2", "--flip-seq"]
    colour = [
        f"datasets.{s.lower()}.dataset_type=VideoRecurrent{s}Dataset" for s in ("Train", "Test")
    ]
    alone = ["--spike", spikes, "--output", tmp_path / "o"]
    colour = ["netG.fusion=none", *colour]
    short = ["--spike", spikes / "000000.dat", "--output", tmp_path / "o"]
    short += ['spike.exposure={"start": 0, "length": 50, "period": 100}']
    none = ["--spike", tmp_path / "none", "--spike-size", 16, 16, "--output", tmp_path / "o"]
    half = "spike.representation.half_window=3"
    cases = {
        "--weights, --tile, --flip-seq with --method tfp": (2, ["tfp", *options, *network]),
        "method.type is 'tfq'": (2, ["tfq", *options]),
        "method.type=tfi with --method tfp": (2, ["tfp", *options, "method.type=tfi"]),
        "the nearest is half_window": (2, ["tfp", *options, "method.half_windw=3"]),
        "tau_d 0.0 and tau_f 10.0 are positive": (2, ["tfstp", *options, "method.tau_d=0"]),
        "0 <= half_window 12 < half_exposure 11":
            (3, ["exposure", *options, "method.half_window=12"]),
        "datasets.test has no spikes": (2, ["tfp", *options, *colour]),
        "scale is 2": (2, ["tfp", *options, "scale=2", "netG.upscale=2"]),
        "--spike missing":
            (2, ["tfp", "--input", home / f"{TEST2}/blur", "--output", tmp_path / "o"]),
        "--lpips with --method tfi, whose frames are grey":
            (2, ["tfi", *options, "--lpips", "w.pth"]),
        "the nearest is offsets (list of int)\n": (2, ["tfp", *options, "method.offset=3"]),
        "method.offsets would make several pictures":
            (2, ["tfp", *options, "method.offsets=[0, 3]"]),
        "needs planes 0 to 49 (spike.exposure), the file has 24 planes": (3, ["tfp", *short]),
        "needs the blurry frames": (2, ["exposure", *alone]),
        "no such file or folder": (3, ["tfp", *none]),
        "spike.gamma=1.8 has no effect with --method tfp": (2, ["tfp", *alone, "spike.gamma=1.8"]),
        f"{half} has no effect": (2, ["exposure", *alone, half]),
        "cannot set val.pad_seq": (2, ["tfp", *alone, "val.pad_seq=true"]),
    }  # fmt: skip
    for expected, (code, args) in cases.items():
        text, found = message(capfd, "--method", *args)
        assert expected in text, (expected, text)
        assert found == code, (expected, text)

    assert not (tmp_path / "o").exists()
