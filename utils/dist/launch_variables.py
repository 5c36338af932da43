"""Read numbers, addresses and seconds from launch variables, and collect what is wrong in them.

Most functions append a text to a list `faults` when a variable is wrong, and return a harmless
value (mostly the least allowed number). They raise no error themselves, because one error must list
all wrong variables. `refuse_faults` raises this error.

Free to change: the texts of faults, together with tests/stories/test_launch.py.

Tests: test_a_wrong_variable_is_named (tests/stories/test_launch.py).
"""

from contextlib import suppress
from typing import NamedTuple

from utils.dist.launcher_cells import Env
from utils.errors import DistError


class Member(NamedTuple):
    """A rank (or a node) of a launch: its number, and the address where all ranks meet."""

    number: int  # of this rank or node, from 0
    addr: str  # host of rank 0
    port: int  # port of rank 0 on this host


class MemberNames(NamedTuple):
    """The names of the four variables that describe a `Member`, for a rank or for a node."""

    count: str  # number of ranks or nodes, e.g. "WORLD_SIZE"
    number: str  # number of this rank or node, e.g. "RANK"
    addr: str  # e.g. "MASTER_ADDR"
    port: str  # e.g. "MASTER_PORT"


def count_of_members(env: Env, name: str, faults: list[str], is_required: bool = True) -> int:
    """Return the variable `name`, which is the number of ranks or nodes.

    What a missing variable means:

        RANK and MASTER_ADDR are set, and is_required   a fault, because there are other ranks
        otherwise                                       1, because a single process needs no
                                                        variables

    Returns 1 for a wrong or missing variable. A fault is appended to `faults`.

    is_required: False if another variable may hold the number of ranks.
    """
    has_others = env.get("RANK") and env.get("MASTER_ADDR")
    if is_required and has_others:
        default = None  # tells `number_in` that a missing variable is a fault
    else:
        default = 1
    return number_in(env, name, faults, default=default, low=1)


def member_of(env: Env, names: MemberNames, faults: list[str]) -> Member:
    """Return the number of a rank or node, and the address and port where all ranks meet.

    Wrong variables are appended to `faults`.

    Call this only if `count_of_members` has returned more than 1. Then the variable of the count
    (`names.count`) is set, and its text is a valid number.

    names: the names of the variables of this rank or node, e.g. for a rank "WORLD_SIZE", "RANK",
        "MASTER_ADDR" and "MASTER_PORT".
    """
    count = int(env[names.count])  # e.g. 8: the number must be 0 to 7
    number = number_in(env, names.number, faults, low=0, high=count - 1, below=names.count)
    addr = env.get(names.addr, "").strip()
    if not addr:
        faults.append(f"{names.addr} is missing (host name or address of rank 0)")
    port = number_in(env, names.port, faults, low=1, high=65535)
    return Member(number, addr, port)


def checked_number(
    text: str,
    name: str,
    faults: list[str],
    low: int,
    high: int | None = None,
    below: str = "",
) -> int:
    """Return a text as an integer from `low` to `high`.

    A wrong text adds a sentence to `faults`, e.g. "RANK is 8, expected 0 to 7 (below WORLD_SIZE)".
    `low` is returned in its place.

    text: the value of a variable, without blanks around it; "" if it is missing.
    name: the name of this variable, for the sentence.
    high: the largest allowed number, or None if there is no limit.
    below: name of the count that the value must stay below, for the sentence, e.g. "WORLD_SIZE".
        The count is `high` + 1. "" if there is no such count.
    """
    if not text:
        faults.append(f"{name} is missing")
        return low
    try:
        value = int(text)
    except ValueError:
        faults.append(f"{name} is {text!r}, no number")
        return low
    if value < low or (high is not None and value > high):
        limit = f"{low} or more" if high is None else f"{low} to {high}"
        reason = f" (below {below})" if below else ""
        faults.append(f"{name} is {value}, expected {limit}{reason}")
        return low
    return value


def number_in(
    env: Env,
    name: str,
    faults: list[str],
    low: int,
    high: int | None = None,
    below: str = "",
    default: int | None = None,
) -> int:
    """Return the variable `name` of `env` as an integer from `low` to `high`.

    A wrong variable adds a sentence to `faults`, and `low` is returned in its place. An empty
    variable counts as missing.

    name: name of the variable.
    high: the largest allowed number, or None if there is no limit.
    below: name of the count that the value must stay below, for the sentence, e.g. "WORLD_SIZE".
        The count is `high` + 1. "" if there is no such count.
    default: returned if the variable is missing. None if a missing variable is a fault.
    """
    text = env.get(name, "").strip()
    if not text and default is not None:
        return default
    return checked_number(text, name, faults, low=low, high=high, below=below)


def seconds_in(env: Env, name: str, default: float) -> float:
    """Return a variable as seconds, above 0 and below a million. Raises DistError otherwise.

    A million seconds are 11 days. A larger number is taken for a mistake, e.g. for milliseconds.

    name: name of the variable, e.g. "NCCL_TIMEOUT".
    default: returned if the variable is missing or empty.
    """
    text = env.get(name)
    if not text:
        return default
    with suppress(ValueError):  # a text that is no number leads to the error below
        seconds = float(text)
        if 0 < seconds < 10**6:  # False for NaN, too
            return seconds
    raise DistError(
        what=f"{name} is {text!r}",
        where="the environment",
        expected="seconds, above 0 and below 1000000",
        do=f"correct or unset {name}",
    )


def refuse_faults(faults: list[str], env: Env) -> None:
    """Raise one DistError for all faults. Returns without an error if the list is empty."""
    if not faults:
        return
    who = f"rank {env['RANK']}" if env.get("RANK", "").isdigit() else "this process"
    raise DistError(
        what=f"the launch variables are wrong: {'; '.join(faults)}",
        where=f"the environment of {who}",
        expected="RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT "
        "as docs/ddp_reference.md describes them",
        do="correct these variables, or unset WORLD_SIZE to train in one process",
    )
