"""Return what a test expects, or end the test with a message that says what is missing.

After such a call, the type checker knows the type of the result. E.g. it knows that the result of
`not_none` is not None, and that the result of `module_of` has the given class.
"""

import re
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
from torch import nn

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)


def not_none(value: T | None) -> T:
    """Return a value that is not None."""
    assert value is not None
    return value


def find_match(pattern: str, text: str, flags: int = 0) -> re.Match[str]:
    """Return the first match of a pattern in a text."""
    match = re.search(pattern, text, flags)
    assert match is not None, f"{pattern!r} is not in: {text}"
    return match


def read_picture(path: Path, flags: int = cv2.IMREAD_COLOR) -> np.ndarray:
    """Return the picture of a file: (height, width, 3) in BGR, or as `flags` of cv2.imread ask."""
    picture = cv2.imread(str(path), flags)
    assert picture is not None, path
    return picture


def module_of(net: nn.Module, name: str, kind: type[M]) -> M:
    """Return the module of a network with this dotted name. Fails if it has another class."""
    module = net.get_submodule(name)
    assert isinstance(module, kind), f"{name} is a {type(module).__name__}"
    return module


def options_of_part(section: object) -> Any:
    """Return a section of options, whose keys are the keys of the part that it names.

    The class of such a section is made when the file is read, so the type checker cannot know the
    keys. The type Any lets a test read them.
    """
    assert section is not None
    return section
