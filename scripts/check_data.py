#!/usr/bin/env python3
"""Check the data of an option file and list all problems in one table. Exit code 3 if there are any.

    python scripts/check_data.py --opt options/vrt/000_train_vrt_sample_rgbspike.json
    python scripts/check_data.py --opt FILE --decode datasets.test=null

Without --decode only the header and the end of each image are read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.preflight import Report, raise_problems
from main_train_vrt import PARTS
from scripts.parts.exit_codes import with_exit_code
from scripts.parts.shown import shown
from utils.options.load import load_options


def describe(report: Report) -> str:
    """The folders of a split and a table of its clips without problems."""
    lines = [f"{report.split}: {report.counts()}"]
    lines += [f"  {kind:6} {root}/{names}" for kind, (root, names) in report.places.items()]
    width = max([4, *(len(clip.name) for clip in report.clips)])
    lines.append(f"  {'clip':{width}}  frames  first      lq size      gt size  planes")
    for clip in report.clips:
        planes = "-".join(str(p) for p in sorted({min(clip.planes), max(clip.planes)})) if clip.planes else "none"
        lq, gt = (f"{h} x {w}" for h, w in (clip.size, clip.gt_size))
        lines.append(f"  {clip.name:{width}}  {len(clip):6}  {clip.stems[0]:>6} {lq:>12} {gt:>12}  {planes}")
    lines += [f"  warning: {warning}" for warning in report.warnings]
    return "\n".join(lines)


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opt", required=True, help="option file")
    parser.add_argument("--decode", action="store_true", help="decode every image (finds flipped bits; slow)")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    command = parser.parse_args(arguments)
    opt = load_options(command.opt, command.overrides, parts=PARTS)
    reports = []
    for split, section in opt.datasets:
        if section is not None and hasattr(section.constructor, "check"):
            report = section.constructor.check(section, split, decode=command.decode, show=shown)
            print(describe(report))
            reports.append(report)
    raise_problems(reports, shown=sys.maxsize)
    print("no problem found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
