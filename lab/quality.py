#!/usr/bin/env python3
"""Which method restores best: trains option files alike, tests them under several cameras and
compares them.

    python lab/quality.py [--suite real --videos VIDEOS --steps 500]

`real` trains on seven of eleven real videos, on photographs and made scenes under random rigs, and
reports on two other videos under the conditions of data/cameras/rig.py; two more (`--part choose`)
are for choosing. `sample` is a smoke test on made scenes. Repeat the command to go on where it
stopped: a finished run is repeated only if its options have changed, and those committed in
docs/benchmarks/quality count as finished. docs/benchmarks/quality.md has the figures.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.clips.files import read_bgr
from lab.tools import ROOT
from main_train_vrt import read_options
from models.optim import group_names
from models.select_network import define_G
from scripts.make_sample_data import RGB, SPIKES
from utils.dist.process import die_with_parent
from utils.options.load import Sources, read_with_base
from utils.results import markdown_table as table
from utils.results import read_json
from utils.run.history import read_history

COMMITTED = ROOT / "docs/benchmarks/quality"  # results that are part of the project

# ---- What is compared --------------------------------------------------------------------------
#
# VIDEOS, PHOTOS, CLIPS, SHARES and FRAMES are part of the digest of the data: another value makes
# all results of finished runs invalid, also those in COMMITTED.

# The videos, by file name without suffix, were divided before anything was trained on them.
VIDEOS = {
    "train": ("bedroom", "blocks", "cups", "juggle", "karma", "kick", "laptop"),
    "choose": ("coffee", "walker"), "report": ("camel", "park"),
}  # fmt: skip
# Python package -> its photographs in the public domain or under CC0.
PHOTOS = {
    "skimage": (
        "astronaut.png",
        "chelsea.png",
        "coffee.png",
        "hubble_deep_field.jpg",
        "retina.jpg",
        "rocket.jpg",
    ),
    "matplotlib": ("grace_hopper.jpg",),
}
# Set of clips -> number of clips of each video or photograph.
CLIPS = {"random": 6, "ideal": 3, "photos": 2, "choose": 2, "report": 3}
# Training set -> weight with which a sample is drawn from it. "made" is the set of `make sample`.
SHARES = {"made": 3, "random": 4, "photos": 2, "ideal": 3}
# The rigs of the tests, see data/cameras/rig.py.
CONDITIONS = ("ideal", "other", "rig", "dim")
FRAMES = 8  # of a clip
# Formulas that need no training: values of --method. "exposure" is the ratio formula of S-SDM, in
# linear light.
METHODS = (
    "tfp",
    "tfi",
    "exposure",
)
# MOVES: a pixel counts as moving if the blurry and the sharp frame differ by more than so many of
# 255 levels. AROUND: so many pixels on each side of a moving pixel count as well.
MOVES, AROUND = (
    12,
    7,
)
# Methods are alike if the numbers of their parameters differ by this share at most. Others are
# marked in the table, because more parameters alone may be better.
ALIKE = 0.05
# 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom; the last one serves for more,
# which is too wide.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def main(argv: list[str]) -> int:
    """Make the data, train and test what is not finished, and print the tables.

    Returns the exit code 0. An error ends the program before, with a message.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--suite", choices=("sample", "real"), default="sample", help="default %(default)s")
    add("--videos", type=Path, help="real: folder of the eleven videos")
    add(
        "--part", choices=("choose", "report"), default="report", help="real: the videos to test on"
    )
    add(
        "--conditions",
        nargs="+",
        choices=CONDITIONS,
        default=CONDITIONS,
        help="real: of the test (default: all)",
    )
    add("--opt", type=Path, nargs="+", metavar="FILE", help="default: all of options/benchmark")
    add("--only", nargs="+", metavar="NAME", help="train these only (names without .json)")
    add("--seeds", type=int, nargs="+", default=[0, 1], help="default 0 1")
    add(
        "--steps",
        type=int,
        nargs="+",
        default=[500],
        help="several: each file is trained for each (default 500)",
    )
    add("--out", type=Path, help="results folder (default experiments/quality/SUITE)")
    args = parser.parse_args(argv)
    out = (args.out or ROOT / "experiments/quality" / args.suite).resolve()
    (out / "results").mkdir(parents=True, exist_ok=True)
    data = make_real(out, args) if args.suite == "real" else make_made(out)
    files = args.opt or sorted((ROOT / "options/benchmark").glob("*.json"))
    methods = [read_method(file, data, steps) for steps in args.steps for file in files]
    # A step of each method must see as many pixels, or the comparison is not fair.
    for method in methods:
        if method.work != methods[0].work:
            sys.exit(
                f"a step of {method.name} sees {method.work} pixels, "
                f"one of {methods[0].name} {methods[0].work}"
            )
    # Seed by seed, so that after a stop all methods have the same seeds but the last.
    for seed in args.seeds:
        for method in methods:
            if args.only is None or method.file.stem in args.only:
                finished(out, data, method, seed) or run_one(out, data, method, seed)
    text = report(out, data, methods, args.seeds)
    (out / f"table_{args.part}.md").write_text(text)
    print(text)
    return 0


@dataclass(frozen=True)
class Data:
    """The sets of clips of a suite."""

    train: Mapping[Path, int]  # folder of a training set -> weight of its samples
    tests: Mapping[str, Path]  # condition -> folder of its test clips, e.g. data/report_rig
    split: str  # "train" or "test": the folder within a set that has the test clips
    # A digest of what the sets are made from. It names no folder, so that results hold on other
    # machines.
    digest: str


@dataclass(frozen=True)
class Method:
    """An option file of the benchmark, as it is trained here."""

    file: Path  # the option file
    steps: int  # optimizer steps
    overrides: tuple[str, ...]  # "section.key=value" that are the same for all methods
    parameters: int  # number of parameters that are trained
    work: int  # samples x frames x pixels of an optimizer step
    # 8 hex digits that change with the options, the number of steps and the data. They do not
    # change with the defaults of keys that the file does not give.
    digest: str

    @property
    def name(self) -> str:
        """Return the name in the tables, e.g. "exposure 500"."""
        return f"{self.file.stem} {self.steps}"

    def run_name(self, seed: int) -> str:
        """Return the name of the folder of a run, e.g. "exposure_500_seed0_1a2b3c4d"."""
        return f"{self.file.stem}_{self.steps}_seed{seed}_{self.digest}"


# ---- The data ----------------------------------------------------------------------------------


def make_made(out: Path) -> Data:
    """Make the sample set, as `make sample` does. It is for training and testing."""
    folder = out / "data/made"
    call("scripts/make_sample_data.py", out, "made", "--root", str(folder))
    return Data({folder: 1}, {"recorded": folder}, "test", "sample")


def _folder_of(package: str) -> Path:
    """Return the folder of an installed package. Ends the program if it is not installed."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        sys.exit(f"the package {package}, whose photographs are used, is not installed")
    return Path(spec.origin).parent


def make_real(out: Path, args: argparse.Namespace) -> Data:
    """Make all sets of the suite `real`. Sets that are there are kept.

    args: the command line, with the folder of the videos, the part and the conditions.
    """
    # File name without ending -> video. Each video must be there.
    videos = {path.stem: path for path in sorted(args.videos.iterdir())} if args.videos else {}
    if lacking := {name for names in VIDEOS.values() for name in names} - videos.keys():
        sys.exit(f"--videos {args.videos} has no {', '.join(sorted(lacking))}")
    # Part -> its videos. The photographs are one more part. A folder of links for each part.
    sources = {part: [videos[name] for name in names] for part, names in VIDEOS.items()}
    packages = {name: _folder_of(name) for name in PHOTOS}
    sources["photos"] = [
        next(packages[name].rglob(photo)) for name, photos in PHOTOS.items() for photo in photos
    ]
    for part, files in sources.items():
        (out / "sources" / part).mkdir(parents=True, exist_ok=True)
        for file in files:
            link = out / "sources" / part / file.name
            link.exists() or link.symlink_to(file.resolve())
    # Name of a set -> (part, rig). `random` has the training sets, `tests` those of both parts.
    random = {
        "random": ("train", "random"),
        "ideal": ("train", "ideal"),
        "photos": ("photos", "random"),
    }
    tests = {f"{part}_{each}": (part, each) for part in ("choose", "report") for each in CONDITIONS}
    # Make the clips of the training, and of the part that is tested.
    for name, (part, rig) in (random | tests).items():
        clips, source = CLIPS.get(name, CLIPS.get(part)), out / "sources" / part
        if name in random or part == args.part:
            asked = {
                "source": source,
                "rig": rig,
                "clips": clips,
                "frames": FRAMES,
                "out": out / "data" / name,
            }
            more = [word for key, value in asked.items() for word in (f"--{key}", str(value))]
            call(
                "scripts/prepare_gopro_spike.py",
                out,
                name,
                "--test-share",
                "0",
                "--workers",
                "1",
                *more,
            )
    # The made scenes are a training set as well.
    [made] = make_made(out).train
    train = {out / "data" / name: share for name, share in SHARES.items() if name != "made"} | {
        made: SHARES["made"]
    }
    digest = hashlib.sha256(
        json.dumps([VIDEOS, CLIPS, SHARES, FRAMES, PHOTOS], sort_keys=True).encode()
    ).hexdigest()[:8]
    return Data(
        train, {each: out / f"data/{args.part}_{each}" for each in args.conditions}, "train", digest
    )


def roots(folder: Path, split: str) -> dict[str, str]:
    """Return the folders of a split as keys of an option file.

    Blurry and sharp frames are in the same folder of a clip, so two keys have the same value.

    folder: of a set. split: "train" or "test".
    """
    frames = str(folder / RGB / split)
    return {
        "dataroot_lq": frames,
        "dataroot_gt": frames,
        "dataroot_spike": str(folder / SPIKES / split),
    }


# ---- Training and testing ----------------------------------------------------------------------


def read_method(file: Path, data: Data, steps: int) -> Method:
    """Return an option file as it is trained here: on these sets, for so many steps.

    What is not the method is set alike for all files: data, length, log.
    """
    raw = read_with_base(file, Sources(str(file)))
    train = raw.get("train") or {}
    # The overrides: dotted key -> value.
    places = [roots(folder, "train") for folder in data.train]
    changes = {
        **{f"datasets.train.{key}": [each[key] for each in places] for key in places[0]},
        "datasets.train.dataroot_share": list(data.train.values()),
        "datasets.train.spike.calibration": "recorded", "datasets.test": None,
        "train.total_iter": steps, "train.epochs": None, "train.G_scheduler_periods": steps,
        "train.checkpoint_print": max(1, min(10, steps // 2)), "logging.use_tensorboard": False,
        "logging.use_wandb": False,
    }  # fmt: skip
    # A file that freezes parameters for its whole run does so here, too, whatever the steps are.
    if (train.get("fix_iter") or 0) > (train.get("total_iter") or 0):
        changes["train.fix_iter"] = steps + 1
    overrides = tuple(f"{key}={json.dumps(value)}" for key, value in changes.items())
    opt = read_options(["--opt", str(file), *overrides])
    # The number of parameters that are trained, and the pixels of a step.
    clips = opt.plain()["datasets"]["train"]
    net, train = define_G(opt), opt.train
    frozen = (
        group_names(net, train.fix_iter, train.fix_keys)[1] if (train.fix_iter or 0) > steps else ()
    )
    parameters = sum(p.numel() for key, p in net.named_parameters() if key not in frozen)
    work = (
        clips["dataloader_batch_size"]
        * opt.train.accumulation_steps
        * clips["num_frame"]
        * clips["gt_size"] ** 2
    )
    # The digest is of what the file gives, without names and folders. The order of the list and its
    # form as JSON are part of the digest, so they must stay.
    about = {k: v for k, v in raw.items() if k not in ("task", "path", "logging", "$schema")}
    about["datasets"] = {
        k: v for k, v in raw["datasets"]["train"].items() if not k.startswith(("dataroot", "name"))
    }
    digest = hashlib.sha256(
        json.dumps([about, steps, data.digest], sort_keys=True).encode()
    ).hexdigest()[:8]
    return Method(file.resolve(), steps, overrides, parameters, work, digest)


def finished(out: Path, data: Data, method: Method, seed: int) -> dict[str, Any] | None:
    """Return the result of a run, if it was tested under all conditions. Else return None.

    A result of this machine comes before one in COMMITTED.
    """
    # The part is the first word of the folder of a test set, e.g. "report" of report_rig.
    name = f"{method.run_name(seed)}_{next(iter(data.tests.values())).name.partition('_')[0]}.json"
    places = [folder / name for folder in (out / "results", COMMITTED) if (folder / name).exists()]
    result = read_json(places[0]) if places else {"clips": ()}
    tested = {clip.partition("/")[0] for clip in result["clips"]}
    return result if tested >= data.tests.keys() else None


def run_one(out: Path, data: Data, method: Method, seed: int) -> None:
    """Train and test a method with a seed, or go on where an earlier call stopped.

    Writes the result with the keys "method", "seed", "s_per_step" and "clips", see `test`.
    """
    name = method.run_name(seed)
    run = out / "runs" / name
    task = [f"task={name}", f"path.root={out / 'runs'}", f"train.manual_seed={seed}"]
    call("main_train_vrt.py", out, name, "--opt", str(method.file), *method.overrides, *task)
    # These are the averaged weights if the option file asks for them (E_decay).
    weights = str(run / "checkpoints/checkpoint_latest.pth")
    # The median time of a step. A finished run that is only tested again has it in its history.
    speeds = [value for _, value in read_history(run).get("train/it_per_s", [])]
    s_per_step = statistics.median(1 / speed for speed in speeds) if speeds else None
    about = {"method": method.name, "seed": seed, "s_per_step": s_per_step}
    save(
        out, data, name, about | {"clips": test(out, data, name, method.file, "--weights", weights)}
    )


def save(out: Path, data: Data, name: str, about: dict[str, Any]) -> None:
    """Write a result to results/<name>_<part>.json, where `finished` finds it."""
    part = next(iter(data.tests.values())).name.partition("_")[0]
    (out / "results" / f"{name}_{part}.json").write_text(json.dumps(about, indent=1) + "\n")
    print(f"{name}: done", flush=True)


def test(out: Path, data: Data, name: str, file: Path, *how: str) -> dict[str, Any]:
    """Restore all test clips with main_test_vrt.py, and return their scores.

    Returns "<condition>/<clip>" -> {"restored": scores, "input": scores of the blurry frames}. The
    scores are those of metrics.json, and "moving" for frames in colour, see `moving_psnr`.

    file: option file. how: flags that say what restores, e.g. "--weights", FILE.
    """
    found = {}
    for condition, folder in data.tests.items():
        results = out / "tests" / name / condition
        places = roots(folder, data.split)
        changes = [f"datasets.test.{key}={value}" for key, value in places.items()]
        changes.append("datasets.test.spike.calibration=recorded")
        more = ["--output", str(results), "--overwrite", "--save", "frames"]
        call("main_test_vrt.py", out, name, "--opt", str(file), *how, *more, *changes)
        for clip, about in read_json(results / "metrics.json")["clips"].items():
            kinds = {kind: about[kind] for kind in ("restored", "input")}
            # Grey frames, as those of tfp, have psnr_y alone.
            if "psnr" in kinds["restored"]:
                moving = moving_psnr(results / clip, Path(places["dataroot_gt"]) / clip)
                kinds = {kind: values | {"moving": moving[kind]} for kind, values in kinds.items()}
            found[f"{condition}/{clip}"] = kinds
    return found


def moving_psnr(restored: Path, clip: Path) -> dict[str, float]:
    """Return the PSNR in dB of the moving pixels: {"restored": dB, "input": dB of the blurry}.

    It is the mean over the frames in which more than one pixel in a hundred moves. The program
    lab/joint_gain.py uses it as well.

    restored: folder of the restored frames. clip: folder with the folders sharp and blur.
    """
    found: dict[str, list[float]] = {"restored": [], "input": []}
    for file in sorted((clip / "sharp").iterdir()):
        sharp, blurry, own = (
            read_bgr(str(path)).astype(np.float32)
            for path in (file, clip / "blur" / file.name, restored / file.name)
        )
        # Where the frame moves, (H, W): a large difference in any colour, and the pixels around.
        moves = (np.abs(blurry - sharp).max(axis=2) > MOVES).astype(np.uint8)
        moves = cv2.dilate(moves, np.ones((2 * AROUND + 1,) * 2)).astype(bool)
        if moves.mean() > 0.01:
            for kind, image in (("restored", own), ("input", blurry)):
                found[kind].append(10 * np.log10(255**2 / ((image - sharp)[moves] ** 2).mean()))
    return {kind: float(np.mean(values)) for kind, values in found.items()}


def call(program: str, out: Path, name: str, *arguments: str) -> None:
    """Run a program of the project, and wait. It is ended if this process ends.

    What the program prints goes to <out>/logs/<name>.txt. If it fails, this program ends, too.
    """
    log = out / "logs" / f"{name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        done = subprocess.run(
            [sys.executable, str(ROOT / program), *arguments],
            cwd=ROOT, stdout=file, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"}, preexec_fn=die_with_parent, check=False,
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"{program} of {name} ended with exit code {done.returncode}: see {log}")


# ---- The tables --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What is known of a method."""

    name: str  # e.g. "exposure 500", or the name of a formula
    parameters: int  # number of parameters; 0 without a network
    runs: Mapping[int, Mapping[str, Any]]  # seed -> result, see `run_one`

    def clips(
        self, condition: str, metric: str, kind: str = "restored", seeds: Collection[int] = ()
    ) -> dict:
        """Return clip -> the mean of a metric over the seeds.

        Clips that lack the metric are left out.

        condition: e.g. "rig". metric: e.g. "psnr". kind: "restored", or "input" for the blurry
        frames. seeds: () for all.
        """
        # The runs that were tested under the condition, and the clips of the condition.
        runs = [self.runs[seed]["clips"] for seed in (seeds or self.runs)]
        tested = [
            clips for clips in runs if any(name.startswith(f"{condition}/") for name in clips)
        ]
        names = [name for name in (tested[0] if tested else ()) if name.startswith(f"{condition}/")]
        values = {name: [clips[name][kind].get(metric) for clips in tested] for name in names}
        return {name: statistics.fmean(each) for name, each in values.items() if None not in each}

    def seeds(self, condition: str, metric: str) -> list[float]:
        """Return the mean over the clips, for each seed that was tested under the condition."""
        found = [self.clips(condition, metric, seeds=[seed]) for seed in self.runs]
        return [statistics.fmean(clips.values()) for clips in found if clips]

    def gain(self, condition: str, metric: str) -> tuple[float, float | None] | None:
        """Return the gain over the blurry frames, see `difference`."""
        return difference(self.clips(condition, metric), self.clips(condition, metric, "input"))

    def seconds(self) -> float | None:
        """Return the median time of a training step in seconds. Returns None if it is unknown."""
        found = [run["s_per_step"] for run in self.runs.values() if run.get("s_per_step")]
        return statistics.median(found) if found else None


def difference(
    mine: Mapping[Any, float], reference: Mapping[Any, float]
) -> tuple[float, float | None] | None:
    """Return (mean of mine - reference, half the width of its 95 % confidence interval).

    The mean is over the clips that both have. The interval is of Student's t for paired samples. It
    is None for one clip. Without any common clip the result is None.

    mine, reference: clip -> score.
    """
    pairs = [mine[key] - reference[key] for key in sorted(mine.keys() & reference.keys())]
    if len(pairs) < 2:
        return (pairs[0], None) if pairs else None
    # n pairs have n - 1 degrees of freedom. Index 0 is for one degree.
    quantile = T_QUANTILES[min(len(pairs) - 1, len(T_QUANTILES)) - 1]
    return statistics.fmean(pairs), quantile * statistics.stdev(pairs) / len(pairs) ** 0.5


def report(out: Path, data: Data, methods: Sequence[Method], seeds: Sequence[int]) -> str:
    """Return the tables, as Markdown, of the formulas and of all finished runs.

    Tests the formulas if their results are not there.
    """
    part, outcomes = next(iter(data.tests.values())).name.partition("_")[0], []
    for formula in METHODS:
        file = out / "results" / f"{formula}_{part}.json"
        if not file.exists():
            save(
                out,
                data,
                formula,
                {"clips": test(out, data, formula, methods[0].file, "--method", formula)},
            )
        outcomes.append(Outcome(formula, 0, {0: read_json(file)}))
    for method in methods:
        runs = {seed: result for seed in seeds if (result := finished(out, data, method, seed))}
        if runs:
            outcomes.append(Outcome(method.name, method.parameters, runs))
    return tables(outcomes, list(data.tests))


def tables(outcomes: Sequence[Outcome], conditions: Sequence[str]) -> str:
    """Return the tables as Markdown.

    outcomes: methods with results, one row each. If names begin with "concat", the last of these
    methods is the base, with which the others are compared. conditions: the columns.
    """
    base = next((o for o in reversed(outcomes) if o.name.startswith("concat")), None)
    sections, rows = [], []
    # First table: size, time, number of seeds, and clips that are worse than the blurry input.
    for o in outcomes:
        clips = [clip for run in o.runs.values() for clip in run["clips"].values()]
        scored = [clip for clip in clips if "psnr" in clip["restored"]]
        gains = [clip["restored"]["psnr"] - clip["input"]["psnr"] for clip in scored]
        more = o.parameters / base.parameters - 1 if base and o.parameters else 0.0
        seconds, below = o.seconds(), f"{sum(gain < 0 for gain in gains)} of {len(gains)}"
        count = (f"{o.parameters:,}" if o.parameters else "-") + ", NOT ALIKE" * (abs(more) > ALIKE)
        rows.append([o.name, count, f"{seconds:.2f}" if seconds else "-", len(o.runs), below])
    sections.append(
        table(rows, ["method, steps", "parameters", "s/step", "seeds", "clips below input"])
    )
    # Two tables for each metric: the scores, and the gains over the blurry input.
    for metric, title in (
        ("psnr", "PSNR"),
        ("moving", "PSNR of moving pixels"),
        ("psnr_y", "PSNR-Y"),
    ):
        known = [o for o in outcomes if o.clips(conditions[0], metric)]
        blurry = [
            statistics.fmean(known[-1].clips(c, metric, "input").values()) for c in conditions
        ]
        rows = [["blurry input", *(f"{value:.2f}" for value in blurry)]]
        rows += [
            [o.name, *(_cell(_mean_and_spread(o.seeds(c, metric))) for c in conditions)]
            for o in known
        ]
        sections += [f"{title} in dB, ± over seeds", table(rows, ["", *conditions])]
        rows = [[o.name, *(_cell(o.gain(c, metric), "+") for c in conditions)] for o in known]
        sections += [
            f"{title} minus that of the input, ± 95 % over clips",
            table(rows, ["", *conditions]),
        ]
    # Last table: networks compared with the base, over the seeds that both have.
    if base:
        rows = []
        for o in outcomes:
            if (
                o is not base
                and o.parameters
                and (shared := sorted(o.runs.keys() & base.runs.keys()))
            ):
                pairs = [
                    [each.clips(c, "psnr", seeds=shared) for each in (o, base)] for c in conditions
                ]
                rows.append([o.name, *(_cell(difference(*pair), "+") for pair in pairs)])
        sections += [
            f"PSNR minus that of {base.name}, ± 95 % over clips",
            table(rows, ["", *conditions]),
        ]
    return "\n\n".join(sections) + "\n"


def _mean_and_spread(values: Sequence[float]) -> tuple[float, float | None] | None:
    """Return (mean, standard deviation). One value has no deviation. Returns None for no value."""
    return (
        (statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)
        if values
        else None
    )


def _cell(value: tuple[float, float | None] | None, sign: str = "") -> str:
    """Return a cell of a table, e.g. (1.234, 0.1), "+" -> "+1.23 ± 0.10". "-" for no value."""
    if value is None:
        return "-"
    mean, around = value
    return f"{mean:{sign}.2f}" + ("" if around is None else f" ± {around:.2f}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
