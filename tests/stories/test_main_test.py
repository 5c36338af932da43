"""main_test_vrt.py from both of its command lines: what it restores and leaves, on ranks too, and
what it refuses.
"""

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import main_test_vrt
from data.clips.clip_reader import user_clips
from data.spike.formats import SpikeGeometry, read_spikes, write_spikes
from models.metrics import psnr
from models.portable import read_saved
from models.restore.network_method import find_weights
from models.restore.own_spikes import spikes_for_network
from models.restore.request import read_request
from models.select_network import NETWORKS
from scripts import demo
from tests.dist.launching import run_ranks
from tests.helpers import weights_files
from tests.helpers.checked import present
from tests.helpers.clip_files import section, small_files, write_clip, write_info, write_video
from tests.helpers.tensor_clip import restore_clip
from tests.helpers.train_files import network, odd
from tests.helpers.weights_files import make_home, message, metrics, save_weights
from utils.errors import CheckpointError
from utils.image import imread_rgb, imwrite_rgb, tensor_to_uint8
from utils.options.models import PathOptions
from utils.video import VideoReader

MAIN = "main_test_vrt.py"
LIMIT_S = 300  # of processes that take seconds on a machine that does nothing else


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Clips, also as a user's folders, an option file, and weights with and without spikes."""
    folder = make_home(tmp_path_factory.mktemp("home"))
    for clip in ("test0", "test1", "test2"):
        shutil.copytree(folder / "GOPRO_Large" / "test" / clip / "blur", folder / "clips" / clip)
    return folder


@pytest.fixture(scope="module")
def tested(home):
    restore(home / "tested", *by_file(home), "--save", "frames", "comparison")
    return home / "tested"


def by_file(home):
    return "--opt", home / "options.json", "--weights", home / "spike.pth"


def restore(out, *arguments):
    """metrics.json of main_test_vrt.py, run in this process."""
    weights_files.restore(*arguments, "--output", out)
    return metrics(out)


def test_the_numbers_are_those_of_restoring_and_comparing_by_hand(home, tested):
    gt = home / "GOPRO_Large" / "test" / "test2" / "sharp"
    spikes, saved = home / "GOPRO_Large_spike_seq/test/test2/spike", read_saved(home / "spike.pth")
    clip = user_clips(gt.parent / "blur", spikes, gt, saved.spike)[0]
    items = [clip.frame(i) for i in range(4)]
    lq, spike = (torch.stack([item[kind] for item in items])[None] for kind in ("lq", "spike"))
    net = saved.build()
    restored = tensor_to_uint8(
        restore_clip(net, lq, spike, window_size=(2, 4, 4), least_size=(8, 8))
    )[0]

    by_hand = [psnr(image, imread_rgb(gt / f"{i:06d}.png")) for i, image in enumerate(restored)]
    found = metrics(tested)["clips"]["test2"]
    assert found["per_frame"]["restored"]["psnr"] == pytest.approx(by_hand, abs=0.01)
    assert found["restored"]["psnr"] == pytest.approx(np.mean(by_hand), abs=0.01)
    for i, image in enumerate(restored):
        assert np.abs(imread_rgb(tested / "test2" / f"{i:06d}.png").astype(int) - image).max() <= 1


def test_a_meta_file_that_leaves_clips_out_makes_the_average_incomplete(home, tmp_path):
    (tmp_path / "meta.txt").write_text("test1 3 0 000000\n")
    changes = (f"datasets.test.meta_info_file={tmp_path / 'meta.txt'}", "datasets.test.num_frame=2")
    found = restore(tmp_path / "out", *by_file(home), *changes)

    total = found["averages"]["restored"]
    assert (total["clips_found"], total["clips_expected"], total["complete"], total["frames"]) == (
        1,
        3,
        False,
        2,
    )
    assert (tmp_path / "out" / "table.txt").read_text().startswith("INCOMPLETE")
    assert "Incomplete: 1 of 3 clips" in (tmp_path / "out" / "report.html").read_text()
    assert found["protocol"]["frames"] == "the first 2 of each clip"


def test_what_a_test_leaves(tested):
    assert sorted(p.name for p in tested.iterdir()) == [
        "clips", "metrics.json", "report.html", "run.json", "strips", "table.txt", "test0",
        "test0_comparison.mp4", "test1", "test1_comparison.mp4", "test2", "test2_comparison.mp4",
    ]  # fmt: skip
    assert VideoReader(tested / "test2_comparison.mp4").num_frames == 4
    assert len(list((tested / "strips" / "test2").iterdir())) == 3
    assert "mean over clips" in (tested / "table.txt").read_text()
    total = (found := metrics(tested))["averages"]["restored"]
    assert (total["clips_found"], total["clips_expected"], total["complete"], total["frames"]) == (
        3,
        3,
        True,
        9,
    )
    assert {"weights", "input", "gt", "crop", "border", "tile", "dtype", "SpikeVRT"} <= found[
        "protocol"
    ].keys()
    page = (tested / "report.html").read_text()
    assert page.count('type="range"') == 3 and not re.findall(
        r"""(?:src|href)=["'](?!data:)""", page
    )


def test_a_second_run_goes_on_where_the_first_one_stopped(home, tested, tmp_path):
    folder = tmp_path / "again"
    shutil.copytree(tested, folder)
    before = metrics(folder)
    (folder / "clips" / "test1.json").unlink()
    (folder / "test1" / "000001.png").unlink()
    pictures = [
        p for p in folder.glob("*/*.png") if p.name != "000001.png" and "strips" not in str(p)
    ]
    kept = {p: p.stat().st_mtime_ns for p in [*pictures, *folder.glob("clips/test[02].json")]}

    found = restore(folder, *by_file(home), "--save", "frames", "comparison")
    kept.pop(folder / "clips" / "test1.png", None)
    assert {p: p.stat().st_mtime_ns for p in kept} == kept
    assert found["clips"]["test1"]["restored"] == before["clips"]["test1"]["restored"]


def test_the_test_set_can_be_seen_by_a_camera_with_another_threshold(home, tested, tmp_path):
    def scored(name, factor):
        camera = {"type": "perturb", "threshold_prob": 1, "threshold_range": [factor, factor]}
        found = restore(
            tmp_path / name, *by_file(home), f"datasets.test.camera={json.dumps(camera)}"
        )
        return found["averages"]["restored"]["psnr"]

    recorded = metrics(tested)["averages"]["restored"]["psnr"]
    assert scored("same", 1) == recorded and scored("other", 4) != recorded


@pytest.mark.parametrize(("resume", "found"), [
    ("auto", "run/checkpoints/checkpoint_latest.pth"), (None, "netG.pth"), ("none.pth", None),
    ("empty", None), ("other", "other/checkpoints/checkpoint_best.pth"),
    ("other/checkpoints", "other/checkpoints/checkpoint_best.pth"),
    ("other/checkpoints/checkpoint_latest.pth", "other/checkpoints/checkpoint_latest.pth"),
])  # fmt: skip
def test_which_weights_are_tested(tmp_path, resume, found):
    checkpoints = ("run/checkpoints/checkpoint_latest", "other/checkpoints/checkpoint_latest")
    for name in (*checkpoints, "other/checkpoints/checkpoint_best", "netG"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.pth").touch()
    (tmp_path / "empty").mkdir()
    named = resume if resume in ("auto", None) else str(tmp_path / resume)
    path = PathOptions(resume=named, pretrained_netG=str(tmp_path / "netG.pth"))

    if found is None:
        with pytest.raises(CheckpointError, match="no weights to test"):
            find_weights(path, tmp_path / "run", None)
    else:
        assert find_weights(path, tmp_path / "run", None) == str(tmp_path / found)
    assert find_weights(path, tmp_path / "run", "given.pth") == "given.pth"


def test_val_options_do_what_they_say(home, tmp_path):
    args = (*by_file(home), "val.num_frame_testing=2", "val.num_frame_overlapping=1")
    whole = restore(tmp_path / "a", *args)["clips"]["test2"]["per_frame"]["restored"]["psnr"]
    assert not (tmp_path / "a" / "test0").exists()  # val.save_img is false

    flags = (
        "val.save_img=true",
        "val.center_frame_only=true",
        "val.flip_seq=true",
        "val.pad_seq=true",
    )
    found = restore(tmp_path / "b", *args, *flags)
    assert [p.name for p in (tmp_path / "b" / "test2").iterdir()] == ["000002.png"]
    assert found["averages"]["restored"]["frames"] == 3
    assert "flip_seq, pad_seq, center_frame_only" in found["protocol"]["tile"]
    assert found["clips"]["test2"]["restored"]["psnr"] != whole[2]  # flip_seq changes the frame


def test_two_ranks_share_clips_and_frames_and_give_the_same_numbers(home, tested):
    folder, one, two = home / "ranks", home / "one", home / "two"
    clips = ["--weights", home / "rgb.pth", "--tile", "2,0", "--overlap", "1,8"]
    whole = run_ranks(2, MAIN, *by_file(home), "--output", folder, limit_s=LIMIT_S)
    assert whole.exit_codes == [0, 0], whole.text
    assert metrics(folder)["averages"] == metrics(tested)["averages"]

    # One clip: cut in time, so that both ranks have work; the frames are the same, bit for bit.
    single = home / "clips" / "test2"
    assert run_ranks(
        1, MAIN, *clips, "--input", single, "--output", one, limit_s=LIMIT_S
    ).exit_codes == [0]
    done = run_ranks(2, MAIN, *clips, "--input", single, "--output", two, limit_s=LIMIT_S)
    assert done.exit_codes == [0, 0], done.text
    frames = sorted(p.name for p in (one / "test2").iterdir())
    assert len(frames) == 4
    assert all((one / "test2" / n).read_bytes() == (two / "test2" / n).read_bytes() for n in frames)
    assert (two / "test2_comparison.mp4").exists()


def test_a_folder_with_spikes_gives_what_the_dataset_gives(home, tested, tmp_path):
    rgb, spikes = home / "GOPRO_Large" / "test", home / "GOPRO_Large_spike_seq" / "test"
    args = ("--weights", home / "spike.pth", "--input", rgb, "--spike", spikes, "--gt", rgb)
    found = restore(tmp_path, *args, "--tile", "0,0")

    assert found["averages"] == metrics(tested)["averages"]
    assert found["protocol"]["weights"].endswith("network from the weights file")


def test_which_planes_the_training_read_is_not_asked_of_the_users_files(home):
    saved = read_saved(home / "spike.pth")
    asked = ["--weights", "w", "--input", "i", "--output", "o", "--spike", "s"]
    keys = {"first", "count", "exposure", "calibration"}
    for spike in (
        {"first": 2, "count": 20},
        {"exposure": {"train0": [[0, 24]]}, "calibration": "rig.json"},
    ):
        table = dataclasses.replace(saved, spike=present(saved.spike) | spike)
        assert not keys & present(spikes_for_network(table, read_request(asked, ""))).keys()
        for asked_for in (
            {"exposure": {"start": 2.0, "length": 20, "period": 33}},
            {"first": 3, "count": 9},
        ):
            overrides = [f"spike.{key}={json.dumps(value)}" for key, value in asked_for.items()]
            section = present(spikes_for_network(table, read_request([*asked, *overrides], "")))
            assert {key: section[key] for key in keys & section.keys()} == asked_for


def test_a_camera_whose_rate_nobody_gives_is_measured_and_the_log_says_so(home, tmp_path, caplog):
    # Twice the threshold: half the spikes. The files lie where no dataset.json tells.
    folder, frames = (
        home / "GOPRO_Large_spike_seq" / "test" / "test2" / "spike",
        home / "clips" / "test2",
    )
    saved = read_saved(home / "spike.pth")
    assert saved.spike_data == {
        "rate": 1.0,
        "light": "linear",
        "center": "file",
        "planes": 24,
        "gt_plane": 12,
    }
    for path in folder.iterdir():
        stream = read_spikes(path, SpikeGeometry(16, 16))
        stream[1::2] = 0
        write_spikes(tmp_path / path.name, stream, SpikeGeometry(16, 16))
    asked = ["--weights", "w", "--input", "i", "--output", "o", "--spike", "s"]
    asked += ["--spike-size", "16", "16"]
    section = present(spikes_for_network(saved, read_request(asked, "")))

    def read(**known: Any) -> dict[str, torch.Tensor]:
        (clip,) = user_clips(frames, tmp_path, None, section | known, 1, saved.spike_data)
        return clip.frame(0)

    measured = read()["spike"]
    assert (
        "firing rate at full light is not known and measured" in caplog.text
        and "linear light" in caplog.text
    )
    caplog.clear()
    assert torch.equal(measured, read(rate="match", light="linear")["spike"])
    assert (
        torch.allclose(read(rate=0.5)["spike"], 2 * read(rate=1.0)["spike"])
        and "not known" not in caplog.text
    )
    # Weights that say nothing, or that learned from undivided rates: rates stay undivided, and the
    # log says so.
    for trained in (None, saved.spike_data | {"rate": None}):
        caplog.clear()
        undivided = user_clips(frames, tmp_path, None, section, 1, trained)[0].frame(0)["spike"]
        assert torch.equal(undivided, read(rate=1.0)["spike"]) and "taken as 1" in caplog.text


def test_a_video_goes_in_and_a_video_of_the_same_name_and_rate_comes_out(home, tmp_path):
    write_video(tmp_path / "holiday.mp4", 5, height=35, width=45)
    out = tmp_path / "out"
    args = (
        "--weights",
        home / "rgb.pth",
        "--input",
        tmp_path / "holiday.mp4",
        "--tile",
        "3,32",
        "--overlap",
        "1,8",
    )
    found = restore(out, *args, "--blend", "kair")

    video, source = VideoReader(out / "holiday.mp4"), VideoReader(tmp_path / "holiday.mp4")
    assert (video.num_frames, video.fps, video.read(0).shape) == (5, 12.5, source.read(0).shape)
    restored = imread_rgb(out / "clips" / "holiday.png").astype(int)  # the frame in the middle
    assert np.abs(video.read(2) - restored).mean() < 0.5 * np.abs(source.read(2) - restored).mean()
    assert VideoReader(out / "holiday_comparison.mp4").num_frames == 5
    assert not (out / "holiday").exists() and not (out / ".work").exists()
    assert found["protocol"]["tile"].endswith("kair blend")
    assert found["averages"] == {} and "PSNR" not in (out / "table.txt").read_text()


def test_frame_interpolation_doubles_the_frame_rate(home, tmp_path):
    netG = network(pa_frames=0, fusion="none", img_size=[4, 32, 32], drop_path_rate=0.0)
    net = NETWORKS.build(netG, "netG", spike_channels=0).eval()
    torch.nn.init.normal_(net.conv_last.weight, 0, 0.02)
    options = {
        "scale": 1,
        "netG": NETWORKS.resolve(netG, "netG").plain(),
        "spike_channels": 0,
        "spike": None,
    }
    torch.save({"params": net.state_dict(), "options": options}, tmp_path / "fi.pth")
    source, out = home / "clips" / "test2", tmp_path / "out"
    restore(
        out,
        "--weights",
        tmp_path / "fi.pth",
        "--input",
        source,
        "--save",
        "frames",
        "video",
        "--fps",
        "50",
    )

    names = [f"{i:06d}{half}.png" for i in range(4) for half in ("", "_5")][:-1]
    assert sorted(p.name for p in (out / "test2").iterdir()) == names
    given = [imread_rgb(source / f"{i:06d}.png") for i in range(4)]
    assert all(
        np.array_equal(imread_rgb(out / "test2" / f"{i:06d}.png"), image)
        for i, image in enumerate(given)
    )
    window = (
        torch.from_numpy(np.stack([given[i] for i in (0, 0, 1, 2)])).permute(0, 3, 1, 2)[None] / 255
    )
    with torch.no_grad():
        first = tensor_to_uint8(net(window))[0, 0]
    assert np.abs(imread_rgb(out / "test2" / "000000_5.png").astype(int) - first).max() <= 1
    assert VideoReader(out / "test2.mp4").num_frames == 7


@pytest.mark.parametrize("frames", [1, 2])
def test_clips_of_one_and_two_frames(home, tmp_path, frames):
    shutil.copytree(home / "clips" / "test2", tmp_path / "in")
    for path in sorted((tmp_path / "in").iterdir())[frames:]:
        path.unlink()
    restore(
        tmp_path / "out",
        "--weights",
        home / "rgb.pth",
        "--input",
        tmp_path / "in",
        "--save",
        "frames",
    )
    assert len(list((tmp_path / "out" / "in").iterdir())) == frames


def test_long_clips_and_large_frames_are_restored_in_tiles_unless_0_asks_for_the_whole(tmp_path):
    home = make_home(tmp_path)
    write_clip(tmp_path / "large", "long", split="test", frames=22, h=16, w=136, seed=3)
    write_info(tmp_path / "large", h=16, w=136)
    test = json.dumps(section(tmp_path / "large", "test"))
    args = [*by_file(home)[2:], f"datasets.test={test}"]
    whole = ["val.num_frame_testing=0", "val.size_patch_testing=0"]

    found, peaks = {}, {}
    for name, changes in (("auto", []), ("whole", whole)):
        out = tmp_path / name
        result = odd(
            home / "options.json", *args, "--output", out, *changes, case="peak", program="test"
        )
        assert result.exit_codes == [0], result.text
        found[name], peaks[name] = metrics(out), result.json["peak_gb"]
        # Of the protocol, table.txt has all lines, the console what tells most.
        assert "\ntile: tiles of" in result.text and "crop: " not in result.text
        assert "\ncrop: none" in (out / "table.txt").read_text()

    assert found["auto"]["protocol"]["tile"].startswith(
        "tiles of 12 frames x 256 px, overlap 2 frames, 20 px, smooth"
    )
    assert found["whole"]["protocol"]["tile"].startswith(
        "tiles of the whole clip x the whole frame"
    )
    psnr_of = {name: results["averages"]["restored"]["psnr"] for name, results in found.items()}
    assert psnr_of["auto"] == pytest.approx(psnr_of["whole"], abs=0.05), psnr_of
    assert peaks["auto"] + 0.05 < peaks["whole"], peaks


def finished(folder):
    return [
        p
        for p in folder.rglob("*")
        if p.suffix in (".png", ".mp4", ".html") or p.name == "metrics.json"
    ]


def test_bad_input_ends_with_one_message_and_leaves_nothing(home, tmp_path, capfd):
    clip, spikes, out = (
        home / "clips" / "test2",
        home / "GOPRO_Large_spike_seq/test/test2/spike",
        tmp_path / "out",
    )
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    odd_name = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xf6m"))  # Latin-1, as on old disks
    shutil.copytree(clip, odd_name)
    (tmp_path / "foreign.pth").write_bytes(b"no weights")
    torch.save({"params": {"layer.weight": torch.zeros(3)}}, tmp_path / "unknown.pth")
    shutil.copytree(spikes, tmp_path / "few")
    (tmp_path / "few" / "000001.dat").unlink()
    write_clip(tmp_path, "wide", split="test", frames=4, h=16, w=24)
    rgb, spike = (
        ["--weights", home / "rgb.pth"],
        ["--weights", home / "spike.pth", "--spike-size", 16, 16],
    )
    opt, own = ["--opt", home / "options.json"], [*spike, "--input", clip, "--spike", spikes]
    cases = {
        "not a video": (3, [*rgb, "--input", tmp_path / "broken.mp4"]),
        "no such file or folder": (3, [*rgb, "--input", tmp_path / "none"]),
        "the folder holds no images": (3, [*rgb, "--input", tmp_path / "few"]),
        "gt lacks 1 of 4 frames: 000003.png":
            (3, [*rgb, "--input", clip, "--gt", home / "clips" / "test1"]),
        "reference of 48x32":
            (3, [*rgb, "--input", clip, "--gt", tmp_path / "GOPRO_Large/test/wide/sharp"]),
        "spike lacks 1 of 4 frames: 000001.dat":
            (3, [*spike, "--input", clip, "--spike", tmp_path / "few"]),
        "holds no plane of 160 x 160":
            (3, [*spike[:3], 160, 160, "--input", clip, "--spike", spikes]),
        "these weights need spikes": (2, [*spike[:2], "--input", clip]),
        "spike.h is missing":
            (2, [*spike[:2], "--input", clip, "--spike", tmp_path / "few/000000.dat"]),
        "no such weights file": (3, ["--weights", tmp_path / "none.pth", "--input", clip]),
        "not a weights file": (3, ["--weights", tmp_path / "foreign.pth", "--input", clip]),
        "does not say what network": (3, ["--weights", tmp_path / "unknown.pth", "--input", clip]),
        "the weights do not fit":
            (3, [*rgb, "--input", clip, "--opt", home / "options.json", "--spike", spikes]),
        "do not take a noise level": (2, [*rgb, "--input", clip, "--sigma", 20]),
        "--tile is 12": (2, [*rgb, "--input", clip, "--tile", 12]),
        "tiles of 2 that overlap by 2": (2, [*rgb, "--input", clip, "--tile", "2,32"]),
        "val.batch_tiles is 0": (2, [*rgb, "--input", clip, "--batch-tiles", 0]),
        "cannot set val.flip_seq": (2, [*own, "val.flip_seq=true"]),
        "spike.gamma is 2.2, the network was trained with 1": (2, [*own, "spike.gamma=2.2"]),
        "spike.representation is tfp, the network was trained with voxel":
            (2, [*own, "spike.representation=tfp"]),
        "the spike channels have gamma 2.2, the weights were trained with 1": (
            3, [*spike[:2], *opt, "datasets.train.spike.gamma=2.2", "datasets.test.spike.gamma=2.2"]
        ),
        "unknown option spike.bins": (2, [*own, "spike.bins=3"]),
        "--output would write over": (2, [*rgb, "--input", clip, "--output", clip]),
        "--output missing": (2, [*rgb, "--input", clip, "--output"]),
        "--spike-size without --input": (2, [*opt, "--spike-size", 16, 16]),
        "--spike-size without --spike": (2, [*rgb, "--input", clip, "--spike-size", 2, 2]),
        "--gt without --input": (2, [*opt, "--gt", clip]),
        "--overlap is 2": (2, [*opt, "--overlap", 2]),
        "unrecognized arguments": (2, [*opt, "--tiles", "2,2"]),
        "invalid choice": (2, [*opt, "--dtype", "int8"]),
        "the path is no text in UTF-8": (3, [*rgb, "--input", odd_name]),
        "correct --lpips": (3, [*rgb, "--input", clip, "--lpips", tmp_path / "none.pth"]),
        "argument --fps: invalid frame_rate value: '0'": (2, [*rgb, "--input", clip, "--fps", 0]),
        "invalid frame_rate value: 'inf'": (2, [*rgb, "--input", clip, "--fps", "inf"]),
        "nothing to restore": (2, ["--weights", home / "rgb.pth"]),
    }  # fmt: skip
    for expected, (code, args) in cases.items():
        place = [] if "--output" in args or "nothing" in expected else ["--output", out]
        args = args[:-1] if args[-1] == "--output" else args
        text, got = message(capfd, *args, *place)
        flag = {
            "holds no plane": "--spike-size H W",
            "spike.h is": "--spike-size H W",
            "no such weights": "--weights",
        }
        cure = next((word for start, word in flag.items() if expected.startswith(start)), "")
        assert (
            cure in text.partition("\n  do ")[2] and "null" not in text and '"spike": {' not in text
        ), text
        assert expected in text and "  expected  " in text and "  do  " in text, text
        assert got == code, text
    assert not out.exists()


def test_spike_channels_with_other_settings_than_in_training_are_told(home, tmp_path, capfd):
    tfi = [
        f'datasets.{split}.spike.representation={{"type": "tfi", "half_window": 3}}'
        for split in ("train", "test")
    ]
    weights = save_weights(home / "options.json", tmp_path / "tfi.pth", *tfi)
    args = ["--opt", str(home / "options.json"), "--weights", weights, *tfi]

    assert main_test_vrt.main([*args, "--output", str(tmp_path / "same")]) == 0
    assert "other spike channels" not in capfd.readouterr().out
    wider = [f"datasets.{split}.spike.representation.half_window=5" for split in ("train", "test")]
    assert main_test_vrt.main([*args, *wider, "--output", str(tmp_path / "wider")]) == 0
    assert (
        "other spike channels than the options give: representation.half_window 3 -> 5"
        in capfd.readouterr().out
    )


def test_a_full_disk_is_said_and_the_same_command_finishes_later(home, tmp_path, capfd):
    rng = np.random.default_rng(0)
    for i in range(2):
        imwrite_rgb(tmp_path / "in" / f"{i}.png", rng.integers(0, 256, (40, 40, 3), np.uint8))
    args = ["--weights", home / "rgb.pth", "--input", tmp_path / "in", "--output", tmp_path / "out"]

    with small_files(1500):
        text, code = message(capfd, *args)
    assert code == 3 and "cannot write" in text and "the same command" in text
    assert finished(tmp_path / "out") == []
    weights_files.restore(*args)
    assert len(list((tmp_path / "out" / "in").iterdir())) == 2


@pytest.mark.slow
def test_the_demo_trains_until_a_signal_stops_it_and_shows_the_curves(tmp_path):
    places = (tmp_path / "sample", tmp_path / "experiments")
    page = tmp_path / "report.html"
    page.write_text("<html><body><h1>restored clips</h1>\n</body></html>")
    run = places[1] / "000_train_vrt_sample_rgbspike"
    assert demo.train(*places, 1, page) == 0

    log = (run / "log/train.log").read_text()
    assert "stopped by a signal" in log and (run / "checkpoints/checkpoint_latest.pth").is_file()
    text = page.read_text()
    assert "restored clips" in text and 'id="training"' in text


# The first thing that a user runs.
def test_the_demo_restores_both_clips_and_shows_them(tmp_path):
    command = [
        "--data",
        str(tmp_path / "data"),
        "--output",
        str(tmp_path / "out"),
        "--train_s",
        "0",
    ]
    assert demo.main(command) == 0
    clips = json.loads((tmp_path / "out/metrics.json").read_text())["clips"]
    for name, scores in clips.items():
        assert scores["restored"]["psnr"] > scores["input"]["psnr"] + 6
        video = VideoReader(tmp_path / f"out/{name}_comparison.mp4")
        height, width = video.read(0).shape[:2]
        # Blurry, spikes, restored, sharp
        assert video.num_frames == 8 and width > 4 * 256 and height > 256
    page = (tmp_path / "out/report.html").read_text()
    assert len(clips) == 2 and page.count('class="slider') == 2
    assert page.count('data-show="spikes"') == 2 and page.count('src="data:video/mp4;base64,') == 2

    (tmp_path / "out/report.html").unlink()
    made_with = json.loads((tmp_path / "out/run.json").read_text())
    (tmp_path / "out/run.json").write_text(json.dumps(made_with | {"settings": {"fps": 25}}))
    assert demo.main(command) == 0  # over the results of another version
    assert (tmp_path / "out/report.html").exists()
