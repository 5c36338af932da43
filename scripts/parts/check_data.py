"""doctor.py --data: the clips of each split of an option file, and all problems of its data in one table."""

from __future__ import annotations

import sys

from data.preflight import Report, raise_problems
from main_train_vrt import PARTS
from scripts.parts.shown import shown
from utils.options.load import load_options


def check_data(file: str, overrides: list[str], decode: bool) -> None:
    """Print the clips of an option file. decode: every image, else its header and end are read.

    Raises DataError with all problems.
    """
    opt = load_options(file, overrides, parts=PARTS)
    reports = []
    for split, section in opt.datasets:
        if section is not None and hasattr(section.constructor, "check"):
            report = section.constructor.check(section, split, decode=decode, show=shown)
            print(describe(report))
            reports.append(report)
    raise_problems(reports, shown=sys.maxsize)
    print("no problem found")


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
