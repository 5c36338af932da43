"""Write the report of a rank that stands still: where, since when, and what the other ranks do.

Free to change: the texts. docs/ddp_reference.md explains the table, and tests/faults/test_stalls.py
reads the table, so change them together.
"""

from utils.dist.beats import Beats, where
from utils.dist.store_values import State
from utils.dist.verdict import Verdict
from utils.errors import StallError


def text_of_stall(verdict: Verdict, stacks: str, beats: Beats) -> str:
    """Return the report: the error, a table of the last beat of every rank, and the stacks.

    docs/ddp_reference.md explains the columns of this table:

        rank  host              pid  step  seconds  collectives  phase
           0  gpu7             4711   120      0.4         2211  all_reduce in backward

    verdict: which rank stands still, and how.
    stacks: the stacks of this rank, or "" if there are none.
    beats: the beats that the reporting rank has read. A beat is the state of a rank, which the rank
        writes into the store every half second.
    """
    lines = [str(_stall_error(verdict, stacks, beats)), ""]
    lines.append("rank  host              pid  step  seconds  collectives  phase")
    now = beats.clock.now()
    for other, state in sorted(beats.states.items()):
        lines.append(_row_of_table(other, state, now, beats))
    if stacks:
        lines.append(f"\nStacks of rank {verdict.rank}:")
        lines.append(stacks)
    lines.append("")
    return "\n".join(lines)


def _row_of_table(rank: int, state: State, now: float, beats: Beats) -> str:
    """Return the row of a rank in the table of `text_of_stall`.

    The cells are as wide as the columns of the line of titles in `text_of_stall`, so change both
    together.

    state: the last beat of the rank.
    now: present time, on the clock of the beats.
    """
    # `age` is how long the phase had lasted when the rank wrote its last beat. For a watched rank,
    # `heard` has the time of this beat. Then add the seconds since the beat.
    age = state["age"]
    if rank in beats.heard:
        age += now - beats.heard[rank].when
    # ">4" fills a cell to four characters and puts the text to its right end; "<12" fills it to
    # twelve, with the text at the left.
    host = f"{rank:>4}  {state['host'][:12]:<12}"
    numbers = f"{state['pid']:>8} {state['step']:>5} {age:>8.1f} {state['syncs']:>12}"
    return f"{host} {numbers}  {state['phase']}"


def _stall_error(verdict: Verdict, stacks: str, beats: Beats) -> StallError:
    """Return the error that names the rank, its phase and its host.

    Its first line is e.g. 'rank 3 is STUCK: 312.4 s in phase "forward" at step 120', or 'rank 3
    is SILENT: no beat for 9.1 s; last seen in phase "forward" at step 120'.

    verdict: which rank stands still, and how.
    stacks: the stacks of the rank, or "" if there are none. The advice depends on this.
    beats: the beats that this rank has read.
    """
    last_state = beats.states[verdict.rank]  # the last beat of the rank
    # A STUCK rank is still in its phase. A DEAD or SILENT rank may have left the phase after its
    # last beat, so the text says only that the rank was last seen there.
    if verdict.kind == "DEAD":
        link = "; last seen in"
        expected = "all ranks alive"
    elif verdict.kind == "SILENT":
        link = "; last seen in"
        expected = (
            "a beat of every rank each half second, and no silence longer than watchdog.stall_s"
        )
    else:  # STUCK
        link = " in"
        expected = f"a new phase within {last_state['budget']:.0f} s (options watchdog.*)"
    if stacks:
        do = "see its stack below"
    else:
        do = "look for the out-of-memory killer or a signal on that host"
    return StallError(
        what=f"rank {verdict.rank} is {verdict.kind}: {verdict.what}{link} {where(last_state)}",
        where=f"host {last_state['host']}, pid {last_state['pid']}",
        expected=expected,
        do=do,
    )
