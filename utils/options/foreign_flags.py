"""Flags of KAIR, BasicSR and S-VRT: taken if the launch says the same, else refused with ours.

docs/coming_from.md has the table. After a change here, change the table in both languages.

    flags of a launch (--dist, --launcher)   taken; refused if the launch says something else
    flags of a training (--auto_resume)      refused, with what to type here
    flags of KAIR's main_test_vrt.py         refused, with the whole command for ours

Tests: tests/stories/test_coming_from.py
"""

import argparse
import logging
import os
import shlex
from collections.abc import Mapping, Sequence

from utils.errors import OptionError

logger = logging.getLogger(__name__)

PAGE = "docs/coming_from.md"
LAUNCHERS = ("none", "pytorch", "slurm")  # values of --launcher in BasicSR
# What KAIR takes for a truth value, in small letters.
TRUTHS = {"true": True, "1": True, "false": False, "0": False}

# Flag of KAIR's main_test_vrt.py -> number of its values, and our flags for the same thing.
KAIR_TEST = {
    "--task": (1, "--weights, --output"),
    "--folder_lq": (1, "--input"),
    "--folder_gt": (1, "--gt"),
    "--tile": (3, "--tile T,P"),
    "--tile_overlap": (3, "--overlap T,P"),
    "--num_workers": (1, "none: frames are read beside the network"),
    "--save_result": (0, "--save frames"),
}
# Flags of KAIR that have the name of one of ours, but another form: KAIR's `--tile 40 128 128` is
# our `--tile 40,128`. (`--sigma` is the same in both, so it is not refused.)
OURS_TOO = ("--tile",)

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

    They have no effect here: `check_launch_flags` compares them with the variables of the launch.
    """
    add = parser.add_argument
    add(
        "--local-rank",
        "--local_rank",
        type=int,
        metavar="N",
        help="of torch.distributed.launch: LOCAL_RANK says the same",
    )
    add(
        "--launcher",
        choices=LAUNCHERS,
        help="of KAIR and BasicSR: the variables of the launch decide",
    )
    add("--dist", metavar="True|False", help="of KAIR: the variables of the launch decide")


def check_launch_flags(args: argparse.Namespace, env: Mapping[str, str] = os.environ) -> None:
    """Raise OptionError if the launch flags contradict the variables of the launch.

    env: the environment variables, such as RANK and LOCAL_RANK of torchrun, SLURM_PROCID of srun.
    """
    rank, launcher, dist = args.local_rank, args.launcher, args.dist
    # --dist must be a truth value.
    if dist is not None and dist.lower() not in TRUTHS:
        raise OptionError(
            f"--dist is {dist!r}", "the command line", "True or False", "leave it out"
        )
    # --local-rank must be LOCAL_RANK. Without LOCAL_RANK there is one process, whose number is 0.
    if rank is not None and str(rank) != env.get("LOCAL_RANK", "0"):
        raise OptionError(
            what=f"--local-rank is {rank}, LOCAL_RANK is {env.get('LOCAL_RANK', 'not set')}",
            where="the command line",
            expected="the same, as torch.distributed.launch and torchrun give them",
            do=f"start with torchrun, or set the variables of the launch ({PAGE}, docs/ddp.md)",
        )
    # --launcher slurm needs srun, or another launcher that srun has started.
    if launcher == "slurm" and "SLURM_PROCID" not in env and "RANK" not in env:
        raise OptionError(
            what="--launcher slurm, but SLURM has not started this process",
            where="the command line",
            expected="a task of srun, which has SLURM_PROCID",
            do="start it with srun, or with ./submit_job.sh (docs/ddp.md)",
        )
    # A request for several processes, without a launcher, is no error: one process can train, too.
    is_launched = "RANK" in env or "SLURM_PROCID" in env
    asks_for_many = launcher == "pytorch" or (dist is not None and TRUTHS[dist.lower()])
    if asks_for_many and not is_launched:
        logger.warning(
            "--dist True and --launcher pytorch start no processes, and no launcher has started "
            "this one: it runs alone. ./launch_train.sh N FILE starts N"
        )


def refuse_train_flags(argv: Sequence[str]) -> None:
    """Raise OptionError if the command line `argv` has flags of other training programs."""
    given = [flag for flag in TRAIN_FLAGS if flag in _flags(argv)]
    if given:
        raise OptionError(
            what=f"{', '.join(given)} of another program",
            where="the command line",
            expected=f"the flags in --help; those of other programs are in {PAGE}",
            do="; ".join(f"in place of {flag}: {TRAIN_FLAGS[flag]}" for flag in given),
        )


def refuse_kair_test_flags(argv: Sequence[str]) -> None:
    """Raise OptionError with our command if `argv` has flags of KAIR's main_test_vrt.py.

    A flag with fewer values than in KAIR is not counted: it is incomplete, or one of ours.
    """
    values = _values(argv)
    given = [flag for flag in values if len(values[flag]) >= KAIR_TEST[flag][0]]
    if not given:
        return
    ours = [f"{flag} -> {KAIR_TEST[flag][1]}" for flag in given]
    raise OptionError(
        what=f"{', '.join(given)} of KAIR's main_test_vrt.py",
        where="the command line",
        expected=f"{'; '.join(ours)} ({PAGE})",
        do=f"python main_test_vrt.py {shlex.join(_our_arguments(values, argv))}",
    )


def _our_arguments(values: Mapping[str, Sequence[str]], argv: Sequence[str]) -> list[str]:
    """Return the arguments of our main_test_vrt.py that do what KAIR's flags did there.

    E.g. --task 001_VRT_videosr_bi_REDS_6frames --folder_lq CLIPS
    -> --weights vrt/001 --input CLIPS --output results/001_VRT_videosr_bi_REDS_6frames.

    values: KAIR's flags with their values, see `_values`. argv: the whole command line.
    """
    # The first three digits of a task are the number of its weights. 006 deblurs.
    task = values.get("--task", ["006"])[0]
    ours = ["--weights", f"vrt/{task[:3]}"]  # models/released.py fetches it, as KAIR does
    ours += ["--input", values.get("--folder_lq", ["FOLDER"])[0]]
    ours += ["--output", f"results/{task}"]
    if "--folder_gt" in values:
        ours += ["--gt", *values["--folder_gt"]]
    for flag, name in (("--tile", "--tile"), ("--tile_overlap", "--overlap")):
        if flag in values:
            frames, height, _ = values[flag]  # our tiles are square
            ours += [name, f"{frames},{height}"]
    if "--sigma" in argv[:-1]:
        ours += ["--sigma", argv[argv.index("--sigma") + 1]]
    if "--save_result" in values:
        ours += ["--save", "frames"]
    return ours


def _values(argv: Sequence[str]) -> dict[str, list[str]]:
    """Return each flag of KAIR_TEST in `argv`, with its values.

    E.g. ["--tile", "40", "128", "128", "--task=001"] -> {"--tile": ["40", "128", "128"],
    "--task": ["001"]}. A flag whose name is ours, too, counts only with KAIR's number of values.
    """
    found: dict[str, list[str]] = {}
    for place, argument in enumerate(argv):
        flag, equals, text = argument.partition("=")
        if flag not in KAIR_TEST:
            continue
        # The values: behind "=", and then the following arguments up to the next flag.
        following = [text] if equals else []
        for value in argv[place + 1 :]:
            if value.startswith("--") or len(following) == KAIR_TEST[flag][0]:
                break
            following.append(value)
        if flag not in OURS_TOO or len(following) == KAIR_TEST[flag][0]:
            found[flag] = following
    return found


def _flags(argv: Sequence[str]) -> set[str]:
    """Return the names of the flags in a command line, e.g. "--debug=1" -> "--debug"."""
    return {argument.partition("=")[0] for argument in argv if argument.startswith("--")}
