"""Read the command line of main_test_vrt.py into a frozen `TestRequest`.

A value may come from four sources. The first source that gives it wins:

    1  the command line
    2  the option file
    3  the weights file: it describes its network and the spikes of its training. For a published
       file, the tiles of its authors are known, and are used
    4  the dataset.json beside the spikes

There are two forms of a command line: the user's own clips (--input), or the clips of an option
file (--opt, datasets.test). `read_request` returns a `TestRequest`, which main_test_vrt.py turns
into clips and a network. E.g. `--input a.mp4 --spike b.dat --output out --tile 12,256`.

A new flag needs three things: a line in flags.py, a field of `TestRequest` or `TileRequest`, and a
line in `read_request`. If it excludes other flags, it also needs a refusal (refused_flags.py).

What must stay: the order of the four sources (test_weights_on_the_command_line_come_first).

Tests: tests/stories/test_main_test.py, test_bad_input.py, tests/parts/utils/test_results.py
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.restore.flags import JOINT, options_before_lists, parser_of_tests
from models.restore.refused_flags import refuse_contradictions
from utils.errors import OptionError
from utils.options.foreign_flags import (
    check_launch_flags,
    refuse_kair_test_flags,
)
from utils.options.override import apply_override
from utils.options.sources import Sources

# The weights for a user's clip, unless the command line names weights or a method.
SHIPPED_WEIGHTS = Path(__file__).resolve().parents[2] / "weights/motion.pth"


@dataclass(frozen=True)
class TileRequest:
    """Flags that change how a clip is cut into tiles, see `models.restore.tiles.plan.Tiling`.

    None: as the section `val` of the option file says, or the tiles that fit the weights. A bool is
    False if the flag is missing.
    """

    # "auto", or (frames, side in pixels) of a tile, e.g. (12, 256). A 0 is the whole clip or frame.
    tile: str | tuple[int, int] | None
    # (frames, pixels) that neighbouring tiles share, e.g. (2, 20).
    overlap: tuple[int, int] | None
    # Number of tiles that go through the network at once.
    batch_tiles: int | None
    # "kair" or "smooth": how tiles are blended where they overlap.
    blend: str | None
    # Whether the result is averaged with the result of the time-reversed clip.
    flip_seq: bool
    # Whether the last frame is repeated once before restoring. The result of this copy is dropped.
    pad_seq: bool
    # Whether only the middle frame of a clip is restored.
    center_frame_only: bool


@dataclass(frozen=True)
class TestRequest:
    """The values of a command line. Paths are as the user gave them.

    None: the flag is missing, and has no default.
    """

    # The option file. Without --input, the clips are the clips of its datasets.test.
    opt: str | None
    # The weights: a file, or the name of released weights such as "vrt/006".
    weights: str | None
    # Section `method` of a formula or of the joint solution, e.g. {"type": "joint", "groups": 8}.
    # None if a network alone restores the frames.
    method: dict[str, Any] | None
    # The user's own clips: blurry frames, spikes, sharp frames. Each is a file or a folder.
    input: str | None
    spike: str | None
    gt: str | None
    # (height, width) of a spike plane.
    spike_size: tuple[int, int] | None
    # How the network is applied. sigma is a noise level in 0..255 for a denoiser.
    tiles: TileRequest
    dtype: str
    sigma: float | None
    # The folder of the results.
    output: str | None
    # What is saved, e.g. ("frames", "comparison"). () is the default, which depends on the
    # input: see --save in `parser_of_tests`.
    save: tuple[str, ...]
    # Frames per second of a video that is made from single frames.
    fps: float
    # Files of the weights of LPIPS. () without LPIPS.
    lpips: tuple[str, ...]
    # Whether results of earlier tests in the output folder are removed, see outputs.claim_folder.
    overwrite: bool
    # "section.key=value" for the option file. For the user's own clips: "spike.key=value".
    overrides: tuple[str, ...]

    @property
    def method_name(self) -> str | None:
        """Return the name after --method, e.g. "tfp". Returns None without --method."""
        return self.method["type"] if self.method is not None else None

    @property
    def is_joint(self) -> bool:
        """Say whether --method joint was given."""
        return self.method_name == JOINT

    @property
    def is_of_own_clips(self) -> bool:
        """Say whether the clips are the user's own, and not the clips of datasets.test."""
        if self.input is not None:
            return True
        # The formulas of --method need no frames, so --spike may be the only input.
        return self.method is not None and self.opt is None

    @property
    def needs_weights(self) -> bool:
        """Say whether a network is needed: for the frames, or for the estimates of --method joint.

        The joint solution improves first estimates. They come from a formula, or from a network if
        --weights was given.
        """
        if self.method is None:
            return True
        return self.is_joint and self.weights is not None


def read_request(argv: Sequence[str], description: str | None) -> TestRequest:
    """Read the command line of main_test_vrt.py. description: the text of --help.

    Raises OptionError for unknown flags, wrong values and flags that exclude each other. If there
    are several errors, the user sees the first one in the order of the lines below.
    """
    parser = parser_of_tests(description)
    # Refuse the flags of KAIR's test program first, with the command of this program that does the
    # same. argparse would only say that they are unknown.
    refuse_kair_test_flags(argv)
    # "Intermixed" means that key=value may be given between flags. After a flag with a list,
    # argparse would still take key=value as an entry of the list, so we move it to the front.
    args = parser.parse_intermixed_args(options_before_lists(argv))
    # --local-rank, --launcher and --dist, which old launch scripts give, must agree with what
    # torchrun or srun says in the environment.
    check_launch_flags(args)
    # The flags that the user gave, e.g. {"spike_size"}: their values differ from the defaults. This
    # must come before `args.weights` gets the shipped weights below.
    given_keys = {key for key, value in vars(args).items() if value != parser.get_default(key)}

    tiles = _tile_request(args)
    # A user's clip is restored with the shipped weights if no flag says what restores it. From here
    # on, args.weights is what --weights would have said.
    says_what_restores = args.method or args.opt or args.weights
    if args.input and not says_what_restores:
        args.weights = str(SHIPPED_WEIGHTS)
    refuse_contradictions(args, given_keys)

    of_method, of_option_file = _split_overrides(args)
    method = None if args.method is None else _method_section(args.method, of_method)
    return TestRequest(
        opt=args.opt,
        weights=args.weights,
        method=method,
        input=args.input,
        spike=args.spike,
        gt=args.gt,
        spike_size=tuple(args.spike_size) if args.spike_size else None,
        tiles=tiles,
        dtype=args.dtype,
        sigma=args.sigma,
        output=args.output,
        save=tuple(args.save or ()),
        fps=args.fps,
        lpips=tuple(args.lpips or ()),
        overwrite=args.overwrite,
        overrides=tuple(of_option_file),
    )


def _tile_request(args: Namespace) -> TileRequest:
    """Return the flags of tiles. Raises OptionError if --tile or --overlap is not two numbers."""
    # --tile is "auto" or two numbers, e.g. "12,256". --overlap is two numbers.
    tile = "auto" if args.tile == "auto" else _two_numbers("tile", args.tile)
    overlap = _two_numbers("overlap", args.overlap)
    return TileRequest(
        tile=tile,
        overlap=overlap,
        batch_tiles=args.batch_tiles,
        blend=args.blend,
        flip_seq=args.flip_seq,
        pad_seq=args.pad_seq,
        center_frame_only=args.center_frame_only,
    )


def _split_overrides(args: Namespace) -> tuple[list[str], list[str]]:
    """Return the overrides of the section `method`, and the overrides of the option file.

    E.g. with --method joint: method.groups=8 spike.rate=0.4 -> ["method.groups=8"],
    ["spike.rate=0.4"]. Without --method, all belong to the option file, which refuses the
    unknown key "method.groups".
    """
    of_method = []
    of_option_file = []
    for override in args.overrides or []:
        if args.method is not None and override.startswith("method."):
            of_method.append(override)
        else:
            of_option_file.append(override)
    return of_method, of_option_file


def _two_numbers(key: str, text: str | None) -> tuple[int, int] | None:
    """Return the two numbers of --key, e.g. "12,256" -> (12, 256).

    Returns None if the flag was not given, or was given with an empty text. Raises OptionError for
    any other text, e.g. "12" or "12,-1".
    """
    if not text:
        return None
    numbers = text.split(",")
    are_all_digits = all(number.strip().isdecimal() for number in numbers)
    if len(numbers) != 2 or not are_all_digits:
        raise OptionError(
            what=f"--{key} is {text}",
            where=f"--{key}",
            expected="two numbers: frames,pixels, e.g. 12,256",
            do=f"correct --{key}",
        )
    first, second = numbers
    return int(first), int(second)


def _method_section(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the section `method`: the name, and the values of "method.key=value".

    E.g. "joint", ["method.groups=8"] -> {"type": "joint", "groups": 8}.
    """
    # `apply_override` changes a table of sections in place, as an option file has it. So put the
    # section into a table.
    table: dict[str, Any] = {"method": {"type": name}}
    for override in overrides:
        if override.startswith("method.type="):
            raise OptionError(
                what=f"{override} with --method {name}",
                where="the command line",
                expected="the name of the method once",
                do="give the name with --method alone",
            )
        # The errors of `apply_override` name the option file. There is no option file here, so the
        # name is empty.
        apply_override(table, override, Sources(""))
    return table["method"]
