"""Handle command-line flags of three other programs: KAIR, BasicSR and S-VRT.

A user who comes from one of these programs types its flags out of habit. There are three kinds:

    flags of a launch (--dist, --launcher)   accepted, and without effect. They are refused if they
                                             contradict the environment variables of the launcher.
    flags of a training (--auto_resume)      refused. The error says what to type here.
    flags of KAIR's main_test_vrt.py         refused. The error has the whole command for our
                                             main_test_vrt.py.

docs/coming_from.md has the table. utils/options/command_line.py and models/restore/request.py call
this module.

What must stay: no flag of this project is refused. So the tables below contain only flags that this
project does not have. The exception is SHARED_NAMES, the flags that this project has, too
(test_a_tile_in_our_form_is_no_flag_of_kairs). Our main_test_vrt.py must accept the command in the
advice (test_the_command_that_answers_kairs_is_one_that_this_program_takes).
Free to change: a flag may be added to a table. After this change, change the table of
docs/coming_from.md, too, in both languages.

Tests: tests/stories/test_coming_from.py
"""

import argparse
import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from utils.errors import OptionError

logger = logging.getLogger(__name__)

PAGE = "docs/coming_from.md"  # named in errors, so that the user can read the whole table
LAUNCHERS = ("none", "pytorch", "slurm")  # values of --launcher in BasicSR
# Text of a truth value in KAIR, in small letters -> the truth value.
TRUTHS = {"true": True, "1": True, "false": False, "0": False}


class KairFlag(NamedTuple):
    """One flag of KAIR's main_test_vrt.py."""

    value_count: int  # number of values after the flag, e.g. 3 in `--tile 40 128 128`
    ours: str  # our flags for the same purpose, as the error shows them


KAIR_TEST = {
    "--task": KairFlag(value_count=1, ours="--weights, --output"),
    "--folder_lq": KairFlag(value_count=1, ours="--input"),
    "--folder_gt": KairFlag(value_count=1, ours="--gt"),
    "--tile": KairFlag(value_count=3, ours="--tile T,P"),
    "--tile_overlap": KairFlag(value_count=3, ours="--overlap T,P"),
    "--num_workers": KairFlag(value_count=1, ours="none: frames are read beside the network"),
    "--save_result": KairFlag(value_count=0, ours="--save frames"),
}
# Flags of KAIR_TEST that our main_test_vrt.py has, too, with another form of the values: KAIR's
# `--tile 40 128 128` is our `--tile 40,128`. The number of values tells which program is meant.
# `--sigma` has the same form in both programs, so it is not a flag of KAIR_TEST.
SHARED_NAMES = ("--tile",)

# Flag of a training program (S-VRT, BasicSR) -> what a user types here instead.
TRAIN_FLAGS = {
    "--prepare-data": "python scripts/prepare_gopro_spike.py --source GOPRO_Large_all "
    "--out trainsets, then the training without this flag",
    "--auto_resume": "the same command without it: a repeated command resumes the run",
    "--force_yml": "section.key=value, without a flag",
    "--debug": "train.total_iter=10 train.checkpoint_print=1",
}


def add_launch_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags with which KAIR and BasicSR are launched.

    The flags set nothing. `check_launch_flags` compares their values with the environment variables
    of the launch, such as LOCAL_RANK, and refuses values that contradict these variables.
    """
    add = parser.add_argument
    add(
        "--local-rank",
        "--local_rank",
        type=int,
        metavar="N",
        help="ignored, for torch.distributed.launch. An error if it contradicts LOCAL_RANK",
    )
    add(
        "--launcher",
        choices=LAUNCHERS,
        help="ignored, for KAIR and BasicSR. An error if it contradicts the way of the launch",
    )
    add(
        "--dist",
        metavar="True|False",
        help="ignored, for KAIR. The launcher says how many processes there are",
    )


def check_launch_flags(args: argparse.Namespace, env: Mapping[str, str] = os.environ) -> None:
    """Raise OptionError if the launch flags contradict the variables of the launch.

    args: has the flags of `add_launch_flags`. A flag that was not given is None.
    env: the environment variables, such as RANK and LOCAL_RANK of torchrun, SLURM_PROCID of srun.
    """
    local_rank = args.local_rank
    launcher = args.launcher
    dist = args.dist
    # torchrun sets RANK, and srun sets SLURM_PROCID.
    is_launched = "RANK" in env or "SLURM_PROCID" in env
    # --dist must be a truth value.
    if dist is not None and dist.lower() not in TRUTHS:
        raise OptionError(
            what=f"--dist is {dist!r}",
            where="the command line",
            expected="True or False",
            do="leave it out",
        )
    # --local-rank must equal LOCAL_RANK. If LOCAL_RANK is not set, there is a single process, and
    # its number is 0.
    if local_rank is not None and str(local_rank) != env.get("LOCAL_RANK", "0"):
        raise OptionError(
            what=f"--local-rank is {local_rank}, LOCAL_RANK is {env.get('LOCAL_RANK', 'not set')}",
            where="the command line",
            expected="the same, as torch.distributed.launch and torchrun give them",
            do="start with torchrun, or set the variables of the launch (docs/ddp_reference.md)",
        )
    # --launcher slurm needs srun. torchrun is accepted, too, because it may run within srun.
    if launcher == "slurm" and not is_launched:
        raise OptionError(
            what="--launcher slurm, but SLURM has not started this process",
            where="the command line",
            expected="a task of srun, which has SLURM_PROCID",
            do="start it with srun, or with ./submit_job.sh (docs/ddp.md)",
        )
    # --launcher pytorch and --dist True ask for several processes, but only a launcher can start
    # them. Without a launcher there is only a warning, because one process can train, too. TRUTHS
    # gives the value of --dist: "true" and "1" -> True, "false" and "0" -> False.
    asks_for_several = launcher == "pytorch" or (dist is not None and TRUTHS[dist.lower()])
    if asks_for_several and not is_launched:
        logger.warning(
            "--dist True and --launcher pytorch start no processes, and no launcher has started "
            "this one: it runs alone. ./launch_train.sh N FILE starts N"
        )


def refuse_train_flags(argv: Sequence[str]) -> None:
    """Raise OptionError if the command line `argv` has flags of other training programs."""
    given_flags = _flags(argv)
    train_flags = [flag for flag in TRAIN_FLAGS if flag in given_flags]
    if train_flags:
        advice = [f"in place of {flag}: {TRAIN_FLAGS[flag]}" for flag in train_flags]
        raise OptionError(
            what=f"the command line has flags of another program: {', '.join(train_flags)}",
            where="the command line",
            expected=f"the flags in --help; the flags of other programs are in {PAGE}",
            do="; ".join(advice),
        )


def refuse_kair_test_flags(argv: Sequence[str]) -> None:
    """Raise OptionError with our command if `argv` has flags of KAIR's main_test_vrt.py.

    A flag of KAIR counts only if it has all its values. E.g.

        --tile_overlap 2 20 20      counts: 3 values, as in KAIR
        --tile_overlap 2            does not count; argparse then refuses the unknown flag
        --tile 40,128               does not count: it is our flag --tile, with one value
        --save_result=yes           counts, although KAIR's flag has no value
    """
    kair_flags = {}  # the flags that count, with their values
    for flag, values in _values_of_flags(argv).items():
        # E.g. "--save_result=yes" has 1 value, and KAIR's flag has 0.
        if len(values) >= KAIR_TEST[flag].value_count:
            kair_flags[flag] = values
    if not kair_flags:
        return
    translations = [f"{flag} -> {KAIR_TEST[flag].ours}" for flag in kair_flags]
    raise OptionError(
        what=f"the command line has flags of KAIR's main_test_vrt.py: {', '.join(kair_flags)}",
        where="the command line",
        expected=f"{'; '.join(translations)} ({PAGE})",
        do=f"python main_test_vrt.py {shlex.join(_our_arguments(kair_flags, argv))}",
    )


def _our_arguments(values: Mapping[str, Sequence[str]], argv: Sequence[str]) -> list[str]:
    """Return the arguments of our main_test_vrt.py that do the same as KAIR's flags.

    `refuse_kair_test_flags` shows them to the user. E.g.

        KAIR    --task 001_VRT_videosr_bi_REDS_6frames --folder_lq CLIPS
        ours    --weights vrt/001 --input CLIPS --output results/001_VRT_videosr_bi_REDS_6frames

    values: KAIR's flags, each with all its values, e.g. {"--task": ["006_..."]}.
    argv: the whole command line. Only --sigma is read from it. Both programs have this flag in the
        same form, so it is not in KAIR_TEST, and not in `values`.
    """
    # A command without --task gets task 006, because its network deblurs, as this project does.
    task = "006"
    if "--task" in values:
        task = values["--task"][0]
    folder = "FOLDER"  # the user fills it in
    if "--folder_lq" in values:
        folder = values["--folder_lq"][0]
    # The first three digits of a task are the number of its weights. models/released.py downloads
    # these weights, as KAIR does.
    weights_number = task[:3]
    ours = ["--weights", f"vrt/{weights_number}", "--input", folder, "--output", f"results/{task}"]
    if "--folder_gt" in values:
        ours += ["--gt", *values["--folder_gt"]]
    for kair_flag, our_flag in (("--tile", "--tile"), ("--tile_overlap", "--overlap")):
        if kair_flag in values:
            # The three values are frames, height and width of a tile. `_values_of_flags` stops at
            # value_count = 3, so there are never more. Our tiles are square: the width is dropped.
            frames, height, _ = values[kair_flag]
            ours += [our_flag, f"{frames},{height}"]
    sigma = _last_value(argv, "--sigma")
    if sigma is not None:
        ours += ["--sigma", sigma]
    if "--save_result" in values:
        ours += ["--save", "frames"]
    return ours


def _last_value(argv: Sequence[str], name: str) -> str | None:
    """Return the value of a flag in `argv`, e.g. "20" of "--sigma 20" or "--sigma=20".

    If the flag is given twice, the last value counts, as for argparse. None if there is no value.

    name: the flag, e.g. "--sigma".
    """
    last_value = None
    for position, argument in enumerate(argv):
        flag, equals, text = argument.partition("=")
        if flag != name:
            continue
        if equals:
            last_value = text
        elif position + 1 < len(argv):
            last_value = argv[position + 1]
    return last_value


def _values_of_flags(argv: Sequence[str]) -> dict[str, list[str]]:
    """Return each flag of KAIR_TEST in `argv`, with its values.

    E.g. ["--tile", "40", "128", "128", "--task=001"] -> {"--tile": ["40", "128", "128"],
    "--task": ["001"]}. A flag of SHARED_NAMES counts only with KAIR's number of values.
    """
    values_of_flags: dict[str, list[str]] = {}
    for position, argument in enumerate(argv):
        flag, equals, text = argument.partition("=")
        if flag not in KAIR_TEST:
            continue
        # The values: the text after "=", and then the following arguments up to the next flag.
        value_count = KAIR_TEST[flag].value_count
        values = [text] if equals else []  # `equals` is "=", or "" if the argument has none
        for value in argv[position + 1 :]:
            if value.startswith("--") or len(values) == value_count:
                break
            values.append(value)
        if flag not in SHARED_NAMES or len(values) == value_count:
            values_of_flags[flag] = values
    return values_of_flags


def _flags(argv: Sequence[str]) -> set[str]:
    """Return the names of the flags in a command line, e.g. "--debug=1" -> "--debug"."""
    flags = set()
    for argument in argv:
        if argument.startswith("--"):
            flag, _, _ = argument.partition("=")
            flags.add(flag)
    return flags
