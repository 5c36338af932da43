"""main_test_vrt.py refuses what it cannot restore, with one message, and leaves nothing that looks like a result."""

import shutil

import cv2
import numpy as np
import pytest
import torch

import main_test_vrt
from tests.clip_files import write_clip
from tests.dist.launching import ROOT, run_ranks
from tests.weights_files import make_user_home, message, save_weights

LIMIT_S = 300  # of a process that takes seconds on a machine that does nothing else


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return make_user_home(tmp_path_factory.mktemp("home"))


def finished(folder):
    """Files that look like results."""
    return [p for p in folder.rglob("*") if p.suffix in (".png", ".mp4", ".html") or p.name == "metrics.json"]


def test_bad_input_ends_with_one_message_and_leaves_nothing(home, tmp_path, capfd):
    clip, spikes, out = home / "clips" / "test2", home / "GOPRO_Large_spike_seq/test/test2/spike", tmp_path / "out"
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    (tmp_path / "foreign.pth").write_bytes(b"no weights")
    torch.save({"params": {"layer.weight": torch.zeros(3)}}, tmp_path / "unknown.pth")
    shutil.copytree(spikes, tmp_path / "few")
    (tmp_path / "few" / "000001.dat").unlink()
    write_clip(tmp_path, "wide", split="test", frames=4, h=16, w=24)
    rgb, spike = ["--weights", home / "rgb.pth"], ["--weights", home / "spike.pth", "--spike-size", 16, 16]
    opt = ["--opt", home / "options.json"]
    cases = {
        "not a video": (3, [*rgb, "--input", tmp_path / "broken.mp4"]),
        "no such file or folder": (3, [*rgb, "--input", tmp_path / "none"]),
        "the folder holds no images": (3, [*rgb, "--input", tmp_path / "few"]),
        "gt lacks 1 of 4 frames: 000003.png": (3, [*rgb, "--input", clip, "--gt", home / "clips" / "test1"]),
        "reference of 48x32": (3, [*rgb, "--input", clip, "--gt", tmp_path / "GOPRO_Large/test/wide/sharp"]),
        "spike lacks 1 of 4 frames: 000001.dat": (3, [*spike, "--input", clip, "--spike", tmp_path / "few"]),
        "holds no plane of 160 x 160": (3, [*spike[:3], 160, 160, "--input", clip, "--spike", spikes]),
        "these weights need spikes": (2, [*spike[:2], "--input", clip]),
        "spike.h is missing": (2, [*spike[:2], "--input", clip, "--spike", tmp_path / "few/000000.dat"]),
        "no such weights file": (3, ["--weights", tmp_path / "none.pth", "--input", clip]),
        "not a weights file": (3, ["--weights", tmp_path / "foreign.pth", "--input", clip]),
        "does not say what network": (3, ["--weights", tmp_path / "unknown.pth", "--input", clip]),
        "the weights do not fit": (3, [*rgb, "--input", clip, "--opt", home / "options.json", "--spike", spikes]),
        "do not take a noise level": (2, [*rgb, "--input", clip, "--sigma", 20]),
        "--tile is 12": (2, [*rgb, "--input", clip, "--tile", 12]),
        "tiles of 2 that overlap by 2": (2, [*rgb, "--input", clip, "--tile", "2,32"]),
        "val.batch_tiles is 0": (2, [*rgb, "--input", clip, "--batch-tiles", 0]),
        "cannot set val.flip_seq": (2, [*spike, "--input", clip, "--spike", spikes, "val.flip_seq=true"]),
        "spike.gamma is 2.2, the network was trained with 1": (
            2, [*spike, "--input", clip, "--spike", spikes, "spike.gamma=2.2"]
        ),
        "spike.representation is tfp, the network was trained with voxel": (
            2, [*spike, "--input", clip, "--spike", spikes, "spike.representation=tfp"]
        ),
        "the spike channels have gamma 2.2, the weights were trained with 1": (
            3, [*spike[:2], *opt, "datasets.train.spike.gamma=2.2", "datasets.test.spike.gamma=2.2"]
        ),
        "unknown option spike.bins": (2, [*spike, "--input", clip, "--spike", spikes, "spike.bins=3"]),
        "--output would write over": (2, [*rgb, "--input", clip, "--output", clip]),
        "--output missing": (2, [*rgb, "--input", clip, "--output"]),
        "--spike-size without --input": (2, [*opt, "--spike-size", 16, 16]),
        "--spike-size without --spike": (2, [*rgb, "--input", clip, "--spike-size", 2, 2]),
        "--gt without --input": (2, [*opt, "--gt", clip]),
        "--overlap is 2": (2, [*opt, "--overlap", 2]),
        "unrecognized arguments": (2, [*opt, "--tiles", "2,2"]),
        "invalid choice": (2, [*opt, "--dtype", "int8"]),
        "nothing to restore": (2, ["--weights", home / "rgb.pth"]),
    }  # fmt: skip
    for expected, (code, args) in cases.items():
        place = [] if "--output" in args or "nothing" in expected else ["--output", out]
        args = args[:-1] if args[-1] == "--output" else args
        text, got = message(capfd, *args, *place)
        flag = {"holds no plane": "--spike-size H W", "spike.h is": "--spike-size H W", "no such weights": "--weights"}
        cure = next((word for start, word in flag.items() if expected.startswith(start)), "")
        assert cure in text.partition("\n  do ")[2] and "null" not in text and '"spike": {' not in text, text
        assert expected in text and "  expected  " in text and "  do  " in text, text
        assert got == code, text
    assert finished(out) == []


def test_spike_channels_with_other_settings_than_in_training_are_told(home, tmp_path, capfd):
    tfi = [f'datasets.{split}.spike.representation={{"type": "tfi", "half_window": 3}}' for split in ("train", "test")]
    weights = save_weights(home / "options.json", tmp_path / "tfi.pth", *tfi)
    args = ["--opt", str(home / "options.json"), "--weights", weights, *tfi]

    assert main_test_vrt.main([*args, "--output", str(tmp_path / "same")]) == 0
    assert "other spike channels" not in capfd.readouterr().out
    wider = [f"datasets.{split}.spike.representation.half_window=5" for split in ("train", "test")]
    assert main_test_vrt.main([*args, *wider, "--output", str(tmp_path / "wider")]) == 0
    assert "other spike channels than the options give: representation.half_window 3 -> 5" in capfd.readouterr().out


FULL_DISK = """
import resource, signal, sys
sys.path.insert(0, sys.argv.pop(1))
import main_test_vrt
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
sys.exit(main_test_vrt.main(sys.argv[1:]))
"""


def test_a_full_disk_is_said_and_the_same_command_finishes_later(home, tmp_path):
    (tmp_path / "run.py").write_text(FULL_DISK)
    rng = np.random.default_rng(0)
    for i in range(2):
        (tmp_path / "in").mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / "in" / f"{i}.png"), rng.integers(0, 256, (40, 40, 3), np.uint8))
    args = ["--weights", home / "rgb.pth", "--input", tmp_path / "in", "--output", tmp_path / "out"]

    full = run_ranks(1, tmp_path / "run.py", ROOT, *args, limit_s=LIMIT_S)
    assert full.exit_codes == [3] and full.text.count("Error: ") == 1, full.text
    assert "cannot write" in full.text and "the same command" in full.text
    assert finished(tmp_path / "out") == []
    assert main_test_vrt.main([str(a) for a in args]) == 0
    assert len(list((tmp_path / "out" / "in").iterdir())) == 2
