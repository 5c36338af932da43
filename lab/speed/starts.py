"""The command `start` measures how long the start of a training on many clips takes.

lab/large_set.py makes the set and starts the training. The training ends after a few steps of a
tiny network.

What must stay: the keys of the numbers, because docs/benchmarks has them. No test runs this
command: try it after a change. Free to change: the form of the table.
"""

import argparse
from typing import Any

from lab import large_set
from utils.results import markdown_table as table


def run_start(args: argparse.Namespace) -> dict[str, Any]:
    """Measure a first start of a training on many clips, and a second one. Prints a table, e.g.

        | start | s   | CPU s | GB   | states a file | opens a file | lists a file | s more ... |
        | first | 9.1 | 12.0  | 0.70 | 1.333         | 1.100        | 0.125        | 11.0       |
        | again | 6.2 | 8.0   | 0.65 | 0.180         | 0.010        | 0.002        | 0.5        |

    These numbers are examples, not measured. The last four columns exist only if strace is
    installed:

        states a file              how often the start asks for the state of a file, divided by the
                                   number of files in the set
        opens a file               how often the start opens a file, divided by this number
        lists a file               how often the start lists a folder, divided by this number
        s more at 0.5 ms a call    the time that the start spends on the files of the set if each
                                   call to the file system takes 0.5 ms longer, as over a network
    """
    # A start on two clips costs little more than the imports of Python modules. So the calls of
    # this start are nearly the calls of the imports, and are subtracted below.
    costs_of_two_clips = large_set.costs(2, args.folder)
    costs_of_starts = large_set.costs(args.clips, args.folder)
    for name, costs in costs_of_starts.items():  # "first", "again"
        _subtract_imports(costs, costs_of_two_clips[name])
    files = args.clips * large_set.FILES_OF_CLIP

    heads = ["start", "s", "CPU s", "GB"]
    heads += [f"{kind} a file" for kind in large_set.CALLS]
    heads += ["s more at 0.5 ms a call"]
    rows = [_row(name, costs, files) for name, costs in costs_of_starts.items()]
    columns = len(rows[0])  # without strace only the first four
    print(f"\n{args.clips} clips, {files} files")
    print(table(rows, heads[:columns]))
    return {"clips": args.clips, "files": files, "starts": costs_of_starts}


def _subtract_imports(costs: dict[str, float], costs_of_two_clips: dict[str, float]) -> None:
    """Subtract the costs of the imports from the calls and the slow seconds. Changes `costs`.

    After this, only the calls for the files of the set are left. The other costs, e.g. "seconds",
    stay as they are. Without strace there are no calls and no slow seconds, so nothing is
    subtracted.

    costs: the costs of one start, as `large_set.costs` returns them.
    costs_of_two_clips: the costs of the same start on two clips, which are mostly costs of imports.
    """
    for key in (*large_set.CALLS, "slow_seconds"):
        if key in costs:
            costs[key] -= costs_of_two_clips[key]


def _row(name: str, costs: dict[str, float], files: int) -> list[str]:
    """Return the row of a start. files: number of files of the set."""
    row = [name, f"{costs['seconds']:.1f}", f"{costs['cpu_seconds']:.1f}", f"{costs['gb']:.2f}"]
    for kind in large_set.CALLS:
        if kind in costs:
            row.append(f"{costs[kind] / files:.3f}")
    if "slow_seconds" in costs:
        row.append(f"{costs['slow_seconds']:.1f}")
    return row
