#!/usr/bin/env python3
"""The first minutes on a new GPU: what is right, how fast it is, and what each figure decides.

    python scripts/gpu_check.py all --out gpu_report
    python scripts/gpu_check.py check --out gpu_report
    python scripts/gpu_check.py step --out gpu_report --budget-s 300

check: ceilings of the device, back ends of SDPA, results against float64, waits. kernels: attention, LayerNorm and
deformable convolution alone; notes which kernels netG.kernels "auto" takes on this machine. step: seconds and memory of
a training step. profile: where its time goes. infer: 1280 x 720, and short trainings in each precision.

A failure is noted and the next measurement begins; a fault of the GPU ends one process, not the check. DIR gets
gpu_check.json after every measurement and gpu_check.md, which begins with what the figures decide. Parts of earlier
runs in DIR stay. Without a GPU the sizes are tiny, and the report says so. Exit code 1: a measurement failed.
docs/gpu.md says what is expected.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.exit_codes import with_exit_code
from utils.errors import DataError
from utils.files import Made, writing

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("check", "kernels", "step", "profile", "infer")
BUDGET_S = 480.0
# What a measurement may take beyond the budget of its part before its process is ended: 8 minutes become less than 9.
OVERTIME = 1.1
# Forked, not started anew: torch is imported once. CUDA must not have begun in this process, so it asks it nothing.
FORK = multiprocessing.get_context("fork")
LOST = ("error", "out of memory", "skipped")  # why a result has no figures
JSON, PAGE = "gpu_check.json", "gpu_check.md"


@with_exit_code
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=(*PARTS, "all"))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the report")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: the GPU, if torch finds one")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="seconds of each part (default %(default)g)")
    args = parser.parse_args(argv)
    report = Report(args.out, " ".join(argv))  # before torch is imported: what is refused is refused at once

    from scripts.gpu_check_bare import stand_in_for_pydantic

    stand_in_for_pydantic()
    from scripts.gpu_check_worker import machine

    found = in_process(machine, args.device)
    report.begin(found)
    for part in PARTS if args.part == "all" else (args.part,):
        run_part(report, part, found["device"], args.budget_s)
    print(report.page())
    print(f"written to {args.out / JSON} and {args.out / PAGE}; send both (docs/gpu.md)")
    return int(report.has_errors())


class Report:
    """The results so far, in DIR/gpu_check.json and gpu_check.md after each measurement."""

    def __init__(self, folder: Path, command: str) -> None:
        """Raises DataError where files of these names are not ours."""
        self.made, self.command = Made(folder), command
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.made.check([folder / JSON, folder / PAGE])
        before = folder / JSON
        self.contents = json.loads(before.read_bytes()) if before.exists() else {"parts": {}}

    def begin(self, machine: dict[str, Any]) -> None:
        """Results of another machine do not belong in the same report: DataError."""
        known = self.contents.get("machine")
        if known is not None and (known["device"], known["gpu"]) != (machine["device"], machine["gpu"]):
            raise DataError(
                "the folder has the report of another machine", str(self.made.folder),
                f"a report of {machine['gpu'] or machine['cpu']}, or an empty folder", "choose another folder",
            )  # fmt: skip
        self.contents |= {"command": self.command, "machine": machine, "date": time.strftime("%Y-%m-%d %H:%M")}

    def begin_part(self, part: str) -> dict[str, dict[str, Any]]:
        """An empty table for the results of a part, in the place of earlier ones."""
        self.contents["parts"][part] = {}
        return self.contents["parts"][part]

    def save(self) -> None:
        for name, text in ((JSON, json.dumps(self.contents, indent=1) + "\n"), (PAGE, self.page())):
            # The report is sent to others: where the project lies, and whose home that is, does not concern them.
            text = text.replace(str(ROOT), ".").replace(os.path.expanduser("~"), "~")
            self.made.write(self.made.folder / name, text.encode())

    def page(self) -> str:
        from scripts.gpu_check_report import page

        return page(self.contents)

    def has_errors(self) -> bool:
        return any("error" in result for part in self.contents["parts"].values() for result in part.values())


def run_part(report: Report, part: str, device: str, budget_s: float) -> None:
    """Every measurement of a part. After a process that died, another one goes on with the next measurement."""
    from scripts.gpu_check_worker import names, work

    found = report.begin_part(part)
    begin, todo = time.monotonic(), names(part, device)

    def note(name: str, result: dict[str, Any]) -> None:
        found[name] = result
        todo.remove(name)
        report.save()
        text = next((result[key] for key in LOST if key in result), None) or f"{result['took_s']:.1f} s"
        print(f"{part}: {name}: {text}", flush=True)

    while todo:
        left = budget_s - (time.monotonic() - begin)
        if left <= 0:
            for name in list(todo):
                note(name, {"skipped": f"the {budget_s:g} s of this part were spent"})
            return
        ours, theirs = FORK.Pipe(duplex=False)
        process = FORK.Process(target=work, args=(theirs, part, list(todo), device, dict(found), left))
        process.start()
        theirs.close()
        end = begin + budget_s * OVERTIME
        follow(ours, process, end, note)
        if process.exitcode != 0 and todo:
            note(todo[0], {"error": f"its process {ended(process)}"})


def follow(pipe: Connection, process: Any, end: float, note: Callable[[str, dict[str, Any]], None]) -> None:
    """Pass the results of a process on until it has ended, or the time has come: then it is killed."""
    try:
        while pipe.poll(max(0.0, end - time.monotonic())):
            note(*pipe.recv())
        process.kill()
    except (EOFError, OSError):
        pass
    process.join()


def ended(process: Any) -> str:
    """How a process died, in words."""
    if process.exitcode == -signal.SIGKILL:
        return "was killed: the time of this part was over, or memory was short"
    if process.exitcode < 0:
        return f"died of {signal.Signals(-process.exitcode).name}"
    return f"ended with exit code {process.exitcode}"


def in_process(function: Any, *arguments: Any) -> Any:
    """The result of a function that may begin CUDA, which must not begin in this process."""
    ours, theirs = FORK.Pipe(duplex=False)

    def send() -> None:
        theirs.send(function(*arguments))

    process = FORK.Process(target=send)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        process.join()
        raise DataError(
            f"the process that looks at the device {ended(process)}", "torch", "a device that torch can use",
            "python scripts/doctor.py, or --device cpu",
        ) from None  # fmt: skip
    finally:
        process.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
