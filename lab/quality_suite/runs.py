"""Train a method with a seed, and test it on all test clips. A run is this training and its test.

    method       an option file, with the data and the number of steps of the comparison
    condition    the pair of simulated cameras of a test clip, e.g. "dim"
    part         the group of test videos, e.g. "report" (sets.py)

The functions:

    train_and_test      calls main_train_vrt.py and scores_on_tests, and writes the result
                        results/<run>_<part>.json
    scores_on_tests     calls main_test_vrt.py, and returns the scores of the clips
    finished_result     reads the result of an earlier run

What must stay: the names and keys of the results, because some are part of the project (COMMITTED),
and `finished_result` must find them. tests/parts/house/test_quality_command.py, a slow test, runs
the whole program on the suite `sample`.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from lab.quality_suite import programs
from lab.quality_suite.methods import Method
from lab.quality_suite.moving import moving_psnr
from lab.quality_suite.sets import Data, dataroots_of
from lab.tools import ROOT
from utils.results import read_json
from utils.run.history import read_history

COMMITTED = ROOT / "docs/benchmarks/quality"  # results that are part of the project


def train_and_test(out: Path, data: Data, method: Method, seed: int) -> None:
    """Train and test a method with a seed, or resume where an earlier call stopped.

    Writes the result: the name of the method, the seed, the seconds of a step, and the scores of
    the clips.
    """
    name = method.run_name(seed)
    programs.call(
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
    # Steps per second, one number for each line of the log. The speeds are read from the history in
    # the folder of the run, so they exist even if an earlier call has trained the run.
    speeds = [value for _, value in read_history(run).get("train/it_per_s", [])]
    s_per_step = None
    if speeds:
        s_per_step = statistics.median(1 / speed for speed in speeds)
    # If the option file asks for averaged weights (E_decay), this checkpoint has them, too.
    weights = str(run / "checkpoints/checkpoint_latest.pth")
    clips = scores_on_tests(out, data, name, method.file, "--weights", weights)
    result = {"method": method.name, "seed": seed, "s_per_step": s_per_step, "clips": clips}
    write_result(out, data, name, result)


def scores_on_tests(
    out: Path, data: Data, name: str, option_file: Path, *restorer: str
) -> dict[str, Any]:
    """Restore all test clips with main_test_vrt.py, and return their scores.

    Returns "<condition>/<clip>" -> the result of `scores_of_clip`.

    name: name of the run. The folder of the results and the log have this name.
    option_file: option file that says how the clips are read.
    restorer: flags that say what restores the clips, e.g. "--weights", FILE.
    """
    scores = {}
    for condition, folder in data.tests.items():
        results = out / "tests" / name / condition
        roots_of_test = dataroots_of(folder, data.split)
        options = [f"datasets.test.{key}={value}" for key, value in roots_of_test.items()]
        options.append("datasets.test.spike.calibration=recorded")
        programs.call(
            "main_test_vrt.py",
            "--opt",
            str(option_file),
            *restorer,
            "--output",
            str(results),
            "--overwrite",
            "--save",
            "frames",
            *options,
            out=out,
            name=name,
        )
        root_of_clips = Path(roots_of_test["dataroot_gt"])
        for name_of_clip, entry in read_json(results / "metrics.json")["clips"].items():
            # `finished_result` and `Outcome` (outcomes.py) find the condition before the "/".
            scores[f"{condition}/{name_of_clip}"] = scores_of_clip(
                entry, restored=results / name_of_clip, clip=root_of_clips / name_of_clip
            )
    return scores


def scores_of_clip(
    entry: dict[str, Any], restored: Path, clip: Path
) -> dict[str, dict[str, float]]:
    """Return {"restored": scores, "input": scores of the blurry frames} of a test clip.

    The scores come from metrics.json. Frames in colour also get "moving", the PSNR of the moving
    pixels.

    entry: the entry of the clip in metrics.json.
    restored: folder of the restored frames.
    clip: folder with the folders sharp and blur.
    """
    scores = {"restored": entry["restored"], "input": entry["input"]}
    # Grey frames, as tfp makes them, have only the score psnr_y.
    if "psnr" in entry["restored"]:
        moving = moving_psnr(restored, clip)
        for kind in ("restored", "input"):
            scores[kind] = scores[kind] | {"moving": moving[kind]}
    return scores


def write_result(out: Path, data: Data, name: str, result: dict[str, Any]) -> None:
    """Write a result to results/<name>_<part>.json, where `finished_result` finds it."""
    file = out / "results" / f"{name}_{data.part}.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{name}: done", flush=True)


def finished_result(out: Path, data: Data, method: Method, seed: int) -> dict[str, Any] | None:
    """Return the result of a run. Returns None if the run was not tested under all conditions.

    A result in <out>/results is used before a result in COMMITTED. A condition is the pair of
    simulated cameras of test clips, e.g. "dim".
    """
    name = f"{method.run_name(seed)}_{data.part}.json"  # as `write_result` names it
    for folder in (out / "results", COMMITTED):
        file = folder / name
        if file.exists():
            result = read_json(file)
            return result if has_all_conditions(result, data) else None
    return None


def has_all_conditions(result: dict[str, Any], data: Data) -> bool:
    """Return whether a result was measured under all conditions of `data`, and perhaps more."""
    # Names of clips are "<condition>/<clip>".
    tested = {clip.partition("/")[0] for clip in result["clips"]}
    return tested >= data.tests.keys()
