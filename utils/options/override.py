"""Set single options as the command line says: section.key=value.

    apply_override             sets the option in the sections of a file
    argument_without_secrets   an argument as a message may show it

The value is JSON, or else a text: `train.epochs=3` sets a number, `task=first` a text.

What must stay: an override that names another part (network, dataset, loss) leaves no parameter of
the old part behind, and no message shows a secret
(test_a_message_hides_a_secret_but_names_its_key).

Tests: tests/parts/utils/test_option.py, the tests with "override" in their names.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from utils.errors import OptionError
from utils.options.sources import TYPE_KEYS, Sources
from utils.secrets import redact


def apply_override(raw: dict[str, Any], override: str, sources: Sources) -> None:
    """Set one option as the command line says. Raises OptionError if it cannot be read.

    `load_options` calls this for the overrides. Programs with flags that set options call
    `apply_override` as well, e.g. main_test_vrt.py.

    raw: sections and options, changed in place
    override: "section.key=value". The value is read as JSON, or else as text
    sources: where each option came from, changed in place: it gets the place of this option
    """
    # A key is one or more words with dots between them, e.g. "train.amp.enable". A word may have a
    # "$", because an option file may have the key "$schema".
    key, equals, text = override.partition("=")
    clean_override = argument_without_secrets(override)  # for messages
    if not equals or not re.fullmatch(r"[\w$\-]+(\.[\w$\-]+)*", key):
        raise OptionError(
            what=f"cannot read {clean_override!r}",
            where="the command line",
            expected="section.key=value",
            do="see docs/options.md for the keys",
        )
    value = _value_of(text)

    # E.g. "train.amp.enable" is the key "enable" in the section "train.amp".
    *section_names, last_name = key.split(".")
    section = _section_to_change(raw, section_names, clean_override)

    # If the value is the old value, the part stays the same, and its parameters stay, too.
    if section.get(last_name) != value:
        _leave_old_part(section, section_names, last_name, sources)

    # `read_options` drops an inherited key that the part does not have. The user has typed this
    # key, so it must not count as inherited. So `read_options` refuses the key if the part does not
    # have it.
    section[last_name] = value
    sources.inherited.discard(key)
    sources.overridden.add(key)
    sources.places[key] = f"the command line ({clean_override})"


def _leave_old_part(
    section: dict[str, Any], section_names: Sequence[str], changed_key: str, sources: Sources
) -> None:
    """Remove or mark the parameters of the old part, if an override names another part.

    `type` names a nested part. The section of a nested part has only parameters of this part, so
    all parameters are removed. E.g. netG.fusion.type=concat:

        before  {"type": "add", "gain": 0.5}
        after   {"type": "concat"}

    TYPE_KEYS, e.g. G_lossfn_type in "train", stand beside keys that fit every part of their kind,
    e.g. total_iter. So all keys stay, but they are marked as inherited. Later, `read_options`
    (typed.py) drops the inherited keys that the new part does not have. E.g.
    train.G_lossfn_type=l1:

        before  {"total_iter": 9, "G_lossfn_type": "power", "G_power": 1.5}
        after   {"total_iter": 9, "G_lossfn_type": "l1", "G_power": 1.5}, and `read_options` drops
                G_power

    `_merge` (option_file.py) has the same two cases for a file and its base, so change both
    together.

    The caller then writes the new value of `changed_key` into `section`. If `changed_key` is any
    other key, e.g. total_iter, it names no part, and the section stays as it is.

    section: the section of the changed key, changed in place
    section_names: the names of the sections from the outermost to this one, e.g. ["netG", "fusion"]
    """
    if changed_key == "type":
        section.clear()
    if changed_key in TYPE_KEYS:
        for other_key in section:
            sources.inherited.add(".".join([*section_names, other_key]))


def _section_to_change(
    raw: dict[str, Any], names: Sequence[str], clean_override: str
) -> dict[str, Any]:
    """Return the section of `raw` with these names, e.g. ["train", "amp"] -> raw["train"]["amp"].

    Changes `raw`. A section that is missing is added as {}. A section that the file gives only as
    the name of a part becomes a dict, e.g. "concat" -> {"type": "concat"}. Raises OptionError if a
    name belongs to an option that is not a section.

    clean_override: the override without secrets, for the error
    """
    section = raw
    for depth, name in enumerate(names):
        value: Any = section.get(name, {})
        is_name_of_part = isinstance(value, str)
        inner: Any = {"type": value} if is_name_of_part else value
        if not isinstance(inner, dict):
            dotted_key = ".".join(names[: depth + 1])  # up to this name
            raise OptionError(
                what=f"{dotted_key} has no keys",
                where=f"the command line ({clean_override})",
                expected=f"{dotted_key}=value",
                do="correct the override",
            )
        section[name] = inner
        section = inner
    return section


def _value_of(text: str) -> Any:
    """Return the value of an override: its JSON, or the text itself if it is not JSON.

    E.g. "8" -> 8, "[1, 2]" -> [1, 2], "null" -> None, "vrt" -> "vrt".
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: the text has too many opening brackets
        return text


def argument_without_secrets(argument: str) -> str:
    """Return an argument of a command line without secrets. Without a secret it stays as typed.

    E.g. "logging.wandb_api_key=abc" -> "logging.wandb_api_key=***".
    """
    key, equals, text = argument.partition("=")
    value = _value_of(text)
    name = key.lstrip("-").replace("-", "_")  # `--api-key=...` counts as the key api_key
    clean = redact(value, key=name, replacement="***")
    # If `redact` changed nothing, the value holds no secret. But the argument as a whole may still
    # look like a secret, e.g. like a URL with a password.
    if not equals or clean == value:
        return redact(argument, replacement="***")
    clean_text = clean if isinstance(clean, str) else json.dumps(clean)
    return f"{key}={clean_text}"
