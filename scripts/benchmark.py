#!/usr/bin/env python3
"""Benchmarks: python scripts/benchmark.py net|train|data|threads|... [--help]. Prints tables; --json FILE writes JSON.

A module scripts/benchmark_<name>.py adds subcommands in a dict SUBCOMMANDS: name -> (help, add_arguments(parser),
run(args) -> dict). `run` prints its tables and returns the contents of the JSON file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.benchmark_tools import environment
from scripts.exit_codes import with_exit_code
from utils.files import refuse_existing, write_whole


@with_exit_code
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for path in sorted(Path(__file__).parent.glob("benchmark_*.py")):
        module = importlib.import_module(f"scripts.{path.stem}")
        for name, (text, add_arguments, run) in getattr(module, "SUBCOMMANDS", {}).items():
            sub = commands.add_parser(name, help=text, description=text)
            add_arguments(sub)
            sub.add_argument("--json", type=Path, help="write the numbers to this file")
            sub.set_defaults(run=run)
    args = parser.parse_args(argv)
    if args.json:
        refuse_existing(args.json, "--json")
    numbers = args.run(args)
    result = {"command": " ".join(argv), **environment(), **numbers}
    if args.json:
        write_whole(args.json, (json.dumps(result, indent=2) + "\n").encode())
        print(f"written to {args.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
