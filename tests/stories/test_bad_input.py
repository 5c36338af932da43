"""Wrong input ends all ranks of a run, one or two, within seconds. One error has four parts.

The parts say what is wrong, where ("in"), what was expected, and what to do. Most wrong options are
read in this process, because this is fast. A few wrong options, and all wrong data, are given to a
whole start of a training.

What is tested: utils/options/ refuses options, data/clips/ refuses data, and
scripts/parts/exit_codes.py prints the message. A new check needs an entry in OPTIONS or INPUTS.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from main_train_vrt import read_options
from tests.dist.launching import ROOT, RankResult, run_command, run_ranks
from tests.helpers.train_files import train, write_options
from utils.errors import OptionError

# Exit codes.
WRONG_OPTIONS = 2
WRONG_DATA = 3  # also for a missing file


def assert_is_whole(text: str, words: list[str]) -> None:
    """Check that a message has these words, and all its parts."""
    for word in words:
        assert word in text, text
    # Each part begins a line with its name, e.g. "  in        options.json".
    for part in ("in", "expected", "do"):
        assert f"\n  {part:<9} " in text, text


# ---- Wrong options ------------------------------------------------------------------------------


# A part of the message about a misspelt key of the section train.
KEYS_OF_TRAIN = 'keys of "train" with loss "charbonnier"; the nearest is G_optimizer_lr'
# Words of the message if `task` cannot be the name of a folder.
NO_TASK = ["a folder name: at most 255 bytes"]
# A wrong option as on the command line -> words of the message.
OPTIONS: dict[str, list[str]] = {
    # Keys that do not exist.
    "train.G_optimiser_lr=1e-4": ["train.G_optimiser_lr", KEYS_OF_TRAIN],
    # Keys that other projects have. The message must name our key.
    "train.learning_rate=1e-4": ["rename it: train.G_optimizer_lr"],
    "lr=1e-4": ["rename it: train.G_optimizer_lr"],
    "train.batch_size=4": ["rename it: datasets.train.dataloader_batch_size"],
    "epochs=4": ["rename it: train.epochs"],
    "datasets.train.workers=4": ["rename it: datasets.train.dataloader_num_workers"],
    # Keys and values that former versions had.
    "train.G_lossfn_type=reblur": [
        "a registered loss: charbonnier, l1, l2",
        "file whose name is found (docs",
    ],
    "datasets.train.rate_windows=3": ["unknown option datasets.train.rate_windows"],
    "netG.flow_input=both": ["unknown option netG.flow_input"],
    # Values that a key does not take.
    "train.total_iter=many": ["train.total_iter", "int"],
    "task=..": ["task is '..'"],
    f"task={'x' * 300}": NO_TASK,
    f"task={'脉冲' * 60}": NO_TASK,  # 120 characters of 3 bytes, so 360 bytes
    "task=.preflight": NO_TASK,  # the folder of the records of data checks
    # Values that do not fit other values.
    "datasets.train.gt_size=30": ["datasets.train.gt_size is 30", "set it to 32"],
    "netG.fusion=concat": ["netG.in_chans", "5, which", "3 RGB and 2 spike channels"],
    "datasets.test.spike.representation.num_bins=3": [
        "datasets.test gives 3 spike channels, ",
        "train 2",
        "what its spike_channels returns",
    ],
    # The watchdog, with stall_s=300, would end the run before the loader could name the samples.
    "datasets.train.dataloader_timeout_s=300": [
        "dataloader_timeout_s is 300, watchdog.stall_s 300"
    ],
    "train.total_iter=null": ["total_iter and train.epochs are both null"],
    # The loss needs sharp frames, but the data have none.
    "datasets.train.dataroot_gt=null": [
        "needs sharp frames, and datasets.train.dataroot_gt is null"
    ],
    "netG.out_instants=3": ["line 1 (datasets.train.dataroot_gt_instants)"],
}


@pytest.mark.parametrize(("override", "words"), OPTIONS.items())
def test_a_wrong_option_is_refused_with_what_to_write_in_its_place(tmp_path, override, words):
    options = write_options(tmp_path)

    with pytest.raises(OptionError) as error:
        read_options(["--opt", str(options), override])

    assert_is_whole(str(error.value), words)


# The first option is refused when the options are read, and the second when the network is checked.
@pytest.mark.parametrize(
    ("override", "ranks"), [("train.total_iter=many", 2), ("netG.fusion=concat", 1)]
)
def test_a_wrong_option_ends_every_rank_with_one_message(tmp_path, override, ranks):
    options = write_options(tmp_path)

    result = train(options, override, ranks=ranks, limit_s=60)

    assert_ended_with_one_message(result, WRONG_OPTIONS, OPTIONS[override])


def assert_ended_with_one_message(result: RankResult, exit_code: int, words: list[str]) -> None:
    """Check that all ranks have ended with this code, and that one rank has said why."""
    assert set(result.exit_codes) == {exit_code}, result.text
    assert result.text.count("Error: ") == 1, result.text
    assert "Traceback" not in result.text, result.text
    _, _, message = result.text.partition("Error: ")
    assert_is_whole(message, words)


# ---- Files and data that do not fit -------------------------------------------------------------


def add_comment_in_gbk(path: Path) -> None:
    """Put a Chinese comment at the top of a file. It has the encoding GBK, so it is no UTF-8."""
    content = path.read_bytes() if path.exists() else b""
    # In an option file "//" begins a comment. In a list of clips this line is a row of four words.
    path.write_bytes("// 模糊 4 0 0\n".encode("gbk") + content)


# Each of the next functions spoils the data or the option file in the folder of `write_options`.


def spoil_nothing(folder: Path) -> None:
    """Change nothing: the option `override` of the input is wrong."""


def spoil_the_encoding(folder: Path) -> None:
    add_comment_in_gbk(folder / "options.json")


def write_a_list_in_another_encoding(folder: Path) -> None:
    add_comment_in_gbk(folder / "list.txt")


def remove_the_test_clips(folder: Path) -> None:
    shutil.rmtree(folder / "GOPRO_Large/test")


def remove_the_spikes(folder: Path) -> None:
    shutil.rmtree(folder / "GOPRO_Large_spike_seq")


def remove_a_sharp_frame(folder: Path) -> None:
    (folder / "GOPRO_Large/train/train0/sharp/000001.png").unlink()


class Input(NamedTuple):
    """Files or data that a training refuses."""

    # A function that spoils the files of `write_options` in a folder.
    spoil: Callable[[Path], None]
    # Words of the message.
    words: list[str]
    # An option as on the command line. "{}" stands for the folder of the data.
    override: str = "task=x"
    exit_code: int = WRONG_DATA


INPUTS = {
    "pretrained": Input(
        spoil_nothing, ["/nowhere.pth"], override="path.pretrained_netG=/nowhere.pth"
    ),
    # Two training clips of 4 frames have 8 samples. But 2 ranks with 9 samples each need a batch of
    # 18 samples.
    "batch": Input(
        spoil_nothing,
        ["8 training samples are fewer than one batch of 18", "2 ranks x 9"],
        override="datasets.train.dataloader_batch_size=9",
        exit_code=WRONG_OPTIONS,
    ),
    # A step of 10 samples needs more than the 8 samples of an epoch.
    "global batch": Input(
        spoil_nothing,
        ["8 training samples are fewer than one batch of 10", "lower train.global_batch_size"],
        override="train.global_batch_size=10",
        exit_code=WRONG_OPTIONS,
    ),
    "encoding": Input(
        spoil_the_encoding,
        ["options.json", "not UTF-8", "save it as"],
        exit_code=WRONG_OPTIONS,
    ),
    "encoding of a list": Input(
        write_a_list_in_another_encoding,
        ["list.txt", "not UTF-8", "save it as UTF-8"],
        override="datasets.train.meta_info_file={}/list.txt",
    ),
    "missing folder": Input(remove_the_test_clips, ["GOPRO_Large/test"]),
    "missing spikes": Input(remove_the_spikes, ["GOPRO_Large_spike_seq/train", "make the data"]),
    "unmatched frames": Input(remove_a_sharp_frame, ["train0", "000001"]),
}


# "unmatched frames" is also given to a run of one process. Such a run has no store by which ranks
# tell one another of an error, so it reports in another way.
@pytest.mark.parametrize(
    ("name", "ranks"),
    [("unmatched frames", 1), *[(name, 2) for name in INPUTS]],
)
def test_bad_input_ends_every_rank_with_one_message(tmp_path, name, ranks):
    bad = INPUTS[name]
    options = write_options(tmp_path)
    bad.spoil(tmp_path)

    override = bad.override.replace("{}", str(tmp_path))
    result = train(options, override, ranks=ranks, limit_s=60)

    assert_ended_with_one_message(result, bad.exit_code, bad.words)


# ---- Control characters -------------------------------------------------------------------------

# ESC ] 0 ; ... BEL gives a terminal another title. After the last character, U+202E, a terminal
# shows text from right to left.
CONTROL = "\x1b]0;owned\x07\u202e"


def test_control_characters_of_an_option_do_not_reach_the_terminal(tmp_path):
    result = train(write_options(tmp_path), f"train.{CONTROL}=3")

    assert result.exit_codes == [WRONG_OPTIONS]
    assert "owned" in result.text
    for character in ("\x1b", "\x07", "\u202e"):
        assert character not in result.text


def test_control_characters_of_a_log_do_not_reach_the_terminal(tmp_path):
    log = tmp_path / "run.log"
    # Many lines follow, as in the log of a long run. The doctor must be fast with such a log, too.
    log.write_text(f"DataError: {CONTROL}\n" + "\n" * 2_000_000)

    doctor = run_command([sys.executable, "scripts/doctor.py", "--log", log], limit_s=10)

    assert "owned" in doctor.text
    assert "\x1b" not in doctor.text


# ---- Secrets within values ----


def test_a_secret_within_the_value_of_an_option_is_in_no_message_and_no_file(tmp_path):
    options = write_options(tmp_path)
    weights = tmp_path / "hfToken: canary1"  # no such file

    run = train(options, f"path.pretrained_netG={weights}", "train.total_iter=0x")
    refused = train(options, f"path.pretrained_netG={weights}")

    assert_ended_with_one_message(run, WRONG_OPTIONS, ["train.total_iter is '0x'"])
    assert_ended_with_one_message(refused, WRONG_DATA, ["no such weights file", "hfToken: ***"])
    assert "canary" not in run.text
    assert "canary" not in refused.text
    assert_no_file_holds_it(tmp_path / "experiments/run")


def test_a_run_with_a_secret_in_a_path_resumes_without_a_word_on_it(tmp_path):
    options = write_options(tmp_path)
    spikes = tmp_path / "GOPRO_Large_spike_seq/test"
    secret_folder = tmp_path / "api_key=canary1"
    spikes.rename(secret_folder)
    same = [f"datasets.test.dataroot_spike={secret_folder}", "datasets.test.spike.h=16"]
    same += ["datasets.test.spike.w=16", "datasets.test.spike.flip=true"]
    same += ["datasets.test.spike.center=12"]

    first = train(options, *same, "train.total_iter=1")
    again = train(options, *same, "train.total_iter=2")

    assert first.exit_codes == again.exit_codes == [0], first.text + again.text
    # Only total_iter differs between the two starts.
    assert again.text.count(" -> ") == 1
    assert "canary" not in first.text + again.text
    assert_no_file_holds_it(tmp_path / "experiments/run")
    # The options that the first start has saved can be read. The names of the files of options
    # begin with the time, so `min` finds the oldest file. The secret is not in this file, so a user
    # must give it again.
    saved = min((tmp_path / "experiments/run/options").glob("*.json"))
    opt = read_options(["--opt", str(saved)])
    assert opt.plain()["datasets"]["test"]["dataroot_spike"] == str(tmp_path / "api_key=***")
    assert read_options(["--opt", str(saved), *same]).digest() == opt.digest()


def assert_no_file_holds_it(folder: Path) -> None:
    """Check that a run has files, and that none of the files has the secret "canary"."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert b"canary" not in path.read_bytes(), path


# ---- A program that goes on ---------------------------------------------------------------------

# A program that makes twenty watchdogs and stops each. It prints which threads it saw after a stop.
STOPS_WATCHDOGS = """
import json, threading
from utils.dist.watchdog_thread import Watchdog
threads = set()
for _ in range(20):
    Watchdog().stop()
    threads |= {thread.name for thread in threading.enumerate()}
print(json.dumps({"threads": sorted(threads)}))
"""

# A program that trains, and goes on when the training has ended with an error, as a notebook does.
# It prints the exit code of the training, and which threads and child processes are left.
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
    # If the watchdog stayed, it would take the idle program for a run that hangs, and end it.
    program = tmp_path / "notebook.py"
    program.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{LIVES_ON}")
    options = write_options(tmp_path)
    remove_the_spikes(tmp_path)

    result = run_ranks(1, program, "--opt", options)

    assert result.json == {"code": WRONG_DATA, "threads": ["MainThread"], "children": 0}, (
        result.text
    )


def test_a_watchdog_that_is_stopped_leaves_no_thread(tmp_path):
    # If `stop` returned before the thread has ended, the thread would be seen only sometimes. So
    # the program stops twenty watchdogs.
    program = tmp_path / "notebook.py"
    program.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{STOPS_WATCHDOGS}")

    result = run_ranks(1, program)

    assert result.json == {"threads": ["MainThread"]}, result.text
