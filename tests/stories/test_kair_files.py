"""KAIR's nine option files for training VRT, each kind trained, resumed and tested.

The option files are written from tests/data/kair_options.json, and small data sets in KAIR's
layouts beside them (tests/helpers/kair_files.py). The second half of this page is about two kinds
of data that only these files have: septuplets (clips of seven frames, Vimeo-90K) and clips to which
noise is added.
"""

import json
import shutil
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

import main_test_vrt
import main_train_vrt
from data.dataset_video import jitter_colors
from data.select_dataset import build_dataset
from models.select_network import define_G
from tests.dist.launching import RankResult
from tests.helpers.checked import of_part, read_picture
from tests.helpers.clip_files import check
from tests.helpers.kair_files import (
    NAMES,
    clip_pictures,
    in_folder,
    options_of,
    small,
    write_data,
    write_file,
    write_files,
)
from tests.helpers.train_files import history, train
from tests.helpers.weights_files import save_weights
from utils.errors import DataError, OptionError
from utils.options.models import KAIR_ONLY

# Where messages send a user for published weights.
ADDRESS = "https://github.com/JingyunLiang/VRT/releases/tag/v0.0"
# Weights of the optical flow that KAIR's files name. They are not in this project.
SPYNET = "model_zoo/vrt/spynet_sintel_final-3d2a1287.pth"
NO_EFFECT = {f"{where}.{key}" for where, keys in KAIR_ONLY.items() for key in keys}


def read(path: Path, *overrides: str) -> Any:
    """Return the options of a file as main_train_vrt.py reads them."""
    return main_train_vrt.read_options(["--opt", str(path), *overrides])


def test_the_files_of_kair_load_unchanged(tmp_path):
    assert not Path(SPYNET).exists()
    for name in NAMES:
        options = options_of(name)
        found = read(write_file(tmp_path / f"{name}.json", options)).plain()
        for key in options.keys() - (NO_EFFECT - {"datasets.train.val_partition"}):
            assert reduce(getitem, key.split("."), found) == options[key], (name, key)


def prepare(folder: Path, number: str, **changes: Any) -> Path:
    """Write the option file with this number for a short run, and its data. Return its path.

    The data and the network are small. The task, and so the folder of results, is "run". No weights
    are loaded. changes: dotted keys of the options to replace.
    """
    options = small(options_of(number)) | {"task": "run", "path.pretrained_netG": None} | changes
    write_data(folder, options)
    return write_file(folder / "options.json", in_folder(folder, options))


def results(out: Path, options: Path, *arguments: str) -> dict[str, Any]:
    """Run main_test_vrt.py. Return its metrics.json.

    arguments: further arguments. By default the best checkpoint of the training is tested.
    """
    assert (
        main_test_vrt.main(
            ["--opt", str(options), "--output", str(out), "--save", "frames", *arguments]
        )
        == 0
    )
    return json.loads((out / "metrics.json").read_text())


# REDS x4, noise, interpolation
@pytest.mark.parametrize(("number", "frames"), [("001", 6), ("008", 6), ("009", 2)])
def test_each_kind_trains_validates_resumes_and_is_tested(number, frames, tmp_path):
    check_kind(prepare(tmp_path, number), frames)


def test_deblurring_on_two_ranks_takes_the_folders_for_a_missing_list_of_kair_and_no_misspelt_path(
    tmp_path,
):
    options = prepare(tmp_path, "006")
    lists = "datasets.train.meta_info_file=data/meta_info/meta_info_GoPro_%s_GT.txt"
    no_flow = train(options, f"netG.spynet_path={SPYNET}.pht")
    no_list = train(options, lists % "trian")
    assert no_flow.exit_codes == [2]
    assert f"no file {SPYNET}.pht" in no_flow.text
    assert ADDRESS in no_flow.text
    assert no_list.exit_codes == [3]
    assert "cannot read the meta file" in no_list.text
    good = check_kind(options, 6, 2, lists % "train")
    told = "the list of the clips is missing: all 2 in the folders are used, KAIR's list has 22"

    assert good.text.count(told) == 1
    assert "2 clips, 12 frames of 64 x 80" in good.text


def test_vimeo_x4_starts_from_weights_of_another_deformable_convolution(tmp_path):
    # 003 starts from 002, whose network has other deformable groups; G_param_strict is false.
    published = "002_VRT_videosr_bi_REDS_16frames.pth"
    options = prepare(tmp_path, "003", **{"path.pretrained_netG": published})
    missing = train(options)
    assert missing.exit_codes == [3], missing.text
    assert missing.text.count("no such weights file") == 1, missing.text
    assert f"download: {ADDRESS}" in missing.text.partition("no such weights file")[2]
    net = define_G(read(options, "netG.deformable_groups=2"))
    torch.save({"params": net.state_dict()}, tmp_path / published)
    first = check_kind(options, 6)

    assert "mismatched (14): stage" in first.text
    assert "tensors matched" in first.text


def test_frames_of_another_scale_than_the_network_are_named_before_the_first_step(tmp_path):
    gt = options_of("001")["datasets.train.dataroot_gt"]
    said = train(prepare(tmp_path, "001", **{"datasets.train.dataroot_lq": gt}))
    words = "gt of 64 x 80 for lq of 64 x 80 in clip 001, but scale is 4"

    assert said.exit_codes == [3]
    assert said.text.count(words) == 1


def check_kind(options: Path, frames: int, ranks: int = 1, *overrides: str) -> RankResult:
    """Train one step, resume for a second step, then test. Check all three; return the first.

    frames: number of restored frames of the two test clips. overrides: options of the command line.
    """
    first = train(options, "train.total_iter=1", *overrides, ranks=ranks)
    second = train(options, *overrides, ranks=ranks)
    assert first.exit_codes == [0] * ranks, first.text + second.text
    assert second.exit_codes == [0] * ranks, first.text + second.text
    stands_in = f"WARNING: netG.spynet_path: no file {SPYNET}; "
    stands_in += "models/vrt/spynet_scenes.pth of this project stands in"
    has_flow = 1 if read(options).netG.pa_frames else 0
    assert first.text.count(stands_in) == has_flow
    assert second.text.count(stands_in) == has_flow
    assert first.text.count(ADDRESS) == has_flow
    assert (stands_in in (options.parent / "experiments/run/log/train.log").read_text()) == bool(
        has_flow
    )
    assert "at iter 1" in second.text
    told = "dataloader_batch_size 1 x 2 ranks = 2 in all, in KAIR 1"
    assert first.text.count(told) == ranks - 1
    assert first.text.count("keys that only KAIR has") == ranks - 1
    curves = history(options)
    assert (
        [step for step, _ in curves["train/loss"]]
        == [step for step, _ in curves["val/psnr"]]
        == [1, 2]
    )
    scores = results(options.parent / "tested", options)["averages"]["restored"]
    assert scores["psnr"] == pytest.approx(max(psnr for _, psnr in curves["val/psnr"]), abs=1e-6)
    assert (scores["clips_found"], scores["complete"], scores["frames"]) == (2, True, frames)
    return first


def test_the_interpolated_frame_is_the_fourth_of_seven_and_is_compared_with_it(tmp_path):
    options = prepare(tmp_path, "009")
    opt = read(options)
    net = define_G(opt).eval()
    torch.nn.init.normal_(net.get_parameter("conv_last.weight"), 0, 0.02)
    torch.save({"params": net.state_dict()}, tmp_path / "G.pth")
    found = results(tmp_path / "out", options, "--weights", str(tmp_path / "G.pth"))["clips"][
        "00001/0266"
    ]
    clip = Path(of_part(opt.datasets.test).dataroot_gt) / "00001/0266"
    pictures = [
        torch.from_numpy(read_picture(clip / f"im{i}.png")[..., ::-1].copy()) for i in range(1, 8)
    ]
    frames = torch.stack(pictures).permute(0, 3, 1, 2)[None] / 255
    with torch.no_grad():
        made = net(frames[:, ::2])[0, 0].clamp(0, 1)
    written = read_picture(tmp_path / "out/00001/0266/im4.png")[..., ::-1]
    assert [path.name for path in (tmp_path / "out/00001/0266").iterdir()] == ["im4.png"]
    assert abs(torch.from_numpy(written.copy()).permute(2, 0, 1) - 255 * made).max() <= 1
    # The input column has the simplest interpolation.
    for name, image, limit in (
        ("restored", made, 0.01),
        ("input", (frames[0, 2] + frames[0, 4]) / 2, 0.1),
    ):
        error = (image * 255).round() - frames[0, 3] * 255
        by_hand = 20 * torch.log10(255 / (error.double() ** 2).mean().sqrt())
        assert found[name]["psnr"] == pytest.approx(float(by_hand), abs=limit)


def test_pad_sequence_of_a_test_clip_restores_with_an_eighth_frame_and_scores_seven(tmp_path):
    vimeo = {
        key: value for key, value in options_of("009").items() if key.startswith("datasets.test.")
    }
    roots = {f"datasets.test.dataroot_{kind}": f"testsets/vimeo90k/{kind}" for kind in ("gt", "lq")}
    options = prepare(tmp_path, "003", **vimeo | roots | {"datasets.test.temporal_scale": 1})
    weights = save_weights(options, tmp_path / "G.pth")

    def scores(name: str, *arguments: str) -> dict[str, Any]:
        found = results(tmp_path / name, options, "--weights", weights, *arguments)
        return found["clips"]["00002/0008"]["per_frame"]

    # Our own option val.pad_seq does the same. Without the eighth frame the scores differ.
    padded = scores("a", "datasets.test.pad_sequence=true")
    assert len(padded["restored"]["psnr"]) == 7
    assert padded == scores("b", "val.pad_seq=true") != scores("c")


def test_what_is_said_of_totals_follows_the_file_and_the_command_line(tmp_path):
    # In KAIR, the batch and the number of loader processes are totals of all GPUs: here 8 and 1.
    options = prepare(tmp_path, "006", **{"datasets.train.dataloader_batch_size": 8})
    batch = "datasets.train.dataloader_batch_size"
    workers = "datasets.train.dataloader_num_workers"
    # One rank: a total is a number for each rank. Four ranks: the note gives the numbers for each.
    assert read(options).note_on_totals(1) == ""
    assert f"{batch}=2 {workers}=1" in read(options).note_on_totals(4)
    assert "a batch of 8 cannot be divided evenly among 3 ranks" in read(options).note_on_totals(3)
    # A number from the command line is no total.
    one = read(options, f"{workers}=4").note_on_totals(4)
    assert f"{batch}=2" in one
    assert workers not in one
    assert read(options, f"{workers}=4", f"{batch}=2").note_on_totals(4) == ""
    # Older versions of this project saved spike_channels. So this key is no sign of KAIR, whose
    # numbers are totals.
    own = {key: value for key, value in small(options_of("006")).items() if key not in NO_EFFECT}

    assert (
        read(write_file(options, own | {"datasets.train.spike_channels": 0})).note_on_totals(4)
        == ""
    )


def test_missing_data_are_named_all_at_once_with_the_layout_expected(tmp_path):
    options = small(options_of("009")) | {"task": "run"}
    result = train(write_file(tmp_path / "options.json", in_folder(tmp_path, options)))
    assert result.exit_codes == [3], result.text
    assert result.text.count("DataError") == 1, result.text
    for line in (
        "trainsets/vimeo90k/vimeo90k_train_GT_all.lmdb/data.mdb  a file under each key "
        "00001/0001/im1",
        "vimeo90k_train_GT_all.lmdb/meta_info.txt  a line for each key: "
        "00001/0001/im1.png (<height>,<width>,3) 1",
        "testsets/vimeo90k/vimeo_septuplet/sequences/00001/0001/im1.png",
        "meta_info_Vimeo90K_train_GT.txt  a line for each clip: "
        "00001/0001 <frames> (<height>,<width>,3)",
        "meta_info_Vimeo90K_test_GT.txt  a line for each clip",
    ):
        assert line in result.text
    # The line of the message that says what to do.
    do = "correct meta_info_file; "
    do += "download: https://github.com/cszn/KAIR/tree/master/data/meta_info; "
    do += "correct the dataroot in the options, or make or copy the data (docs/data_format.md); "
    do += "download: http://toflow.csail.mit.edu/"

    assert result.text.partition("\n  do ")[2].splitlines()[0].strip() == do


def test_a_network_and_datasets_for_different_tasks_are_refused(tmp_path):
    for number, overrides, text in (
        ("009", ["datasets.train.num_frame=5"], "datasets.train.num_frame is 5"),
        ("009", ["datasets.test.temporal_scale=1"], "datasets.test is VideoTestVimeo90KDataset"),
        ("009", ["val.flip_seq=true"], "val.flip_seq"),
        (
            "009",
            ["netG.pa_frames=2", "netG.deformable_groups=2"],
            "the network restores every frame",
        ),
        ("009", ["netG.out_chans=6"], "netG.out_chans is 6"),
        ("006", ["netG.pa_frames=0", "netG.spynet_path=null"], "the network makes new frames"),
        ("008", ["netG.nonblind_denoising=false"], "gives a noise map"),
        ("008", ["datasets.test.sigma=null"], "the test clips have no noise"),
    ):
        path = write_file(tmp_path / "options.json", small(options_of(number)))
        with pytest.raises(OptionError, match=text):
            read(path, *overrides)


# ---- Septuplets, and clips with noise ----

# The septuplets that there are, of which the meta file lists the first and the last, and the names
# of their frames.
CLIPS = ["00001/0001", "00001/0002", "00096/0936"]
STEMS = [f"im{i}" for i in range(1, 8)]


def grey(frame: int, size: tuple[int, int]) -> bytes:
    """Return the picture of a frame, whose value says which frame it is: 30 for im1, 60 for im2."""
    return cv2.imencode(".png", np.full((*size, 3), 30 * (frame + 1), np.uint8))[1].tobytes()


@pytest.fixture
def root(tmp_path):
    """Give a folder with sharp septuplets (gt) and a quarter as large ones (lq), and the meta file.

    Both are there as folders and as LMDBs: gt, gt.lmdb, lq, lq.lmdb.
    """
    for kind, size in (("gt", (96, 128)), ("lq", (24, 32))):
        files = {
            f"{clip}/{stem}.png": grey(i, size) for clip in CLIPS for i, stem in enumerate(STEMS)
        }
        write_files(tmp_path / kind, files)
        write_files(tmp_path / f"{kind}.lmdb", files)
    (tmp_path / "meta.txt").write_text(f"{CLIPS[0]} 7 (96,128,3)\n{CLIPS[2]} 7 (96,128,3)\n")
    return tmp_path


def section_of(
    root, name="VideoRecurrentTrainVimeoDataset", end="", split="train", lq="lq", **changes
):
    """Return a section of `datasets` on the septuplets. end: ".lmdb" for LMDBs, "" for folders."""
    section = {
        "dataset_type": name, "dataroot_gt": f"{root}/gt{end}", "dataroot_lq": f"{root}/{lq}{end}",
        "meta_info_file": f"{root}/meta.txt", "num_frame": 7,
        **({"gt_size": 32} if split == "train" else {}),
    }  # fmt: skip
    return section | ({"io_backend": {"type": "lmdb"}} if end else {}) | changes


def build(root, *args, split="train", **changes):
    """Return the dataset of `section_of`."""
    return build_dataset(section_of(root, *args, split=split, **changes), split, 0)


def numbers(frames: torch.Tensor) -> list[int]:
    """Return the number of each frame (n, 3, H, W), by its grey level: 1 for im1, 2 for im2, ..."""
    assert all(frame.unique().numel() == 1 for frame in frames)
    return [round(float(frame.mean()) * 255 / 30) for frame in frames]


@pytest.mark.parametrize("end", ["", ".lmdb"])
def test_a_listed_septuplet_is_one_sample_and_is_padded_to_eight_frames(root, end):
    dataset = build(root, end=end, pad_sequence=True)
    assert len(dataset) == 2
    for index, clip in enumerate((CLIPS[0], CLIPS[2])):
        item = dataset[(0, index)]
        assert item["key"] == f"{clip}/im1"
        assert item["lq"].shape == (8, 3, 8, 8)
        assert item["gt"].shape == (8, 3, 32, 32)
        assert numbers(item["lq"]) == numbers(item["gt"]) == [1, 2, 3, 4, 5, 6, 7, 7]
    assert numbers(build(root, end=end, num_frame=5)[(0, 0)]["lq"]) == [2, 3, 4, 5, 6]
    # In reversed time, the frame that is played last is repeated.
    dataset = build(root, end=end, pad_sequence=True, random_reverse=True)
    orders = {tuple(numbers(dataset[(epoch, 0)]["lq"])) for epoch in range(12)}
    assert orders == {(1, 2, 3, 4, 5, 6, 7, 7), (7, 6, 5, 4, 3, 2, 1, 1)}
    # Interpolation gets every second frame, and the one in the middle.
    dataset = build(
        root,
        "VideoRecurrentTrainVimeoVFIDataset",
        end,
        lq="gt",
        temporal_scale=2,
        random_reverse=True,
    )
    items = [dataset[(epoch, 1)] for epoch in range(12)]

    assert {tuple(numbers(item["lq"])) for item in items} == {(1, 3, 5, 7), (7, 5, 3, 1)}
    assert all(numbers(item["gt"]) == [4] for item in items)


def test_folders_that_the_meta_file_does_not_list_are_not_looked_at_and_a_test_clip_has_all_frames(
    root,
):
    dataset = build(root, "VideoTestVimeo90KDataset", split="test", lq="gt", temporal_scale=2)
    clips = dataset.readers()
    assert [clip.name for clip in clips] == [CLIPS[0], CLIPS[2]]
    assert dataset.count_folders() == 0
    assert list(clips[1].stems) == STEMS
    assert numbers(torch.stack([clips[1].frame(i)["gt"] for i in range(7)])) == [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
    ]
    shutil.rmtree(root / "lq" / CLIPS[1])
    assert len(build(root)) == 2
    (root / "lq" / CLIPS[2] / "im4.png").unlink()
    with pytest.raises(DataError, match=r"00096/0936 +\| lq lacks 1 of 7 frames: im4\.png"):
        build(root)
    shutil.rmtree(root / "lq" / CLIPS[2])
    with pytest.raises(DataError, match=r"00096/0936 .*lq has no folder"):
        build(root)


@pytest.mark.parametrize(
    ("end", "missing"), [("", "folder 00009/0009"), (".lmdb", "key 00009/0009/<frame>")]
)
def test_a_listed_septuplet_without_data_is_named_with_its_frames_and_the_meta_list(
    root, end, missing
):
    with (root / "meta.txt").open("a") as file:
        file.write("00009/0009 7 (96,128,3)\n")
    with pytest.raises(DataError) as error:
        build(root, end=end)
    text = str(error.value)

    assert f"lq has no {missing}" in text
    assert f"gt has no {missing}" in text
    assert "im1 ... im7 of every listed clip, each with its lq and gt file" in text
    assert f"00001/0001/im1{'' if end else '.png'}" in text.partition("expected")[2]
    assert f"restore these files, or remove the clips from the meta list {root}/meta.txt" in text
    assert not any(word in text for word in ("blur", "sharp", "spike", "from the folders"))


def test_a_picture_of_another_size_than_the_first_clip_is_refused_when_it_is_read(root):
    # Opening a dataset reads the size of the first clip alone, because reading the headers of all
    # 64,612 septuplets would take minutes. The check before a run reads them.
    (root / "lq" / CLIPS[2] / "im2.png").write_bytes(grey(1, (12, 16)))
    with pytest.raises(DataError, match="frame of 12 x 16"):
        build(root)[(0, 1)]
    report = check(section_of(root))

    assert [problem.what for problem in report.problems] == [
        "lq frame of 12 x 16, the first of the clip has 24 x 32"
    ]


def test_color_jitter_is_small_alike_in_all_frames_and_a_function_of_the_sample(root):
    picture = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0)) * 0.6 + 0.2
    frames = jitter_colors(picture.expand(3, -1, -1, -1), np.random.default_rng(1))
    assert torch.equal(frames[0], frames[1])
    assert torch.equal(frames[1], frames[2])
    assert 0 < float((frames[0] - picture).abs().max()) < 0.3
    dataset = build(root, "VideoRecurrentTrainVimeoVFIDataset", lq="gt", color_jitter=True)

    assert torch.equal(dataset[(0, 0)]["lq"], dataset[(0, 0)]["lq"])
    assert not torch.equal(dataset[(0, 0)]["lq"], dataset[(1, 0)]["lq"])


@pytest.fixture
def clean(tmp_path):
    """Give a folder with two clips of three sharp frames of 48 x 48, as .jpg files."""
    write_files(
        tmp_path / "clean", clip_pictures(["a", "b"], ["00000", "00001", "00002"], (48, 48), "jpg")
    )
    return str(tmp_path / "clean")


def frames_of(clean, name, split="train", seed=7, **changes):
    """Return a dataset on the sharp frames, with crops for training."""
    section = {"dataset_type": name, "dataroot_gt": clean, "dataroot_lq": clean, **changes}
    crops = {"filename_ext": "jpg", "num_frame": 3, "gt_size": 40} if split == "train" else {}
    return build_dataset(crops | section, split, seed)


def denoising(clean, **changes):
    """Return a dataset of training that adds noise of 10 to 50 grey levels."""
    name = "VideoRecurrentTrainNonblindDenoisingDataset"
    return frames_of(clean, name, **{"sigma_min": 10, "sigma_max": 50, **changes})


def test_a_denoising_sample_has_noise_of_its_own_level_and_the_noise_map(clean):
    dataset = denoising(clean)
    levels = []
    for epoch in range(6):
        item = dataset[(epoch, 0)]
        again = denoising(clean)[(epoch, 0)]
        assert torch.equal(item["lq"], again["lq"])
        noisy = item["lq"][:, :3]
        noise_map = item["lq"][:, 3:]
        assert noise_map.unique().numel() == 1
        levels.append(255 * float(noise_map[0, 0, 0, 0]))
        noise = 255 * (noisy - item["gt"])
        assert float(noise.std()) == pytest.approx(levels[-1], rel=0.05)
        assert abs(float(noise.mean())) < 1.5
        assert not torch.equal(noise[0], noise[1])
    assert len(set(levels)) == 6
    assert min(levels) >= 10
    assert max(levels) <= 50
    # The crop is that of a sample without noise.
    assert torch.equal(
        frames_of(clean, "VideoRecurrentTrainDataset")[(2, 0)]["gt"], dataset[(2, 0)]["gt"]
    )
    for changes, error, words in (
        ({"dataroot_lq": f"{clean}/a"}, OptionError, "the same as dataroot_gt"),
        ({"sigma_min": 60}, OptionError, "sigma_min is 60, sigma_max 50"),
        ({"gt_size": 64}, DataError, r"crops of 64 do not fit into clip a\n.*00000\.jpg"),
    ):
        with pytest.raises(error, match=words):
            denoising(clean, **changes)


def test_test_noise_depends_on_the_names_of_clip_and_frame_alone(clean):
    def noisy(seed, **changes):  # without filename_ext, as in KAIR's files: the images are .jpg
        return frames_of(clean, "VideoRecurrentTestDataset", "test", seed, sigma=30, **changes)

    whole = noisy(0)[1]
    assert float((255 * (whole["lq"] - whole["gt"])).std()) == pytest.approx(30, rel=0.05)
    shutil.rmtree(f"{clean}/a")
    alone = noisy(0, num_frame=2)
    assert torch.equal(alone[0]["lq"], whole["lq"][:2])
    assert torch.equal(alone.readers()[0].frame(1, reverse=True)["lq"], whole["lq"][1])
    assert not torch.equal(noisy(1)[0]["lq"][0], whole["lq"][0])
