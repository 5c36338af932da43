#!/usr/bin/env python3
"""Compare training runs, or the scores of tests, in a table or a figure; or report one run, or
check its gain.

    python scripts/compare_runs.py experiments/a experiments/b python scripts/compare_runs.py
    experiments/a/test experiments/a/test_tfp experiments/a/test_exposure --md python
    scripts/compare_runs.py experiments/a experiments/b --out curves.png python
    scripts/compare_runs.py experiments/a experiments/b --out scalars.pdf --tags val/ train/loss
    python scripts/compare_runs.py experiments/a --out report.html python scripts/compare_runs.py
    experiments/000_train_vrt_sample_rgbspike --at-least 3

Runs of main_train_vrt.py, by their folder, training_history.jsonl or training_history.json: a row
for each, and the options that differ. Folders of tests (main_test_vrt.py): a row for each; they
must have scored the same frames. With --out: curves of loss, PSNR, learning rate and speed, or with
--tags a panel for each scalar whose name begins so; .html: the report of one run, with its images,
as the run itself writes it at each validation. With --at-least: exit code 1 where the last
validation of a run gains fewer dB over its input.
"""

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models.metrics import COLUMNS, OF_TESTS, format_score
from scripts.parts.exit_codes import with_exit_code
from utils.errors import DataError, OptionError
from utils.files import refuse_existing, write_whole
from utils.options.section import flat
from utils.results import markdown_table, plain_table, read_json
from utils.run import history

METRICS, VALIDATED = "metrics.json", ("val/psnr", "val/psnr_input")
WIDTH = 100  # characters in a line of a table
OF_ONE_RUN = (".task", ".path.root")  # options that differ in any case
Table = tuple[list[list[str]], list[str]]  # rows and header
InputOfClip = tuple[list[str], dict[str, float]]  # names of the frames, metric -> score


@with_exit_code
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument(
        "--at-least", type=float, metavar="DB", help="the least gain of the last validation"
    )
    parser.add_argument(
        "--md", action="store_true", help=f"Markdown, uncut; else at most {WIDTH} columns"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="a new file; its suffix sets the format"
    )
    parser.add_argument(
        "--tags", nargs="+", default=[], metavar="PREFIX", help="with --out: these, one panel each"
    )
    args = parser.parse_args(argv)
    if args.at_least is not None:
        return max(check_gain(run, args.at_least) for run in args.runs)
    runs = dict(zip(history.run_names(args.runs), args.runs, strict=True))
    if args.out:
        draw(runs, args.tags, args.out)
        print(f"{args.out}: {', '.join(runs)}")
        return 0
    without = [str(folder) for folder in args.runs if not (folder / METRICS).is_file()]
    if without and len(without) < len(args.runs):
        raise DataError(
            f"no {METRICS}", ", ".join(without), "folders of tests, as the others", "leave it out"
        )
    tables = runs_tables(runs) if without else [tests_table(runs)]
    print(
        "\n\n".join(
            markdown_table(*table) if args.md else plain_table(*table, most=WIDTH)
            for table in tables
        )
    )
    return 0


def draw(runs: Mapping[str, Path], tags: list[str], out: Path) -> None:
    """Write the figure of the runs, or the report of the only run, to the new file `out`."""
    refuse_existing(out, "--out")
    curves, suffix = (
        {name: history.read_history(run) for name, run in runs.items()},
        out.suffix.removeprefix("."),
    )
    if suffix == "html":
        (run, *others), (scalars, *_) = runs.values(), curves.values()
        if others or not run.is_dir():
            what = f"{', '.join(map(str, runs.values()))}: not the folder of one run"
            raise DataError(what, "RUN", "the folder of one run, for .html", "correct the path")
        figure = history.draw_panels({"": scalars})
        write_whole(out, history.build_report(run, scalars, history.encoded(figure)).encode())
        return
    if tags:
        found = ", ".join(sorted({tag for scalars in curves.values() for tag in scalars}))
        for name, scalars in curves.items():
            curves[name] = {
                tag: entries for tag, entries in scalars.items() if tag.startswith(tuple(tags))
            }
        if not any(curves.values()):
            what = f"no scalar begins with {' or '.join(tags)}"
            raise DataError(
                what, "--tags", found or "a history that is not empty", "choose among these"
            )
    figure = (history.draw_scalars if tags else history.draw_panels)(curves)
    if suffix not in (kinds := figure.canvas.get_supported_filetypes()):
        expected = f"html, {', '.join(sorted(kinds))}"
        raise OptionError(f"no image format {suffix!r}", str(out), expected, "use another suffix")
    write_whole(out, history.encoded(figure, suffix))


def check_gain(run: Path, at_least: float) -> int:
    """Exit code 0 where the last validation of the run gains `at_least` dB over its input, 1 where
    it does not.
    """
    scalars = history.read_history(run)
    if not all(scalars.get(tag) for tag in VALIDATED):
        raise DataError(
            "the run has no validation",
            str(run),
            " and ".join(VALIDATED),
            "let it train to its end",
        )
    (step, restored), (_, blurry) = (scalars[tag][-1] for tag in VALIDATED)
    is_enough = restored - blurry >= at_least  # False also for NaN
    judged = "as expected" if is_enough else "NOT as expected"
    print(
        f"gain after {step} iterations: {restored - blurry:+.2f} dB, {judged}: at least "
        f"{at_least:g} dB"
    )
    return int(not is_enough)


def runs_tables(runs: Mapping[str, Path]) -> list[Table]:
    """Scores, speed and size of training runs by name, and the options that differ between them,
    one in a row.
    """
    rows, options = [], []
    for name, run in runs.items():
        scalars, folder = history.read_history(run), history.folder_of(run)
        psnr = [
            (value, step) for step, value in scalars.get("val/psnr", []) if math.isfinite(value)
        ]
        best, at = (f"{max(psnr)[0]:.2f}", str(max(psnr)[1])) if psnr else ("-", "-")
        last = [
            f"{scalars[tag][-1][1]:.4g}" if tag in scalars else "-"
            for tag in ("train/loss", "train/it_per_s")
        ]
        about = read_json(file) if (file := folder / history.ENVIRONMENT_NAME).is_file() else {}
        rows.append([name, best, at, *last, about.get("parameters", "-")])
        saved = history.newest_options(folder / "options")
        options.append(dict(flat(read_json(saved), "")) if saved else {})
    scores = (rows, ["run", "best PSNR dB", "at iter", "loss", "it/s", "parameters"])
    values = {
        key: [str(known.get(key, "-")) for known in options] for known in options for key in known
    }
    changed = [
        [key[1:], *found]
        for key, found in values.items()
        if len(set(found)) > 1 and key not in OF_ONE_RUN
    ]
    return [scores, (changed, ["option", *runs])] if changed else [scores]


def tests_table(folders: Mapping[str, Path]) -> Table:
    """A table of several tests on the same frames: the input, then one row for each.

    A metric that a test does not have, such as RGB PSNR of grey frames, is a dash. Raises DataError
    for tests without scores and for tests of different frames.
    """
    scores: dict[str, tuple[str, dict[str, float]]] = {}  # name -> method, averages
    for name, folder in folders.items():
        test = read_json(folder / METRICS)
        if not isinstance(test, dict) or not {"protocol", "clips", "averages"} <= test.keys():
            raise DataError(
                "no results of a test",
                str(folder / METRICS),
                "what main_test_vrt.py writes",
                "repeat it",
            )
        about, averages = test["protocol"], test["averages"]
        if not averages.get("restored"):
            raise DataError(
                "a test without scores", name, "a test with sharp frames", "leave it out"
            )
        way = about.get("metrics", "").partition("; LPIPS")[0]
        # The frames of each clip and the scores of its input tell two test sets apart.
        clips = {
            clip: (found.get("stems"), found.get("input", {}))
            for clip, found in test["clips"].items()
        }
        if not scores:
            first, first_way, first_clips = name, way, clips
            scores["input"] = ("", averages.get("input", {}))
        if way != first_way:
            what, do = (
                f"{first} and {name} were scored differently: {first_way}, {way}",
                "repeat one of the tests",
            )
            raise DataError(what, name, "the same metric.values and metric.mean", do)
        if odd := [
            clip
            for clip in {**first_clips, **clips}
            if not is_same_input(first_clips.get(clip), clips.get(clip))
        ]:
            what = (
                f"{first} and {name} were not scored on the same frames and input: "
                f"{', '.join(odd[:5])}"
            )
            raise DataError(
                what, name, "tests of the same clips, frames and input", "repeat one of the tests"
            )
        scores[name] = (
            about.get("method") or f"network, {about.get('weights', '')}",
            averages["restored"],
        )
    metrics = [m for m in COLUMNS if any(m in found for _, found in scores.values())]
    rows = [
        [name, about, *(format_score(m, found.get(m)) for m in metrics)]
        for name, (about, found) in scores.items()
    ]
    return rows, ["test", "method", *(COLUMNS[m].title for m in metrics)]


def is_same_input(one: InputOfClip | None, other: InputOfClip | None) -> bool:
    """Return whether two tests of a clip had the same frames, and the same scores of the input."""
    if one is None or other is None:
        return False
    stems, scores = one
    other_stems, other_scores = other
    return stems == other_stems and _rounded(scores) == _rounded(other_scores)


def _rounded(scores: Mapping[str, float]) -> dict[str, float]:
    # LPIPS differs a little between devices, and each test has its own metric.more.
    return {name: round(scores[name], 6) for name in OF_TESTS if name in scores}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
