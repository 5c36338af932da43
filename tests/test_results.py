import json
import math

import pytest

from models.restore.results import clip_file, collect, json_bytes, load_clip, text_table
from models.restore.test_args import parse_test_args
from utils.errors import DataError, OptionError
from utils.files import write_whole


def entry(name, values, bonus=3.0):
    given = {"psnr": values, "ssim": [0.5] * len(values)}
    restored = {"psnr": [v + bonus for v in values], "ssim": [0.75] * len(values)}
    stems = [f"{i:03d}" for i in range(len(values))]
    return {"name": name, "frames": len(values), "stems": stems, "per_frame": {"restored": restored, "input": given}}


def test_a_finished_clip_comes_back_with_infinite_values(tmp_path):
    write_whole(clip_file(tmp_path, "a"), json_bytes(entry("a", [30.0, math.inf])))
    stored = json.loads(clip_file(tmp_path, "a").read_text(), parse_constant=pytest.fail)
    assert stored["per_frame"]["input"]["psnr"] == [30.0, "inf"]
    assert load_clip(tmp_path, "a")["per_frame"]["input"]["psnr"] == [30.0, math.inf]
    assert load_clip(tmp_path, "b") is None


def test_a_damaged_clip_file_is_named(tmp_path):
    clip_file(tmp_path, "a").parent.mkdir()
    clip_file(tmp_path, "a").write_text("{")
    with pytest.raises(DataError, match=r"a\.json"):
        load_clip(tmp_path, "a")


def test_the_table_shows_clips_and_both_means():
    results = collect([entry("b", [20.0] * 6), entry("a", [30.0, 32.0])], expected=2)
    table = text_table(results)
    lines = {line.split("|")[0].strip(): line for line in table.splitlines()}
    assert list(results["clips"]) == ["a", "b"]
    assert "34.00    31.00" in lines["a"] and "0.7500   0.5000" in lines["a"]
    assert "28.50    25.50" in lines["mean over clips"]
    assert "25.75    22.75" in lines["mean over frames"]
    assert "INCOMPLETE" not in table and "clips found 2, expected 2; 8 frames" in table


def test_an_incomplete_set_is_marked_before_the_numbers():
    table = text_table(collect([entry("a", [30.0])], expected=11))
    assert table.startswith("INCOMPLETE") and "clips found 1, expected 11" in table


def test_clips_without_reference_have_no_averages():
    results = collect([{"name": "a", "frames": 5, "stems": [], "per_frame": {}}], expected=1)
    assert results["averages"] == {} and text_table(results) == "a: 5 frames"


def test_the_two_forms_of_the_command_line():
    args = parse_test_args(["--opt", "x.json", "val.save_img=true", "--tile", "12,256", "scale=1"], "")
    assert not args.is_direct and args.tile == (12, 256) and args.overrides == ("val.save_img=true", "scale=1")
    for line in ("--save frames datasets.test.x=y a=b --tile 2,2", "--tile 2,2 --save frames datasets.test.x=y a=b"):
        args = parse_test_args(["--opt", "x.json", *line.split()], "")
        assert args.save == ("frames",) and args.overrides == ("datasets.test.x=y", "a=b")
    args = parse_test_args(["--opt", "x", "--lpips", "a.pth", "b.pth", "val.save_img=true", "--overwrite"], "")
    assert args.lpips == ("a.pth", "b.pth") and args.overrides == ("val.save_img=true",) and args.overwrite
    line = "--weights w --input i --output o --spike s --spike-size 250 400 --tile auto"
    args = parse_test_args(line.split(), "")
    assert args.is_direct and args.spike_size == (250, 400) and args.tile == "auto"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("", "nothing to restore"),
        ("--weights w --input i", "--output missing"),
        ("--opt o --gt g", "--gt without --input"),
        ("--opt o --overlap 2", "--overlap is 2"),
        ("--opt o --tiles 2,2", "unrecognized arguments"),
        ("--weights w --input i/clip --output i", "would write over the input"),
        ("--weights w --input i --output o --spike-size 2 2", "--spike-size without --spike"),
        ("--opt o --dtype int8", "invalid choice"),
    ],
)
def test_a_command_line_that_cannot_be_is_refused(line, what):
    with pytest.raises(OptionError, match=what):
        parse_test_args(line.split(), "")
