"""Read the command line of a training: the option file, short flags, and section.key=value.

`parse_command_line` turns every flag into an override, e.g. `--use_amp` into
"train.amp.enable=true". So the other modules know only overrides. utils/options/override.py applies
them.

`OptionParser` raises an error where argparse would print the error and exit. In a run of several
ranks, each rank reads the command line, so argparse would print the error once for each rank.

Free to change: a new short flag for an option is a row of SHORT_FLAGS (section.py).

Tests: test_the_command_line_has_short_flags_for_the_commonest_options and the tests below it
(tests/parts/utils/test_option.py).
"""

import argparse
from collections.abc import Callable, Sequence
from typing import NoReturn

from utils import VERSION
from utils.errors import OptionError
from utils.options.foreign_flags import add_launch_flags, check_launch_flags, refuse_train_flags
from utils.options.section import SHORT_FLAGS
from utils.secrets import redact


def parse_command_line(argv: Sequence[str], usage: str | None = None) -> tuple[str, list[str]]:
    """Return the option file and the overrides of a command line.

    The form of the command line is

        --opt FILE [--resume auto|none|PATH] [short flags] [section.key=value ...]

    Raises OptionError for anything else. Flags become overrides, e.g. `--use_amp` ->
    "train.amp.enable=true".

    usage: the text that `--help` prints before the arguments
    """
    refuse_train_flags(argv)  # refuses flags of other programs, and says what to use here
    # "Intermixed": overrides may stand before, between and after the flags.
    args = _train_parser(usage).parse_intermixed_args(list(argv))
    check_launch_flags(args)
    # The flags come last, because the last override of a key counts
    # (test_the_command_line_has_short_flags_for_the_commonest_options).
    overrides = [*args.overrides, *args.flags]
    if _asks_for_epochs_only(overrides):
        # The option file may have train.total_iter. This limit could end the run before the epochs
        # of the command line. null removes the limit.
        overrides.append("train.total_iter=null")
    return args.opt, overrides


def _train_parser(usage: str | None) -> "OptionParser":
    """Return the parser of main_train_vrt.py's command line.

    usage: the text that `--help` prints before the arguments.
    """
    # `expected` and `do` are texts of the errors.
    parser = OptionParser(
        expected="--opt FILE [section.key=value ...]", do="see --help", description=usage
    )
    parser.add_argument("--version", action="version", version=f"SpikeVRT {VERSION}")
    parser.add_argument("--opt", "-opt", required=True, metavar="FILE", help="option file")
    # All flags below add an override to the same list, `flags`. argparse copies the default list
    # before it adds something.
    parser.add_argument(
        "--resume",
        dest="flags",
        action="append",
        default=[],
        type=_resume_override,
        metavar="auto|none|PATH",
        help="checkpoint to resume from (path.resume)",
    )
    parser.add_argument(
        "--use_amp",
        dest="flags",
        action="append_const",
        default=[],
        const="train.amp.enable=true",
        help="train.amp.enable=true",
    )
    # SHORT_FLAGS: flag -> key, e.g. "batch_size" -> "datasets.train.dataloader_batch_size".
    for flag, key in SHORT_FLAGS.items():
        parser.add_argument(
            f"--{flag}",
            dest="flags",
            action="append",
            default=[],
            type=_override_of_key(key),
            metavar="N",
            help=key,
        )
    add_launch_flags(parser)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="any option")
    return parser


def _override_of_key(key: str) -> Callable[[str], str]:
    """Return a function that makes an override of a value, e.g. "8" -> "train.epochs=8".

    argparse calls the function with the text after the flag.
    """

    def override(value: str) -> str:
        return f"{key}={value}"

    return override


def _asks_for_epochs_only(overrides: Sequence[str]) -> bool:
    """Return whether the overrides give `train.epochs` a number, but do not mention total_iter."""
    values = {}  # {key: value} of the overrides, as texts
    for override in overrides:
        key, _, value = override.partition("=")
        values[key] = value
    # Without an override, train.epochs counts as null.
    epochs = values.get("train.epochs", "null")
    return epochs != "null" and "train.total_iter" not in values


def _resume_override(path: str) -> str:
    """Return --resume as an override, e.g. "none" -> "path.resume=null"."""
    return f"path.resume={'null' if path == 'none' else path}"


class OptionParser(argparse.ArgumentParser):
    """A parser that raises OptionError. argparse itself would print the error and exit.

    expected: a text of the error: the form of the command line
    do: a text of the error: what the user can do
    """

    def __init__(self, expected: str, do: str, description: str | None) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, formatter_class=formatter, allow_abbrev=False)
        self.expected = expected
        self.do = do

    def error(self, message: str) -> NoReturn:
        """Raise OptionError with the message of argparse, which calls `error` for a wrong flag."""
        raise OptionError(
            what=redact(message, replacement="***"),  # the message quotes what the user typed
            where="the command line",
            expected=self.expected,
            do=self.do,
        )
