import re

import pytest
import torch

from main_test_vrt import read_options
from models.portable import portable_options
from models.select_network import define_G
from scripts import threshold_table
from tests.train_files import write_options


@pytest.fixture
def run(tmp_path):
    """An option file and weights whose output depends on the spikes."""
    options = write_options(tmp_path)
    opt = read_options(str(options))
    torch.manual_seed(3)
    net = define_G(opt)
    torch.nn.init.normal_(net.conv_last.weight, 0, 1.0)
    torch.save({"params": net.state_dict(), "options": portable_options(opt), "iter": 1}, tmp_path / "net.pth")
    return str(options), str(tmp_path / "net.pth")


def numbers(text):
    return {row[0]: [float(v) for v in row[1:]] for row in re.findall(r"\| x (\S+) \| (\S+) \| (\S+) \|", text)}


def test_the_table_has_a_row_for_each_threshold_and_a_column_for_each_rate(run, capsys):
    options, weights = run
    arguments = ["--opt", options, "--weights", weights, "--factors", "1,2", "--rates", "unknown,known"]
    assert threshold_table.main(arguments) == 0
    said = capsys.readouterr().out
    rows = numbers(said)

    assert "blurry input" in said and "| threshold | rate unknown | rate known |" in said
    assert rows["1"][0] == rows["1"][1]  # nothing has changed
    assert rows["2"][0] != rows["2"][1]


def test_a_test_set_without_spikes_is_refused(run, capsys):
    options, weights = run
    rgb = ["datasets.test.dataset_type=VideoRecurrentTestDataset", "datasets.test.spike=null"]
    assert threshold_table.main(["--opt", options, "--weights", weights, *rgb]) == 2
    assert "OptionError" in capsys.readouterr().err
