"""Vimeo-90K septuplets, for super-resolution and frame interpolation, and clips with noise for denoising."""

import shutil

import cv2
import numpy as np
import pytest
import torch

from data.clip_reader import dataset_clips
from data.dataset_video import jitter_colors
from data.select_dataset import DATASETS, build_dataset
from tests.kair_files import clip_pictures, write_files
from utils.errors import DataError, OptionError

CLIPS, STEMS = ["00001/0001", "00001/0002", "00096/0936"], [f"im{i}" for i in range(1, 8)]


def grey(frame: int, size: tuple[int, int]) -> bytes:
    """A picture whose value says which frame it is: 30 for im1, 60 for im2, ..."""
    return cv2.imencode(".png", np.full((*size, 3), 30 * (frame + 1), np.uint8))[1].tobytes()


@pytest.fixture
def root(tmp_path):
    """Septuplets x 1 and x 4, in folders and LMDBs; the meta file lists the first and the last clip."""
    for kind, size in (("gt", (96, 128)), ("lq", (24, 32))):
        files = {f"{clip}/{stem}.png": grey(i, size) for clip in CLIPS for i, stem in enumerate(STEMS)}
        write_files(tmp_path / kind, files)
        write_files(tmp_path / f"{kind}.lmdb", files)
    (tmp_path / "meta.txt").write_text(f"{CLIPS[0]} 7 (96,128,3)\n{CLIPS[2]} 7 (96,128,3)\n")
    return tmp_path


def section_of(root, name="VideoRecurrentTrainVimeoDataset", end="", split="train", lq="lq", **changes):
    section = {
        "dataset_type": name, "dataroot_gt": f"{root}/gt{end}", "dataroot_lq": f"{root}/{lq}{end}",
        "meta_info_file": f"{root}/meta.txt", "num_frame": 7, **({"gt_size": 32} if split == "train" else {}),
    }  # fmt: skip
    return section | ({"io_backend": {"type": "lmdb"}} if end else {}) | changes


def build(root, *args, split="train", **changes):
    return build_dataset(section_of(root, *args, split=split, **changes), split, 0)


def numbers(frames: torch.Tensor) -> list[int]:
    """Which of im1 ... im7 the frames are."""
    assert all(frame.unique().numel() == 1 for frame in frames)
    return [round(float(frame.mean()) * 255 / 30) for frame in frames]


@pytest.mark.parametrize("end", ["", ".lmdb"])
def test_a_listed_septuplet_is_one_sample_and_is_padded_to_eight_frames(root, end):
    dataset = build(root, end=end, pad_sequence=True)

    assert len(dataset) == 2
    for index, clip in enumerate((CLIPS[0], CLIPS[2])):
        item = dataset[(0, index)]
        assert item["key"] == f"{clip}/im1"
        assert item["lq"].shape == (8, 3, 8, 8) and item["gt"].shape == (8, 3, 32, 32)
        assert numbers(item["lq"]) == numbers(item["gt"]) == [1, 2, 3, 4, 5, 6, 7, 7]
    assert numbers(build(root, end=end, num_frame=5)[(0, 0)]["lq"]) == [2, 3, 4, 5, 6]
    # In reversed time, the frame that is played last is repeated.
    dataset = build(root, end=end, pad_sequence=True, random_reverse=True)
    orders = {tuple(numbers(dataset[(epoch, 0)]["lq"])) for epoch in range(12)}
    assert orders == {(1, 2, 3, 4, 5, 6, 7, 7), (7, 6, 5, 4, 3, 2, 1, 1)}
    # Interpolation gets every second frame, and the one in the middle.
    dataset = build(root, "VideoRecurrentTrainVimeoVFIDataset", end, lq="gt", temporal_scale=2, random_reverse=True)
    items = [dataset[(epoch, 1)] for epoch in range(12)]
    assert {tuple(numbers(item["lq"])) for item in items} == {(1, 3, 5, 7), (7, 5, 3, 1)}
    assert all(numbers(item["gt"]) == [4] for item in items)


def test_folders_that_the_meta_file_does_not_list_are_not_looked_at_and_a_test_clip_has_all_frames(root):
    dataset = build(root, "VideoTestVimeo90KDataset", split="test", lq="gt", temporal_scale=2)
    clips = dataset_clips(dataset)
    assert [clip.name for clip in clips] == [CLIPS[0], CLIPS[2]] and dataset.count_folders() == 0
    assert list(clips[1].stems) == STEMS
    assert numbers(torch.stack([clips[1].frame(i)["gt"] for i in range(7)])) == [1, 2, 3, 4, 5, 6, 7]
    shutil.rmtree(root / "lq" / CLIPS[1])
    assert len(build(root)) == 2
    (root / "lq" / CLIPS[2] / "im4.png").unlink()
    with pytest.raises(DataError, match=r"00096/0936 +\| lq lacks 1 of 7 frames: im4\.png"):
        build(root)
    shutil.rmtree(root / "lq" / CLIPS[2])
    with pytest.raises(DataError, match=r"00096/0936 .*lq has no folder"):
        build(root)


@pytest.mark.parametrize(("end", "missing"), [("", "folder 00009/0009"), (".lmdb", "key 00009/0009/<frame>")])
def test_a_listed_septuplet_without_data_is_named_with_its_frames_and_the_meta_list(root, end, missing):
    with (root / "meta.txt").open("a") as file:
        file.write("00009/0009 7 (96,128,3)\n")
    with pytest.raises(DataError) as error:
        build(root, end=end)
    text = str(error.value)
    assert f"lq has no {missing}" in text and f"gt has no {missing}" in text
    assert "im1 ... im7 of every listed clip, each with its lq and gt file" in text
    assert f"00001/0001/im1{'' if end else '.png'}" in text.partition("expected")[2]
    assert f"restore these files, or remove the clips from the meta list {root}/meta.txt" in text
    assert not any(word in text for word in ("blur", "sharp", "spike", "from the folders"))


def test_a_picture_of_another_size_than_the_first_clip_is_refused_when_it_is_read(root):
    # Sizes are those of the first clip: the headers of 64,612 clips are read by the check before a run alone.
    (root / "lq" / CLIPS[2] / "im2.png").write_bytes(grey(1, (12, 16)))
    with pytest.raises(DataError, match="frame of 12 x 16"):
        build(root)[(0, 1)]
    section = DATASETS.resolve(section_of(root), "datasets.train")
    problems = section.constructor.check(section, "train")[0].problems
    assert [problem.what for problem in problems] == ["lq frame of 12 x 16, the first of the clip has 24 x 32"]


def test_color_jitter_is_small_alike_in_all_frames_and_a_function_of_the_sample(root):
    picture = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0)) * 0.6 + 0.2
    frames = jitter_colors(picture.expand(3, -1, -1, -1), np.random.default_rng(1))
    assert torch.equal(frames[0], frames[1]) and torch.equal(frames[1], frames[2])
    assert 0 < float((frames[0] - picture).abs().max()) < 0.3

    dataset = build(root, "VideoRecurrentTrainVimeoVFIDataset", lq="gt", color_jitter=True)
    assert torch.equal(dataset[(0, 0)]["lq"], dataset[(0, 0)]["lq"])
    assert not torch.equal(dataset[(0, 0)]["lq"], dataset[(1, 0)]["lq"])


@pytest.fixture
def clean(tmp_path):
    write_files(tmp_path / "clean", clip_pictures(["a", "b"], ["00000", "00001", "00002"], (48, 48), "jpg"))
    return str(tmp_path / "clean")


def frames_of(clean, name, split="train", seed=7, **changes):
    section = {"dataset_type": name, "dataroot_gt": clean, "dataroot_lq": clean, **changes}
    crops = {"filename_ext": "jpg", "num_frame": 3, "gt_size": 40} if split == "train" else {}
    return build_dataset(crops | section, split, seed)


def denoising(clean, **changes):
    name = "VideoRecurrentTrainNonblindDenoisingDataset"
    return frames_of(clean, name, **{"sigma_min": 10, "sigma_max": 50, **changes})


def test_a_denoising_sample_has_noise_of_its_own_level_and_the_noise_map(clean):
    dataset = denoising(clean)
    levels = []
    for epoch in range(6):
        item = dataset[(epoch, 0)]
        again = denoising(clean)[(epoch, 0)]
        assert torch.equal(item["lq"], again["lq"])
        noisy, noise_map = item["lq"][:, :3], item["lq"][:, 3:]
        assert noise_map.unique().numel() == 1
        levels.append(255 * float(noise_map[0, 0, 0, 0]))
        noise = 255 * (noisy - item["gt"])
        assert float(noise.std()) == pytest.approx(levels[-1], rel=0.05) and abs(float(noise.mean())) < 1.5
        assert not torch.equal(noise[0], noise[1])
    assert len(set(levels)) == 6 and min(levels) >= 10 and max(levels) <= 50
    # The crop is that of a sample without noise.
    assert torch.equal(frames_of(clean, "VideoRecurrentTrainDataset")[(2, 0)]["gt"], dataset[(2, 0)]["gt"])
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
    assert torch.equal(dataset_clips(alone)[0].frame(1, reverse=True)["lq"], whole["lq"][1])
    assert not torch.equal(noisy(1)[0]["lq"][0], whole["lq"][0])
