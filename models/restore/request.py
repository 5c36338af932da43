"""What a command line of main_test_vrt.py asks for.

A value may come from four sources. The first source that gives it wins:

    1  the command line
    2  the option file
    3  the weights file: it describes its network and the spikes of its training. For a published
       file, the tiles of its authors are known, and are used
    4  the dataset.json beside the spikes

There are two forms of a command line: the user's own clips (--input), or the clips of an option
file (--opt, datasets.test). `read_request` returns a `TestRequest`, which main_test_vrt.py turns
into clips and a network. E.g. `--input a.mp4 --spike b.dat --output out --tile 12,256`.

Words: a formula (tfp, tfi, tfstp, exposure) computes a frame from spikes directly. The joint
solution solves equations of the blurry frame and its spikes. A network restores a clip in tiles of
few frames and few pixels.

A new flag needs three things: a line in one of the functions `_add_flags_of_...`, a field of
`TestRequest` or `TileRequest`, and a line in `read_request`. If it excludes other flags, it also
needs a refusal.

What must stay: the names of the flags, which users' scripts give. docs/testing.md has them, and
test_the_flags_in_the_pages_are_flags_of_the_programs compares. The order of the four sources must
stay, too (test_weights_on_the_command_line_come_first). Free to change: the texts.

Tests: tests/stories/test_main_test.py, test_bad_input.py, test_reconstruct.py
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.restore.outputs import VIDEOS
from utils import VERSION
from utils.arguments import frame_rate
from utils.errors import OptionError
from utils.files import refuse_overlap
from utils.options.foreign_flags import (
    add_launch_flags,
    check_launch_flags,
    refuse_kair_test_flags,
)
from utils.options.load import OptionParser, Sources, apply_override

# ---- What a command line asks for ------------------------------------------------------------

DTYPES = ("float32", "bfloat16", "float16")  # values of --dtype
# The weights for a user's clip, unless the command line names weights or a method.
SHIPPED_WEIGHTS = Path(__file__).resolve().parents[2] / "weights/motion.pth"
JOINT = "joint"  # value of --method for the joint solution, see data/motion/joint.py

# Flags with a list of values, with their dashes. After "--save frames comparison", `key=value` is
# an option and not a third item of the list, see `_options_before_lists`.
FLAGS_WITH_LISTS = ("--save", "--lpips")
# Flags of a network and its tiles, without dashes. A formula (--method) has no network, so they are
# refused there.
FLAGS_OF_NETWORK = (
    "weights",
    "sigma",
    "tile",
    "overlap",
    "batch_tiles",
    "blend",
    "flip_seq",
    "pad_seq",
    "dtype",
)
# Flags of a user's own clips. They have no effect on datasets.test, so they are refused without
# --input.
FLAGS_OF_CLIPS = ("spike", "gt", "sigma", "spike_size")


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
    # input: see --save in `_parser`.
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


# ---- Reading ---------------------------------------------------------------------------------


def read_request(argv: Sequence[str], description: str | None) -> TestRequest:
    """Read the command line of main_test_vrt.py. description: the text of --help.

    Raises OptionError for unknown flags, wrong values and flags that exclude each other. If there
    are several errors, the user sees the first one in the order of the lines below.
    """
    parser = _parser(description)
    # Refuse the flags of KAIR's test program first, with the command of this program that does the
    # same. argparse would only say that they are unknown.
    refuse_kair_test_flags(argv)
    # "Intermixed" means that key=value may be given between flags. After a flag with a list,
    # argparse would still take key=value as an entry of the list, so we move it to the front.
    args = parser.parse_intermixed_args(_options_before_lists(argv))
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
    _refuse_contradictions(args, given_keys)

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


def _parser(description: str | None) -> OptionParser:
    """Return the parser of the command line. --help shows the flags in this order.

    A flag counts as given only if its value differs from its default here. Then it wins over the
    option file and the weights. So if the value of a flag may come from them, its default must be
    None or False, which stands for "not given".

    tests/parts/house/test_help.py reads the result of --help.
    """
    # The first two texts are the parts "expected" and "do" of the error for an unknown flag.
    parser = OptionParser(
        "one of the two forms in --help", "see --help, docs/testing.md", description
    )
    add = parser.add_argument
    add("--version", action="version", version=f"SpikeVRT {VERSION}")
    _add_flags_of_network(add)
    _add_flags_of_clips(add)
    _add_flags_of_tiles(add)
    _add_flags_of_results(add)

    # Flags that launchers such as torchrun add, and the options, which are no flags.
    add_launch_flags(parser)
    # Three examples: netG.fusion=none for an option file, spike.rate=0.4 for the user's own clips
    # (--input), and method.half_window=8 for a --method.
    add(
        "overrides",
        nargs="*",
        metavar="section.key=value",
        help="an option of the option file. If --input is given: spike.key=value. If --method is "
        "given: method.key=value",
    )
    return parser


def _add_flags_of_network(add: Callable[..., Any]) -> None:
    """Add the flags that say what restores: a network's options and weights, or another method.

    add: parser.add_argument.
    """
    # The form with one dash, -opt, means the same.
    add(
        "--opt",
        "-opt",
        metavar="FILE",
        help="option file. Its clips datasets.test are restored. If --input is given, only the "
        "network of the file is used",
    )
    # tfp, tfi, tfstp and exposure are formulas, which compute a frame directly. "joint" solves
    # equations of the blurry frame and its spikes, and needs a first frame to begin with: of the
    # formula exposure, or of a network.
    add(
        "--method",
        metavar="NAME",
        help="a method without weights. tfp, tfi, tfstp, exposure: a formula of the spikes. joint: "
        "solves equations of frames and spikes, and begins with the formula exposure, or with the "
        "network of --weights",
    )
    add(
        "--weights",
        metavar="FILE",
        help="a file of weights or a checkpoint, or a name vrt/001 ... vrt/009: published weights, "
        "which are downloaded once. Default: weights/motion.pth. Default if --opt is given: the "
        "best checkpoint of its run",
    )


def _add_flags_of_clips(add: Callable[..., Any]) -> None:
    """Add the flags that name a user's clips, and the folder of the results."""
    add("--input", metavar="PATH", help="video, folder of frames, or folder of either")
    add(
        "--output",
        metavar="DIR",
        help="folder of the results. Default if --opt is given: experiments/<task>/test",
    )
    add(
        "--spike", metavar="PATH", help="spike file of the whole clip, or folder with one per frame"
    )
    add("--spike-size", nargs=2, type=int, metavar=("H", "W"), help="size of a spike plane")
    add("--gt", metavar="PATH", help="sharp frames or video, to score against")


def _add_flags_of_tiles(add: Callable[..., Any]) -> None:
    """Add the flags that say how the network is applied: tiles, precision and so on.

    See `TileRequest`.
    """
    # T is a number of frames, and P a number of pixels (the side of a square tile). "auto": tiles
    # are halved when the memory of a GPU runs out.
    add(
        "--tile",
        metavar="auto|T,P",
        help="frames of a tile, and its side in pixels. 0: all frames, the whole frame. auto: "
        "tiles are halved when memory runs out",
    )
    add(
        "--overlap",
        metavar="T,P",
        help="frames and pixels that neighbouring tiles share (default 2,20)",
    )
    add(
        "--batch-tiles",
        type=int,
        metavar="N",
        help="number of tiles that go through the network at once (val.batch_tiles)",
    )
    # "smooth": the weight of a tile falls towards its border, so no seam is visible. "kair": the
    # borders are cut off, and what is left of each tile has the same weight.
    add(
        "--blend",
        choices=("kair", "smooth"),
        help="how tiles are blended where they overlap. Default: smooth. Default for a test set "
        "(--opt without --input) whose section val gives the sizes of the tiles: kair, as the "
        "published results were made",
    )
    add(
        "--flip-seq", action="store_true", help="average with the time-reversed clip (val.flip_seq)"
    )
    # E.g. 7 frames become 8, if the network saw them so in its training.
    add("--pad-seq", action="store_true", help="repeat the last frame once (val.pad_seq)")
    add(
        "--center-frame-only",
        action="store_true",
        help="restore only the middle frame of each clip (val.center_frame_only)",
    )
    add(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="precision of the network (default float32)",
    )
    # "Non-blind": the denoiser is told the noise level, and does not estimate it.
    add("--sigma", type=float, help="noise level 0..255 for a non-blind denoiser")


def _add_flags_of_results(add: Callable[..., Any]) -> None:
    """Add the flags that say what is saved, and what is scored."""
    # Some networks restore several instants within the exposure of each frame. Their slow-motion
    # video shows all instants.
    add(
        "--save",
        nargs="+",
        choices=("frames", *VIDEOS),
        help="what to save. Default: frames or a video, like --input, and a comparison video. For "
        "a network that restores several instants of a frame, also slowmotion",
    )
    add(
        "--fps",
        type=frame_rate,
        default=25.0,
        help="frame rate of videos made from frames (default 25)",
    )
    add(
        "--lpips",
        nargs="+",
        metavar="FILE",
        help="weights of AlexNet and of LPIPS: also computes the metric LPIPS",
    )
    add(
        "--overwrite",
        action="store_true",
        help="first remove the results of earlier tests from the output folder",
    )


def _options_before_lists(argv: Sequence[str]) -> list[str]:
    """Return `argv` with each key=value in the list of a flag moved to the front.

    Otherwise argparse would take key=value as an entry of the list. E.g.
    --save video val.blend=kair -> val.blend=kair --save video.
    """
    options = []
    others = []
    is_in_list = False  # whether the argument follows a flag of FLAGS_WITH_LISTS
    for argument in argv:
        if argument.startswith("--"):
            is_in_list = argument in FLAGS_WITH_LISTS
        if is_in_list and "=" in argument:
            options.append(argument)
        else:
            others.append(argument)
    return [*options, *others]


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


# ---- Refusals --------------------------------------------------------------------------------


def _refuse_contradictions(args: Namespace, given_keys: set[str]) -> None:
    """Refuse flags that exclude each other, and flags that are missing.

    given_keys: the keys of the flags that differ from their defaults, e.g. {"spike_size"}.
    """
    # Whether the clips are the user's own, and not the clips of datasets.test. This is the rule of
    # TestRequest.is_of_own_clips, because the TestRequest does not exist yet.
    is_of_own_clips = args.input is not None or (args.method is not None and args.opt is None)
    if args.method:
        _refuse_flags_of_a_network(args, given_keys)
    if is_of_own_clips:
        _refuse_missing_flags(args)
    else:
        _refuse_flags_without_clips(args, given_keys)
    if args.spike_size and not args.spike:
        raise OptionError(
            what="--spike-size without --spike",
            where="the command line",
            expected="both flags",
            do="add --spike, or drop --spike-size",
        )
    # The results must not lie in a folder of the user's files.
    if is_of_own_clips:
        inputs = {f"--{key}": getattr(args, key) for key in ("input", "gt", "spike")}
        refuse_overlap(Path(args.output), inputs)


def _refuse_flags_of_a_network(args: Namespace, given_keys: set[str]) -> None:
    """Raise OptionError for flags of a network together with --method, which has no network."""
    # The exception: the joint solution may begin with the frames of a network. Then all flags of
    # FLAGS_OF_NETWORK are allowed.
    begins_with_network = args.method == JOINT and args.weights is not None
    if begins_with_network:
        wrong = []
    else:
        wrong = [key for key in FLAGS_OF_NETWORK if key in given_keys]
    # With --input, only the network of an option file is used. A formula has no network, and the
    # joint solution takes the network that the file of --weights describes. So --opt is refused.
    and_input = ""
    if args.input and "opt" in given_keys:
        wrong.append("opt")
        and_input = " --input"
    if wrong:
        raise OptionError(
            what=f"{_as_flags(wrong)} with --method {args.method}{and_input}",
            where="the command line",
            expected="--method NAME with --opt FILE, or with --spike PATH [--input PATH] "
            "--output DIR",
            do="drop these flags",
        )


def _refuse_flags_without_clips(args: Namespace, given_keys: set[str]) -> None:
    """Raise OptionError without --opt, and for flags of the user's clips without --input."""
    if args.opt is None:
        raise OptionError(
            what="nothing to restore",
            where="the command line",
            expected="--opt FILE, or --weights FILE --input PATH --output DIR",
            do="see --help",
        )
    of_clips = [key for key in FLAGS_OF_CLIPS if key in given_keys]
    if of_clips:
        raise OptionError(
            what=f"{_as_flags(of_clips)} without --input",
            where="the command line",
            expected="datasets.test of the option file",
            do="set these paths in datasets.test, or use the form with --input",
        )


def _refuse_missing_flags(args: Namespace) -> None:
    """Raise OptionError if the form with the user's clips lacks one of its flags."""
    if args.method == JOINT:  # needs frames and spikes
        needed = ("input", "spike", "output")
    elif args.method:  # a formula needs spikes alone
        needed = ("spike", "output")
    else:
        needed = ("weights", "input", "output")
    missing = [key for key in needed if getattr(args, key) is None]
    if missing:
        raise OptionError(
            what=f"{_as_flags(missing, ' and ')} missing",
            where="the command line",
            expected=f"{_as_flags(needed)} together",
            do=f"add {_as_flags(missing, ' and ')}",
        )


def _as_flags(keys: Sequence[str], between: str = ", ") -> str:
    """Return keys as flags, e.g. ["spike_size", "gt"] -> "--spike-size, --gt"."""
    return between.join(f"--{key.replace('_', '-')}" for key in keys)
