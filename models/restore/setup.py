"""The set-up of a test: weights, tiles, and how the spikes are read.

Of four sources the first that says something wins: the command line; the option file; the weights file, which describes
its network and training spikes, or is a published one with its authors' tiles; the dataset.json beside the spikes.
"""

import hashlib
import json
import logging
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from models.portable import RELEASED_TILES, SavedNetwork
from models.released import is_name
from models.restore.outputs import VIDEOS
from models.restore.tiling import Restorer, Tiling
from models.select_network import other_kinds
from utils import VERSION, utils_dist
from utils.arguments import frame_rate
from utils.errors import CheckpointError, OptionError
from utils.files import refuse_overlap, sha256_of
from utils.options.foreign_flags import (
    add_launch_flags,
    check_launch_flags,
    refuse_kair_test_flags,
)
from utils.options.load import OptionParser, Sources, apply_override
from utils.options.models import LoaderOptions, PathOptions, ValOptions
from utils.options.section import read_section
from utils.run.checkpoint import own_checkpoint

logger = logging.getLogger(__name__)

DTYPES = {
    "float32": None,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}  # of --dtype -> of autocast
SHIPPED = (
    Path(__file__).resolve().parents[2] / "weights/operator.pth"
)  # of a user's clip, unless others are given


def _parser(description: str) -> OptionParser:
    parser = OptionParser(
        "one of the two forms in --help", "see --help, docs/testing.md", description
    )
    add = parser.add_argument
    add("--version", action="version", version=f"SpikeVRT {VERSION}")
    add(
        "--opt",
        "-opt",
        metavar="FILE",
        help="option file: tests on datasets.test; with --input: names the network",
    )
    add(
        "--method",
        metavar="NAME",
        help="a reconstruction without weights: tfp, tfi, tfstp or exposure; joint: solved from frames and "
        "spikes, begun with the formula exposure or with the network of --weights",
    )
    add(
        "--weights",
        metavar="FILE",
        help="weights or checkpoint, or vrt/001 to vrt/009, fetched once (default: weights/operator.pth; with --opt: the run's best checkpoint)",
    )
    add("--input", metavar="PATH", help="video, folder of frames, or folder of either")
    add(
        "--output",
        metavar="DIR",
        help="where results go (with --opt: default experiments/<task>/test)",
    )
    add(
        "--spike", metavar="PATH", help="spike file of the whole clip, or folder with one per frame"
    )
    add("--spike-size", nargs=2, type=int, metavar=("H", "W"), help="size of a spike plane")
    add("--gt", metavar="PATH", help="sharp frames or video, to score against")
    add(
        "--tile",
        metavar="auto|T,P",
        help="frames and side of a tile; 0 = the whole; auto: halves on out of memory",
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
        help="tiles through the network at once (val.batch_tiles)",
    )
    add(
        "--blend",
        choices=("kair", "smooth"),
        help="blending of tiles (default smooth; with --opt kair, as published)",
    )
    add(
        "--flip-seq", action="store_true", help="average with the time-reversed clip (val.flip_seq)"
    )
    add("--pad-seq", action="store_true", help="repeat the last frame once (val.pad_seq)")
    add(
        "--center-frame-only",
        action="store_true",
        help="only the middle frame (val.center_frame_only)",
    )
    add(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="precision of the network (default float32)",
    )
    add("--sigma", type=float, help="noise level 0..255 for a non-blind denoiser")
    add(
        "--save",
        nargs="+",
        choices=("frames", *VIDEOS),
        help="what to save (default: frames or video like --input, comparison; slowmotion with several instants)",
    )
    add(
        "--fps",
        type=frame_rate,
        default=25.0,
        help="frame rate of videos made from frames (default 25)",
    )
    add("--lpips", nargs="+", metavar="FILE", help="AlexNet and LPIPS weights: adds LPIPS")
    add(
        "--overwrite",
        action="store_true",
        help="remove the results that this program made in the output folder",
    )
    add_launch_flags(parser)
    add(
        "overrides",
        nargs="*",
        metavar="section.key=value",
        help="any option (with --input: spike.key=value); of a --method: method.key=value",
    )
    return parser


def parse_test_args(argv: Sequence[str], description: str) -> Namespace:
    """The values of the command line, see `_parser`; paths as given. None or empty: the default of the form.

    is_direct: whether the clips are a user's own, not those of datasets.test.
    Raises OptionError for unknown flags, wrong values and flags that exclude each other.
    """
    # Options key=value that follow --save or --lpips are no part of these lists.
    front, rest, is_list = [], [], False
    for argument in argv:
        is_list = argument in ("--save", "--lpips") if argument.startswith("--") else is_list
        (front if is_list and "=" in argument else rest).append(argument)
    parser = _parser(description)
    refuse_kair_test_flags(argv)
    args = parser.parse_intermixed_args([*front, *rest])
    check_launch_flags(args)
    given = [key for key, value in vars(args).items() if value != parser.get_default(key)]
    args.is_direct = args.input is not None or (args.method is not None and args.opt is None)
    for key in ("overrides", "lpips", "save", "spike_size"):
        setattr(args, key, tuple(getattr(args, key) or ()))
    for key in ("tile", "overlap"):
        if (text := getattr(args, key)) and (key, text) != ("tile", "auto"):
            numbers = text.split(",")
            if len(numbers) != 2 or not all(number.strip().isdigit() for number in numbers):
                expected = "two numbers: frames,pixels, e.g. 12,256"
                raise OptionError(f"--{key} is {text}", f"--{key}", expected, f"correct --{key}")
            setattr(args, key, tuple(map(int, numbers)))

    def flags(keys: Sequence[str], between: str = ", ") -> str:
        return between.join(f"--{key.replace('_', '-')}" for key in keys)

    if args.input and not (args.method or args.opt or args.weights):
        args.weights = str(SHIPPED)
    of_network = (
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
    # The joint solution may begin with the frames of a network.
    is_begun = args.method == "joint" and args.weights is not None
    wrong = [
        key
        for key in (*of_network, *(("opt",) if args.input else ()))
        if args.method and key in given and not (is_begun and key != "opt")
    ]
    of_input = [key for key in ("spike", "gt", "sigma", "spike_size") if key in given]
    together = ("spike", "output") if args.method else ("weights", "input", "output")
    if args.method == "joint":
        together = ("input", "spike", "output")
    missing = [key for key in together if getattr(args, key) is None]
    both, form = (
        " --input" if "opt" in wrong else "",
        "--opt FILE, or --weights FILE --input PATH --output DIR",
    )
    faults = (
        (wrong, f"{flags(wrong)} with --method {args.method}{both}",
         "--method NAME with --opt FILE, or with --spike PATH [--input PATH] --output DIR", "drop these flags"),
        (not args.is_direct and args.opt is None, "nothing to restore", form, "see --help"),
        (not args.is_direct and of_input, f"{flags(of_input)} without --input", "datasets.test of the option file",
         "set it there, or use the form with --input"),
        (args.is_direct and missing, f"{flags(missing, ' and ')} missing", f"{flags(together)} together", "add them"),
        (args.spike_size and not args.spike, "--spike-size without --spike", "both", "add --spike, or drop it"),
    )  # fmt: skip
    for is_wrong, what, expected, do in faults:
        if is_wrong:
            raise OptionError(what, "the command line", expected, do)
    if args.is_direct:
        refuse_overlap(
            Path(args.output), {f"--{key}": getattr(args, key) for key in ("input", "gt", "spike")}
        )
    return args


class NetworkMethod:
    """Restores frames with a network and its tiles, which the command line may change; see utils.contract.Method.

    For datasets.test, `section`, the tiles are those of `val`. For a user's clips (both None), published weights have
    the tiles of their authors, others large ones.
    """

    is_grey = False

    def __init__(
        self,
        saved: SavedNetwork,
        args: Namespace,
        val: ValOptions | None = None,
        section: LoaderOptions | None = None,
    ) -> None:
        fields: dict[str, Any] = {}
        if val is not None:
            sigma = getattr(section, "sigma", None) if saved.spec.noise_map else None
            changes = {"pad_seq": True} if getattr(section, "pad_sequence", False) else {}
            if args.tile == "auto":
                changes |= {"num_frame_testing": "auto", "size_patch_testing": "auto"}
            asked = val.plain() | changes
        else:
            sigma, asked = args.sigma, ValOptions().plain()
            fields = {"blend": "smooth", "is_halved": args.tile in (None, "auto")}
            if saved.released and args.tile is None:
                tile = RELEASED_TILES[saved.released[:3]]
                asked |= dict(zip(("num_frame_testing", "size_patch_testing"), tile, strict=True))
            elif utils_dist.get_device().type == "cuda":
                # A full GPU raises an error and the tiles are halved; a CPU that runs out of memory starts to swap.
                asked["size_patch_testing"] = 0
        fields |= {"blend": args.blend} if args.blend else {}
        if isinstance(args.tile, tuple):
            asked |= dict(zip(("num_frame_testing", "size_patch_testing"), args.tile, strict=True))
        asked |= dict(
            zip(
                ("num_frame_overlapping", "size_patch_overlapping"),
                args.overlap or (),
                strict=False,
            )
        )
        flags = {
            key: getattr(args, key)
            for key in ("flip_seq", "pad_seq", "center_frame_only", "batch_tiles")
        }
        asked |= {
            key: value for key, value in flags.items() if value is not None and value is not False
        }
        val = read_section(ValOptions, asked, "val")
        if saved.spec.interpolates and (val.flip_seq or val.pad_seq):
            raise OptionError(
                "these weights interpolate new frames",
                "--flip-seq, --pad-seq",
                "neither",
                "drop them",
            )
        self.saved, self.dtype, self.sigma = (
            saved,
            args.dtype,
            sigma,
        )  # level 0..255, for a non-blind denoiser
        self.tiling = tiling = Tiling.of(val, saved.spec, **fields)
        self.instants, self.center_frame_only = saved.spec.out_instants, tiling.center_frame_only
        self.can_cut = (
            bool(tiling.num_frame_testing) and not tiling.flip_seq and not tiling.center_frame_only
        )

    def settings(self) -> dict[str, Any]:
        saved, keys = self.saved, ("netG", "scale", "spike_channels", "spike", "spike_data")
        about = json.dumps([getattr(saved, key) for key in keys], sort_keys=True)
        return {
            "weights": sha256_of(saved.path), "network": hashlib.sha256(about.encode()).hexdigest()[:12],
            "tile": self.tiling.describe() + (", halved where memory is short" if self.tiling.is_halved else ""),
            "dtype": self.dtype, "sigma": self.sigma,
        }  # fmt: skip

    def protocol(self) -> dict[str, str]:
        weights = f"{self.saved.path} (sha256 {sha256_of(self.saved.path)[:12]}), network from {self.saved.known_from}"
        frames = {"frames": "the middle one"} if self.center_frame_only else {}
        noise = {"noise level": f"{self.sigma:g} of 255"} if self.sigma is not None else {}
        return {"weights": weights, "dtype": self.dtype, **noise, **frames}

    def restorer(self, device: torch.device) -> Restorer:
        return Restorer(
            self.saved.build(),
            self.tiling,
            device,
            dtype=DTYPES[self.dtype],
            noise_sigma=self.sigma,
        )


def find_weights(path: PathOptions, folder: Path, weights: str | None) -> str:
    """--weights; else the file that path.resume names, else the run's best, its latest, and the pretrained weights.

    A folder in path.resume means the best or latest checkpoint of the run in it. With path.resume null the run's own
    checkpoints do not count. Raises CheckpointError where there is none.
    """
    if weights:
        return weights
    named = Path(path.resume) if path.resume not in ("auto", None) else None
    run = folder if named is None else named.parent if named.name == "checkpoints" else named
    tried = [own_checkpoint(run, name) for name in ("best", "latest")] if path.resume else []
    if named is None:
        tried += [Path(file) for file in (path.pretrained_netE, path.pretrained_netG) if file]
    elif not named.is_dir():
        tried = [named]
    if (found := next(filter(_can_be_had, tried), None)) is None:
        expected = "a checkpoint of this run, or path.pretrained_netG"
        raise CheckpointError(
            "no weights to test", ", ".join(map(str, tried)), expected, "give --weights FILE"
        )
    return str(found)


def _can_be_had(weights: Path) -> bool:
    """Return whether weights are a file, or have the name of released ones."""
    return weights.is_file() or is_name(str(weights))


def spike_options(saved: SavedNetwork, args: Namespace) -> dict[str, Any] | None:
    """How a user's spikes are read: as in the training, with the changes of the command line; None: not at all.

    Raises OptionError where an input that the network needs is missing, or one that it does not take is given, and for
    channels of another kind than those of the training.
    """
    spec, path = saved.spec, str(saved.path)
    if spec.interpolates and (args.gt or args.center_frame_only):
        raise OptionError(
            "these weights interpolate new frames",
            path,
            "no --gt, --center-frame-only",
            "drop the flag",
        )
    if spec.noise_map != (args.sigma is not None):
        wants = "need" if spec.noise_map else "do not take"
        raise OptionError(
            f"these weights {wants} a noise level",
            "--sigma",
            "0..255 for 008",
            "add or drop --sigma",
        )
    if spec.spike_channels and not args.spike:
        do = "add --spike PATH --spike-size H W, or use weights trained on RGB alone"
        raise OptionError(
            "these weights need spikes",
            "--spike",
            "a .dat of the clip, or a folder of .dat files",
            do,
        )
    if not args.spike:
        return None
    if saved.spike is None:
        logger.warning("these weights take no spikes: --spike is not read")
        return None
    spike = {"type": saved.spike} if isinstance(saved.spike, str) else dict(saved.spike)
    # What describes the training data is not true of the user's.
    if saved.spike_data is not None and spike.get("rate") != "match":
        spike |= {"rate": None, "light": None}
    for key in ("calibration", "exposure", "first", "count"):
        spike.pop(key, None)
    changed = changed_spikes(spike, args)
    for key, learned, given in other_kinds(spike, changed):
        what = f"spike.{key} is {given}, the network was trained with {learned}"
        raise OptionError(
            what, f"spike.{key}", f"{learned}, as in the training", f"leave spike.{key} out"
        )
    return changed


def changed_spikes(
    spike: dict[str, Any], args: Namespace, own: Sequence[str] = ()
) -> dict[str, Any]:
    """A spike section with the changes of the command line in the form with --input.

    own: keys that --method sets itself. Raises OptionError for a change of these.
    """
    table = {"spike": dict(spike)}
    if args.spike_size:
        table["spike"] |= dict(zip(("h", "w"), args.spike_size, strict=True))
    for override in args.overrides:
        if not override.startswith("spike."):
            expected, do = (
                "spike.key=value in the form with --input",
                "use the flags of --help, or --opt alone",
            )
            raise OptionError(f"cannot set {override}", "the command line", expected, do)
        if override.partition("=")[0].split(".")[1] in own:
            what = f"{override} has no effect with --method {args.method}"
            raise OptionError(
                what,
                "the command line",
                f"other keys than {', '.join(own)}",
                "set method.key=value",
            )
        apply_override(table, override, Sources(args.weights))
    return table["spike"]
