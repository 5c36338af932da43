"""Wrong input ends every rank, of one or two, within seconds, with one error of four parts."""

from __future__ import annotations

import shutil

import pytest

from tests.dist.launching import run_command
from tests.train_files import train, write_options

OPTION, DATA = 2, 3


def short_dat(folder):
    path = folder / "GOPRO_Large_spike_seq" / "train" / "train1" / "spike" / "000002.dat"
    path.write_bytes(path.read_bytes()[:-5])


def missing_dat(folder):
    (folder / "GOPRO_Large_spike_seq" / "train" / "train1" / "spike" / "000002.dat").unlink()


def unmatched_frames(folder):
    (folder / "GOPRO_Large" / "train" / "train0" / "sharp" / "000001.png").unlink()


def missing_folder(folder):
    shutil.rmtree(folder / "GOPRO_Large" / "test")


def missing_spikes(folder):
    shutil.rmtree(folder / "GOPRO_Large_spike_seq")


def nothing(folder):
    pass


def in_gbk(folder):
    path = folder / "options.json"
    path.write_bytes("// 模糊\n".encode("gbk") + path.read_bytes())


def list_in_gbk(folder):
    (folder / "list.txt").write_bytes("训练 4 0 0\n".encode("gbk"))


CASES = {
    "unknown option": (
        nothing,
        "train.G_optimiser_lr=1e-4",
        OPTION,
        ("train.G_optimiser_lr", 'keys of "train" with loss "charbonnier"; the nearest is G_optimizer_lr'),
    ),
    "wrong type": (nothing, "train.total_iter=many", OPTION, ("train.total_iter", "int")),
    "crop": (nothing, "datasets.train.gt_size=30", OPTION, ("gt_size", "30")),
    "channels": (nothing, "netG.fusion=concat", OPTION, ("netG.in_chans", "5, which", "3 RGB and 2 spike channels")),
    "batch": (nothing, "datasets.train.dataloader_batch_size=9", OPTION, ("9",)),
    "pretrained": (nothing, "path.pretrained_netG=/nowhere.pth", DATA, ("/nowhere.pth",)),
    "encoding": (in_gbk, "task=x", OPTION, ("options.json", "not UTF-8", "save it as UTF-8")),
    "encoding of a list": (
        list_in_gbk,
        "datasets.train.meta_info_file={}/list.txt",
        DATA,
        ("list.txt", "not UTF-8", "save it as UTF-8"),
    ),
    "learning_rate": (nothing, "train.learning_rate=1e-4", OPTION, ("rename it: train.G_optimizer_lr",)),
    "lr": (nothing, "lr=1e-4", OPTION, ("rename it: train.G_optimizer_lr",)),
    "batch_size": (nothing, "train.batch_size=4", OPTION, ("rename it: datasets.train.dataloader_batch_size",)),
    "epochs": (nothing, "epochs=4", OPTION, ("rename it: train.epochs",)),
    "workers": (nothing, "datasets.train.workers=4", OPTION, ("rename it: datasets.train.dataloader_num_workers",)),
    "missing folder": (missing_folder, "task=x", DATA, ("GOPRO_Large/test",)),
    "missing spikes": (missing_spikes, "task=x", DATA, ("GOPRO_Large_spike_seq/train", "make the data")),
    "short dat": (short_dat, "task=x", DATA, ("train1", "000002.dat")),
    "missing dat": (missing_dat, "task=x", DATA, ("train1", "000002")),
    "unmatched frames": (unmatched_frames, "task=x", DATA, ("train0", "000001")),
}


ONE_RANK = ("encoding of a list", "lr", "batch_size", "epochs", "workers")
ONE_RANK_TOO = ("unknown option", "crop", "channels", "missing folder", "short dat", "unmatched frames")


ALL = [*((case, 1) for case in (*ONE_RANK, *ONE_RANK_TOO)), *((case, 2) for case in CASES if case not in ONE_RANK)]


@pytest.mark.parametrize(("case", "ranks"), ALL)
def test_bad_input_ends_every_rank_with_one_message(tmp_path, case, ranks):
    spoil, override, code, words = CASES[case]
    options = write_options(tmp_path)
    spoil(tmp_path)

    result = train(options, override.replace("{}", str(tmp_path)), ranks=ranks, limit_s=60)

    kind = {OPTION: "OptionError: ", DATA: "DataError: "}[code]
    kind = "CheckpointError: " if case == "pretrained" else kind
    assert result.exit_codes == [code] * ranks, result.text
    assert result.text.count(kind) == 1 and "Traceback" not in result.text
    message = result.text[result.text.index(kind) :]
    assert all(word in message for word in words), message
    assert all(f"\n  {part:<9} " in message for part in ("in", "expected", "do")), message


@pytest.mark.parametrize("value", ["two", "-1"])
def test_a_world_size_that_is_no_number_stops_the_platform_launch(tmp_path, value):
    options = write_options(tmp_path)

    result = train(options, ranks=2, env={"WORLD_SIZE": value}, limit_s=60)

    assert result.exit_codes == [2, 2], result.text
    assert result.text.count("DistError: ") == 1 and "WORLD_SIZE" in result.text


def test_an_option_file_that_does_not_exist_is_named():
    result = run_command(["./launch_train.sh", "1", "options/vrt/nowhere.json"])

    assert result.exit_codes == [2] and "options/vrt/nowhere.json" in result.text
    assert result.text.count("OptionError: ") == 1
