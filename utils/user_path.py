"""Expand paths as users write them: ~ for the home folder, $NAME or ${NAME} for a variable.

Paths of data in option files and in flags go through `expand_path`.

What must stay: an existing file whose name has a "$" or begins with "~" is found under its own
name.

Tests (tests/parts/data/test_preflight.py): test_home_and_variables_in_paths_are_replaced,
test_a_variable_without_a_value_is_named
"""

import os
import re

from utils.errors import DataError

# "$NAME" or "${NAME}".
_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\})", re.ASCII)


def expand_path(path: str) -> str:
    """Return the path with ~ and $NAME replaced. A path that exists already is not changed.

    A shell replaces ~ and $NAME on the command line, but not after KEY=. In an option file, no
    shell replaces them. A variable that is not set stays in the path. Then the path is missing, and
    `advice_on` names the variable in the error.

    Raises DataError for a name that is not UTF-8, because it cannot be written into records.
    """
    # For a byte that is not UTF-8, Python puts a special character into the path. This character
    # cannot be encoded. "backslashreplace" writes such a character as six letters, e.g. "\udce4".
    escaped_path = path.encode("utf-8", "backslashreplace").decode()
    if escaped_path != path:  # the path has such a character
        raise DataError(
            what="the path is no text in UTF-8",
            where=escaped_path,
            expected="names of files and folders in UTF-8",
            do="rename the folder or file (convmv renames whole trees), or link to it by "
            "another name",
        )
    if os.path.lexists(path):
        return path
    return os.path.expanduser(os.path.expandvars(path))


def advice_on(path: str) -> str:
    """Return what to add to the advice in the error on a missing path.

    E.g. "; set the variable $DATA, which has no value here". Returns "" if the path has neither a
    variable nor a "~" at its beginning.

    path: the path after `expand_path`. A variable or "~" that is still in it has no value.
    """
    unset = _VARIABLE.search(path)
    if unset:
        return f"; set the variable {unset[0]}, which has no value here"
    if path.startswith("~"):
        return f"; there is no user {path.split('/')[0]}, so write the path in full"
    return ""
