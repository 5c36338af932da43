#!/usr/bin/env python3
"""Check this host, the options, the data, the network and the ranks.

Each finding that is not ok says what to do. docs/troubleshooting.md lists the known failures. The
exit code is 0 if nothing failed, and 1 if something did. With --data, it is 3 if the data have a
problem, and 2 if only an option is wrong.

This host and its environment:
    python scripts/doctor.py
Also the data and the network, in one process:
    python scripts/doctor.py --opt FILE [section.key=value ...]
Only the data, with every clip and every problem:
    python scripts/doctor.py --opt FILE --data --decode
Also whether several ranks can work together (srun or a platform can start them, too):
    python scripts/torchrun_quiet.py --standalone --nproc_per_node=N scripts/doctor.py --opt FILE
What the failure in a log means:
    python scripts/doctor.py --log FILE
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Python finds the packages of the repository, e.g. `utils`, by this path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.parts.doctor.doctor_failures import FAIL, Finding, read_log, table
from scripts.parts.exit_codes import show_progress, with_exit_code
from utils.dist import process
from utils.errors import DataError, OptionError
from utils.options.load import load_options
from utils.secrets import without_secrets
from utils.words import counted

# scripts/parts/doctor/doctor_checks.py has the checks of host, ranks and training, and
# scripts/parts/doctor/doctor_failures.py explains logs. This file has only the command, and --data.
#
# What must stay: the exit codes. The text of --help promises the exit codes, and scripts of users
# depend on them (test_the_doctor_reads_a_log_from_the_command_line).
# Free to change: the texts, except where tests/parts/scripts/test_doctor.py and
# tests/parts/data/test_manifest.py quote them.


@with_exit_code
def main(argv: list[str]) -> int:
    """Run the checks that the options ask for. Returns the exit code, 0 if nothing failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--opt", metavar="FILE", help="option file: check its data and its network too"
    )
    parser.add_argument(
        "--data", action="store_true", help="list the clips of --opt and all problems of its data"
    )
    parser.add_argument(
        "--decode", action="store_true", help="with --data: decode every image (finds flipped bits)"
    )
    parser.add_argument("--log", metavar="FILE", help="read this log instead of checking anything")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    args = parser.parse_args(argv)
    if args.decode and not args.data:
        parser.error("--decode needs --data")
    if args.data:
        if not args.opt:
            parser.error("--data needs --opt")
        check_data(args.opt, args.overrides, args.decode)
        return 0
    if args.log:
        return explain_log(args.log)

    # Imported here, because doctor_checks.py imports torch. --help and --log do not wait for torch.
    from scripts.parts.doctor.doctor_checks import examine

    return examine(args.opt, args.overrides)


def explain_log(file: str) -> int:
    """Print what the failures in a log mean. Return 1 for a failure or an unreadable log."""
    try:
        findings = read_log(Path(file).read_text(errors="replace"))
    except OSError as e:
        what = f"cannot read {e.filename}: {e.strerror}"
        findings = [Finding(FAIL, "log", what, cure="correct --log")]
    print(table(findings))
    has_failed = any(finding.status == FAIL for finding in findings)
    return 1 if has_failed else 0


def check_data(file: str, overrides: list[str], decode: bool) -> None:
    """Print the clips of each split. Raises one DataError with all problems, if there are any.

    If the data have no problem, but datasets.train.gt_size does not fit them, raises OptionError.

    tests/parts/data/test_manifest.py calls this function for damaged data, and compares the output.

    decode: True: decode whole images, which takes long. False: read only the header and the end of
        each file.
    """
    from data.clips.manifest import raise_problems
    from data.select_dataset import refuse_wrong_purpose
    from main_train_vrt import PARTS

    problems = []  # for each report: (the checked data root, its problems)
    unreadable = []  # errors of a whole split, e.g. a missing folder
    wrong_option: OptionError | None = None  # kept, because it would hide the problems of the data
    warning_count = 0
    # PARTS has the networks, data sets and losses that the training program knows. So the options
    # are checked as for a training.
    opt = load_options(file, overrides, parts=PARTS)
    for split, section in opt.datasets:
        if section is None:  # the options have no such split, e.g. no "test"
            continue
        refuse_wrong_purpose(section.dataset_type, split)
        # A data set of a user's own class may have no check.
        if not hasattr(section.constructor, "check"):
            continue
        try:
            reports = section.constructor.check(
                section, split, decode=decode, show=show_progress, scale=opt.scale
            )
        except DataError as e:
            unreadable.append(e)  # go on, because the other split has problems of its own
            continue
        for report in reports:
            problems.append((report.source, report.problems))
            warning_count += len(report.warnings)
            print_report(report)
        try:
            refuse_unfit_clips(section, reports)
        except DataError as e:
            unreadable.append(e)
        except OptionError as e:
            wrong_option = e  # only datasets.train has crops, so this is the only one
    # Every problem is named: `shown` is the largest number of problems in the message.
    raise_problems(problems, shown=sys.maxsize, unreadable=unreadable)
    if wrong_option is not None:
        raise wrong_option
    print(verdict(warning_count))


def refuse_unfit_clips(section: Any, reports: Sequence[Any]) -> None:
    """Raise the error of a training whose crops do not fit its clips. Test sets have no crops.

    It is a DataError if the crops are larger than a clip, and an OptionError if the side of the
    crops is no whole number of spike pixels.

    section: the resolved options of a split. reports: the `Report` of each of its roots.
    """
    from data.clips.clip_lists import join_clips
    from data.root_spikes import is_auto

    # A user's own training set may have no crops.
    refuse_unfit = getattr(section.constructor, "refuse_unfit", None)
    # With spike.calibration "auto", only a training knows what the spike camera sees of a clip,
    # because a training fits the calibrations first.
    needs_fit = any(is_auto(report.source) for report in reports)
    if refuse_unfit is not None and reports and not needs_fit:
        refuse_unfit(join_clips([report.clips for report in reports]), section.gt_size)


def verdict(warning_count: int) -> str:
    """Return the last line of a check without errors, e.g. "no error, 2 warnings, see above".

    warning_count: number of warnings that the check has printed.
    """
    if warning_count == 0:
        return "no problem found"
    return f"no error, {counted(warning_count, 'warning')}, see above"


def print_report(report: Any) -> None:
    """Print the clips of one data root: the paths of their files, then a row for each clip.

    For example:

        train: 22 clips, 2103 frames of 720 x 1280, spike files of 56 planes
          lq     trainsets/gopro/<clip>/[blur/]<frame>.png|.jpg
          ...
        clip            frames   first     lq size     gt size  planes
        GOPR0372_07_00     100  000047  720 x 1280  720 x 1280      56
        ...
          warning: ...

    report: a `Report` of data/clips/root_check.py.
    """
    from utils.results import plain_table

    print(f"{report.name}: {report.counts()}")
    # A kind of files, e.g. "lq" (the blurry frames), and where the files of this kind are.
    for kind, (root, folder, suffixes) in report.source.kinds().items():
        path = f"{root}/<clip>/[{folder}/]<frame>{'|'.join(suffixes)}"
        print(f"  {kind:6} {without_secrets(path)}")
    rows = []
    for clip in report.clips:
        height, width = clip.size
        gt_height, gt_width = clip.gt_size
        rows.append(
            [
                clip.name,
                str(len(clip)),
                clip.stems[0],
                f"{height} x {width}",
                f"{gt_height} x {gt_width}",
                planes_in_words(clip.planes),
            ]
        )
    print(plain_table(rows, ["clip", "frames", "first", "lq size", "gt size", "planes"]))
    for warning in report.warnings:
        print(without_secrets(f"  warning: {warning}"))


def planes_in_words(planes: Sequence[int]) -> str:
    """Return the smallest and the largest number of spike planes of a frame, e.g. "56-88".

    If all frames have the same number, it is returned alone, e.g. "88".

    planes: number of planes of each frame. It is empty for a clip without spikes.
    """
    if not planes:
        return "none"
    fewest = min(planes)
    most = max(planes)
    return str(fewest) if fewest == most else f"{fewest}-{most}"


if __name__ == "__main__":
    # In place of sys.exit, because the end of Python may abort if torch still runs threads.
    process.end(main(sys.argv[1:]))
