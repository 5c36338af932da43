"""What ranks tell one another through the store, read as data from a network.

Anybody who reaches the store's port can write into it. So each value that a rank reads has a type
and a range, and nothing in it is a path to open. A process id in it is a hint: whoever wants to act
on the process proves first that it belongs to the run (`process.stack_file_of`).

If the launcher has shared a job key among the ranks, each value begins with a proof (HMAC) that its
writer has the key.
"""

import hashlib
import hmac
import json
import math
from typing import Any, NamedTuple

from utils.dist.state import RUN
from utils.errors import DistError

# A longer text in a beat is cut: phases and host names are short.
LONGEST_TEXT = 300
# An exit code of a failed run; 0 would make it a finished one.
FAILURE_CODES = range(1, 256)

# What a rank says of itself with each beat; `read_state` lists the keys.
State = dict[str, Any]


class Failure(NamedTuple):
    """The failure that ends the run: its rank, its exit code, and the rank that reports it."""

    rank: int
    code: int
    by: int


class ForeignValueError(DistError):
    """The store holds something that no rank of this run wrote."""


def sealed(key: str, text: str) -> str:
    """Return `text` as it stands in the store under `key`: with its proof in front, if there is a
    job key.
    """
    return f"{_proof(key, text)} {text}" if RUN.job_key else text


def unsealed(key: str, value: str | bytes) -> str:
    """Return the text that `sealed` was given.

    Raises ForeignValueError if the proof is missing or wrong.
    """
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as e:
        raise foreign(key) from e
    if not RUN.job_key:
        return text
    proof, _, content = text.partition(" ")
    if not hmac.compare_digest(proof.encode(), _proof(key, content).encode()):
        raise foreign(key)
    return content


def _proof(key: str, text: str) -> str:
    return hmac.new(RUN.job_key, f"{key}\0{text}".encode(), hashlib.sha256).hexdigest()


def write_state(rank: int, state: State) -> str:
    return sealed(f"beat/{rank}", json.dumps(state))


def read_state(rank: int, value: str | bytes) -> State:
    """Return the beat of `rank`.

    value: what the store holds under "beat/<rank>".

    The state has beat, step, syncs (counts), age, budget (seconds), pid, machine, host, phase, and
    facts, which `state.tell` describes. Raises ForeignValueError if it has not.
    """
    key = f"beat/{rank}"
    table = _table(key, value)
    try:
        state: State = {name: _count(table[name]) for name in ("beat", "step", "syncs", "pid")}
        state |= {name: _seconds(table[name]) for name in ("age", "budget")}
        state |= {name: shown(_text(table[name])) for name in ("machine", "host", "phase")}
        state["facts"] = _facts(table.get("facts", {}))
    except (KeyError, TypeError, ValueError) as e:
        raise foreign(key) from e
    return state


def write_failure(failure: Failure) -> str:
    return sealed("failure", json.dumps(failure._asdict()))


def read_failure(value: str | bytes, world_size: int) -> Failure | None:
    """Return the failure that the store holds, or None if it holds none.

    Raises ForeignValueError if it is no failure of a rank of this run: an exit code of 0, for
    example, would let a run that was broken off pass for a finished one.
    """
    if not value:
        return None
    table = _table("failure", value)
    try:
        failure = Failure(**table)
    except TypeError as e:
        raise foreign("failure") from e
    ranks = range(world_size)
    is_ours = (
        all(type(number) is int for number in failure)
        and failure.rank in ranks
        and failure.by in ranks
        and failure.code in FAILURE_CODES
    )
    if not is_ours:
        raise foreign("failure")
    return failure


def shown(text: str) -> str:
    """Return `text` without characters that move a terminal's cursor, and not too long."""
    text = text[:LONGEST_TEXT]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "?" for c in text)


def foreign(key: str) -> ForeignValueError:
    place = RUN.place
    return ForeignValueError(
        what=f"the store of the run holds something under the key {key!r} that no rank of this "
        "run wrote",
        where=f'rank {RUN.launch.rank} in phase "{place.phase}" at step {place.step}; the store '
        f"is at {RUN.launch.master_addr}:{RUN.launch.master_port}",
        expected="that only the ranks of this run write into its store",
        do="end other runs with this MASTER_PORT, or choose another port; if there are none, "
        "somebody else reaches the port: docs/ddp.md says how to close it. The same command "
        "resumes the run",
    )


def _table(key: str, value: str | bytes) -> dict[str, Any]:
    try:
        table = json.loads(unsealed(key, value))
    except (ValueError, RecursionError) as e:
        raise foreign(key) from e
    if not isinstance(table, dict):
        raise foreign(key)
    return table


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no count")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{value!r} are no seconds")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _facts(value: Any) -> dict[str, Any]:
    """Return the facts with their texts as they are shown."""
    facts = {}
    for name, fact in dict(value).items():
        facts[shown(name)] = shown(fact) if isinstance(fact, str) else fact
    return facts
