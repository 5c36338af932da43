"""The command line of main_test_vrt.py, which has two forms."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.restore.outputs import VIDEOS
from models.restore.restorer import DTYPES
from utils.errors import OptionError
from utils.files import refuse_overlap
from utils.options.section import redact


@dataclass(frozen=True)
class TestArgs:
    """The values of the command line, paths as given. None or empty: the default of the form."""

    __test__ = False  # pytest would collect a class of this name

    opt: str | None
    method: str | None
    weights: str | None
    input: str | None
    output: str | None
    spike: str | None
    spike_size: tuple[int, ...]
    gt: str | None
    tile: tuple[int, int] | str | None
    overlap: tuple[int, int] | None
    batch_tiles: int | None
    blend: str | None
    flip_seq: bool
    pad_seq: bool
    center_frame_only: bool
    dtype: str
    sigma: float | None
    save: tuple[str, ...]
    fps: float
    lpips: tuple[str, ...]
    overwrite: bool
    overrides: tuple[str, ...]

    @property
    def is_direct(self) -> bool:
        return self.input is not None or (self.method is not None and self.opt is None)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # argparse would print usage and exit, once on every rank
        what, expected = redact(message, shown="***"), "one of the two forms in --help"
        raise OptionError(what, "the command line", expected, "see --help, docs/testing.md")


def parse_test_args(argv: Sequence[str], description: str) -> TestArgs:
    """Raises OptionError for unknown flags, wrong values and flags that exclude each other."""
    parser = _Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--opt", metavar="FILE", help="option file: tests on datasets.test; with --input: names the network")
    add("--method", metavar="NAME", help="a reconstruction without weights: tfp, tfi, tfstp or exposure")
    add("--weights", metavar="FILE", help="weights or checkpoint (with --opt: default is the run's best checkpoint)")
    add("--input", metavar="PATH", help="video, folder of frames, or folder of either")
    add("--output", metavar="DIR", help="where results go (with --opt: default experiments/<task>/test)")
    add("--spike", metavar="PATH", help="spike file of the whole clip, or folder with one per frame")
    add("--spike-size", nargs=2, type=int, metavar=("H", "W"), help="size of a spike plane")
    add("--gt", metavar="PATH", help="sharp frames or video, to score against")
    add("--tile", metavar="auto|T,P", help="frames and side of a tile; 0 = the whole; auto: halves on out of memory")
    add("--overlap", metavar="T,P", help="frames and pixels that neighbouring tiles share (default 2,20)")
    add("--batch-tiles", type=int, metavar="N", help="tiles through the network at once (val.batch_tiles)")
    add("--blend", choices=("kair", "smooth"), help="blending of tiles (default smooth; with --opt kair, as published)")
    add("--flip-seq", action="store_true", help="average with the time-reversed clip (val.flip_seq)")
    add("--pad-seq", action="store_true", help="repeat the last frame once (val.pad_seq)")
    add("--center-frame-only", action="store_true", help="only the middle frame (val.center_frame_only)")
    add("--dtype", choices=DTYPES, default="float32", help="precision of the network (default float32)")
    add("--sigma", type=float, help="noise level 0..255 for a non-blind denoiser")
    add(
        "--save",
        nargs="+",
        choices=("frames", *VIDEOS),
        help="what to save (default: frames or video like --input, comparison; slowmotion with several instants)",
    )
    add("--fps", type=float, default=25.0, help="frame rate of videos made from frames (default 25)")
    add("--lpips", nargs="+", metavar="FILE", help="AlexNet and LPIPS weights: adds LPIPS")
    add("--overwrite", action="store_true", help="remove the results that this program made in the output folder")
    add(
        "overrides",
        nargs="*",
        metavar="section.key=value",
        help="any option (with --input: spike.key=value); of a --method: method.key=value",
    )
    values = vars(parser.parse_intermixed_args(_with_ended_lists(argv)))
    for key in ("overrides", "lpips", "save", "spike_size"):
        values[key] = tuple(values[key] or ())
    for key in ("tile", "overlap"):
        if values[key] and (key, values[key]) != ("tile", "auto"):
            values[key] = _pair(values[key], f"--{key}")
    args = TestArgs(**values)
    _check(args)
    return args


def _with_ended_lists(argv: Sequence[str]) -> list[str]:
    """`argv` with the options key=value that follow --save or --lpips at the front: they are no part of the list."""
    front, rest, is_list = [], [], False
    for argument in argv:
        is_list = argument in ("--save", "--lpips") if argument.startswith("--") else is_list
        (front if is_list and "=" in argument else rest).append(argument)
    return [*front, *rest]


def _pair(text: str, flag: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(p.strip().isdigit() for p in parts):
        raise OptionError(f"{flag} is {text}", flag, "two numbers: frames,pixels, e.g. 12,256", f"correct {flag}")
    return int(parts[0]), int(parts[1])


def _check(args: TestArgs) -> None:
    if args.method:
        _check_method(args)
    if not args.is_direct and args.opt is None:
        raise OptionError(
            "nothing to restore", "the command line", "--opt FILE, or --weights FILE --input PATH --output DIR",
            "see --help",
        )  # fmt: skip
    if args.is_direct:
        needed = ("spike", "output") if args.method else ("weights", "output")
        missing = [f"--{key}" for key in needed if getattr(args, key) is None]
        if missing:
            together = "--spike and --output" if args.method else "--weights, --input and --output"
            raise OptionError(
                f"{' and '.join(missing)} missing", "the command line", f"{together} together", "add them"
            )
        refuse_overlap(Path(args.output), {f"--{key}": getattr(args, key) for key in ("input", "gt", "spike")})
        if args.spike_size and not args.spike:
            raise OptionError("--spike-size without --spike", "--spike-size", "both", "add --spike, or drop it")
        return
    alone = [f"--{key}" for key in ("spike", "gt", "sigma") if getattr(args, key) is not None]
    if alone:
        raise OptionError(
            f"{', '.join(alone)} without --input", "the command line", "the dataset section says where they are",
            "set datasets.test in the option file, or use the direct form with --input",
        )  # fmt: skip


def _check_method(args: TestArgs) -> None:
    """Raises OptionError, naming all of them, for flags that only a network has."""
    wrong = ("weights", "sigma", "tile", "overlap", "batch_tiles", "blend")
    given = [key for key in wrong if getattr(args, key) is not None]
    given += [key for key in ("flip_seq", "pad_seq") if getattr(args, key)]
    given += ["dtype"] if args.dtype != "float32" else []
    if args.opt and args.input:
        given.append("opt")
    if given:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in given)
        raise OptionError(
            f"{flags} with --method {args.method}" + (" --input" if "opt" in given else ""), "the command line",
            "--method NAME with --opt FILE, or with --spike PATH [--input PATH] --output DIR",
            "a method has no network: remove these flags",
        )  # fmt: skip
