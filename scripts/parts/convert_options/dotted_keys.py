"""Turn sections of options into dotted keys, and back: {"a": {"b": 1}} is {"a.b": 1}.

What must stay: `nest` undoes `flatten`. So a converted file keeps every key that no function
has changed (test_the_converted_file_trains_on_data_of_its_layout).
"""

from typing import Any


def flatten(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return all options as dotted key -> value, e.g. {"a": {"b": 1}} -> {"a.b": 1}.

    An empty section stays as a value: {"a": {}} -> {"a": {}}.

    prefix: dotted key of the section, with a dot at its end, or "" for the whole file
    """
    options = {}
    for key, value in section.items():
        if isinstance(value, dict) and value:
            options.update(flatten(value, f"{prefix}{key}."))
        else:
            options[f"{prefix}{key}"] = value
    return options


def nest(values: dict[str, Any]) -> dict[str, Any]:
    """Return dotted keys as sections, e.g. {"a.b": 1} -> {"a": {"b": 1}}."""
    root: dict[str, Any] = {}
    for key, value in values.items():
        # E.g. "a.b.c": the sections "a" and "b", and the last name "c". Make each section that is
        # not there yet.
        *names, last = key.split(".")
        section = root
        for name in names:
            section = section.setdefault(name, {})
        section[last] = value
    return root


def prefixes(key: str) -> list[str]:
    """Return the sections of a key and the key, e.g. `a.b.c` -> [`a`, `a.b`, `a.b.c`]."""
    names = key.split(".")
    return [".".join(names[:count]) for count in range(1, len(names) + 1)]
