"""Wrong input ends every rank, of one or two, within seconds, with one error of four parts.

The parts say what is wrong, where ("in"), what was expected, and what to do. Wrong options are read
in this process, because that is fast. A few of them, and all wrong data, go through a whole start.
"""

import shutil
import sys

import pytest

from main_train_vrt import read_options
from tests.dist.launching import ROOT, run_command, run_ranks
from tests.helpers.train_files import train, write_options
from utils.errors import OptionError


def in_gbk(path):
    """Put a Chinese comment in the encoding GBK, which is no UTF-8, at the begin of a file."""
    path.write_bytes(
        "// 模糊 4 0 0\n".encode("gbk") + (path.read_bytes() if path.exists() else b"")
    )


GT = "GOPRO_Large/train/train0/sharp"
# What is done to the folder of the data, the override, the exit code, the words of the message.
CASES = {
    "pretrained": (None, "path.pretrained_netG=/nowhere.pth", 3, ["/nowhere.pth"]),
    "batch": (None, "datasets.train.dataloader_batch_size=9", 2, [
        "8 training samples are fewer than one batch of 18", "2 ranks x 9"]),
    "encoding": (lambda at: in_gbk(at / "options.json"), "task=x", 2,
        ["options.json", "not UTF-8", "save it as"]),
    "encoding of a list": (
        lambda at: in_gbk(at / "list.txt"), "datasets.train.meta_info_file={}/list.txt", 3,
        ["list.txt", "not UTF-8", "save it as UTF-8"]),
    "missing folder": (lambda at: shutil.rmtree(at / "GOPRO_Large/test"), "task=x", 3,
        ["GOPRO_Large/test"]),
    "missing spikes": (lambda at: shutil.rmtree(at / "GOPRO_Large_spike_seq"), "task=x", 3, [
        "GOPRO_Large_spike_seq/train", "make the data"]),
    "unmatched frames": (lambda at: (at / GT / "000001.png").unlink(), "task=x", 3,
        ["train0", "000001"]),
}  # fmt: skip


# What the message expects in place of a misspelt key of the section train.
KEYS = 'keys of "train" with loss "charbonnier"; the nearest is G_optimizer_lr'
# A wrong option as on the command line -> words of the message.
OPTIONS = {
    "train.G_optimiser_lr=1e-4": ["train.G_optimiser_lr", KEYS],
    "train.total_iter=many": ["train.total_iter", "int"],
    "datasets.train.gt_size=30": ["datasets.train.gt_size is 30", "set it to 32"],
    "netG.fusion=concat": ["netG.in_chans", "5, which", "3 RGB and 2 spike channels"],
    **{key: ["rename it: train.G_optimizer_lr"] for key in ("train.learning_rate=1e-4", "lr=1e-4")},
    "train.batch_size=4": ["rename it: datasets.train.dataloader_batch_size"],
    "epochs=4": ["rename it: train.epochs"],
    "datasets.train.workers=4": ["rename it: datasets.train.dataloader_num_workers"],
    "datasets.test.spike.representation.num_bins=3":
        ["datasets.test gives 3 spike channels, ", "train 2"],
    "datasets.train.dataloader_timeout_s=300":
        ["dataloader_timeout_s is 300, watchdog.stall_s 300"],
    "train.total_iter=null": ["total_iter and train.epochs are both null"],
    "task=..": ["task is '..'"],
    # A task that cannot name a folder of its own.
    **{f"task={name}": ["a folder name: at most 255 bytes"]
       for name in ("x" * 300, "脉冲" * 60, ".preflight")},
    # What the loss needs, and the data lack.
    "datasets.train.dataroot_gt=null":
        ["needs sharp frames, and datasets.train.dataroot_gt is null"],
    "netG.out_instants=3": ["line 1 (datasets.train.dataroot_gt_instants)"],
    # What former versions had.
    "train.G_lossfn_type=reblur": ["a registered loss: charbonnier, l1, l2"],
    "datasets.train.rate_windows=3": ["unknown option datasets.train.rate_windows"],
    "netG.flow_input=both": ["unknown option netG.flow_input"],
}  # fmt: skip


def check_message(text, words):
    """Check that a message has these words and all its parts."""
    assert all(word in text for word in words), text
    assert all(f"\n  {part:<9} " in text for part in ("in", "expected", "do")), text


@pytest.mark.parametrize(("override", "words"), OPTIONS.items())
def test_a_wrong_option_is_refused_with_what_to_write_in_its_place(tmp_path, override, words):
    with pytest.raises(OptionError) as error:
        read_options(["--opt", str(write_options(tmp_path)), *override.split(" ")])
    check_message(str(error.value), words)


@pytest.mark.parametrize(
    ("case", "ranks"),
    [(case, 1) for case in ("netG.fusion=concat", "unmatched frames")]
    + [(case, 2) for case in ("train.total_iter=many", *CASES)],
)
def test_bad_input_ends_every_rank_with_one_message(tmp_path, case, ranks):
    spoil, override, code, words = CASES.get(case) or (None, case, 2, OPTIONS[case])
    options = write_options(tmp_path)
    if spoil:
        spoil(tmp_path)
    result = train(options, override.replace("{}", str(tmp_path)), ranks=ranks, limit_s=60)
    assert result.exit_codes == [code] * ranks, result.text
    assert result.text.count("Error: ") == 1, result.text
    assert "Traceback" not in result.text, result.text
    check_message(result.text[result.text.index("Error: ") :], words)


def test_control_characters_of_names_do_not_reach_the_terminal(tmp_path):
    options = write_options(tmp_path)
    escape = "\x1b]0;owned\x07\u202e"
    result = train(options, f"train.{escape}=3")
    assert result.exit_codes == [2]
    assert "owned" in result.text
    assert not {"\x1b", "\x07", "\u202e"} & set(result.text)
    log = tmp_path / "run.log"
    log.write_text(f"DataError: {escape}\n" + "\n" * 2_000_000)
    doctor = run_command([sys.executable, "scripts/doctor.py", "--log", log], limit_s=10)

    assert "owned" in doctor.text
    assert "\x1b" not in doctor.text


# A program that trains, and goes on when the training ended with an error, as a notebook does. It
# prints which threads and child processes are left.
LIVES_ON = """
import json, os, sys, threading
import main_train_vrt
from utils.dist.process import descendants_of
try:
    main_train_vrt.main(sys.argv[1:])
except SystemExit as e:
    code = e.code
threads = sorted(thread.name for thread in threading.enumerate())
print(json.dumps({"code": code, "threads": threads, "children": len(descendants_of(os.getpid()))}))
"""


def test_a_program_that_lives_on_after_a_run_ended_with_an_error_is_watched_no_longer(tmp_path):
    # A watchdog that stayed would take the idle program for a run that hangs, and end it.
    program = tmp_path / "notebook.py"
    program.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{LIVES_ON}")
    options = write_options(tmp_path)
    shutil.rmtree(tmp_path / "GOPRO_Large_spike_seq")
    result = run_ranks(1, program, "--opt", options)

    assert result.json == {"code": 3, "threads": ["MainThread"], "children": 0}, result.text
