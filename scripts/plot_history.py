#!/usr/bin/env python3
"""Plot the curves of one or more runs into one figure (loss, PSNR, learning rate, speed), or report one as it stands.

    python scripts/plot_history.py experiments/first experiments/second --out curves.png
    python scripts/plot_history.py experiments/first experiments/second --tags val/ train/loss --out scalars.pdf
    python scripts/plot_history.py experiments/first --out report.html

A run is given by its folder, its training_history.jsonl or its training_history.json. With --tags: one panel for each
scalar whose name begins so. The suffix of --out sets the file format; .html: the report of one run, with its images,
as the run itself writes it at each validation.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.parts.exit_codes import with_exit_code
from utils.errors import DataError, OptionError
from utils.files import refuse_existing, write_whole
from utils.run.history import build_report, draw_panels, draw_scalars, encoded, read_history, run_names


@with_exit_code
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--tags", nargs="+", metavar="PREFIX", help="these scalars, one panel each")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a new file")
    args = parser.parse_args(argv)
    refuse_existing(args.out, "--out")
    names, suffix = run_names(args.runs), args.out.suffix.removeprefix(".")
    histories = dict(zip(names, map(read_history, args.runs), strict=True))
    if args.tags and suffix != "html":
        found = ", ".join(sorted({tag for history in histories.values() for tag in history}))
        histories = {
            name: {tag: entries for tag, entries in history.items() if tag.startswith(tuple(args.tags))}
            for name, history in histories.items()
        }
        if not any(histories.values()):
            what = f"no scalar begins with {' or '.join(args.tags)}"
            raise DataError(what, "--tags", found or "a history that is not empty", "choose among these")
    if suffix == "html":
        (run, *others), (history, *_) = args.runs, histories.values()
        if others or not run.is_dir():
            what = f"{', '.join(map(str, args.runs))}: not the folder of one run"
            raise DataError(what, "RUN", "the folder of one run, for .html", "correct the path")
        content = build_report(run, history, encoded(draw_panels({"": history}))).encode()
    else:
        figure = (draw_scalars if args.tags else draw_panels)(histories)
        if suffix not in (kinds := figure.canvas.get_supported_filetypes()):
            expected = f"html, {', '.join(sorted(kinds))}"
            raise OptionError(f"no image format {suffix!r}", str(args.out), expected, "use another suffix")
        content = encoded(figure, suffix)
    write_whole(args.out, content)
    print(f"{args.out}: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
