"""The options metric.values and metric.mean, and the protocols of published numbers.

metric.values says whether frames are rounded or clamped before they are scored, and metric.mean
whether all clips or all frames count alike. The second half runs the commands of
docs/benchmarks/published.md, on small data in the layout of the published data sets.
"""

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from data.clips.clip_reader import user_clips
from data.spike.simulate import IntegrateAndFire
from models.portable import read_saved
from scripts import compare_runs, prepare_gopro_spike
from tests.helpers.clip_files import write_dat
from tests.helpers.gopro_files import moving_frames, write_folder
from tests.helpers.tensor_clip import restore_clip
from tests.helpers.train_files import experiment, train, write_options
from tests.helpers.weights_files import make_home, message, metrics
from tests.helpers.weights_files import restore as run_test
from utils.image import imread_rgb, imwrite_rgb
from utils.run.history import read_history

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/benchmarks/published.md"
FLOAT = ("metric.values=float", "metric.mean=frames")


def psnr_of(image, sharp):
    """Return the PSNR of two pictures with values from 0 to 1, in dB."""
    return -10 * np.log10(
        np.mean((np.asarray(image, np.float64) - np.asarray(sharp, np.float64)) ** 2)
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give the folder of `make_home`, with weights that brighten the frames beyond 1."""
    home = make_home(tmp_path_factory.mktemp("home"))
    saved = torch.load(home / "spike.pth", weights_only=True)
    saved["params"]["conv_last.bias"] += 0.5
    torch.save(saved, home / "spike.pth")
    return home


@pytest.fixture(scope="module")
def scored(home):
    """Give the folders of three tests with metric.mean=frames: metric.values -> folder."""
    for values in ("uint8", "clamped", "float"):
        run_test(*of(home, home / values), *FLOAT[1:], f"metric.values={values}")
    return {values: home / values for values in ("uint8", "clamped", "float")}


def of(home, out):
    """Return the command of a test that writes its results to `out`."""
    return (
        "--opt",
        home / "options.json",
        "--weights",
        home / "spike.pth",
        "--output",
        out,
        "--save",
        "frames",
    )


@pytest.mark.parametrize("values", ["clamped", "float"])
def test_values_that_are_not_rounded_are_those_of_the_network(home, scored, values):
    rgb = home / "GOPRO_Large/test/test2"
    spikes = home / "GOPRO_Large_spike_seq/test/test2/spike"
    saved = read_saved(home / "spike.pth")
    clip = user_clips(rgb / "blur", spikes, rgb / "sharp", saved.spike)[0]
    items = [clip.frame(i) for i in range(4)]
    lq, spike = (torch.stack([item[kind] for item in items])[None] for kind in ("lq", "spike"))
    restored = restore_clip(saved.build(), lq, spike, window_size=(2, 4, 4), least_size=(8, 8))[0]
    assert restored.max() > 1.1
    restored = restored.clamp(0, 1) if values == "clamped" else restored
    by_hand = [psnr_of(image, item["gt"]) for image, item in zip(restored, items, strict=True)]
    found = metrics(scored[values])["clips"]["test2"]["per_frame"]["restored"]["psnr"]

    assert found == pytest.approx(by_hand, abs=1e-4)


def test_a_figure_names_its_protocol_and_the_mean_over_frames_is_the_figure(scored, capsys):
    found = {values: metrics(folder) for values, folder in scored.items()}
    psnr = {values: results["averages"]["restored"]["psnr"] for values, results in found.items()}
    assert psnr["float"] < psnr["clamped"] - 0.5
    assert 0 < abs(psnr["clamped"] - psnr["uint8"]) < 0.05
    said = {
        values: results["protocol"]["metrics"].split("; ")[0] for values, results in found.items()
    }
    assert said == {
        "uint8": "clamp 0..1, x255, round to uint8", "clamped": "clamp 0..1, x255, not rounded",
        "float": "x255, neither clamped nor rounded",
    }  # fmt: skip
    clips = found["float"]["clips"].values()
    total = found["float"]["averages"]["restored"]
    every = [value for clip in clips for value in clip["per_frame"]["restored"]["psnr"]]
    assert total["psnr"] == pytest.approx(np.mean(every))
    assert total["mean"] == "frames"
    assert total["psnr_clip_mean"] == pytest.approx(
        np.mean([clip["restored"]["psnr"] for clip in clips])
    )
    assert found["float"]["protocol"]["metrics"].endswith("mean over all frames")
    rows = [
        line.split("  ")[0] for line in (scored["float"] / "table.txt").read_text().splitlines()
    ]
    assert rows[4:6] == ["mean over frames", "mean over clips"]
    page = (scored["float"] / "report.html").read_text()

    assert re.search('<tr class="mean"><td[^>]*>mean over frames</td>', page)
    assert compare_runs.main([str(scored["float"]), str(scored["uint8"])]) == 3
    assert "scored differently" in capsys.readouterr().err


def test_a_test_of_exact_values_goes_on_and_leaves_no_other_files(home, scored, capfd):
    folder = scored["float"]
    before = metrics(folder)
    assert not (folder / ".work").exists()
    assert len(list((folder / "test2").iterdir())) == 4
    (folder / "clips/test2.json").unlink()  # the values of its frames are gone, too
    run_test(*of(home, folder), *FLOAT)
    assert metrics(folder)["averages"] == before["averages"]
    text, code = message(capfd, *of(home, folder), *FLOAT[1:])

    assert code == 2
    assert "metric.values was float, is uint8" in text


def test_validation_scores_as_the_test_does(tmp_path):
    options = write_options(tmp_path)
    steps = [f"train.{key}=1" for key in ("total_iter", "checkpoint_test", "checkpoint_save")]
    assert train(options, *steps, *FLOAT).exit_codes == [0]
    run_test("--opt", options, "--output", tmp_path / "out", *FLOAT)
    means = metrics(tmp_path / "out")["averages"]
    history = read_history(experiment(options))
    for tag, kind in (("val/psnr", "restored"), ("val/psnr_input", "input")):
        assert history[tag][-1][1] == pytest.approx(means[kind]["psnr"], abs=1e-5)
    again = train(options, "train.total_iter=2", *steps[1:], FLOAT[0])

    assert re.search(r"best PSNR so far, .* does not count: metric.mean changed", again.text)


def commands(heading):
    """Return the commands of a section of the page, each in one line.

    heading: the heading of the section, e.g. "Spk-GoPro".
    """
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return "\n".join(re.findall(r"```bash\n(.*?)```", section, re.DOTALL)).replace("\\\n", "")


def run_tests(heading, *changes, factor=1):
    """Run each command of a section that starts main_test_vrt.py, in the current folder.

    changes: further arguments. factor: what stands for T in the commands, the factor of the
    threshold of the spike camera.
    """
    text = commands(heading).replace("options/protocols", str(ROOT / "options/protocols"))
    text = text.replace("weights/operator", str(ROOT / "weights/operator")).replace(
        "[T, T]", f"[{factor}, {factor}]"
    )
    for line in re.findall(r"(?m)^python main_test_vrt\.py (.*)$", text):
        run_test(*shlex.split(line.replace("_T ", f"_{factor} ")), *changes)


def write_exposure(blur, sharp, spikes, frames, ratio, planes, noise):
    """The pictures of one exposure in display values, and its spikes.

    frames: (T, 32, 32, 3) uint8, a plane each. blur: path -> exponent of the light that is
    averaged. planes: how many of the file are before the exposure, after it, and of it before the
    sharp frame. noise: seed of those outside.
    """
    before, after, middle = planes
    for path, gamma in blur.items():
        light = ((frames / 255.0) ** gamma).mean(axis=0) ** (1 / gamma)
        imwrite_rgb(path, np.rint(255 * light).astype(np.uint8))
    imwrite_rgb(sharp, frames[middle])
    size = 32 // ratio
    grey = frames.mean(axis=3, dtype=np.float32) / 255
    grey = grey.reshape(len(frames), size, ratio, size, ratio).mean(axis=(2, 4))
    stream = IntegrateAndFire(size, size, rate=0.9925, rng=np.random.default_rng(0)).run(list(grey))
    outside = np.random.default_rng(noise).random((before + after, size, size)) < 0.5
    stream = np.concatenate([outside[:before], stream, outside[before:]]).astype(np.uint8)
    write_dat(spikes, stream)


def grey_frames(count, seed):
    """Return frames (count, 32, 32, 3) uint8 of grey clouds that move by 12 pixels in all.

    Spikes see no colours. So they tell all of a grey scene.
    """
    return moving_frames(count, seed, step=12 / count)[..., :1].repeat(3, axis=-1)


def frame_mean(pairs):
    """Return the mean PSNR of pairs (blurry frame, sharp frame), each a path."""
    return np.mean([psnr_of(imread_rgb(a) / 255, imread_rgb(b) / 255) for a, b in pairs])


def write_spk_gopro(noise):
    """Two clips of 3 and 2 exposures of 88 planes, 56 of them of the light; (blur_gamma, sharp) of
    each frame.
    """
    pairs = []
    for clip, count in (("GOPR0384_11_00", 3), ("GOPR0385_11_01", 2)):
        rgb = Path("trainsets/GOPRO_Large/test", clip)
        for i in range(count):
            kinds = {
                kind: rgb / kind / f"{i + 1:06d}.png" for kind in ("blur", "blur_gamma", "sharp")
            }
            spikes = Path("trainsets/GOPRO_Large_spike_seq/test", clip, "spike", f"{i + 1:06d}.dat")
            blur = {kinds["blur"]: 1, kinds["blur_gamma"]: 2.2}
            frames = grey_frames(56, seed=count + i)
            write_exposure(blur, kinds["sharp"], spikes, frames, 2, (16, 16, 24), noise + i)
            pairs.append((kinds["blur_gamma"], kinds["sharp"]))
    return pairs


def test_the_test_of_spk_gopro(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = []
    for noise in (0, 10):
        pairs = write_spk_gopro(noise)
        run_tests(
            "Spk-GoPro", "datasets.test.spike.h=16", "datasets.test.spike.w=16", "--overwrite"
        )
        found.append(
            [metrics(Path("experiments", name)) for name in ("spk_gopro/test_exposure", "operator")]
        )
    for first, second in zip(*found, strict=True):
        assert first["averages"] == second["averages"]  # only the central 56 planes are read
        restored, blurry = (first["averages"][kind]["psnr"] for kind in ("restored", "input"))
        assert blurry == pytest.approx(frame_mean(pairs), abs=1e-4)
        assert restored > blurry + 3
        assert first["averages"]["restored"]["frames"] == 5
        assert first["protocol"]["metrics"].startswith("x255, neither")
        assert "all frames" in first["protocol"]["metrics"]


def test_the_test_of_s_sdm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = []
    for clip, count in (("GOPR0384_11_00", 3), ("GOPR0385_11_01", 2)):
        for i in range(count + 1):
            blur, sharp, spikes = (
                Path(
                    f"GOPRO/test/{kind}_data",
                    clip,
                    f"{13 * i + 6:06d}.{'dat' if kind == 'spike' else 'png'}",
                )
                for kind in ("blur", "sharp", "spike")
            )
            frames = grey_frames(97, seed=count + i)
            write_exposure({blur: 1}, sharp, spikes, frames, 4, (20, 20, 48), noise=i)
            pairs += [(blur, sharp)] if i else []
        Path("GOPRO/test/spike_data", clip, "000006.dat").unlink()
    subprocess.run(["bash", "-ec", commands("S-SDM's GOPRO").split("python ")[0]], check=True)
    found = {}
    for factor in (1, 2, 4):
        run_tests(
            "S-SDM's GOPRO", "datasets.test.spike.h=8", "datasets.test.spike.w=8", factor=factor
        )
        found[factor] = metrics(Path(f"experiments/s_sdm_{factor}"))
    psnr = {factor: results["averages"]["restored"]["psnr"] for factor, results in found.items()}
    blurry = found[1]["averages"]["input"]["psnr"]
    assert blurry == pytest.approx(frame_mean(pairs), abs=1e-4)
    assert found[1]["averages"]["input"]["frames"] == 5
    assert len(set(psnr.values())) == 3
    assert min(psnr.values()) > blurry + 4
    said = found[1]["protocol"]["metrics"]

    assert said.startswith("clamp 0..1, x255, not rounded")
    assert said.endswith("all frames")


def test_similar_data_made_from_raw_frames_are_scored_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frames = (
        moving_frames(39, step=1)[..., :1].repeat(3, axis=3).repeat(2, axis=1).repeat(2, axis=2)
    )
    write_folder(tmp_path / "GOPRO_Large_all/test/GOPR0384_11_00", frames)
    for line in commands("Similar data").splitlines():
        assert prepare_gopro_spike.main([*shlex.split(line)[2:], "--workers", "1"]) == 0
    for name, size, planes in (
        ("spk_gopro", 32, ()),
        ("s_sdm_gopro", 16, ("first=0", "center=48")),
    ):
        made = Path("trainsets", f"like_{name.removesuffix('_gopro') if planes else name}")
        ends = {"lq": "", "gt": "", "spike": "_spike_seq"}
        changes = [
            f"datasets.test.dataroot_{kind}={made}/GOPRO_Large{end}/test"
            for kind, end in ends.items()
        ]
        changes += [
            f"datasets.test.spike.{change}" for change in (f"h={size}", f"w={size}", *planes)
        ]
        run_test(
            "--opt",
            ROOT / f"options/protocols/{name}.json",
            "--method",
            "exposure",
            "--output",
            name,
            *changes,
        )
        total = metrics(Path(name))["averages"]
        assert total["restored"]["frames"] == 3, name
        assert total["restored"]["psnr"] > total["input"]["psnr"] + 1, name
