#!/usr/bin/env python3
"""Measure time and memory of the network and of the data. Prints tables.

    python lab/benchmark.py net --quick
    python lab/benchmark.py train --config 006 --crop 64 --against naive --threads 1 \\
        --json train.json
    python lab/benchmark.py data --crop 128 --repeats 20
    python lab/benchmark.py start --clips 4000

net: measures the restoration of one clip.
train: measures one training step.
data: measures how training samples are read, from clips of GoPro size (1280 x 720). The samples are
    read from picture and spike files, and from the clip cache. The cache has the same clips as raw
    arrays.
start: measures the first and the second start of a training on a large data set.

--json FILE also writes the numbers to a new file. docs/benchmarks has the results.

The modules of lab/speed/ have the commands: network.py has net and train, samples.py has data, and
starts.py has start.

What must stay: the keys of the numbers, because the files in docs/benchmarks have them. Free to
change: sizes, repeats and the form of the tables.
test_the_benchmark_compares_with_the_naive_network runs net and train. No test runs data and start,
so try them after a change.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from lab.speed.network import DTYPES, run_network
from lab.speed.samples import run_data
from lab.speed.starts import run_start
from lab.tools import NAMED, environment


def main(argv: list[str]) -> int:
    """Run one command. Returns the exit code 0. Fails if the file of --json already exists."""
    args = parse(argv)
    assert not (args.json and args.json.exists()), f"{args.json} exists already"

    if args.command == "data":
        numbers = run_data(args)
    elif args.command == "start":
        numbers = run_start(args)
    else:
        numbers = run_network(args)

    if args.json:
        content = {"command": " ".join(argv), **environment(), **numbers}
        args.json.write_text(json.dumps(content, indent=2) + "\n")
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the arguments of the command line. `command` is net, train, data or start."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    json_help = "write the numbers to this new file"

    add = commands.add_parser("start").add_argument
    add("--clips", type=int, default=500, help="number of clips of 8 frames, default 500")
    add("--folder", type=Path, help="where the set is made, and removed (default: a temporary one)")
    add("--json", type=Path, help=json_help)

    add = commands.add_parser("data").add_argument
    add("--frames", type=int, default=6, help="frames of a sample, default 6")
    add("--repeats", type=int, default=10, help="measured samples of each way, default 10")
    add("--json", type=Path, help=json_help)
    add("--crop", type=int, default=192, help="side of the crop, in RGB pixels")
    add("--clips", type=int, default=2, help="clips of the data set, default 2")

    for name in ("net", "train"):
        add = commands.add_parser(name).add_argument
        add("--frames", type=int, default=6, help="frames of a clip, default 6")
        add("--repeats", type=int, default=3, help="measured runs, default 3")
        add("--json", type=Path, help=json_help)
        add(
            "--config",
            default="006",
            help=f"network: {', '.join(NAMED)}, or an option file, whose checkpointing is kept",
        )
        add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        add("--dtype", choices=DTYPES, default="float32", help="of autocast; float32: no autocast")
        add("--crop", type=int, nargs="+", default=[64], help="side, or height and width")
        add("--batch", type=int, default=1, help="number of clips at once, default 1")
        add("--threads", type=int, help="CPU threads (default: all)")
        add("--checkpoint", action="store_true", help="activation checkpointing of every block")
        add(
            "--against",
            choices=["naive"],
            help="also run the unoptimised tests/helpers/naive_vrt.py",
        )
        add("--quick", action="store_true", help="the small network on 2 x 32 x 32, once")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
