"""A program of tests/stories/test_extending.py: it uses new parts in every program of the project.

    with_new_parts.py FOLDER MISSPELT...

A "part" is e.g. a loss, a network or a data set that an option file names. The test writes these
files before it starts this program:

    FOLDER/models/..., data/..., utils/...   the new parts, e.g. FOLDER/models/loss_power.py
    FOLDER/options.json                      an option file that names the new parts
    FOLDER/vrt.json                          a section `netG`: VRT with the new fusion operator
    FOLDER/tiny.json                         the option file of docs/extending.md

A misspelt argument is an option as on the command line, e.g. "netG.widht=3".

The program writes FOLDER/report.json, which the test reads:

    {"refusals": {misspelt argument, or name of a refused call: error message},
     "exit_codes": {what was done: exit code}}

The runs are in FOLDER/experiments, one folder for each value of the option `task`.

What must stay: the names in the report, because test_extending.py has the same names.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.dist.fork_server import forget_project

# Options with secrets. Each secret begins with "canary". The test fails if it finds this word in a
# file or in a message.
SECRETS = (
    'logging={"use_tensorboard":false,"wandb_api_key":"canary-1"}',
    'logging.writers=[{"type":"table","separator":" ","token":"canary-2"}]',
)
# Sections `datasets`, for data sets without files. All four train on the data set Noise. Their test
# sets differ:
#
#     NOISE       none
#     CHANNELS    frames with spike channels, but without spike files
#     FOREIGN     clips of a class that lacks what a test needs, e.g. fps
#     SQUARES     two clips, as docs/extending.md makes them
#
# Noise and Squares are in docs/extending.md, the other two are in tests/stories/test_extending.py.
NOISE: dict[str, Any] = {
    "train": {"dataset_type": "Noise", "samples": 4, "dataloader_num_workers": 1}
}
CHANNELS: dict[str, Any] = NOISE | {"test": {"dataset_type": "Channels"}}
FOREIGN: dict[str, Any] = NOISE | {"test": {"dataset_type": "Foreign"}}
SQUARES: dict[str, Any] = NOISE | {"test": {"dataset_type": "Squares", "clips": 2}}


def add_folder(folder: Path) -> None:
    """Let Python find the files of `folder` as if a user had put them into the project."""
    # The project looks for new files while it is imported. This process is a fork of a process that
    # has imported the project, so the project must be imported anew. For the same reason, the
    # functions below import the programs themselves. An import at the top of this file would come
    # before Python can find the new files.
    forget_project()
    for name in ("data", "data.spike", "models", "models.fusion", "utils"):
        package = importlib.import_module(name)
        package.__path__.append(str(folder / name.replace(".", "/")))


def refusals(options: list[str], misspelt: list[str]) -> dict[str, str]:
    """Return the error message of each misspelt argument: argument -> message.

    An argument that the program accepts is missing in the result.

    options: the command line of a training, to which each misspelt argument is added.
    """
    import main_train_vrt
    from utils.errors import OptionError

    messages = {}
    for argument in misspelt:
        try:
            main_train_vrt.read_options([*options, argument])
        except OptionError as error:
            messages[argument] = str(error)
            # The test also looks for secrets in the output of this program, so print the message.
            print(error, flush=True)
    return messages


def exit_codes(folder: Path, options: list[str]) -> dict[str, int]:
    """Run the programs one after the other. Returns what was done -> exit code.

    The order must stay: "train again" and "test" need the run of "train".

    options: the command line of the first training: --opt FOLDER/options.json.
    """
    import main_train_vrt

    codes = codes_with_files(options)
    codes |= codes_without_files(folder, options)
    # Train again with the options that "train" has saved. Saved options have no secrets, so the
    # token of the writer is missing. Therefore give the writer anew, without a token.
    (saved_options,) = folder.glob("experiments/tiny/options/*.json")
    again = ["--opt", str(saved_options), 'logging.writers=["table"]']
    codes["train again"] = main_train_vrt.main(again)
    codes |= codes_of_vrt(folder, options)
    return codes


def codes_with_files(options: list[str]) -> dict[str, int]:
    """Check the data set from files, and train the new network on it. Returns exit codes.

    The training also has options with secrets (SECRETS).
    """
    import main_train_vrt
    from scripts import doctor

    codes = {"check": doctor.main(["--data", *options])}
    with_secrets = [*options, *SECRETS]
    # A run records its command line, which Python keeps in sys.argv. So put the arguments of the
    # run there. If the program did not remove the secrets, the record would hold them.
    sys.argv[1:] = with_secrets
    codes["train"] = main_train_vrt.main(with_secrets)
    return codes


def codes_without_files(folder: Path, options: list[str]) -> dict[str, int]:
    """Train on data sets that have no files, test with them, and show them."""
    import main_test_vrt
    import main_train_vrt
    from scripts import doctor, show_sample

    codes = {}
    noise = with_data(options, NOISE)
    codes["train on noise"] = main_train_vrt.main([*noise, "task=noise"])
    codes["check noise"] = doctor.main(["--data", *noise])

    squares = [*with_data(options, SQUARES), "task=squares"]
    codes["train with squares"] = main_train_vrt.main(squares)
    codes["test squares"] = main_test_vrt.main([*squares, "--save", "frames"])
    codes["examine squares"] = doctor.main(squares)

    # The option file of docs/extending.md, in a shorter training.
    page = ["--opt", str(folder / "tiny.json"), "task=page", "train.total_iter=2"]
    page += [f"path.root={folder / 'experiments'}", "logging.use_tensorboard=false"]
    codes["train as the page says"] = main_train_vrt.main(page)

    codes["show noise"] = show_sample.main([*noise, "--out", str(folder / "noise.html")])
    for name, datasets in (("squares", SQUARES), ("channels", CHANNELS)):
        show_test_split = ["--split", "test", "--out", str(folder / f"{name}.html")]
        codes[f"show {name}"] = show_sample.main([*with_data(options, datasets), *show_test_split])
    return codes


def with_data(options: list[str], datasets: dict[str, Any]) -> list[str]:
    """Return a command line with another section `datasets`."""
    return [*options, f"datasets={json.dumps(datasets)}"]


def codes_of_vrt(folder: Path, options: list[str]) -> dict[str, int]:
    """Train VRT with the new fusion operator on a cache of the data set from files.

    Then test VRT, and the new network that `codes_with_files` has trained.
    """
    import main_test_vrt
    import main_train_vrt
    from scripts import build_clip_cache

    codes = {}
    from_caches = []  # options that let both splits read their caches
    for split in ("train", "test"):
        cache = folder / f"cache_{split}"
        codes[f"cache {split}"] = build_clip_cache.main(
            [*options, "--split", split, "--out", str(cache)]
        )
        backend = json.dumps({"type": "cache", "path": str(cache)})
        from_caches.append(f"datasets.{split}.io_backend={backend}")

    section = (folder / "vrt.json").read_text()
    vrt = [*options, "task=vrt", f"netG={section}", *from_caches]
    codes["train vrt"] = main_train_vrt.main(vrt)

    codes["test"] = main_test_vrt.main([*options, "--save", "frames"])
    codes["test vrt"] = main_test_vrt.main([*vrt, "--save", "frames"])
    return codes


# ---- Parts that do not fit ----


class RefusedCall(NamedTuple):
    """A call of a program with parts that do not fit. The program must refuse them."""

    program: Callable[[list[str]], int]
    arguments: list[str]


def refused_calls(options: list[str]) -> dict[str, RefusedCall]:
    """Return the calls that must be refused: name of the case -> call.

    test_extending.py has the same names, each with the words of the expected error (REFUSED). Why
    each call cannot work:

        a formula on channels        --method exposure reads spike files, CHANNELS has none
        a reader of another class    the clips of FOREIGN lack fps and other fields
        a loss without its tensor    the loss needs the tensor "depth", NOISE gives lq and gt
        ... too few frames           the network returns only the first frame of a clip
        motion of channels           --motion needs spike files, CHANNELS has none
    """
    import main_test_vrt
    import main_train_vrt
    from scripts import show_sample

    channels = [*with_data(options, CHANNELS), "task=refused"]
    foreign = [*with_data(options, FOREIGN), "task=refused"]
    noise = [*with_data(options, NOISE), "task=refused"]
    first_frame_only = 'netG={"net_type":"first"}'
    show_motion = ["--split", "test", "--motion", "--out", "no.html"]
    return {
        "a formula on channels": RefusedCall(
            main_test_vrt.main, [*channels, "--method", "exposure"]
        ),
        "a reader of another class": RefusedCall(main_train_vrt.main, foreign),
        "a loss without its tensor": RefusedCall(
            main_train_vrt.main, [*noise, "train.G_lossfn_type=depth"]
        ),
        "a network that returns too few frames": RefusedCall(
            main_train_vrt.main, [*noise, first_frame_only, "train.G_lossfn_type=l1"]
        ),
        "motion of channels": RefusedCall(show_sample.main, [*channels, *show_motion]),
    }


def refused_parts(folder: Path, options: list[str]) -> dict[str, str]:
    """Use parts that do not fit. Returns name of the case -> error message."""
    output = folder / "refused.txt"
    messages = {}
    for name, call in refused_calls(options).items():
        code = run_in_child(call, output)
        message = output.read_text()
        # Exit code 2 means that the user must change an option. The test does not expect any other
        # code, so put such a code in front of the message.
        if code != 2:
            message = f"exit code {code}: {message}"
        messages[name] = message
    return messages


def run_in_child(call: RefusedCall, output: Path) -> int:
    """Run a program in a fork of this process, because it ends its process after an error.

    What the program prints replaces the content of the file `output`. Returns the exit code.
    """
    child = os.fork()
    if child == 0:
        file = os.open(output, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(file, 1)  # stdout now goes into the file
        os.dup2(file, 2)  # and stderr, too
        code = 1  # stays if the program raises an error
        try:
            code = call.program(call.arguments)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Use the new parts as the command line says, and write the report."""
    folder = Path(sys.argv[1])
    misspelt = sys.argv[2:]
    options = ["--opt", str(folder / "options.json")]

    add_folder(folder)
    report = {
        "refusals": refusals(options, misspelt) | refused_parts(folder, options),
        "exit_codes": exit_codes(folder, options),
    }
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
