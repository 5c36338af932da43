#!/usr/bin/env python3
"""Which method restores best: trains option files alike, tests them under several cameras and ranks them.

    python lab/quality.py --suite sample
    python lab/quality.py --suite full --opt options/operators/exposure_alone.json --seeds 0

Every file is trained with the same seeds, data and steps by main_train_vrt.py and tested by main_test_vrt.py. Repeat
the command to go on where it stopped: a finished run is repeated only if its options have changed, and those committed
in docs/benchmarks/quality count as finished. docs/benchmarks/quality.md has the protocol.
"""

import argparse
import dataclasses
import fcntl
import hashlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.full_scenes import FULL
from lab.tools import ROOT
from main_train_vrt import read_options
from models.optim import fixed_keys, is_fix_key
from models.select_network import define_G
from scripts.make_sample_data import CAMERAS, RGB, SAMPLE, SPIKES, Cameras, check_made, make_sample
from utils.dist.process import die_with_parent
from utils.metrics import markdown_table as table
from utils.metrics import read_json
from utils.options.load import Sources, read_with_base
from utils.run.history import read_history

SUITES = {"sample": SAMPLE, "full": FULL}
COMMITTED = {"sample": ROOT / "docs/benchmarks/quality", "full": ROOT / "docs/benchmarks/quality/full"}
INSTANTS = 5
RECORDED = "recorded"  # the condition of the training clips
ESTIMATE = "exposure estimate"  # main_test_vrt.py --method exposure: no network, no training
ALIKE = 0.05  # largest difference in parameters of methods that are compared
# 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom; the last one serves for more, which is too wide.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--suite", choices=SUITES, default="sample", help="which scenes (default %(default)s)")
    add("--opt", type=Path, nargs="+", metavar="FILE", help="default: all of options/benchmark")
    add("--only", nargs="+", metavar="NAME", help="train these option files only (names without .json)")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default 0 1 2")
    add("--steps", type=int, default=500, help="default %(default)s")
    add("--clips", type=int, nargs=2, metavar=("TRAIN", "TEST"), help="default: those of the suite")
    add("--frames", type=int, help="of a clip (default: those of the suite)")
    add("--out", type=Path, help="results folder (default experiments/quality/SUITE)")
    args = parser.parse_args(argv)
    out = (args.out or ROOT / "experiments/quality" / args.suite).resolve()
    clips = dict(zip(("train", "test"), args.clips, strict=True)) if args.clips else None
    data, digest = make_data(out, args.suite, clips, args.frames)
    files = args.opt or sorted((ROOT / "options/benchmark").glob("*.json"))
    methods = [read_method(file, data, digest, args.steps) for file in files]
    for method in methods:
        if method.work != methods[0].work:
            sys.exit(f"a step of {method.name} sees {method.work} pixels, one of {methods[0].name} {methods[0].work}")
    for seed in args.seeds:
        for method in methods:
            if (args.only is None or method.name in args.only) and not find_result(out, args.suite, method, seed):
                run_one(out, data, method, seed)
    print(write_tables(args, out, data, digest, methods))
    return 0


@dataclass(frozen=True)
class Method:
    """An option file of the benchmark, as it is trained here.

    parameters: those that are trained. work: samples x frames x pixels of an optimizer step. digest: changes with the
    options, the number of steps and the scenes and cameras of the data, but not with the defaults of keys that the file
    does not give, nor from one machine to another.
    """

    name: str
    file: Path
    overrides: tuple[str, ...]
    parameters: int
    work: int
    digest: str

    def run_name(self, seed: int) -> str:
        return f"{self.name}_seed{seed}_{self.digest}"


def conditions(cameras: Cameras) -> dict[str, Cameras]:
    """Name -> cameras of the test. All record the same scenes; each differs from `cameras` in one thing.

    x0.5, x2, x4: factor of the threshold; charge and its noise stay, so that in thresholds all of them are divided.
    dark: a quarter of the light, for both cameras, with the same exposure. noise: of both sensors.
    """

    def with_threshold(factor: float) -> Cameras:
        keys = ("rate", "shot_noise", "dark_rate")
        return dataclasses.replace(cameras, **{key: getattr(cameras, key) / factor for key in keys})

    return {
        RECORDED: cameras,
        **{f"x{factor:g}": with_threshold(factor) for factor in (0.5, 2, 4)},
        "dark": dataclasses.replace(cameras, light=0.25),
        "noise": dataclasses.replace(
            cameras, shot_noise=0.1, dark_rate=0.005, threshold_mismatch=0.05, rgb_shot=0.03, rgb_read=0.005
        ),
    }


def make_data(out: Path, suite: str, clips: dict[str, int] | None, frames: int | None) -> tuple[Path, str]:
    """Make the data in a folder of `out`, unless they are there; the folder, and the digest of what is asked for.

    The digest is not that of the files, which differ between machines in the last digit of a few pixels. dataset.json
    has the rate of the training clips: the user does not know of another threshold.
    """
    size = SUITES[suite]
    clips, frames = clips or dict(size.clips), frames or size.frames
    cameras = {name: dataclasses.asdict(each) for name, each in conditions(CAMERAS).items()}
    asked = json.dumps([suite, size.version, clips, frames, INSTANTS, cameras], sort_keys=True)
    digest = hashlib.sha256(asked.encode()).hexdigest()[:8]
    folder = out / f"data_{digest}"
    (out / "results").mkdir(parents=True, exist_ok=True)
    with open(out / ".data.lock", "a") as file:  # another command may make them at this moment
        fcntl.flock(file, fcntl.LOCK_EX)
        if not folder.exists() or not check_made(folder, 0, INSTANTS, size):
            make_sample(folder, 0, clips, frames, INSTANTS, conditions(CAMERAS), size)
    return folder, digest


def roots(data: Path, split: str) -> dict[str, str]:
    """The dataroots of a split, as option keys."""
    frames = str(data / RGB / split)
    return {"dataroot_lq": frames, "dataroot_gt": frames, "dataroot_spike": str(data / SPIKES / split)}


def read_method(file: Path, data: Path, data_digest: str, steps: int) -> Method:
    raw = read_with_base(file, Sources(str(file)))
    section = (raw.get("datasets") or {}).get("train") or {}
    train = raw.get("train") or {}
    # Without sharp frames (dataroot_gt null) a method learns from its input alone.
    places = {k: v for k, v in roots(data, "train").items() if not (k in section and section[k] is None)}
    changes = {
        **{f"datasets.train.{key}": value for key, value in places.items()},
        "datasets.test": None, "train.total_iter": steps, "train.epochs": None, "train.G_scheduler_periods": steps,
        "train.checkpoint_print": max(1, min(10, steps // 2)), "logging.use_tensorboard": False,
        "logging.use_wandb": False,
    }  # fmt: skip
    if (train.get("fix_iter") or 0) > (train.get("total_iter") or 0):  # frozen in the whole run
        changes["train.fix_iter"] = steps + 1
    overrides = tuple(f"{key}={json.dumps(value)}" for key, value in changes.items())
    opt = read_options(["--opt", str(file), *overrides])
    loader = opt.datasets.train
    frozen = fixed_keys(opt.train.fix_iter, opt.train.fix_keys) if (opt.train.fix_iter or 0) > steps else ()
    parameters = sum(p.numel() for key, p in define_G(opt).named_parameters() if not is_fix_key(key, frozen))
    work = loader.dataloader_batch_size * opt.train.accumulation_steps * loader.num_frame * loader.gt_size**2
    about = {k: v for k, v in raw.items() if k not in ("task", "path", "logging", "$schema")}
    digest = hashlib.sha256(json.dumps([about, steps, data_digest], sort_keys=True).encode()).hexdigest()[:8]
    return Method(file.stem, file.resolve(), overrides, parameters, work, digest)


def find_result(out: Path, suite: str, method: Method, seed: int) -> Path | None:
    """The result of a finished run, of this machine or committed."""
    places = [folder / f"{method.run_name(seed)}.json" for folder in (out / "results", COMMITTED[suite])]
    return next((place for place in places if place.exists()), None)


def run_one(out: Path, data: Path, method: Method, seed: int) -> None:
    """Train and test, or go on where an earlier call stopped."""
    name = method.run_name(seed)
    run = out / "runs" / name
    task = [f"task={name}", f"path.root={out / 'runs'}", f"train.manual_seed={seed}"]
    call("main_train_vrt.py", out, name, "--opt", str(method.file), *method.overrides, *task)
    # The averaged weights, where the file asks for them.
    scores = test(out, data, name, method.file, "--weights", str(run / "checkpoints/checkpoint_latest.pth"))
    speeds = [value for _, value in read_history(run).get("train/it_per_s", [])]
    s_per_step = statistics.median(1 / speed for speed in speeds) if speeds else None
    about = {"method": method.name, "seed": seed, "s_per_step": s_per_step, "clips": scores}
    (out / "results" / f"{name}.json").write_text(json.dumps(about, indent=1) + "\n")
    print(f"{name}: trained and tested", flush=True)


def test(out: Path, data: Path, name: str, file: Path, *how: str) -> dict[str, Any]:
    """Clip -> its metrics "restored" and "input", with main_test_vrt.py."""
    folder = out / "tests" / name
    places = [f"datasets.test.{key}={value}" for key, value in roots(data, "test").items()]
    call("main_test_vrt.py", out, name, "--opt", str(file), *how, "--output", str(folder), *places)
    clips = read_json(folder / "metrics.json")["clips"]
    return {clip: {kind: about[kind] for kind in ("restored", "input")} for clip, about in clips.items()}


def call(program: str, out: Path, name: str, *arguments: str) -> None:
    """Run a main program, which ends with this process; what it prints goes to logs/<name>.txt."""
    log = out / "logs" / f"{name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        done = subprocess.run(
            [sys.executable, str(ROOT / program), *arguments], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"}, preexec_fn=die_with_parent, check=False,
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"{program} of {name} ended with exit code {done.returncode}: see {log}")


def write_tables(args: argparse.Namespace, out: Path, data: Path, digest: str, methods: Sequence[Method]) -> str:
    """Write table.md and table.json of all finished runs; the text of table.md."""
    estimate = f"estimate_{digest}"
    result = out / "results" / f"{estimate}.json"
    if not result.exists():
        scores = test(out, data, estimate, methods[0].file, "--method", "exposure")
        result.write_text(json.dumps({"clips": scores}, indent=1) + "\n")
    found = {
        method: {seed: read_json(file) for seed in args.seeds if (file := find_result(out, args.suite, method, seed))}
        for method in methods
    }
    outcomes = [Outcome(method.name, method.parameters, runs) for method, runs in found.items() if runs]
    outcomes.append(Outcome(ESTIMATE, 0, dict.fromkeys(args.seeds, read_json(result))))
    text, numbers = report(outcomes, "concat", list(conditions(CAMERAS)))
    text = f"{args.suite} suite, {args.steps} steps, data {digest}\n\n{text}"
    numbers |= {"suite": args.suite, "steps": args.steps, "seeds": args.seeds, "data": digest}
    (out / "table.md").write_text(text)
    (out / "table.json").write_text(json.dumps(numbers, indent=1) + "\n")
    return text


@dataclass(frozen=True)
class Outcome:
    """What is known of a method. parameters: 0 without a network. runs: seed -> result, see `run_one`."""

    name: str
    parameters: int
    runs: Mapping[int, Mapping[str, Any]]

    def scores(self, condition: str, metric: str, kind: str = "restored") -> dict[int, float]:
        """Seed -> mean over the clips of a condition; the clips are named <condition>/<clip>."""
        found = {}
        for seed, run in self.runs.items():
            clips = [each for name, each in run["clips"].items() if name.startswith(f"{condition}/")]
            found[seed] = statistics.fmean(clip[kind][metric] for clip in clips)
        return found

    def clips(self, condition: str, seeds: Collection[int]) -> dict[str, float]:
        """Clip -> its mean PSNR over the seeds."""
        runs = [self.runs[seed]["clips"] for seed in seeds]
        names = [name for name in runs[0] if name.startswith(f"{condition}/")] if runs else []
        return {name: statistics.fmean(clips[name]["restored"]["psnr"] for clips in runs) for name in names}

    def speed(self) -> float | None:
        found = [run["s_per_step"] for run in self.runs.values() if run.get("s_per_step")]
        return statistics.median(found) if found else None


def spread(values: Mapping[int, float]) -> tuple[float, float | None]:
    """(mean, sample standard deviation) over the seeds; of one seed None."""
    several = list(values.values())
    return statistics.fmean(several), statistics.stdev(several) if len(several) > 1 else None


def difference(mine: Mapping[Any, float], reference: Mapping[Any, float]) -> tuple[float, float | None] | None:
    """(mean difference over the seeds or clips that both have, half of its 95 % confidence interval); None without any.

    Paired: both networks of a seed saw the same samples. The interval is Student's; of one seed or clip None.
    """
    pairs = [mine[key] - reference[key] for key in sorted(mine.keys() & reference.keys())]
    if not pairs:
        return None
    if len(pairs) == 1:
        return pairs[0], None
    quantile = T_QUANTILES[min(len(pairs) - 1, len(T_QUANTILES)) - 1]
    return statistics.fmean(pairs), quantile * statistics.stdev(pairs) / len(pairs) ** 0.5


def report(outcomes: Sequence[Outcome], reference: str, conditions: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """(the tables as Markdown, the numbers). outcomes: methods with results. reference: name of the one compared to."""
    base = next((outcome for outcome in outcomes if outcome.name == reference), None)
    header = ["method", "parameters", f"to {reference}", "s/step", "seeds", "PSNR dB", "SSIM", "to input dB",
              f"to {reference} dB", "clips below input"]  # fmt: skip
    summary = []
    for o in outcomes:
        psnr, blurry, speed = o.scores(RECORDED, "psnr"), o.scores(RECORDED, "psnr", "input"), o.speed()
        more = o.parameters / base.parameters - 1 if base and o.parameters else None
        gains = [c["restored"]["psnr"] - c["input"]["psnr"] for run in o.runs.values() for c in run["clips"].values()]
        summary.append([
            o.name, f"{o.parameters:,}" if o.parameters else "-",
            "-" if more is None else f"{more:+.1%}" + ", NOT ALIKE" * (abs(more) > ALIKE),
            "-" if speed is None else f"{speed:.2f}", len(o.runs), _cell(spread(psnr)),
            _cell(spread(o.scores(RECORDED, "ssim")), 4), f"{difference(psnr, blurry)[0]:+.2f}",
            _against(o, base, RECORDED), f"{sum(gain < 0 for gain in gains)} of {len(gains)}",
        ])  # fmt: skip
    sections = ["Recorded camera", table(summary, header)]
    blurry = [f"{next(iter(outcomes[0].scores(c, 'psnr', 'input').values())):.2f}" for c in conditions]
    rows = [[o.name, *(_cell(spread(o.scores(c, "psnr"))) for c in conditions)] for o in outcomes]
    sections += ["PSNR in dB", table([["blurry input", *blurry], *rows], ["method", *conditions])]
    if base:
        rows = [[o.name, *(_against(o, base, c) for c in conditions)] for o in outcomes if o is not base]
        sections += [f"PSNR minus that of {reference}, in dB, ± over seeds", table(rows, ["method", *conditions])]
        others = [o for o in outcomes if o is not base]
        rows = [[o.name, *(_cell(_over_clips(o, base, c), sign="+") for c in conditions)] for o in others]
        sections += ["The same, ± over test clips", table(rows, ["method", *conditions])]
    numbers = {o.name: _numbers(o, base, conditions) for o in outcomes}
    return "\n\n".join(sections) + "\n", {"reference": reference, "conditions": list(conditions), "methods": numbers}


def _cell(value: tuple[float, float | None] | None, digits: int = 2, sign: str = "") -> str:
    if value is None:
        return "-"
    mean, around = value
    return f"{mean:{sign}.{digits}f}" + ("" if around is None else f" ± {around:.{digits}f}")


def _against(outcome: Outcome, base: Outcome | None, condition: str) -> str:
    if base is None or outcome is base:
        return "-"
    return _cell(difference(outcome.scores(condition, "psnr"), base.scores(condition, "psnr")), sign="+")


def _over_clips(outcome: Outcome, base: Outcome, condition: str) -> tuple[float, float | None] | None:
    seeds = outcome.runs.keys() & base.runs.keys()
    return difference(outcome.clips(condition, seeds), base.clips(condition, seeds))


def _numbers(outcome: Outcome, base: Outcome | None, conditions: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"parameters": outcome.parameters, "s_per_step": outcome.speed(), "runs": outcome.runs}
    for condition in conditions:
        psnr = outcome.scores(condition, "psnr")
        found[condition] = {
            "psnr": spread(psnr), "ssim": spread(outcome.scores(condition, "ssim")),
            "psnr_input": spread(outcome.scores(condition, "psnr", "input")),
            "to_reference": difference(psnr, base.scores(condition, "psnr")) if base else None,
            "to_reference_over_clips": _over_clips(outcome, base, condition) if base else None,
        }  # fmt: skip
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
