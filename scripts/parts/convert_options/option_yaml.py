"""Read an option file in YAML.

The file may come from anybody, so its size, its aliases and its depth are limited. No error quotes
the text of the file, because it may hold a secret.

What must stay: the limits, because a YAML file of a few lines could fill the memory
(tests/parts/utils/test_hostile_options.py). 4e-4 must be read as a number
(test_a_yaml_file_is_read_with_its_numbers). Free to change: the words.
"""

import re
from pathlib import Path
from typing import Any

from utils.errors import OptionError
from utils.options.key_lines import DEEPEST

# Largest size of a YAML file, in bytes. The number was chosen by hand. PyYAML reads about 50 kB per
# second, so the program would seem to hang with a larger file. The option files of S-VRT have less
# than a tenth of this size.
MOST_YAML_BYTES = 2**16
# Largest number of values in a YAML file, chosen by hand. Option files have some hundreds of
# values. A few lines with aliases can stand for billions of values, which would fill the memory.
MOST_YAML_VALUES = 20_000


class UnfitYamlError(ValueError):
    """A YAML file is too large or too deep, or its aliases stand for too many values.

    The text is a clause that ends the sentence "cannot read the option file: ...".
    """


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the sections of a YAML file. Raises OptionError if the file cannot be read."""
    try:
        import yaml  # PyYAML comes with the package wandb. This project does not require PyYAML
    except ImportError as e:
        raise OptionError(
            what="no package PyYAML",
            where=str(path),
            expected="PyYAML, to read a YAML file",
            do="pip install pyyaml",
        ) from e

    where = str(path)
    try:
        values = _parse_yaml(path, yaml)
        if isinstance(values, dict):
            return values
        what = "the option file holds no object"
    # PyYAML raises ValueError e.g. for the date 2024-13-45. It raises ArithmeticError for a number
    # in base 60, e.g. 1:59:30.5, with so many digits that it is too large for a float.
    except (OSError, ValueError, ArithmeticError, RecursionError, yaml.YAMLError) as e:
        what = f"cannot read the option file{_reason(e)}"
        mark = getattr(e, "problem_mark", None)  # where PyYAML stopped
        if mark is not None:
            where += f", line {mark.line + 1}"  # PyYAML counts lines from 0
    # Raised after the `except` block, because within it Python would print PyYAML's error too.
    raise OptionError(
        what=what,
        where=where,
        expected="plain YAML in UTF-8: sections and keys",
        do="correct it, or its path",
    )


def _parse_yaml(path: Path, yaml: Any) -> Any:
    """Return the value that a YAML file holds, or None for an empty file.

    yaml: the module of PyYAML.

    Raises UnfitYamlError if the file is above one of the limits. PyYAML raises its own errors.
    """
    # Read one byte more than allowed. If the file has this byte, the file is too large.
    with open(path, "rb") as file:
        content = file.read(MOST_YAML_BYTES + 1)
    if len(content) > MOST_YAML_BYTES:
        raise UnfitYamlError(f"it has more than {MOST_YAML_BYTES} bytes")
    text = content.decode("utf-8-sig")  # "-sig": without the byte order mark
    loader = _loader_class(yaml)(text)
    # The tree of nodes, before any value is made. None for an empty file.
    root = loader.get_single_node()
    _refuse_repetition(root)
    # Make the values only after the check. For each line such as `<<: *base`, PyYAML copies all
    # values of `base`. A file with very many such lines would fill the memory.
    return loader.construct_document(root) if root else None


def _loader_class(yaml: Any) -> Any:
    """Return a class that reads values as PyYAML does, except that 4e-4 is a number, too.

    PyYAML reads 4.0e-4 as a number, but 4e-4 as text.
    """

    # `add_implicit_resolver` changes the class on which it is called. So call it on a new class,
    # and not on PyYAML's own.
    class Loader(yaml.SafeLoader):
        pass

    # A sign or none, digits, perhaps a point and digits, then the exponent: "4e-4" or "-1.5E+3".
    number = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+$")
    first_characters = list("+-0123456789")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, first_characters)
    return Loader


def _reason(error: Exception) -> str:
    """Return what follows "cannot read the option file" in the message.

    E.g. ": too many brackets within one another". The result is "" for an error of PyYAML, because
    its text may quote a secret. Instead of a reason, the message then has the line at which PyYAML
    stopped.
    """
    if isinstance(error, OSError):
        return f": {error.strerror}"
    if isinstance(error, RecursionError):
        return ": too many brackets within one another"
    if isinstance(error, UnfitYamlError):
        return f": {error}"
    return ""


def _refuse_repetition(root: Any) -> None:
    """Raise UnfitYamlError if a YAML file stands for too many values, or is nested too deeply.

    An alias `*name` repeats the value `&name`, and PyYAML puts the same node object at each alias.
    This function visits a node once for each use, so it counts the values that the aliases stand
    for. Two files that it refuses, and the limit that each of them exceeds:

        ten lines, each with ten aliases of the line before   10**10 values: MOST_YAML_VALUES
        an alias within its own value, e.g. `a: &a [*a]`      endless depth: DEEPEST

    root: the root node of the file, or None
    """
    waiting = [(root, 0)]  # nodes to visit, each with its depth
    visits = 0
    while waiting:
        node, depth = waiting.pop()
        visits += 1
        if visits > MOST_YAML_VALUES:
            raise UnfitYamlError(f"its aliases (*name) make more than {MOST_YAML_VALUES} values")
        if depth > DEEPEST:  # 64, as for option files in JSON (utils/options/key_lines.py)
            raise UnfitYamlError(f"more than {DEEPEST} brackets or sections within one another")
        # A list node holds nodes. A mapping node holds pairs (key node, value node).
        inner = getattr(node, "value", None)
        if not isinstance(inner, list):
            continue
        for item in inner:
            children = item if isinstance(item, tuple) else (item,)
            for child in children:
                waiting.append((child, depth + 1))
