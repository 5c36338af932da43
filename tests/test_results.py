import json
import math

import pytest

from models.restore.outputs import Outputs
from models.restore.setup import parse_test_args
from utils.errors import DataError
from utils.files import write_whole
from utils.metrics import collect, json_bytes, score_text


def entry(name, values, bonus=3.0):
    given = {"psnr": values, "ssim": [0.5] * len(values)}
    restored = {"psnr": [v + bonus for v in values], "ssim": [0.75] * len(values)}
    stems = [f"{i:03d}" for i in range(len(values))]
    return {"name": name, "frames": len(values), "stems": stems, "per_frame": {"restored": restored, "input": given}}


def test_a_finished_clip_comes_back_with_infinite_values_and_a_damaged_one_is_named(tmp_path):
    outputs = Outputs(tmp_path)
    write_whole(outputs.file("clip", "a"), json_bytes(entry("a", [30.0, math.inf])))
    stored = json.loads(outputs.file("clip", "a").read_text(), parse_constant=pytest.fail)
    assert stored["per_frame"]["input"]["psnr"] == [30.0, "inf"]
    assert outputs.load_clip("a")["per_frame"]["input"]["psnr"] == [30.0, math.inf]
    assert outputs.load_clip("b") is None

    outputs.file("clip", "b").write_text("{")
    with pytest.raises(DataError, match=r"b\.json"):
        outputs.load_clip("b")


def test_the_averages_are_over_clips_and_over_frames_and_the_table_shows_both():
    results = collect([entry("b", [20.0] * 6), entry("a", [30.0, 32.0])], expected=2)
    total, text = results["averages"]["restored"], score_text(results)
    assert total["psnr"] == pytest.approx((34 + 23) / 2) and total["psnr_frame_mean"] == pytest.approx(206 / 8)
    assert (total["clips_found"], total["frames"], total["complete"]) == (2, 8, True)
    assert text.splitlines() == [
        "clip              frames  PSNR dB  input    SSIM   input  gain dB",
        "a                      2    34.00  31.00  0.7500  0.5000    +3.00",
        "b                      6    23.00  20.00  0.7500  0.5000    +3.00",
        "mean over clips        8    28.50  25.50  0.7500  0.5000    +3.00",
        "mean over frames       8    25.75  22.75  0.7500  0.5000    +3.00",
        "clips found 2, expected 2",
    ]


def test_clips_without_reference_have_no_averages():
    results = collect([{"name": "a", "frames": 5, "stems": [], "per_frame": {}}], expected=1)
    assert results["averages"] == {} and score_text(results) == "clip  frames\na          5"


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
