"""KAIR's nine option files for training VRT: read as they are, then each kind trained, resumed and tested."""

import json
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch

import main_test_vrt
import main_train_vrt
from models.select_network import define_G
from tests.dist.launching import RankResult
from tests.kair_files import NAMES, in_folder, options_of, small, write_data, write_file
from tests.train_files import history, train
from tests.weights_files import save_weights
from utils.errors import OptionError
from utils.options.models import KAIR_ONLY

ADDRESS = "https://github.com/JingyunLiang/VRT/releases/tag/v0.0"
SPYNET = "model_zoo/vrt/spynet_sintel_final-3d2a1287.pth"
NO_EFFECT = {f"{where}.{key}" for where, keys in KAIR_ONLY.items() for key in keys}


def read(path: Path, *overrides: str) -> Any:
    return main_train_vrt.read_options(["--opt", str(path), *overrides])


def test_the_files_of_kair_load_unchanged(tmp_path):
    # Neither the data nor SpyNet's weights are on this machine.
    assert not Path(SPYNET).exists()
    for name in NAMES:
        options = options_of(name)
        found = read(write_file(tmp_path / f"{name}.json", options)).plain()
        for key in options.keys() - (NO_EFFECT - {"datasets.train.val_partition"}):
            assert reduce(getitem, key.split("."), found) == options[key], (name, key)


def prepare(folder: Path, number: str, **changes: Any) -> Path:
    """The option file with this number, with small data and a small network; its task is "run"."""
    options = small(options_of(number)) | {"task": "run", "path.pretrained_netG": None} | changes
    write_data(folder, options)
    return write_file(folder / "options.json", in_folder(folder, options))


def results(out: Path, options: Path, *arguments: str) -> dict[str, Any]:
    """metrics.json of main_test_vrt.py, by default with the best checkpoint."""
    assert main_test_vrt.main(["--opt", str(options), "--output", str(out), "--save", "frames", *arguments]) == 0
    return json.loads((out / "metrics.json").read_text())


@pytest.mark.parametrize(
    ("number", "frames"), [("001", 6), ("008", 6), ("009", 2)], ids=["REDS x4", "denoising", "interpolation"]
)
def test_each_kind_trains_validates_resumes_and_is_tested(number, frames, tmp_path):
    check_kind(prepare(tmp_path, number), frames)


def test_deblurring_on_two_ranks_takes_the_folders_for_a_missing_list_of_kair_and_no_misspelt_path(tmp_path):
    options = prepare(tmp_path, "006")
    lists = "datasets.train.meta_info_file=data/meta_info/meta_info_GoPro_%s_GT.txt"

    no_flow, no_list = train(options, f"netG.spynet_path={SPYNET}.pht"), train(options, lists % "trian")
    assert no_flow.exit_codes == [2] and f"no file {SPYNET}.pht" in no_flow.text and ADDRESS in no_flow.text
    assert no_list.exit_codes == [3] and "cannot read the meta file" in no_list.text

    good = check_kind(options, 6, 2, lists % "train")
    told = "the list of the clips is missing: all 2 in the folders are used, KAIR's list has 22"
    assert good.text.count(told) == 1 and "2 clips, 12 frames of 64 x 80" in good.text


def test_vimeo_x4_starts_from_weights_of_another_deformable_convolution(tmp_path):
    # 003 starts from 002, whose network has other deformable groups; G_param_strict is false.
    published = "002_VRT_videosr_bi_REDS_16frames.pth"
    options = prepare(tmp_path, "003", **{"path.pretrained_netG": published})
    missing = train(options)
    assert missing.exit_codes == [3] and missing.text.count("no such weights file") == 1, missing.text
    assert f"download: {ADDRESS}" in missing.text.partition("no such weights file")[2]

    net = define_G(read(options, "netG.deformable_groups=2"))
    torch.save({"params": net.state_dict()}, tmp_path / published)
    first = check_kind(options, 6)

    assert "mismatched (14): stage" in first.text and "tensors matched" in first.text


def test_frames_of_another_scale_than_the_network_are_named_before_the_first_step(tmp_path):
    gt = options_of("001")["datasets.train.dataroot_gt"]
    said = train(prepare(tmp_path, "001", **{"datasets.train.dataroot_lq": gt}))
    words = "gt of 64 x 80 for lq of 64 x 80 in clip 001, but scale is 4"
    assert said.exit_codes == [3] and said.text.count(words) == 1


def check_kind(options: Path, frames: int, ranks: int = 1, *overrides: str) -> RankResult:
    """Two starts of one step each, each with a validation, then a test; gives the first start."""
    first = train(options, "train.total_iter=1", *overrides, ranks=ranks)
    second = train(options, *overrides, ranks=ranks)

    assert first.exit_codes == second.exit_codes == [0] * ranks, first.text + second.text
    stands_in = f"WARNING: netG.spynet_path: no file {SPYNET}; models/vrt/spynet_scenes.pth of this project stands in"
    has_flow = 1 if read(options).netG.pa_frames else 0
    assert first.text.count(stands_in) == second.text.count(stands_in) == first.text.count(ADDRESS) == has_flow
    assert (stands_in in (options.parent / "experiments/run/log/train.log").read_text()) == bool(has_flow)
    assert "at iter 1" in second.text
    told = "dataloader_batch_size 1 x 2 ranks = 2 in all, in KAIR 1"
    assert first.text.count(told) == first.text.count("keys that only KAIR has") == ranks - 1
    curves = history(options)
    assert [step for step, _ in curves["train/loss"]] == [step for step, _ in curves["val/psnr"]] == [1, 2]
    scores = results(options.parent / "tested", options)["averages"]["restored"]
    assert scores["psnr"] == pytest.approx(max(psnr for _, psnr in curves["val/psnr"]), abs=1e-6)
    assert (scores["clips_found"], scores["complete"], scores["frames"]) == (2, True, frames)
    return first


def test_the_interpolated_frame_is_the_fourth_of_seven_and_is_compared_with_it(tmp_path):
    options = prepare(tmp_path, "009")
    opt = read(options)
    net = define_G(opt).eval()
    torch.nn.init.normal_(net.conv_last.weight, 0, 0.02)
    torch.save({"params": net.state_dict()}, tmp_path / "G.pth")
    found = results(tmp_path / "out", options, "--weights", str(tmp_path / "G.pth"))["clips"]["00001/0266"]

    clip = Path(opt.datasets.test.dataroot_gt) / "00001/0266"
    pictures = [torch.from_numpy(cv2.imread(str(clip / f"im{i}.png"))[..., ::-1].copy()) for i in range(1, 8)]
    frames = torch.stack(pictures).permute(0, 3, 1, 2)[None] / 255
    with torch.no_grad():
        made = net(frames[:, ::2])[0, 0].clamp(0, 1)
    written = cv2.imread(str(tmp_path / "out/00001/0266/im4.png"))[..., ::-1]
    assert [path.name for path in (tmp_path / "out/00001/0266").iterdir()] == ["im4.png"]
    assert abs(torch.from_numpy(written.copy()).permute(2, 0, 1) - 255 * made).max() <= 1
    # The input column has the simplest interpolation.
    for name, image, limit in (("restored", made, 0.01), ("input", (frames[0, 2] + frames[0, 4]) / 2, 0.1)):
        error = (image * 255).round() - frames[0, 3] * 255
        by_hand = 20 * torch.log10(255 / (error.double() ** 2).mean().sqrt())
        assert found[name]["psnr"] == pytest.approx(float(by_hand), abs=limit)


def test_pad_sequence_of_a_test_clip_restores_with_an_eighth_frame_and_scores_seven(tmp_path):
    vimeo = {key: value for key, value in options_of("009").items() if key.startswith("datasets.test.")}
    roots = {f"datasets.test.dataroot_{kind}": f"testsets/vimeo90k/{kind}" for kind in ("gt", "lq")}
    options = prepare(tmp_path, "003", **vimeo | roots | {"datasets.test.temporal_scale": 1})
    weights = save_weights(options, tmp_path / "G.pth")

    def scores(name: str, *arguments: str) -> dict[str, Any]:
        found = results(tmp_path / name, options, "--weights", weights, *arguments)
        return found["clips"]["00002/0008"]["per_frame"]

    padded = scores("a", "datasets.test.pad_sequence=true")
    assert len(padded["restored"]["psnr"]) == 7
    assert padded == scores("b", "val.pad_seq=true") != scores("c")


def test_what_is_said_of_totals_follows_the_file_and_the_command_line(tmp_path):
    options = prepare(tmp_path, "006", **{"datasets.train.dataloader_batch_size": 8})
    batch, workers = "datasets.train.dataloader_batch_size", "datasets.train.dataloader_num_workers"
    assert read(options).note_on_totals(1) == ""
    assert f"{batch}=2 {workers}=1" in read(options).note_on_totals(4)
    assert "a batch of 8 cannot be divided evenly among 3 ranks" in read(options).note_on_totals(3)
    one = read(options, f"{workers}=4").note_on_totals(4)
    assert f"{batch}=2" in one and workers not in one
    assert read(options, f"{workers}=4", f"{batch}=2").note_on_totals(4) == ""
    # Keys that older versions of this project saved are no sign of KAIR.
    own = {key: value for key, value in small(options_of("006")).items() if key not in NO_EFFECT}
    assert read(write_file(options, own | {"datasets.train.spike_channels": 0})).note_on_totals(4) == ""


def test_missing_data_are_named_all_at_once_with_the_layout_expected(tmp_path):
    options = small(options_of("009")) | {"task": "run"}

    result = train(write_file(tmp_path / "options.json", in_folder(tmp_path, options)))

    assert result.exit_codes == [3] and result.text.count("DataError") == 1, result.text
    for line in (
        "trainsets/vimeo90k/vimeo90k_train_GT_all.lmdb/data.mdb  a file under each key 00001/0001/im1",
        "vimeo90k_train_GT_all.lmdb/meta_info.txt  a line for each key: 00001/0001/im1.png (<height>,<width>,3) 1",
        "testsets/vimeo90k/vimeo_septuplet/sequences/00001/0001/im1.png",
        "meta_info_Vimeo90K_train_GT.txt  a line for each clip: 00001/0001 <frames> (<height>,<width>,3)",
        "meta_info_Vimeo90K_test_GT.txt  a line for each clip",
    ):
        assert line in result.text
    do = "correct meta_info_file; download: https://github.com/cszn/KAIR/tree/master/data/meta_info; "
    do += "correct the dataroot in the options, or make or copy the data (docs/data_format.md); "
    do += "download: http://toflow.csail.mit.edu/"
    assert result.text.partition("\n  do ")[2].splitlines()[0].strip() == do


def test_a_network_and_datasets_for_different_tasks_are_refused(tmp_path):
    for number, overrides, text in (
        ("009", ["datasets.train.num_frame=5"], "datasets.train.num_frame is 5"),
        ("009", ["datasets.test.temporal_scale=1"], "datasets.test is VideoTestVimeo90KDataset"),
        ("009", ["val.flip_seq=true"], "val.flip_seq"),
        ("009", ["netG.pa_frames=2", "netG.deformable_groups=2"], "the network restores every frame"),
        ("009", ["netG.out_chans=6"], "netG.out_chans is 6"),
        ("006", ["netG.pa_frames=0", "netG.spynet_path=null"], "the network makes new frames"),
        ("008", ["netG.nonblind_denoising=false"], "gives a noise map"),
        ("008", ["datasets.test.sigma=null"], "the test clips have no noise"),
    ):
        path = write_file(tmp_path / "options.json", small(options_of(number)))
        with pytest.raises(OptionError, match=text):
            read(path, *overrides)
