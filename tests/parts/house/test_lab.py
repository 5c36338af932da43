"""The measurements of lab/ from their command lines, with tiny networks on tiny clips."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lab import benchmark, gpu, quality
from lab.quality import Outcome, difference, main, moving_psnr, tables
from lab.tools import NAMED, ROOT
from main_train_vrt import read_options
from scripts.make_sample_data import SAMPLE, make_sample
from tests.dist.launching import run_ranks
from tests.helpers.train_files import network
from utils.image import imwrite_rgb

TINY = ("--steps", "2", "--seeds", "0")


def write_file(path, **changes):
    netG = {
        "in_chans": None,
        "fusion": path.stem,
        **{k: v for k, v in network().items() if k[:2] not in ("in", "fu")},
    }
    train = {"num_frame": 2, "gt_size": 32, **changes}
    base = str(ROOT / "options/vrt/000_train_vrt_sample_rgbspike.json")
    path.write_text(
        json.dumps({"base": base, "task": path.stem, "datasets": {"train": train}, "netG": netG})
    )
    return str(path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A results folder with two methods, and the arguments of the command."""
    folder = tmp_path_factory.mktemp("quality")
    make_sample(folder / "out/data/made", replace(SAMPLE, clips={"train": 1, "test": 2}, frames=2))
    files = [write_file(folder / f"{name}.json") for name in ("concat", "none")]
    arguments = ["--opt", *files, *TINY, "--out", str(folder / "out")]
    call = quality.call

    def forked(program, out, name, *options):
        """As `call`, without the time in which Python and torch start; "tfp" is a process of its
        own.
        """
        if name in ("made", "tfp"):
            return call(program, out, name, *options)
        result = run_ranks(1, program, *options)
        assert result.exit_codes == [0], result.text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quality, "call", forked)
        assert main(arguments) == 0
    return folder, arguments


def test_every_method_and_formula_is_tested_and_stands_in_the_tables(finished):
    out = finished[0] / "out"
    results = {
        path.name.split("_")[0]: json.loads(path.read_text())
        for path in (out / "results").iterdir()
    }
    assert results.keys() == {"tfp", "tfi", "exposure", "concat", "none"}
    clips = ["recorded/SAMPLE00_test", "recorded/SAMPLE01_test"]
    assert (
        all(sorted(result["clips"]) == clips for result in results.values())
        and results["none"]["s_per_step"] > 0
    )
    estimate = results["exposure"]["clips"][clips[0]]
    assert estimate["restored"]["moving"] > estimate["input"]["moving"] + 1
    text = (out / "table_report.md").read_text()
    for part in text.split("PSNR-Y in dB")[0].split("\n\n")[2::2]:  # no colour in tfp and tfi
        assert "| exposure " in part and "| tfp " not in part
    assert all(
        f"| {name} " in text for name in ("tfp", "tfi", "none 2", "concat 2", "blurry input")
    )


def test_a_second_call_repeats_no_finished_run_and_uses_no_result_of_other_options(
    finished, tmp_path, capsys
):
    out = finished[0] / "out"
    before = {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()}
    assert main(finished[1]) == 0 and ": done" not in capsys.readouterr().out
    other = write_file(tmp_path / "none.json", use_rot=False)
    assert main(["--opt", finished[1][1], other, *finished[1][3:], "--only", "concat"]) == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()} == before
    assert "| none" not in (out / "table_report.md").read_text()
    more = write_file(tmp_path / "none.json", gt_size=64)  # its steps see another amount of data
    with pytest.raises(SystemExit, match="of concat"):
        main([*finished[1][:2], more, *finished[1][3:]])
    with pytest.raises(SystemExit, match="has no bedroom, blocks, camel"):
        main(["--suite", "real", "--videos", str(tmp_path), *finished[1]])


def test_the_score_of_moving_pixels_leaves_still_ones_out(tmp_path):
    for kind, error in (("sharp", 0), ("blur", 20), ("restored", 10)):
        picture = np.full((64, 64, 3), 100, np.uint8)
        picture[:32, :32] += np.uint8(error)  # moves
        # Differs by less than what counts as motion, and far from it
        picture[60:] += np.uint8(error // 2)
        imwrite_rgb(tmp_path / kind / "0.png", picture)
    pixels = 39 * 39 / 32**2  # 7 pixels around the square count as well
    expected = [20 * np.log10(255 / error) + 10 * np.log10(pixels) for error in (10, 20)]
    assert list(moving_psnr(tmp_path / "restored", tmp_path).values()) == pytest.approx(expected)


def outcome(name, parameters, *rows):
    """rows: for each seed the PSNR of clips a, b, ..."""

    def clip(value):
        restored, blurry = (
            {"psnr": psnr, "moving": psnr, "psnr_y": psnr} for psnr in (value, 25.0)
        )
        return {"restored": restored, "input": blurry}

    clips = [{f"recorded/{c}": clip(p) for c, p in zip("abc", row, strict=False)} for row in rows]
    return Outcome(
        name,
        parameters,
        {seed: {"clips": each, "s_per_step": 1.0} for seed, each in enumerate(clips)},
    )


def test_the_difference_is_paired_and_its_interval_students():
    # Differences 1, 2, 3: mean 2, deviation 1; t(0.975, 2) = 4.303.
    found = difference({0: 31.0, 1: 30.0, 2: 33.0, 3: 50.0}, {0: 30.0, 1: 28.0, 2: 30.0})
    assert found == pytest.approx((2.0, 4.303 / 3**0.5))
    assert difference({0: 1.0}, {0: 3.0}) == (-2.0, None) and difference({0: 1.0}, {1: 1.0}) is None


def test_the_table_says_which_methods_are_not_alike_or_below_their_input():
    text = tables(
        [outcome("concat", 100, [29, 29], [30, 30]), outcome("wide", 106, [24, 24], [31, 31])],
        ["recorded"],
    )
    rows = {
        line.split("|")[1].strip(): line for line in text.splitlines()[:5] if line.startswith("|")
    }
    assert "106, NOT ALIKE" in rows["wide"] and "2 of 4" in rows["wide"]
    assert "NOT" not in rows["concat"] and "0 of 4" in rows["concat"] and "29.50 ± 0.71" in text


def test_the_interval_over_clips_is_of_the_clips_mean_differences_over_shared_seeds():
    # Differences of 1, 2 and 3 between clips, the same for both seeds; one seed is not shared.
    # t(0.975, 2) = 4.303.
    concat = outcome("concat", 100, (30, 30, 30), (20, 20, 20))
    best = outcome("best", 100, (31, 32, 33), (21, 22, 23), (0, 0, 0))
    assert "| best | +2.00 ± 2.48 |" in tables([concat, best], ["recorded"])


@pytest.mark.parametrize("command", ["net", "train"])
def test_the_benchmark_compares_with_the_oracle(tmp_path, capsys, command):
    threads = torch.get_num_threads()
    arguments = [command, "--quick", "--device", "cpu", "--threads", "1", "--against", "naive"]
    assert benchmark.main([*arguments, "--json", str(tmp_path / "numbers.json")]) == 0
    torch.set_num_threads(threads)
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["largest_difference"] < 1e-4 and "ours / naive" in capsys.readouterr().out
    ours = numbers["runs"]["ours"]
    assert (
        ours["flops_per_s"] == pytest.approx(numbers["model_flops"] / ours["median_s"])
        and ours["process_mb"] > 0
    )


def test_the_named_network_is_that_of_the_option_file():
    net = read_options(
        ["--opt", "options/vrt/006_train_vrt_videodeblurring_gopro_rgbspike.json"]
    ).netG.plain()
    assert {key: net[key] for key in NAMED["006"]} == NAMED["006"]


@pytest.mark.slow
def test_gpu_measurements_are_processes_and_one_that_fails_is_noted(tmp_path, monkeypatch):
    out, python = tmp_path / "gpu.json", tmp_path / "python"
    assert gpu.main(["--device", "cpu", "--only", "ceilings", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["figures"]["ceilings"]["copy GB/s"] > 0
    python.write_text("#!/bin/sh\nsleep 0$SECONDS_ASLEEP\necho no memory >&2\nexit 3")
    python.chmod(0o755)
    monkeypatch.setattr(gpu.sys, "executable", str(python))
    failed = {"failed": "no memory", "code": 3}
    assert dict(gpu.in_process(["ceilings"], "cpu", 60)) == {"ceilings": failed}
    monkeypatch.setenv("SECONDS_ASLEEP", "9")
    assert "limit" in dict(gpu.in_process(["ceilings"], "cpu", 0))["ceilings"]["failed"]
