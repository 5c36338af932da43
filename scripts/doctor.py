#!/usr/bin/env python3
"""Check this host, the options, the data, the network and the ranks.

Exit code 0: nothing failed, 1: something did.

    python scripts/doctor.py                                     this host and its environment
    python scripts/doctor.py --opt FILE [section.key=value ...]  also the data, the network, one
    process python scripts/doctor.py --opt FILE --data --decode          only the data: every clip,
    every problem; exit code 3 torchrun --nproc_per_node=N scripts/doctor.py --opt FILE     also the
    ranks together (or srun, or a platform launch) python scripts/doctor.py --log FILE
    what the failure in a log means

Each finding that is not ok says what to do. docs/troubleshooting.md lists the known failures.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.parts.doctor_failures import FAIL, Finding, read_log, table
from scripts.parts.exit_codes import shown, with_exit_code
from utils.dist import process
from utils.errors import DataError
from utils.options.load import load_options


@with_exit_code
def main(argv: list[str]) -> int:
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
    if args.data:
        if not args.opt:
            parser.error("--data needs --opt")
        check_data(args.opt, args.overrides, args.decode)
        return 0
    if args.log:
        try:
            findings = read_log(Path(args.log).read_text(errors="replace"))
        except OSError as e:
            findings = [
                Finding(FAIL, "log", f"cannot read {e.filename}: {e.strerror}", "", "correct --log")
            ]
        print(table(findings))
        return int(any(f.status == FAIL for f in findings))

    from scripts.parts.doctor_checks import examine  # not before --help and --log: it brings torch

    return examine(args.opt, args.overrides)


def check_data(file: str, overrides: list[str], decode: bool) -> None:
    """Print the clips of each split; DataError with all problems. decode: whole images, not header
    and end alone.
    """
    from data.clips.manifest import raise_problems
    from main_train_vrt import PARTS
    from utils.results import plain_table

    found, unreadable = [], []
    opt = load_options(file, overrides, parts=PARTS)
    for split, section in opt.datasets:
        if section is None or not hasattr(section.constructor, "check"):
            continue
        try:
            how = {"decode": decode, "show": shown, "scale": opt.scale}
            reports = section.constructor.check(section, split, **how)
        except DataError as e:  # a whole root is missing; the other split has problems of its own
            unreadable.append(e)
            continue
        for report in reports:
            found.append((report.source, report.problems))
            print(f"{report.name}: {report.counts()}")
            for kind, (root, folder, exts) in report.source.kinds().items():
                print(f"  {kind:6} {root}/<clip>/[{folder}/]<frame>{'|'.join(exts)}")
            rows = []
            for clip in report.clips:
                planes = sorted({min(clip.planes), max(clip.planes)}) if clip.planes else ["none"]
                sizes = (f"{h} x {w}" for h, w in (clip.size, clip.gt_size))
                rows.append(
                    [clip.name, str(len(clip)), clip.stems[0], *sizes, "-".join(map(str, planes))]
                )
            print(plain_table(rows, ["clip", "frames", "first", "lq size", "gt size", "planes"]))
            for warning in report.warnings:
                print(f"  warning: {warning}")
    raise_problems(found, shown=sys.maxsize, unreadable=unreadable)
    print("no problem found")


if __name__ == "__main__":
    process.end(main(sys.argv[1:]))
