"""The measurements of lab/ from their command lines, with tiny networks on tiny clips."""

from __future__ import annotations

import json

import pytest
import torch

from data.spike.formats import SpikeGeometry, read_spikes
from lab import benchmark, gpu, quality
from lab.quality import Outcome, difference, main, report, spread
from lab.tools import NAMED, ROOT
from main_train_vrt import read_options
from tests.dist.launching import run_ranks
from tests.train_files import network

TINY = ("--clips", "1", "1", "--frames", "2", "--steps", "2", "--seeds", "0")


def write_file(path, **changes):
    """An option file of the benchmark with a tiny network."""
    netG = {"in_chans": None, "fusion": path.stem, **{k: v for k, v in network().items() if k[:2] not in ("in", "fu")}}
    train = {"num_frame": 2, "gt_size": 32, **changes}
    base = str(ROOT / "options/vrt/000_train_vrt_sample_rgbspike.json")
    path.write_text(json.dumps({"base": base, "task": path.stem, "datasets": {"train": train}, "netG": netG}))
    return str(path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A results folder with two methods, and the arguments of the command."""
    folder = tmp_path_factory.mktemp("quality")
    files = [write_file(folder / f"{name}.json") for name in ("concat", "none")]
    arguments = ["--opt", *files, *TINY, "--out", str(folder / "out")]
    call = quality.call

    def forked(program, out, name, *options):
        """As `call`, without the time in which Python and torch start; the last one is a process of its own."""
        if name.startswith("estimate"):
            return call(program, out, name, *options)
        result = run_ranks(1, program, *options)
        assert result.exit_codes == [0], result.text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quality, "call", forked)
        assert main(arguments) == 0
    return folder, arguments


def test_every_method_is_trained_and_tested_under_every_condition(finished):
    out = finished[0] / "out"
    numbers = json.loads((out / "table.json").read_text())
    conditions = ["recorded", "x0.5", "x2", "x4", "dark", "noise"]
    assert numbers["conditions"] == conditions
    assert list(numbers["methods"]) == ["concat", "none", "exposure estimate"]
    none = numbers["methods"]["none"]
    assert none["s_per_step"] > 0 and 0 < none["parameters"] < numbers["methods"]["concat"]["parameters"]
    # Without spikes, another threshold changes nothing; the estimate consists of them.
    assert none["x4"]["psnr"] == none["recorded"]["psnr"]
    estimate = numbers["methods"]["exposure estimate"]
    assert estimate["x4"]["psnr"][0] < estimate["recorded"]["psnr"][0] - 1
    concat = numbers["methods"]["concat"]["recorded"]["psnr"][0]
    assert none["recorded"]["to_reference"][0] == pytest.approx(none["recorded"]["psnr"][0] - concat)
    text = (out / "table.md").read_text()
    assert all(f" {name} " in text for name in [*conditions, "none", "concat", "exposure estimate"])


def test_the_conditions_record_the_same_scene_and_change_one_thing_each(finished):
    [data] = (finished[0] / "out").glob("data*/GOPRO_Large/test")

    def spikes(condition):
        path = data.parents[1] / f"GOPRO_Large_spike_seq/test/{condition}/SAMPLE00_test/spike/000000.dat"
        return float(read_spikes(path, SpikeGeometry(64, 64)).mean())

    def frame(condition, kind):
        return (data / condition / "SAMPLE00_test" / kind / "000000.png").read_bytes()

    for condition in ("x0.5", "x2", "x4", "noise"):
        assert frame(condition, "sharp") == frame("recorded", "sharp")
    assert frame("x4", "blur") == frame("recorded", "blur") and frame("noise", "blur") != frame("recorded", "blur")
    assert [spikes(c) / spikes("recorded") for c in ("x2", "x4")] == pytest.approx([0.5, 0.25], rel=0.02)
    assert 1.7 < spikes("x0.5") / spikes("recorded") < 2  # the brightest pixels fire in every plane
    assert spikes("dark") / spikes("recorded") == pytest.approx(0.25, rel=0.05)


def test_a_second_call_repeats_no_finished_run_and_uses_no_result_of_other_options(finished, tmp_path, capsys):
    out = finished[0] / "out"
    before = {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()}
    assert main(finished[1]) == 0 and "trained" not in capsys.readouterr().out
    other = write_file(tmp_path / "none.json", use_rot=False)
    assert main(["--opt", finished[1][1], other, *finished[1][3:], "--only", "concat"]) == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()} == before
    assert list(json.loads((out / "table.json").read_text())["methods"]) == ["concat", "exposure estimate"]
    more = write_file(tmp_path / "none.json", gt_size=64)  # its steps see another amount of data
    with pytest.raises(SystemExit, match="of concat"):
        main([*finished[1][:2], more, *finished[1][3:]])


def outcome(name, parameters, *rows):
    """rows: for each seed the PSNR of clips a, b, ..."""

    def clip(value):
        return {"restored": {"psnr": value, "ssim": 0.9}, "input": {"psnr": 25.0, "ssim": 0.8}}

    clips = [{f"recorded/{c}": clip(p) for c, p in zip("abc", row, strict=False)} for row in rows]
    return Outcome(name, parameters, {seed: {"clips": each, "s_per_step": 1.0} for seed, each in enumerate(clips)})


def test_the_difference_is_paired_and_its_interval_students():
    # Differences 1, 2, 3: mean 2, deviation 1; t(0.975, 2) = 4.303.
    mean, half = difference({0: 31.0, 1: 30.0, 2: 33.0, 3: 50.0}, {0: 30.0, 1: 28.0, 2: 30.0})
    assert (mean, half) == pytest.approx((2.0, 4.303 / 3**0.5))
    assert difference({0: 1.0}, {0: 3.0}) == (-2.0, None) and difference({0: 1.0}, {1: 1.0}) is None
    assert spread({0: 1.0, 1: 3.0}) == pytest.approx((2.0, 2**0.5)) and spread({0: 1.0}) == (1.0, None)


def test_the_table_says_which_methods_are_not_alike_or_below_their_input():
    text, _ = report([outcome("concat", 100, [29], [30]), outcome("wide", 106, [24], [31])], "concat", ["recorded"])
    rows = {line.split("|")[1].strip(): line for line in text.splitlines()[:8] if line.startswith("|")}
    assert "+6.0%, NOT ALIKE" in rows["wide"] and "1 of 2" in rows["wide"] and "-2.00 ± 38.12" in rows["wide"]
    assert "NOT" not in rows["concat"] and "29.50 ± 0.71" in rows["concat"] and "0 of 2" in rows["concat"]


def test_the_interval_over_clips_is_of_the_clips_mean_differences_over_shared_seeds():
    # Differences of 1, 2 and 3 between clips, the same for both seeds; one seed is not shared. t(0.975, 2) = 4.303.
    concat = outcome("concat", 100, (30, 30, 30), (20, 20, 20))
    best = outcome("best", 100, (31, 32, 33), (21, 22, 23), (0, 0, 0))
    text, numbers = report([concat, best], "concat", ["recorded"])
    assert "| best   | +2.00 ± 0.00 |" in text and "| best   | +2.00 ± 2.48 |" in text
    assert numbers["methods"]["best"]["recorded"]["to_reference_over_clips"][1] == pytest.approx(4.303 / 3**0.5)


@pytest.mark.parametrize("command", ["net", "train"])
def test_the_benchmark_compares_with_the_oracle(tmp_path, capsys, command):
    threads = torch.get_num_threads()
    arguments = [command, "--quick", "--device", "cpu", "--threads", "1", "--against", "naive"]
    assert benchmark.main([*arguments, "--json", str(tmp_path / "numbers.json")]) == 0
    torch.set_num_threads(threads)
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["largest_difference"] < 1e-4 and "ours / naive" in capsys.readouterr().out
    ours = numbers["runs"]["ours"]
    assert ours["flops_per_s"] == pytest.approx(numbers["model_flops"] / ours["median_s"]) and ours["process_mb"] > 0


def test_the_named_network_is_that_of_the_option_file():
    net = read_options(["--opt", "options/vrt/006_train_vrt_videodeblurring_gopro_rgbspike.json"]).netG.plain()
    assert {key: net[key] for key in NAMED["006"]} == NAMED["006"]


def test_a_gpu_measurement_is_a_process_of_its_own_and_one_that_fails_is_noted(tmp_path, monkeypatch):
    out, python = tmp_path / "gpu.json", tmp_path / "python"
    assert gpu.main(["--device", "cpu", "--only", "ceilings", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["figures"]["ceilings"]["copy GB/s"] > 0
    python.write_text("#!/bin/sh\nsleep 0$SECONDS_ASLEEP\necho no memory >&2\nexit 3")
    python.chmod(0o755)
    monkeypatch.setattr(gpu.sys, "executable", str(python))
    assert gpu.in_process("ceilings", "cpu", 60) == {"failed": "no memory", "code": 3}
    monkeypatch.setenv("SECONDS_ASLEEP", "9")
    assert "not finished" in gpu.in_process("ceilings", "cpu", 0)["failed"]
