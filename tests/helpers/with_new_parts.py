"""A program of tests/stories/test_extending.py: it uses new parts in every program of the project.

    with_new_parts.py FOLDER MISSPELT...

A "part" is e.g. a loss, a network or a data set that an option file names. FOLDER holds the files
of the new parts at their places, e.g. FOLDER/models/loss_power.py, and options.json, which names
the new parts. FOLDER/vrt.json holds another network, and FOLDER/tiny.json holds the option file of
docs/extending.md. A misspelt argument is an option as on the command line, e.g. "netG.widht=3".

The program writes FOLDER/report.json:

    {"refusals": {misspelt argument, or what was refused: error message},
     "exit_codes": {what was done: exit code}}

The runs are in FOLDER/experiments, one folder for each value of the option `task`.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.dist.fork_server import forget_project

# Options with secrets. Each secret begins with "canary", and the test looks for this word in files
# and messages.
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
    """Return the error message of each misspelt argument."""
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
    """Run the programs one after the other. Returns what was done -> exit code."""
    import main_train_vrt

    codes = codes_with_files(options)
    codes |= codes_without_files(folder, options)
    # The saved options hold no secret, so the token of the writer is missing in them. Therefore
    # give the writer anew, without a token.
    (saved,) = folder.glob("experiments/tiny/options/*.json")
    again = ["--opt", str(saved), 'logging.writers=["table"]']
    codes["train again"] = main_train_vrt.main(again)
    return codes | codes_of_vrt(folder, options)


def codes_with_files(options: list[str]) -> dict[str, int]:
    """Check the data set from files, and train the new network on it."""
    import main_train_vrt
    from scripts import doctor

    codes = {"check": doctor.main(["--data", *options])}
    with_secrets = [*options, *SECRETS]
    # A run records its command line, which Python keeps in sys.argv. Put the arguments of the run
    # there, so that the record would hold the secrets if nothing removed them.
    sys.argv[1:] = with_secrets
    codes["train"] = main_train_vrt.main(with_secrets)
    return codes


def codes_without_files(folder: Path, options: list[str]) -> dict[str, int]:
    """Train on data sets that have no files, test with them, and show them."""
    import main_test_vrt
    import main_train_vrt
    from scripts import doctor, show_sample

    codes = {}
    noise = [*options, f"datasets={json.dumps(NOISE)}"]
    codes["train on noise"] = main_train_vrt.main([*noise, "task=noise"])
    codes["check noise"] = doctor.main(["--data", *noise])
    squares = [*options, "task=squares", f"datasets={json.dumps(SQUARES)}"]
    codes["train with squares"] = main_train_vrt.main(squares)
    codes["test squares"] = main_test_vrt.main([*squares, "--save", "frames"])
    # The option file of the page, in a shorter training.
    page = ["--opt", str(folder / "tiny.json"), "task=page", "train.total_iter=2"]
    page += [f"path.root={folder / 'experiments'}", "logging.use_tensorboard=false"]
    codes["train as the page says"] = main_train_vrt.main(page)

    codes["examine squares"] = doctor.main(squares)
    show = ["--out", str(folder / "noise.html")]
    codes["show noise"] = show_sample.main([*noise, *show])
    for name, datasets in (("squares", SQUARES), ("channels", CHANNELS)):
        show = ["--split", "test", "--out", str(folder / f"{name}.html")]
        chosen = [*options, f"datasets={json.dumps(datasets)}"]
        codes[f"show {name}"] = show_sample.main([*chosen, *show])
    return codes


def codes_of_vrt(folder: Path, options: list[str]) -> dict[str, int]:
    """Train VRT with the new fusion operator on a cache of the data set from files.

    Then test VRT, and the new network that `codes_with_files` has trained.
    """
    import main_test_vrt
    import main_train_vrt
    from scripts import build_clip_cache

    codes = {}
    vrt = [*options, "task=vrt", f"netG={(folder / 'vrt.json').read_text()}"]
    for split in ("train", "test"):
        cache = folder / f"cache_{split}"
        command = [*options, "--split", split, "--out", str(cache)]
        codes[f"cache {split}"] = build_clip_cache.main(command)
        backend = json.dumps({"type": "cache", "path": str(cache)})
        vrt.append(f"datasets.{split}.io_backend={backend}")
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

    def with_data(datasets: dict[str, Any]) -> list[str]:
        return [*options, f"datasets={json.dumps(datasets)}", "task=refused"]

    first_frame_only = 'netG={"net_type":"first"}'
    show_motion = ["--split", "test", "--motion", "--out", "no.html"]
    return {
        "a formula on channels": RefusedCall(
            main_test_vrt.main, [*with_data(CHANNELS), "--method", "exposure"]
        ),
        "a reader of another class": RefusedCall(main_train_vrt.main, with_data(FOREIGN)),
        "a loss without its tensor": RefusedCall(
            main_train_vrt.main, [*with_data(NOISE), "train.G_lossfn_type=depth"]
        ),
        "a network that returns too few frames": RefusedCall(
            main_train_vrt.main,
            [*with_data(NOISE), first_frame_only, "train.G_lossfn_type=l1"],
        ),
        "motion of channels": RefusedCall(show_sample.main, [*with_data(CHANNELS), *show_motion]),
    }


def refused_parts(folder: Path, options: list[str]) -> dict[str, str]:
    """Use parts that do not fit. Returns what was refused -> error message."""
    output = folder / "refused.txt"
    messages = {}
    for name, call in refused_calls(options).items():
        code = run_in_child(call, output)
        # Exit code 2 means that the user must change an option. Any other code is a fault.
        text = output.read_text()
        messages[name] = text if code == 2 else f"exit code {code}: {text}"
    return messages


def run_in_child(call: RefusedCall, output: Path) -> int:
    """Run a program in a fork of this process, because it ends its process after an error.

    What the program prints replaces the content of the file `output`. Returns the exit code.
    """
    child = os.fork()
    if child == 0:
        file = os.open(output, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
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
