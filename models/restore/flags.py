"""List the flags of main_test_vrt.py, with their help.

request.py calls `parser_of_tests`, and turns the values of the flags into a `TestRequest`. --help
shows the flags in the order of this file.

Words: a formula (tfp, tfi, tfstp, exposure) computes a frame from spikes directly. The joint
solution solves equations of the blurry frame and its spikes. A network restores a clip in tiles of
few frames and few pixels.

What must stay: the names of the flags, which users' scripts give. docs/testing.md has the names,
and test_the_flags_in_the_pages_are_flags_of_the_programs compares both. Free to change: the texts.

Tests: tests/parts/house/test_help.py, tests/parts/utils/test_results.py
"""

from collections.abc import Callable, Sequence
from typing import Any

from models.restore.outputs import VIDEOS
from utils import VERSION
from utils.arguments import frame_rate, plane_side
from utils.options.command_line import OptionParser
from utils.options.foreign_flags import add_launch_flags

# Values of --dtype. network_method.py has the dtype of each (DTYPES), so a new value needs an entry
# in both files.
DTYPES = ("float32", "bfloat16", "float16")
JOINT = "joint"  # value of --method for the joint solution, see data/motion/joint/


def parser_of_tests(description: str | None) -> OptionParser:
    """Return the parser of the command line. --help shows the flags in this order.

    A flag counts as given if its value differs from its default here. If a flag is not given, its
    value may come from the option file or from the weights. Such a flag must have the default None
    or False, because nobody can give these values on the command line. With the default 2, the
    program could not tell "not given" from "given as 2".

    description: the text of --help above the flags.
    """
    # `expected` and `do` are parts of the error for an unknown flag.
    parser = OptionParser(
        expected="one of the forms in --help",
        do="see --help, docs/testing.md",
        description=description,
    )
    add = parser.add_argument
    add("--version", action="version", version=f"SpikeVRT {VERSION}")
    _add_flags_of_network(add)
    _add_flags_of_clips(add)
    _add_flags_of_tiles(add)
    _add_flags_of_results(add)

    # Flags that launchers such as torchrun add.
    add_launch_flags(parser)
    # Words without dashes set options: e.g. netG.fusion=none for an option file, spike.rate=0.4 for
    # the user's own clips (--input), and method.half_window=8 for a --method.
    add(
        "overrides",
        nargs="*",
        metavar="section.key=value",
        help="an option of the option file. If --input is given: spike.key=value. If --method is "
        "given: method.key=value",
    )
    return parser


def _add_flags_of_network(add: Callable[..., Any]) -> None:
    """Add the flags that choose what restores the frames: a network, or a method without weights.

    --opt and --weights choose a network, and --method chooses another method, e.g. a formula
    (docs/testing.md has a table). A plane is one read-out of the spike camera, and the rate of a
    pixel is its number of spikes per plane. The formulas compute

        tfp         the mean of the planes around the sharp frame
        tfi         1 / the interval between two spikes
        tfstp       the rate, from a model of synapses that adapt to their input (short-term
                    plasticity)
        exposure    blurry frame * (rate around the sharp frame / rate of the exposure)

    add: parser.add_argument.
    """
    # The form with one dash, -opt, means the same. The section datasets.test of the option file
    # names the clips that are restored, unless --input names other clips.
    add(
        "--opt",
        "-opt",
        metavar="FILE",
        help="option file. Its clips datasets.test are restored. If --input is given, only the "
        "network of the file is used",
    )
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
    add("--input", metavar="PATH", help="a video, a folder of frames, or a folder of several clips")
    add(
        "--output",
        metavar="DIR",
        help="folder of the results. Default if --opt is given: experiments/<task>/test",
    )
    add(
        "--spike",
        metavar="PATH",
        help="a spike file of the whole clip, or a folder with a spike file for each frame",
    )
    add("--spike-size", nargs=2, type=plane_side, metavar=("H", "W"), help="size of a spike plane")
    add("--gt", metavar="PATH", help="sharp frames or a sharp video, to score the results")


def _add_flags_of_tiles(add: Callable[..., Any]) -> None:
    """Add the flags that say how the network is applied: tiles, precision and so on."""
    # T is a number of frames. P is a number of pixels, the side of a square tile. The default 2,20
    # in the help of --overlap is the default of `ValOptions` (utils/options/val_options.py), so
    # change both.
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
    # Where tiles overlap, a pixel has a value from each tile, and the result is their weighted
    # mean. With "smooth", the weight of a tile falls towards its border, so that no seam is
    # visible. With "kair", the borders of the tiles are cut off, as for the published results.
    # Without the flag, the blend is
    #
    #     smooth   for the user's own clips (--input)
    #     smooth   for a test set, if the section val of the option file gives no sizes of tiles
    #     kair     for a test set, if the section val gives the sizes of the tiles
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
    # --pad-seq is for networks that were trained on Vimeo-90K with the option pad_sequence. This
    # option makes 8 frames of the 7 frames of a clip.
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
    # A non-blind denoiser is a denoiser that is told the noise level.
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
    # `Outputs.fps` (outputs.py) has the same default.
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


# Flags that take a list of any length: all flags above with nargs="+". Add a new flag with a list
# here, too.
FLAGS_WITH_LISTS = ("--save", "--lpips")


def options_before_lists(argv: Sequence[str]) -> list[str]:
    """Return `argv` with each key=value that follows the list of a flag moved to the front.

    Without this, argparse would take key=value as an entry of the list. E.g.
    --save video netG.fusion=none becomes netG.fusion=none --save video
    (test_option_values_after_the_list_of_save_do_not_belong_to_it).
    """
    options = []
    others = []
    is_in_list = False  # whether the argument may belong to the list of a flag
    for argument in argv:
        if argument.startswith("--"):
            is_in_list = argument in FLAGS_WITH_LISTS
        if is_in_list and "=" in argument:
            options.append(argument)
        else:
            others.append(argument)
    return [*options, *others]
