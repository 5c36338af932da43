#!/usr/bin/env python3
"""Find out which method restores best: train option files alike, test them, and compare them.

    python lab/quality.py
    python lab/quality.py --suite real --videos VIDEOS --steps 500

A method is an option file (a network with its fusion), trained for a number of steps, or a formula
that needs no training. The suite says what the methods are trained and tested on:

    sample   the made scenes of `make sample`; a smoke test
    real     training: seven real videos, photographs and made scenes, under random rigs.
             test: two other videos under each condition of data/cameras/rig_values.py.
             Two more videos (--part choose) are for choosing between methods.

The program works in this order:

    make_made / make_real   the clips              -> Data
    read_method             an option file         -> Method
    run_one                 train, and test        -> results/<run>_<part>.json
    report                  all results            -> table_<part>.md

If the program is stopped, repeat the command: it goes on where it stopped. A finished run is
repeated only if its options have changed. The runs in docs/benchmarks/quality count as finished.
docs/benchmarks/quality.md has the figures.

What must stay: the lists under "What is compared", because finished results are valid only for
them, and the division of the videos: nothing may be trained on the videos "choose" and "report".
lab/joint_gain.py, lab/train_motion.py and lab/train_motion_net.py use the lists and files of videos
and photographs, `make_clips`, `call`, and the functions of the tables. Free to add: a method (an
option file). test_no_result_of_other_options_is_used notices an old result that is used again.
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
from typing import Any, NamedTuple

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.clips.pictures import read_bgr
from lab.tools import ROOT
from main_train_vrt import read_options
from models.optim import group_names
from models.select_network import define_G
from scripts.make_sample_data import RGB, SPIKES
from utils.dist.process import die_with_parent
from utils.options.option_file import read_with_base
from utils.options.sources import Sources
from utils.results import markdown_table as table
from utils.results import read_json
from utils.run.history import read_history

COMMITTED = ROOT / "docs/benchmarks/quality"  # results that are part of the project

# ---- What is compared --------------------------------------------------------------------------
#
# VIDEOS, PHOTOS, CLIPS, SAMPLE_WEIGHTS and FRAMES are part of the digest of the data. Another value
# makes all results of finished runs invalid, also the results in COMMITTED. TRAINING_SETS is no
# part, so whoever changes a training set must give it another name, which changes SAMPLE_WEIGHTS.
# CONDITIONS is no part, because it changes no training: each condition is tested on its own.

# The videos, by file name without suffix. They were divided before anything was trained on them.
VIDEOS = {
    "train": ("bedroom", "blocks", "cups", "juggle", "karma", "kick", "laptop"),
    "choose": ("coffee", "walker"),
    "report": ("camel", "park"),
}
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
FRAMES = 8  # frames of a clip
# Training set -> weight with which a sample is drawn from it: of 12 samples, 4 are of "random".
# "made" is the set of `make sample`. The order of the sets decides which random number draws from
# which set, so it must stay.
SAMPLE_WEIGHTS = {"random": 4, "photos": 2, "ideal": 3, "made": 3}


class TrainingSet(NamedTuple):
    """What the clips of a training set of the suite `real` are made from."""

    source: str  # "train": the training videos; "photos": the photographs
    rig: str  # the pair of simulated cameras, e.g. "ideal" (data/cameras/rig_values.py)


TRAINING_SETS = {
    "random": TrainingSet(source="train", rig="random"),
    "ideal": TrainingSet(source="train", rig="ideal"),
    "photos": TrainingSet(source="photos", rig="random"),
}
# The pairs of simulated cameras (rigs) of the tests. data/cameras/rig_values.py has their values.
CONDITIONS = ("ideal", "other", "rig", "dim")
# Formulas that need no training: values of --method of main_test_vrt.py. "exposure" is the ratio
# formula of S-SDM, in linear light.
FORMULAS = ("tfp", "tfi", "exposure")
# A pixel counts as moving if the blurry and the sharp frame differ by more than this, in levels of
# 8 bits. A lower limit would count noise as motion.
MOVING_LEVELS = 12
# Pixels at this distance from a moving pixel, or nearer, count as moving, too: a restored edge may
# lie beside the true edge.
MOVING_AROUND = 7
# A frame without at least this share of moving pixels has no score of moving pixels, because a few
# pixels would decide it.
LEAST_MOVING = 0.01
# Two networks have the same size if the numbers of their parameters differ by this share at most. A
# network of another size is marked in the table, because more parameters alone may restore better.
# With a larger share, a gain that comes from the size would pass for a gain of the method.
MOST_SIZE_DIFFERENCE = 0.05
# 97.5 % quantiles of Student's t with 1, 2, ..., 10 degrees of freedom. `t_quantile` computes the
# quantiles of larger numbers of degrees.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def main(argv: list[str]) -> int:
    """Make the data, train and test what is not finished, and print the tables.

    Returns the exit code 0. An error ends the program before, with a message.
    """
    args = parse(argv)
    out = args.out
    (out / "results").mkdir(parents=True, exist_ok=True)
    data = make_real(out, args) if args.suite == "real" else make_made(out)
    methods = []
    for steps in args.steps:
        for file in args.opt:
            methods.append(read_method(file, data, steps))
    refuse_unequal_steps(methods)

    # The seeds are the outer loop, so that after a stop all methods have the same finished seeds.
    for seed in args.seeds:
        for method in methods:
            is_asked = args.only is None or method.file.stem in args.only
            if is_asked and not finished(out, data, method, seed):
                run_one(out, data, method, seed)

    text = report(out, data, methods, args.seeds)
    (out / f"table_{args.part}.md").write_text(text)
    print(text)
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the command line, with the defaults of `out` and `opt` filled in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--suite", choices=("sample", "real"), default="sample", help="default %(default)s")
    add("--videos", type=Path, help="suite real: folder of the eleven videos")
    add(
        "--part",
        choices=("choose", "report"),
        default="report",
        help="suite real: which videos the methods are tested on, default %(default)s",
    )
    add(
        "--conditions",
        nargs="+",
        choices=CONDITIONS,
        default=CONDITIONS,
        help="suite real: cameras of the test clips (default: all)",
    )
    add(
        "--opt",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="option files of the methods (default: all of options/benchmark)",
    )
    add("--only", nargs="+", metavar="NAME", help="train only these files (names without .json)")
    add("--seeds", type=int, nargs="+", default=[0, 1], help="seeds of each method, default 0 1")
    add(
        "--steps",
        type=int,
        nargs="+",
        default=[500],
        help="number of training steps; with several numbers, each file is trained once for each "
        "number (default 500)",
    )
    add("--out", type=Path, help="results folder (default experiments/quality/SUITE)")
    args = parser.parse_args(argv)
    args.out = (args.out or ROOT / "experiments/quality" / args.suite).resolve()
    args.opt = args.opt or sorted((ROOT / "options/benchmark").glob("*.json"))
    return args


def refuse_unequal_steps(methods: Sequence["Method"]) -> None:
    """End the program if a step of one method sees more pixels than a step of another method.

    Otherwise one method would be trained on more data than another in the same number of steps.
    """
    first = methods[0]
    for method in methods:
        if method.pixels_per_step != first.pixels_per_step:
            sys.exit(
                f"a step of {method.name} sees {method.pixels_per_step} pixels, "
                f"one of {first.name} {first.pixels_per_step}"
            )


@dataclass(frozen=True)
class Data:
    """The sets of clips of a suite."""

    sample_weights: Mapping[Path, int]  # folder of a training set -> weight of its samples
    tests: Mapping[str, Path]  # condition -> folder of its test clips, e.g. data/report_rig
    split: str  # "train" or "test": the folder within a set that has the test clips
    # A digest of what the sets are made from. It contains no folder, so that results hold on other
    # machines.
    digest: str

    @property
    def part(self) -> str:
        """Return what the tests are of: "made", "choose" or "report".

        It is the first word of the folder of a test set, e.g. of data/report_rig. The files of
        results end with it, so it must stay.
        """
        first_folder = next(iter(self.tests.values()))
        return first_folder.name.partition("_")[0]


@dataclass(frozen=True)
class Method:
    """An option file of the benchmark, as it is trained here."""

    file: Path  # the option file
    steps: int  # optimizer steps
    # Options of the training that replace those of the file: the data, the number of steps and the
    # log. They are words "section.key=value" of the command line.
    overrides: tuple[str, ...]
    parameters: int  # number of parameters that are trained
    pixels_per_step: int  # samples x frames x pixels of a frame, in an optimizer step
    # 8 hex digits that change with the options, the number of steps and the data. Only keys that
    # stand in the file count, so a new default of the program does not change the digits.
    digest: str

    @property
    def name(self) -> str:
        """Return the name in the tables, e.g. "exposure 500"."""
        return f"{self.file.stem} {self.steps}"

    def run_name(self, seed: int) -> str:
        """Return the name of the folder of a run, e.g. "exposure_500_seed0_1a2b3c4d"."""
        return f"{self.file.stem}_{self.steps}_seed{seed}_{self.digest}"


# ---- The data ----------------------------------------------------------------------------------
#
# Tests make the suite `sample`, and see that a missing video is refused. No test makes the clips of
# the suite `real`, because they need the videos.


def make_made(out: Path) -> Data:
    """Make the sample set, as `make sample` does. It is for training and testing."""
    folder = out / "data/made"
    call("scripts/make_sample_data.py", "--root", str(folder), out=out, name="made")
    return Data(
        sample_weights={folder: 1},
        tests={"recorded": folder},
        split="test",
        digest="sample",
    )


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
    sources = link_sources(out, args.videos)
    # The training sets, each in the folder data/<name>: "made", and those of TRAINING_SETS.
    # SAMPLE_WEIGHTS has the weights of all of them.
    make_made(out)
    for name, training_set in TRAINING_SETS.items():
        make_clips(
            out,
            name,
            source=sources[training_set.source],
            rig=training_set.rig,
            clips=CLIPS[name],
            frames=FRAMES,
        )
    sample_weights = {out / "data" / name: weight for name, weight in SAMPLE_WEIGHTS.items()}

    # The test clips of all conditions. --conditions says which of them are tested.
    folder_of_condition = {}
    for condition in CONDITIONS:
        folder_of_condition[condition] = make_clips(
            out,
            name=f"{args.part}_{condition}",
            source=sources[args.part],
            rig=condition,
            clips=CLIPS[args.part],
            frames=FRAMES,
        )
    tests = {condition: folder_of_condition[condition] for condition in args.conditions}
    digest = digest_of([VIDEOS, CLIPS, SAMPLE_WEIGHTS, FRAMES, PHOTOS])
    # split: `make_clips` puts all clips of a set into its folder "train", also the test clips.
    return Data(sample_weights, tests, split="train", digest=digest)


def link_sources(out: Path, videos_folder: Path | None) -> dict[str, Path]:
    """Collect what the clips are made from. Returns part -> a folder with links.

    The parts are "train", "choose" and "report", with videos, and "photos". Ends the program if a
    video is missing.
    """
    # First look for the videos of all parts, so that one message names all that are missing.
    video_files(videos_folder, [name for names in VIDEOS.values() for name in names])
    files = {part: video_files(videos_folder, names) for part, names in VIDEOS.items()}
    files["photos"] = photographs()
    folders = {}
    for part, files_of_part in files.items():
        folders[part] = out / "sources" / part
        link_files(files_of_part, folders[part])
    return folders


def photographs() -> list[Path]:
    """Return the files of PHOTOS in the installed packages. Ends the program if one is missing."""
    files = []
    for package, photos in PHOTOS.items():
        for photo in photos:
            files.append(package_file(package, photo))
    return files


def package_file(package: str, name: str) -> Path:
    """Return a file of an installed package by its name. Ends the program if it is missing.

    The whole package is searched, because each package has its photographs in another folder. The
    first file of this name is taken.
    """
    found = list(_folder_of(package).rglob(name))
    if not found:
        sys.exit(f"the package {package} has no {name}")
    return found[0]


def video_files(folder: Path | None, names: Sequence[str]) -> list[Path]:
    """Return the files of some videos. Ends the program if one is missing.

    folder: the folder of --videos. names: file names without their endings.
    """
    if names and folder is None:
        sys.exit(f"give --videos, a folder with {', '.join(sorted(set(names)))}")
    files = {}  # name -> file
    if folder:
        files = {path.stem: path for path in sorted(folder.iterdir())}
    missing = sorted(set(names) - files.keys())
    if missing:
        sys.exit(f"--videos {folder} has no {', '.join(missing)}")
    return [files[name] for name in names]


def link_files(files: Sequence[Path], folder: Path) -> None:
    """Make a folder with a link to each file. Links that are there are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        link = folder / file.name
        if not link.exists():
            link.symlink_to(file.resolve())


def make_clips(out: Path, name: str, source: Path, rig: str, clips: int, **settings: Any) -> Path:
    """Make a set of clips in the folder <out>/data/<name>, and return the folder.

    Clips that are there are kept.

    source: folder of videos or photographs.
    rig: the pair of simulated cameras, e.g. "dim".
    clips: number of clips of each video or photograph.
    settings: other flags of scripts/prepare_gopro_spike.py, e.g. average=7. The program uses its
        default for a setting that is None.
    """
    folder = out / "data" / name
    flags = {
        "test_share": 0,  # all clips are in the folder "train" of the set
        "workers": 1,
        "source": source,
        "rig": rig,
        "clips": clips,
        "out": folder,
        **settings,
    }
    words = []
    for flag, value in flags.items():
        if value is not None:
            words += [f"--{flag.replace('_', '-')}", str(value)]
    call("scripts/prepare_gopro_spike.py", *words, out=out, name=name)  # name: of the log file
    return folder


def digest_of(value: Any) -> str:
    """Return 8 hex digits that change with the value.

    Names of committed results contain such digits, so the form of the JSON must stay. The order of
    the keys of a dict does not count.
    """
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def dataroots_of(folder: Path, split: str) -> dict[str, str]:
    """Return the folders of a set as keys of an option file, e.g. "dataroot_spike" -> folder.

    dataroot_lq and dataroot_gt are the same folder: <clip>/blur and <clip>/sharp lie below it.

    folder: of the set. split: "train" or "test".
    """
    # RGB and SPIKES: the folders of the two cameras, as scripts/prepare_gopro_spike.py names them.
    frames = str(folder / RGB / split)
    return {
        "dataroot_lq": frames,
        "dataroot_gt": frames,
        "dataroot_spike": str(folder / SPIKES / split),
    }


# ---- Training and testing ----------------------------------------------------------------------
#
# tests/parts/house/test_quality_command.py, a slow test, runs the whole program on the suite
# `sample`.


def read_method(file: Path, data: Data, steps: int) -> Method:
    """Return an option file as it is trained here: on the training sets, for a number of steps."""
    # The file is read twice: first as it is written, because the digest and the overrides depend on
    # it, then with the overrides and all defaults, as the training reads it.
    sources = Sources(main_file=str(file))  # notes where each key comes from, for messages
    raw = read_with_base(file, sources)
    overrides = overrides_of(raw, data, steps)
    opt = read_options(["--opt", str(file), *overrides])
    return Method(
        file=file.resolve(),
        steps=steps,
        overrides=overrides,
        parameters=trained_parameters(opt, steps),
        pixels_per_step=pixels_per_step(opt),
        digest=digest_of_method(raw, data, steps),
    )


def overrides_of(raw: Mapping[str, Any], data: Data, steps: int) -> tuple[str, ...]:
    """Return the options that are the same for all methods: data, length, log.

    They are words of the command line, e.g. "train.total_iter=500".

    raw: the option file as it is written.
    """
    # A list with the folder of each training set for each of the three keys of `dataroots_of`, e.g.
    # "datasets.train.dataroot_lq": ["<set a>/<RGB>/train", "<set b>/<RGB>/train"].
    roots_of_sets = [dataroots_of(folder, "train") for folder in data.sample_weights]
    changes: dict[str, Any] = {}
    for key in roots_of_sets[0]:
        changes[f"datasets.train.{key}"] = [roots_of_set[key] for roots_of_set in roots_of_sets]
    changes |= {
        # The share of the samples that each training set gives.
        "datasets.train.dataroot_share": list(data.sample_weights.values()),
        "datasets.train.spike.calibration": "recorded",
        "datasets.test": None,  # no validation: the test comes after the training
        "train.total_iter": steps,
        "train.epochs": None,  # the steps end the training, not the epochs of the file
        "train.G_scheduler_periods": steps,
        # Every 10 steps, or twice in a shorter run: the time of a step is read from these lines.
        "train.checkpoint_print": max(1, min(10, steps // 2)),
        "logging.use_tensorboard": False,
        "logging.use_wandb": False,
    }
    # If a file freezes parameters for all of its steps, they stay frozen for all steps here, too.
    train = raw.get("train") or {}
    frozen_steps = train.get("fix_iter") or 0
    all_steps = train.get("total_iter") or 0
    if frozen_steps > all_steps:
        changes["train.fix_iter"] = steps + 1
    return tuple(f"{key}={json.dumps(value)}" for key, value in changes.items())


def trained_parameters(opt: Any, steps: int) -> int:
    """Return the number of parameters that are trained. opt: the options of a training."""
    net = define_G(opt)
    # Parameters that are frozen until after the last step are never trained.
    frozen: Collection[str] = ()
    if (opt.train.fix_iter or 0) > steps:
        _, frozen = group_names(net, opt.train.fix_iter, opt.train.fix_keys)
    count = 0
    for name, parameter in net.named_parameters():
        if name not in frozen:
            count += parameter.numel()
    return count


def pixels_per_step(opt: Any) -> int:
    """Return how many pixels an optimizer step sees: samples x frames x pixels of a frame."""
    clips = opt.plain()["datasets"]["train"]
    samples = clips["dataloader_batch_size"] * opt.train.accumulation_steps
    return samples * clips["num_frame"] * clips["gt_size"] ** 2


def digest_of_method(raw: Mapping[str, Any], data: Data, steps: int) -> str:
    """Return 8 hex digits that change with the options of a file, the steps and the data.

    Names of the run and folders do not count. The names of committed results contain the digits, so
    what is digested must stay as it is.
    """
    about = {}
    for key, value in raw.items():
        if key not in ("task", "path", "logging", "$schema"):
            about[key] = value
    about["datasets"] = {}
    for key, value in raw["datasets"]["train"].items():
        if not key.startswith(("dataroot", "name")):
            about["datasets"][key] = value
    return digest_of([about, steps, data.digest])


def finished(out: Path, data: Data, method: Method, seed: int) -> dict[str, Any] | None:
    """Return the result of a run, if it was tested under all conditions. Else return None.

    A result of this machine comes before one in COMMITTED.
    """
    name = f"{method.run_name(seed)}_{data.part}.json"
    for folder in (out / "results", COMMITTED):
        file = folder / name
        if file.exists():
            result = read_json(file)
            # Names of clips are "<condition>/<clip>".
            tested = {clip.partition("/")[0] for clip in result["clips"]}
            has_all = tested >= data.tests.keys()  # it may have been tested under more conditions
            return result if has_all else None
    return None


def run_one(out: Path, data: Data, method: Method, seed: int) -> None:
    """Train and test a method with a seed, or go on where an earlier call stopped.

    Writes the result: the name of the method, the seed, the seconds of a step, and the scores of
    the clips.
    """
    name = method.run_name(seed)
    call(
        "main_train_vrt.py",
        "--opt",
        str(method.file),
        *method.overrides,
        f"task={name}",
        f"path.root={out / 'runs'}",
        f"train.manual_seed={seed}",
        out=out,
        name=name,
    )
    run = out / "runs" / name
    # Steps per second, of each line of the log. If this call has only tested a run that was
    # finished before, the history of the run still has them.
    speeds = [value for _, value in read_history(run).get("train/it_per_s", [])]
    s_per_step = None
    if speeds:
        s_per_step = statistics.median(1 / speed for speed in speeds)
    # These are the averaged weights if the option file asks for them (E_decay).
    weights = str(run / "checkpoints/checkpoint_latest.pth")
    clips = test(out, data, name, method.file, "--weights", weights)
    result = {"method": method.name, "seed": seed, "s_per_step": s_per_step, "clips": clips}
    save(out, data, name, result)


def save(out: Path, data: Data, name: str, result: dict[str, Any]) -> None:
    """Write a result to results/<name>_<part>.json, where `finished` finds it."""
    file = out / "results" / f"{name}_{data.part}.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{name}: done", flush=True)


def test(out: Path, data: Data, name: str, option_file: Path, *method: str) -> dict[str, Any]:
    """Restore all test clips with main_test_vrt.py, and return their scores.

    Returns "<condition>/<clip>" -> {"restored": scores, "input": scores of the blurry frames}. The
    scores come from metrics.json. Frames in colour also have "moving", the PSNR of the moving
    pixels.

    name: name of the run, for the folder of the results and for the log.
    option_file: option file that says how the clips are read.
    method: flags that say what restores, e.g. "--weights", FILE.
    """
    scores = {}
    for condition, folder in data.tests.items():
        results = out / "tests" / name / condition
        roots_of_test = dataroots_of(folder, data.split)
        options = [f"datasets.test.{key}={value}" for key, value in roots_of_test.items()]
        options.append("datasets.test.spike.calibration=recorded")
        call(
            "main_test_vrt.py",
            "--opt",
            str(option_file),
            *method,
            "--output",
            str(results),
            "--overwrite",
            "--save",
            "frames",
            *options,
            out=out,
            name=name,
        )
        sharp_root = Path(roots_of_test["dataroot_gt"])
        for clip, about in read_json(results / "metrics.json")["clips"].items():
            scores_of_clip = {"restored": about["restored"], "input": about["input"]}
            # Grey frames, as tfp makes them, have only the score psnr_y.
            if "psnr" in about["restored"]:
                moving = moving_psnr(results / clip, sharp_root / clip)
                for kind in ("restored", "input"):
                    scores_of_clip[kind] = scores_of_clip[kind] | {"moving": moving[kind]}
            scores[f"{condition}/{clip}"] = scores_of_clip
    return scores


def moving_psnr(restored: Path, clip: Path) -> dict[str, float]:
    """Return the PSNR in dB of the moving pixels: {"restored": dB, "input": dB of the blurry}.

    It is the mean over the frames in which more than LEAST_MOVING of the pixels move.
    lab/joint_gain.py uses it as well. Test: test_the_score_of_moving_pixels_leaves_still_ones_out

    restored: folder of the restored frames. clip: folder with the folders sharp and blur.
    """
    scores: dict[str, list[float]] = {"restored": [], "input": []}
    for file in sorted((clip / "sharp").iterdir()):
        sharp = read_bgr(str(file)).astype(np.float32)
        blurry = read_bgr(str(clip / "blur" / file.name)).astype(np.float32)
        frame = read_bgr(str(restored / file.name)).astype(np.float32)

        is_moving = _moving_pixels(blurry, sharp)
        if is_moving.mean() > LEAST_MOVING:
            scores["restored"].append(_psnr((frame - sharp)[is_moving]))
            scores["input"].append(_psnr((blurry - sharp)[is_moving]))
    return {kind: float(np.mean(values)) for kind, values in scores.items()}


def _moving_pixels(blurry: np.ndarray, sharp: np.ndarray) -> np.ndarray:
    """Return (H, W) bool: where a frame moves. blurry, sharp: (H, W, 3) in levels of 8 bits."""
    largest_difference = np.abs(blurry - sharp).max(axis=2)  # of the three colours, (H, W)
    differs = (largest_difference > MOVING_LEVELS).astype(np.uint8)
    # Dilation sets each pixel with a moving pixel in the square around it.
    side = 2 * MOVING_AROUND + 1
    return cv2.dilate(differs, np.ones((side, side))).astype(bool)


def _psnr(errors: np.ndarray) -> float:
    """Return the PSNR in dB of errors in levels of 8 bits."""
    return 10 * np.log10(255**2 / (errors**2).mean())


def call(program: str, *arguments: str, out: Path, name: str) -> None:
    """Run a program of the project, and wait. It is ended if this process ends.

    What the program prints goes to <out>/logs/<name>.txt. If it fails, this program ends, too.
    """
    log = out / "logs" / f"{name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        done = subprocess.run(
            [sys.executable, str(ROOT / program), *arguments],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            # Each line is in the log at once, so that one can follow the program.
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=die_with_parent,
            check=False,
        )
    if done.returncode:
        sys.exit(f"{program} of {name} ended with exit code {done.returncode}: see {log}")


# ---- The tables --------------------------------------------------------------------------------
#
# tests/parts/house/test_lab.py tests the tables and `difference` on numbers that are small enough
# to check by hand.


class Spread(NamedTuple):
    """A mean, and how far it may be off. A cell of a table shows it as "30.12 ± 0.05"."""

    mean: float
    # Over clips: half the width of the confidence interval of the mean (`difference`). Over seeds:
    # the standard deviation (`_mean_and_deviation`). None if there is a single value.
    margin: float | None


@dataclass(frozen=True)
class Outcome:
    """The results of a method with all seeds."""

    name: str  # e.g. "gated 500" (a network trained for 500 steps), or the name of a formula
    parameters: int  # number of parameters; 0 without a network
    # Seed -> result of the run with this seed. It is the content of a file in results/, e.g.
    # {"s_per_step": 0.8,
    #  "clips": {"rig/street": {"restored": {"psnr": 30.1}, "input": {"psnr": 28.8}}}}
    # The name of a clip is "<condition>/<clip>".
    runs: Mapping[int, Mapping[str, Any]]

    def scores_of_clips(
        self, condition: str, metric: str, kind: str = "restored", seeds: Collection[int] = ()
    ) -> dict[str, float]:
        """Return the mean of a metric over the seeds, for each clip: e.g. {"rig/street": 30.1}.

        A clip without the metric is left out. E.g. grey frames have no "psnr", which is of colours.
        So the result of a method that restores grey frames is {} for "psnr".

        condition: e.g. "rig". metric: e.g. "psnr". kind: "restored", or "input" for the blurry
        frames. seeds: () for all.
        """
        runs = self._clips_of_runs(condition, seeds or list(self.runs))
        if not runs:
            return {}
        # All these runs have the same clips, because a run is always tested on all clips of a
        # condition. So the names of the first run serve for all of them.
        means = {}
        for name in runs[0]:
            values = []
            for clips in runs:
                value = clips[name][kind].get(metric)
                if value is not None:
                    values.append(value)
            if len(values) == len(runs):
                means[name] = statistics.fmean(values)
        return means

    def _clips_of_runs(self, condition: str, seeds: Collection[int]) -> list[Mapping[str, Any]]:
        """Return the clips of a condition for each run: [{"rig/street": {"restored": ...}}].

        A run that was not tested under the condition is left out.
        """
        runs = []
        for seed in seeds:
            clips = {}
            for name, scores in self.runs[seed]["clips"].items():
                if name.startswith(f"{condition}/"):
                    clips[name] = scores
            if clips:
                runs.append(clips)
        return runs

    def scores_of_seeds(self, condition: str, metric: str) -> list[float]:
        """Return the mean score of the clips, for each seed that was tested under the condition."""
        means = []
        for seed in self.runs:
            scores = self.scores_of_clips(condition, metric, seeds=[seed])
            if scores:
                means.append(statistics.fmean(scores.values()))
        return means

    def gain(self, condition: str, metric: str) -> Spread | None:
        """Return the mean gain over the blurry frames, with its confidence interval over clips."""
        restored = self.scores_of_clips(condition, metric)
        blurry = self.scores_of_clips(condition, metric, "input")
        return difference(restored, blurry)

    def seconds(self) -> float | None:
        """Return the median time of a training step in seconds. Returns None if it is unknown."""
        times = []
        for run in self.runs.values():
            # Runs of formulas, and very short runs, have no time of a step.
            if run.get("s_per_step"):
                times.append(run["s_per_step"])
        return statistics.median(times) if times else None


def difference(mine: Mapping[Any, float], reference: Mapping[Any, float]) -> Spread | None:
    """Return the mean of mine - reference, and half the width of its 95 % confidence interval.

    The mean is over the keys that both have. The interval is of Student's t for paired samples:

        half width = t(n - 1) * standard deviation of the n differences / sqrt(n)

    One common key has no interval. Returns None if there is no common key.

    mine, reference: clip or seed -> score.
    """
    common = sorted(mine.keys() & reference.keys())
    differences = [mine[key] - reference[key] for key in common]
    n = len(differences)
    if n == 0:
        return None
    if n == 1:
        return Spread(differences[0], margin=None)
    half_width = t_quantile(n - 1) * statistics.stdev(differences) / n**0.5
    return Spread(statistics.fmean(differences), half_width)


def t_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t with this number of degrees of freedom.

    Above 10 degrees it is the expansion in 1/v of Cornish and Fisher, where v is the number of
    degrees and z is the quantile of the normal distribution. Its error is below 2e-4 there:

        t = z + (z^3 + z) / (4 v) + (5 z^5 + 16 z^3 + 3 z) / (96 v^2)
              + (3 z^7 + 19 z^5 + 17 z^3 - 15 z) / (384 v^3)
    """
    if degrees <= len(T_QUANTILES):
        return T_QUANTILES[degrees - 1]
    v = degrees
    z = statistics.NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / (4 * v)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    return z + first + second + third


def report(out: Path, data: Data, methods: Sequence[Method], seeds: Sequence[int]) -> str:
    """Return the tables, as Markdown, of the formulas and of all finished runs.

    Tests a formula first if its results are not there.
    """
    outcomes = []
    for formula in FORMULAS:
        file = out / "results" / f"{formula}_{data.part}.json"
        if not file.exists():
            # A formula has no network. It takes from an option file only how clips are read.
            option_file = methods[0].file
            clips = test(out, data, formula, option_file, "--method", formula)
            save(out, data, formula, {"clips": clips})
        # A formula has no seed and no parameters. 0 stands for its only run.
        outcomes.append(Outcome(formula, parameters=0, runs={0: read_json(file)}))
    for method in methods:
        runs = {}
        for seed in seeds:
            result = finished(out, data, method, seed)
            if result:
                runs[seed] = result
        if runs:
            outcomes.append(Outcome(method.name, method.parameters, runs))
    return tables(outcomes, list(data.tests))


def tables(outcomes: Sequence[Outcome], conditions: Sequence[str]) -> str:
    """Return the tables as Markdown: one row for each method, one column for each condition.

    outcomes: methods with results, at least one.
    """
    base = _base_of(outcomes)
    sections = [_table_of_methods(outcomes, base)]
    titles = {"psnr": "PSNR", "moving": "PSNR of moving pixels", "psnr_y": "PSNR-Y"}
    for metric, title in titles.items():
        # The methods that have the metric. If all of them restore grey frames, none has "psnr".
        with_metric = []
        for outcome in outcomes:
            if outcome.scores_of_clips(conditions[0], metric):
                with_metric.append(outcome)
        if not with_metric:
            continue
        sections.append(f"{title} in dB, ± over seeds")
        sections.append(_table_of_scores(with_metric, conditions, metric))
        sections.append(f"{title} minus that of the input, ± 95 % over clips")
        sections.append(_table_of_gains(with_metric, conditions, metric))
    if base:
        sections.append(f"PSNR minus that of {base.name}, ± 95 % over clips")
        sections.append(_table_against(base, outcomes, conditions))
    return "\n\n".join(sections) + "\n"


def _base_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the method with which all others are compared, or None if it was not tested.

    The base is the plainest fusion, options/benchmark/concat.json: it puts the channels of the
    spikes beside the channels of the frame. Its name begins with "concat". If it was trained with
    several numbers of steps, the base is the last of them, because `--steps` usually has the
    largest number last.
    """
    base = None
    for outcome in outcomes:
        if outcome.name.startswith("concat"):
            base = outcome
    return base


def _table_of_methods(outcomes: Sequence[Outcome], base: Outcome | None) -> str:
    """Return the first table: size, time, seeds, and clips that are worse than the blurry input."""
    rows = []
    for outcome in outcomes:
        size = "-"  # of a formula
        if outcome.parameters:
            size = f"{outcome.parameters:,}"
            if base and not _have_same_size(outcome, base):
                size += ", NOT ALIKE"
        seconds = outcome.seconds()
        time = f"{seconds:.2f}" if seconds else "-"
        gains = _gains_of_all_runs(outcome)
        losses = [gain for gain in gains if gain < 0]
        below = f"{len(losses)} of {len(gains)}"
        rows.append([outcome.name, size, time, len(outcome.runs), below])
    return table(rows, ["method, steps", "parameters", "s/step", "seeds", "clips below input"])


def _have_same_size(outcome: Outcome, base: Outcome) -> bool:
    """Say whether two networks have nearly the same number of parameters."""
    ratio = outcome.parameters / base.parameters
    return abs(ratio - 1) <= MOST_SIZE_DIFFERENCE


def _gains_of_all_runs(outcome: Outcome) -> list[float]:
    """Return the gain in PSNR over the blurry input, of each clip with each seed."""
    gains = []
    for run in outcome.runs.values():
        for clip in run["clips"].values():
            if "psnr" in clip["restored"]:  # grey frames have no PSNR of colours
                gains.append(clip["restored"]["psnr"] - clip["input"]["psnr"])
    return gains


def _table_of_scores(outcomes: Sequence[Outcome], conditions: Sequence[str], metric: str) -> str:
    """Return the table of a metric: the blurry input, then each method.

    outcomes: at least one; all have the metric.
    """
    # Any method gives the row of the blurry input, because all methods were tested on the same
    # clips.
    any_outcome = outcomes[-1]
    blurry = []
    for condition in conditions:
        scores = any_outcome.scores_of_clips(condition, metric, "input")
        blurry.append(f"{statistics.fmean(scores.values()):.2f}")
    rows = [["blurry input", *blurry]]
    for outcome in outcomes:
        cells = []
        for condition in conditions:
            scores_of_seeds = outcome.scores_of_seeds(condition, metric)
            cells.append(table_cell(_mean_and_deviation(scores_of_seeds)))
        rows.append([outcome.name, *cells])
    return table(rows, ["", *conditions])


def _table_of_gains(outcomes: Sequence[Outcome], conditions: Sequence[str], metric: str) -> str:
    """Return the table of the gains over the blurry input, with their intervals over clips."""
    rows = []
    for outcome in outcomes:
        cells = []
        for condition in conditions:
            cells.append(table_cell(outcome.gain(condition, metric), sign="+"))
        rows.append([outcome.name, *cells])
    return table(rows, ["", *conditions])


def _table_against(base: Outcome, outcomes: Sequence[Outcome], conditions: Sequence[str]) -> str:
    """Return the last table: the PSNR of networks minus the PSNR of the base, over common seeds."""
    rows = []
    for outcome in outcomes:
        common_seeds = sorted(outcome.runs.keys() & base.runs.keys())
        is_network = outcome.parameters > 0
        if outcome is base or not is_network or not common_seeds:
            continue
        cells = []
        for condition in conditions:
            of_method = outcome.scores_of_clips(condition, "psnr", seeds=common_seeds)
            of_base = base.scores_of_clips(condition, "psnr", seeds=common_seeds)
            cells.append(table_cell(difference(of_method, of_base), sign="+"))
        rows.append([outcome.name, *cells])
    return table(rows, ["", *conditions])


def _mean_and_deviation(values: Sequence[float]) -> Spread | None:
    """Return mean and standard deviation. One value has no deviation. Returns None for no value."""
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation)


def table_cell(spread: Spread | None, sign: str = "") -> str:
    """Return a cell of a table, e.g. Spread(1.234, 0.1), "+" -> "+1.23 ± 0.10". "-" for None.

    sign: "+" writes a plus before a positive mean.
    """
    if spread is None:
        return "-"
    text = f"{spread.mean:{sign}.2f}"
    if spread.margin is not None:
        text += f" ± {spread.margin:.2f}"
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
