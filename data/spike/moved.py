"""Let users import a name from the module that had the name in version 0.9.0.

    __getattr__ = moved_names(__name__, {"to_grey": "data.spike.pictures"})

Python calls the function `__getattr__` of a module for a name that the module does not have. So
`from data.spike.simulate import to_grey` still works, and a warning says where the name stands now.

This file may be removed with the version after the next one (CONTRIBUTING.md, removals).
"""

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def moved_names(old_module: str, new_modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the function `__getattr__` of a module whose names moved.

    old_module: the module where the names stood.
    new_modules: name -> the module where the name stands now.
    """

    def find(name: str) -> Any:
        if name not in new_modules:
            raise AttributeError(f"module {old_module!r} has no attribute {name!r}")
        new_module = new_modules[name]
        # FutureWarning, because Python shows it to all users. stacklevel=2 makes the warning name
        # the line that imports.
        warnings.warn(
            f"{name} moved from {old_module} to {new_module}; the old place goes with the version "
            "after the next one",
            FutureWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(new_module), name)

    return find
