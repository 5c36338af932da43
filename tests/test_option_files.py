"""The option files that come with the project, and those of KAIR, against the real networks and datasets."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import main_train_vrt
from tests.clip_files import write_clip
from tests.dist.launching import run_command
from tests.test_io_backend import to_lmdb
from tests.train_files import history, train

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "options").rglob("*.json"))
GOPRO = ROOT / "options/vrt/006_train_vrt_videodeblurring_gopro"

KAIR = """{
  "task": "006_train_vrt_videodeblurring_gopro"
  , "model": "vrt"
  , "gpu_ids": [0,1,2,3,4,5,6,7]
  , "dist": true
  , "find_unused_parameters": false
  , "use_static_graph": true
  , "scale": 1
  , "n_channels": 3
  , "path": {"root": "experiments", "pretrained_netG": null, "pretrained_netE": null, "pretrained_optimizerG": null}
  , "datasets": {
    "train": {
      "name": "train_dataset", "dataset_type": "VideoRecurrentTrainDataset"
      , "dataroot_gt": "trainsets/GoPro/train_GT.lmdb", "dataroot_lq": "trainsets/GoPro/train_GT_blurred.lmdb"
      , "meta_info_file": "data/meta_info/meta_info_GoPro_GT.txt"
      , "filename_tmpl": "06d", "filename_ext": "png", "val_partition": "REDS4", "test_mode": false
      , "io_backend": {"type": "lmdb"}
      , "num_frame": 6, "gt_size": 192, "interval_list": [1], "random_reverse": false, "use_hflip": true
      , "use_rot": true
      , "dataloader_shuffle": true, "dataloader_num_workers": 32, "dataloader_batch_size": 8
    }
    , "test": {
      "name": "test_dataset", "dataset_type": "VideoRecurrentTestDataset"
      , "dataroot_gt": "testsets/GoPro/test_GT", "dataroot_lq": "testsets/GoPro/test_GT_blurred"
      , "cache_data": true, "io_backend": {"type": "disk"}, "num_frame": -1
    }
  }
  , "netG": {
    "net_type": "vrt", "upscale": 1, "img_size": [6,192,192], "window_size": [6,8,8]
    , "depths": [8,8,8,8,8,8,8,4,4,4,4], "indep_reconsts": [9,10]
    , "embed_dims": [96,96,96,96,96,96,96,120,120,120,120], "num_heads": [6,6,6,6,6,6,6,6,6,6,6]
    , "spynet_path": "model_zoo/vrt/spynet_sintel_final-3d2a1287.pth", "pa_frames": 2, "deformable_groups": 16
    , "nonblind_denoising": false
    , "use_checkpoint_attn": true, "use_checkpoint_ffn": true
    , "no_checkpoint_attn_blocks": [2,3,4], "no_checkpoint_ffn_blocks": [1,2,3,4,5,9]
    , "init_type": "default"
  }
  , "train": {
    "G_lossfn_type": "charbonnier", "G_lossfn_weight": 1.0, "G_charbonnier_eps": 1e-9
    , "E_decay": 0 // Exponential Moving Average for netG: set 0 to disable; default setting 0.999
    , "G_optimizer_type": "adam", "G_optimizer_lr": 4e-4, "G_optimizer_betas": [0.9,0.99], "G_optimizer_wd": 0
    , "G_optimizer_clipgrad": null, "G_optimizer_reuse": true
    , "fix_iter": 20000, "fix_lr_mul": 0.125, "fix_keys": ["spynet", "deform"], "total_iter": 300000
    , "G_scheduler_type": "CosineAnnealingWarmRestarts", "G_scheduler_periods": 300000, "G_scheduler_eta_min": 1e-7
    , "G_regularizer_orthstep": null, "G_regularizer_clipstep": null, "G_param_strict": false, "E_param_strict": true
    , "checkpoint_test": 5000, "checkpoint_save": 5000, "checkpoint_print": 200
  }
  , "val": {
    "save_img": false, "pad_seq": false, "flip_seq": false, "center_frame_only": false
    , "num_frame_testing": 18, "num_frame_overlapping": 2, "size_patch_testing": 192
  }
}
"""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_option_file_of_the_project_is_valid(file):
    opt = main_train_vrt.read_options(["--opt", str(file)])
    assert opt.task == file.stem


def test_the_rgb_ablation_differs_from_the_reference_in_the_spikes_alone():
    rgb, both = (main_train_vrt.read_options(["--opt", f"{GOPRO}{end}.json"]) for end in ("", "_rgbspike"))
    assert (rgb.spike_channels, both.spike_channels) == (0, 8)
    assert rgb.netG.fusion.type == "none"
    assert {**rgb.netG.plain(), "fusion": 0} == {**both.netG.plain(), "fusion": 0}
    for section in ("train", "val", "logging"):
        assert getattr(rgb, section) == getattr(both, section)


# What a person changes in KAIR's file for data and a network of a test's size; every other key stays as it is.
SMALL = {
    "netG.img_size": [6, 32, 32], "netG.window_size": [6, 4, 4], "netG.depths": [2] * 11, "netG.embed_dims": [8] * 11,
    "netG.num_heads": [2] * 11, "netG.deformable_groups": 2, "netG.spynet_path": None, "train.total_iter": 2,
    "train.checkpoint_print": 1, "datasets.train.gt_size": 32, "datasets.train.dataloader_batch_size": 1,
    "datasets.train.dataloader_num_workers": 1,
}  # fmt: skip


def test_a_file_of_kair_trains_with_its_own_keys_and_layouts(tmp_path):
    frames, roots = tmp_path / "GOPRO_Large", tmp_path / "trainsets"
    for name, split in (("clip0", "train"), ("clip1", "train"), ("clip2", "test")):
        write_clip(tmp_path, name, split=split, frames=6, h=16, w=16)
    to_lmdb(frames / "train", "sharp", roots / "train_GT.lmdb")
    to_lmdb(frames / "train", "blur", roots / "train_GT_blurred.lmdb")
    (roots / "meta.txt").write_text("clip0 6 (32,32,3) 000000\nclip1 6 (32,32,3) 000000\n")
    paths = {
        "path.root": str(tmp_path / "experiments"), "datasets.train.meta_info_file": str(roots / "meta.txt"),
        "datasets.train.dataroot_gt": str(roots / "train_GT.lmdb"),
        "datasets.train.dataroot_lq": str(roots / "train_GT_blurred.lmdb"),
        "datasets.test.dataroot_gt": str(frames / "test"), "datasets.test.dataroot_lq": str(frames / "test"),
    }  # fmt: skip
    file = tmp_path / "kair.json"
    file.write_text(KAIR)

    overrides = (f"{key}={json.dumps(value)}" for key, value in (SMALL | paths).items())
    result = train(file, *overrides, limit_s=300)

    assert result.exit_codes == [0], result.text
    steps = history(file, "006_train_vrt_videodeblurring_gopro")
    assert [step for step, _ in steps["train/loss"]] == [1, 2] and "val/psnr" in steps
    unused = "train.G_optimizer_reuse"
    assert result.text.count(unused) == 1, "keys without a meaning here are named once"


def test_the_page_of_options_is_up_to_date():
    page = (ROOT / "docs/options.md").read_text(encoding="utf-8")
    # In a process of its own: other tests register parts that no user has.
    script = "from scripts.make_options_doc import make_page; print(make_page(), end='')"
    made = run_command([sys.executable, "-c", script])
    assert made.stdout[0] == page, "run python scripts/make_options_doc.py"
