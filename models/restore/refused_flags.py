"""Refuse command lines of main_test_vrt.py whose flags exclude each other, or are missing.

The command line has one of these forms. The docstring of main_test_vrt.py has examples:

    --opt FILE                                       a network, on the clips datasets.test
    --weights FILE --input PATH --output DIR         a network, on the user's own clips
    --method NAME --opt FILE                         a formula, on the clips datasets.test
    --method NAME --spike PATH --output DIR          a formula, on the user's own clips
    --method joint --input PATH --spike PATH --output DIR
                                                     the joint solution, on the user's own clips. It
                                                     may begin with a network: --weights FILE

request.py calls `refuse_contradictions` with the values that argparse has read. If there are
several errors, the user sees only the error that this function finds first.

What must stay: each refusal, because a flag without effect would mislead the user. Free to change:
the texts.

Tests: tests/stories/test_bad_input.py, test_reconstruct.py
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from models.restore.flags import JOINT
from utils.errors import OptionError
from utils.output_folder import refuse_overlap

# Flags of a network and its tiles, without dashes. These flags are refused with a formula
# (--method), because a formula has no network. A new flag of `_add_flags_of_tiles` (flags.py)
# belongs here, unless formulas use the flag. (Formulas use center_frame_only.) `sigma`, the noise
# level for a denoiser, is also in FLAGS_OF_CLIPS, because datasets.test has its own option `sigma`.
FLAGS_OF_NETWORK = (
    "weights",
    "sigma",
    "tile",
    "overlap",
    "batch_tiles",
    "blend",
    "flip_seq",
    "pad_seq",
    "dtype",
)
# Flags of a user's own clips, i.e. of --input. Such flags have no effect on datasets.test, so they
# are refused without --input.
FLAGS_OF_CLIPS = ("spike", "gt", "sigma", "spike_size")


def refuse_contradictions(args: Namespace, given_keys: set[str], is_of_own_clips: bool) -> None:
    """Raise OptionError if flags exclude each other, or if flags are missing.

    args: the values of all flags.
    given_keys: the keys of the flags that differ from their defaults, e.g. {"spike_size"}.
    is_of_own_clips: True if the user's own clips are restored. False if the clips of datasets.test
        are restored.
    """
    if args.method:
        _refuse_unused_flags_of_a_network(args, given_keys)
    if is_of_own_clips:
        _refuse_missing_flags(args)
    else:
        _refuse_flags_without_clips(args, given_keys)
    if args.spike_size and not args.spike:
        raise OptionError(
            what="the command line has --spike-size without --spike",
            where="the command line",
            expected="both flags",
            do="add --spike, or drop --spike-size",
        )
    # The results must not lie in a folder of the user's files.
    if is_of_own_clips:
        inputs = {f"--{key}": getattr(args, key) for key in ("input", "gt", "spike")}
        refuse_overlap(Path(args.output), inputs)


def _refuse_unused_flags_of_a_network(args: Namespace, given_keys: set[str]) -> None:
    """Raise OptionError if --method does not use a given flag of a network, or --opt."""
    wrong = []
    # If the joint solution begins with a network (--weights), it uses all flags of a network.
    begins_with_network = args.method == JOINT and args.weights is not None
    if not begins_with_network:
        wrong = [key for key in FLAGS_OF_NETWORK if key in given_keys]
    # With the user's own clips, --opt only describes a network. A formula has no network, and the
    # joint solution takes the network that the file of --weights describes.
    is_opt_unused = args.input and "opt" in given_keys
    if is_opt_unused:
        wrong.append("opt")
    if wrong:
        and_input = " --input" if is_opt_unused else ""
        raise OptionError(
            what=f"the command line has {_as_flags(wrong)} with --method {args.method}{and_input}",
            where="the command line",
            expected="--method NAME with --opt FILE, or with --spike PATH [--input PATH] "
            "--output DIR",
            do="drop these flags",
        )


def _refuse_flags_without_clips(args: Namespace, given_keys: set[str]) -> None:
    """Raise OptionError if --opt is missing, or a flag is given that only --input uses."""
    if args.opt is None:
        raise OptionError(
            what="there is nothing to restore",
            where="the command line",
            expected="--opt FILE, or --weights FILE --input PATH --output DIR",
            do="see --help",
        )
    flags_of_clips = [key for key in FLAGS_OF_CLIPS if key in given_keys]
    if flags_of_clips:
        raise OptionError(
            what=f"the command line has {_as_flags(flags_of_clips)} without --input",
            where="the command line",
            expected="datasets.test of the option file",
            do="set these paths in datasets.test, or use the form with --input",
        )


def _refuse_missing_flags(args: Namespace) -> None:
    """Raise OptionError if the form with the user's clips lacks one of its flags."""
    if args.method == JOINT:  # it needs frames and spikes
        needed = ("input", "spike", "output")
    elif args.method:  # a formula, which needs only spikes
        needed = ("spike", "output")
    else:  # a network
        needed = ("weights", "input", "output")
    missing = [key for key in needed if getattr(args, key) is None]
    if missing:
        missing_flags = _as_flags(missing, between=" and ")
        verb = "is" if len(missing) == 1 else "are"
        raise OptionError(
            what=f"{missing_flags} {verb} missing",
            where="the command line",
            expected=f"{_as_flags(needed)} together",
            do=f"add {missing_flags}",
        )


def _as_flags(keys: Sequence[str], between: str = ", ") -> str:
    """Return keys as flags, with `between` between them.

    E.g. ["spike_size", "gt"] -> "--spike-size, --gt".
    """
    return between.join(f"--{key.replace('_', '-')}" for key in keys)
