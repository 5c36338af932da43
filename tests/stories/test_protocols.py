"""The options metric.values and metric.mean, and the protocols of published numbers.

metric.values says whether frames are rounded or clamped before they are scored. metric.mean says
whether each clip or each frame has the same weight in the mean. The second half runs the commands
of docs/benchmarks/published.md, on small data in the layout of the published data sets.

What is tested: models/metrics.py and models/restore/ compute the scores. The option files of the
protocols are in options/protocols/.
"""

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data.clips.clip_reader import user_clips
from data.spike.simulate import IntegrateAndFire
from models.portable import read_saved
from scripts import compare_runs, prepare_gopro_spike
from tests.dist.fork_server import ROOT
from tests.helpers.clip_files import write_dat
from tests.helpers.gopro_files import moving_frames, write_folder
from tests.helpers.tensor_clip import restore_clip
from tests.helpers.train_files import folder_of_run, run_odd, write_odd_options
from tests.helpers.weights_files import make_home, read_metrics, refusal_message, restore
from utils.image import imread_rgb, imwrite_rgb
from utils.run.history import read_history

PAGE = ROOT / "docs/benchmarks/published.md"
# Exit codes of programs.
WRONG_USE = 2  # the command or an option is wrong
WRONG_DATA = 3  # a file is missing, or cannot be used


def psnr_of(image, sharp):
    """Return the PSNR of two pictures with values from 0 to 1, in dB."""
    difference = np.asarray(image, np.float64) - np.asarray(sharp, np.float64)
    return -10 * np.log10(np.mean(difference**2))


# ---- metric.values and metric.mean ----

FLOAT = "metric.values=float"
OVER_FRAMES = "metric.mean=frames"
# The values of metric.values: how the values of a frame are prepared before they are scored.
VALUES = ("uint8", "clamped", "float")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give the folder of `make_home`, with weights that brighten the frames by half of white.

    So some values are above 1, and clamping changes the scores.
    """
    home = make_home(tmp_path_factory.mktemp("home"))
    saved = torch.load(home / "spike.pth", weights_only=True)
    saved["params"]["conv_last.bias"] += 0.5
    torch.save(saved, home / "spike.pth")
    return home


def command_of_test(home, out):
    """Return the command of a test that writes its results to `out`."""
    # Each list with a star is a flag and its value.
    return [
        *["--opt", home / "options.json"],
        *["--weights", home / "spike.pth"],
        *["--output", out],
        *["--save", "frames"],
    ]


@pytest.fixture(scope="module")
def folders_of_scores(home):
    """Give the folders of three tests with metric.mean=frames: metric.values -> folder."""
    folders = {}
    for values in VALUES:
        folders[values] = home / values
        restore(*command_of_test(home, home / values), OVER_FRAMES, f"metric.values={values}")
    return folders


def restored_by_hand(home):
    """Restore clip test2 without main_test_vrt.py. Return frames and sharp frames (4, 3, H, W)."""
    frames = home / "GOPRO_Large/test/test2"
    spikes = home / "GOPRO_Large_spike_seq/test/test2/spike"
    saved = read_saved(home / "spike.pth")
    (clip,) = user_clips(frames / "blur", spikes, frames / "sharp", saved.spike)
    read = [clip.frame(index) for index in range(4)]
    lq = torch.stack([frame["lq"] for frame in read])[None]
    spike = torch.stack([frame["spike"] for frame in read])[None]
    # window_size: an attention window of the network has 2 frames of 4 x 4 pixels. least_size: the
    # smallest height and width that the network takes.
    restored = restore_clip(saved.build(), lq, spike, window_size=(2, 4, 4), least_size=(8, 8))
    return restored[0], [frame["gt"] for frame in read]


@pytest.mark.parametrize("values", ["clamped", "float"])
def test_values_that_are_not_rounded_come_from_the_network_unchanged(
    home, folders_of_scores, values
):
    restored, sharp = restored_by_hand(home)
    assert restored.max() > 1.1  # if no value was above 1, clamping would change nothing
    if values == "clamped":
        restored = restored.clamp(0, 1)
    expected = [psnr_of(restored[index], sharp[index]) for index in range(4)]

    found = read_metrics(folders_of_scores[values])["clips"]["test2"]["per_frame"]["restored"][
        "psnr"
    ]

    assert found == pytest.approx(expected, abs=1e-4)


def test_clamping_changes_the_score_much_and_rounding_little(folders_of_scores):
    psnr = {}
    for values in VALUES:
        psnr[values] = read_metrics(folders_of_scores[values])["averages"]["restored"]["psnr"]

    # The scores are in dB. Rounding to 256 levels changes this mean score by only 2e-6.
    assert psnr["float"] < psnr["clamped"] - 0.5
    assert 0 < abs(psnr["clamped"] - psnr["uint8"]) < 0.05


@pytest.mark.parametrize(
    ("values", "protocol"),
    [
        ("uint8", "clamp 0..1, x255, round to uint8"),
        ("clamped", "clamp 0..1, x255, not rounded"),
        ("float", "x255, neither clamped nor rounded"),
    ],
)
def test_the_results_name_the_protocol_of_their_scores(folders_of_scores, values, protocol):
    parts = read_metrics(folders_of_scores[values])["protocol"]["metrics"].split("; ")

    assert parts[0] == protocol
    assert parts[-1] == "mean over all frames"


def test_the_mean_over_frames_is_the_average_of_the_results(folders_of_scores):
    results = read_metrics(folders_of_scores["float"])
    of_frames = []
    of_clips = []
    for clip in results["clips"].values():
        of_frames += clip["per_frame"]["restored"]["psnr"]
        of_clips.append(clip["restored"]["psnr"])

    total = results["averages"]["restored"]

    assert total["mean"] == "frames"
    assert total["psnr"] == pytest.approx(np.mean(of_frames))
    assert total["psnr_clip_mean"] == pytest.approx(np.mean(of_clips))


def test_the_mean_over_frames_comes_first_in_table_and_page(folders_of_scores):
    table = (folders_of_scores["float"] / "table.txt").read_text().splitlines()
    page = (folders_of_scores["float"] / "report.html").read_text()

    # Line 0 is the head of the table, and the lines 1 to 3 are the three clips.
    assert table[4].startswith("mean over frames  ")
    assert table[5].startswith("mean over clips  ")
    assert re.search('<tr class="mean"><td[^>]*>mean over frames</td>', page)


def test_results_of_different_protocols_are_not_compared(folders_of_scores, capsys):
    code = compare_runs.main([str(folders_of_scores["float"]), str(folders_of_scores["uint8"])])

    assert code == WRONG_DATA
    assert "scored differently" in capsys.readouterr().err


def test_a_test_of_exact_values_leaves_no_other_files(folders_of_scores):
    folder = folders_of_scores["float"]

    # While the test runs, the folder .work has the values that are not rounded.
    assert not (folder / ".work").exists()
    # The clip test2 has 4 frames, so 4 restored frames.
    assert len(list((folder / "test2").iterdir())) == 4


def test_an_interrupted_test_of_exact_values_is_continued(home, folders_of_scores):
    folder = folders_of_scores["float"]
    before = read_metrics(folder)
    # Remove a file, as if the test had been interrupted. The exact values of this clip were removed
    # when the first test ended, so the clip must be restored again.
    (folder / "clips/test2.json").unlink()

    restore(*command_of_test(home, folder), FLOAT, OVER_FRAMES)

    assert read_metrics(folder)["averages"] == before["averages"]


def test_an_interrupted_test_is_not_continued_with_other_values(home, folders_of_scores, capfd):
    text, code = refusal_message(
        capfd, *command_of_test(home, folders_of_scores["float"]), OVER_FRAMES
    )

    assert code == WRONG_USE
    assert "metric.values was float, is uint8" in text


# ---- Validation ----


def test_validation_scores_as_the_test_does(tmp_path):
    options = write_odd_options(tmp_path)
    each_step = ("train.checkpoint_test=1", "train.checkpoint_save=1")
    out = ("--output", str(tmp_path / "out"))

    # `run_odd` trains or tests the small network "odd".
    first = run_odd(options, "train.total_iter=1", *each_step, FLOAT, OVER_FRAMES)
    tested = run_odd(options, *out, FLOAT, OVER_FRAMES, program="test")

    assert first.exit_codes == [0], first.text
    assert tested.exit_codes == [0], tested.text
    means = read_metrics(tmp_path / "out")["averages"]
    history = read_history(folder_of_run(options))
    assert last_value(history["val/psnr"]) == pytest.approx(means["restored"]["psnr"], abs=1e-5)
    assert last_value(history["val/psnr_input"]) == pytest.approx(means["input"]["psnr"], abs=1e-5)

    # The second run leaves OVER_FRAMES out, so its scores are means over clips. The best score
    # until now is a mean over frames, so it cannot be compared with the new scores.
    second = run_odd(options, "train.total_iter=2", *each_step, FLOAT)
    assert re.search(r"best PSNR so far, .* does not count: metric.mean changed", second.text)


def last_value(curve):
    """Return the last value of a curve, a list of [step, value]."""
    _, value = curve[-1]
    return value


# ---- The commands of the page, docs/benchmarks/published.md ----


def commands(heading):
    """Return the commands of a section of the page, each in one line.

    heading: the heading of the section, e.g. "Spk-GoPro".
    """
    page = PAGE.read_text(encoding="utf-8")
    _, _, rest = page.partition(f"\n## {heading}\n")
    section, _, _ = rest.partition("\n## ")
    blocks = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    # A backslash at the end of a line continues the command.
    return "\n".join(blocks).replace("\\\n", "")


def run_tests(heading, *changes, factor=1):
    """Run each command of a section that starts main_test_vrt.py, in the current folder.

    changes: additional arguments.
    factor: replaces the letter T in the commands, the factor of the threshold of the spike camera.
    E.g. with factor 2, `--output out_T ... "threshold_range": [T, T]` becomes `--output out_2 ...
    "threshold_range": [2, 2]`.
    """
    text = commands(heading)
    # The page names files of the repository, but the repository is not the current folder.
    text = text.replace("options/protocols", str(ROOT / "options/protocols"))
    text = text.replace("weights/operator", str(ROOT / "weights/operator"))
    # T occurs in a range, and in the name of the output folder.
    text = text.replace("[T, T]", f"[{factor}, {factor}]")
    text = text.replace("_T ", f"_{factor} ")
    for arguments in re.findall(r"(?m)^python main_test_vrt\.py (.*)$", text):
        restore(*shlex.split(arguments), *changes)


# ---- Small data in the layout of published data ----


@dataclass(frozen=True)
class Exposure:
    """The numbers of planes of an exposure. `write` writes a blurry and a sharp frame, and spikes.

    An exposure has `inside` planes. The file of spikes also has planes before and after the
    exposure. These planes hold noise. If a test reads only the planes of the exposure, the noise
    changes nothing.
    """

    before: int
    inside: int
    after: int
    # Plane of the exposure at which the sharp frame is taken.
    sharp_plane: int
    # How many pixels of a frame make a pixel of the spike camera, along each side.
    ratio: int

    def write(self, frames, blurry, sharp, spikes, noise_seed):
        """Write the files.

        frames: the scene at each plane of the exposure, (inside, 32, 32, 3) uint8, display values.
        blurry: path -> gamma. A frame is averaged as display value ** gamma. sharp, spikes: paths.
        """
        for path, gamma in blurry.items():
            light = ((frames / 255.0) ** gamma).mean(axis=0)
            imwrite_rgb(path, np.rint(255 * light ** (1 / gamma)).astype(np.uint8))
        imwrite_rgb(sharp, frames[self.sharp_plane])

        stream = self.stream(frames)
        rng = np.random.default_rng(noise_seed)
        noise = rng.random((self.before + self.after, *stream.shape[1:])) < 0.5
        parts = [noise[: self.before], stream, noise[self.before :]]
        write_dat(spikes, np.concatenate(parts).astype(np.uint8))

    def stream(self, frames):
        """Return the spikes of the exposure (inside, h, w): a pixel integrates grey values."""
        side = 32 // self.ratio
        grey = frames.mean(axis=3, dtype=np.float32) / 255  # (inside, 32, 32)
        # Each pixel of the spike camera sees ratio x ratio pixels of a frame. E.g. ratio 2: the
        # shape (inside, 32, 32) becomes (inside, 16, 2, 16, 2), and the mean over the two axes of
        # length 2 gives (inside, 16, 16).
        grey = grey.reshape(len(frames), side, self.ratio, side, self.ratio).mean(axis=(2, 4))
        rng = np.random.default_rng(0)
        # 0.9925 spikes per plane at full light: the rate of S-SDM (data/spike/simulate.py).
        return IntegrateAndFire(side, side, rate=0.9925, rng=rng).run(list(grey))


def grey_frames(count, seed):
    """Return frames (count, 32, 32, 3) uint8 of grey clouds that move by 12 pixels in all.

    The spike camera sees no colours. So it sees the whole content of a grey scene.
    """
    frames = moving_frames(count, seed, step=12 / count)
    return frames[..., :1].repeat(3, axis=-1)


def mean_psnr_of_frames(pairs):
    """Return the mean PSNR of pairs (blurry frame, sharp frame), each a path."""
    values = []
    for blurry, sharp in pairs:
        values.append(psnr_of(imread_rgb(blurry) / 255, imread_rgb(sharp) / 255))
    return np.mean(values)


# Name of a clip of both data sets -> the number of its exposures that are scored.
CLIPS = {"GOPR0384_11_00": 3, "GOPR0385_11_01": 2}

# docs/benchmarks/published.md has these numbers of planes. Spk-GoPro: a file of a clip with the
# number 11 in its name has 8 x 11 = 88 planes, and plane 4 x 11 - 4 = 40 is the sharp frame. The
# test reads the central 56 planes, 16 to 71, in which the sharp frame is plane 24. S-SDM: a file
# has 137 planes, and the sharp frame is in their middle, plane 68 = 20 + 48.
SPK_GOPRO = Exposure(before=16, inside=56, after=16, sharp_plane=24, ratio=2)
S_SDM = Exposure(before=20, inside=97, after=20, sharp_plane=48, ratio=4)


def write_spk_gopro(noise_seed):
    """Write clips in the layout of Spk-GoPro. Return the pairs (blurry, sharp) that are scored.

    A clip has two blurry frames of each exposure: blur, a mean of display values, and blur_gamma, a
    mean of linear light. The test reads blur_gamma.
    """
    pairs = []
    for clip, count in CLIPS.items():
        folder = Path("trainsets/GOPRO_Large/test", clip)
        spikes = Path("trainsets/GOPRO_Large_spike_seq/test", clip, "spike")
        for index in range(count):
            name = f"{index + 1:06d}"
            of_display = folder / "blur" / f"{name}.png"
            of_light = folder / "blur_gamma" / f"{name}.png"
            sharp = folder / "sharp" / f"{name}.png"
            SPK_GOPRO.write(
                grey_frames(SPK_GOPRO.inside, seed=count + index),  # a frame for each plane inside
                blurry={of_display: 1, of_light: 2.2},  # path -> gamma
                sharp=sharp,
                spikes=spikes / f"{name}.dat",
                noise_seed=noise_seed + index,
            )
            pairs.append((of_light, sharp))
    return pairs


def results_on_spk_gopro(noise_seed):
    """Run both tests of the page on new data, in the current folder.

    Return the mean PSNR of the blurry frames, and {name of the test: its metrics.json}.
    """
    pairs = write_spk_gopro(noise_seed)
    # The published spikes have larger planes than the spikes of this test, so the size must be
    # given. A side of a frame has 32 pixels, and a spike pixel covers 2 of these pixels. So a side
    # of a plane has 16 pixels.
    size = ("datasets.test.spike.h=16", "datasets.test.spike.w=16")
    run_tests("Spk-GoPro", *size, "--overwrite")
    results = {
        "method": read_metrics(Path("experiments/spk_gopro/test_exposure")),
        "operator": read_metrics(Path("experiments/operator")),
    }
    return mean_psnr_of_frames(pairs), results


@dataclass(frozen=True)
class OnSpkGopro:
    """The tests of docs/benchmarks/published.md on data like Spk-GoPro.

    results: "method" or "operator" -> metrics.json.
    """

    results: dict[str, Any]
    results_with_other_noise: dict[str, Any]  # with other planes before and after each exposure
    psnr_of_blurry: float  # computed by hand


@pytest.fixture(scope="module")
def on_spk_gopro(tmp_path_factory):
    """Give the results of the commands for Spk-GoPro."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("spk_gopro"))
        psnr_of_blurry, results = results_on_spk_gopro(noise_seed=0)
        _, results_with_other_noise = results_on_spk_gopro(noise_seed=10)
    return OnSpkGopro(results, results_with_other_noise, psnr_of_blurry)


# docs/benchmarks/published.md has two tests of this data set: the method exposure, and the small
# network weights/operator.pth.
BOTH_TESTS = pytest.mark.parametrize("name", ["method", "operator"])


@BOTH_TESTS
def test_spk_gopro_is_tested_with_the_central_56_planes_alone(on_spk_gopro, name):
    found = on_spk_gopro.results[name]["averages"]

    # The planes before and after these 56 planes hold noise. So other noise must change nothing.
    assert found == on_spk_gopro.results_with_other_noise[name]["averages"]


@BOTH_TESTS
def test_the_blurry_frames_of_spk_gopro_have_the_score_that_is_computed_by_hand(on_spk_gopro, name):
    blurry = on_spk_gopro.results[name]["averages"]["input"]

    assert blurry["psnr"] == pytest.approx(on_spk_gopro.psnr_of_blurry, abs=1e-4)


@BOTH_TESTS
def test_each_frame_of_spk_gopro_is_restored_and_gains_3_db(on_spk_gopro, name):
    averages = on_spk_gopro.results[name]["averages"]

    assert averages["restored"]["frames"] == sum(CLIPS.values())
    assert averages["restored"]["psnr"] > averages["input"]["psnr"] + 3


@BOTH_TESTS
def test_the_results_on_spk_gopro_name_the_published_protocol(on_spk_gopro, name):
    protocol = on_spk_gopro.results[name]["protocol"]["metrics"]

    # "neither clamped nor rounded": the option file of Spk-GoPro sets metric.values to "float".
    assert protocol.startswith("x255, neither")
    assert "all frames" in protocol


def write_s_sdm():
    """Write clips in the layout of S-SDM's GOPRO. Return the pairs (blurry, sharp) that are scored.

    The first exposure of a clip has no spikes, so it is not scored.
    """
    pairs = []
    for clip, count in CLIPS.items():
        # The seeds give the exposures of a clip different scenes and different noise. Exposures of
        # the two clips may have equal seeds (3, 4, 5, 6 and 2, 3, 4).
        for index in range(count + 1):
            name = f"{13 * index + 6:06d}"  # as S-SDM's files: 000006, 000019, 000032, ...
            blurry = Path("GOPRO/test/blur_data", clip, f"{name}.png")
            sharp = Path("GOPRO/test/sharp_data", clip, f"{name}.png")
            spikes = Path("GOPRO/test/spike_data", clip, f"{name}.dat")
            S_SDM.write(
                grey_frames(S_SDM.inside, seed=count + index),  # one for each plane
                blurry={blurry: 1},  # path -> gamma. Gamma 1: the mean of display values
                sharp=sharp,
                spikes=spikes,
                noise_seed=index,
            )
            if index == 0:
                spikes.unlink()
            else:
                pairs.append((blurry, sharp))
    return pairs


@dataclass(frozen=True)
class OnSSdm:
    """The test of docs/benchmarks/published.md on data like S-SDM's GOPRO."""

    # Factor -> metrics.json. The page tests with 1, 2 and 4 times the threshold of the data: with
    # a higher threshold, the spike camera gives fewer spikes.
    results: dict[int, Any]
    psnr_of_blurry: float  # computed by hand


@pytest.fixture(scope="module")
def on_s_sdm(tmp_path_factory):
    """Give the results of the commands for S-SDM's GOPRO."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("s_sdm"))
        pairs = write_s_sdm()
        # `commands` gives the shell text of a section of the page. This section begins with a loop,
        # which makes links. The other commands of the section begin with "python ".
        loop, _, _ = commands("S-SDM's GOPRO").partition("python ")
        subprocess.run(["bash", "-ec", loop], check=True)

        results = {}
        for factor in (1, 2, 4):
            # A side of a frame has 32 pixels. A side of a spike plane has 32 / 4 = 8 pixels.
            size = ("datasets.test.spike.h=8", "datasets.test.spike.w=8")
            run_tests("S-SDM's GOPRO", *size, factor=factor)
            results[factor] = read_metrics(Path(f"experiments/s_sdm_{factor}"))
        return OnSSdm(results, mean_psnr_of_frames(pairs))


def test_the_blurry_frames_of_s_sdm_that_have_spikes_are_scored(on_s_sdm):
    blurry = on_s_sdm.results[1]["averages"]["input"]

    assert blurry["psnr"] == pytest.approx(on_s_sdm.psnr_of_blurry, abs=1e-4)
    assert blurry["frames"] == sum(CLIPS.values())


def test_each_threshold_of_s_sdm_gives_another_result(on_s_sdm):
    restored = {each["averages"]["restored"]["psnr"] for each in on_s_sdm.results.values()}

    assert len(restored) == 3


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_each_threshold_of_s_sdm_gains_4_db(on_s_sdm, factor):
    averages = on_s_sdm.results[factor]["averages"]

    assert averages["restored"]["psnr"] > averages["input"]["psnr"] + 4


def test_the_results_on_s_sdm_name_the_published_protocol(on_s_sdm):
    protocol = on_s_sdm.results[1]["protocol"]["metrics"]

    assert protocol.startswith("clamp 0..1, x255, not rounded")
    assert protocol.endswith("all frames")


# ---- Similar data from raw frames ----


@pytest.fixture(scope="module")
def similar_data(tmp_path_factory):
    """Give a folder with both data sets that docs/benchmarks/published.md makes of raw frames."""
    folder = tmp_path_factory.mktemp("similar")
    # 39 raw frames make three blurry frames, because each is the mean of 13 raw frames.
    frames = moving_frames(39, step=1)
    grey = frames[..., :1].repeat(3, axis=3)
    # `larger` is twice as large: 64 x 64. The second command has --ratio 4, so the side of its
    # spike planes is a quarter of 64: 16 x 16.
    larger = grey.repeat(2, axis=1).repeat(2, axis=2)
    write_folder(folder / "GOPRO_Large_all/test/GOPR0384_11_00", larger)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in commands("Similar data").splitlines():
            # "python scripts/prepare_gopro_spike.py ARGUMENTS"
            arguments = shlex.split(line)[2:]
            assert prepare_gopro_spike.main([*arguments, "--workers", "1"]) == 0
    return folder


@pytest.mark.parametrize(
    ("protocol", "data", "spike"),
    [
        ("spk_gopro", "like_spk_gopro", ["h=32", "w=32"]),
        ("s_sdm_gopro", "like_s_sdm", ["h=16", "w=16", "first=0", "center=48"]),
    ],
)
def test_similar_data_made_from_raw_frames_are_scored_too(
    similar_data, tmp_path, protocol, data, spike
):
    made = similar_data / "trainsets" / data

    restore(
        *["--opt", ROOT / f"options/protocols/{protocol}.json"],
        *["--method", "exposure"],
        *["--output", tmp_path / "out"],
        f"datasets.test.dataroot_lq={made}/GOPRO_Large/test",
        f"datasets.test.dataroot_gt={made}/GOPRO_Large/test",
        f"datasets.test.dataroot_spike={made}/GOPRO_Large_spike_seq/test",
        *[f"datasets.test.spike.{change}" for change in spike],
    )

    total = read_metrics(tmp_path / "out")["averages"]
    assert total["restored"]["frames"] == 3
    assert total["restored"]["psnr"] > total["input"]["psnr"] + 1
