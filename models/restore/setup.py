"""What a test takes from its command line, its options and its weights file: weights, spikes, tiles."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models.portable import SavedNetwork, portable_options, read_saved
from models.released import RELEASED_TILES
from models.restore.method import NetworkMethod
from models.restore.test_args import TestArgs
from models.restore.tiling import Tiling
from utils import utils_dist
from utils.contract import InputSpec
from utils.errors import CheckpointError, OptionError, SpikeVRTError
from utils.options.file import Sources, apply_override
from utils.options.models import LoaderOptions, Options, PathOptions, ValOptions
from utils.run.resume import differences

KIND = ("representation", "gamma")  # what one network can take of one value alone

logger = logging.getLogger(__name__)


@contextmanager
def answered_by_flags() -> Iterator[None]:
    """Errors of the form with --input: a missing or wrong size of the spike planes is answered by --spike-size."""
    try:
        yield
    except SpikeVRTError as e:
        if e.where.startswith("spike.h") or "spike height and width" in e.do:
            e.do = "give --spike-size H W; scripts/spike_tool.py info FILE --picture FRAME shows which sizes fit"
        raise


def find_weights(path: PathOptions, folder: Path, weights: str | None) -> str:
    """--weights; else the file that path.resume names, else the run's best, its latest, and the pretrained weights.

    With path.resume null the run's own checkpoints do not count. Raises CheckpointError where there is none.
    """
    if weights:
        return weights
    own = [folder / "checkpoints" / f"checkpoint_{name}.pth" for name in ("best", "latest")]
    tried = [*(own if path.resume else []), *filter(None, (path.pretrained_netE, path.pretrained_netG))]
    if path.resume not in ("auto", None):
        tried = [path.resume]
    found = next((str(p) for p in tried if Path(p).is_file()), None)
    if found is None:
        raise CheckpointError(
            "no weights to test", ", ".join(map(str, tried)), "a checkpoint of this run, or path.pretrained_netG",
            "train first, or give --weights FILE",
        )  # fmt: skip
    return found


def saved_for(weights: str, opt: Options | None) -> SavedNetwork:
    """The weights, as the network of the option file; without one, as the network that their file describes.

    Raises CheckpointError where the options give spike channels of another kind than those of the training: as many of
    them would pass unseen. Warns where other settings differ.
    """
    if opt is None:
        return read_saved(weights)
    saved = read_saved(weights, portable_options(opt))
    if saved.spike is None or saved.learned is None or not saved.spec.spike_channels:
        return saved
    for key, learned, given in zip(KIND, kind_of(saved.learned), kind_of(saved.spike), strict=True):
        if given != learned:
            raise CheckpointError(
                f"the spike channels have {key} {given}, the weights were trained with {learned}", weights,
                f"weights trained with datasets.train.spike.{key} {given}",
                f"choose other weights, or set spike.{key} in the datasets to {learned}",
            )  # fmt: skip
    changed = {
        key: values for key, values in differences(saved.learned, saved.spike).items()
        if key.startswith("representation.") or key in ("context", "resize")
    }  # fmt: skip
    if changed and utils_dist.is_main_process():
        lines = ", ".join(f"{key} {learned} -> {given}" for key, (learned, given) in changed.items())
        logger.warning("the weights were trained with other spike channels than the options give: %s", lines)
    return saved


def check_inputs(saved: SavedNetwork, args: TestArgs) -> None:
    """Raises OptionError where an input that the network needs is missing, or one that it does not take is given."""
    spec = saved.spec
    if spec.interpolates and (args.gt or args.flip_seq or args.pad_seq or args.center_frame_only):
        raise OptionError(
            "these weights interpolate new frames", str(saved.path),
            "no --gt, --flip-seq, --pad-seq or --center-frame-only", "drop these flags",
        )  # fmt: skip
    if spec.noise_map != (args.sigma is not None):
        wants = "need" if spec.noise_map else "do not take"
        raise OptionError(f"these weights {wants} a noise level", "--sigma", "0..255 for 008", "add or drop --sigma")
    if spec.spike_channels and not args.spike:
        raise OptionError(
            "these weights need spikes", "--spike", "the spikes of the clip: a .dat, or a folder of .dat files",
            "add --spike PATH --spike-size H W, or use weights trained on RGB alone",
        )  # fmt: skip
    if args.spike and saved.spike is None:
        logger.warning("these weights take no spikes: --spike is not read")


def spike_options(saved: SavedNetwork, args: TestArgs) -> dict[str, Any]:
    """The spike section of the network's training, with the changes of the command line.

    Raises OptionError for channels of another kind than those of the training.
    """
    table = {"spike": {"type": saved.spike} if isinstance(saved.spike, str) else dict(saved.spike)}
    # What describes the training data is not true of the user's.
    if saved.spike_data is not None and table["spike"].get("rate") != "match":
        table["spike"] |= {"rate": None, "light": None}
    for key in ("calibration", "exposure", "first", "count"):
        table["spike"].pop(key, None)
    changed = changed_spikes(table["spike"], args)
    for key, learned, given in zip(KIND, kind_of(table["spike"]), kind_of(changed), strict=True):
        if given != learned:
            raise OptionError(
                f"spike.{key} is {given}, the network was trained with {learned}", f"spike.{key}",
                f"{learned}, as in the training", f"leave spike.{key} out",
            )  # fmt: skip
    return changed


def kind_of(spike: dict[str, Any]) -> tuple[str, float]:
    """The values of KIND, the name of the representation and gamma, in a spike section, which may lack defaults."""
    found = spike.get("representation", "voxel")
    return found if isinstance(found, str) else found["type"], spike.get("gamma", 1.0)


def changed_spikes(spike: dict[str, Any], args: TestArgs, own: Sequence[str] = ()) -> dict[str, Any]:
    """A spike section with the changes of the command line in the form with --input.

    own: keys that --method sets itself. Raises OptionError for a change of these.
    """
    table = {"spike": dict(spike)}
    if args.spike_size:
        table["spike"] |= dict(zip(("h", "w"), args.spike_size, strict=True))
    for override in args.overrides:
        if not override.startswith("spike."):
            raise OptionError(
                f"cannot set {override}", "the command line", "spike.key=value in the form with --input",
                "use --tile, --blend, --flip-seq, ..., or the form with --opt alone",
            )  # fmt: skip
        if override.partition("=")[0].split(".")[1] in own:
            raise OptionError(
                f"{override} has no effect with --method {args.method}", "the command line",
                f"method.key=value; a method sets {', '.join(f'spike.{key}' for key in own)} itself", "remove it",
            )  # fmt: skip
        apply_override(table, override, Sources(args.weights))
    return table["spike"]


def split_method(args: TestArgs) -> tuple[dict[str, Any], TestArgs]:
    """The section of --method with the overrides method.key=value, and the arguments without these overrides.

    Raises OptionError for an override of the method itself.
    """
    table: dict[str, Any] = {"method": {"type": args.method}}
    mine = [override for override in args.overrides if override.startswith("method.")]
    for override in mine:
        if override.startswith("method.type="):
            raise OptionError(
                f"{override} with --method {args.method}", "the command line", "the name of the method once",
                "give the name with --method alone",
            )  # fmt: skip
        apply_override(table, override, Sources(None))
    others = tuple(override for override in args.overrides if override not in mine)
    return table["method"], dataclasses.replace(args, overrides=others)


def automatic_tiles(saved: SavedNetwork, args: TestArgs) -> ValOptions:
    """The tiles of the authors of published weights; for other weights, and --tile auto, as large as memory allows."""
    if saved.released and args.tile is None:
        frames, side = RELEASED_TILES[saved.released[:3]]
        return ValOptions(num_frame_testing=frames, size_patch_testing=side)
    # A full GPU raises an error and the tiles are halved; a CPU that runs out of memory starts to swap.
    return ValOptions(size_patch_testing=0 if utils_dist.get_device().type == "cuda" else "auto")


def tiling_of(val: ValOptions, spec: InputSpec, args: TestArgs, **defaults: Any) -> Tiling:
    """The tiles of `val`, with the changes of the command line. defaults: fields that `val` does not have."""
    tile = args.tile if isinstance(args.tile, tuple) else ()
    asked = dict(zip(("num_frame_testing", "size_patch_testing"), tile, strict=False))
    asked |= dict(zip(("num_frame_overlapping", "size_patch_overlapping"), args.overlap or (), strict=False))
    flags = {key: getattr(args, key) for key in ("flip_seq", "pad_seq", "center_frame_only", "batch_tiles", "blend")}
    asked |= {key: value for key, value in flags.items() if value is not None and value is not False}
    tiling = Tiling.of(val, spec, **{**defaults, **asked})
    if spec.interpolates and (tiling.flip_seq or tiling.pad_seq):
        raise OptionError(
            "these weights interpolate new frames", "--flip-seq, --pad-seq", "neither of them", "drop these flags"
        )
    return tiling


def saved_network(args: TestArgs, opt: Options, section: LoaderOptions) -> NetworkMethod:
    """The network of the run or of --weights, for the test section."""
    saved = saved_for(find_weights(opt.path, opt.folder, args.weights), opt)
    val = opt.val.model_copy(update={"pad_seq": True}) if getattr(section, "pad_sequence", False) else opt.val
    sigma = getattr(section, "sigma", None) if saved.spec.noise_map else None
    if args.tile == "auto":
        val = val.model_copy(update={"num_frame_testing": "auto", "size_patch_testing": "auto"})
    return NetworkMethod(saved, tiling_of(val, saved.spec, args), args.dtype, sigma)
