"""What a test needs to know of weights before it starts: which file, which inputs, which tiles."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.model_vrt import tile_options
from models.portable import SavedNetwork
from models.released import RELEASED_TILES
from models.restore.test_args import TestArgs
from models.restore.tiling import Tiling
from utils import utils_dist
from utils.errors import CheckpointError, OptionError
from utils.options.models import PathOptions, ValOptions

# Frames and side of a tile where neither the user nor the authors of the weights say: see docs/testing.md.
AUTO_FRAMES = 12
AUTO_SIDE_CPU = 256

logger = logging.getLogger(__name__)


def find_weights(path: PathOptions, folder: Path, weights: str | None) -> str:
    """--weights; else the run's best, else its latest checkpoint, unless path.resume is null; else the pretrained."""
    if weights:
        return weights
    own = [folder / "checkpoints" / f"checkpoint_{name}.pth" for name in ("best", "latest")]
    if path.resume not in ("auto", None):
        own = [Path(path.resume)]
    tried = [*(own if path.resume else []), *filter(None, (path.pretrained_netE, path.pretrained_netG))]
    found = next((str(p) for p in tried if Path(p).is_file()), None)
    if found is None:
        raise CheckpointError(
            "no weights to test", ", ".join(map(str, tried)), "a checkpoint of this run, or path.pretrained_netG",
            "train first, or give --weights FILE",
        )  # fmt: skip
    return found


def check_inputs(saved: SavedNetwork, args: TestArgs) -> None:
    """Raise OptionError where the network needs an input that was not given, or the other way round."""
    spec = saved.spec
    if spec.interpolates and (args.gt or args.flip_seq or args.pad_seq or args.center_frame_only):
        raise OptionError(
            "these weights make new frames between given ones", str(saved.path),
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


def direct_tiling(saved: SavedNetwork, args: TestArgs) -> Tiling:
    """The tiles asked for, else those of the authors of published weights, else as large as memory allows."""
    # A GPU says when its memory is full; a computer without one rather starts to swap.
    spec = saved.spec
    side = 0 if utils_dist.get_device().type == "cuda" else -(-AUTO_SIDE_CPU // spec.multiple) * spec.multiple
    frames = AUTO_FRAMES
    if saved.released and args.tile is None:
        frames, side = RELEASED_TILES[saved.released[:3]]
    flags = {key: getattr(args, key) for key in ("flip_seq", "pad_seq", "center_frame_only")}
    val = ValOptions(num_frame_testing=frames, size_patch_testing=side, **flags)
    return Tiling(**{**tile_options(val, spec), "blend": args.blend or "smooth", **asked_tiles(args)})


def settings_of(
    saved: SavedNetwork, tiling: str, args: TestArgs, save: Sequence[str], section: dict[str, Any]
) -> dict[str, Any]:
    """All that the results depend on but the input files, as plain JSON.

    tiling: in words. section: the resolved options that say what is read of the files and how.
    """
    lpips = [[name, os.stat(name).st_size, os.stat(name).st_mtime_ns] for name in args.lpips if os.path.exists(name)]
    settings = {
        "weights": saved.sha256(), "network": saved.options_digest(), "tile": tiling, "dtype": args.dtype,
        "sigma": args.sigma, "lpips": lpips, "save": list(save), "fps": args.fps, **section,
    }  # fmt: skip
    return json.loads(json.dumps(settings))


def asked_tiles(args: TestArgs) -> dict[str, int]:
    """--tile T,P, --overlap T,P and --batch-tiles as fields of Tiling."""
    tile = args.tile if isinstance(args.tile, tuple) else ()
    asked = dict(zip(("num_frame_testing", "size_patch_testing"), tile, strict=False))
    asked |= dict(zip(("num_frame_overlapping", "size_overlapping"), args.overlap or (), strict=False))
    return asked | ({} if args.batch_tiles is None else {"batch_tiles": args.batch_tiles})
