"""Compare the options of two starts of a run, and say which of them differ.

A run is started again to resume it from a checkpoint. The option file takes precedence over the
options in the checkpoint, so a resumed run may have other options than before. The log lists the
changed options (`log_changed_options`). If the PSNR of a validation depends on a changed option
(`options_of_psnr`), a new PSNR cannot be compared with the best PSNR so far.

Free to change: the three lists of keys below, which decide which options are compared.

Tests: tests/dist/test_changed_resume.py; tests/stories/test_checkpoint.py, there
test_the_best_psnr_is_forgotten_if_an_option_of_it_changes.
"""

import json
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

# Options that say where and how a run is started, not what is trained. So a difference in them is
# not reported.
UNCOMPARED_OPTIONS = ("opt_path", "task", "path")


class Change(NamedTuple):
    """The two values of an option that differs."""

    then: Any  # the earlier value, e.g. in the checkpoint
    now: Any  # the value of this start


def differences(then: dict[str, Any], now: dict[str, Any], where: str = "") -> dict[str, Change]:
    """Return the options that differ: dotted key -> its two values.

    E.g. {"scale": 1, "train": {"epochs": 3}} and {"scale": 1, "train": {"epochs": 5}} give
    {"train.epochs": Change(then=3, now=5)}. A key that only one side has is left out, e.g. an
    option that a new version has added.

    where: text in front of each key, e.g. "train." if then and now are sections `train`.
    """
    changed_options = {}
    for key in sorted(then.keys() & now.keys()):  # the keys that are in `then` and in `now`
        name = f"{where}{key}"
        value_then = then[key]
        value_now = now[key]
        if name in UNCOMPARED_OPTIONS or value_then == value_now:
            continue
        if isinstance(value_then, dict) and isinstance(value_now, dict):
            changed_options |= differences(value_then, value_now, f"{name}.")
        else:
            changed_options[name] = Change(value_then, value_now)
    return changed_options


def log_changed_options(changes: dict[str, Change]) -> None:
    """Log one line for each changed option, e.g. "  train.G_optimizer_lr: 0.0004 -> 0.0002".

    changes: dotted key -> the value in the checkpoint and the value now.
    """
    lines = []
    for key, change in changes.items():
        lines.append(f"  {key}: {_short_json(change.then)} -> {_short_json(change.now)}")
    logger.warning(
        "these options differ from the checkpoint; their values of this start are used:\n%s",
        "\n".join(lines),
    )


def _short_json(value: Any) -> str:
    """Return an option in JSON, with at most 80 characters, the length of a line of a terminal."""
    text = json.dumps(value)
    if len(text) > 80:  # e.g. a long list
        return f"{text[:77]}..."
    return text


# Beginnings of the options that the PSNR of a validation depends on. If one of them has changed
# between two starts, the best PSNR so far is forgotten, because a new PSNR cannot be compared with
# it.
PSNR_OPTIONS = ("datasets.test.", "val.", "metric.")
# Exceptions among PSNR_OPTIONS: beginnings of options without an effect on the PSNR. Add a new
# option here if it changes only speed or output. If it is missing here, the best PSNR is forgotten
# when its value changes.
EXCEPT_PSNR_OPTIONS = (
    "val.save_img",
    "val.batch_tiles",
    "metric.more",  # metrics of the user's own, which do not change the PSNR
    "datasets.test.dataloader_",
    "datasets.test.cache_data",
)


def options_of_psnr(keys: Iterable[str]) -> list[str]:
    """Return the dotted keys among `keys` that the PSNR of a validation depends on.

    If one of these keys has changed, a new PSNR cannot be compared with the best PSNR so far.
    E.g. of ["metric.mean", "val.save_img", "train.epochs"] only "metric.mean" is returned.
    """
    psnr_keys = []
    for key in keys:
        if key.startswith(PSNR_OPTIONS) and not key.startswith(EXCEPT_PSNR_OPTIONS):
            psnr_keys.append(key)
    return psnr_keys
