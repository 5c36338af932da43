"""The measurements of lab/, started from their command lines, and the statistics of their tables.

The whole command of lab/quality.py is in test_quality_command.py. Here the statistics are tested on
numbers that are small enough to check by hand.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lab import benchmark, gpu, quality
from lab.gpu_next import FiniteOutputs, watched_losses
from lab.large_set import SIDE, make_set
from lab.quality_suite.moving import moving_psnr
from lab.quality_suite.outcomes import Outcome, difference
from lab.quality_suite.tables import tables
from lab.tools import NAMED
from main_train_vrt import read_options
from scripts.parts.make_sample_data.sample_layers import texture
from utils.image import imread_rgb, imwrite_rgb

GOPRO_OPTIONS = "options/vrt/006_train_vrt_videodeblurring_gopro_rgbspike.json"
# Student's t for a 95 % interval and three differences (two degrees of freedom).
T_OF_THREE = 4.303


# ---- lab/large_set.py ----


def test_the_pictures_of_the_large_set_have_the_colours_of_the_texture(tmp_path):
    make_set(tmp_path, clips=2)

    sharp = imread_rgb(tmp_path / "GOPRO_Large/train/clip00000/sharp/000000.png")
    expected = (255 * texture(np.random.default_rng(0), SIDE)).astype(np.uint8)
    np.testing.assert_array_equal(sharp, expected)


# ---- lab/quality.py: its statistics ----


def write_square(path: Path, error: int) -> None:
    """Write a grey picture of 64 x 64 with `error` added to a square that moves.

    `error` / 2 is added to the last four rows. They stand still.
    """
    picture = np.full((64, 64, 3), 100, np.uint8)
    picture[:32, :32] += np.uint8(error)
    # In the blurry frame `error` / 2 is 10 levels. More than 12 levels would count as motion. The
    # rows are far from the square.
    picture[60:] += np.uint8(error // 2)
    imwrite_rgb(path, picture)


def test_the_score_of_moving_pixels_leaves_still_ones_out(tmp_path):
    write_square(tmp_path / "sharp/0.png", error=0)
    write_square(tmp_path / "blur/0.png", error=20)
    write_square(tmp_path / "restored/0.png", error=10)

    scores = moving_psnr(tmp_path / "restored", tmp_path)

    # The score also counts the 7 rows and the 7 columns beside the square. They have no error. So
    # 39^2 pixels count in place of 32^2, and the mean squared error is smaller by this factor.
    factor = 39**2 / 32**2
    restored = 20 * np.log10(255 / 10) + 10 * np.log10(factor)
    blurry = 20 * np.log10(255 / 20) + 10 * np.log10(factor)
    assert list(scores.values()) == pytest.approx([restored, blurry])


def test_the_difference_of_two_methods_is_the_mean_over_shared_seeds():
    # Seeds 0 to 2 are shared. The differences are 1, 2 and 3, and their standard deviation is 1.
    concat = {0: 31.0, 1: 30.0, 2: 33.0, 3: 50.0}
    none = {0: 30.0, 1: 28.0, 2: 30.0}

    # `difference` returns a NamedTuple of the mean and the margin. The margin is half the interval.
    found = difference(concat, none)

    half_interval = T_OF_THREE * 1 / 3**0.5
    assert found == pytest.approx((2.0, half_interval))


# Number n of differences, of seeds or of clips -> 97.5 % quantile of Student's t with n - 1 degrees
# of freedom, from a printed table.
QUANTILES = {3: 4.303, 11: 2.228, 12: 2.201, 14: 2.160, 21: 2.086, 31: 2.042, 121: 1.980}


@pytest.mark.parametrize("n", QUANTILES)
def test_the_interval_has_the_quantile_of_the_number_of_differences(n):
    # E.g. for n = 5 the differences are 1, -1, 1, -1, 0. The mean is 0.
    differences = [1.0, -1.0] * (n // 2) + [0.0] * (n % 2)
    mine = dict(enumerate(differences))

    found = difference(mine, dict.fromkeys(mine, 0.0))

    assert found is not None
    assert found.margin is not None
    # margin = quantile x standard deviation / sqrt(n)
    quantile = found.margin * n**0.5 / statistics.stdev(differences)
    assert quantile == pytest.approx(QUANTILES[n], abs=6e-4)  # the table has three digits


def test_one_shared_seed_gives_a_difference_without_an_interval():
    assert difference({0: 1.0}, {0: 3.0}) == (-2.0, None)


def test_no_shared_seed_gives_no_difference():
    assert difference({0: 1.0}, {1: 1.0}) is None


def outcome(name: str, parameters: int, *rows: tuple[float, ...]) -> Outcome:
    """Return the outcome of a method.

    rows: for each seed, the PSNR of the clips a, b and c, or only of a and b. The blurry input of
        each clip has 25 dB.
    """
    runs = {}
    for seed, row in enumerate(rows):
        clips = {}
        for clip, psnr in zip("abc", row, strict=False):  # row may have only two values
            clips[f"recorded/{clip}"] = {"restored": all_scores(psnr), "input": all_scores(25.0)}
        runs[seed] = {"clips": clips, "s_per_step": 1.0}
    return Outcome(name, parameters, runs)


def all_scores(psnr: float) -> dict[str, float]:
    """Return the three scores of a clip. They are equal here."""
    return {"psnr": psnr, "moving": psnr, "psnr_y": psnr}


@pytest.fixture
def unequal_methods() -> list[Outcome]:
    """Give two methods with two seeds and two clips.

    "wide" has 6 % more parameters than "concat". With the first seed, its clips are worse than
    their input.
    """
    concat = outcome("concat", 100, (29, 29), (30, 30))
    wide = outcome("wide", 106, (24, 24), (31, 31))
    return [concat, wide]


@pytest.fixture
def unequal_rows(unequal_methods: list[Outcome]) -> dict[str, str]:
    """Give the rows of the first table: name of a method -> its row."""
    text = tables(unequal_methods, ["recorded"])
    rows = {}
    # The tables are separated by empty lines. The first table has a head, a rule, and a row for
    # each method.
    first_table, _, _ = text.partition("\n\n")
    for line in first_table.splitlines():
        if line.startswith("|"):
            method = line.split("|")[1].strip()
            rows[method] = line
    return rows


def test_the_table_names_a_method_with_more_parameters(unequal_rows):
    assert "106, OTHER SIZE" in unequal_rows["wide"]
    assert "OTHER" not in unequal_rows["concat"]


def test_the_table_counts_the_clips_that_are_worse_than_their_input(unequal_rows):
    # Two seeds restore two clips each. "wide" is worse with the first seed: 24 dB, below 25 dB.
    assert "2 of 4" in unequal_rows["wide"]
    assert "0 of 4" in unequal_rows["concat"]


def test_the_tables_say_the_mean_with_the_deviation_over_seeds(unequal_methods):
    text = tables(unequal_methods, ["recorded"])

    # "concat" has 29 dB with one seed and 30 dB with the other seed. The table has their mean and
    # their standard deviation.
    assert "29.50 ± 0.71" in text


def test_the_interval_over_clips_is_of_the_mean_differences_over_shared_seeds():
    # With seed 0 and with seed 1, the clips differ by 1, 2 and 3 dB. Only "best" has seed 2.
    concat = outcome("concat", 100, (30, 30, 30), (20, 20, 20))
    best = outcome("best", 100, (31, 32, 33), (21, 22, 23), (0, 0, 0))

    text = tables([concat, best], ["recorded"])

    # The differences of the three clips, 1, 2 and 3, have the mean 2 and the standard deviation 1.
    half_interval = T_OF_THREE * 1 / 3**0.5
    assert f"| best | +2.00 ± {half_interval:.2f} |" in text


# ---- lab/quality.py: its command line ----


def test_only_a_method_of_opt_can_be_chosen(capsys):
    # A method is an option file of --opt. By default, concat.json is one of the files. "concta" is
    # mistyped.
    with pytest.raises(SystemExit):
        quality.parse(["--only", "concat", "concta"])
    assert "--only concta: choose from " in capsys.readouterr().err


# ---- lab/benchmark.py ----


# This test is slow, because two networks are timed.
@pytest.mark.slow
@pytest.mark.parametrize("command", ["net", "train"])
def test_the_benchmark_compares_with_the_naive_network(tmp_path, capsys, command):
    file = tmp_path / "numbers.json"
    settings = ["--quick", "--device", "cpu", "--threads", "1", "--against", "naive"]
    threads = torch.get_num_threads()

    code = benchmark.main([command, *settings, "--json", str(file)])
    torch.set_num_threads(threads)  # other tests run in this process

    assert code == 0
    assert "ours / naive" in capsys.readouterr().out
    numbers = json.loads(file.read_text())
    # Both networks compute the same function, so only rounding may differ.
    assert numbers["largest_difference"] < 1e-4
    ours = numbers["runs"]["ours"]
    assert ours["flops_per_s"] == pytest.approx(numbers["model_flops"] / ours["median_s"])
    assert ours["process_mb"] > 0


def test_the_named_network_equals_the_network_of_the_option_file():
    # NAMED["006"] of lab/tools.py repeats keys of the network of option file 006. Both must be
    # changed together.
    net = read_options(["--opt", GOPRO_OPTIONS]).netG.plain()

    for key, value in NAMED["006"].items():
        assert net[key] == value


# ---- lab/gpu.py ----


@pytest.mark.slow
def test_a_measurement_of_a_gpu_writes_its_figures(tmp_path):
    out = tmp_path / "gpu.json"

    code = gpu.main(["--device", "cpu", "--only", "ceilings", "--out", str(out)])

    assert code == 0
    figures = json.loads(out.read_text())["figures"]
    assert figures["ceilings"]["copy GB/s"] > 0


@pytest.fixture
def failing_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lab/gpu.py start a program that fails in place of Python.

    The program exits with 3. If the variable SECONDS_ASLEEP is set, the program only sleeps. `exec`
    replaces the shell by the program `sleep`. So a kill of the shell ends the sleep.
    """
    python = tmp_path / "python"
    sleep = '[ -z "$SECONDS_ASLEEP" ] || exec sleep "$SECONDS_ASLEEP"'
    python.write_text(f"#!/bin/sh\n{sleep}\necho no memory >&2\nexit 3")
    python.chmod(0o755)
    monkeypatch.setattr(gpu.sys, "executable", str(python))


@pytest.mark.slow
def test_a_measurement_of_a_gpu_that_fails_is_noted(failing_python):
    figures = dict(gpu.run_in_process(["ceilings"], "cpu", limit_s=60))

    assert figures == {"ceilings": {"failed": "no memory", "code": 3}}


@pytest.mark.slow
def test_a_measurement_of_a_gpu_that_takes_too_long_is_noted(failing_python, monkeypatch):
    # The program would sleep for ten minutes, but its time is over at once.
    monkeypatch.setenv("SECONDS_ASLEEP", "600")

    figures = dict(gpu.run_in_process(["ceilings"], "cpu", limit_s=0))

    assert "limit" in figures["ceilings"]["failed"]


# ---- lab/gpu_next.py ----


class Logarithm(nn.Module):
    """Gives NaN if the input is negative."""

    def forward(self, x: Tensor) -> Tensor:
        return x.log()


def test_the_module_where_nan_began_is_named_although_replays_overwrite_the_flags():
    linear = nn.Linear(1, 1, bias=False)
    weight = linear.weight
    net = nn.Sequential(linear, Logarithm())  # the modules "0" and "1"
    # In each step, `outputs` appends a name and a flag for each module: whether its output was
    # finite.
    outputs = FiniteOutputs()
    outputs.watch(net)
    flags: list[Tensor] = []  # the flags of the first step

    def step() -> Tensor:
        """Run the net on 1, then lower the weight by 1. Return the loss, which is log(weight).

        The weights of the five steps are 1.5, 0.5, -0.5, NaN and NaN.

        A CUDA graph records the first step, and each replay writes its results into the tensors of
        this step. Here each later step does the same: it overwrites the flags of the first step.
        """
        with torch.no_grad():
            loss = net(torch.ones(1)).sum()
            # 0 * loss is 0, or NaN if the loss is NaN. So a loss of NaN makes the weight NaN, as a
            # backward pass does.
            weight.sub_(1 + 0 * loss)
        if not flags:
            flags.extend(outputs.flags)
            return loss
        # This step has appended its own flags. Move their values into the flags of the first step.
        for flag, new_flag in zip(flags, outputs.flags[len(flags) :], strict=True):
            flag.copy_(new_flag)
        del outputs.names[len(flags) :]
        del outputs.flags[len(flags) :]
        return loss

    nn.init.constant_(weight, 1.5)
    losses, first_bad = watched_losses(step, outputs)

    # In the third step, module "1" computes the logarithm of -0.5. The result is NaN. In the last
    # step both modules give NaN, because the weight is NaN.
    assert np.isnan(losses).tolist() == [False, False, True, True, True]
    assert outputs.first_bad() == ["0", "1"]
    assert first_bad == ["1"]
