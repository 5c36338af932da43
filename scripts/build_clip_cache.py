#!/usr/bin/env python3
"""Write the clips of an option file as raw arrays: the clip cache.

Training reads only the crops that it needs from the arrays, and decodes no pictures.

    python scripts/build_clip_cache.py --opt FILE --out /fast/disk/train
    python scripts/build_clip_cache.py --opt FILE --split test --out /fast/disk/test

Afterwards set  "io_backend": {"type": "cache", "path": DIR}  in the section datasets.train (or
datasets.test). If the source has changed since, a run refuses the cache: then build it again. After
an interruption, the same command continues.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

# Python finds the packages of the repository, e.g. `utils`, by this path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.clips.cache_builder import build_cache
from scripts.parts.exit_codes import with_exit_code, with_progress
from utils.errors import OptionError
from utils.options.load import load_options
from utils.words import counted

# data/clips/cache_builder.py writes the cache, and data/clips/clip_cache.py reads it.
# tests/stories/test_extending.py builds a cache of each split, trains on one and tests on the
# other.
# Free to change: the printed texts.


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    """Build the cache, and print what to set. Returns 0. `with_exit_code` handles errors."""
    command = parse(arguments)
    # PARTS has the networks, data sets and losses that options may name. Imported here, so that
    # --help does not wait for torch.
    from main_train_vrt import PARTS

    opt = load_options(command.opt, command.overrides, parts=PARTS)
    section = getattr(opt.datasets, command.split)
    if section is None:
        raise OptionError(
            what=f"datasets.{command.split} is empty",
            where=command.opt,
            expected="a section to build a cache of",
            do="choose another split",
        )

    def with_cache_progress(clips: Sequence[Any]) -> Iterable[Any]:
        """Return the clips, and show on the terminal how many are done."""
        return with_progress(clips, len(clips), f"cache {command.split}", "clips")

    # A `Source` is a data root, e.g. a folder of clips. `section.constructor` is the class of the
    # data set, which finds the sources of the split. With several sources, `name_prefix` is "0/",
    # "1/", ... Then the cache has a folder for each source, and a clip has a name such as
    # "0/clip_a".
    clips = []
    for source in section.constructor.sources_of(section):
        folder = Path(command.out, source.name_prefix)
        clips += build_cache(source, str(folder), with_cache_progress)

    files = [file for file in Path(command.out).rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    print(f"{counted(len(clips), 'clip')}, {size / 1e9:.2f} GB in {command.out}")
    print(
        f'now set in datasets.{command.split}:  "io_backend": {{"type": "cache", "path": '
        f'"{command.out}"}}'
    )
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line as opt, split, out and overrides."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--opt", required=True, help="option file")
    parser.add_argument("--split", choices=("train", "test"), default="train")
    parser.add_argument(
        "--out",
        required=True,
        help="folder of the cache. An older cache is replaced when the new cache is complete",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
