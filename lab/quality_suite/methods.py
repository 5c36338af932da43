"""Read a method: an option file, with the data and the number of steps of the comparison.

What must stay: what `digest_of_method` digests, because the names of finished results contain the
digits. test_no_result_of_other_options_is_used notices an old result that is used for other
options. Free to change, for new results: the options that are the same for all methods
(`overrides_of`).
"""

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.quality_suite.sets import Data, dataroots_of, digest_of
from main_train_vrt import read_options
from models.optim import group_names
from models.select_network import define_G
from utils.options.option_file import read_with_base
from utils.options.sources import Sources


@dataclass(frozen=True)
class Method:
    """An option file of the benchmark, with the data and the number of steps of the comparison."""

    file: Path  # the option file
    steps: int  # optimizer steps
    # Options of the training that replace the options of the file: the data, the number of
    # steps and the log. Each is a word "section.key=value" of the command line.
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


def read_method(file: Path, data: Data, steps: int) -> Method:
    """Return an option file as it is trained here: on the training sets, for a number of steps."""
    # The file is read twice. `raw` has only the keys that are written in the file, because the
    # digest and the overrides depend on these keys. `opt` also has the overrides and all defaults,
    # as the training reads the file.
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

    Each option is a word of the command line, e.g. "train.total_iter=500".

    raw: the option file as it is written.
    """
    # Each of the three keys of `dataroots_of` gets a list with a folder of each training set, e.g.
    # "datasets.train.dataroot_lq": ["<set a>/<RGB>/train", "<set b>/<RGB>/train"].
    roots_of_sets = [dataroots_of(folder, "train") for folder in data.sample_weights]
    changes: dict[str, Any] = {}
    for key in roots_of_sets[0]:
        changes[f"datasets.train.{key}"] = [roots_of_set[key] for roots_of_set in roots_of_sets]
    changes |= {
        # The share of the samples that each training set gives.
        "datasets.train.dataroot_share": list(data.sample_weights.values()),
        "datasets.train.spike.calibration": "recorded",  # the true calibration, in dataset.json
        "datasets.test": None,  # no validation, because the test comes after the training
        "train.total_iter": steps,
        "train.epochs": None,  # the steps end the training, not the epochs of the file
        "train.G_scheduler_periods": steps,
        # The log gets a line every 10 steps. A run of fewer than 20 steps gets at least two lines,
        # e.g. every 3 of 6 steps. The time of a step is read from these lines.
        "train.checkpoint_print": max(1, min(10, steps // 2)),
        "logging.use_tensorboard": False,
        "logging.use_wandb": False,
    }
    # Parameters are frozen up to step fix_iter. If a file freezes them in all of its steps, e.g.
    # with fix_iter 600 and total_iter 500, freeze them in all steps here, too. A missing key and
    # null both mean 0.
    train = raw.get("train") or {}
    frozen_steps = train.get("fix_iter") or 0
    all_steps = train.get("total_iter") or 0
    if frozen_steps > all_steps:
        changes["train.fix_iter"] = steps + 1
    return tuple(f"{key}={json.dumps(value)}" for key, value in changes.items())


def trained_parameters(opt: Any, steps: int) -> int:
    """Return the number of parameters that are trained. opt: the options of a training."""
    net = define_G(opt)
    # The parameters of fix_keys are frozen until step fix_iter. If step fix_iter is after the last
    # step, these parameters are never trained.
    frozen: Collection[str] = ()
    if (opt.train.fix_iter or 0) > steps:
        # `group_names` returns two lists of names: the other parameters, and the parameters of
        # fix_keys.
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

    The names of runs and of folders do not change the digits. The names of committed results
    contain the digits, so the digested options must stay as they are.
    """
    digested = {}  # the options that count
    for key, value in raw.items():
        if key not in ("task", "path", "logging", "$schema"):
            digested[key] = value
    digested["datasets"] = {}  # only the training set counts
    for key, value in raw["datasets"]["train"].items():
        if not key.startswith(("dataroot", "name")):
            digested["datasets"][key] = value
    return digest_of([digested, steps, data.digest])


def refuse_unequal_pixels_per_step(methods: Sequence["Method"]) -> None:
    """End the program if the steps of two methods see different numbers of pixels.

    With different numbers of pixels, one method would be trained on more data than another in the
    same number of steps.
    """
    first = methods[0]
    for method in methods:
        if method.pixels_per_step != first.pixels_per_step:
            sys.exit(
                f"a step of {method.name} sees {method.pixels_per_step} pixels, "
                f"one of {first.name} {first.pixels_per_step}"
            )
