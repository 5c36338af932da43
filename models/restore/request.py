"""Read the command line of main_test_vrt.py into a frozen `TestRequest`.

main_test_vrt.py takes the `TestRequest`, and passes its fields on. Only three files read the values
that argparse returns: this file, refused_flags.py and utils/options/foreign_flags.py. E.g.
`--input a.mp4 --spike b.dat --output out --tile 12,256` becomes

    own_files   OwnFiles(input="a.mp4", spike="b.dat", ...)
    network     NetworkFlags("weights/motion.pth", TileFlags(tile=(12, 256), ...), ...)
    results     ResultFlags(output="out", ...)

There are two forms of a command line:

    --input, or --spike with a --method    restores the user's own clips
    --opt                                  restores the clips datasets.test of an option file.
                                           Then own_files is None

What must stay: the field of a missing flag is None. The program then looks for the value elsewhere,
in this order: the option file, the weights file, the dataset.json next to the spike files
(test_weights_on_the_command_line_come_first).

Free to add: a flag. It needs a line in flags.py, a field in one of the classes below, and a line in
`read_request`. If it excludes other flags, it also needs a refusal (refused_flags.py).

Tests: tests/parts/utils/test_results.py, tests/stories/test_main_test.py, test_bad_input.py
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.restore.flags import JOINT, options_before_lists, parser_of_tests
from models.restore.refused_flags import refuse_contradictions
from utils.errors import OptionError
from utils.options.foreign_flags import check_launch_flags, refuse_kair_test_flags
from utils.options.override import apply_override
from utils.options.sources import Sources

# The weights for a user's clip, unless the command line names weights or a method. The help of
# --weights and of --method (flags.py) names the values of SHIPPED_WEIGHTS and START_OF_JOINT, so
# change both files.
SHIPPED_WEIGHTS = Path(__file__).resolve().parents[2] / "weights/motion.pth"
# The formula whose frames the joint solution improves, unless --weights names a network.
START_OF_JOINT = "exposure"


# ---- What a command line asks for ------------------------------------------------------------
#
# A field is None if its flag is missing and has no default. Paths are as the user gave them.


@dataclass(frozen=True)
class TileFlags:
    """Flags that change how a clip is cut into tiles. network_method.py makes a `Tiling` of them.

    If a field is None, the value of the section `val` of the option file is taken. For a user's own
    clips, a value that fits the weights is taken. A bool is False if the flag is missing.
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
    # Whether only the middle frame of a clip is restored. A formula obeys this flag, too.
    center_frame_only: bool


@dataclass(frozen=True)
class NetworkFlags:
    """Flags that say which network restores, and how it is applied.

    network_method.py and own_spikes.py read these flags.
    """

    # A file of weights, or the name of released weights such as "vrt/006". The field is never None
    # if a network restores a user's own clips. If it is None for a test set, the weights of its run
    # are taken.
    weights: str | None
    tiles: TileFlags
    # "float32", "bfloat16" or "float16".
    dtype: str
    # Noise level in 0..255 for a denoiser.
    sigma: float | None


@dataclass(frozen=True)
class OwnFiles:
    """The user's own clips: blurry frames, spikes and sharp frames, each a file or a folder.

    data/own_clips.py opens the paths. own_spikes.py takes `spike_size` and `overrides`, and checks
    whether `spike` and `gt` are given.
    """

    input: str | None
    spike: str | None
    gt: str | None
    # (height, width) of a spike plane.
    spike_size: tuple[int, int] | None
    # "spike.key=value", which change how the spikes are read.
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class ResultFlags:
    """Flags that say what is written, and where: for an `Outputs` (outputs.py) and a `Job`."""

    # The folder of the results. The field is never None for a user's own clips.
    output: str | None
    # What is saved, e.g. ("frames", "comparison"). () if --save is not given. In this case the kind
    # of the input decides, e.g. a video is saved for a video.
    save: tuple[str, ...]
    # Frames per second of a video that is made from single frames.
    fps: float
    # Files of the weights of LPIPS, or () if LPIPS is not computed.
    lpips: tuple[str, ...]
    # Whether results of earlier tests in the output folder are removed.
    overwrite: bool


@dataclass(frozen=True)
class TestRequest:
    """The values of a command line."""

    # The option file, and its changes "section.key=value".
    opt: str | None
    overrides: tuple[str, ...]
    # What restores the frames, as sections of options, e.g. {"type": "joint", "groups": 8}.
    # `formula` computes frames from spikes directly. `joint` is the joint solution, which improves
    # the frames of a formula or of a network. Four cases:
    #
    #     command line                     formula    joint    what restores
    #     no --method                      None       None     a network
    #     --method tfp                     set        None     a formula of the spikes
    #     --method joint                   set        set      the joint solution, which begins with
    #                                                          the formula `exposure`
    #     --method joint --weights FILE    None       set      the joint solution, which begins with
    #                                                          a network
    formula: dict[str, Any] | None
    joint: dict[str, Any] | None
    # The name after --method, for titles and messages.
    method_name: str | None
    # The user's own clips. None if the clips datasets.test of the option file are restored.
    own_files: OwnFiles | None
    network: NetworkFlags
    results: ResultFlags


# ---- Reading ---------------------------------------------------------------------------------


def read_request(argv: Sequence[str], description: str | None) -> TestRequest:
    """Read the command line of main_test_vrt.py. description: the text of --help.

    Raises OptionError for unknown flags, wrong values and flags that exclude each other. If there
    are several errors, the user sees the first error in the order of the lines below.
    """
    parser = parser_of_tests(description)
    # argparse would only say that a flag of KAIR's test program is unknown. The error of this
    # function also gives the command of this program that does the same.
    refuse_kair_test_flags(argv)
    # "Intermixed" means that key=value may stand between flags. E.g. for
    # --weights W.pth --input street --output out, `args` is
    #
    #     Namespace(weights="W.pth", input="street", output="out", dtype="float32", fps=25.0,
    #               flip_seq=False, pad_seq=False, center_frame_only=False, overwrite=False,
    #               overrides=[], ...)
    #
    # All flags that are left out in this example are None.
    args = parser.parse_intermixed_args(options_before_lists(argv))
    check_launch_flags(args)  # old flags of launchers must agree with the environment

    # The flags that the user gave, e.g. {"spike_size"}: their values differ from the defaults.
    given_keys = {key for key, value in vars(args).items() if value != parser.get_default(key)}
    tiles = _tile_flags(args)
    # The shipped weights restore the user's clips if no flag says otherwise. Keep the order:
    #
    #     1. `given_keys`               the flags of the user, without the shipped weights
    #     2. set the shipped weights
    #     3. `refuse_contradictions`    refuses a user's clips without weights
    is_restorer_given = bool(args.method or args.opt or args.weights)
    if args.input and not is_restorer_given:
        args.weights = str(SHIPPED_WEIGHTS)
    is_of_own_clips = _is_of_own_clips(args)
    refuse_contradictions(args, given_keys, is_of_own_clips)

    overrides_of_method, other_overrides = _split_overrides(args)
    formula, joint = _sections_of_method(args, overrides_of_method)
    if is_of_own_clips:
        # The other overrides, "spike.key=value", change how the spikes of the clips are read.
        own_files = _own_files(args, other_overrides)
        overrides_of_file = ()
    else:
        own_files = None
        overrides_of_file = other_overrides
    return TestRequest(
        opt=args.opt,
        overrides=overrides_of_file,
        formula=formula,
        joint=joint,
        method_name=args.method,
        own_files=own_files,
        network=NetworkFlags(
            weights=args.weights,
            tiles=tiles,
            dtype=args.dtype,
            sigma=args.sigma,
        ),
        results=ResultFlags(
            output=args.output,
            save=tuple(args.save or ()),
            fps=args.fps,
            lpips=tuple(args.lpips or ()),
            overwrite=args.overwrite,
        ),
    )


def _is_of_own_clips(args: Namespace) -> bool:
    """Return True for the user's own clips, and False for the clips of an option file.

    The flags that are given decide:

        --input, also with other flags     the user's own clips
        --method without --opt             the user's own clips: a formula needs no frames, so
                                           --spike may be the only input
        --opt, with or without --method    datasets.test of the option file
    """
    is_method_without_file = args.method is not None and args.opt is None
    return args.input is not None or is_method_without_file


def _tile_flags(args: Namespace) -> TileFlags:
    """Return the flags of tiles.

    --tile is "auto" or two numbers, e.g. "12,256", and --overlap is two numbers. Raises OptionError
    for any other text.
    """
    tile = "auto" if args.tile == "auto" else _two_numbers("tile", args.tile)
    return TileFlags(
        tile=tile,
        overlap=_two_numbers("overlap", args.overlap),
        batch_tiles=args.batch_tiles,
        blend=args.blend,
        flip_seq=args.flip_seq,
        pad_seq=args.pad_seq,
        center_frame_only=args.center_frame_only,
    )


def _own_files(args: Namespace, overrides: tuple[str, ...]) -> OwnFiles:
    """Return the paths of the user's own clips, and the changes of their spike section."""
    spike_size = None
    if args.spike_size:
        height, width = args.spike_size
        spike_size = (height, width)
    return OwnFiles(
        input=args.input,
        spike=args.spike,
        gt=args.gt,
        spike_size=spike_size,
        overrides=overrides,
    )


def _split_overrides(args: Namespace) -> tuple[list[str], tuple[str, ...]]:
    """Return the overrides of the section `method`, and all other overrides.

    E.g. with --method joint, the overrides method.groups=8 spike.rate=0.4 are divided into
    ["method.groups=8"] and ("spike.rate=0.4",). Without --method, all overrides belong to the
    option file. In an option file, "method.groups" is refused as an unknown key.
    """
    overrides_of_method = []
    others = []
    for override in args.overrides or []:
        if args.method is not None and override.startswith("method."):
            overrides_of_method.append(override)
        else:
            others.append(override)
    return overrides_of_method, tuple(others)


def _sections_of_method(
    args: Namespace, overrides: Sequence[str]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the sections `formula` and `joint`. `TestRequest` has a table of the four cases.

    overrides: "method.key=value".
    """
    if args.method is None:
        return None, None
    section = _method_section(args.method, overrides)
    if args.method != JOINT:
        return section, None
    if args.weights is not None:  # the joint solution begins with the frames of a network
        return None, section
    return {"type": START_OF_JOINT}, section


def _method_section(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the section `method`: the name, and the values of "method.key=value".

    E.g. "joint", ["method.groups=8"] -> {"type": "joint", "groups": 8}.
    """
    # `table` has the form of a whole option file, because `apply_override` changes such a file, in
    # place.
    table: dict[str, Any] = {"method": {"type": name}}
    for override in overrides:
        if override.startswith("method.type="):
            raise OptionError(
                what=f"the command line has {override} with --method {name}",
                where="the command line",
                expected="the name of the method once",
                do="give the name only with --method",
            )
        apply_override(table, override, Sources(""))  # "": there is no option file
    return table["method"]


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
