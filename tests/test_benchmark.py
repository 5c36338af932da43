"""scripts/benchmark.py from its command line."""

from __future__ import annotations

import json

import pytest
import torch

from main_train_vrt import read_options
from scripts.benchmark import main
from scripts.benchmark_net import NAMED, RECIPES
from scripts.benchmark_parts import PARTS

QUICK = ("--config", "small", "--repeats", "1", "--warmup", "0", "--device", "cpu")


@pytest.fixture
def benchmark(tmp_path, capsys):
    """Runs one subcommand; (its JSON, what it printed)."""

    def run(*argv):
        threads = torch.get_num_threads()
        assert main([*argv, *QUICK, "--json", str(tmp_path / "numbers.json")]) == 0
        torch.set_num_threads(threads)
        return json.loads((tmp_path / "numbers.json").read_text()), capsys.readouterr().out

    return run


@pytest.mark.parametrize("command", ["net", "train"])
def test_the_benchmark_compares_with_the_oracle_and_says_where_the_time_goes(benchmark, command):
    numbers, text = benchmark(command, "--crop", "32", "--frames", "2", "--threads", "1", "--against", "naive")

    assert numbers["largest_difference"] < 1e-4
    assert set(numbers["runs"]) == {"ours", "naive"}
    ours = numbers["runs"]["ours"]
    assert ours["median_s"] > 0 and ours["process_mb"] > 0
    assert ours["flops_per_s"] == pytest.approx(numbers["model_flops"] / ours["median_s"])
    assert set(numbers["shares"]) == set(PARTS) and sum(numbers["shares"].values()) == pytest.approx(1.0)
    absent = {part for part, share in numbers["shares"].items() if share == 0}
    assert absent == (set() if command == "train" else {"optimiser"})
    assert {"alignment", "self attention", "MLP"} < set(numbers["parts"])
    assert "ours / naive" in text and "mutual attention" in text


def test_a_list_of_sizes_gives_the_growth_table(benchmark):
    numbers, text = benchmark("net", "--sizes", "2x32,3x32,2x32x64")

    small, longer, wider = numbers["sizes"]
    assert [small["size"], longer["size"], wider["size"]] == [[1, 2, 32, 32], [1, 3, 32, 32], [1, 2, 32, 64]]
    # Two frames have one pair to align, three have two; twice the pixels cost twice as much.
    assert 1.5 * small["model_flops"] < longer["model_flops"] < 2 * small["model_flops"]
    assert wider["model_flops"] == pytest.approx(2 * small["model_flops"])
    assert "| 3 x 32 x 32 " in text and "per pixel and frame" in text


def test_two_processes_are_measured_against_one(benchmark):
    numbers, text = benchmark("scale", "--crop", "32", "--frames", "2", "--threads", "1", "--ranks", "2")

    one, two = numbers["runs"]
    assert (one["ranks"], two["ranks"]) == (1, 2)
    assert one["efficiency"] == 1.0 and one["reduction_share"] == 0.0
    assert two["samples_per_s"] == pytest.approx(2 / two["step_s"])
    assert two["efficiency"] == pytest.approx(one["step_s"] / two["step_s"]) and 0 <= two["reduction_share"] < 1
    assert "gloo" in text and "efficiency" in text


def test_the_named_recipe_is_that_of_the_option_file():
    net = read_options(["--opt", "options/vrt/006_train_vrt_videodeblurring_gopro_rgbspike.json"]).netG.plain()
    named = NAMED["006"] | RECIPES["006"]
    assert {key: net[key] for key in named} == named


def test_a_wrong_option_file_is_refused_in_our_words(capsys):
    assert main(["net", *QUICK, "--config", "options/none.json"]) == 2
    assert "OptionError" in capsys.readouterr().err
    # Its keys would build a VRT of another size.
    assert main(["net", *QUICK, "--config", "options/operators/exposure_alone.json"]) == 2
    assert "netG.net_type is fusion" in capsys.readouterr().err


def test_the_waiting_rules_of_openmp_are_compared_in_turn(tmp_path, capsys):
    numbers = tmp_path / "threads.json"
    shape = ("--frames", "2", "--crop", "32", "--threads", "1", "--repeats", "1", "--rules", "passive")

    assert main(["threads", *shape, "--json", str(numbers)]) == 0

    steps = json.loads(numbers.read_text())["steps"]
    assert [(s["rule"], s["company"]) for s in steps] == [
        ("unset", "alone"), ("passive", "alone"), ("unset", "busy"), ("passive", "busy")]  # fmt: skip
    assert all(s["seconds"][0] > 0 and s["ratio"] > 0 for s in steps)
