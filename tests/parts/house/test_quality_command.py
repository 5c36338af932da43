"""lab/quality.py from its command line: one comparison of two methods, from data to report.

The data are the sample set of scripts/make_sample_data.py, with one clip for training and two for
testing. A clip has two frames. The networks have one block per stage, and are trained for two
steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lab.quality import main
from lab.quality_suite import programs
from lab.tools import ROOT
from scripts.make_sample_data import SAMPLE, make_sample
from tests.dist.launching import run_ranks
from tests.helpers.train_files import network_section

# The tests are slow: the comparison makes data, trains twice and tests five methods. It takes 15
# seconds of a core. test_lab.py tests the statistics of the comparison.
pytestmark = pytest.mark.slow

SAMPLE_OPTIONS = ROOT / "options/vrt/000_train_vrt_sample_rgbspike.json"
# The two test clips of the sample set.
CLIPS = ["recorded/SAMPLE00_test", "recorded/SAMPLE01_test"]


class Comparison(NamedTuple):
    """A finished run of lab/quality.py."""

    folder: Path  # holds out/, the results folder
    concat: str  # the option file of the method "concat"
    none: str  # the option file of the method "none"
    settings: list[str]  # the other arguments of the command
    report: str  # the text of table_report.md after the first run

    def arguments(self, *option_files: str) -> list[str]:
        """Return the arguments of the command for these option files."""
        return ["--opt", *option_files, *self.settings]

    def results(self) -> list[Path]:
        """Return the files of results: one for each method."""
        return list((self.folder / "out/results").iterdir())


def write_option_file(path: Path, **train_changes: Any) -> str:
    """Write an option file of a tiny network, and return its path as a text.

    The name of the file says the fusion, e.g. none.json. train_changes: keys of datasets.train.
    """
    tiny = network_section()
    # The sample's options say the number of input channels and the fusion.
    for key in ("in_chans", "fusion"):
        del tiny[key]
    netG = {"in_chans": None, "fusion": path.stem, **tiny}
    train = {"num_frame": 2, "gt_size": 32, **train_changes}
    options = {
        "base": str(SAMPLE_OPTIONS),
        "task": path.stem,
        "datasets": {"train": train},
        "netG": netG,
    }
    path.write_text(json.dumps(options))
    return str(path)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Comparison]:
    """Give a finished comparison of the methods "concat" and "none"."""
    folder = tmp_path_factory.mktemp("quality")
    sample = replace(SAMPLE, clips={"train": 1, "test": 2}, frames=2)
    make_sample(folder / "out/data/made", sample)
    concat = write_option_file(folder / "concat.json")
    none = write_option_file(folder / "none.json")
    settings = ["--steps", "2", "--seeds", "0", "--out", str(folder / "out")]
    start_program = programs.call

    def fork_program(program: str, *options: str, out: Path, name: str) -> None:
        """Run a program as a fork. A fork need not import torch, and this saves seconds.

        A new Python makes the data, and tests the method "tfp", as in real use.
        """
        if name in ("made", "tfp"):
            return start_program(program, *options, out=out, name=name)
        result = run_ranks(1, program, *options)
        assert result.exit_codes == [0], result.text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "call", fork_program)
        assert main(["--opt", concat, none, *settings]) == 0

    report = (folder / "out/table_report.md").read_text()
    yield Comparison(folder, concat, none, settings, report)


def results_by_method(comparison: Comparison) -> dict[str, Any]:
    """Return the content of the results of each method, e.g. "tfp"."""
    results = {}
    for path in comparison.results():
        method = path.name.split("_")[0]
        results[method] = json.loads(path.read_text())
    return results


def times_of_change(comparison: Comparison) -> dict[Path, int]:
    """Return when each file of results was written, in nanoseconds."""
    return {path: path.stat().st_mtime_ns for path in comparison.results()}


def test_every_method_has_results(comparison):
    methods = results_by_method(comparison).keys()

    assert methods == {"tfp", "tfi", "exposure", "concat", "none"}


def test_every_method_is_tested_on_all_clips(comparison):
    for result in results_by_method(comparison).values():
        assert sorted(result["clips"]) == CLIPS


def test_the_results_of_a_network_say_the_time_of_a_step(comparison):
    assert results_by_method(comparison)["none"]["s_per_step"] > 0


def test_the_exposure_formula_is_better_than_its_input_on_moving_pixels(comparison):
    scores = results_by_method(comparison)["exposure"]["clips"][CLIPS[0]]

    assert scores["restored"]["moving"] > scores["input"]["moving"] + 1  # dB


# The row of a trained network has its name and its number of training steps, here 2.
@pytest.mark.parametrize("row", ["tfp", "tfi", "none 2", "concat 2", "blurry input"])
def test_the_report_has_a_row_for_each_method(comparison, row):
    assert f"| {row} " in comparison.report


def test_methods_without_colour_are_left_out_of_the_tables_of_rgb(comparison):
    before_luma = comparison.report.split("PSNR-Y in dB")[0]
    # The paragraphs are the title, then a caption and a table in turn.
    tables_of_rgb = before_luma.split("\n\n")[2::2]

    for table in tables_of_rgb:
        assert "| exposure " in table
        assert "| tfp " not in table


def test_a_second_call_repeats_no_finished_run(comparison, capsys):
    before = times_of_change(comparison)

    code = main(comparison.arguments(comparison.concat, comparison.none))

    assert code == 0
    assert ": done" not in capsys.readouterr().out
    assert times_of_change(comparison) == before


def test_a_formula_is_tested_again_if_its_result_has_other_conditions(comparison):
    file = comparison.folder / "out/results/tfi_made.json"
    result = json.loads(file.read_text())
    # As if --conditions had been "dim" in an earlier call.
    renamed = {name.replace("recorded/", "dim/"): clip for name, clip in result["clips"].items()}
    file.write_text(json.dumps({"clips": renamed}))

    code = main(comparison.arguments(comparison.concat, comparison.none))

    assert code == 0
    assert sorted(json.loads(file.read_text())["clips"]) == CLIPS


def test_no_result_of_other_options_is_used(comparison, tmp_path):
    before = times_of_change(comparison)
    # `other` is the method "none" of the first run, but its data are not rotated.
    other = write_option_file(tmp_path / "none.json", use_rot=False)

    code = main([*comparison.arguments(comparison.concat, other), "--only", "concat"])

    assert code == 0
    assert times_of_change(comparison) == before
    report = (comparison.folder / "out/table_report.md").read_text()
    assert "| none" not in report


def test_methods_whose_steps_see_unequal_amounts_of_data_are_refused(comparison, tmp_path):
    larger_crops = write_option_file(tmp_path / "none.json", gt_size=64)

    with pytest.raises(SystemExit, match="of concat"):
        main(comparison.arguments(comparison.concat, larger_crops))


def test_a_folder_without_the_videos_of_the_real_suite_is_refused(comparison, tmp_path):
    arguments = comparison.arguments(comparison.concat, comparison.none)

    with pytest.raises(SystemExit, match="has no bedroom, blocks, camel"):
        main(["--suite", "real", "--videos", str(tmp_path), *arguments])
