"""Write values into the key-value store of the run, and check the values that are read.

Anybody who reaches the port of the store over the network can write into the store. So a rank
checks type and range of each value that it reads, and opens no path that a value names. Before it
signals or ends a process, it checks that the process belongs to the run (`stacks.stack_file_of`),
because a process id may be false, too.

The launcher may give all ranks a job key, which is a secret. Then each value begins with a proof
(HMAC) that its writer has the key:

    key    beat/3
    value  5f0c2a... {"beat": 512, "phase": "forward", ...}

There are two kinds of values. A beat is the record of its state that a rank writes twice a second
(`State`). A `Failure` says which rank has failed first. A value that no rank of this run can have
written raises ForeignValueError.

What must stay: the checks, which are part of the security of a run (docs/ddp_reference.md). A new
field needs a check of its own (test_a_text_that_is_no_beat_ends_the_run_with_a_report,
test_a_forged_failure_ends_the_run_with_a_report). Free to change: the form of a value, because
values live only as long as the run, and all ranks of a run have the same version.

Tests: tests/dist/test_trust.py.
"""

import hashlib
import hmac
import json
import math
from typing import Any, NamedTuple

from utils.dist.state import RUN
from utils.errors import DistError

# Largest number of characters of a text from a beat. The rest is cut, so that nobody can fill a
# report with a long text. Names of phases and hosts are shorter. Chosen by hand.
LONGEST_TEXT = 300
# The exit codes of a failed run. With code 0 the run would look finished.
FAILURE_CODES = range(1, 256)

# The record that a rank writes with each beat. utils.dist.beats explains its keys.
State = dict[str, Any]


class Failure(NamedTuple):
    """The failure that ends the run."""

    rank: int  # the rank that failed
    code: int  # exit code of all ranks
    by: int  # the rank that reports the failure


class ForeignValueError(DistError):
    """The store holds something that no rank of this run wrote."""


def seal(key: str, text: str) -> str:
    """Return `text` as it is written into the store under `key`.

    With a job key, a proof and a blank stand in front of the text, e.g. '5f0c2a... {"beat": 512}'.
    Without a job key, the value is only the text.
    """
    # The launcher puts the job key into the environment. `utils_dist` reads it into RUN.job_key,
    # which is b"" if there is no job key.
    if not RUN.job_key:
        return text
    return f"{_proof(key, text)} {text}"


def unseal(key: str, value: str | bytes) -> str:
    """Return the text of a value that `seal` has made.

    value: what the store holds under `key`.

    Raises ForeignValueError if the proof is missing or wrong.
    """
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as e:
        raise foreign_value(key) from e
    if not RUN.job_key:
        return text
    # '5f0c2a... {"beat": 512}' is cut at its first blank, because a proof has none.
    proof, _, content = text.partition(" ")
    # compare_digest takes the same time for each wrong proof. With `==`, somebody could measure how
    # many characters of a guess are right.
    if not hmac.compare_digest(proof.encode(), _proof(key, content).encode()):
        raise foreign_value(key)
    return content


def _proof(key: str, text: str) -> str:
    """Return the proof (HMAC, in hex) that the writer of a text has the job key.

    The proof depends on the store key as well. So `unseal` refuses a value that somebody has copied
    from another key.
    """
    # The character \0 divides key and text, because neither of them contains it.
    return hmac.new(RUN.job_key, f"{key}\0{text}".encode(), hashlib.sha256).hexdigest()


def write_state(rank: int, state: State) -> str:
    """Return the value under "beat/<rank>" for a beat of a rank."""
    return seal(f"beat/{rank}", json.dumps(state))


def read_state(rank: int, value: str | bytes) -> State:
    """Return the last beat of `rank`, the record in which a rank describes itself.

    The keys of a beat, which utils.dist.beats explains in full:

        beat      number of the beat
        step      number of training steps so far
        syncs     number of collectives (e.g. sums over all ranks) that the rank has entered. The
                  other ranks wait for the rank with the smallest number
        pid       process id
        age       seconds in the present phase
        budget    seconds that the phase may last, before the rank counts as stuck
        machine   an id of the host, and of the container on it
        host      the name of the host
        phase     the name of the phase, e.g. "forward"
        facts     what the rank has told of itself, e.g. its samples

    value: what the store holds under "beat/<rank>".

    Raises ForeignValueError if a key is missing, or if its value is of another type or range.
    """
    key = f"beat/{rank}"
    table = _table(key, value)
    try:
        state: State = {}
        # Each function below returns the value if type and range are right, and raises otherwise.
        for name in ("beat", "step", "syncs", "pid"):
            state[name] = _count(table[name])
        for name in ("age", "budget"):
            state[name] = _seconds(table[name])
        for name in ("machine", "host", "phase"):
            state[name] = printable_text(_text(table[name]))
        state["facts"] = _facts(table.get("facts", {}))
    # OverflowError: a number of seconds that is too large for a float, e.g. of 400 digits.
    except (KeyError, TypeError, ValueError, OverflowError) as e:
        raise foreign_value(key) from e
    return state


def write_failure(failure: Failure) -> str:
    """Return the value under "failure" for a failure.

    The constant beats.FAILURE has the same text, "failure": change both together.
    """
    return seal("failure", json.dumps(failure._asdict()))


def read_failure(value: str | bytes, world_size: int) -> Failure | None:
    """Return the failure that the store holds, or None if no rank has failed.

    value: what the store holds under "failure".
    world_size: number of ranks of the run.

    Raises ForeignValueError if no rank of this run can have written the value. E.g. the value has
    exit code 0, with which an aborted run would look finished.
    """
    if not value:
        return None
    table = _table("failure", value)
    try:
        failure = Failure(**table)
    except TypeError as e:
        raise foreign_value("failure") from e
    ranks = range(world_size)
    # `type(...) is int`, because isinstance would take True for an int, too.
    is_ours = (
        all(type(number) is int for number in failure)
        and failure.rank in ranks
        and failure.by in ranks
        and failure.code in FAILURE_CODES
    )
    if not is_ours:
        raise foreign_value("failure")
    return failure


def printable_text(text: str) -> str:
    """Return the first LONGEST_TEXT characters of `text`, with "?" for each unprintable character.

    An unprintable character could e.g. move a terminal's cursor, and so hide a line of a report.
    """
    text = text[:LONGEST_TEXT]
    if text.isprintable():
        return text
    characters = []
    for character in text:
        characters.append(character if character.isprintable() else "?")
    return "".join(characters)


def foreign_value(key: str) -> ForeignValueError:
    """Return the error of a value under `key` that no rank of this run wrote."""
    place = RUN.place
    return ForeignValueError(
        what=f"the store of the run holds something under the key {key!r} that no rank of this "
        "run wrote",
        where=f'rank {RUN.launch.rank} in phase "{place.phase}" at step {place.step}; the store '
        f"is at {RUN.launch.master_addr}:{RUN.launch.master_port}",
        expected="that only the ranks of this run write into its store",
        do="end other runs with this MASTER_PORT, or choose another port; without another run, "
        "somebody else reaches the port: docs/ddp_reference.md says how to close it. The same "
        "command resumes the run",
    )


# ---- Types and ranges ------------------------------------------------------------------------


def _table(key: str, value: str | bytes) -> dict[str, Any]:
    """Return a value of the store as a table. Raises ForeignValueError if it is not a table."""
    try:
        table = json.loads(unseal(key, value))
    except (ValueError, RecursionError) as e:  # RecursionError: brackets are nested too deep
        raise foreign_value(key) from e
    if not isinstance(table, dict):
        raise foreign_value(key)
    return table


def _count(value: Any) -> int:
    """Return a number from 0 to 2**63 - 1, which fits 64 bits. Raises ValueError otherwise."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no count")
    return value


def _seconds(value: Any) -> float:
    """Return finite seconds. Raises ValueError for anything else."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{value!r} are no seconds")
    return float(value)


def _text(value: Any) -> str:
    """Return a text. Raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _facts(value: Any) -> dict[str, Any]:
    """Return the facts of a beat, with printable texts.

    Texts within a list stay as they are, so a reader of such a fact calls `printable_text` itself.
    Raises TypeError or ValueError if `value` is no table.

    value: the table of facts in a beat, e.g. {"device": "cuda:0", "samples": 37}.
    """
    facts = {}
    for name, fact in dict(value).items():
        if isinstance(fact, str):
            fact = printable_text(fact)
        facts[printable_text(name)] = fact
    return facts
